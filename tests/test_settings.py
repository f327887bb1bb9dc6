"""Settings from the environment: right values, wrong values, misspelt names."""

import subprocess
import sys
import warnings

import pytest

from ruda.settings import SETTINGS, Settings


def read(**variables):
    return Settings({f"RUDA_{k}": v for k, v in variables.items()})


def test_values():
    found = read(DEBUG="2", CHECK="yes", DEVICE="sim", CACHE="0", FUSION="verify")
    assert (found.debug, found.check, found.device, found.cache) == (2, True, "sim", False)
    assert found.fusion == "verify" and read(DEBUG="").debug == 0


GARBAGE = ["x", "-1", "1.5", "99999999999999999999", "  ", "\x00", "None", "🙂"]
FREE = {"device", "cache_dir", "cuda_arch"}  # any text; who reads it checks it


@pytest.mark.parametrize("text", GARBAGE)
@pytest.mark.parametrize("name", sorted(set(SETTINGS) - FREE))
def test_garbage_is_an_error_that_names_the_variable(name, text):
    with pytest.raises(ValueError, match=f"RUDA_{name.upper()}="):
        read(**{name.upper(): text})


def test_a_misspelt_variable_is_told_once():
    with pytest.warns(
        UserWarning, match="RUDA_CHEK is no setting of ruda: did you mean RUDA_CHECK"
    ):
        read(CHEK="1")
    with pytest.warns(UserWarning, match="`ruda --help` lists them"):
        read(WAVELENGTH="1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read(TEST_DEVICES="cpu", LONG_TESTS="1", BENCHMARK_RESULTS="x", DEBUG="1")


def test_a_wrong_value_shows_no_traceback_of_ours_but_the_last_line(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "import ruda"], capture_output=True, text=True,
        env={"RUDA_NUM_THREADS": "many", "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "RUDA_NUM_THREADS='many': expected an integer" in done.stderr.splitlines()[-1]
