"""The Mandelbrot set as text: complex numbers and a loop with a break in every thread."""

import numpy as np

import ruda


@ruda.jit
def mandelbrot(counts, limit):
    col, row = ruda.grid(2)
    rows, cols = counts.shape
    if row < rows and col < cols:
        c = complex(3.5 * col / cols - 2.5, 2.4 * row / rows - 1.2)
        z = 0j
        n = 0
        while n < limit and z.real * z.real + z.imag * z.imag < 4:
            z = z * z + c
            n += 1
        counts[row, col] = n


counts = np.zeros((24, 72), np.int32)
mandelbrot[(5, 3), (16, 8)](counts, 50)
print("\n".join("".join(" .:-=+*#%@"[min(n // 5, 9)] for n in line) for line in counts))
