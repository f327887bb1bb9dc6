"""Random kernels of the IR with barriers, jumps, returns and exchanges: the CPU agrees with sim.

They are free of races by construction: a thread writes its own element of `out` and its own cell of
shared memory, and reads other cells only between two barriers that all threads reach.
"""

from __future__ import annotations

import numpy as np
import pytest

from ruda.backends.base import Launch
from ruda.backends.cpu.device import BACKEND
from ruda.jit import ir
from ruda.jit.interpret import Interpreter
from tests.jit.build import assign, block, const, function, i32, load, op, store, u32

X, OUT = ir.Array("x", i32, 1), ir.Array("out", i32, 1)
TARGET = BACKEND.target("cpu")


class Program:
    """One random kernel. `steps` is the number of statements that may still be made."""

    def __init__(self, seed: int) -> None:
        self.r = np.random.default_rng(seed)
        shapes = [(4, 1, 1), (33, 1, 1), (8, 4, 1), (2, 3, 2), (1, 1, 1)]
        self.block = shapes[self.r.integers(len(shapes))]
        self.threads = int(np.prod(self.block))
        self.shared = ir.Array("s", i32, 1, space="shared", shape=(self.threads,))
        self.local = ir.Array("mine", i32, 1, space="local", shape=(3,))
        self.mine = [ir.Variable(f"v{k}", i32) for k in range(4)]  # differ between threads
        self.uniform = [ir.Variable(f"u{k}", i32) for k in range(3)]  # the same in a block
        self.loops = 0
        self.returns = bool(self.r.integers(2))  # then no lane is read that may have returned
        self.steps = int(self.r.integers(4, 16))

    # ---- expressions

    def me(self) -> ir.Expr:
        x, y, _ = self.block
        special = [ir.Special("threadIdx", axis) for axis in range(3)]
        return op("add", special[0], op("mul", op("add", special[1], op("mul", special[2], y)), x))

    def here(self) -> ir.Expr:
        return op("add", op("mul", block(), self.threads), self.me())

    def number(self, mine: bool, depth: int = 0) -> ir.Expr:
        choice = self.r.integers(6 if depth < 2 else 3)
        if choice == 0:
            return const(int(self.r.integers(-4, 9)), i32)
        if choice == 1 and mine:
            pick = self.r.integers(4)
            if pick == 0:
                return ir.Cast(self.me(), i32)
            if pick == 1:
                return load(self.local, const(int(self.r.integers(3))))
        if choice <= 2:
            pool = self.mine + self.uniform if mine else self.uniform
            return ir.Read(pool[self.r.integers(len(pool))])
        name = ["add", "sub", "mul", "xor", "min", "floordiv", "mod"][self.r.integers(7)]
        return op(name, self.number(mine, depth + 1), self.number(mine, depth + 1))

    def condition(self, mine: bool) -> ir.Expr:
        name = ["lt", "eq", "ge", "ne"][self.r.integers(4)]
        # A datum keeps a condition on the thread from being provably divergent.
        left = op("add", self.number(mine), load(X, self.here())) if mine else self.number(False)
        test = op(name, op("mod", left, 3), int(self.r.integers(3)))
        if self.r.integers(4) == 0:
            return ir.And(test, op("ne", self.number(mine), 0))
        return test

    # ---- statements

    def body(self, size: int, depth: int, mine: bool, loop: bool) -> tuple[ir.Statement, ...]:
        """`mine`: threads may have parted, so that no barrier may stand here."""
        out: list[ir.Statement] = []
        for _ in range(size):
            if self.steps <= 0:
                break
            self.steps -= 1
            out += self.statement(depth, mine, loop)
        return tuple(out)

    def statement(self, depth: int, mine: bool, loop: bool) -> list[ir.Statement]:
        choice = int(self.r.integers(14))
        if choice < 3:
            return [assign(self.mine[self.r.integers(4)], self.number(True))]
        if choice == 3 and not mine:
            return [assign(self.uniform[self.r.integers(3)], self.number(False))]
        if choice == 4:
            return [store(OUT, self.here(), op("add", load(OUT, self.here()), self.number(True)))]
        if choice == 5:
            return [store(self.local, const(int(self.r.integers(3))), self.number(True))]
        if choice <= 8 and not mine:
            return self.exchange()
        if choice == 9 and depth < 3:
            inner = mine or bool(self.r.integers(2))
            then = self.body(3, depth + 1, inner, loop)
            otherwise = self.body(2, depth + 1, inner, loop) if self.r.integers(2) else ()
            return [ir.If(self.condition(inner), then, otherwise)] if then else []
        if choice == 10 and depth < 3:
            return self.counted_loop(depth, mine)
        if choice == 11 and loop:
            jump = ir.Break() if self.r.integers(2) else ir.Continue()
            return [ir.If(self.condition(mine), (jump,))]
        if choice == 12 and depth == 0 and self.returns:
            return [ir.If(self.condition(True), (ir.Return(),))]
        if choice == 13 and depth < 3 and not mine:
            return self.ragged_loop(depth)
        return []

    def counted_loop(self, depth: int, mine: bool) -> list[ir.Statement]:
        self.loops += 1
        k = ir.Variable(f"k{self.loops}", i32)
        stop = op("mod", self.number(mine), 4)
        inner = self.body(3, depth + 1, mine, True)
        used = store(OUT, self.here(), op("add", load(OUT, self.here()), k))
        return [ir.For(k, const(0, i32), stop, const(1, i32), (*inner, used))]

    def ragged_loop(self, depth: int) -> list[ir.Statement]:
        """Threads leave at different times; those that are left go on meeting at the barriers."""
        self.loops += 1
        k = ir.Variable(f"w{self.loops}", i32)
        start = assign(k, op("mod", op("add", load(X, self.here()), self.number(True)), 4))
        inner = self.body(2, depth + 1, True, False)
        down = assign(k, op("sub", k, 1))
        return [start, ir.While(op("gt", k, 0), (down, *inner))]

    def exchange(self) -> list[ir.Statement]:
        """All threads meet: through shared memory, by a vote, or in warps."""
        v = self.mine[self.r.integers(4)]
        kind = int(self.r.integers(6))
        if kind == 0:
            result = ir.Variable("vote", i32)
            vote = ["and", "or", "count"][self.r.integers(3)]
            barrier = ir.Barrier("block", vote, op("gt", self.number(True), 0), result)
            return [barrier, assign(v, op("add", v, result))]
        if kind == 1:
            bits = ir.Variable("bits", u32)
            mask = const(0xFFFFFFFF, u32)
            return [
                ir.Warp("ballot", mask, (op("gt", self.number(True), 0),), bits),
                assign(v, op("add", v, ir.Cast(ir.Read(bits), i32))),
            ]
        if 2 <= kind <= 3 and not self.returns:
            got = ir.Variable("got", i32)
            by = const(int(self.r.integers(1, 5)), i32)
            operands = (self.number(True), by, const(32, i32))
            name = ["shfl_down", "shfl_up", "shfl_xor"][self.r.integers(3)]
            mask = const(0xFFFFFFFF, u32)
            return [ir.Warp(name, mask, operands, got), assign(v, op("xor", v, got))]
        other = op("mod", op("add", self.me(), int(self.r.integers(1, 5))), self.threads)
        return [
            store(self.shared, self.me(), self.number(True)),
            ir.Barrier(),
            assign(v, op("add", v, load(self.shared, other))),
            ir.Barrier(),
        ]

    def kernel(self) -> ir.Function:
        head = [assign(v, load(X, self.here())) for v in self.mine]
        head += [assign(u, int(self.r.integers(-3, 5))) for u in self.uniform]
        head += [ir.Declare(self.shared), ir.Declare(self.local)]
        head += [store(self.shared, self.me(), load(X, self.here())), ir.Barrier()]
        head += [store(self.local, const(k), load(X, self.here())) for k in range(3)]
        body = self.body(20, 0, False, False)
        tail = [
            store(OUT, self.here(), op("add", load(OUT, self.here()), v))
            for v in (*self.mine, *self.uniform)
        ]
        return function(
            (X, OUT), *head, *body, *tail, arrays=(self.shared, self.local), block=self.block
        )


@pytest.mark.parametrize("seed", range(40))
def test_random_kernel(seed):
    program = Program(seed)
    kernel = program.kernel()
    n = 3 * program.threads
    x = np.random.default_rng(seed).integers(-9, 10, n).astype(np.int32)
    expected, got = np.zeros(n, np.int32), np.zeros(n, np.int32)
    Interpreter(kernel).run((3, 1, 1), program.block, [x, expected], 0)
    module = BACKEND.load(BACKEND.compile(BACKEND.emit(kernel, TARGET), TARGET), kernel, "cpu")
    BACKEND.launcher(module, Launch((3, 1, 1), program.block), None)(x, got)
    assert np.array_equal(got, expected), str(kernel)
