"""Conversions between dtypes by the casts that the unit has, and what copies bring and take."""

from __future__ import annotations

from ruda.backends.ascend.vector.arithmetic import Arithmetic
from ruda.backends.ascend.vector.program import Lanes, Register, Steps, Uniform, Value, moved
from ruda.backends.ascend.vector.tables import FLOATS, HELD, INTEGERS, MEMORY, limits
from ruda.dtypes import DType


class Conversions(Arithmetic):
    """A value as another dtype."""

    def cast(self, value: Value, source: DType, target: DType) -> Value:
        kind, to = self.kind(source), self.kind(target)
        if target.name == "index" and kind in (*INTEGERS, "i64"):
            to = "i64"
        if isinstance(value, Uniform):
            return value
        if isinstance(value, Steps):
            if to == "i64" or (to in INTEGERS and int(to[1:]) == 32):
                return Steps(value.base, value.step, to, value.node)
            if to in INTEGERS:
                return self.wrap_to(self.in_lanes(Steps(value.base, value.step, "i32",
                                                        value.node), "i32"), to)  # fmt: skip
            exact = "index" if kind == "i64" else kind
            return self.cast_lanes(
                self.in_lanes(value, exact), "i32" if kind == "i64" else kind, to
            )
        if value.kind == "index":  # lanes of int32 whose numbers are indices
            if to == "i64":
                return value
            return self.cast_lanes(Lanes(value.register, "i32"), "i32", to)
        if to == "i64" and kind in INTEGERS and kind != "u32":
            if target.name == "index":
                return Lanes(value.register, "index")
            return Lanes(self.cast_as(value, "i64", "NONE").register, "i64")
        return self.cast_lanes(value, kind, to)

    def cast_lanes(self, x: Lanes, kind: str, to: str) -> Lanes:
        if kind == to:
            return x
        if to == "bool":
            if kind in FLOATS:
                zero = "half(0.0f)" if kind == "f16" else "0.0f"
                return self.compare("ne", x, zero, "f16" if kind == "f16" else "f32")
            if kind in INTEGERS:
                return self.logic("Not", self.compare("eq", x, "int32_t(0)", "i32"))
        if kind == "bool":
            self.padded = True
            if to in INTEGERS:
                ones = self.fill("int32_t(1)", "i32")
                return self.lanes(self.select(x, ones, Uniform("0", "i32"), to))
            if to in FLOATS:
                held = "f16" if to == "f16" else "f32"
                ones = self.fill("half(1.0f)" if to == "f16" else "1.0f", held)
                found = self.lanes(self.select(x, ones, Uniform("0.0f", "f32"), held))
                return Lanes(found.register, to)
        if kind in INTEGERS and to in INTEGERS:
            low, high = limits(kind)
            first, last = limits(to)
            if to == "u32" or (first <= low and high <= last):
                return Lanes(x.register, to)
            if int(to[1:]) == 32:
                return Lanes(x.register, to)
            return self.wrap_to(x, to)
        if kind in INTEGERS and to in FLOATS:
            return self.float_of(x, kind, to)
        if kind in FLOATS and to in INTEGERS:
            return self.int_of(x, kind, to)
        if kind in FLOATS and to in FLOATS:
            return self.float_to_float(x, kind, to)
        if kind == "i64" and to == "f32":
            return self.cast_as(x, "f32", "RINT")
        raise self.refuse(f"dav-2201 has no vector conversion from {kind} to {to}")

    def float_to_float(self, x: Lanes, kind: str, to: str) -> Lanes:
        if kind == "bf16":
            x = Lanes(x.register, "f32")
        elif kind == "f16":
            x = self.cast_as(x, "f32", "NONE")
        if to == "f32":
            return x
        return self.cast_as(x, "f16", "RINT") if to == "f16" else self.round_bf16(x)

    def float_of(self, x: Lanes, kind: str, to: str) -> Lanes:
        if kind == "u32":
            high = self.shift_unsigned(x, 16)
            low = self.wrap_to(x, "u16")
            top = self.simple("Muls", "f32", self.cast_as(high, "f32", "NONE"), scalar="65536.0f")
            if to != "f32":
                raise self.refuse(f"dav-2201 has no vector conversion from {kind} to {to}")
            return self.simple("Add", "f32", top, self.cast_as(low, "f32", "NONE"))
        if to != "f32" and int(kind[1:]) > 16:
            raise self.refuse(f"dav-2201 has no vector conversion from {kind} to {to}")
        found = self.cast_as(x, "f32", "NONE")
        return self.float_to_float(found, "f32", to)

    def int_of(self, x: Lanes, kind: str, to: str) -> Lanes:
        wide = self.float_to_float(x, kind, "f32")
        if to == "u32":
            raise self.refuse("dav-2201 has no vector conversion from float to uint32")
        if to != "i32":
            low, high = limits(to)
            wide = self.simple("Maxs", "f32", wide, scalar=f"{float(low)}f")
            wide = self.simple("Mins", "f32", wide, scalar=f"{float(high)}f")
        return Lanes(self.cast_as(wide, "i32", "TRUNC").register, to)

    def bitcast(self, value: Value, target: DType) -> Value:
        to = self.kind(target)
        x = self.in_lanes(value, getattr(value, "kind", "i32"))
        if to in ("f32", "i32", "u32") and x.kind in ("f32", "i32", "u32"):
            if HELD[to] == x.register.type:
                return Lanes(x.register, to)
            text = moved("int32_t", "{d}", "{0}")
            return self.op(text, to, x)
        raise self.refuse(f"the vector unit has no bit cast to {to}")

    # ---- between memory and lanes

    def widened(self, raw: Register, kind: str) -> Value:
        """What was copied, as it is computed with."""
        x = Lanes(raw, kind)
        match kind:
            case "f32" | "f16" | "i32" | "u32" | "i64":
                return x
            case "bf16":
                return Lanes(self.cast_as(x, "f32", "NONE").register, "bf16")
            case "i8" | "u8" | "bool":
                half = self.cast_as(x, "f16", "NONE")
                if kind == "bool":
                    return self.compare("ne", half, "half(0.0f)", "f16")
                return Lanes(self.cast_as(half, "i32", "RINT").register, kind)
            case "i16" | "u16":
                wide = self.cast_as(self.cast_as(x, "f32", "NONE"), "i32", "RINT")
                return self.wrap_to(wide, "u16") if kind == "u16" else Lanes(wide.register, kind)
        raise AssertionError(kind)

    def packed(self, x: Lanes, kind: str) -> Register:
        """What is copied out."""
        match kind:
            case "f32" | "f16" | "i32" | "u32" | "i64":
                return x.register
            case "bf16" if x.register in self.rounded:
                return self.rounded[x.register]
            case "bf16":
                found = self.op("Cast({d}, {0}, RoundMode::CAST_RINT, {n});", "bf16", x)
                found.register.type = "bfloat16_t"
                return found.register
            case "bool":
                ones = self.fill("half(1.0f)", "f16")
                half = self.lanes(self.select(x, ones, Uniform("0.0f", "f32"), "f16"))
                found = self.op("Cast({d}, {0}, RoundMode::CAST_RINT, {n});", "bool", half)
                return found.register
            case "i8" | "u8":
                half = self.cast_as(self.cast_as(x, "f32", "NONE"), "f16", "RINT")
                found = self.op("Cast({d}, {0}, RoundMode::CAST_RINT, {n});", kind, half)
                found.register.type = MEMORY[kind]
                return found.register
            case "i16" | "u16":
                short = self.wrap_to(x, "i16") if kind == "u16" else x
                found = self.op("Cast({d}, {0}, RoundMode::CAST_NONE, {n});", kind, short)
                found.register.type = "int16_t"
                return found.register
        raise AssertionError(kind)
