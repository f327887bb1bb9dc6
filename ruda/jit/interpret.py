"""Run a kernel thread by thread: the definition of the language, and the oracle of all targets.

`closures` gives the meaning of each node, `schedule` lets threads meet at barriers, `shadow`
watches memory; here they are put together for one launch. Memory is the caller's own, so that
aliasing and overlapping arguments are what they are anywhere.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ruda.dtypes import DType
from ruda.errors import DTypeError, LaunchTypeError, shown
from ruda.jit import intrinsics, ir
from ruda.jit.closures import FIRST, LANE_ID, SHARED_BYTES, THREAD, Compiler, Frame
from ruda.jit.ir import Array, Field, Function, Variable
from ruda.jit.schedule import WARP, Block, Index, Run, Thread, run_blocks
from ruda.jit.shadow import Memory, View, byte_bounds, field_view, unit_of
from ruda.jit.types import ElementType, element_type

CHECKS = frozenset({"bounds", "race", "undefined", "barrier", "assert"})
ALL_CHECKS = CHECKS | {"division"}
STEPS = 10_000_000


# ---- arguments ----


def scalar_argument(function: Function, parameter: Variable, value: Any) -> Any:
    """A scalar argument as the NumPy scalar that the kernel sees, or an error that names it."""
    dtype = parameter.dtype
    kind = dtype.numpy.type
    if isinstance(value, np.generic):
        if type(value) is kind or value.dtype == dtype.numpy:
            return kind(value)
    elif dtype.kind == "bool" and isinstance(value, bool):
        return np.bool_(value)
    elif dtype.is_integer and isinstance(value, int) and not isinstance(value, bool):
        _check_fits(function, parameter, value)
        return intrinsics.convert(value, dtype)
    elif dtype.kind == "float" and isinstance(value, (int, float)):
        return intrinsics.convert(value, dtype)
    elif dtype.kind == "complex" and isinstance(value, (int, float, complex)):
        return kind(value)
    raise LaunchTypeError(
        f"argument `{parameter.name}` of kernel `{function.name}` is {dtype}, "
        f"not {type(value).__name__}"
    )


def _check_fits(function: Function, parameter: Variable, value: int) -> None:
    needed = [d for p, d in function.fits if p == parameter] or [parameter.dtype]
    for dtype in needed:
        low, high = dtype.range
        if not low <= value <= high:
            name = "int64" if dtype.weak else dtype.name
            raise OverflowError(
                f"argument `{parameter.name}` of kernel `{function.name}` is {shown(value)}, "
                f"which does not fit in {name} ({low} to {high})"
            )


def evaluate_prologue(function: Function, arguments: Sequence[Any]) -> dict[str, Any]:
    """The values of scalar parameters and of the prologue's variables, as NumPy scalars by name.

    `arguments` are those of the launch, in the order of `function.parameters`; arrays are
    passed over.
    """
    values: dict[str, Any] = {}
    for parameter, value in zip(function.parameters, arguments, strict=True):
        if isinstance(parameter, Variable):
            values[parameter.name] = scalar_argument(function, parameter, value)
    if function.prologue:
        compiler = Compiler(function, frozenset())
        frame: Frame = [None] * FIRST
        with np.errstate(all="ignore"):
            steps = [compiler.statement(s)[0] for s in function.prologue]
            frame += [None] * (compiler.size - FIRST)
            for name, (slot, _) in compiler.variables.items():
                frame[slot] = values.get(name)
            for s, step in zip(function.prologue, steps, strict=True):
                step(frame)
                values[s.variable.name] = frame[compiler.variable(s.variable.name)]
    return values


def array_argument(function: Function, parameter: Array, value: Any) -> np.ndarray[Any, Any]:
    """An array argument, or an error that says how it differs from what the kernel is made for."""
    where = f"argument `{parameter.name}` of kernel `{function.name}`"
    if not isinstance(value, np.ndarray):
        raise LaunchTypeError(f"{where} is an array, not {type(value).__name__}")
    try:
        found: ElementType | None = element_type(value.dtype)
    except DTypeError:
        found = None
    if found != parameter.dtype or value.ndim != parameter.ndim:
        raise LaunchTypeError(
            f"{where} is a {parameter.ndim}-d array of {parameter.dtype}, "
            f"not a {value.ndim}-d array of {value.dtype}"
        )
    if parameter.layout == "C" and not value.flags.c_contiguous:
        raise LaunchTypeError(f"{where} is contiguous in C order; its strides are {value.strides}")
    if not parameter.readonly and not value.flags.writeable:
        raise LaunchTypeError(f"{where} is written or may be, but the array is read-only")
    return value


# ---- memory ----


def _numpy(dtype: ElementType) -> np.dtype[Any]:
    return dtype.numpy if isinstance(dtype, DType) else np.dtype((np.void, dtype.itemsize))


@dataclass(frozen=True, slots=True)
class _Buffer:
    """A shared or local array, or all dynamic shared memory, and the views that look into it."""

    size: int
    views: tuple[tuple[int, Array, Field | None], ...]  # slot of the frame, array, field
    races: bool
    undefined: bool

    def place(self, frame: Frame) -> Memory:
        """New undefined memory; its views go to their slots."""
        memory = Memory(1, self.races, self.size if self.undefined else None)
        memory.buffer = np.full(self.size, 0xFF, np.uint8)
        views = []
        for slot, array, field in self.views:
            size = array.dtype.itemsize
            shape = array.shape if array.shape is not None else (self.size // size,)
            whole = np.ndarray(shape, _numpy(array.dtype), memory.buffer)
            data = whole if field is None else field_view(whole, field)
            frame[slot] = View(data, 0 if field is None else field.offset, memory)
            views.append(frame[slot])
        memory.unit = unit_of(views)
        return memory


class Interpreter:
    """A kernel ready to run. `order="random"` with a `seed` mixes blocks and threads, for tests.

    checks  what is an error: "bounds", "race", "undefined", "barrier", "assert", "division".
            Without "bounds", a load outside gives 0 and a store outside does nothing.
    steps   iterations of `while` loops that one thread may take in a launch before it is said to
            wait for ever.
    """

    def __init__(
        self,
        function: Function,
        checks: frozenset[str] | None = None,
        order: str = "ascending",
        seed: int = 0,
        steps: int = STEPS,
    ) -> None:
        if checks is None:
            checks = ALL_CHECKS if function.check else CHECKS
        if not checks <= ALL_CHECKS:
            raise ValueError(
                f"no checks {sorted(checks - ALL_CHECKS)}; there are {sorted(ALL_CHECKS)}"
            )
        if order not in ("ascending", "random"):
            raise ValueError(f"order={order!r}: expected ascending or random")
        self.function = function
        self.checks = checks
        self.shuffle = random.Random(seed) if order == "random" else None
        self.steps = steps
        self.compiler = Compiler(function, checks)
        with np.errstate(all="ignore"):
            self.body, self.waits = self.compiler.body(function.body)
        statements = list(ir.statements(function.body))
        self.written = {s.array for s in statements if isinstance(s, ir.Store | ir.Atomic)}
        self.by_grid = any(isinstance(s, ir.Barrier) and s.scope == "grid" for s in statements)

    def run(
        self,
        grid: Index,
        block: Index,
        arguments: Sequence[Any],
        shared_bytes: int = 0,
        *,
        shuffle: random.Random | None = None,
        steps: int | None = None,
    ) -> Run:
        """Launch the kernel. The result keeps notes, and who wrote which element last.

        `shuffle` and `steps` stand for those of the interpreter, for this launch.
        """
        run = Run(self.function.name, grid, block, self.checks, steps or self.steps)
        run.shuffle = shuffle or self.shuffle
        frame = self._frame(run, arguments, shared_bytes)
        shared = self._buffers("shared", shared_bytes)
        local = self._buffers("local", 0)
        indices = _order(run, [(x, y, z) for z, y, x in itertools.product(*map(range, grid[::-1]))])
        lanes = _threads(block)
        with np.errstate(all="ignore"):
            if self.by_grid:
                blocks = [self._block(run, i, frame, shared, local, lanes) for i in indices]
                run_blocks(blocks, run.shuffle)
                return run
            for index in indices:
                if self.waits:
                    run_blocks([self._block(run, index, frame, shared, local, lanes)], run.shuffle)
                    continue
                here = Block(index, run)
                for _, each in self._frames(here, frame, shared, local, lanes):
                    self.body(each)
        return run

    def _block(self, run: Run, index: Index, frame: Frame, *more: Any) -> Block:
        """A block whose threads are generators at their beginnings, in linear order."""
        block = Block(index, run)
        for thread, each in self._frames(block, frame, *more):
            thread.loops = []
            thread.code = self.body(each)
            block.threads.append(thread)
        block.threads.sort(key=lambda t: t.linear)
        return block

    def _frames(
        self, block: Block, launch: Frame, shared: list[_Buffer], local: list[_Buffer], lanes: Any
    ) -> Iterator[tuple[Thread, Frame]]:
        """The threads of a block, each with its frame."""
        common = launch.copy()
        common[3:6] = [np.int64(i) for i in block.index]
        block.memories = [buffer.place(common) for buffer in shared]
        axes = sorted(self.compiler.global_axes)
        base = [b * d for b, d in zip(common[3:6], common[6:9], strict=True)]
        for index, linear, coordinates in _order(block.run, lanes):
            frame = common.copy()
            thread = Thread(block, index, linear)
            frame[0:3] = coordinates
            for axis in axes:
                frame[12 + axis] = base[axis] + coordinates[axis]
            frame[LANE_ID] = np.int64(linear % WARP)
            frame[THREAD] = thread
            for buffer in local:
                buffer.place(frame)
            yield thread, frame

    def _frame(self, run: Run, arguments: Sequence[Any], shared_bytes: int) -> Frame:
        """What all threads of a launch have in common."""
        function, compiler = self.function, self.compiler
        values = evaluate_prologue(function, arguments)
        frame: Frame = [None] * compiler.size
        for name, (slot, dtype) in compiler.variables.items():
            if name in values:
                frame[slot] = values[name]
            elif "undefined" not in self.checks:
                frame[slot] = intrinsics.convert(0, dtype)
        sizes = [*run.block, *run.grid]
        frame[6:12] = [np.int64(n) for n in sizes]
        frame[15:18] = [np.int64(b * g) for b, g in zip(run.block, run.grid, strict=True)]
        frame[SHARED_BYTES] = np.int64(shared_bytes)
        arrays = {
            p: array_argument(function, p, value)
            for p, value in zip(function.parameters, arguments, strict=True)
            if isinstance(p, Array)
        }
        bounds = {p: byte_bounds(a) for p, a in arrays.items()}
        written = [bounds[p] for p in arrays if p in self.written]
        racing = []
        for (array, field), slot in compiler.views.items():
            if array.space == "const":
                whole = np.frombuffer(array.data or b"", _numpy(array.dtype)).reshape(array.shape)
                frame[slot] = View(whole if field is None else field_view(whole, field), 0, None)
            elif array.space == "global":
                whole = arrays[array]
                data = _plain(whole, array.dtype) if field is None else field_view(whole, field)
                low, high = bounds[array]
                start = whole.__array_interface__["data"][0]
                frame[slot] = View(data, start + (field.offset if field else 0), None)
                if any(low < end and begin < high for begin, end in written):
                    racing.append(frame[slot])
        if "race" in self.checks and racing:
            run.memory = Memory(unit_of(racing), True, None)
            for view in racing:
                view.memory = run.memory
        return frame

    def _buffers(self, space: str, shared_bytes: int) -> list[_Buffer]:
        """The memory of a space, one buffer an array; dynamic arrays share one."""
        groups: dict[Array | None, list[tuple[int, Array, Field | None]]] = {}
        for (array, field), slot in self.compiler.views.items():
            if array.space == space:
                groups.setdefault(None if array.dynamic else array, []).append((slot, array, field))
        buffers = []
        for root, views in groups.items():
            if root is None:
                size = shared_bytes
            else:
                size = root.dtype.itemsize * math.prod(root.shape or ())
            races = space == "shared" and "race" in self.checks
            buffers.append(_Buffer(size, tuple(views), races, "undefined" in self.checks))
        return buffers


def _order(run: Run, items: list[Any]) -> list[Any]:
    if run.shuffle is not None:
        items = items.copy()
        run.shuffle.shuffle(items)
    return items


def _plain(data: np.ndarray[Any, Any], dtype: ElementType) -> np.ndarray[Any, Any]:
    """The array at ruda's dtype: equal dtypes of other names (longlong) give other scalars."""
    if not isinstance(dtype, DType) or data.dtype is dtype.numpy:
        return data
    return data.view(dtype.numpy)


def _threads(block: Index) -> list[tuple[Index, int, list[Any]]]:
    """Index, linear index and coordinates as the kernel sees them, x fastest."""
    indices = [(x, y, z) for z, y, x in itertools.product(*map(range, block[::-1]))]
    return [(index, k, [np.int64(i) for i in index]) for k, index in enumerate(indices)]
