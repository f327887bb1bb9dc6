"""A caching allocator: freed blocks are kept by size and given out again without asking the device.

Sizes are rounded up to a bucket, an eighth of a power of two apart, so that at most an eighth is
wasted. Blocks are reused in the order of the device's queue: what runs later may overwrite what was
freed earlier. A block that was used in other queues as well waits until a marker of each is past.
Out of memory: what is kept goes back to the device, and the request is made once more. What a
block of memory is (an address, a buffer, a NumPy array) is for `request` to say.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ruda.errors import OutOfMemoryError

SMALLEST = 512


def bucket(nbytes: int) -> int:
    """The size of the block for a request.

    >>> bucket(1), bucket(512), bucket(513), bucket(1025), bucket(3 << 20)
    (512, 512, 576, 1152, 3145728)
    """
    if nbytes <= SMALLEST:
        return SMALLEST
    step = 1 << ((nbytes - 1).bit_length() - 4)
    return -(-nbytes // step) * step


class Block:
    """Memory that goes back to its pool when the last reference to it dies."""

    __slots__ = ("__weakref__", "address", "pool", "queues", "size")

    pool: Pool
    address: Any
    size: int
    queues: set[Any] | None  # where it was used besides the device's own queue

    def used_in(self, queue: Any) -> None:
        """Note a use in another queue: the block is reused only when that is past."""
        if self.queues is None:
            self.queues = set()
        self.queues.add(queue)

    def __del__(self) -> None:
        self.pool.give_back(self)


@dataclass(eq=False, slots=True)
class Pool:
    """`request(nbytes)` gives an address or None, `release(address)` takes it back.

    `mark(queue)` makes a marker, `is_past(marker)` asks for it; `limit` caps what is held, `keep`
    what is kept for reuse (0: no cap). `free_memory` is None where the device does not tell.
    """

    device: str
    request: Callable[[int], Any]
    release: Callable[[Any], None] = lambda address: None
    mark: Callable[[Any], Any] = lambda queue: None
    is_past: Callable[[Any], bool] = lambda marker: True
    wait: Callable[[], None] = lambda: None
    free_memory: Callable[[], int | None] = lambda: None
    limit: Callable[[], int] = lambda: 0
    keep: int = 0
    free: dict[int, list[Any]] = field(default_factory=dict)
    waiting: list[tuple[Any, int, Sequence[Any]]] = field(default_factory=list)
    in_use: int = 0
    cached: int = 0
    peak: int = 0
    requests: int = 0
    reused: int = 0
    closed: bool = False
    # Blocks die wherever the garbage collector runs, also in the midst of the pool's own code.
    # Native code (`cuda/quick.ll`) takes blocks and gives them back without the lock, in one step
    # for other threads: these are let in at calls and jumps back, so not between the two halves of
    # `x += n`, nor between a look at a list and `pop`.
    lock: Any = field(default_factory=threading.RLock)

    def allocate(self, nbytes: int) -> Block:
        """A block of at least `nbytes` bytes; OutOfMemoryError."""
        return self.take(bucket(nbytes), nbytes)

    def take(self, size: int, nbytes: int) -> Block:
        """The same, where the bucket's size is known."""
        with self.lock:
            self.requests += 1
            if self.waiting:
                self.collect()
            kept = self.free.get(size)
            if kept:
                address = kept.pop()
                self.cached -= size
                self.reused += 1
            else:
                address = self.fresh(size, nbytes)
            self.in_use = held = self.in_use + size
            if held > self.peak:
                self.peak = held
        block = Block()  # without `__init__`: this runs for every result
        block.pool = self
        block.address = address
        block.size = size
        block.queues = None
        return block

    def fresh(self, size: int, nbytes: int) -> Any:
        """New memory of the device; where there is none, what is kept is given back first."""
        address = None if self.over(size) else self.request(size)
        if address is None and size <= sys.maxsize:
            gc.collect()
            self.wait()
            self.empty()
            address = None if self.over(size) else self.request(size)
        if address is None:
            limit, left = self.limit(), self.free_memory()
            free = "" if left is None else f", {left:,} free"
            cap = f", at most {limit:,} (memory_limit)" if limit else ""
            raise OutOfMemoryError(
                f"{self.device} has no memory left: {nbytes:,} bytes asked for, {self.in_use:,} "
                f"held by arrays{free}{cap}"
            )
        return address

    def over(self, size: int) -> bool:
        limit = self.limit() or sys.maxsize  # more than an address can say no driver is asked for
        return self.in_use + self.cached + size > limit

    def give_back(self, block: Block) -> None:
        """Take a dead block."""
        if self.closed:
            return
        with self.lock:
            self.in_use -= block.size
            if self.keep and self.cached + block.size > self.keep and not block.queues:
                self.release(block.address)
                return
            self.cached += block.size
            if block.queues:
                markers = [self.mark(queue) for queue in block.queues]
                self.waiting.append((block.address, block.size, markers))
            elif block.size in self.free:
                self.free[block.size].append(block.address)
            else:  # making the list may run the collector, and that this for another block
                self.free.setdefault(block.size, []).append(block.address)

    def collect(self) -> None:
        """Move blocks whose markers are past to those that can be given out."""
        still = []
        for address, size, markers in self.waiting:
            if all(self.is_past(m) for m in markers):
                self.free.setdefault(size, []).append(address)
            else:
                still.append((address, size, markers))
        self.waiting[:] = still

    def empty(self) -> None:
        """Give everything that no array holds back to the device."""
        with self.lock:
            self.collect()
            free, self.free = self.free, {}
            for size, addresses in free.items():
                for address in addresses:
                    self.release(address)
                    self.cached -= size

    def statistics(self) -> dict[str, int]:
        """Bytes and counts: what arrays hold, what is kept for reuse, the most ever held."""
        return {
            "in_use": self.in_use,
            "cached": self.cached,
            "peak": self.peak,
            "requests": self.requests,
            "reused": self.reused,
        }
