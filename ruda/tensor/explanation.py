"""What `ruda.explain` says of a tensor: the kernels that compute it, and the bytes they move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ruda.settings import settings
from ruda.tensor import execute, plan
from ruda.tensor.graph import Node
from ruda.tensor.memory import Move
from ruda.tensor.plan import Kernel, Plan
from ruda.tensor.program import collect, program, topological


@dataclass(frozen=True)
class KernelNote:
    """One kernel of a plan.

    ops     the rows that it computes, in order
    style   how its threads go through the space: see `lower`
    rows    of a reduction, how many, and the elements of each
    parts   among which each row is divided
    moved   bytes read and written
    state   "kernel", or on the CPU "NumPy" until one is compiled
    """

    ops: tuple[str, ...]
    style: str
    space: tuple[int, ...]
    rows: tuple[int, int] | None
    parts: int
    reads: int
    writes: tuple[str, ...]
    moved: int
    state: str

    def __str__(self) -> str:
        ways = {
            "each": "a thread an element",
            "block": "a block of threads a row",
            "row": "a thread a row",
            "column": "rows side by side",
        }
        where = f"{math.prod(self.space)} elements"
        if self.rows is not None:
            where = f"{self.rows[0]} rows of {self.rows[1]}, {ways[self.style]}"
            where += f", {self.parts} parts" if self.parts > 1 else ""
        results = ", ".join(self.writes)
        return (
            f"{' '.join(self.ops)}: {where}; reads {self.reads} arrays, writes {results}; "
            f"{self.moved} bytes; by {self.state}"
        )


@dataclass(frozen=True)
class TensorExplanation:
    """How a tensor is computed; printing it shows all of it.

    kernels  in the order in which they run; none for a tensor that is computed
    moved    bytes that all kernels read and write
    least    bytes that must move: inputs once, results once
    splits   (arrays needed, arrays that the device binds) of kernels that were divided
    copies   what came from other devices by `to_device`, and how: zero-copy, copied once, peer to
             peer, or staged through the host
    libraries  of the device's vendor, that computed it or what it is made of
    """

    about: str
    kernels: tuple[KernelNote, ...]
    moved: int
    least: int
    splits: tuple[tuple[int, int], ...]
    copies: tuple[Move, ...]
    libraries: tuple[str, ...] = ()

    def __repr__(self) -> str:
        out = [self.about]
        out += [f"kernel {k}: {note}" for k, note in enumerate(self.kernels, 1)]
        if self.kernels:
            out.append(f"{self.moved} bytes move; {self.least} must")
        out += [
            f"divided: a kernel needs {needs} arrays, the device binds {has}"
            for needs, has in self.splits
        ]
        out += [f"to_device: {c}" for c in self.copies]
        out += [f"by {name}" for name in self.libraries]
        return "\n".join(out)


def explain(node: Node, about: str) -> TensorExplanation:
    """The plan that reading a tensor would run."""
    if node.value is not None:
        told = stories([node]), libraries([node])
        return TensorExplanation(f"{about}: computed", (), 0, 0, (), *told)
    order, whole = topological([node], execute.MOST)
    found = collect(order, {id(node)})
    made = plan.make(program(found), settings.fusion != "0")
    first = "" if whole else "the first "
    return TensorExplanation(
        f"{about}: {first}{len(order)} ops in {len(made.kernels)} kernels",
        tuple(note(made, k) for k in made.kernels),
        sum(k.moved for k in made.kernels),
        minimum(made),
        tuple((s.needs, s.has) for s in made.splits),
        stories(found.leaves),
        libraries(found.leaves),
    )


def stories(leaves: Sequence[Node]) -> tuple[Move, ...]:
    """Moves between devices that the leaves came from."""
    found: dict[Move, None] = {}
    for n in leaves:
        while n.inputs and n.value is not None:  # a view that was computed keeps its source
            n = n.inputs[0]
        story = getattr(n, "story", None)
        if story is not None:
            found[story] = None
    return tuple(found)


def libraries(leaves: Sequence[Node]) -> tuple[str, ...]:
    """What computed the leaves, other than kernels of ours and NumPy."""
    seen = [m for n in leaves for m in (n, *n.inputs)]  # of a view, what it is a view of
    found = [getattr(m, "library", None) for m in seen]
    return tuple(dict.fromkeys(name for name in found if name))


def minimum(made: Plan) -> int:
    """Bytes of a plan's inputs and results."""
    p = made.program
    used = {i for step in p.steps for i in step.inputs if i[0] == "leaf"}
    size = sum(plan.nbytes(p, i) for i in used)
    return size + sum(plan.nbytes(p, ("step", k)) for k in p.wanted)


def note(made: Plan, k: Kernel) -> KernelNote:
    group, p = k.group, made.program
    rows = None
    if group.style != "each":
        rows = k.rows, k.size // max(k.rows, 1)
    waits = p.device == "cpu" and not execute.is_compiled(group)
    return KernelNote(
        tuple(op.row for op in group.ops),
        group.style,
        p.steps[k.members[0]].shape if rows is None else (k.size,),
        rows,
        k.parts,
        len(k.operands),
        tuple(f"{o.dtype} {o.shape}" for o in k.outputs),
        k.moved,
        "NumPy" if waits else "kernel",
    )


def of_tensor(t: Any) -> TensorExplanation:
    """What `ruda.explain(tensor)` gives."""
    about = f"{t.dtype} {t.shape} on {t.device}"
    return explain(t._storage.node, about)
