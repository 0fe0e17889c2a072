"""One SGLang symbol that this package depends on, and the check that it is still what it was.

The check reads SGLang's source with `ast` instead of importing it: it runs in every process before server arguments
are parsed, where importing workers and attention backends would cost seconds and can recurse into SGLang's own imports.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Seam:
    """One row of the table of touched symbols.

    target: `package.module:Qualified.name`, e.g. `sglang.srt.speculative.eagle_utils:eagle_sample`.
    signature: what `read_signature` returned for the supported version: `(a, b=, *, c=)` for a function, a default is
        `=`, annotations are dropped; the signature of `__init__` (or its dataclass fields) for a class; `name` for
        anything else that a module or class binds.
    use: how it is touched: `subclass`, `call`, `hook` (wrapped or replaced at run time) or `read`.
    why: one line for the reader of `nsd-sglang check`.
    """

    target: str
    signature: str
    use: str
    why: str


def drift(seam: Seam) -> str | None:
    """None when the installed SGLang still has the symbol with this signature, else one line that says what changed."""
    found = read_signature(seam.target)
    if found is None:
        return f"{seam.target} is gone"
    if found != seam.signature:
        return f"{seam.target} is now {found}, expected {seam.signature}"
    return None


def read_signature(target: str) -> str | None:
    """Signature of a symbol as `Seam.signature` spells it, None when the module or the symbol does not exist."""
    module, _, qualified = target.partition(":")
    tree = _parse(module)
    if tree is None:
        return None
    scope: ast.AST = tree
    parts = qualified.split(".")
    for depth, part in enumerate(parts):
        node = _bound(scope, part)
        if node is None:
            return None
        if depth == len(parts) - 1:
            return _spell(node)
        scope = node
    return None


@functools.lru_cache(maxsize=None)
def _parse(module: str) -> ast.Module | None:
    top, _, rest = module.partition(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    stem = Path(next(iter(spec.submodule_search_locations)), *rest.split("."))
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if path.is_file():
            return ast.parse(path.read_text(encoding="utf-8"))
    return None


def _bound(scope: ast.AST, name: str) -> ast.AST | None:
    """The statement of `scope` that binds `name`, also inside its `if`, `try` and `with` blocks; the first one wins."""
    for node in getattr(scope, "body", []):
        for candidate in _statements(node):
            if name in _names(candidate):
                return candidate
    return None


def _statements(node: ast.stmt):
    yield node
    if isinstance(node, (ast.If, ast.Try, ast.With)):
        blocks = [node.body, getattr(node, "orelse", []), getattr(node, "finalbody", [])]
        blocks += [handler.body for handler in getattr(node, "handlers", [])]
        for block in blocks:
            for child in block:
                yield from _statements(child)


def _names(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    if isinstance(node, ast.Assign):
        return {t.id for target in node.targets for t in ast.walk(target) if isinstance(t, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()


def _spell(node: ast.AST) -> str:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return _spell_arguments(node.args)
    if isinstance(node, ast.ClassDef):
        init = _bound(node, "__init__")
        return "class" if init is None else "class" + _spell(init)
    return "name"


def _spell_arguments(args: ast.arguments) -> str:
    positional = args.posonlyargs + args.args
    required = len(positional) - len(args.defaults)
    words = [a.arg + ("=" if i >= required else "") for i, a in enumerate(positional)]
    if args.posonlyargs:
        words.insert(len(args.posonlyargs), "/")
    if args.vararg:
        words.append("*" + args.vararg.arg)
    elif args.kwonlyargs:
        words.append("*")
    words += [a.arg + ("" if d is None else "=") for a, d in zip(args.kwonlyargs, args.kw_defaults)]
    if args.kwarg:
        words.append("**" + args.kwarg.arg)
    return "(" + ", ".join(words) + ")"
