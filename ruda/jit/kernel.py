"""The object that `@ruda.jit` makes: it specialises, compiles, caches and launches.

A launch `k[grid, block](*args)` looks up a ready launcher by its configuration; the launcher checks
that the arguments have the types it was made for, else the general path specialises anew. What a
specialisation depends on is its key: argument types, captured values, device, options.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec

import numpy as np

from ruda import backends
from ruda.dtypes import DType
from ruda.errors import NOWHERE, LaunchTypeError, LaunchValueError
from ruda.jit import language
from ruda.jit.types import (
    ArrayType,
    RecordType,
    Signature,
    Static,
    TupleType,
    Type,
    parse_signature,
    parse_type,
    type_of,
)
from ruda.settings import settings

if TYPE_CHECKING:
    from ruda.backends.base import Binary, Launch, Source
    from ruda.jit.ir import Function

P = ParamSpec("P")
MAX_GRID = 2**31 - 1
MAX_THREADS = 1024


@dataclass(frozen=True)
class KernelOptions:
    """What the decorator was told."""

    device: bool = False
    fastmath: bool | None = None
    contract: bool | None = None
    wraparound: bool = True
    check: bool | None = None
    debug: bool = False


@dataclass
class Specialisation:
    """A kernel for given types, on a device: IR always, the rest as far as it was needed."""

    types: tuple[Type, ...]
    device: str
    function: Function
    source: Source | None = None
    binary: Binary | None = None
    module: Any = None


@dataclass(frozen=True)
class Capture:
    """A global or closure value that a kernel used, and where it can be looked at again."""

    holder: Any
    key: str
    value: Any
    snapshot: bytes | None  # of a NumPy array, which may be changed in place

    def current(self) -> Any:
        if isinstance(self.holder, dict):
            return self.holder.get(self.key)
        try:
            return self.holder.cell_contents
        except ValueError:
            return None

    def token(self) -> Any:
        """Hashable, and different when the value is."""
        value = self.current()
        if isinstance(value, np.ndarray):
            return value.tobytes(), value.shape, value.dtype.str
        if isinstance(value, (int, float, complex, str, tuple)):
            try:
                hash(value)
            except TypeError:
                return id(value)
            return type(value), repr(value)
        return id(value)


class Kernel(Generic[P]):
    """A compiled function over a grid: `kernel[blocks, threads](*arguments)`."""

    __name__: str
    __qualname__: str
    __module__: str

    def __init__(
        self,
        function: Callable[P, Any],
        options: KernelOptions = KernelOptions(),
        signatures: Sequence[Signature] = (),
    ) -> None:
        if not isinstance(function, types.FunctionType):
            raise TypeError(f"@ruda.jit decorates a function, not {type(function).__name__}")
        functools.update_wrapper(self, function)
        self.py_func: types.FunctionType = function
        self.options = options
        self.signatures = tuple(signatures)
        self.device_signature = signatures[0] if options.device and signatures else None
        self.constexprs = _constexpr_positions(function)
        self._lock = threading.RLock()
        self._specialisations: dict[Any, Specialisation] = {}
        self._captures: dict[tuple[int, str], Capture] = {}
        self._current: tuple[Any, dict[Any, Callable[..., None]]] = (None, {})
        self._configured: dict[Any, Configured] = {}

    # -- launching --

    def __getitem__(self, configuration: Any) -> Callable[P, None]:
        state, ready = self._current
        if state is settings.local.get() and not self._captures:
            try:
                return ready[configuration]
            except (KeyError, TypeError):
                pass
        return self._configure(configuration)

    def _configure(self, configuration: Any) -> Callable[P, None]:
        if self.options.device:
            raise LaunchTypeError(
                f"`{self.__name__}` is a device function: call it from a kernel, it cannot be launched"
            )
        launch = parse_configuration(self.__name__, configuration)
        configured = self._configured.get(launch)
        if configured is None:
            configured = self._configured[launch] = Configured(self, launch)
        state = settings.local.get()
        if self._current[0] is not state:
            self._current = (state, {})
        with contextlib.suppress(TypeError):  # lists are welcome, but not hashable
            configured.names.add(configuration)
        return configured

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.options.device:
            raise LaunchTypeError(
                f"`{self.__name__}` is a device function: call it from a kernel; "
                "its Python function is `.py_func`"
            )
        raise LaunchTypeError(
            f"a kernel is launched over a grid: write {self.__name__}[blocks, threads](...), "
            f"or {self.__name__}.forall(n)(...)"
        )

    def forall(
        self, ntasks: int, tpb: int = 0, stream: Any = None, sharedmem: int = 0
    ) -> Callable[P, None]:
        """A launch of at least `ntasks` threads in one dimension.

        >>> import numpy as np, ruda
        >>> @ruda.jit
        ... def double(x):
        ...     i = ruda.grid(1)
        ...     if i < x.size:
        ...         x[i] *= 2
        >>> x = np.arange(3.0)
        >>> double.forall(x.size)(x); x
        array([0., 2., 4.])
        """
        if ntasks < 0:
            raise LaunchValueError(f"`forall` needs a number of tasks of at least 0, not {ntasks}")
        block = tpb or 256
        return self[max(1, -(-int(ntasks) // block)), block, stream, sharedmem]

    # -- specialising --

    def translate(
        self,
        argument_types: Sequence[Type],
        *,
        block: tuple[int, int, int] | None = None,
        needs_block: Callable[[Function], bool] = lambda f: False,
        any_block: bool = True,
    ) -> Function:
        """The IR for given types; with the block's size in it only if it is needed."""
        from ruda.jit import frontend

        o = self.options
        deterministic = settings.deterministic
        options = frontend.Options(
            None,
            settings.fastmath if o.fastmath is None else o.fastmath,
            (not deterministic) if o.contract is None else o.contract,
            o.wraparound,
            bool(o.debug or (settings.check if o.check is None else o.check)),
            unroll_limit=settings.unroll_limit,
        )
        for known in (None, block):
            try:
                translation = frontend.translate(
                    self.py_func, argument_types, replace(options, block=known)
                )
            except frontend.NeedsBlock:
                if known is None and block is not None:
                    continue
                raise LaunchValueError(
                    f"`{self.__name__}` needs the block's size to be compiled: pass block=..."
                ) from None
            if known is None and block is not None and needs_block(translation.function):
                continue
            break
        for place, (holder, key, value) in translation.captures.items():
            if isinstance(value, (types.ModuleType, language.Namespace)) or hasattr(
                value, "__ruda_name__"
            ):
                continue
            snapshot = value.tobytes() if isinstance(value, np.ndarray) else None
            self._captures[place] = Capture(holder, key, value, snapshot)
        return translation.function

    def specialise(
        self, argument_types: tuple[Type, ...], device: str, block: tuple[int, int, int] | None
    ) -> Specialisation:
        """Translate, emit, compile and load; each step once, under a lock."""
        from ruda.jit import verify

        backend = backends.get(device)
        key = self._key(argument_types, device, None)
        found = self._specialisations.get(key) or self._specialisations.get((key, block))
        if found is not None:
            return found
        with self._lock:
            key = self._key(argument_types, device, None)
            found = self._specialisations.get(key) or self._specialisations.get((key, block))
            if found is not None:
                return found
            self._check_signature(argument_types)
            needs_block = getattr(backend, "needs_block", lambda f: False)
            function = self.translate(argument_types, block=block, needs_block=needs_block)
            if settings.debug >= 1:
                verify.verify(function)
            target = backend.target(device)
            made = Specialisation(argument_types, device, function)
            made.binary = self._cached(made, backend, target)
            made.module = backend.load(made.binary, function, device)
            key = self._key(argument_types, device, None)  # captures are known only now
            self._specialisations[(key, block) if function.block is not None else key] = made
            return made

    def _cached(self, made: Specialisation, backend: Any, target: Any) -> Binary:
        """The binary from the disk cache, else compiled and stored."""
        from ruda.backends.base import Binary

        if not getattr(backend, "cacheable", False):
            made.source = backend.emit(made.function, target)
            return backend.compile(made.source, target)  # type: ignore[no-any-return]
        from ruda.jit import cache

        parts = self._key_parts(made, target)
        key = cache.key_of(parts)
        entry = cache.lookup(key, parts=parts, resolves=backend.resolves)
        if entry is not None:
            return Binary(entry.payload, entry.metadata["binary"], entry.symbols)
        made.source = backend.emit(made.function, target)
        binary: Binary = backend.compile(made.source, target)
        metadata = {"binary": binary.metadata}
        cache.store(key, cache.Entry(binary.payload, metadata, binary.symbols), parts=parts)
        return binary

    def _key_parts(self, made: Specialisation, target: Any) -> dict[str, str | bytes]:
        """Everything that decides the code; `cache.why` calls the parts by their names."""
        from ruda.jit import cache, ir

        function = made.function
        parts: dict[str, str | bytes] = dict(cache.environment_parts(made.device))
        parts["name"] = cache.name_of(self)
        parts["types"] = ", ".join(map(str, made.types))
        # A kernel that only moved in its file is the same: statements do not print their places.
        parts["ir"] = repr(replace(function, place=NOWHERE))
        parts["data"] = b"".join(a.data or b"" for a in function.arrays)
        parts["properties"] = repr(sorted(target.items()))
        if function.check or any(
            isinstance(s, (ir.Print, ir.Assert)) for s in ir.statements(function.body)
        ):
            parts["places"] = repr([s.place for s in ir.statements(function.body)])
        return parts

    def _key(self, argument_types: tuple[Type, ...], device: str, block: Any) -> Any:
        captured = tuple(c.token() for c in self._captures.values())
        flags = (settings.fastmath, settings.check, settings.deterministic, settings.default_float)
        return argument_types, device, flags, captured

    def _check_signature(self, argument_types: tuple[Type, ...]) -> None:
        names = parameter_names(self.py_func)
        if len(argument_types) != len(names):
            raise LaunchTypeError(
                f"`{self.__name__}` takes {len(names)} arguments ({', '.join(names)}), "
                f"not {len(argument_types)}"
            )

    def argument_types(self, arguments: Sequence[Any]) -> tuple[Type, ...]:
        """The types of launch arguments; a signature, if any, decides about scalars."""
        names = parameter_names(self.py_func)
        if len(arguments) != len(names):
            raise LaunchTypeError(
                f"`{self.__name__}` takes {len(names)} arguments ({', '.join(names)}), "
                f"not {len(arguments)}"
            )
        found = [
            constexpr_type(v, n) if k in self.constexprs else type_of(v, f"`{n}`")
            for k, (v, n) in enumerate(zip(arguments, names, strict=True))
        ]
        if not self.signatures:
            return tuple(found)
        for signature in self.signatures:
            fitted = fit_signature(signature, found)
            if fitted is not None:
                return fitted
        wanted = " or ".join(f"({', '.join(map(str, s.arguments))})" for s in self.signatures)
        raise LaunchTypeError(
            f"`{self.__name__}` was declared for {wanted}, not ({', '.join(map(str, found))})"
        )

    # -- looking inside --

    def _described(
        self, target: str, specs: Sequence[Any], block: Any, constexpr: dict[str, Any] | None
    ) -> Specialisation:
        names = parameter_names(self.py_func)
        given = iter(specs or (self.signatures[0].arguments if self.signatures else ()))
        constants = constexpr or {}
        try:
            argument_types = tuple(
                Static.of(constants[n]) if n in constants else parse_type(next(given))
                for n in names
            )
        except StopIteration:
            raise LaunchTypeError(
                f"`{self.__name__}` takes {len(names)} arguments ({', '.join(names)}): give a type for each"
            ) from None
        backend = backends.get(target)
        shape = None if block is None else as_dimensions(block, "block", self.__name__)
        needs_block = getattr(backend, "needs_block", lambda f: False)
        if shape is None:
            shape = (256, 1, 1)
        function = self.translate(argument_types, block=shape, needs_block=needs_block)
        made = Specialisation(argument_types, target, function)
        made.source = backend.emit(function, backend.target(target))
        return made

    def source(
        self, target: str, *types: Any, block: Any = None, constexpr: dict[str, Any] | None = None
    ) -> str:
        """The text for a target, made on any machine.

        `types` are ruda's, NumPy's or numba's dtypes, or strings such as "f32[:, :]" and "int".
        """
        made = self._described(target, types, block, constexpr)
        assert made.source is not None
        return made.source.text

    def ir(self, *types: Any, block: Any = None, constexpr: dict[str, Any] | None = None) -> str:
        """The typed intermediate representation, as text that reads like Python."""
        return str(self._described("sim", types, block, constexpr).function)

    def assembly(
        self, target: str, *types: Any, block: Any = None, constexpr: dict[str, Any] | None = None
    ) -> str:
        """The machine code for a target, as text."""
        made = self._described(target, types, block, constexpr)
        backend = backends.get(target)
        assembly = getattr(backend, "assembly", None)
        if assembly is None:
            raise NotImplementedError(f"{target} has no assembly to show")
        return assembly(made.source, backend.target(target))  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        kind = "device function" if self.options.device else "kernel"
        return f"<ruda {kind} {self.__qualname__}{inspect.signature(self.py_func)}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self

    def __reduce__(self) -> Any:
        return _find_kernel, (self.__module__, self.__qualname__)


def _find_kernel(module: str, qualname: str) -> Any:
    """Kernels travel by name, as functions do."""
    import importlib

    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return found


class Configured:
    """A kernel with a launch shape: call it with the kernel's arguments."""

    def __init__(self, kernel: Kernel[Any], launch: Launch) -> None:
        self.kernel, self.launch = kernel, launch
        self.names: set[Any] = set()  # the configurations that lead here
        self.launchers: dict[Any, Callable[..., None]] = {}

    def __call__(self, *arguments: Any) -> None:
        kernel, launch = self.kernel, self.launch
        values = [getattr(a, "__ruda_argument__", a) for a in arguments]
        argument_types = kernel.argument_types(values)
        device = launch_device(values, kernel.__name__)
        made = kernel.specialise(argument_types, device, launch.block)
        key = (id(made), settings.local.get() is None)
        launcher = self.launchers.get(key)
        if launcher is None:
            backend = backends.get(device)
            native = backend.launcher(made.module, launch, self)
            flat = any(
                isinstance(t, (TupleType, Static, RecordType)) for t in argument_types
            ) or any(not isinstance(v, np.ndarray) and hasattr(v, "__ruda_host__") for v in values)
            launcher = self.launchers[key] = native
            if not flat and not kernel._captures and getattr(native, "is_native", True):
                state = settings.local.get()
                if kernel._current[0] is state:
                    for name in self.names:
                        kernel._current[1][name] = native
        launcher(*flatten_arguments(values, argument_types))

    def __repr__(self) -> str:
        return f"<{self.kernel.__name__}{[self.launch.grid, self.launch.block]}>"


def flatten_arguments(values: Sequence[Any], types: Sequence[Type]) -> list[Any]:
    """Tuples replaced by their items, compile-time values dropped, records as one-element arrays."""
    import enum

    out: list[Any] = []
    for value, kind in zip(values, types, strict=True):
        match kind:
            case Static():
                pass
            case TupleType(items=items):
                out += flatten_arguments(value, items)
            case RecordType():
                out.append(np.asarray(value).reshape(1))
            case DType() if isinstance(value, enum.Enum):
                out.append(value.value)
            case DType() if not kind.weak and not isinstance(value, np.generic):
                out.append(fitted_scalar(value, kind))
            case _:
                out.append(getattr(value, "__ruda_host__", value))
    return out


def fitted_scalar(value: Any, dtype: DType) -> Any:
    """A Python number for a parameter whose dtype a signature declared."""
    if dtype.is_integer and isinstance(value, int):
        low, high = dtype.range
        if not low <= value <= high:
            raise OverflowError(f"{value} does not fit {dtype}")
    return dtype(value)


def launch_device(values: Sequence[Any], name: str) -> str:
    """Where a launch runs: where its arrays live, else the default device."""
    places: dict[str, None] = {}
    for v in values:
        place = getattr(v, "__ruda_device__", None)
        if place is not None:
            places[place] = None
    if len(places) > 1:
        raise LaunchTypeError(
            f"`{name}`: the arrays are on several devices ({', '.join(places)}); move them to one"
        )
    if places:
        device = next(iter(places))
        # The interpreter and the CPU share the host's memory.
        return settings.device if device == "cpu" and settings.device == "sim" else device
    return settings.device  # type: ignore[no-any-return]


def constexpr_type(value: Any, name: str) -> Static:
    try:
        hash(value)
    except TypeError:
        raise LaunchTypeError(
            f"`{name}` is a compile-time parameter: {type(value).__name__} cannot be one, pass a tuple"
        ) from None
    return Static.of(value)


def fit_signature(signature: Signature, found: Sequence[Type]) -> tuple[Type, ...] | None:
    """The declared types, if arguments of the found types can be passed for them."""
    if len(signature.arguments) != len(found):
        return None
    out: list[Type] = []
    for declared, have in zip(signature.arguments, found, strict=True):
        if isinstance(declared, ArrayType):
            if not isinstance(have, ArrayType) or (declared.dtype, declared.ndim) != (
                have.dtype,
                have.ndim,
            ):
                return None
            if declared.layout == "C" and have.layout != "C":
                return None
            out.append(have)
        elif isinstance(declared, DType):
            if not isinstance(have, DType):
                return None
            if have.kind != declared.kind and (have.is_inexact and not declared.is_inexact):
                return None
            out.append(declared)
        else:
            if declared != have:
                return None
            out.append(have)
    return tuple(out)


def parameter_names(function: types.FunctionType) -> list[str]:
    """The names of a kernel's parameters; the frontend refuses `*args` and `**kwargs` by place."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _constexpr_positions(function: types.FunctionType) -> frozenset[int]:
    out = []
    for k, p in enumerate(inspect.signature(function).parameters.values()):
        a = p.annotation
        if a is language.constexpr or (isinstance(a, str) and a.split(".")[-1] == "constexpr"):
            out.append(k)
    return frozenset(out)


# ---- launch configurations ----


def as_dimensions(value: Any, what: str, name: str) -> tuple[int, int, int]:
    """A grid or block as three integers of at least 1."""
    items = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not 1 <= len(items) <= 3:
        raise LaunchValueError(f"`{name}`: the {what} has 1 to 3 dimensions, not {len(items)}")
    out = []
    for item in items:
        if isinstance(item, (bool, np.bool_)) or not isinstance(item, (int, np.integer)):
            hint = "; use `//`, or math.ceil" if isinstance(item, (float, np.floating)) else ""
            raise LaunchTypeError(
                f"`{name}`: the {what} is made of integers, not {type(item).__name__} ({item!r}){hint}"
            )
        out.append(int(item))
    if any(i < 1 for i in out):
        raise LaunchValueError(
            f"`{name}`: the {what} is {tuple(out)}; each dimension must be at least 1"
        )
    return (*out, *(1,) * (3 - len(out)))  # type: ignore[return-value]


@functools.lru_cache(maxsize=4096)
def _parse_cached(name: str, grid: Any, block: Any, stream: Any, shared_bytes: Any) -> Launch:
    from ruda.backends.base import Launch

    blocks = as_dimensions(grid, "grid", name)
    threads = as_dimensions(block, "block", name)
    if np.prod([int(n) for n in threads], dtype=object) > MAX_THREADS:
        raise LaunchValueError(
            f"`{name}`: the block {threads} has {np.prod(threads, dtype=object)} threads; "
            f"at most {MAX_THREADS} are possible"
        )
    if max(blocks) > MAX_GRID:
        raise LaunchValueError(
            f"`{name}`: the grid {blocks} is larger than {MAX_GRID} blocks an axis"
        )
    if isinstance(shared_bytes, bool) or not isinstance(shared_bytes, (int, np.integer)):
        raise LaunchTypeError(f"`{name}`: dynamic shared memory is a number of bytes")
    if shared_bytes < 0:
        raise LaunchValueError(f"`{name}`: dynamic shared memory cannot be {shared_bytes} bytes")
    return Launch(blocks, threads, int(shared_bytes), stream)


def parse_configuration(name: str, configuration: Any) -> Launch:
    """`grid, block[, stream[, shared bytes]]` as numba-cuda takes them."""
    if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
        raise LaunchValueError(
            f"`{name}` is launched as {name}[grid, block], with a stream and bytes of dynamic "
            "shared memory after them if wanted"
        )
    grid, block, *rest = configuration
    grid = tuple(grid) if isinstance(grid, list) else grid
    block = tuple(block) if isinstance(block, list) else block
    stream = rest[0] if rest else None
    if isinstance(stream, int) and stream == 0:
        stream = None
    try:
        return _parse_cached(name, grid, block, stream, rest[1] if len(rest) > 1 else 0)
    except TypeError as error:
        if isinstance(error, LaunchTypeError):
            raise
        raise LaunchTypeError(
            f"`{name}`: {configuration!r} is not a launch configuration"
        ) from None


# ---- the decorator ----


def jit(
    function_or_signature: Any = None,
    signatures: Any = None,
    *,
    device: bool = False,
    fastmath: bool | None = None,
    contract: bool | None = None,
    wraparound: bool = True,
    check: bool | None = None,
    debug: bool = False,
    inline: Any = None,
    opt: bool = True,
    lineinfo: bool = False,
    cache: bool = True,
    max_registers: int | None = None,
    link: Any = (),
) -> Any:
    """Compile a Python function for a grid of threads.

    `@ruda.jit`, `@ruda.jit(device=True)`, `@ruda.jit("void(f32[:], f32)")` and lists of signatures work
    as in numba-cuda. `fastmath` allows approximate functions; `contract=False` forbids fused
    multiply-add; `wraparound=False` promises that no index is negative; `check=True` (or `debug=True`)
    checks bounds and integer division.

    >>> import numpy as np, ruda
    >>> @ruda.jit
    ... def saxpy(a, x, y, out):
    ...     i = ruda.grid(1)
    ...     if i < out.size:
    ...         out[i] = a * x[i] + y[i]
    >>> x, out = np.arange(4, dtype=np.float32), np.empty(4, np.float32)
    >>> saxpy[1, 32](2.0, x, x, out); out
    array([0., 3., 6., 9.], dtype=float32)
    """
    if link:
        raise NotImplementedError(
            "`link` is not in ruda: write the function in Python with @ruda.jit"
        )
    options = KernelOptions(device, fastmath, contract, wraparound, check, debug)
    if isinstance(function_or_signature, types.FunctionType):
        return Kernel(function_or_signature, options)
    if isinstance(function_or_signature, Kernel):
        raise TypeError(f"`{function_or_signature.__name__}` is a ruda kernel already")
    if function_or_signature is not None and not _is_signature(function_or_signature):
        raise TypeError(
            f"@ruda.jit decorates a function, not {type(function_or_signature).__name__}"
        )
    given = function_or_signature if function_or_signature is not None else signatures
    declared: list[Signature] = []
    if given is not None:
        several = isinstance(given, list) or (
            isinstance(given, tuple) and given and isinstance(given[0], (str, Signature))
            and "(" in str(given[0])
        )  # fmt: skip
        declared = [parse_signature(s) for s in (given if several else [given])]

    def decorate(function: Any) -> Any:
        kernel: Kernel[Any] = Kernel(function, options, declared)
        if not device:
            for signature in declared:
                kernel._check_signature(signature.arguments)
                kernel.translate(signature.arguments, block=(256, 1, 1))
        return kernel

    return decorate


def _is_signature(value: Any) -> bool:
    return isinstance(value, (str, Signature, tuple, list)) or hasattr(value, "return_type")
