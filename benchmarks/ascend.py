"""What the kernels of the tests cost on Ascend's emulations: translating, building, loading again.

There are no peers and no NPU here: limits only. Translation is what comes after the frontend, from
the IR to AscendC. A build is the C++ compiler's, of a first launch; later ones find it in the disk
cache. Kernels that a chip refuses are counted and left out. All is processor time of one core, so
that other work on the machine matters less.
"""

from __future__ import annotations

import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

BUILDS = 40  # kernels of each chip that are compiled: spread over all of them
CHIPS = {"950": "SIMT", "910b": "tiles"}


class Stop(Exception):
    """Ends a launch when its text is there."""


def translations(chip: str) -> Iterator[tuple[float, Any] | None]:
    """Seconds of each kernel of the tests, and what a build needs; None where it is refused."""
    import ruda
    from ruda.backends.ascend import device
    from ruda.errors import UnsupportedError
    from tests.jit.case import run
    from tests.jit.test_kernels import MODULES

    emit = device.TwinBackend.emit

    def timed(self: Any, function: Any, target: Any) -> Any:
        emit(self, function, target)  # imports, for the first one
        start = time.process_time()
        source = emit(self, function, target)
        raise Stop(time.process_time() - start, source)

    device.TwinBackend.emit = timed  # type: ignore[method-assign]
    try:
        for case in (case for module in MODULES for case in module.CASES):
            n = next(n for n in case.sizes if n)
            grid, block, shared = case.extents(n)
            where = (grid, block, 0, shared) if shared else (grid, block)

            def launch(arguments: Any, case: Any = case, where: Any = where) -> None:
                with ruda.config(device=f"ascend-twin:{chip}", cache=False, **case.config):
                    case.kernel[where](*arguments)

            try:
                run(case.arguments(np.random.default_rng(0), n), launch)
            except Stop as stop:
                yield stop.args  # type: ignore[misc]
            except UnsupportedError:
                yield None
    finally:
        device.TwinBackend.emit = emit  # type: ignore[method-assign]


def limit(name: str, seconds: list[float], limit: float, note: str) -> dict[str, Any]:
    """The largest of the samples against its limit, and the median beside it, in ms."""
    return {
        "name": name, "value": 1e3 * max(seconds), "limit": limit, "unit": "ms",
        "note": f"median {1e3 * statistics.median(seconds):.2f} ms; {note}",
    }  # fmt: skip


def children(build: Callable[[], Any]) -> float:
    """The processor time of the compilers that a call runs, and of the call."""
    before = os.times()
    build()
    after = os.times()
    return sum(after[:4]) - sum(before[:4])


def limits() -> list[dict[str, Any]]:
    import ruda
    from ruda.backends.ascend import compile as compiler
    from ruda.backends.ascend.twin import build

    rows = []
    for chip, form in CHIPS.items():
        all_found = list(translations(chip))
        found = [row for row in all_found if row is not None]
        what = f"Ascend {chip}, {form}"
        note = f"{len(found)} kernels, {len(all_found) - len(found)} refused"
        rows.append(limit(f"{what}: translate, the slowest", [row[0] for row in found], 100, note))
        with tempfile.TemporaryDirectory() as folder, ruda.config(cache_dir=folder):
            runtime = children((build if chip == "910b" else compiler)._runtime_bytes)
        seconds = [
            children(functools.partial(compiler.compile_source, source, chip))
            for _, source in found[:: max(1, len(found) // BUILDS)]
        ]
        rows.append(limit(f"{what}: build, the slowest", seconds, 3000, f"{len(seconds)} kernels"))
        both = [runtime + second for second in seconds]
        note = f"runtime {runtime:.2f} s"
        rows.append(limit(f"{what}: first build on a machine, with the runtime", both, 3000, note))
    return rows
