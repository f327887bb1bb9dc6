"""What a type checker sees of the public names: kernels keep their parameters."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
ROOT = Path(__file__).parents[1]

PROGRAM = """
import numpy as np
import numpy.typing as npt
import ruda

F32 = npt.NDArray[np.float32]

@ruda.jit
def plain(a: float, x: F32) -> None:
    i = ruda.grid(1)
    tile = ruda.shared.array(32, ruda.float32)
    tile[ruda.threadIdx.x] = x[i] * twice(a)
    ruda.syncthreads()
    ruda.atomic.add(x, i, tile[0])

@ruda.jit(fastmath=True)
def configured(x: F32, n: int = 3) -> None: ...

@ruda.jit("void(f32[:])")
def declared(x: F32) -> None: ...

@ruda.jit(device=True)
def twice(x: float) -> float:
    return 2 * x

@ruda.jit
def untyped(x, y):  # type: ignore[no-untyped-def]
    x[0] = y

x = np.ones(3, np.float32)
reveal_type(plain)
reveal_type(configured)
reveal_type(declared)
reveal_type(plain[1, 32])
reveal_type(plain.forall(3))
plain[1, 32](2.0, x)
plain[(1, 1), (32, 1), ruda.stream(), 0](2.0, x)
configured[1, 32](x)
configured[1, 32](x, n=4)
untyped[1, 32](x, 2)
reveal_type(ruda.to_device(x).copy_to_host())
with ruda.device("cpu"), ruda.config(debug=0), ruda.debug():
    ruda.synchronize()
plain[1, 32]("a", x)  # error: arg-type
plain[1, 32](2.0)  # error: call-arg
configured[1, 32](x, m=4)  # error: call-arg
ruda.nonsense  # error: attr-defined
"""


def test_mypy_sees_the_parameters_of_kernels(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11", str(path)]
    options = ["--config-file", "", "--cache-dir", str(ROOT / ".mypy_cache" / "typing")]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    notes = re.findall(r'Revealed type is "(.*)"', done.stdout)
    short = [re.sub(r"(builtins|numpy|ruda)\.(\w+\.)*", "", n) for n in notes]
    array = "ndarray[tuple[Any, ...], dtype[floating[_32Bit]]]"
    assert [n.replace("float32", "floating[_32Bit]") for n in short] == [
        f"Kernel[[a: float, x: {array}]]",
        f"Kernel[[x: {array}, n: int =]]",
        f"Kernel[[x: {array}]]",
        f"def (a: float, x: {array})",
        f"def (a: float, x: {array})",
        "ndarray[Any, Any]",
    ]
    lines = PROGRAM.splitlines()
    wanted = {
        (k + 1, line.rpartition("error: ")[2]) for k, line in enumerate(lines) if "# error" in line
    }
    found = {
        (int(line), kind)
        for line, kind in re.findall(r"program\.py:(\d+): error: .*\[([\w-]+)\]", done.stdout)
    }
    assert found == wanted, done.stdout
