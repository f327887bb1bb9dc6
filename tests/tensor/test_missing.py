"""Devices that lack dtypes: what they say, their defaults, and the policies."""

import contextlib

import numpy as np
import pytest

import ruda
from ruda import backends
from ruda.errors import DeviceError

NARROW = ("wgpu", "ascend-twin:910b")


@pytest.fixture(params=NARROW)
def narrow(request, monkeypatch):
    """WebGPU with what every browser has, and a chip without float64."""
    if not backends.get(request.param).devices():
        pytest.skip(f"no {request.param} here")
    with ruda.config(wgpu_dialect="tint"):
        yield request.param


def test_the_namespace_says_what_a_device_computes_in(narrow, device):
    info = ruda.__array_namespace_info__()
    assert "float64" not in info.dtypes(device=narrow)
    assert "float64" in info.dtypes(device="cpu", kind="real floating")
    assert set(info.dtypes(device=device)) <= {d.name for d in ruda.dtypes.ALL}
    default = info.default_dtypes(device=narrow)
    assert default["real floating"] == ruda.float32
    assert default["integral"].name == ("int32" if narrow == "wgpu" else "int64")
    assert all(d.name in info.dtypes(device=narrow) for d in default.values())
    with ruda.config(default_float="float64"):
        assert info.default_dtypes(device=narrow)["real floating"] == ruda.float32
        assert info.default_dtypes(device="cpu")["real floating"] == ruda.float64


def test_integers_are_of_the_devices_default(narrow):
    wanted = ruda.__array_namespace_info__().default_dtypes(device=narrow)["integral"]
    made = [
        ruda.asarray([1, 2], device=narrow), ruda.arange(1, 3, device=narrow),
        ruda.full(2, 7, device=narrow), ruda.asarray(3, device=narrow),
    ]  # fmt: skip
    for x in made:
        assert x.dtype == wanted and (x + 1).dtype == wanted
        assert ((x + 1) - 1).tolist() == x.tolist()


def test_sums_and_indices_are_of_the_devices_default():
    with ruda.config(wgpu_dialect="tint"):
        x = ruda.asarray([[3, 4], [1, 9]], dtype="int32", device="wgpu")
        for found, wanted in (
            (ruda.sum(x), 17), (ruda.prod(x, axis=0), [3, 36]), (ruda.count_nonzero(x), 4),
            (ruda.sum(x > 2), 3), (ruda.argmax(x), 3), (ruda.argsort(x, axis=1), [[0, 1], [0, 1]]),
            (ruda.nonzero(x > 3)[1], [1, 1]),
        ):  # fmt: skip
            assert found.dtype == ruda.int32 and found.tolist() == wanted
        assert ruda.sum(ruda.astype(x, "uint8")).dtype == ruda.uint32


def test_a_dtype_that_a_device_lacks_is_an_error_by_default(narrow):
    x = ruda.asarray([0.1, 2.0], dtype="float64", device=narrow)
    with pytest.raises(DeviceError, match=r"`multiply` on .*float64"):
        (x * 3).numpy()
    with ruda.config(fusion="0"):  # copies alone are no arithmetic where the words do
        for call in (lambda: ruda.concat([x, x])[::-1].tolist(), lambda: ruda.flip(x).tolist()):
            with contextlib.suppress(DeviceError):
                assert set(call()) == {0.1, 2.0}
        y = ruda.asarray(np.ones((4, 3)), device=narrow)
        with contextlib.suppress(DeviceError):
            y[1] = y[2]
    with ruda.config(wgpu_dialect="tint"), pytest.raises(OverflowError, match="int32, the default"):
        ruda.asarray([2**40], device="wgpu")


@pytest.mark.parametrize(
    ("policy", "dtype", "accuracy"),
    [("emulate", "int64", 0), ("demote", "float64", 1e-6), ("demote", "int64", 0)],
)
def test_policies_of_webgpu(policy, dtype, accuracy):
    a = np.array([3, 2**33 + 1] if dtype == "int64" else [0.1, 2.0], dtype)
    with ruda.config(wgpu_dialect="tint", missing=policy):
        found = (ruda.asarray(a, device="wgpu") * 3 + 1).numpy()
        assert dtype in ruda.__array_namespace_info__().dtypes(device="wgpu")
    assert found.dtype == a.dtype
    np.testing.assert_allclose(found, a * 3 + 1, rtol=accuracy)


def test_the_policy_that_computes_on_the_cpu(narrow):
    a = np.array([0.1, 2.0])
    x = ruda.asarray(a, device=narrow)
    with ruda.config(missing="cpu"), pytest.warns(ruda.errors.LaunchWarning, match="on the CPU"):
        found = ((x * 3) - 1).numpy()
    np.testing.assert_array_equal(found, a * 3 - 1)
