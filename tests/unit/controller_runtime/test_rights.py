"""Rights by name: placeholders of the tables are replaced by the names of one installation."""

from __future__ import annotations

from controller_runtime.rights import OWN_NAMESPACE, Right, resolved, rules

VIRTUAL_NODE = "<virtual-node>"
TABLE = (
    Right("", "nodes", ("create",), "make it"),
    Right("", "nodes", ("patch",), "keep it", names=(VIRTUAL_NODE,)),
    Right("", "users", ("impersonate",), "be it", names=(f"system:node:{VIRTUAL_NODE}", "fixed")),
    Right("", "secrets", ("get",), "read it", "", OWN_NAMESPACE, ("s",)),
)


def test_a_placeholder_becomes_every_name():
    """Within a longer name, too; other names stay."""
    found = resolved(TABLE, names={VIRTUAL_NODE: ["a", "b"]}, own_namespace="ns")
    assert [right.names for right in found] == [
        (), ("a", "b"), ("system:node:a", "system:node:b", "fixed"), ("s",)
    ]  # fmt: skip
    assert found[-1].namespace == "ns"


def test_a_right_with_an_empty_placeholder_is_dropped():
    """A rule without resourceNames would grant all objects."""
    found = resolved(TABLE, names={VIRTUAL_NODE: []})
    assert [right.resource for right in found] == ["nodes", "users", "secrets"]
    assert rules(found[:1]) == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["create"]}]
