"""Random kernels: hypothesis draws a syntax tree, the result is the text of a module.

Every expression has the dtype that the language's rules give it, so operands of all kinds mix
freely. A variable keeps the dtype of its first conversion: how variables widen is tested by hand,
CPython cannot know it. What the language leaves open, or what is only reported, is kept out: zero
divisors, shifts by the width, comparisons of int64 with uint64, which of two zeros `min` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.oracle.scalars import FLOAT32, INT32, computed_in, is_half, kind, promote

INTEGERS = [np.dtype(n) for n in ("i4", "i8", "u4", "u8", "i1", "u1", "i2", "u2")]
FLOATS = [np.dtype(n) for n in ("f4", "f8", "f2")]
WIDE = [d for d in INTEGERS if d.itemsize >= 4]
BLOCKS, BLOCK = 2, 32
COUNT = 50  # elements of each array: the last threads have none
CELLS = 4  # elements of the arrays that atomics update
BOOL = np.dtype(bool)


@dataclass(frozen=True)
class Value:
    text: str
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Program:
    """The text and what its parameters are: `inputs`, then `outputs`, then `cells`."""

    source: str
    inputs: Sequence[np.dtype[Any]]
    outputs: Sequence[np.dtype[Any]]
    cells: Sequence[tuple[str, np.dtype[Any]]]

    def __repr__(self) -> str:
        return self.source


@dataclass
class Writer:
    """Draws a program; `draw` is hypothesis' own."""

    draw: Callable[[Any], Any]
    threads_meet: bool
    inputs: list[np.dtype[Any]] = field(default_factory=list)
    outputs: list[np.dtype[Any]] = field(default_factory=list)
    cells: list[tuple[str, np.dtype[Any]]] = field(default_factory=list)
    functions: list[tuple[str, list[np.dtype[Any]], np.dtype[Any]]] = field(default_factory=list)
    variables: dict[str, np.dtype[Any]] = field(default_factory=dict)
    locals: dict[str, np.dtype[Any]] = field(default_factory=dict)
    weak: list[str] = field(default_factory=list)  # indices: small integers without dtype
    lines: list[str] = field(default_factory=list)
    indent: int = 1
    names: int = 0

    def pick(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(options))

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) >= 100 - percent

    def name(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    # ---- expressions

    def number(self, depth: int) -> Value:
        return self.integer(depth) if self.chance(60) else self.real(depth)

    def leaf(self, of: str) -> Value:
        """A variable, an element of an input or local array, or a converted index."""
        dtypes = INTEGERS if of == "i" else FLOATS
        known = [Value(n, d) for n, d in self.variables.items() if d in dtypes]
        known += [Value(f"{n}[{self.place(4)}]", d) for n, d in self.locals.items() if d in dtypes]
        known += [
            Value(f"in{k}[{self.clamped()}]", d) for k, d in enumerate(self.inputs) if d in dtypes
        ]
        if known and self.chance(85):
            return self.pick(known)
        dtype = self.pick(dtypes)
        return Value(f"ruda.{dtype}({self.pick(self.weak)})", dtype)

    def place(self, size: int) -> str:
        """An index that is surely in 0 .. size - 1, a power of two."""
        return self.pick([*(f"{w} & {size - 1}" for w in self.weak), *map(str, range(size))])

    def clamped(self) -> str:
        """A varying index into an input, made from data or from the thread's place."""
        weak = self.pick(self.weak)
        forms = [f"min({weak}, {COUNT - 1})", f"{weak} % {COUNT}", str(self.pick(range(COUNT)))]
        integers = [n for n, d in self.variables.items() if d in INTEGERS]
        if integers:
            data = self.pick(integers)
            forms += [f"({data} & 31)", f"min(max(ruda.int64({data} & 63), 0), {COUNT - 1})"]
        return self.pick(forms)

    def integer(self, depth: int) -> Value:
        if depth <= 0:
            return self.leaf("i")
        form = self.pick(
            ["operator"] * 5
            + ["divide", "shift", "unary", "extreme", "literal", "index", "cast", "from_float"]
            + ["choice", "bits", "call"]
        )
        a = self.integer(depth - 1)
        match form:
            case "operator":
                b = self.integer(depth - 1)
                operator = self.pick(["+", "-", "*", "&", "|", "^"])
                return Value(f"({a.text} {operator} {b.text})", self.meet(a, b))
            case "divide":
                b = self.integer(depth - 1)
                operator = self.pick(["//", "%"])
                return Value(f"({a.text} {operator} (({b.text} & 15) + 1))", self.meet(a, b))
            case "shift":
                b = self.integer(depth - 1)
                operator = self.pick(["<<", ">>"])
                return Value(f"({a.text} {operator} ({b.text} & 7))", self.meet(a, b))
            case "unary":
                operator = self.pick(["-", "~", "+", "abs"])
                return Value(f"{operator}({a.text})", computed_in(a.dtype))
            case "extreme":
                b = self.integer(depth - 1)
                name = self.pick(["min", "max"])
                return Value(f"{name}({a.text}, {b.text})", promote(a.dtype, b.dtype))
            case "literal":
                literal = self.draw(st.integers(0, 100))
                operator = self.pick(["+", "-", "*", "&", "|", "^"])
                text = self.pick(
                    [f"({a.text} {operator} {literal})", f"({literal} {operator} {a.text})"]
                )
                return Value(text, computed_in(a.dtype))
            case "index":
                operator = self.pick(["+", "*", "-"])
                return Value(f"({a.text} {operator} {self.pick(self.weak)})", computed_in(a.dtype))
            case "cast":
                return self.converted(a, self.pick(INTEGERS))
            case "from_float":
                x = self.real(depth - 1)
                bounded = f"min(max({x.text}, -100.0), 100.0)"
                # NaN converts to 0, which sim reports: it is asked for in a test of its own.
                safe = f"({bounded} if {x.text} == {x.text} else ruda.{x.dtype}(0))"
                return self.converted(Value(safe, x.dtype), self.pick([INT32, np.dtype(np.int8)]))
            case "choice":
                dtype = self.pick(INTEGERS)
                b = self.integer(depth - 1)
                return self.choice(dtype, a, b, depth)
            case "bits":
                wide = self.converted(a, self.pick(WIDE))
                name = self.pick(["popc", "clz", "ffs", "brev"])
                dtype = wide.dtype if name == "brev" else INT32
                return self.converted(Value(f"ruda.{name}({wide.text})", dtype), dtype)
            case _:
                return self.call("i", depth) or a

    def real(self, depth: int) -> Value:
        if depth <= 0:
            return self.leaf("f")
        form = self.pick(
            ["operator"] * 5
            + ["mixed", "quotient", "unary", "extreme", "literal", "cast", "root", "round"]
            + ["fma", "choice", "call"]
        )
        a = self.real(depth - 1)
        match form:
            case "operator":
                b = self.real(depth - 1)
                operator = self.pick(["+", "-", "*", "/"])
                return Value(f"({a.text} {operator} {b.text})", promote(a.dtype, b.dtype))
            case "mixed":
                b = self.integer(depth - 1)
                operator = self.pick(["+", "-", "*"])
                dtype = FLOAT32 if is_half(a.dtype) else a.dtype
                return Value(f"({a.text} {operator} {b.text})", dtype)
            case "quotient":
                m, n = self.integer(depth - 1), self.integer(depth - 1)
                return Value(f"(({m.text} & 255) / (({n.text} & 15) + 1))", FLOAT32)
            case "unary":
                return Value(f"{self.pick(['-', '+', 'abs'])}({a.text})", a.dtype)
            case "extreme":
                b = self.real(depth - 1)
                name = self.pick(["min", "max"])
                # + 0.0 makes of both zeros the same: which one min takes is not said.
                return Value(f"({name}({a.text}, {b.text}) + 0.0)", promote(a.dtype, b.dtype))
            case "literal":
                literal = self.pick(["0.5", "2.0", "-1.25", "0.1", "3.0", "1e-3"])
                operator = self.pick(["+", "-", "*", "/"])
                return Value(f"({a.text} {operator} {literal})", a.dtype)
            case "cast":
                return self.converted(self.number(depth - 1), self.pick(FLOATS))
            case "root":
                return Value(f"math.sqrt(abs({a.text}))", a.dtype)
            case "round":
                return Value(
                    f"np.{self.pick(['floor', 'ceil', 'trunc', 'rint'])}({a.text})", a.dtype
                )
            case "fma":
                dtype = self.pick(FLOATS[:2])
                b, c = self.real(depth - 1), self.real(depth - 1)
                three = ", ".join(self.converted(v, dtype).text for v in (a, b, c))
                return Value(f"ruda.fma({three})", dtype)
            case "choice":
                return self.choice(self.pick(FLOATS), a, self.real(depth - 1), depth)
            case _:
                return self.call("f", depth) or a

    def condition(self, depth: int) -> str:
        form = self.pick(["integers", "reals", "index", "index", "not", "both", "chain", "nan"])
        if depth <= 0 and form in ("not", "both"):
            form = "index"
        match form:
            case "integers":
                a, b = self.integer(depth - 1), self.integer(depth - 1)
                if promote(a.dtype, b.dtype) == np.uint64 and kind(a.dtype) != kind(b.dtype):
                    a, b = self.converted(a, INT32), self.converted(b, INT32)
                return f"({a.text} {self.comparison()} {b.text})"
            case "reals":
                a, b = self.real(depth - 1), self.real(depth - 1)
                return f"({a.text} {self.comparison()} {b.text})"
            case "index":
                return f"({self.pick(self.weak)} % {self.pick([2, 3, 5])} {self.comparison()} 1)"
            case "not":
                return f"(not {self.condition(depth - 1)})"
            case "both":
                word = self.pick(["and", "or"])
                return f"({self.condition(depth - 1)} {word} {self.condition(depth - 1)})"
            case "chain":
                return f"(3 < {self.pick(self.weak)} <= 20)"
        return f"math.isnan({self.real(depth - 1).text})"

    def comparison(self) -> str:
        return self.pick(["<", "<=", ">", ">=", "==", "!="])

    def meet(self, a: Value, b: Value) -> np.dtype[Any]:
        return computed_in(promote(a.dtype, b.dtype))

    def converted(self, value: Value, dtype: np.dtype[Any]) -> Value:
        """`ruda.int8(x)`; a float goes to an integer only where it surely fits."""
        if kind(value.dtype) == "f" and dtype in INTEGERS and dtype not in (INT32, np.int8):
            dtype = INT32
        return Value(f"ruda.{dtype}({value.text})", dtype)

    def choice(self, dtype: np.dtype[Any], a: Value, b: Value, depth: int) -> Value:
        arms = self.converted(a, dtype).text, self.converted(b, dtype).text
        return Value(f"({arms[0]} if {self.condition(depth - 1)} else {arms[1]})", dtype)

    def call(self, of: str, depth: int) -> Value | None:
        fitting = [f for f in self.functions if (f[2] in INTEGERS) == (of == "i")]
        if not fitting:
            return None
        name, parameters, dtype = self.pick(fitting)
        arguments = [
            self.converted(self.integer(depth - 1) if p in INTEGERS else self.number(depth - 1), p)
            for p in parameters
        ]
        return Value(f"{name}({', '.join(a.text for a in arguments)})", dtype)

    # ---- statements

    def new_variable(self) -> None:
        value = self.number(3)
        dtype = self.pick(INTEGERS if value.dtype in INTEGERS else FLOATS)
        name = self.name("v")
        self.emit(f"{name} = {self.converted(value, dtype).text}")
        self.variables[name] = dtype

    def set_variable(self) -> None:
        if not self.variables:
            return self.new_variable()
        name = self.pick(list(self.variables))
        dtype = self.variables[name]
        value = self.integer(3) if dtype in INTEGERS else self.number(3)
        self.emit(f"{name} = {self.converted(value, dtype).text}")
        return None

    def augment(self) -> None:
        """`v += ...` of the variable's own dtype, where that dtype is what it computes in."""
        fitting = [n for n, d in self.variables.items() if d in WIDE or d in FLOATS]
        if not fitting:
            return self.new_variable()
        name = self.pick(fitting)
        dtype = self.variables[name]
        value = self.integer(2) if dtype in INTEGERS else self.number(2)
        operator = self.pick(["+=", "-=", "*="] + (["&=", "|=", "^="] if dtype in WIDE else []))
        self.emit(f"{name} {operator} {self.converted(value, dtype).text}")
        return None

    def block(self, statements: int, depth: int) -> None:
        """An indented body: names that are new in it are not seen after it."""
        variables, local, weak = dict(self.variables), dict(self.locals), list(self.weak)
        self.indent += 1
        for _ in range(statements):
            self.statement(depth - 1)
        self.indent -= 1
        self.variables, self.locals, self.weak = variables, local, weak

    def branch(self, depth: int) -> None:
        self.emit(f"if {self.condition(2)}:")
        self.block(self.pick([1, 2]), depth)
        if self.chance(40):
            self.emit(f"elif {self.condition(1)}:")
            self.block(1, depth)
        if self.chance(60):
            self.emit("else:")
            self.block(self.pick([1, 2]), depth)

    def loop(self, depth: int) -> None:
        counter = self.name("k")
        bounds = self.pick(["3", "1, 4", "4, 0, -1", "0, 6, 2", "0", "lane & 3"])
        self.emit(f"for {counter} in range({bounds}):")
        self.loop_body(counter, depth)

    def loop_body(self, counter: str, depth: int) -> None:
        before = list(self.weak)
        self.weak.append(counter)
        if self.chance(30):
            self.emit(f"    if {self.condition(1)}:")
            self.emit(f"        {self.pick(['break', 'continue'])}")
        self.block(self.pick([1, 2]), depth)
        self.weak = before
        if self.chance(20):
            self.emit("else:")
            self.block(1, depth)

    def while_loop(self, depth: int) -> None:
        counter = self.name("k")
        self.emit(f"{counter} = 0")
        self.emit(f"while {counter} < {self.pick([2, 3])} and {self.condition(1)}:")
        self.emit(f"    {counter} += 1")
        before = list(self.weak)
        self.weak.append(counter)
        self.block(self.pick([1, 2]), depth)
        self.weak = before

    def local_array(self) -> None:
        dtype, name, k = self.pick(INTEGERS + FLOATS), self.name("local"), self.name("k")
        value = self.integer(2) if dtype in INTEGERS else self.number(2)
        self.emit(f"{name} = ruda.local.array(4, ruda.{dtype})")
        self.emit(f"for {k} in range(4):")
        self.emit(f"    {name}[{k}] = {value.text}")
        self.locals[name] = dtype

    def local_store(self) -> None:
        if not self.locals:
            return self.local_array()
        name = self.pick(list(self.locals))
        dtype = self.locals[name]
        value = self.integer(2) if dtype in INTEGERS else self.number(2)
        self.emit(f"{name}[{self.place(4)}] = {value.text}")
        return None

    def atomic(self) -> None:
        dtype = self.pick(WIDE)
        name = self.pick(["add", "sub", "max", "min", "and_", "or_", "xor"])
        number = len(self.cells)
        self.cells.append((name, dtype))
        value = self.converted(self.integer(2), dtype)
        self.emit(f"ruda.atomic.{name}(cells{number}, {self.place(CELLS)}, {value.text})")

    def statement(self, depth: int) -> None:
        form = self.pick(
            ["new", "new", "set", "set", "augment", "local", "store", "atomic"]
            + ["if", "if", "for", "while"] * (depth > 0)
        )
        actions: dict[str, Callable[[], Any]] = {
            "new": self.new_variable,
            "set": self.set_variable,
            "augment": self.augment,
            "local": self.local_array,
            "store": self.local_store,
            "atomic": self.atomic,
            "if": lambda: self.branch(depth),
            "for": lambda: self.loop(depth),
            "while": lambda: self.while_loop(depth),
        }
        actions[form]()

    # ---- threads that meet; all threads of a block come here

    def exchange(self) -> None:
        """Through shared memory: write, barrier, read another's, barrier."""
        dtype, name = self.pick(INTEGERS + FLOATS), self.name("tile")
        value = self.integer(2) if dtype in INTEGERS else self.number(2)
        self.emit(f"{name} = ruda.shared.array({BLOCK}, ruda.{dtype})")
        self.emit(f"{name}[lane] = {value.text}")
        self.emit("ruda.syncthreads()")
        other = self.pick([f"{BLOCK - 1} - lane", f"(lane + 3) % {BLOCK}", "lane ^ 5", "7"])
        target = self.name("v")
        self.emit(f"{target} = {name}[{other}]")
        self.emit("ruda.syncthreads()")
        self.variables[target] = dtype

    def shuffle(self) -> None:
        dtype, target = self.pick(WIDE + FLOATS[:2]), self.name("v")
        value = self.converted(self.integer(2) if dtype in INTEGERS else self.number(2), dtype)
        forms = {"xor": "3", "up": "1", "down": "4", "": "(lane + 9) % 32"}
        name, lane = self.pick(list(forms.items()))
        name = f"shfl_{name}_sync" if name else "shfl_sync"
        self.emit(f"{target} = ruda.{name}(0xFFFFFFFF, {value.text}, {lane})")
        self.variables[target] = dtype

    def vote(self) -> None:
        target = self.name("v")
        name = self.pick(["syncthreads_count(", "syncthreads_or(", "ballot_sync(0xFFFFFFFF, "])
        dtype = np.dtype(np.uint32) if "ballot" in name else INT32
        self.emit(f"{target} = ruda.{dtype}(ruda.{name}{self.condition(1)}))")
        self.variables[target] = dtype

    def meeting(self) -> None:
        """One of the above, perhaps in a branch or a loop that all threads take alike."""
        action = self.pick([self.exchange, self.exchange, self.shuffle, self.vote])
        wrapper = self.pick(["", "", "if ruda.blockIdx.x == 0:", "for turn in range(2):"])
        if not wrapper:
            return action()
        variables = dict(self.variables)
        carrier = next((n for n, d in variables.items() if d in INTEGERS), None)
        self.emit(wrapper)
        self.indent += 1
        action()
        if carrier:
            new = list(self.variables)[-1]
            if self.variables[new] in INTEGERS:
                self.emit(f"{carrier} = ruda.{variables[carrier]}({carrier} ^ {new})")
        self.indent -= 1
        self.variables = variables
        return None

    # ---- functions

    def device_function(self) -> str:
        parameters = [self.pick(INTEGERS + FLOATS) for _ in range(self.pick([1, 2]))]
        inner = Writer(self.draw, False, weak=["3"], functions=list(self.functions))
        inner.variables = {f"p{k}": d for k, d in enumerate(parameters)}
        name = f"device{len(self.functions)}"
        of_integers = all(p in INTEGERS for p in parameters)
        dtype = self.pick(INTEGERS if of_integers else FLOATS)
        if self.chance(50):
            early = inner.integer(1) if dtype in INTEGERS else inner.number(1)
            inner.emit(f"if {inner.condition(1)}:")
            inner.emit(f"    return {inner.converted(early, dtype).text}")
        value = inner.integer(2) if dtype in INTEGERS else inner.number(2)
        inner.emit(f"return {inner.converted(value, dtype).text}")
        self.functions.append((name, parameters, dtype))
        head = f"@ruda.jit\ndef {name}({', '.join(f'p{k}' for k in range(len(parameters)))}):"
        return "\n".join([head, *inner.lines])

    def program(self) -> Program:
        self.inputs = [self.pick(INTEGERS + FLOATS) for _ in range(self.pick([2, 3]))]
        self.weak = ["i", "lane"]
        devices = [self.device_function() for _ in range(self.pick([0, 0, 1, 2]))]
        self.emit("i = ruda.grid(1)")
        self.emit("lane = ruda.threadIdx.x")
        if not self.threads_meet and self.chance(50):
            self.emit(f"if i >= {COUNT}:")
            self.emit("    return")
        self.new_variable()
        for _ in range(self.pick([2, 3, 4, 5])):
            if self.threads_meet and self.chance(50):
                self.meeting()
            else:
                self.statement(2)
        self.emit(f"if i < {COUNT}:")
        self.indent += 1
        for k in range(self.pick([1, 2])):
            value = self.number(1)
            dtype = self.pick(INTEGERS if value.dtype in INTEGERS else FLOATS)
            self.outputs.append(dtype)
            self.emit(f"out{k}[i] = {value.text}")
        for name, dtype in self.variables.items():
            self.emit(f"out{len(self.outputs)}[i] = {name}")
            self.outputs.append(dtype)
        parameters = [
            *(f"in{k}" for k in range(len(self.inputs))),
            *(f"out{k}" for k in range(len(self.outputs))),
            *(f"cells{k}" for k in range(len(self.cells))),
        ]
        head = f"@ruda.jit(contract=False)\ndef kernel({', '.join(parameters)}):"
        text = "\n\n\n".join(["import math", *devices, "\n".join([head, *self.lines])]) + "\n"
        return Program(text, self.inputs, self.outputs, self.cells)


@st.composite
def programs(draw: Any, threads_meet: bool = False) -> Program:
    return Writer(draw, threads_meet).program()
