"""The dtypes of ruda beside those of NumPy: where they promote alike, and where they do not."""

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda
from ruda import dtypes
from ruda.dtypes import ALL, as_dtype, default_of, promote
from ruda.errors import DTypeError

INTEGERS = [d for d in ALL if d.is_integer]
SIGNED = [d for d in INTEGERS if d.is_signed]
HALVES = [ruda.float16, ruda.bfloat16]

# Where promotion differs from NumPy's, and why; all other pairs agree.
DIFFERENCES = [
    ("uint64 never goes through float", SIGNED, [ruda.uint64], lambda i, f: ruda.uint64),
    ("an integer and a 16-bit float give float32", INTEGERS, HALVES, lambda i, f: ruda.float32),
    ("an integer never widens float32", INTEGERS, [ruda.float32], lambda i, f: ruda.float32),
    ("an integer never widens complex64", INTEGERS, [ruda.complex64], lambda i, f: f),
    # `ml_dtypes` and NumPy know no common dtype of the two in some versions.
    ("the two 16-bit floats meet in float32", HALVES[:1], HALVES[1:], lambda a, b: ruda.float32),
]
EXPECTED = {
    frozenset((a, b)): (reason, result(a, b))
    for reason, left, right, result in DIFFERENCES
    for a, b in itertools.product(left, right)
}


def numpy_promote(a, b):
    """NumPy's answer as one of our dtypes; None where it has none."""
    try:
        return as_dtype(np.promote_types(a.numpy, b.numpy))
    except TypeError:
        return None


@pytest.mark.parametrize("a", ALL, ids=str)
def test_promotion_agrees_with_numpy_but_for_the_table(a):
    for b in ALL:
        theirs = numpy_promote(a, b)
        _, ours = EXPECTED.get(frozenset((a, b)), ("", theirs))
        assert promote(a, b) is ours, (a, b, theirs)


@pytest.mark.parametrize("row", DIFFERENCES, ids=lambda row: row[0])
def test_every_row_of_the_table_is_a_difference(row):
    _, left, right, result = row
    pairs = list(itertools.product(left, right))
    assert any(numpy_promote(a, b) is not result(a, b) for a, b in pairs) or row is DIFFERENCES[-1]


# A Python number beside an array. As in NumPy it does not widen the array's dtype; where the kind
# goes up it takes the default float, float32, where NumPy takes float64.
SCALARS = [
    (True, ruda.bool_, {}),
    (1, dtypes.weak_int, {}),
    (1.0, dtypes.weak_float, {np.dtype(np.float64): ruda.float32}),
    (1j, dtypes.weak_complex, {np.dtype(np.complex128): ruda.complex64}),
]


@pytest.mark.parametrize(("value", "weak", "narrower"), SCALARS, ids=lambda v: str(v)[:6])
@pytest.mark.parametrize("dtype", [d for d in ALL if d is not ruda.bfloat16], ids=str)
def test_a_python_number_promotes_as_in_numpy_but_for_the_default_float(
    dtype, value, weak, narrower
):
    theirs = np.result_type(np.zeros(1, dtype.numpy), value)
    rises = weak.kind != dtype.kind and not dtype.is_inexact
    expected = narrower.get(theirs, as_dtype(theirs)) if rises else as_dtype(theirs)
    assert default_of(promote(dtype, weak)) is expected


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_with_a_default_of_float64_python_numbers_promote_exactly_as_in_numpy(dtype):
    with ruda.config(default_float="float64"):
        for value, weak, _ in SCALARS:
            if dtype is ruda.bfloat16 and weak is dtypes.weak_complex:
                continue  # NumPy has no complex of bfloat16
            theirs = np.result_type(np.zeros(1, dtype.numpy), value)
            assert default_of(promote(dtype, weak)).numpy == theirs, weak


@given(st.lists(st.sampled_from(ALL + dtypes.WEAK), min_size=1, max_size=6), st.randoms())
def test_the_order_of_many_does_not_matter(values, random):
    def together(values):
        result = values[0]
        for value in values[1:]:
            result = promote(result, value)
        return result

    first = together(values)
    random.shuffle(values)
    assert together(values) is first


@given(st.sampled_from(INTEGERS), st.sampled_from(INTEGERS), st.integers(-(2**63), 2**64 - 1))
def test_an_integer_that_fits_one_fits_the_promotion_except_of_uint64_and_signed(a, b, value):
    both = promote(a, b)
    least, most = a.range
    if least <= value <= most and not (both is ruda.uint64 and (a.is_signed or b.is_signed)):
        assert both.range[0] <= value <= both.range[1]


# ------------------------------------------------------------------------------- dtype objects


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_the_range_of_an_integer_is_numpy_s(dtype):
    info = np.iinfo(dtype.numpy)
    assert dtype.range == (info.min, info.max)


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_kind_and_parts_are_numpy_s(dtype):
    if dtype is not ruda.bfloat16:
        kinds = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
        assert kinds[dtype.numpy.kind] == dtype.kind
        assert dtype.real.numpy == np.empty(0, dtype.numpy).real.dtype
    assert dtype.is_integer == (dtype.kind in ("int", "uint"))
    assert dtype.bits == 8 * dtype.itemsize


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_equality_and_hash(dtype):
    assert dtype == dtype.numpy
    assert dtype == dtype.numpy.type
    assert dtype == dtype.name and [n for n in ("", "f31", "index") if n == dtype] == []
    assert [other for other in ALL if other == dtype.name] == [dtype]
    assert [other for other in ALL if other == dtype] == [dtype]
    for strange in (None, 1, object, object(), (), [dtype.name], b"f4"):
        assert dtype != strange
    assert {dtype: 1}[pickle.loads(pickle.dumps(dtype))] == 1


@pytest.mark.parametrize(
    "value",
    ["f31", "", ">f4", "O", "U5", "M8[s]", object, str, "float128", None, 3, 1.5, [], (), {},
     np.dtype("O"), np.dtype("U3"), np.dtype(">f4"), np.dtype("M8[s]"), np.dtype([("a", "f4")]),
     np.dtype("V8"), np.longdouble, np.clongdouble, np.str_, np.ndarray, type],
    ids=repr,
)  # fmt: skip
def test_what_is_no_dtype_is_refused_by_an_error_of_ours(value):
    with pytest.raises(DTypeError, match="is not a dtype") as caught:
        as_dtype(value)
    assert isinstance(caught.value, TypeError)


def test_the_types_of_python():
    assert [as_dtype(t) for t in (bool, int, float, complex)] == [
        ruda.bool_, ruda.int64, ruda.float32, ruda.complex64,
    ]  # fmt: skip
    with ruda.config(default_float="float64"):
        assert (as_dtype(float), as_dtype(complex)) == (ruda.float64, ruda.complex128)


@pytest.mark.parametrize("name", [d.name for d in ALL if d is not ruda.bfloat16])
def test_the_types_of_numba(name):
    numba = pytest.importorskip("numba")
    theirs = numba.types.boolean if name == "bool" else getattr(numba.types, name)
    assert as_dtype(theirs).name == name


@ruda.jit
def copy_first(x, out):
    out[0] = x[0]


@pytest.mark.parametrize("dtype", [">f4", ">i8", [("a", ">f4")]], ids=str)
def test_an_array_of_another_byte_order_is_refused_at_the_launch(dtype):
    """Read as if it were native, it would give wrong numbers in silence."""
    with ruda.config(device="sim"), pytest.raises(ruda.errors.LaunchTypeError, match="cannot go"):
        copy_first[1, 1](np.ones(1, dtype), np.zeros(1, np.float32))


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.4.0", reason="of NumPy 2.4")
def test_numpy_takes_our_dtypes():
    assert np.zeros(2, dtype=ruda.int16).dtype == np.int16
    assert np.dtype(ruda.complex64) == np.complex64
