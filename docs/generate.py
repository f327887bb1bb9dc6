"""Write the pages of docs/ that come from tables, so that they cannot differ from the program.

    python -m docs.generate

tests/test_docs.py fails while a page is not what this would write.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from pathlib import Path
from typing import Any

import ruda
import ruda.tensor
from ruda import errors, porting
from ruda.dtypes import as_dtype
from ruda.jit import calls, intrinsics, language
from ruda.settings import SETTINGS

HERE = Path(__file__).parent
NOTE = "<!-- Written by `python -m docs.generate`; change {source} instead. -->\n"

# Classes that users meet as objects, and the modules that define them.
CLASSES = {
    "Kernel": "ruda.jit.kernel",
    "Context": "ruda.host",
    "DeviceArray": "ruda.backends.base",
    "Stream": "ruda.backends.base",
    "Event": "ruda.backends.base",
    "DeviceInfo": "ruda.backends.base",
}


def is_built(path: str) -> bool:
    """Whether ruda has what a name in the table's third column says."""
    first, _, rest = path.partition(".")
    if first in porting.LIBRARY:
        return (
            path in intrinsics.BY_NAME or calls.builtin_handler(porting.resolve(path)) is not None
        )
    if path.startswith("jit("):
        option = path[len("jit(") : -len("=)")]
        return callable(ruda.jit) and option in inspect.signature(ruda.jit).parameters
    owner: object = ruda
    if first in CLASSES:
        try:
            owner = getattr(importlib.import_module(CLASSES[first]), first)
        except (ImportError, AttributeError):
            return False
        path = rest
    *groups, name = path.split(".")
    for group in groups:
        owner = vars(owner).get(group)  # not getattr: it would ask porting
    return _has(owner, name) or (owner is ruda and name in ruda.tensor.__all__)


def _has(owner: object, name: str) -> bool:
    """Whether there is such an attribute, or a field that instances get."""
    try:
        inspect.getattr_static(owner, name)
    except AttributeError:
        return name in getattr(owner, "__annotations__", {})
    return True


def numba_cuda() -> str:
    """docs/numba-cuda.md: each name of numba.cuda and what becomes of it."""
    rows = [row for row in porting.rows() if row.area != porting.UNDOCUMENTED]
    counts = {verdict: sum(row.verdict == verdict for row in rows) for verdict in porting.VERDICTS}
    planned = sum(row.verdict != "refused" and not is_built(row.ruda) for row in rows)
    known = (HERE / "numba-cuda-names.txt").read_text("utf-8").splitlines()[0].removeprefix("# ")
    out = [
        NOTE.format(source="ruda/numba-cuda.txt"),
        "# Names of numba.cuda in ruda\n",
        f"All {len(rows)} public names of {known} under `import ruda as cuda`: "
        f"{counts['same']} are the same, {counts['different']} differ, {counts['refused']} are "
        f"refused with an error that says what to write instead. {planned} of the first two are "
        "planned and not there yet.\n",
        "A name that differs without a remark is only another name, and the old one works too. "
        "Functions of `libdevice`, `fp16` and `bf16` take the dtype of their argument, where "
        "numba-cuda converts to the one in the name.\n",
    ]
    for area, group in itertools.groupby(porting.rows(), key=lambda row: row.area):
        out += [f"\n## {area}\n", "| numba.cuda | | ruda | |", "|---|---|---|---|"]
        for row in group:
            name = f"`{row.ruda}`" if row.ruda and row.ruda != row.name else ""
            verdict = row.verdict
            if verdict != "refused" and not is_built(row.ruda):
                verdict += ", planned"
            text = row.text.replace("|", "\\|")
            out.append(f"| `{row.name}` | {verdict} | {name} | {text} |")
    return "\n".join(out) + "\n"


DTYPES = ("bool", "i8", "u8", "i16", "i32", "u32", "i64", "u64", "f16", "f32", "f64", "c64")


def _signature(name: str, thing: object) -> str:
    """`shfl_sync(mask, value, lane, width=32)`, without types."""
    if not inspect.isfunction(thing) or thing.__qualname__.startswith("_stub"):
        return name
    parameters = [
        p.replace(annotation=p.empty) for p in inspect.signature(thing).parameters.values()
    ]
    return name + str(inspect.Signature(parameters)).replace(str(0xFFFFFFFF), "0xFFFFFFFF")


def _kernel_names() -> list[tuple[str, str]]:
    """(signature, doc) of each name of the kernel language, in the order of its module."""
    out = []
    for name, thing in vars(language).items():
        if name.startswith("_") or inspect.isclass(thing):
            continue
        if isinstance(thing, language.Namespace):
            members = {k: v for k, v in vars(thing).items() if callable(v)}
            out += [(f"{name}.{k}", inspect.getdoc(v) or "") for k, v in members.items()]
        elif hasattr(thing, "__ruda_name__") and name not in language.NUMERIC:
            out.append((_signature(name, thing), inspect.getdoc(thing) or ""))
    return out


def _result(row: intrinsics.Row, short: str) -> str:
    """The dtype of an operation on operands of one dtype, or "" where there is none."""
    given = tuple([as_dtype(short)] * row.arity)
    operand = intrinsics.operand_dtype(row, given)
    return "" if operand is None else intrinsics.result_dtype(row, operand).short


def _composed() -> set[str]:
    """Python's and NumPy's functions of kernels that are no row of the table."""
    rows = {name for row in intrinsics.TABLE.values() for name in row.names}
    found = set()
    for target in calls.BUILTINS:
        module = (getattr(target, "__module__", None) or "numpy").removeprefix("_")
        name = "np" if module.startswith("numpy") else module
        path = f"{name.replace('np', 'numpy')}.{target.__name__}"
        if path not in rows and name != "operator" and path != "math.sumprod":  # of Python 3.12
            found.add(target.__name__ if name == "builtins" else f"{name}.{target.__name__}")
    return found


def reference() -> str:
    """docs/reference.md: the names of kernels, functions by dtype, settings."""
    out = [
        NOTE.format(source="ruda/jit/language.py, ruda/jit/intrinsics.py or ruda/settings.py"),
        "# Reference\n",
        "The rules behind these tables are in [language.md](language.md).\n",
        "## Names inside kernels\n",
        "| `ruda.` | |",
        "|---|---|",
    ]
    out += [f"| `{name}` | {_cell(doc)} |" for name, doc in _kernel_names()]
    out += [
        "\n## Functions of numbers\n",
        "A column is the dtype of the operands, an entry that of the result; where it is empty the "
        "operation is refused. Operands of different dtypes are promoted first.\n",
        "| | names | " + " | ".join(DTYPES) + " | |",
        "|---|---|" + "---|" * len(DTYPES) + "---|",
    ]
    for row in intrinsics.TABLE.values():
        if row.rule not in ("index", "complex", "scale", "bool"):
            names = ", ".join(
                f"`{name.replace('numpy.', 'np.').removeprefix('builtins.')}`" for name in row.names
            )
            results = " | ".join(_result(row, short) for short in DTYPES)
            doc = _cell(row.doc or language.NUMERIC.get(row.name, ""))
            out.append(f"| {row.name} | {names} | {results} | {doc} |")
    out += [
        "\nOf several operations, or with a meaning that depends on the arguments:\n",
        ", ".join(f"`{name}`" for name in sorted(_composed())) + ", and those of `operator`.",
    ]
    out += ["\n## Settings\n", "| variable | `ruda.config(...)` | default | |", "|---|---|---|---|"]
    for setting in SETTINGS.values():
        default = f"`{setting.default!r}`"
        out.append(
            f"| `{setting.variable}` | `{setting.name}` | {default} | {_cell(setting.doc)} |"
        )
    out += [
        "\n## Errors\n",
        "All are in `ruda.errors`.\n",
        "```text",
        (errors.__doc__ or "").strip(),
        "```",
    ]
    return "\n".join(out) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _dtype_cell(
    kernels: dict[str, Any], dtype: str, backend: Any, target: dict[str, object]
) -> str:
    """The kernels that are accepted, and in brackets those that a policy accepts besides."""
    from ruda.jit import support

    def letters(missing: str) -> str:
        return "".join(
            c for c, k in kernels.items() if support.accepts(k, dtype, backend, target, missing)
        )

    plain = letters("error")
    for policy in ("emulate", "demote"):
        more = letters(policy)
        if more != plain:
            return f"{plain} ({policy}: {more})".lstrip()
    return plain


def devices() -> str:
    """docs/devices.md: what each kind of device takes, asked of its emitter."""
    from ruda import backends
    from ruda.backends.wgpu.adapter import PORTABLE
    from ruda.jit import support

    wgpu = dict(PORTABLE)
    full = wgpu | {"int64": True, "float64": True, "int64_atomics": True, "dialect": "naga"}
    targets: dict[str, tuple[str, dict[str, object]]] = {
        "cpu": ("cpu", {}),
        "cuda": ("cuda", {"architecture": "90a"}),
        "wgpu in a browser": ("wgpu", wgpu),
        "wgpu with all features": ("wgpu", full),
    }
    asked = [(backends.get(name), target) for name, target in targets.values()]
    kernels = {
        "S": support.stores,
        "C": support.computes,
        "D": support.divides,
        "A": support.adds_atomically,
    }
    out = [
        NOTE.format(source="ruda/jit/support.py"),
        "# Devices\n",
        "`ruda.devices()` lists those of a machine; `ruda.device(name).info.dtypes` says the same "
        "of one. Each entry was asked of the code that makes kernels: **S** arrays of the dtype "
        "are read and written, **C** it is computed with, **D** divided, **A** added atomically. "
        "Where a letter is missing the kernel is refused by name; some that are refused work after "
        "`ruda.config(missing=...)`, here in brackets: `emulate` makes 64-bit integers of 32-bit "
        "words, `demote` computes float64 in float32 besides (arrays keep their dtype, and what is "
        "only moved keeps its bits), and `cpu` runs such launches on the CPU.\n",
        "| dtype | " + " | ".join(targets) + " |",
        "|---|" + "---|" * len(targets),
    ]
    for dtype in support.DTYPES:
        cells = [_dtype_cell(kernels, dtype, backend, target) for backend, target in asked]
        out.append(f"| {dtype} | " + " | ".join(cells) + " |")
    out += ["", "| | " + " | ".join(targets) + " |", "|---|" + "---|" * len(targets)]
    for text, kernel in support.FEATURES.items():
        cells = [
            "yes" if support.accepts(kernel, "float32", backend, target) else "refused"
            for backend, target in asked
        ]
        out.append(f"| {text} | " + " | ".join(cells) + " |")
    return "\n".join([*out, FLOATS])


FLOATS = """
## float32 on WebGPU

WGSL lets a quotient be 2.5 units in the last place off, an `fma` round twice, and numbers below \
1.18e-38 (denormals) count as zeros. What an adapter really does is found out by a small kernel, \
once for each adapter and driver, and kept on disk; `ruda.device("wgpu").info.properties` shows it:

* `exact`: the operations that the adapter rounds as IEEE 754 says; they are used as they are. The \
others are made of integer arithmetic, and rounded right as well: `/`, `sqrt` and `fma` have equal \
bits on all devices. In a browser, of which nothing is known, they are always made that way. \
`fastmath` takes the adapter's own.
* `float32_denormals`: "keep", or "flush" where the adapter's sums and products take denormals for \
zeros of their sign, and give zeros for results that small. WGSL has no switch for that, and to do \
each sum by integers would cost far more than denormals are worth: so it is stated here, not \
refused, and quotients, roots and functions flush there, too. Copies keep all bits. "unknown": in \
a browser.

## Indices on WebGPU

No index reaches memory that is not its array's, whatever the data say. Buffers are watched by \
the hardware where it can (`watches_buffers` among the properties, found out as above): reads \
outside give zeros, and writes are left out. Memory of a block or a thread nobody watches: \
shared, local and constant arrays are checked access by access, except where the kernel itself \
shows that an index is inside (`tile[threadIdx.x]`, `x[k]` in a loop over `range`, a byte that \
counts in 256 bins, whatever an `if` around has found small enough). An index outside is held to \
the last element. `ruda.explain(kernel, ..., target="wgpu")` says which lines are checked. Where \
the hardware watches nothing, and in browsers, WebGPU's own checks are in all accesses.

Python's integers, which are 64 bits, are computed in 32 where all values surely fit.

## Speed on WebGPU

On an H200 (Vulkan driver 580.159.04) one row softmax of 8192 x 8192, written in WGSL by hand \
and run without ruda, took 0.137 ms on the first two pairs of buffers of a process and 0.33 to \
0.39 ms on four later ones, by the device's own timestamps: neither the host nor the way of \
timing had a part in it. It is not the pipeline: new pipelines of the same text, other kernels \
in between, zeros for random numbers and new buffers beside old ones all gave 0.137 ms in \
another process. Reading and writing by rows or in one line ran at 3.9 to 4.3 TB/s on every \
buffer that was tried, new or in the place of a freed one. What made those four slow is not \
known; only blocks of 1024 threads are always slow (0.31 ms). Kernels of ruda lost far more by \
loops that the driver does not unroll: it copies loops of up to 32 rounds for hardware adapters.
"""


PAGES = {"devices.md": devices, "numba-cuda.md": numba_cuda, "reference.md": reference}


def main() -> None:
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), "utf-8")
        print(HERE / name)


if __name__ == "__main__":
    main()
