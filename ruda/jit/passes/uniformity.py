"""Which values are the same for all threads of a block, and which barriers every thread reaches.

A value is described by what it depends on: THREAD (thread indices), DATA (memory that this kernel
writes, results of atomics and exchanges), FREE (what only the launch knows: parameters, extents,
memory that nothing here writes). Without THREAD and DATA it is *uniform*. Three verdicts for a
condition over a barrier: uniform; divergent where it depends on thread indices and constants
alone, so that some block of any launch splits; unknown otherwise, which a target may accept or
refuse.

A `Return` makes threads disappear, not diverge: the rest of the kernel is judged among those that
stay.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass

from ruda.errors import DivergentBarrierError
from ruda.jit import ir
from ruda.jit.ir import (
    Array,
    Assign,
    Atomic,
    Barrier,
    Body,
    Const,
    Cooperative,
    Expr,
    Extent,
    For,
    Function,
    If,
    Load,
    Op,
    Read,
    Special,
    Store,
    Stride,
    Variable,
    Warp,
    While,
)  # fmt: skip

THREAD, DATA, FREE = 1, 2, 4
LEFT = (
    "left?"  # variables so named say that a thread has returned; no user's name has a question mark
)
_THREADS = {"threadIdx", "globalIdx", "laneid"}
_FREE = {"gridDim", "globalDim", "sharedBytes"}


def is_left(condition: Expr) -> bool:
    """Whether a condition says that a thread has not returned."""
    match condition:
        case Op("not", (Read(variable),)):
            return variable.name.startswith(LEFT)
    return False


def among_the_rest(condition: Expr) -> Expr:
    """A condition as those threads see it that have not returned."""
    match condition:
        case ir.And(left, right) if is_left(left):
            return among_the_rest(right)
        case _ if is_left(condition):
            return Const(True, condition.dtype)
    return condition


class Verdict(enum.Enum):
    UNIFORM = "uniform"
    UNKNOWN = "unknown"
    DIVERGENT = "divergent"


@dataclass(frozen=True, slots=True)
class Uniformity:
    """What each variable depends on, and the arrays that the kernel writes."""

    function: Function
    variables: dict[Variable, int]
    written: frozenset[Array]
    control: dict[int, int]  # id of a statement -> what decides whether a thread gets there

    def of(self, node: Expr) -> int:
        """What an expression depends on."""
        total = 0
        promised = [
            inner
            for e in ir.walk(node)
            if isinstance(e, Op) and e.name == "uniform"
            for inner in ir.walk(e)
        ]
        for e in ir.walk(node):
            match e:
                case _ if any(e is inner for inner in promised):
                    total |= FREE
                case Special(name, axis):
                    if name in _THREADS and not _single(self.function, name, axis):
                        total |= THREAD
                    elif name in _FREE:
                        total |= FREE
                case Extent() | Stride():
                    total |= FREE
                case Read(variable):
                    total |= self.variables.get(variable, FREE)
                case Load(array):
                    total |= FREE | (DATA if array in self.written else 0)
        return total

    def is_uniform(self, node: Expr) -> bool:
        return not self.of(node) & (THREAD | DATA)

    def verdict(self, node: Expr) -> Verdict:
        """How a condition divides the threads of a block."""
        depends = self.of(node)
        if not depends & (THREAD | DATA):
            return Verdict.UNIFORM
        if depends & (DATA | FREE):
            return Verdict.UNKNOWN
        values = self._everywhere(node)
        if values is not None and len(values) == 1:
            return Verdict.UNIFORM
        return Verdict.DIVERGENT

    def _everywhere(self, node: Expr) -> set[object] | None:
        """The values that a function of thread indices takes in a block, None if unknown."""
        block = self.function.block
        if block is None:
            return None
        statements = list(ir.statements(self.function.body))
        count = Counter(v for s in statements for v in ir.written(s))
        definitions = {
            s.variable: s.value
            for s in statements
            if isinstance(s, Assign) and count[s.variable] == 1
        }
        values = set()
        for z in range(block[2]):
            for y in range(block[1]):
                for x in range(block[0]):
                    try:
                        values.add(_evaluate(node, (x, y, z), block, definitions))
                    except _Unknown:
                        return None
                    if len(values) > 1:
                        return values
        return values


class _Unknown(Exception):
    pass


def _evaluate(
    node: Expr,
    thread: tuple[int, int, int],
    block: tuple[int, int, int],
    definitions: dict[Variable, Expr],
) -> object:
    """A condition at one thread, in Python integers."""
    match node:
        case Const(value):
            return value
        case Special("threadIdx", axis):
            return thread[axis]
        case Special("blockDim", axis):
            return block[axis]
        case Special("laneid"):
            return (thread[0] + block[0] * (thread[1] + block[1] * thread[2])) % 32
        case Read(variable) if variable in definitions:
            return _evaluate(definitions[variable], thread, block, definitions)
        case ir.And(left, right):
            return _evaluate(left, thread, block, definitions) and _evaluate(
                right, thread, block, definitions
            )
        case ir.Or(left, right):
            return _evaluate(left, thread, block, definitions) or _evaluate(
                right, thread, block, definitions
            )
        case ir.Cast(value, dtype) if dtype.is_integer and value.dtype.is_integer:
            from ruda.jit.intrinsics import convert

            return int(convert(_evaluate(value, thread, block, definitions), dtype))
        case Op(name, operands) if name != "wrap" and not operands[0].dtype.is_inexact:
            from ruda.jit.intrinsics import evaluate

            kind = operands[0].dtype.numpy.type
            values = tuple(kind(_evaluate(o, thread, block, definitions)) for o in operands)
            return evaluate(name, values, node.dtype).item()
    raise _Unknown


def _single(function: Function, name: str, axis: int) -> bool:
    """Whether a thread coordinate can have only one value in a block."""
    block = function.block
    if block is None:
        return False
    return block == (1, 1, 1) if name == "laneid" else block[axis] == 1


def analyse(function: Function) -> Uniformity:
    """A fixed point over assignments and the conditions that they stand under."""
    written = frozenset(
        s.array for s in ir.statements(function.body) if isinstance(s, (Store, Atomic))
    )
    state = Uniformity(function, {}, written, {})
    for v in ir_variables(function):
        state.variables[v] = 0
    for p in function.parameters:
        if isinstance(p, Variable):
            state.variables[p] = FREE
    for s in function.prologue:
        state.variables[s.variable] = FREE
    while True:
        before = dict(state.variables)
        _mark(state, function.body, 0)
        if state.variables == before:
            return state


def ir_variables(function: Function) -> set[Variable]:
    return {v for s in ir.statements(function.body) for v in ir.written(s)}


def _mark(state: Uniformity, body: Body, control: int) -> int:
    """Mark a body under `control`; returns the control of what follows a jump inside a loop."""
    for s in body:
        state.control[id(s)] = control
        match s:
            case Assign(variable, value):
                state.variables[variable] |= state.of(value) | control
            case If(condition, then, otherwise):
                condition = among_the_rest(condition)
                inner = control | state.of(condition)
                after = _mark(state, then, inner) | _mark(state, otherwise, inner)
                if _leaves(then) or _leaves(otherwise):
                    # Threads that left the loop or iteration take no part in what follows in it.
                    control |= state.of(condition) | after
            case For(variable, start, stop, step, inner_body):
                inner = control | state.of(start) | state.of(stop) | state.of(step)
                for _ in range(2):  # a jump late in the body decides about its start, next time
                    state.variables[variable] |= inner
                    inner |= _mark(state, inner_body, inner)
            case While(condition, inner_body):
                inner = control
                condition = among_the_rest(condition)
                for _ in range(2):
                    inner |= state.of(condition)
                    inner |= _mark(state, inner_body, inner)
            case Atomic(result=result) if result is not None:
                state.variables[result] |= DATA | control
            case Warp(result=result, operands=operands):
                for o in operands:
                    state.variables[result] |= state.of(o)
                state.variables[result] |= DATA | control
            case Barrier(result=result) if result is not None:
                state.variables[result] |= FREE | control
    return control


def _leaves(body: Body) -> bool:
    """Whether a body may jump to the end or the next iteration of a loop outside it."""
    for s in body:
        match s:
            case ir.Break() | ir.Continue():
                return True
            case If(then=then, otherwise=otherwise) if _leaves(then) or _leaves(otherwise):
                return True
    return False


def check_barriers(function: Function) -> Uniformity:
    """Raise DivergentBarrierError where provably not every thread reaches a barrier."""
    state = analyse(function)
    _check(state, function.body, None)
    return state


def _check(state: Uniformity, body: Body, reason: Expr | None) -> None:
    for s in body:
        match s:
            case Barrier(scope=scope) | Cooperative(scope=scope) if scope != "warp":
                if reason is not None:
                    error = DivergentBarrierError(
                        "not every thread of the block reaches this barrier",
                        s.place,
                        hint="move it out of the condition: a condition around a barrier must be "
                        "the same for all threads of a block",
                    )
                    place = reason.place
                    if place.line:
                        error.add_note(
                            f"the condition in line {place.line} depends on the thread index"
                        )
                    raise error
            case If(condition, then, otherwise):
                inner = _worse(state, condition, reason)
                _check(state, then, inner)
                _check(state, otherwise, inner)
            case For(start=start, stop=stop, step=step, body=inner_body):
                for e in (start, stop, step):
                    reason_inside = _worse(state, e, reason)
                    _check(state, inner_body, reason_inside)
            case While(condition, inner_body):
                _check(state, inner_body, _worse(state, condition, reason))


def _worse(state: Uniformity, condition: Expr, reason: Expr | None) -> Expr | None:
    condition = among_the_rest(condition)
    if reason is None and state.verdict(condition) is Verdict.DIVERGENT:
        return condition
    return reason


def uncertain_barriers(function: Function) -> list[tuple[Barrier, Expr]]:
    """Barriers of the block, in the order of the text, that some thread may not reach, and the
    first condition that decides it. Threads that returned are not missed. Jumps must have become
    conditions."""
    if not ir.has_barrier(function.body):
        return []
    state = analyse(function)
    found: list[tuple[Barrier, Expr]] = []

    def visit(body: Body, reason: Expr | None) -> None:
        for s in body:
            if isinstance(s, Barrier) and s.scope == "block" and reason is not None:
                found.append((s, reason))
            inner = reason
            if inner is None:
                conditions = map(among_the_rest, ir.expressions(s)) if ir.bodies(s) else ()
                inner = next(
                    (e for e in conditions if state.verdict(e) is not Verdict.UNIFORM), None
                )
            for part in ir.bodies(s):
                visit(part, inner)

    visit(function.body, None)
    return found
