"""Which variables a body may read before it assigns them.

Those must come from outside: from another region, an earlier round of the loop, or nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ruda.jit import ir
from ruda.jit.ir import Body, Break, Continue, For, If, Read, Variable, While


def exposed(body: Body) -> set[Variable]:
    """Variables whose value at the start of a body may matter."""
    scan = Exposure()
    scan.body(body)
    return scan.exposed


@dataclass
class Exposure:
    """Variables that a body may read before it assigns them."""

    exposed: set[Variable] = field(default_factory=set)

    def body(self, body: Body, defined: frozenset[Variable] = frozenset()) -> frozenset[Variable]:
        """Scan; returns what is assigned on every path to the end."""
        for s in body:
            for e in ir.expressions(s):
                for r in ir.walk(e):
                    if isinstance(r, Read) and r.variable not in defined:
                        self.exposed.add(r.variable)
            match s:
                case If(then=then, otherwise=otherwise):
                    a = self.body(then, defined)
                    b = self.body(otherwise, defined)
                    defined = b if _jumps_away(then) else a if _jumps_away(otherwise) else a & b
                case For(variable=variable, body=inner):
                    self.body(inner, defined | {variable})
                case While(body=inner):
                    self.body(inner, defined)
                case _:
                    defined |= set(ir.written(s))
        return defined


def _jumps_away(body: Body) -> bool:
    return bool(body) and isinstance(body[-1], (Break, Continue))
