"""Expression nodes of the syntax tree -> values."""

from __future__ import annotations

import ast
import enum
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ruda import dtypes
from ruda.errors import (
    KernelTypeError,
    Place,
    UnsupportedError,
)
from ruda.jit import ir
from ruda.jit.frontend.elements import Elements
from ruda.jit.frontend.scalars import OPERATORS
from ruda.jit.frontend.source import UNSUPPORTED
from ruda.jit.frontend.state import (
    EXPR,
    FALSE,
    TRUE,
)
from ruda.jit.values import (
    ArrayRef,
    PyObject,
    RangeValue,
    TupleValue,
    Value,
    describe,
)

COORDINATES = ("threadIdx", "blockIdx", "blockDim", "gridDim")


def as_tuple(node: ast.expr) -> ast.expr:
    """A list literal that is only read stands for a tuple: `for k in [1, 2]`, `max([x, y])`."""
    if isinstance(node, ast.List):
        return ast.copy_location(ast.Tuple(node.elts, ast.Load()), node)
    return node


class Expressions(Elements):
    """One method a node type; `EXPRESSIONS` says which."""

    def value(self, node: ast.expr) -> Value:
        handler = self.EXPRESSIONS.get(type(node))
        if handler is None:
            self.unsupported(node)
        return handler(self, node)  # type: ignore[misc]

    def unsupported(self, node: ast.AST) -> Any:
        what, hint = UNSUPPORTED.get(type(node), (f"`{type(node).__name__}`", None))
        raise UnsupportedError(f"{what} is not in the kernel language", self.place(node), hint=hint)

    def scalar(self, node: ast.expr, what: str = "a number") -> ir.Expr:
        value = self.value(node)
        return self.number(value, self.place(node), what)

    def number(self, value: Value, place: Place, what: str = "a number") -> ir.Expr:
        if isinstance(value, EXPR):
            return value
        if isinstance(value, ArrayRef) and value.ndim == 0:
            return self.load(value, (), place)
        known = getattr(value.value, "__ruda_name__", "") if isinstance(value, PyObject) else ""
        hint = f"take a part of it: ruda.{known}.x" if known in COORDINATES else None
        if isinstance(value, ArrayRef):
            hint = (
                "take an element of it: `a[i]`" if value.ndim == 1 else "index it, or loop over it"
            )
        raise KernelTypeError(f"expected {what}, got {describe(value)}", place, hint=hint)

    def values(self, nodes: Sequence[ast.expr]) -> list[Value]:
        """Evaluate in order; a value is kept if a later node has effects that could change it."""
        out: list[Value] = []
        for node in nodes:
            before = len(self.body)
            value = self.value(node)
            if len(self.body) > before and any(
                not isinstance(s, (ir.Assign, ir.Declare)) or not s.variable.name.startswith(".")
                for s in self.body[before:]
                if not isinstance(s, ir.Declare)
            ):
                after = self.body[before:]
                del self.body[before:]
                out = [self.keep(v) for v in out]
                self.body += after
            out.append(value)
        return out

    def visit_constant(self, node: ast.Constant) -> Value:
        value = node.value
        if isinstance(value, (bool, int, float, complex)):
            return self.wrap_object(value, self.place(node))
        if isinstance(value, bytes):
            raise UnsupportedError("bytes are not in the kernel language", self.place(node))
        return PyObject(value)

    def visit_name(self, node: ast.Name) -> Value:
        return self.lookup(node.id, self.place(node))

    def visit_tuple(self, node: ast.Tuple) -> Value:
        return TupleValue(tuple(self.expanded(node.elts)))

    def expanded(self, nodes: Sequence[ast.expr]) -> list[Value]:
        """Values of nodes, where `*t` gives the items of a tuple."""
        if not any(isinstance(n, ast.Starred) for n in nodes):
            return self.values(nodes)
        out: list[Value] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                inner = self.value(node.value)
                if not isinstance(inner, TupleValue):
                    raise KernelTypeError(
                        f"`*` needs a tuple, not {describe(inner)}", self.place(node)
                    )
                out += inner.items
            else:
                out.append(self.value(node))
        return out

    def visit_binary(self, node: ast.BinOp) -> Value:
        if type(node.op) not in OPERATORS:
            raise UnsupportedError(
                "`@` is not in the kernel language",
                self.place(node),
                hint="write the loop, or np.dot",
            )
        left, right = self.values((node.left, node.right))
        return self.binary(node.op, left, right, self.place(node))

    def binary(
        self, op: ast.operator | ast.cmpop, left: Value, right: Value, place: Place
    ) -> Value:
        from ruda.jit import calls

        name, verb = OPERATORS[type(op)]
        special = calls.binary(self.translator, name, left, right, place)
        if special is not None:
            return special
        if not isinstance(left, EXPR) or not isinstance(right, EXPR):
            joined = "by" if verb in ("multiply", "divide", "shift", "raise") else "and"
            raise KernelTypeError(
                f"cannot {verb} {describe(left)} {joined} {describe(right)}",
                place,
                hint=self.operand_hint(left, right),
            )
        return self.operation(name, (left, right), place)

    def operand_hint(self, left: Value, right: Value) -> str | None:
        for v in (left, right):
            if isinstance(v, PyObject) and isinstance(v.value, str):
                return "numbers can be captured as constants; strings cannot"
            if isinstance(v, ArrayRef):
                return "write a loop over its elements"
            if isinstance(v, PyObject) and v.value is None:
                return "a function without `return` gives None"
        return None

    def visit_unary(self, node: ast.UnaryOp) -> Value:
        operand = self.value(node.operand)
        place = self.place(node)
        if isinstance(node.op, ast.Not):
            condition = self.truth(operand, place)
            if isinstance(condition, ir.Const):
                return FALSE if condition.value else TRUE
            return self.operation("not", (condition,), place)
        from ruda.jit import calls

        name = {ast.USub: "neg", ast.UAdd: "pos", ast.Invert: "invert"}[type(node.op)]
        special = calls.unary(self.translator, name, operand, place)
        if special is not None:
            return special
        e = self.number(operand, place)
        if name == "pos":
            return e
        if name == "invert" and e.dtype is dtypes.bool_:
            return self.operation("not", (e,), place)
        return self.operation(name, (e,), place)

    def visit_compare(self, node: ast.Compare) -> Value:
        place = self.place(node)
        among = [isinstance(op, (ast.In, ast.NotIn)) for op in node.ops]
        comparators = [
            as_tuple(n) if k else n for n, k in zip(node.comparators, among, strict=True)
        ]
        operands = self.values((node.left, *comparators))
        if len(operands) > 2:
            operands = [
                self.keep(v) if 0 < k < len(operands) - 1 else v for k, v in enumerate(operands)
            ]
        result: ir.Expr | None = None
        for op, left, right in zip(node.ops, operands, operands[1:], strict=False):
            one = self.compare(op, left, right, place)
            result = one if result is None else self.logical(ir.And, result, one, place)
        assert result is not None
        return result

    def compare(self, op: ast.cmpop, left: Value, right: Value, place: Place) -> ir.Expr:
        if isinstance(op, (ast.Is, ast.IsNot)):
            if not (isinstance(left, PyObject) or isinstance(right, PyObject)):
                raise UnsupportedError(
                    "`is` compares Python objects; kernels have numbers", place, hint="use `==`"
                )
            same = isinstance(left, PyObject) and isinstance(right, PyObject)
            same = same and left.value is right.value  # type: ignore[union-attr]
            return TRUE if same == isinstance(op, ast.Is) else FALSE
        if isinstance(op, (ast.In, ast.NotIn)):
            if isinstance(right, RangeValue):
                inside = self.in_range(self.number(left, place), right, place)
                return inside if isinstance(op, ast.In) else self.negated(inside, place)
            if not isinstance(right, TupleValue):
                raise UnsupportedError(
                    "`in` is not in the kernel language, except for tuples and `range`",
                    place,
                    hint="write a loop",
                )
            found: ir.Expr = FALSE
            for item in right.items:
                found = self.logical(ir.Or, found, self.compare(ast.Eq(), left, item, place), place)
            return found if isinstance(op, ast.In) else self.operation("not", (found,), place)
        if isinstance(left, PyObject) and isinstance(right, PyObject):
            if isinstance(op, (ast.Eq, ast.NotEq)):
                return TRUE if (left.value == right.value) == isinstance(op, ast.Eq) else FALSE
        if isinstance(left, TupleValue) and isinstance(right, TupleValue):
            if isinstance(op, (ast.Eq, ast.NotEq)):
                equal: ir.Expr = TRUE if len(left.items) == len(right.items) else FALSE
                for a, b in zip(left.items, right.items, strict=False):
                    equal = self.logical(ir.And, equal, self.compare(ast.Eq(), a, b, place), place)
                return equal if isinstance(op, ast.Eq) else self.operation("not", (equal,), place)
        result = self.binary(op, left, right, place)
        return self.number(result, place)

    def negated(self, condition: ir.Expr, place: Place) -> ir.Expr:
        if isinstance(condition, ir.Const):
            return FALSE if condition.value else TRUE
        return self.operation("not", (condition,), place)

    def in_range(self, x: ir.Expr, r: RangeValue, place: Place) -> ir.Expr:
        """`x in range(start, stop, step)`, with a step known when the kernel is compiled."""
        step = r.step
        if not isinstance(step, ir.Const) or step.value == 0 or x.dtype.kind not in ("int", "uint"):
            raise UnsupportedError(
                "`in range(...)` takes an integer, and a constant step", place,
                hint="compare with the bounds: `start <= x < stop`",
            )  # fmt: skip
        x = self.temporary(x)
        low, high = ("ge", "lt") if step.value > 0 else ("le", "gt")
        tests = [self.operation(low, (x, r.start), place), self.operation(high, (x, r.stop), place)]
        if abs(step.value) != 1:
            distance = self.operation("sub", (x, r.start), place)
            rest = self.operation("mod", (distance, step), place)
            tests.append(self.operation("eq", (rest, ir.Const(0, dtypes.weak_int)), place))
        inside: ir.Expr = TRUE
        for test in tests:
            inside = self.logical(ir.And, inside, test, place)
        return inside

    def visit_bool(self, node: ast.BoolOp) -> Value:
        kind = ir.And if isinstance(node.op, ast.And) else ir.Or
        place = self.place(node)
        result = self.value(node.values[0])
        for item in node.values[1:]:
            condition = self.truth(result, place)
            if isinstance(condition, ir.Const):
                if bool(condition.value) == (kind is ir.Or):
                    return result
                result = self.value(item)
                continue
            with self.block() as prelude:
                right = self.value(item)
            right_bool = isinstance(right, EXPR) and right.dtype is dtypes.bool_
            left_bool = isinstance(result, EXPR) and result.dtype is dtypes.bool_
            if left_bool and right_bool and not prelude:
                result = self.logical(kind, condition, right, place)  # type: ignore[arg-type]
                continue
            key = f".{self.unique('either')}"
            bound = self.bind_key(key, result, place)
            condition = self.truth(bound, place)
            if kind is ir.Or:
                condition = self.operation("not", (condition,), place)
            with self.block() as then:
                then += prelude
                result = self.bind_key(key, right, place)
            self.emit(ir.If(condition, tuple(then), place=place))
        return result

    def visit_conditional(self, node: ast.IfExp) -> Value:
        place = self.place(node)
        condition = self.truth(self.value(node.test), self.place(node.test))
        if isinstance(condition, ir.Const):
            return self.value(node.body if condition.value else node.orelse)
        with self.block() as first:
            then = self.value(node.body)
        with self.block() as second:
            otherwise = self.value(node.orelse)
        if isinstance(then, EXPR) and isinstance(otherwise, EXPR) and not first and not second:
            if not any(isinstance(e, ir.Load) for v in (then, otherwise) for e in ir.walk(v)):
                return self.select(condition, then, otherwise, place)
        key = f".{self.unique('choice')}"
        with self.block() as body:
            body += first
            self.bind_key(key, then, place)
        with self.block() as other:
            other += second
            result = self.bind_key(key, otherwise, place)
        self.emit(ir.If(condition, tuple(body), tuple(other), place=place))
        return result

    def visit_walrus(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        assert isinstance(node.target, ast.Name)
        self.bind(node.target.id, value, self.place(node))
        return self.lookup(node.target.id, self.place(node))

    def visit_attribute(self, node: ast.Attribute) -> Value:
        owner = self.value(node.value)
        if node.attr == "value" and isinstance(node.value, ast.Attribute):
            match self.value(node.value.value):
                case PyObject(enum.EnumMeta()):
                    return owner  # a member stands for its value already
        from ruda.jit import calls

        return calls.attribute(self.translator, owner, node.attr, self.place(node))

    def visit_subscript(self, node: ast.Subscript) -> Value:
        owner = self.value(node.value)
        from ruda.jit import calls

        index = self.index_values(node.slice)
        return calls.subscript(self.translator, owner, index, self.place(node))

    def index_values(self, node: ast.expr) -> list[Value | slice]:
        nodes = node.elts if isinstance(node, ast.Tuple) else [node]
        out: list[Value | slice] = []
        for n in nodes:
            if isinstance(n, ast.Slice):
                parts = [None if p is None else self.value(p) for p in (n.lower, n.upper, n.step)]
                out.append(slice(*parts))
            elif isinstance(n, ast.Starred):
                out += self.expanded([n])
            else:
                value = self.value(n)
                if isinstance(value, TupleValue) and not isinstance(node, ast.Tuple):
                    out += value.items
                else:
                    out.append(value)
        return out

    def visit_call(self, node: ast.Call) -> Value:
        from ruda.jit import calls

        return calls.call(self.translator, node)

    EXPRESSIONS: ClassVar[dict[type, Callable[[Any, Any], Value]]] = {
        ast.Constant: visit_constant,
        ast.Name: visit_name,
        ast.Tuple: visit_tuple,
        ast.BinOp: visit_binary,
        ast.UnaryOp: visit_unary,
        ast.Compare: visit_compare,
        ast.BoolOp: visit_bool,
        ast.IfExp: visit_conditional,
        ast.NamedExpr: visit_walrus,
        ast.Attribute: visit_attribute,
        ast.Subscript: visit_subscript,
        ast.Call: visit_call,
    }
