"""The interpreter: what operations give, how memory is reached, how threads meet."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ruda import dtypes
from ruda.errors import LaunchTypeError, UnsupportedError
from ruda.jit import intrinsics, ir
from ruda.jit.closures import converter, operation
from ruda.jit.interpret import Interpreter, evaluate_prologue
from ruda.jit.types import RecordType, record_type
from ruda.jit.verify import verify
from tests.jit.build import (
    assign,
    block,
    boolean,
    const,
    f32,
    f64,
    function,
    grid,
    i32,
    index,
    load,
    op,
    store,
    thread,
    u32,
)

X = ir.Array("x", f32, 1)
Y = ir.Array("y", f32, 1)
OUT = ir.Array("out", f32, 1)
COUNTS = ir.Array("counts", i32, 1)
TILE = ir.Array("tile", f32, 1, space="shared", shape=(64,))
I = ir.Variable("i", index)
K = ir.Variable("k", index)
N = ir.Variable("n", i32)


def run(kernel, grid, block, *arguments, shared_bytes=0, **options):
    """Verify and launch; sizes are numbers or tuples."""
    verify(kernel)
    sizes = [(n, 1, 1) if isinstance(n, int) else n for n in (grid, block)]
    return Interpreter(kernel, **options).run(*sizes, arguments, shared_bytes)


def same_bits(a, b):
    """Equal to the last bit, except that all NaN are one."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype
    return bool((a == b) & (np.signbit(a) == np.signbit(b)) if a.dtype.kind == "f" else a == b) or (
        bool(a != a) and bool(b != b)
    )


# ---- operations ----


def extremes(dtype):
    """Values of a dtype at which operations go wrong."""
    kind = dtype.numpy.type
    if dtype.kind == "bool":
        return [np.False_, np.True_]
    if dtype.is_integer:
        low, high = dtype.range
        values = {low, low + 1, -7, -3, -2, -1, 0, 1, 2, 3, 7, 31, 63, 64, 100, high - 1, high}
        return [kind(v) for v in sorted(values) if low <= v <= high]
    numbers = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -2.5,
        3.0,
        1e-40,
        6e4,
        1e30,
        math.inf,
        -math.inf,
        math.nan,
    ]
    with np.errstate(all="ignore"):
        if dtype.kind == "complex":
            return [
                kind(complex(a, b)) for a in (0.0, -1.5, math.inf, math.nan) for b in (0.0, 2.0)
            ]
        return [kind(v) for v in numbers]


def operand_dtypes(row):
    """Each dtype at which a row is made."""
    for dtype in (*dtypes.ALL, dtypes.index):
        if row.rule in ("scale", "complex"):
            fits = dtype.kind == "float" and (row.rule == "scale" or dtype.bits >= 32)
        elif row.rule == "index":
            fits = dtype is dtypes.index
        elif row.rule == "parts":
            fits = dtype.kind == "complex"
        else:
            fits = intrinsics.operand_dtype(row, (dtype,) * row.arity) is dtype
        if fits:
            yield dtype


CASES = [(row.name, d) for row in intrinsics.TABLE.values() for d in operand_dtypes(row)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name, dtype", CASES, ids=lambda v: getattr(v, "name", v))
def test_an_operation_is_what_the_table_says(name, dtype):
    row = intrinsics.TABLE[name]
    result = intrinsics.result_dtype(row, dtype)
    if row.rule == "complex":
        result = {dtypes.float32: dtypes.complex64, dtypes.float64: dtypes.complex128}[dtype]
    others = [extremes(dtypes.int32 if row.rule == "scale" else dtype)] * (row.arity - 1)
    run = operation(name, dtype, result)
    for values in itertools.product(extremes(dtype), *others):
        expected = intrinsics.evaluate(name, values, result)
        found = run(*values)
        assert type(found) is result.numpy.type
        assert same_bits(found, expected), (name, values, found, expected)


CASTS = list(itertools.product((*dtypes.ALL, dtypes.index), (*dtypes.ALL, dtypes.index)))
CASTS = [(a, b) for a, b in CASTS if a.kind != "complex" or b.kind in ("complex", "bool")]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("source, target", CASTS, ids=lambda v: v.name)
def test_a_cast_is_what_convert_says(source, target):
    more = []
    if source.is_integer and source.bits == 64:
        # One and a half steps of a float between two of its numbers: rounding twice shows.
        more = [
            source.numpy.type(v) for v in ((1 << 62) + (1 << 38) + 1, (1 << 54) + 1, (1 << 24) + 1)
        ]
    cast = converter(source, target)
    for value in [*extremes(source), *more]:
        found, expected = cast(value), intrinsics.convert(value, target)
        assert type(found) is target.numpy.type
        assert same_bits(found, expected), (value, found, expected)


def elementwise(name, dtype, result, arity):
    """A kernel that applies one operation to arrays."""
    inputs = [ir.Array(f"x{k}", dtype, 1) for k in range(arity)]
    out = ir.Array("out", result, 1)
    value = ir.Op(name, tuple(load(x, grid()) for x in inputs), result)
    return function((*inputs, out), store(out, grid(), value))


WRAPPING = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "and": lambda a, b: a & b,
    "xor": lambda a, b: a ^ b,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("name", WRAPPING)
@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d.is_integer and d.bits >= 32], ids=str)
def test_integers_wrap_and_floor_as_whole_numbers_do(name, dtype):
    pairs = np.array(list(itertools.product(extremes(dtype), repeat=2)), dtype.numpy)
    x, y = np.ascontiguousarray(pairs.T)
    out = np.zeros(len(x), dtype.numpy)
    run(elementwise(name, dtype, dtype, 2), 1, len(x), x, y, out)
    bits = dtype.bits
    for a, b, found in zip(x.tolist(), y.tolist(), out.tolist(), strict=True):
        assert (WRAPPING[name](a, b) - found) % (1 << bits) == 0, (a, b, found)


FLOATS = [d for d in dtypes.ALL if d.kind == "float"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "truediv", "min", "max", "lt", "ge", "eq", "ne"]
)
def test_floats_are_numpys(name, dtype):
    ufunc = {"truediv": "true_divide", "min": "minimum", "max": "maximum", "sub": "subtract"}
    ufunc |= {
        "mul": "multiply",
        "lt": "less",
        "ge": "greater_equal",
        "eq": "equal",
        "ne": "not_equal",
    }
    pairs = np.array(list(itertools.product(extremes(dtype), repeat=2)), dtype.numpy)
    x, y = np.ascontiguousarray(pairs.T)
    result = intrinsics.result_dtype(intrinsics.TABLE[name], dtype)
    out = np.zeros(len(x), result.numpy)
    run(elementwise(name, dtype, result, 2), 1, len(x), x, y, out)
    np.testing.assert_array_equal(out, getattr(np, ufunc.get(name, name))(x, y))


def test_lazy_conditions_do_not_evaluate_their_right_side():
    inside = op("lt", I, ir.Extent(X, 0))
    positive = op("gt", load(X, I), 0.0)
    kernel = function(
        (X, COUNTS),
        assign(I, grid()),
        ir.If(ir.And(inside, positive), (store(COUNTS, I, 1),)),
        ir.If(ir.Or(op("not", inside), op("not", positive)), (store(COUNTS, I, 2),)),
    )
    counts = np.zeros(4, np.int32)
    run(kernel, 1, 4, np.array([1, -1], np.float32), counts)
    np.testing.assert_array_equal(counts, [1, 2, 2, 2])


def test_bitcast_keeps_bits_and_select_chooses():
    kernel = function(
        (X, COUNTS),
        assign(N, ir.Bitcast(load(X, grid()), i32)),
        store(COUNTS, grid(), ir.Select(op("lt", N, 0), const(-1, i32), ir.Read(N))),
    )
    x = np.array([1.5, -0.0, np.nan], np.float32)
    counts = np.zeros(3, np.int32)
    run(kernel, 1, 3, x, counts)
    np.testing.assert_array_equal(counts, [0x3FC00000, -1, x.view(np.int32)[2]])


# ---- arguments and prologue ----


def test_prologue_computes_in_double():
    a, n = ir.Variable("a", dtypes.weak_float), ir.Variable("n", dtypes.weak_int)
    scale = ir.Variable("scale", f32)
    product = ir.Op("mul", (ir.Read(a), ir.Cast(ir.Read(n), dtypes.weak_float)), dtypes.weak_float)
    kernel = function(
        (a, X, n),
        store(X, grid(), scale),
        prologue=(ir.Assign(scale, ir.Cast(product, f32)),),
    )
    x = np.zeros(1, np.float32)
    run(kernel, 1, 1, 1 / 3, x, 3)
    assert x[0] == 1.0
    values = evaluate_prologue(kernel, (1 / 3, x, 3))
    assert values["scale"] == np.float32(1) and type(values["scale"]) is np.float32
    assert type(values["a"]) is np.float64 and type(values["n"]) is np.int64


@pytest.mark.parametrize("value, fits", [(127, True), (-128, True), (128, False), (-129, False)])
def test_a_python_integer_must_fit_where_it_is_used(value, fits):
    n = ir.Variable("count", dtypes.weak_int)
    small = ir.Variable("small", dtypes.int8)
    bytes_ = ir.Array("bytes", dtypes.int8, 1)
    kernel = function(
        (n, bytes_),
        store(bytes_, 0, small),
        prologue=(ir.Assign(small, ir.Cast(ir.Read(n), dtypes.int8)),),
        fits=((n, dtypes.int8),),
    )
    out = np.zeros(1, np.int8)
    if fits:
        run(kernel, 1, 1, value, out)
        assert out[0] == value
    else:
        with pytest.raises(OverflowError, match=f"`count` of kernel `kernel` is {value}.*int8"):
            run(kernel, 1, 1, value, out)


def test_an_unsigned_64_bit_argument_keeps_its_bits():
    n, big = ir.Variable("n", dtypes.weak_int), ir.Variable("big", dtypes.uint64)
    out = ir.Array("out", dtypes.uint64, 1)
    kernel = function(
        (n, out),
        store(out, 0, big),
        prologue=(ir.Assign(big, ir.Cast(ir.Read(n), dtypes.uint64)),),
        fits=((n, dtypes.uint64),),
    )
    found = np.zeros(1, np.uint64)
    run(kernel, 1, 1, 2**64 - 1, found)
    assert found[0] == 2**64 - 1
    plain = function((n, out), store(out, 0, 1))
    with pytest.raises(OverflowError, match="does not fit in int64"):
        run(plain, 1, 1, 2**63, found)


@pytest.mark.parametrize(
    "argument, message",
    [
        (np.zeros(3), "1-d array of float32, not a 1-d array of float64"),
        (np.zeros((3, 1), np.float32), "not a 2-d array of float32"),
        (np.zeros(6, np.float32)[::2], "contiguous in C order"),
        ([1.0], "is an array, not list"),
        (np.zeros(3, object), "not a 1-d array of object"),
    ],
)
def test_other_arrays_are_refused(argument, message):
    with pytest.raises(LaunchTypeError, match=message):
        run(function((X,), store(X, 0, 1.0)), 1, 1, argument)


def test_a_read_only_array_is_not_written():
    x = np.zeros(3, np.float32)
    x.flags.writeable = False
    with pytest.raises(LaunchTypeError, match="read-only"):
        run(function((X,), store(X, 0, 1.0)), 1, 1, x)


# ---- memory ----


def copy_kernel(dtype, ndim, layout):
    a = ir.Array("a", dtype, ndim, layout=layout)
    b = ir.Array("b", dtype, ndim, layout=layout)
    indices = tuple(thread(k) for k in range(ndim))
    return function((a, b), store(b, indices, ir.Load(a, indices)))


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_every_dtype_is_loaded_and_stored(dtype):
    a = np.array(extremes(dtype), dtype.numpy)
    b = np.zeros_like(a)
    run(copy_kernel(dtype, 1, "C"), 1, len(a), a, b)
    assert a.tobytes() == b.tobytes()


def test_equal_dtypes_of_other_names_work():
    a = np.array([1, -2], np.longlong)
    b = np.zeros(2, np.longlong)
    run(copy_kernel(dtypes.int64, 1, "C"), 1, 2, a, b)
    np.testing.assert_array_equal(a, b)


def test_strides_are_followed_whatever_they_are():
    base = np.arange(60, dtype=np.float64).reshape(3, 4, 5)
    for a in (base.T, base[::-1, ::2, 1:4], base[:, :1, :], np.broadcast_to(base[0, 0], (3, 4, 5))):
        b = np.zeros(a.shape[::-1]).T
        reader = copy_kernel(f64, 3, "A")
        if not a.flags.writeable:
            first = ir.Array("a", f64, 3, layout="A", readonly=True)
            second = reader.parameters[1]
            where = tuple(thread(k) for k in range(3))
            reader = function((first, second), store(second, where, ir.Load(first, where)))
        run(reader, 1, a.shape, a, b)
        np.testing.assert_array_equal(a, b)


def test_extents_and_strides_are_the_arrays_own():
    x = ir.Array("x", f32, 2, layout="A")
    out = ir.Array("out", dtypes.int64, 1)
    values = [ir.Extent(x, 0), ir.Extent(x, 1), ir.Stride(x, 0), ir.Stride(x, 1)]
    kernel = function(
        (x, out),
        *(store(out, k, ir.Cast(v, dtypes.int64)) for k, v in enumerate(values)),
    )
    found = np.zeros(4, np.int64)
    run(kernel, 1, 1, np.zeros((6, 8), np.float32)[::2, ::-1], found)
    np.testing.assert_array_equal(found, [3, 8, 64, -4])


def test_0d_and_empty_arrays():
    zero, empty = ir.Array("zero", f32, 0), ir.Array("empty", f32, 2)
    kernel = function(
        (zero, empty),
        store(zero, (), op("add", ir.Load(zero, ()), 2.0)),
        ir.If(op("gt", ir.Extent(empty, 1), 0), (store(empty, (0, 0), 1.0),)),
    )
    x = np.array(1.0, np.float32)
    run(kernel, 1, 1, x, np.zeros((3, 0), np.float32))
    assert x == 3.0


def test_one_array_passed_twice_is_one_memory():
    kernel = function(
        (X, OUT),
        store(X, 0, 5.0),
        store(OUT, 1, load(OUT, 0)),
    )
    x = np.zeros(2, np.float32)
    run(kernel, 1, 1, x, x)
    np.testing.assert_array_equal(x, [5, 5])


def test_overlapping_slices_are_one_memory():
    kernel = function((X, OUT), store(X, 1, 5.0), store(OUT, 1, load(OUT, 0)))
    x = np.zeros(4, np.float32)
    run(kernel, 1, 1, x[:3], x[1:])
    np.testing.assert_array_equal(x, [0, 5, 5, 0])


PACKED = np.dtype([("tag", "i1"), ("value", "f8"), ("count", "u2")])


def test_record_fields_lie_at_their_byte_offsets():
    kind = record_type(PACKED)
    assert isinstance(kind, RecordType) and kind.itemsize == 11
    records = ir.Array("records", kind, 1, layout="A", aligned=False)
    value, count = ir.Field(1, f64, "value"), ir.Field(9, dtypes.uint16, "count")
    kernel = function(
        (records,),
        store(records, grid(), op("mul", load(records, grid(), field=value), 2.0), value),
        ir.Atomic("add", records, (grid(),), (const(1, dtypes.uint16),), field=count),
    )
    data = np.zeros(6, PACKED)
    data["tag"], data["value"], data["count"] = 1, np.arange(6), 65535
    run(kernel, 1, 3, data[::2])
    np.testing.assert_array_equal(data["value"], [0, 1, 4, 3, 8, 5])
    np.testing.assert_array_equal(data["count"], [0, 65535] * 3)
    assert (data["tag"] == 1).all()


def test_dynamic_shared_arrays_are_one_memory_at_several_dtypes():
    floats = ir.Array("floats", f32, 1, space="shared", dynamic=True)
    bits = ir.Array("bits", u32, 1, space="shared", dynamic=True)
    out = ir.Array("out", u32, 1)
    kernel = function(
        (out,),
        ir.Declare(floats),
        ir.Declare(bits),
        store(floats, 1, 1.0),
        store(out, 0, load(bits, 1)),
        store(out, 1, ir.Cast(ir.Extent(floats, 0), u32)),
        store(out, 2, ir.Cast(ir.Special("sharedBytes"), u32)),
        arrays=(floats, bits),
    )
    found = np.zeros(3, np.uint32)
    run(kernel, 1, 1, found, shared_bytes=10)
    np.testing.assert_array_equal(found, [0x3F800000, 2, 10])


def test_constant_and_local_arrays():
    table = ir.Array(
        "table", f32, 2, space="const", shape=(2, 2), data=np.arange(4, dtype=np.float32).tobytes()
    )
    own = ir.Array("own", f32, 1, space="local", shape=(2,))
    kernel = function(
        (OUT,),
        ir.Declare(own),
        store(own, 1, load(table, 1, thread())),
        store(OUT, thread(), load(own, 1)),
        arrays=(table, own),
    )
    out = np.zeros(2, np.float32)
    run(kernel, 1, 2, out)
    np.testing.assert_array_equal(out, [2, 3])


# ---- control flow ----


@pytest.mark.parametrize("bounds", [(0, 5, 1), (5, 0, -2), (0, 5, 0), (3, 3, 1), (-4, 2, 3)])
def test_counted_loops_are_pythons_ranges(bounds):
    out = ir.Array("out", dtypes.int64, 1)
    kernel = function(
        (out,),
        assign(I, 0),
        ir.For(
            K,
            *map(const, bounds),
            (store(out, I, ir.Cast(ir.Read(K), dtypes.int64)), assign(I, op("add", I, 1))),
        ),
    )
    found = np.full(8, 99, np.int64)
    run(kernel, 1, 1, found)
    expected = [] if bounds[2] == 0 else list(range(*bounds))
    assert found.tolist() == expected + [99] * (8 - len(expected))


def test_break_continue_and_return_leave_the_innermost_loop():
    j = ir.Variable("j", index)
    kernel = function(
        (COUNTS,),
        ir.For(
            K,
            const(0),
            const(10),
            const(1),
            (
                ir.If(op("eq", K, 1), (ir.Continue(),)),
                assign(I, 0),
                ir.While(
                    op("lt", I, 10),
                    (
                        assign(I, op("add", I, 1)),
                        ir.If(op("eq", I, 2), (ir.Continue(),)),
                        ir.If(op("gt", I, 3), (ir.Break(),)),
                        ir.Atomic("add", COUNTS, (ir.Read(K),), (const(1, i32),)),
                    ),
                ),
                ir.If(op("eq", K, 3), (ir.Return(),)),
                ir.For(
                    j,
                    const(0),
                    const(3),
                    const(1),
                    (
                        ir.If(op("eq", j, 1), (ir.Break(),)),
                        ir.Atomic("add", COUNTS, (ir.Read(K),), (const(10, i32),)),
                    ),
                ),
            ),
        ),
        store(COUNTS, 9, 7),
    )
    counts = np.zeros(10, np.int32)
    run(kernel, 1, 1, counts)
    np.testing.assert_array_equal(counts, [12, 0, 12, 2, 0, 0, 0, 0, 0, 0])


# ---- launches ----


def test_saxpy():
    a, a32 = ir.Variable("a", dtypes.weak_float), ir.Variable("a32", f32)
    total = op("add", op("mul", a32, load(X, I)), load(Y, I))
    kernel = function(
        (a, X, Y, OUT),
        assign(I, grid()),
        ir.If(op("lt", I, ir.Extent(OUT, 0)), (store(OUT, I, total),)),
        prologue=(ir.Assign(a32, ir.Cast(ir.Read(a), f32)),),
    )
    for n in (0, 1, 255, 1000):
        x, y, out = (np.random.default_rng(k).random(n, np.float32) for k in range(3))
        run(kernel, 4, 256, 2.5, x, y, out)
        np.testing.assert_array_equal(out, np.float32(2.5) * x + y)


def test_coordinates_of_every_thread():
    names = ("threadIdx", "blockIdx", "blockDim", "gridDim", "globalIdx", "globalDim")
    out = ir.Array("out", dtypes.int64, 4)
    x, y, z = (ir.Special("globalIdx", k) for k in range(3))
    values = [ir.Special(n, k) for n in names for k in range(3)] + [ir.Special("laneid")]
    kernel = function(
        (out,), *(store(out, (x, y, z, k), ir.Cast(v, dtypes.int64)) for k, v in enumerate(values))
    )
    blocks, threads = (2, 1, 3), (5, 4, 2)
    found = np.full((10, 4, 6, 19), -1, np.int64)
    run(kernel, blocks, threads, found)
    for i in np.ndindex(10, 4, 6):
        here = [g % t for g, t in zip(i, threads, strict=True)]
        blk = [g // t for g, t in zip(i, threads, strict=True)]
        dims = [t * b for t, b in zip(threads, blocks, strict=True)]
        lane = (here[0] + 5 * (here[1] + 4 * here[2])) % 32
        assert found[i].tolist() == [*here, *blk, *threads, *blocks, *i, *dims, lane]


def test_threads_run_in_order_x_fastest():
    out = ir.Array("out", dtypes.int64, 1)
    counter = ir.Array("counter", dtypes.int64, 1)
    old = ir.Variable("old", dtypes.int64)
    kernel = function(
        (out, counter),
        ir.Atomic("add", counter, (const(0),), (const(1, dtypes.int64),), old),
        store(
            out,
            ir.Cast(ir.Read(old), index),
            ir.Cast(op("add", op("mul", thread(1), 10), thread(0)), dtypes.int64),
        ),
    )
    found = np.zeros(6, np.int64)
    run(kernel, 1, (3, 2, 1), found, np.zeros(1, np.int64))
    assert found.tolist() == [0, 1, 2, 10, 11, 12]
    orders = set()
    for seed in range(5):
        run(kernel, 1, (3, 2, 1), found, np.zeros(1, np.int64), order="random", seed=seed)
        assert sorted(found.tolist()) == [0, 1, 2, 10, 11, 12]
        orders.add(tuple(found.tolist()))
    assert len(orders) > 1


def test_what_sim_has_not_is_refused():
    kernel = function((X,), ir.Asm("cuda", "nanosleep", ()))
    with pytest.raises(UnsupportedError, match="`asm` has no meaning on the device sim"):
        run(kernel, 1, 1, np.zeros(1, np.float32))


# ---- barriers ----


@pytest.mark.parametrize("order", ["ascending", "random"])
def test_a_barrier_makes_shared_writes_visible(order):
    kernel = function(
        (X, OUT),
        ir.Declare(TILE),
        store(TILE, thread(), load(X, grid())),
        ir.Barrier(),
        store(OUT, grid(), load(TILE, op("sub", const(63), thread()))),
        arrays=(TILE,),
    )
    x, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    run(kernel, 2, 64, x, out, order=order)
    np.testing.assert_array_equal(out, x.reshape(2, 64)[:, ::-1].ravel())


@pytest.mark.parametrize("order", ["ascending", "random"])
def test_a_tree_sum_with_barriers_in_a_loop(order):
    width = ir.Variable("width", index)
    other = load(TILE, op("add", thread(), width))
    kernel = function(
        (X, OUT),
        ir.Declare(TILE),
        store(TILE, thread(), load(X, grid())),
        ir.Barrier(),
        assign(width, 32),
        ir.While(
            op("gt", width, 0),
            (
                ir.If(
                    op("lt", thread(), width),
                    (store(TILE, thread(), op("add", load(TILE, thread()), other)),),
                ),
                ir.Barrier(),
                assign(width, op("floordiv", width, 2)),
            ),
        ),
        ir.If(op("eq", thread(), 0), (ir.Atomic("add", OUT, (const(0),), (load(TILE, 0),)),)),
        arrays=(TILE,),
    )
    x, out = np.arange(192, dtype=np.float32), np.zeros(1, np.float32)
    run(kernel, 3, 64, x, out, order=order)
    assert out[0] == x.sum()


def test_threads_that_returned_count_as_arrived_but_do_not_vote():
    odd = op("eq", op("mod", thread(), 2), 1)
    votes = {"and": 3, "or": 4, "count": 5}
    kernel = function(
        (COUNTS,),
        ir.If(op("ge", thread(), 6), (ir.Return(),)),
        *(
            s
            for vote, place in votes.items()
            for s in (
                ir.Barrier(vote=vote, predicate=odd, result=N),
                ir.If(op("eq", thread(), 1), (store(COUNTS, place, N),)),
            )
        ),
        ir.If(op("ge", thread(), 4), (ir.Return(),)),
        ir.Barrier(vote="count", predicate=const(True, boolean), result=N),
        ir.If(op("eq", thread(), 1), (store(COUNTS, 6, N),)),
    )
    counts = np.full(7, -1, np.int32)
    run(kernel, 1, 9, counts)
    assert counts[3:].tolist() == [0, 1, 3, 4]


def test_barriers_in_uniform_branches_and_loops():
    kernel = function(
        (OUT,),
        ir.Declare(TILE),
        ir.If(
            op("eq", block(), 0),
            (store(TILE, thread(), 1.0), ir.Barrier()),
            (
                ir.For(
                    K,
                    const(0),
                    const(3),
                    const(1),
                    (ir.Barrier(), store(TILE, thread(), 2.0), ir.Barrier()),
                ),
            ),
        ),
        store(OUT, grid(), load(TILE, op("sub", const(3), thread()))),
        arrays=(TILE,),
    )
    out = np.zeros(8, np.float32)
    run(kernel, 2, 4, out)
    assert out.tolist() == [1] * 4 + [2] * 4


def test_a_barrier_of_the_grid():
    total = ir.Variable("total", f32)
    kernel = function(
        (X, OUT),
        ir.Declare(TILE),
        store(TILE, thread(), load(X, grid())),
        ir.Barrier(),
        store(X, grid(), op("add", load(TILE, op("sub", const(3), thread())), 1.0)),
        ir.Barrier("grid"),
        assign(total, 0.0),
        ir.For(
            K, const(0), ir.Extent(X, 0), const(1), (assign(total, op("add", total, load(X, K))),)
        ),
        ir.Barrier("grid"),
        store(X, grid(), total),
        store(OUT, grid(), total),
        arrays=(TILE,),
    )
    x, out = np.arange(12, dtype=np.float32), np.zeros(12, np.float32)
    run(kernel, 3, 4, x, out)
    assert out.tolist() == [78.0] * 12 and x.tolist() == [78.0] * 12


# ---- atomics ----


def whole(dtype, value):
    """An integer modulo the dtype's range, as a NumPy scalar."""
    return intrinsics.convert(value, dtype)


def numeric_atomics(dtype):
    yield from ("add", "sub", "max", "min", "nanmax", "nanmin", "exch")
    if dtype.is_integer:
        yield from ("and", "or", "xor", "inc", "dec")


ATOMIC_CASES = [
    (n, d) for d in dtypes.ALL if d.kind in ("int", "uint", "float") for n in numeric_atomics(d)
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name, dtype", ATOMIC_CASES, ids=lambda v: getattr(v, "name", v))
def test_an_atomic_gives_the_old_value_and_leaves_the_new(name, dtype):
    values, operands, olds = (ir.Array(n, dtype, 1) for n in ("values", "operands", "olds"))
    old = ir.Variable("old", dtype)
    kernel = function(
        (values, operands, olds),
        ir.Atomic(name, values, (grid(),), (load(operands, grid()),), old),
        store(olds, grid(), old),
    )
    pairs = list(itertools.product(extremes(dtype), repeat=2))
    x, y = (np.array([p[k] for p in pairs], dtype.numpy) for k in (0, 1))
    before, found = x.copy(), np.zeros_like(x)
    run(kernel, 1, len(x), x, y, found)
    assert found.tobytes() == before.tobytes()
    model = {
        "add": np.add,
        "sub": np.subtract,
        "max": np.maximum,
        "min": np.minimum,
        "nanmax": np.fmax,
        "nanmin": np.fmin,
        "exch": lambda a, b: b,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "inc": lambda a, m: np.where(a >= m, 0, a + 1).astype(a.dtype),
        "dec": lambda a, m: np.where((a == 0) | (a > m), m, a - 1).astype(a.dtype),
    }[name]
    np.testing.assert_array_equal(x, model(before, y))


@pytest.mark.parametrize("dtype", [dtypes.int32, dtypes.uint64, f32], ids=str)
def test_compare_and_swap_compares_bits(dtype):
    values = ir.Array("values", dtype, 1)
    kernel = function(
        (values,), ir.Atomic("cas", values, (grid(),), (const(5, dtype), const(9, dtype)))
    )
    x = np.array([5, 6, 0], dtype.numpy)
    run(kernel, 1, 3, x)
    assert x.tolist() == [9, 6, 0]


def test_atomics_count_every_thread():
    kernel = function(
        (COUNTS,), ir.Atomic("add", COUNTS, (op("mod", grid(), 3),), (const(1, i32),))
    )
    counts = np.zeros(3, np.int32)
    run(kernel, 5, 20, counts)
    assert counts.tolist() == [34, 33, 33]


# ---- warps ----

FULL = const(0xFFFFFFFF, u32)


def shuffle_kernel(name):
    values, lanes, out = (ir.Array(n, i32, 1) for n in ("values", "lanes", "out"))
    width = ir.Variable("width", i32)
    return function(
        (values, lanes, width, out),
        ir.Warp(name, FULL, (load(values, grid()), load(lanes, grid()), ir.Read(width)), N),
        store(out, grid(), N),
    )


def shuffle_model(name, values, lanes, width):
    """Per warp of 32: what each lane gets."""
    out = values.copy()
    for t, n in enumerate(lanes.tolist()):
        warp, lane = t // 32 * 32, t % 32
        start = lane // width * width
        source = {
            "shfl": start + n % width,
            "shfl_up": lane - n,
            "shfl_down": lane + n,
            "shfl_xor": lane ^ n,
        }[name]
        if start <= source < start + width and warp + source < len(values):
            out[t] = values[warp + source]
    return out


@pytest.mark.parametrize("threads", [32, 50, 7, 64])
@pytest.mark.parametrize("width", [1, 2, 8, 32])
@pytest.mark.parametrize("name", ["shfl", "shfl_up", "shfl_down", "shfl_xor"])
def test_shuffles_stay_in_their_segments(name, width, threads, rng):
    values = rng.integers(-1000, 1000, threads).astype(np.int32)
    for lanes in (rng.integers(-40, 40, threads), np.full(threads, 1), np.full(threads, 16)):
        lanes = lanes.astype(np.int32)
        out = np.zeros(threads, np.int32)
        run(shuffle_kernel(name), 1, threads, values, lanes, np.int32(width), out)
        np.testing.assert_array_equal(out, shuffle_model(name, values, lanes, width))


def vote_kernel(name, mask=FULL):
    flags = ir.Array("flags", i32, 1)
    out = ir.Array("out", u32, 1)
    result = ir.Variable("result", boolean if name in ("all", "any", "eq") else u32)
    value = load(flags, grid())
    operand = value if name.startswith("match") else op("ne", value, 0)
    found = ir.Cast(ir.Read(result), u32) if result.dtype is boolean else ir.Read(result)
    return function(
        (flags, out), ir.Warp(name, mask, (operand,), result), store(out, grid(), found)
    )


VOTE_MODELS = {
    "all": lambda v: [int(all(v))] * len(v),
    "any": lambda v: [int(any(v))] * len(v),
    "eq": lambda v: [int(all(bool(x) == bool(v[0]) for x in v))] * len(v),
    "ballot": lambda v: [sum(1 << k for k, x in enumerate(v) if x)] * len(v),
    "match_any": lambda v: [sum(1 << k for k, x in enumerate(v) if x == y) for y in v],
    "match_all": lambda v: [(1 << len(v)) - 1 if len(set(v)) == 1 else 0] * len(v),
}


@pytest.mark.parametrize("threads", [32, 45])
@pytest.mark.parametrize("name", VOTE_MODELS)
def test_votes_and_matches_of_a_warp(name, threads, rng):
    ones, zeros = np.ones(threads, np.int32), np.zeros(threads, np.int32)
    for flags in (rng.integers(0, 3, threads).astype(np.int32), ones, zeros):
        out = np.zeros(threads, np.uint32)
        run(vote_kernel(name), 1, threads, flags, out)
        expected = [
            x for w in range(0, threads, 32) for x in VOTE_MODELS[name](flags[w : w + 32].tolist())
        ]
        assert out.tolist() == expected


def test_lanes_that_returned_take_no_part():
    out, mask = ir.Array("out", u32, 1), ir.Variable("mask", u32)
    kernel = function(
        (out,),
        ir.If(op("ge", thread(), 5), (ir.Return(),)),
        ir.Warp("ballot", FULL, (const(True, boolean),), mask),
        store(out, thread(), mask),
    )
    found = np.zeros(8, np.uint32)
    run(kernel, 1, 8, found)
    assert found.tolist() == [31] * 5 + [0] * 3


def test_two_halves_of_a_warp_exchange_apart():
    out = ir.Array("out", i32, 1)
    lane = ir.Cast(thread(), i32)

    def half(mask, source):
        return (ir.Warp("shfl", const(mask, u32), (lane, const(source, i32), const(32, i32)), N),)

    kernel = function(
        (out,),
        ir.If(op("lt", thread(), 16), half(0x0000FFFF, 3), half(0xFFFF0000, 20)),
        store(out, thread(), N),
    )
    found = np.zeros(32, np.int32)
    run(kernel, 1, 32, found)
    assert found.tolist() == [3] * 16 + [20] * 16


def test_activemask_names_the_lanes_that_are_together():
    out, mask = ir.Array("out", u32, 1), ir.Variable("mask", u32)
    kernel = function(
        (out,),
        ir.If(
            op("lt", thread(), 3),
            (ir.Warp("activemask", None, (), mask),),
            (ir.Warp("activemask", None, (), mask),),
        ),
        store(out, thread(), mask),
    )
    found = np.zeros(6, np.uint32)
    run(kernel, 1, 6, found)
    assert found.tolist() == [0b111] * 3 + [0b111000] * 3


def test_a_warp_barrier_orders_shared_memory():
    kernel = function(
        (X, OUT),
        ir.Declare(TILE),
        store(TILE, thread(), load(X, thread())),
        ir.Barrier("warp", mask=FULL),
        store(OUT, thread(), load(TILE, op("xor", thread(), 1))),
        arrays=(TILE,),
    )
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    run(kernel, 1, 64, x, out)
    np.testing.assert_array_equal(out, x.reshape(32, 2)[:, ::-1].ravel())


# ---- output ----


def test_print_writes_in_the_order_of_threads(capsys):
    parts = (
        "thread ",
        ir.Text(thread()),
        ": ",
        ir.Text(load(X, thread()), ".2f"),
        " ",
        ir.Text(op("lt", thread(), 1)),
        "\n",
    )
    kernel = function(
        (X,), ir.Print(parts), ir.Barrier(), ir.Print((ir.Text(load(X, thread())), "\n"))
    )
    run(kernel, 1, 2, np.array([0.1, 2], np.float32))
    assert capsys.readouterr().out == ("thread 0: 0.10 True\nthread 1: 2.00 False\n0.1\n2.0\n")


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_every_dtype_prints(dtype, capsys):
    a = ir.Array("a", dtype, 1)
    spec = {"bool": "", "complex": ".1f", "float": ".1f"}.get(dtype.kind, "d")
    kernel = function((a,), ir.Print((ir.Text(load(a, 0)), " ", ir.Text(load(a, 0), spec))))
    run(kernel, 1, 1, np.ones(1, dtype.numpy))
    expected = {"bool": "True True", "float": "1.0 1.0", "complex": "(1+0j) 1.0+0.0j"}
    assert capsys.readouterr().out == expected.get(dtype.kind, "1 1")


def test_breakpoint_shows_the_variables_of_the_thread(monkeypatch):
    import sys

    seen = []

    def hook():
        frame = sys._getframe(1)
        seen.append((frame.f_code.co_name, frame.f_lineno, dict(frame.f_locals)))

    monkeypatch.setattr(sys, "breakpointhook", hook)
    kernel = function((X,), assign(N, 3), ir.If(op("eq", thread(), 1), (ir.Breakpoint(),)))
    x = np.arange(2, dtype=np.float32)
    run(kernel, 1, 2, x)
    ((name, line, values),) = seen
    assert (name, line) == ("kernel", 3)
    assert values["n"] == 3 and values["threadIdx"] == (1, 0, 0)
    assert values["x"].tolist() == [0, 1]
