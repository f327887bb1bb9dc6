"""What becomes of each name of `numba.cuda`: reads the table numba-cuda.txt beside this file.

It serves two readers: docs/generate.py, and whoever writes a refused name and is told by the
AttributeError what to write instead.
"""

from __future__ import annotations

import functools
import importlib
import re
from importlib import resources
from typing import Any, NamedTuple

UNDOCUMENTED = "Not documented by numba-cuda, but met in programs"  # the area of such names
VERDICTS = ("same", "different", "refused")


class Row(NamedTuple):
    """One name of numba.cuda."""

    area: str
    name: str
    verdict: str
    ruda: str  # its name in ruda; "" if refused
    text: str


def expand(pattern: str) -> list[str]:
    """The names that a pattern with braces stands for.

    >>> expand("to_{a,b}{1,2}")
    ['to_a1', 'to_a2', 'to_b1', 'to_b2']
    """
    match = re.search(r"\{([^}]*)\}", pattern)
    if match is None:
        return [pattern]
    head, tail = pattern[: match.start()], pattern[match.end() :]
    return [name for part in match[1].split(",") for name in expand(head + part + tail)]


@functools.cache
def rows() -> tuple[Row, ...]:
    """The table, one row a name."""
    area, found = "", []
    text = resources.files("ruda").joinpath("numba-cuda.txt").read_text("utf-8")
    for line in text.splitlines():
        if line.startswith("## "):
            area = line[3:]
        elif line and not line.startswith("#"):
            pattern, verdict, ruda, how = (column.strip() for column in line.split("|", 3))
            names = expand(pattern)
            targets = expand(ruda) if ruda else names
            if len(targets) == 1:
                targets *= len(names)
            for name, target in zip(names, targets, strict=True):
                found.append(Row(area, name, verdict, "" if verdict == "refused" else target, how))
    return tuple(found)


# Modules of others whose functions kernels may call.
LIBRARY = ("builtins", "cmath", "math", "numpy", "operator")

# Submodules of numba.cuda that exist in ruda only through this table.
GROUPS = ("bf16", "fp16", "launchconfig", "libdevice")


class Group:
    """`ruda.libdevice` and its like: its attributes are what the table says."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        return attribute(f"{self.__name__}.{name}")

    def __repr__(self) -> str:
        return f"<ruda.{self.__name__}, see docs/numba-cuda.md>"


def attribute(name: str) -> Any:
    """What `ruda.NAME` is for a name that is only numba-cuda's; else an AttributeError with a hint.

    >>> import math
    >>> attribute("libdevice").sinf is math.sin, attribute("f4")
    (True, ruda.float32)
    >>> attribute("compile_ptx")
    Traceback (most recent call last):
    ...
    AttributeError: ruda has no `compile_ptx`: `kernel.source(target, ...)` and ... no device
    >>> attribute("griid")
    Traceback (most recent call last):
    ...
    AttributeError: module 'ruda' has no attribute 'griid'
    """
    if name in GROUPS:
        return Group(name)
    row = next((row for row in rows() if row.name == name), None)
    if row is None:  # with name and object, Python adds "Did you mean" to a traceback
        ruda = importlib.import_module("ruda")
        raise AttributeError(f"module 'ruda' has no attribute {name!r}", name=name, obj=ruda)
    if row.verdict == "refused":
        raise AttributeError(f"ruda has no `{name}`: {row.text}")
    if row.ruda == name:
        raise AttributeError(f"ruda does not have numba-cuda's `{name}` yet")
    if row.text:
        raise AttributeError(f"ruda has no `{name}` but `{row.ruda}`: {row.text}")
    return resolve(row.ruda)


def resolve(path: str) -> Any:
    """The object with a name of the table's third column: in ruda or in `math` and its like."""
    first, _, rest = path.partition(".")
    if first in LIBRARY:
        return getattr(importlib.import_module(first), rest)
    return functools.reduce(getattr, path.split("."), importlib.import_module("ruda"))
