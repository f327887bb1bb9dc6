"""Devices, randomness and the cache of the test run.

`RUDA_TEST_DEVICES=sim,cpu` says on which devices every test with a parameter
`device` runs. A device named there that is absent makes its tests fail: nothing is skipped.
`RUDA_LONG_TESTS=1` looks for new random programs instead of repeating the same few.
"""

from __future__ import annotations

import os
import tempfile
import zlib

import hypothesis
import numpy as np
import pytest

# Before ruda is imported: the tests leave the user's cache alone.
_cache = tempfile.TemporaryDirectory(prefix="ruda-tests-", ignore_cleanup_errors=True)
os.environ.setdefault("RUDA_CACHE_DIR", _cache.name)
os.environ["RUDA_VERIFY"] = "1"  # every kernel of the tests passes verification

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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", DEVICES)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers that are the same in every run, and others for every test."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))
