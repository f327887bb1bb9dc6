"""Statement nodes of the syntax tree -> IR statements."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from ruda import dtypes
from ruda.dtypes import as_dtype
from ruda.errors import (
    DTypeError,
    KernelTypeError,
    KernelValueError,
    Place,
    UnsupportedError,
)
from ruda.jit import ir
from ruda.jit.frontend.expressions import Expressions, as_tuple
from ruda.jit.frontend.state import (
    EXPR,
    FALSE,
    INDEX,
    TRUE,
    LoopContext,
    Slot,
    Unresolved,
)
from ruda.jit.values import (
    ArrayRef,
    PyObject,
    RangeValue,
    TupleValue,
    Value,
    describe,
)


class Statements(Expressions):
    """One method a node type; `STATEMENTS` says which."""

    def statements(self, body: Sequence[ast.stmt]) -> None:
        for s in body:
            handler = self.STATEMENTS.get(type(s))
            if handler is None:
                self.unsupported(s)
            before, mark, outer = self.body, len(self.body), self.at
            self.at = self.place(s)
            try:
                handler(self, s)  # type: ignore[misc]
            except Unresolved as missing:
                self.body = before
                del self.body[mark:]
                self.unresolved = self.unresolved or missing
                self.dirty = True
            finally:
                self.at = outer

    def visit_assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        place = self.place(node)
        if isinstance(node.value, ast.Call) and value == PyObject(None):
            raise KernelTypeError(
                f"`{ast.unparse(node.value.func)}` returns nothing that could be assigned",
                self.place(node.value),
                hint="let it end with `return` and a value",
            )
        if len(node.targets) > 1 and isinstance(value, EXPR):
            value = self.temporary(value)
        for target in node.targets:
            self.assign_target(target, value, place)

    def visit_annotated(self, node: ast.AnnAssign) -> None:
        if node.value is None:
            return
        value = self.value(node.value)
        kind = (
            self.value(node.annotation) if not isinstance(node.annotation, ast.Constant) else None
        )
        if isinstance(kind, PyObject) and isinstance(value, EXPR):
            with contextlib.suppress(DTypeError):
                value = self.cast(value, as_dtype(kind.value), self.place(node))
        self.assign_target(node.target, value, self.place(node))

    def assign_target(self, target: ast.expr, value: Value, place: Place) -> None:
        from ruda.jit import calls

        match target:
            case ast.Name(id=name):
                self.bind(name, value, place)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                if isinstance(value, ArrayRef):
                    value = calls.unpack(self.translator, value, place)
                if not isinstance(value, TupleValue):
                    raise KernelTypeError(f"cannot unpack {describe(value)}", place)
                starred = [k for k, e in enumerate(elements) if isinstance(e, ast.Starred)]
                if starred:
                    raise UnsupportedError(
                        "`*` in an assignment is not in the kernel language",
                        self.place(elements[starred[0]]),
                        hint="slice the tuple: `first, rest = t[0], t[1:]`",
                    )
                if len(value.items) != len(elements):
                    raise KernelTypeError(
                        f"cannot unpack a tuple of {len(value.items)} into {len(elements)} names",
                        place,
                    )
                items = [self.keep(v) for v in value.items] if len(elements) > 1 else value.items
                for element, item in zip(elements, items, strict=True):
                    self.assign_target(element, item, place)
            case ast.Subscript(value=owner, slice=index):
                array = self.value(owner)
                calls.assign_subscript(
                    self.translator, array, self.index_values(index), value, self.place(target)
                )
            case ast.Attribute(value=owner, attr=name):
                calls.assign_attribute(
                    self.translator, self.value(owner), name, value, self.place(target)
                )
            case _:
                self.unsupported(target)

    def visit_augmented(self, node: ast.AugAssign) -> None:
        from ruda.jit import calls

        place = self.place(node)
        match node.target:
            case ast.Name(id=name):
                left = self.lookup(name, self.place(node.target))
                right = self.value(node.value)
                if isinstance(left, ArrayRef) and left.ndim:
                    calls.assign_view(
                        self.translator, left, self.binary(node.op, left, right, place), place
                    )
                    return
                self.bind(name, self.binary(node.op, left, right, place), place)
            case ast.Subscript(value=owner, slice=index):
                array = self.value(owner)
                at = [
                    self.settled(i) if not isinstance(i, slice) else i
                    for i in self.index_values(index)
                ]
                left = calls.subscript(self.translator, array, at, self.place(node.target))
                right = self.value(node.value)
                result = self.binary(node.op, left, right, place)
                calls.assign_subscript(self.translator, array, at, result, self.place(node.target))
            case ast.Attribute(value=owner, attr=name):
                record = self.settled(self.value(owner))
                left = calls.attribute(self.translator, record, name, self.place(node.target))
                right = self.value(node.value)
                result = self.binary(node.op, left, right, place)
                calls.assign_attribute(
                    self.translator, record, name, result, self.place(node.target)
                )
            case _:
                self.unsupported(node.target)

    def visit_if(self, node: ast.If) -> None:
        place = self.place(node.test)
        condition = self.truth(self.value(node.test), place)
        if isinstance(condition, ir.Const):
            self.statements(node.body if condition.value else node.orelse)
            return
        with self.block() as then:
            self.statements(node.body)
        with self.block() as otherwise:
            self.statements(node.orelse)
        self.emit(ir.If(condition, tuple(then), tuple(otherwise), place=place))

    def visit_while(self, node: ast.While) -> None:
        place = self.place(node)
        broke = self.broke_flag(node, place)
        self.scope.loops.append(LoopContext(broke))
        with self.block() as prelude:
            condition = self.truth(self.value(node.test), self.place(node.test))
        if isinstance(condition, ir.Const) and not condition.value:
            self.scope.loops.pop()
            self.body += prelude
            self.statements(node.orelse)
            return
        with self.block() as body:
            if prelude:
                stop = self.operation("not", (condition,), place)
                body += [*prelude, ir.If(stop, (ir.Break(place=place),), place=place)]
            self.statements(node.body)
        self.scope.loops.pop()
        test = TRUE if prelude else condition
        self.emit(ir.While(test, tuple(body), place=place))
        self.loop_else(node, broke, place)

    def broke_flag(self, node: ast.For | ast.While, place: Place) -> ir.Variable | None:
        """A variable that says whether `break` left the loop, if its `else` must know."""
        if not node.orelse:
            return None
        key = f".{self.unique('broke')}"
        flag = self.assign(key, FALSE, place)
        assert isinstance(flag, ir.Read)
        return flag.variable

    def loop_else(self, node: ast.For | ast.While, broke: ir.Variable | None, place: Place) -> None:
        if broke is None:
            return
        with self.block() as body:
            self.statements(node.orelse)
        test = ir.Op("not", (ir.Read(broke),), dtypes.bool_, place=place)
        self.emit(ir.If(test, tuple(body), place=place))

    def visit_for(self, node: ast.For) -> None:
        from ruda.jit import calls

        iterable = self.value(as_tuple(node.iter))
        place = self.place(node)
        broke = self.broke_flag(node, place)
        calls.iterate(self.translator, node, iterable, broke, place)
        self.loop_else(node, broke, place)

    def range_loop(
        self, node: ast.For, r: RangeValue, broke: ir.Variable | None, place: Place,
        bind: Callable[[ir.Expr], None] | None = None,
    ) -> None:  # fmt: skip
        """A counted loop; `bind` gives the targets their values from the counter."""
        start, stop, step = (self.coerce(e, INDEX) for e in (r.start, r.stop, r.step))
        if not isinstance(step, ir.Const):
            step = self.temporary(step, "step")
        elif step.value == 0:
            raise KernelValueError("range() with a step of 0", place)
        name = node.target.id if isinstance(node.target, ast.Name) else "k"
        counter = ir.Variable(f".{self.unique(self.scope.prefix + name)}", INDEX)
        self.scope.loops.append(LoopContext(broke))
        with self.block() as body:
            read = ir.Read(counter, place=self.place(node.target))
            if bind is not None:
                bind(read)
            elif isinstance(node.target, ast.Name) and self.counter_is_enough(node):
                self.scope.names[node.target.id] = read
                key = self.scope.prefix + node.target.id
                if key not in self.slots:
                    self.slots[key] = Slot("object", None, read, place)
            else:
                self.assign_target(node.target, read, place)
            self.statements(node.body)
        self.scope.loops.pop()
        self.emit(ir.For(counter, start, stop, step, tuple(body), place=place))

    def counter_is_enough(self, node: ast.For) -> bool:
        """The loop variable is read only inside the loop and assigned by it alone."""
        assert isinstance(node.target, ast.Name)
        name = node.target.id
        inside = {id(n) for s in node.body for n in ast.walk(s)}
        for n in ast.walk(self.scope.definition.tree):
            if isinstance(n, ast.Name) and n.id == name and n is not node.target:
                if isinstance(n.ctx, ast.Store) and id(n) in inside:
                    return False
                if isinstance(n.ctx, ast.Load) and id(n) not in inside:
                    if not self.inside_other_loop(node, n, name):
                        return False
        return True

    def inside_other_loop(self, node: ast.For, use: ast.Name, name: str) -> bool:
        """Whether a use lies in the body of another loop that has the same variable, and that is
        not around this one: there it would read what this loop left."""
        for other in ast.walk(self.scope.definition.tree):
            if isinstance(other, ast.For) and other is not node:
                if isinstance(other.target, ast.Name) and other.target.id == name:
                    inside = [n for s in other.body for n in ast.walk(s)]
                    if any(n is use for n in inside) and not any(n is node for n in inside):
                        return True
        return False

    def unrolled_loop(
        self, node: ast.For, items: Sequence[Value], broke: ir.Variable | None, place: Place
    ) -> None:
        """One copy of the body an item. A body with `break` or `continue` becomes a loop of one
        round."""
        leaves = self.has_jump(node.body)
        self.unrolled += len(items) * sum(1 for s in node.body for _ in ast.walk(s))
        gone: ir.Variable | None = None
        if leaves:
            flag = self.assign(f".{self.unique('left')}", FALSE, place)
            assert isinstance(flag, ir.Read)
            gone = flag.variable
        for item in items:
            if gone is None:
                self.scope.loops.append(LoopContext(broke))
                self.bind_round(node, node.target, item, place)
                self.statements(node.body)
                self.scope.loops.pop()
                continue
            self.scope.loops.append(LoopContext(broke, unrolled=True))
            with self.block() as body:
                self.bind_round(node, node.target, item, place)
                with self.leaving(gone):
                    self.statements(node.body)
                body.append(ir.Break(place=place))
            self.scope.loops.pop()
            test = ir.Op("not", (ir.Read(gone),), dtypes.bool_, place=place)
            once = ir.While(TRUE, tuple(body), place=place)
            self.emit(ir.If(test, (once,), place=place))

    def bind_round(self, node: ast.For, target: ast.expr, item: Value, place: Place) -> None:
        """The target of an unrolled loop stands for the item itself where nothing else assigns
        it, or only loops that read it inside."""
        match target, item:
            case ast.Name(id=name), _ if self.scope.definition.assigned[name] == 2 or (
                target is node.target and self.counter_is_enough(node)
            ):
                self.scope.names[name] = self.keep(item)
                self.remember(self.scope.prefix + name, item, place, once=False)
            case ast.Tuple(elts=names), TupleValue(items=items) if len(names) == len(items):
                for one, part in zip(names, items, strict=True):
                    self.bind_round(node, one, part, place)
            case _:
                self.assign_target(target, item, place)

    @contextlib.contextmanager
    def leaving(self, gone: ir.Variable) -> Iterator[None]:
        outer, self.gone = self.gone, gone
        yield
        self.gone = outer

    def has_jump(self, body: Sequence[ast.stmt]) -> bool:
        """Whether `break` or `continue` of this loop stands in its body."""
        for s in body:
            if isinstance(s, (ast.Break, ast.Continue)):
                return True
            if isinstance(s, ast.If) and (self.has_jump(s.body) or self.has_jump(s.orelse)):
                return True
            if isinstance(s, (ast.For, ast.While)) and self.has_jump(s.orelse):
                return True
        return False

    def visit_break(self, node: ast.Break) -> None:
        loop = self.scope.loops[-1]
        place = self.place(node)
        if loop.broke is not None:
            self.emit(ir.Assign(loop.broke, TRUE, place=place))
        if loop.unrolled:
            assert self.gone is not None
            self.emit(ir.Assign(self.gone, TRUE, place=place))
        self.emit(ir.Break(place=place))

    def visit_continue(self, node: ast.Continue) -> None:
        if self.scope.loops[-1].unrolled:
            self.emit(ir.Break(place=self.place(node)))
        else:
            self.emit(ir.Continue(place=self.place(node)))

    def visit_return(self, node: ast.Return) -> None:
        place = self.place(node)
        value = PyObject(None) if node.value is None else self.value(node.value)
        scope = self.scope
        if not scope.inlined:
            if not (isinstance(value, PyObject) and value.value is None):
                raise KernelTypeError(
                    "a kernel returns nothing", place, hint="store the result in an array argument"
                )
            self.emit(ir.Return(place=place))
            return
        last = scope.definition.tree.body[-1]
        if node is last and scope.result_key not in self.slots:
            scope.returned = value  # the only way out: the value itself, uncommitted
            scope.returns_last = True
            return
        scope.returned = self.bind_key(scope.result_key, value, place)
        self.emit(ir.Return(place=place))

    def visit_expression(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring or `...`
        value = self.value(node.value)
        if isinstance(value, PyObject) and isinstance(node.value, (ast.Name, ast.Attribute)):
            written = ast.unparse(node.value)
            if callable(value.value):
                raise KernelTypeError(
                    f"`{written}` alone does nothing",
                    self.place(node.value),
                    hint=f"call it: `{written}()`",
                )

    def visit_pass(self, node: ast.Pass) -> None:
        pass

    def visit_assert(self, node: ast.Assert) -> None:
        from ruda.jit import calls

        place = self.place(node)
        condition = self.truth(self.value(node.test), self.place(node.test))
        message = () if node.msg is None else calls.text_parts(self.translator, [node.msg])
        self.emit(ir.Assert(condition, tuple(message), place=place))

    STATEMENTS: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        ast.Assign: visit_assign,
        ast.AnnAssign: visit_annotated,
        ast.AugAssign: visit_augmented,
        ast.If: visit_if,
        ast.While: visit_while,
        ast.For: visit_for,
        ast.Break: visit_break,
        ast.Continue: visit_continue,
        ast.Return: visit_return,
        ast.Expr: visit_expression,
        ast.Pass: visit_pass,
        ast.Assert: visit_assert,
    }
