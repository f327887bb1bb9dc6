"""Layers and functions against PyTorch, values and gradients: see `peers`."""

import json

import numpy as np
import pytest

from tests.nn.peers import CASES, VALUES

RECORDED = json.loads(VALUES.read_text())["values"]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_digests_are_pytorchs(case):
    np.testing.assert_allclose(
        case.digest(case.run_ours()), RECORDED[case.name], rtol=1e-8, atol=1e-9
    )


def test_every_digest_has_a_case():
    assert {c.name for c in CASES} == RECORDED.keys() and len(CASES) == len(RECORDED)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_elements_are_pytorchs(case):
    pytest.importorskip("torch")
    for ours, theirs in zip(case.run_ours(), case.run_theirs(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)
