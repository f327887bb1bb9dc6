"""Choices, scans and orders of elements, by the kernels of every device, against NumPy.

On the CPU `fusion="verify"` runs the kernels beside NumPy's library and compares the two.
"""

import os

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest

import ruda
from ruda import dtypes
from ruda.errors import CheckError, DTypeError, ShapeError

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


@pytest.fixture(autouse=True)
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


def test_of_several_values_for_an_element_the_last_one_stays(device, rng):
    a = rng.normal(size=500).astype("f4")
    where = rng.integers(0, 9, 500)
    wanted = np.zeros(9, "f4")
    wanted[where] = a
    x = ruda.zeros(9, device=device)
    x[ruda.asarray(where, device=device)] = ruda.asarray(a, device=device)
    agree(x, wanted)


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
        if device not in ("cpu", "sim"):
            assert set(x[where].tolist()) <= {0, 1, 4}


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


def test_scattering_every_dtype(device, rng):
    for dtype in dtypes_of(device):
        a = rng.integers(0, 5, (4, 2)).astype(dtype.numpy)
        where = np.array([0, 2, 0, -1])
        wanted = a.copy()
        np.add.at(wanted, where, a)
        x = ruda.asarray(a, device=device)
        agree(ruda.scatter(x, where, x, axis=0, mode="add"), wanted)


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
