"""Kernels for ops that are no rows: products, choices of elements, scans, orders.

They are ordinary `@ruda.jit` kernels on buffers, for every device; a file holds kernels and the
functions that launch them. What tensors make of them is in `ruda.tensor.indexing` and `ordering`.
"""
