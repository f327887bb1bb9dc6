"""The CPU's scalar functions: accuracy, special values, exact operations, and the code itself."""

from __future__ import annotations

import math
import os
import platform
import re

import numpy as np
import pytest

pytest.importorskip("numba")

import mpmath
import numba

from benchmarks import accuracy
from ruda.backends.cpu import math as cpu
from ruda.backends.cpu import processor
from ruda.backends.cpu.compile import undefined_symbols
from ruda.backends.cpu.ulp import ULP
from ruda.errors import UnsupportedError
from ruda.jit import intrinsics

LONG = os.environ.get("RUDA_LONG_TESTS") == "1"
KIND = {"f32": np.float32, "f64": np.float64} | {
    f"{letter}{bits}": np.dtype(f"{name}{bits}").type
    for letter, name in (("i", "int"), ("u", "uint"))
    for bits in (8, 16, 32, 64)
}
EVERY = [(name, dtype) for name, row in cpu.FUNCTIONS.items() for dtype in row.dtypes]
CASES = [(name, dtype) for name in accuracy.CASES for dtype in ("f32", "f64")]
SCALAR = ("gamma", "lgamma")  # the C library's, one element at a time


def specials(dtype):
    kind = KIND[dtype]
    info = np.finfo(kind)
    positive = [
        *(0.0, info.smallest_subnormal, info.tiny - info.smallest_subnormal, info.tiny),
        *(1e-30, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 10.0, 100.0, 1e10, 2.0**24 - 1, 2.0**24),
        *(2.0**53 - 1, 2.0**54, info.max / 2, info.max, np.inf),
    ]
    with np.errstate(over="ignore"):
        x = np.array(positive, kind)
    near = np.nextafter(kind(1), np.array([0, 2], kind))
    return np.concatenate([x, -x, near, -near, np.array([np.nan], kind)])


def arguments_of(name, dtype, x):
    """All combinations of the numbers x, as one array per argument."""
    grids = np.meshgrid(*[x] * cpu.FUNCTIONS[name].arity, indexing="ij")
    return [np.ascontiguousarray(g.ravel()) for g in grids]


def sample(dtype, n, seed=0):
    """Numbers of all sizes, and some that are close to each other."""
    rng = np.random.default_rng(seed)
    if dtype in ("f32", "f64"):
        some = accuracy.every_exponent(n // 2, dtype, rng)
        return np.concatenate([some, rng.uniform(-20, 20, n - n // 2).astype(KIND[dtype])])
    info = np.iinfo(KIND[dtype])
    wide = rng.integers(info.min, info.max, n, dtype=KIND[dtype], endpoint=True)
    # Any bit length, as often
    return np.where(
        rng.random(n) < 0.5, wide >> rng.integers(0, info.bits, n).astype(wide.dtype), wide
    )


def same(computed, wanted):
    """Equal, NaN with NaN, and zeros of the same sign."""
    computed, wanted = np.asarray(computed), np.asarray(wanted)
    equal = computed == wanted
    if computed.dtype.kind == "f":
        equal = (equal & (np.signbit(computed) == np.signbit(wanted))) | (
            np.isnan(computed) & np.isnan(wanted)
        )
    return equal


def check(computed, wanted, *arguments):
    right = same(computed, wanted)
    at = np.flatnonzero(~right)[:5]
    message = [(tuple(a[k] for a in arguments), computed[k], wanted[k]) for k in at]
    assert right.all(), f"arguments, computed, wanted: {message}"


# ---- accuracy -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_error_is_within_the_documented_bound(name, dtype):
    error, where = accuracy.measure(name, dtype, *accuracy.QUICK)
    assert error <= ULP[name][dtype], where


def test_every_inexact_function_has_a_bound():
    exact = {name for name, row in cpu.FUNCTIONS.items() if row.floats} - set(ULP)
    assert exact == set(EXACT) | set(PARTS) | {"float_to_half", "fma", "ldexp"}
    assert max(max(row.values()) for row in ULP.values()) < 4.6


UNARY = [n for n in accuracy.CASES if cpu.FUNCTIONS[n].arity == 1 and n not in SCALAR]


@pytest.mark.parametrize("name", UNARY if LONG else [])
def test_error_of_float32_over_a_61st_of_all_numbers(name):
    error, where = accuracy.sweep(name)
    assert error <= ULP[name]["f32"], where


@pytest.mark.parametrize(("name", "dtype"), CASES if LONG else [])
@pytest.mark.parametrize("seed", range(7, 9))
def test_error_is_within_a_tenth_of_the_bound_on_new_samples(name, dtype, seed):
    error, where = accuracy.measure(name, dtype, 300_000, seed)
    assert error <= ULP[name][dtype] + 0.1, where


@pytest.mark.parametrize(("name", "dtype"), [c for c in CASES if c[0] not in SCALAR])
def test_special_values(name, dtype):
    arguments = arguments_of(name, dtype, specials(dtype))
    computed, exact, error = accuracy.errors(name, dtype, arguments)
    worst = int(np.argmax(error))
    assert error[worst] <= ULP[name][dtype], [a[worst] for a in arguments]
    with np.errstate(all="ignore"):
        rounded = exact.astype(KIND[dtype])
    zero = (computed == 0) & (rounded == 0)
    wrong = zero & (np.signbit(computed) != np.signbit(rounded))
    assert not wrong.any(), [a[wrong] for a in arguments]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_gamma_functions_at_special_values(dtype):
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, -2.0, 1.0, 5.0, 200.0], KIND[dtype])
    gamma = [np.nan, np.inf, np.nan, np.inf, -np.inf, np.nan, np.nan, 1.0, 24.0, np.inf]
    lgamma = [np.nan, *[np.inf] * 6, 0.0, math.lgamma(5.0), math.lgamma(200.0)]
    computed = accuracy.evaluate("gamma", dtype, x)
    np.testing.assert_allclose(computed, np.array(gamma, KIND[dtype]), 1e-6)
    assert np.signbit(computed[4])
    wanted = np.array(lgamma, KIND[dtype])
    np.testing.assert_allclose(accuracy.evaluate("lgamma", dtype, x), wanted, 1e-6)


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_arguments_of_very_many_periods(name, dtype):
    kind = KIND[dtype]
    powers = np.array([2.0**k for k in (14, 15, 16, 22, 23, 24, 60, 100, 127)], kind)
    x = np.concatenate([powers, powers * kind(1.2345678), np.nextafter(powers, kind(0))])
    mpmath.mp.prec = 1400
    exact = np.array([float(getattr(mpmath, name)(mpmath.mpf(float(v)))) for v in x])
    error = np.abs(accuracy.evaluate(name, dtype, x) - exact) / np.spacing(
        np.abs(exact).astype(kind)
    )
    assert error.max() <= ULP[name][dtype] + 0.5  # the oracle is rounded too


def test_exact_values_that_people_expect():
    def one(name, x):
        return float(accuracy.evaluate(name, "f32", np.array([x], np.float32))[0])

    assert one("exp", 0) == one("cos", 0) == one("cosh", 0) == one("exp2", 0) == 1.0
    assert [one("exp2", k) for k in (-149, -10, 10, 127)] == [2.0**k for k in (-149, -10, 10, 127)]
    assert [one("log2", 2.0**k) for k in (-149, -1, 0, 1, 127)] == [-149, -1, 0, 1, 127]
    assert one("sigmoid", 0) == 0.5
    assert [one("sinpi", x) for x in (0.5, 1.5, 2.5)] == [1, -1, 1]
    assert [one("cospi", x) for x in (0, 1, 2, 0.5)] == [1, -1, 1, 0]


# ---- exact operations ---------------------------------------------------------------------------

EXACT = {
    "fmod": np.fmod,
    "floor_mod": np.remainder,
    "floor_div": np.floor_divide,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.rint,
    "abs": np.fabs,
    "copysign": np.copysign,
    "nextafter": np.nextafter,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "fmin": np.fmin,
    "fmax": np.fmax,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "signbit": np.signbit,
}


def ieee_remainder(x, y):
    if np.isnan(x) or np.isnan(y) or np.isinf(x) or y == 0:
        return math.nan
    return math.remainder(x, y)


PARTS = {
    "frexp_mantissa": lambda x: np.frexp(x)[0],
    "frexp_exponent": lambda x: np.where(np.isfinite(x), np.frexp(x)[1], 0).astype(np.int32),
    "modf_fraction": lambda x: np.modf(x)[0],
    "remainder": lambda x, y: np.array(list(map(ieee_remainder, x, y)), x.dtype),
}


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", [*EXACT, *PARTS])
def test_exact_float_operations_match_numpy(name, dtype):
    meaning = (EXACT | PARTS)[name]
    arity = cpu.FUNCTIONS[name].arity
    n = 4000 if name == "remainder" else 20000
    random = [sample(dtype, n, seed) for seed in range(arity)]
    if arity == 2:  # many quotients that are small, or whole
        y = np.random.default_rng(9).integers(1, 50, n).astype(KIND[dtype]) / 4
        k = np.random.default_rng(8).integers(-400, 400, n).astype(KIND[dtype])
        random = [np.concatenate([random[0], y * k / 2, k]), np.concatenate([random[1], y, y])]
    for arguments in (random, arguments_of(name, dtype, specials(dtype))):
        with np.errstate(all="ignore"):
            wanted = meaning(*arguments)
        computed = accuracy.evaluate(name, dtype, *arguments)
        if name in ("minimum", "maximum", "fmin", "fmax"):  # NumPy's choice among zeros varies
            wanted, computed = wanted + KIND[dtype](0), computed + KIND[dtype](0)
        check(computed, wanted, *arguments)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_of_equal_operands_the_first_is_chosen(dtype):
    x = np.array([0.0, -0.0], KIND[dtype])
    for name in ("minimum", "maximum", "fmin", "fmax"):
        check(accuracy.evaluate(name, dtype, x, x[::-1].copy()), x, x)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_fma_rounds_once(dtype):
    x, y, z = (sample(dtype, 3000, seed) for seed in range(3))
    with np.errstate(all="ignore"):
        z[::2] = -x[::2] * y[::2]  # cancels but for the rounding
    finite = np.isfinite(x) & np.isfinite(y) & np.isfinite(z)
    x, y, z = x[finite], y[finite], z[finite]
    with np.errstate(all="ignore"):
        wanted = [intrinsics.TABLE["fma"].meaning(*xyz) for xyz in zip(x, y, z, strict=True)]
    check(accuracy.evaluate("fma", dtype, x, y, z), np.array(wanted, KIND[dtype]), x, y, z)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("native", [True, False])
def test_ldexp_rounds_once(dtype, native, monkeypatch):
    if native and not processor.has_scale():
        pytest.skip("this processor has no such instruction")
    monkeypatch.setattr(processor, "has_scale", lambda: native)
    x = np.concatenate([sample(dtype, 20000), specials(dtype)])
    n = np.random.default_rng(1).integers(-2400, 2400, x.size).astype(np.int32)
    n[:8000] //= 8
    n[-4:] = [2**31 - 1, -(2**31), 2**31 - 1, -(2**31)]
    with np.errstate(all="ignore"):
        wanted = np.ldexp(x, n)
    out = np.empty_like(x)
    loop("ldexp", dtype)(x, n, out)
    check(out, wanted, x, n)


def extremes(dtype):
    info = np.iinfo(KIND[dtype])
    near = [0, 1, 2, 3, 5, 7, 8, 10, 31, 32, 33, 63, 64, 65, 100, 127]
    values = [v for n in near for v in (n, -n, info.max - n, info.min + n)]
    return np.array([v for v in dict.fromkeys(values) if info.min <= v <= info.max], KIND[dtype])


TABLE_NAMES = {"floor_div": "floordiv", "floor_mod": "mod", "minimum": "min", "maximum": "max"}
INTEGER_ROWS = [
    (name, dtype)
    for name, dtype in EVERY
    if dtype in cpu.INTEGERS and name not in ("half_to_float",)
]


@pytest.mark.parametrize(("name", "dtype"), INTEGER_ROWS)
def test_integer_operations_match_the_definition(name, dtype):
    meaning = intrinsics.TABLE[TABLE_NAMES.get(name, name)].meaning
    if dtype in ("i8", "u8"):
        info = np.iinfo(KIND[dtype])
        numbers = np.arange(info.min, info.max + 1).astype(KIND[dtype])
        if cpu.FUNCTIONS[name].arity == 2:
            numbers = np.concatenate([numbers[::3], extremes(dtype)])
    else:
        numbers = extremes(dtype)
    sets = [arguments_of(name, dtype, numbers)]
    sets.append([sample(dtype, 2000, seed) for seed in range(cpu.FUNCTIONS[name].arity)])
    for arguments in sets:
        with np.errstate(all="ignore"):
            wanted = [meaning(*values) for values in zip(*arguments, strict=True)]
        check(accuracy.evaluate(name, dtype, *arguments), np.array(wanted), *arguments)


@pytest.mark.parametrize("dtype", ["i16", "u16", "i32", "u32"])
def test_quotients_through_floats_are_exact_at_the_boundaries(dtype):
    info, rng = np.iinfo(KIND[dtype]), np.random.default_rng(0)
    y = rng.integers(1, info.max, 100_000, dtype=np.int64) >> rng.integers(
        0, info.bits - 1, 100_000
    )
    y = np.maximum(y, 1)
    q = rng.integers(0, info.max // y + 1)
    sign = rng.choice([-1, 1], y.size) if info.min < 0 else 1
    for step in (-1, 0, 1):  # just below, at, and just above a whole quotient
        x = np.clip(q * y + step, 0, info.max) * sign
        kinds = x.astype(KIND[dtype]), y.astype(KIND[dtype])
        check(accuracy.evaluate("floor_div", dtype, *kinds), (x // y).astype(KIND[dtype]), *kinds)
        check(accuracy.evaluate("floor_mod", dtype, *kinds), (x % y).astype(KIND[dtype]), *kinds)


@pytest.mark.parametrize(
    ("dtype", "divisor"),
    [
        (d, n)
        for d in ("i32", "i64", "u32", "u8")
        for n in (1, 7, 64, 0, -1, -3)
        if d[0] == "i" or n >= 0
    ],
)
def test_division_by_a_literal(dtype, divisor):
    quotient, rest = cpu.get("floor_div", dtype), cpu.get("floor_mod", dtype)

    @numba.njit(error_model="numpy")
    def kernel(x, q, r):
        for j in range(x.size):
            q[j] = quotient(x[j], divisor)
            r[j] = rest(x[j], divisor)

    x = np.concatenate([extremes(dtype), sample(dtype, 1000)])
    q, r = np.empty_like(x), np.empty_like(x)
    kernel(x, q, r)
    d = KIND[dtype](divisor)
    check(q, np.array([intrinsics.TABLE["floordiv"].meaning(v, d) for v in x]), x)
    check(r, np.array([intrinsics.TABLE["mod"].meaning(v, d) for v in x]), x)
    if divisor > 0:
        text = kernel.inspect_asm(kernel.signatures[0])
        assert not re.search(r"\bv?i?div(ps|pd|ss|sd|[blqw])?\b", text)


@pytest.mark.parametrize("native", [True, False])
def test_float16_conversions(native, monkeypatch):
    if native and not processor.has_half_conversion():
        pytest.skip("this processor has no such instruction")
    monkeypatch.setattr(processor, "has_half_conversion", lambda: native)
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = np.empty(bits.size, np.float32)
    loop("half_to_float", "u16")(bits, values)
    check(values, bits.view(np.float16).astype(np.float32), bits)
    # All halves, the points between two of them, and their neighbours.
    finite = np.sort(values[np.isfinite(values)])
    middle = (finite[1:] + finite[:-1]) / 2
    up, down = (np.nextafter(middle, np.float32(s)) for s in (np.inf, -np.inf))
    x = np.concatenate([finite, middle, up, down, specials("f32"), sample("f32", 100_000)])
    x = np.concatenate([x, np.array([65519.99, 65520, 65536, 0x7F800001], np.float32)])
    x[-1] = np.array([0x7F800001], np.uint32).view(np.float32)[0]  # a NaN of low bits only
    out = np.empty(x.size, np.uint16)
    loop("float_to_half", "f32")(x, out)
    with np.errstate(over="ignore"):
        check(out.view(np.float16), x.astype(np.float16), x)
    again = np.empty(bits.size, np.uint16)
    loop("float_to_half", "f32")(values, again)
    number = ~np.isnan(values)
    check(again[number], bits[number], bits[number])


# ---- the code -----------------------------------------------------------------------------------


def loop(name, dtype):
    """A freshly compiled loop: for tests that change what the processor can do."""
    return accuracy.loop_of(cpu.get.__wrapped__(name, dtype), cpu.FUNCTIONS[name].arity)


FLOAT_ROWS = [(name, dtype) for name, dtype in EVERY if dtype in cpu.FLOATS]


def typical(name, dtype, n):
    row = cpu.FUNCTIONS[name]
    arguments = [sample(dtype, n, seed) for seed in range(row.arity)]
    if row.second:
        arguments[1] = np.random.default_rng(0).integers(-200, 200, n).astype(KIND[row.second])
    return arguments


@pytest.mark.parametrize(("name", "dtype"), FLOAT_ROWS)
def test_a_value_does_not_depend_on_its_place(name, dtype):
    arguments = typical(name, dtype, 131)
    whole = accuracy.evaluate(name, dtype, *arguments)
    for start, stop in ((0, 1), (3, 10), (5, 120)):
        part = accuracy.evaluate(name, dtype, *(a[start:stop].copy() for a in arguments))
        check(part, whole[start:stop])
    for k in range(0, 131, 10):
        check(accuracy.evaluate(name, dtype, *(a[k : k + 1] for a in arguments))[0], whole[k])


SCALED = ("exp", "exp2", "exp10", "sigmoid", "erfc", "pow")


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", SCALED)
def test_processors_with_and_without_scaling_agree(name, dtype, monkeypatch):
    arguments = accuracy.samples(name, dtype, 20000)
    here = accuracy.evaluate(name, dtype, *arguments)
    monkeypatch.setattr(processor, "has_scale", lambda: not cpu_has_scale)
    out = np.empty_like(here)
    cpu_has_scale = processor.cpu_target_options().has("avx512f", "avx512vl")
    if not cpu_has_scale:
        pytest.skip("this processor has no such instruction")
    loop(name, dtype)(*arguments, out)
    check(out, here, *arguments)


def object_code(name, dtype):
    """The loop over pointers, compiled without any wrapper of numba."""
    from numba.core import compiler, registry, types

    function, row = cpu.get(name, dtype), cpu.FUNCTIONS[name]
    kinds = [cpu.numba_type(d) for d in cpu.inputs(row, dtype)]
    result = types.uint8 if row.result == "bool" else cpu.numba_type(row.result or dtype)
    names = ", ".join(f"a{k}" for k in range(row.arity))
    items = ", ".join(f"a{k}[j]" for k in range(row.arity))
    scope = {"function": function}
    exec(
        f"def kernel({names}, out, n):\n for j in range(n):\n  out[j] = function({items})\n", scope
    )
    flags = compiler.Flags()
    flags.nrt, flags.error_model = False, "numpy"
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    context = registry.cpu_target
    pointers = [types.CPointer(k) for k in (*kinds, result)]
    compiled = compiler.compile_extra(
        *(context.typing_context, context.target_context, scope["kernel"]),
        *((*pointers, types.int64), types.void, flags, {}),
    )
    library = compiled.library
    return library._get_compiled_object(), library.get_llvm_str(), library.get_asm_str()


CODE_ROWS = [c for c in EVERY if LONG or c[1] in ("f32", "i32") or "half" in c[0]]


@pytest.mark.parametrize(("name", "dtype"), CODE_ROWS)
def test_object_code_needs_nothing_of_numba_and_is_vectorised(name, dtype):
    if platform.machine() == "x86_64" and not processor.cpu_target_options().has("fma", "sse4.1"):
        pytest.skip("on so old a processor LLVM calls the C library for fma and floor")
    payload, text, _ = object_code(name, dtype)
    if payload[:4] == b"\x7fELF":
        assert set(undefined_symbols(payload)) <= set(cpu.external_symbols(name, dtype))
    scalar = name in SCALAR or (dtype in cpu.INTEGERS and name == "pow")
    scalar |= dtype in ("i64", "u64") and name in ("floor_div", "floor_mod")
    assert scalar or re.search(r"<\d+ x (i\d+|float|double)>", text), "not vectorised"


def test_undefined_symbols_would_be_seen():
    assert undefined_symbols(object_code("gamma", "f64")[0]) == ("tgamma",)


def test_wide_vectors_where_the_processor_prefers_narrow_ones():
    import llvmlite.binding as llvm
    from llvmlite import ir

    def assembly(wide):
        module = ir.Module()
        module.triple = "x86_64-unknown-linux-gnu"
        kind, index = ir.FloatType().as_pointer(), ir.IntType(64)
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [kind, index]), "f")
        if wide:
            processor.prefer_wide_vectors(function)
        entry, body, done = (function.append_basic_block(b) for b in ("entry", "body", "done"))
        builder = ir.IRBuilder(entry)
        builder.branch(body)
        builder.position_at_end(body)
        j = builder.phi(index)
        pointer = builder.gep(function.args[0], [j])
        builder.store(builder.fadd(builder.load(pointer), ir.Constant(ir.FloatType(), 1)), pointer)
        following = builder.add(j, index(1))
        j.add_incoming(index(0), entry)
        j.add_incoming(following, body)
        builder.cbranch(builder.icmp_unsigned("<", following, function.args[1]), body, done)
        builder.position_at_end(done)
        builder.ret_void()
        target = llvm.Target.from_triple(module.triple)
        machine = target.create_target_machine(cpu="icelake-server", opt=3)
        parsed = llvm.parse_assembly(str(module))
        tuning = llvm.create_pipeline_tuning_options(3)
        tuning.loop_vectorization = True
        passes = llvm.create_pass_builder(machine, tuning)
        passes.getModulePassManager().run(parsed, passes)
        return machine.emit_assembly(parsed)

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    assert "zmm" in assembly(True)
    assert "zmm" not in assembly(False)


def test_unknown_functions_are_refused_by_name():
    with pytest.raises(
        UnsupportedError, match="no function 'exp' of i32; it is there for f32, f64"
    ):
        cpu.get("exp", "i32")
    with pytest.raises(UnsupportedError, match="no function 'sine' of f32"):
        cpu.get("sine", "f32")


def test_external_symbols_are_listed():
    assert set(cpu.EXTERNAL_SYMBOLS) == {
        *("sin", "cos", "tan", "fmod", "remainder", "tgamma", "lgamma"),
        *("sinf", "cosf", "tanf", "fmodf", "remainderf"),
    }
