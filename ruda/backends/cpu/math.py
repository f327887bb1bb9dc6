"""The scalar functions that compiled CPU kernels call: a table from name to formula.

`get("exp", "f32")` is a function for numba-compiled code; `FUNCTIONS` lists them all. Each emits
its formula (`elementary.py`, `integers.py`) as LLVM instructions in the place of the call, so
there is nothing to inline, nothing of numba's runtime in the object code, and no exception: the
loops around vectorise. The C library is called only where `external_symbols` says so.

glibc's vector library (libmvec) was tried and is not used: on the machines measured it is no
faster, and since the rest of a loop that does not fill a vector calls the scalar function, the
value of an element would depend on its place in the array. Here all forms compute the same bits.

float16 and bfloat16 are computed in float32 by the emitter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ruda.backends.cpu import elementary as e
from ruda.backends.cpu import float_parts as f
from ruda.backends.cpu import integers as i
from ruda.backends.cpu import remainders as r
from ruda.backends.cpu import trigonometric as t
from ruda.backends.cpu.values import Value, copysign, fabs, floor, fma, rint, sqrt, trunc
from ruda.errors import UnsupportedError

FLOATS = ("f32", "f64")
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


@dataclass(frozen=True)
class Row:
    """One function: how many arguments, which formula for which dtypes, what comes out."""

    arity: int
    floats: Callable[..., Value] | None = None
    integers: Callable[..., Value] | None = None
    result: str | None = None  # dtype of the result, where it is not that of the arguments
    second: str | None = None  # dtype of the second argument, likewise
    only: tuple[str, ...] = ()  # where not all dtypes of the kind have it
    library: str | None = None  # the C function that the float formula may call

    @property
    def dtypes(self) -> tuple[str, ...]:
        return self.only or (FLOATS if self.floats else ()) + (INTEGERS if self.integers else ())


# name: arity, formula for floats, for integers
FUNCTIONS: dict[str, Row] = {
    # roots and powers
    "sqrt": Row(1, sqrt),
    "rsqrt": Row(1, e.rsqrt),
    "cbrt": Row(1, e.cbrt),
    "hypot": Row(2, e.hypot),
    "pow": Row(2, e.power, i.integer_power),
    # exponentials and logarithms
    "exp": Row(1, e.exp),
    "exp2": Row(1, e.exp2),
    "exp10": Row(1, e.exp10),
    "expm1": Row(1, e.expm1),
    "log": Row(1, e.log),
    "log2": Row(1, e.log2),
    "log10": Row(1, e.log10),
    "log1p": Row(1, e.log1p),
    "sigmoid": Row(1, e.sigmoid),
    # trigonometry
    "sin": Row(1, t.SIN, library="sin"),
    "cos": Row(1, t.COS, library="cos"),
    "tan": Row(1, t.TAN, library="tan"),
    "sinpi": Row(1, t.sinpi),
    "cospi": Row(1, t.cospi),
    "asin": Row(1, t.asin),
    "acos": Row(1, t.acos),
    "atan": Row(1, t.atan),
    "atan2": Row(2, t.atan2),
    "degrees": Row(1, t.degrees),
    "radians": Row(1, t.radians),
    # hyperbolic
    "sinh": Row(1, e.sinh),
    "cosh": Row(1, e.cosh),
    "tanh": Row(1, e.tanh),
    "asinh": Row(1, e.asinh),
    "acosh": Row(1, e.acosh),
    "atanh": Row(1, e.atanh),
    # special
    "erf": Row(1, e.erf),
    "erfc": Row(1, e.erfc),
    "gamma": Row(1, e.gamma, library="tgamma"),
    "lgamma": Row(1, e.lgamma, library="lgamma"),
    # division
    "fmod": Row(2, r.FMOD, library="fmod"),
    "floor_mod": Row(2, r.floor_mod, i.floor_mod, library="fmod"),
    "floor_div": Row(2, r.floor_div, i.floor_div, library="fmod"),
    "remainder": Row(2, r.REMAINDER, library="remainder"),
    # rounding and parts
    "floor": Row(1, floor),
    "ceil": Row(1, f.ceil),
    "trunc": Row(1, trunc),
    "round": Row(1, rint),
    "copysign": Row(2, copysign),
    "fma": Row(3, fma),
    "ldexp": Row(2, f.ldexp, second="i32"),
    "frexp_mantissa": Row(1, f.frexp_mantissa),
    "frexp_exponent": Row(1, f.frexp_exponent, result="i32"),
    "modf_fraction": Row(1, f.modf_fraction),
    "nextafter": Row(2, f.nextafter),
    "isnan": Row(1, f.isnan, result="bool"),
    "isinf": Row(1, f.isinf, result="bool"),
    "isfinite": Row(1, f.isfinite, result="bool"),
    "signbit": Row(1, f.signbit, result="bool"),
    "minimum": Row(2, f.minimum, i.minimum),
    "maximum": Row(2, f.maximum, i.maximum),
    "fmin": Row(2, f.fmin),
    "fmax": Row(2, f.fmax),
    "float_to_half": Row(1, i.float_to_half, result="u16", only=("f32",)),
    "half_to_float": Row(1, None, i.half_to_float, result="f32", only=("u16",)),
    # integers
    "abs": Row(1, fabs, i.absolute),
    "shl": Row(2, None, i.shl),
    "shr": Row(2, None, i.shr),
    "popc": Row(1, None, i.popc, result="i32"),
    "clz": Row(1, None, i.clz, result="i32"),
    "ffs": Row(1, None, i.ffs, result="i32"),
    "brev": Row(1, None, i.brev),
}


def external_symbols(name: str, dtype: str) -> tuple[str, ...]:
    """The C functions that the code of a function may call.

    On an x86 processor without FMA or SSE4.1 (before 2013) LLVM also calls fma, floor, ceil, trunc
    and rint, and nothing vectorises.
    """
    library = FUNCTIONS[name].library
    if library is None or dtype not in FLOATS:
        return ()
    own_float32 = dtype == "f32" and library not in ("tgamma", "lgamma")
    return (library + "f" * own_float32,)


EXTERNAL_SYMBOLS = tuple(
    sorted({s for name in FUNCTIONS for dtype in FLOATS for s in external_symbols(name, dtype)})
)


@functools.cache
def get(name: str, dtype: str) -> Any:
    """The function for code of numba's own target, for arguments of a dtype given as "f32".

    >>> import numba
    >>> exp_f32 = get("exp", "f32")
    >>> numba.njit(lambda x: exp_f32(x))(0.0)
    1.0
    """
    row = FUNCTIONS.get(name)
    if row is None or dtype not in row.dtypes:
        raise UnsupportedError(
            f"the CPU has no function {name!r} of {dtype}"
            + (f"; it is there for {', '.join(row.dtypes)}" if row else "")
        )
    from numba.extending import intrinsic

    kinds = inputs(row, dtype)
    signature = numba_type(row.result or dtype)(*map(numba_type, kinds))

    def codegen(context: Any, builder: Any, sig: Any, llvm: Any) -> Any:
        values = [Value(builder, v, d) for v, d in zip(llvm, kinds, strict=True)]
        return build(row, dtype, values).llvm

    # numba reads the names of the parameters, so a typer for each number of them.
    def typer1(_: Any, x: Any) -> Any:
        return signature, codegen

    def typer2(_: Any, x: Any, y: Any) -> Any:
        return signature, codegen

    def typer3(_: Any, x: Any, y: Any, z: Any) -> Any:
        return signature, codegen

    typer = {1: typer1, 2: typer2, 3: typer3}[row.arity]
    typer.__name__ = typer.__qualname__ = f"{name}_{dtype}"
    return intrinsic(typer)


def inputs(row: Row, dtype: str) -> list[str]:
    """The dtypes of the arguments."""
    return [dtype, row.second or dtype, dtype][: row.arity]


def build(row: Row, dtype: str, values: list[Value]) -> Value:
    """The formula, emitted where the values' builder stands."""
    formula = row.floats if dtype in FLOATS else row.integers
    assert formula is not None
    return formula(*values)


def numba_type(dtype: str) -> Any:
    from numba import types

    kinds = {"i": "int", "u": "uint", "f": "float"}
    return types.boolean if dtype == "bool" else getattr(types, kinds[dtype[0]] + dtype[1:])
