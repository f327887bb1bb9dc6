"""Kernels that are too large or too deep are refused in our words, on every device alike."""

from __future__ import annotations

import linecache

import numpy as np
import pytest

import ruda
from ruda.errors import KernelValueError, LaunchTypeError, UnsupportedError


def defined(text: str, name: str = "kernel"):
    """A kernel from text, as a notebook cell defines one."""
    file = f"<limits {abs(hash(text))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    scope = {"ruda": ruda, "np": np}
    exec(compile(text, file, "exec"), scope)
    return scope[name]


def terms(n: int) -> str:
    total = " + ".join(["x[0]"] * n)
    return f"@ruda.jit\ndef kernel(x):\n    x[1] = {total}\n"


def elif_chain(n: int) -> str:
    arms = "".join(f"    elif x[0] == {k}:\n        x[1] = {k}\n" for k in range(1, n))
    return f"@ruda.jit\ndef kernel(x):\n    if x[0] == 0:\n        x[1] = 0\n{arms}"


def loops(n: int) -> str:
    rounds = [2 if k % 3 == 0 else 1 for k in range(n)]
    lines = [f"{'    ' * (k + 1)}for i{k} in range({r}):" for k, r in enumerate(rounds)]
    return "\n".join(["@ruda.jit", "def kernel(x):", *lines, "    " * (n + 1) + "x[1] += 1", ""])


def ternaries(n: int) -> str:
    chain = " else ".join(f"{k} if x[0] == {k}" for k in range(n))
    return f"@ruda.jit\ndef kernel(x):\n    x[1] = {chain} else -1\n"


DEEP = {
    "terms": terms(3000),
    "elif": elif_chain(600),
    "loops": loops(19),
    "choices": ternaries(300),
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_what_python_cannot_hold_runs_or_is_refused(device, text):
    """Either the right answer, or one error of ours with a place and a remedy."""
    x = np.zeros(4)
    with ruda.config(device=device):
        try:
            kernel = defined(text)
        except (SyntaxError, RecursionError):
            return  # CPython itself refuses the text
        try:
            kernel[1, 1](x)
        except UnsupportedError as error:
            assert "too deep" in str(error) and error.lineno and error.__notes__
        else:
            plain = defined(text).py_func
            expected = np.zeros(4)
            plain(expected)
            np.testing.assert_array_equal(x, expected)


@pytest.mark.parametrize("space", ("shared", "local"))
@pytest.mark.parametrize("side", (2**15, 2**40))
def test_arrays_that_no_device_holds_are_refused(device, space, side):
    kernel = defined(
        f"@ruda.jit\ndef kernel(x):\n    a = ruda.{space}.array(({side}, {side}), ruda.float32)\n"
        "    a[0, 0] = x[0]\n    x[1] = a[0, 0]\n"
    )
    with ruda.config(device=device), pytest.raises(KernelValueError, match=r"need \d+ bytes"):
        kernel[1, 1](np.zeros(4))


def test_records_of_foreign_byte_order_are_told_what_to_do(device):
    kernel = defined("@ruda.jit\ndef kernel(x):\n    x[0].a = 1\n")
    with ruda.config(device=device), pytest.raises(LaunchTypeError, match="newbyteorder"):
        kernel[1, 1](np.zeros(2, [("a", ">f4"), ("b", "<i4")]))
