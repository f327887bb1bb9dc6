"""The differential fuzzer finds differences, says how to see them again, and is repeatable."""

import pytest

from ruda.errors import DeviceNotFoundError
from tests import fuzz
from tests.jit import test_generated_kernels as generated

FEW = ["--seconds", "0", "--seed", "4", "--batch", "2"]


def test_a_few_kernels_of_a_fixed_seed(device, capsys):
    assert fuzz.main(["--devices", device, *FEW]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{device}, seeds 4 to 5: 4 kernels") and "no difference" in out


def test_a_difference_is_told_with_its_kernel(capsys, monkeypatch):
    run = generated.run

    def wrong(program, seed, launch):
        row = run(program, seed, launch)
        if launch is not generated.on_oracle:
            out = row[len(program.inputs)]
            out[7] = ~out[7] if out.dtype.kind in "iu" else out[7] + 1
        return row

    monkeypatch.setattr(generated, "run", wrong)
    assert fuzz.main(["--devices", "sim", "--no-shrink", *FEW]) == 1
    out = capsys.readouterr().out
    assert "element 7 is" in out and "def kernel(" in out
    assert "again: --devices sim --seconds 0 --seed 4" in out


def test_the_same_seed_gives_the_same_kernels(monkeypatch):
    seen = []
    monkeypatch.setattr(
        generated, "check", lambda program, seed, devices: seen.append((program.source, seed))
    )
    fuzz.main(FEW)
    first = seen.copy()
    seen.clear()
    fuzz.main(FEW)
    assert seen == first and len(set(seen)) > 2


def test_a_device_that_is_not_there_is_an_error():
    with pytest.raises(DeviceNotFoundError):
        fuzz.main(["--devices", "cuda:99"])
