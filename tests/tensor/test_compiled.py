"""`ruda.compile`: replays are what calls would be, and what they cannot repeat is refused."""

import numpy as np
import pytest

import ruda
from ruda import nn
from ruda.errors import CompileError, GradientError
from ruda.tensor import compiled, execute
from ruda.tensor.grad import flatten


def test_replays_compute_what_calls_do(device, rng):
    calls = []

    @ruda.compile
    def normal(x, scale=1.0):
        calls.append(x.shape)
        away = x - ruda.mean(x, axis=-1, keepdims=True)
        return away / ruda.sqrt(ruda.mean(away * away, axis=-1, keepdims=True) + 1e-5) * scale

    for shape in ((3, 40), (2, 5)):
        for _ in range(3):
            a = rng.normal(size=shape).astype("f4")
            wanted = (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + 1e-5)
            found = normal(ruda.asarray(a, device=device))
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert calls == [(3, 40), (2, 5)]
    x = ruda.asarray(a, device=device)
    np.testing.assert_allclose(normal(x, scale=2.0).numpy(), wanted * 2, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(normal(x, scale=3.0).numpy(), wanted * 3, rtol=1e-4, atol=1e-5)
    assert len(calls) == 4
    normal(ruda.astype(x, "float16"))
    assert len(calls) == 5


def test_trees_of_arguments_and_results(rng):
    @ruda.compile
    def step(parameters, batch, rate):
        new = {k: p - rate * ruda.sum(p * batch[0]) for k, p in parameters.items()}
        return new, [batch[1] * 2, 7, "text"], parameters["w"]

    for _ in range(2):
        w, b, x, y = (ruda.asarray(rng.normal(size=5).astype("f4")) for _ in range(4))
        new, rest, same = step({"w": w, "b": b}, (x, y), 0.1)
        wanted = w.numpy() - 0.1 * (w.numpy() * x.numpy()).sum()
        np.testing.assert_allclose(new["w"].numpy(), wanted, rtol=1e-5)
        assert set(new) == {"w", "b"} and rest[1:] == [7, "text"]
        np.testing.assert_allclose(rest[0].numpy(), y.numpy() * 2)
        assert same.tolist() == w.tolist()


def test_views_library_functions_and_constants(device, rng):
    @ruda.compile
    def f(x, y):
        half = ruda.full((3,), 0.5, device=x.device)
        z = ruda.reshape((x * 2).T, (-1,))[:3] + half
        joined = ruda.concat([z, y[1:, 0]])
        return joined[::-1] * 2, (x + 1) @ y

    for _ in range(3):
        a, b = rng.normal(size=(4, 3)).astype("f4"), rng.normal(size=(3, 2)).astype("f4")
        joined, product = f(ruda.asarray(a, device=device), ruda.asarray(b, device=device))
        wanted = np.concatenate([(a * 2).T.reshape(-1)[:3] + 0.5, b[1:, 0]])[::-1] * 2
        np.testing.assert_allclose(joined.numpy(), wanted, rtol=1e-6)
        np.testing.assert_allclose(product.numpy(), (a + 1) @ b, rtol=1e-5, atol=1e-6)


def test_arguments_that_are_views_or_not_computed(rng):
    @ruda.compile
    def f(x):
        return x[1:] + 1

    a = rng.normal(size=(3, 4)).astype("f4")
    x = ruda.asarray(a)
    for _ in range(2):
        np.testing.assert_allclose(f(x.T).numpy(), a.T[1:] + 1)
        np.testing.assert_allclose(f(x * 2).numpy(), a[1:] * 2 + 1)


def test_results_are_new_each_time():
    @ruda.compile
    def f(x):
        return x + 1, ruda.zeros(2)

    first, zero = f(ruda.asarray([1.0]))
    second, other = f(ruda.asarray([2.0]))
    zero += 5
    assert first.tolist() == [2] and second.tolist() == [3] and other.tolist() == [0, 0]
    assert f(ruda.asarray([3.0]))[1].tolist() == [0, 0]


def test_derivatives_inside():
    @ruda.compile
    def slope(x):
        return ruda.grad(lambda x: ruda.sum(x * x * x))(x)

    assert slope(ruda.asarray([1.0, 2.0])).tolist() == [3, 12]
    assert slope(ruda.asarray([2.0, 3.0])).tolist() == [12, 27]
    with pytest.raises(GradientError, match=r"ruda\.compile of slope"):
        slope(ruda.asarray([1.0]).requires_grad_())


OUTSIDE = ruda.asarray([1.0])


def written(x):
    x[0] = 2.0
    return x


def added(x):
    x += 1
    return x


REFUSED = [
    (lambda x: x if x.item() > 0 else -x, "reads the values of a tensor"),
    (lambda x: ruda.asarray(np.asarray(x + 1)), "reads the values of a tensor"),
    (lambda x: ruda.asarray(float(ruda.sum(x))), "reads the values of a tensor"),
    (lambda x: x + OUTSIDE, r"uses a tensor of shape \(1,\) that is no argument"),
    (written, "writes into a tensor"),
    (added, "writes into a tensor"),
]


@pytest.mark.parametrize(("function", "text"), REFUSED)
def test_what_a_replay_cannot_repeat(function, text):
    made = ruda.compile(function)
    for _ in range(2):
        with pytest.raises(CompileError, match=text):
            made(ruda.asarray([1.0]))
    assert (ruda.asarray([1.0]) + 1).tolist() == [2]  # nothing is left behind


def test_shapes_that_depend_on_values():
    @ruda.compile
    def f(x):
        return ruda.nonzero(x)[0] * 2

    assert f(ruda.asarray([0.0, 1.0])).tolist() == [2]
    with pytest.raises(CompileError, match="its shapes depend on values"):
        f(ruda.asarray([1.0, 1.0]))


def test_wrong_arguments():
    with pytest.raises(TypeError, match="decorates a function, not int"):
        ruda.compile(3)
    with pytest.raises(CompileError, match="arguments are tensors, numbers"):
        ruda.compile(lambda x, y: x)(ruda.zeros(1), {1, 2})


def give_graphs(monkeypatch, device):
    """Launches one by one stand in for a GPU's graph: fixed memory, copied in and out."""
    from ruda import backends

    backend = backends.get(device)

    def graph(launches, device):
        calls = [(backend.launcher(m, launch, None), values) for m, launch, values in launches]
        return lambda: [call(*values) for call, values in calls]

    monkeypatch.setattr(type(backend), "graph", staticmethod(graph), raising=False)


def test_several_kernels_are_one_graph_where_the_device_has_them(monkeypatch, rng):
    give_graphs(monkeypatch, "cpu")

    @ruda.compile
    def f(x, y):
        for _ in range(3):
            x = x.T + ruda.sum(x * 0.5, axis=0)
        return x, y, ruda.max(x), ruda.ones(2)

    for _ in range(4):
        a = rng.normal(size=(5, 5)).astype("f4")
        y = ruda.asarray([1.0])
        found, same, most, ones = f(ruda.asarray(a), y)
        for _ in range(3):
            a = a.T + (a * 0.5).sum(0)
        np.testing.assert_allclose(found.numpy(), a, rtol=1e-4, atol=1e-4)
        assert (
            abs(most.item() - a.max()) < 1e-3 and same.tolist() == [1] and ones.tolist() == [1, 1]
        )
        ones += 1
        found += 1
    assert "as one graph" in repr(ruda.explain(f))


def test_graphs_have_products_and_stop_at_what_looks_at_values(device, monkeypatch, rng):
    """Training steps: embeddings and labels are looked at, products are launches."""
    if not device.startswith("cuda"):
        give_graphs(monkeypatch, device)
    model = nn.Sequential(
        nn.Embedding(7, 40, rng=rng), nn.Linear(40, 40, rng=rng), nn.gelu, nn.Linear(40, 5, rng=rng)
    ).to(device)
    numbers = rng.integers(0, 7, (3, 12))

    def loss(model, x, y):
        return nn.cross_entropy(model(x), y)

    leaves, restore = flatten(model)

    @ruda.compile
    def step(parameters, x, y):
        return ruda.value_and_grad(lambda p: loss(restore(p), x, y))(parameters)

    for k in range(4):
        x = ruda.asarray((numbers + k) % 7, device=device)
        y = ruda.asarray((numbers + k) % 5, device=device)
        wanted = loss(model, x, y)
        model.zero_grad()
        wanted.backward()
        found, slopes = step([p.detach() for p in leaves], x, y)
        np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=1e-5)
        for p, g in zip(leaves, slopes, strict=True):
            np.testing.assert_allclose(g.numpy(), p.grad.numpy(), rtol=1e-3, atol=1e-5)
    if device.startswith("cuda"):
        assert "as one graph" in repr(ruda.explain(step))
    if device in ("cpu", "sim"):  # where the host sees them
        with pytest.raises(ValueError, match="of 5 classes"):
            step([p.detach() for p in leaves], x, y + 5)


def test_a_graph_draws_numbers_once_for_each_call(device, monkeypatch):
    """Making one runs it: a second run in the same call would skip numbers."""
    if not device.startswith("cuda"):
        give_graphs(monkeypatch, device)
    layer = nn.Dropout(rng=np.random.default_rng(5))
    draws = np.random.default_rng(5)

    @ruda.compile
    def f(x):
        dropped = layer(x * 3.0)
        for _ in range(3):
            dropped = dropped.T + ruda.sum(dropped * 0.5, axis=0)
        return dropped

    x = ruda.full((6, 6), 3.0, device=device)
    for _ in range(4):
        kept = draws.random((6, 6), np.float32) >= 0.5
        wanted = kept * 18.0
        for _ in range(3):
            wanted = wanted.T + (wanted * 0.5).sum(0)
        np.testing.assert_allclose(f(x).numpy(), wanted, rtol=1e-5)
    assert "as one graph" in repr(ruda.explain(f))


def test_results_that_were_views_are_in_order(device):
    f = ruda.compile(lambda x: (ruda.flip(x), (x * 2).T))
    for k in range(3):
        a = np.arange(6, dtype="f4").reshape(2, 3) + k
        found = [ruda.reshape(r, (-1,)).tolist() for r in f(ruda.asarray(a, device=device))]
        assert found == [a[::-1, ::-1].ravel().tolist(), (a.T * 2).ravel().tolist()]


def test_explain_tells_what_is_kept():
    @ruda.compile
    def f(x):
        return ruda.sum(ruda.exp(x) * 2, axis=1)

    for n in (10, 10, 20):
        f(ruda.zeros((3, n)))
    found = ruda.explain(f)
    assert [s.replays for s in found.signatures] == [1, 0]
    assert found.signatures[0].kernels[0].ops == ("exp", "multiply", "sum")
    assert found.signatures[0].moved == found.signatures[0].least == 4 * (30 + 3)
    assert "f: 2 signatures" in repr(found) and "launch by launch" in repr(found)


def test_results_share_no_memory(device):
    """Of arguments, of constants and of each other: memory that seems dead is written again."""
    size = 1 << 18 if device == "cpu" else 40  # from which it has kernels, and memory of a pool
    whole = ruda.compile(lambda x: ruda.reshape(x, (2, -1)))
    both = ruda.compile(lambda x: (lambda y: (y, y[1:], y))(x + 1))
    constant = ruda.compile(lambda x: ruda.full((size,), 3.0, device=x.device))
    a = np.arange(size, dtype="f4")
    for _ in range(3):
        x = ruda.asarray(a, device=device)
        y = whole(x)
        z = y * 2
        del y
        assert np.array_equal(z.numpy().ravel(), a * 2) and np.array_equal(x.numpy(), a)
        y, part, same = both(x)
        z = part * 2
        del part
        assert np.array_equal(z.numpy(), a[1:] * 2 + 2) and np.array_equal(y.numpy(), a + 1)
        y, part, same = both(x)
        z = part * 2, same * 2  # what waits saw the elements before they were written
        y[...] = 0
        assert np.array_equal(z[0].numpy(), a[1:] * 2 + 2)
        assert np.array_equal(z[1].numpy(), a * 2 + 2)
        found = constant(x)
        assert set(found.tolist()) == {3.0}
        found[...] = 5
        if device == "cpu":
            execute.wait()


def test_numbers_are_told_by_their_bits(device):
    """-0.0 is not 0.0, though it equals it; NaN is NaN, though it does not."""
    scaled = ruda.compile(lambda x, by: x * by)
    x = ruda.asarray([1.0, -2.0], device=device)
    for by in (0.0, -0.0, 0, np.float32(-0.0), np.float32(0.0), False):
        found = np.signbit(scaled(x, by).numpy()).tolist()
        assert found == np.signbit((x * by).numpy()).tolist(), by
    for _ in range(3):
        assert np.isnan(scaled(x, float("nan")).numpy()).all()
    assert len(ruda.explain(scaled).signatures) == 7


def test_products_are_only_those_that_gradients_need(rng):
    """None for the gradient of a constant, and one for rows that are no array of their own."""
    x, w = (rng.normal(size=n).astype("f4") for n in ((2, 3, 4, 5), (20, 6)))
    heads = ruda.asarray(x)

    @ruda.compile
    def slope(x, w):
        rows = ruda.reshape(ruda.permute_dims(x, (0, 2, 1, 3)), (2, 4, 15))
        return ruda.grad(lambda w: ruda.sum(ruda.square(rows @ w)))(w)

    found = slope(heads, ruda.asarray(w[:15]))
    a = x.transpose(0, 2, 1, 3).reshape(8, 15).astype("f8")
    np.testing.assert_allclose(found.numpy(), 2 * a.T @ (a @ w[:15]), rtol=1e-4, atol=1e-4)
    (kept,) = ruda.explain(slope).signatures
    assert kept.calls == ("matmul", "matmul")
    (recorded,) = slope.recorded.values()
    made = [shape for s in recorded.steps if hasattr(s, "function") for _, shape, _ in s.results]
    assert made == [(8, 6), (15, 6)]


def test_small_work_that_is_replayed_often_has_kernels(rng):
    @ruda.compile
    def shares(x):
        x = ruda.exp(x - ruda.max(x, axis=-1, keepdims=True))
        return x / ruda.sum(x, axis=-1, keepdims=True)

    a = rng.normal(size=(6, 5)).astype("f4")
    wanted = np.exp(a) / np.exp(a).sum(-1, keepdims=True)
    for k in range(compiled.OFTEN + 4):
        np.testing.assert_allclose(shares(ruda.asarray(a)).numpy(), wanted, rtol=1e-5)
        (kernels,) = [p.kernels for r in shares.recorded.values() for p in r.plans]
        execute.wait()
        if k < compiled.OFTEN:
            assert not any(s.run for s in kernels)
    assert all(s.run for s in kernels)
    nothing = ruda.compile(lambda x: x * 2.0 + 1.0)
    for _ in range(compiled.OFTEN + 4):
        assert nothing(ruda.zeros((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("turned", [(False, True), (True, False), (True, True), (False, False)])
def test_gradients_lie_as_what_they_are_of(turned, monkeypatch, rng):
    """Those of a transposed weight are given back without a copy; also of many matrices."""
    copies, duplicate = [], compiled.duplicate
    monkeypatch.setattr(compiled, "duplicate", lambda *a: (copies.append(1), duplicate(*a))[1])
    for lead in ((), (2,)):
        x, y = rng.normal(size=(*lead, 3, 4)).astype("f4"), rng.normal(size=(*lead, 4, 5))
        x, y = (a.astype("f4") for a in (x, y))
        given = [a.mT if turn else a for a, turn in zip((x, y), turned, strict=True)]

        @ruda.compile
        def slopes(x, y):
            def f(x, y):
                left, right = (a.mT if turn else a for a, turn in zip((x, y), turned, strict=True))
                return ruda.sum(ruda.square(left @ right))

            return ruda.grad(f, argnums=(0, 1))(x, y)

        for _ in range(2):
            found = slopes(*(ruda.asarray(np.ascontiguousarray(a)) for a in given))
            g = 2 * (x @ y)
            for a, wanted, turn in zip(found, (g @ y.mT, x.mT @ g), turned, strict=True):
                np.testing.assert_allclose(
                    a.numpy(), wanted.mT if turn else wanted, rtol=1e-4, atol=1e-5
                )
    assert not copies
