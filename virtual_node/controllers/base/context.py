"""What every controller of one lower cluster shares."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog

from controller_runtime.api import names
from controller_runtime.api.namespace_map import NamespaceMap
from controller_runtime.api.policy.rules import PolicySet
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.events.recorder import EventRecorder
from controller_runtime.objects import Object
from virtual_node.config.types import ClusterConfig, Config, NodeConfig
from virtual_node.translate.base.options import PodOptions
from virtual_node.translate.base.ownership import Owner

SHORTEST_PAUSE = 0.01
"""Seconds. What is left of a pause may be less than the clock's next tick, and would be waited for in a loop."""

INDEX_UID = "uid"
INDEX_UPPER_UID = "upper-uid"


@dataclass(slots=True)
class ClusterContext:
    """The two clusters, who we are in them, and what the user asked for."""

    name: str
    """The lower cluster's name in the configuration; also what logs and metrics call it."""
    cluster_id: str
    """Identity of the upper cluster on everything made below."""
    upper: Client
    lower: Client
    settings: Config
    config: ClusterConfig
    """The lower cluster's own settings."""
    nodes: dict[str, NodeConfig]
    """The virtual nodes of this lower cluster by name."""
    recorder: EventRecorder
    """Writes events to the upper cluster."""
    log: structlog.stdlib.BoundLogger
    policy: PolicySet = field(init=False)
    """What pods may ask of the lower cluster."""
    options: dict[str, PodOptions] = field(init=False)
    """How pods are translated, by virtual node."""

    def __post_init__(self) -> None:
        """Derive the translation options once; they are read for every pod."""
        self.policy = PolicySet(
            self.config.policy, cluster=self.name, host_paths=self.config.volumes.allowed_host_paths
        )
        mapping = NamespaceMap(self.config.namespaces.prefix, self.config.namespaces.map)
        self.options = {
            name: PodOptions(
                owner=Owner(cluster_id=self.cluster_id, node_name=name),
                ignore_labels=tuple(self.settings.ignore_labels),
                service_accounts=self.settings.enable_serviceaccount,
                namespace_map=mapping,
                node_labels=self._node_labels(name),
                policy=self.policy,
            )
            for name in self.nodes
        }

    def _node_labels(self, name: str) -> dict[str, str]:
        return {
            names.LABEL_HOSTNAME: name,
            names.LABEL_NODE_TYPE: names.NODE_TYPE_VIRTUAL,
            names.LABEL_LOWER_CLUSTER: self.name,
            **self.nodes[name].labels,
        }

    def lower_namespace(self, upper: str) -> str:
        """The lower namespace that stands for an upper one."""
        return next(iter(self.options.values())).namespace_map(upper)


@dataclass(slots=True)
class PodCaches:
    """The informers that know pods: one per virtual node above, one for all our pods below."""

    upper: dict[str, Informer]
    """By virtual node; indexed by ``INDEX_UID``."""
    lower: Informer
    """Only pods that carry our ownership labels; indexed by ``INDEX_UPPER_UID``."""

    def upper_pod(self, uid: str) -> Object | None:
        """The upper pod of that uid, on whichever of our virtual nodes it is."""
        for informer in self.upper.values():
            for pod in informer.store.by_index(INDEX_UID, uid):
                return pod
        return None

    def upper_by_name(self, namespace: str, name: str) -> Object | None:
        """The upper pod of that name, if it is bound to one of our virtual nodes."""
        key = f"{namespace}/{name}"
        for informer in self.upper.values():
            pod = informer.store.get(key)
            if pod is not None:
                return pod
        return None

    def lower_pod(self, upper_uid: str) -> Object | None:
        """The lower pod made for the upper pod of that uid."""
        found = self.lower.store.by_index(INDEX_UPPER_UID, upper_uid)
        # Somebody may have copied ours, labels and all: the copy is younger.
        return min(found, key=lambda pod: pod.metadata.creation_timestamp or "", default=None)
