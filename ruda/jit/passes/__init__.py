"""The passes: functions `Function -> Function`, each in a file named by what it does.

`pipeline.PIPELINE[target]` lists them in the order in which `lower` applies them. They are loaded
when something is lowered: a kernel from the disk cache needs none of them.
"""

from __future__ import annotations

from ruda.jit import ir
from ruda.jit.ir import Function


def lower(function: Function, target: str) -> Function:
    """Apply a target's passes in order."""
    from ruda.jit.passes import pipeline

    return pipeline.lower(function, target)


def needs_block(function: Function) -> bool:
    """Whether the CPU target compiles this kernel for one block shape."""
    if ir.has_barrier(function.body) or any(a.space == "shared" for a in function.arrays):
        return True
    return any(
        isinstance(e, ir.Special) and e.name in ("threadIdx", "laneid")
        for e in ir.all_expressions(function.body)
    )
