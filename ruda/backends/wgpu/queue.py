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
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ruda.backends.pool import Block, Pool, bucket
from ruda.backends.wgpu import adapter as adapters
from ruda.errors import DeviceError, OutOfMemoryError
from ruda.settings import settings

SLOT = 256  # alignment of dynamic offsets
SLOTS = 1024  # parameter blocks of a batch
BATCH = 256  # dispatches of a batch
SMALL = 1 << 16  # bytes that are written without a thought about staging memory
WRITES = 1 << 25  # bytes of pending writes after which a submit frees their staging memory
IN_FLIGHT = 8  # submits before the host waits


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
        self.staging: dict[int, list[Any]] = {}
        # A buffer may be used again at once: the queue keeps its order. Dropping one that is
        # recorded is safe, too: the encoder holds it.
        self.pool = Pool(
            str(adapter.info["device"]),
            request=self.request,
            wait=self.trim,
            limit=lambda: settings.memory_limit,
        )
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
            raise OutOfMemoryError(
                f"{self.adapter.info['device']} has no buffer of {size:,} bytes "
                f"({self.pool.in_use:,} held by arrays): {_first_line(error)}"
            ) from error

    def request(self, size: int) -> Any:
        """A new buffer for arrays; None where the driver has none."""
        u = self.usage
        try:
            return self.create(size, u.STORAGE | u.COPY_SRC | u.COPY_DST)
        except OutOfMemoryError:
            return None

    def allocate(self, nbytes: int) -> Block:
        """A buffer of at least `nbytes`."""
        size = bucket(max(nbytes, 4))
        limit = int(self.adapter.limits["max-buffer-size"])
        if size > limit:
            raise OutOfMemoryError(
                f"{nbytes:,} bytes are more than a buffer of {self.adapter.info['device']} may "
                f"have ({limit:,})"
            )
        with self.lock:
            self.check()
            return self.pool.allocate(nbytes)

    def trim(self) -> None:
        """Wait, and give staging buffers back to the driver."""
        with self.lock:
            self.wait()
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

    def write(self, buffer: Block, offset: int, data: np.ndarray[Any, Any]) -> None:
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
            self.device.queue.write_buffer(buffer.address, low, np.ascontiguousarray(data))
            self.pending += data.size
            if self.pending > WRITES:
                self.submit(self.device.create_command_encoder().finish())

    def fill(self, buffer: Block, data: np.ndarray[Any, Any]) -> None:
        """Bytes to a new buffer from its start."""
        with self.lock:
            self.check()
            self.flush()
            rest = -data.size % 4
            if rest:
                data = np.concatenate([data, np.zeros(rest, np.uint8)])
            self.device.queue.write_buffer(buffer.address, 0, data)
            self.pending += data.size
            if self.pending > WRITES:
                self.submit(self.device.create_command_encoder().finish())

    def read(self, buffer: Block, offset: int, out: np.ndarray[Any, Any]) -> None:
        """Bytes from the device; done when it returns."""
        low, high = offset & ~3, -(-(offset + out.size) // 4) * 4
        found = self.read_words(buffer, low, high - low)
        out[:] = found[offset - low : offset - low + out.size]

    def read_words(self, buffer: Block, offset: int, nbytes: int) -> np.ndarray[Any, Any]:
        with self.lock, self.mapped(buffer, offset, nbytes) as data:
            return np.frombuffer(data, np.uint8).copy()

    @contextlib.contextmanager
    def mapped(self, buffer: Block, offset: int, nbytes: int) -> Iterator[Any]:
        """Words of a buffer, seen by the host through a pooled staging buffer."""
        self.check()
        self.flush()
        size = bucket(nbytes)
        idle = self.staging.setdefault(size, [])
        u = self.usage
        stage = idle.pop() if idle else self.create(size, u.MAP_READ | u.COPY_DST)
        encoder = self.device.create_command_encoder()
        encoder.copy_buffer_to_buffer(buffer.address, offset, stage, 0, nbytes)
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
