"""Model of everything around the fit agent: late watches, a stock scheduler, virtual nodes, users, faults and restarts.

The extender and the fit agent are real. All times are virtual, and one seed is one story.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

from clusterset.config import Cluster
from clusterset.model import names
from controller_runtime.client.limits import CacheBudget
from controller_runtime.objects import Object, from_dict
from multi_scheduler.agent import AgentContext
from multi_scheduler.agents.fit import members
from multi_scheduler.agents.fit.agent import FitAgent
from multi_scheduler.bound_pods import shrink
from multi_scheduler.extender import protocol
from multi_scheduler.extender.extender import Extender, NotReadyError, Weighted
from multi_scheduler.state.cluster_feed import shrink_pod
from multi_scheduler.virtual_node import VirtualNode
from tests.unit.multi_scheduler.lower_pods import fit_agent
from tests.unit.multi_scheduler.simulation.lower import FAST, LowerCluster, LowerPod, Node

NAMESPACE = "shop"
LATE = 1.5
"""Seconds by which watches may report a change late; pods that were promised room until then may lack it."""
_VERSIONS = itertools.count(1)


@dataclass(eq=False)
class UpperPod:
    """An upper pod."""

    uid: str
    cpu: int
    needs_fast: bool = False
    node: str = ""
    preferred: str = ""
    promised_at: float = -1.0
    """When the extender's filter passed for the attempt that bound the pod; negative: it was not asked."""
    failure: str = ""
    phase: str = "Pending"
    is_deleted: bool = False

    def to_dict(self) -> dict[str, Any]:
        annotations = {}
        if self.needs_fast:
            annotations["clusterSelector"] = f'{{"nodeSelector": {{"disk": "{FAST}"}}}}'
        if self.preferred:
            annotations[names.ANNOTATION_PREFERRED_NODE] = self.preferred
        conditions = [{"type": "PodScheduled", "status": "False", "reason": "x", "message": self.failure}]
        return {
            "metadata": {
                "name": self.uid, "namespace": NAMESPACE, "uid": self.uid, "annotations": annotations,
                "resourceVersion": str(next(_VERSIONS)), "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {
                **({"nodeName": self.node} if self.node else {}),
                "containers": [{"name": "c", "resources": {"requests": {"cpu": str(self.cpu)}}}],
            },
            "status": {"phase": self.phase, **({"conditions": conditions} if self.failure else {})},
        }  # fmt: skip


@dataclass(eq=False)
class Stream:
    """One watch: events arrive late, and in order."""

    world: World
    last: float = 0.0

    def send(self, deliver: Callable[[FitAgent], None]) -> None:
        """Deliver an event to the agent that runs at that time, unless it started later and has listed the state."""
        loop, agent = asyncio.get_running_loop(), self.world.agent
        at = max(self.last, loop.time() + self.world.lag())
        self.last = at + 1e-6
        loop.call_at(self.last, self.world._deliver, deliver, agent)


@dataclass(eq=False)
class World:
    """The upper cluster, its lower clusters, and the processes between them."""

    random: Random
    binds: bool = True
    """Whether the extender binds pods, which passes the reserved lower node on."""
    ignoring: float = 0.0
    """As ``LowerCluster.ignoring``."""
    pods: dict[str, UpperPod] = field(default_factory=dict)
    active: list[str] = field(default_factory=list)
    """UIDs in the scheduler's active queue."""
    rejected: set[str] = field(default_factory=set)
    """UIDs in the scheduler's pool of unschedulable pods, which wait for an event."""
    assumed: dict[str, str] = field(default_factory=dict)
    """UID → virtual node, as the scheduler assumes."""
    attempts: dict[str, int] = field(default_factory=dict)
    is_virtual_node_down: bool = False
    wrong: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    stalled: set[str] = field(default_factory=set)
    """UIDs whose binding is held for a long time."""

    def __post_init__(self) -> None:
        self.clusters: dict[str, LowerCluster] = {}
        self.streams: dict[str, Stream] = {}
        self.agent: FitAgent = None  # type: ignore[assignment]
        self.tasks: set[asyncio.Task[Any]] = set()
        for number in range(self.random.randint(1, 3)):
            self._add_cluster(f"c{number}")
        self.restart()

    def lag(self) -> float:
        """Return the seconds by which a watch event is late."""
        return self.random.choice((0.001, 0.01, 0.05, self.random.random() * 0.5))

    def log(self, text: str) -> None:
        """Add a line to the story."""
        self.story.append(f"{asyncio.get_running_loop().time() - 1000:9.3f} {text}")

    def _stream(self, name: str) -> Stream:
        return self.streams.setdefault(name, Stream(self))

    def _add_cluster(self, name: str) -> None:
        strategy = self.random.choice(("best-fit", "least-allocated", "random"))
        cluster = self.clusters[name] = LowerCluster(
            name,
            self.random,
            strategy,
            nodes_changed=lambda node, kind: self._node_changed(name, node, kind),
            pods_changed=lambda pod, kind: self._lower_changed(name, pod, kind),
            ignoring=self.ignoring,
        )
        for number in range(self.random.randint(1, 4)):
            node = Node(f"{name}-n{number}", self.random.choice((4, 4, 6, 8)), self.random.random() < 0.4)
            cluster.nodes[node.name] = node

    # --- watches -------------------------------------------------------------------------------------

    def restart(self) -> None:
        """Start a new extender process, which lists everything."""
        fake: Any = SimpleNamespace(
            cluster="test",
            caches=CacheBudget(0, cluster="test"),
            create=self._create_binding,
            list=self._list,
        )
        virtual = {f"vn-{name}": VirtualNode(f"vn-{name}", name, {}, {}) for name in self.clusters}
        configured = {name: Cluster(name=name, kubeconfig="") for name in self.clusters}
        self.agent = agent = fit_agent(
            AgentContext(
                "fit",
                {"passNode": self.binds},
                fake,
                dict.fromkeys(self.clusters, fake),
                configured,
                find_node=virtual.get,
            )
        )
        directory: Any = SimpleNamespace(wait=_true, find=lambda name, _node: virtual.get(name))
        self.extender = Extender([Weighted("fit", agent, 1.0)], directory, upper=fake)
        for task in self.tasks:
            task.cancel()
        self.tasks = {
            asyncio.create_task(agent.attempts.run()),
            asyncio.create_task(agent.state.sweeping()),
        }
        lists = [partial(self._list_cluster, name) for name in self.clusters]
        lists += [self._list_bound, self._list_pending]  # type: ignore[list-item]
        self.random.shuffle(lists)
        for listing in lists:
            asyncio.get_running_loop().call_later(self.lag(), self._deliver, listing, agent)
        self.restarted = asyncio.get_running_loop().time()
        self.log("extender restarts")

    def _deliver(self, event: Callable[[FitAgent], None], agent: FitAgent) -> None:
        """Deliver an event, unless the process that follows the watch has ended."""
        if agent is self.agent:
            event(agent)

    def _list_cluster(self, name: str, agent: FitAgent) -> None:
        feed, cluster = agent.state.clusters[name].feed, self.clusters[name]
        for node in cluster.nodes.values():
            feed._nodes._store(_node(node), initial=True)
        for pod in cluster.pods.values():
            feed._pods._store(shrink_pod(_lower(pod)), initial=True)
        for informer in feed.informers:
            informer._synced.set()

    def _list_bound(self, agent: FitAgent) -> None:
        for pod in self.pods.values():
            if pod.node:
                agent.state.bound_pods.informer._store(shrink(from_dict(pod.to_dict())), initial=True)
        agent.state.bound_pods.informer._synced.set()

    def _list_pending(self, agent: FitAgent) -> None:
        for pod in self.pods.values():
            if not pod.node:
                agent.groups.members.pending.informer._store(_pending(pod), initial=True)
        agent.groups.members.pending.informer._synced.set()
        agent.state.upper_namespaces._informer._synced.set()

    def _node_changed(self, cluster: str, node: Node, kind: str) -> None:
        body = _node(node)
        self._stream(f"{cluster} nodes").send(
            lambda agent: agent.state.clusters[cluster].feed._nodes.change(kind, body)
        )
        self._upper_event()

    def _lower_changed(self, cluster: str, pod: LowerPod, kind: str) -> None:
        body = shrink_pod(_lower(pod))
        self._stream(f"{cluster} pods").send(
            lambda agent: agent.state.clusters[cluster].feed._pods.change(kind, body)
        )
        if not pod.upper:
            self._upper_event()  # the virtual node's capacity changes
        if pod.node and not pod.preferred and (self.binds or not pod.upper):
            # The lower scheduler chose freely for a pod that the extender did not bind; it may have waited for room for long.
            self.clusters[cluster].disturbed = asyncio.get_running_loop().time() + LATE
        if pod.upper and pod.node and kind != "DELETED" and (upper := self.pods.get(pod.upper)) is not None:
            upper.phase = "Running"
            self._bound_event(upper, "MODIFIED")

    def _bound_event(self, pod: UpperPod, kind: str) -> None:
        body = shrink(from_dict(pod.to_dict()))
        self._stream("bound").send(lambda agent: agent.state.bound_pods.informer.change(kind, body))

    def _pending_event(self, pod: UpperPod, kind: str) -> None:
        body = _pending(pod)
        self._stream("pending").send(lambda agent: agent.groups.members.pending.informer.change(kind, body))

    def _upper_event(self) -> None:
        """Requeue rejected pods, as kube-scheduler does when a Node changes or a bound pod is deleted."""

        def requeue() -> None:
            self.active += sorted(self.rejected)
            self.rejected.clear()

        asyncio.get_running_loop().call_later(0.6, requeue)

    # --- the upper API server ------------------------------------------------------------------------

    async def _create_binding(self, _resource: Any, body: dict[str, Any], **_: Any) -> None:
        await asyncio.sleep(self.lag() / 10)
        annotations = body["metadata"]["annotations"]
        self._bind(body["metadata"]["uid"], body["target"]["name"], annotations)

    async def _list(self, _resource: Any, *, namespace: str, field_selector: str) -> Any:
        await asyncio.sleep(0.01)
        pod = self.pods.get(field_selector.removeprefix("metadata.name="))
        return SimpleNamespace(items=[from_dict(pod.to_dict())] if pod is not None else [])

    def _bind(self, uid: str, node: str, annotations: dict[str, str]) -> None:
        pod = self.pods.get(uid)
        if pod is None or pod.node:
            return
        pod.node = node
        pod.preferred = annotations.get(names.ANNOTATION_PREFERRED_NODE, "")
        self.log(f"{uid} ({pod.cpu}) bound to {node} preferring {pod.preferred or '-'}")
        self._pending_event(pod, "DELETED")
        self._bound_event(pod, "ADDED")
        asyncio.get_running_loop().call_later(self.random.random() * 0.3, self._mirror, uid)

    def _mirror(self, uid: str) -> None:
        """Let the virtual node create the lower pod."""
        pod = self.pods.get(uid)
        if pod is None or not pod.node:
            return
        if self.is_virtual_node_down:
            asyncio.get_running_loop().call_later(1, self._mirror, uid)
            return
        cluster = self.clusters[pod.node.removeprefix("vn-")]
        if uid not in cluster.pods:
            cluster.create(LowerPod(uid, pod.cpu, uid, pod.needs_fast, pod.preferred))

    # --- users ---------------------------------------------------------------------------------------

    def create(self, pod: UpperPod) -> None:
        """Create an upper pod; with a node, the scheduler is not asked."""
        self.pods[pod.uid] = pod
        self.log(f"{pod.uid} ({pod.cpu}{' fast' if pod.needs_fast else ''}) created {pod.node}")
        if pod.node:
            self._bound_event(pod, "ADDED")
            asyncio.get_running_loop().call_later(self.random.random() * 0.3, self._mirror, pod.uid)
        else:
            self._pending_event(pod, "ADDED")
            self.active.append(pod.uid)

    def delete(self, uid: str) -> None:
        """Delete an upper pod with its lower pod."""
        pod = self.pods.pop(uid)
        self.log(f"{uid} deleted")
        self._forget_assumed(uid)
        self.rejected.discard(uid)
        if pod.node:
            self._bound_event(pod, "DELETED")
            self.clusters[pod.node.removeprefix("vn-")].delete(uid)
            self._upper_event()
        else:
            self._pending_event(pod, "DELETED")

    # --- the scheduler -------------------------------------------------------------------------------

    async def schedule(self) -> None:
        """Schedule pods one after the other until cancelled, and bind them concurrently."""
        while True:
            await asyncio.sleep(0.01)
            if not self.active:
                continue
            uid = self.active.pop(0)
            pod = self.pods.get(uid)
            if pod is None or uid in self.assumed or pod.node:
                continue
            candidates = [
                f"vn-{name}" for name, cluster in self.clusters.items() if self._total(cluster) >= pod.cpu
            ]
            if not candidates:
                self.rejected.add(uid)
                continue
            asked = asyncio.get_running_loop().time()
            try:
                answer = await self.extender.filter(protocol.Candidates(pod.to_dict(), candidates, None))
            except NotReadyError as error:
                self._failed(pod, str(error), back_off=True)
                continue
            if not answer.passing:
                self._failed(pod, next(iter({**answer.failed, **answer.unresolvable}.values())))
                continue
            node = self.random.choice(answer.passing)
            self.assumed[uid] = node
            self.log(f"{uid} passes on {answer.passing}, {node} chosen")
            asyncio.get_running_loop().create_task(self._bind_later(pod, node, asked))

    async def _bind_later(self, pod: UpperPod, node: str, asked: float) -> None:
        seconds = self.random.choice((0.0, 0.01, 0.1))
        if self.random.random() < 0.1:
            seconds = self.random.choice((11.0, 30.0))
            self.stalled.add(pod.uid)
        await asyncio.sleep(seconds)
        self.stalled.discard(pod.uid)
        if pod.uid not in self.pods:
            return
        if seconds and self.random.random() < 0.03:
            self._forget_assumed(pod.uid)
            self._failed(pod, "a plug-in failed", back_off=True)
            return
        # Without binding by the extender, a restart loses the rooms of pods that are being bound.
        pod.promised_at = asked if self.binds or asked > self.restarted else -1.0
        if not self.binds:
            self._bind(pod.uid, node, {})
            return
        if error := await self.extender.bind(NAMESPACE, pod.uid, pod.uid, node):
            self.log(f"{pod.uid} not bound: {error}")
            self._forget_assumed(pod.uid)
            self._failed(pod, error, back_off=True)

    def _forget_assumed(self, uid: str) -> None:
        """Forget the choice for a pod, which requeues rejected pods, as in kube-scheduler."""
        if self.assumed.pop(uid, None) is not None:
            self._upper_event()

    def _failed(self, pod: UpperPod, why: str, *, back_off: bool = False) -> None:
        self.log(f"{pod.uid} not scheduled: {why}")
        if pod.failure != why:
            pod.failure = why
            self._pending_event(pod, "MODIFIED")
        if back_off:
            count = self.attempts[pod.uid] = self.attempts.get(pod.uid, 0) + 1
            asyncio.get_running_loop().call_later(min(10, 2 ** (count - 1)), self.active.append, pod.uid)
        else:
            self.rejected.add(pod.uid)

    def _total(self, cluster: LowerCluster) -> int:
        """Return the free cpu of a virtual node, as the upper scheduler sees it."""
        native = sum(pod.cpu for pod in cluster.pods.values() if not pod.upper and pod.node)
        mine = sum(
            self.pods[uid].cpu
            for uid in {*self.assumed, *(pod.uid for pod in self.pods.values() if pod.node)}
            if uid in self.pods and (self.pods[uid].node or self.assumed.get(uid)) == f"vn-{cluster.name}"
        )
        return sum(node.cpu for node in cluster.nodes.values() if not node.is_cordoned) - native - mine

    async def run_lower(self) -> None:
        """Let the lower schedulers work until cancelled; report pods that lack room although it was promised."""
        while True:
            await asyncio.sleep(0.02 + self.random.random() * 0.1)
            for cluster in self.clusters.values():
                for lower in cluster.schedule():
                    pod = self.pods.get(lower.upper)
                    if pod is not None and pod.promised_at > cluster.disturbed and not lower.claims:
                        self.wrong.append(
                            f"{pod.uid} was promised room in {cluster.name} at {pod.promised_at - 1000:.3f} and has none"
                        )
                        self.log(self.wrong[-1])
                        pod.promised_at = -1.0


async def _true(_seconds: float) -> bool:
    return True


def _node(node: Node) -> Object:
    labels = {"disk": FAST} if node.is_fast else {}
    return from_dict(
        {
            "metadata": {
                "name": node.name,
                "uid": node.name,
                "resourceVersion": str(next(_VERSIONS)),
                "labels": labels,
            },
            "spec": {"unschedulable": node.is_cordoned},
            "status": {"allocatable": {"cpu": str(node.cpu), "pods": "99"}},
        }
    )


def _lower(pod: LowerPod) -> Object:
    labels = {names.LABEL_UPPER_UID: pod.upper or pod.claims} if pod.upper or pod.claims else {}
    return from_dict(
        {
            "metadata": {
                "name": pod.name, "namespace": NAMESPACE if pod.upper else "lower-team", "uid": f"lower-{pod.name}",
                "resourceVersion": str(next(_VERSIONS)), "labels": labels,
            },
            "spec": {
                **({"nodeName": pod.node} if pod.node else {}),
                "containers": [{"name": "c", "resources": {"requests": {"cpu": str(pod.cpu)}}}],
            },
            "status": {"phase": "Running" if pod.node else "Pending"},
        }
    )  # fmt: skip


def _pending(pod: UpperPod) -> Object:
    return members._shrink_pod(from_dict(pod.to_dict()))
