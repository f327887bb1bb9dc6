"""Devices, randomness and the cache of the test run.

`RUDA_TEST_DEVICES=sim,cpu` says on which devices every test with a parameter
`device` runs. A device named there that is absent makes its tests fail: nothing is skipped.
`-m cuda` runs them on `cuda`, those of kernels on the GPU's WebGPU adapter too where wgpu-py is
installed, and what needs an NVIDIA GPU besides; `-m browser` what needs Chromium.
`RUDA_LONG_TESTS=1` looks for new random programs instead of repeating the same few.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import zlib
from importlib.util import find_spec
from typing import Any

import hypothesis
import numpy as np
import pytest

from ruda.settings import settings
from tests import refusals
from tests.refusals import pytest_pyfunc_call  # noqa: F401  a hook

# The tests leave the user's cache alone, and every kernel of theirs passes verification. The
# environment is for their child processes: pytest's own options have imported ruda by now.
_cache = tempfile.TemporaryDirectory(prefix="ruda-tests-", ignore_cleanup_errors=True)
os.environ.setdefault("RUDA_CACHE_DIR", _cache.name)
os.environ["RUDA_VERIFY"] = "1"
settings.set_default("cache_dir", os.environ["RUDA_CACHE_DIR"])
settings.set_default("verify", True)

# A shell's background processes ignore Ctrl-C, and so would what is tested to end by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

DEVICES = os.environ.get("RUDA_TEST_DEVICES", "sim,cpu").split(",")

_slow = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large]
hypothesis.settings.register_profile(
    "ci",
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=25,
    suppress_health_check=_slow,
)
hypothesis.settings.register_profile(
    "long",
    database=None,
    deadline=None,
    max_examples=1000,
    print_blob=True,
    suppress_health_check=_slow,
)
hypothesis.settings.load_profile("long" if os.environ.get("RUDA_LONG_TESTS") == "1" else "ci")


ASKED_FOR = ("cuda", "browser")  # markers whose tests run where `-m` names them, alone


def wants(config: pytest.Config, marker: str) -> bool:
    """Whether `-m` asked for a GPU, or a browser: then it must be there."""
    return marker in config.option.markexpr.replace(f"not {marker}", "")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        devices: list[object] = list(DEVICES)
        only = metafunc.definition.get_closest_marker("only_on")
        if only is not None:
            devices = [d for d in DEVICES if d in only.args]
            if not devices:
                reason = f"tests {only.kwargs['what']}, on {' and '.join(only.args)}"
                devices = [pytest.param(DEVICES[0], marks=pytest.mark.skip(reason))]
        elif wants(metafunc.config, "cuda"):
            kernels = metafunc.definition.nodeid.startswith("tests/jit/")
            there = ["cuda", "wgpu"] if kernels and find_spec("wgpu") else ["cuda"]
            found = [d for d in there if d not in devices]
            devices += [pytest.param(d, marks=pytest.mark.cuda) for d in found]
        metafunc.parametrize("device", devices)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a machine that was not asked for."""
    for marker in ASKED_FOR:
        left = [item for item in items if item.get_closest_marker(marker)]
        if left and not wants(config, marker):
            config.hook.pytest_deselected(items=left)
            items[:] = [item for item in items if not item.get_closest_marker(marker)]


alone: list[str] = []  # what waits for the end of the other processes


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Measurements beside other tests would be of no use: processes of pytest-xdist leave them."""
    if item.get_closest_marker("alone") and "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("runs alone, after the others")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and "alone" in report.keywords and hasattr(report, "node"):  # a process's
        alone.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    refusals.write_lists()


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Run what waited, by the process that had the others do their part: what failed so far is told
    before, should this take too long for somebody."""
    if alone:
        terminalreporter.short_test_summary()
        command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", config.option.markexpr]
        sys.stdout.flush()
        failed = subprocess.run([*command, *alone], check=False).returncode
        session = terminalreporter._session
        session.exitstatus = session.exitstatus or failed


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that are the same in every run, and others for every test."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))
