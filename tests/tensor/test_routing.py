"""Devices of tensors, what they can do, and ops that users make of scalar functions."""

import numpy as np
import pytest

import ruda
from ruda.errors import GradientError
from ruda.tensor.ops import OPS
from ruda.tensor.routing import BY_NUMPY_ALONE, MADE_OF, REFUSED


@ruda.elementwise(gradient=lambda g, y, x, n: (ruda.where(x > 0, g, 0.1 * g), None))
def leaky(x, n):
    """A branch and a loop."""
    value = x if x > 0 else x * 0.1
    for _ in range(n):
        value = value * 1.0
    return value


@ruda.vectorize
def larger(x, y):
    return x if x > y else y


@ruda.reduce
def most(x, y):
    return max(x, y)


def test_a_scalar_function_becomes_an_op(device, rng):
    x = rng.normal(size=(5, 3)).astype("f4")
    t = ruda.asarray(x, device=device)
    y = leaky(t + 0, 2) * 2
    assert isinstance(y, ruda.Tensor) and y.device.startswith(device)
    np.testing.assert_allclose(y.numpy(), np.where(x > 0, x, x * np.float32(0.1)) * 2, rtol=1e-6)
    np.testing.assert_array_equal(leaky(t.T, 1).numpy(), leaky(t, 1).numpy().T)
    assert leaky(t[0, 0], 1).shape == ()


def test_a_vectorized_function_takes_tensors(device, rng):
    x = rng.normal(size=7).astype("f4")
    found = larger(ruda.asarray(x, device=device), 0.25)
    assert found.device.startswith(device)
    np.testing.assert_array_equal(found.numpy(), np.maximum(x, np.float32(0.25)))


@pytest.mark.parametrize("n", [1, 7, 40000])
def test_a_reduction_of_a_tensor_stays_where_it_is(n, device, rng):
    x = rng.normal(size=(2, n)).astype("f4")
    t = ruda.asarray(x, device=device)
    for found, wanted in ((most(t), x.max()), (most(t[:, ::-1]), x.max()), (most(t, init=9), 9)):
        assert isinstance(found, ruda.Tensor) and found.shape == ()
        assert found.device.startswith(device) and found.item() == wanted


def test_the_gradient_that_was_given(rng):
    g = ruda.grad(lambda x: ruda.sum(leaky(x, 1)))(ruda.asarray([2.0, -3.0]))
    np.testing.assert_allclose(g.numpy(), [1, 0.1])


def test_without_a_gradient_it_refuses():
    with pytest.raises(GradientError, match="`larger` has no gradient"):
        ruda.grad(lambda x: ruda.sum(larger(x, 0.0)))(ruda.ones(3))
    with pytest.raises(GradientError, match="`most`"):
        ruda.grad(lambda x: most(x))(ruda.ones(3))


def test_where_arrays_are(device):
    assert ruda.device_of(ruda.ones(2, device=device)).startswith(device)
    assert ruda.device_of(np.ones(2)) == "cpu"
    with pytest.raises(TypeError, match="list is no array"):
        ruda.device_of([1])


def test_what_devices_support():
    assert ruda.supports("add", "float64", "cpu") and not ruda.supports("sqrt", "bool", "cpu")
    assert not ruda.supports("bitwise_or", "float32", "cpu")
    assert ruda.supports(ruda.linalg.svd, "float32", "cpu") and ruda.supports("where", "int8")
    assert ruda.supports("fft", "complex64") and ruda.supports("einsum", "float32")
    with pytest.raises(ValueError, match="no op 'frobnicate'"):
        ruda.supports("frobnicate", "float32")
    with pytest.raises(ValueError, match="no device 'moon' here; there are cpu"):
        ruda.supports("add", "float32", "moon")


def test_the_host_computes_what_others_do_not(device):
    """`supports` says what happens."""
    for op in ("linalg.svd", "linalg.inv", "einsum"):
        call = (lambda x: ruda.einsum("ij->ji", x)) if op == "einsum" else getattr(
            ruda.linalg, op.rpartition(".")[2]
        )  # fmt: skip
        x = ruda.eye(3, device=device)
        if ruda.supports(op, "float32", device):
            call(x)
        else:
            with pytest.raises(ruda.errors.DeviceError):
                call(x)


POINTS = np.array([[2, 1], [1, 3]])
INDICES = np.array([0, 1, 0])
# How functions that are no rows are called on a square matrix x and a vector v; the others on x.
CALLS = {
    **dict.fromkeys(
        ["allclose", "array_equal", "dot", "inner", "isclose", "isin", "kron", "linalg.lstsq",
         "linalg.matmul", "linalg.solve", "linalg.tensordot", "linalg.vecdot", "matmul", "outer",
         "tensordot", "vecdot"], lambda f, x, v: f(x, x)),
    **dict.fromkeys(["convolve", "linalg.outer", "searchsorted"], lambda f, x, v: f(v, v)),
    **dict.fromkeys(["cross", "linalg.cross"], lambda f, x, v: f(v[:3], v[1:])),
    **dict.fromkeys(["cumulative_sum", "cumulative_prod", "cummax", "cummin", "unstack"],
                    lambda f, x, v: f(x, axis=0)),
    **dict.fromkeys(["nanquantile", "quantile"], lambda f, x, v: f(x, 0.5)),
    **dict.fromkeys(["nanpercentile", "percentile"], lambda f, x, v: f(x, 50)),
    **dict.fromkeys(["argpartition", "pad", "partition", "repeat", "roll", "topk", "split"],
                    lambda f, x, v: f(x, 1)),
    **dict.fromkeys(["concat", "hstack", "stack", "vstack"], lambda f, x, v: f([x, x])),
    "bincount": lambda f, x, v: f(v), "einsum": lambda f, x, v: f("ij,jk->ik", x, x),
    "interp": lambda f, x, v: f(v, v[::-1][:2], v[:2]), "tile": lambda f, x, v: f(x, (2, 1)),
    "linalg.matrix_power": lambda f, x, v: f(x, 2), "moveaxis": lambda f, x, v: f(x, 0, 1),
    "permute_dims": lambda f, x, v: f(x, (1, 0)), "reshape": lambda f, x, v: f(x, (4,)),
    "scatter": lambda f, x, v: f(v, ruda.asarray(INDICES, device=x.device), v[:3]),
    "swapaxes": lambda f, x, v: f(x, 0, 1), "expand_dims": lambda f, x, v: f(x),
    "squeeze": lambda f, x, v: f(x[None], 0), "broadcast_to": lambda f, x, v: f(v, (2, 4)),
    "take": lambda f, x, v: f(v, ruda.asarray(INDICES, device=x.device)),
    "take_along_axis": lambda f, x, v: f(x, ruda.asarray([[0], [1]], device=x.device), axis=1),
    "segmented_scan": lambda f, x, v: f(v, ruda.asarray([1, 0, 1, 0], device=x.device) > 0),
}  # fmt: skip
WITHOUT_NUMBERS = {  # tools, dtypes, and what makes tensors of no tensor
    "Tensor", "arange", "asarray", "astype", "bool", "broadcast_arrays", "broadcast_shapes",
    "can_cast", "checkpoint", "compile", "custom_vjp", "detect_anomaly", "device_of", "e",
    "elementwise", "empty", "empty_like", "eye", "fft", "finfo", "from_dlpack", "full", "full_like",
    "geomspace", "grad", "gradcheck", "hessian", "hvp", "iinfo", "inf", "isdtype", "jacobian",
    "jvp", "linalg", "linspace", "load", "logspace", "meshgrid", "nan", "newaxis", "no_grad",
    "ones", "ones_like", "pi", "realize", "result_type", "save", "savez", "stop_gradient",
    "supports", "value_and_grad", "vjp", "zeros", "zeros_like", "fft.fftfreq", "fft.rfftfreq",
}  # fmt: skip
SPACES = {"": ruda.tensor, "linalg.": ruda.linalg, "fft.": ruda.fft}
FUNCTIONS = {
    n + k: getattr(space, k)
    for n, space in SPACES.items()
    for k in (space.FUNCTIONS if n == "fft." else space.__all__)
    if n + k not in WITHOUT_NUMBERS and k not in OPS
}


def works(name, dtype, device):
    x = ruda.asarray(POINTS, device="cpu").astype(dtype)
    x = (x if dtype != "bool" else ruda.eye(2, dtype="bool")).to_device(device)
    call = CALLS.get(name, lambda f, x, v: f(x))
    try:
        found = call(FUNCTIONS[name], x, ruda.reshape(x, (4,)))
        for part in found if isinstance(found, tuple | list) else [found]:
            assert isinstance(part, bool) or part.numpy() is not None
    except (ruda.errors.DTypeError, ruda.errors.DeviceError):
        return False
    except ruda.errors.ShapeError as error:  # a word of the dtype is one of these, too
        assert dtype in str(error)
        return False
    return True


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "complex64"])
def test_what_is_supported_is_computed_and_nothing_else(dtype):
    said = {name: ruda.supports(name, dtype, "cpu") for name in FUNCTIONS}
    assert said == {name: works(name, dtype, "cpu") for name in FUNCTIONS}


@pytest.mark.parametrize("dtype", ["bool", "int32", "float16", "float32", "complex64"])
def test_what_is_supported_on_devices(dtype, device):
    names = sorted({*REFUSED["complex"], *REFUSED["bool"], *BY_NUMPY_ALONE, *MADE_OF})
    names = [next(p + n for p in SPACES if p + n in FUNCTIONS) for n in names] + ["linalg.inv"]
    said = {name: ruda.supports(name, dtype, device) for name in names}
    assert said == {name: works(name, dtype, device) for name in names}


def test_work_goes_from_device_to_device_and_back(device, rng):
    """Two devices in one program: each part where its tensors are, copies where they are asked."""
    a = rng.normal(size=(4, 5)).astype("f4")
    x = ruda.asarray(a, device="cpu")
    there = (x * 2).to_device(device)
    doubled = there + there
    back = (doubled - 1).to_device("cpu") + x
    assert doubled.device.startswith(device) and back.device == "cpu"
    np.testing.assert_allclose(back.numpy(), a * 5 - 1, rtol=1e-5, atol=1e-5)
    if device != "cpu":
        shown = str(ruda.explain((there + 1) * 2))
        way = "zero-copy: the same memory" if device == "sim" else "copied once"
        assert f"to_device: 80 bytes from cpu to {there.device}, {way}" in shown
        again = ruda.explain(doubled.to_device("cpu") + 1).copies
        assert [(m.source, m.target, m.nbytes) for m in again] == [(there.device, "cpu", 80)]
        with pytest.raises(ruda.errors.DeviceError, match="cpu and " + there.device):
            x + there
        x += 1  # what is there is its own
        np.testing.assert_array_equal(there.numpy(), a * 2)


L = ruda.linalg
# Ops on a tensor x of three numbers and one y of another device.
MIXED = {
    "add": lambda x, y: x + y, "in place": lambda x, y: x.__iadd__(y), "matmul": lambda x, y: x @ y,
    "where": lambda x, y: ruda.where(x > 0, y, x), "concat": lambda x, y: ruda.concat([x, y]),
    "stack": lambda x, y: ruda.stack([x, y]), "clip": lambda x, y: ruda.clip(x, y, y),
    "index": lambda x, y: x[y.astype("int32")], "mask": lambda x, y: x[y > 0],
    "write": lambda x, y: x.__setitem__(slice(None), y),
    "write a number": lambda x, y: x.__setitem__(0, y[0]),
    "write at indices": lambda x, y: x.__setitem__([0, 1, 2], y),
    "write at theirs": lambda x, y: x.__setitem__(y.astype("int32"), 0),
    "write by mask": lambda x, y: x.__setitem__(y > 0, 1),
    "take": lambda x, y: ruda.take(x, y.astype("int32")),
    "scatter": lambda x, y: ruda.scatter(x, ruda.asarray([0, 1, 2], device=x.device), y),
    "scatter at": lambda x, y: ruda.scatter(x, y.astype("int32"), x),
    "searchsorted": ruda.searchsorted, "isin": ruda.isin, "convolve": ruda.convolve,
    "interp": lambda x, y: ruda.interp(x, y, y), "kron": ruda.kron, "vecdot": ruda.vecdot,
    "bincount": lambda x, y: ruda.bincount(x.astype("int32"), weights=y),
    "histogram": lambda x, y: ruda.histogram(x, weights=y), "allclose": ruda.allclose,
    "einsum": lambda x, y: ruda.einsum("i,j->ij", x, y), "cross": ruda.cross,
    "solve": lambda x, y: L.solve(ruda.eye(3, device=x.device), y),
    "average": lambda x, y: ruda.average(x, weights=y),
    "lstsq": lambda x, y: L.lstsq(ruda.eye(3, device=x.device), y),
    "grad": lambda x, y: ruda.grad(lambda x: ruda.sum(x * y))(x),
    "compiled": lambda x, y: ruda.compile(lambda x, y: x * y)(x, y),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXED)
def test_two_devices_in_an_op_are_named(name, device):
    here = "sim" if device == "cpu" else "cpu"
    for first, second in ((here, device), (device, here)):
        x, y = ruda.ones(3, device=first), ruda.ones(3, device=second)
        with pytest.raises(ruda.errors.DeviceError) as error:
            MIXED[name](x, y)
        assert first in str(error.value) and second in str(error.value)
        assert x.tolist() == [1, 1, 1]


def test_reading_one_tensor_computes_only_its_device(device):
    x, y = ruda.ones(3) + 1, ruda.ones(3, device=device) * 3
    ruda.realize(x, y)
    assert x.tolist() == [2, 2, 2] and y.tolist() == [3, 3, 3]


@pytest.mark.parametrize(("home", "other"), [("cpu", "sim"), ("sim", "cpu")])
def test_devices_of_the_host_share_memory_until_one_writes(home, other):
    x = ruda.asarray(np.arange(12.0).reshape(3, 4), device=home)
    whole, part = x.to_device(other), x.T[1:].to_device(other)
    for one, same in ((whole, x), (part, x.T[1:])):
        assert one.device == other and np.shares_memory(np.asarray(one), np.asarray(same))
        assert [m.how for m in ruda.explain(one * 2).copies] == ["zero-copy"]
        np.testing.assert_array_equal((one + 1).numpy(), same.numpy() + 1)
    x[0, 1] = 50
    part[0, 0] = -1
    np.testing.assert_array_equal(whole.numpy(), np.arange(12.0).reshape(3, 4))
    assert part.tolist() == [[-1, 5, 9], [2, 6, 10], [3, 7, 11]]
    assert x[0].tolist() == [0, 50, 2, 3]
    later = (whole + 1).to_device(home)  # what is pending is computed, there
    whole += 1
    assert later.tolist() == whole.tolist()
