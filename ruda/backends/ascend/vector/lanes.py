"""One loop of a kernel -> instructions of the vector unit: its rounds become lanes of a tile.

The loop's body is run symbolically. A value is the same for all rounds (`Uniform`, computed by the
scalar unit), counts with them (`Steps`), or lies in the unified buffer with one element a round
(`Lanes`). Loads and stores of neighbours become copies, a branch that rounds take differently
becomes compare and select, sums and extremes become reductions. What does not fit raises `Refused`
with the reason, and the loop stays one of the scalar unit.

Here the order of instructions is fixed, and what each reads and writes; `buffers` gives them
places, `tiles` barriers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ruda.backends.ascend.vector.axis import Axis
from ruda.backends.ascend.vector.peephole import contracted, forwarded, in_place, needed
from ruda.backends.ascend.vector.program import (
    Between,
    CopyIn,
    CopyOut,
    Instruction,
    Lanes,
    Line,
    Nest,
    Program,
    Refused,
    Register,
    Steps,
    Take,
    Uniform,
    Value,
    all_items,
    moved,
    uses,
)
from ruda.backends.ascend.vector.rounds import Rounds
from ruda.backends.ascend.vector.tables import (
    BYTES,
    FLOATS,
    HELD,
    INTEGERS,
    MEMORY,
    NOTHING,
    ORDER,
    SUMS,
    TWO,
)
from ruda.errors import Place
from ruda.jit import ir
from ruda.jit.emit_python import bare
from ruda.jit.ir import (
    And,
    Array,
    Assign,
    Bitcast,
    Body,
    Cast,
    Const,
    Expr,
    Extent,
    For,
    If,
    Load,
    Op,
    Or,
    Read,
    Select,
    Statement,
    Store,
    Variable,
)

if TYPE_CHECKING:
    from ruda.backends.ascend.tiling import VectorEmitter


class Translator(Axis):
    """Runs the body of one loop symbolically; `run` gives its program."""

    def __init__(
        self, emitter: VectorEmitter, loop: For, parallel: bool, at: str,
        rounds: Rounds | None = None,
    ) -> None:  # fmt: skip
        super().__init__(loop, emitter.function.fastmath)
        self.emitter, self.parallel, self.at = emitter, parallel, at
        self.rounds, self.every = rounds, 1
        self.late = False  # something is visited after another array was stored to
        self.mask: Lanes | None = None
        self.values: dict[Variable, Value] = {}
        self.known: dict[Any, Value] = {}  # element -> its value now
        self.stores: dict[Any, tuple[Array, str, Place]] = {}  # what the block has to copy out
        self.depth = 0
        self.varying = self.find_varying()
        self.reductions = self.find_reductions()
        self.stored = stored_arrays(loop.body)
        self.scalars: set[Variable] = set()
        self.keys: dict[str, set[Any]] = {}
        self.stored_before: dict[str, Any] = {}

    def run(self) -> Program:
        self.scalars = self.visit()
        return self.program()

    def run_row(self, statements: Sequence[Statement], rounds: Mapping[int, Rounds]) -> Program:
        """Several loops over one range in one tile, with the scalar assignments between them.

        What one loop has loaded or computed is there for the next; what they store is copied out
        once, at the end. `rounds`: by `id`, the statements that are rounds of the block, between
        which there may be anything that leaves the row's arrays alone.
        """
        self.unsteady = {v for s in ir.statements(tuple(statements)) for v in ir.written(s)}
        loops = tuple(rounds[id(s)].loop for s in statements if id(s) in rounds)
        self.stored = stored_arrays(loops if rounds else tuple(statements))
        self.scalars = set()
        visited = self.stored | {e.array.name for e in ir.all_expressions(loops)
                                 if isinstance(e, Load)}  # fmt: skip
        for s in statements:
            self.place = s.place if s.place.line else self.place
            match s:
                case For() if id(s) in rounds:
                    self.rounds = rounds[id(s)]
                    self.enter(self.rounds.loop)
                    self.scalars |= self.visit()
                case _ if rounds and not self.is_scalar(s):
                    self.between(s, visited)
                case For():
                    self.enter(s)
                    self.scalars |= self.visit()
                case Assign(variable, value):
                    self.watch(value)
                    text = bare(self.emitter.text(value))
                    self.emit(Line(self.emitter.scalar_assignment(variable, text)))
                    self.forget(variable)
                case _:
                    raise self.refuse("there are other statements between the loops")
        if self.local and not rounds:
            raise self.refuse("arrays of the block are visited")
        return self.program()

    def is_scalar(self, s: Statement) -> bool:
        """An assignment that does not look at arrays of the block, which instructions fill."""
        near = self.emitter.local_tensors
        return isinstance(s, Assign) and not any(
            isinstance(e, Load) and e.array.name in near for e in ir.walk(s.value)
        )

    def between(self, s: Statement, visited: set[str]) -> None:
        """A statement that is neither a loop over the row nor an assignment."""
        near = set(self.emitter.local_tensors)
        loaded = {e.array.name for e in ir.all_expressions((s,)) if isinstance(e, Load)}
        for name in sorted((stored_arrays((s,)) & visited) | (loaded & self.stored)):
            if name not in near:
                raise self.refuse(f"`{name}` is visited between the loops over a row")
        for v in {v for i in ir.statements((s,)) for v in ir.written(i)}:
            self.forget(v)
        self.made = {k: x for k, x in self.made.items() if ".GetValue(" not in k[0]}
        self.emit(Between(s))

    def enter(self, loop: For) -> None:
        self.loop = loop
        self.assigned = {v for s in ir.statements(loop.body) for v in ir.written(s)}
        self.values = {}
        self.varying = self.find_varying()
        self.reductions = self.find_reductions()

    def visit(self) -> set[Variable]:
        """The loop's items; gives the variables of the scalar unit that are its own."""
        s = self.loop
        if not (isinstance(s.step, Const) and s.step.value == 1):
            raise self.refuse("the loop does not go up by one")
        for inner in ir.statements(s.body):
            if not isinstance(inner, (Assign, Store, If, For, ir.Atomic, ir.Breakpoint)):
                self.place = inner.place
                if isinstance(inner, ir.Asm):
                    raise self.refuse("it prints or asserts")
                name = type(inner).__name__.lower()
                raise self.refuse(f"there is a {name} statement in it")
        self.carried()
        self.block(s.body)
        loops = {s.variable for s in ir.statements(s.body) if isinstance(s, For)}
        return self.assigned - self.varying - set(self.reductions) - loops

    def program(self) -> Program:
        self.flush()
        if not any(isinstance(i, (CopyIn, CopyOut, Instruction)) for i in all_items(self.items)):
            raise self.refuse("it has nothing for the vector unit")
        items = self.items if self.padded else in_place(self.items, self.stored)
        items = needed(forwarded(items))
        if self.emitter.function.contract:
            items = contracted(items)
        return Program(items, self.checks, self.padded, self.counts is not None,
                       self.reduces, self.local, self.wide,
                       sorted(self.scalars, key=lambda v: v.name), self.every,
                       self.is_alias_safe())  # fmt: skip

    def is_alias_safe(self) -> bool:
        """Whether two arrays may be the same one: each element is loaded before it is stored, by
        whatever name, and no tile visits the elements of another one."""
        places: dict[int, set[Any]] = {}
        for name, keys in self.keys.items():
            for _, texts in keys if name not in self.emitter.local_tensors else ():
                places.setdefault(len(texts), set()).add(texts)
        changing = {self.emitter.names.get(v.name) for v in self.unsteady - {self.loop.variable}}
        steady = not any(
            set(re.findall(r"[A-Za-z_]\w*", text)) & changing
            for found in places.values() for texts in found for text in texts
        )  # fmt: skip
        return not self.late and steady and all(len(found) == 1 for found in places.values())

    def visit_after_store(self, a: Array) -> None:
        """Note a visit to an array while another one is stored to: it may be the same."""
        if a.space == "global" and any(name != a.name for name in self.stored_before):
            self.late = True

    # ---- what differs between lanes

    def find_varying(self) -> set[Variable]:
        found = {self.loop.variable}

        def visit(body: Body, varies: bool) -> None:
            for s in body:
                match s:
                    case Assign(variable, value):
                        if varies or self.differs(value, found):
                            found.add(variable)
                    case If(condition, then, otherwise):
                        inner = varies or self.differs(condition, found)
                        visit(then, inner)
                        visit(otherwise, inner)
                    case For():
                        if any(self.differs(e, found) for e in (s.start, s.stop, s.step)):
                            raise Refused("a loop in it has other bounds in each round", s.place)
                        if varies:
                            raise Refused("a loop in it runs in some rounds only", s.place)
                        visit(s.body, varies)

        size = -1
        while len(found) != size:
            size = len(found)
            visit(self.loop.body, False)
        return found

    def differs(self, e: Expr, varying: set[Variable] | None = None) -> bool:
        found = self.varying if varying is None else varying
        return any(isinstance(x, Read) and x.variable in found for x in ir.walk(e))

    def carried(self) -> None:
        """Nothing may go from round to round, or out of the loop, but sums and extremes."""
        from ruda.jit.passes.exposure import exposed

        carried = (exposed(self.loop.body) & self.assigned) - set(self.reductions)
        if carried:
            names = ", ".join(f"`{v.name}`" for v in sorted(carried, key=lambda v: v.name))
            raise self.refuse(f"{names} goes from one round to the next")
        whole = self.loop if self.rounds is None else self.rounds.original
        outside = self.emitter.reads_outside(whole, self.parallel)
        for v in self.assigned - set(self.reductions) - {self.loop.variable}:
            if v in outside:
                raise self.refuse(f"`{v.name}` is read after the loop")

    def find_reductions(self) -> dict[Variable, tuple[str, Expr]]:
        """Variables that are only added to, or the extreme of what was seen."""
        if self.parallel:
            return {}
        reads: dict[Variable, int] = {}
        for e in ir.all_expressions(self.loop.body):
            if isinstance(e, Read):
                reads[e.variable] = reads.get(e.variable, 0) + 1
        writes: dict[Variable, int] = {}
        for s in ir.statements(self.loop.body):
            for v in ir.written(s):
                writes[v] = writes.get(v, 0) + 1
        found = {}
        for s in ir.statements(self.loop.body):
            match s:
                case Assign(v, Op(name, (Read(a), e))) | Assign(v, Op(name, (e, Read(a)))) if (
                    v == a and name in SUMS and reads[v] == 1 and writes[v] == 1
                    and v in self.varying
                ):  # fmt: skip
                    if name == "add" and not self.emitter.function.contract:
                        continue  # the order of a sum is the user's
                    if v.dtype.short == "f32":
                        found[v] = (name, e)
        return found

    def forget(self, v: Variable) -> None:
        """A variable of the scalar unit changes: what its value named is something else now."""
        name = re.compile(rf"(?<!{{)\b{re.escape(self.emitter.name(v.name))}\b")
        for key in [k for k in self.known if any(name.search(text) for text in k[1])]:
            if key in self.stores:
                raise self.refuse(f"`{v.name}` says where `{key[0]}` is stored to, and changes")
            del self.known[key]
        self.made = {k: x for k, x in self.made.items() if not name.search(k[0])}

    # ---- expressions

    def value(self, e: Expr) -> Value:
        if not self.differs(e):
            if self.mask is not None and any(isinstance(x, Load) for x in ir.walk(e)):
                raise self.refuse("an element is loaded in some rounds only")
            self.watch(e)
            term = self.emitter.expression(e)
            return Uniform(term.text, term.kind)
        match e:
            case Read(variable):
                return self.read(variable)
            case Op(name, operands):
                return self.operation(e, name, operands)
            case Cast(value, dtype):
                return self.cast(self.value(value), value.dtype, dtype)
            case Bitcast(value, dtype):
                return self.bitcast(self.value(value), dtype)
            case Select(condition, then, otherwise):
                c, a, b = (self.value(x) for x in (condition, then, otherwise))
                return self.select(c, a, b, self.kind(e.dtype))
            case And(left, right) | Or(left, right):
                return self.lazy(e, left, right)
            case Load():
                return self.load(e)
        raise self.refuse(f"the vector unit has no {type(e).__name__.lower()}")

    def watch(self, e: Expr) -> None:
        """Loads that are the same in all lanes must not see what the loop stores."""
        for x in ir.walk(e):
            if isinstance(x, Load):
                self.visit_after_store(x.array)
            if isinstance(x, Load) and x.array.name in self.stored:
                raise self.refuse(f"`{x.array.name}` is stored to and read at one place by all")
            if isinstance(x, Load) and x.array.name in self.emitter.local_tensors:
                self.local = True

    def read(self, v: Variable) -> Value:
        if v == self.loop.variable:
            return Steps(self.at, 1, "i64", Read(v))
        if v not in self.values:
            raise self.refuse(f"`{v.name}` has no value yet in every round")
        return self.values[v]

    def operation(self, e: Op, name: str, operands: Sequence[Expr]) -> Value:
        dtype = operands[0].dtype
        kind = self.kind(dtype)
        if name == "uniform":
            return self.value(operands[0])
        values = [self.value(o) for o in operands]
        if name == "wrap":
            return self.wrapped(values, operands)
        if name == "within":
            return values[0]
        if dtype.name == "index" or kind == "i64":
            return self.counting(e, name, values, dtype)
        if kind in INTEGERS and any(isinstance(v, Steps) for v in values) and name in (
            "add", "sub", "mul"
        ):  # fmt: skip
            found = self.stepped(e, name, values, kind)
            if found is not None:
                return found
        if name in ORDER:
            return self.comparison(name, values, kind)
        if kind == "bool":
            return self.of_masks(name, values)
        if kind in FLOATS:
            return self.floating(name, values, kind)
        if kind in INTEGERS:
            return self.integer(name, values, kind, operands)
        raise self.refuse(f"dav-2201 has no vector arithmetic on {dtype.name}")

    def lazy(self, e: And | Or, left: Expr, right: Expr) -> Value:
        a = self.value(left)
        if any(isinstance(x, Load) for x in ir.walk(right)):
            mask = self.in_lanes(a, "bool")
            with_mask = mask if isinstance(e, And) else self.logic("Not", mask)
            before = self.mask
            self.mask = with_mask if before is None else self.logic("And", before, with_mask)
            b = self.value(right)
            self.mask = before
        else:
            b = self.value(right)
        return self.of_masks("and" if isinstance(e, And) else "or", [a, b])

    # ---- memory

    def element(self, a: Array, indices: Sequence[Expr]) -> tuple[Any, str, list[Value]]:
        """What names the elements, the index of the first lane, and the values of the indices."""
        values = [self.value(i) for i in indices]
        if self.emitter.by_bytes(a):
            raise self.refuse(f"`{a.name}` has strides, or elements by bytes")
        texts = []
        for axis, v in enumerate(values):
            if isinstance(v, Lanes):
                raise self.refuse(f"`{a.name}` is not visited in order")
            if isinstance(v, Steps):
                if axis < a.ndim - 1:
                    raise self.refuse(f"the elements of `{a.name}` are not neighbours")
                if v.step != 1:
                    raise self.refuse(f"`{a.name}` is visited in steps of {v.step}")
                texts.append(v.base)
            else:
                texts.append(v.text)
        if not any(isinstance(v, Steps) for v in values):
            raise self.refuse(f"all rounds go to one element of `{a.name}`")
        return (a.name, tuple(texts)), bare(self.emitter.linear(a, texts)), values

    def here(self, a: Array, values: Sequence[Value], indices: Sequence[Expr]) -> None:
        """A condition that every lane's element exists, where not every lane visits it."""
        for axis, (v, node) in enumerate(zip(values, indices, strict=True)):
            extent = self.emitter.extent(a, axis)
            if isinstance(v, Steps):
                self.check(f"ruda::inside({bare(v.base)}, count, {extent})", v.node)
            else:
                assert isinstance(v, Uniform)
                self.check(f"ruda::inside({bare(v.text)}, 1, {extent})", node)

    def load(self, e: Load) -> Value:
        if e.field is not None:
            raise self.refuse("elements are records")
        a = e.array
        if a.space == "local" and a.name not in self.emitter.local_tensors:
            raise self.refuse(f"`{a.name}` is private to a round")
        if not self.differs(Load(a, e.indices)):
            raise AssertionError
        key, index, values = self.element(a, e.indices)
        self.meet(a, key, False)
        if key in self.known:
            return self.known[key]
        if self.mask is not None:
            self.here(a, values, e.indices)
        found = self.fetch(a, index, self.kind(e.dtype), values)
        self.known[key] = found
        return found

    def meet(self, a: Array, key: Any, store: bool) -> None:
        """Different elements of one array, one of them stored: then the order matters."""
        keys = self.keys.setdefault(a.name, set())
        keys.add(key)
        self.visit_after_store(a)
        if a.name in self.stored and len(keys) > 1 and not self.parallel:
            raise self.refuse(f"`{a.name}` is stored to and read at different places")
        before = self.stored_before.get(a.name)
        if before is not None and before != key:
            raise self.refuse(f"`{a.name}` is stored to, then visited at another place")
        if store:
            self.stored_before[a.name] = key

    def fetch(self, a: Array, index: str, kind: str, values: Sequence[Value]) -> Value:
        if kind not in MEMORY:
            raise self.refuse(f"dav-2201 has no vectors of {a.dtype}")
        memory = MEMORY[kind]
        if a.name in self.emitter.local_tensors:
            raw = self.fetch_local(a, index, memory, values)
        else:
            raw = Register(memory)
            tensor = self.emitter.tensor_of(a, memory)
            self.emit(CopyIn(raw, a, tensor, index))
        return self.widened(raw, kind)

    def fetch_local(self, a: Array, index: str, memory: str, values: Sequence[Value]) -> Register:
        """Elements of an array of the block: they are where instructions want them."""
        self.aligned(a, index, memory, [v.base if isinstance(v, Steps) else self.lanes_free(v)
                                        for v in values])  # fmt: skip
        raw = Register(memory)
        tensor = self.emitter.local_tensor(a, memory)
        if BYTES[memory] == 1:
            raise self.refuse(f"`{a.name}` of the block has elements of one byte")
        text = f"ruda::take({{d}}, {tensor}[{index}], count, {{n}});"
        self.emit(Take(text, raw, (), array=a.name, view=f"{tensor}[{index}]"))
        return raw

    def lanes_free(self, value: Value) -> str:
        assert isinstance(value, Uniform)
        return value.text

    def aligned(self, a: Array, index: str, memory: str, texts: Sequence[str]) -> None:
        """A condition that vectors of an array of the block begin at 32 bytes."""
        self.local = True
        elements = 32 // BYTES[memory]
        row = a.shape[-1] if a.shape and not a.dynamic else None
        if isinstance(row, int) and row % elements == 0:  # so that all rows begin there
            index = bare(texts[-1])
        first = self.loop.start
        beside = re.fullmatch(rf"\(?{self.at}(?: \+ (\d+))?\)?", index)
        if (
            beside and int(beside[1] or 0) % elements == 0
            and isinstance(first, Const) and int(first.value) % elements == 0
        ):  # fmt: skip
            return
        names = set(re.findall(r"[A-Za-z_]\w*", index))
        bound = {self.emitter.names.get(v.name) for v in self.unsteady - {self.loop.variable}}
        if names & bound:
            raise self.refuse(f"where `{a.name}` is visited changes within the tile")
        check = f"({index}) % {elements} == 0"
        if check not in self.checks:
            self.checks.append(check)

    # ---- statements

    def block(self, body: Body) -> None:
        for s in body:
            if s.place.line:
                self.place = s.place
            self.statement(s)

    def statement(self, s: Statement) -> None:
        match s:
            case Assign(variable, value):
                self.assign(variable, value)
            case Store():
                self.store(s)
            case If(condition, then, otherwise):
                if self.differs(condition):
                    self.branch(condition, then, otherwise)
                else:
                    self.uniform_branch(s)
            case For():
                self.uniform_loop(s)
            case ir.Atomic():
                self.atomic(s)
            case ir.Breakpoint():
                pass

    def assign(self, v: Variable, value: Expr) -> None:
        if v in self.reductions:
            return self.reduce(v, *self.reductions[v])
        if v not in self.varying:
            self.watch(value)
            text = bare(self.emitter.text(value))
            self.emit(Line(self.emitter.scalar_assignment(v, text)))
            if not self.depth and self.mask is None and self.writes(v) == 1:
                self.definitions[v] = (self.emitter.name(v.name), text, value)
            return self.forget(v)
        found = self.value(value)
        kind = self.kind(v.dtype)
        if self.mask is not None and v in self.values:
            old = self.values[v]
            found = self.select(self.mask, found, old, kind)
        elif isinstance(found, Uniform):
            found = self.in_lanes(found, kind if v.dtype.name != "index" else "i64")
        self.values[v] = found

    def writes(self, v: Variable) -> int:
        return sum(v in ir.written(s) for s in ir.statements(self.loop.body))

    def store(self, s: Store) -> None:
        if s.field is not None:
            raise self.refuse("elements are records")
        a = s.array
        if a.space == "local" and a.name not in self.emitter.local_tensors:
            raise self.refuse(f"`{a.name}` is private to a round")
        kind = self.kind(s.value.dtype)
        found = self.value(s.value)
        if not any(self.differs(i) for i in s.indices):
            raise self.refuse(f"all rounds store to one element of `{a.name}`")
        key, index, values = self.element(a, s.indices)
        self.meet(a, key, True)
        exact = "index" if isinstance(found, Steps) and kind == "i64" else kind
        lanes = self.in_lanes(found, exact)
        if exact == "index" or lanes.kind == "index":
            if kind != "i64":
                raise self.refuse("an index is stored")
            lanes = self.cast_as(Lanes(lanes.register, "i32"), "i64", "NONE")
        if kind not in MEMORY:
            raise self.refuse(f"dav-2201 has no vectors of {a.dtype}")
        if self.mask is not None:
            lanes = self.kept(a, key, index, values, s, lanes, kind)
        if lanes.register.fixed:  # the variable may change before it is copied out
            lanes = Lanes(self.copy(lanes), lanes.kind)
        self.known[key] = lanes
        self.stores[key] = (a, index, self.place)

    def kept(
        self, a: Array, key: Any, index: str, values: Sequence[Value], s: Store, new: Lanes,
        kind: str,
    ) -> Lanes:  # fmt: skip
        """A store in some lanes: the others get what is there."""
        old = self.known.get(key)
        if old is None:
            if a.name not in self.emitter.local_tensors and not self.emitter.owned(
                self.loop, s.indices
            ):
                raise self.refuse(f"`{a.name}` is stored to in some rounds only")
            self.here(a, values, s.indices)
            old = self.fetch(a, index, kind, values)
            self.emitter.partly_stored.add(a.name)
        assert self.mask is not None
        return self.lanes(self.select(self.mask, new, old, kind))

    def flush(self, before: set[Any] = frozenset()) -> None:  # type: ignore[assignment]
        """Copy out what the block stored."""
        for key, (a, index, place) in list(self.stores.items()):
            if key in before:
                continue
            self.place = place
            kind = self.kind(a.dtype)  # type: ignore[arg-type]
            lanes = self.known[key]
            assert isinstance(lanes, Lanes)
            register = self.packed(lanes, kind)
            memory = MEMORY[kind]
            if a.name in self.emitter.local_tensors:
                self.aligned(a, index, memory, key[1])
                if BYTES[memory] == 1:
                    raise self.refuse(f"`{a.name}` of the block has elements of one byte")
                tensor = self.emitter.local_tensor(a, memory)
                text = moved(memory, f"{tensor}[{index}]", "{0}")
                self.emit(Instruction(text, None, (register,), exact=True))
            else:
                self.emit(CopyOut(register, a, self.emitter.tensor_of(a, memory), index))
            del self.stores[key]

    def reduce(self, v: Variable, name: str, e: Expr) -> None:
        kind = self.kind(v.dtype)
        if self.depth:
            raise self.refuse("a reduction in a loop within the loop")
        x = self.in_lanes(self.value(e), kind)
        if self.mask is not None:
            none = {"add": "0.0f", "max": "-ruda::bits<float>(0x7f800000u)",
                    "min": "ruda::bits<float>(0x7f800000u)"}[name]  # fmt: skip
            x = self.lanes(self.select(self.mask, x, Uniform(none, "f32"), kind))
        self.reduces = True
        result = Register("float", tensor="result")
        self.emit(Instruction(f"{SUMS[name]}({{d}}, {{0}}, work, {{n}});", result, (x.register,),
                              exact=True, in_place=False))  # fmt: skip
        self.emit(Line("SetFlag<HardEvent::V_S>(EVENT_ID0);"))
        self.emit(Line("WaitFlag<HardEvent::V_S>(EVENT_ID0);"))
        mine, one = self.emitter.name(v.name), "result.GetValue(0)"
        both = self.emitter.operation_text(name, v.dtype, mine, one)
        self.emit(Line(f"{mine} = {bare(both)};"))
        self.forget(v)
        self.emit(Line("SetFlag<HardEvent::S_V>(EVENT_ID0);"))
        self.emit(Line("WaitFlag<HardEvent::S_V>(EVENT_ID0);"))

    def atomic(self, s: ir.Atomic) -> None:
        if self.rounds is None or s.array.name not in self.emitter.local_tensors:
            raise self.refuse("an atomic operation in it goes element by element")
        self.take_up(s, self.rounds.width)

    def take_up(self, s: ir.Atomic, width: int) -> None:
        """Slots of a block's threads take up a tile: one piece of all threads after the other, so
        that each thread has its elements in order."""
        a, kind = s.array, self.kind(s.array.dtype)  # type: ignore[arg-type]
        if kind not in NOTHING or width * BYTES[MEMORY[kind]] % 32 or width != a.shape[-1]:  # type: ignore[index]
            raise self.refuse(f"vectors of {width} {a.dtype} do not begin at 32 bytes")
        if kind == "u32" and s.op in ("min", "max"):
            raise self.refuse(f"dav-2201 has no vector {s.op} on uint32")
        x = self.in_lanes(self.value(s.operands[0]), kind)
        if self.mask is not None:
            nothing = Uniform(NOTHING[kind][s.op], "f32" if kind in FLOATS else "i32")
            x = self.lanes(self.select(self.mask, x, nothing, kind))
        texts = [bare(self.emitter.text(i)) for i in s.indices]
        at = bare(self.emitter.linear(a, [*texts, "0"])) if texts else "0"
        slots, part = self.emitter.local_tensor(a, MEMORY[kind]), self.emitter.own("part")
        slots = slots if at == "0" else f"{slots}[{at}]"
        text = (f"{TWO[s.op]}({slots}, {slots}, {{0}}[{part}], "
                f"int32_t(ruda::least({width}, count - {part})));")  # fmt: skip
        head = f"for (int32_t {part} = 0; {part} < count; {part} += {width}) {{"
        self.local, self.every = True, width
        taken = Instruction(text, None, (x.register,), exact=True, place=self.place)
        self.emit(Nest(head, [taken]))

    # ---- branches that differ between lanes

    def branch(self, condition: Expr, then: Body, otherwise: Body) -> None:
        if self.is_checked(condition, then):
            return self.block(then)
        test = self.in_lanes(self.value(condition), "bool")
        before = self.mask
        self.mask = test if before is None else self.logic("And", before, test)
        self.arm(then, test, otherwise, before)

    def is_checked(self, condition: Expr, then: Body) -> bool:
        """Whether a condition is true in every lane of a tile that passes its checks.

        It asks that indices be inside, by which the branch loads: a tile with one that is not
        goes to the scalar unit anyway.
        """
        try:
            guarded = self.guarded(condition, then)
            for e in guarded:
                values = [self.value(i) for i in e.indices]
                if any(
                    isinstance(v, Lanes) or (isinstance(v, Steps) and v.step != 1) for v in values
                ):
                    return False
                self.here(e.array, values, e.indices)
        except Refused:
            return False
        return bool(guarded)

    def guarded(self, condition: Expr, then: Body) -> list[Load]:
        """Loads of a branch whose indices are all that its condition asks to be inside."""
        if self.mask is not None or self.depth:
            return []
        asked = set(conjuncts(condition))
        loads = [e for e in ir.all_expressions(then)
                 if isinstance(e, Load) and e.field is None and e.array.space == "global"
                 and any(self.differs(i) for i in e.indices)]  # fmt: skip
        found = []
        for e in loads:
            inside = {(i, Extent(e.array, axis)) for axis, i in enumerate(e.indices)}
            if inside & asked:
                found.append(e)
                asked -= inside
        return found if not asked else []

    def arm(self, then: Body, test: Lanes, otherwise: Body, before: Lanes | None) -> None:
        self.block(then)
        if otherwise:
            no = self.logic("Not", test)
            self.mask = no if before is None else self.logic("And", before, no)
            self.block(otherwise)
        self.mask = before

    # ---- control flow of the scalar unit around instructions

    def uniform_branch(self, s: If) -> None:
        self.watch(s.condition)
        text = bare(self.emitter.text(s.condition))
        homes = self.homes((*s.then, *s.otherwise), new=True)
        arms = [self.nested(body, homes) for body in (s.then, s.otherwise)]
        self.emit(Nest(f"if ({text}) {{", arms[0], arms[1] if s.otherwise else None))

    def uniform_loop(self, s: For) -> None:
        if not (isinstance(s.step, Const) and s.step.value == 1):
            raise self.refuse("a loop in it does not go up by one")
        for e in (s.start, s.stop):
            self.watch(e)
        name = self.emitter.name(s.variable.name)
        start, stop = (bare(self.emitter.text(e)) for e in (s.start, s.stop))
        held = self.emitter.held(s.variable.dtype)
        if not isinstance(s.stop, (Const, Extent)):  # the body may change what it is made of
            end = self.emitter.own("end")
            self.emit(Line(f"const {held} {end} = {stop};"))
            stop = end
        homes = self.homes(s.body)
        items = self.nested(s.body, homes)
        head = f"for ({held} {name} = {start}; {name} < {stop}; ++{name}) {{"
        self.emit(Nest(head, items))

    def homes(self, body: Body, new: bool = False) -> dict[Variable, Register]:
        """A place for each vector that a nested body changes; `new`: or that begins there."""
        homes: dict[Variable, Register] = {}
        written = {v for s in ir.statements(body) for v in ir.written(s)} & self.varying
        for v in sorted(written, key=lambda v: v.name):
            value = self.values.get(v)
            kind = self.kind(v.dtype)
            if value is None:
                if new and kind in HELD and kind != "i64":
                    homes[v] = Register(HELD[kind], kind == "bool", fixed=True)
                    self.values[v] = Lanes(homes[v], kind)
                continue
            if isinstance(value, Steps):
                raise self.refuse(f"`{v.name}` counts, and is changed in a loop")
            lanes = self.in_lanes(value, kind)
            home = Register(lanes.register.type, lanes.register.mask, fixed=True)
            self.known = {  # what is near is taken again rather than kept
                k: x for k, x in self.known.items()
                if k in self.stores or k[0] not in self.emitter.local_tensors
                or not isinstance(x, Lanes) or x.register is not lanes.register
            }  # fmt: skip
            last = self.items[-1] if self.items else None
            if (
                isinstance(value, Lanes) and isinstance(last, Instruction)
                and last.target is lanes.register and not self.used_elsewhere(lanes.register, v)
            ):  # fmt: skip
                last.target = home
                self.unmake(lanes.register)
            else:
                self.copy(lanes, home)
            homes[v] = home
            self.values[v] = Lanes(home, lanes.kind)
        return homes

    def used_elsewhere(self, r: Register, v: Variable) -> bool:
        others = [x for k, x in self.values.items() if k != v]
        return any(isinstance(x, Lanes) and x.register is r
                   for x in (*others, *self.known.values()))  # fmt: skip

    def nested(self, body: Body, homes: dict[Variable, Register]) -> list[Any]:
        for v in sorted({v for s in ir.statements(body) for v in ir.written(s)} - self.varying,
                        key=lambda v: v.name):  # fmt: skip
            self.forget(v)
        made = dict(self.made)
        outer, known, stores = self.items, dict(self.known), set(self.stores)
        mine = {k: v for k, v in known.items() if k[0] not in self.stored}
        values = dict(self.values)
        self.items, self.known = [], dict(mine)
        self.depth += 1
        place = self.place
        self.block(body)
        if set(self.stores) & stores and any(self.known.get(k) is not known.get(k) for k in stores):
            raise self.refuse("an element is stored to in a loop, and outside of it")
        self.flush(stores)
        places = {*homes.values()}
        for v, home in homes.items():  # what lies in another variable's place, before it is changed
            value = self.values[v]
            if isinstance(value, Lanes) and value.register in places - {home}:
                self.values[v] = Lanes(self.copy(value), value.kind)
        for v, home in homes.items():
            value = self.values[v]
            lanes = self.in_lanes(value, self.kind(v.dtype))
            if lanes.register is home:
                continue
            if not self.redirected(lanes.register, home, v):
                self.copy(lanes, home)
        self.place = place
        self.depth -= 1
        items, self.items, self.known = self.items, outer, known
        still = {k for k, x in made.items() if self.made.get(k) is x}
        self.made = {k: made[k] for k in still}
        if any(k[0] in self.stored_here(items) for k in self.known):
            self.known = {k: v for k, v in known.items()
                          if k[0] not in self.stored_here(items) or k in self.stores}  # fmt: skip
        self.values = values
        return items

    def stored_here(self, items: list[Any]) -> set[str]:
        return {i.array.name for i in all_items(items) if isinstance(i, CopyOut)} | (
            self.stored & set(self.emitter.local_tensors)
        )

    def redirected(self, register: Register, home: Register, v: Variable) -> bool:
        """Let the instruction that made a vector write to the variable's place, if nobody else
        looks at either afterwards."""
        if self.used_elsewhere(register, v):
            return False
        for k in range(len(self.items) - 1, -1, -1):
            item = self.items[k]
            if isinstance(item, Instruction) and item.target is register:
                later = list(all_items(self.items[k + 1 :]))
                if any({home, register} & uses(i) for i in later):
                    return False
                item.target = home
                self.unmake(register)
                return True
        return False


def stored_arrays(body: Body) -> set[str]:
    return {s.array.name for s in ir.statements(body) if isinstance(s, (Store, ir.Atomic))}


def conjuncts(condition: Expr) -> list[Any]:
    """Pairs (index, extent) that a condition compares; what is no such comparison stands alone."""
    match condition:
        case And(left, right):
            return [*conjuncts(left), *conjuncts(right)]
        case Op("lt", (i, Extent() as extent)):
            return [(i, extent)]
    return [condition]
