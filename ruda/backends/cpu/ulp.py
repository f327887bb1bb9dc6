"""Greatest error of the CPU's functions in ulp, printed by `benchmarks/accuracy.py`.

Measured at some 2,000,000 arguments each, for float32 functions of one argument also at
every 61st of all numbers; 0.5 is exact rounding.
"""

ULP: dict[str, dict[str, float]] = {
    "sqrt": {"f32": 0.50, "f64": 0.50},
    "rsqrt": {"f32": 1.50, "f64": 1.48},
    "cbrt": {"f32": 0.81, "f64": 0.74},
    "hypot": {"f32": 0.50, "f64": 0.50},
    "pow": {"f32": 0.51, "f64": 1.13},
    "exp": {"f32": 0.97, "f64": 0.97},
    "exp2": {"f32": 1.13, "f64": 1.02},
    "exp10": {"f32": 1.24, "f64": 1.11},
    "expm1": {"f32": 1.41, "f64": 1.78},
    "log": {"f32": 0.66, "f64": 0.71},
    "log2": {"f32": 0.78, "f64": 0.79},
    "log10": {"f32": 0.70, "f64": 0.69},
    "log1p": {"f32": 1.32, "f64": 1.19},
    "sigmoid": {"f32": 2.31, "f64": 2.19},
    "sin": {"f32": 1.54, "f64": 1.54},
    "cos": {"f32": 1.56, "f64": 1.54},
    "tan": {"f32": 3.39, "f64": 3.26},
    "sinpi": {"f32": 0.97, "f64": 0.86},
    "cospi": {"f32": 0.86, "f64": 0.86},
    "asin": {"f32": 1.64, "f64": 1.60},
    "acos": {"f32": 1.12, "f64": 1.06},
    "atan": {"f32": 1.82, "f64": 1.68},
    "atan2": {"f32": 1.91, "f64": 1.88},
    "degrees": {"f32": 0.70, "f64": 0.82},
    "radians": {"f32": 0.63, "f64": 0.66},
    "sinh": {"f32": 2.17, "f64": 2.05},
    "cosh": {"f32": 1.46, "f64": 1.35},
    "tanh": {"f32": 2.42, "f64": 2.38},
    "asinh": {"f32": 1.66, "f64": 1.58},
    "acosh": {"f32": 2.37, "f64": 2.27},
    "atanh": {"f32": 1.94, "f64": 1.94},
    "erf": {"f32": 1.19, "f64": 0.78},
    "erfc": {"f32": 3.51, "f64": 2.58},
    "gamma": {"f32": 0.50, "f64": 4.58},
    "lgamma": {"f32": 0.50, "f64": 2.02},
}
