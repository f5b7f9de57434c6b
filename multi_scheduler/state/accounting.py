"""Counts the room of every bound upper pod: by its lower pod on a lower node, or else by a bound reservation.

Pods that the extender placed have a reservation. For all others (bound by ``spec.nodeName``, by another scheduler, or before
this process started) a reservation is made here. Until each bound pod of a lower cluster is counted, no pod is promised
room there. A pod that the virtual node refuses needs no room, but is checked again, because a quota may change.

A lower pod is identified by the UID in its label, its namespace and its name: the label alone can be written by any user of
the lower cluster.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from prometheus_client import Counter as Count
from prometheus_client import Gauge

from controller_runtime import log
from controller_runtime.events import EventRecorder
from controller_runtime.objects import Object
from multi_scheduler.bound_pods import PENDING, BoundPods, node_of, priority_of
from multi_scheduler.malformed import UNREADABLE
from multi_scheduler.state.cluster_feed import LowerPod
from multi_scheduler.state.growing import Growing
from multi_scheduler.state.judge import Judge, Judgement, no_fit
from multi_scheduler.state.lower_state import LowerState
from multi_scheduler.state.reservations import Place, Reservations, Stage
from multi_scheduler.virtual_node import VirtualNode

_AT_ONCE = 100
"""Number of unknown node names that one call looks up again."""


@dataclass(eq=False)
class Uncounted:
    """Pods in phase Pending with neither a reservation nor a lower pod on a lower node, by lower cluster.

    The pods of a cluster are found without reading the other pods: any tenant can bind many pods to node names that do
    not exist.
    """

    find_node: Callable[[str], VirtualNode | None]
    """Returns a virtual node by its name; None: not known yet, or not a virtual node."""
    _pods: dict[str, dict[str, Object]] = field(default_factory=dict)
    """By node name and UID."""
    _node_of: dict[str, str] = field(default_factory=dict)
    """By UID of a pod."""
    _names: dict[str, dict[str, None]] = field(default_factory=dict)
    """By lower cluster: its node names in ``_pods``. The empty cluster has the names that are unknown."""

    def add(self, pod: Object, node: str) -> None:
        """Add a pod that is bound to a node."""
        self.remove(pod.uid)
        if node not in self._pods:
            self._pods[node] = {}
            self._file(node)
        self._pods[node][pod.uid] = pod
        self._node_of[pod.uid] = node

    def remove(self, uid: str) -> None:
        """Remove a pod, if it is there."""
        node = self._node_of.pop(uid, None)
        if node is None:
            return
        pods = self._pods[node]
        del pods[uid]
        if not pods:
            del self._pods[node]
            for names in self._names.values():
                names.pop(node, None)

    def offered(self, node: VirtualNode) -> None:
        """Record that a name is known to be a virtual node."""
        if node.name in self._names.get("", ()):
            self._file(node.name)

    def of(self, cluster: str) -> Iterator[tuple[Object, VirtualNode]]:
        """Yield the pods of a cluster, each with its node. Pods may be removed meanwhile."""
        unknown = self._names.get("", {})
        for name in [name for name, _ in zip(unknown, range(_AT_ONCE), strict=False)]:
            del unknown[name]
            self._file(
                name
            )  # moves a name that is still unknown to the end, so that every name is looked up again
        for name in list(self._names.get(cluster, ())):
            if name not in self._pods:
                continue
            node = self.find_node(name)
            if node is None or node.cluster != cluster:
                del self._names[cluster][name]
                self._file(name)
                continue
            yield from ((pod, node) for pod in list(self._pods[name].values()))

    def forget_cluster(self, cluster: str) -> None:
        """Look up the node names of a cluster again, because it was removed."""
        self._names.setdefault("", {}).update(self._names.pop(cluster, {}))

    def _file(self, name: str) -> None:
        node = self.find_node(name)
        cluster = node.cluster if node is not None else ""
        self._names.get("", {}).pop(name, None)
        self._names.setdefault(cluster, {})[name] = None


_SLICE = 0.02
"""Seconds that one call may spend on pods that are not counted yet; the next call continues."""
_RECHECK = 0.005
"""Seconds per second that refused pods may take."""
_REASON = "NoLowerRoom"
_RESERVATIONS = Gauge(
    "virtual_node_reservations",
    "Pods with reserved room in a lower cluster, and pods that wait for room there although they are bound.",
    ["cluster", "state"],
)
_WITHOUT_ROOM = Count(
    "virtual_node_reservations_without_room_total",
    "Bound pods for which a lower cluster had no room any more before their lower pods got a node.",
    ["cluster"],
)
_STATES = ("bound", "nominated", "tentative", "waiting")


@dataclass(eq=False)
class Accounting:
    """Creates and releases the reservations of bound pods."""

    find_node: Callable[[str], VirtualNode | None]
    """Returns a virtual node by its name; None: not known yet, or not a virtual node."""
    judge: Judge
    reservations: Reservations
    bound_pods: BoundPods
    growing: Growing
    recorder: EventRecorder | None
    _refused: dict[str, Object] = field(default_factory=dict)
    """By UID: bound pods without a lower pod, because the virtual node or lower admission refuses them."""
    _nominated: dict[str, tuple[Object, str]] = field(default_factory=dict)
    """By UID: pending pods with a nominated virtual node, where no room is reserved for them yet."""

    def __post_init__(self) -> None:
        self._log = log.get_logger(component="fit")
        self._uncounted = Uncounted(self.find_node)

    # --- changes in the upper cluster ---------------------------------------------------------------

    def pod_changed(self, pod: Object, *, is_new: bool) -> None:
        """Handle a new or changed bound pod."""
        node = node_of(pod)
        self._forget(pod.uid)
        if self._has_landed(pod):
            self.reservations.release(pod.uid)
        elif self.reservations.bind(pod.uid, node):
            if is_new:
                self.growing.bound(pod, node)
        elif (pod.status or {}).get("phase") == PENDING:
            self._uncounted.add(pod, node)

    def pod_gone(self, uid: str) -> None:
        """Handle a bound pod that was deleted or finished."""
        self._forget(uid)
        self.reservations.release(uid)

    def nominated(self, pod: Object, node: str) -> None:
        """Handle a pending pod with a nominated node, where no room is reserved for it; an empty name: it has none.

        The watch of pending pods may be late, so a pod that is known to be bound is ignored.
        """
        if node and self.bound_pods.get(pod.uid) is None:
            self._nominated[pod.uid] = pod, node
        else:
            self._nominated.pop(pod.uid, None)

    def forget_cluster(self, cluster: str) -> None:
        """Handle the removal of a lower cluster, in which no room is reserved any more."""
        self._uncounted.forget_cluster(cluster)
        for state in _STATES:
            _RESERVATIONS.remove(cluster, state)

    def _forget(self, uid: str) -> None:
        self._refused.pop(uid, None)
        self._nominated.pop(uid, None)
        self._uncounted.remove(uid)

    # --- changes in the lower clusters --------------------------------------------------------------

    def lower_changed(self, cluster: str, uid: str, key: str, lower: LowerPod | None) -> None:
        """Handle a change of the lower pod that names an upper pod by its UID and has the key namespace/name."""
        if cluster not in self.judge.clusters:
            return  # its last events, while it is removed
        pod = self.bound_pods.get(uid)
        expected = self._lower_key(cluster, pod) if pod else self.reservations.lower_key(uid, cluster)
        if key != expected:
            return  # a forged label, or ``pod_changed`` handles the pod when it is known
        if lower is None:
            if pod is not None:
                self.pod_changed(pod, is_new=False)
        elif lower.node or lower.is_finished:
            self._forget(uid)
            self.growing.landed(uid, self.lower_node)
            # The feed may not have reported a lower pod without a node before.
            self.reservations.arrived(uid, has_node=True)
            self.reservations.release(uid)
        elif pod is not None and self.reservations.stage(uid) is None:
            self.pod_changed(pod, is_new=False)  # it was refused, for example by a quota that was increased
        else:
            self.reservations.arrived(uid)

    def lower_pod(self, pod: Object) -> LowerPod | None:
        """Return the lower pod of a bound pod; None: unknown."""
        node = self.find_node(node_of(pod))
        for cluster in [node.cluster] if node is not None else self.judge.clusters:
            key = self._lower_key(cluster, pod) if cluster in self.judge.clusters else ""
            if key and (found := self.judge.clusters[cluster].feed.lower_pod(pod.uid, key)) is not None:
                return found
        return None

    def lower_node(self, uid: str, cluster: str) -> str:
        """Return the lower node of an upper pod in a cluster; empty: none."""
        pod = self.bound_pods.get(uid)
        lower = self.lower_pod(pod) if pod is not None else None
        placed = self.judge.clusters[cluster].index.placed(lower.uid) if lower is not None else None
        return placed.node if placed is not None else ""

    def index_keys(self, uid: str, node: VirtualNode) -> list[str]:
        """Return the index keys of a bound pod: the UID of its lower pod, and the keys of its reservation."""
        own, pod = self.reservations.keys(uid, node.cluster), self.bound_pods.get(uid)
        lower = self.lower_pod(pod) if pod is not None else None
        return [lower.uid, *own] if lower is not None else own

    def _has_landed(self, pod: Object) -> bool:
        lower = self.lower_pod(pod)
        return lower is not None and bool(lower.node or lower.is_finished)

    def _lower_key(self, cluster: str, pod: Object) -> str:
        """Return namespace/name that a pod's lower pod has in a cluster; empty: the pod is bound elsewhere."""
        node = self.find_node(node_of(pod))
        if node is not None and node.cluster != cluster:
            return ""
        return self.judge.clusters[cluster].gate.lower_key(pod.namespace, pod.name)

    # --- reservations for pods that have none -------------------------------------------------------

    def offered(self, node: VirtualNode) -> None:
        """Record that the scheduler named a virtual node, so that pods which are bound to it can be counted."""
        self._uncounted.offered(node)

    def prepare(self, cluster: str) -> str:
        """Count the cluster's bound pods and place its reservations again; return why that is unfinished, empty: finished."""
        lower = self.judge.clusters.get(cluster)
        if lower is None or lower.feed.trouble():
            return ""  # the judge knows
        until = time.perf_counter() + _SLICE
        made: list[tuple[Object, VirtualNode]] = []
        left = 0
        for pod, node in self._uncounted.of(cluster):
            if left or (made and time.perf_counter() > until):
                left += 1
                continue
            self._forget(pod.uid)
            if self._count(pod, node, lower):
                made.append((pod, node))
        for uid, (pod, name) in list(self._nominated.items()):
            # The room of an attempt that goes on is not exchanged for the nominated node of an earlier one.
            is_attempted = self.reservations.stage(uid) is Stage.TENTATIVE
            virtual = self.find_node(name)
            if virtual is not None and virtual.cluster == cluster and not is_attempted:
                self._hold_nominated(uid, pod, virtual)
        self.reservations.settle(cluster)
        self._grow(cluster, {pod.uid for pod, _node in made})
        for pod, node in made:
            if self.reservations.waiting(pod.uid, node.name) is not None:
                self.report(pod.uid, node.name)
            self.growing.bound(pod, node.name)
        return f"{left} pods that are bound to lower cluster {cluster} are being counted" if left else ""

    def _count(self, pod: Object, node: VirtualNode, cluster: LowerState) -> bool:
        """Reserve room for a bound pod; return whether it has a reservation now.

        Any tenant can create such pods with ``spec.nodeName``, so errors caused by their content are logged.
        """
        key = self._lower_key(node.cluster, pod)
        lower = cluster.feed.lower_pod(pod.uid, key)
        if lower is not None and (lower.node or lower.is_finished):
            return False
        try:
            whole = pod.to_dict()
            gated = cluster.gate.judge(whole, node)
            if gated.refusal and lower is None:
                self._refused[pod.uid] = pod
                return False
            place = Place(
                node.cluster,
                self.judge.demand(gated, node),
                "",
                None if lower is not None else gated.charge,
                can_prefer=gated.can_prefer,
                preferred=cluster.gate.preferred_node(whole),
            )
            self.reservations.reserve(
                pod.uid, {node.name: place}, stage=Stage.BOUND, priority=priority_of(pod)
            )
        except UNREADABLE as error:
            self._log.warning("no room reserved for a bound pod", pod=pod.key, error=repr(error))
            return False
        if lower is not None:
            self.reservations.arrived(pod.uid)
        return True

    def _hold_nominated(self, uid: str, pod: Object, node: VirtualNode) -> None:
        """Reserve room for a pending pod that preempted others before this process started."""
        del self._nominated[uid]
        cluster = self.judge.clusters[node.cluster]
        ending = frozenset(key for key, placed in cluster.index.pods() if placed.is_ending)
        try:
            gated = cluster.gate.judge(pod.to_dict(), node)
            if gated.refusal:
                return
            place = Place(node.cluster, self.judge.demand(gated, node), "", awaits=ending)
            self.reservations.reserve(
                uid,
                {node.name: place},
                stage=Stage.NOMINATED,
                priority=priority_of(pod),
                seconds=math.inf,
            )
        except UNREADABLE as error:
            self._log.warning("no room reserved for a nominated pod", pod=pod.key, error=repr(error))

    def _grow(self, cluster: str, new: Collection[str]) -> None:
        """Let bound pods without room wait for nodes that their cluster adds.

        If no node was added in time, the pod waits for another one only if the autoscaler can see its lower pod.
        """
        if not self.judge.clusters[cluster].futures:
            return
        for uid, name in self.reservations.homeless(cluster):
            node, pod = self.find_node(name), self.bound_pods.get(uid)
            if node is None or pod is None:
                continue
            wanted = self.reservations.waiting(uid, name)
            has_arrived = self.lower_pod(pod) is not None
            if wanted is None or not (has_arrived or uid in new):
                continue
            judgement = Judgement(
                lacking={name: (wanted, self.judge.clusters[cluster].gate.judge(pod.to_dict(), node))}
            )
            self.judge.grow([node], judgement)
            if judgement.places:
                self.reservations.reserve(uid, judgement.places, stage=Stage.BOUND, priority=priority_of(pod))
                if has_arrived:
                    self.reservations.arrived(uid)

    def report(self, uid: str, node: str) -> None:
        """Write an event about a bound pod for which its lower cluster has no room now, and count it."""
        virtual, wanted = self.find_node(node), self.reservations.waiting(uid, node)
        pod = self.bound_pods.get(uid)
        if virtual is None or wanted is None:
            return
        _WITHOUT_ROOM.labels(virtual.cluster).inc()
        why: Counter[str] = Counter()
        index = self.judge.clusters[virtual.cluster].index
        index.feasible(wanted, why)
        text = (
            f"Lower cluster {virtual.cluster} has no room for this pod now: {no_fit(len(index), why)}. "
            "The pod waits there, and no other pod is promised the next room that it fits in"
        )
        self._log.warning("no lower room for a bound pod", pod=pod.key if pod else uid, node=node)
        if pod is not None and self.recorder is not None:
            self.recorder.event(pod, "Warning", _REASON, text)

    def sweep(self) -> None:
        """Place reservations again after changes that no filter call has handled, and check refused pods again."""
        for cluster in self.judge.clusters:
            self.prepare(cluster)
            counts = self.reservations.counts(cluster)
            for state in _STATES:
                _RESERVATIONS.labels(cluster, state).set(counts[state])
        until = time.perf_counter() + _RECHECK
        for uid, pod in list(self._refused.items()):
            node = self.find_node(node_of(pod))
            del self._refused[uid]  # if it is refused again, it is the last to be checked
            if node is None or (lower := self.judge.clusters.get(node.cluster)) is None:
                continue
            if lower.feed.trouble():
                self._refused[uid] = pod  # the rules that refuse it may be unknown
            else:
                self._count(pod, node, lower)
            if time.perf_counter() > until:
                break
