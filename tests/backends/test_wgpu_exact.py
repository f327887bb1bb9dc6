"""Division, roots, fused products and conversions on adapters that do them badly, against NumPy.

Software drivers divide well, so what takes the place of a bad division is asked for: by caps that
trust nothing, and by the dialect of browsers, of which nothing is known.
"""

import numpy as np
import pytest

import ruda
from ruda.backends.wgpu import device as wgpu_device
from ruda.backends.wgpu import exact, library, probe
from tests.conftest import DEVICES

pytestmark = pytest.mark.skipif("wgpu" not in DEVICES, reason="RUDA_TEST_DEVICES names no wgpu")
COUNT = 200_000


def kernels():
    """New ones each time: a kernel is translated once for a device."""

    @ruda.jit
    def divides(x, y, z, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = x[i] / y[i]

    @ruda.jit
    def takes_roots(x, y, z, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = ruda.sqrt(x[i])

    @ruda.jit
    def fuses(x, y, z, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = ruda.fma(x[i], y[i], z[i])

    return [
        (divides, lambda x, y, z: x / y),
        (takes_roots, lambda x, y, z: np.sqrt(x)),
        (fuses, probe.fused),
    ]


def numbers(seed):
    """Bits at random, significands at random, quotients and sums that nearly tie; and edges."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**32, (3, COUNT), np.uint64).astype(np.uint32).view(np.float32)
    near = (1 + rng.random((3, COUNT))).astype(np.float32)
    whole = rng.integers(1, 2**24, (3, COUNT)).astype(np.float32)
    tiny = rng.integers(0, 2**26, (3, COUNT)).astype(np.uint32).view(np.float32)
    x, y, z = np.choose(rng.integers(0, 4, (3, COUNT)), [bits, near, whole, tiny])
    with np.errstate(all="ignore"):
        x[::5] = y[::5] * np.round(x[::5])  # quotients of few bits
        x[1::5] = y[1::5] * y[1::5]  # roots of few bits
        z[2::5] = -(x[2::5] * y[2::5])  # sums that cancel
    for k, column in enumerate(probe.singles()):
        (x, y, z)[k][: column.size] = column
    return x, y, z


def distrust(monkeypatch, **traits):
    caps = {**wgpu_device.caps_of(0), "exact": "", **traits}
    monkeypatch.setattr(wgpu_device, "caps_of", lambda number: caps)


@pytest.mark.parametrize("how", ["native", "integers", "browser", "flushing"])
@pytest.mark.parametrize("number", range(3), ids=["division", "root", "fma"])
def test_rounds_as_numpy(how, number, monkeypatch):
    if how == "integers":
        distrust(monkeypatch)
    if how == "flushing":
        distrust(monkeypatch, float32_denormals="flush")
    kernel, reference = kernels()[number]
    x, y, z = numbers(number)
    out = np.empty(COUNT, np.float32)
    with ruda.config(device="wgpu", wgpu_dialect="tint" if how == "browser" else "naga"):
        kernel[-(-COUNT // 64), 64](x, y, z, out)
    flushes = wgpu_device.caps_of(0)["float32_denormals"] == "flush"  # so do GPUs of NVIDIA
    same = np.zeros(COUNT, bool)
    # What is for any browser computes by integers in part: a subnormal number may stay there.
    for change in [probe.flushed] * flushes + [np.asarray] * (not flushes or how == "browser"):
        with np.errstate(all="ignore"):
            expected = change(reference(*map(change, (x, y, z))))
        same |= out.view(np.uint32) == expected.view(np.uint32)
        same |= np.isnan(out) & np.isnan(expected)
    bad = np.flatnonzero(~same)[:5]
    assert not bad.size, [(x[k], y[k], z[k], out[k], expected[k]) for k in bad]


@pytest.mark.parametrize("source", [np.float32, np.float64])
@pytest.mark.parametrize("target", [np.int64, np.uint64])
def test_saturates_into_64_bits(source, target):
    @ruda.jit
    def converts(x, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = x[i]

    info = np.iinfo(target)
    rng = np.random.default_rng(3)
    powers = np.ldexp(1.0, rng.integers(-3, 70, 20_000)) * (1 + rng.random(20_000))
    edges = [0.0, -0.0, 0.5, -0.99, 1, 2.0**63, -(2.0**63), 2.0**64, -(2.0**64), np.inf, -np.inf]
    values = np.concatenate([powers, -powers, edges, [np.nan]]).astype(source)
    near = [np.nextafter(source(2.0**k), source(0)) for k in (24, 32, 53, 63, 64)]
    values = np.concatenate([values, np.array(near, source)])
    out = np.zeros(values.size, target)
    with ruda.config(device="wgpu"):
        converts[-(-values.size // 64), 64](values, out)
    expected = [
        0 if np.isnan(v) else info.max if v > info.max else info.min if v < info.min else int(v)
        for v in values.tolist()
    ]
    np.testing.assert_array_equal(out, np.array(expected, target))


def test_a_driver_that_contracts_is_kept_from_it():
    """`contract=False`: what could become one operation with a sum is hidden from the driver."""
    from ruda.backends.wgpu.adapter import PORTABLE
    from ruda.backends.wgpu.modules import Module

    def text(contract):
        @ruda.jit(contract=contract)
        def axpy(x, y):
            i = ruda.grid(1)
            y[i] = x[i] * x[i] + y[i]

        kind = ruda.float32[::1]
        function, _ = axpy.translate((kind, kind), block=(64, 1, 1), needs_block=lambda f: True)
        return Module(function, PORTABLE, "").plain().text

    assert text(False).count("opaque_f32(") == text(True).count("opaque_f32(") + 1


def test_nothing_is_paid_where_the_adapter_is_exact():
    for name, text in exact.NATIVE.items():
        found = library.definitions(f"{name}(", native=exact.NATIVE)
        assert found == text and "DENORMALS" not in found


def test_the_adapter_tells_what_it_does():
    info = next(d for d in ruda.devices() if d.name == "wgpu:0").properties
    assert info["float32_denormals"] in ("keep", "flush")
    assert set(info["exact"].split()) <= set(exact.NATIVE)


def test_what_was_found_is_kept(monkeypatch, tmp_path):
    adapter = wgpu_device.adapter_of(0)
    with ruda.config(cache_dir=str(tmp_path)):
        found = probe.traits(adapter)
        monkeypatch.setattr(probe, "_probed", None)  # cannot be called again
        assert probe.traits(adapter) == found != probe.UNKNOWN
    with ruda.config(cache_dir=str(tmp_path / "other")):
        assert probe.traits(adapter) == probe.UNKNOWN


def test_flushed_numbers_keep_their_signs():
    info = np.finfo(np.float32)
    x = np.array([1e-40, -1e-40, 0.0, -0.0, info.tiny, -info.tiny, np.nan, np.inf], np.float32)
    found = probe.flushed(x)
    assert np.signbit(found[:6]).tolist() == [False, True] * 3
    np.testing.assert_array_equal(found, [0, 0, 0, 0, info.tiny, -info.tiny, np.nan, np.inf])


def test_the_oracle_is_told_of_flushing(monkeypatch):
    """There, denormals and zeros of their sign are the same answer; everything else is exact."""
    from tests.jit import case as cases

    def right(row):
        return [(row[0] * np.float32(2), np.dtype(np.float32))]

    row = (np.array([1e-40, 1.0, -1e-39], np.float32),)
    one = cases.Case(None, None, None, name="doubles")
    kept, zeros = row[0] * np.float32(2), np.array([0, 2, -0.0], np.float32)
    mixed = np.array([0, 2, kept[2]], np.float32)

    def accepts(got, device="wgpu"):
        try:
            cases.check_device(one, device, [got], row, right, 0)
        except AssertionError:
            return False
        return True

    monkeypatch.setattr(cases, "flushes", lambda device: False)
    assert accepts(kept) and not accepts(zeros) and not accepts(zeros, "cpu")
    monkeypatch.setattr(cases, "flushes", lambda device: device == "wgpu")
    assert accepts(kept) and accepts(zeros) and accepts(mixed) and not accepts(zeros, "cpu")
    assert not accepts(np.array([0, 2, 0], np.float32))  # the sign stays
    assert not accepts(np.array([0, np.nextafter(np.float32(2), 3), -0.0], np.float32))


# ---- identities of real numbers ------------------------------------------------------------------


@ruda.jit(contract=False)
def identities(x, zero, out):
    """What drivers take for zero, or for x: wrong for infinities, NaN, or the sign of zero."""
    i = ruda.grid(1)
    if i < x.size:
        v = x[i]
        same = v
        negative = -v
        none = v - v
        nothing = x.dtype.type(0)
        once, twice = v + 2, v + 2
        out[0, i] = none
        out[1, i] = v - same
        out[2, i] = v - (v - v)
        out[3, i] = v - x[i]
        out[4, i] = v + (-v)
        out[5, i] = -same + v
        out[6, i] = v + negative
        out[7, i] = (v + v) - (v + v)
        out[8, i] = min(v, same) - v
        out[9, i] = abs(v) - abs(same)
        out[10, i] = once - twice
        out[11, i] = v * v - same * same
        out[12, i] = v + x.dtype.type(0)
        out[13, i] = v + nothing
        out[14, i] = x.dtype.type(0) - v
        out[15, i] = v - x.dtype.type(0)
        out[16, i] = v * x.dtype.type(0)
        out[17, i] = v * nothing
        out[18, i] = v / same
        out[19, i] = (v + v) + nothing
        if zero[0] == 0:
            out[20, i] = v + zero[0]
            out[21, i] = v * zero[0]
        out[22, i] = 1 if v - v == 0 else 2
        out[23, i] = 1 if v - same != 0 else 2
        out[24, i] = 1 if v - same >= nothing else 2
        out[25, i] = 89 if v > 89 else v
        out[26, i] = v if v > 0 else x.dtype.type(0)
        out[27, i] = x.dtype.type(0) if v == 0 else v
        out[28, i] = v if v <= x[0] else x[0]
        out[29, i] = -v if v < 0 else v


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nothing_is_cancelled_that_may_be_infinite(dtype):
    if not wgpu_device.caps_of(0)["float64"] and dtype == "float64":
        pytest.skip("the adapter has no float64")
    high = np.finfo(dtype).max
    x = np.array([1, -0.0, 0.0, np.inf, -np.inf, np.nan, high, -2.5], dtype)
    found = {}
    for device in ("wgpu", "sim"):
        found[device] = np.zeros((30, x.size), dtype)
        with ruda.config(device=device):
            identities[1, 8](x, np.zeros(1, dtype), found[device])
    got, want = found["wgpu"], found["sim"]
    alike = (got == want) & (np.signbit(got) == np.signbit(want)) | (got != got) & (want != want)
    wrong = {(int(k), float(x[i])): (float(got[k, i]), float(want[k, i]))
             for k, i in np.argwhere(~alike)}  # fmt: skip
    assert not wrong, wrong
