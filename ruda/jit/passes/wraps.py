"""Remove `wrap` from indices that cannot be negative.

A Python index may count from the end, which costs a compare and an add, and keeps loops from
vectorising. An interval is kept for every integer variable, along the structure of the body: thread
indices and `range` variables start at 0, guards such as `if i > 0` raise a lower bound inside them
(and `if i < 1: return` behind them), loops keep what their body keeps.

Index arithmetic on thread indices and extents is taken not to overflow 64 bits; products with
constants are followed exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ruda.dtypes import DType
from ruda.jit import ir
from ruda.jit.ir import (
    And,
    Assign,
    Body,
    Cast,
    Const,
    Expr,
    Extent,
    For,
    Function,
    If,
    Op,
    Or,
    Read,
    Select,
    Special,
    Statement,
    Variable,
    While,
)  # fmt: skip

Interval = tuple[int, int]
FAR = 1 << 62
BLOCKS, THREADS, ELEMENTS = (1 << 31) - 1, 1024, 1 << 47
DEEP = 5  # loops in loops whose bounds are looked for
Key = Variable | Special
Env = dict[Key, Interval]
_NEGATED = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
_MIRROR = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def remove_wraps(function: Function) -> Function:
    """The function with `wrap` left only where an index may be negative."""
    ranges = Ranges(function)
    body, _ = ranges.body(function.body, {})
    return replace(function, body=body)


def whole(dtype: DType) -> Interval:
    """All values of an integer dtype."""
    return dtype.range if dtype.is_integer or dtype.kind == "bool" else (-FAR, FAR)


def fit(interval: Interval, dtype: DType) -> Interval:
    """An exact result as the dtype holds it: itself, or anything if it may have wrapped."""
    low, high = whole(dtype)
    return interval if low <= interval[0] and interval[1] <= high else (low, high)


def join(a: Interval, b: Interval) -> Interval:
    return min(a[0], b[0]), max(a[1], b[1])


def merge(a: Env | None, b: Env | None) -> Env | None:
    """What holds where two paths meet; a path that left contributes nothing."""
    if a is None or b is None:
        return b if a is None else a
    return {k: join(a[k], b[k]) for k in a.keys() & b.keys()}


@dataclass
class Ranges:
    """Intervals of integers along a body. `rewrite` is shown every expression, with what holds
    there; `widths` looks where this changes."""

    function: Function
    exits: list[list[Env | None]] = field(default_factory=list)  # of the loops around, for `break`

    # ---- values

    def of(self, node: Expr, env: Env) -> Interval:
        """The interval of an integer expression."""
        match node:
            case Const(value) if node.dtype.is_integer or node.dtype.kind == "bool":
                return int(value), int(value)
            case Read(variable):
                return env.get(variable, whole(variable.dtype))
            case Special(name, axis):
                plain = Special(name, axis)
                return env.get(plain) or self.special(name, axis)
            case Extent(array, axis):
                if array.shape is not None:
                    return array.shape[axis], array.shape[axis]
                return 0, ELEMENTS
            case Cast(value, dtype) if dtype.is_integer:
                source = value.dtype
                if source.is_integer or source.kind == "bool":
                    return fit(self.of(value, env), dtype)
            case Select(condition, then, otherwise):
                yes, no = refine(self, env, condition, True), refine(self, env, condition, False)
                return join(self.of(then, yes), self.of(otherwise, no))
            case Op("within", (i, _)):
                return self.of(i, env)
            case Op("wrap", (i, extent)):
                inside = self.of(i, env)
                return inside if inside[0] >= 0 else (0, max(0, self.of(extent, env)[1] - 1))
            case Op(name, operands) if node.dtype.is_integer:
                rule = _RULES.get(name)
                if rule is not None and all(o.dtype.is_integer for o in operands):
                    values = [self.of(o, env) for o in operands]
                    constant = any(v[0] == v[1] for v in values)
                    exact = rule(*values)
                    if exact is not None:
                        return self.bounded(exact, node.dtype, name, constant)
        return whole(node.dtype)

    def bounded(self, exact: Interval, dtype: DType, name: str, constant: bool) -> Interval:
        if dtype.name == "index" and not (name == "mul" and constant):
            return max(exact[0], -FAR), min(exact[1], FAR)
        return fit(exact, dtype)

    def special(self, name: str, axis: int) -> Interval:
        block = self.function.block
        threads = block[axis] if block else THREADS
        return {
            "threadIdx": (0, threads - 1),
            "blockIdx": (0, BLOCKS - 1),
            "blockDim": (1, threads),
            "gridDim": (1, BLOCKS),
            "globalIdx": (0, BLOCKS * threads - 1),
            "globalDim": (1, BLOCKS * threads),
            "laneid": (0, 31),
        }.get(name, (0, FAR))

    def moves(self, node: Expr, by: int, env: Env) -> bool:
        """Whether a constant may be added to a value without overflow."""
        return True

    # ---- expressions

    def rewrite(self, node: Expr, env: Env) -> Expr:
        """The expression with its provable wraps removed; the right of `and` knows its left."""
        match node:
            case And(left, right) | Or(left, right):
                inside = refine(self, env, left, isinstance(node, And))
                return replace(
                    node, left=self.rewrite(left, env), right=self.rewrite(right, inside)
                )
            case Select(condition, then, otherwise):
                return replace(
                    node,
                    condition=self.rewrite(condition, env),
                    then=self.rewrite(then, refine(self, env, condition, True)),
                    otherwise=self.rewrite(otherwise, refine(self, env, condition, False)),
                )
        new = ir.map_children(node, lambda e: self.rewrite(e, env))
        if isinstance(new, Op) and new.name == "within":  # checks have looked at it
            return new.operands[0]
        if isinstance(new, Op) and new.name == "wrap":
            i, extent = new.operands
            low, high = self.of(i, env)
            if low >= 0:
                return i
            if high < 0:
                return Op("add", (i, extent), new.dtype, place=new.place)
        return new

    # ---- statements

    def body(self, body: Body, env: Env | None) -> tuple[Body, Env | None]:
        out: list[Statement] = []
        for s in body:
            if env is None:  # never reached
                out.append(s)
                continue
            new, env = self.statement(s, env)
            out.append(new)
        return tuple(out), env

    def statement(self, s: Statement, env: Env) -> tuple[Statement, Env | None]:
        match s:
            case For():
                return self.loop(s, env)
            case While():
                return self.while_loop(s, env)
            case If(condition, then, otherwise):
                test = self.rewrite(condition, env)
                new_then, after_then = self.body(then, refine(self, env, condition, True))
                new_else, after_else = self.body(otherwise, refine(self, env, condition, False))
                new = replace(s, condition=test, then=new_then, otherwise=new_else)
                return new, merge(after_then, after_else)
            case ir.Return():
                return s, None
            case ir.Break():
                if self.exits:
                    self.exits[-1].append(env)
                return s, None
            case ir.Continue():
                return s, None
            case Assign(variable, value) if variable.dtype.is_integer:
                interval = self.of(value, env)
                return ir.map_children(s, lambda e: self.rewrite(e, env)), env | {
                    variable: interval
                }
        new_s = ir.map_children(s, lambda e: self.rewrite(e, env))
        return new_s, {k: v for k, v in env.items() if k not in ir.written(s)}

    def loop(self, s: For, env: Env) -> tuple[Statement, Env | None]:
        start, stop, step = (self.of(e, env) for e in (s.start, s.stop, s.step))
        if step[0] > 0:
            inside = start[0], max(start[0], stop[1] - 1)
        elif step[1] < 0:
            inside = min(start[1], stop[0] + 1), start[1]
        else:
            inside = whole(s.variable.dtype)
        head = ir.map_children(s, lambda e: self.rewrite(e, env))
        entry = self.steady(s.body, env, lambda e: e | {s.variable: inside})
        body, after = self.run(s.body, entry | {s.variable: inside})
        return replace(head, body=body), merge(entry, after)

    def while_loop(self, s: While, env: Env) -> tuple[Statement, Env | None]:
        enter: Callable[[Env], Env] = lambda e: refine(self, e, s.condition, True)  # noqa: E731
        entry = self.steady(s.body, env, enter)
        condition = self.rewrite(s.condition, entry)
        body, broken = self.run(s.body, enter(entry))
        forever = isinstance(s.condition, Const) and bool(s.condition.value)
        normal = None if forever else refine(self, entry, s.condition, False)
        return replace(s, condition=condition, body=body), merge(normal, broken)

    def run(self, body: Body, env: Env) -> tuple[Body, Env | None]:
        """A loop's body, and what holds where `break` left it."""
        self.exits.append([])
        new, _ = self.body(body, env)
        left: Env | None = None
        for leaving in self.exits.pop():
            left = merge(left, leaving)
        return new, left

    def steady(self, body: Body, env: Env, enter: Callable[[Env], Env]) -> Env:
        """What holds at the start of every round: bounds that the body does not break."""
        changed = {v for s in ir.statements(body) for v in ir.written(s)}
        if len(self.exits) >= DEEP:  # every loop around walks this one several times
            return env | {v: whole(v.dtype) for v in changed if v.dtype.is_integer}
        entry = dict(env)
        for attempt in range(4):
            self.exits.append([])
            _, end = self.body(body, enter(entry))
            self.exits.pop()
            skipped = self.continues(body)
            stable = True
            for v in changed:
                if not v.dtype.is_integer:
                    continue
                old = entry.get(v, whole(v.dtype))
                new = whole(v.dtype) if skipped else (end or {}).get(v, whole(v.dtype))
                if end is None and not skipped:
                    continue
                low = old[0] if new[0] >= old[0] else whole(v.dtype)[0]
                high = old[1] if new[1] <= old[1] else whole(v.dtype)[1]
                if attempt == 3:
                    low, high = whole(v.dtype)
                if (low, high) != old:
                    entry[v] = low, high
                    stable = False
            if stable:
                break
        return entry

    def settled(self, body: Body, env: Env, enter: Callable[[Env], Env]) -> Env:
        """Bounds that the body keeps; then one step back towards those that it makes."""
        entry = Ranges.steady(self, body, env, enter)
        if len(self.exits) >= DEEP:
            return entry
        self.exits.append([])
        _, end = self.body(body, enter(entry))
        self.exits.pop()
        if self.continues(body):
            return entry
        once = env if end is None else merge(env, end)
        assert once is not None
        changed = {v for s in ir.statements(body) for v in ir.written(s)}
        return entry | {v: once[v] for v in changed if v in once}

    def continues(self, body: Body) -> bool:
        """Whether a `continue` of this loop skips part of its body: then the end tells too
        little."""
        for s in body:
            match s:
                case ir.Continue():
                    return True
                case If(then=then, otherwise=otherwise):
                    if self.continues(then) or self.continues(otherwise):
                        return True
        return False


# ---- conditions ----------------------------------------------------------------------------------


def refine(ranges: Ranges, env: Env, condition: Expr, holds: bool) -> Env:
    """What is known where a condition holds (or does not)."""
    match condition:
        case And(left, right) if holds:
            return refine(ranges, refine(ranges, env, left, True), right, True)
        case Or(left, right) if not holds:
            return refine(ranges, refine(ranges, env, left, False), right, False)
        case Op("and", (left, right)) if holds and condition.dtype.kind == "bool":
            return refine(ranges, refine(ranges, env, left, True), right, True)
        case Op("or", (left, right)) if not holds and condition.dtype.kind == "bool":
            return refine(ranges, refine(ranges, env, left, False), right, False)
        case Op("not", (value,)):
            return refine(ranges, env, value, not holds)
        case Op(name, (left, right)) if name in _MIRROR and left.dtype.is_integer:
            name = name if holds else _NEGATED[name]
            env = _compare(ranges, env, left, name, ranges.of(right, env))
            return _compare(ranges, env, right, _MIRROR[name], ranges.of(left, env))
    return env


def _compare(ranges: Ranges, env: Env, node: Expr, name: str, other: Interval) -> Env:
    """`node name x` for some x in `other`."""
    low, high = ranges.of(node, env)
    match name:
        case "lt":
            high = min(high, other[1] - 1)
        case "le":
            high = min(high, other[1])
        case "gt":
            low = max(low, other[0] + 1)
        case "ge":
            low = max(low, other[0])
        case "eq":
            low, high = max(low, other[0]), min(high, other[1])
        case "ne" if other[0] == other[1]:
            low, high = low + (low == other[0]), high - (high == other[0])
    if low > high:  # cannot happen; whatever follows is never run
        return env
    return _assume(ranges, env, node, (low, high))


def _assume(ranges: Ranges, env: Env, node: Expr, interval: Interval) -> Env:
    """Hand an interval of an expression down to the variable inside it."""
    match node:
        case Read(variable):
            return env | {variable: interval}
        case Special(name, axis):
            return env | {Special(name, axis): interval}
        case Cast(value) if value.dtype.is_integer and ranges.of(value, env) == ranges.of(
            node, env
        ):
            return _assume(ranges, env, value, interval)
        case Op("add", (x, Const(c))) | Op("add", (Const(c), x)) if node.dtype.name == "index":
            if ranges.moves(x, c, env):
                return _assume(ranges, env, x, (interval[0] - c, interval[1] - c))
        case Op("sub", (x, Const(c))) if node.dtype.name == "index":
            if ranges.moves(x, -c, env):
                return _assume(ranges, env, x, (interval[0] + c, interval[1] + c))
    return env


# ---- arithmetic of intervals ---------------------------------------------------------------------


def _mul(a: Interval, b: Interval) -> Interval:
    products = [x * y for x in a for y in b]
    return min(products), max(products)


def _floordiv(a: Interval, b: Interval) -> Interval | None:
    if b[0] < 0:
        size = max(abs(a[0]), abs(a[1]))
        return -size, size
    quotients = [x // y for x in a for y in (max(1, b[0]), max(1, b[1]))]
    if b[0] == 0:
        quotients.append(0)  # x // 0
    return min(quotients), max(quotients)


def _mod(a: Interval, b: Interval) -> Interval | None:
    high = max(0, b[1] - 1)
    if b[0] < 0:
        return b[0] + 1, high
    return (0, min(high, a[1])) if a[0] >= 0 else (0, high)


def _and(a: Interval, b: Interval) -> Interval | None:
    highs = [x[1] for x in (a, b) if x[0] >= 0]
    return (0, min(highs)) if highs else _bits(a, b)


def _bits(a: Interval, b: Interval) -> Interval:
    """Whatever is done bit by bit to numbers that a signed width holds."""
    width = max(n.bit_length() for n in (*a, *b))
    return -(1 << width), (1 << width) - 1


def _or(a: Interval, b: Interval) -> Interval | None:
    if a[0] < 0 or b[0] < 0:
        return _bits(a, b)
    return 0, (1 << max(a[1].bit_length(), b[1].bit_length())) - 1


def _shr(a: Interval, b: Interval) -> Interval | None:
    if b[0] < 0:
        return min(a[0], -1), max(a[1], 0)
    few, many = min(b[0], 64), min(b[1], 64)
    return (a[0] >> (many if a[0] >= 0 else few)), (a[1] >> (few if a[1] >= 0 else many))


def _shl(a: Interval, b: Interval) -> Interval | None:
    if a[0] < 0 or not 0 <= b[0] <= b[1] < 64:
        return None
    return a[0] << b[0], a[1] << b[1]


def _abs(a: Interval) -> Interval:
    sizes = [abs(x) for x in a]
    return (0 if a[0] <= 0 <= a[1] else min(sizes)), max(sizes)


_RULES: dict[str, Callable[..., Interval | None]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _mul, "floordiv": _floordiv, "mod": _mod,
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "neg": lambda a: (-a[1], -a[0]), "abs": _abs, "uniform": lambda a: a,
    "and": _and, "or": _or, "xor": _or, "shl": _shl, "shr": _shr,
    "invert": lambda a: (-a[1] - 1, -a[0] - 1),
}  # fmt: skip
