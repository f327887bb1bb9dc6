"""A call with its arguments, and the tables that say who handles it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ruda.errors import (
    KernelTypeError,
    Place,
)
from ruda.jit.frontend import Translator
from ruda.jit.values import (
    Value,
)


@dataclass(frozen=True)
class Call:
    """A call with its arguments evaluated."""

    t: Translator
    node: ast.Call
    name: str
    arguments: list[Value]
    keywords: dict[str, Value]
    place: Place

    def bind(self, *names: str, optional: int = 0) -> list[Value | None]:
        """The arguments by parameter name, positional or keyword; the last `optional` may be left
        out."""
        out: list[Value | None] = list(self.arguments)
        if len(out) > len(names):
            plural = "s" * (len(names) != 1)
            raise KernelTypeError(
                f"`{self.name}` takes {len(names)} argument{plural} ({', '.join(names)}), "
                f"not {len(out)}",
                self.place,
            )
        out += [None] * (len(names) - len(out))
        for key, value in self.keywords.items():
            if key not in names:
                raise KernelTypeError(f"`{self.name}` has no argument `{key}`", self.place)
            out[names.index(key)] = value
        required = len(names) - optional
        missing = [n for n, v in zip(names[:required], out, strict=False) if v is None]
        if missing:
            written = f"{ast.unparse(self.node.func)}({', '.join(names[:required])})"
            raise KernelTypeError(
                f"`{self.name}` needs `{missing[0]}`", self.place, hint=f"write `{written}`"
            )
        return out

    def numbers(self, *names: str, optional: int = 0) -> list[Any]:
        """As `bind`, for numbers."""
        return [
            None if v is None else self.t.number(v, self.place, f"a number for `{n}`")
            for n, v in zip(names, self.bind(*names, optional=optional), strict=True)
        ]


def no_keywords(c: Call) -> None:
    """For functions that look at positional arguments alone: nothing is ignored in silence."""
    if c.keywords:
        raise KernelTypeError(
            f"`{ast.unparse(c.node.func)}` takes no `{next(iter(c.keywords))}` in a kernel",
            c.place,
            hint="write the loop",
        )


Handler = Callable[[Call], Value]
HANDLERS: dict[str, Handler] = {}
BUILTINS: dict[Any, Handler] = {}


def handler(*names: str) -> Callable[[Handler], Handler]:
    def register(function: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = function
        return function

    return register


def builtin(*objects: Any) -> Callable[[Handler], Handler]:
    def register(function: Handler) -> Handler:
        for o in objects:
            BUILTINS[o] = function
        return function

    return register
