"""Who may import whom, read from the sources; and what `import ruda` does."""

import ast
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1] / "ruda"

# A layer: the modules of it (names, or packages with all inside) and the layers it may import.
# The first that fits a module is its layer. A layer may import itself.
BASE = ("dtypes", "errors", "locks", "settings")
LAYERS = {
    "base": (BASE, ()),
    "contract": (("backends.base", "backends.pool", "backends.interop"), ("base",)),
    # The registry imports backends by their names in a table, so no import points at one.
    "registry": (("backends",), ("base", "contract")),
    "jit": (("jit.*",), ("base", "contract", "registry")),
    "backend": (("backends.*",), ("base", "contract", "jit")),
    "random": (("random",), ("base",)),
    "tensor": (("tensor.*",), ("base", "contract", "registry", "jit", "random")),
    "blas": (("blas.*",), ("base", "jit", "tensor")),
    "ccl": (("ccl.*",), ("base", "jit", "tensor")),
    "data": (("data.*",), ("base", "tensor")),
    "dnn": (("dnn.*",), ("base", "jit", "tensor", "blas")),
    "nn": (("nn.*",), ("base", "tensor", "data", "dnn")),
    "llm": (("llm.*",), ("base", "tensor", "blas", "ccl", "dnn", "nn")),
    # The package itself and its commands stand above all, and know no backend either.
    "top": (("*",), ("base", "contract", "registry", "jit", "tensor", "blas", "ccl", "data", "dnn",
                     "nn", "llm", "random")),
}  # fmt: skip

# Imports against an arrow, made inside a function when it is called, and why each must be.
EXCEPTIONS = {
    ("random", "tensor.generator"): "a generator makes tensors, when one is asked for",
    ("random", ""): "states of xoroshiro128+ are put on a device",
    ("dtypes", "jit.intrinsics"): "float32(x) on the host converts as kernels do",
    ("dtypes", "jit.types"): "float32[:] is a type of the kernel language",
    ("backends.base", "backends"): "a pickled array finds the backend of its device",
    ("backends.interop", "backends"): "an array of a GPU finds its backend",
    ("backends.base", "jit.support"): "what a device can do is asked of its emitter",
    ("backends.base", "porting"): "attributes that numba-cuda has are refused with a hint",
    ("jit.calls.attributes", "porting"): "names that numba-cuda has are refused with a hint",
    ("backends.wgpu.launch", "backends.cpu.reports"): "reports have one form on all devices",
    ("backends.ascend.device", "backends.cpu.reports"): "reports have one form on all devices",
    ("backends.ascend.npu", "backends.cpu.reports"): "reports have one form on all devices",
    **{
        (f"backends.{target}.formulas", f"backends.cpu.{name}"): "a function has one formula"
        for target in ("wgpu", "ascend")
        for name in ("complexes", "math", "remainders", "trigonometric", "values")
    },
}

# Modules of backends that other backends may import, and why.
SHARED = {
    "backends.cpu_launcher": "native code as builtins of CPython",
    "backends.cpu.complexes": "functions of complex numbers from real ones",
    "backends.pool": "a caching allocator for any device",
    "backends.cpu.atomics": "the new value of an atomic update, in LLVM",
    "backends.cpu.compile": "the function of emitted Python text",
    "backends.cpu.integers": "quotients of integers, in LLVM",
    "backends.cpu.intrinsics": "operators and conversions in LLVM, the same for each numba target",
    "backends.cpu.reports": "the format of a report buffer",
    "backends.cpu.target": "numba's compiler for emitted text",
    "backends.cpu.values": "LLVM values with operators",
}

# Heavy libraries, and the only places that may import them.
HEAVY = {
    "numba": ("backends.cpu", "backends.cuda"),
    "llvmlite": ("backends.cpu", "backends.cpu_pool", "backends.cuda", "jit.keys"),
    "cuda": ("backends.cuda",),
    "wgpu": ("backends.wgpu",),
    "mpi4py": ("ccl",),
    "websockets": ("tensor.remote",),
    "sklearn": ("demo", "data"),
    "PIL": ("demo", "data", "nn.picture"),
}


class Import(NamedTuple):
    importer: str  # without "ruda."
    imported: str  # in full
    deferred: bool  # inside a function
    line: int

    def __str__(self):
        return f"ruda/{self.importer.replace('.', '/')}, line {self.line}, imports {self.imported}"


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


def for_type_checkers(node):
    """Whether a statement is `if TYPE_CHECKING:`, whose imports never run."""
    return isinstance(node, ast.If) and ast.unparse(node.test).lstrip("_") == "TYPE_CHECKING"


def imports(module, node, deferred=False):
    """Every import that can run in a module."""
    match node:
        case ast.Import(names=names):
            yield from (Import(module, n.name, deferred, node.lineno) for n in names)
        case ast.ImportFrom(module=source, names=names, level=level):
            assert level == 0, f"{module}, line {node.lineno}: imports are absolute"
            for alias in names:
                full = f"{source}.{alias.name}"
                is_module = full.removeprefix("ruda.") in MODULES and source.startswith("ruda")
                yield Import(module, full if is_module else source, deferred, node.lineno)
        case _:
            inner = deferred or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            children = node.orelse if for_type_checkers(node) else ast.iter_child_nodes(node)
            for child in children:
                yield from imports(module, child, inner)


ALL = [i for m, p in MODULES.items() for i in imports(m, ast.parse(p.read_text(), str(p)))]
OURS = [
    i._replace(imported=i.imported.removeprefix("ruda").removeprefix("."))
    for i in ALL
    if i.imported.partition(".")[0] == "ruda"
]


def layer(module):
    for name, (patterns, _) in LAYERS.items():
        for pattern in patterns:
            package = pattern.removesuffix(".*")
            if pattern in ("*", module) or (
                pattern != package and (module == package or module.startswith(f"{package}."))
            ):
                return name
    raise AssertionError(module)


def backend(module):
    """`cpu` for `backends.cpu.compile` and `backends.cpu_pool`."""
    return module.split(".")[1].partition("_")[0]


def allowed(one):
    if (one.importer, one.imported) in EXCEPTIONS:
        return one.deferred
    low, high = layer(one.imported), layer(one.importer)
    if low == high == "backend":
        return backend(one.importer) == backend(one.imported) or one.imported in SHARED
    return low == high or low in LAYERS[high][1]


def test_the_sources_are_found():
    assert {"", "jit", "jit.ir", "backends.base", "dtypes"} <= set(MODULES)
    assert Import("dtypes", "errors", False, 0) in [i._replace(line=0) for i in OURS]


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("dtypes", "base"),
        ("backends", "registry"),
        ("backends.base", "contract"),
        ("backends.cpu", "backend"),
        ("backends.cpu.compile", "backend"),
        ("backends.sim", "backend"),
        ("jit", "jit"),
        ("jit.passes.indices", "jit"),
        ("", "top"),
        ("cli", "top"),
        ("tensor.ops", "tensor"),
    ],
)
def test_layers(module, expected):
    assert layer(module) == expected


@pytest.mark.parametrize(
    ("importer", "imported", "deferred", "expected"),
    [
        ("errors", "jit.ir", False, False),
        ("dtypes", "jit.types", True, True),
        ("dtypes", "jit.types", False, False),
        ("jit.kernel", "backends", False, True),
        ("jit.kernel", "backends.cpu.device", True, False),
        ("jit.kernel", "tensor", True, False),
        ("backends.base", "jit.ir", False, False),
        ("backends.cpu.device", "jit.ir", False, True),
        ("backends.cpu.device", "backends.cpu_pool", False, True),
        ("backends.cpu.device", "backends.sim", False, False),
        ("backends.cuda.driver", "backends.pool", False, True),
        ("backends.cuda.device", "backends.cpu.device", False, False),
        ("cli", "jit.cache", True, True),
        ("", "backends.cpu", False, False),
        ("dnn.conv", "blas", False, True),
        ("blas.gemm", "dnn", False, False),
    ],
)
def test_arrows(importer, imported, deferred, expected):
    assert allowed(Import(importer, imported, deferred, 0)) == expected


def test_imports_point_one_way():
    wrong = [str(i) for i in OURS if not allowed(i)]
    assert not wrong, "\n".join(wrong)


def test_every_exception_is_still_needed():
    assert set(EXCEPTIONS) <= {(i.importer, i.imported) for i in OURS}
    assert set(SHARED) <= {i.imported for i in OURS if i.importer.startswith("backends.cuda")}


def test_heavy_libraries_are_imported_in_their_places_alone():
    wrong = [
        str(i)
        for i in ALL
        if (places := HEAVY.get(i.imported.partition(".")[0])) is not None
        and not any(i.importer == p or i.importer.startswith(f"{p}.") for p in places)
    ]
    assert not wrong, "\n".join(wrong)


def test_nobody_imports_a_kernel_module_by_the_decorator_s_name():
    """`ruda.jit` is the decorator: `import ruda.jit.ir as x` finds a function without `ir`."""
    wrong = [
        f"{path}, line {node.lineno}"
        for path in MODULES.values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import)
        and any(n.name.startswith("ruda.jit.") and n.asname for n in node.names)
    ]
    assert not wrong, "\n".join(wrong)


# ------------------------------------------------------------------------ what `import ruda` does


def run(code, *options):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        env=environment,
        check=True,
        text=True,
        capture_output=True,
    )


def test_import_ruda_imports_no_backend_and_nothing_heavy():
    heavy = sorted(HEAVY)
    code = f"""
import sys, ruda
names = {{m.partition(".")[0] for m in sys.modules}} & set({heavy!r})
contract = {{"ruda.backends.base", "ruda.backends.pool"}}
names |= {{m for m in sys.modules if m.startswith("ruda.backends.")}} - contract
print(sorted(names))
"""
    assert run(code).stdout == "[]\n"


def test_import_ruda_prints_nothing_and_warns_of_nothing():
    found = run("import ruda", "-W", "error")
    assert (found.stdout, found.stderr) == ("", "")


def test_the_time_of_import_ruda_is_reported(record_property, capsys):
    """Reported, not asserted: speed is measured in `benchmarks/`."""
    code = """
import time, numpy
start = time.perf_counter()
import ruda
print(time.perf_counter() - start)
"""
    times = [1e3 * float(run(code).stdout) for _ in range(5)]
    record_property("import_ruda_ms", statistics.median(times))
    with capsys.disabled():
        print(f"\nimport ruda, beyond numpy: {statistics.median(times):.0f} ms", end=" ")
    assert min(times) > 0


@pytest.mark.parametrize(
    "code",
    [
        "import ruda; assert callable(ruda.jit)",
        "from ruda import jit; assert callable(jit)",
        "import ruda; from ruda.jit import ir; assert ir.Function",
        "from ruda.jit import ir; import ruda; assert callable(ruda.jit) and ir.Function",
        "import ruda.jit.ir; import ruda; assert callable(ruda.jit)",
        "from ruda.jit.ir import Function; import ruda; assert callable(ruda.jit)",
        "import ruda as cuda; assert cuda.cache.why and cuda.jit",
    ],
)
def test_the_forms_of_importing_jit(code):
    run(code)


def test_every_public_name_exists_and_is_listed_once():
    import ruda

    assert len(ruda.__all__) == len(set(ruda.__all__))
    assert [name for name in ruda.__all__ if not hasattr(ruda, name)] == []
