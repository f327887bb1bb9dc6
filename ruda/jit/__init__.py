"""Python function -> typed IR -> target source -> launch. Imports no concrete backend."""

from ruda.jit.kernel import Kernel, jit

__all__ = ["Kernel", "jit"]
