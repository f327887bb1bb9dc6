"""What calls, attributes, subscripts and loops mean in a kernel: one small handler a name.

`HANDLERS` maps the names of the language (`__ruda_name__`) to functions, `BUILTINS` Python's own;
pure scalar functions come from `intrinsics`.
"""

from ruda.jit.calls import composed, device, library, python
from ruda.jit.calls.attributes import array_attribute, assign_attribute, attribute
from ruda.jit.calls.call import BUILTINS, HANDLERS, Call
from ruda.jit.calls.device import dtype_argument
from ruda.jit.calls.loops import iterate
from ruda.jit.calls.objects import binary, call, unary
from ruda.jit.calls.python import builtin_handler, text_parts
from ruda.jit.calls.subscripts import assign_subscript, assign_view, subscript, unpack

__all__ = [
    "BUILTINS",
    "HANDLERS",
    "Call",
    "array_attribute",
    "assign_attribute",
    "assign_subscript",
    "assign_view",
    "attribute",
    "binary",
    "builtin_handler",
    "call",
    "composed",
    "device",
    "dtype_argument",
    "iterate",
    "library",
    "python",
    "subscript",
    "text_parts",
    "unary",
    "unpack",
]
