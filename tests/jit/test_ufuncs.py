"""`vectorize`, `guvectorize` and `reduce` against NumPy, on each device and each kind of array."""

import gc
import linecache
import math
import operator
import sys

import numpy as np
import pytest

import ruda
from ruda import backends
from ruda.backends.base import DeviceArray
from ruda.errors import KernelError, KernelNameError, KernelTypeError, LaunchTypeError


@pytest.fixture(autouse=True)
def on(request):
    if "device" not in request.fixturenames:
        yield
        return
    with ruda.config(device=request.getfixturevalue("device")):
        yield


@ruda.vectorize
def axpy(a, x, y):
    return a * x + y


@ruda.vectorize(["f32(f32, f32)", "f64(f64, f64)", "i64(i64, i64)"], target="cuda")
def declared(x, y):
    return x - y


def same(x, y):
    return np.array_equal(x, y, equal_nan=True) and x.dtype == y.dtype and x.shape == y.shape


# ---- vectorize ----

SHAPES = [
    ((), (), ()), ((1,), (), ()), ((0,), (), ()), ((7,), (7,), (7,)), ((7,), (1,), ()),
    ((3, 5), (5,), (3, 1)), ((2, 3, 4), (3, 1), (2, 1, 1)), ((4, 1, 3), (2, 1), ()),
    ((2, 3, 2, 5), (5,), (3, 1, 1)), ((2, 1, 2, 1, 3), (1, 3, 1, 2, 1), ()), ((0, 3), (3,), ()),
    ((257,), (257,), ()), ((1, 1, 1), (1,), ()),
]  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["numpy", "device", "mixed"])
def test_broadcasting_is_numpys(shapes, kind, device, rng):
    hosts = [rng.integers(-9, 9, s).astype(np.float32) for s in shapes]
    arguments = [
        ruda.to_device(h) if kind == "device" or (kind == "mixed" and k == 1) else h
        for k, h in enumerate(hosts)
    ]
    found = axpy(*arguments)
    expected = hosts[0] * hosts[1] + hosts[2]
    if kind == "numpy":
        assert type(found) is (np.ndarray if expected.ndim else np.float32)
    else:
        assert isinstance(found, DeviceArray) and found.device == backends.find(device).name
    assert same(np.asarray(found), np.asarray(expected))


def test_strides(device, rng):
    base = rng.integers(0, 100, (6, 8, 10)).astype(np.float64)
    for view in (
        base[::2, ::-1, 1:9:3], base.T, base.transpose(1, 2, 0), base[:, 3], base[..., ::-1],
        np.asfortranarray(base[0]), np.broadcast_to(base[0, 0], (4, 10)),
    ):  # fmt: skip
        other = view[::-1]
        out = np.empty(view.shape[::-1]).T
        for result in (axpy(2, view, other), axpy(2, view, other, out=out)):
            assert same(result, 2 * view + other)
        d = ruda.to_device(base)
        assert same(axpy(2, d[::2, 1], d[1::2, 2]).copy_to_host(), 2 * base[::2, 1] + base[1::2, 2])
    assert axpy(2, base.T, base.T).flags.f_contiguous


def test_large(device):
    n = 3000 if device == "sim" else 3_000_001
    x = np.arange(n, dtype=np.float32)
    assert same(axpy(2, x, x), 3 * x)
    square = x[:2500].reshape(50, 50)
    assert same(axpy(2, square, square[0]), 2 * square + square[0])


def test_dtypes_are_the_languages(device):
    i32, f32, f64 = np.arange(3, dtype=np.int32), np.ones(3, np.float32), np.ones(3)
    assert axpy(2.0, f32, 1.0).dtype == np.float32
    assert axpy(2, i32, 1).dtype == np.int32
    assert axpy(2, i32, f32).dtype == np.float32
    assert axpy(2, i32, 0.5).dtype == np.float32
    assert axpy(2, f32, f64).dtype == np.float64
    assert axpy(np.float64(2), f32, 1).dtype == np.float64
    assert axpy(2, 3, 4) == 10 and axpy(2, 3, 4).dtype == np.int64
    assert axpy(1j, f32, 1).dtype == np.complex64
    with ruda.config(default_float="float64"):
        assert axpy(2, i32, 0.5).dtype == np.float64

    @ruda.vectorize
    def positive(x):
        return x > 0

    assert same(positive(np.array([-1.0, 2.0])), np.array([False, True]))


def test_signatures(device):
    i32, i64 = np.arange(3, dtype=np.int32), np.arange(3)
    assert declared(i32, 1).dtype == np.float64  # the first to which int32 goes without loss
    assert declared(i64, 1).dtype == np.float64
    assert declared(np.ones(3, np.float32), 2.5).dtype == np.float32
    assert declared(np.ones(3, np.int16), 1).dtype == np.float32
    assert same(declared(5, np.ones(2)), np.array([4.0, 4.0]))
    with pytest.raises(
        LaunchTypeError, match=r"declared for \(float32, float32\); .*not \(complex64"
    ):
        declared(np.ones(1, np.complex64), 1)
    for spelling in (ruda.float32(ruda.float32, ruda.float32), [ruda.float32(ruda.float32, "f32")],
                     "f32(f32, f32)"):  # fmt: skip
        one = ruda.vectorize(spelling)(declared.function.py_func)
        assert one(np.ones(1, np.float16), 2).dtype == np.float32


def test_numbas_signatures(device):
    numba = pytest.importorskip("numba")
    one = ruda.vectorize([numba.float64(numba.float32, numba.int8)])(declared.function.py_func)
    assert one(np.ones(1, np.float32), 2).dtype == np.float64


def test_out(device):
    x = np.arange(4.0)
    out = np.zeros((2, 4))
    assert axpy(1, x, 1, out=out) is out and axpy(1, x, 1, out) is out
    assert axpy(1, x, 1, out=(out,)) is out
    assert out.tolist() == [[1, 2, 3, 4]] * 2
    assert axpy(1, x, 1, out=x) is x and x.tolist() == [1, 2, 3, 4]
    axpy(1, x[:-1], 0, out=x[1:])  # they overlap
    assert x.tolist() == [1, 1, 2, 3]
    axpy(1, x[::-1], 0, out=x)
    assert x.tolist() == [3, 2, 1, 1]
    d = ruda.to_device(x)
    axpy(1, d[:-1], 0, out=d[1:])
    assert d.tolist() == [3, 3, 2, 1]
    small = np.zeros(4, np.float32)
    assert axpy(1, x, 0.5, out=small).tolist() == [3.5, 2.5, 1.5, 1.5]
    for bad, error, message in [
        (np.zeros(3), ValueError, "do not broadcast"),
        (np.zeros((1, 4))[:, :1], ValueError, "`out` has shape (1, 1), the result (1, 4)"),
        (np.zeros(4, int), TypeError, "a result of float64 does not go into `out` of int64"),
        ([0] * 4, LaunchTypeError, "`out` is an array, not list"),
        (np.broadcast_to(0.0, 4), ValueError, "`out` is read-only"),
    ]:
        with pytest.raises(error) as found:
            axpy(1, x, 1, out=bad)
        assert message in str(found.value) and "`axpy`" in str(found.value)


def test_bad_calls(device):
    with pytest.raises(LaunchTypeError, match="`axpy` takes 3 arguments, not 2"):
        axpy(1, 2)
    with pytest.raises(ValueError, match=r"shapes \(2,\), \(3,\) do not broadcast"):
        axpy(1, np.ones(2), np.ones(3))
    with pytest.raises(
        LaunchTypeError, match="argument 2 of `axpy` is an array or a number, not str"
    ):
        axpy(1, "a", 2)
    with pytest.raises(LaunchTypeError, match="argument 2 of `axpy`: an array of dtype object"):
        axpy(1, np.array([None]), 2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'where'"):
        axpy(1, 2, 3, where=True)
    for name in ("reduce", "accumulate", "outer", "at", "reduceat"):
        with pytest.raises(AttributeError, match=f"no `{name}`: use @ruda.reduce"):
            getattr(axpy, name)


def test_arrays_of_several_devices():
    near = ruda.to_device(np.ones(2))
    with ruda.config(device="sim"):
        far = ruda.to_device(np.ones(2))
    with pytest.raises(LaunchTypeError, match="several devices"):
        axpy(1, near, far)


def test_errors_point_at_the_users_line(device):
    @ruda.vectorize
    def broken(x):
        return x + missing  # noqa: F821

    with pytest.raises(KernelNameError) as error:
        broken(np.ones(3))
    line = linecache.getline(__file__, error.value.lineno)
    assert error.value.filename == __file__ and "x + missing" in line
    with pytest.raises(KernelNameError):
        ruda.vectorize("f32(f32)")(broken.function)

    @ruda.vectorize
    def pair(x):
        return x, x

    with pytest.raises(KernelTypeError, match="`pair` must return a number"):
        pair(1.0)


def test_bad_decorations():
    with pytest.raises(ValueError, match="target='tpu': expected one of cuda, cpu, parallel"):
        ruda.vectorize(target="tpu")
    with pytest.raises(TypeError, match="has no option 'fastmth'"):
        ruda.vectorize(fastmth=True)
    with pytest.raises(TypeError, match="decorates a function, not int"):
        ruda.vectorize()(3)
    with pytest.raises(TypeError, match="a signature of `f` has 1 arguments and a result"):
        ruda.vectorize("f32(f32, f32)")(f)
    with pytest.raises(TypeError, match="a signature of `f` has 1 arguments and a result"):
        ruda.vectorize("void(f32)")(f)
    with pytest.raises(TypeError, match="are numbers, not arrays"):
        ruda.vectorize("f32(f32[:])")(f)
    for target in ("cuda", "cpu", "parallel"):
        assert ruda.vectorize("f32(f32)", target=target)(f)(2.0) == 3


def f(x):
    return x + 1


SCALE = 2


@ruda.vectorize
def scaled(x):
    return x * SCALE


def test_changed_globals_change_the_result(device, monkeypatch):
    x = np.arange(3, dtype=np.int32)
    assert same(scaled(x), x * 2)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 0.5)
    assert same(scaled(x), np.array([0, 0.5, 1], np.float32))


def test_functions_and_streams(device):
    stream = ruda.stream()
    assert scaled(np.ones(2), stream=stream).tolist() == [2, 2]
    scaled.max_blocksize = 1
    assert scaled(np.ones(2)).tolist() == [2, 2]
    assert scaled.__name__ == "scaled" and "scaled(x)" in repr(scaled)


def test_random_numbers_of_dtypes(device, rng):
    @ruda.vectorize
    def mixed(x, y):
        return x * x - y

    for a in (np.int8, np.uint16, np.int32, np.int64, np.float16, np.float32, np.float64):
        for b in (np.int32, np.float32, np.float64):
            x, y = rng.integers(0, 10, 17).astype(a), rng.integers(0, 10, (3, 17)).astype(b)
            found = mixed(x, y)
            assert found.tolist() == (x.astype(float) ** 2 - y).tolist()


def test_generated_text_is_let_go():
    gc.collect()
    before = sum(k.startswith("<ruda ") for k in linecache.cache)
    for _ in range(3):

        @ruda.vectorize
        def short_lived(x):
            return x + 1

        short_lived(np.ones(2))
        del short_lived
    gc.collect()
    assert sum(k.startswith("<ruda ") for k in linecache.cache) == before


# ---- guvectorize ----


@ruda.guvectorize(["void(f64[:, :], f64[:], f64[:])", "void(i64[:, :], i64[:], i64[:])"],
                  "(m,n),(n)->(m)")  # fmt: skip
def matvec(a, x, out):
    for i in range(a.shape[0]):
        total = a[i, 0] * x[0]
        for j in range(1, x.size):
            total += a[i, j] * x[j]
        out[i] = total


@ruda.guvectorize(["void(f32[:], f32, f32[:], f32[:])"], "(n),()->(n),()")
def centred(x, weight, out, mean):
    total = ruda.float32(0)
    for k in range(x.size):
        total += x[k]
    m = total / x.size if x.size > 0 else ruda.float32(0)
    for k in range(x.size):
        out[k] = (x[k] - m) * weight
    mean[0] = m


LOOPS = [((), ()), ((4,), (4,)), ((3, 1), (2,)), ((2, 3), (2, 1)), ((0,), ()), ((2, 1, 2), (3, 1)),
         ((1,), (5,))]  # fmt: skip


@pytest.mark.parametrize("loops", LOOPS, ids=str)
@pytest.mark.parametrize("on_device", [False, True], ids=["numpy", "device"])
def test_gufuncs_loop_as_numpys(loops, on_device, device, rng):
    a = rng.integers(-9, 9, (*loops[0], 3, 2)).astype(np.float64)
    x = rng.integers(-9, 9, (*loops[1], 2)).astype(np.float64)
    move = ruda.to_device if on_device else lambda v: v
    found = matvec(move(a), move(x))
    assert isinstance(found, DeviceArray) == on_device
    assert same(np.asarray(found), np.asarray(np.matvec(a, x)))


def test_gufuncs_with_several_outputs(device, rng):
    x = rng.integers(0, 9, (4, 5, 8)).astype(np.float32)
    weight = np.array([[1.0], [2.0], [0.0], [-1.0]], np.float32)
    out, mean = centred(x, weight)
    expected = x.mean(-1)
    assert same(mean, expected)
    assert same(out, (x - expected[..., None]) * weight[..., None])
    assert centred(np.arange(3, dtype=np.float32), 1)[1] == 1
    assert centred(np.zeros((2, 0), np.float32), 1)[1].tolist() == [0, 0]


def test_gufuncs_convert_their_inputs(device):
    assert matvec(np.eye(2, dtype=np.int32), [3, 4]).dtype == np.float64
    assert matvec(np.eye(2, dtype=np.int64), np.array([3, 4])).dtype == np.float64
    d = ruda.to_device(np.eye(2, dtype=np.float32))
    assert matvec(d, ruda.to_device(np.ones(2))).tolist() == [1, 1]
    assert matvec(np.asfortranarray(np.arange(6.0).reshape(3, 2)), np.ones(4)[::2]).tolist() == [
        1,
        5,
        9,
    ]


def test_gufuncs_write_their_outputs(device):
    a, x = np.arange(12.0).reshape(2, 3, 2), np.ones(2)
    out = np.zeros((3, 2)).T
    assert matvec(a, x, out) is out and matvec(a, x, out=out) is out
    assert out.tolist() == a.sum(-1).tolist()
    small = np.zeros((2, 3), np.float32)
    matvec(a, x, small)
    assert small.tolist() == a.sum(-1).tolist()
    square = np.array([[0.0, 1.0], [1.0, 0.0]])
    matvec(square, square[0], out=square[0])
    assert square[0].tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"`out` has shape \(3,\), the result \(2, 3\)"):
        matvec(a, x, np.zeros(3))
    with pytest.raises(TypeError, match="does not go into `out` of int32"):
        matvec(a, x, np.zeros((2, 3), np.int32))


def test_gufuncs_whose_output_no_input_measures(device):
    @ruda.guvectorize("void(f64, f64[:])", "()->(n)")
    def powers(x, out):
        value = 1.0
        for k in range(out.size):
            out[k] = value
            value = value * x

    with pytest.raises(ValueError, match="no input tells the extent of n: pass `out`"):
        powers(2.0)
    assert powers([2.0, 3.0], np.zeros((2, 4))).tolist() == [[1, 2, 4, 8], [1, 3, 9, 27]]


def test_bad_gufunc_calls(device):
    with pytest.raises(ValueError, match="input 2 of `matvec`: `n` is 2 before and 3 here"):
        matvec(np.ones((3, 2)), np.ones(3))
    with pytest.raises(ValueError, match=r"input 1 of `matvec` has 1 axes; .*\(m, n\) needs 2"):
        matvec(np.ones(2), np.ones(2))
    with pytest.raises(ValueError, match=r"shapes \(2,\), \(3,\) do not broadcast"):
        matvec(np.ones((2, 3, 2)), np.ones((3, 2)))
    with pytest.raises(LaunchTypeError, match="takes 2 inputs and perhaps 1 outputs, not 1 and 0"):
        matvec(np.ones((3, 2)))
    with pytest.raises(
        LaunchTypeError, match=r"declared for \(float64, float64\); .* not \(complex"
    ):
        matvec(np.ones((3, 2), complex), np.ones(2))


def test_gufunc_errors_point_at_the_users_line(device):
    @ruda.guvectorize("void(f64[:], f64[:])", "(n)->(n)")
    def writes_its_input(x, out):
        x[0] = 1.0

    with pytest.raises(KernelError, match="read-only") as error:
        writes_its_input(np.ones(3))
    assert error.value.filename == __file__


@pytest.mark.parametrize(
    ("signature", "layout", "error", "message"),
    [
        ("void(f32[:], f32[:])", "(n)-(n)", ValueError, "'(n)-(n)' is not a layout"),
        ("void(f32[:], f32[:])", "(n),->(n)", ValueError, "is not a layout"),
        ("void(f32[:], f32[:])", "(3)->(n)", ValueError, "dimensions are names, not numbers"),
        (
            "void(f32[:], f32[:])",
            "(n),(n)->(n)",
            TypeError,
            "has 2 parameters, its layout 2 inputs",
        ),
        ("void(f32[:])", "(n)->(n)", TypeError, "a signature of `g` has 2 arguments"),
        (
            "void(f32, f32[:])",
            "(n)->(n)",
            TypeError,
            "argument 1 of `g` is float32 in its signature",
        ),
        (
            "void(f32[:], f32)",
            "(n)->()",
            TypeError,
            "argument 2 of `g` is float32 in its signature",
        ),
        (
            "void(f32[:, :], f32[:])",
            "(n)->(n)",
            TypeError,
            "float32[:, :] in its signature and (n)",
        ),
        ([], "(n)->(n)", TypeError, "needs signatures"),
    ],
)
def test_bad_gufuncs(signature, layout, error, message):
    def g(x, out):
        out[0] = x[0]

    with pytest.raises(error) as found:
        ruda.guvectorize(signature, layout)(g)
    assert message in str(found.value)


# ---- reduce ----


@ruda.reduce
def add(x, y):
    return x + y


@ruda.reduce
def multiply(x, y):
    return x * y


@ruda.reduce
def largest(x, y):
    return max(x, y)


SIZES = [1, 2, 3, 31, 32, 33, 1000, (1 << 14), (1 << 14) + 1, 3 * (1 << 14) + 77]


@pytest.mark.parametrize("n", SIZES)
def test_sums(n, device, rng):
    if device == "sim" and n > 20_000:
        n = 20_000
    x = rng.integers(-1000, 1000, n)
    assert add(x) == x.sum() and type(add(x)) is np.int64
    assert largest(x - 5000) == x.max() - 5000
    assert add(x[::-1]) == x.sum()
    assert add(ruda.to_device(x)[::2]) == x[::2].sum()
    assert add(x.astype(np.float64), init=0.5) == x.sum() + 0.5


def test_large_sums(device):
    n = 40_000 if device == "sim" else 5_000_011
    x = np.ones(n, np.float32)
    assert add(x) == n  # one accumulator alone would stop at 2**24
    assert add(x) == add(ruda.to_device(x))


def test_empty_and_single(device):
    assert add(np.zeros(0)) == 0 and multiply(np.zeros(0), init=1) == 1
    assert add(np.zeros(0, np.int8), init=3) == 3 and add(np.array(5.0)) == 5
    assert multiply(np.array([7])) == 7 and multiply(np.array([7]), init=2) == 14
    assert add(5.0) == 5


def test_several_axes(device):
    x = np.arange(24).reshape(2, 3, 4)
    assert add(x) == x.sum() and add(x.T) == x.sum() and add(x[:, ::2]) == x[:, ::2].sum()


def test_dtypes_of_reductions(device):
    for dtype in (np.int8, np.uint8, np.int32, np.float16, np.float32, np.complex64):
        x = np.arange(1, 6).astype(dtype)
        assert add(x) == x.sum() and add(x).dtype == dtype
    x = np.full(100, 100, np.int8)
    assert add(x) == np.int8(10000 % 256)


def test_results_and_sizes(device):
    x = np.arange(10)
    assert add(x, size=4) == 6 and add(x, size=0) == 0
    res = ruda.to_device(np.zeros(2, np.int64))
    assert add(x, res=res, init=100) is None
    assert res.tolist() == [145, 0]
    host = np.zeros(1, np.int64)
    assert add(x, size=3, res=host, stream=ruda.stream()) is None and host[0] == 3
    for bad, error, message in [
        ({"size": 11}, ValueError, "size=11 of an array of 10 elements"),
        ({"size": -1}, ValueError, "size=-1"),
        ({"res": np.zeros(1)}, TypeError, "`res` has dtype float64, the array int64"),
        ({"res": np.zeros(0, int)}, LaunchTypeError, "room for one element"),
        ({"res": 3}, LaunchTypeError, "room for one element"),
    ]:
        with pytest.raises(error) as found:
            add(x, **bad)
        assert message in str(found.value) and "`add`" in str(found.value)
    with pytest.raises(
        LaunchTypeError, match="argument 1 of `add` is an array or a number, not str"
    ):
        add("abc")


def test_reduce_as_a_class(device):
    assert ruda.Reduce(operator_like)(np.arange(4)) == 6
    with pytest.raises(TypeError, match="function of two numbers, not `f`"):
        ruda.reduce(f)
    with pytest.raises(TypeError, match="decorates a function"):
        ruda.reduce(operator.add)


def operator_like(a, b):
    return a + b


def test_specials_survive_reductions(device):
    assert math.isnan(largest(np.array([1.0, np.nan, 2.0])))
    assert add(np.array([np.inf, 1.0])) == np.inf
    assert np.signbit(add(np.array([-0.0])))
