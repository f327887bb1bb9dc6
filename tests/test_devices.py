"""What devices say of themselves is what kernels meet; names that are not there are explained."""

import os
import subprocess
import sys

import numpy as np
import pytest

import ruda
from ruda import backends
from ruda.dtypes import as_dtype
from ruda.errors import DeviceNotFoundError, KernelError
from ruda.jit import support


@pytest.mark.parametrize("dtype", support.DTYPES)
def test_a_device_computes_what_it_says(device, dtype):
    says = backends.find(device).dtypes.get(dtype)
    x = np.array([3, 2, 1, 1]).astype(as_dtype(dtype).numpy)
    expected = x.copy()
    expected[0] = 1 if dtype == "bool" else 6
    with ruda.config(device=device):
        if says in ("fast", "computes"):
            support.computes[1, 1](x)
            assert np.array_equal(x, expected)
        elif says == "stores":
            support.stores[1, 1](x)
            assert x[1] == x[0]
        else:
            with pytest.raises(KernelError):
                support.stores[1, 1](x)


@pytest.mark.parametrize("feature", support.FEATURES)
def test_features_are_there_or_refused(device, feature, capfd):
    kernel, backend = support.FEATURES[feature], backends.get(device)
    there = support.accepts(kernel, "float32", backend, backend.target(device))
    x = np.ones(64, np.float32)
    with ruda.config(device=device):
        if there:
            kernel[1, 1 if feature == "print and assert" else 64](x)
        else:
            with pytest.raises(KernelError):
                kernel[1, 64](x)


def test_properties(device):
    info = backends.find(device)
    assert info.kind in ("hardware", "software", "emulation", "interpreter")
    assert info.memory is None or info.memory > 1 << 20
    assert info.limits["max_threads"] >= 32
    assert all(n > 0 for n in info.subgroup_sizes)
    assert set(info.dtypes.values()) <= {"fast", "computes", "stores"}
    assert info.dtypes["float32"] == ("fast" if info.kind == "hardware" else "computes")


def test_the_limit_of_threads_is_true(device):
    most = backends.find(device).limits["max_threads"]

    @ruda.jit
    def count(x):
        ruda.atomic.add(x, 0, 1)

    x = np.zeros(1, np.int32)
    with ruda.config(device=device):
        count[1, most](x)
        assert x[0] == most
        with pytest.raises(ruda.errors.LaunchValueError, match=str(most)):
            count[1, most + 1](x)


def test_an_index_out_of_range_names_what_is_there(device):
    kind = device.partition(":")[0]
    with pytest.raises(DeviceNotFoundError, match=f"no device '{kind}:99'.*there are {kind}"):
        ruda.device(f"{kind}:99")
    with pytest.raises(DeviceNotFoundError, match="no device 99: there are "):
        ruda.device(99)


def test_an_unknown_kind_names_the_kinds():
    with pytest.raises(DeviceNotFoundError, match=r"no device 'cudda'; there are .*cuda.*wgpu"):
        ruda.device("cudda")


def run(code, **environment):
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    return found.stdout + found.stderr


def test_the_environment_chooses():
    code = "import ruda; print(ruda.get_current_device().name)"
    assert run(code, RUDA_DEVICE="sim") == "sim\n"
    assert "no device 'sim:7'" in run(code, RUDA_DEVICE="sim:7")
    # Importing never fails for it: `ruda info` must be able to tell.
    assert run("import ruda; print(1)", RUDA_DEVICE="sim:7") == "1\n"


@pytest.mark.parametrize(
    ("missing", "name", "says"),
    [
        ("cuda.bindings", "cuda", "ruda's CUDA backend needs an NVIDIA driver and the package"),
        ("wgpu", "wgpu", "pip install ruda[wgpu]"),
    ],
)
def test_what_is_missing_is_told(missing, name, says):
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "import ruda\n"
        f"assert not [d for d in ruda.devices() if d.name.startswith({name!r})]\n"
        f"assert not ruda.is_available({name!r})\n"
        f"try: ruda.device({name!r})\n"
        "except ruda.errors.DeviceNotFoundError as error: print(error)\n"
    )
    assert says in run(code)
