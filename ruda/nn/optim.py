"""Optimisers: they change parameters by their gradients, in place.

A parameter of 16 bits is changed through a copy in float32, its master: small steps would be lost
in its own rounding.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ruda import tensor as t
from ruda.dnn.update import update
from ruda.dtypes import DType, float32
from ruda.errors import GradientError
from ruda.tensor import Tensor, astype, reshape

State = dict[str, Any]
Rate = float | Callable[[int], float]  # a learning rate, or a schedule: step, from 0 -> rate


# Of each option that is a number or several: its least value, and what it stays below.
RANGES = {
    "lr": (0.0, math.inf), "momentum": (0.0, math.inf), "weight_decay": (0.0, math.inf),
    "eps": (0.0, math.inf), "lr_decay": (0.0, math.inf), "alpha": (0.0, 1.0), "betas": (0.0, 1.0),
}  # fmt: skip


def check_options(owner: str, options: Mapping[str, Any]) -> None:
    """Refuse numbers that an optimiser cannot use: NaN, too, is in no range."""
    for name, value in options.items():
        if name not in RANGES or callable(value):
            continue
        low, high = RANGES[name]
        for x in value if isinstance(value, Sequence) and not isinstance(value, str) else (value,):
            if not isinstance(x, numbers.Real):
                raise TypeError(f"{owner}: `{name}` is a number, not {type(x).__name__}")
            if not low <= float(x) < high:
                below = f" and below {high:g}" if math.isfinite(high) else " and finite"
                raise ValueError(f"{owner}: `{name}` is at least {low:g}{below}, not {x}")


def check_parameters(owner: str, members: Iterable[Any]) -> None:
    for p in members:
        if not isinstance(p, Tensor) or not p.dtype.is_inexact:
            what = p.dtype if isinstance(p, Tensor) else type(p).__name__
            raise TypeError(f"{owner} changes tensors of floats, not {what}")


class Optimizer:
    """The base: `step` after `backward`, then `zero_grad`.

    parameters  tensors, or groups of them: dictionaries with the key "parameters" and options of
                their own, such as "weight_decay" or "lr"
    lr          a number, which may be changed at any time, or a schedule (`ruda.nn.schedules`)
    """

    def __init__(self, parameters: Iterable[Any], lr: Rate, **options: Any) -> None:
        self.parameters: list[Tensor] = []
        self.options: list[dict[str, Any]] = []  # of each parameter
        owner = type(self).__name__
        check_options(owner, options)
        base = lr(0) if callable(lr) else lr
        check_options(owner, {"lr": base})
        if not isinstance(parameters, Iterable):
            raise TypeError(
                f"{owner} takes tensors, not {type(parameters).__name__}: give the "
                "`parameters()` of a module"
            )
        for given in parameters:
            group: dict[str, Any] = (
                dict(given) if isinstance(given, dict) else {"parameters": [given]}
            )
            if "parameters" not in group:
                raise TypeError(f"{owner}: a group needs 'parameters'; this one has {[*group]}")
            members = list(group.pop("parameters"))
            check_parameters(owner, members)
            own = group.pop("lr", None)
            unknown = group.keys() - options.keys()
            if unknown:
                raise TypeError(
                    f"{owner} has no option {sorted(unknown)[0]!r}: there are lr"
                    + "".join(f", {k}" for k in options)
                )
            check_options(owner, group if own is None else {**group, "lr": own})
            if own is not None and not base:
                raise ValueError("groups have rates of their own where `lr` is not 0")
            # A group keeps its share of the rate when a schedule, or the user, changes it.
            share = 1.0 if own is None else own / base
            self.parameters += members
            self.options += [{**options, **group, "share": share} for _ in members]
        if not self.parameters:
            raise ValueError("an optimiser needs parameters: was the model frozen?")
        if len({id(p) for p in self.parameters}) < len(self.parameters):
            raise ValueError("a parameter is in two groups")
        places = sorted({p.device for p in self.parameters})
        if len(places) > 1:
            raise ValueError(f"parameters on {' and '.join(places)}: an optimiser is of one device")
        self.lr: Rate = lr
        self.steps = 0
        self.state: list[State] = [{} for _ in self.parameters]

    def __repr__(self) -> str:
        numbers_of = sum(p.size for p in self.parameters)
        said = "".join(
            f", {k}={v!r}"
            for k, v in self.options[0].items()
            if k != "share" and all(o[k] == v for o in self.options)
        )
        what = f"{len(self.parameters)} tensors of {numbers_of:,} numbers"
        return f"{type(self).__name__}({what}, lr={self.rate()!r}{said})"

    def rate(self) -> float:
        """The learning rate of the next step."""
        return self.lr(self.steps) if callable(self.lr) else self.lr

    def update(self, p: Tensor, g: Tensor, state: State, lr: float, option: Any) -> Any:
        """The new value of a parameter."""
        raise NotImplementedError

    # The kernel of `ruda.dnn.update` that makes new values, and which state it takes.
    kernel: tuple[str, tuple[str, ...]] = ("", ())

    def numbers(self, lr: float, option: Any) -> tuple[float, ...]:
        """What the kernel takes besides tensors."""
        raise NotImplementedError

    def fused(self, jobs: Sequence[tuple[Tensor, Tensor, State, float, Any]]) -> list[Tensor]:
        """The new values of parameters, by one launch where the device can."""
        name, kept = self.kernel
        rows = []
        for p, g, state, lr, option in jobs:
            for key in kept:
                if key not in state:
                    state[key] = t.zeros_like(p)
            rows.append(((p, g, *(state[k] for k in kept)), self.numbers(lr, option)))
        return update(name, rows)

    def step(self) -> None:
        """Change every parameter that has a gradient."""
        lr = self.rate()
        self.steps += 1
        changed: list[tuple[Tensor, State]] = []
        jobs: list[tuple[Tensor, Tensor, State, float, Any]] = []
        with t.no_grad():
            for p, state, option in zip(self.parameters, self.state, self.options, strict=True):
                if p.grad is None:
                    continue
                now, g = p.detach(), p.grad
                if is_small(p.dtype):
                    now = state["master"] if "master" in state else astype(now, float32)
                    g = astype(g, float32)
                changed.append((p, state))
                jobs.append((now, g, state, lr * option["share"], option))
            for (p, state), new in zip(changed, self.updated(jobs), strict=True):
                if is_small(p.dtype):
                    state["master"] = new
                if p._view is None and new._view is None and new.dtype is p.dtype:
                    p._storage.replace(new._storage.node)  # `update` gives memory of its own
                else:
                    p.copy_(astype(new, p.dtype, copy=False))
        # Now, so that no chain of steps builds up.
        kept = [v for state in self.state for v in state.values()]
        t.realize(*self.parameters, *kept)

    def updated(self, jobs: Sequence[tuple[Tensor, Tensor, State, float, Any]]) -> list[Tensor]:
        """The new values of parameters, those of one dtype by one kernel if there is one."""
        out: dict[int, Tensor] = {}
        alike: dict[Any, list[int]] = {}
        for k, (p, g, _, _, option) in enumerate(jobs):
            if self.is_fused(option) and g.dtype is p.dtype and p.dtype.kind == "float":
                alike.setdefault(p.dtype, []).append(k)
            else:
                out[k] = self.update(*jobs[k])
        if alike:
            t.realize(*(g for _, g, *_ in jobs))  # together: they share their beginnings
        for places in alike.values():
            out.update(zip(places, self.fused([jobs[k] for k in places]), strict=True))
        return [out[k] for k in range(len(jobs))]

    def is_fused(self, option: Any) -> bool:
        """Whether there is a kernel for a group's options."""
        return bool(self.kernel[0])

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for p in self.parameters:
            p.grad = None

    def arrays(self) -> dict[str, Any]:
        """What it knows beside the parameters, as arrays of the host by "parameter.name"."""
        return {
            f"{k}.{name}": v.numpy()
            for k, kept in enumerate(self.state)
            for name, v in kept.items()
        }

    def set_arrays(self, arrays: Mapping[str, Any]) -> None:
        """Take up what `arrays` gave."""
        self.state = [{} for _ in self.parameters]
        for key, array in arrays.items():
            number, _, name = key.partition(".")
            device = self.parameters[int(number)].device
            self.state[int(number)][name] = t.asarray(np.asarray(array), device=device)


def is_small(dtype: DType) -> bool:
    return dtype.name in ("float16", "bfloat16")


def decayed(g: Tensor, p: Tensor, decay: float) -> Tensor:
    """The gradient with that of decay * p**2 / 2 added."""
    return g + p * decay if decay else g


class SGD(Optimizer):
    """p - lr * g, with momentum and Nesterov's form of it.

    >>> import ruda
    >>> p = ruda.nn.parameter([1.0])
    >>> optimiser = ruda.nn.SGD([p], lr=0.1)
    >>> ruda.sum(p * p).backward(); optimiser.step(); p
    Tensor([0.8], dtype=float32, device='cpu')
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Rate,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(
            parameters, lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay
        )

    kernel = "sgd", ("v",)

    def is_fused(self, option: Any) -> bool:
        return bool(option["momentum"])

    def numbers(self, lr: float, option: Any) -> tuple[float, ...]:
        return option["momentum"], float(option["nesterov"]), option["weight_decay"], lr

    def update(self, p: Tensor, g: Tensor, state: State, lr: float, option: Any) -> Any:
        g, momentum = decayed(g, p, option["weight_decay"]), option["momentum"]
        if momentum:
            v = g * 1.0 if "v" not in state else state["v"] * momentum + g
            state["v"] = v
            g = g + v * momentum if option["nesterov"] else v
        return p - g * lr


class Adam(Optimizer):
    """Kingma and Ba, 2014; `weight_decay` is added to the gradient.

    amsgrad  divide by the greatest second moment so far (Reddi et al., 2018)
    """

    decoupled = False

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(
            parameters, lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad
        )

    def update(self, p: Tensor, g: Tensor, state: State, lr: float, option: Any) -> Any:
        first, second, coupled, kept, eps, scale, rate = self.numbers(lr, option)
        g = decayed(g, p, coupled)
        old = {key: state.get(key, 0.0) for key in "mv"}
        state["m"] = g * (1 - first) + old["m"] * first
        v = state["v"] = g * g * (1 - second) + old["v"] * second
        if option["amsgrad"]:
            v = state["most"] = t.maximum(state["most"], v) if "most" in state else v
        return p * kept - state["m"] / (t.sqrt(v) * scale + eps) * rate

    kernel = "adam", ("m", "v")

    def is_fused(self, option: Any) -> bool:
        return not option["amsgrad"]

    def numbers(self, lr: float, option: Any) -> tuple[float, ...]:
        (first, second), decay, k = option["betas"], option["weight_decay"], self.steps
        scale, rate = 1 / math.sqrt(1 - second**k), lr / (1 - first**k)
        coupled, kept = (0.0, 1 - lr * decay) if self.decoupled else (decay, 1.0)
        return first, second, coupled, kept, option["eps"], scale, rate


class AdamW(Adam):
    """Adam whose weight decay is apart from the gradient: Loshchilov and Hutter, 2017."""

    decoupled = True

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay, amsgrad)


class AdaGrad(Optimizer):
    """Duchi et al., 2011: divided by the root of the sum of squares so far."""

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Rate = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        eps: float = 1e-10,
    ) -> None:
        super().__init__(parameters, lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps)

    def update(self, p: Tensor, g: Tensor, state: State, lr: float, option: Any) -> Any:
        g = decayed(g, p, option["weight_decay"])
        total = state["sum"] = g * g + state.get("sum", 0.0)
        return p - g / (t.sqrt(total) + option["eps"]) * (
            lr / (1 + (self.steps - 1) * option["lr_decay"])
        )


class RMSProp(Optimizer):
    """Hinton, 2012: divided by the root of a moving mean of squares; `centered`: of variances."""

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Rate = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
    ) -> None:
        super().__init__(
            parameters, lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum,
            centered=centered,
        )  # fmt: skip

    def update(self, p: Tensor, g: Tensor, state: State, lr: float, option: Any) -> Any:
        g, alpha = decayed(g, p, option["weight_decay"]), option["alpha"]
        v = g * g * (1 - alpha) + (state["v"] * alpha if "v" in state else 0.0)
        state["v"] = v
        if option["centered"]:
            mean = g * (1 - alpha) + (state["mean"] * alpha if "mean" in state else 0.0)
            state["mean"] = mean
            v = v - mean * mean
        step = g / (t.sqrt(v) + option["eps"])
        if option["momentum"]:
            step = step + (state["step"] * option["momentum"] if "step" in state else 0.0)
            state["step"] = step
        return p - step * lr


class Adan(Optimizer):
    """Xie et al., 2022: moments of the gradient, of its change, and of both together."""

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Rate = 1e-3,
        betas: tuple[float, float, float] = (0.98, 0.92, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def update(self, p: Tensor, g: Tensor, state: State, lr: float, option: Any) -> Any:
        first, second, third = option["betas"]
        change = g - state["before"] if "before" in state else g * 0.0
        ahead = g + change * second

        def moving(name: str, x: Tensor, beta: float) -> Tensor:
            new: Tensor = x * (1 - beta) + (state[name] * beta if name in state else 0.0)
            state[name] = new
            return new

        m, d, n = moving("m", g, first), moving("d", change, second), moving("n", ahead**2, third)
        state["before"] = g * 1.0
        k = self.steps
        scale = t.sqrt(n) / math.sqrt(1 - third**k) + option["eps"]
        moved = (m / (1 - first**k) + d * (second / (1 - second**k))) / scale
        return (p - moved * lr) / (1 + lr * option["weight_decay"])


class Muon(Optimizer):
    """Momentum whose matrix is brought near to an orthogonal one by Newton's and Schulz' iteration.

    Of matrices alone (Jordan et al., 2024): give vectors and embeddings to another optimiser.
    Axes beyond the first count as one. `match_rms` scales steps to the size of AdamW's.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Rate = 2e-2,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        iterations: int = 5,
        match_rms: bool = False,
    ) -> None:
        super().__init__(
            parameters, lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay,
            iterations=iterations, match_rms=match_rms,
        )  # fmt: skip
        for p in self.parameters:
            if p.ndim < 2:
                raise ValueError(f"Muon is of matrices, not of shape {p.shape}")

    def update(self, p: Tensor, g: Tensor, state: State, lr: float, option: Any) -> Any:
        momentum = option["momentum"]
        v = state["v"] = g * 1.0 if "v" not in state else state["v"] * momentum + g
        u = g + v * momentum if option["nesterov"] else v
        flat = reshape(u, (u.shape[0], u.size // u.shape[0]))
        step = reshape(orthogonalized(flat, option["iterations"]), u.shape)
        rows, columns = flat.shape
        most = 0.2 * math.sqrt(max(rows, columns))
        size = most if option["match_rms"] else math.sqrt(max(1.0, rows / columns))
        return p * (1 - lr * option["weight_decay"]) - step * (lr * size)


def orthogonalized(x: Tensor, iterations: int = 5) -> Tensor:
    """A matrix with the same singular vectors and values near 1, by a polynomial of degree 5."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    x = x / (t.sqrt(t.sum(x * x)) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = x * a + (gram * b + (gram @ gram) * c) @ x
    return x.T if tall else x


class LBFGS(Optimizer):
    """Newton's method with the curvature of the last `history` steps (Nocedal, 1980).

    `step` takes a closure that gives the loss after `zero_grad` and `backward`; it is called until
    `iterations` steps were made or the gradient is below `tolerance`. The length of a step is found
    by the strong Wolfe conditions (Nocedal and Wright, algorithms 3.5 and 3.6).
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: Rate = 1.0,
        iterations: int = 20,
        history: int = 10,
        tolerance: float = 1e-7,
    ) -> None:
        super().__init__(parameters, lr)
        self.iterations, self.history, self.tolerance = iterations, history, tolerance
        self.pairs: list[tuple[Any, Any]] = []  # (step, change of the gradient)

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor:  # type: ignore[override]
        """Minimise by a few steps; the loss at the beginning."""
        if closure is None:
            raise TypeError("`LBFGS.step` takes a closure: zero_grad, loss, backward; return loss")
        self.steps += 1
        first = closure()
        loss, x, g = float(first), self._values(), self._gradients()
        for k in range(self.iterations):
            if np.abs(g).max(initial=0.0) <= self.tolerance or not math.isfinite(loss):
                break
            direction = -self._curved(g)
            slope = float(g @ direction)
            if slope > -1e-16:  # no way down: forget what is known of the curvature
                self.pairs, direction = [], -g
                slope = float(g @ direction)
            begin = self.rate() if self.pairs or k else min(1.0, 1 / np.abs(g).sum()) * self.rate()

            def at(length: float, x: Any = x, direction: Any = direction) -> tuple[float, Any]:
                self._set(x + length * direction)
                return float(closure()), self._gradients()

            length, new_loss, new_g = wolfe(at, loss, slope, direction, begin, g)
            if length == 0.0:
                self._set(x)
                break
            s, y = length * direction, new_g - g
            if s @ y > 1e-10 * (y @ y):
                self.pairs = [*self.pairs[-self.history + 1 :], (s, y)]
            x, g = x + s, new_g
            done = abs(new_loss - loss) <= 1e-9 * max(1.0, abs(loss))
            loss = new_loss
            if done:
                break
        self._set(x)
        return first

    def arrays(self) -> dict[str, Any]:
        """The steps and changes of gradients that tell of the curvature, a row each."""
        if not self.pairs:
            return {}
        steps, changes = zip(*self.pairs, strict=True)
        return {"0.steps": np.stack(steps), "0.changes": np.stack(changes)}

    def set_arrays(self, arrays: Mapping[str, Any]) -> None:
        if arrays:
            steps, changes = (np.asarray(arrays[f"0.{n}"]) for n in ("steps", "changes"))
            self.pairs = list(zip(steps, changes, strict=True))
        else:
            self.pairs = []

    def _curved(self, g: Any) -> Any:
        """The inverse Hessian times g, by two loops over the pairs."""
        q, kept = g.copy(), []
        for s, y in reversed(self.pairs):
            a = (s @ q) / (s @ y)
            q -= a * y
            kept.append(a)
        if self.pairs:
            s, y = self.pairs[-1]
            q *= (s @ y) / (y @ y)
        for (s, y), a in zip(self.pairs, reversed(kept), strict=True):
            q += (a - (y @ q) / (s @ y)) * s
        return q

    def _values(self) -> Any:
        return _joined([p.detach() for p in self.parameters])

    def _gradients(self) -> Any:
        return _joined([t.zeros_like(p) if p.grad is None else p.grad for p in self.parameters])

    def _set(self, values: Any) -> None:
        start = 0
        with t.no_grad():
            for p in self.parameters:
                part = values[start : start + p.size].reshape(p.shape)
                p.copy_(t.asarray(part, dtype=p.dtype, device=p.device))
                start += p.size


def _joined(tensors: Sequence[Tensor]) -> Any:
    return np.concatenate([x.numpy().astype(np.float64).ravel() for x in tensors])


def wolfe(
    at: Callable[[float], tuple[float, Any]],
    loss: float,
    slope: float,
    direction: Any,
    begin: float,
    g: Any,
    low: float = 1e-4,
    high: float = 0.9,
    most: int = 25,
) -> tuple[float, float, Any]:
    """(length, loss, gradient) with enough descent and a slope that is flat enough; 0 if none."""
    before, before_loss = 0.0, loss
    best = (0.0, loss, g)
    length, inside = begin, None
    for _ in range(most):
        if inside is not None:
            length = 0.5 * (inside[0] + inside[1])
        found, gradient = at(length)
        here = float(gradient @ direction)
        too_high = not found <= loss + low * length * slope
        if not too_high and found < best[1]:
            best = (length, found, gradient)
        if not too_high and abs(here) <= -high * slope:
            return length, found, gradient
        if inside is None:
            if too_high or (found >= before_loss and before):
                inside = (before, length)
            elif here >= 0:
                inside = (length, before)
            else:
                before, before_loss, length = length, found, 2 * length
                continue
        else:
            near, far = inside
            if too_high or found > before_loss:
                inside = (near, length)
                continue
            inside = (length, near if here * (far - near) >= 0 else far)
        if not too_high:
            before_loss = found
    return best


# ---- gradients -----------------------------------------------------------------------------------


def clip_grad_norm(parameters: Iterable[Tensor], most: float, error: bool = True) -> float:
    """Scale all gradients so that their common norm is at most `most`; the norm before.

    error  whether a norm that is NaN or infinite is an error (else nothing is changed)
    """
    if not most >= 0:
        raise ValueError(f"gradients are clipped to a norm of at least 0, not {most}")
    grads = [(p, p.grad) for p in parameters if p.grad is not None]
    with t.no_grad():
        squares = [t.sum(t.square(astype(g, "float32", copy=False))) for _, g in grads]
        t.realize(*squares)
        norm = math.sqrt(sum(float(s) for s in squares))
        if not math.isfinite(norm):
            if error:
                raise GradientError(f"the gradients' norm is {norm}")
        elif norm > most:
            for p, g in grads:
                p.grad = g * (most / (norm + 1e-6))
    return norm


def clip_grad_value(parameters: Iterable[Tensor], most: float) -> None:
    """Hold every element of the gradients between -most and most."""
    if not most >= 0:
        raise ValueError(f"gradients are clipped to at least 0, not {most}")
    with t.no_grad():
        for p in parameters:
            if p.grad is not None:
                p.grad = t.clip(p.grad, -most, most)


class LossScaler:
    """Keeps small gradients of 16 bits above 0: the loss is scaled up, the gradients down again.

    A step whose gradients are not finite is left out, and the scale made smaller; after `interval`
    good ones it grows.

    >>> import ruda
    >>> p = ruda.nn.parameter([1.0]); optimiser = ruda.nn.SGD([p], lr=0.5)
    >>> scaler = ruda.nn.LossScaler(scale=1024)
    >>> scaler.scaled(ruda.sum(p * p)).backward(); scaler.step(optimiser), p.tolist()
    (True, [0.0])
    """

    def __init__(
        self,
        scale: float = 65536.0,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
    ) -> None:
        self.scale, self.growth, self.backoff, self.interval = scale, growth, backoff, interval
        self.good = 0  # steps since the scale changed

    def scaled(self, loss: Tensor) -> Tensor:
        """What to call `backward` of."""
        return loss * self.scale

    def step(self, optimizer: Optimizer, clip: float | None = None) -> bool:
        """The optimiser's step on unscaled gradients; whether it was made."""
        with t.no_grad():
            flags = []
            for p in optimizer.parameters:
                if p.grad is not None:
                    p.grad = astype(p.grad, "float32", copy=False) * (1 / self.scale)
                    flags.append(t.all(t.isfinite(p.grad)))
            finite = all(bool(f) for f in flags)
        if not finite:
            self.scale, self.good = self.scale * self.backoff, 0
            return False
        if clip is not None:
            clip_grad_norm(optimizer.parameters, clip)
        optimizer.step()
        self.good += 1
        if self.good >= self.interval:
            self.scale, self.good = self.scale * self.growth, 0
        return True

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, beside its other numbers."""
        return {"scale": self.scale, "good": self.good}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take up what `state` gave."""
        self.scale, self.good = float(state["scale"]), int(state["good"])
