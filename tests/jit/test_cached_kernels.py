"""Kernels through the disk cache: a second process runs what the first compiled, without numba."""

import json
import os
import subprocess
import sys

import pytest

KERNEL = """
import ruda

FACTOR = 3

@ruda.jit
def scale(x, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = x[i] * FACTOR
"""

RUN = """
import json, sys
import numpy as np
sys.path.insert(0, {folder!r})
import kernels, ruda
from ruda import backends
backends.get("cpu").cacheable = True
x = np.arange(7, dtype={dtype!r})
out = np.zeros_like(x)
kernels.scale[1, 8](x, out)
print(json.dumps(dict(
    out=out.tolist(), why=ruda.cache.why(kernels.scale), counts=ruda.cache.statistics(),
    numba="numba" in sys.modules,
)))
"""


@pytest.fixture
def run(tmp_path):
    """Run the kernel in a new process with the cache of this test; what it printed."""

    def start(source=KERNEL, dtype="float32", seed="0", **environment):
        (tmp_path / "kernels.py").write_text(source)
        finished = subprocess.run(
            [sys.executable, "-c", RUN.format(folder=str(tmp_path), dtype=dtype)],
            env={
                **os.environ,
                "RUDA_CACHE": "1",
                "RUDA_CACHE_DIR": str(tmp_path / "cache"),
                "PYTHONHASHSEED": seed,
                # Two texts of the same length within a second would share a .pyc.
                "PYTHONDONTWRITEBYTECODE": "1",
                **environment,
            },
            stdout=subprocess.PIPE,
            check=True,
        )
        return json.loads(finished.stdout)

    return start


def test_a_second_process_loads_the_code_without_numba(run):
    first = run()
    assert first["out"] == [0, 3, 6, 9, 12, 15, 18]
    assert "miss: nothing was stored" in first["why"]
    second = run(seed="1")
    assert second["out"] == first["out"]
    assert ": hit: " in second["why"]
    assert not second["numba"]
    moved = run("\n\n# A line of text does not change the code.\n" + KERNEL)
    assert ": hit: " in moved["why"]


def test_what_decides_the_code_makes_a_miss_that_why_names(run):
    run()
    changed = run(KERNEL.replace("* FACTOR", "+ FACTOR"))
    assert changed["out"] == [3, 4, 5, 6, 7, 8, 9]
    assert "miss: the source" in changed["why"]
    captured = run(KERNEL.replace("FACTOR = 3", "FACTOR = 5"))
    assert captured["out"] == [0, 5, 10, 15, 20, 25, 30]
    assert captured["why"].endswith("miss: a captured number changed: FACTOR=3 -> FACTOR=5")
    other = run(dtype="float64")
    assert other["out"] == [0, 3, 6, 9, 12, 15, 18]
    assert "the argument types changed: float32[::1], float32[::1] -> float64" in other["why"]
    tuned = run(NUMBA_OPT="1")
    assert "numba settings changed: nothing -> NUMBA_OPT=1" in tuned["why"]
    assert other["counts"]["entries"] == 4


def test_a_damaged_entry_is_compiled_again_and_repaired(run, tmp_path):
    run()
    (file,) = (tmp_path / "cache" / "kernels").iterdir()
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    again = run()
    assert again["out"] == [0, 3, 6, 9, 12, 15, 18]
    assert "miss: the entry is damaged" in again["why"]
    assert ": hit: " in run()["why"]


def test_without_the_cache_nothing_is_written(run, tmp_path):
    assert run(RUDA_CACHE="0")["out"] == [0, 3, 6, 9, 12, 15, 18]
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_used_does_not_stop_work(run, tmp_path):
    (tmp_path / "cache").write_text("a file")
    found = run(PYTHONWARNINGS="ignore")
    assert found["out"] == [0, 3, 6, 9, 12, 15, 18]
    assert found["counts"]["failed"] == 1


CHECKS = """import ruda

@ruda.jit(check=True)
def kernel(x, n):
    y = (x[0] +
         x[n[0]])
    assert x[1] < 1, "large"
    x[0] = y
"""

RUN_CHECKS = """
import json, sys
sys.path.insert(0, {folder!r})
import numpy as np, ruda
from checks import kernel
told = []
for x, n in ((np.zeros(3), 3), (np.ones(3), 0)):
    try:
        kernel[1, 1](x, np.array([n]))
    except ruda.errors.CheckError as error:
        told.append([error.place.line, str(error).splitlines()[-1].split(": ", 1)[1]])
json.dump(told, sys.stdout)
"""


def test_failed_checks_of_a_moved_kernel_name_its_new_lines(tmp_path):
    def told(source):
        (tmp_path / "checks.py").write_text(source)
        environment = {**os.environ, "RUDA_CACHE": "1", "RUDA_CACHE_DIR": str(tmp_path / "cache")}
        finished = subprocess.run(
            [sys.executable, "-B", "-c", RUN_CHECKS.format(folder=str(tmp_path))],
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
        )
        return json.loads(finished.stdout)

    lines = [[6, "x[n[0]])"], [7, 'assert x[1] < 1, "large"']]
    assert told(CHECKS) == told(CHECKS) == lines
    assert told("\n" * 10 + CHECKS) == [[n + 10, text] for n, text in lines]
    # The statement ends where it did, the load within it has moved up.
    closer = CHECKS.replace("(x[0] +\n         x[n[0]])", "(x[0] + x[n[0]]\n         )")
    assert told(closer)[0][0] == 5
