"""LLVM values with Python's operators, so that mathematics reads as formulas.

A `Value` is a scalar or a vector of `lanes` elements. Every operator emits one LLVM instruction
without flags, so what is written is what is computed, also in a kernel with `fastmath`: nothing is
contracted or promoted, integers wrap (no `nsw`).
A Python number beside a Value becomes a constant of its dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

FLOATS = {"f16": ir.HalfType(), "f32": ir.FloatType(), "f64": ir.DoubleType()}
BITS = {"f16": 16, "f32": 32, "f64": 64, "b1": 1} | {
    f"{kind}{bits}": bits for kind in "iu" for bits in (8, 16, 32, 64, 128)
}
Number = int | float
PURE = ("nounwind", "willreturn", "memory(none)")  # attributes of calls that only compute


def add_attributes(target: Any, attributes: Sequence[str]) -> None:
    """Add attributes to a call or function, past llvmlite's list of those that it knows."""
    for attribute in attributes:
        set.add(target.attributes, attribute)


def llvm_type(dtype: str, lanes: int = 1) -> Any:
    element = FLOATS.get(dtype) or ir.IntType(BITS[dtype])
    return element if lanes == 1 else ir.VectorType(element, lanes)


def constant(value: Number, dtype: str, lanes: int = 1) -> Any:
    if dtype not in FLOATS:
        value = int(value) & ((1 << BITS[dtype]) - 1)
    else:
        value = float(value)
    scalar = ir.Constant(llvm_type(dtype), value)
    return scalar if lanes == 1 else ir.Constant(llvm_type(dtype, lanes), [scalar] * lanes)


class Value:
    """One LLVM value and the builder that emits what is done with it."""

    __slots__ = ("builder", "dtype", "lanes", "llvm")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, builder: Any, llvm: Any, dtype: str, lanes: int = 1) -> None:
        self.builder, self.llvm, self.dtype, self.lanes = builder, llvm, dtype, lanes

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def bits(self) -> int:
        return BITS[self.dtype]

    def like(self, llvm: Any, dtype: str | None = None) -> Value:
        return Value(self.builder, llvm, dtype or self.dtype, self.lanes)

    def const(self, value: Number, dtype: str | None = None) -> Value:
        """A constant beside this value."""
        dtype = dtype or self.dtype
        return self.like(constant(value, dtype, self.lanes), dtype)

    def lift(self, other: Value | Number) -> Value:
        if isinstance(other, Value):
            assert other.dtype == self.dtype, (self.dtype, other.dtype)
            return other
        return self.const(other)

    def binary(self, operation: str, other: Value | Number) -> Value:
        method = getattr(self.builder, operation)
        return self.like(method(self.llvm, self.lift(other).llvm))

    def __add__(self, other: Value | Number) -> Value:
        return self.binary("fadd" if self.is_float else "add", other)

    def __sub__(self, other: Value | Number) -> Value:
        return self.binary("fsub" if self.is_float else "sub", other)

    def __mul__(self, other: Value | Number) -> Value:
        return self.binary("fmul" if self.is_float else "mul", other)

    def __truediv__(self, other: Value | Number) -> Value:
        return self.binary("fdiv", other)

    def __radd__(self, other: Number) -> Value:
        return self.const(other) + self

    def __rsub__(self, other: Number) -> Value:
        return self.const(other) - self

    def __rmul__(self, other: Number) -> Value:
        return self.const(other) * self

    def __rtruediv__(self, other: Number) -> Value:
        return self.const(other) / self

    def __neg__(self) -> Value:
        if self.is_float:  # a subtraction from 0 would lose the sign of zero
            return call("fneg", self)
        return 0 - self

    def __and__(self, other: Value | Number) -> Value:
        return self.binary("and_", other)

    def __or__(self, other: Value | Number) -> Value:
        return self.binary("or_", other)

    def __xor__(self, other: Value | Number) -> Value:
        return self.binary("xor", other)

    def __invert__(self) -> Value:
        return self ^ -1

    def __lshift__(self, other: Value | Number) -> Value:
        return self.binary("shl", other)

    def __rshift__(self, other: Value | Number) -> Value:
        return self.binary("ashr" if self.dtype[0] == "i" else "lshr", other)

    def compare(self, operator: str, other: Value | Number) -> Value:
        """Ordered comparison (false with NaN), except that `!=` is true with NaN."""
        right = self.lift(other).llvm
        if self.is_float:
            kind = "unordered" if operator == "!=" else "ordered"
            result = getattr(self.builder, f"fcmp_{kind}")(operator, self.llvm, right)
        else:
            kind = "signed" if self.dtype[0] == "i" else "unsigned"
            result = getattr(self.builder, f"icmp_{kind}")(operator, self.llvm, right)
        return self.like((result), "b1")

    def __lt__(self, other: Value | Number) -> Value:
        return self.compare("<", other)

    def __le__(self, other: Value | Number) -> Value:
        return self.compare("<=", other)

    def __gt__(self, other: Value | Number) -> Value:
        return self.compare(">", other)

    def __ge__(self, other: Value | Number) -> Value:
        return self.compare(">=", other)

    def __eq__(self, other: Value | Number) -> Value:  # type: ignore[override]
        return self.compare("==", other)

    def __ne__(self, other: Value | Number) -> Value:  # type: ignore[override]
        return self.compare("!=", other)


def select(condition: Value, yes: Value | Number, no: Value | Number) -> Value:
    """`yes` where the condition holds, else `no`; both are computed."""
    if not isinstance(yes, Value):
        assert isinstance(no, Value)
        yes = no.lift(yes)
    no = yes.lift(no)
    return yes.like(yes.builder.select(condition.llvm, yes.llvm, no.llvm))


def call(name: str, *arguments: Value | Number, result: str | None = None) -> Value:
    """An LLVM intrinsic (`llvm.NAME.TYPE`) of arguments of one dtype; `fneg` is an instruction."""
    first = next(a for a in arguments if isinstance(a, Value))
    values = [first.lift(a) for a in arguments]
    if name == "fneg":
        return first.like(first.builder.fneg(first.llvm))
    out = result or first.dtype
    types = [out, first.dtype] if result else [first.dtype]
    return call_symbol(
        ".".join(["llvm", name, *(suffix(t, first.lanes) for t in types)]), out, *values
    )


def suffix(dtype: str, lanes: int) -> str:
    scalar = dtype if dtype in FLOATS else f"i{BITS[dtype]}"
    return scalar if lanes == 1 else f"v{lanes}{scalar}"


def call_symbol(symbol: str, result: str, *values: Value, attributes: Sequence[str] = ()) -> Value:
    """A call of a named function; declared where the module does not have it yet."""
    first = values[0]
    function = declare(
        first.builder.module,
        symbol,
        llvm_type(result, first.lanes),
        [llvm_type(v.dtype, v.lanes) for v in values],
    )
    instruction = first.builder.call(function, [v.llvm for v in values])
    add_attributes(instruction, attributes)
    return first.like(instruction, result)


def declare(module: Any, symbol: str, result: Any, arguments: Sequence[Any]) -> Any:
    found = module.globals.get(symbol)
    if found is None:
        found = ir.Function(module, ir.FunctionType(result, list(arguments)), symbol)
    return found


# Names that formulas use.
def fma(x: Value, y: Value | Number, z: Value | Number) -> Value:
    """x * y + z, rounded once."""
    return call("fma", x, y, z)


def fabs(x: Value) -> Value:
    return call("fabs", x)


def copysign(x: Value | Number, sign: Value) -> Value:
    return call("copysign", sign.lift(x), sign)


def rint(x: Value) -> Value:
    """To the nearest integer, half to even."""
    return call("rint", x)


def floor(x: Value) -> Value:
    return call("floor", x)


def trunc(x: Value) -> Value:
    return call("trunc", x)


def sqrt(x: Value) -> Value:
    return call("sqrt", x)


def least(x: Value, bound: Value | Number) -> Value:
    """min(x, bound); a NaN in x stays."""
    return select(x > bound, bound, x)


def greatest(x: Value, bound: Value | Number) -> Value:
    """max(x, bound); a NaN in x stays."""
    return select(x < bound, bound, x)


def bits_of(x: Value, kind: str = "i") -> Value:
    """The same bits as an integer."""
    dtype = f"{kind}{x.bits}"
    return x.like(x.builder.bitcast(x.llvm, llvm_type(dtype, x.lanes)), dtype)


def from_bits(x: Value, dtype: str | None = None) -> Value:
    """The same bits as a float, or as another integer dtype."""
    dtype = dtype or f"f{x.bits}"
    return x.like(x.builder.bitcast(x.llvm, llvm_type(dtype, x.lanes)), dtype)


def convert(x: Value, dtype: str) -> Value:
    """LLVM's own conversion: integers wrap or extend, floats round; floats must be in range."""
    if dtype == x.dtype:
        return x
    to_float = dtype in FLOATS
    signed = dtype[0] == "i" if x.is_float else x.dtype[0] == "i"
    if x.is_float and to_float:
        operation = "fpext" if BITS[dtype] > x.bits else "fptrunc"
    elif x.is_float:
        operation = "fptosi" if signed else "fptoui"
    elif to_float:
        operation = "sitofp" if signed else "uitofp"
    elif BITS[dtype] == x.bits:
        return x.like(x.llvm, dtype)
    elif BITS[dtype] < x.bits:
        operation = "trunc"
    else:
        operation = "sext" if signed else "zext"
    method: Callable[..., Any] = getattr(x.builder, operation)
    return x.like((method(x.llvm, llvm_type(dtype, x.lanes))), dtype)
