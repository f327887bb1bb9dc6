"""RUDA_DEBUG: one dial, each level with all below it."""

from __future__ import annotations

import numpy as np
import pytest

import ruda


def traced(level: int, capsys: pytest.CaptureFixture[str], device: str = "cpu") -> str:
    @ruda.jit
    def doubled(x):
        i = ruda.grid(1)
        if i < x.size:
            x[i] *= 2

    x = np.arange(8.0)
    with ruda.config(debug=level, device=device, cache=False):
        doubled[1, 8](x)
        doubled[1, 8](x)
    np.testing.assert_array_equal(x, 4 * np.arange(8.0))
    return capsys.readouterr().err


LEVELS = [
    (1, "doubled(float64[::1]) for cpu: verified, compiled"),
    (2, "launch doubled[(1, 1, 1), (8, 1, 1)] on cpu"),
    (4, "source of doubled for cpu"),
    (5, "IR of doubled after"),
    (6, "assembly of doubled for cpu"),
]


def test_silent_by_default(capsys):
    assert traced(0, capsys) == ""


@pytest.mark.parametrize(("level", "text"), LEVELS)
def test_a_level_shows_its_part_and_no_lower_one_does(level, text, capsys):
    assert text in traced(level, capsys)
    assert text not in traced(level - 1, capsys)


def test_every_launch_is_shown(capsys):
    assert traced(2, capsys).count("launch doubled") == 2
