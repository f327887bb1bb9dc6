"""Greatest error of the CPU's functions in ulp, printed by `benchmarks/accuracy.py`.

float32 functions of one argument: over every 61st of all numbers and some 4,000,000 chosen
ones; others: 16,000,000 chosen ones (fewer where the oracle is slow). 0.5 is exact rounding.
"""

ULP: dict[str, dict[str, float]] = {
    "sqrt": {"f32": 0.50, "f64": 0.50},
    "rsqrt": {"f32": 1.50, "f64": 1.50},
    "cbrt": {"f32": 0.81, "f64": 0.80},
    "hypot": {"f32": 0.50, "f64": 0.50},
    "pow": {"f32": 0.51, "f64": 1.14},
    "exp": {"f32": 0.97, "f64": 0.98},
    "exp2": {"f32": 1.13, "f64": 1.04},
    "exp10": {"f32": 1.24, "f64": 1.14},
    "expm1": {"f32": 1.41, "f64": 1.80},
    "log": {"f32": 0.66, "f64": 0.71},
    "log2": {"f32": 0.78, "f64": 0.80},
    "log10": {"f32": 0.70, "f64": 0.69},
    "log1p": {"f32": 1.32, "f64": 1.23},
    "sigmoid": {"f32": 2.31, "f64": 2.38},
    "sin": {"f32": 1.54, "f64": 1.57},
    "cos": {"f32": 1.56, "f64": 1.56},
    "tan": {"f32": 3.39, "f64": 3.32},
    "sinpi": {"f32": 0.97, "f64": 0.87},
    "cospi": {"f32": 0.86, "f64": 0.87},
    "asin": {"f32": 1.64, "f64": 1.61},
    "acos": {"f32": 1.12, "f64": 1.08},
    "atan": {"f32": 1.82, "f64": 1.69},
    "atan2": {"f32": 1.91, "f64": 1.88},
    "degrees": {"f32": 0.70, "f64": 0.82},
    "radians": {"f32": 0.63, "f64": 0.66},
    "sinh": {"f32": 2.17, "f64": 2.09},
    "cosh": {"f32": 1.46, "f64": 1.43},
    "tanh": {"f32": 2.42, "f64": 2.54},
    "asinh": {"f32": 1.66, "f64": 1.68},
    "acosh": {"f32": 2.37, "f64": 2.35},
    "atanh": {"f32": 1.94, "f64": 1.95},
    "erf": {"f32": 1.19, "f64": 0.82},
    "erfc": {"f32": 3.51, "f64": 2.66},
    "gamma": {"f32": 0.50, "f64": 4.58},
    "lgamma": {"f32": 0.50, "f64": 2.24},
}
