"""Arrays on devices, streams, events and the choice of device: the host's side of the
vocabulary."""

import asyncio
import copy
import pickle
import threading
import time

import numpy as np
import pytest

import ruda
from ruda import backends
from ruda.backends.base import DeviceArray, HostMemory, Storage, _at
from ruda.errors import DeviceError, DeviceNotFoundError, DTypeError, LaunchTypeError

RECORD = np.dtype([("x", "f4"), ("n", "i8")], align=True)


class FarMemory(HostMemory):
    """Memory that the host may reach only through `read` and `write`, as that of a GPU."""

    def allocate(self, nbytes, device, kind="device", stream=None):
        near = super().allocate(nbytes, device)
        far = Storage(device, 1 << 60, nbytes, near, kind != "device")  # a crash if touched
        return near if far.on_host else far

    def read(self, storage, offset, out, stream):
        super().read(storage.owner, offset, out, stream)

    def write(self, storage, offset, data, stream):
        super().write(storage.owner, offset, data, stream)


class Far(FarMemory):
    name = "far"

    def devices(self):
        return [backends.base.DeviceInfo("far", "a test", "software")]


@pytest.fixture(params=["cpu", "sim", "far"])
def place(request, monkeypatch):
    """Each device, and one whose memory the host cannot reach."""
    backends.find.cache_clear()
    get = backends.get
    far = Far()
    monkeypatch.setattr(backends, "get", lambda name: far if name == "far" else get(name))
    with ruda.config(device=request.param):
        yield request.param
    backends.find.cache_clear()


def samples():
    base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    yield base
    yield base[:, ::-1, ::2]
    yield np.asfortranarray(base[0])
    yield base[:0]
    yield np.float64(2.5)
    yield np.array(3, np.int8)
    yield np.zeros(3, RECORD)
    yield np.array([True, False])
    yield np.array([1 + 2j], np.complex64)
    yield np.array([1.5, -0.0, np.nan, np.inf], np.float16)


@pytest.mark.parametrize("host", list(samples()), ids=lambda a: f"{a.dtype.kind}{a.shape}")
def test_there_and_back(host, place):
    d = ruda.to_device(host)
    assert (d.shape, d.dtype, d.device, d.size, d.ndim) == (
        host.shape, host.dtype, place, host.size, host.ndim
    )  # fmt: skip
    back = d.copy_to_host()
    assert back.tobytes("K" if not host.flags.c_contiguous else "C") is not None
    assert np.array_equal(back.view(np.ndarray), host, equal_nan=host.dtype.kind == "f")
    assert back.dtype == host.dtype
    assert not np.shares_memory(back, np.asarray(host))


def test_order_is_kept(place):
    assert ruda.to_device(np.ones((2, 3), order="F")).is_f_contiguous()
    assert not ruda.to_device(np.ones((2, 3), order="F")).is_c_contiguous()
    assert ruda.to_device(np.ones((4, 6))[::2, ::2]).is_c_contiguous()
    assert ruda.device_array((2, 3), order="F").strides == (4, 8)


def test_python_numbers_become_the_default_float(place):
    assert ruda.to_device([1, 2.5]).dtype == np.float32
    assert ruda.to_device(1.5).shape == ()
    assert ruda.to_device([1j]).dtype == np.complex64
    assert ruda.to_device([1, 2]).dtype == np.int64
    with ruda.config(default_float="float64"):
        assert ruda.to_device([2.5]).dtype == np.float64
        assert ruda.device_array(2).dtype == np.float64
    assert ruda.device_array(2).dtype == np.float32


KEYS = [
    0, -1, slice(None), slice(1, None), slice(None, None, -1), (0, 1), (slice(None), 2), ...,
    (..., -1), None, (None, 1, ..., 2), (1, 2, 3), (slice(0, 0), 1),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing_is_numpys(key, place):
    host = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    d = ruda.to_device(host)
    found = d[key]
    assert isinstance(found, DeviceArray) == (np.ndim(host[key]) > 0)
    assert np.array_equal(
        found.copy_to_host() if isinstance(found, DeviceArray) else found, host[key]
    )
    d[key] = 7
    host[key] = 7
    assert np.array_equal(d.copy_to_host(), host)


def test_slices_are_views(place):
    d = ruda.to_device(np.arange(6, dtype=np.int64))
    part = d[1::2]
    part[:] = [10, 30, 50]
    part[1:].copy_to_device(np.array([31, 51]))
    assert d.copy_to_host().tolist() == [0, 10, 2, 31, 4, 51]
    d[1:] = d[:-1]
    assert d.copy_to_host().tolist() == [0, 0, 10, 2, 31, 4]


def test_indexing_errors(place):
    d = ruda.to_device(np.arange(6))
    with pytest.raises(IndexError, match="out of bounds"):
        d[6]
    with pytest.raises(IndexError, match="integers and slices, not list"):
        d[[1, 2]]
    with pytest.raises(IndexError, match="integers and slices, not ndarray"):
        d[np.ones(6, bool)]
    with pytest.raises(IndexError, match="too many"):
        d[0, 0]


def test_shapes(place):
    host = np.arange(24, dtype=np.float32)
    d = ruda.to_device(host)
    for shape in [(2, 12), (-1, 3), (2, 3, 4), (24, 1, 1), (2, -1, 2)]:
        assert np.array_equal(d.reshape(shape).copy_to_host(), host.reshape(shape))
        assert np.array_equal(d.reshape(*shape).T.copy_to_host(), host.reshape(shape).T)
    grid = d.reshape(4, 6)
    assert np.array_equal(grid.T.reshape(2, 12, order="F").copy_to_host(),
                          host.reshape(4, 6).T.reshape(2, 12, order="F"))  # fmt: skip
    assert np.array_equal(grid.transpose((1, 0)).copy_to_host(), host.reshape(4, 6).T)
    assert np.array_equal(grid.ravel().copy_to_host(), host)
    assert np.array_equal(d.reshape(1, 24, 1).squeeze().copy_to_host(), host)
    assert d.view(np.int32)[1] == np.float32(1).view(np.int32)
    assert d.view("u64").shape == (12,)
    assert ruda.device_array((0, 3)).reshape(3, 0, 5).shape == (3, 0, 5)
    assert ruda.device_array((0, 3)).ravel().shape == (0,)
    assert d[0:1].reshape(()).shape == ()
    for shape in [(5, 5), (-1, 7), (-1, -1), (-2, -12)]:
        with pytest.raises(ValueError, match=r"24 elements cannot have the shape"):
            d.reshape(shape)
    with pytest.raises(ValueError, match="contiguous in C order"):
        grid.T.reshape(24)


def test_iteration_and_length(place):
    d = ruda.to_device(np.arange(3, dtype=np.int16))
    assert len(d) == 3 and list(d) == [0, 1, 2] and d.tolist() == [0, 1, 2]
    assert [row.tolist() for row in ruda.to_device(np.eye(2, dtype=int))] == [[1, 0], [0, 1]]
    with pytest.raises(TypeError, match="without axes"):
        len(ruda.to_device(1.0))
    assert ruda.to_device(np.int8(4)).item() == 4
    with pytest.raises(ValueError, match="3 elements"):
        d.item()


def test_records(place):
    d = ruda.to_device(np.zeros(3, RECORD))
    d["x"] = [1, 2, 3]
    d[1]["n"] = 9
    assert d["x"].copy_to_host().tolist() == [1, 2, 3]
    assert d.copy_to_host()["n"].tolist() == [0, 9, 0]
    assert isinstance(d[0], DeviceArray)


def test_copies_check_shape_and_dtype(place):
    d = ruda.to_device(np.arange(6, dtype=np.float32))
    out = np.empty(6, np.float32)
    assert d.copy_to_host(out) is out and out[5] == 5
    column = np.empty((6, 1), np.float32)
    assert np.array_equal(d.copy_to_host(column).ravel(), out)
    with pytest.raises(ValueError, match=r"shape \(6,\) cannot be copied to one of shape \(5,\)"):
        d.copy_to_host(np.empty(5, np.float32))
    with pytest.raises(TypeError, match="float32 cannot be copied to one of float64"):
        d.copy_to_host(np.empty(6))
    with pytest.raises(TypeError, match="fills a NumPy array, not list"):
        d.copy_to_host([0] * 6)
    with pytest.raises(ValueError, match="copied from"):
        d.copy_to_device(np.empty(7, np.float32))
    with pytest.raises(TypeError, match="copied from one of int32"):
        d.copy_to_device(np.empty(6, np.int32))


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (4, 5), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("ours", ["C", "F", "reversed", "every other"])
@pytest.mark.parametrize("theirs", ["new", "C", "F", "every other"])
def test_copies_between_layouts(place, shape, ours, theirs):
    host = np.random.default_rng(0).standard_normal(shape)
    order = "F" if ours == "F" else "C"
    d = ruda.to_device(np.asarray(host, order=order))
    if shape and ours in ("reversed", "every other"):
        step = slice(None, None, -1 if ours == "reversed" else 2)
        d, host = d[step], host[step]
    if theirs == "new":
        out = d.copy_to_host()
        assert out.flags.writeable and out.base is None
    else:
        out = np.full(host.shape, np.nan, order="F" if theirs == "F" else "C")
        if shape and theirs == "every other":
            out = np.full((2 * host.shape[0], *host.shape[1:]), np.nan)[::2]
        assert d.copy_to_host(out) is out
    assert out.shape == host.shape and np.array_equal(out, host)
    if shape and theirs == "C" and host.size:
        out.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            d.copy_to_host(out)


def test_copies_between_device_arrays(place):
    d = ruda.to_device(np.arange(6, dtype=np.float32).reshape(2, 3))
    e = ruda.device_array_like(d)
    e.copy_to_device(d)
    assert np.array_equal(e.copy_to_host(), d.copy_to_host())
    f = d.T.copy()
    f[0, 0] = 100
    assert d[0, 0] == 0 and f.is_f_contiguous() and f.T[1, 2] == 5
    target = ruda.device_array(6, np.int64)
    assert ruda.to_device(np.arange(6), to=target) is target and target[3] == 3
    assert ruda.to_device(d) is d
    with pytest.raises(TypeError, match="`to` is a DeviceArray"):
        ruda.to_device(np.arange(6), to=np.empty(6))


def test_dtypes_that_no_kernel_takes_are_refused(place):
    for bad in (np.array(["a"]), np.array([None]), np.array([1], ">i4"), np.array([1], "M8[s]")):
        with pytest.raises(DTypeError):
            ruda.to_device(bad)
    with pytest.raises(DTypeError):
        ruda.device_array(3, object)


def test_bad_shapes(place):
    with pytest.raises(ValueError, match="negative"):
        ruda.device_array(-1)
    with pytest.raises(TypeError, match="integer or a tuple of integers"):
        ruda.device_array(2.5)
    with pytest.raises(ValueError, match="order='X'"):
        ruda.device_array(2, order="X")
    assert ruda.device_array(()).shape == ()
    assert ruda.device_array([2, 3]).shape == ruda.device_array((2, 3)).shape


def test_bfloat16(place):
    d = ruda.to_device(np.arange(4).astype(ruda.bfloat16.numpy))
    assert d.dtype == ruda.bfloat16 and d[1:].copy_to_host().astype(float).tolist() == [1, 2, 3]


def test_repr(place):
    d = ruda.to_device(np.arange(3, dtype=np.int8))
    assert repr(d) == f"DeviceArray([0, 1, 2], dtype=int8, device='{place}')"
    assert (
        repr(d.reshape(3, 1)[:0]) == f"DeviceArray([], shape=(0, 1), dtype=int8, device='{place}')"
    )
    assert len(repr(ruda.device_array(10**6))) < 200


def test_pickle_and_copy():
    d = ruda.to_device(np.arange(6, dtype=np.float32).reshape(2, 3).T)
    for other in (pickle.loads(pickle.dumps(d)), copy.deepcopy(d)):
        assert np.array_equal(other, d) and other.strides == d.strides
        other[0, 0] = 7
        assert d[0, 0] == 0


@pytest.mark.parametrize("near", ["cpu", "sim"])
def test_numpy_sees_host_devices_in_place(near):
    with ruda.config(device=near):
        d = ruda.to_device(np.arange(4, dtype=np.float32))
    seen = np.asarray(d)
    seen[0] = 5
    assert d[0] == 5 and np.shares_memory(np.from_dlpack(d), seen)
    assert d.__dlpack_device__() == (1, 0)
    assert np.array(d, dtype=np.int8).tolist() == [5, 1, 2, 3]
    assert d.storage.address % 64 == 0
    with pytest.raises(ValueError):
        np.asarray(d, dtype=np.int8, copy=False)


def test_views_outlive_the_array():
    view = np.asarray(ruda.to_device(np.arange(100_000)))
    part = ruda.to_device(np.arange(100_000))[5:]
    ruda.device_array(100_000, np.int64)[:] = -1
    assert view[77] == 77 and part[0] == 5


def test_far_memory_is_not_host_memory():
    far = Far()
    d = DeviceArray(far, far.allocate(12, "far"), (3,), np.dtype(np.float32))
    assert not hasattr(d, "__ruda_host__") and not hasattr(d, "__array_interface__")
    d.copy_to_device(np.ones(3, np.float32))
    assert np.asarray(d).tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="without a copy"):
        d.__array__(copy=False)


def test_out_of_memory_is_ours():
    with pytest.raises(
        ruda.errors.OutOfMemoryError,
        match=r"cpu has no memory left: 36,028,797,018,963,968 bytes asked for",
    ):
        ruda.device_array(1 << 55, np.int8)


@pytest.mark.parametrize("make", [ruda.pinned_array, ruda.mapped_array, ruda.managed_array])
def test_host_arrays(make):
    a = make((2, 3), np.int16, order="F")
    assert isinstance(a, np.ndarray) and a.flags.f_contiguous and a.ctypes.data % 64 == 0
    assert make(4).dtype == np.float32
    a[:] = 3
    assert int(a.sum()) == 18


def test_host_arrays_like_another():
    for like in (ruda.pinned_array_like, ruda.mapped_array_like):
        a = like(np.ones((2, 3), order="F"))
        assert a.shape == (2, 3) and a.dtype == np.float64 and a.flags.f_contiguous


@ruda.jit
def double(x):
    i = ruda.grid(1)
    if i < x.size:
        x[i] *= 2


@ruda.jit
def add(x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


def test_mapped_and_pinned_regions(device):
    with ruda.config(device=device):
        a, b = np.arange(8.0)[::-2], np.ones(4)
        if device.startswith("wgpu"):  # an adapter does not see the host's memory
            with pytest.raises(ruda.errors.DeviceError, match="copy it to the device"):
                ruda.mapped(a).__enter__()
            return
        with ruda.mapped(a) as d:
            double[1, 32](d)
        assert a.tolist() == [14, 10, 6, 2]
        with ruda.mapped(a, b) as (d, e):
            add[1, 32](d, e, e)
        assert b.tolist() == [15, 11, 7, 3]
        with ruda.pinned(a, b):
            double[1, 32](b)
        assert b[0] == 30
        with pytest.raises(TypeError, match="NumPy arrays, not list"), ruda.pinned([1]):
            pass
        b.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"), ruda.mapped(b):
            pass


def test_kernels_take_device_arrays(device):
    with ruda.config(device=device):
        host = np.arange(10, dtype=np.float32)
        d, out = ruda.to_device(host), ruda.device_array(10)
        add[1, 32](d, d[::-1], out)
        assert out.copy_to_host().tolist() == [9] * 10
        grid = ruda.to_device(np.zeros((4, 5), np.float32))
        add[1, 32](d[:4], d[4:8], grid[:, 2])
        assert grid.copy_to_host()[:, 2].tolist() == [4, 6, 8, 10]
        add[1, 32](d, host, out)
        assert out.copy_to_host().tolist() == (host * 2).tolist()
        zero = ruda.device_array(0)
        double[1, 32](zero)
        records = ruda.to_device(np.zeros(4, RECORD))
        double[1, 32](records["n"])


def test_argument_hints(device):
    with ruda.config(device=device):
        x, out = np.arange(4.0), np.empty(4)
        add[1, 32](ruda.In(x), ruda.InOut(x), ruda.Out(out))
        assert out.tolist() == [0, 2, 4, 6] and x.flags.writeable
        with pytest.raises(ruda.errors.KernelTypeError, match="read-only"):
            double[1, 32](ruda.In(x))
        d = ruda.to_device(x)
        double[1, 32](ruda.InOut(d))
        assert d[3] == 6
    with pytest.raises(LaunchTypeError, match="In takes an array, not float"):
        ruda.In(2.0)


def test_streams(device):
    with ruda.config(device=device):
        s = ruda.stream()
        assert s.device == backends.find(device).name
        d = ruda.to_device(np.arange(4.0), stream=s)
        with s.auto_synchronize():
            double[1, 32, s](d)
        host = d.copy_to_host(stream=s)
        s.synchronize()
        assert host.tolist() == [0, 2, 4, 6]
        double[1, 32, ruda.default_stream(), 0](d)
        assert d[1] == 4
        done = []
        s.add_callback(lambda *a: done.append(a), "x")
        deadline = time.monotonic() + 10
        while not done and time.monotonic() < deadline:  # a GPU calls from a thread
            time.sleep(0.001)
        assert done == [(s, 0, "x")]

        async def wait():
            return await s.async_done()

        assert asyncio.run(wait()) is None
        with pytest.raises(TypeError, match=r"comes from ruda.stream\(\), not str"):
            ruda.to_device(np.arange(4.0), stream="s")
        if hasattr(backends.get(device), "external_stream"):
            double[1, 32, ruda.external_stream(s.handle)](d)
            assert d[1] == 8
            return
        with pytest.raises(DeviceError, match="no streams of other libraries"):
            ruda.external_stream(0)


def test_events():
    start, end = ruda.event(), ruda.event()
    with pytest.raises(DeviceError, match="only after `record`"):
        start.elapsed_time(end)
    start.record()
    time.sleep(0.02)
    end.record(ruda.stream())
    assert 20 <= ruda.event_elapsed_time(start, end) < 5000
    assert end.query() and end.synchronize() is None and end.wait() is None
    with pytest.raises(DeviceError, match="timing=False"):
        start.elapsed_time(ruda.event(timing=False))
    with pytest.raises(TypeError, match="two events, not int"):
        ruda.event_elapsed_time(0, end)
    with pytest.raises(TypeError, match="two events, not int"):
        ruda.event_elapsed_time(start, 0)


def test_choice_of_device():
    assert ruda.get_current_device().name == "cpu"
    with ruda.device("sim") as info:
        assert info.name == "sim" == ruda.get_current_device().name
        assert ruda.device_array(2).device == "sim"
        with ruda.gpus[0]:
            assert ruda.get_current_device().name == "sim"
        assert ruda.gpus.current.name == "sim" and len(ruda.gpus) == 1
    assert ruda.get_current_device().name == "cpu"
    assert ruda.get_current_device() in ruda.list_devices()
    for bad in ("cpu:7", "gpu", 1, -1):
        with pytest.raises(DeviceNotFoundError):
            ruda.device(bad)
    with pytest.raises(TypeError, match="a name such as"):
        ruda.device(1.5)
    with ruda.config(device="cpu"):
        assert ruda.select_device(0).name == "cpu"
        assert ruda.select_device("sim").name == "sim" == ruda.get_current_device().name
    assert ruda.get_current_device().name == "cpu"


def test_default_device_holds_in_other_threads():
    seen = []
    ruda.set_default_device("sim")
    try:
        thread = threading.Thread(target=lambda: seen.append(ruda.get_current_device().name))
        thread.start()
        thread.join()
        x = np.zeros(4)
        double[1, 4](x)
        with pytest.raises(ruda.errors.OutOfBoundsError):
            out_of_bounds[1, 8](x)  # only sim finds it
    finally:
        ruda.set_default_device("cpu")
    assert seen == ["sim"]
    assert ruda.get_current_device().name == "cpu"


@ruda.jit
def out_of_bounds(x):
    x[ruda.grid(1)] = 1


def test_automatic_choice_is_a_real_device():
    with ruda.config(device="auto"):
        assert ruda.get_current_device().kind == "hardware"
        x = np.ones(3)
        double[1, 32](x)
        assert x.tolist() == [2, 2, 2]


def test_the_rest(capsys):
    assert ruda.is_available() and ruda.is_available("sim") and not ruda.is_available("tpu")
    assert ruda.detect() and "cpu" in capsys.readouterr().out
    free, total = ruda.current_context().get_memory_info()
    assert 0 < free <= total
    ruda.current_context().synchronize()
    ruda.synchronize()
    ruda.close()
    with ruda.defer_cleanup():
        pass


def test_refused_members_say_what_instead():
    d = ruda.to_device(np.arange(3))
    for thing, name, hint in (
        (d, "split", "slice"),
        (d, "get_ipc_handle", "mpi4py"),
        (d, "alloc_size", "nbytes"),
        (ruda.current_context(), "push", "no visible contexts"),
    ):
        with pytest.raises(AttributeError, match=hint):
            getattr(thing, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
        _ = d.nonsense
    with pytest.raises(AttributeError, match=r"kernel\.source"):
        _ = ruda.compile_ptx
    with pytest.raises(AttributeError, match="profilers see kernels by name"):
        _ = ruda.profile_start


def test_shadow_of_unreachable_memory_keeps_shape_and_strides():
    shadow = _at(1 << 60, (2, 3), np.dtype(RECORD), (96, 16), None)
    assert shadow["n"][1, ::2].strides == (32,)
