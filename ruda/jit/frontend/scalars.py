"""Numbers: conversion, promotion, folding of constants, weak values, and their variables."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import (
    KernelTypeError,
    KernelValueError,
    Place,
)
from ruda.jit import intrinsics, ir
from ruda.jit.frontend.state import (
    EXPR,
    FALSE,
    INDEX,
    TRUE,
    Slot,
    State,
)
from ruda.jit.values import (
    ArrayRef,
    PyObject,
    TupleValue,
    Value,
    describe,
)

OPERATORS: dict[type, tuple[str, str]] = {
    ast.Add: ("add", "add"), ast.Sub: ("sub", "subtract"), ast.Mult: ("mul", "multiply"),
    ast.Div: ("truediv", "divide"), ast.FloorDiv: ("floordiv", "floor-divide"),
    ast.Mod: ("mod", "take the remainder of"), ast.Pow: ("pow", "raise"),
    ast.BitAnd: ("and", "take & of"), ast.BitOr: ("or", "take | of"),
    ast.BitXor: ("xor", "take ^ of"), ast.LShift: ("shl", "shift"), ast.RShift: ("shr", "shift"),
    ast.Lt: ("lt", "compare"), ast.LtE: ("le", "compare"), ast.Gt: ("gt", "compare"),
    ast.GtE: ("ge", "compare"), ast.Eq: ("eq", "compare"), ast.NotEq: ("ne", "compare"),
}  # fmt: skip

_WEAK = {bool: dtypes.bool_, int: dtypes.weak_int, float: dtypes.weak_float}

# What Python does, where it does something: 10**-3 is a float.
_WEAK_INT: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "floordiv": lambda x, y: x // y if y else 0,
    "mod": lambda x, y: x % y if y else 0,
    "pow": lambda x, y: x**y if y >= 0 or x else math.inf,
    "neg": lambda x: -x,
    "abs": abs,
    "invert": lambda x: ~x,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "shl": lambda x, y: x << y if 0 <= y < 4096 else 0,
    "shr": lambda x, y: x >> max(y, 0),
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "min": min,
    "max": max,
}


class Scalars(State):
    """Operations on scalar expressions; a table row decides the types."""

    def temporary(self, value: ir.Expr, name: str = "t") -> ir.Expr:
        """Compute once, here. Weak values stay weak in the variable's slot."""
        if isinstance(value, (ir.Const, ir.Special, ir.Extent, ir.Stride)) or self.is_host(value):
            return value
        dtype = value.dtype
        if not dtype.weak or dtype is INDEX:  # assigned here alone: nothing to be joined
            variable = ir.Variable(f".{self.unique(name)}", dtype)
            self.emit(ir.Assign(variable, value, place=value.place))
            return ir.Read(variable, place=value.place)
        return self.assign(f".{self.unique(f'{name}.{dtype}')}", value, value.place)

    def assign(self, key: str, value: ir.Expr, place: Place) -> ir.Expr:
        """`key = value` for a scalar; the variable's dtype grows by promotion."""
        slot = self.slots.get(key)
        if slot is not None and slot.kind == "object":
            slot = None
        if slot is not None and slot.kind != "scalar":
            self.mixed(key, slot, value, place)
        dtype = value.dtype if slot is None else dtypes.promote(slot.dtype, value.dtype)  # type: ignore[arg-type]
        if slot is None or dtype is not slot.dtype:
            self.slots[key] = Slot("scalar", dtype, None, slot.place if slot else place)
            self.dirty = True
        variable = self.variable(key, dtype)
        if dtype.weak and dtype is not INDEX:
            for e in ir.walk(value):
                if isinstance(e, ir.Read) and e.variable.dtype.weak:
                    self.feeds.setdefault(e.variable.name, set()).add(variable.name)
        self.emit(ir.Assign(variable, self.coerce(value, dtype, feeds=True), place=place))
        return ir.Read(variable, place=place)

    def variable(self, key: str, dtype: DType) -> ir.Variable:
        return ir.Variable(key, dtype)

    def mixed(self, key: str, slot: Slot, value: Any, place: Place) -> None:
        name = key.rsplit(".", 1)[-1]
        what = slot.value if slot.kind == "array" else slot.kind
        raise KernelTypeError(
            f"`{name}` is {what if isinstance(what, str) else describe(what)} at line "
            f"{slot.place.line} and {describe(value)} here: a variable has one type",
            place,
            hint="use two names",
        )

    def is_host(self, e: ir.Expr) -> bool:
        """Made of weak parameters and literals alone: computed once, on the host, in double."""
        return (
            all(
                isinstance(x, (ir.Const, ir.Op, ir.Cast, ir.Select, ir.And, ir.Or))
                or (isinstance(x, ir.Read) and x.variable in self.parameters)
                for x in ir.walk(e)
            )
            and any(isinstance(x, ir.Read) and x.variable.dtype.weak for x in ir.walk(e))
        ) or (isinstance(e, ir.Const))

    def coerce(self, e: ir.Expr, dtype: DType, *, feeds: bool = False) -> ir.Expr:
        """The value at a dtype: constants are converted now, weak expressions are computed at
        it."""
        have = e.dtype
        if feeds and have.weak and have is not INDEX:
            for x in ir.walk(e):
                if isinstance(x, ir.Read) and x.variable.dtype.weak and not dtype.weak:
                    self.demands.setdefault(x.variable.name, set()).add(dtype)
        if have is dtype:
            return e
        if isinstance(e, ir.Const):
            return self.constant(e.value, have, dtype, e.place)
        if have.weak and have is not INDEX:
            if dtype.weak and dtype is not INDEX:  # still of the host, until something needs it
                return ir.Cast(e, dtype, place=e.place)
            if self.is_host(e):
                return self.host_scalar(e, dtype)
            if isinstance(e, ir.Cast):  # on its way: an index that met a float literal
                return self.coerce(e.value, dtype)
            if have is not dtypes.weak_int and dtype.is_inexact and isinstance(e, ir.Op):
                if not (have.kind == "complex" and dtype.kind != "complex"):
                    operands = tuple(self.coerce(o, dtype) for o in e.operands)
                    if all(o.dtype is dtype for o in operands):
                        return replace(e, operands=operands, dtype=dtype)
            if isinstance(e, ir.Select) and (have is dtypes.weak_int or dtype.is_inexact):
                return replace(
                    e, then=self.coerce(e.then, dtype), otherwise=self.coerce(e.otherwise, dtype)
                )
            if have is dtypes.weak_int and dtype is INDEX and isinstance(e, ir.Op):
                return replace(
                    e, operands=tuple(self.coerce(o, INDEX) for o in e.operands), dtype=INDEX
                )
            strong = dtypes.default_of(have)
            if have is dtypes.weak_int:
                strong = INDEX
            if strong is not dtype:
                e = self.coerce(e, strong)
                return e if e.dtype is dtype else ir.Cast(e, dtype, place=e.place)
        if have.kind == "complex" and dtype.kind != "complex":
            raise KernelTypeError(
                f"{describe(e)} does not convert to {dtype}", e.place, hint="take `.real` or `abs`"
            )
        return ir.Cast(e, dtype, place=e.place)

    def constant(self, value: Any, have: DType, dtype: DType, place: Place) -> ir.Const:
        if dtype.weak and dtype is not INDEX:
            kind: Any = {"weak_int": int, "weak_float": float, "weak_complex": complex}[dtype.name]
            return ir.Const(kind(value), dtype, place=place)
        if have.kind == "complex" and dtype.kind != "complex":
            raise KernelTypeError(
                f"a complex number does not convert to {dtype}", place, hint="take `.real`"
            )
        if have is dtypes.weak_int and (dtype.is_integer or dtype is INDEX):
            low, high = (dtypes.int64 if dtype is INDEX else dtype).range
            if not low <= value <= high:
                raise KernelValueError(
                    f"{value} does not fit {dtype} ({low} to {high})",
                    place,
                    hint=f"convert explicitly, for example `ruda.{dtype}(...)`, to wrap around",
                )
            return ir.Const(int(value), dtype, place=place)
        return self.cast_constant(value, dtype, place)

    def cast_constant(self, value: Any, dtype: DType, place: Place) -> ir.Const:
        converted = intrinsics.convert(value, dtypes.int64 if dtype is INDEX else dtype)
        plain = converted.item() if dtype.name != "bfloat16" else float(converted)
        return ir.Const(plain, dtype, place=place)

    def cast(self, value: ir.Expr, dtype: DType, place: Place) -> ir.Expr:
        """An explicit conversion: constants wrap and saturate as at run time."""
        if isinstance(value, ir.Const) and not (
            value.dtype.kind == "complex" and dtype.kind != "complex"
        ):
            return self.cast_constant(value.value, dtype, place)
        if isinstance(value, ir.Read) and value.dtype is dtypes.weak_int and dtype.is_integer:
            value = self.coerce(value, INDEX)  # wraps, does not need to fit
        result = self.coerce(value, dtype)
        return result

    def host_scalar(self, e: ir.Expr, dtype: DType) -> ir.Expr:
        """An expression of weak parameters at a dtype, as a prologue variable."""
        key = (e, dtype)
        if key not in self.prologue:
            base = e.variable.name if isinstance(e, ir.Read) else "scalar"
            variable = ir.Variable(self.unique(f"{base}_{dtype.short}"), dtype)
            self.prologue[key] = ir.Assign(
                variable, ir.Cast(e, dtype, place=e.place), place=e.place
            )
            if (
                e.dtype is dtypes.weak_int
                and dtype.is_integer
                and dtype is not INDEX
                and dtype.bits < 64
            ):
                if isinstance(e, ir.Read):
                    self.fits[e.variable, dtype] = None
            elif isinstance(e, ir.Read) and dtype is dtypes.uint64:
                self.fits[e.variable, dtype] = None
        return ir.Read(self.prologue[key].variable, place=e.place)

    def strong(self, e: ir.Expr) -> ir.Expr:
        """The value with a committed dtype (index counts as one)."""
        if e.dtype is INDEX or not e.dtype.weak:
            return e
        if e.dtype is dtypes.weak_int:
            return self.coerce(e, INDEX)
        return self.coerce(e, dtypes.default_of(e.dtype))

    def as_index(self, e: ir.Expr, what: str = "an index") -> ir.Expr:
        if not (e.dtype.is_integer or e.dtype is INDEX):
            hint = "use `int(...)` or `//`" if e.dtype.kind == "float" else None
            raise KernelTypeError(
                f"{what} must be an integer, not {describe(e)}", e.place, hint=hint
            )
        return self.coerce(e, INDEX)

    def truth(self, value: Value, place: Place) -> ir.Expr:
        if isinstance(value, TupleValue):
            return TRUE if value.items else FALSE
        if isinstance(value, PyObject) and (value.value is None or isinstance(value.value, str)):
            return TRUE if value.value else FALSE
        if not isinstance(value, EXPR):
            raise KernelTypeError(
                f"{describe(value)} has no truth value",
                place,
                hint="test an element, or `.size`" if isinstance(value, ArrayRef) else None,
            )
        if value.dtype is dtypes.bool_:
            return value
        if isinstance(value, ir.Const):
            return TRUE if value.value else FALSE
        return self.operation("ne", (value, ir.Const(0, dtypes.weak_int)), place)

    def operation(self, name: str, operands: Sequence[ir.Expr], place: Place) -> ir.Expr:
        """A row of the table on operands of any dtypes: promote, fold, build."""
        row = intrinsics.TABLE[name]
        kinds = tuple(o.dtype for o in operands)
        common = intrinsics.operand_dtype(row, kinds)
        if common is None:
            verb = {v[0]: v[1] for v in OPERATORS.values()}.get(name, f"take {name} of")
            names = " and ".join(describe(o) for o in operands)
            hint = "use `x >= 0 and ...` on its parts" if row.rule == "order" else None
            if name in ("and", "or", "xor", "invert", "shl", "shr"):
                hint = "bit operations need integers"
            raise KernelTypeError(f"cannot {verb} {names}", place, hint=hint)
        if name in ("fmin", "fmax") and common.is_integer:  # no integer is a NaN
            return self.operation(name[1:], operands, place)
        known = all(isinstance(o, ir.Const) for o in operands)
        if name == "pow" and common.is_integer and not (known and common is dtypes.weak_int):
            self.refuse_negative_power(operands[0], operands[1], place)
        if known:
            return self.fold(name, row, operands, common, place)
        if name in ("add", "sub", "mul") and common.is_integer:
            simple = self.simplify(name, operands, common)
            if simple is not None:
                return simple
        if common.weak and common is not INDEX and any(not k.weak for k in kinds):
            # A bool meets a literal: as narrow as arithmetic gets.
            common = dtypes.int32 if common is dtypes.weak_int else dtypes.default_of(common)
        if name == "pow":
            power = self.power(operands, common, place)
            if power is not None:
                return power
        if row.rule in ("compare", "order") and common.weak and common is not INDEX:
            if not all(self.is_host(o) for o in operands):
                common = INDEX if common is dtypes.weak_int else dtypes.default_of(common)
        if row.rule in ("count", "integer") and common.weak:
            common = INDEX if common is INDEX else dtypes.int64
            common = dtypes.int64
        if row.rule == "test" and common.weak and not all(self.is_host(o) for o in operands):
            common = dtypes.default_of(common)
        if common is dtypes.uint64 and row.rule in ("order", "compare"):
            mixed = self.compare_unsigned(name, operands, place)
            if mixed is not None:
                return mixed
        second = dtypes.int32 if row.rule == "scale" else common
        converted = tuple(
            self.coerce(o, common if k == 0 else second) for k, o in enumerate(operands)
        )
        result = intrinsics.result_dtype(row, common)
        expression = ir.Op(name, converted, result, place=place)
        if (
            result is dtypes.bool_ and common.weak and common is not INDEX
        ):  # a comparison of weak parameters: decided once, on the host
            return self.host_scalar(expression, dtypes.bool_)
        return expression

    def compare_unsigned(
        self, name: str, operands: Sequence[ir.Expr], place: Place
    ) -> ir.Expr | None:
        """uint64 against a signed integer: a negative number is less than all."""
        x, y = operands
        signed = next(
            (o for o in operands if o.dtype.kind == "int" and not isinstance(o, ir.Const)), None
        )
        if signed is None:
            return None
        pinned = self.temporary(self.strong(signed))
        x, y = (pinned if o is signed else o for o in (x, y))
        u64 = dtypes.uint64
        both = ir.Op(name, (self.coerce(x, u64), self.coerce(y, u64)), dtypes.bool_, place=place)
        negative = self.operation("lt", (pinned, ir.Const(0, dtypes.weak_int)), place)
        less = signed is operands[0]
        answer = {"lt": less, "le": less, "gt": not less, "ge": not less, "eq": False, "ne": True}[
            name
        ]
        return ir.Select(negative, ir.Const(answer, dtypes.bool_), both, place=place)

    def simplify(self, name: str, operands: Sequence[ir.Expr], common: DType) -> ir.Expr | None:
        """x + 0, x - 0, x * 1 on integers: views make many of them."""
        x, y = operands
        neutral = 1 if name == "mul" else 0
        if isinstance(y, ir.Const) and y.value == neutral and x.dtype is common:
            return x
        if name != "sub" and isinstance(x, ir.Const) and x.value == neutral and y.dtype is common:
            return y
        return None

    def refuse_negative_power(self, base: ir.Expr, exponent: ir.Expr, place: Place) -> None:
        """Of an integer that is known only at run time: the result would be 0, silently."""
        if isinstance(exponent, ir.Const) and exponent.value < 0:
            raise KernelTypeError(
                f"cannot raise {describe(base)} to the negative power {exponent.value}: "
                "the result is no integer",
                place,
                hint=f"make the base a float, as in `float(x) ** {exponent.value}`",
            )

    def power(self, operands: Sequence[ir.Expr], common: DType, place: Place) -> ir.Expr | None:
        """Small constant exponents are products."""
        base, exponent = operands
        if not isinstance(exponent, ir.Const) or exponent.value not in (2, 3, 4):
            if isinstance(exponent, ir.Const) and exponent.value == 0.5 and common.kind == "float":
                return None
            return None
        if self.is_host(base):
            return None
        x = self.temporary(self.coerce(base, common), "base")
        square = self.operation("mul", (x, x), place)
        if exponent.value == 2:
            return square
        if exponent.value == 3:
            return self.operation("mul", (square, x), place)
        square = self.temporary(square, "square")
        return self.operation("mul", (square, square), place)

    def fold(
        self,
        name: str,
        row: intrinsics.Row,
        operands: Sequence[ir.Expr],
        common: DType,
        place: Place,
    ) -> ir.Expr:
        """An operation on constants. Weak integers are Python's own, of any size."""
        values = [o.value for o in operands if isinstance(o, ir.Const)]
        if common is dtypes.weak_int:
            exact = _WEAK_INT.get(name)
            if exact is not None:
                result = exact(*values)
                dtype = _WEAK[type(result)]
                return ir.Const(result, dtype, place=place)
        operand = common
        if common.weak:
            operand = {"weak_float": dtypes.float64, "weak_complex": dtypes.complex128}.get(
                common.name, dtypes.int64
            )
        arguments = [intrinsics.convert(v, operand) for v in values]
        if row.rule == "scale":
            arguments[1] = intrinsics.convert(values[1], dtypes.int32)
        result_type = intrinsics.result_dtype(row, operand)
        result = intrinsics.evaluate(name, tuple(arguments), result_type)
        plain = float(result) if result_type is dtypes.bfloat16 else result.item()
        if common.weak and row.rule != "count":
            result_type = intrinsics.result_dtype(row, common)
        return ir.Const(plain, result_type, place=place)

    def logical(self, kind: Any, left: ir.Expr, right: ir.Expr, place: Place) -> ir.Expr:
        """`and` / `or` of bools, simplified where one side is known."""
        stop = kind is ir.Or
        if isinstance(left, ir.Const):
            return left if bool(left.value) == stop else right
        if isinstance(right, ir.Const) and bool(right.value) != stop:
            return left
        return kind(left, right, place=place)  # type: ignore[no-any-return]

    def select(self, condition: ir.Expr, then: ir.Expr, other: ir.Expr, place: Place) -> ir.Expr:
        dtype = dtypes.promote(then.dtype, other.dtype)
        if dtype.weak and dtype is not INDEX and not self.is_host(condition):
            if dtype is dtypes.weak_int and not (self.is_host(then) and self.is_host(other)):
                dtype = INDEX
        then, other = self.coerce(then, dtype), self.coerce(other, dtype)
        return ir.Select(condition, then, other, place=place)
