"""Finds the environment variables that a module reads, by parsing its source."""

from __future__ import annotations

import ast
import inspect
from types import ModuleType


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
