"""What a `for` can run over."""

from __future__ import annotations

import ast

from ruda import dtypes
from ruda.errors import (
    KernelTypeError,
    KernelValueError,
    Place,
)
from ruda.jit import ir
from ruda.jit.calls.python import range_length
from ruda.jit.calls.subscripts import subscript, tuple_item
from ruda.jit.frontend import INDEX, ONE, ZERO, Translator
from ruda.jit.values import (
    ArrayRef,
    Method,
    RangeValue,
    TupleValue,
    Value,
    describe,
)


def iterate(
    t: Translator, node: ast.For, iterable: Value, broke: ir.Variable | None, place: Place
) -> None:
    """A `for` over whatever kernels can loop over."""
    match iterable:
        case RangeValue(unroll=True):
            t.unrolled_loop(node, unrolled_items(t, iterable, place), broke, place)
        case RangeValue():
            t.range_loop(node, iterable, broke, place)
        case TupleValue(items):
            t.unrolled_loop(node, items, broke, place)
        case ArrayRef(ndim=n) if n:
            t.range_loop(
                node,
                RangeValue(ZERO, iterable.axes[0].extent, ONE),
                broke,
                place,
                lambda k: t.assign_target(node.target, subscript(t, iterable, [k], place), place),
            )
        case Method(owner=TupleValue(items), name="enumerate" | "zip" | "reversed" as kind):
            parallel_loop(t, node, kind, items, broke, place)
        case _:
            raise KernelTypeError(
                f"cannot loop over {describe(iterable)}", t.place(node.iter),
                hint="loop over range(...), a tuple or an array",
            )  # fmt: skip


MAX_UNROLL = 1 << 16  # more would compile for hours, and need as much memory


def unrolled_items(t: Translator, r: RangeValue, place: Place) -> list[Value]:
    bounds = [e.value if isinstance(e, ir.Const) else None for e in (r.start, r.stop, r.step)]
    if any(b is None for b in bounds):
        raise KernelTypeError(
            "`unroll` needs bounds that are known when the kernel is compiled", place,
            hint="use constants or `ruda.constexpr` parameters",
        )  # fmt: skip
    if bounds[2] == 0:
        raise KernelValueError("a step of `range` cannot be 0", place)
    items = range(*bounds)  # type: ignore[arg-type]
    if items[MAX_UNROLL:]:
        raise KernelValueError(
            f"`unroll` copies its body at most {MAX_UNROLL} times", place,
            hint="leave `unroll` out, or unroll an inner loop of few rounds",
        )  # fmt: skip
    if len(items) > t.options.unroll_limit:
        import warnings

        from ruda.errors import UnrollWarning

        warnings.warn(
            f"{place}: unrolling {len(items)} rounds is over the limit of {t.options.unroll_limit} "
            "(setting unroll_limit)", UnrollWarning, stacklevel=2,
        )  # fmt: skip
    return [ir.Const(k, dtypes.weak_int, place=place) for k in items]


def item_of(t: Translator, source: Value, k: ir.Expr, place: Place) -> Value:
    match source:
        case RangeValue(start=start, step=step):
            i = t.operation("mul", (k, t.coerce(step, INDEX)), place)
            return t.operation("add", (t.coerce(start, INDEX), i), place)
        case ArrayRef():
            return subscript(t, source, [k], place)
        case TupleValue():
            return tuple_item(t, source, [k], place)
        case Method(owner=TupleValue(items), name="enumerate"):
            start = t.as_index(t.number(items[1], place)) if len(items) > 1 else ZERO
            return TupleValue(
                (t.operation("add", (k, start), place), item_of(t, items[0], k, place))
            )
        case Method(owner=TupleValue(items), name="zip"):
            return TupleValue(tuple(item_of(t, s, k, place) for s in items))
        case Method(owner=TupleValue(items), name="reversed"):
            last = t.operation("sub", (length_of(t, items[0], place), ONE), place)
            return item_of(t, items[0], t.operation("sub", (last, k), place), place)
    raise KernelTypeError(f"cannot loop over {describe(source)}", place)


def length_of(t: Translator, source: Value, place: Place) -> ir.Expr:
    match source:
        case RangeValue():
            return range_length(t, source, place)
        case ArrayRef(axes=axes) if axes:
            return axes[0].extent
        case TupleValue(items):
            return ir.Const(len(items), INDEX, place=place)
        case Method(owner=TupleValue(items), name="zip"):
            lengths = [length_of(t, s, place) for s in items]
            result = lengths[0]
            for n in lengths[1:]:
                result = t.operation("min", (result, n), place)
            return result
        case Method(owner=TupleValue(items), name="enumerate" | "reversed"):
            return length_of(t, items[0], place)
    raise KernelTypeError(f"cannot loop over {describe(source)}", place)


def parallel_loop(
    t: Translator,
    node: ast.For,
    kind: str,
    sources: tuple[Value, ...],
    broke: ir.Variable | None,
    place: Place,
) -> None:
    """enumerate, zip and reversed: one counter; unrolled where tuples take part."""
    whole_source = Method(TupleValue(sources), kind)
    length = length_of(t, whole_source, place)
    if any_tuple(whole_source) and isinstance(length, ir.Const):
        items = [item_of(t, whole_source, ir.Const(k, INDEX), place) for k in range(length.value)]
        t.unrolled_loop(node, items, broke, place)
        return
    r = RangeValue(ZERO, length, ONE)
    t.range_loop(
        node,
        r,
        broke,
        place,
        lambda k: t.assign_target(node.target, item_of(t, whole_source, k, place), place),
    )


def any_tuple(source: Value) -> bool:
    match source:
        case TupleValue():
            return True
        case Method(owner=TupleValue(items)):
            return any(any_tuple(s) for s in items)
    return False
