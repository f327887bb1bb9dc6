"""One WebGPU device: pooled buffers, one open encoder of batched dispatches, copies.

Errors inside `queue.submit` end the process, and no `try` catches them. So nothing that is
recorded is ever destroyed or left mapped, a buffer goes back to the pool when Python forgets it
(the queue keeps its order, so it may be used again at once), and whoever writes or reads from the
host first submits what is recorded.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ruda.backends.wgpu import adapter as adapters
from ruda.errors import DeviceError, OutOfMemoryError

SLOT = 256  # alignment of dynamic offsets
SLOTS = 1024  # parameter blocks of a batch
BATCH = 256  # dispatches of a batch
SMALL = 1 << 16  # bytes that are written without a thought about staging memory
WRITES = 1 << 25  # bytes of pending writes after which a submit frees their staging memory
IN_FLIGHT = 8  # submits before the host waits


def bucket(nbytes: int) -> int:
    """Sizes of buffers: 256 bytes, then four steps an octave.

    >>> bucket(1), bucket(257), bucket(1025)
    (256, 320, 1280)
    """
    if nbytes <= 256:
        return 256
    step = 1 << max(0, (nbytes - 1).bit_length() - 3)
    return -(-nbytes // step) * step


class Buffer:
    """Memory of a device; it goes back to the pool when nothing holds it."""

    __slots__ = ("__weakref__", "gpu", "size")

    def __init__(self, queue: Queue, gpu: Any, size: int) -> None:
        self.gpu, self.size = gpu, size
        weakref.finalize(self, queue.recycle, gpu, size).atexit = False


class Queue:
    """The device of an adapter and everything that waits for it."""

    def __init__(self, adapter: Any) -> None:
        wgpu = adapters.runtime()
        self.adapter, self.usage = adapter, wgpu.BufferUsage
        features = [f for f in adapters.FEATURES if f in adapter.features]
        try:
            self.device = adapter.request_device_sync(required_features=features)
        except Exception as error:
            raise DeviceError(f"{adapter.info['device']} gives no device: {error}") from error
        self.lock = threading.RLock()
        self.process = os.getpid()
        self.free: dict[int, list[Any]] = {}
        self.staging: dict[int, list[Any]] = {}
        self.held = 0  # bytes of all buffers, free ones too
        self.used = 0  # bytes of buffers that somebody holds
        self.encoder: Any = None
        self.compute: Any = None
        self.pipeline: Any = None
        self.dispatches = 0
        self.slot = 0
        self.submits = 0
        self.pending = 0
        self.alive: list[Any] = []
        self.blocks = np.zeros(SLOT * SLOTS, np.uint8)
        self.ring = self.create(SLOT * SLOTS, self.usage.UNIFORM | self.usage.COPY_DST)

    # ---- buffers

    def create(self, size: int, usage: Any) -> Any:
        try:
            return self.device.create_buffer(size=size, usage=usage)
        except Exception as error:
            free = sum(s * len(b) for s, b in self.free.items())
            raise OutOfMemoryError(
                f"{self.adapter.info['device']} has no buffer of {size} bytes "
                f"({self.used} in use, {free} kept free): {_first_line(error)}"
            ) from error

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of at least `nbytes`."""
        size = bucket(max(nbytes, 4))
        limit = int(self.adapter.limits["max-buffer-size"])
        if size > limit:
            raise OutOfMemoryError(
                f"{nbytes} bytes are more than a buffer of {self.adapter.info['device']} may have "
                f"({limit})"
            )
        with self.lock:
            self.check()
            idle = self.free.get(size)
            if idle:
                gpu = idle.pop()
            else:
                u = self.usage
                usage = u.STORAGE | u.COPY_SRC | u.COPY_DST
                try:
                    gpu = self.create(size, usage)
                except OutOfMemoryError:
                    self.trim()
                    gpu = self.create(size, usage)
                self.held += size
            self.used += size
            return Buffer(self, gpu, size)

    def recycle(self, gpu: Any, size: int) -> None:
        """Called when a Buffer dies, on any thread; only appends."""
        self.used -= size
        self.free.setdefault(size, []).append(gpu)

    def trim(self) -> None:
        """Give free buffers back to the driver."""
        with self.lock:
            self.wait()
            for size, idle in self.free.items():
                self.held -= size * len(idle)
            self.free.clear()
            self.staging.clear()

    def check(self) -> None:
        if self.process != os.getpid():
            raise DeviceError(
                "this process was forked after the WebGPU device was made, and cannot use it; "
                "start processes by `spawn`, or touch the device only in the children"
            )

    # ---- batches

    def dispatch(
        self, pipeline: Any, group: Any, block: bytes, counts: Sequence[int], keep: Any
    ) -> None:
        """Record a dispatch with its parameter block."""
        slots = -(-len(block) // SLOT)
        if self.slot + slots > SLOTS or self.dispatches >= BATCH:
            self.flush()
        if self.compute is None:
            self.encoder = self.device.create_command_encoder()
            self.compute, self.pipeline = self.encoder.begin_compute_pass(), None
        if self.pipeline is not pipeline:
            self.compute.set_pipeline(pipeline)
            self.pipeline = pipeline
        at = self.slot * SLOT
        self.blocks[at : at + len(block)] = np.frombuffer(block, np.uint8)
        self.slot += slots
        self.compute.set_bind_group(0, group, [at])
        self.compute.dispatch_workgroups(*counts)
        self.dispatches += 1
        self.alive.append(keep)

    def flush(self) -> None:
        """Submit what is recorded."""
        with self.lock:
            if self.compute is None:
                return
            compute, encoder = self.compute, self.encoder
            self.compute = self.encoder = self.pipeline = None
            count = self.slot * SLOT
            self.slot = self.dispatches = 0
            alive, self.alive = self.alive, []
            compute.end()
            commands = encoder.finish()
            self.device.queue.write_buffer(self.ring, 0, self.blocks[:count])
            self.submit(commands)
            del alive

    def submit(self, commands: Any) -> None:
        self.device.queue.submit([commands])
        self.pending = 0
        self.submits += 1
        if self.submits % IN_FLIGHT == 0:
            self.device._poll_wait()

    def wait(self) -> None:
        """Until the device has done everything."""
        with self.lock:
            self.check()
            self.flush()
            self.device._poll_wait()

    # ---- copies

    def write(self, buffer: Buffer, offset: int, data: np.ndarray[Any, Any]) -> None:
        """Bytes to the device, behind everything that was recorded before."""
        with self.lock:
            self.check()
            self.flush()
            start, stop = offset, offset + data.size
            low, high = start & ~3, -(-stop // 4) * 4
            if low != start or high != stop:  # whole words only: what is beside comes back
                inner = self.read_words(buffer, low, high - low) if offset or stop else None
                whole = np.zeros(high - low, np.uint8) if inner is None else inner
                whole[start - low : stop - low] = data
                data = whole
            self.device.queue.write_buffer(buffer.gpu, low, np.ascontiguousarray(data))
            self.pending += data.size
            if self.pending > WRITES:
                self.submit(self.device.create_command_encoder().finish())

    def fill(self, buffer: Buffer, data: np.ndarray[Any, Any]) -> None:
        """Bytes to a new buffer from its start."""
        with self.lock:
            self.check()
            self.flush()
            rest = -data.size % 4
            if rest:
                data = np.concatenate([data, np.zeros(rest, np.uint8)])
            self.device.queue.write_buffer(buffer.gpu, 0, data)
            self.pending += data.size
            if self.pending > WRITES:
                self.submit(self.device.create_command_encoder().finish())

    def read(self, buffer: Buffer, offset: int, out: np.ndarray[Any, Any]) -> None:
        """Bytes from the device; done when it returns."""
        low, high = offset & ~3, -(-(offset + out.size) // 4) * 4
        found = self.read_words(buffer, low, high - low)
        out[:] = found[offset - low : offset - low + out.size]

    def read_words(self, buffer: Buffer, offset: int, nbytes: int) -> np.ndarray[Any, Any]:
        with self.lock, self.mapped(buffer, offset, nbytes) as data:
            return np.frombuffer(data, np.uint8).copy()

    @contextlib.contextmanager
    def mapped(self, buffer: Buffer, offset: int, nbytes: int) -> Iterator[Any]:
        """Words of a buffer, seen by the host through a pooled staging buffer."""
        self.check()
        self.flush()
        size = bucket(nbytes)
        idle = self.staging.setdefault(size, [])
        u = self.usage
        stage = idle.pop() if idle else self.create(size, u.MAP_READ | u.COPY_DST)
        encoder = self.device.create_command_encoder()
        encoder.copy_buffer_to_buffer(buffer.gpu, offset, stage, 0, nbytes)
        self.submit(encoder.finish())
        stage.map_sync("READ")
        try:
            yield stage.read_mapped(0, nbytes, copy=False)
        finally:
            stage.unmap()
            if len(idle) < 4:
                idle.append(stage)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
