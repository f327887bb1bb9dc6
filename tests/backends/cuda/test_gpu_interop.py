"""Arrays, streams, graphs and contexts of PyTorch, CuPy and JAX beside those of ruda on one GPU.

`python -m pytest -m cuda` on a machine that has them; a library that is absent is skipped by name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ruda
from ruda.errors import KernelError

pytestmark = pytest.mark.cuda
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the memory


@pytest.fixture(autouse=True)
def _on_cuda():
    with ruda.config(device="cuda"):
        yield


@ruda.jit
def double(x):
    i = ruda.grid(1)
    if i < x.size:
        x[i] = 2 * x[i]


@ruda.jit
def add(x, y, out):
    i, j = ruda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        out[i, j] = x[i, j] + y[i, j]


@ruda.jit
def spin(x, rounds):
    """A thread that takes its time, then counts."""
    value = x[0]
    for _ in range(rounds):
        value = value * 1.0000001 + 1e-9
    x[0] = 1.0 if value == 12345.0 else 7.0


def jax_module():
    jax = pytest.importorskip("jax")
    if not any(d.platform == "gpu" for d in jax.devices()):
        pytest.skip("this JAX has no GPU")
    return jax


def test_torch_tensors_are_arguments_without_a_copy():
    torch = pytest.importorskip("torch")
    t = torch.arange(12, dtype=torch.float32, device="cuda").reshape(3, 4)
    seen = ruda.as_cuda_array(t)
    assert seen.pointer == t.data_ptr() and seen.device == "cuda:0"
    double[1, 32](t.reshape(-1))
    assert t.cpu().tolist() == (2 * np.arange(12.0).reshape(3, 4)).tolist()
    out = torch.zeros(4, 3, device="cuda")
    add[(1, 1), (16, 16)](t.T, t.T, out)  # a view with other strides
    assert np.array_equal(out.cpu().numpy(), 4 * np.arange(12, dtype=np.float32).reshape(3, 4).T)
    half = torch.ones(5, dtype=torch.bfloat16, device="cuda")
    double[1, 32](half)
    assert half.float().sum().item() == 10
    back = torch.from_dlpack(ruda.to_device(np.arange(3)))
    assert back.device.type == "cuda" and back.tolist() == [0, 1, 2]


def test_cupy_arrays_are_arguments_without_a_copy():
    cupy = pytest.importorskip("cupy")
    c = cupy.arange(12, dtype=np.float32).reshape(3, 4)
    assert ruda.as_cuda_array(c).pointer == c.data.ptr
    double[1, 32](c.ravel())
    assert cupy.asnumpy(c).tolist() == (2 * np.arange(12.0).reshape(3, 4)).tolist()
    out = cupy.zeros((2, 4), np.float32)
    add[(1, 1), (16, 16)](c[::2], c[1:], out)
    assert np.array_equal(cupy.asnumpy(out), cupy.asnumpy(c)[::2] + cupy.asnumpy(c)[1:])
    d = ruda.to_device(np.arange(6, dtype=np.float32))
    for taken in (cupy.asarray(d), cupy.from_dlpack(d)):  # the CUDA array interface, and DLPack
        assert taken.data.ptr == d.pointer
        taken += 1
    assert d.copy_to_host().tolist() == [2, 3, 4, 5, 6, 7]


def test_jax_arrays_are_read_without_a_copy():
    jax = jax_module()
    j = jax.numpy.arange(12, dtype=np.float32).reshape(3, 4)
    assert ruda.as_cuda_array(j).pointer == j.unsafe_buffer_pointer()
    out = ruda.to_device(np.zeros((3, 4), np.float32))
    add[(1, 1), (16, 16)](j, j, out)
    assert np.array_equal(out.copy_to_host(), 2 * np.asarray(j))
    with pytest.raises(KernelError, match="read-only"):
        double[1, 32](j.reshape(-1))
    taken = jax.dlpack.from_dlpack(out)
    assert np.array_equal(np.asarray(taken), 2 * np.asarray(j))


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_launches_wait_for_the_streams_of_others_and_they_for_ours(library):
    """A long kernel in one stream, what reads its result in another: through DLPack both ways."""
    module = pytest.importorskip(library)
    ours, theirs = ruda.stream(), module.cuda.Stream
    spin[1, 1](ruda.to_device(np.zeros(1, np.float32)), 1)  # compiled before
    for _ in range(3):
        x = ruda.to_device(np.zeros(1, np.float32))
        spin[1, 1, ours](x, 20_000_000)
        stream = theirs() if library == "torch" else theirs(non_blocking=True)
        with module.cuda.stream(stream) if library == "torch" else stream:
            taken = module.from_dlpack(x)  # it asks for its current stream
            got = taken + 1
            result = got.cpu().numpy() if library == "torch" else module.asnumpy(got)
        assert result.tolist() == [8]
    # A tensor that another stream still fills: its producer says so through the capsule.
    if library == "torch":
        stream = module.cuda.Stream()
        with module.cuda.stream(stream):
            t = module.zeros(1 << 24, device="cuda")
            for _ in range(200):
                t += 1
            double[1 << 16, 256](t)
        assert t.sum().item() == 400 * (1 << 24)


def test_a_stream_of_cupy():
    cupy = pytest.importorskip("cupy")
    stream = cupy.cuda.Stream(non_blocking=True)
    x = ruda.to_device(np.ones(1000, np.float32))
    ruda.synchronize()
    with stream:
        double[4, 256, ruda.external_stream(stream.ptr)](x)
        got = cupy.asarray(x) * 2
    stream.synchronize()
    assert cupy.asnumpy(got).tolist() == [4] * 1000


def test_a_graph_of_torch_holds_kernels_on_its_tensors():
    torch = pytest.importorskip("torch")
    t = torch.ones(1000, device="cuda")
    x = ruda.as_cuda_array(t)
    double[4, 256](x)  # compiled and loaded before
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        t += 1
        double[4, 256, ruda.external_stream(torch.cuda.current_stream().cuda_stream)](x)
    assert t[0].item() == 2, "captured, not run"
    for want in (6, 14):
        graph.replay()
        torch.cuda.synchronize()
        assert t[0].item() == want and np.all(x.copy_to_host() == want)


FIRST = {
    "torch": "import torch\nt = torch.ones(8, device='cuda')\n",
    "cupy": "import cupy\nt = cupy.ones(8, cupy.float32)\n",
    "jax": "import jax\nt = jax.numpy.ones(8, jax.numpy.float32)\nt.block_until_ready()\n",
}


@pytest.mark.parametrize("library", FIRST)
def test_the_context_that_another_library_has_made_is_used(library, tmp_path):
    """The primary context is one for the process, whoever came first."""
    pytest.importorskip(library)
    script = tmp_path / "script.py"
    script.write_text(
        FIRST[library]
        + "from cuda.bindings import driver\n"
        + "before = int(driver.cuCtxGetCurrent()[1])\n"
        + "import numpy as np, ruda\n"
        + "ruda.set_default_device('cuda')\n"
        + "@ruda.jit\n"
        + "def copy(x, out):\n"
        + "    out[ruda.threadIdx.x] = x[ruda.threadIdx.x] + 1\n"
        + "out = ruda.to_device(np.zeros(8, np.float32))\n"
        + "copy[1, 8](t, out)\n"
        + "print(out.copy_to_host().sum(), before in (0, int(driver.cuCtxGetCurrent()[1])))\n"
    )
    found = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=110, check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert found.returncode == 0 and found.stdout == "16.0 True\n", found.stdout + found.stderr
