"""Run the tests that SciPy and scikit-learn have for array namespaces, with ruda as the namespace.

Neither knows ruda by name. The plugin gives SciPy's fixture `xp` the one value `ruda`, and scikit-
learn's list of namespaces the one entry ruda. Tests that do not ask for a namespace are left out.

    SCIPY_ARRAY_API=1 RUDA_DEFAULT_FLOAT=float64 \\
        python -m pytest -p tests.consumers.plugin --pyargs scipy.cluster.tests.test_vq

`run` does so for named modules and keeps the counts.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import ruda

NAMESPACE = pytest.param(ruda, id="ruda")


def _combinations(include_numpy_namespaces: bool = True) -> Iterator[tuple[str, None, str]]:
    yield "ruda", None, "float64"
    yield "ruda", None, "float32"


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("SCIPY_ARRAY_API") != "1":
        raise pytest.UsageError("set SCIPY_ARRAY_API=1: both ask for it before they are imported")
    config.addinivalue_line("markers", "array_api_backends: a test of array namespaces")
    try:
        from sklearn.utils import _array_api
    except ImportError:
        return
    _array_api.yield_namespace_device_dtype_combinations = _combinations
    _array_api.yield_namespaces = lambda include_numpy_namespaces=True: iter(["ruda"])


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """SciPy's fixture `xp` is of ruda alone."""
    conftest: Any = sys.modules.get("scipy.conftest")
    definitions = metafunc._arg2fixturedefs.get("xp")
    if conftest is None or not definitions:
        return
    conftest.xp_known_backends.add("ruda")
    for definition in definitions:
        if definition.params is not None:
            object.__setattr__(definition, "params", [NAMESPACE])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not about namespaces."""
    wanted, other = [], []
    for item in items:
        parameters = getattr(item, "callspec", None)
        values = parameters.params.values() if parameters is not None else ()
        ours = any(v is ruda or (isinstance(v, str) and v == "ruda") for v in values)
        (wanted if ours else other).append(item)
    if other:
        config.hook.pytest_deselected(items=other)
        items[:] = wanted


# ---- what came of it -----------------------------------------------------------------------------

_outcomes: dict[str, list[str]] = {}
_failures: dict[str, str] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        outcome = "xfailed" if hasattr(report, "wasxfail") else report.outcome
        _outcomes.setdefault(outcome, []).append(report.nodeid)
        if outcome == "failed":
            crash = getattr(report.longrepr, "reprcrash", None)
            _failures[report.nodeid] = str(crash.message if crash else report.longrepr)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Counts and failures as JSON, where `RUDA_TEST_OUTCOMES` says a file."""
    path = os.environ.get("RUDA_TEST_OUTCOMES")
    if path:
        counts = {name: len(set(ids)) for name, ids in sorted(_outcomes.items())}
        with open(path, "w") as file:
            json.dump({"counts": counts, "failures": _failures}, file, indent=1)
