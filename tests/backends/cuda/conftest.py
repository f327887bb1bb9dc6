"""A CUDA device that is not there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ruda import backends
from ruda.backends.cuda import driver
from ruda.tensor import lower, memory
from tests.backends.cuda.fake import FakeDriver


@pytest.fixture
def fake(monkeypatch):
    """`cuda:0` is a FakeDriver's for one test."""
    made = FakeDriver()
    monkeypatch.setattr(driver, "library", lambda: made)
    monkeypatch.setattr(driver, "atexit", SimpleNamespace(register=lambda f: None))
    monkeypatch.setattr(driver.os, "register_at_fork", lambda **k: None)
    kept = driver.gpus, backends.find, memory.maker, lower.lowered  # GPUs, their pools and kernels
    for cache in kept:
        cache.cache_clear()
    yield made
    for gpu in driver.gpus():
        gpu.pool.closed = True
    for cache in kept:
        cache.cache_clear()
