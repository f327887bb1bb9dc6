"""The smallest kernel: y = a * x + y, and where the time goes."""

import numpy as np

import ruda


@ruda.jit
def saxpy(a, x, y):
    i = ruda.grid(1)
    if i < y.size:
        y[i] = a * x[i] + y[i]


x = np.linspace(0, 1, 1_000_001, dtype=np.float32)
y = np.ones_like(x)
saxpy.forall(x.size)(3.0, x, y)
print("largest error:", np.abs(y - (3 * x + 1)).max())
