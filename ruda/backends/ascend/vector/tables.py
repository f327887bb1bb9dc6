"""What the vector unit of a 910B can do: its instructions, and what each dtype is held as.

A new instruction begins with a row here; `arithmetic` says when it is used.
"""

from __future__ import annotations

# kind of a number -> what a vector of them is made of. Small integers are held in int32, bfloat16
# in float, bool as bits of a mask.
HELD = {
    "f32": "float", "f16": "half", "bf16": "float", "i8": "int32_t", "u8": "int32_t",
    "i16": "int32_t", "u16": "int32_t", "i32": "int32_t", "u32": "int32_t", "i64": "int64_t",
    "bool": "uint8_t",
}  # fmt: skip
# What they are copied as.
MEMORY = {
    "f32": "float", "f16": "half", "bf16": "bfloat16_t", "i8": "int8_t", "u8": "uint8_t",
    "i16": "int16_t", "u16": "int16_t", "i32": "int32_t", "u32": "int32_t", "i64": "int64_t",
    "bool": "uint8_t",
}  # fmt: skip
BYTES = {
    "float": 4, "half": 2, "bfloat16_t": 2, "int8_t": 1, "uint8_t": 1, "int16_t": 2, "int32_t": 4,
    "int64_t": 8,
}  # fmt: skip
INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32")
FLOATS = ("f32", "f16", "bf16")
ORDER = {"lt": "LT", "le": "LE", "gt": "GT", "ge": "GE", "eq": "EQ", "ne": "NE"}
MIRROR = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
TWO = {"add": "Add", "sub": "Sub", "mul": "Mul", "min": "Min", "max": "Max", "truediv": "Div"}
ONE = {"sqrt": "Sqrt", "exp": "Exp", "log": "Ln", "abs": "Abs"}
ROUNDING = {"floor": "FLOOR", "ceil": "CEIL", "trunc": "TRUNC", "rint": "RINT"}
SUMS = {"add": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin"}
_INTEGERS = {"add": "0", "sub": "0", "mul": "1", "max": "(-2147483647 - 1)", "min": "2147483647"}
_FLOATS = {"add": "-0.0f", "sub": "0.0f", "mul": "1.0f", "max": "-ruda::bits<float>(0x7f800000u)",
           "min": "ruda::bits<float>(0x7f800000u)"}  # fmt: skip
# What a sum, product or extreme does not change by.
NOTHING = {"f32": _FLOATS, "f16": _FLOATS, "i32": _INTEGERS, "u32": _INTEGERS}

# (tanh(x) - x) / x**3 in x**2 on [0, 0.65], fitted for the relative error of tanh; highest power
# first.
TANH = ("-0.00562022300", "0.0205827988", "-0.0537308864", "0.133314863", "-0.333332926")


def limits(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (0, (1 << bits) - 1) if kind[0] == "u" else (-(1 << bits - 1), (1 << bits - 1) - 1)
