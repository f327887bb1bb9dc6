"""The scalar unit of a 910B: elements of memory, atomics, functions that it lacks.

It reads global memory through a cache, and never stores there: the cache writes whole lines, so an
element goes through the unified buffer and out by a copy of its own bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

from ruda.backends.ascend import formulas
from ruda.backends.ascend.emit import (
    FAST,
    FLOAT_PARTS,
    Emitter,
    from_memory,
    kind_of,
    stored,
    to_memory,
)
from ruda.backends.ascend.formulas import TYPES, Term
from ruda.backends.ascend.vector.buffers import PREFIX
from ruda.backends.ascend.vector.refusals import SUMS_AS, refuse_atomic
from ruda.dtypes import DType
from ruda.errors import UnsupportedError
from ruda.jit.emit_python import bare
from ruda.jit.ir import Array, Atomic, Expr, Field

# Of float64: they ask a library of C, or more digits than their formulas for float32 have.
NOT_IN_INTEGERS = ("sin", "cos", "tan", "gamma", "lgamma")
# Stirling's series from 12 on, by recurrence below; reflected for negative arguments.
GAMMA = """
namespace ruda {
RUDA_FUNCTION real64 log_gamma(real64 x) {
    const real64 z = real64(1) / (x * x);
    const int32_t terms[5] = {1188, -1680, 1260, -360, 12};
    real64 s = real64(-691) / real64(360360);
    for (int32_t k = 0; k < 5; ++k) s = s * z + real64(1) / real64(terms[k]);
    return (x - r64(0x3fe0000000000000ull)) * log_f64(x) - x + (r64(0x3fed67f1c864beb5ull) + s / x);
}
RUDA_FUNCTION real64 positive_gamma(real64 x) {
    if (x > real64(180)) return infinite64(false);
    real64 below(1);
    for (; x < real64(12); x = x + real64(1)) below = below * x;
    return exp_f64(log_gamma(x)) / below;
}
RUDA_FUNCTION real64 tgamma(real64 x) {
    const real64 one(1);
    if (is_nan64(x) || (is_infinite64(x) && !signbit(x))) return x;
    if (is_zero64(x)) return infinite64(signbit(x));
    if (!signbit(x)) return positive_gamma(x);
    if (floor(x) == x) return nan64();
    return r64(0x400921fb54442d18ull) / (sinpi_f64(x) * positive_gamma(one - x));
}
RUDA_FUNCTION real64 lgamma(real64 x) {
    const real64 one(1);
    if (is_nan64(x)) return x;
    if (is_infinite64(x) || (floor(x) == x && x <= real64(0))) return infinite64(false);
    if (signbit(x)) {
        const real64 s = fabs(sinpi_f64(x));
        return log_f64(r64(0x400921fb54442d18ull) / s) - lgamma(one - x);
    }
    if (x == one || x == real64(2)) return real64(0);
    return x < real64(12) ? log_f64(positive_gamma(x)) : log_gamma(x);
}
}  // namespace ruda
"""
# What a text of ours is called, or AscendC: names of the user's are changed.
OWN = re.compile(
    r"[A-Z]\w*|EVENT_ID\d|pipe(_\w*)?|stage|reports|count|lanes|row\d*|numbers|work|result|dynamic_ub|end\d*|at\d*"
    r"|part\d*|tile\d*|(in|out|[fhiscuglm])\d+|\w+_(gm|ub|tile\d*|[fhiscugl])|bfloat16_t|events"
)


class ScalarUnit(Emitter):
    """Text of one statement for the scalar unit."""

    reports = "reports"
    scalar_only: bool
    elements: dict[str, str]
    tensors: dict[tuple[str, str], str]
    local_tensors: dict[str, str]
    written_arrays: set[str]
    stages: bool
    cached_reads: bool  # of arrays that the kernel does not write, unless they are others, too

    # ---- names of tensors

    def name(self, wanted: str) -> str:
        return super().name(wanted if wanted in self.names or not OWN.fullmatch(wanted)
                            else f"v_{wanted}")  # fmt: skip

    def own(self, base: str) -> str:
        """A name of ours, once."""
        k = 1
        while (f"{base}{k if k > 1 else ''}") in self.names.values():
            k += 1
        found = f"{base}{k if k > 1 else ''}"
        self.names[f"own {found}"] = found
        return found

    def tile_name(self, a: Array) -> str:
        return self.own(f"{self.name(a.name)}_tile")

    def pointer(self, name: str, element: str, row: tuple[Any, ...]) -> None:
        self.elements[name] = element
        self.parameter(f"GM_ADDR {name}_gm", f"GM_ADDR(words[{self.word}])", row, 3)

    def tensor_of(self, a: Array, type_: str) -> str:
        """The GlobalTensor of an array, as one of another type where copies want that."""
        name = self.name(a.name)
        if self.elements[name] == type_:
            self.tensors[name, type_] = name
            return name
        found = self.tensors.get((name, type_))
        if found is None:
            found = self.tensors[name, type_] = self.own(f"{name}_{PREFIX[type_]}")
        return found

    def local_tensor(self, a: Array, type_: str) -> str:
        name = self.name(a.name)
        if self.local_tensors[a.name] == type_:
            return name
        return f"{name}.ReinterpretCast<{type_}>()"

    def held(self, dtype: DType) -> str:
        return TYPES[kind_of(dtype)]

    # ---- elements

    def extent(self, a: Array, axis: int) -> str:
        """Of a parameter: passed to the kernel from its first use on."""
        if a.shape is None and not a.dynamic and f"extent {a.name} {axis}" not in self.names:
            name = self.names[f"extent {a.name} {axis}"] = self.name(f"{a.name}_n{axis}")
            k = self.function.parameters.index(a)
            self.parameter(f"int64_t {name}", f"words[{self.word}]", ("extent", k, axis))
        return super().extent(a, axis)

    def again(self, a: Array) -> bool:
        """Whether the cache may hold what is no longer there."""
        return self.scalar_only or a.name in self.written_arrays

    def load(self, a: Array, indices: Sequence[Expr], part: Field | None) -> Term:
        dtype = self.dtype(a, part)
        kind, memory = kind_of(dtype), stored(dtype)
        how, where = self.place_of(a, indices, part)
        name = self.name(a.name)
        if a.name in self.local_tensors:
            text = f"{name}.GetValue({where})"
            if how != "typed":
                text = f"ruda::tensor_bytes<{memory}>({name}, {where})"
        elif a.space == "global" or (a.space == "const" and self.is_large(a)):
            again = self.again(a)
            self.cached_reads |= not again and a.space == "global"
            if how != "typed":
                flag = "true" if again else "false"
                text = f"ruda::load_bytes<{memory}>({name}, {where}, {flag})"
            else:
                text = f"ruda::fresh({name}, {where})" if again else f"{name}.GetValue({where})"
        elif how == "typed":
            text = where
        else:
            text = f"ruda::local_bytes<{memory}>({name}, {where})"
        if (
            kind in FLOAT_PARTS
            and how == "typed"
            and (a.name in self.local_tensors or a.space == "global")
        ):
            raise UnsupportedError("an Ascend 910B has no complex elements here", self.place)
        if self.by_words(a, how):
            return Term(f"ruda::r64(uint64_t({text}))", kind)
        return Term(from_memory(kind, text), kind)

    def by_words(self, a: Array, how: str = "typed") -> bool:
        """Whether elements are doubles that lie in memory as integers."""
        if a.space == "const" and not self.is_large(a):
            return False
        return how == "typed" and isinstance(a.dtype, DType) and kind_of(a.dtype) == "f64"

    def store(
        self, a: Array, indices: Sequence[Expr], part: Field | None, value: str, depth: int
    ) -> None:
        dtype = self.dtype(a, part)
        kind, memory = kind_of(dtype), stored(dtype)
        how, where = self.place_of(a, indices, part)
        name = self.name(a.name)
        value = to_memory(kind, value) if kind in ("f16", "bf16", "bool") else value
        if self.by_words(a, how):
            memory, value = "int64_t", f"int64_t(({value}).b)"
        if a.name in self.local_tensors:
            if how == "typed":
                self.line(depth, f"{name}.SetValue({where}, {value});")
            else:
                self.line(depth, f"ruda::set_tensor_bytes<{memory}>({name}, {where}, {value});")
        elif a.space == "global":
            self.stages = True
            call = "store" if how == "typed" else "store_bytes"
            self.line(depth, f"stage.{call}<{memory}>({name}, {where}, {value});")
        elif how == "typed":
            self.line(depth, f"{where} = {value};")
        else:
            self.line(depth, f"ruda::set_local_bytes<{memory}>({name}, {where}, {value});")

    def place_of(self, a: Array, indices: Sequence[Expr], part: Field | None) -> tuple[str, str]:
        """("typed", an index, or the element itself of a private array) or ("bytes", offset)."""
        how, where = self.element(a, indices, part)
        if how != "typed":
            return "bytes", where
        if (
            a.space == "global"
            or a.name in self.local_tensors
            or (a.space == "const" and self.is_large(a))
        ):
            texts = [self.text(i) for i in indices]
            return "typed", bare(self.linear(a, texts))
        return "typed", where

    def by_bytes(self, a: Array) -> bool:
        if isinstance(a.dtype, DType) and a.dtype.kind == "complex":
            return a.space != "const" or self.is_large(a)
        return super().by_bytes(a)

    def element_type(self, a: Array) -> str:
        if self.by_bytes(a):
            return "uint8_t"
        return "int64_t" if self.by_words(a) else stored(self.dtype(a, None))

    # ---- atomics

    def atomic(self, s: Atomic, depth: int) -> None:
        a = s.array
        dtype = self.dtype(a, s.field)
        kind = kind_of(dtype)
        if a.space == "global":
            return self.accumulate(s, kind, depth)
        # One core runs the block's threads one after another: nobody comes between.
        values = [Term(bare(self.text(o)), kind) for o in s.operands]
        before = self.fresh("before")
        loaded = self.load(a, s.indices, s.field)
        self.line(depth, f"const {TYPES[kind]} {before} = {bare(loaded.text)};")
        after = self.updated(s.op, dtype, Term(before, kind), values)
        self.store(a, s.indices, s.field, after, depth)
        if s.result is not None:
            self.line(depth, f"{self.target_of(s.result)} = {before};")

    def accumulate(self, s: Atomic, kind: str, depth: int) -> None:
        refuse_atomic(s)
        a = s.array
        how, where = self.place_of(a, s.indices, s.field)
        if how != "typed":
            raise UnsupportedError(
                "an Ascend 910B has no atomics on arrays with strides, or elements by bytes",
                s.place,
            )
        self.stages = True
        op = {"sub": "add"}.get(s.op, s.op)
        held = SUMS_AS[kind]
        value = self.expression(s.operands[0])
        text = bare(value.text)
        if s.op == "sub":
            text = f"-{value.text}" if kind[0] in "fb" else f"ruda::neg<{TYPES[kind]}>({text})"
        tensor = self.tensor_of(a, held)
        self.line(depth, f"stage.{op}<{held}>({tensor}, {where}, {held}({text}));")

    # ---- functions that it lacks

    def floating(self, name: str, kind: str, x: list[str]) -> Term:
        if kind == "f64" and name in NOT_IN_INTEGERS:
            raise UnsupportedError(
                f"an Ascend 910B has no {name} of float64, not by integers either", self.place,
                hint="compute it in float32",
            )  # fmt: skip
        if (
            self.function.fastmath and kind == "f32" and name in FAST
        ):  # the chip has none of its own
            return Term(f"{formulas.function_name(name)}_f32({', '.join(map(bare, x))})", kind)
        return super().floating(name, kind, x)

    def cast(self, value: Term, source: DType, target: DType) -> Term:
        to = kind_of(target)
        if to in ("f16", "bf16") and source.is_integer and source.kind != "bool":
            wide = "uint64_t" if value.kind[0] == "u" else "int64_t"
            return Term(f"ruda::round_{to}(ruda::odd_f32({wide}({bare(value.text)})))", to)
        return super().cast(value, source, target)


def in_software(text: str) -> str:
    """Double precision by the integers of `ruda_real64.h`, where a text has it."""

    def number(found: re.Match[str]) -> str:
        return f"ruda::r64({struct.unpack('<Q', struct.pack('<d', float(found[0])))[0]:#x}ull)"

    def line(text: str) -> str:
        if text.lstrip().startswith("//"):
            return text
        text = re.sub(r"(?<![\w.])\d+(?:\.\d+(?:e[+-]?\d+)?|e[+-]?\d+)(?![\w.])", number, text)
        return re.sub(r"\bdouble\b", "ruda::real64", text)

    return "\n".join(map(line, text.split("\n")))


def definitions(text: str) -> str:
    """The functions that a text calls, on a chip without double precision."""
    found = formulas.definitions(text)
    if "gamma_f32(" not in found:
        return found
    return formulas.definitions("exp_f64( log_f64( sinpi_f64(" + text) + GAMMA
