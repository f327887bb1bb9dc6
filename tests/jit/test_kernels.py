"""Every kernel of the tables, at every size, on every device: against NumPy and the oracle."""

import importlib
import pkgutil
import zlib

import numpy as np
import pytest

import ruda
import tests.jit.kernels
from tests import oracle
from tests.jit.case import Case, Near, answers, check, check_device, run

MODULES = [
    importlib.import_module(f"tests.jit.kernels.{module.name}")
    for module in pkgutil.iter_modules(tests.jit.kernels.__path__)
]
ROWS = [
    pytest.param(case, n, id=f"{module.__name__.rpartition('.')[2]}-{case}-{n}")
    for module in MODULES
    for case in module.CASES
    for n in case.sizes
]
SMALL_ROWS = [row for row in ROWS if row.values[1] <= row.values[0].small]
PENDING = [case for module in MODULES for case in getattr(module, "PENDING", [])]


def with_oracle(case: Case, n: int, row: tuple, order: int = 1) -> list[np.ndarray]:
    grid, block, shared = case.extents(n)

    def launch(arguments):
        oracle.launch(case.kernel, grid, block, *arguments, shared=shared, order=order)

    return run(row, launch)


KNOWN: dict[tuple[int, int], list[np.ndarray]] = {}


def forwards(case: Case, n: int, row: tuple) -> list[np.ndarray]:
    """The oracle's arrays for the row of `rng`: it is slow, and runs once for all devices."""
    if (id(case), n) not in KNOWN:
        KNOWN[id(case), n] = with_oracle(case, n, row)
    return KNOWN[id(case), n]


@pytest.fixture
def rng(case: Case, n: int) -> np.random.Generator:
    """The same numbers on all devices, and others for every kernel and size."""
    return np.random.default_rng(zlib.crc32(f"{case}-{n}".encode()))


def at_scale(expected: list, arrays: list[np.ndarray]) -> list:
    """The oracle's arrays as answers, with the scales of NumPy's."""
    return [
        (Near(array, want.scale) if isinstance(want, Near) else array, array.dtype)
        for (want, _), array in zip(expected, arrays, strict=True)
    ]


@pytest.mark.parametrize(("case", "n"), ROWS)
def test_device_matches_numpy_and_oracle(case, n, device, rng):
    grid, block, shared = case.extents(n)

    def launch(arguments):
        with ruda.config(device=device, **case.config):
            case.kernel[(grid, block, 0, shared) if shared else (grid, block)](*arguments)

    row = case.arguments(rng, n)
    got = run(row, launch)
    check_device(case, device, got, row, lambda row: answers(case, row), case.ulps)
    if n <= case.small:

        def of_oracle(given):
            found = forwards(case, n, row) if given is row else with_oracle(case, n, given)
            return at_scale(answers(case, given), found)

        check_device(case, device, got, row, of_oracle, 2 * case.ulps)


@pytest.mark.parametrize(("case", "n"), SMALL_ROWS)
def test_oracle_matches_numpy(case, n, rng):
    """Forwards and backwards: no kernel of the tables may depend on the order of its threads."""
    row = case.arguments(rng, n)
    expected = answers(case, row)
    check(case, forwards(case, n, row), expected, case.ulps)
    if n > 1:
        check(case, with_oracle(case, n, row, order=-1), expected, case.ulps)


def test_names_are_unique():
    names = [f"{module.__name__}.{case}" for module in MODULES for case in module.CASES]
    assert len(names) == len(set(names))
    assert len(names) >= 100


def test_pending_kernels_are_counted():
    """Kernels that wait for a feature of the compiler; they move to CASES when it is there."""
    print(f"{len(PENDING)} kernels pending: {', '.join(map(str, PENDING))}")
