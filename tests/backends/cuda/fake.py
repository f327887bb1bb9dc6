"""A driver without a GPU: memory of the host, launches that decode their parameters and call back.

It lets everything around a launch be tested anywhere: packing, copies, errors, memory, streams.
What a kernel computes is tested on a GPU.
"""

from __future__ import annotations

import ctypes
import enum
import struct
from typing import Any

import numpy as np


class Code(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704


class _Names:
    """Any attribute is its own name: the driver's enumerations."""

    def __getattr__(self, name: str) -> str:
        return name


ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 132,
    "CLOCK_RATE": 1980000, "MAX_THREADS_PER_BLOCK": 1024, "MAX_GRID_DIM_X": 2**31 - 1,
    "MAX_GRID_DIM_Y": 65535, "MAX_GRID_DIM_Z": 65535, "MAX_BLOCK_DIM_X": 1024,
    "MAX_BLOCK_DIM_Y": 1024, "MAX_BLOCK_DIM_Z": 64, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
}  # fmt: skip
FUNCTION = {
    "MAX_THREADS_PER_BLOCK": 1024, "NUM_REGS": 32, "SHARED_SIZE_BYTES": 0,
    "MAX_DYNAMIC_SHARED_SIZE_BYTES": 48 << 10,
}  # fmt: skip


# Answered by the driver itself, also where a context is lost.
QUESTIONS = ("cuGetErrorString", "cuDeviceGetAttribute", "cuDeviceGetName", "cuDriverGetVersion")


LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3
)


class FakeDriver:
    """The calls of `cuda.bindings.driver` that ruda makes."""

    CUdevice_attribute = CUpointer_attribute = CUfunction_attribute = CUstreamCaptureMode = _Names()
    CUresult = Code

    def __init__(self, devices: int = 1, memory: int = 1 << 30) -> None:
        self.devices, self.memory, self.used = devices, memory, 0
        self.blocks: dict[int, Any] = {}
        self.calls: list[str] = []
        self.launches: list[dict[str, Any]] = []
        self.kernels: dict[Any, Any] = {}  # cubin or handle -> what to do with the parameters
        self.function = dict(FUNCTION)
        self.codes: dict[str, list[Code]] = {}  # answers of the next calls, by name
        self.broken: Code | bool = False  # what every call that works on the device answers
        self.context: Any = None
        self.are_peers = True  # its devices
        self.captured: list[Any] | None = None  # launches of the capture that is going on
        self.formats = ""  # of their parameters, by struct's letters
        self.functions: list[bytes] = [b""]  # their cubins; a handle is a place here
        self.flags: Any = None  # of the question for the address of a function
        self.launch = LAUNCH(self._launch)  # for native code, which knows no Python

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if not name.startswith("cu") or not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if self.broken and name not in QUESTIONS:
                code = Code.CUDA_ERROR_ILLEGAL_ADDRESS if self.broken is True else self.broken
                return (code, None) if name in ("cuMemAlloc", "cuStreamCreate") else (code,)
            planned = self.codes.get(name)
            if planned:
                code = planned.pop(0)
                if code:
                    return (code, None) if name in ("cuMemAlloc", "cuModuleLoadData") else (code,)
            return found(*arguments)

        return call

    def CUstream(self, handle: int) -> int:
        return handle

    def cuInit(self, flags: int) -> Any:
        return (Code(0),)

    def cuDeviceGetCount(self) -> Any:
        return Code(0), self.devices

    def cuDeviceGet(self, number: int) -> Any:
        return Code(0), number

    def cuDeviceGetName(self, length: int, device: int) -> Any:
        return Code(0), b"Fake GPU\0\0"

    def cuDeviceTotalMem(self, device: int) -> Any:
        return Code(0), self.memory

    def cuDeviceGetAttribute(self, kind: str, device: int) -> Any:
        return Code(0), ATTRIBUTES[kind.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    def cuDriverGetVersion(self) -> Any:
        return Code(0), 13000

    def cuGetErrorString(self, code: Code) -> Any:
        return Code(0), code.name.lower().encode()

    def cuDevicePrimaryCtxRetain(self, device: int) -> Any:
        return Code(0), f"context {device}"

    def cuCtxSetCurrent(self, context: Any) -> Any:
        self.context = context
        return (Code(0),)

    def cuCtxSynchronize(self) -> Any:
        return (Code(0),)

    # ---- memory

    def cuMemAlloc(self, nbytes: int) -> Any:
        if self.used + nbytes > self.memory:
            return Code.CUDA_ERROR_OUT_OF_MEMORY, None
        block = ctypes.create_string_buffer(nbytes + 256)
        address = ctypes.addressof(block)
        address += -address % 256
        self.blocks[address] = block, nbytes
        self.used += nbytes
        return Code(0), address

    def cuMemFree(self, address: int) -> Any:
        self.used -= self.blocks.pop(int(address))[1]
        return (Code(0),)

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> Any:
        return self.cuMemAlloc(nbytes)

    def cuMemAllocManaged(self, nbytes: int, flags: int) -> Any:
        return self.cuMemAlloc(nbytes)

    cuMemFreeHost = cuMemFree

    def cuMemHostRegister(self, address: int, nbytes: int, flags: int) -> Any:
        return (Code(0),)

    def cuMemHostUnregister(self, address: int) -> Any:
        return (Code(0),)

    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> Any:
        return Code(0), address

    def cuPointerGetAttribute(self, kind: str, address: int) -> Any:
        return Code(0), 0

    def cuMemGetInfo(self) -> Any:
        return Code(0), self.memory - self.used, self.memory

    def cuMemcpyHtoDAsync(self, target: int, source: int, nbytes: int, stream: Any) -> Any:
        ctypes.memmove(int(target), int(source), nbytes)
        return (Code(0),)

    cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = cuMemcpyHtoDAsync

    def cuDeviceCanAccessPeer(self, device: int, peer: int) -> Any:
        return Code(0), int(self.are_peers)

    def cuCtxEnablePeerAccess(self, context: str, flags: int) -> Any:
        assert self.are_peers and context != self.context
        return (Code(0),)

    def cuMemcpyPeerAsync(
        self, target: int, there: str, source: int, here: str, nbytes: int, stream: Any
    ) -> Any:
        assert {there, here} == {"context 0", "context 1"} and self.context == there
        ctypes.memmove(int(target), int(source), nbytes)
        return (Code(0),)

    def cuMemsetD8Async(self, target: int, value: int, count: int, stream: Any) -> Any:
        ctypes.memset(int(target), value, count)
        return (Code(0),)

    def cuMemsetD32Async(self, target: int, value: int, count: int, stream: Any) -> Any:
        assert value == 0
        return self.cuMemsetD8Async(target, 0, 4 * count, stream)

    # ---- streams and events

    def cuStreamCreate(self, flags: int) -> Any:
        self.streams = getattr(self, "streams", 100) + 1
        return Code(0), self.streams

    def cuStreamDestroy(self, stream: Any) -> Any:
        return (Code(0),)

    def cuStreamSynchronize(self, stream: Any) -> Any:
        return (Code(0),)

    def cuStreamQuery(self, stream: Any) -> Any:
        return (Code(0),)

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> Any:
        return (Code(0),)

    def cuEventCreate(self, flags: int) -> Any:
        return Code(0), object()

    def cuEventDestroy(self, event: Any) -> Any:
        return (Code(0),)

    def cuEventRecord(self, event: Any, stream: Any) -> Any:
        return (Code(0),)

    def cuEventQuery(self, event: Any) -> Any:
        return (Code(0),)

    def cuEventSynchronize(self, event: Any) -> Any:
        return (Code(0),)

    def cuEventElapsedTime(self, start: Any, end: Any) -> Any:
        return Code(0), 1.5

    # ---- kernels

    def cuModuleLoadData(self, data: bytes) -> Any:
        assert data[:4] == b"\x7fELF"
        return Code(0), data

    def cuModuleGetFunction(self, module: bytes, name: bytes) -> Any:
        assert name == b"kernel"
        self.functions.append(module)
        return Code(0), len(self.functions) - 1

    def cuGetProcAddress(self, name: bytes, version: int, flags: int) -> Any:
        assert name == b"cuLaunchKernel"
        self.flags = flags
        return Code(0), ctypes.cast(self.launch, ctypes.c_void_p).value, 0

    def _launch(self, function: int, *rest: Any) -> int:
        *shape, stream, parameters, extra = rest
        (code,) = self.cuLaunchKernel(function, *shape, stream or 0, parameters, extra or 0)
        return int(code)

    def cuFuncGetAttribute(self, kind: str, function: Any) -> Any:
        return Code(0), self.function[kind.removeprefix("CU_FUNC_ATTRIBUTE_")]

    def cuFuncSetAttribute(self, function: Any, kind: str, value: int) -> Any:
        self.function[kind.removeprefix("CU_FUNC_ATTRIBUTE_")] = value
        return (Code(0),)

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(
        self, function: Any, threads: int, nbytes: int
    ) -> Any:
        registers = -(-self.function["NUM_REGS"] // 8) * 8
        shared = nbytes + self.function["SHARED_SIZE_BYTES"]
        by_registers = 65536 // (registers * 32) // (threads // 32)
        by_shared = ATTRIBUTES["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"] // shared if shared else 32
        return Code(0), min(2048 // threads, by_registers, by_shared, 32)

    def cuLaunchKernel(self, handle: int, *rest: Any) -> Any:
        function = self.functions[handle]
        *shape, shared, stream, parameters, extra = rest
        assert extra == 0
        if self.captured is not None:
            *shape, parameters, extra = rest
            kept = Parameters(parameters, self.formats)
            self.captured.append((handle, [*shape, kept.address, extra], kept))
            return (Code(0),)
        action = self.kernels.get(handle) or self.kernels.get(function)
        self.launches.append(
            {"shape": tuple(shape), "shared": shared, "stream": stream, "code": function}
        )
        if action is not None:
            action(parameters)
        return (Code(0),)

    # ---- graphs

    def cuStreamIsCapturing(self, stream: Any) -> Any:
        return Code(0), 0

    def cuStreamBeginCapture(self, stream: Any, mode: Any) -> Any:
        self.captured = []
        return (Code(0),)

    def cuStreamEndCapture(self, stream: Any) -> Any:
        found, self.captured = self.captured, None
        return Code(0), found

    def cuGraphInstantiate(self, graph: Any, flags: int) -> Any:
        return Code(0), list(graph)

    def cuGraphDestroy(self, graph: Any) -> Any:
        return (Code(0),)

    cuGraphExecDestroy = cuGraphDestroy

    def cuGraphLaunch(self, graph: Any, stream: Any) -> Any:
        launch = object.__getattribute__(self, "cuLaunchKernel")  # not a call of the user's
        for function, rest, _ in graph:
            launch(function, *rest)
        return (Code(0),)

    def cuLaunchCooperativeKernel(self, function: Any, *rest: Any) -> Any:
        return self.cuLaunchKernel(function, *rest, 0)


class Parameters:
    """A copy of a launch's parameters."""

    def __init__(self, parameters: int, formats: str) -> None:
        self.held = [
            ctypes.create_string_buffer(struct.pack(f"<{c}", v))
            for c, v in zip(formats, values(parameters, formats), strict=True)
        ]
        self.table = (ctypes.c_void_p * len(formats))(*map(ctypes.addressof, self.held))
        self.address = ctypes.addressof(self.table)


def values(parameters: int, formats: str) -> list[Any]:
    """The parameters at a table of addresses, by struct's letters."""
    table = (ctypes.c_void_p * len(formats)).from_address(parameters)
    return [
        struct.unpack(f"<{c}", ctypes.string_at(at, struct.calcsize(c)))[0]
        for at, c in zip(table, formats, strict=True)
    ]


def array(address: int, dtype: Any, count: int) -> np.ndarray[Any, Any]:
    """The memory at an address of the fake device."""
    raw = (ctypes.c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.ctypeslib.as_array(raw).view(dtype)
