"""Optimisers by their formulas and by PyTorch's steps, schedules, clipping and mixed precision."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import ruda
from ruda import nn
from ruda.dnn.update import update
from ruda.errors import CompileError, GradientError
from ruda.nn import checkpoint
from ruda.tensor.primitives import many

FILE = Path(__file__).with_name("optimisers.json")
STEPS = 6
# (name, ours, PyTorch's class, its options)
ROWS = [
    ("SGD", nn.SGD, "SGD", {"lr": 0.05}),
    ("SGD momentum", nn.SGD, "SGD", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1}),
    ("SGD nesterov", nn.SGD, "SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    ("Adam", nn.Adam, "Adam", {"lr": 0.05, "weight_decay": 0.1}),
    ("Adam amsgrad", nn.Adam, "Adam", {"lr": 0.05, "amsgrad": True}),
    ("AdamW", nn.AdamW, "AdamW", {"lr": 0.05, "weight_decay": 0.1}),
    ("AdaGrad", nn.AdaGrad, "Adagrad", {"lr": 0.05, "lr_decay": 0.1, "weight_decay": 0.1}),
    ("RMSProp", nn.RMSProp, "RMSprop", {"lr": 0.05, "weight_decay": 0.1}),
    ("RMSProp momentum", nn.RMSProp, "RMSprop", {"lr": 0.05, "momentum": 0.9}),
    ("RMSProp centered", nn.RMSProp, "RMSprop", {"lr": 0.05, "centered": True}),
]  # fmt: skip
START = np.linspace(-0.6, 0.7, 6).reshape(2, 3)


def ours(make, options):
    p = nn.parameter(START)
    optimiser = make([p], **options)
    for _ in range(STEPS):
        ruda.sum(p**4 + 3 * p * p[::-1]).backward()
        optimiser.step()
        optimiser.zero_grad()
    return p.numpy()


def theirs(name, options):
    import torch

    p = torch.tensor(START, requires_grad=True)
    optimiser = getattr(torch.optim, name)([p], **options)
    for _ in range(STEPS):
        optimiser.zero_grad()
        (p**4 + 3 * p * p.flip(0)).sum().backward()
        optimiser.step()
    return p.detach().numpy()


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r[0])
def test_steps_are_pytorchs(row):
    """As they were recorded (`python -m tests.nn.test_optim`), and where it is installed."""
    name, make, peer, options = row
    wanted = np.array(json.loads(FILE.read_text())[name])
    np.testing.assert_allclose(ours(make, options), wanted, rtol=1e-9)
    pytest.importorskip("torch")
    np.testing.assert_allclose(theirs(peer, options), wanted, rtol=1e-9)


def test_adan_by_its_formula():
    p = START.copy()
    m = d = n = before = None
    for k in range(1, STEPS + 1):
        g = 4 * p**3 + 6 * p[::-1]
        change = g - before if before is not None else 0 * g
        u = (g + 0.92 * change) ** 2
        m = 0.02 * g + (0.98 * m if m is not None else 0)
        d = 0.08 * change + (0.92 * d if d is not None else 0)
        n = 0.01 * u + (0.99 * n if n is not None else 0)
        eta = np.sqrt(n / (1 - 0.99**k)) + 1e-8
        p = p - 0.05 * (m / (1 - 0.98**k) + 0.92 * d / (1 - 0.92**k)) / eta
        p, before = p / (1 + 0.05 * 0.1), g
    options = {"lr": 0.05, "weight_decay": 0.1}
    np.testing.assert_allclose(ours(nn.Adan, options), p, rtol=1e-9)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 2, 2)])
def test_muon_steps_are_almost_orthogonal(shape, rng):
    p = nn.parameter(np.zeros(shape))
    p.grad = ruda.asarray(rng.normal(size=shape))
    nn.Muon([p], lr=1.0).step()
    flat = p.numpy().reshape(shape[0], -1)
    s = np.linalg.svd(flat, compute_uv=False) / math.sqrt(max(1, flat.shape[0] / flat.shape[1]))
    assert s.min() > 0.6 and s.max() < 1.3
    g = p.grad.numpy().reshape(flat.shape)
    u, _, v = np.linalg.svd(g, full_matrices=False)
    assert -np.sum(flat * (u @ v)) > 0.8 * np.linalg.norm(flat) * np.linalg.norm(u @ v)
    with pytest.raises(ValueError, match="Muon is of matrices"):
        nn.Muon([nn.parameter([1.0])])


def test_lbfgs_finds_rosenbrocks_valley():
    p = nn.parameter(np.array([-1.2, 1.0]))
    optimiser = nn.LBFGS([p], iterations=80)
    calls = []

    def closure():
        optimiser.zero_grad()
        loss = 100 * (p[1] - p[0] ** 2) ** 2 + (1 - p[0]) ** 2
        loss.backward()
        calls.append(float(loss))
        return loss

    first = optimiser.step(closure)
    assert float(first) == pytest.approx(24.2)
    np.testing.assert_allclose(p.numpy(), [1, 1], atol=1e-5)
    assert len(calls) < 150
    with pytest.raises(TypeError, match="takes a closure"):
        optimiser.step()


def test_groups_have_options_and_rates_of_their_own():
    a, b = nn.parameter([1.0]), nn.parameter([1.0])
    groups = [{"parameters": [a], "weight_decay": 0.5}, {"parameters": [b], "lr": 0.2}]
    optimiser = nn.SGD(groups, lr=nn.schedules.step(0.1, 0.5, 1))
    for _ in range(2):
        ruda.sum(a * 0 + b * 0 + a + b).backward()
        optimiser.step()
        optimiser.zero_grad()
    wanted = 1.0
    for lr in (0.1, 0.05):
        wanted -= lr * (1 + 0.5 * wanted)
    assert a.item() == pytest.approx(wanted) and b.item() == pytest.approx(1 - 0.2 - 0.1)
    with pytest.raises(TypeError, match="SGD has no option 'betas'"):
        nn.SGD([{"parameters": [a], "betas": 1}], lr=1)
    with pytest.raises(ValueError, match="in two groups"):
        nn.SGD([a, {"parameters": [a]}], lr=1)


def test_schedules_by_hand():
    s = nn.schedules
    rows = [
        (s.constant(2.0), [2, 2, 2]), (s.linear(1.0, 3.0, 2), [1, 2, 3, 3]),
        (s.cosine(1.0, 2), [1, 0.5, 0, 0]), (s.exponential(1.0, 0.5), [1, 0.5, 0.25]),
        (s.exponential(1.0, 0.5, least=0.4), [1, 0.5, 0.4]), (s.step(1.0, 0.1, 2), [1, 1, 0.1]),
        (s.noam(4, 2), [0.5 * 2**-1.5, 0.5 * 2 * 2**-1.5, 0.5 * 3**-0.5]),
        (s.warmup(s.constant(1.0), 4), [0.25, 0.5, 0.75, 1, 1]),
        (s.product(s.constant(2.0), s.linear(1.0, 0.0, 2)), [2, 1, 0]),
    ]  # fmt: skip
    for schedule, wanted in rows:
        np.testing.assert_allclose([schedule(k) for k in range(len(wanted))], wanted, atol=1e-12)
    with pytest.raises(ValueError, match="at least one step"):
        s.linear(0.0, 1.0, 0)


def test_clipping(device):
    a, b = (nn.parameter(np.zeros(2, "f4"), device=device) for _ in range(2))
    a.grad, b.grad = (ruda.asarray(np.array(g, "f4"), device=device) for g in ([3, 0], [0, -4]))
    assert nn.clip_grad_norm([a, b], 10.0) == pytest.approx(5)
    assert a.grad.tolist() == [3, 0]
    nn.clip_grad_value([b], 2.5)
    assert b.grad.tolist() == [0, -2.5]
    b.grad = b.grad * 1.6
    nn.clip_grad_norm([a, b], 1.0)
    np.testing.assert_allclose([*a.grad.tolist(), *b.grad.tolist()], [0.6, 0, 0, -0.8], rtol=1e-5)
    a.grad = a.grad * np.inf
    with pytest.raises(GradientError, match="norm is nan"):
        nn.clip_grad_norm([a, b], 1.0)


def test_gradients_add_up_over_parts_of_a_batch(rng):
    x, y = rng.normal(size=(8, 3)).astype("f4"), rng.normal(size=(8, 1)).astype("f4")
    model = nn.Linear(3, 1, rng=rng)
    nn.mse_loss(model(ruda.asarray(x)), ruda.asarray(y)).backward()
    whole = model.weight.grad.numpy()
    model.zero_grad()
    for part in (slice(0, 4), slice(4, 8)):
        (nn.mse_loss(model(ruda.asarray(x[part])), ruda.asarray(y[part])) / 2).backward()
    np.testing.assert_allclose(model.weight.grad.numpy(), whole, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_masters_keep_steps_that_16_bits_would_lose(dtype):
    p = nn.parameter(np.ones(1, "f4")).detach()
    p = ruda.astype(p, dtype).requires_grad_()
    optimiser = nn.SGD([p], lr=1e-4)
    for _ in range(100):
        ruda.sum(p * 1.0).backward()
        optimiser.step()
        optimiser.zero_grad()
    assert str(p.dtype) == dtype and abs(float(optimiser.state[0]["master"]) - 0.99) < 1e-5
    assert abs(float(p) - 0.99) < 4e-3


def test_a_model_of_16_bits_learns(rng):
    x = ruda.asarray(rng.normal(size=(32, 4)).astype("f2"))
    w = ruda.asarray(rng.normal(size=(4, 1)).astype("f2"))
    y = x @ w
    model = nn.Linear(4, 1, rng=rng).astype("float16")
    optimiser, scaler = nn.AdamW(model.parameters(), lr=0.05), nn.LossScaler(2.0**20, interval=10)
    losses, made = [], 0
    for _ in range(60):
        loss = nn.mse_loss(model(x), y)
        scaler.scaled(ruda.astype(loss, "float32")).backward()
        made += scaler.step(optimiser)
        optimiser.zero_grad()
        losses.append(float(loss))
    assert made < 60  # a scale that was too great was found out
    assert losses[-1] < 0.05 * losses[0] and model.weight.dtype is ruda.float16


def test_a_step_that_is_not_finite_is_left_out():
    p = nn.parameter([1.0])
    optimiser, scaler = nn.SGD([p], lr=0.1), nn.LossScaler(8.0, interval=2)
    for wanted, factor in ((4.0, np.inf), (4.0, 1.0), (8.0, 1.0)):
        scaler.scaled(ruda.sum(p) * factor).backward()
        scaler.step(optimiser)
        optimiser.zero_grad()
        assert scaler.scale == wanted
    assert p.item() == pytest.approx(0.8) and optimiser.steps == 2


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_one_launch_changes_all_parameters(name, device):
    """The same as a launch for each, also where blocks and parameters do not end together."""
    count, numbers = {
        "adam": (4, (0.9, 0.99, 0.1, 0.99, 1e-8, 1.1, 0.01)), "sgd": (3, (0.9, 1.0, 0.1, 0.1))
    }[name]  # fmt: skip

    def rows():
        rng = np.random.default_rng(1)
        return [
            (
                [ruda.asarray(rng.random(shape, "f4"), device=device) for _ in range(count)],
                tuple(v * (1 - k / 20) for v in numbers),
            )
            for k, shape in enumerate([(3, 5), (2050,), (0,), (1,), (1024,)])
        ]

    apart, shared = rows(), rows()
    wanted = update(name, apart, together=False)
    found = update(name, shared, together=many.is_possible(device))
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=2e-6, atol=1e-7)
    for (mine, _), (theirs, _) in zip(shared, apart, strict=True):
        for x, y in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(x.numpy(), y.numpy(), rtol=2e-6, atol=1e-7)


def assert_equal_steps(models, first, second, x, y):
    """Four steps of the first model, compiled, have the losses of the second one's on the tape."""
    step = nn.compiled_step(models[0], nn.cross_entropy, first)
    for _ in range(4):
        loss = nn.cross_entropy(models[1](x), y)
        loss.backward()
        second.step()
        second.zero_grad()
        assert step(x, y).item() == pytest.approx(loss.item(), rel=1e-4)


def test_compiled_steps_are_those_of_the_tape(device):
    """A model that draws numbers, too: new ones at each step."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5, 3)).astype("f4"), rng.integers(0, 4, 5)
    models = []
    for _ in range(2):
        draws = np.random.default_rng(2)
        layers = nn.Linear(3, 8, rng=draws), nn.relu, nn.Dropout(rng=draws), nn.Linear(8, 4)
        models.append(nn.Sequential(*layers).to(device))
    models[1].load_state_dict(models[0].state_dict())
    x, y = ruda.asarray(x, device=device), ruda.asarray(y, device=device)
    first, second = (nn.AdamW(m.parameters(), lr=0.05) for m in models)
    assert_equal_steps(models, first, second, x, y)
    for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.numpy(), atol=1e-4)


def test_compiled_steps_move_what_layers_keep(device):
    """Running means and variances, which a replay must change as the tape does."""
    rng = np.random.default_rng(4)
    x, y = (ruda.asarray(a, device=device) for a in (
        rng.normal(1.0, 2.0, size=(6, 3)).astype("f4"), rng.integers(0, 2, 6)))  # fmt: skip
    models = [
        nn.Sequential(nn.Linear(3, 4, rng=np.random.default_rng(1)), nn.BatchNorm(4), nn.Linear(
            4, 2, rng=np.random.default_rng(2))).to(device) for _ in range(2)
    ]  # fmt: skip
    first, second = (nn.SGD(m.parameters(), lr=0.1) for m in models)
    assert_equal_steps(models, first, second, x, y)
    found, wanted = (m.state_dict() for m in models)
    assert np.abs(wanted["layers.1.running_mean"]).max() > 0.1
    for name in wanted:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4, atol=1e-5, err_msg=name)

    layer = nn.BatchNorm(3, affine=False).to(device)
    with pytest.raises(CompileError, match="writes into a tensor"):
        ruda.compile(lambda x: layer(x))(x)  # where a replay would leave them as they are


def test_states_of_lbfgs_and_of_loss_scalers_are_kept(tmp_path):
    """A run that is stopped after two steps goes on as one that is not."""

    def begin():
        net = nn.Linear(2, 1, rng=np.random.default_rng(3))
        return net, nn.LBFGS(net.parameters(), iterations=1, lr=0.1), nn.LossScaler(8.0, interval=3)

    x = ruda.asarray([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]])

    def go(net, optimiser, scaler, steps):
        def closure():
            optimiser.zero_grad()
            loss = ruda.sum(ruda.square(net(x)[:, 0] - x[:, 0] * x[:, 1]))
            loss.backward()
            return loss

        for _ in range(steps):
            optimiser.step(closure)
            scaler.good += 1
        return net.weight.numpy()

    whole = go(*begin(), 4)
    net, optimiser, scaler = begin()
    go(net, optimiser, scaler, 2)
    checkpoint.save(tmp_path / "c", net, optimiser, {"scaler": scaler.state()})
    net, optimiser, scaler = begin()
    scaler.set_state(checkpoint.load(tmp_path / "c", net, optimiser)["scaler"])
    assert optimiser.pairs and (scaler.scale, scaler.good) == (8.0, 2)
    np.testing.assert_array_equal(go(net, optimiser, scaler, 2), whole)


def test_parameters_of_two_devices_are_refused(device):
    other = "cpu" if device != "cpu" else "sim"
    with pytest.raises(ValueError, match="an optimiser is of one device"):
        nn.SGD([nn.parameter([1.0], device=device), nn.parameter([1.0], device=other)], lr=1)


if __name__ == "__main__":
    FILE.write_text(json.dumps({r[0]: theirs(r[2], r[3]).tolist() for r in ROWS}, indent=0))


WEIGHT = nn.parameter([1.0, 2.0])


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: nn.SGD([WEIGHT], lr=-0.1), "SGD: `lr` is at least 0 and finite, not -0.1"),
        (lambda: nn.Adam([WEIGHT], lr=math.nan), "`lr` is at least 0 and finite, not nan"),
        (lambda: nn.Adam([WEIGHT], lr="a"), "Adam: `lr` is a number, not str"),
        (lambda: nn.SGD([WEIGHT], lr=lambda k: -1.0), "`lr` is at least 0"),
        (lambda: nn.AdamW([WEIGHT], betas=(0.9, 1.0)), "`betas` is at least 0 and below 1, not 1"),
        (lambda: nn.SGD([WEIGHT], lr=0.1, momentum=-1), "`momentum` is at least 0"),
        (lambda: nn.Adam([{"parameters": [WEIGHT], "weight_decay": -1}]), "`weight_decay` is at"),
        (lambda: nn.RMSProp([WEIGHT], alpha=1.5), "`alpha` is at least 0 and below 1, not 1.5"),
        (lambda: nn.SGD(nn.Linear(2, 2), lr=0.1), "not Linear: give the `parameters\\(\\)` of a"),
        (lambda: nn.SGD([1, 2], lr=0.1), "SGD changes tensors of floats, not int"),
        (lambda: nn.SGD([ruda.arange(3)], lr=0.1), "tensors of floats, not int64"),
        (lambda: nn.SGD([{"lr": 0.1}], lr=0.1), "a group needs 'parameters'"),
        (lambda: nn.clip_grad_norm([WEIGHT], -1), "a norm of at least 0, not -1"),
        (lambda: nn.clip_grad_value([WEIGHT], math.nan), "at least 0, not nan"),
    ],
)
def test_what_no_optimiser_can_use_is_refused(wrong, said):
    with pytest.raises((TypeError, ValueError), match=said):
        wrong()


def test_optimisers_show_their_options():
    shown = repr(nn.AdamW([WEIGHT], lr=0.01))
    assert shown == (
        "AdamW(1 tensors of 2 numbers, lr=0.01, betas=(0.9, 0.999), eps=1e-08, "
        "weight_decay=0.01, amsgrad=False)"
    )
