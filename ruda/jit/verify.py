"""Check that a `Function` keeps the rules of `ir`; runs between passes under `RUDA_DEBUG=1`.

A malformed node is our mistake, never the user's, so that everything here raises `VerifyError` with
the place and the node as text. Scalar operations are checked against the table that types them
(`intrinsics`): one is well typed where its operand dtype is a fixed point of the row's rule. What
only a run can tell (an index out of range, a variable that no path has set) is left to `sim`.
"""

from __future__ import annotations

from typing import Any, NoReturn

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import Place, VerifyError
from ruda.jit import dump, intrinsics, ir
from ruda.jit.ir import (
    And,
    Array,
    Asm,
    Assert,
    Assign,
    Atomic,
    Barrier,
    Bitcast,
    Body,
    Break,
    Breakpoint,
    Cast,
    Const,
    Continue,
    Cooperative,
    Declare,
    Expr,
    Extent,
    Fence,
    Field,
    For,
    Function,
    If,
    Load,
    Op,
    Or,
    Print,
    Read,
    Return,
    Select,
    Special,
    Statement,
    Store,
    Stride,
    Text,
    Variable,
    Warp,
    While,
)  # fmt: skip
from ruda.jit.types import RecordType

SPECIALS = {"threadIdx", "blockIdx", "blockDim", "gridDim", "globalIdx", "globalDim"}
SPECIALS_WITHOUT_AXIS = {"laneid", "sharedBytes"}
ATOMICS = {
    "add": 1, "sub": 1, "max": 1, "min": 1, "nanmax": 1, "nanmin": 1, "and": 1, "or": 1, "xor": 1,
    "inc": 1, "dec": 1, "exch": 1, "cas": 2,
}  # fmt: skip
INTEGER_ATOMICS = {"and", "or", "xor", "inc", "dec"}
# op: (dtypes of the operands, dtype of the result); None stands for the dtype of the value.
WARPS: dict[str, tuple[tuple[DType | None, ...], DType | None]] = {
    "shfl": ((None, dtypes.int32, dtypes.int32), None),
    "shfl_up": ((None, dtypes.int32, dtypes.int32), None),
    "shfl_down": ((None, dtypes.int32, dtypes.int32), None),
    "shfl_xor": ((None, dtypes.int32, dtypes.int32), None),
    "all": ((dtypes.bool_,), dtypes.bool_),
    "any": ((dtypes.bool_,), dtypes.bool_),
    "eq": ((dtypes.bool_,), dtypes.bool_),
    "ballot": ((dtypes.bool_,), dtypes.uint32),
    "match_any": ((None,), dtypes.uint32),
    "match_all": ((None,), dtypes.uint32),
    "activemask": ((), dtypes.uint32),
}
_PYTHON_TYPES = {"bool": bool, "int": int, "uint": int, "float": float, "complex": complex}


def verify(function: Function) -> None:
    """Raise `VerifyError` if a function breaks a rule of the IR."""
    _Verifier(function).run()


class _Verifier:
    """What is known while walking one function."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.place = function.place
        self.node: Any = None  # the statement or expression that an error names
        self.loops: list[Variable | None] = []  # the variables of the enclosing loops
        self.names: dict[str, Variable | Array] = {}
        self.declared: set[Array] = set()
        self.readable: set[Variable] = set()
        self.in_prologue = False

    def require(self, condition: bool, message: str) -> None:
        if not condition:
            self.fail(message)

    def fail(self, message: str) -> NoReturn:
        text = f"malformed IR in kernel `{self.function.name}`: {message}"
        if self.node is not None:
            text += f"\n  in: {_show(self.node)}"
        if self.place.line:
            text += f"\n  at {self.place.file}, line {self.place.line}"
        raise VerifyError(text)

    def at(self, node: Any) -> None:
        """From now on errors name this node, and its place where it has one."""
        self.node = node
        place = getattr(node, "place", None)
        if isinstance(place, Place) and place.line:
            self.place = place

    def name(self, thing: Variable | Array) -> None:
        """One name stands for one variable or array in the whole function."""
        other = self.names.setdefault(thing.name, thing)
        self.require(other == thing, f"the name {thing.name!r} stands for {other} and for {thing}")

    # ---- the function ----

    def run(self) -> None:
        f = self.function
        for p in f.parameters:
            self.node = p
            if isinstance(p, Array):
                self.require(p.space == "global", f"an array parameter in space {p.space!r}")
                self.array(p)
            else:
                self.require(p.dtype is not dtypes.index, "a parameter is never of dtype index")
                self.require(p.name not in self.names, f"two parameters named {p.name!r}")
                self.name(p)
        for array in f.arrays:
            self.node = array
            self.require(array.space in ("shared", "local", "const"), f"space {array.space!r}")
            self.array(array)
        self.node = None
        for parameter, dtype in f.fits:
            known = parameter in f.parameters and parameter.dtype is dtypes.weak_int
            self.require(known, f"`fits` names {parameter}, which is no weak integer parameter")
            self.require(dtype.is_integer and not dtype.weak, f"`fits` at {dtype}")
        if f.block is not None:
            self.require(len(f.block) == 3 and min(f.block) >= 1, f"block {f.block}")
        self.prologue()
        self.declared = {s.array for s in ir.statements(f.body) if isinstance(s, Declare)}
        self.variables()
        self.body(f.body)

    def array(self, array: Array) -> None:
        self.require(array.name not in self.names, f"two arrays named {array.name!r}")
        self.name(array)
        weak = isinstance(array.dtype, DType) and array.dtype.weak
        self.require(not weak, f"an array of the weak dtype {array.dtype}")
        self.require(array.layout in ("C", "A"), f"layout {array.layout!r}")
        static = array.space != "global" and not array.dynamic
        self.require(
            (array.shape is not None) == static, f"shape {array.shape} of a {array.space} array"
        )
        if array.shape is not None:
            self.require(len(array.shape) == array.ndim, f"{array.ndim} axes, shape {array.shape}")
            self.require(all(n >= 0 for n in array.shape), f"shape {array.shape}")
        if array.dynamic:
            self.require(
                array.space == "shared" and array.ndim == 1, "dynamic arrays are shared and 1-d"
            )
        self.require(
            (array.data is not None) == (array.space == "const"),
            "const arrays have data, no others",
        )
        if array.data is not None and array.shape is not None:
            size = array.dtype.itemsize
            for n in array.shape:
                size *= n
            self.require(
                len(array.data) == size, f"{len(array.data)} bytes of data instead of {size}"
            )

    def prologue(self) -> None:
        """Assignments from scalar parameters alone; the only reader of weak parameters."""
        self.in_prologue = True
        self.readable = {p for p in self.function.parameters if isinstance(p, Variable)}
        for statement in self.function.prologue:
            self.at(statement)
            self.require(isinstance(statement, Assign), "a prologue consists of assignments")
            for e in ir.walk(statement.value):
                pure = not isinstance(e, (Load, Special, Extent, Stride))
                self.require(pure, "a prologue reads scalar parameters only")
            self.name(statement.variable)
            self.typed(statement.value, statement.variable.dtype)
            self.readable.add(statement.variable)
        self.in_prologue = False

    def variables(self) -> None:
        """Collect what the body assigns, and check that loop variables belong to their loops."""
        loops: set[Variable] = set()
        others: dict[Variable, Statement] = {}
        for statement in ir.statements(self.function.body):
            if not isinstance(statement, Statement):
                continue  # reported with its place by `statement`
            self.at(statement)
            for variable in ir.written(statement):
                strong = variable.dtype is dtypes.index or not variable.dtype.weak
                self.require(
                    strong, f"variable {variable.name!r} of the weak dtype {variable.dtype}"
                )
                self.name(variable)
                if isinstance(statement, For):
                    loops.add(variable)
                else:
                    others[variable] = statement
        for variable in loops:
            if variable in others or variable in self.readable:
                self.at(others.get(variable, self.function.body[0]))
                self.fail(f"loop variable {variable.name!r} is assigned outside its `for`")
        parameters = {v for v in self.readable if v.dtype is dtypes.index or not v.dtype.weak}
        self.readable = parameters | set(others)  # a loop adds its variable for its body

    # ---- statements ----

    def body(self, body: Body) -> None:
        self.require(isinstance(body, tuple), f"a body is a tuple, not {type(body).__name__}")
        for statement in body:
            self.at(statement)
            self.statement(statement)

    def statement(self, s: Statement) -> None:
        match s:
            case Assign(variable, value):
                self.typed(value, variable.dtype)
            case Store(array, indices, value, field):
                self.typed(value, self.element(array, indices, field))
                self.writable(array)
            case Declare(array):
                known = array in self.function.arrays and array.space in ("shared", "local")
                self.require(known, "declares what is no shared or local array of the function")
            case If(condition, then, otherwise):
                self.typed(condition, dtypes.bool_)
                self.body(then)
                self.body(otherwise)
            case For():
                self.loop(s)
            case While(condition, body):
                self.typed(condition, dtypes.bool_)
                self.loops.append(None)
                self.body(body)
                self.loops.pop()
            case Break() | Continue():
                self.require(bool(self.loops), f"{type(s).__name__.lower()} outside a loop")
            case Barrier():
                self.barrier(s)
            case Fence(scope):
                self.require(scope in ("block", "device", "system"), f"fence scope {scope!r}")
            case Atomic():
                self.atomic(s)
            case Warp():
                self.warp(s)
            case Print(parts):
                self.text(parts)
            case Assert(condition, message):
                self.typed(condition, dtypes.bool_)
                self.text(message)
            case Asm(operands=operands) | Cooperative(operands=operands):
                for operand in operands:
                    if isinstance(operand, Expr):
                        self.expression(operand)
            case Return() | Breakpoint():
                pass
            case _:
                self.fail(f"{type(s).__name__} is no statement")

    def loop(self, s: For) -> None:
        dtype = s.variable.dtype
        self.require(dtype.is_integer, f"a loop variable of dtype {dtype}")
        for bound in (s.start, s.stop, s.step):
            self.typed(bound, dtype)
        self.require(s.unroll >= 0, f"unroll {s.unroll}")
        self.require(s.variable not in self.loops, f"loop variable {s.variable.name!r} is in use")
        self.loops.append(s.variable)
        self.readable.add(s.variable)
        self.body(s.body)
        self.readable.remove(s.variable)
        self.loops.pop()

    def barrier(self, s: Barrier) -> None:
        self.require(s.scope in ("block", "warp", "grid"), f"barrier scope {s.scope!r}")
        self.require(
            (s.mask is not None) == (s.scope == "warp"), "warp barriers have a mask, no others"
        )
        if s.mask is not None:
            self.typed(s.mask, dtypes.uint32)
        if s.vote is None:
            self.require(
                s.predicate is None and s.result is None, "a barrier without vote has no result"
            )
            return
        self.require(s.vote in ("and", "or", "count"), f"vote {s.vote!r}")
        self.require(s.scope == "block", f"a vote over a {s.scope}")
        if s.predicate is None or s.result is None:
            self.fail("a vote needs predicate and result")
        self.typed(s.predicate, dtypes.bool_)
        self.same(s.result.dtype, dtypes.int32, "the result")

    def atomic(self, s: Atomic) -> None:
        dtype = self.element(s.array, s.indices, s.field)
        self.writable(s.array)
        self.require(s.op in ATOMICS, f"no atomic operation {s.op!r}")
        self.require(
            len(s.operands) == ATOMICS.get(s.op), f"{s.op} with {len(s.operands)} operands"
        )
        kinds = ("int", "uint") if s.op in INTEGER_ATOMICS else ("int", "uint", "float")
        self.require(dtype.kind in kinds, f"atomic {s.op} on {dtype}")
        for operand in s.operands:
            self.typed(operand, dtype)
        if s.result is not None:
            self.same(s.result.dtype, dtype, "the result")

    def warp(self, s: Warp) -> None:
        if s.op not in WARPS:
            self.fail(f"no warp operation {s.op!r}")
        operands, result = WARPS[s.op]
        self.require(len(s.operands) == len(operands), f"{s.op} with {len(s.operands)} operands")
        if s.mask is None:
            self.require(s.op == "activemask", f"{s.op} without a mask")
        else:
            self.typed(s.mask, dtypes.uint32)
        value = dtypes.uint32
        for k, (operand, dtype) in enumerate(zip(s.operands, operands, strict=True)):
            found = self.expression(operand)
            if k == 0 and dtype is None:
                value = found
            else:
                self.same(found, dtype or value, f"operand {k + 1} of {s.op}")
        self.same(s.result.dtype, result or value, "the result")

    def text(self, parts: tuple[str | Text, ...]) -> None:
        for part in parts:
            if isinstance(part, Text):
                self.expression(part.value)
            else:
                self.require(isinstance(part, str), f"a part to print is {type(part).__name__}")

    # ---- expressions ----

    def typed(self, e: Expr, dtype: DType) -> None:
        self.same(self.expression(e), dtype, _show(e))

    def same(self, found: DType, wanted: DType, what: str) -> None:
        # By identity: an equal name is not enough for a dtype that a pass made up.
        self.require(found is wanted, f"{what} is {found} where {wanted} is needed")

    def expression(self, e: Expr) -> DType:
        """Check an expression and everything in it; give its dtype."""
        outer, place = self.node, self.place
        self.at(e)
        dtype = self.dtype_of(e)
        if dtype.weak and dtype is not dtypes.index and not self.in_prologue:
            self.fail(f"the weak dtype {dtype} in the body of a kernel")
        self.node, self.place = outer, place
        return dtype

    def dtype_of(self, e: Expr) -> DType:
        match e:
            case Const(value, dtype):
                self.constant(value, dtype)
            case Read(variable):
                known = variable in self.readable
                self.require(known, f"variable {variable.name!r} is not readable here")
            case Special(name, axis, dtype):
                if name in SPECIALS:
                    self.require(axis in (0, 1, 2), f"axis {axis} of {name}")
                else:
                    self.require(
                        name in SPECIALS_WITHOUT_AXIS and axis == 0, f"no {name} of axis {axis}"
                    )
                self.same(dtype, dtypes.index, name)
            case Extent(array, axis, dtype) | Stride(array, axis, dtype):
                self.known(array)
                self.require(0 <= axis < array.ndim, f"axis {axis} of {array.ndim}")
                self.same(dtype, dtypes.index, type(e).__name__)
            case Op():
                self.op(e)
            case Cast(value, dtype):
                found = self.expression(value)
                to_real = found.kind == "complex" and dtype.kind not in ("complex", "bool")
                self.require(not to_real, f"a cast of {found} to {dtype}")
            case Bitcast(value, dtype):
                found = self.expression(value)
                self.require(
                    found.itemsize == dtype.itemsize, f"{found} has not the size of {dtype}"
                )
            case Select(condition, then, otherwise):
                self.typed(condition, dtypes.bool_)
                self.typed(otherwise, self.expression(then))
                loads = any(isinstance(x, Load) for arm in (then, otherwise) for x in ir.walk(arm))
                self.require(
                    not loads, "a load in an arm of a select, which may be evaluated always"
                )
            case And(left, right, dtype) | Or(left, right, dtype):
                self.typed(left, dtypes.bool_)
                self.typed(right, dtypes.bool_)
                self.same(dtype, dtypes.bool_, type(e).__name__)
            case Load(array, indices, field):
                return self.element(array, indices, field)
            case _:
                self.fail(f"{type(e).__name__} is no expression")
        return e.dtype

    def constant(self, value: Any, dtype: DType) -> None:
        wanted = _PYTHON_TYPES[dtype.kind]
        self.require(type(value) is wanted, f"a {dtype} constant held as {type(value).__name__}")
        if dtype.is_integer:
            low, high = dtype.range
            self.require(low <= value <= high, f"{value} is out of the range of {dtype}")

    def op(self, e: Op) -> None:
        row = intrinsics.TABLE.get(e.name)
        if row is None:
            self.fail(f"no operation {e.name!r}")
        self.require(len(e.operands) == row.arity, f"{e.name} takes {row.arity} operands")
        found = [self.expression(x) for x in e.operands]
        operand = found[0]
        if row.rule == "scale":
            self.require(operand.kind == "float", f"{e.name} of {operand}")
            self.same(found[1], dtypes.int32, "the second operand")
            self.same(e.dtype, operand, "the result")
            return
        for other in found[1:]:
            self.same(other, operand, f"an operand of {e.name} (the first is {operand})")
        if row.rule == "complex":
            fits = e.dtype.kind == "complex" and e.dtype.real is operand
            self.require(fits, f"{e.dtype} of two {operand}")
            return
        if row.rule == "index":
            suits = operand is dtypes.index
        elif row.rule == "parts":
            suits = operand.kind == "complex"
        else:
            suits = intrinsics.operand_dtype(row, tuple(found)) is operand
        self.require(suits, f"{e.name} is not made at {operand}")
        self.same(e.dtype, intrinsics.result_dtype(row, operand), "the result")

    def known(self, array: Array) -> None:
        self.require(
            self.names.get(array.name) == array, f"array {array.name!r} is not the function's"
        )

    def writable(self, array: Array) -> None:
        writable = array.space != "const" and not array.readonly
        self.require(writable, f"a write to {array.name!r}, which is read-only")

    def element(self, array: Array, indices: tuple[Expr, ...], field: Field | None) -> DType:
        """Check an access; give the dtype of what it touches."""
        self.known(array)
        if array.space in ("shared", "local"):
            self.require(
                array in self.declared, f"{array.space} array {array.name!r} is never declared"
            )
        self.require(len(indices) == array.ndim, f"{len(indices)} indices for {array.ndim} axes")
        for i in indices:
            self.typed(i, dtypes.index)
        if field is None:
            if isinstance(array.dtype, RecordType):
                self.fail("a whole record is not a number; name a field")
            return array.dtype
        end = field.offset + field.dtype.itemsize
        fits = field.offset >= 0 and end <= array.dtype.itemsize
        self.require(fits, f"field at byte {field.offset} is not inside the element")
        return field.dtype


def _show(node: Any) -> str:
    """A node on one line, without the bodies of a loop or branch."""
    if isinstance(node, Statement):
        return dump.lines((node,), 0)[0]
    return dump.expression(node)
