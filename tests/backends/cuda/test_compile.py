"""CUDA code without a GPU: every kernel of the tables becomes machine code; some of it is read."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import ruda
from ruda.backends.cuda import compile as compiler
from ruda.backends.cuda.device import BACKEND
from ruda.errors import DivergentBarrierError, UnsupportedError
from ruda.jit.kernel import as_dimensions
from ruda.jit.types import parse_type as ruda_type
from tests.jit.case import InOut, Out
from tests.jit.test_kernels import MODULES

TARGET = {"architecture": "90a"}
CASES = [
    pytest.param(case, id=f"{module.__name__.rpartition('.')[2]}-{case}")
    for module in MODULES
    for case in module.CASES
]


@pytest.fixture(autouse=True)
def _nothing_on_path(monkeypatch):
    """Compilers come from libraries, never from programs."""
    monkeypatch.setenv("PATH", "")


def source_of(kernel, types, block=(256, 1, 1)):
    function, _ = kernel.translate(types, block=block)
    return BACKEND.emit(function, TARGET)


@pytest.mark.parametrize("case", CASES)
def test_kernels_of_the_tables_compile(case, rng):
    n = case.sizes[-1]
    row = [a.make() if isinstance(a, (Out, InOut)) else a for a in case.arguments(rng, n)]
    row = [
        given.view(made) if isinstance(given, InOut) else made
        for given, made in zip(case.arguments(rng, n), row, strict=True)
    ]
    block = as_dimensions(case.extents(n)[1], "block", str(case))
    with ruda.config(**case.config):
        source = source_of(case.kernel, case.kernel.argument_types(row), block)
    binary = BACKEND.compile(source, TARGET)
    assert binary.payload[:4] == b"\x7fELF"
    assert binary.metadata["attributes"]["spill_stores"] == 0


def compiled(kernel, *types, **options):
    """PTX and attributes of a kernel."""
    with ruda.config(**options):
        source = source_of(kernel, tuple(map(ruda_type, types)))
    text = compiler.source_ptx(source, TARGET)
    _, log = compiler.cubin(text, "90a")
    return text, compiler.attributes(log)


@ruda.jit
def saxpy(a, x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


F32 = "f32[::1]"


def test_saxpy_is_what_one_would_write():
    text, attributes = compiled(saxpy, "f32", F32, F32, F32)
    assert ".target sm_90a" in text
    assert text.count("ld.global.v4.f32") == 2 and text.count("st.global.v4.f32") == 1
    assert text.count("ld.global.f32") == 2 and text.count("st.global.f32") == 1  # what is left
    assert text.count("fma.rn.f32") == 5
    assert ".f64" not in text
    # Three pointers, one extent, one number, and the threads of the launch.
    assert len(re.findall(r"\.param \.", text)) == 6
    assert attributes == {"registers": attributes["registers"], "stack": 0, "spill_stores": 0,
                          "spill_loads": 0}  # fmt: skip
    assert attributes["registers"] <= 24


@pytest.mark.parametrize(
    ("dtype", "instruction"),
    [("f64", "v2.f64"), ("f32", "v4.f32"), ("i32", "v4.u32"), ("u64", "v2.u64"), ("f16", "v4.u32"),
     ("bf16", "v4.u32"), ("i16", "v4.u32"), ("u8", "v2.u32"), ("bool", "v2.u32")],
)  # fmt: skip
def test_accesses_are_wide(dtype, instruction):
    """16 bytes a thread, 8 of the smallest dtypes; also in grid-stride loops and matrices."""

    @ruda.jit
    def once(x, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = not x[i]

    @ruda.jit
    def strided(x, out):
        for i in range(ruda.grid(1), out.size, ruda.gridsize(1)):
            out[i] = not x[i]

    @ruda.jit
    def matrix(x, out):
        i, j = ruda.grid(2)
        if i < out.shape[1] and j < out.shape[0]:
            out[j, i] = not x[j, i]

    for kernel, kind in ((once, "[::1]"), (strided, "[::1]"), (matrix, "[:,::1]")):
        text, attributes = compiled(kernel, dtype + kind, dtype + kind)
        assert f"ld.global.{instruction}" in text and f"st.global.{instruction}" in text
        assert attributes["registers"] <= 40


def test_machine_code_has_wide_accesses():
    function, _ = saxpy.translate(tuple(map(ruda_type, ("f32", F32, F32, F32))))
    code = BACKEND.assembly(BACKEND.emit(function, TARGET), TARGET)
    if compiler.disassembler() is None:
        assert "ld.global.v4" in code  # PTX alone
    else:
        assert code.count("LDG.E.128") == 2 and code.count("STG.E.128") == 1


def test_fma_only_where_allowed():
    text, _ = compiled(saxpy, "f32", F32, F32, F32, deterministic=True)
    assert "fma" not in text and "mul.rn.f32" in text and "add.rn.f32" in text


def test_fastmath_chooses_approximations():
    @ruda.jit(fastmath=True)
    def fast(x):
        x[0] = math.sin(x[0]) / x[1]

    text, _ = compiled(fast, F32)
    assert "sin.approx" in text and ("div.approx" in text or "div.full" in text)

    @ruda.jit
    def precise(x):
        x[0] = x[0] / x[1]

    assert "div.rn.f32" in compiled(precise, F32)[0]


def test_local_array_of_constant_indices_lives_in_registers():
    @ruda.jit
    def rows(x, out):
        i = ruda.grid(1)
        kept = ruda.local.array(8, ruda.float32)
        for k in range(8):
            kept[k] = x[i * 8 + k]
        total = 0.0
        for k in range(8):
            total += kept[k] * kept[7 - k]
        out[i] = total

    text, attributes = compiled(rows, F32, F32)
    assert attributes["stack"] == 0 and "ld.local" not in text


def test_shared_and_dynamic_memory():
    @ruda.jit
    def tiles(x):
        fixed = ruda.shared.array(100, ruda.float32)
        moving = ruda.shared.array(0, ruda.int32)
        t = ruda.threadIdx.x
        fixed[t] = x[t]
        moving[t] = t
        ruda.syncthreads()
        x[t] = fixed[moving[t + 1]]

    text, _ = compiled(tiles, F32)
    assert re.search(r"\.shared \.align 16 \.b8 \S+\[400\]", text)
    assert re.search(r"\.extern \.shared \.align 16 \.b8 ruda_dynamic_shared\[\]", text)
    assert "st.shared.f32" in text and "bar.sync" in text


def test_barrier_of_warps_that_come_apart():
    """The aligned instruction would count lanes that have not returned yet."""

    @ruda.jit
    def returning(x):
        tile = ruda.shared.array(64, ruda.float32)
        t = ruda.threadIdx.x
        if x[t] > 0:
            return
        tile[t] = x[t]
        ruda.syncthreads()
        x[t] = tile[63 - t]

    @ruda.jit
    def breaking(x):
        t = ruda.threadIdx.x
        for k in range(10):
            if x[t] > k:
                break
            ruda.syncthreads()

    for kernel in (returning, breaking):
        text, _ = compiled(kernel, F32)
        assert "barrier.sync" in text and "bar.sync" not in text


def test_divergent_barrier_is_refused():
    @ruda.jit
    def divergent(x):
        if ruda.threadIdx.x < 3:
            ruda.syncthreads()
        x[0] = 1

    with pytest.raises(DivergentBarrierError):
        compiled(divergent, F32)


@pytest.mark.parametrize(
    ("dtype", "op", "instruction"),
    [
        ("i32", "add", "atom.global.add.u32"),
        ("u64", "sub", "atom.global.add.u64"),
        ("f32", "add", "atom.global.add.f32"),
        ("f64", "add", "atom.global.add.f64"),
        ("i32", "max", "atom.global.max.s32"),
        ("u32", "inc", "atom.global.inc.u32"),
        ("i32", "inc", "atom.global.cas.b32"),
        ("f32", "max", "atom.global.cas.b32"),
        ("f64", "min", "atom.global.cas.b64"),
        ("i8", "add", "atom.global.cas.b32"),
        ("u16", "max", "atom.global.cas.b32"),
        ("f16", "add", "atom.global.cas.b32"),
    ],
)
def test_atomics(dtype, op, instruction):
    function = getattr(ruda.atomic, op)

    @ruda.jit
    def update(x, v):
        function(x, 0, v[0])

    assert instruction in compiled(update, f"{dtype}[::1]", f"{dtype}[::1]")[0]


def test_shuffles_are_instructions():
    @ruda.jit
    def total(x):
        v = x[ruda.grid(1)]
        v += ruda.shfl_xor_sync(0xFFFFFFFF, v, 16)
        v += ruda.shfl_down_sync(0xFFFFFFFF, v, 1)
        x[ruda.grid(1)] = v

    text, _ = compiled(total, F32)
    assert "shfl.sync.bfly" in text and "shfl.sync.down" in text


def test_too_much_shared_memory_is_told():
    @ruda.jit
    def greedy(x):
        tile = ruda.shared.array(100_000, ruda.float32)
        tile[ruda.threadIdx.x] = x[0]
        ruda.syncthreads()
        x[0] = tile[3]

    with pytest.raises(ruda.errors.DeviceError, match=r"take 400000 bytes; a block can have"):
        compiled(greedy, F32)


def test_return_before_a_grid_barrier_is_refused():
    @ruda.jit
    def early(x):
        i = ruda.grid(1)
        if i >= x.size:
            return
        x[i] = 1
        ruda.cg.this_grid().sync()
        x[i] += x[0]

    with pytest.raises(UnsupportedError, match="not there at the barrier of the grid"):
        compiled(early, F32)


def test_other_chips():
    source = source_of(saxpy, saxpy.argument_types([np.float32(1), *[np.zeros(3, np.float32)] * 3]))
    for chip in ("75", "80", "100"):
        assert f".target sm_{chip}" in compiler.source_ptx(source, {"architecture": chip})


def test_text_shows_parameters_in_use():
    assert "def saxpy(a, x, y, out, out_n0, threads):" in saxpy.source("cuda", "f32", F32, F32, F32)
    assert ".target" in saxpy.assembly("cuda", "f32", F32, F32, F32)


def test_without_a_driver_it_says_so():
    if BACKEND.devices():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ruda.errors.DeviceNotFoundError, match="NVIDIA driver"):
        ruda.select_device("cuda")
    assert not ruda.is_available("cuda")
