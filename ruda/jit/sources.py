"""Keep the text of decorated functions as it was when they were defined.

Kernels are translated when they are first launched. By then the file may have been edited: its
line numbers would lead to other lines. So the decorator takes hold of the file's lines, which
`linecache` has anyhow, one list for all kernels of a file.
"""

from __future__ import annotations

import inspect
import linecache
import types
import weakref

_LINES: weakref.WeakKeyDictionary[types.FunctionType, list[str]] = weakref.WeakKeyDictionary()


def remember(function: types.FunctionType) -> None:
    """Keep the lines of the function's file."""
    lines = linecache.getlines(function.__code__.co_filename, function.__globals__)
    if lines:
        _LINES[function] = lines


def lines_of(function: types.FunctionType) -> tuple[list[str], int]:
    """The lines of a function from its first decorator on, and the number of the first.

    OSError if Python keeps no source for it.
    """
    lines = _LINES.get(function)
    first = function.__code__.co_firstlineno
    if lines is None or first > len(lines):
        return inspect.getsourcelines(function)
    return inspect.getblock(lines[first - 1 :]), first
