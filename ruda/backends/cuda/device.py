"""CUDA as a backend: what code depends on, compiling, loading and launching, memory and streams.

Text and cubins are made on any machine, for the chip of `RUDA_CUDA_ARCH` or Hopper's ("90a") where
there is none. numba-cuda's dispatcher, which costs ten times what a launch costs, is not used.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ruda.backends.base import (
    Binary,
    Bytes,
    DeviceArray,
    DeviceInfo,
    Event,
    Launch,
    Source,
    Storage,
    Stream,
)  # fmt: skip
from ruda.backends.cuda.driver import check
from ruda.errors import DeviceError, DeviceNotFoundError
from ruda.settings import settings

if TYPE_CHECKING:
    from ruda.backends.cuda.driver import Gpu
    from ruda.backends.cuda.launch import Module
    from ruda.backends.pool import Pool
    from ruda.jit.ir import Function


class EventClock:
    """The GPU's own times, by events: what profiles ask for."""

    copies = True

    def __init__(self, device: str) -> None:
        self.device = device

    @contextlib.contextmanager
    def launch(self, stream: Stream | None = None) -> Iterator[list[Event]]:
        """Two events around what is given to a stream within."""
        start, end = BACKEND.event(self.device), BACKEND.event(self.device)
        start.record(stream)
        yield [start, end]
        end.record(stream)

    def zero(self) -> Event:
        """An event that is past."""
        event = BACKEND.event(self.device)
        event.record()
        event.synchronize()
        return event


class CudaBackend:
    """Backend "cuda"; see `ruda.backends.base.Backend`."""

    name = "cuda"
    cacheable = True
    launcher_checks = True

    # ---- devices

    def devices(self) -> Sequence[DeviceInfo]:
        from ruda.backends.cuda import driver

        return [
            DeviceInfo(gpu.name, gpu.description, "hardware", gpu.properties)
            for gpu in driver.gpus()
        ]

    def clock(self, device: str) -> EventClock:
        """The GPU's own times, for profiles."""
        return EventClock(device)

    def missing(self) -> str:
        """Why there is no device; "" if there is one."""
        from ruda.backends.cuda import driver

        try:
            driver.gpu("cuda")
        except DeviceNotFoundError as error:
            return str(error)
        return ""

    def gpu(self, device: str) -> Gpu:
        from ruda.backends.cuda import driver

        return driver.gpu(device)

    def pool(self, device: str) -> Pool:
        """Where a device's own memory comes from."""
        return self.gpu(device).pool

    def target(self, device: str = "cuda") -> Mapping[str, Any]:
        """The chip that code is made for."""
        from ruda.backends.cuda import driver

        architecture = settings.cuda_arch
        if not architecture:
            found = driver.gpus()
            number = int(device.partition(":")[2] or 0)
            architecture = found[number].architecture if number < len(found) else "90a"
        return {"architecture": architecture}

    # ---- from IR to a kernel

    def emit(self, function: Function, target: Mapping[str, Any]) -> Source:
        """Pure: IR -> Python text of one thread."""
        from ruda.backends.cpu.reports import pack_sites
        from ruda.backends.cuda import emit
        from ruda.jit import passes, rounds
        from ruda.jit.passes.narrow import quotients, shorten
        from ruda.jit.passes.phases import hidden
        from ruda.jit.passes.reports import lower_reports

        reporting, sites = lower_reports(function)
        assumes = target.get("assumes", emit.ASSUMES)
        lowered = passes.lower(reporting, "cuda")
        short = shorten(lowered, narrow=True)
        lowered = shorten(lowered, narrow=False)
        if "narrow" in assumes and quotients(short) > quotients(lowered):
            lowered = short
        else:
            assumes = tuple(a for a in assumes if a != "narrow")
        options: dict[str, Any] = {
            "symbol": "kernel",
            "phases": None,
            "name": function.name,
            "flags": float_flags(function),
            "sites": pack_sites(sites),
            "cooperative": emit.is_cooperative(lowered),
            "lanes": lowered.lanes,
            "max_registers": function.max_registers,
        }
        parted = hidden(lowered)
        if parted is not None:
            options["phases"] = {
                "schedule": rounds.pack(parted.schedule), "rounds": list(parted.rounds),
                "kept": [d.itemsize for d in parted.kept],
            }  # fmt: skip
        return emit.emit(lowered, sites, options, assumes)

    def compile(self, source: Source, target: Mapping[str, Any]) -> Binary:
        from ruda.backends.cuda import compile as compiler

        return compiler.compile_source(source, target)

    def assembly(self, source: Source, target: Mapping[str, Any]) -> str:
        """The PTX, or with the package nvidia-cuda-nvdisasm the machine code, as text."""
        from ruda.backends.cuda import compile as compiler

        return compiler.assembly(source, target)

    def resolves(self, symbol: str) -> bool:
        """Whether a cubin from the disk cache may refer to an external symbol: it has none."""
        return False

    def load(self, binary: Binary, function: Function | None, device: str) -> Module:
        from ruda.backends.cuda import launch

        if function is None:
            raise DeviceError("a cubin is loaded with the function that it was made from")
        return launch.load(self.gpu(device), binary, function)

    def attributes(self, module: Module) -> Mapping[str, int]:
        """Registers, stack and spilled bytes of a thread."""
        found: Mapping[str, int] = module.metadata["attributes"]
        return found

    def block_for(self, module: Module, launch: Launch, tasks: int) -> int:
        """Threads of a block for a launch that only counts threads."""
        from ruda.backends.cuda import launch as launching

        return launching.block_for(module, launch, tasks)

    def launcher(
        self,
        module: Module,
        launch: Launch,
        fallback: Callable[..., Any] | None,
        guards: Sequence[tuple[Any, Any, Any]] = (),
    ) -> Callable[..., None]:
        from ruda.backends.cuda import launch as launching

        return launching.build(module, launch, fallback, guards)

    def bound(
        self, module: Module, launch: Launch, given: Sequence[Any]
    ) -> Callable[..., None] | None:
        """A launcher for arrays that lie as the given ones do, which looks at addresses alone."""
        from ruda.backends.cuda import launch as launching

        return launching.bound(module, launch, given)

    def fresh(
        self, module: Module, launch: Launch, given: Sequence[Any], like: DeviceArray
    ) -> Callable[..., Any] | None:
        """A builtin that takes the inputs of a kernel, whose result is new memory as `like`."""
        from ruda.backends.cuda import quick

        return quick.fresh(module, launch, given, like)

    def graph(
        self, launches: Sequence[tuple[Module, Launch, Sequence[Any]]], device: str
    ) -> Callable[[], None]:
        """Recorded launches as one call; see `ruda.capture`."""
        from ruda.backends.cuda import graphs

        return graphs.graph(self.gpu(device), launches)

    @property
    def vendor(self) -> Any:
        """Functions of cuSOLVER, cuBLAS and cuFFT: see `vendor`."""
        from ruda.backends.cuda import vendor

        return vendor

    # ---- memory

    def allocate(
        self, nbytes: int, device: str, kind: str = "device", stream: Stream | None = None
    ) -> Storage:
        gpu = self.gpu(device)
        return gpu.allocate(nbytes) if kind == "device" else gpu.host_memory(nbytes, kind)

    def read(self, storage: Storage, offset: int, out: Bytes, stream: Stream | None) -> None:
        """Copy from the device to the host; done when it returns."""
        from ruda.backends.cuda.driver import handle_of

        self.gpu(storage.device).read(storage.address + offset, out, handle_of(stream))

    def write(self, storage: Storage, offset: int, data: Bytes, stream: Stream | None) -> None:
        """Copy from the host to the device; `data` may be changed when it returns."""
        from ruda.backends.cuda.driver import handle_of

        handle = handle_of(stream)
        gpu = self.gpu(storage.device)
        gpu.write(storage.address + offset, data, handle)
        gpu.note_use(storage.owner, handle)

    def copy_bytes(self, target: DeviceArray, source: DeviceArray) -> None:
        """Copy between arrays without gaps, of one size, on the device."""
        from ruda.backends.cuda import driver

        gpu, nbytes = self.gpu(target.storage.device), math.prod(target.shape) * target.itemsize
        if len(driver.gpus()) > 1:  # stream 0 is that of the thread's context
            gpu.use()
        (code,) = gpu.driver.cuMemcpyDtoDAsync(target.pointer, source.pointer, nbytes, 0)
        if code:
            gpu.use()  # in a new thread the context is not there yet
            check((*gpu.driver.cuMemcpyDtoDAsync(target.pointer, source.pointer, nbytes, 0), None))

    def send(self, target: DeviceArray, source: DeviceArray) -> bool:
        """Copy between arrays without gaps on two GPUs; whether straight from one to the other.

        Where they are no peers the driver goes through memory of the host. In the order of the
        work of both: the copy waits for what uses its memory, and what comes later for the copy.
        """
        there, here = self.gpu(target.storage.device), self.gpu(source.storage.device)
        is_peer = there.reaches(here)
        if not target.size:
            return is_peer
        self._follow(there, here)
        for moment in getattr(source.storage.owner, "queues", None) or ():
            check((*there.driver.cuStreamWaitEvent(0, moment.event, 0), None))
        nbytes = target.size * target.itemsize
        (code,) = there.driver.cuMemcpyPeerAsync(
            target.pointer, there.context, source.pointer, here.context, nbytes, 0
        )
        if code:
            raise there.fail(code)
        self._follow(here, there)
        return is_peer

    def _follow(self, one: Gpu, other: Gpu) -> None:
        """Let a GPU's default stream wait for what another's was given; its context is used now."""
        other.use()
        event = check(other.driver.cuEventCreate(2))  # without times
        check((*other.driver.cuEventRecord(event, 0), None))
        one.use()
        check((*one.driver.cuStreamWaitEvent(0, event, 0), None))
        check((*one.driver.cuEventDestroy(event), None))

    def map(self, ary: np.ndarray[Any, Any], device: str) -> DeviceArray:
        """A device array at the memory of a NumPy array, page-locked while it lives."""
        if not ary.flags.writeable:
            raise ValueError("a read-only NumPy array cannot be mapped: kernels could write it")
        low, high = np.lib.array_utils.byte_bounds(ary)
        owner = self.gpu(device).lock_memory(low, max(high - low, 1), ary)
        storage = Storage(device, low, high - low, owner, True)
        offset = ary.__array_interface__["data"][0] - low
        return DeviceArray(self, storage, ary.shape, ary.dtype, ary.strides, offset)

    def pin(self, ary: np.ndarray[Any, Any]) -> contextlib.AbstractContextManager[None]:
        return self.gpu(settings.device).pin(ary)

    def memory_info(self, device: str) -> tuple[int, int]:
        """Free and all bytes of the device."""
        return self.gpu(device).memory_info()

    def memory_statistics(self, device: str) -> Mapping[str, int]:
        """Bytes in use, kept for reuse, the most ever in use; counts of requests."""
        return self.gpu(device).pool.statistics()

    def empty_cache(self, device: str) -> None:
        """Give memory that no array holds back to the device."""
        gpu = self.gpu(device)
        gpu.synchronize()
        gpu.pool.empty()

    # ---- streams and events

    def stream(self, device: str) -> Stream:
        from ruda.backends.cuda.driver import CudaStream

        return CudaStream(self.gpu(device))

    def default_stream(self, device: str) -> Stream:
        from ruda.backends.cuda.driver import CudaStream

        return CudaStream(self.gpu(device), 0)

    def external_stream(self, handle: int, device: str) -> Stream:
        """The stream of another library, by its address."""
        from ruda.backends.cuda.driver import CudaStream

        return CudaStream(self.gpu(device), handle)

    def event(self, device: str, timing: bool = True) -> Event:
        from ruda.backends.cuda.driver import CudaEvent

        return CudaEvent(self.gpu(device), timing)

    def order(self, device: str, first: int, then: int) -> None:
        """Let a stream wait for what another has been given; both by their addresses."""
        if first == then or {first, then} <= {0, 1}:  # both name the legacy default stream
            return
        gpu = self.gpu(device)
        gpu.use()
        event = check(gpu.driver.cuEventCreate(2))  # without times
        check((*gpu.driver.cuEventRecord(event, first), None))
        check((*gpu.driver.cuStreamWaitEvent(then, event, 0), None))
        check((*gpu.driver.cuEventDestroy(event), None))

    def hand_over(self, storage: Storage, stream: int) -> None:
        """Let another library's stream wait for all that writes a piece of memory."""
        self.order(storage.device, 0, stream)
        gpu = self.gpu(storage.device)
        for moment in getattr(storage.owner, "queues", None) or ():
            gpu.use()
            check((*gpu.driver.cuStreamWaitEvent(stream, moment.event, 0), None))

    def device_of(self, address: int) -> str:
        """The GPU whose memory an address lies in."""
        gpu = self.gpu("cuda")
        gpu.use()
        kind = gpu.driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        return f"cuda:{int(check(gpu.driver.cuPointerGetAttribute(kind, address)))}"

    def synchronize(self, device: str) -> None:
        """Wait until all work of the device is done; its errors and reports come here."""
        self.gpu(device).synchronize()


def float_flags(function: Function) -> list[str]:
    """Fast-math flags of ordinary float operations."""
    if function.fastmath:
        return ["contract", "nsz", "arcp", "reassoc", "afn"]
    return ["contract"] if function.contract else []


BACKEND = CudaBackend()
