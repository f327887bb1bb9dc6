"""`@ruda.compile`: a function of tensors -> its plan for each signature, replayed without Python.

The first call with a signature runs the function and keeps what it recorded: segments of ops, and
calls of library functions between them. Later calls run these on their own tensors. A signature is
the shapes, dtypes and devices of the tensors in the arguments, and the values of everything else.

What a replay could not repeat is refused while it is recorded: reading values, writing into
tensors, tensors that are no arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ruda import backends
from ruda.dtypes import as_dtype
from ruda.errors import CompileError
from ruda.locks import fork_safe_lock
from ruda.settings import config, settings
from ruda.tensor import execute, graph, memory, plan, program
from ruda.tensor.explanation import KernelNote, minimum, note
from ruda.tensor.graph import Node
from ruda.tensor.history import recording, refuse
from ruda.tensor.plan import Plan
from ruda.tensor.primitives import many, run
from ruda.tensor.tensor import (
    Tensor,
    asarray,
    copied,
    from_buffer,
    from_node,
    handle,
    stored,
)

SIGNATURES = 64  # of a function, whose plans are kept
GRAPH = 3  # kernels from which one call of a GPU's driver replays them all
FEW = 3  # copies that the driver makes sooner than one kernel
OFTEN = 8  # replays from which small work on the host has kernels, too
Place = int  # of a value, among those of a replay


# ---- arguments -----------------------------------------------------------------------------------


class Constant:
    """What is no tensor. Numbers are told by their bits: -0.0 is not 0.0, and NaN is NaN."""

    __slots__ = ("told", "value")

    def __init__(self, value: Any) -> None:
        exact = isinstance(value, float | complex | np.inexact)
        self.value, self.told = value, (type(value), repr(value) if exact else value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.told == other.told

    def __hash__(self) -> int:
        return hash(self.told)


def flatten(tree: Any, tensors: list[Tensor]) -> Any:
    """The shape of nested tuples, lists and dictionaries; the tensors in them go to a list."""
    kind = type(tree)
    if isinstance(tree, Tensor | np.ndarray):
        tensors.append(asarray(tree))
        return Tensor
    if kind is dict:
        return (dict, *((k, flatten(v, tensors)) for k, v in tree.items()))
    if isinstance(tree, tuple | list):
        return (kind, *(flatten(v, tensors) for v in tree))
    return None, Constant(tree)


def unflatten(shape: Any, tensors: Any) -> Any:
    """What `flatten` took apart, with tensors from an iterator."""
    if shape is Tensor:
        return next(tensors)
    kind, *items = shape
    if kind is None:
        return items[0].value
    if kind is dict:
        return {k: unflatten(v, tensors) for k, v in items}
    values = [unflatten(v, tensors) for v in items]
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


# ---- what a function did -------------------------------------------------------------------------


class Segment(NamedTuple):
    """Ops: a plan, the places of its leaves, its numbers, and the places of its results."""

    plan: Plan
    leaves: tuple[Place, ...]
    numbers: tuple[Any, ...]
    results: dict[int, Place]


class Call(NamedTuple):
    """A library function, the places of the tensors in its arguments, and of its results."""

    function: Callable[..., Any]
    arguments: Any  # a shape, see `flatten`
    inputs: tuple[Place, ...]
    results: tuple[tuple[Place, tuple[int, ...], Any], ...]  # with shapes and dtypes


# The arguments of a call of two tensors, which may have a function of their memory: `on_memory`.
OF_TWO = (tuple, (tuple, Tensor, Tensor), (dict,))


class Trace:
    """Takes down what a function does with tensors."""

    def __init__(self, name: str, arguments: Sequence[Node]) -> None:
        self.name = name
        self.steps: list[Segment | Call] = []
        self.count = len(arguments)
        self.places = {id(n): k for k, n in enumerate(arguments)}
        self.kept: list[Node] = list(arguments)  # while their ids stand for them
        self.constants: dict[Place, Any] = {}
        self.own: set[int] = set()
        self.written: list[Tensor] = []  # which the function may write, as it gives them back

    def refuse(self, what: str, instead: str) -> None:
        raise CompileError(f"`{self.name}` {what}, which a replay could not repeat: {instead}")

    def read(self) -> None:
        """Somebody wants to see values."""
        self.refuse(
            "reads the values of a tensor",
            "use `ruda.where` instead of `if`, and read what it returns outside",
        )

    def write(self) -> None:
        self.refuse(
            "writes into a tensor or launches a kernel", "make a new tensor and return that"
        )

    def leaf(self, node: Node) -> None:
        """A tensor was made of nothing: a constant."""
        self.kept.append(node)
        self.own.add(id(node))

    def place(self, node: Node) -> Place:
        """Where a replay finds a computed node's value."""
        found = self.places.get(id(node))
        if found is not None:
            return found
        if id(node) not in self.own:
            self.refuse(
                f"uses a tensor of shape {node.shape} that is no argument",
                "pass it as an argument",
            )
        at = self.new(node)
        self.constants[at] = node.value
        return at

    def new(self, node: Node) -> Place:
        self.places[id(node)] = self.count
        self.kept.append(node)
        self.count += 1
        return self.count - 1

    def compute(self, nodes: Sequence[Node]) -> None:
        """Compute nodes, and take down how."""
        wanted = {id(n) for n in nodes if n.value is None}
        while wanted:
            order, whole = program.topological([n for n in nodes if n.value is None], execute.MOST)
            if order:
                found = program.collect(order, wanted)
                made = plan.make(program.program(found)._replace(dead=frozenset()))
                self.add(made, found)
            del order
            if whole:
                return

    def add(self, made: Plan, found: program.Collected) -> None:
        leaves = tuple(self.place(n) for n in found.leaves)
        values = execute.run(
            made, plan.leaf_values(made, [n.value for n in found.leaves]), found.numbers
        )
        results = {}
        for k, at in made.results.items():
            node = found.nodes[k]
            execute.finish(node, values[at])
            results[at] = self.new(node)
        self.steps.append(Segment(made, leaves, tuple(found.numbers), results))

    def call(self, function: Callable[..., Any], values: Any, options: Any) -> Any:
        """A library function: it runs as always, and is taken down as a whole."""
        tensors: list[Tensor] = []
        arguments = flatten((values, options), tensors)
        nodes = [t.node() for t in tensors]
        self.compute(nodes)
        with suspended():
            found = function(*values, **options)
            made: list[Tensor] = []
            shape = flatten(found, made)
            whole = [from_buffer(copied(t), t.device) if t._view is not None else t for t in made]
            for t in whole:
                t.buffer()
        inputs = tuple(self.place(n) for n in nodes)
        results = tuple((self.new(t._storage.node), t.shape, t.dtype) for t in whole)
        self.steps.append(Call(function, arguments, inputs, results))
        return unflatten(shape, iter(whole))


class suspended:
    """Run without taking anything down."""

    def __enter__(self) -> None:
        self.before, graph.tracing.current = graph.tracing.current, None

    def __exit__(self, *exception: object) -> None:
        graph.tracing.current = self.before


# ---- replays -------------------------------------------------------------------------------------


class Recorded:
    """What a function does for one signature."""

    def __init__(
        self, trace: Trace, shape: Any, outputs: Sequence[Place], device: str, state: Any
    ) -> None:
        self.state = state  # of the settings: it lives as long as its id is in a key
        self.steps, self.count, self.constants = trace.steps, trace.count, trace.constants
        self.shape, self.outputs, self.device = shape, tuple(outputs), device
        self.dtypes = {trace.places[id(n)]: n.dtype for n in trace.kept if id(n) in trace.places}
        self.name = trace.name
        self.graph: Graph | None = None
        self.replays = 0

    @property
    def plans(self) -> list[Plan]:
        return [s.plan for s in self.steps if isinstance(s, Segment)]

    def replay(self, arguments: Sequence[Tensor]) -> Any:
        """The results for other tensors."""
        self.replays += 1
        if self.replays == OFTEN:
            for kernel in (k for p in self.plans for k in p.kernels):
                kernel.repeats = True
        values: list[Any] = [None] * self.count
        for k, t in enumerate(arguments):
            values[k] = t._storage.node.value
        for at, constant in self.constants.items():
            values[at] = constant
        if self.graph is not None:
            self.graph.replay(values)
        elif self.is_for_a_graph():
            self.graph = Graph(self, values)
            self.graph.results(values)
        else:
            for step in self.steps:
                self.run(step, values)
        return unflatten(self.shape, iter(self.results(values, arguments)))

    def run(self, step: Segment | Call, values: list[Any]) -> None:
        if isinstance(step, Call):
            self.run_call(step, values)
            return
        made = step.plan
        found = execute.run(
            made, plan.leaf_values(made, [values[p] for p in step.leaves]), step.numbers
        )
        for at, place in step.results.items():
            values[place] = found[at]

    def run_call(self, step: Call, values: list[Any]) -> None:
        direct = getattr(step.function, "on_memory", None)
        if direct is not None and step.arguments == OF_TWO and memory.on_host(self.device):
            ((place, shape, _),) = step.results
            if shape:
                left, right = step.inputs
                values[place] = direct(values[left], values[right])
                return
        given = (from_buffer(values[p], self.device) for p in step.inputs)
        arguments, options = unflatten(step.arguments, given)
        made: list[Tensor] = []
        flatten(step.function(*arguments, **options), made)
        for t, (place, shape, dtype) in zip(made, step.results, strict=True):
            if t.shape != shape or t.dtype is not dtype:
                raise CompileError(
                    f"`{self.name}`: `{step.function.__name__}` gave {t.dtype} {t.shape} where it "
                    f"gave {dtype} {shape} before: its shapes depend on values, leave it outside"
                )
            values[place] = t.buffer() if t._view is None else copied(t)

    def results(self, values: list[Any], arguments: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of the results. An argument is given back as it is; what shares memory with
        arguments, constants or other results is copied, as each tensor writes its own."""
        given = [t._storage.node.value for t in arguments]
        taken = {id(memory.owner(v)) for v in (*given, *self.constants.values())}
        made = {k: t._storage for k, t in enumerate(arguments)}
        for p in self.outputs:
            if p in made:
                continue
            value = memory_of(values[p], self.device)
            if id(memory.owner(value)) in taken:
                value = duplicate(value, self.device)
            taken.add(id(memory.owner(value)))
            made[p] = stored(graph.leaf(value, self.dtypes[p], self.device))
        return [handle(made[p]) for p in self.outputs]

    def is_for_a_graph(self) -> bool:
        kernels = sum(
            len(s.plan.kernels) if isinstance(s, Segment) else is_recordable(s) for s in self.steps
        )
        return hasattr(backends.get(self.device), "graph") and kernels >= GRAPH


def is_recordable(step: Segment | Call) -> bool:
    """Whether a step is launches alone, the same each time: a graph may have them."""
    return isinstance(step, Segment) or getattr(step.function, "is_recordable", False)


class Graph:
    """The launches of a recording as a GPU's graphs, with memory of their own.

    Arguments are copied in and results out, on the device: a graph's addresses are fixed. Library
    calls that look at values run between two graphs. Making one runs all of it once, and is thus
    the first replay: calls that draw numbers must not draw any more of them.
    """

    def __init__(self, recorded: Recorded, values: list[Any]) -> None:
        self.device, self.recorded = recorded.device, recorded
        self.copy_bytes = getattr(backends.get(self.device), "copy_bytes", None)
        self.values = [duplicate(v, self.device) if v is not None else None for v in values]
        for at in recorded.constants:
            self.values[at] = values[at]
        self.inputs: list[Place] = [
            k for k, v in enumerate(values) if v is not None and k not in recorded.constants
        ]
        self.outputs = [p for p in dict.fromkeys(recorded.outputs) if p not in self.inputs]
        self.parts: list[Callable[[], None]] = []
        launches: list[Any] = []
        for step in recorded.steps:
            if isinstance(step, Segment):
                made = step.plan
                found = plan.leaf_values(made, [self.values[p] for p in step.leaves])
                launches += plan.recorded(made, found, step.numbers)
                for at, place in step.results.items():
                    self.values[place] = found[at]
            elif is_recordable(step):
                launches += self.launches_of(step)
            else:
                self.finish(launches)
                launches = []
                recorded.run_call(step, self.values)
                self.parts.append(functools.partial(self.call, step))
        self.finish(launches)

    def finish(self, launches: list[Any]) -> None:
        """Launches as a graph, which runs at once: later steps may look at values."""
        if launches:
            backend: Any = backends.get(self.device)
            self.parts.append(backend.graph(launches, self.device))
            self.parts[-1]()

    def launches_of(self, step: Call) -> list[Any]:
        """The launches of a library call, which is not run."""
        from ruda.jit import graphs

        made = graphs.Graph()
        token = graphs.recording.set(made)
        try:
            with config():  # launchers that were made before would run
                self.recorded.run_call(step, self.values)
        finally:
            graphs.recording.reset(token)
        return [(r.module, r.configured.launch, r.values) for r in made.launches]

    def call(self, step: Call) -> None:
        """A library call on a replay's values; its results go to where graphs expect them."""
        kept = {place: self.values[place] for place, _, _ in step.results}
        self.recorded.run_call(step, self.values)
        self.write([(self.values[p], memory) for p, memory in kept.items()])
        self.values[: len(self.values)] = [kept.get(p, v) for p, v in enumerate(self.values)]

    def replay(self, values: list[Any]) -> None:
        self.write([(values[k], self.values[k]) for k in self.inputs])
        for part in self.parts:
            part()
        self.results(values)

    def results(self, values: list[Any]) -> None:
        """Copy what was computed out of the graph's memory."""
        wanted = [p for p in self.outputs if values[p] is None]
        for p in wanted:
            like: Any = self.values[p]
            values[p] = memory.allocate(like.shape, as_dtype(like.dtype), self.device)
        self.write([(self.values[p], values[p]) for p in wanted])

    def write(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        """Copy sources to targets, without gaps: few as bytes, where both lie alike."""
        alike = all(source.strides == target.strides for source, target in pairs)
        if self.copy_bytes is not None and len(pairs) <= FEW and alike:
            for source, target in pairs:
                self.copy_bytes(target, source)
        else:
            many.copy(pairs, self.device)


# ---- the decorator -------------------------------------------------------------------------------


class Compiled:
    """A function of tensors whose plans are kept: see `compile`."""

    __name__: str

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.recorded: dict[Any, Recorded] = {}
        self.lock = fork_safe_lock()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        if graph.tracing.current is not None:  # inside of another one
            return self.function(*arguments, **options)
        tensors: list[Tensor] = []
        shape = flatten((arguments, options), tensors)
        if recording():
            refuse(f"ruda.compile of {self.__name__}", *tensors)
        plain = [t if t._view is None else from_buffer(copied(t), t.device) for t in tensors]
        state = settings.state()
        key = (shape, id(state), *((t.shape, t.dtype, t.device) for t in plain))
        try:
            found = self.recorded.get(key)
        except TypeError as error:
            raise CompileError(
                f"`{self.__name__}`: arguments are tensors, numbers, texts, and tuples, lists and "
                f"dictionaries of these ({error})"
            ) from None
        execute.realize([t._storage.node for t in plain])
        with self.lock:
            if found is None:
                return self.record(key, shape, plain, state)
            return found.replay(plain)

    def record(self, key: Any, shape: Any, tensors: Sequence[Tensor], state: Any) -> Any:
        """Run the function and keep what it does."""
        device = tensors[0].device if tensors else backends.current()
        nodes = [graph.leaf(t._storage.node.value, t.dtype, t.device) for t in tensors]
        for n in nodes:
            n.exported = True  # an argument is never written
        given = [from_node(n) for n in nodes]
        trace = Trace(self.__name__, nodes)
        graph.tracing.current = trace
        try:
            arguments, options = unflatten(shape, iter(given))
            found = self.function(*arguments, **options)
            made: list[Tensor] = []
            out = flatten(found, made)
            del found
            if any(t._storage.version for t in given):
                trace.write()
            targets = [t.node() for t in made]
            made.clear()
            trace.compute(targets)
            places = [trace.place(n) for n in targets]
        finally:
            graph.tracing.current = None
        recorded = Recorded(trace, out, places, device, state)
        if len(self.recorded) >= SIGNATURES:
            self.recorded.pop(next(iter(self.recorded)))
        self.recorded[key] = recorded
        values: list[Any] = [None] * trace.count
        for p, n in zip(places, targets, strict=True):
            values[p] = n.value
        return unflatten(out, iter(recorded.results(values, tensors)))

    def __ruda_explain__(self) -> CompiledExplanation:
        return CompiledExplanation(
            self.__name__,
            tuple(
                SignatureNote(
                    tuple(f"{dtype} {shape}" for shape, dtype, _ in key[2:]),
                    tuple(note(p, k) for p in r.plans for k in p.kernels),
                    tuple(s.function.__name__ for s in r.steps if isinstance(s, Call)),
                    sum(k.moved for p in r.plans for k in p.kernels),
                    sum(minimum(p) for p in r.plans),
                    r.replays,
                    r.graph is not None,
                )
                for key, r in self.recorded.items()
            ),
        )

    def __repr__(self) -> str:
        return f"<ruda.compile of {self.__name__}, {len(self.recorded)} signatures>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


def memory_of(value: Any, device: str) -> Any:
    """A result in C order: of a view, a copy."""
    flags = getattr(value, "_shadow", value).flags
    return value if flags.c_contiguous else duplicate(value, device)


def duplicate(value: Any, device: str) -> Any:
    out = memory.allocate(value.shape, as_dtype(value.dtype), device)
    run.copy(out, value, device)
    return out


class SignatureNote(NamedTuple):
    """What is kept for one signature: kernels, library calls, bytes, how often it was replayed."""

    arguments: tuple[str, ...]
    kernels: tuple[KernelNote, ...]
    calls: tuple[str, ...]
    moved: int
    least: int
    replays: int
    graph: bool


class CompiledExplanation(NamedTuple):
    """What `ruda.explain` says of a compiled function."""

    name: str
    signatures: tuple[SignatureNote, ...]

    def __repr__(self) -> str:
        out = [f"{self.name}: {len(self.signatures)} signatures"]
        for s in self.signatures:
            way = "as one graph" if s.graph else "launch by launch"
            out.append(f"({', '.join(s.arguments)}): replayed {s.replays} times, {way}")
            out += [f"  kernel {k}: {n}" for k, n in enumerate(s.kernels, 1)]
            out += [f"  library: {name}" for name in s.calls]
            out.append(f"  {s.moved} bytes move; {s.least} must")
        return "\n".join(out)


def compile(function: Callable[..., Any]) -> Compiled:
    """Keep the plan of a function of tensors for each signature, and replay it.

    Arguments and results are tensors, and tuples, lists and dictionaries of them; everything else
    in the arguments is a constant, and another value makes another plan. Other shapes, dtypes and
    devices make another one, too. On CUDA several kernels are replayed as one graph.

    The Python of the function runs once for a signature: what it prints is printed once, and
    arrays that it makes are constants. Reading values, writing into tensors, launching kernels and
    tensors from outside are a CompileError.

    >>> import ruda
    >>> @ruda.compile
    ... def normal(x):
    ...     x = x - ruda.mean(x)
    ...     return x / ruda.sqrt(ruda.mean(x * x))
    >>> normal(ruda.asarray([1.0, 3.0])).tolist(), normal(ruda.asarray([4.0, 2.0])).tolist()
    ([-1.0, 1.0], [1.0, -1.0])
    >>> ruda.explain(normal).signatures[0].replays
    1
    """
    if not callable(function):
        raise TypeError(f"@ruda.compile decorates a function, not {type(function).__name__}")
    return Compiled(function)
