"""Huawei Ascend: kernels as AscendC, for an NPU or for the emulation that runs without one.

Code is emitted and emulated; it has not run on an NPU.
"""
