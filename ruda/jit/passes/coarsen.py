"""Wide accesses: a thread of a flat kernel does some neighbouring elements at once.

A GPU moves 16 bytes a thread as one access, and needs that to reach its bandwidth; kernels are
written for one element a thread. Here a kernel that uses only `grid()` (with a guard, or in a
grid-stride loop) and touches arrays at `[..., i]` gets this form:

    if the arrays lie at multiples of 16 and all lanes are inside:
        every statement for all lanes, before the next one; its neighbours in memory by one access
    else:
        for each of the thread's elements: the kernel as it was

The lanes of a thread keep their own order of accesses, and threads have none among themselves, so
that nothing needs to be known of arrays that overlap. Where an array is not aligned, the threads of
a block take every `blockDim`-th element, as before.

Whether arrays are read through `ld.global.nc` makes no difference to an H200 (axpy of 256M float32:
736.1 us without, 736.8 with it; the same at all sizes from 4096 on), so that it need not be proven
that nothing writes them. Small launches lose nothing that matters: 0.07 us of 1.0 at 4096 elements,
0.03 us at 65,536, and gain from 262,144 on.

A grid without a loop becomes shorter: `Function.lanes` times, which the launcher does. How many
threads the user launched stays known: `Special("threads")`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from ruda.dtypes import DType, bool_
from ruda.jit import ir
from ruda.jit.ir import (
    Address,
    And,
    Array,
    Assign,
    Body,
    Const,
    Expr,
    Extent,
    For,
    Function,
    If,
    Load,
    Op,
    Or,
    Read,
    Select,
    Special,
    Statement,
    Store,
    Variable,
    While,
    WideLoad,
    WideStore,
)  # fmt: skip
from ruda.jit.passes.exposure import exposed
from ruda.jit.passes.flatten import is_flat
from ruda.jit.passes.guards import conjuncts
from ruda.jit.passes.indices import index, op
from ruda.jit.passes.jumps import structure_jumps
from ruda.jit.passes.names import Names

BYTES = 16  # of an access
LANES = 8  # at most, for the smallest dtypes
NODES = 160  # of a kernel's work: larger ones are not bound by memory
X = Special("globalIdx", 0)
_BOUNDS = {"lt", "le"}
_FLOORS = {"gt", "ge"}


@dataclass(frozen=True)
class _Plan:
    """A kernel taken apart."""

    head: tuple[Assign, ...]
    work: Body  # of one element, inside its guards
    whole: Body  # of one element, with them
    guards: tuple[Expr, ...]  # that hold for all lanes if they hold for the first or last one
    values: dict[Variable, Expr]  # what variables are, where that is known
    loop: For | None  # over the grid's strides

    def is_wide(self, access: Load | Store) -> bool:
        """Whether neighbouring lanes access neighbours, the first at a multiple of the lanes."""
        a = access.array
        if a.space != "global" or a.layout != "C" or not a.aligned or access.field is not None:
            return False
        if not isinstance(a.dtype, DType) or a.dtype.kind == "complex" or not a.ndim:
            return False
        written = {v for s in ir.statements((*self.head, *self.work)) for v in ir.written(s)}
        *others, last = (_resolve(i, self.values) for i in access.indices)
        steady = all(
            _is_uniform(i) and not written & {e.variable for e in ir.walk(i) if isinstance(e, Read)}
            for i in others
        )
        return steady and last == X


def coarsen(function: Function, placed: bool = False) -> Function:
    """The kernel with wide accesses, or as it was where it is of another kind.

    placed  whether the launcher sees to it that the arrays lie where wide accesses may begin
    """
    plan = _plan(function)
    if plan is None:
        return function
    accesses: list[Load | Store] = [e for s in plan.work for e in _certain(s)]
    accesses += [s for s in plan.work if isinstance(s, Store)]
    arrays = {x.array for x in accesses if plan.is_wide(x)}
    if not arrays:
        return function
    lanes = min(LANES, BYTES // max(_size(a) for a in arrays))
    if lanes < 2:
        return function
    found = sorted(arrays, key=lambda a: a.name)
    return _Writer(function, plan, lanes, [] if placed else found).function()


# ---- which kernels -------------------------------------------------------------------------------


def _plan(function: Function) -> _Plan | None:
    if function.check or not is_flat(function):
        return None
    if any(a.space != "const" for a in function.arrays):
        return None
    if any(
        isinstance(e, Special) and e.name not in ("globalIdx", "globalDim")
        for e in ir.all_expressions(function.body)
    ):
        return None
    head, rest = _split(structure_jumps(function).body)
    values = _values(head, {})
    loop = None
    guards: tuple[Expr, ...] = ()
    match rest:
        case (For(_, start, stop, Special("globalDim", 0), inner) as found,) if _resolve(
            start, values
        ) == X and _is_uniform(_resolve(stop, values)):
            loop, whole, work = found, inner, inner
            if not _is_steady(loop, values):
                return None
            values = {v: e for v, e in values.items() if _is_uniform(e)} | {loop.variable: X}
        case _:
            whole = rest
            work, guards = _unguarded(rest, values)
    if any(isinstance(e, Special) and e.name == "globalDim" for e in ir.all_expressions(whole)):
        return None
    if not all(isinstance(s, (Assign, Store, If)) for s in ir.statements(whole)):
        return None
    if sum(1 for _ in ir.all_expressions(work)) > NODES:
        return None
    values = _values(_split(work)[0], values)
    return _Plan(head, work, whole, guards, values, loop)


def _is_steady(loop: For, values: dict[Variable, Expr]) -> bool:
    """Whether a round of a grid-stride loop knows its element alone, not its thread or others."""
    if exposed(loop.body) & {v for s in ir.statements(loop.body) for v in ir.written(s)}:
        return False
    reads = [e for e in ir.all_expressions(loop.body) if e == X or isinstance(e, Read)]
    known = [values.get(e.variable, e) if isinstance(e, Read) else e for e in reads]
    return loop.variable.dtype.name == "index" and all(_is_uniform(e) for e in known)


def _split(body: Body) -> tuple[tuple[Assign, ...], Body]:
    """Leading assignments of what is known without memory, and the rest."""
    count: dict[Variable, int] = {}
    for s in ir.statements(body):
        for v in ir.written(s):
            count[v] = count.get(v, 0) + 1
    head: list[Assign] = []
    for s in body:
        if not isinstance(s, Assign) or count[s.variable] != 1:
            break
        if any(isinstance(e, Load) for e in ir.walk(s.value)):
            break
        head.append(s)
    return tuple(head), body[len(head) :]


def _values(head: tuple[Assign, ...], values: dict[Variable, Expr]) -> dict[Variable, Expr]:
    """What variables are in terms of coordinates, extents and parameters."""
    values = dict(values)
    for s in head:
        values[s.variable] = _resolve(s.value, values)
    return values


def _resolve(node: Expr, values: dict[Variable, Expr]) -> Expr:
    return ir.rewrite(node, lambda e: values.get(e.variable, e) if isinstance(e, Read) else e)


def _is_uniform(node: Expr) -> bool:
    """Whether a resolved expression is the same for all lanes, and costs no access."""
    return not any(isinstance(e, Load) or e == X for e in ir.walk(node))


def _unguarded(body: Body, values: dict[Variable, Expr]) -> tuple[Body, tuple[Expr, ...]]:
    """The work inside `if i < n:`, and the guards."""
    guards: list[Expr] = []
    while len(body) == 1 and isinstance(body[0], If) and not body[0].otherwise:
        parts = [_resolve(c, values) for c in conjuncts(body[0].condition)]
        if not all(_is_uniform(c) or _bound(c) is not None for c in parts):
            break
        guards += parts
        body = body[0].then
    return body, tuple(guards)


def _bound(guard: Expr) -> str | None:
    """Which lane a guard `i + c < n` is about: "last" or "first"."""
    match guard:
        case Op(name, (left, right)) if left.dtype.name == "index":
            ups = name in _BOUNDS
            if (ups or name in _FLOORS) and _steps(left) and _is_uniform(right):
                return "last" if ups else "first"
            if (ups or name in _FLOORS) and _steps(right) and _is_uniform(left):
                return "first" if ups else "last"
    return None


def _steps(node: Expr) -> bool:
    """Whether an index is `i + c`."""
    match node:
        case Op("add" | "sub", (x, y)):
            return _steps(x) and isinstance(y, Const)
    return node == X


def _size(array: Array) -> int:
    return array.dtype.itemsize


def _certain(node: Statement | Expr) -> list[Load]:
    """The loads that a statement makes whatever happens; not those of nested bodies."""
    if isinstance(node, (And, Or)):
        return _certain(node.left)
    if isinstance(node, Select):  # its arms hold no loads; if they do, they may be lazy
        return _certain(node.condition)
    found = [node] if isinstance(node, Load) else []
    for e in ir.expressions(node):
        found += _certain(e)
    return found


# ---- the new form --------------------------------------------------------------------------------


@dataclass
class _Writer:
    source: Function
    plan: _Plan
    lanes: int
    arrays: list[Array]  # of which it is asked where they lie

    def function(self) -> Function:
        self.names = Names(self.source)
        self.renamed: dict[tuple[Variable, int], Variable] = {}
        aligned = Variable(self.names("aligned"), bool_) if self.arrays else None
        head = (Assign(aligned, self.alignment()),) if aligned else ()
        body = self.stride_loop(aligned) if self.plan.loop else self.grid(aligned)
        lanes = 1 if self.plan.loop else self.lanes
        return replace(self.source, body=(*head, *body), lanes=lanes)

    def alignment(self) -> Expr:
        """Whether the first lane's elements lie at multiples of an access."""
        tests = []
        for a in self.arrays:
            width = self.lanes * _size(a)
            where: Expr = Address(a)
            if a.ndim > 1:
                where = op("or", where, op("mul", Extent(a, a.ndim - 1), index(_size(a))))
            tests.append(op("eq", op("and", where, index(width - 1)), index(0)))
        return _all(tests)

    def either(self, aligned: Variable | None, yes: Expr, no: Expr) -> Expr:
        return yes if aligned is None else Select(Read(aligned), yes, no)

    def grid(self, aligned: Variable | None) -> Body:
        """One group of lanes a thread of the shorter grid."""
        n, lanes = Special("threads"), index(self.lanes)
        first = self.names.index("first")
        place, size = Special("threadIdx", 0), Special("blockDim", 0)
        apart = op("add", op("mul", op("mul", Special("blockIdx", 0), size), lanes), place)
        tests = [Read(aligned)] if aligned else []
        inside = op("le", op("add", Read(first), lanes), n)
        guards = [self.at(g, self.edge(g, first)) for g in self.plan.guards]
        step, each = self.names.index("step"), self.names.index("each")
        stop = op("min", n, op("add", Read(first), op("mul", Read(step), lanes)))
        element = self.one((*self.plan.head, *self.plan.whole), Read(each))
        scalar = _counting(each, Read(first), stop, Read(step), element)
        return (
            Assign(first, self.either(aligned, op("mul", X, lanes), apart)),
            Assign(step, self.either(aligned, index(1), size)),
            If(_all([*tests, inside, *guards]), self.together(first), scalar),
        )

    def stride_loop(self, aligned: Variable | None) -> Body:
        """Groups of lanes in a grid-stride loop; the grid stays as it is."""
        loop = self.plan.loop
        assert loop is not None
        tests = [Read(aligned)] if aligned else []
        names = ("width", "first", "each", "stop", "stride")
        width, first, each, stop, stride = (self.names.index(n) for n in names)
        behind = op("add", Read(first), Read(width))
        inside = _all([*tests, op("le", behind, Read(stop))])
        element = self.one(self.plan.whole, Read(each), loop.variable)
        end = op("min", Read(stop), behind)
        scalar = _counting(each, Read(first), end, index(1), element)
        body = (If(inside, self.together(first, loop.variable), scalar),)
        start = op("mul", X, Read(width))
        return (
            *self.plan.head,
            Assign(width, self.either(aligned, index(self.lanes), index(1))),
            Assign(stop, loop.stop),
            Assign(stride, op("mul", Special("globalDim", 0), Read(width))),
            *_counting(first, start, Read(stop), Read(stride), body),
        )

    def edge(self, guard: Expr, first: Variable) -> Expr:
        lane = self.lanes - 1 if _bound(guard) == "last" else 0
        return op("add", Read(first), index(lane))

    def at(self, node: Expr, place: Expr) -> Expr:
        """An expression with another global index."""
        return ir.rewrite(node, lambda e: place if e == X else e)

    def one(self, body: Body, place: Expr, variable: Variable | None = None) -> Body:
        """The kernel for one element."""

        def change(e: Expr) -> Expr:
            if e == X or (isinstance(e, Read) and e.variable == variable):
                return place
            return e

        return ir.rewrite_body(body, change)

    def lane(self, variable: Variable, k: int) -> Variable:
        key = variable, k
        if key not in self.renamed:
            self.renamed[key] = replace(variable, name=self.names(f"{variable.name}_{k}"))
        return self.renamed[key]

    def together(self, first: Variable, element: Variable | None = None) -> Body:
        """Each statement for all lanes, before the next one."""
        plan = self.plan
        body = plan.work if plan.loop else (*plan.head, *plan.work)
        own = {v for s in ir.statements(body) for v in ir.written(s)}
        places = [op("add", Read(first), index(k)) for k in range(self.lanes)]

        def node(e: Expr, k: int) -> Expr:
            """A node in lane k."""
            if e == X or (isinstance(e, Read) and e.variable == element):
                return places[k]
            if isinstance(e, Read) and e.variable in own:
                return replace(e, variable=self.lane(e.variable, k))
            return e

        def tree(e: Expr, k: int, known: dict[Load, Variable]) -> Expr:
            """An expression in lane k, with what has been loaded."""
            if isinstance(e, Load) and e in known:
                return Read(self.lane(known[e], k), place=e.place)
            return node(ir.map_children(e, lambda x: tree(x, k, known)), k)

        def rename(s: Statement, k: int) -> Statement:
            return replace(s, variable=self.lane(s.variable, k)) if isinstance(s, Assign) else s

        def inner(part: Body, k: int) -> Body:
            return ir.rewrite_body(part, lambda e: node(e, k), lambda s: rename(s, k))

        out: list[Statement] = []
        for s in body:
            known: dict[Load, Variable] = {}
            for load in _certain(s):
                if load in known or not plan.is_wide(load):
                    continue
                known[load] = Variable(self.names(f"{load.array.name}_at"), load.dtype)
                where = tuple(tree(i, 0, {}) for i in load.indices)
                results = tuple(self.lane(known[load], k) for k in range(self.lanes))
                out.append(WideLoad(load.array, where, results, place=s.place))
            if isinstance(s, Store) and plan.is_wide(s):
                where = tuple(tree(i, 0, {}) for i in s.indices)
                values = tuple(tree(s.value, k, known) for k in range(self.lanes))
                out.append(WideStore(s.array, where, values, place=s.place))
                continue
            for k in range(self.lanes):
                each = rename(ir.map_children(s, partial(tree, k=k, known=known)), k)
                if isinstance(each, If):
                    each = replace(
                        each, then=inner(each.then, k), otherwise=inner(each.otherwise, k)
                    )
                out.append(each)
        return tuple(out)


def _counting(variable: Variable, start: Expr, stop: Expr, step: Expr, body: Body) -> Body:
    """`for variable in range(start, stop, step)` of a positive step, without a division."""
    more = Assign(variable, op("add", Read(variable), step))
    return (
        Assign(variable, start),
        While(op("lt", Read(variable), stop), (*body, more)),
    )


def _all(tests: list[Expr]) -> Expr:
    found = tests[0]
    for test in tests[1:]:
        found = And(found, test)
    return found
