"""A small part of what `tests.consumers.run` runs, so that it goes on running."""

import pytest

from tests.consumers.run import reason, run


@pytest.mark.parametrize(
    ("package", "module"),
    [("scipy", "scipy.cluster.tests.test_vq"), ("sklearn", "sklearn.utils.tests.test_stats")],
)
def test_tests_of_consumers_pass_with_ruda_as_namespace(package, module):
    pytest.importorskip(package)
    found = run(module)
    assert found["failures"] == {} and found["passed"] >= 10


def test_failures_are_ours_unless_they_are_known():
    assert reason("scipy.x", "test_y", "ValueError: output array is read-only").startswith("theirs")
    assert reason("scipy.x", "test_y", "ValueError: 1 is not 2") == "ours: ValueError: 1 is not 2"
