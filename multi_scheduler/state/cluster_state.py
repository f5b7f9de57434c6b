"""The state of all lower clusters: their nodes, pods, volumes and admission rules, and the room reserved for upper pods.

It exists without any agent. Agents read it through the view; the fit agent also reserves room in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from clusterset.config import Cluster
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.events.recorder import EventRecorder
from controller_runtime.objects import Object
from multi_scheduler.bound_pods import BoundPods
from multi_scheduler.state.accounting import Accounting
from multi_scheduler.state.admission.predictor import Admission
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.scoring import Prediction
from multi_scheduler.state.feeds.cluster_feed import Feed
from multi_scheduler.state.feeds.upper_namespaces import UpperNamespaceFeed
from multi_scheduler.state.future_nodes import FutureNodes
from multi_scheduler.state.growing import Growing, pools
from multi_scheduler.state.judge import Judge, Judgement, StateSettings
from multi_scheduler.state.reservations.reservations import Reservations
from multi_scheduler.virtual_node import VirtualNode

_SWEEP = 1.0
_KEPT_PREDICTIONS = 1000
_UNREAD = "the upper cluster's pods and namespaces have not been read yet"


class ClusterState:
    """Follows the lower clusters and the bound upper pods."""

    def __init__(
        self,
        settings: StateSettings,
        upper: Client,
        lower: Mapping[str, Client],
        clusters: Mapping[str, Cluster],
        *,
        bound_pods: Informer | None = None,
        recorder: EventRecorder | None = None,
        find_node: Callable[[str], VirtualNode | None] = lambda _name: None,
    ) -> None:
        """Create an index, feeds and admission rules for each lower cluster; ``run`` fills them.

        Args:
            settings: how clusters are judged.
            upper: the upper cluster.
            lower: clients by lower cluster.
            clusters: configuration of the lower clusters.
            bound_pods: informer of the bound upper pods that the caller runs; None: an own one.
            recorder: writes events about bound pods without room; None: no events.
            find_node: returns a virtual node by its name; None: there is no such virtual node.
        """
        self.indexes = {cluster: ClusterIndex(settings.devices) for cluster in lower}
        self.admissions = {cluster: Admission(clock=_now) for cluster in lower}
        self.futures = {
            cluster: FutureNodes(pools(clusters.get(cluster)), index, _now, settings.devices)
            for cluster, index in self.indexes.items()
        }
        """Nodes that lower clusters may add."""
        self.reservations = Reservations(
            self.indexes, self.admissions, self.futures, clock=_now, lower=settings.lower
        )
        self.feeds = {
            cluster: Feed(client, self.indexes[cluster], self.admissions[cluster])
            for cluster, client in lower.items()
        }
        self.upper_namespaces = UpperNamespaceFeed(upper)
        self.judge = Judge(
            settings,
            clusters,
            self.indexes,
            self.admissions,
            self.feeds,
            self.futures,
            self.reservations.entries,
            self.upper_namespaces.namespaces,
        )
        self.bound_pods = BoundPods(upper, bound_pods)
        self._growing = Growing(self.futures, self.feeds, self.reservations, self.bound_pods, recorder)
        self.accounting = Accounting(
            self.node,
            self.judge,
            self.reservations,
            self.bound_pods,
            self._growing,
            recorder,
        )
        self.reservations.lost = self.accounting.report
        self.bound_pods.on_change(self._bound_changed, self.accounting.pod_gone)
        for cluster, feed in self.feeds.items():
            feed.changed = partial(self.accounting.lower_changed, cluster)
        self.predictions: dict[str, dict[str, Prediction]] = {}
        """Predictions of filter calls by pod UID and virtual node, until the pod is bound."""
        self._find_node = find_node
        self._known_nodes: dict[str, VirtualNode] = {}
        """Virtual nodes that the scheduler offered."""
        self._upper_informers: list[Informer] = [self.bound_pods.informer]
        self._bound: Callable[[str], None] = lambda _uid: None
        self._swept: Callable[[], None] = lambda: None

    def follow(self, pending: Informer, *, bound: Callable[[str], None], swept: Callable[[], None]) -> None:
        """Let the fit agent take part; call once.

        Args:
            pending: informer of the pending upper pods, which must also be read before room is promised.
            bound: called with the UID of each newly bound pod.
            swept: called every second, before the bound pods are counted.
        """
        self._upper_informers.append(pending)
        self._bound, self._swept = bound, swept

    async def run(self) -> None:
        """Follow the bound upper pods and all lower clusters until cancelled."""
        async with asyncio.TaskGroup() as group:
            for work in (self.bound_pods.run, self.upper_namespaces.run, self.sweeping):
                group.create_task(work())
            for feed in self.feeds.values():
                group.create_task(feed.run())

    def unready(self) -> str | None:
        """Return why the state cannot be used; None: it can. One synced lower cluster is enough, as others may be unreachable."""
        if not self._has_read_upper():
            return _UNREAD
        if self.feeds and not any(feed.has_synced for feed in self.feeds.values()):
            return "no lower cluster has been read yet"
        return None

    async def wait_read(self, seconds: float) -> None:
        """Wait until the upper pods and namespaces are read, at most this long for each kind."""
        for informer in self._upper_informers:
            await informer.wait_synced(seconds)
        await self.upper_namespaces.wait(seconds)

    def _has_read_upper(self) -> bool:
        is_read = all(informer.has_synced for informer in self._upper_informers)
        return is_read and self.upper_namespaces.is_settled

    def node(self, name: str) -> VirtualNode | None:
        """Return a virtual node by its name; None: not known yet, or not a virtual node."""
        return self._find_node(name) or self._known_nodes.get(name)

    def know(self, nodes: Sequence[VirtualNode]) -> None:
        """Note that the scheduler named these virtual nodes."""
        for node in nodes:
            self._known_nodes[node.name] = node
            self.accounting.offered(node)

    def predict(
        self,
        pod: Mapping[str, Any],
        nodes: Sequence[VirtualNode],
        *,
        moves_others: bool = True,
        unfinished: Mapping[str, str] | None = None,
    ) -> Judgement:
        """Predict the pod's lower node behind each virtual node, or the reason for rejection, without reserving room.

        With ``moves_others``, bound pods are counted first, and other reservations may make way for the pod.
        ``unfinished`` is the result of ``prepare``, if it was called already.
        """
        if unfinished is None:
            unfinished = self.prepare(nodes) if moves_others else {}
        known = [node for node in nodes if node.cluster not in unfinished]
        found = self.judge.judge(pod, known, moves_others=moves_others)
        for node in nodes:
            if node.cluster in unfinished:
                found.unresolvable[node.name] = unfinished[node.cluster]
                found.unknown.add(node.name)
        return found

    def prepare(self, nodes: Sequence[VirtualNode]) -> dict[str, str]:
        """Count all bound pods of these nodes' clusters; return reasons by cluster where this is unfinished."""
        self._known_nodes |= {node.name: node for node in nodes}
        clusters = {node.cluster for node in nodes}
        if not self._has_read_upper():
            return dict.fromkeys(clusters, _UNREAD)
        found = {cluster: self.accounting.prepare(cluster) for cluster in clusters}
        return {cluster: why for cluster, why in found.items() if why}

    def remember(self, uid: str, predictions: dict[str, Prediction]) -> None:
        """Keep the predictions of a filter call, by virtual node, for the agents that score the pod."""
        self.predictions.pop(uid, None)  # so that the newest predictions are last
        self.predictions[uid] = predictions

    def sweep(self) -> None:
        """Release expired reservations, place the others again, and drop the oldest predictions above the limit."""
        self.reservations.expire()
        self._growing.expire()
        self._swept()
        self.accounting.sweep(list(self.indexes))
        self.upper_namespaces.look()
        for uid in list(self.predictions)[: max(0, len(self.predictions) - _KEPT_PREDICTIONS)]:
            del self.predictions[uid]

    async def sweeping(self) -> None:
        """Sweep every second until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP)
            self.sweep()

    def _bound_changed(self, pod: Object, *, is_new: bool) -> None:
        if is_new:
            self.predictions.pop(pod.uid, None)
            self._bound(pod.uid)
        self.accounting.pod_changed(pod, is_new=is_new)


def _now() -> float:
    return asyncio.get_running_loop().time()
