"""Copies of ConfigMaps and Secrets where watches fail, lie behind, or meet another process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime.api import names
from controller_runtime.cache.informer import Informer
from controller_runtime.errors import Forbidden
from tests.unit.virtual_node.controllers.pod_controller_setup import (
    CLUSTER,
    Scene,
    clusters,
    mirroring,
    running,
)

pytestmark = pytest.mark.looptime

KEY = "shop/settings"
OPTIONAL = [{"name": "s", "configMap": {"name": "settings", "optional": True}}]


def config_map(**labels: str) -> dict[str, Any]:
    """A ConfigMap."""
    metadata = {"name": "settings", "namespace": "shop", "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"a": "1"}}


async def test_a_copy_loses_its_content_with_its_original():
    """What is deleted above is deleted below; while an optional reference is left, an empty object holds its name."""
    async with running() as scene:
        scene.upper.put("configmaps", config_map())
        scene.bind(volumes=OPTIONAL)
        await asyncio.sleep(1)
        assert scene.lower.find("configmaps", KEY) is not None
        scene.upper.vanish("configmaps", KEY)
        await asyncio.sleep(5)
        assert scene.lower.the("configmaps", KEY)["data"] == {}
        scene.upper.vanish("pods", "shop/web")
        scene.lower.vanish("pods", "shop/web")
        await asyncio.sleep(120)
        assert scene.lower.find("configmaps", KEY) is None


async def test_a_copy_loses_its_content_with_its_original_though_others_have_pods_there():
    """What is gone above is of use to nobody: a Secret that is deleted is not to stay below."""
    upper, lower = clusters()
    one, other = Scene(upper, lower), Scene(upper, lower, node="another")
    async with mirroring(one, other):
        upper.put("configmaps", config_map())
        one.bind("one", uid="u-1", volumes=OPTIONAL)
        other.bind("two", uid="u-2", volumes=OPTIONAL)
        await asyncio.sleep(1)
        upper.vanish("configmaps", KEY)
        await asyncio.sleep(5)
        assert lower.the("configmaps", KEY)["data"] == {}


async def test_a_copy_that_another_process_may_use_goes_after_the_last_pod_of_both():
    """Nobody tells us when the pods of others end, so we look again."""
    upper, lower = clusters()
    one, other = Scene(upper, lower), Scene(upper, lower, node="another")
    async with mirroring(one, other):
        upper.put("configmaps", config_map())
        one.bind("one", uid="u-1", volumes=OPTIONAL)
        other.bind("two", uid="u-2")
        await asyncio.sleep(1)
        upper.vanish("pods", "shop/one")
        lower.vanish("pods", "shop/one")
        await asyncio.sleep(120)
        assert lower.find("configmaps", KEY) is not None
        upper.vanish("pods", "shop/two")
        lower.vanish("pods", "shop/two")
        await asyncio.sleep(1200)
        assert lower.find("configmaps", KEY) is None


async def test_a_copy_stays_while_only_our_watch_says_that_its_original_is_gone():
    """Another process has seen the new original and copied it; ours will, later."""
    async with running() as scene:
        scene.bind(volumes=OPTIONAL)
        await asyncio.sleep(1)
        scene.upper.held.add("configmaps")
        scene.upper.put("configmaps", config_map())
        ours = {names.LABEL_UPPER_CLUSTER: CLUSTER, names.LABEL_NODE: "another", names.LABEL_UPPER_UID: "x"}
        scene.lower.put("configmaps", config_map(**ours))
        await asyncio.sleep(1)
        scene.lower.change("configmaps", KEY, metadata={"labels": {"meddled": "with"}})
        await asyncio.sleep(120)
        assert scene.lower.asked("delete", "configmaps") == []


async def test_a_copy_that_is_wanted_again_in_the_last_moment_stays():
    """The next pod of a Job comes while the copy is being removed."""
    async with running() as scene:
        scene.upper.put("configmaps", config_map())
        scene.bind(volumes=OPTIONAL)
        await asyncio.sleep(1)
        scene.upper.vanish("pods", "shop/web")
        scene.lower.vanish("pods", "shop/web")
        list_pods, looking = scene.lower.list, asyncio.Event()

        async def slow_list(resource: Any, **selection: Any) -> Any:
            if "notin" in str(selection.get("label_selector")):
                looking.set()
                await asyncio.sleep(1)
            return await list_pods(resource, **selection)

        scene.lower.list = slow_list  # type: ignore[method-assign]
        await looking.wait()
        scene.bind("next", uid="u-2", volumes=OPTIONAL)
        await asyncio.sleep(60)
        assert scene.lower.asked("delete", "configmaps") == []
        assert scene.below("next") is not None


async def test_a_watch_that_dies_ends_its_cluster(monkeypatch: pytest.MonkeyPatch):
    """A fault of ours in one of thousands of watches: started again by the supervisor, never stale unseen."""
    run = Informer.run

    async def break_down(self: Informer) -> None:
        if self.name == "single-configmaps":
            await asyncio.sleep(1)
            raise ZeroDivisionError
        await run(self)

    monkeypatch.setattr(Informer, "run", break_down)
    scene = Scene(*clusters())
    scene.bind(volumes=OPTIONAL)
    with pytest.raises(ExceptionGroup) as fault:
        async with asyncio.timeout(60):
            await scene.run()
    assert fault.group_contains(ZeroDivisionError)


async def test_a_thousand_pods_of_one_config_map_compare_it_once(monkeypatch: pytest.MonkeyPatch):
    """Decoding a megabyte for each pod would hold up all the others."""
    async with running() as scene:
        scene.upper.put("configmaps", config_map())
        scene.bind("first", uid="u-0", volumes=OPTIONAL)
        await asyncio.sleep(1)
        scene.bind("second", uid="u-1", volumes=OPTIONAL)
        await asyncio.sleep(1)
        compared: list[str] = []
        compare = "virtual_node.translate.objects.copies.lower_copy"
        monkeypatch.setattr(compare, lambda *_what: compared.append("again"))
        for number in range(2, 10):
            scene.bind(f"pod-{number}", uid=f"u-{number}", volumes=OPTIONAL)
        await asyncio.sleep(1)
        assert compared == []
        assert scene.below("pod-9") is not None
        monkeypatch.undo()
        scene.upper.change("configmaps", KEY, data={"a": "2"})
        await asyncio.sleep(1)
        assert scene.lower.find("configmaps", KEY)["data"] == {"a": "2"}  # type: ignore[index]


async def test_a_burst_of_pods_makes_a_copy_once():
    """They all come before the cache shows the copy; none of them asks for it again."""
    async with running() as scene:
        scene.upper.put("configmaps", config_map())
        await asyncio.sleep(1)
        scene.lower.held.add("configmaps")
        for number in range(10):
            scene.bind(f"pod-{number}", uid=f"u-{number}", volumes=OPTIONAL)
        await asyncio.sleep(5)
        assert scene.lower.asked("create", "configmaps") == [KEY]
        assert scene.lower.asked("get", "configmaps") == []
        assert scene.below("pod-9") is not None
        scene.lower.vanish("configmaps", KEY)
        scene.lower.release("configmaps")
        await asyncio.sleep(5)
        assert scene.lower.find("configmaps", KEY) is not None


async def test_what_somebody_meddles_with_below_is_put_right():
    """The original has not changed, as the upper cluster confirms."""
    async with running() as scene:
        scene.upper.put("configmaps", config_map())
        scene.bind(volumes=OPTIONAL)
        await asyncio.sleep(1)
        scene.lower.change("configmaps", KEY, data={"a": "meddled"})
        await asyncio.sleep(1)
        assert scene.lower.find("configmaps", KEY)["data"] == {"a": "1"}  # type: ignore[index]


async def test_two_processes_do_not_undo_each_other():
    """One is cut off from the upper cluster's news: what the other writes stays, and is not fought over."""
    upper, lower = clusters()
    behind, current = Scene(upper, lower), Scene(upper, lower, node="another")
    async with mirroring(behind, current):
        upper.put("configmaps", config_map())
        behind.bind("one", uid="u-1", volumes=OPTIONAL)
        current.bind("two", uid="u-2", volumes=OPTIONAL)
        await asyncio.sleep(1)
        watches = behind.dependencies._watches._informers
        for _, task in watches.values():
            task.cancel()
        upper.change("configmaps", KEY, data={"a": "2"})
        await asyncio.sleep(60)
        assert lower.find("configmaps", KEY)["data"] == {"a": "2"}  # type: ignore[index]
        assert len(lower.asked("patch", "configmaps")) == 1


async def test_a_secret_that_may_not_be_read_is_told_on_the_pod_and_holds_up_no_other():
    """It is our right that is missing above; the lower cluster has refused nothing, and other pods go their way."""
    async with running(pod_sync_workers=1) as scene:
        await asyncio.sleep(1)
        scene.upper.fault = lambda _verb, plural, _key: Forbidden("no") if plural == "secrets" else None
        for number in range(3):
            scene.bind(
                f"no-{number}", uid=f"n-{number}", volumes=[{"name": "s", "secret": {"secretName": "s"}}]
            )
        await asyncio.sleep(12)
        scene.bind()
        await asyncio.sleep(1)
        assert scene.below() is not None
        assert {reason for reason, _ in scene.events} == {"Failed"}
        assert "cannot be read in the upper cluster" in scene.events[0][1]


async def test_a_copy_that_is_shown_after_its_last_pod_has_gone_goes_too():
    """The watch below lies behind: when the copy was to go, the cache did not have it yet."""
    async with running() as scene:
        scene.lower.held.add("configmaps")
        scene.upper.put("configmaps", config_map())
        scene.bind(volumes=OPTIONAL)
        await asyncio.sleep(1)
        scene.upper.vanish("pods", "shop/web")
        scene.lower.vanish("pods", "shop/web")
        await asyncio.sleep(300)
        assert scene.lower.find("configmaps", KEY) is not None
        scene.lower.release("configmaps")
        await asyncio.sleep(120)
        assert scene.lower.find("configmaps", KEY) is None
