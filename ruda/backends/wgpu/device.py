"""WebGPU as a device: kernels become pipelines, launches become batched dispatches."""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ruda.backends.base import (
    Binary,
    Bytes,
    DeviceArray,
    DeviceInfo,
    Event,
    HostMemory,
    Launch,
    Source,
    Storage,
    Stream,
    tell_moved,
)
from ruda.backends.wgpu import adapter as adapters
from ruda.backends.wgpu.widths import Widths, spans, start_of
from ruda.errors import (
    DeviceError,
    DeviceNotFoundError,
    KernelError,
    LaunchTypeError,
    LaunchValueError,
    Place,
    UnsupportedError,
)
from ruda.jit.ir import Array, Function, Variable
from ruda.settings import settings

FORMAT = {
    "u32": "I", "i32": "i", "f32": "f", "i64": "q", "u64": "Q", "f64": "d", "c64": "ff",
    "c128": "dd", "bool": "I", "I64": "q", "U64": "Q",
}  # fmt: skip
MAX_GROUPS = 64  # bind groups that a pipeline keeps


def number_of(device: str) -> int:
    _, _, number = device.partition(":")
    return int(number) if number.isdigit() else 0


@functools.cache
def queue_of(number: int) -> Any:
    from ruda.backends.wgpu.queue import Queue

    return Queue(adapter_of(number))


def adapter_of(number: int) -> Any:
    found = adapters.adapters()
    if number >= len(found):
        raise DeviceNotFoundError(
            f"no device 'wgpu:{number}': there are {len(found)} WebGPU adapters"
        )
    return found[number]


@functools.cache
def caps_of(number: int) -> Mapping[str, Any]:
    return adapters.caps(adapter_of(number))


class WgpuBackend(HostMemory):
    """Backend "wgpu"; see `ruda.backends.base.Backend`."""

    name = "wgpu"

    def devices(self) -> Sequence[DeviceInfo]:
        """The adapters; none where wgpu or a driver is missing (`missing` tells which)."""
        try:
            found = adapters.adapters()
        except DeviceNotFoundError:
            return []
        out = []
        for k, a in enumerate(found):
            kind = "software" if adapters.is_software(a) else "hardware"
            sizes = [a.info.get(f"stackgroup_{which}_size") for which in ("min", "max")]
            properties = {**caps_of(k), "subgroup_sizes": tuple(n for n in sizes if n)}
            out.append(DeviceInfo(f"wgpu:{k}", a.info["device"], kind, properties))
        return out

    def missing(self) -> str | None:
        """Why there is no device; None if there is one."""
        try:
            adapters.adapters()
        except DeviceNotFoundError as error:
            return str(error)
        return None

    def target(self, device: str) -> Mapping[str, Any]:
        """What the adapter has; what every browser has where there is no adapter."""
        try:
            return caps_of(number_of(device))
        except DeviceNotFoundError:
            return adapters.PORTABLE

    def needs_block(self, function: Function) -> bool:
        """WGSL has the size of a workgroup in its text."""
        return True

    # ---- compilation

    def emit(self, function: Function, target: Mapping[str, Any]) -> Source:
        """IR -> WGSL, pure: the narrow form without aliases, or the wide one."""
        return Module(function, target, "").plain()

    def compile(self, source: Source, target: Mapping[str, Any]) -> Binary:
        return Binary(source.text.encode(), {})

    def load(self, binary: Binary, function: Function | None, device: str) -> Module:
        assert function is not None  # these binaries are not kept on disk
        number = number_of(device)
        module = Module(function, caps_of(number), device)
        module.queue = queue_of(number)
        return module

    def resolves(self, symbol: str) -> bool:
        return False

    def launcher(
        self, module: Module, launch: Launch, fallback: Callable[..., Any] | None
    ) -> Callable[..., None]:
        check_launch(module, launch)

        def run(*arguments: Any) -> None:
            execute(module, launch, arguments)

        run.is_native = False  # type: ignore[attr-defined]
        return run

    # ---- memory

    def allocate(
        self, nbytes: int, device: str, kind: str = "device", stream: Stream | None = None
    ) -> Storage:
        if kind != "device":
            return super().allocate(nbytes, device, kind, stream)
        buffer = queue_of(number_of(device)).allocate(nbytes)
        return Storage(device, _addresses(nbytes), nbytes, buffer, False)

    def map(self, ary: np.ndarray[Any, Any], device: str) -> DeviceArray:
        raise DeviceError(f"{device} cannot see the memory of a NumPy array: copy it to the device")

    def read(self, storage: Storage, offset: int, out: Bytes, stream: Stream | None) -> None:
        if storage.on_host:
            super().read(storage, offset, out, stream)
        else:
            queue_of(number_of(storage.device)).read(storage.owner, offset, out)

    def write(self, storage: Storage, offset: int, data: Bytes, stream: Stream | None) -> None:
        if storage.on_host:
            super().write(storage, offset, data, stream)
        else:
            queue_of(number_of(storage.device)).write(storage.owner, offset, data)

    def stream(self, device: str) -> Stream:
        queue_of(number_of(device))
        return WgpuStream(device)

    def event(self, device: str, timing: bool = True) -> Event:
        return WgpuEvent(device, timing)

    def synchronize(self, device: str) -> None:
        queue_of(number_of(device)).wait()

    def memory_info(self, device: str) -> tuple[int, int]:
        """WebGPU does not tell: what one buffer may have, less what is in use."""
        number = number_of(device)
        whole = int(adapter_of(number).limits["max-buffer-size"])
        return max(0, whole - queue_of(number).pool.in_use), whole

    def memory_statistics(self, device: str) -> Mapping[str, int]:
        """Bytes in use, kept for reuse, the most ever in use; counts of requests."""
        found: Mapping[str, int] = queue_of(number_of(device)).pool.statistics()
        return found

    def empty_cache(self, device: str) -> None:
        """Give memory that no array holds back to the device."""
        queue = queue_of(number_of(device))
        queue.trim()
        queue.pool.empty()


class WgpuStream(Stream):
    """The queue of a device: there is one, so streams only wait for it."""

    def synchronize(self) -> None:
        BACKEND.synchronize(self.device)

    def add_callback(self, callback: Callable[[Stream, int, Any], Any], arg: Any = None) -> None:
        self.synchronize()
        callback(self, 0, arg)

    def async_done(self) -> Any:
        self.synchronize()
        return super().async_done()


class WgpuEvent(Event):
    """A moment of the queue; recording one waits for it."""

    def record(self, stream: Stream | None = None) -> None:
        BACKEND.synchronize(self.device)
        super().record(stream)


_next_address = 1 << 44


def _addresses(nbytes: int) -> int:
    """Numbers that tell buffers apart; nothing lies there."""
    global _next_address
    found = _next_address
    _next_address += -(-max(nbytes, 1) // 4096) * 4096
    return found


# ---- modules -------------------------------------------------------------------------------------


@dataclass
class Form:
    """A kernel's text for one variant, and its pipelines by words of dynamic shared memory."""

    source: Source
    pack: struct.Struct
    layout: Any = None
    shader: Any = None
    pipelines: dict[int, Any] = field(default_factory=dict)
    groups: dict[Any, Any] = field(default_factory=dict)
    constants: list[Any] | None = None  # buffers of large captured arrays


@dataclass(eq=False)
class Module:
    """A kernel on a device: its lowered IR, and the forms that launches have asked for."""

    function: Function
    target: Mapping[str, Any]
    device: str
    queue: Any = None
    forms: dict[Any, Form] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from ruda.jit import passes
        from ruda.jit.passes.reports import lower_reports

        reporting, self.sites = lower_reports(self.function)
        self.warned: set[Any] = set()  # places of notes that were told
        self.lowered = passes.lower(reporting, "wgpu")
        self.arrays = [
            (k, p) for k, p in enumerate(self.function.parameters) if isinstance(p, Array)
        ]
        self.scalars = any(isinstance(p, Variable) for p in self.function.parameters)
        self.widths = Widths(self.lowered)

    def plain(self) -> Source:
        """The text that a simple launch uses."""
        from ruda.backends.wgpu.emit import plain_variant

        return self.form(plain_variant(self.function)).source

    def form(self, variant: Any) -> Form:
        """The form for a variant, or its wide one if indices do not fit 31 bits."""
        from ruda.backends.wgpu.emit import NeedsWide, emit

        found = self.forms.get(variant)
        if found is None:
            try:
                source = emit(self.lowered, self.sites, self.target, variant)
            except NeedsWide:
                assert not variant.wide
                found = self.forms[variant] = self.form(replace(variant, wide=True))
                return found
            parameters = source.options["parameters"]
            pack = struct.Struct("<" + "".join(FORMAT[p.kind] for p in parameters))
            found = self.forms[variant] = Form(source, pack)
        return found


def check_launch(module: Module, launch: Launch) -> None:
    """What the adapter cannot run, told before anything is compiled."""
    name, target = module.function.name, module.target
    threads = math.prod(launch.block)
    if threads > target["max_threads"]:
        raise LaunchValueError(
            f"`{name}`: {threads} threads a block; {target['adapter']!r} runs "
            f"{target['max_threads']}"
        )


def build(module: Module, form: Form, launch: Launch) -> Any:
    """The pipeline of a form for an amount of dynamic shared memory."""
    words = -(-launch.shared_bytes // 4) if form.source.options["dynamic"] else 0
    pipeline = form.pipelines.get(words)
    if pipeline is None:
        check_limits(module, form, launch)
        if settings.debug >= 4:
            print(form.source.text)
        pipeline = form.pipelines[words] = compile_form(module, form, words)
    return pipeline


def check_limits(module: Module, form: Form, launch: Launch) -> None:
    name, target, options = module.function.name, module.target, form.source.options
    shared = options["shared"] + (launch.shared_bytes if options["dynamic"] else 0)
    if shared > target["max_shared"]:
        raise LaunchValueError(
            f"`{name}` uses {shared} bytes of shared memory; {target['adapter']!r} has "
            f"{target['max_shared']}"
        )
    count = len(options["buffers"]) + len(options["constants"]) + options["reports"]
    if count > target["max_buffers"]:
        raise LaunchValueError(
            f"`{name}` has {count} arrays; {target['adapter']!r} binds {target['max_buffers']}: "
            "put several into one"
        )


def compile_form(module: Module, form: Form, words: int) -> Any:
    """Shader, explicit layout and pipeline. An error comes back at the user's line."""
    wgpu, device = adapters.runtime(), module.queue.device
    options = form.source.options
    try:
        if form.shader is None:
            form.shader = device.create_shader_module(code=form.source.text)
        if form.layout is None:
            visible = wgpu.ShaderStage.COMPUTE
            uniform = {"type": "uniform", "has_dynamic_offset": True}
            entries = [{"binding": 0, "visibility": visible, "buffer": uniform}]
            constants = [False] * len(options["constants"])
            kinds = [*options["buffers"], *constants, *([True] if options["reports"] else [])]
            for k, written in enumerate(kinds):
                kind = {"type": "storage" if written else "read-only-storage"}
                entries.append({"binding": k + 1, "visibility": visible, "buffer": kind})
            form.layout = device.create_bind_group_layout(entries=entries)
        layout = device.create_pipeline_layout(bind_group_layouts=[form.layout])
        compute: dict[str, Any] = {"module": form.shader, "entry_point": "main"}
        if options["dynamic"]:
            compute["constants"] = {"dynamic_count": max(1, words)}
        return device.create_compute_pipeline(layout=layout, compute=compute)
    except wgpu.GPUError as error:
        raise compile_error(form.source, error, module) from error


def compile_error(source: Source, error: Exception, module: Module) -> KernelError:
    """The driver's message at the line of the kernel that it is about."""
    text = str(error).strip()
    found = re.search(r"wgsl:(\d+)", text)
    line = 0
    if found and int(found[1]) <= len(source.lines):
        line = source.lines[int(found[1]) - 1]
    place = Place(source.file, line) if line else module.function.place
    problem = UnsupportedError(f"the WGSL compiler refuses this kernel: {text}", place)
    problem.add_note("this is a mistake in ruda's WGSL, please report it")
    return problem


# ---- launches ------------------------------------------------------------------------------------


@dataclass
class Memory:
    """Arguments that share memory: a buffer, and the address that it begins at."""

    buffer: Any
    low: int
    high: int
    members: list[int]
    host: bool


def memories(module: Module, arguments: Sequence[Any]) -> list[Memory]:
    """The arrays of a launch, those that overlap together."""
    found: list[Memory] = []
    for k, p in module.arrays:
        value = arguments[k]
        if isinstance(value, np.ndarray):
            low, high = spans(value)
            mine = [m for m in found if m.host and m.low < high and low < m.high]
            members = [k]
            for m in mine:
                low, high = min(low, m.low), max(high, m.high)
                members += m.members
                found.remove(m)
            found.append(Memory(None, low, high, sorted(members), True))
        elif isinstance(value, DeviceArray) and value.storage.device.startswith("wgpu"):
            s = value.storage
            same = next((m for m in found if m.buffer is s.owner), None)
            if same is not None:
                same.members.append(k)
            else:
                found.append(Memory(s.owner, s.address, s.address + s.nbytes, [k], False))
        else:
            raise LaunchTypeError(
                f"argument `{p.name}` of kernel `{module.function.name}` is an array, "
                f"not {type(value).__name__}"
            )
    return sorted(found, key=lambda m: m.members[0])


def check_arrays(module: Module, arguments: Sequence[Any]) -> None:
    from ruda.jit.types import element_type

    for k, p in module.arrays:
        value = arguments[k]
        where = f"argument `{p.name}` of kernel `{module.function.name}`"
        if getattr(value, "ndim", None) != p.ndim or element_type(value.dtype) != p.dtype:
            raise LaunchTypeError(f"{where} is a {p.ndim}-d array of {p.dtype}")


def execute(module: Module, launch: Launch, arguments: Sequence[Any]) -> None:
    """Run a launch: record it if all arrays are on the device, else copy in, run, copy out."""
    from ruda.backends.wgpu.emit import Variant
    from ruda.jit.interpret import evaluate_prologue

    name, queue = module.function.name, module.queue
    check_arrays(module, arguments)
    scalars = evaluate_prologue(module.function, arguments) if module.scalars else {}
    groups = memories(module, arguments)
    number = {k: g for g, m in enumerate(groups) for k in m.members}
    fold, counts = fold_grid(module, launch)
    wide = module.widths.is_wide(launch, arguments, scalars)
    bound = tuple(number[k] for k, _ in module.arrays)
    variant = Variant(bound, wide, fold, settings.missing, settings.wgpu_dialect)
    form = module.form(variant)
    options = form.source.options
    with queue.lock:
        queue.check()
        pipeline = build(module, form, launch)
        limit = module.target["max_binding"]
        for m in groups:
            nbytes = m.high - m.low
            if nbytes > limit:
                raise LaunchValueError(
                    f"`{name}`: {nbytes} bytes in one array; {module.target['adapter']!r} "
                    f"binds {limit}"
                )
            if m.host:
                m.low -= m.low % 4 if nbytes else 0
                m.buffer = queue.allocate(max(m.high - m.low, 4))
                if nbytes:
                    queue.fill(m.buffer, host_bytes(m))
        report = None
        if options["reports"]:
            from ruda.backends.cpu import reports

            words = reports.buffer(settings.report_bytes)
            report = queue.allocate(words.nbytes)
            queue.fill(report, words.view(np.uint8))
        block = form.pack.pack(
            *block_values(options["parameters"], launch, arguments, scalars, groups, number)
        )
        group = bind(form, queue, groups, report, len(block))
        queue.dispatch(pipeline, group, block, counts, (groups, report, group))
        written = dict(zip((k for k, _ in module.arrays), options["written"], strict=True))
        moved = sum(m.high - m.low for m in groups if m.host)
        copied = False
        for m in groups:
            if m.host and m.high > m.low and any(written[k] for k in m.members):
                copy_back(queue, m, [arguments[k] for k in m.members if is_written(module, k)])
                copied = True
                moved += m.high - m.low
        if any(m.host for m in groups) and not copied:
            queue.wait()
        if report is not None:
            tell(module, launch, queue, report)
    if moved:
        tell_moved(name, moved)


def is_written(module: Module, k: int) -> bool:
    return k in written_parameters(module)


def written_parameters(module: Module) -> frozenset[int]:
    found = getattr(module, "_written", None)
    if found is None:
        from ruda.jit import ir

        names = {
            s.array.name
            for s in ir.statements(module.lowered.body)
            if isinstance(s, (ir.Store, ir.Atomic))
        }
        found = frozenset(k for k, p in module.arrays if p.name in names)
        module._written = found  # type: ignore[attr-defined]
    return found


def tell(module: Module, launch: Launch, queue: Any, report: Any) -> None:
    """Print what was printed, raise what was found."""
    from ruda.backends.cpu import reports

    head = queue.read_words(report, 0, 24).view(np.int64)
    if not head[0]:
        return
    used = min(int(head[0]), int(head[1])) + 3
    words = queue.read_words(report, 0, 8 * used).view(np.int64)
    reports.tell(words, module.sites, launch, module.function.name, module.warned)


def host_bytes(m: Memory) -> np.ndarray[Any, Any]:
    from ruda.backends.base import _at

    return _at(m.low, (m.high - m.low,), np.dtype(np.uint8), None, m)


def copy_back(queue: Any, m: Memory, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
    nbytes = m.high - m.low
    whole = -(-nbytes // 4) * 4
    with queue.mapped(m.buffer, 0, whole) as data:
        raw = np.frombuffer(data, np.uint8, nbytes)
        for a in arrays:
            if a.size == 0:
                continue
            offset = start_of(a) - m.low
            a[...] = np.ndarray(a.shape, a.dtype, raw, offset, a.strides)


def bind(form: Form, queue: Any, groups: Sequence[Memory], report: Any, size: int) -> Any:
    """The bind group of some buffers, from the cache or new."""
    constants = constants_of(form, queue)
    buffers = [m.buffer for m in groups] + constants + ([report] if report is not None else [])
    sizes = [max(4, -(-(m.high - m.low) // 4) * 4) for m in groups]
    sizes += [b.size for b in constants] + ([report.size] if report is not None else [])
    key = tuple((id(b.address), n) for b, n in zip(buffers, sizes, strict=True))
    found = form.groups.get(key)
    if found is None:
        if len(form.groups) >= MAX_GROUPS:
            form.groups.pop(next(iter(form.groups)))
        rows = [{"binding": 0, "resource": {"buffer": queue.ring, "offset": 0, "size": size}}]
        for k, (b, n) in enumerate(zip(buffers, sizes, strict=True)):
            rows.append(
                {"binding": k + 1, "resource": {"buffer": b.address, "offset": 0, "size": n}}
            )
        group = queue.device.create_bind_group(layout=form.layout, entries=rows)
        # The key's ids are good as long as the entry holds the buffers.
        found = form.groups[key] = group, [b.address for b in buffers]
    return found[0]


def constants_of(form: Form, queue: Any) -> list[Any]:
    """The buffers of captured arrays, made once."""
    if form.constants is None:
        form.constants = []
        for data in form.source.options["constants"]:
            buffer = queue.allocate(len(data))
            queue.fill(buffer, np.frombuffer(data, np.uint8))
            form.constants.append(buffer)
    return form.constants


def fold_grid(module: Module, launch: Launch) -> tuple[bool, tuple[int, int, int]]:
    """Whether the grid is folded, and the workgroups to dispatch."""
    most = module.target["max_groups"]
    if max(launch.grid) <= most:
        return False, launch.grid
    blocks = math.prod(launch.grid)
    rows = -(-blocks // most)
    if rows > most or blocks >= 1 << 32:
        raise LaunchValueError(
            f"`{module.function.name}`: {blocks} blocks; {module.target['adapter']!r} runs "
            f"{min(most * most, (1 << 32) - 1)} in one launch"
        )
    columns = -(-blocks // rows)
    return True, (columns, rows, 1)


def block_values(
    parameters: Sequence[Any],
    launch: Launch,
    arguments: Sequence[Any],
    scalars: Mapping[str, Any],
    groups: Sequence[Memory],
    number: Mapping[int, int],
) -> list[Any]:
    """What the fields of the parameter block are in a launch."""
    out: list[Any] = []
    for p in parameters:
        match p.source:
            case ("zero",):
                out.append(0)
            case ("grid", axis):
                out.append(launch.grid[axis])
            case ("blocks",):
                out.append(math.prod(launch.grid))
            case ("shared",):
                out.append(launch.shared_bytes)
            case ("base", k):
                a = arguments[k]
                out.append(0 if a.size == 0 else (start_of(a) - groups[number[k]].low) // p.unit)
            case ("extent", k, axis):
                out.append(arguments[k].shape[axis])
            case ("stride", k, axis):
                a = arguments[k]  # the stride of an axis of one element is anything, and unused
                far = a.size == 0 or (p.only_address and a.shape[axis] == 1)
                out.append(0 if far else a.strides[axis] // p.unit)
                if p.kind == "u32":  # an address: only its low word counts
                    out[-1] &= 0xFFFFFFFF
            case ("scalar", name):
                value = scalars[name]
                if p.kind in ("c64", "c128"):
                    out += [float(value.real), float(value.imag)]
                elif p.kind in ("f32", "f64"):
                    out.append(float(value))
                else:
                    out.append(int(value))
    return out


BACKEND = WgpuBackend()
