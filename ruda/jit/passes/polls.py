"""Let a thread stop in the middle of a long loop: somebody may have pressed Ctrl-C.

A budget counts down by what loops do; where it is used up, the body asks the pool whether to go on
(`cpu_pool`: `poll`), gets a new budget, or none and returns. Asking must cost nothing that is
measurable, and a question keeps LLVM from vectorising the loop that it stands in. So

* nothing is done in loops that are provably short, nor in the loop that the pool cuts in chunks;
* a small loop over the extent of an array is counted before it, and the loop around it asks;
* other small `range`s run in strips, and small searching `while`s until the budget is used up:
  the question stands in a loop around them;
* all other loops count and ask at the start of each round.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from ruda import dtypes
from ruda.jit import ir
from ruda.jit.ir import (
    And,
    Asm,
    Assign,
    Body,
    Break,
    Cast,
    Const,
    Expr,
    Extent,
    For,
    Function,
    If,
    Op,
    Read,
    Special,
    Statement,
    Variable,
    While,
)  # fmt: skip
from ruda.jit.passes.indices import INDEX, index, op
from ruda.jit.passes.names import Names
from ruda.jit.passes.wraps import Env, Ranges

BUDGET = 1 << 20  # statements between two questions: about a millisecond
SHORT = 1 << 20  # statements that a loop may do without counting
STRIP = 1 << 16  # statements of a strip
HEAVY = 16  # statements of a round beside which counting costs nothing


def poll_loops(function: Function) -> Function:
    """The function with questions in its long loops; itself if it has none."""
    rounds = _Rounds(function)
    rounds.body(function.body, {})
    names = Names(function)
    assigned = Counter(v for s in ir.statements(function.body) for v in ir.written(s))
    values = {
        s.variable: s.value
        for s in ir.statements(function.body)
        if isinstance(s, Assign) and assigned[s.variable] == 1
    }
    polls = _Polls(rounds.most, names, names.index("budget"), values)
    body = polls.body(function.body).body
    if not polls.used:
        return function
    return replace(function, body=(Assign(polls.budget, index(BUDGET)), *body))


class _Rounds(Ranges):
    """How often loops go round at most, where that is known."""

    def __init__(self, function: Function) -> None:
        super().__init__(function)
        self.most: dict[int, int | None] = {}  # by the loop's id, of all visits

    def note(self, s: Statement, count: int | None) -> None:
        before = self.most.get(id(s), 0)
        self.most[id(s)] = None if before is None or count is None else max(before, count)

    def while_loop(self, s: While, env: Env) -> tuple[Statement, Env | None]:
        self.note(s, self.advances(s, env))
        return super().while_loop(s, env)

    def advances(self, s: While, env: Env) -> int | None:
        """Rounds of a loop that compares a number, and brings it nearer once in each of them."""
        match s.condition:
            case Op("lt" | "le" | "gt" | "ge" as name, (Read(v), limit)) if v.dtype.is_integer:
                pass
            case _:
                return None
        changes = [i for i in ir.statements(s.body) if v in ir.written(i)]
        if len(changes) != 1 or not any(i is changes[0] for i in s.body) or _skips(s.body):
            return None
        match changes[0]:
            case Assign(_, Op(change, (Read(w), Const(by)))) if w == v:
                pass
            case _:
                return None
        (low, high), (least, greatest) = self.of(Read(v), env), self.of(limit, env)
        if name[0] == "g":
            ends = least > 0 or (least == 0 and name == "gt")  # it is over at 0
            match change:
                case "sub" if by > 0 and least - by >= v.dtype.range[0]:
                    return int(max(0, high - least) // by + 1)
                case "floordiv" | "shr" if ends and by > (change == "floordiv"):
                    return max(0, high).bit_length() + 1
            return None
        match change:
            case "add" if by > 0 and greatest + by <= v.dtype.range[1]:
                return int(max(0, greatest - low) // by + 1)
            case "mul" if by > 1 and low > 0 and greatest * by <= v.dtype.range[1]:
                return (greatest // low).bit_length() + 1
            case "shl" if 0 < by < 64 and low > 0 and greatest << by <= v.dtype.range[1]:
                return (greatest // low).bit_length() + 1
        return None

    def loop(self, s: For, env: Env) -> tuple[Statement, Env | None]:
        start, stop = self.of(s.start, env), self.of(s.stop, env)
        match s:
            case For(start=Read(v), stop=Op("add", (Read(w), Const(more)))) if v == w:
                distance = int(more)
            case For(step=Const(step)) if step < 0:
                distance = start[1] - stop[0]
            case _:
                distance = stop[1] - start[0]
        size = abs(s.step.value) if isinstance(s.step, Const) else 1
        count = -(-max(0, distance) // max(1, size))
        self.note(s, count)
        return super().loop(s, env)


@dataclass(frozen=True, slots=True)
class _Polled:
    """A body with questions, and the most statements that it runs outside counted loops; `owes`:
    it counts without asking, so the loop around it has to ask."""

    body: Body
    cost: int = 1
    owes: bool = False


@dataclass
class _Polls:
    most: dict[int, int | None]  # rounds, by the loop's id
    names: Names
    budget: Variable
    values: dict[Variable, Expr]  # of variables that are assigned once
    used: bool = field(default=False)

    def body(self, body: Body) -> _Polled:
        all_of_them = [self.statement(s) for s in body]
        return _Polled(
            tuple(s for p in all_of_them for s in p.body),
            sum(p.cost for p in all_of_them),
            any(p.owes for p in all_of_them),
        )

    def statement(self, s: Statement) -> _Polled:
        match s:
            case If():
                then, otherwise = self.body(s.then), self.body(s.otherwise)
                new = replace(s, then=then.body, otherwise=otherwise.body)
                cost = 1 + max(then.cost, otherwise.cost)
                return _Polled((new,), cost, then.owes or otherwise.owes)
            case For() | While():
                return self.loop(s, self.body(s.body))
        return _Polled((s,))

    def loop(self, s: For | While, inner: _Polled) -> _Polled:
        rounds, cost = self.most.get(id(s)), 1 + inner.cost
        if not inner.owes:
            if rounds is not None and rounds * cost <= SHORT:
                return _Polled((replace(s, body=inner.body),), 1 + rounds * cost)
            if isinstance(s, For) and _is_shared_out(s):
                return _Polled((replace(s, body=inner.body),))
            if cost < HEAVY and not _is_long(inner.body):
                match s:
                    case For() if self.goes_through_data(s):
                        return _Polled((self.count(_length(s), s), s), owes=True)
                    case For() if _has_strips(s):
                        return _Polled(self.strips(s, cost))
                    case While() if not _leaves(s.body) and not _is_stepping(s):
                        return _Polled(self.rounds(s, cost))
        head = (self.count(index(cost), s), self.ask(s))
        return _Polled((replace(s, body=(*head, *inner.body)),))

    def goes_through_data(self, s: For) -> bool:
        """Whether a loop goes round no oftener than some array has elements: seconds at most."""

        def bounded(node: Expr, depth: int = 0) -> bool:
            match node:
                case Const(value):
                    return bool(abs(value) < 1 << 31)
                case Extent() | Special():
                    return True
                case Read(variable) if variable in self.values and depth < 8:
                    return bounded(self.values[variable], depth + 1)
                case Cast(value):
                    return bounded(value, depth)
                case Op("add" | "sub" | "min" | "max" | "floordiv", (x, y)):
                    return bounded(x, depth) and bounded(y, depth)
            return False

        return s.variable.dtype == INDEX and bounded(s.start) and bounded(s.stop)

    def rounds(self, s: While, cost: int) -> Body:
        """A loop without a call in it, around it one that asks and comes back."""
        self.used = True
        left = Op("ge", (Read(self.budget), index(0)), dtypes.bool_)
        less = Assign(self.budget, op("sub", Read(self.budget), index(cost)), place=s.place)
        inner = replace(s, condition=And(s.condition, left), body=(less, *s.body))
        return (replace(s, body=(inner, self.ask(s))),)

    def count(self, work: Expr, loop: Statement) -> Statement:
        self.used = True
        return Assign(self.budget, op("sub", Read(self.budget), work), place=loop.place)

    def ask(self, loop: Statement) -> Statement:
        spent = Op("lt", (Read(self.budget), index(0)), dtypes.bool_)
        ask = Asm("cpu", "poll", (index(BUDGET),), (self.budget,), place=loop.place)
        return If(spent, (ask,), place=loop.place)

    def strips(self, s: For, cost: int) -> Body:
        """`for i in range(start, stop, step)` in pieces of a whole number of steps."""
        assert isinstance(s.step, Const)
        up = s.step.value > 0
        piece = abs(s.step.value) * max(1, STRIP // cost)
        at, stop, size = (
            self.names.index(f"{s.variable.name}_{name}") for name in ("at", "stop", "size")
        )
        near, far = (Read(at), Read(stop)) if up else (Read(stop), Read(at))
        end = op("add" if up else "sub", Read(at), Read(size))
        dtype = s.variable.dtype
        ends = [e if dtype == INDEX else Cast(e, dtype) for e in (Read(at), end)]
        body = (
            Assign(size, op("min", op("sub", far, near), index(piece)), place=s.place),
            self.count(Read(size), s),
            self.ask(s),
            replace(s, start=ends[0], stop=ends[1]),
            Assign(at, end, place=s.place),
        )
        bounds = [e if e.dtype == INDEX else Cast(e, INDEX) for e in (s.start, s.stop)]
        return (
            Assign(at, bounds[0], place=s.place),
            Assign(stop, bounds[1], place=s.place),
            While(op("lt", near, far), body, place=s.place),
        )


def _length(s: For) -> Expr:
    """The distance from a loop's start to its stop, 0 if it does not go round."""
    up = not isinstance(s.step, Const) or s.step.value > 0
    distance = op("sub", s.stop, s.start) if up else op("sub", s.start, s.stop)
    return distance if isinstance(distance, Extent) else op("max", distance, index(0))


def _is_stepping(s: While) -> bool:
    """Whether a loop compares a variable that each round moves by the same amount: often it goes
    round once, a thread of a grid that is as large as the data."""
    match s.condition:
        case Op("lt" | "le" | "gt" | "ge", (Read(v), _)):
            pass
        case _:
            return False
    changed = {v for i in ir.statements(s.body) for v in ir.written(i)}
    changes = [i for i in ir.statements(s.body) if v in ir.written(i)]
    match changes:
        case [Assign(_, Op("add" | "sub", (Read(w), by)))] if w == v:
            reads = {e.variable for e in ir.walk(by) if isinstance(e, Read)}
            return reads.isdisjoint(changed)
    return False


def _is_shared_out(s: For) -> bool:
    """Whether a loop runs over the items that the pool has given out, or repeats one that does:
    over an axis of the grid that the kernel does not use."""
    match s.body:
        case (For() as inner,) if _is_shared_out(inner):
            return isinstance(s.stop, Special)
    ends = (s.start, s.stop)
    return all(
        any(isinstance(e, Special) and e.name == name for e in ir.walk(end))
        for end, name in zip(ends, ("first", "last"), strict=True)
    )


def _has_strips(s: For) -> bool:
    """Whether a loop can be cut: a constant step, 64 bits with a sign suffice, nobody leaves it."""
    dtype = s.variable.dtype
    signed = dtype == INDEX or (dtype.is_integer and dtype.range[1] < 1 << 63)
    return isinstance(s.step, Const) and s.step.value != 0 and signed and not _leaves(s.body)


def _is_long(body: Body) -> bool:
    """Whether a body holds a loop that counts, or that the pool cuts."""
    return any(
        (isinstance(s, Asm) and s.name == "poll") or (isinstance(s, For) and _is_shared_out(s))
        for s in ir.statements(body)
    )


def _leaves(body: Body) -> bool:
    """Whether a body may leave the loop around it."""
    return any(
        isinstance(s, Break) or (isinstance(s, If) and (_leaves(s.then) or _leaves(s.otherwise)))
        for s in body
    )


def _skips(body: Body) -> bool:
    """Whether a round may end before the end of its body."""
    return any(
        isinstance(s, ir.Continue)
        or (isinstance(s, If) and (_skips(s.then) or _skips(s.otherwise)))
        for s in body
    )
