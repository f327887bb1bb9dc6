"""wgpu-native's C functions, where what wgpu-py puts around them costs more than the work.

Encoders, passes and command buffers are handles of the library here, each released when it is used
up. What is wrong with a recorded command is told by `finish`. The functions of `checked` raise
wgpu's errors, as wgpu-py's methods do; an error of one of `library` would be fatal, or go unheard.
"""

from __future__ import annotations

from typing import Any

READ, WRITE = 1, 2  # WGPUMapMode


class Native:
    """The functions for one device."""

    def __init__(self, device: Any) -> None:
        from wgpu.backends.wgpu_native import ffi, lib
        from wgpu.backends.wgpu_native._api import libf

        self.ffi, self.library, self.checked = ffi, lib, libf
        self.nothing = ffi.NULL
        self.owner = device
        self.makes_shaders = hasattr(libf, "wgpuDeviceCreateShaderModuleTrusted")
        self.device, self.queue = device._internal, device.queue._internal
        self.commands = ffi.new("WGPUCommandBuffer[1]")
        self.asked = 0  # the number of the last request to map
        self.status: int | None = None  # what it came to

        self.interrupted: BaseException | None = None  # while the library called back

        def answer(status: Any, message: Any, number: Any, unused: Any) -> None:
            self.take(int(status), int(ffi.cast("intptr_t", number)))

        def fail(kind: Any, error: BaseException, trace: Any) -> None:
            self.interrupted = error

        # Lives as long as the library may call it.
        kind = "void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)"
        self.answer = ffi.callback(kind, answer, onerror=fail)
        self.info = ffi.new(
            "WGPUBufferMapCallbackInfo *",
            {"mode": lib.WGPUCallbackMode_AllowProcessEvents, "callback": self.answer},
        )

    # ---- kernels

    def shader(self, text: str, holds: bool) -> Any:
        """wgpu-py's module of a WGSL text, whose loops are not counted. `holds`: indices are held
        to the bounds of memory.

        WebGPU has a counter of 64 bits put into every loop, so that a driver may not take an
        endless one for unreachable: a third of the time of a Mandelbrot set on an H200.
        """
        from wgpu.backends.wgpu_native._api import GPUShaderModule

        ffi, library = self.ffi, self.library
        source = ffi.new("WGPUShaderSourceWGSL *")
        data = text.encode()
        held = ffi.from_buffer(data)
        source.chain.sType = library.WGPUSType_ShaderSourceWGSL
        source.code.data, source.code.length = held, len(data)
        made = ffi.new("WGPUShaderModuleDescriptor *")
        made.nextInChain = ffi.cast("WGPUChainedStruct *", source)
        checks = library.WGPUShaderRuntimeChecks_BoundsChecks if holds else 0
        found = self.checked.wgpuDeviceCreateShaderModuleTrusted(self.device, made, checks)
        return GPUShaderModule("", found, self.owner)

    # ---- recording

    def encoder(self) -> Any:
        return self.checked.wgpuDeviceCreateCommandEncoder(self.device, self.nothing)

    def begin(self, encoder: Any, writes: tuple[Any, int, int] | None = None) -> Any:
        """A compute pass; `writes` are a query set, and the numbers of its begin and its end."""
        descriptor = self.nothing
        if writes is not None:
            stamps = self.ffi.new("WGPUPassTimestampWrites *")
            stamps.querySet = writes[0]._internal
            stamps.beginningOfPassWriteIndex, stamps.endOfPassWriteIndex = writes[1:]
            descriptor = self.ffi.new("WGPUComputePassDescriptor *", {"timestampWrites": stamps})
        return self.library.wgpuCommandEncoderBeginComputePass(encoder, descriptor)

    def end(self, compute: Any) -> None:
        self.library.wgpuComputePassEncoderEnd(compute)
        self.library.wgpuComputePassEncoderRelease(compute)

    def copy(
        self, encoder: Any, source: Any, start: int, target: Any, to: int, nbytes: int
    ) -> None:
        self.library.wgpuCommandEncoderCopyBufferToBuffer(
            encoder, source._internal, start, target._internal, to, nbytes
        )

    def resolve(self, encoder: Any, queries: Any, count: int, target: Any) -> None:
        """Write the first timestamps of a query set to a buffer."""
        self.library.wgpuCommandEncoderResolveQuerySet(
            encoder, queries._internal, 0, count, target._internal, 0
        )

    def finish(self, encoder: Any) -> Any:
        """The commands of an encoder, or the error of one."""
        try:
            return self.checked.wgpuCommandEncoderFinish(encoder, self.nothing)
        finally:
            self.library.wgpuCommandEncoderRelease(encoder)

    def submit(self, commands: Any) -> None:
        self.commands[0] = commands
        self.library.wgpuQueueSubmit(self.queue, 1, self.commands)
        self.library.wgpuCommandBufferRelease(commands)

    # ---- memory

    def write(self, buffer: Any, offset: int, data: Any) -> None:
        """Bytes into a buffer, before the next commands that are submitted."""
        raw = self.ffi.from_buffer(data)
        self.checked.wgpuQueueWriteBuffer(self.queue, buffer._internal, offset, raw, len(raw))

    def map(self, buffer: Any, mode: int, nbytes: int) -> None:
        """Ask to map a buffer; `status` is a number when the device is done with it."""
        self.asked += 1
        self.status = None
        self.info.userdata1 = self.ffi.cast("void *", self.asked)
        self.checked.wgpuBufferMapAsync(buffer._internal, mode, 0, nbytes, self.info[0])

    def take(self, status: int, number: int) -> None:
        """What a request has come to."""
        if number == self.asked:  # none that Ctrl-C has given up
            self.status = status

    def is_answered(self) -> bool:
        """Whether what was asked for last is decided; lets the library tell."""
        self.poll()
        return self.status is not None

    @property
    def is_mapped(self) -> bool:
        found: bool = self.status == self.library.WGPUMapAsyncStatus_Success
        return found

    def memory(self, buffer: Any, mode: int, nbytes: int) -> Any:
        """The bytes of a mapped buffer, as long as it is mapped."""
        library = self.library
        name = "wgpuBufferGetConstMappedRange" if mode == READ else "wgpuBufferGetMappedRange"
        return self.ffi.buffer(getattr(library, name)(buffer._internal, 0, nbytes), nbytes)

    def unmap(self, buffer: Any) -> None:
        self.library.wgpuBufferUnmap(buffer._internal)

    def poll(self) -> bool:
        """Let the library call back; whether the device has done all that was submitted."""
        # It answers in one byte of the word that its header promises.
        done = bool(self.library.wgpuDevicePoll(self.device, False, self.nothing) & 0xFF)
        if self.interrupted is not None:  # Ctrl-C fell into the answer, which nobody repeats
            error, self.interrupted = self.interrupted, None
            raise error
        return done
