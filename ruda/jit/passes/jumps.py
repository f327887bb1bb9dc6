"""Returns become structure, and so do jumps out of loops that hold a barrier.

`if i >= n: return` followed by the rest becomes `if not i >= n: <rest>`. Where threads of one
block part ways and a barrier follows, nothing may stand under their condition: such a return sets
a flag, and the rest stands under `if not left`, which later passes know as threads that are gone,
not as a branch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ruda import dtypes
from ruda.jit import ir
from ruda.jit.ir import (
    And,
    Assign,
    Body,
    Break,
    Const,
    Continue,
    Expr,
    For,
    Function,
    If,
    Op,
    Read,
    Return,
    Statement,
    Variable,
    While,
)  # fmt: skip
from ruda.jit.passes.names import Names
from ruda.jit.passes.uniformity import LEFT, Uniformity, analyse

_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
TRUE, FALSE = Const(True, dtypes.bool_), Const(False, dtypes.bool_)


def negate(condition: Expr) -> Expr:
    """`not condition`, with integer comparisons turned round (floats have NaN)."""
    match condition:
        case Op(name, (x, y)) if name in _OPPOSITE and not x.dtype.is_inexact:
            return replace(condition, name=_OPPOSITE[name])
        case Op("not", (x,)):
            return x
        case ir.Or(x, y):
            return And(negate(x), negate(y), place=condition.place)
        case Const(value):
            return Const(not value, dtypes.bool_, place=condition.place)
    return Op("not", (condition,), dtypes.bool_, place=condition.place)


def structure_jumps(function: Function) -> Function:
    """The same kernel without `Return`, and without jumps in loops that hold a barrier."""
    if not any(isinstance(s, (Return, Break, Continue)) for s in ir.statements(function.body)):
        return function
    names = Names(function)
    body = _Loops(names).body(function.body)
    returns = _Returns(names, analyse(function))
    body = returns.body(body)
    start = tuple(Assign(v, FALSE, place=function.place) for v in returns.flags)
    return replace(function, body=(*start, *body))


@dataclass
class _Returns:
    names: Names
    uniformity: Uniformity
    flags: list[Variable] = field(default_factory=list)

    def body(self, body: Body) -> Body:
        """A body outside loops without its returns."""
        for k, s in enumerate(body):
            if isinstance(s, Return):
                return body[:k]
            if not _returns((s,)):
                continue
            before, rest = body[:k], body[k + 1 :]
            match s:
                case If(condition, then, otherwise):
                    nest = not ir.has_barrier(rest) or self.uniformity.is_uniform(condition)
                    if nest and _ends(then) and not _returns(otherwise):
                        left = self.body(then)
                        return (*before, _if(s, condition, left, self.body((*otherwise, *rest))))
                    if nest and _ends(otherwise) and not _returns(then):
                        left = self.body(otherwise)
                        return (*before, _if(s, condition, self.body((*then, *rest)), left))
            flag = Variable(self.names(LEFT), dtypes.bool_)
            self.flags.append(flag)
            marked = _mark(s, flag, 0)
            stay = Op("not", (Read(flag),), dtypes.bool_, place=s.place)
            after = self.body(rest)
            return (*before, *marked, *((If(stay, after, place=s.place),) if after else ()))
        return body


def _if(old: If, condition: Expr, then: Body, otherwise: Body) -> Statement:
    if not then:
        return replace(old, condition=negate(condition), then=otherwise, otherwise=())
    return replace(old, condition=condition, then=then, otherwise=otherwise)


def _returns(body: Body) -> bool:
    return any(isinstance(s, Return) for s in ir.statements(body))


def _ends(body: Body) -> bool:
    """Whether every path through a body ends in its return."""
    if not body:
        return False
    match body[-1]:
        case Return():
            return True
        case If(then=then, otherwise=otherwise):
            return _ends(then) and _ends(otherwise)
    return False


def _mark(s: Statement, flag: Variable, loops: int) -> Body:
    """A statement that holds returns, with `flag = True` in their place and the rest skipped."""
    stay = Op("not", (Read(flag),), dtypes.bool_, place=s.place)
    match s:
        case Return():
            return (Assign(flag, TRUE, place=s.place), *((Break(place=s.place),) if loops else ()))
        case If(then=then, otherwise=otherwise):
            new = replace(
                s, then=_mark_body(then, flag, loops), otherwise=_mark_body(otherwise, flag, loops)
            )
            return (new,)
        case For(body=body) | While(body=body):
            if ir.has_barrier(body):  # no jumps here: the flag is part of what the loop does
                inner = _mark_body(body, flag, 0)
                if isinstance(s, While):
                    return (replace(s, condition=And(stay, s.condition), body=inner),)
                return (replace(s, body=(If(stay, inner, place=s.place),)),)
            inner = _mark_body(body, flag, loops + 1)
            tail = (If(Read(flag), (Break(place=s.place),), place=s.place),) if loops else ()
            return (replace(s, body=inner), *tail)
    return (s,)


def _mark_body(body: Body, flag: Variable, loops: int) -> Body:
    out: list[Statement] = []
    for k, s in enumerate(body):
        if not _returns((s,)):
            out.append(s)
            continue
        out += _mark(s, flag, loops)
        rest = body[k + 1 :]
        if rest and not isinstance(s, Return) and not loops:
            stay = Op("not", (Read(flag),), dtypes.bool_, place=s.place)
            out.append(If(stay, _mark_body(rest, flag, loops), place=s.place))
        elif not isinstance(s, Return):
            out += _mark_body(rest, flag, loops)
        break
    return tuple(out)


# ---- jumps in loops that hold a barrier ----------------------------------------------------------


@dataclass
class _Loops:
    names: Names

    def body(self, body: Body) -> Body:
        out: list[Statement] = []
        for s in body:
            match s:
                case If(then=then, otherwise=otherwise):
                    out.append(replace(s, then=self.body(then), otherwise=self.body(otherwise)))
                case For() | While() if ir.has_barrier(s.body) and _jumps(s.body):
                    out += self.loop(replace(s, body=self.body(s.body)))
                case For() | While():
                    out.append(replace(s, body=self.body(s.body)))
                case _:
                    out.append(s)
        return tuple(out)

    def loop(self, s: For | While) -> Body:
        """A loop whose `break` is part of its condition and whose `continue` skips by a flag."""
        stop = Variable(self.names("stopped"), dtypes.bool_)
        skip = Variable(self.names("skipped"), dtypes.bool_)
        running = Op("not", (Read(stop),), dtypes.bool_, place=s.place)
        inner = _flag_jumps(s.body, stop, skip)
        head: Body = (Assign(stop, FALSE, place=s.place),)
        reset: Body = (Assign(skip, FALSE, place=s.place),)
        if isinstance(s, While):
            test = And(running, s.condition, place=s.place)
            return (*head, replace(s, condition=test, body=(*reset, *inner)))
        variable = s.variable
        ends = {
            name: Variable(self.names(f"{variable.name}_{name}"), variable.dtype)
            for name in ("stop", "step")
        }
        head = (
            *head,
            Assign(variable, s.start, place=s.place),
            Assign(ends["stop"], s.stop, place=s.place),
            Assign(ends["step"], s.step, place=s.place),
        )
        more = in_range(Read(variable), Read(ends["stop"]), Read(ends["step"]))
        step = Op("add", (Read(variable), Read(ends["step"])), variable.dtype, place=s.place)
        body = (*reset, *inner, Assign(variable, step, place=s.place))
        return (*head, While(And(running, more, place=s.place), body, place=s.place))


def in_range(i: Expr, stop: Expr, step: Expr) -> Expr:
    """Whether `range` goes on: below `stop` going up, above it going down."""
    zero = Const(0, step.dtype)

    def compare(name: str, x: Expr, y: Expr) -> Expr:
        return Op(name, (x, y), dtypes.bool_)

    up = And(compare("gt", step, zero), compare("lt", i, stop))
    return ir.Or(up, And(compare("lt", step, zero), compare("gt", i, stop)))


def _jumps(body: Body) -> bool:
    """Whether a body holds a jump of the loop directly around it."""
    for s in body:
        match s:
            case Break() | Continue():
                return True
            case If(then=then, otherwise=otherwise) if _jumps(then) or _jumps(otherwise):
                return True
    return False


def _flag_jumps(body: Body, stop: Variable, skip: Variable) -> Body:
    for k, s in enumerate(body):
        rest = body[k + 1 :]
        match s:
            case Break():
                return (
                    *body[:k],
                    Assign(stop, TRUE, place=s.place),
                    Assign(skip, TRUE, place=s.place),
                )
            case Continue():
                return (*body[:k], Assign(skip, TRUE, place=s.place))
            case If(then=then, otherwise=otherwise) if _jumps((s,)):
                new = replace(
                    s,
                    then=_flag_jumps(then, stop, skip),
                    otherwise=_flag_jumps(otherwise, stop, skip),
                )
                after = _flag_jumps(rest, stop, skip)
                going = Op("not", (Read(skip),), dtypes.bool_, place=s.place)
                guarded = (If(going, after, place=s.place),) if after else ()
                return (*body[:k], new, *guarded)
    return body
