"""Tensors: a NumPy-like array library by the array API standard, lazily fused, on every device.

`import ruda` has these names too; they are imported when the first of them is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ruda import dtypes
from ruda.tensor import (
    creation,
    extras,
    fft,
    graph,
    history,
    indexing,
    linalg,
    methods,
    ordering,
    tensor,
)
from ruda.tensor import grad as derivatives
from ruda.tensor.compiled import compile
from ruda.tensor.ops import OPS
from ruda.tensor.routing import device_of, elementwise, supports
from ruda.tensor.tensor import Tensor, asarray, astype, broadcast_to, realize, reshape

__array_api_version__ = "2025.12"
__all__ = [
    "Tensor", "asarray", "astype", "broadcast_to", "compile", "device_of", "elementwise", "realize",
    "reshape", "supports",
]  # fmt: skip

bool = dtypes.bool_
e, inf, nan, pi, newaxis = math.e, math.inf, math.nan, math.pi, None
finfo, iinfo = creation.make_finfo, creation.make_iinfo
__all__ += ["bool", "e", "finfo", "iinfo", "inf", "nan", "newaxis", "pi"]

for _name in list(OPS):
    globals()[_name] = tensor.function(_name)
    __all__ += [_name]
for _name in (
    "arange", "broadcast_arrays", "broadcast_shapes", "can_cast", "concat", "count_nonzero", "diff",
    "empty", "empty_like", "expand_dims", "eye", "flip", "from_dlpack", "full", "full_like",
    "isdtype", "isin", "linspace", "matrix_transpose", "mean", "meshgrid", "moveaxis", "ones",
    "ones_like", "permute_dims", "repeat", "result_type", "roll", "squeeze", "stack", "std", "tile",
    "tril", "triu", "unstack", "var", "zeros", "zeros_like",
):  # fmt: skip
    globals()[_name] = getattr(creation, _name)
    __all__ += [_name]
for _name in (
    "checkpoint", "custom_vjp", "grad", "gradcheck", "hessian", "hvp", "jacobian", "jvp",
    "stop_gradient", "value_and_grad", "vjp",
):  # fmt: skip
    globals()[_name] = getattr(derivatives, _name)
    __all__ += [_name]
no_grad, detect_anomaly = history.no_grad, history.detect_anomaly
__all__ += ["detect_anomaly", "no_grad"]
for _name in ("argmax", "argmin", "nonzero", "scatter", "take", "take_along_axis"):
    globals()[_name] = getattr(indexing, _name)
    __all__ += [_name]
sort = ordering.sorted_
globals().update({name: getattr(ordering, name) for name in ordering.__all__})
__all__ += ["sort", *ordering.__all__]
globals().update(creation.LIBRARY)
globals().update({name: getattr(extras, name) for name in extras.__all__})
tensordot, vecdot = linalg.tensordot, linalg.vecdot
__all__ += ["fft", "linalg", "tensordot", "vecdot", *creation.LIBRARY, *extras.__all__]

# What runs on memory, and not as recorded ops, is one step of a compiled function.
for _name in (
    "argmax", "argmin", "concat", "diff", "isin", "nonzero", "repeat", "roll", "scatter", "stack",
    "take", "take_along_axis", "tensordot", "tile", "vecdot", *ordering.__all__,
):  # fmt: skip
    globals()[_name] = graph.step(globals()[_name])


if TYPE_CHECKING:  # the functions are made from rows

    def __getattr__(name: str) -> Callable[..., Tensor]: ...


def __array_namespace_info__() -> Any:
    """What the standard's inspection asks for: devices, dtypes, capabilities."""
    return creation.Info()


def _matmul(self: Tensor, other: Any) -> Any:
    if not isinstance(other, Tensor):
        return NotImplemented
    return creation.LIBRARY["matmul"](self, other)


setattr(Tensor, "__matmul__", _matmul)  # noqa: B010 - a type checker knows the declaration
methods.add_methods()
