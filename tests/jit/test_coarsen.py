"""The pass that makes wide accesses, on the interpreter: with it a kernel does what it did.

The nodes that only a GPU's emitter knows are spelt out: a wide access as accesses to its elements,
an address as a number that is aligned, or not.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import ruda
from ruda import dtypes
from ruda.jit import ir
from ruda.jit.interpret import Interpreter
from ruda.jit.kernel import as_dimensions, flatten_arguments
from ruda.jit.passes.coarsen import coarsen
from ruda.jit.passes.pipeline import PIPELINE
from ruda.jit.types import parse_type
from tests.jit.case import InOut, Out
from tests.jit.test_kernels import MODULES


def coarsened(function):
    """A function of the frontend after the passes of CUDA."""
    for one in PIPELINE["cuda"]:
        function = one(function)
    return function


def is_wide(function):
    return any(isinstance(s, (ir.WideLoad, ir.WideStore)) for s in ir.statements(function.body))


def spelt_out(function, threads, address):
    """Without the nodes that `coarsen` made."""

    def number(e):
        if isinstance(e, ir.Address):
            return ir.Const(address, dtypes.index)
        if isinstance(e, ir.Special) and e.name == "threads":
            return ir.Const(threads, dtypes.index)
        return e

    def element(s, k):
        *others, last = s.indices
        return (*others, ir.Op("add", (last, ir.Const(k, dtypes.index)), dtypes.index))

    def access(s):
        if isinstance(s, ir.WideLoad):
            return tuple(
                ir.Assign(v, ir.Load(s.array, element(s, k))) for k, v in enumerate(s.results)
            )
        if isinstance(s, ir.WideStore):
            return tuple(ir.Store(s.array, element(s, k), v) for k, v in enumerate(s.values))
        return s

    body = ir.rewrite_body(function.body, number, access)
    return dataclasses.replace(function, body=body, lanes=1)


def launch(function, grid, block, arguments, address=None):
    x, y, z = grid
    if address is not None:
        threads = x * block[0]
        grid = (-(-x // function.lanes), y, z)
        function = spelt_out(function, threads, address)
    Interpreter(function).run(grid, block, arguments, 0)


def both_ways(kernel, types, grid, block, arrays, *scalars):
    """Launch the kernel as it is, and coarsened with addresses of both kinds; results are equal."""
    function, _ = kernel.translate(types, block=block)
    wide = coarsened(function)
    assert is_wide(wide)
    want = [a.copy() for a in arrays]
    launch(function, grid, block, [*scalars, *want])
    for address in (0, 4):
        got = [a.copy() for a in arrays]
        launch(wide, grid, block, [*scalars, *got], address)
        for a, b in zip(got, want, strict=True):
            assert a.tobytes() == b.tobytes()
    return wide


# ---- kernels of the shapes that are taken --------------------------------------------------------


@ruda.jit
def axpy(a, x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@ruda.jit
def early_return(a, x, y, out):
    i = ruda.blockIdx.x * ruda.blockDim.x + ruda.threadIdx.x
    if i >= out.size:
        return
    v = x[i]
    if v < 0:
        v = -v
        y[i] = a
    out[i] = v * y[i]


@ruda.jit
def strided(a, x, y, out):
    for i in range(ruda.grid(1), out.size, ruda.gridsize(1)):
        out[i] = x[i] - y[i] if x[i] > a else y[i]


@ruda.jit
def shifted(a, x, y, out):
    """Neighbours, and a window that is not that of the array."""
    i = ruda.grid(1)
    if i >= 2 and i + 1 < out.size:
        out[i] = x[i - 1] + x[i] * a + x[i + 1]
        y[i - 2] = out[i]


@ruda.jit
def chained(a, x, y, out):
    """What one statement writes, the next one reads, in the same thread."""
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] + a
        y[i] = out[i] * 2
        out[i] = y[i] + x[i]


ONE = "float32[::1]"
KERNELS = [axpy, early_return, strided, shifted, chained]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 37, 64])
@pytest.mark.parametrize(("blocks", "threads"), [(1, 8), (3, 8), (8, 8), (5, 7), (1, 1)])
def test_any_launch_of_any_size(kernel, n, blocks, threads, rng):
    """Also one with fewer threads than elements: those that it has do theirs, no others."""
    x, y, out = rng.standard_normal((3, n), np.float32)
    types = tuple(parse_type(t) for t in ("float", ONE, ONE, ONE))
    both_ways(kernel, types, (blocks, 1, 1), (threads, 1, 1), [x, y, out], 1.5)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.__name__)
def test_arrays_that_are_one(kernel, rng):
    """In place: every lane keeps the order of its accesses."""
    types = tuple(parse_type(t) for t in ("float", ONE, ONE, ONE))
    function, _ = kernel.translate(types, block=(8, 1, 1))
    wide, x = coarsened(function), rng.standard_normal(37, np.float32)
    if kernel is shifted:  # its threads would read what others write
        return
    want = x.copy()
    launch(function, (5, 1, 1), (8, 1, 1), [1.5, want, want, want])
    for address in (0, 4):
        got = x.copy()
        launch(wide, (5, 1, 1), (8, 1, 1), [1.5, got, got, got], address)
        assert got.tobytes() == want.tobytes()


@ruda.jit
def rows(x, out):
    i, j = ruda.grid(2)
    if j < out.shape[0] and i < out.shape[1]:
        out[j, i] = x[j, i] * x[j, 0] + j


@pytest.mark.parametrize("shape", [(3, 16), (3, 13), (1, 4), (2, 0)])
def test_rows_of_matrices(shape, rng):
    """The pitch of rows counts as well: 13 elements are not."""
    x, out = rng.standard_normal((2, *shape), np.float32)
    types = (parse_type("float32[:, ::1]"),) * 2
    both_ways(rows, types, (3, 2, 1), (8, 2, 1), [x, out])


@pytest.mark.parametrize(
    ("dtypes_", "lanes"),
    [(("float32", "float32"), 4), (("float64", "float64"), 2), (("float16", "float16"), 8),
     (("uint8", "uint8"), 8), (("uint8", "float64"), 2), (("bool", "int16"), 8)],
)  # fmt: skip
def test_lanes_fill_16_bytes(dtypes_, lanes, rng):
    @ruda.jit
    def convert(x, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = x[i]

    x = rng.integers(0, 2, 50).astype(dtypes_[0])
    types = tuple(parse_type(f"{d}[::1]") for d in dtypes_)
    wide = both_ways(convert, types, (7, 1, 1), (8, 1, 1), [x, np.zeros(50, dtypes_[1])])
    assert wide.lanes == lanes


def test_every_access_of_axpy_is_wide():
    types = tuple(parse_type(t) for t in ("float", ONE, ONE, ONE))
    function, _ = axpy.translate(types)
    wide = coarsened(function)
    found = [type(s).__name__ for s in ir.statements(wide.body) if type(s).__name__[:4] == "Wide"]
    assert found == ["WideLoad", "WideLoad", "WideStore"] and wide.lanes == 4


# ---- kernels that are left alone -----------------------------------------------------------------


@ruda.jit
def by_atomics(x, out):
    i = ruda.grid(1)
    if i < out.size:
        ruda.atomic.add(out, i, x[i])


@ruda.jit
def by_blocks(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] + ruda.threadIdx.x


@ruda.jit
def loops(x, out):
    i = ruda.grid(1)
    if i < out.size:
        total = x[i]
        for k in range(out.size):
            total += x[k]
        out[i] = total


@ruda.jit
def transposed(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i * 2 % out.size] = x[out.size - 1 - i]


@ruda.jit
def carried(x, out):
    total = ruda.float32(0)
    for i in range(ruda.grid(1), out.size, ruda.gridsize(1)):
        total += x[i]
        out[i] = total


@ruda.jit
def by_thread(x, out):
    t = ruda.grid(1)
    for i in range(t, out.size, ruda.gridsize(1)):
        out[i] = x[i] + t


@pytest.mark.parametrize(
    "kernel", [by_atomics, by_blocks, loops, transposed, carried, by_thread],
    ids=lambda k: k.__name__,
)  # fmt: skip
def test_others_stay_as_they_are(kernel):
    function, _ = kernel.translate((parse_type(ONE),) * 2)
    assert not is_wide(coarsened(function)) and coarsened(function).lanes == 1


def test_strided_arrays_and_checks_stay_as_they_are():
    function, _ = axpy.translate(tuple(parse_type(t) for t in ("float", *("float32[:]",) * 3)))
    assert coarsen(function) is function
    with ruda.config(check=True):
        function, _ = axpy.translate(tuple(parse_type(t) for t in ("float", ONE, ONE, ONE)))
    assert not is_wide(coarsened(function))


# ---- the tables ----------------------------------------------------------------------------------

# At least so many kernels of a table get wide accesses; a smaller number means that the pass has
# stopped to see them.
TAKEN = {
    "algorithms": 2, "arithmetic": 59, "captured": 11, "casts": 31, "compile_time": 13,
    "complex_numbers": 4, "control_flow": 8, "device_functions": 13, "functions": 122, "images": 3,
    "indexing": 24, "records": 6, "tuples": 11, "views": 2,
}  # fmt: skip


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__.rpartition(".")[2])
def test_kernels_of_the_tables(module, rng):
    taken = 0
    for case in module.CASES:
        n = next((s for s in reversed(case.sizes) if s <= 40), case.sizes[0])
        row = case.arguments(rng, n)

        def fresh(row=row):
            """Written arrays as before the launch, and what the kernel gets of each."""
            bases = [a.make() if isinstance(a, (Out, InOut)) else a for a in row]
            pairs = zip(row, bases, strict=True)
            return bases, [g.view(b) if isinstance(g, InOut) else b for g, b in pairs]

        grid, block, _ = case.extents(n)
        grid, block = as_dimensions(grid, "grid", ""), as_dimensions(block, "block", "")
        with ruda.config(**case.config):
            bases = [a.make() if isinstance(a, (Out, InOut)) else a for a in row]
            views = [
                g.view(b) if isinstance(g, InOut) else b for g, b in zip(row, bases, strict=True)
            ]
            types = case.kernel.argument_types(views)
            function, _ = case.kernel.translate(types, block=block)
            wide = coarsened(function)
            if not is_wide(wide):
                continue
            taken += 1
            want = None
            for address in (None, 0, 4):
                bases = [a.make() if isinstance(a, (Out, InOut)) else a for a in row]
                views = [
                    g.view(b) if isinstance(g, InOut) else b
                    for g, b in zip(row, bases, strict=True)
                ]
                arguments = flatten_arguments(views, types)
                launch(function if address is None else wide, grid, block, arguments, address)
                got = [b.tobytes() for b in bases if isinstance(b, np.ndarray)]
                want = got if want is None else want
                assert got == want, str(case)
    assert taken >= TAKEN.get(module.__name__.rpartition(".")[2], 0)
