"""Split a kernel at its barriers into thread loops.

A CPU core runs a block's threads one after another: statements between two barriers become one
loop over the threads (a `Region`); a loop or branch that holds a barrier stays outside the thread
loops and runs once for the block. Three kinds of variables come of it:

* block variables: the same for all threads and assigned outside regions; they stay scalars;
* recomputed ones: cheap functions of thread indices and block variables; written anew where used;
* thread variables: scalars inside one region, and if live across a barrier one slot a thread, in a
  stack array; a region loads the slots that it needs and stores those that it changed.

A barrier under a condition that may differ between threads (unknown, or threads that returned)
runs with the condition kept per thread as a guard of every region under it, as long as any thread
is left. Exchanges and votes of a warp are barriers with slots for the values exchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ruda import dtypes
from ruda.errors import UnsupportedError
from ruda.jit import ir
from ruda.jit.ir import (
    And,
    Array,
    Asm,
    Assign,
    Atomic,
    Barrier,
    Body,
    Break,
    Cast,
    Const,
    Continue,
    Cooperative,
    Declare,
    Expr,
    For,
    Function,
    If,
    Load,
    Op,
    Read,
    Select,
    Special,
    Statement,
    Store,
    Variable,
    Warp,
    While,
)  # fmt: skip
from ruda.jit.passes.exposure import Exposure
from ruda.jit.passes.flatten import name_coordinates, name_place, resolve
from ruda.jit.passes.indices import INDEX, extent, index, linear_thread, op
from ruda.jit.passes.jumps import FALSE, TRUE, in_range
from ruda.jit.passes.names import Names
from ruda.jit.passes.threads import thread_loops
from ruda.jit.passes.uniformity import DATA, THREAD, Uniformity, check_barriers, is_left

_CHEAP = {
    "add", "sub", "mul", "floordiv", "mod", "neg", "and", "or", "xor", "shl", "shr", "invert",
    "not", "lt", "le", "gt", "ge", "eq", "ne", "min", "max", "wrap",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Region:
    """Statements that every thread of the block runs, one thread after another."""

    body: Body


def split_barriers(
    function: Function, width: Variable | None = None, jams: bool = True
) -> Function:
    """The kernel for one block, as loops over its threads; `width` of them along z, if given.

    `jams`: several rows of threads may go through an inner loop together.
    """
    state = check_barriers(function)
    if any(isinstance(s, Cooperative) for s in ir.statements(function.body)):
        first = next(s for s in ir.statements(function.body) if isinstance(s, Cooperative))
        raise UnsupportedError("the CPU target has no cooperative operations yet", first.place)
    return _Splitter(function, state, width, jams).run()


def _must_split(s: Statement) -> bool:
    return ir.has_barrier((s,))


@dataclass
class _Splitter:
    function: Function
    state: Uniformity
    width: Variable | None
    jams: bool
    names: Names = field(init=False)
    block: set[Variable] = field(init=False)
    recomputed: dict[Variable, Expr] = field(init=False)
    arrays: list[Array] = field(default_factory=list)
    sites: list[int] = field(default_factory=list)  # of barriers that are watched
    missed: Variable | None = None  # 1 + the number of the first barrier that passed without it

    def run(self) -> Function:
        f = self.function
        self.names = Names(f)
        self.block = self.block_variables()
        self.recomputed = self.recomputable()
        barriers = [s for s in ir.statements(f.body) if isinstance(s, Barrier)]
        self.sites = [s.site for s in barriers if s.site is not None]
        if self.sites:
            self.missed = Variable(self.names("missed"), INDEX)
        tree = self.split(f.body, None)
        if self.missed is not None:
            tree = [Region((Assign(self.missed, index(0), place=f.place),)), *tree]
        tree = self.privatise(tree)
        # What the block level still asks of a thread is the first one's, or promised (`uniform`).
        first: dict[str, Expr] = dict.fromkeys(("linearThread", "threadIdx", "laneid"), index(0))
        body = resolve(tuple(self.loops(tree)), first)
        return replace(f, body=body, arrays=(*f.arrays, *self.arrays))

    # ---- which variables are the block's

    def block_variables(self) -> set[Variable]:
        """Uniform variables that are assigned only where a statement runs once for the block."""
        found = {
            v
            for v, depends in self.state.variables.items()
            if not depends & (THREAD | DATA) and v not in self.function.parameters
        }
        while True:
            demoted = set(self.demoted(self.function.body, found))
            if not demoted:
                return found
            found -= demoted

    def demoted(self, body: Body, block: set[Variable]) -> Iterator[Variable]:
        for s in body:
            if self.once(s, block):
                continue
            if not _must_split(s):
                for inner in ir.statements((s,)):
                    yield from (v for v in ir.written(inner) if v in block)
                continue
            match s:
                case If(condition, then, otherwise):
                    if not self.settled(condition, block) and not is_left(condition):
                        yield from (
                            v for i in ir.statements((s,)) for v in ir.written(i) if v in block
                        )
                    yield from self.demoted(then, block)
                    yield from self.demoted(otherwise, block)
                case For(variable, start, stop, step, inner_body):
                    if not all(self.settled(e, block) for e in (start, stop, step)):
                        yield from (
                            v for i in ir.statements((s,)) for v in ir.written(i) if v in block
                        )
                    elif variable not in block:
                        pass
                    yield from self.demoted(inner_body, block)
                case While(condition, inner_body):
                    if not self.settled(condition, block):
                        yield from (
                            v for i in ir.statements((s,)) for v in ir.written(i) if v in block
                        )
                    yield from self.demoted(inner_body, block)

    def settled(self, node: Expr, block: set[Variable] | None = None) -> bool:
        """Whether an expression has one value for the block that the block level can compute."""
        block = self.block if block is None else block
        if not self.state.is_uniform(node):
            return False
        return all(
            e.variable in block or not self.assigned(e.variable)
            for e in ir.walk(node)
            if isinstance(e, Read)
        )

    def assigned(self, variable: Variable) -> bool:
        return (
            variable in self.state.variables
            and variable not in self.function.parameters
            and not any(s.variable == variable for s in self.function.prologue)
        )

    def once(self, s: Statement, block: set[Variable] | None = None) -> bool:
        """Whether a statement only computes block variables, so that it runs once for the block."""
        block = self.block if block is None else block
        match s:
            case Assign(variable, value):
                return variable in block and self.settled(value, block)
            case If(condition, then, otherwise) if not _must_split(s):
                return self.settled(condition, block) and all(
                    self.once(i, block) for i in (*then, *otherwise)
                )
            case For(variable, start, stop, step, body) if not _must_split(s):
                return (
                    variable in block
                    and all(self.settled(e, block) for e in (start, stop, step))
                    and all(self.once(i, block) for i in body)
                )
            case While(condition, body) if not _must_split(s):
                return self.settled(condition, block) and all(self.once(i, block) for i in body)
            case Break() | Continue():
                return True
        return False

    def recomputable(self) -> dict[Variable, Expr]:
        """Thread variables that are cheap functions of what does not change, with their values."""
        count: dict[Variable, int] = {}
        for s in ir.statements(self.function.body):
            for v in ir.written(s):
                count[v] = count.get(v, 0) + 1
        loop_variables = {
            s.variable for s in ir.statements(self.function.body) if isinstance(s, For)
        }
        out: dict[Variable, Expr] = {}

        def stable(e: Expr) -> bool:
            match e:
                case Load() | ir.Bitcast():
                    return False
                case Op(name):
                    return name in _CHEAP
                case Read(v):
                    if not self.assigned(v) or v in out:
                        return True
                    return v in self.block and count.get(v) == 1 and v not in loop_variables
            return True

        def visit(body: Body) -> None:
            for s in body:
                match s:
                    case Assign(variable, value) if (
                        variable not in self.block
                        and count[variable] == 1
                        and all(map(stable, ir.walk(value)))
                    ):
                        out[variable] = value
                    case If() | For() | While() if _must_split(s):
                        for inner in ir.bodies(s):
                            visit(inner)

        visit(self.function.body)
        return out

    # ---- regions

    def split(self, body: Body, guard: Variable | None) -> list[Any]:
        """A body as block-level statements and regions."""
        out: list[Any] = []
        pending: list[tuple[Variable | None, Statement]] = []

        def flush() -> None:
            if pending:
                out.append(Region(_guarded(pending)))
                pending.clear()

        def thread(s: Statement) -> None:
            pending.append((guard, s))

        for s in body:
            match s:
                case Assign(variable) if variable in self.recomputed:
                    continue
                case Declare(array=array) if array.space != "local":
                    continue
                case Barrier(vote=None):
                    pending += self.arrival(s, guard)
                    flush()
                case Barrier():
                    pending += self.arrival(s, guard)
                    flush()
                    out += self.vote(s, guard)
                case Warp():
                    self.exchange(s, guard, thread, flush, out)
                case If(condition, then, otherwise) if _must_split(s):
                    if self.settled(condition):
                        flush()
                        out.append(
                            replace(
                                s,
                                then=tuple(self.split(then, guard)),
                                otherwise=tuple(self.split(otherwise, guard)),
                            )
                        )
                        continue
                    inner = Variable(self.names("active"), dtypes.bool_)
                    other = Variable(self.names("inactive"), dtypes.bool_) if otherwise else None
                    test = condition if guard is None else And(Read(guard), condition)
                    pending.append((None, Assign(inner, test, place=s.place)))
                    if other is not None:
                        not_then: Expr = Op("not", (Read(inner),), dtypes.bool_)
                        if guard is not None:
                            not_then = And(Read(guard), not_then)
                        pending.append((None, Assign(other, not_then, place=s.place)))
                    flush()
                    out += self.while_any(inner, s, then)
                    if other is not None:
                        out += self.while_any(other, s, otherwise)
                case For(variable, start, stop, step, inner_body) if _must_split(s):
                    if all(self.settled(e) for e in (start, stop, step)) and variable in self.block:
                        flush()
                        out.append(replace(s, body=tuple(self.split(inner_body, guard))))
                        continue
                    ends = {
                        name: Variable(self.names(f"{variable.name}_{name}"), variable.dtype)
                        for name in ("stop", "step")
                    }
                    thread(Assign(variable, start, place=s.place))
                    thread(Assign(ends["stop"], stop, place=s.place))
                    thread(Assign(ends["step"], step, place=s.place))
                    test = in_range(Read(variable), Read(ends["stop"]), Read(ends["step"]))
                    more = Op("add", (Read(variable), Read(ends["step"])), variable.dtype)
                    inner_body = (*inner_body, Assign(variable, more, place=s.place))
                    out += self.varying_loop(s, test, inner_body, guard, pending, flush)
                case While(condition, inner_body) if _must_split(s):
                    if self.settled(condition):
                        flush()
                        out.append(replace(s, body=tuple(self.split(inner_body, guard))))
                    else:
                        out += self.varying_loop(s, condition, inner_body, guard, pending, flush)
                case _ if self.once(s):
                    changed = {v for i in ir.statements((s,)) for v in ir.written(i)}
                    if any(_touches(p, changed) for _, p in pending):
                        flush()
                    out.append(s)
                case _:
                    thread(s)
        flush()
        return out

    def while_any(self, guard: Variable, s: Statement, body: Body) -> list[Any]:
        """A body under a guard, if any thread passes it."""
        some = self.fresh_block("some", dtypes.bool_)
        return [
            Assign(some, FALSE, place=s.place),
            Region((If(Read(guard), (Assign(some, TRUE, place=s.place),), place=s.place),)),
            If(Read(some), tuple(self.split(body, guard)), place=s.place),
        ]

    def varying_loop(
        self, s: Statement, condition: Expr, body: Body, guard: Any, pending: Any, flush: Any
    ) -> list[Any]:
        """A loop whose threads leave at different times: it runs while any is in it."""
        active = Variable(self.names("active"), dtypes.bool_)
        some = self.fresh_block("some", dtypes.bool_)
        start: Expr = TRUE if guard is None else Read(guard)
        pending.append((None, Assign(active, start, place=s.place)))
        pending_out: list[Any] = []
        flush()
        test = Region(
            (
                Assign(active, And(Read(active), condition), place=s.place),
                If(Read(active), (Assign(some, TRUE, place=s.place),), place=s.place),
            )
        )
        leave = If(Op("not", (Read(some),), dtypes.bool_), (Break(place=s.place),), place=s.place)
        inner = (Assign(some, FALSE, place=s.place), test, leave, *self.split(body, active))
        return [*pending_out, While(TRUE, inner, place=s.place)]

    def fresh_block(self, name: str, dtype: dtypes.DType) -> Variable:
        variable = Variable(self.names(name), dtype)
        self.block.add(variable)
        return variable

    def arrival(self, s: Barrier, guard: Variable | None) -> list[tuple[None, Statement]]:
        """Keep which threads are not at a watched barrier; one that comes to a later one, and so
        has not returned, is reported."""
        if s.site is None:
            return []
        assert self.missed is not None
        missed = Read(self.missed)
        never = Op("eq", (missed, index(0)), dtypes.bool_)
        number = index(1 + self.sites.index(s.site))
        values = index(s.site), Special("linearBlock"), Special("linearThread"), missed
        told = Asm("cpu", "report", values, place=s.place)
        late: Statement = If(Op("not", (never,), dtypes.bool_), (told,), place=s.place)
        if guard is not None:
            miss = If(never, (Assign(self.missed, number, place=s.place),), place=s.place)
            late = If(Read(guard), (late,), (miss,), place=s.place)
        return [(None, late)]

    def vote(self, s: Barrier, guard: Variable | None) -> list[Any]:
        """A vote over the block: a reduction in a thread loop, then its result for all."""
        assert s.predicate is not None and s.result is not None
        total = self.fresh_block("votes", dtypes.int32)
        zero, one = Const(0, dtypes.int32), Const(1, dtypes.int32)
        if s.vote == "count":
            more = Op("add", (Read(total), one), dtypes.int32)
            counted: Body = (If(s.predicate, (Assign(total, more),), place=s.place),)
            start: Expr = zero
        elif s.vote == "or":
            counted, start = (If(s.predicate, (Assign(total, one),), place=s.place),), zero
        else:
            opposite = Op("not", (s.predicate,), dtypes.bool_)
            counted, start = (If(opposite, (Assign(total, zero),), place=s.place),), one
        if guard is not None:
            counted = (If(Read(guard), counted, place=s.place),)
        result = Assign(s.result, Read(total), place=s.place)
        out: list[Any] = [Assign(total, start, place=s.place), Region(counted)]
        if s.result in self.block:
            out.append(result)
        else:
            out.append(Region(_guarded([(guard, result)])))
        return out

    # ---- warps

    def exchange(self, s: Warp, guard: Any, thread: Any, flush: Any, out: list[Any]) -> None:
        """Each thread puts its value into its slot, all meet, each reads what it wants."""
        f = self.function
        assert f.block is not None
        threads = f.block[0] * f.block[1] * f.block[2]
        lanes = -(-threads // 32) * 32
        me = linear_thread(f)
        lane = op("mod", me, index(32))
        warp = op("mul", op("floordiv", me, index(32)), index(32))
        mask = s.mask if s.mask is not None else Const(0xFFFFFFFF, dtypes.uint32)
        u32 = dtypes.uint32
        flush()

        def bit(of: Expr, at: Expr) -> Expr:
            shifted = Op("shr", (of, Cast(at, u32)), u32)
            return Op("eq", (Op("and", (shifted, Const(1, u32)), u32), Const(1, u32)), dtypes.bool_)

        taking_part: Expr = TRUE if guard is None else Read(guard)
        if s.op in ("shfl", "shfl_up", "shfl_down", "shfl_xor", "match_any", "match_all"):
            value = s.operands[0]
            slots = self.slots("exchanged", value.dtype, lanes)
            thread(Store(slots, (me,), value, place=s.place))
        if s.op.startswith("shfl"):
            flush()
            source, own = _source(s.op, lane, s.operands[1], s.operands[2], threads, warp)
            got = Load(slots, (op("add", warp, source),), place=s.place)
            thread(
                If(
                    own,
                    (Assign(s.result, Load(slots, (me,), place=s.place), place=s.place),),
                    (Assign(s.result, got, place=s.place),),
                    place=s.place,
                )
            )
            return
        if s.op in ("match_any", "match_all"):
            present = self.slots("present", dtypes.bool_, lanes)
            self.clear(present, lanes, out, s)
            thread(Store(present, (me,), taking_part, place=s.place))
            flush()
            k = Variable(self.names("lane"), dtypes.index)
            same = Variable(self.names("same"), u32)
            at = op("add", warp, Read(k))
            equal = Op("eq", (Load(slots, (at,)), Load(slots, (me,))), dtypes.bool_)
            hit = And(And(bit(mask, Read(k)), Load(present, (at,))), equal)
            add = Op("or", (Read(same), Op("shl", (Const(1, u32), Cast(Read(k), u32)), u32)), u32)
            thread(Assign(same, Const(0, u32), place=s.place))
            loop_body: Body = (If(hit, (Assign(same, add, place=s.place),), place=s.place),)
            thread(For(k, index(0), index(32), index(1), loop_body, place=s.place))
            if s.op == "match_any":
                thread(Assign(s.result, Read(same), place=s.place))
                return
            everyone = Variable(self.names("everyone"), u32)
            k2 = Variable(self.names("lane"), dtypes.index)
            here = And(bit(mask, Read(k2)), Load(present, (op("add", warp, Read(k2)),)))
            add2 = Op(
                "or", (Read(everyone), Op("shl", (Const(1, u32), Cast(Read(k2), u32)), u32)), u32
            )
            thread(Assign(everyone, Const(0, u32), place=s.place))
            all_body: Body = (If(here, (Assign(everyone, add2, place=s.place),), place=s.place),)
            thread(For(k2, index(0), index(32), index(1), all_body, place=s.place))
            agree = Op("eq", (Read(same), Read(everyone)), dtypes.bool_)
            thread(Assign(s.result, Select(agree, mask, Const(0, u32)), place=s.place))
            return
        # Votes: one word of bits a warp, for "yes" and where it matters for "no".
        predicate = s.operands[0] if s.operands else TRUE
        words = lanes // 32
        number = op("floordiv", me, index(32))
        mine = Op("shl", (Const(1, u32), Cast(lane, u32)), u32)

        def ballot(name: str, condition: Expr) -> Expr:
            bits = self.slots(name, u32, words)
            self.clear(bits, words, out, s)
            word = Load(bits, (number,))
            thread(
                If(
                    condition,
                    (Store(bits, (number,), Op("or", (word, mine), u32), place=s.place),),
                    place=s.place,
                )
            )
            return word

        zero = Const(0, u32)
        if s.op == "all":
            no = ballot("against", Op("not", (predicate,), dtypes.bool_))
            flush()
            value = Op("eq", (Op("and", (no, mask), u32), zero), dtypes.bool_)
        elif s.op == "any":
            yes = ballot("votes", predicate)
            flush()
            value = Op("ne", (Op("and", (yes, mask), u32), zero), dtypes.bool_)
        elif s.op == "eq":
            answer = Variable(self.names("answer"), dtypes.bool_)
            thread(Assign(answer, predicate, place=s.place))
            yes = ballot("votes", Read(answer))
            no = ballot("against", Op("not", (Read(answer),), dtypes.bool_))
            flush()
            none = Op("eq", (Op("and", (yes, mask), u32), zero), dtypes.bool_)
            every = Op("eq", (Op("and", (no, mask), u32), zero), dtypes.bool_)
            value = Op("or", (none, every), dtypes.bool_)
        elif s.op == "ballot":
            yes = ballot("votes", predicate)
            flush()
            value = Op("and", (yes, mask), u32)
        elif s.op == "activemask":
            yes = ballot("votes", TRUE)
            flush()
            value = yes
        else:
            raise UnsupportedError(f"the CPU target has no warp operation {s.op}", s.place)
        thread(Assign(s.result, value, place=s.place))

    def slots(self, name: str, dtype: dtypes.DType, size: int) -> Array:
        array = self.names.array(name, dtype, (size,))
        self.arrays.append(array)
        return array

    def clear(self, array: Array, size: int, out: list[Any], s: Statement) -> None:
        """Zeros at block level, before the region that comes next."""
        k = self.fresh_block("k", dtypes.index)
        zero = Const(False if array.dtype == dtypes.bool_ else 0, array.dtype)  # type: ignore[arg-type]
        body = (Store(array, (Read(k),), zero, place=s.place),)
        out.append(For(k, index(0), index(size), index(1), body, place=s.place))

    # ---- slots

    def privatise(self, tree: list[Any]) -> list[Any]:
        """Slots for thread variables that are live across regions, copies of local arrays."""
        regions = list(_regions(tree))
        shape = self.thread_shape()
        exposed: set[Variable] = set()
        for r in regions:
            reads = Exposure()
            reads.body(r.body)
            exposed |= reads.exposed
            # What a region stores at its end must have been loaded where it was not assigned.
        exposed = {v for v in exposed if self.is_thread(v)}
        slots = {
            v: self.names.array(f"{v.name}_slots", v.dtype, shape) for v in sorted(exposed, key=str)
        }
        self.arrays += slots.values()
        copies = self.array_copies(tree, shape)
        return self.rebuild(tree, slots, copies)

    def is_thread(self, v: Variable) -> bool:
        return (
            v not in self.block
            and v not in self.recomputed
            and v not in self.function.parameters
            and all(s.variable != v for s in self.function.prologue)
        )

    def thread_shape(self) -> tuple[int, ...]:
        block = self.function.block
        if block is None:
            return ()
        return tuple(block[axis] for axis in (2, 1, 0) if block[axis] > 1) or (1,)

    def thread_indices(self) -> tuple[Expr, ...]:
        block = self.function.block
        assert block is not None
        return tuple(Special("threadIdx", a) for a in (2, 1, 0) if block[a] > 1) or (index(0),)

    def array_copies(self, tree: list[Any], shape: tuple[int, ...]) -> dict[Array, Array]:
        """Local arrays that more than one region uses: one copy a thread, threads innermost."""
        uses: dict[Array, int] = {}
        carried: set[Array] = set()

        def visit(nodes: Any, loop: bool) -> None:
            for n in nodes:
                match n:
                    case Region(body):
                        here = {a for a in _arrays(body) if a.space == "local"}
                        declared = {s.array for s in ir.statements(body) if isinstance(s, Declare)}
                        for a in here:
                            uses[a] = uses.get(a, 0) + 1
                            if loop and a not in declared:
                                carried.add(a)
                    case If(then=then, otherwise=otherwise):
                        visit(then, loop)
                        visit(otherwise, loop)
                    case For(body=body) | While(body=body):
                        visit(body, True)

        visit(tree, False)
        out = {}
        for a, count in uses.items():
            if count > 1 or a in carried:
                assert a.shape is not None
                out[a] = self.names.array(f"{a.name}_copies", a.dtype, (*a.shape, *shape))
        self.arrays += out.values()
        return out

    def rebuild(
        self, tree: Any, slots: dict[Variable, Array], copies: dict[Array, Array]
    ) -> list[Any]:
        out: list[Any] = []
        for node in tree:
            match node:
                case Region(body):
                    out.append(self.region(body, slots, copies))
                case If(then=then, otherwise=otherwise):
                    out.append(
                        replace(
                            node,
                            then=tuple(self.rebuild(then, slots, copies)),
                            otherwise=tuple(self.rebuild(otherwise, slots, copies)),
                        )
                    )
                case For(body=body) | While(body=body):
                    out.append(replace(node, body=tuple(self.rebuild(body, slots, copies))))
                case _:
                    out.append(node)
        return out

    def region(
        self, body: Body, slots: dict[Variable, Array], copies: dict[Array, Array]
    ) -> Region:
        reads = Exposure()
        always = reads.body(body)
        written = {v for s in ir.statements(body) for v in ir.written(s)}
        head: list[Statement] = []
        tail: list[Statement] = []
        for v, array in slots.items():
            if v in reads.exposed or (v in written and v not in always):
                head.append(Assign(v, Load(array, self.thread_indices())))
            if v in written:
                tail.append(Store(array, self.thread_indices(), Read(v)))
        needed: list[Variable] = []

        def need(e: Expr) -> None:
            for r in ir.walk(e):
                if (
                    isinstance(r, Read)
                    and r.variable in self.recomputed
                    and r.variable not in needed
                ):
                    need(self.recomputed[r.variable])
                    needed.append(r.variable)

        for e in ir.all_expressions(body):
            need(e)
        first = [Assign(v, self.recomputed[v]) for v in needed]
        if copies:
            body = _use_copies(body, copies, self.thread_indices())
        match body:
            case (If(condition, then, ()) as guard,) if not any(
                isinstance(e, Read) and e.variable in slots for e in ir.walk(condition)
            ):  # a thread that does nothing leaves its slots alone: the guard can become a bound
                return Region((*first, replace(guard, then=(*head, *then, *tail))))
        return Region((*first, *head, *body, *tail))

    # ---- thread loops

    def loops(self, tree: Any) -> Iterator[Statement]:
        for node in tree:
            match node:
                case Region(body):
                    yield self.thread_loop(body)
                case If(then=then, otherwise=otherwise):
                    yield replace(
                        node, then=tuple(self.loops(then)), otherwise=tuple(self.loops(otherwise))
                    )
                case For(body=body) | While(body=body):
                    yield replace(node, body=tuple(self.loops(body)))
                case _:
                    yield node

    def thread_loop(self, body: Body) -> Statement:
        f = self.function
        place = body[0].place if body else f.place
        body = name_place(body, {"linearThread": linear_thread(f)}, self.names)
        variables, body = name_coordinates(replace(f, body=body), "threadIdx", "thread")
        axes = [
            (variables[axis], Read(self.width) if axis == 2 and self.width else extent(f, axis))
            for axis in range(3)
            if f.block is None or f.block[axis] > 1 or (axis == 0 and f.block == (1, 1, 1))
        ]
        return thread_loops(axes, body, place, self.jams)


# ---- helpers -------------------------------------------------------------------------------------


def _guarded(pending: list[tuple[Variable | None, Statement]]) -> Body:
    """Statements under their guards, neighbours with the same guard together."""
    out: list[Statement] = []
    k = 0
    while k < len(pending):
        guard = pending[k][0]
        group = []
        while k < len(pending) and pending[k][0] == guard:
            group.append(pending[k][1])
            k += 1
        if guard is None:
            out += group
        else:
            out.append(If(Read(guard), tuple(group), place=group[0].place))
    return tuple(out)


def _touches(s: Statement, variables: set[Variable]) -> bool:
    for inner in ir.statements((s,)):
        if any(v in variables for v in ir.written(inner)):
            return True
    return any(isinstance(e, Read) and e.variable in variables for e in ir.all_expressions((s,)))


def _regions(tree: Any) -> Iterator[Region]:
    for node in tree:
        match node:
            case Region():
                yield node
            case If(then=then, otherwise=otherwise):
                yield from _regions(then)
                yield from _regions(otherwise)
            case For(body=body) | While(body=body):
                yield from _regions(body)


def _arrays(body: Body) -> set[Array]:
    found = {e.array for e in ir.all_expressions(body) if isinstance(e, Load)}
    return found | {s.array for s in ir.statements(body) if isinstance(s, (Store, Atomic, Declare))}


def _use_copies(body: Body, copies: dict[Array, Array], thread: tuple[Expr, ...]) -> Body:
    def expression(e: Expr) -> Expr:
        if isinstance(e, Load) and e.array in copies:
            return replace(e, array=copies[e.array], indices=(*e.indices, *thread))
        return e

    def statement(s: Statement) -> Statement | None:
        match s:
            case Declare(array=array) if array in copies:
                return None
            case Store(array=array) | Atomic(array=array) if array in copies:
                return replace(s, array=copies[array], indices=(*s.indices, *thread))
        return s

    return ir.rewrite_body(body, expression, statement)


def _source(
    name: str, lane: Expr, by: Expr, width: Expr, threads: int, warp: Expr
) -> tuple[Expr, Expr]:
    """(lane to read from, whether it is outside: then a thread keeps its own value)."""
    by, width = Cast(by, dtypes.index), Cast(width, dtypes.index)
    boolean = dtypes.bool_
    start = op("mul", op("floordiv", lane, width), width)
    inside = op("mod", lane, width)
    if name == "shfl":
        source = op("add", start, op("mod", by, width))
        outside: Expr = FALSE
    elif name == "shfl_up":
        source = op("sub", lane, by)
        outside = Op("lt", (source, start), boolean)
    elif name == "shfl_down":
        source = op("add", lane, by)
        outside = Op("ge", (op("add", inside, by), width), boolean)
    else:
        source = Op("xor", (lane, by), dtypes.index)
        # As on the device: a source before the segment can be read, one behind it cannot.
        outside = Op("ge", (source, op("add", start, width)), boolean)
    bounds = Op("lt", (op("add", warp, source), index(threads)), boolean)
    positive = Op("ge", (source, index(0)), boolean)
    below = Op("lt", (source, index(32)), boolean)
    valid = And(And(bounds, positive), below)
    return source, ir.Or(outside, Op("not", (valid,), boolean))
