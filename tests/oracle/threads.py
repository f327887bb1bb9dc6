"""Kernel threads that meet: blocks, barriers and warp operations, one baton going round."""

from __future__ import annotations

import math
import operator
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.oracle.arrays import POISON, Array
from tests.oracle.scalars import UINT32, Number, lift

WARP = 32
HERE = os.path.dirname(__file__)


class OracleError(Exception):
    """The kernel did something that has no meaning: threads that cannot meet, a bad lane."""


class Thread:
    """One kernel thread: its place in the block, and the baton while it runs as a Python thread."""

    def __init__(self, block: Block, linear: int) -> None:
        x, y, _ = block.shape
        self.block, self.linear = block, linear
        self.index = (linear % x, linear // x % y, linear // (x * y))
        self.request: Request | None = None
        self.answer: Any = None
        self.finished = False
        self.error: BaseException | None = None
        self.go = threading.Semaphore(0)

    @property
    def lane(self) -> int:
        return self.linear % WARP

    @property
    def warp(self) -> int:
        return self.linear // WARP


class Request(tuple[str, Any, Any, Any]):
    """What a thread waits for: (operation, mask or None, place in the source, operands)."""


class Block:
    def __init__(self, index: Any, shape: Any, grid: Any, dynamic_bytes: int) -> None:
        self.index, self.shape, self.grid = index, shape, grid
        self.shared: dict[Any, Array] = {}
        self.dynamic = np.full(dynamic_bytes, POISON, np.uint8)
        self.threads = [Thread(self, i) for i in range(math.prod(shape))]
        self.back = threading.Semaphore(0)
        self.stopping = False


_thread: Thread | None = None  # the one that runs now


def current() -> Thread:
    if _thread is None:
        raise OracleError("this name has a meaning only inside a kernel")
    return _thread


class _Stop(BaseException):
    """Ends a Python thread whose block has failed."""


def meet_others(operation: str, mask: int | None, operands: Any) -> Any:
    """Hand the baton back until the scheduler has found everyone that takes part."""
    thread = current()
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(HERE):
        assert frame.f_back is not None
        frame = frame.f_back
    thread.request = Request((operation, mask, (frame.f_code, frame.f_lineno), operands))
    thread.block.back.release()
    thread.go.acquire()
    if thread.block.stopping:
        raise _Stop
    return thread.answer


def run_alone(block: Block, function: Any, arguments: Any, order: int) -> None:
    """Run a block whose threads never meet, one after another."""
    global _thread
    with np.errstate(all="ignore"):
        try:
            for _thread in block.threads[::order]:
                function(*arguments)
        finally:
            _thread = None


def _run_thread(thread: Thread, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    thread.go.acquire()
    try:
        if not thread.block.stopping:
            with np.errstate(all="ignore"):
                function(*arguments)
    except _Stop:
        pass
    except BaseException as error:
        thread.error = error
    thread.finished = True
    thread.block.back.release()


def run_together(block: Block, function: Any, arguments: Any, order: int) -> None:
    """Run a block whose threads meet: one Python thread each, one baton."""
    for thread in block.threads:
        worker = threading.Thread(target=_run_thread, args=(thread, function, arguments))
        worker.daemon = True
        worker.start()
    runnable = block.threads[::order]
    try:
        while runnable:
            for thread in runnable:
                _hand_over(thread)
                if thread.error is not None:
                    raise thread.error
            runnable = answer_requests(block)[::order]
    finally:
        block.stopping = True
        for thread in block.threads:
            if not thread.finished:
                _hand_over(thread)


def _hand_over(thread: Thread) -> None:
    global _thread
    _thread = thread
    thread.go.release()
    thread.block.back.acquire()
    _thread = None


def answer_requests(block: Block) -> list[Thread]:
    """Answer every group whose members have all arrived; those threads may go on."""
    alive = [t for t in block.threads if not t.finished]
    if not alive:
        return []
    ready: list[Thread] = []
    first = alive[0].request
    assert first is not None
    if first[0].startswith("syncthreads") and all(t.request[:3] == first[:3] for t in alive):  # type: ignore[index]
        answer_barrier(first[0], alive)
        return alive
    for warp in sorted({t.warp for t in alive}):
        lanes = {t.lane: t for t in alive if t.warp == warp}
        for thread in lanes.values():
            assert thread.request is not None
            operation, mask, _, _ = thread.request
            if mask is None or thread in ready:
                continue
            if not mask >> thread.lane & 1:
                raise OracleError(f"{operation}: lane {thread.lane} is not in its mask {mask:#x}")
            group = {n: t for n, t in lanes.items() if mask >> n & 1}
            if all(t.request[:3] == thread.request[:3] for t in group.values()):  # type: ignore[index]
                WARP_ANSWERS[operation](group)
                ready += group.values()
    if not ready:
        ready = answer_activemask(alive)
    if not ready:
        waits = sorted({f"{t.request[0]} at line {t.request[2][1]}" for t in alive})  # type: ignore[index]
        raise OracleError("threads of a block wait at different places: " + "; ".join(waits))
    return ready


def answer_activemask(alive: list[Thread]) -> list[Thread]:
    """Nobody else can move: those of a warp that ask at the same place are the active ones."""
    asking = [t for t in alive if t.request is not None and t.request[0] == "activemask"]
    for thread in asking:
        assert thread.request is not None
        same = [t for t in asking if t.warp == thread.warp and t.request[2] == thread.request[2]]  # type: ignore[index]
        thread.answer = Number(sum(1 << t.lane for t in same), UINT32)
    return asking


def answer_barrier(operation: str, threads: Sequence[Thread]) -> None:
    votes = [bool(t.request[3]) for t in threads]  # type: ignore[index]
    answers: dict[str, Any] = {
        "syncthreads": None,
        "syncthreads_and": int(all(votes)),
        "syncthreads_or": int(any(votes)),
        "syncthreads_count": sum(votes),
    }
    for thread in threads:
        thread.answer = answers[operation]


def _operands(group: dict[int, Thread]) -> dict[int, Any]:
    return {lane: t.request[3] for lane, t in group.items()}  # type: ignore[index]


def _shuffle(source: Callable[[int, int], int]) -> Callable[[dict[int, Thread]], None]:
    def answer(group: dict[int, Thread]) -> None:
        values = _operands(group)
        for lane, thread in group.items():
            value, offset = values[lane]
            wanted = source(lane, offset)
            if not 0 <= wanted < WARP:
                thread.answer = value  # off the end of the warp: one's own
            elif wanted in values:
                thread.answer = values[wanted][0]
            else:
                raise OracleError(f"shuffle reads lane {wanted}, which takes no part")

    return answer


def _vote(result: Callable[[list[Any], dict[int, Any], int], Any]) -> Any:
    def answer(group: dict[int, Thread]) -> None:
        values = _operands(group)
        for lane, thread in group.items():
            thread.answer = result(list(values.values()), values, lane)

    return answer


def _mask_of(values: dict[int, Any], wanted: Any) -> Number:
    return Number(sum(1 << lane for lane, v in values.items() if v == wanted), UINT32)


WARP_ANSWERS: dict[str, Callable[[dict[int, Thread]], None]] = {
    "syncwarp": _vote(lambda all_, by_lane, lane: None),
    "shfl_sync": _shuffle(lambda lane, source: source % WARP),
    "shfl_up_sync": _shuffle(lambda lane, delta: lane - delta),
    "shfl_down_sync": _shuffle(lambda lane, delta: lane + delta),
    "shfl_xor_sync": _shuffle(lambda lane, bits: lane ^ bits),
    "all_sync": _vote(lambda all_, by_lane, lane: all(all_)),
    "any_sync": _vote(lambda all_, by_lane, lane: any(all_)),
    "eq_sync": _vote(lambda all_, by_lane, lane: len({bool(v) for v in all_}) == 1),
    "ballot_sync": _vote(lambda all_, by_lane, lane: _mask_of(
        {n: bool(v) for n, v in by_lane.items()}, True)),
    "match_any_sync": _vote(lambda all_, by_lane, lane: _mask_of(by_lane, by_lane[lane])),
    "match_all_sync": _vote(lambda all_, by_lane, lane: (
        (_mask_of(by_lane, all_[0]), True) if all(v == all_[0] for v in all_)
        else (Number(0, UINT32), False))),
}  # fmt: skip


def barrier(operation: str) -> Callable[..., Any]:
    def call(predicate: Any = False) -> Any:
        return meet_others(operation, None, predicate)

    return call


def vote(operation: str) -> Callable[..., Any]:
    def call(mask: Any = 0xFFFFFFFF, operand: Any = None) -> Any:
        return meet_others(operation, operator.index(mask) & 0xFFFFFFFF, operand)

    return call


def shuffle(operation: str) -> Callable[..., Any]:
    def call(mask: Any, value: Any, lane: Any) -> Any:
        operands = (lift(value), operator.index(lane))
        return meet_others(operation, operator.index(mask) & 0xFFFFFFFF, operands)

    return call
