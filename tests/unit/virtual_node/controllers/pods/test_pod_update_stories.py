"""Changes of a running pod in any order, with refusals and outages of the lower cluster: the last one applies."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from controller_runtime.errors import ApiError, Forbidden, Unavailable
from tests.fakes.apiserver.storage import Body
from tests.thorough import seeds
from tests.unit.virtual_node.controllers.pod_controller_setup import KEY, Scene, running

pytestmark = pytest.mark.looptime

REFUSALS = (Forbidden("no", code=403), Unavailable("etcd is slow", code=503))
PATCHES = ("pods", "pods/resize")


def shape(pod: Body) -> Any:
    """What a story changes of a pod."""
    return pod["spec"]["containers"], (pod["metadata"].get("labels") or {}).get("x")


class Story:
    """Random steps, the same for the same seed."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self._scene = scene
        self._dice = random.Random(seed)
        self._generation = 1
        self.told: list[Any] = []

    def step(self) -> None:
        """Something happens above or below."""
        dice, lower = self._dice, self._scene.lower
        step = dice.choice(["change", "change", "refuse", "serve", "hold", "release"])
        self.told.append(step)
        if step == "change":
            self._change()
        elif step == "refuse":
            self._refuse(dice.choice(PATCHES), dice.choice(REFUSALS), dice.choice([1.0, 0.5]))
        elif step == "serve":
            lower.fault = lambda _verb, _plural, _key: None
        elif step == "hold":
            lower.held.add("pods")
        else:
            lower.release("pods")

    def pause(self) -> float:
        """Seconds until the next step."""
        return self._dice.choice([0, 0.05, 0.3, 3, 20])

    def _change(self) -> None:
        dice = self._dice
        size = {"requests": {"cpu": dice.choice("12")}}
        container = {"name": "main", "image": dice.choice(["web:1", "web:2"]), "resources": size}
        self._generation += 1
        metadata = {"labels": {"x": dice.choice("ab")}, "generation": self._generation}
        self._scene.upper.change("pods", KEY, spec={"containers": [container]}, metadata=metadata)
        self.told.append(shape(self._scene.above()))

    def _refuse(self, what: str, error: ApiError, share: float) -> None:
        self.told.append((what, error, share))
        self._scene.lower.fault = lambda verb, plural, _key: (
            error if (verb, plural) == ("patch", what) and self._dice.random() < share else None
        )


@pytest.mark.parametrize("seed", seeds(20, 100))
async def test_a_pod_has_its_last_change_at_the_end(seed: int) -> None:
    """However its changes were taken back, and whichever part of them went below before."""
    async with running() as scene:
        size = {"requests": {"cpu": "1"}}
        scene.bind(containers=[{"name": "main", "image": "web:1", "resources": size}])
        await asyncio.sleep(10)
        story = Story(scene, seed)
        for _ in range(8):
            story.step()
            await asyncio.sleep(story.pause())
        scene.lower.fault = lambda _verb, _plural, _key: None
        scene.lower.release("pods")
        await asyncio.sleep(200)
        assert shape(scene.below()) == shape(scene.above()), story.told
