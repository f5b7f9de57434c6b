"""Proofs that a pod's containers have ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from controller_runtime.errors import NotFound
from controller_runtime.objects import Object, from_dict
from controller_runtime.store import Store
from swarm.controller.liveness import Liveness
from swarm.handover import Holder
from swarm.planning import Pod

HOLDER = Holder(pod="w-0", uid="u0", node="n")


class Scene:
    """A node, its Lease, and an API server that knows pods by name."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pods: dict[str, str] = {}
        self._heard: Any = None
        self.nodes = Store()
        self.node(ready="True")
        leases = SimpleNamespace(on_change=self._on_change)
        client: Any = SimpleNamespace(get=self._get)
        nodes: Any = SimpleNamespace(store=self.nodes)
        informer: Any = leases
        self.liveness = Liveness(client, nodes=nodes, leases=informer, settle=60, clock=lambda: self.now)

    def node(self, *, ready: str, taint: str = "") -> None:
        taints = [{"key": taint}] if taint else []
        conditions = [{"type": "Ready", "status": ready}]
        self.nodes.put("n", _object("n", spec={"taints": taints}, status={"conditions": conditions}))

    def renew(self) -> None:
        self._heard(_object("n", spec={"renewTime": str(self.now)}))

    def wait(self, seconds: int) -> None:
        """Advance the clock while the Lease is renewed."""
        for _ in range(seconds // 10):
            self.now += 10
            self.renew()

    async def gone(self, *pods: Pod, confirmed: str = "") -> tuple[set[str], set[str]]:
        return await self.liveness.gone([HOLDER], pods, namespace="ns", confirmed={confirmed})

    def _on_change(self, changed: Any) -> None:
        self._heard = changed

    async def _get(self, _resource: Any, name: str, *, namespace: str) -> dict[str, Any]:
        if name not in self.pods:
            raise NotFound("no pod")
        return {"metadata": {"uid": self.pods[name]}}


def _object(name: str, **fields: Any) -> Object:
    return from_dict({"metadata": {"name": name}, **fields})


@pytest.fixture
def scene() -> Scene:
    """A healthy node, and an absent pod object."""
    scene = Scene()
    scene.renew()
    return scene


async def test_a_final_status_is_proof(scene: Scene):
    """Seen in the cache, or as the last status of a deleted object."""
    assert await scene.gone(Pod("w-0", "u0")) == (set(), set())
    assert await scene.gone(Pod("w-0", "u0", finished=True)) == ({"u0"}, set())
    assert await scene.gone() == (set(), {"u0"})
    scene.liveness.note_end("u0")
    assert await scene.gone() == ({"u0"}, set())


async def test_healthy_node_proves_that_absent_pods_have_ended(scene: Scene):
    """After the settle time, which restarts whenever the node is not healthy."""
    assert await scene.gone() == (set(), {"u0"})
    scene.wait(50)
    assert await scene.gone() == (set(), {"u0"})
    scene.node(ready="Unknown")
    assert await scene.gone() == (set(), {"u0"})
    scene.node(ready="True")
    scene.wait(50)
    assert await scene.gone() == (set(), {"u0"})
    scene.wait(10)
    assert await scene.gone() == ({"u0"}, set())


@pytest.mark.parametrize("fault", ["silent", "unready", "deleted"])
async def test_a_lost_node_proves_nothing(scene: Scene, fault):
    """For any length of time."""
    if fault == "unready":
        scene.node(ready="Unknown")
    if fault == "deleted":
        scene.nodes.remove("n")
    for _ in range(20):
        if fault == "silent":
            scene.now += 40
        else:
            scene.wait(40)
        assert await scene.gone() == (set(), {"u0"})


async def test_user_or_program_can_confirm_that_a_pod_has_ended(scene: Scene):
    """By the annotation, or by the node's taint."""
    scene.node(ready="Unknown")
    assert await scene.gone(confirmed="u0") == ({"u0"}, set())
    assert await scene.gone() == (set(), {"u0"})
    scene.node(ready="Unknown", taint="node.kubernetes.io/out-of-service")
    assert await scene.gone() == ({"u0"}, set())


async def test_absence_in_the_cache_is_checked_live(scene: Scene):
    """Another pod of the same name is not the same pod."""
    scene.pods["w-0"] = "u0"
    assert await scene.gone() == (set(), set())
    scene.pods["w-0"] = "u1"
    assert await scene.gone() == (set(), {"u0"})
