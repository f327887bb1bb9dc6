"""What has a limit instead of a peer: imports, the first result of a process, compiles, launches.

Every figure is a median over fresh processes, except launches, which are single calls.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PROCESSES = 11

KERNEL = """
import numpy as np
import ruda

@ruda.jit
def multiply_add(a, b, c, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a[i] * b[i] + c[i]

a, b, c, out = (np.ones(1000, np.float32) for _ in range(4))
"""


@dataclass
class Limit:
    """A measured figure that should stay below a limit."""

    name: str
    value: float
    limit: float
    unit: str
    samples: list[float]
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def run(code: str, folder: Path, **environment: str) -> tuple[float, str]:
    """Seconds of a fresh process that runs a file of code, and what it printed."""
    path = folder / "measured.py"
    path.write_text(code)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | environment
    env["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent.parent), env.get("PYTHONPATH", "")]
    )
    start = time.perf_counter()
    found = subprocess.run(
        [sys.executable, str(path)], env=env, capture_output=True, text=True, check=True
    )
    return time.perf_counter() - start, found.stdout.strip()


def printed(name: str, limit: float, code: str, folder: Path, note: str = "", **env: str) -> Limit:
    """The number that a process prints, in ms."""
    samples = [1e3 * float(run(code, folder, **env)[1]) for _ in range(PROCESSES)]
    return Limit(name, statistics.median(samples), limit, "ms", samples, note)


def limits() -> list[Limit]:
    out = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = str(folder / "cache")
        clock = "import sys, time\n"
        out.append(
            printed(
                "import ruda, beyond importing numpy", 60,
                clock + "import numpy\nstart = time.perf_counter()\nimport ruda\n"
                "assert 'numba' not in sys.modules\nprint(time.perf_counter() - start)", folder,
            )
        )  # fmt: skip
        launch = KERNEL + "multiply_add[4, 256](a, b, c, out)\nassert out[0] == 2\n"
        run(launch, folder, RUDA_CACHE_DIR=cache)  # fills the cache
        check = "import sys\nassert 'numba' not in sys.modules\n"
        samples = [
            1e3 * run(launch + check, folder, RUDA_CACHE_DIR=cache)[0] for _ in range(PROCESSES)
        ]
        numpy_only = [1e3 * run("import numpy\n", folder)[0] for _ in range(PROCESSES)]
        out.append(
            Limit(
                "process start to first result, kernel in the disk cache",
                statistics.median(samples), 350, "ms", samples,
                f"a process that only imports numpy: {statistics.median(numpy_only):.0f} ms",
            )
        )  # fmt: skip
        out.append(
            printed(
                "first compile of a small kernel after importing numba", 400,
                clock + "import numba\n" + KERNEL + "start = time.perf_counter()\n"
                "multiply_add[4, 256](a, b, c, out)\nprint(time.perf_counter() - start)", folder,
                RUDA_CACHE="0",
            )
        )  # fmt: skip
    return out + launches()


def launches() -> list[Limit]:
    """A launch with four arrays of 1000 elements, each call timed by itself."""
    import numpy as np

    import ruda
    from benchmarks import launch

    @ruda.jit
    def multiply_add(a, b, c, out):
        i = ruda.grid(1)
        if i < out.size:
            out[i] = a[i] * b[i] + c[i]

    arrays = [np.ones(1000, np.float32) for _ in range(4)]
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # the pool needs a second core
    times = launch.measure()
    entry = statistics.median(times["numba entry_point"])
    ours: list[float] = []
    kernel, clock = multiply_add, time.perf_counter_ns
    a, b, c, d = arrays
    for _ in range(200):
        kernel[4, 256](a, b, c, d)
    for _ in range(20000):
        start = clock()
        kernel[4, 256](a, b, c, d)
        ours.append((clock() - start) / 1000)
    os.sched_setaffinity(0, affinity)
    whole = statistics.median(ours)
    both = statistics.median(times[launch.BOTH])
    return [
        Limit("launch kernel[4, 256](a, b, c, d), n = 1000, beyond numba's entry point",
              whole - entry, 0.6, "us", ours[:200], f"{whole:.2f} us against {entry:.2f} us"),
        Limit("launch through the pool, a second thread taking part", both, 4.0, "us",
              times[launch.BOTH][:200]),
    ]  # fmt: skip
