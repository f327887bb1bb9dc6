"""Compute what was recorded: a program, its plan, and kernel after kernel.

Plans are kept by their programs. On the host a group of ops that is seen for the first time and is
small runs row by row through NumPy: nobody waits for a compiler at a prompt. When it comes again,
or is large, a kernel is compiled in the background, and takes over when it is there. On other
devices there is always one. `RUDA_FUSION=0` computes an op at a time, `verify` both ways.
"""

from __future__ import annotations

import contextvars
import math
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from ruda.dtypes import DType, float32, float64
from ruda.errors import DeviceError, RudaError
from ruda.jit import intrinsics
from ruda.locks import fork_safe_lock
from ruda.settings import config, settings
from ruda.tensor import graph, lower, memory, plan
from ruda.tensor.graph import VIEW, WEAK, Node
from ruda.tensor.lower import Group
from ruda.tensor.plan import Kernel, Look, Plan
from ruda.tensor.program import (
    OWN,
    Collected,
    Program,
    Reference,
    Waiting,
    arranged,
    collect,
    counts,
    others,
    program,
    topological,
    uses,
    waiting,
)

LARGE = 1 << 17  # elements from which a group is compiled when it is first seen
ALONE = 1 << 20  # bytes of a result up to which an op on its own takes no plan
SMALL = 1 << 12  # elements from which one is compiled when it comes again
MOST = 1024  # ops that are planned at a time
PLANS = 1024  # that are kept

_lock = fork_safe_lock()
_seen: dict[Group, int] = {}
_refused: set[Group] = set()  # no kernel can compute them: complex tanh
# The settings that plans were made under, and the programs that have some; and reductions alone.
_plans: tuple[Any, dict[Any, Any]] = (None, {})


def realize(targets: Iterable[Node]) -> None:
    """Give nodes their values."""
    pending = [n for n in targets if n.value is None]
    if not pending:
        return
    with _lock:
        if pending[0].device == "cpu":
            if at_once(pending):
                return
        elif len(pending) == 1 and alone(pending[0]):
            return
        pending = [n for n in dict.fromkeys(pending) if n.value is None]
        if pending:
            planned(pending)


def planned(pending: list[Node]) -> None:
    """Give nodes their values, by a plan: that of an equal program if there is one."""
    if settings.fusion == "verify" or not found_again(pending):
        compute(pending)


def read(node: Node) -> Any:
    """A node's value: what `realize` does, quicker where it is small work on the host.

    `quick.ll` does in native code what this mostly does.
    """
    if node.value is not None:
        return node.value
    with _lock:
        if node.value is None:
            if node.device == "cpu":
                done = reduced_again(node) or small_work(node)
            else:
                done = alone(node)
            if not done:
                planned([node])
        return node.value


def small_work(node: Node) -> bool:
    """Compute a node of the host as `at_once` does; False if it is for a plan, as is seen from most
    nodes without the exception that tells it of those that they need."""
    row, shape = node.row, node.shape
    if row is None or row.kind != "elementwise" or (shape not in _small and not is_small(shape)):
        return False
    return at_once((node,))


def compute(pending: list[Node]) -> None:
    """Give nodes their values, by a plan made for them; in several steps if they are many."""
    targets = {id(n) for n in pending}
    while True:
        order, whole = topological(pending, MOST)
        if order:
            found = collect(order, targets)
            made = plan_for(found)
            values = run(
                made, plan.leaf_values(made, [n.value for n in found.leaves]), found.numbers
            )
            if settings.fusion == "verify":
                check(made, found, values)
            for k, place in made.results.items():
                finish(found.nodes[k], values[place])
            del found
        del order
        if whole:
            return


class Known(NamedTuple):
    """A program that came before: references of its nodes and leaves by itself, and its plans."""

    nodes: bytes
    leaves: bytes
    ready: dict[tuple[bytes, bytes], Ready]  # by `others`


class Ready(NamedTuple):
    """A plan, and where its leaves, numbers and results are among those that wait."""

    plan: Plan
    leaves: list[int]
    numbers: list[int]
    results: list[tuple[int, int]]  # a node's place there, and its value's place in the plan


def found_again(pending: list[Node]) -> bool:
    """Give nodes their values, by the plan of an equal program if there is one; False if they are
    too many for one plan."""
    found = waiting(pending, MOST)
    if found is None:
        return False
    ready = ready_plan(found, len(pending))
    made = ready.plan
    values = plan.leaf_values(made, [found.leaves[k].value for k in ready.leaves])
    run(made, values, [found.numbers[k] for k in ready.numbers])
    if len(found.nodes) == 1:
        remember_reduction(found.nodes[0], made)
    for k, place in ready.results:
        finish(found.nodes[k], values[place])
    return True


def ready_plan(found: Waiting, targets: int) -> Ready:
    """The plan for what waits, the first nodes of which are asked for."""
    global _plans
    state = settings.local.get() or settings.base
    if _plans[0] is not state:
        _plans = state, {}
    programs = _plans[1]
    known = programs.get(found.key)
    if known is None:
        if len(programs) >= PLANS:
            programs.clear()
        nodes, leaves = uses(found)
        nodes = [OWN + k for k in nodes]
        nodes[:targets] = [-1] * targets
        known = Known(counts(nodes), counts([OWN + k for k in leaves]), {})
        programs[found.key] = known
    who = others(found, known.nodes, known.leaves)
    ready = known.ready.get(who)
    if ready is None:
        ready = known.ready[who] = first_plan(found, targets, *who)
    return ready


def first_plan(found: Waiting, targets: int, wanted: bytes, kept: bytes) -> Ready:
    """A plan, made. For each node whether it is wanted, for each leaf whether it stays."""
    order, _ = topological(found.nodes[:targets], len(found.nodes))
    nodes = {id(n): k for k, n in enumerate(found.nodes)}
    leaves = {id(n): k for k, n in enumerate(found.leaves)}
    sorted_ = arranged(order)
    made = plan_for(
        sorted_._replace(
            wanted=[bool(wanted[nodes[id(n)]]) for n in order],
            dead=[not kept[leaves[id(n)]] for n in sorted_.leaves],
        )
    )
    numbers: dict[int, list[int]] = {}  # of each node
    count = 0
    for n in found.nodes:
        own = sum(type(i) is not Node for i in n.inputs)
        numbers[id(n)] = list(range(count, count + own))
        count += own
    return Ready(
        made,
        [leaves[id(n)] for n in sorted_.leaves],
        [k for n in order for k in numbers[id(n)]],
        [(nodes[id(order[k])], place) for k, place in made.results.items()],
    )


def plan_for(found: Collected) -> Plan:
    """A new plan of collected nodes."""
    p = program(found)
    if settings.fusion == "verify":  # which reads the leaves again
        p = p._replace(dead=frozenset())
    return plan.make(p, settings.fusion != "0")


def finish(node: Node, value: Any) -> None:
    if node.row is VIEW:  # it sees its source's memory: that stays, and nobody writes it
        node.value, node.row, node.depth = value, None, 0
        node.layout = graph.layout_of(value)
        return
    node.computed(value)


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
    if settings.fusion == "0" or settings.deterministic or group in _refused:
        return False
    if step.size < SMALL:
        return step.repeats and step.size > 0
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
        plan.launch(step, made, values, numbers, device)
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


# ---- an op alone ---------------------------------------------------------------------------------


class Alone(NamedTuple):
    """How a small op of computed inputs runs on a device that launches kernels by addresses."""

    make: Callable[[], Any]  # its memory
    run: Callable[..., None]
    arrays: tuple[int, ...]  # which inputs these are
    numbers: tuple[tuple[int, DType], ...]
    form: graph.Form  # of the result
    fresh: Callable[..., Any] | None  # does all of it in native code, or returns None: `quick`
    turned: bool  # whether it takes the two inputs in the other order


BOTH = (0, 1)  # the inputs of most: two arrays, in order
OFTEN = 1024  # ops from which native code is worth the 30 ms that LLVM takes to load
# Settings, what was made under them, and how many ops have run.
_alone: list[Any] = [None, {}, 0]


def alone(n: Node) -> bool:
    """Compute an op whose inputs are there, as in an eager library; False if it takes a plan.

    Nobody asks who else refers to what: the memory of a small input is not worth it.
    """
    row, inputs = n.row, n.inputs
    count = len(inputs)
    if not 0 < count <= 2 or (count == 2 and inputs[0] is inputs[1]):
        return False
    state = settings.local.get() or settings.base
    if _alone[0] is not state:
        _alone[:2] = state, {}
    kind: tuple[Any, ...]
    try:  # what has a form is computed
        if count == 2:
            x, y = inputs
            kind = (
                row,
                x.form if type(x) is Node else type(x),
                y.form if type(y) is Node else type(y),
            )
        else:
            kind = row, inputs[0].form
    except AttributeError:  # it was not asked for yet
        if any(type(i) is Node and i.value is None for i in inputs):
            return False
        kind = (row, *[graph.form_of(i) if type(i) is Node else type(i) for i in inputs])
    found = _alone[1].get(kind, kind)
    if found is kind:  # nothing yet
        return first_alone(n, kind)
    if found is None:
        return False
    make, run, arrays, numbers, form, *_ = found
    out = make()
    if arrays is BOTH:
        run(out, inputs[0].value, inputs[1].value)
    elif numbers:
        given = [plan.number(inputs[k], dtype) for k, dtype in numbers]
        run(out, *[inputs[k].value for k in arrays], *given)
    else:
        run(out, *[inputs[k].value for k in arrays])
    n.value, n.form, n.inputs, n.row, n.depth = out, form, (), None, 0
    _alone[2] += 1
    if _alone[2] == OFTEN:
        plan.install(load=True)
        _alone[1] = {}  # to be made again, natively
    return True


def first_alone(n: Node, kind: tuple[Any, ...]) -> bool:
    """The first op of a kind: by a plan of its own, whose kernel the others are given to."""
    known: dict[Any, Alone | None] = _alone[1]
    if len(known) >= PLANS:
        known.clear()
    known[kind] = None
    if n.row.kind != "elementwise":  # type: ignore[union-attr]
        return False
    if settings.fusion != "1" or math.prod(n.shape) * n.dtype.itemsize > ALONE:
        return False
    inputs = n.inputs
    found = collect([n], {id(n)})
    made = plan.make(program(found)._replace(dead=frozenset()))
    values = run(made, plan.leaf_values(made, [i.value for i in found.leaves]), found.numbers)
    (at,) = made.results.values()
    finish(n, values[at])
    (step,) = made.kernels if len(made.steps) == 1 else [None]
    if step is not None and step.direct is not None:
        places = {id(i): k for k, i in enumerate(inputs)}
        order = tuple(places[id(found.leaves[o.place])] for o in step.operands)
        where = [k for k, i in enumerate(inputs) if type(i) is not Node]
        given = (*order, *(where[m.place] for m in step.numbers))  # in the kernel's order
        fresh = None
        if sorted(given) == list(range(len(inputs))):
            fresh = plan.fresh(step, values[at], values, found.numbers, n.device)
        known[kind] = Alone(
            memory.maker(n.shape, n.dtype, n.device),
            step.direct,
            BOTH if order == BOTH else order,
            tuple((where[m.place], m.dtype) for m in step.numbers),
            graph.form_of(n),
            fresh,
            given == (1, 0),
        )
    return True


# ---- a reduction alone ---------------------------------------------------------------------------


def reduced_again(n: Node) -> bool:
    """Compute a reduction of much memory on the host by the kernel that an equal one had; False if
    there is none. After much memory nothing of the way to a plan is in the caches."""
    if n.row is None or n.row.kind != "reduce":
        return False
    (x,) = n.inputs
    if x.value is None or _plans[0] is not (settings.local.get() or settings.base):
        return False
    found = _plans[1].get(reduction_key(n, x))
    if found is None:
        return False
    kernel, make = found
    out = make()
    kernel.bound((out,), (x.value,), ())
    n.computed(out)
    return True


def reduction_key(n: Node, x: Node) -> tuple[Any, ...]:
    """No program's key: these begin with a number."""
    return n.row, n.axes, n.shape, graph.form_of(x)


def remember_reduction(n: Node, made: Plan) -> None:
    """Keep the kernel of a plan that is one reduction in parts, of memory as it is."""
    if n.device != "cpu" or n.row is None or n.row.kind != "reduce" or len(made.steps) != 1:
        return
    kernel = made.steps[0]
    if isinstance(kernel, Look) or kernel.bound is None or made.sources != ((0, None),):
        return
    (x,) = n.inputs
    _plans[1][reduction_key(n, x)] = kernel, memory.maker(n.shape, n.dtype, n.device)


# ---- small work at once --------------------------------------------------------------------------


class NotSmall(Exception):
    """Work for a plan."""


def at_once(targets: Sequence[Node]) -> bool:
    """Compute small elementwise work on the host op by op, without a plan; False if it is not.

    A kernel would cost more than NumPy takes: see `SMALL`.
    """
    if (settings.local.get() or settings.base)["fusion"] == "verify":
        return False
    before = be_quiet(QUIET)
    try:
        for n in targets:
            if n.value is None:
                evaluate(n)
    except (NotSmall, RecursionError):
        return False
    finally:
        warn_again(before)
    return True


def evaluate(n: Node, small: tuple[int, ...] = ()) -> Any:
    """Compute a node by its row's NumPy meaning, and what it needs; `small` is a shape that is.

    Chains are short: see `graph.MAX_DEPTH`.
    """
    inputs = n.inputs
    shape = n.shape
    if shape is not small and shape not in _small and not is_small(shape):
        raise NotSmall
    plain = n.row.plain  # type: ignore[union-attr]
    x = inputs[0]
    alike = False  # whether all memory is in C order, and of the result's shape
    found = None
    if plain is not None and type(x) is Node and (x.dtype is float32 or x.dtype is float64):
        left = x.value
        if left is None:
            left = evaluate(x, shape)
        elif x.layout is not None:
            left = forward(left)
        alike = x.layout is None and (x.shape is shape or x.shape == shape)
        if len(inputs) == 1:
            found = plain(left)
        else:
            y = inputs[1]
            if type(y) is float:
                found = plain(left, y)
            elif type(y) is Node and y.dtype is x.dtype:
                right = y.value
                if right is None:
                    right = evaluate(y, shape)
                elif y.layout is not None:
                    right = forward(right)
                found = plain(left, right)
                alike = alike and y.layout is None and (y.shape is shape or y.shape == shape)
    if found is None:
        alike, found = False, converting(n, shape)
    if not (alike and type(found) is np.ndarray) and (
        type(found) is not np.ndarray or found.shape != shape or not found.flags.c_contiguous
    ):
        found = own(np.asarray(found), shape, ())
    n.value = found
    n.inputs = ()
    n.row = None
    n.depth = 0
    return found


_small: set[tuple[int, ...]] = set()  # shapes that are


def is_small(shape: tuple[int, ...]) -> bool:
    if math.prod(shape) >= SMALL:
        return False
    if len(_small) > 1024:
        _small.clear()
    _small.add(shape)
    return True


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
            value = evaluate(i, small) if i.value is None else forward(i.value)
            given.append(converted(value, kind))
    found = np.asarray(row.numpy(*given)).astype(n.dtype.numpy, copy=False)
    return own(found, n.shape, given)


# No warnings of overflow and the like, as results say it: what `np.errstate` does, without its
# checks, which cost as much as adding 1000 numbers.
try:
    from numpy._core._ufunc_config import _extobj_contextvar  # type: ignore[attr-defined]
    from numpy._core.umath import _make_extobj

    QUIET: Any = _make_extobj(all="ignore")
    WARNINGS: Any = _extobj_contextvar
    be_quiet, warn_again = WARNINGS.set, WARNINGS.reset
    _before = be_quiet(QUIET)
    try:
        np.exp(np.float32(1e9))
    finally:
        warn_again(_before)
except (ImportError, AttributeError, TypeError):  # another NumPy
    QUIET, WARNINGS = {"all": "ignore"}, None

    def be_quiet(how: Any) -> Any:
        return np.seterr(**how)

    def warn_again(before: Any) -> None:
        np.seterr(**before)


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
            wider: dict[str, Any] = {}
            for position, i in enumerate(one.inputs):
                kind = at if position or one.row.rule != "condition" else WEAK[bool]
                if i[0] == "number":
                    given.append(intrinsics.convert(numbers[i[1]], kind))
                    continue
                value = forward(value_of(i))
                if one.row.name in ("sum", "prod") and at.is_integer and value.dtype.kind in "biu":
                    wider = {"dtype": at.numpy}  # piece by piece: not all of it, 8 bytes a bool
                else:
                    value = converted(value, kind)
                    if one.row.name in ("sum", "prod") and at.kind == "float" and at.bits == 16:
                        wider = {"dtype": np.float32}  # NumPy adds the next one to a rounded sum
                given.append(value)
            if one.row.kind == "reduce":
                (i,) = one.inputs
                kept = i[0] != "leaf" and i[1] in found and p.steps[i[1]].row is not VIEW
                if kept or (settings.deterministic and at.is_inexact):
                    # In C order, whatever it was made of: in another order sums round otherwise.
                    given = [np.asarray(given[0], order="C")]
                result = one.row.numpy(*given, axis=one.axes, **wider)
                result = np.asarray(result).reshape(one.shape)
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


def forward(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A deterministic op's operand as NumPy's vectors take it: from the end to the begin NumPy
    calls other functions, which round otherwise, and a view may be taken before or after an op."""
    if settings.deterministic and any(s < 0 for s in value.strides):
        return np.array(value, order="C")
    return value


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
