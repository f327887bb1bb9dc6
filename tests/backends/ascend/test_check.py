"""`ruda check-ascend`, with a stand-in for the compiler of CANN; a real one was not there."""

import pytest

import ruda
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
case "$options" in
*--npu-arch=dav-3510*--enable-simt*) ;;
*--enable-simt*) echo "error: no threads there" >&2; exit 1 ;;
*--npu-arch=dav-2201*) [ -z "$OLD" ] || { echo "bisheng: error: $OLD" >&2; exit 1; } ;;
*) echo "error: no such chip" >&2; exit 1 ;;
esac
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
    (tmp_path / "cann" / "version.cfg").write_text("# CANN\nrunning_version=[1]\nversion=9.9.1\n")
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
    assert "version 9.9.1, bisheng 1.2.3" in output
    assert "form SIMT, compiled for dav-3510, 8 bytes" in output
    assert "form S1, compiled for dav-2201, 8 bytes" in output
    assert "not show that an NPU computes" in output


def test_one_chip(arguments, cann, capsys):
    with ruda.config(ascend_chip="910b"):
        assert cli.main(arguments) == 0
    output = capsys.readouterr().out
    assert "dav-2201" in output and "dav-3510" not in output


@pytest.mark.parametrize(
    "message", ["unknown argument: '--npu-arch=dav-2201'", "invalid value 'dav-2201' in 'npu-arch'"]
)
def test_a_cann_of_another_version(arguments, cann, monkeypatch, capsys, message):
    """A chip that its compiler does not know is told, with the version; the other one is built."""
    monkeypatch.setenv("OLD", message)
    assert cli.main(arguments) == 0
    output = capsys.readouterr().out
    assert "compiled for dav-3510" in output
    assert (
        "(version 9.9.1, bisheng 1.2.3) is of a version that does not build for dav-2201" in output
    )
    assert message in output
    with ruda.config(ascend_chip="910b"):
        assert cli.main(arguments) == 1
    assert "takes one that knows --npu-arch=dav-2201" in capsys.readouterr().err


def test_a_chip_that_the_kernel_cannot_be_for(arguments, cann, capsys):
    assert cli.main([*arguments[:-1], "f64[:], f64"]) == 0
    output = capsys.readouterr().out
    assert "Ascend 910B: " in output and "has no float64" in output
    assert "compiled for dav-3510" in output


def test_a_refusal_is_at_the_line_of_the_user(arguments, cann, monkeypatch, capsys):
    monkeypatch.setenv("BROKEN", "no such intrinsic")
    assert cli.main(arguments) == 1
    errors = capsys.readouterr().err
    assert "refuses this kernel: no such intrinsic" in errors
    assert "user.py:8" in errors


def test_types_that_are_none(arguments, cann, capsys):
    assert cli.main([*arguments[:-1], "f33[:], f32"]) == 1
    assert "--types f33[:], f32" in capsys.readouterr().err
