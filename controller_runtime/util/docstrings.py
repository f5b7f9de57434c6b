"""Reads the docstrings of attributes, which only the source text has."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from types import ModuleType
from typing import Any


@functools.cache
def attribute_docstrings(subject: type[Any] | ModuleType) -> Mapping[str, str]:
    """Return the docstrings below the assignments of a class or a module, by the name assigned to.

    Docstrings of base classes are included. Without source text, as for built-in classes, there are none.
    """
    found: dict[str, str] = {}
    if isinstance(subject, type):
        for base in subject.__bases__:
            found |= attribute_docstrings(base)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(subject)))
    except (OSError, TypeError):
        return found
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else tree.body
    for statement, following in itertools.pairwise(body):
        text = (
            following.value.value
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            else None
        )
        targets = (
            statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        )
        if isinstance(text, str) and isinstance(statement, ast.Assign | ast.AnnAssign):
            found |= {target.id: text for target in targets if isinstance(target, ast.Name)}
    return found
