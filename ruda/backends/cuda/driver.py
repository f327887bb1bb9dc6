"""The driver API: devices, contexts, memory, streams and events, and errors that name kernels.

Nothing is imported before a device is asked for. Work of a device goes to the legacy default stream
unless a launch names another: other libraries' default work is then in order with ours. Errors of
the device come late, at a synchronisation: `Gpu.recent` remembers which kernels were launched where
since the last one.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ruda.backends import base
from ruda.backends.pool import Pool
from ruda.errors import DeviceError, DeviceNotFoundError, OutOfMemoryError
from ruda.settings import settings

if TYPE_CHECKING:
    from types import CodeType

NOT_INITIALISED, OUT_OF_MEMORY, NOT_READY = 3, 2, 600
# What a launch is told in a thread without a context, or with that of another GPU.
ELSEWHERE = (201, 400)
ALREADY_PEERS = 704
HINT = "ruda's CUDA backend needs an NVIDIA driver and the package cuda-bindings"
_forked = False


def _after_fork() -> None:
    global _forked
    _forked = bool(gpus.cache_info().currsize)


@functools.cache
def library() -> Any:
    """cuda.bindings.driver after `cuInit`; DeviceNotFoundError says what is missing."""
    try:
        ctypes.CDLL("libcuda.so.1" if os.name == "posix" else "nvcuda.dll")
    except OSError:
        raise DeviceNotFoundError(
            f"no CUDA device: this machine has no NVIDIA driver (libcuda). {HINT}"
        ) from None
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceNotFoundError(
            f'no CUDA device: {error}; `pip install "ruda[cuda]"`. {HINT}'
        ) from None
    (code,) = driver.cuInit(0)
    if code:
        raise DeviceNotFoundError(f"no CUDA device: the driver answers {code.name}. {HINT}")
    return driver


def check(result: tuple[Any, ...]) -> Any:
    """The value of a driver call; DeviceError."""
    if result[0]:
        kind = OutOfMemoryError if int(result[0]) == OUT_OF_MEMORY else DeviceError
        raise kind(describe(result[0]))
    return result[1] if len(result) == 2 else result[1:]


def describe(code: Any) -> str:
    """An error code in words."""
    if int(code) == NOT_INITIALISED and _forked:
        return (
            "CUDA does not work in a process forked after it was used: start processes with "
            'multiprocessing.set_start_method("spawn"), or use CUDA in the child only'
        )
    answer, text = library().cuGetErrorString(code)
    words = text.decode() if not answer and isinstance(text, bytes) else ""
    return f"the CUDA driver says {code.name}" + (f": {words}" if words else "")


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """Every GPU of this machine; () where there is no driver."""
    try:
        driver = library()
    except DeviceNotFoundError:
        return ()
    os.register_at_fork(after_in_child=_after_fork)
    return tuple(Gpu(k) for k in range(check(driver.cuDeviceGetCount())))


def gpu(name: str) -> Gpu:
    """The GPU of a device name: "cuda" is "cuda:0"."""
    library()
    number = int(name.partition(":")[2] or 0)
    found = gpus()
    if number >= len(found):
        raise DeviceNotFoundError(f"no device {name!r}: this machine has {len(found)} CUDA devices")
    return found[number]


class Gpu:
    """One GPU: its primary context, made at the first use, its memory and its streams."""

    def __init__(self, number: int) -> None:
        self.number, self.name = number, sys.intern(f"cuda:{number}")
        self.driver = library()
        self.handle = check(self.driver.cuDeviceGet(number))
        self.recent: collections.deque[tuple[str, CodeType, int]] = collections.deque(maxlen=64)
        self.pending: list[Callable[[], None]] = []  # reports of launches, to be told when done
        self.lost = ""
        self.lock = threading.RLock()
        self.registered: dict[int, int] = {}  # host memory that the GPU can reach: address -> bytes
        self.pages = Pages(self)
        self.peers: dict[Gpu, bool] = {}  # other GPUs, and whether this one reaches their memory
        self.moments: dict[int, Moment] = {}  # the last use of memory in each stream

    # ---- properties

    def attribute(self, name: str) -> int:
        kind = self.driver.CUdevice_attribute
        found: int = check(
            self.driver.cuDeviceGetAttribute(
                getattr(kind, f"CU_DEVICE_ATTRIBUTE_{name}"), self.handle
            )
        )
        return found

    @functools.cached_property
    def capability(self) -> tuple[int, int]:
        return (
            self.attribute("COMPUTE_CAPABILITY_MAJOR"),
            self.attribute("COMPUTE_CAPABILITY_MINOR"),
        )

    @functools.cached_property
    def architecture(self) -> str:
        """What code is made for: "90a" has the instructions that only this chip has."""
        major, minor = self.capability
        return f"{major}{minor}{'a' if major >= 9 else ''}"

    @functools.cached_property
    def description(self) -> str:
        found: bytes = check(self.driver.cuDeviceGetName(128, self.handle))
        return found.split(b"\0")[0].decode()

    @functools.cached_property
    def properties(self) -> dict[str, Any]:
        major, minor = self.capability
        return {
            "memory": int(check(self.driver.cuDeviceTotalMem(self.handle))),
            "compute_capability": f"{major}.{minor}",
            "multiprocessors": self.attribute("MULTIPROCESSOR_COUNT"),
            "clock_khz": self.attribute("CLOCK_RATE"),
            "max_threads": self.attribute("MAX_THREADS_PER_BLOCK"),
            "max_grid": tuple(self.attribute(f"MAX_GRID_DIM_{axis}") for axis in "XYZ"),
            "max_block": tuple(self.attribute(f"MAX_BLOCK_DIM_{axis}") for axis in "XYZ"),
            "max_shared": self.attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            "subgroup_sizes": (32,),
            "float64": "native",
            "float16": "stored, computed in float32",
            "bfloat16": "stored, computed in float32",
            "driver": self.driver_version,
        }

    @functools.cached_property
    def driver_version(self) -> str:
        version = int(check(self.driver.cuDriverGetVersion()))
        return f"{version // 1000}.{version % 1000 // 10}"

    # ---- the context

    @functools.cached_property
    def context(self) -> Any:
        with self.lock:
            context = check(self.driver.cuDevicePrimaryCtxRetain(self.handle))
            check((*self.driver.cuCtxSetCurrent(context), None))
            atexit.register(self.close)
            return context

    def use(self) -> None:
        """Make this GPU's context the thread's."""
        if self.lost:
            raise DeviceError(self.lost)
        check((*self.driver.cuCtxSetCurrent(self.context), None))

    def reaches(self, other: Gpu) -> bool:
        """Whether this GPU reads and writes the memory of another; it is allowed to from now on."""
        if other not in self.peers:
            able = bool(check(self.driver.cuDeviceCanAccessPeer(self.handle, other.handle)))
            if able:
                self.use()
                (code,) = self.driver.cuCtxEnablePeerAccess(other.context, 0)
                able = int(code) in (0, ALREADY_PEERS)  # another library was first
            self.peers[other] = able
        return self.peers[other]

    def close(self) -> None:
        """At the end of the process: let the work finish, leave memory to the driver."""
        self.pool.closed = True
        with contextlib.suppress(Exception):
            self.driver.cuCtxSetCurrent(self.context)
            self.driver.cuCtxSynchronize()
            self.tell()

    # ---- errors

    def note(self, name: str) -> None:
        """A launch or a call is going on: keep who asked for it. See `quick`."""
        self.recent.append(base.asked(name))

    def fail(self, code: Any, where: str = "") -> DeviceError:
        """The error for a code that a launch or a synchronisation gave."""
        text = describe(code)
        names = []
        for row in reversed(self.recent):
            line = str(base.Asked(*row))
            if line not in names:
                names.append(line)
        error = DeviceError(f"{self.name}: {text}{where}")
        if names:
            start = "in kernel" if len(names) == 1 else "in one of the last kernels"
            error.add_note(f"{start} {', '.join(names[:5])}")
            if int(code) in (700, 716, 717, 718, 719, 715, 702):
                error.add_note("hint: run it under ruda.config(check=True), or on the device `sim`")
        if int(code) in (700, 702, 709, 714, 715, 716, 717, 718, 719):
            # The context is of no use any more, and the driver will say the same to every call.
            self.lost = f"{self.name} is lost to this process since an earlier error ({text})"
            self.pool.closed = True
        return error

    def synchronize(self) -> None:
        """Wait for all work of the GPU; its errors and reports come here."""
        if self.lost:
            raise DeviceError(self.lost)
        self.use()
        (code,) = self.driver.cuCtxSynchronize()
        if code:
            raise self.fail(code)
        self.recent.clear()
        self.tell()

    def synchronize_stream(self, handle: int) -> None:
        if self.lost:
            raise DeviceError(self.lost)
        self.use()
        (code,) = self.driver.cuStreamSynchronize(handle)
        if code:
            raise self.fail(code)
        self.tell()

    def tell(self) -> None:
        """Print and raise what finished launches have reported."""
        while self.pending:
            self.pending.pop(0)()

    # ---- memory

    @functools.cached_property
    def pool(self) -> Pool:
        return Pool(
            self.name,
            request=self._request,
            release=self._release,
            mark=lambda moment: moment,
            is_past=self._is_past,
            wait=self._wait,
            free_memory=lambda: self.memory_info()[0],
            limit=lambda: settings.memory_limit,
        )

    def _request(self, nbytes: int) -> int | None:
        self.use()
        code, address = self.driver.cuMemAlloc(nbytes)
        if int(code) == OUT_OF_MEMORY:
            return None
        if code:
            raise self.fail(code)
        return int(address)

    def _release(self, address: int) -> None:
        self.driver.cuCtxSetCurrent(self.context)
        self.driver.cuMemFree(address)

    def _wait(self) -> None:
        if not self.lost:
            self.use()
            self.driver.cuCtxSynchronize()

    def note_use(self, owner: Any, handle: int) -> None:
        """Memory was given to work of a stream just now; it is reused when that is done.

        An event says so, since the stream may be gone when the memory dies. In a stream that
        another library captures nothing can: who replays the graph keeps the memory.
        """
        if not handle or not hasattr(owner, "used_in"):
            return
        if int(check(self.driver.cuStreamIsCapturing(handle))):
            return
        moment = self.moments.get(handle)
        if moment is None:
            moment = self.moments[handle] = Moment(self)
        check((*self.driver.cuEventRecord(moment.event, handle), None))
        owner.used_in(moment)

    def _is_past(self, moment: Moment) -> bool:
        (code,) = self.driver.cuEventQuery(moment.event)
        return int(code) != NOT_READY

    def memory_info(self) -> tuple[int, int]:
        """Free and all bytes."""
        self.use()
        free, total = check(self.driver.cuMemGetInfo())
        return int(free), int(total)

    def allocate(self, nbytes: int) -> base.Storage:
        block = self.pool.allocate(nbytes)
        return base.Storage(self.name, block.address, nbytes, block, False)

    def host_memory(self, nbytes: int, kind: str) -> base.Storage:
        """Memory of the host that the GPU reaches: page-locked, or managed."""
        self.use()
        size = max(1, nbytes)
        if kind == "managed":
            address = int(check(self.driver.cuMemAllocManaged(size, 1)))
            release = self.driver.cuMemFree
        else:
            address = int(check(self.driver.cuMemHostAlloc(size, 3)))  # portable, mapped
            release = self.driver.cuMemFreeHost
        owner = HostBlock(self, address, size, release)
        return base.Storage(self.name, address, nbytes, owner, True)

    def lock_memory(self, address: int, size: int, owner: Any) -> HostBlock:
        """Page-lock memory of the process and let the GPU reach it, as long as the result lives."""
        self.use()
        self.pages.lock(address, size)
        release = functools.partial(self.pages.unlock, size=size)
        block = HostBlock(self, address, size, release, owner)
        if int(check(self.driver.cuMemHostGetDevicePointer(address, 0))) != address:
            raise DeviceError(
                f"{self.name} reaches the memory of NumPy's arrays at another address: make the "
                "array with ruda.mapped_array, or copy it with ruda.to_device"
            )
        return block

    def read(self, address: int, out: base.Bytes, stream: int) -> None:
        """Copy to the host, in the order of the stream; done when it returns."""
        self.use()
        driver = self.driver
        (code,) = driver.cuMemcpyDtoHAsync(out.ctypes.data, address, out.size, stream)
        if not code:
            (code,) = driver.cuStreamSynchronize(stream)
        if code:
            raise self.fail(code)
        self.tell()

    def write(self, address: int, data: base.Bytes, stream: int) -> None:
        """Copy from the host, in the order of the stream; done with `data` when it returns."""
        self.use()
        (code,) = self.driver.cuMemcpyHtoDAsync(address, data.ctypes.data, data.size, stream)
        if not code and self.is_registered(data.ctypes.data):
            (code,) = self.driver.cuStreamSynchronize(stream)
        if code:
            raise self.fail(code)

    def is_registered(self, address: int) -> bool:
        return any(a <= address < a + n for a, n in self.registered.items())

    @contextlib.contextmanager
    def pin(self, ary: np.ndarray[Any, Any]) -> Iterator[None]:
        """Page-lock the memory of a NumPy array for a region."""
        low, high = np.lib.array_utils.byte_bounds(ary)
        if high == low:
            yield
            return
        self.use()
        self.pages.lock(low, high - low)
        self.registered[low] = high - low
        try:
            yield
        finally:
            self.use()
            check((*self.driver.cuCtxSynchronize(), None))
            self.registered.pop(low, None)
            self.pages.unlock(low, high - low)

    @functools.cached_property
    def grid_state(self) -> base.Storage:
        """The word of barriers over the grid."""
        storage = self.allocate(4)
        check((*self.driver.cuMemsetD32Async(storage.address, 0, 1, 0), None))
        return storage


class Moment:
    """An event behind the last work of a stream that uses our memory."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.event = gpu, check(gpu.driver.cuEventCreate(2))  # without times

    def __del__(self) -> None:
        if hasattr(self, "event") and not self.gpu.pool.closed:
            self.gpu.driver.cuCtxSetCurrent(self.gpu.context)
            self.gpu.driver.cuEventDestroy(self.event)


class Pages:
    """Memory of the process, page-locked by whole pages: small arrays lie in one page together."""

    SIZE = 4096

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self.uses: dict[int, int] = {}  # page -> arrays that lie in it
        self.runs: dict[int, int] = {}  # first page of a registration -> pages

    def of(self, address: int, size: int) -> range:
        return range(address // self.SIZE, (address + size - 1) // self.SIZE + 1)

    def lock(self, address: int, size: int) -> None:
        with self.gpu.lock:
            pages = self.of(address, size)
            for first, count in consecutive([p for p in pages if p not in self.uses]):
                at, nbytes = first * self.SIZE, count * self.SIZE
                check((*self.gpu.driver.cuMemHostRegister(at, nbytes, 3), None))  # portable, mapped
                self.runs[first] = count
                self.uses |= dict.fromkeys(range(first, first + count), 0)
            for page in pages:
                self.uses[page] += 1

    def unlock(self, address: int, size: int) -> None:
        with self.gpu.lock:
            for page in self.of(address, size):
                self.uses[page] -= 1
            for first, count in list(self.runs.items()):
                run = range(first, first + count)
                if not any(self.uses[page] for page in run):
                    self.gpu.driver.cuMemHostUnregister(first * self.SIZE)
                    del self.runs[first]
                    for page in run:
                        del self.uses[page]


def consecutive(pages: list[int]) -> list[tuple[int, int]]:
    """Runs of numbers that follow each other: first and count.

    >>> consecutive([3, 4, 5, 8])
    [(3, 3), (8, 1)]
    """
    out: list[tuple[int, int]] = []
    for page in pages:
        if out and page == sum(out[-1]):
            out[-1] = out[-1][0], out[-1][1] + 1
        else:
            out.append((page, 1))
    return out


class HostBlock:
    """Page-locked or managed memory, given back when it dies."""

    def __init__(self, gpu: Gpu, address: int, size: int, release: Any, owner: Any = None) -> None:
        self.gpu, self.address, self.release, self.owner = gpu, address, release, owner
        gpu.registered[address] = size

    def __del__(self) -> None:
        gpu = self.gpu
        gpu.registered.pop(self.address, None)
        if not gpu.pool.closed:
            gpu.driver.cuCtxSetCurrent(gpu.context)
            gpu.driver.cuCtxSynchronize()  # the GPU may still be writing there
            self.release(self.address)


# ---- streams and events --------------------------------------------------------------------------


class CudaStream(base.Stream):
    """A stream of the GPU; the default one is in order with all others that do not forbid it."""

    def __init__(self, gpu: Gpu, handle: int | None = None) -> None:
        super().__init__(gpu.name)
        self.gpu, self.owned = gpu, None
        if handle is None:
            gpu.use()
            self.owned = check(gpu.driver.cuStreamCreate(0))
            handle = int(self.owned)
        self.handle = handle

    def synchronize(self) -> None:
        self.gpu.synchronize_stream(self.handle)

    def query(self) -> bool:
        """Whether the work given so far is done."""
        self.gpu.use()
        (code,) = self.gpu.driver.cuStreamQuery(self.handle)
        if code and int(code) != NOT_READY:
            raise self.gpu.fail(code)
        return not code

    def add_callback(
        self, callback: Callable[[base.Stream, int, Any], Any], arg: Any = None
    ) -> None:
        """Call `callback(stream, status, arg)` in a thread when the work given so far is done."""
        event = CudaEvent(self.gpu, timing=False)
        event.record(self)

        def wait() -> None:
            try:
                event.synchronize()
                status = 0
            except DeviceError:
                status = 1
            callback(self, status, arg)

        threading.Thread(target=wait, daemon=True).start()

    def async_done(self) -> Any:
        import asyncio

        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def done(stream: base.Stream, status: int, arg: Any) -> None:
            def set_result() -> None:
                if future.cancelled():
                    return
                if status:
                    future.set_exception(DeviceError(self.gpu.lost or "the stream failed"))
                else:
                    future.set_result(None)

            loop.call_soon_threadsafe(set_result)

        self.add_callback(done)
        return future

    def __del__(self) -> None:
        if getattr(self, "owned", None) is not None and not self.gpu.pool.closed:
            self.gpu.driver.cuCtxSetCurrent(self.gpu.context)
            self.gpu.driver.cuStreamDestroy(self.owned)
            self.gpu.moments.pop(self.handle, None)  # another stream may get its address


def handle_of(stream: base.Stream | None) -> int:
    """The driver's stream; 0 is the default one."""
    return getattr(stream, "handle", 0)


class CudaEvent(base.Event):
    """A moment in a stream of the GPU."""

    def __init__(self, gpu: Gpu, timing: bool = True) -> None:
        super().__init__(gpu.name, timing)
        self.gpu, self.recorded = gpu, False
        gpu.use()
        self.event = check(gpu.driver.cuEventCreate(0 if timing else 2))

    def record(self, stream: base.Stream | None = None) -> None:
        self.gpu.use()
        check((*self.gpu.driver.cuEventRecord(self.event, handle_of(stream)), None))
        self.recorded = True

    def query(self) -> bool:
        self.gpu.use()
        (code,) = self.gpu.driver.cuEventQuery(self.event)
        if code and int(code) != NOT_READY:
            raise self.gpu.fail(code)
        return not code

    def synchronize(self) -> None:
        self.gpu.use()
        (code,) = self.gpu.driver.cuEventSynchronize(self.event)
        if code:
            raise self.gpu.fail(code)
        self.gpu.tell()

    def wait(self, stream: base.Stream | None = None) -> None:
        self.gpu.use()
        check((*self.gpu.driver.cuStreamWaitEvent(handle_of(stream), self.event, 0), None))

    def elapsed_time(self, end: base.Event) -> float:
        for event in (self, end):
            if not isinstance(event, CudaEvent):
                raise TypeError(f"the time between two events of CUDA, not {type(event).__name__}")
            if not event.timing:
                raise DeviceError("an event made with `timing=False` has no time")
            if not event.recorded:
                raise DeviceError("an event has a time only after `record`")
        assert isinstance(end, CudaEvent)
        end.synchronize()
        return float(check(self.gpu.driver.cuEventElapsedTime(self.event, end.event)))

    def __del__(self) -> None:
        if hasattr(self, "event") and not self.gpu.pool.closed:
            self.gpu.driver.cuCtxSetCurrent(self.gpu.context)
            self.gpu.driver.cuEventDestroy(self.event)
