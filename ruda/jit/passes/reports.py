"""What a kernel tells the host: prints, failed assertions, failed checks.

Each becomes a *site*; at run time a thread writes (site, block, thread, values) into the launch's
report buffer, as the pseudo statement `Asm("cpu", "report", ...)`. With `check` every access of an
array is made only where its indices are inside (a load gives 0 elsewhere), an index that counts
from the end by surprise is noted, integer divisors are looked at, and barriers that perhaps not
every thread reaches get a site (the pass that splits them makes the report). The linear block and
thread are named by special coordinates of their own, so that asking for them makes no value vary
between threads.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from ruda import dtypes
from ruda.backends.base import Site
from ruda.errors import Place
from ruda.jit import ir
from ruda.jit.ir import (
    Asm,
    Assert,
    Atomic,
    Barrier,
    Body,
    Const,
    Expr,
    Extent,
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
    Variable,
)
from ruda.jit.passes.indices import index
from ruda.jit.passes.jumps import negate, structure_jumps
from ruda.jit.passes.uniformity import uncertain_barriers
from ruda.jit.surprises import form, has_coordinate, name_of, thread_variables

BLOCK, THREAD = Special("linearBlock"), Special("linearThread")


def lower_reports(function: Function, barriers: bool = False) -> tuple[Function, tuple[Site, ...]]:
    """The function with its reports as pseudo operations, and the table of their sites.

    `barriers`: the target can tell which threads did not come to a barrier.
    """
    lowering = _Reports(function, thread_variables(function.body) if function.check else set())
    body = lowering.body(function.body)
    if function.check and barriers:
        body = lowering.watched(body)
    if not lowering.sites:
        return function, ()
    return replace(function, body=body), tuple(lowering.sites)


def report(site: int, values: tuple[Expr, ...], place: Place) -> Asm:
    return Asm("cpu", "report", (index(site), BLOCK, THREAD, *values), place=place)


@dataclass
class _Reports:
    function: Function
    from_thread: set[Variable]
    sites: list[Site] = field(default_factory=list)

    def site(self, kind: str, place: Place, parts: tuple[Any, ...]) -> int:
        self.sites.append(Site(kind, place, parts))
        return len(self.sites) - 1

    def body(self, body: Body) -> Body:
        out: list[Statement] = []
        for s in body:
            forms = _forms(s) if isinstance(s, (Store, Atomic)) else ()
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
                    inside = self.inside(s, forms)
                    out.append(If(inside, (s,), place=s.place))
                case _:
                    inner = {n: self.body(getattr(s, n)) for n in ir._BODIES.get(type(s), ())}
                    out.append(replace(s, **inner) if inner else s)  # type: ignore[arg-type]
        return tuple(out)

    def watched(self, body: Body) -> Body:
        """Sites for the barriers of the block, if perhaps not every thread reaches one of them."""
        if not uncertain_barriers(structure_jumps(self.function)):
            return body
        places = [s.place for s in ir.statements(body) if _of_block(s)]
        lines = tuple(str(p.line) for p in places)

        def watch(s: Statement) -> Statement:
            if not _of_block(s):
                return s
            return replace(s, site=self.site("barrier", s.place, (_WORD, *lines)))  # type: ignore[arg-type]

        return ir.rewrite_body(body, statement=watch)

    def checked(self, node: Expr) -> Expr:
        return self.check(ir.map_children(node, self.checked), node)

    def check(self, e: Expr, before: Expr) -> Expr:
        """The check around an expression; its operands have theirs, and had none before."""
        match e:
            case Load(indices=indices) if indices:
                zero = Const(_ZERO[e.dtype.kind], e.dtype)
                return Select(self.inside(e, _forms(before)), e, zero, place=e.place)
            case Op("wrap", (i, extent)) if has_coordinate(before, self.from_thread):
                site = self.site("wrap", e.place, (name_of(extent), _WORD, _WORD))
                return Select(self.within(site, i, extent), e, e, place=e.place)
            case Op("within", (i, extent)):
                site = self.site("view", e.place, (form(before.operands[0]), _WORD, _WORD))  # type: ignore[union-attr]
                return Select(self.within(site, i, extent), i, i, place=e.place)
            case Op("floordiv" | "mod", (x, y)) if e.dtype.is_integer and not _is_nonzero(y):
                name = f"integer division by zero: {{}} {_SIGNS[e.name]} 0 (defined as 0)"
                before_x, after = name.split("{}")
                site = self.site("division", e.place, (before_x, (x.dtype.name, ""), after))
                divisor = Op("divisor", (y, index(site), BLOCK, THREAD, x), y.dtype, place=e.place)
                return replace(e, operands=(x, divisor))
        return e

    def inside(self, access: Load | Store | Atomic, forms: tuple[str, ...]) -> Expr:
        """Whether all indices are inside; reports if not."""
        array, part = access.array, access.field
        name = "" if part is None else f".{part.name or part.offset}"
        words = (*(("index", f) for f in forms), *(_WORD,) * array.ndim)
        site = self.site("bounds", access.place, (array.name, name, *words))
        extents = tuple(Extent(array, k) for k in range(array.ndim))
        operands = (index(site), BLOCK, THREAD, *access.indices, *extents)
        return Op("inside", operands, dtypes.bool_, place=access.place)

    def within(self, site: int, i: Expr, extent: Expr) -> Expr:
        """The same for one index, of a view."""
        return Op("inside", (index(site), BLOCK, THREAD, i, extent), dtypes.bool_, place=i.place)


_WORD = ("index", "")


def _of_block(s: Statement) -> bool:
    return isinstance(s, Barrier) and s.scope == "block"


def _forms(access: Any) -> tuple[str, ...]:
    return tuple(form(i) for i in access.indices)


_ZERO: dict[str, Any] = {"bool": False, "int": 0, "uint": 0, "float": 0.0, "complex": 0j}
_SIGNS = {"floordiv": "//", "mod": "%"}


def _is_nonzero(node: Expr) -> bool:
    return isinstance(node, Const) and node.value != 0


def _shape(parts: tuple[str | Text, ...]) -> tuple[Any, ...]:
    return tuple(p if isinstance(p, str) else (p.value.dtype.name, p.spec) for p in parts)


def _values(parts: tuple[str | Text, ...]) -> tuple[Expr, ...]:
    return tuple(p.value for p in parts if isinstance(p, Text))
