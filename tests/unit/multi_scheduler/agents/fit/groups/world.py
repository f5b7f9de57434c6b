"""A model of the stock scheduler with the extender: a queue of pods, events that requeue them, and late lower pods."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

from clusterset.config import Cluster
from clusterset.model.autoscaling import Autoscaling
from controller_runtime.client.limits import CacheBudget
from controller_runtime.objects import Object, from_dict
from multi_scheduler.agent import AgentContext
from multi_scheduler.bound_pods import shrink
from multi_scheduler.extender import protocol
from multi_scheduler.extender.extender import Extender, NotReadyError, Weighted
from multi_scheduler.virtual_node import VirtualNode
from tests import objects
from tests.unit.multi_scheduler.lower_pods import fit_agent, lower_pod, mark_synced, report

GROUP = "virtual-node.io/pod-group"
MINIMUM = "virtual-node.io/min-members"


def pod(
    name: str,
    group: str = "",
    minimum: int = 8,
    *,
    cpu: str = "1",
    priority: int = 0,
    at: int = 0,
    **annotations: str,
) -> dict[str, Any]:
    """Return a pod, of a group if the group has a name; ``at``: second of its creation."""
    own = {GROUP: group, MINIMUM: str(minimum)} if group else {}
    created = {"creationTimestamp": f"2026-01-01T00:00:{at:02}Z"}
    return objects.pod(name, cpu, annotations=own | annotations, metadata=created, priority=priority)


_MOST_RETRIES = 5


class World:
    """Lower clusters, each with nodes of given cores, and an upper cluster with the fit agent.

    Args:
        random: the order of events.
        growth: by cluster, the nodes that it can add.
        clusters: cores of the nodes by cluster; a pair gives the node's zone, too.
    """

    def __init__(
        self,
        *,
        random: Random | None = None,
        growth: Mapping[str, Autoscaling] | None = None,
        **clusters: list[Any],
    ) -> None:
        self.random = random or Random(0)
        listed = AsyncMock(
            return_value=SimpleNamespace(items=[])
        )  # no pod that left the queue exists any more
        fake: Any = SimpleNamespace(cluster="test", caches=CacheBudget(0, cluster="test"), list=listed)
        configured = {
            name: Cluster(name=name, kubeconfig="", autoscaling=(growth or {}).get(name)) for name in clusters
        }
        self.events: list[tuple[str, str, str]] = []
        """UID of the pod, reason and message of each event."""
        recorder: Any = SimpleNamespace(
            event=lambda pod, _kind, reason, text: self.events.append((pod.uid, reason, text))
        )
        self.agent = fit_agent(
            AgentContext("fit", {}, fake, dict.fromkeys(clusters, fake), configured, recorder=recorder)
        )
        mark_synced(self.agent.state)
        self.names = [f"vn-{name}" for name in clusters]
        for name, nodes in clusters.items():
            for number, found in enumerate(nodes):
                cores, zone = found if isinstance(found, tuple) else (found, "z")
                self.add_node(name, f"{name}-{number}", cores, zone=zone)
        virtual = {
            f"vn-{name}": VirtualNode(f"vn-{name}", name, {}, {}, {}, _sums(nodes))
            for name, nodes in clusters.items()
        }
        self.agent.state._known_nodes |= virtual
        directory: Any = SimpleNamespace(
            wait=AsyncMock(return_value=True),
            find=lambda name, _node: virtual.get(name),
            refusal=lambda _name, _node: "",
        )
        self.extender = Extender([Weighted("fit", self.agent, 1.0)], directory, upper=fake)
        self.queue: list[dict[str, Any]] = []
        self.rejected: list[dict[str, Any]] = []
        """Pods that wait for an event, as in the scheduler's pool of unschedulable pods."""
        self.node_of: dict[str, str] = {}
        """Virtual node by UID of a bound pod."""
        self._retried: list[dict[str, Any]] = []
        """Pods for which the extender asked the scheduler to try again."""
        self.reasons: dict[str, str] = {}
        """By UID: why the last filter call rejected the pod."""
        self._landed: dict[str, Object] = {}
        """Lower pods on lower nodes, by UID of the upper pod."""

    def add_node(
        self, cluster: str, name: str, cores: int, taints: Sequence[Any] = (), **labels: str
    ) -> None:
        """Add or change a lower node."""
        self.agent.state.clusters[cluster].index.upsert_node(
            {
                "metadata": {"name": name, "labels": labels},
                "spec": {"taints": list(taints)},
                "status": {"allocatable": {"cpu": str(cores), "pods": "999"}},
            }
        )
        if (lower := self.agent.state.clusters[cluster]).futures:
            self.agent.state._growing._node_changed(lower, name, {})

    def create(self, *pods: dict[str, Any]) -> None:
        """Create upper pods; the scheduler's queue and the agent's cache get them."""
        for one in pods:
            self.agent.groups.members.pending.informer.change("ADDED", from_dict(one))
            self.queue.append(one)

    async def ask(self, one: dict[str, Any]) -> str:
        """Filter a pod and bind it to a virtual node that passes; return the node, empty: none passes."""
        uid = one["metadata"]["uid"]
        try:
            answer = await self.extender.filter(protocol.Candidates(one, self.names, None))
        except NotReadyError as error:
            self.reasons[uid] = str(error)
            self._retried.append(one)
            return ""
        self.reasons[uid] = next(iter({**answer.failed, **answer.unresolvable}.values()), "")
        if not answer.passing:
            return ""
        node = self.random.choice(answer.passing)
        bound = {**one, "spec": {**one["spec"], "nodeName": node}}
        steps = [
            lambda: self.agent.groups.members.pending.informer.change("DELETED", from_dict(one)),
            lambda: self.agent.state.bound_pods.informer.change("ADDED", shrink(from_dict(bound))),
        ]
        self.random.shuffle(steps)  # they come by different watches
        for step in steps:
            step()
        self.node_of[uid] = node
        self.event()
        return node

    def delete(self, one: dict[str, Any]) -> None:
        """Delete a pending pod."""
        self.agent.groups.members.pending.informer.change("DELETED", from_dict(one))

    async def run(self) -> None:
        """Schedule until no pod is in the queue; rejected pods return to it only after an event."""
        for _ in range(_MOST_RETRIES):
            while self.queue:
                one = self.queue.pop(self.random.randrange(len(self.queue)))
                if not await self.ask(one) and one not in self._retried:
                    self.rejected.append(one)
                if self.random.random() < 0.3:
                    self.start_lower()
            if not self._retried:
                break
            await self.later(1)  # the back-off
            self.queue, self._retried = self._retried, []
        self.rejected += self._retried
        self._retried = []

    def start_lower(self) -> None:
        """Let the lower schedulers place the lower pods of some bound pods where the agent expects them."""
        for uid, node in self.node_of.items():
            cluster = node.removeprefix("vn-")
            reserved = self.agent.state.clusters[cluster].index.placed(f"{uid}@{node}")
            if reserved is not None:
                self.land(uid, cluster, reserved.node, reserved.requests)

    def land(self, uid: str, cluster: str, node: str, requests: Mapping[str, int]) -> None:
        """Let a lower scheduler bind a lower pod."""
        self._landed[uid] = lower_pod(uid, node, requests)
        report(self.agent.state.clusters[cluster].feed, self._landed[uid])

    def finish(self, one: dict[str, Any]) -> None:
        """End a bound pod, which requeues rejected pods."""
        uid = one["metadata"]["uid"]
        self.start_lower()
        node = self.node_of.pop(uid)
        bound = {**one, "spec": {**one["spec"], "nodeName": node}}
        self.agent.state.bound_pods.informer.change("DELETED", shrink(from_dict(bound)))
        if uid in self._landed:
            report(self.agent.state.clusters[node.removeprefix("vn-")].feed, self._landed.pop(uid), "DELETED")
        self.event()

    async def later(self, seconds: float) -> None:
        """Let time pass."""
        following = asyncio.create_task(self.agent.attempts.run())
        for _ in range(int(seconds)):
            await asyncio.sleep(1)
            self.agent.state.sweep()
        following.cancel()

    def bound(self, prefix: str) -> int:
        """Return the number of bound pods whose names have a prefix."""
        return sum(uid.startswith(prefix) for uid in self.node_of)

    def event(self) -> None:
        """Requeue rejected pods, as the scheduler does after any event of nodes and bound pods."""
        self.queue += self.rejected
        self.rejected = []


def _sums(nodes: Sequence[Any]) -> dict[str, str]:
    """Return the allocatable resources of a virtual node."""
    cores = (found[0] if isinstance(found, tuple) else found for found in nodes)
    return {"cpu": str(sum(cores)), "pods": "999"}
