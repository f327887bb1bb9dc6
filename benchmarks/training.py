"""Training steps against PyTorch eager, and what they cost beside a forward pass and in memory.

`python -m benchmarks training` measures on the CPU with two threads, `python -m benchmarks cuda
training` on an NVIDIA GPU, where the step's loss and gradients go through `@ruda.compile`. Both
sides have the same sizes, and take turns; a step ends when the parameters are changed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import ruda
from benchmarks.start import Limit
from benchmarks.timing import Row
from ruda import nn

WORDS, SIZE, LENGTH, BATCH, LAYERS = 96, 256, 128, 16, 4
ROUNDS = 9


# ---- what is trained -----------------------------------------------------------------------------


class Writer(nn.Module):
    """Scores of the next word at each place."""

    def __init__(self, rng: Any) -> None:
        self.table = nn.Embedding(WORDS, SIZE, rng=rng)
        self.body = nn.TransformerEncoder(
            LAYERS, SIZE, 4, inner=4 * SIZE, dropout=0.0, before=True, rng=rng
        )
        self.last = nn.Linear(SIZE, WORDS, rng=rng)

    def forward(self, x: Any) -> Any:
        return self.last(self.body(self.table(x), mask=nn.causal_mask(LENGTH, x.device)))


def perceptron(rng: Any) -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 256, rng=rng), nn.relu, nn.Linear(256, 128, rng=rng), nn.relu,
        nn.Linear(128, 10, rng=rng),
    )  # fmt: skip


def torchs(name: str) -> Any:
    """The same in PyTorch."""
    import torch
    from torch.nn import Embedding, Linear, Module, ReLU, Sequential

    if name == "MLP":
        return Sequential(Linear(784, 256), ReLU(), Linear(256, 128), ReLU(), Linear(128, 10))

    class TorchWriter(Module):
        def __init__(self) -> None:
            super().__init__()
            layer = torch.nn.TransformerEncoderLayer(
                SIZE, 4, 4 * SIZE, dropout=0.0, batch_first=True, norm_first=True
            )
            self.table, self.last = Embedding(WORDS, SIZE), Linear(SIZE, WORDS)
            norm = torch.nn.LayerNorm(SIZE)
            self.body = torch.nn.TransformerEncoder(
                layer, LAYERS, norm=norm, enable_nested_tensor=False
            )
            mask = torch.nn.Transformer.generate_square_subsequent_mask(LENGTH)
            self.register_buffer("mask", mask)

        def forward(self, x: Any) -> Any:
            return self.last(self.body(self.table(x), mask=self.mask, is_causal=True))

    return TorchWriter()


def data(name: str) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    if name == "MLP":
        return rng.standard_normal((128, 784)).astype(np.float32), rng.integers(0, 10, 128)
    return rng.integers(0, WORDS, (BATCH, LENGTH)), rng.integers(0, WORDS, (BATCH, LENGTH))


def our_step(name: str, device: str) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    model = (perceptron(rng) if name == "MLP" else Writer(rng)).to(device)
    optimizer = nn.AdamW(model.parameters(), lr=1e-4)
    step = nn.compiled_step(model, nn.cross_entropy, optimizer)
    x, y = (ruda.asarray(a, device=device) for a in data(name))
    return lambda: step(x, y)


def their_step(name: str, device: str) -> Callable[[], Any]:
    import torch

    model = torchs(name).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x, y = (torch.from_numpy(a).to(device) for a in data(name))

    def step() -> None:
        scores = model(x)
        loss = torch.nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), y.ravel())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---- the rows ------------------------------------------------------------------------------------


def finish(device: str) -> None:
    """Until everything that was given to a device is done."""
    if device != "cpu":
        import torch

        ruda.synchronize()
        torch.cuda.synchronize()


def in_turns(
    candidates: dict[str, Callable[[], Any]], device: str, count: int
) -> dict[str, list[float]]:
    """Seconds a call, host and device together."""
    out: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for k in range(ROUNDS):
        for name in names[k % len(names) :] + names[: k % len(names)]:
            finish(device)
            start = time.perf_counter()
            for _ in range(count):
                candidates[name]()
            finish(device)
            out[name].append((time.perf_counter() - start) / count)
    return out


def step_rows(device: str, goal: float) -> list[Row]:
    """Whole steps: loss, gradients, AdamW."""
    from ruda.tensor import execute

    out = []
    for name, count in (("MLP", 20), ("transformer", 2 if device == "cpu" else 10)):
        candidates = {"ours": our_step(name, device), "theirs": their_step(name, device)}
        for _ in range(3):
            for call in candidates.values():
                call()
            execute.wait()
        times = in_turns(candidates, device, count)
        title = f"training step of the {name} on {'the CPU' if device == 'cpu' else device}"
        note = f"{1e3 * statistics.median(times['ours']):.2f} ms"
        out.append(
            Row(title, "PyTorch", times["ours"], times["theirs"], goal, threads=2, note=note,
                fastest=device == "cpu")
        )  # fmt: skip
    return out


def backward_limits() -> list[Limit]:
    """A gradient's time beside the function's own: a chain of elementwise ops, and an MLP."""
    rng = np.random.default_rng(0)
    x = ruda.asarray(rng.standard_normal(1 << 20).astype(np.float32))
    model = perceptron(rng)
    images, labels = (ruda.asarray(a) for a in data("MLP"))

    def chain(x: Any) -> Any:
        return ruda.sum(ruda.tanh(x * 0.5 + 1.0) * ruda.exp(-x * x) + ruda.sin(x))

    cases: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "a chain of 1M": (lambda: chain(x).buffer(), lambda: ruda.grad(chain)(x).buffer()),
        "the MLP": (
            lambda: forward(model, images, labels),
            lambda: slopes(model, images, labels),
        ),
    }
    out = []
    for name, (once, back) in cases.items():
        settle(once)
        settle(back)
        times = in_turns({"forward": once, "both": back}, "cpu", 5)
        ratio = min(times["both"]) / min(times["forward"]) - 1
        out.append(Limit(f"backward of {name} beside forward", ratio, 3, "x", [ratio], ""))
    return out


def forward(model: nn.Module, x: Any, y: Any) -> None:
    with ruda.no_grad():
        nn.cross_entropy(model(x), y).buffer()


def slopes(model: nn.Module, x: Any, y: Any) -> None:
    model.zero_grad()
    nn.cross_entropy(model(x), y).backward()
    ruda.realize(*(p.grad for p in model.parameters() if p.grad is not None))


def settle(call: Callable[[], Any]) -> None:
    from ruda.tensor import execute

    for _ in range(3):
        call()
        execute.wait()


PEAK = """
import sys, tracemalloc, numpy as np, ruda
from ruda import nn
from ruda.tensor import memory
memory.LARGE = 1 << 60  # all from NumPy, which tells tracemalloc
rng = np.random.default_rng(0)
parts = [nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(128, 128, rng=rng), nn.gelu)))
         for _ in range(6)]
chosen = [ruda.checkpoint(p) if sys.argv[1] == "1" else p for p in parts]
x = ruda.asarray(rng.standard_normal((4096, 128)).astype(np.float32))
def step():
    y = x
    for part in chosen:
        y = part(y)
        ruda.realize(y)
    ruda.mean(y * y).backward()
    ruda.realize(*(p.grad for part in parts for p in part.parameters()))
step()
for part in parts: part.zero_grad()
tracemalloc.start()
before = tracemalloc.get_traced_memory()[0]
step()
print(tracemalloc.get_traced_memory()[1] - before)
"""


def peak_limit() -> Limit:
    """Memory of a step of 24 layers in 6 parts, each under `checkpoint`, against without."""
    found = []
    for chosen in ("1", "0"):
        done = subprocess.run(
            [sys.executable, "-c", PEAK, chosen], capture_output=True, text=True, check=True
        )
        found.append(float(done.stdout))
    note = f"{found[0] / 2**20:.0f} of {found[1] / 2**20:.0f} MiB"
    name = "peak memory of a 24-layer MLP with `checkpoint`, of without"
    return Limit(name, found[0] / found[1], 0.4, "x", found, note)


def adamw_row() -> Row:
    """AdamW of 100M parameters against a copy of the 28 bytes each that it must move."""
    import torch

    n = 100_000_000
    p, g = (ruda.ones(n, device="cuda") for _ in range(2))
    p.requires_grad_()
    optimizer = nn.AdamW([p], lr=1e-3)

    def step() -> None:
        p.grad = g
        optimizer.step()

    source = torch.ones(7 * n // 2, device="cuda")  # read and written once: 8 bytes each
    target = torch.empty_like(source)
    candidates = {"ours": step, "theirs": lambda: target.copy_(source)}
    for call in candidates.values():
        call()
    times = in_turns(candidates, "cuda", 10)
    note = f"{28 * n / statistics.median(times['ours']) / 1e12:.2f} TB/s"
    return Row("AdamW of 100M f32", "copy", times["ours"], times["theirs"], 0.9, note=note)


def measure(device: str) -> tuple[list[Row], list[Limit]]:
    if device == "cuda":
        return [*step_rows("cuda", 1.2), adamw_row()], []
    import torch

    torch.set_num_threads(2)
    return step_rows("cpu", 1.0), [*backward_limits(), peak_limit()]
