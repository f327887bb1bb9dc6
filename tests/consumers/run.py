"""Run the tests of SciPy's and scikit-learn's modules with ruda as namespace, and keep the counts.

    python -m tests.consumers.run                    all modules of modules.txt, about 20 minutes
    python -m tests.consumers.run scipy.cluster.tests.test_vq

Results go to outcomes.json, which keeps the last run of each module: counts, and whose fault each
failing test is. `KNOWN` names those that are not ruda's; every other failure is ours, and makes the
run fail.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OUTCOMES = HERE / "outcomes.json"
# (module, test, message): whose fault and why. The texts are regular expressions. To reproduce one:
# `python -m tests.consumers.run MODULE -k TEST`.
KNOWN = (
    (r"scipy", r"", r"(output array|assignment destination|buffer source array) is read-only",
     "theirs: writes through `np.asarray(x)`, which the standard does not promise. ruda's view is "
     "read-only; give a NumPy array as output"),
    (r"sklearn", r"", r"(output array|buffer source array) is read-only",
     "theirs: hands `np.asarray(x)` to code that writes or asks for writable memory"),
    (r"scipy", r"", r"on ascend-twin:910b: an Ascend 910B has no (float64|complex128)",
     "theirs: takes it that every device of `devices()` computes in float64"),
    (r"test_device_dtype", r"", r"(the tensors are on \w+ and \w+|assert '\S+' == '\S+')",
     "theirs: goes through NumPy, or makes an array without `device=`, and loses the device"),
    (r"test_support_alternative", r"mismatched_dtypes", r"dtypes do not match",
     "theirs: takes int64 with float32 for float64, as NumPy does; the standard leaves it open"),
    (r"test__util", r"lazy", r"DID NOT RAISE",
     "theirs: for lazy namespaces; eager ones are skipped by name"),
    (r"test_rbfinterp", r"", r"no attribute 'view'",
     "theirs: `x.view` is not of the standard, as a comment there says"),
    (r"test_filter_design", r"TestGroupDelay", r"(numpy\.polyval|DID NOT WARN)",
     "theirs: calls `np.polyval` on the namespace's arrays"),
    (r"test_resampling", r"bootstrap_batch", r"Arrays are not equal",
     "theirs: asks for equal bits of sums whose arrays have other shapes"),
    (r"test_filters", r"input_validation", r"Regex pattern did not match",
     "theirs: names the error texts of the namespaces that it knows"),
)  # fmt: skip


def reason(module: str, test: str, message: str) -> str:
    """Whose fault a failure is."""
    for where, which, says, why in KNOWN:
        if re.search(where, module) and re.search(which, test) and re.search(says, message):
            return why
    return "ours: " + message.strip().splitlines()[0][:200]


def run(module: str, *options: str) -> dict[str, Any]:
    """Counts and failures of one module."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outcomes.json"
        environment = os.environ | {
            "SCIPY_ARRAY_API": "1", "RUDA_DEFAULT_FLOAT": "float64", "OMP_NUM_THREADS": "1",
            "RUDA_TEST_OUTCOMES": str(path),
            "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *sys.path]),
        }  # fmt: skip
        command = [
            sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "tests.consumers.plugin",
            "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", folder, *options,
            "--pyargs", module,
        ]  # fmt: skip
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
        if not path.exists():
            raise RuntimeError(f"{module} did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        found = json.loads(path.read_text())
    faults = Counter(reason(module, t, m) for t, m in found["failures"].items())
    return {**found["counts"], "failures": dict(sorted(faults.items()))}


def main(arguments: list[str]) -> int:
    modules = [a for a in arguments if re.fullmatch(r"[\w.]+", a) and "." in a]
    options = arguments[len(modules) :]
    modules = modules or (HERE / "modules.txt").read_text().split()
    kept = json.loads(OUTCOMES.read_text()) if OUTCOMES.exists() else {}
    known = kept.get("modules", {})
    for module in modules:
        known[module] = row = run(module, *options)
        counts = ", ".join(f"{n} {k}" for k, n in row.items() if k != "failures")
        print(f"{module}: {counts}", flush=True)
        for why, n in row["failures"].items():
            print(f"    {n} {why}", flush=True)
        if not options:  # after each, since all of them take long
            keep(known)
    return int(any(why[:4] == "ours" for m in modules for why in known[m]["failures"]))


def keep(modules: dict[str, Any]) -> None:
    """Write all that is known, with sums."""
    total: Counter[str] = Counter()
    for row in modules.values():
        total.update({k: n for k, n in row.items() if k != "failures"})
    ours = sum(n for m in modules.values() for why, n in m["failures"].items() if why[:4] == "ours")
    packages = {name: version(name) for name in ("scipy", "scikit-learn", "numpy")}
    ordered = dict(sorted(modules.items()))
    kept = {"packages": packages, "total": dict(total), "ours": ours, "modules": ordered}
    OUTCOMES.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"so far: {dict(total)}, {ours} of the failures ours", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
