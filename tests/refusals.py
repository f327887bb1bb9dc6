"""What a device must refuse: a listed test fails if it runs, or is refused for another reason.

A line of a list is `key: message`. For a kernel of the tables the key is `module-case`, for another
test `file::test`, with its parameters in brackets where only some are refused; the device is left
out. A listed test that is refused with its message counts as an expected failure; one that runs or
is refused without being listed fails. So the lists say what a chip has not, and all of it.

    export RUDA_TEST_DEVICES=ascend-twin,ascend-twin:910b
    RUDA_TEST_REFUSALS=write python -m pytest tests/jit -k "ascend and not oracle_matches"

writes the lists of `tests/jit` anew; what then differs is to be read. That of the kernels is also
held to by `tests/backends/ascend/test_tiles_corpus.py`.
"""

from __future__ import annotations

import functools
import os
import re
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ruda.errors import UnsupportedError

TESTS = Path(__file__).parent
# Device -> its lists; the first is of `tests/jit`.
LISTS = {
    "ascend-twin": ["jit/refused_ascend_950.txt"],
    "ascend-twin:910b": ["jit/refused_ascend_910b.txt", "backends/ascend/refused_910b.txt"],
}


@functools.cache
def refused(device: str) -> dict[str, str]:
    """The lists of a device: key -> message."""
    texts = ((TESTS / file).read_text("utf-8") for file in LISTS[device])
    lines = [line for text in texts for line in text.splitlines()]
    return {key: message.strip() for key, _, message in (line.partition(": ") for line in lines)}


def keys(item: Any, device: str) -> Iterator[str]:
    """How a list may name a test: as a kernel, with its parameters, without."""
    file = Path(item.path).name
    parameters = re.sub(rf"(^|-){re.escape(device)}(?=-|$)", "", item.callspec.id).strip("-")
    if file == "test_kernels.py":
        yield parameters.rpartition("-")[0]
    yield f"{file}::{item.originalname}[{parameters}]"
    yield f"{file}::{item.originalname}"


def told(error: BaseException | None) -> Iterator[str]:
    """What was refused on the way to an error: a test may have waited for another one."""
    while error is not None:
        if isinstance(error, UnsupportedError):
            yield str(error).partition("\n")[0]
        error = error.__cause__ or error.__context__


WRITES = os.environ.get("RUDA_TEST_REFUSALS") == "write"
# Device -> test without its parameters -> with them -> what was refused, or nothing.
seen: dict[str, dict[str, dict[str, str]]] = defaultdict(lambda: defaultdict(dict))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> Generator[None, object, object]:
    device = getattr(getattr(pyfuncitem, "callspec", None), "params", {}).get("device")
    if device not in LISTS:
        return (yield)
    names, found = list(keys(pyfuncitem, device)), refused(device)
    key = next((k for k in names if k in found), None)
    reasons: list[str] = []
    try:
        result = yield
    except Exception as error:
        reasons = list(told(error))
        if key is not None and found[key] in reasons and not WRITES:
            pytest.xfail(f"refused, as listed: {found[key]}")
        raise
    finally:
        seen[device][names[-1]][names[-2]] = reasons[-1] if reasons else ""
    if key is not None and not WRITES:
        pytest.fail(f"{device} runs `{key}`, which is listed as refused: take it off the list")
    return result


def write_lists() -> None:
    """Write the lists anew, where that was asked for: a line for a test that is always refused."""
    for device, tests in seen.items() if WRITES else ():
        lines = []
        for test, cases in tests.items():
            if test.startswith("test_kernels.py::"):
                continue
            reasons = set(cases.values())
            found = {test: reasons.pop()} if len(reasons) == 1 else cases
            lines += [f"{key}: {reason}" for key, reason in found.items() if reason]
        path = TESTS / LISTS[device][0]
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
