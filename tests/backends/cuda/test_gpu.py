"""What only a GPU can show: `python -m pytest -m cuda`. Kernels' results are in tests/jit."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import ruda
from ruda.backends.cuda import driver
from ruda.errors import DeviceError, LaunchTypeError, LaunchValueError, OutOfMemoryError

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def _on_cuda():
    with ruda.config(device="cuda"):
        yield


@ruda.jit
def fill(out, value):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = value


@ruda.jit
def reverse(x):
    """Through all the dynamic shared memory there is."""
    tile = ruda.shared.array(0, ruda.int32)
    t = ruda.threadIdx.x
    for k in range(t, x.size, ruda.blockDim.x):
        tile[k] = x[k]
    ruda.syncthreads()
    for k in range(t, x.size, ruda.blockDim.x):
        x[k] = tile[x.size - 1 - k]


@pytest.mark.parametrize("kilobytes", [16, 48, 49, 100, 0])
def test_dynamic_shared_memory_beyond_48_kilobytes(kilobytes):
    most = ruda.get_current_device().properties["max_shared"]
    nbytes = kilobytes << 10 or most
    host = np.arange(nbytes // 4, dtype=np.int32)
    x = ruda.to_device(host)
    for _ in range(2):
        reverse[1, 256, 0, nbytes](x)
    reverse[1, 256, 0, nbytes](x)
    assert np.array_equal(x.copy_to_host(), host[::-1])
    with pytest.raises(LaunchValueError, match=f"can have {most}"):
        reverse[1, 256, 0, most + 4](x)


@ruda.jit
def meet(x, out):
    i = ruda.grid(1)
    if i < x.size:
        x[i] += 1
    ruda.cg.this_grid().sync()
    if i < x.size:
        out[i] = x[x.size - 1 - i]


def test_cooperative_launch_is_as_large_as_the_gpu_holds_at_once():
    properties = ruda.get_current_device().properties
    blocks = properties["multiprocessors"]
    x = ruda.to_device(np.arange(blocks * 256, dtype=np.int32))
    out = ruda.device_array_like(x)
    for k in range(1, 4):
        meet[blocks, 256](x, out)
        assert np.array_equal(out.copy_to_host(), np.arange(blocks * 256)[::-1] + k)
    with pytest.raises(LaunchValueError, match=r"can run \d+ of them at once, not 100000"):
        meet[100_000, 256](x, out)


@pytest.mark.parametrize("offset", range(5))
@pytest.mark.parametrize("n", [1, 5, 1023, 1 << 20])
def test_wide_accesses_at_any_offset(n, offset, rng):
    """Aligned arrays, others, and elements before and behind, which must stay."""

    @ruda.jit
    def axpy(a, x, y, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = a * x[i] + y[i]

    x, y = rng.standard_normal((2, n + 8), np.float32)
    dx, dy = ruda.to_device(x), ruda.to_device(y)
    out = ruda.to_device(np.full(n + 8, 7, np.float32))
    part = slice(offset, offset + n)
    axpy[-(-n // 128), 128](2.0, dx[part], dy[part], out[part])
    want = np.full(n + 8, 7, np.float32)
    want[part] = 2 * x[part] + y[part]
    got = out.copy_to_host()
    assert np.array_equal(got[:offset], want[:offset])
    assert np.array_equal(got[offset + n :], want[offset + n :])
    np.testing.assert_allclose(got, want, rtol=2e-7, atol=1e-6)
    few = ruda.to_device(np.zeros(n, np.float32))
    axpy[1, 32](2.0, dx[part], dy[part], few)  # fewer threads than elements
    assert np.count_nonzero(few.copy_to_host()[32:]) == 0


@ruda.jit
def fold(x, y, n):
    """Reads x early and often, and writes y between."""
    i = ruda.grid(1)
    if i < y.size:
        for k in range(n):
            y[i] += x[i] * 2 + k


@ruda.jit
def turn(x, out):
    i = ruda.grid(1)
    if i < x.shape[0] * x.shape[1]:
        row, column = i // x.shape[1], i % x.shape[1]
        out[column, row] = x[row, column]


@pytest.mark.parametrize("start", [(0, 0), (0, 500), (7, 7), (500, 0)])
def test_arguments_that_overlap(start, rng):
    """A thread reads what it has written through another argument."""
    host = rng.integers(0, 9, 1000).astype(np.int64)
    want, n = host.copy(), 500
    a, b = (slice(s, s + n) for s in start)
    for k in range(5):
        want[b] += want[a] * 2 + k
    d, t = ruda.to_device(host), ruda.to_device(host)
    for _ in range(2):  # the general way, and the fast one, which has seen others first
        fold[8, 64](ruda.to_device(host[a]), ruda.to_device(host[b]), 5)
    fold[8, 64](d[a], d[b], 5)
    assert np.array_equal(d.copy_to_host(), want)
    with ruda.capture() as graph:
        fold[8, 64](t[a], t[b], 5)
    graph.replay()
    assert np.array_equal(t.copy_to_host(), want)
    fold[8, 64](host[a], host[b], 5)
    assert np.array_equal(host, want)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1000), (1000, 3), (257, 129)])
def test_indices_by_quotients(shape, rng):
    x = rng.standard_normal(shape, np.float32)
    out = ruda.to_device(np.zeros(shape[::-1], np.float32))
    for _ in range(3):
        turn[-(-x.size // 128), 128](ruda.to_device(x), out)
    assert np.array_equal(out.copy_to_host(), x.T)


def test_arrays_and_launches_beyond_31_bits():
    """Elements behind 2**31, and as many threads: narrow code would write elsewhere."""

    @ruda.jit
    def mark(x):
        i = ruda.grid(1)
        every = ruda.blockDim.x
        if i < x.size and i % every == 0:
            x[i // every * every] = i // every % 100 + 1

    n = (1 << 31) + 5000
    x = ruda.device_array(n, np.uint8)
    for part in (x[: 1 << 20], x[-(1 << 20) :], x[(1 << 31) - (1 << 19) :][: 1 << 20]):
        part.copy_to_device(np.zeros(part.size, np.uint8))
    mark[-(-n // 256), 256](x)
    last = n // 256 * 256
    assert last >= 1 << 31
    assert x[last : last + 2].copy_to_host().tolist() == [last // 256 % 100 + 1, 0]
    assert x[:2].copy_to_host().tolist() == [1, 0]
    mark[-(-n // 256), 256](x[:1000])  # a small array in a launch that is as large
    small = ruda.to_device(np.zeros(1000, np.uint8))
    mark[4, 256](small)
    assert small.copy_to_host().sum() == 1 + 2 + 3 + 4


def test_more_memory_than_there_is():
    _, total = driver.gpu("cuda").memory_info()
    with pytest.raises(OutOfMemoryError, match="bytes asked for"):
        ruda.device_array(total + 1, np.uint8)
    x = ruda.to_device(np.ones(1000, np.float32))
    assert x.copy_to_host().sum() == 1000


def test_memory_that_runs_out_between_launches_loses_nothing():
    x, out = (ruda.to_device(np.zeros(1 << 20, np.float32)) for _ in range(2))
    _, total = driver.gpu("cuda").memory_info()
    for k in range(20):
        fill[1 << 12, 256](x if k % 2 else out, float(k))
        if k % 5 == 0:
            with pytest.raises(OutOfMemoryError, match="bytes asked for"):
                ruda.device_array(total, np.uint8)
            with pytest.raises(OutOfMemoryError), ruda.config(memory_limit=1):
                out.copy()
    assert np.all(x.copy_to_host() == 19) and np.all(out.copy_to_host() == 18)


@ruda.jit
def hungry(x, out):
    """120 numbers a thread that live across a barrier."""
    t = ruda.grid(1)
    kept = ruda.local.array(120, ruda.float32)
    for k in range(120):
        kept[k] = x[k, t]
    ruda.syncthreads()
    total = 0.0
    for k in range(120):
        total += kept[k] * kept[119 - k]
    out[t] = total


def test_too_many_registers_or_threads():
    x = ruda.to_device(np.ones((120, 1024), np.float32))
    out = ruda.to_device(np.zeros(1024, np.float32))
    hungry[8, 128](x, out)
    with pytest.raises(LaunchValueError, match=r"`hungry` needs \d+ registers a thread"):
        hungry[1, 1024](x, out)
    with pytest.raises(LaunchValueError, match="at most 1024"):
        fill[1, 2048](out, 1.0)
    with pytest.raises(LaunchValueError, match="has 70000 on axis y"):
        fill[(1, 70_000), 32](out, 1.0)
    assert np.all(out.copy_to_host() == 120), "nothing was lost"


def test_freed_arrays_and_copies_of_the_wrong_size():
    x = ruda.to_device(np.ones(4, np.float32))
    with pytest.raises(ValueError, match="shape"):
        x.copy_to_device(np.zeros(5, np.float32))
    with pytest.raises(ValueError, match="shape"):
        x.copy_to_host(np.zeros(3, np.float32))
    fill[1, 32](x, 2.0)
    assert x.copy_to_host().tolist() == [2] * 4
    x.free()
    for use in (x.copy_to_host, lambda: fill[1, 32](x, 1.0)):
        with pytest.raises(DeviceError, match="freed"):
            use()


def test_launches_from_many_threads():
    arrays = [ruda.to_device(np.zeros(5000, np.int64)) for _ in range(8)]

    def work(k):
        with ruda.config(device="cuda"):
            for value in range(200):
                fill[20, 256](arrays[k], value * 8 + k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for k, a in enumerate(arrays):
        assert np.all(a.copy_to_host() == 199 * 8 + k)


def test_streams_run_beside_each_other_and_events_order_them():
    a, b = ruda.stream(), ruda.stream()
    x = ruda.to_device(np.zeros(1 << 20, np.float32))
    fill[1 << 12, 256, a](x, 3.0)
    event = ruda.event()
    event.record(a)
    event.wait(b)
    out = x.copy_to_host(stream=b)
    assert np.all(out == 3)


def test_graph_of_many_launches():
    x = ruda.to_device(np.zeros(1000, np.int32))

    @ruda.jit
    def count(x, k):
        i = ruda.grid(1)
        if i < x.size:
            x[i] = x[i] * 3 + k

    want = 0
    with ruda.capture() as graph:
        for k in range(100):
            count[4, 256](x, k)
    for _ in range(3):
        graph.replay()
        for k in range(100):
            want = (want * 3 + k) % (1 << 32)
    assert np.all(x.copy_to_host().view(np.uint32) == want)


def test_cooperative_launches_in_a_graph():
    x = ruda.to_device(np.zeros(1000, np.int32))
    out = ruda.device_array_like(x)
    with ruda.capture() as graph:
        for _ in range(5):
            meet[4, 256](x, out)
    graph.replay()
    assert np.all(out.copy_to_host() == 5)


# ---- faults: each in a process of its own, as the driver does not forgive them -------------------

HEAD = """
import numpy as np
import ruda
from ruda.errors import DeviceError
ruda.set_default_device("cuda")

@ruda.jit
def far(x, k):
    x[k + ruda.threadIdx.x] = 1

x = ruda.to_device(np.zeros(8, np.float32))
"""


@pytest.fixture
def child(tmp_path):
    """Runs a script in a process; its code and what it printed."""
    return functools.partial(run_child, tmp_path / "script.py")


def run_child(path, code):
    path.write_text(HEAD + code)
    path_here = str(Path(__file__).parents[3])
    found = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=100, check=False,
        env=os.environ | {"PYTHONPATH": path_here},
    )  # fmt: skip
    return found.returncode, found.stdout + found.stderr


def test_illegal_address_names_kernel_and_line(child, tmp_path):
    code, text = child(
        script := """
far[1, 1](x, 0)
ruda.synchronize()
far[1, 1](x, 1 << 44)  # here
for again in range(2):
    try:
        ruda.synchronize()
    except DeviceError as error:
        print(error, *getattr(error, "__notes__", ()), sep="|")
try:
    far[1, 1](x, 0)
except DeviceError as error:
    print("later:", error)
"""
    )
    assert code == 0, text
    lines = (HEAD + script).splitlines()
    here = 1 + next(k for k, line in enumerate(lines) if "# here" in line)
    where = f"`far` launched at {tmp_path / 'script.py'}, line {here}"
    assert "ILLEGAL_ADDRESS" in text and where in text
    assert "is lost to this process" in text and "later:" in text
    assert "check=True" in text  # the hint


def test_check_finds_it_without_losing_the_device(child):
    code, text = child("""
with ruda.config(check=True):
    try:
        far[1, 1](x, 1 << 44)
        ruda.synchronize()
    except ruda.errors.OutOfBoundsError as error:
        print("found:", error)
far[1, 8](x, 0)
print(x.copy_to_host().sum())
""")
    assert code == 0 and text.endswith("8.0\n"), text
    assert f"found: `x[{1 << 44}]` is out of bounds" in text


def test_fork_after_use_is_told(child):
    _, text = child("""
import os
far[1, 1](x, 0)
ruda.synchronize()
pid = os.fork()
if not pid:
    try:
        far[1, 1](x, 0)
        ruda.synchronize()
        print("no error")
    except DeviceError as error:
        print(error)
    os._exit(0)
os.waitpid(pid, 0)
print("parent", x.copy_to_host()[0])
""")
    assert "forked after it was used" in text and "parent 1.0" in text, text


def test_process_ends_with_work_in_flight(child):
    code, text = child("""
@ruda.jit
def long(x):
    for _ in range(10_000_000):
        x[0] = x[0] * 0.5 + 1
long[1, 1](x)
""")
    assert code == 0 and not text, text


# ---- PyTorch -------------------------------------------------------------------------------------


def test_torch_shares_the_context_and_its_streams():
    torch = pytest.importorskip("torch")
    x = ruda.to_device(np.zeros(1 << 20, np.float32))
    fill[1 << 12, 256](x, 2.0)
    t = torch.ones(1 << 20, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        t += 1
        ours = ruda.external_stream(stream.cuda_stream)
        fill[1 << 12, 256, ours](x, 5.0)
    stream.synchronize()
    assert float(t.sum()) == 2 << 20 and np.all(x.copy_to_host() == 5)


def test_kernel_in_a_graph_of_torch():
    torch = pytest.importorskip("torch")
    x = ruda.to_device(np.zeros(1000, np.float32))
    fill[4, 256](x, 1.0)  # compiled and loaded before
    t = torch.zeros(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        t += 1
        ours = ruda.external_stream(torch.cuda.current_stream().cuda_stream)
        fill[4, 256, ours](x, 5.0)
    assert np.all(x.copy_to_host() == 1), "captured, not run"
    graph.replay()
    torch.cuda.synchronize()
    assert np.all(x.copy_to_host() == 5) and float(t[0]) == 1


def test_device_numbers():
    count = len(driver.gpus())
    with pytest.raises(DeviceError, match=f"has {count} CUDA devices"):
        ruda.backends.get("cuda").allocate(8, f"cuda:{count}")


def test_every_gpu_of_the_machine():
    """Kernels run where their arrays are; arrays of two GPUs do not mix."""
    arrays = []
    for gpu in driver.gpus():
        with ruda.config(device=gpu.name):
            arrays.append(ruda.to_device(np.zeros(1000, np.float32)))
    for k, x in enumerate(arrays):
        fill[4, 256](x, k + 3.0)
    for k, x in enumerate(arrays):
        assert x.device == f"cuda:{k}" and np.all(x.copy_to_host() == k + 3)
    for x in arrays[1:]:
        with pytest.raises(LaunchTypeError, match="several devices"):
            meet[1, 32](arrays[0], x)


# ---- figures, and what compute-sanitizer sees: a minute, in processes of their own ---------------


@pytest.mark.alone
@pytest.mark.parametrize("name", ["cuda", "wgpu"])
def test_figures(name, tmp_path, capsys):
    """`python -m benchmarks cuda` and `wgpu` measure every row, and print the table."""
    environment = os.environ | {"RUDA_BENCHMARK_RESULTS": str(tmp_path)}
    if name == "wgpu":
        pytest.importorskip("wgpu")
    found = subprocess.run(
        [sys.executable, "-m", "benchmarks", name], capture_output=True, text=True, timeout=300,
        check=False, cwd=Path(__file__).parents[3], env=environment,
    )  # fmt: skip
    with capsys.disabled():
        print(f"\n{found.stdout}")
    assert found.returncode == 0, found.stderr
    (path,) = tmp_path.glob(f"{name}-*.json")
    record = json.loads(path.read_text())
    assert record["limits"] and len(record["rows"]) >= 6


@pytest.mark.alone
@pytest.mark.parametrize(
    ("tool", "kernels"),
    [("memcheck", "shared_memory or records or casts or views"), ("racecheck", "shared_memory")],
)
def test_compute_sanitizer_finds_nothing(tool, kernels):
    program = shutil.which("compute-sanitizer")
    if program is None:
        pytest.skip("compute-sanitizer, a part of the CUDA toolkit, is not installed")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    found = subprocess.run(
        [program, "--tool", tool, "--error-exitcode", "9", sys.executable, "-m", "pytest", "-q",
         "-m", "cuda", "tests/jit/test_kernels.py", "-k", kernels],
        capture_output=True, text=True, timeout=300, check=False, cwd=Path(__file__).parents[3],
        env=environment,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout[-3000:]
    assert " passed" in found.stdout
