"""List literals that are only read, `in`, `any` and `all`: as Python has them."""

from __future__ import annotations

import numpy as np
import pytest

import ruda
from ruda.errors import KernelError, KernelTypeError, UnsupportedError
from tests.jit.source import define


def kernel_of(body, parameters="x"):
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return define(f"@ruda.jit\ndef kernel({parameters}):\n    i = ruda.grid(1)\n{lines}")


READ = """
t = 0
for d in [1, 2, i]:
    for e in [-d, d * d]:
        t += e
x[i] = t
if i in [2, 3, 5, x.size - 1]:
    x[i] += 1000
if i not in [0, 1]:
    x[i] += 2000
x[i] += 10 * max([i, 3, 1]) + min([i, 4])
for k, v in enumerate([5, 6], start=1):
    x[i] += k * v
for v, w in zip([1, 2], [i, 3]):
    x[i] += v * w
x[i] += len([1, 2, 3]) + sum([i, 1])
x[i] += 100000 * any([i == 2, i > 6]) + 200000 * all([i > 1, i < 5, True])
x[i] += any(()) + 5 * all(())
"""


def python(n):
    out = np.zeros(n, np.int64)
    for i in range(n):
        exec(READ, {"x": out, "i": i})
    return out


def test_lists_that_are_only_read_are_tuples(device):
    x = np.zeros(9, np.int64)
    with ruda.config(device=device):
        kernel_of(READ)[1, 9](x)
    assert x.tolist() == python(9).tolist()


RANGES = ["range(4)", "range(2, 7)", "range(1, 9, 3)", "range(8, 2, -1)", "range(8, 0, -3)",
          "range(5, 2)", "range(n)", "range(n, n + 4, 2)"]  # fmt: skip


def test_in_a_range(device):
    lines = [f"x[{k}, i] = i in {r}\ny[{k}, i] = (i - 5) not in {r}" for k, r in enumerate(RANGES)]
    x, y = np.zeros((2, len(RANGES), 12), np.int32)
    with ruda.config(device=device):
        kernel_of("\n".join(lines), "x, y, n")[1, 12](x, y, 3)
    for k, text in enumerate(RANGES):
        numbers = eval(text, {"n": 3})
        assert x[k].tolist() == [i in numbers for i in range(12)]
        assert y[k].tolist() == [i - 5 not in numbers for i in range(12)]


def test_any_and_all_of_arrays(device):
    body = "y[0] = any(x)\ny[1] = all(x)\ny[2] = any(x[:1])\ny[3] = all(x[1:])"
    y = np.zeros(4, np.int32)
    with ruda.config(device=device):
        kernel_of(body, "x, y")[1, 1](np.array([0, 2, 3], np.float32), y)
    assert y.tolist() == [1, 0, 0, 1]


REFUSED = [
    ("v = [1, 2]\nx[0] = v[0]", UnsupportedError, "a tuple"),
    ("x[[0, 1]] = 1", UnsupportedError, "a list is not"),
    ("x[0] = min(1, 2, key=abs)", KernelTypeError, "takes no `key`"),
    ("x[0] = max(x, initial=3)", KernelTypeError, "takes no `initial`"),
    ("x[0] = np.sum(x, axis=0)", UnsupportedError, "takes no arguments"),
    ("x[0] = np.argmax(x, axis=0)", UnsupportedError, "takes no arguments"),
    ("x[0] = x.argmin(0)", UnsupportedError, "takes no arguments"),
    ("x[0] = x.item(k=0)", KernelTypeError, "takes no `k`"),
    ("for a in reversed(x, key=3):\n    x[0] = a", KernelTypeError, "takes no `key`"),
    ("for a, b in zip(x, x, strict=True):\n    x[0] = a", UnsupportedError, "takes no `strict`"),
    ("if x[0] in range(3):\n    x[0] = 1", UnsupportedError, "start <= x < stop"),
    ("if i in range(0, 9, i):\n    x[0] = 1", UnsupportedError, "a constant step"),
    ("x[0] = any(x[0])", KernelTypeError, "takes a tuple or an array"),
    ("v = np.array([1, 2, 3])", UnsupportedError, "ruda.local.array"),
    ("v = ruda.shared.array(4.0, np.float32)", KernelTypeError, "made of integers, not float"),
    ("v = ruda.shared.array(4)", KernelTypeError, "write `ruda.shared.array(shape, dtype)`"),
    ("ruda.atomic.add(x, 1)", KernelTypeError, "write `ruda.atomic.add(array, index, value)`"),
    ("v = x[:, None]", UnsupportedError, "np.newaxis"),
    ("x[0] = ruda.threadIdx[0]", KernelTypeError, "its parts are ruda.threadIdx.x"),
    ("x[0] = np.int(3)", KernelError, "write `int`"),
    ("p, *q = (1, 2, 3)", UnsupportedError, "slice the tuple"),
    ("x[0] = np.finfo().max", KernelTypeError, "needs `dtype`"),
]


@pytest.mark.parametrize("body, kind, message", REFUSED, ids=[r[0] for r in REFUSED])
def test_what_is_refused_says_what_to_write(body, kind, message):
    with pytest.raises(kind) as error, ruda.config(device="sim"):
        kernel_of(body)[1, 1](np.zeros(4, np.float32))
    assert message in "\n".join([str(error.value), *error.value.__notes__])


def test_shapes_may_be_lists(device):
    x = np.zeros(1, np.float32)
    body = "v = ruda.local.array([2, 3], np.float32)\nv[1, 2] = 7\nx[0] = v[1, 2]"
    with ruda.config(device=device):
        kernel_of(body)[1, 1](x)
    assert x[0] == 7
