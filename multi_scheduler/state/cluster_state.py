"""The state of all lower clusters: their nodes, pods, volumes and admission rules, and the room reserved for upper pods.

It exists without any agent. Agents read it through the view; the fit agent also reserves room in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from clusterset.admission import LastVerdict
from clusterset.config import Cluster
from clusterset.model.pod.affinity_terms import UpperNamespaces
from clusterset.model.policy.copied_keys import IgnoredKeys
from controller_runtime import log, resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from controller_runtime.events import EventRecorder
from controller_runtime.objects import Object
from controller_runtime.util.event_loop import now
from multi_scheduler.bound_pods import BoundPods, node_of
from multi_scheduler.state.accounting import Accounting
from multi_scheduler.state.cluster.scoring import Prediction
from multi_scheduler.state.growing import Growing
from multi_scheduler.state.judge import Judge, Judgement
from multi_scheduler.state.lower_state import LowerState, StateSettings
from multi_scheduler.state.reservations import Reservations
from multi_scheduler.virtual_node import VirtualNode


class UpperNamespaceFeed:
    """The informer of the upper namespaces."""

    def __init__(self, client: Client) -> None:
        """Create the informer; ``run`` starts it."""
        self._informer = Informer(
            client, resources.NAMESPACES, transform=_only_metadata, name="upper-namespaces"
        )
        self.namespaces = UpperNamespaces(is_known=lambda: self._informer.has_synced)
        self._informer.on_change(
            lambda namespace: self.namespaces.upsert(namespace.name, namespace.labels),
            lambda namespace: self.namespaces.remove(namespace.name),
        )
        self._is_reported = False
        self._log = log.get_logger(component="fit")

    async def run(self) -> None:
        """Follow the namespaces until cancelled."""
        await self._informer.run()

    async def wait(self, seconds: float) -> None:
        """Wait until the namespaces are read, or cannot be read now, at most this long."""
        if not self.is_settled:
            await self._informer.wait_synced(seconds)

    @property
    def is_settled(self) -> bool:
        """Report whether the namespaces are read or cannot be read now, so that waiting for them is of no use."""
        return self._informer.has_synced or self._informer.last_error is not None

    def look(self) -> None:
        """Log once that the namespaces cannot be read."""
        error = self._informer.last_error
        if (
            isinstance(error, ApiError)
            and error.code
            and not (self._is_reported or self._informer.has_synced)
        ):
            self._is_reported = True
            self._log.warning(
                "namespaces of the upper cluster cannot be read, so affinity terms that name or select namespaces are not "
                "predicted",
                error=str(error),
                next="grant the multi-scheduler's account the verbs list and watch on namespaces",
            )


def _only_metadata(namespace: Object) -> Object:
    return namespace.with_fields(spec={}, status={}).with_only(labels=lambda _key: True)


_SWEEP = 1.0
_KEPT_PREDICTIONS = 1000
_UNREAD = "the upper cluster's pods and namespaces have not been read yet"


@dataclass(eq=False)
class ClusterState:
    """Follows the lower clusters and the bound upper pods."""

    settings: StateSettings
    upper: Client
    bound_pods: BoundPods
    """The bound upper pods; the caller runs their informer."""
    recorder: EventRecorder | None = None
    """Writes events about bound pods without room; None: no events."""
    find_node: Callable[[str], VirtualNode | None] = lambda _name: None
    """Returns a virtual node by its name; None: there is no such virtual node."""
    ignored: IgnoredKeys = field(default_factory=IgnoredKeys)
    """Labels and annotations of upper pods that lower pods do not get."""
    clusters: dict[str, LowerState] = field(default_factory=dict)
    """The lower clusters by name."""
    predictions: dict[str, dict[str, Prediction]] = field(default_factory=dict)
    """Predictions of filter calls by pod UID and virtual node, until the pod is bound."""
    _known_nodes: dict[str, VirtualNode] = field(default_factory=dict)
    """Virtual nodes that the scheduler offered."""

    def __post_init__(self) -> None:
        """Start without lower clusters; ``run`` follows those that are added."""
        self.upper_namespaces = UpperNamespaceFeed(self.upper)
        self.reservations = Reservations(self.clusters, clock=now, lower=self.settings.lower)
        self.judge = Judge(self.settings, self.clusters, self.reservations.entries)
        self._growing = Growing(self.clusters, self.reservations, self.bound_pods, self.recorder)
        self.accounting = Accounting(
            self.node, self.judge, self.reservations, self.bound_pods, self._growing, self.recorder
        )
        self.reservations.lost = self.accounting.report
        self.bound_pods.on_change(self._bound_changed, self.accounting.pod_gone)
        self._last_verdict = LastVerdict()
        self._upper_informers: list[Informer] = [self.bound_pods.informer]
        self._bound: Callable[[str], None] = lambda _uid: None
        self._swept: Callable[[], None] = lambda: None
        self._start: Callable[[LowerState], None] = lambda _lower: None
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def add(self, config: Cluster, client: Client, controllers: Collection[str]) -> None:
        """Take a lower cluster into account; if the state runs, follow it.

        ``controllers`` are the ``enableControllers`` of its virtual node.

        Raises:
            ConfigError: the address of Prometheus is missing or wrong.
        """
        lower = LowerState(
            config,
            client,
            controllers,
            self.settings,
            self._last_verdict,
            self.upper_namespaces.namespaces,
            self.ignored,
        )
        lower.admission.recounted = self.reservations.note_change
        lower.feed.changed = partial(self.accounting.lower_changed, config.name)
        self._growing.follow(lower)
        self.clusters[config.name] = lower
        for pod in self.bound_pods.informer.store.list():
            node = self.node(node_of(pod))
            if node is not None and node.cluster == config.name:
                self.accounting.pod_changed(pod, is_new=False)
        self._start(lower)

    async def remove(self, cluster: str) -> None:
        """Forget a lower cluster and the room that is reserved in it; return when it is no longer followed."""
        self.reservations.forget_cluster(cluster)
        self.accounting.forget_cluster(cluster)
        del self.clusters[cluster]
        self._known_nodes = {
            name: node for name, node in self._known_nodes.items() if node.cluster != cluster
        }
        if (task := self._tasks.pop(cluster, None)) is not None:
            task.cancel()
            await asyncio.wait({task})

    def follow(self, pending: Informer, *, bound: Callable[[str], None], swept: Callable[[], None]) -> None:
        """Let the fit agent take part; call once.

        Args:
            pending: informer of the pending upper pods, which must also be read before room is promised.
            bound: called with the UID of each newly bound pod.
            swept: called every second, before the bound pods are counted.
        """
        self._upper_informers.append(pending)
        self._bound, self._swept = bound, swept

    async def run(self, *, measures: bool) -> None:
        """Follow the upper namespaces and all lower clusters until cancelled, with ``measures`` also the usage of lower nodes."""
        async with asyncio.TaskGroup() as group:
            for work in (
                self.upper_namespaces.run,
                self.sweeping,
                partial(self.run_lower, measures=measures),
            ):
                group.create_task(work())

    async def run_lower(self, *, measures: bool) -> None:
        """Follow only the lower clusters until cancelled, without upper namespaces and reservations."""
        async with asyncio.TaskGroup() as group:

            def start(lower: LowerState) -> None:
                name = lower.config.name
                self._tasks[name] = group.create_task(lower.run(measures=measures), name=f"cluster {name}")

            self._start = start
            for lower in self.clusters.values():
                start(lower)
            await asyncio.Event().wait()

    def unready(self) -> str | None:
        """Return why the state cannot be used; None: it can. One synced lower cluster is enough, as others may be unreachable."""
        if not self._has_read_upper():
            return _UNREAD
        if self.clusters and not any(lower.feed.has_synced for lower in self.clusters.values()):
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
        return self.find_node(name) or self._known_nodes.get(name)

    def know(self, nodes: Sequence[VirtualNode]) -> None:
        """Record these virtual nodes, which the scheduler named in a call."""
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
        self.accounting.sweep()
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
