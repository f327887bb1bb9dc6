"""Every kernel of the tables becomes text for the 910B class, or is refused as the list says.

Here they are only translated, which takes seconds, and their forms are counted. With
`RUDA_TEST_DEVICES=ascend-twin:910b` the tests of `tests/jit` run them, held to the same list.
"""

from collections import Counter
from pathlib import Path

import numpy as np

import ruda
from ruda.backends.ascend.device import TwinBackend
from ruda.errors import UnsupportedError
from tests.jit.case import run
from tests.jit.test_kernels import MODULES

LIST = Path(__file__).parent / "refused_910b.txt"


class Emitted(Exception):
    """Stops a launch when its text is there."""


def translated(case):
    """The form of a kernel, or why it is refused."""
    n = next(n for n in case.sizes if n)
    grid, block, shared = case.extents(n)

    def launch(arguments):
        with ruda.config(device="ascend-twin:910b", cache=False, **case.config):
            case.kernel[(grid, block, 0, shared) if shared else (grid, block)](*arguments)

    try:
        run(case.arguments(np.random.default_rng(0), n), launch)
    except Emitted as emitted:
        return emitted.args[0], ""
    except UnsupportedError as error:
        return "refused", str(error)
    raise AssertionError(f"{case} was not compiled")


def test_the_forms_of_all_kernels(monkeypatch):
    def stop(self, source, target):
        raise Emitted(source.options["form"])

    monkeypatch.setattr(TwinBackend, "compile", stop)
    found, forms = [], Counter()
    for module in MODULES:
        for case in module.CASES:
            form, why = translated(case)
            forms[form] += 1
            if form == "refused":
                found.append(f"{module.__name__.rpartition('.')[2]}-{case}: {why}")
    print(dict(forms))
    assert "\n".join(found) + "\n" == LIST.read_text()
    assert forms["S1"] > 100
    assert sum(forms.values()) - forms["refused"] > 280
