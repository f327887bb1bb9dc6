"""`ruda demo`: the same kernels on a real photograph, on every device, compared with NumPy.

Blur and edges read a shared tile with a halo behind a barrier; equalisation counts grey levels with
shared and global atomics. The picture is checked as it is, and tiled to 4096 x 4096 for the times.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ruda
from ruda.errors import LaunchWarning, UnsupportedError, UsageError

TILE = 16
HALO = TILE + 2
LEVELS = 256
Image = np.ndarray[Any, np.dtype[Any]]


@ruda.jit(device=True)
def load_tile(tile, image):  # type: ignore[no-untyped-def]
    """Copy the block's pixels and a border of one into shared memory; edges repeat."""
    height, width = image.shape
    x0 = ruda.blockIdx.x * TILE - 1
    y0 = ruda.blockIdx.y * TILE - 1
    for r in range(ruda.threadIdx.y, HALO, TILE):
        for c in range(ruda.threadIdx.x, HALO, TILE):
            y = min(max(y0 + r, 0), height - 1)
            x = min(max(x0 + c, 0), width - 1)
            tile[r, c] = image[y, x]
    ruda.syncthreads()


@ruda.jit
def blur(image, out):  # type: ignore[no-untyped-def]
    """The mean of 3 x 3 pixels."""
    tile = ruda.shared.array((HALO, HALO), ruda.float32)
    load_tile(tile, image)
    x, y = ruda.grid(2)
    if x < out.shape[1] and y < out.shape[0]:
        r, c = ruda.threadIdx.y, ruda.threadIdx.x
        total = 0.0
        for i in range(3):
            for j in range(3):
                total += tile[r + i, c + j]
        out[y, x] = total / 9


@ruda.jit
def edges(image, out):  # type: ignore[no-untyped-def]
    """The length of the Sobel gradient."""
    tile = ruda.shared.array((HALO, HALO), ruda.float32)
    load_tile(tile, image)
    x, y = ruda.grid(2)
    if x < out.shape[1] and y < out.shape[0]:
        r, c = ruda.threadIdx.y + 1, ruda.threadIdx.x + 1
        right = tile[r - 1, c + 1] + 2 * tile[r, c + 1] + tile[r + 1, c + 1]
        left = tile[r - 1, c - 1] + 2 * tile[r, c - 1] + tile[r + 1, c - 1]
        below = tile[r + 1, c - 1] + 2 * tile[r + 1, c] + tile[r + 1, c + 1]
        above = tile[r - 1, c - 1] + 2 * tile[r - 1, c] + tile[r - 1, c + 1]
        gx, gy = right - left, below - above
        out[y, x] = ruda.fmin(math.sqrt(gx * gx + gy * gy), 1.0)


@ruda.jit
def count_levels(image, counts):  # type: ignore[no-untyped-def]
    """A histogram of grey levels: one in shared memory a block, added to the global one."""
    local = ruda.shared.array(LEVELS, ruda.int32)
    t = ruda.threadIdx.x
    for k in range(t, LEVELS, ruda.blockDim.x):
        local[k] = 0
    ruda.syncthreads()
    height, width = image.shape
    for y in range(ruda.blockIdx.x, height, ruda.gridDim.x):
        for x in range(t, width, ruda.blockDim.x):
            level = min(max(int(image[y, x] * 255), 0), LEVELS - 1)
            ruda.atomic.add(local, level, 1)
    ruda.syncthreads()
    for k in range(t, LEVELS, ruda.blockDim.x):
        ruda.atomic.add(counts, k, local[k])


@ruda.jit
def equalise(image, table, out):  # type: ignore[no-untyped-def]
    """Replace each grey level by the share of pixels that are not brighter."""
    x, y = ruda.grid(2)
    if x < out.shape[1] and y < out.shape[0]:
        out[y, x] = table[min(max(int(image[y, x] * 255), 0), LEVELS - 1)]


def _grid(image: Image) -> tuple[int, int]:
    return -(-image.shape[1] // TILE), -(-image.shape[0] // TILE)


def run_blur(image: Image, out: Image) -> None:
    blur[_grid(image), (TILE, TILE)](image, out)


def run_edges(image: Image, out: Image) -> None:
    edges[_grid(image), (TILE, TILE)](image, out)


def run_equalise(image: Image, out: Image) -> None:
    counts = np.zeros(LEVELS, np.int32)
    count_levels[min(image.shape[0], 64), 256](image, counts)
    table = (np.cumsum(counts) / image.size).astype(np.float32)
    equalise[_grid(image), (TILE, TILE)](image, table, out)


# ---- the same in NumPy ----


def _shifted(image: Image) -> list[list[Image]]:
    """The nine neighbours of every pixel; edges repeat."""
    h, w = image.shape
    p = np.pad(image.astype(np.float64), 1, mode="edge")
    return [[p[i : i + h, j : j + w] for j in range(3)] for i in range(3)]


def numpy_blur(image: Image) -> Image:
    n = _shifted(image)
    mean: Image = np.sum([n[i][j] for i in range(3) for j in range(3)], axis=0) / 9
    return mean


def numpy_edges(image: Image) -> Image:
    n = _shifted(image)
    gx = n[0][2] + 2 * n[1][2] + n[2][2] - n[0][0] - 2 * n[1][0] - n[2][0]
    gy = n[2][0] + 2 * n[2][1] + n[2][2] - n[0][0] - 2 * n[0][1] - n[0][2]
    length: Image = np.minimum(np.sqrt(gx * gx + gy * gy), 1)
    return length


def numpy_equalise(image: Image) -> Image:
    level = np.clip((image * np.float32(255)).astype(np.int32), 0, LEVELS - 1)
    counts = np.bincount(level.ravel(), minlength=LEVELS)
    return (np.cumsum(counts) / image.size).astype(np.float32)[level]


class Step(NamedTuple):
    """One picture of the demo."""

    name: str
    run: Callable[[Image, Image], None]
    reference: Callable[[Image], Image]


STEPS = (
    Step("blur", run_blur, numpy_blur),
    Step("edges", run_edges, numpy_edges),
    Step("equalise", run_equalise, numpy_equalise),
)


# ---- the command ----


def photograph(path: str | None) -> Image:
    """A grey picture in [0, 1]: the given file, or the photograph that scikit-learn carries."""
    if path is None:
        try:
            from sklearn.datasets import load_sample_image
        except ImportError:
            raise UsageError(
                "the demo needs a photograph: pip install 'ruda[demo]', or name a file"
            ) from None
        pixels = load_sample_image("china.jpg")
    else:
        try:
            from PIL import Image as pillow
        except ImportError:
            raise UsageError("reading pictures needs pillow: pip install 'ruda[demo]'") from None
        try:
            pixels = np.asarray(pillow.open(path).convert("RGB"))
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error}") from None
    grey: Image = (pixels @ np.array([0.299, 0.587, 0.114]) / 255).astype(np.float32)
    return grey


def tiled(image: Image, size: int) -> Image:
    """The picture repeated to size x size pixels."""
    repeats = [-(-size // n) for n in image.shape]
    return np.ascontiguousarray(np.tile(image, repeats)[:size, :size])


def measure(step: Step, image: Image, rounds: int) -> float:
    """The median time of a launch, in milliseconds, after one to warm up."""
    out = np.empty_like(image)
    step.run(image, out)
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        step.run(image, out)
        times.append(time.perf_counter() - start)
    return 1e3 * float(np.median(times))


def numpy_time(step: Step, image: Image) -> float:
    start = time.perf_counter()
    step.reference(image)
    return 1e3 * (time.perf_counter() - start)


def main(photo: str | None = None, *, small: bool = False, output: str = "demo.png") -> int:
    """Run the demo; 0 if every device agrees with NumPy."""
    image = photograph(photo)
    size = 512 if small else 4096
    big = tiled(image, size)
    # The time of an interpreter or emulation means nothing: it gets a part of the picture.
    part = np.ascontiguousarray(image[: 4 * TILE, : 4 * TILE])
    print(f"photograph {image.shape[1]} x {image.shape[0]}, times at {size} x {size}")
    devices = ruda.devices()
    wide = max(map(len, ["device", *(d.name for d in devices)]))
    print(f"{'device':{wide}} {'kernel':10} {'time':>12} {'difference':>12}")
    agreed = True
    pictures: list[Image] = [image]
    for step in STEPS:
        print(f"{'numpy':{wide}} {step.name:10} {numpy_time(step, big):9.1f} ms {'':>12}")
    for device in devices:
        with ruda.config(device=device.name), warnings.catch_warnings():
            # Pictures are copied to devices and back, as by a first program: no word of it here.
            warnings.simplefilter("ignore", LaunchWarning)
            for step in STEPS:
                slow = device.kind in ("interpreter", "emulation")
                source = part if slow else image
                out = np.full_like(source, np.nan)
                try:
                    step.run(source, out)
                except UnsupportedError as error:  # a chip that lacks an instruction
                    print(
                        f"{device.name:{wide}} {step.name:10} refused: {error.msg.splitlines()[0]}"
                    )
                    continue
                difference = float(np.max(np.abs(out - step.reference(source))))
                agreed &= difference < 2e-6
                shown = "" if slow else f"{measure(step, big, 3 if small else 7):9.1f} ms"
                print(f"{device.name:{wide}} {step.name:10} {shown:>12} {difference:12.1e}")
                if device.name == "cpu":
                    pictures.append(out)
    if output:
        save(pictures, output)
    print("all devices agree with NumPy" if agreed else "A DEVICE DISAGREES WITH NUMPY")
    return 0 if agreed else 1


def save(pictures: Sequence[Image], output: str) -> None:
    """The pictures side by side, as PNG."""
    try:
        from PIL import Image as pillow
    except ImportError:
        print("no picture written: pip install 'ruda[demo]'")
        return
    rows = [np.hstack(pictures[k : k + 2]) for k in range(0, len(pictures) - 1, 2)]
    pixels = (255 * np.clip(np.vstack(rows), 0, 1)).astype(np.uint8)
    pillow.fromarray(pixels).save(output)
    print(f"wrote {Path(output)}")
