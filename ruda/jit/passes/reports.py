"""What a kernel tells the host: prints, failed assertions, failed checks.

Each becomes a *site*; at run time a thread writes (site, block, thread, values) into the launch's
report buffer, as the pseudo statement `Asm("cpu", "report", ...)`. With `check` every access of an
array is made only where its indices are inside (a load gives 0 elsewhere), and integer divisors are
looked at. The linear block and thread are named by special coordinates of their own, so that asking
for them makes no value vary between threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ruda import dtypes
from ruda.backends.base import Site
from ruda.errors import Place
from ruda.jit import ir
from ruda.jit.ir import (
    Array,
    Asm,
    Assert,
    Atomic,
    Body,
    Const,
    Expr,
    Extent,
    Field,
    Function,
    If,
    Load,
    Op,
    Print,
    Return,
    Select,
    Special,
    Statement,
    Store,
    Text,
)
from ruda.jit.passes.indices import index
from ruda.jit.passes.jumps import negate

BLOCK, THREAD = Special("linearBlock"), Special("linearThread")


def lower_reports(function: Function) -> tuple[Function, tuple[Site, ...]]:
    """The function with its reports as pseudo operations, and the table of their sites."""
    lowering = _Reports(function)
    body = lowering.body(function.body)
    if not lowering.sites:
        return function, ()
    return replace(function, body=body), tuple(lowering.sites)


def report(site: int, values: tuple[Expr, ...], place: Place) -> Asm:
    return Asm("cpu", "report", (index(site), BLOCK, THREAD, *values), place=place)


@dataclass
class _Reports:
    function: Function
    sites: list[Site] = field(default_factory=list)

    def site(self, kind: str, place: Place, parts: tuple[Any, ...]) -> int:
        self.sites.append(Site(kind, place, parts))
        return len(self.sites) - 1

    def body(self, body: Body) -> Body:
        out: list[Statement] = []
        for s in body:
            if self.function.check:
                s = ir.map_children(s, self.checked)
            match s:
                case Print(parts):
                    site = self.site("print", s.place, _shape(parts))
                    out.append(report(site, _values(parts), s.place))
                case Assert(condition, message):
                    site = self.site("assert", s.place, _shape(message))
                    told = report(site, _values(message), s.place)
                    leave = Return(place=s.place)
                    out.append(If(negate(condition), (told, leave), place=s.place))
                case Store() | Atomic() if self.function.check and s.indices:
                    inside = self.inside(s.array, s.indices, s.field, s.place)
                    out.append(If(inside, (s,), place=s.place))
                case _:
                    inner = {n: self.body(getattr(s, n)) for n in ir._BODIES.get(type(s), ())}
                    out.append(replace(s, **inner) if inner else s)  # type: ignore[arg-type]
        return tuple(out)

    def checked(self, node: Expr) -> Expr:
        return ir.rewrite(node, self.check)

    def check(self, e: Expr) -> Expr:
        match e:
            case Load(array, indices, part) if indices:
                zero = Const(_ZERO[e.dtype.kind], e.dtype)
                return Select(self.inside(array, indices, part, e.place), e, zero, place=e.place)
            case Op("floordiv" | "mod", (x, y)) if e.dtype.is_integer and not _is_nonzero(y):
                name = f"integer division by zero: {{}} {_SIGNS[e.name]} 0 (defined as 0)"
                before, after = name.split("{}")
                site = self.site("division", e.place, (before, (x.dtype.name, ""), after))
                divisor = Op("divisor", (y, index(site), BLOCK, THREAD, x), y.dtype, place=e.place)
                return replace(e, operands=(x, divisor))
        return e

    def inside(
        self, array: Array, indices: tuple[Expr, ...], part: Field | None, place: Place
    ) -> Expr:
        """Whether all indices are inside; reports if not."""
        name = "" if part is None else f".{part.name or part.offset}"
        site = self.site("bounds", place, (array.name, name, *(("index", ""),) * (2 * array.ndim)))
        extents = tuple(Extent(array, k) for k in range(array.ndim))
        operands = (index(site), BLOCK, THREAD, *indices, *extents)
        return Op("inside", operands, dtypes.bool_, place=place)


_ZERO: dict[str, Any] = {"bool": False, "int": 0, "uint": 0, "float": 0.0, "complex": 0j}
_SIGNS = {"floordiv": "//", "mod": "%"}


def _is_nonzero(node: Expr) -> bool:
    return isinstance(node, Const) and node.value != 0


def _shape(parts: tuple[str | Text, ...]) -> tuple[Any, ...]:
    return tuple(p if isinstance(p, str) else (p.value.dtype.name, p.spec) for p in parts)


def _values(parts: tuple[str | Text, ...]) -> tuple[Expr, ...]:
    return tuple(p.value for p in parts if isinstance(p, Text))
