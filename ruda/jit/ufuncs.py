"""Functions of numbers as functions of arrays: `vectorize`, `guvectorize` and `reduce`.

Each generates a small kernel as Python text that calls the user's function as a device function, so
that the compiler, its checks and its errors are those of any kernel: an error points at the user's
line. The text is put into `linecache`, where tracebacks and debuggers find it.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import math
import re
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ruda import backends, dtypes
from ruda.backends.base import DeviceArray
from ruda.dtypes import DType, as_dtype, default_of
from ruda.errors import KernelTypeError, LaunchTypeError, Place
from ruda.jit import language
from ruda.jit.kernel import Capture, Kernel, KernelOptions, captures_of
from ruda.jit.types import ArrayType, Signature, Type, parse_signature, type_of

Shape = tuple[int, ...]
Operand = Any  # an array of NumPy or on a device, or a number
TARGETS = ("cuda", "cpu", "parallel")
BLOCK = 256


# ---- generated kernels ---------------------------------------------------------------------------

_numbers = itertools.count(1)


def generate(name: str, text: str, names: dict[str, Any], fastmath: bool | None) -> Kernel[Any]:
    """The kernel that a text defines, under a file name of its own."""
    file = f"<ruda {name} {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space: dict[str, Any] = {"grid": language.grid, "local": language.local, "__name__": __name__}
    space |= names
    exec(compile(text, file, "exec"), space)
    kernel: Kernel[Any] = Kernel(space[name], KernelOptions(fastmath=fastmath))
    weakref.finalize(kernel, linecache.cache.pop, file, None)
    return kernel


def device_function(function: Any, decorator: str) -> Kernel[Any]:
    """The user's function, to be called in kernels."""
    if isinstance(function, Kernel):
        return function
    if not isinstance(function, types.FunctionType):
        raise TypeError(f"@ruda.{decorator} decorates a function, not {type(function).__name__}")
    if function.__name__ == "<lambda>":
        named = types.FunctionType(
            function.__code__, function.__globals__, "lambda_", function.__defaults__,
            function.__closure__,
        )  # fmt: skip
        named.__kwdefaults__ = function.__kwdefaults__
        function = named
    return Kernel(function, KernelOptions(device=True))


@language.in_kernel("ufuncs.result")
def _result(value: Any) -> None:
    """In a kernel: note the type of a value. The frontend's handler is `_note_result`."""


def _note_result(call: Any) -> Any:
    from ruda.jit.values import PyObject

    call.t.result = call.arguments[0]
    return PyObject(None)


def result_dtype(
    function: Kernel[Any], argument_types: Sequence[Type]
) -> tuple[DType, tuple[Capture, ...]]:
    """The dtype of what a device function returns for given types, and what that depends on."""
    from ruda.jit import calls, frontend

    calls.HANDLERS["ufuncs.result"] = _note_result
    names = [f"x{k}" for k in range(len(argument_types))]
    text = f"def probe({', '.join(names)}):\n    result(function({', '.join(names)}))\n"
    probe = generate("probe", text, {"function": function, "result": _result}, None)
    translator = frontend.Translator(probe.py_func, argument_types, frontend.Options())
    translator.inlining = []
    translation = translator.translate()
    found = getattr(translator.result, "dtype", None)  # type: ignore[attr-defined]
    if not isinstance(found, DType):
        code = function.py_func.__code__
        place = Place(code.co_filename, code.co_firstlineno)
        raise KernelTypeError(f"`{function.__name__}` must return a number", place)
    found = default_of(dtypes.weak_int if found is dtypes.index else found)
    return found, captures_of(translation)


# ---- arrays of both kinds ------------------------------------------------------------------------


def is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, DeviceArray))


def strided(array: Operand, shape: Shape, strides: Shape, writeable: bool = False) -> Any:
    """A view of an array's memory from its first element on, with another shape and strides."""
    if isinstance(array, DeviceArray):
        return DeviceArray(array._backend, array.storage, shape, array.dtype, strides, array.offset)
    return np.lib.stride_tricks.as_strided(array, shape, strides, writeable=writeable)


def broadcast_strides(extents: Shape, strides: Shape, shape: Shape) -> Shape:
    """Strides of an array seen at a shape that it broadcasts to: 0 along repeated axes.

    >>> broadcast_strides((3, 1), (4, 4), (2, 3, 5))
    (0, 4, 0)
    """
    lead = len(shape) - len(extents)
    own = (0 if n == 1 else s for n, s in zip(extents, strides, strict=True))
    return (*(0,) * lead, *own)


def collapse(shape: Shape, strides: Sequence[Shape]) -> tuple[Shape, list[Shape]]:
    """The same elements in as few axes as possible; the last operand's fast axis comes last.

    >>> collapse((2, 3, 4), [(0, 16, 4), (48, 16, 4)])
    ((2, 12), [(0, 4), (48, 4)])
    """
    axes = [k for k, n in enumerate(shape) if n != 1]
    axes.sort(key=lambda k: -abs(strides[-1][k]))
    out: list[list[int]] = []  # extent, then each operand's stride
    for k in axes:
        steps = [s[k] for s in strides]
        if out and all(
            before == step * shape[k] for before, step in zip(out[-1][1:], steps, strict=True)
        ):
            out[-1] = [out[-1][0] * shape[k], *steps]
        else:
            out.append([shape[k], *steps])
    if not out:
        out = [[1, *(0 for _ in strides)]]
    return tuple(row[0] for row in out), [
        tuple(row[k + 1] for row in out) for k in range(len(strides))
    ]


def prepared(value: Any, name: str, position: int) -> Any:
    """An argument as an array or a number, refused by name if it is neither."""
    if isinstance(value, (list, tuple)):
        value = np.asarray(value)
    if is_array(value):
        type_of(value, f"argument {position + 1} of `{name}`")
        return value
    if isinstance(value, (bool, int, float, complex, np.generic)):
        return value
    if hasattr(value, "__array__"):
        return prepared(np.asarray(value), name, position)
    raise LaunchTypeError(
        f"argument {position + 1} of `{name}` is an array or a number, not {type(value).__name__}"
    )


def home(arrays: Sequence[Any], name: str) -> str | None:
    """The device of the device arrays; None if all are NumPy's."""
    places = {a.device for a in arrays if isinstance(a, DeviceArray)}
    if len(places) > 1:
        raise LaunchTypeError(
            f"`{name}`: the arrays are on several devices ({', '.join(sorted(places))}); "
            "move them to one"
        )
    return places.pop() if places else None


def empty(shape: Shape, dtype: np.dtype[Any], device: str | None, order: str = "C") -> Any:
    """A new array where the arguments are."""
    if device is None:
        return np.empty(shape, dtype, order=order)  # type: ignore[call-overload]
    return DeviceArray.allocate(backends.get(device), device, shape, dtype, order)


def joined(shapes: Sequence[Shape], name: str) -> Shape:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ValueError(
            f"`{name}`: the shapes {', '.join(map(str, shapes))} do not broadcast"
        ) from None


def overlap(a: Any, b: Any) -> bool:
    """Whether two arrays may share elements at different places."""
    if isinstance(a, DeviceArray) or isinstance(b, DeviceArray):
        if not (isinstance(a, DeviceArray) and isinstance(b, DeviceArray)):
            return False
        a, b = a._shadow, b._shadow  # only addresses are looked at
    same = a.shape == b.shape and a.strides == b.strides
    starts = [x.__array_interface__["data"][0] for x in (a, b)]
    return not (same and starts[0] == starts[1]) and np.may_share_memory(a, b)


def check_out(out: Any, shape: Shape, dtype: np.dtype[Any], name: str) -> None:
    if not is_array(out):
        raise LaunchTypeError(f"`{name}`: `out` is an array, not {type(out).__name__}")
    if out.shape != shape:
        raise ValueError(f"`{name}`: `out` has shape {out.shape}, the result {shape}")
    if not np.can_cast(dtype, out.dtype, "same_kind"):
        raise TypeError(f"`{name}`: a result of {dtype} does not go into `out` of {out.dtype}")
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise ValueError(f"`{name}`: `out` is read-only")


def accepts(declared: Type, value: Any) -> bool:
    """Whether a value converts to a declared dtype without loss, as NumPy's "safe" casting."""
    wanted = declared.dtype if isinstance(declared, ArrayType) else declared
    if not isinstance(wanted, DType):
        return False
    match value:
        case bool() | np.bool_():
            return True
        case np.ndarray() | np.generic() | DeviceArray():
            return np.can_cast(value.dtype, wanted.numpy, "safe")
        case int() if wanted.is_integer:
            low, high = wanted.range
            return low <= value <= high
        case int() | float():
            return wanted.is_inexact
    return wanted.kind == "complex"


def parse_signatures(signatures: Any) -> list[Signature]:
    if isinstance(signatures, (str, Signature)) or hasattr(signatures, "return_type"):
        signatures = [signatures]
    return [parse_signature(s) for s in signatures]


def check_target(target: str | None, decorator: str) -> None:
    """The device is where the arrays are; numba's targets are accepted, and mean nothing more."""
    if target is not None and target not in TARGETS:
        raise ValueError(
            f"@ruda.{decorator}: target={target!r}: expected one of {', '.join(TARGETS)}, "
            "which all mean the device where the arrays are"
        )


def refuse_options(decorator: str, options: dict[str, Any]) -> None:
    for name in options:
        raise TypeError(f"@ruda.{decorator} has no option {name!r}")


# ---- vectorize -----------------------------------------------------------------------------------

REDUCTIONS = ("reduce", "accumulate", "outer", "reduceat", "at")


class Vectorized:
    """A function of numbers that works on arrays, element by element: see `vectorize`."""

    __name__: str

    def __init__(
        self, function: Any, signatures: Sequence[Signature], fastmath: bool | None = None
    ) -> None:
        self.function = device_function(function, "vectorize")
        functools.update_wrapper(self, self.function.py_func)
        self.fastmath = fastmath
        self.nin = len(self.function.parameters)
        self.max_blocksize = BLOCK
        self._kernels: dict[Any, Kernel[Any]] = {}
        self._results: dict[Any, tuple[DType, tuple[Capture, ...]]] = {}
        self.signatures = tuple(signatures)
        for s in self.signatures:
            if len(s.arguments) != self.nin or not isinstance(s.result, DType):
                raise TypeError(
                    f"a signature of `{self.__name__}` has {self.nin} arguments and a result, for "
                    f'example "f32({", ".join(["f32"] * self.nin)})"'
                )
            if not all(isinstance(t, DType) for t in s.arguments):
                raise TypeError(f"the arguments of `{self.__name__}` are numbers, not arrays")
            self._result(s.arguments)  # errors show at once

    def __call__(self, *arguments: Any, out: Any = None, stream: Any = None) -> Any:
        name = self.__name__
        if len(arguments) == self.nin + 1 and out is None:
            *rest, out = arguments
            arguments = tuple(rest)
        if len(arguments) != self.nin:
            raise LaunchTypeError(f"`{name}` takes {self.nin} arguments, not {len(arguments)}")
        for v in arguments:
            if hasattr(v, "__ruda_vectorized__"):  # a tensor, which knows how to give a tensor
                return v.__ruda_vectorized__(self, arguments, out)
        values = [prepared(v, name, k) for k, v in enumerate(arguments)]
        if isinstance(out, tuple):
            (out,) = out
        casts, dtype = self._types(values)
        arrays = [v for v in values if is_array(v)]
        shape = joined([a.shape for a in arrays], name)
        device = home([*arrays, *([] if out is None else [out])], name)
        if out is not None:
            shape = joined([shape, getattr(out, "shape", ())], name)
            check_out(out, shape, dtype.numpy, name)
            result = out
        else:
            fortran = all(_is_fortran(a) for a in arrays) and bool(arrays)
            result = empty(shape, dtype.numpy, device, "F" if fortran else "C")
        if result.size:
            self._launch(values, casts, dtype, result, device, stream)
        return result if out is not None or result.ndim or device else result[()]

    def _types(self, values: Sequence[Any]) -> tuple[tuple[DType, ...] | None, DType]:
        """What the arguments are converted to, None for nothing, and the dtype of the result."""
        if self.signatures:
            for s in self.signatures:
                if all(accepts(t, v) for t, v in zip(s.arguments, values, strict=True)):
                    assert isinstance(s.result, DType)
                    return s.arguments, s.result  # type: ignore[return-value]
            given = ", ".join(str(_scalar_type(v)) for v in values)
            known = "; ".join(f"({', '.join(map(str, s.arguments))})" for s in self.signatures)
            raise LaunchTypeError(f"`{self.__name__}` was declared for {known}, not ({given})")
        return None, self._result(tuple(_scalar_type(v) for v in values))

    def _result(self, argument_types: tuple[Any, ...]) -> DType:
        from ruda.settings import settings

        key = argument_types, settings.default_float
        found = self._results.get(key)
        if found is None or not all(c.unchanged(c.current()) for c in found[1]):
            found = self._results[key] = result_dtype(self.function, argument_types)
        return found[0]

    def _launch(
        self,
        values: list[Any],
        casts: tuple[DType, ...] | None,
        dtype: DType,
        out: Any,
        device: str | None,
        stream: Any,
    ) -> None:
        for k, v in enumerate(values):
            if is_array(v) and overlap(v, out):
                values[k] = v.copy()
        indexed = [k for k, v in enumerate(values) if is_array(v)]
        operands = [*(values[k] for k in indexed), out]
        axes: list[tuple[int, ...] | None] = [None] * len(values)
        if all(_is_whole(a, out.shape) for a in operands):  # the usual case, in a hurry
            for k in indexed:
                axes[k] = (0,)
                values[k] = values[k].reshape(-1)
                values[k].flags.writeable = False  # as `strided` does: one specialisation for both
            kernel = self._kernel(1, tuple(axes), casts, dtype)
            block = max(1, min(self.max_blocksize, BLOCK))
            kernel[-(-out.size // block), block, stream](*values, out.reshape(-1))
            return
        shape, strides = collapse(
            out.shape, [broadcast_strides(a.shape, a.strides, out.shape) for a in operands]
        )
        for k, steps in zip(indexed, strides, strict=False):
            # An operand has only the axes along which it moves: rows and columns stay contiguous.
            own = tuple(i for i, s in enumerate(steps) if s) or (0,)
            extents = tuple(shape[i] if steps[i] else 1 for i in own)
            axes[k] = own if any(steps) else ()
            values[k] = strided(values[k], extents, tuple(steps[i] for i in own))
        target = strided(out, shape, strides[-1], writeable=True)
        kernel = self._kernel(len(shape), tuple(axes), casts, dtype)
        block = max(1, min(self.max_blocksize, BLOCK))
        rest = (math.prod(shape[:-2]),) if len(shape) > 2 else ()
        kernel[(-(-shape[-1] // block), *shape[-2:-1], *rest), block, stream](*values, target)

    def _kernel(
        self,
        ndim: int,
        axes: tuple[tuple[int, ...] | None, ...],
        casts: tuple[DType, ...] | None,
        dtype: DType,
    ) -> Kernel[Any]:
        key = ndim, axes, casts, dtype
        if key not in self._kernels:
            names: dict[str, Any] = {"function": self.function, "Result": dtype}
            items = []
            for k, own in enumerate(axes):
                item = f"x{k}"
                if own is not None:
                    item += f"[{', '.join(f'i{a}' for a in own) or 0}]"
                if casts is not None:
                    names[f"Type{k}"] = casts[k]
                    item = f"Type{k}({item})"
                items.append(item)
            value = f"function({', '.join(items)})"
            text = vectorized_text(self.__name__, ndim, len(axes), f"Result({value})")
            self._kernels[key] = generate(self.__name__, text, names, self.fastmath)
        return self._kernels[key]

    def __repr__(self) -> str:
        return f"<ruda.vectorize of {self.__name__}{self.function.signature}>"

    def __getattr__(self, name: str) -> Any:
        if name in REDUCTIONS:
            raise AttributeError(
                f"a ruda.vectorize function has no `{name}`: use @ruda.reduce, or NumPy's"
            )
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")


def _is_whole(array: Any, shape: Shape) -> bool:
    return type(array) is np.ndarray and array.shape == shape and array.flags.c_contiguous


def _is_fortran(array: Any) -> bool:
    if isinstance(array, DeviceArray):
        return array.is_f_contiguous() and not array.is_c_contiguous()
    return bool(array.flags.f_contiguous and not array.flags.c_contiguous)


def _scalar_type(value: Any) -> Any:
    """The type of an element of an argument; Python numbers stay weak."""
    found = type_of(value)
    return found.dtype if isinstance(found, ArrayType) else found


def vectorized_text(name: str, ndim: int, count: int, value: str) -> str:
    """A kernel with a thread an element: the last axis is x, the one before y, all others z.

    >>> print(vectorized_text("add", 2, 2, "function(x0[i0, i1], x1[i1])"))
    def add(x0, x1, out):
        i1, i0 = grid(2)
        if i0 < out.shape[0] and i1 < out.shape[1]:
            out[i0, i1] = function(x0[i0, i1], x1[i1])
    """
    lines = [f"def {name}({', '.join(f'x{k}' for k in range(count))}, out):"]
    axes = [f"i{a}" for a in range(ndim)]
    if ndim == 1:
        lines.append("    i0 = grid(1)")
    elif ndim == 2:
        lines.append("    i1, i0 = grid(2)")
    else:
        lines.append(f"    {axes[-1]}, {axes[-2]}, rest = grid(3)")
        for a in range(ndim - 3, 0, -1):
            lines += [f"    i{a} = rest % out.shape[{a}]", f"    rest = rest // out.shape[{a}]"]
        lines.append("    i0 = rest")
    inside = " and ".join(f"{i} < out.shape[{a}]" for a, i in enumerate(axes))
    lines += [f"    if {inside}:", f"        out[{', '.join(axes)}] = {value}"]
    return "\n".join(lines)


def vectorize(
    ftylist_or_function: Any = None,
    *,
    target: str | None = None,
    identity: Any = None,
    nopython: bool = True,
    fastmath: bool | None = None,
    cache: bool = True,
    **options: Any,
) -> Any:
    """Make a function of numbers work on arrays, element by element, with NumPy's broadcasting.

    With signatures, the first that takes the arguments without loss decides about types; without,
    the types of the language do. Results are NumPy arrays, or device arrays if an argument is one;
    `out=` receives them. It runs on the current device, or where the device arrays are.

    >>> import numpy as np, ruda
    >>> @ruda.vectorize
    ... def clipped(x, low):
    ...     return x if x > low else low
    >>> clipped(np.array([[1, 5], [3, 2]], np.int32), np.array([2, 3], np.int32))
    array([[2, 5],
           [3, 3]], dtype=int32)
    """
    check_target(target, "vectorize")
    refuse_options("vectorize", options)
    if isinstance(ftylist_or_function, (types.FunctionType, Kernel)):
        return Vectorized(ftylist_or_function, (), fastmath)
    signatures = [] if ftylist_or_function is None else parse_signatures(ftylist_or_function)
    return lambda function: Vectorized(function, signatures, fastmath)


# ---- guvectorize ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Core dimensions of inputs and outputs, as in "(m,n),(n)->(m)"."""

    inputs: tuple[tuple[str, ...], ...]
    outputs: tuple[tuple[str, ...], ...]

    @staticmethod
    def parse(text: str) -> Layout:
        """
        >>> Layout.parse("(m, n),(n)->()")
        Layout(inputs=(('m', 'n'), ('n',)), outputs=((),))
        """
        group = r"\(\s*(?:\w+\s*(?:,\s*\w+\s*)*)?\)"
        side = rf"\s*{group}\s*(?:,\s*{group}\s*)*"
        if not isinstance(text, str) or not re.fullmatch(rf"{side}->{side}", text):
            raise ValueError(f'{text!r} is not a layout; write for example "(m,n),(n)->(m)"')
        left, right = (
            tuple(tuple(re.findall(r"\w+", g)) for g in re.findall(r"\(([^)]*)\)", part))
            for part in text.split("->")
        )
        if any(d.isdigit() for group_ in (*left, *right) for d in group_):
            raise ValueError(f"{text!r}: dimensions are names, not numbers")
        return Layout(left, right)


class GeneralizedVectorized:
    """A function of arrays that is repeated along further axes: see `guvectorize`."""

    __name__: str

    def __init__(
        self, function: Any, signatures: Sequence[Signature], layout: Layout, fastmath: bool | None
    ) -> None:
        self.function = device_function(function, "guvectorize")
        functools.update_wrapper(self, self.function.py_func)
        self.layout, self.fastmath = layout, fastmath
        self.nin, self.nout = len(layout.inputs), len(layout.outputs)
        self.signatures = tuple(signatures)
        count = len(self.function.parameters)
        if count != self.nin + self.nout:
            raise TypeError(
                f"`{self.__name__}` has {count} parameters, its layout {self.nin} inputs and "
                f"{self.nout} outputs"
            )
        for s in self.signatures:
            self._check(s)
        self._kernels: dict[Any, Kernel[Any]] = {}

    def _check(self, signature: Signature) -> None:
        groups = (*self.layout.inputs, *self.layout.outputs)
        if len(signature.arguments) != len(groups):
            raise TypeError(
                f"a signature of `{self.__name__}` has {len(groups)} arguments, inputs and outputs"
            )
        for k, (kind, dims) in enumerate(zip(signature.arguments, groups, strict=True)):
            wanted = len(dims)
            if isinstance(kind, ArrayType) and isinstance(kind.dtype, DType):
                fits = kind.ndim == max(wanted, 1)
            else:
                fits = isinstance(kind, DType) and not dims and k < self.nin
            if not fits:
                raise TypeError(
                    f"argument {k + 1} of `{self.__name__}` is {kind} in its signature and "
                    f"({', '.join(dims)}) in its layout"
                )

    def __call__(self, *arguments: Any, out: Any = None, stream: Any = None) -> Any:
        name = self.__name__
        given = () if out is None else out if isinstance(out, tuple) else (out,)
        if len(arguments) == self.nin + self.nout and not given:
            arguments, given = arguments[: self.nin], arguments[self.nin :]
        if len(arguments) != self.nin or len(given) not in (0, self.nout):
            raise LaunchTypeError(
                f"`{name}` takes {self.nin} inputs and perhaps {self.nout} outputs, not "
                f"{len(arguments)} and {len(given)}"
            )
        values = [prepared(v, name, k) for k, v in enumerate(arguments)]
        signature = self._signature(values)
        device = home([*values, *given], name)
        inputs = [self._converted(v, t) for v, t in zip(values, signature.arguments, strict=False)]
        loop, sizes = self._shapes(inputs, given)
        results, targets = [], []
        for k, (dims, kind) in enumerate(
            zip(self.layout.outputs, signature.arguments[self.nin :], strict=True)
        ):
            dtype = kind.dtype.numpy  # type: ignore[union-attr]  # `_check` saw to that
            shape = (*loop, *(sizes[d] for d in dims))
            if given:
                check_out(given[k], shape, dtype, name)
            direct = not given or (
                given[k].dtype == dtype and not any(overlap(v, given[k]) for v in inputs)
            )
            target = given[k] if given and direct else empty(shape, dtype, device)
            targets.append(target)
            results.append(given[k] if given else target)
        if math.prod(loop):
            self._launch(inputs, targets, loop, signature, stream)
        for result, target in zip(results, targets, strict=True):
            if result is not target:
                result[...] = target
        found = [r if given or r.ndim or device else r[()] for r in results]
        return found[0] if self.nout == 1 else tuple(found)

    def _signature(self, values: Sequence[Any]) -> Signature:
        for s in self.signatures:
            if all(accepts(t, v) for t, v in zip(s.arguments, values, strict=False)):
                return s
        given = ", ".join(str(_scalar_type(v)) for v in values)
        known = "; ".join(
            f"({', '.join(str(getattr(t, 'dtype', t)) for t in s.arguments[: self.nin])})"
            for s in self.signatures
        )
        raise LaunchTypeError(f"`{self.__name__}` was declared for {known}, not ({given})")

    def _converted(self, value: Any, kind: Any) -> Any:
        """An input at the declared dtype."""
        declared: Any = kind.dtype if isinstance(kind, ArrayType) else kind
        dtype = declared.numpy
        if not isinstance(value, DeviceArray):
            return np.asarray(value, dtype)
        if value.dtype == dtype:
            return value
        result = empty(value.shape, dtype, value.device)
        _same()(value, out=result)
        return result

    def _shapes(
        self, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[Shape, dict[str, int]]:
        """The shape of the loop, and the extent of each core dimension."""
        name = self.__name__
        sizes: dict[str, int] = {}
        loops = []
        for what, arrays, groups in (
            ("input", inputs, self.layout.inputs),
            ("output", outputs, self.layout.outputs),
        ):
            for k, (array, dims) in enumerate(zip(arrays, groups, strict=False)):
                if not is_array(array):
                    raise LaunchTypeError(
                        f"`{name}`: `out` is an array, not {type(array).__name__}"
                    )
                if array.ndim < len(dims):
                    raise ValueError(
                        f"{what} {k + 1} of `{name}` has {array.ndim} axes; its layout "
                        f"({', '.join(dims)}) needs {len(dims)}"
                    )
                split = array.ndim - len(dims)
                loops.append(array.shape[:split])
                for d, n in zip(dims, array.shape[split:], strict=True):
                    if sizes.setdefault(d, n) != n:
                        raise ValueError(
                            f"{what} {k + 1} of `{name}`: `{d}` is {sizes[d]} before and {n} here"
                        )
        unknown = {d for dims in self.layout.outputs for d in dims} - set(sizes)
        if unknown:
            raise ValueError(
                f"`{name}`: no input tells the extent of {', '.join(sorted(unknown))}: pass `out`"
            )
        return joined(loops, name), sizes

    def _launch(
        self,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        loop: Shape,
        signature: Signature,
        stream: Any,
    ) -> None:
        groups = (*self.layout.inputs, *self.layout.outputs)
        arrays = (*inputs, *outputs)
        outer = []
        for array, dims in zip(arrays, groups, strict=True):
            split = array.ndim - len(dims)
            outer.append(broadcast_strides(array.shape[:split], array.strides[:split], loop))
        shape, strides = collapse(loop, outer)
        views = []
        for k, (array, dims, steps) in enumerate(zip(arrays, groups, strides, strict=True)):
            split = array.ndim - len(dims)
            whole = (*shape, *array.shape[split:])
            steps = (*steps, *array.strides[split:])
            views.append(strided(array, whole, steps, writeable=k >= self.nin))
        scalars = tuple(isinstance(t, DType) for t in signature.arguments)
        kernel = self._kernel(len(shape), scalars)
        count = math.prod(shape)
        kernel[-(-count // BLOCK), BLOCK, stream](count, *views)

    def _kernel(self, ndim: int, scalars: tuple[bool, ...]) -> Kernel[Any]:
        key = ndim, scalars
        if key not in self._kernels:
            groups = (*self.layout.inputs, *self.layout.outputs)
            text = repeated_text(self.__name__, ndim, [len(d) for d in groups], scalars)
            self._kernels[key] = generate(
                self.__name__, text, {"function": self.function}, self.fastmath
            )
        return self._kernels[key]

    def __repr__(self) -> str:
        return f"<ruda.guvectorize of {self.__name__}{self.function.signature}>"


def repeated_text(name: str, ndim: int, cores: Sequence[int], scalars: Sequence[bool]) -> str:
    """A kernel with a thread for each item of the loop, which calls the function with its views.

    >>> print(repeated_text("f", 2, [1, 0, 0], [False, True, False]))
    def f(count, x0, x1, x2):
        i = grid(1)
        if i < count:
            i1 = i % x0.shape[1]
            i0 = i // x0.shape[1]
            function(x0[i0, i1], x1[i0, i1], x2[i0, i1 : i1 + 1])
    """
    arguments = [f"x{k}" for k in range(len(cores))]
    lines = [f"def {name}(count, {', '.join(arguments)}):", "    i = grid(1)", "    if i < count:"]
    rest = "i"
    for a in range(ndim - 1, 0, -1):
        lines.append(f"        i{a} = {rest} % x0.shape[{a}]")
        lines.append(f"        {'i0' if a == 1 else f'r{a}'} = {rest} // x0.shape[{a}]")
        rest = f"r{a}"
    if ndim == 1:
        lines.append("        i0 = i")
    whole = [f"i{a}" for a in range(ndim)]
    items = []
    for argument, core, scalar in zip(arguments, cores, scalars, strict=True):
        last = whole[-1] if core or scalar else f"{whole[-1]} : {whole[-1]} + 1"
        items.append(f"{argument}[{', '.join([*whole[:-1], last])}]")
    lines.append(f"        function({', '.join(items)})")
    return "\n".join(lines)


def guvectorize(
    ftylist: Any,
    layout: str,
    *,
    target: str | None = None,
    identity: Any = None,
    nopython: bool = True,
    fastmath: bool | None = None,
    cache: bool = True,
    **options: Any,
) -> Callable[[Any], GeneralizedVectorized]:
    """Repeat a function of arrays along further axes, with NumPy's broadcasting.

    The layout names the axes that one call sees; it writes its outputs, which are its last
    parameters. An input `()` is a number, or an array of one element where the signature says so;
    an output `()` is an array of one element.

    >>> import numpy as np, ruda
    >>> @ruda.guvectorize(["void(f64[:], f64, f64[:])"], "(n),()->(n)")
    ... def shifted(x, by, out):
    ...     for k in range(x.size):
    ...         out[k] = x[k] + by
    >>> shifted(np.arange(4.0).reshape(2, 2), [10.0, 20.0])
    array([[10., 11.],
           [22., 23.]])
    """
    check_target(target, "guvectorize")
    refuse_options("guvectorize", options)
    signatures = parse_signatures(ftylist)
    if not signatures:
        raise TypeError("@ruda.guvectorize needs signatures: they give the dtypes of the outputs")
    parsed = Layout.parse(layout)
    return lambda function: GeneralizedVectorized(function, signatures, parsed, fastmath)


# ---- reduce --------------------------------------------------------------------------------------

LANES = 32  # independent partial results of a thread: they fill vector registers
CHUNK = 1 << 14  # elements of a thread, at least
MAX_CHUNKS = 1 << 10

_PARTIAL = """\
def {name}(x, partials, chunk):
    t = grid(1)
    if t < partials.size:
        first = t * chunk
        lanes = local.array({lanes}, Type)
        for k in range({lanes}):
            lanes[k] = x[first + k]
        for i in range(first + {lanes}, first + chunk, {lanes}):
            for k in range({lanes}):
                lanes[k] = function(lanes[k], x[i + k])
        width = {lanes} // 2
        while width > 0:
            for k in range(width):
                lanes[k] = function(lanes[k], lanes[k + width])
            width = width // 2
        partials[t] = lanes[0]
"""
_FINAL = """\
def {name}(x, partials, first, init, out):
    if grid(1) == 0:
        total = Type(init[0])
        for k in range(partials.size):
            total = Type(function(total, partials[k]))
        for k in range(first, x.size):
            total = Type(function(total, x[k]))
        out[0] = total
"""


class Reduce:
    """Combine all elements of an array by a function of two, as numba-cuda's `Reduce`.

    The function must be associative and commutative; the order depends on the size alone.
    """

    __name__: str

    def __init__(self, functor: Any, fastmath: bool | None = None) -> None:
        self.function = device_function(functor, "reduce")
        functools.update_wrapper(self, self.function.py_func)
        if len(self.function.parameters) != 2:
            raise TypeError(f"@ruda.reduce takes a function of two numbers, not `{self.__name__}`")
        self.fastmath = fastmath
        self._kernels: dict[DType, tuple[Kernel[Any], Kernel[Any]]] = {}

    def __call__(
        self,
        arr: Any,
        size: int | None = None,
        res: Any = None,
        init: Any = None,
        stream: Any = None,
    ) -> Any:
        name = self.__name__
        if hasattr(arr, "__ruda_reduced__") and res is None:
            return arr.__ruda_reduced__(self, size, init, stream)
        values = prepared(arr, name, 0)
        values = values if is_array(values) else np.asarray(values)
        flat = values if values.ndim == 1 else values.reshape(-1)
        dtype = as_dtype(flat.dtype)
        if size is not None:
            if not 0 <= size <= flat.size:
                raise ValueError(f"`{name}`: size={size} of an array of {flat.size} elements")
            flat = flat[:size]
        device = home([flat, *([] if res is None else [res])], name)
        if res is not None:
            if not is_array(res) or res.size < 1 or res.ndim != 1:
                raise LaunchTypeError(f"`{name}`: `res` is an array with room for one element")
            if res.dtype != flat.dtype:
                raise TypeError(f"`{name}`: `res` has dtype {res.dtype}, the array {flat.dtype}")
        out = empty((1,), flat.dtype, device) if res is None else res
        self._run(flat, dtype, init, out, device, stream)
        return (out if device is None else out.copy_to_host())[0] if res is None else None

    def _run(
        self, flat: Any, dtype: DType, init: Any, out: Any, device: str | None, stream: Any
    ) -> None:
        start = flat.dtype.type(0 if init is None else init)
        if flat.size == 0:
            out[0] = start
            return
        partial, final = self._made(dtype)
        first = 0
        if init is None:
            start, first = None, 1
        chunks = min(max((flat.size - first) // CHUNK, 0), MAX_CHUNKS)
        chunk = (flat.size - first) // chunks // LANES * LANES if chunks else 0
        partials = empty((chunks,), flat.dtype, device)
        rest = flat[first:]
        if chunks:
            partial[-(-chunks // 8), 8, stream](rest[: chunks * chunk], partials, chunk)
        begin = flat[:1] if start is None else np.asarray([start], flat.dtype)
        final[1, 1, stream](rest, partials, chunks * chunk, begin, out)

    def _made(self, dtype: DType) -> tuple[Kernel[Any], Kernel[Any]]:
        if dtype not in self._kernels:
            names = {"function": self.function, "Type": dtype}
            texts = (t.format(name=self.__name__, lanes=LANES) for t in (_PARTIAL, _FINAL))
            partial, final = (generate(self.__name__, t, names, self.fastmath) for t in texts)
            self._kernels[dtype] = partial, final
        return self._kernels[dtype]

    def __repr__(self) -> str:
        return f"<ruda.reduce by {self.__name__}>"


def reduce(functor: Any = None, *, fastmath: bool | None = None) -> Any:
    """Make a function of two numbers combine all elements of an array: see `Reduce`.

    The result is a number of the array's dtype, or goes to `res[0]`. `init` is combined with it;
    `size` elements are taken, all unless given. An empty array gives `init`, or 0.

    >>> import numpy as np, ruda
    >>> @ruda.reduce
    ... def largest(x, y):
    ...     return max(x, y)
    >>> largest(np.array([-3, -1, -2]))
    np.int64(-1)
    """
    if functor is None:
        return lambda function: Reduce(function, fastmath)
    return Reduce(functor, fastmath)


# ---- helpers that are kernels themselves ---------------------------------------------------------


def _identity(x: Any) -> Any:
    return x


@functools.cache
def _same() -> Vectorized:
    """Converts on the device, to the dtype of `out`."""
    return Vectorized(_identity, ())
