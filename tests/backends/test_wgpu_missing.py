"""`ruda.config(missing=...)`: what becomes of a kernel that its device cannot run.

The dialect of browsers has neither float64 nor 64-bit integers, so an adapter that has them shows
what happens on one that has not.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

import ruda
from ruda import backends
from ruda.backends.base import Launch
from ruda.errors import LaunchWarning, UnsupportedError
from ruda.jit import verify
from ruda.jit.kernel import flatten_arguments
from ruda.jit.passes.demote import demote
from tests.backends.test_wgpu import fenced, on_wgpu
from tests.jit.case import InOut, answers, check, run
from tests.jit.test_kernels import MODULES


def under(policy):
    return ruda.config(device="wgpu", wgpu_dialect="tint", missing=policy)


@ruda.jit
def scale(x, factor, out):
    i = ruda.grid(1)
    if i < x.size:
        out[i] = x[i] * factor + 1


@ruda.jit
def move(x, out):
    i = ruda.grid(1)
    if i < x.size:
        out[i] = x[i]


@ruda.jit
def through_a_variable(x, out):
    i = ruda.grid(1)
    if i < x.size:
        t = x[i]
        out[i] = t


# ---- the policy is named -------------------------------------------------------------------------


@on_wgpu
@pytest.mark.parametrize(
    ("dtype", "policy"),
    [("float64", "demote"), ("complex128", "demote"), ("int64", "emulate"), ("uint64", "emulate")],
)
def test_the_default_refuses_and_names_the_policies_that_allow_it(dtype, policy):
    x = np.ones(3, dtype)
    with under("error"), pytest.raises(UnsupportedError, match=dtype) as caught:
        through_a_variable[1, 32](x, x)
    notes = "\n".join(caught.value.__notes__)
    assert f"missing='{policy}'" in notes and "missing='cpu'" in notes
    for allowed in (policy, "demote"):
        with under(allowed):
            out = np.zeros(3, dtype)
            through_a_variable[1, 32](x, out)
            assert (out == x).all()


PACKED = np.dtype([("small", "u1"), ("number", "<i4")])


@ruda.jit
def counts_in_packed_records(x):
    i = ruda.grid(1)
    if i < x.size:
        ruda.atomic.add(x["number"], i, 1)


@on_wgpu
def test_the_cpu_is_not_named_where_it_refuses_too():
    with under("error"), pytest.raises(UnsupportedError, match="unaligned") as caught:
        counts_in_packed_records[1, 4](np.zeros(4, PACKED))
    assert not any("missing='cpu'" in n for n in getattr(caught.value, "__notes__", []))
    with under("cpu"), pytest.raises(UnsupportedError, match="aligned elements"):
        counts_in_packed_records[1, 4](np.zeros(4, PACKED))


@on_wgpu
def test_words_do_not_make_floats():
    with under("emulate"), pytest.raises(UnsupportedError, match="float64") as caught:
        scale[1, 32](np.ones(3), 2.0, np.ones(3))
    assert "missing='demote'" in "\n".join(caught.value.__notes__)


@on_wgpu
def test_the_environment_sets_the_policy():
    code = (
        "import numpy as np, ruda\n"
        "from tests.backends.test_wgpu import saxpy\n"
        "x = np.ones(3)\n"
        "saxpy[1, 32](2.0, x, x, x)\n"
        "print(x.tolist())\n"
    )
    settings = {"RUDA_DEVICE": "wgpu", "RUDA_WGPU_DIALECT": "tint", "RUDA_MISSING": "demote"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120,
        env={**os.environ, **settings},
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("[3.0, 3.0, 3.0]\n", 0), done.stderr


@on_wgpu
def test_a_policy_belongs_to_its_launches():
    x, out = np.full(3, 1 / 3), np.zeros(3)
    exact = x * 3.0 + 1
    for _ in range(2):
        with under("demote"):
            scale[1, 32](x, 3.0, out)
        assert (out == (x.astype(np.float32) * np.float32(3) + np.float32(1))).all()
        with under("error"), pytest.raises(UnsupportedError):
            scale[1, 32](x, 3.0, out)
        with ruda.config(device="wgpu"):
            scale[1, 32](x, 3.0, out)  # the adapter's own float64
        assert (out == exact).all()


# ---- demote --------------------------------------------------------------------------------------


def doubles(rng):
    """Random bits, and what lies around the edges of float32."""
    edges = [0.0, 1.0, 1 / 3, 2.0**-126, 2.0**-149, 2.0**-150, np.nextafter(2.0**-150, 1), 5e-324,
             3.4028234663852886e38, 3.4028235677973366e38, 3.40282357e38, 2.0**128, 1e308, np.inf,
             np.nan, 1 + 2.0**-24, 1 + 3 * 2.0**-24, np.nextafter(1 + 2.0**-24, 2), 2.0**-149 * 1.5,
             2.0**-149 * 2.5, 2.0**-126 * (1 - 2.0**-25), 3.4028234e38]  # fmt: skip
    random = rng.integers(0, 2**64, 3000, np.uint64).view(np.float64)
    near = np.ldexp(rng.uniform(1, 2, 3000), rng.integers(-152, 130, 3000))
    with np.errstate(all="ignore"):
        halves = rng.integers(0, 2**32, 500, np.uint32).view(np.float32).astype(np.float64) * 1.5
    values = np.concatenate([np.array(edges), random, near, halves])
    return np.concatenate([values, -values])


def same_bits(found, expected):
    kind = f"u{expected.itemsize}"
    nan = np.isnan(expected)
    assert (np.isnan(found) == nan).all()
    wrong = np.flatnonzero((found.view(kind) != expected.view(kind)) & ~nan)
    assert not wrong.size, (found[wrong[:5]], expected[wrong[:5]])


@on_wgpu
def test_float64_is_rounded_and_widened_as_numpy_does(rng):
    x = doubles(rng)
    with np.errstate(all="ignore"):
        narrow = x.astype(np.float32)
    out = np.zeros(x.size, np.float32)
    back = np.zeros(x.size)
    with under("demote"):
        through_a_variable[-(-x.size // 64), 64](x, out)
        through_a_variable[-(-x.size // 64), 64](narrow, back)
    same_bits(out, narrow)
    same_bits(back, narrow.astype(np.float64))


@on_wgpu
def test_what_is_only_moved_keeps_its_bits(rng):
    x = doubles(rng)
    z = np.zeros(x.size)
    with under("demote"):
        move[-(-x.size // 64), 64](x, z)
    assert (z.view("u8") == x.view("u8")).all()


RECORD = np.dtype([("a", "u1"), ("x", "f8"), ("z", "c16")])


@ruda.jit
def of_every_place(records, strided, shared_out, z):
    i, t = ruda.grid(1), ruda.threadIdx.x
    tile = ruda.shared.array(32, ruda.float64)
    mine = ruda.local.array(2, ruda.float64)
    words = ruda.shared.array(0, ruda.float64)
    tile[t] = strided[i] * 2
    words[t] = strided[i] * 4
    ruda.syncthreads()
    mine[0] = tile[31 - t]
    mine[1] = records[i].x
    shared_out[i] = mine[0] + mine[1] + words[31 - t]
    records[i].x = mine[1] / 3
    records[i].z = records[i].z * 2j
    z[i] = z[i].real + z[i] * 1j


@on_wgpu
def test_memory_of_every_kind_is_demoted(rng):
    f4 = np.float32
    records = np.zeros(32, RECORD)
    records["x"], records["a"] = rng.standard_normal(32), 7
    records["z"] = rng.standard_normal(32) + 1j
    strided = rng.standard_normal(64)[::2]
    z = (rng.standard_normal(32) + 1j * rng.standard_normal(32)).astype(np.complex64)
    z = z.astype(np.complex128)
    before, out, z0 = records.copy(), np.zeros(32), z.copy()
    with under("demote"):
        of_every_place[1, 32, 0, 256](records, strided, out, z)
    x, s = before["x"].astype(f4), strided.astype(f4)
    expected = (s * f4(2))[::-1] + x + (s * f4(4))[::-1]
    np.testing.assert_allclose(out, expected, rtol=3e-7, atol=3e-7)
    assert (records["x"] == x / f4(3)).all() and (records["a"] == 7).all()
    np.testing.assert_array_equal(records["z"], before["z"].astype(np.complex64) * f4(2) * 1j)
    np.testing.assert_allclose(z, z0.real + z0 * 1j, rtol=3e-7)
    assert (out == out.astype(f4)).all()


@on_wgpu
def test_numbers_too_large_for_float32_are_infinite():
    out = np.zeros(1)
    with under("demote"):
        scale[1, 32](np.ones(1), np.float64(1e300), out)
        assert out[0] == np.inf
        scale[1, 32](np.full(1, 1e300), -2.0, out)
        assert out[0] == -np.inf


@ruda.jit
def sums(x, total):
    ruda.atomic.add(total, 0, x[ruda.grid(1)])


@on_wgpu
def test_atomics_on_float64_stay_refused():
    with under("demote"), pytest.raises(UnsupportedError, match=r"atomics on float64"):
        sums[1, 4](np.ones(4), np.zeros(1))


@ruda.jit
def tells(x):
    print("x is", x[0])


@on_wgpu
def test_prints_show_what_was_computed(capsys):
    with under("demote"):
        tells[1, 1](np.full(1, 1 / 3))
    assert capsys.readouterr().out == "x is 0.33333334\n"


def has_doubles(row):
    return any(str(getattr(a, "dtype", None)) in ("float64", "complex128") for a in row)


def demoted_cases():
    """The kernels of the tables that take float64."""
    for module in MODULES:
        for case in module.CASES:
            n = max((s for s in case.sizes if s <= 64), default=None)
            if n is not None and not case.config:
                row = case.arguments(np.random.default_rng(n), n)
                if has_doubles([a.data if isinstance(a, InOut) else a for a in row]):
                    yield case, n


def interpret_demoted(case, row, n):
    """What the demoted kernel leaves in its arrays, by the interpreter; None if it is refused."""
    grid, block, shared = case.extents(n)
    backend, launch = backends.get("sim"), case.kernel[grid, block].launch

    def demoted(arguments):
        types = case.kernel.argument_types(arguments)
        function, _ = case.kernel.translate(types, block=launch.block)
        function = demote(function)
        verify.verify(function)
        module = backend.load(backend.compile(backend.emit(function, {}), {}), function, "sim")
        shape = Launch(launch.grid, launch.block, shared or 0)
        backend.launcher(module, shape, None)(*flatten_arguments(arguments, types))

    try:
        return run(row, demoted)
    except UnsupportedError:
        return None


def test_demoted_kernels_are_right_ir():
    """Those of the tables pass verification, and most do not depend on the digits of float64."""
    near = far = 0
    for case, n in demoted_cases():
        row = case.arguments(np.random.default_rng(n), n)
        got = interpret_demoted(case, row, n)
        if got is None:
            continue
        try:
            check(case, got, answers(case, row), 2**29 * max(case.ulps, 4))
            near += 1
        except AssertionError:
            far += 1
    assert near > 2 * far and near > 30, (near, far)


EXACT = ("float_operators_float64", "signs_float64", "casts_by_name_float64", "rounding_errors",
         "stores_convert_float64")  # fmt: skip


@on_wgpu
@pytest.mark.parametrize("name", EXACT)
def test_demoted_kernels_run_as_the_interpreter_says(name):
    found = [(case, n) for case, n in demoted_cases() if str(case) == name]
    assert found
    for case, n in found:
        grid, block, _ = case.extents(n)
        row = case.arguments(np.random.default_rng(n), n)

        def launch(arguments, case=case, shape=(grid, block)):
            with under("demote"):
                case.kernel[shape](*arguments)

        for got, expected in zip(run(row, launch), interpret_demoted(case, row, n), strict=True):
            np.testing.assert_array_equal(got, expected)


# ---- cpu -----------------------------------------------------------------------------------------


@ruda.jit
def mixed(x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        y[i] = x[i] * 2
        out[i] = y[i] + x[i]


@ruda.jit
def fresh(x):
    i = ruda.grid(1)
    if i < x.size:
        x[i] = x[i] / 3


@on_wgpu
def test_the_cpu_runs_what_the_device_cannot_and_says_so_once():
    x = np.arange(4.0)
    with under("cpu"):
        with pytest.warns(LaunchWarning, match=r"`fresh` runs on the CPU, not on wgpu:0: float64"):
            fresh[1, 32](x)
        assert (x == np.arange(4.0) / 3).all()
        d = ruda.to_device(np.arange(4.0))
        for _ in range(2):
            fresh[1, 32](d)  # the same kernel: nothing more is said
        assert d.device == "wgpu:0" and (d.copy_to_host() == np.arange(4.0) / 3 / 3).all()


@on_wgpu
@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
def test_views_and_aliases_come_back_from_the_cpu():
    data = np.arange(20.0)
    d = ruda.to_device(data)
    with under("cpu"):
        mixed[1, 32](d[::2][:5], d[10:][:5], d[15:][::-1])  # parts of one memory
        expected = data.copy()
        expected[10:15] = data[:10:2] * 2
        expected[15:] = (expected[10:15] + data[:10:2])[::-1]
        assert d.copy_to_host().tolist() == expected.tolist()
        mixed[1, 32](d[:0], d[:0], d[:0])
        read, out = ruda.to_device(data), ruda.to_device(np.zeros(20))
        scale[1, 32](read, 2.0, out)
        assert read.copy_to_host().tolist() == data.tolist()
        assert out.copy_to_host().tolist() == (data * 2 + 1).tolist()


@on_wgpu
@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
def test_other_refusals_go_to_the_cpu_too():
    with ruda.config(device="wgpu", missing="error"):
        x = ruda.to_device(np.zeros(2, np.float32))
        with pytest.raises(UnsupportedError) as caught:
            fenced[1, 1](x)
    assert "missing='cpu'" in "\n".join(caught.value.__notes__)
    with ruda.config(device="wgpu", missing="cpu"):
        fenced[1, 1](x)
        with ruda.capture() as graph:
            fenced[1, 1](x)
        x.copy_to_device(np.zeros(2, np.float32))
        graph.replay()
    assert x.copy_to_host().tolist() == [1, 2]


@on_wgpu
@pytest.mark.filterwarnings("ignore:.*runs on the CPU")
@pytest.mark.parametrize("policy", ["demote", "cpu"])
def test_tensors_follow_the_policy(policy):
    data = np.linspace(-2, 2, 100)
    kind = np.float64 if policy == "cpu" else np.float32
    with under(policy):
        x = ruda.asarray(data, device="wgpu")
        y = ruda.sqrt(x * x + 1.0)
        assert y.dtype == ruda.float64 and y.device.startswith("wgpu")
        expected = np.sqrt(data.astype(kind) ** 2 + 1)
        np.testing.assert_allclose(np.asarray(y), expected, rtol=3 * np.finfo(kind).eps)
        total = float(ruda.sum(y))
        np.testing.assert_allclose(total, expected.sum(), rtol=50 * np.finfo(kind).eps)


# ---- explain -------------------------------------------------------------------------------------


@on_wgpu
def test_explain_says_what_becomes_of_it():
    types = "f64[:]", "f64", "f64[:]"

    def notes(policy, *types):
        with under(policy):
            found = ruda.explain(scale, *types, target="wgpu")
        assert not found.lacks or f"(missing={policy!r})" in repr(found)
        return [note.text for note in found.lacks]

    (refused,) = notes("error", *types)
    assert "float64 is not on" in refused and refused.endswith("refused")
    (moved,) = notes("cpu", *types)
    assert moved.endswith("it runs on the CPU")
    (line,) = notes("demote", *types)
    assert "float64 mul in float32" in line and "float64 add in float32" in line
    (line,) = notes("emulate", "i64[:]", "i64", "i64[:]")
    assert "int64 mul in 32-bit words" in line
    assert notes("error", "f32[:]", "f32", "f32[:]") == []
