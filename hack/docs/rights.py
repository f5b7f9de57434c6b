"""``docs/reference/rights.md``: the RBAC rules of every component as tables."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from controller_runtime.process.settings import attribute_docstrings
from hack.docs import markdown
from hack.programs import programs

_INTRODUCTION = """# Rights

What each component asks for, from the `program.py` of its package, and for virtual nodes from
[`virtual_node/rights/daemon.py`](../../virtual_node/rights/daemon.py).

- `virtual-node check` asks both clusters for every line of the virtual node's tables. It says what is missing, and
  why it is needed.
- `virtual-node lower-cluster register` and `virtual-node lower-cluster manifest` grant exactly its lower table.
- They add one rule unless `--keep-namespaces` is given: `list` on every resource, to see that a namespace is empty
  before it is removed. Without that right, namespaces are kept.
- An empty group is the core group. A line under *only* is needed in that namespace, or for objects of these names.
- Names in angle brackets are those of the installation: `<own>` is the component's namespace, `<virtual-node>` each of
  its virtual nodes, `<lease>` its Lease for leader election, and so on. The chart fills them in from its values."""


def tables(module: ModuleType) -> dict[str, tuple[Any, ...]]:
    """Return every table of rights that a module declares, by the name of its constant."""
    return {
        name: value
        for name, value in vars(module).items()
        if name.isupper()
        and isinstance(value, tuple)
        and value
        and all(type(one).__name__ == "Right" for one in value)
    }


def render() -> str:
    """Return the page."""
    parts = [markdown.note(), _INTRODUCTION]
    for program in programs().values():
        module = importlib.import_module(program.rights)
        told = attribute_docstrings(module)
        parts.append(f"## {program.name}")
        for name, needed in tables(module).items():
            parts += [f"### {name.replace('_', ' ').lower()}", markdown.prose(told.get(name, ""))]
            parts.append(
                markdown.table(("group", "resource", "verbs", "only", "what for"), map(_row, needed))
            )
    return markdown.page(parts)


def _row(right: Any) -> tuple[str, ...]:
    return (
        markdown.code(right.group),
        markdown.code(right.full_resource),
        ", ".join(right.verbs),
        ", ".join(map(markdown.code, (right.namespace, *right.names) if right.namespace else right.names)),
        right.purpose,
    )
