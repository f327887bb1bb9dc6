"""Bring every barrier and exchange where all threads of a block provably come by.

WGSL allows a barrier only under conditions that are uniform by its own rules. A branch around a
barrier whose condition is not becomes a flag for each thread: the barrier is reached by all, and
what stands between barriers runs under `if flag`. A loop goes on as long as any thread wants to.
Threads that have returned are threads whose flag is off; so are the lanes of a warp that a branch
left out.

Barriers, votes and exchanges become pseudo statements `Asm("wgpu", ...)`:

    barrier ()                        storage and workgroup memory are in order behind it
    count (predicate)                 int32: threads of the block for which it holds
    ballot (predicate)                uint32: lanes of the warp for which it holds
    exchange (value, lane)            the value of another lane of the warp
    match (value, mask)               uint32: lanes among the mask with the same bits
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import Place, UnsupportedError
from ruda.jit import ir
from ruda.jit.ir import (
    And,
    Asm,
    Assign,
    Barrier,
    Body,
    Break,
    Cast,
    Const,
    Cooperative,
    Declare,
    Expr,
    For,
    Function,
    If,
    Op,
    Read,
    Select,
    Special,
    Statement,
    Variable,
    Warp,
    While,
)  # fmt: skip
from ruda.jit.passes.jumps import TRUE, in_range, negate
from ruda.jit.passes.names import Names
from ruda.jit.passes.uniformity import DATA, THREAD, Uniformity, check_barriers

I32, U32, BOOL = dtypes.int32, dtypes.uint32, dtypes.bool_
FALSE = Const(False, BOOL)


def predicate(function: Function) -> Function:
    """The same kernel with its barriers in uniform control flow."""
    if not ir.has_barrier(function.body):
        return function
    state = check_barriers(function)
    varying: frozenset[Variable] = frozenset()
    while True:  # variables that only some threads assign are not the block's
        attempt = _Predicate(function, state, Names(function), varying)
        body = tuple(attempt.body(function.body, None))
        if attempt.partial <= varying:
            return replace(function, body=body)
        varying |= attempt.partial


@dataclass
class _Predicate:
    function: Function
    state: Uniformity
    names: Names
    varying: frozenset[Variable]
    partial: set[Variable] = field(default_factory=set)

    def variable(self, wanted: str, dtype: DType) -> Variable:
        return Variable(self.names(wanted), dtype)

    def is_uniform(self, node: Expr) -> bool:
        if self.state.of(node) & (THREAD | DATA):
            return False
        return not any(isinstance(e, Read) and e.variable in self.varying for e in ir.walk(node))

    def body(self, body: Body, guard: Variable | None) -> list[Statement]:
        out: list[Statement] = []
        plain: list[Statement] = []

        def flush() -> None:
            if plain:
                out.extend(self.guarded(tuple(plain), guard))
                plain.clear()

        for s in body:
            if isinstance(s, Declare):
                out.append(s)
            elif ir.has_barrier((s,)):
                flush()
                out += self.meeting(s, guard)
            else:
                plain.append(s)
        flush()
        return out

    def guarded(self, body: Body, guard: Variable | None) -> Body:
        if guard is None:
            return body
        self.partial |= {v for s in ir.statements(body) for v in ir.written(s)}
        return (If(Read(guard), body, place=body[0].place),)

    def meeting(self, s: Statement, guard: Variable | None) -> list[Statement]:
        match s:
            case If():
                return self.branch(s, guard)
            case For():
                return self.counted(s, guard)
            case While():
                return self.loop(s, guard)
            case Barrier():
                return self.barrier(s, guard)
            case Warp():
                return self.warp(s, guard)
            case Cooperative(op=op):
                raise UnsupportedError(f"WebGPU has no cooperative operation `{op}`", s.place)
        raise AssertionError(s)

    # ---- branches and loops

    def branch(self, s: If, guard: Variable | None) -> list[Statement]:
        if self.is_uniform(s.condition):
            then, otherwise = self.body(s.then, guard), self.body(s.otherwise, guard)
            return [replace(s, then=tuple(then), otherwise=tuple(otherwise))]
        on = self.variable("on", BOOL)
        out: list[Statement] = [Assign(on, self.also(guard, s.condition), place=s.place)]
        off = None
        if s.otherwise:
            off = self.variable("off", BOOL)
            rest = self.also(guard, negate(Read(on)))
            out.append(Assign(off, rest, place=s.place))
        out += self.body(s.then, on)
        if off is not None:
            out += self.body(s.otherwise, off)
        return out

    def also(self, guard: Variable | None, condition: Expr) -> Expr:
        return condition if guard is None else And(Read(guard), condition, place=condition.place)

    def counted(self, s: For, guard: Variable | None) -> list[Statement]:
        if all(map(self.is_uniform, (s.start, s.stop, s.step))):
            return [replace(s, body=tuple(self.body(s.body, guard)))]
        variable, kind = s.variable, s.variable.dtype
        stop, step = (self.variable(f"{variable.name}_{n}", kind) for n in ("stop", "step"))
        head: Body = (
            Assign(variable, s.start, place=s.place),
            Assign(stop, s.stop, place=s.place),
            Assign(step, s.step, place=s.place),
        )
        more = in_range(Read(variable), Read(stop), Read(step))
        following = Op("add", (Read(variable), Read(step)), kind, place=s.place)
        last: Body = (Assign(variable, following, place=s.place),)
        return [
            *self.guarded(head, guard),
            *self.rounds(more, s.body, last, guard, s.place),
        ]

    def loop(self, s: While, guard: Variable | None) -> list[Statement]:
        if self.is_uniform(s.condition):
            return [replace(s, body=tuple(self.body(s.body, guard)))]
        return self.rounds(s.condition, s.body, (), guard, s.place)

    def rounds(
        self, condition: Expr, body: Body, last: Body, guard: Variable | None, place: Place
    ) -> list[Statement]:
        """Rounds for all threads as long as the condition holds for any."""
        going, count = self.variable("going", BOOL), self.variable("count", I32)
        nobody = Op("eq", (Read(count), Const(0, I32)), BOOL, place=place)
        inner: list[Statement] = [
            Asm("wgpu", "count", (Read(going),), (count,), place=place),
            If(nobody, (Break(place=place),), place=place),
            *self.body(body, going),
        ]
        if last:
            inner += self.guarded(last, going)
        inner.append(Assign(going, And(Read(going), condition), place=place))
        start = Assign(going, self.also(guard, condition), place=place)
        return [start, While(TRUE, tuple(inner), place=place)]

    # ---- barriers and exchanges

    def value(self, node: Expr, guard: Variable | None, place: Place) -> tuple[Expr, Body]:
        """A value that every thread may name, and what computes it where it is meant."""
        if guard is None or isinstance(node, (Read, Const)):
            return node, ()
        held = self.variable("held", node.dtype)
        inner = (Assign(held, node, place=place),)
        return Read(held), (If(Read(guard), inner, place=place),)

    def ballot(self, predicate: Expr, place: Place) -> tuple[Variable, Statement]:
        mask = self.variable("lanes", U32)
        return mask, Asm("wgpu", "ballot", (predicate,), (mask,), place=place)

    def barrier(self, s: Barrier, guard: Variable | None) -> list[Statement]:
        if s.scope == "grid":
            raise UnsupportedError(
                "WebGPU has no barrier for the whole grid",
                s.place,
                hint="split the kernel there and launch its parts one after the other",
            )
        meet = Asm("wgpu", "barrier", (), place=s.place)
        if s.vote is None:
            return [meet]
        assert s.predicate is not None
        predicate = negate(s.predicate) if s.vote == "and" else s.predicate
        on, count = self.variable("vote", BOOL), self.variable("votes", I32)
        out: list[Statement] = [
            Assign(on, self.also(guard, predicate), place=s.place),
            Asm("wgpu", "count", (Read(on),), (count,), place=s.place),
        ]
        if s.result is not None:
            zero, one = Const(0, I32), Const(1, I32)
            relation = "eq" if s.vote == "and" else "ne"
            holds = Op(relation, (Read(count), zero), BOOL)
            found = Read(count) if s.vote == "count" else Select(holds, one, zero)
            out += self.guarded((Assign(s.result, found, place=s.place),), guard)
        return out

    def warp(self, s: Warp, guard: Variable | None) -> list[Statement]:
        here = TRUE if guard is None else Read(guard)
        active, meet = self.ballot(here, s.place)
        out: list[Statement] = [meet]
        if s.op == "activemask":
            return [*out, *self.guarded((Assign(s.result, Read(active)),), guard)]
        assert s.mask is not None
        mask, before = self.value(s.mask, guard, s.place)
        out += before
        group = Op("and", (Read(active), mask), U32)
        if s.op in ("all", "any", "eq", "ballot"):
            return [*out, *self.vote(s, guard, group)]
        if s.op in ("match_any", "match_all"):
            return [*out, *self.match(s, guard, group)]
        return self.shuffle(s, guard)

    def vote(self, s: Warp, guard: Variable | None, group: Expr) -> list[Statement]:
        yes, meet = self.ballot(self.also(guard, s.operands[0]), s.place)
        among = Op("and", (Read(yes), group), U32)
        everyone = Op("eq", (among, group), BOOL)
        nobody = Op("eq", (among, Const(0, U32)), BOOL)
        found: dict[str, Expr] = {
            "ballot": among, "all": everyone, "any": negate(nobody),
            "eq": ir.Or(everyone, nobody),
        }  # fmt: skip
        return [meet, *self.guarded((Assign(s.result, found[s.op], place=s.place),), guard)]

    def match(self, s: Warp, guard: Variable | None, group: Expr) -> list[Statement]:
        value, before = self.value(s.operands[0], guard, s.place)
        same, among = self.variable("same", U32), self.variable("among", U32)
        out: list[Statement] = [
            *before,
            Assign(among, group, place=s.place),
            Asm("wgpu", "match", (value, Read(among)), (same,), place=s.place),
        ]
        found: Expr = Read(same)
        if s.op == "match_all":
            found = Select(Op("eq", (Read(same), Read(among)), BOOL), Read(among), Const(0, U32))
        return [*out, *self.guarded((Assign(s.result, found, place=s.place),), guard)]

    def shuffle(self, s: Warp, guard: Variable | None) -> list[Statement]:
        """The source lane, or the own one where that is outside the segment or the block."""
        value, first = self.value(s.operands[0], guard, s.place)
        operand, second = self.value(s.operands[1], guard, s.place)
        width, third = self.value(s.operands[2], guard, s.place)
        lane = Cast(Special("laneid"), I32)

        def i32(name: str, x: Expr, y: Expr) -> Expr:
            return Op(name, (x, y), I32)

        def holds(name: str, x: Expr, y: Expr) -> Expr:
            return Op(name, (x, y), BOOL)

        start = i32("sub", lane, i32("mod", lane, width))
        source = {
            "shfl": i32("add", start, i32("mod", operand, width)),
            "shfl_up": i32("sub", lane, operand),
            "shfl_down": i32("add", lane, operand),
            "shfl_xor": i32("xor", lane, operand),
        }[s.op]
        wanted, got = self.variable("wanted", I32), self.variable("got", value.dtype)
        there = Op("wgpu_lane_exists", (Read(wanted),), BOOL)
        inside = And(
            And(holds("ge", Read(wanted), start), there),
            holds("lt", Read(wanted), i32("add", start, width)),
        )
        own = Select(inside, Read(wanted), lane)
        lane_variable = self.variable("source", I32)
        return [
            *first, *second, *third,
            Assign(wanted, source, place=s.place),
            Assign(lane_variable, own, place=s.place),
            Asm("wgpu", "exchange", (value, Read(lane_variable)), (got,), place=s.place),
            *self.guarded((Assign(s.result, Read(got), place=s.place),), guard),
        ]  # fmt: skip
