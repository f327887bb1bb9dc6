"""A kernel on a WebGPU device: its lowered IR, its texts, and the pipelines made of them."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ruda.backends.base import Launch, Source
from ruda.backends.wgpu import adapter as adapters
from ruda.backends.wgpu.widths import Widths
from ruda.errors import KernelError, LaunchValueError, Place, UnsupportedError
from ruda.jit import ir
from ruda.jit.ir import Array, Function, Variable, WideLoad, WideStore
from ruda.settings import settings

LONGEST = 16  # bytes of a wide access, at most
FORMAT = {
    "u32": "I", "i32": "i", "f32": "f", "i64": "q", "u64": "Q", "f64": "d", "c64": "ff",
    "c128": "dd", "bool": "I", "zeros": "8I", "I64": "q", "U64": "Q",
}  # fmt: skip


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


@dataclass(frozen=True)
class Vectors:
    """A kernel with wide accesses, and which array parameters need to lie where one may begin.

    Where they do is decided at each launch: the text for wide accesses has none that are not.
    """

    function: Function
    widths: Mapping[int, int]  # position of a parameter: bytes of its accesses

    @staticmethod
    def of(lowered: Function) -> Vectors | None:
        from ruda.jit.passes.coarsen import coarsen

        function = coarsen(lowered, placed=True)
        widths = {}
        for s in ir.statements(function.body):
            if isinstance(s, (WideLoad, WideStore)):
                lanes = len(s.results if isinstance(s, WideLoad) else s.values)
                k = function.parameters.index(s.array)
                widths[k] = lanes * s.array.dtype.itemsize
        return Vectors(function, widths) if widths else None

    def serves(self, launch: Launch, arguments: Sequence[Any], starts: Mapping[int, int]) -> bool:
        """Whether a launch may use it; `starts` are the arrays' first bytes in their bindings."""
        if (launch.grid[0] + 2 * self.function.lanes) * launch.block[0] >= 1 << 31:
            return False
        for k, width in self.widths.items():
            shape = arguments[k].shape
            if starts[k] % width or (len(shape) > 1 and shape[-1] * arguments[k].itemsize % width):
                return False
        return True

    def shortened(self, launch: Launch) -> tuple[int, int, int]:
        """The grid, of which a thread does several elements."""
        x, y, z = launch.grid
        return -(-x // self.function.lanes), y, z


# Operations that are an instruction or two.
SHORT = {
    "add", "sub", "mul", "neg", "abs", "and", "or", "xor", "not", "invert", "eq", "ne", "lt", "le",
    "gt", "ge", "min", "max", "wrap", "truediv", "sqrt",
}  # fmt: skip


def is_short(function: Function) -> bool:
    """Whether a text with each function five times over compiles at once.

    A driver that runs on the CPU compiles a hundred times longer than a GPU's, and the functions of
    mathematics are calls that all compilers inline.
    """
    ops = (e for e in ir.all_expressions(function.body) if isinstance(e, ir.Op))
    return all(e.name in SHORT for e in ops)


@dataclass(eq=False)
class Module:
    """A kernel on a device: its lowered IR, and the forms that launches have asked for.

    `arrays` are the array parameters with their positions; those that only phases know, which keep
    what threads hold from one barrier of the grid to the next, come last.
    """

    function: Function
    target: Mapping[str, Any]
    device: str
    queue: Any = None
    forms: dict[Any, Form] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from ruda.backends.wgpu.emit import demotes
        from ruda.jit import passes
        from ruda.jit.passes.demote import demote
        from ruda.jit.passes.indices import simplify
        from ruda.jit.passes.loads import share_loads
        from ruda.jit.passes.phases import hidden
        from ruda.jit.passes.reports import lower_reports
        from ruda.jit.passes.unroll import unroll, unroll_steps

        if settings.wgpu_dialect == "tint":
            self.target = adapters.browser(self.target)
        function = self.function
        if demotes(self.target, settings.missing):
            function = demote(function)
        reporting, self.sites = lower_reports(function)
        self.warned: set[Any] = set()  # places of notes that were told
        self.lowered = passes.lower(reporting, "wgpu")
        if not self.target.get("software"):  # whose compiler takes long for long texts
            self.lowered = simplify(unroll(unroll_steps(self.lowered)))
        self.lowered = share_loads(self.lowered)
        worth = not self.target.get("software") or is_short(self.lowered)
        self.vectors = Vectors.of(self.lowered) if worth else None
        parameters = self.lowered.parameters
        self.arrays = [(k, p) for k, p in enumerate(parameters) if isinstance(p, Array)]
        self.scalars = any(isinstance(p, Variable) for p in self.function.parameters)
        self.phases = hidden(self.lowered)
        self.widths = Widths(self.lowered)

    @functools.cached_property
    def written(self) -> frozenset[int]:
        """The positions of the arrays that the kernel writes."""
        names = {
            s.array.name
            for s in ir.statements(self.lowered.body)
            if isinstance(s, (ir.Store, ir.Atomic))
        }
        return frozenset(k for k, p in self.arrays if p.name in names)

    def plain(self) -> Source:
        """The text for arrays that lie anywhere, each on its own."""
        from ruda.backends.wgpu.emit import plain_variant

        return self.form(plain_variant(self.lowered)).source

    def usual(self) -> Source:
        """The text that a simple launch uses."""
        from ruda.backends.wgpu.emit import plain_variant

        variant = plain_variant(self.lowered)
        return self.form(replace(variant, vectors=self.vectors is not None)).source

    def form(self, variant: Any) -> Form:
        """The form for a variant, or its wide one if indices do not fit 31 bits."""
        from ruda.backends.wgpu.emit import NeedsWide, emit
        from ruda.jit.passes.short import shorten_integers

        found = self.forms.get(variant)
        if found is None:
            try:
                wanted = self.vectors if variant.vectors else None
                function = self.lowered if wanted is None else wanted.function
                if self.target.get("int64"):
                    function = shorten_integers(function, not variant.wide)
                source = emit(function, self.sites, self.target, variant)
            except NeedsWide:
                assert not variant.wide
                found = self.forms[variant] = self.form(replace(variant, wide=True, vectors=False))
                return found
            parameters = source.options["parameters"]
            fields = "<" + "".join(FORMAT[p.kind] for p in parameters)
            pack = struct.Struct(f"{fields}{-struct.calcsize(fields) % 16}x")  # as WGSL has it
            found = self.forms[variant] = Form(source, pack)
        return found


def forms(function: Function) -> list[str]:
    """For `ruda.explain`: the arrays of a block or of a thread whose indices cost a check."""
    from ruda.jit import passes
    from ruda.jit.passes.bounds import Inside

    lowered = passes.lower(function, "wgpu")
    inside = Inside(lowered, narrow=True)
    lines: dict[str, set[int]] = {}
    for x in (*ir.statements(lowered.body), *ir.all_expressions(lowered.body)):
        if isinstance(x, ir.Load | ir.Store | ir.Atomic) and x.array.space != "global":
            lines.setdefault(x.array.name, set())
            if not inside.has(x.indices):
                lines[x.array.name].add(x.place.line)
    return [f"`{name}`: {_checked(sorted(found))}" for name, found in lines.items()]


def _checked(lines: Sequence[int]) -> str:
    if not lines:
        return "every index is surely inside: none is checked"
    numbers = ", ".join(map(str, lines))
    return (
        f"indices that may be outside, and are held inside: line{'s' * (len(lines) > 1)} {numbers}"
    )


def check_limits(module: Module, form: Form, launch: Launch) -> None:
    """What the adapter cannot run, told before anything is compiled."""
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


def compile_form(module: Module, form: Form, words: int) -> Any:
    """Shader, explicit layout and pipeline. An error comes back at the user's line."""
    wgpu, device = adapters.runtime(), module.queue.device
    options = form.source.options
    try:
        if form.shader is None:
            text, native = form.source.text, module.queue.native
            if module.target.get("software") or not native.makes_shaders:
                form.shader = device.create_shader_module(code=text)
            else:
                form.shader = native.shader(text, not options["trusted"])
        if form.layout is None:
            visible = wgpu.ShaderStage.COMPUTE
            uniform = {"type": "uniform", "has_dynamic_offset": True}
            entries = [{"binding": 0, "visibility": visible, "buffer": uniform}]
            constants = [False] * len(options["constants"])
            words_of_ours = [True] * (options["reports"] + options["guarded"])
            for k, written in enumerate([*options["buffers"], *constants, *words_of_ours]):
                kind = {"type": "storage" if written else "read-only-storage"}
                entries.append({"binding": k + 1, "visibility": visible, "buffer": kind})
            form.layout = device.create_bind_group_layout(entries=entries)
        layout = device.create_pipeline_layout(bind_group_layouts=[form.layout])
        compute: dict[str, Any] = {"module": form.shader, "entry_point": "main"}
        if options["dynamic"]:
            compute["constants"] = {"dynamic_count": max(1, words)}
        return device.create_compute_pipeline(layout=layout, compute=compute)
    except wgpu.GPUError as error:
        module.queue.notice(error)
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
