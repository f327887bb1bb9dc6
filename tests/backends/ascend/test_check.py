"""`ruda check-ascend`, with a stand-in for the compiler of CANN; a real one was not there."""

import pytest

from ruda import cli

KERNEL = """import ruda


@ruda.jit
def scale(x, factor):
    i = ruda.grid(1)
    if i < x.size:
        x[i] = x[i] * factor
"""
# Says what it is; else makes a file that names its options, or refuses the line of the product.
BISHENG = """#!/bin/sh
[ "$1" = --version ] && { echo "bisheng 1.2.3"; exit 0; }
options="$*"
while [ "$1" != -o ]; do
    case "$1" in *.asc) source=$1 ;; esac
    shift
done
case "$options" in *--npu-arch=dav-3510*) ;; *) echo "error: no such chip" >&2; exit 1 ;; esac
line=$(grep -n "global_x\\]\\|\\* factor\\|factor)" "$source" | tail -1 | cut -d: -f1)
if [ -n "$BROKEN" ]; then echo "kernel.asc:$line:5: error: $BROKEN" >&2; exit 1; fi
echo library > "$2"
"""


@pytest.fixture
def arguments(tmp_path):
    (tmp_path / "user.py").write_text(KERNEL)
    return ["check-ascend", f"{tmp_path / 'user.py'}:scale", "--types", "f32[:], f32"]


@pytest.fixture
def cann(tmp_path, monkeypatch):
    script = tmp_path / "cann" / "compiler" / "bin" / "bisheng"
    script.parent.mkdir(parents=True)
    script.write_text(BISHENG)
    script.chmod(0o755)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "cann"))


def test_says_that_there_is_no_cann(arguments, monkeypatch, capsys):
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    assert cli.main(arguments) == 1
    output, errors = capsys.readouterr()
    assert output == ""
    assert "there is no CANN here (ASCEND_HOME_PATH is not set), so nothing was checked" in errors


def test_a_folder_that_is_none(arguments, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "nowhere"))
    assert cli.main(arguments) == 1
    assert "nowhere is not a folder: nothing was checked" in capsys.readouterr().err


def test_a_cann_without_a_compiler(arguments, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    assert cli.main(arguments) == 1
    assert "has no compiler `bisheng`" in capsys.readouterr().err


def test_says_what_was_compiled_and_what_that_shows(arguments, cann, capsys):
    assert cli.main(arguments) == 0
    output = capsys.readouterr().out
    assert "bisheng 1.2.3" in output
    assert "compiled for dav-3510, 8 bytes" in output
    assert "does not show that an NPU computes" in output


def test_a_refusal_is_at_the_line_of_the_user(arguments, cann, monkeypatch, capsys):
    monkeypatch.setenv("BROKEN", "no such intrinsic")
    assert cli.main(arguments) == 1
    errors = capsys.readouterr().err
    assert "refuses this kernel: no such intrinsic" in errors
    assert "user.py:8" in errors


def test_types_that_are_none(arguments, cann, capsys):
    assert cli.main([*arguments[:-1], "f33[:], f32"]) == 1
    assert "--types f33[:], f32" in capsys.readouterr().err
