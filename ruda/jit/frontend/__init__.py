"""A Python function and its argument types -> the typed IR."""

from ruda.jit.frontend.expressions import as_tuple
from ruda.jit.frontend.source import definition
from ruda.jit.frontend.state import (
    EXPR,
    FALSE,
    INDEX,
    ONE,
    TRUE,
    ZERO,
    NeedsBlock,
    Options,
    Translation,
)
from ruda.jit.frontend.translator import Translator, translate

__all__ = [
    "EXPR",
    "FALSE",
    "INDEX",
    "ONE",
    "TRUE",
    "ZERO",
    "NeedsBlock",
    "Options",
    "Translation",
    "Translator",
    "as_tuple",
    "definition",
    "translate",
]
