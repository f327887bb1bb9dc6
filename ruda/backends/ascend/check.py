"""`ruda check-ascend`: give an emitted kernel to the compiler of the user's own CANN.

No NPU is needed, and nothing of CANN is shipped: the compiler is the one at `ASCEND_HOME_PATH`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from ruda.backends.ascend.compile import compile_for_npu
from ruda.backends.ascend.device import BACKEND
from ruda.errors import DeviceNotFoundError, DTypeError, UsageError
from ruda.jit import tools
from ruda.jit.types import split_types

DEVICE = "ascend-twin:950"  # what it emits is what an NPU gets
SHOWN = """\
This shows that the compiler of this CANN takes the text. It does not show that an NPU computes
what was meant, or how fast: run the kernel on the device `ascend:0` for that."""


def check_command(file: str, kernel: str, *, types: str | None, **options: Any) -> str:
    """Compile a kernel of a file with CANN; what to print. `options` as for `Kernel.source`."""
    home = os.environ.get("ASCEND_HOME_PATH", "")
    if not home:
        raise DeviceNotFoundError(
            "there is no CANN here (ASCEND_HOME_PATH is not set), so nothing was checked with the "
            "compiler of Ascend. Without it the device `ascend-twin` runs kernels by the published "
            "rules of the chips"
        )
    if not Path(home).is_dir():
        raise DeviceNotFoundError(f"ASCEND_HOME_PATH={home} is not a folder: nothing was checked")
    try:
        specs = split_types(types or "")
        found = tools.describe(tools.kernel_of(file, kernel), DEVICE, specs, **options)
    except DTypeError as error:
        raise UsageError(f"--types {types}: {error}") from None
    target = BACKEND.target(DEVICE)
    source = BACKEND.emit(found.made.function, target)
    payload = compile_for_npu(source, home, target["arch"])
    return (
        f"CANN at {home}: {_version(home)}\n"
        f"{found.options}: compiled for {target['arch']}, {len(payload)} bytes\n{SHOWN}"
    )


def _version(home: str) -> str:
    """What the compiler says of itself, in one line."""
    for path in Path(home).glob("**/bin/bisheng"):
        try:
            done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip().partition("\n")[0]
    return "a compiler that does not tell its version"
