"""The CPU target, from IR built by hand to results: against NumPy and the table of operations."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest

from ruda import dtypes
from ruda.backends.base import Launch
from ruda.backends.cpu.device import BACKEND
from ruda.errors import (
    DivergentBarrierError,
    IntegerDivisionError,
    KernelAssertionError,
    LaunchTypeError,
    LaunchValueError,
    LaunchWarning,
    OutOfBoundsError,
    UnsupportedError,
)
from ruda.jit import intrinsics, ir
from tests.jit.build import (
    assign,
    block,
    const,
    f32,
    f64,
    function,
    grid,
    i32,
    index,
    load,
    op,
    place,
    store,
    thread,
    u32,
)

TARGET = BACKEND.target("cpu")
SIZES = [0, 1, 255, 256, 1000]


def three(n):
    n = n if isinstance(n, tuple) else (n,)
    return (*n, 1, 1)[:3]


def compiled(kernel):
    return BACKEND.load(BACKEND.compile(BACKEND.emit(kernel, TARGET), TARGET), kernel, "cpu")


def run(kernel, blocks, threads, *arguments, shared=0):
    launch = Launch(three(blocks), three(threads), shared)
    BACKEND.launcher(compiled(kernel), launch, None)(*arguments)


def text(kernel):
    return BACKEND.emit(kernel, TARGET).text


def array(name, dtype=f32, ndim=1, **more):
    return ir.Array(name, dtype, ndim, **more)


def shared(name, dtype, *shape):
    return array(name, dtype, len(shape), space="shared", shape=shape)


def var(name, dtype=index):
    return ir.Variable(name, dtype)


def guarded(out, i, *body):
    return ir.If(op("lt", i, ir.Extent(out, 0)), tuple(body))


# ---- flat kernels --------------------------------------------------------------------------------


def saxpy():
    a, x, y, out, i = var("a", f32), array("x"), array("y"), array("out"), var("i")
    value = op("add", op("mul", a, load(x, i)), load(y, i))
    return function((a, x, y, out), assign(i, grid()), guarded(out, i, store(out, i, value)))


@pytest.mark.parametrize("n", SIZES)
def test_flat_kernel(n, rng):
    x, y = rng.random((2, n), np.float32)
    out = np.zeros(n, np.float32)
    run(saxpy(), max(1, -(-n // 256)), 256, np.float32(2), x, y, out)
    assert np.array_equal(out, 2 * x + y)  # doubling is exact, so contraction changes nothing


def test_text_of_a_flat_kernel_is_the_loop_that_one_would_write():
    assert text(saxpy()).endswith(
        """\
    for global_z in range(total_z):
        for global_y in range(total_y):
            for i in range(lo, min_i64(hi, out_n0)):
                store_f32(out, i, (a * load_f32(x, i)) + load_f32(y, i))
"""
    )


def test_lines_lead_to_the_user():
    source = BACKEND.emit(saxpy(), TARGET)
    lines = dict(zip(source.text.splitlines(), source.lines, strict=True))
    (last,) = [n for line, n in lines.items() if "store_f32" in line]
    assert last == 3


def test_every_thread_of_the_grid_runs_also_along_axes_that_the_kernel_does_not_name():
    count = array("count", i32)
    kernel = function((count,), ir.Atomic("add", count, (grid(1),), (const(1, i32),)))
    out = np.zeros(6, np.int32)
    run(kernel, (2, 3, 5), (4, 2, 1), out)
    assert out.tolist() == [2 * 4 * 5] * 6


def test_strided_arrays():
    x, out, i, j = array("x", ndim=2, layout="A"), array("out", ndim=2), var("i"), var("j")
    kernel = function(
        (x, out), assign(i, grid(1)), assign(j, grid(0)), store(out, (i, j), load(x, i, j))
    )
    data = np.arange(60, dtype=np.float32).reshape(6, 10)
    for view in (data[::2, ::-1], data.T[:10, :3].T, data[:3, 5:6].repeat(10, 1)[:, ::-1]):
        out_ = np.zeros((3, 10), np.float32)
        run(kernel, (10, 3), 1, view, out_)
        assert np.array_equal(out_, view)


def test_empty_and_zero_dimensional_arrays():
    x, out = array("x", ndim=0), array("out", ndim=0)
    value = np.array(3, np.float32)
    result = np.zeros((), np.float32)
    run(function((x, out), store(out, (), load(x))), 1, 1, value, result)
    assert result == 3


@pytest.mark.parametrize(
    ("start", "stop", "step"), [(0, 10, 3), (10, -1, -2), (0, 9, 0), (5, 5, 1)]
)
def test_loops_with_steps_known_at_run_time(start, stop, step):
    out = array("out", dtypes.int64)
    parameters = [var(n, dtypes.int64) for n in ("a", "b", "c")]
    k = var("k", dtypes.int64)
    kernel = function(
        (*parameters, out),
        ir.For(
            k,
            *map(ir.Read, parameters),
            (store(out, 0, op("add", op("mul", load(out, 0), 10), k)),),
        ),
    )
    result = np.zeros(1, np.int64)
    run(kernel, 1, 1, *map(np.int64, (start, stop, step)), result)
    expected = 0
    for i in range(start, stop, step) if step else ():
        expected = expected * 10 + i
    assert result[0] == expected


# ---- operations and conversions ------------------------------------------------------------------

INTEGERS = [d for d in dtypes.ALL if d.is_integer]
FLOATS = [d for d in dtypes.ALL if d.kind == "float"]
COMPLEX = [d for d in dtypes.ALL if d.kind == "complex"]


def values(dtype):
    """Every edge of a dtype."""
    if dtype.kind == "bool":
        return np.array([False, True])
    if dtype.is_integer:
        low, high = dtype.range
        some = {0, 1, 2, 3, 7, 31, 32, 64, high, high - 1, high // 2, low, low + 1}
        some |= {-1, -2, -3, -7, -33} if dtype.is_signed else set()
        some |= {(1 << 24) + 1, (1 << 53) + 1, 16777219, 2049, 65519, 65520, 257, 385}
        return np.array(sorted(v for v in some if low <= v <= high), dtype.numpy)
    reals = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 255.5, -129.0, 1e-8, 1e4, 70000.0, 3e9, -3e9]
    reals += [1e19, -1e19, 1e30, np.inf, -np.inf, np.nan, 1.0009765625, 2.0009766, 6e-8, 1 + 2**-11]
    reals += [1 + 2**-11 + 2**-40, 1 + 2**-8 + 2**-30, 65519.99]
    with np.errstate(all="ignore"):
        if dtype.kind == "complex":
            return np.array([complex(a, b) for a in reals[:8] for b in reals[:8]], dtype.numpy)
        return np.array(reals).astype(dtype.numpy)


def evaluate_all(makes, inputs, kinds):
    """Scalar expressions over the same arrays, run as one kernel: an array for each."""
    arrays = [array(f"x{k}", dtypes.as_dtype(x.dtype)) for k, x in enumerate(inputs)]
    outs = [array(f"out{k}", d) for k, d in enumerate(kinds)]
    i = var("i")
    stores = [
        store(out, i, make(*(load(a, i) for a in arrays)))
        for out, make in zip(outs, makes, strict=True)
    ]
    kernel = function((*arrays, *outs), assign(i, grid()), guarded(outs[0], i, *stores))
    results = [np.zeros(inputs[0].size, d.numpy) for d in kinds]
    run(kernel, -(-results[0].size // 64), 64, *map(np.ascontiguousarray, inputs), *results)
    return results


def evaluate(make, inputs, dtype):
    return evaluate_all([make], inputs, [dtype])[0]


def same_bits(a, b):
    """Equal, also in the sign of zero; any NaN is equal to any other."""
    nan = (a != a) & (b != b)
    bits = f"u{a.dtype.itemsize}"
    return nan | (a.view(bits) == b.view(bits))


@pytest.mark.parametrize("source", [d for d in dtypes.ALL if d.kind != "complex"], ids=str)
def test_every_cast(source):
    x = values(source)
    makes = [lambda e, t=t: ir.Cast(e, t) for t in dtypes.ALL]
    for target, got in zip(dtypes.ALL, evaluate_all(makes, [x], dtypes.ALL), strict=True):
        expected = np.array([intrinsics.convert(v, target) for v in x], target.numpy)
        if target.kind == "complex":
            assert np.array_equal(got, expected, equal_nan=True), target
            continue
        wrong = ~same_bits(got, expected)
        assert not wrong.any(), (target, x[wrong], got[wrong], expected[wrong])


EXACT = [
    *(
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "neg",
        "abs",
        "invert",
        "and",
        "or",
        "xor",
    ),
    *(
        "shl",
        "shr",
        "not",
        "lt",
        "le",
        "gt",
        "ge",
        "eq",
        "ne",
        "min",
        "max",
        "fmin",
        "fmax",
        "sqrt",
    ),
    *("floor", "ceil", "trunc", "rint", "fmod", "copysign", "nextafter", "fma", "isnan", "isinf"),
    *("isfinite", "signbit", "popc", "clz", "ffs", "brev", "mulhi", "pow", "real", "imag", "conj"),
    "uniform",
]


def exact_rows(dtype, arity):
    """The operations that work at a dtype, and whose results are exact or rounded once."""
    for name in EXACT:
        row = intrinsics.TABLE[name]
        fixed = intrinsics.operand_dtype(row, (dtype,) * row.arity) is dtype
        if row.rule == "bits" and dtype.kind == "bool":
            fixed = name in ("and", "or", "xor", "invert")
        if name in ("sqrt", "fma") and dtype.kind == "complex":
            continue
        if row.arity == arity and fixed and not (name == "pow" and not dtype.is_integer):
            yield row


@pytest.mark.parametrize("arity", [1, 2, 3])
@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_operations_mean_what_the_table_says(dtype, arity):
    rows = list(exact_rows(dtype, arity))
    if not rows:
        return
    x = values(dtype)
    if arity == 3:
        x = x[:: 1 + x.size // 12]
    elif dtype.kind == "complex" and arity == 2:
        x = x[::3]
    inputs = [g.ravel() for g in np.meshgrid(*[x] * arity, indexing="ij")]
    kinds = [intrinsics.result_dtype(row, dtype) for row in rows]
    makes = [lambda *e, n=row.name, d=d: ir.Op(n, e, d) for row, d in zip(rows, kinds, strict=True)]
    results = evaluate_all(makes, inputs, kinds)
    for row, kind, got in zip(rows, kinds, results, strict=True):
        expected = np.array(
            [intrinsics.evaluate(row.name, v, kind) for v in zip(*inputs, strict=True)], kind.numpy
        )
        if kind.kind == "complex" or (dtype.kind == "complex" and row.name == "abs"):
            assert np.allclose(got, expected, rtol=1e-6, atol=0, equal_nan=True), row.name
            continue
        wrong = ~same_bits(got, expected)
        if row.name in ("min", "max", "fmin", "fmax"):  # which zero is smaller is left open
            wrong &= got != expected
        assert not wrong.any(), (row.name, [v[wrong][:4] for v in (*inputs, got, expected)])


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "sin", "cos", "pow"])
@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_functions_of_complex_numbers(name, dtype):
    row = intrinsics.TABLE[name]
    some = np.array([0.5, -1.25, 2.0, 0.0, -0.0, 3.5])
    x = np.array([complex(a, b) for a in some for b in some], dtype.numpy)
    inputs = [g.ravel() for g in np.meshgrid(*[x] * row.arity, indexing="ij")]
    got = evaluate(lambda *e: ir.Op(name, e, dtype), inputs, dtype)
    with np.errstate(all="ignore"):
        expected = {"pow": np.power}.get(name, getattr(np, name))(*inputs)
    finite = np.isfinite(expected)
    scale = np.abs(expected[finite])
    eps = np.finfo(dtype.real.numpy).eps
    assert np.all(np.abs(got[finite] - expected[finite]) <= 32 * eps * scale + 1e-300)


def test_half_precision_rounds_after_every_operation():
    x = np.array([1.0, 2048.0, 0.1], np.float16)
    y = np.array([0.0009765625, 1.0, 0.2], np.float16)
    got = evaluate(lambda a, b: op("sub", op("add", a, b), a), [x, y], dtypes.float16)
    assert np.array_equal(got, (x + y) - x)


@pytest.mark.parametrize("contract", [True, False])
def test_contraction_only_where_allowed(contract):
    x, y, z = np.float32([1 + 2**-12]), np.float32([1 + 2**-12]), np.float32([-(1 + 2**-11)])
    arrays = [array(n) for n in "xyz"]
    out = array("out")
    value = op("add", op("mul", load(arrays[0], 0), load(arrays[1], 0)), load(arrays[2], 0))
    kernel = function((*arrays, out), store(out, 0, value), contract=contract)
    got = np.zeros(1, np.float32)
    run(kernel, 1, 1, x, y, z, got)
    rounded = np.float32(x * y) + z
    if contract:
        assert got[0] in (rounded[0], np.float32(2**-24))
    else:
        assert got[0] == rounded[0] == 0


def test_lazy_and_does_not_load_what_its_left_side_forbids():
    x, out, i = array("x", i32), array("out", i32), var("i")
    inside = op("lt", i, ir.Extent(x, 0))
    test = ir.And(inside, op("gt", load(x, i), 0))
    kernel = function(
        (x, out), assign(i, op("mul", grid(), 1 << 40)), ir.If(test, (store(out, 0, 1),))
    )
    out_ = np.zeros(1, np.int32)
    run(kernel, 1, 64, np.ones(1, np.int32), out_)
    assert out_[0] == 1


# ---- memory --------------------------------------------------------------------------------------


def test_fields_of_packed_records():
    kind = np.dtype([("a", "u1"), ("b", "f8"), ("c", "f4")])  # nothing is aligned
    from ruda.jit.types import record_type

    x, out, i = array("x", record_type(kind)), array("out", f64), var("i")
    b, c = ir.Field(1, f64, "b"), ir.Field(9, f32, "c")
    total = op("add", load(x, i, field=b), ir.Cast(load(x, i, field=c), f64))
    kernel = function(
        (x, out),
        assign(i, grid()),
        store(out, i, total),
        store(x, i, op("neg", load(x, i, field=b)), field=b),
    )
    data = np.zeros(5, kind)
    data["a"], data["b"], data["c"] = 255, np.arange(5), 0.5
    result = np.zeros(5)
    run(kernel, 5, 1, data, result)
    assert np.array_equal(result, np.arange(5) + 0.5)
    assert np.array_equal(data["b"], -np.arange(5.0)) and (data["a"] == 255).all()


def test_unaligned_arrays():
    raw = np.zeros(4 * 9 + 1, np.uint8)
    x = raw[1:].view(np.float32)
    a = array("x", aligned=False)
    i = var("i")
    run(function((a,), assign(i, grid()), store(a, i, ir.Cast(ir.Read(i), f32))), 9, 1, x)
    assert np.array_equal(x, np.arange(9))


def test_constant_arrays():
    data = np.array([3.5, -1.0, 2.0], np.float32)
    table = array("table", space="const", shape=(3,), data=data.tobytes())
    out, i = array("out"), var("i")
    kernel = function((out,), assign(i, grid()), store(out, i, load(table, i)), arrays=(table,))
    result = np.zeros(3, np.float32)
    run(kernel, 3, 1, result)
    assert np.array_equal(result, data)


@pytest.mark.parametrize("size", [16, 1 << 20])  # in the frame; on the heap
def test_shared_arrays_of_any_size(size):
    s, out, t = shared("s", i32, size), array("out", i32), var("t")
    kernel = function(
        (out,),
        assign(t, thread()),
        store(s, op("sub", const(size - 1), t), ir.Cast(ir.Read(t), i32)),
        ir.Barrier(),
        store(out, t, load(s, op("sub", const(size - 1), op("sub", const(15), t)))),
        arrays=(s,),
        block=(16, 1, 1),
    )
    result = np.zeros(16, np.int32)
    run(kernel, 3, 16, result)
    assert result.tolist() == list(range(15, -1, -1))
    assert ("heap" in text(kernel)) == (size > 1000)


def test_dynamic_shared_memory_is_one_piece_under_all_its_names():
    words = array("words", u32, space="shared", dynamic=True)
    floats = array("floats", f32, space="shared", dynamic=True)
    out, t = array("out", i32), var("t")
    kernel = function(
        (out,),
        assign(t, thread()),
        store(floats, t, ir.Cast(ir.Read(t), f32)),
        ir.Barrier(),
        store(out, t, ir.Cast(load(words, t), i32)),
        ir.If(op("eq", t, 0), (store(out, 0, ir.Cast(ir.Extent(words, 0), i32)),)),
        arrays=(words, floats),
        block=(8, 1, 1),
    )
    result = np.zeros(8, np.int32)
    run(kernel, 1, 8, result, shared=40)
    assert result[0] == 10
    assert np.array_equal(result[1:], np.arange(1, 8, dtype=np.float32).view(np.int32))
    with pytest.raises(LaunchValueError, match="dynamic shared memory"):
        run(kernel, 1, 8, result, shared=1 << 30)


def test_local_arrays_live_across_barriers_per_thread():
    mine = array("mine", i32, space="local", shape=(3,))
    s, out, t, k = shared("s", i32, 8), array("out", i32), var("t"), var("k")
    kernel = function(
        (out,),
        assign(t, thread()),
        ir.Declare(mine),
        ir.For(
            k, const(0), const(3), const(1),
            (store(mine, k, ir.Cast(op("add", op("mul", t, 10), k), i32)),),
        ),
        store(s, t, load(mine, 1)),
        ir.Barrier(),
        store(out, t, op("add", load(mine, 2), load(s, op("sub", const(7), t)))),
        arrays=(mine, s),
        block=(8, 1, 1),
    )  # fmt: skip
    result = np.zeros(8, np.int32)
    run(kernel, 2, 8, result)
    assert result.tolist() == [10 * t + 2 + 10 * (7 - t) + 1 for t in range(8)]


# ---- atomics -------------------------------------------------------------------------------------

ATOMICS = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "max": np.maximum, "min": np.minimum,
    "nanmax": np.fmax, "nanmin": np.fmin, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "exch": lambda a, b: b,
    "inc": lambda a, b: a.dtype.type(0) if a >= b else a + a.dtype.type(1),
    "dec": lambda a, b: b if a == 0 or a > b else a - a.dtype.type(1),
}  # fmt: skip


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_atomics_of_one_thread(dtype, space):
    x = values(dtype)
    old, operand = (g.ravel() for g in np.meshgrid(x, x, indexing="ij"))
    names = [n for n in ATOMICS if dtype.is_integer or n not in ("and", "or", "xor", "inc", "dec")]
    b, i, r, cell = array("b", dtype), var("i"), var("r", dtype), shared("cell", dtype, 1)
    cells = [array(f"a_{n}", dtype) for n in names]
    told = [array(f"old_{n}", dtype) for n in names]
    body = []
    for name, a, before in zip(names, cells, told, strict=True):
        if space == "global":
            body.append(ir.Atomic(name, a, (ir.Read(i),), (load(b, i),), r))
        else:
            body += [
                store(cell, 0, load(a, i)),
                ir.Atomic(name, cell, (const(0),), (load(b, i),), r),
                store(a, i, load(cell, 0)),
            ]
        body.append(store(before, i, ir.Read(r)))
    arrays = (cell,) if space == "shared" else ()
    kernel = function((b, *cells, *told), assign(i, grid()), *body, arrays=arrays, block=(1, 1, 1))
    after, before = [old.copy() for _ in names], [np.zeros_like(old) for _ in names]
    run(kernel, old.size, 1, operand, *after, *before)
    for name, a, r_ in zip(names, after, before, strict=True):
        with np.errstate(all="ignore"):
            expected = np.array(
                [ATOMICS[name](p, q) for p, q in zip(old, operand, strict=True)], old.dtype
            )
        assert same_bits(r_, old).all()
        wrong = ~same_bits(a, expected) & ~((a == 0) & (expected == 0))
        assert not wrong.any(), (name, old[wrong], operand[wrong], a[wrong], expected[wrong])


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOATS], ids=str)
def test_compare_and_swap_compares_bits(dtype):
    x = values(dtype)
    old, expected = (g.ravel() for g in np.meshgrid(x, x, indexing="ij"))
    a, b, before, i, r = (
        array("a", dtype), array("b", dtype), array("before", dtype), var("i"), var("r", dtype),
    )  # fmt: skip
    kernel = function(
        (a, b, before),
        assign(i, grid()),
        ir.Atomic("cas", a, (ir.Read(i),), (load(b, i), const(1, dtype)), r),
        store(before, i, ir.Read(r)),
    )
    after, told = old.copy(), np.zeros_like(old)
    run(kernel, old.size, 1, after, expected, told)
    bits = f"u{old.dtype.itemsize}"
    hit = old.view(bits) == expected.view(bits)
    assert same_bits(after, np.where(hit, np.ones_like(old), old)).all()
    assert same_bits(told, old).all()


@pytest.mark.parametrize(
    "dtype", [dtypes.int8, dtypes.uint16, i32, dtypes.float16, f32, f64], ids=str
)
def test_atomics_of_several_cpu_threads_lose_nothing(dtype):
    total, i = array("total", dtype), var("i")
    kernel = function(
        (total,), assign(i, grid()), ir.Atomic("add", total, (op("mod", i, 4),), (const(1, dtype),))
    )
    launch = BACKEND.launcher(compiled(kernel), Launch((400, 1, 1), (1, 1, 1)), None)
    result = np.zeros(4, dtype.numpy)
    threads = [
        threading.Thread(target=lambda: [launch(result) for _ in range(5)]) for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    expected = 4 * 5 * 100
    assert result.tolist() == [dtype(expected)] * 4


# ---- barriers ------------------------------------------------------------------------------------


def test_tile_with_barrier(rng):
    x, out, i, t, tile = array("x"), array("out"), var("i"), var("t"), shared("tile", f32, 66)
    last = op("sub", ir.Extent(x, 0), 1)
    total = op(
        "add", op("add", load(tile, t), load(tile, op("add", t, 1))), load(tile, op("add", t, 2))
    )
    kernel = function(
        (x, out),
        assign(i, grid()),
        assign(t, thread()),
        ir.Declare(tile),
        store(tile, op("add", t, 1), load(x, i)),
        ir.If(
            op("eq", t, 0),
            (
                store(tile, 0, load(x, op("max", op("sub", i, 1), 0))),
                store(tile, 65, load(x, op("min", op("add", i, 64), last))),
            ),
        ),
        ir.Barrier(),
        store(out, i, op("mul", total, 0.25)),
        arrays=(tile,),
        block=(64, 1, 1),
    )
    x_ = rng.random(64 * 7, np.float32)
    out_ = np.zeros_like(x_)
    run(kernel, 7, 64, x_, out_)
    padded = np.concatenate([x_[:1], x_, x_[-1:]])
    assert np.array_equal(out_, ((padded[:-2] + padded[1:-1]) + padded[2:]) * np.float32(0.25))


def test_histogram_in_shared_memory(rng):
    x, h, bins, i, t = array("x", i32), array("h", i32), shared("bins", i32, 64), var("i"), var("t")
    kernel = function(
        (x, h),
        assign(i, grid()),
        assign(t, thread()),
        store(bins, t, 0),
        ir.Barrier(),
        guarded(x, i, ir.Atomic("add", bins, (ir.Cast(load(x, i), index),), (const(1, i32),))),
        ir.Barrier(),
        ir.Atomic("add", h, (ir.Read(t),), (load(bins, t),)),
        arrays=(bins,),
        block=(64, 1, 1),
    )
    x_ = rng.integers(0, 64, 1000).astype(np.int32)
    h_ = np.zeros(64, np.int32)
    run(kernel, 16, 64, x_, h_)
    assert np.array_equal(h_, np.bincount(x_, minlength=64))


def test_barrier_in_a_data_dependent_loop_runs_as_long_as_any_thread_does():
    """Each thread goes round as often as its datum says; all meet in every round."""
    x, out, t, k = array("x", i32), array("out", i32), var("t"), var("k", i32)
    s = shared("s", i32, 4)
    total = var("total", i32)
    kernel = function(
        (x, out),
        assign(t, thread()),
        assign(k, load(x, t)),
        store(x, t, 0),
        assign(total, 0),
        store(s, t, 0),
        ir.While(
            op("gt", k, 0),
            (
                store(s, t, op("add", load(s, t), 1)),
                ir.Barrier(),
                assign(total, op("add", total, load(s, op("mod", op("add", t, 1), 4)))),
                ir.Barrier(),
                assign(k, op("sub", k, 1)),
            ),
        ),
        store(out, t, ir.Read(total)),
        arrays=(s,),
        block=(4, 1, 1),
    )
    rounds = [3, 0, 5, 1]
    out_ = np.zeros(4, np.int32)
    run(kernel, 1, 4, np.array(rounds, np.int32), out_)
    expected = [sum(min(r, rounds[(t + 1) % 4]) for r in range(1, rounds[t] + 1)) for t in range(4)]
    assert out_.tolist() == expected


def test_returned_threads_take_no_part_in_votes():
    out, t, n = array("out", i32), var("t"), var("n", i32)
    kernel = function(
        (out,),
        assign(t, thread()),
        ir.If(op("ge", ir.Cast(ir.Read(t), i32), load(out, 0)), (ir.Return(),)),
        ir.Barrier("block", "count", op("ge", t, 1), n),
        store(out, op("add", t, 1), ir.Read(n)),
        block=(8, 1, 1),
    )
    out_ = np.zeros(9, np.int32)
    out_[0] = 5
    run(kernel, 1, 8, out_)
    assert out_.tolist() == [5, 4, 4, 4, 4, 4, 0, 0, 0]


def test_divergent_barrier_is_refused_with_its_line():
    kernel = function((), ir.If(op("lt", thread(), 3), (ir.Barrier(),)), block=(8, 1, 1))
    with pytest.raises(DivergentBarrierError, match="not every thread") as caught:
        BACKEND.emit(kernel, TARGET)
    assert caught.value.lineno == 2


def test_condition_that_no_thread_of_this_block_fails_is_uniform():
    out = array("out", i32)
    body = ir.If(op("lt", thread(), 8), (ir.Barrier(), store(out, 0, 1)))
    result = np.zeros(1, np.int32)
    run(function((out,), body, block=(8, 1, 1)), 1, 8, result)
    assert result[0] == 1


def run_phases(body, n=12, arrays=()):
    x, out = array("x", i32), array("out", i32)
    kernel = function((x, out), *body(x, out), arrays=arrays, block=(4, 1, 1))
    data, result = np.arange(n, dtype=np.int32) * 3 % 7, np.zeros(n, np.int32)
    run(kernel, n // 4, 4, data, result)
    return data, result


def test_barrier_of_the_grid_separates_phases():
    """Values wait in memory of the launch; those of coordinates are computed anew."""
    i, a, b, s = var("i"), var("a", i32), var("b", dtypes.int16), shared("s", i32, 4)

    def body(x, out):
        mirror = op("sub", op("sub", ir.Extent(x, 0), 1), i)
        return (
            assign(i, grid()),
            assign(a, load(x, i)),
            ir.If(op("gt", a, 3), (assign(a, 100),)),
            store(s, thread(), a),
            ir.Barrier(),
            assign(b, ir.Cast(load(s, op("sub", const(3), thread())), dtypes.int16)),
            store(out, i, a),
            ir.Barrier("grid"),
            assign(a, op("add", a, load(out, mirror))),
            ir.Barrier("grid"),
            store(out, i, op("add", op("mul", a, 1000), ir.Cast(ir.Read(b), i32))),
        )

    data, result = run_phases(body, arrays=(s,))
    first = np.where(data > 3, 100, data)
    neighbours = first.reshape(-1, 4)[:, ::-1].ravel()
    assert np.array_equal(result, (first + first[::-1]) * 1000 + neighbours)


def test_threads_that_returned_stay_out_of_later_phases():
    i = var("i")

    def body(x, out):
        return (
            assign(i, grid()),
            ir.If(op("gt", load(x, i), 3), (ir.Return(),)),
            store(out, i, 1),
            ir.Barrier("grid"),
            ir.If(op("gt", load(x, i), 2), (ir.Return(),)),
            store(out, i, op("add", load(out, i), 1)),
            ir.Barrier("grid"),
            store(out, i, op("add", load(out, i), 1)),
        )

    data, result = run_phases(body)
    assert np.array_equal(result, np.where(data > 3, 0, np.where(data > 2, 1, 3)))


@pytest.mark.parametrize("space", ["shared", "local"])
def test_memory_that_would_outlive_a_barrier_of_the_grid_is_refused(space):
    m = array("m", i32, space=space, shape=(4,))
    body = (store(m, 0, 1), ir.Barrier("grid"), store(m, 1, load(m, 0)))
    kernel = function((), *body, arrays=(m,), block=(4, 1, 1))
    with pytest.raises(UnsupportedError, match=f"`m` is {space} memory") as caught:
        BACKEND.emit(kernel, TARGET)
    assert caught.value.lineno == 3


def test_barrier_of_the_grid_in_a_loop_that_memory_bounds_is_refused():
    stop = load(array("m", index), const(0))
    loop = ir.For(var("k"), const(0), stop, const(1), (ir.Barrier("grid"),))
    with pytest.raises(UnsupportedError, match="condition around a barrier of the grid"):
        BACKEND.emit(function((), loop, block=(8, 1, 1)), TARGET)


# ---- reports -------------------------------------------------------------------------------------


def test_prints_come_in_the_order_of_blocks_and_threads(capsys):
    i = var("i")
    kernel = function(
        (),
        assign(i, grid()),
        ir.If(
            op("eq", op("mod", i, 3), 0),
            (ir.Print(("i=", ir.Text(ir.Read(i)), " ", ir.Text(const(0.5, f32), ".3f"), "\n")),),
        ),
    )
    run(kernel, 4, 2)
    assert capsys.readouterr().out == "i=0 0.500\ni=3 0.500\ni=6 0.500\n"


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_every_dtype_can_be_printed(dtype, capsys):
    x = array("x", dtype)
    value = values(dtype)[-2:-1]
    run(function((x,), ir.Print((ir.Text(load(x, 0)), "\n"))), 1, 1, value)
    from ruda.jit.closures import format_value

    assert capsys.readouterr().out == format_value(value[0]) + "\n"


def test_reports_that_do_not_fit_are_counted(capsys):
    import ruda

    kernel = function((), ir.Print((ir.Text(grid()), "\n")))
    with ruda.config(report_bytes=1000), pytest.warns(LaunchWarning, match="did not fit"):
        run(kernel, 1000, 1)
    assert capsys.readouterr().out.splitlines()


def test_failed_assertion_stops_its_thread_and_names_it():
    x, i = array("x", i32), var("i")
    kernel = function(
        (x,),
        assign(i, grid()),
        ir.Assert(op("lt", load(x, i), 3), ("x is ", ir.Text(load(x, i)))),
        store(x, i, -1),
    )
    data = np.arange(6, dtype=np.int32)
    with pytest.raises(KernelAssertionError, match="x is 3") as caught:
        run(kernel, 3, 2, data)
    assert "block (1, 0, 0), thread (1, 0, 0)" in str(caught.value)
    assert caught.value.place.line == 2
    assert data.tolist() == [-1, -1, -1, 3, 4, 5]


@pytest.mark.parametrize("bad", [-1, 4, 1 << 40])
def test_checked_kernel_reports_bounds(bad):
    x, at, i = array("x"), array("at", dtypes.int64), var("i")
    where = ir.Cast(load(at, i), index)
    kernel = function(
        (x, at), assign(i, grid()), store(x, where, op("add", load(x, where), 1.0)), check=True
    )
    data = np.zeros(4, np.float32)
    with pytest.raises(OutOfBoundsError, match=rf"`x\[{bad}\]` is out of bounds.*4 elements"):
        run(kernel, 3, 1, data, np.array([0, bad, 3]))
    assert data.tolist() == [1, 0, 0, 1]


def test_checked_kernel_in_blocks_with_barriers():
    x, s, t = array("x"), shared("s", f32, 4), var("t")
    kernel = function(
        (x,),
        assign(t, thread()),
        store(s, t, load(x, op("add", op("mul", block(), 4), t))),
        ir.Barrier(),
        store(x, op("add", op("mul", block(), 4), t), load(s, op("sub", const(3), t))),
        arrays=(s,),
        check=True,
        block=(4, 1, 1),
    )
    data = np.arange(8, dtype=np.float32)
    run(kernel, 2, 4, data)
    assert data.tolist() == [3, 2, 1, 0, 7, 6, 5, 4]
    with pytest.raises(OutOfBoundsError, match=r"block \(2, 0, 0\), thread \(0, 0, 0\)"):
        run(kernel, 3, 4, data)


def test_checked_kernel_reports_division_by_zero():
    x = array("x", i32)
    kernel = function((x,), store(x, 0, op("mod", load(x, 1), load(x, 2))), check=True)
    with pytest.raises(IntegerDivisionError, match="7 % 0"):
        run(kernel, 1, 1, np.array([5, 7, 0], np.int32))


# ---- launches ------------------------------------------------------------------------------------


def test_object_code_needs_nothing_of_numba():
    binary = BACKEND.compile(BACKEND.emit(saxpy(), TARGET), TARGET)
    assert binary.symbols == ()


def test_metadata_is_json():
    import json

    binary = BACKEND.compile(BACKEND.emit(saxpy(), TARGET), TARGET)
    assert json.loads(json.dumps(binary.metadata)) == binary.metadata


def test_arguments_that_do_not_fit_go_to_the_fallback():
    seen = []
    launch = BACKEND.launcher(
        compiled(saxpy()), Launch((1, 1, 1), (4, 1, 1)), lambda *a: seen.append(a)
    )
    x = np.zeros(4, np.float32)
    launch(np.float32(1), x, x, x.copy())
    assert not seen
    launch(np.float32(1), x, x, np.zeros(4))
    assert len(seen) == 1


def test_subclasses_of_arrays_are_for_the_fallback_to_judge():
    class Named(np.ndarray):
        pass

    seen = []
    launch = Launch((1, 1, 1), (4, 1, 1))
    launcher = BACKEND.launcher(compiled(saxpy()), launch, lambda *a: seen.append(a))
    x = np.zeros(4, np.float32)
    launcher(np.float32(1), x, x, x.view(Named))
    assert len(seen) == 1


def test_wrong_arguments_without_a_fallback_are_refused():
    x = np.zeros(4, np.float32)
    with pytest.raises(LaunchTypeError, match="kernel"):
        run(saxpy(), 1, 4, np.float32(1), x, x, np.zeros(4))


def test_integers_that_do_not_fit_are_refused():
    n, out = var("n", dtypes.weak_int), array("out", dtypes.int8)
    kernel = function(
        (n, out),
        store(out, 0, ir.Cast(ir.Read(n), dtypes.int8)),
        fits=((n, dtypes.int8),),
    )
    out_ = np.zeros(1, np.int8)
    run(kernel, 1, 1, -128, out_)
    assert out_[0] == -128
    with pytest.raises(OverflowError, match="`n` of kernel `kernel` is 128"):
        run(kernel, 1, 1, 128, out_)


def test_names_that_mean_something_in_the_text_are_changed():
    range_, lo = array("range", i32), var("lo", i32)
    kernel = function((range_,), assign(lo, 5), store(range_, 0, ir.Read(lo)), name="class")
    out = np.zeros(1, np.int32)
    run(kernel, 1, 1, out)
    assert out[0] == 5


def test_debuggers_and_profilers_are_led_to_the_users_file():
    kernel = dataclasses.replace(saxpy(), place=place(1))
    binary = BACKEND.compile(BACKEND.emit(kernel, TARGET), TARGET)
    assert b".debug_line" in binary.payload
    assert b"kernel.py" in binary.payload


def test_threads_that_compile_at_the_same_time_get_their_own_code():
    x, out = array("x"), array("out")
    inputs = np.float32([1 + 2**-12])
    product = op("mul", load(x, 0), load(x, 0))
    rest = const(-(1 + 2**-11), f32)

    def made(contract, wanted, wrong):
        kernel = function((x, out), store(out, 0, op("add", product, rest)), contract=contract)
        for _ in range(4):
            result = np.zeros(1, np.float32)
            run(kernel, 1, 1, inputs, result)
            if result[0] not in wanted:
                wrong.append(result[0])

    wrong = []
    fused = (np.float32(2**-24), np.float32(0))
    threads = [
        threading.Thread(target=made, args=(c, fused if c else (np.float32(0),), wrong))
        for c in (True, False, True, False)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
