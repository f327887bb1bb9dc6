"""The documentation is true: its programs run, what they print is what it shows, and its tables are
those of the program."""

import itertools
import re
import runpy
from pathlib import Path

import pytest

from docs import generate

ROOT = Path(generate.__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text):
    """(language, source, line) of each fenced block, and the text block right behind it, if any."""
    found = list(FENCE.finditer(text))
    for block, after in itertools.pairwise([*found, None]):
        output = None
        if (
            after is not None
            and after[1] == "text"
            and not text[block.end() : after.start()].strip()
        ):
            output = after[2]
        yield block[1], block[2], text[: block.start(2)].count("\n") + 1, output


def program(page):
    """The page's Python blocks as one program, with the line numbers of the page.

    Each block is preceded by a line on its fence that notes which block begins.
    """
    lines, outputs = [], []
    for language, source, line, output in blocks(page.read_text("utf-8")):
        if language == "python":
            lines += [""] * (line - 2 - len(lines))
            lines += [f"print({MARK!r})", *source.splitlines()]
            outputs.append(output)
    return "\n".join(lines) + "\n", outputs


MARK = "\x1f"
RUNNABLE = [page for page in PAGES if program(page)[1]]


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_the_programs_run_and_print_what_the_page_shows(page, tmp_path, capsys):
    source, expected = program(page)
    script = tmp_path / (page.stem.replace("-", "_") + ".py")
    script.write_text(source, "utf-8")
    runpy.run_path(str(script))
    printed = capsys.readouterr().out.split(MARK + "\n")[1:]
    assert len(printed) == len(expected)
    for got, shown in zip(printed, expected, strict=True):
        if shown is not None:
            assert got == shown


@pytest.mark.parametrize("name", generate.PAGES)
def test_generated_pages_are_up_to_date(name):
    page = (ROOT / "docs" / name).read_text("utf-8")
    assert page == generate.PAGES[name](), "run `python -m docs.generate`"


def test_blocks_keep_their_lines(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n```python\nx = 1\n```\n```text\nout\n```\n\n```python\ny = 2\n```\n"
    )
    source, outputs = program(page)
    lines = source.splitlines()
    assert lines[3] == "x = 1" and lines[10] == "y = 2" and outputs == ["out\n", None]
