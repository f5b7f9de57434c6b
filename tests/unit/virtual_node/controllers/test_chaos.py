"""Pods through everything at once: errors, cut requests, watches that lie behind, restarts, force; then calm.

Each seed is another story. What must hold at every moment is checked in the lower cluster's own methods; what must
hold in the end, when everything answers again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from clusterset.model import names
from controller_runtime.errors import ConnectionFailed, Expired, TooManyRequests, Unavailable
from tests.thorough import seeds
from tests.unit.virtual_node.controllers.cluster import Cluster
from tests.unit.virtual_node.controllers.pod_controller_setup import Scene, clusters

pytestmark = pytest.mark.looptime(noop_cycles=5)  # no I/O to look out for, and much time to pass

STEPS = 120
VOLUME = [{"name": "s", "configMap": {"name": "settings", "optional": True}}]


class Watched(Cluster):
    """A lower cluster that notes what must never happen, and loses answers."""

    def __init__(self, upper: Cluster, chance: random.Random) -> None:
        super().__init__("lower")
        self.wrong: list[str] = []
        self.made: Counter[str] = Counter()
        self.losing = 0.0
        self._upper, self._chance = upper, chance

    async def create(self, resource: Any, body: Any, **options: Any) -> Any:
        """As a server does; the answer may be lost."""
        made = await super().create(resource, body, **options)
        if resource.plural == "pods":
            uid = body["metadata"]["labels"][names.LABEL_UPPER_UID]
            self.made[uid] += 1
            if self.made[uid] > 1:
                self.wrong.append(f"{uid} was started twice")
        if self._chance.random() < self.losing:
            raise ConnectionFailed("cut off")
        return made

    async def delete(self, resource: Any, name: str, **options: Any) -> Any:
        """As a server does, if the upper cluster wants it gone."""
        there = self.find(resource.plural, f"{options['namespace']}/{name}")
        if resource.plural == "pods" and there is not None and there["metadata"]["uid"] == options["uid"]:
            above = self._upper.find("pods", f"shop/{name}")
            uid = there["metadata"]["labels"][names.LABEL_UPPER_UID]
            wanted = above is not None and above["metadata"]["uid"] == uid
            if wanted and "deletionTimestamp" not in above["metadata"]:  # type: ignore[index]
                self.wrong.append(f"{uid} was deleted below while it was wanted above")
        return await super().delete(resource, name, **options)


class Story:
    """One seed's course of events."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.upper, _ = clusters()
        self.lower = Watched(self.upper, self.chance)
        self.scene = Scene(self.upper, self.lower)
        self.task: asyncio.Task[None] | None = None
        self._count = 0

    async def stop(self) -> None:
        """The process ends, wherever it is."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    async def start(self) -> None:
        """A new process."""
        await self.stop()
        self.scene = Scene(self.upper, self.lower)
        self.task = asyncio.create_task(self.scene.run())

    async def step(self) -> None:
        """Something happens."""
        happening = self.chance.choice(
            [self._evict, self._bind, self._bind, self._delete, self._remove, self._again, self._hold, self._err, self.start]
        )  # fmt: skip
        outcome = happening()
        if outcome is not None:
            await outcome
        self.kubelet(self.chance.random())
        await asyncio.sleep(self.chance.choice([0, 0.01, 0.3, 3, 20]))

    def calm(self) -> None:
        """Everything answers again."""
        for api in (self.upper, self.lower):
            api.fault = lambda _verb, _plural, _key: None
            for plural in list(api.held):
                api.release(plural)
        self.lower.losing = 0.0

    def kubelet(self, share: float) -> None:
        """The lower nodes do their work, or a part of it."""
        for (plural, key), body in list(self.lower.objects.items()):
            if plural != "pods" or self.chance.random() > share:
                continue
            if "deletionTimestamp" in body["metadata"]:
                self.lower.remove("pods", key)
            elif body["status"]["phase"] == "Pending":
                self.lower.change("pods", key, status={"phase": "Running", "podIP": f"10.0.0.{len(key)}"})

    def _pods(self) -> list[str]:
        return [key for plural, key in self.upper.objects if plural == "pods"]

    def _bind(self) -> None:
        self._count += 1
        self.scene.bind(f"web-{self._count}", uid=f"u-{self._count}", volumes=VOLUME)

    def _again(self) -> None:
        """A pod is removed by force, and made again under its name."""
        if pods := self._pods():
            key = self.chance.choice(pods)
            self.upper.remove("pods", key)
            self._count += 1
            self.scene.bind(key.partition("/")[2], uid=f"u-{self._count}", volumes=VOLUME)

    async def _delete(self) -> None:
        if pods := self._pods():
            fault, self.upper.fault = self.upper.fault, lambda _verb, _plural, _key: None
            name = self.chance.choice(pods).partition("/")[2]
            await self.upper.delete(
                self.scene.caches.lower.resource, name, namespace="shop", grace_period_seconds=30
            )
            self.upper.fault = fault

    def _remove(self) -> None:
        if pods := self._pods():
            self.upper.remove("pods", self.chance.choice(pods))

    def _evict(self) -> None:
        """A lower node loses a pod that the upper cluster knows to have been there."""
        for key in self._pods():
            above, below = self.upper.find("pods", key), self.lower.find("pods", key)
            assert above is not None
            proof = (above["metadata"].get("annotations") or {}).get(names.ANNOTATION_LOWER_UID, "")
            if below is not None and proof.startswith(below["metadata"]["uid"]):
                self.lower.remove("pods", key)
                return

    def _hold(self) -> None:
        api = self.chance.choice([self.upper, self.lower])
        plural = self.chance.choice(["pods", "pods", "configmaps", "namespaces"])
        if plural in api.held:
            api.release(plural)
        else:
            api.held.add(plural)

    def _err(self) -> None:
        api, share = self.chance.choice([self.upper, self.lower]), self.chance.choice([0, 0, 0.3, 1])
        errors = [
            TooManyRequests("later", code=429),
            Unavailable("down", code=503),
            ConnectionFailed("cut"),
            Expired("old"),
        ]
        api.fault = lambda _verb, _plural, _key: (
            self.chance.choice(errors) if self.chance.random() < share else None
        )
        self.lower.losing = self.chance.choice([0, 0, 0.5])


@pytest.mark.parametrize("seed", seeds(2, 12))
async def test_pods_survive(seed):
    """None is lost, none is started twice, none is taken away while it is wanted, and in the end all agree."""
    story = Story(seed)
    story.upper.put(
        "configmaps",
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "shop"}, "data": {}},
    )  # fmt: skip
    await story.start()
    for _ in range(STEPS):
        await story.step()
        assert story.task is not None
        assert not story.task.done()
    story.calm()
    for _ in range(60):
        story.kubelet(1)
        await asyncio.sleep(10)
    assert story.lower.wrong == []
    above = {
        body["metadata"]["uid"]: body for (plural, _), body in story.upper.objects.items() if plural == "pods"
    }
    below = {
        body["metadata"]["labels"][names.LABEL_UPPER_UID]: body
        for (plural, _), body in story.lower.objects.items()
        if plural == "pods"
    }
    alive = {uid for uid, body in above.items() if body["status"]["phase"] == "Running"}
    assert alive == below.keys()
    assert {body["status"]["phase"] for body in above.values()} <= {"Running", "Failed"}
    assert {uid: above[uid]["status"]["podIP"] for uid in alive} == {
        uid: below[uid]["status"]["podIP"] for uid in alive
    }
    assert not any("deletionTimestamp" in body["metadata"] for body in above.values())
    await story.stop()
