"""Kernels that factorise matrices where they lie: LU, Cholesky, Householder's QR, Jacobi's SVD.

Each takes stacks of matrices. They are factorised from the left to the right: a panel of 32
columns by one block of threads for a matrix, then `subtract_product` brings the columns after it
up to date with many. A matrix of up to 32 columns is one panel, one launch for a whole stack.
QR does the same with reflectors. Singular values come from rotations of pairs of rows (Hestenes'
one-sided form of Jacobi's method), all disjoint pairs of a round at once.

Threads are 32 along the columns times 8 along the rows, so that neighbours read neighbours. No
barrier is under a condition on elements: WebGPU would refuse it.
"""

# mypy: disable-error-code="no-untyped-def,comparison-overlap,operator,index,arg-type,call-overload"
# What kernels take has the types of the kernel language, of which mypy knows nothing.

from __future__ import annotations

import math

from ruda.dtypes import int32
from ruda.jit import jit
from ruda.jit.language import blockIdx, constexpr, grid, shared, syncthreads, threadIdx

THREADS = 256
WIDE = 32  # columns of a panel, and threads along the columns
TALL = THREADS // WIDE
PAIR = 64  # threads that rotate a pair of rows
TILE = 16  # of a product, each side
COLUMNS = 64  # of a block whose threads have a column each

# ---- LU and Cholesky -----------------------------------------------------------------------------


@jit(wraparound=False)
def lu_panel(a, pivots, singular, start, stop, kind: constexpr):
    """Columns start to stop of P A = L U; rows are exchanged within the panel only."""
    best = shared.array(THREADS, kind)
    where = shared.array(THREADS, int32)
    b, t = blockIdx.x, threadIdx.x
    tx, ty = t % WIDE, t // WIDE
    n = a.shape[1]
    for k in range(start, stop):
        size = kind(-1)
        row = int32(k)
        for i in range(k + t, n, THREADS):
            v = abs(a[b, i, k])
            if v > size:
                size = v
                row = int32(i)
        best[t] = size
        where[t] = row
        syncthreads()
        half = THREADS // 2
        while half > 0:
            if t < half:
                other = best[t + half]
                if other > best[t] or (other == best[t] and where[t + half] < where[t]):
                    best[t] = other
                    where[t] = where[t + half]
            syncthreads()
            half //= 2
        p = where[0]
        if t == 0:
            pivots[b, k] = p
        if t < stop - start and p != k:
            v = a[b, k, start + t]
            a[b, k, start + t] = a[b, p, start + t]
            a[b, p, start + t] = v
        syncthreads()
        pivot = a[b, k, k]
        if t == 0 and pivot == kind(0):
            singular[b] = int32(1)
        if pivot != kind(0):
            for i in range(k + 1 + t, n, THREADS):
                a[b, i, k] = a[b, i, k] / pivot
        syncthreads()
        c = start + tx
        if c > k and c < stop:
            u = a[b, k, c]
            for i in range(k + 1 + ty, n, TALL):
                a[b, i, c] = a[b, i, c] - a[b, i, k] * u
        syncthreads()


@jit(wraparound=False)
def swap_rows(x, pivots, start, stop, first, last):
    """The exchanges of a panel in all columns of `x` but those from first to last."""
    c, b = grid(2)
    if c < x.shape[2] and (c < first or c >= last):
        for k in range(start, stop):
            p = pivots[b, k]
            if p != k:
                v = x[b, k, c]
                x[b, k, c] = x[b, p, c]
                x[b, p, c] = v


@jit(wraparound=False)
def solve_triangle(l, x, start, stop, first, upper: constexpr):
    """Rows start to stop of x solve l x, in the columns from `first`; lower ones have a unit
    diagonal. Others than start to stop are left as they are."""
    c, b = grid(2)
    c += first
    if c < x.shape[2]:
        for step in range(stop - start):
            if upper:
                k = stop - 1 - step
                v = x[b, k, c] / l[b, k, k]
                x[b, k, c] = v
                for i in range(start, k):
                    x[b, i, c] = x[b, i, c] - l[b, i, k] * v
            else:
                k = start + step
                v = x[b, k, c]
                for i in range(k + 1, stop):
                    x[b, i, c] = x[b, i, c] - l[b, i, k] * v


@jit(wraparound=False)
def subtract_product(
    out, x, y, rows, low, high, first, start, stop, kind: constexpr, mirrored: constexpr
):
    """out[b, r, c] -= the sum over k from start to stop of x[b, r, k] y[b, k, c].

    rows      blocks of a matrix along its columns, of which the grid has `rows` for each matrix
    low, high  the rows, and the columns from `first`
    mirrored  y is read as its transpose
    """
    left = shared.array((TILE, TILE), kind)
    right = shared.array((TILE, TILE), kind)
    tx, ty = threadIdx.x, threadIdx.y
    b = blockIdx.x // rows
    r, c = low + blockIdx.y * TILE + ty, first + blockIdx.x % rows * TILE + tx
    total = kind(0)
    for at in range(start, stop, TILE):
        left[ty, tx] = kind(0)
        if r < high and at + tx < stop:
            left[ty, tx] = x[b, r, at + tx]
        if mirrored:
            if at + tx < stop and first + blockIdx.x % rows * TILE + ty < out.shape[2]:
                right[tx, ty] = y[b, first + blockIdx.x % rows * TILE + ty, at + tx]
            else:
                right[tx, ty] = kind(0)
        else:
            right[ty, tx] = kind(0)
            if at + ty < stop and c < out.shape[2]:
                right[ty, tx] = y[b, at + ty, c]
        syncthreads()
        for k in range(TILE):
            total += left[ty, k] * right[k, tx]
        syncthreads()
    if r < high and c < out.shape[2]:
        out[b, r, c] = out[b, r, c] - total


@jit(wraparound=False)
def cholesky_panel(a, wrong, start, stop, kind: constexpr):
    """Columns start to stop of the lower factor; what is above the diagonal is left."""
    b, t = blockIdx.x, threadIdx.x
    tx, ty = t % WIDE, t // WIDE
    n = a.shape[1]
    for k in range(start, stop):
        pivot = a[b, k, k]
        syncthreads()
        if t == 0 and not pivot > kind(0):  # NaN has no root either
            wrong[b] = int32(1)
        root = math.sqrt(pivot)
        for i in range(k + t, n, THREADS):
            a[b, i, k] = root if i == k else a[b, i, k] / root
        syncthreads()
        c = start + tx
        if c > k and c < stop:
            u = a[b, c, k]
            for i in range(c + ty, n, TALL):
                a[b, i, c] = a[b, i, c] - a[b, i, k] * u
        syncthreads()


# ---- QR ------------------------------------------------------------------------------------------


@jit(device=True, wraparound=False)
def reflect_column(x, a, part, b, c, k, inside, f, kind: constexpr):
    """Reflector k of `a` applied to a column of x, by TALL threads for each of WIDE columns."""
    t = threadIdx.x
    tx, ty = t % WIDE, t // WIDE
    m = x.shape[1]
    dot = kind(0)
    if inside:
        for i in range(k + 1 + ty, m, TALL):
            dot += a[b, i, k] * x[b, i, c]
    part[t] = dot
    syncthreads()
    if inside:
        dot = x[b, k, c]
        for q in range(TALL):
            dot += part[q * WIDE + tx]
        dot = dot * f
        for i in range(k + 1 + ty, m, TALL):
            x[b, i, c] = x[b, i, c] - dot * a[b, i, k]
    syncthreads()
    if inside and ty == 0:
        x[b, k, c] = x[b, k, c] - dot
    syncthreads()


@jit(wraparound=False)
def reflect_panel(a, factors, start, stop, tiny: constexpr, kind: constexpr):
    """Householder's reflectors 1 - f v v^T of columns start to stop; v is left below the diagonal.

    The elements' sizes are at most 1: a column shorter than the root of `tiny` counts as 0.
    """
    part = shared.array(THREADS, kind)
    b, t = blockIdx.x, threadIdx.x
    tx = t % WIDE
    m = a.shape[1]
    for k in range(start, stop):
        squares = kind(0)
        for i in range(k + 1 + t, m, THREADS):
            squares += a[b, i, k] * a[b, i, k]
        part[t] = squares
        syncthreads()
        half = THREADS // 2
        while half > 0:
            if t < half:
                part[t] += part[t + half]
            syncthreads()
            half //= 2
        squares = part[0]
        head = a[b, k, k]
        syncthreads()
        f = kind(0)
        end = head
        scale = kind(0)
        if not (squares <= kind(tiny)):
            end = math.sqrt(head * head + squares)
            if head > kind(0):
                end = -end
            f = (end - head) / end
            scale = kind(1) / (head - end)
        for i in range(k + 1 + t, m, THREADS):
            a[b, i, k] = a[b, i, k] * scale
        if t == 0:
            a[b, k, k] = end
            factors[b, k] = f
        syncthreads()
        c = start + tx
        reflect_column(a, a, part, b, c, k, c > k and c < stop, f, kind)


@jit(wraparound=False)
def reflect(x, a, factors, blocks, start, stop, first, backwards: constexpr, kind: constexpr):
    """The reflectors start to stop of `a` applied to the columns of x from `first`."""
    part = shared.array(THREADS, kind)
    b = blockIdx.x // blocks
    c = first + blockIdx.x % blocks * WIDE + threadIdx.x % WIDE
    inside = c < x.shape[2]
    for step in range(stop - start):
        k = stop - 1 - step if backwards else start + step
        reflect_column(x, a, part, b, c, k, inside, factors[b, k], kind)


# ---- singular values -----------------------------------------------------------------------------


@jit(wraparound=False)
def rotate(g, v, pairs, turned, tolerance: constexpr, small: constexpr, kind: constexpr):
    """Turn pairs of rows of `g` until they are orthogonal, and those of `v` with them.

    turned[b] is 1 after a rotation, 2 where a number is NaN. Rows both shorter than `small` are
    rounding, and left.
    """
    first = shared.array(PAIR, kind)
    second = shared.array(PAIR, kind)
    both = shared.array(PAIR, kind)
    t = threadIdx.x
    b, which = blockIdx.x // pairs.shape[0], blockIdx.x % pairs.shape[0]
    i, j = pairs[which, 0], pairs[which, 1]
    p, q, r = kind(0), kind(0), kind(0)
    for k in range(t, g.shape[2], PAIR):
        x = g[b, i, k]
        y = g[b, j, k]
        p += x * x
        q += y * y
        r += x * y
    first[t] = p
    second[t] = q
    both[t] = r
    syncthreads()
    half = PAIR // 2
    while half > 0:
        if t < half:
            first[t] += first[t + half]
            second[t] += second[t + half]
            both[t] += both[t + half]
        syncthreads()
        half //= 2
    p = first[0]
    q = second[0]
    r = both[0]
    if t == 0 and r != r:
        turned[b] = int32(2)
    apart = abs(r) <= kind(tolerance) * math.sqrt(p) * math.sqrt(q)
    if abs(r) > kind(0) and not apart and max(p, q) > kind(small) * kind(small):
        zeta = (q - p) / (r + r)
        size = abs(zeta)
        slope = kind(0.5) / size  # of a large zeta, whose square may be infinite
        if size < kind(1e8):
            slope = kind(1) / (size + math.sqrt(kind(1) + zeta * zeta))
        if zeta < kind(0):
            slope = -slope
        c = kind(1) / math.sqrt(kind(1) + slope * slope)
        s = c * slope
        for k in range(t, g.shape[2], PAIR):
            x = g[b, i, k]
            y = g[b, j, k]
            g[b, i, k] = c * x - s * y
            g[b, j, k] = s * x + c * y
        for k in range(t, v.shape[2], PAIR):
            x = v[b, i, k]
            y = v[b, j, k]
            v[b, i, k] = c * x - s * y
            v[b, j, k] = s * x + c * y
        if t == 0:
            turned[b] = int32(1)
