"""Translate a Python function and its argument types into the typed IR.

One pass walks the AST and emits IR with the variable types known so far; it is repeated until no
type changes (each variable has the promotion of all that reaches it). Variables that are still
weak then take the dtype of the stores they feed, else the default, and the walk settles again.
Device functions are inlined, views resolved, tuples taken apart: see `values`. Calls of names of the
language are handled in `calls`.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import enum
import functools
import inspect
import linecache
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ruda import dtypes
from ruda.dtypes import DType, as_dtype
from ruda.errors import (
    NOWHERE,
    DTypeError,
    KernelError,
    KernelNameError,
    KernelTypeError,
    KernelValueError,
    Place,
    SourceUnavailableError,
    UnsupportedError,
)
from ruda.jit import intrinsics, ir, sources
from ruda.jit.passes.uniformity import check_barriers
from ruda.jit.types import (
    ArrayType,
    RecordType,
    Static,
    TupleType,
    Type,
    element_type,
)
from ruda.jit.unassigned import unassigned_reads
from ruda.jit.values import (
    ArrayRef,
    Axis,
    Method,
    PyObject,
    RangeValue,
    RecordRef,
    TupleValue,
    Value,
    describe,
    whole,
)

INDEX = dtypes.index
ZERO, ONE = ir.Const(0, INDEX), ir.Const(1, INDEX)
TRUE, FALSE = ir.Const(True, dtypes.bool_), ir.Const(False, dtypes.bool_)
EXPR = (
    ir.Const, ir.Read, ir.Special, ir.Extent, ir.Stride, ir.Op, ir.Cast, ir.Bitcast, ir.Select,
    ir.And, ir.Or, ir.Load,
)  # fmt: skip

OPERATORS: dict[type, tuple[str, str]] = {
    ast.Add: ("add", "add"), ast.Sub: ("sub", "subtract"), ast.Mult: ("mul", "multiply"),
    ast.Div: ("truediv", "divide"), ast.FloorDiv: ("floordiv", "floor-divide"),
    ast.Mod: ("mod", "take the remainder of"), ast.Pow: ("pow", "raise"),
    ast.BitAnd: ("and", "take & of"), ast.BitOr: ("or", "take | of"),
    ast.BitXor: ("xor", "take ^ of"), ast.LShift: ("shl", "shift"), ast.RShift: ("shr", "shift"),
    ast.Lt: ("lt", "compare"), ast.LtE: ("le", "compare"), ast.Gt: ("gt", "compare"),
    ast.GtE: ("ge", "compare"), ast.Eq: ("eq", "compare"), ast.NotEq: ("ne", "compare"),
}  # fmt: skip

# Syntax that is not in the language: what it is called, and what to write instead.
UNSUPPORTED: dict[type, tuple[str, str]] = {
    ast.Try: ("`try`", "nothing in a kernel raises; test the condition with `if`"),
    ast.Raise: ("`raise`", "use `assert condition, message`"),
    ast.With: ("`with`", "do it on the host, around the launch"),
    ast.AsyncWith: ("`async with`", "do it on the host"),
    ast.AsyncFor: ("`async for`", "use `for` over `range`"),
    ast.FunctionDef: ("a nested function", "define it outside with @ruda.jit(device=True)"),
    ast.AsyncFunctionDef: ("a nested function", "define it outside with @ruda.jit(device=True)"),
    ast.ClassDef: ("a class", "pass a NamedTuple, or separate arguments"),
    ast.Lambda: ("`lambda`", "define a function outside with @ruda.jit(device=True)"),
    ast.Yield: ("`yield`", "store the results in an array"),
    ast.YieldFrom: ("`yield from`", "store the results in an array"),
    ast.Await: ("`await`", "do it on the host"),
    ast.List: ("a list", "use ruda.local.array(shape, dtype), or a tuple"),
    ast.Dict: ("a dict", "use an array that maps indices to values"),
    ast.Set: ("a set", "use an array of flags"),
    ast.ListComp: ("a list comprehension", "use ruda.local.array and a loop"),
    ast.SetComp: ("a set comprehension", "use a loop"),
    ast.DictComp: ("a dict comprehension", "use a loop"),
    ast.GeneratorExp: ("a generator expression", "use a loop"),
    ast.Import: ("`import`", "import at the top of the module"),
    ast.ImportFrom: ("`import`", "import at the top of the module"),
    ast.Global: ("`global`", "kernels write only to arrays: pass one"),
    ast.Nonlocal: ("`nonlocal`", "kernels write only to arrays: pass one"),
    ast.Delete: ("`del`", "leave it out: variables end with the kernel"),
    ast.Match: ("`match`", "use `if` and `elif`"),
    ast.JoinedStr: ("an f-string", "f-strings may stand only in `print` and `assert`"),
    ast.Starred: ("`*`", "write the arguments out"),
}
if hasattr(ast, "TryStar"):
    UNSUPPORTED[ast.TryStar] = UNSUPPORTED[ast.Try]
if hasattr(ast, "TypeAlias"):
    UNSUPPORTED[ast.TypeAlias] = ("a type alias", "define it outside")


class Unresolved(Exception):
    """A local variable is read whose type no assignment has shown yet; the next pass knows it."""

    def __init__(self, name: str, place: Place) -> None:
        self.name, self.place = name, place


class NeedsBlock(Exception):
    """A shape depends on the launch's block: translate again with the block known."""


@dataclass
class Options:
    """What a translation depends on besides the function and its types."""

    block: tuple[int, int, int] | None = None
    fastmath: bool = False
    contract: bool = True
    wraparound: bool = True
    check: bool = False
    default_int: DType = dtypes.int64
    unroll_limit: int = 4096


# ---- source of a function ----


@dataclass(frozen=True)
class Definition:
    """A function's syntax tree, with line numbers of its file."""

    tree: ast.FunctionDef
    file: str
    ascii: bool
    assigned: dict[str, int]  # local names and how many statements assign them
    in_loop: frozenset[str]
    unassigned: frozenset[tuple[int, str]]  # lines and names read before any assignment


# Functions live as long as their users want: kernels that are defined again and again are let go.
_DEFINITIONS: weakref.WeakKeyDictionary[types.FunctionType, Definition]
_DEFINITIONS = weakref.WeakKeyDictionary()


def definition(function: types.FunctionType) -> Definition:
    """The syntax tree of a function, parsed once."""
    found = _DEFINITIONS.get(function)
    if found is None:
        found = _DEFINITIONS[function] = _parse(function)
    return found


def _parse(function: types.FunctionType) -> Definition:
    """Parse a function. Its text must be in a file or, for notebook cells and the like, in `linecache`."""
    name = function.__name__
    if name == "<lambda>":
        raise SourceUnavailableError(
            "a lambda cannot be a kernel: its source cannot be told from its line; "
            "write `def` with @ruda.jit"
        )
    try:
        lines, first = sources.lines_of(function)
        file = inspect.getsourcefile(function) or function.__code__.co_filename
    except (OSError, TypeError):
        raise SourceUnavailableError(
            f"Python keeps no source for `{name}`: define it in a file, a notebook cell or IPython; "
            "the plain interactive prompt keeps source from Python 3.13 on, and exec'd code only if "
            "it is put into `linecache`"
        ) from None
    text = "".join(lines)
    indented = text[:1].isspace()
    try:
        tree = ast.parse(("if 1:\n" if indented else "") + text)
    except SyntaxError:
        raise SourceUnavailableError(
            f"the source of `{name}` cannot be parsed on its own (has its file changed?)"
        ) from None
    top = tree.body[0].body[0] if indented and isinstance(tree.body[0], ast.If) else tree.body[0]
    if not isinstance(top, ast.FunctionDef) or top.name != function.__code__.co_name:
        raise SourceUnavailableError(f"the source of `{name}` is not a plain `def {name}(...)`")
    ast.increment_lineno(top, first - 1 - (1 if indented else 0))
    assigned: dict[str, int] = {}
    in_loop: set[str] = set()
    _collect_assigned(top.body, assigned, in_loop, False)
    early = unassigned_reads(top, assigned)
    return Definition(top, file, text.isascii(), assigned, frozenset(in_loop), early)


def _collect_assigned(
    body: Sequence[ast.AST], counts: dict[str, int], in_loop: set[str], loop: bool
) -> None:
    def name(node: ast.AST, many: bool = False) -> None:
        for n in ast.walk(node):
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
                counts[n.id] = counts.get(n.id, 0) + (2 if many else 1)
                if loop:
                    in_loop.add(n.id)

    for s in body:
        match s:
            case ast.AugAssign(target=t):
                name(t, many=True)
                for n in ast.walk(s.value):
                    if isinstance(n, ast.NamedExpr):
                        name(n.target, many=True)
                continue
            case ast.For(target=t):
                name(t, many=True)
                _collect_assigned([s.iter], counts, in_loop, loop)
                _collect_assigned(s.body, counts, in_loop, True)
                _collect_assigned(s.orelse, counts, in_loop, loop)
                continue
            case ast.While():
                _collect_assigned([s.test], counts, in_loop, True)
                _collect_assigned(s.body, counts, in_loop, True)
                _collect_assigned(s.orelse, counts, in_loop, loop)
                continue
            case ast.If():
                _collect_assigned([s.test], counts, in_loop, loop)
                _collect_assigned(s.body, counts, in_loop, loop)
                _collect_assigned(s.orelse, counts, in_loop, loop)
                continue
        for n in ast.walk(s):
            if isinstance(n, ast.NamedExpr):
                name(n.target, many=True)
        for n in ast.iter_child_nodes(s):
            if isinstance(n, ast.expr):
                name(n)


# ---- scopes ----


@dataclass
class Scope:
    """One function being translated: the kernel, or a device function at one call site."""

    function: types.FunctionType
    definition: Definition
    prefix: str
    calls: tuple[Place, ...]
    names: dict[str, Value] = field(default_factory=dict)  # what names stand for in this pass
    globals: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, Any] = field(default_factory=dict)
    inlined: bool = False
    result_key: str = ""
    returned: Value | None = None
    loops: list[LoopContext] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.function.__name__


@dataclass
class LoopContext:
    """The innermost loop: what `break` must set for its `else`, and how an unrolled one is left."""

    broke: ir.Variable | None = None
    unrolled: bool = False


@dataclass(frozen=True)
class Slot:
    """What is known of a variable over all passes: a scalar's dtype or the shape of something larger."""

    kind: str  # "scalar", "tuple", "array", "record", "object"
    dtype: DType | None = None
    value: Any = None
    place: Place = NOWHERE


@dataclass
class Translation:
    """A finished kernel, and what it captured from its surroundings."""

    function: ir.Function
    captures: dict[tuple[int, str], tuple[Any, str, Any]]
    warnings: list[str] = field(default_factory=list)


class Translator:
    """Translates one kernel; see the module's docstring."""

    def __init__(
        self, function: types.FunctionType, argument_types: Sequence[Type], options: Options
    ) -> None:
        self.options = options
        self.argument_types = tuple(argument_types)
        self.slots: dict[str, Slot] = {}
        self.demands: dict[str, set[DType]] = {}
        self.feeds: dict[str, set[str]] = {}
        self.dirty = False
        self.function = function
        self.captures: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self.user_types: dict[str, DType] = {}

    # -- the passes --

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
        self.dirty = False
        self.gone: ir.Variable | None = None
        self.counter: dict[str, int] = {}
        self.body: list[ir.Statement] = []
        self.prologue: dict[Any, ir.Assign] = {}
        self.fits: dict[tuple[ir.Variable, DType], None] = {}
        self.arrays: dict[str, ir.Array] = {}
        self.constants: dict[Any, ir.Array] = {}
        self.unresolved: Unresolved | None = None
        self.demands, self.feeds = {}, {}
        self.unrolled = 0
        self.scope = self.open_scope(self.function, "", ())
        self.where = self.place(self.scope.definition.tree)
        self.parameters: list[ir.Array | ir.Variable] = []
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
            )
        )

    # -- places, names, temporaries --

    def place(self, node: ast.AST) -> Place:
        d, scope = self.scope.definition, self.scope
        if not isinstance(node, (ast.expr, ast.stmt, ast.arg, ast.keyword)):
            return self.where
        column, end = node.col_offset, node.end_col_offset or node.col_offset
        line, last = node.lineno, node.end_lineno or node.lineno
        if not d.ascii:
            column = len(linecache.getline(d.file, line).encode()[:column].decode(errors="replace"))
            end = len(linecache.getline(d.file, last).encode()[:end].decode(errors="replace"))
        if isinstance(node, ast.FunctionDef):
            last, end = line, column + len(f"def {node.name}")
        return Place(d.file, line, column, last, end, scope.name, scope.calls)

    def open_scope(
        self, function: types.FunctionType, prefix: str, calls: tuple[Place, ...]
    ) -> Scope:
        cells = {}
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            with contextlib.suppress(ValueError):  # still empty
                cells[name] = cell
        return Scope(function, definition(function), prefix, calls, {}, function.__globals__, cells)

    def unique(self, name: str) -> str:
        count = self.counter.get(name, 0)
        self.counter[name] = count + 1
        return name if count == 0 else f"{name}_{count}"

    def emit(self, statement: ir.Statement) -> None:
        self.body.append(statement)

    @contextlib.contextmanager
    def block(self) -> Iterator[list[ir.Statement]]:
        """Statements emitted inside go to a list of their own."""
        outer, self.body = self.body, []
        try:
            yield self.body
        finally:
            self.body = outer

    def temporary(self, value: ir.Expr, name: str = "t") -> ir.Expr:
        """Compute once, here. Weak values stay weak in the variable's slot."""
        if isinstance(value, (ir.Const, ir.Special, ir.Extent, ir.Stride)) or self.is_host(value):
            return value
        key = f".{self.unique(name)}"
        return self.assign(key, value, value.place)

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

    # -- parameters --

    def bind_parameters(self) -> None:
        tree = self.scope.definition.tree
        a = tree.args
        for extra in (a.vararg, a.kwarg):
            if extra is not None:
                raise UnsupportedError(
                    f"a kernel cannot take `*{extra.arg}`: each parameter has a name and a type",
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

    # -- binding names --

    def bind(self, name: str, value: Value, place: Place) -> None:
        """`name = value`. A name assigned in one place stands for a compile-time value itself."""
        scope = self.scope
        key = scope.prefix + name
        once = scope.definition.assigned.get(name, 0) <= 1
        if once and not isinstance(value, EXPR):
            scope.names[name] = self.settled(value)
            self.remember(key, scope.names[name], place)
            return
        if (
            once
            and isinstance(value, EXPR)
            and value.dtype.weak
            and value.dtype is not INDEX
            and self.is_host(value)
        ):
            scope.names[name] = value
            self.remember(key, value, place)
            return
        scope.names[name] = self.bind_key(key, value, place)

    def remember(self, key: str, value: Value, place: Place, *, once: bool = True) -> None:
        """What a name stands for, for reads above its assignment (the loop comes round)."""
        slot = self.slots.get(key)
        if slot is None or (once and slot.value != value):
            self.slots[key] = Slot("object", None, value, place)
            self.dirty = True

    def settled(self, value: Value) -> Value:
        """The value with index expressions computed now, so that later assignments cannot change them."""
        match value:
            case ArrayRef():
                axes = tuple(
                    replace(
                        a, start=self.pin(a.start), step=self.pin(a.step), extent=self.pin(a.extent)
                    )
                    for a in value.axes
                )
                fixed = tuple(None if f is None else self.pin(f) for f in value.fixed)
                selector = None if value.selector is None else self.pin(value.selector)
                return replace(value, axes=axes, fixed=fixed, selector=selector)
            case RecordRef():
                array = self.settled(value.array)
                assert isinstance(array, ArrayRef)
                return replace(value, array=array)
            case TupleValue():
                return replace(value, items=tuple(self.settled(v) for v in value.items))
            case RangeValue(start, stop, step):
                return replace(
                    value, start=self.pin(start), stop=self.pin(stop), step=self.pin(step)
                )
        if isinstance(value, EXPR):
            return self.pin(value)
        return value

    def pin(self, e: ir.Expr) -> ir.Expr:
        if all(
            isinstance(x, (ir.Const, ir.Special, ir.Extent, ir.Stride))
            or (isinstance(x, ir.Op) and len(x.operands) <= 2)
            or (isinstance(x, ir.Read) and self.is_fixed(x.variable))
            for x in ir.walk(e)
        ):
            return e
        return self.temporary(e)

    def is_fixed(self, variable: ir.Variable) -> bool:
        """A parameter or a temporary: nothing assigns it again while its value is wanted."""
        return variable in self.parameters

    def bind_key(self, key: str, value: Value, place: Place) -> Value:
        slot = self.slots.get(key)
        if slot is not None and slot.kind == "object":
            slot = None
        match value:
            case TupleValue(items, names, cls):
                if slot is not None and (slot.kind != "tuple" or slot.value[0] != len(items)):
                    if slot.kind == "tuple":
                        raise KernelTypeError(
                            f"`{key.rsplit('.', 1)[-1]}` is a tuple of {slot.value[0]} at line "
                            f"{slot.place.line} and of {len(items)} here",
                            place,
                            hint="use tuples of one length, or a local array",
                        )
                    self.mixed(key, slot, value, place)
                if slot is None:
                    self.slots[key] = Slot("tuple", None, (len(items), names, cls), place)
                    self.dirty = True
                # All items first: `a, b = b, a`.
                items = tuple(self.settled(v) if len(items) > 1 else v for v in items)
                bound = [self.bind_key(f"{key}.{k}", v, place) for k, v in enumerate(items)]
                return TupleValue(tuple(bound), names, cls)
            case ArrayRef():
                return self.bind_array(key, value, slot, place)
            case RecordRef():
                array = self.bind_array(
                    f"{key}.record", value.array, self.slots.get(f"{key}.record"), place
                )
                assert isinstance(array, ArrayRef)
                return replace(value, array=array)
            case PyObject() | Method() | RangeValue():
                if slot is not None and slot.kind != "static":
                    self.mixed(key, slot, value, place)
                if slot is not None and slot.value != value:
                    raise KernelTypeError(
                        f"`{key.rsplit('.', 1)[-1]}` is {describe(slot.value)} at line "
                        f"{slot.place.line} and {describe(value)} here",
                        place,
                        hint="a Python object must be known while compiling: use two names",
                    )
                if slot is None:
                    self.slots[key] = Slot("static", None, value, place)
                    self.dirty = True
                return value
        return self.assign(key, value, place)

    def bind_array(self, key: str, value: ArrayRef, slot: Slot | None, place: Place) -> Value:
        """A variable that holds one of several arrays: index variables and, if needed, a selector."""
        roots = list(value.roots)
        if slot is not None:
            if slot.kind != "array":
                self.mixed(key, slot, value, place)
            old: ArrayRef = slot.value
            same = (
                old.ndim == value.ndim
                and old.element == value.element
                and old.root.space == value.root.space
                and [a.root_axis for a in old.axes] == [a.root_axis for a in value.axes]
                and len(old.fixed) == len(value.fixed)
                and old.field == value.field
            )
            if not same:
                raise KernelTypeError(
                    f"`{key.rsplit('.', 1)[-1]}` is {old.describe()} at line {slot.place.line} "
                    f"and {value.describe()} here: a variable may hold several arrays only of one "
                    "space, dtype and form",
                    place,
                    hint="use two names",
                )
            known = list(old.roots)
            roots = known + [r for r in roots if r not in known]
        if slot is None or tuple(roots) != slot.value.roots:
            shape = ArrayRef(tuple(roots), value.fixed, value.axes, None, value.field)
            self.slots[key] = Slot("array", None, shape, slot.place if slot else place)
            self.dirty = True
        value = self.settled(value)  # type: ignore[assignment]
        selector: ir.Expr | None = None
        if len(roots) > 1:
            number: ir.Expr = ir.Const(roots.index(value.root), dtypes.int32)
            if len(value.roots) > 1:
                assert value.selector is not None
                number = ir.Const(roots.index(value.roots[-1]), dtypes.int32)
                for k, root in reversed(list(enumerate(value.roots[:-1]))):
                    here = ir.Op("eq", (value.selector, ir.Const(k, dtypes.int32)), dtypes.bool_)
                    number = ir.Select(here, ir.Const(roots.index(root), dtypes.int32), number)
            selector = self.assign(f"{key}.which", number, place)
        axes = []
        for k, axis in enumerate(value.axes):
            extent = axis.extent
            if not (isinstance(extent, ir.Const) and all(r.shape is not None for r in roots)):
                extent = self.assign(f"{key}.extent{k}", extent, place)
            start = (
                axis.start
                if axis.start == ZERO
                else self.assign(f"{key}.start{k}", axis.start, place)
            )
            step = (
                axis.step if axis.step == ONE else self.assign(f"{key}.step{k}", axis.step, place)
            )
            axes.append(Axis(axis.root_axis, start, step, extent))
        fixed = tuple(
            None if f is None else self.assign(f"{key}.index{k}", f, place)
            for k, f in enumerate(value.fixed)
        )
        return ArrayRef(tuple(roots), fixed, tuple(axes), selector, value.field)

    def lookup(self, name: str, place: Place) -> Value:
        scope = self.scope
        if name in scope.names:
            value = scope.names[name]
            return self.refresh(scope.prefix + name, value, place)
        if name in scope.definition.assigned:
            if (place.line, name) in scope.definition.unassigned:
                raise KernelNameError(
                    f"local variable `{name}` is read before anything is assigned to it", place
                )
            slot = self.slots.get(scope.prefix + name)
            if slot is None:
                raise Unresolved(name, place)
            return self.from_slot(scope.prefix + name, slot, place)
        if name in scope.cells:
            cell = scope.cells[name]
            try:
                content = cell.cell_contents
            except ValueError:  # empty: not assigned yet, or deleted
                raise KernelNameError(f"variable `{name}` has no value", place) from None
            return self.capture(cell, "cell_contents", name, content, place)
        if name in scope.globals:
            return self.capture(scope.globals, name, name, scope.globals[name], place)
        if hasattr(builtins, name):
            return PyObject(getattr(builtins, name))
        raise KernelNameError(f"name `{name}` is not defined", place, hint=self.similar_name(name))

    def similar_name(self, name: str) -> str | None:
        import difflib

        known = [*self.scope.names, *self.scope.definition.assigned, *self.scope.globals]
        close = difflib.get_close_matches(name, known, 1)
        return f"did you mean `{close[0]}`?" if close else None

    def refresh(self, key: str, value: Value, place: Place) -> Value:
        """A variable read now has the dtype known now."""
        if isinstance(value, ir.Read):
            return replace(value, place=place)
        return value

    def from_slot(self, key: str, slot: Slot, place: Place) -> Value:
        """A name read above the assignment that gives its type (the loop comes round)."""
        match slot.kind:
            case "scalar":
                assert slot.dtype is not None
                return ir.Read(self.variable(key, slot.dtype), place=place)
            case "tuple":
                count, names, cls = slot.value
                items = []
                for k in range(count):
                    inner = self.slots.get(f"{key}.{k}")
                    if inner is None:
                        raise Unresolved(key.rsplit(".", 1)[-1], place)
                    items.append(self.from_slot(f"{key}.{k}", inner, place))
                return TupleValue(tuple(items), names, cls)
            case "object" | "static":
                return slot.value  # type: ignore[no-any-return]
        raise Unresolved(key.rsplit(".", 1)[-1], place)

    def capture(self, holder: Any, key: str, name: str, value: Any, place: Place) -> Value:
        """A global or closure value is a constant of this specialisation."""
        self.captures[(id(holder), key)] = (holder, key, value)
        return self.wrap_object(value, place, name)

    def wrap_object(self, value: Any, place: Place, name: str = "") -> Value:
        """A Python object as a compile-time value."""
        if isinstance(value, (bool, np.bool_)):
            return ir.Const(bool(value), dtypes.bool_, place=place)
        if isinstance(value, enum.Enum) and isinstance(value.value, (int, float)):
            return self.wrap_object(value.value, place, name)
        if isinstance(value, int):
            return ir.Const(int(value), dtypes.weak_int, place=place)
        if isinstance(value, np.generic):
            if value.dtype.names is not None:
                return self.constant_array(np.array([value]), place, record=True)
            dtype = self.dtype_of(value.dtype, place)
            return ir.Const(
                value.item() if dtype.name != "bfloat16" else float(value), dtype, place=place
            )
        if isinstance(value, float):
            return ir.Const(float(value), dtypes.weak_float, place=place)
        if isinstance(value, complex):
            return ir.Const(complex(value), dtypes.weak_complex, place=place)
        if isinstance(value, tuple):
            items = tuple(self.wrap_object(v, place, name) for v in value)
            names = getattr(type(value), "_fields", ())
            return TupleValue(items, tuple(names), type(value) if names else None)
        if isinstance(value, np.ndarray):
            return self.constant_array(value, place, name=name)
        if hasattr(value, "__ruda_array_type__"):
            raise KernelTypeError(
                f"`{name}` is an array on a device and cannot be captured",
                place,
                hint="pass it as an argument",
            )
        return PyObject(value)

    def dtype_of(self, dtype: Any, place: Place) -> DType:
        try:
            return as_dtype(dtype)
        except DTypeError as error:
            raise KernelTypeError(str(error), place) from None

    def constant_array(
        self,
        value: np.ndarray[Any, Any],
        place: Place,
        name: str = "constant",
        record: bool = False,
    ) -> Value:
        """A captured NumPy array: read-only data of the kernel, shared by equal captures."""
        try:
            dtype = element_type(value.dtype)
        except DTypeError as error:
            raise KernelTypeError(f"the captured array `{name}`: {error}", place) from None
        data = np.ascontiguousarray(value).tobytes()
        key = (data, value.shape, str(value.dtype))
        if key not in self.constants:
            array = ir.Array(
                self.unique(name or "constant"), dtype, value.ndim, "const", "C",
                tuple(value.shape), readonly=True, data=data,
            )  # fmt: skip
            self.constants[key] = self.arrays[array.name] = array
        view = whole(self.constants[key])
        if record:
            assert isinstance(dtype, RecordType)
            return RecordRef(replace(view, fixed=(ZERO,), axes=()), dtype)
        return view

    # -- conversion --

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
        """The value at a dtype: constants are converted now, weak expressions are computed at it."""
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
            if self.is_host(e):
                return self.host_scalar(e, dtype)
            if dtype.weak and dtype is not INDEX:
                return ir.Cast(e, dtype, place=e.place)
            if have is not dtypes.weak_int and dtype.is_inexact and isinstance(e, ir.Op):
                if not (have.kind == "complex" and dtype.kind != "complex"):
                    operands = tuple(self.coerce(o, dtype) for o in e.operands)
                    if all(o.dtype is dtype for o in operands):
                        return replace(e, operands=operands, dtype=dtype)
            if have is not dtypes.weak_int and isinstance(e, ir.Select) and dtype.is_inexact:
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

    # -- operations --

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
        if all(isinstance(o, ir.Const) for o in operands):
            return self.fold(name, row, operands, common, place)
        if name in ("add", "sub", "mul") and common.is_integer:
            simple = self.simplify(name, operands, common)
            if simple is not None:
                return simple
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
                dtype = dtypes.bool_ if isinstance(result, bool) else dtypes.weak_int
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

    # -- evaluating nodes --

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
        raise KernelTypeError(f"expected {what}, got {describe(value)}", place)

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

    def keep(self, value: Value) -> Value:
        """The value as it is now, whatever is assigned or stored later."""
        if isinstance(value, EXPR):
            loads = any(isinstance(e, (ir.Load, ir.Read)) for e in ir.walk(value))
            return self.temporary(value) if loads else value
        if isinstance(value, TupleValue):
            return replace(value, items=tuple(self.keep(v) for v in value.items))
        return self.settled(value)

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
        special = calls.binary(self, name, left, right, place)
        if special is not None:
            return special
        if not isinstance(left, EXPR) or not isinstance(right, EXPR):
            raise KernelTypeError(
                f"cannot {verb} {describe(left)} {'by' if verb in ('multiply', 'divide', 'shift', 'raise') else 'and'} {describe(right)}",
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
        special = calls.unary(self, name, operand, place)
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
        operands = self.values((node.left, *node.comparators))
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
            if not isinstance(right, TupleValue):
                raise UnsupportedError(
                    "`in` is not in the kernel language, except for tuples",
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

    def logical(self, kind: Any, left: ir.Expr, right: ir.Expr, place: Place) -> ir.Expr:
        """`and` / `or` of bools, simplified where one side is known."""
        stop = kind is ir.Or
        if isinstance(left, ir.Const):
            return left if bool(left.value) == stop else right
        if isinstance(right, ir.Const) and bool(right.value) != stop:
            return left
        return kind(left, right, place=place)  # type: ignore[no-any-return]

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

    def select(self, condition: ir.Expr, then: ir.Expr, other: ir.Expr, place: Place) -> ir.Expr:
        dtype = dtypes.promote(then.dtype, other.dtype)
        if dtype.weak and dtype is not INDEX and not self.is_host(condition):
            if dtype is dtypes.weak_int and not (self.is_host(then) and self.is_host(other)):
                dtype = INDEX
        then, other = self.coerce(then, dtype), self.coerce(other, dtype)
        return ir.Select(condition, then, other, place=place)

    def visit_walrus(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        assert isinstance(node.target, ast.Name)
        self.bind(node.target.id, value, self.place(node))
        return self.lookup(node.target.id, self.place(node))

    def visit_attribute(self, node: ast.Attribute) -> Value:
        owner = self.value(node.value)
        from ruda.jit import calls

        return calls.attribute(self, owner, node.attr, self.place(node))

    def visit_subscript(self, node: ast.Subscript) -> Value:
        owner = self.value(node.value)
        from ruda.jit import calls

        index = self.index_values(node.slice)
        return calls.subscript(self, owner, index, self.place(node))

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

        return calls.call(self, node)

    EXPRESSIONS: dict[type, Callable[[Any, Any], Value]] = {
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

    # -- array elements --

    def root_indices(
        self, array: ArrayRef, indices: Sequence[ir.Expr], place: Place
    ) -> tuple[ir.Expr, ...]:
        """Indices of the root for wrapped indices of a view."""
        out: list[ir.Expr] = [f if f is not None else ZERO for f in array.fixed]
        for axis, i in zip(array.axes, indices, strict=True):
            out[axis.root_axis] = self.operation(
                "add", (axis.start, self.operation("mul", (i, axis.step), place)), place
            )
        return tuple(out)

    def wrapped(self, i: ir.Expr, extent: ir.Expr, place: Place) -> ir.Expr:
        """Python's negative indices; the proof that there are none is left to a pass."""
        if isinstance(i, ir.Const) and isinstance(extent, ir.Const):
            value = i.value + extent.value if i.value < 0 else i.value
            if not 0 <= value < extent.value:
                raise KernelValueError(
                    f"index {i.value} is out of range for an axis of {extent.value}", place
                )
            return ir.Const(value, INDEX, place=place)
        if isinstance(i, ir.Const):
            return i if i.value >= 0 else self.operation("add", (extent, i), place)
        if isinstance(i, (ir.Special, ir.Extent)) or not self.options.wraparound:
            return i
        return ir.Op("wrap", (i, extent), INDEX, place=place)

    def element_indices(
        self, array: ArrayRef, indices: Sequence[ir.Expr], place: Place
    ) -> tuple[ir.Expr, ...]:
        wrapped = [
            self.wrapped(self.as_index(i), axis.extent, place)
            for axis, i in zip(array.axes, indices, strict=True)
        ]
        return self.root_indices(array, wrapped, place)

    def field_of(self, array: ArrayRef) -> ir.Field | None:
        if array.field is None:
            return None
        offset, kind = array.field
        assert isinstance(kind, DType)
        return ir.Field(offset, kind)

    def load(self, array: ArrayRef, indices: Sequence[ir.Expr], place: Place) -> ir.Expr:
        """The element of a view at as many indices as it has axes."""
        at = self.element_indices(array, indices, place)
        if len(array.roots) == 1:
            return ir.Load(array.root, at, self.field_of(array), place=place)
        key = f".{self.unique('element')}"
        result: Any = None

        def one(root: ir.Array) -> None:
            nonlocal result
            load = ir.Load(root, self.for_root(array, root, at), self.field_of(array), place=place)
            result = self.assign(key, load, place)

        self.choose(array, one, place)
        return result  # type: ignore[no-any-return]

    def for_root(
        self, array: ArrayRef, root: ir.Array, at: tuple[ir.Expr, ...]
    ) -> tuple[ir.Expr, ...]:
        return at

    def store(
        self, array: ArrayRef, indices: Sequence[ir.Expr], value: ir.Expr, place: Place
    ) -> None:
        self.check_writable(array, place)
        kind = array.element
        assert isinstance(kind, DType)
        at = self.element_indices(array, indices, place)
        if value.dtype.kind == "complex" and kind.kind != "complex":
            raise KernelTypeError(
                f"cannot store {describe(value)} in {array.describe()}", place, hint="take `.real`"
            )
        converted = self.coerce(value, kind, feeds=True)

        def one(root: ir.Array) -> None:
            self.emit(ir.Store(root, at, converted, self.field_of(array), place=place))

        self.choose(array, one, place)

    def check_writable(self, array: ArrayRef, place: Place) -> None:
        for root in array.roots:
            if root.space == "const":
                raise KernelTypeError(
                    f"`{root.name}` is a captured constant and cannot be written",
                    place,
                    hint="pass it as an argument",
                )
            if root.readonly:
                raise KernelTypeError(
                    f"`{root.name}` is read-only and cannot be written", place, hint="pass a copy"
                )

    def choose(self, array: ArrayRef, action: Callable[[ir.Array], None], place: Place) -> None:
        """Do something with the root that the selector picks."""
        if len(array.roots) == 1:
            action(array.root)
            return
        assert array.selector is not None
        bodies = []
        for root in array.roots:
            with self.block() as body:
                action(root)
            bodies.append(tuple(body))
        chain: ir.Body = bodies[-1]
        for k in range(len(bodies) - 2, -1, -1):
            test = ir.Op(
                "eq", (array.selector, ir.Const(k, dtypes.int32)), dtypes.bool_, place=place
            )
            chain = (ir.If(test, bodies[k], chain, place=place),)
        self.body += chain

    # -- statements --

    def statements(self, body: Sequence[ast.stmt]) -> None:
        for s in body:
            handler = self.STATEMENTS.get(type(s))
            if handler is None:
                self.unsupported(s)
            before, mark = self.body, len(self.body)
            try:
                handler(self, s)  # type: ignore[misc]
            except Unresolved as missing:
                self.body = before
                del self.body[mark:]
                self.unresolved = self.unresolved or missing
                self.dirty = True

    def visit_assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        place = self.place(node)
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

    def assign_target(self, target: ast.expr, value: Value, place: Place) -> None:
        from ruda.jit import calls

        match target:
            case ast.Name(id=name):
                self.bind(name, value, place)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                if isinstance(value, ArrayRef):
                    value = calls.unpack(self, value, place)
                if not isinstance(value, TupleValue):
                    raise KernelTypeError(f"cannot unpack {describe(value)}", place)
                starred = [k for k, e in enumerate(elements) if isinstance(e, ast.Starred)]
                if starred:
                    self.unsupported(elements[starred[0]])
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
                    self, array, self.index_values(index), value, self.place(target)
                )
            case ast.Attribute(value=owner, attr=name):
                calls.assign_attribute(self, self.value(owner), name, value, self.place(target))
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
                    calls.assign_view(self, left, self.binary(node.op, left, right, place), place)
                    return
                self.bind(name, self.binary(node.op, left, right, place), place)
            case ast.Subscript(value=owner, slice=index):
                array = self.value(owner)
                at = [
                    self.settled(i) if not isinstance(i, slice) else i
                    for i in self.index_values(index)
                ]
                left = calls.subscript(self, array, at, self.place(node.target))
                right = self.value(node.value)
                result = self.binary(node.op, left, right, place)
                calls.assign_subscript(self, array, at, result, self.place(node.target))
            case ast.Attribute(value=owner, attr=name):
                record = self.settled(self.value(owner))
                left = calls.attribute(self, record, name, self.place(node.target))
                right = self.value(node.value)
                result = self.binary(node.op, left, right, place)
                calls.assign_attribute(self, record, name, result, self.place(node.target))
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

        iterable = self.value(node.iter)
        place = self.place(node)
        broke = self.broke_flag(node, place)
        calls.iterate(self, node, iterable, broke, place)
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
        """Whether a use lies in the body of another loop that has the same variable."""
        for other in ast.walk(self.scope.definition.tree):
            if isinstance(other, ast.For) and other is not node:
                if isinstance(other.target, ast.Name) and other.target.id == name:
                    if any(n is use for s in other.body for n in ast.walk(s)):
                        return True
        return False

    def unrolled_loop(
        self, node: ast.For, items: Sequence[Value], broke: ir.Variable | None, place: Place
    ) -> None:
        """One copy of the body an item. A body with `break` or `continue` becomes a loop of one round."""
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
                self.bind_round(node.target, item, place)
                self.statements(node.body)
                self.scope.loops.pop()
                continue
            self.scope.loops.append(LoopContext(broke, unrolled=True))
            with self.block() as body:
                self.bind_round(node.target, item, place)
                with self.leaving(gone):
                    self.statements(node.body)
                body.append(ir.Break(place=place))
            self.scope.loops.pop()
            test = ir.Op("not", (ir.Read(gone),), dtypes.bool_, place=place)
            once = ir.While(TRUE, tuple(body), place=place)
            self.emit(ir.If(test, (once,), place=place))

    def bind_round(self, target: ast.expr, item: Value, place: Place) -> None:
        """The target of an unrolled loop stands for the item itself where nothing else assigns it."""
        match target, item:
            case ast.Name(id=name), _ if self.scope.definition.assigned[name] == 2:
                self.scope.names[name] = self.keep(item)
                self.remember(self.scope.prefix + name, item, place, once=False)
            case ast.Tuple(elts=names), TupleValue(items=items) if len(names) == len(items):
                for one, part in zip(names, items, strict=True):
                    self.bind_round(one, part, place)
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
            return
        scope.returned = self.bind_key(scope.result_key, value, place)
        self.emit(ir.Return(place=place))

    def visit_expression(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return  # a docstring or `...`
        self.value(node.value)

    def visit_pass(self, node: ast.Pass) -> None:
        pass

    def visit_assert(self, node: ast.Assert) -> None:
        from ruda.jit import calls

        place = self.place(node)
        condition = self.truth(self.value(node.test), self.place(node.test))
        message = () if node.msg is None else calls.text_parts(self, [node.msg])
        self.emit(ir.Assert(condition, tuple(message), place=place))

    STATEMENTS: dict[type, Callable[[Any, Any], None]] = {
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

    # -- device functions --

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

    inlining: list[types.FunctionType] = []

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


_WEAK_INT: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "floordiv": lambda x, y: x // y if y else 0,
    "mod": lambda x, y: x % y if y else 0,
    "pow": lambda x, y: x**y if y >= 0 else {1: 1, -1: -1 if y % 2 else 1}.get(x, 0),
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


def translate(
    function: types.FunctionType, argument_types: Sequence[Type], options: Options | None = None
) -> Translation:
    """Translate a kernel for given argument types; KernelError points at what cannot be."""
    translator = Translator(function, argument_types, options or Options())
    translator.inlining = []
    try:
        translation = translator.translate()
        if ir.has_barrier(translation.function.body):
            check_barriers(translation.function)  # the same verdict on every device
        return translation
    except KernelError as error:
        shown = ", ".join(map(str, argument_types))
        error.add_note(f"while translating kernel `{function.__name__}` with ({shown})")
        raise
