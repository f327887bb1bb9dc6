"""Random tensors: equal bits everywhere, right distributions, parameters that are checked."""

import numpy as np
import pytest
import scipy.stats

import ruda
from ruda.errors import CompileError, DTypeError, ShapeError
from ruda.random import Generator

N = 20000
BELIEVABLE = 1e-4  # of a right sampler, one seed in 10**4 fails; these seeds are fixed


def floats(x):
    return x.numpy().astype("f8").ravel()


# ---- the same everywhere -------------------------------------------------------------------------


def test_bits_integers_and_uniforms_are_those_of_the_counter(device):
    rng = Generator(2**63 + 5, device=device)
    i = np.arange(4 * N)
    np.testing.assert_array_equal(rng.bits((N,)).numpy(), ruda.random.bits(rng.seed, i[:N]))
    second = rng.uniform((3, 5))
    assert second.device.startswith(device) and rng.drawn == N + 16
    wanted = ruda.random.uniform(rng.seed, N + i[:15]).reshape(3, 5)
    np.testing.assert_array_equal(second.numpy(), wanted)
    third = rng.integers(-7, 1000, (9,), dtype="int32")
    wanted = ruda.random.randint(rng.seed, N + 16 + i[:9], -7, 1000)
    np.testing.assert_array_equal(third.numpy(), wanted)


@pytest.mark.parametrize("name", ["normal", "exponential"])
def test_floats_of_functions_agree_to_4_ulp(name, device):
    found = getattr(Generator(3, device=device), name)((1000,)).numpy()
    wanted = getattr(ruda.random, name)(3, np.arange(1000))
    np.testing.assert_array_max_ulp(found, wanted, maxulp=4)


@pytest.mark.parametrize("name", ["gamma", "poisson"])
@pytest.mark.parametrize("parameter", [0.5, 3.0, 40.0])
def test_a_flipped_acceptance_changes_one_element(name, parameter, device):
    """Devices agree but for rounding, and for the few elements where it decided."""
    found = floats(getattr(Generator(5, device=device), name)(parameter, (500,)))
    wanted = floats(getattr(Generator(5, device="sim"), name)(parameter, (500,)))
    assert np.isclose(found, wanted, rtol=1e-4).mean() > 0.99


def test_wide_integers(device):
    for low, high in ((-(2**63), 2**63), (0, 2**40), (-(2**40), 7)):
        x = Generator(1, device=device).integers(low, high, (N,))
        y = Generator(1, device="cpu").integers(low, high, (N,))
        np.testing.assert_array_equal(x.numpy(), y.numpy())
    x = Generator(9, device=device).integers(0, 2**64, (N,), dtype="uint64").numpy()
    share = x.astype("f8") / 2.0**64
    assert scipy.stats.kstest(share, "uniform").pvalue > BELIEVABLE


def test_draws_never_overlap_and_repeat_from_the_same_state():
    rng = Generator(4)
    first, second = rng.uniform(5), rng.uniform(5)
    assert not set(first.tolist()) & set(second.tolist())
    again = Generator(4, drawn=8).uniform(5)
    assert again.tolist() == second.tolist()
    assert Generator(4, stream=1).uniform(5).tolist() != first.tolist()


def test_splitting():
    rng = Generator(4)
    parts = [*rng.split(3), *rng.split(2)]
    assert len({g.seed for g in [rng, *parts]}) == 6
    assert [g.seed for g in Generator(4).split(5)] == [g.seed for g in parts]


def test_a_seed_of_the_systems_own():
    assert Generator().seed != Generator().seed
    assert ruda.random.default_rng(3).seed == 3


# ---- distributions -------------------------------------------------------------------------------

CONTINUOUS = {
    "uniform": (lambda g: g.uniform((N,), low=-1, high=3), scipy.stats.uniform(-1, 4)),
    "uniform 64": (lambda g: g.uniform((N,), dtype="float64"), scipy.stats.uniform()),
    "normal": (lambda g: g.normal((N,), mean=2, std=3), scipy.stats.norm(2, 3)),
    "normal 64": (lambda g: g.normal((N,), dtype="float64"), scipy.stats.norm()),
    "exponential": (lambda g: g.exponential((N,), scale=2), scipy.stats.expon(scale=2)),
    "exponential 64": (lambda g: g.exponential((N,), dtype="float64"), scipy.stats.expon()),
    "gamma 0.2": (lambda g: g.gamma(0.2, (N,)), scipy.stats.gamma(0.2)),
    "gamma 1": (lambda g: g.gamma(1, (N,), scale=3), scipy.stats.gamma(1, scale=3)),
    "gamma 30": (lambda g: g.gamma(30, (N,)), scipy.stats.gamma(30)),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_distributions(name):
    draw, wanted = CONTINUOUS[name]
    x = floats(draw(Generator(12)))
    assert scipy.stats.kstest(x, wanted.cdf).pvalue > BELIEVABLE
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 4 / np.sqrt(N)


DISCRETE = {
    "integers": (lambda g: g.integers(10, shape=(N,)), scipy.stats.randint(0, 10)),
    "endpoint": (lambda g: g.integers(3, 5, (N,), endpoint=True), scipy.stats.randint(3, 6)),
    "bernoulli": (lambda g: g.bernoulli(0.3, (N,)), scipy.stats.bernoulli(0.3)),
    "dropout": (lambda g: g.dropout_mask((N,), 0.1), scipy.stats.bernoulli(0.9)),
    "poisson 0.7": (lambda g: g.poisson(0.7, (N,)), scipy.stats.poisson(0.7)),
    "poisson 9.5": (lambda g: g.poisson(9.5, (N,)), scipy.stats.poisson(9.5)),
    "poisson 10": (lambda g: g.poisson(10, (N,)), scipy.stats.poisson(10)),
    "poisson 300": (lambda g: g.poisson(300, (N,)), scipy.stats.poisson(300)),
    "choice": (lambda g: g.choice(6, (N,)), scipy.stats.randint(0, 6)),
    "choice p": (lambda g: g.choice(3, (N,), p=[0.2, 0.5, 0.3]),
                 scipy.stats.rv_discrete(values=([0, 1, 2], [0.2, 0.5, 0.3]))),
    "categorical": (lambda g: g.categorical(ruda.log(ruda.asarray([0.25, 0.75])), (N,)),
                    scipy.stats.bernoulli(0.75)),
}  # fmt: skip


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_distributions(name):
    draw, wanted = DISCRETE[name]
    x = floats(draw(Generator(21))).astype(int)
    values = np.arange(x.min(), x.max() + 1)
    expected = wanted.pmf(values) * N
    kept = expected > 5
    seen = np.array([(x == v).sum() for v in values])
    p = scipy.stats.chisquare(seen[kept], expected[kept] * seen[kept].sum() / expected[kept].sum())
    assert p.pvalue > BELIEVABLE and seen[~kept].sum() < 50 + 10 * expected[~kept].sum()


def test_every_permutation_is_equally_likely():
    rng = Generator(8)
    seen = {}
    for _ in range(600):
        order = tuple(rng.permutation(3).tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 6 and scipy.stats.chisquare(list(seen.values())).pvalue > BELIEVABLE


# ---- shapes and parameters -----------------------------------------------------------------------


def test_parameters_broadcast():
    rng = Generator(2)
    mean = ruda.asarray([[0.0], [1000.0]])
    assert rng.normal((2, 3), mean=mean).numpy().round(-3).tolist() == [[0] * 3, [1000] * 3]
    assert rng.normal(mean=mean).shape == (2, 1)
    assert rng.bernoulli(ruda.asarray([0.0, 1.0])).tolist() == [False, True]
    assert rng.poisson(ruda.asarray([0.0, 1e6])).tolist()[0] == 0
    assert rng.gamma(ruda.asarray([0.01, 1e6]), (4, 2)).shape == (4, 2)


def test_choices_of_tensors():
    x = ruda.asarray([[1, 2], [3, 4], [5, 6]])
    rng = Generator(6)
    rows = {tuple(r) for r in x.tolist()}
    assert {tuple(r) for r in rng.permutation(x).tolist()} == rows
    assert rng.choice(x, (5,)).shape == (5, 2)
    assert {tuple(r) for r in rng.choice(x, (3,), replace=False).tolist()} == rows
    assert set(rng.choice(4, (2,), replace=False, p=[0, 0.5, 0, 0.5]).tolist()) == {1, 3}


@pytest.mark.parametrize("shape", [(), 0, (0, 3), 1, 5, (2, 3), 1001])
@pytest.mark.parametrize("name", ["uniform", "bits", "normal", "exponential"])
def test_shapes(name, shape, device):
    x = getattr(Generator(1, device=device), name)(shape)
    assert x.shape == (shape if isinstance(shape, tuple) else (shape,))
    assert np.unique(x.numpy()).size == x.size


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [(lambda: Generator(-1), OverflowError, "64 bits"), (lambda: Generator(2**64), OverflowError,
      "64 bits"), (lambda: Generator(1.5), TypeError, "float"),
     (lambda: Generator(1).uniform(dtype="int32"), DTypeError, "int32"),
     (lambda: Generator(1).normal(std=-1.0), ValueError, "std"),
     (lambda: Generator(1).integers(5, 5), ValueError, "no integers"),
     (lambda: Generator(1).integers(0, 300, dtype="uint8"), OverflowError, "uint8"),
     (lambda: Generator(1).integers(3, dtype="float32"), DTypeError, "float32"),
     (lambda: Generator(1).bernoulli(1.5), ValueError, "between 0 and 1"),
     (lambda: Generator(1).bernoulli(float("nan")), ValueError, "between 0 and 1"),
     (lambda: Generator(1).gamma(0.0), ValueError, "positive"),
     (lambda: Generator(1).poisson(-1.0), ValueError, "not negative"),
     (lambda: Generator(1).choice(3, (4,), replace=False), ValueError, "out of 3"),
     (lambda: Generator(1).choice(2, p=[0.5, 0.6]), ValueError, "sum 1"),
     (lambda: Generator(1).uniform((-1,)), ValueError, "negative"),
     (lambda: Generator(1).normal((2,), mean=ruda.ones(3)), ShapeError, "broadcast")],
)  # fmt: skip
def test_parameters_are_checked(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_a_compiled_function_does_not_draw_the_same_numbers_again():
    rng = Generator(1)

    @ruda.compile
    def noisy(x):
        return x + rng.normal(x.shape)

    with pytest.raises(CompileError, match="draws random numbers"):
        noisy(ruda.ones(3))
