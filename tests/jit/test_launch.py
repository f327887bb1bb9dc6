"""Launches: configurations and arguments, good and bad; what a kernel object does besides."""

import copy
import enum
import gc
import linecache
import math
import pickle
import subprocess
import sys
import textwrap
import threading
import weakref
from typing import NamedTuple

import numpy as np
import pytest

import ruda
from ruda import errors
from ruda.errors import (
    KernelError,
    KernelTypeError,
    LaunchTypeError,
    LaunchValueError,
    SourceUnavailableError,
    UnsupportedError,
)
from ruda.jit.kernel import MAX_CONFIGURATIONS, MAX_VARIANTS


@pytest.fixture(autouse=True)
def on(request):
    """Tests with a parameter `device` launch on it."""
    if "device" not in request.fixturenames:
        yield
        return
    with ruda.config(device=request.getfixturevalue("device")):
        yield


@ruda.jit
def scale(a, x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i]


@ruda.jit
def fill(x, value):
    i, j, k = ruda.grid(3)
    if i < x.shape[0] and j < x.shape[1] and k < x.shape[2]:
        x[i, j, k] = value


@ruda.jit
def add_one(x):
    i = ruda.grid(1)
    if i < x.size:
        x[i] += 1


def ones(n=4, dtype=np.float32):
    return np.ones(n, dtype)


# ---- configurations ----


@pytest.mark.parametrize(
    "configuration",
    [(1, 8), ((1,), (8,)), ((1, 1), (8, 1)), ((1, 1, 1), (8, 1, 1)), ([2], [4]), (np.int64(2), 4),
     (2, np.uint8(4)), (1, 8, 0), (1, 8, None), (1, 8, 0, 0), (1, 8, 0, np.int32(16))],
    ids=str,
)  # fmt: skip
def test_configurations(configuration, device):
    x = ones(8)
    for _ in range(3):
        add_one[configuration](x)
    assert x.tolist() == [4] * 8


def test_three_dimensions(device):
    x = np.zeros((5, 3, 2), np.int32)
    fill[(2, 2, 1), (3, 2, 2)](x, 7)
    assert (x == 7).all()


@pytest.mark.parametrize(
    ("configuration", "error", "message"),
    [
        ((1.5, 8), LaunchTypeError, "the grid is made of integers, not float (1.5); use `//`"),
        ((1, 8.0), LaunchTypeError, "the block is made of integers, not float (8.0)"),
        ((np.float32(1), 8), LaunchTypeError, "the grid is made of integers, not float32"),
        ((True, 8), LaunchTypeError, "the grid is made of integers, not bool"),
        (("1", 8), LaunchTypeError, "the grid is made of integers, not str"),
        ((None, 8), LaunchTypeError, "the grid is made of integers, not NoneType"),
        ((0, 8), LaunchValueError, "the grid is (0,); each dimension must be at least 1"),
        ((-1, 8), LaunchValueError, "the grid is (-1,); each dimension must be at least 1"),
        ((1, 0), LaunchValueError, "the block is (0,); each dimension must be at least 1"),
        ((1, (8, 0)), LaunchValueError, "the block is (8, 0)"),
        ((1, 1025), LaunchValueError, "the block (1025, 1, 1) has 1025 threads; at most 1024"),
        ((1, (64, 64)), LaunchValueError, "has 4096 threads"),
        ((1, 2**70), LaunchValueError, "at most 1024 are possible"),
        ((2**31, 8), LaunchValueError, "is larger than 2147483647 blocks an axis"),
        (((1, 1, 1, 1), 8), LaunchValueError, "the grid has 1 to 3 dimensions, not 4"),
        (((), 8), LaunchValueError, "the grid has 1 to 3 dimensions, not 0"),
        ((1,), LaunchValueError, "launched as add_one[grid, block]"),
        (1, LaunchValueError, "launched as add_one[grid, block]"),
        ((1, 2, 3, 4, 5), LaunchValueError, "launched as add_one[grid, block]"),
        ((1, 8, "s"), LaunchTypeError, "a stream comes from ruda.stream(), not str"),
        ((1, 8, 7), LaunchTypeError, "a stream comes from ruda.stream(), not int"),
        ((1, 8, 0, -1), LaunchValueError, "dynamic shared memory cannot be -1 bytes"),
        ((1, 8, 0, 1.0), LaunchTypeError, "dynamic shared memory is a number of bytes"),
    ],
    ids=str,
)
def test_bad_configurations(configuration, error, message):
    with pytest.raises(error) as found:
        add_one[configuration]
    assert message in str(found.value) and "`add_one`" in str(found.value)


def test_forall(device):
    for n in (0, 1, 255, 256, 257):
        x = ones(n)
        add_one.forall(n)(x)
        add_one.forall(n, tpb=32)(x)
        assert (x == 3).all()
    add_one.forall(np.int32(4))(x)
    with pytest.raises(LaunchValueError, match="at least 0, not -1"):
        add_one.forall(-1)
    with pytest.raises(LaunchTypeError, match=r"number of tasks, not float \(2.5\)"):
        add_one.forall(2.5)
    with pytest.raises(LaunchTypeError, match="block is made of integers"):
        add_one.forall(4, tpb=2.5)


def test_a_kernel_is_not_called_without_a_grid():
    with pytest.raises(LaunchTypeError, match=r"write add_one\[blocks, threads\]"):
        add_one(ones())


@ruda.jit(device=True)
def helper(x):
    return x + 1


def test_a_device_function_is_not_launched():
    with pytest.raises(LaunchTypeError, match="`helper` is a device function"):
        helper[1, 32](1)
    with pytest.raises(LaunchTypeError, match=r"its Python function is `.py_func`"):
        helper(1)
    assert helper.py_func(1) == 2


# ---- arguments ----


def test_types_may_change_from_launch_to_launch(device):
    """The fast path must not run code for other types, layouts, sizes or devices."""
    launch = scale[1, 32]
    for _ in range(2):
        for dtype in (np.float32, np.float64, np.int32, np.float32):
            for n in (1, 5, 32):
                x, out = np.arange(n, dtype=dtype), np.zeros(n, dtype)
                launch(2, x, out)
                assert (out == 2 * x).all()
                scale[1, 32](dtype(3), x, out)
                assert (out == 3 * x).all()
            x, out = np.arange(20, dtype=dtype)[::-2], np.zeros(20, dtype)[::2]
            scale[1, 32](2, x, out)
            assert (out == 2 * x).all()


def test_wrong_number_of_arguments(device):
    for arguments in [(), (2.0,), (2.0, ones()), (2.0, ones(), ones(), ones())]:
        with pytest.raises(LaunchTypeError) as error:
            scale[1, 32](*arguments)
        message = f"`scale` takes 3 arguments (a, x, out), not {len(arguments)}"
        assert str(error.value) == message
    scale[1, 32](2.0, ones(), ones())
    with pytest.raises(LaunchTypeError, match="takes 3 arguments"):
        scale[1, 32](2.0, ones())


def test_arguments_by_name(device):
    out = ones()
    for _ in range(3):
        scale[1, 32](3.0, out=out, x=ones())
        assert out.tolist() == [3] * 4
    with pytest.raises(LaunchTypeError, match="`scale`: missing a required argument: 'x'"):
        scale[1, 32](3.0, out=out)
    with pytest.raises(LaunchTypeError, match="unexpected keyword argument 'b'"):
        scale[1, 32](3.0, ones(), out, b=1)


@ruda.jit
def with_default(x, value=5, n: ruda.constexpr = 2):
    i = ruda.grid(1)
    if i < x.size:
        x[i] = value * n


def test_defaults(device):
    x = ones()
    for arguments, result in [((), 10), ((3,), 6), ((3, 4), 12), ((), 10)]:
        with_default[1, 32](x, *arguments)
        assert (x == result).all()
    with_default[1, 32](x, n=10)
    assert (x == 50).all()


BAD = [
    (np.array(["a"]), "an array of dtype <U1 cannot go to a kernel; kernels compute with numbers"),
    (np.array([None]), "an array of dtype object cannot go to a kernel"),
    (np.array([b"a"]), "an array of dtype |S1 cannot go to a kernel"),
    (np.array([1], ">f4"), "pass `x.astype(x.dtype.newbyteorder('='))`"),
    (np.array([1], ">i8"), "pass `x.astype(x.dtype.newbyteorder('='))`"),
    (np.array([1], "M8[s]"), "pass `x.view(np.int64)`"),
    (np.array([1], np.longdouble), "pass `x.astype(np.float64)`"),
    ([1.0, 2.0], "`x`: a kernel takes arrays, numbers, tuples and records, not list"),
    ({1: 2}, "`x`: a kernel takes arrays, numbers, tuples and records, not dict"),
    (object(), "`x`: a kernel takes arrays, numbers, tuples and records, not object"),
    ((1.0, [2]), "`x`[1]: a kernel takes arrays, numbers, tuples and records, not list"),
]


def short(value):
    """The same in every process: an object's address is not."""
    return "object" if type(value) is object else repr(value)[:30]


@pytest.mark.parametrize(("value", "message"), BAD, ids=short)
def test_arguments_that_no_kernel_takes(value, message):
    with pytest.raises(LaunchTypeError) as error:
        add_one[1, 32](value)
    assert message in str(error.value) and "`x`" in str(error.value)


@pytest.mark.parametrize("value", [2.0, 3, True, 1j, "text", None, np.float32(1), (1, 2)], ids=repr)
def test_a_number_where_the_kernel_indexes_points_at_the_line(value):
    with pytest.raises(KernelError) as error:
        add_one[1, 32](value)
    assert error.value.filename == __file__ and error.value.lineno
    assert any("while translating kernel `add_one`" in n for n in error.value.__notes__)


def test_errors_show_the_frames_of_the_user_alone():
    with pytest.raises(KernelError) as error:
        add_one[1, 32](2.0)
    files = [str(entry.path) for entry in error.traceback]
    assert [f.endswith("kernel.py") for f in files] == [False, True]
    with pytest.raises(KernelError) as error, ruda.config(debug=1):
        add_one[1, 32](2.0)
    assert len(error.traceback) > 4


def test_an_array_where_the_kernel_computes(device):
    with pytest.raises(UnsupportedError, match="an expression on the whole of") as error:
        scale[1, 32](ones(), ones(), ones())
    assert "a thread computes one element" in error.value.__notes__[0]


def test_integers_must_fit(device):
    x = np.zeros(4, np.int8)
    fill[1, (4, 1, 1)](x.reshape(4, 1, 1), -128)
    assert (x == -128).all()
    for value in (128, -129, 2**40, 2**70):
        with pytest.raises(OverflowError, match="fit"):
            fill[1, (4, 1, 1)](x.reshape(4, 1, 1), value)
    assert (x == -128).all()


def test_layouts_and_sizes(device):
    base = np.arange(60, dtype=np.float32)
    for view in (base[::3], base[::-1], base[7:8], base[:0], base.reshape(6, 10)[:, 3],
                 np.broadcast_to(np.float32(3), 5),
                 np.asfortranarray(base.reshape(6, 10))[2]):  # fmt: skip
        out = np.zeros(view.shape, np.float32)
        scale[2, 32](2.0, view, out)
        assert (out == 2 * view).all()


@ruda.jit
def store_scalar(x, y):
    y[()] = x[()] + 1


def test_arrays_without_axes(device):
    y = np.array(0.0)
    store_scalar[1, 1](np.array(41.0), y)
    assert y[()] == 42


def test_zero_size_arrays(device):
    x = np.zeros((3, 0, 2))
    fill[1, (4, 4, 4)](x, 1.0)
    add_one[1, 32](np.zeros(0, np.int16))


def test_misaligned_arrays(device):
    raw = np.zeros(4 * 8 + 1, np.uint8)
    x = raw[1:].view(np.float64)
    assert not x.flags.aligned
    add_one[1, 32](x)
    assert x.tolist() == [1] * 4
    packed = np.zeros(5, np.dtype([("tag", "i1"), ("x", "f8")]))
    add_one[1, 32](packed["x"])
    assert packed["x"].tolist() == [1] * 5


def test_read_only_arrays(device):
    x, out = ones(), ones()
    x.flags.writeable = False
    scale[1, 32](2.0, x, out)
    assert out.tolist() == [2] * 4
    for _ in range(2):
        with pytest.raises(KernelTypeError, match="`x` is read-only"):
            add_one[1, 32](x)
    add_one[1, 32](out)
    out.flags.writeable = False
    with pytest.raises(KernelTypeError, match="read-only"):
        add_one[1, 32](out)
    assert out.tolist() == [3] * 4


def test_arguments_may_overlap(device):
    x = np.arange(8.0)
    scale[1, 32](2.0, x, x)
    assert x.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    scale[1, 4](1.0, x[:4], x[4:])
    assert x[4:].tolist() == [0, 2, 4, 6]


def test_subclasses_of_arrays(device):
    class Backwards(np.ndarray):
        def __getitem__(self, key):
            return super().__getitem__(-1 - key)

    x = np.arange(4.0).view(Backwards)
    for _ in range(2):
        add_one[1, 32](x)
    assert np.asarray(x).tolist() == [2, 3, 4, 5]
    with pytest.raises(LaunchTypeError, match=r"pass `x\.data` and `x\.mask`"):
        add_one[1, 32](np.ma.masked_array([1.0, 2.0], [0, 1]))


def test_files_mapped_into_memory(device, tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(np.arange(4.0).tobytes())
    mapped = np.memmap(path, np.float64)
    add_one[1, 32](mapped)
    mapped.flush()
    assert np.fromfile(path).tolist() == [1, 2, 3, 4]
    with pytest.raises(KernelTypeError, match="read-only"):
        add_one[1, 32](np.memmap(path, np.float64, "r"))


def test_mixed_devices():
    with ruda.config(device="sim"):
        far = ruda.to_device(ones())
    near = ruda.to_device(ones())
    with pytest.raises(LaunchTypeError, match=r"several devices \(cpu, sim\); move them to one"):
        scale[1, 32](2.0, near, far)
    with ruda.debug():
        scale[1, 32](2.0, near, far)  # the interpreter reads the host's memory
    assert far.copy_to_host().tolist() == [2] * 4


def test_a_stream_of_another_device():
    stream = ruda.stream()
    stream.device = "cuda:0"
    with pytest.raises(LaunchTypeError, match="on cpu, but its stream belongs to cuda:0"):
        add_one[1, 32, stream](ones())


class Pair(NamedTuple):
    x: np.ndarray
    factor: float


class Mode(enum.IntEnum):
    DOUBLE = 2


@ruda.jit
def named(pair, mode, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = pair.x[i] * pair.factor * mode


def test_tuples_and_enums(device):
    out = ones()
    for _ in range(2):
        named[1, 32](Pair(ones(), 3.0), Mode.DOUBLE, out)
        assert out.tolist() == [6] * 4
    with pytest.raises(KernelError, match="has no attribute `factor`"):
        named[1, 32]((ones(), 3.0), Mode.DOUBLE, out)


@ruda.jit("void(f32, f32[:], f32[:])")
def declared(a, x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i]


def test_signatures_decide_about_scalars(device):
    out = ones()
    for a in (3, 3.0, np.int8(3), np.float64(3), np.float32(3)):
        declared[1, 32](a, ones(), out)
        assert out.tolist() == [3] * 4
    with pytest.raises(LaunchTypeError) as error:
        declared[1, 32](3, ones(4, np.float64), out)
    assert "`declared` was declared for (float32, float32[:], float32[:]), not (" in str(
        error.value
    )


def test_a_bad_signature_shows_at_once():
    with pytest.raises(LaunchTypeError, match="takes 3 arguments"):
        ruda.jit("void(f32[:])")(scale.py_func)
    with pytest.raises(UnsupportedError, match="an expression on the whole of"):
        ruda.jit("void(f32[:], f32[:], f32[:])")(scale.py_func)
    with pytest.raises(errors.DTypeError, match="nonsense"):
        ruda.jit("void(nonsense)")(scale.py_func)


def test_launchers_serve_other_kinds_of_arguments_too(device):
    """A launcher that was fetched once is called with all that a kernel takes."""
    out = ones()
    scale[1, 32](2.0, ones(), out)
    launch = scale[1, 32]
    for _ in range(2):
        for x in (ones(), ones(8)[::2], ruda.to_device(ones()), ruda.In(ones()), ones(4, np.int16)):
            for a in (3, 3.0, np.float32(3), np.int8(3)):
                out[:] = 0
                launch(a, x, out)
                assert out.tolist() == [3] * 4
                launch(x=x, out=out, a=a)
        with pytest.raises(LaunchTypeError, match="takes 3 arguments"):
            launch(2.0, ones())
        with pytest.raises(LaunchTypeError, match="not list"):
            launch(2.0, [1.0], out)
        out.flags.writeable = False
        with pytest.raises(KernelTypeError, match="read-only"):
            launch(2.0, ones(), out)
        out.flags.writeable = True


def test_the_decorator_refuses_what_is_not_a_function():
    for bad in (3, len, object()):
        with pytest.raises(TypeError, match="decorates a function"):
            ruda.jit(bad)
    with pytest.raises(TypeError, match="is a ruda kernel already"):
        ruda.jit(scale)
    with pytest.raises(NotImplementedError, match="`link` is not in ruda"):
        ruda.jit(link=["x.cu"])
    with pytest.raises(TypeError, match="no option `fastmaths=True`: did you mean"):
        ruda.jit(fastmaths=True)


def test_thousands_of_threads(device):
    x = np.zeros(5000 if device == "sim" else 1 << 20, np.int32)
    add_one[-(-x.size // 1024), 1024](x)
    assert (x == 1).all()
    add_one[x.size, 1](x)
    assert (x == 2).all()


# ---- captured values ----

FACTOR = 2
TABLE = np.arange(4.0)


@ruda.jit
def captured(x):
    i = ruda.grid(1)
    if i < x.size:
        x[i] = FACTOR * TABLE[i]


def test_changed_globals_are_seen(device, monkeypatch):
    module = sys.modules[__name__]
    x = np.zeros(4)
    launch = captured[1, 32]
    for factor in (2, 3, 2, -0.0, 0.0, True, np.float32(2.5), 2):
        monkeypatch.setattr(module, "FACTOR", factor)
        for run in (captured[1, 32], launch):
            x[:] = -1
            run(x)
            expected = factor * TABLE
            assert (x == expected).all() and (np.signbit(x) == np.signbit(expected)).all()


def test_captured_arrays_changed_in_place_are_seen(device, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "TABLE", np.arange(4.0))
    x = np.zeros(4)
    for k in range(3):
        TABLE[1] = 10 * k
        captured[1, 32](x)
        assert x[1] == 20 * k


def test_equal_values_are_one_specialisation(device, monkeypatch):
    x = np.zeros(4)
    module = sys.modules[__name__]
    counts = []
    for _ in range(3):
        monkeypatch.setattr(module, "FACTOR", int("1000") + 7)
        monkeypatch.setattr(module, "TABLE", np.full(4, 2.0))
        captured[1, 32](x)
        captured[1, 32](x)
        assert x[0] == 2014
        counts.append(sum(len(v) for v in captured._specialisations.values()))
    assert len(set(counts)) == 1


@ruda.jit(device=True)
def twice(x):
    return 2 * x


@ruda.jit(device=True)
def thrice(x):
    return 3 * x


def plain_function(x):
    return 5 * x


@ruda.jit
def applies(x):
    i = ruda.grid(1)
    if i < x.size:
        x[i] = chosen(x[i])


chosen = twice


def test_rebound_device_functions_are_seen(device, monkeypatch):
    x = ones()
    for function in (twice, thrice, twice):
        monkeypatch.setattr(sys.modules[__name__], "chosen", function)
        for _ in range(2):
            x[:] = 1
            applies[1, 32](x)
            assert x[0] == function.py_func(1)


def test_closures_are_seen(device):
    factor = 2

    @ruda.jit
    def inner(x):
        i = ruda.grid(1)
        if i < x.size:
            x[i] *= factor  # noqa: F821

    x = ones()
    inner[1, 32](x)
    inner[1, 32](x)
    factor = 10
    inner[1, 32](x)
    inner[1, 32](x)
    assert x.tolist() == [400] * 4
    del factor
    with pytest.raises(KernelError, match="factor"):
        inner[1, 32](x)


def test_a_function_that_takes_the_place_of_a_dead_one_is_another(device, monkeypatch):
    """Addresses are used again; what a kernel captured must not be told by its address."""
    module = sys.modules[__name__]
    gc.freeze()  # what other tests left need not be looked through 20 times
    for k in range(20):
        space = {}
        source = f"def made(x):\n    return {k} + x\n"
        name = f"<made {k}>"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        exec(compile(source, name, "exec"), space)
        monkeypatch.setattr(module, "chosen", ruda.jit(device=True)(space["made"]))
        del space
        x = np.zeros(2, np.int32)
        applies[1, 32](x)
        assert x[0] == k
        linecache.cache.pop(name)
        monkeypatch.setattr(module, "chosen", None)
        gc.collect()
    gc.unfreeze()


def test_variants_for_captured_values_are_bounded(monkeypatch):
    x = np.zeros(4)
    with ruda.config(device="sim"):
        for k in range(3 * MAX_VARIANTS):
            monkeypatch.setattr(sys.modules[__name__], "FACTOR", k)
            captured[1, 32](x)
            assert x[3] == 3 * k
    assert all(len(v) <= MAX_VARIANTS for v in captured._specialisations.values())


def test_settings_are_looked_at_in_every_launch():
    @ruda.jit
    def outside(x):
        x[ruda.grid(1)] = 1

    x = np.zeros(4)
    launch = outside[1, 4]
    for _ in range(2):
        outside[1, 4](x)
        launch(x)
        launch = outside[1, 4]  # now perhaps native code
        with ruda.config(device="sim"), pytest.raises(errors.OutOfBoundsError):
            outside[1, 5](x)
        with ruda.config(device="sim"):
            launch(x)
            with pytest.raises(errors.OutOfBoundsError):
                launch(x[:3])


# ---- the kernel as an object ----


def make_kernel(n):
    @ruda.jit
    def local(x):
        i = ruda.grid(1)
        if i < x.size:
            x[i] += n

    return local


def test_kernels_defined_in_a_loop_are_let_go(device):
    dead = []
    for n in range(5):
        kernel = make_kernel(n)
        x = np.zeros(3, np.int32)
        kernel[1, 4](x)
        kernel[1, 4](x)
        assert x[0] == 2 * n
        dead.append((weakref.ref(kernel), weakref.ref(kernel.py_func)))
        del kernel
    gc.collect()
    assert [(k(), f()) for k, f in dead] == [(None, None)] * 5


def test_configurations_are_bounded():
    kernel = make_kernel(1)
    x = np.zeros(1, np.int32)
    with ruda.config(device="sim"):
        for n in range(1, MAX_CONFIGURATIONS + 100):
            kernel[1, 1, 0, n]
        kernel[1, 1](x)
    assert len(kernel._configured) <= MAX_CONFIGURATIONS and x[0] == 1


def test_streams_are_let_go():
    kernel = make_kernel(1)
    streams = []
    for _ in range(MAX_CONFIGURATIONS + 1):
        stream = ruda.stream()
        streams.append(weakref.ref(stream))
        kernel[1, 1, stream]
        del stream
    gc.collect()
    assert streams[0]() is None


module_kernel = make_kernel(1)
beside = ruda.jit(fastmath=True)(plain_function)


class Holder:
    @ruda.jit
    def kernel(x):
        i = ruda.grid(1)
        if i < x.size:
            x[i] += 5

    @ruda.jit
    def method(self, x):
        x[0] = 1


def test_kernels_in_classes(device):
    x = ones()
    Holder.kernel[1, 32](x)
    Holder().kernel[1, 32](x)
    assert x.tolist() == [11] * 4
    with pytest.raises(LaunchTypeError, match=r"takes 2 arguments \(self, x\), not 1") as error:
        Holder().method[1, 32](x)
    assert error.value.__notes__ == ["hint: a kernel in a class gets no instance: leave `self` out"]


def test_pickled_kernels_are_found_by_name():
    for kernel in (scale, helper, Holder.kernel):
        assert pickle.loads(pickle.dumps(kernel)) is kernel
        assert copy.copy(kernel) is kernel and copy.deepcopy([kernel])[0] is kernel
    again = pickle.loads(pickle.dumps(beside))
    assert again.py_func is plain_function and again.options == beside.options
    for kernel in (make_kernel(1), module_kernel):
        with pytest.raises(pickle.PicklingError, match="define it at the top of a module"):
            pickle.dumps(kernel)
        assert copy.deepcopy(kernel) is kernel


def test_pickled_errors():
    with pytest.raises(UnsupportedError) as translated:
        scale[1, 32](ones(), ones(), ones())
    with pytest.raises(LaunchTypeError) as launched:
        scale[1, 32](1)
    with ruda.debug(), pytest.raises(errors.OutOfBoundsError) as checked:
        bad_index[1, 1](ones())
    for error in (translated.value, launched.value, checked.value):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and str(again) == str(error)
        assert getattr(again, "__notes__", []) == getattr(error, "__notes__", [])
        assert getattr(again, "place", None) == getattr(error, "place", None)


@ruda.jit
def bad_index(x):
    x[ruda.grid(1) + 100] = 1


def test_kernels_look_like_their_functions():
    assert scale.__name__ == "scale" and scale.__module__ == __name__
    assert repr(scale) == "<ruda kernel scale(a, x, out)>"
    assert repr(helper) == "<ruda device function helper(x)>"
    assert repr(scale[1, 32]).startswith("<scale[(1, 1, 1), (32, 1, 1)]")


def test_threads_compile_a_kernel_once(device):
    kernel = make_kernel(3)
    barrier = threading.Barrier(4)
    arrays = [np.zeros(100, np.int32) for _ in range(4)]
    failures = []

    def work(x):
        try:
            with ruda.config(device=device):
                barrier.wait()
                for _ in range(10):
                    kernel[4, 32](x)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(x,)) for x in arrays]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures and all((x == 30).all() for x in arrays)
    assert sum(len(v) for v in kernel._specialisations.values()) == 1


def test_an_error_leaves_the_kernel_usable(device):
    @ruda.jit
    def works_for_arrays(x):
        x[0] = 1

    for _ in range(2):
        with pytest.raises(KernelError):
            works_for_arrays[1, 1](2.0)
        x = ones()
        works_for_arrays[1, 1](x)


# ---- where the source comes from ----


def define(source, name="<cell>", keep=True):
    """Run text as a notebook does: its lines are put into `linecache`."""
    source = textwrap.dedent(source)
    if keep:
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    space = {"ruda": ruda, "np": np, "__name__": "__main__"}
    exec(compile(source, name, "exec"), space)
    return space


CELL = """
    @ruda.jit
    def kernel(x):
        i = ruda.grid(1)
        if i < x.size:
            x[i] = {}
"""


def test_notebook_cells(device):
    x = ones()
    define(CELL.format(2), "<cell 1>")["kernel"][1, 32](x)
    assert x[0] == 2
    again = define(CELL.format("nothing"), "<cell 2>")["kernel"]
    with pytest.raises(KernelError, match="`nothing` is not defined") as error:
        again[1, 32](x)
    assert (error.value.filename, error.value.lineno) == ("<cell 2>", 6)
    assert error.value.text == "        x[i] = nothing\n"


def test_a_cell_that_is_run_again_is_another_kernel(device):
    x = ones()
    first = define(CELL.format(2), "<cell 3>")["kernel"]
    second = define(CELL.format(3), "<cell 3>")["kernel"]
    second[1, 32](x)
    assert x[0] == 3
    first[1, 32](x)
    assert x[0] == 2


def test_a_file_edited_after_its_import(tmp_path, monkeypatch, device):
    path = tmp_path / "edited_kernels.py"
    path.write_text("import ruda\n" + textwrap.dedent(CELL.format(2)))
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("edited_kernels", None)
    import edited_kernels

    path.write_text("# one line\n# more\n\nimport ruda\n" + textwrap.dedent(CELL.format(7)))
    linecache.checkcache()
    x = ones()
    edited_kernels.kernel[1, 32](x)
    assert x[0] == 2


def test_no_source():
    kernel = define(CELL.format(2), "<string>", keep=False)["kernel"]
    with pytest.raises(SourceUnavailableError, match="Python keeps no source for `kernel`"):
        kernel[1, 32](ones())
    with pytest.raises(SourceUnavailableError, match="a lambda cannot be a kernel"):
        ruda.jit(lambda x: None)[1, 32](ones())


@pytest.mark.only_on("sim", "cpu", what="that work on the host's processor can be ended")
def test_interrupting_a_long_launch(device):
    """Ctrl-C ends a launch, and the process can launch again."""
    code = f"""
        import os, signal, threading, time
        import numpy as np, ruda
        ruda.config(device={device!r})

        @ruda.jit
        def slow(x, rounds):
            i = ruda.grid(1)
            v = x[i % x.size]
            for k in range(rounds):
                v = v * 0.5 + 1
            if v < 0:  # never: blocks that wrote one place would be a race
                x[i % x.size] = v

        x = np.ones(64)
        slow[1, 64](x, 3)
        threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.perf_counter()
        try:
            slow[1 << 20, 64](x, 100_000)
            print("ended")
        except KeyboardInterrupt:
            print("interrupted", time.perf_counter() - began < 20)
        slow[1, 64](x, 3)
        print("launched")
    """
    path = f"<interrupt {device}>"
    code = textwrap.dedent(code)
    runner = (
        "import linecache, sys; s = sys.stdin.read(); "
        f"linecache.cache[{path!r}] = (len(s), None, s.splitlines(True), {path!r}); "
        f"exec(compile(s, {path!r}, 'exec'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", runner], input=code, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["interrupted", "True", "launched"], done.stderr


@ruda.jit
def with_constant(out, value: ruda.constexpr):
    out[0] = math.copysign(1.0, value) * (value / 2)


def test_compile_time_values_that_are_equal_are_told_apart():
    """1 and True, 0.0 and -0.0: a launch that was made ready for one does not serve the other."""
    for value in (3, 3.0, 0.0, -0.0, 0.0, True, 1, 1.0):
        out = np.zeros(1, np.float32)
        with_constant[1, 1](out, value)
        with_constant[1, 1](out, value)
        wanted = math.copysign(1.0, value) * (value / 2)
        assert out[0] == wanted and np.signbit(out[0]) == (math.copysign(1.0, wanted) < 0)


@ruda.jit
def constant(out, value: ruda.constexpr, pair, nothing):
    out[0] = 1 / value + pair[0] if nothing is None else -1


CONSTANTS = [1, True, 1.0, 2, 0.0, -0.0, float("inf"), float("nan")]


def test_compile_time_values_that_compare_equal_remain_apart(device):
    """A launch is found again by the kinds of its arguments: 0.0 and -0.0 are two of them."""
    for _ in range(2):
        for value in CONSTANTS:
            for more in (0, 0.5):
                out = np.zeros(1, np.float32)
                constant[1, 1](out, value, (more, 3), None)
                wanted = 1 / np.float32(value) if value else np.copysign(np.inf, value)
                assert out[0] == wanted + more or (np.isnan(value) and np.isnan(out[0]))
                constant[1, 1](out, value, (more, 3), 4)
                assert out[0] == -1


def test_launches_with_compile_time_values_are_prepared_once(monkeypatch):
    prepared = []
    launching = type(constant[1, 2])
    prepare = launching._prepare
    monkeypatch.setattr(
        launching, "_prepare", lambda self, *a: (prepared.append(1), prepare(self, *a))[1]
    )
    out = np.zeros(1, np.float32)
    with ruda.config(device="cpu"):
        for _ in range(5):
            constant[1, 2](out, 5, (1, 2), None)
    assert len(prepared) == 1


@ruda.jit
def scaled(out, factor):
    out[0] = factor


def test_launches_with_numpys_numbers_are_prepared_once(monkeypatch):
    """Also with tensors' memory, for which no launcher serves by itself."""
    from ruda import backends

    prepared = []
    launching = type(scaled[1, 2])
    prepare = launching._prepare
    monkeypatch.setattr(
        launching, "_prepare", lambda self, *a: (prepared.append(1), prepare(self, *a))[1]
    )
    out = np.zeros(1, np.float32)
    with ruda.config(device="cpu"):
        for factor in (np.float32(1), np.float32(2), np.float64(3), np.bool_(True), np.float32(5)):
            scaled[1, 2](backends.get("cpu").map(out, "cpu"), factor)
            assert out[0] == factor
    assert len(prepared) == 3
