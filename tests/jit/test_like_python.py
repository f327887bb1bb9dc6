"""Where a kernel must do what Python and NumPy do, or say that it does not: found by newcomers."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import ruda
from ruda.errors import OutOfBoundsError
from tests.jit.source import define


def kernel_of(body, parameters="a", before=""):
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return define(f"{before}\n@ruda.jit\ndef kernel({parameters}):\n{lines}")


def launched(kernel, *arguments, device="cpu", **options):
    with ruda.config(device=device, **options):
        kernel[1, 1](*arguments)
    return arguments[0]


# ---- negative powers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["10**-3", "2**-1", "1e3 * 10**-3", "(-2) ** -3", "-2**-3", "pow(4, -1)", "2**3 - 2**-3"],
)
def test_a_negative_power_of_a_literal_is_a_float(text, device):
    kernel = kernel_of(f"a[0] = {text}")
    assert launched(kernel, np.zeros(1), device=device)[0] == eval(text)


def test_zero_to_a_negative_power_is_infinite(device):
    assert launched(kernel_of("a[0] = 0 ** -1"), np.zeros(1), device=device)[0] == np.inf


def test_a_float_still_has_negative_powers(device):
    kernel = kernel_of("a[0] = float(i) ** -2\na[1] = a[2] ** -1", "a, i")
    found = launched(kernel, np.array([0, 0, 8.0]), 4, device=device)
    np.testing.assert_allclose(found, [0.0625, 0.125, 8], rtol=4e-16)  # a power is not exact


# ---- slices of one array -----------------------------------------------------------------------

OVERLAPS = [
    "a[1:4] = a[0:3]",
    "a[0:3] = a[1:4]",
    "a[2:] = a[:-2]",
    "a[:-2] = a[2:]",
    "a[3:9:2] = a[1:7:2]",
    "a[::-1][1:] = a[::-1][:-1]",
    "a[::-1][:-1] = a[::-1][1:]",
    "a[i : i + 8] = a[j : j + 8]",
    "a[0:2] = (a[1], a[0])",
    "m[1:] = m[:-1]",
    "m[1:, 1:] = m[:-1, :-1]",
    "m[1:, :-1] = m[:-1, 1:]",
    "m[:-1, 1:] = m[1:, :-1]",
    "m[:, 1:] = m[:, :-1]",
    "m[:] = m[1]",
    "m[i] = m[j]",
    "m[i, 1:] = m[j, :-1]",
    "m[:, 0] = m[:, 1]",
]


@pytest.mark.parametrize("i, j", [(0, 2), (2, 0), (3, 3)])
@pytest.mark.parametrize("text", OVERLAPS)
def test_overlapping_slices_are_as_in_numpy(text, i, j, device):
    a, m = np.arange(12.0), np.arange(30.0).reshape(6, 5)
    wanted, matrix = a.copy(), m.copy()
    exec(text, {"a": wanted, "m": matrix, "i": i, "j": j})
    launched(kernel_of(text, "a, m, i, j"), a, m, i, j, device=device)
    assert a.tolist() == wanted.tolist() and m.tolist() == matrix.tolist()


def test_a_small_array_is_reversed_in_place(device):
    body = "b = ruda.local.array(5, ruda.float64)\nfor k in range(5):\n    b[k] = a[k]\n"
    body += "b[:] = b[::-1]\nfor k in range(5):\n    a[k] = b[k]"
    assert launched(kernel_of(body), np.arange(5.0), device=device).tolist() == [4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    "text", ["m[:] = m.T", "m[0] = m[:, 0]", "m[0, 0:2] = m[2:4, 0]", "m[1:] = m[:-1, ::-1]"]
)
def test_what_no_order_of_the_loop_can_do_is_refused(text):
    with pytest.raises(ruda.errors.UnsupportedError, match="may overlap"):
        launched(kernel_of(text, "m"), np.zeros((4, 4)))


# ---- tuples ------------------------------------------------------------------------------------


@pytest.mark.parametrize("i", [3, 8, -4])
@pytest.mark.parametrize("options", [{"device": "sim"}, {"device": "cpu", "check": True}])
def test_an_index_past_the_end_of_a_tuple_is_reported(i, options):
    kernel = kernel_of("t = (1, 2, 3)\na[0] = t[i]", "a, i")
    with pytest.raises(OutOfBoundsError, match="out of bounds"):
        launched(kernel, np.zeros(1), i, **options)


@pytest.mark.parametrize("i", range(-3, 3))
def test_an_index_inside_a_tuple(i, device):
    kernel = kernel_of("t = (1, 2, 3)\na[0] = t[i]", "a, i")
    assert launched(kernel, np.zeros(1), i, device=device, check=True)[0] == (1, 2, 3)[i]


# ---- functions that return ---------------------------------------------------------------------

ENDINGS = {
    "both arms": "if z > 0:\n    return 1\nelse:\n    return 2",
    "a loop that ends by itself": "while True:\n    z += 1\n    if z > 3:\n        return z",
    "after a loop": "for k in range(3):\n    if z > k:\n        return k\nreturn 9",
    "an assertion": "if z > 0:\n    return 1\nassert False, 'negative'",
    "nested": "if z > 2:\n    return 1\nelif z > 1:\n    return 2\nelse:\n    return 3",
}
OPEN = {
    "one arm": "if z > 0:\n    return 1",
    "a loop": "for k in range(3):\n    if z > k:\n        return k",
    "a loop with break": "while True:\n    if z > 3:\n        break\n    return z",
    "one arm of two": "if z > 0:\n    return 1\nelse:\n    z += 1",
}


def calling(text):
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    before = f"@ruda.jit(device=True)\ndef inner(z):\n{lines}"
    return kernel_of("a[0] = inner(a[0])", before=before)


@pytest.mark.parametrize("text", ENDINGS.values(), ids=ENDINGS)
def test_a_function_that_returns_on_every_path(text, device):
    launched(calling(text), np.ones(1), device=device)


@pytest.mark.parametrize("text", OPEN.values(), ids=OPEN)
def test_a_path_without_a_value_is_refused(text):
    with pytest.raises(ruda.errors.KernelTypeError, match="not every path of `inner` returns"):
        launched(calling(text), np.ones(1))


# ---- dtypes by name ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f2", "f4", "f8", "i2", "i4", "u2", "u4", "c8", "c16"])
def test_numpy_codes_that_count_bytes(name):
    assert ruda.dtypes.as_dtype(name).numpy == np.dtype(name)
    assert ruda.device_array(2, name).dtype == np.dtype(name)


@pytest.mark.parametrize("name", list("?bBhHiIqQefdFD"))
def test_numpy_codes_of_one_letter(name):
    assert ruda.dtypes.as_dtype(name).numpy == np.dtype(name)


def test_codes_in_signatures():
    kernel = define("@ruda.jit('void(f4[:], i4)')\ndef kernel(a, i):\n    a[0] = i\n")
    assert launched(kernel, np.zeros(1, np.float32), np.int32(3))[0] == 3


@pytest.mark.parametrize("name, kind", [("float", float), ("complex", complex), ("int", int)])
def test_python_types_and_their_names_are_alike(name, kind):
    assert ruda.device_array(2, name).dtype == ruda.device_array(2, kind).dtype
    with ruda.config(default_float="float64"):
        assert (
            ruda.device_array(2, name).dtype == ruda.device_array(2, kind).dtype == np.dtype(kind)
        )


# ---- smaller things ----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["m.item(3)", "m.item(7)", "m.item(2, 1)", "m.item(i)"])
def test_item_takes_indices_or_a_flat_index(text, device):
    m = np.arange(9.0).reshape(3, 3)
    wanted = eval(text, {"m": m, "i": 5})
    got = launched(kernel_of(f"a[0] = {text}", "a, m, i"), np.zeros(1), m, 5, device=device)
    assert got[0] == wanted


def test_item_of_an_array_of_one_element(device):
    body = "b = ruda.local.array((1, 1), ruda.float64)\nb[0, 0] = 7\na[0] = b.item()"
    assert launched(kernel_of(body), np.zeros(1), device=device)[0] == 7


def test_lambdas_can_be_reduced_and_vectorized(device):
    total = ruda.reduce(lambda a, b: a + b)
    squared = ruda.vectorize(lambda x: x * x)
    scale = 3.0
    scaled = ruda.vectorize(
        lambda x: x * scale  # a closure, in a line of its own
    )
    with ruda.config(device=device):
        assert total(np.arange(5.0)) == 10
        assert squared(np.arange(3.0)).tolist() == [0, 1, 4]
        assert scaled(np.arange(3.0)).tolist() == [0, 3, 6]


def test_two_lambdas_of_one_line_are_refused():
    first, _ = ruda.reduce(lambda a, b: a + b), ruda.reduce(lambda a, b: a * b)
    with pytest.raises(ruda.errors.SourceUnavailableError, match="2 lambdas begin there"):
        first(np.arange(5.0))


def test_the_error_of_kernel_names_on_the_host_is_in_the_tree():
    with pytest.raises(ruda.errors.OutsideKernelError, match="has a meaning only inside"):
        ruda.syncthreads()


def test_devices_can_be_looked_at_without_a_warning():
    code = "import ruda; ruda.detect()"
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert "ResourceWarning" not in done.stderr
