"""What is known about one lower cluster: its nodes, pods, volumes, usage and admission rules, and nodes that it may add."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec

from clusterset.admission import LastVerdict
from clusterset.config import Cluster, UsageConfig
from clusterset.model import names
from clusterset.model.pod.affinity_terms import UpperNamespaces
from clusterset.model.policy.copied_keys import IgnoredKeys
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from controller_runtime.util.event_loop import now
from multi_scheduler import usage
from multi_scheduler.bound_pods import BOUND
from multi_scheduler.state.admission import Admission, AdmissionGate
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import Placed
from multi_scheduler.state.cluster.scoring import Lower
from multi_scheduler.state.cluster_feed import Feed, shrink_node, shrink_pod
from multi_scheduler.state.future_nodes import FutureNodes, Pool
from multi_scheduler.usage import UsageStore
from multi_scheduler.usage_sources import UsageFeed, make_source


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
    ignored: IgnoredKeys = field(default_factory=IgnoredKeys)
    """Labels and annotations of upper pods that lower pods do not get."""

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
            ignored=self.ignored,
        )

    async def run(self, *, measures: bool) -> None:
        """Follow the cluster until cancelled, with ``measures`` also the usage of its nodes."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.feed.run())
            if measures:
                group.create_task(self.measured.measure(), name="usage")


@dataclass(eq=False)
class MeasuredNodes:
    """An index of nodes and pods, and the usage of these nodes.

    Raises:
        ConfigError: the address of Prometheus is missing or wrong.
    """

    cluster: str
    """Name in logs and metrics."""
    client: Client
    config: UsageConfig
    index: ClusterIndex

    def __post_init__(self) -> None:
        """Create the store of the usage; ``measure`` fills it."""
        config = self.config
        self.usage = UsageStore(
            self.cluster,
            clock=now,
            window=config.window,
            max_age=config.max_age_seconds,
            thresholds=config.pressure,
        )
        source = make_source(config, self.client)
        self._feed = (
            UsageFeed(self.cluster, source, self.usage, self.index.cpus, config.interval_seconds)
            if source is not None
            else None
        )

    async def measure(self) -> None:
        """Read the usage periodically until cancelled; return immediately if there is no source that must be read."""
        if self._feed is not None:
            await self._feed.run()

    def annotated(self, name: str, found: Mapping[str, str]) -> None:
        """Store usage and congestion from a node's annotations; forget the node if it is not in the index."""
        node = self.index.node(name)
        if node is None:
            self.usage.forget(name)
            return
        if self.config.source == "Annotations":
            figures = [
                usage.read(found, resource, node.allocatable.get(resource, 0))
                for resource in (usage.CPU, usage.MEMORY)
            ]
            if any(figures):
                self.usage.put(name, usage.time(found), *figures)
            else:  # the annotator removes the annotations of unknown usage
                self.usage.forget(name)
        congestion = {key: found[key] for key in (usage.CONGESTION,) if key in found}
        self.usage.annotate(name, congestion)


NAME = "upper cluster"
"""The upper cluster's name in logs and metrics of usage. It cannot be the name of a lower cluster."""


@dataclass(eq=False)
class UpperNodes:
    """Keeps an index of the upper cluster's real nodes with their pods and usage."""

    client: Client
    config: UsageConfig
    """Source of the usage."""

    def __post_init__(self) -> None:
        """Create informers; ``run`` starts them."""
        self.index = ClusterIndex()
        self.measured = MeasuredNodes(NAME, self.client, self.config, self.index)
        real = f"{names.LABEL_NODE_TYPE}!={names.NODE_TYPE_VIRTUAL}"
        self._nodes = Informer(
            self.client, resources.NODES, label_selector=real, transform=shrink_node, name="real-nodes"
        )
        self._pods = Informer(
            self.client, resources.PODS, field_selector=BOUND, transform=_shrink_pod, name="real-pods"
        )
        self._nodes.on_change(self.node, self._gone)
        self._pods.on_change(self.pod, self._pod_gone)

    async def run(self) -> None:
        """Follow nodes, pods and usage until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._nodes.run())
            group.create_task(self._pods.run())
            group.create_task(self.measured.measure(), name="usage")

    def node(self, node: Object) -> None:
        """Store a new or changed node."""
        self.index.upsert_node(node.to_dict())
        self.measured.annotated(node.name, node.annotations)

    def pod(self, pod: Object) -> None:
        """Store a new or changed bound pod."""
        spec, status = pod.spec or {}, pod.status or {}
        placed = Placed(
            node=spec["nodeName"],
            requests=spec["requests"],
            namespace=pod.namespace,
            labels={},
            limits=spec.get("limits") or {},
            since=status.get("since", 0.0),
        )
        self.index.place(pod.uid, placed)

    def _pod_gone(self, pod: Object) -> None:
        self.index.remove(pod.uid)

    def _gone(self, node: Object) -> None:
        self.index.remove_node(node.name)
        self.measured.annotated(node.name, {})


def _shrink_pod(pod: Object) -> Object:
    """Reduce a pod to its requests and limits. Ports and affinities do not matter for usage."""
    shrunk = shrink_pod(pod)
    spec = shrunk.spec or {}
    kept = {key: spec[key] for key in ("nodeName", "requests", "limits") if key in spec}
    return shrunk.with_fields(spec=kept).with_only()
