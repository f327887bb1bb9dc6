"""Profiles and timings: what is recorded, on which clock, and that nothing stays behind."""

import json
import sys
import threading
import time
import types

import numpy as np
import pytest

import ruda
from ruda import backends
from ruda.backends.base import observers


def kernel():
    @ruda.jit
    def double(x):
        i = ruda.grid(1)
        if i < x.size:
            x[i] *= 2

    return double


def row(p, kind, name="double"):
    (found,) = (r for r in p.rows() if (r.kind, r.name) == (kind, name))
    return found


def test_launches_and_compilations_are_recorded(device):
    double = kernel()
    with ruda.config(device=device):
        x = ruda.to_device(np.ones(100, np.float32))
        with ruda.profile() as p:
            for _ in range(5):
                double.forall(x.size)(x)
        double.forall(x.size)(x)  # not any more
        assert x.copy_to_host()[0] == 64
    found = row(p, "kernel")
    assert found.calls == 5 and found.device == backends.find(device).name
    assert 0 < found.least <= found.median <= found.most <= found.total < p.seconds
    assert row(p, "compile").calls == 1
    assert not observers


def test_launchers_that_are_ready_are_recorded(device):
    """Native launchers know nothing of profiles: they give way while one runs."""
    double, x = kernel(), np.ones(8, np.float32)
    with ruda.config(device=device):
        for _ in range(3):
            double[1, 32](x)
        for _ in range(2):
            with ruda.profile() as p:
                double[1, 32](x)
                double[1, 32](x)
            assert [(r.kind, r.calls) for r in p.rows()] == [("kernel", 2)]
            double[1, 32](x)
    assert x[0] == 2**9


def test_launches_of_other_threads_are_recorded():
    double = kernel()
    with ruda.profile() as p:
        threads = [
            threading.Thread(target=double[1, 32], args=(np.ones(8, np.float32),)) for _ in range(3)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert row(p, "kernel").calls == 3


def test_copies_have_sizes(device):
    with ruda.config(device=device):
        d = ruda.device_array(1000, np.float32)
        if d.storage.on_host:
            return  # nothing moves
        with ruda.profile() as p:
            d.copy_to_device(np.zeros(1000, np.float32))
            d[:10].copy_to_host()
    assert row(p, "copy", "to the device").nbytes == 4000
    assert row(p, "copy", "to the host").nbytes == 40


def test_profiles_within_profiles():
    double, x = kernel(), np.ones(8, np.float32)
    with ruda.profile() as outer:
        double[1, 32](x)
        with ruda.profile() as inner:
            double[1, 32](x)
        with pytest.raises(RuntimeError, match="running already"), outer:
            pass
    assert row(outer, "kernel").calls == 2 and row(inner, "kernel").calls == 1


def test_an_error_leaves_nothing_behind():
    with pytest.raises(KeyError), ruda.profile():
        raise KeyError
    assert not observers


def test_the_table_and_the_trace(tmp_path):
    double, x = kernel(), np.ones(8, np.float32)
    with ruda.profile() as p:
        line = sys._getframe().f_lineno + 1
        double[1, 32](x)
    text = repr(p).splitlines()
    assert text[0].startswith("profile of ") and text[1].split()[:3] == ["name", "device", "calls"]
    assert any(t.split()[:4] == ["kernel", "double", "cpu", "1"] for t in text)
    path = tmp_path / "trace.json"
    p.save(path)
    events = json.loads(path.read_text())["traceEvents"]
    (found,) = (e for e in events if e.get("cat") == "kernel")
    assert found["ph"] == "X" and found["name"] == "double" and found["dur"] > 0
    assert found["args"]["launched at"] == f"{__file__}:{line}"
    (process,) = (e for e in events if e["ph"] == "M")
    assert process["args"]["name"] == "cpu" and process["pid"] == found["pid"]


# ---- timeit


def test_timeit_takes_the_time_of_a_call():
    found = ruda.timeit(time.sleep, 0.002, seconds=0.05)
    assert 0.002 <= found.best <= found.median < 0.1 and found.calls == 1
    assert found.devices == ("cpu",) and len(found.samples) >= 3
    assert "a call on cpu (quartiles " in repr(found)


def test_timeit_waits_for_the_devices_that_work(device, monkeypatch):
    double = kernel()
    with ruda.config(device=device):
        x = ruda.to_device(np.ones(100, np.float32))
    backend, waited = backends.get(device), []
    wait = backend.synchronize
    monkeypatch.setattr(backend, "synchronize", lambda name: (waited.append(name), wait(name)))
    found = ruda.timeit(lambda: double.forall(x.size)(x), seconds=0.05, samples=3)
    assert found.devices == (x.device,)
    assert len(waited) >= 2 * (len(found.samples) + 3)
    assert not observers


def test_timeit_refuses_what_it_cannot_call():
    with pytest.raises(TypeError, match=r"write `ruda\.timeit"):
        ruda.timeit(3)
    with pytest.raises(ValueError, match="at least 3 samples"):
        ruda.timeit(time.sleep, 0, samples=1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.00 ns"), (2.5e-9, "2.50 ns"), (1e-6, "1.00 us"), (0.5, "500 ms"), (61, "61.0 s")],
)
def test_seconds_in_words(seconds, text):
    from ruda.profiling import in_words

    assert in_words(seconds) == text


def test_ranges_of_nvtx(monkeypatch):
    """Where the package is installed, a launch is a range of its name."""
    from ruda import profiling

    ranges = []

    class annotate:
        def __init__(self, name, domain):
            self.name = f"{domain}:{name}"

        def __enter__(self):
            ranges.append(f"+{self.name}")

        def __exit__(self, *exception):
            ranges.append(f"-{self.name}")

    monkeypatch.setitem(sys.modules, "nvtx", types.SimpleNamespace(annotate=annotate))
    with profiling._nvtx("double"):
        pass
    assert ranges == ["+ruda:double", "-ruda:double"]
    monkeypatch.setitem(sys.modules, "nvtx", None)
    with profiling._nvtx("double"):
        pass
