"""Derivatives: every row against finite differences, of first and second order, and both styles."""

import numpy as np
import pytest

import ruda
from ruda.errors import DTypeError, GradientError, ShapeError
from ruda.tensor.ops import OPS

# Rows by where their arguments may lie, for finite differences to make sense.
DOMAIN = {
    "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "atanh": (-0.9, 0.9), "acosh": (1.1, 3),
    "sqrt": (0.1, 3), "log": (0.1, 3), "log2": (0.1, 3), "log10": (0.1, 3), "log1p": (-0.5, 3),
    "pow": (0.2, 2), "cbrt": (0.1, 3), "reciprocal": (0.5, 2), "divide": (0.5, 2),
    "hypot": (0.5, 2), "remainder": (0.6, 0.9),
}  # fmt: skip
SMOOTH = [
    row
    for row in OPS.values()
    if row.kind == "elementwise"
    and row.gradient is not None
    and row.takes != "complex"
    and row.name not in ("nextafter", "floor_divide")
]
FLAT = ["floor", "ceil", "trunc", "round", "sign"]


def points(row, rng, n=7):
    low, high = DOMAIN.get(row.name, (-2, 2))
    return [rng.uniform(low, high, n) for _ in row.parameters]


def applied(row, rng):
    """The row as a function of its float arguments."""
    call = getattr(ruda, row.name)
    if row.name == "where":
        mask = ruda.asarray(rng.random(7) < 0.5)
        return lambda x, y: call(mask, x, y)
    if row.name == "clip":
        return lambda x: call(x, -0.5, 0.75)
    return call


@pytest.mark.parametrize("row", SMOOTH, ids=lambda r: r.name)
def test_gradients_of_rows_are_those_of_finite_differences(row, rng):
    call, where = applied(row, rng), points(row, rng)
    if row.name in ("where", "clip"):
        where = where[1:] if row.name == "where" else where[:1]
    ruda.gradcheck(call, *where)
    # Second order: the gradient of a gradient, along a fixed direction.
    v = [ruda.asarray(rng.normal(size=7)) for _ in where]

    def slope(*arguments):
        out, back = ruda.vjp(call, *arguments)
        total = 0.0
        for g, d in zip(back(ruda.ones(out.shape, dtype=out.dtype)), v, strict=True):
            total = total + g * d
        return total

    ruda.gradcheck(slope, *where)


def test_gradients_of_rows_on_devices_are_those_of_the_host(device, rng):
    """Which the test above holds against finite differences; all rows in few kernels."""
    names = [r for r in SMOOTH if ruda.supports(r.name, "float32", device)]
    for row in names:
        call, where = applied(row, rng), points(row, rng)
        if row.name in ("where", "clip"):
            where = where[1:] if row.name == "where" else where[:1]
            call = ROW_CALLS[row.name]
        found = {}
        for place in ("cpu", device):
            kind = "float64" if place == "cpu" else "float32"
            given = [ruda.asarray(v.astype("f4"), dtype=kind, device=place) for v in where]
            out, back = ruda.vjp(call, *given)
            found[place] = [g.numpy() for g in back(ruda.ones(out.shape, device=place))]
        for mine, exact in zip(found[device], found["cpu"], strict=True):
            np.testing.assert_allclose(mine, exact, rtol=2e-4, atol=2e-5, err_msg=row.name)


ROW_CALLS = {
    "where": lambda x, y: ruda.where(x < y, x, y * 2), "clip": lambda x: ruda.clip(x, -0.5, 0.75)
}  # fmt: skip


@pytest.mark.parametrize("name", FLAT)
def test_steps_are_flat(name):
    x = ruda.asarray([0.3, -1.7])
    assert ruda.grad(lambda x: ruda.sum(getattr(ruda, name)(x)))(x).tolist() == [0, 0]


@pytest.mark.parametrize("axis", [None, 0, (0, 2)])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "var", "std"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_gradients_of_reductions(name, axis, keepdims, rng):
    x = rng.normal(size=(3, 2, 2))

    def f(x):
        return getattr(ruda, name)(x, axis=axis, keepdims=keepdims)

    ruda.gradcheck(f, x)
    ruda.gradcheck(lambda x: ruda.vjp(f, x)[1](ruda.ones(f(x).shape, dtype="float64"))[0] * x, x)


def test_the_gradient_of_a_product_with_zeros():
    x = ruda.asarray([0.0, 2.0, 3.0])
    assert ruda.grad(ruda.prod)(x).tolist() == [6, 0, 0]
    assert ruda.grad(ruda.prod)(ruda.asarray([0.0, 0.0, 3.0])).tolist() == [0, 0, 0]


def test_the_gradient_of_cumulative_products_with_zeros():
    for a in ([2.0, 0.0, 3.0, 4.0], [0.0, 2.0, 0.0, 3.0], [0.0, 0.0]):
        ruda.gradcheck(ruda.cumulative_prod, np.array(a))


def test_ties_share():
    x = ruda.asarray([1.0, 3.0, 3.0])
    assert ruda.grad(ruda.max)(x).tolist() == [0, 0.5, 0.5]
    assert ruda.grad(lambda x: ruda.maximum(x, 2.0))(ruda.asarray(2.0)).item() == 0.5


MOVES = [
    lambda x: x[1], lambda x: x[::-1, 1:], lambda x: x.T, lambda x: ruda.reshape(x, (2, 6)),
    lambda x: ruda.flip(x) * x, lambda x: ruda.roll(x, 1, axis=1) * x,
    lambda x: ruda.concat([x, x * x], axis=1), lambda x: ruda.stack([x, x]),
    lambda x: ruda.broadcast_to(x[0], (2, 4)), lambda x: ruda.expand_dims(x, axis=1),
    lambda x: ruda.permute_dims(x, (1, 0)) * 2, lambda x: x[[0, 2, 0]], lambda x: x[x > 0],
    lambda x: ruda.tril(x), lambda x: x @ x.T, lambda x: x[0] @ x.T, lambda x: x @ x[1],
    lambda x: x[0] @ x[1], lambda x: ruda.astype(x, "float64", copy=True),
    lambda x: ruda.cumulative_sum(x, axis=1), lambda x: ruda.reshape(x.T, (-1,)),
    lambda x: ruda.moveaxis(x, 0, 1), lambda x: ruda.squeeze(x[:1], axis=0),
    lambda x: ruda.take(x, [2, 0, 2], axis=1), lambda x: x[[0, 1], [2, 2]],
    lambda x: ruda.take_along_axis(x, ruda.asarray([[1], [3], [1]]), axis=1),
    lambda x: ruda.sort(x, axis=0), lambda x: ruda.sort(x, axis=1, descending=True),
    lambda x: ruda.topk(x, 2).values, lambda x: ruda.cummax(x, axis=1),
    lambda x: ruda.cummin(x, axis=0), lambda x: ruda.cumulative_prod(x, axis=1),
    lambda x: ruda.cumulative_prod(x, axis=0, include_initial=True),
    lambda x: ruda.cumulative_prod(x, axis=1, exclusive=True),
    lambda x: ruda.cumulative_sum(x, axis=0, include_initial=True),
    lambda x: ruda.cumulative_sum(x, axis=1, exclusive=True),
    lambda x: ruda.segmented_scan(x, ruda.asarray(np.eye(3, 4, 1) > 0), axis=1),
    lambda x: ruda.segmented_scan(x, ruda.asarray(np.eye(3, 4) > 0), axis=0, exclusive=True),
    *(
        lambda x, mode=mode: ruda.scatter(x, [1, 0, 1], x[:, :3] * 2, axis=1, mode=mode)
        for mode in ("set", "add", "min", "max")
    ),
]  # fmt: skip


@pytest.mark.parametrize("move", MOVES)
def test_gradients_of_movement_and_matrix_products(move, rng):
    x = rng.normal(size=(3, 4))
    ruda.gradcheck(move, x)
    ruda.gradcheck(lambda x: ruda.square(move(ruda.sin(x))), x)


def test_operands_that_broadcast(rng):
    ruda.gradcheck(lambda x, y: x * y + y, rng.normal(size=(3, 1)), rng.normal(size=(2, 1, 4)))
    ruda.gradcheck(lambda x, y: x / y, rng.normal(size=()), rng.uniform(1, 2, size=(4,)))


def test_complex_numbers(rng):
    """The gradient of a real number by z = a + ib is d/da + i d/db."""
    z = rng.normal(size=3) + 1j * rng.normal(size=3)

    def f(z):
        return ruda.sum(ruda.abs(z * z + 2j * z) ** 2 + ruda.real(ruda.exp(z) / z))

    g = ruda.grad(f)(ruda.asarray(z)).numpy()
    eps = 1e-6
    for k in range(3):
        for part, have in ((1, g[k].real), (1j, g[k].imag)):
            e = np.zeros(3, complex)
            e[k] = eps * part
            ends = [float(f(ruda.asarray(z + s * e))) for s in (1, -1)]
            assert abs((ends[0] - ends[1]) / (2 * eps) - have) < 1e-6 * max(1, abs(have))


def test_where_keeps_nan_out():
    x = ruda.asarray([0.0, 4.0])
    g = ruda.grad(lambda x: ruda.sum(ruda.where(x > 0, ruda.sqrt(ruda.where(x > 0, x, 1.0)), 0)))
    assert g(x).tolist() == [0, 0.25]


def test_derivatives_of_any_order():
    f = ruda.sin
    for k in range(6):
        wanted = [np.sin, np.cos, lambda x: -np.sin(x), lambda x: -np.cos(x)][k % 4](0.7)
        assert abs(float(f(ruda.asarray(np.float64(0.7)))) - wanted) < 1e-12
        f = ruda.grad(f)


def test_jacobian_hessian_products(rng):
    a = rng.normal(size=(3, 3))
    x = ruda.asarray(rng.normal(size=3))
    m = ruda.asarray(a)
    np.testing.assert_allclose(ruda.jacobian(lambda x: m @ x)(x).numpy(), a)

    def f(x):
        return ruda.sum(x * (m @ x))

    np.testing.assert_allclose(ruda.hessian(f)(x).numpy(), a + a.T)
    v = ruda.asarray(rng.normal(size=3))
    np.testing.assert_allclose(ruda.hvp(f, x, v).numpy(), (a + a.T) @ v.numpy())
    _, along = ruda.jvp(lambda x: ruda.sin(x) * 2, [x], [v])
    np.testing.assert_allclose(along.numpy(), 2 * np.cos(x.numpy()) * v.numpy())


def test_trees_and_argnums():
    def loss(parameters, x):
        return ruda.sum((x * parameters["w"][0] + parameters["b"]) ** 2)

    p = {"w": [ruda.asarray([1.0, 2.0])], "b": ruda.asarray(0.5)}
    value, g = ruda.value_and_grad(loss)(p, ruda.asarray([1.0, 1.0]))
    assert g["w"][0].tolist() == [3, 5] and g["b"].item() == 8 and float(value) == 8.5
    gx, gp = ruda.grad(lambda x, p: loss(p, x), argnums=(0, 1))(ruda.asarray([1.0, 1.0]), p)
    assert gx.tolist() == [3, 10] and gp["b"].item() == 8


def test_the_tape(device):
    w = ruda.asarray([1.0, 2.0], device=device).requires_grad_()
    x = ruda.asarray([3.0, 4.0], device=device)
    ruda.sum((w * x) ** 2).backward()
    assert w.grad.tolist() == [18, 64]
    ruda.sum(w).backward()
    assert w.grad.tolist() == [19, 65]  # they add up
    with ruda.no_grad():
        w -= 0.1 * w.grad
    assert w.requires_grad and abs(w.tolist()[0] + 0.9) < 1e-6
    assert not w.detach().requires_grad


def test_writes_are_right_or_refused():
    x = ruda.asarray([1.0, 2.0]).requires_grad_()
    y = x * 3
    z = y * y
    y += 1  # y's old value is what z was made of
    with pytest.raises(GradientError, match="input of `multiply` was written in place"):
        ruda.sum(z).backward()
    a = x * 2
    a += x  # without a reader of the old value it is simply an op
    ruda.sum(a).backward()
    assert x.grad.tolist() == [3, 3]
    with pytest.raises(GradientError, match="writing into a tensor"):
        a[0] = 1.0


def test_what_has_no_gradient_says_so():
    x = ruda.asarray([1.0, 2.0]).requires_grad_()
    with pytest.raises(GradientError, match="`unique` has no gradient yet"):
        ruda.unique_values(x)
    assert ruda.unique_values(x.detach()).tolist() == [1, 2]

    @ruda.jit
    def kernel(x):
        x[0] = 1

    with pytest.raises(GradientError, match="kernel"):
        kernel[1, 1](x)
    with pytest.raises(DTypeError, match="derivatives are of floats"):
        ruda.grad(lambda x: x)(ruda.asarray(1))
    with pytest.raises(ShapeError, match="gives one number"):
        ruda.grad(lambda x: x)(ruda.asarray([1.0, 2.0]))
    with pytest.raises(GradientError, match="nothing here"):
        ruda.asarray(1.0).backward()


def test_a_wrong_gradient_is_found():
    wrong = ruda.custom_vjp(lambda x: x * x, lambda g, y, x: (g * x,))
    with pytest.raises(GradientError, match="finite differences"):
        ruda.gradcheck(wrong, [1.5, 2.0])


def test_a_deep_graph_needs_no_recursion():
    x = ruda.asarray(1.0)

    def f(x):
        for _ in range(3000):
            x = x * 1.0001
        return x

    assert abs(float(ruda.grad(f)(x)) - 1.0001**3000) < 1e-3


def test_a_model_learns(device, rng):
    """Two layers learn xor, by the tape."""
    x = ruda.asarray(np.array([[0, 0], [0, 1], [1, 0], [1, 1]], "f4"), device=device)
    y = ruda.asarray(np.array([[0], [1], [1], [0]], "f4"), device=device)
    w1, w2 = (
        ruda.asarray(rng.normal(size=s).astype("f4"), device=device).requires_grad_()
        for s in ((2, 8), (8, 1))
    )
    b1 = ruda.zeros(8, device=device).requires_grad_()
    for _ in range(400):
        out = ruda.sigmoid(ruda.tanh(x @ w1 + b1) @ w2)
        loss = ruda.mean((out - y) ** 2)
        loss.backward()
        with ruda.no_grad():
            for p in (w1, b1, w2):
                p -= 2.0 * p.grad
                p.grad = None
    assert float(loss) < 0.02


def test_arguments_that_derivatives_are_by():
    x = ruda.asarray([1.0, 2.0])
    assert ruda.grad(lambda a, x: ruda.sum(a * x * x), argnums=-1)(3.0, x).tolist() == [6, 12]
    assert ruda.jacobian(lambda a, x: a * x, argnums=-1)(3.0, x).tolist() == [[3, 0], [0, 3]]
    for by in (ruda.grad, ruda.jacobian):
        with pytest.raises(TypeError, match="by argument 3, and the function was given 1 by pos"):
            by(lambda x: ruda.sum(x), argnums=3)(x)
    with pytest.raises(TypeError, match="derivatives are of functions, not of int"):
        ruda.grad(3)
