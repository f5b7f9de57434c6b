"""Options of pod translation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from clusterset.model.overrides.applying import OverrideSet
from clusterset.model.pod.affinity_terms import Reach
from clusterset.model.policy.rules import PolicySet
from virtual_node.translate.base.ownership import Owner


def same_namespace(namespace: str) -> str:
    """Return the name unchanged, because by default an upper namespace has the same name in the lower cluster."""
    return namespace


@dataclass(frozen=True, slots=True)
class PodOptions:
    """Options for translating the pods of one virtual node."""

    owner: Owner
    ignore_labels: tuple[str, ...] = ()
    service_accounts: bool = True
    """Whether lower pods get tokens of the upper cluster; if not, they use a ServiceAccount of the lower cluster."""
    shared_tokens: bool = False
    """Whether new pods share the tokens of the virtual node; if not, each pod has its own."""
    namespace_map: Callable[[str], str] = same_namespace
    node_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the virtual node, against which clusterSelectors are matched."""
    device_classes: Mapping[str, str] = field(default_factory=dict)
    """Lower DeviceClass by upper DeviceClass, if their names differ."""
    policy: PolicySet = field(default_factory=PolicySet)
    """What pods may request from the lower cluster. Translation drops PriorityClasses and preferred nodes
    that it does not allow."""
    overrides: OverrideSet = field(default_factory=OverrideSet)
    """What the operator changes in the lower pods."""
    reach: Reach = field(default_factory=Reach)
    """The pods that the (anti-)affinity terms of lower pods may select."""
