"""Reports of a 910B, whose atomics do not tell the place that a record got: a part for each core.

A part is a report buffer of its own (see `ruda.backends.cpu.reports`). One core alone writes it, by
copies that it orders itself, so nobody asks for places; the host puts the records together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ruda.backends.cpu.reports import HEAD

Words = np.ndarray[Any, np.dtype[np.int64]]


def parted(nbytes: int, cores: int) -> Words:
    """An empty buffer: as many parts as cores, of one length.

    >>> parted(4096, 4).shape
    (4, 128)
    """
    words = np.zeros((cores, max(HEAD + 16, nbytes // 8 // cores)), np.int64)
    words[:, 1] = words.shape[1] - HEAD
    return words


def joined(parts: Words) -> Words:
    """One buffer with the records of all parts.

    >>> parts = parted(4096, 2)
    >>> parts[0, 0], parts[1, 0], parts[1, 3:7] = 0, 4, [1, 5, 0, 42]
    >>> [int(w) for w in joined(parts)]
    [4, 4, 0, 1, 5, 0, 42]
    """
    records = [p[HEAD : HEAD + int(p[0])] for p in parts]
    used = sum(map(len, records))
    head = np.array([used, used, parts[:, 2].sum()], np.int64)
    return np.concatenate([head, *records])
