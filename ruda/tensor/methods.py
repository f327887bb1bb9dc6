"""Methods of tensors: the functions of rows and their kin, with the tensor first.

NumPy's and PyTorch's names where both have them; an axis may stand without its name, as there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ruda.tensor import indexing, ordering
from ruda.tensor.creation import (
    matrix_transpose,
    mean,
    permute_dims,
    squeeze,
    std,
    var,
    zeros_like,
)
from ruda.tensor.extras import dot, ravel, swapaxes, trace
from ruda.tensor.launches import launch_on_tensors
from ruda.tensor.linalg import diagonal
from ruda.tensor.ops import OPS
from ruda.tensor.routing import call_reduce, call_vectorized
from ruda.tensor.tensor import Tensor, asarray, astype, copy_of, function, reshape


def _cumulative(call: Callable[..., Any]) -> Callable[..., Any]:
    def along(a: Tensor, axis: int | None = None, dtype: Any = None, **named: Any) -> Tensor:
        if axis is None:
            a, axis = ravel(a), 0
        return call(a, axis=axis, dtype=dtype, **named)  # type: ignore[no-any-return]

    along.__doc__ = f"{call.__doc__}\n\n    As in NumPy: of all elements without an axis."
    return along


cumsum, cumprod = (_cumulative(f) for f in (ordering.cumulative_sum, ordering.cumulative_prod))

ALONG_AXIS: dict[str, Callable[..., Any]] = {
    "mean": mean, "std": std, "var": var, "argmax": indexing.argmax, "argmin": indexing.argmin,
    "argsort": ordering.argsort, "cumsum": cumsum, "cumprod": cumprod,
}  # fmt: skip
PLAIN: dict[str, Callable[..., Any]] = {
    "astype": astype, "clip": function("clip"), "copy": copy_of, "diagonal": diagonal, "dot": dot,
    "flatten": lambda x: copy_of(ravel(x)), "nonzero": indexing.nonzero, "ravel": ravel,
    "swapaxes": swapaxes, "trace": trace,
}  # fmt: skip


def _shape_of(items: tuple[Any, ...]) -> Any:
    """`x.reshape(2, 3)` and `x.reshape((2, 3))` are the same."""
    return items[0] if len(items) == 1 else items


def _reshape(self: Tensor, *shape: Any) -> Tensor:
    """The elements in C order with another shape: a view where that is possible."""
    return reshape(self, _shape_of(shape))


def _transpose(self: Tensor, *axes: Any) -> Tensor:
    """The axes in another order, by default turned round: a view."""
    if not axes or axes == (None,):
        return permute_dims(self, range(self.ndim)[::-1])
    return permute_dims(self, _shape_of(axes))


def _squeeze(self: Tensor, axis: Any = None) -> Tensor:
    """Without axes of length 1: given ones, or all."""
    if axis is None:
        axis = tuple(k for k, n in enumerate(self.shape) if n == 1)
    return squeeze(self, axis)


def _method(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    def method(self: Tensor, *values: Any, **named: Any) -> Any:
        return call(self, *values, **named)

    return _named(method, call, name)


def _along_axis(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    def method(self: Tensor, *axis: Any, **named: Any) -> Any:
        if len(axis) > 1:
            raise TypeError(f"`{name}` takes an axis; several as a tuple, and the rest by name")
        return call(self, axis=axis[0], **named) if axis else call(self, **named)

    return _named(method, call, name)


def _named(method: Any, call: Callable[..., Any], name: str) -> Callable[..., Any]:
    method.__name__, method.__qualname__, method.__doc__ = name, f"Tensor.{name}", call.__doc__
    return method  # type: ignore[no-any-return]


# NumPy's functions that have another name here; all others have the same one, or none.
OTHER_NAMES = {
    "amax": "max", "amin": "min", "around": "round", "concatenate": "concat",
    "cumprod": "cumulative_prod", "cumsum": "cumulative_sum", "transpose": "permute_dims",
}  # fmt: skip


def array_function(
    self: Tensor, called: Any, types: Any, values: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """A function of NumPy on tensors is ruda's of that name; never a copy to the host unasked."""
    import ruda.tensor

    if called in ABOUT:
        return ABOUT[called](*values, **named)
    values, named = (_tensors(v, self.device) for v in (values, named))
    space: Any = ruda.tensor
    for part in called.__module__.split(".")[1:]:
        space = getattr(space, part, None)
    name = OTHER_NAMES.get(called.__name__, called.__name__)
    ours = getattr(space, name, None) if name in getattr(space, "__all__", ()) else None
    if ours is None:
        raise TypeError(
            f"`{called.__module__}.{called.__name__}` of ruda tensors: ruda has no function of "
            "that name; `np.asarray(x)` gives it NumPy's arrays"
        )
    if name == "permute_dims" and len(values) == 1 and not named:
        return _transpose(values[0])
    along = name in ALONG_AXIS or name in POSITIONAL_AXIS or OPS.get(name, NO_ROW).kind == "reduce"
    first, *rest = values
    if along and len(rest) == 1:
        values, named = (first,), {"axis": rest[0], **named}
    given = {k: v for k, v in named.items() if v is not np._NoValue}
    return ours(*values, **given)


def _tensors(value: Any, device: str) -> Any:
    """NumPy's arrays beside tensors, where those are; also inside of sequences."""
    if type(value) in (tuple, list):
        return type(value)(_tensors(v, device) for v in value)
    if type(value) is dict:
        return {k: _tensors(v, device) for k, v in value.items()}
    return asarray(value, device=device) if isinstance(value, np.ndarray) else value


def _unique(
    x: Tensor, return_index: bool = False, return_inverse: bool = False,
    return_counts: bool = False, **named: Any,
) -> Any:  # fmt: skip
    """`np.unique` of all elements."""
    from ruda.tensor import ordering

    if named.get("axis") is not None:
        raise TypeError("`numpy.unique` of ruda tensors is of all elements, not along an axis")
    found = ordering.unique_all(x)
    asked = (return_index, return_inverse, return_counts)
    more = [v for v, wanted in zip((*found[1:],), asked, strict=True) if wanted]
    return (found[0], *more) if more else found[0]


def _share(x: Any, y: Any, max_work: Any = None) -> bool:
    alike = isinstance(x, Tensor) and isinstance(y, Tensor)
    return x._storage is y._storage if alike else np.may_share_memory(np.asarray(x), np.asarray(y))


# NumPy's questions about arrays, and functions that the standard has under other forms.
ABOUT: dict[Any, Callable[..., Any]] = {
    np.ndim: lambda a: a.ndim,
    np.shape: lambda a: a.shape,
    np.size: lambda a, axis=None: a.size if axis is None else a.shape[axis],
    np.iscomplexobj: lambda x: x.dtype.kind == "complex",
    np.isrealobj: lambda x: x.dtype.kind != "complex",
    np.may_share_memory: _share,
    np.unique: _unique,
    np.copy: lambda a, order="K", subok=False: copy_of(a),
    np.cumsum: cumsum,
    np.cumprod: cumprod,
    np.imag: lambda val: val.imag if val.dtype.kind == "complex" else zeros_like(val),
    np.squeeze: _squeeze,
    np.atleast_1d: lambda *xs: _at_least(xs, 1),
    np.atleast_2d: lambda *xs: _at_least(xs, 2),
}


def _at_least(values: tuple[Any, ...], ndim: int) -> Any:
    tensors = [v if isinstance(v, Tensor) else asarray(v) for v in values]
    out = tuple(reshape(v, (1,) * (ndim - v.ndim) + v.shape) for v in tensors)
    return out[0] if len(out) == 1 else out


POSITIONAL_AXIS = {
    "concat", "count_nonzero", "cumulative_prod", "cumulative_sum", "expand_dims", "flip",
    "median", "nanargmax", "nanargmin", "nanmax", "nanmean", "nanmin", "nanstd", "nansum", "nanvar",
    "sort", "squeeze", "stack",
}  # fmt: skip
NO_ROW = OPS["add"]


def add_methods() -> None:
    """Put them into the class."""
    found: dict[str, Any] = {"reshape": _reshape, "transpose": _transpose, "squeeze": _squeeze}
    for row in list(OPS.values()):
        if row.kind == "reduce":
            found[row.name] = _along_axis(function(row.name), row.name)
        elif row.parameters == ("x",) and row.name not in ("real", "imag"):
            found[row.name] = _method(function(row.name), row.name)
    found |= {name: _along_axis(call, name) for name, call in ALONG_AXIS.items()}
    found |= {name: _method(call, name) for name, call in PLAIN.items()}
    found |= {name: property(function(name), doc=OPS[name].doc) for name in ("real", "imag")}
    found["mH"] = property(
        lambda x: function("conj")(matrix_transpose(x)), doc="The conjugate transpose."
    )
    found["__array_function__"] = array_function
    found["__ruda_launch__"] = launch_on_tensors
    found["__ruda_vectorized__"], found["__ruda_reduced__"] = call_vectorized, call_reduce
    for name, value in found.items():
        setattr(Tensor, name, value)
