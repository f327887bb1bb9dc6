"""Modules, losses, optimisers, data and the training command."""

import gzip
import json
import os
import struct

import numpy as np
import pytest
import scipy.special

import ruda
from ruda import nn
from ruda.cli import main
from ruda.data import mnist
from ruda.errors import DTypeError, ShapeError, UsageError
from ruda.nn import checkpoint
from ruda.nn.train import mlp, train


def model(seed=0):
    rng = np.random.default_rng(seed)
    return nn.Sequential(
        nn.Linear(3, 4, rng=rng), nn.relu, nn.LayerNorm(4), nn.Linear(4, 2, rng=rng)
    )


# ---- modules -------------------------------------------------------------------------------------


def test_parameters_have_the_names_of_attributes():
    class Net(nn.Module):
        def __init__(self):
            self.body = model()
            self.scales = {"a": nn.parameter(1.0)}
            self.table = ruda.zeros(3)

        def forward(self, x):
            return self.body(x) * self.scales["a"]

    net = Net()
    assert list(net.named_parameters()) == [
        "body.layers.0.weight", "body.layers.0.bias", "body.layers.2.weight",
        "body.layers.2.bias", "body.layers.3.weight", "body.layers.3.bias", "scales.a",
    ]  # fmt: skip
    assert "table" in net.state_dict() and net.num_parameters() == 12 + 4 + 8 + 8 + 2 + 1
    assert net(ruda.zeros((5, 3))).shape == (5, 2)
    assert "(layers.0): Linear(3, 4, bias=True)" in repr(net)


def test_state_travels_by_name():
    one, two = model(0), model(1)
    x = ruda.asarray(np.ones((2, 3), "f4"))
    assert not np.allclose(one(x).numpy(), two(x).numpy())
    report = two.load_state_dict(one.state_dict())
    assert report.complete and len(report.applied) == 6
    np.testing.assert_array_equal(one(x).numpy(), two(x).numpy())
    assert all(p.requires_grad for p in two.parameters())


def test_a_state_that_does_not_fit_changes_nothing():
    net = model()
    before = net.state_dict()
    wrong = {**before, "layers.0.bias": np.zeros(9, "f4"), "more": np.zeros(1, "f4")}
    del wrong["layers.3.bias"]
    with pytest.raises(ShapeError, match=r"missing \['layers.3.bias'\], unused \['more'\]"):
        net.load_state_dict(wrong)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    report = net.load_state_dict(wrong, strict=False)
    assert report.mismatched == ["layers.0.bias: (9,) instead of (4,)"]


def test_dropout_drops_in_training_alone():
    layer = nn.Dropout(0.25, rng=np.random.default_rng(0))
    x = ruda.ones(10_000)
    out = layer(x).numpy()
    assert abs((out == 0).mean() - 0.25) < 0.02 and abs(out.mean() - 1) < 0.02
    assert layer.eval()(x) is x
    with pytest.raises(ValueError, match="below 1"):
        nn.Dropout(1.0)


def test_freezing():
    net = model().freeze()
    assert net.num_parameters() == 0
    with pytest.raises(ValueError, match="was the model frozen"):
        nn.SGD(net.parameters(), lr=1)


# ---- functions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "numpys"),
    [
        (nn.relu, lambda x: np.maximum(x, 0)),
        (nn.gelu, lambda x: x * scipy.special.ndtr(x)),
        (nn.silu, lambda x: x * scipy.special.expit(x)),
        (nn.softplus, lambda x: np.logaddexp(x, 0)),
        (nn.softmax, lambda x: scipy.special.softmax(x, -1)),
        (nn.log_softmax, lambda x: scipy.special.log_softmax(x, -1)),
        (nn.logsumexp, lambda x: scipy.special.logsumexp(x, -1)),
        (nn.leaky_relu, lambda x: np.where(x > 0, x, 0.01 * x)),
        (nn.RMSNorm(5), lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)),
    ],
)
def test_functions_match_scipy(ours, numpys, device, rng):
    a = rng.normal(size=(4, 5)).astype("f4") * 5
    layer = ours.to(device) if isinstance(ours, nn.Module) else ours
    found = layer(ruda.asarray(a, device=device)).numpy()
    np.testing.assert_allclose(found, numpys(a.astype("f8")), rtol=2e-5, atol=1e-6)


def test_softmax_of_great_numbers():
    x = ruda.asarray([1000.0, 1000.0, -1000.0])
    assert nn.softmax(x).tolist() == [0.5, 0.5, 0]
    assert nn.logsumexp(ruda.asarray([-np.inf, -np.inf])).item() == -np.inf


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignore", [None, 2])
def test_cross_entropy(smoothing, weighted, ignore, rng):
    logits, labels = rng.normal(size=(8, 4)), rng.integers(0, 4, 8)
    weight = rng.uniform(0.5, 2, 4) if weighted else np.ones(4)
    p = scipy.special.log_softmax(logits, -1)
    target = np.eye(4)[labels] * (1 - smoothing) + smoothing / 4
    kept = np.ones(8) if ignore is None else labels != ignore
    wanted = (-(p * target * weight).sum(-1) * kept).sum() / (weight[labels] * kept).sum()

    def loss(x):
        return nn.cross_entropy(
            x, ruda.asarray(labels), label_smoothing=smoothing, ignore_index=ignore,
            weight=ruda.asarray(weight) if weighted else None,
        )  # fmt: skip

    assert abs(float(loss(ruda.asarray(logits))) - wanted) < 1e-9
    ruda.gradcheck(loss, logits)


def test_other_losses(rng):
    x, y = rng.normal(size=6) * 2, rng.normal(size=6)
    for ours, wanted in (
        (nn.mse_loss, ((x - y) ** 2).mean()),
        (nn.l1_loss, np.abs(x - y).mean()),
        (nn.huber_loss, scipy.special.huber(1.0, x - y).mean()),
    ):
        assert abs(float(ours(ruda.asarray(x), ruda.asarray(y))) - wanted) < 1e-12
        ruda.gradcheck(lambda x, f=ours: f(x, ruda.asarray(y)), x)
    p = rng.random(6)
    sigmoid = scipy.special.expit(x)
    wanted = -(p * np.log(sigmoid) + (1 - p) * np.log(1 - sigmoid)).mean()
    found = nn.binary_cross_entropy(ruda.asarray(x), ruda.asarray(p))
    assert abs(float(found) - wanted) < 1e-12


def test_wrong_labels():
    with pytest.raises(DTypeError, match="labels are integers"):
        nn.cross_entropy(ruda.zeros((2, 3)), ruda.zeros(2))
    with pytest.raises(ShapeError, match=r"logits of shape \(2, 3\) and labels of \(3,\)"):
        nn.cross_entropy(ruda.zeros((2, 3)), ruda.arange(3))


# ---- optimisers ----------------------------------------------------------------------------------


def sgd(p, g, s, k, lr=0.1, momentum=0.9, nesterov=False, decay=0.0):
    g = g + decay * p
    s["v"] = g if "v" not in s else momentum * s["v"] + g
    return p - lr * (g + momentum * s["v"] if nesterov else s["v"])


def adam(p, g, s, k, lr=0.1, decay=0.0, decoupled=False):
    if decay and not decoupled:
        g = g + decay * p
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0) + 0.001 * g * g
    m, v = s["m"] / (1 - 0.9**k), s["v"] / (1 - 0.999**k)
    return p * (1 - lr * decay if decoupled else 1) - lr * m / (np.sqrt(v) + 1e-8)


OPTIMISERS = [
    (lambda p: nn.SGD(p, 0.1, momentum=0.9), sgd),
    (lambda p: nn.SGD(p, 0.1, momentum=0.9, nesterov=True), lambda *a: sgd(*a, nesterov=True)),
    (lambda p: nn.SGD(p, 0.1, momentum=0.9, weight_decay=0.1), lambda *a: sgd(*a, decay=0.1)),
    (lambda p: nn.Adam(p, 0.1), adam),
    (lambda p: nn.Adam(p, 0.1, weight_decay=0.1), lambda *a: adam(*a, decay=0.1)),
    (lambda p: nn.AdamW(p, 0.1, weight_decay=0.1), lambda *a: adam(*a, decay=0.1, decoupled=True)),
]


@pytest.mark.parametrize(("make", "formula"), OPTIMISERS)
def test_optimisers_follow_their_formulas(make, formula, device, rng):
    start = rng.uniform(-0.5, 0.5, size=5)
    p = nn.parameter(start.astype("f4"), device=device)
    wanted, state, optimiser = start.astype("f4").astype("f8"), {}, make([p])
    for k in range(1, 6):
        ruda.sum(p**4 + 3 * p).backward()
        optimiser.step()
        optimiser.zero_grad()
        wanted = formula(wanted, 4 * wanted**3 + 3, state, k)
        np.testing.assert_allclose(p.numpy(), wanted, rtol=1e-4, atol=1e-5)
    assert p.requires_grad and p.grad is None


# ---- data ----------------------------------------------------------------------------------------


def idx(array, magic=8):
    head = bytes([0, 0, magic, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype("u1").tobytes()


def write_mnist(folder, rng, packed=True):
    folder.mkdir(exist_ok=True)
    for name, n in (("train", 20), ("t10k", 5)):
        for kind, array in (
            ("images-idx3", rng.integers(0, 256, (n, 28, 28))), ("labels-idx1", np.arange(n) % 10),
        ):  # fmt: skip
            data = idx(array)
            path = folder / f"{name}-{kind}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(data) if packed else data)


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_from_idx_files(tmp_path, rng, packed):
    write_mnist(tmp_path, rng, packed)
    found = mnist(tmp_path)
    assert found.train_images.shape == (20, 28, 28) and found.test_labels.tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert found.train_images.dtype == np.float32 and found.train_images.min() >= 0
    assert found.train_images.max() <= 1


def test_mnist_from_csv_files(tmp_path, rng):
    for name, n in (("train", 3), ("test", 2)):
        rows = np.concatenate([np.arange(n)[:, None], rng.integers(0, 256, (n, 784))], axis=1)
        head = "label," + ",".join(f"p{k}" for k in range(784)) if name == "train" else ""
        np.savetxt(tmp_path / f"mnist_{name}.csv", rows, "%d", ",", header=head, comments="")
    with open(tmp_path / "mnist_test.csv") as file:
        text = file.read().lstrip("\n")
    (tmp_path / "mnist_test.csv").write_text(text)
    found = mnist(tmp_path)
    assert found.train_labels.tolist() == [0, 1, 2] and found.test_images.shape == (2, 28, 28)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda p: p.write_bytes(b"no"), "is not an IDX file"),
        (lambda p: p.write_bytes(p.read_bytes()[:6]), "ends in its header"),
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), "ends after"),
        (lambda p: p.write_bytes(b"\0\0\x08\1\xff\xff\xff\xff"), "says that it holds"),
        (lambda p: p.unlink(), "has neither t10k-labels"),
        (lambda p: p.write_bytes(idx(np.zeros(4))), "5 images and 4 labels"),
    ],
)
def test_damaged_files_are_refused(tmp_path, rng, damage, text):
    write_mnist(tmp_path, rng, packed=False)
    damage(tmp_path / "t10k-labels-idx1-ubyte")
    with pytest.raises(UsageError, match=text):
        mnist(tmp_path)


def test_batches_have_every_row_once(rng):
    x = np.arange(10)
    found = [b.tolist() for (b,) in ruda.data.batches(x, size=4, rng=rng)]
    assert [len(b) for b in found] == [4, 4, 2] and sorted(np.concatenate(found)) == x.tolist()
    assert len(list(ruda.data.batches(x, size=4, drop_last=True))) == 2
    with pytest.raises(ValueError, match="lengths"):
        next(ruda.data.batches(x, x[:3], size=2))


# ---- training ------------------------------------------------------------------------------------


def test_training_reaches_an_accuracy(tmp_path):
    """Real digits: 360 images that the network has not seen."""
    assert train("digits", epochs=6, output=str(tmp_path / "run")) > 0.94
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [r["epoch"] for r in rows] == list(range(1, 7)) and rows[-1]["loss"] < rows[0]["loss"]


def weights(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "checkpoint" / "model.safetensors")


def test_a_resumed_run_ends_with_the_same_bits(tmp_path, monkeypatch):
    train("digits", epochs=3, output=str(tmp_path / "whole"))
    # The second run is stopped while its second epoch is under way.
    calls = []
    step = nn.AdamW.step

    def stops(self):
        calls.append(1)
        if len(calls) == 15:
            raise KeyboardInterrupt
        step(self)

    with monkeypatch.context() as patched:
        patched.setattr(nn.AdamW, "step", stops)
        with pytest.raises(KeyboardInterrupt):
            train("digits", epochs=3, output=str(tmp_path / "parts"))
    train("digits", epochs=3, output=str(tmp_path / "parts"), resume=True)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    for name in whole:
        assert whole[name].tobytes() == parts[name].tobytes()
    with pytest.raises(UsageError, match="of --seed 0"):
        train("digits", epochs=4, seed=1, output=str(tmp_path / "parts"), resume=True)


def test_a_failed_save_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    net = mlp(2, np.random.default_rng(0))
    optimiser = nn.AdamW(net.parameters())
    checkpoint.save(tmp_path / "c", net, optimiser, {"epoch": 1})
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        checkpoint.save(tmp_path / "c", net, optimiser, {"epoch": 2})
    assert checkpoint.load(tmp_path / "c", net, optimiser)["epoch"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_process_that_dies_between_two_renames(tmp_path):
    net = mlp(2, np.random.default_rng(0))
    optimiser = nn.AdamW(net.parameters())
    checkpoint.save(tmp_path / "c", net, optimiser, {"epoch": 1})
    os.replace(tmp_path / "c", tmp_path / "c.old-123")
    assert checkpoint.load(tmp_path / "c", net, optimiser)["epoch"] == 1


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_damaged_checkpoints_are_refused(tmp_path, name):
    net = mlp(2, np.random.default_rng(0))
    optimiser = nn.AdamW(net.parameters())
    ruda.sum(net(ruda.ones((1, 4)))).backward()
    optimiser.step()
    checkpoint.save(tmp_path / "c", net, optimiser, {"epoch": 1})
    path = tmp_path / "c" / name
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(UsageError, match="is damaged"):
        checkpoint.load(tmp_path / "c", net, optimiser)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_the_command(tmp_path, capsys, model):
    run = ["train", "digits", "--epochs", "1", "--model", model, "--output", str(tmp_path / "run")]
    assert main(run) == 0
    assert "test accuracy" in capsys.readouterr().out
    assert main(["train", "mnist", "--data", str(tmp_path)]) == 1
    assert "has neither" in capsys.readouterr().err
    other = {"mlp": "cnn", "cnn": "mlp"}[model]
    assert main([*run, "--resume", "--model", other]) == 1
    assert f"the checkpoint is of --model {model}" in capsys.readouterr().err
    assert main([*run, "--resume"]) == 0
    assert "1 epochs are done" in capsys.readouterr().out
    (tmp_path / "file").write_text("")
    for option, value in (
        ("--lr", "-1"),
        ("--save-every", "-1"),
        ("--output", str(tmp_path / "file")),
    ):
        assert main([*run, option, value]) == 1
        assert f"{option} {value}" in capsys.readouterr().err
    resume = ["train", "digits", "--resume", "--output", str(tmp_path / "none")]
    assert main(resume) == 1
    assert "there is no checkpoint" in capsys.readouterr().err
