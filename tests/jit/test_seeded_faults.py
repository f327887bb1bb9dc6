"""Faults planted in frontend, types and passes are noticed by the corpus."""

from __future__ import annotations

import pytest

from tests.jit.seeded_faults import FAULTS, noticed


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_noticed(fault):
    assert noticed(fault)


def test_faults_are_planted_in_types_frontend_and_passes():
    assert len(FAULTS) >= 10
    for part in ("ruda/dtypes.py", "ruda/jit/frontend/", "ruda/jit/passes/"):
        assert any(fault.file.startswith(part) for fault in FAULTS), part
