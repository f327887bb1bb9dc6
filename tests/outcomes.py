"""Write what each test came to: `pytest -p tests.outcomes --outcomes FILE`.

The file maps test names to [outcome, seconds]. docs/status.md and the time budget are made from it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

# Part of the tests, its budget in seconds, the folders that belong to it (the first match counts).
BUDGET = (
    ("kernels", 480, ("tests/jit",)),
    ("devices", 360, ("tests/backends",)),
    ("tensors", 300, ("tests/tensor", "tests/nn")),
    ("others", 300, ("tests", "ruda")),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", help="write the outcome and the time of every test to this file")


class Recorder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, list[str | float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        before = self.outcomes.get(report.nodeid, ["passed", 0.0])
        outcome = before[0] if report.outcome == "passed" else report.outcome
        self.outcomes[report.nodeid] = [outcome, float(before[1]) + report.duration]

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.outcomes, indent=0))


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path:
        config.pluginmanager.register(Recorder(Path(path)))


def main() -> int:
    """Print the time of each part beside its budget."""
    outcomes: dict[str, list[str | float]] = {}
    for file in sys.argv[1:]:
        outcomes |= json.loads(Path(file).read_text())
    spent = {name: 0.0 for name, _, _ in BUDGET}
    for test, (_, seconds) in outcomes.items():
        part = next(name for name, _, folders in BUDGET if test.startswith(folders))
        spent[part] += float(seconds)
    for name, budget, _ in BUDGET:
        print(f"{name:16} {spent[name]:5.0f} s of {budget:5} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
