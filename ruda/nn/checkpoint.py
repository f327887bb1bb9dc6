"""Training state on disk: one directory, written beside the old one and then put in its place.

Weights are in safetensors' format, the optimiser's arrays too, the rest is JSON: nothing is
unpickled. A process that dies while saving leaves the last whole checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from ruda.errors import UsageError
from ruda.nn.module import Module
from ruda.nn.optim import Optimizer
from ruda.tensor import asarray


def library() -> Any:
    """The package that writes the arrays; a UsageError where it is not installed."""
    try:
        import safetensors.numpy
    except ImportError:
        raise UsageError("checkpoints need a package: pip install safetensors") from None
    return safetensors.numpy


def save(folder: Path, model: Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Write model, optimiser and a dictionary of JSON values."""
    save_file = library().save_file
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = folder.with_name(f"{folder.name}.new-{os.getpid()}")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    try:
        save_file(model.state_dict(), new / "model.safetensors")
        save_file(optimizer.arrays(), new / "optimizer.safetensors")
        grads = {
            str(k): p.grad.numpy() for k, p in enumerate(optimizer.parameters) if p.grad is not None
        }
        if grads:  # saved between the backward passes of one step
            save_file(grads, new / "gradients.safetensors")
        rate = None if callable(optimizer.lr) else optimizer.lr  # a schedule is the program's
        text = json.dumps(state | {"steps": optimizer.steps, "lr": rate})
        (new / "state.json").write_text(text, "utf-8")
        for path in new.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        old = folder.with_name(f"{folder.name}.old-{os.getpid()}")
        if folder.exists():
            os.replace(folder, old)
        os.replace(new, folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def find(folder: Path) -> Path | None:
    """The checkpoint at a path; where a process died between its two renames, the old one."""
    if (folder / "state.json").exists():
        return folder
    left = sorted(folder.parent.glob(f"{folder.name}.old-*"))
    return next((p for p in left if (p / "state.json").exists()), None)


def notes(folder: Path) -> dict[str, Any]:
    """The dictionary that was saved, without model and optimiser."""
    found = find(folder)
    if found is None:
        raise UsageError(f"there is no checkpoint at {folder}")
    try:
        state: dict[str, Any] = json.loads((found / "state.json").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"the checkpoint at {found} is damaged: {error}") from None
    return state


def load(folder: Path, model: Module, optimizer: Optimizer) -> dict[str, Any]:
    """Set model and optimiser; the dictionary that was saved with them."""
    load_file = library().load_file
    found = find(folder)
    if found is None:
        raise UsageError(f"there is no checkpoint at {folder}")
    try:
        state: dict[str, Any] = json.loads((found / "state.json").read_text("utf-8"))
        weights = load_file(found / "model.safetensors")
        arrays = load_file(found / "optimizer.safetensors")
        gradients = found / "gradients.safetensors"
        grads = load_file(gradients) if gradients.exists() else {}
        steps = int(state["steps"])
    except Exception as error:  # safetensors has an exception of its own for damaged files
        raise UsageError(f"the checkpoint at {found} is damaged: {error}") from None
    if any(not k.partition(".")[0].isdigit() for k in (*arrays, *grads)) or any(
        int(k.partition(".")[0]) >= len(optimizer.parameters) for k in (*arrays, *grads)
    ):
        raise UsageError(f"the checkpoint at {found} is of another optimiser")
    names = {id(p): name for name, p in model.named_parameters().items()}
    places = [names.get(id(p)) for p in optimizer.parameters]
    model.load_state_dict(weights)
    now = model.named_parameters()
    optimizer.parameters = [
        p if name is None else now[name]
        for p, name in zip(optimizer.parameters, places, strict=True)
    ]
    for key, array in grads.items():
        p = optimizer.parameters[int(key)]
        p.grad = asarray(np.asarray(array), device=p.device)
    optimizer.set_arrays(arrays)
    optimizer.steps = steps
    if state["lr"] is not None and not callable(optimizer.lr):
        optimizer.lr = float(state["lr"])
    return state
