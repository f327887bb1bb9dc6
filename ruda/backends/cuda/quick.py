"""Make a launch of a small op one builtin of CPython: its memory, its parameters and its array.

An op of computed inputs, alone, launches a known kernel on other addresses. In Python that takes
three microseconds beyond the driver's call, of which the pool, the packing and the objects of the
result have most. `quick.ll` has it all in native code, and `Block.__del__` with it:

* parameters are packed on the stack, from a template with all that stays the same, so that threads
  need no buffers of their own; the driver is called without the GIL;
* memory comes from the pool's lists, or where there is none from its Python code;
* who asked is noted as for every launch, so that an error that comes later can say it;
* where profiles run, an array was freed, or a number is not what a C double or float holds exactly,
  the answer is None, and Python does what it always did.

A code of the driver other than 0 goes to `launch._failed`, which makes the thread's context current
and launches again, or raises.
"""

from __future__ import annotations

import functools
import os
import string
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ruda.backends import cpu_launcher, pool
from ruda.backends.base import DeviceArray, Launch, Storage, observers, offset_of
from ruda.backends.cuda import launch as launching
from ruda.backends.cuda.driver import Gpu, check
from ruda.dtypes import DType, float32, float64
from ruda.jit.types import ArrayType

ACTIONS = {"TAKES_ARRAY": 0, "TAKES_SINGLE": 1, "TAKES_DOUBLE": 2}
WHOLE = {"WHOLE_SINGLE": 1 << 24, "WHOLE_DOUBLE": 1 << 53}  # integers up to these are exact
# What native code finds in a launch's words, in their order.
WORDS = (
    *("DRIVER", "FUNCTION", "GRID_X", "GRID_Y", "GRID_Z", "BLOCK_X", "BLOCK_Y", "BLOCK_Z"),
    *("SHARED", "INPUTS", "WORDS", "PARAMETERS", "TEMPLATE", "OFFSETS", "ROWS", "OUT"),
    *("POOL", "SIZE", "NBYTES", "TAKE", "NAME", "RECENT", "OBSERVERS", "REFUSED"),
    *("DEVICE", "BACKEND", "SHAPE", "DTYPE", "STRIDES", "TYPE", "KIND"),
)
GIVE_BACK = pool.Block.__del__  # what it was, also where two threads replace it at once
LEGACY, PER_THREAD = 1, 2  # which default stream a driver's function means


class Natives(NamedTuple):
    """The loaded code."""

    launch: int
    tell: int


@functools.cache  # once
def natives() -> Natives | None:
    """The native code, where objects are laid out as it expects; `Block.__del__` is its own."""
    classes = {"BLOCK": pool.Block, "POOL": pool.Pool, "STORAGE": Storage, "ARRAY": DeviceArray}
    constants: dict[str, int] = {**ACTIONS, **WHOLE, "FAR": 1 << 62}
    constants |= {f"M_{name}": 8 * k for k, name in enumerate(WORDS)}
    constants["ARRAY_DATA"] = cpu_launcher.OFFSETS["ARRAY_DATA"]  # of NumPy's
    for name, cls in classes.items():
        slots = [s for s in vars(cls)["__slots__"] if s != "__weakref__"]
        constants |= {f"{name}_{s}".upper(): offset_of(cls, s) for s in slots}
    text = Path(__file__).with_suffix(".ll").read_text(encoding="utf-8")
    values = {
        "block_type": pool.Block, "storage_type": Storage, "array_type": DeviceArray,
        "float_type": float, "int_type": int, "none": None, "true": True, "false": False,
        "zero": 0, "name_key": "__name__", "package": "ruda.", "by_python": GIVE_BACK,
    }  # fmt: skip
    found = cpu_launcher.natives(string.Template(text).substitute(constants), values)
    if found is None:
        return None
    pool.Block.__del__ = cpu_launcher.new_method(  # type: ignore[method-assign]
        pool.Block, found["give_back"], "__del__"
    )
    return Natives(found["launch"], found["tell"])


def prepare(gpu: Gpu) -> Natives | None:
    """The native code, if LLVM is loaded anyway; a GPU's launches are noted by it from now on."""
    found = natives() if "llvmlite" in sys.modules else None
    if found is not None and "note" not in vars(gpu):
        gpu.note = cpu_launcher.new_builtin(  # type: ignore[method-assign]
            found.tell, "note", (gpu.recent.append,)
        )
    return found


def fresh(
    module: launching.Module, launch: Launch, given: Sequence[Any], like: DeviceArray
) -> Callable[..., Any] | None:
    """A builtin that takes a kernel's inputs and returns its result, new memory as `like`.

    The kernel's first argument is its result; the inputs lie as the given ones do. None where the
    kernel, or this Python, is not for it.
    """
    code = prepare(module.gpu)
    if code is None or launching.is_general(module, launch):
        return None
    types, rows = module.types, module.metadata["parameters"]
    takes = [action(kind) for kind in types[1:]]
    only_result = all(0 in pair for pair in module.metadata["apart"])  # new memory is apart
    if not isinstance(types[0], ArrayType) or None in takes or not only_result:
        return None
    address = address_of_launch(module.gpu.driver)
    if not address:
        return None
    module = launching.fitting(module, launch, given)
    gpu, rows = module.gpu, module.metadata["parameters"]
    text, offsets = launching.layout(rows)
    packer = struct.Struct(text)
    fixed = [launching.fixed(row, launch, given) or 0 for row in rows]
    places = {row[1]: at for row, at in zip(rows, offsets, strict=True) if row[0] in VARIABLE}
    if set(places) != set(range(len(types))):
        return None
    words = -(-packer.size // 8)
    template = np.frombuffer(packer.pack(*fixed).ljust(8 * words, b"\0"), np.int64)
    where = np.array(offsets, np.int64)
    inputs = [[takes[k - 1], places[k]] for k in range(1, len(types))]
    table = np.array(inputs, np.int64).reshape(-1)
    block_size = pool.bucket(like.storage.nbytes)
    shape = launching.shape_of(module, launch)

    def refused(error: int, parameters: int) -> None:
        launching._failed(module, gpu.driver.CUresult(error), module.function, parameters, *shape)

    objects = {
        "POOL": gpu.pool, "SIZE": block_size, "NBYTES": like.storage.nbytes, "TAKE": gpu.pool.take,
        "NAME": module.name, "RECENT": gpu.recent.append, "OBSERVERS": observers,
        "REFUSED": refused, "DEVICE": like.storage.device, "BACKEND": like._backend,
        "SHAPE": like.shape, "DTYPE": like.dtype, "STRIDES": like.strides,
        "TYPE": like.__ruda_array_type__, "KIND": like.__ruda_kind__,
    }  # fmt: skip
    numbers = {
        "DRIVER": address, "FUNCTION": int(module.function), "INPUTS": len(inputs),
        "WORDS": words, "PARAMETERS": len(offsets), "TEMPLATE": template.ctypes.data,
        "OFFSETS": where.ctypes.data, "ROWS": table.ctypes.data, "OUT": places[0],
        **dict(zip(WORDS[2:9], shape, strict=True)),
    }  # fmt: skip
    numbers |= {name: id(value) for name, value in objects.items()}
    memory = np.array([numbers[name] for name in WORDS], np.int64)
    kept = (memory, template, where, table, module, tuple(objects.values()))
    made: Callable[..., Any] = cpu_launcher.new_builtin(code.launch, "launch", kept)
    return made


VARIABLE = ("pointer", "scalar")  # parameters that launches differ in


def action(kind: Any) -> int | None:
    """What native code does with an input of a kernel."""
    if isinstance(kind, ArrayType):
        return ACTIONS["TAKES_ARRAY"]
    numbers: dict[DType, str] = {float32: "TAKES_SINGLE", float64: "TAKES_DOUBLE"}
    return ACTIONS[numbers[kind]] if kind in numbers else None


@functools.cache
def address_of_launch(driver: Any) -> int:
    """The driver's `cuLaunchKernel` as cuda.bindings calls it; 0 if it does not tell."""
    own = os.environ.get("CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM", "0")
    stream = PER_THREAD if own not in ("", "0") else LEGACY
    address, _ = check(driver.cuGetProcAddress(b"cuLaunchKernel", 4000, stream))
    return int(address)
