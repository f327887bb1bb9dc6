"""Formulas that hold for nearly all arguments, with the C library for the rest.

The sine of a number of many periods, or the remainder of a huge quotient, needs arithmetic that
would slow every element down. A `SlowPath` becomes an LLVM function of its own, in a scalar form
and one for each vector width; each computes the formula and then asks the C library for those
elements alone that are out of its reach.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ruda.backends.cpu import values
from ruda.backends.cpu.values import PURE, Value, call_symbol

Formula = Callable[..., Value]


@dataclass(frozen=True)
class SlowPath:
    """A formula for nearly all arguments, and a C function for those where `slow` holds.

    It is not inlined: LLVM calls the scalar form, or, through "vector-function-abi-variant", the
    form of the width at which it vectorises the loop. All forms compute the same bits.
    """

    name: str
    main: Formula
    slow: Formula
    arity: int = 1

    def __call__(self, *arguments: Value) -> Value:
        first = arguments[0]
        module, dtype = first.builder.module, first.dtype
        symbol = f"ruda.{self.name}.{dtype}"
        widths = [512 // first.bits >> i for i in range(3)]
        signature = "v" * self.arity
        variants = ",".join(f"_ZGV_LLVM_N{n}{signature}_{symbol}({symbol}.v{n})" for n in widths)
        if symbol not in module.globals:
            # The scalar form is kept too: of a function that is only called, LLVM would drop an
            # argument that is always the same number, and then the forms no longer agree.
            forms = [self._define(module, symbol, dtype, 1)]
            forms += [self._define(module, f"{symbol}.v{n}", dtype, n) for n in widths]
            keep_alive(module, forms)
        return call_symbol(
            symbol,
            dtype,
            *arguments,
            attributes=(*PURE, f'"vector-function-abi-variant"="{variants}"'),
        )

    def _define(self, module: Any, symbol: str, dtype: str, lanes: int) -> Any:
        kind, index = values.llvm_type(dtype, lanes), ir.IntType(32)
        function = values.declare(module, symbol, kind, [kind] * self.arity)
        function.linkage = "internal"
        values.add_attributes(function, ("noinline", *PURE))
        entry, rare, body, call_block, next_block, done = (
            function.append_basic_block(n) for n in ("entry", "rare", "lane", "c", "next", "done")
        )
        builder = ir.IRBuilder(entry)
        arguments = [Value(builder, a, dtype, lanes) for a in function.args]
        y = self.main(*arguments)
        slow = self.slow(*arguments).llvm
        # Lane by lane through memory: this path need not be fast.
        slots = [builder.alloca(kind) for _ in range(self.arity + 1)]
        if lanes > 1:
            reduce = values.declare(
                module, f"llvm.vector.reduce.or.v{lanes}i1", ir.IntType(1), [slow.type]
            )
            slow = builder.call(reduce, [slow])
        builder.cbranch(slow, rare, done)

        builder.position_at_end(rare)
        for slot, value in zip(slots, [*arguments, y], strict=True):
            builder.store(value.llvm, slot)
        builder.branch(body)

        builder.position_at_end(body)
        lane = builder.phi(index)
        lane.add_incoming(ir.Constant(index, 0), rare)
        element = values.llvm_type(dtype).as_pointer()
        pointers = [builder.gep(builder.bitcast(slot, element), [lane]) for slot in slots]
        scalars = [Value(builder, builder.load(p), dtype) for p in pointers[:-1]]
        builder.cbranch(self.slow(*scalars).llvm, call_block, next_block)

        builder.position_at_end(call_block)
        exact = library(self.name, *scalars)
        builder.store(exact.llvm, pointers[-1])
        builder.branch(next_block)

        builder.position_at_end(next_block)
        following = builder.add(lane, ir.Constant(index, 1))
        lane.add_incoming(following, next_block)
        more = builder.icmp_unsigned("<", following, ir.Constant(index, lanes))
        after = function.append_basic_block("after")
        builder.cbranch(more, body, after)

        builder.position_at_end(after)
        corrected = builder.load(slots[-1])
        builder.branch(done)

        builder.position_at_end(done)
        result = builder.phi(kind)
        result.add_incoming(y.llvm, entry)
        result.add_incoming(corrected, after)
        builder.ret(result)
        return function


def library(name: str, *arguments: Value) -> Value:
    """A call of the C library's function for this format."""
    dtype = arguments[0].dtype
    return call_symbol(name + "f" * (dtype == "f32"), dtype, *arguments, attributes=PURE)


def keep_alive(module: Any, functions: Sequence[Any]) -> None:
    """List functions in @llvm.compiler.used: nothing calls vector forms until LLVM vectorises."""
    pointer = ir.IntType(8).as_pointer()
    used = module.globals.get("llvm.compiler.used")
    if used is None:
        used = ir.GlobalVariable(module, ir.ArrayType(pointer, 0), "llvm.compiler.used")
        used.linkage, used.section, used.kept = "appending", "llvm.metadata", []
    used.kept += functions
    used.value_type = ir.ArrayType(pointer, len(used.kept))
    used.type = used.value_type.as_pointer()
    used.initializer = ir.Constant(used.value_type, [f.bitcast(pointer) for f in used.kept])
