"""NumPy's names beyond the standard, methods and NumPy's own functions on tensors."""

import warnings

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import ruda
from ruda.errors import DTypeError, ShapeError

NAN, INF = float("nan"), float("inf")


def close(found, wanted, tolerance=1e-5):
    found = found.numpy() if isinstance(found, ruda.Tensor) else np.asarray(found)
    assert found.shape == np.shape(wanted)
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


SAME = {  # name: what is called with the library and two arrays of shapes (3, 4) and (4, 2)
    "pad": lambda p, x, y: p.pad(x, ((1, 2), (0, 3))),
    "pad value": lambda p, x, y: p.pad(x, 2, constant_values=7),
    "pad edge": lambda p, x, y: p.pad(x, ((1, 2), (3, 0)), mode="edge"),
    "pad reflect": lambda p, x, y: p.pad(x, (5, 7), mode="reflect"),
    "pad symmetric": lambda p, x, y: p.pad(x, 5, mode="symmetric"),
    "pad wrap": lambda p, x, y: p.pad(x, ((0, 4), (6, 1)), mode="wrap"),
    "kron": lambda p, x, y: p.kron(x, y), "kron vector": lambda p, x, y: p.kron(x[0], y),
    "outer": lambda p, x, y: p.outer(x, y), "inner": lambda p, x, y: p.inner(x, x[0]),
    "dot": lambda p, x, y: p.dot(x, y), "trace": lambda p, x, y: p.trace(x, offset=1),
    "diag": lambda p, x, y: p.diag(x, k=-1), "diag up": lambda p, x, y: p.diag(x[0], k=2),
    "diag down": lambda p, x, y: p.diag(x[0], k=-1),
    "cov": lambda p, x, y: p.cov(x), "cov two": lambda p, x, y: p.cov(x[0], x[1], bias=True),
    "corrcoef": lambda p, x, y: p.corrcoef(x),
    "cov columns": lambda p, x, y: p.cov(y, rowvar=False),
    "convolve": lambda p, x, y: p.convolve(x[0], y[:, 0]),
    "convolve same": lambda p, x, y: p.convolve(x[0], y[:3, 0], "same"),
    "convolve valid": lambda p, x, y: p.convolve(x[0, :2], y[:, 0], "valid"),
    "trapezoid": lambda p, x, y: p.trapezoid(x, dx=0.5),
    "trapezoid points": lambda p, x, y: p.trapezoid(x, x[0], axis=1),
    "median": lambda p, x, y: p.median(x), "median axis": lambda p, x, y: p.median(x, axis=0),
    "average": lambda p, x, y: p.average(x, axis=1, weights=y[:, 0] ** 2),
    "swapaxes": lambda p, x, y: p.swapaxes(x, 0, 1), "ravel": lambda p, x, y: p.ravel(x.T),
    "hstack": lambda p, x, y: p.hstack([x, y[:3]]), "vstack": lambda p, x, y: p.vstack([x, x[0]]),
    "split": lambda p, x, y: p.split(x, [1, 3], axis=1)[1],
    "split equal": lambda p, x, y: p.split(x, 2, axis=1)[1],
    "cross": lambda p, x, y: p.cross(x[:, :3], x[:, 1:]),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_same_as_numpy(name, rng, device):
    x, y = rng.normal(size=(3, 4)).astype("f4"), rng.normal(size=(4, 2)).astype("f4")
    wanted = SAME[name](np, x.astype("f8"), y.astype("f8"))
    ours = [ruda.asarray(v, device=device) for v in (x, y)]
    close(SAME[name](ruda, *ours), wanted)


@pytest.mark.parametrize("name", SAME)
def test_derivatives_of_them(name, rng):
    x, y = rng.normal(size=(3, 4)), rng.normal(size=(4, 2))
    ruda.gradcheck(lambda x, y: SAME[name](ruda, x, y) * 1.0 + 0 * x[0, 0] + 0 * y[0, 0], x, y)


# ---- einsum --------------------------------------------------------------------------------------

EINSUM = [
    ("ij,jk->ik", [(3, 4), (4, 2)]), ("ij,jk", [(3, 4), (4, 2)]), ("ii", [(3, 3)]),
    ("ii->i", [(3, 3)]), ("ij->ji", [(3, 4)]), ("ij->", [(3, 4)]), ("i,j->ij", [(3,), (4,)]),
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 2)]), ("...ij,...jk->...ik", [(5, 1, 3, 4), (2, 4, 2)]),
    ("ij,jk,kl->il", [(3, 4), (4, 5), (5, 2)]), ("ij,kj,lj->ikl", [(2, 3), (4, 3), (5, 3)]),
    ("ijj->i", [(2, 3, 3)]), ("i,i->", [(4,), (4,)]), ("ij,ij->ij", [(3, 4), (3, 4)]),
    ("ij,j->i", [(3, 4), (4,)]), ("a,b,c,d->abcd", [(2,), (3,), (2,), (3,)]),
    ("bqhd,bkhd->bhqk", [(2, 3, 2, 4), (2, 5, 2, 4)]), ("i...->...", [(2, 3, 4)]),
    ("...,...", [(2, 3), (3,)]), ("ab,bc,cd,de,ef,fg->ag", [(2, 3), (3, 4), (4, 5), (5, 4), (4, 3),
                                                           (3, 2)]),
    (",ij->ij", [(), (2, 3)]), ("ij,jk->k", [(3, 4), (4, 2)]), ("ij,kl->", [(3, 4), (4, 2)]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shapes"), EINSUM, ids=[e[0] for e in EINSUM])
def test_einsum(text, shapes, rng, device):
    arrays = [rng.normal(size=s) for s in shapes]
    tensors = [ruda.asarray(a.astype("f4"), device=device) for a in arrays]
    wanted = np.einsum(text, *(a.astype("f4").astype("f8") for a in arrays))
    close(ruda.einsum(text, *tensors), wanted)
    close(ruda.einsum(text, *tensors, optimize=False), wanted)


@pytest.mark.parametrize(("text", "shapes"), EINSUM[:17], ids=[e[0] for e in EINSUM[:17]])
def test_derivatives_of_einsum(text, shapes, rng):
    ruda.gradcheck(lambda *xs: ruda.einsum(text, *xs), *(rng.normal(size=s) for s in shapes))


@hypothesis.given(st.data())
def test_random_einsums(data):
    names = "abcd"
    sizes = dict(zip(names, data.draw(st.lists(st.integers(1, 3), min_size=4, max_size=4)),
                     strict=True))  # fmt: skip
    term = st.text(names, min_size=0, max_size=3)
    terms = data.draw(st.lists(term, min_size=1, max_size=4))
    present = sorted(set("".join(terms)))
    result = data.draw(st.permutations(present))[: data.draw(st.integers(0, len(present)))]
    text = f"{','.join(terms)}->{''.join(result)}"
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, [sizes[c] for c in t]) for t in terms]
    found = ruda.einsum(text, *(ruda.asarray(a) for a in arrays))
    assert found.dtype == ruda.int64
    np.testing.assert_array_equal(found.numpy(), np.einsum(text, *arrays))


@pytest.mark.parametrize(
    ("text", "shapes", "says"),
    [("ij", [(2,)], "does not name"), ("i,j", [(2,)], "2 operands; 1"), ("ij,jk", [(2, 3), (4, 2)],
      "axis 'j' has"), ("i->ii", [(2,)], "once"), ("i->j", [(2,)], "there are"),
     ("i1", [(2, 2)], "letters")],
)  # fmt: skip
def test_einsum_says_what_is_wrong(text, shapes, says):
    with pytest.raises(ValueError, match=says):
        ruda.einsum(text, *(ruda.ones(s) for s in shapes))


# ---- NaN, quantiles, comparison ------------------------------------------------------------------

HOLES = np.array([[1, NAN, 3, -2], [NAN, NAN, NAN, NAN], [4, 0, -1, 8], [INF, 1, NAN, -INF]], "f4")


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("name", ["nansum", "nanprod", "nanmax", "nanmin", "nanmean", "nanvar",
                                  "nanstd", "nanmedian"])  # fmt: skip
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_without_nan(name, axis, keepdims, device):
    x = HOLES[:3]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of rows of nothing but NaN
        wanted = getattr(np, name)(x.astype("f8"), axis=axis, keepdims=keepdims)
    close(getattr(ruda, name)(ruda.asarray(x, device=device), axis=axis, keepdims=keepdims), wanted)


@pytest.mark.parametrize("method", ["linear", "lower", "higher", "midpoint", "nearest"])
@pytest.mark.parametrize("q", [0, 0.3, 1, [0.25, 0.5, 0.9]])
def test_quantiles(method, q, rng, device):
    x = rng.normal(size=(3, 5)).astype("f4")
    x[1, 2] = NAN
    ours = ruda.asarray(x, device=device)
    with np.errstate(all="ignore"):
        for axis in (0, 1, None):
            wanted = np.quantile(x, q, axis=axis, method=method)
            close(ruda.quantile(ours, q, axis=axis, method=method), wanted)
            close(
                ruda.nanquantile(ours, q, axis=axis, method=method, keepdims=True),
                np.nanquantile(x, q, axis=axis, method=method, keepdims=True),
            )
    close(ruda.percentile(ours[0], 40), np.percentile(x[0], 40))


def test_quantiles_say_what_is_wrong():
    with pytest.raises(ValueError, match="between 0 and 1"):
        ruda.quantile(ruda.ones(3), 1.5)
    with pytest.raises(ValueError, match="there are linear"):
        ruda.quantile(ruda.ones(3), 0.5, method="best")
    with pytest.raises(ShapeError, match="no elements"):
        ruda.quantile(ruda.ones(0), 0.5)


def test_close_and_equal():
    x = ruda.asarray([1.0, NAN, INF, -INF])
    y = ruda.asarray([1.000001, NAN, INF, INF])
    assert ruda.isclose(x, y).tolist() == [True, False, True, False]
    assert ruda.isclose(x, y, equal_nan=True).tolist() == [True, True, True, False]
    assert ruda.allclose(x[:1], y[:1]) and not ruda.allclose(x, y)
    assert ruda.allclose(ruda.asarray([1, 2]), [1, 2])
    assert ruda.array_equal(x, x, equal_nan=True) and not ruda.array_equal(x, x)
    assert not ruda.array_equal(x, x[:2])
    wanted = np.nan_to_num(x.numpy(), nan=3, posinf=9)
    close(ruda.nan_to_num(x, nan=3, posinf=9), wanted)
    assert ruda.nan_to_num(ruda.asarray([1, 2])).tolist() == [1, 2]


@pytest.mark.parametrize("axis", [None, 0, -1])
def test_logsumexp(axis, device):
    x = np.array([[1000.0, 1000.0, -INF], [-INF, -INF, -INF], [1.0, 2.0, INF]], "f4")
    with np.errstate(all="ignore"):
        wanted = np.logaddexp.reduce(x.astype("f8").ravel() if axis is None else x, axis=axis or 0)
        if axis == -1:
            wanted = np.logaddexp.reduce(x.astype("f8"), axis=1)
    close(ruda.logsumexp(ruda.asarray(x, device=device), axis=axis), wanted)
    ruda.gradcheck(lambda x: ruda.logsumexp(x, axis=0), np.array([[1.0, 2.0], [0.5, -3.0]]))


def test_interp(rng, device):
    xp = np.array([-1.0, 0.0, 0.0, 2.0, 3.0], "f4")
    fp = np.array([5.0, 1.0, 2.0, -1.0, 4.0], "f4")
    x = np.array([[-2.0, -1.0, -0.25, 0.5], [2.0, 3.0, 3.5, NAN]], "f4")
    a, b, c = (ruda.asarray(v, device=device) for v in (x, xp, fp))
    close(ruda.interp(a, b, c), np.interp(x, xp, fp))
    close(ruda.interp(a, b, c, left=-7, right=8), np.interp(x, xp, fp, left=-7, right=8))
    inside = np.array([-0.5, 0.7, 2.5])
    points = ruda.asarray(xp, dtype="float64")
    ruda.gradcheck(lambda x, y: ruda.interp(x, points, y), inside, fp.astype("f8"))


def test_numbers_in_a_row():
    close(ruda.logspace(-2, 2, 5), np.logspace(-2, 2, 5))
    close(ruda.logspace(0, 8, 9, base=2, endpoint=False), np.logspace(0, 8, 9, False, 2))
    close(ruda.geomspace(1, 256, 9), np.geomspace(1, 256, 9))
    assert ruda.logspace(0, 1, 3).dtype == ruda.float32


# ---- files ---------------------------------------------------------------------------------------


def test_npy_and_npz(tmp_path, device):
    x = ruda.asarray(np.arange(6, dtype="f4").reshape(2, 3), device=device)
    ruda.save(tmp_path / "x.npy", x)
    ruda.savez(tmp_path / "both", x=x, mask=x > 2)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), x.numpy())
    back = ruda.load(tmp_path / "x.npy", device=device)
    assert ruda.array_equal(back, x) and back.device == x.device
    both = ruda.load(tmp_path / "both.npz")
    assert both["mask"].tolist() == (x > 2).tolist() and both["x"].dtype == ruda.float32


def test_files_that_are_refused(tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{}, 1], object), allow_pickle=True)
    (tmp_path / "short.npy").write_bytes(b"\x93NUMPY\x01")
    for name in ("objects.npy", "short.npy"):
        with pytest.raises(ValueError, match="no whole npy"):
            ruda.load(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        ruda.load(tmp_path / "none.npy")
    with pytest.raises(DTypeError, match="bfloat16"):
        ruda.save(tmp_path / "x", ruda.ones(3, dtype="bfloat16"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["objects.npy", "short.npy"]


# ---- methods, and NumPy's functions --------------------------------------------------------------

METHODS = {
    "sum": lambda x: x.sum(0), "mean": lambda x: x.mean(axis=1), "std": lambda x: x.std(),
    "max": lambda x: x.max(1), "argmax": lambda x: x.argmax(axis=0), "any": lambda x: (x > 1).any(),
    "reshape": lambda x: x.reshape(2, 6), "reshape tuple": lambda x: x.reshape((-1,)),
    "transpose": lambda x: x.transpose(), "axes": lambda x: x.transpose(1, 0),
    "squeeze": lambda x: x[:1].squeeze(), "astype": lambda x: x.astype("int32"),
    "clip": lambda x: x.clip(-1, 1), "flatten": lambda x: x.flatten(), "real": lambda x: x.real,
    "cumsum": lambda x: x.cumsum(1), "conj": lambda x: x.conj(), "round": lambda x: x.round(),
    "diagonal": lambda x: x.diagonal(), "trace": lambda x: x.trace(), "dot": lambda x: x.dot(x.T),
    "swapaxes": lambda x: x.swapaxes(0, 1), "prod": lambda x: x.prod(axis=(0, 1)),
}  # fmt: skip


def test_numpys_forms_of_divmod_and_cumulative_methods(device):
    a = np.array([[5, -7, 3], [4, 9, -2]], "i4")
    x = ruda.asarray(a, device=device)
    for found, wanted in (
        (divmod(x, 3), divmod(a, 3)), (divmod(20, x), divmod(20, a)), (divmod(x, x), divmod(a, a)),
    ):  # fmt: skip
        for f, w in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(f.numpy(), w)
    np.testing.assert_array_equal(x.cumsum().numpy(), a.cumsum())
    np.testing.assert_array_equal(x.cumprod().numpy(), a.cumprod())
    np.testing.assert_array_equal(x.cumsum(1).numpy(), a.cumsum(1))
    with pytest.raises(TypeError):
        divmod(x, "a")


@pytest.mark.parametrize("name", METHODS)
def test_methods(name, rng):
    x = rng.normal(size=(3, 4)).astype("f4")
    close(METHODS[name](ruda.asarray(x)), METHODS[name](x))


NUMPYS = {
    "sum": lambda x: np.sum(x, 0), "mean": lambda x: np.mean(x, axis=1), "max": lambda x: np.max(x),
    "concatenate": lambda x: np.concatenate([x, x], axis=1), "stack": lambda x: np.stack([x, x], 1),
    "transpose": lambda x: np.transpose(x), "where": lambda x: np.where(x > 0, x, 0.0),
    "einsum": lambda x: np.einsum("ij->ji", x), "cumsum": lambda x: np.cumsum(x, 1),
    "norm": lambda x: np.linalg.svd(x).S, "fft": lambda x: np.fft.fft(x),
    "reshape": lambda x: np.reshape(x, (4, 3)), "exp": lambda x: np.exp(x),
    "clip": lambda x: np.clip(x, -1, 1), "median": lambda x: np.median(x, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMPYS)
def test_numpys_functions_give_tensors(name, rng):
    x = rng.normal(size=(3, 4)).astype("f4")
    found = NUMPYS[name](ruda.asarray(x))
    assert isinstance(found, ruda.Tensor)
    close(found, NUMPYS[name](x))


@pytest.mark.parametrize("name", ["select", "linalg.tensorsolve", "polyfit"])
def test_numpys_other_functions_are_refused_by_name(name):
    call = np
    for part in name.split("."):
        call = getattr(call, part)
    with pytest.raises(TypeError, match=name.replace(".", r"\.")):
        call(ruda.ones(3), ruda.ones(3), 1)


def test_places_of_extremes_without_nan(rng, device):
    a = rng.normal(size=(4, 5)).astype("f4")
    a[0, 1] = a[2, :4] = a[3, 3] = np.nan
    x = ruda.asarray(a, device=device)
    for name in ("nanargmax", "nanargmin"):
        ours, numpys = getattr(ruda, name), getattr(np, name)
        for axis in (None, 0, 1):
            assert ours(x, axis=axis).tolist() == numpys(a, axis=axis).tolist()
            assert (
                ours(x, axis=axis, keepdims=True).shape == numpys(a, axis=axis, keepdims=True).shape
            )
        assert numpys(x, 0).tolist() == numpys(a, 0).tolist()
        with pytest.raises(ValueError, match=f"`{name}`: there is nothing but NaN along axis 1"):
            ours(x[:3, :4], axis=1)
    infinite = ruda.asarray(np.array([np.nan, -np.inf, np.inf], "f4"), device=device)
    assert ruda.nanargmax(infinite[:2]).item() == 1 == ruda.nanargmin(infinite[::2]).item()
    assert ruda.nanargmax(ruda.asarray([3, 5, 1], device=device)).item() == 1


def test_numpys_functions_that_have_other_rules(device):
    a = np.array([[[1, 2]], [[3, 4]]], "f4")
    x = ruda.asarray(a, device=device)
    calls = [
        np.cumsum, np.cumprod, np.squeeze, np.copy, np.imag, lambda x: np.cumsum(x, 0),
        lambda x: np.squeeze(x, 1), lambda x: np.cumsum(x, axis=2, dtype="float32"),
    ]  # fmt: skip
    for call in calls:
        found = call(x)
        assert isinstance(found, ruda.Tensor) and found.device == x.device
        np.testing.assert_array_equal(found.numpy(), call(a))
    np.copy(x)[0] = 9
    assert x[0, 0, 0].item() == 1


def test_variances_of_complex_numbers_are_real(rng, device):
    z = (rng.normal(size=(3, 5)) + 1j * rng.normal(size=(3, 5))).astype("c8")
    x = ruda.asarray(z, device=device)
    close(ruda.var(x, axis=1), np.var(z, axis=1))
    close(ruda.std(x), np.std(z))
    z[0, 0] = np.nan
    close(ruda.nanvar(ruda.asarray(z, device=device), axis=1), np.nanvar(z, axis=1))
    close(x.std(axis=0), np.std(x.numpy(), axis=0))


@pytest.mark.parametrize("name", ["tril", "triu"])
def test_triangles_are_of_matrices(name):
    with pytest.raises(ruda.errors.ShapeError, match=rf"`{name}` is of matrices, not of.*\(3,\)"):
        getattr(ruda, name)(ruda.ones(3))


def test_a_method_takes_one_axis_without_its_name():
    with pytest.raises(TypeError, match="takes an axis"):
        ruda.ones((2, 2)).sum(0, 1)
