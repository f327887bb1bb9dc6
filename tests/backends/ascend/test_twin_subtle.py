"""Kernels whose looks deceive: the twin runs the right ones and refuses the wrong ones."""

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest

from ruda.backends.ascend import twin

KERNELS = Path(__file__).parent / "kernels"
WRONG = (KERNELS / "wrong.cpp").read_text()
HEAD = WRONG[: WRONG.index("// breaks")]
TEXT = HEAD + (KERNELS / "subtle.cpp").read_text()
PART = re.compile(r"// (right|breaks (\S+)): [^\n]*\nKERNEL\((\w+)\) {\n(.*?)^}\n", re.M | re.S)
# What x = 0, 1, 2, ... and y = -x become.
X, NEXT = np.arange(64, dtype=np.float32), np.arange(1, 65, dtype=np.float32)
RIGHT = {
    "through_the_scalar_unit": NEXT,
    "one_flag_for_two_copies": np.concatenate([X[:32], -X[:32]]) + 1,
    "by_turns": NEXT,
    "the_last_gap": np.where(X % 8 == 0, X / 8 * 9, 0) + 1,
    "read_then_overwritten": np.full(64, 2 + np.exp(np.float32(2)), np.float32),
}


def kernels(right):
    found = []
    for part in PART.finditer(TEXT):
        if (part[1] == "right") != right:
            continue
        before, here, _ = part[4].partition("// here")
        line = TEXT[: part.start(4)].count("\n") + before.count("\n") + 1 if here else None
        found.append(pytest.param(part[3], part[2], line, id=part[3]))
    return found


@pytest.fixture(scope="module")
def library():
    return twin.load(TEXT)


def run(library, kernel, **options):
    x, y, out = X.copy(), -X, np.full(64, 7, np.float32)
    arrays = (("x", x), ("y", y), ("out", out))
    ranges = [twin.Memory(n, a.ctypes.data, a.nbytes, n == "out") for n, a in arrays]
    arguments = [ctypes.c_void_p(a.ctypes.data) for _, a in arrays]
    twin.launch(library, f"launch_{kernel}", 2, arguments, ranges, **options)
    return out


@pytest.mark.parametrize(("kernel", "rule", "line"), kernels(right=True))
def test_runs(library, kernel, rule, line):
    for seed in range(3):
        np.testing.assert_allclose(run(library, kernel, seed=seed), RIGHT[kernel], 3e-7)


@pytest.mark.parametrize(("kernel", "rule", "line"), kernels(right=False))
def test_refuses(library, kernel, rule, line):
    with pytest.raises(twin.RULES[rule], match=rf"\[{rule}\]") as caught:
        run(library, kernel)
    assert f"at line {line} of the generated text" in str(caught.value)


def test_every_kernel_is_judged():
    judged = [*kernels(right=True), *kernels(right=False)]
    assert len(judged) == TEXT.count("\nKERNEL(") == len(RIGHT) + 10
