"""The adjoint of a kernel: from gradients of what it wrote to gradients of what it read.

A thread of the adjoint does the thread's work once more, forward, and then goes back through it.
On the way back every variable has the value that it had when the statement ran:

* A value that an assignment replaces is kept beside it, and put back.
* A loop goes back from its last round. Each round is done again first, from the values that
  variables had when it began; these are kept for every round, if the way back asks for any.
  Sums ask for none: the derivative of `s + x` does not depend on `s`. What is kept must have a
  size that is known, so the loop's number of rounds must be.
* The way back of a load is an atomic addition to the array's gradient. That of a store takes the
  element's gradient and leaves zero, since the old element does not matter any more.

What is kept and then not asked for is removed at the end (`live`). What has no adjoint here -
barriers, shared memory, warps, `while` - is refused at its line; nothing is left out silently.

The derivatives of operations are those of the op table (`ops.GRADIENTS`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import KernelTypeError, Place
from ruda.jit import ir
from ruda.jit.ir import (
    Array,
    Assign,
    Atomic,
    Body,
    Cast,
    Const,
    Declare,
    Expr,
    For,
    Function,
    If,
    Load,
    Op,
    Read,
    Select,
    Statement,
    Store,
    Variable,
)
from ruda.jit.passes.names import Names
from ruda.jit.passes.structure_returns import eliminate_returns
from ruda.tensor.opdef import Scalar, f
from ruda.tensor.ops import GRADIENTS

KEPT = 1 << 14  # bytes of values that a thread may keep for the rounds of its loops
Back = Callable[[Expr], list[Statement]]  # from the gradient of a value to the way back

# Operations of kernels whose derivative is that of a row with another name.
ROWS = {
    "sub": "subtract", "mul": "multiply", "truediv": "divide", "mod": "remainder",
    "neg": "negative", "min": "minimum", "max": "maximum", "fmin": "minimum", "fmax": "maximum",
}  # fmt: skip
# Of those that are no rows.
MORE: dict[str, Callable[..., tuple[Any, ...]]] = {
    "rsqrt": lambda g, out, x: (g * -0.5 * out * out * out,),
    "fma": lambda g, out, x, y, z: (g * y, g * x, g),
    "sinpi": lambda g, out, x: (g * math.pi * f.cospi(x),),
    "cospi": lambda g, out, x: (g * -math.pi * f.sinpi(x),),
    "degrees": lambda g, out, x: (g * (180 / math.pi),),
    "radians": lambda g, out, x: (g * (math.pi / 180),),
    "fmod": lambda g, out, x, y: (g, -g * f.trunc(x / y)),
    "uniform": lambda g, out, x: (g,),
}
FLAT = ("floor", "ceil", "trunc", "rint", "floordiv")


def adjoint(function: Function, wanted: Sequence[str]) -> Function:
    """The adjoint of a kernel; `wanted` are the float arrays that gradients are given or asked of.

    Its parameters are those of the kernel, whose arrays hold what they held before its launch, and
    one array of gradients for each wanted one. At the start that is the gradient of the array as
    the kernel leaves it, at the end of the array as the kernel found it.
    """
    return _Builder(function, wanted).build()


def refuse(what: str, place: Place, hint: str = "") -> KernelTypeError:
    error = KernelTypeError(f"a kernel with {what} has no derivative", place)
    if hint:
        error.add_note(f"hint: {hint}")
    return error


def constant(value: float, dtype: DType) -> Const:
    plain = {"float": float, "bool": bool}.get(dtype.kind, int)
    return Const(plain(value), dtype)


def index(value: int) -> Const:
    return Const(value, dtypes.index)


def index_op(name: str, *operands: Expr) -> Expr:
    return Op(name, operands, dtypes.index)


class _Builder:
    """Ways forward and back of one kernel."""

    def __init__(self, function: Function, wanted: Sequence[str]) -> None:
        self.function = function
        self.names = Names(function)
        self.gradients = {
            p: Array(self.names(f"d_{p.name}"), p.dtype, p.ndim)
            for p in function.parameters
            if isinstance(p, Array) and p.name in wanted
        }
        self.arrays: list[Array] = [a for a in function.arrays if a.space != "shared"]
        self.local_gradients: dict[Array, Array] = {}
        self.adjoints: dict[Variable, Variable] = {}
        self.rooms: list[Array] = []  # where values of rounds are kept
        self.kept = 0  # bytes of them

    def build(self) -> Function:
        function = self.function
        check_order(function.body)
        flag = Variable(self.names("left"), dtypes.bool_)
        body = eliminate_returns(function.body, flag)
        forward, back = self.body(body)
        zeros = [Assign(v, constant(0, v.dtype)) for v in assigned(body)]
        starts = [Assign(d, constant(0, d.dtype)) for d in self.adjoints.values()]
        rooms = [Declare(a) for a in self.rooms]
        steps = (*zeros, *starts, *rooms, *forward, *back)
        whole, _, _ = live(steps, frozenset(), frozenset())
        used = {e.array for e in ir.all_expressions(whole) if isinstance(e, Load)} | {
            s.array for s in ir.statements(whole) if isinstance(s, Store | Declare)
        }
        return replace(
            function, name=f"{function.name}_adjoint", body=whole, lanes=1,
            parameters=(*function.parameters, *self.gradients.values()),
            arrays=tuple(a for a in self.arrays if a in used),
        )  # fmt: skip

    # -- names --

    def variable(self, name: str, dtype: DType) -> Variable:
        return Variable(self.names(name), dtype)

    def keep(self, value: Expr, name: str) -> tuple[Assign, Read]:
        """A value in a variable of its own."""
        v = self.variable(name, value.dtype)
        return Assign(v, value, place=value.place), Read(v)

    def adjoint_of(self, v: Variable) -> Variable:
        if v not in self.adjoints:
            self.adjoints[v] = self.variable(f"d_{v.name}", v.dtype)
        return self.adjoints[v]

    # -- statements: the way forward, and the way back in the order in which it goes --

    def body(self, body: Body) -> tuple[list[Statement], list[Statement]]:
        forward: list[Statement] = []
        back: list[Statement] = []
        for s in body:
            ahead, behind = self.statement(s)
            forward += ahead
            back = behind + back
        return forward, back

    def statement(self, s: Statement) -> tuple[list[Statement], list[Statement]]:
        match s:
            case Assign(v, value):
                return self.assign(s, v, value)
            case Store(array, indices, value):
                return self.store(s, array, indices, value)
            case Atomic():
                return self.atomic(s)
            case Declare(array):
                return self.declare(s, array)
            case If(condition, then, otherwise):
                test, kept = self.keep(condition, "test")
                a, a_back = self.body(then)
                b, b_back = self.body(otherwise)
                ahead: list[Statement] = [test, If(kept, tuple(a), tuple(b), place=s.place)]
                return ahead, [If(kept, tuple(a_back), tuple(b_back), place=s.place)]
            case For():
                return self.loop(s)
            case ir.Print() | ir.Assert() | ir.Breakpoint() | ir.Fence():
                return [], []
            case ir.While():
                hint = "write `for _ in range(limit):` with `if ...: break`"
                raise refuse("a `while` loop", s.place, hint)
            case ir.Barrier() | ir.Warp():
                hint = "give ruda.custom_vjp its gradient"
                raise refuse("barriers or warp operations", s.place, hint)
        raise refuse(f"`{type(s).__name__.lower()}`", s.place)

    def assign(
        self, s: Assign, v: Variable, value: Expr
    ) -> tuple[list[Statement], list[Statement]]:
        old, kept = self.keep(Read(v), f"old_{v.name}")
        put_back = Assign(v, kept)
        if v.dtype.kind == "complex":
            raise refuse("complex numbers", s.place)
        if v.dtype.kind != "float":
            return [old, s], [put_back]
        ahead, atom, way = self.expression(value)
        d = self.adjoint_of(v)
        take, g = self.keep(Read(d), "g")
        zero = Assign(d, constant(0, d.dtype))
        return [*ahead, old, replace(s, value=atom)], [take, zero, put_back, *way(g)]

    def store(
        self, s: Store, array: Array, indices: tuple[Expr, ...], value: Expr
    ) -> tuple[list[Statement], list[Statement]]:
        self.check_array(array, s.field, s.place)
        if array.space == "global" and array not in self.gradients:
            return [], []  # nothing depends on it that a gradient is asked of
        places, kept = self.indices(indices)
        if value.dtype.kind != "float":
            old, before = self.keep(Load(array, kept), "old")
            return [*places, old, replace(s, indices=kept)], [Store(array, kept, before)]
        ahead, atom, way = self.expression(value)
        d = self.gradient(array)
        take, g = self.keep(Load(d, kept), "g")
        zero = Store(d, kept, constant(0, value.dtype))
        if array.space == "global":
            return [*ahead, *places], [take, zero, *way(g)]
        old, before = self.keep(Load(array, kept), "old")
        ahead += [*places, old, Store(array, kept, atom)]
        return ahead, [Store(array, kept, before), take, zero, *way(g)]

    def atomic(self, s: Atomic) -> tuple[list[Statement], list[Statement]]:
        self.check_array(s.array, s.field, s.place)
        if s.result is not None:
            raise refuse("the old value of an atomic operation", s.place)
        if s.array.space != "global" or s.array not in self.gradients:
            return [], []
        if s.op not in ("add", "sub"):
            raise refuse(f"an atomic `{s.op}`", s.place, "reduce with ruda.max or ruda.min")
        places, kept = self.indices(s.indices)
        ahead, _, way = self.expression(s.operands[0])
        take, g = self.keep(Load(self.gradient(s.array), kept), "g")
        given: Expr = g if s.op == "add" else Op("neg", (g,), g.dtype)
        return [*places, *ahead], [take, *way(given)]

    def declare(self, s: Declare, array: Array) -> tuple[list[Statement], list[Statement]]:
        if array.space == "shared":
            raise refuse("shared memory", s.place, "give ruda.custom_vjp its gradient")
        ahead: list[Statement] = [s, self.zeroed(array)]
        if isinstance(array.dtype, DType) and array.dtype.kind == "float":
            d = self.gradient(array)
            ahead += [Declare(d, place=s.place), self.zeroed(d)]
        return ahead, []

    def zeroed(self, array: Array) -> Statement:
        if not isinstance(array.dtype, DType):
            raise refuse(f"records in `{array.name}`", self.function.place)
        counters = tuple(self.variable("i", dtypes.index) for _ in range(array.ndim))
        zero = constant(0, array.dtype)
        out: Statement = Store(array, tuple(Read(c) for c in counters), zero)
        assert array.shape is not None
        for c, n in zip(reversed(counters), reversed(array.shape), strict=True):
            out = For(c, index(0), index(n), index(1), (out,))
        return out

    # -- loops --

    def loop(self, s: For) -> tuple[list[Statement], list[Statement]]:
        dtype = s.variable.dtype
        counter = self.variable(s.variable.name, dtype)  # assigned on the way back too
        ended = self.variable("ended", dtypes.bool_)
        body, ends = self.one_round(substitute(s.body, s.variable, counter), ended)
        changed = [*assigned(body), *([ended] if ends else [])]

        start, first = self.keep(s.start, "start")
        pace, step = self.keep(s.step, "step")
        past = Op("sub", (s.stop, first), dtype)
        if s.step == Const(1, dtype):
            count: Expr = past
        else:  # rounded up, whichever way the loop goes
            up = Op("gt", (step, Const(0, dtype)), dtypes.bool_)
            short = Op("sub", (step, Select(up, Const(1, dtype), Const(-1, dtype))), dtype)
            count = Op("floordiv", (Op("add", (past, short), dtype), step), dtype)
        rounds, total = self.keep(
            count if dtype is dtypes.index else Cast(count, dtypes.index), "n"
        )
        entry = [self.keep(Read(v), f"before_{v.name}") for v in changed]

        forward, back = self.body(body)
        k = self.variable("k", dtypes.index)
        r = self.variable("r", dtypes.index)
        behind = index_op("sub", index_op("sub", total, index(1)), Read(r))
        asked = frozenset(self.adjoints.values()), frozenset(self.local_gradients.values())
        _, needed, arrays = live((*forward, *back), *asked)
        saves, loads = self.saved(s, [v for v in changed if v in needed],
                                  [a for a in stored(body) if a in arrays], k, behind)  # fmt: skip

        def at(number: Expr) -> Assign:
            done = number if dtype is dtypes.index else Cast(number, dtype)
            return Assign(counter, Op("add", (first, Op("mul", (done, step), dtype)), dtype))

        inits: list[Statement] = [Assign(ended, Const(False, dtypes.bool_))] if ends else []
        ahead: list[Statement] = [
            start, pace, rounds, *(a for a, _ in entry), *inits,
            For(k, index(0), total, index(1), (at(Read(k)), *saves, *forward), place=s.place),
        ]  # fmt: skip
        way: list[Statement] = [
            For(r, index(0), total, index(1), (at(behind), *loads, *forward, *back), place=s.place),
            *(Assign(v, kept) for v, (_, kept) in zip(changed, entry, strict=True)),
        ]
        return ahead, way

    def one_round(self, body: Body, ended: Variable) -> tuple[Body, bool]:
        """The body without `continue` and `break`; after a break the other rounds do nothing."""
        breaks = False

        def change(inner: Body) -> Body:
            nonlocal breaks
            out: list[Statement] = []
            for s in inner:
                match s:
                    case ir.Continue():
                        out.append(ir.Return(place=s.place))
                    case ir.Break():
                        breaks = True
                        out += [Assign(ended, Const(True, dtypes.bool_)), ir.Return(place=s.place)]
                    case If(_, then, otherwise):
                        out.append(replace(s, then=change(then), otherwise=change(otherwise)))
                    case _:
                        out.append(s)
            return tuple(out)

        changed = eliminate_returns(change(body), Variable(self.names("skipped"), dtypes.bool_))
        if breaks:
            changed = (If(Op("not", (Read(ended),), dtypes.bool_), changed),)
        return changed, breaks

    def saved(
        self, s: For, variables: list[Variable], arrays: list[Array], k: Variable, behind: Expr
    ) -> tuple[list[Statement], list[Statement]]:  # fmt: skip
        """What a round began with: kept on the way forward, taken on the way back."""
        if not variables and not arrays:
            return [], []
        rounds = rounds_of(s)
        names = ", ".join(f"`{n}`" for n in [v.name for v in variables] + [a.name for a in arrays])
        if rounds is None:
            raise refuse(
                f"a loop of an unknown number of rounds that needs {names} of each", s.place,
                "give the range a constant length, or let each thread do one round",
            )  # fmt: skip
        saves: list[Statement] = []
        loads: list[Statement] = []
        for v in variables:
            kept = self.room(s, f"all_{v.name}", v.dtype, (rounds,))
            is_index = v.dtype is dtypes.index
            value: Expr = Cast(Read(v), dtypes.int64) if is_index else Read(v)
            again: Expr = Load(kept, (behind,))
            saves.append(Store(kept, (Read(k),), value))
            loads.append(Assign(v, Cast(again, dtypes.index) if is_index else again))
        for a in arrays:
            assert a.shape is not None and isinstance(a.dtype, DType)
            kept = self.room(s, f"all_{a.name}", a.dtype, (rounds, *a.shape))
            for into, source, place in ((saves, a, Read(k)), (loads, kept, behind)):
                counters = tuple(self.variable("i", dtypes.index) for _ in a.shape)
                at = tuple(Read(c) for c in counters)
                copy: Statement = (
                    Store(kept, (place, *at), Load(a, at))
                    if source is a
                    else Store(a, at, Load(kept, (place, *at)))
                )
                for c, n in zip(reversed(counters), reversed(a.shape), strict=True):
                    copy = For(c, index(0), index(n), index(1), (copy,))
                into.append(copy)
        return saves, loads

    def room(self, s: For, name: str, dtype: DType, shape: tuple[int, ...]) -> Array:
        self.kept += math.prod(shape) * dtype.itemsize
        if self.kept > KEPT:
            raise refuse(
                f"a loop whose rounds need {self.kept} bytes of kept values a thread", s.place,
                f"at most {KEPT}: use fewer rounds",
            )  # fmt: skip
        held = dtypes.int64 if dtype is dtypes.index else dtype
        array = Array(self.names(name), held, len(shape), space="local", shape=shape)
        self.arrays.append(array)
        self.rooms.append(array)
        return array

    # -- expressions: the way forward, a variable or constant, and the way back --

    def expression(self, e: Expr) -> tuple[list[Statement], Expr, Back]:
        if e.dtype.kind == "complex":
            raise refuse("complex numbers", e.place)
        match e:
            case Const():
                return [], e, nothing
            case Read(v):
                return [], e, self.into_variable(v)
            case Load(array, indices) if e.field is None and array.space != "const":
                self.check_array(array, e.field, e.place)
                places, kept = self.indices(indices)
                load, value = self.keep(replace(e, indices=kept), "x")
                return [*places, load], value, self.into_array(array, kept)
            case Op(name, operands) if any(o.dtype.kind == "float" for o in operands):
                return self.operation(e, name, operands)
            case Cast(value) if value.dtype.kind == "float":
                ahead, atom, inner = self.expression(value)
                cast, out = self.keep(replace(e, value=atom), "x")
                return [*ahead, cast], out, lambda g: inner(Cast(g, value.dtype))
            case Select(condition, then, otherwise):
                # As an `if`: the arm that was not taken may have no finite derivative.
                test, taken = self.keep(condition, "test")
                v = self.variable("x", e.dtype)
                a, a_atom, a_way = self.expression(then)
                b, b_atom, b_way = self.expression(otherwise)
                chosen = If(taken, (*a, Assign(v, a_atom)), (*b, Assign(v, b_atom)))

                def way(g: Expr) -> list[Statement]:
                    take, given = self.keep(g, "g")
                    return [take, If(taken, tuple(a_way(given)), tuple(b_way(given)))]

                return [test, chosen], Read(v), way
            case ir.Bitcast():
                raise refuse("the bits of a float", e.place)
        whole, atom = self.keep(e, "x")  # of integers, or of a record: constant
        if any(isinstance(x, Load) and x.dtype.kind == "float" and x.array in self.gradients
               for x in ir.walk(e)):  # fmt: skip
            raise refuse("records", e.place)
        return [whole], atom, nothing

    def operation(
        self, e: Op, name: str, operands: tuple[Expr, ...]
    ) -> tuple[list[Statement], Expr, Back]:
        ahead: list[Statement] = []
        atoms: list[Expr] = []
        ways: list[Back] = []
        for o in operands:
            before, atom, way = self.expression(o)
            ahead += before
            atoms.append(atom)
            ways.append(way)
        result, out = self.keep(replace(e, operands=tuple(atoms)), "x")
        if name in FLAT:
            return [*ahead, result], out, nothing
        row = ROWS.get(name, name)
        derivative = MORE.get(name) or GRADIENTS.get(row)
        if derivative is None:
            raise refuse(f"`{name}` of floats", e.place)

        def back(g: Expr) -> list[Statement]:
            take, given = self.keep(g, "g")
            numbers = [a.value if isinstance(a, Const) else Scalar(a) for a in atoms]
            found = derivative(Scalar(given), Scalar(out), *numbers)
            statements: list[Statement] = [take]
            for atom, way, part in zip(atoms, ways, found, strict=True):
                if part is not None and not isinstance(atom, Const) and isinstance(part, Scalar):
                    statements += way(part.cast(atom.dtype).expr)
            return statements

        return [*ahead, result], out, back

    def into_variable(self, v: Variable) -> Back:
        if v.dtype.kind != "float" or v in self.function.parameters:
            return nothing
        d = self.adjoint_of(v)
        return lambda g: [Assign(d, Op("add", (Read(d), g), d.dtype))]

    def into_array(self, array: Array, indices: tuple[Expr, ...]) -> Back:
        if array.space == "global" and array not in self.gradients:
            return nothing
        d = self.gradient(array)
        if d.space == "global":
            return lambda g: [Atomic("add", d, indices, (g,))]
        assert isinstance(d.dtype, DType)
        dtype = d.dtype
        return lambda g: [Store(d, indices, Op("add", (Load(d, indices), g), dtype))]

    def gradient(self, array: Array) -> Array:
        """The gradient of an array; that of a local one is local."""
        found = self.gradients.get(array) or self.local_gradients.get(array)
        if found is None:
            found = self.local_gradients[array] = replace(array, name=self.names(f"d_{array.name}"))
            self.arrays.append(found)
        return found

    def indices(self, indices: tuple[Expr, ...]) -> tuple[list[Statement], tuple[Expr, ...]]:
        """Indices as they are now: on the way back their variables may differ."""
        ahead: list[Statement] = []
        kept: list[Expr] = []
        for i in indices:
            if isinstance(i, Const):
                kept.append(i)
                continue
            keep, read = self.keep(i, "at")
            ahead.append(keep)
            kept.append(read)
        return ahead, tuple(kept)

    def check_array(self, array: Array, field: Any, place: Place) -> None:
        if field is not None and array in self.gradients:
            raise refuse("records", place)
        if array.space == "shared":
            raise refuse("shared memory", place, "give ruda.custom_vjp its gradient")


def nothing(g: Expr) -> list[Statement]:
    """The way back of what is constant."""
    return []


# ---- what a body does ----------------------------------------------------------------------------


def assigned(body: Body) -> list[Variable]:
    """The variables that a body assigns, loops' own ones left out, in order."""
    found: dict[Variable, None] = {}
    for s in ir.statements(body):
        if not isinstance(s, For):
            found |= dict.fromkeys(ir.written(s))
    return list(found)


def stored(body: Body) -> list[Array]:
    """The local arrays that a body writes but does not declare."""
    own = {s.array for s in ir.statements(body) if isinstance(s, Declare)}
    found = {
        s.array: None
        for s in ir.statements(body)
        if isinstance(s, Store) and s.array.space == "local" and s.array not in own
    }
    return list(found)


def substitute(body: Body, old: Variable, new: Variable) -> Body:
    def change(e: Expr) -> Expr:
        return replace(e, variable=new) if isinstance(e, Read) and e.variable == old else e

    return ir.rewrite_body(body, change)


def rounds_of(s: For) -> int | None:
    """How often a loop goes round, where that is known."""
    match s.start, s.stop, s.step:
        case Const(start), Const(stop), Const(step):
            return len(range(start, stop, step))
    return None


def check_order(body: Body) -> None:
    """Refuse kernels whose work cannot be done again: they read what they wrote."""
    written: set[Array] = set()

    def visit(s: Statement) -> None:
        inside = (
            (s, *ir.statements(sum(ir.bodies(s), ()))) if isinstance(s, For | ir.While) else (s,)
        )
        reads = {
            e.array for x in inside for top in ir.expressions(x) for e in ir.walk(top)
            if isinstance(e, Load) and e.array.space == "global"
        }  # fmt: skip
        writes = {x.array for x in inside if isinstance(x, Store | Atomic)}
        again = reads & (written | writes if len(inside) > 1 else written)
        if again:
            raise refuse(
                f"`{next(iter(again)).name}` read after it was written", s.place,
                "keep the value in a variable, or write to another array",
            )  # fmt: skip
        written.update(w for w in writes if w.space == "global")
        if len(inside) == 1:
            for inner in ir.bodies(s):
                for x in inner:
                    visit(x)

    for s in body:
        visit(s)


def live(
    body: Sequence[Statement], variables: frozenset[Variable], arrays: frozenset[Array]
) -> tuple[Body, frozenset[Variable], frozenset[Array]]:
    """The body without what nothing asks for, and which variables and local arrays it asks for.

    `variables` and `arrays` are asked for after it. Stores to global arrays and atomics stay.
    """
    out: list[Statement] = []

    def reads(node: Any) -> None:
        nonlocal variables, arrays
        for top in ir.expressions(node):
            for e in ir.walk(top):
                if isinstance(e, Read):
                    variables |= {e.variable}
                elif isinstance(e, Load) and e.array.space == "local":
                    arrays |= {e.array}

    for s in reversed(body):
        match s:
            case Assign(v):
                if v not in variables:
                    continue
                variables -= {v}
            case Store(array) if array.space == "local" and array not in arrays:
                continue
            case Declare(array):
                if array not in arrays:
                    continue
                arrays -= {array}
            case If(_, then, otherwise):
                a, va, aa = live(then, variables, arrays)
                b, vb, ab = live(otherwise, variables, arrays)
                if not a and not b:
                    continue
                s = replace(s, then=a, otherwise=b)
                variables, arrays = va | vb, aa | ab
            case For(counter, body=inner):
                after = variables, arrays
                while True:
                    done, before, there = live(inner, variables, arrays)
                    more = (before - {counter}) | variables, there | arrays
                    if more == (variables, arrays):
                        break
                    variables, arrays = more
                if not done:
                    variables, arrays = after
                    continue
                s = replace(s, body=done)
        reads(s)
        out.append(s)
    return tuple(reversed(out)), variables, arrays
