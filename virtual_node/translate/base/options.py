"""How the pods of one virtual node are translated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controller_runtime.api.policy.rules import PolicySet
from virtual_node.translate.base.ownership import Owner


def same_namespace(namespace: str) -> str:
    """The default namespace mapping: none."""
    return namespace


@dataclass(frozen=True, slots=True)
class PodOptions:
    """How the pods of one virtual node are translated."""

    owner: Owner
    ignore_labels: tuple[str, ...] = ()
    service_accounts: bool = True
    """Pods below get tokens of the upper cluster; off: the lower cluster's own identity."""
    namespace_map: Callable[[str], str] = same_namespace
    node_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the virtual node that a clusterSelector may ask about."""
    policy: PolicySet = field(default_factory=PolicySet)
    """What pods may ask of the lower cluster; read here for the PriorityClasses that are carried."""
