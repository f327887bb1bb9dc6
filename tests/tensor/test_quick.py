"""What native code does for every recorded op is what Python does."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import warnings

import numpy as np
import pytest

import ruda
from ruda.tensor import execute, graph, program, quick, tensor
from ruda.tensor.graph import form_of
from ruda.tensor.ops import OPS

PYTHONS = quick.PYTHONS


@pytest.fixture(scope="module")
def natives():
    pytest.importorskip("llvmlite.binding")
    quick.install()
    found = (
        tensor.fresh, tensor.record, program.gather, program.above, execute.read,
        tensor.Tensor.__array__,
    )  # fmt: skip
    if found == PYTHONS:
        pytest.skip("the layout of objects is not known")
    return found


def fields(t):
    """All that a recorded tensor is made of."""
    node = t._storage.node
    slots = [s for s in graph.Node.__slots__ if s not in ("story", "form", "library")]
    assert not any(hasattr(node, s) for s in ("story", "form", "library"))
    whole = t._view, t._history, t.grad, t.shape, t.dtype, t.device, t._storage.version
    return [*whole, *(getattr(node, s) for s in slots)]


def operands():
    x, y = (ruda.asarray(np.ones((3, 4), np.float32)) for _ in "12")
    wanted = ruda.asarray(np.ones((3, 4), np.float32)).requires_grad_()
    deep = x
    while deep._storage.node.depth < graph.MAX_DEPTH:
        deep = deep + y
    return [
        x, y, x + y, x * 2.0 - y, deep, x.T, x[:2], wanted, ruda.ones(4), ruda.ones((3, 4)) + y,
        ruda.ones((3, 4), dtype="float64"), ruda.ones((3, 4), dtype="int32"), 2, 2.5, True, 1j,
        np.float32(2), np.ones((3, 4), np.float32), None, "x",
    ]  # fmt: skip


def test_ops_are_recorded_alike(natives):
    _, python, *_ = PYTHONS
    _, native, *_ = natives
    known = {ruda.float32: ruda.float32, ruda.float64: ruda.bool}
    recorded = 0
    values = operands()
    for x in values[:12]:
        for y in values:
            for numbers in ((), (float, int)):
                found = [r(OPS["add"], known, numbers, x, y) for r in (python, native)]
                assert (found[0] is None) == (found[1] is None)
                if found[0] is not None:
                    recorded += 1
                    mine, theirs = map(fields, found)
                    assert all(a is b or a == b for a, b in zip(mine, theirs, strict=True))
    assert recorded > 50


def test_reductions_of_all_axes_are_recorded_alike(natives):
    """The second of a kind goes a shorter way; what is not plain does not."""
    for name in ("sum", "max", "prod"):
        for shape in ((5,), (3, 4), (2, 3, 4), (), (0,) if name != "max" else (1,)):
            for dtype in ("float32", "float64", "int32", "bool", "complex64"):
                if name == "max" and dtype in ("bool", "complex64"):
                    continue
                x = ruda.ones(shape, dtype=dtype)
                first, second = (getattr(ruda, name)(x) for _ in "12")
                assert fields(first) == fields(second), (name, shape, dtype)
                assert np.array_equal(np.asarray(second), getattr(np, name)(np.asarray(x)))
    x = ruda.asarray([[1.0, 2.0], [3.0, 4.0]])
    for _ in range(2):
        assert ruda.sum(x[0]).item() == 3 and ruda.sum(x, keepdims=True).shape == (1, 1)
        assert ruda.sum(x, axis=0).tolist() == [4, 6] and ruda.sum(x, dtype="float64").item() == 10
        with pytest.raises(ruda.errors.ShapeError):
            ruda.max(ruda.ones((0, 2)))
    wanted = ruda.asarray([1.0, 2.0]).requires_grad_()
    ruda.sum(wanted).backward()
    assert wanted.grad.tolist() == [1, 1]


def test_programs_have_the_same_keys(natives):
    _, _, python, *_ = PYTHONS
    _, _, native, *_ = natives
    rng = random.Random(0)
    for _ in range(50):
        pool = [ruda.asarray(np.ones((3, 4), np.float32)) for _ in range(3)]
        for _ in range(rng.randrange(1, 30)):
            x, y = rng.choice(pool), rng.choice(pool)
            pool.append(
                rng.choice([
                    lambda x=x, y=y: x + y, lambda x=x: x * 2.5, lambda x=x: 3 - x,
                    lambda x=x: ruda.sum(x, axis=0, keepdims=True) + x,
                    lambda x=x: x[::-1] + ruda.exp(x), lambda x=x, y=y: ruda.where(x > y, x, 1),
                ])()
            )  # fmt: skip
        targets = [t.node() for t in pool[-2:] if t._storage.node.value is None]
        found = []
        for gather in (python, native):
            nodes, leaves, numbers, key = list(targets), [], [], []
            numbered = {n: k for k, n in enumerate(nodes)}
            count = gather(nodes, numbered, leaves, numbers, key, form_of)
            found.append((count, nodes, leaves, numbers, key, numbered))
        assert found[0] == found[1]


def test_references_are_counted_alike(natives):
    *_, python, _, _ = PYTHONS
    *_, native, _, _ = natives
    tensors = [ruda.asarray([1.0]) for _ in range(5)]
    nodes = [t._storage.node for t in tensors]
    more = [nodes[1], [nodes[2]] * 1000]
    found = program.references(nodes)
    assert found[1] == found[0] + 1 and found[2] == found[0] + 1000
    for change in (-1, 0, 1):
        known = program.counts([r + change for r in found])
        assert native(nodes, known) == python(nodes, known) == bytes([change < 0] * 5)
    known = program.counts([found[0]] * 5)
    assert native(nodes, known) == python(nodes, known) == bytes([0, 1, 1, 0, 0])
    alone = [graph.Node()]
    assert native(alone, program.counts([program.OWN])) == b"\0"
    assert native(alone, program.counts([program.OWN - 1])) == b"\1"
    assert native([], b"") == python([], b"") == b""
    for wrong in ((nodes, known[:-8]), (tuple(nodes), known), (nodes, "x" * 40), (nodes,)):
        with pytest.raises(TypeError):
            native(*wrong)
    del more


def small_programs():
    """Tensors that wait: of ops that native code computes, of others, and of both."""
    x, y = (ruda.asarray(np.linspace(-2, 3, 12, dtype="f4").reshape(3, 4) ** k) for k in (1, 2))
    d = ruda.asarray(np.linspace(1, 2, 12).reshape(3, 4))
    row, number, whole = ruda.asarray(np.ones(4, "f4")), ruda.asarray(2.0), ruda.asarray([1, 2, 3])
    s = x + y
    return [
        x + y, x * 2.5, 2.5 - x, x * 2, x > y, x == x, s * s - x, ruda.sqrt(y) / d, ruda.exp(x),
        x + row, row[::-1] * 2.0, x.T + x.T, ruda.maximum(x, y) ** 2.0, number * number,
        whole + whole, whole * 2.0, -ruda.abs(x - y), ruda.sum(x + y, axis=0), x / (x - x),
        ruda.sqrt(x) * 1e38 * 1e38, ruda.where(x > 0, x, y), ruda.zeros((0, 3)) + 1.0, d * d,
        ruda.asarray(np.ones(5000, "f4")) + 1.0, ruda.astype(x, "float16") + 1.0,
    ]  # fmt: skip


@pytest.mark.parametrize("fusion", ["1", "0", "verify"])
def test_small_work_is_read_alike(natives, fusion):
    """Without warnings, and nodes forget what they were made of."""
    *_, python, _ = PYTHONS
    *_, native, _ = natives
    with ruda.config(fusion=fusion):
        for _ in range(2):  # at first no shape is known to be small
            some = slice(3) if fusion == "verify" else slice(None)  # which compiles them all
            for theirs, mine in zip(small_programs()[some], small_programs()[some], strict=True):
                a, b = theirs.node(), mine.node()
                wanted, found = python(a), native(b)
                assert type(found) is np.ndarray and found is b.value
                assert found.dtype == wanted.dtype and found.shape == wanted.shape
                assert found.tobytes() == wanted.tobytes()
                assert (b.inputs, b.row, b.depth) == (a.inputs, a.row, a.depth)
                assert native(b) is found
    assert execute._lock.acquire(blocking=False)
    execute._lock.release()
    with np.errstate(all="raise"):
        x = ruda.asarray(np.full(3, 1e38, "f4"))
        assert np.isinf(native((x * x).node())).all()
        with pytest.raises(FloatingPointError):
            np.float32(1e38) * np.float32(1e38)


SPECIAL = [0.0, -0.0, 1.0, -1.5, 2.5, 0.3, 1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan, 1e-310]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_loop_of_numpy_gives_what_its_ufunc_does(natives, dtype):
    """Also with a number, and of no elements."""
    *_, native, _ = natives
    kind = ruda.dtypes.as_dtype(dtype)
    found = quick.loops(kind)
    with np.errstate(all="ignore"):
        left, right = (v.ravel().astype(dtype) for v in np.meshgrid(SPECIAL * 3, SPECIAL))
        assert {"add", "greater", "exp", "maximum", "isnan", "copysign"} <= {r.name for r in found}
        for row in found:
            for a, b in ((left, right), (left[:3], right[5:8]), (left[:0], right[:0])):
                x, y = ruda.asarray(a), ruda.asarray(b)
                execute.is_small(x.shape)
                count = len(row.parameters)
                others = [(y, b)] + [(n, n) for n in (0.7, 1e300, float("nan"))]
                for theirs, other in others if count == 2 else [(None, None)]:
                    node = ruda.tensor.tensor.function(row.name)(*[x, theirs][:count]).node()
                    assert node.value is None
                    value, wanted = native(node), row.plain(*[a, other][:count])
                    assert value.dtype == wanted.dtype and value.shape == wanted.shape, row.name
                    assert value.flags.owndata and value.flags.c_contiguous, row.name
                    assert value.tobytes() == wanted.tobytes(), (row.name, other)


def test_numpy_gets_the_same_view(natives):
    """Of tensors of every kind, asked for in every way: as from the method in Python."""
    *_, python = PYTHONS
    *_, native = natives
    assert type(vars(tensor.Tensor)["__array__"]) is type(list.append)

    def tensors():
        x = ruda.asarray(np.arange(12, dtype="f4").reshape(3, 4))
        there = ruda.asarray([1, 2], device="sim") + 1
        number = ruda.asarray(2.0) * 1.5
        return [x, x + x, x[1:], x.T, ruda.sum(x), x > 3, number, x - x[0], there]

    for options in ({}, {"dtype": None}, {"copy": None}, {"copy": True}, {"dtype": "f8"}):
        for mine, theirs in zip(tensors(), tensors(), strict=True):
            found, wanted = native(mine, **options), python(theirs, **options)
            assert type(found) is np.ndarray and found.dtype == wanted.dtype
            assert found.shape == wanted.shape and found.strides == wanted.strides
            assert found.tobytes() == wanted.tobytes()
            assert found.flags.writeable == wanted.flags.writeable
            assert options or not found.flags.writeable
            assert mine._storage.node.exported is theirs._storage.node.exported
    x = tensors()[0]
    seen = native(x)
    assert native(x, None, None).base is x.buffer() is seen.base
    x[0, 0] = 9
    assert seen[0, 0] == 0 and native(x)[0, 0] == 9
    with pytest.raises(ValueError, match="needs a copy"):
        native(x, "f8", copy=False)
    with pytest.raises(TypeError):
        native(x, 1, 2, 3, 4, 5)
    with pytest.raises(TypeError):
        native(x, wrong=1)
    with pytest.raises(TypeError):
        native(3)


def test_what_a_trace_reads_is_told(natives):
    reads = []

    class Trace:
        @staticmethod
        def read():
            reads.append(1)

    x = ruda.asarray([1.0, 2.0])
    graph.tracing.current = Trace
    try:
        np.asarray(x)
    finally:
        graph.tracing.current = None
    assert reads == [1]


def test_what_a_ufunc_raises_goes_on(natives):
    """The lock is free again, and NumPy warns as before."""
    *_, native, _ = natives
    x = ruda.asarray(np.full(3, 1e38, "f4"))
    (x + x).buffer()

    class Row:
        kind = "elementwise"

        @staticmethod
        def plain(*given):
            raise KeyboardInterrupt

    node = (x + x).node()
    row, node.row = node.row, Row
    with np.errstate(all="raise"):
        with pytest.raises(KeyboardInterrupt):
            native(node)
        with pytest.raises(FloatingPointError):
            np.float32(1e38) * np.float32(1e38)
    free = []

    def look():
        free.append(execute._lock.acquire(blocking=False))
        execute._lock.release()

    other = threading.Thread(target=look)
    other.start()
    other.join()
    assert free == [True]
    node.row = row
    assert (native(node) == x.buffer() * 2).all()


def test_native_code_keeps_no_references(natives):
    fresh, record, gather, above, read, array = natives
    x, y = (ruda.asarray(np.ones((3, 4), np.float32)) for _ in "12")
    nodes = x._storage.node, y._storage.node
    for n in nodes:
        form_of(n)
    row, known, numbers, big = OPS["add"], {ruda.float32: ruda.float32}, (float, int), 1234.5
    watched = [x, y, *nodes, x.shape, x.device, ruda.float32, row, known, numbers, big, None, ()]
    watched += [execute._small, execute.QUIET, execute._lock, np.ndarray, np.add]
    watched += [True, np.dtype("f4"), np.dtype("?"), graph.tracing, "current"]
    watched += [False, graph.Node, tensor.Tensor, tensor.Storage, *(n.form for n in nodes)]

    def work():
        made = record(row, known, numbers, x, y)
        made = record(row, known, numbers, made, big)
        made = record(row, known, numbers, made, y)
        assert record(row, known, (), made, big) is None
        fresh(row, nodes, x.shape, x.dtype, x.device, 1)
        waits = [made._storage.node]
        gather(waits, {waits[0]: 0}, [], [], [], form_of)
        above(waits, program.counts([1] * len(waits)))
        read(made._storage.node)
        read(made._storage.node)
        read(ruda.sum(x + y)._storage.node)  # not all in native code
        read((x > 2.5)._storage.node)
        array(made)
        array(x + y)
        array(made, None, copy=True)
        with pytest.raises(AttributeError):
            read(big)
        with pytest.raises(TypeError):
            read()
        with pytest.raises(TypeError):
            gather(waits)
        with pytest.raises(TypeError):
            record()

    work()
    gc.collect()
    before = [sys.getrefcount(w) for w in watched]
    for _ in range(300):
        work()
    gc.collect()
    after = [sys.getrefcount(w) for w in watched]
    assert all(abs(a - b) < 100 for a, b in zip(before, after, strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_forked_while_another_thread_computes_works():
    x = ruda.asarray(np.ones(4, np.float32))
    waits, held, go = x + 1.5, threading.Event(), threading.Event()

    def compute():
        with execute._lock:
            held.set()
            go.wait()

    other = threading.Thread(target=compute)
    other.start()
    held.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: fork with threads
        child = os.fork()
    if child == 0:
        signal.alarm(10)
        os._exit(not (np.asarray(waits) == 2.5).all())
    go.set()
    other.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_leaves_a_lock_to_the_thread_that_holds_it():
    with execute._lock:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            os._exit(not execute._lock._is_owned())
    assert os.waitpid(child, 0)[1] == 0


def test_inputs_stay_while_forms_are_asked_for(natives):
    """A finalizer may compute a node that is being looked at."""
    _, _, gather, *_ = natives
    x, y = (ruda.asarray(np.ones(4, np.float32)) for _ in "12")
    wanted = [x._storage.node, y._storage.node]
    node = (x + y)._storage.node
    asked, others = [], []

    def form(n):
        asked.append(n)
        node.inputs = ()
        others.extend((k, k) for k in range(100))  # in the memory that is free then
        return "form"

    assert gather([node], {node: 0}, [], [], [], form) == 3
    assert asked == wanted
