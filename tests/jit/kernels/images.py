"""Stencils and image filters in one, two and three dimensions, with tiles and halos."""

import math

import numpy as np

import ruda
from tests.jit.case import Case, InOut, Near, Out
from tests.jit.data import integers, normal

TILE = 8
RADIUS = 2
WEIGHTS = np.array([1, 4, 6, 4, 1], np.float32) / 16


def tiles(extent, tile=TILE):
    return max(1, -(-extent // tile))


def whole(rng, *shape):
    """Whole numbers: sums with dyadic weights are exact in any order."""
    return integers(rng, *shape, least=-99, most=99).astype(np.float32)


two_d = {
    "grid": lambda n: (tiles(n + 3), tiles(n)),
    "block": (TILE, TILE),
    "sizes": (1, 2, 7, 19),
    "small": 10,
}


@ruda.jit
def stencil_1d_with_halo(x, out):
    tile = ruda.shared.array(32 + 2 * RADIUS, ruda.float32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    tile[t + RADIUS] = x[i] if i < x.size else 0
    if t < RADIUS:
        left = i - RADIUS
        right = i + 32
        tile[t] = x[left] if left >= 0 else 0
        tile[t + RADIUS + 32] = x[right] if right < x.size else 0
    ruda.syncthreads()
    if i < x.size:
        total = ruda.float32(0)
        for k in range(2 * RADIUS + 1):
            total += WEIGHTS[k] * tile[t + k]
        out[i] = total


def smoothed(x):
    padded = np.pad(np.float64(x), RADIUS)
    return sum(WEIGHTS[k] * padded[k : k + x.size] for k in range(5))


@ruda.jit
def blur_tiled(image, out):
    tile = ruda.shared.array((TILE + 2, TILE + 2), ruda.float32)
    tx, ty = ruda.threadIdx.x, ruda.threadIdx.y
    j, i = ruda.grid(2)
    height, width = image.shape
    x0 = ruda.blockIdx.x * TILE - 1
    y0 = ruda.blockIdx.y * TILE - 1
    for r in range(ty, TILE + 2, TILE):
        for c in range(tx, TILE + 2, TILE):
            row = min(max(y0 + r, 0), height - 1)
            column = min(max(x0 + c, 0), width - 1)
            tile[r, c] = image[row, column]
    ruda.syncthreads()
    if i < height and j < width:
        total = ruda.float32(0)
        for r in range(3):
            for c in range(3):
                total += tile[ty + r, tx + c] * (2 - abs(r - 1)) * (2 - abs(c - 1))
        out[i, j] = total / 16


def blurred(image):
    padded = np.pad(np.float64(image), 1, mode="edge")
    height, width = image.shape
    return sum(
        padded[r : r + height, c : c + width] * (2 - abs(r - 1)) * (2 - abs(c - 1)) / 16
        for r in range(3)
        for c in range(3)
    )


@ruda.jit
def convolution(image, weights, out):
    j, i = ruda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        total = ruda.float32(0)
        for r in range(weights.shape[0]):
            for c in range(weights.shape[1]):
                total += image[i + r, j + c] * weights[r, c]
        out[i, j] = total


def convolved(image, weights):
    windows = np.lib.stride_tricks.sliding_window_view(np.float64(image), weights.shape)
    return np.einsum("ijrc,rc->ij", windows, weights)


@ruda.jit
def sobel(image, out):
    j, i = ruda.grid(2)
    if i < image.shape[0] and j < image.shape[1]:
        if i == 0 or j == 0 or i == image.shape[0] - 1 or j == image.shape[1] - 1:
            out[i, j] = 0
            return
        gx = ruda.float32(0)
        gy = ruda.float32(0)
        for k in range(-1, 2):
            weight = 2 if k == 0 else 1
            gx += weight * (image[i + k, j + 1] - image[i + k, j - 1])
            gy += weight * (image[i + 1, j + k] - image[i - 1, j + k])
        out[i, j] = math.sqrt(gx * gx + gy * gy)


def edges(image):
    out = np.zeros(image.shape)
    a = np.float64(image)
    w = (1, 2, 1)
    height, width = image.shape
    if height > 2 and width > 2:
        gx = sum(w[k] * (a[k : height - 2 + k, 2:] - a[k : height - 2 + k, :-2]) for k in range(3))
        gy = sum(w[k] * (a[2:, k : width - 2 + k] - a[:-2, k : width - 2 + k]) for k in range(3))
        out[1:-1, 1:-1] = np.sqrt(gx * gx + gy * gy)
    return out


@ruda.jit
def laplace_3d(u, out):
    x, y, z = ruda.grid(3)
    if 0 < z < u.shape[0] - 1 and 0 < y < u.shape[1] - 1 and 0 < x < u.shape[2] - 1:
        out[z, y, x] = (
            u[z - 1, y, x] + u[z + 1, y, x] + u[z, y - 1, x] + u[z, y + 1, x]
            + u[z, y, x - 1] + u[z, y, x + 1] - 6 * u[z, y, x]
        )  # fmt: skip


def laplacian(u, out):
    c = u[1:-1, 1:-1, 1:-1]
    out[1:-1, 1:-1, 1:-1] = (
        u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1]
        + u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:] - 6 * c
    )  # fmt: skip
    return out


@ruda.jit
def wave_step(now, before, after):
    i = ruda.grid(1)
    n = now.size
    if i < n:
        left = now[i - 1] if i > 0 else 0.0
        right = now[i + 1] if i < n - 1 else 0.0
        after[i] = 2 * now[i] - before[i] + 0.25 * (left - 2 * now[i] + right)


def waved(now, before):
    padded = np.pad(np.float64(now), 1)
    return 2 * now - before + 0.25 * (padded[:-2] - 2 * now + padded[2:])


@ruda.jit
def grey(image, out):
    j, i = ruda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        red, green, blue = image[i, j, 0], image[i, j, 1], image[i, j, 2]
        out[i, j] = (red * 77 + green * 150 + blue * 29) >> 8


@ruda.jit
def median_filter(image, out):
    j, i = ruda.grid(2)
    height, width = image.shape
    if i < height and j < width:
        window = ruda.local.array(9, ruda.uint8)
        count = 0
        for di in range(-1, 2):
            for dj in range(-1, 2):
                row = min(max(i + di, 0), height - 1)
                column = min(max(j + dj, 0), width - 1)
                window[count] = image[row, column]
                count += 1
        for a in range(1, 9):
            value = window[a]
            b = a - 1
            while b >= 0 and window[b] > value:
                window[b + 1] = window[b]
                b -= 1
            window[b + 1] = value
        out[i, j] = window[4]


def medians(image):
    padded = np.pad(image, 1, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3))
    return np.median(windows.reshape(*image.shape, 9), axis=2)


@ruda.jit
def equalise(image, counts, out):
    """The cumulative histogram by one thread per block, kept in shared memory."""
    levels = ruda.shared.array(256, ruda.int32)
    t = ruda.threadIdx.x
    if t == 0:
        running = 0
        for k in range(256):
            running += counts[k]
            levels[k] = running
    ruda.syncthreads()
    for i in range(ruda.grid(1), image.size, ruda.gridsize(1)):
        out[i] = levels[image[i]] * 255 // image.size


@ruda.jit
def rotate_quarter(image, out):
    j, i = ruda.grid(2)
    if i < image.shape[0] and j < image.shape[1]:
        for channel in range(image.shape[2]):
            out[image.shape[1] - 1 - j, i, channel] = image[i, j, channel]


@ruda.jit
def max_pool(image, out):
    j, i = ruda.grid(2)
    if i < out.shape[0] and j < out.shape[1]:
        best = image[2 * i, 2 * j]
        for r in range(2):
            for c in range(2):
                best = max(best, image[2 * i + r, 2 * j + c])
        out[i, j] = best


@ruda.jit
def summed_area(image, out):
    """Row sums, a barrier, column sums: one block, several elements per thread."""
    t = ruda.threadIdx.x
    height, width = image.shape
    for i in range(t, height, ruda.blockDim.x):
        running = 0
        for j in range(width):
            running += image[i, j]
            out[i, j] = running
    ruda.syncthreads()
    for j in range(t, width, ruda.blockDim.x):
        running = 0
        for i in range(height):
            running += out[i, j]
            out[i, j] = running


CASES = [
    Case(
        stencil_1d_with_halo,
        lambda rng, n: (whole(rng, n), Out(n)),
        lambda x: smoothed(x) + 0.0,
        block=32,
        sizes=(0, 1, 7, 32, 33, 100),
    ),
    Case(
        blur_tiled,
        lambda rng, n: (whole(rng, n, n + 3), Out((n, n + 3))),
        lambda image: blurred(image) + 0.0,
        **two_d,
    ),
    Case(
        convolution,
        lambda rng, n: (whole(rng, n + 4, n + 5), whole(rng, 5, 3), Out((n, n + 3))),
        convolved,
        **two_d,
    ),
    Case(
        sobel,
        lambda rng, n: (whole(rng, n, n + 3), Out((n, n + 3))),
        edges,
        ulps=1,
        **two_d,
    ),
    Case(
        laplace_3d,
        lambda rng, n: (
            whole(rng, n, n + 1, n + 2),
            InOut(np.zeros((n, n + 1, n + 2), np.float32)),
        ),
        laplacian,
        grid=lambda n: (tiles(n + 2, 4), tiles(n + 1, 4), tiles(n, 4)),
        block=(4, 4, 4),
        sizes=(2, 3, 6),
    ),
    Case(
        wave_step,
        lambda rng, n: (normal(rng, n), normal(rng, n), Out(n)),
        lambda now, before: Near(waved(now, before), 8.0),
        ulps=2,
    ),
    Case(
        grey,
        lambda rng, n: (integers(rng, n, n + 3, 3, dtype=np.uint8), Out((n, n + 3), np.uint8)),
        lambda image: (image.astype(np.int32) @ [77, 150, 29]) >> 8,
        **two_d,
    ),
    Case(
        median_filter,
        lambda rng, n: (integers(rng, n, n + 3, dtype=np.uint8), Out((n, n + 3), np.uint8)),
        medians,
        **two_d,
    ),
    Case(
        equalise,
        lambda rng, n: (
            *(lambda image: (image, np.bincount(image, minlength=256).astype(np.int32)))(
                integers(rng, n, dtype=np.uint8)
            ),
            Out(n, np.uint8),
        ),
        lambda image, counts: np.cumsum(counts)[image] * 255 // max(1, image.size),
        grid=2,
        sizes=(0, 1, 100),
        small=1,
    ),
    Case(
        rotate_quarter,
        lambda rng, n: (
            integers(rng, n, n + 3, 3, dtype=np.uint8),
            Out((n + 3, n, 3), np.uint8),
        ),
        np.rot90,
        **two_d,
    ),
    Case(
        max_pool,
        lambda rng, n: (normal(rng, 2 * n, 2 * n + 6), Out((n, n + 3))),
        lambda image: image.reshape(image.shape[0] // 2, 2, -1, 2).max(axis=(1, 3)),
        **two_d,
    ),
    Case(
        summed_area,
        lambda rng, n: (integers(rng, n, n + 3, least=-99, most=99), Out((n, n + 3), np.int32)),
        lambda image: image.cumsum(axis=0).cumsum(axis=1),
        grid=1,
        block=16,
        sizes=(1, 7, 40),
        small=7,
    ),
]
