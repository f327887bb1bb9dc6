"""What stands on derivatives: checkpoints, hooks, trees, anomalies, and what is refused."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pytest

import ruda
from ruda import nn
from ruda.errors import DTypeError, GradientError, ShapeError

# ---- recomputing ---------------------------------------------------------------------------------


def block(x, w):
    return ruda.tanh(x @ w) * ruda.sin(x) + w[0]


def test_a_checkpoint_gives_the_same_derivatives(rng):
    x, w = rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    kept = ruda.checkpoint(block)
    for a, b in zip(
        ruda.vjp(kept, x, w)[1](np.ones((3, 3))), ruda.vjp(block, x, w)[1](np.ones((3, 3))),
        strict=True,
    ):  # fmt: skip
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    ruda.gradcheck(lambda x, w: kept(kept(x, w), w), x, w)
    ruda.gradcheck(  # of second order
        lambda x, w: ruda.grad(lambda x: ruda.sum(kept(x, w) ** 2))(x), x, w
    )


def test_a_checkpoint_forgets_what_is_inside_and_computes_it_twice():
    calls = []

    def f(x):
        calls.append(1)
        for _ in range(5):
            x = ruda.sin(x)
        return x

    x = ruda.asarray(np.ones(100)).requires_grad_()
    out = ruda.checkpoint(f)(x)
    assert [i is x for i in out._history.inputs] == [True] and len(calls) == 1
    ruda.sum(out).backward()
    assert len(calls) == 2
    found = x.grad.numpy()
    x.grad = None
    ruda.sum(f(x)).backward()
    np.testing.assert_array_equal(found, x.grad.numpy())
    assert ruda.checkpoint(f).memory(x) == (800, 800 * 5)  # the result is not counted


def test_a_checkpointed_layer_learns_and_draws_the_same(rng):
    layer = nn.Sequential(
        nn.Linear(4, 8, rng=rng), nn.relu, nn.Dropout(0.5, rng=rng), nn.Linear(8, 4, rng=rng)
    )
    x = ruda.asarray(rng.normal(size=(16, 4)).astype("f4")).requires_grad_()
    found = []
    for call in (layer, ruda.checkpoint(layer)):
        layer.seed(3)
        layer.zero_grad()
        x.grad = None
        loss = ruda.sum(call(x) ** 2)
        loss.backward()
        found.append([float(loss), x.grad.numpy(), *(p.grad.numpy() for p in layer.parameters())])
        found[-1].append(layer.generators()[0].random())  # and goes on as if drawn once
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_memory_of_a_deep_network_in_checkpoints(rng):
    layers = [nn.Sequential(nn.Linear(16, 16, rng=rng), nn.gelu) for _ in range(24)]
    parts = [ruda.checkpoint(nn.Sequential(*layers[k : k + 4])) for k in range(0, 24, 4)]
    x = ruda.asarray(rng.normal(size=(64, 16)).astype("f4"))
    kept = without = 0
    for part in parts:
        memory = part.memory(x)
        kept, without = kept + memory.kept, without + memory.without
        x = part(x).detach()
    # While one part is computed again, it is all there.
    assert kept + without / len(parts) < 0.4 * without


# ---- hooks ---------------------------------------------------------------------------------------


def test_hooks_see_whole_gradients_and_may_change_them():
    x = ruda.asarray([1.0, 2.0]).requires_grad_()
    y = x * 2
    seen = []
    y.register_hook(lambda g: seen.append(g.tolist()))
    remove = y.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: g + 1)
    ruda.sum(y * y + y).backward(retain_graph=True)  # two ways to y
    assert seen == [[5, 9]] and x.grad.tolist() == [101, 181]
    remove()
    x.grad = None
    ruda.sum(y).backward()
    assert x.grad.tolist() == [3, 3]
    with pytest.raises(GradientError, match="a hook is of tensors"):
        ruda.asarray(1.0).register_hook(print)
    z = ruda.asarray(1.0).requires_grad_()
    z.register_hook(lambda g: ruda.zeros(2))
    with pytest.raises(ShapeError, match=r"a hook gave \(2,\) for a gradient of shape \(\)"):
        (z * 2).backward()


# ---- trees ---------------------------------------------------------------------------------------


class Pair(NamedTuple):
    a: object
    b: object


@dataclasses.dataclass(frozen=True)
class Layer:
    w: object
    b: object = None


def test_gradients_have_the_form_of_their_arguments():
    one = ruda.asarray(1.0)
    tree = {"pair": Pair(one, [one, one]), "layer": Layer(one * 2), "nothing": None}

    def loss(t):
        return t["pair"].a * 2 + t["pair"].b[1] * 3 + t["layer"].w ** 2

    g = ruda.grad(loss)(tree)
    assert isinstance(g["pair"], Pair) and isinstance(g["layer"], Layer)
    assert [float(v) for v in (g["pair"].a, *g["pair"].b, g["layer"].w)] == [2, 0, 3, 4]
    assert g["nothing"] is None and g["layer"].b is None


def test_gradients_by_a_module_are_a_module(rng):
    model = nn.Sequential(
        nn.Linear(3, 4, rng=rng), nn.relu, nn.BatchNorm(4), nn.Linear(4, 1, rng=rng)
    )
    x = ruda.asarray(rng.normal(size=(8, 3)).astype("f4"))
    value, g = ruda.value_and_grad(lambda m: ruda.sum(m(x) ** 2))(model)
    assert isinstance(g, nn.Sequential) and g is not model and float(value) >= 0
    ruda.sum(model(x) ** 2).backward()
    for name, p in model.named_parameters().items():
        holder = g
        for key in name.split("."):
            holder = holder[int(key)] if key.isdigit() else getattr(holder, key)
        np.testing.assert_allclose(holder.numpy(), p.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_a_parameter_in_two_places_has_one_gradient(rng):
    first = nn.Linear(3, 3, rng=rng)
    model = nn.Sequential(first, first)
    g = ruda.grad(lambda m: ruda.sum(m(ruda.ones((1, 3)))))(model)
    assert g.layers[0].weight is g.layers[1].weight
    ruda.sum(model(ruda.ones((1, 3)))).backward()
    np.testing.assert_allclose(g.layers[0].weight.numpy(), first.weight.grad.numpy(), rtol=1e-6)


def test_hvp_of_trees_and_jacobians_by_an_argument():
    x = {"a": ruda.asarray([1.0, 2.0]), "b": ruda.asarray(3.0)}
    v = {"a": ruda.asarray([1.0, 0.0]), "b": ruda.asarray(0.5)}
    h = ruda.hvp(lambda t: ruda.sum(t["a"] ** 3) * t["b"], x, v)
    np.testing.assert_allclose(h["a"].numpy(), [6 * 3 + 0.5 * 3, 0.5 * 12])
    np.testing.assert_allclose(h["b"].numpy(), 3)
    h = ruda.hessian(lambda a, x: a * ruda.sum(x**3), argnums=1)(2.0, ruda.asarray([1.0, 2.0]))
    np.testing.assert_allclose(h.numpy(), [[12, 0], [0, 24]])


# ---- anomalies -----------------------------------------------------------------------------------


def test_the_first_op_that_is_not_finite_is_named():
    x = ruda.asarray([1.0, 0.0]).requires_grad_()
    y = ruda.exp(ruda.log(x)) * 2
    ruda.sum(y).backward(retain_graph=True)  # exp(-inf) is 0 again: nothing is seen
    with ruda.detect_anomaly():
        with pytest.raises(GradientError, match=r"`divide` gives inf in shape \(2,\)"):
            ruda.sum(1 / x).backward()
        with pytest.raises(
            GradientError, match="the gradient of `sqrt` by its argument 0 holds inf"
        ):
            ruda.sum(ruda.sqrt(x)).backward()
        with pytest.raises(GradientError, match="an input of `multiply` holds nan"):
            ruda.sum(x * ruda.asarray([np.nan, 1.0])).backward()
        with pytest.raises(GradientError, match="a leaf of shape"):
            ruda.grad(lambda x: x * 2)(ruda.asarray(np.inf))
        ruda.sum(x * 2).backward()
    ruda.sum(1 / x).backward()  # outside nobody looks


# ---- refusals ------------------------------------------------------------------------------------


def test_backward_twice_needs_the_graph():
    x = ruda.asarray([1.0, 2.0]).requires_grad_()
    h = ruda.exp(x)
    loss = ruda.sum(h * h)
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(GradientError, match="was used by `backward` before and is gone"):
        loss.backward()
    with pytest.raises(GradientError, match="retain_graph=True"):
        ruda.sum(h).backward()  # its exp is part of that graph
    assert h._history.inputs == ()  # memory is let go
    ruda.sum(ruda.exp(x)).backward()


def test_what_cannot_be_differentiated_is_refused():
    with pytest.raises(DTypeError, match="derivatives are of floats, not int64"):
        ruda.asarray([1, 2]).requires_grad_()
    with pytest.raises(DTypeError, match="derivatives are of floats, not int64"):
        ruda.grad(lambda t: t["n"] * 1.0)({"n": 3})
    x = ruda.asarray([1.0, 2.0]).requires_grad_()
    with pytest.raises(ShapeError, match="`backward` of shape"):
        (x * 2).backward()
    with pytest.raises(GradientError, match="takes one that gives a tensor"):
        ruda.checkpoint(lambda x: [x])(x)
    y = x * 1.0
    z = y * y
    with ruda.no_grad():
        y += 1
    with pytest.raises(GradientError, match="written in place after the op"):
        ruda.sum(z).backward()


def test_gradients_alone_are_written(rng):
    """Nobody can ask for what lies between: it is not kept for further derivatives."""
    x = ruda.asarray(rng.normal(size=64).astype("f4"))
    told = repr(ruda.explain(ruda.grad(lambda x: ruda.sum(ruda.sin(x) * ruda.exp(x)))(x)))
    assert "writes float32 (64,)" in told and told.count("(64,)") == 2
