"""The formulas of scalar functions, written for the CPU, as WGSL functions.

`ruda.backends.cpu` writes mathematics once, as formulas of `Value`s; what a `Value` does goes to a
builder. Here the builder writes WGSL lines instead of LLVM instructions, so that a function has
one definition and one table of errors. WGSL promises less than LLVM, and that is made up for here:

* drivers re-associate chains of sums and products: an operand that is one itself is hidden from
  them (`opaque` adds a zero to its bits that only the launch knows);
* `fma` need not round once: exact products are made by splitting, where a formula needs them;
* infinities and NaN may not be constants: they are made of bits and a zero that only the launch
  knows; `a != b` is false for NaN on some compilers, and is written `!(a == b)`.

Integers are signed in the text; unsigned steps are cast there and back.
"""

from __future__ import annotations

import functools
import math
import re
import struct
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ruda.backends.wgpu.origins import joined

SUFFIX = {"f32": "f", "f64": "lf", "i32": "i", "i64": "li", "u32": "u", "u64": "lu"}
# IR operation -> row of the CPU's table, where they are called differently.
NAMES = {
    "floordiv": "floor_div", "mod": "floor_mod", "min": "minimum", "max": "maximum",
    "rint": "round",
}  # fmt: skip


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
    """A piece of WGSL and its type; it has what formulas ask of an LLVM value."""

    text: str
    kind: str
    origin: str = ""  # "sum", "product", "negated", "zero", or several: see `origins`

    @property
    def type(self) -> str:
        return self.kind

    @property
    def attributes(self) -> set[str]:
        return set()


def total(a: Term, sign: str, b: Term, unknown: bool = False) -> str:
    """A sum or difference that no driver takes apart.

    Drivers also take `x - x` and `x + -x` for zero, and `x + 0.0` for x. With `unknown` operands,
    which may be that for all one can tell from here, one of them is hidden.
    """
    left, right = hidden(a, "sum"), hidden(b, "sum")
    if a.text == b.text or ("product" in a.origin and "product" in b.origin):
        right = f"opaque_{b.kind}({b.text})"
    if not unknown:
        return f"{left} {sign} {right}"
    if left == a.text and is_zero(a):
        left = f"opaque_{a.kind}({a.text})"
    if right == b.text and is_zero(b):
        right = f"opaque_{b.kind}({b.text})"
    cancels = sign == "-" or "negated" in a.origin or "negated" in b.origin
    if cancels and not is_literal(a) and not is_literal(b):
        if left != a.text and right != b.text:  # what is hidden alike is alike
            right = f"apart_{b.kind}({b.text})"
        elif left == a.text and right == b.text and "product" in a.origin:
            right = f"opaque_{b.kind}({b.text})"  # so that the product and it may be one operation
        elif left == a.text and right == b.text:
            left = f"opaque_{a.kind}({a.text})"
    return f"{left} {sign} {right}"


def product(a: Term, b: Term) -> str:
    """Likewise a product: with a constant, factors of another one are not joined."""
    left, right = hidden(a, "product", not is_name(b)), hidden(b, "product", not is_name(a))
    for zero, other in ((a, b), (b, a)):
        if is_zero(zero):  # infinity times zero is NaN
            return f"{other.text} * opaque_{zero.kind}({zero.text})"
    return f"{left} * {right}"


def sides(a: Term, b: Term) -> tuple[str, str]:
    """What is compared. Drivers take `x - y == 0` for `x == y`, which infinities are."""
    left = hidden(a, "sum", a.kind in ("f32", "f64") and is_zero(b))
    return left, hidden(b, "sum", b.kind in ("f32", "f64") and is_zero(a))


def is_zero(a: Term) -> bool:
    """Whether it is a zero, or a variable that may hold that constant."""
    return a.text in ("0.0f", "0.0lf") or "zero" in a.origin


def is_literal(a: Term) -> bool:
    return re.fullmatch(r"\(?-?\d[\w.+-]*\)?", a.text) is not None


def hidden(a: Term, origin: str, when: bool = True) -> str:
    return f"opaque_{a.kind}({a.text})" if when and origin in a.origin else a.text


def is_name(a: Term) -> bool:
    return a.text[0].isalpha()


def exponent_of(text: str) -> int | None:
    """k of the literal of an integer that is 2 ** k; None for anything else.

    >>> exponent_of("16i"), exponent_of("1lu"), exponent_of("12i"), exponent_of("x")
    (4, 0, None, None)
    """
    found = re.fullmatch(r"(\d+)l?[iu]", text)
    number = int(found[1]) if found else 0
    return number.bit_length() - 1 if number.bit_count() == 1 else None


def literal(value: Any, kind: str) -> str:
    """A number of exactly that type; what WGSL refuses as a constant is made at run time."""
    if kind == "bool":
        return "true" if value else "false"
    if kind[0] == "f":
        value = float(value)
        width = "<f" if kind == "f32" else "<d"
        bits = int.from_bytes(struct.pack(width, value), "little")
        usual = math.isfinite(value) and (value == 0 or abs(value) >= 2.3e-38)
        if usual and math.copysign(1.0, value) > 0:
            return f"{value!r}{SUFFIX[kind]}"
        if usual and value < 0:
            return f"(-{-value!r}{SUFFIX[kind]})"
        if kind == "f32":
            return f"bitcast<f32>({bits}u + zero())"
        return f"bitcast<f64>({bits}lu + u64(zero()))"
    value = int(value)
    if kind in ("I64", "U64"):
        return f"vec2<u32>({value & 0xFFFFFFFF}u, {(value >> 32) & 0xFFFFFFFF}u)"
    if kind in ("i32", "i64") and value < 0:
        if value == -(1 << 31) and kind == "i32":
            return "i32(-2147483648)"
        if value == -(1 << 63):
            return "(-9223372036854775807li - 1li)"
        return f"(-{-value}{SUFFIX[kind]})"
    return f"{value}{SUFFIX[kind]}"


class _Anything:
    """A module in which every function is there already."""

    def __contains__(self, symbol: str) -> bool:
        return True

    def get(self, symbol: str) -> str:
        return symbol


class _Module:
    globals = _Anything()
    triple = ""  # no target whose library has its own functions


class Builder:
    """Writes a function's body; has the methods of llvmlite's builder that `Value` uses."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.module = _Module()
        self.compared: dict[str, set[str]] = {}  # of what each truth is a comparison

    def let(self, text: str, kind: str, origin: str = "") -> Term:
        name = f"t{len(self.lines)}"
        self.lines.append(f"  let {name} = {text};")
        return Term(name, kind, origin)

    def term(self, value: Any) -> Term:
        if isinstance(value, Term):
            return value
        kind = _kind(value.type)
        number = value.constant
        if kind in ("i32", "i64") and number >> (int(kind[1:]) - 1) & 1:
            number -= 1 << int(kind[1:])
        return Term(literal(number, kind), kind)

    def __getattr__(self, name: str) -> Any:
        infix = _INFIX.get(name)
        if infix is None:
            raise AttributeError(name)
        return functools.partial(self.infix, infix)

    def infix(self, sign: str, x: Any, y: Any) -> Term:
        a, b = self.term(x), self.term(y)
        if a.kind == "bool" and sign == "^":
            sign = "!="
        result = self.let(f"{a.text} {sign} {b.text}", a.kind)
        if a.kind == "bool":
            both = self.compared.get(a.text, set()) | self.compared.get(b.text, set())
            self.compared[result.text] = both
        return result

    def fadd(self, x: Any, y: Any) -> Term:
        a, b = self.term(x), self.term(y)
        return self.let(total(a, "+", b), a.kind, "sum")

    def fsub(self, x: Any, y: Any) -> Term:
        a, b = self.term(x), self.term(y)
        return self.let(total(a, "-", b), a.kind, "sum")

    def fmul(self, x: Any, y: Any) -> Term:
        a, b = self.term(x), self.term(y)
        return self.let(product(a, b), a.kind, "product")

    def fdiv(self, x: Any, y: Any) -> Term:
        a, b = self.term(x), self.term(y)
        return self.let(f"div_{a.kind}({a.text}, {b.text})", a.kind)

    def fneg(self, x: Any) -> Term:
        a = self.term(x)
        return self.let(f"-{a.text}", a.kind, a.origin)

    def shl(self, x: Any, y: Any) -> Term:
        a, b = self.term(x), self.term(y)
        return self.let(f"{a.text} << {_amount(b)}", a.kind)

    def ashr(self, x: Any, y: Any) -> Term:
        a, b = self.term(x), self.term(y)
        return self.let(f"{a.text} >> {_amount(b)}", a.kind)

    def lshr(self, x: Any, y: Any) -> Term:
        a, b = self.term(x), self.term(y)
        u = "u" + a.kind[1:]
        return self.let(f"bitcast<{a.kind}>(bitcast<{u}>({a.text}) >> {_amount(b)})", a.kind)

    def fcmp_ordered(self, sign: str, x: Any, y: Any) -> Term:
        return self.compare("{} " + sign + " {}", x, y)

    def fcmp_unordered(self, sign: str, x: Any, y: Any) -> Term:
        assert sign == "!="
        return self.compare("!({} == {})", x, y)

    def compare(self, form: str, x: Any, y: Any) -> Term:
        a, b = self.term(x), self.term(y)
        result = self.let(form.format(*sides(a, b)), "bool")
        self.compared[result.text] = {a.text, b.text}
        return result

    def icmp_signed(self, sign: str, x: Any, y: Any) -> Term:
        return self.let(f"{self.term(x).text} {sign} {self.term(y).text}", "bool")

    def icmp_unsigned(self, sign: str, x: Any, y: Any) -> Term:
        a, b = self.term(x), self.term(y)
        if a.kind == "bool":
            return self.icmp_signed(sign, a, b)
        u = "u" + a.kind[1:]
        return self.let(f"bitcast<{u}>({a.text}) {sign} bitcast<{u}>({b.text})", "bool")

    def select(self, condition: Any, yes: Any, no: Any) -> Term:
        c, a, b = map(self.term, (condition, yes, no))
        yes, no = a.text, b.text
        if a.kind in ("f32", "f64"):  # a driver would take the larger one: no NaN, no sign of zero
            known = self.compared.get(c.text, set())
            if yes in known and not is_literal(a):
                yes = f"opaque_{a.kind}({yes})"
            elif no in known and not is_literal(b):
                no = f"opaque_{b.kind}({no})"
        return self.let(f"select({no}, {yes}, {c.text})", a.kind, joined(a.origin, b.origin))

    def bitcast(self, x: Any, to: Any) -> Term:
        a, kind = self.term(x), _kind(to)
        return self.let(f"bitcast<{kind}>({a.text})", kind, "sum")

    def convert(self, x: Any, to: Any) -> Term:
        a, kind = self.term(x), _kind(to)
        return self.let(f"{kind}({a.text})", kind)

    fpext = fptrunc = sitofp = fptosi = sext = trunc = convert

    def call(self, symbol: Any, arguments: Sequence[Any]) -> Term:
        terms = [self.term(a) for a in arguments]
        kind = terms[0].kind
        family, name, *_ = f"{symbol}.".split(".")
        if family == "llvm" and name == "fma":
            if not isinstance(arguments[2], Term):
                inner = self.fmul(arguments[0], arguments[1])
                return self.fadd(inner, terms[2])
            a, b, c = (t.text for t in terms)
            return self.let(f"fma_{kind}({a}, {b}, {c})", kind, "sum")
        builtin = {"fabs": "abs", "rint": "round", "floor": "floor", "trunc": "trunc",
                   "ceil": "ceil", "sqrt": "sqrt_f32" if kind == "f32" else "sqrt"}  # fmt: skip
        if family == "llvm" and name in builtin:
            return self.let(f"{builtin[name]}({terms[0].text})", kind)
        if family == "llvm" and name in ("copysign", "ldexp"):
            return self.let(f"{name}_{kind}({terms[0].text}, {terms[1].text})", kind)
        if family == "ruda":
            text = ", ".join(t.text for t in terms)
            return self.let(f"{name}_{kind}({text})", kind)
        raise NotImplementedError(f"{symbol} has no WGSL form")


_INFIX = {"add": "+", "sub": "-", "mul": "*", "and_": "&", "or_": "|", "xor": "^"}


def _kind(kind: Any) -> str:
    if isinstance(kind, str):
        return kind
    name = type(kind).__name__  # of llvmlite, which is not imported for this
    if name in ("FloatType", "DoubleType"):
        return "f32" if name == "FloatType" else "f64"
    assert name == "IntType"
    return "bool" if kind.width == 1 else f"i{kind.width}"


def _amount(b: Term) -> str:
    """A shift amount: always u32."""
    if b.text[0].isdigit():
        return b.text.removesuffix("i").removesuffix("l") + "u"
    return f"u32({b.text})"


# ---- functions -----------------------------------------------------------------------------------


@functools.cache
def define(name: str, kind: str) -> str | None:
    """The WGSL function of an IR operation for "f32" or "f64"; None where there is no formula."""
    name = NAMES.get(name, name)
    row = cpu().math.FUNCTIONS.get(name)
    if row is None or row.floats is None or row.library in ("tgamma", "lgamma"):
        return None
    kinds = cpu().math.inputs(row, kind)
    slow = cpu().slow.get(name)
    if slow is None:
        return _function(f"{name}_{kind}", row.floats, kinds)
    return _function(f"{name}_{kind}", slow.main, kinds, _long_way(name, kind, slow))


def _long_way(name: str, kind: str, slow: Any) -> tuple[Callable[..., Any], str]:
    arguments = "x, y" if slow.arity == 2 else "x"
    return slow.slow, f"long_{name}_{kind}({arguments})"


def _function(
    name: str,
    formula: Callable[..., Any],
    kinds: Sequence[str],
    slow: tuple[Callable[..., Any], str] | None = None,
) -> str:
    builder = Builder()
    values = [cpu().Value(builder, Term(n, k), k) for n, k in zip("xyz", kinds, strict=False)]
    lines: list[str] = []
    if slow is not None:
        rare = builder.term(slow[0](*values).llvm)
        lines = [*builder.lines, f"  if ({rare.text}) {{ return {slow[1]}; }}"]
    before = len(builder.lines)
    found = formula(*values)
    result = builder.term(found.llvm)
    lines += builder.lines[before:]
    head = ", ".join(f"{n}: {k}" for n, k in zip("xyz", kinds, strict=False))
    if len(kinds) == 1 and result.kind == kinds[0]:  # a driver may take comparisons of NaN for true
        lines.insert(0, f"  if (isnan_{kinds[0]}(x)) {{ return x; }}")
    body = "\n".join([*lines, f"  return {result.text};"])
    return f"fn {name}({head}) -> {result.kind} {{\n{body}\n}}\n"


@functools.cache
def define_complex(name: str, kind: str) -> str | None:
    """The WGSL function of an operation on complex numbers, as pairs of `kind`."""
    pair = f"vec2<{kind}>"
    arity = 2 if name in ("pow", "mul", "add", "sub") else 1
    formula = cpu().pairs.get(name)
    if formula is None:
        return None
    builder = Builder()
    names = ["x", "y"][:arity]
    values = [
        tuple(cpu().Value(builder, Term(f"{n}.{part}", kind), kind) for part in "xy") for n in names
    ]
    found = formula(*values)
    head = ", ".join(f"{n}: {pair}" for n in names)
    if isinstance(found, tuple):
        real, imaginary = (builder.term(v.llvm).text for v in found)
        result, text = pair, f"{pair}({real}, {imaginary})"
    else:
        term = builder.term(found.llvm)
        result, text = term.kind, term.text
    body = "\n".join([*builder.lines, f"  return {text};"])
    width = {"f32": "c64", "f64": "c128"}[kind]
    return f"fn {name}_{width}({head}) -> {result} {{\n{body}\n}}\n"
