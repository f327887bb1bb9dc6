"""Turn a kernel's IR into closures, for the interpreter.

Every expression becomes a closure `frame -> NumPy scalar` of exactly the node's dtype, every
statement a closure that gives None, or why its body ends early. A frame is a list: launch
coordinates, the thread, arrays, then variables. Only statements with a barrier or warp operation
inside are generators, which yield a `Request` (see `schedule`).

What operations mean stands in `intrinsics.TABLE`; the shortcuts of `FAST` are tested against it.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Generator
from typing import Any, NoReturn

import numpy as np

from ruda.dtypes import DType
from ruda.errors import (
    BarrierError,
    IntegerDivisionError,
    KernelAssertionError,
    OutOfBoundsError,
    Place,
    UndefinedReadError,
    UniformError,
    UnsupportedError,
)
from ruda.jit import intrinsics, ir, shadow, surprises
from ruda.jit.ir import Array, Body, Expr, Field, Function, Statement, Text, Variable
from ruda.jit.schedule import Request, Thread, fail, publish
from ruda.jit.shadow import Access, View

Frame = list[Any]
Value = Callable[[Frame], Any]  # an expression
Step = Callable[[Frame], Any]  # a statement
BREAK, CONTINUE, RETURN = 1, 2, 3

COORDINATES = ("threadIdx", "blockIdx", "blockDim", "gridDim", "globalIdx", "globalDim")
LANE_ID, SHARED_BYTES, THREAD, FIRST = 18, 19, 20, 21  # slots of a frame, after the coordinates
_PATIENCE = 1000  # iterations of a `while` between two looks for a loop that changes nothing


# ---- operations ----


def _fast_min(x: Any, y: Any) -> Any:
    return x if x <= y else y


def _fast_max(x: Any, y: Any) -> Any:
    return x if x >= y else y


def _fast_floordiv(x: Any, y: Any) -> Any:
    return x // y if y else y


def _fast_mod(x: Any, y: Any) -> Any:
    return x % y if y else y


# Shortcuts for NumPy's own scalars: (kinds of dtype, function).
_NUMBERS = ("int", "uint", "float", "complex")
_REAL = ("int", "uint", "float")
_BITS = ("bool", "int", "uint")
FAST: dict[str, tuple[tuple[str, ...], Callable[..., Any]]] = {
    "add": (_NUMBERS, operator.add),
    "sub": (_NUMBERS, operator.sub),
    "mul": (_NUMBERS, operator.mul),
    "truediv": (("float",), operator.truediv),
    "floordiv": (("int", "uint"), _fast_floordiv),
    "mod": (("int", "uint"), _fast_mod),
    "neg": (_NUMBERS, operator.neg),
    "abs": (_REAL, operator.abs),
    "invert": (_BITS, operator.invert),
    "and": (_BITS, operator.and_),
    "or": (_BITS, operator.or_),
    "xor": (_BITS, operator.xor),
    "lt": (_REAL, operator.lt),
    "le": (_REAL, operator.le),
    "gt": (_REAL, operator.gt),
    "ge": (_REAL, operator.ge),
    "eq": (("bool", *_NUMBERS), operator.eq),
    "ne": (("bool", *_NUMBERS), operator.ne),
    "min": (("int", "uint"), _fast_min),
    "max": (("int", "uint"), _fast_max),
}


def operation(name: str, operand: DType, result: DType) -> Callable[..., Any]:
    """`intrinsics.evaluate` for one operation and dtype. Runs under `np.errstate(all="ignore")`."""
    kinds, function = FAST.get(name, ((), None))
    if function is not None and operand.kind in kinds and operand.name != "bfloat16":
        return function
    kind = result.numpy.type
    if name == "complex":
        return lambda x, y: kind(complex(float(x), float(y)))
    meaning = intrinsics.TABLE[name].meaning

    def evaluate(*operands: Any) -> Any:
        value = meaning(*operands)
        return value if type(value) is kind else kind(value)

    return evaluate


def converter(source: DType, target: DType) -> Callable[[Any], Any]:
    """`intrinsics.convert` between two dtypes."""
    kind = target.numpy.type
    if source.numpy == target.numpy:
        return lambda value: value
    if "bfloat16" not in (source.name, target.name):
        if source.kind == "float" and target.kind == "float":
            return kind
        if source.is_integer and target.is_integer:
            low, high = target.range

            def narrow(value: Any) -> Any:
                n = int(value)
                return kind(n) if low <= n <= high else intrinsics.convert(n, target)

            return narrow
        if source.is_integer and target.kind == "float" and target.bits >= 32:
            exact = 1 << 53  # beyond it, NumPy would round twice

            def to_float(value: Any) -> Any:
                n = int(value)
                return kind(n) if -exact <= n <= exact else intrinsics.convert(n, target)

            return to_float
    if source.kind == "bool" and target.kind != "bool":
        zero, one = intrinsics.convert(0, target), intrinsics.convert(1, target)
        return lambda value: one if value else zero
    return lambda value: intrinsics.convert(value, target)


def _atomic_inc(old: Any, limit: Any) -> Any:
    return old.dtype.type(0) if old >= limit else old + old.dtype.type(1)


def _atomic_dec(old: Any, limit: Any) -> Any:
    return limit if old == 0 or old > limit else old - old.dtype.type(1)


def _atomic_cas(old: Any, expected: Any, new: Any) -> Any:
    """Compares bits, as the hardware does: NaN is equal to itself, 0.0 is not -0.0."""
    return new if old.tobytes() == expected.tobytes() else old


ATOMIC_OPS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "max": np.maximum,
    "min": np.minimum,
    "nanmax": np.fmax,
    "nanmin": np.fmin,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "inc": _atomic_inc,
    "dec": _atomic_dec,
    "exch": lambda old, new: new,
    "cas": _atomic_cas,
}


# ---- closures ----


class Compiler:
    """Turns nodes into closures, and gives every name its slot in the frame."""

    def __init__(self, function: Function, checks: frozenset[str]) -> None:
        self.function = function
        self.checks = checks
        self.size = FIRST
        self.views: dict[tuple[Array, Field | None], int] = {}
        self.variables: dict[str, tuple[int, DType]] = {}
        self.global_axes: set[int] = set()  # of globalIdx, as far as they are used
        self.from_thread = surprises.thread_variables(function.body)

    def _slot(self) -> int:
        self.size += 1
        return self.size - 1

    def variable(self, variable: Variable | str) -> int:
        """The slot of a variable."""
        if isinstance(variable, str):
            return self.variables[variable][0]
        if variable.name not in self.variables:
            self.variables[variable.name] = self._slot(), variable.dtype
        return self.variables[variable.name][0]

    def view(self, array: Array, field: Field | None = None) -> int:
        """The slot of an array, or of a field of its elements."""
        if (array, field) not in self.views:
            self.views[array, field] = self._slot()
        return self.views[array, field]

    # ---- expressions ----

    def expression(self, e: Expr) -> Value:
        match e:
            case ir.Const(value, dtype):
                constant = dtype.numpy.type(value)
                return lambda frame: constant
            case ir.Read(variable):
                return self.read(variable, e.place)
            case ir.Special(name, axis):
                if name == "globalIdx":
                    self.global_axes.add(axis)
                single = {"laneid": LANE_ID, "sharedBytes": SHARED_BYTES}
                if name in single:
                    return operator.itemgetter(single[name])
                return operator.itemgetter(3 * COORDINATES.index(name) + axis)
            case ir.Extent(array, axis):
                slot = self.view(array)
                return lambda frame: frame[slot].extents[axis]
            case ir.Address():
                raise AssertionError("addresses are made for GPUs alone")
            case ir.Stride(array, axis):
                slot = self.view(array)
                return lambda frame: frame[slot].strides[axis]
            case ir.Op():
                return self.op(e)
            case ir.Cast(value, dtype):
                return self.cast(e, self.expression(value), value.dtype, dtype)
            case ir.Bitcast(value, dtype):
                inner, target = self.expression(value), dtype.numpy
                return lambda frame: inner(frame).view(target)
            case ir.Select(condition, then, otherwise):
                c, x, y = map(self.expression, (condition, then, otherwise))
                return lambda frame: x(frame) if c(frame) else y(frame)
            case ir.And(left, right):
                x, y = self.expression(left), self.expression(right)
                return lambda frame: x(frame) and y(frame)
            case ir.Or(left, right):
                x, y = self.expression(left), self.expression(right)
                return lambda frame: x(frame) or y(frame)
            case ir.Load():
                return self.load(e)

    def read(self, variable: Variable, place: Place) -> Value:
        slot = self.variable(variable)
        if "undefined" not in self.checks:
            return operator.itemgetter(slot)

        def read(frame: Frame) -> Any:
            value = frame[slot]
            if value is None:
                fail(
                    UndefinedReadError,
                    f"variable `{variable.name}` has no value here: on this thread's way, "
                    "nothing was assigned to it",
                    place,
                    frame[THREAD],
                )
            return value

        return read

    def op(self, e: ir.Op) -> Value:
        operands = [self.expression(x) for x in e.operands]
        dtype = e.operands[0].dtype
        if e.name == "wrap":
            return self.wrap(e, *operands)
        if e.name == "within":
            return self.within(e, *operands)
        if e.name == "uniform":
            return self.uniform(e, *operands)
        function = operation(e.name, dtype, e.dtype)
        if e.name in ("floordiv", "mod") and dtype.is_integer:
            function = self.division(e, function)
        elif e.name in ("shl", "shr"):
            return self.shift(e, function, *operands)
        if len(operands) == 1:
            (x,) = operands
            return lambda frame: function(x(frame))
        if len(operands) == 2:
            x, y = operands
            if e.name in ("floordiv", "mod") and dtype.is_integer:
                return lambda frame: function(x(frame), y(frame), frame)
            return lambda frame: function(x(frame), y(frame))
        return lambda frame: function(*[x(frame) for x in operands])

    def uniform(self, e: ir.Op, value: Value) -> Value:
        """A promise: each thread's first, second, ... value here is that of the others."""
        place, site = e.place, id(e)

        def uniform(frame: Frame) -> Any:
            mine, thread = value(frame), frame[THREAD]
            if thread is None:  # the prologue of a launch
                return mine
            promised = thread.block.promised
            times = promised[site, thread.linear] = promised.get((site, thread.linear), 0) + 1
            first, other = promised.setdefault((site, "value", times), (mine, thread.index))
            if first != mine and not (first != first and mine != mine):
                fail(
                    UniformError,
                    f"this value was promised to be the same in all threads of the block: it is "
                    f"{mine} here and {first} in thread {other}",
                    place,
                    thread,
                )
            return mine

        return uniform

    def division(self, e: ir.Op, function: Callable[..., Any]) -> Callable[..., Any]:
        strict, place = "division" in self.checks, e.place

        def divide(x: Any, y: Any, frame: Frame) -> Any:
            if not y:
                message = f"integer division by zero: {x} {_SIGNS[e.name]} 0"
                if strict:
                    fail(IntegerDivisionError, f"{message} (defined as 0)", place, frame[THREAD])
                _note(frame, "division", place, message)
            return function(x, y)

        return divide

    def shift(self, e: ir.Op, function: Callable[..., Any], x: Value, y: Value) -> Value:
        bits, place = e.dtype.bits, e.place

        def shift(frame: Frame) -> Any:
            value, by = x(frame), y(frame)
            if not 0 <= by < bits:
                _note(frame, "shift", place, f"a {bits}-bit integer is shifted by {by}")
            return function(value, by)

        return shift

    def cast(self, e: ir.Cast, value: Value, source: DType, target: DType) -> Value:
        function = converter(source, target)
        if not (source.kind == "float" and target.is_integer):
            return lambda frame: function(value(frame))
        (low, high), place = target.range, e.place

        def cast(frame: Frame) -> Any:
            x = value(frame)
            if not low - 1 < float(x) < high + 1:
                _note(frame, "convert", place, f"{x} is out of the range of {target}")
            return function(x)

        return cast

    def wrap(self, e: ir.Op, index: Value, extent: Value) -> Value:
        surprise = surprises.has_coordinate(e.operands[0], self.from_thread)
        place, array = e.place, surprises.name_of(e.operands[1])

        def wrap(frame: Frame) -> Any:
            i = index(frame)
            if i >= 0:
                return i
            if surprise:
                _note(frame, "wrap", place, surprises.wraps(i, array))
            return i + extent(frame)

        return wrap

    def within(self, e: ir.Op, index: Value, extent: Value) -> Value:
        """An index into a view, which must be inside it."""
        if "bounds" not in self.checks:
            return index
        place, form = e.place, surprises.form(e.operands[0])

        def within(frame: Frame) -> Any:
            i, n = index(frame), extent(frame)
            if not 0 <= i < n:
                shown = surprises.written(int(i), int(n), form)
                message = surprises.outside_view(shown, int(n))
                fail(OutOfBoundsError, message, place, frame[THREAD])
            return i

        return within

    # ---- memory ----

    def element(
        self, array: Array, indices: tuple[Expr, ...], access: Access
    ) -> Callable[[Frame], tuple[View, tuple[int, ...] | None]]:
        """The view and the indices of an access, in bounds; None where they are not, unchecked."""
        slot = self.view(array, access.field)
        values = [self.expression(i) for i in indices]
        strict = "bounds" in self.checks
        forms = tuple(surprises.form(i) for i in indices)

        def locate(frame: Frame) -> tuple[View, tuple[int, ...] | None]:
            view = frame[slot]
            found = tuple([int(v(frame)) for v in values])
            for axis, (i, n) in enumerate(zip(found, view.shape, strict=True)):
                if not 0 <= i < n:
                    if strict:
                        _out_of_bounds(view, found, forms, axis, access, frame[THREAD])
                    return view, None
            return view, found

        return locate

    def load(self, e: ir.Load) -> Value:
        access = Access("reads", e.array, e.field, e.place)
        zero = e.dtype.numpy.type(0)
        if len(e.indices) == 1:
            return self.load_1d(e, access, zero)
        locate = self.element(e.array, e.indices, access)

        def load(frame: Frame) -> Any:
            view, indices = locate(frame)
            if indices is None:
                return zero
            if view.memory is not None:
                shadow.check_read(view, indices, frame[THREAD], access)
            return view.data[indices]

        return load

    def load_1d(self, e: ir.Load, access: Access, zero: Any) -> Value:
        """The same with less work."""
        slot = self.view(e.array, e.field)
        index = self.expression(e.indices[0])
        strict = "bounds" in self.checks
        forms = (surprises.form(e.indices[0]),)

        def load(frame: Frame) -> Any:
            view = frame[slot]
            i = int(index(frame))
            if not 0 <= i < view.shape[0]:
                if strict:
                    _out_of_bounds(view, (i,), forms, 0, access, frame[THREAD])
                return zero
            if view.memory is not None:
                shadow.check_read(view, (i,), frame[THREAD], access)
            return view.data[i]

        return load

    # ---- statements ----

    def body(self, body: Body) -> tuple[Step, bool]:
        """A body as one closure, and whether it is a generator."""
        steps = [self.statement(s) for s in body]
        if not any(waits for _, waits in steps):
            plain = [step for step, _ in steps]

            def run(frame: Frame) -> Any:
                for step in plain:
                    signal = step(frame)
                    if signal is not None:
                        return signal
                return None

            return run, False

        def wait(frame: Frame) -> Generator[Request, Any, Any]:
            for step, waits in steps:
                signal = (yield from step(frame)) if waits else step(frame)
                if signal is not None:
                    return signal
            return None

        return wait, True

    def statement(self, s: Statement) -> tuple[Step, bool]:
        """A statement as a closure, and whether it is a generator."""
        match s:
            case ir.If():
                return self.branch(s)
            case ir.For():
                return self.counted_loop(s)
            case ir.While():
                return self.loop(s)
            case ir.Barrier():
                return self.barrier(s), True
            case ir.Warp():
                return self.warp(s), True
        return self.plain(s), False

    def plain(self, s: Statement) -> Step:
        match s:
            case ir.Assign(variable, value):
                slot, function = self.variable(variable), self.expression(value)

                def assign(frame: Frame) -> None:
                    frame[slot] = function(frame)

                return assign
            case ir.Store():
                return self.store(s)
            case ir.Atomic():
                return self.atomic(s)
            case ir.Declare(array):
                return self.declare(array)
            case ir.Break():
                return lambda frame: BREAK
            case ir.Continue():
                return lambda frame: CONTINUE
            case ir.Return():
                return lambda frame: RETURN
            case ir.Fence():
                return _fence
            case ir.Print(parts):
                text = self.text(parts)

                def write(frame: Frame) -> None:
                    sys.stdout.write(text(frame))

                return write
            case ir.Assert():
                return self.check(s)
            case ir.Breakpoint():
                return self.breakpoint(s.place)
        raise UnsupportedError(
            f"`{type(s).__name__.lower()}` has no meaning on the device sim", s.place
        )

    def store(self, s: ir.Store) -> Step:
        access = Access("writes", s.array, s.field, s.place)
        locate, value = self.element(s.array, s.indices, access), self.expression(s.value)

        def store(frame: Frame) -> None:
            x = value(frame)
            view, indices = locate(frame)
            if indices is None:
                return
            thread = frame[THREAD]
            if view.memory is not None:
                shadow.check_write(view, indices, thread, access, x)
            view.data[indices] = x
            thread.changes += 1

        return store

    def atomic(self, s: ir.Atomic) -> Step:
        access = Access("updates", s.array, s.field, s.place)
        locate = self.element(s.array, s.indices, access)
        operands = [self.expression(x) for x in s.operands]
        function = ATOMIC_OPS[s.op]
        slot = None if s.result is None else self.variable(s.result)

        def atomic(frame: Frame) -> None:
            values = [x(frame) for x in operands]
            view, indices = locate(frame)
            thread = frame[THREAD]
            if indices is None:
                if slot is not None:
                    frame[slot] = values[-1].dtype.type(0)
                return
            if view.memory is not None:
                if s.op == "exch":
                    shadow.define(view, indices)
                shadow.check_atomic(view, indices, thread, access)
            old = view.data[indices]
            new = function(old, *values)
            if new.tobytes() != old.tobytes():
                view.data[indices] = new
                thread.changes += 1
            if slot is not None:
                frame[slot] = old

        return atomic

    def declare(self, array: Array) -> Step:
        """A local array becomes undefined again; shared ones did when the block began."""
        if array.space == "shared":
            return lambda frame: None
        slot = self.view(array)

        def declare(frame: Frame) -> None:
            shadow.poison(frame[slot])

        return declare

    def branch(self, s: ir.If) -> tuple[Step, bool]:
        condition = self.expression(s.condition)
        (then, a), (otherwise, b) = self.body(s.then), self.body(s.otherwise)
        if not a and not b:
            if not s.otherwise:
                return lambda frame: then(frame) if condition(frame) else None, False
            return lambda frame: then(frame) if condition(frame) else otherwise(frame), False

        def wait(frame: Frame) -> Generator[Request, Any, Any]:
            arm, waits = (then, a) if condition(frame) else (otherwise, b)
            return (yield from arm(frame)) if waits else arm(frame)

        return wait, True

    def counted_loop(self, s: ir.For) -> tuple[Step, bool]:
        slot, kind = self.variable(s.variable), s.variable.dtype.numpy.type
        bounds = [self.expression(x) for x in (s.start, s.stop, s.step)]
        body, waits = self.body(s.body)

        def values(frame: Frame) -> range:
            start, stop, step = [int(x(frame)) for x in bounds]
            return range(start, stop, step) if step else range(0)

        def run(frame: Frame) -> Any:
            for i in values(frame):
                frame[slot] = kind(i)
                signal = body(frame)
                if signal is not None and signal is not CONTINUE:
                    return None if signal is BREAK else signal
            return None

        def wait(frame: Frame) -> Generator[Request, Any, Any]:
            loops = frame[THREAD].loops
            loops.append(0)
            result = None
            for i in values(frame):
                frame[slot] = kind(i)
                loops[-1] += 1
                signal = yield from body(frame)
                if signal is not None and signal is not CONTINUE:
                    result = None if signal is BREAK else signal
                    break
            loops.pop()
            return result

        return (wait, True) if waits else (run, False)

    def loop(self, s: ir.While) -> tuple[Step, bool]:
        condition = self.expression(s.condition)
        body, waits = self.body(s.body)
        place = s.place

        def run(frame: Frame) -> Any:
            thread: Thread = frame[THREAD]
            before: tuple[int, Frame] | None = None
            while condition(frame):
                signal = body(frame)
                if signal is not None and signal is not CONTINUE:
                    return None if signal is BREAK else signal
                thread.steps += 1
                if before is not None:
                    _check_progress(frame, before, place)
                    before = None
                if thread.steps % _PATIENCE == 0:
                    _check_steps(thread, place)
                    before = thread.changes, frame.copy()
            return None

        def wait(frame: Frame) -> Generator[Request, Any, Any]:
            thread: Thread = frame[THREAD]
            loops = thread.loops
            loops.append(0)
            result = None
            while condition(frame):
                loops[-1] += 1
                thread.steps += 1
                _check_steps(thread, place)
                signal = yield from body(frame)
                if signal is not None and signal is not CONTINUE:
                    result = None if signal is BREAK else signal
                    break
            loops.pop()
            return result

        return (wait, True) if waits else (run, False)

    def barrier(self, s: ir.Barrier) -> Step:
        predicate = None if s.predicate is None else self.expression(s.predicate)
        mask = None if s.mask is None else self.expression(s.mask)
        slot = None if s.result is None else self.variable(s.result)

        def wait(frame: Frame) -> Generator[Request, Any, None]:
            answer = yield Request(
                s,
                () if predicate is None else (predicate(frame),),
                None if mask is None else int(mask(frame)),
                tuple(frame[THREAD].loops),
            )
            if slot is not None:
                frame[slot] = answer

        return wait

    def warp(self, s: ir.Warp) -> Step:
        mask = None if s.mask is None or s.op == "activemask" else self.expression(s.mask)
        operands = [self.expression(x) for x in s.operands]
        slot = self.variable(s.result)

        def wait(frame: Frame) -> Generator[Request, Any, None]:
            lanes = None if mask is None else int(mask(frame))
            frame[slot] = yield Request(s, tuple([x(frame) for x in operands]), lanes)

        return wait

    def check(self, s: ir.Assert) -> Step:
        condition, text, place = self.expression(s.condition), self.text(s.message), s.place
        if "assert" not in self.checks:
            return lambda frame: None

        def check(frame: Frame) -> None:
            if not condition(frame):
                message = text(frame)
                fail(
                    KernelAssertionError,
                    f"assertion failed{': ' + message if message else ''}",
                    place,
                    frame[THREAD],
                )

        return check

    def text(self, parts: tuple[str | Text, ...]) -> Callable[[Frame], str]:
        pieces = [p if isinstance(p, str) else (self.expression(p.value), p.spec) for p in parts]

        def text(frame: Frame) -> str:
            return "".join(
                [p if isinstance(p, str) else format_value(p[0](frame), p[1]) for p in pieces]
            )

        return text

    def breakpoint(self, place: Place) -> Step:
        name, slots = self.function.name, self.variables
        for p in self.function.parameters:  # all are shown, used or not
            _ = self.view(p) if isinstance(p, Array) else self.variable(p)

        def stop(frame: Frame) -> None:
            thread: Thread = frame[THREAD]
            values = {n: frame[k] for n, (k, _) in slots.items() if frame[k] is not None}
            for (array, field), slot in self.views.items():
                if field is None:
                    values[array.name] = frame[slot].data
            values |= {"threadIdx": thread.index, "blockIdx": thread.block.index}
            stop_in_debugger(name, place, values)

        return stop


_SIGNS = {"floordiv": "//", "mod": "%"}


def _note(frame: Frame, kind: str, place: Place, message: str) -> None:
    """Something legal but suspicious, kept once a place."""
    thread: Thread | None = frame[THREAD]
    if thread is not None and (kind, place) not in thread.block.run.notes:
        thread.block.run.notes[kind, place] = (
            f"{message} (first in thread {thread.index} of block {thread.block.index})"
        )


def _out_of_bounds(
    view: View,
    indices: tuple[int, ...],
    forms: tuple[str, ...],
    axis: int,
    access: Access,
    thread: Thread,
) -> NoReturn:
    shown = [
        surprises.written(i, n, form) for i, n, form in zip(indices, view.shape, forms, strict=True)
    ]
    message = surprises.outside(access.element(shown), shown[axis], axis, view.shape)
    fail(OutOfBoundsError, message, access.place, thread)


def _fence(frame: Frame) -> None:
    frame[THREAD].released = publish(frame[THREAD])


def _check_steps(thread: Thread, place: Place) -> None:
    steps = thread.block.run.steps
    if thread.steps >= steps:
        fail(
            BarrierError,
            f"waits for ever: {thread.steps} iterations of `while` loops in one thread",
            place,
            thread,
        )


def _check_progress(frame: Frame, before: tuple[int, Frame], place: Place) -> None:
    """Raise if an iteration changed neither a variable nor memory: no other will."""
    changes, old = before
    thread: Thread = frame[THREAD]
    if changes == thread.changes and all(
        a is b or (isinstance(a, np.generic) and a == b) for a, b in zip(old, frame, strict=True)
    ):
        fail(
            BarrierError,
            "waits for ever: this loop changes nothing, so that it waits for another thread's "
            "write; threads progress together only at barriers",
            place,
            thread,
        )


def format_value(value: Any, spec: str = "") -> str:
    """A NumPy scalar as `print` and f-strings show it.

    >>> format_value(np.float32(0.1)), format_value(np.float32(0.1), ".3f")
    ('0.1', '0.100')
    """
    if value.dtype.name == "bfloat16":  # prints 1.0 as 1
        value = np.float32(value)
    return format(value.item(), spec) if spec else str(value)


def stop_in_debugger(name: str, place: Place, values: dict[str, Any]) -> None:
    """Call `breakpoint()` in a function of the kernel's name and line, with these variables."""
    name = name if name.isidentifier() else "kernel"
    names = [n for n in values if n.isidentifier()]
    source = "\n" * max(0, place.line - 1) + f"def {name}({', '.join(names)}): breakpoint()"
    scope: dict[str, Any] = {}
    exec(compile(source, place.file, "exec"), scope)
    scope[name](*[values[n] for n in names])
