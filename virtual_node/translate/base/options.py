"""Options of pod translation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from clusterset.admission import ClusterRules
from clusterset.config import Cluster, NodeConfig
from clusterset.model import names
from clusterset.model.overrides import OverrideSet
from clusterset.model.pod.affinity_terms import Reach
from clusterset.model.policy.copied_keys import KeyPatterns
from clusterset.model.policy.rules import PolicySet
from virtual_node.config.types import Config
from virtual_node.translate.base.ownership import Owner


def same_namespace(namespace: str) -> str:
    """Return the name unchanged, because by default an upper namespace has the same name in the lower cluster."""
    return namespace


@dataclass(frozen=True, slots=True)
class PodOptions:
    """Options for translating the pods of one virtual node."""

    owner: Owner
    ignore_labels: KeyPatterns = field(default_factory=KeyPatterns)
    """Labels that lower pods do not get."""
    ignore_annotations: KeyPatterns = field(default_factory=KeyPatterns)
    """Annotations that lower pods do not get."""
    service_accounts: bool = True
    """Whether lower pods get tokens of the upper cluster; if not, they use a ServiceAccount of the lower cluster."""
    shared_tokens: bool = False
    """Whether new pods share the tokens of the virtual node; if not, each pod has its own."""
    namespace_map: Callable[[str], str] = same_namespace
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the virtual node, against which clusterSelectors are matched."""
    pool: Mapping[str, str] = field(default_factory=dict)
    """Labels of the lower nodes that the virtual node represents; empty: all nodes of the lower cluster."""
    device_classes: Mapping[str, str] = field(default_factory=dict)
    """Lower DeviceClass by upper DeviceClass, if their names differ."""
    policy: PolicySet = field(default_factory=PolicySet)
    """What pods may request from the lower cluster. Translation drops PriorityClasses and preferred nodes
    that it does not allow."""
    overrides: OverrideSet = field(default_factory=OverrideSet)
    """What the operator changes in the lower pods."""
    dns_servers: Sequence[str] = ()
    """Name servers for the names of the upper cluster; empty: pods use the DNS of the lower cluster."""
    cluster_domain: str = "cluster.local"
    """DNS domain of the upper cluster."""
    reach: Reach = field(default_factory=Reach)
    """The pods that the (anti-)affinity terms of lower pods may select."""

    @property
    def name(self) -> str:
        """Return the name of the virtual node."""
        return self.owner.node_name


def pod_options(settings: Config, cluster: Cluster, rules: ClusterRules, node: NodeConfig) -> PodOptions:
    """Return the options for a virtual node of a lower cluster."""
    return PodOptions(
        owner=Owner(cluster_id=rules.cluster_id, node_name=node.name),
        ignore_labels=settings.ignored_labels,
        ignore_annotations=settings.ignored_annotations,
        service_accounts=settings.enable_serviceaccount,
        shared_tokens=settings.identities.tokens == "node",
        namespace_map=rules.namespace_map,
        labels={
            names.LABEL_HOSTNAME: node.name,
            names.LABEL_NODE_TYPE: names.NODE_TYPE_VIRTUAL,
            names.LABEL_LOWER_CLUSTER: cluster.name,
            **node.labels,
        },
        pool=node.node_selector,
        device_classes=cluster.resource_claims.device_classes,
        policy=rules.policy,
        overrides=rules.overrides,
        dns_servers=cluster.dns.servers,
        cluster_domain=settings.cluster_domain,
        reach=rules.reach,
    )
