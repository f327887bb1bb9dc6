"""Split a kernel at its barriers of the whole grid into phases that are launched one after another.

Everything between two barriers, in all blocks, is a launch of its own. The loops and branches that
stand around barriers are taken out of the kernel: they become the *schedule* by which the host
chooses the next phase (`jit.rounds`), so they must rest on scalars of the launch alone. What a
thread keeps from phase to phase is computed anew where that is cheap, else kept in memory of the
launch, one slot a thread of the grid. A thread that has returned stays out of later phases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import Place, UnsupportedError
from ruda.jit import ir
from ruda.jit.ir import (
    Array,
    Assign,
    Atomic,
    Barrier,
    Body,
    Break,
    Cast,
    Const,
    Continue,
    Declare,
    Expr,
    For,
    Function,
    If,
    Load,
    Op,
    Read,
    Return,
    Special,
    Statement,
    Store,
    Variable,
    While,
)
from ruda.jit.passes.exposure import exposed
from ruda.jit.passes.indices import extent, linear_thread, op
from ruda.jit.passes.uniformity import check_barriers
from ruda.jit.rounds import PHASE, as_read, is_known

PHASE_WORD = Variable("phase?", dtypes.int32)  # for targets that may have no int64
ROUND = "round?"  # scalars so named are variables of loops around barriers
KEPT = "kept?"  # arrays so named are memory of the launch


@dataclass(frozen=True, slots=True)
class Hidden:
    """What a kernel with phases takes besides its arguments: the phase, where its loops are (by
    name), then kept values."""

    schedule: Body
    rounds: tuple[str, ...]
    kept: tuple[DType, ...]


def _is_grid(s: Statement) -> bool:
    return isinstance(s, Barrier) and s.scope == "grid"


def has_phases(function: Function) -> bool:
    return any(_is_grid(s) for s in ir.statements(function.body))


def hidden(lowered: Function) -> Hidden | None:
    """The hidden parameters of a lowered kernel; None if it has no phases."""
    phase = next((p for p in (PHASE, PHASE_WORD) if p in lowered.parameters), None)
    if phase is None:
        return None
    kept = [p.dtype for p in lowered.parameters if p.name.startswith(KEPT)]
    rounds = tuple(p.name for p in lowered.parameters if p.name.startswith(ROUND))
    return Hidden(lowered.schedule, rounds, tuple(d for d in kept if isinstance(d, DType)))


@dataclass(frozen=True, slots=True)
class Phase:
    """The statements of a launch. `again`: it stands in a loop; `last`: no phase follows it."""

    body: Body
    again: bool = False
    last: bool = False


def split_phases(function: Function, lower: Callable[[Function], Function]) -> Function:
    """Each phase lowered by `lower`, all of them in one function that the phase chooses from."""
    check_barriers(function)
    function = replace(function, body=_own_parameters(function))
    cut = _Cut(function)
    phases, schedule = cut.phases, cut.schedule
    function = replace(function, body=cut.plain)
    _refuse_memory(function, phases)
    at = _thread_of_the_grid(function)
    gone = Array(f"{KEPT}gone", dtypes.bool_, 1)
    leave = any(isinstance(s, Return) for p in phases if not p.last for s in ir.statements(p.body))
    if leave:
        phases = _without_the_gone(phases, gone, at)
    cheap = _cheap(function) | {v: Cast(Read(r), v.dtype) for v, r in cut.rounds.items()}
    kept = sorted(
        {v for p in phases for v in exposed(p.body)}
        & {v for p in phases for s in ir.statements(p.body) for v in ir.written(s)},
        key=lambda v: v.name,
    )
    slots = {v: Array(f"{KEPT}{v.name}", _strong(v.dtype), 1) for v in kept if v not in cheap}
    flags = (gone,) if leave else ()
    parameters = (*function.parameters, PHASE, *cut.rounds.values(), *flags, *slots.values())
    out: list[Statement] = []
    arrays = list(function.arrays)
    for k, phase in enumerate(phases):
        written = {v for s in ir.statements(phase.body) for v in ir.written(s)}
        stored = [v for v in slots if v in written and not phase.last]
        tail = tuple(Store(slots[v], (at,), _cast(Read(v), slots[v].dtype)) for v in stored)
        body = (*phase.body, *tail)  # what a phase assigns on some ways only is read by its tail
        head: Body = ()
        if k:
            head = tuple(Assign(v, cheap[v]) for v in cheap if v in exposed(body))
            head = (*_needed(head, cheap), *head)
            loaded = [v for v in slots if v in exposed(body)]
            head = (*head, *(Assign(v, _cast(Load(slots[v], (at,)), v.dtype)) for v in loaded))
        inner = replace(function, parameters=parameters, body=(*head, *body))
        lowered = lower(replace(inner, arrays=function.arrays))
        arrays += [a for a in lowered.arrays if a not in arrays]
        test = Op("eq", (Read(PHASE), Const(k, PHASE.dtype)), dtypes.bool_)
        out.append(If(test, lowered.body, place=function.place))
    return replace(
        function,
        parameters=parameters,
        body=tuple(out),
        arrays=tuple(arrays),
        schedule=schedule,
    )


def _strong(dtype: DType) -> DType:
    """What memory holds a value as."""
    return dtypes.int64 if dtype.weak and dtype.is_integer else dtype


def _cast(value: Expr, dtype: Any) -> Expr:
    return value if value.dtype == dtype else Cast(value, dtype)


def count_in_words(function: Function) -> Function:
    """The phase's number and the variables of loops around barriers as int32."""
    words = {
        p: replace(p, dtype=PHASE_WORD.dtype)
        for p in function.parameters
        if isinstance(p, Variable) and (p == PHASE or p.name.startswith(ROUND))
    }

    def change(node: Expr) -> Expr:
        match node:
            case Op("eq", (Read(variable), Const(k))) if variable == PHASE_WORD:
                return replace(node, operands=(Read(variable), Const(k, PHASE_WORD.dtype)))
            case Read(variable) if variable in words:
                return Read(words[variable])
        return node

    parameters = tuple(
        words.get(p, p) if isinstance(p, Variable) else p for p in function.parameters
    )
    body = ir.rewrite_body(function.body, change)
    return replace(function, parameters=parameters, body=body)


def _own_parameters(function: Function) -> Body:
    """The body with a variable of its own for each scalar of the launch that it assigns."""
    scalars = {p for p in function.parameters if isinstance(p, Variable)}
    scalars |= {s.variable for s in function.prologue}
    changed = scalars & {v for s in ir.statements(function.body) for v in ir.written(s)}
    own = {v: replace(v, name=f"{v.name}?") for v in sorted(changed, key=lambda v: v.name)}

    def read(e: Expr) -> Expr:
        return Read(own[e.variable]) if isinstance(e, Read) and e.variable in own else e

    def write(s: Statement) -> Statement:
        return (
            replace(s, variable=own[s.variable])
            if isinstance(s, Assign) and s.variable in own
            else s
        )

    first = tuple(Assign(new, Read(old)) for old, new in own.items())
    return (*first, *ir.rewrite_body(function.body, read, write))


class _Cut:
    """A kernel as phases and the schedule that launches them.

    `control` are the loops and branches that hold barriers of the grid, and the jumps that leave
    those loops, with the branches around these jumps.
    """

    def __init__(self, function: Function) -> None:
        self.phases: list[Phase] = []
        self.control: set[int] = set()
        self._find(function.body, False)
        self.needed = self._needs((*function.prologue, *function.body))
        self.rounds: dict[Variable, Variable] = {}  # the host tells the variables of loops
        self.plain: Body = ()  # the statements of all phases
        known = tuple(
            Assign(s.variable, _known(s.value, s.place))
            for s in function.prologue
            if s.variable in self.needed
        )
        self.schedule: Body = (*known, *self._whole(function.body, 0))
        self.phases[-1] = replace(self.phases[-1], last=not self.phases[-1].again)

    def _find(self, body: Body, in_loop: bool) -> bool:
        """Note what is control; whether a body has any. `in_loop`: in a loop around a barrier."""
        found = False
        for s in body:
            match s:
                case Break() | Continue():
                    mine = in_loop
                case For(body=inner) | While(body=inner):
                    mine = self._find(inner, any(_is_grid(i) for i in ir.statements(inner)))
                case If(then=then, otherwise=otherwise):
                    first = self._find(then, in_loop)
                    mine = self._find(otherwise, in_loop) or first
                case _:
                    mine = False
                    found |= _is_grid(s)
            if mine:
                self.control.add(id(s))
            found |= mine
        return found

    def _needs(self, body: Body) -> set[Variable]:
        """The variables that control rests on."""
        needed: set[Variable] = set()

        def look(body: Body) -> None:
            for s in body:
                inner = {v for i in ir.statements((s,)) for v in ir.written(i)}
                if id(s) in self.control or inner & needed:
                    if not isinstance(s, Assign) or s.variable in needed:
                        needed.update(
                            e.variable
                            for x in ir.expressions(s)
                            for e in ir.walk(x)
                            if isinstance(e, Read)
                        )
                for b in ir.bodies(s):
                    look(b)

        before = -1
        while before != len(needed):
            before = len(needed)
            look(body)
        return needed

    def _launch(self, rest: list[Statement], depth: int) -> Body:
        """A phase of the statements that have gathered; the first one stands outside loops."""
        if not rest and self.phases:
            return ()
        self.phases.append(Phase(tuple(rest), depth > 0))
        self.plain = (*self.plain, *rest)
        return (Assign(PHASE, Const(len(self.phases) - 1, PHASE.dtype)),)

    def _whole(self, body: Body, depth: int) -> Body:
        """The schedule of a body to its end."""
        out, rest = self._body(body, depth)
        return (*out, *self._launch(rest, depth))

    def _body(self, body: Body, depth: int) -> tuple[Body, list[Statement]]:
        """The schedule of a body, and the statements after its last barrier."""
        out: list[Statement] = []
        rest: list[Statement] = []
        for s in body:
            if _is_grid(s):
                out += self._launch(rest, depth)
                rest = []
            elif id(s) in self.control:
                out += self._launch(rest, depth)
                rest = []
                out.append(self._control(s, depth))
            else:
                rest.append(s)
                if {v for i in ir.statements((s,)) for v in ir.written(i)} & self.needed:
                    out += self._keep(s)
        return tuple(out), rest

    def _control(self, s: Statement, depth: int) -> Statement:
        match s:
            case If(condition, then, otherwise):
                first, second = (self._whole(b, depth) for b in (then, otherwise))
                return If(_known(condition, s.place), first, second)
            case For(variable, start, stop, step, inner):
                new = Variable(f"{ROUND}{len(self.rounds)}", dtypes.int64)
                told = self.rounds.setdefault(variable, new)
                tell = Assign(told, Cast(Read(variable), told.dtype))
                start, stop, step = (_known(e, s.place) for e in (start, stop, step))
                return For(variable, start, stop, step, (tell, *self._whole(inner, depth + 1)))
            case While(condition, inner):
                if any(isinstance(i, Return) for i in ir.statements(inner)):
                    raise _refusal("a `return` in a `while` around a barrier of the grid", s.place)
                return While(_known(condition, s.place), self._whole(inner, depth + 1))
        return s

    def _keep(self, s: Statement) -> Body:
        """What the host does of a statement that assigns what control rests on."""
        match s:
            case Assign(variable, value):
                if variable not in self.needed:
                    return ()
                return (Assign(variable, _known(value, s.place)),)
            case If(condition, then, otherwise):
                first, second = (
                    tuple(k for i in b for k in self._keep(i)) for b in (then, otherwise)
                )
                return (If(_known(condition, s.place), first, second),) if first or second else ()
            case _ if {v for i in ir.statements((s,)) for v in ir.written(i)} & self.needed:
                raise _refusal("what decides about a barrier of the grid", s.place)
        return ()


def _known(e: Expr, place: Place) -> Expr:
    """An expression that the host evaluates."""
    if not is_known(e):
        raise _refusal(
            "a condition around a barrier of the grid", e.place if e.place.line else place
        )
    return ir.rewrite(e, as_read)


def _refusal(what: str, place: Place) -> UnsupportedError:
    return UnsupportedError(
        f"{what} rests on more than scalar arguments, extents and sizes of the launch: that is "
        "possible on CUDA only",
        place,
        hint="make the loop on the host, around the launch: each launch waits for the one before",
    )


def _refuse_memory(function: Function, phases: list[Phase]) -> None:
    """Shared and local arrays end with their phase."""
    for array in function.arrays:
        if array.space == "const":
            continue
        uses = [p for p in phases if array in _arrays(p.body)]
        anew = all(any(s == Declare(array) for s in ir.statements(p.body)) for p in uses)
        if len(uses) > 1 or (uses and uses[0].again and not anew):
            place = next(
                (
                    s.place
                    for p in uses[::-1]
                    for s in ir.statements(p.body)
                    if array in _arrays((s,))
                ),
                function.place,
            )
            raise UnsupportedError(
                f"`{array.name}` is {array.space} memory, and outlives a barrier of the grid only "
                "on CUDA",
                place,
                hint="keep what is needed after the barrier in an array argument; what is needed "
                "within a round of a loop, make in the loop",
            )


def _arrays(body: Body) -> set[Array]:
    found = {e.array for e in ir.all_expressions(body) if isinstance(e, Load)}
    return found | {s.array for s in ir.statements(body) if isinstance(s, (Store, Atomic))}


def _without_the_gone(phases: list[Phase], gone: Array, at: Expr) -> list[Phase]:
    """Threads that return in one phase return at the start of each later one."""
    true, false = (Const(v, dtypes.bool_) for v in (True, False))

    def mark(s: Statement) -> Statement | Body:
        return (Store(gone, (at,), true, place=s.place), s) if isinstance(s, Return) else s

    out = []
    for k, phase in enumerate(phases):
        body = phase.body if phase.last else ir.rewrite_body(phase.body, statement=mark)
        head: Statement = If(Load(gone, (at,)), (Return(),)) if k else Store(gone, (at,), false)
        out.append(replace(phase, body=(head, *body)))
    return out


def _cheap(function: Function) -> dict[Variable, Expr]:
    """Variables assigned once, at the top, that coordinates and arguments give by arithmetic."""
    count: dict[Variable, int] = {}
    for s in ir.statements(function.body):
        for v in ir.written(s):
            count[v] = count.get(v, 0) + 1
    out: dict[Variable, Expr] = {}
    for s in function.body:
        if isinstance(s, Assign) and count[s.variable] == 1:
            nodes = list(ir.walk(s.value))
            if len(nodes) < 12 and all(
                isinstance(e, (Const, Special, ir.Extent, Op, ir.Cast))
                or (isinstance(e, Read) and (e.variable in out or e.variable not in count))
                for e in nodes
            ):
                out[s.variable] = s.value
    return out


def _needed(head: Body, cheap: dict[Variable, Expr]) -> Body:
    """The assignments that those of `head` rest on."""
    have = {s.variable for s in head if isinstance(s, Assign)}
    out: list[Statement] = []

    def need(e: Expr) -> None:
        for r in ir.walk(e):
            if isinstance(r, Read) and r.variable in cheap and r.variable not in have:
                have.add(r.variable)
                need(cheap[r.variable])
                out.append(Assign(r.variable, cheap[r.variable]))

    for s in head:
        if isinstance(s, Assign):
            need(s.value)
    return tuple(out)


def _thread_of_the_grid(function: Function) -> Expr:
    """A thread's linear index in the grid, block by block."""
    x, y, z = (Special("blockIdx", axis) for axis in range(3))
    rows = op("add", op("mul", z, Special("gridDim", 1)), y)
    block = op("add", op("mul", rows, Special("gridDim", 0)), x)
    threads = op("mul", op("mul", extent(function, 0), extent(function, 1)), extent(function, 2))
    return op("add", op("mul", block, threads), linear_thread(function))
