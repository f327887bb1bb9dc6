"""Time candidates fairly: round robin in one process, medians of ratios, with what could disturb
them.

A round runs every candidate once, in an order that turns. A ratio is taken within a round, so that
slow phases of the machine hit both sides.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np


@dataclass
class Row:
    """One measured comparison; `ratio` is peer time / our time, so more is better."""

    name: str
    peer: str
    ours: list[float]
    theirs: list[float]
    goal: float
    threads: int = 1
    allocation: str = "outputs given"
    note: str = ""
    fastest: bool = False  # compare the fastest samples: where medians say how busy cores are
    accuracy: dict[str, float] = field(default_factory=dict)

    @property
    def ratios(self) -> list[float]:
        return [t / o for o, t in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        if self.fastest:
            return min(self.theirs) / min(self.ours)
        return statistics.median(self.ratios)

    def as_dict(self) -> dict[str, Any]:
        low, _, high = statistics.quantiles(self.ratios, n=4)
        return asdict(self) | {"ratio": self.ratio, "quartiles": [low, high]}


def repeat(function: Callable[[], Any], least: float = 2e-3) -> int:
    """How many calls make one sample of at least `least` seconds."""
    start = time.perf_counter()
    function()
    once = time.perf_counter() - start
    return max(1, int(least / max(once, 1e-7)))


def sample(candidates: Mapping[str, Callable[[], Any]], rounds: int = 21) -> dict[str, list[float]]:
    """Seconds a call for every candidate, a sample a round."""
    names = list(candidates)
    for name in names:
        candidates[name]()  # compile, touch pages
    counts = {name: repeat(candidates[name]) for name in names}
    out: dict[str, list[float]] = {name: [] for name in names}
    for k in range(rounds):
        for name in names[k % len(names) :] + names[: k % len(names)]:
            call, count = candidates[name], counts[name]
            start = time.perf_counter()
            for _ in range(count):
                call()
            out[name].append((time.perf_counter() - start) / count)
    return out


def ulp(result: Any, exact: Any) -> float:
    """The largest error in units of the last place of the result's dtype."""
    exact = np.asarray(exact, np.float64)
    spacing = np.spacing(np.abs(exact).astype(result.dtype)).astype(np.float64)
    return float(np.nanmax(np.abs(result.astype(np.float64) - exact) / spacing))


def load() -> list[float]:
    return [round(v, 2) for v in os.getloadavg()]
