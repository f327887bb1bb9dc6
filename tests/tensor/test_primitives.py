"""Choices, scans and orders of elements, by the kernels of every device, against NumPy.

On the CPU NumPy does it; `fusion="verify"` runs the kernels beside it and compares the two. Each
takes seconds to compile there, so that a few tests do.
"""

import contextlib
import linecache
import os

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest

import ruda
from ruda import dtypes
from ruda.errors import CheckError, DTypeError, ShapeError
from ruda.tensor.ops import OPS

LONG = os.environ.get("RUDA_LONG_TESTS") == "1"
FEW = [dtypes.float32, dtypes.int32]  # kernels for the host take a third of a second each
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5]


def dtypes_of(device):
    return dtypes.ALL if LONG or device != "cpu" else [*FEW, dtypes.bool_]


def values(rng, dtype, shape):
    """Numbers with many equal ones, and all that is special."""
    if dtype.kind == "bool":
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        low, high = dtype.range
        out = rng.integers(max(low, -4), 5, shape).astype(dtype.numpy)
        extreme = np.array([low, high, low + 1, high - 1], dtype.numpy)
        return np.where(rng.random(shape) < 0.2, rng.choice(extreme, shape), out)
    out = rng.choice([*SPECIAL, *rng.normal(size=4)], shape)
    if dtype.kind == "complex":
        out = out + 1j * rng.choice([0.0, 1.0, 2.0], shape)
    with np.errstate(all="ignore"):
        return out.astype(dtype.numpy)


def agree(found, wanted):
    """Equal bit for bit, but for the sign of a zero."""
    wanted = np.asarray(wanted)
    found = found.numpy() if isinstance(found, ruda.Tensor) else np.asarray(found)
    assert found.shape == wanted.shape
    if found.dtype.itemsize == 2 and found.dtype.kind not in "iu":  # bfloat16 is no NumPy float
        found, wanted = found.astype("f4"), wanted.astype("f4")
    np.testing.assert_array_equal(found, wanted)


@pytest.fixture
def both_ways():
    with ruda.config(fusion="verify"):
        yield


# ---- extremes ------------------------------------------------------------------------------------


@hypothesis.given(st.data())
def test_argmax_and_argmin_match_numpy(device, data):
    dtype = data.draw(st.sampled_from(FEW))
    shape = data.draw(hnp.array_shapes(max_dims=3, max_side=40))
    a = values(np.random.default_rng(data.draw(st.integers(0, 99))), dtype, shape)
    axis = data.draw(st.sampled_from([None, *range(-len(shape), len(shape))]))
    keepdims = data.draw(st.booleans())
    x = ruda.asarray(a, device=device)
    agree(ruda.argmax(x, axis=axis, keepdims=keepdims), np.argmax(a, axis, keepdims=keepdims))
    agree(ruda.argmin(x, axis=axis, keepdims=keepdims), np.argmin(a, axis, keepdims=keepdims))


@pytest.mark.parametrize("n", [1, 33, 5000, 40_001])
def test_long_searches_for_extremes(n, device, rng):
    if device == "sim":
        n = min(n, 500)
    a = rng.integers(0, 1 + n // 4, n).astype("f4")
    x = ruda.asarray(a, device=device)
    agree(ruda.argmax(x), a.argmax())
    a[n // 2] = a[n - 1] = np.nan
    agree(ruda.argmin(ruda.asarray(a, device=device)), n // 2)


def test_extremes_and_choices_of_every_dtype(device, rng):
    for dtype in dtypes_of(device):
        a = values(rng, dtype, (3, 7, 2))
        j = np.array([1, -1, 1, 5, 0])
        x, where = ruda.asarray(a, device=device), ruda.asarray(j, device=device)
        agree(ruda.take(x, where, axis=1), a[:, j])
        agree(x[:, where], a[:, j])
        if dtype.kind != "complex":
            agree(ruda.argmax(x, axis=1), a.argmax(1))


def test_extremes_of_no_lines(device):
    for shape, axis, wanted in (((3, 0), 0, (0,)), ((0, 2, 0), 1, (0, 0)), ((0, 40), -1, (0,))):
        x = ruda.zeros(shape, device=device)
        for call in (ruda.argmax, ruda.argmin, ruda.max, ruda.sum):
            found = call(x, axis=axis)
            assert found.shape == wanted and found.numpy().size == 0


def test_wrong_questions_for_extremes(device):
    with pytest.raises(ShapeError, match="`argmax` of no elements"):
        ruda.argmax(ruda.zeros((3, 0), device=device), axis=1)
    with pytest.raises(ShapeError, match="axis 2"):
        ruda.argmin(ruda.zeros((3, 1), device=device), axis=2)
    with pytest.raises(DTypeError, match="`argmax` is not defined for complex64"):
        ruda.argmax(ruda.asarray(1j, device=device))


# ---- indices made of arrays ----------------------------------------------------------------------


def i(*items):
    return np.array(items, np.int64)


A = np.random.default_rng(1).normal(size=(4, 5, 6)).astype("f4")
KEYS = [
    np.s_[i(1, 0, -1)], np.s_[:, i(1, 0, -1)], np.s_[..., i(1, 0)], np.s_[i(0, 1), i(2, 3)],
    np.s_[i(0, 1), :, i(2, 3)], np.s_[:, i([0, 1], [1, 2]), i([2], [3])],
    np.s_[1, :, i(0, 0, 2)], np.s_[::2, i(1, 1), ::-1], np.s_[None, i(2, 1)],
    np.s_[i(2, 1), None], np.s_[i(), 1], np.s_[[0, 2]], np.s_[i(0, 1), 1, ..., i(1, 2)],
    np.s_[i([0], [1]), i(2, 3), i(1, 0)], np.s_[1, i(1, 2), 0], np.s_[A > 0],
    np.s_[A[:, :, 0] > 0], np.s_[:, A[0] > 0], np.s_[A[:, 0, 0] > 0, 1:3], np.s_[True],
    np.s_[False, 1], np.s_[i(0, 1).astype("u1"), 1],
]  # fmt: skip


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("key", KEYS, ids=range(len(KEYS)))
@pytest.mark.parametrize("transposed", [False, True])
def test_indices_made_of_arrays(key, transposed, device, rng):
    a = np.array(A)
    x = ruda.asarray(np.ascontiguousarray(a.T if transposed else a), device=device)
    if transposed:
        x = x.permute((2, 1, 0))
    agree(x[key], a[key])
    value = rng.normal(size=a[key].shape).astype("f4")
    a[key] = value
    x[key] = ruda.asarray(value, device=device)
    agree(x, a)
    a[key] = 3
    x[key] = 3
    agree(x, a)


@pytest.mark.usefixtures("both_ways")
def test_of_several_values_for_an_element_the_last_one_stays(device, rng):
    a = rng.normal(size=500).astype("f4")
    where = rng.integers(0, 9, 500)
    wanted = np.zeros(9, "f4")
    wanted[where] = a
    x = ruda.zeros(9, device=device)
    x[ruda.asarray(where, device=device)] = ruda.asarray(a, device=device)
    agree(x, wanted)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_a_tensor_may_be_the_index_of_a_write_into_itself(dtype, device, rng):
    """All indices are read before any element is written."""
    n = 200
    a, given = rng.permutation(n).astype(dtype), rng.integers(0, n, n).astype(dtype)
    for index, value in ((np.s_[:], None), (np.s_[::-1], None), (np.s_[:], np.s_[::-1])):
        x, wanted = ruda.asarray(a, device=device), a.copy()
        wanted[a[index]] = given if value is None else a[value]
        x[x[index]] = ruda.asarray(given, device=device) if value is None else x[value]
        np.testing.assert_array_equal(x.numpy(), wanted)
    for fusion in ("1", "verify"):
        with ruda.config(fusion=fusion):
            mask = ruda.asarray(a > 50, device=device)
            mask[mask] = False
            assert not mask.numpy().any()


def test_masks_of_tensors_and_writes_into_views(device):
    a = np.arange(12, dtype="f4").reshape(3, 4)
    x = ruda.asarray(a, device=device)
    x[x > 6] = 0
    a[a > 6] = 0
    agree(x, a)
    row = x[1]
    row[[0, 2]] += 10
    a[1, [0, 2]] += 10
    agree(x, a)
    x[:, [0, 1]] = x[:, [1, 0]]
    a[:, [0, 1]] = a[:, [1, 0]]
    agree(x, a)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ((i(0), i(0), i(0)), "indices"),
        (np.zeros((2, 2), bool), "mask|boolean"),
        (np.array([0.5]), "integer"),
        ((i(0, 1), i(0, 1, 2)), "broadcast"),
    ],
)
def test_wrong_indices_made_of_arrays(key, text, device):
    x = ruda.zeros((3, 4), device=device)
    with pytest.raises((IndexError, ShapeError), match=text):
        x[key]


def test_indices_out_of_range(device):
    """An IndexError on the CPU; elsewhere reported where checks are on, else within the array."""
    x = ruda.asarray(np.arange(5, dtype="f4"), device=device)
    for bad in (i(1, 5), i(-6, 0)):
        where = ruda.asarray(bad, device=device)
        with pytest.raises((IndexError, CheckError)), ruda.config(check=True):
            ruda.take(x, where).numpy()
        with pytest.raises((IndexError, CheckError)), ruda.config(check=True):
            x[where] = 1
            x.numpy()
        for _ in range(4):  # each launch reports, and a write is several
            with contextlib.suppress(CheckError), ruda.config(device=device):
                ruda.synchronize()
        if device not in ("cpu", "sim"):
            assert set(x[where].tolist()) <= {0, 1, 4}


@pytest.mark.parametrize("bad", [-4, 3, -9])
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_a_reported_index_is_the_one_given_at_the_users_line(bad, write):
    x = ruda.zeros(3, device="sim")
    where = ruda.asarray([0, bad], device="sim")
    with pytest.raises(CheckError, match=rf"index {bad} on axis 1, which has 3") as caught:
        if write:
            x[where] = 1.0
        else:
            ruda.take(x, where).numpy()
    assert caught.value.place.file == __file__
    assert linecache.getline(__file__, caught.value.place.line).strip() in (
        "x[where] = 1.0",
        "ruda.take(x, where).numpy()",
    )


# ---- along an axis -------------------------------------------------------------------------------


@hypothesis.given(st.data())
def test_taking_and_scattering_match_numpy(device, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    dtype = data.draw(st.sampled_from(FEW)) if LONG else dtypes.float32
    shape = data.draw(hnp.array_shapes(max_dims=3, max_side=7))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    count = data.draw(st.integers(0, 9))
    k = axis % len(shape)
    full = (*shape[:k], count, *shape[k + 1 :])
    a, v = (rng.integers(-9, 9, s).astype(dtype.numpy) for s in (shape, full))
    each = data.draw(st.booleans())
    where = rng.integers(-shape[k], shape[k], full if each else count)
    x, y, j = (ruda.asarray(b, device=device) for b in (a, v, where))
    places = list(np.indices(full, sparse=True)) if each else [slice(None)] * len(shape)
    places[k] = where
    take = ruda.take_along_axis if each else ruda.take
    agree(take(x, j, axis=axis), a[tuple(places)])
    mode = data.draw(st.sampled_from(["set", "add", "min", "max"]))
    wanted = a.copy()
    if mode == "set":
        wanted[tuple(places)] = v
    else:
        at = {"add": np.add.at, "min": np.minimum.at, "max": np.maximum.at}[mode]
        at(wanted, tuple(places), v)
    agree(ruda.scatter(x, j, y, axis=axis, mode=mode), wanted)
    agree(x, a)


@pytest.mark.usefixtures("both_ways")
def test_scattering_every_dtype(device, rng):
    for dtype in dtypes_of(device):
        a = rng.integers(0, 5, (4, 2)).astype(dtype.numpy)
        where = np.array([0, 2, 0, -1])
        wanted = a.copy()
        np.add.at(wanted, where, a)
        x = ruda.asarray(a, device=device)
        agree(ruda.scatter(x, where, x, axis=0, mode="add"), wanted)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_halves_are_added_at_indices_in_single_ones(dtype, device):
    """As in sums: rounded once, so that ones do not stop to count."""
    ones = ruda.ones(2500, dtype=dtype, device=device)
    where = ruda.zeros(2500, dtype="int32", device=device)
    start = ruda.asarray([0.0, 5.0], dtype=dtype, device=device)
    found = ruda.scatter(start, where, ones, mode="add")
    assert found.dtype is dtype
    wanted = ruda.asarray([2500.0, 5.0], dtype=dtype)
    agree(found, wanted.numpy())
    agree(
        ruda.bincount(where, weights=ones, minlength=2),
        ruda.asarray([2500.0, 0], dtype=dtype).numpy(),
    )
    for of in (lambda x: ruda.sum(x[where]), lambda x: ruda.sum(ruda.take(x, where))):
        gradient = ruda.grad(of)(start)
        assert gradient.dtype is dtype
        agree(gradient, ruda.asarray([2500.0, 0], dtype=dtype).numpy())


def test_wrong_scattering():
    x = ruda.zeros((3, 4))
    with pytest.raises(ValueError, match="mode='mul'; there are set, add, min, max"):
        ruda.scatter(x, [0], x, mode="mul")
    with pytest.raises(ShapeError, match="one axis, or 2 as the tensor"):
        ruda.scatter(x, np.zeros((1, 1, 1), int), x)
    with pytest.raises(DTypeError, match="cannot write complex64 into a tensor of float32"):
        ruda.scatter(x, [0], 1j)
    with pytest.raises(IndexError, match="indices are integers, not float32"):
        ruda.take(x, [0.5], axis=0)
    with pytest.raises(ShapeError, match="`take` of a tensor of shape"):
        ruda.take(x, [0])


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (300,), (3, 5), (2, 0, 3), (4, 3, 30)])
def test_what_is_not_zero(shape, device, rng):
    a = rng.integers(-1, 2, shape).astype("f4")
    found = ruda.nonzero(ruda.asarray(a, device=device))
    wanted = np.nonzero(a)
    assert len(found) == len(wanted)
    for f, w in zip(found, wanted, strict=True):
        agree(f, w)
    agree(ruda.count_nonzero(ruda.asarray(a, device=device)), np.count_nonzero(a))


# ---- scans ---------------------------------------------------------------------------------------

SCANS = {
    "cumulative_sum": np.add, "cumulative_prod": np.multiply, "cummax": np.maximum,
    "cummin": np.minimum,
}  # fmt: skip


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("shape", [(0,), (1,), (5,), (7, 3), (130,), (3, 70, 2), (5000,)])
def test_scans_match_numpy(name, shape, device, rng):
    if device == "sim" and shape == (5000,):
        shape = (200,)
    a = rng.uniform(0.9, 1.1, shape).astype("f4")
    x = ruda.asarray(a, device=device)
    for axis in range(len(shape)):
        found = getattr(ruda, name)(x, axis=axis)
        wanted = SCANS[name].accumulate(a.astype("f8"), axis=axis)
        assert found.dtype == ruda.float32
        np.testing.assert_allclose(found.numpy(), wanted, rtol=2e-5)


def test_scans_of_every_dtype(device, rng):
    for dtype in few_dtypes(device, dtypes_of(device)):
        a = rng.integers(0, 5, (2, 150)).astype(dtype.numpy)
        x = ruda.asarray(a, device=device)
        found = ruda.cumulative_sum(x, axis=1)
        wanted = np.cumsum(a.astype("c16" if dtype.kind == "complex" else "f8"), axis=1)
        assert found.dtype == OPS["sum"].dtypes((dtype,))[1]
        agree(found, wanted.astype(found.dtype.numpy))
        if dtype.kind not in ("complex", "bool"):
            a = values(rng, dtype, (2, 150))
            a[0, :100] = np.where(a[0, :100] == a[0, :100], a[0, :100], 0)
            x = ruda.asarray(a, device=device)
            with np.errstate(invalid="ignore"):
                wanted = np.maximum.accumulate(a, axis=1)
            agree(ruda.cummax(x, axis=1), wanted)


def test_integers_are_summed_in_64_bits(device):
    x = ruda.asarray(np.full(3, 100, "i1"), device=device)
    agree(ruda.cumulative_sum(x), [100, 200, 300])
    agree(ruda.cumulative_sum(x, dtype="int8"), np.array([100, -56, 44], "i1"))


@pytest.mark.parametrize("n", [0, 1, 70, 3000])
def test_scans_with_a_first_value_and_without_the_own_one(n, device, rng):
    n = min(n, 100) if device == "sim" else n
    a = rng.integers(-5, 5, (2, n)).astype("i4")
    x = ruda.asarray(a, device=device)
    sums = np.cumulative_sum(a, axis=1, include_initial=True)
    agree(ruda.cumulative_sum(x, axis=1, include_initial=True), sums)
    agree(ruda.cumulative_sum(x, axis=1, exclusive=True), sums[:, :-1])
    if n and LONG:
        agree(ruda.cumulative_prod(x, axis=1, exclusive=True)[:, 0], [1, 1])


def test_scans_of_one_form_come_again(device, rng):
    """The launches of the first are run again, on the others' memory; other options have theirs."""
    n = 100 if device == "sim" else 5000
    for _ in range(3):
        a = rng.integers(-5, 5, n).astype("i4")
        x = ruda.asarray(a, device=device)
        agree(ruda.cumulative_sum(x), np.cumsum(a))
        agree(ruda.cumulative_sum(x, dtype="int32"), np.cumsum(a, dtype="i4"))
        agree(ruda.cumulative_sum(x, exclusive=True), np.cumsum(a) - a)
        agree(ruda.cummax(x), np.maximum.accumulate(a))
        agree(ruda.cumulative_sum(x[::-1]), np.cumsum(a[::-1]))
        agree(ruda.cumulative_sum(x[1:]), np.cumsum(a[1:]))


@pytest.mark.parametrize("n", [1, 70, 3000])
@pytest.mark.parametrize("exclusive", [False, True])
def test_segmented_scans(n, exclusive, device, rng):
    n = min(n, 100) if device == "sim" else n
    a, starts = rng.integers(-5, 5, n).astype("i4"), rng.random(n) < 0.05
    x, marks = ruda.asarray(a, device=device), ruda.asarray(starts, device=device)
    wanted = np.empty(n, "i8")
    total = 0
    for k in range(n):
        total = 0 if starts[k] else total
        wanted[k] = total if exclusive else total + a[k]
        total += a[k]
    agree(ruda.segmented_scan(x, marks, exclusive=exclusive), wanted)


def test_wrong_scans():
    with pytest.raises(ShapeError, match=r"`cumulative_sum` of a tensor of shape .* needs an"):
        ruda.cumulative_sum(ruda.zeros((2, 2)))
    with pytest.raises(DTypeError, match="`max` is not defined for"):
        ruda.cummax(ruda.asarray([1j]))
    with pytest.raises(ValueError, match="both put a value first"):
        ruda.cumulative_sum(ruda.zeros(2), include_initial=True, exclusive=True)
    with pytest.raises(ValueError, match="op='mean'; there are sum, prod, max, min"):
        ruda.segmented_scan(ruda.zeros(2), ruda.zeros(2), op="mean")


# ---- orders --------------------------------------------------------------------------------------


def order_of(row, descending):
    """The order by Python's sort: NaN last, equal ones as they stand."""

    def key(k):
        v = row[k].item()
        if isinstance(v, complex):
            nan = 2 * (v.real != v.real) + (v.imag != v.imag)
            parts = [0.0 if p != p else -p if descending else p for p in (v.real, v.imag)]
            return (nan, *parts)
        return (v != v, 0 if v != v else -v if descending else v)

    return sorted(range(len(row)), key=key)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("shape", [(0,), (1,), (2,), (3, 63), (2, 70), (1100,)])
def test_orders(shape, descending, device, rng):
    shape = (200,) if device == "sim" and shape == (1100,) else shape
    for dtype in FEW:
        a = values(rng, dtype, shape)
        x = ruda.asarray(a, device=device)
        rows = a.reshape(-1, shape[-1]) if a.size else np.zeros((0, 0))
        order = np.array([order_of(r, descending) for r in rows], int).reshape(shape)
        agree(ruda.argsort(x, descending=descending), order)
        wanted = np.take_along_axis(a, order, -1)
        found = ruda.sort(x, descending=descending).numpy()
        agree(found, wanted)
        if dtype.kind == "float":
            zeros = wanted == 0
            agree(np.signbit(found[zeros]), np.signbit(wanted[zeros]))


def few_dtypes(device, every):
    """All of them, but where a software driver takes seconds to compile a kernel for each."""
    few = ("bool", "int32", "uint32", "float32", "complex64")
    return every if LONG or device != "wgpu" else [d for d in every if d.name in few]


def test_orders_of_every_dtype(device, rng):
    for k, dtype in enumerate(few_dtypes(device, dtypes.ALL)):
        long = LONG or device != "sim" or dtype.bits <= 16 or dtype.name == "float64"
        for n in (9, 66) if long else (9,):
            a = values(rng, dtype, (n,))
            x = ruda.asarray(a, device=device)
            for descending in (False, True) if LONG or n < 66 else (k % 2 == 0,):
                order = order_of(a, descending)
                agree(ruda.argsort(x, descending=descending), order)
                agree(ruda.sort(x, descending=descending), a[order])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_orders_along_an_axis(axis, device, rng):
    a = rng.normal(size=(5, 4, 3)).astype("f4")
    x = ruda.asarray(a, device=device)
    agree(ruda.sort(x, axis=axis), np.sort(a, axis))
    agree(ruda.argsort(x, axis=axis), np.argsort(a, axis))
    values, indices = ruda.topk(x, 2, axis=axis)
    cut = tuple(slice(0, 2) if k == axis % 3 else slice(None) for k in range(3))
    agree(values, -np.sort(-a, axis)[cut])
    agree(indices, np.argsort(-a, axis)[cut])
    agree(ruda.topk(x, 1, axis=axis, largest=False).values, np.min(a, axis, keepdims=True))


@pytest.mark.parametrize("kth", [0, 5, -1])
def test_partitions(kth, device, rng):
    a = rng.choice([*SPECIAL, *rng.normal(size=4)], (20, 3)).astype("f4")
    x = ruda.asarray(a, device=device)
    wanted = np.sort(a, 0)
    order = ruda.argpartition(x, kth, axis=0)
    for found in (ruda.partition(x, kth, axis=0), ruda.take_along_axis(x, order, axis=0)):
        agree(found[kth], wanted[kth])
        agree(ruda.sort(found[:kth], axis=0), wanted[:kth])
        agree(ruda.sort(found[kth:], axis=0), wanted[kth:])
    with pytest.raises(ShapeError, match="`partition`: no place 3 among 3 elements"):
        ruda.partition(x, 3)


def test_several_tiles_of_random_numbers(device, rng):
    n = 150 if device == "sim" else 20_000
    a = rng.normal(size=n).astype("f4")
    agree(ruda.sort(ruda.asarray(a, device=device)), np.sort(a))


@pytest.mark.only_on("cpu", what="the kernels that NumPy stands in for")
@pytest.mark.usefixtures("both_ways")
def test_kernels_beside_numpy(device, rng):
    """Several chunks of several tiles, and a last one that is not full."""
    a = rng.choice([*SPECIAL, *rng.normal(size=300)], 1000).astype("f4")
    x = ruda.asarray(a)
    agree(ruda.argmax(x), np.argmax(a))
    agree(ruda.nonzero(x)[0], np.nonzero(a)[0])
    agree(ruda.sort(x), a[order_of(a, False)])


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(side, device, rng):
    row = np.sort(rng.integers(0, 30, 40)).astype("f4")
    row[-3:] = np.nan
    v = rng.choice([*range(-1, 32), np.nan, np.inf], (3, 7)).astype("f4")
    x, y = ruda.asarray(row, device=device), ruda.asarray(v, device=device)
    agree(ruda.searchsorted(x, y, side=side), np.searchsorted(row, v, side))
    mixed = rng.permutation(40)
    x = ruda.asarray(row[np.argsort(mixed)], device=device)
    agree(ruda.searchsorted(x, y, side=side, sorter=ruda.asarray(mixed, device=device)),
          np.searchsorted(row, v, side))  # fmt: skip
    agree(ruda.searchsorted(ruda.zeros(0, device=device), y), np.zeros((3, 7)))


@pytest.mark.parametrize("shape", [(0,), (1,), (40,), (3, 50)])
def test_what_is_unique(shape, device, rng):
    for dtype in FEW:
        a = values(rng, dtype, shape)
        x = ruda.asarray(a, device=device)
        found = ruda.unique_all(x)
        wanted = np.unique(a, True, True, True, equal_nan=False)
        for f, w in zip(found, wanted, strict=True):
            agree(f, w)
        agree(ruda.unique_values(x), wanted[0])
    assert ruda.unique_counts(x).counts.size == ruda.unique_inverse(x).values.size


def test_counts(device, rng):
    a = rng.integers(0, 9, 300).astype("i4")
    w = rng.normal(size=300).astype("f4")
    x, y = ruda.asarray(a, device=device), ruda.asarray(w, device=device)
    agree(ruda.bincount(x, minlength=12), np.bincount(a, minlength=12))
    agree(ruda.bincount(x, minlength=3000), np.bincount(a, minlength=3000))
    np.testing.assert_allclose(
        ruda.bincount(x, weights=y).numpy(), np.bincount(a, w), rtol=1e-4, atol=1e-5
    )
    counts, edges = ruda.histogram(y, 7)
    agree(counts, np.histogram(w, 7)[0])
    np.testing.assert_allclose(edges.numpy(), np.histogram(w, 7)[1], rtol=1e-6)
    agree(ruda.histogram(x, [0, 3, 4, 8])[0], np.histogram(a, [0, 3, 4, 8])[0])
    density = ruda.histogram(y, 5, range=(-1, 1), density=True)[0].numpy()
    np.testing.assert_allclose(density, np.histogram(w, 5, (-1, 1), density=True)[0], rtol=1e-5)


@pytest.mark.parametrize("dtype", [dtypes.int8, dtypes.int32, dtypes.uint32, dtypes.int64,
                                   dtypes.uint64], ids=str)  # fmt: skip
def test_histograms_of_integers_are_exact(dtype, device, rng):
    """Near numbers that floats round, with edges between integers, on them and past the dtype."""
    low, high = dtype.range
    for middle in (0, 2**24, 2**31, high - 20):
        first, last = max(low, middle - 20), min(high, middle + 20)
        if first > last:
            continue
        a = rng.integers(first, last, 300, endpoint=True, dtype=dtype.numpy)
        x = ruda.asarray(a, device=device)
        if middle < 2**52:  # where NumPy's edges are exact
            agree(ruda.histogram(x, 7)[0], np.histogram(a.astype("i8"), 7)[0])
            ends = first + 2.5, first + 11
            agree(ruda.histogram(x, 3, range=ends)[0], np.histogram(a.astype("i8"), 3, ends)[0])
            edges = np.array([-np.inf, first + 0.5, first + 1, first + 3.25, last])
            agree(ruda.histogram(x, edges)[0], np.histogram(a.astype("i8"), edges)[0])
        kind = np.uint64 if first > 2**62 else np.int64
        edges = np.array([first, first + 1, first + 2, last - 1], kind)
        agree(ruda.histogram(x, edges)[0], np.histogram(a.astype(kind), edges)[0])
    x = ruda.asarray(np.array([low + 1, high - 1], dtype.numpy), device=device)
    assert ruda.histogram(x, 2)[0].tolist() == [1, 1]  # also if their edges are rounded inwards
    x = ruda.asarray(np.array([low, high], dtype.numpy), device=device)
    assert ruda.histogram(x, [-np.inf, 0.5, np.inf])[0].tolist() == [int(low <= 0), 1]
    assert ruda.histogram(x, [2.0**65, 2.0**66])[0].tolist() == [0]
    assert ruda.histogram(x, [-(2.0**66), -(2.0**65)])[0].tolist() == [0]


def test_wrong_orders_and_counts():
    x = ruda.zeros((3, 4))
    with pytest.raises(ShapeError, match="`topk`: 5 of the 4 elements"):
        ruda.topk(x, 5)
    with pytest.raises(ShapeError, match="`sort` of a tensor without axes"):
        ruda.sort(ruda.asarray(1.0))
    with pytest.raises(ShapeError, match="a vector is needed"):
        ruda.searchsorted(x, x)
    with pytest.raises(ValueError, match="there are left and right"):
        ruda.searchsorted(x[0], x, side="up")
    with pytest.raises(ValueError, match="no negative numbers"):
        ruda.bincount(ruda.asarray([-1]))
    with pytest.raises(ShapeError, match="a vector of integers"):
        ruda.bincount(x)
    with pytest.raises(ValueError, match="does not fall"):
        ruda.histogram(x, [1, 0])


# ---- products ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(3, 5, 6, 7), (1, 33, 5, 130), (2, 100, 37, 70), (1, 64, 16, 64)]
)
def test_products_of_views(shape, device, rng):
    """Tiles that sizes do not fill, of operands that lie along either axis."""
    count, m, k, n = shape
    for x_turned, y_turned in ((0, 0), (0, 1), (1, 0), (1, 1)):
        x = rng.normal(size=(count, k, m) if x_turned else (count, m, k)).astype("f4")
        y = rng.normal(size=(count, n, k) if y_turned else (count, k, n)).astype("f4")
        a, b = ruda.asarray(x, device=device), ruda.asarray(y, device=device)
        x, a = (x.swapaxes(1, 2), a.mT) if x_turned else (x, a)
        y, b = (y.swapaxes(1, 2), b.mT) if y_turned else (y, b)
        wanted = x.astype("f8") @ y.astype("f8")
        np.testing.assert_allclose((a @ b).numpy(), wanted, atol=5e-6 * k + 1e-6)
        four, six = a[:, None], b[None, :]
        np.testing.assert_allclose((four @ six).numpy(), x[:, None].astype("f8") @ y[None],
                                   atol=5e-6 * k + 1e-6)  # fmt: skip


def test_products_of_many_rows_by_one_matrix(device, rng):
    x, y = rng.normal(size=(2, 3, 4)).astype("f4"), rng.normal(size=(5, 4)).astype("f4")
    a = ruda.asarray(x, device=device).requires_grad_()
    b = ruda.asarray(y, device=device).requires_grad_()
    out = a @ b.T
    np.testing.assert_allclose(out.detach().numpy(), x @ y.T, rtol=1e-5, atol=1e-6)
    ruda.sum(out * out).backward()
    np.testing.assert_allclose(a.grad.numpy(), 2 * (x @ y.T) @ y, rtol=1e-4, atol=1e-5)
    flat = x.reshape(6, 4)
    np.testing.assert_allclose(b.grad.numpy(), 2 * (flat @ y.T).T @ flat, rtol=1e-4, atol=1e-5)
    empty = ruda.zeros((0, 3, 4), device=device) @ b.detach().T
    assert empty.shape == (0, 3, 5)


def test_products_of_16_bits_are_summed_in_32(device, rng):
    if not ruda.supports("add", "float16", device):
        pytest.skip("no float16 here")
    x = np.full((1, 4096), 0.5, "f2")
    found = ruda.asarray(x, device=device) @ ruda.asarray(x.T + np.float16(0.5), device=device)
    if device not in ("cpu", "sim"):  # where NumPy sums as it likes
        assert found.item() == 2048
