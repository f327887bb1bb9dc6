"""What may go wrong on a WebGPU device, and must neither end the process nor pass unnoticed."""

import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import ruda
from ruda.backends.wgpu import launch as launches
from ruda.errors import (
    DeviceError,
    LaunchValueError,
    LaunchWarning,
    OutOfMemoryError,
    UnsupportedError,
)
from tests.backends.test_wgpu import double, on_wgpu, run, saxpy


@pytest.fixture
def wgpu():
    with ruda.config(device="wgpu"):
        yield


@pytest.fixture
def queue(wgpu):
    from ruda.backends.wgpu.device import queue_of

    return queue_of(0)


def cuts_loops():
    from ruda.backends.wgpu.device import caps_of

    return caps_of(0)["cuts_loops"]


# ---- loops that an old driver ends by itself -----------------------------------------------------


@ruda.jit
def long_loop(out, rounds):
    i = ruda.grid(1)
    if i < out.size:
        n = 0
        for k in range(rounds):
            n += k & 1
        out[i] = n


@ruda.jit
def nested_loops(out, outer, inner):
    i = ruda.grid(1)
    n = 0
    for _ in range(outer):
        for _ in range(inner):
            n += 1
    out[i] = n


@ruda.jit
def two_loops(out, rounds):
    i = ruda.grid(1)
    n = 0
    for _ in range(rounds):
        n += 1
    k = 0
    while k < rounds:
        k += 2
        n += 1
    out[i] = n


@ruda.jit
def loops_that_take_turns(out, rounds):
    """No thread has many rounds, but those of a vector pay for one another."""
    i = ruda.grid(1)
    n = 0
    if i % 2 == 0:
        for _ in range(rounds):
            n += 1
    else:
        for _ in range(rounds):
            n += 2
    out[i] = n


@ruda.jit
def left_by_break(out, rounds):
    i = ruda.grid(1)
    n = 0
    while True:
        n += 1
        if n >= rounds:
            break
    for k in range(rounds):
        if k == i:
            break
        n += 1
    out[i] = n


LOOPS = {
    "few": (long_loop, (60000,), lambda i: 30000),
    "many": (long_loop, (70000,), lambda i: 35000),
    "nested": (nested_loops, (300, 300), lambda i: 90000),
    "one after another": (two_loops, (50000,), lambda i: 75000),
    "in turns": (loops_that_take_turns, (40000,), lambda i: 80000 if i % 2 else 40000),
    "left by break": (left_by_break, (1000,), lambda i: 1000 + i),
}


@on_wgpu
@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_right_or_an_error_says_that_they_were_cut(wgpu, name):
    kernel, arguments, expected = LOOPS[name]
    out = ruda.to_device(np.full(32, -1, np.int32))
    kernel[1, 32](out, *arguments)
    if cuts_loops() and name not in ("few", "left by break"):
        with pytest.raises(DeviceError, match=rf"`{kernel.__name__}`.*after 65535 rounds") as e:
            out.copy_to_host()
        (note,) = e.value.__notes__
        assert f"`{kernel.__name__}` launched at {__file__}" in note
        with pytest.raises(DeviceError, match="65535 rounds"):
            kernel[1, 32](np.zeros(32, np.int32), *arguments)
    else:
        np.testing.assert_array_equal(out.copy_to_host(), [expected(i) for i in range(32)])
    x = np.ones(3, np.float32)
    double[1, 32](x)  # the next launch is not blamed for it
    assert x.tolist() == [2, 2, 2]


# ---- memory --------------------------------------------------------------------------------------


@on_wgpu
def test_no_memory_left_in_the_midst_of_a_batch(queue, monkeypatch):
    import wgpu

    d = ruda.to_device(np.ones(100, np.float32))
    double[1, 128](d)

    def full(**_):
        raise wgpu.GPUOutOfMemoryError("Not enough memory left.")

    ruda.empty_cache()  # else memory that was freed would do
    with monkeypatch.context() as patch:
        patch.setattr(queue.device, "create_buffer", full)
        with pytest.raises(OutOfMemoryError, match=r"12,345,678 bytes|no buffer of [\d,]+ bytes"):
            ruda.device_array(12345678, np.uint8)
        double[1, 128](d)  # needs no memory
    double[1, 128](d)
    np.testing.assert_array_equal(d.copy_to_host(), np.full(100, 8, np.float32))
    assert ruda.to_device(np.arange(5)).copy_to_host().tolist() == [0, 1, 2, 3, 4]


@on_wgpu
def test_a_buffer_larger_than_any(queue):
    limit = int(queue.adapter.limits["max-buffer-size"])
    with pytest.raises(OutOfMemoryError, match=rf"{limit * 2:,} bytes.*{limit:,}"):
        ruda.device_array(limit * 2, np.uint8)


@on_wgpu
def test_an_array_larger_than_a_binding_is_refused_and_its_parts_are_not(wgpu, queue):
    limit = int(queue.adapter.limits["max-storage-buffer-binding-size"])
    if limit > 1 << 28:
        pytest.skip(f"the adapter binds {limit} bytes: no array of the test is larger")
    d = ruda.device_array(limit // 4 + 1000, np.float32)
    with pytest.raises(LaunchValueError, match=rf"{d.nbytes} bytes.*binds {limit}"):
        double[1, 32](d)
    part = d[-1001:-1]
    part.copy_to_device(np.arange(1000, dtype=np.float32))
    double[4, 256](part)
    np.testing.assert_array_equal(part.copy_to_host(), 2 * np.arange(1000, dtype=np.float32))


def with_arrays(n):
    names = ", ".join(f"a{k}" for k in range(n))
    body = "".join(f"    a{k}[0] = {k}\n" for k in range(n))
    space = {"ruda": ruda}
    import linecache

    text = f"@ruda.jit\ndef many({names}):\n{body}"
    linecache.cache[f"<many {n}>"] = (len(text), None, text.splitlines(True), f"<many {n}>")
    exec(compile(text, f"<many {n}>", "exec"), space)
    return space["many"]


@on_wgpu
def test_more_arrays_than_bindings(queue):
    limit = int(queue.adapter.limits["max-storage-buffers-per-shader-stage"])
    if limit > 100:
        pytest.skip(f"the adapter binds {limit} arrays: no kernel of the test has as many")
    whole = [np.zeros(1, np.int32) for _ in range(limit + 1)]
    with pytest.raises(LaunchValueError, match=rf"{limit + 1} arrays.*binds {limit}"):
        with_arrays(limit + 1)[1, 1](*whole)
    d = ruda.to_device(np.zeros(limit + 1, np.int32))
    with_arrays(limit + 1)[1, 1](*(d[k : k + 1] for k in range(limit + 1)))  # in one buffer
    np.testing.assert_array_equal(d.copy_to_host(), np.arange(limit + 1))


@pytest.mark.parametrize("n", [4096, 4097, 8191, 12288, 40961])
@pytest.mark.parametrize("start", [0, 1, 6])
def test_copies_in_pieces_keep_every_byte(queue, monkeypatch, n, start):
    """What takes several buffers in turns, cut where a piece may end."""
    from ruda.backends.wgpu import queue as queues

    monkeypatch.setattr(queues, "PIECE", 4096)
    monkeypatch.setattr(queues, "LONG", 1024)
    monkeypatch.setattr(queues, "ALONE", 512)
    queue.trim()
    host = np.random.default_rng(n).integers(0, 256, n + start, np.uint8)
    with ruda.config(device="wgpu"):
        d = ruda.to_device(host)
        d[start:] = ~host[start:]
    assert np.array_equal(d[:start].copy_to_host(), host[:start])
    assert np.array_equal(d[start:].copy_to_host(), ~host[start:])
    out = np.zeros(n + start, np.uint8)
    d.copy_to_host(out)
    assert np.array_equal(out[start:], ~host[start:])
    queue.trim()  # those buffers are small


def test_a_copy_that_was_given_up_does_not_answer_the_next(queue):
    from ruda.backends.wgpu.native import READ

    stage = queue.create(1 << 16, queue.usage.MAP_READ | queue.usage.COPY_DST)
    host = np.arange(1 << 14, dtype=np.int32)
    with ruda.config(device="wgpu"):
        d = ruda.to_device(host)
    for _ in range(20):
        queue.native.map(stage, READ, 1 << 16)  # as Ctrl-C leaves it, and as the garbage goes
        queue.native.unmap(stage)
        assert np.array_equal(d.copy_to_host(), host)


@pytest.mark.parametrize("where", ["take", "finish", "submit"])
def test_ctrl_c_while_the_library_works_loses_nothing(queue, monkeypatch, where):
    """What was recorded counts as computed: it must get to the device; and an answer that Ctrl-C
    fell into is not waited for."""
    x = ruda.asarray(np.arange(1000, dtype=np.float32), device="wgpu")
    plain, times = getattr(queue.native, where), []

    def interrupted(*arguments):
        found = plain(*arguments) if where != "take" else None
        if not times:
            times.append(1)
            signal.raise_signal(signal.SIGINT)
        return found

    for k in range(3):
        y = ruda.sqrt(x * k + 1)
        times.clear()
        with monkeypatch.context() as patch:
            patch.setattr(queue.native, where, interrupted)
            with pytest.raises(KeyboardInterrupt):
                y.numpy()
        np.testing.assert_allclose(y.numpy(), np.sqrt(np.arange(1000.0) * k + 1), rtol=1e-6)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@on_wgpu
def test_large_copies_keep_every_byte(wgpu):
    data = np.random.default_rng(1).integers(0, 256, (1 << 26) + 5, np.uint8)
    d = ruda.to_device(data)
    np.testing.assert_array_equal(d.copy_to_host(), data)


# ---- launches that are repeated ------------------------------------------------------------------


@ruda.jit
def fill(out, value):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = value


FACTOR = 2


@ruda.jit
def scaled(out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = FACTOR


@on_wgpu
@pytest.mark.parametrize("values", [(0.0, -0.0), (1, 1.0, True, 2, 1), (np.float32(1), 1, 2**40)])
def test_equal_numbers_of_other_kinds_are_told_apart(wgpu, values):
    out = ruda.to_device(np.zeros(4))
    for value in values * 3:
        fill[1, 32](out, value)
        found = out.copy_to_host()
        assert (found == value).all() and (np.signbit(found) == np.signbit(float(value))).all()


def test_a_launcher_of_cuda_leaves_arrays_of_other_devices_alone(queue):
    """A launch shape that is kept serves whatever device its arrays are on."""
    from types import SimpleNamespace

    from ruda.backends.cuda.launch import suits
    from ruda.jit.types import type_of

    with ruda.config(device="wgpu"):
        x = ruda.to_device(np.ones(4, np.float32))
    gpu = SimpleNamespace(name="wgpu:0")
    module = SimpleNamespace(gpu=gpu, types=(type_of(x),), metadata={"written": [0]})
    assert suits(module, [x])
    gpu.name = "cuda:0"
    assert not suits(module, [x])


@on_wgpu
def test_new_arrays_at_the_place_of_dead_ones(wgpu):
    for k in range(50):
        out = ruda.to_device(np.zeros(k + 1, np.float32))
        fill[1, 64](out, 3.0)
        assert out.copy_to_host().tolist() == [3] * (k + 1)
        del out


@on_wgpu
def test_repeated_launches_see_changed_globals_and_settings(wgpu, monkeypatch):
    out = ruda.to_device(np.zeros(4, np.float32))
    for factor in (2, 3, 2):
        monkeypatch.setattr(f"{__name__}.FACTOR", factor)
        for _ in range(3):
            scaled[1, 32](out)
        assert out.copy_to_host().tolist() == [factor] * 4
    with ruda.config(check=True):
        for _ in range(3):
            scaled[1, 32](out)
    assert out.copy_to_host().tolist() == [2] * 4


@on_wgpu
def test_named_and_missing_arguments_of_a_repeated_launch(wgpu):
    out = ruda.to_device(np.zeros(4, np.float32))
    launch = fill[1, 32]
    for _ in range(3):
        launch(out, 1.5)
    launch(value=2.5, out=out)
    assert out.copy_to_host().tolist() == [2.5] * 4
    with pytest.raises(TypeError, match="value"):
        fill[1, 32](out)
    with pytest.raises(TypeError):
        fill[1, 32](out, 1.5, 3)
    fill[1, 32](out, 1.5)
    assert out.copy_to_host().tolist() == [1.5] * 4


# ---- threads, signals, ends ----------------------------------------------------------------------


@on_wgpu
def test_launches_from_many_threads(wgpu):
    problems = []

    def work(number):
        try:
            with ruda.config(device="wgpu"):
                mine = np.full(333, number, np.float32)
                d, out = ruda.to_device(mine), ruda.to_device(np.zeros(333, np.float32))
                for k in range(60):
                    saxpy[2, 256](2.0, d, d, out)
                    if k % 7 == number % 7:
                        assert (out.copy_to_host() == 3 * number).all()
                    if k % 11 == number:
                        host = np.ones(5, np.float32)
                        double[1, 32](host)
                        assert host.tolist() == [2] * 5
                assert (out.copy_to_host() == 3 * number).all()
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not problems


@on_wgpu
def test_ctrl_c_ends_the_wait_for_a_long_launch():
    code = (
        "import os, signal, threading, time\n"
        "import numpy as np, ruda\n"
        "from tests.backends.test_wgpu_faults import long_loop\n"
        "with ruda.config(device='wgpu'):\n"
        "    d = ruda.to_device(np.zeros(1 << 10, np.int32))\n"
        "    long_loop[4, 256](d, 3); d.copy_to_host()\n"
        "    start = time.perf_counter()\n"
        "    long_loop[65535, 256](d, 60000); ruda.synchronize()\n"
        "    one = time.perf_counter() - start\n"
        "    for _ in range(int(3 / one) + 1): long_loop[65535, 256](d, 60000)\n"
        "    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "    start = time.perf_counter()\n"
        "    try:\n"
        "        ruda.synchronize(); print('no wait', flush=True)\n"
        "    except KeyboardInterrupt:\n"
        "        print('interrupted', time.perf_counter() - start < 5, flush=True)\n"
        "    os._exit(0)\n"
    )
    status, out, err = run(code)
    assert (status, out) == (0, "interrupted True\n"), err
    assert signal.SIGINT


@on_wgpu
def test_a_lost_device_is_told_by_name_and_nothing_aborts():
    code = (
        "import numpy as np, ruda\n"
        "from tests.backends.test_wgpu import double\n"
        "from ruda.backends.wgpu.device import queue_of\n"
        "ruda.config(device='wgpu')\n"
        "d = ruda.to_device(np.ones(8, np.float32))\n"
        "double[1, 32](d); d.copy_to_host(); double[1, 32](d)\n"
        "queue_of(0).device.destroy()\n"
        "def tries(what):\n"
        "    try:\n"
        "        what(); print('nothing')\n"
        "    except ruda.errors.DeviceError as error:\n"
        "        print('lost' in str(error))\n"
        "tries(d.copy_to_host)\n"
        "tries(lambda: double[1, 32](d) or ruda.synchronize())\n"
        "tries(lambda: double[1, 32](np.ones(3, np.float32)))\n"
        "tries(lambda: ruda.to_device([1.0]))\n"
        "tries(lambda: d.copy_to_device(np.ones(8, np.float32)))\n"
        "tries(ruda.synchronize)\n"
    )
    status, out, err = run(code)
    assert (status, out.split(), err) == (0, ["True"] * 6, "")


@on_wgpu
def test_a_lost_device_names_the_last_launches():
    code = (
        "import numpy as np, ruda, traceback\n"
        "from tests.backends.test_wgpu import double\n"
        "from ruda.backends.wgpu.device import queue_of\n"
        "ruda.config(device='wgpu')\n"
        "d = ruda.to_device(np.ones(8, np.float32))\n"
        "double[1, 32](d); ruda.synchronize()\n"
        "double[1, 32](d)\n"
        "queue_of(0).device.destroy()\n"
        "try:\n"
        "    ruda.synchronize()\n"
        "except ruda.errors.DeviceError as error:\n"
        "    print(error.__notes__)\n"
    )
    assert run(code) == (0, "['`double` launched at <string>, line 7']\n", "")


def line_with(text):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return 1 + next(k for k, line in enumerate(lines) if text in line and "line_with" not in line)


@on_wgpu
def test_an_error_of_a_batch_names_kernels_and_lines(queue, monkeypatch):
    d, other = (ruda.to_device(np.ones(8, np.float32)) for _ in range(2))
    for _ in range(3):
        double[1, 32](d)  # the first of them
    with monkeypatch.context() as patch:
        # Nothing that a user writes is refused so late: a dispatch that is too large is.
        patch.setattr(launches, "fold_grid", lambda module, launch: (False, (70000, 1, 1)))
        fill[3, 32](other, 2.0)  # the second
    with pytest.raises(
        DeviceError, match=r"launches of `double`, `fill`.*none of these 4"
    ) as found:
        d.copy_to_host()
    assert found.value.__notes__ == [
        f"`fill` launched at {__file__}, line {line_with('# the second')}",
        f"`double` launched at {__file__}, line {line_with('# the first of them')}",
    ]
    # The batch is gone, and nothing else: arrays hold what they held, launches go on.
    assert d.copy_to_host().tolist() == [1] * 8
    double[1, 32](d)
    assert d.copy_to_host().tolist() == [2] * 8


@on_wgpu
def test_a_text_that_the_driver_refuses_is_told_at_the_users_line(wgpu, monkeypatch):
    from dataclasses import replace

    from ruda.backends.wgpu import emit

    @ruda.jit
    def spoiled(x):
        i = ruda.grid(1)
        if i < x.size:
            x[i] = x[i] + 1.0
            x[i] = x[i] * 3.25

    right = emit.emit

    def wrong(*given):
        found = right(*given)
        return replace(found, text=found.text.replace("3.25f", "no_such_name"))

    monkeypatch.setattr(emit, "emit", wrong)
    with pytest.raises(UnsupportedError, match="no_such_name") as caught:
        spoiled[1, 4](np.ones(4, np.float32))
    assert caught.value.filename == __file__ and "x[i] * 3.25" in caught.value.text
    assert "please report it" in caught.value.__notes__[0]
    monkeypatch.undo()
    x = np.ones(4, np.float32)
    double[1, 4](x)  # nothing is broken
    assert x.tolist() == [2] * 4


@on_wgpu
def test_warnings_of_repeated_launches_are_at_the_users_line(wgpu, monkeypatch):
    monkeypatch.setattr("ruda.backends.base._moved", False)
    d, host = ruda.to_device(np.ones(3, np.float32)), np.ones(3, np.float32)
    launch = double[1, 32]
    launch(d)
    with pytest.warns(LaunchWarning, match="`double` moved 24 bytes") as found:
        launch(host)  # to the host and back
    assert [w.filename for w in found] == [__file__]
    assert found[0].lineno == line_with("# to the host and back")


@on_wgpu
def test_a_process_ends_with_work_in_flight():
    code = (
        "import numpy as np, ruda\n"
        "from tests.backends.test_wgpu import double\n"
        "ruda.config(device='wgpu')\n"
        "d = ruda.to_device(np.ones(1 << 20, np.float32))\n"
        "for _ in range(700): double[4096, 256](d)\n"
        "kept = d, double\n"
    )
    assert run(code) == (0, "", "")


def test_a_missing_driver_is_told_with_what_to_install():
    pytest.importorskip("wgpu")
    code = (
        "import ruda\n"
        "print([d.name for d in ruda.devices() if d.name.startswith('wgpu')])\n"
        "try:\n"
        "    with ruda.config(device='wgpu'):\n"
        "        ruda.to_device([1.0])\n"
        "except ruda.errors.DeviceNotFoundError as error:\n"
        "    print(error)\n"
    )
    nowhere = {"VK_DRIVER_FILES": "/nonexistent", "VK_ICD_FILENAMES": "/nonexistent"}
    status, out, err = run(code, **nowhere)
    assert (status, err) == (0, "")
    assert out.startswith("[]\n") and "mesa-vulkan-drivers" in out


# ---- barriers of the grid ------------------------------------------------------------------------


@ruda.jit
def two_phases(x, partial, out):
    tile = ruda.shared.array(64, ruda.float32)
    i, t = ruda.grid(1), ruda.threadIdx.x
    if i >= x.size + 5:
        return
    mine = x[i] * 2 if i < x.size else 0
    tile[t] = mine
    ruda.syncthreads()
    if t == 0:
        s = 0.0
        for k in range(min(64, x.size - ruda.blockIdx.x * 64)):
            s += tile[k]
        partial[ruda.blockIdx.x] = s
    ruda.cg.this_grid().sync()
    total = 0.0
    for b in range(ruda.gridDim.x):
        total += partial[b]
    ruda.cg.this_grid().sync()
    if i < x.size:
        out[i] = mine + total


@on_wgpu
@pytest.mark.parametrize("n", [1, 64, 300])
def test_values_live_across_barriers_of_the_grid(wgpu, n):
    x = np.arange(n, dtype=np.float32)
    blocks = -(-n // 64)
    d, partial, out = (ruda.to_device(np.zeros(k, np.float32)) for k in (n, blocks, n))
    d.copy_to_device(x)
    for _ in range(2):
        two_phases[blocks, 64](d, partial, out)
        np.testing.assert_array_equal(out.copy_to_host(), 2 * x + 2 * x.sum())
    two_phases[blocks, 64](x, np.zeros(blocks, np.float32), host := np.zeros(n, np.float32))
    np.testing.assert_array_equal(host, 2 * x + 2 * x.sum())
