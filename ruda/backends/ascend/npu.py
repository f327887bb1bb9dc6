"""`ascend:0`: an NPU, through the compiler and the runtime library of an installed CANN.

`ASCEND_HOME_PATH` says where CANN is; its compiler makes a library of the emitted text, whose
launcher is called with the addresses of device memory. libascendcl is used by ctypes, in the few
calls of `CALLS`. The NPU's name says which chip the text is for. None of this has run on an NPU:
tests stand in for CANN with a host compiler.
"""

from __future__ import annotations

import ctypes
import functools
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ruda.backends.ascend import compile as compiler
from ruda.backends.ascend.device import (
    CHIPS,
    Module,
    arrays_of,
    check_launch,
    cores_for,
    describe,
    emit_source,
    forms,
    host_span,
    overlaps,
    pack,
    prepared,
    properties,
    tell,
)
from ruda.backends.ascend.reports import joined, parted
from ruda.backends.base import (
    Binary,
    Bytes,
    DeviceArray,
    DeviceInfo,
    HostMemory,
    Launch,
    Source,
    Storage,
    Stream,
    _at,
)  # fmt: skip
from ruda.errors import DeviceError, DeviceNotFoundError, OutOfMemoryError
from ruda.jit.ir import Function
from ruda.settings import settings

TO_DEVICE, TO_HOST = 1, 2
OUT_OF_MEMORY = 207001
VECTOR_CORES = 1  # what aclGetDeviceCapability may be asked for
# How the names of NPUs begin -> the chip that they have. 910_93 are the A3's, 910_95 was the 950.
SOCS = {
    "Ascend910B": "910b",
    "Ascend910_93": "910b",
    "Ascend910_95": "950",
    "Ascend950": "950",
}
P, SIZE = ctypes.c_void_p, ctypes.c_size_t
# name -> the types of its arguments; all return an error number
CALLS: dict[str, tuple[Any, ...]] = {
    "aclInit": (ctypes.c_char_p,),
    "aclrtGetDeviceCount": (ctypes.POINTER(ctypes.c_uint32),),
    "aclrtSetDevice": (ctypes.c_int32,),
    "aclrtCreateStream": (ctypes.POINTER(P),),
    "aclrtSynchronizeStream": (P,),
    "aclrtMalloc": (ctypes.POINTER(P), SIZE, ctypes.c_int),
    "aclrtFree": (P,),
    "aclrtMemcpy": (P, SIZE, P, SIZE, ctypes.c_int),
    "aclrtGetMemInfo": (ctypes.c_int, ctypes.POINTER(SIZE), ctypes.POINTER(SIZE)),
}


class Cann:
    """An installed CANN with at least one NPU."""

    def __init__(self, home: str) -> None:
        found = next(iter(sorted(Path(home).glob("**/lib64/libascendcl.so"))), None)
        if found is None:
            raise DeviceNotFoundError(f"ASCEND_HOME_PATH={home} has no libascendcl.so")
        self.home = home
        try:
            self.library = ctypes.CDLL(str(found), ctypes.RTLD_GLOBAL)
            for name, types in CALLS.items():
                getattr(self.library, name).argtypes = types
            for name in ("aclGetRecentErrMsg", "aclrtGetSocName"):
                getattr(self.library, name).restype = ctypes.c_char_p
        except (OSError, AttributeError) as error:
            raise DeviceNotFoundError(
                f"the CANN at {home} ({compiler.version_of(home)}) cannot be used: {error}"
            ) from None
        self.call("aclInit", None)
        count = ctypes.c_uint32()
        self.call("aclrtGetDeviceCount", count)
        self.count = count.value
        self.streams: dict[int, Any] = {}
        self.soc = (self.library.aclrtGetSocName() or b"").decode(errors="replace")

    @property
    def chip(self) -> str | None:
        """The chip of the NPUs by their name; None if it is none that ruda writes code for."""
        return next((chip for soc, chip in SOCS.items() if self.soc.startswith(soc)), None)

    def cores(self, number: int) -> int:
        """How many vector units an NPU has; 0 if it does not tell."""
        found = ctypes.c_int64()
        ask = getattr(self.library, "aclGetDeviceCapability", None)  # not in every CANN
        if ask is None or ask(ctypes.c_uint32(number), VECTOR_CORES, ctypes.byref(found)):
            return 0
        return found.value

    def call(self, name: str, *arguments: Any) -> None:
        """A call of the library; DeviceError with its text."""
        code = getattr(self.library, name)(*arguments)
        if code:
            text = (self.library.aclGetRecentErrMsg() or b"").decode(errors="replace").strip()
            kind = OutOfMemoryError if code == OUT_OF_MEMORY else DeviceError
            raise kind(f"{name} failed with error {code}{': ' + text if text else ''}")

    def use(self, number: int) -> Any:
        """Make an NPU this thread's; its stream."""
        self.call("aclrtSetDevice", number)
        if number not in self.streams:
            stream = P()
            self.call("aclrtCreateStream", stream)
            self.streams[number] = stream
        return self.streams[number]

    def allocate(self, nbytes: int) -> Buffer:
        pointer = P()
        self.call("aclrtMalloc", pointer, max(32, -(-nbytes // 32) * 32), 0)
        return Buffer(self, int(pointer.value or 0))

    def write(self, address: int, data: Bytes) -> None:
        if data.size:
            self.call("aclrtMemcpy", address, data.size, data.ctypes.data, data.size, TO_DEVICE)

    def read(self, address: int, out: Bytes) -> None:
        if out.size:
            self.call("aclrtMemcpy", out.ctypes.data, out.size, address, out.size, TO_HOST)


class Buffer:
    """Device memory that is given back when nobody holds it."""

    def __init__(self, cann: Cann, address: int) -> None:
        self.address = address
        weakref.finalize(self, cann.library.aclrtFree, address)


_open = functools.cache(Cann)


def _cann(home: str) -> Cann:
    if not home:
        raise DeviceNotFoundError(
            "ASCEND_HOME_PATH is not set: the device `ascend` needs CANN and an NPU; "
            "`ascend-twin` emulates one"
        )
    found = _open(home)
    if not found.count:
        raise DeviceNotFoundError(f"the CANN at {home} finds no NPU; `ascend-twin` emulates one")
    if found.chip is None and not settings.ascend_chip:
        raise DeviceNotFoundError(
            f"the NPU is an {found.soc or 'unknown one'}: there is code for names that begin with "
            f"{', '.join(SOCS)}. If it has one of these chips by another name, "
            f"RUDA_ASCEND_CHIP={'|'.join(CHIPS)} says which"
        )
    return found


def cann() -> Cann:
    return _cann(os.environ.get("ASCEND_HOME_PATH", ""))


def number_of(device: str) -> int:
    _, _, number = device.partition(":")
    return int(number) if number.isdigit() else 0


def chip_of_npu() -> str:
    """The chip to write code for: the setting's, else the NPU's, else the newest."""
    if settings.ascend_chip:
        return str(settings.ascend_chip)
    try:
        return cann().chip or "950"
    except DeviceError:
        return "950"


class NpuBackend(HostMemory):
    """Backend "ascend"; see `ruda.backends.base.Backend`."""

    name = "ascend"

    def devices(self) -> Sequence[DeviceInfo]:
        try:
            found = cann()
        except DeviceError:
            return []
        chip = chip_of_npu()
        return [
            DeviceInfo(f"ascend:{k}", f"NPU {found.soc}, by CANN: code for the {chip.upper()}, "
                       "which ruda's authors have run in emulation only", "hardware",
                       properties(chip))
            for k in range(found.count)
        ]  # fmt: skip

    def missing(self) -> str | None:
        """Why there is no device; None if there is one."""
        try:
            cann()
        except DeviceError as error:
            return str(error)
        return None

    def target(self, device: str) -> Mapping[str, Any]:
        return {**CHIPS[chip_of_npu()], "missing": settings.missing}

    def needs_block(self, function: Function) -> bool:
        return True

    def emit(self, function: Function, target: Mapping[str, Any]) -> Source:
        return emit_source(function, target)

    def forms(self, function: Function) -> list[str]:
        """What `ruda.explain` tells of each chip."""
        return forms(function)

    def compile(self, source: Source, target: Mapping[str, Any]) -> Binary:
        payload = compiler.compile_for_npu(source, cann().home, str(target["arch"]))
        return Binary(payload, describe(source))

    def load(self, binary: Binary, function: Function | None, device: str) -> Module:
        assert function is not None
        target, npu = self.target(device), cann()
        if npu.chip not in (None, target["chip"]):
            raise DeviceError(
                f"this is code for an Ascend {target['chip'].upper()}, and {device} is an "
                f"{npu.soc}: RUDA_ASCEND_CHIP is for writing code, not for running it elsewhere"
            )
        npu.use(number_of(device))
        if cores := npu.cores(number_of(device)):
            target = {**target, "cores": cores}
        library = compiler.open_library(binary.payload)
        library.ruda_launch.argtypes = (P, P)
        return Module(function, binary.metadata, library, library, target, self, device)

    def resolves(self, symbol: str) -> bool:
        return False

    def launcher(
        self, module: Module, launch: Launch, fallback: Callable[..., Any] | None
    ) -> Callable[..., None]:
        check_launch(module.function.name, module.metadata, launch, module.target)

        def run(*arguments: Any) -> None:
            execute(cann(), module, launch, arguments)

        run.is_native = False  # type: ignore[attr-defined]
        return run

    # ---- memory

    def allocate(
        self, nbytes: int, device: str, kind: str = "device", stream: Stream | None = None
    ) -> Storage:
        if kind != "device":
            return super().allocate(nbytes, device, kind, stream)
        cann().use(number_of(device))
        buffer = cann().allocate(nbytes)
        return Storage(device, buffer.address, nbytes, buffer, False)

    def map(self, ary: np.ndarray[Any, Any], device: str) -> DeviceArray:
        raise DeviceError(f"{device} cannot see the memory of a NumPy array: copy it to the device")

    def read(self, storage: Storage, offset: int, out: Bytes, stream: Stream | None) -> None:
        if storage.on_host:
            return super().read(storage, offset, out, stream)
        self.synchronize(storage.device)
        cann().read(storage.address + offset, out)

    def write(self, storage: Storage, offset: int, data: Bytes, stream: Stream | None) -> None:
        if storage.on_host:
            return super().write(storage, offset, data, stream)
        self.synchronize(storage.device)
        cann().write(storage.address + offset, data)

    def synchronize(self, device: str) -> None:
        cann().call("aclrtSynchronizeStream", cann().use(number_of(device)))

    def memory_info(self, device: str) -> tuple[int, int]:
        cann().use(number_of(device))
        free, total = SIZE(), SIZE()
        cann().call("aclrtGetMemInfo", 1, free, total)
        return free.value, total.value


# ---- launches ------------------------------------------------------------------------------------


class Copies:
    """NumPy arguments of a launch on the device: what overlaps on the host does so there, too."""

    def __init__(self, npu: Cann, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        self.npu = npu
        spans = sorted((low, high) for _, low, high in map(host_span, arrays) if high > low)
        joined: list[list[int]] = []
        for low, high in spans:
            if joined and low < joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], high)
            else:
                joined.append([low, high])
        self.parts = [(low, high, npu.allocate(high - low)) for low, high in joined]
        for low, high, buffer in self.parts:
            npu.write(buffer.address, _at(low, (high - low,), np.dtype(np.uint8), None, arrays))

    def span(self, a: Any) -> list[int]:
        """Where an argument lies on the device."""
        if isinstance(a, DeviceArray):
            low, nbytes = a._span()
            base = a.storage.address
            return [base + a.offset, base + low, base + low + nbytes]
        start, low, high = host_span(a)
        for first, last, buffer in self.parts:
            if first <= low and high <= last and high > low:
                move = buffer.address - first
                return [start + move, low + move, high + move]
        return [0, 0, 0]  # an empty array

    def bring_back(self, a: np.ndarray[Any, Any]) -> None:
        if a.size:
            start, low, high = self.span(a)
            raw = np.empty(high - low, np.uint8)
            self.npu.read(low, raw)
            a[...] = np.ndarray(a.shape, a.dtype, raw, start - low, a.strides)


def execute(npu: Cann, module: Module, launch: Launch, arguments: Sequence[Any]) -> None:
    """Copy NumPy arguments to the device, run, copy what was written back."""
    from ruda.backends.cpu import reports

    devices = [a.storage.device for a in arguments if isinstance(a, DeviceArray)]
    number = number_of(devices[0]) if devices else 0
    stream = npu.use(number)
    values, scalars = prepared(module, arguments)
    cores, in_parts = cores_for(module, launch), module.target["chip"] == "910b"
    report: Any = None
    if module.sites and in_parts:
        report = parted(settings.report_bytes, cores)
    elif module.sites:
        report = reports.buffer(settings.report_bytes)
    arrays = arrays_of(module, values)
    host = [v for _, v in arrays if isinstance(v, np.ndarray)]
    extra: list[Any] = [*module.constants.values(), *([] if report is None else [report])]
    copies = Copies(npu, [*host, *extra])
    if in_parts and overlaps(module, arrays, copies.span):
        module = module.element_by_element()
    words = pack(module, launch, values, scalars, report, copies.span)
    words[6] = cores
    if module.library.ruda_launch(words.ctypes.data, stream):
        raise DeviceError(f"`{module.function.name}` could not be launched")
    written = [v for k, v in arrays if k in module.metadata["written"] and v is not None]
    back = [v for v in written if isinstance(v, np.ndarray)]
    if host or report is not None or module.constants:
        npu.call("aclrtSynchronizeStream", stream)
    for v in back:
        copies.bring_back(v)
    if report is not None:
        copies.bring_back(report)
        tell(joined(report) if in_parts else report, module, launch)


BACKEND = NpuBackend()
