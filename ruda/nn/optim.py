"""Optimisers: they change parameters by their gradients, in place."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ruda import tensor as t
from ruda.tensor import Tensor


class Optimizer:
    """The base: `step` after `backward`, then `zero_grad`. `lr` may be changed at any time."""

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        self.parameters = list(parameters)
        if not self.parameters:
            raise ValueError("an optimiser needs parameters: was the model frozen?")
        self.lr, self.steps = lr, 0
        self.state: list[dict[str, Any]] = [{} for _ in self.parameters]

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any]) -> Tensor:
        """The new value of a parameter."""
        raise NotImplementedError

    def step(self) -> None:
        """Change every parameter that has a gradient."""
        self.steps += 1
        with t.no_grad():
            for p, state in zip(self.parameters, self.state, strict=True):
                if p.grad is not None:
                    p.copy_(self.update(p.detach(), p.grad, state))
        # Now, so that no chain of steps builds up.
        kept = [v for state in self.state for v in state.values()]
        t.realize(*self.parameters, *kept)

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for p in self.parameters:
            p.grad = None


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
        parameters: Iterable[Tensor],
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr)
        self.momentum, self.nesterov, self.weight_decay = momentum, nesterov, weight_decay

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any]) -> Tensor:
        if self.weight_decay:
            g = g + p * self.weight_decay
        if self.momentum:
            v = g if "v" not in state else state["v"] * self.momentum + g
            state["v"] = v
            g = g + v * self.momentum if self.nesterov else v
        return p - g * self.lr


class Adam(Optimizer):
    """Kingma and Ba, 2014; `weight_decay` is added to the gradient."""

    decoupled = False

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr)
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay

    def update(self, p: Tensor, g: Tensor, state: dict[str, Any]) -> Tensor:
        first, second = self.betas
        if self.weight_decay and not self.decoupled:
            g = g + p * self.weight_decay
        m = g * (1 - first) + (state["m"] * first if "m" in state else 0.0)
        v = g * g * (1 - second) + (state["v"] * second if "v" in state else 0.0)
        state["m"], state["v"] = m, v
        scale = math.sqrt(1 - second**self.steps)
        moved = m / (t.sqrt(v) / scale + self.eps) * (self.lr / (1 - first**self.steps))
        if self.weight_decay and self.decoupled:
            p = p * (1 - self.lr * self.weight_decay)
        return p - moved


class AdamW(Adam):
    """Adam whose weight decay is apart from the gradient: Loshchilov and Hutter, 2017."""

    decoupled = True

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay)
