"""One WebGPU device: pooled buffers, one open encoder of batched dispatches, copies.

Errors inside `queue.submit` end the process, and no `try` catches them. So nothing that is
recorded is ever destroyed or left mapped, a buffer goes back to the pool when Python forgets it
(the queue keeps its order, so it may be used again at once), and whoever writes or reads from the
host first submits what is recorded.

Recording goes past wgpu-py's methods, which cost three times as much, straight to its library (see
`native`).
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ruda.backends.base import Asked
from ruda.backends.pool import Block, Pool, bucket
from ruda.backends.wgpu import adapter as adapters
from ruda.backends.wgpu.clock import Clock
from ruda.backends.wgpu.native import READ, WRITE, Native
from ruda.errors import DeviceError, OutOfMemoryError
from ruda.settings import settings

SLOT = 256  # alignment of dynamic offsets
SLOTS = 1024  # parameter blocks of a batch
BATCH = 256  # dispatches of a batch
WRITES = 1 << 25  # bytes of pending writes after which a submit frees their staging memory
IN_FLIGHT = 8  # submits before the host waits
LONG = 1 << 22  # bytes of a write that go through staging buffers of ours
PIECE = 1 << 25  # bytes that the host copies while the device copies the next or the last ones
COPIERS = min(8, os.cpu_count() or 1)  # threads that copy
ALONE = 1 << 20  # bytes that one thread copies at least
STAGES = 4  # staging buffers that are kept of a size
SPINS = 300  # questions to the device before the host sleeps between them


class Queue:
    """The device of an adapter and everything that waits for it."""

    def __init__(self, adapter: Any) -> None:
        wgpu = adapters.runtime()
        self.adapter, self.usage = adapter, wgpu.BufferUsage
        self.name = str(adapter.info["device"])
        features = [f for f in adapters.FEATURES if f in adapter.features]
        try:
            self.device = adapter.request_device_sync(required_features=features)
        except Exception as error:
            raise DeviceError(f"{self.name} gives no device: {_first_line(error)}") from error
        self.native = Native(self.device)
        self.library = self.native.library
        self.offset = self.native.ffi.new("uint32_t[1]")
        self.lock = threading.RLock()
        self.process = os.getpid()
        self.lost = ""
        # A software driver's submit waits for the one before, and lets no signal through.
        self.waits = adapters.is_software(adapter)
        self.staging: dict[int, list[Any]] = {}
        self.sending: collections.deque[Any] = collections.deque()  # the oldest first
        # A buffer may be used again at once: the queue keeps its order. Dropping one that is
        # recorded is safe, too: the encoder holds it.
        self.buffers: dict[int, Any] = {}  # of the pool, lent ones too
        self.pool = Pool(
            self.name,
            request=self.request,
            release=self.release,
            wait=self.trim,
            limit=lambda: settings.memory_limit,
        )
        self.encoder: Any = None  # the open one, and its open pass
        self.compute: Any = None
        self.pipeline: Any = None  # what the pass has
        self.plan: Any = None  # the last one that was recorded in it
        self.batch = object()  # whose parameter blocks are in the slots
        self.dispatches = self.slot = 0
        self.submits = self.pending = 0
        # Launches since the device was last waited for; the last `dispatches` are the open batch.
        self.recent: collections.deque[Any] = collections.deque(maxlen=2 * BATCH)
        self.numbers: dict[str, int] = {}  # of kernels whose loops are watched
        self.watching = False
        self.blocks = bytearray(SLOT * SLOTS)
        self.sent = b""  # what of them the device has
        self.ring = self.create(SLOT * SLOTS, self.usage.UNIFORM | self.usage.COPY_DST)
        self.cut = self.allocate(4)
        self.fill(self.cut, np.zeros(4, np.uint8))

    # ---- errors

    def check(self) -> None:
        """Tell who may not use the device any more."""
        if self.process != os.getpid():
            raise DeviceError(
                "this process was forked after the WebGPU device was made, and cannot use it; "
                "start processes by `spawn`, or touch the device only in the children"
            )
        if self.lost:
            raise DeviceError(self.lost)

    def notice(self, error: Exception) -> None:
        """Raise if an error says that the device is gone, now and for whatever comes."""
        if "lost" in str(error) or "destroyed" in str(error):
            self.compute = self.encoder = None
            self.lost = (
                f"the device {self.name} is lost, and its arrays with it: {_first_line(error)}; "
                "a new process can use it again"
            )
            raise self.blamed(DeviceError(self.lost), self.recent) from error

    @staticmethod
    def blamed(error: DeviceError, rows: Sequence[Any]) -> DeviceError:
        """The error with the last launches that it may be about."""
        asked = dict.fromkeys(str(Asked(*row)) for row in reversed(rows))
        for text in list(asked)[:5]:
            error.add_note(text)
        return error

    def guarded(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """A call of wgpu-py, whose errors become ours."""
        try:
            return function(*arguments, **named)
        except adapters.runtime().GPUError as error:
            self.notice(error)
            raise DeviceError(f"{self.name}: {_first_line(error)}") from error

    # ---- buffers

    def create(self, size: int, usage: Any) -> Any:
        try:
            return self.device.create_buffer(size=size, usage=usage)
        except adapters.runtime().GPUError as error:
            self.notice(error)
            raise OutOfMemoryError(
                f"{self.name} has no buffer of {size:,} bytes ({self.pool.in_use:,} held by "
                f"arrays): {_first_line(error)}"
            ) from error

    def request(self, size: int) -> Any:
        """A new buffer for arrays; None where the driver has none."""
        usage = self.usage.STORAGE | self.usage.COPY_SRC | self.usage.COPY_DST
        try:
            made = self.create(size, usage)
        except OutOfMemoryError:
            return None
        # Were it the block's alone, the collector of cycles would finish both: the block gives it
        # back to the pool, and wgpu-py has destroyed it.
        self.buffers[id(made)] = made
        return made

    def release(self, buffer: Any) -> None:
        """Forget a buffer of the pool: wgpu-py destroys it."""
        del self.buffers[id(buffer)]

    def allocate(self, nbytes: int) -> Block:
        """A buffer of at least `nbytes`."""
        limit = int(self.adapter.limits["max-buffer-size"])
        if bucket(max(nbytes, 4)) > limit:
            raise OutOfMemoryError(
                f"{nbytes:,} bytes are more than a buffer of {self.name} may have ({limit:,})"
            )
        with self.lock:
            self.check()
            return self.pool.allocate(nbytes)

    def trim(self) -> None:
        """Wait, and give staging buffers back to the driver."""
        with self.lock:
            self.wait()
            self.staging.clear()
            self.sending.clear()

    # ---- batches

    def record(self, plan: Any, asked: tuple[str, Any, int]) -> None:
        """Record a dispatch with its parameter block; `asked` is what errors call it."""
        library = self.library
        with self.lock:
            if self.dispatches >= BATCH or self.slot + plan.slots > SLOTS:
                self.flush()
            if self.compute is None:
                self.begin()
            compute = self.compute
            if self.plan is not plan:
                if plan.batch is not self.batch:
                    plan.at = self.slot * SLOT
                    self.blocks[plan.at : plan.at + len(plan.block)] = plan.block
                    self.slot += plan.slots
                    plan.batch = self.batch  # at last: Ctrl-C may fall between
                if self.pipeline is not plan.pipeline:
                    library.wgpuComputePassEncoderSetPipeline(compute, plan.pipeline._internal)
                    self.pipeline = plan.pipeline
                self.offset[0] = plan.at
                library.wgpuComputePassEncoderSetBindGroup(
                    compute, 0, plan.group._internal, 1, self.offset
                )
                self.plan = plan
                if plan.guarded:
                    self.watching = True
            x, y, z = plan.counts
            library.wgpuComputePassEncoderDispatchWorkgroups(compute, x, y, z)
            self.dispatches += 1
            self.recent.append(asked)

    @functools.cached_property
    def clock(self) -> Clock | None:
        """The device's own times, where the adapter tells them; made for the first profile."""
        return Clock(self) if "timestamp-query" in self.adapter.features else None

    def begin(self) -> None:
        """A new pass, in the encoder that is open."""
        self.check()
        clock: Clock | None = vars(self).get("clock")
        writes = None if clock is None else clock.writes()
        with uninterrupted():
            if self.encoder is None:
                self.encoder = self.guarded(self.native.encoder)
            self.compute = self.native.begin(self.encoder, writes)
            self.pipeline = self.plan = None

    def end_pass(self) -> None:
        """Let the next dispatch begin a pass of its own."""
        if self.compute is not None:
            compute, self.compute = self.compute, None
            self.pipeline = self.plan = None
            self.native.end(compute)

    def flush(self) -> None:
        """Submit what is recorded."""
        with self.lock:
            if self.encoder is None:
                return
            self.check()
            if self.waits:
                self.until_done()
            with uninterrupted():  # or what was recorded, and counts as computed, would be lost
                self.submit_recorded()
            self.pace()

    def submit_recorded(self) -> None:
        """Close the batch, and give it to the device."""
        if self.encoder is not None:
            self.end_pass()
            encoder, used = self.encoder, self.slot * SLOT
            batch, self.encoder = self.dispatches, None
            self.batch, self.slot, self.dispatches = object(), 0, 0
            try:
                commands = self.native.finish(encoder)
            except adapters.runtime().GPUError as error:
                self.notice(error)
                rows = list(self.recent)[-batch:]
                names = ", ".join(f"`{name}`" for name in dict.fromkeys(row[0] for row in rows))
                problem = DeviceError(
                    f"{self.name} refuses the launches of {names}, and has run none of these "
                    f"{batch}: {_first_line(error)}"
                )
                raise self.blamed(problem, rows) from error
            blocks = bytes(memoryview(self.blocks)[:used])
            if not self.sent.startswith(blocks):
                self.guarded(self.native.write, self.ring, 0, blocks)
                self.sent = blocks
            self.give(commands)

    def give(self, commands: Any) -> None:
        self.native.submit(commands)
        self.pending = 0
        self.submits += 1

    def pace(self) -> None:
        """Wait at times, so that the device has not too much to do."""
        if self.submits % IN_FLIGHT == 0:
            self.until_done()

    def submit(self, commands: Any) -> None:
        self.give(commands)
        self.pace()

    def until_done(self) -> None:
        """Wait for all that is submitted."""
        self.until(self.native.poll)

    @staticmethod
    def until(answer: Callable[[], bool]) -> None:
        """Ask until the answer is yes, so that Ctrl-C can end it."""
        for _ in range(SPINS):
            if answer():
                return
        pause = 2e-5
        while not answer():
            time.sleep(pause)
            pause = min(1.5 * pause, 1e-3)

    def wait(self) -> None:
        """Until the device has done everything."""
        with self.lock:
            self.check()
            self.flush()
            self.until_done()
            self.settle()

    def number_of(self, kernel: str) -> int:
        """The number by which a kernel tells that a loop of it was cut off."""
        return self.numbers.setdefault(kernel, len(self.numbers) + 1)

    def settle(self) -> None:
        """Raise if the driver has cut loops off in what is done: all that was launched."""
        if not self.watching:
            self.recent.clear()
            return
        self.watching = False
        with self.staged(self.cut, 0, 4) as data:
            number = int.from_bytes(data, "little")
        if number:
            self.guarded(self.native.write, self.cut.address, 0, bytes(4))
            name = next(name for name, n in self.numbers.items() if n == number)
            rows = [row for row in self.recent if row[0] == name]
            problem = DeviceError(
                f"`{name}`: {self.name} ends a thread's loops after 65535 rounds in all, "
                "and what it wrote is wrong; Mesa 25 does not: use a newer driver, or `cpu`"
            )
            self.recent.clear()
            raise self.blamed(problem, rows)
        self.recent.clear()

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
            self.send(buffer, low, np.ascontiguousarray(data))

    def fill(self, buffer: Block, data: np.ndarray[Any, Any]) -> None:
        """Bytes to a new buffer from its start."""
        with self.lock:
            self.check()
            self.flush()
            rest = -data.size % 4
            if rest:
                data = np.concatenate([data, np.zeros(rest, np.uint8)])
            self.send(buffer, 0, data)

    def send(self, buffer: Block, offset: int, data: np.ndarray[Any, Any]) -> None:
        """Whole words; short ones in pieces whose staging memory is given back in between."""
        if data.size >= LONG:
            self.send_staged(buffer, offset, data)
            return
        for at in range(0, data.size, WRITES):
            piece = data[at : at + WRITES]
            self.guarded(self.native.write, buffer.address, offset + at, piece)
            self.pending += piece.size
            if self.pending >= WRITES:
                self.submit(self.native.finish(self.guarded(self.native.encoder)))

    def send_staged(self, buffer: Block, offset: int, data: np.ndarray[Any, Any]) -> None:
        """Whole words through two buffers that take turns: the host fills one, while the device
        takes the other."""
        usage = self.usage.MAP_WRITE | self.usage.COPY_SRC
        for at in range(0, data.size, PIECE):
            piece = data[at : at + PIECE]
            full = len(self.sending) >= 2
            stage = self.sending.popleft() if full else self.create(PIECE, usage)
            with self.visible(stage, WRITE, piece.size) as seen:
                copy_bytes(seen, piece)
            self.copy(stage, 0, buffer.address, offset + at, piece.size)
            self.sending.append(stage)

    def copy(self, source: Any, start: int, target: Any, to: int, nbytes: int) -> None:
        """Words from buffer to buffer, at once."""
        encoder = self.guarded(self.native.encoder)
        self.native.copy(encoder, source, start, target, to, nbytes)
        self.submit(self.guarded(self.native.finish, encoder))

    def read(self, buffer: Block, offset: int, out: np.ndarray[Any, Any]) -> None:
        """Bytes from the device; done when it returns.

        In pieces: while the host copies one, the device brings the next.
        """
        low, high = offset & ~3, -(-(offset + out.size) // 4) * 4
        with self.lock:
            self.check()
            self.flush()
            self.settle()
            ahead = self.staged(buffer, low, min(PIECE, high - low))
            for at in range(low, high, PIECE):
                after = at + PIECE
                with ahead as found:
                    if after < high:
                        ahead = self.staged(buffer, after, min(PIECE, high - after))
                    start, stop = max(at, offset), min(at + found.size, offset + out.size)
                    copy_bytes(out[start - offset : stop - offset], found[start - at : stop - at])

    def read_words(self, buffer: Block, offset: int, nbytes: int) -> np.ndarray[Any, Any]:
        with self.lock, self.mapped(buffer, offset, nbytes) as data:
            return data.copy()

    @contextlib.contextmanager
    def mapped(self, buffer: Block, offset: int, nbytes: int) -> Iterator[np.ndarray[Any, Any]]:
        """Words of a buffer as they are after all that was recorded, seen by the host."""
        self.check()
        self.flush()
        self.settle()
        with self.staged(buffer, offset, nbytes) as data:
            yield data

    def staged(
        self, buffer: Block, offset: int, nbytes: int
    ) -> contextlib.AbstractContextManager[np.ndarray[Any, Any]]:
        """The same through a pooled staging buffer, whatever became of the launches.

        The device begins at once, and is waited for when the context is entered.
        """
        idle = self.staging.setdefault(bucket(nbytes), [])
        usage = self.usage.MAP_READ | self.usage.COPY_DST
        stage = idle.pop() if idle else self.create(bucket(nbytes), usage)
        self.copy(buffer.address, offset, stage, 0, nbytes)
        return self.seen(stage, nbytes, idle)

    @contextlib.contextmanager
    def seen(self, stage: Any, nbytes: int, idle: list[Any]) -> Iterator[np.ndarray[Any, Any]]:
        """What a staging buffer holds when the device is done; then it is idle."""
        with self.visible(stage, READ, nbytes) as data:
            yield data
        if len(idle) < STAGES:
            idle.append(stage)

    @contextlib.contextmanager
    def visible(self, stage: Any, mode: int, nbytes: int) -> Iterator[np.ndarray[Any, Any]]:
        """The bytes of a staging buffer, when the device is done with it."""
        native = self.native
        self.guarded(native.map, stage, mode, nbytes)
        self.until(native.is_answered)
        if not native.is_mapped:
            raise DeviceError(f"{self.name} gives no access to its memory: is it lost?")
        try:
            yield np.frombuffer(native.memory(stage, mode, nbytes), np.uint8)
        finally:
            native.unmap(stage)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait for the end of a region that would leave things half done. It must be short,
    and may not wait for the device."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # no handler is called here
        return
    came: list[Any] = []
    signal.signal(signal.SIGINT, lambda *what: came.append(what))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(*came[0])


@functools.cache
def copiers() -> concurrent.futures.ThreadPoolExecutor:
    """Threads for long copies: one alone does not move as much as the bus brings."""
    return concurrent.futures.ThreadPoolExecutor(COPIERS, "ruda copies")


def copy_bytes(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any]) -> None:
    """Bytes from one place of the host's memory to another."""
    each = max(ALONE, -(-target.size // COPIERS))
    parts = [slice(k, k + each) for k in range(0, target.size, each)]
    if len(parts) < 2:
        target[:] = source
        return
    try:
        copies = copiers().map(lambda part: np.copyto(target[part], source[part]), parts)
    except RuntimeError:  # the interpreter ends: no new threads
        target[:] = source
    else:
        list(copies)


def _first_line(error: BaseException) -> str:
    """What an error says first, without the frame that wgpu puts around it."""
    lines = [line.strip() for line in str(error).splitlines()]
    rest = [x for x in lines if x and x not in ("Validation Error", "Caused by:")]
    return next((x for x in rest if not x.startswith("In wgpu")), rest[0] if rest else repr(error))
