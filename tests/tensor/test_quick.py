"""What native code does for every recorded op is what Python does."""

from __future__ import annotations

import gc
import random
import sys

import numpy as np
import pytest

import ruda
from ruda.tensor import graph, program, quick, tensor
from ruda.tensor.graph import form_of
from ruda.tensor.ops import OPS

PYTHONS = quick.PYTHONS


@pytest.fixture(scope="module")
def natives():
    pytest.importorskip("llvmlite.binding")
    quick.install()
    found = tensor.fresh, tensor.record, program.gather
    if found == PYTHONS:
        pytest.skip("the layout of objects is not known")
    return found


def fields(t):
    """All that a recorded tensor is made of."""
    node = t._storage.node
    slots = [s for s in graph.Node.__slots__ if s not in ("story", "form")]
    assert not hasattr(node, "story") and not hasattr(node, "form")
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
    _, python, _ = PYTHONS
    _, native, _ = natives
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


def test_programs_have_the_same_keys(natives):
    *_, python = PYTHONS
    *_, native = natives
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


def test_native_code_keeps_no_references(natives):
    fresh, record, gather = natives
    x, y = (ruda.asarray(np.ones((3, 4), np.float32)) for _ in "12")
    nodes = x._storage.node, y._storage.node
    for n in nodes:
        form_of(n)
    row, known, numbers, big = OPS["add"], {ruda.float32: ruda.float32}, (float, int), 1234.5
    watched = [x, y, *nodes, x.shape, x.device, ruda.float32, row, known, numbers, big, None, ()]
    watched += [False, graph.Node, tensor.Tensor, tensor.Storage, *(n.form for n in nodes)]

    def work():
        made = record(row, known, numbers, x, y)
        made = record(row, known, numbers, made, big)
        made = record(row, known, numbers, made, y)
        assert record(row, known, (), made, big) is None
        fresh(row, nodes, x.shape, x.dtype, x.device, 1)
        waits = [made._storage.node]
        gather(waits, {waits[0]: 0}, [], [], [], form_of)
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
