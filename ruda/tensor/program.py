"""Recorded nodes -> a `Program`: the ops in order, with numbers for names and without values.

Equal programs are computed by equal kernels: a program is the key under which a plan is kept. A
node that somebody else refers to - a tensor, or an op outside - is wanted, and gets a value; the
rest exists inside kernels only. Whether anybody does is seen from the count of references.
"""

from __future__ import annotations

import math
import operator
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ruda.dtypes import DType
from ruda.tensor import memory
from ruda.tensor.graph import VIEW, WEAK, Node, form_of, node_of
from ruda.tensor.memory import View
from ruda.tensor.opdef import Row

Reference = tuple[str, int]  # ("step" | "leaf" | "number", which)


class Step(NamedTuple):
    """An op: `axes` are those of a reduction, or the `View` of a view."""

    row: Row
    inputs: tuple[Reference, ...]
    shape: tuple[int, ...]
    dtype: DType
    axes: Any = ()


class Leaf(NamedTuple):
    """Memory that exists; strides in elements."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Program(NamedTuple):
    """What is to be computed.

    numbers  their Python types
    wanted   the steps whose values are kept
    dead     the leaves that nobody else refers to: their memory may be written
    """

    steps: tuple[Step, ...]
    leaves: tuple[Leaf, ...]
    numbers: tuple[type, ...]
    wanted: frozenset[int]
    dead: frozenset[int]
    device: str

    def dtype_of(self, reference: Reference) -> DType:
        what, k = reference
        if what == "number":
            return WEAK[self.numbers[k]]
        return self.steps[k].dtype if what == "step" else self.leaves[k].dtype

    def shape_of(self, reference: Reference) -> tuple[int, ...]:
        what, k = reference
        if what == "number":
            return ()
        return self.steps[k].shape if what == "step" else self.leaves[k].shape

    def users(self) -> list[list[int]]:
        """The steps that take each step."""
        out: list[list[int]] = [[] for _ in self.steps]
        for k, step in enumerate(self.steps):
            for i in dict.fromkeys(step.inputs):
                if i[0] == "step":
                    out[i[1]].append(k)
        return out


class Collected(NamedTuple):
    """Nodes as a program, inputs before users, and what it is run with."""

    nodes: list[Node]
    leaves: list[Node]
    numbers: list[Any]
    wanted: list[bool]
    dead: list[bool]


class Waiting(NamedTuple):
    """What must be computed, users before inputs: quick to make, only to be found again by its key.

    Equal keys are equal programs, but for who else refers to their nodes and leaves.
    """

    key: tuple[Any, ...]
    nodes: list[Node]
    leaves: list[Node]
    numbers: list[Any]


def waiting(targets: Sequence[Node], most: int) -> Waiting | None:
    """All that nodes wait for; None if it is more than `most`.

    Each node is looked at once, each input is told by the number of the first one that was it.
    """
    nodes = list(targets)
    leaves: list[Node] = []
    numbers: list[Any] = []
    numbered = {n: k for k, n in enumerate(nodes)}
    key: list[Any] = [len(nodes), nodes[0].device]
    if gather(nodes, numbered, leaves, numbers, key, form_of) > most:
        return None
    return Waiting(tuple(key), nodes, leaves, numbers)


def gather(
    nodes: list[Node], numbered: dict[Node, int], leaves: list[Node], numbers: list[Any],
    key: list[Any], form_of: Callable[[Node], Any],
) -> int:  # fmt: skip
    """Add to lists what nodes wait for, and tell the key; how many nodes and leaves there are.

    `quick.ll` has the same in native code.
    """
    count = len(nodes)
    number_of = numbered.setdefault
    tell = key.append
    for n in nodes:
        tell(n.row)
        if n.axes:  # a reduction or a view; the shapes of other ops follow from their inputs
            tell(n.axes)
            tell(n.shape)
        for i in n.inputs:
            if type(i) is Node:
                k = number_of(i, count)
                tell(k)
                if k == count:
                    count += 1
                    if i.value is None:
                        nodes.append(i)
                    else:
                        leaves.append(i)
                        try:
                            tell(i.form)
                        except AttributeError:
                            tell(form_of(i))
            else:
                tell(type(i))
                numbers.append(i)
    return count


def uses(found: Waiting) -> tuple[list[int], list[int]]:
    """How often the waiting nodes take each of them, and each leaf."""
    count: dict[Node, int] = dict.fromkeys([*found.nodes, *found.leaves], 0)
    for n in found.nodes:
        for i in n.inputs:
            if type(i) is Node:
                count[i] += 1
    return [count[n] for n in found.nodes], [count[n] for n in found.leaves]


def topological(targets: Sequence[Node], most: int) -> tuple[list[Node], bool]:
    """What must be computed, inputs before users; not more than `most`, and whether that is all."""
    order: list[Node] = []
    seen: set[int] = set()
    stack = list(reversed(targets))
    while stack:
        node = stack[-1]
        if id(node) in seen or node.value is not None:
            stack.pop()
            continue
        before = len(stack)
        for i in node.inputs[::-1]:
            if type(i) is Node and i.value is None and id(i) not in seen:
                stack.append(i)
        if len(stack) == before:
            stack.pop()
            seen.add(id(node))
            order.append(node)
            if len(order) == most:
                return order, not any(n.value is None and id(n) not in seen for n in targets)
    return order, True


def references(nodes: list[Node]) -> list[int]:
    """How many references each node of a list has."""
    return list(map(sys.getrefcount, nodes))


def _own_references() -> int:
    """What `references` finds of a node that only its list holds."""
    nodes = [node_of(None, (), (), WEAK[int], "cpu")]
    return references(nodes)[0]


OWN = _own_references()


def counts(numbers: list[int]) -> bytes:
    """Counts of references as `above` takes them."""
    return struct.pack(f"={len(numbers)}q", *numbers)


def above(nodes: list[Node], known: bytes) -> bytes:
    """For each node of a list 1 if it has more references than is known of, else 0.

    `quick.ll` has the same in native code.
    """
    return bytes(map(operator.gt, references(nodes), memoryview(known).cast("q")))


def others(found: Waiting, nodes: bytes, leaves: bytes) -> tuple[bytes, bytes]:
    """Which waiting nodes somebody refers to beside those whose references are known, and which
    leaves may not be written."""
    wanted, kept = above(found.nodes, nodes), above(found.leaves, leaves)
    if 0 in kept:
        kept = bytes(k or not may_be_written(n) for n, k in zip(found.leaves, kept, strict=True))
    return wanted, kept


def collect(nodes: list[Node], targets: set[int]) -> Collected:
    """A program's values. `targets` are the ids of the nodes that are asked for.

    Whoever calls this keeps no names for single nodes: they would count as references.
    """
    found = arranged(nodes)
    times, leaf_times = uses(Waiting((), nodes, found.leaves, []))
    counts, leaf_counts = references(nodes), references(found.leaves)
    wanted = [c - OWN > u for c, u in zip(counts, times, strict=True)]
    wanted = [w or id(n) in targets for n, w in zip(nodes, wanted, strict=True)]
    dead = [
        c - OWN == u and may_be_written(n)
        for n, c, u in zip(found.leaves, leaf_counts, leaf_times, strict=True)
    ]
    return found._replace(wanted=wanted, dead=dead)


def may_be_written(leaf: Node) -> bool:
    """Whether memory may be, if nobody else refers to it."""
    return leaf.layout is None and not leaf.exported


def arranged(nodes: list[Node]) -> Collected:
    """Nodes, inputs before users, with their leaves and numbers."""
    own = {id(n) for n in nodes}
    inputs = [i for n in nodes for i in n.inputs]
    leaves = {id(i): i for i in inputs if type(i) is Node and id(i) not in own}
    numbers = [i for i in inputs if type(i) is not Node]
    return Collected(nodes, list(leaves.values()), numbers, [], [])


def program(found: Collected) -> Program:
    """The program of collected nodes."""
    place = {id(n): k for k, n in enumerate(found.nodes)}
    leaf_place = {id(n): k for k, n in enumerate(found.leaves)}
    steps, count = [], 0
    for n in found.nodes:
        assert n.row is not None
        inputs: list[Reference] = []
        for i in n.inputs:
            if type(i) is not Node:
                inputs.append(("number", count))
                count += 1
            elif id(i) in place:
                inputs.append(("step", place[id(i)]))
            else:
                inputs.append(("leaf", leaf_place[id(i)]))
        steps.append(Step(n.row, tuple(inputs), n.shape, n.dtype, n.axes))
    leaves = tuple(Leaf(n.dtype, n.shape, strides_of(n)) for n in found.leaves)
    return Program(
        tuple(steps),
        leaves,
        tuple(type(v) for v in found.numbers),
        frozenset(k for k, w in enumerate(found.wanted) if w),
        frozenset(k for k, d in enumerate(found.dead) if d),
        found.nodes[0].device,
    )


def strides_of(leaf: Node) -> tuple[int, ...]:
    """Strides of a computed node, in elements."""
    if leaf.layout is None:
        return memory.contiguous(leaf.shape).strides
    found: tuple[int, ...] = leaf.layout[0]
    return found


# ---- views through ops ---------------------------------------------------------------------------


class Walk(NamedTuple):
    """How a view goes through the axes of what it sees: axis a is read at
    starts[a] + the sum of steps[a][k] * (index k of the view)."""

    shape: tuple[int, ...]
    starts: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]


def walk(shape: tuple[int, ...], view: View) -> Walk | None:
    """A view of memory in C order as a walk along the axes; None if it crosses them.

    >>> walk((2, 3), View((3, 2), (1, 3), 0))  # the transpose
    Walk(shape=(3, 2), starts=(0, 0), steps=((0, 1), (1, 0)))
    >>> walk((2, 3), View((6,), (1,), 0)) is None
    True
    """
    whole = memory.contiguous(shape).strides
    starts, rest = [], view.offset
    for n, s in zip(shape, whole, strict=True):
        starts.append(rest // s if n > 1 else 0)
        rest -= starts[-1] * s
    steps = [[0] * len(view.shape) for _ in shape]
    for k, (n, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        if n == 1 or stride == 0:
            continue
        a = next(
            (a for a, s in enumerate(whole) if shape[a] > 1 and stride % s == 0
             and abs(stride) // s < shape[a]),
            None,
        )  # fmt: skip
        if a is None:
            return None
        steps[a][k] = stride // whole[a]
    for a, n in enumerate(shape):
        reach = [s * (m - 1) for s, m in zip(steps[a], view.shape, strict=True)]
        low = starts[a] + sum(r for r in reach if r < 0)
        high = starts[a] + sum(r for r in reach if r > 0)
        if low < 0 or high >= max(n, 1):
            return None
    return Walk(view.shape, tuple(starts), tuple(map(tuple, steps)))


def aligned(found: Walk, shape: tuple[int, ...], inner: tuple[int, ...]) -> Walk:
    """The walk through an operand of shape `inner` that was broadcast to `shape`."""
    missing = len(shape) - len(inner)
    starts, steps = [], []
    for a, n in enumerate(inner):
        repeats = n == 1 and shape[a + missing] != 1
        starts.append(0 if repeats else found.starts[a + missing])
        steps.append((0,) * len(found.shape) if repeats else found.steps[a + missing])
    return Walk(found.shape, tuple(starts), tuple(steps))


def along(found: Walk, strides: Sequence[int]) -> View:
    """The walk as a view of memory with strides."""
    offset = sum(b * s for b, s in zip(found.starts, strides, strict=True))
    out = tuple(
        sum(found.steps[a][k] * s for a, s in enumerate(strides)) for k in range(len(found.shape))
    )
    return View(found.shape, out, offset)


class Folded(NamedTuple):
    """A program after `fold_views`.

    sources  for each leaf the old one, and the view of it
    wanted   the old numbers of wanted steps, and the new ones
    """

    program: Program
    sources: tuple[tuple[int, View | None], ...]
    wanted: dict[int, int]


def unfolded(p: Program) -> Folded:
    """The program as it is."""
    sources = tuple((k, None) for k in range(len(p.leaves)))
    return Folded(p, sources, {k: k for k in p.wanted})


def fold_views(p: Program) -> Folded:
    """Views of ops as ops of views, down to the memory; and the leaves as views of the old ones.

    A view stays where it crosses axes, repeats elements (they would be computed again), or sees
    what is stored anyway.
    """
    sources: list[tuple[int, View | None]] = [(k, None) for k in range(len(p.leaves))]
    if not any(s.row is VIEW for s in p.steps):
        return unfolded(p)
    folded = _folded(p)
    steps: list[Step] = []
    leaves = list(p.leaves)
    made: dict[Reference, Reference] = {("leaf", k): ("leaf", k) for k in range(len(leaves))}

    def add(step: Step) -> Reference:
        steps.append(step)
        return "step", len(steps) - 1

    def look(reference: Reference, view: View) -> Reference:
        """A view of memory: of a leaf, or of what a step will have computed."""
        dtype = p.dtype_of(reference)
        if reference[0] == "step":
            return add(Step(VIEW, (made[reference],), view.shape, dtype, view))
        leaves.append(Leaf(dtype, view.shape, view.strides))
        sources.append((reference[1], view))
        return "leaf", len(leaves) - 1

    known: dict[tuple[Reference, Walk], Reference] = {}

    def seen(reference: Reference, through: Walk) -> Reference:
        key = reference, through
        if key not in known:
            known[key] = looked_up(reference, through)
        return known[key]

    def looked_up(reference: Reference, through: Walk) -> Reference:
        what, k = reference
        if what == "number":
            return reference
        if what == "leaf":
            return look(reference, along(through, p.leaves[k].strides))
        step = p.steps[k]
        if k in folded:
            inputs = tuple(
                seen(i, aligned(through, step.shape, p.shape_of(i))) for i in step.inputs
            )
            return add(step._replace(inputs=inputs, shape=through.shape))
        if step.row is VIEW and step.inputs[0][1] not in folded:
            view = along(through, step.axes.strides)
            return look(step.inputs[0], view._replace(offset=view.offset + step.axes.offset))
        return look(reference, along(through, memory.contiguous(step.shape).strides))

    for k, step in enumerate(p.steps):
        source = step.inputs[0]
        if k in folded:
            continue
        if step.row is VIEW and source[0] == "leaf" and k not in p.wanted:
            made["step", k] = look(source, step.axes)
        elif step.row is VIEW and source[0] == "step" and source[1] in folded:
            through = walk(p.shape_of(source), step.axes)
            assert through is not None
            made["step", k] = seen(source, through)
        else:
            inputs = tuple(i if i[0] == "number" else made[i] for i in step.inputs)
            made["step", k] = add(step._replace(inputs=inputs))
    wanted = {k: made["step", k][1] for k in p.wanted}
    new = p._replace(
        steps=tuple(steps),
        leaves=tuple(leaves),
        wanted=frozenset(wanted.values()),
        dead=p.dead - {k for k, view in sources if view is not None},
    )
    return Folded(new, tuple(sources), wanted)


def _folded(p: Program) -> set[int]:
    """The elementwise steps that are computed at the views which look at them."""
    users = p.users()
    out = {s.inputs[0][1] for k, s in enumerate(p.steps) if _folds(p, users, k)}
    for k in range(len(p.steps) - 1, -1, -1):
        if k in out:
            out |= {
                i[1] for i in p.steps[k].inputs
                if i[0] == "step" and _sole(p, users, i[1])
                and p.steps[i[1]].shape == p.steps[k].shape
            }  # fmt: skip
    return out


def _sole(p: Program, users: list[list[int]], k: int) -> bool:
    return p.steps[k].row.kind == "elementwise" and k not in p.wanted and len(users[k]) == 1


def _folds(p: Program, users: list[list[int]], k: int) -> bool:
    """Whether a view step goes down through what it sees."""
    what, source = p.steps[k].inputs[0]
    if p.steps[k].row is not VIEW or what != "step" or k in p.wanted or not _sole(p, users, source):
        return False
    below = p.steps[source].shape
    smaller = math.prod(p.steps[k].shape) <= math.prod(below)
    return smaller and walk(below, p.steps[k].axes) is not None
