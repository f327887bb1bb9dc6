"""A few seconds that tell whether anything works at all: run it before every commit."""

import importlib
import itertools
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import ruda
from ruda import dtypes
from ruda.dtypes import ALL, WEAK, promote

ROOT = Path(ruda.__file__).parent
EVERY = ALL + WEAK


def test_every_module_can_be_imported():
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        # A backend whose library is not installed is not imported.
        if not re.search(r"backends\.(cuda|wgpu|ascend)\.", name):
            importlib.import_module(name.removesuffix(".__init__"))


@ruda.jit
def saxpy(a, x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@pytest.mark.parametrize("n", [0, 1, 31, 33])
def test_a_kernel_runs_in_the_interpreter(n):
    x = np.linspace(-2, 2, n, dtype=np.float32)
    out = np.full(n, np.nan, np.float32)
    with ruda.config(device="sim"):
        saxpy[2, 32](2.0, x, x, out)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, np.float32(3) * x)


@ruda.jit
def wrong(x):
    x[0] = undefined  # noqa: F821 - that is the mistake


def test_a_mistake_points_at_its_place():
    with ruda.config(device="sim"), pytest.raises(ruda.errors.KernelNameError) as caught:
        wrong[1, 1](np.zeros(1))
    error = caught.value
    assert (error.filename, error.text.strip()) == (
        __file__,
        "x[0] = undefined  # noqa: F821 - that is the mistake",
    )
    assert error.text[error.offset - 1 :].startswith("undefined")


def test_a_setting_holds_inside_with_and_not_after():
    before = ruda.settings.settings.check
    with ruda.config(check=not before):
        assert ruda.settings.settings.check is not before
    assert ruda.settings.settings.check is before


# ------------------------------------------------------------------------------ dtypes: one lattice


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_the_spellings_of_a_dtype(dtype):
    for spelling in (dtype.name, dtype.short, dtype.numpy, dtype.numpy.type, dtype):
        assert dtypes.as_dtype(spelling) is dtype
    assert getattr(ruda, dtype.name if dtype.name != "bool" else "bool_") is dtype
    assert dtype.numpy.itemsize == dtype.itemsize
    assert pickle.loads(pickle.dumps(dtype)) is dtype


@pytest.fixture(params=["float32", "float64"])
def default_float(request):
    with ruda.config(default_float=request.param):
        yield request.param


def test_promotion_is_idempotent_and_commutative(default_float):
    for a, b in itertools.product(EVERY, repeat=2):
        assert promote(a, a) is a
        assert promote(a, b) is promote(b, a), (a, b)


def test_what_was_promoted_takes_in_its_parts(default_float):
    for a, b in itertools.product(ALL, repeat=2):
        both = promote(a, b)
        assert promote(both, a) is both, (a, b)


def disagreements():
    """The sets of three whose promotion depends on the order in which they meet."""
    return {
        frozenset({a, b, c})
        for a, b, c in itertools.product(EVERY, repeat=3)
        if promote(promote(a, b), c) is not promote(a, promote(b, c))
    }


def test_promotion_is_associative():
    with ruda.config(default_float="float32"):
        assert disagreements() == set()


def test_a_default_of_float64_depends_on_order_in_one_case_alone():
    """An integer and a weak float are float64 at once; a weak float after a float32 is one too."""
    integers = [d for d in ALL if d.is_integer]
    narrow = (ruda.float16, ruda.bfloat16, ruda.float32, ruda.complex64)
    with ruda.config(default_float="float64"):
        found = disagreements()
    for weak in (dtypes.weak_float, dtypes.weak_complex):
        assert {frozenset({i, weak, d}) for i in integers for d in narrow} <= found
        found -= {frozenset({i, weak, d}) for i in integers for d in narrow}
    assert found == set()
