"""What the checks say of indices: which wraps are a surprise, and the index that the user wrote.

The interpreter finds them while it runs, compiled code reports words to the host; both tell the
same, so that their analysis and their words are here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ruda.jit import ir
from ruda.jit.ir import Body, Expr, Variable


def thread_variables(body: Body) -> set[Variable]:
    """The variables that contain a launch coordinate of the thread; none passes a load."""
    found: set[Variable] = set()
    while True:
        before = len(found)
        for s in ir.statements(body):
            if isinstance(s, ir.Assign | ir.For) and any(
                has_coordinate(e, found) for e in ir.expressions(s)
            ):
                found.update(ir.written(s))
        if len(found) == before:
            return found


def has_coordinate(e: Expr, variables: set[Variable]) -> bool:
    """Whether a value contains a coordinate of the thread."""
    match e:
        case ir.Special(name=name):
            return name in ("threadIdx", "blockIdx", "globalIdx", "laneid")
        case ir.Read(variable):
            return variable in variables
        case ir.Load():
            return False
    return any(has_coordinate(x, variables) for x in ir.expressions(e))


def form(index: Expr) -> str:
    """How an index came from what the user wrote: "wrapped", "unsigned" or ""."""
    match index:
        case ir.Op("wrap"):
            return "wrapped"
        case ir.Cast(value) if value.dtype.kind == "uint" and value.dtype.bits == 64:
            return "unsigned"
    return ""


def written(index: int, extent: int, form: str) -> int:
    """The index that the user wrote for one that is outside.

    >>> written(-1, 5, "wrapped"), written(-1, 5, ""), written(-1, 5, "unsigned") == 2**64 - 1
    (-6, -1, True)
    """
    if index >= 0:
        return index
    return {"wrapped": index - extent, "unsigned": index + 2**64}.get(form, index)


def element(name: str, indices: Iterable[int], part: str = "") -> str:
    """An element as a user would write it."""
    return f"`{name}[{', '.join(map(str, indices))}]{part}`"


def outside(element: str, index: int, axis: int, shape: Sequence[int]) -> str:
    """What is said of an access out of bounds; `index` is the one that the user wrote."""
    return (
        f"{element} is out of bounds: index {index} on axis {axis}, "
        f"which has {_count(shape[axis])} (shape {tuple(shape)})"
    )


def outside_view(index: int, extent: int) -> str:
    """The same where a view is smaller than its array."""
    return f"index {index} is out of bounds for a slice of {_count(extent)}"


def _count(n: int) -> str:
    return f"{n} {'element' if n == 1 else 'elements'}"


def wraps(index: int, array: str) -> str:
    """The note for an index that counts from the end and is made of a thread's coordinates."""
    return (
        f"the index {index} of `{array}`, made from a thread's coordinates, counts from the end; "
        "guard it, or write @jit(wraparound=False) to find it out of bounds"
    )


def name_of(extent: Expr) -> str:
    """The array whose axis has this extent."""
    return extent.array.name if isinstance(extent, ir.Extent) else "an array"
