"""Modules: plain Python classes whose parameters are found by walking their attributes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ruda.errors import ShapeError
from ruda.tensor import Tensor, asarray, astype


def parameter(x: Any, device: Any = None) -> Tensor:
    """A tensor whose derivatives are wanted.

    >>> parameter([1.0, 2.0]).requires_grad
    True
    """
    return asarray(x, device=device, copy=True).requires_grad_()


@dataclass
class LoadReport:
    """What `load_state_dict` did: names that were applied, missing, unused or of another shape."""

    applied: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every parameter was set and nothing was left over."""
        return not (self.missing or self.unused or self.mismatched)


class Module:
    """The base of layers and models: define `__init__` and `forward`.

    Parameters are tensors with `requires_grad`; other tensors are buffers, which are saved too.

    >>> import ruda
    >>> model = ruda.nn.Sequential(ruda.nn.Linear(2, 3), ruda.nn.relu, ruda.nn.Linear(3, 1))
    >>> model.num_parameters(), model(ruda.zeros((5, 2))).shape
    (13, (5, 1))
    """

    training = True

    def forward(self, *inputs: Any, **named: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no `forward`")

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        return self.forward(*inputs, **named)

    # -- what it is made of --

    def named_tensors(self, prefix: str = "") -> Iterator[tuple[str, Any, str, Tensor]]:
        """(name, holder, key, tensor) for all parameters and buffers, in order of definition."""
        for key, value in vars(self).items():
            yield from _tensors(f"{prefix}{key}", self, key, value)

    def named_parameters(self) -> dict[str, Tensor]:
        """The parameters by name, such as "layers.0.weight"."""
        return {name: t for name, _, _, t in self.named_tensors() if t.requires_grad}

    def parameters(self) -> list[Tensor]:
        """The parameters, each once."""
        found = {id(t): t for t in self.named_parameters().values()}
        return list(found.values())

    def modules(self) -> Iterator[Module]:
        """This module and all inside."""
        yield self
        for value in vars(self).values():
            yield from _modules(value)

    def generators(self) -> list[np.random.Generator]:
        """The generators that layers draw from, each once."""
        found = {id(m.rng): m.rng for m in self.modules() if hasattr(m, "rng")}
        return list(found.values())

    def __ruda_tree__(self) -> tuple[list[Tensor], Any]:
        """The parameters, and how to make a module of this form with others in their places."""
        known = self.parameters()
        return known, self.replacing(known)

    def replacing(self, known: list[Tensor]) -> Any:
        """The function that makes a module of this form with others in the places of `known`."""
        places = {id(p): k for k, p in enumerate(known)}

        def replaced(value: Any, items: Any) -> Any:
            if isinstance(value, Tensor):
                return items[places[id(value)]] if id(value) in places else value
            if isinstance(value, Module):
                new = object.__new__(type(value))
                vars(new).update({k: replaced(v, items) for k, v in vars(value).items()})
                return new
            if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
                return type(value)(replaced(v, items) for v in value)
            if isinstance(value, dict):
                return {k: replaced(v, items) for k, v in value.items()}
            return value

        return lambda items: replaced(self, items)

    def num_parameters(self) -> int:
        """How many numbers training changes."""
        return sum(p.size for p in self.parameters())

    # -- state --

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of all parameters and buffers, as NumPy arrays by name."""
        return {name: t.detach().numpy() for name, _, _, t in self.named_tensors()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> LoadReport:
        """Set parameters and buffers by name; with `strict` everything must fit.

        Nothing is set if something does not fit and `strict` is true.
        """
        report = LoadReport(unused=list(state))
        setters = []
        for name, holder, key, old in self.named_tensors():
            if name not in state:
                report.missing.append(name)
                continue
            report.unused.remove(name)
            new = asarray(np.asarray(state[name]), device=old.device)
            if new.shape != old.shape:
                report.mismatched.append(f"{name}: {new.shape} instead of {old.shape}")
                continue
            report.applied.append(name)
            setters.append((holder, key, old, astype(new, old.dtype)))
        if strict and not report.complete:
            raise ShapeError(
                f"the state does not fit: missing {report.missing}, unused {report.unused}, "
                f"mismatched {report.mismatched}"
            )
        for holder, key, old, new in setters:
            if old.requires_grad:
                new.requires_grad_()
            _set(holder, key, new)
        return report

    def to(self, device: Any) -> Module:
        """Move all parameters and buffers; the module itself."""
        for _, holder, key, old in list(self.named_tensors()):
            new = old.detach().to_device(device)
            _set(holder, key, new.requires_grad_() if old.requires_grad else new)
        return self

    def astype(self, dtype: Any) -> Module:
        """Convert all floating parameters and buffers; optimisers keep float32 beside 16 bits."""
        for _, holder, key, old in list(self.named_tensors()):
            if old.dtype.is_inexact:
                new = astype(old.detach(), dtype, copy=False)
                _set(holder, key, new.requires_grad_() if old.requires_grad else new)
        return self

    def train(self, mode: bool = True) -> Module:
        """Behave as in training: dropout drops."""
        for m in self.modules():
            m.training = mode
        return self

    def eval(self) -> Module:
        """Behave as in use: dropout passes everything."""
        return self.train(False)

    def seed(self, seed: Any) -> Module:
        """Start the random numbers of all layers anew: what they draw depends on `seed` alone."""
        for k, m in enumerate(self.modules()):
            m.reseed(np.random.default_rng((*np.atleast_1d(seed), k)))
        return self

    def reseed(self, rng: np.random.Generator) -> None:
        """Draw from `rng` from now on: for layers that draw."""

    def freeze(self) -> Module:
        """Take all parameters as constant."""
        for p in self.parameters():
            p.requires_grad_(False)
        return self

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for p in self.parameters():
            p.grad = None

    def extra_repr(self) -> str:
        """What `repr` shows of this layer itself."""
        return ""

    def __repr__(self) -> str:
        inner = []
        for key, value in vars(self).items():
            if isinstance(value, Module):
                inner.append(f"({key}): {value!r}")
            elif isinstance(value, list | tuple):
                inner += [
                    f"({key}.{k}): {v if isinstance(v, Module) else v.__name__}"
                    for k, v in enumerate(value)
                    if isinstance(v, Module) or callable(v)
                ]
        name, extra = type(self).__name__, self.extra_repr()
        if not inner:
            return f"{name}({extra})"
        body = "\n".join(inner).replace("\n", "\n  ")
        return f"{name}({extra}\n  {body}\n)"


def _tensors(
    name: str, holder: Any, key: Any, value: Any
) -> Iterator[tuple[str, Any, Any, Tensor]]:
    if isinstance(value, Tensor):
        yield name, holder, key, value
    elif isinstance(value, Module):
        yield from value.named_tensors(f"{name}.")
    elif isinstance(value, list | tuple):
        for k, v in enumerate(value):
            yield from _tensors(f"{name}.{k}", value, k, v)
    elif isinstance(value, dict):
        for k, v in value.items():
            yield from _tensors(f"{name}.{k}", value, k, v)


def _modules(value: Any) -> Iterator[Module]:
    if isinstance(value, Module):
        yield from value.modules()
    elif isinstance(value, list | tuple):
        for v in value:
            yield from _modules(v)
    elif isinstance(value, dict):
        for v in value.values():
            yield from _modules(v)


def _set(holder: Any, key: Any, value: Tensor) -> None:
    if isinstance(holder, Module):
        setattr(holder, key, value)
    else:
        holder[key] = value
