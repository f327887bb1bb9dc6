"""What a translation carries along: options, scopes, what is known of each variable, the body so
far."""

from __future__ import annotations

import ast
import contextlib
import linecache
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from ruda import dtypes
from ruda.dtypes import DType
from ruda.errors import (
    NOWHERE,
    Place,
)
from ruda.jit import ir
from ruda.jit.frontend.source import Definition, definition
from ruda.jit.types import (
    Type,
)
from ruda.jit.values import (
    Value,
)

if TYPE_CHECKING:
    from ruda.jit.frontend.translator import Translator

INDEX = dtypes.index
ZERO, ONE = ir.Const(0, INDEX), ir.Const(1, INDEX)
TRUE, FALSE = ir.Const(True, dtypes.bool_), ir.Const(False, dtypes.bool_)
EXPR = (
    ir.Const, ir.Read, ir.Special, ir.Extent, ir.Stride, ir.Op, ir.Cast, ir.Bitcast, ir.Select,
    ir.And, ir.Or, ir.Load,
)  # fmt: skip


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
    max_registers: int | None = None
    default_int: DType = dtypes.int64
    unroll_limit: int = 4096


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
    returns_last: bool = False  # by its last statement, and there alone
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
    """What is known of a variable over all passes: a scalar's dtype or the shape of something
    larger."""

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


class State:
    """One walk over a kernel: places, names, and the statements emitted so far."""

    def __init__(
        self, function: types.FunctionType, argument_types: Sequence[Type], options: Options
    ) -> None:
        self.options = options
        self.argument_types = tuple(argument_types)
        self.slots: dict[str, Slot] = {}
        self.function = function
        self.captures: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self.scope: Scope
        self.where = NOWHERE
        self.start()

    def start(self) -> None:
        """Begin a walk: everything but the slots is made anew."""
        self.dirty = False
        self.gone: ir.Variable | None = None
        self.counter: dict[str, int] = {}
        self.at = NOWHERE  # the statement being translated
        self.body: list[ir.Statement] = []
        self.prologue: dict[Any, ir.Assign] = {}
        self.fits: dict[tuple[ir.Variable, DType], None] = {}
        self.arrays: dict[str, ir.Array] = {}
        self.constants: dict[Any, ir.Array] = {}
        self.unresolved: Unresolved | None = None
        self.demands: dict[str, set[DType]] = {}
        self.feeds: dict[str, set[str]] = {}
        self.unrolled = 0
        self.parameters: list[ir.Array | ir.Variable] = []
        self.inlining: list[types.FunctionType] = []

    @property
    def translator(self) -> Translator:
        """This object, as the class that has every method."""
        return cast("Translator", self)

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
        """A name that stands once in a walk, and for the same thing in every walk.

        It is counted within the statement being translated: a statement that one walk leaves out,
        because a type is not known yet, must not shift the names of the others.
        """
        if self.at.line:
            name = f"{name}@{self.at.line}:{self.at.column}"
        count = self.counter.get(name, 0)
        self.counter[name] = count + 1
        return name if count == 0 else f"{name}#{count}"

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
