"""64 bits on WebGPU: indices that outgrow 32 bits, and integers made of pairs of words.

Every operation runs natively, and again in the dialect of browsers, which have no 64-bit integers:
there `missing="emulate"` makes them of words.
"""

import numpy as np
import pytest

import ruda
from ruda.errors import UnsupportedError
from ruda.jit import passes
from ruda.jit.kernel import as_dimensions
from tests.backends.test_wgpu import on_wgpu

WAYS = {"native": {}, "words": {"wgpu_dialect": "tint", "missing": "emulate"}}
ways = pytest.mark.parametrize("way", WAYS)


def on(way):
    return ruda.config(device="wgpu", **WAYS[way])


# ---- arithmetic ----------------------------------------------------------------------------------

EDGES = [0, 1, 2, 3, 7, 10, 255, 65535, 65536, 65537, 10**9, 2**31 - 1, 2**31, 2**32 - 1, 2**32,
         2**32 + 1, 2**33 - 5, 10**12, 2**47 + 11, 2**62, 2**63 - 1]  # fmt: skip


def numbers(dtype, rng):
    """All pairs of edges and of random numbers of all lengths."""
    kind = np.dtype(dtype)
    some = EDGES + [-n for n in EDGES] + [-(2**63)]
    if kind.kind == "u":
        some = [*EDGES, 2**63, 2**63 + 1, 2**64 - 2, 2**64 - 1]
    lengths = rng.integers(0, 64, 60)
    some += [int(rng.integers(0, 2**63, dtype=np.uint64)) >> int(n) for n in lengths]
    mask = 2**64 - 1
    values = np.array([n & mask for n in some], np.uint64).view(kind)
    x, y = np.meshgrid(values, values)
    return x.ravel().copy(), y.ravel().copy()


def exact(function, dtype):
    """The operation in Python's integers, wrapped; 0 where it has no answer."""

    def answer(x, y):
        out = []
        for a, b in zip(x.tolist(), y.tolist(), strict=True):
            out.append(function(a, b) & (2**64 - 1))
        return np.array(out, np.uint64).view(dtype)

    return answer


@ruda.jit
def integers(x, y, out):
    i = ruda.grid(1)
    if i < x.size:
        a, b = x[i], y[i]
        out[i, 0] = a + b
        out[i, 1] = a - b
        out[i, 2] = a * b
        out[i, 3] = a // b
        out[i, 4] = a % b
        out[i, 5] = a & b
        out[i, 6] = a | b
        out[i, 7] = a ^ b
        out[i, 8] = ~a
        out[i, 9] = -a
        out[i, 10] = min(a, b)
        out[i, 11] = max(a, b)
        out[i, 12] = a << (b % 70)
        out[i, 13] = a >> (b % 70)
        out[i, 14] = abs(a)
        out[i, 15] = a ** (b & 15)
        out[i, 16] = ruda.brev(a)


def shift(a, n, left):
    if not 0 <= n < 64:
        return 0 if left or a >= 0 else -1
    return a << n if left else a >> n


OPERATIONS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "invert": lambda a, b: ~a,
    "neg": lambda a, b: -a,
    "min": min,
    "max": max,
    "shl": lambda a, b: shift(a, b % 70, True),
    "shr": lambda a, b: shift(a, b % 70, False),
    "abs": lambda a, b: abs(a),
    "pow": lambda a, b: a ** (b & 15),
    "brev": lambda a, b: int(f"{a & (2**64 - 1):064b}"[::-1], 2),
}


@on_wgpu
@ways
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_integers_match_python(way, dtype, rng):
    x, y = numbers(dtype, rng)
    out = np.full((x.size, len(OPERATIONS)), -1, np.int64).view(dtype)
    with on(way):
        integers[-(-x.size // 64), 64](x, y, out)
    for k, (name, function) in enumerate(OPERATIONS.items()):
        expected = exact(function, dtype)(x, y)
        wrong = np.flatnonzero(out[:, k] != expected)
        assert not wrong.size, (
            f"{name}({x[wrong[0]]}, {y[wrong[0]]}) is {out[wrong[0], k]}, not {expected[wrong[0]]}"
        )


@ruda.jit
def comparisons(x, y, out):
    i = ruda.grid(1)
    if i < x.size:
        a, b = x[i], y[i]
        out[i, 0] = a < b
        out[i, 1] = a <= b
        out[i, 2] = a > b
        out[i, 3] = a >= b
        out[i, 4] = a == b
        out[i, 5] = a != b
        out[i, 6] = bool(a)
        out[i, 7] = ruda.popc(a)
        out[i, 8] = ruda.clz(a)
        out[i, 9] = ruda.ffs(a)


@on_wgpu
@ways
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_comparisons_and_counts_of_bits(way, dtype, rng):
    x, y = numbers(dtype, rng)
    out = np.full((x.size, 10), -1, np.int32)
    with on(way):
        comparisons[-(-x.size // 64), 64](x, y, out)
    bits = x.view(np.uint64).tolist()
    expected = [x < y, x <= y, x > y, x >= y, x == y, x != y, x != 0,
                [n.bit_count() for n in bits], [64 - n.bit_length() for n in bits],
                [(n & -n).bit_length() for n in bits]]  # fmt: skip
    np.testing.assert_array_equal(out, np.array(expected, np.int32).T)


@ruda.jit
def to_floats(x, single, half):
    i = ruda.grid(1)
    if i < x.size:
        single[i] = x[i]
        half[i] = x[i]


@ruda.jit
def to_integers(x, signed, unsigned):
    i = ruda.grid(1)
    if i < x.size:
        signed[i] = ruda.int64(x[i])
        unsigned[i] = ruda.uint64(x[i])


@ruda.jit
def between_widths(x, narrow, tiny, other, back):
    i = ruda.grid(1)
    if i < x.size:
        narrow[i] = ruda.int32(x[i])
        tiny[i] = ruda.uint8(x[i])
        other[i] = ruda.uint64(narrow[i])
        back[i] = ruda.int64(ruda.uint32(x[i]))


@on_wgpu
@ways
@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_integers_become_the_nearest_float(way, dtype, rng):
    x = np.unique(numbers(dtype, rng)[0])
    ties = np.array([2**24 + 1, 2**24 + 3, 2**40 + 2**16, 2**40 + 2**16 + 1, 2**60 + 2**36], dtype)
    x = np.concatenate([x, ties, ties + 1, ties - 1])
    single, half = np.zeros(x.size, np.float32), np.zeros(x.size, np.float16)
    with on(way):
        to_floats[-(-x.size // 64), 64](x, single, half)
    np.testing.assert_array_equal(single, x.astype(np.float32))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(half, x.astype(np.float64).astype(np.float16))


@on_wgpu
@ways
def test_floats_truncate_and_saturate(way):
    edges = [
        0.0,
        0.25,
        0.999,
        1.0,
        1.5,
        3.75,
        2.0**23 + 0.5,
        2.0**24,
        2.0**31,
        2.0**32 + 512,
        1e15,
        2.0**62,
        2.0**63 - 2.0**39,
        2.0**63,
        2.0**64 - 2.0**40,
        2.0**64,
        1e30,
        np.inf,
    ]
    x = np.array([*edges, *(-e for e in edges), np.nan], np.float32)
    signed, unsigned = np.full(x.size, 7, np.int64), np.full(x.size, 7, np.uint64)
    with on(way):
        to_integers[1, 64](x, signed, unsigned)
    for k, value in enumerate(x.tolist()):
        whole = 0 if np.isnan(value) else value if np.isinf(value) else int(value)
        assert signed[k] == int(min(max(whole, -(2**63)), 2**63 - 1))
        assert unsigned[k] == int(min(max(whole, 0), 2**64 - 1))


@on_wgpu
@ways
def test_widths_wrap_and_extend(way, rng):
    x = np.unique(numbers(np.int64, rng)[0])
    narrow, tiny = np.zeros(x.size, np.int32), np.zeros(x.size, np.uint8)
    other, back = np.zeros(x.size, np.uint64), np.zeros(x.size, np.int64)
    with on(way):
        between_widths[-(-x.size // 64), 64](x, narrow, tiny, other, back)
    np.testing.assert_array_equal(narrow, x.astype(np.int32))
    np.testing.assert_array_equal(tiny, x.astype(np.uint8))
    np.testing.assert_array_equal(other, x.astype(np.int32).astype(np.uint64))
    np.testing.assert_array_equal(back, x.astype(np.uint32).astype(np.int64))


@on_wgpu
def test_what_a_browser_lacks_is_refused_unless_emulation_is_allowed():
    x = np.array([1, 2**40], np.int64)
    with ruda.config(device="wgpu", wgpu_dialect="tint"):
        with pytest.raises(UnsupportedError, match="int64 is not on the adapter") as caught:
            comparisons[1, 32](x, x, np.zeros((2, 10), np.int32))
        assert "missing='emulate'" in "".join(caught.value.__notes__)
    with ruda.config(device="wgpu", wgpu_dialect="tint", missing="emulate"):
        y = np.ones(2, np.float64)
        with pytest.raises(UnsupportedError, match="float64 is not on the adapter"):
            to_integers[1, 32](y, x, x.view(np.uint64))


# ---- indices -------------------------------------------------------------------------------------


@ruda.jit
def product(out, factor):
    i = ruda.grid(1)
    if i < out.size:
        big = i * factor
        out[i] = big


@ruda.jit
def square_below(out, limit):
    i = ruda.grid(1)
    if i < out.size:
        j = i * 50000
        out[i] = j * j < limit


@ruda.jit
def summed(out, n):
    s = 0
    for k in range(n):
        s += k * 1000
    out[0] = s


@ruda.jit
def quotient(out, factor):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = i * factor // 1000 % 1000


@ruda.jit
def counted_down(out, start):
    i = ruda.grid(1)
    if i < out.size:
        n = 0
        for k in range(start * start, start * start - 30, -7):
            n += k % 10
        out[i] = n


@ruda.jit
def truncated(x, out):
    i = ruda.grid(1)
    if i < x.size:
        out[i] = int(x[i])


@ruda.jit
def while_large(out, factor):
    i = ruda.grid(1)
    if i < out.size:
        at = i * factor
        n = 0
        while at > 1000:
            at //= 10
            n += 1
        out[i] = n


@ruda.jit
def halved(out, n):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = (n * n + i) / 2.0


@ruda.jit
def constant(out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = i + 5_000_000_000


N = 100
I = list(range(N))
TRUNCATED = [3e9, -3e9, 1e15, 2.5, -2.5, 1e30]
OUTGROW = {
    "product": (product, (10**9,), np.int64, [i * 10**9 for i in I]),
    "negative product": (product, (-(10**9),), np.int64, [-i * 10**9 for i in I]),
    "comparison": (square_below, (10**9,), np.int32, [(i * 50000) ** 2 < 10**9 for i in I]),
    "sum": (summed, (5000,), np.int64, [sum(range(5000)) * 1000, *[0] * (N - 1)]),
    "quotient": (quotient, (10**9,), np.int32, [i * 10**9 // 1000 % 1000 for i in I]),
    "loop": (counted_down, (60000,), np.int32,
             [sum(k % 10 for k in range(3600000000, 3600000000 - 30, -7))] * N),
    "while": (while_large, (10**9,), np.int32,
              [0] + [next(n for n in range(20) if i * 10**9 // 10**n <= 1000) for i in I[1:]]),
    "float": (halved, (100000,), np.float32, [np.float32(10**10 + i) / np.float32(2) for i in I]),
    "float of 54 bits": (halved, (3 * 2**29 + 5,), np.float32,
              [np.float32(float((3 * 2**29 + 5) ** 2 + i)) / np.float32(2) for i in I]),
    "constant": (constant, (), np.int64, [i + 5_000_000_000 for i in I]),
}  # fmt: skip


@on_wgpu
@ways
@pytest.mark.parametrize("name", OUTGROW)
def test_indices_outgrow_32_bits(way, name):
    kernel, arguments, dtype, expected = OUTGROW[name]
    if way == "words" and dtype == np.int64:
        dtype, expected = np.float32, np.array(expected, np.float32)
    out = np.zeros(N, dtype)
    with on(way), ruda.config(missing="error"):  # words for indices need no permission
        kernel[2, 64](out, *arguments)
    np.testing.assert_array_equal(out, np.array(expected, dtype))


@on_wgpu
@ways
def test_floats_become_large_indices(way):
    out = np.zeros(len(TRUNCATED), np.float32)
    with on(way):
        truncated[1, 32](np.array(TRUNCATED, np.float32), out)
    limit = np.float32(2**63)
    expected = np.clip(np.trunc(np.array(TRUNCATED, np.float32)), -limit, limit)
    np.testing.assert_array_equal(out, expected)


# ---- which form a launch takes -------------------------------------------------------------------


@ruda.jit
def flat_2d(x, out, columns):
    i, j = ruda.grid(2)
    if i < x.shape[0] and j < x.shape[1]:
        at = i * columns + j
        if at < out.size:
            out[at] = x[i, j]


@ruda.jit
def strided_loop(x, out):
    i = ruda.grid(1)
    while i < x.size:
        out[i] = x[i]
        i += ruda.gridsize(1)


@ruda.jit
def histogram(x, out):
    i = ruda.grid(1)
    if i < x.size:
        b = int(x[i] * 10)
        if 0 <= b < out.size:
            ruda.atomic.add(out, b, 1)


@ruda.jit
def binary_search(x, keys, out):
    i = ruda.grid(1)
    if i < keys.size:
        low, high = 0, x.size
        while low < high:
            middle = (low + high) // 2
            if x[middle] < keys[i]:
                low = middle + 1
            else:
                high = middle
        out[i] = low


@ruda.jit
def tree(x):
    tile = ruda.shared.array(64, ruda.float32)
    t = ruda.threadIdx.x
    tile[t] = x[ruda.grid(1)]
    step = ruda.blockDim.x // 2
    ruda.syncthreads()
    while step > 0:
        if t < step:
            tile[t] += tile[t + step]
        ruda.syncthreads()
        step //= 2
    if t == 0:
        x[ruda.blockIdx.x] = tile[0]


def widths(kernel, *arguments):
    from ruda.backends.wgpu.widths import Widths

    types = kernel.argument_types(kernel.bind(arguments, {}))
    block = as_dimensions(64, "block", "test")
    function, _ = kernel.translate(types, block=block, needs_block=lambda f: True)
    return Widths(passes.lower(function, "wgpu"))


V, M = np.zeros(8, np.float32), np.zeros((4, 4), np.float32)


def rows(n):
    return np.empty((n, 1), np.float32)


@pytest.mark.parametrize(
    ("kernel", "arguments", "always"),
    [
        (tree, (V,), True),
        (histogram, (V, V), False),
        (strided_loop, (V, V), False),
        (binary_search, (V, V, V), False),
        (flat_2d, (M, V, 4), False),
        (product, (V, 3), False),
    ],
)
def test_what_is_proven_for_every_launch(kernel, arguments, always):
    assert widths(kernel, *arguments).always is always


@pytest.mark.parametrize(
    ("kernel", "arguments", "grid", "wide"),
    [
        (strided_loop, (V, V), 1024, False),
        (strided_loop, (V, V), (1 << 25) - 1, False),
        (strided_loop, (np.zeros(100, np.float32), V), (1 << 25) - 1, True),
        (strided_loop, (V, V), 1 << 25, True),
        (histogram, (V, V), 64, False),
        (binary_search, (V, V, V), 64, False),
        (flat_2d, (rows(50000), V, 40000), 1000, False),
        (flat_2d, (rows(60000), V, 40000), 1000, True),
        (product, (rows(70000)[:, 0], 30000), 2000, False),
        (product, (rows(70000)[:, 0], 40000), 2000, True),
        (product, (rows(70000)[:, 0], -40000), 2000, True),
        (product, (V, 40000), 1 << 20, False),  # the guard keeps it small
        (product, (V, 1 << 31), 1, True),
    ],
)
def test_what_a_launch_decides(kernel, arguments, grid, wide):
    from ruda.backends.base import Launch
    from ruda.jit.interpret import evaluate_prologue

    found = widths(kernel, *arguments)
    scalars = evaluate_prologue(found.function, arguments)
    launch = Launch((grid, 1, 1), (64, 1, 1))
    assert found.is_wide(launch, arguments, scalars) is wide
