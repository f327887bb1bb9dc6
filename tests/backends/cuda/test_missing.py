"""Machines without what CUDA needs: the message names it, and everything else works."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

import ruda
from ruda import backends
from ruda.backends.cuda import driver
from ruda.errors import DeviceNotFoundError


def missing_library(monkeypatch):
    def absent(name):
        raise OSError(name)

    monkeypatch.setattr(driver, "ctypes", SimpleNamespace(CDLL=absent))


def missing_bindings(monkeypatch):
    monkeypatch.setattr(driver, "ctypes", SimpleNamespace(CDLL=lambda name: None))
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)


def refusing_driver(monkeypatch):
    import cuda.bindings.driver

    monkeypatch.setattr(driver, "ctypes", SimpleNamespace(CDLL=lambda name: None))
    answer = (SimpleNamespace(name="CUDA_ERROR_NO_DEVICE"),)
    monkeypatch.setattr(cuda.bindings.driver, "cuInit", lambda flags: answer)


@pytest.mark.parametrize(
    ("break_it", "text"),
    [
        (missing_library, "has no NVIDIA driver"),
        (missing_bindings, r'pip install "ruda\[cuda\]"'),
        (refusing_driver, "the driver answers CUDA_ERROR_NO_DEVICE"),
    ],
)
def test_what_is_missing_is_told_and_others_go_on(monkeypatch, break_it, text):
    """Only who asks for CUDA gets an error: it names what to install."""
    for cache in (driver.library, driver.gpus, backends.find):
        cache.cache_clear()
    try:
        with monkeypatch.context() as patched:
            break_it(patched)
            assert not any(d.name.startswith("cuda") for d in ruda.devices())
            assert not ruda.is_available("cuda")
            for use in (lambda: ruda.select_device("cuda"), lambda: ruda.device("cuda:0").info):
                with pytest.raises(DeviceNotFoundError, match=text) as found:
                    use()
                assert "NVIDIA driver" in str(found.value)
            with ruda.config(device="cpu"):
                assert ruda.to_device([1.0]).copy_to_host().tolist() == [1]
    finally:
        for cache in (driver.library, driver.gpus, backends.find):
            cache.cache_clear()
