"""`ruda train`: a small network learns handwritten digits.

A run is decided by its seed: what it draws at an epoch depends on the seed and the epoch alone, so
that a run that was stopped and resumed ends with the parameters of one that was not.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from ruda import data
from ruda import tensor as t
from ruda.errors import UsageError
from ruda.nn import checkpoint
from ruda.nn.convolution import Conv2d, MaxPool
from ruda.nn.functional import relu
from ruda.nn.layers import Dropout, Linear, Sequential, flatten
from ruda.nn.losses import cross_entropy
from ruda.nn.module import Module
from ruda.nn.optim import AdamW
from ruda.settings import config, settings


def mlp(size: int, rng: np.random.Generator) -> Module:
    """Two hidden layers, for images of size x size pixels."""
    pixels = size * size
    return Sequential(
        flatten, Linear(pixels, 256, rng=rng), relu, Linear(256, 128, rng=rng), relu,
        Linear(128, 10, rng=rng),
    )  # fmt: skip


def cnn(size: int, rng: np.random.Generator) -> Module:
    """Two convolutions, each with pooling, and two layers on what they see."""
    side = size // 2 // 2
    return Sequential(
        channel, Conv2d(1, 16, 3, padding=1, rng=rng), MaxPool(2), relu,
        Conv2d(16, 32, 3, padding=1, rng=rng), MaxPool(2), relu,
        flatten, Linear(32 * side * side, 128, rng=rng), relu, Dropout(0.25, rng=rng),
        Linear(128, 10, rng=rng),
    )  # fmt: skip


def channel(x: t.Tensor) -> t.Tensor:
    """Images with an axis for their one colour."""
    return x[:, None]


MODELS = {"mlp": mlp, "cnn": cnn}


def accuracy(model: Module, images: Any, labels: Any, device: str) -> float:
    """The share of images whose label is the greatest output."""
    model.eval()
    right = 0
    with t.no_grad():
        for x, y in data.batches(images, labels, size=1024, device=device):
            scores = model(x).numpy()
            right += int((scores.argmax(1) == y.numpy()).sum())
    model.train()
    return right / len(labels)


def train(
    dataset: str,
    *,
    folder: str | None = None,
    epochs: int = 10,
    batch: int = 128,
    lr: float = 2e-3,
    seed: int = 0,
    device: str = "cpu",
    output: str = "runs/digits",
    resume: bool = False,
    model: str = "mlp",
) -> float:
    """Train, and report as it goes; the accuracy on the test images.

    Writes `metrics.jsonl` and a checkpoint after every epoch into `output`. Ctrl-C ends the run
    after its last whole epoch was saved.
    """
    if dataset not in ("digits", "mnist"):
        raise UsageError(f"no data set {dataset!r}; there are digits and mnist")
    if model not in MODELS:
        raise UsageError(f"no model {model!r}; there are {' and '.join(MODELS)}")
    images = data.digits() if dataset == "digits" else data.mnist(folder)
    with config(deterministic=True):
        return _train(images, epochs, batch, lr, seed, device, Path(output), resume, model)


def _train(
    images: data.Images,
    epochs: int,
    batch: int,
    lr: float,
    seed: int,
    device: str,
    output: Path,
    resume: bool,
    name: str,
) -> float:
    size = images.train_images.shape[1]
    model = MODELS[name](size, np.random.default_rng(seed)).to(device)
    optimizer = AdamW(model.parameters(), lr=lr)
    saved, metrics = output / "checkpoint", output / "metrics.jsonl"
    output.mkdir(parents=True, exist_ok=True)
    first, best = 0, 0.0
    if resume:
        state = checkpoint.load(saved, model, optimizer)
        first, best = int(state["epoch"]), float(state["accuracy"])
        if state["seed"] != seed or state["batch"] != batch:
            raise UsageError(
                f"the checkpoint is of --seed {state['seed']} --batch {state['batch']}"
            )
    else:
        metrics.unlink(missing_ok=True)
    steps = -(-len(images.train_labels) // batch)
    try:
        for epoch in range(first, epochs):
            rng = np.random.default_rng((seed, epoch))
            model.seed((seed, epoch))
            start, total = time.perf_counter(), 0.0
            # The rate falls to a tenth along a cosine.
            share = 0.5 + 0.5 * float(np.cos(np.pi * epoch / max(1, epochs)))
            optimizer.lr = lr * (0.1 + 0.9 * share)
            for k, (x, y) in enumerate(
                data.batches(
                    images.train_images, images.train_labels, size=batch, rng=rng, device=device
                )
            ):
                loss = cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                value = float(loss)
                if not np.isfinite(value):
                    raise UsageError(f"the loss is {value} at step {epoch * steps + k}")
                total += value
                show(epoch, epochs, k + 1, steps, total / (k + 1), batch, start)
            best = accuracy(model, images.test_images, images.test_labels, device)
            seconds = time.perf_counter() - start
            row = {
                "step": (epoch + 1) * steps, "epoch": epoch + 1, "loss": total / steps,
                "test_accuracy": best, "seconds": seconds,
            }  # fmt: skip
            with open(metrics, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            state = {"epoch": epoch + 1, "accuracy": best, "seed": seed, "batch": batch}
            checkpoint.save(saved, model, optimizer, state)
            if settings.progress:
                print(f"\r{' ' * 78}\r", end="", file=sys.stderr)
            print(
                f"epoch {epoch + 1:3} of {epochs}   loss {total / steps:.4f}   "
                f"test accuracy {100 * best:.2f} %   "
                f"{len(images.train_labels) / seconds:,.0f} images/s"
            )
    except KeyboardInterrupt:
        print(f"\nstopped; go on with --resume ({saved})", file=sys.stderr)
        raise
    return best


def show(
    epoch: int, epochs: int, k: int, steps: int, loss: float, batch: int, start: float
) -> None:
    """The line that moves."""
    if not settings.progress or not sys.stderr.isatty():
        return
    rate = k * batch / (time.perf_counter() - start)
    bar = "#" * (20 * k // steps)
    print(
        f"\repoch {epoch + 1} of {epochs} [{bar:20}] loss {loss:.4f} {rate:,.0f} images/s",
        end="",
        file=sys.stderr,
    )
