"""Whether a kernel's index arithmetic can be done in 32 bits, under bounds of what a launch brings.

Indices are 64 bits in meaning. A target that holds them in 32 asks here first. The bounds of the
leaves - extents, the grid, Python integers - come from the launch; intervals follow them through
the kernel. What matters is where a value is used:

* As an address: sums and products may wrap on the way, since the element exists, so that its number
  fits. The same holds for a conversion to an integer of 32 bits or less, which wraps by itself.
* In a comparison, a quotient, a loop's bounds, a conversion to float or to 64 bits: the value
  itself must fit.
* A float that becomes an index saturates at 32 bits; comparisons with what fits come out alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ruda.dtypes import DType
from ruda.jit import ir
from ruda.jit.ir import (
    And,
    Asm,
    Assign,
    Atomic,
    Body,
    Cast,
    Const,
    Expr,
    Extent,
    Function,
    Load,
    Op,
    Or,
    Read,
    Select,
    Special,
    Statement,
    Store,
    Stride,
    Variable,
)
from ruda.jit.passes.wraps import Env, Interval, Ranges, refine

NARROW = (-(1 << 31), (1 << 31) - 1)
Leaf = Extent | Stride | Special | Variable
_RING = {"add", "sub", "mul", "neg", "and", "or", "xor", "invert", "uniform"}
_BY_WIDTH = {"clz", "brev", "mulhi"}  # whose result depends on the bits that a value is held in
_ORDER = {"lt", "le", "gt", "ge", "eq", "ne"}


def leaves(function: Function) -> list[Leaf]:
    """What a launch brings into index arithmetic, for which `fits_narrow` wants bounds."""
    found: dict[Leaf, None] = {}
    for e in ir.all_expressions(function.body):
        match e:
            case Extent(array) | Stride(array):
                if array.shape is None:
                    found[e] = None
            case Special(name, axis) if name in ("blockIdx", "globalIdx", "gridDim", "globalDim"):
                found[Special(name, axis)] = None
            case Special("sharedBytes"):
                found[e] = None
            case Read(v) if is_index(v.dtype) and v in _inputs(function):
                found[v] = None
    return list(found)


def _inputs(function: Function) -> set[Variable]:
    parameters = {p for p in function.parameters if isinstance(p, Variable)}
    return parameters | {s.variable for s in function.prologue}


def fits_narrow(function: Function, bounds: Mapping[Leaf, Interval]) -> bool:
    """Whether 32 bits give the same results; leaves without bounds are only known to fit."""
    known = dict.fromkeys(leaves(function), NARROW)
    for leaf in known:
        if not isinstance(leaf, Variable | Stride):
            known[leaf] = 0, NARROW[1]
    known |= bounds
    if any(not _inside(interval) for interval in known.values()):
        return False
    widths = _Widths(function, known)
    widths.body(function.body, {k: v for k, v in known.items() if isinstance(k, Variable)})
    return widths.fits


def is_index(dtype: DType) -> bool:
    return dtype.name in ("index", "weak_int")


def _inside(interval: Interval) -> bool:
    return NARROW[0] <= interval[0] and interval[1] <= NARROW[1]


class _Widths(Ranges):
    """Follows intervals, and notes whether something does not fit."""

    def __init__(self, function: Function, bounds: Mapping[Leaf, Interval]) -> None:
        super().__init__(function)
        self.bounds = bounds
        self.fits = True
        self.quiet = 0  # loops whose intervals are not yet settled
        self.saturated = _saturated(function)

    def special(self, name: str, axis: int) -> Interval:
        found = self.bounds.get(Special(name, axis))
        return super().special(name, axis) if found is None else found

    def of(self, node: Expr, env: Env) -> Interval:
        match node:
            case Extent() | Stride() if node in self.bounds:
                return self.bounds[node]
        return super().of(node, env)

    # ---- uses of a value

    def rewrite(self, node: Expr, env: Env) -> Expr:
        """Nothing changes here: the value is looked at, as one that must fit."""
        if self.fits and not self.quiet:
            self.value(node, env)
        return node

    def value(self, node: Expr, env: Env) -> None:
        """A value is used as it is."""
        match node:
            case And(left, right) | Or(left, right):
                self.value(left, env)
                self.value(right, refine(self, env, left, isinstance(node, And)))
                return
            case Load(indices=indices):
                for i in indices:
                    self.address(i, env)
                return
            case Cast(value, dtype) if _wraps(value.dtype, dtype):
                self.wrapping(value, env)
                return
            case Op(name, operands) if name in _ORDER and is_index(operands[0].dtype):
                self.comparison(operands, env)
                return
            case ir.Bitcast(value) if is_index(value.dtype):
                self.fits = False
                return
            case Op(name, operands) if name in _BY_WIDTH and is_index(operands[0].dtype):
                self.fits = False
                return
        if is_index(node.dtype):
            self.fits &= _inside(self.of(node, env))
            if isinstance(node, Op) and node.name in (*_RING, "shl"):
                self.wrapping(node, env)
                return
        if isinstance(node, Select):
            self.value(node.condition, env)
            self.value(node.then, refine(self, env, node.condition, True))
            self.value(node.otherwise, refine(self, env, node.condition, False))
            return
        for child in ir.expressions(node):
            self.value(child, env)

    def comparison(self, operands: tuple[Expr, ...], env: Env) -> None:
        left, right = operands
        for x, other in ((left, right), (right, left)):
            low, high = self.of(other, env)
            if self.saturates(x) and NARROW[0] < low and high < NARROW[1]:
                self.value(x.value if isinstance(x, Cast) else Const(0, x.dtype), env)
            else:
                self.value(x, env)

    def wrapping(self, node: Expr, env: Env) -> None:
        """Only the low 32 bits of a value are used."""
        if self.saturates(node):
            self.fits &= _inside(self.of(node, env))
            return
        match node:
            case Op(name, operands) if name in _RING:
                for x in operands:
                    self.wrapping(x, env)
            case Op("shl", (x, n)):
                self.wrapping(x, env)
                self.value(n, env)
            case Select(condition, then, otherwise):
                self.value(condition, env)
                self.wrapping(then, refine(self, env, condition, True))
                self.wrapping(otherwise, refine(self, env, condition, False))
            case Read() | Const():
                pass
            case Cast(value) if value.dtype.is_integer or value.dtype.kind == "bool":
                self.value(value, env)
            case _:
                self.value(node, env)

    def address(self, node: Expr, env: Env) -> None:
        """A value is the index of an element that exists."""
        match node:
            case Op("wrap", (i, extent)):
                self.address(i, env)
                self.value(extent, env)
            case Cast(value) if self.saturates(node):
                self.value(value, env)
            case Read():
                pass
            case _:
                self.wrapping(node, env)

    def assigned(self, node: Expr, env: Env) -> None:
        match node:
            case Select(condition, then, otherwise):
                self.value(condition, env)
                self.assigned(then, refine(self, env, condition, True))
                self.assigned(otherwise, refine(self, env, condition, False))
            case _ if self.saturates(node):
                self.address(node, env)
            case _:
                self.wrapping(node, env)

    def saturates(self, node: Expr) -> bool:
        match node:
            case Cast(value, dtype):
                return is_index(dtype) and value.dtype.kind == "float"
            case Read(variable):
                return variable in self.saturated
        return False

    # ---- statements

    def statement(self, s: Statement, env: Env) -> tuple[Statement, Env | None]:
        look = self.fits and not self.quiet
        match s:
            case Store(indices=indices) | Atomic(indices=indices):
                if look:
                    for i in indices:
                        self.address(i, env)
                    for e in (s.value,) if isinstance(s, Store) else s.operands:
                        self.value(e, env)
                return s, {k: v for k, v in env.items() if k not in ir.written(s)}
            case Assign(variable, value) if is_index(variable.dtype):
                if look:  # it must fit where it is read, not here
                    self.assigned(value, env)
                return s, env | {variable: self.of(value, env)}
            case Asm("wgpu", "exchange", (value, *_), (result,)) if is_index(result.dtype):
                new, _ = super().statement(s, env)  # another thread's value, at the same place
                return new, env | {result: self.of(value, env)}
        return super().statement(s, env)

    def steady(self, body: Body, env: Env, enter: Callable[[Env], Env]) -> Env:
        self.quiet += 1
        try:
            return self.settled(body, env, enter)
        finally:
            self.quiet -= 1


def _wraps(source: DType, target: DType) -> bool:
    return is_index(source) and target.is_integer and target.bits <= 32


def _saturated(function: Function) -> set[Variable]:
    """Index variables that hold a float that was converted."""
    found: set[Variable] = set()
    while True:
        before = len(found)
        for s in ir.statements(function.body):
            match s:
                case Assign(variable, value) if is_index(variable.dtype):
                    if any(
                        (
                            isinstance(e, Cast)
                            and is_index(e.dtype)
                            and e.value.dtype.kind == "float"
                        )
                        or (isinstance(e, Read) and e.variable in found)
                        for e in _arms(value)
                    ):
                        found.add(variable)
        if len(found) == before:
            return found


def _arms(value: Expr) -> list[Expr]:
    if isinstance(value, Select):
        return [*_arms(value.then), *_arms(value.otherwise)]
    return [value]
