"""Kernels of neural networks: what `ruda.nn` is made of where ops on tensors would be slow."""
