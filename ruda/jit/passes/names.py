"""New variables and arrays with names that a function does not use yet."""

from __future__ import annotations

from ruda.jit import ir
from ruda.jit.ir import Array, Function, Variable


def used(function: Function) -> set[str]:
    """Every name of a variable or array of a function."""
    names = {p.name for p in function.parameters} | {a.name for a in function.arrays}
    body = (*function.prologue, *function.body)
    for s in ir.statements(body):
        names |= {v.name for v in ir.written(s)}
    for e in ir.all_expressions(body):
        if isinstance(e, ir.Read):
            names.add(e.variable.name)
    return names


class Names:
    """Gives names: the wanted one, or with a number behind it."""

    def __init__(self, function: Function) -> None:
        self.used = used(function)

    def __call__(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self.used:
            number += 1
            name = f"{wanted}_{number}"
        self.used.add(name)
        return name

    def index(self, wanted: str) -> Variable:
        from ruda import dtypes

        return Variable(self(wanted), dtypes.index)

    def array(self, wanted: str, dtype: object, shape: tuple[int, ...]) -> Array:
        return Array(self(wanted), dtype, len(shape), space="shared", shape=shape)  # type: ignore[arg-type]
