"""List the public names of an installed numba-cuda, as docs/numba-cuda-names.txt keeps them.

    python -m docs.upstream > docs/numba-cuda-names.txt

numba-cuda marks nothing as public, so the list is what its documentation names: the attributes
of `numba.cuda`, of its documented submodules and classes, less what is there only because it was
imported. A new upstream name therefore shows up as a difference, to be judged once.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import re
import types
from collections.abc import Callable
from typing import Any

# Attributes of numba.cuda that are no part of its interface: imports, loop variables, settings of
# the package itself. (Other modules are left out as a kind.)
INTERNAL = frozenset(
    [
        "HAS_NUMBA",
        "alias",
        "config_default_cc",
        "deferred_type",
        "ffi",
        "ffi_forced_object",
        "implementation",
        "numba_cuda_default_ptx_cc",
        "optional",
        "prepare_shape_strides_dtype",
        "runtime",
        "dim3",
        "grid_group",
        "Dim3",
        "GridGroup",
        "none",
    ]
)

# Documented submodules, and what counts as theirs.
SUBMODULES: dict[str, Callable[[str, Any], Any]] = {
    "cg": lambda name, value: name == "this_grid",
    "random": lambda name, value: "xoroshiro128p" in name and not name.endswith(("_cpu", "_state")),
    "libdevice": lambda name, value: inspect.isfunction(value),
    "fp16": lambda name, value: name.startswith("h"),
    "bf16": lambda name, value: (
        name.startswith("h")
        or (re.search("_bfloat16|bfloat16_", name) and not re.search("2bfloat16|short", name))
    ),
    "launchconfig": lambda name, value: (
        getattr(value, "__module__", "").endswith("launchconfig") and inspect.isfunction(value)
    ),
}

# Groups of kernel names that are classes in numba-cuda.
GROUPS = ("atomic", "shared", "local", "const", "threadIdx", "blockIdx", "blockDim", "gridDim")

# Documented classes that are not attributes of numba.cuda, with members that are not documented
# and only serve numba-cuda itself.
CLASSES = {
    "CUDADispatcher": (
        "dispatcher",
        """add_overload call compile compile_device disable_compile dump enable_caching
        fold_argument_types get_annotation_info get_call_template get_compile_result
        get_function_type get_metadata get_overload is_compiling nopython_signatures recompile
        stats targetdescr typeof_pyval inspect_cfg inspect_disasm_cfg inspect_sass_cfg""",
    ),
    "DeviceNDArray": (
        "cudadrv.devicearray",
        "as_cuda_arg device_ctypes_pointer",
    ),
    "DeviceRecord": (
        "cudadrv.devicearray",
        """T as_cuda_arg bind device_ctypes_pointer flags get_ipc_handle getitem nbytes setitem
        split squeeze transpose view""",
    ),
    "Stream": ("cudadrv.driver", ""),
    "Event": ("cudadrv.driver", ""),
    "Device": (
        "cudadrv.driver",
        "from_identity get_device_identity get_primary_context release_primary_context",
    ),
    "Context": (
        "cudadrv.driver",
        """create_event create_external_stream create_module_image create_module_ptx create_stream
        defer_cleanup get_default_stream get_ipc_handle get_legacy_default_stream
        get_per_thread_default_stream memalloc memallocmanaged memhostalloc mempin
        open_ipc_handle prepare_for_use unload_module""",
    ),
}

# Documented, but made where `dir` does not see it.
BY_HAND = [
    "CUDADispatcher[griddim,blockdim]",
    "CUDADispatcher[,,stream]",
    "CUDADispatcher[,,,sharedmem]",
    "CUDADispatcher[].pre_launch_callbacks",
    "Device.compute_capability",
    "Device.id",
    "Device.name",
    "Device.uuid",
    "DeviceNDArray.alloc_size",
    "DeviceNDArray.dtype",
    "DeviceNDArray.ndim",
    "DeviceNDArray.shape",
    "DeviceNDArray.size",
    "DeviceNDArray.strides",
    "DeviceNDArray.__cuda_array_interface__",
    "cg.GridGroup.sync",
    "gpus.current",
    "gpus[i]",
    "jit(extensions=)",
    "jit(fastmath=)",
    "jit(max_registers=)",
]


# Python's library inside kernels, from the page "Supported Python features in CUDA Python".
LIBRARY = {
    "builtins": """
        abs bool complex enumerate float int len max min pow range round zip
    """,
    "cmath": """
        acos acosh asin asinh atan atanh cos cosh exp isfinite isinf isnan log log10 phase polar
        rect sin sinh sqrt tan tanh
    """,
    "math": """
        acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh erf erfc exp exp2 expm1
        fabs floor fmod frexp gamma hypot isfinite isinf isnan ldexp lgamma log log10 log1p log2
        modf nextafter pow remainder sin sinh sqrt tan tanh
    """,
    "operator": """
        add and_ eq floordiv ge gt iadd iand ifloordiv ilshift imod imul invert ior ipow irshift
        isub itruediv ixor le lshift lt mod mul ne neg not_ or_ pos pow rshift sub truediv xor
    """,
    "numpy": """
        arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and bitwise_not bitwise_or
        bitwise_xor cos cosh deg2rad degrees equal fmax fmin greater greater_equal hypot invert
        left_shift less less_equal log log10 log2 logical_and logical_not logical_or logical_xor
        maximum minimum not_equal rad2deg radians right_shift sin sinh tan tanh
    """,
}


def installed_names() -> list[str]:
    """The names of the numba-cuda that is installed; it needs no GPU."""
    cuda = importlib.import_module("numba.cuda")
    names: set[str] = set(BY_HAND)
    names |= {f"{module}.{name}" for module, list_ in LIBRARY.items() for name in list_.split()}
    for name, value in _public(cuda):
        if not isinstance(value, types.ModuleType) and name not in (*INTERNAL, *GROUPS):
            names.add(name)
    for module, wanted in SUBMODULES.items():
        members = _public(importlib.import_module(f"numba.cuda.{module}"))
        names |= {f"{module}.{name}" for name, value in members if wanted(name, value)}
    for group in GROUPS:
        names |= {f"{group}.{name}" for name, _ in _public(getattr(cuda, group))}
    for name, (module, internal) in CLASSES.items():
        cls = getattr(importlib.import_module(f"numba.cuda.{module}"), name)
        documented = {member for member, _ in _public(cls)} - set(internal.split())
        names |= {f"{name}.{member}" for member in documented}
    parameters = list(inspect.signature(cuda.jit).parameters)
    names |= {f"jit({name}=)" for name in parameters[1:] if name != "kws"}
    return sorted(names)


def _public(owner: Any) -> list[tuple[str, Any]]:
    return [(name, getattr(owner, name)) for name in dir(owner) if not name.startswith("_")]


def version() -> str | None:
    """The version of numba-cuda that is installed, or None."""
    try:
        return importlib.metadata.version("numba-cuda")
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    print(f"# numba-cuda {version()}")
    print("\n".join(installed_names()))
