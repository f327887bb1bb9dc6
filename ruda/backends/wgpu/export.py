"""A kernel -> a folder for the browser: its WGSL, a JavaScript module that runs it, a page.

The text is made for what every browser has, and needs no adapter here. What the host does at a
launch (expressions of scalar arguments, extents and strides) becomes JavaScript.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from ruda.backends.base import Source
from ruda.backends.wgpu.adapter import PORTABLE
from ruda.dtypes import DType
from ruda.errors import UnsupportedError, UsageError
from ruda.jit import ir
from ruda.jit.ir import Array, Function, Variable

# dtype -> the typed arrays that hold it; 16-bit floats travel as their bits.
TYPED = {
    "bool": "Uint8Array", "int8": "Int8Array", "int16": "Int16Array", "int32": "Int32Array",
    "uint8": "Uint8Array Uint8ClampedArray", "uint16": "Uint16Array", "uint32": "Uint32Array",
    "float16": "Uint16Array Float16Array", "bfloat16": "Uint16Array", "float32": "Float32Array",
    "complex64": "Float32Array",
    # By `ruda.config(missing="demote")`, or "emulate": the arrays keep their dtype.
    "float64": "Float64Array", "complex128": "Float64Array", "int64": "BigInt64Array",
    "uint64": "BigUint64Array",
}  # fmt: skip
FIELD = {
    "u32": 4,
    "i32": 4,
    "f32": 4,
    "bool": 4,
    "zeros": 32,
}  # bytes of a field
INFIX = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "pow": "**", "eq": "===", "ne": "!==",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip
MATH = (
    "abs sqrt cbrt exp expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh "
    "asinh acosh atanh hypot floor ceil trunc min max"
)
CALLS = {"neg": "-", "not": "!"} | {name: f"Math.{name}" for name in MATH.split()}


def export(
    kernel: Any,
    types: Sequence[Any],
    folder: str,
    *,
    block: Any = None,
    constexpr: dict[str, Any] | None = None,
    shared: int = 0,
) -> list[str]:
    """Write `NAME.wgsl`, `NAME.js` and `index.html` for a kernel; their paths.

    types   of the arguments in order, such as `["float", "f32[:]", "f32[:]"]`
    folder  made if it is not there
    shared  bytes of dynamic shared memory

    UnsupportedError where a browser cannot run the kernel: 64-bit dtypes without a policy for
    them (`ruda.config(missing="demote")` or "emulate"), `print`.
    """
    from ruda.backends.wgpu.modules import Module
    from ruda.jit.tools import describe

    found = describe(kernel, "wgpu", types, block=block, constexpr=constexpr, shared=shared)
    function = found.made.function
    source = Module(function, PORTABLE, "").plain()
    if source.options["reports"]:
        raise UnsupportedError(
            f"`{function.name}` prints or asserts, which an exported kernel cannot",
            function.place,
            hint="export a version without `print` and `assert`",
        )
    module = f"const KERNEL = {description(function, source, shared)};\n\n{template('runtime.js')}"
    texts = {
        f"{function.name}.wgsl": source.text,
        f"{function.name}.js": module,
        "index.html": template("page.html").replace("NAME", function.name),
    }
    os.makedirs(folder, exist_ok=True)
    paths = []
    for name, text in texts.items():
        paths.append(os.path.join(folder, name))
        with open(paths[-1], "w", encoding="utf-8") as file:
            file.write(text)
    return paths


def template(name: str) -> str:
    return (resources.files("ruda.backends.wgpu") / "web" / name).read_text("utf-8")


def description(function: Function, source: Source, shared: int) -> str:
    """What the module knows of the text, as JavaScript."""
    options = source.options
    written = iter(options["written"])
    rows: dict[str, Any] = {
        "name": function.name,
        "wgsl": f"{function.name}.wgsl",
        "block": function.block,
        "parameters": [parameter(function, p, written) for p in function.parameters],
        "buffers": options["buffers"],
        "constants": [base64.b64encode(data).decode() for data in options["constants"]],
        "overrides": {"dynamic_count": max(1, -(-shared // 4))} if options["dynamic"] else {},
        "shared": shared,
        "needs": needs(function, options, shared),
    }
    fields, offset = [], 0
    for p in options["parameters"]:
        size = FIELD.get(p.kind)
        if size is None:
            raise UnsupportedError(
                f"`{function.name}`: a scalar argument of type {p.kind} in an exported kernel",
                function.place,
                hint="pass float32 and 32-bit integers",
            )
        fields.append((offset, p.kind, p.source, p.unit))
        offset += size
    rows |= {"fields": fields, "size": -(-offset // 16) * 16}
    lines = [f"  {key}: {json.dumps(value)}," for key, value in rows.items()]
    return "\n".join(["{", *lines, f"  scalars: {scalars(function)},", "}"])


def needs(function: Function, options: Mapping[str, Any], shared: int) -> dict[str, int]:
    """The limits of a device that the text comes near: what it must have at least."""
    assert function.block is not None
    return {
        "maxComputeInvocationsPerWorkgroup": math.prod(function.block),
        **{f"maxComputeWorkgroupSize{a}": n for a, n in zip("XYZ", function.block, strict=True)},
        "maxComputeWorkgroupStorageSize": options["shared"] + shared * options["dynamic"],
        "maxStorageBuffersPerShaderStage": len(options["buffers"]) + len(options["constants"]),
    }


def parameter(function: Function, p: Array | Variable, written: Any) -> dict[str, Any]:
    if isinstance(p, Variable):
        return {"name": p.name, "dtype": {"weak_int": "int", "weak_float": "float"}.get(
            p.dtype.name, p.dtype.name)}  # fmt: skip
    name = p.dtype.name if isinstance(p.dtype, DType) else "record"
    if name not in TYPED:
        raise UnsupportedError(
            f"`{function.name}`: JavaScript has no array for `{p.name}`, of {p.dtype}",
            function.place,
            hint=f"use one of {', '.join(TYPED)}",
        )
    return {
        "name": p.name, "dtype": name, "ndim": p.ndim, "kinds": TYPED[name].split(),
        "lanes": 1 + name.startswith("complex"), "itemsize": p.dtype.itemsize,
        "written": next(written),
    }  # fmt: skip


def scalars(function: Function) -> str:
    """The prologue as a JavaScript function of the arguments."""
    names = ", ".join(p.name + "_" for p in function.parameters)
    kept = [p for p in function.parameters if isinstance(p, Variable)]
    rows = [f"const v_{p.name} = {converted(f'{p.name}_', p.dtype)};" for p in kept]
    rows += [f"const v_{s.variable.name} = {javascript(s.value)};" for s in function.prologue]
    variables = [p.name for p in kept] + [s.variable.name for s in function.prologue]
    result = ", ".join(f"{json.dumps(v)}: v_{v}" for v in variables)
    body = "\n    ".join([*rows, f"return {{ {result} }};"])
    return f"([{names}]) => {{\n    {body}\n  }}"


def javascript(e: ir.Expr) -> str:
    """An expression of the prologue: scalars are doubles here too."""
    match e:
        case ir.Const(value=bool() as value):
            return str(value).lower()
        case ir.Const(value=int() | float() as value):
            text = repr(value)
            return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(text, text)
        case ir.Read(variable=v):
            return f"v_{v.name}"
        case ir.Cast(value=value):
            return converted(javascript(value), e.dtype)
        case ir.Select(condition=c, then=then, otherwise=otherwise):
            return f"({javascript(c)} ? {javascript(then)} : {javascript(otherwise)})"
        case ir.And(left=left, right=right):
            return f"({javascript(left)} && {javascript(right)})"
        case ir.Or(left=left, right=right):
            return f"({javascript(left)} || {javascript(right)})"
        case ir.Op(name="floordiv", operands=(a, b)):
            return f"floordiv({javascript(a)}, {javascript(b)})"
        case ir.Op(name="mod", operands=(a, b)):
            return f"mod({javascript(a)}, {javascript(b)})"
        case ir.Op(name=name, operands=(a, b)) if name in INFIX:
            return f"(({javascript(a)}) {INFIX[name]} ({javascript(b)}))"
        case ir.Op(name=name, operands=operands) if name in CALLS:
            return f"{CALLS[name]}({', '.join(map(javascript, operands))})"
    raise UnsupportedError(
        f"{getattr(e, 'name', type(e).__name__)} of scalar arguments in an exported kernel",
        e.place,
        hint="compute it in JavaScript and pass the result",
    )


def converted(text: str, dtype: DType) -> str:
    if dtype.kind == "bool":
        return f"Boolean({text})"
    if dtype.name == "float32":
        return f"Math.fround({text})"
    if dtype.is_integer and not dtype.weak and dtype.bits <= 32:
        signed = "| 0" if dtype.is_signed else ">>> 0"
        return f"({text} {signed})" if dtype.bits == 32 else text
    return f"Number({text})"


def export_command(
    file: str,
    kernel: str,
    *,
    types: str | None,
    output: str,
    block: Any = None,
    constexpr: dict[str, Any] | None = None,
    shared: int = 0,
) -> list[str]:
    """What `ruda export` writes."""
    from ruda.errors import DTypeError
    from ruda.jit.tools import kernel_of
    from ruda.jit.types import split_types

    try:
        specs = split_types(types or "")
        found = kernel_of(file, kernel)
        return export(found, specs, output, block=block, constexpr=constexpr, shared=shared)
    except DTypeError as error:
        raise UsageError(f"--types {types}: {error}") from None
    except OSError as error:
        raise UsageError(f"{output}: {error.strerror}") from None
