"""The WGSL of every kernel of the tables: accepted by Tint, or refused by name.

Text is made for what every browser has, so no adapter is needed; the package `dawn-python` holds
the compiler. Tint checks what naga does not: that barriers stand in uniform control flow.
"""

import importlib.util
import linecache
import re

import numpy as np
import pytest

import ruda
from ruda.backends.wgpu.adapter import PORTABLE
from ruda.backends.wgpu.modules import Module
from ruda.errors import UnsupportedError
from ruda.jit.kernel import as_dimensions
from tests.jit.case import InOut, Out
from tests.jit.test_kernels import MODULES

CASES = [
    pytest.param(case, id=f"{module.__name__.rpartition('.')[2]}-{case}")
    for module in MODULES
    for case in module.CASES
]
REFUSALS = ("is not on the adapter", "which the adapter")
has_tint = importlib.util.find_spec("pydawn") is not None


def text_of(case, rng):
    n = max(case.sizes)
    row = [
        a.view(a.make()) if isinstance(a, InOut) else a.make() if isinstance(a, Out) else a
        for a in case.arguments(rng, n)
    ]
    _, block, _ = case.extents(n)
    kernel = case.kernel
    types = kernel.argument_types(kernel.bind(tuple(row), {}))
    shape = as_dimensions(block, "block", "test")
    function, _ = kernel.translate(types, block=shape, needs_block=lambda f: True)
    return Module(function, PORTABLE, "").plain().text


@pytest.mark.parametrize("case", CASES)
def test_text_is_accepted_by_tint_or_refused_by_name(case, rng):
    """What is refused is tried again with 64-bit integers made of words."""
    try:
        text = text_of(case, rng)
    except UnsupportedError as error:
        assert any(r in str(error) for r in REFUSALS), str(error)
        try:
            with ruda.config(missing="emulate"):
                text = text_of(case, rng)
        except UnsupportedError as again:
            assert (
                "float64" in str(again)
                or "complex128" in str(again)
                or "64-bit atomics" in (str(again))
            ), str(again)
            return
    assert "@compute @workgroup_size" in text
    if has_tint:
        validate(text)


def validate(text):
    from pydawn import utils, webgpu

    device = tint()
    module = utils.create_shader_module(device, text)
    wanted = {"module": module, "entry_point": "main"}
    assert utils.create_compute_pipeline(device, None, wanted)
    assert webgpu


_tint = []


def tint():
    """A device of Tint's own runtime: pipelines are made on it, nothing runs."""
    if not _tint:
        from pydawn import utils, webgpu

        adapter = utils.request_adapter_sync(webgpu.WGPUPowerPreference_HighPerformance)
        _tint.append(utils.request_device_sync(adapter, []))
    return _tint[0]


def text_for(kernel, *arguments, **target):
    types = kernel.argument_types(kernel.bind(arguments, {}))
    shape = as_dimensions(64, "block", "test")
    function, _ = kernel.translate(types, block=shape, needs_block=lambda f: True)
    return Module(function, {**PORTABLE, "dialect": "naga", **target}, "").plain().text


def horner(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = 1.0 + x[i] * (2.0 - x[i] * (x[i] * (x[i] * 4.0 - 3.0) + x[i]))


@pytest.mark.parametrize(
    ("contract", "exact", "count"), [(True, "fma_f32", 4), (False, "fma_f32", 0), (True, "", 0)]
)
def test_product_and_sum_are_one_operation_where_adapter_and_user_let_them(contract, exact, count):
    x = ruda.to_device([1.0, 2.0])
    text = text_for(ruda.jit(contract=contract)(horner), x, x, exact=exact)
    assert text.count(" = bitcast<u32>(fma(") == (count > 0) and text.count("fma(") == count


def test_long_chains_of_products_and_sums_are_translated_once():
    source = "1.0"
    for _ in range(40):
        source = f"({source} * x[0] + x[1])"
    text = f"def chain(x, out):\n    out[0] = {source}\n"
    linecache.cache["<chain>"] = len(text), None, text.splitlines(True), "<chain>"
    made = {}
    exec(compile(text, "<chain>", "exec"), made)
    x = ruda.to_device([1.0, 2.0])
    chain = ruda.jit(made["chain"])
    assert text_for(chain, x, x, exact="fma_f32").count("fma(") == 40


def reads_alike(x, out):
    s = ruda.shared.array(64, ruda.float32)
    t = ruda.threadIdx.x
    s[t] = x[t]
    ruda.syncthreads()
    out[t] = s[t] * s[63 - t] + s[63 - t]  # read once
    s[t] = s[63 - t]  # and here
    out[t] += s[63 - t]  # again, since `s` was written


def test_elements_of_shared_arrays_are_read_once_until_something_is_written():
    x = ruda.to_device([1.0, 2.0])
    text = text_for(ruda.jit(reads_alike), x, x)
    assert text.count("v_s[((63i - v_t))]") == 2


def divides_and_chooses(x, out):
    i = ruda.grid(1)
    a, b = x[i], x[i + 1]
    larger = a > b
    out[i] = a if i > 3 else b / a
    out[i + 1] = np.where(larger, a, b)


def test_what_a_driver_would_simplify_is_hidden():
    """x / x is one only of some x, and a choice by a comparison no maximum where NaN is."""
    x = ruda.to_device([1.0, 2.0])
    text = text_for(ruda.jit(divides_and_chooses), x, x, exact="div_f32")
    assert re.search(r"\(v_\w+ / opaque_f32\(v_\w+\)\)", text)
    assert re.search(r"select\(v_\w+, opaque_f32\(v_\w+\), v_larger\)", text)
