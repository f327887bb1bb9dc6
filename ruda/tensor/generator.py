"""Random tensors from counters: `ruda.random.Generator`.

A generator is a seed and a counter of what was drawn. Number i of a draw depends on nothing but
seed, counter and i, so every device gives the same bits; `ruda.random` has the functions, which
kernels call too. A thread makes one number though a block of Philox has four words: the loops over
threads are vectorised then, which measured twice as fast. Draws start at a multiple of 4.

Samplers that reject (gamma, poisson) have a fixed block of `TRIES` counters for each element: where
devices round differently and one of them accepts what another rejects, that element alone differs.
All tries fail for one element in 10**20; it takes the last one.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from ruda import dtypes
from ruda import random as counters
from ruda.dtypes import DType, as_dtype, default_float
from ruda.errors import DTypeError, ShapeError
from ruda.jit import jit
from ruda.jit.language import grid
from ruda.locks import fork_safe_lock
from ruda.tensor import graph, memory
from ruda.tensor.creation import as_shape, broadcast_shapes
from ruda.tensor.tensor import (
    Tensor,
    asarray,
    astype,
    broadcast_to,
    copied,
    from_buffer,
    here,
    reshape,
    t,
)

THREADS = 128
TRIES = 16

# ---- kernels: thread i writes number i -----------------------------------------------------------

uniform, normal, randint = counters.uniform, counters.normal, counters.randint


def filling(number: Any) -> Any:
    """The kernel that writes numbers of a function of seed, counter and stream."""

    @jit
    def fill(out, seed, counter, stream):  # type: ignore[no-untyped-def]
        i = grid(1)
        if i < out.size:
            out[i] = number(seed, counter + i, stream)

    return fill


FILL = {
    name: filling(getattr(counters, name))
    for name in (
        "bits", "uniform", "uniform_float64", "normal", "normal_float64", "exponential",
    )
}  # fmt: skip


@jit
def fill_randint(out, seed, counter, stream, low, high):  # type: ignore[no-untyped-def]
    i = grid(1)
    if i < out.size:
        out[i] = randint(seed, counter + i, low, high, stream)


@jit
def fill_gamma(out, shape, seed, counter, stream):  # type: ignore[no-untyped-def]
    """Marsaglia and Tsang, "A simple method for generating gamma variables" (2000)."""
    i = grid(1)
    if i < out.size:
        alpha = shape[i]
        start = counter + i * TRIES
        boost = out.dtype.type(1)
        if alpha < 1:  # gamma(a) is gamma(a + 1) * U**(1 / a)
            boost = (1 - uniform(seed, start, stream + 1)) ** (1 / alpha)
            alpha = alpha + 1
        d = alpha - out.dtype.type(1 / 3)
        c = 1 / (9 * d) ** out.dtype.type(0.5)
        value = d
        trying = True
        for k in range(TRIES):
            if trying:
                x = normal(seed, start + k, stream)
                v = 1 + c * x
                if v > 0:
                    v = v * v * v
                    u = 1 - uniform(seed, start + k, stream)
                    value = d * v
                    squeeze = 1 - out.dtype.type(0.0331) * x * x * x * x
                    if u < squeeze or math.log(u) < x * x / 2 + d * (1 - v + math.log(v)):
                        trying = False
        out[i] = value * boost


@jit
def fill_poisson(out, rate, seed, counter, stream):  # type: ignore[no-untyped-def]
    """By inversion below 10; above by Hörmann's transformed rejection PTRS (1993)."""
    i = grid(1)
    if i < out.size:
        mean = rate[i]
        start = counter + i * TRIES
        found = mean * 0
        if mean < 10:
            u = uniform(seed, start, stream)
            share = math.exp(-mean)
            while u > share and found < 100:
                u -= share
                found += 1
                share *= mean / found
        else:
            root = math.sqrt(mean)
            b = rate.dtype.type(0.931) + rate.dtype.type(2.53) * root
            a = rate.dtype.type(0.02483) * b - rate.dtype.type(0.059)
            scale = rate.dtype.type(1.1239) + rate.dtype.type(1.1328) / (b - rate.dtype.type(3.4))
            limit = rate.dtype.type(0.9277) - rate.dtype.type(3.6224) / (b - 2)
            trying = True
            for k in range(TRIES):
                if trying:
                    u = uniform(seed, start + k, stream) - rate.dtype.type(0.5)
                    v = 1 - uniform(seed, start + k, stream + 1)
                    size = rate.dtype.type(0.5) - abs(u)
                    guess = math.floor((2 * a / size + b) * u + mean + rate.dtype.type(0.43))
                    if size >= rate.dtype.type(0.07) and v <= limit:
                        found, trying = guess, False
                    elif guess >= 0 and (size >= rate.dtype.type(0.013) or v <= size):
                        left = math.log(v * scale / (a / (size * size) + b))
                        if left <= guess * math.log(mean) - mean - math.lgamma(guess + 1):
                            found, trying = guess, False
        out[i] = out.dtype.type(found)


# ---- the generator -------------------------------------------------------------------------------


class Generator:
    """Random tensors, the same on every device.

    `seed` has 64 bits; without one it comes from the operating system. `device` is where tensors
    are made, the current device unless given. Threads may share a generator: draws never overlap,
    but their order is then theirs.

    >>> import ruda
    >>> rng = ruda.random.Generator(7)
    >>> rng.integers(0, 10, (2, 3)).tolist(), rng
    ([[1, 4, 3], [5, 6, 2]], Generator(seed=7, drawn=8))
    """

    def __init__(
        self, seed: int | None = None, *, device: Any = None, stream: int = 0, drawn: int = 0
    ) -> None:
        if seed is None:
            seed = int.from_bytes(os.urandom(8), "little")
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise TypeError(f"a seed is an integer, not {type(seed).__name__}")
        if not 0 <= seed < 2**64:
            raise OverflowError(f"a seed has 64 bits and no sign: {seed}")
        if not 0 <= stream < 2**32 - 1:
            raise OverflowError(f"a stream has 32 bits: {stream}")
        self.seed, self.stream, self.drawn = int(seed), stream, drawn
        self.device = device
        self._splits = 0
        self._lock = fork_safe_lock()

    def __repr__(self) -> str:
        return f"Generator(seed={self.seed}, drawn={self.drawn})"

    def split(self, count: int = 2) -> list[Generator]:
        """Independent generators; more at each call."""
        with self._lock:
            first, self._splits = self._splits, self._splits + count
        seeds = counters.split(self.seed, first + count)[first:]
        return [Generator(int(s), device=self.device) for s in seeds]

    # -- numbers of one kind --

    def bits(self, shape: Any = (), *, device: Any = None) -> Tensor:
        """32 random bits as uint32."""
        return self._each(FILL["bits"], shape, dtypes.uint32, device)

    def uniform(
        self, shape: Any = (), *, low: Any = 0.0, high: Any = 1.0, dtype: Any = None,
        device: Any = None,
    ) -> Tensor:  # fmt: skip
        """Floats in [low, high), from 24 random bits, or 53 for float64.

        >>> import ruda
        >>> ruda.random.Generator(7).uniform(3)
        Tensor([0.83847266, 0.44499004, 0.22963554], dtype=float32, device='cpu')
        """
        kind = self._float(dtype)
        shape = _joined(shape, low, high)
        if kind is dtypes.float64:
            out = self._each(FILL["uniform_float64"], shape, kind, device)
        else:
            out = self._each(FILL["uniform"], shape, dtypes.float32, device)
        if not _is(low, 0.0) or not _is(high, 1.0):
            out = out * (high - low) + low
        return astype(out, kind, copy=False)

    def normal(
        self, shape: Any = (), *, mean: Any = 0.0, std: Any = 1.0, dtype: Any = None,
        device: Any = None,
    ) -> Tensor:  # fmt: skip
        """Normal floats of a mean and standard deviation, which broadcast."""
        kind = self._float(dtype)
        _not_negative("std", std)
        shape = _joined(shape, mean, std)
        if kind is dtypes.float64:
            out = self._each(FILL["normal_float64"], shape, kind, device)
        else:
            out = self._each(FILL["normal"], shape, dtypes.float32, device)
        if not _is(std, 1.0):
            out = out * std
        if not _is(mean, 0.0):
            out = out + mean
        return astype(out, kind, copy=False)

    def exponential(
        self, shape: Any = (), *, scale: Any = 1.0, dtype: Any = None, device: Any = None
    ) -> Tensor:
        """Exponential floats of a mean `scale`."""
        kind = self._float(dtype)
        _not_negative("scale", scale)
        shape = _joined(shape, scale)
        if kind is dtypes.float64:
            out = 0.0 - t.log(1.0 - self._each(FILL["uniform_float64"], shape, kind, device))
        else:
            out = self._each(FILL["exponential"], shape, dtypes.float32, device)
        return astype(out if _is(scale, 1.0) else out * scale, kind, copy=False)

    def integers(
        self, low: int, high: int | None = None, shape: Any = (), *, dtype: Any = "int64",
        endpoint: bool = False, device: Any = None,
    ) -> Tensor:  # fmt: skip
        """Integers in [low, high), or [low, high] with `endpoint`; one bound is `high`.

        >>> import ruda
        >>> ruda.random.Generator(7).integers(-3, 3, 5).tolist()
        [-3, -1, -2, 0, 0]
        """
        low, high = (0, low) if high is None else (low, high)
        kind = as_dtype(dtype)
        if not kind.is_integer:
            raise DTypeError(f"random integers of {kind}: an integer dtype is needed")
        high = high - 1 if not endpoint else high
        least, most = kind.range
        if low > high:
            raise ValueError(f"no integers from {low} to {high}")
        if low < least or high > most:
            raise OverflowError(f"{low} to {high} does not fit {kind} ({least} to {most})")
        size = high - low + 1
        if size < 2**32 - 1 and low >= -(2**31) and high < 2**31:
            return self._each(fill_randint, shape, kind, device, np.int64(low), np.int64(high + 1))
        return self._wide(low, size, shape, kind, device)

    def _wide(self, low: int, size: int, shape: Any, kind: DType, device: Any) -> Tensor:
        """floor(x * size / 2**64) of 64 random bits x, by words of 32 bits."""
        flat = self.bits((2, math.prod(as_shape(shape))), device=device)
        high, down = (astype(flat[k], dtypes.uint64) for k in (1, 0))
        if size < 2**64:
            n1, n0 = size >> 32, size & 0xFFFFFFFF
            carry = t.bitwise_right_shift(down * n0, 32)
            middle = high * n0 + carry
            other = down * n1 + t.bitwise_and(middle, 0xFFFFFFFF)
            top = t.bitwise_right_shift(middle, 32) + t.bitwise_right_shift(other, 32)
            word = high * n1 + top
        else:
            word = t.bitwise_or(t.bitwise_left_shift(high, 32), down)
        return reshape(astype(word + low % 2**64, kind), as_shape(shape))

    def bernoulli(self, p: Any, shape: Any = (), *, device: Any = None) -> Tensor:
        """Bools that are true with probability `p`, a number or a tensor that broadcasts."""
        _probabilities(p)
        found: Tensor = self.uniform(_joined(shape, p), device=_place(device, p)) < p
        return found

    def dropout_mask(self, shape: Any, p: float, *, device: Any = None) -> Tensor:
        """Bools, false with probability `p`."""
        return ~self.bernoulli(p, shape, device=device)

    def gamma(
        self, alpha: Any, shape: Any = (), *, scale: Any = 1.0, dtype: Any = None,
        device: Any = None,
    ) -> Tensor:  # fmt: skip
        """Gamma floats of shape parameter `alpha` and a scale; float32 computations."""
        kind = self._float(dtype)
        _not_negative("scale", scale)
        if not _holds(lambda v: v > 0, alpha):
            raise ValueError(f"alpha={alpha!r}: it is positive")
        values = self._parameter(alpha, _joined(shape, alpha, scale), device)
        out = self._each(fill_gamma, values.shape, dtypes.float32, values.device,
                         before=(_flat(values),), count=TRIES)  # fmt: skip
        return astype(out if _is(scale, 1.0) else out * scale, kind, copy=False)

    def poisson(
        self, rate: Any, shape: Any = (), *, dtype: Any = "int64", device: Any = None
    ) -> Tensor:
        """Poisson integers of a mean `rate`; float32 computations, so rate < 2**24."""
        if not _holds(lambda v: v >= 0, rate) or not _holds(lambda v: v < 2.0**24, rate):
            raise ValueError(f"rate={rate!r}: it is not negative and below 2**24")
        values = self._parameter(rate, _joined(shape, rate), device)
        return self._each(fill_poisson, values.shape, as_dtype(dtype), values.device,
                          before=(_flat(values),), count=TRIES)  # fmt: skip

    # -- choices --

    def categorical(self, logits: Tensor, shape: Any = None, *, axis: int = -1) -> Tensor:
        """Indices along `axis`, by the probabilities whose logarithms (plus a constant) are given.

        `shape` is that of the result; it ends with that of `logits` without the axis. By Gumbel's
        trick: the index where log-probability and noise are greatest together.
        """
        rows = t.moveaxis(logits, axis, -1)
        ahead = rows.shape[:-1] if shape is None else as_shape(shape)
        if broadcast_shapes(ahead, rows.shape[:-1]) != ahead:
            raise ShapeError(f"shape={ahead} does not end with {rows.shape[:-1]}, that of the rows")
        noise = self.uniform((*ahead, rows.shape[-1]), device=rows.device)
        gumbel = 0.0 - t.log(0.0 - t.log((noise * 2.0**24 + 0.5) * 2.0**-24))
        return t.argmax(gumbel + rows, axis=-1)

    def permutation(self, x: Any, *, axis: int = 0, device: Any = None) -> Tensor:
        """The numbers 0 ... n - 1 in random order; of a tensor, its parts along an axis.

        >>> import ruda
        >>> sorted(ruda.random.Generator(1).permutation(4).tolist())
        [0, 1, 2, 3]
        """
        if isinstance(x, Tensor):
            order = self.permutation(x.shape[axis], device=x.device)
            return t.take(x, order, axis=axis)
        words = astype(self.bits((2, int(x)), device=device), dtypes.uint64)
        return t.argsort(t.bitwise_or(t.bitwise_left_shift(words[0], 32), words[1]))

    def choice(
        self, a: Any, shape: Any = (), *, replace: bool = True, p: Any = None, device: Any = None
    ) -> Tensor:
        """Elements of a vector, or of 0 ... a - 1; `p` gives probabilities, else all are equal."""
        source = a if isinstance(a, Tensor) else None
        n = source.shape[0] if source is not None else int(a)
        wanted = as_shape(shape)
        count = math.prod(wanted)
        place = device if source is None else source.device
        if n < 1 and count:
            raise ValueError("a choice from nothing")
        if not replace and count > n:
            raise ValueError(f"{count} different ones out of {n}: use replace=True")
        logits = None
        if p is not None:
            p = asarray(p, device=place)
            _probabilities(p)
            if p.shape != (n,) or not abs(float(t.sum(p)) - 1) < 1e-3:
                raise ValueError(f"p holds {n} probabilities with the sum 1")
            logits = t.log(p)
        if replace:
            found = (
                self.integers(0, n, (count,), device=place)
                if logits is None
                else self.categorical(logits, (count,))
            )
        elif logits is None:
            found = self.permutation(n, device=place)[:count]
        else:
            noise = self.uniform((n,), device=place)
            gumbel = 0.0 - t.log(0.0 - t.log((noise * 2.0**24 + 0.5) * 2.0**-24))
            found = t.argsort(gumbel + logits, descending=True)[:count]
        if source is not None:
            found = t.take(source, found, axis=0)
        return reshape(found, (*wanted, *found.shape[1:]))

    # -- how a draw is made --

    def _float(self, dtype: Any) -> DType:
        kind = default_float() if dtype is None else as_dtype(dtype)
        if kind.kind != "float":
            raise DTypeError(f"random floats of {kind}: a floating dtype is needed")
        return kind

    def _place(self, device: Any) -> str:
        return here(self.device if device is None else device)

    def _parameter(self, value: Any, shape: tuple[int, ...], device: Any) -> Tensor:
        given = asarray(value, device=_place(device, value) or self._place(device))
        return broadcast_to(astype(given.detach(), dtypes.float32, copy=False), shape)

    def _advance(self, count: int) -> int:
        """The counter of a draw of `count` numbers, a multiple of 4."""
        if graph.tracing.current is not None:
            graph.tracing.current.refuse(
                "draws random numbers", "draw them outside and pass them as an argument"
            )
        with self._lock:
            start, self.drawn = self.drawn, self.drawn + -(-count // 4) * 4
        return start

    def _each(
        self, kernel: Any, shape: Any, kind: DType, device: Any, *more: Any,
        before: tuple[Any, ...] = (), count: int = 1,
    ) -> Tensor:  # fmt: skip
        out = memory.allocate(as_shape(shape), kind, self._place(device))
        size = math.prod(out.shape)
        start = self._advance(size * count)
        self._run(kernel, size, out, start, *more, before=before)
        return from_buffer(out, self._place(device))

    def _run(
        self, kernel: Any, threads: int, out: Any, start: int, *more: Any,
        before: tuple[Any, ...] = (),
    ) -> None:  # fmt: skip
        if threads:
            flat = memory.view(out, memory.contiguous((math.prod(out.shape),)))
            kernel[-(-threads // THREADS), THREADS](
                flat, *before, np.uint64(self.seed), np.int64(start), np.int64(self.stream), *more
            )


def _flat(x: Tensor) -> Any:
    return memory.view(copied(x), memory.contiguous((x.size,)))


def _is(value: Any, number: float) -> bool:
    return isinstance(value, int | float) and value == number


def _joined(shape: Any, *values: Any) -> tuple[int, ...]:
    """The shape that was asked for, or what the parameters give; they must broadcast to it."""
    given = [v.shape for v in values if isinstance(v, Tensor | np.ndarray)]
    wanted = as_shape(shape)
    joined = broadcast_shapes(wanted, *given)
    if wanted and joined != wanted:
        raise ShapeError(f"parameters of shapes {given} do not broadcast to {wanted}")
    return joined


def _place(device: Any, *values: Any) -> Any:
    found = next((v.device for v in values if isinstance(v, Tensor)), None)
    return device if device is not None else found


def _holds(test: Any, value: Any) -> bool:
    """Whether a number, or every element of an array, passes a test; NaN passes none."""
    if isinstance(value, int | float):
        return bool(test(value))
    return bool(t.all(test(asarray(value))))


def _not_negative(name: str, value: Any) -> None:
    if not _holds(lambda v: v >= 0, value):
        raise ValueError(f"{name}={value!r}: it is not negative")


def _probabilities(p: Any) -> None:
    if not _holds(lambda v: v >= 0, p) or not _holds(lambda v: v <= 1, p):
        raise ValueError(f"p={p!r}: a probability lies between 0 and 1")


def default_rng(seed: int | None = None) -> Generator:
    """A generator, by NumPy's name for it."""
    return Generator(seed)
