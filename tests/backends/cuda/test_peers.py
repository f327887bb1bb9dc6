"""Tensors from GPU to GPU, and between devices that share nothing."""

import numpy as np
import pytest

import ruda
from ruda import backends
from ruda.backends.cuda import driver
from ruda.errors import DeviceError
from tests.backends.cuda.fake import Code


@pytest.fixture
def two(fake):
    """`cuda:0` and `cuda:1`, both a FakeDriver's."""
    fake.devices = 2
    driver.gpus.cache_clear()
    return fake


def ways(tensor):
    return [str(m) for m in ruda.explain(tensor).copies]


def test_a_gpu_sends_to_its_peer(two):
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    x = ruda.asarray(a, device="cuda:0")
    two.calls.clear()
    y = x.to_device("cuda:1")
    assert y.device == "cuda:1" and two.calls.count("cuMemcpyPeerAsync") == 1
    assert not {"cuMemcpyDtoHAsync", "cuMemcpyHtoDAsync", "cuCtxSynchronize"} & set(two.calls)
    assert two.calls.count("cuStreamWaitEvent") == 2  # the copy for the source, that for the copy
    assert ways(y) == ["48 bytes from cuda:0 to cuda:1, peer to peer: from GPU to GPU"]
    np.testing.assert_array_equal(y.numpy(), a)
    y.to_device("cuda:0")
    x.to_device("cuda:1")
    assert two.calls.count("cuCtxEnablePeerAccess") == 2  # once a direction
    for empty in (ruda.zeros((0, 3), device="cuda:0"), ruda.asarray(2.0, device="cuda:0")):
        assert empty.to_device("cuda:1").tolist() == empty.tolist()


def test_gpus_that_are_no_peers_are_told(two):
    two.are_peers = False
    y = ruda.asarray([1.0, 2.0], device="cuda:1").to_device("cuda:0")
    assert "cuCtxEnablePeerAccess" not in two.calls
    assert ways(y) == ["8 bytes from cuda:1 to cuda:0, staged: through memory of the host"]
    assert y.tolist() == [1, 2]


def test_another_library_may_have_enabled_peers(two):
    two.codes["cuCtxEnablePeerAccess"] = [Code.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED]
    y = ruda.asarray([1.0], device="cuda:0").to_device("cuda:1")
    assert ruda.explain(y).copies[0].how == "peer"


def test_a_copy_that_fails_names_the_gpu(two):
    x = ruda.asarray([1.0], device="cuda:0")
    two.codes["cuMemcpyPeerAsync"] = [Code.CUDA_ERROR_ILLEGAL_ADDRESS]
    with pytest.raises(DeviceError, match="cuda:1: the CUDA driver says"):
        x.to_device("cuda:1")


def test_devices_that_share_nothing_meet_in_the_host(fake):
    x = ruda.asarray([1.0, 2.0], device="cuda:0")
    there = x.to_device("ascend-twin")
    assert ways(there) == ["8 bytes from cuda:0 to ascend-twin, staged: through memory of the host"]
    assert ways(x) == [] and there.tolist() == [1, 2]
    assert ways(x.to_device("cpu")) == ["8 bytes from cuda:0 to cpu, copied once"]
    assert ways(ruda.ones(2, device="cpu").to_device("cuda")) == [
        "8 bytes from cpu to cuda:0, copied once"
    ]


def test_work_follows_the_memory_of_its_own_gpu(two):
    """A copy on a GPU is in the order of its own stream, whichever was used last."""
    x, y = (ruda.asarray([1.0, 2.0], device=f"cuda:{k}") for k in (0, 1))
    out = ruda.zeros(2, device="cuda:0")
    y.numpy()
    assert two.context == "context 1"
    backends.get("cuda").copy_bytes(out.buffer(), x.buffer())
    assert two.context == "context 0" and out.tolist() == [1, 2]
