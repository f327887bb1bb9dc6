"""Memory of a GPU between libraries: DLPack with streams, the CUDA array interface."""

import ml_dtypes
import numpy as np
import pytest

import ruda
from ruda.backends import interop
from ruda.errors import DeviceError, KernelError, LaunchTypeError
from tests.backends.cuda.fake import array
from tests.test_interop import Foreign, double


@pytest.fixture(autouse=True)
def _on_cuda(fake):
    with ruda.config(device="cuda:0"):
        yield


class Interface:
    """An object with `__cuda_array_interface__` alone, over a device array."""

    def __init__(self, d, **changes):
        self.d = d
        self.__cuda_array_interface__ = d.__cuda_array_interface__ | changes


def test_the_interface_says_where_and_how():
    d = ruda.to_device(np.arange(12, dtype=np.float32).reshape(3, 4))
    found = d.__cuda_array_interface__
    assert found["data"] == (d.pointer, False) and found["version"] == 3 and found["stream"] == 1
    assert found["shape"] == (3, 4) and found["typestr"] == "<f4" and found["strides"] is None
    part = d[1:, ::2].__cuda_array_interface__
    assert part["data"] == (d.pointer + 16, False) and part["strides"] == (16, 8)
    assert d[:0].__cuda_array_interface__["data"] == (0, False)
    half = ruda.to_device(np.ones(2, ml_dtypes.bfloat16))
    assert not hasattr(half, "__cuda_array_interface__")


def test_objects_with_the_interface_are_arguments(fake):
    d = ruda.to_device(np.arange(8, dtype=np.float32))
    for given in (d, d[::2]):
        before = len(fake.launches)
        double[1, 32](Interface(given))
        assert len(fake.launches) == before + 1
        assert fake.calls.count("cuMemcpyHtoDAsync") == 1  # that of to_device
    part = ruda.as_cuda_array(Interface(d[::-2]))
    assert part.device == "cuda:0" and part.copy_to_host().tolist() == [7, 5, 3, 1]
    with pytest.raises(KernelError, match="read-only"):
        double[1, 32](Interface(d, data=(d.pointer, True)))
    with pytest.raises(LaunchTypeError, match="mask"):
        double[1, 32](Interface(d, mask=d))
    with pytest.raises(LaunchTypeError, match=r"stream 0 .* is ambiguous"):
        double[1, 32](Interface(d, stream=0))


def test_launches_wait_for_the_producers_stream(fake):
    d = ruda.to_device(np.ones(8, np.float32))
    for stream, waits in ((None, 0), (1, 0), (2, 1), (4711, 1)):
        fake.calls.clear()
        double[1, 32](Interface(d, stream=stream))
        assert fake.calls.count("cuStreamWaitEvent") == waits, stream
        assert "cuCtxSynchronize" not in fake.calls  # nobody waits on the host


def test_dlpack_there_and_back(fake):
    d = ruda.to_device(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert d.__dlpack_device__() == (2, 0)
    back = interop.take(d[:, 1:].__dlpack__(max_version=(1, 0), stream=-1))
    assert back.device == "cuda:0" and back.pointer == d.pointer + 4
    assert back.copy_to_host().tolist() == [[1, 2], [4, 5]]
    host = interop.take(d.__dlpack__(dl_device=(1, 0), max_version=(1, 0)))
    assert host.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(BufferError, match="only by a copy"):
        d.__dlpack__(dl_device=(1, 0), copy=False)


def test_the_consumers_stream_waits(fake):
    d = ruda.to_device(np.ones(8, np.float32))
    for stream, waits in ((None, 0), (1, 0), (-1, 0), (2, 1), (4711, 1)):
        fake.calls.clear()
        d.__dlpack__(stream=stream)
        assert fake.calls.count("cuStreamWaitEvent") == waits, stream
    own = ruda.stream()
    double[1, 32, own](d)
    fake.calls.clear()
    d.__dlpack__(stream=None)  # the launch was in another stream than the consumer's
    assert fake.calls.count("cuStreamWaitEvent") == 1
    with pytest.raises(ValueError, match="stream 0 is ambiguous"):
        d.__dlpack__(stream=0)
    with pytest.raises(TypeError, match="an integer or None"):
        d.__dlpack__(stream="main")


def test_memory_of_a_gpu_in_a_foreign_capsule(fake):
    _, address = fake.cuMemAlloc(64)
    memory = array(address, np.float32, 16)
    memory[:] = np.arange(16)
    one = Foreign(memory.reshape(4, 4)[1:], device=(2, 0))
    d = ruda.as_cuda_array(one)
    assert d.device == "cuda:0" and d.copy_to_host().tolist() == memory[4:].reshape(3, 4).tolist()
    double[1, 32](Foreign(memory, device=(2, 0)))
    assert one.streams == [1]
    locked = Foreign(memory, device=(2, 0), readonly=True)
    with pytest.raises(KernelError, match="read-only"):
        double[1, 32](locked)


def test_a_freed_array_on_the_fast_way(fake):
    d = ruda.to_device(np.ones(8, np.float32))
    for _ in range(3):
        double[1, 32](d)
    held = ruda.memory_statistics()["in_use"]
    d.free()
    assert ruda.memory_statistics()["in_use"] < held
    count = len(fake.launches)
    with pytest.raises(DeviceError, match="was freed"):
        double[1, 32](d)
    assert len(fake.launches) == count
