"""What a 910B refuses, in any form: told at the user's line, before the passes look at a kernel."""

from __future__ import annotations

from ruda.backends.ascend.emit import kind_of
from ruda.dtypes import DType
from ruda.errors import UnsupportedError
from ruda.jit import ir
from ruda.jit.ir import Atomic, Barrier, Cooperative, Function

# Global dtypes that copies accumulate in, and as what: signed and unsigned sums have the same bits.
ACCUMULATED = {
    "f32": "float", "f16": "half", "bf16": "bfloat16_t", "i8": "int8_t", "i16": "int16_t",
    "i32": "int32_t",
}  # fmt: skip
SUMS_AS = ACCUMULATED | {"u8": "int8_t", "u16": "int16_t", "u32": "int32_t"}


POLICIES = (
    "compute in float32, as ruda.config(missing='demote') does; missing='emulate' makes float64 of "
    "integers"
)
NO_COMPLEX = "compute in complex64"
# By the policy for what is missing: dtypes that are not there, and what to do instead. Demoted
# kernels have float64 in memory alone.
LACKING = {
    "error": {"float64": POLICIES, "weak_float": POLICIES, "complex128": NO_COMPLEX,
              "weak_complex": NO_COMPLEX},
    "emulate": {"complex128": NO_COMPLEX, "weak_complex": NO_COMPLEX},
    "demote": {"complex128": NO_COMPLEX, "weak_complex": NO_COMPLEX},
}  # fmt: skip
LACKING["cpu"] = LACKING["error"]


def refuse(function: Function, missing: str = "error") -> None:
    """UnsupportedError for what no form can do, before the passes look at it.

    `missing` is the policy for what the chip lacks.
    """
    f = function
    for s in ir.statements(f.body):
        match s:
            case Barrier(scope="grid"):
                raise UnsupportedError(
                    "Ascend has no barrier for the whole grid", s.place,
                    hint="split the kernel there and launch its parts one after the other",
                )  # fmt: skip
            case Cooperative(op=op):
                raise UnsupportedError(f"Ascend has no cooperative operation `{op}`", s.place)
            case Atomic(array=a) if a.space == "global":
                refuse_atomic(s)
    lacking = LACKING[missing]
    for s in ir.statements(f.body):
        for top in ir.expressions(s):
            for e in ir.walk(top):
                if e.dtype.name in lacking:
                    raise UnsupportedError(
                        f"an Ascend 910B has no {e.dtype.name.replace('weak_', '')}",
                        getattr(e, "place", s.place) if e.place.line else s.place,
                        hint=lacking[e.dtype.name],
                    )


def refuse_atomic(s: Atomic) -> None:
    """Global memory has the atomics of copies: sums and extremes, without the old value."""
    dtype = s.array.dtype if s.field is None else s.field.dtype
    kind = kind_of(dtype) if isinstance(dtype, DType) else "record"
    what = f"atomic {s.op} on {dtype} in global memory"
    if s.result is not None:
        raise UnsupportedError(
            f"an Ascend 910B has no {what} that returns the old value: its copies add without "
            "telling what was there", s.place,
            hint="do without the result, or use an array of the block (ruda.shared.array)",
        )  # fmt: skip
    fits = s.op in ("add", "sub") and kind in SUMS_AS
    fits |= s.op in ("max", "min") and kind in ACCUMULATED
    if not fits or s.field is not None:
        raise UnsupportedError(
            f"an Ascend 910B has no {what}: its copies add, and take the larger or the smaller, "
            f"in {', '.join(ACCUMULATED)}", s.place,
        )  # fmt: skip
