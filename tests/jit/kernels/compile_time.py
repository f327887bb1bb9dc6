"""Compile-time parameters and unrolled loops."""

import numpy as np

import ruda
from tests.jit.case import Case, Out
from tests.jit.data import integers, normal


@ruda.jit
def constexpr_bound(x, out, n: ruda.constexpr):
    i = ruda.grid(1)
    if i < out.size:
        total = ruda.int32(0)
        for k in range(n):
            total += x[i] * k
        out[i] = total


@ruda.jit
def constexpr_shape(x, out, width: ruda.constexpr):
    window = ruda.local.array(width, ruda.int32)
    i = ruda.grid(1)
    if i < out.size:
        for k in range(width):
            window[k] = x[i] + k
        total = 0
        for k in range(width):
            total += window[width - 1 - k] * (k + 1)
        out[i] = total


def windowed(x, width):
    return sum((x + width - 1 - k) * (k + 1) for k in range(width))


@ruda.jit
def constexpr_shared_shape(x, out, n: ruda.constexpr):
    tile = ruda.shared.array((2, n // 2), ruda.float32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    tile[t % 2, t // 2] = x[i]
    ruda.syncthreads()
    o = n - 1 - t
    out[i] = tile[o % 2, o // 2]


@ruda.jit
def constexpr_string(x, out, mode: ruda.constexpr):
    i = ruda.grid(1)
    if i < out.size:
        if mode == "double":
            out[i] = 2 * x[i]
        elif mode == "negate":
            out[i] = -x[i]
        else:
            out[i] = x[i]


@ruda.jit
def constexpr_flag_removes_code(x, out, square: ruda.constexpr):
    i = ruda.grid(1)
    if i < out.size:
        value = x[i]
        if square:
            value = value * value
        out[i] = value


@ruda.jit
def constexpr_dtype(x, out, dtype: ruda.constexpr):
    i = ruda.grid(1)
    if i < out.size:
        total = dtype(0)
        total += dtype(x[i] * 3)
        out[i] = total


@ruda.jit
def constexpr_function(x, out, function: ruda.constexpr):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = function(x[i], 3)


@ruda.jit
def multiply(a, b):
    return a * b


@ruda.jit
def constexpr_tuple(x, out, weights: ruda.constexpr):
    i = ruda.grid(1)
    if i < out.size:
        total = ruda.float64(0)
        for k in ruda.unroll(range(len(weights))):
            total += weights[k] * x[i, k]
        out[i] = total


@ruda.jit
def unrolled_loop(x, out):
    i = ruda.grid(1)
    if i < out.size:
        total = 0
        for k in ruda.unroll(range(8)):
            total += (x[i] >> (4 * k)) & 15
        out[i] = total


@ruda.jit
def unrolled_nest_with_exits(x, out):
    i = ruda.grid(1)
    if i < out.size:
        total = 0
        for a in ruda.unroll(range(3)):
            for b in ruda.unroll(range(a, 4)):
                if a * b > x[i]:
                    break
                if b == 1:
                    continue
                total += 10 * a + b
        out[i] = total


def nest(limit):
    total = 0
    for a in range(3):
        for b in range(a, 4):
            if a * b > limit:
                break
            if b == 1:
                continue
            total += 10 * a + b
    return total


@ruda.jit
def unrolled_index_reaches_tuples(x, out):
    i = ruda.grid(1)
    if i < out.size:
        weights = (1, 0.5, 2)
        total = ruda.float64(0)
        for k in ruda.unroll(range(3)):
            total += weights[k] * x[i]
        out[i] = total


@ruda.jit
def unrolled_loops_of_one_name(x, out):
    """The second loop assigns the name again; each round's number is one of the compiler's."""
    i = ruda.grid(1)
    if i < out.size:
        weights = (1, 0.5, 2)
        total = ruda.float32(0)
        for k in ruda.unroll(range(3)):
            total += weights[k] * ruda.float32(x[i])
        for k in range(4):
            total += k
        for k in ruda.unroll(range(2)):
            total -= weights[k] * ruda.float32(x[i])
        out[i] = total


@ruda.jit
def optional_array(x, bias, out):
    i = ruda.grid(1)
    if i < out.size:
        value = x[i]
        if bias is not None:
            value += bias[i]
        out[i] = value


def small(rng, n):
    return integers(rng, n, least=-99, most=99)


CASES = [
    *(
        Case(
            constexpr_bound,
            lambda rng, n, bound=bound: (small(rng, n), Out(n, np.int32), bound),
            lambda x, bound: x * sum(range(bound)),
            name=f"constexpr_bound_{bound}",
        )
        for bound in (0, 1, 5)
    ),
    *(
        Case(
            constexpr_shape,
            lambda rng, n, width=width: (small(rng, n), Out(n, np.int32), width),
            windowed,
            name=f"constexpr_shape_{width}",
        )
        for width in (1, 4)
    ),
    *(
        Case(
            constexpr_shared_shape,
            lambda rng, n, block=block: (normal(rng, n * block), Out(n * block), block),
            lambda x, block: x.reshape(-1, block)[:, ::-1].ravel(),
            grid=lambda n: n,
            block=block,
            sizes=(1, 3),
            name=f"constexpr_shared_shape_{block}",
        )
        for block in (32, 64)
    ),
    *(
        Case(
            constexpr_string,
            lambda rng, n, mode=mode: (normal(rng, n), Out(n), mode),
            lambda x, mode: {"double": 2, "negate": -1}.get(mode, 1) * x,
            name=f"constexpr_string_{mode}",
        )
        for mode in ("double", "negate", "keep")
    ),
    *(
        Case(
            constexpr_flag_removes_code,
            lambda rng, n, flag=flag: (normal(rng, n), Out(n), flag),
            lambda x, flag: x * x if flag else x,
            name=f"constexpr_flag_{flag}",
        )
        for flag in (True, False)
    ),
    *(
        Case(
            constexpr_dtype,
            lambda rng, n, dtype=dtype: (integers(rng, n), Out(n, np.int64), dtype),
            lambda x, dtype: (x * np.int32(3)).astype(dtype.name),
            name=f"constexpr_dtype_{dtype.name}",
        )
        for dtype in (ruda.int8, ruda.int64)
    ),
    Case(
        constexpr_function,
        lambda rng, n: (small(rng, n), Out(n, np.int32), multiply),
        lambda x, function: 3 * x,
    ),
    Case(
        constexpr_tuple,
        lambda rng, n: (integers(rng, n, 3, least=-9, most=9), Out(n, np.float64), (1, 0.5, -2)),
        lambda x, weights: x @ np.array(weights),
    ),
    Case(
        unrolled_loop,
        lambda rng, n: (integers(rng, n), Out(n, np.int32)),
        lambda x: sum((x >> (4 * k)) & 15 for k in range(8)),
    ),
    Case(
        unrolled_nest_with_exits,
        lambda rng, n: (integers(rng, n, least=-1, most=9), Out(n, np.int32)),
        lambda x: [nest(v) for v in x.tolist()],
    ),
    Case(
        unrolled_index_reaches_tuples,
        lambda rng, n: (small(rng, n), Out(n, np.float64)),
        lambda x: 3.5 * x,
    ),
    Case(
        unrolled_loops_of_one_name,
        lambda rng, n: (small(rng, n), Out(n, np.float32)),
        lambda x: 2.0 * x + 6,
    ),
    Case(
        optional_array,
        lambda rng, n: (small(rng, n), None, Out(n, np.int32)),
        lambda x, bias: x,
        name="optional_array_absent",
    ),
    Case(
        optional_array,
        lambda rng, n: (small(rng, n), small(rng, n), Out(n, np.int32)),
        lambda x, bias: x + bias,
        name="optional_array_present",
    ),
]
