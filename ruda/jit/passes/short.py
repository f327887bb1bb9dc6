"""Compute in 32 bits what surely fits them, where 64 bits cost two operations for one.

Integers of Python are 64 bits. GPUs make each of two words: a sum is two instructions, a product
five, a comparison three. A loop that halves a step from 128 needs none of that.
"""

from __future__ import annotations

from dataclasses import replace

from ruda import dtypes
from ruda.jit import ir
from ruda.jit.ir import Assign, Cast, Const, Expr, For, Function, Op, Read, Statement, Variable
from ruda.jit.passes.bounds import Exact
from ruda.jit.passes.names import Names
from ruda.jit.passes.widths import NARROW
from ruda.jit.passes.wraps import Env, Ranges

LONG, SHORT = dtypes.int64, dtypes.int32
_SAME = {"add", "sub", "mul", "neg", "abs", "min", "max", "and", "or", "xor", "invert", "floordiv",
         "mod", "shr", "shl"}  # fmt: skip
_ORDER = {"lt", "le", "gt", "ge", "eq", "ne"}


def shorten_integers(function: Function, narrow: bool) -> Function:
    """The function with variables and operations of int64 in int32, where all values fit.

    `narrow`: indices are held in 32 bits, which the sizes of a launch, its grid and its Python
    integers fit.
    """
    if all(e.dtype != LONG for e in ir.all_expressions(function.body)):
        return function
    found = _Values(function, narrow)
    found.body(function.body, {})
    names = Names(function)
    short = {v: Variable(names(v.name), SHORT) for v, fits in found.fits.items() if fits}
    body, _ = _Short(function, narrow, short).body(function.body, {})
    return replace(function, body=body)


class _Values(Exact):
    """Notes for each variable of int64 whether all that is assigned to it fits 32 bits."""

    def __init__(self, function: Function, narrow: bool) -> None:
        super().__init__(function, narrow)
        inputs = [*function.parameters, *(s.variable for s in function.prologue)]
        self.fits = {v: False for v in inputs if isinstance(v, Variable)}

    def statement(self, s: Statement, env: Env) -> tuple[Statement, Env | None]:
        if not self.quiet:
            match s:
                case Assign(variable, value):
                    self.note(variable, self.short(value, env))
                case For(variable, start, stop, step):
                    self.note(variable, all(self.short(e, env) for e in (start, stop, step)))
                case _:
                    for variable in ir.written(s):
                        self.note(variable, False)
        return super().statement(s, env)

    def note(self, variable: Variable, fits: bool) -> None:
        if variable.dtype == LONG:
            self.fits[variable] = self.fits.get(variable, True) and fits

    def short(self, node: Expr, env: Env) -> bool:
        return fits_short(self, node, env)


class _Short(Exact):
    """Rewrites along the body; what it asks about are the expressions as they were."""

    def __init__(self, function: Function, narrow: bool, short: dict[Variable, Variable]) -> None:
        super().__init__(function, narrow)
        self.variables = short

    def rewrite(self, node: Expr, env: Env) -> Expr:
        if self.quiet:
            return node
        new = Ranges.rewrite(self, node, env)
        match node, new:
            case Read(variable), _ if variable in self.variables:
                return Cast(Read(self.variables[variable], place=node.place), LONG)
            case Op(name, old), Op(_, given) if old and all(v.dtype == LONG for v in old):
                same = name in _SAME and node.dtype == LONG and fits_short(self, node, env)
                if (same or name in _ORDER) and all(fits_short(self, v, env) for v in old):
                    operands = tuple(map(shortened, given))
                    if same:
                        return Cast(replace(new, operands=operands, dtype=SHORT), LONG)
                    return replace(new, operands=operands)
            case Cast(), Cast(Cast(inner, dtypes.int64), dtype) if inner.dtype == SHORT:
                return inner if dtype == SHORT else replace(new, value=inner)
        return new

    def statement(self, s: Statement, env: Env) -> tuple[Statement, Env | None]:
        new, after = super().statement(s, env)
        match new:
            case Assign(variable, value) if variable in self.variables:
                new = replace(new, variable=self.variables[variable], value=shortened(value))
            case For(variable, start, stop, step) if variable in self.variables:
                start, stop, step = map(shortened, (start, stop, step))
                new = replace(
                    new, variable=self.variables[variable], start=start, stop=stop, step=step
                )
        return new, after


def fits_short(ranges: Exact, node: Expr, env: Env) -> bool:
    if node.dtype != LONG:
        return False
    low, high = ranges.of(node, env)
    return NARROW[0] <= low and high <= NARROW[1]


def shortened(node: Expr) -> Expr:
    """A value of int64 that fits, as one of int32."""
    match node:
        case Const(value):
            return replace(node, value=value, dtype=SHORT)
        case Cast(value) if value.dtype == SHORT:
            return value
        case Cast(value) if value.dtype.is_integer:
            return replace(node, dtype=SHORT)
    return Cast(node, SHORT, place=node.place)
