"""`ruda train`: small networks learn handwritten digits, or to write as a text does.

A run is decided by its seed: what it draws depends on the seed and the step's number alone, so that
a run that was stopped and resumed, at any step, ends with the parameters of one that was not.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ruda import data
from ruda import tensor as t
from ruda.errors import UsageError
from ruda.nn import checkpoint, picture, schedules
from ruda.nn.convolution import Conv2d, MaxPool
from ruda.nn.functional import gelu, relu
from ruda.nn.layers import Dropout, Embedding, Linear, Sequential, flatten
from ruda.nn.losses import cross_entropy
from ruda.nn.module import Module
from ruda.nn.optim import AdamW, clip_grad_norm
from ruda.nn.transformer import PositionalEncoding, TransformerEncoder, causal_mask
from ruda.settings import config, settings
from ruda.tensor.grad import first_not_finite

Batches = Iterator[tuple[t.Tensor, t.Tensor]]


@dataclass(frozen=True)
class Task:
    """What is learnt: a model, an epoch's batches, how good it is, and what to say at the end."""

    model: Module
    steps: int  # of an epoch
    batches: Callable[[np.random.Generator], Batches]  # in an order that is drawn
    evaluate: Callable[[Module], dict[str, float]]
    units: str  # what a batch holds, for the rate
    per_step: int
    clip: float = 0.0  # the most that the gradients' norm may be; 0: anything
    wrong: Callable[[Module], list[Any]] = lambda model: []  # for the picture
    sample: Callable[[Module], str] = lambda model: ""


# ---- digits --------------------------------------------------------------------------------------


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


def answers(model: Module, images: Any, device: str) -> Any:
    """The label whose output is greatest, of each image."""
    model.eval()
    with t.no_grad():
        found = [
            model(x).numpy().argmax(1) for (x,) in data.batches(images, size=1024, device=device)
        ]
    model.train()
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def digits(images: data.Images, name: str, batch: int, seed: int, device: str) -> Task:
    """Classify images."""
    size = images.train_images.shape[1]

    def evaluate(model: Module) -> dict[str, float]:
        found = answers(model, images.test_images, device)
        return {"test_accuracy": float((found == images.test_labels).mean())}

    def wrong(model: Module) -> list[Any]:
        found = answers(model, images.test_images, device)
        rows = np.flatnonzero(found != images.test_labels)[:10]
        return [(images.test_images[k], int(images.test_labels[k]), int(found[k])) for k in rows]

    def batches(rng: np.random.Generator) -> Any:
        return data.batches(
            images.train_images, images.train_labels, size=batch, rng=rng, device=device
        )

    return Task(
        MODELS[name](size, np.random.default_rng(seed)).to(device),
        -(-len(images.train_labels) // batch), batches, evaluate, "images", batch, wrong=wrong,
    )  # fmt: skip


# ---- text ----------------------------------------------------------------------------------------


def smooth(x: t.Tensor) -> t.Tensor:
    """`gelu` in its form without erf, which NumPy lacks."""
    return gelu(x, "tanh")


class Writer(Module):
    """A transformer that gives, at each place of a passage, scores of the next character."""

    def __init__(
        self,
        characters: int,
        size: int = 64,
        heads: int = 4,
        layers: int = 2,
        *,
        rng: np.random.Generator,
    ) -> None:
        self.table = Embedding(characters, size, rng=rng)
        self.positions = PositionalEncoding(size, 1024)
        self.body = TransformerEncoder(
            layers,
            size,
            heads,
            inner=4 * size,
            dropout=0.0,
            activation=smooth,
            before=True,
            rng=rng,
        )
        self.last = Linear(size, characters, rng=rng)

    def forward(self, x: t.Tensor) -> t.Tensor:
        mask = causal_mask(x.shape[1], x.device)
        found: t.Tensor = self.last(self.body(self.positions(self.table(x)), mask=mask))
        return found


def write(
    model: Module, known: data.Text, start: str, count: int, length: int, seed: int, device: str
) -> str:
    """Text that a model makes up, a character at a time."""
    rng, numbers = np.random.default_rng(seed), [known.characters.index(c) for c in start]
    model.eval()
    with t.no_grad():
        for _ in range(count):
            row = t.asarray(np.array([numbers[-length:]]), device=device)
            scores = model(row).numpy()[0, -1].astype(np.float64) / 0.8
            chances = np.exp(scores - scores.max())
            numbers.append(int(rng.choice(len(scores), p=chances / chances.sum())))
    model.train()
    return known.decode(numbers)


def writing(known: data.Text, batch: int, length: int, steps: int, seed: int, device: str) -> Task:
    """Predict the next character of a text."""
    length = min(length, len(known.test) - 1)

    def evaluate(model: Module) -> dict[str, float]:
        model.eval()
        with t.no_grad():
            losses = [
                float(cross_entropy(model(x), y))
                for x, y in data.passages(
                    known.test, length, batch, 8, np.random.default_rng(0), device
                )
            ]
        model.train()
        return {"test_loss": float(np.mean(losses))}

    def batches(rng: np.random.Generator) -> Batches:
        return data.passages(known.train, length, batch, steps, rng, device)

    model = Writer(len(known.characters), rng=np.random.default_rng(seed)).to(device)
    return Task(
        model, steps, batches, evaluate, "characters", batch * length, 1.0,
        sample=lambda m: write(m, known, known.decode(known.test[:8]), 120, length, seed, device),
    )  # fmt: skip


# ---- the run -------------------------------------------------------------------------------------


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
    save_every: int = 0,
    steps: int = 200,
    download: bool = False,
) -> float:
    """Train, and report as it goes; the accuracy on the test images, or a text's test loss.

    folder      MNIST's files, or the text
    download    bring MNIST's files first, into `folder` or ruda's cache folder
    save_every  steps from one checkpoint to the next within an epoch; 0: after every epoch alone
    steps       of an epoch, for a text

    Writes `metrics.jsonl`, `training.png` and a checkpoint into `output`. Ctrl-C saves and ends.
    """
    if dataset not in ("digits", "mnist", "text"):
        raise UsageError(f"no data set {dataset!r}; there are digits, mnist and text")
    if model not in MODELS:
        raise UsageError(f"no model {model!r}; there are {' and '.join(MODELS)}")
    for name, value in (("epochs", epochs), ("batch", batch), ("steps", steps)):
        if value < 1:
            raise UsageError(f"--{name} {value}: at least 1")
    if not 0 < lr < np.inf:
        raise UsageError(f"--lr {lr}: more than 0")
    if save_every < 0:
        raise UsageError(f"--save-every {save_every}: 0, for every epoch alone, or more")
    if download:
        if dataset != "mnist":
            raise UsageError(f"--download is for mnist; {dataset} needs none")
        folder = str(data.download(folder))
    checkpoint.library()  # before the first epoch, not after it
    told: dict[str, Any] = {"dataset": dataset, "model": model, "seed": seed, "batch": batch}
    with config(deterministic=True):
        if dataset == "text":
            told["epoch-steps"] = steps
            task = writing(data.text(folder), batch, 64, steps, seed, device)
        else:
            images = data.digits() if dataset == "digits" else data.mnist(folder)
            task = digits(images, model, batch, seed, device)
        return run(task, told, epochs, lr, seed, Path(output), resume, save_every)


def run(
    task: Task,
    told: dict[str, Any],
    epochs: int,
    lr: float,
    seed: int,
    output: Path,
    resume: bool,
    save_every: int,
) -> float:
    """The steps of all epochs, from the beginning or from a checkpoint."""
    model = task.model
    falling = schedules.cosine(lr, max(1, epochs * task.steps), lr / 10)
    optimizer = AdamW(model.parameters(), lr=falling)
    saved, metrics = output / "checkpoint", output / "metrics.jsonl"
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {output}: {error.strerror}") from None
    done, total, best = 0, 0.0, 0.0
    if resume:
        state = checkpoint.notes(saved)
        for name in told:  # before the weights, whose shapes may differ by then
            if state.get(name) != told[name]:
                option = name if name == "dataset" else f"--{name}"
                raise UsageError(f"the checkpoint is of {option} {state.get(name)}")
        checkpoint.load(saved, model, optimizer)
        done, total, best = int(state["done"]), float(state["total"]), float(state["best"])
        if done >= epochs * task.steps:
            print(f"all {done // task.steps} epochs are done: a larger --epochs goes on")
    forget_after(metrics, done if resume else 0)

    def save() -> None:
        state = {**told, "done": done, "total": total, "best": best}
        checkpoint.save(saved, model, optimizer, state)

    with interruptible() as stopped:
        for epoch in range(done // task.steps, epochs):
            start, begun = time.perf_counter(), done
            rng = np.random.default_rng((seed, epoch))
            for k, (x, y) in enumerate(task.batches(rng)):
                if epoch * task.steps + k < done:
                    continue  # before the checkpoint
                model.seed((seed, done))
                loss = cross_entropy(model(x), y)
                value = float(loss)
                if not np.isfinite(value):
                    raise UsageError(
                        f"the loss is {value} at step {done}: {first_not_finite(loss)}"
                    )
                loss.backward()
                if task.clip:
                    clip_grad_norm(optimizer.parameters, task.clip)
                optimizer.step()
                optimizer.zero_grad()
                done, total = done + 1, total + value
                rate = (done - begun) * task.per_step / (time.perf_counter() - start)
                show(epoch, epochs, k + 1, task, total / (k + 1), rate)
                if stopped.is_set():
                    save()
                    print(f"\nstopped at step {done}, and saved: go on with --resume",
                          file=sys.stderr)  # fmt: skip
                    raise KeyboardInterrupt
                if save_every and done % save_every == 0 and k + 1 < task.steps:
                    save()
            found = task.evaluate(model)
            best = next(iter(found.values()))
            seconds = time.perf_counter() - start
            row = {"step": done, "epoch": epoch + 1, "loss": total / task.steps, **found,
                   "seconds": seconds}  # fmt: skip
            with open(metrics, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            total = 0.0
            save()
            report(epoch, epochs, row, (done - begun) * task.per_step / seconds, task)
    finish(task, output, metrics)
    return best


@contextlib.contextmanager
def interruptible() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets, so that a step is never cut in two; the second one interrupts."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def handler(number: int, frame: Any) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def forget_after(metrics: Path, step: int) -> None:
    """Leave the rows that a checkpoint knows of: later ones will be written again."""
    if not metrics.exists():
        return
    kept = []
    for line in metrics.read_text("utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError):  # the process died while it wrote this line
            continue
    metrics.write_text("".join(f"{line}\n" for line in kept), "utf-8")


def report(epoch: int, epochs: int, row: dict[str, Any], rate: float, task: Task) -> None:
    """The line of an epoch."""
    if settings.progress and sys.stderr.isatty():
        print(f"\r{' ' * 78}\r", end="", file=sys.stderr)
    if "test_accuracy" in row:
        measured = f"test accuracy {100 * row['test_accuracy']:.2f} %"
    else:
        measured = f"test loss {row['test_loss']:.4f}"
    print(
        f"epoch {epoch + 1:3} of {epochs}   loss {row['loss']:.4f}   {measured}   "
        f"{rate:,.0f} {task.units}/s"
    )


def finish(task: Task, output: Path, metrics: Path) -> None:
    """The picture, and a sample."""
    rows = [json.loads(line) for line in metrics.read_text("utf-8").splitlines()]
    try:
        picture.draw(output / "training.png", rows, task.wrong(task.model))
        print(f"curves in {output / 'training.png'}")
    except ImportError:
        print("no picture of the curves: pip install pillow", file=sys.stderr)
    sample = task.sample(task.model)
    if sample:
        print(f"---\n{sample}\n---")


def show(epoch: int, epochs: int, k: int, task: Task, loss: float, rate: float) -> None:
    """The line that moves."""
    if not settings.progress or not sys.stderr.isatty():
        return
    bar = "#" * (20 * k // task.steps)
    print(
        f"\repoch {epoch + 1} of {epochs} [{bar:20}] loss {loss:.4f} {rate:,.0f} {task.units}/s",
        end="",
        file=sys.stderr,
    )
