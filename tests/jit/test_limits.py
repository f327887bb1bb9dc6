"""Kernels that are too large or too deep are refused in our words, on every device alike."""

from __future__ import annotations

import linecache
import re

import numpy as np
import pytest

import ruda
from ruda.errors import (
    BarrierError,
    KernelValueError,
    LaunchTypeError,
    LaunchValueError,
    OutOfMemoryError,
    UnsupportedError,
)
from ruda.settings import Settings


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


def test_titles_of_fields_say_nothing_to_kernels(device):
    """NumPy compares them with the dtype; also in records within records, and scalars."""
    kernel = defined(
        "@ruda.jit\ndef kernel(x, r, out):\n    i = ruda.grid(1)\n"
        "    if i < x.size:\n        x[i].a = x[i].p.c + r.p.c\n        out[i] = x[i].b\n"
    )
    inner = np.dtype([(("what c is", "c"), "<i4")])
    titled = np.dtype([(("what a is", "a"), "<f4"), (("", "b"), "<f4"), ("p", inner)])
    for dtype in (titled, np.dtype([("a", "<f4"), ("b", "<f4"), ("p", [("c", "<i4")])]), titled):
        x, out = np.zeros(5, dtype), np.zeros(5, np.float32)
        x["b"], x["p"]["c"] = 2, np.arange(5)
        with ruda.config(device=device):
            d, e = ruda.to_device(x), ruda.to_device(out)
            for _ in range(3):
                kernel[1, 8](x, x[3], out)
                kernel[1, 8](d, x[3], e)
        for records, numbers in ((x, out), (d.copy_to_host(), e.copy_to_host())):
            assert records["a"].tolist() == [3, 4, 5, 6, 7] and numbers.tolist() == [2] * 5
            assert records.dtype == dtype


@pytest.mark.parametrize("size", (2**20 + 1, 2**40, 2**62))
def test_dynamic_shared_memory_has_a_limit(size):
    kernel = defined(
        "@ruda.jit\ndef kernel(x):\n    a = ruda.shared.array(0, ruda.float32)\n"
        "    a[0] = x[0]\n    x[1] = a[0]\n"
    )
    for device in ("sim", "cpu"):
        with ruda.config(device=device), pytest.raises(LaunchValueError, match="has 1048576"):
            kernel[1, 1, 0, size](np.zeros(4))


def test_a_report_buffer_that_no_memory_holds_is_refused():
    kernel = defined("@ruda.jit\ndef kernel(x):\n    assert x[0] == 0\n")
    with ruda.config(report_bytes=2**62), pytest.raises(OutOfMemoryError, match="report_bytes"):
        kernel[1, 1](np.zeros(4))


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("RUDA_DEBUG", "lots", "RUDA_DEBUG='lots': expected an integer"),
        ("RUDA_NUM_THREADS", "-1", "RUDA_NUM_THREADS=-1: expected a number from 0"),
        ("RUDA_REPORT_BYTES", str(2**63), "expected a number from 0"),
        ("RUDA_CHECK", "perhaps", "RUDA_CHECK='perhaps': expected 0 or 1"),
        ("RUDA_SIM_ORDER", "down", "expected one of ascending, random"),
    ],
)
def test_garbage_in_the_environment_is_named(variable, text, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        Settings({variable: text})
    assert Settings({variable: ""}).base == Settings({}).base


def test_order_and_patience_of_sim_are_settings():
    text = "    if i == 0:\n        while x[1] < 5000:\n            x[1] += 1\n"
    kernel = defined(
        "@ruda.jit\ndef kernel(x, order):\n    i = ruda.grid(1)\n"
        f"    order[ruda.atomic.add(x, 0, 1)] = i\n{text}"
    )

    def order(**changes):
        seen = np.zeros(40, np.int64)
        with ruda.config(device="sim", **changes):
            kernel[4, 10](np.zeros(2, np.int64), seen)
        return seen.tolist()

    assert order() == list(range(40))
    mixed = order(sim_order="random", sim_seed=1)
    assert mixed != list(range(40)) and sorted(mixed) == list(range(40))
    assert mixed == order(sim_order="random", sim_seed=1) != order(sim_order="random", sim_seed=2)
    with pytest.raises(BarrierError, match="waits for ever: 2000 iterations"):
        order(sim_steps=2000)


HUGE = 10**5000  # Python does not write out more than 4300 digits


@pytest.mark.parametrize(
    ("launch", "error"),
    [
        (lambda k: k[1, 1](np.zeros(1), HUGE), OverflowError),
        (lambda k: k[1, 1](np.zeros(1), -HUGE), OverflowError),
        (lambda k: k[HUGE, 1], LaunchValueError),
        (lambda k: k[-HUGE, 1], LaunchValueError),
        (lambda k: k[1, (1, HUGE)], LaunchValueError),
        (lambda k: k[1, 1, 0, HUGE](np.zeros(1), 1), LaunchValueError),
        (lambda k: k[1, 1, 0, -HUGE], LaunchValueError),
        (lambda k: k.forall(HUGE), LaunchValueError),
        (lambda k: k.forall(-HUGE), LaunchValueError),
    ],
)
def test_integers_too_long_to_be_written_out(launch, error):
    kernel = defined("@ruda.jit\ndef kernel(x, v):\n    x[0] = v\n")
    for device in ("sim", "cpu"):
        with ruda.config(device=device), pytest.raises(error, match=r"an integer of 166\d\d bits"):
            launch(kernel)


class Interface:
    """An object that says of itself what it likes."""

    def __init__(self, **changes):
        self.owner = np.arange(8.0)
        self.__array_interface__ = {**self.owner.__array_interface__, **changes}


@pytest.mark.parametrize(
    "changes",
    [{"data": (0, False)}, {"shape": (2**61,)}, {"shape": (-1,)}, {"typestr": "nonsense"},
     {"shape": 3}, {"data": "text"}, {"strides": (1, 2, 3)}],
    ids=str,
)  # fmt: skip
def test_interfaces_that_describe_no_array_are_refused(changes, device):
    kernel = defined("@ruda.jit\ndef kernel(x, v):\n    x[0] = v\n")
    with ruda.config(device=device):
        with pytest.raises(LaunchTypeError, match="__array_interface__ of Interface"):
            kernel[1, 1](Interface(**changes), 1)
        good = Interface()
        kernel[1, 1](good, 5)
        assert good.owner[0] == 5
