"""Every row of the op table, at every dtype that it takes, on every device, against NumPy."""

import os

import numpy as np
import pytest

import ruda
from ruda import dtypes
from ruda.errors import DeviceError, DTypeError, ShapeError
from ruda.tensor import execute
from ruda.tensor.opdef import TAKES
from ruda.tensor.ops import OPS

LONG = os.environ.get("RUDA_LONG_TESTS") == "1"
ROWS = [r for r in OPS.values() if not r.name.startswith("to_")]
ELEMENTWISE = [r for r in ROWS if r.kind == "elementwise"]
REDUCTIONS = [r for r in ROWS if r.kind == "reduce"]
STANDARD = [d for d in dtypes.ALL if d.name not in ("float16", "bfloat16")]
PAIRS = [
    pytest.param(row, dtype, id=f"{row.name}-{dtype}")
    for row in ELEMENTWISE
    for dtype in STANDARD
    if dtype.kind in TAKES[row.takes]
]


def lacks(device, *kinds):
    """Whether a device has no arithmetic of a dtype."""
    from ruda import backends

    target = backends.get(device).target(device)
    needs = {"int64": "int64", "uint64": "int64", "float64": "float64", "complex128": "float64"}
    return any(needs.get(d.name) and not target.get(needs[d.name], True) for d in kinds)


def values(rng, dtype, n):
    """Ordinary numbers, and all that is special."""
    if dtype.kind == "bool":
        return rng.random(n) < 0.5
    if dtype.is_integer:
        low, high = dtype.range
        out = rng.integers(max(low, -20), min(high, 20), n, endpoint=True).astype(dtype.numpy)
        out[: n // 3] = rng.choice(
            np.array([low, high, 0, 1, high - 1, low + 1], dtype.numpy), n // 3
        )
        return out
    if dtype.kind == "complex":
        return (rng.normal(size=n) + 1j * rng.normal(size=n)).astype(dtype.numpy)
    out = (rng.normal(size=n) * 3).astype(dtype.numpy)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, 2.5, -1.5, 1e30, 1e-30]
    out[: n // 3] = rng.choice(np.array(special).astype(dtype.numpy), n // 3)
    return out


def arguments(row, rng, dtype, n):
    out = [values(rng, dtype, n) for _ in row.parameters]
    if row.rule == "condition":
        out[0] = rng.random(n) < 0.5
    if row.name == "clip":
        out[1:] = np.sort(np.stack(out[1:]), axis=0)
    return out


def expected(row, arrays, inputs):
    """The meaning in double where there is one."""
    at, result = row.dtypes(inputs)
    wide = {"float32": np.float64, "complex64": np.complex128}
    exact = row.name in ("nextafter",)
    converted = []
    for k, a in enumerate(arrays):
        if row.rule == "condition" and k == 0:
            converted.append(a)
            continue
        a = execute.converted(a, at)
        converted.append(a if exact else a.astype(wide.get(at.name, at.numpy)))
    with np.errstate(all="ignore"):
        return np.asarray(row.numpy(*converted)).astype(result.numpy)


def check(found, wanted, row, arrays):
    if wanted.dtype.kind in "fc":
        tolerance = (64 if wanted.dtype.kind == "c" else 8) * np.finfo(wanted.dtype).eps
        size = 1e-30
        if row.name == "logaddexp":  # terms cancel: as exact as they are
            size = np.nan_to_num(np.abs(np.stack(arrays)), posinf=0).max(0)
        with np.errstate(all="ignore"):
            away = np.abs(found - wanted)
        same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
        assert np.all(same | (away <= tolerance * (np.abs(wanted) + size)))
    else:
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("row", "dtype"), PAIRS)
def test_elementwise_rows_match_numpy(row, dtype, device, rng):
    check_row(row, dtype, device, "0" if device == "cpu" else "1", rng)


@pytest.mark.parametrize(
    "dtype", STANDARD if LONG else ["bool", "int32", "uint8", "float32"], ids=str
)
def test_elementwise_rows_compiled_for_the_host_match_numpy(dtype, rng):
    """A kernel for several rows that read the same: compiled alone, each takes a tenth of a second.

    The long tests compile them alone, as complex rows are among them that NumPy has to compute.
    """
    dtype, refused = dtypes.as_dtype(dtype), set(execute._refused)
    rows = [r for r in ELEMENTWISE if dtype.kind in TAKES[r.takes]]
    x, y, z = (values(rng, dtype, 101) for _ in range(3))
    given = {"where": [rng.random(101) < 0.5, x, y], "clip": [x, *np.sort([y, z], axis=0)]}
    arrays = {r.name: given.get(r.name, [x, y][: len(r.parameters)]) for r in rows}
    assert all(len(arrays[r.name]) == len(r.parameters) for r in rows)
    there = {id(a): ruda.asarray(a) for some in arrays.values() for a in some}
    count = 1 if LONG else 20
    for some in (rows[k : k + count] for k in range(0, len(rows), count)):
        with ruda.config(fusion="verify"):
            found = [getattr(ruda, r.name)(*(there[id(a)] for a in arrays[r.name])) for r in some]
            ruda.realize(*found)
        for row, result in zip(some, found, strict=True):
            inputs = tuple(dtypes.as_dtype(a.dtype) for a in arrays[row.name])
            assert result.dtype == row.dtypes(inputs)[1], row.name
            wanted = expected(row, arrays[row.name], inputs)
            check(result.numpy(), wanted, row, arrays[row.name])
    assert LONG or execute._refused == refused  # none was left to NumPy


def check_row(row, dtype, device, fusion, rng):
    slow = device.startswith("wgpu") and dtype is dtypes.complex128 and row.takes == "inexact"
    if slow and not LONG:
        pytest.skip("seconds of a software device's compiler for each: in the long tests")
    arrays = arguments(row, rng, dtype, 101)
    inputs = tuple(dtypes.as_dtype(a.dtype) for a in arrays)
    at, result = row.dtypes(inputs)
    with ruda.config(fusion=fusion):
        try:
            tensors = [ruda.asarray(a, device=device) for a in arrays]
            found = getattr(ruda, row.name)(*tensors).numpy()
        except DeviceError:
            assert lacks(device, dtype, at, result)
            return
    assert found.dtype == result.numpy
    check(found, expected(row, arrays, inputs), row, arrays)


@pytest.mark.parametrize("dtype", STANDARD, ids=str)
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
def test_reductions_match_numpy(dtype, axis, device, rng):
    """All rows of a dtype. The host compiles a few kernels for them; the compiler of WebGPU's
    software device takes longer for those than for one a row."""
    rows = [r for r in REDUCTIONS if dtype.kind in TAKES[r.takes]]
    a = values(rng, dtype, 5 * 7 * 3).reshape(5, 7, 3)
    if dtype.is_inexact:
        a = np.where(np.isfinite(a) & (np.abs(a) < 1e20), a, 1).astype(dtype.numpy)
    parts = [rows] if device in ("cpu", "sim") else [[r] for r in rows]
    if axis is None and device == "cpu" and not LONG:
        # A block's kernel takes most of a second. Each row is compiled at a third of the dtypes
        # here and each dtype for a third of the rows, all with all along the other axes.
        k = STANDARD.index(dtype)
        parts = [[r] for r in (rows[k % len(rows)], rows[(k + 3) % len(rows)])]
    for part in parts:
        check_reductions(part, dtype, axis, device, a)


def check_reductions(rows, dtype, axis, device, a):
    x = ruda.asarray(a, device=device)
    functions = [getattr(ruda, r.name) for r in rows]
    try:
        with ruda.config(fusion="verify"):
            found = [f(x, axis=axis) for f in functions]
            ruda.realize(*found)
    except DeviceError:
        assert any(lacks(device, dtype, *r.dtypes((dtype,))) for r in rows)
        return
    kept = [f(x, axis=axis, keepdims=True) for f in functions]
    ruda.realize(*kept)
    for row, one, wide in zip(rows, found, kept, strict=True):
        at, result = row.dtypes((dtype,))
        with np.errstate(all="ignore"):
            wanted = row.numpy(execute.converted(a, at), axis=axis).astype(result.numpy)
        assert one.shape == wanted.shape and one.dtype == result, row.name
        np.testing.assert_allclose(one.numpy(), wanted, rtol=1e-5, atol=1e-5, err_msg=row.name)
        assert wide.ndim == 3 and wide.numpy().size == wanted.size, row.name


@pytest.mark.parametrize("n", [0, 1, 2049, 100_003])
def test_long_reductions(n, device, rng):
    if device == "sim":
        n = min(n, 2100)
    a = rng.normal(size=(n, 2)).astype("f4")
    x = ruda.asarray(a, device=device)
    with ruda.config(fusion="verify"):
        np.testing.assert_allclose(ruda.sum(x).numpy(), a.sum(dtype="f8"), atol=1e-2)
        np.testing.assert_allclose(ruda.sum(x, axis=0).numpy(), a.sum(0, dtype="f8"), atol=1e-2)
        if n:
            np.testing.assert_array_equal(ruda.max(x, axis=0).numpy(), a.max(0))
        else:
            with pytest.raises(ShapeError, match="`max` of no elements"):
                ruda.max(x)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_numbers_of_16_bits_are_added_in_32(dtype, device):
    """However many there are: a sum of the same dtype ends where the next number is rounded off."""
    n = 300 if device == "sim" else 5000
    x = ruda.full((n, 2), 1.5, dtype=dtype, device=device)
    for row in (x.mT, ruda.asarray(np.full((2, n), 1.5), device=device).astype(dtype)):
        for found, wanted in (
            (ruda.sum(row, axis=1), 1.5 * n),
            (ruda.sum(row) / 2, 1.5 * n),
            (ruda.sum(row * 2 - 1, axis=1), 2.0 * n),
            (ruda.mean(row, axis=1), 1.5),
            (ruda.prod(row[:, :10], axis=1), 1.5**10),
            (ruda.std(row * 200), 0),
            (ruda.vecdot(row, row), 2.25 * n),
            (ruda.cumulative_sum(row, axis=1)[:, -1], 1.5 * n),
        ):
            assert str(found.dtype) == dtype
            np.testing.assert_allclose(found.astype("float32").numpy(), wanted, rtol=4e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_statistics_of_16_bits_do_not_overflow(dtype, device, rng):
    a = (rng.normal(size=(2, 40)) * 4000).astype("f4")
    x = ruda.asarray(a, device=device).astype(dtype)
    a = x.astype("float32").numpy()
    calls = [
        lambda p, x: p.mean(x + 4000, axis=1), lambda p, x: p.std(x, axis=1),
        lambda p, x: p.nanmean(x + 4000), lambda p, x: p.nanstd(x),
        lambda p, x: p.linalg.vector_norm(x, axis=1), lambda p, x: p.var(x / 100),
    ]  # fmt: skip
    for call in calls:
        found = call(ruda, x)
        assert str(found.dtype) == dtype
        np.testing.assert_allclose(found.astype("float32").numpy(), call(np, a), rtol=2e-2)
    slope = ruda.grad(lambda x: ruda.sum(ruda.std(x, axis=1)))(x)
    assert str(slope.dtype) == dtype and bool(ruda.all(ruda.isfinite(slope)))


@pytest.mark.parametrize("row", [*ELEMENTWISE, *REDUCTIONS], ids=lambda r: r.name)
def test_other_dtypes_are_refused(row):
    for dtype in STANDARD:
        if dtype.kind in TAKES[row.takes]:
            continue
        given = [ruda.zeros(2, dtype=dtype) for _ in row.parameters]
        with pytest.raises(DTypeError, match=f"`{row.name}` is not defined for"):
            getattr(ruda, row.name)(*given)


SHAPES = [
    ((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (1, 4)), ((2, 3, 4), (3, 1)), ((), (5,)),
    ((2, 1, 3, 1, 2), (4, 1, 5, 1)), ((1, 1), (1,)), ((0, 3), (3,)), ((7,), ()), ((1, 300), (2, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_operands_broadcast(left, right, device, rng):
    a, b = (rng.normal(size=s).astype("f4") for s in (left, right))
    x, y = (ruda.asarray(v, device=device) for v in (a, b))
    with ruda.config(fusion="verify"):
        found = (x + y) * x - y / 2
    np.testing.assert_allclose(found.numpy(), (a + b) * a - b / 2, rtol=1e-5, atol=1e-6)
    assert found.shape == (a + b).shape


def test_shapes_that_do_not_fit_are_errors_at_once():
    with pytest.raises(ShapeError, match=r"`add`: shapes \(3,\) and \(4,\) cannot be broadcast"):
        ruda.zeros(3) + ruda.zeros(4)


def test_tensors_of_two_devices_do_not_mix():
    with pytest.raises(DeviceError, match="the tensors are on cpu and sim"):
        ruda.zeros(3, device="cpu") + ruda.zeros(3, device="sim")


@pytest.mark.parametrize(
    ("expression", "dtype"),
    [
        (lambda i, x: x + 1, "float32"),
        (lambda i, x: x * 2.5, "float32"),
        (lambda i, x: i + 2, "int32"),
        (lambda i, x: i * 2.5, "float32"),
        (lambda i, x: 1 / i, "float32"),
        (lambda i, x: i + x, "float32"),
        (lambda i, x: 2**i, "int32"),
        (lambda i, x: x + 1j, "complex64"),
        (lambda i, x: i < 2, "bool"),
        (lambda i, x: ruda.sqrt(i), "float32"),
        (lambda i, x: ruda.where(i > 1, i, 0.5), "float32"),
        (lambda i, x: abs(x + 0j), "float32"),
    ],
)
def test_python_numbers_take_the_tensors_dtype(expression, dtype):
    i, x = ruda.asarray([1, 2, 3], dtype="int32"), ruda.asarray([1.0, 2.0, 3.0])
    assert expression(i, x).dtype == ruda.dtypes.as_dtype(dtype)
    expression(i, x).numpy()


def test_a_number_that_does_not_fit():
    with pytest.raises(OverflowError, match="300 does not fit int8"):
        ruda.zeros(3, dtype="int8") + 300


def test_chains_become_one_kernel(rng):
    a = rng.normal(size=1000).astype("f4")
    x = ruda.asarray(a)
    y = ruda.tanh(x * 2 + 1) - x**2
    (kernel,) = ruda.explain(y).kernels
    assert kernel.ops == ("multiply", "add", "tanh", "square", "subtract")
    assert len(kernel.writes) == 1
    held = x * 2  # what somebody holds is a result of the kernel, too
    z = ruda.exp(held) + held
    (kernel,) = ruda.explain(z).kernels
    assert len(kernel.writes) == 2


def test_a_long_chain():
    x = ruda.zeros(10)
    for _ in range(1000):
        x = x + 1
    assert x.tolist() == [1000.0] * 10


def test_adding_a_row_is_all_it_takes(device, rng):
    from ruda.tensor import tensor
    from ruda.tensor.ops import elementwise

    elementwise(
        "cube", "x", "numbers", "same", lambda x: x * x * x, lambda x: x * x * x, "x * x * x."
    )
    try:
        a = rng.normal(size=33).astype("f4")
        with ruda.config(fusion="verify"):
            found = tensor.function("cube")(ruda.asarray(a, device=device) + 1)
        np.testing.assert_allclose(found.numpy(), (a + 1) ** 3, rtol=1e-5)
    finally:
        del OPS["cube"], tensor.FUNCTIONS["cube"]
