"""The syntax tree of a function, with the lines of its file, and what its names are assigned."""

from __future__ import annotations

import ast
import inspect
import linecache
import types
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ruda.errors import (
    SourceUnavailableError,
)
from ruda.jit import sources
from ruda.jit.unassigned import unassigned_reads

# Syntax that is not in the language: what it is called, and what to write instead.
UNSUPPORTED: dict[type, tuple[str, str]] = {
    ast.Try: ("`try`", "nothing in a kernel raises; test the condition with `if`"),
    ast.Raise: ("`raise`", "use `assert condition, message`"),
    ast.With: ("`with`", "do it on the host, around the launch"),
    ast.AsyncWith: ("`async with`", "do it on the host"),
    ast.AsyncFor: ("`async for`", "use `for` over `range`"),
    ast.FunctionDef: ("a nested function", "define it outside with @ruda.jit(device=True)"),
    ast.AsyncFunctionDef: ("a nested function", "define it outside with @ruda.jit(device=True)"),
    ast.ClassDef: ("a class", "pass a NamedTuple, or separate arguments"),
    ast.Lambda: ("`lambda`", "define a function outside with @ruda.jit(device=True)"),
    ast.Yield: ("`yield`", "store the results in an array"),
    ast.YieldFrom: ("`yield from`", "store the results in an array"),
    ast.Await: ("`await`", "do it on the host"),
    ast.List: ("a list", "use ruda.local.array(shape, dtype), or a tuple"),
    ast.Dict: ("a dict", "use an array that maps indices to values"),
    ast.Set: ("a set", "use an array of flags"),
    ast.ListComp: ("a list comprehension", "use ruda.local.array and a loop"),
    ast.SetComp: ("a set comprehension", "use a loop"),
    ast.DictComp: ("a dict comprehension", "use a loop"),
    ast.GeneratorExp: ("a generator expression", "use a loop"),
    ast.Import: ("`import`", "import at the top of the module"),
    ast.ImportFrom: ("`import`", "import at the top of the module"),
    ast.Global: ("`global`", "kernels write only to arrays: pass one"),
    ast.Nonlocal: ("`nonlocal`", "kernels write only to arrays: pass one"),
    ast.Delete: ("`del`", "leave it out: variables end with the kernel"),
    ast.Match: ("`match`", "use `if` and `elif`"),
    ast.JoinedStr: ("an f-string", "f-strings may stand only in `print` and `assert`"),
    ast.Starred: ("`*`", "write the arguments out"),
}
if hasattr(ast, "TryStar"):
    UNSUPPORTED[ast.TryStar] = UNSUPPORTED[ast.Try]
if hasattr(ast, "TypeAlias"):
    UNSUPPORTED[ast.TypeAlias] = ("a type alias", "define it outside")


@dataclass(frozen=True)
class Definition:
    """A function's syntax tree, with line numbers of its file."""

    tree: ast.FunctionDef
    file: str
    ascii: bool
    assigned: dict[str, int]  # local names and how many statements assign them
    conditional: frozenset[str]  # names with reads that their one assignment does not dominate
    unassigned: frozenset[tuple[int, str]]  # lines and names read before any assignment


# Functions live as long as their users want: kernels that are defined again and again are let go.
_DEFINITIONS: weakref.WeakKeyDictionary[types.FunctionType, Definition]
_DEFINITIONS = weakref.WeakKeyDictionary()


def definition(function: types.FunctionType) -> Definition:
    """The syntax tree of a function, parsed once."""
    found = _DEFINITIONS.get(function)
    if found is None:
        found = _DEFINITIONS[function] = _parse(function)
    return found


def _parse(function: types.FunctionType) -> Definition:
    """Parse a function. Its text must be in a file or, for notebook cells and the like, in
    `linecache`."""
    name = function.__name__
    if name == "<lambda>":
        raise SourceUnavailableError(
            "a lambda cannot be a kernel: its source cannot be told from its line; "
            "write `def` with @ruda.jit"
        )
    if function.__code__.co_name == "<lambda>":
        return _definition(*_lambda(function))
    try:
        lines, first = sources.lines_of(function)
        file = inspect.getsourcefile(function) or function.__code__.co_filename
    except (OSError, TypeError):
        raise SourceUnavailableError(
            f"Python keeps no source for `{name}`: define it in a file, a notebook cell or "
            "IPython; "
            "the plain interactive prompt keeps source from Python 3.13 on, and exec'd code only "
            'under a file name of its own in `linecache`: compile(text, name, "exec") and '
            "linecache.cache[name] = (len(text), None, text.splitlines(True), name)"
        ) from None
    text = "".join(lines)
    indented = text[:1].isspace()
    try:
        tree = ast.parse(("if 1:\n" if indented else "") + text)
    except SyntaxError:
        raise SourceUnavailableError(
            f"the source of `{name}` cannot be parsed on its own (has its file changed?)"
        ) from None
    top = tree.body[0].body[0] if indented and isinstance(tree.body[0], ast.If) else tree.body[0]
    if not isinstance(top, ast.FunctionDef) or top.name != function.__code__.co_name:
        raise SourceUnavailableError(f"the source of `{name}` is not a plain `def {name}(...)`")
    ast.increment_lineno(top, first - 1 - (1 if indented else 0))
    return _definition(top, file, text)


def _lambda(function: types.FunctionType) -> tuple[ast.FunctionDef, str, str]:
    """A lambda as the `def` that it stands for: its line must hold no other."""
    file, line = function.__code__.co_filename, function.__code__.co_firstlineno
    text = "".join(linecache.getlines(file, function.__globals__))
    try:
        tree = ast.parse(text)
    except SyntaxError:
        tree = ast.Module([], [])
    here = [n for n in ast.walk(tree) if isinstance(n, ast.Lambda) and n.lineno == line]
    if len(here) != 1:
        raise SourceUnavailableError(
            f"the source of the lambda in line {line} of {file} cannot be told: "
            f"{len(here)} lambdas begin there; write `def`"
        )
    result = ast.copy_location(ast.Return(here[0].body), here[0].body)
    made = ast.parse(f"def {function.__name__}(): pass").body[0]
    assert isinstance(made, ast.FunctionDef)
    made.args, made.body = here[0].args, [result]
    return ast.copy_location(made, here[0]), file, text


def _definition(top: ast.FunctionDef, file: str, text: str) -> Definition:
    assigned: dict[str, int] = {}
    _collect_assigned(top.body, assigned)
    once = {name for name, count in assigned.items() if count == 1}
    conditional = once - _dominated(top, once)
    early = unassigned_reads(top, assigned)
    return Definition(top, file, text.isascii(), assigned, frozenset(conditional), early)


def _collect_assigned(body: Sequence[ast.AST], counts: dict[str, int]) -> None:
    """Count the statements that assign each name; loop targets and `+=` count twice."""

    def name(node: ast.AST, many: bool = False) -> None:
        for n in ast.walk(node):
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
                counts[n.id] = counts.get(n.id, 0) + (2 if many else 1)

    for s in body:
        match s:
            case ast.AugAssign(target=t) | ast.For(target=t):
                name(t, many=True)
        for n in ast.iter_child_nodes(s):
            if isinstance(n, ast.expr):
                for inner in ast.walk(n):
                    if isinstance(inner, ast.NamedExpr):
                        name(inner.target, many=True)
                if not isinstance(s, (ast.AugAssign, ast.For)):
                    name(n)
            elif isinstance(n, ast.stmt):
                _collect_assigned([n], counts)


def _dominated(function: ast.FunctionDef, names: set[str]) -> set[str]:
    """Of names assigned once, those whose every read follows the assignment in its block."""
    total = _reads(function.body)
    out: set[str] = set()

    def visit(body: Sequence[ast.stmt]) -> None:
        for k, s in enumerate(body):
            if isinstance(s, (ast.Assign, ast.AnnAssign)):
                here = {
                    n.id
                    for n in ast.walk(s)
                    if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
                } & names
                if here:
                    after = _reads(body[k + 1 :])
                    out.update(name for name in here if after[name] == total[name])
            for inner in (getattr(s, "body", ()), getattr(s, "orelse", ())):
                visit(inner)

    visit(function.body)
    return out


def _reads(body: Sequence[ast.stmt]) -> Counter[str]:
    return Counter(
        n.id
        for s in body
        for n in ast.walk(s)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    )
