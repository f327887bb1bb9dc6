"""Compute what was recorded: a program, its plan, and kernel after kernel.

Plans are kept by their programs. On the host a group of ops that is seen for the first time and is
small runs row by row through NumPy: nobody waits for a compiler at a prompt. When it comes again,
or is large, a kernel is compiled in the background, and takes over when it is there. On other
devices there is always one. `RUDA_FUSION=0` computes an op at a time, `verify` both ways.
"""

from __future__ import annotations

import contextvars
import functools
import math
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from ruda.dtypes import DType, float32, float64
from ruda.errors import DeviceError, RudaError
from ruda.jit import intrinsics
from ruda.settings import config, settings
from ruda.tensor import graph, lower, memory, plan
from ruda.tensor.graph import VIEW, WEAK, Node
from ruda.tensor.lower import Group
from ruda.tensor.opdef import Row
from ruda.tensor.ops import OPS
from ruda.tensor.plan import Kernel, Look, Plan
from ruda.tensor.program import Collected, Program, Reference, collect, program, topological

LARGE = 1 << 17  # elements from which a group is compiled when it is first seen
SMALL = 1 << 12  # elements from which one is compiled when it comes again
MOST = 1024  # ops that are planned at a time
PLANS = 1024  # that are kept

_lock = threading.RLock()
_seen: dict[Group, int] = {}
_refused: set[Group] = set()  # no kernel can compute them: complex tanh
# The settings that plans were made under, and the plans.
_plans: tuple[Any, dict[Any, Plan]] = (None, {})


def realize(targets: Iterable[Node]) -> None:
    """Give nodes their values."""
    pending = [n for n in targets if n.value is None]
    if not pending:
        return
    with _lock:
        if pending[0].device == "cpu" and at_once(pending):
            return
        pending = [n for n in pending if n.value is None]
        wanted = {id(n) for n in pending}
        while True:
            order, whole = topological(pending, MOST)
            if order:
                compute(collect(order, wanted))
            del order
            if whole:
                return


def compute(found: Collected) -> None:
    """Give the wanted ones of collected nodes their values."""
    made = plan_of(found)
    values = run(made, plan.leaf_values(made, [n.value for n in found.leaves]), found.numbers)
    if settings.fusion == "verify":
        check(made, found, values)
    for k, place in made.results.items():
        finish(found.nodes[k], values[place])


def finish(node: Node, value: Any) -> None:
    if node.row is VIEW:  # it sees its source's memory: that stays, and nobody writes it
        node.value, node.row, node.depth = value, None, 0
        node.layout = graph.layout_of(value)
        return
    node.computed(value)


def plan_of(found: Collected) -> Plan:
    """The plan of collected nodes, made if there is none."""
    global _plans
    state = settings.state()
    if _plans[0] is not state:
        _plans = state, {}
    known = _plans[1]
    made = known.get(found.key)
    if made is None:
        if len(known) >= PLANS:
            known.clear()
        p = program(found)
        if settings.fusion == "verify":  # which reads the leaves again
            p = p._replace(dead=frozenset())
        made = known[found.key] = plan.make(p, settings.fusion != "0")
    return made


def run(made: Plan, values: list[Any], numbers: Sequence[Any]) -> list[Any]:
    """All values of a plan, beside those of its leaves."""
    device = made.program.device
    first = len(made.program.leaves)
    for step in made.steps:
        if isinstance(step, Look):
            values[step.made] = memory.view(values[step.place], step.view)
            continue
        results = None
        if device != "cpu" or by_kernel(step):
            results = launched(step, values, numbers, device)
        if results is None:
            results = by_numpy(made.program, step, values, numbers)
        for o, value in zip(step.outputs, results, strict=True):
            values[first + o.step] = value
    return values


def by_kernel(step: Kernel) -> bool:
    """Whether a group of the host should have a kernel: it came before, or is large."""
    if step.run is not None:
        return True
    group = step.group
    if settings.fusion == "verify":
        return group not in _refused and step.size > 0
    if settings.fusion == "0" or settings.deterministic or step.size < SMALL or group in _refused:
        return False
    if group.style == "column" and len(group.ops) == 1:
        return False  # NumPy adds whole rows to each other: nothing is faster
    count = _seen[group] = _seen.get(group, 0) + 1
    return count > 1 or step.size >= LARGE


def launched(
    step: Kernel, values: list[Any], numbers: Sequence[Any], device: str
) -> list[Any] | None:
    """A kernel's results; None if the host has to do without it, now or ever."""
    if device == "cpu" and step.run is None and not is_ready(step, values, numbers):
        return None
    made = plan.allocated(step, values, device)
    try:
        plan.launch(step, made, plan.arguments(step, made, values, numbers), device)
    except NotImplementedError as error:
        if not memory.on_host(device):
            names = ", ".join(dict.fromkeys(o.row for o in step.group.ops))
            raise DeviceError(f"`{names}` on {device}: {error}") from None
        _refused.add(step.group)
        return None
    return made


# ---- compiling while NumPy does the work ---------------------------------------------------------

_compiled: dict[Any, Future[Any]] = {}
_workers: list[ThreadPoolExecutor] = []


def is_ready(step: Kernel, values: list[Any], numbers: Sequence[Any]) -> bool:
    """Whether a step's kernels are compiled; if not, they are begun in the background."""
    if settings.fusion == "verify":
        return True
    jobs = [begun(group, types) for group, types in needed(step, values, numbers)]
    if not all(job.done() for job in jobs):
        return False
    try:
        for job in jobs:
            job.result()
    except NotImplementedError:
        _refused.add(step.group)
        return False
    return True


def needed(
    step: Kernel, values: list[Any], numbers: Sequence[Any]
) -> list[tuple[Group, tuple[Any, ...]]]:
    """The kernels of a step, with the types of their arguments."""
    made = [np.empty(o.shape, o.dtype.numpy) for o in step.outputs]
    types = lower.types_of(plan.arguments(step, made, values, numbers))
    if step.finish is None:
        return [(step.group, types)]
    between = [
        np.empty((2, 2), plan.part_dtype(step.group.ops[n]).numpy) for n in step.group.outputs
    ]
    whole = [m.reshape(-1) for m in made]
    return [
        (step.group, (*lower.types_of(between), *types)),
        (step.finish, lower.types_of([*whole, *between])),
    ]


def begun(group: Group, types: tuple[Any, ...]) -> Future[Any]:
    kernel = lower.lowered(group)
    key = kernel, types, id(settings.state())
    found = _compiled.get(key)
    if found is None:
        if not _workers:
            _workers.append(ThreadPoolExecutor(1, "ruda-compile"))
        context = contextvars.copy_context()  # it has the settings
        found = _workers[0].submit(context.run, lower.prepare, kernel, types, "cpu")
        _compiled[key] = found
    return found


def is_compiled(group: Group) -> bool:
    """Whether there is a kernel of the host for a group."""
    ready = [job for (kernel, *_), job in list(_compiled.items()) if kernel.what == group]
    return any(job.done() and job.exception() is None for job in ready)


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


# ---- small work at once --------------------------------------------------------------------------


class NotSmall(Exception):
    """Work for a plan."""


def at_once(targets: Sequence[Node]) -> bool:
    """Compute small elementwise work on the host op by op, without a plan; False if it is not.

    A kernel would cost more than NumPy takes: see `SMALL`.
    """
    if (settings.local.get() or settings.base)["fusion"] == "verify":
        return False
    try:
        with quiet():
            for n in targets:
                if n.value is None:
                    evaluate(n)
    except (NotSmall, RecursionError):
        return False
    return True


def evaluate(n: Node, small: tuple[int, ...] = ()) -> Any:
    """Compute a node by its row's NumPy meaning, and what it needs; `small` is a shape that is.

    Chains are short: see `graph.MAX_DEPTH`.
    """
    row, inputs, found = n.row, n.inputs, None
    if n.shape is not small:
        small = n.shape
        if not is_small(small):
            raise NotSmall
    x = inputs[0]
    if row in PLAIN and type(x) is Node and (x.dtype is float32 or x.dtype is float64):
        y = inputs[-1]
        if type(y) is Node:
            if y.dtype is x.dtype:
                left, right = x.value, y.value
                left = evaluate(x, small) if left is None else left
                if y is x:
                    right = left
                elif right is None:  # perhaps it was made on the left
                    right = evaluate(y, small) if y.value is None else y.value
                found = PLAIN[row](left) if len(inputs) == 1 else PLAIN[row](left, right)
        elif type(y) is float:
            left = x.value
            found = PLAIN[row](evaluate(x, small) if left is None else left, y)
    if found is None:
        found = converting(n, small)
    if type(found) is not np.ndarray or found.shape != n.shape or not found.flags.c_contiguous:
        found = own(np.asarray(found), n.shape, ())
    n.value, n.inputs, n.row, n.depth = found, (), None, 0
    return found


@functools.lru_cache(maxsize=1024)
def is_small(shape: tuple[int, ...]) -> bool:
    return math.prod(shape) < SMALL


def converting(n: Node, small: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An op whose operands become the dtype that it computes at."""
    row = n.row
    assert row is not None
    if row.kind != "elementwise":
        raise NotSmall
    at, _ = row.dtypes(tuple(i.dtype if type(i) is Node else WEAK[type(i)] for i in n.inputs))
    given = []
    for position, i in enumerate(n.inputs):
        kind = at if position or row.rule != "condition" else WEAK[bool]
        if type(i) is not Node:
            given.append(intrinsics.convert(i, kind))
        else:
            given.append(converted(evaluate(i, small) if i.value is None else i.value, kind))
    found = np.asarray(row.numpy(*given)).astype(n.dtype.numpy, copy=False)
    return own(found, n.shape, given)


# The rows that NumPy computes at these dtypes as they are: no conversions before or after.
FLOATS = frozenset({float32, float64})
PLAIN: dict[Row, Any] = {
    row: row.numpy for row in OPS.values()
    if isinstance(row.numpy, np.ufunc) and row.rule in ("same", "float", "test")
}  # fmt: skip


try:  # what `np.errstate` does, without its checks: they cost as much as adding 1000 numbers
    from numpy._core._ufunc_config import _extobj_contextvar  # type: ignore[attr-defined]
    from numpy._core.umath import _make_extobj

    class quiet:
        """No warnings of overflow and the like: results say it."""

        __slots__ = ("token",)
        state = _make_extobj(all="ignore")

        def __enter__(self) -> None:
            self.token = _extobj_contextvar.set(self.state)

        def __exit__(self, *exception: object) -> None:
            _extobj_contextvar.reset(self.token)

    with quiet():
        np.exp(np.float32(1e9))
except (ImportError, AttributeError, TypeError):  # another NumPy

    def quiet() -> Any:  # type: ignore[no-redef]
        return np.errstate(all="ignore")


# ---- by NumPy ------------------------------------------------------------------------------------


def by_numpy(
    p: Program, step: Kernel, values: Sequence[Any], numbers: Sequence[Any]
) -> list[np.ndarray[Any, Any]]:
    """The rows' NumPy meanings, one after the other."""
    found: dict[int, Any] = {}
    first = len(p.leaves)

    def value_of(i: Reference) -> Any:
        what, k = i
        if what == "leaf":
            return values[k]
        if k in found:
            return found[k]
        if p.steps[k].row is VIEW and values[first + k] is None:  # of a member
            source = np.ascontiguousarray(value_of(p.steps[k].inputs[0]))
            shape = p.shape_of(p.steps[k].inputs[0])
            found[k] = memory.view(source.reshape(shape), p.steps[k].axes)
            return found[k]
        return values[first + k]

    with np.errstate(all="ignore"):
        for k in step.members:
            one = p.steps[k]
            at, _ = one.row.dtypes(tuple(p.dtype_of(i) for i in one.inputs))
            given = []
            for position, i in enumerate(one.inputs):
                kind = at if position or one.row.rule != "condition" else WEAK[bool]
                if i[0] == "number":
                    given.append(intrinsics.convert(numbers[i[1]], kind))
                else:
                    given.append(converted(value_of(i), kind))
            if one.row.kind == "reduce":
                result = np.asarray(one.row.numpy(*given, axis=one.axes)).reshape(one.shape)
            else:
                result = np.asarray(one.row.numpy(*given))
            found[k] = result.astype(one.dtype.numpy, copy=False)
    out: list[np.ndarray[Any, Any]] = []
    for o in step.outputs:  # a copy of another output is memory of its own, too
        out.append(own(found[o.step], o.shape, [*values, *out]))
    return out


def own(
    value: np.ndarray[Any, Any], shape: tuple[int, ...], values: Sequence[Any]
) -> np.ndarray[Any, Any]:
    """A result as memory of its own in C order."""
    if value.shape != shape:
        value = np.broadcast_to(value, shape)
    flags = value.flags
    if flags.owndata and flags.c_contiguous and not any(value is v for v in values):
        return value
    return np.array(value, order="C")


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


# ---- both ways -----------------------------------------------------------------------------------


def check(made: Plan, found: Collected, values: Sequence[Any]) -> None:
    """Compute an op at a time too: the results are equal, to rounding."""
    with config(fusion="0"):
        plain = plan.make(program(found)._replace(dead=frozenset()), fused=False)
        leaves = plan.leaf_values(plain, [n.value for n in found.leaves])
        others = run(plain, leaves, found.numbers)
    for k, place in made.results.items():
        ours = memory.to_host(values[place])
        theirs = memory.to_host(others[plain.results[k]])
        compare(found.nodes[k], ours, theirs)


def compare(node: Node, ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> None:
    """Fused and unfused results are equal, to rounding."""
    tolerance = 0.0
    if node.dtype.is_inexact:
        tolerance = 1e3 * float(np.finfo(node.dtype.real.numpy).eps)
    if not np.allclose(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True):
        raise RudaError(f"fused and unfused results of {node!r} differ: {ours} and {theirs}")
