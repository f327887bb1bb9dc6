"""A loop of the vector unit as text: tiles, copies through queues, barriers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ruda.backends.ascend.vector.buffers import Plan, Taken
from ruda.backends.ascend.vector.program import (
    Between,
    CopyIn,
    CopyOut,
    Instruction,
    Line,
    Nest,
    Take,
    moved,
    uses,
)
from ruda.backends.ascend.vector.scalar import ScalarUnit
from ruda.jit.emit_python import bare
from ruda.jit.ir import Statement


def whole_rounds(every: int) -> str:
    """The length of a tile of so many elements, or a multiple."""
    return "TILE" if 128 % every == 0 else f"TILE / {every} * {every}"


class Tiles(ScalarUnit):
    """Text of planned loops."""

    tiled: bool

    def moves_again(self, plan: Plan) -> None:
        """Keep which copies loops around a plan make in each of their rounds."""
        raise NotImplementedError

    def between(self, taken: Taken, s: Statement, depth: int) -> None:
        """A statement between two loops over a row that stays."""
        raise NotImplementedError

    def tiles(self, plan: Plan, depth: int, shared: bool) -> None:
        """The loop over tiles."""
        s, p, at = plan.loop, plan.program, plan.at
        self.place = s.place
        self.moves_again(plan)
        start, stop = bare(self.text(s.start)), bare(self.text(s.stop))
        alone = shared or (self.tiled and not p.local)  # nothing else touches memory
        if not alone:
            self.line(depth, "PipeBarrier<PIPE_ALL>();")
        end = stop
        if not stop.isidentifier() and not stop.isdigit():
            end = self.own("end")
            self.line(depth, f"const int64_t {end} = {stop};")
        step, first = whole_rounds(p.every), start
        if shared:
            step = self.own("tile")
            extent = end if start == "0" else f"{end} - {start}"
            self.line(depth, f"const int64_t {step} = ruda::tile_of({extent}, TILE);")
            first = (
                f"GetBlockIdx() * {step}" if start == "0" else f"{start} + GetBlockIdx() * {step}"
            )
        change = f"GetBlockNum() * {step}" if shared else step
        self.line(depth, f"for (int64_t {at} = {first}; {at} < {end}; {at} += {change}) {{")
        inner = depth + 1
        self.line(inner, f"const int32_t count = int32_t(ruda::least({step}, {end} - {at}));")
        if p.padded:
            self.line(inner, f"const int32_t lanes = ruda::whole(count, {p.wide});")
        if p.checks:
            self.fallback(plan, inner)
        for v in p.scalars:
            self.line(inner, f"{self.held(v.dtype)} {self.name(v.name)} = {{}};")
        dirty: set[str] = set()
        self.render(plan, p.items, inner, dirty)
        self.line(depth, "}")
        if not alone:
            self.line(depth, "PipeBarrier<PIPE_ALL>();")

    @contextmanager
    def row_tile(self, plan: Plan, depth: int, alone: bool, otherwise: bool) -> Iterator[None]:
        """A row as one tile, where it fits; what the caller writes is for rows that do not."""
        s, p, at = plan.loop, plan.program, plan.at
        self.place = s.place
        self.moves_again(plan)
        start, stop = bare(self.text(s.start)), bare(self.text(s.stop))
        length = stop if start == "0" else f"{stop} - {start}"
        if not alone:
            self.line(depth, "PipeBarrier<PIPE_ALL>();")
        row = self.own("row")
        self.line(depth, f"const int64_t {at} = {start};")
        self.line(depth, f"const int64_t {row} = {length};")
        fits = [f"{row} > 0", *([f"{row} <= TILE"] if otherwise else [])]
        note = "  // it stays in the unified buffer" if otherwise else ""
        self.line(depth, f"const int32_t count = int32_t(ruda::least({row}, TILE));")
        self.line(depth, f"if ({' && '.join([*fits, *p.checks])}) {{{note}")
        if p.padded:
            self.line(depth + 1, f"const int32_t lanes = ruda::whole(count, {p.wide});")
        for v in p.scalars:
            self.line(depth + 1, f"{self.held(v.dtype)} {self.name(v.name)} = {{}};")
        self.render(plan, p.items, depth + 1, set())
        if not alone:
            self.line(depth + 1, "PipeBarrier<PIPE_ALL>();")
        if otherwise:
            self.line(depth, "} else {")
        yield
        self.line(depth, "}")

    def fallback(self, plan: Plan, depth: int) -> None:
        """A tile that breaks a condition goes to the scalar unit."""
        s, checks = plan.loop, plan.program.checks
        self.line(depth, f"if (!({' && '.join(checks)})) {{")
        if plan.program.local or self.function.arrays:
            self.line(depth + 1, "PipeBarrier<PIPE_ALL>();")
        name, held = self.name(s.variable.name), self.held(s.variable.dtype)
        self.declared.add(s.variable)
        at, body, change = plan.at, s.body, f"++{name}"
        if plan.original is not None:
            body, change = plan.original.body, f"{name} += {bare(self.text(plan.original.step))}"
        self.line(depth + 1, f"for ({held} {name} = {at}; {name} < {at} + count; {change}) {{")
        before, self.scalar_only = self.scalar_only, True
        self.body(body, depth + 2)
        self.scalar_only = before
        self.line(depth + 1, "}")
        if plan.program.local or self.function.arrays:
            self.line(depth + 1, "PipeBarrier<PIPE_ALL>();")
        self.line(depth + 1, "continue;")
        self.line(depth, "}")
        self.place = s.place

    def render(self, plan: Plan, items: Sequence[Any], depth: int, dirty: set[str]) -> None:
        """Items as text. `dirty`: buffers written since the last barrier of the vector pipe."""
        p = plan.program
        n = "lanes" if p.padded else "count"
        releases: dict[int, list[CopyIn]] = {}
        for item in items:
            if isinstance(item, CopyIn):
                last = max(k for k, other in enumerate(items)
                           if item.register in uses(other) or other is item)  # fmt: skip
                releases.setdefault(last, []).append(item)
        for k, item in enumerate(items):
            if item.place.line:
                self.place = item.place
            match item:
                case CopyIn():
                    self.copy_in(plan, item, depth, dirty)
                case CopyOut():
                    self.copy_out(plan, item, depth, dirty)
                case Instruction():
                    self.instruction(plan, item, depth, dirty, n)
                case Line(text=text):
                    self.line(depth, text)
                case Nest():
                    self.nested(plan, item, depth, dirty)
                case Between(statement=statement):
                    self.line(depth, "PipeBarrier<PIPE_ALL>();")
                    dirty.clear()
                    self.between(plan.in_use(item), statement, depth)
                    self.line(depth, "PipeBarrier<PIPE_ALL>();")
            for one in releases.get(k, ()):
                name = plan.places[one.register]
                self.line(depth, f"{plan.queues[one]}.FreeTensor({name});")

    def nested(self, plan: Plan, item: Nest, depth: int, dirty: set[str]) -> None:
        self.settle(depth, dirty)
        self.line(depth, item.head)
        self.render(plan, item.items, depth + 1, dirty)
        self.settle(depth + 1, dirty)
        if item.otherwise is not None:
            self.line(depth, "} else {")
            self.render(plan, item.otherwise, depth + 1, dirty)
            self.settle(depth + 1, dirty)
        self.line(depth, "}")

    def settle(self, depth: int, dirty: set[str]) -> None:
        if dirty:
            self.line(depth, "PipeBarrier<PIPE_V>();")
            dirty.clear()

    def copy_in(self, plan: Plan, item: CopyIn, depth: int, dirty: set[str]) -> None:
        type_, name, queue = item.register.type, plan.places[item.register], plan.queues[item]
        padding = f"ruda::unpadded<{type_}>()"
        if plan.program.padded:
            padding = f"ruda::padded<{type_}>(count)"
        self.line(depth, f"LocalTensor<{type_}> {name} = {queue}.AllocTensor<{type_}>();")
        source = f"{item.tensor}[{item.index}]"
        self.line(depth, f"DataCopyPad({name}, {source}, ruda::row<{type_}>(count), {padding});")
        self.line(depth, f"{queue}.EnQue({name});")
        self.line(depth, f"{name} = {queue}.DeQue<{type_}>();")
        if plan.program.padded:
            self.line(depth, f"ruda::zero_rest({name}, count, lanes);")
            dirty.add(name)

    def copy_out(self, plan: Plan, item: CopyOut, depth: int, dirty: set[str]) -> None:
        r, queue = item.register, plan.queues[item]
        type_ = r.type
        if plan.bound.get(r) is item:
            name = plan.places[r]
        else:
            name = self.tile_name(item.array)
            self.line(depth, f"LocalTensor<{type_}> {name} = {queue}.AllocTensor<{type_}>();")
            if plan.places[r] in dirty or ("[" in r.tensor and "arrays" in dirty):
                self.settle(depth, dirty)
            text = moved(type_, "{d}", "{0}").replace("{n}", "count")
            self.line(depth, text.replace("{d}", name).replace("{0}", plan.places[r]))
            dirty.add(name)
        self.line(depth, f"{queue}.EnQue({name});")
        self.line(depth, f"{name} = {queue}.DeQue<{type_}>();")
        target = f"{item.tensor}[{item.index}]"
        self.line(depth, f"DataCopyPad({target}, {name}, ruda::row<{type_}>(count));")
        self.line(depth, f"{queue}.FreeTensor({name});")

    def instruction(
        self, plan: Plan, item: Instruction, depth: int, dirty: set[str], n: str
    ) -> None:
        target = item.target
        if target is not None and target in plan.bound:
            queue = plan.queues[plan.bound[target]]
            name, type_ = plan.places[target], target.type
            self.line(depth, f"LocalTensor<{type_}> {name} = {queue}.AllocTensor<{type_}>();")
        names = [plan.places[r] for r in item.sources]
        touched = {*names, *([plan.places[target]] if target is not None else [])}
        if "work" in item.text:
            touched.add("work")
        if target is None:  # of an array of the block
            touched.add("arrays")
        if isinstance(item, Take) or any("[" in r.tensor for r in item.sources):
            touched.add("arrays")
        if touched & dirty:
            self.settle(depth, dirty)
        count = "count" if item.exact else n
        text = item.text.replace("{n}", count)
        if target is not None:
            text = text.replace("{d}", plan.places[target])
        for k, name in enumerate(names):
            text = text.replace(f"{{{k}}}", name)
        self.line(depth, text)
        dirty.add(plan.places[target] if target is not None else "arrays")
        if "work" in item.text:
            dirty.add("work")
