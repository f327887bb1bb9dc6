"""WebGPU devices: kernels as WGSL, run by wgpu-py on Vulkan, Metal or DX12.

`emit` writes the text, `library` and `formulas` the functions that it calls, `device` keeps
buffers and runs dispatches, `adapter` finds the hardware. Only `adapter` and `device` know wgpu-py.
"""
