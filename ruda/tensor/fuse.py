"""A program -> clusters: the steps that one kernel computes.

A cluster has a space, the shape of its elementwise ops. Reductions of that space along the same
axes belong to it too, and what is made of their results: a softmax, a variance, a layer norm are
one cluster, whose kernel goes over a row as often as reductions depend on each other. Members are
"full" (an element of the space each) or "row" (one value for all elements along the axes).

Steps are taken in order; each joins the cluster of one of its inputs if it fits and no cycle
comes of it, and clusters that meet in a step become one. In the end neighbours that read the same
memory are joined: one kernel, several results.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ruda.tensor import memory
from ruda.tensor.graph import VIEW
from ruda.tensor.program import Program, Reference, Step

MAX_OPS = 64  # steps of a cluster: registers
MAX_REDUCTIONS = 4  # of a cluster: each has shared memory
Axes = tuple[int | None, ...]  # for each axis of a value the space's axis; None: it does not change


class Limits(NamedTuple):
    """What a device's kernels may have."""

    arrays: int  # inputs and outputs together


@dataclass(eq=False)
class Cluster:
    """Steps for one kernel. `number` is its bit in sets of clusters."""

    number: int
    space: tuple[int, ...]
    axes: tuple[int, ...] | None = None  # of its reductions
    members: list[int] = field(default_factory=list)
    where: dict[int, Axes] = field(default_factory=dict)
    levels: dict[int, str] = field(default_factory=dict)
    needs: int = 0  # bits of the clusters that must run before
    reductions: int = 0
    ops: int = 0  # steps that compute

    def kept(self) -> tuple[int, ...]:
        """Axes that are not reduced."""
        return tuple(a for a in range(len(self.space)) if a not in (self.axes or ()))


class Split(NamedTuple):
    """A cluster that was too large for the device: what it needs, and what there is."""

    needs: int
    has: int


class Maker:
    """Clusters while they are made."""

    def __init__(self, p: Program, limits: Limits) -> None:
        self.p, self.limits = p, limits
        self.users = p.users()
        self.of: dict[int, Cluster] = {}  # each step's
        self.all: dict[int, Cluster] = {}
        self.count = 0

    # -- joining --

    def take(self, steps: Iterable[int]) -> None:
        """Put steps into clusters, one after another."""
        for k in steps:
            step = self.p.steps[k]
            homes = self.homes(step)
            home = next((c for c in homes if self.joins(c, k)), None)
            if home is None:
                if step.row is VIEW:
                    continue  # memory, seen otherwise: no kernel
                home = self.new(k)
                homes = self.homes(step)
            for other in homes:
                if other is not home and other.number in self.all:
                    self.merge(home, other)

    def homes(self, step: Step) -> list[Cluster]:
        """The clusters that its inputs are in, the newest first."""
        found = {
            self.of[i[1]].number: self.of[i[1]]
            for i in step.inputs
            if i[0] == "step" and i[1] in self.of
        }
        return [found[n] for n in sorted(found, reverse=True)]

    def new(self, k: int) -> Cluster:
        step = self.p.steps[k]
        is_reduction = step.row.kind == "reduce"
        space = self.p.shape_of(step.inputs[0]) if is_reduction else step.shape
        c = Cluster(self.count, space)
        self.count += 1
        self.all[c.number] = c
        found = self.fit(c, k)
        assert found is not None
        self.add(c, k, *found)
        return c

    def add(self, c: Cluster, k: int, level: str, where: Axes) -> None:
        step = self.p.steps[k]
        c.members.append(k)
        c.where[k], c.levels[k] = where, level
        self.of[k] = c
        if step.row.kind == "reduce":
            c.axes = step.axes
            c.reductions += 1
        c.ops += step.row is not VIEW
        self.need(c, self.before(step, c))

    def before(self, step: Step, c: Cluster) -> int:
        """The clusters that a step waits for, besides its own."""
        bits = 0
        for i in step.inputs:
            source = self.source(i)
            if source is not None and source is not c:
                bits |= 1 << source.number | source.needs
        return bits

    def source(self, i: Reference) -> Cluster | None:
        """The cluster that computes a reference's memory."""
        while i[0] == "step":
            if i[1] in self.of:
                return self.of[i[1]]
            i = self.p.steps[i[1]].inputs[0]  # a view
        return None

    def need(self, c: Cluster, bits: int) -> None:
        c.needs |= bits
        for other in self.all.values():
            if other.needs >> c.number & 1:
                other.needs |= c.needs

    def joins(self, c: Cluster, k: int) -> bool:
        step = self.p.steps[k]
        if c.ops >= MAX_OPS or self.before(step, c) >> c.number & 1:
            return False
        if any(i[1] not in c.where for i in step.inputs if self.source(i) is c):
            return False  # a view of what the same kernel would write
        found = self.fit(c, k)
        if found is None:
            return False
        self.add(c, k, *found)
        return True

    def merge(self, c: Cluster, other: Cluster) -> None:
        """Two clusters as one, if they fit and no third one stands between them."""
        if c.space != other.space or c.ops + other.ops > MAX_OPS:
            return
        if None not in (c.axes, other.axes) and c.axes != other.axes:
            return
        if c.reductions + other.reductions > MAX_REDUCTIONS:
            return
        if not self.fit_together(c, other):
            return
        for third in self.all.values():
            if third is c or third is other:
                continue
            between = third.needs
            if (c.needs >> third.number & 1 and between >> other.number & 1) or (
                other.needs >> third.number & 1 and between >> c.number & 1
            ):
                return
        c.members = sorted(c.members + other.members)
        c.where |= other.where
        c.levels |= other.levels
        c.axes = c.axes if c.axes is not None else other.axes
        c.reductions += other.reductions
        c.ops += other.ops
        for k in other.members:
            self.of[k] = c
        del self.all[other.number]
        bits = (c.needs | other.needs) & ~(1 << c.number | 1 << other.number)
        for third in self.all.values():
            if third.needs >> other.number & 1:
                third.needs = third.needs & ~(1 << other.number) | 1 << c.number
        c.needs = bits
        self.need(c, bits)

    def fit_together(self, c: Cluster, other: Cluster) -> bool:
        """Whether what each takes of the other is at the right axes."""
        everywhere: Axes = tuple(range(len(c.space)))
        for one, two in ((c, other), (other, c)):
            for k in one.members:
                for i in self.p.steps[k].inputs:
                    if self.source(i) is not two:
                        continue
                    if i[1] not in two.where:  # memory that would be written in the same kernel
                        return False
                    if self.p.steps[k].row.kind == "reduce":
                        if two.levels[i[1]] != "full":
                            return False
                    elif (one.levels[k] == "row" and two.levels[i[1]] != "row") or not self.lies(
                        two, i, everywhere if one.levels[k] == "full" else one.where[k]
                    ):
                        return False
        return True

    # -- what fits --

    def fit(self, c: Cluster, k: int) -> tuple[str, Axes] | None:
        """The level and axes of a step in a cluster's space; None if it is not of it."""
        step = self.p.steps[k]
        inside = [i for i in step.inputs if i[0] == "step" and self.of.get(i[1]) is c]
        match step.row.kind:
            case "view":
                return self.fit_view(c, step)
            case "reduce":
                return self.fit_reduction(c, step, bool(inside))
        everywhere: Axes = tuple(range(len(c.space)))
        rows = bool(inside) and all(c.levels[i[1]] == "row" for i in inside)
        if rows and c.axes is not None:
            where = self.row_axes(c, step, inside)
            if where is not None:
                return "row", where
        if step.shape == c.space and all(self.lies(c, i, everywhere) for i in inside):
            return "full", everywhere
        return None

    def lies(self, c: Cluster, i: Reference, axes: Axes) -> bool:
        """Whether a member's axes are those of its user, aligned at the last one."""
        own = c.where[i[1]]
        missing = len(axes) - len(own)
        return missing >= 0 and all(w is None or w == axes[a + missing] for a, w in enumerate(own))

    def row_axes(self, c: Cluster, step: Step, inside: Sequence[Reference]) -> Axes | None:
        """The axes of an op on values of rows: they must all be told by its inputs."""
        where: list[int | None] = [None] * len(step.shape)
        for i in inside:
            own = c.where[i[1]]
            missing = len(where) - len(own)
            for a, w in enumerate(own):
                if w is None:
                    continue
                if where[a + missing] not in (None, w):
                    return None
                where[a + missing] = w
        for n, w in zip(step.shape, where, strict=True):
            if (w is None and n != 1) or (w is not None and n != c.space[w]):
                return None
        told = [w for w in where if w is not None]
        whole = all(a in told or c.space[a] == 1 for a in c.kept())
        return tuple(where) if whole and told == sorted(set(told) & set(c.kept())) else None

    def fit_reduction(self, c: Cluster, step: Step, inside: bool) -> tuple[str, Axes] | None:
        if c.members and not inside:
            return None
        source = step.inputs[0]
        if self.p.shape_of(source) != c.space or c.axes not in (None, step.axes):
            return None
        if c.reductions >= MAX_REDUCTIONS or (inside and c.levels[source[1]] != "full"):
            return None
        if len(step.shape) == len(c.space) and step.axes:
            where: Axes = tuple(None if a in step.axes else a for a in range(len(c.space)))
        else:
            where = tuple(a for a in range(len(c.space)) if a not in step.axes)
        return "row", where

    def fit_view(self, c: Cluster, step: Step) -> tuple[str, Axes] | None:
        """A view of a row's value that only adds, drops or repeats axes."""
        source = step.inputs[0]
        if source[0] != "step" or self.of.get(source[1]) is not c:
            return None
        if c.levels[source[1]] != "row" or step.axes.offset:
            return None
        shape = self.p.steps[source[1]].shape
        whole = memory.contiguous(shape).strides
        where: list[int | None] = []
        left = [a for a, n in enumerate(shape) if n != 1]
        for n, stride in zip(step.shape, step.axes.strides, strict=True):
            if n == 1 or stride == 0:
                where.append(None)
            elif left and stride == whole[left[0]] and n == shape[left[0]]:
                where.append(c.where[source[1]][left.pop(0)])
            else:
                return None
        return None if left else ("row", tuple(where))

    # -- in the end --

    def join_neighbours(self) -> None:
        """Clusters of one space that read the same memory as one, as far as the device binds it."""
        readers: dict[Reference, list[Cluster]] = {}
        for c in list(self.all.values()):
            for reference in self.reads(c):
                readers.setdefault(reference, []).append(c)
        for group in readers.values():
            for one, two in itertools.pairwise(group):
                c, other = self.now(one), self.now(two)
                if c is not other and c.space == other.space:
                    needs = len(self.reads(c) | self.reads(other))
                    needs += len(self.writes(c)) + len(self.writes(other))
                    if needs <= self.limits.arrays:
                        self.merge(c, other)

    def now(self, c: Cluster) -> Cluster:
        """The cluster that a cluster has become a part of."""
        return self.of[c.members[0]]

    def reads(self, c: Cluster) -> set[Reference]:
        """The memory that a cluster reads."""
        out: set[Reference] = set()
        for k in c.members:
            for i in self.p.steps[k].inputs:
                if i[0] == "leaf" or (i[0] == "step" and self.of.get(i[1]) is not c):
                    out.add(i)
        return out

    def writes(self, c: Cluster) -> list[int]:
        """The members whose values are stored."""
        return [k for k in c.members if self.is_stored(c, k)]

    def is_stored(self, c: Cluster, k: int) -> bool:
        step = self.p.steps[k]
        if step.row is VIEW:
            return False
        if k in self.p.wanted:
            return True
        for user in self.users[k]:
            if self.of.get(user) is not c:
                return True
            if self.p.steps[user].row is VIEW and (
                user in self.p.wanted or any(self.of.get(u) is not c for u in self.users[user])
            ):
                return True
        return False

    def split_large(self) -> list[Split]:
        """Halve clusters that need more arrays than the device binds."""
        splits = []
        waiting = list(self.all.values())
        while waiting:
            c = waiting.pop()
            needs = len(self.reads(c)) + len(self.writes(c))
            if needs <= self.limits.arrays or c.ops <= 1:
                continue
            splits.append(Split(needs, self.limits.arrays))
            before = set(self.all)
            self.dissolve(c, c.members[: len(c.members) // 2])
            waiting += [d for n, d in self.all.items() if n not in before]
        return splits

    def dissolve(self, c: Cluster, early: list[int]) -> None:
        """Some members of a cluster, and the others, as clusters of their own."""
        members = c.members
        del self.all[c.number]
        for k in members:
            del self.of[k]
        parts: list[Cluster] = []
        for some in (early, [k for k in members if k not in early]):
            known, self.of = self.of, {}
            everything, self.all = self.all, {}
            self.take(some)
            made, of = list(self.all.values()), self.of
            self.all, self.of = everything, known
            self.all |= {d.number: d for d in made}
            self.of |= of
            parts += made
        # What waited for the cluster waits for its parts; they wait as their steps do.
        for d in parts:
            d.needs = 0
            for k in d.members:
                d.needs |= self.before(self.p.steps[k], d)
        bits = sum(1 << d.number for d in parts)
        for other in self.all.values():
            if other.needs >> c.number & 1:
                other.needs = other.needs & ~(1 << c.number) | bits

    def ordered(self) -> list[Cluster]:
        """Each after those that it needs."""
        done: set[int] = set()
        out: list[Cluster] = []
        stack = sorted(self.all.values(), key=lambda c: c.members[-1], reverse=True)
        while stack:
            c = stack[-1]
            missing = [
                d for d in (self.source(i) for k in c.members for i in self.p.steps[k].inputs)
                if d is not None and d is not c and d.number not in done
            ]  # fmt: skip
            if c.number in done:
                stack.pop()
            elif missing:
                stack += missing
            else:
                stack.pop()
                done.add(c.number)
                out.append(c)
        return out


def rows_of(c: Cluster) -> tuple[int, int]:
    """How many rows a cluster has, and how many elements are in one."""
    count = math.prod(c.space[a] for a in c.kept())
    return count, math.prod(c.space[a] for a in c.axes or ())
