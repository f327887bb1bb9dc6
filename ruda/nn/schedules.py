"""Schedules: the learning rate of each step, as a function of its number, from 0.

They keep no state, so that a resumed run goes on with the same rates. Give one to an optimiser as
its `lr`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def constant(rate: float) -> Schedule:
    """The same at every step."""
    return lambda step: rate


def linear(start: float, end: float, steps: int) -> Schedule:
    """From one rate to another in a line, then as it is.

    >>> [linear(0.0, 1.0, 4)(k) for k in (0, 1, 4, 9)]
    [0.0, 0.25, 1.0, 1.0]
    """
    _positive(steps)
    return lambda step: start + (end - start) * min(step / steps, 1.0)


def cosine(start: float, steps: int, end: float = 0.0) -> Schedule:
    """From one rate to another along half a cosine, then as it is."""
    _positive(steps)
    return lambda step: (
        end + (start - end) * (0.5 + 0.5 * math.cos(math.pi * min(step / steps, 1.0)))
    )


def exponential(start: float, gamma: float, every: int = 1, least: float = 0.0) -> Schedule:
    """Times gamma every few steps, smoothly, and not below `least`."""
    _positive(every)
    return lambda step: max(least, start * gamma ** (step / every))


def step(start: float, gamma: float, every: int) -> Schedule:
    """Times gamma at once, every few steps."""
    _positive(every)
    return lambda number: start * gamma ** (number // every)


def noam(size: int, warmup: int, factor: float = 1.0) -> Schedule:
    """Of the transformer (Vaswani et al., 2017): up in a line, down by the root of the step."""
    _positive(warmup)
    return lambda step: factor * size**-0.5 * min((step + 1) ** -0.5, (step + 1) * warmup**-1.5)


def warmup(schedule: Schedule, steps: int) -> Schedule:
    """A schedule times a line from 0 to 1 over its first steps."""
    _positive(steps)
    return lambda step: schedule(step) * min((step + 1) / steps, 1.0)


def sequence(*parts: tuple[int, Schedule], last: Schedule) -> Schedule:
    """Schedules behind each other: (how many steps, schedule), each counting from 0, then `last`.

    >>> f = sequence((2, constant(1.0)), last=linear(1.0, 0.0, 2))
    >>> [f(k) for k in range(5)]
    [1.0, 1.0, 1.0, 0.5, 0.0]
    """

    def found(step: int) -> float:
        for steps, schedule in parts:
            if step < steps:
                return schedule(step)
            step -= steps
        return last(step)

    return found


def product(*schedules: Schedule) -> Schedule:
    """The rates of several schedules, multiplied."""
    return lambda step: math.prod(s(step) for s in schedules)


def _positive(steps: int) -> None:
    if steps < 1:
        raise ValueError(f"a schedule has at least one step, not {steps}")
