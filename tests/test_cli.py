"""The command `ruda`: what it prints, its exit status, and how it says what went wrong."""

import os
import subprocess
import sys
import types

import pytest

import ruda
from ruda import backends, cli
from ruda.errors import KernelTypeError, LaunchValueError, Place
from ruda.jit import cache
from ruda.settings import SETTINGS, settings


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Settings as they are without any variable, and a cache of its own."""
    for row in SETTINGS.values():
        monkeypatch.setitem(settings.base, row.name, row.default)
    monkeypatch.setitem(settings.base, "cache_dir", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "_state", cache._State())
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def command(capsys):
    """Run `ruda ...` in this process: exit status, output, errors."""

    def run(*words):
        try:
            status = cli.main(words)
        except SystemExit as stop:
            status = stop.code
        return status, *capsys.readouterr()

    return run


def stored(name, types="float32[:]"):
    parts = {"name": name, "target": "cpu", "types": types}
    key = cache.key_of(parts)
    cache.store(key, cache.Entry(b"code", {}), parts=parts)
    return key


def in_process(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "ruda", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


# ------------------------------------------------------------------------------------ the frame


def test_the_module_and_the_console_script_run_the_same_function():
    import tomllib
    from importlib import import_module
    from pathlib import Path

    found = in_process("--version")
    assert (found.returncode, found.stdout, found.stderr) == (0, f"ruda {ruda.__version__}\n", "")
    text = Path(__file__).parents[1].joinpath("pyproject.toml").read_text()
    module, _, function = tomllib.loads(text)["project"]["scripts"]["ruda"].partition(":")
    assert getattr(import_module(module), function) is cli.main


def test_without_a_command_the_usage_is_printed(command):
    status, out, errors = command()
    assert (status, out) == (2, "")
    assert "usage: ruda" in errors


def test_help_lists_every_command(command):
    status, out, _ = command("--help")
    assert status == 0
    for row in cli.COMMANDS:
        assert row.name in out
        assert row.help in " ".join(out.split())
        assert command(row.name, "--help")[0] == 0


def test_an_unknown_command_or_argument_is_named(command):
    for words in (("frobnicate",), ("cache", "burn"), ("info", "--verbose")):
        status, out, errors = command(*words)
        assert (status, out) == (2, "")
        assert words[-1] in errors


def test_no_command_imports_numba_to_say_what_it_can_do():
    code = "import sys, ruda.__main__; sys.exit('numba' in sys.modules or 'wgpu' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# ----------------------------------------------------------------------------------------- cache


def test_cache_path(command, folder):
    assert command("cache", "path") == (0, f"{folder}\n", "")


def test_cache_path_when_there_is_none(command, monkeypatch):
    monkeypatch.setitem(settings.base, "cache", False)
    assert command("cache", "path") == (0, "off\n", "")
    monkeypatch.setitem(settings.base, "cache", True)
    monkeypatch.setitem(settings.base, "cache_dir", "relative")
    assert "absolute" in command("cache", "path")[1]


def test_cache_list_and_clear(command, folder):
    assert command("cache", "list") == (0, "0 kernels, 0 B\n", "")
    key = stored("m.saxpy")
    stored("m.other", types="int8")
    status, out, errors = command("cache", "list")
    assert (status, errors) == (0, "")
    assert key[:12] in out
    assert "m.saxpy (cpu, float32[:])" in out
    assert "m.other (cpu, int8)" in out
    assert out.splitlines()[-1].startswith("2 kernels, ")
    assert len(command("cache", "list", "--kernel", "m.other")[1].splitlines()) == 2
    assert command("cache", "clear", "--kernel", "m.other") == (0, "removed 1 kernels\n", "")
    assert command("cache", "clear") == (0, "removed 1 kernels\n", "")
    assert list(folder.iterdir()) == []


def test_cache_list_shows_what_is_wrong_with_an_entry(command, folder):
    key = stored("m.saxpy")
    (folder / f"{key}.ruda").write_bytes(b"")
    out = command("cache", "list")[1]
    assert "(no name)" in out
    assert "damaged" in out


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (3 << 39, "1536.0 GiB"),
    ],
)
def test_sizes(size, text):
    assert cli._size(size) == text


# ------------------------------------------------------------------------------------------ info


def test_info_tells_versions_devices_settings_and_cache(command, monkeypatch, folder):
    import numpy

    stored("m.saxpy")
    monkeypatch.setitem(settings.base, "debug", 0)
    monkeypatch.setitem(settings.base, "check", True)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    status, out, errors = command("info")
    assert (status, errors) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert ruda.__version__ in lines["ruda"]
    assert numpy.__version__ in lines["numpy"]
    assert "RUDA_CHECK=True (default False)" in out
    assert "RUDA_DEBUG" not in out
    assert "OMP_NUM_THREADS=3" in out
    assert f"{folder}: 1 kernels" in lines["cache"]
    for device in ruda.devices():
        assert f"{device.name}: {device.description}" in out


def test_info_tells_why_a_kind_of_device_is_not_there(command, monkeypatch):
    monkeypatch.setattr(backends.get("cuda"), "devices", list)
    monkeypatch.setattr(backends.get("cuda"), "missing", lambda: "there is no driver")
    status, out, _ = command("info")
    assert status == 0
    assert "no cuda: there is no driver" in out


def test_info_survives_a_device_that_cannot_be_listed(command, monkeypatch):
    def broken():
        raise OSError("driver too old")

    monkeypatch.setattr(backends.get("cuda"), "devices", broken)
    status, out, _ = command("info")
    assert status == 0
    assert "cuda cannot be listed: OSError: driver too old" in out
    assert "cpu: " in out and "sim: " in out


def test_info_does_not_import_numba(tmp_path):
    code = "import sys; from ruda.cli import main; main(['info']); sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


# ------------------------------------------------------------------------------- compile and demo


@pytest.fixture
def tools(monkeypatch):
    """A stand-in for `ruda.jit.tools` that says what it was asked."""
    module = types.ModuleType("ruda.jit.tools")
    module.compile_command = lambda *a, **k: f"{a} {k}"
    monkeypatch.setitem(sys.modules, "ruda.jit.tools", module)
    return module


def test_compile_passes_on_what_was_asked(command, tools, tmp_path):
    file = tmp_path / "a:b.py"
    file.write_text("")
    status, out, errors = command(
        *("compile", f"{file}:saxpy", "--target", "sim", "--types", "f32[:], i32"),
        *("--block", "16,8", "--constexpr", "n=4", "--constexpr", "eps=1e-5", "--shared", "64"),
    )
    assert (status, errors) == (0, "")
    assert out.rstrip() == str((str(file), "saxpy")) + " " + str(
        {
            "target": "sim",
            "assembly": False,
            "types": "f32[:], i32",
            "block": (16, 8),
            "constexpr": {"n": 4, "eps": 1e-05},
            "shared": 64,
        }
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["FILE"], "is not FILE:KERNEL"),
        (["FILE:"], "is not FILE:KERNEL"),
        ([":kernel"], "is not FILE:KERNEL"),
        (["missing.py:kernel"], "there is no file missing.py"),
        (["FILE:k", "--block", "x"], "--block x: expected one to three numbers"),
        (["FILE:k", "--block", "1.5"], "--block 1.5: expected one to three numbers"),
        (["FILE:k", "--block", "0"], "--block 0: expected one to three positive"),
        (["FILE:k", "--block", "1,1,1,1"], "--block 1,1,1,1: expected one to three"),
        (["FILE:k", "--constexpr", "n"], "--constexpr n: expected NAME=VALUE"),
        (["FILE:k", "--constexpr", "n="], "--constexpr n=: expected NAME=VALUE"),
        (["FILE:k", "--constexpr", "2=3"], "--constexpr 2=3: expected NAME=VALUE"),
        (["FILE:k", "--constexpr", "n=f()"], "--constexpr n=f(): expected NAME=VALUE"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named_in_one_line(command, tools, tmp_path, words, message):
    file = tmp_path / "kernels.py"
    file.write_text("")
    status, out, errors = command("compile", *(w.replace("FILE", str(file)) for w in words))
    assert (status, out) == (1, "")
    assert errors.count("\n") == 1
    assert errors.startswith("ruda: ")
    assert message in errors


def test_a_command_whose_module_or_package_is_missing_says_so(command, monkeypatch, tmp_path):
    file = tmp_path / "kernels.py"
    file.write_text("")
    monkeypatch.setitem(sys.modules, "ruda.jit.tools", types.ModuleType("ruda.jit.tools"))
    status, _, errors = command("compile", f"{file}:k")
    assert (status, errors) == (1, "ruda: this ruda has no ruda.jit.tools.compile_command\n")

    def no_such_module(name):
        raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)

    monkeypatch.setattr(cli.importlib, "import_module", no_such_module)
    missing = "ruda.jit.tools"
    assert command("compile", f"{file}:k")[2] == "ruda: this ruda has no ruda.jit.tools\n"
    missing = "PIL"
    status, _, errors = command("demo")
    assert status == 1
    assert "package PIL is missing; `pip install 'ruda[demo]'`" in errors


def test_demo_passes_on_what_was_asked_and_its_status(command, monkeypatch):
    asked = []
    module = types.ModuleType("ruda.demo")
    module.main = lambda *a, **k: asked.append((a, k)) or 3
    monkeypatch.setitem(sys.modules, "ruda.demo", module)
    assert command("demo")[0] == 3
    assert command("demo", "cat.jpg", "--small", "--output", "out.png")[0] == 3
    assert asked == [
        ((None,), {"small": False, "output": "demo.png"}),
        (("cat.jpg",), {"small": True, "output": "out.png"}),
    ]


# -------------------------------------------------------------------------------------- errors


def failing(tools, error):
    def fail(*arguments, **options):
        raise error

    tools.compile_command = fail


def test_a_kernel_error_is_printed_with_place_caret_and_hint(command, tools, tmp_path):
    file = tmp_path / "kernels.py"
    file.write_text("def k(x):\n    x[0] += 'a'\n")
    place = Place(str(file), 2, 4, 2, 15, "k")
    failing(tools, KernelTypeError("cannot add str", place, hint="use a number"))
    status, out, errors = command("compile", f"{file}:k")
    assert (status, out) == (1, "")
    assert errors == (
        f'  File "{file}", line 2\n'
        "    x[0] += 'a'\n"
        "    ^^^^^^^^^^^\n"
        "ruda.errors.KernelTypeError: cannot add str\n"
        "hint: use a number\n"
    )


def test_another_error_of_ours_is_one_message_with_its_notes(command, tools, tmp_path):
    file = tmp_path / "kernels.py"
    file.write_text("")
    error = LaunchValueError("the block is too large")
    error.add_note("hint: 1024 is the most")
    failing(tools, error)
    status, _, errors = command("compile", f"{file}:k")
    assert (status, errors) == (1, "ruda: the block is too large\nhint: 1024 is the most\n")


def test_debug_shows_the_traceback(command, tools, tmp_path, monkeypatch):
    file = tmp_path / "kernels.py"
    file.write_text("")
    failing(tools, LaunchValueError("the block is too large"))
    monkeypatch.setitem(settings.base, "debug", 1)
    with pytest.raises(LaunchValueError):
        command("compile", f"{file}:k")
    found = in_process("compile", "missing.py:k", RUDA_DEBUG="1")
    assert found.returncode == 1
    assert "Traceback" in found.stderr
    found = in_process("compile", "missing.py:k", RUDA_DEBUG="0")
    assert (found.returncode, found.stderr) == (1, "ruda: there is no file missing.py\n")


def test_a_mistake_of_ruda_keeps_its_traceback(command, tools, tmp_path):
    file = tmp_path / "kernels.py"
    file.write_text("")
    failing(tools, ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        command("compile", f"{file}:k")


def test_an_interrupt_ends_without_a_traceback(command, tools, tmp_path):
    file = tmp_path / "kernels.py"
    file.write_text("")
    failing(tools, KeyboardInterrupt())
    assert command("compile", f"{file}:k") == (130, "", "")


@pytest.mark.skipif(os.name != "posix", reason="pipes are POSIX's")
def test_a_reader_that_stops_early_is_not_an_error():
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from ruda.cli import main; sys.exit(main())",
            "info",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 0
    assert errors == ""
