"""The WGSL of every kernel of the tables: accepted by Tint, or refused by name.

Text is made for what every browser has, so no adapter is needed; the package `dawn-python` holds
the compiler. Tint checks what naga does not: that barriers stand in uniform control flow.
"""

import importlib.util

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
