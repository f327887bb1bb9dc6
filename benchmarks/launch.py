"""What a launch costs beside its work: ruda's launcher against numba's entry point and dispatcher.

Four float32 arrays, `d = a * b + c`, n = 1000, called from Python, in one process, the candidates
in turn. Each call is timed by itself, so that a core taken away for a moment spoils one call and
not a round; the timer's own time is in every row, see the row that does nothing. All run the same
loop compiled by numba. `pool, two chunks` lets the GIL go, offers the work to a second thread and
waits for it if it has taken any; `pool, both threads` is a body whose two chunks wait for each
other, so that a second thread takes part every time; `asleep` is the same after a pause in which
the workers go to sleep. `python -m benchmarks.launch` prints the table.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic

from ruda.backends import cpu_launcher, cpu_pool

N = 1000
CALLS, ROUNDS = 50, 400
HEADER = cpu_launcher.HEADER
ARRAY_WORDS = 3  # address, extent, stride


def _pointer(numba_type: Any, llvm_type: Any) -> Any:
    """An int64 address as a typed pointer, inside numba code."""

    @intrinsic
    def cast(typing_context: Any, address: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.inttoptr(values[0], llvm_type.as_pointer())

        return types.CPointer(numba_type)(types.int64), code

    return cast


floats = _pointer(types.float32, ir.FloatType())
words = _pointer(types.int64, ir.IntType(64))


def body_with(threads: int) -> tuple[int, Any]:
    """The body for blocks of `threads` threads: its address, and what keeps it in memory."""

    @njit("void(int64, int64, int64)", error_model="numpy", nogil=True, no_cpython_wrapper=True)
    def body(args, lo, hi):  # type: ignore[no-untyped-def]
        block = words(args)
        a, b = floats(block[HEADER]), floats(block[HEADER + ARRAY_WORDS])
        c, d = floats(block[HEADER + 2 * ARRAY_WORDS]), floats(block[HEADER + 3 * ARRAY_WORDS])
        for i in range(lo * threads, min(hi * threads, block[HEADER + 1])):
            d[i] = a[i] * b[i] + c[i]

    result = body.overloads[body.signatures[0]]
    name = result.fndesc.llvm_func_name
    return result.library.get_pointer_to_function(name), body


@njit(error_model="numpy", nogil=True)
def serial(a, b, c, d):  # type: ignore[no-untyped-def]
    for i in range(a.shape[0]):
        d[i] = a[i] * b[i] + c[i]


@njit(error_model="numpy", nogil=True, parallel=True)
def parallel(a, b, c, d):  # type: ignore[no-untyped-def]
    for i in prange(a.shape[0]):
        d[i] = a[i] * b[i] + c[i]


# Each chunk (one block) goes on when the second one has begun too; the counter is the report word.
MEETING = """
define i32 @meet(ptr %result, ptr %exception, i64 %args, i64 %lo, i64 %hi) {
entry:
  %block = inttoptr i64 %args to ptr
  %counter_at = getelementptr i64, ptr %block, i64 6
  %counter = load ptr, ptr %counter_at
  %mine = atomicrmw add ptr %counter, i64 1 seq_cst
  %even = and i64 %mine, -2
  %goal = add i64 %even, 2
  br label %wait
wait:
  %now = load atomic i64, ptr %counter acquire, align 8
  %met = icmp sge i64 %now, %goal
  br i1 %met, label %out, label %wait
out:
  ret i32 0
}
"""


BOTH = "ruda, pool, both threads"


def refuse(*arguments: Any) -> None:
    raise AssertionError("the launcher did not take its arguments")


def candidates(arrays: list[np.ndarray[Any, Any]]) -> dict[str, Callable[..., Any]]:
    """Everything that is timed; each is called with the four arrays."""
    layout = [("array", np.float32, 1, "C", i == 3) for i in range(4)]
    one, one_kept = body_with(1024)
    four, four_kept = body_with(256)
    counter = np.zeros(1, np.int64)
    meet = cpu_pool.load_forever(MEETING)["meet"]
    make = cpu_launcher.build_any
    for function in (serial, parallel):
        function(*arrays)
    entry = {f: f.overloads[f.signatures[0]].entry_point for f in (serial, parallel)}
    return {
        "numba entry_point": entry[serial],
        "numba dispatcher": serial,
        f"numba prange entry_point ({numba.threading_layer()})": entry[parallel],
        "ruda, one block": make(
            layout, one, (1, 1, 1), (1024, 1, 1), refuse, threads=2, keep=one_kept
        ),
        "ruda, one block, no_alias": make(
            layout, one, (1, 1, 1), (1024, 1, 1), refuse, threads=2, keep=one_kept, no_alias=True
        ),
        "ruda, four blocks": make(
            layout, four, (4, 1, 1), (256, 1, 1), refuse, threads=2, keep=four_kept
        ),
        "ruda, pool, two chunks": make(
            layout, four, (4, 1, 1), (256, 1, 1), refuse, threads=2, chunk=2, keep=four_kept
        ),
        BOTH: make(
            layout, meet, (2, 1, 1), (1, 1, 1), refuse,
            threads=2, chunk=1, report=counter.ctypes.data, keep=counter,
        ),
        "ruda, launcher in Python": cpu_launcher.build_python(
            layout, one, (1, 1, 1), (1024, 1, 1), refuse, threads=2, keep=one_kept
        ),
        "a Python function that does nothing": lambda a, b, c, d: None,
    }  # fmt: skip


def microseconds(
    function: Callable[..., Any], arrays: list[np.ndarray[Any, Any]], calls: int, pause: float = 0.0
) -> list[float]:
    """The time of each of some calls."""
    a, b, c, d = arrays
    clock, times = time.perf_counter_ns, []
    for _ in range(calls):
        if pause:
            time.sleep(pause)
        start = clock()
        function(a, b, c, d)
        times.append((clock() - start) / 1000)
    return times


def measure() -> dict[str, list[float]]:
    """Microseconds of every call of every candidate."""
    random = np.random.default_rng(1)
    arrays = [random.random(N, np.float32) for _ in range(4)]
    functions = candidates(arrays)
    for name, function in functions.items():
        arrays[3][:] = np.nan
        function(*arrays)
        right = np.allclose(arrays[3], arrays[0] * arrays[1] + arrays[2])
        assert right or "both threads" in name or "nothing" in name, name
    asleep = BOTH + ", asleep"
    times: dict[str, list[float]] = {name: [] for name in (*functions, asleep)}
    for _ in range(ROUNDS):
        for name, function in functions.items():
            times[name] += microseconds(function, arrays, CALLS)
        times[asleep] += microseconds(functions[BOTH], arrays, 1, pause=1e-3)
    return times


def main() -> None:
    before = os.getloadavg()[0]
    times = measure()
    cores = cpu_pool.available_cores()
    print(f"{platform.machine()}, {cores} cores, load {before:.1f} before")
    print(f"{'microseconds a launch':44s} {'median':>7s} {'quartiles':>13s}")
    for name, samples in times.items():
        low, median, high = statistics.quantiles(samples, n=4)
        print(f"{name:44s} {median:7.2f} {low:6.2f} {high:6.2f}")


if __name__ == "__main__":
    main()
