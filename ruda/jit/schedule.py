"""Run the threads of a block, and let them meet: barriers, votes and warp exchanges of `sim`.

A thread of a kernel with barriers is a generator that yields a `Request` where it must wait. All
threads run until each waits or has returned; then whatever group is complete goes on. If none
is, threads wait for each other for ever, and the error says who waits where.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ruda.errors import BarrierError, CheckError, Place, UndefinedReadError
from ruda.jit.ir import Barrier, Warp

if TYPE_CHECKING:
    from ruda.jit.shadow import Access, Memory

WARP = 32
VOTES: dict[str, Callable[[list[bool]], int]] = {"and": all, "or": any, "count": sum}
Index = tuple[int, int, int]
Record = tuple["Thread", int, int, "Access"]  # who, the block's epoch, the thread's time, what


@dataclass(eq=False, slots=True)
class Run:
    """One launch: its shape, its limits, and what it found that is no error."""

    name: str
    grid: Index
    block: Index
    checks: frozenset[str]
    steps: int  # loop iterations of one thread before it is said to run for ever
    notes: dict[tuple[str, Place], str] = field(default_factory=dict)
    memory: Memory | None = None  # of the caller's arrays
    shuffle: random.Random | None = None  # mixes blocks and threads


@dataclass(eq=False, slots=True)
class Block:
    """A block, and how many barriers all its threads have passed."""

    index: Index
    run: Run
    epoch: int = 0
    threads: list[Thread] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)  # shared
    promised: dict[Any, Any] = field(default_factory=dict)  # by `uniform`


class Thread:
    """A thread: where it is, what it knows of others (see `shadow`), and what it waits for."""

    __slots__ = (
        "answer", "block", "changes", "code", "index", "iterations", "known", "linear", "loops",
        "released", "request", "steps", "time",
    )  # fmt: skip

    def __init__(self, block: Block, index: Index, linear: int) -> None:
        self.block = block
        self.index = index
        self.linear = linear  # in the block, x fastest
        self.time = 0
        self.known: dict[Any, int] | None = None
        self.released: dict[Any, int] | None = None
        self.changes = 0  # writes so far
        self.steps = 0  # loop iterations so far
        # Iteration of each enclosing loop that has a barrier inside; a list where there are any.
        self.loops: Any = ()
        self.code: Generator[Request, Any, Any] | None = None
        self.request: Request | None = None
        self.answer: Any = None


@dataclass(eq=False, slots=True)
class Request:
    """A thread waits at a barrier or warp operation."""

    site: Barrier | Warp
    values: tuple[Any, ...] = ()
    mask: int | None = None
    loops: tuple[int, ...] = ()


def fail(kind: type[CheckError], message: str, place: Place, *threads: Thread) -> NoReturn:
    """Raise a check's error, with the kernel, block and thread it happened in."""
    thread = threads[0]
    run = thread.block.run
    error = kind(
        f"{message}\n  in kernel `{run.name}`, block {thread.block.index}, thread {thread.index}",
        place,
    )
    for call in reversed(place.calls):
        error.add_note(f"called from `{call.function}` at {call.file}, line {call.line}")
    raise error


# ---- who knows what ----


def knows(thread: Thread, record: Record) -> bool:
    """Whether an access happened before everything that a thread does from now on."""
    other, epoch, time, _ = record
    block = other.block
    if block is thread.block and epoch < block.epoch:
        return True
    known = thread.known
    return known is not None and (known.get(other, 0) > time or known.get(block, 0) > epoch)


def join(a: dict[Any, int] | None, b: dict[Any, int] | None) -> dict[Any, int] | None:
    """What both together know."""
    if not a or not b:
        return a or b
    return {k: max(a.get(k, 0), b.get(k, 0)) for k in (*a, *b)}


def publish(thread: Thread) -> dict[Any, int]:
    """What a thread can tell others at a fence or warp barrier: all that it knows and did."""
    thread.time += 1
    known = dict(thread.known or {})
    known[thread] = thread.time
    known[thread.block] = max(known.get(thread.block, 0), thread.block.epoch)
    return known


# ---- running ----


def run_blocks(blocks: list[Block], shuffle: random.Random | None) -> None:
    """Run blocks together to their ends. More than one is needed only for barriers of the grid."""
    while True:
        for block in blocks:
            _run_block(block, shuffle)
        waiting = [t for b in blocks for t in b.threads if t.request is not None]
        if not waiting:
            return
        _agree(waiting)
        for block in blocks:
            block.epoch += 1
            for memory in block.memories:
                memory.barrier()
        memory_of_all = blocks[0].run.memory
        if memory_of_all is not None:
            memory_of_all.barrier()
        for thread in waiting:
            thread.request = None


def _run_block(block: Block, shuffle: random.Random | None) -> None:
    """Run a block until all its threads have returned or wait for the grid."""
    while True:
        ready = [t for t in block.threads if t.code is not None and t.request is None]
        if shuffle is not None:
            shuffle.shuffle(ready)
        for thread in ready:
            try:
                thread.request = thread.code.send(thread.answer)  # type: ignore[union-attr]
            except StopIteration:
                thread.code = None
            thread.answer = None
        waiting = [t for t in block.threads if t.request is not None]
        if not waiting or all(_scope(t) == "grid" for t in waiting):
            return
        if _meet_warps(waiting) or _meet_block(block, waiting):
            continue
        _deadlock(block, waiting)


def _request(thread: Thread) -> Request:
    assert thread.request is not None
    return thread.request


def _scope(thread: Thread) -> str:
    site = _request(thread).site
    return site.scope if isinstance(site, Barrier) else "warp"


def _name(site: Barrier | Warp) -> str:
    """What a site is called in a kernel."""
    match site:
        case Barrier(scope="grid"):
            return "grid.sync()"
        case Barrier(scope="warp"):
            return "syncwarp()"
        case Barrier(vote=None):
            return "syncthreads()"
        case Barrier(vote=vote):
            return f"syncthreads_{vote}()"
        case Warp(op="activemask"):
            return "activemask()"
        case Warp(op=op):
            return f"{op}_sync()"


def _where(thread: Thread) -> str:
    """A waiting thread, and what it waits for."""
    site = _request(thread).site
    return f"thread {thread.index} waits at {_name(site)} in line {site.place.line}"


# ---- barriers of a block and of the grid ----


def _meet_block(block: Block, waiting: list[Thread]) -> bool:
    """Let a block pass its barrier if all its live threads are there."""
    if any(_scope(t) != "block" for t in waiting):
        return False
    _agree(waiting)
    site = _request(waiting[0]).site
    assert isinstance(site, Barrier)
    result = None
    if site.vote is not None:
        votes = [bool(_request(t).values[0]) for t in waiting]
        result = np.int32(VOTES[site.vote](votes))
    _pass_block(block, waiting)
    for thread in waiting:
        thread.request, thread.answer = None, result
    return True


def _pass_block(block: Block, waiting: list[Thread]) -> None:
    block.epoch += 1
    for memory in block.memories:
        memory.barrier()
    known: dict[Any, int] | None = None
    for thread in block.threads:  # those that returned have told what they knew
        if thread.known is not None and thread.known is not known:
            known = join(known, thread.known)
    if known is not None:
        for thread in waiting:
            thread.known = known


def _agree(waiting: list[Thread]) -> None:
    """Raise unless all threads wait at the same barrier, in the same iterations of its loops."""
    first = waiting[0]
    if "barrier" not in first.block.run.checks:
        return
    a = _request(first)
    for other in waiting[1:]:
        b = _request(other)
        if a.site is not b.site:
            blocks = "" if other.block is first.block else f" of block {other.block.index}"
            fail(
                BarrierError,
                f"divergent barrier: {_where(first)}, but thread {other.index}{blocks} waits at "
                f"{_name(b.site)} in line {b.site.place.line}; every thread of the "
                f"{_scope(first)} must come to the same barrier",
                a.site.place,
                first,
            )
        if a.loops != b.loops:
            fail(
                BarrierError,
                f"divergent barrier: {_where(first)} in iteration {a.loops[-1]} of its loop, "
                f"thread {other.index} in iteration {b.loops[-1]}; every thread of the "
                f"{_scope(first)} must come to the barrier equally often",
                a.site.place,
                first,
            )


def _deadlock(block: Block, waiting: list[Thread]) -> NoReturn:
    """Some wait for a warp, others for the block: name one of each."""
    first = next((t for t in waiting if _scope(t) == "warp"), waiting[0])
    a = _request(first).site
    mask = _request(first).mask
    for other in waiting:
        needed = mask is None or (other.linear // WARP == first.linear // WARP
                                  and mask >> (other.linear % WARP) & 1)  # fmt: skip
        if _request(other).site is not a and needed:
            fail(
                BarrierError,
                f"threads wait for each other for ever: {_where(first)}, but {_where(other)}",
                a.place,
                first,
            )
    fail(BarrierError, f"waits for ever: {_where(first)}", a.place, first)


# ---- warps ----


def _meet_warps(waiting: list[Thread]) -> bool:
    """Carry out each warp operation whose lanes are all there; say whether there was one."""
    warps: dict[int, list[Thread]] = {}
    for thread in waiting:
        if _scope(thread) == "warp":
            warps.setdefault(thread.linear // WARP, []).append(thread)
    met = False
    for number, threads in warps.items():
        block = threads[0].block
        lanes = {t.linear % WARP: t for t in block.threads[number * WARP : (number + 1) * WARP]}
        met |= _meet_warp(threads, lanes)
    return met


def _meet_warp(threads: list[Thread], lanes: dict[int, Thread]) -> bool:
    met = False
    for thread in threads:
        site, mask, lane = _request(thread).site, _request(thread).mask, thread.linear % WARP
        if mask is not None and not mask >> lane & 1:
            fail(
                BarrierError,
                f"lane {lane} calls {_name(site)} with a mask that does not name it: {mask:#010x}",
                site.place,
                thread,
            )
    for first in threads:
        request = first.request
        if request is None or request.mask is None:
            continue  # gone on with an earlier one, or an activemask
        group = _group(first, request, lanes)
        if group is not None:
            _exchange(request.site, group, lanes)
            met = True
    if met:
        return True
    # Nothing else goes on in this warp: the lanes at one activemask are as many as will come.
    groups: dict[int, dict[int, Thread]] = {}
    for thread in threads:
        if _request(thread).mask is None:
            groups.setdefault(id(_request(thread).site), {})[thread.linear % WARP] = thread
    for together in groups.values():
        _exchange(_request(next(iter(together.values()))).site, together, lanes)
    return bool(groups)


def _group(first: Thread, request: Request, lanes: dict[int, Thread]) -> dict[int, Thread] | None:
    """The live lanes that a mask names, if all of them wait at the same operation."""
    mask = request.mask
    assert mask is not None
    group = {}
    for lane, thread in lanes.items():
        if not mask >> lane & 1 or thread.code is None:
            continue
        other = thread.request
        if other is None or other.site is not request.site:
            return None
        if other.mask != mask:
            fail(
                BarrierError,
                f"lanes of one {_name(request.site)} give different masks: lane "
                f"{first.linear % WARP} {mask:#010x}, lane {lane} {other.mask:#010x}",
                request.site.place,
                first,
            )
        group[lane] = thread
    return group


def _exchange(site: Barrier | Warp, group: dict[int, Thread], lanes: dict[int, Thread]) -> None:
    """Give each lane of a group its result, and let it go on."""
    if isinstance(site, Barrier):
        _join_lanes(group)
        answers: dict[int, Any] = dict.fromkeys(group)
    elif site.op.startswith("shfl"):
        answers = {lane: _shuffle(site, lane, group, lanes) for lane in group}
    else:
        values = {lane: _request(t).values for lane, t in group.items()}
        answers = WARP_OPS[site.op]({k: v[0] if v else None for k, v in values.items()})
    for lane, thread in group.items():
        thread.request, thread.answer = None, answers[lane]


def _join_lanes(group: dict[int, Thread]) -> None:
    """`syncwarp` orders the memory accesses of its lanes."""
    known: dict[Any, int] | None = None
    for thread in group.values():
        known = join(known, publish(thread))
    for thread in group.values():
        thread.known = known


def _shuffle(site: Warp, lane: int, group: dict[int, Thread], lanes: dict[int, Thread]) -> Any:
    """The value of the source lane; the own one if that is outside the segment or warp."""
    thread = group[lane]
    value, operand, width = _request(thread).values
    n, width = int(operand), int(width)
    if width not in (1, 2, 4, 8, 16, 32):
        fail(
            BarrierError,
            f"{_name(site)} with width {width}: it must be a power of two up to {WARP}",
            site.place,
            thread,
        )
    start = lane - lane % width
    source = {
        "shfl": start + n % width,
        "shfl_up": lane - n,
        "shfl_down": lane + n,
        "shfl_xor": lane ^ n,
    }[site.op]
    if not start <= source < start + width or source not in lanes:
        return value
    if source not in group:
        gone = (
            "which has returned" if lanes[source].code is None else "which its mask does not name"
        )
        fail(
            UndefinedReadError,
            f"{_name(site)}: lane {lane} reads lane {source}, {gone}",
            site.place,
            thread,
        )
    return _request(group[source]).values[0]


def _bits(lanes: Iterable[int]) -> Any:
    return np.uint32(sum(1 << lane for lane in lanes))


def _to_all(result: Callable[[dict[int, Any]], Any]) -> Callable[[dict[int, Any]], dict[int, Any]]:
    return lambda values: dict.fromkeys(values, result(values))


def _match_any(values: dict[int, Any]) -> dict[int, Any]:
    """Lanes with the same bits, as the hardware compares (NaN is equal to itself)."""
    same: dict[bytes, list[int]] = {}
    for lane, value in values.items():
        same.setdefault(value.tobytes(), []).append(lane)
    return {lane: _bits(same[value.tobytes()]) for lane, value in values.items()}


def _match_all(values: dict[int, Any]) -> Any:
    return _bits(values) if len({v.tobytes() for v in values.values()}) == 1 else np.uint32(0)


WARP_OPS: dict[str, Callable[[dict[int, Any]], dict[int, Any]]] = {
    "all": _to_all(lambda v: np.bool_(all(v.values()))),
    "any": _to_all(lambda v: np.bool_(any(v.values()))),
    "eq": _to_all(lambda v: np.bool_(len({bool(x) for x in v.values()}) == 1)),
    "ballot": _to_all(lambda v: _bits(lane for lane, x in v.items() if x)),
    "match_any": _match_any,
    "match_all": _to_all(_match_all),
    "activemask": _to_all(_bits),
}
