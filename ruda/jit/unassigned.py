"""Find reads of local variables that no assignment can come before.

The frontend walks a kernel until its types stand still, and so it knows a variable's type also
above the assignment that gives it: right for a loop that comes round, wrong for `y = x; x = 1`.
Here only the order counts. A name counts as assigned after any assignment to it, in whichever
branch, and in the whole of a loop that assigns it; what remains is read too early on every path.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence


def unassigned_reads(tree: ast.FunctionDef, local: Iterable[str]) -> frozenset[tuple[int, str]]:
    """Line and name of each read of a local variable before anything is assigned to it.

    >>> tree = ast.parse("def f(x):\\n    y = x\\n    z = w + y\\n    w = 1").body[0]
    >>> unassigned_reads(tree, {"y", "z", "w"})
    frozenset({(3, 'w')})
    """
    a = tree.args
    known = {p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)}
    found: set[tuple[int, str]] = set()
    _walk(tree.body, known, set(local) - known, found)
    return frozenset(found)


def _walk(
    body: Sequence[ast.stmt], known: set[str], local: set[str], found: set[tuple[int, str]]
) -> None:
    for s in body:
        match s:
            case ast.For(target=target, iter=source, body=inner, orelse=otherwise):
                _reads(source, known, local, found)
                known |= _stored(target, *inner)
                _walk([*inner, *otherwise], known, local, found)
            case ast.While(test=test, body=inner, orelse=otherwise):
                known |= _stored(test, *inner)
                _reads(test, known, local, found)
                _walk([*inner, *otherwise], known, local, found)
            case ast.If(test=test, body=inner, orelse=otherwise):
                known |= _stored(test)
                _reads(test, known, local, found)
                after = known.copy()
                _walk(inner, after, local, found)
                _walk(otherwise, known, local, found)
                known |= after
            case ast.AugAssign(target=ast.Name(id=name, lineno=line), value=value):
                _reads(value, known, local, found)
                if name in local and name not in known:
                    found.add((line, name))
                known.add(name)
            case _:
                known |= {n.target.id for n in ast.walk(s) if isinstance(n, ast.NamedExpr)}
                _reads(s, known, local, found)
                known |= _stored(s)


def _reads(node: ast.AST, known: set[str], local: set[str], found: set[tuple[int, str]]) -> None:
    for n in ast.walk(node):
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load):
            if n.id in local and n.id not in known:
                found.add((n.lineno, n.id))


def _stored(*nodes: ast.AST) -> set[str]:
    return {
        n.id
        for node in nodes
        for n in ast.walk(node)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
