"""Looking inside kernels: source, IR, assembly, explain, and the command `ruda compile`."""

import textwrap

import numpy as np
import pytest

import ruda
from ruda.errors import (
    DeviceNotFoundError,
    KernelError,
    LaunchTypeError,
    LaunchValueError,
    UsageError,
)
from ruda.jit.tools import compile_command, innermost_loops


@ruda.jit
def scale(x, factor, n: ruda.constexpr = 2):
    i = ruda.grid(1)
    if i < x.size:
        x[i] = x[i] * factor * n


@ruda.jit(device=True)
def helper(v, w):
    s = v * w
    for k in range(3):
        s += k
    return s


@ruda.jit
def costly(x, y, idx, n):
    tile = ruda.shared.array(64, ruda.float32)
    t = ruda.threadIdx.x
    i = ruda.grid(1)
    acc = x[i] * 2
    j = idx[i] + idx[i] * 3
    tile[t] = acc
    ruda.syncthreads()
    if i < y.size:
        y[i] = helper(tile[63 - t], acc) + np.float64(n) * 0.5 + x[j]


@ruda.jit("void(f64[:])")
def declared(x):
    x[0] = 1


LINE = costly.py_func.__code__.co_firstlineno  # of the decorator


def lines(notes):
    return {note.place.line - LINE: note.text for note in notes}


def explained(**options):
    types = "f32[:]", "f32[:]", "i32[:]", "int"
    return ruda.explain(costly, *types, **{"target": "sim", "block": 64, **options})


def test_types_of_variables():
    types = {v.name: v.type for v in explained().variables}
    assert types["x"] == "float32[::1]" and types["n"] == "int"
    assert types["t"] == "index" and types["acc"] == "float32" and types["j"] == "int32"
    assert types["tile"] == "shared float32[64]" and types["helper_s"] == "float32"


def test_arguments_of_a_launch_stand_for_their_types():
    by_name = costly.source("cpu", "f32[:]", "f64[:]", "i32[:]", "int")
    x, y, k = np.ones(3, np.float32), ruda.to_device(np.ones(3)), ruda.asarray([1], dtype="int32")
    assert costly.source("cpu", x, y, k, 7) == by_name
    with pytest.raises(LaunchTypeError, match="give a type for each of x, y, idx, n, not 1"):
        ruda.explain(costly, (x, y, k, 7))


def test_operations_of_64_bits():
    wide = lines(explained().wide)
    assert set(wide) == {-3, 10} and wide[-3] == "conversion to float64"  # of what is returned
    assert "float64 mul" in wide[10] and "conversion to float64" in wide[10]
    assert "conversion from float64" in wide[10]


def test_sums_that_numba_would_widen():
    assert lines(explained().narrow) == {6: "int32 add, int32 mul"}


def test_no_costs():
    found = ruda.explain(scale, "f32[:]", "f32", constexpr={"n": 3})
    assert found.wide == found.narrow == found.spills == ()


def test_the_report_names_every_part():
    text = repr(explained())
    types = "float32[::1], float32[::1], int32[::1], weak_int"
    first = f"costly for sim, types ({types}), block 64 x 1 x 1, as for any block"
    assert text.splitlines()[0] == first
    for part in ("variables", "64-bit operations", "numba would widen", "count from the end",
                 "kept across barriers"):  # fmt: skip
        assert f"\n{part}" in text or part in text
    assert f"test_tools.py:{LINE + 6}  j = idx[i] + idx[i] * 3\n      int32 add, int32 mul" in text


def test_types_of_the_last_launch():
    with pytest.raises(
        LaunchTypeError, match=r"`helper_only` was not launched yet: .* \"f32\[:\]\""
    ):
        ruda.explain(helper_only)
    with ruda.config(device="sim"):
        helper_only[1, 4](np.zeros(4, np.float16))
    assert ruda.explain(helper_only, target="sim").variables[0].type == "float16[::1]"


@ruda.jit
def helper_only(x):
    x[ruda.grid(1)] = helper(2, 3)


def test_a_signature_gives_the_types():
    assert "float64[::1]" in ruda.explain(declared, target="sim").options


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: ruda.explain(scale, "f32[:]"), LaunchTypeError, "for each of x, factor"),
        (lambda: ruda.explain(scale, "f32[:]", "f32", "i32", "i32"), LaunchTypeError, "not 4"),
        (lambda: scale.source("cpu", "f32[:]", "f32", constexpr={"m": 1}), LaunchTypeError,
         "`scale` has no parameter `m`"),
        (lambda: scale.source("tpu", "f32[:]", "f32"), DeviceNotFoundError, "no device 'tpu'"),
        (lambda: scale.source("cpu", "nothing", "f32", constexpr={"n": 1}),
         ruda.errors.DTypeError, "nothing"),
        (lambda: scale.source("cpu", "f32", "f32", constexpr={"n": 1}), KernelError, "size"),
        (lambda: scale.ir("f32[:]", "f32", constexpr={"n": 1}, block=0), LaunchValueError, "block"),
        (lambda: scale.ir("f32[:]", "f32", constexpr={"n": 1}, shared=-1), LaunchValueError,
         "a number of bytes"),
        (lambda: scale.assembly("sim", "f32[:]", "f32"), LaunchTypeError, "no assembly"),
        (lambda: ruda.explain(len), TypeError, "a kernel is asked for, not builtin"),
    ],
)  # fmt: skip
def test_bad_questions(call, error, message):
    with pytest.raises(error) as found:
        call()
    assert message in str(found.value)


def test_the_first_line_says_what_it_was_made_for():
    text = scale.source("cpu", "f32[:]", "f32", constexpr={"n": 3}, block=(16, 8), shared=64)
    assert text.splitlines()[0] == (
        "# scale for cpu, types (x, factor, n), block 16 x 8 x 1, as for any block, "
        "64 bytes of dynamic shared memory"
    ).replace("x, factor, n", "float32[::1], float32, n=3")
    assert scale.ir("f32[:]", "f32", constexpr={"n": 3}).startswith("# scale for sim, types (")
    assert "float32[:]," in scale.ir("f32[:]", "f32", constexpr={"n": 3}, strided=True)
    assert "def scale(" in text


def test_types_in_many_spellings():
    texts = {
        scale.ir(array, scalar, constexpr={"n": 3})
        for array, scalar in [
            ("f32[:]", "f32"), (ruda.float32[:], ruda.float32), ("float32[::1]", np.float32),
            (ruda.float32[::1], np.dtype("f4")),
        ]
    }  # fmt: skip
    assert len(texts) == 1


def test_the_command(tmp_path):
    (tmp_path / "other_module.py").write_text("VALUE = 5\n")
    path = tmp_path / "kernels_of_a_file.py"
    path.write_text(
        textwrap.dedent("""
        import ruda
        from other_module import VALUE

        @ruda.jit
        def fill(x, n: ruda.constexpr):
            i = ruda.grid(1)
            if i < x.size:
                x[i] = VALUE * n

        class Group:
            @ruda.jit
            def inner(x):
                x[0] = 1

        plain = 3
    """)
    )
    text = compile_command(str(path), "fill", target="sim", types="f32[:]", constexpr={"n": 4},
                           block=(32,))  # fmt: skip
    assert text.startswith("# fill for sim, types (float32[::1], n=4), block 32 x 1 x 1")
    assert "20" in text
    assert "inner" in compile_command(str(path), "Group.inner", target="sim", types="i64[:]")
    for name, types, message in [
        ("missing", "", "has no 'missing'; its kernels: fill"),
        ("plain", "", "'plain' of .* is int, not a kernel"),
        ("fill", "f31[:], i32", "--types f31"),
    ]:
        with pytest.raises(UsageError, match=message):
            compile_command(str(path), name, types=types, target="sim")
    with pytest.raises(LaunchTypeError, match="`fill` was not launched yet: give its types"):
        compile_command(str(path), "fill", target="sim")


@ruda.jit
def stream(a, x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + 1


@ruda.jit
def chain(x, out):
    i = ruda.grid(1)
    if i < out.size:
        s = ruda.float32(0)
        for j in range(x.shape[1]):
            s = s * 0.5 + x[i, j]
        out[i] = s


@ruda.jit
def reversed_in_block(x, out):
    tile = ruda.shared.array(256, ruda.float32)
    t = ruda.threadIdx.x
    mine = x[ruda.grid(1)]
    twice = mine * 2
    tile[t] = twice
    ruda.syncthreads()
    out[ruda.grid(1)] = tile[255 - t] + mine


def test_vectorised_loops():
    first = stream.py_func.__code__.co_firstlineno
    (loop,) = ruda.explain(stream, "float", "f32[:]", "f32[:]").loops
    assert loop.place.line == first + 4 and loop.text.startswith("vectorised: ")
    first = chain.py_func.__code__.co_firstlineno
    loops = ruda.explain(chain, "f32[:, :]", "f32[:]").loops
    assert {n.place.line for n in loops} <= {first + 5, first + 6} and loops
    assert all(n.text.startswith("not vectorised: ") for n in loops)


def test_values_kept_across_barriers():
    first = reversed_in_block.py_func.__code__.co_firstlineno
    (spill,) = ruda.explain(reversed_in_block, "f32[:]", "f32[:]").spills
    assert spill.place.line == first + 4
    assert spill.text == (
        f"`mine` (float32) waits at line {first + 7}, used at lines {first + 5}, {first + 8}: "
        "1024 bytes a block"
    )
    small = ruda.explain(reversed_in_block, "f64[:]", "f32[:]", block=64)
    assert small.spills[0].text.endswith("512 bytes a block")


def test_indices_that_may_be_negative():
    @ruda.jit
    def picks(x, index, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = x[index[i]] + x[i]

    found = ruda.explain(picks, "f32[:]", "i32[:]", "f32[:]")
    (wrap,) = found.wraps
    assert "index[i]" in wrap.text and "`i`" not in wrap.text
    assert (
        ruda.explain(ruda.jit(wraparound=False)(picks.py_func), "f32[:]", "i32[:]", "f32[:]").wraps
        == ()
    )


def test_loops_of_an_assembly():
    text = textwrap.dedent("""
        body:
        \t.loc\t1 5 0
        \tmovq\t%rdi, %rax
        .LBB0_1:
        \t.loc\t1 7 3
        \tvmulps\t(%rdi), %ymm0, %ymm1
        \tvaddps\t%ymm1, %ymm2, %ymm2
        \tjne\t.LBB0_1
        .LBB0_2:
        .LBB0_3:
        \t.loc\t1 9 3
        \tvaddss\t%xmm1, %xmm2, %xmm2
        \tjne\t.LBB0_3
        \t.loc\t1 8 3
        \tjb\t.LBB0_2
        .LBB0_4:
        \tincq\t%rax
        \tjne\t.LBB0_4
        \tretq
    """)
    assert innermost_loops(text) == [
        (7, "vectorised: 2 of 2 arithmetic instructions are on 256-bit vectors"),
        (9, "not vectorised: 1 arithmetic instructions are on single floats"),
    ]
