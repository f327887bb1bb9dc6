"""cuSOLVER, cuBLAS and cuFFT where NVIDIA's packages are installed: functions by their C names.

The libraries are found and loaded at the first call, by cuda-pathfinder. PROTOTYPES are those of
the vendor's headers, one row for all dtypes: "?" in a name stands for the letter of a dtype. What
is called goes to the default stream, as all work of tensors does: memory of the pool that is freed
after a call is reused behind it.

A handle serves one call at a time: each call takes one that is free, or makes another, so that
there are as many as threads were ever calling at once.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, Any

from ruda.backends.base import observed
from ruda.errors import DeviceError, OutOfMemoryError

if TYPE_CHECKING:
    from ruda.backends.cuda.driver import Gpu

LETTERS = {"float32": "S", "float64": "D", "complex64": "C", "complex128": "Z"}

# What is given: i int, l 64 bits, z size_t, p a pointer. What is added: h the handle, P the
# parameters and J the Jacobi method's settings that go with it.
KINDS = {
    "i": ctypes.c_int, "l": ctypes.c_int64, "z": ctypes.c_size_t, "b": ctypes.c_byte,
    "p": ctypes.c_void_p, "h": ctypes.c_void_p, "P": ctypes.c_void_p, "J": ctypes.c_void_p,
}  # fmt: skip
PROTOTYPES = {
    "cusolver": {
        "cusolverDnCreate": "p", "cusolverDnSetStream": "hp",
        "cusolverDnCreateParams": "p", "cusolverDnCreateGesvdjInfo": "p",
        "cusolverDn?getrf_bufferSize": "hiipip", "cusolverDn?getrf": "hiipippp",
        "cusolverDn?getrs": "hiiipippip",
        "cusolverDn?potrf_bufferSize": "hiipip", "cusolverDn?potrf": "hiipipip",
        "cusolverDn?potrfBatched": "hiipipi",
        "cusolverDn?geqrf_bufferSize": "hiipip", "cusolverDn?geqrf": "hiipippip",
        "cusolverDn?orgqr_bufferSize": "hiiipipp", "cusolverDn?orgqr": "hiiipippip",
        "cusolverDn?ungqr_bufferSize": "hiiipipp", "cusolverDn?ungqr": "hiiipippip",
        "cusolverDnXsyevd_bufferSize": "hPiiliplipipp",
        "cusolverDnXsyevd": "hPiiliplipipzpzp",
        "cusolverDnXsyevBatched_bufferSize": "hPiiliplipippl",
        "cusolverDnXsyevBatched": "hPiiliplipipzpzpl",
        "cusolverDn?gesvdj_bufferSize": "hiiiipippipipJ",
        "cusolverDn?gesvdj": "hiiiipippipipipJ",
        "cusolverDn?gesvdjBatched_bufferSize": "hiiipippipipJi",
        "cusolverDn?gesvdjBatched": "hiiipippipipipJi",
        "cusolverDnXgesvd_bufferSize": "hPbblliplipipliplipp",
        "cusolverDnXgesvd": "hPbblliplipipliplipzpzp",
    },
    "cublas": {
        "cublasCreate_v2": "p", "cublasSetStream_v2": "hp",
        "cublas?getrfBatched": "hipippi", "cublas?getriBatched": "hipippipi",
        "cublas?getrsBatched": "hiiipippipi",
    },
    "cufft": {
        "cufftCreate": "p", "cufftDestroy": "i", "cufftSetStream": "ip",
        "cufftSetAutoAllocation": "ii", "cufftSetWorkArea": "ip",
        "cufftMakePlanMany64": "iippllpllilp",
        "cufftExecC2C": "ippi", "cufftExecZ2Z": "ippi",
        "cufftExecR2C": "ipp", "cufftExecD2Z": "ipp", "cufftExecC2R": "ipp", "cufftExecZ2D": "ipp",
    },
}  # fmt: skip

TITLES = {"cusolver": "cuSOLVER", "cublas": "cuBLAS", "cufft": "cuFFT"}
STATUS = {
    "cusolver": {
        1: "not initialised", 2: "out of memory", 3: "an invalid value", 4: "another architecture",
        6: "execution failed", 7: "an internal error", 8: "no such matrix type", 9: "not supported",
        31: "an invalid workspace",
    },
    "cublas": {
        1: "not initialised", 3: "out of memory", 7: "an invalid value", 8: "another architecture",
        13: "execution failed", 14: "an internal error", 15: "not supported",
    },
    "cufft": {
        1: "an invalid plan", 2: "out of memory", 3: "an invalid type", 4: "an invalid value",
        5: "an internal error", 6: "execution failed", 7: "set-up failed", 8: "an invalid size",
        9: "unaligned data", 11: "an invalid device", 13: "no workspace", 14: "not implemented",
        16: "not supported", 17: "a missing dependency", 18: "NVRTC failed", 19: "nvJitLink failed",
    },
}  # fmt: skip
MEMORY = "out of memory"


# ---- finding -------------------------------------------------------------------------------------


@functools.cache
def library(name: str) -> Any:
    """A library of the vendor, loaded with those that it needs; None where there is none."""
    try:
        from cuda import pathfinder

        return ctypes.CDLL(pathfinder.load_nvidia_dynamic_lib(name).abs_path)
    except (ImportError, OSError, RuntimeError):  # pathfinder's error is a RuntimeError
        return None


def library_of(name: str) -> str:
    """The library that a function is of, by its name."""
    return next(key for key, rows in PROTOTYPES.items() if name in rows)


@functools.cache
def function(name: str, letter: str = "") -> Any:
    """A function with its prototype; None where the installed library lacks it."""
    key = library_of(name)
    found = getattr(library(key), name.replace("?", letter), None)
    if found is None:
        return None
    found.argtypes = [KINDS[c] for c in PROTOTYPES[key][name]]
    found.restype = ctypes.c_int
    return found


@functools.cache
def has(*names: str) -> bool:
    """Whether all functions are there: at float32, thus at each dtype."""
    return all(function(name, "S" if "?" in name else "") is not None for name in names)


def gpu_of(device: str) -> Gpu:
    from ruda.backends.cuda import driver

    return driver.gpu(device)


# ---- calling -------------------------------------------------------------------------------------


class Handle:
    """A library's handle on a GPU, with what its functions take besides."""

    def __init__(self, gpu: Gpu, key: str) -> None:
        self.gpu = gpu
        create, set_stream = {
            "cusolver": ("cusolverDnCreate", "cusolverDnSetStream"),
            "cublas": ("cublasCreate_v2", "cublasSetStream_v2"),
        }[key]
        self.extra = {"h": self.made(create)}
        attempt(gpu, set_stream, "", self.extra["h"], None)  # the default stream

    def made(self, create: str) -> int | None:
        """What a function creates."""
        made = ctypes.c_void_p()
        attempt(self.gpu, create, "", ctypes.byref(made))
        return made.value

    def get(self, kind: str) -> int | None:
        if kind not in self.extra:
            creates = {"P": "cusolverDnCreateParams", "J": "cusolverDnCreateGesvdjInfo"}
            self.extra[kind] = self.made(creates[kind])
        return self.extra[kind]


# (GPU, library) -> handles that no call is using. They live as long as the process.
_free: dict[tuple[int, str], list[Handle]] = {}


def run(device: str, name: str, dtype: str, *arguments: Any) -> None:
    """Call a function, with a handle and what else goes with it put where its row says."""
    gpu, key, letter = gpu_of(device), library_of(name), LETTERS[dtype]
    kinds = PROTOTYPES[key][name]
    gpu.use()
    free = _free.setdefault((gpu.number, key), [])
    try:
        handle = free.pop()
    except IndexError:
        handle = Handle(gpu, key)
    given = iter(arguments)
    values = [handle.get(c) if c in "hPJ" else next(given) for c in kinds]
    try:
        attempt(gpu, name, letter, *values)
    finally:
        free.append(handle)


def attempt(gpu: Gpu, name: str, letter: str, *arguments: Any) -> None:
    """Call a function; once more with all memory given back that no array holds, if there is none
    left. DeviceError, OutOfMemoryError."""
    key = library_of(name)
    call = function(name, letter)
    shown = name.replace("?", letter)
    if call is None:
        raise DeviceError(f"the {TITLES[key]} installed here has no {shown}")
    gpu.note(shown)
    with observed("kernel", shown, gpu.name):
        code = call(*arguments)
    if code and STATUS[key].get(code) == MEMORY:
        gpu.synchronize()
        gpu.pool.empty()
        code = call(*arguments)
    if code:
        words = STATUS[key].get(code, "an unknown error")
        kind = OutOfMemoryError if words == MEMORY else DeviceError
        raise kind(
            f"{gpu.name}: {shown} of {TITLES[key]} answers {code}, {words}; RUDA_VENDOR=0 takes "
            "ruda's own kernels"
        )
