"""The lazy graph: a node is an op that was recorded and perhaps not yet computed.

A node knows its shape, dtype and device when it is made, so that a mistake is an error at the
user's line. A computed node has a `value` and forgets its inputs. `handles` counts the storages
that hold it: the rest is only wanted by other nodes, and need not exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType, default_of, weak_complex, weak_float, weak_int
from ruda.errors import DeviceError, ShapeError
from ruda.tensor.opdef import Row

MAX_DEPTH = 200  # ops in a chain: a longer one is computed before it goes on
WEAK = {bool: dtypes.bool_, int: weak_int, float: weak_float, complex: weak_complex}
Input = Any  # a Node, or a Python number


class Node:
    """One recorded op. `inputs` are nodes and Python numbers; a leaf has a value and no row."""

    __slots__ = ("axes", "depth", "device", "dtype", "exported", "handles", "inputs", "row",
                 "shape", "value")  # fmt: skip

    def __init__(
        self,
        row: Row | None,
        inputs: tuple[Input, ...],
        shape: tuple[int, ...],
        dtype: DType,
        device: str,
        axes: tuple[int, ...] = (),
        value: Any = None,
    ) -> None:
        self.row, self.inputs, self.axes = row, inputs, axes
        self.shape, self.dtype, self.device, self.value = shape, dtype, device, value
        self.handles = 0
        self.exported = False  # whether somebody outside sees the memory
        self.depth = 0

    def computed(self, value: Any) -> None:
        self.value, self.inputs, self.row, self.depth = value, (), None, 0

    def __repr__(self) -> str:
        what = self.row.name if self.row else "value"
        return f"<{what} {self.shape} {self.dtype} on {self.device}>"


def leaf(value: Any, dtype: DType, device: str) -> Node:
    """A node of memory that exists."""
    return Node(None, (), tuple(value.shape), dtype, device, value=value)


def record(row: Row, inputs: Sequence[Input]) -> Node:
    """An elementwise op on nodes and Python numbers, at least one of them a node."""
    nodes = [i for i in inputs if type(i) is Node]
    first = nodes[0]
    shape, device = first.shape, first.device
    for n in nodes[1:]:
        if n.device != device:
            raise DeviceError(
                f"`{row.name}`: the tensors are on {device} and {n.device}; "
                f"move one with `.to_device({device!r})`"
            )
        if n.shape != first.shape:
            shape = broadcast(row.name, [shape, n.shape])
    at, result = row.dtypes(tuple(i.dtype if type(i) is Node else WEAK[type(i)] for i in inputs))
    if len(nodes) < len(inputs):
        check_numbers(row, inputs, at)
    made = Node(row, tuple(inputs), shape, result, device)
    made.depth = 1 + max(n.depth for n in nodes)
    if made.depth > MAX_DEPTH:
        from ruda.tensor.execute import realize

        realize([made])
    return made


def check_numbers(row: Row, inputs: Sequence[Input], at: DType) -> None:
    """A Python integer that does not fit the dtype it meets is a mistake."""
    if at.kind not in ("int", "uint"):
        return
    low, high = at.range
    for i in inputs:
        if type(i) is int and not low <= i <= high:
            raise OverflowError(f"`{row.name}`: {i} does not fit {at} ({low} to {high})")


def reduce(row: Row, node: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    """A reduction along axes (in order, not negative)."""
    _, result = row.dtypes((node.dtype,))
    if row.identity is None and any(node.shape[a] == 0 for a in axes):
        raise ShapeError(f"`{row.name}` of no elements: an axis of {node.shape} is empty")
    if keepdims:
        shape = tuple(1 if a in axes else n for a, n in enumerate(node.shape))
    else:
        shape = tuple(n for a, n in enumerate(node.shape) if a not in axes)
    made = Node(row, (node,), shape, result, node.device, axes=axes)
    made.depth = 1 + node.depth
    return made


def broadcast(name: str, shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The common shape of operands.

    >>> broadcast("add", [(3, 1), (4,)])
    (3, 4)
    """
    shapes = list(shapes)
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        shown = " and ".join(map(str, shapes))
        raise ShapeError(f"`{name}`: shapes {shown} do not broadcast") from None


def number_dtype(value: Any) -> DType:
    """The dtype of a Python number that stands alone."""
    return default_of(WEAK[type(value)])
