"""The typed intermediate representation of a kernel: what the frontend makes and every target
reads.

Structured control flow, no jumps: every target has `if`, loops and functions. Expressions are pure
(a
load is one, but changes nothing); whatever has an effect or must happen once - a store, an atomic,
a shuffle, a barrier - is a statement. Device functions are inlined by the frontend, so that a
`Function` is a whole kernel; its arrays are *roots*: parameters, shared, local and constant
arrays. Views (slices, transposes, rows) are resolved by the frontend into indices of their roots.

Every value has one strong dtype. `dtypes.index` is the one weak dtype that survives: thread
indices,
extents and `range` variables, 64 bits in meaning; a target may hold it in 32 bits where proven.

Integers and floats are total (LANGUAGE.md): no operation traps. Nodes are frozen; passes build new
ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import NOWHERE, Place
from ruda.jit.types import ElementType

_place = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


# ---- names ----


@dataclass(frozen=True, slots=True)
class Variable:
    """A scalar local variable, mutable, private to a thread. Names are unique in a function."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Array:
    """A root array.

    space   "global": a parameter; its extents (and strides if layout is "A") come with the launch.
            "shared": one per block; "local": one per thread; both start undefined at `Declare`.
            "const": `data` holds the values (C order bytes), never written.
    shape   static for shared, local and const. `None` for parameters and for dynamic shared memory
            (`dynamic`), whose 1-d extent is the launch's shared bytes // itemsize; all dynamic
            arrays of a kernel begin at the same address.
    """

    name: str
    dtype: ElementType
    ndim: int
    space: str = "global"
    layout: str = "C"
    shape: tuple[int, ...] | None = None
    dynamic: bool = False
    aligned: bool = True
    readonly: bool = False
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Field:
    """A number inside a record element: byte offset from the element's start, possibly
    unaligned."""

    offset: int
    dtype: DType
    name: str = field(default="", compare=False)


# ---- types for cooperative units, carried from the start ----


@dataclass(frozen=True, slots=True)
class Vector:
    """A short vector value, such as `float32x4`."""

    dtype: DType
    lanes: int


@dataclass(frozen=True, slots=True)
class Tile:
    """A matrix fragment held by a warp, a warp group or a cube unit."""

    dtype: DType
    shape: tuple[int, int]
    space: str
    layout: str


# ---- expressions ----


@dataclass(frozen=True, slots=True)
class Const:
    """A number: Python bool, int (within the dtype's range), float or complex."""

    value: Any
    dtype: DType
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Read:
    """The value of a variable or scalar parameter."""

    variable: Variable
    place: Place = _place

    @property
    def dtype(self) -> DType:
        return self.variable.dtype


@dataclass(frozen=True, slots=True)
class Special:
    """A launch coordinate, of dtype index.

    name: "threadIdx", "blockIdx", "blockDim", "gridDim"; "globalIdx" = blockIdx * blockDim +
    threadIdx;
    "globalDim" = blockDim * gridDim; axis 0, 1, 2 for x, y, z. "laneid" (axis 0): the linear index
    of the
    thread in its block, x fastest, modulo 32. "sharedBytes": dynamic shared memory of the launch.
    "threads": threads that the user launched along x, where `Function.lanes` made the grid shorter.
    """

    name: str
    axis: int = 0
    dtype: DType = dtypes.index
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Extent:
    """Elements along an axis of a root array."""

    array: Array
    axis: int
    dtype: DType = dtypes.index
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Stride:
    """Bytes between neighbours along an axis of a root array."""

    array: Array
    axis: int
    dtype: DType = dtypes.index
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Op:
    """A pure scalar operation, a row of `intrinsics.TABLE`. All operands have the row's operand
    dtype.

    "wrap" (i, extent): a Python index: i, or i + extent where i < 0. Removed where i is proven >=
    0.
    "within" (i, extent): i, which must be inside an axis of a view; checked where bounds are.
    """

    name: str
    operands: tuple[Expr, ...]
    dtype: DType
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Cast:
    """Convert: integers wrap, floats round to nearest even, float to integer saturates and NaN
    gives 0,
    to bool is `!= 0`, real to complex has imaginary part 0, complex to real is not made."""

    value: Expr
    dtype: DType
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Bitcast:
    """The same bits at another dtype of equal size."""

    value: Expr
    dtype: DType
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Select:
    """`then if condition else otherwise`; both arms are free of loads, so a target may compute
    both."""

    condition: Expr
    then: Expr
    otherwise: Expr
    place: Place = _place

    @property
    def dtype(self) -> DType:
        return self.then.dtype


@dataclass(frozen=True, slots=True)
class And:
    """Lazy `left and right` on bools: the right side (which may load) runs only where left is
    true."""

    left: Expr
    right: Expr
    dtype: DType = dtypes.bool_
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Or:
    """Lazy `left or right` on bools."""

    left: Expr
    right: Expr
    dtype: DType = dtypes.bool_
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Load:
    """`array[indices]`, or a field of that record element. One index (dtype index) an axis, in
    range."""

    array: Array
    indices: tuple[Expr, ...]
    field: Field | None = None
    place: Place = _place

    @property
    def dtype(self) -> DType:
        dtype = self.array.dtype if self.field is None else self.field.dtype
        assert isinstance(dtype, DType)
        return dtype


@dataclass(frozen=True, slots=True)
class Address:
    """Where the first element of a root array lies, in bytes; made by `coarsen` alone."""

    array: Array
    dtype: DType = dtypes.index
    place: Place = _place


Expr = (
    Const | Read | Special | Extent | Stride | Op | Cast | Bitcast | Select | And | Or | Load
    | Address
)  # fmt: skip


# ---- statements ----


@dataclass(frozen=True, slots=True)
class Assign:
    variable: Variable
    value: Expr
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Store:
    array: Array
    indices: tuple[Expr, ...]
    value: Expr
    field: Field | None = None
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Declare:
    """A shared or local array comes to life here, undefined (poisoned in sim)."""

    array: Array
    place: Place = _place


@dataclass(frozen=True, slots=True)
class If:
    condition: Expr
    then: Body
    otherwise: Body = ()
    place: Place = _place


@dataclass(frozen=True, slots=True)
class For:
    """`for variable in range(start, stop, step)`. The variable belongs to the loop: it is assigned
    nowhere else and not read after it. `step` is never zero at run time (checked by the frontend
    or 0 means no iteration). `unroll`: 0 as the target likes, n by n."""

    variable: Variable
    start: Expr
    stop: Expr
    step: Expr
    body: Body
    unroll: int = 0
    place: Place = _place


@dataclass(frozen=True, slots=True)
class While:
    condition: Expr
    body: Body
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Break:
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Continue:
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Return:
    """The thread is done. It counts as arrived at later barriers and takes no part in votes."""

    place: Place = _place


@dataclass(frozen=True, slots=True)
class Barrier:
    """Wait for every thread of the scope: "block", "warp" (with `mask`) or "grid".

    With `vote` ("and", "or", "count"), `result` receives the vote on `predicate` (bool) over the
    block: int32, 1 or 0 for and/or. `site`, from the pass that makes reports, is that of the report
    for threads that are somewhere else.
    """

    scope: str = "block"
    vote: str | None = None
    predicate: Expr | None = None
    result: Variable | None = None
    mask: Expr | None = None
    site: int | None = None
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Fence:
    """Order this thread's memory accesses as seen by the scope: "block", "device" or "system"."""

    scope: str
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Atomic:
    """`result = array[indices]; array[indices] = op(result, operands)`, indivisibly.

    op: add sub max min nanmax nanmin and or xor inc dec exch cas. `cas` has operands (expected,
    new).
    inc (old, m): 0 if old >= m else old + 1; dec (old, m): m if old == 0 or old > m else old - 1.
    """

    op: str
    array: Array
    indices: tuple[Expr, ...]
    operands: tuple[Expr, ...]
    result: Variable | None = None
    field: Field | None = None
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Warp:
    """An exchange among the 32 threads of a warp named by `mask` (uint32).

    op                          operands            result
    shfl, shfl_up, shfl_down,   value, lane (int32),  value's dtype; a source outside the segment
    shfl_xor                    width (int32)         of `width` lanes or the warp: the own value
    all, any                    predicate (bool)      bool
    eq                          predicate (bool)      bool: equal in all lanes
    ballot                      predicate (bool)      uint32
    match_any                   value                 uint32 mask of lanes with an equal value
    match_all                   value                 uint32: mask if all lanes are equal, else 0
    activemask                  -                     uint32
    """

    op: str
    mask: Expr | None
    operands: tuple[Expr, ...]
    result: Variable
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Text:
    """A value to be printed, with the format spec of an f-string ("" for str())."""

    value: Expr
    spec: str = ""


@dataclass(frozen=True, slots=True)
class Print:
    """Text pieces and values, in order; line ends are among the pieces."""

    parts: tuple[str | Text, ...]
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Assert:
    condition: Expr
    message: tuple[str | Text, ...] = ()
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """`breakpoint()`: stops in sim; nothing elsewhere."""

    place: Place = _place


@dataclass(frozen=True, slots=True)
class Cooperative:
    """An operation done together by a scope of threads on tiles: load, multiply-add, store, async
    copy.
    `token` orders asynchronous ones. No target emits it yet; each refuses it by name."""

    scope: str
    op: str
    operands: tuple[Any, ...]
    results: tuple[Variable, ...] = ()
    token: Variable | None = None
    place: Place = _place


@dataclass(frozen=True, slots=True)
class Asm:
    """Target code behind `@ruda.intrinsic(target)`: `results = name(operands)`."""

    target: str
    name: str
    operands: tuple[Expr, ...]
    results: tuple[Variable, ...] = ()
    place: Place = _place


@dataclass(frozen=True, slots=True)
class WideLoad:
    """`results[k] = array[..., i + k]` in one access: the first element lies at a multiple of all
    their bytes. Made by `coarsen` alone."""

    array: Array
    indices: tuple[Expr, ...]
    results: tuple[Variable, ...]
    place: Place = _place


@dataclass(frozen=True, slots=True)
class WideStore:
    """`array[..., i + k] = values[k]` in one access, as `WideLoad`."""

    array: Array
    indices: tuple[Expr, ...]
    values: tuple[Expr, ...]
    place: Place = _place


Statement = (
    Assign | Store | Declare | If | For | While | Break | Continue | Return | Barrier | Fence
    | Atomic | Warp | Print | Assert | Breakpoint | Cooperative | Asm | WideLoad | WideStore
)  # fmt: skip
Body = tuple[Statement, ...]


# ---- the kernel ----


@dataclass(frozen=True, slots=True)
class Function:
    """A whole kernel, specialised for its argument types.

    parameters  in launch order: root arrays of space "global" and scalar variables. A weak Python
                scalar arrives as its 64-bit form: `weak_int` (int64) or `weak_float` (float64).
    prologue    assignments computed once per launch from scalar parameters alone, in double;
                a target without 64 bits evaluates them on the host.
    fits        (parameter, dtype): a Python int that is used at a narrower dtype: it must fit.
    arrays      shared, local and const roots.
    block       (x, y, z) when specialised on the launch's block, else None.
    max_registers  of a thread, where the target has registers to choose.
    lanes       elements along x that a thread does; the grid is that much shorter than the user's.
    schedule    of a kernel in phases: which of them the host launches (see `jit.rounds`).
    """

    name: str
    parameters: tuple[Array | Variable, ...]
    body: Body
    prologue: tuple[Assign, ...] = ()
    arrays: tuple[Array, ...] = ()
    fits: tuple[tuple[Variable, DType], ...] = ()
    block: tuple[int, int, int] | None = None
    fastmath: bool = False
    contract: bool = True
    wraparound: bool = True
    check: bool = False
    lanes: int = 1
    place: Place = NOWHERE
    schedule: Body = ()
    max_registers: int | None = None

    def __str__(self) -> str:
        from ruda.jit.dump import dump

        return dump(self)


# ---- walking and rebuilding ----

_BODIES = {If: ("then", "otherwise"), For: ("body",), While: ("body",)}
_EXPRESSIONS: dict[type, tuple[str, ...]] = {
    Const: (), Read: (), Special: (), Extent: (), Stride: (),
    Op: ("operands",), Cast: ("value",), Bitcast: ("value",),
    Select: ("condition", "then", "otherwise"), And: ("left", "right"), Or: ("left", "right"),
    Load: ("indices",), Address: (),
    WideLoad: ("indices",), WideStore: ("indices", "values"),
    Assign: ("value",), Store: ("indices", "value"), Declare: (), If: ("condition",),
    For: ("start", "stop", "step"), While: ("condition",), Break: (), Continue: (), Return: (),
    Barrier: ("predicate", "mask"), Fence: (), Atomic: ("indices", "operands"),
    Warp: ("mask", "operands"), Print: ("parts",), Assert: ("condition", "message"), Breakpoint: (),
    Cooperative: ("operands",), Asm: ("operands",), Text: ("value",),
}  # fmt: skip
_EXPR_TYPES = (
    Const, Read, Special, Extent, Stride, Op, Cast, Bitcast, Select, And, Or, Load, Address,
)  # fmt: skip


def bodies(statement: Statement) -> tuple[Body, ...]:
    """The nested statement lists of a statement."""
    return tuple(getattr(statement, name) for name in _BODIES.get(type(statement), ()))


def expressions(node: Any) -> Iterator[Expr]:
    """The expressions that a statement or an expression holds directly (not those of nested
    bodies)."""
    for name in _EXPRESSIONS[type(node)]:
        value = getattr(node, name)
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Text):
                yield item.value
            elif isinstance(item, _EXPR_TYPES):
                yield item


def walk(node: Expr) -> Iterator[Expr]:
    """An expression and everything inside it, parents first."""
    yield node
    for child in expressions(node):
        yield from walk(child)


def statements(body: Body) -> Iterator[Statement]:
    """Every statement of a body, nested ones too, in order."""
    for statement in body:
        yield statement
        for inner in bodies(statement):
            yield from statements(inner)


def all_expressions(body: Body) -> Iterator[Expr]:
    """Every expression node of a body."""
    for statement in statements(body):
        for e in expressions(statement):
            yield from walk(e)


def written(statement: Statement) -> tuple[Variable, ...]:
    """The variables that a statement itself assigns."""
    match statement:
        case Assign(variable=v) | For(variable=v):
            return (v,)
        case Barrier(result=v) | Atomic(result=v) | Warp(result=v):
            return () if v is None else (v,)
        case Cooperative(results=vs) | Asm(results=vs) | WideLoad(results=vs):
            return vs
    return ()


N = TypeVar("N")


def map_children(node: N, change: Callable[[Expr], Expr]) -> N:
    """The node with `change` applied to each expression it holds directly; itself if nothing
    changed."""
    updates: dict[str, Any] = {}
    for name in _EXPRESSIONS[type(node)]:
        old = getattr(node, name)
        new: Any
        if isinstance(old, tuple):
            new = tuple(
                change(v)
                if isinstance(v, _EXPR_TYPES)
                else (replace(v, value=change(v.value)) if isinstance(v, Text) else v)
                for v in old
            )
            same = all(a is b for a, b in zip(old, new, strict=True)) or (
                all(
                    a is b or (isinstance(a, Text) and a.value is b.value)
                    for a, b in zip(old, new, strict=True)
                )
            )
        else:
            new = change(old) if isinstance(old, _EXPR_TYPES) else old
            same = new is old
        if not same:
            updates[name] = new
    return dataclasses.replace(node, **updates) if updates else node  # type: ignore[type-var]


def rewrite(node: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Apply `change` to every node of an expression, children first."""
    return change(map_children(node, lambda e: rewrite(e, change)))


def rewrite_body(
    body: Body,
    expression: Callable[[Expr], Expr] = lambda e: e,
    statement: Callable[[Statement], Statement | Body | None] = lambda s: s,
) -> Body:
    """Rebuild a body: expressions first (children first), then each statement, innermost first.

    `statement` may return a statement, a tuple of them, or None to delete.
    """
    out: list[Statement] = []
    for old in body:
        new: Any = map_children(old, lambda e: rewrite(e, expression))
        updates = {
            name: rewrite_body(getattr(new, name), expression, statement)
            for name in _BODIES.get(type(new), ())
        }
        if any(updates[n] is not getattr(new, n) for n in updates):
            new = replace(new, **updates)
        result = statement(new)
        if result is None:
            continue
        out += result if isinstance(result, tuple) else (result,)
    if len(out) == len(body) and all(a is b for a, b in zip(out, body, strict=True)):
        return body
    return tuple(out)


def has_barrier(body: Body) -> bool:
    """Whether threads of a block must meet somewhere in a body."""
    return any(isinstance(s, (Barrier, Warp, Cooperative)) for s in statements(body))
