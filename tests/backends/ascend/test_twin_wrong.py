"""The twin refuses wrong kernels: it names the rule, the call, the line of the text and the user's.

`kernels/wrong.cpp` holds a kernel for each rule; here are those that no compiler takes.
"""

import ctypes
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ruda.backends.ascend import twin
from ruda.errors import CheckError, DataRaceError, LaunchValueError, OutOfBoundsError

START = '#include "kernel_operator.h"\nusing namespace AscendC;\n'
TEXT = (Path(__file__).parent / "kernels" / "wrong.cpp").read_text()


def wrong_kernels():
    """Name, rule and the line that has to be named (None: any) of each kernel of the file."""
    found = []
    for part in re.finditer(
        r"// breaks (\S+): [^\n]*\nKERNEL\((\w+)\) {\n(.*?)^}\n", TEXT, re.M | re.S
    ):
        before, here, _ = part[3].partition("// here")
        line = TEXT[: part.start(3)].count("\n") + before.count("\n") + 1 if here else None
        found.append(pytest.param(part[2], part[1], line, id=part[2]))
    return found


@pytest.fixture(scope="module")
def library():
    return twin.load(TEXT)


def run(library, kernel, **options):
    # One piece of memory: what is around the arrays is the process's, and must stay as it is.
    whole = np.full(64 * 6, 7, np.float32)
    start = -whole.ctypes.data % 64 // 4
    x, y, out = (whole[start + k : start + k + 64] for k in (64, 144, 208))
    ranges = [
        twin.Memory(name, a.ctypes.data, a.nbytes, name == "out")
        for name, a in (("x", x), ("y", y), ("out", out))
    ]
    arguments = [ctypes.c_void_p(a.ctypes.data) for a in (x, y, out)]
    try:
        twin.launch(library, f"launch_{kernel}", 2, arguments, ranges, **options)
    finally:
        assert (whole[: start + 208] == 7).all() and (whole[start + 272 :] == 7).all()


@pytest.mark.parametrize(("kernel", "rule", "line"), wrong_kernels())
def test_refuses(library, kernel, rule, line):
    with pytest.raises(twin.RULES[rule]) as caught:
        run(library, kernel)
    text = str(caught.value)
    assert f"[{rule}]" in text
    if line:
        assert f"at line {line} of the generated text" in text


def test_each_rule_has_a_wrong_kernel():
    elsewhere = {"assert", "barrier", "race"}  # of the SIMT unit
    ours = {"launch", "twin", "dtype", "unsupported"}  # below, or mistakes of the twin
    assert {p.values[1] for p in wrong_kernels()} == set(twin.RULES) - elsewhere - ours


COMPILE_TIME = {
    "exponential of integers": ("LocalTensor<int32_t> t; Exp(t, t, 8);", "Exp has no instruction"),
    "addition of bytes": ("LocalTensor<uint8_t> t; Add(t, t, t, 8);", "Add has no instruction"),
    "a pair that Cast has not": (
        "LocalTensor<int32_t> a; LocalTensor<half> b; Cast(b, a, RoundMode::CAST_RINT, 8);",
        "Cast has no instruction for this pair",
    ),
    "a barrier of the scalar pipe": ("PipeBarrier<PIPE_S>();", "hardware error"),
    "a double for a float": ("LocalTensor<float> t; Adds(t, t, 1.0, 8);", "no matching function"),
    "an unknown call": ("Cosine(1);", "not declared"),
    "doubles": ("LocalTensor<double> t; Add(t, t, t, 8);", "Add has no instruction"),
    "an atomic of int64": ("SetAtomicAdd<int64_t>();", "SetAtomicAdd has no instruction"),
}


@pytest.mark.parametrize("name", COMPILE_TIME)
def test_refuses_at_compile_time(name):
    code, message = COMPILE_TIME[name]
    text = (
        '#include "kernel_operator.h"\nusing namespace AscendC;\nvoid k() {\n#line 42 "user.py"\n'
    )
    with pytest.raises(twin.build.CompileError, match=message) as caught:
        twin.build.compile_text(f"{text}    {code}\n}}\n")
    assert (caught.value.place.file, caught.value.place.line) == ("user.py", 42)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.place) == (str(caught.value), caught.value.place)


def test_a_fault_names_the_line_of_the_user(tmp_path):
    source = tmp_path / "user.py"
    source.write_text("def kernel(x):\n    x[65] = 1\n")
    text = f"""{START}static void kernel(GM_ADDR p) {{
    GlobalTensor<float> x;
#line 2 "{source}"
    x.SetGlobalBuffer((__gm__ float*)p); x.SetValue(65, 1.0f);
}}
extern "C" int launch_kernel(uint32_t blocks, void* stream, GM_ADDR p, GM_ADDR, GM_ADDR) {{
    return twin::launch_vector(stream, blocks, [=] {{ kernel(p); }});
}}
"""
    with pytest.raises(OutOfBoundsError) as caught:
        run(twin.load(text), "kernel")
    assert (caught.value.place.file, caught.value.place.line) == (str(source), 2)
    assert "writes 4 bytes at byte 260 of `x`, which has 256" in str(caught.value)
    assert "at line 6 of the generated text" in str(caught.value)
    assert "x[65] = 1" in str(caught.value)
    assert "SetValue" in str(caught.value)


def test_a_fault_leaves_the_process_and_other_launches_alone(library):
    right = twin.load((Path(__file__).parent / "kernels" / "right.cpp").read_text())
    x, out = np.ones(100, np.float32), np.zeros(100, np.float32)
    ranges = [twin.Memory(n, a.ctypes.data, a.nbytes) for n, a in (("x", x), ("out", out))]
    arguments = [ctypes.c_void_p(a.ctypes.data) for a in (x, x, out)]
    for _ in range(3):
        with pytest.raises(DataRaceError):
            run(library, "vector_after_vector")
        out[:] = 0
        numbers = [ctypes.c_uint32(100), ctypes.c_uint32(0)]
        twin.launch(right, "launch_saxpy", 2, [*arguments, *numbers], ranges)
        assert (out == 3.5).all()


def test_launches_of_several_threads_have_their_own_faults(library):
    def refused(kernel):
        with pytest.raises(CheckError) as caught:
            run(library, kernel)
        return str(caught.value)

    kernels = ["set_twice", "past_the_array", "vector_after_vector", "too_much"] * 8
    with ThreadPoolExecutor(4) as pool:
        messages = list(pool.map(refused, kernels))
    rules = ["[flag]", "[global-bounds]", "[hazard]", "[capacity]"] * 8
    assert all(rule in message for rule, message in zip(rules, messages, strict=True))


@pytest.mark.parametrize("blocks", [0, 65536])
def test_refuses_a_number_of_blocks(library, blocks):
    with pytest.raises(LaunchValueError, match=f"{blocks} blocks; a launch takes 1 to 65535"):
        twin.launch(library, "launch_set_twice", blocks, [ctypes.c_void_p()] * 3, [])


def test_refuses_the_index_of_a_maximum():
    text = """
static void kernel() {
    LocalTensor<float> t;
    ReduceMax(t, t, t, 8, true);
}
extern "C" int launch_kernel(uint32_t blocks, void* stream, GM_ADDR, GM_ADDR, GM_ADDR) {
    return twin::launch_vector(stream, blocks, [=] { kernel(); });
}
"""
    with pytest.raises(CheckError, match="no reduction that gives the index"):
        run(twin.load(START + text), "kernel")
