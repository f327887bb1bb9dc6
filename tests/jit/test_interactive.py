"""Kernels typed at a prompt: IPython and notebook cells, Python's own prompt, `python -c`."""

import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
KERNEL = """
import numpy as np
import ruda

@ruda.jit
def double(x):
    i = ruda.grid(1)
    if i < x.size:
        x[i] = 2 * x[i]{wrong}

"""
LAUNCH = """
x = np.arange(4.0)
double[1, 32](x)
print(x)
"""
CELLS = """
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.colors = "NoColor"
for cell in CELLS:
    shell.run_cell(cell, store_history=True)
"""


def python(script, *arguments, stdin=""):
    done = subprocess.run(
        [sys.executable, *arguments, *(["-c", script] if script else [])],
        input=stdin, capture_output=True, text=True, cwd=ROOT, timeout=120,
    )  # fmt: skip
    return done.stdout + done.stderr


def cells(*texts):
    return python(f"CELLS = {texts!r}\n{CELLS}")


def test_a_notebook_cell():
    assert "[0. 2. 4. 6.]" in cells(KERNEL.format(wrong=""), LAUNCH)


def test_a_cell_run_again_with_another_body():
    changed = KERNEL.format(wrong="").replace("2 *", "3 *")
    assert "[0. 3. 6. 9.]" in cells(KERNEL.format(wrong=""), LAUNCH, changed, LAUNCH)


def test_an_error_in_a_cell_shows_its_line():
    said = cells(KERNEL.format(wrong=" + missing"), LAUNCH)
    assert "KernelNameError: name `missing` is not defined" in said
    line, caret = said.splitlines()[-5:-3]  # IPython shows the first of our carets
    assert line.index("missing") == caret.index("^"), said


def test_the_plain_prompt():
    lines = textwrap.dedent(KERNEL.format(wrong="") + LAUNCH)
    said = python("", "-i", "-q", stdin=lines)
    if sys.version_info >= (3, 13):
        assert "[0. 2. 4. 6.]" in said
    else:
        assert "Python keeps no source" in said and "file" in said, said


def test_a_command_line_script():
    said = python(KERNEL.format(wrong="") + LAUNCH)
    if sys.version_info >= (3, 13):
        assert "[0. 2. 4. 6.]" in said
    else:
        assert "Python keeps no source" in said, said
