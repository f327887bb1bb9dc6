"""Factorisations by kernels: errors in units of rounding, and what matrices cannot have."""

import numpy as np
import pytest

import ruda
from ruda.tensor import factors

LARGE = {"sim": 4, "cpu": 70, "wgpu": 70, "cuda": 300}  # the panels of 32 columns are several


@pytest.fixture(params=["float32", "float64"])
def dtype(request, device):
    if request.param == "float64" and device.partition(":")[0] in ("cpu", "wgpu"):
        pytest.skip("the same kernels once more, which take seconds to compile here")
    return request.param


def sizes(device):
    return (0, 1, 3, LARGE[device.partition(":")[0]])


def error(found, wanted, scale):
    """The greatest error in units of the dtype's rounding, of a size."""
    eps = np.finfo(found.dtype).eps
    wide = found.astype(np.float64) - wanted
    return np.abs(wide).max(initial=0) / (eps * max(float(scale), 1e-30))


def test_solutions_and_inverses(device, dtype, rng):
    """Backward errors: the residual against the sizes of what was multiplied."""
    for n in sizes(device):
        a, b = (rng.normal(size=(2, n, k)).astype(dtype) for k in (n, 3))
        there, right = (ruda.asarray(v, device=device) for v in (a, b))
        x = factors.solve(there, right).numpy()
        assert x.dtype == dtype and x.shape == b.shape
        sizes_ = np.abs(a).max(initial=0) * np.abs(x).max(initial=0) * max(n, 1)
        residual = (a.astype("f8") @ x.astype("f8")).astype("f8")
        assert np.abs(residual - b).max(initial=0) <= 4 * np.finfo(dtype).eps * sizes_
        back = factors.inv(there).numpy()
        near = a.astype("f8") @ back.astype("f8") - np.eye(n)
        condition = np.linalg.cond(a.astype("f8")).max(initial=1) if n else 1
        assert np.abs(near).max(initial=0) <= 4 * np.finfo(dtype).eps * condition * max(n, 1)


def test_determinants(device, dtype, rng):
    for n in sizes(device):
        a = rng.normal(size=(2, n, n)).astype(dtype)
        a = np.stack([a[0], a[1][::-1]]).astype(dtype)
        there = ruda.asarray(a, device=device)
        sign, size = factors.slogdet(there)
        signs, logs = np.linalg.slogdet(a.astype("f8"))
        assert sign.numpy().tolist() == signs.tolist()
        np.testing.assert_allclose(size.numpy(), logs, atol=200 * np.finfo(dtype).eps * (n + 1))
        if n < 5:
            bound = 200 * np.finfo(dtype).eps
            np.testing.assert_allclose(factors.det(there).numpy(), signs * np.exp(logs), rtol=bound)
    zero = ruda.zeros((3, 3), device=device)
    assert float(factors.det(zero)) == 0
    assert float(factors.slogdet(zero).logabsdet) == -np.inf


def test_roots_of_matrices(device, dtype, rng):
    for n in sizes(device):
        a = rng.normal(size=(2, n, n))
        a = (a @ a.swapaxes(1, 2) + np.eye(n)).astype(dtype)
        for upper in (False, True):
            # The other triangle is not read.
            half = np.triu(a) if upper else np.tril(a)
            c = factors.cholesky(ruda.asarray(half, device=device), upper=upper).numpy()
            assert (c == (np.triu(c) if upper else np.tril(c))).all()
            low = c.swapaxes(1, 2) if upper else c
            product = low.astype("f8") @ low.swapaxes(1, 2).astype("f8")
            assert error(product.astype(dtype), a, (n + 1) * np.abs(a).max(initial=0)) < 4


def test_views_vectors_and_numbers(device, rng):
    """Transposes, strides, a right side that is a vector, integers, stacks that broadcast."""
    a = rng.normal(size=(6, 6)).astype("f4")
    there = ruda.asarray(a, device=device)
    part, seen = a.T[::2, ::2], there.mT[::2, ::2]
    b = rng.normal(size=3).astype("f4")
    found = factors.solve(seen, ruda.asarray(b, device=device)).numpy()
    np.testing.assert_allclose(part @ found, b, atol=1e-4)
    stack = rng.normal(size=(2, 3, 1)).astype("f4")
    found = factors.solve(seen, ruda.asarray(stack, device=device)).numpy()
    np.testing.assert_allclose(part @ found, stack, atol=1e-4)
    whole = ruda.asarray(np.array([[2, 1], [1, 1]], "i4"), device=device)
    assert factors.inv(whole).numpy().round(5).tolist() == [[1, -1], [-1, 2]]
    none = ruda.zeros((0, 2, 2), device=device)
    assert factors.inv(none).shape == (0, 2, 2) and factors.det(none).shape == (0,)
    assert there.numpy().tolist() == a.tolist()  # nothing was written in place


def test_what_matrices_lack(device):
    for rows in (np.zeros((2, 2)), np.array([[1, 2], [2, 4]])):
        singular = ruda.asarray(rows.astype("f4"), device=device)
        for call in (factors.inv, lambda x: factors.solve(x, x)):
            with pytest.raises(np.linalg.LinAlgError, match="Singular matrix"):
                call(singular)
    negative = ruda.asarray(np.diag([1.0, -1.0]).astype("f4"), device=device)
    unknown = ruda.asarray(np.diag([1.0, np.nan]).astype("f4"), device=device)
    for x in (negative, unknown):
        with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
            factors.cholesky(x)
    with pytest.raises(np.linalg.LinAlgError, match="square"):
        factors.inv(ruda.ones((2, 3), device=device))
    nan = ruda.asarray(np.full((2, 2), np.nan, "f4"), device=device)
    assert np.isnan(factors.inv(nan).numpy()).all() and np.isnan(float(factors.det(nan)))
    with pytest.raises(ruda.errors.DeviceError, match=r"linalg.inv.*complex64.*to_device"):
        factors.inv(ruda.ones((2, 2), dtype="complex64", device=device))


def test_by_their_public_names(device, rng):
    """Factorisations on a device, and their derivatives, are those of the host."""
    a = (rng.normal(size=(3, 3)) + 3 * np.eye(3)).astype("f4")
    linalg = ruda.linalg
    calls = [
        lambda x: linalg.inv(x), lambda x: linalg.solve(x, x[:, :2] * 2), lambda x: linalg.det(x),
        lambda x: linalg.slogdet(x).logabsdet, lambda x: linalg.matrix_power(x, -2),
        lambda x: linalg.cholesky(x @ x.mT + ruda.eye(3, dtype=x.dtype, device=x.device)),
    ]  # fmt: skip
    for call in calls:
        ours, hosts = (
            (call(x), ruda.grad(lambda v: ruda.sum(ruda.sin(call(v))))(x))  # noqa: B023
            for x in (ruda.asarray(a, device=device), ruda.asarray(a.astype("f8"), device="cpu"))
        )
        for mine, theirs in zip(ours, hosts, strict=True):
            assert mine.device.startswith(device) and str(mine.dtype) == "float32"
            np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=2e-4, atol=2e-4)
    assert ruda.supports("linalg.inv", "float32", device)
