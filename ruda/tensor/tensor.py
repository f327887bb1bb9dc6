"""The tensor: a handle on a storage, perhaps through a view.

Operators record ops (`graph`); reading computes them (`execute`). Slices, transposes and flips are
views: they share the storage, and a write through one is seen by all. A write makes the storage's
memory its own first if somebody else still needs the old values.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ruda import backends, dtypes
from ruda.backends import interop
from ruda.backends.base import DeviceArray, check_size
from ruda.dtypes import DType, as_dtype, default_float, promote
from ruda.errors import DTypeError, GradientError, ShapeError, shown
from ruda.jit import intrinsics
from ruda.tensor import execute, graph, memory
from ruda.tensor.graph import WEAK, Node, tracing
from ruda.tensor.history import History, attach, recording, refuse
from ruda.tensor.memory import View
from ruda.tensor.opdef import in_kernel
from ruda.tensor.ops import OPS
from ruda.tensor.primitives import run

Index = Any


class Storage:
    """Whose elements change: the node that holds them now."""

    __slots__ = ("__weakref__", "node", "version")

    node: Node
    version: int  # counts writes: a gradient needs the values that an op saw

    def replace(self, node: Node) -> None:
        self.version += 1
        self.node = node


class Tensor:
    """An n-dimensional array on a device, computed when it is read.

    >>> import ruda
    >>> x = ruda.asarray([1.0, 2.0, 3.0])
    >>> x * 2 + 1
    Tensor([3., 5., 7.], dtype=float32, device='cpu')
    >>> x[::-1][0] = 10; x
    Tensor([ 1.,  2., 10.], dtype=float32, device='cpu')
    """

    __slots__ = ("_history", "_storage", "_view", "device", "dtype", "grad", "shape")
    __array_priority__ = 100.0
    __hash__ = None  # type: ignore[assignment]

    shape: tuple[int, ...]
    dtype: DType
    device: str

    _storage: Storage
    _view: View | None
    _history: History | None
    grad: Tensor | None

    if TYPE_CHECKING:  # the operators are made from rows, below

        def __add__(self, other: Any) -> Tensor: ...
        def __radd__(self, other: Any) -> Tensor: ...
        def __sub__(self, other: Any) -> Tensor: ...
        def __rsub__(self, other: Any) -> Tensor: ...
        def __mul__(self, other: Any) -> Tensor: ...
        def __rmul__(self, other: Any) -> Tensor: ...
        def __truediv__(self, other: Any) -> Tensor: ...
        def __rtruediv__(self, other: Any) -> Tensor: ...
        def __floordiv__(self, other: Any) -> Tensor: ...
        def __rfloordiv__(self, other: Any) -> Tensor: ...
        def __mod__(self, other: Any) -> Tensor: ...
        def __pow__(self, other: Any) -> Tensor: ...
        def __rpow__(self, other: Any) -> Tensor: ...
        def __and__(self, other: Any) -> Tensor: ...
        def __or__(self, other: Any) -> Tensor: ...
        def __xor__(self, other: Any) -> Tensor: ...
        def __lshift__(self, other: Any) -> Tensor: ...
        def __rshift__(self, other: Any) -> Tensor: ...
        def __matmul__(self, other: Any) -> Tensor: ...
        def __neg__(self) -> Tensor: ...
        def __pos__(self) -> Tensor: ...
        def __abs__(self) -> Tensor: ...
        def __invert__(self) -> Tensor: ...
        def __eq__(self, other: object) -> Tensor: ...  # type: ignore[override]
        def __ne__(self, other: object) -> Tensor: ...  # type: ignore[override]
        def __lt__(self, other: Any) -> Tensor: ...
        def __le__(self, other: Any) -> Tensor: ...
        def __gt__(self, other: Any) -> Tensor: ...
        def __ge__(self, other: Any) -> Tensor: ...
        def __getattr__(self, name: str) -> Any: ...  # see `methods`

    # -- what it is --

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.itemsize

    @property
    def T(self) -> Tensor:
        """The transpose of a matrix: a view."""
        if self.ndim != 2:
            raise ShapeError(f"`.T` is of matrices, not of shape {self.shape}: use `permute_dims`")
        return self.permute((1, 0))

    @property
    def mT(self) -> Tensor:
        """The last two axes exchanged: a view."""
        if self.ndim < 2:
            raise ShapeError(f"`.mT` needs two axes, not shape {self.shape}")
        return self.permute((*range(self.ndim - 2), self.ndim - 1, self.ndim - 2))

    # -- nodes and views --

    def node(self) -> Node:
        """The node that is this tensor's elements."""
        node = self._storage.node
        if self._view is None:
            return node
        if node.value is None or graph.tracing.current is not None:
            return graph.see(node, self._view)
        return graph.strided(memory.view(node.value, self._view), node)

    def _seen(self) -> View:
        return memory.contiguous(self.shape) if self._view is None else self._view

    def _through(self, view: View) -> Tensor:
        return handle(self._storage, view)

    def buffer(self) -> Any:
        """The memory, computed: a NumPy array on the host, else a `DeviceArray`."""
        if graph.tracing.current is not None:
            graph.tracing.current.read()
        return execute.read(self._storage.node if self._view is None else self.node())

    def permute(self, axes: Sequence[int]) -> Tensor:
        """The axes in another order: a view."""
        seen = self._seen()
        shape, strides = (tuple(of[a] for a in axes) for of in (seen.shape, seen.strides))
        out = self._through(View(shape, strides, seen.offset))
        back = tuple(sorted(range(len(axes)), key=lambda k: axes[k]))
        return attach(out, "permute_dims", lambda g, out, x: (g.permute(back),), (self,))

    # -- values --

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as a NumPy array of its own."""
        found = memory.to_host(self.buffer())
        return np.array(found)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """A read-only view on the host; a copy from other devices, which `copy=False` refuses."""
        if dtype is None and copy is None and self._view is None and self.device == "cpu":
            node = self._storage.node
            if tracing.current is not None:
                tracing.current.read()
            seen: np.ndarray[Any, Any] = execute.read(node).view()
            node.exported = True
            seen.setflags(False)  # type: ignore[call-arg] # by its name it takes twice as long
            return seen
        shared = memory.on_host(self.device)
        if copy is False and not shared:
            raise ValueError(f"a tensor on {self.device} cannot be a NumPy array without a copy")
        found = memory.to_host(self.buffer())
        if copy or (dtype is not None and np.dtype(dtype) != found.dtype):
            if copy is False:
                raise ValueError(f"{self.dtype} as {dtype} needs a copy")
            return np.array(found, dtype=dtype)
        if shared:
            self._storage.node.exported = True
            found = found.view()
            found.flags.writeable = False
        return found

    def item(self) -> Any:
        """The only element as a Python number."""
        if self.size != 1:
            raise ShapeError(f"a tensor of shape {self.shape} is not one number")
        return memory.to_host(self.buffer()).reshape(()).item()

    def tolist(self) -> Any:
        """The elements as nested lists."""
        return memory.to_host(self.buffer()).tolist()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if not self.dtype.is_integer:
            raise TypeError(f"a tensor of {self.dtype} is not an index")
        return int(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without axes has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise TypeError("a tensor without axes cannot be iterated over")
        return (self[k] for k in range(self.shape[0]))

    def __contains__(self, value: Any) -> bool:
        """Whether an element is equal to a number."""
        return bool(t.any(self == value))

    def __repr__(self) -> str:
        numbers = memory.to_host(self.buffer())
        if self.dtype.name == "bfloat16":  # which NumPy would show as if they were integers
            numbers = numbers.astype("float32")
        body = np.array2string(numbers, separator=", ", prefix="Tensor(")
        return f"Tensor({body}, dtype={self.dtype}, device={self.device!r})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    # -- indexing --

    def __getitem__(self, key: Index) -> Tensor:
        items = key if isinstance(key, tuple) else (key,)
        if any(is_array(i) for i in items):
            from ruda.tensor import indexing

            graph.check_together("indexing", arrays_of(self, items))
            if graph.tracing.current is not None:
                return graph.tracing.current.call(Tensor.__getitem__, (self, key), {})  # type: ignore[no-any-return]
            out = from_buffer(indexing.read(self, items), self.device)
        else:
            out = self._through(basic_view(self._seen(), items))
        if self._history is not None:
            from ruda.tensor.indexing import scattered

            attach(out, "indexing", lambda g, out, x: (scattered(g, x, items),), (self,))
        return out

    def __setitem__(self, key: Index, value: Any) -> None:
        from ruda.tensor import indexing

        items = key if isinstance(key, tuple) else (key,)
        refuse("writing into a tensor", self, value)
        view = None
        if not any(is_array(i) for i in items):
            view = basic_view(self._seen(), items)
        source = value if isinstance(value, Tensor) else asarray(value, device=self.device)
        graph.check_together("assignment", [*arrays_of(self, items), source])
        indexing.check_assignable(source, self.dtype)
        self._own()
        if view is None:
            indexing.write(self, items, source)
            return
        here = memory.view(self._storage.node.value, view)
        if source.shape != view.shape:
            graph.broadcast("assignment", [view.shape, source.shape])
            source = broadcast_to(source, view.shape)
        if isinstance(here, np.ndarray):
            with np.errstate(all="ignore"):
                here[...] = source.buffer()
        else:
            shares = source._storage is self._storage
            whole = copied(source) if shares else astype(source, self.dtype).buffer()
            run.copy(here, whole, self.device)

    def _own(self) -> None:
        """Make sure that the storage's memory is seen by its own handles alone."""
        if graph.tracing.current is not None:
            graph.tracing.current.write()
        node = self._storage.node
        self._storage.version += 1
        execute.realize([node])
        # Seen by: the storage, this name, getrefcount's argument. All else is a pending op.
        if node.exported or sys.getrefcount(node) > 3:
            copy = memory.allocate(node.shape, node.dtype, node.device)
            run.copy(copy, node.value, node.device)
            self._storage.replace(graph.leaf(copy, node.dtype, node.device))

    def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return other // self, other % self

    # -- protocols --

    @property
    def __ruda_argument__(self) -> Any:
        """The memory, for a kernel that may write it."""
        refuse("a kernel", self, instead="write `@ruda.jit(differentiable=True)`, or ")
        self._own()
        value = self._storage.node.value
        if self._view is not None:
            value = memory.view(value, self._view)
        if isinstance(value, np.ndarray):
            backend: Any = backends.get(self.device)
            return backend.map(value, self.device)
        return value

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        if api_version not in (None, "2021.12", "2022.12", "2023.12", "2024.12", "2025.12"):
            raise ValueError(f"array API version {api_version!r} is not known")
        return sys.modules["ruda"]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        import ruda.tensor

        name = NUMPY_NAMES.get(ufunc.__name__, ufunc.__name__)
        there = name in ruda.tensor.__all__
        if method != "__call__" or options or not there:
            called = f"np.{ufunc.__name__}" + (f".{method}" if method != "__call__" else "")
            ours = method == "__call__" and there
            instead = f"use ruda.{name}, or" if ours else "ruda has no function of that name;"
            named = f" with {', '.join(options)}" if options else ""
            raise TypeError(
                f"`{called}` of ruda tensors{named}: {instead} "
                "`np.asarray(x)` gives it NumPy's arrays"
            )
        place = self.device
        given = (asarray(i, device=place) if isinstance(i, np.ndarray) else i for i in inputs)
        return getattr(ruda.tensor, name)(*given)

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """The tensor on another device; itself if it is there.

        Devices that compute in the host's memory share it; a GPU sends to its peer; anything else
        is copied, between two devices through the host. `ruda.explain` of what comes of it tells.

        >>> import ruda
        >>> ruda.explain(ruda.ones(10).to_device("sim"))
        float32 (10,) on sim: computed
        to_device: 40 bytes from cpu to sim, zero-copy: the same memory
        """
        name, home = here(device), self.device
        if name == home:
            return self
        if memory.on_host(home) and memory.on_host(name):
            out, how = self._shared_with(name), "zero-copy"
        else:
            buffer = self.buffer()
            if not memory.on_host(home) and not buffer.is_c_contiguous():
                buffer = copied(self)
            moved, how = memory.moved(buffer, home, name)
            out = from_buffer(moved, name)
        out._storage.node.story = memory.Move(self.nbytes, home, name, how)
        return attach(out, "to_device", lambda g, out, x: (g.to_device(home),), (self,))

    def _shared_with(self, device: str) -> Tensor:
        """The same memory as a tensor of another device: who writes first takes a copy."""
        if graph.tracing.current is not None:
            graph.tracing.current.read()
        node = self._storage.node
        same = graph.leaf(execute.read(node), node.dtype, device)
        node.exported = same.exported = True
        return handle(stored(same), self._view)

    def __reduce__(self) -> Any:
        """Pickled and copied as its elements, with its device."""
        return _unpickled, (self.numpy(), self.device, self.dtype.name)

    def __ruda_explain__(self) -> Any:
        from ruda.tensor.explanation import of_tensor

        return of_tensor(self)

    # -- derivatives --

    @property
    def requires_grad(self) -> bool:
        """Whether derivatives by this tensor, or by what it was made of, are wanted."""
        return self._history is not None

    def requires_grad_(self, wanted: bool = True) -> Tensor:
        """Want derivatives by this tensor: `backward` adds them to `.grad`."""
        if not wanted:
            self._history = None
        elif not self.dtype.is_inexact:
            raise DTypeError(f"derivatives are of floats, not {self.dtype}")
        elif self._history is None:
            self._history = History("leaf", None, ())
        return self

    def detach(self) -> Tensor:
        """The same elements, taken as constant."""
        return handle(self._storage, self._view)

    def copy_(self, other: Any) -> Tensor:
        """Take the elements of another tensor, of this shape and dtype; all views see them."""
        if recording():
            refuse("`copy_`", self, other)
        if graph.tracing.current is not None and all(
            self is not x for x in graph.tracing.current.written
        ):
            graph.tracing.current.write()
        if self._view is not None:
            self[...] = other
            return self
        source = astype(asarray(other, device=self.device), self.dtype, copy=False)
        if source.shape != self.shape or source.device != self.device:
            raise ShapeError(f"`copy_` of shape {source.shape} into {self.shape}")
        if source._view is not None or source._storage.node.row is None:  # memory of another one
            source = from_buffer(copied(source), self.device)
        self._storage.replace(source._storage.node)
        return self

    def backward(self, gradient: Any = None, retain_graph: bool = False) -> None:
        """Add derivatives to the `.grad` of what this number was made of.

        >>> import ruda
        >>> x = ruda.asarray([1.0, 2.0]).requires_grad_()
        >>> ruda.sum(x * x).backward(); x.grad
        Tensor([2., 4.], dtype=float32, device='cpu')
        """
        from ruda.tensor.grad import backward

        backward(self, gradient, retain_graph)

    def register_hook(self, hook: Callable[[Tensor], Any]) -> Callable[[], None]:
        """Call `hook` with the gradient of this tensor, when it is known: what it gives is taken
        instead, if it gives something. The result removes the hook.

        >>> import ruda
        >>> x = ruda.asarray(3.0).requires_grad_()
        >>> y = x * x
        >>> remove = y.register_hook(lambda g: g * 10)
        >>> y.backward(); x.grad
        Tensor(60., dtype=float32, device='cpu')
        """
        if self._history is None:
            raise GradientError("a hook is of tensors with `requires_grad`, and of what they make")
        hooks = self._history.hooks
        hooks.append(hook)
        return lambda: hooks.remove(hook) if hook in hooks else None

    def __dlpack__(self, **options: Any) -> Any:
        """A DLPack capsule: the memory itself. What is assigned to the tensor later is not seen."""
        found = interop.from_dlpack(self.buffer())
        capsule = found.__dlpack__(**options)
        if not options.get("copy"):
            self._storage.node.exported = True
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return interop.from_dlpack(self.buffer()).__dlpack_device__()


NUMPY_NAMES = {
    "true_divide": "divide", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
    "arctan2": "atan2", "arcsinh": "asinh", "arccosh": "acosh", "arctanh": "atanh",
    "absolute": "abs", "invert": "bitwise_invert", "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift", "power": "pow", "conjugate": "conj", "rint": "round",
}  # fmt: skip


def host_only(t: Tensor, what: str) -> np.ndarray[Any, Any]:
    """The memory of a tensor that NumPy reaches, or an error that says what is missing."""
    if not memory.on_host(t.device):
        from ruda.errors import DeviceError

        raise DeviceError(
            f"{what} on {t.device} is not there yet; move the tensor with `.to_device('cpu')`"
        )
    found: np.ndarray[Any, Any] = t.buffer()
    return found


def realize(*tensors: Tensor) -> None:
    """Compute tensors now, together."""
    nodes = [x._storage.node for x in tensors]
    for device in {n.device for n in nodes}:
        execute.realize([n for n in nodes if n.device == device])


# ---- making tensors ------------------------------------------------------------------------------


# Objects without `__init__`, and one assignment after the other: half the time of recording an op.


def stored(node: Node) -> Storage:
    """A storage whose elements are a node's."""
    made = Storage()
    made.node = node
    made.version = 0
    return made


def handle(storage: Storage, view: View | None = None) -> Tensor:
    """A tensor of a storage's elements, perhaps seen through a view."""
    node, made = storage.node, Tensor()
    made._storage = storage
    made._view = view
    made._history = made.grad = None
    made.shape = node.shape if view is None else view.shape
    made.dtype = node.dtype
    made.device = node.device
    return made


def from_node(node: Node) -> Tensor:
    return handle(stored(node))


def fresh(
    row: Any, inputs: tuple[Any, ...], shape: tuple[int, ...], dtype: DType, device: str, depth: int
) -> Tensor:
    """The tensor of a recorded op whose shape and dtype are known: all in one function.

    `quick.ll` has this and `record` in native code.
    """
    node = Node()
    node.row = row
    node.inputs = inputs
    node.axes = ()
    node.shape = shape
    node.dtype = dtype
    node.device = device
    node.value = node.layout = None
    node.exported = False
    node.depth = depth
    storage = Storage()
    storage.node = node
    storage.version = 0
    made = Tensor()
    made._storage = storage
    made._view = made._history = made.grad = None
    made.shape = shape
    made.dtype = dtype
    made.device = device
    return made


def record(
    row: Any, known: dict[DType, DType], numbers: tuple[type, ...], x: Tensor, other: Any
) -> Tensor | None:
    """Record an op of a whole tensor and another one that is alike, or a number of these types;
    None if there is more to look at. `known`: the results' dtypes."""
    kind = x.dtype
    if x._view is not None or x._history is not None or kind not in known:
        return None
    node: Any = x._storage.node
    depth, second = node.depth, other
    if type(other) is Tensor:
        if other.dtype is not kind or other._view is not None or other._history is not None:
            return None
        second = other._storage.node
        if second.depth > depth:
            depth = second.depth
        if node.shape != second.shape or node.device != second.device:
            return None
    elif type(other) not in numbers:
        return None
    if depth >= graph.MAX_DEPTH:
        return None
    return fresh(row, (node, second), node.shape, known[kind], node.device, depth + 1)


def from_buffer(buffer: Any, device: str, library: str = "") -> Tensor:
    """A tensor of a buffer, with the library that computed it if that is a vendor's."""
    node = graph.leaf(buffer, as_dtype(buffer.dtype), device)
    if library:
        node.library = library
    return from_node(node)


def here(device: Any) -> str:
    """The device of a creation function's argument."""
    name = backends.current() if device is None else str(getattr(device, "name", device))
    return f"{name}:0" if name in ("cuda", "wgpu") else name


def asarray(
    obj: Any, /, *, dtype: Any = None, device: Any = None, copy: bool | None = None
) -> Tensor:
    """A tensor of an array, nested lists or a number. NumPy arrays are copied unless `copy=False`.

    Python floats become the default float, Python integers int64.

    >>> import ruda
    >>> ruda.asarray([[1, 2], [3, 4]]).shape, ruda.asarray(1.5).dtype
    ((2, 2), ruda.float32)
    """
    wanted = None if dtype is None else as_dtype(dtype)
    if isinstance(obj, Tensor):
        found = obj if device is None else obj.to_device(device)
        if wanted is not None and wanted is not found.dtype:
            if copy is False:
                raise ValueError(f"{found.dtype} as {wanted} needs a copy")
            return astype(found, wanted)
        return copy_of(found) if copy else found
    if isinstance(obj, DeviceArray):
        return _of_memory(obj, wanted, obj.device if device is None else here(device), copy)
    place = here(device)
    if isinstance(obj, np.ndarray | np.generic):
        array = np.asarray(obj)
        kind = wanted or as_dtype(array.dtype)
        if copy is False:
            if kind != as_dtype(array.dtype) or not memory.on_host(place):
                raise ValueError(f"a NumPy array of {array.dtype} on {place} needs a copy")
            if not array.flags.c_contiguous:
                raise ValueError("a NumPy array with gaps or in another order needs a copy")
            shared = graph.leaf(array, kind, place)
            shared.exported = True
            return from_node(shared)
        return from_buffer(memory.from_host(execute.converted(array, kind), place), place)
    array, kind = from_python(obj)
    if wanted is None and kind is dtypes.int64 and not _has_numpy(obj):
        wanted = default_int(place)
        if wanted is not kind and array.size and (array != array.astype(wanted.numpy)).any():
            raise OverflowError(f"an integer does not fit {wanted}, the default of {place}")
    return from_buffer(memory.from_host(execute.converted(array, wanted or kind), place), place)


def default_int(device: str) -> DType:
    """int64, or int32 where a device does not compute in it."""
    return dtypes.int64 if memory.on_host(device) else run.index_dtype(device)


def copy_of(x: Tensor) -> Tensor:
    """A tensor of its own with the same elements."""
    out = from_node(graph.record(conversion(x.dtype), [x.node()]))
    return attach(out, "copy", lambda g, out, x: (g,), (x,))


def _unpickled(array: np.ndarray[Any, Any], device: str, dtype: str) -> Tensor:
    return asarray(array, dtype=dtype, device=device)


def copied(t: Tensor) -> Any:
    out = memory.allocate(t.shape, t.dtype, t.device)
    run.copy(out, t.buffer(), t.device)
    return out


def _of_memory(x: DeviceArray, wanted: DType | None, place: str, copy: bool | None) -> Tensor:
    """A tensor of a device's memory: a copy, but shared with `copy=False`."""
    kind = as_dtype(x.dtype)
    same = wanted in (None, kind) and x.device == place and x.is_c_contiguous()
    if copy is False and not same:
        raise ValueError(f"an array of {kind} on {x.device} as {wanted or kind} on {place}: a copy")
    if memory.on_host(x.device):
        array = np.asarray(x)
        return asarray(array, dtype=wanted, device=place, copy=copy)
    if copy is False:
        shared = graph.leaf(x, kind, place)
        shared.exported = True
        return from_node(shared)
    buffer = memory.allocate(x.shape, kind, x.device)
    run.copy(buffer, x, x.device)
    found = from_buffer(buffer, x.device).to_device(place)
    return found if wanted in (None, kind) else astype(found, wanted)


def from_python(obj: Any) -> tuple[np.ndarray[Any, Any], DType]:
    """A number or nested sequence as an array, and the dtype that ruda gives it."""
    if isinstance(obj, list | tuple) and any(isinstance(v, Tensor) for v in obj):
        obj = [np.asarray(v) if isinstance(v, Tensor) else v for v in obj]
    try:
        array = np.asarray(obj)
    except ValueError as error:
        raise ShapeError(f"the lists are not of equal lengths: {error}") from None
    if array.dtype.kind not in "biufc":
        raise DTypeError(f"{type(obj).__name__} does not become a tensor of numbers")
    kind = as_dtype(array.dtype)
    if not _has_numpy(obj):
        if kind.kind == "float":
            kind = default_float()
        elif kind.kind == "complex":
            kind = dtypes.complex128 if default_float() is dtypes.float64 else dtypes.complex64
    return array, kind


def _has_numpy(obj: Any) -> bool:
    """Whether a dtype comes with it: of NumPy's or another library's arrays, not of numbers."""
    if isinstance(obj, list | tuple):
        return any(_has_numpy(v) for v in obj)
    return hasattr(obj, "dtype")


# ---- functions of rows ---------------------------------------------------------------------------


class Functions:
    """The public functions by name, for the modules whose functions are made of them."""

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        return getattr(sys.modules["ruda.tensor"], name)  # type: ignore[no-any-return]


t = Functions()


def operand(value: Any, device: str) -> Any:
    """What `graph.record` takes: a node, or a Python number."""
    if type(value) is Tensor:
        return value.node() if value._view is not None else value._storage.node
    if type(value) in WEAK:
        return value
    if isinstance(value, np.ndarray | np.generic):
        return asarray(value, device=device).node()
    kinds: tuple[Any, ...] = (int, float, complex)
    for kind in kinds:  # subclasses
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a tensor or a number is needed, not {type(value).__name__}")


def function(name: str) -> Callable[..., Tensor]:
    """The public function of an elementwise row."""
    found = FUNCTIONS.get(name)
    if found is None:
        found = FUNCTIONS[name] = _elementwise(name) if OPS[name].kind == "elementwise" else (
            _reduction(name)
        )  # fmt: skip
    return found


FUNCTIONS: dict[str, Callable[..., Tensor]] = {}


def _elementwise(name: str) -> Callable[..., Tensor]:
    row = OPS[name]
    count = len(row.parameters)
    known: dict[DType, DType] = {}  # results of one float, to record those without delay

    def call(*values: Any, **named: Any) -> Tensor:
        if count == 1 and len(values) == 1 and type(values[0]) is Tensor and not named:
            x = values[0]
            if x.dtype in known and x._view is None and x._history is None:
                node = x._storage.node
                if node.depth < graph.MAX_DEPTH:
                    made = known[x.dtype]
                    return fresh(row, (node,), node.shape, made, node.device, node.depth + 1)
        if named or len(values) != count:
            values = bind(row.name, row.parameters, values, named)
        device = next((v.device for v in values if type(v) is Tensor), None)
        if device is None:
            values = (asarray(values[0]), *values[1:])
            device = values[0].device
        if row.name == "clip":
            values = clip_bounds(values)
        out = from_node(graph.record(row, [operand(v, device) for v in values]))
        if count == 1 and values[0].dtype.is_inexact:
            known[values[0].dtype] = out.dtype
        for v in values:
            if type(v) is Tensor and v._history is not None:
                return attach(out, name, row.gradient, tuple(values))
        return out

    call.__name__ = call.__qualname__ = name
    call.__module__ = "ruda"
    call.__signature__ = signature(row.parameters, OPTIONAL.get(name, ()))  # type: ignore[attr-defined]
    call.__doc__ = f"{row.doc}\n\nElementwise: {', '.join(row.parameters)} broadcast."
    if f"ruda.{name}" in intrinsics.BY_NAME:
        call.__ruda_name__ = name  # type: ignore[attr-defined]
    else:
        call.__ruda_op__ = functools.partial(in_kernel, row)  # type: ignore[attr-defined]
    return call


OPTIONAL = {"clip": ("min", "max")}  # parameters that may be left away


def signature(parameters: Sequence[str], optional: Sequence[str] = ()) -> inspect.Signature:
    """What is shown of a function that takes its arguments as they come.

    >>> signature(("x", "min"), ("min",))
    <Signature (x, /, min=None)>
    """
    kinds = inspect.Parameter
    return inspect.Signature([
        kinds(p, kinds.POSITIONAL_OR_KEYWORD, default=None) if p in optional
        else kinds(p, kinds.POSITIONAL_ONLY)
        for p in parameters
    ])  # fmt: skip


def clip_bounds(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """`None` is no bound: the least or greatest value."""
    x = values[0]
    if x.dtype.kind == "float":
        low, high = -math.inf, math.inf
    else:
        low, high = x.dtype.range
    return x, low if values[1] is None else values[1], high if values[2] is None else values[2]


def bind(
    name: str, parameters: tuple[str, ...], values: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...]:
    given = dict(zip(parameters, values, strict=False)) | named
    missing = [p for p in parameters if p not in given and p not in OPTIONAL.get(name, ())]
    extra = [p for p in given if p not in parameters]
    if missing or extra or len(values) > len(parameters):
        raise TypeError(f"`{name}` takes ({', '.join(parameters)})")
    return tuple(given.get(p) for p in parameters)


def as_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """Axes of a reduction, in order and not negative."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple | list) else (axis,)
    out = []
    for a in given:
        k = operator.index(a)
        if not -ndim <= k < ndim:
            raise ShapeError(f"axis {k} of a tensor with {ndim} axes")
        out.append(k % ndim)
    if len(set(out)) < len(out):
        raise ShapeError(f"an axis stands twice in {given}")
    return tuple(sorted(out))


def _reduction(name: str) -> Callable[..., Tensor]:
    row = OPS[name]
    # Results over all axes of floats, to record those without delay: dtype and axes by dtype and
    # number of axes.
    known: dict[tuple[DType, int], tuple[DType, tuple[int, ...]]] = {}

    def call(x: Any, /, *, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
        whole = axis is None and dtype is None and not keepdims and type(x) is Tensor
        if whole and x._view is None and x._history is None:
            result = known.get((x.dtype, len(x.shape)))
            node = x._storage.node
            if result is not None and node.depth < graph.MAX_DEPTH and 0 not in x.shape:
                made = fresh(row, (node,), (), result[0], node.device, node.depth + 1)
                made._storage.node.axes = result[1]
                return made
        x = x if isinstance(x, Tensor) else asarray(x)
        if dtype is not None:
            x = astype(x, dtype)
        axes = as_axes(axis, x.ndim)
        of = row
        if row.rule == "accumulate" and not x.dtype.is_inexact and not run.has_int64(x.device):
            of = in_32_bits(row)
        found = from_node(graph.reduce(of, x.node(), axes, keepdims))
        if whole and axes and x.dtype.kind == "float":
            known[x.dtype, len(axes)] = found.dtype, axes
        if x._history is not None:
            attach(found, name, reduction_gradient(name, axes, keepdims), (x,))
        return found if dtype is None else astype(found, dtype)

    call.__name__ = call.__qualname__ = name
    call.__module__ = "ruda"
    call.__doc__ = f"{row.doc}\n\nOver all elements, or along `axis` (an int or several)."
    return call


def in_32_bits(row: Any) -> Any:
    """A sum or product of integers for devices without wider ones."""
    from ruda.tensor.opdef import RULES

    name = f"{row.name}_in_32_bits"
    if name not in OPS:
        known = {"bool": dtypes.int32, "int": dtypes.int32, "uint": dtypes.uint32}
        RULES[name] = lambda inputs: (known[inputs[0].kind],) * 2
        OPS[name] = dataclasses.replace(row, name=name, rule=name)
    return OPS[name]


def reduction_gradient(name: str, axes: tuple[int, ...], keepdims: bool) -> Any:
    """The gradient of a reduction: for the greatest and least, shared by those that are equal."""

    def spread(v: Tensor, x: Tensor) -> Tensor:
        if not keepdims:
            kept = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
            v = reshape(v, kept)
        return broadcast_to(v, x.shape)

    def gradient(g: Tensor, out: Tensor, x: Tensor) -> tuple[Any]:
        if name == "sum":
            return (spread(g, x),)
        if name == "prod":
            return (spread(g, x) * others(x, axes),)
        if name in ("max", "min"):
            chosen = astype(function("equal")(x, spread(out, x)), x.dtype)
            count = function("sum")(chosen, axis=axes, keepdims=True)
            return (spread(g, x) * (chosen / broadcast_to(count, x.shape)),)
        return (None,)

    return gradient


def others(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """For each element the product of the other ones along the axes, without dividing."""
    from ruda.tensor.creation import concat, ones, permute_dims

    kept = [a for a in range(x.ndim) if a not in axes]
    order = (*kept, *axes)
    rows = permute_dims(x, order)
    inner = rows.shape
    flat = reshape(rows, (math.prod(inner[: len(kept)]), math.prod(inner[len(kept) :])))
    n = flat.shape[1]
    one = ones((flat.shape[0], 1), dtype=x.dtype, device=x.device)
    columns = [flat[:, k : k + 1] for k in range(n)]
    before, after = [one], [one]
    for k in range(n - 1):
        before.append(before[-1] * columns[k])
        after.append(after[-1] * columns[n - 1 - k])
    found = [b * a for b, a in zip(before, reversed(after), strict=True)]
    joined = reshape(concat(found, axis=1) if found else flat, inner)
    return joined.permute(tuple(sorted(range(len(order)), key=lambda k: order[k])))


def astype(x: Tensor, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """The elements at another dtype: integers wrap, floats saturate into integers.

    >>> import ruda
    >>> ruda.astype(ruda.asarray([1.7, -2.5]), ruda.int32)
    Tensor([ 1, -2], dtype=int32, device='cpu')
    """
    wanted = as_dtype(dtype)
    if device is not None:
        x = x.to_device(device)
    if wanted is x.dtype:
        return copy_of(x) if copy else x
    if x.dtype.kind == "complex" and wanted.kind not in ("complex", "bool"):
        raise DTypeError(f"{x.dtype} does not become {wanted}: take `ruda.real` or `ruda.abs`")
    have = x.dtype
    out = from_node(graph.record(conversion(wanted), [x.node()]))

    def gradient(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
        real = g.dtype.kind == "complex" and have.kind != "complex"
        return (astype(function("real")(g) if real else g, have, copy=False),)

    return attach(out, "astype", gradient, (x,))


def conversion(dtype: DType) -> Any:
    """The row that converts to a dtype."""
    from ruda.tensor.opdef import RULES, Row

    name = f"to_{dtype.name}"
    if name not in OPS:
        RULES[name] = lambda inputs: (inputs[0], dtype)
        OPS[name] = Row(
            name, ("x",), "any", name, lambda x: x.cast(dtype),
            lambda x: execute.converted(x, dtype), f"x as {dtype}.",
        )  # fmt: skip
    return OPS[name]


# ---- views ---------------------------------------------------------------------------------------


def is_array(item: Any) -> bool:
    """Whether an index picks elements by arrays: not an integer, slice, None or `...`."""
    if isinstance(item, Tensor):
        return item.ndim > 0 or item.dtype.kind == "bool"
    return isinstance(item, list | bool | np.bool_) or (
        isinstance(item, np.ndarray) and (item.ndim > 0 or item.dtype.kind == "b")
    )


def arrays_of(x: Tensor, items: tuple[Any, ...]) -> list[Tensor]:
    """A tensor and those that pick its elements."""
    return [x, *(i for i in items if isinstance(i, Tensor) and is_array(i))]


def basic_view(seen: View, items: tuple[Any, ...]) -> View:
    """What integers, slices, None and `...` select of a view.

    >>> basic_view(memory.contiguous((3, 4)), (slice(None, None, -1), 1))
    View(shape=(3,), strides=(-4,), offset=9)
    """
    used = sum(i is not None and i is not Ellipsis for i in items)
    ndim = len(seen.shape)
    if used > ndim:
        raise IndexError(f"{used} indices into a tensor with {ndim} axes")
    dots = sum(i is Ellipsis for i in items)
    if dots > 1:
        raise IndexError("an index has at most one `...`")
    if not dots:
        items = (*items, Ellipsis)
    shape: list[int] = []
    strides: list[int] = []
    offset, axis = seen.offset, 0
    for item in items:
        if item is None:
            shape.append(1)
            strides.append(0)
        elif item is Ellipsis:
            rest = ndim - used
            shape += seen.shape[axis : axis + rest]
            strides += seen.strides[axis : axis + rest]
            axis += rest
        elif isinstance(item, slice):
            n, step = seen.shape[axis], seen.strides[axis]
            start, stop, by = item.indices(n)
            count = len(range(start, stop, by))
            offset += start * step if count else 0
            shape.append(count)
            strides.append(by * step)
            axis += 1
        else:
            try:
                k = operator.index(item)
            except TypeError:
                raise IndexError(
                    f"an index is made of integers, slices, None, ... and arrays, "
                    f"not {type(item).__name__}"
                ) from None
            n = seen.shape[axis]
            if not -n <= k < n:
                raise IndexError(f"index {k} is out of bounds for axis {axis} with {n} elements")
            offset += k % n * seen.strides[axis]
            axis += 1
    return View(tuple(shape), tuple(strides), offset)


def broadcast_to(x: Tensor, /, shape: Sequence[int]) -> Tensor:
    """The tensor repeated to a shape: a view."""
    given = shape if isinstance(shape, tuple | list) else (shape,)
    shape = tuple(operator.index(n) for n in given)
    seen = x._seen()
    missing = len(shape) - len(seen.shape)
    fits = (
        missing >= 0
        and min(shape, default=0) >= 0
        and all(n in (1, m) for n, m in zip(seen.shape, shape[missing:], strict=True))
    )
    if not fits:
        raise ShapeError(f"a tensor of shape {x.shape} cannot be broadcast to {shown(shape)}")
    check_size(shape)
    strides = tuple(
        s if n == m else 0
        for n, m, s in zip(seen.shape, shape[missing:], seen.strides, strict=True)
    )
    out = x._through(View(shape, (0,) * missing + strides, seen.offset))
    return attach(out, "broadcast_to", lambda g, out, x: (g,), (x,))


def reshape(x: Tensor, /, shape: Any, *, copy: bool | None = None) -> Tensor:
    """The elements in C order with another shape: a view where that is possible.

    >>> import ruda
    >>> ruda.reshape(ruda.arange(6), (2, -1)).shape
    (2, 3)
    """
    shape = shape.tolist() if isinstance(shape, np.ndarray) else shape
    given = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    wanted = [operator.index(n) for n in given]
    if wanted.count(-1) == 1:
        others = -math.prod(wanted)
        wanted[wanted.index(-1)] = x.size // others if others and x.size % others == 0 else -1
    if math.prod(wanted) != x.size or min(wanted, default=0) < 0:
        raise ShapeError(f"a tensor of shape {x.shape} cannot have the shape {given}")
    new = tuple(wanted)
    seen = x._seen()
    strides = reshaped(seen.shape, seen.strides, new)
    if strides is not None and not copy:
        out = x._through(View(new, strides, seen.offset))
    elif copy is False:
        raise ValueError(f"a tensor of shape {x.shape} and these strides needs a copy")
    else:
        out = reshape(from_node(graph.record(conversion(x.dtype), [x.node()])), new)
    return attach(out, "reshape", lambda g, out, x: (reshape(g, x.shape),), (x,))


def reshaped(
    shape: tuple[int, ...], strides: tuple[int, ...], new: tuple[int, ...]
) -> tuple[int, ...] | None:
    """The strides of a view with another shape; None where its elements need a copy.

    >>> reshaped((6, 2), (1, 6), (2, 3, 2)), reshaped((6, 2), (1, 6), (12,))
    ((3, 1, 6), None)
    """
    if math.prod(new) == 0:
        return memory.contiguous(new).strides
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    out: list[int] = []
    count, step, k = 1, 1, len(old)  # elements in groups of axes that lie behind each other
    for n in reversed(new):
        if n == 1:
            out.append(step * count)
            continue
        if count == 1:
            k -= 1
            count, step = old[k]
        while count % n:  # more axes: those that continue this one
            k -= 1
            if k < 0 or old[k][1] != count * step:
                return None
            count *= old[k][0]
        out.append(step)
        count, step = count // n, step * n
    return tuple(out[::-1])


# ---- operators -----------------------------------------------------------------------------------


# In place, a result becomes the tensor's dtype, but no float an integer.
KIND_ORDER = {"bool": 0, "int": 1, "uint": 1, "float": 2, "complex": 3}


def _add_operators() -> None:
    from ruda.errors import DeviceError

    def unary(name: str) -> Callable[..., Any]:
        call = function(name)
        return lambda self: call(self)

    def binary(name: str) -> Callable[..., Any]:
        call, row = function(name), OPS[name]
        known: dict[DType, DType] = {}  # results of two floats, to record those without delay
        numbers = () if name == "pow" else (float, int)

        def run(self: Tensor, other: Any) -> Any:
            made = record(row, known, numbers, self, other)
            if made is not None:
                return made
            kind = self.dtype
            try:
                out = call(self, other)
            except TypeError as error:
                if isinstance(error, DTypeError | DeviceError):
                    raise
                return NotImplemented
            alike = type(other) in numbers or (isinstance(other, Tensor) and other.dtype is kind)
            if kind.kind == "float" and alike:
                known[kind] = out.dtype
            return out

        return run

    def reflected(name: str) -> Callable[..., Any]:
        call = function(name)

        def run(self: Tensor, other: Any) -> Any:
            try:
                return call(other, self)
            except TypeError as error:
                if isinstance(error, DTypeError):
                    raise
                return NotImplemented

        return run

    def in_place(name: str) -> Callable[..., Any]:
        call = function(name)

        def run(self: Tensor, other: Any) -> Tensor:
            old = self
            if self._history is not None:
                old = handle(stored(self.node()))
                old._history = self._history
            result = call(old, other)
            if result.shape != self.shape:
                raise ShapeError(f"`{name}` in place: the result has shape {result.shape}")
            fits = promote(result.dtype, self.dtype) is self.dtype
            if not fits and KIND_ORDER[result.dtype.kind] > KIND_ORDER[self.dtype.kind]:
                raise DTypeError(f"`{name}` in place: {result.dtype} does not fit {self.dtype}")
            result = astype(result, self.dtype, copy=False)
            if self._view is None:
                if self._history is not None and self._history.gradient is None:
                    refuse(f"`{name}` in place on a leaf", self)
                self._storage.replace(result._storage.node)
                if recording():
                    self._history = result._history
            else:
                self[...] = result
            return self

        return run

    for row in list(OPS.values()):
        if not row.operator:
            continue
        setattr(Tensor, row.operator, (binary if len(row.parameters) == 2 else unary)(row.name))
        if len(row.parameters) == 2 and row.rule != "test":
            bare = row.operator.strip("_")
            setattr(Tensor, f"__r{bare}__", reflected(row.name))
            setattr(Tensor, f"__i{bare}__", in_place(row.name))


_add_operators()
