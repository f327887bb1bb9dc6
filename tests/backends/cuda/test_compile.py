"""CUDA code without a GPU: every kernel of the tables becomes machine code; some of it is read."""

from __future__ import annotations

import functools
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
    assert text.count("ld.global.nc.v4.f32") == 2 and text.count("st.global.v4.f32") == 1
    assert text.count("ld.global.nc.f32") == 2 and text.count("st.global.f32") == 1  # what is left
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
        assert f"ld.global.nc.{instruction}" in text and f"st.global.{instruction}" in text
        assert attributes["registers"] <= 40


def test_machine_code_has_wide_accesses():
    function, _ = saxpy.translate(tuple(map(ruda_type, ("f32", F32, F32, F32))))
    code = BACKEND.assembly(BACKEND.emit(function, TARGET), TARGET)
    if compiler.disassembler() is None:
        assert "ld.global.nc.v4" in code  # PTX alone
    else:
        assert len(re.findall(r"LDG.E.128(.CONSTANT)?", code)) == 2 and code.count("STG.E.128") == 1


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


def test_return_before_a_grid_barrier_makes_launches_of_a_kernel():
    """A block whose threads are gone would be waited for; without returns, one launch does it."""

    @ruda.jit
    def early(x):
        i = ruda.grid(1)
        if i >= x.size:
            return
        x[i] = 1
        ruda.cg.this_grid().sync()
        x[i] += x[0]

    @ruda.jit
    def staying(x):
        i = ruda.grid(1)
        if i < x.size:
            x[i] = 1
        ruda.cg.this_grid().sync()
        if i < x.size:
            x[i] += x[0]

    @ruda.jit
    def until(x):
        while x[0] > 0:
            if x[1] > 3:
                return
            ruda.cg.this_grid().sync()

    with pytest.raises(UnsupportedError, match="not there at the barrier of the grid"):
        compiled(until, F32)
    for kernel, cooperative in ((early, False), (staying, True)):
        source = source_of(kernel, (ruda_type(F32),))
        assert source.options["cooperative"] is cooperative
        assert (source.options["phases"] is None) is cooperative
        assert ("bar.sync" in compiler.source_ptx(source, TARGET)) is cooperative


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


# ---- what code assumes ---------------------------------------------------------------------------


@ruda.jit
def unravel(x, out):
    """Indices by hand: a quotient and a remainder."""
    i = ruda.grid(1)
    if i < x.shape[0] * x.shape[1]:
        row, column = i // x.shape[1], i % x.shape[1]
        out[column, row] = x[row, column]


@ruda.jit
def repeating(x, w, out):
    """Quotients of a loop's variable, which only intervals know to be small."""
    i = ruda.grid(1)
    s = 0.0
    for k in range(x.shape[0]):
        s += x[k, i % w.shape[0]] * w[k % w.shape[0], k // 3 % 7]
    out[i, 0] = s


def assuming(kernel, *types, assumes):
    """PTX and machine code of a kernel under assumptions."""
    function, _ = kernel.translate(tuple(map(ruda_type, types)))
    source = BACKEND.emit(function, {**TARGET, "assumes": assumes})
    text = compiler.source_ptx(source, TARGET)
    binary, tool = compiler.cubin(text, "90a")[0], compiler.disassembler()
    return text, compiler.sass(binary, tool) if tool is not None else text


@pytest.mark.parametrize("kernel", [unravel, repeating], ids=["unravel", "repeating"])
def test_indices_are_divided_in_32_bits_where_sizes_allow(kernel):
    types = ("f32[:,::1]",) * len(kernel.parameters)
    short, code = assuming(kernel, *types, assumes=("narrow", "apart"))
    wide, wide_code = assuming(kernel, *types, assumes=())
    quotients = r"(div|rem)\.[su]64"
    assert not re.search(quotients, short) and re.search(r"(div|rem)\.u32", short)
    assert re.search(quotients, wide)
    assert ".f64" not in short and ".f64" not in wide
    count = [len(re.findall(r"/\*[0-9a-f]{4,}\*/ ", text)) for text in (code, wide_code)]
    assert 3 * count[0] < 2 * count[1] or compiler.disassembler() is None
    assert short.count(".param .u64") == len(types)  # the pointers


def test_constants_are_no_reason_for_32_bits():
    """Of which a matrix product would need more registers."""

    @ruda.jit
    def tiles(x):
        i = ruda.grid(1)
        if i < x.size:
            x[i // 16 * 16 + i % 16] = 1

    both = [assuming(tiles, F32, assumes=a)[0] for a in (("narrow", "apart"), ())]
    assert both[0] == both[1]


def test_quotients_of_int32_are_the_chips():
    @ruda.jit
    def both(x, y, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = x[i] // y[i] + x[i] % y[i]

    for kind in ("i32[::1]", "u32[::1]"):
        assert ".f64" not in compiled(both, kind, kind, kind)[0]


def test_thread_indices_are_short_without_assumptions():
    @ruda.jit
    def lanes(x, n):
        t = ruda.threadIdx.x
        x[t // 3 * 7 + t % 5] = n

    wide, _ = assuming(lanes, "f32[::1]", "int", assumes=())
    assert not re.search(r"(div|rem|mul\.hi)\.[su]64", wide)


def test_arrays_that_are_only_read_are_read_through_the_texture_cache():
    @ruda.jit
    def blend(x, y, out):
        i, j = ruda.grid(2)
        for k in range(8):
            out[i, j] += x[i, k] * y[k, j]

    kinds = ("f32[:,::1]",) * 3
    text, code = assuming(blend, *kinds, assumes=("narrow", "apart"))
    assert text.count("ld.global.nc.f32") == 16
    assert re.search(r"ld\.global\.f32", text) and text.count("ld.global.f32") < 9  # of out
    if compiler.disassembler() is not None:
        assert code.count("CONSTANT") == 16
    assert ".nc" not in assuming(blend, *kinds, assumes=("narrow",))[0]


def test_written_arrays_and_what_fences_order_are_read_plainly():
    @ruda.jit
    def counting(x, out):
        i = ruda.grid(1)
        ruda.atomic.add(x, 0, 1)
        out[i] = x[i]

    @ruda.jit
    def fenced(x, out):
        i = ruda.grid(1)
        before = x[0]
        ruda.threadfence()
        out[i] = x[i] + before

    @ruda.jit
    def swapped(x, y, n):
        i = ruda.grid(1)
        a, b = x, y
        for _ in range(n):
            b[i] = a[i] + 1
            a, b = b, a

    for kernel, kinds in (
        (counting, ("i32[::1]",) * 2), (fenced, (F32,) * 2), (swapped, (F32, F32, "int")),
    ):  # fmt: skip
        assert ".nc" not in compiled(kernel, *kinds)[0], kernel


# ---- loops ---------------------------------------------------------------------------------------


@ruda.jit
def product(a, b, c):
    i, j = ruda.grid(2)
    if i < c.shape[0] and j < c.shape[1]:
        s = 0.0
        for k in range(a.shape[1]):
            s += a[i, k] * b[k, j]
        c[i, j] = s


@ruda.jit
def tiled_product(a, b, c):
    left = ruda.shared.array((16, 16), ruda.float32)
    right = ruda.shared.array((16, 16), ruda.float32)
    ty, tx = ruda.threadIdx.y, ruda.threadIdx.x
    i, j = ruda.blockIdx.y * 16 + ty, ruda.blockIdx.x * 16 + tx
    s = 0.0
    for t in range(a.shape[1] // 16):
        left[ty, tx], right[ty, tx] = a[i, t * 16 + tx], b[t * 16 + ty, j]
        ruda.syncthreads()
        for k in range(16):
            s += left[ty, k] * right[k, tx]
        ruda.syncthreads()
    c[i, j] = s


@ruda.jit
def row_sums(x, weights, out):
    r, t = ruda.blockIdx.x, ruda.threadIdx.x
    s = 0.0
    for k in range(t, x.shape[1], 256):
        s += x[r, k] * weights[0, k]
    out[r, t] = s


@ruda.jit
def grid_stride(x, y, out):
    for i in range(ruda.grid(1), x.shape[0], ruda.gridsize(1)):
        out[i, 0] = x[i, 0] + y[0, i]


@ruda.jit
def backwards(x, y, out):
    i = ruda.grid(1)
    s = 0.0
    for k in range(x.shape[0] - 1, -1, -1):
        s = s * 0.5 + x[k, i] * y[k, i]
    out[0, i] = s


@ruda.jit
def convolution(x, w, out):
    i, j = ruda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        s = 0.0
        for a in range(w.shape[0]):
            for b in range(w.shape[1]):
                s += x[i + a, j + b] * w[a, b]
        out[i, j] = s


def innermost_loops(code):
    """The instructions of machine code that jumps back, without those of loops around others."""
    instructions, labels = [], {}
    for line in code.splitlines():
        if label := re.match(r"\s*\.(L_\w+):", line):
            labels[label[1]] = len(instructions)
        if found := re.search(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", line):
            instructions.append(found[1].strip())
    loops = []
    for k, text in enumerate(instructions):
        jump = re.search(r"\bBRA.*\(\.(L_\w+)\)", text)
        start = labels.get(jump[1], k) if jump else k
        if start < k and text.startswith("@"):  # the last jump, to itself, is none
            loops.append((start, k))
    inner = [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    return [instructions[start : end + 1] for start, end in inner]


LOOPS = [product, tiled_product, row_sums, grid_stride, backwards, convolution]


@pytest.mark.parametrize("kernel", LOOPS, ids=[k.__name__ for k in LOOPS])
def test_loops_multiply_no_addresses(kernel):
    """Indices of 64 bits go on by additions: no product and no choice of 64 bits in a round."""
    block = (16, 16, 1) if kernel is tiled_product else (256, 1, 1)
    function, _ = kernel.translate(tuple(map(ruda_type, ("f32[:,::1]",) * 3)), block=block)
    code = BACKEND.assembly(BACKEND.emit(function, TARGET), TARGET)
    if compiler.disassembler() is None:
        assert "selp.b64" not in code  # PTX alone
        return
    loops = innermost_loops(code)
    assert loops
    step = r"IMAD\.WIDE(\.U32)? (R\d+), R\d+, 0x\w+, \2$"  # an address goes on by a multiple
    for loop in loops:
        loop = [text for text in loop if not re.match(step, text)]
        wide = [text for text in loop if re.match(r"(@\S+ )?U?(IMAD\.WIDE|IMAD\.HI|SEL\b)", text)]
        assert not wide, "\n".join(loop)


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [(0, 5, 1), (5, -1, -1), (3, 3, 1), (7, 0, -3), (2, 20, 7), (1, 9, 0)],
)
def test_loops_of_every_step_are_counted(start, stop, step):
    """The text of a loop, run by Python: rounds, `continue`, `break`, and who is the counter."""

    @ruda.jit
    def rounds(out, first, last, each):
        n = 0
        for k in range(first, last, each):
            if k == 4:
                continue
            if k == 16:
                break
            out[n] = k
            n += 1

    @ruda.jit
    def constant(out):
        n = 0
        for k in range(start, stop, step):
            if k == 4:
                continue
            if k == 16:
                break
            out[n] = k
            n += 1

    def trips(first, last, each):
        return len(range(first, last, each)) if each else 0

    expected = []
    for k in range(start, stop, step) if step else ():
        if k == 16:
            break
        if k != 4:
            expected.append(k)
    kinds = {rounds: ("i64[::1]", "i64", "i64", "i64"), constant: ("i64[::1]",)}
    for kernel, types in kinds.items():
        if kernel is constant and not step:
            continue  # refused by its line
        source = source_of(kernel, tuple(map(ruda_type, types)))
        found = {}
        put = functools.partial(lambda found, base, at, value: found.__setitem__(at, value), found)
        scope = {"trips": trips, "store_i64": put, "wrap": lambda i, n: i, "u32_to_i64": int}
        exec(source.text, scope)
        given = {"out": None, "first": start, "last": stop, "each": step}
        rows = source.options["parameters"]
        names = list(given)
        arguments = [
            given[names[row[1]]] if row[0] in ("pointer", "scalar") else 99 for row in rows
        ]
        scope[source.entry](*arguments)
        assert list(found.values()) == expected, source.text
