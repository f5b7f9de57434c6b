"""Facts that only the source text contains: docstrings of attributes, and environment variables that are read."""

from __future__ import annotations

import ast
import inspect
import itertools
from collections.abc import Iterator
from types import ModuleType
from typing import Any


def attribute_docstrings(subject: type[Any] | ModuleType) -> dict[str, str]:
    """Return the docstrings after assignments of a class or a module, by the assigned name.

    Those of a structure's base structures are included.
    """
    if isinstance(subject, type):
        bases = (base for base in subject.__bases__ if base.__module__ == subject.__module__)
        inherited = {name: text for base in bases for name, text in attribute_docstrings(base).items()}
    else:
        inherited = {}
    tree = ast.parse(inspect.getsource(subject))
    body: list[ast.stmt] = tree.body
    if not isinstance(subject, ModuleType):
        assert isinstance(body[0], ast.ClassDef)
        body = body[0].body
    found = inherited
    for statement, following in itertools.pairwise(body):
        text = _text(following)
        if text is None:
            continue
        for name in _assigned(statement):
            found[name] = text
    return found


def environment_variables(module: ModuleType) -> list[str]:
    """Return the variables that a module reads by ``environment.get("NAME")``, sorted."""
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "environment"
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            found[str(node.args[0].value)] = None
    return sorted(found)


def _text(statement: ast.stmt) -> str | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return value if isinstance(value, str) else None
    return None


def _assigned(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id
    elif isinstance(statement, ast.Assign):
        yield from (target.id for target in statement.targets if isinstance(target, ast.Name))
