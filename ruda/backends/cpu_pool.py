"""Run the blocks of a CPU launch on every core: the thread pool of `cpu_pool.ll`.

A compiled kernel body is a native function in numba's calling convention,
`i32 body(i8* result, i8* watch, i64 args, i64 lo, i64 hi)`. It runs the items lo..hi of
a launch: its blocks, or whatever else the body divides it into; `args` is the address of the packed
argument block (`cpu_launcher` says what is in it). What it returns, and what it writes through its
first pointer, is ignored: bodies cannot fail. Where numba has a place for an exception they are
given their *watch*: the address of `i1 poll(watch)`, which a body calls now and then in long loops,
and then what `poll` needs. After a false a body returns at once.

    run(body, args, count, chunk, threads)      items 0..count, returns when all are done
    run_serial(body, args, count)               the same here, GIL held: for tiny launches
    thread_count()                              what to pass as `threads`

The rules that make it correct, and cheap:

* A launch is a *job*. The calling thread always works on its own job; idle workers join it as long
  as the job has *permits*. So callers from several Python threads never wait for one another, and a
  launch made from inside a body cannot deadlock (on a worker it runs inline).
* Chunks are claimed with one atomic add; one should take microseconds, not nanoseconds. `chunk` is
  a number of items. 0 or less lets the pool choose: it runs 1, 2, 4, ... grains of -chunk items (at
  least 1) alone until `PROBE` is over. What is done by then was too small to share; the rest is
  shared in chunks of about `CHUNK_TIME`. A grain of tiny items should fill some vector registers.
* `state` of a job is `permits << 32 | helpers`. The caller withdraws the permits, then waits until
  no helper is left; only then is the job's memory used again. Joining acquires, leaving releases.
* A worker without work spins for `IDLE_SPIN`, then sleeps. It announces itself as sleeping before
  it looks at `epoch` for the last time, and a caller raises `epoch` before it looks for sleepers
  (both sequentially consistent), so no wake-up is lost. Wake-ups spread as a tree.
* The GIL is released, and every `SLICE` the caller comes back for it so that Python's signal
  handlers run, between two chunks or at a poll. If one raises (Ctrl-C), the chunks not yet claimed
  are dropped, those that run end at their next poll and are waited for, and the exception goes on.
* A forked child has no workers: `reset` makes the pool new there. A launch that was under way in
  the forking thread (a signal handler that forks) cannot be finished in the child: DeviceError.
* Workers are detached, block signals, and are never joined, so the process can end at any time.
  Their code therefore stays in memory for ever. A worker has `STACK` bytes of stack for what a body
  keeps there (shared arrays, values that live across a barrier).

Where there are no pthreads (Windows) launches run on the calling thread.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import signal
import string
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ruda.errors import DeviceError, LaunchValueError
from ruda.settings import settings

if TYPE_CHECKING:
    from ruda.jit.cache import Entry

STACK = 8 << 20  # bytes; only touched pages cost memory
IDLE_SPIN = 200_000  # ns that a worker spins before it sleeps: Python between two launches
WAIT_SPIN = 20_000  # ns that a caller spins for its helpers before it sleeps
SLICE = 20_000_000  # ns after which a caller looks for signals
PROBE = 10_000  # ns of work that is not worth sharing
CHUNK_TIME = 200_000  # ns: what an automatic chunk aims at; neighbouring blocks gain by company
HOLD = 30_000  # ns for which a one-chunk launch may hold the GIL
MAX_THREADS = 1024

LOST = "a launch was under way in the thread that forked: it cannot be finished in the child"

_PAUSE = {  # machine: (declaration, call) of the instruction that makes spinning polite
    "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "amd64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
    "aarch64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
    "arm64": ("declare void @llvm.aarch64.hint(i32)", "call void @llvm.aarch64.hint(i32 1)"),
}


def _source() -> str:
    """`cpu_pool.ll` with this platform's constants."""
    text = Path(__file__).with_suffix(".ll").read_text(encoding="utf-8")
    declaration, pause = _PAUSE.get(platform.machine().lower(), ("", ""))
    return string.Template(text).substitute(
        DECLARE_PAUSE=declaration,
        PAUSE=pause,
        LOST=LOST,
        LOST_SIZE=len(LOST) + 1,
        KEY="i64" if sys.platform == "darwin" else "i32",  # pthread_key_t
        MONOTONIC=int(time.CLOCK_MONOTONIC),
        REALTIME=int(time.CLOCK_REALTIME),
        SIG_BLOCK=int(signal.SIG_BLOCK),
        SIG_SETMASK=int(signal.SIG_SETMASK),
        SIGSEGV=int(signal.SIGSEGV),
        SIGBUS=int(signal.SIGBUS),
        SIGFPE=int(signal.SIGFPE),
        SIGILL=int(signal.SIGILL),
        STACK=STACK,
        IDLE_SPIN=IDLE_SPIN,
        WAIT_SPIN=WAIT_SPIN,
        SLICE=SLICE,
        MAX_THREADS=MAX_THREADS,
        PROBE=PROBE,
        CHUNK_TIME=CHUNK_TIME,
        HOLD=HOLD,
    )


def load_forever(source: str) -> dict[str, int]:
    """Compile IR text and load it: the address of each function and variable that it defines.

    The code is never unloaded, and its object code is kept in the disk cache. CPython's functions
    are found even where its library was loaded privately.
    """
    import llvmlite.binding as llvm

    from ruda.jit import cache

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # Instruction selection costs most of the time; the code is small and spends its life waiting.
    machine = llvm.Target.from_default_triple().create_target_machine(opt=0, jit=True)
    parts = {**cache.environment_parts("cpu"), "name": "ruda.backends.cpu_pool", "ir": source}
    key = cache.key_of(parts)
    entry = cache.recall(key)
    if entry is None:
        entry = _object_code(source, machine)
        cache.keep(key, entry, parts=parts)
    for name in entry.symbols:
        if llvm.address_of_symbol(name) is not None:
            continue
        if not hasattr(ctypes.pythonapi, name):  # LLVM would end the process
            raise DeviceError(f"this system has no function {name!r}, which CPU launches need")
        llvm.add_symbol(name, ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(entry.payload))
    engine.finalize_object()
    addresses = {name: engine.get_function_address(name) for name in entry.metadata["names"]}
    engine.detach()
    return addresses


def _object_code(source: str, machine: Any) -> Entry:
    """Object code of IR text, the names that it defines, and those that it needs."""
    import llvmlite.binding as llvm

    from ruda.jit.cache import Entry

    module = llvm.parse_assembly(source)
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()  # of reading a field, a call takes most of the time
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(0)))
    needed = [f.name for f in module.functions if f.is_declaration]
    made = [f for f in module.functions if not f.is_declaration] + [*module.global_variables]
    return Entry(
        machine.emit_object(module),
        {"names": [v.name for v in made if v.linkage.name == "external"]},
        tuple(name for name in needed if not name.startswith("llvm.")),
    )


class Native(NamedTuple):
    """The functions of the loaded pool."""

    run: Any
    serial: Any
    reset: Any
    worker_count: Any
    launch: int  # address of i32 launch(body, args, count, chunk, threads, i64* slow)


_native: Native | None = None
_lock = threading.RLock()


def native() -> Native:
    """The pool, compiled at the first call."""
    global _native
    if _native is None:
        with _lock:
            if _native is None:
                _native = _load()
    return _native


def _load() -> Native:
    addresses = load_forever(_source())
    # PYFUNCTYPE keeps the GIL (`run` itself lets it go), and raises what the function has raised.
    word = ctypes.c_int64
    ctypes.c_void_p.from_address(addresses["lost_error"]).value = id(DeviceError)
    ctypes.PYFUNCTYPE(None)(addresses["initialise"])()
    return Native(
        run=ctypes.PYFUNCTYPE(ctypes.c_int, *[word] * 5)(addresses["run"]),
        serial=ctypes.PYFUNCTYPE(ctypes.c_int, *[word] * 4)(addresses["serial"]),
        reset=ctypes.PYFUNCTYPE(None)(addresses["reset"]),
        worker_count=ctypes.PYFUNCTYPE(word)(addresses["worker_count"]),
        launch=addresses["launch"],
    )


def _after_fork_in_child() -> None:
    if _native is not None:
        _native.reset()
    available_cores.cache_clear()
    _lock.release()


if hasattr(os, "register_at_fork"):
    # A fork waits for another thread's `_load`: its thread, not LLVM's locks, would be gone.
    os.register_at_fork(
        before=_lock.acquire,
        after_in_parent=_lock.release,
        after_in_child=_after_fork_in_child,
    )


@functools.cache
def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def thread_count() -> int:
    """Threads of a launch: the setting `num_threads`, else one per core available.

    >>> import ruda
    >>> with ruda.config(num_threads=3):
    ...     thread_count()
    3
    """
    wanted: int = settings.num_threads
    if not 0 <= wanted <= MAX_THREADS:
        raise LaunchValueError(f"num_threads={wanted}: expected 0 (one per core) to {MAX_THREADS}")
    return wanted or available_cores()


def run(body_address: int, args_address: int, count: int, chunk: int, threads: int) -> None:
    """Run items 0..count of a body on up to `threads` threads; return when all are done.

    `chunk` items are claimed at a time; 0, or -grain, lets the pool choose. The GIL is released. An
    exception from a signal handler (KeyboardInterrupt) stops the launch.
    """
    if POSIX:
        native().run(body_address, args_address, count, chunk, threads)
    else:
        run_serial(body_address, args_address, count)


def run_serial(body_address: int, args_address: int, count: int) -> None:
    """Run items 0..count on this thread; the GIL is held until the first poll."""
    if count <= 0:
        return
    if POSIX:
        native().serial(body_address, args_address, 0, count)
    else:
        hidden = ctypes.create_string_buffer(128)  # a watch of zeros: there is nobody to ask
        _BODY(body_address)(hidden, ctypes.addressof(hidden) + 64, args_address, 0, count)


def worker_count() -> int:
    """Threads that the pool has started in this process."""
    return int(native().worker_count())


POSIX = os.name == "posix"
_BODY = ctypes.PYFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3)
