"""Compute what was recorded: sort it, put elementwise ops together, run group after group.

On the host a group that is seen for the first time and is small runs row by row through NumPy:
nobody waits for a compiler at a prompt. When it comes again, or is large, a kernel is compiled in
the background, and takes over when it is there. On other devices there is always one.
`RUDA_FUSION=0` computes an op at a time, `verify` both ways.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from ruda import backends
from ruda.dtypes import DType
from ruda.errors import DeviceError, RudaError
from ruda.jit import intrinsics
from ruda.settings import settings
from ruda.tensor import lower, memory
from ruda.tensor.graph import WEAK, Node

LARGE = 1 << 17  # elements from which a group is compiled when it is first seen
SMALL = 1 << 12  # elements from which one is compiled when it comes again
MAX_OPS = 64  # ops of a group
PARTS = 1024  # in which a long reduction with few outputs is computed
HOST_ARRAYS = 30  # arrays of a group on the host; adapters say their own number

_lock = threading.RLock()
_seen: dict[lower.Group, int] = {}
_refused: set[lower.Group] = set()  # no kernel can compute them: complex tanh


def realize(targets: Iterable[Node]) -> None:
    """Give nodes their values."""
    pending = [n for n in targets if n.value is None]
    if not pending:
        return
    with _lock:
        order = topological(pending)
        wanted = {id(n) for n in pending}
        roots = groups(order, wanted)
        for root, members in roots:
            if root.value is not None:
                continue
            if root.row is not None and root.row.kind == "reduce":
                root.computed(reduce(root))
            else:
                run(root, members)


def topological(targets: Sequence[Node]) -> list[Node]:
    """What must be computed, inputs before users."""
    order: list[Node] = []
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(n, False) for n in reversed(targets)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif id(node) not in seen and node.value is None:
            seen.add(id(node))
            stack.append((node, True))
            stack += [(i, False) for i in reversed(node.inputs) if type(i) is Node]
    return order


def groups(order: Sequence[Node], wanted: set[int]) -> list[tuple[Node, list[Node]]]:
    """(root, its ops in order, the root last) for each kernel.

    An op joins the group of its users if they all are in one, it has their shape, and nobody else
    wants it.
    """
    users: dict[int, list[Node]] = {id(n): [] for n in order}
    for n in order:
        for i in n.inputs:
            if type(i) is Node and id(i) in users:
                users[id(i)].append(n)
    fused = settings.fusion != "0"
    root_of: dict[int, Node] = {}
    members: dict[int, list[Node]] = {}
    arrays: dict[int, set[int]] = {}
    for n in reversed(order):
        found = {id(root_of[id(u)]) for u in users[id(n)]}
        root = root_of[id(users[id(n)][0])] if users[id(n)] else n
        joins = (
            fused
            and len(found) == 1
            and id(n) not in wanted
            and not n.handles
            and n.row is not None
            and n.row.kind == root.row.kind == "elementwise"  # type: ignore[union-attr]
            and n.shape == root.shape
            and len(members[id(root)]) < MAX_OPS
            and len(arrays[id(root)] | inputs_of(n)) <= most_arrays(n.device)
        )
        if not joins:
            root = n
            members[id(n)], arrays[id(n)] = [], set()
        root_of[id(n)] = root
        members[id(root)].append(n)
        arrays[id(root)] |= inputs_of(n)
    return [(n, members[id(n)][::-1]) for n in order if root_of[id(n)] is n]


def inputs_of(node: Node) -> set[int]:
    return {id(i) for i in node.inputs if type(i) is Node}


def most_arrays(device: str) -> int:
    """Input arrays of a kernel that a device can bind, beside its output."""
    if memory.on_host(device):
        return HOST_ARRAYS
    target = backends.get(device).target(device)
    return int(target.get("max_buffers", HOST_ARRAYS + 1)) - 1


# ---- a group -------------------------------------------------------------------------------------


def run(root: Node, members: Sequence[Node]) -> None:
    """Compute the last member."""
    device = root.device
    group, shape, arrays, numbers = describe(root, members)
    by_kernel = device != "cpu" or settings.fusion == "verify" or is_worth(group, root_size(shape))
    if by_kernel and group not in _refused:
        out = memory.allocate(root.shape, root.dtype, device)
        flat = lower.strided(out, shape, _strides(shape, out.dtype.itemsize))
        operands = [lower.strided(a, shape, s) for a, s in arrays]
        arguments = (flat, *operands, *numbers)
        kernel = lower.lowered(group)
        if device != "cpu" or settings.fusion == "verify" or is_ready(kernel, arguments):
            if launch(group, shape, arguments, device):
                if device == "cpu" and settings.fusion == "verify":
                    compare(root, out, by_numpy(members))
                root.computed(out)
                return
    root.computed(by_numpy(members))


def is_worth(group: lower.Group, size: int) -> bool:
    """Whether a group of the host should have a kernel: it came before, or is large."""
    if settings.fusion == "0" or settings.deterministic:
        return False
    count = _seen[group] = _seen.get(group, 0) + 1
    return (count > 1 and size >= SMALL) or size >= LARGE


# ---- compiling while NumPy does the work ---------------------------------------------------------

_compiled: dict[Any, Future[Any]] = {}
_workers: list[ThreadPoolExecutor] = []


def is_ready(kernel: lower.Lowered, arguments: Sequence[Any]) -> bool:
    """Whether a kernel is compiled for arguments; if not, it is begun in the background."""
    types = lower.types_of(arguments)
    key = kernel, types, id(settings.state())
    found = _compiled.get(key)
    if found is None:
        if not _workers:
            _workers.append(ThreadPoolExecutor(1, "ruda-compile"))
        context = contextvars.copy_context()  # it has the settings
        job = _workers[0].submit(context.run, lower.prepare, kernel, types, "cpu")
        found = _compiled[key] = job
    if not found.done():
        return False
    try:
        found.result()
    except NotImplementedError:
        _refused.add(kernel.what)  # type: ignore[arg-type]
        return False
    return True


def wait() -> None:
    """Until everything that was begun is compiled: for measurements."""
    for job in list(_compiled.values()):
        job.exception()


def _forget() -> None:
    """A forked child has no workers, and perhaps half-compiled kernels."""
    _workers.clear()
    _compiled.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def root_size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def describe(
    root: Node, members: Sequence[Node]
) -> tuple[lower.Group, tuple[int, ...], list[tuple[Any, tuple[int, ...]]], list[Any]]:
    """The group's key, its merged shape, its operands with their strides, its numbers."""
    place: dict[int, int] = {}
    sources: dict[int, int] = {}
    values: list[Any] = []
    numbers: list[Any] = []
    kinds: list[DType] = []
    rows = []
    for k, n in enumerate(members):
        assert n.row is not None
        given = tuple(i.dtype if type(i) is Node else WEAK[type(i)] for i in n.inputs)
        at, _ = n.row.dtypes(given)
        references: list[lower.Reference] = []
        for position, i in enumerate(n.inputs):
            if type(i) is not Node:
                first = n.row.rule == "condition" and position == 0
                kind = WEAK[bool] if first else at
                references.append(("number", len(numbers)))
                numbers.append(intrinsics.convert(i, kind))
                kinds.append(kind)
            elif id(i) in place:
                references.append(("op", place[id(i)]))
            else:
                if id(i) not in sources:
                    sources[id(i)] = len(values)
                    values.append(i)
                references.append(("array", sources[id(i)]))
        strong = tuple(
            i.dtype if type(i) is Node else kinds[r[1]]
            for i, r in zip(n.inputs, references, strict=True)
        )
        place[id(n)] = k
        rows.append((n.row.name, tuple(references), strong))
    shape, strides = merge(root, values)
    axes = [tuple(a for a, s in enumerate(row) if s != 0) for row in strides]
    group = lower.Group(
        tuple(rows),
        tuple((v.dtype, a) for v, a in zip(values, axes, strict=True)),
        tuple(kinds),
        (len(members) - 1,),
        len(shape),
    )
    operands = [(v.value, s) for v, s in zip(values, strides, strict=True)]
    return group, shape, operands, numbers


def merge(root: Node, values: Sequence[Node]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The merged shape, and for each value its strides in bytes, 0 where it repeats."""
    rows = [tuple(s * root.dtype.itemsize for s in memory.contiguous(root.shape).strides)]
    for v in values:
        missing = len(root.shape) - len(v.shape)
        own = v.value.strides
        rows.append(
            (0,) * missing + tuple(0 if n == 1 else s for n, s in zip(v.shape, own, strict=True))
        )
    shape, merged = lower.merge(root.shape, rows)
    return shape, merged[1:]


def launch(
    group: lower.Group, shape: tuple[int, ...], arguments: Sequence[Any], device: str
) -> bool:
    """Run a group's kernel; False if the host has to do without one."""
    try:
        lower.launch(lower.lowered(group), shape, device, arguments)
    except NotImplementedError as error:
        if not memory.on_host(device):
            name = group.ops[-1][0]
            raise DeviceError(f"`{name}` on {device}: {error}") from None
        _refused.add(group)
        return False
    return True


def _strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(max(s, 1) * itemsize for s in memory.contiguous(shape).strides)


def by_numpy(members: Sequence[Node]) -> np.ndarray[Any, Any]:
    """The rows' NumPy meanings, one after the other."""
    values: dict[int, Any] = {}
    for n in members:
        assert n.row is not None
        given = tuple(i.dtype if type(i) is Node else WEAK[type(i)] for i in n.inputs)
        at, _ = n.row.dtypes(given)
        arguments = []
        for position, i in enumerate(n.inputs):
            kind = at if position or n.row.rule != "condition" else WEAK[bool]
            if type(i) is Node:
                value = values.get(id(i), i.value)
                arguments.append(converted(value, kind))
            else:
                arguments.append(intrinsics.convert(i, kind))
        with np.errstate(all="ignore"):
            found = np.asarray(n.row.numpy(*arguments))
        values[id(n)] = found.astype(n.dtype.numpy, copy=False)
    last = members[-1]
    out: np.ndarray[Any, Any] = values[id(last)]
    if out.shape != last.shape or any(out is i.value for i in _nodes(members)):
        out = np.broadcast_to(out, last.shape)
    if not out.flags.owndata or not out.flags.c_contiguous:
        out = np.array(out, order="C")
    return out


def _nodes(members: Sequence[Node]) -> list[Node]:
    return [i for n in members for i in n.inputs if type(i) is Node]


def converted(value: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """An array at a dtype, as `Cast` converts."""
    if value.dtype == dtype.numpy:
        return value
    with np.errstate(all="ignore"):
        if dtype.is_integer and value.dtype.kind == "f":
            low, high = dtype.range
            inside = np.nan_to_num(value, nan=0.0, posinf=high, neginf=low)
            limited = np.where(inside >= float(high), high, np.where(inside <= low, low, 0))
            whole = np.where((inside < float(high)) & (inside > low), inside, 0)
            return np.where(limited != 0, limited, whole.astype(dtype.numpy)).astype(dtype.numpy)
        return value.astype(dtype.numpy)


def compare(root: Node, ours: np.ndarray[Any, Any], numpys: np.ndarray[Any, Any]) -> None:
    """Fused and unfused results are equal, to rounding."""
    tolerance = 0.0
    if root.dtype.is_inexact:
        tolerance = 1e3 * float(np.finfo(root.dtype.real.numpy).eps)
    if not np.allclose(ours, numpys, rtol=tolerance, atol=tolerance, equal_nan=True):
        raise RudaError(f"fused and unfused results of {root!r} differ: {ours} and {numpys}")


# ---- reductions ----------------------------------------------------------------------------------


def reduce(node: Node) -> Any:
    """The value of a reduction whose input is computed."""
    (source,) = node.inputs
    assert node.row is not None
    if node.device == "cpu" and settings.fusion != "verify":
        return reduce_by_numpy(node)
    found = reduce_by_kernel(node, source)
    if node.device == "cpu":
        compare(node, found, reduce_by_numpy(node))
    return found


def reduce_by_numpy(node: Node) -> Any:
    (source,) = node.inputs
    assert node.row is not None
    at, result = node.row.dtypes((source.dtype,))
    with np.errstate(all="ignore"):
        found = node.row.numpy(converted(source.value, at), axis=node.axes)
    return np.ascontiguousarray(found, result.numpy).reshape(node.shape)


def reduce_by_kernel(node: Node, source: Node) -> Any:
    """In one pass if there are many outputs; else each in parts, and these in a second pass."""
    assert node.row is not None
    outputs = root_size(node.shape)
    count = root_size(tuple(source.shape[a] for a in node.axes))
    parts = 1
    if outputs < PARTS and count > 2 * PARTS:
        parts = PARTS
    out = memory.allocate((parts, outputs), node.dtype, node.device)
    what = lower.Reduction(node.row.name, source.dtype, len(source.shape), node.axes)
    try:
        lower.launch(lower.lowered(what), (parts, outputs), node.device, (out, source.value))
    except NotImplementedError as error:
        raise DeviceError(f"`{node.row.name}` on {node.device}: {error}") from None
    if parts > 1:
        rest = lower.Reduction(node.row.name, node.dtype, 2, (0,))
        final = memory.allocate((1, outputs), node.dtype, node.device)
        lower.launch(lower.lowered(rest), (1, outputs), node.device, (final, out))
        out = final
    return memory.view(out, memory.contiguous(node.shape))
