"""The lazy graph: a node is an op that was recorded and perhaps not yet computed.

A node knows its shape, dtype and device when it is made, so that a mistake is an error at the
user's line. A computed node has a `value` and forgets its inputs. A node that only waiting nodes
refer to need not ever exist in memory.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ruda import dtypes
from ruda.backends.base import DeviceArray, check_size
from ruda.dtypes import DType, default_of, weak_complex, weak_float, weak_int
from ruda.errors import DeviceError, ShapeError, shown
from ruda.tensor.memory import View
from ruda.tensor.opdef import Row
from ruda.tensor.ops import OPS

MAX_DEPTH = 200  # ops in a chain: a longer one is computed before it goes on
WEAK = {bool: dtypes.bool_, int: weak_int, float: weak_float, complex: weak_complex}
Input = Any  # a Node, or a Python number
# The row of views: memory seen with other strides.
VIEW = Row("view", ("x",), "any", "same", lambda x: x, lambda x: x, "A view.", kind="view")


class _Tracing(threading.local):
    current: Any = None  # the `compiled.Trace` that takes down what happens


tracing = _Tracing()


def step(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that a trace takes down as a whole, not by what it does inside."""

    @functools.wraps(function)
    def call(*values: Any, **options: Any) -> Any:
        if tracing.current is None:
            return function(*values, **options)
        return tracing.current.call(function, values, options)

    return call


class Form:
    """The one object for a device, dtype, shape and layout: quick to compare, for keys."""

    __slots__ = ()


_forms: dict[Any, Form] = {}


def form_of(node: Node) -> Form:
    """That of a computed node."""
    try:
        return node.form
    except AttributeError:
        what = node.device, node.dtype, node.shape, node.layout
        node.form = found = _forms.setdefault(what, Form())
        return found


class Node:
    """One recorded op. `inputs` are nodes and Python numbers; a leaf has a value and no row.

    axes      of a reduction; of a view, the `View`
    layout    None for memory in C order, else its strides in elements, and whether it is aligned
    exported  whether somebody outside sees the memory
    story     of a leaf that came from another device: how. Else it is not set
    form      of a computed node: what kernels must know of its memory. Set when it is asked for
    library   of a leaf that a vendor's library computed: which. Else it is not set
    """

    __slots__ = ("axes", "depth", "device", "dtype", "exported", "form", "inputs", "layout",
                 "library", "row", "shape", "story", "value")  # fmt: skip
    library: str
    story: Any  # a `memory.Move`
    form: Form

    row: Row | None
    inputs: tuple[Input, ...]
    shape: tuple[int, ...]
    dtype: DType
    device: str
    axes: Any
    value: Any
    layout: tuple[tuple[int, ...], bool] | None
    exported: bool
    depth: int

    def computed(self, value: Any) -> None:
        self.value, self.inputs, self.row, self.depth = value, (), None, 0

    def __repr__(self) -> str:
        what = self.row.name if self.row else "value"
        return f"<{what} {self.shape} {self.dtype} on {self.device}>"


def node_of(
    row: Row | None,
    inputs: tuple[Input, ...],
    shape: tuple[int, ...],
    dtype: DType,
    device: str,
    axes: Any = (),
    value: Any = None,
    depth: int = 0,
) -> Node:
    """A new node. Not by `__init__`, which would double the time that recording an op takes, as
    would several targets of one assignment."""
    made = Node()
    made.row = row
    made.inputs = inputs
    made.axes = axes
    made.shape = shape
    made.dtype = dtype
    made.device = device
    made.value = value
    made.layout = None
    made.exported = False
    made.depth = depth
    return made


def leaf(value: Any, dtype: DType, device: str) -> Node:
    """A node of memory that exists."""
    made = node_of(None, (), tuple(value.shape), dtype, device, value=value)
    if type(value) is DeviceArray:
        plain = value.is_c_contiguous() and value.is_aligned
    else:
        plain = value.flags.c_contiguous and value.flags.aligned
    if not plain:
        made.layout = layout_of(value)
    if tracing.current is not None:
        tracing.current.leaf(made)
    return made


def layout_of(value: Any) -> tuple[tuple[int, ...], bool]:
    """Strides in elements, and whether all elements are aligned."""
    itemsize = value.dtype.itemsize
    aligned = value.is_aligned if type(value) is DeviceArray else bool(value.flags.aligned)
    return tuple(s // itemsize for s in value.strides), aligned


def record(row: Row, inputs: Sequence[Input]) -> Node:
    """An elementwise op on nodes and Python numbers, at least one of them a node."""
    nodes = [i for i in inputs if type(i) is Node]
    first = nodes[0]
    shape, device = first.shape, first.device
    for n in nodes[1:]:
        if n.device != device:
            raise apart(row.name, device, n.device)
        if n.shape != first.shape:
            shape = broadcast(row.name, [shape, n.shape])
    at, result = row.dtypes(tuple(i.dtype if type(i) is Node else WEAK[type(i)] for i in inputs))
    if len(nodes) < len(inputs):
        check_numbers(row, inputs, at)
        if row is OPS["pow"] and inputs[0] is first and inputs[1] == 2 and result is first.dtype:
            row, inputs = OPS["square"], nodes  # kernels get numbers when they run: too late
    return bounded(
        node_of(row, tuple(inputs), shape, result, device), 1 + max(n.depth for n in nodes)
    )


def apart(name: str, device: str, other: str) -> DeviceError:
    """What is said of tensors of two devices."""
    return DeviceError(
        f"`{name}`: the tensors are on {device} and {other}; move one with `.to_device({device!r})`"
    )


def check_together(name: str, tensors: Sequence[Any]) -> None:
    """All tensors of an op are on one device."""
    for x in tensors[1:]:
        if x.device != tensors[0].device:
            raise apart(name, tensors[0].device, x.device)


def bounded(node: Node, depth: int) -> Node:
    """A node at the end of a chain, computed if that is long."""
    node.depth = depth
    if depth > MAX_DEPTH and tracing.current is None:
        from ruda.tensor.execute import realize

        realize([node])
    return node


def see(node: Node, view: View) -> Node:
    """A view of what is not computed yet."""
    return bounded(
        node_of(VIEW, (node,), view.shape, node.dtype, node.device, axes=view), node.depth + 1
    )


def strided(value: Any, base: Node) -> Node:
    """A leaf of the memory of a computed node, seen in another way. As long as an op waits for
    these elements it holds the node, so that nobody writes them."""
    made = leaf(value, base.dtype, base.device)
    made.inputs = (base,)
    made.layout = layout_of(value)
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
    return bounded(node_of(row, (node,), shape, result, node.device, axes=axes), 1 + node.depth)


def broadcast(name: str, shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The common shape of operands.

    >>> broadcast("add", [(3, 1), (4,)])
    (3, 4)
    """
    shapes, found = list(shapes), []
    for lengths in itertools.zip_longest(*(s[::-1] for s in shapes), fillvalue=1):
        wanted = set(lengths) - {1}
        if len(wanted) > 1:
            given = " and ".join(map(shown, shapes))
            raise ShapeError(f"`{name}`: shapes {given} cannot be broadcast together")
        found.append(wanted.pop() if wanted else 1)
    check_size(found)
    return tuple(found[::-1])


def number_dtype(value: Any) -> DType:
    """The dtype of a Python number that stands alone."""
    return default_of(WEAK[type(value)])
