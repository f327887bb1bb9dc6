"""Launches: arguments are checked, packed into a parameter block, and handed to `cuLaunchKernel`.

A launcher is a Python function made for one kernel and launch shape, with everything that does not
change between launches in its constants: it compares each argument's type (an identity for device
arrays), packs with one `struct` call and makes one call of the driver. Whatever it does not know
goes the general way: NumPy arrays, which are copied there and back, reports, other streams.

Code assumes what nearly all launches fulfil (`emit.ASSUMES`). Launches that do not - huge arrays,
an array that is read and overlaps one that is written - run the same kernel made without that,
which is compiled when one first comes.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ruda.backends.base import (
    Asked,
    Binary,
    DeviceArray,
    Launch,
    observed,
    observers,
    tell_moved,
)
from ruda.backends.cpu import reports
from ruda.backends.cuda.driver import ELSEWHERE, Gpu, check, handle_of
from ruda.backends.pool import Block as PoolBlock
from ruda.dtypes import DType, float64, int64
from ruda.errors import CheckError, DeviceError, LaunchError, LaunchTypeError, LaunchValueError
from ruda.jit import kernel
from ruda.jit.types import ArrayType, intern, type_of
from ruda.settings import settings

if TYPE_CHECKING:
    from ruda.jit.ir import Function

HEADER_WORDS = 8  # before a report buffer: word 6 is its address, as in the CPU's argument block
STATIC_SHARED = 48 << 10  # what every block can have; more must be asked for
# dtype as a kernel holds it -> struct's letter
LETTERS = {
    "i8": "b", "i16": "h", "i32": "i", "i64": "q", "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "f32": "f", "f64": "d", "bool": "B", "f16": "H", "bf16": "H", "c64": "f", "c128": "d",
}  # fmt: skip
STRONG = {"weak_int": int64, "weak_float": float64}
WEAK = {"weak_int": int, "weak_float": float, "weak_complex": complex, "bool": bool}


@dataclass(eq=False)
class Module:
    """A kernel on a GPU."""

    gpu: Gpu
    module: Any
    function: Any
    metadata: Mapping[str, Any]
    types: tuple[Any, ...]  # of the arguments: ArrayType or DType
    fits: dict[int, tuple[int, int]]  # argument -> the range that a Python int must be in
    source: Function
    kept: bool  # whether the disk cache may keep code of this kernel
    others: dict[tuple[str, ...], Module] = field(default_factory=dict)  # by what they assume

    @property
    def name(self) -> str:
        return str(self.metadata["name"])


def load(gpu: Gpu, binary: Binary, function: Function) -> Module:
    """Load a cubin."""
    from ruda.jit.ir import Array

    gpu.use()
    code, module = gpu.driver.cuModuleLoadData(binary.payload)
    if code:
        raise gpu.fail(code, f" while loading `{binary.metadata['name']}`")
    entry = check(gpu.driver.cuModuleGetFunction(module, binary.metadata["symbol"].encode()))
    kinds = tuple(
        intern(ArrayType(p.dtype, p.ndim, p.layout, False, p.aligned))
        if isinstance(p, Array)
        else p.dtype
        for p in function.parameters
    )
    places = {p.name: k for k, p in enumerate(function.parameters)}
    fits = {places[v.name]: dtype.range for v, dtype in function.fits if v.name in places}
    return Module(gpu, module, entry, binary.metadata, kinds, fits, function, binary.kept)


# ---- what code assumes ---------------------------------------------------------------------------

NARROW = 1 << 31  # extents and numbers of threads of narrow code are below


def suited(module: Module, launch: Launch, values: Sequence[Any]) -> Module:
    """The module, or one that assumes less, for these arguments."""
    arrays = [v for v in values if isinstance(v, (np.ndarray, DeviceArray))]
    if module.metadata["narrow"] and is_huge(launch, arrays):
        return made_assuming((), module)
    pairs = module.metadata["apart"]
    if pairs:
        spans = {k: span_of(values[k]) for pair in pairs for k in pair}
        for k, other in pairs:
            (low, high), (start, end) = spans[k], spans[other]
            if low < end and start < high:
                return made_assuming(("narrow",), module)
    return module


def is_huge(launch: Launch, arrays: Sequence[Any]) -> bool:
    """Whether extents or the launch need more than 31 bits."""
    return threads_along_x(launch) >= NARROW or any(n >= NARROW for a in arrays for n in a.shape)


def span_of(array: np.ndarray[Any, Any] | DeviceArray) -> tuple[int, int]:
    """The addresses from the first byte of an array to behind its last; empty if it has none."""
    if not array.size:
        return 0, 0
    if isinstance(array, np.ndarray):
        return np.lib.array_utils.byte_bounds(array)
    low, nbytes = array._span()
    return array.storage.address + low, array.storage.address + low + nbytes


def made_assuming(assumes: tuple[str, ...], module: Module) -> Module:
    """The same kernel as code that assumes less."""
    from ruda.backends.cuda.device import BACKEND
    from ruda.jit import cache

    with module.gpu.lock:
        found = module.others.get(assumes)
        if found is None:
            target = {**BACKEND.target(module.gpu.name), "assumes": assumes}
            source = BACKEND.emit(module.source, target)
            parts: dict[str, str | bytes] = dict(cache.environment_parts(module.gpu.name))
            parts |= {"name": module.name, "ir": source.text, "options": repr(source.options)}
            parts["properties"] = repr(sorted(target.items()))
            key = cache.key_of(parts)
            entry = cache.lookup(key, parts=parts) if module.kept else None
            if entry is not None:
                binary = Binary(entry.payload, entry.metadata["binary"], entry.symbols)
            else:
                binary = BACKEND.compile(source, target)
                if module.kept:
                    kept = cache.Entry(binary.payload, {"binary": binary.metadata})
                    cache.store(key, kept, parts=parts)
            found = module.others[assumes] = load(module.gpu, binary, module.source)
    return found


# ---- the parameter block -------------------------------------------------------------------------


def layout(rows: Sequence[Sequence[Any]]) -> tuple[str, tuple[int, ...]]:
    """struct's format of a parameter block, each value at a multiple of its size; and offsets.

    >>> layout([["pointer", 0], ["scalar", 1, "f32", 0], ["extent", 0, 0, "i64"]])
    ('<qf4xq', (0, 8, 16))
    """
    text, offsets, at = "<", [], 0
    for row in rows:
        kind = {"scalar": 2, "extent": 3, "threads": 1}.get(row[0])
        letter = "q" if kind is None else LETTERS[row[kind]]
        size = struct.calcsize(f"<{letter}")
        gap = -at % size
        text += f"{gap}x" if gap else ""
        text += letter
        offsets.append(at + gap)
        at += gap + size
    return text, tuple(offsets)


class Block:
    """A parameter block and the table of addresses in it that the driver wants."""

    __slots__ = ("address", "buffer", "table")

    def __init__(self, size: int, offsets: Sequence[int]) -> None:
        self.buffer = ctypes.create_string_buffer(max(1, size))
        base = ctypes.addressof(self.buffer)
        self.table = (ctypes.c_void_p * max(1, len(offsets)))(*(base + o for o in offsets))
        self.address = ctypes.addressof(self.table)


# ---- limits --------------------------------------------------------------------------------------


def check_limits(module: Module, launch: Launch) -> None:
    """LaunchValueError for what the GPU cannot launch."""
    gpu, name = module.gpu, module.name
    properties = gpu.properties
    for what, given, most in (
        ("grid", launch.grid, properties["max_grid"]),
        ("block", launch.block, properties["max_block"]),
    ):
        for axis, n, limit in zip("xyz", given, most, strict=True):
            if n > limit:
                raise LaunchValueError(
                    f"`{name}`: the {what} {given} has {n} on axis {axis}; {gpu.name} has at most "
                    f"{limit} there"
                )
    kind = gpu.driver.CUfunction_attribute

    def attribute(which: str) -> int:
        found: int = check(
            gpu.driver.cuFuncGetAttribute(
                getattr(kind, f"CU_FUNC_ATTRIBUTE_{which}"), module.function
            )
        )
        return found

    threads, most = math.prod(launch.block), attribute("MAX_THREADS_PER_BLOCK")
    if threads > most:
        raise LaunchValueError(
            f"`{name}` needs {attribute('NUM_REGS')} registers a thread, so that a block can have "
            f"{most} threads on {gpu.name}, not {threads}"
        )
    static = attribute("SHARED_SIZE_BYTES")
    if static + launch.shared_bytes > properties["max_shared"]:
        raise LaunchValueError(
            f"`{name}`: {launch.shared_bytes} bytes of dynamic shared memory and {static} of "
            f"shared arrays; a block on {gpu.name} can have {properties['max_shared']}"
        )
    if static + launch.shared_bytes > STATIC_SHARED:
        dynamic = kind.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        now = attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES")
        if now < launch.shared_bytes:
            (code,) = gpu.driver.cuFuncSetAttribute(module.function, dynamic, launch.shared_bytes)
            check((code, None))
    if module.metadata["cooperative"]:
        together = check(
            gpu.driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
                module.function, threads, launch.shared_bytes
            )
        )
        room = together * properties["multiprocessors"]
        if math.prod(launch.grid) > room:
            raise LaunchValueError(
                f"`{name}` waits for all blocks of the grid (`this_grid().sync()`): {gpu.name} can "
                f"run {room} of them at once, not {math.prod(launch.grid)}"
            )


BLOCKS = (256, 512, 128, 1024, 64)  # threads, the best first where it makes no difference


def block_for(module: Module, launch: Launch, tasks: int) -> int:
    """The block of `forall`: as many threads at once on a multiprocessor as registers and shared
    memory allow, and for few tasks blocks enough for all multiprocessors."""
    gpu, driver = module.gpu, module.gpu.driver
    gpu.use()
    kind = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
    most = int(check(driver.cuFuncGetAttribute(kind, module.function)))

    def at_once(block: int) -> int:
        found = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(
            module.function, block, launch.shared_bytes
        )
        return block * int(check(found))

    best = max((b for b in BLOCKS if b <= most), key=at_once, default=32)
    threads = -(-tasks // module.metadata["lanes"])
    while best > 64 and -(-threads // best) < gpu.properties["multiprocessors"]:
        best //= 2
    return best


# ---- the general way -----------------------------------------------------------------------------


@dataclass(slots=True)
class Span:
    """Host memory that one or more arguments use, and its copy on the device."""

    low: int
    high: int
    storage: Any = None

    @property
    def shift(self) -> int:
        """What to add to a host address."""
        return int(self.storage.address) - self.low


def host_spans(arrays: Sequence[np.ndarray[Any, Any]]) -> list[Span]:
    """The memory of arrays, those that overlap together: they do on the device, too."""
    bounds = sorted(np.lib.array_utils.byte_bounds(a) for a in arrays if a.size)
    spans: list[Span] = []
    for low, high in bounds:
        if spans and low < spans[-1].high:
            spans[-1].high = max(spans[-1].high, high)
        else:
            spans.append(Span(low, high))
    return spans


def memory_at(low: int, high: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ctypeslib.as_array((ctypes.c_uint8 * (high - low)).from_address(low))


class General:
    """The general way: any arguments that the kernel was made for."""

    def __init__(self, module: Module, launch: Launch, start: Callable[[Any, int], None]) -> None:
        self.module, self.launch, self.start = module, launch, start
        self.sites = reports.unpack_sites(module.metadata["sites"])
        self.warned: set[Any] = set()  # places of notes that were told
        self.rows = module.metadata["parameters"]
        self.written = frozenset(module.metadata["written"])
        self.parted = module.metadata["phases"]
        self.plainer: dict[Module, General] = {}  # for launches of which less can be assumed

    def __call__(self, *arguments: Any) -> None:
        module, gpu = self.module, self.module.gpu
        gpu.use()
        values = [self.argument(k, v) for k, v in enumerate(arguments)]
        chosen = suited(module, self.launch, values)
        if chosen is not module:
            if chosen not in self.plainer:
                self.plainer[chosen] = parts(chosen, self.launch)[1]
            self.plainer[chosen].run(values)
            return
        self.run(values)

    def run(self, values: Sequence[Any]) -> None:
        """Launch with arguments that `argument` has looked at."""
        module, gpu = self.module, self.module.gpu
        host = [
            (k, v)
            for k, v in enumerate(values)
            if isinstance(v, np.ndarray) and not gpu.is_registered(v.ctypes.data)
        ]
        spans = host_spans([v for _, v in host])
        handle = handle_of(self.launch.stream)
        moved = 0
        for span in spans:
            span.storage = gpu.allocate(span.high - span.low + 16)
            span.storage.address += (span.low - span.storage.address) % 16  # as aligned as there
            gpu.write(span.storage.address, memory_at(span.low, span.high), handle)
            moved += span.high - span.low
        addresses = {k: self.address(v, spans) for k, v in enumerate(values)}
        report = self.report_buffer(handle) if self.sites else None
        if self.parted is None:
            self.start(self.numbers(values, addresses, report), handle)
        else:
            self.start_phases(values, addresses, report, handle)
        if handle:
            for value in values:
                if isinstance(value, DeviceArray):
                    gpu.note_use(value.storage.owner, handle)
        if report is not None:
            asked = gpu.recent[-1] if gpu.recent else None
            gpu.pending.append(functools.partial(self.tell, report, handle, asked))
        registered = any(isinstance(v, np.ndarray) for v in values)
        for k, array in host:
            if k in self.written and array.size:
                moved += self.copy_back(array, addresses[k], handle)
        if spans or registered or len(gpu.pending) > 16:
            gpu.synchronize_stream(handle)
        if moved:
            tell_moved(module.name, moved)

    def start_phases(
        self, values: Sequence[Any], addresses: Mapping[int, int], report: Any, handle: int
    ) -> None:
        """Launch what is between barriers of the grid, one after another, with memory for what
        threads keep meanwhile."""
        from ruda.jit import rounds

        gpu, launch, names = self.module.gpu, self.launch, self.parted["rounds"]
        threads = math.prod(launch.grid) * math.prod(launch.block)
        kept = [gpu.allocate(threads * size) for size in self.parted["kept"]]
        first = len(values) + 1 + len(names)
        addresses = {**addresses, **{first + k: s.address for k, s in enumerate(kept)}}
        schedule = rounds.unpack(self.parted["schedule"])
        for phase, counts in rounds.phases(schedule, names, self.known(values)):
            self.start(self.numbers([*values, phase, *counts], addresses, report), handle)
        if handle:
            for storage in kept:
                gpu.note_use(storage.owner, handle)

    def known(self, values: Sequence[Any]) -> dict[str, Any]:
        """What a schedule of phases may read, by name."""
        from ruda.jit import intrinsics, ir, rounds

        shapes, scalars = {}, {}
        for value, p in zip(values, self.module.source.parameters, strict=True):
            if isinstance(p, ir.Array):
                shapes[p.name] = value.shape
            else:
                scalars[p.name] = intrinsics.convert(value, STRONG.get(p.dtype.name, p.dtype))
        launch = self.launch
        sizes = rounds.launch_scalars(launch.grid, launch.block, launch.shared_bytes, shapes)
        return scalars | sizes

    def argument(self, k: int, value: Any) -> Any:
        """An argument as it is, if the kernel was made for it; LaunchTypeError."""
        kind = self.module.types[k]
        if isinstance(kind, ArrayType):
            if isinstance(value, np.ndarray):
                if k in self.written and not value.flags.writeable:
                    raise LaunchTypeError(
                        f"`{self.module.name}` writes its argument {k}, a read-only array"
                    )
                return value
            if isinstance(value, DeviceArray):
                if value.storage.on_host:
                    return value.__ruda_host__
                if value.device != self.module.gpu.name:
                    raise LaunchTypeError(
                        f"`{self.module.name}` runs on {self.module.gpu.name}, argument {k} is on "
                        f"{value.device}"
                    )
                return value
            raise LaunchTypeError(
                f"`{self.module.name}`: argument {k} is {type(value).__name__}, not an array"
            )
        if kind.is_integer and isinstance(value, int):
            low, high = self.module.fits.get(
                k, (-(1 << 63), (1 << 63) - 1) if kind.weak else kind.range
            )
            if not low <= value <= high:
                raise OverflowError(
                    f"`{self.module.name}`: {value} does not fit argument {k}, used within "
                    f"{low} .. {high}"
                )
        return value

    def address(self, value: Any, spans: Sequence[Span]) -> int:
        if isinstance(value, DeviceArray):
            return int(value.storage.address) + value.offset
        if not isinstance(value, np.ndarray):
            return 0
        at = value.ctypes.data
        span = next((s for s in spans if s.low <= at < s.high), None) if value.size else None
        return at + span.shift if span is not None else at

    def numbers(
        self, values: Sequence[Any], addresses: Mapping[int, int], report: Any
    ) -> list[Any]:
        """What the parameter block holds."""
        out: list[Any] = []
        for row in self.rows:
            match row:
                case ["pointer", k]:
                    out.append(addresses[k])
                case ["extent", k, axis, _]:
                    out.append(values[k].shape[axis])
                case ["stride", k, axis]:
                    out.append(values[k].strides[axis])
                case ["scalar", k, kind, part]:
                    types = self.module.types
                    dtype = types[k] if k < len(types) else int64  # of phases
                    out.append(scalar(values[k], dtype, kind, part))
                case ["threads", _]:
                    out.append(threads_along_x(self.launch))
                case ["reports"]:
                    out.append(report.address)
                case ["grid"]:
                    out.append(self.module.gpu.grid_state.address)
        return out

    def report_buffer(self, handle: int) -> Any:
        gpu = self.module.gpu
        words = max(reports.HEAD + 16, settings.report_bytes // 8)
        storage = gpu.allocate((HEADER_WORDS + words) * 8)
        check((*gpu.driver.cuMemsetD8Async(storage.address, 0, storage.nbytes, handle), None))
        head = np.zeros(HEADER_WORDS + 2, np.int64)
        head[6] = storage.address + HEADER_WORDS * 8
        head[HEADER_WORDS + 1] = words - reports.HEAD
        gpu.write(storage.address, head.view(np.uint8), handle)
        return storage

    def tell(self, storage: Any, handle: int, asked: Any = None) -> None:
        """Read a launch's reports: print them, raise the first failure.

        That may be long after the launch: the error says where the program asked for it.
        """
        gpu = self.module.gpu
        head = np.empty(reports.HEAD, np.int64)
        at = storage.address + HEADER_WORDS * 8
        read(gpu, at, head, handle)
        if not head[0]:
            return
        words = np.empty(reports.HEAD + int(min(head[0], head[1])), np.int64)
        read(gpu, at, words, handle)
        try:
            reports.tell(words, self.sites, self.launch, self.module.name, self.warned)
        except CheckError as error:
            if asked is not None:
                row = Asked(*asked)
                error.add_note(f"`{row.name}` was launched at {row.place}")
            raise

    def copy_back(self, array: np.ndarray[Any, Any], address: int, handle: int) -> int:
        """Bring a written array back; returns the bytes moved."""
        low, high = np.lib.array_utils.byte_bounds(array)
        gpu, shift = self.module.gpu, array.ctypes.data - low
        if array.flags.c_contiguous:
            target = memory_at(low, high)
            read(gpu, address - shift, target, handle)
            return high - low
        raw = np.empty(high - low, np.uint8)
        read(gpu, address - shift, raw, handle)
        array[...] = np.ndarray(array.shape, array.dtype, raw, shift, array.strides)
        return high - low


def read(gpu: Gpu, address: int, out: np.ndarray[Any, Any], handle: int) -> None:
    """Copy to the host without telling reports: the caller may be doing just that."""
    (code,) = gpu.driver.cuMemcpyDtoHAsync(out.ctypes.data, address, out.nbytes, handle)
    if not code:
        (code,) = gpu.driver.cuStreamSynchronize(handle)
    if code:
        raise gpu.fail(code)


def scalar(value: Any, dtype: DType, kind: str, part: int) -> Any:
    """A number as `struct` packs it."""
    if kind in ("c64", "c128"):
        return value.imag if part else value.real
    if kind in ("f16", "bf16"):
        return int(np.asarray(value).astype(dtype.numpy).view(np.uint16))
    if kind == "bool":
        return int(bool(value))
    return int(value) if kind[0] in "iu" else float(value)


# ---- the fast way --------------------------------------------------------------------------------


Start = Callable[[Sequence[Any], int], None]


def shape_of(module: Module, launch: Launch) -> tuple[int, ...]:
    """What the driver gets: a thread may do the work of several of the user's (`coarsen`)."""
    x, y, z = launch.grid
    return -(-x // module.metadata["lanes"]), y, z, *launch.block, launch.shared_bytes


def parts(module: Module, launch: Launch) -> tuple[Start, General]:
    """A function that packs numbers and launches in a stream; and the general way with it."""
    gpu, metadata = module.gpu, module.metadata
    gpu.use()
    check_limits(module, launch)
    text, offsets = layout(metadata["parameters"])
    packer = struct.Struct(text)
    shape = shape_of(module, launch)

    def start(numbers: Sequence[Any], handle: int) -> None:
        block = Block(packer.size, offsets)
        packer.pack_into(block.buffer, 0, *numbers)
        given = (module.function, *shape, handle, block.address)
        if metadata["cooperative"]:
            (code,) = gpu.driver.cuLaunchCooperativeKernel(*given)
        else:
            (code,) = gpu.driver.cuLaunchKernel(*given, 0)
        if code:
            raise gpu.fail(code, f" at the launch of `{module.name}`")

    return start, General(module, launch, start)


def build(
    module: Module,
    launch: Launch,
    fallback: Callable[..., Any] | None,
    guards: Sequence[tuple[Any, Any, Any]],
) -> Callable[..., None]:
    """A launcher for a module and launch shape."""
    if module.metadata["narrow"] and threads_along_x(launch) >= NARROW:
        module = made_assuming((), module)
    gpu = module.gpu
    _, general = parts(module, launch)
    where = sys._getframe

    def other(*arguments: Any, **keywords: Any) -> None:
        """Arguments that the fast way did not take."""
        frame = where(1)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("ruda."):
            frame = frame.f_back
        before = _local.tried
        fits = not keywords and suits(module, arguments)
        # Right after the fallback has looked, what is captured counts as unchanged: another thread
        # may go on changing settings for ever.
        if not fits or (fallback is not before and not unchanged(guards)):
            if fallback is None or fallback is before:
                raise LaunchTypeError(f"`{module.name}`: the arguments do not fit the kernel")
            _local.tried = fallback
            try:
                fallback(*arguments, **keywords)
            finally:
                _local.tried = before
            return
        gpu.recent.append((module.name, frame.f_code, frame.f_lasti))
        general(*arguments)

    if is_general(module, launch):
        return other
    return fast(module, launch, other, guards)


def threads_along_x(launch: Launch) -> int:
    return launch.grid[0] * launch.block[0]


class _Local(threading.local):
    tried: Any = None  # the fallback that this thread is in


_local = _Local()


def unchanged(guards: Sequence[tuple[Any, Any, Any]]) -> bool:
    """Whether captured variables still hold the very same objects."""
    for holder, key, value in guards:
        try:
            now = holder.cell_contents if key is None else holder.get(key)
        except ValueError:
            return False
        if now is not value:
            return False
    return True


def suits(module: Module, arguments: Sequence[Any]) -> bool:
    """Whether a kernel was made for these arguments, also NumPy arrays."""
    if len(arguments) != len(module.types):
        return False
    for k, (value, kind) in enumerate(zip(arguments, module.types, strict=True)):
        if isinstance(kind, ArrayType):
            if not isinstance(value, (np.ndarray, DeviceArray)):
                return False
            if isinstance(value, DeviceArray) and not value.storage.on_host:
                if value.device != module.gpu.name:  # another device's kernel is for it
                    return False
            found = type_of(value)
            assert isinstance(found, ArrayType)
            if replace(found, readonly=False, aligned=kind.aligned) != kind:
                return False
            if kind.aligned and not found.aligned:
                return False
            if found.readonly and k in module.metadata["written"]:
                return False
        elif kind.weak:
            if type(value) is not WEAK[kind.name]:
                return False
        elif not isinstance(value, (bool, np.bool_) if kind.kind == "bool" else kind.numpy.type):
            return False
    return True


Kind = tuple[Any, str, bool, bool]
_kinds: dict[Kind, Kind] = {}


def kind(array_type: Any, device: str, narrow: bool, own: bool) -> Kind:
    """The one object for what launchers must know of an array: they compare it by identity.

    `own`: the memory is of ruda's pool, so that no other storage overlaps it.
    """
    found = array_type, device, narrow, own
    return _kinds.setdefault(found, found)


def kind_of(array: Any) -> Kind:
    """That of a device array, which keeps it; AttributeError for anything else."""
    narrow = all(n < NARROW for n in array.shape)
    own = type(array.storage.owner) is PoolBlock
    found = array.__ruda_kind__ = kind(type_of(array), array.__ruda_device__, narrow, own)
    return found


def fast(
    module: Module,
    launch: Launch,
    other: Callable[..., None],
    guards: Sequence[tuple[Any, Any, Any]],
) -> Callable[..., None]:
    """A launcher for device arrays and numbers, as text with everything fixed in its scope."""
    gpu, shape = module.gpu, shape_of(module, launch)
    text, offsets = layout(module.metadata["parameters"])
    packer = struct.Struct(text)
    blocks = [Block(packer.size, offsets)]
    scope: dict[str, Any] = {
        "other": other, "blocks": blocks, "Block": Block, "size": packer.size, "offsets": offsets,
        "pack": packer.pack_into, "driver_launch": gpu.driver.cuLaunchKernel,
        "function": module.function, "stream": gpu.driver.CUstream(0),
        "recent": gpu.recent.append, "name": module.name,
        "getframe": sys._getframe, "failed": functools.partial(_failed, module),
        "error": struct.error, "kind_of": kind_of, "missing": object(),
        "configured": kernel.Configured.__call__.__code__,
    }  # fmt: skip
    names = [f"a{k}" for k in range(len(module.types))]
    tests: list[str] = []
    foreign: list[str] = []  # the same for arrays that are in other libraries' memory
    for k, row in enumerate(module.types):
        if isinstance(row, ArrayType):
            scope |= {f"t{k}": kind(row, gpu.name, True, True)}
            scope |= {f"u{k}": kind(row, gpu.name, True, False)}
            tests.append(f"(a{k}.__ruda_kind__ or kind_of(a{k})) is t{k}")
            foreign.append(f"(a{k}.__ruda_kind__ or kind_of(a{k})) in (t{k}, u{k})")
        else:
            scope[f"t{k}"] = WEAK.get(row.name) or row.numpy.type
            test = f"type(a{k}) is t{k}"
            if k in module.fits:
                low, high = module.fits[k]
                test += f" and {low} <= a{k} <= {high}"
            tests.append(test)
            foreign.append(test)
    for k, (holder, key, value) in enumerate(guards):
        scope |= {f"h{k}": holder, f"k{k}": key, f"v{k}": value}
        now = f"h{k}.cell_contents" if key is None else f"h{k}[k{k}]"
        tests.append(f"{now} is v{k}")
        foreign.append(f"{now} is v{k}")
    pairs = module.metadata["apart"]
    apart = " and ".join(f"a{k}.storage is not a{other}.storage" for k, other in pairs) or "True"
    threads = str(threads_along_x(launch))
    rows = module.metadata["parameters"]
    packed = [threads if row[0] == "threads" else _packed(row, module.types) for row in rows]
    scope |= {"asarray": np.asarray, "u16": np.uint16, "__name__": __name__}
    scope["overlapping"] = Overlapping(module, launch)
    numbers = ", ".join(map(str, shape))
    condition, outside = (" and ".join(rows) or "True" for rows in (tests, foreign))
    # A block is taken from the list, so that two threads never pack the same one.
    text = f"""
def launch({", ".join([*(f"{n}=missing" for n in names), "*rest"])}, **keywords):
    code = function
    try:
        good = {condition} and not rest and not keywords
        if good:
            if not ({apart}):
                code = overlapping.function()
        elif {outside} and not rest and not keywords:
            good, code = True, overlapping.function()
    except (AttributeError, ValueError, KeyError):
        good = False
    if not good:
        given = [a for a in ({"".join(f"{n}, " for n in names)}) if a is not missing]
        return other(*given, *rest, **keywords)
    try:
        block = blocks.pop()
    except IndexError:
        block = Block(size, offsets)
    try:
        pack({", ".join(["block.buffer", "0", *packed])})
    except error:
        return other({", ".join(names)})
    frame = getframe(1)
    caller = frame.f_code
    if caller is configured:
        frame = frame.f_back
        caller = frame.f_code
    recent((name, caller, frame.f_lasti))
    (error_code,) = driver_launch(code, {numbers}, stream, block.address, 0)
    if error_code:
        failed(error_code, code, block.address, {numbers})
    blocks.append(block)
"""
    exec(compile(text, "<ruda launcher>", "exec"), scope)
    launcher: Callable[..., None] = scope["launch"]
    return launcher


def bound(module: Module, launch: Launch, given: Sequence[Any]) -> Callable[..., None] | None:
    """A launcher for arguments as the given ones: arrays of their types, shapes and strides.

    It is called by plans, which know what they pass: nothing is looked at but the addresses of
    arrays, also of larger ones that they are views of, and numbers. None: not for this kernel.
    """
    if is_general(module, launch):
        return None
    from ruda.backends.cuda import quick

    module = fitting(module, launch, given)
    gpu, shape, metadata = module.gpu, shape_of(module, launch), module.metadata
    quick.prepare(gpu)
    # Arrays that lie as these do overlap where their first elements are as near as this.
    near = []
    for k, other in metadata["apart"]:
        (low, high), (start, end) = (
            [at - given[j].pointer for at in span_of(given[j])] for j in (k, other)
        )
        if given[k].size and given[other].size:
            near.append(f"{low - end} < a{other}.pointer - a{k}.pointer < {high - start}")
    code = f"overlapping.function() if {' or '.join(near)} else function" if near else "function"
    text, offsets = layout(metadata["parameters"])
    packer = struct.Struct(text)
    scope: dict[str, Any] = {
        "blocks": [Block(packer.size, offsets)], "Block": Block, "size": packer.size,
        "offsets": offsets, "pack": packer.pack_into, "driver_launch": gpu.driver.cuLaunchKernel,
        "function": module.function, "stream": gpu.driver.CUstream(0),
        "gpu": gpu, "name": module.name,
        "failed": functools.partial(_failed, module), "asarray": np.asarray, "u16": np.uint16,
        "observers": observers, "observed": observed, "device": gpu.name, "__name__": __name__,
        "overlapping": Overlapping(module, launch),
    }  # fmt: skip

    def packed(row: Sequence[Any]) -> str:
        known = fixed(row, launch, given)
        return _packed(row, module.types) if known is None else str(known)

    numbers = ", ".join(map(str, shape))
    values = ", ".join(["block.buffer", "0", *map(packed, metadata["parameters"])])
    text = f"""
def launch({", ".join(f"a{k}" for k in range(len(module.types)))}):
    try:
        block = blocks.pop()
    except IndexError:
        block = Block(size, offsets)
    pack({values})
    chosen = {code}
    gpu.note(name)
    if observers:
        with observed("kernel", name, device):
            (code,) = driver_launch(chosen, {numbers}, stream, block.address, 0)
    else:
        (code,) = driver_launch(chosen, {numbers}, stream, block.address, 0)
    if code:
        failed(code, chosen, block.address, {numbers})
    blocks.append(block)
"""
    exec(compile(text, "<ruda launcher>", "exec"), scope)
    launcher: Callable[..., None] = scope["launch"]
    return launcher


def is_general(module: Module, launch: Launch) -> bool:
    """Whether a launch goes the general way, whatever its arguments are."""
    metadata = module.metadata
    only = metadata["sites"] or metadata["cooperative"] or metadata["phases"]
    return bool(only or handle_of(launch.stream))


def fitting(module: Module, launch: Launch, given: Sequence[Any]) -> Module:
    """The module, or the one for as long arrays as the given ones."""
    arrays = [v for v in given if isinstance(v, DeviceArray)]
    huge = module.metadata["narrow"] and is_huge(launch, arrays)
    return made_assuming((), module) if huge else module


def fixed(row: Sequence[Any], launch: Launch, given: Sequence[Any]) -> int | None:
    """A parameter that is the same for all arrays that lie as the given ones do; else None."""
    match row:
        case ["threads", _]:
            return threads_along_x(launch)
        case ["extent", k, axis, _]:
            return int(given[k].shape[axis])
        case ["stride", k, axis]:
            return int(given[k].strides[axis])
    return None


def _packed(row: Sequence[Any], kinds: Sequence[Any]) -> str:
    match row:
        case ["pointer", k]:
            return f"a{k}.pointer"
        case ["extent", k, axis, _]:
            return f"a{k}.shape[{axis}]"
        case ["stride", k, axis]:
            return f"a{k}.strides[{axis}]"
        case ["scalar", k, kind, part]:
            if kind in ("c64", "c128"):
                return f"a{k}.{'imag' if part else 'real'}"
            if kind in ("f16", "bf16"):
                return f"int(asarray(a{k}).view(u16))"
            return f"bool(a{k})" if kind == "bool" else f"a{k}"
    raise LaunchError(f"no fast way for {row}")


class Overlapping:
    """The code for arguments that overlap, or may: of the same parameters, compiled when needed."""

    def __init__(self, module: Module, launch: Launch) -> None:
        self.module, self.launch, self.made = module, launch, None

    def function(self) -> Any:
        if self.made is None:
            module = self.module
            if module.metadata["apart"]:
                module = made_assuming(("narrow",), module)
                parts(module, self.launch)  # which looks at its limits
            self.made = module.function
        return self.made


def _failed(module: Module, code: Any, function: Any, parameters: int, *shape: int) -> None:
    """A launch that the driver refused: in a new thread the context is not there yet, and where
    several GPUs take turns it may be another's."""
    gpu = module.gpu
    if int(code) in ELSEWHERE:
        gpu.use()
        (code,) = gpu.driver.cuLaunchKernel(function, *shape, 0, parameters, 0)
        if not code:
            return
    if gpu.lost:
        raise DeviceError(gpu.lost)
    raise gpu.fail(code, f" at the launch of `{module.name}`")
