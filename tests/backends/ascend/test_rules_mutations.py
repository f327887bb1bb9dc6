"""Each rule that the emulations hold programs to, broken in emitted text: the rule must be named.

`test_tiles_mutations` breaks synchronisation and lengths everywhere; here is one mutant, at least,
for each rule, on both chips, and the error must be that rule's. What no run shows, as types that an
instruction has not, the compiler must refuse.
"""

import ctypes
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import ruda
from ruda import backends
from ruda.backends.ascend.twin import RULES
from ruda.backends.base import Launch
from ruda.errors import BarrierError, DataRaceError, LaunchValueError, OutOfBoundsError, VerifyError
from ruda.jit.tools import describe
from tests.backends.ascend.test_tiles import choose, convert, saxpy
from tests.backends.ascend.test_tiles_mutations import body_of, compile_all, draw
from tests.backends.test_ascend import binary, reverse, run

DEVICE = "ascend-twin:910b"
N = 3 * 512 + 77


@ruda.jit
def row_sums(x, out):
    i = ruda.grid(1)
    if i < x.shape[0]:
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += x[i, j]
        out[i] = total


@ruda.jit
def scattered(x, out):
    i = ruda.grid(1)
    if i < x.size:
        out[i * 7 % x.size] = x[i]


@ruda.jit
def chained(x):
    for i in range(1, x.size):
        x[i] = x[i - 1] + x[i]


@ruda.jit
def total(x, out):
    i = ruda.grid(1)
    if i < x.size:
        ruda.atomic.add(out, 0, x[i])


def zeros(n=N, dtype="f4"):
    return np.zeros(n, dtype)


# kernel -> itself, types, tile, arguments
KERNELS = {
    "saxpy": (saxpy, ("f32", *("f32[:]",) * 3), 512, lambda: (2.0, draw(N), draw(N), zeros())),
    "choose": (choose, ("f32[:]",) * 3, 512, lambda: (draw(N), draw(N), zeros())),
    "convert": (convert, ("f32[:]", "i32[:]"), 512, lambda: (draw(N), zeros(N, "i4"))),
    "row_sums": (row_sums, ("f32[:, :]", "f32[:]"), 4096,
                 lambda: (draw(3 * 5000).reshape(3, 5000), zeros(3))),
    "scattered": (scattered, ("f32[:]",) * 2, 0, lambda: (draw(300), zeros(300))),
    "chained": (chained, ("f32[:]",), 0, lambda: (draw(40),)),
    "total": (total, ("f32[:]",) * 2, 0, lambda: (draw(300), zeros(1))),
}  # fmt: skip

# what is broken, the rule, the kernel, and the first place that becomes something else
MUTANTS = (
    ("more than the unified buffer", "capacity", "saxpy",
     r"(InitBuffer\(f0_ub), ", r"\1, 200000 + "),
    ("past a buffer", "buffer-bounds", "saxpy", r"(Muls\(f0, x_tile, a), count", r"\1, 513"),
    ("scratch of a sum", "buffer-bounds", "row_sums", r"(InitBuffer\(work_ub), [^)]*", r"\1, 32"),
    ("an operand at byte 4", "alignment", "saxpy", r"Muls\(f0,", "Muls(f0[1],"),
    ("a copy to byte 4", "alignment", "saxpy", r"DataCopyPad\(x_tile,", "DataCopyPad(x_tile[1],"),
    ("lanes that nothing wrote", "undefined", "choose",
     r"padded<float>\(count\)", "unpadded<float>()"),
    ("nothing is computed", "undefined", "saxpy", r"Add\(out_tile, f0, y_tile, count\);", ""),
    ("a buffer is kept", "queue", "saxpy", r"in0\.FreeTensor\(x_tile\);", ""),
    ("a tensor of another queue", "queue", "saxpy", r"in0\.EnQue", "out0.EnQue"),
    ("used after it was given back", "queue", "saxpy",
     r"(Muls\(f0, x_tile, a, count\);)(\s*)(in0\.FreeTensor\(x_tile\);)", r"\3\2\1"),
    ("a vector after a vector", "hazard", "saxpy", r"PipeBarrier<PIPE_V>\(\);", ""),
    ("a sum is read too early", "hazard", "row_sums",
     r"SetFlag<HardEvent::V_S>\(EVENT_ID0\);\s*WaitFlag<HardEvent::V_S>\(EVENT_ID0\);", ""),
    ("a flag that nobody sets", "flag", "row_sums", r"SetFlag<HardEvent::V_S>\(EVENT_ID0\);", ""),
    ("a flag that nobody takes", "flag", "row_sums", r"(stage\.open\(pipe\);)",
     r"\1 SetFlag<HardEvent::V_S>(EVENT_ID1);"),
    ("a flag that is set twice", "flag", "row_sums",
     r"(SetFlag<HardEvent::V_S>\(EVENT_ID0\);)", r"\1 \1"),
    ("a flag of other pipes", "flag", "row_sums",
     r"WaitFlag<HardEvent::V_S>", "WaitFlag<HardEvent::V_MTE3>"),
    ("behind an array", "global-bounds", "saxpy", r"(DataCopyPad\(x_tile, x\[at)\]", r"\1 + 1]"),
    ("another array", "read-only", "saxpy", r"DataCopyPad\(out\[at\]", "DataCopyPad(y[at]"),
    ("a scalar store", "cache", "scattered", r"stage\.store<float>\(out, ", "out.SetValue("),
    ("a scalar load of what was copied", "stale-cache", "chained",
     r"ruda::fresh\(x, ", "x.GetValue("),
    ("half of a sum over itself", "overlap", "saxpy",
     r"Add\(out_tile, f0, y_tile, count\)", "Add(f0[8], f0, y_tile, count - 8)"),
    ("a copy of too many rows", "range", "saxpy",
     r"ruda::row<float>\(count\)", "DataCopyExtParams{5000, 4, 0, 0, 0}"),
    ("a copy to calculation", "position", "saxpy", r"DataCopyPad\(x_tile,", "DataCopyPad(f0,"),
    ("sums stay on", "atomic", "total", r"(stage\.add<float>.*;)", r"\1 SetAtomicAdd<float>();"),
    ("a comparison of a tail", "compare-size", "choose", r"(CMPMODE::LT), lanes", r"\1, count"),
    ("a cast that does not round", "mode", "convert", r"CAST_TRUNC", "CAST_NONE"),
)  # fmt: skip


def emitted(name):
    kernel, types, tile, _ = KERNELS[name]
    made = describe(kernel, DEVICE, types, block=128).made
    backend = backends.get(DEVICE)
    source = backend.emit(made.function, backend.target(DEVICE))
    if tile:
        source = replace(source, text=re.sub(r"(int32_t TILE =) \d+", rf"\1 {tile}", source.text))
    return made.function, source


def changed(text, pattern, replacement):
    found, count = re.subn(pattern, replacement, text, count=1)
    assert count, f"the emitted text has no {pattern}"
    return found


def separate(text, name, number):
    """A kernel and its launcher with names of their own, without the header."""
    text = re.sub(r"(?m)^(//|#include).*\n", "", text)
    return body_of(f"constexpr int32_t TILE{text.partition('constexpr int32_t TILE')[2]}"
                   if "constexpr int32_t TILE" in text else f"constexpr int32_t TILE = 1;\n{text}",
                   name, number)  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_a_broken_rule_is_named(name):
    arguments = KERNELS[name][3]
    function, source = emitted(name)
    rows = [row for row in MUTANTS if row[2] == name]
    texts = [source.text, *(changed(source.text, *row[3:]) for row in rows)]
    whole = '#include "ruda_vector.h"\n' + "".join(
        separate(text, function.name, number) for number, text in enumerate(texts)
    )
    backend = backends.get(DEVICE)
    found = backend.compile(replace(source, text=whole), backend.target(DEVICE))
    module = compile_all(backend, found, function)
    for number, (what, rule, *_) in enumerate([("as it is", ""), *rows]):
        call = getattr(module.library, f"ruda_launch_{number}")
        call.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        one = replace(module, library=SimpleNamespace(ruda_launch=call))
        launch = backend.launcher(one, Launch((-(-N // 128), 1, 1), (128, 1, 1)), None)
        if not rule:
            launch(*arguments())
            continue
        with pytest.raises(RULES[rule]) as caught:
            launch(*arguments())
        assert f"[{rule}]" in str(caught.value), what


def test_every_rule_has_a_mutant():
    simt = {"assert", "barrier", "race"}
    elsewhere = {"launch", "dtype", "unsupported", "twin"}  # below, or mistakes of ours
    assert {row[1] for row in MUTANTS} == set(RULES) - simt - elsewhere


COMPILE_TIME = (
    ("a sum of int64", "saxpy", r"Add\(out_tile, f0, y_tile,",
     "Add(out_tile.ReinterpretCast<int64_t>(), f0.ReinterpretCast<int64_t>(), "
     "y_tile.ReinterpretCast<int64_t>(),"),
    ("a choice of int32", "choose", r"Select\(f0, m0, f0, y_tile,",
     "Select(f0.ReinterpretCast<int32_t>(), m0, f0.ReinterpretCast<int32_t>(), "
     "y_tile.ReinterpretCast<int32_t>(),"),
    ("a product with a double", "saxpy", r"Muls\(f0, x_tile, a,", "Muls(f0, x_tile, 2.0,"),
    ("a cast that there is not", "convert", r"Cast\((\w+), (\w+),",
     r"Cast(\1, \2.ReinterpretCast<uint32_t>(),"),
    ("an event that there is not", "row_sums",
     r"SetFlag<HardEvent::V_S>", "SetFlag<HardEvent::S_S>"),
    ("accumulation of int64", "total", r"(stage\.add<)", r"SetAtomicAdd<int64_t>(); \1"),
    ("a barrier of the scalar unit", "saxpy", r"PipeBarrier<PIPE_V>", "PipeBarrier<PIPE_S>"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "pattern", "replacement"), [row[1:] for row in COMPILE_TIME],
                         ids=[row[0] for row in COMPILE_TIME])  # fmt: skip
def test_the_compiler_refuses(name, pattern, replacement):
    """At the user's line."""
    _, source = emitted(name)
    backend = backends.get(DEVICE)
    text = changed(source.text, pattern, replacement)
    with pytest.raises(VerifyError, match=r"refuses this kernel.*\n.*test_\w+\.py:\d+"):
        backend.compile(replace(source, text=text), backend.target(DEVICE))


def test_a_number_of_cores_that_no_launch_has():
    function, source = emitted("saxpy")
    backend = backends.get(DEVICE)
    module = backend.load(backend.compile(source, backend.target(DEVICE)), function, DEVICE)
    module.target = {**module.target, "cores": 70_000}
    launch = backend.launcher(module, Launch((70_000, 1, 1), (128, 1, 1)), None)
    with pytest.raises(LaunchValueError, match="70000 blocks; a launch takes 1 to 65535"):
        launch(2.0, draw(N), draw(N), zeros())


# ---- the 950 -------------------------------------------------------------------------------------


@ruda.jit
def guarded(x):
    i = ruda.grid(1)
    if i < x.size:
        x[i] = x[i] + 1


@ruda.jit
def passed_on(x):
    t = ruda.threadIdx.x
    x[t] = ruda.shfl_sync(0xFFFFFFFF, x[t], (t + 1) % 32)


@ruda.jit
def dynamic(x):
    tile = ruda.shared.array(0, np.float32)
    t = ruda.threadIdx.x
    tile[t] = x[t]
    ruda.syncthreads()
    x[t] = tile[63 - t]


@ruda.jit
def private(x):
    mine = ruda.local.array(8, np.float32)
    t = ruda.threadIdx.x
    for k in range(8):
        mine[k] = x[t] + k
    x[t] = mine[t % 8]


SIMT = (
    ("no guard", guarded, r"if \(i < x_n0\)", "if (true)", OutOfBoundsError, "outside"),
    ("behind an array", guarded,
     r"(?m)^( +)x\[i\] = ", r"\1x[i + 1] = ", OutOfBoundsError, "outside"),
    ("before an array", guarded,
     r"(?m)^( +)x\[i\] = ", r"\1x[i - 1] = ", OutOfBoundsError, "outside"),
    ("half of a shared array", reverse, r"array<float, 64>", "array<float, 32>", OutOfBoundsError,
     "index 32 is outside of an axis of 32"),
    ("half of a private array", private, r"array<float, 8>", "array<float, 4>", OutOfBoundsError,
     "index 4 is outside of an axis of 4"),
    ("a barrier that some miss", reverse, r"asc_syncthreads\(\);",
     "asc_syncthreads(); if (threadIdx.x < 40) asc_syncthreads();", BarrierError, "does not come"),
    ("two barriers", reverse, r"asc_syncthreads\(\);",
     "if (threadIdx.x < 40) {\nasc_syncthreads();\n} else {\nasc_syncthreads();\n}", BarrierError,
     "different barriers"),
    ("a barrier in a loop of uneven length", reverse, r"asc_syncthreads\(\);",
     "for (uint32_t k = 0; k <= threadIdx.x; ++k) asc_syncthreads();", BarrierError,
     "does not come"),
    ("a barrier that the launch was not told of", reverse,
     r"(RUDA_LAUNCH\(\w+), true", r"\1, false",
     BarrierError, "said to have none"),
    ("an exchange that some miss", passed_on, r"(?m)^( +)(float got = ruda::exchange)",
     r"\1if (threadIdx.x < 9) return;\n\1\2", BarrierError, "does not come"),
)  # fmt: skip


@pytest.mark.parametrize(("kernel", "pattern", "replacement", "error", "message"),
                         [row[1:] for row in SIMT], ids=[row[0] for row in SIMT])  # fmt: skip
def test_mutants_of_threads(kernel, pattern, replacement, error, message):
    module = binary(kernel, ("f32[:]",), 64, lambda text: changed(text, pattern, replacement))
    n = 60 if kernel is guarded else 64
    with pytest.raises(error, match=message) as caught:
        run(module, (1, 1, 1), (64, 1, 1), zeros(n))
    first = kernel.py_func.__code__.co_firstlineno
    assert first < caught.value.place.line <= first + 8


@pytest.mark.parametrize("call", ["asc_atomic_add((double*)&tile[0], 1.0)", "asc_shfl(nullptr, 1)",
                                  "SyncAll()"])  # fmt: skip
def test_the_compiler_refuses_threads(call):
    with pytest.raises(VerifyError, match=r"refuses this kernel.*\n.*test_\w+\.py:\d+"):
        binary(reverse, ("f32[:]",), 64, lambda text: changed(text, r"asc_syncthreads\(\)", call))


def test_a_launch_with_less_dynamic_memory_than_is_used():
    told = "element 32 is outside of 128 bytes of dynamic memory"
    with ruda.config(device="ascend-twin:950"), pytest.raises(OutOfBoundsError, match=told):
        dynamic[1, 64, 0, 128](zeros(64))


# ---- races on the 950 ----------------------------------------------------------------------------


@ruda.jit
def blur(x, out):
    tile = ruda.shared.array(66, np.float32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    tile[t + 1] = x[i]
    if t == 0:
        tile[0] = x[max(i - 1, 0)]
        tile[65] = x[min(i + 64, x.size - 1)]
    ruda.syncthreads()
    out[i] = (tile[t] + tile[t + 1] + tile[t + 2]) / 3


@ruda.jit
def tree_sum(x, out):
    part = ruda.shared.array(64, np.float32)
    t = ruda.threadIdx.x
    part[t] = x[ruda.grid(1)]
    step = 32
    while step > 0:
        ruda.syncthreads()
        if t < step:
            part[t] += part[t + step]
        step //= 2
    if t == 0:
        out[ruda.blockIdx.x] = part[0]


@ruda.jit
def histogram(x, out):
    bins = ruda.shared.array(64, np.int32)
    t = ruda.threadIdx.x
    bins[t] = 0
    ruda.syncthreads()
    ruda.atomic.add(bins, int(x[ruda.grid(1)]) % 64, 1)
    ruda.syncthreads()
    out[t] = bins[t]


@ruda.jit
def transpose(x, out):
    tile = ruda.shared.array((8, 8), np.complex64)
    i, j = ruda.threadIdx.x // 8, ruda.threadIdx.x % 8
    tile[i, j] = x[8 * i + j]
    ruda.syncthreads()
    out[8 * i + j] = tile[j, i].real


@ruda.jit
def by_turns(x, out):
    """Every second barrier keeps a reader from the next writer."""
    one = ruda.shared.array(1, np.float32)
    t = ruda.threadIdx.x
    total = np.float32(0)
    for k in range(4):
        if t == k:
            one[0] = x[t]
        ruda.syncthreads()
        total += one[0]
        ruda.syncthreads()
    out[t] = total


@ruda.jit
def any_dtype(x, out):
    """Arrays of the launch that share its dynamic bytes, at two dtypes."""
    words = ruda.shared.array(0, np.float32)
    halves = ruda.shared.array(0, np.float16)
    t = ruda.threadIdx.x
    words[t] = x[t]
    ruda.syncthreads()
    low = halves[2 * ((t + 1) % 64)]
    ruda.syncthreads()
    halves[127 - t] = np.float16(1)
    out[t] = low


@ruda.jit
def by_warps(x, out):
    """An exchange orders the lanes of one warp, and nothing beyond."""
    tile = ruda.shared.array(64, np.float32)
    t = ruda.threadIdx.x
    tile[t] = x[t]
    ruda.syncwarp()
    out[t] = tile[t ^ 1]


@ruda.jit
def last_one_sums(x, out):
    """A fence and an atomic order what was written before them."""
    tile = ruda.shared.array(64, np.float32)
    done = ruda.shared.array(1, np.int32)
    t = ruda.threadIdx.x
    if t == 0:
        done[0] = 0
    ruda.syncthreads()
    tile[t] = x[t]
    ruda.threadfence_block()
    if ruda.atomic.add(done, 0, 1) == 63:
        total = np.float32(0)
        for k in range(64):
            total += tile[k]
        out[0] = total


BARRIER = r"asc_syncthreads\(\);"
# kernel -> dtypes of x and out
RACES = {
    "blur": (blur, "f4", "f4"), "tree_sum": (tree_sum, "f4", "f4"),
    "histogram": (histogram, "f4", "i4"), "transpose": (transpose, "c8", "f4"),
    "by_turns": (by_turns, "f4", "f4"), "any_dtype": (any_dtype, "f4", "f4"),
    "last_one_sums": (last_one_sums, "f4", "f4"),
}  # fmt: skip
NAMES = {"f4": "f32[:]", "i4": "i32[:]", "c8": "c64[:]"}


def shared_launch(name, change):
    kernel, x, out = RACES[name]
    module = binary(kernel, (NAMES[x], NAMES[out]), 64, change)
    launch = Launch((2 if name in ("blur", "tree_sum") else 1, 1, 1), (64, 1, 1), 256)
    backends.get("ascend-twin").launcher(module, launch, None)(
        np.arange(128)[::-1].astype(x), np.zeros(128, out)
    )


@pytest.mark.parametrize("name", RACES)
def test_no_race_where_barriers_are(name):
    shared_launch(name, lambda text: text + "\n")


@pytest.mark.parametrize(("name", "barrier"), [
    ("blur", 0), ("tree_sum", 0), ("histogram", 0), ("histogram", 1), ("transpose", 0),
    ("by_turns", 0), ("by_turns", 1), ("any_dtype", 0), ("any_dtype", 1),
])  # fmt: skip
def test_each_barrier_that_is_left_out_is_a_race(name, barrier):
    def without(text):
        start = [m.start() for m in re.finditer(BARRIER, text)][barrier]
        return text[:start] + text[start:].replace("asc_syncthreads();", ";", 1)

    kernel = RACES[name][0]
    told = (
        r"data race on element \d+ of `\w+`.*in shared memory: .* at line \d+ of the generated text"
    )
    with pytest.raises(DataRaceError, match=told) as caught:
        shared_launch(name, without)
    assert f"({__file__}:" in str(caught.value)  # the other access, at the user's line
    first = kernel.py_func.__code__.co_firstlineno
    assert caught.value.place.file == __file__
    assert first < caught.value.place.line < first + 17


def test_a_fence_that_is_left_out_is_a_race():
    with pytest.raises(DataRaceError, match=r"element \d+ of `tile`"):
        shared_launch(
            "last_one_sums", lambda text: changed(text, r"asc_threadfence_block\(\);", ";")
        )


def test_plain_stores_instead_of_atomics_are_a_race():
    def plain(text):
        return changed(text, r"asc_atomic_add\(&(.*), int32_t\(1\)\);", r"\1 = \1 + 1;")

    with pytest.raises(DataRaceError, match="element 3 of `bins`"):
        kernel, x, out = RACES["histogram"]
        module = binary(kernel, (NAMES[x], NAMES[out]), 64, plain)
        run(module, (1, 1, 1), (64, 1, 1), np.full(64, 3, x), np.zeros(64, out))


@pytest.mark.parametrize(("lane", "races"), [("t ^ 1", False), ("t ^ 32", True)])
def test_an_exchange_orders_the_lanes_of_its_warp(lane, races):
    def change(text):
        text = changed(text, BARRIER, "asc_ballot(true);")
        return text.replace("t ^ 1", lane) + "\n"

    module = binary(by_warps, ("f32[:]", "f32[:]"), 64, change)
    launch = backends.get("ascend-twin").launcher(module, Launch((1, 1, 1), (64, 1, 1)), None)
    x, out = np.arange(64, dtype="f4"), zeros(64)
    if races:
        with pytest.raises(DataRaceError, match="of `tile`"):
            launch(x, out)
    else:
        launch(x, out)
        assert (out == x[np.arange(64) ^ 1]).all()
