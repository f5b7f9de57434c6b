"""Reads the docstrings of attributes, which only the source text has."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any


def attribute_docstrings(subject: type[Any] | ModuleType) -> Mapping[str, str]:
    """Return the docstrings below the assignments of a class or a module, by the name assigned to.

    Docstrings of base classes are included. Without source text, as for built-in classes, there are none.
    """
    if isinstance(subject, ModuleType):
        return _docstrings(subject).get("", {})
    told: dict[str, str] = {}
    for kind in reversed(subject.__mro__):
        told |= _docstrings(sys.modules[kind.__module__]).get(kind.__qualname__, {})
    return told


@functools.cache
def _docstrings(module: ModuleType) -> Mapping[str, Mapping[str, str]]:
    """Return the docstrings of the attributes of a module and its classes, by qualified name; empty for the module.

    A module is parsed once, because its structures together declare the flags of a program, which needs them at start.
    """
    try:
        body = ast.parse(inspect.getsource(module)).body
    except (OSError, TypeError):
        return {}
    return {name: dict(_attributes(statements)) for name, statements in _bodies(body)}


def _bodies(body: Sequence[ast.stmt], name: str = "") -> Iterator[tuple[str, Sequence[ast.stmt]]]:
    """Yield a body and those of the classes in it, by qualified name."""
    yield name, body
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _bodies(statement.body, f"{name}.{statement.name}".removeprefix("."))


def _attributes(body: Sequence[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield the name and the docstring of each assignment in a body."""
    for statement, following in itertools.pairwise(body):
        if not isinstance(following, ast.Expr) or not isinstance(following.value, ast.Constant):
            continue
        targets = (
            statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        )
        text = following.value.value
        if isinstance(text, str) and isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from ((target.id, text) for target in targets if isinstance(target, ast.Name))
