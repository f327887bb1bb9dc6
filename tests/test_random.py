"""ruda.random against published answers, against whole numbers, and against chance."""

import numpy as np
import pytest

import ruda
from ruda import random
from ruda.errors import DTypeError

# Counter, key and answer of Philox4x32-10 from Random123's file of known answers.
KNOWN = [
    ([0] * 6, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ([0xFFFFFFFF] * 6, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0],
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]
EDGES = [0, 1, 2, 0xFFFF, 0x10000, 0x10001, 0x7FFFFFFF, 0x80000000, 0xFFFF0000, 0xFFFFFFFF]
FUNCTIONS = ["bits", "uniform", "uniform_float64", "normal", "normal_float64", "exponential"]
N = 100_000


def words(seed, block, stream, function):
    """The four words of a block as Python integers: the layout, spelled a second time."""
    counter = [block % 2**32, (block >> 32) % 2**32, stream, function]
    return [int(w) for w in random.philox4x32(*counter, seed % 2**32, (seed >> 32) % 2**32)]


@pytest.mark.parametrize("inputs, answer", KNOWN)
def test_philox_gives_the_published_answers(inputs, answer):
    assert [int(w, 16) for w in answer.split()] == [int(w) for w in random.philox4x32(*inputs)]


@pytest.mark.parametrize("mulhi", [random.mulhi, random.mulhi_narrow])
def test_mulhi_is_the_high_word_of_the_product(mulhi):
    rng = np.random.default_rng(1)
    a = np.concatenate([np.repeat(EDGES, len(EDGES)), rng.integers(0, 2**32, 1000)])
    b = np.concatenate([np.tile(EDGES, len(EDGES)), rng.integers(0, 2**32, 1000)])
    got = mulhi(a.astype(np.uint32), b.astype(np.uint32))
    assert got.dtype == np.uint32
    assert got.tolist() == [int(x) * int(y) >> 32 for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("function", [*FUNCTIONS, "randint"])
def test_without_64_bit_integers_the_numbers_are_the_same(function, monkeypatch):
    bounds = (-5, 100) if function == "randint" else ()
    wide = getattr(random, function)(99, np.arange(500), *bounds)
    monkeypatch.setattr(random, "mulhi", random.mulhi_narrow)
    assert np.array_equal(wide, getattr(random, function)(99, np.arange(500), *bounds))


SEEDS = [0, 7, -1, 2**32 + 1, 2**63 + 5, 2**64 - 1, -(2**63)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("start", [0, 2**31 - 3, 2**32 - 3, 2**34 - 3, 2**63 - 9])
def test_the_documented_words_are_used(seed, start):
    for i in range(start, start + 9):
        quarter, half = divmod(i, 4), divmod(i, 2)
        assert random.bits(seed, i) == words(seed, quarter[0], 0, 0)[quarter[1]]
        assert random.bits(seed, i, 9) == words(seed, quarter[0], 9, 0)[quarter[1]]
        word = words(seed, quarter[0], 3, 1)[quarter[1]]
        assert random.uniform(seed, i, stream=3) == (word >> 8) / 2**24
        x, y = words(seed, half[0], 0, 2)[2 * half[1] :][:2]
        assert random.uniform_float64(seed, i) == ((x >> 5) * 2**26 + (y >> 6)) / 2**53
        x, y = words(seed, half[0], 0, 6)[2 * half[1] :][:2]
        assert random.randint(seed, i, -3, 17) == -3 + ((x << 32 | y) * 20 >> 64)


def test_dtypes_and_shapes():
    counters = np.arange(6).reshape(2, 3)
    dtypes = dict.fromkeys(FUNCTIONS, np.float32) | {"bits": np.uint32}
    dtypes |= {"uniform_float64": np.float64, "normal_float64": np.float64}
    for name, dtype in dtypes.items():
        for counter, shape in ((counters, (2, 3)), (4, ()), (counters[:0], (0, 3))):
            got = getattr(random, name)(1, counter)
            assert got.dtype == dtype and got.shape == shape, name
    assert random.bits(np.arange(2)[:, None], counters[0]).shape == (2, 3)
    assert random.randint(1, counters, 0, 9).dtype == np.int32


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "uint64"])
def test_seed_and_counter_mean_the_same_in_any_width(dtype):
    values = np.arange(-4 if dtype.startswith("i") else 0, 100).astype(dtype)
    same = values.astype(np.int64)
    assert np.array_equal(random.bits(values, values), random.bits(same, same))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_one_thread_computes_what_an_array_holds(function):
    """The kernel form on typed scalars, as the interpreter runs it."""
    kernel_form = getattr(random, function).py_func
    counters = np.array([0, 1, 2, 3, 77, 2**31, 2**40 + 1])
    with np.errstate(over="ignore"):
        threads = [kernel_form(np.int64(5), counter) for counter in counters]
    array = getattr(random, function)(5, counters)
    assert [type(value) for value in threads] == [array.dtype.type] * len(counters)
    # log and cos of NumPy differ by a bit between scalars and vectors
    exact = function in ("bits", "uniform", "uniform_float64")
    np.testing.assert_allclose(np.array(threads), array, rtol=0, atol=0 if exact else 1e-6)


@pytest.mark.parametrize("function", ["bits", "uniform", "normal"])
def test_four_at_once_are_the_four_one_by_one(function):
    blocks = np.array([0, 1, 2**31, 2**32 + 1])
    four = np.stack(getattr(random, function + "4")(3, blocks, 8), axis=-1)
    one = getattr(random, function)(3, blocks[:, None] * 4 + np.arange(4), 8)
    np.testing.assert_allclose(four, one, rtol=0, atol=1e-6 if function == "normal" else 0)


def test_the_ends_of_the_ranges():
    ends = np.array([0, 255, 256, 2**32 - 1], np.uint32)
    got = random._above_zero(ends)
    assert got.dtype == np.float32
    assert got.tolist() == [2**-32, 2**-24, np.float32((256 + 1) / 2**32), 1.0]
    assert np.float32(2**24 - 1) * random.UNIT_24 < 1
    for x in ends:
        for y in ends:
            with np.errstate(over="ignore"):
                pair = [random._normal(x, y, np.uint32(odd)) for odd in (0, 1)]
            assert all(abs(z) <= 6.661 for z in pair)
            square = -2 * np.log((int(x) + 1) / 2**32)
            assert np.hypot(*np.float64(pair)) ** 2 == pytest.approx(square, rel=1e-5, abs=1e-6)


def test_the_smallest_exponential_number_is_zero_without_a_sign(monkeypatch):
    monkeypatch.setattr(random, "_word", lambda *_: np.uint32(2**32 - 1))
    assert str(random.exponential(0, 0)) == "0.0"


@pytest.mark.parametrize("block", [5, 2**31 - 1, 2**32 + 5, 2**61])
def test_normal_is_the_textbook_formula(block):
    x0, x1, x2, x3 = words(11, block, 0, 3)
    radius, angle = np.sqrt(-2 * np.log((x2 + 1) / 2**32)), 2 * np.pi * (x3 >> 8) / 2**24
    assert random.normal(11, 4 * block + 2) == pytest.approx(radius * np.cos(angle), abs=2e-6)
    assert random.normal(11, 4 * block + 3) == pytest.approx(radius * np.sin(angle), abs=2e-6)
    x0, x1, x2, x3 = words(11, block, 0, 4)
    radius = np.sqrt(-2 * np.log((((x0 >> 5) << 26 | x1 >> 6) + 1) / 2**53))
    angle = 2 * np.pi * ((x2 >> 5) << 26 | x3 >> 6) / 2**53
    assert random.normal_float64(11, 2 * block) == pytest.approx(radius * np.cos(angle), abs=1e-14)
    assert random.normal_float64(11, 2 * block + 1) == pytest.approx(
        radius * np.sin(angle), abs=1e-14
    )


@pytest.mark.parametrize("low, high", [(0, 1), (-(2**31), 2**31 - 1), (-7, -6), (5, 2**31)])
def test_randint_stays_in_its_range(low, high):
    got = random.randint(1, np.arange(2000), low, high)
    assert got.min() >= low and got.max() < high
    x, y = words(1, 0, 0, 6)[:2]
    assert got[0] == low + ((x << 32 | y) * (high - low) >> 64)


def test_randint_carries(monkeypatch):
    """The low words of the product overflow into the high one."""
    for x, y, n in [(2**32 - 1, 2**32 - 1, 3), (0x55555555, 2**32 - 1, 3), (1, 0, 2**32 - 1)]:
        monkeypatch.setattr(random, "_pair", lambda *_, p=(x, y): tuple(map(np.uint32, p)))
        got = int(random.randint(0, 0, -(2**31), n - 2**31))
        assert got + 2**31 == (x << 32 | y) * n >> 64


def test_split_gives_other_seeds():
    seeds = random.split(5, 1000)
    assert seeds.dtype == np.uint64 and len(set(seeds.tolist())) == 1000
    assert np.array_equal(seeds[:3], random.split(5, 3)) and random.split(5, 0).size == 0
    x, y, _, _ = words(5, 1, 0, 7)
    assert int(seeds[1]) == y << 32 | x


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: random.uniform(1.5, 0), DTypeError, "seed must be an integer"),
        (lambda: random.uniform(1, np.arange(3.0)), DTypeError, "counter must be.*float64"),
        (lambda: random.bits(True, 0), DTypeError, "seed must be an integer"),
        (lambda: random.bits(2**64, 0), OverflowError, "seed=18446744073709551616"),
        (lambda: random.bits(1, 0, stream="a"), DTypeError, "stream must be"),
        (lambda: random.bits(1), TypeError, "counter"),
        (lambda: random.bits(1, 2, 3, 4), TypeError, "positional arguments"),
        (lambda: random.randint(1, 0, 5, 5), ValueError, "not low=5, high=5"),
        (lambda: random.randint(1, 0, -(2**31), 2**31), ValueError, "high - low < 2"),
        (lambda: random.randint(1, 0, 0, 2**31 + 1), OverflowError, "high does not fit int32"),
        (lambda: random.randint(1, 0, -(2**31) - 1, 0), OverflowError, "low does not fit int32"),
        (lambda: random.xoroshiro128p_states(-1, 1), ValueError, "n=-1"),
        (lambda: random.xoroshiro128p_states(1, 1.0), DTypeError, "seed must be"),
    ],
)
def test_bad_arguments_are_named(call, error, words):
    with pytest.raises(error, match=words):
        call()


# Chance: with a fixed seed these pass for ever, and a wrong generator fails them by far.


def chi_square(counts, expected):
    """How many standard deviations the statistic is from its mean."""
    freedom = len(counts) - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


def normal_cdf(z):
    from scipy.special import ndtr

    return ndtr(z)


UNIT = {
    "bits": lambda x: x / 2**32,
    "uniform": lambda x: x,
    "uniform_float64": lambda x: x,
    "normal": normal_cdf,
    "normal_float64": normal_cdf,
    "exponential": lambda x: -np.expm1(-x.astype(float)),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_the_distribution_is_right(function, seed):
    unit = UNIT[function](getattr(random, function)(seed, np.arange(N)))
    counts = np.bincount((unit * 1000).astype(int), minlength=1000)
    assert abs(chi_square(counts, N / 1000)) < 4
    pairs = (unit[:-1] * 30).astype(int) * 30 + (unit[1:] * 30).astype(int)  # neighbours
    assert abs(chi_square(np.bincount(pairs, minlength=900), (N - 1) / 900)) < 4


@pytest.mark.parametrize("low, high", [(0, 6), (-500, 500), (3, 100)])
def test_randint_is_uniform(low, high):
    got = random.randint(2, np.arange(N), low, high) - low
    assert abs(chi_square(np.bincount(got, minlength=high - low), N / (high - low))) < 4


def test_every_bit_is_fair_and_independent_of_its_neighbour():
    x = random.bits(3, np.arange(N))
    table = (x[:, None] >> np.arange(32, dtype=np.uint32)) & np.uint32(1)
    assert np.abs(table.mean(axis=0) - 0.5).max() < 4.5 * 0.5 / np.sqrt(N)
    flips = (table[1:] ^ table[:-1]).mean(axis=0)
    assert np.abs(flips - 0.5).max() < 4.5 * 0.5 / np.sqrt(N)


def test_seeds_streams_and_functions_are_independent():
    i = np.arange(N)
    columns = [
        random.uniform(0, i),
        random.uniform(1, i),
        random.uniform(2**32, i),
        random.uniform(0, i, 1),
        random.uniform_float64(0, i),
        random.bits(0, i) / 2**32,
        normal_cdf(random.normal(0, i)),
        random.exponential(0, i),
        random.uniform(int(random.split(0, 1)[0]), i),
    ]
    correlation = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(correlation).max() < 4 / np.sqrt(N)


# xoroshiro128+: answers of numba.cuda.random, numba-cuda 0.30.4. Each call advances one state:
# `next` that of thread 1, uniform_float32 0, uniform_float64 2, normal_float32 3 and _float64 4.
NUMBA = {
    (1, 0): {
        "states": "910a2dec89025cc1 910a2dec89025cc1 73c19a5348fc9098 6c96c932f21d71ee "
        "0b3d0cd6ddfa7a4c d3c2c33e9b8e707a 3b80c389fcd31ee7 b43c70624d182bbb "
        "17e0e052c5094b78 8341792fb49d7386",
        "next": "e05863863b1a0286 35d4f476e08d5559 6b48e8d378de8c7b",
        "uniform_float32": "0x1.10a2de0p-3 0x1.8322140p-2 0x1.d82b7e0p-3",
        "uniform_float64": "0x1.bdffa02af311dp-1 0x1.d1039182fe51cp-2 0x1.bbb4c935bf5b7p-1",
        "normal_float32": "0x1.4da0400p-2 0x1.1a7e000p-3 -0x1.b2f94a0p-2",
        "normal_float64": "-0x1.aba2174768ce2p-1 0x1.dd126c03a4164p-1 0x1.2d9bc2efe847dp-3",
    },
    (0xDEADBEEFCAFEF00D, 3): {
        "states": "4840ca306c400bac e14733244e9d7fa4 ca67910bef346756 d1de91ad1d69e949 "
        "609d551332e41fc9 18ba654be389fec9 fac20782766f6b2d a96fd06f1ba16ad7 "
        "ca517f0683d5489b 9926c113922f85db",
        "next": "9c4622b90c9e509f 16ce71eacfbdde9b 94b5235d777de933",
        "uniform_float32": "0x1.4c3fea0p-3 0x1.5e7c240p-1 0x1.1e39d20p-2",
        "uniform_float64": "0x1.e55ee97c59b86p-2 0x1.9d7d6ac28c9e6p-2 0x1.0f586b79e7b3cp-2",
        "normal_float32": "-0x1.c81dac0p-1 0x1.8011000p+0 0x1.828d460p-1",
        "normal_float64": "0x1.429c38eefa303p+0 0x1.f92169834d858p-3 -0x1.20e38fdbcef72p+0",
    },
}


@pytest.mark.parametrize("seed, start", NUMBA)
def test_xoroshiro_equals_numba(seed, start):
    known = NUMBA[seed, start]
    states = random.xoroshiro128p_states(5, seed, start)
    expected = [int(word, 16) for word in known["states"].split()]
    assert states.dtype == random.xoroshiro128p_dtype
    assert states.view(np.uint64).tolist() == expected
    for word in known["next"].split():
        assert random.xoroshiro128p_next(states, 1) == int(word, 16)
    for name, index, tolerance in [
        ("uniform_float32", 0, 0),
        ("uniform_float64", 2, 0),
        ("normal_float32", 3, 1e-6),
        ("normal_float64", 4, 1e-6),  # of a float32 logarithm, as in numba
    ]:
        for number in known[name].split():
            got = getattr(random, "xoroshiro128p_" + name)(states, index)
            assert got.dtype == name.split("_")[1]
            assert abs(got - float.fromhex(number)) <= tolerance


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 64, 65])
def test_states_are_a_jump_apart(n):
    states = random.xoroshiro128p_states(n, -9, 0)
    assert len(states) == n
    jumped = states.copy()
    for i in range(n):
        random.xoroshiro128p_jump(jumped, i)
    assert np.array_equal(jumped[:-1], states[1:])
    if n:
        assert jumped[-1] == random.xoroshiro128p_states(1, -9, n)[0]


def test_a_slice_advances_every_state():
    together = random.xoroshiro128p_states(6, 4, 0)
    apart = together.copy()
    for _ in range(3):
        row = random.xoroshiro128p_uniform_float64(together, slice(None))
        assert row.tolist() == [random.xoroshiro128p_uniform_float64(apart, i) for i in range(6)]
    assert np.array_equal(together, apart)


def test_xoroshiro_is_uniform():
    states = random.xoroshiro128p_states(1000, 1, 0)
    draws = [random.xoroshiro128p_uniform_float32(states, slice(None)) for _ in range(100)]
    counts = np.bincount((np.concatenate(draws) * 256).astype(int), minlength=256)
    assert abs(chi_square(counts, N / 256)) < 4


def test_zero_and_one_of_numbas_uniform_numbers():
    """Its rounding reaches 1, and 0 has an infinite normal number: both are numba's."""
    states = np.array([(2**64 - 1, 0), (0, 0)], random.xoroshiro128p_dtype)
    assert random.xoroshiro128p_uniform_float32(states, 0) == 1
    assert random.xoroshiro128p_normal_float32(states, 1) == np.inf


@pytest.mark.parametrize("function", ["normal", "normal_float64", "exponential"])
def test_devices_agree_on_what_goes_through_log_and_cos(function):
    """Not bit for bit, as their functions differ: within 4 units in the last place."""
    dtype = np.float64 if function.endswith("64") else np.float32
    draw = getattr(random, function)

    @ruda.jit
    def fill(out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = draw(7, i)

    host = draw(7, np.arange(4000))
    for device in ("sim", "cpu"):
        out = np.zeros(4000, dtype)
        with ruda.config(device=device):
            fill[16, 256](out)
        np.testing.assert_allclose(out, host, rtol=4 * np.finfo(dtype).eps, atol=0)
