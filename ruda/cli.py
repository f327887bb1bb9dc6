"""The command `ruda`: one row per subcommand, and each imports what it needs when it runs.

A mistake that ruda explains is printed as that explanation, with exit status 1; `RUDA_DEBUG=1`
shows the traceback too.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ruda.errors import KernelError, RudaError, UsageError
from ruda.settings import described, settings


class Argument(NamedTuple):
    """One argument of a subcommand, and what `argparse` is told of it."""

    name: str
    help: str
    options: dict[str, Any] = {}  # noqa: RUF012 - nobody writes it


class Command(NamedTuple):
    name: str
    run: Callable[[argparse.Namespace], int | None]
    help: str
    arguments: tuple[Argument, ...] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    chosen = _parser().parse_args(arguments)
    try:
        status: int = chosen.run(chosen) or 0
        sys.stdout.flush()
        return status
    except RudaError as error:
        if settings.debug >= 1:
            raise
        print(_message(error), file=sys.stderr)
        return 1
    except BrokenPipeError:  # `ruda cache list | head`: the reader has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    import ruda

    parser = argparse.ArgumentParser(
        "ruda",
        description=ruda.__doc__,
        epilog=f"settings, in the environment or ruda.config(...):\n{described()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ruda {ruda.__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help)
        subparser.set_defaults(run=command.run)
        for argument in command.arguments:
            subparser.add_argument(argument.name, help=argument.help, **argument.options)
    return parser


def _message(error: RudaError) -> str:
    if isinstance(error, KernelError):  # Python itself prints file, line, caret and notes
        return "".join(traceback.format_exception_only(error)).rstrip()
    return "\n".join([f"ruda: {error}", *getattr(error, "__notes__", [])])


def _load(module: str, name: str, extra: str = "") -> Callable[..., Any]:
    """A function that is imported only now; `UsageError` where it is missing."""
    try:
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
    except ModuleNotFoundError as error:
        if error.name and module.startswith(error.name):
            raise UsageError(f"this ruda has no {module}") from error
        remedy = f"; `pip install 'ruda[{extra}]'`" if extra else ""
        raise UsageError(f"the Python package {error.name} is missing{remedy}") from error
    except AttributeError as error:
        raise UsageError(f"this ruda has no {module}.{name}") from error


# ------------------------------------------------------------------------------------- commands


def info(chosen: argparse.Namespace) -> None:
    """What a bug report needs."""
    from ruda.jit import cache, keys

    parts = cache.environment_parts("cpu")
    for name in ("ruda", "python", "numba", "llvmlite", "numpy"):
        print(f"{name:14}{parts[name]}")
    for package in OPTIONAL:
        if (version := keys.package_version(package)) != "absent":
            print(f"{package:14}{version}")
    print(f"{'machine':14}{parts['machine']}, {parts['libc']}")
    print(f"{'cpu':14}{parts['cpu']}; {_cpu_count()} available")
    print(f"{'features':14}{parts['cpu features']}")
    for device in _devices():
        print(f"{'device':14}{device}")
    changed = [(row, value) for row, value in settings if value != row.default]
    for row, value in changed:
        print(f"{'setting':14}{row.variable}={value!r} (default {row.default!r})")
    if not changed:
        print(f"{'settings':14}all at their defaults; `ruda --help` lists them")
    for name, value in sorted(os.environ.items()):
        if name.startswith(FOREIGN):
            print(f"{'variable':14}{name}={value}")
    counts = cache.statistics()
    size = f"{counts['entries']} kernels, {_size(counts['bytes'])} of "
    print(f"{'cache':14}{_cache_path()}: {size}{_size(settings.cache_bytes)}")


OPTIONAL = ("numba-cuda", "cuda-bindings", "wgpu", "mpi4py", "ml_dtypes", "scikit-learn", "pillow")
# Variables of others that change what a kernel is or how fast it runs.
FOREIGN = ("NUMBA_", "CUDA_", "OMP_", "MKL_", "OPENBLAS_", "ASCEND_", "WGPU_")


def _cpu_count() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _devices() -> list[str]:
    """A line a device; of a kind that has none, why."""
    from ruda import backends

    lines = []
    for kind in backends.MODULES:
        try:
            backend: Any = backends.get(kind)
            there = [f"{d.name}: {d.description} ({d.kind})" for d in backend.devices()]
            lines += there or [f"no {kind}: {backend.missing()}"]
        except Exception as error:  # a broken driver is what the report is about
            lines.append(f"{kind} cannot be listed: {type(error).__name__}: {error}")
    return lines


def _cache_path() -> str:
    from ruda.jit import cache

    if not settings.cache:
        return "off"
    try:
        return cache.directory()
    except OSError as error:
        return str(error)


def cache_command(chosen: argparse.Namespace) -> None:
    from ruda.jit import cache

    match chosen.action:
        case "path":
            print(_cache_path())
        case "clear":
            print(f"removed {cache.clear(chosen.kernel)} kernels")
        case "list":
            _list_cache(chosen.kernel)


def _list_cache(kernel: str | None) -> None:
    from ruda.jit import cache

    every = cache.entries()
    found = [e for e in every if kernel in (None, e.name)]
    if not found and kernel is not None:
        names = sorted({e.name for e in every if e.name})
        close = [n for n in names if n.rpartition(".")[2] == kernel]
        close = close or difflib.get_close_matches(kernel, names, 3)
        meant = f"; did you mean {' or '.join(close)}?" if close else ""
        raise UsageError(f"the cache has no kernel {kernel}{meant}")
    for entry in found:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        details = [entry.parts[part] for part in ("target", "types") if part in entry.parts]
        name = entry.name or "(no name)"
        made_for = f" ({', '.join(details)})" if details else ""
        line = f"{entry.key[:12]}  {_size(entry.size):>9}  {used}  {name}{made_for}"
        print(f"{line}  {entry.problem}".rstrip())
    print(f"{len(found)} kernels, {_size(sum(entry.size for entry in found))}")


def _size(bytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if bytes < 1024:
            return f"{bytes:.0f} B" if unit == "B" else f"{bytes:.1f} {unit}"
        bytes /= 1024
    return f"{bytes:.1f} GiB"


def compile_command(chosen: argparse.Namespace) -> None:
    """Print the source that a kernel becomes."""
    compiled = _load("ruda.jit.tools", "compile_command")
    options = {"target": chosen.target, "assembly": chosen.assembly, **_specialisation(chosen)}
    print(compiled(*_kernel(chosen.kernel), **options))


def export_command(chosen: argparse.Namespace) -> None:
    """Write a kernel as a web page."""
    export = _load("ruda.backends.wgpu.export", "export_command")
    for path in export(*_kernel(chosen.kernel), output=chosen.output, **_specialisation(chosen)):
        print(path)
    print(f"to see it: python -m http.server --bind 127.0.0.1 --directory {chosen.output}")


def check_ascend(chosen: argparse.Namespace) -> None:
    """Compile a kernel with the user's CANN."""
    check = _load("ruda.backends.ascend.check", "check_command")
    print(check(*_kernel(chosen.kernel), **_specialisation(chosen)))


def _kernel(text: str) -> tuple[str, str]:
    """File and name of `FILE:KERNEL`."""
    file, colon, kernel = text.rpartition(":")
    if not colon or not file or not kernel:
        raise UsageError(f"{text!r} is not FILE:KERNEL, such as train.py:saxpy")
    if not os.path.isfile(file):
        raise UsageError(f"there is no file {file}")
    return file, kernel


def _specialisation(chosen: argparse.Namespace) -> dict[str, Any]:
    """What the options say of types, block and constants."""
    return {
        "types": chosen.types,
        "block": _block(chosen.block),
        "constexpr": _constexpr(chosen.constexpr),
        "shared": chosen.shared,
    }


def _block(text: str) -> tuple[int, ...]:
    """The block of `--block`.

    >>> _block("256"), _block("16,8"), _block("16x8")
    ((256,), (16, 8), (16, 8))
    """
    words = text.replace("x", ",").split(",")
    try:
        block = tuple(int(word) for word in words)
    except ValueError:
        raise UsageError(f"--block {text}: expected one to three numbers, such as 16,16") from None
    if len(block) > 3 or min(block) < 1:
        raise UsageError(f"--block {text}: expected one to three positive numbers")
    return block


def _constexpr(assignments: list[str]) -> dict[str, Any]:
    """The values of `--constexpr`, each a Python literal.

    >>> _constexpr(["n=4", "eps=1e-5", "mode='same'"])
    {'n': 4, 'eps': 1e-05, 'mode': 'same'}
    """
    values = {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        try:
            if not name.isidentifier():
                raise ValueError
            values[name] = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise UsageError(
                f"--constexpr {assignment}: expected NAME=VALUE, where VALUE is a Python literal"
            ) from None
    return values


def demo(chosen: argparse.Namespace) -> int | None:
    main = _load("ruda.demo", "main", extra="demo")
    result: int | None = main(chosen.photo, small=chosen.small, output=chosen.output)
    return result


def train(chosen: argparse.Namespace) -> None:
    """Train a network on handwritten digits."""
    _load("ruda.nn.train", "train")(
        chosen.dataset,
        folder=chosen.data,
        epochs=chosen.epochs,
        batch=chosen.batch,
        lr=chosen.lr,
        seed=chosen.seed,
        device=chosen.device,
        output=chosen.output or f"runs/{chosen.dataset}",
        resume=chosen.resume,
        model=chosen.model,
        save_every=chosen.save_every,
        steps=chosen.steps,
        download=chosen.download,
    )


SPECIALISATION = (
    Argument("--types", 'types of the arguments, such as "f32[:, :], i32"', {"default": None}),
    Argument("--block", "threads of a block, such as 256 or 16,16", {"default": "256"}),
    Argument("--constexpr", "a compile-time parameter; may be repeated",
             {"action": "append", "default": [], "metavar": "NAME=VALUE"}),
    Argument("--shared", "bytes of dynamic shared memory", {"type": int, "default": 0}),
)  # fmt: skip
COMMANDS = (
    Command("demo", demo, "run kernels on a photograph, on every device present", (
        Argument("photo", "an image file; default: one that comes with scikit-learn",
                 {"nargs": "?"}),
        Argument("--small", "tile to 512 x 512 instead of 4096 x 4096", {"action": "store_true"}),
        Argument("--output", "the pictures side by side; default demo.png",
                 {"default": "demo.png", "metavar": "PNG"}),
    )),
    Command("compile", compile_command, "print what a kernel becomes for a target", (
        Argument("kernel", "the kernel, such as train.py:saxpy", {"metavar": "FILE:KERNEL"}),
        Argument("--target", "cpu, cuda, wgpu, ...; default cpu", {"default": "cpu"}),
        Argument("--assembly", "the machine code, of cpu and cuda", {"action": "store_true"}),
        *SPECIALISATION,
    )),
    Command("export", export_command, "write a kernel as a web page that runs it on WebGPU", (
        Argument("kernel", "the kernel, such as train.py:saxpy", {"metavar": "FILE:KERNEL"}),
        *SPECIALISATION,
        Argument("-o", "the folder to write; default web",
                 {"dest": "output", "default": "web", "metavar": "DIR"}),
    )),
    Command("check-ascend", check_ascend, "compile a kernel with the CANN at ASCEND_HOME_PATH", (
        Argument("kernel", "the kernel, such as train.py:saxpy", {"metavar": "FILE:KERNEL"}),
        *SPECIALISATION,
    )),
    Command("train", train, "train a network on handwritten digits, or on a text", (
        Argument("dataset", "digits (offline, scikit-learn's), mnist or text",
                 {"choices": ("digits", "mnist", "text")}),
        Argument("--data", "MNIST's folder of IDX or CSV files, or a text; default: Python's help",
                 {"metavar": "PATH"}),
        Argument("--download", "bring MNIST's files over https first, into the folder of --data or "
                 "ruda's cache", {"action": "store_true"}),
        Argument("--model", "mlp (the default) or cnn",
                 {"choices": ("mlp", "cnn"), "default": "mlp"}),
        Argument("--epochs", "default 10", {"type": int, "default": 10}),
        Argument("--batch", "images or passages of a step; default 128",
                 {"type": int, "default": 128}),
        Argument("--lr", "learning rate at the start; default 0.002",
                 {"type": float, "default": 2e-3}),
        Argument("--seed", "default 0", {"type": int, "default": 0}),
        Argument("--device", "cpu, wgpu, ...; default cpu", {"default": "cpu"}),
        Argument("--output", "folder of metrics and checkpoint; default runs/DATASET",
                 {"default": None}),
        Argument("--save-every", "steps from one checkpoint to the next; default: an epoch",
                 {"type": int, "default": 0, "metavar": "STEPS"}),
        Argument("--steps", "of an epoch of a text; default 200", {"type": int, "default": 200}),
        Argument("--resume", "go on from the checkpoint", {"action": "store_true"}),
    )),
    Command("cache", cache_command, "look at the disk cache of compiled kernels, or empty it", (
        Argument("action", "list (the default), clear or path",
                 {"choices": ("list", "clear", "path"), "nargs": "?", "default": "list"}),
        Argument("--kernel", "only this one, such as __main__.saxpy", {"default": None}),
    )),
    Command("info", info, "print what a bug report needs"),
)  # fmt: skip
