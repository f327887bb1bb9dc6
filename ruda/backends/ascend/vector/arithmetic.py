"""Operations of the language as instructions: masks, floats, integers.

Where the unit has no instruction for one, it is composed here of those that it has, to the same
result; what cannot be is refused, and the loop stays with the scalar unit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ruda.backends.ascend.vector.instructions import Instructions
from ruda.backends.ascend.vector.program import Lanes, Steps, Uniform, Value
from ruda.backends.ascend.vector.tables import FLOATS, MIRROR, ONE, ROUNDING, TANH, TWO
from ruda.jit.emit_python import bare
from ruda.jit.ir import Const, Expr


class Arithmetic(Instructions):
    """Operations on values, by the kind of their operands."""

    # ---- masks

    def comparison(self, name: str, values: list[Value], kind: str) -> Value:
        a, b = values
        if not isinstance(a, Lanes) and isinstance(b, Lanes):
            return self.comparison(MIRROR[name], [b, a], kind)
        if kind == "bool":
            return self.of_masks(name, values)
        if isinstance(a, Steps):
            a = self.in_lanes(a, kind)
        if isinstance(b, Steps):
            b = self.in_lanes(b, kind)
        assert isinstance(a, Lanes)
        if kind in FLOATS:
            held = "f16" if kind == "f16" else "f32"
            other = self.scalar(b, kind) if isinstance(b, Uniform) else b
            return self.compare(name, a, other, held)
        if kind == "u32":
            a, b = self.flipped(a), self.flipped(b)
        # int32 is compared for equality alone: a <= b is max(a, b) == b, and so on.
        if name in ("eq", "ne"):
            found = self.compare("eq", a, self.scalar(b, "i32") if isinstance(b, Uniform) else b,
                                 "i32")  # fmt: skip
            return self.logic("Not", found) if name == "ne" else found
        api = "Max" if name in ("le", "gt") else "Min"
        extreme = self.with_scalar(api, a, b, "i32")
        found = self.compare(
            "eq", extreme, self.scalar(b, "i32") if isinstance(b, Uniform) else b, "i32"
        )
        # le: max(a, b) == b; ge: min(a, b) == b; gt and lt are their negations
        return found if name in ("le", "ge") else self.logic("Not", found)

    def flipped(self, value: Value) -> Any:
        """Unsigned numbers as signed ones in the same order."""
        if isinstance(value, Uniform):
            return Uniform(f"(uint32_t({value.text}) ^ 2147483648u)", "i32")
        lanes = self.in_lanes(value, "u32")
        return self.simple("Adds", "i32", lanes, scalar="int32_t(-2147483647 - 1)")

    def with_scalar(self, api: str, a: Lanes, b: Value, kind: str) -> Lanes:
        if isinstance(b, Uniform):
            return self.simple(f"{api}s", kind, a, scalar=self.scalar(b, kind))
        return self.simple(api, kind, a, self.in_lanes(b, kind))

    def of_masks(self, name: str, values: list[Value]) -> Value:
        x = [self.in_lanes(v, "bool") for v in values]
        match name:
            case "not" | "invert":
                return self.logic("Not", x[0])
            case "and" | "min":
                return self.logic("And", *x)
            case "or" | "max":
                return self.logic("Or", *x)
            case "xor" | "ne":
                either, both = self.logic("Or", *x), self.logic("And", *x)
                return self.logic("And", either, self.logic("Not", both))
            case "eq":
                return self.logic("Not", self.lanes(self.of_masks("xor", list(x))))
        raise self.refuse(f"the vector unit has no {name} of bool")

    def select(self, c: Value, a: Value, b: Value, kind: str) -> Value:
        if kind in ("i64", "index") and not all(isinstance(v, Lanes) for v in (a, b)):
            a, b = (self.in_32(v) if not isinstance(v, Lanes) else v for v in (a, b))
            kind = "i32"
            found = self.select(c, a, b, kind)
            return Lanes(self.lanes(found).register, "index")
        if isinstance(c, Uniform):
            x, y = self.in_lanes(a, kind), self.in_lanes(b, kind)
            c = self.in_lanes(c, "bool")
        mask = self.in_lanes(c, "bool")
        opposite = self.inverse.get(mask.register)
        if opposite is not None and not (kind in FLOATS and isinstance(b, Uniform)):
            mask, a, b = opposite, b, a
        if kind == "bool":
            x, y = self.in_lanes(a, kind), self.in_lanes(b, kind)
            return self.logic(
                "Or", self.logic("And", mask, x), self.logic("And", self.logic("Not", mask), y)
            )
        self.padded = True
        x = self.in_lanes(a, kind)
        if x.register.type not in ("float", "half", "int32_t"):
            raise self.refuse(f"dav-2201 has no select on {kind}")
        if kind in FLOATS and isinstance(b, Uniform):
            text = (f"Select({{d}}, {{0}}, {{1}}, {self.scalar(b, kind)}, "
                    "SELMODE::VSEL_TENSOR_SCALAR_MODE, {n});")  # fmt: skip
            return self.op(text, kind, mask, x)
        y = self.in_lanes(b, kind)
        r = ".ReinterpretCast<float>()" if x.register.type == "int32_t" else ""
        text = (f"Select({{d}}{r}, {{0}}, {{1}}{r}, {{2}}{r}, SELMODE::VSEL_TENSOR_TENSOR_MODE, "
                "{n});")  # fmt: skip
        return self.op(text, kind, mask, x, y)

    # ---- floats

    def floating(self, name: str, values: list[Value], kind: str) -> Value:
        if kind == "bf16":
            found = self.floating(name, values, "f32")
            if isinstance(found, Lanes) and found.kind == "f32":
                return self.round_bf16(found)
            return found
        if name in ("fmin", "fmax", "fma", "pow", "floordiv", "mod"):
            raise self.refuse(f"the vector unit has no {name}")
        if name in TWO:
            return self.two(name, values, kind)
        x = self.in_lanes(values[0], kind)
        if name == "neg":
            return self.simple("Muls", kind, x, scalar="half(-1.0f)" if kind == "f16" else "-1.0f")
        if name == "isnan":
            return self.compare("ne", x, x, kind)
        if name in ("isinf", "isfinite"):
            infinite = "ruda::bits<float>(0x7f800000u)"
            scalar = f"half({infinite})" if kind == "f16" else infinite
            size = self.simple("Abs", kind, x)
            return self.compare("eq" if name == "isinf" else "lt", size, scalar, kind)
        if kind == "f16" and name != "abs":
            wide = self.floating(name, [self.cast_as(x, "f32", "NONE")], "f32")
            return self.cast_as(self.lanes(wide), "f16", "RINT")
        if name in ONE:
            return self.simple(ONE[name], kind, x)
        if name in ROUNDING:
            return self.cast_as(x, "f32", ROUNDING[name])
        if name == "rsqrt":
            return self.two("truediv", [Uniform("1.0f", "f32"), self.simple("Sqrt", "f32", x)],
                            kind)  # fmt: skip
        composed: dict[str, Callable[[Lanes], Lanes]] = {
            "tanh": self.tanh, "log2": self.log2, "log10": self.log10,
        }  # fmt: skip
        if name in composed:
            return composed[name](x)
        raise self.refuse(f"the vector unit has no {name}")

    def two(self, name: str, values: list[Value], kind: str) -> Lanes:
        a, b = values
        api = TWO[name]
        match name, a, b:
            case "add" | "mul" | "min" | "max", Uniform(), Lanes():
                return self.with_scalar(api, b, a, kind)
            case "add" | "mul" | "min" | "max", Lanes(), Uniform():
                return self.with_scalar(api, a, b, kind)
            case "sub", Lanes(), Uniform():
                scalar = self.scalar(b, "f32")
                scalar = f"-{scalar}" if re.fullmatch(r"[\w.]+", scalar) else f"-({scalar})"
                return self.simple("Adds", kind, a, scalar=self.scalar(Uniform(scalar, "f32"),
                                                                        kind))  # fmt: skip
            case "sub", Uniform(), Lanes():
                minus = self.simple("Muls", kind, b, scalar=self.scalar(Uniform("-1.0f", "f32"),
                                                                         kind))  # fmt: skip
                return self.with_scalar("Add", minus, a, kind)
            case "truediv", Lanes(), Uniform() if self.fastmath and kind == "f32":
                inverse = Uniform(f"(1.0f / {self.scalar(b, 'f32')})", "f32")
                return self.with_scalar("Mul", a, inverse, kind)
        return self.simple(api, kind, self.in_lanes(a, kind), self.in_lanes(b, kind))

    def round_bf16(self, x: Lanes) -> Lanes:
        short = self.op("Cast({d}, {0}, RoundMode::CAST_RINT, {n});", "bf16", x)
        short.register.type = "bfloat16_t"
        wide = self.cast_as(short, "f32", "NONE")
        self.rounded[wide.register] = short.register
        return Lanes(wide.register, "bf16")

    def log2(self, x: Lanes) -> Lanes:
        return self.simple("Muls", "f32", self.simple("Ln", "f32", x), scalar="1.44269504f")

    def log10(self, x: Lanes) -> Lanes:
        return self.simple("Muls", "f32", self.simple("Ln", "f32", x), scalar="0.434294482f")

    def tanh(self, x: Lanes) -> Lanes:
        """(1 - e) / (1 + e) with e = exp(-2 |x|), and near 0 an odd polynomial."""
        size = self.simple("Abs", "f32", x)
        e = self.simple("Exp", "f32", self.simple("Muls", "f32", size, scalar="-2.0f"))
        top = self.two("sub", [Uniform("1.0f", "f32"), e], "f32")
        far = self.simple("Div", "f32", top, self.simple("Adds", "f32", e, scalar="1.0f"))
        square = self.simple("Mul", "f32", x, x)
        p = self.fill(f"{TANH[0]}f", "f32")
        for c in TANH[1:]:
            p = self.simple("Adds", "f32", self.simple("Mul", "f32", p, square), scalar=f"{c}f")
        near = self.simple("Mul", "f32", self.simple("Mul", "f32", p, square), size)
        near = self.simple("Add", "f32", near, size)
        mask = self.compare("lt", size, "0.625f", "f32")
        found = self.lanes(self.select(mask, near, far, "f32"))
        return self.signed_as(found, x)

    def signed_as(self, x: Lanes, y: Lanes) -> Lanes:
        """The size of x, which is not negative, with the sign of y."""
        low = self.fill("int32_t(-2147483647 - 1)", "i32")
        sign = self.bitwise("And", "i32", y, low)
        found = self.bitwise("Or", "f32", x, sign)
        return found

    # ---- integers

    def integer(self, name: str, values: list[Value], kind: str, operands: Sequence[Expr]) -> Value:
        a, b = values[0], values[-1]
        match name:
            case "add" | "mul":
                if isinstance(a, Uniform):
                    a, b = b, a
                return self.narrowed(
                    self.with_scalar(TWO[name], self.in_lanes(a, kind), b, "i32"), kind
                )
            case "min" | "max":
                if isinstance(a, Uniform):
                    a, b = b, a
                if kind == "u32":
                    found = self.with_scalar(TWO[name], self.flipped(a), self.flipped(b), "i32")
                    return Lanes(self.flipped(Lanes(found.register, "u32")).register, "u32")
                return Lanes(
                    self.with_scalar(TWO[name], self.in_lanes(a, kind), b, "i32").register, kind
                )
            case "sub":
                if isinstance(b, Uniform):
                    scalar = f"ruda::neg<int32_t>(int32_t({bare(b.text)}))"
                    found = self.simple("Adds", "i32", self.in_lanes(a, kind), scalar=scalar)
                    return self.narrowed(found, kind)
                found = self.simple(
                    "Sub",
                    "i32",
                    self.in_lanes(a, kind),
                    self.in_lanes(b, kind),
                )
                return self.narrowed(found, kind)
            case "neg":
                found = self.simple("Muls", "i32", self.in_lanes(a, kind), scalar="int32_t(-1)")
                return self.narrowed(found, kind)
            case "abs":
                x = self.in_lanes(a, kind)
                if kind[0] == "u":
                    return x
                minus = self.simple("Muls", "i32", x, scalar="int32_t(-1)")
                return self.narrowed(self.simple("Max", "i32", x, minus), kind)
            case "and" | "or" | "xor":
                x, y = self.in_lanes(a, kind), self.in_lanes(b, kind)
                if name != "xor":
                    return self.bitwise(name.capitalize(), kind, x, y)
                either, both = self.bitwise("Or", kind, x, y), self.bitwise("And", kind, x, y)
                return self.bitwise("And", kind, either, self.bitwise("Not", kind, both))
            case "invert":
                found = self.bitwise("Not", kind, self.in_lanes(a, kind))
                return self.narrowed(found, kind)
            case "shl" | "shr":
                return self.shifted(name, self.in_lanes(a, kind), operands[1], kind)
            case "floordiv" | "mod" if kind != "u32":
                return self.divided(name, a, b, kind)
        raise self.refuse(f"dav-2201 has no vector {name} on {operands[0].dtype.name}")

    def narrowed(self, x: Lanes, kind: str) -> Lanes:
        """A small integer that may have left its range, wrapped."""
        bits = int(kind[1:])
        if bits == 32:
            return Lanes(x.register, kind)
        return self.wrap_to(x, kind)

    def wrap_to(self, x: Lanes, kind: str) -> Lanes:
        shift = 32 - int(kind[1:])
        left = self.simple("ShiftLeft", "i32", x, scalar=f"int32_t({shift})")
        if kind[0] == "i":
            found = self.simple("ShiftRight", "i32", left, scalar=f"int32_t({shift})")
        else:
            found = self.shift_unsigned(left, shift)  # fmt: skip
        return Lanes(found.register, kind)

    def shift_unsigned(self, x: Lanes, n: int) -> Lanes:
        r = ".ReinterpretCast<uint32_t>()"
        return self.op(f"ShiftRight({{d}}{r}, {{0}}{r}, uint32_t({n}), {{n}});", "i32", x)

    def shifted(self, name: str, x: Lanes, by: Expr, kind: str) -> Lanes:
        if not isinstance(by, Const):
            raise self.refuse("the vector unit shifts by constants alone")
        n, bits = int(by.value), int(kind[1:])
        if name == "shl":
            if not 0 <= n < bits:
                return self.fill("int32_t(0)", kind)
            found = self.simple("ShiftLeft", "i32", x, scalar=f"int32_t({n})")
            return self.narrowed(found, kind)
        if kind[0] == "i":
            n = n if 0 <= n < bits else bits - 1
            found = self.simple("ShiftRight", "i32", x, scalar=f"int32_t({n})")
        elif not 0 <= n < bits:
            return self.fill("int32_t(0)", kind)
        else:
            found = self.shift_unsigned(x, n)  # fmt: skip
        return Lanes(found.register, kind)

    def divided(self, name: str, a: Value, b: Value, kind: str) -> Lanes:
        """Floor division of int32, for which there is no instruction.

        The quotient in float is off by as much as 2**8; what it leaves is divided again. After
        the third time the quotient can only be one too large (where the rest was so near to the
        divisor that float took it for 1), and the last division has only its sign to tell.
        """
        x, y = self.in_lanes(a, kind), self.in_lanes(b, kind)
        divisor = self.cast_as(y, "f32", "NONE")
        rest, quotient = x, None
        for last in (False, False, False, True):
            ratio = self.simple("Div", "f32", self.cast_as(rest, "f32", "NONE"), divisor)
            part = self.cast_as(ratio, "i32", "FLOOR")
            if last:
                part = self.simple("Mins", "i32", part, scalar="int32_t(0)")
            quotient = part if quotient is None else self.simple("Add", "i32", quotient, part)
            rest = self.simple("Sub", "i32", rest, self.simple("Mul", "i32", part, y))
        found = quotient if name == "floordiv" else rest
        assert found is not None
        constant = isinstance(b, Uniform) and re.fullmatch(r"\(?-?[1-9]\d*u?\)?", b.text)
        if not constant:  # x // 0 and x % 0 are 0
            zero = self.compare("eq", y, "int32_t(0)", "i32")
            nothing = Uniform("0", kind)
            found = self.lanes(self.select(zero, self.in_lanes(nothing, kind), found, kind))
        return self.narrowed(found, kind)
