"""Launches on WebGPU: arguments become bindings and a block of words, and a recorded dispatch.

A launch on device arrays is only recorded; the queue submits it with others. One on NumPy arrays
copies in, runs, and copies what was written back. A launch that was made before with the same
arrays and numbers is a `Plan` that only has to be recorded again.
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ruda.backends.base import DeviceArray, Launch, asked, tell_moved
from ruda.backends.wgpu.modules import LONGEST, Form, Module, Vectors, build
from ruda.backends.wgpu.widths import spans, start_of
from ruda.errors import LaunchTypeError, LaunchValueError
from ruda.jit import kernel
from ruda.jit.ir import Array
from ruda.settings import settings

MAX_GROUPS = 64  # bind groups that a pipeline keeps
MAX_PLANS = 128  # plans that a launcher keeps
ALIGN = SLOT = 256  # of a binding's offset in its buffer
WEAK = {"weak_int": int, "weak_float": float, "weak_complex": complex}
Guards = Sequence[tuple[Any, Any, Any]]


def check_launch(module: Module, launch: Launch) -> None:
    """What the adapter cannot run, told before anything is compiled."""
    name, target = module.function.name, module.target
    threads = math.prod(launch.block)
    if threads > target["max_threads"]:
        raise LaunchValueError(
            f"`{name}`: {threads} threads a block; {target['adapter']!r} runs "
            f"{target['max_threads']}"
        )


# ---- launchers -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Plan:
    """A launch on device arrays, ready to be recorded again."""

    arrays: tuple[Any, ...]  # weak references: the arrays that it is for
    pipeline: Any
    group: Any
    block: bytes
    counts: tuple[int, int, int]
    guarded: bool  # whether its loops are watched (see `Queue.settle`)
    slots: int = 0  # of the ring that the block takes
    batch: Any = None  # in which the block was last written to the ring
    at: int = 0  # and where

    def __post_init__(self) -> None:
        self.slots = -(-len(self.block) // SLOT)


_local = threading.local()


def launcher(
    module: Module, launch: Launch, fallback: Callable[..., Any] | None, guards: Guards
) -> Callable[..., None]:
    """A callable for a kernel's arguments; what does not fit goes to `fallback`, once."""
    check_launch(module, launch)
    plans: dict[Any, Plan] = {}

    def general(*arguments: Any) -> None:
        plan = execute(module, launch, arguments)
        if plan is not None and direct:
            key = key_of(*arguments)
            if len(plans) >= MAX_PLANS:
                plans.clear()
            if key is not None:
                plans[key] = plan

    # Reports and phases need memory of the launch: nothing of it can be recorded again.
    direct = not module.sites and module.phases is None
    if not direct:
        general.is_native = False  # type: ignore[attr-defined]
        return general

    def other(*arguments: Any, **keywords: Any) -> Any:
        """Arguments without a plan: those that the kernel was made for, or else `fallback`'s."""
        if not keywords and all(_unchanged(*g) for g in guards) and suits(module, arguments):
            return general(*arguments)
        if fallback is None or getattr(_local, "tried", None) is fallback:
            raise LaunchTypeError(f"`{module.function.name}`: the arguments do not fit")
        before, _local.tried = getattr(_local, "tried", None), fallback
        try:
            return fallback(*arguments, **keywords)
        finally:
            _local.tried = before

    key_of, run = _fast(module, plans, other, guards)
    return run


def _unchanged(holder: Any, key: Any, value: Any) -> bool:
    try:
        return (holder.cell_contents if key is None else holder.get(key)) is value
    except ValueError:  # an empty cell
        return False


def suits(module: Module, arguments: Sequence[Any]) -> bool:
    """Whether the kernel was made for arguments of these types."""
    from ruda.jit.types import ArrayType, type_of

    parameters = module.function.parameters
    if len(arguments) != len(parameters):
        return False
    for k, (value, p) in enumerate(zip(arguments, parameters, strict=True)):
        if isinstance(p, Array):
            if not isinstance(value, np.ndarray | DeviceArray):
                return False
            if isinstance(value, DeviceArray) and value.storage.device != module.device:
                return False
            found = type_of(value)
            assert isinstance(found, ArrayType)
            if (found.dtype, found.ndim) != (p.dtype, p.ndim):
                return False
            if p.layout not in ("A", found.layout) or (p.aligned and not found.aligned):
                return False
            if found.readonly and k in module.written:
                return False
        elif p.dtype.weak:
            if type(value) is not WEAK[p.dtype.name]:
                return False
        elif not isinstance(
            value, (bool, np.bool_) if p.dtype.kind == "bool" else p.dtype.numpy.type
        ):
            return False
    return True


def _fast(
    module: Module, plans: dict[Any, Plan], other: Callable[..., Any], guards: Guards
) -> tuple[Callable[..., Any], Callable[..., None]]:
    """The key of a plan and the launcher, as text with everything fixed in its scope."""
    scope: dict[str, Any] = {
        "get": plans.get, "other": other, "queue": module.queue, "missing": object(),
        "record": module.queue.record, "name": module.function.name,
        "getframe": sys._getframe, "kernels": vars(kernel),
        "__name__": __name__,  # warnings are about the user's line, not about this text
    }  # fmt: skip
    parameters = module.function.parameters
    names = [f"a{k}" for k in range(len(parameters))]
    parts: list[str] = []
    tests: list[str] = []
    for k, p in enumerate(parameters):
        if isinstance(p, Array):
            parts.append(f"id(a{k})")
            # A freed array has no pointer any more: asking for it says so.
            tests.append(f"plan.arrays[{len(tests)}]() is a{k} and a{k}.pointer")
        elif p.dtype.name in ("weak_int", "weak_float"):
            # Zeros are equal and may differ in the sign: their key is the digits. NaN is not equal
            # to itself.
            kind, text = {
                "weak_int": ("int", "{0}"),
                "weak_float": ("float", "(({0} or {0}.hex()) if {0} == {0} else 'nan')"),
            }[p.dtype.name]
            parts.append(f"({text.format(f'a{k}')} if type(a{k}) is {kind} else missing)")
        elif p.dtype.kind == "bool":
            parts.append(f"(a{k} if type(a{k}) is bool else missing)")
        else:
            scope[f"t{k}"] = p.dtype.numpy.type
            parts.append(f"(a{k}.tobytes() if type(a{k}) is t{k} else missing)")
    for k, (holder, key, value) in enumerate(guards):
        scope |= {f"h{k}": holder, f"k{k}": key, f"v{k}": value}
        now = f"h{k}.cell_contents" if key is None else f"h{k}.get(k{k})"
        tests.append(f"{now} is v{k}")
    key = "".join(f"{p}, " for p in parts)
    text = f"""
def key_of({", ".join(names)}):
    key = ({key})
    return None if missing in key else key

def launch({", ".join([*(f"{n}=missing" for n in names), "*rest"])}, **keywords):
    plan = get(({key}))
    try:
        good = plan is not None and not rest and not keywords and {" and ".join(tests) or "True"}
    except ValueError:
        good = False
    if good:
        frame = getframe(1)
        if frame.f_globals is kernels:
            frame = frame.f_back
        return record(plan, (name, frame.f_code, frame.f_lasti))
    given = [a for a in ({"".join(f"{n}, " for n in names)}) if a is not missing]
    return other(*given, *rest, **keywords)
"""
    exec(compile(text, "<ruda launcher>", "exec"), scope)
    return scope["key_of"], scope["launch"]


# ---- arguments -----------------------------------------------------------------------------------


@dataclass
class Memory:
    """Arguments that share memory: a buffer, and the part of it that is bound.

    `low` and `high` are addresses: of the host for arrays of the host, which get a buffer of
    their own at each launch, else such as device arrays have. The binding begins `offset` bytes
    into the buffer.
    """

    buffer: Any
    low: int
    high: int
    members: list[int]
    host: bool
    offset: int = 0


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
        elif isinstance(value, DeviceArray) and value.storage.device == module.device:
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
    found = sorted(found, key=lambda m: m.members[0])
    for m in found:
        fit_binding(module, m, arguments)
    return found


def fit_binding(module: Module, m: Memory, arguments: Sequence[Any]) -> None:
    """Bind a part of a large buffer, if the arguments lie in a part that may be bound."""
    limit = module.target["max_binding"]
    if m.high - m.low <= limit:
        return
    start, parts = m.low, [spans(arguments[k]) for k in m.members]
    if not m.host:
        low = min(part[0] for part in parts) - start
        m.offset = low - low % ALIGN
        m.low, m.high = start + m.offset, max(part[1] for part in parts)
    if m.high - m.low > limit:
        raise LaunchValueError(
            f"`{module.function.name}`: {m.high - m.low} bytes in one array; "
            f"{module.target['adapter']!r} binds {limit}: launch on parts of it"
        )


def check_arrays(module: Module, arguments: Sequence[Any]) -> None:
    from ruda.jit.types import element_type

    for k, p in module.arrays:
        value = arguments[k]
        where = f"argument `{p.name}` of kernel `{module.function.name}`"
        if getattr(value, "ndim", None) != p.ndim or element_type(value.dtype) != p.dtype:
            raise LaunchTypeError(f"{where} is a {p.ndim}-d array of {p.dtype}")


def kept_arrays(module: Module, launch: Launch) -> list[Any]:
    """The phase's number, and memory for what threads keep from phase to phase."""
    from ruda.backends.wgpu.device import BACKEND

    if module.phases is None:
        return []
    threads = (math.prod(launch.grid) * math.prod(launch.block),)
    arrays = [
        DeviceArray.allocate(BACKEND, module.device, threads, dtype.numpy)
        for dtype in module.phases.kept
    ]
    return [0, *(0 for _ in module.phases.rounds), *arrays]


def phases_of(
    module: Module, launch: Launch, arguments: Sequence[Any], scalars: Mapping[str, Any]
) -> Iterator[dict[str, int]]:
    """The phases of a launch, one after another, as the hidden scalars that name them."""
    if module.phases is None:
        yield {"phase?": 0}
        return
    from ruda.jit import rounds

    schedule, names = module.phases.schedule, module.phases.rounds
    shapes = {p.name: arguments[k].shape for k, p in module.arrays}
    sizes = rounds.launch_scalars(launch.grid, launch.block, launch.shared_bytes, shapes)
    for phase, values in rounds.phases(schedule, names, {**scalars, **sizes}):
        far = next((v for v in values if not -(1 << 31) <= v < 1 << 31), None)
        if far is not None:
            raise LaunchValueError(
                f"`{module.function.name}`: a loop around a barrier of the grid comes to {far}; "
                "on WebGPU its variable has 32 bits"
            )
        yield {"phase?": phase, **dict(zip(names, values, strict=True))}


# ---- running -------------------------------------------------------------------------------------


def execute(module: Module, launch: Launch, arguments: Sequence[Any]) -> Plan | None:
    """Run a launch: record it if all arrays are on the device, else copy in, run, copy out."""
    from ruda.backends.wgpu.emit import Variant
    from ruda.jit.interpret import evaluate_prologue

    queue, name = module.queue, module.function.name
    where = asked(name)
    queue.check()
    scalars = evaluate_prologue(module.function, arguments) if module.scalars else {}
    arguments = [*arguments, *kept_arrays(module, launch)]
    check_arrays(module, arguments)
    groups = memories(module, arguments)
    number = {k: g for g, m in enumerate(groups) for k in m.members}
    wide = module.widths.is_wide(launch, arguments, scalars)
    bound = tuple(number[k] for k, _ in module.arrays)
    threads = launch.grid[0] * launch.block[0]
    vectors = None if wide else in_vectors(module, launch, arguments, groups, number)
    if vectors is not None:
        launch = replace(launch, grid=vectors.shortened(launch))
    fold, counts = fold_grid(module, launch)
    variant = Variant(
        bound, wide, fold, settings.missing, settings.wgpu_dialect, vectors is not None
    )
    form = module.form(variant)
    options = form.source.options
    with queue.lock:
        pipeline = build(module, form, launch)
        for m in groups:
            if m.host:
                nbytes = m.high - m.low
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
        group = bind(form, queue, groups, report, form.pack.size)
        for hidden in phases_of(module, launch, arguments, scalars):
            number_of_ours = queue.number_of(name)
            scalars |= {**hidden, "kernel?": number_of_ours, "threads?": threads}
            block = form.pack.pack(
                *block_values(options["parameters"], launch, arguments, scalars, groups, number)
            )
            plan = Plan((), pipeline, group, block, counts, options["guarded"])
            queue.record(plan, where)
        finish(module, launch, arguments, groups, report)
    if any(m.host for m in groups) or report is not None:
        return None
    plan.arrays = tuple(weakref.ref(arguments[k]) for k, _ in module.arrays)
    return plan


def in_vectors(
    module: Module, launch: Launch, arguments: Sequence[Any], groups: Sequence[Memory],
    number: Mapping[int, int],
) -> Vectors | None:  # fmt: skip
    """The form with wide accesses, if the launch may use it."""
    if module.vectors is None or any(
        _bytes(m, LONGEST) > module.target["max_binding"] for m in groups
    ):
        return None
    starts = {}
    for k in module.vectors.widths:
        m = groups[number[k]]
        low = m.low - m.low % 4 if m.host and m.high > m.low else m.low  # as `execute` copies it
        starts[k] = 0 if arguments[k].size == 0 else start_of(arguments[k]) - low
    return module.vectors if module.vectors.serves(launch, arguments, starts) else None


def _bytes(m: Memory, unit: int) -> int:
    """What is bound of a memory: whole words, or whole vectors (of which its buffer is made)."""
    return max(unit, -(-(m.high - m.low) // unit) * unit)


def finish(
    module: Module, launch: Launch, arguments: Sequence[Any], groups: Sequence[Memory], report: Any
) -> None:
    """Copy to arrays of the host what was written, and tell what was reported."""
    queue, copied = module.queue, False
    moved = sum(m.high - m.low for m in groups if m.host)
    for m in groups:
        if m.host and m.high > m.low:
            written = [arguments[k] for k in m.members if k in module.written]
            if written:
                copy_back(queue, m, written)
                copied = True
                moved += m.high - m.low
    if any(m.host for m in groups) and not copied:
        queue.wait()
    if report is not None:
        tell(module, launch, queue, report)
    if moved:
        tell_moved(module.function.name, moved)


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
    with queue.mapped(m.buffer, 0, whole) as raw:
        for a in arrays:
            if a.size == 0:
                continue
            offset = start_of(a) - m.low
            a[...] = np.ndarray(a.shape, a.dtype, raw, offset, a.strides)


def bind(form: Form, queue: Any, groups: Sequence[Memory], report: Any, size: int) -> Any:
    """The bind group of some buffers, from the cache or new."""
    rows = [
        (m.buffer, m.offset, _bytes(m, 4 * width))
        for m, width in zip(groups, form.source.options["vectors"], strict=True)
    ]
    rows += [(b, 0, b.size) for b in constants_of(form, queue)]
    rows += [(report, 0, report.size)] if report is not None else []
    rows += [(queue.cut, 0, queue.cut.size)] if form.source.options["guarded"] else []
    key = tuple((id(b.address), offset, n) for b, offset, n in rows)
    found = form.groups.get(key)
    if found is None:
        if len(form.groups) >= MAX_GROUPS:
            form.groups.pop(next(iter(form.groups)))
        ring = {"buffer": queue.ring, "offset": 0, "size": size}
        entries: list[dict[str, Any]] = [{"binding": 0, "resource": ring}]
        for k, (b, offset, n) in enumerate(rows):
            place = {"buffer": b.address, "offset": offset, "size": n}
            entries.append({"binding": k + 1, "resource": place})
        group = queue.guarded(queue.device.create_bind_group, layout=form.layout, entries=entries)
        # The key's ids are good as long as the entry holds the buffers.
        found = form.groups[key] = group, [b.address for b, _, _ in rows]
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
            case ("zeros",):
                out += [0] * 8
            case ("zero",):
                out.append(0)
            case ("grid", axis):
                out.append(launch.grid[axis])
            case ("threads",):
                out.append(scalars["threads?"])
            case ("blocks",):
                out.append(math.prod(launch.grid))
            case ("shared",):
                out.append(launch.shared_bytes)
            case ("kernel",):
                out.append(scalars["kernel?"])
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
                    with np.errstate(all="ignore"):
                        z = np.complex64(value) if p.kind == "c64" else value
                    out += [float(z.real), float(z.imag)]
                elif p.kind == "f32":
                    with np.errstate(all="ignore"):  # of float64 where the device has none
                        out.append(float(np.float32(value)))
                elif p.kind == "f64":
                    out.append(float(value))
                else:
                    out.append(int(value))
    return out
