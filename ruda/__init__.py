"""One Python kernel, every processor."""

from ruda.dtypes import (
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ruda.settings import config

__version__ = "0.1.0"
__all__ = [
    "bfloat16",
    "bool_",
    "complex64",
    "complex128",
    "config",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
]
