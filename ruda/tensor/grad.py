"""Derivatives, in reverse: from a result back to what it was made of, by the rows' gradients.

A tensor that derivatives are wanted of has a `History`: how it was made, and from what. Gradients
are computed by ops on tensors, so that they are lazy, fused and themselves differentiable.

Both styles stand on `reverse`: the functional one (`grad`, `vjp`, ...) and the tape (`backward`).
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ruda.errors import DTypeError, GradientError, ShapeError
from ruda.tensor.history import Gradient, History, attach, detecting, enable_grad, no_grad
from ruda.tensor.tensor import Tensor, asarray, astype, broadcast_to, function, handle

# ---- the engine ----------------------------------------------------------------------------------


def reverse(
    out: Tensor, seed: Tensor, targets: Sequence[Tensor], final: bool = False
) -> list[Tensor | None]:
    """The gradients of `sum(out * seed)` for the targets; None where it does not depend on one.

    final  whether the targets' own hooks are called: not where more gradients are to be added
    """
    gradients: dict[int, Any] = {id(out): seed}
    stop = {id(x) for x in targets if x._history is None or x._history.gradient is not None}
    own, looking = {id(x) for x in targets}, detecting()
    if looking:
        named = first_not_finite(out)
        if named:
            raise GradientError(named)
    for x in reversed(order(out, stop)):
        g = gradients.get(id(x))
        if g is None or id(x) in stop:
            continue
        history = x._history
        if history is None:
            continue
        for hook in history.hooks if final or id(x) not in own else ():
            g = hooked(hook, g, x)
            gradients[id(x)] = g
        if history.gradient is None:
            continue
        check_versions(history)
        found = history.gradient(g, x, *history.inputs)
        if looking:
            check_gradients(history, found, g)
        for i, gi in zip(history.inputs, found, strict=True):
            if gi is None or type(i) is not Tensor or i._history is None:
                continue
            gi = fitted(gi, i)
            known = gradients.get(id(i))
            gradients[id(i)] = gi if known is None else known + gi
    return [gradients.get(id(x)) for x in targets]


def hooked(hook: Callable[[Tensor], Any], g: Tensor, x: Tensor) -> Tensor:
    """The gradient that a hook makes of one: the same if it gives None."""
    found = hook(g)
    if found is None:
        return g
    if not isinstance(found, Tensor) or found.shape != g.shape:
        what = found.shape if isinstance(found, Tensor) else type(found).__name__
        raise ShapeError(f"a hook gave {what} for a gradient of shape {g.shape}")
    return fitted(found, x)


def is_finite(x: Any) -> bool:
    if not isinstance(x, Tensor) or not x.dtype.is_inexact:
        return True
    return bool(function("all")(function("isfinite")(x.detach())))


def first_not_finite(out: Tensor) -> str:
    """What op made NaN or infinity of finite numbers first, on the way to a tensor; or nothing."""
    with no_grad():
        for x in order(out, set()):
            if is_finite(x):
                continue
            history = x._history
            inputs = () if history is None else history.inputs
            if history is None or history.gradient is None:
                return f"a leaf of shape {x.shape} holds {shown(x)}"
            if all(is_finite(i) for i in inputs):
                return f"`{history.name}` gives {shown(x)} in shape {x.shape} of finite inputs"
            if not any(isinstance(i, Tensor) and i._history is not None and not is_finite(i)
                       for i in inputs):  # fmt: skip
                return f"an input of `{history.name}` holds {shown(*inputs)}"
    return ""


def shown(*tensors: Any) -> Any:
    """The first number among tensors' elements that is not finite."""
    import numpy as np

    for x in tensors:
        if not is_finite(x):
            values = np.asarray(x.detach().numpy()).ravel()
            return values[~np.isfinite(values)][0].item()
    return ""


def check_gradients(history: History, found: Sequence[Any], g: Tensor) -> None:
    if is_finite(g):
        for k, gi in enumerate(found):
            if not is_finite(gi):
                raise GradientError(
                    f"the gradient of `{history.name}` by its argument {k} holds {shown(gi)}, "
                    "of a finite one of its result"
                )


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
    here = handle(x._storage, x._view)
    if x._history is not None:
        here._history = History("argument", lambda g, out, i: (g,), (x,))
    else:
        here._history = History("argument", None, ())
    return here


def flatten(tree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The tensors of nested lists, tuples, dicts, dataclasses and modules, and how to put others
    in their places. Of a module the tensors that derivatives are wanted of: its parameters.
    """
    if tree is None:
        return [], lambda items: None
    if hasattr(tree, "__ruda_tree__"):  # a module
        found: tuple[list[Any], Callable[[Sequence[Any]], Any]] = tree.__ruda_tree__()
        return found
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        keys = [f.name for f in dataclasses.fields(tree)]
        parts = [flatten(getattr(tree, k)) for k in keys]
        rebuild: Callable[[list[Any]], Any] = lambda items: dataclasses.replace(  # noqa: E731
            tree, **dict(zip(keys, items, strict=True))
        )
    elif isinstance(tree, dict):
        keys = list(tree)
        parts = [flatten(tree[k]) for k in keys]
        rebuild = lambda items: dict(zip(keys, items, strict=True))  # noqa: E731
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
        outer = any(isinstance(x, Tensor) and x._history is not None for x in (*leaves, g))
        own = {id(p) for p in places}
        others = any(
            id(x) not in own and x._history is not None and x._history.gradient is None
            for x in order(out, own)
        )
        # A history that nobody can reach would keep, and have computed, all that lies between.
        with contextlib.nullcontext() if outer or others else no_grad():
            found = reverse(out, g, places)
        filled = [zeros(x) if z is None else z for z, x in zip(found, places, strict=True)]
        return tuple(restore(filled))

    return out, back


def zeros(x: Tensor) -> Tensor:
    from ruda.tensor.creation import zeros_like

    return zeros_like(x)


def position(k: int, arguments: Sequence[Any]) -> int:
    """Where argument `k`, which may count from the end, stands."""
    if not -len(arguments) <= k < len(arguments):
        raise TypeError(
            f"the derivative is by argument {k}, and the function was given {len(arguments)} "
            "by position"
        )
    return k % len(arguments)


def value_and_grad(f: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The function that gives `f`'s value, a number, and its gradient for some arguments.

    >>> import ruda
    >>> ruda.value_and_grad(lambda x: ruda.sum(x**3))(ruda.asarray([1.0, 2.0]))
    (Tensor(9., dtype=float32, device='cpu'), Tensor([ 3., 12.], dtype=float32, device='cpu'))
    """
    if not callable(f):
        raise TypeError(f"derivatives are of functions, not of {type(f).__name__}")
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def both(*arguments: Any, **named: Any) -> tuple[Any, Any]:
        places = [position(k, arguments) for k in numbers]

        def of_chosen(*chosen: Any) -> Any:
            given = list(arguments)
            for k, v in zip(places, chosen, strict=True):
                given[k] = v
            return f(*given, **named)

        out, back = vjp(of_chosen, *(arguments[k] for k in places))
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


def jacobian(f: Callable[..., Any], argnums: int = 0) -> Callable[..., Tensor]:
    """The derivative of each element of `f`'s result by each of an argument.

    The shape is that of the result and then that of the argument.

    >>> import ruda
    >>> ruda.jacobian(lambda a, x: a * x, argnums=1)(3.0, ruda.asarray([1.0, 2.0]))
    Tensor([[3., 0.],
            [0., 3.]], dtype=float32, device='cpu')
    """

    def all_rows(*arguments: Any) -> Tensor:
        from ruda.tensor.creation import eye, stack
        from ruda.tensor.tensor import reshape

        place = position(argnums, arguments)

        def of_one(x: Any) -> Any:
            return f(*arguments[:place], x, *arguments[place + 1 :])

        x = asarray(arguments[place])
        out, back = vjp(of_one, x)
        units = eye(out.size, dtype=out.dtype, device=out.device)
        rows = [back(reshape(u, out.shape))[0] for u in units]
        return reshape(stack(rows) if rows else zeros(x), out.shape + x.shape)

    return all_rows


def hessian(f: Callable[..., Any], argnums: int = 0) -> Callable[..., Tensor]:
    """The second derivatives of a function that gives one number, by one of its arguments."""
    return jacobian(grad(f, argnums), argnums)


def hvp(f: Callable[[Any], Any], x: Any, v: Any) -> Any:
    """The Hessian times v, without the Hessian; x and v are alike, perhaps trees."""

    def along(y: Any) -> Tensor:
        slopes, directions = flatten(grad(f)(y))[0], flatten(v)[0]
        total: Any = 0.0
        for g, d in zip(slopes, directions, strict=True):
            total = total + function("sum")(g * d)
        return total  # type: ignore[no-any-return]

    return grad(along)(x)


class Memory(NamedTuple):
    """Bytes that are kept for derivatives: with `checkpoint`, and without."""

    kept: int
    without: int


class checkpoint:
    """The function that keeps only its arguments for derivatives, and is computed again for them.

    f           of tensors, or trees of them, to one tensor: also a module
    generators  NumPy's, from which `f` draws: they draw the same again. Those of a module's layers
                are known

    Whatever else `f` changes, such as the means that `BatchNorm` keeps, it changes twice.

    >>> import ruda
    >>> f = ruda.checkpoint(lambda x: ruda.sin(ruda.sin(ruda.sin(x))))
    >>> x = ruda.asarray([0.5])
    >>> ruda.vjp(f, x)[1](ruda.ones(1))[0]
    Tensor([0.69...], dtype=float32, device='cpu')
    >>> f.memory(x)
    Memory(kept=4, without=12)
    """

    def __init__(self, f: Callable[..., Any], generators: Sequence[Any] = ()) -> None:
        if not callable(f):
            raise TypeError(f"`checkpoint` is of functions, not of {type(f).__name__}")
        self.f = f
        self.generators = generators

    def _run(self, arguments: Sequence[Any]) -> Tensor:
        out = self.f(*arguments)
        if type(out) is not Tensor:
            raise GradientError(f"`checkpoint` of a function that gives {type(out).__name__}: "
                                "it takes one that gives a tensor")  # fmt: skip
        return out

    def __call__(self, *arguments: Any) -> Tensor:
        leaves, restore = flatten(arguments)
        # Those of now: `Module.seed` gives layers new ones.
        generators = [*self.generators, *getattr(self.f, "generators", list)()]
        drawn = [g.bit_generator.state for g in generators]
        places = [leaf(x) if is_wanted(x) else x for x in leaves]
        out = self._run(restore(places))
        inside = {id(p) for p in places}
        # Parameters that the function holds itself take part, too.
        held = [
            x for x in order(out, inside)
            if id(x) not in inside and x._history and x._history.gradient is None
        ]  # fmt: skip
        inputs = (*leaves, *held)

        def gradient(g: Tensor, out: Tensor, *inputs: Any) -> list[Any]:
            given, held = inputs[: len(leaves)], inputs[len(leaves) :]
            with enable_grad():
                again = [leaf(x) if is_wanted(x) else x for x in given]
                now = [r.bit_generator.state for r in generators]
                for r, state in zip(generators, drawn, strict=True):
                    r.bit_generator.state = state
                try:
                    result = self._run(restore(again))
                finally:
                    for r, state in zip(generators, now, strict=True):
                        r.bit_generator.state = state
            targets = [x for x in (*again, *held) if isinstance(x, Tensor) and x._history]
            found = dict(zip(map(id, targets), reverse(result, g, targets), strict=True))
            return [found.get(id(x)) for x in (*again, *held)]

        return attach(handle(out._storage, out._view), "checkpoint", gradient, inputs)

    def memory(self, *arguments: Any) -> Memory:
        """A dry run: computes `f` once, and says what would be kept."""
        leaves, restore = flatten(arguments)
        places = [leaf(x) if is_float(x) else x for x in leaves]
        with enable_grad():
            out = self._run(restore(places))
        own = {id(x._storage): x for x in (*places, out) if isinstance(x, Tensor)}
        seen = {id(x._storage): x for x in order(out, set())}
        held = [x for x in seen.values() if x._history and x._history.gradient is None]
        for x in held:
            seen.pop(id(x._storage))
        inner = sum(x.nbytes for k, x in seen.items() if k not in own)
        kept = sum(x.nbytes for x in leaves if isinstance(x, Tensor))
        return Memory(kept, kept + inner)


def is_float(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dtype.is_inexact


def is_wanted(x: Any) -> bool:
    """Whether derivatives by a value are wanted: it has a history."""
    return isinstance(x, Tensor) and x._history is not None


def stop_gradient(x: Tensor) -> Tensor:
    """The same elements, taken as constant."""
    return handle(x._storage, x._view)


def custom_vjp(forward: Callable[..., Any], backward: Gradient) -> Callable[..., Tensor]:
    """A function with a gradient of your own: `backward(g, result, *inputs)` gives one for each.

    >>> import ruda
    >>> clipped = ruda.custom_vjp(lambda x: x, lambda g, y, x: (ruda.clip(g, -1.0, 1.0),))
    >>> ruda.grad(lambda x: clipped(x) * 5)(ruda.asarray(2.0))
    Tensor(1., dtype=float32, device='cpu')
    """

    def call(*inputs: Any) -> Tensor:
        out = forward(*(stop_gradient(i) if type(i) is Tensor else i for i in inputs))
        result = handle(out._storage, out._view)
        return attach(result, getattr(forward, "__name__", "custom_vjp"), backward, inputs)

    return call


# ---- the tape ------------------------------------------------------------------------------------


def backward(out: Tensor, gradient: Any = None, retain_graph: bool = False) -> None:
    """Add the gradients of a number to the `.grad` of every tensor it was made of.

    gradient      then those of `sum(self * gradient)`, of a tensor of any shape
    retain_graph  whether to keep how it was made, for another call; else it is forgotten
    """
    if out._history is None:
        raise GradientError("nothing here was made with `requires_grad_()`")
    if gradient is None:
        if out.shape != ():
            raise ShapeError(f"`backward` of shape {out.shape}: sum it, or pass a gradient")
        gradient = 1.0
    seed = broadcast_to(asarray(gradient, dtype=out.dtype, device=out.device), out.shape)
    made = order(out, set())
    leaves = [x for x in made if x._history and x._history.gradient is None]
    with no_grad():
        for x, g in zip(leaves, reverse(out, seed, leaves, final=True), strict=True):
            if g is not None:
                x.grad = g if x.grad is None else x.grad + g
    if not retain_graph:
        for x in made:
            if x._history is not None:
                x._history.forget()


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
