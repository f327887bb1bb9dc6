"""Run random kernels on devices, and compare each result with the oracle's, bit for bit.

    python -m tests.fuzz --devices sim,cpu,wgpu --seconds 600

The same seed gives the same kernels. The first difference is shrunk to a small kernel, printed with
its seed, and ends the run with status 1. A kernel that a device refuses by name is counted.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
import warnings
from collections.abc import Sequence

import hypothesis
from hypothesis import strategies as st

from ruda import backends
from ruda.errors import UnsupportedError
from tests.jit import test_generated_kernels as generated
from tests.jit.generate import programs

ALWAYS = (hypothesis.Phase.generate,)


def batch(
    seed: int, devices: Sequence[str], count: int, phases: Sequence[hypothesis.Phase],
    found: collections.Counter[str],
) -> None:  # fmt: skip
    """`count` kernels of a seed, whose threads meet if it is odd; raises where one differs."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        derandomize=False,
        phases=phases,
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=False,
    )
    @hypothesis.given(programs(threads_meet=bool(seed % 2)), st.integers(0, 2**32 - 1))
    def one(program: object, data: int) -> None:
        found["kernels"] += 1
        for device in devices:
            try:
                generated.check(program, data, [device])
            except UnsupportedError:
                found[f"refused by {device}"] += 1

    one()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", default="sim,cpu", help="names with commas between")
    parser.add_argument("--seconds", type=float, default=60, help="how long; 0: one batch of each")
    parser.add_argument("--seed", type=int, default=None, help="default: the time")
    parser.add_argument("--batch", type=int, default=20, help="kernels of a seed")
    parser.add_argument("--no-shrink", action="store_true", help="print the first kernel as it is")
    chosen = parser.parse_args(arguments)
    devices = chosen.devices.split(",")
    for device in devices:
        backends.find(device)  # a device that is not there is an error
    seed = int(time.time()) if chosen.seed is None else chosen.seed
    phases = ALWAYS if chosen.no_shrink else (*ALWAYS, hypothesis.Phase.shrink)
    found: collections.Counter[str] = collections.Counter()
    end = time.monotonic() + chosen.seconds
    batches = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while batches < 2 or time.monotonic() < end:
            try:
                batch(seed + batches, devices, chosen.batch, phases, found)
            except KeyboardInterrupt:
                break
            except BaseException as error:  # pytest's failures are no Exceptions
                print(f"seed {seed + batches}: {type(error).__name__}: {error}")
                print("\n".join(getattr(error, "__notes__", [])))
                print(f"again: --devices {chosen.devices} --seconds 0 --seed {seed + batches}")
                return 1
            batches += 1
    counts = ", ".join(f"{count} {what}" for what, count in found.items())
    print(f"{chosen.devices}, seeds {seed} to {seed + batches - 1}: {counts}, no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
