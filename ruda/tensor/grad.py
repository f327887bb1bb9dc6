"""Derivatives, in reverse: from a result back to what it was made of, by the rows' gradients.

A tensor that derivatives are wanted of has a `History`: how it was made, and from what. Gradients
are computed by ops on tensors, so that they are lazy, fused and themselves differentiable.

Both styles stand on `reverse`: the functional one (`grad`, `vjp`, ...) and the tape (`backward`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ruda.errors import DTypeError, GradientError, ShapeError
from ruda.tensor.history import Gradient, History, attach, no_grad
from ruda.tensor.tensor import Tensor, asarray, astype, broadcast_to, function

# ---- the engine ----------------------------------------------------------------------------------


def reverse(out: Tensor, seed: Tensor, targets: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients of `sum(out * seed)` for the targets; None where it does not depend on one."""
    gradients: dict[int, Any] = {id(out): seed}
    stop = {id(x) for x in targets}
    for x in reversed(order(out, stop)):
        g = gradients.get(id(x))
        if g is None or id(x) in stop:
            continue
        history = x._history
        if history is None or history.gradient is None:
            continue
        check_versions(history)
        found = history.gradient(g, x, *history.inputs)
        for i, gi in zip(history.inputs, found, strict=True):
            if gi is None or type(i) is not Tensor or i._history is None:
                continue
            gi = fitted(gi, i)
            known = gradients.get(id(i))
            gradients[id(i)] = gi if known is None else known + gi
    return [gradients.get(id(x)) for x in targets]


def order(out: Tensor, stop: set[int]) -> list[Tensor]:
    """What a tensor was made of, inputs first, no further than the targets."""
    found: list[Tensor] = []
    seen: set[int] = set()
    stack: list[tuple[Tensor, bool]] = [(out, False)]
    while stack:
        x, ready = stack.pop()
        if ready:
            found.append(x)
        elif id(x) not in seen:
            seen.add(id(x))
            stack.append((x, True))
            if id(x) not in stop and x._history is not None:
                stack += [
                    (i, False)
                    for i in x._history.inputs
                    if type(i) is Tensor and i._history is not None
                ]
    return found


def check_versions(history: History) -> None:
    """The inputs must hold what they held when the op was recorded."""
    for i, version in zip(history.inputs, history.versions, strict=True):
        if type(i) is Tensor and i._storage.version != version:
            raise GradientError(
                f"an input of `{history.name}` was written in place after the op; "
                "its gradient would be of other values: write to a copy"
            )


def fitted(g: Tensor, x: Tensor) -> Tensor:
    """A gradient in the shape and dtype of what it is of: summed over broadcast axes."""
    if g.shape != x.shape:
        extra = g.ndim - x.ndim
        axes = tuple(range(extra)) + tuple(
            k + extra for k, n in enumerate(x.shape) if n == 1 and g.shape[k + extra] != 1
        )
        if extra < 0:
            return broadcast_to(g, x.shape)
        if axes:
            g = function("sum")(g, axis=axes, keepdims=True)
        if extra:
            g = g[(0,) * extra]
        if g.shape != x.shape:
            g = broadcast_to(g, x.shape)
    if g.dtype is not x.dtype:
        if g.dtype.kind == "complex" and x.dtype.kind == "float":
            g = function("real")(g)
        g = astype(g, x.dtype, copy=False)
    return g


# ---- functional ----------------------------------------------------------------------------------


def leaf(x: Any) -> Tensor:
    """An argument as the place where derivatives are taken; it goes on to an outer one."""
    x = asarray(x)
    if not x.dtype.is_inexact:
        raise DTypeError(f"derivatives are of floats, not {x.dtype}: convert with `astype`")
    here = Tensor(x._storage, x._view)
    if x._history is not None:
        here._history = History("argument", lambda g, out, i: (g,), (x,))
    else:
        here._history = History("argument", None, ())
    return here


def flatten(tree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The tensors of nested lists, tuples and dicts in order, and how to put others in place."""
    if isinstance(tree, dict):
        keys = list(tree)
        parts = [flatten(tree[k]) for k in keys]
        rebuild: Callable[[list[Any]], Any] = lambda items: dict(  # noqa: E731
            zip(keys, items, strict=True)
        )
    elif isinstance(tree, list | tuple):
        parts = [flatten(v) for v in tree]
        kind = type(tree)
        rebuild = (lambda items: kind(*items)) if hasattr(tree, "_fields") else kind
    else:
        return [tree], lambda items: items[0]
    counts = [len(leaves) for leaves, _ in parts]

    def restore(items: Sequence[Any]) -> Any:
        out, at = [], 0
        for n, (_, inner) in zip(counts, parts, strict=True):
            out.append(inner(items[at : at + n]))
            at += n
        return rebuild(out)

    return [v for leaves, _ in parts for v in leaves], restore


def vjp(f: Callable[..., Any], *arguments: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """`f`'s result, and the function from a gradient of it to the gradients of the arguments.

    >>> import ruda
    >>> y, back = ruda.vjp(lambda x: x * x, ruda.asarray([1.0, 2.0]))
    >>> back(ruda.asarray([1.0, 10.0]))[0]
    Tensor([ 2., 40.], dtype=float32, device='cpu')
    """
    leaves, restore = flatten(arguments)
    places = [leaf(x) for x in leaves]
    out = f(*restore(places))
    if not isinstance(out, Tensor):
        raise GradientError(f"the function gives {type(out).__name__}, not a tensor")

    def back(g: Any) -> tuple[Any, ...]:
        g = asarray(g, dtype=out.dtype, device=out.device)
        if g.shape != out.shape:
            raise ShapeError(f"a gradient of shape {g.shape} for a result of {out.shape}")
        found = reverse(out, g, places)
        filled = [zeros(x) if z is None else z for z, x in zip(found, places, strict=True)]
        return tuple(restore(filled))

    return out, back


def zeros(x: Tensor) -> Tensor:
    from ruda.tensor.creation import zeros_like

    return zeros_like(x)


def value_and_grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The function that gives `f`'s value, a number, and its gradient for some arguments.

    >>> import ruda
    >>> ruda.value_and_grad(lambda x: ruda.sum(x**3))(ruda.asarray([1.0, 2.0]))
    (Tensor(9., dtype=float32, device='cpu'), Tensor([ 3., 12.], dtype=float32, device='cpu'))
    """
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def both(*arguments: Any, **named: Any) -> tuple[Any, Any]:
        def of_chosen(*chosen: Any) -> Any:
            given = list(arguments)
            for k, v in zip(numbers, chosen, strict=True):
                given[k] = v
            return f(*given, **named)

        out, back = vjp(of_chosen, *(arguments[k] for k in numbers))
        if out.shape != ():
            raise ShapeError(
                f"`grad` needs a function that gives one number, not shape {out.shape}: "
                "sum it, or use `vjp` or `jacobian`"
            )
        found = back(1.0)
        return out, found[0] if isinstance(argnums, int) else found

    return both


def grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The function that gives the gradient of `f`; once more for the next derivative.

    >>> import ruda
    >>> ruda.grad(ruda.grad(ruda.sin))(ruda.asarray(0.5))
    Tensor(-0.47942555, dtype=float32, device='cpu')
    """
    both = value_and_grad(f, argnums)

    def gradient(*arguments: Any, **named: Any) -> Any:
        return both(*arguments, **named)[1]

    return gradient


def jvp(f: Callable[..., Any], arguments: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """`f`'s result, and its change along tangents: reverse, transposed by reverse again."""
    out, back = vjp(f, *arguments)

    def pulled(g: Tensor) -> Tensor:
        total: Any = 0.0
        for x, v in zip(back(g), tangents, strict=True):
            total = total + function("sum")(x * v)
        return total  # type: ignore[no-any-return]

    seed = leaf(zeros(out))
    return out, reverse_or_zero(pulled(seed), seed)


def reverse_or_zero(out: Tensor, x: Tensor) -> Tensor:
    (found,) = reverse(out, asarray(1.0, dtype=out.dtype, device=out.device), [x])
    return zeros(x) if found is None else found


def jacobian(f: Callable[[Any], Any]) -> Callable[[Any], Tensor]:
    """The derivative of each element of `f(x)` by each of `x`: shape `f(x).shape + x.shape`."""

    def all_rows(x: Any) -> Tensor:
        from ruda.tensor.creation import eye, stack
        from ruda.tensor.tensor import reshape

        out, back = vjp(f, x)
        units = eye(out.size, dtype=out.dtype, device=out.device)
        rows = [back(reshape(u, out.shape))[0] for u in units]
        x = asarray(x)
        return reshape(stack(rows) if rows else zeros(x), out.shape + x.shape)

    return all_rows


def hessian(f: Callable[[Any], Any]) -> Callable[[Any], Tensor]:
    """The second derivatives of a function that gives one number."""
    return jacobian(grad(f))


def hvp(f: Callable[[Any], Any], x: Any, v: Any) -> Tensor:
    """The Hessian times a vector, without the Hessian."""
    return grad(lambda y: function("sum")(grad(f)(y) * v))(x)  # type: ignore[no-any-return]


def stop_gradient(x: Tensor) -> Tensor:
    """The same elements, taken as constant."""
    return Tensor(x._storage, x._view)


def custom_vjp(forward: Callable[..., Any], backward: Gradient) -> Callable[..., Tensor]:
    """A function with a gradient of your own: `backward(g, result, *inputs)` gives one for each.

    >>> import ruda
    >>> clipped = ruda.custom_vjp(lambda x: x, lambda g, y, x: (ruda.clip(g, -1.0, 1.0),))
    >>> ruda.grad(lambda x: clipped(x) * 5)(ruda.asarray(2.0))
    Tensor(1., dtype=float32, device='cpu')
    """

    def call(*inputs: Any) -> Tensor:
        out = forward(*(stop_gradient(i) if type(i) is Tensor else i for i in inputs))
        result = Tensor(out._storage, out._view)
        return attach(result, getattr(forward, "__name__", "custom_vjp"), backward, inputs)

    return call


# ---- the tape ------------------------------------------------------------------------------------


def backward(out: Tensor, gradient: Any = None) -> None:
    """Add the gradients of a number to the `.grad` of every tensor it was made of.

    With `gradient` those of `sum(self * gradient)`, of a tensor of any shape.
    """
    if out._history is None:
        raise GradientError("nothing here was made with `requires_grad_()`")
    if gradient is None:
        if out.shape != ():
            raise ShapeError(f"`backward` of shape {out.shape}: sum it, or pass a gradient")
        gradient = 1.0
    seed = broadcast_to(asarray(gradient, dtype=out.dtype, device=out.device), out.shape)
    leaves = [x for x in order(out, set()) if x._history and x._history.gradient is None]
    with no_grad():
        for x, g in zip(leaves, reverse(out, seed, leaves), strict=True):
            if g is not None:
                x.grad = g if x.grad is None else x.grad + g


# ---- checking ------------------------------------------------------------------------------------


def gradcheck(
    f: Callable[..., Any], *arguments: Any, eps: float = 1e-6, rtol: float = 1e-4
) -> None:
    """Compare gradients with finite differences, at float64; GradientError where they differ.

    >>> import ruda
    >>> ruda.gradcheck(lambda x: ruda.tanh(x) * x, ruda.asarray([0.3, -1.0]))
    """
    import numpy as np

    points = [np.asarray(a).astype(np.float64) for a in arguments]
    rng = np.random.default_rng(0)
    out, back = vjp(f, *(asarray(p) for p in points))
    weight = rng.normal(size=out.shape)
    found = back(asarray(weight))
    for k, (p, g) in enumerate(zip(points, found, strict=True)):
        direction = rng.normal(size=p.shape)
        ends = []
        for sign in (1, -1):
            moved = [asarray(q + sign * eps * direction if j == k else q)
                     for j, q in enumerate(points)]  # fmt: skip
            ends.append(float((np.asarray(f(*moved)) * weight).sum()))
        wanted = (ends[0] - ends[1]) / (2 * eps)
        have = float((np.asarray(g) * direction).sum())
        if not abs(have - wanted) <= rtol * max(1.0, abs(wanted)):
            raise GradientError(
                f"argument {k}: the gradient gives {have:.8g}, finite differences {wanted:.8g}"
            )
