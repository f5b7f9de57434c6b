"""What is known about one lower cluster: its nodes, pods, volumes, usage and admission rules, and nodes that it may add."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from clusterset.admission import LastVerdict
from clusterset.config import Cluster
from clusterset.model.pod.affinity_terms import UpperNamespaces
from clusterset.usage import UsageConfig
from controller_runtime.client.client import Client
from controller_runtime.util.event_loop import now
from multi_scheduler.state.admission.gate import AdmissionGate
from multi_scheduler.state.admission.predictor import Admission
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.scoring import Lower
from multi_scheduler.state.feeds.cluster_feed import Feed
from multi_scheduler.state.future_nodes import FutureNodes, Pool
from multi_scheduler.state.measured import MeasuredNodes


class StateSettings(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """How lower clusters are judged."""

    unreachable: Literal["Reject", "Pass"] = "Reject"
    """Whether virtual nodes of an unreachable lower cluster are rejected or pass."""
    admission: Literal["Reject", "Pass"] = "Reject"
    """Whether virtual nodes are rejected or pass if the lower cluster's quotas or limit ranges would refuse the pod. Pass: for
    clusters with webhooks that add what quotas and limit ranges require."""
    lower: Lower = "LeastAllocated"
    """How the lower clusters' schedulers choose among nodes with room: LeastAllocated, kube-scheduler's default, or
    MostAllocated with the divisible devices among its resources."""
    devices: dict[str, Annotated[int, msgspec.Meta(ge=1)]] = {}
    """Units of one device, by resource, such as ``koordinator.sh/gpu-core: 100``. A request below this number takes a share
    of one device, and a larger one takes whole devices. A pod then fits only if one node has these free."""


@dataclass(eq=False)
class LowerState:
    """The state of a lower cluster.

    Raises:
        ConfigError: the address of Prometheus is missing or wrong.
    """

    config: Cluster
    client: Client
    controllers: Collection[str]
    """``enableControllers`` of the virtual node."""
    settings: StateSettings
    last_verdict: LastVerdict
    """Shared by all lower clusters."""
    upper_namespaces: UpperNamespaces
    """Labels of the upper namespaces, for the affinity terms of lower pods."""

    def __post_init__(self) -> None:
        """Create an index, feeds and admission rules; ``run`` fills them."""
        self.index = ClusterIndex(self.settings.devices)
        self.admission = Admission(clock=now)
        pools = [
            Pool(node.node_selector, node.autoscaling)
            for node in self.config.virtual_nodes()
            if node.autoscaling
        ]
        self.futures = FutureNodes(pools, self.index, now, self.settings.devices)
        """Nodes that the cluster may add."""
        self.feed = Feed(self.client, self.index, self.admission)
        self.measured = MeasuredNodes(
            self.config.name, self.client, self.config.usage or UsageConfig(), self.index
        )
        self.feed.follow_nodes(self.measured.annotated)
        self.gate = AdmissionGate(
            self.config,
            self.admission,
            self.controllers,
            enforces=self.settings.admission == "Reject",
            last_verdict=self.last_verdict,
            upper_namespaces=self.upper_namespaces,
        )

    async def run(self, *, measures: bool) -> None:
        """Follow the cluster until cancelled, with ``measures`` also the usage of its nodes."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.feed.run())
            if measures:
                group.create_task(self.measured.measure(), name="usage")
