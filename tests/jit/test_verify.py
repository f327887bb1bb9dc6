"""`verify` accepts what `ir` allows and names every seeded fault with its line."""

from __future__ import annotations

import dataclasses
import re

import pytest

from ruda import dtypes
from ruda.errors import VerifyError
from ruda.jit import ir
from ruda.jit.types import RecordType
from ruda.jit.verify import verify
from tests.jit.build import (
    assign,
    boolean,
    const,
    f32,
    f64,
    function,
    grid,
    i32,
    index,
    load,
    op,
    store,
    thread,
    u32,
)

X = ir.Array("x", f32, 1)
OUT = ir.Array("out", f32, 1)
COUNTS = ir.Array("counts", i32, 1)
FIXED = ir.Array("fixed", f32, 1, readonly=True)
TILE = ir.Array("tile", f32, 1, space="shared", shape=(32,))
RECORDS = ir.Array("records", RecordType((("a", 0, dtypes.int8), ("b", 1, f64)), 9), 1)
FACTOR = ir.Variable("factor", dtypes.weak_float)
A = ir.Variable("a", f32)
V = ir.Variable("v", f32)
N = ir.Variable("n", i32)
MASK = ir.Variable("mask", u32)
YES = ir.Variable("yes", boolean)
I = ir.Variable("i", index)
K = ir.Variable("k", index)


def kernel(*body, parameters=(X, OUT, COUNTS, FIXED, RECORDS, FACTOR), arrays=(TILE,), **more):
    prologue = (ir.Assign(A, ir.Cast(ir.Read(FACTOR), f32)),)
    return function(parameters, *body, arrays=arrays, **({"prologue": prologue} | more))


def loop(*body, variable=K, step=1):
    return ir.For(variable, const(0), const(4), const(step), body)


def test_accepts_each_kind_of_node():
    full = const(0xFFFFFFFF, u32)
    verify(
        kernel(
            assign(I, grid()),
            ir.If(
                ir.And(op("lt", I, ir.Extent(X, 0)), op("ge", ir.Read(I), 0)),
                (store(OUT, I, op("add", op("mul", A, load(X, I)), 1.0)),),
                (ir.Return(),),
            ),
            ir.Declare(TILE),
            store(TILE, thread(), ir.Select(op("lt", A, 0.0), op("neg", A), ir.Read(A))),
            ir.Barrier(),
            ir.Barrier(vote="count", predicate=op("lt", A, 0.0), result=N),
            ir.Barrier("warp", mask=full),
            loop(
                assign(V, op("ldexp", load(TILE, K), const(2, i32))),
                ir.If(ir.Or(op("isnan", V), const(False, boolean)), (ir.Break(),)),
            ),
            loop(ir.Continue()),
            ir.While(const(False, boolean), (ir.Break(),)),
            ir.Atomic("add", COUNTS, (thread(),), (const(1, i32),), N),
            ir.Atomic("cas", COUNTS, (const(0),), (const(1, i32), ir.Read(N))),
            ir.Warp("shfl_xor", full, (ir.Read(V), const(1, i32), const(32, i32)), V),
            ir.Warp("ballot", full, (op("lt", A, 0.0),), MASK),
            ir.Warp("activemask", None, (), MASK),
            store(RECORDS, 0, 2.0, ir.Field(1, f64)),
            ir.Fence("device"),
            ir.Print(("v = ", ir.Text(ir.Read(V), ".3f"), "\n")),
            ir.Assert(const(True, boolean), ("never",)),
            assign(N, ir.Bitcast(ir.Read(V), i32)),
            ir.Breakpoint(),
        )
    )


READ_WEAK = ir.Cast(ir.Read(FACTOR), f32)
TOO_LONG = ir.Array("table", f32, 1, space="const", shape=(2,), data=b"1234")
FAULTS = {
    "operand dtypes differ": (
        kernel(assign(V, ir.Op("add", (const(1.0, f32), const(1.0, f64)), f32))),
        "float64 where float32",
    ),
    "result dtype": (
        kernel(assign(V, ir.Op("add", (const(1.0, f64), const(1.0, f64)), f32))),
        "result is float32",
    ),
    "narrow arithmetic": (
        kernel(
            assign(
                ir.Variable("b", dtypes.int8),
                ir.Op("add", (const(1, dtypes.int8),) * 2, dtypes.int8),
            )
        ),
        "add is not made at int8",
    ),
    "no such operation": (
        kernel(assign(V, ir.Op("plus", (const(1.0, f32),) * 2, f32))),
        "no operation 'plus'",
    ),
    "arity": (kernel(assign(V, ir.Op("add", (const(1.0, f32),), f32))), "add takes 2 operands"),
    "parts of a real": (
        kernel(assign(V, ir.Op("real", (const(1.0, f32),), f32))),
        "real is not made at float32",
    ),
    "assigned dtype": (kernel(assign(V, const(1.0, f64))), "float64 where float32"),
    "index dtype": (kernel(store(OUT, const(0, i32), 1.0)), "int32 where index"),
    "index count": (kernel(store(OUT, (0, 0), 1.0)), "2 indices for 1 axes"),
    "condition": (kernel(ir.If(const(1, i32), ())), "int32 where bool"),
    "while condition": (kernel(ir.While(const(1, index), ())), "index where bool"),
    "lazy and": (
        kernel(ir.If(ir.And(const(True, boolean), const(1, i32)), ())),
        "int32 where bool",
    ),
    "undeclared variable": (kernel(store(OUT, 0, ir.Read(V))), "variable 'v' is not readable here"),
    "two meanings of a name": (
        kernel(assign(V, 1.0), assign(ir.Variable("v", f64), 1.0)),
        "the name 'v' stands for",
    ),
    "a name of array and variable": (
        kernel(assign(ir.Variable("x", f32), 1.0)),
        "the name 'x' stands for",
    ),
    "unknown array": (
        kernel(store(ir.Array("y", f32, 1), 0, 1.0)),
        "array 'y' is not the function's",
    ),
    "changed array": (
        kernel(store(dataclasses.replace(OUT, layout="A"), 0, 1.0)),
        "array 'out' is not",
    ),
    "array never declared": (kernel(store(TILE, 0, 1.0)), "shared array 'tile' is never declared"),
    "read-only array": (kernel(store(FIXED, 0, 1.0)), "write to 'fixed'"),
    "loop variable assigned": (kernel(loop(assign(K, 3))), "loop variable 'k' is assigned outside"),
    "loop variable read after": (
        kernel(loop(), assign(I, ir.Read(K))),
        "variable 'k' is not readable",
    ),
    "loop in a loop": (kernel(loop(loop())), "loop variable 'k' is in use"),
    "loop bounds": (kernel(loop(step=1, variable=ir.Variable("k", i32))), "index where int32"),
    "float loop": (kernel(loop(variable=ir.Variable("k", f32))), "loop variable of dtype float32"),
    "break outside": (kernel(ir.If(const(True, boolean), (ir.Break(),))), "break outside a loop"),
    "continue outside": (kernel(loop(), ir.Continue()), "continue outside a loop"),
    "constant out of range": (
        kernel(assign(N, ir.Const(1 << 31, i32))),
        "2147483648 is out of the range",
    ),
    "constant's type": (kernel(assign(V, ir.Const(1, f32))), "float32 constant held as int"),
    "bool held as int": (kernel(ir.If(ir.Const(1, boolean), ())), "bool constant held as int"),
    "weak parameter in the body": (
        kernel(assign(V, READ_WEAK)),
        "variable 'factor' is not readable",
    ),
    "weak constant in the body": (
        kernel(assign(V, ir.Cast(const(1, dtypes.weak_int), f32))),
        "weak dtype weak_int in the body",
    ),
    "weak variable": (kernel(assign(ir.Variable("w", dtypes.weak_int), 1)), "of the weak dtype"),
    "impure prologue": (
        kernel(prologue=(ir.Assign(I, grid()),)),
        "prologue reads scalar parameters only",
    ),
    "atomic dtype": (
        kernel(ir.Atomic("add", COUNTS, (const(0),), (const(1.0, f32),))),
        "float32 where int32",
    ),
    "atomic result": (
        kernel(ir.Atomic("add", COUNTS, (const(0),), (const(1, i32),), V)),
        "result is float32",
    ),
    "atomic bits of floats": (
        kernel(ir.Atomic("xor", OUT, (const(0),), (const(1.0, f32),))),
        "atomic xor on float32",
    ),
    "cas operands": (
        kernel(ir.Atomic("cas", COUNTS, (const(0),), (const(1, i32),))),
        "cas with 1 operands",
    ),
    "warp lane": (
        kernel(
            assign(V, 1.0),
            ir.Warp("shfl", const(1, u32), (ir.Read(V), const(0), const(32, i32)), V),
        ),
        "operand 2 of shfl is index",
    ),
    "warp mask": (
        kernel(ir.Warp("ballot", const(1, i32), (const(True, boolean),), MASK)),
        "int32 where uint32",
    ),
    "warp result": (
        kernel(ir.Warp("all", const(1, u32), (const(True, boolean),), MASK)),
        "result is uint32",
    ),
    "vote result": (
        kernel(ir.Barrier(vote="and", predicate=const(True, boolean), result=YES)),
        "result is bool",
    ),
    "vote without predicate": (kernel(ir.Barrier(vote="and", result=N)), "needs predicate"),
    "barrier scope": (kernel(ir.Barrier("cluster")), "barrier scope 'cluster'"),
    "load in a select": (
        kernel(assign(V, ir.Select(const(True, boolean), load(X, 0), const(0.0, f32)))),
        "load in an arm",
    ),
    "cast from complex": (
        kernel(assign(V, ir.Cast(const(1j, dtypes.complex64), f32))),
        "a cast of complex64 to float32",
    ),
    "bitcast size": (
        kernel(assign(V, ir.Bitcast(const(1, dtypes.int64), f32))),
        "has not the size",
    ),
    "special": (kernel(assign(I, ir.Special("threadId"))), "no threadId"),
    "axis": (kernel(assign(I, ir.Extent(X, 1))), "axis 1 of 1"),
    "whole record": (kernel(ir.Store(RECORDS, (const(0),), const(1.0, f64))), "name a field"),
    "field": (kernel(store(RECORDS, 0, 1.0, ir.Field(2, f64))), "field at byte 2 is not inside"),
    "body is a list": (dataclasses.replace(kernel(), body=[ir.Return()]), "a body is a tuple"),
    "fits": (kernel(fits=((FACTOR, i32),)), "no weak integer parameter"),
    "const data": (kernel(arrays=(TOO_LONG,)), "4 bytes of data instead of 8"),
    "block": (kernel(block=(32, 0, 1)), "block"),
    "print": (kernel(ir.Print((3,))), "a part to print is int"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_names_the_fault(fault):
    malformed, message = FAULTS[fault]
    with pytest.raises(VerifyError, match=re.escape(message)) as caught:
        verify(malformed)
    assert "kernel `kernel`" in str(caught.value)


def test_names_the_line_and_the_node():
    fault = kernel(assign(V, 1.0), loop(assign(V, 2.0), store(OUT, I, V)))
    with pytest.raises(VerifyError) as caught:
        verify(fault)
    assert str(caught.value).endswith("in: i\n  at kernel.py, line 4")
