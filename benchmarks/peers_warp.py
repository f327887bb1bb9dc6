"""The rows' kernels in Warp, on its CPU device."""

from collections.abc import Callable
from typing import Any

import numpy as np
import warp as wp

wp.config.quiet = True
wp.init()


@wp.kernel
def saxpy_kernel(
    a: wp.float32,
    x: wp.array(dtype=wp.float32),
    y: wp.array(dtype=wp.float32),
    out: wp.array(dtype=wp.float32),
):
    i = wp.tid()
    out[i] = a * x[i] + y[i]


@wp.kernel
def stencil_kernel(x: wp.array2d(dtype=wp.float32), out: wp.array2d(dtype=wp.float32)):
    i, j = wp.tid()
    if i > 0 and i < x.shape[0] - 1 and j > 0 and j < x.shape[1] - 1:
        out[i, j] = 0.2 * (x[i, j] + x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1])


@wp.kernel
def histogram_kernel(x: wp.array(dtype=wp.int32), counts: wp.array(dtype=wp.int32)):
    wp.atomic_add(counts, x[wp.tid()], 1)


def _launcher(kernel: Any, dim: Any, inputs: list[Any]) -> Callable[[], Any]:
    return lambda: wp.launch(kernel, dim=dim, inputs=inputs, device="cpu")


def saxpy(a: Any, x: Any, y: Any) -> Callable[[], Any]:
    arrays = [wp.array(v, dtype=wp.float32, device="cpu") for v in (x, y, np.empty_like(x))]
    return _launcher(saxpy_kernel, x.size, [float(a), *arrays])


def stencil(image: Any) -> Callable[[], Any]:
    arrays = [wp.array(v, dtype=wp.float32, device="cpu") for v in (image, np.zeros_like(image))]
    return _launcher(stencil_kernel, image.shape, arrays)


def histogram(values: Any, bins: int) -> Callable[[], Any]:
    arrays = [wp.array(v, dtype=wp.int32, device="cpu") for v in (values, np.zeros(bins, np.int32))]
    return _launcher(histogram_kernel, values.size, arrays)
