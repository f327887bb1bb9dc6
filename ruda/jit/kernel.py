"""The object that `@ruda.jit` makes: it specialises, compiles, caches and launches.

A launch `k[grid, block](*args)` looks up a ready launcher by its configuration; the launcher checks
that the arguments have the types it was made for, else the general path specialises anew. What a
specialisation depends on is its key: argument types, captured values, device, options.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import math
import pickle
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, overload

import numpy as np

from ruda import backends
from ruda.backends.base import (
    Binary,
    DeviceArray,
    Launch,
    Stream,
    missing_attribute,
    observers,
)
from ruda.dtypes import DType
from ruda.errors import (
    NOWHERE,
    KernelError,
    LaunchTypeError,
    LaunchValueError,
    OutOfMemoryError,
    UnsupportedError,
    VerifyError,
    shown,
)
from ruda.jit import graphs, language, sources
from ruda.jit.types import (
    ArrayType,
    RecordType,
    Signature,
    Static,
    TupleType,
    Type,
    constant_kind,
    parse_signature,
    type_of,
    untitled,
)
from ruda.locks import fork_safe_lock
from ruda.settings import settings

if TYPE_CHECKING:
    from ruda.backends.base import Source
    from ruda.jit.frontend import Translation
    from ruda.jit.ir import Function
    from ruda.jit.missing import OnHost

P = ParamSpec("P")
MAX_GRID = 2**31 - 1
MAX_THREADS = 1024
PLAIN = frozenset({np.ndarray, int, float, bool, complex})  # arguments that need no look inside
TASKS_BLOCK = 256  # threads of a block of `forall`, where no device chooses
MAX_CONFIGURATIONS = 1024  # launch shapes of a kernel that are kept ready
MAX_VARIANTS = 16  # specialisations for other captured values that are kept


@dataclass(frozen=True)
class KernelOptions:
    """What the decorator was told."""

    device: bool = False
    fastmath: bool | None = None
    contract: bool | None = None
    wraparound: bool = True
    check: bool | None = None
    debug: bool = False
    cache: bool = True
    differentiable: bool = False
    max_registers: int | None = None


@dataclass(frozen=True, slots=True)
class Capture:
    """A global or closure value that a kernel used, and where it can be looked at again."""

    holder: Any  # a module's dictionary, or a closure's cell
    key: str
    value: Any
    content: Any  # of the value: equal for values that give the same kernel

    @property
    def is_immutable(self) -> bool:
        """Whether the very same object is always the same value: not of arrays."""
        return not _has_array(self.value)

    def current(self) -> Any:
        """The value now; None where it was deleted."""
        if isinstance(self.holder, dict):
            return self.holder.get(self.key)
        try:
            return self.holder.cell_contents
        except ValueError:
            return None

    def unchanged(self, now: Any) -> bool:
        if now is self.value and self.is_immutable:
            return True
        return bool(content(now) == self.content)

    @property
    def guard(self) -> tuple[Any, Any, Any]:
        """What a launcher compares: (dictionary, name, value) or (cell, None, value)."""
        return self.holder, self.key if isinstance(self.holder, dict) else None, self.value


class _Same:
    """Equal only to itself wrapped again. It keeps the object, so that no other gets its
    address."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    __hash__ = None  # type: ignore[assignment]


def content(value: Any) -> Any:
    """What a captured value contributes to a kernel, to be compared with `==`.

    >>> content(1) == content(1.0), content((1, 0.0)) == content((1, -0.0))
    (False, False)
    """
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tobytes(), value.shape, value.dtype
    if isinstance(value, tuple):
        return type(value), tuple(content(v) for v in value)
    if isinstance(value, (bool, int, float, complex, str)):
        return type(value), repr(value)
    return _Same(value)


def captured_numbers(captures: Sequence[Capture], function: types.FunctionType) -> str:
    """The numbers among captured values, by their names in the kernel: `RADIUS=3, factor=0.5`."""
    cells = dict(
        zip(map(id, function.__closure__ or ()), function.__code__.co_freevars, strict=True)
    )
    found = {
        f"{c.key if isinstance(c.holder, dict) else cells.get(id(c.holder), '?')}={c.value!r}"
        for c in captures
        if isinstance(c.value, (bool, int, float, complex, np.generic)) and c.is_immutable
    }
    return ", ".join(sorted(found))


def _has_array(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(_has_array(v) for v in value)
    return isinstance(value, np.ndarray)


def captures_of(translation: Translation) -> tuple[Capture, ...]:
    """What a translation depends on besides the function and its types."""
    return tuple(
        Capture(holder, key, value, content(value))
        for holder, key, value in translation.captures.values()
        if not _is_language(value)
    )


def _is_language(value: Any) -> bool:
    """Modules and names of the language: captured by most kernels, and never another thing."""
    return isinstance(value, (types.ModuleType, language.Namespace)) or hasattr(
        value, "__ruda_name__"
    )


@dataclass(eq=False)
class Specialisation:
    """A kernel for given types, on a device: IR always, the rest as far as it was needed."""

    types: tuple[Type, ...]
    device: str
    function: Function
    captures: tuple[Capture, ...] = ()
    source: Source | None = None
    binary: Binary | None = None
    module: Any = None
    on_host: OnHost | None = None  # instead of a module: the device cannot run it

    def fits(self, block: tuple[int, int, int] | None) -> bool:
        """Whether it is right for a block, and for what the captured variables hold now."""
        if self.function.block is not None and self.function.block != block:
            return False
        now = [c.current() for c in self.captures]
        if not all(c.unchanged(v) for c, v in zip(self.captures, now, strict=True)):
            return False
        if any(c.value is not v for c, v in zip(self.captures, now, strict=True)):
            # Equal, but other objects: launchers compare objects.
            self.captures = tuple(
                replace(c, value=v) for c, v in zip(self.captures, now, strict=True)
            )
        return True

    def same(self) -> bool:
        """Whether the captured variables hold the very objects that they held."""
        return not self.captures or all(
            c.current() is c.value and c.is_immutable for c in self.captures
        )

    def launcher(
        self, launch: Launch, fallback: Callable[..., Any], guards: Sequence[tuple[Any, Any, Any]]
    ) -> Callable[..., Any]:
        """A callable for the arguments; the guards are for backends whose launchers check."""
        backend: Any = backends.get(self.device)
        if self.on_host is not None:
            return self.on_host.launcher(launch)
        if getattr(backend, "launcher_checks", False):
            return backend.launcher(self.module, launch, fallback, guards=guards)  # type: ignore[no-any-return]
        return backend.launcher(self.module, launch, fallback)  # type: ignore[no-any-return]

    def guards(self) -> tuple[tuple[Any, Any, Any], ...] | None:
        """What a launcher must compare before it runs; None if that is more than objects."""
        if all(c.is_immutable for c in self.captures):
            return tuple(c.guard for c in self.captures)
        return None


class Kernel(Generic[P]):
    """A compiled function over a grid: `kernel[blocks, threads](*arguments)`."""

    __name__: str
    __qualname__: str
    __module__: str
    signatures: tuple[Signature, ...]

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
        self.signature = inspect.signature(function)
        self.parameters = tuple(
            p.name
            for p in self.signature.parameters.values()
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)  # refused by the frontend, by place
        )
        self.constexprs = _constexpr_positions(self.signature)
        self._lock = fork_safe_lock()
        # By types, device and settings; the newest of those that differ in captured values first.
        self._specialisations: dict[Any, tuple[Specialisation, ...]] = {}
        # Launchers that are ready, by configuration, and the settings that they were made under.
        self._current: tuple[Any, dict[Any, Callable[..., None]]] = (None, {})
        self._configured: dict[Any, Configured] = {}
        sources.remember(function)

    # -- launching --

    def __getitem__(self, configuration: Any) -> Callable[P, None]:
        state, ready = self._current
        if state is (settings.local.get() or settings.base):
            try:
                return ready[configuration]
            except (KeyError, TypeError):
                pass
        return self._configure(configuration)

    def _configure(
        self, configuration: Any, name: Any = None, tasks: int | None = None
    ) -> Callable[P, None]:
        """Make the object for a configuration, and keep it under its name: the configuration."""
        if self.options.device:
            raise LaunchTypeError(
                f"`{self.__name__}` is a device function: it is called from a kernel, not launched"
            )
        launch = parse_configuration(self.__name__, configuration)
        if name is None:
            name = configuration
        configured = self._configured.get((launch, tasks))
        if configured is None:
            if len(self._configured) >= MAX_CONFIGURATIONS:
                self._configured.clear()
                self._current = (None, {})
            made = Configured(self, launch, tasks)
            configured = self._configured.setdefault((launch, tasks), made)
        state = settings.state()
        if self._current[0] is not state:
            self._current = (state, {})
        with contextlib.suppress(TypeError):  # lists are welcome, but not hashable
            self._current[1].setdefault(name, configured)
            configured.names.add(name)
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
        """A launch of at least `ntasks` threads in one dimension, `tpb` a block.

        Without `tpb` a device may choose: a GPU by the registers and the shared memory that the
        kernel turns out to need, others take 256.

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
        if isinstance(ntasks, (bool, np.bool_)) or not isinstance(ntasks, (int, np.integer)):
            raise LaunchTypeError(
                f"`forall` needs a number of tasks, not {type(ntasks).__name__} ({ntasks!r})"
            )
        if ntasks < 0:
            raise LaunchValueError(
                f"`forall` needs a number of tasks of at least 0, not {shown(ntasks)}"
            )
        if tpb:
            (block, _, _) = as_dimensions(tpb, "block", self.__name__)
            return self[blocks_for(int(ntasks), block), block, stream, sharedmem]
        blocks = blocks_for(int(ntasks), TASKS_BLOCK)
        name = "forall", blocks, stream, sharedmem
        state, ready = self._current
        if state is (settings.local.get() or settings.base):
            with contextlib.suppress(KeyError, TypeError):
                return ready[name]
        # Rounded up, so that like numbers of tasks share what is made for a launch.
        return self._configure(
            (blocks, TASKS_BLOCK, stream, sharedmem), name, tasks=blocks * TASKS_BLOCK
        )

    # -- specialising --

    def translate(
        self,
        argument_types: Sequence[Type],
        *,
        block: tuple[int, int, int] | None = None,
        needs_block: Callable[[Function], bool] = lambda f: False,
    ) -> tuple[Function, tuple[Capture, ...]]:
        """The IR for given types, with the block's size in it only if needed; what it captured."""
        from ruda.jit import frontend

        options = frontend.Options(
            None, **self._translation_options(), unroll_limit=settings.unroll_limit
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
        return translation.function, captures_of(translation)

    def _translation_options(self) -> dict[str, Any]:
        """The decorator's options, else the settings'."""
        o = self.options
        return {
            "fastmath": settings.fastmath if o.fastmath is None else o.fastmath,
            "contract": (not settings.deterministic) if o.contract is None else o.contract,
            "wraparound": o.wraparound,
            "check": bool(o.debug or (settings.check if o.check is None else o.check)),
            "max_registers": o.max_registers,
        }

    def specialise(
        self, argument_types: tuple[Type, ...], device: str, block: tuple[int, int, int] | None
    ) -> Specialisation:
        """Translate, emit, compile and load; each step once, under a lock."""
        from ruda.jit import verify

        backend: Any = backends.get(device)
        key = argument_types, device, _flags()
        for found in self._specialisations.get(key, ()):
            if found.fits(block):
                return found
        with self._lock:
            for found in self._specialisations.get(key, ()):
                if found.fits(block):
                    return found
            self._check_signature(argument_types)
            needs_block = getattr(backend, "needs_block", lambda f: False)
            function, captures = self.translate(
                argument_types, block=block, needs_block=needs_block
            )
            if settings.debug >= 1 or settings.verify:
                with self._our_errors(function):
                    verify.verify(function)
            start = time.perf_counter()
            target = backend.target(device)
            made = Specialisation(argument_types, device, function, captures)
            try:
                with self._our_errors(function):
                    made.binary = self._cached(made, backend, target)
                    made.module = backend.load(made.binary, function, device)
            except UnsupportedError as error:
                made.on_host = self._on_host(argument_types, device, block, function, error)
            for observer in tuple(observers):
                observer.add("compile", self.__name__, device, start, time.perf_counter() - start)
            if settings.debug:
                self._show(made, backend, target, time.perf_counter() - start)
            known = self._specialisations.get(key, ())
            self._specialisations[key] = (made, *known)[:MAX_VARIANTS]
            return made

    def _on_host(
        self,
        argument_types: tuple[Type, ...],
        device: str,
        block: tuple[int, int, int] | None,
        function: Function,
        error: UnsupportedError,
    ) -> OnHost:
        """A stand-in for a kernel that the device cannot run, if the policy is to use the CPU."""
        from ruda.jit import missing

        missing.name_policy(error, device, function)
        if not missing.moves(device):
            raise error
        return missing.OnHost(self.specialise(argument_types, "cpu", block), device, error)

    @contextlib.contextmanager
    def _our_errors(self, function: Function) -> Iterator[None]:
        """What Python or a compiler says of emitted code becomes an error about the kernel."""
        try:
            yield
        except KernelError:
            raise
        except MemoryError:
            raise OutOfMemoryError(
                f"the host's memory does not suffice to compile `{self.__name__}`"
            ) from None
        except (RecursionError, SyntaxError):
            from ruda.jit.frontend.translator import too_deep

            raise too_deep(self.__name__, function.place) from None
        except Exception as error:
            if not type(error).__module__.startswith(("numba.", "llvmlite.")):
                raise
            raise VerifyError(
                f"`{self.__name__}` became code that the compiler refuses; "
                f"please report it: {type(error).__name__}: {error}"
            ) from error

    def _show(self, made: Specialisation, backend: Any, target: Any, seconds: float) -> None:
        """What RUDA_DEBUG wants to see of a new specialisation."""
        from ruda.jit import trace

        origin = "from the disk cache" if made.source is None else "compiled"
        shown = ", ".join(map(str, made.types))
        trace.show(
            1,
            f"{self.__name__}({shown}) for {made.device}: verified, {origin}, "
            f"{1e3 * seconds:.1f} ms",
        )
        if settings.debug >= 4:
            source = made.source or backend.emit(made.function, target)
            trace.show(4, f"source of {self.__name__} for {made.device}", source.text)
            if settings.debug >= 6 and hasattr(backend, "assembly"):
                assembly = backend.assembly(source, target)
                trace.show(6, f"assembly of {self.__name__} for {made.device}", assembly)

    def _cached(self, made: Specialisation, backend: Any, target: Any) -> Binary:
        """The binary from the disk cache, else compiled and stored."""
        if not getattr(backend, "cacheable", False):
            made.source = backend.emit(made.function, target)
            return backend.compile(made.source, target)  # type: ignore[no-any-return]
        from ruda.jit import cache

        parts = self._key_parts(made, target)
        key = cache.key_of(parts)
        keep = self.options.cache
        entry = cache.lookup(key, parts=parts, resolves=backend.resolves) if keep else None
        if entry is not None:
            return Binary(entry.payload, entry.metadata["binary"], entry.symbols, kept=True)
        made.source = backend.emit(made.function, target)
        binary: Binary = backend.compile(made.source, target)
        if keep:
            metadata = {"binary": binary.metadata}
            cache.store(key, cache.Entry(binary.payload, metadata, binary.symbols), parts=parts)
        return replace(binary, kept=keep)

    def _key_parts(self, made: Specialisation, target: Any) -> dict[str, str | bytes]:
        """Everything that decides the code; `cache.why` calls the parts by their names."""
        from ruda.jit import cache, ir

        function = made.function
        parts: dict[str, str | bytes] = dict(cache.environment_parts(made.device))
        parts["name"] = cache.name_of(self)
        parts["types"] = ", ".join(map(str, made.types))
        # What follows is in the IR already; of itself it makes the difference readable.
        parts["options"] = ", ".join(f"{k}={v}" for k, v in self._translation_options().items())
        if made.captures:  # kernels that are made from no function have none
            parts["captured"] = captured_numbers(made.captures, self.py_func)
        # A kernel that only moved in its file is the same: statements do not print their places.
        parts["ir"] = repr(replace(function, place=NOWHERE))
        parts["data"] = b"".join(a.data or b"" for a in function.arrays)
        parts["properties"] = repr(sorted(target.items()))
        if function.check or any(
            isinstance(s, (ir.Print, ir.Assert)) for s in ir.statements(function.body)
        ):
            # Also of expressions: each load that is checked has a place of its own.
            nodes = (*ir.statements(function.body), *ir.all_expressions(function.body))
            parts["places"] = repr([node.place for node in nodes])
        return parts

    def _check_signature(self, argument_types: tuple[Type, ...]) -> None:
        if len(argument_types) != len(self.parameters):
            raise self._wrong_count(len(argument_types))

    def _wrong_count(self, count: int) -> LaunchTypeError:
        names = ", ".join(self.parameters)
        error = LaunchTypeError(
            f"`{self.__name__}` takes {len(self.parameters)} arguments ({names}), not {count}"
        )
        if self.parameters[:1] == ("self",):
            error.add_note("hint: a kernel in a class gets no instance: leave `self` out")
        return error

    def bind(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """The arguments in the order of the parameters, with defaults filled in."""
        if not named and len(arguments) == len(self.parameters):
            return arguments
        try:
            bound = self.signature.bind(*arguments, **named)
        except TypeError as error:
            if not named:
                raise self._wrong_count(len(arguments)) from None
            raise LaunchTypeError(f"`{self.__name__}`: {error}") from None
        bound.apply_defaults()
        return tuple(bound.arguments[name] for name in self.parameters)

    def argument_types(self, arguments: Sequence[Any]) -> tuple[Type, ...]:
        """The types of launch arguments; a signature, if any, decides about scalars."""
        found = [
            constexpr_type(v, n) if k in self.constexprs else type_of(v, f"`{n}`")
            for k, (v, n) in enumerate(zip(arguments, self.parameters, strict=True))
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

    def source(
        self,
        target: str,
        *types: Any,
        block: Any = None,
        constexpr: dict[str, Any] | None = None,
        shared: int = 0,
        strided: bool = False,
    ) -> str:
        """The text for a target, made on any machine; its first line says what it was made for.

        `types` are ruda's, NumPy's or numba's dtypes, strings such as "f32[:, :]" and "int", or the
        arguments of a launch. The text is that for contiguous arrays, or with `strided=True` for
        any; the block is 256 unless given. `constexpr` gives the compile-time parameters by name.
        """
        from ruda.jit import tools

        options = {"block": block, "constexpr": constexpr, "shared": shared, "strided": strided}
        return tools.source(self, target, types, **options)

    def ir(
        self,
        *types: Any,
        block: Any = None,
        constexpr: dict[str, Any] | None = None,
        shared: int = 0,
        strided: bool = False,
    ) -> str:
        """The typed intermediate representation, as text that reads like Python; see `source`."""
        from ruda.jit import tools

        options = {"block": block, "constexpr": constexpr, "shared": shared, "strided": strided}
        return tools.ir_text(self, types, **options)

    def assembly(
        self,
        target: str,
        *types: Any,
        block: Any = None,
        constexpr: dict[str, Any] | None = None,
        shared: int = 0,
        strided: bool = False,
    ) -> str:
        """The machine code for a target, as text; see `source`."""
        from ruda.jit import tools

        options = {"block": block, "constexpr": constexpr, "shared": shared, "strided": strided}
        return tools.assembly(self, target, types, **options)

    def __repr__(self) -> str:
        kind = "device function" if self.options.device else "kernel"
        return f"<ruda {kind} {self.__qualname__}{self.signature}>"

    if not TYPE_CHECKING:  # a type checker should take a wrong name for wrong

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, "CUDADispatcher", name)

    def __get__(self, instance: Any, owner: Any = None) -> Kernel[P]:
        """A kernel in a class is what a static method is."""
        return self

    def __copy__(self) -> Kernel[P]:
        return self

    def __deepcopy__(self, memo: Any) -> Kernel[P]:
        return self

    def __reduce__(self) -> Any:
        """Kernels travel by name, as functions do."""
        found = _find_kernel(self.__module__, self.__qualname__)
        if found is self:
            return _find_kernel, (self.__module__, self.__qualname__)
        if found is self.py_func:  # `kernel = ruda.jit(function)` beside its function
            return Kernel, (self.py_func, self.options, self.signatures)
        raise pickle.PicklingError(
            f"cannot pickle kernel `{self.__qualname__}`: it is not found as "
            f"{self.__module__}.{self.__qualname__}; define it at the top of a module"
        )


def _find_kernel(module: str, qualname: str) -> Any:
    """The object of that name; None if there is none."""
    import importlib

    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


@dataclass(frozen=True, slots=True)
class Ready:
    """What a launch with arguments of known kinds needs."""

    types: tuple[Type, ...]
    made: Specialisation
    captures: tuple[Capture, ...]  # those that the launcher was made under
    launcher: Callable[..., None]
    simple: bool  # arguments go to the launcher as they are, device arrays as the host's


class Configured:
    """A kernel with a launch shape: call it with the kernel's arguments.

    With `tasks`, the threads of a launch by `forall`, a device may choose the block.
    """

    def __init__(self, kernel: Kernel[Any], launch: Launch, tasks: int | None = None) -> None:
        self.kernel, self.launch, self.tasks = kernel, launch, tasks
        self.names: set[Any] = set()  # the configurations that lead here
        # By the kinds of arguments, for the state of the settings that stands first.
        self._ready: tuple[Any, dict[Any, Ready]] = (None, {})
        # The launcher that checks by itself whether it fits, and the settings it was made under.
        self._direct: tuple[Any, Callable[..., None]] = (None, self.general)
        self._fallback = self.general  # one object: launchers compare it

    def __call__(self, *arguments: Any, **named: Any) -> None:
        state, launcher = self._direct
        if not named and state is (settings.local.get() or settings.base):
            launcher(*arguments)
            return
        try:
            self.general(*arguments, **named)
        except KernelError as error:
            raise user_error(error) from None

    def general(self, *arguments: Any, **named: Any) -> None:
        """A launch that finds out what its arguments are."""
        kernel = self.kernel
        arguments = kernel.bind(arguments, named)
        if kernel.options.differentiable:
            for a in arguments:
                if hasattr(a, "__ruda_launch__"):  # a tensor, which keeps what gradients need
                    a.__ruda_launch__(kernel, self.launch, arguments)
                    return
        values = [
            a if type(a) in PLAIN or type(a) is DeviceArray else _argument(a, self.launch.stream)
            for a in arguments
        ]
        kinds = argument_kinds(values, kernel.constexprs)
        state, known = self._ready
        ready = known.get(kinds) if state == _state() else None
        if ready is None or ready.captures is not ready.made.captures or not ready.made.same():
            try:
                ready = self._prepare(values, kinds)
            except KernelError as error:
                raise user_error(error) from None
        graph = graphs.recording.get()
        if graph is not None:
            given = flatten_arguments(values, ready.types)
            device = ready.made.device
            graph.add(graphs.Recorded(self, tuple(arguments), ready.made.module, given, device))
            return
        if ready.simple:
            values = [v._shadow if type(v) is DeviceArray else v for v in values]
            ready.launcher(*values)
        else:
            ready.launcher(*flatten_arguments(values, ready.types))

    def _prepare(self, values: Sequence[Any], kinds: Any) -> Ready:
        """Specialise, and make a launcher; where it can, it serves the next launches by itself."""
        kernel, launch, state = self.kernel, self.launch, _state()
        argument_types = kernel.argument_types(values)
        device = launch_device(values, launch.stream, kernel.__name__)
        made = kernel.specialise(argument_types, device, launch.block)
        backend: Any = backends.get(device)
        if self.tasks is not None and made.function.block is None and made.on_host is None:
            choose = getattr(backend, "block_for", lambda module, launch, tasks: TASKS_BLOCK)
            block = choose(made.module, launch, self.tasks)
            grid = (blocks_for(self.tasks, block), 1, 1)
            launch = replace(launch, grid=grid, block=(block, 1, 1))
        captures, guards = made.captures, made.guards()
        checks = getattr(backend, "launcher_checks", False)
        watched = (*(guards or ()), (settings.changes, "last", state[1]))
        launcher = made.launcher(launch, self._fallback, watched)
        if settings.debug >= 2:
            from ruda.jit import trace

            launcher = trace.timed(launcher, kernel.__name__, device, launch)
        if observers:
            from ruda.jit import trace

            launcher = trace.recorded(launcher, kernel.__name__, device, launch)
        numbers = all(
            isinstance(t, ArrayType) or (isinstance(t, DType) and (t.weak or t.kind == "bool"))
            for t in argument_types
        )
        simple = numbers and all(type(v) in PLAIN or _on_host(v) for v in values)
        simple = simple and not any(_is_titled(v) for v in values)
        ready = Ready(argument_types, made, captures, launcher, simple)
        if kinds is not None:
            if self._ready[0] != state or len(self._ready[1]) >= MAX_CONFIGURATIONS:
                self._ready = (state, {})
            self._ready[1][kinds] = ready
        current = kernel._current
        direct = checks and guards is not None and getattr(launcher, "is_native", True)
        direct = direct and graphs.recording.get() is None  # launches that are recorded do not run
        direct = direct and not kernel.options.differentiable  # tensors are looked for first
        if direct and current[0] is settings.state() and not any(_on_host(v) for v in values):
            if not any(isinstance(t, (TupleType, Static, RecordType)) for t in argument_types):
                self._direct = current[0], launcher
                for name in tuple(self.names):
                    current[1][name] = launcher
        return ready

    def __repr__(self) -> str:
        return f"<{self.kernel.__name__}{[self.launch.grid, self.launch.block]}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, "CUDADispatcher[]", name)


def _state() -> tuple[int, object]:
    """The settings of this context, and the last change of any: launchers are made for both."""
    return id(settings.state()), settings.changes["last"]


def _argument(value: Any, stream: Any) -> Any:
    """An argument of another kind: a hint, another library's array, or as it is."""
    if isinstance(value, (np.ndarray, np.generic, tuple, str, int, float, types.NoneType)):
        return value
    given = getattr(value, "__ruda_argument__", None)
    if given is not None:
        return given
    from ruda.backends import interop

    found = interop.foreign(value, stream)
    return value if found is None else found


def _on_host(value: Any) -> bool:
    return type(value) is DeviceArray and value.storage.on_host


def argument_kinds(values: Sequence[Any], constexprs: frozenset[int]) -> Any:
    """What the types of arguments depend on, quick to compare; None if it is not that simple."""
    kinds: list[Any] = []
    for k, value in enumerate(values):
        kind = type(value)
        if kind is np.ndarray:
            kinds.append((value.dtype, value.ndim, value.flags.num))
        elif k in constexprs:
            known = constant_kind(value)
            if known is None:
                return None
            kinds.append(known)
        elif kind in PLAIN or value is None or issubclass(kind, (np.number, np.bool_)):
            kinds.append(kind)
        elif kind is DeviceArray:
            shadow = value._shadow
            kinds.append((value.device, shadow.dtype, shadow.ndim, shadow.flags.num))
        elif kind is tuple:
            items = argument_kinds(value, frozenset())
            if items is None:
                return None
            kinds.append(items)
        else:
            return None
    return tuple(kinds)


def user_error(error: KernelError) -> KernelError:
    """The error without the frames of the compiler, which say nothing to a user."""
    return error if settings.debug else error.with_traceback(None)


def flatten_arguments(values: Sequence[Any], types: Sequence[Type]) -> list[Any]:
    """Tuples replaced by their items, compile-time values dropped, records as one-element
    arrays."""
    import enum

    out: list[Any] = []
    for value, kind in zip(values, types, strict=True):
        match kind:
            case Static():
                pass
            case TupleType(items=items):
                out += flatten_arguments(value, items)
            case RecordType():
                out.append(_without_titles(np.asarray(value).reshape(1)))
            case DType() if isinstance(value, enum.Enum):
                out.append(value.value)
            case DType() if not kind.weak and getattr(value, "dtype", None) != kind.numpy:
                out.append(fitted_scalar(value, kind))
            case ArrayType() if type(value) is DeviceArray:
                out.append(_without_titles(value._shadow) if value.storage.on_host else value)
            case ArrayType() if isinstance(value, np.ndarray):
                # A subclass may read elements in a way of its own: memmap, matrix.
                plain = value if type(value) is np.ndarray else value.view(np.ndarray)
                out.append(_without_titles(plain))
            case _:
                out.append(getattr(value, "__ruda_host__", value))
    return out


def _is_titled(value: Any) -> bool:
    """Whether an array has records whose fields have titles."""
    dtype = getattr(value, "dtype", None)
    return isinstance(dtype, np.dtype) and dtype.names is not None and untitled(dtype) is not dtype


def _without_titles(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.view(untitled(array.dtype)) if _is_titled(array) else array


def fitted_scalar(value: Any, dtype: DType) -> Any:
    """A number of another type for a parameter whose dtype a signature declared."""
    if dtype.is_integer and isinstance(value, (int, np.integer)):
        low, high = dtype.range
        if not low <= value <= high:
            raise OverflowError(f"{value} does not fit {dtype}")
    return dtype(value)


def launch_device(values: Sequence[Any], stream: Any, name: str) -> str:
    """Where a launch runs: where its arrays live, else the current device."""
    here = backends.current()
    places = {v.__ruda_device__ for v in values if hasattr(v, "__ruda_device__")}
    if here == "sim":
        places = {"sim" if p == "cpu" else p for p in places}  # they share the host's memory
    if len(places) > 1:
        raise LaunchTypeError(
            f"`{name}`: the arrays are on several devices ({', '.join(sorted(places))}); "
            "move them to one"
        )
    device: str = next(iter(places), here)
    if device == here and ":" not in device:  # "cuda" is the device that arrays call "cuda:0"
        found = backends.full_name(device)
        device = found if found.startswith(f"{device}:") else device
    if stream is not None and stream.device != device and {stream.device, device} != {"cpu", "sim"}:
        raise LaunchTypeError(
            f"`{name}`: the launch is on {device}, but its stream belongs to {stream.device}"
        )
    return device


def constexpr_type(value: Any, name: str) -> Static:
    try:
        hash(value)
    except TypeError:
        raise LaunchTypeError(
            f"`{name}` is a compile-time parameter: {type(value).__name__} cannot be one, "
            "pass a tuple"
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


def _flags() -> tuple[Any, ...]:
    """The settings that a specialisation depends on."""
    s = settings
    return (
        s.fastmath, s.check, s.deterministic, s.default_float, s.unroll_limit, s.missing,
        s.wgpu_dialect,
    )  # fmt: skip


def _constexpr_positions(signature: inspect.Signature) -> frozenset[int]:
    out = []
    for k, p in enumerate(signature.parameters.values()):
        a = p.annotation
        if a is language.constexpr or (isinstance(a, str) and a.split(".")[-1] == "constexpr"):
            out.append(k)
    return frozenset(out)


def explain(
    kernel: Any,
    *types: Any,
    target: str = "cpu",
    block: Any = None,
    constexpr: dict[str, Any] | None = None,
    shared: int = 0,
    strided: bool = False,
) -> Any:
    """What became of a kernel: types of variables, costly operations, spills, vectorised loops.

    Of a tensor, or a function that `ruda.compile` made: its kernels, and the bytes that they move.

    The arguments are those of `Kernel.source`. Without types, those of an earlier launch are taken,
    or of the kernel's signature.

    >>> import ruda
    >>> @ruda.jit
    ... def scale(x, factor):
    ...     i = ruda.grid(1)
    ...     if i < x.size:
    ...         x[i] = x[i] * factor
    >>> ruda.explain(scale, "f32[:]", "f64")
    scale for cpu, types (float32[::1], float64), block 256 x 1 x 1, as for any block
    <BLANKLINE>
    variables
      x: float32[::1]
      factor: float64
      i: index
    <BLANKLINE>
    64-bit operations
      <doctest ...>:5  x[i] = x[i] * factor
          conversion from float64, float64 mul, conversion to float64
    ...
    """
    given = getattr(type(kernel), "__ruda_explain__", None)
    if given is not None:
        return given(kernel)
    from ruda.jit import tools

    options = {"block": block, "constexpr": constexpr, "shared": shared, "strided": strided}
    return tools.explanation(kernel, target, types, **options)


# ---- launch configurations ----


def blocks_for(tasks: int, block: int) -> int:
    """The blocks that have as many threads, one at least."""
    return max(1, -(-tasks // block))


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
                f"`{name}`: the {what} is made of integers, "
                f"not {type(item).__name__} ({item!r}){hint}"
            )
        out.append(int(item))
    if any(i < 1 for i in out):
        raise LaunchValueError(
            f"`{name}`: the {what} is {shown(tuple(out))}; each dimension must be at least 1"
        )
    return (*out, *(1,) * (3 - len(out)))  # type: ignore[return-value]


def _launch(name: str, grid: Any, block: Any, stream: Any, shared_bytes: Any) -> Launch:
    blocks = as_dimensions(grid, "grid", name)
    threads = as_dimensions(block, "block", name)
    if math.prod(threads) > MAX_THREADS:
        raise LaunchValueError(
            f"`{name}`: the block {shown(threads)} has {shown(math.prod(threads))} threads; "
            f"at most {MAX_THREADS} are possible"
        )
    if max(blocks) > MAX_GRID:
        raise LaunchValueError(
            f"`{name}`: the grid {shown(blocks)} is larger than {MAX_GRID} blocks an axis"
        )
    if isinstance(shared_bytes, bool) or not isinstance(shared_bytes, (int, np.integer)):
        raise LaunchTypeError(f"`{name}`: dynamic shared memory is a number of bytes")
    if shared_bytes < 0:
        raise LaunchValueError(
            f"`{name}`: dynamic shared memory cannot be {shown(shared_bytes)} bytes"
        )
    if stream is not None and not isinstance(stream, Stream):
        raise LaunchTypeError(
            f"`{name}`: a stream comes from ruda.stream(), not {type(stream).__name__}"
        )
    return Launch(blocks, threads, int(shared_bytes), stream)


def parse_configuration(name: str, configuration: Any) -> Launch:
    """`grid, block[, stream[, shared bytes]]` as numba-cuda takes them."""
    if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
        raise LaunchValueError(
            f"`{name}` is launched as {name}[grid, block], with a stream and bytes of dynamic "
            "shared memory after them if wanted"
        )
    grid, block, *rest = configuration
    stream = rest[0] if rest else None
    if isinstance(stream, int) and stream == 0:
        stream = None
    return _launch(name, grid, block, stream, rest[1] if len(rest) > 1 else 0)


# ---- the decorator ----


@overload
def jit(function: Callable[P, Any], /) -> Kernel[P]: ...


@overload
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
    forceinline: bool = False,
    opt: bool = True,
    lineinfo: bool = False,
    lto: bool | None = None,
    cache: bool = True,
    differentiable: bool = False,
    max_registers: int | None = None,
    launch_bounds: Any = None,
    shared_memory_carveout: Any = None,
    link: Any = (),
    extensions: Any = (),
) -> Callable[[Callable[P, Any]], Kernel[P]]: ...


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
    forceinline: bool = False,
    opt: bool = True,
    lineinfo: bool = False,
    lto: bool | None = None,
    cache: bool = True,
    differentiable: bool = False,
    max_registers: int | None = None,
    launch_bounds: Any = None,
    shared_memory_carveout: Any = None,
    link: Any = (),
    extensions: Any = (),
    **others: Any,
) -> Any:
    """Compile a Python function for a grid of threads.

    `@ruda.jit`, `@ruda.jit(device=True)`, `@ruda.jit("void(f32[:], f32)")` and lists of signatures
    work as in numba-cuda. `fastmath` allows approximate functions; `contract=False` forbids fused
    multiply-add; `wraparound=False` promises that no index is negative; `check=True` (or
    `debug=True`) checks bounds and integer division; `cache=False` keeps the kernel off the disk;
    `differentiable=True` lets launches on tensors take part in derivatives (see docs/language.md).
    `max_registers` bounds what a thread has on CUDA, so that more threads are there at once.
    The other options are numba-cuda's, see docs/numba-cuda.md.

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
    for name, value in others.items():
        _check_option(name, value)
    if link or extensions:
        raise NotImplementedError(
            f"`{'link' if link else 'extensions'}` is not in ruda: foreign code is not linked into "
            "kernels; write the function in Python with @ruda.jit"
        )
    options = KernelOptions(
        device, fastmath, contract, wraparound, check, debug, cache, differentiable, max_registers
    )
    function_or_signature = _plain(function_or_signature)
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
        kernel: Kernel[Any] = Kernel(_plain(function), options, declared)
        if not device:
            for signature in declared:
                if signature.result is not None:
                    arguments = ", ".join(map(str, signature.arguments))
                    raise LaunchTypeError(
                        f"`{kernel.__name__}` is declared to return {signature.result}, but a "
                        f"kernel returns nothing: write 'void({arguments})' and store the result "
                        "in an array argument, or for a device function `device=True`"
                    )
                kernel._check_signature(signature.arguments)
                try:
                    kernel.translate(signature.arguments, block=(256, 1, 1))
                except KernelError as error:
                    raise user_error(error) from None
        return kernel

    return decorate


def _plain(function: Any) -> Any:
    """The Python function of one that numba has compiled; anything else as it is."""
    numbas = type(function).__module__.startswith(("numba.", "numba_cuda."))
    return getattr(function, "py_func", function) if numbas else function


# Options of numba's other decorators, and what to do instead.
FOREIGN_OPTIONS = {
    "target": 'leave it out: a launch runs where its arrays are, or on ruda.config(device="cuda")',
    "parallel": "leave it out: a kernel is parallel over its grid",
    "forceobj": "leave it out: a kernel is always compiled",
    "looplift": "leave it out: a kernel is always compiled",
    "boundscheck": "write `check=True`",
    "error_model": "leave it out: division never raises; `check=True` reports division by zero",
    "locals": "convert where a variable is assigned: `total = ruda.float64(0)`",
    "signature": 'give it first: @ruda.jit("void(f32[:], f32)")',
    "argtypes": 'give a signature first: @ruda.jit("void(f32[:], f32)")',
    "restype": 'give a signature first: @ruda.jit("void(f32[:], f32)")',
    "bind": "leave it out: kernels are compiled when first launched",
    "abi": "leave it out: foreign code is not linked into kernels",
    "abi_info": "leave it out: foreign code is not linked into kernels",
    "device_id": "leave it out: a launch runs where its arrays are, or on ruda.config(device=...)",
}


def _check_option(name: str, value: Any) -> None:
    """An option that `jit` does not have: numba's, which says what kernels always are, or none."""
    if name in ("nopython", "nogil") and value:
        return  # always so
    hint = FOREIGN_OPTIONS.get(name, "a kernel is always compiled, and never holds the lock")
    if name not in FOREIGN_OPTIONS and name not in ("nopython", "nogil"):
        known = [p for p in inspect.signature(jit).parameters if p != "others"]
        close = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean `{close[0]}`?" if close else f"there are {', '.join(known[2:])}"
    raise LaunchTypeError(f"@ruda.jit has no option `{name}={value!r}`: {hint}")


def _is_signature(value: Any) -> bool:
    return isinstance(value, (str, Signature, tuple, list)) or hasattr(value, "return_type")
