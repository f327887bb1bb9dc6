"""Plant mistakes in the compiler, one at a time: `python -m tests.jit.seeded_faults [word ...]`.

Each row changes one piece of text in a copy of the package and runs part of the corpus there; a
mistake that no test notices is a hole in the corpus. A row whose text is gone is stale: an error.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Fault(NamedTuple):
    """What goes wrong, where, and the tests (`pytest -k`) among which one must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str


FAULTS = [
    Fault(
        "the narrower of two dtypes wins",
        "ruda/dtypes.py",
        "return a if a.bits > b.bits else b",
        "return a if a.bits < b.bits else b",
        "weak_and_typed_globals or double_only_where_asked",
    ),
    Fault(
        "int32 with uint32 stays 32 bits wide",
        "ruda/dtypes.py",
        "{8: int16, 16: int32, 32: int64}[unsigned.bits]",
        "{8: int16, 16: int32, 32: uint32}[unsigned.bits]",
        "mixed_signs or comparisons_int32_uint32",
    ),
    Fault(
        "16-bit integers compute in 16 bits",
        "ruda/jit/intrinsics.py",
        "and common.bits < 32:",
        "and common.bits < 16:",
        "small_integers",
    ),
    Fault(
        "the else of a loop runs after a break",
        "ruda/jit/frontend/statements.py",
        'test = ir.Op("not", (ir.Read(broke),), dtypes.bool_, place=place)',
        "test = ir.Const(True, dtypes.bool_)",
        "break_and_else or while_else or break_out",
    ),
    Fault(
        "negative indices do not wrap",
        "ruda/jit/frontend/elements.py",
        "or not self.options.wraparound:",
        "or True:",
        "negative_indices_of_a_run",
    ),
    Fault(
        "statements after a return run all the same",
        "ruda/jit/passes/structure_returns.py",
        'return If(Op("not", (Read(flag),), dtypes.bool_), body, place=s.place)',
        'return If(Op("eq", (Read(flag), Read(flag)), dtypes.bool_), body, place=s.place)',
        "early_return or return_from or returns_from or mixed_returns or clamp or defaults",
    ),
    Fault(
        "a condition `<=` bounds a loop as `<` does",
        "ruda/jit/passes/guards.py",
        'if name in ("lt", "ge") else _difference(right, offset, 1)',
        'if name in ("lt", "ge") else _difference(right, offset, 0)',
        "jacobi_step and cpu",
    ),
    Fault(
        "warps are made of 16 threads",
        "ruda/jit/passes/barriers.py",
        'warp = op("mul", op("floordiv", me, index(32)), index(32))',
        'warp = op("mul", op("floordiv", me, index(16)), index(16))',
        "warps",
    ),
    Fault(
        "threads that have left a loop still vote",
        "ruda/jit/passes/barriers.py",
        "        if guard is not None:\n"
        "            counted = (If(Read(guard), counted, place=s.place),)\n",
        "",
        "returned_threads_take_no_part_in_votes",
    ),
    Fault(
        "a weak integer is not checked against the dtype it meets",
        "ruda/jit/frontend/scalars.py",
        "if not low <= value <= high:",
        "if False:",
        "errors",
    ),
    Fault(
        "a product with a literal is done in double",
        "ruda/dtypes.py",
        "if _RANK[weak.kind] <= _RANK[strong.kind]:\n        return strong",
        "if _RANK[weak.kind] <= _RANK[strong.kind]:\n        "
        "return float64 if weak.kind == 'float' else strong",
        "float_literals or weak_scalars or weak_and_typed",
    ),
    Fault(
        "captured values are not looked at again",
        "ruda/jit/kernel.py",
        "if not all(c.unchanged(v) for c, v in zip(self.captures, now, strict=True)):",
        "if False:",
        "changes_between or cell_that_changes or captured_array_that_changes",
    ),
]


def noticed(fault: Fault) -> bool:
    """Whether a test fails in a copy of the package with this fault."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("ruda", "tests"):
            shutil.copytree(
                ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(ROOT / "pyproject.toml", folder)
        path = Path(folder, fault.file)
        text = path.read_text()
        if text.count(fault.old) != 1:
            raise SystemExit(f"stale: {fault.name}: {fault.file} has its text not once")
        path.write_text(text.replace(fault.old, fault.new))
        files = ["test_kernels", "test_errors", "test_generated_kernels", "test_emit_cpu"]
        command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider"]
        command += [f"tests/jit/{name}.py" for name in files] + ["-k", fault.tests]
        environment = os.environ | {
            "RUDA_CACHE_DIR": str(Path(folder, "cache")),
            "PYTHONPATH": folder,
        }
        result = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True
        )
        if result.returncode not in (0, 1):
            raise SystemExit(f"{fault.name}: the tests did not run\n{result.stdout}{result.stderr}")
        return result.returncode == 1


def main(words: list[str]) -> None:
    chosen = [f for f in FAULTS if not words or any(w in f.name for w in words)]
    missed = []
    for fault in chosen:
        found = noticed(fault)
        print("caught" if found else "MISSED", fault.name, flush=True)
        missed += [] if found else [fault.name]
    raise SystemExit(f"{len(missed)} of {len(chosen)} faults went unnoticed" if missed else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
