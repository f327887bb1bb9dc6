"""A step of training as one call: loss and gradients by a plan that is kept, and the optimiser."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ruda.nn.module import Module
from ruda.nn.optim import Optimizer
from ruda.tensor import Tensor, graph, no_grad
from ruda.tensor.compiled import compile
from ruda.tensor.grad import value_and_grad
from ruda.tensor.history import enable_grad
from ruda.tensor.tensor import from_node


def compiled_step(
    model: Module, loss: Callable[[Any, Any], Tensor], optimizer: Optimizer
) -> Callable[..., Tensor]:
    """The function `step(*inputs, target)`: changes the model's parameters, and gives the loss.

    It computes `loss(model(*inputs), target)` and its gradients as `ruda.compile` does: the Python
    of the model and the loss runs once for each shape of the inputs, and what `ruda.compile`
    refuses is refused here. Layers that draw numbers draw new ones at each step, and what layers
    keep, such as the running mean of `BatchNorm`, moves at each step.

    >>> import ruda
    >>> model = ruda.nn.Linear(1, 1)
    >>> step = ruda.nn.compiled_step(model, ruda.nn.mse_loss, ruda.nn.SGD(model.parameters(), 0.1))
    >>> x = ruda.asarray([[0.0], [1.0]])
    >>> first, *_, last = (step(x, 2 * x + 1).item() for _ in range(40))
    >>> last < first
    True
    """

    def buffers() -> list[Tensor]:
        return [x for *_, x in model.named_tensors() if not x.requires_grad]

    def compute(parameters: list[Tensor], before: list[Tensor], *given: Any) -> Any:
        kept = [from_node(b.node()) for b in before]  # what layers write is a result
        if graph.tracing.current is not None:
            graph.tracing.current.written += kept
        whole = model.replacing([*model.parameters(), *buffers()])

        def restore(parameters: list[Tensor]) -> Any:
            return whole([*parameters, *kept])

        def of(parameters: list[Tensor]) -> Tensor:
            *inputs, target = given
            return loss(restore(parameters)(*inputs), target)

        with enable_grad():
            return *value_and_grad(of)(parameters), kept

    compute.__name__ = f"a step of {type(model).__name__}"
    compiled = compile(compute)

    def step(*given: Any) -> Tensor:
        parameters = model.parameters()
        with no_grad():
            held = buffers()
            value, slopes, moved = compiled([p.detach() for p in parameters], held, *given)
            for old, new in zip(held, moved, strict=True):
                if new._storage is not old._storage:
                    old.copy_(new)
        for p, g in zip(parameters, slopes, strict=True):
            p.grad = g
        optimizer.step()
        optimizer.zero_grad()
        return value  # type: ignore[no-any-return]

    return step
