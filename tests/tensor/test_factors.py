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
    says = r"linalg.inv.*complex64.*to_device"
    with ruda.config(vendor=False), pytest.raises(ruda.errors.DeviceError, match=says):
        factors.inv(ruda.ones((2, 2), dtype="complex64", device=device))


def test_by_their_public_names(device, rng):
    """Factorisations on a device, and their derivatives, are those of the host."""
    a = (rng.normal(size=(3, 3)) + 3 * np.eye(3)).astype("f4")
    linalg = ruda.linalg
    calls = [
        lambda x: linalg.inv(x), lambda x: linalg.solve(x, x[:, :2] * 2), lambda x: linalg.det(x),
        lambda x: linalg.slogdet(x).logabsdet, lambda x: linalg.matrix_power(x, -2),
        lambda x: linalg.qr(x).R, lambda x: linalg.svdvals(x),
        lambda x: linalg.eigh(x @ x.mT).eigenvalues,
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


# ---- QR, singular values, eigenvalues ------------------------------------------------------------


def shapes(device):
    if device == "sim":
        return (0, 3), (1, 1), (3, 3), (3, 2), (2, 3)
    n = 150 if device.startswith("cuda") else 35
    return (0, 3), (1, 1), (3, 3), (n + 2, 3), (3, n), (n, n)


def matrices(shape, dtype, rng):
    """Some, of which the last lacks a rank where it can."""
    a = rng.normal(size=(2, *shape)).astype(dtype)
    a[1, :, -1:] = a[1, :, :1]
    return a


def is_near(found, wanted, dtype):
    """To a few roundings of the norm, for each row and column."""
    count = max(1, *found.shape[-2:])
    norm = max(1.0, np.linalg.norm(wanted, axis=(-2, -1)).max(initial=0))
    assert np.abs(found - wanted).max(initial=0) <= 4 * np.finfo(dtype).eps * count * norm


def is_orthogonal(q, dtype):
    is_near(
        q.swapaxes(-1, -2) @ q, np.broadcast_to(np.eye(q.shape[-1]), (2, *q.shape[-1:] * 2)), dtype
    )


def test_qr(device, dtype, rng):
    for shape in shapes(device):
        a = matrices(shape, dtype, rng)
        for mode in ("reduced", "complete"):
            found = factors.qr(ruda.asarray(a, device=device), mode=mode)
            q, r = (v.numpy().astype("f8") for v in found)
            assert (q.shape, r.shape) == tuple(v.shape for v in np.linalg.qr(a, mode=mode))
            is_near(q @ r, a, dtype)
            is_orthogonal(q, dtype)
            assert (np.triu(r) == r).all()


def test_singular_values(device, dtype, rng):
    for shape in shapes(device):
        a = matrices(shape, dtype, rng)
        there, k = ruda.asarray(a, device=device), min(shape)
        for whole in (False, True):
            u, s, vh = (v.numpy().astype("f8") for v in factors.svd(there, full_matrices=whole))
            wanted = np.linalg.svd(a.astype("f8"), full_matrices=whole)
            assert [v.shape for v in (u, s, vh)] == [v.shape for v in wanted]
            is_near((u[..., :k] * s[:, None]) @ vh[:, :k], a, dtype)
            is_orthogonal(u, dtype)
            is_orthogonal(vh.swapaxes(1, 2), dtype)
            assert (np.diff(s) <= 0).all()
            bound = 4 * np.finfo(dtype).eps * max(shape) * s.max(initial=1)
            assert np.abs(s - wanted[1]).max(initial=0) <= bound
        assert factors.matrix_rank(there).tolist() == np.linalg.matrix_rank(a).tolist()
        if shape[1] == 3 < shape[0]:
            inverse = factors.pinv(there).numpy()
            np.testing.assert_allclose(inverse, np.linalg.pinv(a.astype("f8")), atol=1e-4)


def test_eigenvalues(device, dtype, rng):
    for shape in [s for s in shapes(device) if s[0] == s[1]] + [(0, 0)]:
        a = rng.normal(size=(2, *shape))
        a = (a + a.swapaxes(1, 2)).astype(dtype)
        if shape == (3, 3):
            a[1] = np.diag([1, -1, 1])  # eigenvalues of one size, and twice
        values, vectors = factors.eigh(ruda.asarray(np.tril(a), device=device))
        w, v = values.numpy().astype("f8"), vectors.numpy().astype("f8")
        is_near((v * w[:, None]) @ v.swapaxes(1, 2), a, dtype)
        is_orthogonal(v, dtype)
        assert (np.diff(w) >= 0).all()


def test_rotations_end(device):
    """NaN is told, zeros and extreme sizes are no case of their own."""
    nan = ruda.asarray(np.full((2, 2), np.nan, "f4"), device=device)
    for call in (factors.svd, factors.svdvals, factors.eigh):
        with pytest.raises(np.linalg.LinAlgError, match="did not converge"):
            call(nan)
    assert factors.svdvals(ruda.zeros((2, 2), device=device)).tolist() == [0, 0]
    for size in (1e-30, 1e30):
        a = ruda.asarray((np.array([[3, 0], [4, 5]]) * size).astype("f4"), device=device)
        np.testing.assert_allclose(factors.svdvals(a).numpy(), np.sqrt([45, 5]) * size, rtol=1e-6)
    says = r"of 4097 singular values.*up to 4096"
    with ruda.config(vendor=False), pytest.raises(ruda.errors.DeviceError, match=says):
        factors.svdvals(ruda.zeros((4097, 4097), device=device))
