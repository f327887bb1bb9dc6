"""Random inputs for kernels, with the values on which compilers stumble put first."""

from __future__ import annotations

import math

import numpy as np

INTEGERS = [np.dtype(f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
FLOATS = [np.dtype(f"float{bits}") for bits in (16, 32, 64)]


def normal(rng: np.random.Generator, *shape: int, dtype: object = np.float32) -> np.ndarray:
    return rng.normal(size=shape).astype(dtype)


def uniform(
    rng: np.random.Generator, low: float, high: float, *shape: int, dtype: object = np.float32
) -> np.ndarray:
    return rng.uniform(low, high, shape).astype(dtype)


def integers(
    rng: np.random.Generator, *shape: int, dtype: object = np.int32, least=None, most=None
) -> np.ndarray:
    """Integers of the whole range (or from least to most), the ends and 0, 1, -1 first."""
    info = np.iinfo(dtype)
    low = info.min if least is None else least
    high = info.max if most is None else most
    values = rng.integers(low, high, shape, dtype=dtype, endpoint=True)
    edges = [v for v in (low, high, 0, 1, -1, low + 1, high - 1) if low <= v <= high]
    return with_first(values, edges, rng)


def floats(rng: np.random.Generator, *shape: int, dtype: object = np.float32) -> np.ndarray:
    """Floats of many magnitudes, among them NaN, the infinities, both zeros and subnormals."""
    info = np.finfo(dtype)
    exponents = rng.uniform(math.log2(float(info.tiny)) / 2, math.log2(float(info.max)) / 2, shape)
    values = (rng.choice([-1.0, 1.0], shape) * np.exp2(exponents)).astype(dtype)
    edges = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0]
    edges += [float(v) for v in (info.max, info.min, info.tiny, info.smallest_subnormal, info.eps)]
    return with_first(values, edges, rng)


def with_first(values: np.ndarray, edges: list, rng: np.random.Generator) -> np.ndarray:
    """Put the edges at random places, as many as fit in half of the array."""
    flat = values.reshape(-1)
    if flat.size > 2:
        places = rng.permutation(flat.size)[: min(len(edges), flat.size // 2)]
        chosen = rng.permutation(len(edges))[: len(places)]
        flat[places] = [edges[i] for i in chosen]
    return flat.reshape(values.shape)


def booleans(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.random(shape) < 0.5
