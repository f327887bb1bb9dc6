"""Weights from PyTorch's files (.pt, .pth) without PyTorch, and without running what they say.

Such a file is a zip archive with the elements of tensors and a pickle that names them. A pickle is
a program that may call anything; the reader here knows the few instructions that dictionaries of
tensors are made of, makes tensors by itself, and refuses the rest by name.
"""

from __future__ import annotations

import pickletools
import zipfile
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from ruda.errors import UsageError

Array = np.ndarray[Any, Any]
STORAGES = {
    "FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2", "LongStorage": "<i8",
    "IntStorage": "<i4", "ShortStorage": "<i2", "CharStorage": "<i1", "ByteStorage": "<u1",
    "BoolStorage": "?", "ComplexFloatStorage": "<c8", "ComplexDoubleStorage": "<c16",
    "BFloat16Storage": "bfloat16",
}  # fmt: skip
PLAIN = (
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE",
    "SHORT_BINBYTES", "BINBYTES",
)  # fmt: skip
VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
MAKES = {
    ("collections", "OrderedDict"), ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
}  # fmt: skip
MARK = object()


class Name(NamedTuple):
    """Something that a pickle would import."""

    module: str
    name: str


class Storage(NamedTuple):
    """Elements of an archive."""

    dtype: str
    key: str
    elements: int


def load_pytorch(path: str | PathLike[str]) -> dict[str, Array]:
    """A file's state dict as NumPy arrays by name; nested dictionaries get names with dots.

    For `Module.load_state_dict`. A file of another kind, a damaged one, and one with anything but
    tensors, numbers, strings, lists and dictionaries are refused with a `UsageError`.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _State(archive).read()
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise UsageError(
            f"{path} is no archive of PyTorch's, or is damaged: {error} "
            "(files from before PyTorch 1.6 are to be saved anew)"
        ) from None
    except Exception as error:  # a damaged pickle, in one of many ways
        raise UsageError(f"{path} is damaged: {type(error).__name__}: {error}") from None


class _State:
    def __init__(self, archive: zipfile.ZipFile) -> None:
        self.archive = archive
        programs = [n for n in archive.namelist() if n.endswith("/data.pkl")]
        if len(programs) != 1:
            raise UsageError("this archive holds no data.pkl: it is not PyTorch's")
        self.program, self.root = programs[0], programs[0][: -len("data.pkl")]
        order = f"{self.root}byteorder"
        if order in archive.namelist() and archive.read(order) != b"little":
            raise UsageError("the elements are big-endian")

    def read(self) -> dict[str, Array]:
        top = self.run(self.archive.read(self.program))
        if not isinstance(top, dict):
            raise UsageError(f"it holds {type(top).__name__}, not a dictionary of tensors")
        found: dict[str, Array] = {}
        _collect("", top, found)
        return found

    def run(self, program: bytes) -> Any:
        """What the pickle describes; an interpreter of the instructions that are harmless."""
        stack: list[Any] = []
        memo: dict[int, Any] = {}

        def since_mark() -> list[Any]:
            at = max(k for k, v in enumerate(stack) if v is MARK)
            items = stack[at + 1 :]
            del stack[at:]
            return items

        argument: Any
        for code, argument, place in pickletools.genops(program):
            match code.name:
                case "PROTO" | "FRAME":
                    pass
                case "MARK":
                    stack.append(MARK)
                case "GLOBAL":
                    stack.append(Name(*argument.split(" ")))
                case "STACK_GLOBAL":
                    name, module = stack.pop(), stack.pop()
                    stack.append(Name(module, name))
                case "BINPUT" | "LONG_BINPUT":
                    memo[argument] = stack[-1]
                case "MEMOIZE":
                    memo[len(memo)] = stack[-1]
                case "BINGET" | "LONG_BINGET":
                    stack.append(memo[argument])
                case "EMPTY_DICT":
                    stack.append({})
                case "EMPTY_LIST":
                    stack.append([])
                case "EMPTY_TUPLE":
                    stack.append(())
                case "TUPLE":
                    stack.append(tuple(since_mark()))
                case "TUPLE1" | "TUPLE2" | "TUPLE3":
                    n = int(code.name[-1])
                    stack[-n:] = [tuple(stack[-n:])]
                case "APPEND":
                    item = stack.pop()
                    stack[-1].append(item)
                case "APPENDS":
                    items = since_mark()
                    stack[-1].extend(items)
                case "SETITEM":
                    value, key = stack.pop(), stack.pop()
                    stack[-1][key] = value
                case "SETITEMS":
                    items = since_mark()
                    stack[-1].update(zip(items[::2], items[1::2], strict=True))
                case "REDUCE":
                    arguments, called = stack.pop(), stack.pop()
                    stack.append(self.made(called, arguments))
                case "BUILD":  # attributes of a dictionary, such as its version: nothing of ours
                    stack.pop()
                    if not isinstance(stack[-1], dict):
                        raise UsageError(f"it sets attributes of {type(stack[-1]).__name__}")
                case "BINPERSID":
                    stack.append(storage(stack.pop()))
                case "STOP":
                    return stack.pop()
                case name if name in PLAIN:
                    stack.append(argument)
                case name if name in VALUES:
                    stack.append(VALUES[name])
                case name:
                    raise UsageError(f"its pickle has the instruction {name} at {place}: refused")
        raise UsageError("its pickle has no end")

    def made(self, called: Any, arguments: Any) -> Any:
        """What a call would give, for the three functions that make tensors and dictionaries."""
        if not isinstance(called, Name) or tuple(called) not in MAKES:
            shown = ".".join(called) if isinstance(called, Name) else type(called).__name__
            raise UsageError(f"it would call `{shown}`: refused, weights do not need it")
        match called.name:
            case "OrderedDict":
                return dict(*arguments)
            case "_rebuild_parameter":
                return arguments[0]
        return self.tensor(*arguments[:4])

    def tensor(self, of: Any, offset: int, shape: Any, strides: Any) -> Array:
        if not isinstance(of, Storage):
            raise UsageError("a tensor of no storage")
        dtype = bfloat16() if of.dtype == "bfloat16" else np.dtype(of.dtype)
        member = self.archive.getinfo(f"{self.root}data/{of.key}")
        if member.file_size != of.elements * dtype.itemsize:
            raise UsageError(
                f"data/{of.key} has {member.file_size} bytes for {of.elements} {dtype}"
            )
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        numbers = (offset, *shape, *strides)
        if any(type(n) is not int or n < 0 for n in numbers) or (
            all(shape) and last >= of.elements
        ):
            raise UsageError(f"a tensor of shape {shape} lies outside its {of.elements} elements")
        if not all(shape):
            return np.zeros(shape, dtype)
        flat = np.frombuffer(self.archive.read(member), dtype)[offset:]
        steps = tuple(s * dtype.itemsize for s in strides)
        return np.array(np.lib.stride_tricks.as_strided(flat, shape, steps, writeable=False))


def storage(named: Any) -> Storage:
    match named:
        case ("storage", Name("torch", kind), str(key), str(), int(count)) if kind in STORAGES:
            return Storage(STORAGES[kind], key, count)
    raise UsageError(f"elements of a kind that is not known: {named!r:.80}")


def bfloat16() -> Any:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _collect(prefix: str, tree: Any, found: dict[str, Array]) -> None:
    """The tensors of nested dictionaries; other values, such as a step's number, are left out."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, np.ndarray):
            found[name] = value
        elif isinstance(value, dict):
            _collect(f"{name}.", value, found)
