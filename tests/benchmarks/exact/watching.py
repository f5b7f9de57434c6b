"""Follows the pods of both levels: what was promised, what the lower schedulers did, and what would fit now.

The state of a lower cluster is kept with the agent's own rules (``ClusterIndex``), in the order of the watch. The lower
schedulers' own answers are independent of these rules: ``probe`` in ``bursts`` asks them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusterset.admission import Admitted, ClusterRules
from clusterset.config import KNOWN_CONTROLLERS, Cluster
from clusterset.model import names
from clusterset.model.pod.conditions import condition, is_finished
from clusterset.model.policy.config import Policy
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import Demand, demand, placed_on
from multi_scheduler.virtual_node import VirtualNode
from tests.benchmarks.exact.pods import NAMESPACE

MOMENT = 2.0
"""Seconds for which a lower pod may be unschedulable, for example until a deleted pod has left the scheduler's cache."""
_RULES = ClusterRules(
    Cluster(name="", kubeconfig="", policy=Policy(preset="privileged")), controllers=KNOWN_CONTROLLERS
)
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(eq=False)
class Story:
    """What happened in a burst, in order."""

    lines: list[tuple[float, str]] = field(default_factory=list)
    changed: float = 0.0
    """When a pod last changed, of ``time.monotonic``."""

    def note(self, text: str) -> None:
        """Add a line."""
        self.changed = time.monotonic()
        self.lines.append((time.time(), text))


@dataclass(frozen=True, slots=True)
class Preference:
    """What became of a lower pod that prefers a node."""

    pod: str
    preferred: str
    node: str
    had_room: bool
    """Whether the preferred node had room for the pod when the pod was bound."""


class LowerCluster:
    """Nodes and pods of a lower cluster, and what its scheduler did with the pods of the virtual nodes."""

    def __init__(self, client: Client, story: Story) -> None:
        self.client = client
        self.index = ClusterIndex()
        self.unschedulable: dict[str, float] = {}
        """By UID of the upper pod: seconds for which its lower pod was unschedulable; infinite: it still is."""
        self.bound: dict[str, str] = {}
        """By UID of the upper pod: the lower node."""
        self.preferences: list[Preference] = []
        self._story = story
        self._since: dict[str, float] = {}
        self.nodes = Informer(client, resources.NODES)
        self.nodes.on_change(
            lambda node: self.index.upsert_node(node.to_dict()),
            lambda node: self.index.remove_node(node.name),
        )
        self.pods = Informer(client, resources.PODS)
        self.pods.add_handler(
            on_add=lambda pod, _initial: self._changed(pod),
            on_update=lambda _old, new: self._changed(new),
            on_delete=self._gone,
        )

    def start_burst(self) -> None:
        """Forget what happened before."""
        for kept in (self.unschedulable, self.bound, self.preferences, self._since):
            kept.clear()

    def end_burst(self) -> None:
        """Note which lower pods are still unschedulable."""
        self.unschedulable.update(dict.fromkeys(self._since, float("inf")))

    def _changed(self, pod: Object) -> None:
        node, uid = (pod.spec or {}).get("nodeName", ""), pod.labels.get(names.LABEL_UPPER_UID, "")
        if node and not is_finished(pod.status):
            whole = pod.to_dict()
            if uid and uid not in self.bound:
                self._is_bound(uid, node, whole)
            placed = placed_on(node, requirements(whole))
            self.index.remove(pod.uid)
            self.index.place(pod.uid, replace(placed, is_ending=pod.metadata.deletion_timestamp is not None))
        else:
            self.index.remove(pod.uid)
        scheduled = condition(pod.status, "PodScheduled")
        if uid and not node and pod.metadata.deletion_timestamp is None:
            if scheduled.get("reason") == "Unschedulable":
                if uid not in self._since:
                    self._since[uid] = time.monotonic()
                    self.unschedulable[uid] = 0.0
                    self._story.note(
                        f"{self.client.cluster}: {pod.name} unschedulable: {scheduled.get('message')}"
                    )
            else:
                self._story.note(
                    f"{self.client.cluster}: {pod.name} created, prefers {_preferred(pod.to_dict()) or '-'}"
                )

    def _is_bound(self, uid: str, node: str, pod: Mapping[str, Any]) -> None:
        self.bound[uid] = node
        name, preferred = pod["metadata"]["name"], _preferred(pod)
        if uid in self._since:
            self.unschedulable[uid] = time.monotonic() - self._since.pop(uid)
        had_room = False
        if preferred:
            had_room = bool(self.index.feasible(requirements(pod), only=preferred))
            self.preferences.append(Preference(name, preferred, node, had_room))
        ignored = " (ignores its preferred node)" if had_room and preferred != node else ""
        self._story.note(f"{self.client.cluster}: {name} bound to {node}{ignored}")

    def _gone(self, pod: Object) -> None:
        self.index.remove(pod.uid)
        self._since.pop(pod.labels.get(names.LABEL_UPPER_UID, ""), None)
        self._story.changed = time.monotonic()


class UpperCluster:
    """The upper pods of the benchmark, and the virtual nodes."""

    def __init__(self, client: Client, story: Story) -> None:
        self.client = client
        self._story = story
        self._index = ClusterIndex()
        self._bound: set[str] = set()
        self.nodes = Informer(client, resources.NODES)
        self.nodes.on_change(
            lambda node: self._index.upsert_node(node.to_dict()),
            lambda node: self._index.remove_node(node.name),
        )
        self.pods = Informer(client, resources.PODS, namespace=NAMESPACE)
        self.pods.add_handler(
            on_add=lambda pod, _initial: self._changed(pod),
            on_update=lambda _old, new: self._changed(new),
            on_delete=self._gone,
        )

    def admits(self, pod: Object, node: str) -> bool:
        """Report whether the upper scheduler's rules besides resources allow a pod on a virtual node.

        Node selectors choose virtual nodes. Ports, anti-affinity and topology spread over hosts also apply to virtual nodes. They are rules of the stock
        scheduler that no extender can lift.
        """
        wanted = replace(requirements(pod.to_dict()), requests={})
        return bool(self._index.feasible(wanted, only=node))

    def _changed(self, pod: Object) -> None:
        node = node_of(pod)
        if node and pod.uid not in self._bound:
            self._bound.add(pod.uid)
            preferred = pod.annotations.get(names.ANNOTATION_PREFERRED_NODE, "-")
            self._story.note(f"upper: {pod.name} bound to {node}, prefers {preferred}")
        elif not node:
            scheduled = condition(pod.status, "PodScheduled")
            text = f"{scheduled.get('reason')}: {scheduled.get('message')}" if scheduled else "created"
            self._story.note(f"upper: {pod.name} {text}")
        self._index.remove(pod.uid)
        if node:
            self._index.place(pod.uid, placed_on(node, requirements(pod.to_dict())))

    def _gone(self, pod: Object) -> None:
        self._bound.discard(pod.uid)
        self._index.remove(pod.uid)
        self._story.changed = time.monotonic()


@dataclass(eq=False)
class Watched:
    """All clusters."""

    upper: UpperCluster
    lower: Mapping[str, LowerCluster]
    """By name."""
    story: Story

    def waiting(self) -> list[Object]:
        """Return the upper pods without a node."""
        return [pod for pod in self.upper.pods.store.list() if not node_of(pod)]

    def bound(self) -> list[Object]:
        """Return the upper pods with a node."""
        return [pod for pod in self.upper.pods.store.list() if node_of(pod)]

    def is_settled(self, count: int) -> bool:
        """Report whether all pods exist, and every scheduler has answered about each of them."""
        pods = self.upper.pods.store.list()
        if len(pods) != count:
            return False
        answered: set[str] = set()
        for cluster in self.lower.values():
            answered |= cluster.bound.keys() | cluster.unschedulable.keys()
        for pod in pods:
            if node_of(pod):
                if pod.uid not in answered:
                    return False
            elif condition(pod.status, "PodScheduled").get("reason") != "Unschedulable":
                return False
        return True

    def is_empty(self) -> bool:
        """Report whether neither an upper pod nor a lower pod of one is left."""
        mirrored = (
            pod for cluster in self.lower.values() for pod in cluster.pods.store.list() if _is_ours(pod)
        )
        return not self.upper.pods.store.list() and not any(mirrored)

    async def quiet(self, holds: Callable[[], bool], *, seconds: float, limit: float) -> bool:
        """Wait until a condition holds and no pod has changed for so long; return False after the limit."""
        self.story.changed = time.monotonic()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit):
                while not (holds() and time.monotonic() - self.story.changed >= seconds):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
                return True
        return False

    def fitting(self, pod: Object) -> list[str]:
        """Return the lower nodes that admit a waiting pod now, with all its constraints."""
        wanted = demand_of(pod)
        return [
            cluster.index.name(slot)
            for name, cluster in self.lower.items()
            if self.upper.admits(pod, f"vn-{name}")
            for slot in cluster.index.feasible(wanted)
        ]

    def has_room_for_all(self, pods: Sequence[Object], least: int) -> bool:
        """Report whether at least so many equal pods of a group fit now in one lower cluster."""
        wanted = demand_of(pods[0])
        for name, cluster in self.lower.items():
            if not self.upper.admits(pods[0], f"vn-{name}"):
                continue
            placed = []
            for pod in pods:
                if slots := cluster.index.feasible(wanted):
                    cluster.index.place(f"group {pod.uid}", placed_on(cluster.index.name(slots[0]), wanted))
                    placed.append(f"group {pod.uid}")
            for key in placed:
                cluster.index.remove(key)
            if len(placed) >= least:
                return True
        return False


@contextlib.asynccontextmanager
async def watching(upper: Client, lower: Sequence[Client]) -> AsyncIterator[Watched]:
    """Follow all clusters inside the block; the namespace of the pods must exist."""
    story = Story()
    watched = Watched(
        UpperCluster(upper, story), {client.cluster: LowerCluster(client, story) for client in lower}, story
    )
    informers = [watched.upper.nodes, watched.upper.pods]
    for cluster in watched.lower.values():
        informers += [cluster.nodes, cluster.pods]
    tasks = [asyncio.create_task(informer.run()) for informer in informers]
    try:
        for informer in informers:
            await informer.wait_synced(60)
        yield watched
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def node_of(pod: Object) -> str:
    """Return a pod's node; empty: none."""
    return str((pod.spec or {}).get("nodeName") or "")


def demand_of(pod: Object) -> Demand:
    """Return an upper pod's requirements in the lower clusters."""
    admitted = _RULES.admit(pod.to_dict(), VirtualNode("", "", {}, {}))
    assert isinstance(admitted, Admitted)
    return demand(admitted.pod)


def _is_ours(pod: Object) -> bool:
    return names.LABEL_UPPER_UID in pod.labels


def requirements(pod: Mapping[str, Any]) -> Demand:
    """Return a pod's requirements for the nodes of its own cluster."""
    return demand(pod)


def _preferred(pod: Mapping[str, Any]) -> str:
    """Return the lower node that the virtual node lets a lower pod prefer; empty: none."""
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    for term in affinity.get(_PREFERRED) or ():
        for field_ in (term.get("preference") or {}).get("matchFields") or ():
            if field_.get("key") == "metadata.name":
                return str(field_["values"][0])
    return ""
