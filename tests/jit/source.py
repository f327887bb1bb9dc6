"""Run module text as if it were a file, so that tracebacks and ruda find its source."""

from __future__ import annotations

import itertools
import linecache
from typing import Any

import numpy as np

import ruda

_counter = itertools.count()


def define(text: str, name: str = "kernel", **names: Any) -> Any:
    """The object called `name` after running the text, in which `ruda` and `np` are known."""
    filename = f"<test source {next(_counter)}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    namespace = {"ruda": ruda, "np": np, "__name__": "test_source", **names}
    exec(compile(text, filename, "exec"), namespace)
    return namespace[name]
