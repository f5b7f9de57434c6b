"""A model of kube-scheduler's cycle for a PodGroup (``pkg/scheduler/schedule_one_podgroup.go``), around the real extender."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

from controller_runtime.objects import from_dict
from multi_scheduler.agents.fit.members import _shrink_native, _shrink_pod
from multi_scheduler.bound_pods import shrink
from multi_scheduler.extender import protocol
from multi_scheduler.extender.extender import NotReadyError
from tests.objects import condition
from tests.unit.multi_scheduler.agents.fit.groups.world import World, pod

Body = dict[str, Any]


def gang(name: str, count: int, *, priority: int = 0) -> list[Body]:
    """Return the pods of a PodGroup."""
    pods = [pod(f"{name}{number:02}", priority=priority) for number in range(count)]
    for one in pods:
        one["spec"]["schedulingGroup"] = {"podGroupName": name}
    return pods


class NativeScheduler:
    """The upper scheduler with its cache, apart from the queue.

    ``world.names`` are the virtual nodes; each pod of the tests needs one core.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.bodies: dict[str, Body] = {}
        """Pods by UID, with their status."""
        create: Any = AsyncMock()
        world.extender.upper = SimpleNamespace(create=create)  # type: ignore[assignment]
        self.evicted: set[str] = set()
        """UIDs of the pods that the scheduler has evicted."""
        self.seconds = 0.0
        """Time that the extender took in the last cycle."""

    def declare(self, name: str, minimum: int | None) -> None:
        """Create a PodGroup; None: with the basic policy."""
        policy = {"basic": {}} if minimum is None else {"gang": {"minCount": minimum}}
        body = {
            "metadata": {"name": name, "namespace": "shop", "uid": name, "resourceVersion": "1"},
            "spec": {"schedulingPolicy": policy},
        }
        self.world.agent._minimums.informer.change("ADDED", _shrink_native(from_dict(body)))

    def create(self, pods: Collection[Body]) -> None:
        """Create upper pods."""
        for one in pods:
            self.bodies[one["metadata"]["uid"]] = one
            self.world.agent.groups.members.pending.informer.change("ADDED", _shrink_pod(from_dict(one)))

    async def cycle(self, pods: Collection[Body], minimum: int) -> list[str]:
        """Schedule a group: bind enough of its pods, or none; return the UIDs of evicted pods, whose room it then awaits."""
        pods = [self.bodies[one["metadata"]["uid"]] for one in pods]
        started = asyncio.get_running_loop().time()
        chosen, why = await self._run(pods, minimum, without=())
        self.seconds = asyncio.get_running_loop().time() - started
        if len(chosen) >= minimum:
            await asyncio.gather(*(self._bind(uid, node) for uid, node in chosen.items()))
            return []
        if self.evicted & self.world.node_of.keys():  # an earlier preemption goes on
            victims: list[str] = []
            nominated = {one["metadata"]["uid"]: _nominated(one) for one in pods}
        else:
            victims, nominated = await self._preempt(pods, minimum)
            self.evicted.update(victims)
        for one in pods:
            self._failed(one, why, nominated.get(one["metadata"]["uid"], ""))
        return victims

    async def _preempt(self, pods: Collection[Body], minimum: int) -> tuple[list[str], dict[str, str]]:
        priority = max(one["spec"].get("priority", 0) for one in pods)
        lower = [uid for uid in self.world.node_of if self.bodies[uid]["spec"].get("priority", 0) < priority]
        if not lower:
            return [], {}
        chosen, _ = await self._run(pods, minimum, without=lower)
        if len(chosen) < minimum:
            return [], {}
        victims = []
        for uid in lower:  # bring back those that fit beside the group
            node = self.world.node_of[uid]
            kept = [one for one in lower if one not in victims]
            if self._used(node, chosen, without=[one for one in lower if one not in kept]) > self._room(node):
                victims.append(uid)
        return victims, chosen

    async def _run(
        self, pods: Collection[Body], minimum: int, *, without: Collection[str]
    ) -> tuple[dict[str, str], str]:
        """Return the chosen node by UID, and why the group has fewer than its minimum."""
        chosen: dict[str, str] = {}
        for number, one in enumerate(pods):
            names = [
                name
                for name in self.world.names
                if self._used(name, chosen, without=without) < self._room(name)
            ]
            first = [name for name in names if name == _nominated(one)]
            for candidates in filter(None, (first, names)):
                try:
                    answer = await self.world.extender.filter(protocol.Candidates(one, candidates, None))
                except NotReadyError as error:
                    return {}, f"error: {error}"
                if answer.passing:
                    chosen[one["metadata"]["uid"]] = self.world.random.choice(answer.passing)
                    break
            if len(chosen) + len(pods) - number - 1 < minimum:
                break
        left = len(pods) - len(chosen)
        return chosen, f"minCount ({minimum}) cannot be satisfied: {len(chosen)} scheduled, {left} remaining"

    def _room(self, node: str) -> int:
        return self.world.agent.state.clusters[node.removeprefix("vn-")].index.total["cpu"] // 1000

    def _used(self, node: str, chosen: Mapping[str, str], *, without: Collection[str]) -> int:
        there = {uid: on for uid, on in self.world.node_of.items() if uid not in without} | dict(chosen)
        return sum(on == node for on in there.values())

    async def _bind(self, uid: str, node: str) -> None:
        body = self.bodies[uid]
        error = await self.world.extender.bind("shop", body["metadata"]["name"], uid, node)
        if error:
            self._failed(body, error, "")
            return
        bound = self.bodies[uid] = {**body, "spec": {**body["spec"], "nodeName": node}}
        agent = self.world.agent
        agent.groups.members.pending.informer.change("DELETED", from_dict(body))
        agent.state.bound_pods.informer.change("ADDED", shrink(from_dict(bound)))
        self.world.node_of[uid] = node

    def _failed(self, one: Body, why: str, nominated: str) -> None:
        """Write the failure to the pod, if it is another one than before."""
        status: Body = {"conditions": [condition("PodScheduled", "False", "Unschedulable", why)]}
        status |= {"nominatedNodeName": nominated} if nominated else {}
        if one.get("status") == status:
            return
        uid = one["metadata"]["uid"]
        changed = self.bodies[uid] = {**one, "status": status}
        changed["metadata"] = {**one["metadata"], "resourceVersion": f"{id(changed)}"}
        self.world.agent.groups.members.pending.informer.change("MODIFIED", _shrink_pod(from_dict(changed)))


def _nominated(one: Body) -> str:
    return str((one.get("status") or {}).get("nominatedNodeName", ""))
