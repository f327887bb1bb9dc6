"""Runs that are stopped, killed or out of space; texts, pictures, weights of PyTorch's files."""

import errno
import io
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest

import ruda
from ruda import nn
from ruda.errors import UsageError
from ruda.nn import checkpoint
from ruda.nn.train import train


def weights(folder):
    from safetensors.numpy import load_file

    return {k: v.tobytes() for k, v in load_file(folder / "checkpoint/model.safetensors").items()}


def start(folder, *more):
    command = [
        sys.executable, "-m", "ruda", "train", "digits", "--epochs", "2", "--save-every", "3",
        "--model", "cnn", "--output", str(folder), *more,
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for(folder, seconds=60):
    """Until a checkpoint within an epoch is there."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            return json.loads((folder / "checkpoint/state.json").read_text())["done"]
        except (OSError, ValueError):
            time.sleep(0.01)
    raise AssertionError("no checkpoint appeared")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    train("digits", epochs=2, model="cnn", save_every=3, output=str(folder))
    return weights(folder)


def test_a_killed_run_loses_no_more_than_an_interval(tmp_path, whole):
    rng = random.Random(0)
    for _ in range(2):
        more = ["--resume"] if (tmp_path / "checkpoint").exists() else []
        process = start(tmp_path, *more)
        try:
            wait_for(tmp_path)
            time.sleep(rng.uniform(0.0, 0.15))
        finally:
            process.kill()
            process.communicate()
        before = wait_for(tmp_path, 1) if checkpoint.find(tmp_path / "checkpoint") else 0
        assert before > 0
    train("digits", epochs=2, model="cnn", save_every=3, output=str(tmp_path), resume=True)
    assert weights(tmp_path) == whole
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == [12, 24]


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_an_interrupted_run_saves_where_it_is(tmp_path, whole):
    process = start(tmp_path)
    wait_for(tmp_path)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode != 0 and "and saved: go on with --resume" in error
    done = json.loads((tmp_path / "checkpoint/state.json").read_text())["done"]
    assert f"stopped at step {done}," in error
    train("digits", epochs=2, model="cnn", save_every=3, output=str(tmp_path), resume=True)
    assert weights(tmp_path) == whole


@pytest.mark.parametrize("dataset", ["digits", "text"])
def test_a_missing_package_is_found_before_the_first_epoch(dataset, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(UsageError, match="pip install safetensors"):
        train(dataset, epochs=1, output=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    """The device is full in the middle of a file: every file of the new one is taken in turn."""
    import safetensors.numpy

    net = nn.Linear(2, 2)
    optimiser = nn.Adam(net.parameters())
    ruda.sum(net(ruda.ones((1, 2)))).backward()
    optimiser.step()
    checkpoint.save(tmp_path / "c", net, optimiser, {"epoch": 1})
    real, write = safetensors.numpy.save_file, type(tmp_path).write_text

    def full(*arguments, **named):
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("model.safetensors", "optimizer.safetensors", "gradients.safetensors"):

        def save(arrays, path, name=name):
            real(arrays, path)
            if path.name == name:
                path.write_bytes(path.read_bytes()[:8])
                full()

        with monkeypatch.context() as patched:
            patched.setattr(safetensors.numpy, "save_file", save)
            with pytest.raises(OSError, match="No space left"):
                checkpoint.save(tmp_path / "c", net, optimiser, {"epoch": 2})
    with monkeypatch.context() as patched:
        patched.setattr(type(tmp_path), "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            checkpoint.save(tmp_path / "c", net, optimiser, {"epoch": 2})
    assert write is type(tmp_path).write_text
    assert [p.name for p in tmp_path.iterdir()] == ["c"]
    assert checkpoint.load(tmp_path / "c", net, optimiser)["epoch"] == 1


def test_gradients_between_two_passes_are_kept(tmp_path):
    net = nn.Linear(2, 1)
    optimiser = nn.SGD(net.parameters(), lr=nn.schedules.linear(1.0, 0.0, 10))
    ruda.sum(net(ruda.ones((1, 2)))).backward()
    checkpoint.save(tmp_path / "c", net, optimiser, {})
    other = nn.Linear(2, 1)
    again = nn.SGD(other.parameters(), lr=nn.schedules.linear(1.0, 0.0, 10))
    checkpoint.load(tmp_path / "c", other, again)
    for model, o in ((net, optimiser), (other, again)):
        ruda.sum(model(ruda.ones((1, 2)))).backward()
        o.step()
    for a, b in zip(net.parameters(), other.parameters(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_foreign_checkpoints_are_refused(tmp_path):
    net = nn.Linear(2, 2)
    optimiser = nn.Adam(net.parameters())
    checkpoint.save(tmp_path / "c", net, optimiser, {})
    other = nn.Linear(3, 2)
    with pytest.raises(ruda.errors.ShapeError, match="mismatched"):
        checkpoint.load(tmp_path / "c", other, nn.Adam(other.parameters()))
    for text in ("{}", "[]", "no"):
        (tmp_path / "c" / "state.json").write_text(text)
        with pytest.raises(UsageError, match="is damaged"):
            checkpoint.load(tmp_path / "c", net, optimiser)


def test_a_loss_that_is_not_finite_names_step_and_op(tmp_path, monkeypatch):
    from ruda.nn import train as module

    monkeypatch.setattr(module, "cross_entropy", lambda x, y: ruda.sum(ruda.log(x - x)))
    with pytest.raises(UsageError, match="the loss is -inf at step 0: `log` gives -inf"):
        train("digits", epochs=1, output=str(tmp_path))


# ---- text and pictures ---------------------------------------------------------------------------


def test_a_text_is_learnt_and_drawn(tmp_path, capsys):
    """A text whose next character is certain: a model that learns comes near a loss of 0."""
    file = tmp_path / "text.txt"
    file.write_text("abcdefgh\n" * 300)
    loss = train(
        "text", folder=str(file), epochs=2, steps=15, batch=8, lr=1e-2, output=str(tmp_path / "run")
    )
    assert loss < 0.5
    shown = capsys.readouterr().out
    assert "test loss" in shown and "characters/s" in shown
    from PIL import Image

    with Image.open(tmp_path / "run" / "training.png") as picture:
        assert picture.format == "PNG" and picture.size == (640, 480)
    rows = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == [15, 30] and rows[-1]["test_loss"] == loss


def test_texts_that_cannot_be_read(tmp_path):
    found = ruda.data.text()
    assert len(found.train) > 100_000 and len(found.decode(found.train[:40])) == 40
    for content, message in ((b"\xff" * 2000, "is no UTF-8 text"), (b"ab", "too short")):
        (tmp_path / "t").write_bytes(content)
        with pytest.raises(UsageError, match=message):
            ruda.data.text(tmp_path / "t")
    with pytest.raises(UsageError, match="there is no file"):
        ruda.data.text(tmp_path / "none")


# ---- PyTorch's files -----------------------------------------------------------------------------


class Named:
    """Pickled as a global of another module."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Call:
    def __init__(self, function, arguments):
        self.function, self.arguments = function, arguments


class Stored(tuple):
    pass


class Pickler(pickle._Pickler):
    """Writes what PyTorch's pickler writes, without PyTorch."""

    def persistent_id(self, value):
        return tuple(value) if isinstance(value, Stored) else None

    def save(self, value, save_persistent_id=True):
        if isinstance(value, Named):
            self.write(b"c" + f"{value.module}\n{value.name}\n".encode())
        elif isinstance(value, Call):
            self.save(value.function)
            self.save(value.arguments)
            self.write(pickle.REDUCE)
        else:
            super().save(value, save_persistent_id)


def tensor(key, count, offset, shape, strides, kind="FloatStorage"):
    stored = Stored(("storage", Named("torch", kind), key, "cpu", count))
    arguments = (
        stored,
        offset,
        shape,
        strides,
        False,
        Call(Named("collections", "OrderedDict"), ()),
    )
    return Call(Named("torch._utils", "_rebuild_tensor_v2"), arguments)


def write(path, tree, storages, program=None):
    buffer = io.BytesIO()
    Pickler(buffer, 2).dump(tree)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", buffer.getvalue() if program is None else program)
        archive.writestr("archive/byteorder", "little")
        for key, array in storages.items():
            archive.writestr(f"archive/data/{key}", array.tobytes())


def test_weights_of_pytorchs_files(tmp_path):
    data = np.arange(8, dtype="f4")
    tree = {
        "weight": tensor("0", 8, 2, (2, 3), (1, 2)), "step": 7,
        "inner": {"n": Call(Named("torch._utils", "_rebuild_parameter"),
                            (tensor("1", 1, 0, (), (), "LongStorage"), True, {}))},
        "none": tensor("0", 8, 0, (0, 3), (3, 1)),
    }  # fmt: skip
    write(tmp_path / "a.pt", tree, {"0": data, "1": np.array([5])})
    found = nn.load_pytorch(tmp_path / "a.pt")
    assert set(found) == {"weight", "inner.n", "none"}
    np.testing.assert_array_equal(found["weight"], [[2, 4, 6], [3, 5, 7]])
    assert (
        found["inner.n"] == 5 and found["inner.n"].dtype == "i8" and found["none"].shape == (0, 3)
    )


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"x": Call(Named("os", "system"), ("echo",))}, "it would call `os.system`: refused"),
        ({"x": Call(Named("builtins", "eval"), ("1",))}, "it would call `builtins.eval`"),
        ({"x": tensor("0", 8, 3, (2, 3), (3, 1))}, "lies outside its 8 elements"),
        ({"x": tensor("0", 8, -1, (1,), (1,))}, "lies outside"),
        ({"x": tensor("0", 9, 0, (9,), (1,))}, "has 32 bytes for 9 float32"),
        ({"x": tensor("7", 8, 0, (8,), (1,))}, "is damaged"),
        ({"x": tensor("0", 8, 0, (8,), (1,), "QInt8Storage")}, "of a kind that is not known"),
        ([1, 2], "it holds list"),
    ],
)
def test_files_that_would_do_anything_else_are_refused(tmp_path, tree, message):
    write(tmp_path / "a.pt", tree, {"0": np.zeros(8, "f4")})
    with pytest.raises(UsageError, match=message):
        nn.load_pytorch(tmp_path / "a.pt")


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "a.pt"
    write(path, {"x": tensor("0", 8, 0, (8,), (1,))}, {"0": np.zeros(8, "f4")})
    data = path.read_bytes()
    for part in (data[:50], data[:-30], b"", data[:100] + b"\xff" * 20 + data[120:]):
        path.write_bytes(part)
        with pytest.raises(UsageError, match=r"damaged|holds no data"):
            nn.load_pytorch(path)
    write(path, {}, {}, program=b"\x80\x02(U\x01aI5\nd.")
    with pytest.raises(UsageError, match=r"has the instruction|damaged"):
        nn.load_pytorch(path)
    with pytest.raises(UsageError, match="there is no file"):
        nn.load_pytorch(tmp_path / "none.pt")


def test_pytorchs_own_files(tmp_path):
    torch = pytest.importorskip("torch")
    peer = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(), torch.nn.Linear(8, 3)
    ).eval()
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm(2), nn.flatten, nn.Linear(8, 3)).eval()
    for saved in (peer.state_dict(), {"model": peer.state_dict(), "epoch": 3}):
        torch.save(saved, tmp_path / "a.pt")
        found = nn.load_pytorch(tmp_path / "a.pt")
        state = {
            f"layers.{k.removeprefix('model.')}": v
            for k, v in found.items() if not k.endswith("num_batches_tracked")
        }  # fmt: skip
        assert model.load_state_dict(state).complete
    x = np.random.default_rng(0).random((2, 1, 4, 4), np.float32)
    wanted = peer(torch.tensor(x)).detach().numpy()
    np.testing.assert_allclose(model(ruda.asarray(x)).numpy(), wanted, rtol=1e-5, atol=1e-6)
    for dtype in ("float16", "bfloat16", "int8", "bool", "complex64"):
        torch.save({"x": torch.ones(3).to(getattr(torch, dtype))}, tmp_path / "a.pt")
        assert nn.load_pytorch(tmp_path / "a.pt")["x"].dtype.name == dtype
    torch.save(peer, tmp_path / "a.pt")  # a whole module, not its weights
    with pytest.raises(UsageError, match=r"it would|refused|sets attributes"):
        nn.load_pytorch(tmp_path / "a.pt")
