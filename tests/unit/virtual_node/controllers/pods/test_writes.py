"""Every write of a controller names the uid of its object; checked in the source."""

from __future__ import annotations

import ast
from pathlib import Path

import virtual_node.controllers

FOLDER = Path(virtual_node.controllers.__file__).parent
_HELPER = "preconditions.py"


def _calls(method: str) -> list[tuple[str, str, ast.Call]]:
    """Return calls of that method on a client: file and line; the client's name; the call."""
    found = []
    for file in sorted(FOLDER.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == method
            ):
                client = ast.unparse(node.func.value).rpartition(".")[2]
                if client in {"lower", "upper", "client"}:
                    found.append((f"{file.name}:{node.lineno}", client, node))
    return found


def test_every_deletion_has_a_uid_precondition():
    """So that a successor of the same name is never deleted. ``delete_exactly`` always names the uid."""
    calls = _calls("delete")
    texts = [file.read_text(encoding="utf-8") for file in FOLDER.rglob("*.py")]
    by_helper = sum(
        text.count(f"{helper}(") for text in texts for helper in ("delete_only", "delete_exactly")
    )
    assert len(calls) + by_helper > 16
    assert [
        where for where, _, call in calls if "uid" not in {keyword.arg for keyword in call.keywords}
    ] == []


def test_lower_patches_use_the_helper():
    """``patch_only`` adds the uid and distinguishes another object from an invalid patch."""
    direct = [where for where, client, _ in _calls("patch") if client != "upper"]
    assert [where for where in direct if not where.startswith(_HELPER)] == []
