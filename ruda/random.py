"""Random numbers without state: functions of a seed and a counter, in kernels and on arrays.

    x = ruda.random.uniform(seed, ruda.grid(1))            # in a kernel: this thread's number
    x = ruda.random.uniform(seed, numpy.arange(1000))      # on the host: the same numbers
    x = ruda.random.Generator(seed).uniform((1000,))       # a tensor on any device: the same

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as
1, 2, 3; SC 2011). It turns a key of two and a counter of four 32-bit words into four words, with
32-bit integers only. The functions differ in how they use the words:

* key = seed, low word first; counter words = block (low, high), stream, and a number of the
  function. So two functions never share random bits, nor do two streams.
* Four numbers of 32 bits come from one block: number i is word i % 4 of block i // 4. Two numbers
  of 64 bits come from one block: number i is made of words 2 (i % 2) and 2 (i % 2) + 1.

`bits`, `uniform`, `randint` and their kin are equal bit for bit on every device. `normal` and
`exponential` apply log, sqrt and cos to such numbers, so devices agree on them as far as they
agree on these functions: not bit for bit, but within 4 units in the last place between `sim`, the
CPU and the host (one number in five differs at all).

Every function below is written in the kernel language and in NumPy at once: called on the host it
runs on arrays, named in a kernel it is compiled from its source (`py_func`). So there is
one definition of each.

numba-cuda's xoroshiro128+ stands at the end, for kernels that keep a state per thread.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code="attr-defined"
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ruda.errors import DTypeError

__all__ = [
    "Generator",  # noqa: F822 - made by __getattr__
    "bits",
    "bits4",
    "create_xoroshiro128p_states",
    "default_rng",  # noqa: F822
    "exponential",
    "init_xoroshiro128p_states",
    "normal",
    "normal4",
    "normal_float64",
    "philox4x32",
    "randint",
    "split",
    "uniform",
    "uniform4",
    "uniform_float64",
    "xoroshiro128p_dtype",
    "xoroshiro128p_jump",
    "xoroshiro128p_next",
    "xoroshiro128p_normal_float32",
    "xoroshiro128p_normal_float64",
    "xoroshiro128p_states",
    "xoroshiro128p_uniform_float32",
    "xoroshiro128p_uniform_float64",
]


def __getattr__(name: str) -> Any:
    """What makes tensors is imported when it is first used."""
    if name not in ("Generator", "default_rng"):
        raise AttributeError(f"module 'ruda.random' has no attribute {name!r}")
    from ruda.tensor import generator

    return getattr(generator, name)


# Multipliers and key increments of Philox4x32, from the paper.
M0, M1 = np.uint32(0xD2511F53), np.uint32(0xCD9E8D57)
W0, W1 = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
ROUNDS = 10

# The fourth counter word. Numbers are never reused: results would change silently.
BITS, UNIFORM, UNIFORM_FLOAT64, NORMAL, NORMAL_FLOAT64, EXPONENTIAL, RANDINT, SPLIT = range(8)

TWO_PI_FLOAT32 = np.float32(2 * np.pi)
TWO_PI_FLOAT64 = np.float64(2 * np.pi)
UNIT_24, UNIT_32, UNIT_53 = np.float32(2.0**-24), np.float32(2.0**-32), np.float64(2.0**-53)
UNIT_53_FLOAT32 = np.float32(2.0**-53)


def _integer(name: str, value: Any) -> Any:
    """An integer argument as a NumPy scalar or array; a Python integer takes 64 bits."""
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(2**63) <= value < 2**64:
            raise OverflowError(f"{name}={value} does not fit 64 bits")
        return np.int64(value) if value < 2**63 else np.uint64(value)
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        raise DTypeError(f"{name} must be an integer or an array of integers, not {array.dtype}")
    return array if array.ndim else array[()]


def _on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function of the kernel language be called on integers and arrays of integers.

    The wrapper checks and converts what a kernel's type rules settle there. Integer overflow
    wraps by intent, and log(0) of a state generator is its defined result.
    """
    names = function.__code__.co_varnames[: function.__code__.co_argcount]

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        values = [_integer(name, value) for name, value in zip(names, arguments, strict=False)]
        values += arguments[len(names) :]  # too many: Python's own error tells
        named = {name: _integer(name, value) for name, value in named.items()}
        with np.errstate(over="ignore", divide="ignore"):
            return function(*values, **named)

    call.py_func = function
    return call


def _quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function on generator states be called on NumPy arrays; the index may be a slice."""

    @functools.wraps(function)
    def call(states: Any, index: Any) -> Any:
        with np.errstate(over="ignore", divide="ignore"):
            return function(states, index)

    call.py_func = function
    return call


def _device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a helper of the functions above: a kernel may call it, users do not."""
    function.py_func = function
    return function


# --------------------------------------------------------------------------- Philox


def mulhi(a, b):
    """The high word of the 64-bit product of two uint32."""
    return np.uint32((np.uint64(a) * np.uint64(b)) >> 32)


mulhi.__ruda_name__ = "mulhi"  # in kernels it is `ruda.mulhi`


@_device
def mulhi_narrow(a, b):
    """The same as `mulhi` for targets without 64-bit integers: schoolbook on 16-bit digits."""
    a0, a1 = a & 0xFFFF, a >> 16
    b0, b1 = b & 0xFFFF, b >> 16
    middle = a1 * b0 + (a0 * b0 >> 16)  # at most (2^16 - 1)^2 + 2^16 - 2: no carry is lost
    other = a0 * b1 + (middle & 0xFFFF)
    return a1 * b1 + (middle >> 16) + (other >> 16)


@_device
def _philox4x32(c0, c1, c2, c3, k0, k1):
    for _ in range(ROUNDS):
        h0, l0 = mulhi(M0, c0), M0 * c0
        h1, l1 = mulhi(M1, c2), M1 * c2
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0, k1 = k0 + W0, k1 + W1
    return c0, c1, c2, c3


@_device
def _block(seed, block_low, block_high, stream, function):
    # A shift by the width gives 0 or the sign, so that a seed means the same in any width.
    return _philox4x32(
        np.uint32(block_low),
        np.uint32(block_high),
        np.uint32(stream),
        np.uint32(function),
        np.uint32(seed),
        np.uint32(seed >> 32),
    )


@_device
def _choose(which, x, y):
    """x where the uint32 `which` is 0, y where it is 1, in arithmetic that arrays share."""
    return x ^ ((x ^ y) & (np.uint32(0) - which))


@_device
def _word(seed, counter, stream, function):
    """Word counter % 4 of block counter // 4."""
    x0, x1, x2, x3 = _block(seed, counter >> 2, counter >> 34, stream, function)
    low, high = np.uint32(counter) & 1, np.uint32(counter) >> 1 & 1
    return _choose(high, _choose(low, x0, x1), _choose(low, x2, x3))


@_device
def _pair(seed, counter, stream, function):
    """Words 2 (counter % 2) and the next one of block counter // 2."""
    x0, x1, x2, x3 = _block(seed, counter >> 1, counter >> 33, stream, function)
    half = np.uint32(counter) & 1
    return _choose(half, x0, x2), _choose(half, x1, x3)


@_device
def _above_zero(x):
    """(x + 1) / 2^32 as float32: in (0, 1]; both products are exact, so one rounding."""
    return np.float32(x >> 8) * UNIT_24 + np.float32((x & 255) + 1) * UNIT_32


@_device
def _unit_float64(x, y):
    """The 53 bits x >> 5, y >> 6 as an integer in float64; exact."""
    return np.float64(x >> 5) * 67108864.0 + np.float64(y >> 6)


@_on_host
def philox4x32(c0, c1, c2, c3, k0, k1):
    """The four words of Philox4x32-10 for a counter of four words and a key of two.

    >>> [hex(word) for word in philox4x32(0, 0, 0, 0, 0, 0)]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    return _philox4x32(
        np.uint32(c0), np.uint32(c1), np.uint32(c2), np.uint32(c3), np.uint32(k0), np.uint32(k1)
    )


@_on_host
def bits(seed, counter, stream=0):
    """32 random bits as uint32. Seed and counter have up to 64 bits, the stream 32.

    >>> bits(7, np.arange(3))
    array([4099963437, 3221879260,  490388034], dtype=uint32)
    """
    return _word(seed, counter, stream, BITS)


@_on_host
def bits4(seed, block, stream=0):
    """`bits` of the counters 4 block ... 4 block + 3, from one block of Philox."""
    return _block(seed, block, block >> 32, stream, BITS)


@_on_host
def uniform(seed, counter, stream=0):
    """A float32 in [0, 1): the upper 24 bits of a random word, over 2^24.

    >>> uniform(7, np.arange(3))
    array([0.83847266, 0.44499004, 0.22963554], dtype=float32)
    """
    return np.float32(_word(seed, counter, stream, UNIFORM) >> 8) * UNIT_24


@_on_host
def uniform4(seed, block, stream=0):
    """`uniform` of the counters 4 block ... 4 block + 3, from one block of Philox."""
    x0, x1, x2, x3 = _block(seed, block, block >> 32, stream, UNIFORM)
    return (
        np.float32(x0 >> 8) * UNIT_24,
        np.float32(x1 >> 8) * UNIT_24,
        np.float32(x2 >> 8) * UNIT_24,
        np.float32(x3 >> 8) * UNIT_24,
    )


@_on_host
def uniform_float64(seed, counter, stream=0):
    """A float64 in [0, 1): 27 bits of one random word and 26 of the next, over 2^53."""
    x, y = _pair(seed, counter, stream, UNIFORM_FLOAT64)
    return _unit_float64(x, y) * UNIT_53


@_device
def _normal(x, y, odd):
    """One of the two numbers of Box and Muller: radius from x, angle from y.

    The second number takes the sine, which is the cosine a quarter turn earlier. The angle is
    an integer number of 2^-24 turns, folded to half a turn either side of 0, where cos is best.
    """
    turns = np.int32(((y >> 8) - (odd << 22)) << 8) >> 8
    angle = TWO_PI_FLOAT32 * (np.float32(turns) * UNIT_24)
    return np.sqrt(np.float32(-2.0) * np.log(_above_zero(x))) * np.cos(angle)


@_on_host
def normal(seed, counter, stream=0):
    """A normal float32 of mean 0 and variance 1, by Box and Muller; at most 6.66 in size."""
    x0, x1, x2, x3 = _block(seed, counter >> 2, counter >> 34, stream, NORMAL)
    odd, high = np.uint32(counter) & 1, np.uint32(counter) >> 1 & 1
    return _normal(_choose(high, x0, x2), _choose(high, x1, x3), odd)


@_on_host
def normal4(seed, block, stream=0):
    """`normal` of the counters 4 block ... 4 block + 3, from one block of Philox."""
    x0, x1, x2, x3 = _block(seed, block, block >> 32, stream, NORMAL)
    even, odd = np.uint32(0), np.uint32(1)
    return _normal(x0, x1, even), _normal(x0, x1, odd), _normal(x2, x3, even), _normal(x2, x3, odd)


@_on_host
def normal_float64(seed, counter, stream=0):
    """A normal float64 of mean 0 and variance 1, by Box and Muller; at most 8.58 in size."""
    x0, x1, x2, x3 = _block(seed, counter >> 1, counter >> 33, stream, NORMAL_FLOAT64)
    radius = (_unit_float64(x0, x1) + 1.0) * UNIT_53  # in (0, 1]
    turns = _unit_float64(x2, x3) * UNIT_53 - 0.25 * np.float64(np.uint32(counter) & 1)
    turns = turns - np.floor(turns + 0.5)
    return np.sqrt(-2.0 * np.log(radius)) * np.cos(TWO_PI_FLOAT64 * turns)


@_on_host
def exponential(seed, counter, stream=0):
    """An exponential float32 of mean 1: -log of a number in (0, 1]; at most 22.2."""
    # 0 - log, not -log: the smallest number is 0, not -0
    return np.float32(0.0) - np.log(_above_zero(_word(seed, counter, stream, EXPONENTIAL)))


@_on_host
def _randint(seed, counter, low, high, stream=0):
    # floor(x * n / 2^64) of a 64-bit random x, in 32-bit words.
    x, y = _pair(seed, counter, stream, RANDINT)
    n = np.uint32(high) - np.uint32(low)
    product = x * n
    carry = np.uint32(product + mulhi(y, n) < product)
    return np.int32(np.uint32(low) + mulhi(x, n) + carry)


def randint(seed: Any, counter: Any, low: Any, high: Any, stream: Any = 0) -> Any:
    """An int32 in [low, high); each value has its share of 1 / (high - low) to within 2^-32 of it.

    In a kernel low < high is the caller's duty.

    >>> randint(7, np.arange(5), -3, 3)
    array([-3, -1, -2,  0,  0], dtype=int32)
    """
    for name, value in (("low", low), ("high", high)):
        value = _integer(name, value)
        if np.any(value < -(2**31)) or np.any(value > 2**31 - (name == "low")):
            raise OverflowError(f"{name} does not fit int32; combine two `bits` for wider ranges")
    size = np.int64(high) - np.int64(low)
    if np.any(size <= 0) or np.any(size == 2**32):
        raise ValueError(f"randint needs 0 < high - low < 2**32, not low={low}, high={high}")
    return _randint(seed, counter, low, high, stream)


randint.py_func = _randint.py_func


def split(seed: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """`count` new seeds, independent of the numbers drawn with `seed`.

    >>> split(7, 2)
    array([10568389882246220405,  8590414525138808019], dtype=uint64)
    """
    with np.errstate(over="ignore"):
        x, y, _, _ = _block(_integer("seed", seed), np.arange(count), 0, 0, SPLIT)
    seeds: np.ndarray[Any, np.dtype[np.uint64]] = y.astype(np.uint64) << 32 | x
    return seeds


# ------------------------------------------------- xoroshiro128+, as in numba.cuda.random
#
# The generator of Blackman and Vigna (2016 constants 55, 14, 36), seeded by one step of
# splitmix64, one state per thread, 2^64 steps apart. Integers and uniform numbers equal numba's
# bit for bit; the normal ones as far as log, sqrt and cos do.

xoroshiro128p_dtype = np.dtype([("s0", np.uint64), ("s1", np.uint64)], align=True)

JUMP0, JUMP1 = np.uint64(0xBEAC0467EBA5FACB), np.uint64(0xD86B048B86AA9922)


@_device
def _rotate_left(x, count):
    return x << count | x >> (64 - count)


@_quiet
def xoroshiro128p_next(states, index):
    """The next 64 random bits of states[index], as uint64."""
    s0 = states[index]["s0"]
    s1 = states[index]["s1"]
    result = s0 + s1  # first: on the host s0 and s1 may be views of the state
    mixed = s0 ^ s1
    states[index]["s0"] = _rotate_left(s0, 55) ^ mixed ^ mixed << 14
    states[index]["s1"] = _rotate_left(mixed, 36)
    return result


@_quiet
def xoroshiro128p_jump(states, index):
    """Advance states[index] by 2^64 steps."""
    s0 = np.uint64(0)
    s1 = np.uint64(0)
    for bit in range(128):
        word = JUMP0 if bit < 64 else JUMP1
        if word >> np.uint64(bit & 63) & np.uint64(1) != 0:
            s0 ^= states[index]["s0"]
            s1 ^= states[index]["s1"]
        xoroshiro128p_next(states, index)
    states[index]["s0"] = s0
    states[index]["s1"] = s1


@_quiet
def xoroshiro128p_uniform_float32(states, index):
    """A float32 in [0, 1]: numba rounds 53 bits to 24, so that 1 occurs once in 2^25 draws."""
    return np.float32(xoroshiro128p_next(states, index) >> 11) * UNIT_53_FLOAT32


@_quiet
def xoroshiro128p_uniform_float64(states, index):
    """A float64 in [0, 1): the upper 53 bits, over 2^53."""
    return np.float64(xoroshiro128p_next(states, index) >> 11) * UNIT_53


@_quiet
def xoroshiro128p_normal_float32(states, index):
    """A normal float32 by Box and Muller; two steps of the generator."""
    u = xoroshiro128p_uniform_float32(states, index)
    v = xoroshiro128p_uniform_float32(states, index)
    return np.sqrt(np.float32(-2.0) * np.log(u)) * np.cos(TWO_PI_FLOAT32 * v)


@_quiet
def xoroshiro128p_normal_float64(states, index):
    """A normal float64 by Box and Muller, from two float32 numbers as in numba."""
    u = xoroshiro128p_uniform_float32(states, index)
    v = xoroshiro128p_uniform_float32(states, index)
    return np.sqrt(np.float64(-2.0) * np.log(u)) * np.cos(TWO_PI_FLOAT64 * v)


States = np.ndarray[Any, np.dtype[np.uint64]]  # n states as n x 2 words


def _byte_tables(columns: States) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """For each of the 16 bytes of a state, the images of its 256 values under a linear map.

    `columns` holds the images of the 128 states with a single bit.
    """
    tables = np.zeros((16, 256, 2), np.uint64)
    for bit, column in enumerate(columns.reshape(16, 8, 2).swapaxes(0, 1)):
        tables[:, 1 << bit : 2 << bit] = tables[:, : 1 << bit] ^ column[:, None]
    return tables


def _apply(columns: States, states: States) -> States:
    """The images of states under the linear map (over bits, plus is exclusive or)."""
    tables = _byte_tables(columns)
    images = np.zeros_like(states)
    for byte in range(16):
        images ^= tables[byte, (states[:, byte // 8] >> np.uint64(byte % 8 * 8)) & np.uint64(255)]
    return images


def _splitmix64(seed: int) -> int:
    mask = 2**64 - 1
    z = (seed + 0x9E3779B97F4A7C15) & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31


def xoroshiro128p_states(n: int, seed: int, subsequence_start: int = 0) -> Any:
    """The states of n generators on the host, each 2^64 steps after the one before.

    `subsequence_start` skips that many times 2^64 steps.

    A jump is a linear map of the 128 bits of a state, so k jumps are its k-th power: the array
    doubles with each squaring, where a jump at a time would take n times 128 steps.
    """
    seed, start = int(_integer("seed", seed)), int(_integer("subsequence_start", subsequence_start))
    if n < 0 or start < 0:
        raise ValueError(f"n={n} and subsequence_start={start} must not be negative")
    bit = np.zeros(128, xoroshiro128p_dtype)
    bit["s0"][:64] = bit["s1"][64:] = np.uint64(1) << np.arange(64, dtype=np.uint64)
    xoroshiro128p_jump(bit, slice(None))
    jump: States = bit.view(np.uint64).reshape(-1, 2)

    states = np.empty((n, 2), np.uint64)
    states[:1] = _splitmix64(seed)
    power = jump
    while start:
        if start & 1:
            states[:1] = _apply(power, states[:1])
        power, start = _apply(power, power), start >> 1
    power, filled = jump, 1
    while filled < n:
        part = states[filled : 2 * filled]
        part[:] = _apply(power, states[: len(part)])
        power, filled = _apply(power, power), 2 * filled
    return states.view(xoroshiro128p_dtype).reshape(-1)


def create_xoroshiro128p_states(
    n: int, seed: int, subsequence_start: int = 0, stream: Any = 0
) -> Any:
    """A device array of n generator states, each 2^64 steps after the one before.

    `subsequence_start` skips that many times 2^64 steps.
    """
    from ruda import to_device  # ruda imports this module

    return to_device(xoroshiro128p_states(n, seed, subsequence_start), stream=stream)


def init_xoroshiro128p_states(
    states: Any, seed: int, subsequence_start: int = 0, stream: Any = 0
) -> None:
    """Fill a device array of dtype `xoroshiro128p_dtype` as `create_xoroshiro128p_states` does."""
    if states.dtype != xoroshiro128p_dtype or states.ndim != 1:
        raise DTypeError(
            f"generator states are one axis of xoroshiro128p_dtype, not {states.dtype}"
        )
    filled = xoroshiro128p_states(states.shape[0], seed, subsequence_start)
    states.copy_to_device(filled, stream=stream)
