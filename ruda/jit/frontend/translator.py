"""Translate a Python function and its argument types into the typed IR.

One pass walks the AST and emits IR with the variable types known so far; it is repeated until no
type changes (each variable has the promotion of all that reaches it). Variables that are still
weak then take the dtype of the stores they feed, else the default, and the walk settles again.
Device functions are inlined, views resolved, tuples taken apart: see `values`. Calls of names of
the language are handled in `calls`.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Sequence
from dataclasses import replace

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import (
    NOWHERE,
    KernelError,
    KernelNameError,
    KernelTypeError,
    Place,
    UnsupportedError,
)
from ruda.jit import ir
from ruda.jit.frontend.state import (
    EXPR,
    INDEX,
    ZERO,
    Options,
    Translation,
    Unresolved,
)
from ruda.jit.frontend.statements import Statements
from ruda.jit.passes.uniformity import check_barriers
from ruda.jit.types import (
    ArrayType,
    RecordType,
    Static,
    TupleType,
    Type,
)
from ruda.jit.values import (
    PyObject,
    RecordRef,
    TupleValue,
    Value,
    whole,
)


class Translator(Statements):
    """Translates one kernel; see the module's docstring."""

    def translate(self) -> Translation:
        """Walk until the types stand still."""
        for _ in range(64):
            before = dict(self.slots)
            unresolved = self.walk()
            if not self.dirty and unresolved is None:
                if self.settle_weak():
                    continue
                return Translation(self.finish(), self.captures)
            if unresolved is not None and self.slots == before:
                raise KernelNameError(
                    f"local variable `{unresolved.name}` is read before anything is assigned to it",
                    unresolved.place,
                )
        raise KernelTypeError(f"the types of `{self.function.__name__}` do not settle", self.where)

    def walk(self) -> Unresolved | None:
        self.start()
        self.scope = self.open_scope(self.function, "", ())
        self.where = self.place(self.scope.definition.tree)
        self.bind_parameters()
        self.statements(self.scope.definition.tree.body)
        return self.unresolved

    def settle_weak(self) -> bool:
        """Give dtypes to variables that are still weak; True if there were any."""
        changed = False
        for key, slot in list(self.slots.items()):
            if slot.kind != "scalar" or slot.dtype in (None, INDEX) or not slot.dtype.weak:
                continue
            wanted = self.wanted(key, set())
            weak = slot.dtype
            assert weak is not None
            if weak is dtypes.weak_int:
                fitting = [d for d in wanted if d.is_integer]
                chosen = self.options.default_int
                if fitting:
                    chosen = functools.reduce(dtypes.promote, fitting, dtypes.int32)
            else:
                fitting = [d for d in wanted if d.is_inexact]
                if weak is dtypes.weak_complex:
                    fitting = [d for d in fitting if d.kind == "complex"]
                chosen = dtypes.default_of(weak)
                if fitting:
                    chosen = functools.reduce(dtypes.promote, fitting)
            self.slots[key] = replace(slot, dtype=chosen)
            changed = True
        return changed

    def wanted(self, key: str, seen: set[str]) -> set[DType]:
        seen.add(key)
        out = set(self.demands.get(key, ()))
        for other in self.feeds.get(key, ()):
            if other not in seen:
                out |= self.wanted(other, seen)
        return out

    def finish(self) -> ir.Function:
        from ruda.jit.passes.cleanup import cleanup

        o = self.options
        return cleanup(
            ir.Function(
                self.scope.name,
                tuple(self.parameters),
                tuple(self.body),
                tuple(self.prologue.values()),
                tuple(self.arrays.values()),
                tuple(self.fits),
                o.block,
                o.fastmath,
                o.contract,
                o.wraparound,
                o.check,
                place=self.where,
                max_registers=o.max_registers,
            )
        )

    def bind_parameters(self) -> None:
        tree = self.scope.definition.tree
        a = tree.args
        for stars, extra in (("*", a.vararg), ("**", a.kwarg)):
            if extra is not None:
                raise UnsupportedError(
                    f"a kernel cannot take `{stars}{extra.arg}`: each parameter has a name "
                    "and a type",
                    self.place(extra),
                    hint="pass a tuple",
                )
        names = [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
        if len(names) != len(self.argument_types):
            raise KernelTypeError(
                f"`{self.scope.name}` takes {len(names)} arguments ({', '.join(names)}), "
                f"not {len(self.argument_types)}",
                self.where,
            )
        for name, kind in zip(names, self.argument_types, strict=True):
            self.initial(name, self.parameter(self.unique(name), kind, self.parameters))

    def parameter(self, name: str, kind: Type, out: list[ir.Array | ir.Variable]) -> Value:
        match kind:
            case Static(value=value):
                return self.wrap_object(value, NOWHERE)
            case TupleType(items, names, cls):
                parts = names or tuple(map(str, range(len(items))))
                values = (
                    self.parameter(self.unique(f"{name}_{p}"), t, out)
                    for p, t in zip(parts, items, strict=True)
                )
                return TupleValue(tuple(values), names, cls)
            case ArrayType(dtype, ndim, layout, readonly, aligned):
                array = ir.Array(
                    name, dtype, ndim, "global", layout, aligned=aligned, readonly=readonly
                )
                out.append(array)
                return whole(array)
            case RecordType():
                # A record scalar arrives as an array of one element.
                array = ir.Array(name, kind, 1, "global", "C", aligned=False, readonly=True)
                out.append(array)
                element = replace(whole(array), fixed=(ZERO,), axes=())
                return RecordRef(element, kind)
            case DType():
                variable = ir.Variable(name, kind)
                out.append(variable)
                return ir.Read(variable, place=self.where)
        raise AssertionError(kind)

    def initial(self, name: str, value: Value) -> None:
        """Bind a parameter: directly if the body never assigns the name, else to a variable."""
        if name in self.scope.definition.assigned:
            self.bind(name, value, self.where)
        else:
            self.scope.names[name] = value

    def inline(
        self, function: types.FunctionType, arguments: Sequence[Value], keywords: dict[str, Value],
        place: Place,
    ) -> Value:  # fmt: skip
        """Translate a device function in place of its call."""
        active = [self.function, *self.inlining]
        if function in active:
            chain = " -> ".join(f.__name__ for f in [*active[active.index(function) :], function])
            raise UnsupportedError(
                f"recursion is not in the kernel language: {chain}",
                place,
                hint="use a loop, with a ruda.local.array as the stack",
            )
        prefix = self.unique(f"{self.scope.prefix}{function.__name__}") + "."
        outer = self.scope
        inner = self.open_scope(function, prefix, (*outer.calls, place))
        inner.inlined, inner.result_key = True, prefix + ".result"
        bound = self.match_arguments(function, arguments, keywords, place)
        self.inlining.append(function)
        self.scope = inner
        try:
            with self.block() as body:
                for name, value in bound.items():
                    self.bind_argument(name, value, place)
                self.statements(inner.definition.tree.body)
                self.check_every_path_returns(body, function)
        finally:
            self.scope = outer
            self.inlining.pop()
        from ruda.jit.passes.structure_returns import eliminate_returns

        key = f"{prefix}.left"
        flag = ir.Variable(key, dtypes.bool_)
        self.body += eliminate_returns(tuple(body), flag)
        if inner.returned is None:
            return PyObject(None)
        return inner.returned

    def check_every_path_returns(
        self, body: Sequence[ir.Statement], function: types.FunctionType
    ) -> None:
        """A function that returns a value returns one wherever it ends."""
        scope = self.scope
        plain = isinstance(scope.returned, PyObject) and scope.returned.value is None
        if scope.returned is None or plain or scope.returns_last or self.unresolved is not None:
            return
        if not leaves(body):
            raise KernelTypeError(
                f"not every path of `{function.__name__}` returns a value",
                self.place(scope.definition.tree.body[-1]),
                hint="end the function with `return` and a value",
            )

    def bind_argument(self, name: str, value: Value, place: Place) -> None:
        scope = self.scope
        if name in scope.definition.assigned:
            self.bind_key_for(name, value, place)
        elif (
            isinstance(value, EXPR) and not isinstance(value, ir.Const) and not self.is_host(value)
        ):
            key = scope.prefix + name
            scope.names[name] = self.assign(key, value, place)
        else:
            scope.names[name] = self.settled(value)

    def bind_key_for(self, name: str, value: Value, place: Place) -> None:
        self.scope.names[name] = self.bind_key(self.scope.prefix + name, value, place)

    def match_arguments(
        self, function: types.FunctionType, arguments: Sequence[Value], keywords: dict[str, Value],
        place: Place,
    ) -> dict[str, Value]:  # fmt: skip
        signature = inspect.signature(function)
        try:
            bound = signature.bind(*arguments, **keywords)
        except TypeError as error:
            raise KernelTypeError(f"`{function.__name__}`: {error}", place) from None
        out: dict[str, Value] = {}
        for name, parameter in signature.parameters.items():
            if name in bound.arguments:
                value = bound.arguments[name]
                if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                    value = TupleValue(tuple(value))
                out[name] = value
            elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                out[name] = TupleValue(())
            else:
                out[name] = self.wrap_object(parameter.default, place, name)
        return out


def leaves(body: Sequence[ir.Statement]) -> bool:
    """Whether nothing comes past the end of statements: each path returns, or never ends."""
    for s in body:
        match s:
            case ir.Return() | ir.Assert(condition=ir.Const(value=False)):
                return True
            case ir.If(then=then, otherwise=otherwise) if leaves(then) and leaves(otherwise):
                return True
            case ir.While(condition=ir.Const(value=True), body=inner) if not breaks(inner):
                return True
    return False


def breaks(body: Sequence[ir.Statement]) -> bool:
    """Whether a loop's body leaves it by `break`."""
    for s in body:
        match s:
            case ir.Break():
                return True
            case ir.If(then=then, otherwise=otherwise) if breaks(then) or breaks(otherwise):
                return True
    return False


def too_deep(name: str, place: Place) -> UnsupportedError:
    """What is said of a kernel that Python's own limits cannot hold."""
    return UnsupportedError(
        f"`{name}` is nested too deeply to be compiled",
        place,
        hint="split the expression, the chain of `elif` or the nest of loops into statements "
        "or device functions",
    )


def translate(
    function: types.FunctionType, argument_types: Sequence[Type], options: Options | None = None
) -> Translation:
    """Translate a kernel for given argument types; KernelError points at what cannot be."""
    translator = Translator(function, argument_types, options or Options())
    try:
        translation = translator.translate()
        if ir.has_barrier(translation.function.body):
            check_barriers(translation.function)  # the same verdict on every device
        return translation
    except RecursionError:
        raise too_deep(function.__name__, translator.where) from None
    except KernelError as error:
        shown = ", ".join(map(str, argument_types))
        error.add_note(f"while translating kernel `{function.__name__}` with ({shown})")
        raise
