"""`ruda check-ascend`: give an emitted kernel to the compiler of the user's own CANN.

No NPU is needed, and nothing of CANN is shipped: the compiler is the one at `ASCEND_HOME_PATH`.
Both kinds of chip are tried, or the one of the setting `ascend_chip`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ruda.backends.ascend.compile import bisheng_of, compile_for_npu, version_of
from ruda.backends.ascend.device import BACKEND, CHIPS
from ruda.errors import (
    DeviceError,
    DeviceNotFoundError,
    DTypeError,
    RudaError,
    UnsupportedError,
    UsageError,
)
from ruda.jit import tools
from ruda.jit.types import split_types
from ruda.settings import settings

SHOWN = """\
This shows that the compiler of this CANN takes the text: names, signatures, address spaces. It does
not show that an NPU computes what was meant, in which order its pipes run, or how fast: the device
`ascend-twin` runs kernels by the published rules of the chips, the device `ascend:0` on an NPU."""


def check_command(file: str, kernel: str, *, types: str | None, **options: Any) -> str:
    """Compile a kernel of a file with CANN; what to print. `options` as for `Kernel.source`.

    A chip that the kernel cannot be written for is told and no error, unless it is so for all. The
    first refusal of the compiler is raised, after what it took.
    """
    home = os.environ.get("ASCEND_HOME_PATH", "")
    if not home:
        raise DeviceNotFoundError(
            "there is no CANN here (ASCEND_HOME_PATH is not set), so nothing was checked with the "
            "compiler of Ascend. Without it the device `ascend-twin` runs kernels by the published "
            "rules of the chips"
        )
    if not Path(home).is_dir():
        raise DeviceNotFoundError(f"ASCEND_HOME_PATH={home} is not a folder: nothing was checked")
    if bisheng_of(home) is None:
        raise DeviceError(f"ASCEND_HOME_PATH={home} has no compiler `bisheng`: nothing was checked")
    specs = split_types(types or "")
    found = tools.kernel_of(file, kernel)
    lines = [f"CANN at {home}: {version_of(home)}"]
    refused: list[RudaError] = []
    for chip in [settings.ascend_chip] if settings.ascend_chip else CHIPS:
        try:
            lines.append(_checked(found, chip, specs, home, options))
        except DTypeError as error:
            raise UsageError(f"--types {types}: {error}") from None
        except (UnsupportedError, DeviceError) as error:
            refused.append(error)
            lines.append(f"Ascend {chip.upper()}: {error}")
        except RudaError as error:
            error.add_note("\n".join(lines))
            raise
    if len(refused) == len(lines) - 1:
        raise refused[0]
    return "\n".join([*lines, SHOWN])


def _checked(kernel: Any, chip: str, specs: Any, home: str, options: dict[str, Any]) -> str:
    """Compile for one chip; the line that says so."""
    device = f"ascend-twin:{chip}"  # what it emits is what an NPU gets
    found = tools.describe(kernel, device, specs, **options)
    target = BACKEND.target(device)
    source = BACKEND.emit(found.made.function, target)
    payload = compile_for_npu(source, home, target["arch"])
    form = source.options.get("form", "SIMT")
    return (
        f"Ascend {chip.upper()}: {found.options}: form {form}, compiled for {target['arch']}, "
        f"{len(payload)} bytes"
    )
