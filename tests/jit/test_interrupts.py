"""Ctrl-C inside long loops on the CPU: real signals, in processes of their own."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import ruda
from ruda.jit.passes import polls

pytestmark = pytest.mark.only_on("cpu", what="that a loop can be left in the middle")

PRELUDE = """
    import os, signal, sys, threading, time, traceback
    import numpy as np, ruda
    ruda.config(device="cpu")

    def after(seconds):
        threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()

    def interrupted(launch, *arguments):
        launch(*arguments[:-1], 0)  # compiles
        after(0.25)
        began = time.perf_counter()
        try:
            launch(*arguments)  # here
        except KeyboardInterrupt as error:
            where = traceback.extract_tb(error.__traceback__)[0]
            return where.line.endswith("# here") and time.perf_counter() - began < 20
        return "ended"
"""


def run(code):
    """What a program prints, whose kernels have their source."""
    code = textwrap.dedent(PRELUDE) + textwrap.dedent(code)
    runner = (
        "import linecache, sys; s = sys.stdin.read(); "
        "linecache.cache['<p>'] = (len(s), None, s.splitlines(True), '<p>'); "
        "exec(compile(s, '<p>', 'exec'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", runner], input=code, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.split()


def test_one_block_can_be_left_in_the_middle():
    """Also while the pool's threads are in theirs; launches work afterwards."""
    code = """
        @ruda.jit
        def forever(x, n):
            while n != 0:
                x[ruda.grid(1)] += 1

        @ruda.jit
        def counting(x, n):
            total = 0.0
            for k in range(n):
                total = total * 0.5 + k
            x[ruda.grid(1)] = total

        @ruda.jit
        def backwards(x, n):
            for k in range(n, 0, -3):
                x[ruda.grid(1)] += 1

        @ruda.jit
        def leaving(x, n):
            for k in range(10**15):
                if x[ruda.grid(1)] < 0 or n == 0:
                    break
                x[ruda.grid(1)] += 1

        @ruda.jit
        def meeting(x, n):
            shared = ruda.shared.array(64, ruda.float64)
            t = ruda.threadIdx.x
            while n > 0:
                shared[t] = x[t]
                ruda.syncthreads()
                x[t] = shared[63 - t]
                ruda.syncthreads()

        @ruda.jit
        def searching(x, n):
            low, high = 0, 1
            while low < high:
                low, high = 0, min(n, 1)

        @ruda.jit
        def large(x, n):  # its memory comes from the heap
            memory = ruda.local.array(100_000, ruda.float64)
            k = 0
            while k < n:
                memory[k % 100_000] = k
                k += 1
                if k == 7:
                    print(k)

        one = np.ones(64)
        kernels = forever, counting, backwards, leaving, meeting, searching, large
        for number, kernel in enumerate(kernels):
            many = number % 2  # on one thread, or on four
            with ruda.config(num_threads=4 if many else 1):
                x = np.ones(64 * 64) if many else one
                print(interrupted(kernel[64 if many else 1, 64], x, 10**15), flush=True)
        x = np.zeros(1 << 16)
        counting[1 << 10, 64](x, 5)
        print((x == 6.125).all())
    """
    found = [w for w in run(code) if w != "7"]
    assert found == ["True"] * 8


def test_a_launch_that_was_short_before():
    """It holds the GIL at first; other threads go on, and Ctrl-C works."""
    code = """
        @ruda.jit
        def counting(x, n):
            total = 0.0
            for k in range(n):
                total = total * 0.5 + k
            x[ruda.grid(1)] = total

        x = np.ones(64)
        launch = counting[1, 64]
        for _ in range(5):
            launch(x, 3)
        ticks = []
        def tick():
            while len(ticks) < 10**6:
                ticks.append(0)
                time.sleep(0.01)
        threading.Thread(target=tick, daemon=True).start()
        before = len(ticks)
        print(interrupted(launch, x, 10**15), len(ticks) - before > 2)
        launch(x, 3)
        print((x == 2.5).all())
    """
    assert run(code) == ["True"] * 3


def test_handlers_that_return_let_the_launch_go_on():
    code = """
        @ruda.jit
        def counting(x, n):
            i = ruda.grid(1)
            total = 0
            for k in range(n):
                total = total * 3 + k
            x[i] = total

        seen = []
        signal.signal(signal.SIGINT, lambda *_: seen.append(time.perf_counter()))
        x = np.zeros(128, np.int64)
        n = 1000
        while not seen:  # until a launch is long enough to be met
            n *= 2
            if n > 10**6:
                after(0.05)
            counting[2, 64](x, n)
        y = np.zeros(128, np.int64)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        counting[2, 64](y, n)
        print((x == y).all())
    """
    assert run(code) == ["True"]


@ruda.jit
def steps(out, data, n, start, stop):
    """Loops of every kind, each of which goes into `out` in its own way."""
    i = ruda.grid(1)
    total = 0
    for k in range(n):
        total = total * 3 + k
    for k in range(start, stop, 3):
        total = total * 3 + k
    for k in range(stop, start, -2):
        if k % 5 == 0:
            continue
        total = total * 3 + k
    for k in range(ruda.int32(start), ruda.int32(stop)):
        total = total * 3 + k
    for k in range(data.size):
        total = total * 3 + data[k]
    for k in range(data.size - 3, 2, -1):
        for m in range(data.size):
            total = total * 3 + data[m] * k
    k = n
    while k > 0:
        k //= 2
        total = total * 3 + k
    k = 1
    while k < n:
        k *= 2
        total = total * 3 + k
    low, high = 0, n
    while low < high:
        middle = (low + high) // 2
        if middle * middle < n:
            low = middle + 1
        else:
            high = middle
    total = total * 3 + low
    while True:
        total = total * 3 + 1
        if total % 7 == 0 or k > 5000:
            break
        k += 1
    for k in range(n):
        if k > 11:
            total += 5
            break
    else:
        total += 7
    out[i] = total + i


@pytest.mark.parametrize("budget", [1, 5])
def test_counting_changes_nothing(monkeypatch, budget):
    """Questions all the time, in strips of a few rounds."""
    monkeypatch.setattr(polls, "BUDGET", budget)
    monkeypatch.setattr(polls, "STRIP", 4 * budget)
    monkeypatch.setattr(polls, "SHORT", budget)
    data, asked = np.arange(11), ruda.jit(steps.py_func)
    far = 2**31
    for n, start, stop in (
        *((0, 0, 0), (1, -1, 1), (7, -20, 21), (100, 5, 41), (64, 3, -3)),
        (29, far - 40, far - 1),
    ):
        expected, out = np.zeros(3, np.int64), np.zeros(3, np.int64)
        with ruda.config(device="sim"):
            steps[1, 3](expected, data, n, start, stop)
        with ruda.config(cache=False):
            asked[1, 3](out, data, n, start, stop)
        np.testing.assert_array_equal(out, expected)


@ruda.jit
def saxpy(a, x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@ruda.jit
def tiled(a, b, c):
    left = ruda.shared.array((16, 16), ruda.float32)
    right = ruda.shared.array((16, 16), ruda.float32)
    tx, ty = ruda.threadIdx.x, ruda.threadIdx.y
    j, i = ruda.grid(2)
    total = ruda.float32(0)
    for t in range(a.shape[1] // 16):
        left[ty, tx] = a[i, t * 16 + tx]
        right[ty, tx] = b[t * 16 + ty, j]
        ruda.syncthreads()
        for k in range(16):
            total += left[ty, k] * right[k, tx]
        ruda.syncthreads()
    c[i, j] = total


@ruda.jit
def tree(x, out):
    shared = ruda.shared.array(256, ruda.float32)
    t = ruda.threadIdx.x
    shared[t] = x[ruda.grid(1)]
    ruda.syncthreads()
    step = 128
    while step > 0:
        if t < step:
            shared[t] += shared[t + step]
        ruda.syncthreads()
        step //= 2
    if t == 0:
        out[ruda.blockIdx.x] = shared[0]


@ruda.jit
def rows(x, out):
    i = ruda.grid(1)
    if i < x.shape[0]:
        total = ruda.float32(0)
        for k in range(x.shape[1]):
            total += x[i, k]
        out[i] = total


@pytest.mark.parametrize(
    ("kernel", "types", "block"),
    [
        (saxpy, ("f32", "f32[::1]", "f32[::1]", "f32[::1]"), 256),
        (tiled, ("f32[:, ::1]",) * 3, (16, 16)),
        (tree, ("f32[::1]", "f32[::1]"), 256),
        (rows, ("f32[:, ::1]", "f32[::1]"), 256),
    ],
    ids=lambda v: getattr(v, "__name__", None),
)
def test_vectorised_loops_ask_nothing(kernel, types, block):
    """No question stands in a loop that holds no other loop."""
    lines = kernel.source("cpu", *types, block=block).splitlines()
    for number, line in enumerate(lines):
        if line.lstrip().startswith(("for ", "while ")):
            depth = len(line) - len(line.lstrip())
            body = []
            for inner in lines[number + 1 :]:
                if len(inner) - len(inner.lstrip()) <= depth:
                    break
                body.append(inner.lstrip())
            if not any(inner.startswith(("for ", "while ")) for inner in body):
                assert not any("poll(" in inner for inner in body), line
