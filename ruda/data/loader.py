"""Batches of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ruda.tensor import Tensor, asarray


def batches(
    *arrays: Any,
    size: int,
    rng: np.random.Generator | None = None,
    device: Any = None,
    drop_last: bool = False,
) -> Iterator[tuple[Tensor, ...]]:
    """Rows of arrays of one length, `size` at a time, shuffled by `rng` if it is given.

    >>> import numpy as np
    >>> [x.shape for x, y in batches(np.zeros((5, 2)), np.zeros(5), size=2)]
    [(2, 2), (2, 2), (1, 2)]
    """
    if size < 1:
        raise ValueError(f"a batch has at least one row, not {size}")
    n = len(arrays[0])
    if any(len(a) != n for a in arrays):
        raise ValueError(f"arrays of lengths {[len(a) for a in arrays]}")
    order = np.arange(n) if rng is None else rng.permutation(n)
    for start in range(0, n - size + 1 if drop_last else n, size):
        rows = order[start : start + size]
        yield tuple(asarray(np.asarray(a)[rows], device=device) for a in arrays)
