"""Break right kernels in each place where an emitter could: the twin has to refuse every one.

A mutant leaves out one line of synchronisation, makes one buffer smaller, uses another queue,
leaves a tail uncut, or weakens a barrier. All mutants of a kernel are compiled as one text.
"""

import re

import numpy as np
import pytest

from ruda.backends.ascend import twin
from ruda.errors import RudaError
from tests.backends.ascend.test_twin_right import KERNELS, NOTHING, draw, run

TEXT = (KERNELS / "right.cpp").read_text()
PRELUDE, *PARTS = re.split(r"(?=^// kernel )", TEXT, flags=re.M)
KERNEL = {re.match(r"// kernel (\w+)", part)[1]: part for part in PARTS}

LEFT_OUT = re.compile(
    r" *((PipeBarrier|SetFlag|WaitFlag)<.*|\w+\.(EnQue|FreeTensor)\(.*|\w+ = \w+\.DeQue<.*"
    r"|SetAtomicNone\(.*|DataCacheCleanAndInvalid<.*|Duplicate\(.*);$"
)
# (what, pattern, replacement): each match is one mutant
REPLACED = (
    ("half a buffer", r"(InitBuffer\(\w+, (?:\d, )?)(?!32)([^;]*)\);", r"\1(\2) / 2);"),
    ("a tile that is too long for the buffer", r"least\(TILE, n - at\)", "least(2 * TILE, n - at)"),
    ("a tail as long as a tile", r"least\(T(ILE)?, n - at\)", r"T\1"),
    ("a row as long as a tile", r"least\(T, n - (row|column)\)", "T"),
    ("a barrier of one pipe", r"PipeBarrier<PIPE_ALL>", "PipeBarrier<PIPE_V>"),
    ("a barrier of another pipe", r"PipeBarrier<PIPE_V>", "PipeBarrier<PIPE_MTE2>"),
    ("a flag of another pair", r"(Set|Wait)Flag<HardEvent::\w+>", r"\1Flag<HardEvent::V_MTE3>"),
    ("a flag of another number", r"WaitFlag<(.*)>\(EVENT_ID.\)", r"WaitFlag<\1>(EVENT_ID3)"),
    ("one more element", r"x\[at\]", "x[at + 1]"),
    ("the atomic mode of another dtype", r"SetAtomicAdd<float>", "SetAtomicAdd<int32_t>"),
)
QUEUES = {"qx": "qy", "qy": "qo", "qi": "qo", "qo": "qx"}


def mutants(kernel):
    """(What was done, text) of each mutant of a kernel."""
    part = KERNEL[kernel]
    lines = part.split("\n")
    for number, line in enumerate(lines):
        if LEFT_OUT.match(line):
            yield (
                f"without {line.strip()} ({number})",
                "\n".join(lines[:number] + lines[number + 1 :]),
            )
        for queue, other in QUEUES.items():
            swapped = re.sub(rf"\b{queue}\.(EnQue|DeQue|FreeTensor)", rf"{other}.\1", line)
            if swapped != line and re.search(rf"InitBuffer\({other},", part):
                yield (
                    f"{other} in {line.strip()}",
                    "\n".join([*lines[:number], swapped, *lines[number + 1 :]]),
                )
    for what, pattern, replacement in REPLACED:
        for match in re.finditer(pattern, part):
            yield (
                f"{what}: {match[0]} ({part[: match.start()].count(chr(10))})",
                part[: match.start()] + match.expand(replacement) + part[match.end() :],
            )


def try_kernel(library, launcher, kernel):
    """Run on arrays with several tiles and a tail."""
    n, m = {"softmax": (5, 600), "matmul": (35, 41), "totals": (5, 30)}.get(kernel, (2600, 0))
    dtype = {"halves": np.float16, "brains": np.uint16, "lines": np.int32}.get(kernel, np.float32)
    x, y = draw(n, max(m, 1)).astype(dtype), draw(n, max(m, 1), seed=1).astype(dtype)
    size = {"softmax": n * m, "matmul": n * n, "totals": m}.get(kernel, n)
    out = np.zeros(size + 64, np.int64 if kernel == "floors" else dtype)
    start = -out.ctypes.data % 64 // out.itemsize
    out = out[start : start + size]
    run(library, launcher, x, NOTHING if kernel == "totals" else y, out, n, m, blocks=2, workers=1)


@pytest.mark.parametrize("kernel", KERNEL)
def test_every_mutant_is_refused(kernel):
    found = list(mutants(kernel))
    text = PRELUDE + KERNEL[kernel]
    for number, (_, part) in enumerate(found):
        text += re.sub(rf"\b{kernel}\b", f"{kernel}_{number}", part)
    library = twin.load(text)
    try_kernel(library, kernel, kernel)  # unbroken, it runs
    missed = []
    for number, (what, _) in enumerate(found):
        try:
            try_kernel(library, f"{kernel}_{number}", kernel)
        except RudaError:
            continue
        missed.append(what)
    assert not missed


def test_there_are_many_mutants():
    assert sum(len(list(mutants(kernel))) for kernel in KERNEL) > 150
