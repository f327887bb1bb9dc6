"""The thread pool: every block runs exactly once, whoever launches, forks, interrupts or nests."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import numpy as np
import pytest

import ruda
from ruda.backends import cpu_pool
from ruda.errors import DeviceError, LaunchValueError
from ruda.jit import cache

# `args` is an i64*, whose element i is raised by block i; `slow_count` takes a millisecond a block.
BODIES = """
%Time = type { i64, i64 }
declare i32 @nanosleep(ptr, ptr)
define i32 @slow_count(ptr %result, ptr %exception, i64 %args, i64 %lo, i64 %hi) {
  %time = alloca %Time
  %blocks = sub i64 %hi, %lo
  %ns = mul i64 %blocks, 1000000
  %ns_at = getelementptr %Time, ptr %time, i32 0, i32 1
  store i64 0, ptr %time
  store i64 %ns, ptr %ns_at
  call i32 @nanosleep(ptr %time, ptr null)
  call i32 @count(ptr %result, ptr %exception, i64 %args, i64 %lo, i64 %hi)
  ret i32 0
}
define i32 @count(ptr %result, ptr %exception, i64 %args, i64 %lo, i64 %hi) {
entry:
  %words = inttoptr i64 %args to ptr
  br label %loop
loop:
  %i = phi i64 [%lo, %entry], [%next, %loop]
  %at = getelementptr i64, ptr %words, i64 %i
  %value = load i64, ptr %at
  %more = add i64 %value, 1
  store i64 %more, ptr %at
  %next = add i64 %i, 1
  %again = icmp slt i64 %next, %hi
  br i1 %again, label %loop, label %out
out:
  store ptr null, ptr %result
  ret i32 0
}
"""
BODY = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * 5)


@pytest.fixture(scope="module")
def native():
    return cpu_pool.load_forever(BODIES)


@pytest.fixture(scope="module")
def count(native):
    return native["count"]


@pytest.fixture(scope="module")
def slow_count(native):
    return native["slow_count"]


def body(function):
    """A kernel body written in Python: function(lo, hi)."""

    def call(result, exception, args, lo, hi):
        function(lo, hi)
        return 0

    return BODY(call)


def address(callback):
    return ctypes.cast(callback, ctypes.c_void_p).value


def in_new_process(program, *arguments, **environment):
    """Run a program with a time limit; what it prints."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


PRELUDE = textwrap.dedent("""
    import os, signal, sys, threading, time
    import numpy as np
    from ruda.backends import cpu_pool
    from tests.backends import test_cpu_pool as t
    native = cpu_pool.load_forever(t.BODIES)
    count, slow_count = native["count"], native["slow_count"]
    def launch(n=1000, chunk=7, threads=4):
        out = np.zeros(n, np.int64)
        cpu_pool.run(count, out.ctypes.data, n, chunk, threads)
        return bool((out == 1).all())
""")


@pytest.mark.parametrize("threads", [0, 1, 2, 3, 9])
@pytest.mark.parametrize("chunk", [-(1 << 40), -16, 0, 1, 7, 64, 1000, 1 << 40])
@pytest.mark.parametrize("n", [0, 1, 2, 63, 64, 65, 1001])
def test_each_block_runs_once(count, n, chunk, threads):
    out = np.zeros(n + 1, np.int64)
    cpu_pool.run(count, out.ctypes.data, n, chunk, threads)
    assert (out[:n] == 1).all()
    assert out[n] == 0


@pytest.mark.parametrize("n", [-1, 0, 1, 65])
def test_serial_runs_each_block_once(count, n):
    out = np.zeros(max(n, 0) + 1, np.int64)
    cpu_pool.run_serial(count, out.ctypes.data, n)
    assert (out[:-1] == 1).all()
    assert out[-1] == 0


def test_negative_count_is_nothing(count):
    out = np.zeros(2, np.int64)
    cpu_pool.run(count, out.ctypes.data, -3, 1, 2)
    assert (out == 0).all()


def test_chunks_are_what_was_asked_for():
    seen = []
    call = body(lambda lo, hi: seen.append((lo, hi)))
    cpu_pool.run(address(call), 0, 10, 4, 3)
    assert sorted(seen) == [(0, 4), (4, 8), (8, 10)]


def test_ranges_beyond_32_bits():
    seen = []
    call = body(lambda lo, hi: seen.append((lo, hi)))
    cpu_pool.run(address(call), 0, (1 << 62) + 1, 1 << 61, 2)
    half = 1 << 61
    assert sorted(seen) == [(0, half), (half, 2 * half), (2 * half, 2 * half + 1)]


def test_args_address_is_passed_on():
    seen = []
    call = BODY(lambda result, exception, args, lo, hi: seen.append(args) or 0)
    cpu_pool.run(address(call), 1 << 50, 4, 1, 2)
    cpu_pool.run_serial(address(call), -5, 4)
    assert seen == [1 << 50] * 4 + [-5]


def test_automatic_chunks_cover_a_long_launch():
    seen = []

    def sleep(lo, hi):
        seen.append((lo, hi))
        time.sleep(1e-4 * (hi - lo))

    cpu_pool.run(address(call := body(sleep)), 0, 100, 0, 3)
    seen.sort()
    assert seen[0] == (0, 1)
    assert [hi for _, hi in seen[:-1]] == [lo for lo, _ in seen[1:]]
    assert seen[-1][1] == 100
    assert call


def test_automatic_chunks_begin_with_the_grain():
    """And large ones are multiples of 16, so that their arrays begin on a cache line."""
    seen = []
    call = body(lambda lo, hi: seen.append((lo, hi)))
    for _ in range(3):
        seen.clear()
        cpu_pool.run(address(call), 0, 200_005, -64, 1)
        sizes = [hi - lo for lo, hi in seen]
        assert seen[0] == (0, 64)
        assert [hi for _, hi in seen[:-1]] == [lo for lo, _ in seen[1:]]
        assert seen[-1][1] == 200_005
        assert all(size % 16 == 0 for size in sizes[:-1] if size > 255)
    assert max(sizes) > 255


def test_several_threads_share_one_launch():
    """Four chunks that wait for one another: only four threads at once get through."""
    meeting = threading.Barrier(4, timeout=20)
    where = []

    def meet(lo, hi):
        meeting.wait()
        where.append(threading.get_ident())

    cpu_pool.run(address(call := body(meet)), 0, 4, 1, 4)
    assert len(set(where)) == 4
    assert threading.get_ident() in where
    assert call


def test_no_more_threads_than_asked_for():
    cpu_pool.run(address(call := body(lambda lo, hi: time.sleep(1e-3))), 0, 8, 1, 8)  # 7 workers
    where = set()

    def note(lo, hi):
        where.add(threading.get_ident())
        time.sleep(1e-3)

    cpu_pool.run(address(call2 := body(note)), 0, 64, 1, 2)
    assert len(where) <= 2
    cpu_pool.run(address(call2), 0, 64, 1, 1)
    assert call and call2


def test_one_thread_means_the_calling_thread():
    where = set()
    call = body(lambda lo, hi: where.add(threading.get_ident()))
    for chunk in (0, 1):
        cpu_pool.run(address(call), 0, 64, chunk, 1)
    assert where == {threading.get_ident()}


def test_other_python_threads_run_meanwhile():
    """The caller lets the GIL go: another thread answers while the native body waits for it."""
    flag = np.zeros(1, np.int64)
    spin = cpu_pool.load_forever("""
        define i32 @until_set(ptr %r, ptr %e, i64 %args, i64 %lo, i64 %hi) {
        entry:
          %flag = inttoptr i64 %args to ptr
          br label %loop
        loop:
          %value = load atomic i64, ptr %flag acquire, align 8
          %zero = icmp eq i64 %value, 0
          br i1 %zero, label %loop, label %out
        out:
          ret i32 0
        }
    """)["until_set"]
    for chunk in (0, 1):
        flag[0] = 0
        timer = threading.Timer(0.02, flag.__setitem__, (0, 1))
        timer.start()
        cpu_pool.run(spin, flag.ctypes.data, 2, chunk, 2)
        timer.join()


@pytest.mark.parametrize("chunk", [0, 1, 50])
def test_four_python_threads_at_once(count, chunk):
    outputs = [np.zeros(200, np.int64) for _ in range(4)]

    def hammer(out):
        for _ in range(300):
            cpu_pool.run(count, out.ctypes.data, out.size, chunk, 3)

    threads = [threading.Thread(target=hammer, args=(out,)) for out in outputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((out == 300).all() for out in outputs)


def test_more_launches_at_once_than_the_pool_has_places_for():
    meeting = threading.Barrier(80, timeout=30)

    def meet(lo, hi):
        if lo == 0:
            meeting.wait()

    done = []
    call = body(meet)

    def launch():
        cpu_pool.run(address(call), 0, 3, 1, 2)
        done.append(1)

    threads = [threading.Thread(target=launch) for _ in range(80)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 80


def test_thousands_of_tiny_launches(count):
    out = np.zeros(2, np.int64)
    for _ in range(20_000):
        cpu_pool.run(count, out.ctypes.data, 2, 1, 2)
    assert (out == 20_000).all()


def test_launches_with_pauses_wake_the_sleepers(count):
    """Pauses around the time at which workers go to sleep: where a wake-up would be lost."""
    out = np.zeros(64, np.int64)
    meeting = threading.Barrier(2, timeout=20)
    call = body(lambda lo, hi: meeting.wait())
    for i in range(300):
        time.sleep((i % 30) * 5e-6)
        cpu_pool.run(address(call), 0, 2, 1, 2)  # hangs if the worker sleeps on
        cpu_pool.run(count, out.ctypes.data, 64, 1, 2)
    assert (out == 300).all()


def test_sleeping_caller_is_told_when_the_last_helper_leaves():
    """Else it would find out at the end of its slice, after 20 ms."""
    meeting = threading.Barrier(2, timeout=20)
    caller = threading.get_ident()

    def work(lo, hi):
        meeting.wait()
        if threading.get_ident() != caller:
            time.sleep(2e-3)

    call, times = body(work), []
    for _ in range(21):
        start = time.perf_counter()
        cpu_pool.run(address(call), 0, 2, 1, 2)
        times.append(time.perf_counter() - start)
    assert sorted(times)[10] < 0.012


def test_launch_inside_a_body(count):
    """On a worker it runs there and then; on the caller it is a launch like any other."""
    outputs = np.zeros((8, 100), np.int64)
    where = []

    def nest(lo, hi):
        for i in range(lo, hi):
            cpu_pool.run(count, outputs[i].ctypes.data, 100, 3, 4)

    def note(lo, hi):
        inner = set()
        call = body(lambda lo, hi: inner.add(threading.get_ident()))
        cpu_pool.run(address(call), 0, 4, 1, 4)
        where.append((threading.get_ident(), inner))
        meeting.wait()

    cpu_pool.run(address(call := body(nest)), 0, 8, 1, 4)
    assert (outputs == 1).all()
    meeting = threading.Barrier(2, timeout=20)
    cpu_pool.run(address(call2 := body(note)), 0, 2, 1, 2)
    assert len(where) == 2
    assert all(inner == {me} for me, inner in where if me != threading.get_ident())
    assert call and call2


def test_setting_gives_the_thread_count():
    assert cpu_pool.thread_count() == len(os.sched_getaffinity(0))
    with ruda.config(num_threads=5):
        assert cpu_pool.thread_count() == 5
    for wrong in (cpu_pool.MAX_THREADS + 1, 1 << 40):
        with ruda.config(num_threads=wrong), pytest.raises(LaunchValueError, match="num_threads"):
            cpu_pool.thread_count()


def test_variable_and_affinity_give_the_thread_count():
    program = """
        import os
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        from ruda.backends import cpu_pool
        print(cpu_pool.thread_count())
    """
    assert in_new_process(program).split() == ["1"]
    assert in_new_process(program, RUDA_NUM_THREADS="3").split() == ["3"]


def test_numba_and_openmp_are_not_needed():
    program = PRELUDE + textwrap.dedent("""
        class Hide:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "numba":
                    raise ImportError(name)
        sys.meta_path.insert(0, Hide())
        assert launch()
        print(any("gomp" in line or "libomp" in line for line in open("/proc/self/maps")))
        print("numba" in sys.modules, cpu_pool.worker_count())
    """)
    assert in_new_process(program).split() == ["False", "False", "3"]


def test_forked_child_launches_and_the_parent_goes_on(count):
    out = np.zeros(100, np.int64)
    cpu_pool.run(count, out.ctypes.data, 100, 1, 4)
    before = cpu_pool.worker_count()
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork with threads
        child = os.fork()
    if child == 0:
        fresh = cpu_pool.worker_count()
        for _ in range(100):
            cpu_pool.run(count, out.ctypes.data, 100, 1, 3)
        right = fresh == 0 and (out == 101).all() and cpu_pool.worker_count() == 2
        os.write(write, b"right" if right else b"wrong")
        os._exit(0)
    for _ in range(100):
        cpu_pool.run(count, out.ctypes.data, 100, 1, 4)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(read, 5) == b"right"
    os.close(read)
    os.close(write)
    assert (out == 101).all()
    assert cpu_pool.worker_count() == before


def test_fork_while_other_threads_launch():
    program = PRELUDE + textwrap.dedent("""
        import warnings
        warnings.simplefilter("ignore")
        stop = []
        def hammer():
            while not stop:
                assert launch()
        threads = [threading.Thread(target=hammer) for _ in range(3)]
        for thread in threads: thread.start()
        for _ in range(30):
            child = os.fork()
            if child == 0:
                os._exit(0 if launch() and launch() else 1)
            assert os.waitpid(child, 0)[1] == 0
        stop.append(1)
        for thread in threads: thread.join()
        print("right", launch())
    """)
    assert in_new_process(program).split() == ["right", "True"]


def test_child_forked_in_the_middle_of_a_launch_gets_an_error():
    program = PRELUDE + textwrap.dedent("""
        import warnings
        from ruda.errors import DeviceError
        warnings.simplefilter("ignore")
        parent, status = os.getpid(), []
        def fork(*_):
            child = os.fork()
            if child: status.append(os.waitpid(child, 0)[1])
        signal.signal(signal.SIGALRM, fork)
        out = np.zeros(1000, np.int64)
        assert launch()  # so that the pool is compiled when the alarm rings
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            cpu_pool.run(slow_count, out.ctypes.data, out.size, 1, 2)
        except DeviceError as error:
            assert os.getpid() != parent and "forked" in str(error)
            os._exit(7 if launch() else 8)
        assert os.getpid() == parent and (out == 1).all()
        print(os.waitstatus_to_exitcode(status[0]), launch())
    """)
    assert in_new_process(program).split() == ["7", "True"]


class Alarm(Exception):
    pass


@contextlib.contextmanager
def alarm(handler, seconds):
    """Call a handler of SIGALRM soon."""
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("chunk", [0, 1])
def test_exception_of_a_signal_handler_stops_a_long_launch(slow_count, chunk, threads):
    """Of ten seconds' work the rest is dropped, and nothing runs any more when it is raised."""

    def ring(number, frame):
        raise Alarm

    out = np.zeros(10_000, np.int64)
    with pytest.raises(Alarm), alarm(ring, 0.05):
        cpu_pool.run(slow_count, out.ctypes.data, out.size, chunk, threads)
    done = out.sum()
    assert 0 < done < 4000
    time.sleep(0.05)
    assert out.sum() == done
    assert out.max() == 1


def test_ctrl_c_is_a_keyboard_interrupt(slow_count):
    few = np.zeros(2, np.int64)
    cpu_pool.run(slow_count, few.ctypes.data, few.size, 1, 2)  # the threads are there
    out = np.zeros(10_000, np.int64)
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        cpu_pool.run(slow_count, out.ctypes.data, out.size, 1, 2)
    assert 0 < out.sum() < 4000
    out = np.zeros(30, np.int64)
    cpu_pool.run(slow_count, out.ctypes.data, out.size, 1, 2)
    assert (out == 1).all()


def test_handler_that_does_not_raise_lets_the_launch_go_on(slow_count):
    rung, out = [], np.zeros(100, np.int64)
    with alarm(lambda *_: rung.append(out.sum()), 0.01):
        cpu_pool.run(slow_count, out.ctypes.data, out.size, 1, 2)
        assert len(rung) == 1
    assert rung[0] < 100
    assert (out == 1).all()


def test_handler_may_launch(count, slow_count):
    inner, outer = np.zeros(50, np.int64), np.zeros(100, np.int64)
    with alarm(lambda *_: cpu_pool.run(count, inner.ctypes.data, 50, 1, 2), 0.01):
        cpu_pool.run(slow_count, outer.ctypes.data, outer.size, 1, 2)
        assert (inner == 1).all()
    assert (outer == 1).all()


def test_process_ends_while_workers_sleep_or_work():
    program = PRELUDE + textwrap.dedent("""
        assert launch()
        spin = cpu_pool.load_forever('''
            define i32 @forever(ptr %r, ptr %e, i64 %args, i64 %lo, i64 %hi) {
            entry:
              br label %loop
            loop:
              br label %loop
            }''')["forever"]
        if sys.argv[1] == "work":
            threading.Thread(
                target=cpu_pool.run, args=(spin, 0, 2, 1, 2), daemon=True).start()
        if sys.argv[1] == "launch":
            def hammer():
                while True: launch()
            for _ in range(3): threading.Thread(target=hammer, daemon=True).start()
        time.sleep(0.05)
        print("end")
    """)
    for what in ("sleep", "work", "launch"):
        assert in_new_process(program, what).split() == ["end"]


def test_workers_do_not_take_signals():
    """A signal for the process interrupts Python's main thread, not a sleeping worker."""
    program = PRELUDE + textwrap.dedent("""
        meeting = threading.Barrier(4)  # so that all have got through the start of a thread
        call = t.body(lambda lo, hi: meeting.wait())
        cpu_pool.run(t.address(call), 0, 4, 1, 4)
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
        masks = []
        for task in os.listdir("/proc/self/task"):
            if int(task) != os.getpid():
                status = open(f"/proc/self/task/{task}/status").read()
                masks.append(int(status.split("SigBlk:")[1].split()[0], 16))
        blocked = lambda mask, n: bool(mask >> (n - 1) & 1)
        workers = [m for m in masks if m]
        print(len(workers), all(blocked(m, signal.SIGINT) for m in workers),
              any(blocked(m, signal.SIGSEGV) for m in workers))
    """)
    assert in_new_process(program, OPENBLAS_NUM_THREADS="1").split() == ["3", "True", "False"]


def test_worker_stack_holds_what_a_body_needs():
    """Shared arrays and values across barriers live on the stack: 4 MB must be there."""
    big = cpu_pool.load_forever("""
        define i32 @big(ptr %r, ptr %e, i64 %args, i64 %lo, i64 %hi) {
        entry:
          %memory = alloca [4194304 x i8]
          br label %loop
        loop:
          %i = phi i64 [0, %entry], [%next, %loop]
          %at = getelementptr i8, ptr %memory, i64 %i
          store volatile i8 1, ptr %at
          %next = add i64 %i, 4096
          %again = icmp slt i64 %next, 4194304
          br i1 %again, label %loop, label %out
        out:
          ret i32 0
        }
    """)["big"]
    cpu_pool.run(big, 0, 64, 1, 4)


def test_missing_symbol_is_refused_by_name():
    with pytest.raises(DeviceError, match="no_such_function"):
        cpu_pool.load_forever("declare void @no_such_function()")


TWO = """
@number = global i64 42
define i64 @two() {
  %n = load i64, ptr @number
  %m = call i64 @labs(i64 %n)
  ret i64 %m
}
declare i64 @labs(i64)
"""


def call_two():
    addresses = cpu_pool.load_forever(TWO)
    assert ctypes.c_int64.from_address(addresses["number"]).value == 42
    return ctypes.CFUNCTYPE(ctypes.c_int64)(addresses["two"])()


def test_code_of_the_pool_is_compiled_once_and_kept(tmp_path, monkeypatch):
    made, compile_it = [], cpu_pool._object_code
    monkeypatch.setattr(
        cpu_pool, "_object_code", lambda *given: made.append(1) or compile_it(*given)
    )
    with ruda.config(cache_dir=str(tmp_path / "cache")):
        before = cache.statistics()
        assert [call_two(), call_two()] == [42, 42]
        assert len(made) == 1
        (file,) = (tmp_path / "cache" / "runtime").iterdir()
        file.write_bytes(file.read_bytes()[:-1] + b"?")  # damaged: made again, and repaired
        assert [call_two(), call_two()] == [42, 42]
        assert len(made) == 2
        file.parent.chmod(0o755)  # no longer the user's alone: neither read nor written
        assert call_two() == 42
        assert len(made) == 3
        assert cache.statistics() == before
        assert cache.entries() == []
    with ruda.config(cache=False):
        assert call_two() == 42
        assert len(made) == 4
