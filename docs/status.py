"""Write docs/status.md: every promised feature by device, from the outcomes of a test run.

    python -m pytest -p tests.outcomes --outcomes one.json
    RUDA_TEST_DEVICES=wgpu python -m pytest -p tests.outcomes --outcomes two.json ...
    python -m docs.status one.json two.json            # write the page
    python -m docs.status one.json two.json --check    # fail if the page says anything else

A feature works on a device if tests show it there and all pass; it is missing if none does. A test
without a parameter for the device is about the host: it speaks for `sim` and `cpu` alone.
"""

from __future__ import annotations

import fnmatch
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
DEVICES = ("sim", "cpu", "wgpu", "ascend-twin")
HOST = ("sim", "cpu")
OTHER_CHIP = "ascend-twin:910b-"  # what it refuses is a list of its own, beside the tests
KERNEL = re.compile(r"test_device_matches_numpy_and_oracle\[(ascend-twin|\w+)-(.*)-\d+\]$")


def rows() -> list[tuple[str, str, list[str]]]:
    """(section, feature, patterns) of docs/features.txt."""
    section, out = "", []
    for line in (HERE / "features.txt").read_text("utf-8").splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.strip() and not line.startswith("#"):
            feature, patterns = line.split("|")
            out.append((section, feature.strip(), patterns.split()))
    return out


def verdict(patterns: list[str], device: str, outcomes: dict[str, str]) -> tuple[str, int]:
    """What the tests of a feature say about a device, and how many there are."""
    found: list[str] = []
    shown = " ".join(patterns)
    patterns = [p.removeprefix(f"{device}:") for p in patterns if ":" not in p.split("::")[0]
                or p.startswith(f"{device}:")]  # fmt: skip
    if not patterns:
        return "—", 0
    for name, outcome in outcomes.items():
        kernel = KERNEL.search(name)
        if kernel:
            if kernel[1] == device and any(fnmatch.fnmatch(kernel[2], p) for p in patterns):
                found.append(outcome)
            continue
        parameters = re.split(r"[\[\]-]", name.replace("ascend-twin", "ascend_twin"))[1:]
        parameters = [p.replace("ascend_twin", "ascend-twin") for p in parameters]
        named = [d for d in DEVICES if d in parameters]
        here = device in named if named else device in HOST or f"{device}:" in shown
        if here and any(fnmatch.fnmatch(name, p) for p in patterns):
            found.append(outcome)
    found = [o for o in found if o != "skipped"]  # a skipped test shows nothing
    if not found:
        return "missing", 0
    return ("works" if all(o == "passed" for o in found) else "fails"), len(found)


def page(outcomes: dict[str, str]) -> str:
    lines = [
        "<!-- Written by `python -m docs.status` from a test run; see docs/features.txt. -->",
        "# What works where",
        "",
        "Each promised feature by device, with its tests. *missing*: no test shows it; "
        "—: not that device's business.",
    ]
    last = ""
    for section, feature, patterns in rows():
        if section != last:
            heads = " | ".join(DEVICES)
            lines += ["", f"## {section}", "", f"| feature | {heads} | tests |"]
            lines += ["|---|" + "---|" * (len(DEVICES) + 1)]
            last = section
        cells = " | ".join(verdict(patterns, d, outcomes)[0] for d in DEVICES)
        shown = " ".join(f"`{p}`" for p in patterns)
        lines.append(f"| {feature} | {cells} | {shown} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    outcomes: dict[str, str] = {}
    for file in sys.argv[1:]:
        if file != "--check":
            recorded = json.loads(Path(file).read_text())
            outcomes |= {
                test: outcome
                for test, (outcome, _) in recorded.items()
                if outcome != "skipped" and OTHER_CHIP not in test
            }
    text, path = page(outcomes), HERE / "status.md"
    if "--check" not in sys.argv:
        path.write_text(text, "utf-8")
        return 0
    if path.read_text("utf-8") == text:
        return 0
    print("docs/status.md does not say what the tests found; write it with `python -m docs.status`")
    return 1


if __name__ == "__main__":
    sys.exit(main())
