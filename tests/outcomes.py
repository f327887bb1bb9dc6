"""Write what each test came to: `pytest -p tests.outcomes --outcomes FILE`.

docs/status.md is made from it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", help="add the outcome of every test to this JSON file")


class Recorder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.outcomes, indent=0))


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path:
        config.pluginmanager.register(Recorder(Path(path)))
