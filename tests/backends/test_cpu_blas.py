"""Products on the pool's threads: what NumPy gives, for operands that lie in any way."""

import os
import threading

import numpy as np
import pytest

import ruda
from ruda.backends import cpu_blas

pytest.importorskip("llvmlite")
BLAS = cpu_blas.library()
pytestmark = pytest.mark.skipif(BLAS is None, reason="NumPy's BLAS here is another one")

SHAPES = [  # leading axes, m, k, n
    ((), 128, 784, 256),
    ((), 131, 67, 259),
    ((), 2, 150_000, 3),
    ((), 3000, 16, 17),
    ((3, 5), 64, 33, 48),
    ((1, 2), 300, 70, 90),
]


@pytest.fixture(autouse=True)
def several_threads():
    """Also where this machine has one core."""
    before = BLAS.get_threads()
    BLAS.set_threads(2)
    with ruda.config(num_threads=4):
        yield
    assert BLAS.get_threads() == 2
    BLAS.set_threads(before)


def laid(array, how):
    """The same elements, lying in another way."""
    if how == "turned":
        return np.ascontiguousarray(array.mT).mT
    if how == "inside":
        large = np.full((*array.shape[:-2], array.shape[-2] + 3, array.shape[-1] + 5), np.nan)
        large = large.astype(array.dtype)
        large[..., 1:-2, 2:-3] = array
        return large[..., 1:-2, 2:-3]
    return array


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize(("lead", "m", "k", "n"), SHAPES)
def test_products_are_numpys(lead, m, k, n, dtype, rng):
    x, y = (rng.normal(size=(*lead, *s)).astype(dtype) for s in ((m, k), (k, n)))
    wanted = np.matmul(x.astype("f8"), y.astype("f8"))
    scale = np.matmul(np.abs(x).astype("f8"), np.abs(y).astype("f8"))
    for left in ("plain", "turned", "inside"):
        for right in ("plain", "turned", "inside"):
            out = np.full((*lead, m, n), np.nan, dtype)
            whole = np.concatenate([np.full(16, 7, dtype), out.ravel(), np.full(16, 7, dtype)])
            out = whole[16:-16].reshape(out.shape)
            assert cpu_blas.product(laid(x, left), laid(y, right), out)
            assert (np.abs(out - wanted) <= np.finfo(dtype).eps * np.sqrt(k) * scale).all()
            assert (whole[:16] == 7).all() and (whole[-16:] == 7).all()


def test_bits_do_not_depend_on_the_threads(rng):
    for m, k, n in ((128, 784, 256), (131, 400, 259)):
        x, y = (rng.normal(size=s).astype("f4") for s in ((m, k), (k, n)))
        found = set()
        for threads in (2, 3, 4, 16):
            out = np.empty((m, n), "f4")
            with ruda.config(num_threads=threads):
                assert cpu_blas.product(x, y, out)
            found.add(out.tobytes())
        assert len(found) == 1


def test_operands_may_repeat_and_what_does_not_fit_is_left(rng):
    x = np.broadcast_to(rng.normal(size=(60, 70)).astype("f4"), (8, 60, 70))
    y = rng.normal(size=(8, 70, 80)).astype("f4")
    out = np.empty((8, 60, 80), "f4")
    assert cpu_blas.product(x, y, out)
    np.testing.assert_allclose(out, x @ y, rtol=1e-4, atol=1e-4)
    assert not cpu_blas.product(x[..., ::2], y[:, :35], out)  # gaps
    assert not cpu_blas.product(x[:, ::-1], y, out)
    assert not cpu_blas.product(x.astype("f8"), y, out)
    assert not cpu_blas.product(x[:1, :4], y[:1], out[:1, :4])  # little
    with ruda.config(num_threads=1):
        assert not cpu_blas.product(x, y, out)
    BLAS.set_threads(1)
    assert not cpu_blas.product(x, y, out)
    BLAS.set_threads(2)


def test_specials_go_through(rng):
    x, y = rng.normal(size=(200, 100)).astype("f4"), np.ones((100, 80), "f4")
    x[3, 4], x[5, 6], x[7] = np.nan, np.inf, -0.0
    out = np.full((200, 80), np.nan, "f4")
    assert cpu_blas.product(x, y, out)
    assert np.isnan(out[3]).all() and np.isposinf(out[5]).all() and (out[7] == 0).all()
    assert np.isfinite(np.delete(out, [3, 5], axis=0)).all()


def test_threads_at_once_put_back_the_count(rng):
    x = rng.normal(size=(4, 150, 150)).astype("f4")
    wanted, bad = x @ x, []

    def work():
        for _ in range(30):
            out = np.empty_like(x)
            if not cpu_blas.product(x, x, out) or np.abs(out - wanted).max() > 1e-3:
                bad.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad and BLAS.get_threads() == 2 and not cpu_blas._users


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_the_threads_of_its_parent():
    """Whose product another thread is in: it is not finished in the child."""
    with cpu_blas.alone(BLAS):
        child = os.fork()
        if not child:
            os._exit(BLAS.get_threads() * 10 + len(cpu_blas._users))
        _, status = os.waitpid(child, 0)
        assert BLAS.get_threads() == 1
    assert os.waitstatus_to_exitcode(status) == 20


def test_tensors_products_take_it(rng, monkeypatch):
    x, y = (rng.normal(size=s).astype("f4") for s in ((150, 200), (200, 160)))
    runs, run = [], cpu_blas.cpu_pool.run
    monkeypatch.setattr(cpu_blas.cpu_pool, "run", lambda *a: (runs.append(a), run(*a))[1])
    for left, right in ((x, y), (x, laid(y, "turned"))):
        found = ruda.asarray(left, device="cpu") @ ruda.asarray(right, device="cpu")
        np.testing.assert_allclose(found.numpy(), x @ y, rtol=1e-4, atol=1e-4)
    assert len(runs) == 2
