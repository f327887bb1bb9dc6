"""Recurrent layers: a state that each position of a sequence changes.

Sequences are (batch, length, size). Parameters have PyTorch's names and order of gates.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ruda import tensor as t
from ruda.errors import ShapeError
from ruda.nn.layers import Dropout
from ruda.nn.module import Module, parameter
from ruda.tensor import Tensor

State = Any  # a tensor (batch, hidden), or of an LSTM two


class Recurrent(Module):
    """The base: layers on each other, in one direction or in both."""

    gates = 1

    def __init__(
        self,
        inputs: int,
        hidden: int,
        layers: int = 1,
        bias: bool = True,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        rng: np.random.Generator | None = None,
    ) -> None:
        rng = np.random.default_rng() if rng is None else rng
        self.inputs, self.hidden, self.layers, self.bias = inputs, hidden, layers, bias
        self.directions = 2 if bidirectional else 1
        self.dropout = Dropout(dropout, rng=rng)
        bound = 1 / math.sqrt(hidden)
        for layer in range(layers):
            size = inputs if layer == 0 else hidden * self.directions
            for end in ("", "_reverse")[: self.directions]:
                for name, shape in self.shapes(size):
                    value = parameter(rng.uniform(-bound, bound, shape).astype(np.float32))
                    setattr(self, f"{name}_l{layer}{end}", value)

    def shapes(self, size: int) -> list[tuple[str, tuple[int, ...]]]:
        rows = self.gates * self.hidden
        weights = [("weight_ih", (rows, size)), ("weight_hh", (rows, self.hidden))]
        return weights + ([("bias_ih", (rows,)), ("bias_hh", (rows,))] if self.bias else [])

    def step(self, x: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
        """The next state, from the mapped input (batch, gates * hidden)."""
        raise NotImplementedError

    def begin(self, x: Tensor) -> State:
        return t.zeros((x.shape[0], self.hidden), dtype=x.dtype, device=x.device)

    def output(self, state: State) -> Tensor:
        found: Tensor = state
        return found

    def forward(self, x: Tensor, states: list[State] | None = None) -> tuple[Tensor, list[State]]:
        """(outputs of the last layer at each position, the last state of each layer and direction).

        states  those to begin with, in the order in which they come out; zeros without it
        """
        if x.ndim != 3 or x.shape[-1] != self.inputs or x.shape[1] == 0:
            raise ShapeError(
                f"{type(self).__name__} takes (batch, length, {self.inputs}), not {x.shape}"
            )
        count = self.layers * self.directions
        if states is not None and len(states) != count:
            raise ShapeError(f"{len(states)} states for {count} layers and directions")
        last: list[State] = []
        for layer in range(self.layers):
            if layer:
                x = self.dropout(x)
            outputs = []
            for d in range(self.directions):
                state = self.begin(x) if states is None else states[len(last)]
                found, state = self.run(x, state, f"_l{layer}{('', '_reverse')[d]}", bool(d))
                outputs.append(found)
                last.append(state)
            x = outputs[0] if len(outputs) == 1 else t.concat(outputs, axis=-1)
        return x, last

    def run(self, x: Tensor, state: State, end: str, back: bool) -> tuple[Tensor, State]:
        """One layer in one direction."""
        mapped = x @ getattr(self, f"weight_ih{end}").T  # of all positions at once
        bias = None
        if self.bias:
            mapped = mapped + getattr(self, f"bias_ih{end}")
            bias = getattr(self, f"bias_hh{end}")
        weight = getattr(self, f"weight_hh{end}")
        outputs = []
        for k in reversed(range(x.shape[1])) if back else range(x.shape[1]):
            state = self.step(mapped[:, k], state, weight, bias)
            outputs.append(self.output(state))
        return t.stack(outputs[::-1] if back else outputs, axis=1), state

    def mapped(self, state: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        out = state @ weight.T
        return out if bias is None else out + bias

    def parts(self, x: Tensor) -> list[Tensor]:
        n = self.hidden
        return [x[:, k * n : (k + 1) * n] for k in range(self.gates)]

    def extra_repr(self) -> str:
        more = ", bidirectional=True" if self.directions == 2 else ""
        return f"{self.inputs}, {self.hidden}, layers={self.layers}{more}"


class RNN(Recurrent):
    """tanh(input's map + state's map).

    >>> import ruda
    >>> outputs, (last,) = ruda.nn.RNN(3, 4)(ruda.ones((2, 5, 3)))
    >>> outputs.shape, last.shape
    ((2, 5, 4), (2, 4))
    """

    def step(self, x: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
        return t.tanh(x + self.mapped(state, weight, bias))


class GRU(Recurrent):
    """Gated recurrent units (Cho et al., 2014): reset, update and new."""

    gates = 3

    def step(self, x: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
        given, own = self.parts(x), self.parts(self.mapped(state, weight, bias))
        reset, update = t.sigmoid(given[0] + own[0]), t.sigmoid(given[1] + own[1])
        new = t.tanh(given[2] + reset * own[2])
        return new + update * (state - new)


class LSTM(Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997): input, forget, cell, output.

    A state is the pair (output, cell).
    """

    gates = 4

    def begin(self, x: Tensor) -> State:
        return super().begin(x), super().begin(x)

    def output(self, state: State) -> Tensor:
        found: Tensor = state[0]
        return found

    def step(self, x: Tensor, state: State, weight: Tensor, bias: Tensor | None) -> State:
        i, f, g, o = self.parts(x + self.mapped(state[0], weight, bias))
        cell = t.sigmoid(f) * state[1] + t.sigmoid(i) * t.tanh(g)
        return t.sigmoid(o) * t.tanh(cell), cell
