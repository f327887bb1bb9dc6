"""Bad input: each kind is refused with the right class, the place underlined, and a remedy.

A row is a kernel's body, the text that must be underlined, the class and words of the message. The
text is the same on every device, so the rows run on all of them.
"""

from __future__ import annotations

import linecache
import pickle
import re
import textwrap
import traceback
from dataclasses import dataclass

import numpy as np
import pytest

import ruda
from ruda import errors
from tests.jit.source import define

Unsupported = errors.UnsupportedError
TypeErr = errors.KernelTypeError
NameErr = errors.KernelNameError
ValueErr = errors.KernelValueError


@dataclass(frozen=True)
class Row:
    """A body with parameters `x, out` (float32 arrays) unless told, and what must be said of it."""

    body: str
    under: str
    error: type[errors.KernelError]
    message: str
    hint: str = ""
    parameters: str = "x, out"
    types: tuple[str, ...] = ("f32[:]", "f32[:]")
    before: str = ""  # module text before the kernel
    block: int = 32

    def __repr__(self) -> str:
        return re.sub(r"\W+", "_", self.body.strip().splitlines()[-1])[:40].strip("_")


def kernel_of(row: Row):
    body = textwrap.indent(textwrap.dedent(row.body).strip("\n"), "    ")
    before = textwrap.dedent(row.before)
    return define(f"import math\n{before}\n@ruda.jit\ndef kernel({row.parameters}):\n{body}\n")


def argument(text: str):
    if "[" not in text:
        return {"int": 3, "float": 0.5}.get(text) or np.dtype(text).type(1)
    name, axes = text.rstrip("]").split("[")
    return np.zeros((4,) * axes.count(":"), ruda.dtypes.as_dtype(name).numpy)


def underlined(error: errors.KernelError) -> str:
    line = linecache.getline(error.filename, error.lineno)
    end = error.end_offset - 1 if error.end_lineno == error.lineno else None
    return line[error.offset - 1 : end].strip()


SYNTAX = [
    Row("try:\n    out[0] = 1\nexcept ValueError:\n    pass", "try:", Unsupported, "try"),
    Row("with x:\n    out[0] = 1", "with x:", Unsupported, "with"),
    Row("f = lambda a: a\nout[0] = f(1)", "lambda a: a", Unsupported, "lambda"),
    Row("def inner(a):\n    return a\nout[0] = inner(1)", "def inner", Unsupported, "nested"),
    Row("class A:\n    pass", "class A:", Unsupported, "class"),
    Row("yield x[0]", "yield x[0]", Unsupported, "yield"),
    Row("out[0] = sum(a for a in x)", "(a for a in x)", Unsupported, "generator"),
    Row("a = [1, 2]", "[1, 2]", Unsupported, "list"),
    Row("a = {1: 2}", "{1: 2}", Unsupported, "dict"),
    Row("a = {1, 2}", "{1, 2}", Unsupported, "set"),
    Row("a = [k for k in range(3)]", "[k for k in range(3)]", Unsupported, "list"),
    Row("a = {k for k in range(3)}", "{k for k in range(3)}", Unsupported, "set"),
    Row("a = {k: k for k in range(3)}", "{k: k for k in range(3)}", Unsupported, "dict"),
    Row('a = f"{x[0]}"\nout[0] = a', 'f"{x[0]}"', Unsupported, "f-string"),
    Row("global counter\nout[0] = 1", "global counter", Unsupported, "global"),
    Row("del x", "del x", Unsupported, "del"),
    Row("import math as m", "import math as m", Unsupported, "import"),
    Row("from math import sin", "from math import sin", Unsupported, "import"),
    Row("match x[0]:\n    case 1:\n        pass", "match x[0]:", Unsupported, "match"),
    Row('raise ValueError("no")', 'raise ValueError("no")', Unsupported, "raise"),
    Row("out[0] = x is out", "x is out", Unsupported, "is"),
    Row("out[0] = 1 in x", "1 in x", Unsupported, "in"),
    Row("out[0] = x @ x", "x @ x", Unsupported, "@"),
    Row('a = "abc".upper()', '"abc".upper()', (Unsupported, TypeErr), "upper"),
    Row('a = b"abc"', 'b"abc"', Unsupported, "bytes"),
    Row("a = x[0] if x else 0", "x", TypeErr, "truth value"),
    Row("out[None, 0] = 1", "out[None, 0]", (Unsupported, TypeErr), ""),
    Row("print(*x)", "*x", (Unsupported, TypeErr), ""),
    Row("pass", "rest", Unsupported, "*rest", parameters="x, out, *rest"),
    Row("pass", "rest", Unsupported, "`**rest`", parameters="x, out, **rest"),
    Row("return x[0]", "return x[0]", TypeErr, "returns nothing", "array argument"),
    Row("b: int\nout[0] = b", "b", NameErr, "b"),
    Row("while True:\n    async_ = await_\n", "await_", NameErr, "await_"),
]

NAMES = [
    Row("out[0] = undefined_name", "undefined_name", NameErr, "`undefined_name` is not defined"),
    Row("out[0] = undefined(x[0])", "undefined", NameErr, "`undefined` is not defined"),
    Row("out[0] = math.sine(x[0])", "math.sine", NameErr, "sine", "sin"),
    Row("i = ruda.gird(1)", "ruda.gird", NameErr, "gird", "grid"),
    Row("ruda.atomic.ad(out, 0, 1)", "ruda.atomic.ad", NameErr, "ad", "add"),
    Row("out[0] = ruda.threadIdx.w", "ruda.threadIdx.w", (NameErr, TypeErr), "x, y and z"),
    Row("out[0] = value\nvalue = 1", "value", NameErr, "before"),
    Row("out[0] = x.length", "x.length", (NameErr, TypeErr), "length"),
    Row("outt = x[0]\nout[0] = otu", "otu", NameErr, "`otu` is not defined", "out"),
    Row(
        "out[0] = outer(x[0])",
        "missing",
        NameErr,
        "`missing` is not defined",
        before="""
        @ruda.jit
        def inner(a):
            return a + missing
        @ruda.jit
        def outer(a):
            return inner(a) * 2
        """,
    ),
]

TYPES = [
    Row('out[0] = x[0] + "1"', 'x[0] + "1"', TypeErr, "float32", ""),
    Row('out[0] = "1"', "out[0]", TypeErr, "str"),
    Row("k = int(x[0])\nprint('%d' % k)", "'%d' % k", Unsupported, "text", 'print(f"{i}")'),
    Row("k = int(x[0])\nprint('k=' + str(k))", "str(k)", Unsupported, "`str`", 'print(f"{i}")'),
    Row('print("{}".format(x[0]))', '"{}".format', Unsupported, "format", 'print(f"{i}")'),
    Row('print(f"{x[0]:d}")', "x[0]", ValueErr, "`d` does not format float32"),
    Row('k = int(x[0])\nprint(f"{k:zz}")', "k", ValueErr, "`zz` does not format"),
    Row("print(x)", "x", TypeErr, "float32[:", "loop"),
    Row("t = np.zeros(3)", "np.zeros(3)", Unsupported, "`np.zeros`", "ruda.local.array(3"),
    Row("t = np.empty_like(x)", "np.empty_like(x)", Unsupported, "`np.empty_like`", "local.array"),
    Row(
        "out[0] = np.random.rand()",
        "np.random.rand()",
        Unsupported,
        "`np.random.rand`",
        "ruda.random",
    ),
    Row("out[0] = np.linalg.norm(x)", "np.linalg.norm(x)", Unsupported, "`np.linalg.norm`"),
    Row(
        "out[0] = random.random()",
        "random.random()",
        Unsupported,
        "`random.random`",
        "ruda.random",
        before="import random",
    ),
    Row(
        "logging.info('x')",
        "logging.info('x')",
        Unsupported,
        "`logging.info`",
        "kernels may call",
        before="import logging",
    ),
    Row("out[0] = math.ulp(x[0])", "math.ulp(x[0])", Unsupported, "`math.ulp`", "nextafter"),
    Row(
        "out[0] = x[ruda.threadIdx]", "x[ruda.threadIdx]", TypeErr, "threadIdx", "ruda.threadIdx.x"
    ),
    Row("ruda.syncthreads", "ruda.syncthreads", TypeErr, "alone does nothing", "syncthreads()"),
    Row(
        "TABLE[0] = 5", "TABLE[0]", TypeErr, "`TABLE` is a captured", before="TABLE = np.arange(4)"
    ),
    Row("out[0] = out.item(0, 0)", "out.item(0, 0)", TypeErr, "1 indices or one flat"),
    Row("k = int(x[0])\nout[0] = k ** -2", "k ** -2", TypeErr, "negative power -2", "float(x)"),
    Row("out[0] = np.int32(2) ** -1", "np.int32(2) ** -1", TypeErr, "negative power -1", "float"),
    Row(
        "out[:] = out[::-1]",
        "out[:]",
        Unsupported,
        "may overlap: both are parts of `out`",
        "write the loop",
    ),
    Row(
        "out[0] = sign(x[0])",
        "if z > 0:",
        TypeErr,
        "not every path of `sign` returns a value",
        "return",
        before="""
        @ruda.jit(device=True)
        def sign(z):
            if z > 0:
                return 1
        """,
    ),
    Row(
        "out[0] = nothing(x[0])",
        "nothing(x[0])",
        TypeErr,
        "`nothing` returns nothing",
        before="""
        @ruda.jit(device=True)
        def nothing(z):
            z + 1
        """,
    ),
    Row("out[0] = x", "out[0]", TypeErr, "float32[:]"),
    Row(
        "a = x\nif out[0] > 0:\n    a = 1.0\nout[0] = a",
        "a = 1.0",
        TypeErr,
        "a variable has one type",
    ),
    Row(
        "a = 1.0\nif out[0] > 0:\n    a = x\nout[0] = 1",
        "a = x",
        TypeErr,
        "a variable has one type",
    ),
    Row(
        "a = (1, 2)\nif x[0] > 0:\n    a = (1, 2, 3)\nout[0] = a[0]",
        "a = (1, 2, 3)",
        TypeErr,
        "tuple of 2",
    ),
    Row("a, b = (1, 2, 3)", "a, b = (1, 2, 3)", TypeErr, "3"),
    Row("a, b = x[0]", "a, b = x[0]", TypeErr, "unpack"),
    Row("out[0] = x[0](1)", "x[0](1)", TypeErr, "called"),
    Row("out[0] = x[0][0]", "x[0][0]", TypeErr, "index"),
    Row("out[0] = x[0, 1]", "x[0, 1]", TypeErr, "has 1 axis and takes as many indices, not 2"),
    Row("out[0] = x[0.5]", "0.5", TypeErr, "integer"),
    Row("out[0] = x[x[0]]", "x[0]", TypeErr, "integer", "int"),
    Row("out[0] = x[0] & 1", "x[0] & 1", TypeErr, "float32"),
    Row("out[0] = ~x[0]", "~x[0]", TypeErr, "float32"),
    Row("out[0] = x[0] << 2", "x[0] << 2", TypeErr, "float32"),
    Row("for k in x[0]:\n    out[0] = k", "x[0]", TypeErr, "loop over"),
    Row("for k in range(x[0]):\n    out[0] = k", "x[0]", TypeErr, "integer"),
    Row("for k in range(0, 4, 0):\n    out[0] = k", "for k in range(0, 4, 0):", ValueErr, "step"),
    Row("out[0] = len(x[0])", "len(x[0])", TypeErr, "length"),
    Row("out[0] = math.sqrt(x)", "math.sqrt(x)", (TypeErr, Unsupported), ""),
    Row("out[0] = math.sqrt(x[0], 2)", "math.sqrt(x[0], 2)", TypeErr, "1 argument, not 2"),
    Row("ruda.grid(4)", "ruda.grid(4)", ValueErr, "1, 2 or 3"),
    Row("out[0] = x + x", "x + x", (TypeErr, Unsupported), "", "a thread computes one element"),
    Row("x.size = 3", "x.size", TypeErr, "size"),
    Row("t = (1, 2)\nt[0] = 3", "t[0]", TypeErr, "tuple"),
    Row(
        "out[0] = x[0] < z[0]",
        "x[0] < z[0]",
        TypeErr,
        "complex",
        parameters="x, out, z",
        types=("f32[:]", "f32[:]", "c64[:]"),
    ),
    Row(
        "out[0] = z[0]",
        "out[0]",
        TypeErr,
        "complex",
        "real",
        parameters="x, out, z",
        types=("f32[:]", "f32[:]", "c64[:]"),
    ),
    Row(
        "out[0] = device(x[0])",
        "device(x[0])",
        TypeErr,
        "'b'",
        before="@ruda.jit\ndef device(a, b):\n    return a",
    ),
    Row(
        "out[0] = device(a=x[0], c=1)",
        "device(a=x[0], c=1)",
        TypeErr,
        "c",
        before="@ruda.jit\ndef device(a, b):\n    return a",
    ),
    Row(
        "out[0] = plain(x[0])",
        "plain(x[0])",
        Unsupported,
        "plain Python function",
        "ruda.jit",
        before="def plain(a):\n    return a",
    ),
    Row("out[0] = open(x[0])", "open(x[0])", Unsupported, "open"),
    Row("out[0] = np.fft.fft(x)", "np.fft.fft(x)", (Unsupported, NameErr), "fft"),
    Row("a = np.zeros(3)", "np.zeros(3)", Unsupported, "zeros", ""),
    Row(
        "out[0] = table['a']",
        "table['a']",
        (TypeErr, Unsupported),
        "dict",
        before="table = {'a': 1}",
    ),
    Row("out[0] = table[0]", "table[0]", (TypeErr, Unsupported), "list", before="table = [1, 2]"),
    Row("table[0] = 1.0", "table[0]", TypeErr, "captured", "argument", before="table = np.ones(3)"),
    Row(
        "out[0] = words[0]",
        "words",
        (TypeErr, Unsupported),
        "words",
        before="words = np.array(['a'])",
    ),
]

VALUES = [
    Row("out[0] = 300", "300", ValueErr, "300", types=("f32[:]", "u8[:]")),
    Row("out[0] = -1", "-1", ValueErr, "-1", types=("f32[:]", "u32[:]")),
    Row("out[0] = min(x[0], 300)", "300", ValueErr, "300", types=("i8[:]", "i8[:]")),
    Row(
        "out[0] = x[0] + 5000000000",
        "5000000000",
        ValueErr,
        "5000000000",
        types=("i32[:]", "i32[:]"),
    ),
    Row("out[0] = (1, 2)[2]", "(1, 2)[2]", ValueErr, "2"),
    Row(
        "a = ruda.local.array(3, ruda.float32)\na[3] = 1\nout[0] = a[0]",
        "a[3]",
        ValueErr,
        "out of range",
    ),
    Row("ruda.shared.array(-1, np.int8)", "ruda.shared.array(-1, np.int8)", ValueErr, "negative"),
    Row(
        "a = ruda.shared.array(x.size, ruda.float32)",
        "ruda.shared.array(x.size, ruda.float32)",
        (ValueErr, Unsupported, TypeErr),
        "known when the kernel is compiled",
    ),
    Row(
        "a = ruda.local.array(ruda.grid(1), ruda.float32)",
        "ruda.local.array(ruda.grid(1), ruda.float32)",
        (ValueErr, Unsupported, TypeErr),
        "known when the kernel is compiled",
    ),
    Row("a = ruda.local.array(3, 7)", "ruda.local.array(3, 7)", (TypeErr,), "dtype"),
    Row("a = ruda.local.array(3, 'f33')", "ruda.local.array(3, 'f33')", (TypeErr,), "f33"),
    Row("for k in ruda.unroll(range(x.size)):\n    pass", "for k in ruda.unroll(range(x.size)):",
        (ValueErr, Unsupported, TypeErr), "known when the kernel is compiled", "constexpr"),
    Row("for k in ruda.unroll(range(10**9)):\n    x[0] += k", "for k in ruda.unroll(range(10**9)):",
        ValueErr, "at most 65536 times", "leave `unroll` out"),
    Row("for k in ruda.unroll(range(-2**62, 2**62 + 5)):\n    x[0] += k",
        "for k in ruda.unroll(range(-2**62, 2**62 + 5)):", ValueErr, "at most 65536 times"),
    Row("for k in ruda.unroll(range(3, 4, 0)):\n    x[0] += k",
        "for k in ruda.unroll(range(3, 4, 0)):", ValueErr, "a step of `range` cannot be 0"),
    Row("ruda.atomic.and_(out, 0, 1)", "ruda.atomic.and_(out, 0, 1)", TypeErr, "integers"),
    Row("ruda.atomic.add(out, (0, 1), 1)", "ruda.atomic.add(out, (0, 1), 1)", TypeErr, "1 ind"),
    Row("ruda.atomic.add(x[0], 0, 1)", "ruda.atomic.add(x[0], 0, 1)", TypeErr, "array"),
]  # fmt: skip

RECURSION = [
    Row(
        "out[0] = down(x[0])",
        "down(n - 1)",
        Unsupported,
        "recursion",
        before="""
        @ruda.jit
        def down(n):
            return 0 if n < 1 else down(n - 1)
        """,
    ),
    Row(
        "out[0] = ping(x[0])",
        "ping(n)",
        Unsupported,
        "ping",
        before="""
        @ruda.jit
        def ping(n):
            return pong(n)
        @ruda.jit
        def pong(n):
            return ping(n)
        """,
    ),
]

LAUNCHES_INSIDE = [
    Row(call, under, Unsupported, "a kernel cannot launch a kernel (`other`)", "device function",
        before="@ruda.jit\ndef other(x):\n    x[0] = 1\n")
    for call, under in (
        ("other[1, 1](x)", "other[1, 1]"),
        ("k = other[ruda.grid(1), 32]\nk(x)", "other[ruda.grid(1), 32]"),
        ("other.forall(3)(x)", "other.forall(3)"),
    )
]  # fmt: skip
BARRIERS = [
    Row(
        "if ruda.threadIdx.x < 3:\n    ruda.syncthreads()",
        "ruda.syncthreads()",
        errors.DivergentBarrierError,
        "not every thread",
    ),
    Row(
        "for k in range(ruda.threadIdx.x):\n    ruda.syncthreads()",
        "ruda.syncthreads()",
        errors.DivergentBarrierError,
        "not every thread",
    ),
    Row(
        "i = ruda.grid(1)\nwhile i > 0:\n    ruda.syncthreads()\n    i -= 1",
        "ruda.syncthreads()",
        errors.DivergentBarrierError,
        "not every thread",
    ),
    Row(
        "if ruda.laneid == 0:\n    out[0] = ruda.syncthreads_count(True)",
        "ruda.syncthreads_count(True)",
        errors.DivergentBarrierError,
        "not every thread",
    ),
]


@pytest.mark.parametrize(
    "row", SYNTAX + NAMES + TYPES + VALUES + RECURSION + BARRIERS + LAUNCHES_INSIDE, ids=repr
)
def test_refusal(row, device):
    kernel = kernel_of(row)
    arguments = [argument(t) for t in row.types]
    with pytest.raises(row.error) as caught, ruda.config(device=device):
        kernel[1, row.block](*arguments)
    error = caught.value
    notes = "\n".join(getattr(error, "__notes__", []))
    assert underlined(error) == row.under
    assert row.message in str(error)
    if row.hint:
        assert "hint:" in notes and row.hint in notes
    assert "while translating kernel `kernel`" in notes
    assert isinstance(error, SyntaxError) and isinstance(error, errors.RudaError)
    printed = "".join(traceback.format_exception(error))
    assert "^" in printed and row.under.splitlines()[0] in printed
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.__notes__, type(copy)) == (str(error), error.__notes__, type(error))


def test_the_chain_of_calls_is_named():
    row = next(r for r in NAMES if r.under == "missing")
    with pytest.raises(NameErr) as caught:
        kernel_of(row)[1, 1](np.zeros(4, np.float32), np.zeros(4, np.float32))
    notes = "\n".join(caught.value.__notes__)
    assert re.search(r"called from `outer`.*\n.*called from `kernel`", notes)


def test_the_argument_types_are_named():
    kernel = define("@ruda.jit\ndef kernel(x, k):\n    x[0] = nothing\n")
    with pytest.raises(NameErr) as caught:
        kernel[1, 1](np.zeros((2, 2)), np.int16(3))
    assert "float64[:, ::1], int16" in "\n".join(caught.value.__notes__)


# ------------------------------------------------------------------------------------- launches


@ruda.jit
def store(x, value):
    i = ruda.grid(1)
    if i < x.size:
        x[i] = value


@ruda.jit
def add(x, y):
    i = ruda.grid(1)
    if i < x.size:
        x[i] += y[i]


@ruda.jit(device=True)
def helper(x):
    return x


ONE = np.zeros(1, np.float32)
LaunchType, LaunchValue = errors.LaunchTypeError, errors.LaunchValueError

LAUNCHES = [
    ("float_grid", lambda: store[2.0, 32](ONE, 1), LaunchType, "integers, not float"),
    ("float_block", lambda: store[2, 32.0](ONE, 1), LaunchType, "integers, not float"),
    ("divided_grid", lambda: store[10 / 5, 32](ONE, 1), LaunchType, "//"),
    ("zero_grid", lambda: store[0, 32](ONE, 1), LaunchValue, "at least 1"),
    ("zero_block", lambda: store[1, 0](ONE, 1), LaunchValue, "at least 1"),
    ("negative_grid", lambda: store[-1, 32](ONE, 1), LaunchValue, "at least 1"),
    ("zero_in_tuple", lambda: store[(1, 0), 32](ONE, 1), LaunchValue, "at least 1"),
    ("large_block", lambda: store[1, 2048](ONE, 1), LaunchValue, "1024"),
    ("large_block_2d", lambda: store[1, (64, 32)](ONE, 1), LaunchValue, "2048 threads"),
    ("large_grid", lambda: store[2**31, 32](ONE, 1), LaunchValue, "larger"),
    ("huge_grid", lambda: store[10**30, 32](ONE, 1), LaunchValue, "larger"),
    ("four_dimensions", lambda: store[(1, 1, 1, 1), 32](ONE, 1), LaunchValue, "1 to 3"),
    ("no_dimension", lambda: store[(), 32](ONE, 1), LaunchValue, "1 to 3"),
    ("text_grid", lambda: store["2", 32](ONE, 1), LaunchType, "str"),
    ("grid_alone", lambda: store[2](ONE, 1), errors.LaunchError, "[grid, block]"),
    ("no_grid", lambda: store(ONE, 1), LaunchType, "[blocks, threads]"),
    ("too_few_arguments", lambda: store[1, 32](ONE), LaunchType, "2 arguments (x, value), not 1"),
    ("too_many_arguments", lambda: store[1, 32](ONE, 1, 2), LaunchType, "not 3"),
    ("negative_shared", lambda: store[1, 32, 0, -4](ONE, 1), LaunchValue, "-4"),
    ("device_function", lambda: helper[1, 32](1), LaunchType, "device function"),
    ("device_called", lambda: helper(1), LaunchType, "device function"),
    ("list", lambda: store[1, 32]([1.0], 1), LaunchType, "list"),
    ("dict", lambda: store[1, 32]({}, 1), LaunchType, "dict"),
    ("text", lambda: store[1, 32](ONE, "a"), (LaunchType, TypeErr), ""),
    ("module", lambda: store[1, 32](np, 1), LaunchType, "module"),
    ("object", lambda: store[1, 32](np.array([None]), 1), LaunchType, "object"),
    ("strings", lambda: store[1, 32](np.array(["a"]), 1), LaunchType, "U1"),
    ("bytes", lambda: store[1, 32](np.array([b"a"]), 1), LaunchType, "S1"),
    ("dates", lambda: store[1, 32](np.array(["2020"], "M8[s]"), 1), LaunchType, "datetime64"),
    ("big_endian", lambda: store[1, 32](np.zeros(1, ">f4"), 1), LaunchType, ">f4"),
    ("long_double", lambda: store[1, 32](np.zeros(1, np.longdouble), 1), LaunchType, "float128"),
    ("integer_too_large", lambda: store[1, 32](ONE, 2**70), OverflowError, str(2**70)),
    (
        "integer_does_not_fit",
        lambda: store[1, 32](np.zeros(1, np.int8), 300),
        OverflowError,
        "300",
    ),
    ("negative_for_unsigned", lambda: store[1, 32](np.zeros(1, np.uint8), -1), OverflowError, "-1"),
]


@pytest.mark.parametrize(
    ("launch", "error", "message"),
    [row[1:] for row in LAUNCHES],
    ids=[row[0] for row in LAUNCHES],
)
def test_bad_launch(launch, error, message, device):
    with pytest.raises(error) as caught, ruda.config(device=device):
        launch()
    assert message in str(caught.value)
    assert ONE[0] == 0


def test_read_only_array_written(device):
    x = np.zeros(4, np.float32)
    x.flags.writeable = False
    with pytest.raises(TypeErr, match="read-only") as caught, ruda.config(device=device):
        store[1, 32](x, 1)
    assert underlined(caught.value) == "x[i]" and "copy" in str(caught.value.__notes__)
    assert not x.any()


def test_read_only_array_read(device):
    x, y = np.zeros(4, np.float32), np.ones(4, np.float32)
    y.flags.writeable = False
    with ruda.config(device=device):
        add[1, 32](x, y)
    assert x.tolist() == [1] * 4


def test_shapes_may_differ_but_not_the_number_of_axes(device):
    with ruda.config(device=device):
        add[1, 32](np.zeros(3, np.float32), np.ones(5, np.float32))
        with pytest.raises((TypeErr, Unsupported), match="float32"):
            add[1, 32](np.zeros(3, np.float32), np.ones((5, 5), np.float32))


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.zeros(0, np.float32),
        lambda: np.zeros((0, 3), np.float32)[:, 1],
        lambda: np.zeros(9, np.float32)[::2],
        lambda: np.zeros(9, np.float32)[::-1],
        lambda: np.frombuffer(bytearray(13), np.uint8)[1:].view(np.float32),  # misaligned
        lambda: np.zeros(3, [("a", np.int8), ("b", np.float32)])["b"],  # misaligned and strided
    ],
    ids=["empty", "empty_column", "strided", "reversed", "misaligned", "field"],
)
def test_arrays_of_every_layout_work(make, device):
    x = make()
    with ruda.config(device=device):
        store[1, 32](x, 2.5)
    assert x.tolist() == [2.5] * x.size


def test_zero_dimensional_array(device):
    @ruda.jit
    def fill(x):
        x[()] = 7

    x = np.zeros((), np.float32)
    with ruda.config(device=device):
        fill[1, 1](x)
    assert x == 7


# -------------------------------------------------------------------------------------- sources


def test_lambda_kernel():
    with pytest.raises(errors.SourceUnavailableError, match="lambda"):
        ruda.jit(lambda x: x)[1, 1](ONE)


def test_source_that_python_did_not_keep():
    namespace = {"ruda": ruda}
    exec("def kernel(x):\n    x[0] = 1\n", namespace)
    with pytest.raises(errors.SourceUnavailableError, match="linecache") as error:
        ruda.jit(namespace["kernel"])[1, 1](ONE)
    # What the error says to do works, as it is written.
    text, name = "@ruda.jit\ndef kernel(x):\n    x[0] = 5\n", "<made by the advice>"
    making = 'compile(text, name, "exec")'
    keeping = "linecache.cache[name] = (len(text), None, text.splitlines(True), name)"
    assert making in str(error.value) and keeping in str(error.value)
    followed = {"text": text, "name": name, **namespace}
    exec(f"import linecache\n{keeping}\nexec({making})", followed)
    x = np.zeros(1, np.float32)
    followed["kernel"][1, 1](x)
    assert x[0] == 5


def test_executed_source_in_linecache(device):
    kernel = define("@ruda.jit\ndef kernel(x):\n    x[0] = 5\n")
    x = np.zeros(1, np.float32)
    with ruda.config(device=device):
        kernel[1, 1](x)
    assert x[0] == 5


@pytest.mark.parametrize("thing", [3, "kernel", print, len, int, type("A", (), {})])
def test_things_that_are_not_functions(thing):
    with pytest.raises((TypeError, errors.RudaError)):
        ruda.jit(thing)[1, 1](ONE)


def test_async_and_generator_functions():
    for text in ("async def kernel(x):\n    x[0] = 1\n", "def kernel(x):\n    yield x[0]\n"):
        with pytest.raises(errors.RudaError):
            define("@ruda.jit\n" + text)[1, 1](ONE)


def test_other_decorators_are_refused():
    """A decorator above or below changes the function: its source is not the whole truth."""
    text = """
import functools
def twice(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        function(*arguments)
        function(*arguments)
    return wrapper
@ruda.jit
@twice
def kernel(x):
    x[0] += 1
"""
    with pytest.raises(errors.RudaError):
        define(text)[1, 1](np.zeros(1, np.float32))


def test_unknown_options():
    with pytest.raises(TypeError, match="fastmaht"):
        ruda.jit(fastmaht=True)


def test_unknown_device():
    with pytest.raises(errors.DeviceNotFoundError, match="nowhere"), ruda.config(device="nowhere"):
        store[1, 1](ONE, 1)


# ----------------------------------------------------------------------- kernels that change


def test_a_global_that_changes_between_launches(device):
    kernel = define("scale = 2\n@ruda.jit\ndef kernel(x):\n    x[0] = scale\n")
    x = np.zeros(1, np.float32)
    with ruda.config(device=device):
        for value in (2, 3, 2, 0.5):
            kernel.py_func.__globals__["scale"] = value
            kernel[1, 1](x)
            assert x[0] == value
        del kernel.py_func.__globals__["scale"]
        with pytest.raises(NameErr, match="scale"):
            kernel[1, 1](x)


def test_a_closure_cell_that_changes(device):
    value = 1

    @ruda.jit
    def kernel(x):
        x[0] = value

    x = np.zeros(1, np.float32)
    with ruda.config(device=device):
        for value in (1, 4, 1):
            kernel[1, 1](x)
            assert x[0] == value


def test_a_captured_array_that_changes(device):
    table = np.array([1.0, 2.0])

    @ruda.jit
    def kernel(x):
        x[0] = table[1]

    x = np.zeros(1, np.float32)
    with ruda.config(device=device):
        kernel[1, 1](x)
        table[1] = 7
        kernel[1, 1](x)
    assert x[0] == 7


def test_a_device_function_that_is_replaced(device):
    text = "@ruda.jit\ndef f(a):\n    return a + 1\n@ruda.jit\ndef kernel(x):\n    x[0] = f(x[0])\n"
    kernel = define(text)
    other = define("@ruda.jit\ndef f(a):\n    return a * 10\n", "f")
    x = np.ones(1, np.float32)
    with ruda.config(device=device):
        kernel[1, 1](x)
        kernel.py_func.__globals__["f"] = other
        kernel[1, 1](x)
    assert x[0] == 20


def test_kernels_redefined_in_a_loop(device):
    x = np.zeros(1, np.float32)
    with ruda.config(device=device):
        for value in range(5):
            kernel = define(f"@ruda.jit\ndef kernel(x):\n    x[0] = {value}\n")
            kernel[1, 1](x)
            assert x[0] == value


def test_an_error_does_not_stick(device):
    """After a refused launch the same kernel works with arguments that suit it."""

    @ruda.jit
    def kernel(x, k):
        x[0] = x[k]

    x = np.array([1, 5], np.float32)
    with ruda.config(device=device):
        for _ in range(2):
            with pytest.raises(TypeErr):
                kernel[1, 1](x, np.float32(1))
        kernel[1, 1](x, 1)
    assert x[0] == 5


def test_kernels_pickle():
    kernel = pickle.loads(pickle.dumps(store))
    x = np.zeros(3, np.float32)
    with ruda.config(device="sim"):
        kernel[1, 32](x, 2)
    assert x.tolist() == [2, 2, 2]
