"""``docs/reference/rights.md``: the RBAC rules of ``virtual_node/rights.py`` as tables."""

from __future__ import annotations

from hack.docs import markdown
from hack.docs.sources import attribute_docstrings
from virtual_node import rights
from virtual_node.rights import Right

_INTRODUCTION = """# Rights

What the virtual node asks for, from [`virtual_node/rights.py`](../../virtual_node/rights.py).

- `virtual-node check` asks both clusters for every line and says what is missing and why it is needed.
- `virtual-node lower-cluster register` and `virtual-node lower-cluster manifest` grant exactly the lower table.
- They add one rule unless `--keep-namespaces` is given: `list` on every resource, to see that a namespace is empty
  before it is removed. Without that right, namespaces are kept.
- An empty group is the core group. A line under *only* is needed in that namespace, or for objects of these names.
- With serving certificates by CSR one more line per virtual node: `impersonate` on `users`, for
  `system:node:<its name>` alone."""


def tables() -> dict[str, tuple[Right, ...]]:
    """Every table of the module, by the name of its constant."""
    return {
        name: value
        for name, value in vars(rights).items()
        if isinstance(value, tuple) and value and all(isinstance(one, Right) for one in value)
    }


def render() -> str:
    """The page."""
    told = attribute_docstrings(rights)
    parts = [markdown.note(), _INTRODUCTION]
    for name, needed in tables().items():
        parts += [f"## {name.replace('_', ' ').capitalize()}", markdown.prose(told.get(name, ""))]
        parts.append(markdown.table(("group", "resource", "verbs", "only", "what for"), map(_row, needed)))
    return markdown.page(parts)


def _row(right: Right) -> tuple[str, ...]:
    return (
        markdown.code(right.group),
        markdown.code(right.full_resource),
        ", ".join(right.verbs),
        ", ".join(map(markdown.code, (right.namespace, *right.names) if right.namespace else right.names)),
        right.purpose,
    )
