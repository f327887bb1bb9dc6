"""What a row of the op table is, and how its scalar expression becomes IR.

A row is an op's complete meaning: parameters, the dtypes that it takes, the rule of its result,
a scalar expression, its meaning in NumPy and one line of doc. Functions, methods, fused kernels
and tests are made from rows; nothing else about an op stands anywhere else.

The expression is a function of `Scalar`s and is traced once for each dtype. Numbers in it take the
dtype of what they meet.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType, default_float, default_of, promote
from ruda.errors import DTypeError, KernelTypeError
from ruda.jit import intrinsics, ir

# ---- dtype rules: dtypes of the inputs -> (dtype to compute at, dtype of the result) -------------


def _common(inputs: tuple[DType, ...]) -> DType:
    return default_of(functools.reduce(promote, inputs))


def _same(inputs: tuple[DType, ...]) -> tuple[DType, DType]:
    common = _common(inputs)
    return common, common


def _float(inputs: tuple[DType, ...]) -> tuple[DType, DType]:
    common = _common(inputs)
    if not common.is_inexact:
        common = default_float()
    return common, common


def _test(inputs: tuple[DType, ...]) -> tuple[DType, DType]:
    return _common(inputs), dtypes.bool_


def _logical(inputs: tuple[DType, ...]) -> tuple[DType, DType]:
    return dtypes.bool_, dtypes.bool_


def _accumulate(inputs: tuple[DType, ...]) -> tuple[DType, DType]:
    common = _common(inputs)
    wide = {"bool": dtypes.int64, "int": dtypes.int64, "uint": dtypes.uint64}.get(
        common.kind, common
    )
    return wide, wide


def _parts(inputs: tuple[DType, ...]) -> tuple[DType, DType]:
    common = _common(inputs)
    return common, common.real


RULES: dict[str, Callable[[tuple[DType, ...]], tuple[DType, DType]]] = {
    "same": _same,  # the promoted dtype
    "float": _float,  # the same, and integers become the default float
    "test": _test,  # computed at the promoted dtype, result bool
    "logical": _logical,  # computed as bools
    "parts": _parts,  # complex numbers give reals
    "accumulate": _accumulate,  # the same, and small integers become 64 bits wide
    "condition": lambda inputs: _same(inputs[1:]),  # the first input is a condition
}
TAKES = {
    "any": ("bool", "int", "uint", "float", "complex"),
    "numbers": ("int", "uint", "float", "complex"),
    "reals": ("int", "uint", "float"),
    "integers": ("int", "uint"),
    "bits": ("bool", "int", "uint"),
    "floats": ("int", "uint", "float"),  # integers become floats
    "inexact": ("int", "uint", "float", "complex"),
    "complex": ("complex",),
}


@dataclass(frozen=True, eq=False)
class Row:
    """One op.

    kind      "elementwise": inputs broadcast, one expression an element; "reduce": along axes
    takes     a key of TAKES: the kinds of dtypes that it is defined for
    rule      a key of RULES
    expression  of Scalars; for a reduction: (accumulator, element) -> accumulator
    numpy     its meaning, on NumPy arrays at the computing dtype
    operator  the Python operator's method, such as "__add__"; of two operands, "__radd__" too
    gradient  (g, result, *inputs) -> a gradient for each input, None for those without one, on
              tensors; sums over broadcast axes are left to `grad`
    """

    name: str
    parameters: tuple[str, ...]
    takes: str
    rule: str
    expression: Callable[..., Any]
    numpy: Callable[..., Any]
    doc: str
    kind: str = "elementwise"
    operator: str = ""
    identity: Any = None  # of a reduction
    gradient: Callable[..., tuple[Any, ...]] | None = None

    # What NumPy computes float32 and float64 by as they are: no conversions before or after.
    plain: np.ufunc | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if isinstance(self.numpy, np.ufunc) and self.rule in ("same", "float", "test"):
            object.__setattr__(self, "plain", self.numpy)

    def dtypes(self, inputs: tuple[DType, ...]) -> tuple[DType, DType]:
        """The dtype to compute at and the result's, or an error."""
        key = (self.rule, self.takes, inputs, default_float())
        found = _KNOWN.get(key)
        if found is None:
            found = _KNOWN[key] = self._dtypes(inputs)
        return found

    def _dtypes(self, inputs: tuple[DType, ...]) -> tuple[DType, DType]:
        checked = inputs[1:] if self.rule == "condition" else inputs
        wrong = next((d for d in checked if d.kind not in TAKES[self.takes]), None)
        if wrong is not None and wrong.kind == "bool" and len(checked) > 1:
            # Bools beside numbers are 0 and 1, as everywhere else in Python.
            wrong = next((d for d in checked if d.kind not in (*TAKES[self.takes], "bool")), None)
            if wrong is None and _common(checked).kind == "bool":
                wrong = checked[0]
        if wrong is None and self.rule == "condition" and inputs[0].kind != "bool":
            wrong = inputs[0]
        if wrong is not None:
            shown = ", ".join(_shown(d) for d in inputs)
            wanted = "a bool first" if wrong is inputs[0] and self.rule == "condition" else (
                " and ".join(_KINDS[k] for k in TAKES[self.takes])
            )  # fmt: skip
            raise DTypeError(f"`{self.name}` is not defined for ({shown}): it takes {wanted}")
        return RULES[self.rule](inputs)


_KNOWN: dict[Any, tuple[DType, DType]] = {}
_KINDS = {
    "bool": "bools", "int": "signed integers", "uint": "unsigned integers", "float": "floats",
    "complex": "complex numbers",
}  # fmt: skip


def _shown(dtype: DType) -> str:
    return {"weak_int": "int", "weak_float": "float", "weak_complex": "complex"}.get(
        dtype.name, dtype.name
    )


# ---- tracing -------------------------------------------------------------------------------------


class Scalar:
    """A value in an expression. Its operators build IR."""

    __slots__ = ("expr",)
    __array_priority__ = 1.0

    def __init__(self, expr: ir.Expr) -> None:
        self.expr = expr

    @property
    def dtype(self) -> DType:
        return self.expr.dtype

    @property
    def is_integer(self) -> bool:
        """Of an integer dtype or bool: nothing to round, never NaN."""
        return self.dtype.kind in ("bool", "int", "uint")

    def __bool__(self) -> bool:
        raise TypeError("an expression has no truth value: use `f.where`")

    def __hash__(self) -> int:
        return id(self)

    if TYPE_CHECKING:  # the operators are made below

        def __getattr__(self, name: str) -> Any: ...
        def __add__(self, other: Any) -> Scalar: ...
        def __and__(self, other: Any) -> Scalar: ...

    def cast(self, dtype: DType) -> Scalar:
        return self if self.dtype is dtype else Scalar(ir.Cast(self.expr, dtype))


def constant(value: Any, dtype: DType) -> Scalar:
    """A number at a dtype."""
    plain = intrinsics.convert(value, dtypes.int64 if dtype is dtypes.index else dtype)
    plain = float(plain) if dtype.name == "bfloat16" else plain.item()
    return Scalar(ir.Const(plain, dtype))


def apply(name: str, *operands: Any) -> Scalar:
    """A row of the scalar table on Scalars and numbers; the result keeps their dtype."""
    strong = [o.dtype for o in operands if isinstance(o, Scalar)]
    common = functools.reduce(promote, strong)
    row = intrinsics.TABLE[name]
    at = intrinsics.operand_dtype(row, (common,) * len(operands))
    if at is None or (at.weak and at is not dtypes.index):
        raise NotImplementedError(f"{name} of {common}")
    scalars = [o if isinstance(o, Scalar) else constant(o, common) for o in operands]
    result = intrinsics.result_dtype(row, at)
    value = Scalar(ir.Op(name, tuple(s.cast(at).expr for s in scalars), result))
    narrow = row.rule in ("arith", "bits", "same") and result is at
    return value.cast(common) if narrow else value


class Functions:
    """The functions of expressions: `f.exp(x)` is the row "exp" of the scalar table."""

    def __getattr__(self, name: str) -> Callable[..., Scalar]:
        if name not in intrinsics.TABLE:
            raise AttributeError(f"no scalar function {name!r}")
        return functools.partial(apply, name)

    def where(self, condition: Scalar, then: Any, otherwise: Any) -> Scalar:
        known = next(x for x in (then, otherwise) if isinstance(x, Scalar)).dtype
        arms = [x if isinstance(x, Scalar) else constant(x, known) for x in (then, otherwise)]
        return Scalar(ir.Select(condition.expr, arms[0].expr, arms[1].expr))


f = Functions()


def _operator(name: str, *, reflected: bool = False) -> Callable[..., Scalar]:
    if reflected:
        return lambda self, other: apply(name, other, self)
    return lambda self, *others: apply(name, self, *others)


for _method, _name in {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "floordiv": "floordiv",
    "mod": "mod", "pow": "pow", "and": "and", "or": "or", "xor": "xor", "lshift": "shl",
    "rshift": "shr",
}.items():  # fmt: skip
    setattr(Scalar, f"__{_method}__", _operator(_name))
    setattr(Scalar, f"__r{_method}__", _operator(_name, reflected=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne", "neg", "invert", "abs"):
    setattr(Scalar, f"__{_name}__", _operator(_name))


def trace(row: Row, inputs: tuple[ir.Expr, ...], given: tuple[DType, ...]) -> ir.Expr:
    """The row's expression on values of the `given` dtypes, at its result dtype."""
    at, result = row.dtypes(given)
    scalars = [Scalar(e) for e in inputs]
    skip = 1 if row.rule == "condition" else 0
    values = [s if k < skip else s.cast(at) for k, s in enumerate(scalars)]
    with np.errstate(all="ignore"):
        found: Scalar = row.expression(*values)
    return found.cast(result).expr


def in_kernel(row: Row, call: Any) -> ir.Expr:
    """The row on the numbers of a call inside a user's kernel."""
    values = call.bind(*row.parameters)
    if not all(hasattr(v, "dtype") and isinstance(v.dtype, DType) for v in values):
        name = ast.unparse(call.node.func)
        raise KernelTypeError(f"`{name}` takes numbers in a kernel", call.place)
    values = [call.t.temporary(v) for v in values]  # both arms of a choice are free of loads
    try:
        at, result = row.dtypes(tuple(v.dtype for v in values))
    except DTypeError as error:
        raise KernelTypeError(str(error), call.place) from None
    skip = 1 if row.rule == "condition" else 0
    if at is dtypes.int64 and all(v.dtype.weak for v in values[skip:]):
        # Indices, literals and Python's integers: where indices are narrow, so is this.
        at, result = dtypes.index, dtypes.index if result is at else result
    scalars = [Scalar(v if k < skip else call.t.coerce(v, at)) for k, v in enumerate(values)]
    found: Scalar = row.expression(*scalars)
    return found.cast(result).expr
