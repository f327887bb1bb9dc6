"""Break emitted kernels in each place where the emitter could: the twin has to refuse every one.

A mutant leaves out one line of synchronisation, halves one buffer, or leaves a tail uncut. All
mutants of a kernel are compiled as one text.
"""

import ctypes
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import ruda
from ruda import backends
from ruda.backends.ascend import device
from ruda.backends.base import Launch
from ruda.errors import RudaError
from ruda.jit.tools import describe
from tests.backends.ascend import test_tiles as kernels

DEVICE = kernels.DEVICE
TILE = 512  # shorter than emitted, so that a run is short
N = 40 * TILE + 77  # two tiles for some core, and a tail
LEFT_OUT = re.compile(
    r" *(PipeBarrier<PIPE_V>|(Set|Wait)Flag<|\w+\.(EnQue|FreeTensor)\(|\w+ = \w+\.DeQue<"
    r"|ruda::zero_rest\().*;$"
)
REPLACED = (
    ("half a buffer", r"(InitBuffer\(\w+, (?:\d, )?TILE)", r"\1 / 2"),
    ("a tail as long as a tile", r"ruda::row<(\w+)>\(count\)", r"ruda::row<\1>(TILE)"),
    ("a barrier of another pipe", r"PipeBarrier<PIPE_V>", "PipeBarrier<PIPE_MTE2>"),
    ("another place", r"\[at\]", "[at + 1]"),
    ("rest undefined", r"ruda::padded<(\w+)>\(count\)", r"ruda::unpadded<\1>()"),
)


def draw(n, dtype="f4", seed=0):
    return np.random.default_rng(seed).standard_normal(n).astype(dtype)


@ruda.jit
def block_shares(x, out):
    """A block a row, in rounds of 128: short rows stay between the loops, long ones do not."""
    kept = ruda.shared.array(128, np.float32)
    row, t = ruda.blockIdx.x, ruda.threadIdx.x
    total = np.float32(0)
    for c in range(t, x.shape[1], 128):
        total += ruda.exp(x[row, c])
    kept[t] = total
    ruda.syncthreads()
    total = kept[7]
    for c in range(t, x.shape[1], 128):
        out[row, c] = ruda.exp(x[row, c]) * total


def rows(n):
    return draw((3, n)), np.zeros((3, n), "f4")


# kernel -> types, arguments of each launch
CASES = {
    "saxpy": (("f32", *("f32[:]",) * 3), lambda: (2.0, draw(N), draw(N), np.zeros(N, "f4"))),
    "choose": (("f32[:]",) * 3, lambda: (draw(N), draw(N), np.zeros(N, "f4"))),
    "block_shares": (("f32[:, :]",) * 2, lambda: rows(500), lambda: rows(2 * TILE + 77)),
    "halves": (("f16[:]",) * 3, lambda: (draw(N, "f2"), draw(N, "f2"), np.zeros(N, "f2"))),
}


def mutants(text):
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if LEFT_OUT.match(line):
            yield f"without {line.strip()}", "\n".join(lines[:number] + lines[number + 1 :])
    for what, pattern, replacement in REPLACED:
        for match in re.finditer(pattern, text):
            changed = text[: match.start()] + match.expand(replacement) + text[match.end() :]
            yield f"{what}: {match[0]} ({text[: match.start()].count(chr(10))})", changed


def body_of(text, name, number):
    """A text's kernel and launcher, with names of their own."""
    body = text[text.index("constexpr int32_t TILE") :]
    body = re.sub(rf"\b({name}_kernel|ruda_launch)\b", rf"\1_{number}", body)
    return re.sub(r"\bTILE\b", f"TILE_{number}", body)


@pytest.mark.parametrize("name", CASES)
def test_every_mutant_of_emitted_text_is_refused(name):
    types, *launches = CASES[name]
    kernel = getattr(kernels, name, None) or block_shares
    blocks = 3 if kernel is block_shares else -(-N // 128)
    made = describe(kernel, DEVICE, types, block=128).made
    backend = backends.get(DEVICE)
    target = backend.target(DEVICE)
    source = backend.emit(made.function, target)
    emitted = re.sub(r"(int32_t TILE =) \d+", rf"\1 {TILE}", source.text)
    found = [("as it is", emitted), *mutants(emitted)]
    assert len(found) > 15
    text = '#include "ruda_vector.h"\n' + "".join(
        body_of(t, name, k) for k, (_, t) in enumerate(found)
    )
    binary = backend.compile(replace(source, text=text), target)
    binary = replace(binary, metadata=device.describe(source))
    whole = compile_all(backend, binary, made.function)
    missed = []
    for number, (what, _) in enumerate(found):
        launcher = getattr(whole.library, f"ruda_launch_{number}")
        launcher.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
        module = replace(whole, library=SimpleNamespace(ruda_launch=launcher))
        run = backend.launcher(module, Launch((blocks, 1, 1), (128, 1, 1)), None)
        try:
            for arguments in launches:
                run(*arguments())
        except RudaError:
            assert number, "the emitted text itself is refused"
            continue
        if number:
            missed.append(what)
    assert not missed


def compile_all(backend, binary, function):
    """A module of many launchers."""
    from ruda.backends.ascend.twin import build

    build.runtime()
    library = build.open_library(binary.payload)
    return device.Module(function, binary.metadata, library, build.runtime(),
                         backend.target(DEVICE), backend, DEVICE)  # fmt: skip
