"""Indices: an axis is a loop whose rounds become lanes, and an index counts along it in steps.

`Steps` is `base + step * lane`. Arithmetic that keeps this form costs nothing in lanes; elements at
step 1 are neighbours, which copies move together. All else about indices is exact in 64 bits, or
checked to fit 32 before a tile.
"""

from __future__ import annotations

from collections.abc import Sequence

from ruda.backends.ascend.vector.conversions import Conversions
from ruda.backends.ascend.vector.program import Lanes, Steps, Uniform, Value
from ruda.backends.ascend.vector.tables import ORDER
from ruda.dtypes import DType
from ruda.jit.ir import Const, Expr, Op


class Axis(Conversions):
    """Arithmetic on indices."""

    def wrapped(self, values: list[Value], operands: Sequence[Expr]) -> Value:
        i = values[0]
        if not isinstance(i, Steps):
            raise self.refuse("an index may be negative, and differs between rounds")
        self.check(f"{self.outer(i)} >= 0", i.node)
        if i.step < 0:
            raise self.refuse("elements are visited backwards")
        return i

    def stepped(self, e: Op, name: str, values: list[Value], kind: str) -> Steps | None:
        match name, values:
            case "add", [Steps() as a, Uniform() as b]:
                return Steps(f"({a.base} + {b.text})", a.step, kind, e)
            case "add", [Uniform() as b, Steps() as a]:
                return Steps(f"({b.text} + {a.base})", a.step, kind, e)
            case "add", [Steps() as a, Steps() as b]:
                return Steps(f"({a.base} + {b.base})", a.step + b.step, kind, e)
            case "sub", [Steps() as a, Uniform() as b]:
                return Steps(f"({a.base} - {b.text})", a.step, kind, e)
            case "sub", [Uniform() as b, Steps() as a]:
                return Steps(f"({b.text} - {a.base})", -a.step, kind, e)
            case "sub", [Steps() as a, Steps() as b]:
                return Steps(f"({a.base} - {b.base})", a.step - b.step, kind, e)
            case "mul", [Steps() as a, Uniform() as b]:
                return self.scaled(e, a, b, e.operands[1], kind)
            case "mul", [Uniform() as b, Steps() as a]:
                return self.scaled(e, a, b, e.operands[0], kind)
        return None

    def scaled(self, e: Op, a: Steps, b: Uniform, factor: Expr, kind: str) -> Steps | None:
        if not isinstance(factor, Const) or abs(a.step * int(factor.value)) > 1 << 20:
            return None
        return Steps(f"({a.base} * {b.text})", a.step * int(factor.value), kind, e)

    def counting(self, e: Op, name: str, values: list[Value], dtype: DType) -> Value:
        """Arithmetic on indices: exact in 64 bits, in lanes only where 32 are enough."""
        if name in ("add", "sub", "mul"):
            steps = self.stepped(e, name, values, "i64")
            if steps is not None:
                return steps
            raise self.refuse(f"dav-2201 has no vector {name} on 64-bit integers")
        if any(isinstance(v, Lanes) and v.kind == "i64" for v in values):
            raise self.refuse("dav-2201 has no vector arithmetic on 64-bit integers")
        if name in ORDER:
            return self.comparison(name, [self.in_32(v) for v in values], "i32")
        if name in ("floordiv", "mod") and isinstance(values[1], Uniform):
            divisor = e.operands[1]
            if isinstance(divisor, Const) and 0 < int(divisor.value) < 1 << 31:
                lanes: list[Value] = [
                    self.in_lanes(values[0], "index"), Uniform(values[1].text, "i32")
                ]  # fmt: skip
                found = self.integer(name, lanes, "i32", e.operands)
                return Lanes(found.register, "index") if isinstance(found, Lanes) else found
        if name in ("min", "max"):
            found = self.integer(name, [self.in_32(v) for v in values], "i32", e.operands)
            assert isinstance(found, Lanes)
            return Lanes(found.register, "index")
        raise self.refuse(f"dav-2201 has no vector {name} on 64-bit integers")
