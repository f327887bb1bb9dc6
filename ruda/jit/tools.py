"""Look inside kernels without launching them: their text for a target, and what lines became.

`describe` makes the specialisation that a launch with the given types, block and constants would
use; `kernel.source`, `kernel.ir`, `kernel.assembly`, `explain` and the command `ruda compile` show
it, and begin with one line that says what it was made for.
"""

from __future__ import annotations

import ast
import importlib.util
import linecache
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ruda import backends
from ruda.dtypes import DType, as_dtype
from ruda.errors import (
    DTypeError,
    KernelTypeError,
    LaunchTypeError,
    LaunchValueError,
    Place,
    UnsupportedError,
    UsageError,
)
from ruda.jit import ir, missing
from ruda.jit.kernel import Kernel, Specialisation, as_dimensions
from ruda.jit.passes import demote
from ruda.jit.types import ArrayType, Static, Type, parse_type, split_types, type_of
from ruda.settings import settings

DEFAULT_BLOCK = (256, 1, 1)


# ---- descriptions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Description:
    """A specialisation that was made to be looked at."""

    made: Specialisation
    options: str  # one line: what it was made for


def described_types(
    kernel: Kernel[Any], specs: Sequence[Any], constexpr: dict[str, Any]
) -> tuple[Type, ...]:
    """A type for each parameter: of `specs` in order, or of a declared signature, or constants."""
    names = kernel.parameters
    for name in constexpr:
        if name not in names:
            raise LaunchTypeError(f"`{kernel.__name__}` has no parameter `{name}`")
    given = list(specs or (kernel.signatures[0].arguments if kernel.signatures else ()))
    open_names = [n for n in names if n not in constexpr]
    if len(given) != len(open_names):
        raise LaunchTypeError(
            f"`{kernel.__name__}` takes {len(names)} arguments ({', '.join(names)}): "
            f"give a type for each of {', '.join(open_names) or 'none'}, not {len(given)}; "
            f"perhaps {suggested_types(kernel, open_names)}"
        )
    found = iter(given)
    return tuple(
        Static.of(constexpr[n]) if n in constexpr else _contiguous(type_like(next(found), n))
        for n in names
    )


def type_like(given: Any, name: str) -> Type:
    """The type that is named, or that an argument of a launch has."""
    if isinstance(given, int | float | complex | np.ndarray | np.generic):
        return type_of(given, name)
    if hasattr(given, "__ruda_array_type__"):
        return type_of(given, name)
    is_class = isinstance(given, type)  # as np.float32
    if not is_class and hasattr(given, "shape") and hasattr(given, "dtype"):  # a tensor
        return ArrayType(as_dtype(given.dtype), len(given.shape), "C")
    return parse_type(given)


def _contiguous(kind: Type) -> Type:
    """`f32[:]` takes every layout; the version for contiguous arrays is the one to look at."""
    return replace(kind, layout="C") if isinstance(kind, ArrayType) else kind


def describe(
    kernel: Kernel[Any],
    target: str,
    specs: Sequence[Any] = (),
    *,
    block: Any = None,
    constexpr: dict[str, Any] | None = None,
    shared: int = 0,
    strided: bool = False,
) -> Description:
    """The specialisation for types, block and constants, with its text for a target."""
    if not isinstance(kernel, Kernel):
        raise TypeError(f"a kernel is asked for, not {type(kernel).__name__}")
    backend: Any = backends.get(target)
    constants = constexpr or {}
    if not specs and not kernel.signatures and not constants and kernel.parameters:
        argument_types, block = _last_launch(kernel, block)
    else:
        argument_types = described_types(kernel, specs, constants)
    if strided:
        argument_types = tuple(
            replace(t, layout="A") if isinstance(t, ArrayType) else t for t in argument_types
        )
    shape = DEFAULT_BLOCK if block is None else as_dimensions(block, "block", kernel.__name__)
    if isinstance(shared, bool) or not isinstance(shared, int) or shared < 0:
        raise LaunchValueError(f"`{kernel.__name__}`: shared={shared!r}: a number of bytes")
    needs_block = getattr(backend, "needs_block", lambda f: False)
    function, captures = kernel.translate(argument_types, block=shape, needs_block=needs_block)
    made = Specialisation(argument_types, target, function, captures)
    shown = ", ".join(
        f"{n}={t}" if isinstance(t, Static) else str(t)
        for n, t in zip(kernel.parameters, argument_types, strict=True)
    )
    size = " x ".join(map(str, function.block or shape))
    any_block = "" if function.block is not None else ", as for any block"
    options = f"{kernel.__name__} for {target}, types ({shown}), block {size}{any_block}"
    if shared:
        options += f", {shared} bytes of dynamic shared memory"
    return Description(made, options)


def _last_launch(kernel: Kernel[Any], block: Any) -> tuple[tuple[Type, ...], Any]:
    """Types and block of a specialisation that was launched."""
    for variants in reversed(kernel._specialisations.values()):
        return variants[0].types, block or variants[0].function.block
    raise LaunchTypeError(
        f"`{kernel.__name__}` was not launched yet: give its types, perhaps "
        f"{suggested_types(kernel, kernel.parameters)}"
    )


def suggested_types(kernel: Kernel[Any], names: Sequence[str]) -> str:
    """Types that suit the way in which a kernel uses its parameters, as text to be copied.

    >>> import ruda
    >>> @ruda.jit
    ... def scale(x, image, factor):
    ...     i, j = ruda.grid(2)
    ...     image[j, i] = x[i] * factor
    >>> suggested_types(scale, scale.parameters)
    '"f32[:]", "f32[:, :]", "f32"'
    """
    from ruda.jit.frontend.source import definition

    ndims: dict[str, int] = {}

    def array(node: ast.AST, ndim: int) -> None:
        if isinstance(node, ast.Name):
            ndims[node.id] = max(ndims.get(node.id, 0), ndim)

    for node in ast.walk(definition(kernel.py_func).tree):
        match node:
            case ast.Subscript(value=owner, slice=ast.Tuple(elts=indices)):
                array(owner, len(indices))
            case ast.Subscript(value=owner) | ast.Attribute(value=owner):
                array(owner, 1)
            case ast.Assign(
                targets=[ast.Tuple(elts=names_of)], value=ast.Attribute(owner, "shape")
            ):
                array(owner, len(names_of))
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="atomic")), args=args):
                index = args[1] if len(args) > 1 else None
                array(args[0], len(index.elts) if isinstance(index, ast.Tuple) else 1)
    axes = {n: ", ".join(":" * ndims[n]) for n in names if n in ndims}
    return ", ".join(f'"f32[{axes[n]}]"' if n in axes else '"f32"' for n in names)


def _emitted(found: Description) -> Any:
    backend: Any = backends.get(found.made.device)
    try:
        return backend.emit(found.made.function, backend.target(found.made.device))
    except UnsupportedError as error:
        missing.name_policy(error, found.made.device, found.made.function)
        raise


def _headed(found: Description, text: str) -> str:
    """The text, with the options as a comment on its first line."""
    comment = getattr(backends.get(found.made.device), "comment", "#")
    return f"{comment} {found.options}\n{text}"


def source(kernel: Kernel[Any], target: str, specs: Sequence[Any], **options: Any) -> str:
    """What `Kernel.source` gives."""
    found = describe(kernel, target, specs, **options)
    return _headed(found, _emitted(found).text)


def ir_text(kernel: Kernel[Any], specs: Sequence[Any], **options: Any) -> str:
    """What `Kernel.ir` gives."""
    found = describe(kernel, "sim", specs, **options)
    return _headed(found, str(found.made.function) + "\n")


def assembly(kernel: Kernel[Any], target: str, specs: Sequence[Any], **options: Any) -> str:
    """What `Kernel.assembly` gives."""
    backend: Any = backends.get(target)
    if not hasattr(backend, "assembly"):
        raise LaunchTypeError(
            f"{target} has no assembly to show: `kernel.source({target!r}, ...)` is its text, "
            f"on the command line without --assembly"
        )
    found = describe(kernel, target, specs, **options)
    text: str = backend.assembly(_emitted(found), backend.target(target))
    return _headed(found, text)


_assembly = assembly  # where a parameter has its name


# ---- explain -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Note:
    """Something to know about a place in a kernel."""

    place: Place
    text: str

    def __str__(self) -> str:
        line = linecache.getline(self.place.file, self.place.line).strip()
        name = os.path.basename(self.place.file)
        return f"{name}:{self.place.line}  {line}\n      {self.text}"


@dataclass(frozen=True)
class Variable:
    """A variable of a kernel, its dtype, and the line that assigns it first."""

    name: str
    type: str
    place: Place

    def __str__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(frozen=True, repr=False)
class Explanation:
    """What `ruda.explain` found; printing it shows all of it.

    variables   of the kernel and its device functions
    wide        operations on 64-bit numbers; on WebGPU without those that surely fit 32 bits
    narrow      int32 and uint32 sums and products, which numba computes in 64 bits
    wraps       indices that may be negative, and so cost a compare and an add
    barriers    barriers that perhaps not every thread reaches
    spills      values that wait at a barrier, and so need a slot a thread
    loops       innermost loops of the machine code, and whether they use vector registers
    lacks       what the device cannot do itself, and what the policy makes of it
    missing     the policy: `ruda.config(missing=...)`
    """

    options: str
    variables: tuple[Variable, ...]
    wide: tuple[Note, ...]
    narrow: tuple[Note, ...]
    wraps: tuple[Note, ...]
    barriers: tuple[Note, ...]
    spills: tuple[Note, ...]
    loops: tuple[Note, ...] | None
    lacks: tuple[Note, ...]
    missing: str
    forms: tuple[str, ...] | None = None  # what else the device's own compiler makes of it

    def __repr__(self) -> str:
        out = [self.options, "", "variables"]
        out += [f"  {v}" for v in self.variables] or ["  none"]
        for title, notes in (
            ("64-bit operations", self.wide),
            ("32-bit sums and products that numba would widen to 64 bits", self.narrow),
            ("indices that may count from the end; @jit(wraparound=False) forbids it", self.wraps),
            *(
                (("barriers that perhaps not every thread reaches", self.barriers),)
                if self.barriers
                else ()
            ),
            ("values kept across barriers, one a thread", self.spills),
            ("innermost loops of the machine code", self.loops),
            *(
                ((f"what the device lacks (missing={self.missing!r})", self.lacks),)
                * bool(self.lacks)
            ),
        ):
            if notes is not None:
                out += ["", title]
                out += [f"  {n}" for n in notes] or ["  none"]
        if self.forms is not None:
            out += ["", "forms", *(f"  {line}" for line in self.forms)]
        return "\n".join(out)


def explanation(
    kernel: Kernel[Any], target: str, types: Sequence[Any], **options: Any
) -> Explanation:
    """What `ruda.explain` gives."""
    found = describe(kernel, target, types, **options)
    function = found.made.function
    lowered = _lowered(function, target)
    return Explanation(
        found.options,
        tuple(_variables(kernel, found.made)),
        tuple(_grouped(_wide(_computed(function, target)))),
        tuple(_grouped(_narrow(function))),
        tuple(_grouped(_wraps(lowered))),
        tuple(_grouped(_barriers(function))),
        tuple(_spills(function, lowered)),
        _loops(found) if target == "cpu" else None,
        tuple(_grouped(_lacks(found))),
        settings.missing,
        _forms(function, target),
    )


def _computed(function: ir.Function, target: str) -> ir.Function:
    """The function with its integers as wide as the target computes them."""
    if target.partition(":")[0] != "wgpu":
        return function
    from ruda.jit.passes.short import shorten_integers

    return shorten_integers(function, narrow=False)


def _lacks(found: Description) -> Iterator[Note]:
    """What the device has not, and what the policy makes of it."""
    made, backend = found.made, backends.get(found.made.device)
    if made.device.partition(":")[0] in missing.HOSTS:
        return
    try:
        _emitted(found)
    except UnsupportedError as error:
        then = "it runs on the CPU" if missing.moves(made.device) else "refused"
        yield Note(error.place, f"{error}: {then}")
        return
    lacking = getattr(backend, "lacking", lambda target: ())(backend.target(made.device))
    if "float64" in lacking:
        yield from (Note(place, text) for place, text in demote.demoted(made.function))
    if "int64" in lacking:
        for place, e in _nodes(made.function.body):
            if isinstance(e, ir.Op) and e.operands:
                dtype = e.operands[0].dtype
                if dtype.name in ("int64", "uint64"):
                    yield Note(place, f"{dtype} {e.name} in 32-bit words")


def _forms(function: ir.Function, target: str) -> tuple[str, ...] | None:
    forms = getattr(backends.get(target), "forms", None)
    return None if forms is None else tuple(forms(function))


def _lowered(function: ir.Function, target: str) -> ir.Function:
    from ruda.jit.passes import pipeline

    name = target.partition(":")[0]
    return pipeline.lower(function, name) if name in pipeline.PIPELINE else function


def _nodes(body: ir.Body) -> Iterator[tuple[Place, ir.Expr]]:
    """Every expression with a place: its own, or that of what it is in."""

    def inside(e: ir.Expr, place: Place) -> Iterator[tuple[Place, ir.Expr]]:
        place = e.place if e.place.line else place
        yield place, e
        for child in ir.expressions(e):
            yield from inside(child, place)

    for statement in ir.statements(body):
        for e in ir.expressions(statement):
            yield from inside(e, statement.place)


def _grouped(notes: Iterator[Note]) -> list[Note]:
    """One note a line, in the order of lines; what is said twice is counted."""
    lines: dict[tuple[str, int], tuple[Place, dict[str, int]]] = {}
    for note in notes:
        key = note.place.file, note.place.line
        texts = lines.setdefault(key, (note.place, {}))[1]
        texts[note.text] = texts.get(note.text, 0) + 1
    return [
        Note(place, ", ".join(t if n == 1 else f"{n} x {t}" for t, n in texts.items()))
        for _, (place, texts) in sorted(lines.items())
    ]


def _variables(kernel: Kernel[Any], made: Specialisation) -> Iterator[Variable]:
    for name, kind in zip(kernel.parameters, made.types, strict=True):
        shown = {"weak_int": "int", "weak_float": "float", "weak_complex": "complex"}
        yield Variable(name, shown.get(str(kind), str(kind)), made.function.place)
    seen: dict[str, str] = {}
    for statement in ir.statements(made.function.body):
        if isinstance(statement, ir.Declare):
            a = statement.array
            shape = ", ".join(map(str, a.shape)) if a.shape is not None else "dynamic"
            yield Variable(a.name, f"{a.space} {a.dtype}[{shape}]", statement.place)
        for v in ir.written(statement):
            if v.name not in seen:
                seen[v.name] = str(v.dtype)
                yield Variable(v.name, str(v.dtype), statement.place)


def _is_wide(dtype: Any) -> bool:
    return isinstance(dtype, DType) and not dtype.weak and dtype.real.bits == 64


def _wide(function: ir.Function) -> Iterator[Note]:
    for place, e in _nodes(function.body):
        match e:
            case ir.Op(name, operands, dtype) if name not in ("wrap", "within"):
                operand = operands[0].dtype if operands else dtype
                if _is_wide(operand) or _is_wide(dtype):
                    yield Note(place, f"{operand if _is_wide(operand) else dtype} {name}")
            case ir.Cast(ir.Const()):
                pass  # computed once, by the compiler
            case ir.Cast(value, dtype) if _is_wide(dtype) and not value.dtype.weak:
                yield Note(place, f"conversion to {dtype}")
            case ir.Cast(value, dtype) if _is_wide(value.dtype) and not dtype.weak:
                yield Note(place, f"conversion from {value.dtype}")
    for statement in ir.statements(function.body):
        if isinstance(statement, ir.Atomic) and _is_wide(statement.operands[0].dtype):
            yield Note(statement.place, f"{statement.operands[0].dtype} atomic {statement.op}")


def _narrow(function: ir.Function) -> Iterator[Note]:
    for place, e in _nodes(function.body):
        if isinstance(e, ir.Op) and e.name in ("add", "sub", "mul"):
            if e.dtype.is_integer and e.dtype.bits == 32:
                yield Note(place, f"{e.dtype} {e.name}")


def _wraps(function: ir.Function) -> Iterator[Note]:
    for place, e in _nodes(function.body):
        if isinstance(e, ir.Op) and e.name == "wrap":
            yield Note(place, f"index {_short(e.operands[0])} may be negative")


def _barriers(function: ir.Function) -> Iterator[Note]:
    from ruda.jit.passes.jumps import structure_jumps
    from ruda.jit.passes.uniformity import uncertain_barriers

    for barrier, condition in uncertain_barriers(structure_jumps(function)):
        where = f"the condition in line {condition.place.line}" if condition.place.line else "what"
        yield Note(
            barrier.place,
            f"{where} decides who comes here, and may differ between threads: "
            "sim and, on the CPU, check=True report it",
        )


def _short(e: ir.Expr) -> str:
    from ruda.jit.dump import expression

    text = expression(e).replace(":index", "")
    return f"`{text[1:-1] if text[:1] == '(' and text[-1:] == ')' else text}`"


def _spills(function: ir.Function, lowered: ir.Function) -> Iterator[Note]:
    """Variables that became arrays, with the barrier that they wait at."""
    before = {a.name for a in function.arrays}
    statements = list(ir.statements(function.body))
    for array in lowered.arrays:
        name, found, kind = array.name.rpartition("_")
        if array.name in before or not found or kind not in ("slots", "copies"):
            continue
        size = array.dtype.itemsize
        for extent in array.shape or ():
            size *= extent
        writes, reads = [], []
        for k, s in enumerate(statements):
            if any(v.name == name for v in ir.written(s)) or (
                isinstance(s, ir.Declare) and s.array.name == name
            ):
                writes.append(k)
            if any(
                isinstance(e, (ir.Read, ir.Load))
                and getattr(e, "variable", getattr(e, "array", None)).name == name  # type: ignore[union-attr]
                for x in ir.expressions(s)
                for e in ir.walk(x)
            ):
                reads.append(k)
        if not writes:
            continue
        barriers = [
            k for k, s in enumerate(statements) if ir.has_barrier((s,)) and not ir.bodies(s)
        ]
        across = [k for k in barriers if writes[0] < k and any(k < r for r in reads)]
        across = across or [k for k in barriers if k > writes[0]] or barriers
        why = f"waits at {_lines(statements[k].place for k in across)}" if across else "waits"
        used = _lines(statements[k].place for k in reads)
        what = "local array" if kind == "copies" else str(array.dtype)
        yield Note(
            statements[writes[0]].place,
            f"`{name}` ({what}) {why}, used at {used}: {size} bytes a block",
        )


def _lines(places: Any) -> str:
    numbers = sorted({p.line for p in places if p.line})
    return f"line{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


# ---- vectorised loops ----------------------------------------------------------------------------


def _loops(found: Description) -> tuple[Note, ...] | None:
    """The innermost loops of the machine code with their lines; None if it cannot be had."""
    backend: Any = backends.get(found.made.device)
    if not getattr(backend, "assembly_has_lines", False):
        return None
    text = backend.assembly(_emitted(found), backend.target(found.made.device))
    place = found.made.function.place
    loops = innermost_loops(text)
    if len(loops) > 1:  # what remains behind a vectorised loop has no line but that of the `def`
        loops = [(line, said) for line, said in loops if line != place.line]
    return tuple(Note(Place(place.file, line), said) for line, said in loops)


_VECTOR = re.compile(
    r"^v?(?:f?n?m?(?:add|sub|mul|div|max|min)\w*|sqrt|fmadd\w*|fmsub\w*|fnmadd\w*|cmp\w*|round)"
    r"(ps|pd|ph)$|^v?p(?:add|sub|mul|max|min|cmp|sll|srl|sra)\w*$"
)
_SCALAR = re.compile(
    r"^v?(?:f?n?m?(?:add|sub|mul|div|max|min)\w*|sqrt|fmadd\w*|fmsub\w*|fnmadd\w*|round)(ss|sd|sh)$"
)
_REGISTER = {"xmm": 128, "ymm": 256, "zmm": 512}
_ARM = re.compile(r"\bv\d+\.(?:16b|8b|8h|4h|4s|2s|2d)\b")


def innermost_loops(assembly: str) -> list[tuple[int, str]]:
    """The user's line and a remark for each innermost loop of an assembly text with `.loc` lines.

    >>> innermost_loops(chr(10).join([".LBB0_1:", ".loc 1 7 0", "vaddps %ymm0, %ymm1, %ymm1",
    ...                               "jne .LBB0_1"]))
    [(7, 'vectorised: 1 of 1 arithmetic instructions are on 256-bit vectors')]
    """
    lines = [line.strip() for line in assembly.splitlines()]
    labels = {line[:-1]: k for k, line in enumerate(lines) if re.fullmatch(r"\.?L\w+:", line)}
    spans = []
    for k, line in enumerate(lines):
        jump = re.match(r"^(?:j\w+|b\.?\w*|cbn?z|tbn?z)\s+.*?(\.?L\w+)$", line)
        if jump and labels.get(jump[1], k) < k:
            spans.append((labels[jump[1]], k))
    found: dict[int, tuple[int, str]] = {}
    for start, end in spans:
        if any((a, b) != (start, end) and start <= a and b <= end for a, b in spans):
            continue
        width, remark = _remark(lines[start : end + 1])
        place = _line_of(lines, start, end)
        if remark and (place not in found or width > found[place][0]):
            found[place] = width, remark  # the others do what remains
    return [(place, remark) for place, (_, remark) in sorted(found.items())]


def _line_of(lines: list[str], start: int, end: int) -> int:
    """The line that most instructions of a loop come from."""
    current, counts = 0, dict[int, int]()
    for k in range(end + 1):
        location = re.match(r"^\.loc\s+\d+\s+(\d+)", lines[k])
        if location:
            current = int(location[1])
        elif k >= start and current and not lines[k].startswith((".", "#")):
            counts[current] = counts.get(current, 0) + 1
    return max(counts, key=lambda line: counts[line], default=0)


def _remark(body: list[str]) -> tuple[int, str]:
    """Bits of the vectors that a loop computes with, 0 for none, and that in words."""
    vector, scalar, width = 0, 0, 0
    for line in body:
        name, _, operands = line.partition("\t" if "\t" in line else " ")
        if _VECTOR.match(name) or _ARM.search(operands):
            found = [bits for register, bits in _REGISTER.items() if register in operands]
            vector += 1
            width = max(width, max(found, default=128))
        elif _SCALAR.match(name):
            scalar += 1
    if vector and vector >= scalar:
        total = vector + scalar
        what = f"{vector} of {total} arithmetic instructions are on {width}-bit vectors"
        return width, f"vectorised: {what}"
    if scalar:
        return 0, f"not vectorised: {scalar} arithmetic instructions are on single floats"
    return 0, ""


# ---- the command `ruda compile` ------------------------------------------------------------------


def compile_command(
    file: str,
    kernel: str,
    *,
    target: str = "cpu",
    types: str | None = None,
    block: Any = None,
    constexpr: dict[str, Any] | None = None,
    shared: int = 0,
    assembly: bool = False,
) -> str:
    """The text that a kernel of a file becomes, for the command `ruda compile`."""
    found = kernel_of(file, kernel)
    make = _assembly if assembly else source
    open_names = [n for n in found.parameters if n not in (constexpr or {})]
    try:
        specs = split_types(types or "")
        return make(found, target, specs, block=block, constexpr=constexpr, shared=shared)
    except DTypeError as error:
        raise UsageError(f"--types {types}: {error}") from None
    except (KernelTypeError, LaunchTypeError) as error:
        suggested = suggested_types(found, open_names).replace('"', "")
        given = ", ".join(split_types(types or ""))
        if suggested and suggested != given and not found.signatures:
            error.add_note(f'hint: --types "{suggested}" suits the way the parameters are used')
        raise


def kernel_of(file: str, kernel: str) -> Kernel[Any]:
    """The kernel of that name in a Python file."""
    found: Any = _imported(file)
    for part in kernel.split("."):
        if not hasattr(found, part):
            kernels = [n for n, v in vars(found).items() if isinstance(v, Kernel)]
            raise UsageError(
                f"{file} has no {kernel!r}; its kernels: {', '.join(kernels) or 'none'}"
            )
        found = getattr(found, part)
    if not isinstance(found, Kernel):
        raise UsageError(f"{kernel!r} of {file} is {type(found).__name__}, not a kernel")
    return found


def _imported(file: str) -> Any:
    """The module of a file, with its folder on the path as when it is run."""
    name = os.path.splitext(os.path.basename(file))[0]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    folder = os.path.dirname(os.path.abspath(file))
    sys.path.insert(0, folder)
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
        if before is not None:
            sys.modules[name] = before
    return module
