"""Intervals of integers that are right whatever overflows."""

import numpy as np
import pytest

from ruda import dtypes
from ruda.jit import intrinsics, ir
from ruda.jit.ir import Cast, Const, Op, Read, Select, Variable
from ruda.jit.passes.bounds import Exact

INTEGERS = (dtypes.index, dtypes.int64, dtypes.int32, dtypes.uint32)
NAMES = ("add", "sub", "mul", "floordiv", "mod", "min", "max", "and", "or", "xor", "shl", "shr",
         "neg", "abs", "invert", "wrap")  # fmt: skip
ORDER = ("lt", "le", "gt", "ge", "eq", "ne")
EDGES = (0, 1, 2, 7, 31, 32, 33, 63, 64, 255, 256, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40)


class Expressions:
    """Random integer expressions of a few variables, and what they are worth."""

    def __init__(self, seed, narrow):
        self.rng, self.narrow = np.random.default_rng(seed), narrow
        self.variables = [Variable(f"v{k}", INTEGERS[k % 4]) for k in range(8)]
        self.env = {}
        for v in self.variables:
            if self.rng.integers(3):
                ends = sorted(self.fitting(self.number(), v.dtype) for _ in range(2))
                self.env[v] = tuple(map(int, ends))

    def number(self):
        return int(self.rng.choice(EDGES)) * int(self.rng.choice([1, -1]))

    def held(self, dtype):
        """The dtype as which the target holds one."""
        index = {True: dtypes.int32, False: dtypes.int64}[self.narrow]
        return index if dtype.name == "index" else dtype

    def fitting(self, value, dtype):
        return intrinsics.convert(value, self.held(dtype))

    def make(self, dtype, depth):
        choice = self.rng.integers(8) if depth else 0
        if choice < 2:
            if self.rng.integers(2):
                return Const(int(self.fitting(self.number(), dtype)), dtype)
            return Read(self.rng.choice([v for v in self.variables if v.dtype == dtype]))
        if choice == 2:
            other = INTEGERS[self.rng.integers(4)]
            return Cast(self.make(other, depth - 1), dtype)
        if choice == 3:
            other = INTEGERS[self.rng.integers(4)]
            sides = tuple(self.make(other, depth - 1) for _ in range(2))
            test = Op(str(self.rng.choice(ORDER)), sides, dtypes.bool_)
            return Select(test, *(self.make(dtype, depth - 1) for _ in range(2)))
        name = str(self.rng.choice(NAMES))
        count = 1 if name in ("neg", "abs", "invert") else 2
        return Op(name, tuple(self.make(dtype, depth - 1) for _ in range(count)), dtype)

    def value(self, node, values):
        match node:
            case Const(value, dtype):
                return self.held(dtype).numpy.type(value)
            case Read(variable):
                return values[variable]
            case Cast(inner, dtype):
                return self.fitting(int(self.value(inner, values)), dtype)
            case Select(test, then, otherwise):
                return self.value(then if self.value(test, values) else otherwise, values)
            case Op("wrap", (i, n)):
                i, n = self.value(i, values), self.value(n, values)
                return intrinsics.evaluate("add", (i, n), self.held(node.dtype)) if i < 0 else i
            case Op(name, operands):
                given = tuple(self.value(o, values) for o in operands)
                return intrinsics.evaluate(name, given, self.held(node.dtype))

    def values(self):
        out = {}
        for v in self.variables:
            low, high = self.env.get(v, self.held(v.dtype).range)
            near = [low, high, low + (high - low) // 2, *(low + int(k) for k in (1, 31, 100))]
            out[v] = self.held(v.dtype).numpy.type(min(high, int(self.rng.choice(near))))
        return out


@pytest.mark.parametrize("narrow", [True, False], ids=["32 bits", "64 bits"])
def test_no_value_is_outside_its_interval(narrow):
    bounded = 0
    for seed in range(80):
        made = Expressions(seed, narrow)
        ranges = Exact(ir.Function("f", (), ()), narrow)
        for _ in range(4):
            dtype = INTEGERS[made.rng.integers(4)]
            node = made.make(dtype, 3)
            low, high = ranges.of(node, dict(made.env))
            least, most = made.held(dtype).range
            bounded += (low, high) != (least, most)
            for _ in range(4):
                found = int(made.value(node, values := made.values()))
                assert low <= found <= high, (node, values, found, (low, high))
    assert bounded > 80  # or nothing was tried
