"""`python -m benchmarks [rows ...]`: print the ratios against every peer installed, and keep the
samples.

Runs itself again bound to one core and without settings that slow OpenBLAS, so that both sides of
each row have one thread. Writes benchmarks/results/<device>-<date>.json; the README's table is
made from it.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PEERS = ("numba", "llvmlite", "numpy", "taichi", "warp-lang", "jax")


def versions() -> dict[str, str]:
    out = {"python": platform.python_version()}
    for name in PEERS:
        try:
            out[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            out[name] = "not installed"
    return out


def commit() -> str:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor()


def table(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'row':34} {'peer':14} {'ratio':>7} {'quartiles':>14} {'goal':>6}  allocation"]
    for r in rows:
        low, high = r["quartiles"]
        met = " " if r["ratio"] >= r["goal"] else "*"
        lines.append(
            f"{r['name']:34} {r['peer']:14} {r['ratio']:7.2f} {low:6.2f}-{high:<6.2f} "
            f"{r['goal']:6.2f}{met} {r['note'] or r['allocation']}"
        )
    return "\n".join([*lines, "ratio = peer time / ruda time; * below the goal"])


def main() -> None:
    if os.environ.get("RUDA_BENCHMARK_CHILD") != "1":
        environment = dict(os.environ, RUDA_BENCHMARK_CHILD="1")
        for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
            environment.pop(name, None)
        cpu = max(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpu})
        sys.exit(
            subprocess.call([sys.executable, "-m", "benchmarks", *sys.argv[1:]], env=environment)
        )
    from benchmarks import cpu, timing

    wanted = sys.argv[1:]
    rows: list[dict[str, Any]] = []
    before = timing.load()
    for group in (cpu.streaming_rows, cpu.matmul_rows, cpu.reduction_rows, cpu.activation_rows):
        if wanted and not any(w in group.__name__ for w in wanted):
            continue
        for row in group():
            rows.append(row.as_dict())
            print(table(rows[-1:]).splitlines()[1], flush=True)
    print(table(rows))
    record = {
        "device": "cpu",
        "machine": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "versions": versions(),
        "load": [before, timing.load()],
        "rows": rows,
    }
    if not wanted:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"cpu-{record['date']}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"wrote benchmarks/results/{path.name}")


if __name__ == "__main__":
    main()
