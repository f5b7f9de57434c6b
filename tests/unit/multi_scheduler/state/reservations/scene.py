"""A lower cluster behind virtual nodes, with an extender, and the events that watches report to it.

Nodes x and y have four cores, and the pods P, Q and R need four.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

from clusterset.config import Cluster
from clusterset.model.namespace_map import NamespaceConfig
from controller_runtime.client.limits import CacheBudget
from controller_runtime.objects import from_dict
from multi_scheduler.agent import AgentContext
from multi_scheduler.agents.fit import members
from multi_scheduler.bound_pods import shrink
from multi_scheduler.extender import protocol
from multi_scheduler.extender.extender import Extender, NotReadyError, Weighted
from multi_scheduler.virtual_node import VirtualNode
from tests import objects
from tests.unit.multi_scheduler.lower_pods import fit_agent, lower_pod, mark_synced, report

FOUR = {"cpu": 4000}
_VERSIONS = itertools.count(1)


def pod(uid: str, cpu: str = "4", *, node: str = "", priority: int = 0, **status: Any) -> dict[str, Any]:
    """Return an upper pod; ``status``: further fields of its status."""
    version = {"resourceVersion": str(next(_VERSIONS))}
    return objects.pod(uid, cpu, node=node, priority=priority, status=status, metadata=version)


def failed(message: str) -> dict[str, Any]:
    """Return the status of a pod after a failed attempt to schedule it."""
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "x", "message": message}]}


class Scene:
    """A lower cluster behind two virtual nodes, and an extender that has read everything.

    Args:
        nodes: names of the lower nodes.
        binds: whether the extender binds pods.
        pools: pool labels by further virtual nodes.
    """

    def __init__(
        self, *nodes: str, binds: bool = False, pools: Mapping[str, Mapping[str, str]] | None = None
    ) -> None:
        self.exists: list[dict[str, Any]] = []
        """Upper pods that the API server returns when a pod is read."""
        listed = AsyncMock(side_effect=self._list)
        self.created = AsyncMock()
        fake: Any = SimpleNamespace(
            cluster="test", caches=CacheBudget(0, cluster="test"), list=listed, create=self.created
        )
        virtual = {
            name: VirtualNode(name, "a", {}, pool)
            for name, pool in {"vn-1": {}, "vn-2": {}, **(pools or {})}.items()
        }
        self.events: list[tuple[str, str]] = []
        recorder: Any = SimpleNamespace(
            event=lambda pod, _kind, reason, _text: self.events.append((pod.uid, reason))
        )
        cluster = Cluster(name="a", kubeconfig="", namespaces=NamespaceConfig(map={"shop": "store"}))
        context = AgentContext(
            "fit",
            {"passNode": binds},
            fake,
            {"a": fake},
            {"a": cluster},
            recorder=recorder,
            find_node=virtual.get,
        )
        self.agent = fit_agent(context)
        self.feed, self.index = self.agent.state.clusters["a"].feed, self.agent.state.clusters["a"].index
        mark_synced(self.agent.state)
        for name in nodes or ("x", "y"):
            self.node(name)
        directory: Any = SimpleNamespace(
            wait=AsyncMock(return_value=True), find=lambda name, _node: virtual.get(name)
        )
        self.extender = Extender([Weighted("fit", self.agent, 1.0)], directory, upper=fake)

    async def _list(self, *_: Any, **options: Any) -> Any:
        name = options["field_selector"].removeprefix("metadata.name=")
        return SimpleNamespace(
            items=[from_dict(one) for one in self.exists if one["metadata"]["name"] == name]
        )

    def node(self, name: str, cpu: int = 4, *, labels: Mapping[str, str] | None = None, **spec: Any) -> None:
        """Add or change a lower node."""
        body = {
            "metadata": {"name": name, "labels": dict(labels or {})},
            "spec": spec,
            "status": {"allocatable": {"cpu": str(cpu), "pods": "9999"}},
        }
        self.index.upsert_node(body)

    async def passes(self, asked: dict[str, Any], *names: str) -> bool:
        """Filter a pod; report whether a virtual node passes."""
        try:
            answer = await self.extender.filter(protocol.Candidates(asked, names or ("vn-1",), None))
        except NotReadyError:
            return False
        return bool(answer.passing)

    def bound(self, asked: dict[str, Any], node: str = "vn-1", kind: str = "ADDED") -> None:
        """Let the watches report that a pod is bound."""
        body = {**asked, "spec": {**asked["spec"], "nodeName": node}}
        self.agent.groups.members.pending.informer.change("DELETED", from_dict(asked))
        self.agent.state.bound_pods.informer.change(kind, shrink(from_dict(body)))

    def pending(self, asked: dict[str, Any], kind: str = "ADDED") -> None:
        """Let the watch of pending pods report a pod."""
        shrunk = members._shrink_pod(from_dict(asked))
        self.agent.groups.members.pending.informer.change(kind, shrunk)

    async def place(self, uid: str) -> None:
        """Filter and bind a pod, which must pass."""
        asked = pod(uid)
        assert await self.passes(asked)
        self.bound(asked)

    def lower(
        self, uid: str, node: str = "", kind: str = "ADDED", *, namespace: str = "store", name: str = ""
    ) -> None:
        """Let the lower watch report a pod of four cores."""
        report(self.feed, lower_pod(uid, node, FOUR, namespace=namespace, name=name), kind)

    def native(self, node: str, name: str = "native", kind: str = "ADDED") -> None:
        """Let the lower watch report a pod of a lower user."""
        self.lower("", node, kind, namespace="team", name=name)

    def reserved(self, uid: str, node: str = "vn-1") -> str:
        """Return the lower node that is reserved for a pod."""
        placed = self.index.placed(f"{uid}@{node}")
        return placed.node if placed is not None else ""
