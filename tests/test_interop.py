"""Arrays of other libraries in kernels and the other way: DLPack, array interfaces.

PyTorch and JAX are tried where they are installed; the protocols are tested with objects of our
own, so that every clause is tested everywhere.
"""

import ctypes
import gc
import importlib
import weakref

import ml_dtypes
import numpy as np
import pytest

import ruda
from ruda.backends import interop
from ruda.backends.base import DeviceArray
from ruda.errors import KernelError, LaunchTypeError

DTYPES = ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"]


@ruda.jit
def double(x):
    i = ruda.grid(1)
    if i < x.size:
        x[i] = x[i] + x[i]


@ruda.jit
def total(x, out):
    if ruda.grid(1) == 0:
        s = ruda.float32(0)
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                s += x[i, j] * (i * 10 + j)
        out[0] = s


ALIVE = []  # a producer keeps its struct until the deleter was called; here, for ever


class Foreign:
    """Another library's array: a DLPack of any version and flags, over NumPy's memory."""

    def __init__(self, data, version=(1, 0), readonly=False, device=(1, 0), offset=0, lanes=1):
        self.data, self.version, self.readonly = data, version, readonly
        self.device, self.offset, self.lanes = device, offset, lanes
        self.deleted, self.streams = 0, []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None):
        self.streams.append(stream)
        a = self.data
        name = interop.LEGACY if self.version is None else interop.VERSIONED
        managed = interop.KINDS[name]()
        words = ctypes.c_int64 * max(1, a.ndim)
        kind = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}.get(
            a.dtype.kind
        )
        code = interop.CODES[kind or "bfloat"]
        at = a.__array_interface__["data"][0] - self.offset
        shape = words(*a.shape)
        strides = words(*(s // a.itemsize for s in a.strides))
        managed.tensor = interop.DLTensor(
            at, *self.device, a.ndim, code, a.itemsize * 8, self.lanes, shape,
            None if a.flags.c_contiguous else strides, self.offset,
        )  # fmt: skip
        if self.version is not None:
            managed.major, managed.minor = self.version
            managed.flags = int(self.readonly)

        def delete(address):
            self.deleted += 1

        managed.deleter = interop.DELETER(delete)
        ALIVE.append((managed, shape, strides, a))
        return interop._new(ctypes.addressof(managed), name, interop._DESTRUCTOR(0))


class OldForeign(Foreign):
    """One that was written before versions: no `max_version`."""

    def __dlpack__(self, stream=None):
        return super().__dlpack__(stream=stream)


@pytest.mark.parametrize("version", [None, (1, 0), (1, 9)])
@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
def test_foreign_arrays_are_seen_in_place(dtype, version):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    data = np.arange(12).astype(kind).reshape(3, 4)
    for part in (data, data.T, data[1:, ::2], data[:0], data[1, 1:2].reshape(())):
        seen = interop.foreign(Foreign(part, version))
        assert seen.dtype == part.dtype and seen.shape == part.shape
        assert np.array_equal(seen, part)
        assert part.size == 0 or np.shares_memory(seen, part)


def test_a_kernel_writes_foreign_memory(device):
    data = np.arange(10, dtype=np.float32)
    with ruda.config(device=device):
        double[1, 32](Foreign(data))
        double[1, 32](Foreign(data[::2]))
        double[1, 32](Foreign(data, offset=8))
    assert data.tolist() == [i * (8 if i % 2 == 0 else 4) for i in range(10)]


def test_strides_reach_the_kernel(device):
    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    with ruda.config(device=device):
        for part in (data, data.T, data[:, ::2]):
            out = np.zeros(1, np.float32)
            total[1, 32](Foreign(part), out)
            i, j = np.indices(part.shape)
            assert out[0] == (part * (i * 10 + j)).sum()


def test_read_only_arrays_are_not_written(device):
    data = np.arange(6, dtype=np.float32)
    out = np.zeros(1, np.float32)
    with ruda.config(device=device):
        with pytest.raises((KernelError, LaunchTypeError), match="read-only"):
            double[1, 32](Foreign(data, readonly=True))
        total[1, 32](Foreign(data.reshape(2, 3), readonly=True), out)
    assert out[0] == 3 * 10 + 4 * 11 + 5 * 12 + 1 + 2 * 2
    assert data.tolist() == [0, 1, 2, 3, 4, 5]


def test_the_foreign_array_lives_as_long_as_ruda_looks():
    one = Foreign(np.arange(4.0))
    d = ruda.as_cuda_array(one)
    view = d[1:]
    del d
    gc.collect()
    assert one.deleted == 0 and view.copy_to_host().tolist() == [1, 2, 3]
    del view
    gc.collect()
    assert one.deleted == 1


def test_a_launch_lets_go_of_foreign_arrays():
    one = Foreign(np.ones(4, np.float32))
    double[1, 32](one)
    gc.collect()
    assert one.deleted == len(one.streams) == 1


def test_wrong_versions_and_forms_are_refused():
    data = np.ones(4, np.float32)
    new = Foreign(data, version=(2, 0))
    with pytest.raises(LaunchTypeError, match=r"DLPack 2\.0 is not known here"):
        double[1, 32](new)
    gc.collect()
    assert new.deleted == 1  # also what cannot be used is given back
    with pytest.raises(LaunchTypeError, match="4 lanes has no counterpart"):
        double[1, 32](Foreign(data, lanes=4))
    with pytest.raises(LaunchTypeError, match="an array on Metal cannot be used where it is"):
        double[1, 32](Foreign(data, device=(8, 0)))
    with pytest.raises(LaunchTypeError, match="a device of type 77"):
        double[1, 32](Foreign(data, device=(77, 0)))


def test_a_capsule_is_taken_once():
    capsule = np.arange(3.0).__dlpack__()
    assert interop.take(capsule).tolist() == [0, 1, 2]
    with pytest.raises(BufferError, match="used already"):
        interop.take(capsule)
    with pytest.raises(TypeError, match="a DLPack capsule, not int"):
        interop.take(3)


def test_libraries_older_than_versions():
    data = np.ones(3, np.float32)
    double[1, 32](OldForeign(data, version=None))
    assert data.tolist() == [2, 2, 2]


def test_array_interface():
    class Interface:
        def __init__(self, data):
            self.data = data
            self.__array_interface__ = data.__array_interface__

    data = np.arange(4, dtype=np.float32)
    double[1, 32](Interface(data))
    assert data.tolist() == [0, 2, 4, 6]
    data.flags.writeable = False
    with pytest.raises((KernelError, LaunchTypeError), match="read-only"):
        double[1, 32](Interface(data))


def test_what_is_no_array_is_told():
    with pytest.raises(LaunchTypeError, match="a kernel takes arrays, numbers"):
        double[1, 32](object())
    with pytest.raises(TypeError, match="neither __dlpack__ nor an array interface"):
        ruda.as_cuda_array(object())


# ---- from ruda to others


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_takes_ruda_arrays(dtype):
    host = np.arange(12).astype(dtype).reshape(3, 4)
    d = ruda.to_device(host)
    for part, same in ((d, host), (d.T, host.T), (d[1:, ::2], host[1:, ::2]), (d[:0], host[:0])):
        found = np.from_dlpack(part)
        assert np.array_equal(found, same) and found.dtype == same.dtype
    with pytest.raises(BufferError, match="no stream"):
        d.__dlpack__(stream=1)


@pytest.mark.parametrize("max_version", [None, (0, 8), (1, 0), (1, 7)])
def test_round_trip(max_version):
    for host in (np.arange(6.0).reshape(2, 3)[:, ::-1], np.ones(3, ml_dtypes.bfloat16)):
        d = ruda.to_device(host)[...]
        capsule = d.__dlpack__(max_version=max_version)
        versioned = max_version is not None and max_version[0] >= 1
        assert ("versioned" in repr(capsule)) == versioned
        back = interop.take(capsule)
        assert np.array_equal(back, host) and np.shares_memory(back, d.__ruda_host__)


def test_an_exported_array_outlives_ruda_and_no_longer():
    d = ruda.to_device(np.arange(3.0))
    block = weakref.ref(d.storage.owner)
    count = len(interop._exported)
    capsule = d.__dlpack__()
    d.free()
    del d
    assert len(interop._exported) == count + 1 and block() is not None
    found = interop.take(capsule)
    del capsule
    assert found.tolist() == [0, 1, 2]
    del found
    gc.collect()
    assert len(interop._exported) == count and block() is None


def test_a_capsule_that_nobody_takes():
    d = ruda.to_device(np.arange(3.0))
    count = len(interop._exported)
    for version in (None, (1, 0)):
        capsule = d.__dlpack__(max_version=version)
        assert len(interop._exported) == count + 1
        del capsule
        assert len(interop._exported) == count


def test_copies_and_read_only_exports():
    data = np.arange(3.0)
    d = ruda.as_cuda_array(data)
    copied = interop.take(d.__dlpack__(copy=True, max_version=(1, 0)))
    copied[0] = 9
    assert data[0] == 0
    locked = ruda.as_cuda_array(Foreign(data, readonly=True))
    with pytest.raises(BufferError, match="needs a DLPack of version 1"):
        locked.__dlpack__()
    assert not np.from_dlpack(locked).flags.writeable
    assert not np.asarray(locked).flags.writeable
    for write in (lambda: locked.__setitem__(0, 1), lambda: locked.copy_to_device(np.zeros(3))):
        with pytest.raises(ValueError, match="read-only"):
            write()
    with pytest.raises((KernelError, LaunchTypeError), match="read-only"):
        double[1, 32](locked)
    assert data.tolist() == [0, 1, 2]


def test_records_have_no_dlpack():
    d = ruda.to_device(np.zeros(2, [("x", "f4")]))
    with pytest.raises(BufferError, match="no records"):
        d.__dlpack__()
    with pytest.raises(BufferError, match="cannot be put on device"):
        ruda.to_device([1.0]).__dlpack__(dl_device=(2, 0))


def test_memory_that_has_no_address_is_not_exported(device):
    with ruda.config(device=device):
        d = ruda.to_device(np.ones(3, np.float32))
    if d.storage.on_host:
        assert d.__dlpack_device__() == (1, 0)
        assert not hasattr(d, "__cuda_array_interface__")
    elif device.startswith("cuda"):
        assert d.__dlpack_device__() == (2, 0)
        assert d.__cuda_array_interface__["data"][0] == d.pointer
    else:
        with pytest.raises(BufferError, match="copy_to_host"):
            d.__dlpack__()
        assert not hasattr(d, "__cuda_array_interface__")


# ---- libraries


def library(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


torch, jax = library("torch"), library("jax")
with_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed")
with_jax = pytest.mark.skipif(jax is None, reason="JAX is not installed")


@with_torch
def test_torch_tensors_are_arguments(device):
    x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    with ruda.config(device=device):
        double[1, 32](x.reshape(-1))
        double[1, 32](x.T[1])
    assert x[0].tolist() == [0, 4, 4, 6] and x[2].tolist() == [16, 36, 20, 22]
    half = torch.ones(4, dtype=torch.bfloat16)
    double[1, 32](half)
    assert half.tolist() == [2, 2, 2, 2]
    with pytest.raises(LaunchTypeError, match="detach"):
        double[1, 32](torch.ones(3, requires_grad=True))


@with_torch
def test_torch_takes_ruda_arrays():
    d = ruda.to_device(np.arange(6, dtype=np.float32).reshape(2, 3))
    t = torch.from_dlpack(d)
    t += 1
    assert d.copy_to_host().tolist() == [[1, 2, 3], [4, 5, 6]]
    half = ruda.to_device(np.ones(2, ml_dtypes.bfloat16))
    assert torch.from_dlpack(half).dtype == torch.bfloat16
    assert isinstance(ruda.as_cuda_array(t), DeviceArray)


@with_jax
def test_jax_arrays_are_read_only_arguments():
    x = jax.numpy.arange(6, dtype=jax.numpy.float32).reshape(2, 3)
    out = np.zeros(1, np.float32)
    total[1, 32](x, out)
    assert out[0] == 3 * 10 + 4 * 11 + 5 * 12 + 1 + 2 * 2
    with pytest.raises((KernelError, LaunchTypeError), match="read-only"):
        double[1, 32](x[0])
    d = ruda.to_device(np.arange(3, dtype=np.float32))
    assert jax.numpy.from_dlpack(d).tolist() == [0, 1, 2]
