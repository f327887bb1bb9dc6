"""The formulas of scalar functions, written for the CPU, as C++ functions.

`ruda.backends.cpu` writes mathematics once, as formulas of `Value`s; what a `Value` does goes to a
builder. Here the builder writes C++ lines instead of LLVM instructions, so that a function has one
definition and one table of errors. C++ is close: the compiler must not contract or re-associate
(`-ffp-contract=off`), and signed integers go through `ruda::add` and kin, which wrap.
"""

from __future__ import annotations

import functools
import math
import re
import struct
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

# IR operation -> row of the CPU's table, where they are called differently.
NAMES = {
    "floordiv": "floor_div", "mod": "floor_mod", "min": "minimum", "max": "maximum",
    "rint": "round",
}  # fmt: skip
TYPES = {
    "f32": "float", "f64": "double", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t",
    "i64": "int64_t", "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t",
    "bool": "bool", "f16": "float", "bf16": "float", "c64": "ruda::c64", "c128": "ruda::c128",
}  # fmt: skip
_INFIX = {"fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/", "and_": "&", "or_": "|", "xor": "^"}
_WRAPPING = ("add", "sub", "mul", "shl")


@functools.cache
def cpu() -> Any:
    """The CPU's tables of formulas."""
    from ruda.backends.cpu import complexes, math, remainders, trigonometric
    from ruda.backends.cpu.values import Value

    slow = {
        "sin": trigonometric.SIN, "cos": trigonometric.COS, "tan": trigonometric.TAN,
        "fmod": remainders.FMOD, "remainder": remainders.REMAINDER,
    }  # fmt: skip
    pairs: dict[str, Any] = {**complexes.UNARY, **complexes.REAL, **complexes.BINARY}
    return types.SimpleNamespace(math=math, slow=slow, pairs=pairs, Value=Value)


class Term(NamedTuple):
    """A piece of C++ and its kind; it has what formulas ask of an LLVM value."""

    text: str
    kind: str

    @property
    def type(self) -> str:
        return self.kind

    @property
    def attributes(self) -> set[str]:
        return set()


def literal(value: Any, kind: str) -> str:
    """A number of that kind: floats have their suffix, infinities and NaN are made of bits."""
    if kind == "bool":
        return "true" if value else "false"
    if kind[0] in "fb":
        value = float(value)
        if kind != "f64":
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        if math.isfinite(value):
            text = repr(value) if "." in repr(value) or "e" in repr(value) else f"{value!r}.0"
            text += "" if kind == "f64" else "f"
            return f"({text})" if text.startswith("-") else text
        bits = int.from_bytes(struct.pack("<d" if kind == "f64" else "<f", value), "little")
        return f"ruda::bits<{TYPES[kind]}>({bits:#x}{'ull' if kind == 'f64' else 'u'})"
    value = int(value)
    if kind[0] == "u":
        value &= (1 << int(kind[1:])) - 1
        return f"{value}{'ull' if value >> 32 else 'u'}"
    if value == -(1 << 63):
        return "INT64_MIN"
    if kind == "i64" and not -(1 << 31) < value < 1 << 31:
        return f"int64_t({value})"
    if value == -(1 << 31):
        return "(-2147483647 - 1)"
    return f"({value})" if value < 0 else str(value)


class _Anything:
    """A module's functions, every one of which is there already."""

    def get(self, symbol: str) -> str:
        return symbol

    def __contains__(self, symbol: str) -> bool:
        return True


class _Module:
    triple = "ascend"
    globals = _Anything()


class Builder:
    """Writes a function's body; has the methods of llvmlite's builder that `Value` uses."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.module = _Module()

    def let(self, text: str, kind: str) -> Term:
        name = f"t{len(self.lines)}"
        self.lines.append(f"    {TYPES[kind]} {name} = {text};")
        return Term(name, kind)

    def term(self, value: Any) -> Term:
        if isinstance(value, Term):
            return value
        kind = _kind(value.type)
        number = value.constant
        if kind[0] == "i" and number >> (int(kind[1:]) - 1) & 1:
            number -= 1 << int(kind[1:])
        return Term(literal(number, kind), kind)

    def __getattr__(self, name: str) -> Any:
        if name in _WRAPPING:
            return functools.partial(self.wrapping, name)
        if name in _INFIX:
            return functools.partial(self.infix, _INFIX[name])
        raise AttributeError(name)

    def infix(self, sign: str, x: Any, y: Any) -> Term:
        a, b = self.term(x), self.term(y)
        return self.let(f"{a.text} {sign} {b.text}", a.kind)

    def wrapping(self, name: str, x: Any, y: Any) -> Term:
        a, b = self.term(x), self.term(y)
        return self.let(f"ruda::{name}<{TYPES[a.kind]}>({a.text}, {b.text})", a.kind)

    def fneg(self, x: Any) -> Term:
        a = self.term(x)
        return self.let(f"-{a.text}", a.kind)

    def ashr(self, x: Any, y: Any) -> Term:
        return self.infix(">>", x, y)

    def lshr(self, x: Any, y: Any) -> Term:
        a, b = self.term(x), self.term(y)
        u = TYPES["u" + a.kind[1:]]
        return self.let(f"{TYPES[a.kind]}({u}({a.text}) >> {b.text})", a.kind)

    def fcmp_ordered(self, sign: str, x: Any, y: Any) -> Term:
        return self.let(f"{self.term(x).text} {sign} {self.term(y).text}", "bool")

    fcmp_unordered = icmp_signed = fcmp_ordered  # C++'s != is true with NaN

    def icmp_unsigned(self, sign: str, x: Any, y: Any) -> Term:
        a, b = self.term(x), self.term(y)
        if a.kind == "bool":
            return self.icmp_signed(sign, a, b)
        u = TYPES["u" + a.kind[1:]]
        return self.let(f"{u}({a.text}) {sign} {u}({b.text})", "bool")

    def select(self, condition: Any, yes: Any, no: Any) -> Term:
        c, a, b = map(self.term, (condition, yes, no))
        return self.let(f"{c.text} ? {a.text} : {b.text}", a.kind)

    def bitcast(self, x: Any, to: Any) -> Term:
        a, kind = self.term(x), _kind(to)
        return self.let(f"ruda::bits<{TYPES[kind]}>({a.text})", kind)

    def convert(self, x: Any, to: Any) -> Term:
        a, kind = self.term(x), _kind(to)
        return self.let(f"{TYPES[kind]}({a.text})", kind)

    fpext = fptrunc = sitofp = sext = trunc = convert

    def fptosi(self, x: Any, to: Any) -> Term:
        a, kind = self.term(x), _kind(to)
        return self.let(f"ruda::to_int<{TYPES[kind]}>({a.text})", kind)

    def call(self, symbol: Any, arguments: Sequence[Any]) -> Term:
        terms = [self.term(a) for a in arguments]
        kind = terms[0].kind
        given = ", ".join(t.text for t in terms)
        family, name, *_ = f"{symbol}.".split(".")
        suffix = "f" * (kind == "f32")
        if family == "llvm" and name in ("fma", "fabs", "rint", "floor", "trunc", "ceil", "sqrt",
                                         "copysign"):  # fmt: skip
            return self.let(f"{name}{suffix}({given})", kind)
        if family == "llvm" and name == "ldexp":
            return self.let(f"ruda::ldexp({given})", kind)
        if family == "ruda":
            return self.let(f"{name}_{kind}({given})", kind)
        if not name:  # of the C library
            return self.let(f"{family}({given})", kind)
        raise NotImplementedError(f"{symbol} has no C++ form")


def _kind(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    name = type(kind).__name__  # of llvmlite, which is not imported for this
    if name in ("FloatType", "DoubleType"):
        return "f32" if name == "FloatType" else "f64"
    assert name == "IntType"
    return "bool" if kind.width == 1 else f"i{kind.width}"


def function_name(name: str) -> str:
    """The row of the CPU's table for an IR operation."""
    return NAMES.get(name, name)


@functools.cache
def define(name: str, kind: str) -> str | None:
    """The C++ function of an IR operation for "f32" or "f64"; None where there is no formula."""
    name = function_name(name)
    row = cpu().math.FUNCTIONS.get(name)
    if row is None or row.floats is None:
        return None
    kinds = cpu().math.inputs(row, kind)
    slow = cpu().slow.get(name)
    if slow is None:
        return _function(f"{name}_{kind}", row.floats, kinds)
    arguments = "x, y" if slow.arity == 2 else "x"
    long_way = f"{slow.name}{'f' * (kind == 'f32')}({arguments})"
    return _function(f"{name}_{kind}", slow.main, kinds, (slow.slow, long_way))


def _function(
    name: str,
    formula: Callable[..., Any],
    kinds: Sequence[str],
    slow: tuple[Callable[..., Any], str] | None = None,
) -> str:
    builder = Builder()
    values = [cpu().Value(builder, Term(n, k), k) for n, k in zip("xyz", kinds, strict=False)]
    if slow is not None:
        rare = builder.term(slow[0](*values).llvm)
        builder.lines.append(f"    if ({rare.text}) return {slow[1]};")
    result = builder.term(formula(*values).llvm)
    return _text(name, [(n, TYPES[k]) for n, k in zip("xyz", kinds, strict=False)], result, builder)


def _text(name: str, head: Iterable[tuple[str, str]], result: Term, builder: Builder) -> str:
    formal = ", ".join(f"{kind} {n}" for n, kind in head)
    body = "\n".join([*builder.lines, f"    return {result.text};"])
    return f"RUDA_FUNCTION {TYPES[result.kind]} {name}({formal}) {{\n{body}\n}}\n"


@functools.cache
def define_complex(name: str, kind: str) -> str | None:
    """The C++ function of an operation on complex numbers, as pairs of `kind`."""
    width = {"f32": "c64", "f64": "c128"}[kind]
    arity = 2 if name == "pow" else 1
    formula = cpu().pairs.get(name)
    if formula is None:
        return None
    builder = Builder()
    names = ["x", "y"][:arity]
    values = [
        tuple(cpu().Value(builder, Term(f"{n}.{part}", kind), kind) for part in ("re", "im"))
        for n in names
    ]
    found = formula(*values)
    if isinstance(found, tuple):
        real, imaginary = (builder.term(v.llvm).text for v in found)
        result = Term(f"{TYPES[width]}{{{real}, {imaginary}}}", width)
    else:
        result = builder.term(found.llvm)
    return _text(f"{name}_{width}", [(n, TYPES[width]) for n in names], result, builder)


_CALL = re.compile(r"\b([a-z]\w*)_(f32|f64|c64|c128)\(")


def definitions(text: str) -> str:
    """The functions that a text calls, directly or through others; callees first."""
    done: dict[str, str] = {}

    def visit(body: str) -> None:
        for name, kind in dict.fromkeys(_CALL.findall(body)):
            if f"{name}_{kind}" in done:
                continue
            real = {"c64": "f32", "c128": "f64"}.get(kind)
            found = define_complex(name, real) if real else define(name, kind)
            if found is not None:
                done[f"{name}_{kind}"] = ""
                inner = found.partition("{")[2]
                visit(inner)
                del done[f"{name}_{kind}"]
                done[f"{name}_{kind}"] = found

    visit(text)
    return "\n".join(done.values())
