"""Text as numbers: the characters of a file, for models that predict the next one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ruda.errors import UsageError
from ruda.tensor import Tensor, asarray

Array = np.ndarray[Any, Any]
MOST = 1 << 28  # bytes of a file


class Text(NamedTuple):
    """Numbers of characters for training and test, and the characters by number."""

    train: Array
    test: Array
    characters: str

    def decode(self, numbers: Any) -> str:
        """The characters of numbers."""
        return "".join(self.characters[int(n)] for n in numbers)


def text(path: str | os.PathLike[str] | None = None, test_share: float = 0.1) -> Text:
    """A UTF-8 file; without one the reference that Python's `help` shows (`pydoc_data`)."""
    if path is None:
        from pydoc_data.topics import topics

        content = "\n\n".join(topics[name] for name in sorted(topics))
    else:
        file = Path(path)
        if not file.is_file():
            raise UsageError(f"there is no file {file}")
        if file.stat().st_size > MOST:
            raise UsageError(f"{file} has more than {MOST} bytes")
        try:
            content = file.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"{file} is no UTF-8 text: {error}") from None
    if len(content) < 1000:
        raise UsageError(f"a text of {len(content)} characters is too short to learn from")
    codes, numbers = np.unique(
        np.frombuffer(content.encode("utf-32-le"), np.uint32), return_inverse=True
    )
    split = len(numbers) - int(len(numbers) * test_share)
    characters = "".join(map(chr, codes))
    whole = numbers.astype(np.int64)
    return Text(whole[:split], whole[split:], characters)


def passages(
    numbers: Array,
    length: int,
    size: int,
    steps: int,
    rng: np.random.Generator,
    device: Any = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of passages from anywhere, (size, length), and of the characters that follow each.

    >>> x, y = next(passages(np.arange(9), 4, 2, 1, np.random.default_rng(0)))
    >>> x.shape, (y - x).tolist()[0]
    ((2, 4), [1, 1, 1, 1])
    """
    if len(numbers) <= length:
        raise UsageError(f"a text of {len(numbers)} characters has no passage of {length}")
    for _ in range(steps):
        starts = rng.integers(0, len(numbers) - length, size)
        rows = numbers[starts[:, None] + np.arange(length + 1)]
        yield asarray(rows[:, :-1], device=device), asarray(rows[:, 1:], device=device)
