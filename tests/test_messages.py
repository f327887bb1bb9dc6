"""What people meet first: wrong arguments, options and names, reprs, small commands."""

from __future__ import annotations

import datetime
import decimal
import pydoc
import traceback

import numpy as np
import pytest

import ruda
from ruda import cli, settings
from ruda.errors import (
    BarrierError,
    DTypeError,
    KernelError,
    LaunchTypeError,
    OutsideKernelError,
    UnsupportedError,
)
from ruda.jit.tools import suggested_types
from tests.jit.source import define


@ruda.jit
def double(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] * 2


@pytest.mark.parametrize(
    "value, remedy",
    [
        ([1, 2], "pass `np.asarray(x)`"),
        (range(3), "pass `np.asarray(x)`"),
        ({1, 2}, "pass `np.array(sorted(x))`"),
        ({1: 2}, "pass `np.array(list(x.values()))`"),
        (b"ab", "pass `np.frombuffer(x, np.uint8)`"),
        (decimal.Decimal(1), "pass `float(x)`"),
        (datetime.date(2026, 1, 1), "pass `x.toordinal()`"),
        (np.array(["2026-01-01"], "M8[D]"), "pass `x.view(np.int64)`"),
        (np.array([5], "m8[s]"), "pass `x.view(np.int64)`"),
        (np.datetime64("2026-01-01"), "pass `x.view(np.int64)`"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_an_argument_of_another_kind_says_what_to_pass(value, remedy):
    with pytest.raises(LaunchTypeError) as error:
        double[1, 32](value, np.zeros(2))
    assert "`x`: " in str(error.value) and remedy in str(error.value)


# ---- options and signatures of the decorator ---------------------------------------------------


@pytest.mark.parametrize("option", [{"nopython": True}, {"nogil": True}, {"cache": True}])
def test_options_that_say_what_a_kernel_is_are_taken(option):
    kernel = ruda.jit(**option)(double.py_func)
    out = np.zeros(3)
    kernel[1, 32](np.arange(3.0), out)
    assert out.tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    "option, remedy",
    [
        ({"target": "cuda"}, 'ruda.config(device="cuda")'),
        ({"parallel": True}, "parallel over its grid"),
        ({"forceobj": True}, "always compiled"),
        ({"nopython": False}, "always compiled"),
        ({"boundscheck": True}, "`check=True`"),
        ({"error_model": "numpy"}, "`check=True`"),
        ({"locals": {}}, "ruda.float64(0)"),
        ({"fastmaths": True}, "did you mean `fastmath`?"),
        ({"colour": 1}, "there are device, fastmath"),
    ],
    ids=str,
)
def test_other_options_say_what_to_write(option, remedy):
    with pytest.raises(LaunchTypeError, match="has no option") as error:
        ruda.jit(**option)
    assert remedy in str(error.value)
    assert isinstance(error.value, TypeError)


def test_a_function_of_numba_becomes_a_kernel():
    import numba

    out = np.zeros(3)
    ruda.jit(numba.njit(double.py_func))[1, 32](np.arange(3.0), out)
    ruda.jit(fastmath=True)(numba.njit(double.py_func))[1, 32](out, out)
    assert out.tolist() == [0, 4, 8]


def test_a_kernel_is_declared_to_return_nothing():
    with pytest.raises(LaunchTypeError, match=r"write 'void\(float32\[:\]\)'.*`device=True`"):
        ruda.jit("float32(float32[:])")(lambda x: x)

    @ruda.jit("float32(float32)", device=True)
    def half(x):
        return x / 2

    assert "half" in repr(half)


@pytest.mark.parametrize(
    "text, remedy",
    [("flot32", "did you mean 'float32'?"), ("int32*", "an array is written int32[:]")],
)
def test_a_wrong_dtype_is_corrected(text, remedy):
    with pytest.raises(DTypeError) as error:
        ruda.jit(f"void({text})")
    assert remedy in str(error.value)


# ---- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda: ruda.laneid + 1,
        lambda: 2 * ruda.laneid,
        lambda: int(ruda.laneid),
        lambda: ruda.laneid < 3,
        lambda: -ruda.laneid,
        lambda: ruda.threadIdx + 1,
        lambda: ruda.threadIdx.x + 1,
        lambda: range(ruda.laneid),
    ],
)
def test_names_of_kernels_in_the_hosts_arithmetic(use):
    with pytest.raises(OutsideKernelError, match="has a meaning only inside"):
        use()


NAMES = [
    ("x[0] = ruda.libdevice.j0f(x[0])", "SciPy"),
    ("x[0] = ruda.fp16.hadd(x[0], x[0])", "write `a + b`"),
    ("ruda.compile_ptx(x)", "kernel.source(target, *types)"),
    ("ruda.syncthred()", "did you mean `syncthreads`?"),
    ("ruda.atomic.addd(x, 0, 1)", "did you mean `add`?"),
    ("g = ruda.cg.this_grid()\nx[0] = g.size", "write `ruda.gridsize(1)`"),
    ("x[0] = ruda.cg.this_grid().thread_rank()", "write `ruda.grid(1)`"),
    ("x[0] = ruda.cg.this_thread_block().thread_rank()", "write `ruda.threadIdx.x`"),
    ("ruda.cg.this_grid().tiled(4)", "a group has `sync()`"),
]


@pytest.mark.parametrize("body, remedy", NAMES, ids=[n[0] for n in NAMES])
def test_a_name_that_kernels_do_not_have_says_what_to_write(body, remedy):
    assert remedy in refused(body)


def refused(body, parameters="x", arguments=None):
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    kernel = define(f"@ruda.jit\ndef kernel({parameters}):\n{lines}")
    with pytest.raises(KernelError) as error:
        kernel[1, 32](*(arguments or [np.zeros(4, np.float32)]))
    assert error.value.text is not None  # the line
    return "".join(traceback.format_exception_only(error.value))


@pytest.mark.parametrize(
    "body, ndim",
    [("o[:] = a * 2", 1), ("o += a", 1), ("b = a + 1", 1), ("o[:] = -a", 1), ("o[:] = a + o", 2)],
)
def test_expressions_of_whole_arrays_become_expressions_of_elements(body, ndim):
    arrays = [np.zeros((3,) * ndim, np.float32) for _ in range(2)]
    message = refused(body, "a, o", arrays)
    assert (
        f"an expression on the whole of {'float32[:]' if ndim == 1 else 'float32[:, :]'}" in message
    )
    assert f"ruda.grid({ndim})" in message
    assert "run-time size" not in message


@pytest.mark.parametrize(
    "body, remedy",
    [
        ("np.sin(a, o)", "write `o[i] = np.sin(a[i])`"),
        ("np.add(a, 1, o)", "write `o[i] = np.add(a[i], 1)`"),
    ],
)
def test_a_ufunc_with_an_output_says_its_assignment(body, remedy):
    assert remedy in refused(body, "a, o", [np.zeros(3), np.zeros(3)])


def test_a_whole_array_where_a_number_is_wanted():
    assert "take an element of it: `a[i]`" in refused("x[0] = np.sqrt(x)")


def test_the_interpreter_names_a_shuffle_as_it_is_written():
    kernel = define(
        "@ruda.jit\ndef kernel(x):\n"
        "    if ruda.threadIdx.x < 16:\n"
        "        x[0] = ruda.shfl_down_sync(0xFFFF0000, x[0], 1)\n"
    )
    with pytest.raises(BarrierError, match=r"shfl_down_sync\(\)"), ruda.config(device="sim"):
        kernel[1, 32](np.zeros(1, np.float32))


@pytest.mark.parametrize(
    "use",
    [
        lambda d, a: d + 1,
        lambda d, a: d + a,
        lambda d, a: a + d,
        lambda d, a: a < d,
        lambda d, a: -d,
        lambda d, a: d @ d,
        lambda d, a: abs(d),
    ],
)
def test_arithmetic_of_device_arrays_says_who_computes(use):
    with pytest.raises(TypeError, match="computes on its device"):
        use(ruda.to_device([1.0, 2.0]), np.ones(2, np.float32))


# ---- what objects show -------------------------------------------------------------------------


def test_reprs_are_short_and_say_what_it_is():
    device = ruda.get_current_device()
    assert repr(device) == f"<ruda device cpu: {device.description} (hardware)>"
    assert repr(ruda.event()) == "<ruda.Event of cpu>"
    assert repr(ruda.stream()) == "<ruda.Stream of cpu>"
    assert repr(ruda.to_device([1.0])) == "DeviceArray([1.], dtype=float32, device='cpu')"
    assert repr(double) == "<ruda kernel double(x, out)>"
    assert repr(double[2, 32]) == "<double[(2, 1, 1), (32, 1, 1)]>"


def test_help_shows_the_decorator_and_the_settings():
    text = pydoc.render_doc(ruda.jit, renderer=pydoc.plaintext)
    assert "fastmath" in text.splitlines()[2] and "`check=True`" in text
    text = pydoc.render_doc(ruda.config, renderer=pydoc.plaintext)
    for row in settings.SETTINGS.values():
        assert row.variable in text


LEVELS = ["verification", "launches", "tuning", "source", "IR", "assembly"]


def test_the_levels_of_debug_are_described(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for level, word in enumerate(LEVELS, 1):
        assert f" {level} " in shown[shown.index("RUDA_DEBUG") : shown.index("RUDA_VERIFY")]
        assert word in shown


# ---- commands ----------------------------------------------------------------------------------

FILE = """
import ruda

@ruda.jit
def blur(image, weights, counts, scale):
    height, width = image.shape
    x, y = ruda.grid(2)
    if x < width and y < height:
        image[y, x] = weights[x] * scale
        ruda.atomic.add(counts, (y, x), 1)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "filters.py"
    path.write_text(FILE)
    return str(path)


RIGHT = "f32[:, :], f32[:], f32[:, :], f32"


@pytest.mark.parametrize("types", [[], ["--types", "f32"], ["--types", "f32, f32, f32, f32"]])
def test_compile_suggests_types_that_fit(file, types, capsys):
    assert cli.main(["compile", f"{file}:blur", "--target", "sim", *types]) == 1
    error = capsys.readouterr().err
    assert f'hint: --types "{RIGHT}"' in error
    assert cli.main(["compile", f"{file}:blur", "--target", "wgpu", "--types", RIGHT]) == 0


def test_suggested_types_are_of_the_parameters_asked_for():
    assert suggested_types(double, ["out"]) == '"f32[:]"'


def test_compile_shows_assembly_where_there_is_one(file, capsys):
    arguments = ["compile", f"{file}:blur", "--types", RIGHT, "--assembly"]
    assert cli.main(arguments) == 0
    assert ".cfi_startproc" in capsys.readouterr().out
    assert cli.main([*arguments, "--target", "wgpu"]) == 1
    assert "wgpu has no assembly to show" in capsys.readouterr().err


def test_the_cache_knows_its_kernels(tmp_path, capsys):
    with ruda.config(cache_dir=str(tmp_path)):
        double[1, 32](np.zeros(3, np.int16), np.zeros(3, np.int16))
        assert cli.main(["cache"]) == 0
        assert "test_messages.double" in capsys.readouterr().out
        assert cli.main(["cache", "list", "--kernel", "double"]) == 1
        error = capsys.readouterr().err
        assert error.startswith("ruda: the cache has no kernel double; did you mean ")
        assert "test_messages.double" in error


def test_why_names_the_captured_number_that_changed(tmp_path):
    def make(factor):
        @ruda.jit
        def scaled(x):
            x[0] *= factor

        return scaled

    x = np.ones(1)
    with ruda.config(cache_dir=str(tmp_path), device="cpu"):
        for factor in (2, 3):
            make(factor)[1, 1](x)
        why = ruda.cache.why(make(3))
    assert x[0] == 6
    assert why.endswith("miss: a captured number changed: factor=2 -> factor=3")


def test_the_demo_speaks_as_the_other_commands(capsys):
    assert cli.main(["demo", "no-such-file.jpg"]) == 1
    assert capsys.readouterr().err.startswith("ruda: cannot read no-such-file.jpg")


def test_members_of_groups_are_refused_on_attribute_access_too():
    with pytest.raises(UnsupportedError):
        define("@ruda.jit\ndef kernel(x):\n    x[0] = ruda.cg.this_grid().size\n")[1, 1](np.ones(1))
