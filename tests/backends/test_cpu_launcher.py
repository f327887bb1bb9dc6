"""The launcher: what it packs, what it refuses, and that it leaves objects as they were."""

import functools
import gc
import pickle
import struct
import sys
import threading
import time
import types
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ruda
from ruda.backends import cpu_launcher, cpu_pool
from ruda.errors import LaunchTypeError
from tests.backends import test_cpu_pool

# dump: the report buffer is [number of words, words...]; copies the argument block there.
# wait_for: waits until word 0 of its array is not 0 (word 1 becomes 1), but not for ever.
# fill: the first argument is an i64 array; block i raises its element i, then the report's word 0.
BODIES = (
    test_cpu_pool.BODIES
    + """
define i32 @dump(ptr %result, ptr %exception, i64 %args, i64 %lo, i64 %hi) {
entry:
  %block = inttoptr i64 %args to ptr
  %report_at = getelementptr i64, ptr %block, i64 6
  %report = load ptr, ptr %report_at
  %count = load i64, ptr %report
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %from = getelementptr i64, ptr %block, i64 %i
  %word = load i64, ptr %from
  %next = add i64 %i, 1
  %to = getelementptr i64, ptr %report, i64 %next
  store i64 %word, ptr %to
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %out
out:
  ret i32 0
}
define i32 @fill(ptr %result, ptr %exception, i64 %args, i64 %lo, i64 %hi) {
  %block = inttoptr i64 %args to ptr
  %array_at = getelementptr i64, ptr %block, i64 8
  %array = load i64, ptr %array_at
  call i32 @count(ptr %result, ptr %exception, i64 %array, i64 %lo, i64 %hi)
  ret i32 0
}
define i32 @slow_fill(ptr %result, ptr %exception, i64 %args, i64 %lo, i64 %hi) {
  %block = inttoptr i64 %args to ptr
  %array_at = getelementptr i64, ptr %block, i64 8
  %array = load i64, ptr %array_at
  call i32 @slow_count(ptr %result, ptr %exception, i64 %array, i64 %lo, i64 %hi)
  ret i32 0
}
define i32 @wait_for(ptr %result, ptr %exception, i64 %args, i64 %lo, i64 %hi) {
entry:
  %block = inttoptr i64 %args to ptr
  %array_at = getelementptr i64, ptr %block, i64 8
  %array = load ptr, ptr %array_at
  %seen_at = getelementptr i64, ptr %array, i64 1
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %on]
  %flag = load atomic i64, ptr %array acquire, align 8
  %set = icmp ne i64 %flag, 0
  br i1 %set, label %seen, label %on
on:
  %next = add i64 %i, 1
  %late = icmp sgt i64 %i, 1500000000
  br i1 %late, label %out, label %loop
seen:
  store i64 1, ptr %seen_at
  br label %out
out:
  ret i32 0
}
define i32 @report(ptr %result, ptr %exception, i64 %args, i64 %lo, i64 %hi) {
  %block = inttoptr i64 %args to ptr
  %report_at = getelementptr i64, ptr %block, i64 6
  %report = load ptr, ptr %report_at
  %argument_at = getelementptr i64, ptr %block, i64 8
  %argument = load i64, ptr %argument_at
  store i64 %argument, ptr %report
  ret i32 0
}
"""
)
ONE = (1, 1, 1)
RECORD = np.dtype([("x", np.float32), ("n", np.int16)])


@pytest.fixture(scope="module")
def native():
    return cpu_pool.load_forever(BODIES)


@pytest.fixture(params=["native", "python"])
def build(request):
    return {"native": cpu_launcher.build, "python": cpu_launcher.build_python}[request.param]


def fallback(*arguments, **keywords):
    return "fallback", arguments, keywords


def array(dtype="float32", ndim=1, layout="C", written=False):
    return ("array", dtype, ndim, layout, written)


def test_native_launcher_is_available_here():
    assert cpu_launcher._layout_is_known()
    launcher = cpu_launcher.build([], 0, (0, 1, 1), ONE, fallback, threads=1)
    assert type(launcher).__name__ == "builtin_function_or_method"
    assert launcher() is None


def test_unknown_object_layout_means_no_native_launcher(monkeypatch):
    monkeypatch.setitem(cpu_launcher.OFFSETS, "ARRAY_FLAGS", 72)
    assert not cpu_launcher._layout_is_known()
    monkeypatch.setattr(cpu_launcher, "_method", cpu_launcher._method.__wrapped__)
    arguments = [], 0, (0, 1, 1), ONE, fallback
    assert cpu_launcher.build(*arguments, threads=1) is None
    assert cpu_launcher.build_any(*arguments, threads=1)() is None


# ---- what is packed ------------------------------------------------------------------------------


def block_of(native, build, arguments, layout, grid=ONE, block=ONE, **options):
    """The argument block that a body sees."""
    n = cpu_launcher.word_count(layout)
    report = np.full(n + 2, -77, np.int64)
    report[0] = n
    launch = build(
        layout, native["dump"], grid, block, fallback,
        threads=1, chunk=1 << 40, report=report.ctypes.data, **options,
    )  # fmt: skip
    assert launch(*arguments) is None
    assert report[n + 1] == -77
    words = report[1 : n + 1].copy()
    assert words[6] == report.ctypes.data
    words[6] = 0
    return words


def bits(form, *values):
    return list(np.frombuffer(struct.pack(form, *values).ljust(8, b"\0"), np.int64))


SCALARS = [
    ("weak_int", 5, [5]),
    ("weak_int", -(1 << 63), [-(1 << 63)]),
    ("weak_int", (1 << 63) - 1, [(1 << 63) - 1]),
    ("weak_float", -0.0, bits("d", -0.0)),
    ("weak_float", float("nan"), bits("d", float("nan"))),
    ("weak_float", 0.1, bits("d", 0.1)),
    ("weak_complex", 1.5 - 2j, bits("dd", 1.5, -2.0)),
    ("bool", True, [1]),
    ("bool", False, [0]),
    ("bool", np.True_, [1]),
    ("bool", np.False_, [0]),
    ("int8", np.int8(-128), [-128]),
    ("int16", np.int16(-2), [-2]),
    ("int32", np.int32(-(1 << 31)), [-(1 << 31)]),
    ("int64", np.int64(-(1 << 63)), [-(1 << 63)]),
    ("uint8", np.uint8(255), [255]),
    ("uint16", np.uint16(65535), [65535]),
    ("uint32", np.uint32((1 << 32) - 1), [(1 << 32) - 1]),
    ("uint64", np.uint64((1 << 64) - 1), [-1]),
    ("float16", np.float16(-1.5), [0xBE00]),
    ("bfloat16", ml_dtypes.bfloat16(-1.5), [0xBFC0]),
    ("float32", np.float32(-1.5), [0xBFC00000]),
    ("float64", np.float64(0.1), bits("d", 0.1)),
    ("complex64", np.complex64(1 - 2j), bits("ff", 1.0, -2.0)),
    ("complex128", np.complex128(1 - 2j), bits("dd", 1.0, -2.0)),
    (ruda.float32, np.float32(2.0), [0x40000000]),
]


@pytest.mark.parametrize(("kind", "value", "words"), SCALARS, ids=lambda value: repr(value))
def test_scalar_words(native, build, kind, value, words):
    layout = [("scalar", kind), ("scalar", "weak_int")]
    assert list(block_of(native, build, [value, 9], layout)[8:]) == [*words, 9]


def test_header_words(native, build):
    words = block_of(native, build, [], [], (2, 3, 4), (5, 6, 7), shared_bytes=96)
    assert list(words) == [2, 3, 4, 5, 6, 7, 0, 96]


def test_array_words(native, build):
    x = np.zeros((3, 4, 5), np.int16)[:, ::2, ::-1]
    words = block_of(native, build, [x], [array("int16", 3, "A")])
    assert list(words[8:]) == [x.ctypes.data, 3, 2, 5, 40, 20, -2]


def test_zero_dimensional_and_empty_arrays(native, build):
    x, y = np.zeros((), np.float64), np.zeros((2, 0), np.float32)
    words = block_of(native, build, [x, y], [array("float64", 0), array("float32", 2)])
    assert list(words[8:]) == [x.ctypes.data, y.ctypes.data, *y.shape, *y.strides]


def test_many_arguments_and_axes(native, build):
    arrays = [np.zeros((1,) * (i % 33), np.int8) for i in range(200)]
    layout = [array("int8", a.ndim, written=True) for a in arrays]
    words = block_of(native, build, arrays, layout, no_alias=True)
    assert (words[8:] == cpu_launcher.pack(arrays, layout)[8:]).all()


DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "float16", "float32", "float64", "complex64", "complex128"]  # fmt: skip


@st.composite
def argument(draw):
    """A value and a row that fits it."""
    if draw(st.booleans()):
        kind, value, _ = draw(st.sampled_from(SCALARS))
        return value, ("scalar", kind)
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    value = np.zeros(shape, dtype)
    for axis in range(value.ndim):
        step = draw(st.sampled_from([1, 1, 2, -1]))
        value = value[(slice(None),) * axis + (slice(None, None, step),)]
    if draw(st.booleans()):
        value = value.T
    layout = "C" if value.flags.c_contiguous and draw(st.booleans()) else "A"
    return value, ("array", dtype, value.ndim, layout, draw(st.booleans()))


@settings(max_examples=150, deadline=None)
@given(st.lists(argument(), max_size=6), st.tuples(*[st.integers(1, 9)] * 3))
def test_native_block_equals_the_python_block(native, pairs, grid):
    arguments, layout = [p[0] for p in pairs], [p[1] for p in pairs]
    expected = cpu_launcher.pack(arguments, layout, grid, (4, 2, 1))
    for no_alias in (False, True):
        words = block_of(
            native, cpu_launcher.build, arguments, layout, grid, (4, 2, 1), no_alias=no_alias
        )
        assert (words == expected).all()


# ---- what goes to the fallback -------------------------------------------------------------------

read_only = np.zeros(4, np.float32)
read_only.flags.writeable = False
unaligned = np.zeros(17, np.int8)[1:].view(np.float32)


class Subclass(np.ndarray):
    pass


MISFITS = [
    (array(), np.zeros(4, np.float64)),
    (array(), np.zeros(4, np.int32)),
    (array(), np.zeros(4, ">f4")),
    (array(), np.zeros((2, 2), np.float32)),
    (array(), np.zeros((), np.float32)),
    (array(), np.zeros(8, np.float32)[::2]),
    (array(layout="A"), unaligned),
    (array(), unaligned),
    (array(written=True), read_only),
    (array(ndim=2), np.zeros((3, 4), np.float32).T),
    (array("int64"), np.zeros(4, "datetime64[s]")),
    (array(RECORD), np.zeros(4, np.float64)),
    (array(RECORD), np.zeros(4, [("x", np.float32), ("m", np.int16)])),
    (array("datetime64[s]"), np.zeros(4, "datetime64[ms]")),
    (array(), [1.0, 2.0]),
    (array(), None),
    (array(), np.float32(1)),
    (("scalar", "weak_int"), True),
    (("scalar", "weak_int"), 1.0),
    (("scalar", "weak_int"), np.int64(1)),
    (("scalar", "weak_int"), 1 << 63),
    (("scalar", "weak_int"), -(1 << 63) - 1),
    (("scalar", "weak_int"), 1 << 200),
    (("scalar", "weak_int", -128, 127), 128),
    (("scalar", "weak_int", -128, 127), -129),
    (("scalar", "weak_float"), 1),
    (("scalar", "weak_float"), np.float64(1)),
    (("scalar", "weak_float"), np.float32(1)),
    (("scalar", "weak_complex"), 1.0),
    (("scalar", "bool"), 1),
    (("scalar", "bool"), None),
    (("scalar", "float64"), 1.0),
    (("scalar", "float32"), np.float64(1)),
    (("scalar", "int32"), 1),
    (("scalar", "int32"), np.int64(1)),
    (("scalar", "uint8"), np.int8(1)),
    (("scalar", "int8"), np.bool_(1)),
]


@pytest.mark.parametrize(("row", "value"), MISFITS, ids=lambda value: repr(value)[:40])
def test_misfit_goes_to_the_fallback(native, build, row, value):
    x = np.zeros(1, np.int64)
    layout = [array("int64", written=True), row]
    launch = build(layout, native["fill"], ONE, ONE, fallback, threads=1)
    name, arguments, keywords = launch(x, value)
    assert (name, keywords) == ("fallback", {})
    assert arguments[0] is x
    assert arguments[1] is value
    assert x[0] == 0


@pytest.mark.parametrize(("row", "value"), MISFITS, ids=lambda value: repr(value)[:40])
def test_pack_refuses_a_misfit(row, value):
    error = OverflowError if row[1] == "weak_int" and type(value) is int else LaunchTypeError
    with pytest.raises(error, match="argument 0 is"):
        cpu_launcher.pack([value], [row])


FITS = [
    (array(written=False), read_only),
    (array(layout="A"), np.zeros(8, np.float32)[::-2]),
    (array(ndim=2), np.zeros((1, 4), np.float32).T),
    (array(ndim=2), np.zeros((0, 4), np.float32).T),
    (array("bfloat16"), np.zeros(4, ml_dtypes.bfloat16)),
    (array(RECORD), np.zeros(4, RECORD)),
    (array(), pickle.loads(pickle.dumps(np.zeros(4, np.float32)))),
    (array(), np.zeros(4, np.dtype("f4", metadata={"unit": "m"}))),
    (array(), np.zeros(4, "<f4" if sys.byteorder == "little" else ">f4")),
    (array("bool"), np.zeros(4, bool)),
    (array(ruda.int32), np.zeros(4, np.int32)),
    (("scalar", "weak_int", -128, 127), 127),
    (("scalar", "weak_int", -128, 127), -128),
    (("scalar", "weak_int", 0, (1 << 64) - 1), 1 << 62),
]


@pytest.mark.parametrize(("row", "value"), FITS, ids=lambda value: repr(value)[:40])
def test_fit_is_launched(native, build, row, value):
    x = np.zeros(1, np.int64)
    layout = [array("int64", written=True), row]
    launch = build(layout, native["fill"], ONE, ONE, fallback, threads=1)
    assert launch(x, value) is None
    assert x[0] == 1


def test_number_of_arguments_and_keywords(native, build):
    x = np.zeros(1, np.int64)
    launch = build([array("int64")], native["fill"], ONE, ONE, fallback, threads=1)
    for arguments in ((), (x, x), (x, x, x)):
        assert launch(*arguments) == ("fallback", arguments, {})
    assert launch(x=x) == ("fallback", (), {"x": x})
    assert launch(x, block=4) == ("fallback", (x,), {"block": 4})
    assert x[0] == 0


def test_unknown_rows_are_refused():
    for row in (("array", "float32", 1, "F", False), ("scalar", "no_such_dtype")):
        with pytest.raises((ValueError, TypeError)):
            cpu_launcher.build([row], 0, ONE, ONE, fallback, threads=1)


base = np.zeros(32, np.int64)
SHARED = [  # two views, and whether a write to the first may be seen in the second
    (base[:8], base[8:16], False),
    (base[:8], base[7:16], True),
    (base[8:16], base[:8], False),
    (base[8:16], base[:9], True),
    (base, base[5:6], True),
    (base[5:6], base, True),
    (base, base, True),
    (base[::2], base[1::2], True),  # ranges, not elements
    (base[7::-1], base[8:], False),
    (base[8::-1], base[8:], True),
    (base[8::-1], base[:3], True),
    (base[3:3], base, False),
    (base, base[3:3], False),
]


@pytest.mark.parametrize("written", [(True, False), (False, True), (True, True), (False, False)])
@pytest.mark.parametrize(("x", "y", "shared"), SHARED)
def test_overlap_goes_to_the_fallback_when_no_alias_is_assumed(
    native, build, x, y, shared, written
):
    layout = [array("int64", layout="A", written=w) for w in written]
    expected = shared and any(written)
    assert cpu_launcher.overlaps([x, y], layout) == expected
    for no_alias in (False, True):
        launch = build(
            layout, native["fill"], (0, 1, 1), ONE, fallback, threads=1, no_alias=no_alias
        )
        assert (launch(x, y) is not None) == (expected and no_alias)


def test_overlap_is_found_among_other_arguments(native, build):
    x, y, z = np.zeros((4, 4)), np.zeros(3), np.zeros(5)
    rows = [array("float64", 2), ("scalar", "weak_int"), array("float64"), array("float64", 1, "A")]
    rows[2] = array("float64", written=True)
    launch = build(rows, native["fill"], (0, 1, 1), ONE, fallback, threads=1, no_alias=True)
    assert launch(x, 1, y, z) is None
    assert launch(x, 1, x[3], z) is not None
    assert launch(x, 1, y, y[::2]) is not None
    assert launch(z.reshape(1, 5), 1, y, z) is None  # both only read


def test_guards_watch_captured_variables(native, build):
    value, other = object(), object()
    names = {"scale": value, "more": 1}
    cell = types.CellType(value)
    guards = [(names, "scale", value), (cell, None, value)]
    launch = build([], native["dump"], (0, 1, 1), ONE, fallback, threads=1, guards=guards)
    assert launch() is None
    names["scale"] = other
    assert launch() is not None
    names["scale"] = value
    assert launch() is None
    cell.cell_contents = other
    assert launch() is not None
    cell.cell_contents = value
    assert launch() is None
    del names["scale"]
    assert launch() is not None


def test_deleted_closure_variable_is_a_changed_one(native, build):
    value = object()
    cell = types.CellType(value)
    guards = [(cell, None, value)]
    launch = build([], native["dump"], (0, 1, 1), ONE, fallback, threads=1, guards=guards)
    del cell.cell_contents
    assert launch() is not None


# ---- the launch ----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [0, 1, 7])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("grid", [(1, 1, 1), (100, 1, 1), (5, 4, 3), (0, 1, 1), (7, 0, 1)])
def test_every_block_of_the_grid_runs_once(native, build, grid, threads, chunk):
    n = int(np.prod(grid))
    x = np.zeros(n + 1, np.int64)
    layout = [array("int64", written=True)]
    launch = build(layout, native["fill"], grid, ONE, fallback, threads=threads, chunk=chunk)
    for _ in range(20):
        assert launch(x) is None
    assert (x[:n] == 20).all()
    assert x[n] == 0


@pytest.mark.parametrize("chunk", [-16, 0, 7])
def test_items_may_be_others_than_blocks(native, build, chunk):
    x = np.zeros(1001, np.int64)
    layout = [array("int64", written=True)]
    launch = build(
        layout, native["fill"], (4, 1, 1), (256, 1, 1), fallback, threads=2, chunk=chunk, count=1000
    )
    for _ in range(20):
        assert launch(x) is None
    assert (x[:1000] == 20).all()
    assert x[1000] == 0


def test_long_launches_are_shared(native):
    """200 blocks that sleep: four threads take at most half the time of one, at once."""
    x = np.zeros(200, np.int64)
    layout = [array("int64", written=True)]

    def seconds(threads):
        launch = cpu_launcher.build(
            layout, native["slow_fill"], (200, 1, 1), ONE, fallback, threads=threads
        )
        start = time.perf_counter()
        launch(x)
        first = time.perf_counter()
        launch(x)
        return first - start, time.perf_counter() - first

    alone, shared = seconds(1), seconds(4)
    assert shared[0] < alone[0] / 2
    assert shared[1] < alone[1] / 2
    assert (x == 4).all()


def test_four_python_threads_use_one_launcher(native, build):
    outputs = [np.zeros(50, np.int64) for _ in range(4)]
    layout = [array("int64", written=True)]
    launch = build(layout, native["fill"], (50, 1, 1), ONE, fallback, threads=2, chunk=8)

    def hammer(x):
        for _ in range(300):
            launch(x)

    threads = [threading.Thread(target=hammer, args=(x,)) for x in outputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((x == 300).all() for x in outputs)


@pytest.mark.parametrize("chunk", [0, 1])
def test_signal_handler_interrupts_a_launch(native, build, chunk):
    def ring(number, frame):
        raise test_cpu_pool.Alarm

    x = np.zeros(10_000, np.int64)
    launch = build(
        [array("int64", written=True)], native["slow_fill"], (10_000, 1, 1), ONE, fallback,
        threads=2, chunk=chunk,
    )  # fmt: skip
    references = sys.getrefcount(x)
    with pytest.raises(test_cpu_pool.Alarm), test_cpu_pool.alarm(ring, 0.05):
        launch(x)
    done = x.sum()
    assert 0 < done < 4000
    time.sleep(0.05)
    assert x.sum() == done
    assert sys.getrefcount(x) == references


def test_launch_of_one_long_block_lets_the_gil_go(native, build):
    """The block waits, for about a second at most, for what another Python thread writes."""
    x = np.zeros(2, np.int64)
    layout = [array("int64", written=True)]

    def set_flag():
        x[0] = 1

    def was_seen(launch):
        x[:] = 0
        timer = threading.Timer(0.05, set_flag)
        timer.start()
        launch(x)
        timer.join()
        return bool(x[1])

    launch = build(layout, native["wait_for"], ONE, ONE, fallback, threads=2)
    assert was_seen(launch)  # of the first launch nothing is known
    assert was_seen(launch)
    x[0] = 1
    for _ in range(5):
        launch(x)
    was_seen(launch)  # may hold the GIL: the launches before it were short
    assert was_seen(launch)


def test_after_is_called_when_the_report_is_not_empty(native, build):
    report = np.zeros(4, np.int64)
    calls = []

    def after():
        calls.append(int(report[0]))
        if report[0] == 13:
            raise LookupError("thirteen")
        return "reported"

    launch = build(
        [("scalar", "weak_int")], native["report"], ONE, ONE, fallback,
        threads=1, report=report.ctypes.data, after=after,
    )  # fmt: skip
    assert launch(0) is None
    assert calls == []
    assert launch(7) == "reported"
    with pytest.raises(LookupError, match="thirteen"):
        launch(13)
    assert calls == [7, 13]
    assert launch(0) is None


# ---- reference counts ----------------------------------------------------------------------------


class Watched:
    """Something that a weak reference can watch."""


def give(thing, *arguments):
    return thing


def raising(*arguments, **keywords):
    raise LookupError("no specialisation")


def test_reference_counts_stay(native):
    x, y = np.zeros(8, np.int64), np.zeros(8, np.float32)
    number, big = 1.5, 12345678901
    layout = [array("int64", written=True), array(), ("scalar", "weak_float"),
              ("scalar", "weak_int"), ("scalar", "bool")]  # fmt: skip
    names = {"value": number}
    make = cpu_launcher.build
    good = make(layout, native["fill"], (8, 1, 1), ONE, fallback, threads=2, chunk=3,
                no_alias=True, guards=[(names, "value", number)])  # fmt: skip
    bad = make(layout, native["fill"], ONE, ONE, raising, threads=1)
    watched = [x, y, x.dtype, y.dtype, number, big, names, fallback, raising, good, bad, None, True]

    def counts():
        gc.collect()
        return [sys.getrefcount(value) for value in watched]

    before = counts()
    for _ in range(1000):
        assert good(x, y, number, big, True) is None
        assert good(x, y, number, number, True)[0] == "fallback"
        assert good(x, y, x=1)[0] == "fallback"
        with pytest.raises(LookupError, match="no specialisation"):
            bad(x)
    now = counts()
    for value, old, new in zip(watched, before, now, strict=True):
        assert abs(new - old) < 50, (type(value), old, new)  # None and True move a little


def test_dropped_launchers_leave_nothing(native, build):
    things = [Watched() for _ in range(3)]
    watchers = [weakref.ref(thing) for thing in things]
    owner, value, holder = things
    launch = build(
        [array(RECORD)], native["dump"], (0, 1, 1), ONE, functools.partial(give, holder),
        threads=1, keep=owner, guards=[({"value": value}, "value", value)],
    )  # fmt: skip
    assert launch(np.zeros(1, RECORD)) is None
    del things, owner, value, holder
    gc.collect()
    assert all(watcher() is not None for watcher in watchers)
    assert launch() is watchers[2]()
    del launch
    gc.collect()
    assert all(watcher() is None for watcher in watchers)


def test_cycle_through_a_launcher_is_collected(native, build):
    thing = Watched()
    watcher = weakref.ref(thing)
    thing.launch = build([], native["dump"], ONE, ONE, fallback, threads=1, keep=thing)
    del thing
    gc.collect()
    assert watcher() is None


def test_fallback_may_drop_the_launcher(native):
    holder = {}

    def forget(*arguments):
        holder.clear()
        gc.collect()
        return "forgotten"

    holder["launch"] = cpu_launcher.build([], native["dump"], ONE, ONE, forget, threads=1)
    assert holder["launch"](1) == "forgotten"
    assert holder == {}


def test_many_launchers_do_not_grow_the_process(native):
    def memory():
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    layout = [array() for _ in range(20)]

    def make(n):
        for _ in range(n):
            cpu_launcher.build(layout, native["dump"], ONE, ONE, fallback, threads=1)

    make(200)
    before = memory()
    make(3000)
    assert memory() - before < 4 << 20  # 3000 plans take 6 MB


def test_launcher_works_without_numba():
    program = """
        import sys
        import numpy as np
        from ruda.backends import cpu_launcher, cpu_pool
        from tests.backends import test_cpu_pool
        body = cpu_pool.load_forever(test_cpu_pool.BODIES)["count"]
        one = (1, 1, 1)
        launch = cpu_launcher.build(
            [("array", "f4", 1, "C", False)], body, (0, 1, 1), one, print, threads=1)
        launch(np.zeros(3, np.float32))
        print("numba" in sys.modules)
    """
    assert test_cpu_pool.in_new_process(program).split() == ["False"]


def test_the_process_ends_while_a_daemon_thread_launches():
    program = """
        import threading, time
        import numpy as np
        from ruda.backends import cpu_launcher, cpu_pool
        from tests.backends import test_cpu_launcher as t
        native = cpu_pool.load_forever(t.BODIES)
        x = np.zeros(4000, np.int64)
        for name, chunk in (("fill", 1), ("slow_fill", 1)):
            launch = cpu_launcher.build([t.array("int64", written=True)], native[name],
                (x.size, 1, 1), t.ONE, print, threads=2, chunk=chunk)
            def hammer(launch=launch):
                while True: launch(x)
            threading.Thread(target=hammer, daemon=True).start()
        time.sleep(0.1)
        print("end")
    """
    assert test_cpu_pool.in_new_process(program).split() == ["end"]
