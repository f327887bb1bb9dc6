"""`python -m benchmarks [rows ...]`: print the ratios against every peer installed, and keep the
samples. `python -m benchmarks cuda [rows ...]` does so on an NVIDIA GPU, and `wgpu` instead of
`cuda` on a WebGPU adapter; `python -m benchmarks training` times training steps on the CPU with two
threads, `ascend` prints what kernels for the emulations of Ascend cost to translate and to build.

Runs itself again bound to one core and without settings that slow OpenBLAS, so that both sides of
each row have one thread. Writes benchmarks/results/<device>-<date>.json; the README's table is
made from it.
"""

from __future__ import annotations

import datetime
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PEERS = (
    "numba", "llvmlite", "numpy", "taichi", "warp-lang", "jax", "numba-cuda", "torch", "triton",
    "cuda-bindings", "wgpu", "numba-vulkan",
)  # fmt: skip


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


def limit_table(limits: list[dict[str, Any]]) -> str:
    lines = []
    for r in limits:
        met = " " if r["value"] <= r["limit"] else "*"
        lines.append(
            f"{r['name']:74} {r['value']:8.2f} {r['unit']}, at most {r['limit']:g}{met} {r['note']}"
        )
    return "\n".join(lines)


def markdown(record: dict[str, Any]) -> str:
    """The README's table, from a results file."""
    out = [
        f"{record['machine']}, {record['date']}, one core unless said, medians of ratios in one "
        "interleaved run (`python -m benchmarks`; raw samples in `benchmarks/results`). "
        "A ratio is the peer's time / ruda's; **bold** misses its goal.",
        "",
        "| kernel | peer | ratio | goal | allocation |",
        "|---|---|---|---|---|",
    ]
    for r in record["rows"]:
        ratio = f"{r['ratio']:.2f}"
        if r["ratio"] != r["ratio"]:
            ratio = "not measured"
        elif r["ratio"] < r["goal"]:
            ratio = f"**{ratio}**"
        out.append(f"| {r['name']} | {r['peer']} | {ratio} | {r['goal']:g} | {r['allocation']} |")
    out += ["", "| | measured | at most |", "|---|---|---|"]
    for r in record["limits"]:
        value = f"{r['value']:.2f} {r['unit']}"
        value = f"**{value}**" if r["value"] > r["limit"] else value
        note = f" ({r['note']})" if r["note"] else ""
        out.append(f"| {r['name']}{note} | {value} | {r['limit']:g} {r['unit']} |")
    return "\n".join(out)


BEGIN, END = "<!-- speed:", "<!-- end of speed -->"


def readme(check: bool = False) -> int:
    """Put the newest results into the README, or check that they are there."""
    files = sorted(RESULTS.glob("cpu-*.json"))
    path = RESULTS.parent.parent / "README.md"
    text = path.read_text("utf-8")
    if not files:
        print("no results yet: run `python -m benchmarks`")
        return 1 if check else 0
    record = json.loads(files[-1].read_text())
    head, rest = text.split(BEGIN)
    first, rest = rest.split("\n", 1)
    tail = rest.split(END)[1]
    new = f"{head}{BEGIN}{first}\n{markdown(record)}\n{END}{tail}"
    if check:
        if new != text:
            print("the README's figures are not those of benchmarks/results")
        return int(new != text)
    path.write_text(new, "utf-8")
    return 0


def device_record(device: str, wanted: list[str]) -> None:
    """Measure on a GPU; `RUDA_BENCHMARK_RESULTS` names another folder for the samples."""
    from benchmarks import timing

    before = timing.load()
    record = importlib.import_module(f"benchmarks.{device}").measure(wanted)
    print(table(record["rows"]))
    print(limit_table(record["limits"]))
    for name, microseconds in record["launches in microseconds"].items():
        print(f"{name:50} {microseconds:8.2f} us")
    record |= {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "versions": versions(),
        "load": [before, timing.load()],
    }
    folder = Path(os.environ.get("RUDA_BENCHMARK_RESULTS") or RESULTS)
    folder.mkdir(exist_ok=True)
    path = folder / f"{device}-{record['date']}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"wrote {path.name}")


def main() -> None:
    if sys.argv[1:] in (["--readme"], ["--check"]):
        sys.exit(readme(check="--check" in sys.argv))
    if sys.argv[1:2] in (["cuda"], ["wgpu"]):
        device_record(sys.argv[1], sys.argv[2:])
        return
    if sys.argv[1:] == ["ascend"]:
        from benchmarks import ascend

        print(limit_table(ascend.limits()))
        return
    if sys.argv[1:2] == ["training"]:
        from benchmarks import training

        found, limits_ = training.measure("cpu")
        print(table([r.as_dict() for r in found]))
        print(limit_table([x.as_dict() for x in limits_]))
        return
    if os.environ.get("RUDA_BENCHMARK_CHILD") != "1":
        environment = dict(os.environ, RUDA_BENCHMARK_CHILD="1")
        for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
            environment.pop(name, None)
        cpu = max(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpu})
        sys.exit(
            subprocess.call([sys.executable, "-m", "benchmarks", *sys.argv[1:]], env=environment)
        )
    from benchmarks import cpu, start, tensors, timing

    wanted = sys.argv[1:]
    rows: list[dict[str, Any]] = []
    before = timing.load()
    groups = (
        cpu.streaming_rows, cpu.matmul_rows, cpu.reduction_rows, cpu.activation_rows,
        tensors.chain_rows, tensors.pattern_rows, tensors.small_rows, cpu.thread_rows,
    )  # fmt: skip
    for group in groups:
        if wanted and not any(w in group.__name__ for w in wanted):
            continue
        for row in group():
            rows.append(row.as_dict())
            print(table(rows[-1:]).splitlines()[1], flush=True)
    print(table(rows))
    limits: list[dict[str, Any]] = []
    if not wanted or "start" in wanted:
        limits = [x.as_dict() for x in (*start.limits(), *tensors.limits())]
    print(limit_table(limits))
    record = {
        "device": "cpu",
        "machine": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "versions": versions(),
        "load": [before, timing.load()],
        "rows": rows,
        "limits": limits,
    }
    if not wanted:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"cpu-{record['date']}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        print(f"wrote benchmarks/results/{path.name}")


if __name__ == "__main__":
    main()
