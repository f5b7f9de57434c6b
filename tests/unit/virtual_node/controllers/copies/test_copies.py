"""Copies of ConfigMaps and Secrets where watches fail, are behind, or another process writes, too."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model import names
from controller_runtime.cache.informer import Informer
from controller_runtime.errors import Forbidden
from tests import objects
from tests.unit.virtual_node.controllers.pod_controller_setup import (
    CLUSTER,
    Scene,
    clusters,
    lower_namespace,
    lower_pod,
    mirroring,
    running,
)
from virtual_node.controllers.copies.writer import CopyWriter

pytestmark = pytest.mark.looptime

KEY = "shop/settings"
OPTIONAL = [{"name": "s", "configMap": {"name": "settings", "optional": True}}]


async def test_a_copy_loses_its_content_with_its_original():
    """While an optional reference is left, an empty object reserves its name."""
    async with running() as scene:
        scene.upper.put("configmaps", objects.config_map())
        scene.bind(volumes=OPTIONAL)
        await asyncio.sleep(1)
        assert scene.lower.find("configmaps", KEY) is not None
        scene.upper.remove("configmaps", KEY)
        await asyncio.sleep(5)
        assert scene.lower.the("configmaps", KEY)["data"] == {}
        scene.upper.remove("pods", "shop/web")
        scene.lower.remove("pods", "shop/web")
        await asyncio.sleep(120)
        assert scene.lower.find("configmaps", KEY) is None


async def test_a_copy_loses_its_content_though_others_have_pods_there():
    """A deleted Secret must not stay in the lower cluster."""
    upper, lower = clusters()
    one, other = Scene(upper, lower), Scene(upper, lower, node="another")
    async with mirroring(one, other):
        upper.put("configmaps", objects.config_map())
        one.bind("one", uid="u-1", volumes=OPTIONAL)
        other.bind("two", uid="u-2", volumes=OPTIONAL)
        await asyncio.sleep(1)
        upper.remove("configmaps", KEY)
        await asyncio.sleep(5)
        assert lower.the("configmaps", KEY)["data"] == {}


async def test_a_shared_copy_is_deleted_after_the_last_pod_of_both_processes():
    """Polled, because the end of others' pods is not watched."""
    upper, lower = clusters()
    one, other = Scene(upper, lower), Scene(upper, lower, node="another")
    async with mirroring(one, other):
        upper.put("configmaps", objects.config_map())
        one.bind("one", uid="u-1", volumes=OPTIONAL)
        other.bind("two", uid="u-2")
        await asyncio.sleep(1)
        upper.remove("pods", "shop/one")
        lower.remove("pods", "shop/one")
        await asyncio.sleep(120)
        assert lower.find("configmaps", KEY) is not None
        upper.remove("pods", "shop/two")
        lower.remove("pods", "shop/two")
        await asyncio.sleep(1200)
        assert lower.find("configmaps", KEY) is None


async def test_a_copy_stays_while_only_this_watch_shows_the_deletion():
    """Another process has seen the new original and copied it; this watch will show it later."""
    async with running() as scene:
        scene.bind(volumes=OPTIONAL)
        await asyncio.sleep(1)
        scene.upper.held.add("configmaps")
        scene.upper.put("configmaps", objects.config_map())
        ours = {names.LABEL_UPPER_CLUSTER: CLUSTER, names.LABEL_NODE: "another", names.LABEL_UPPER_UID: "x"}
        scene.lower.put("configmaps", objects.config_map(labels=ours))
        await asyncio.sleep(1)
        scene.lower.change("configmaps", KEY, metadata={"labels": {"meddled": "with"}})
        await asyncio.sleep(120)
        assert scene.lower.asked("delete", "configmaps") == []


async def test_a_copy_that_is_used_again_during_its_deletion_stays():
    """The next pod of a Job is created while the copy is being deleted."""
    async with running() as scene:
        scene.upper.put("configmaps", objects.config_map())
        scene.bind(volumes=OPTIONAL)
        await asyncio.sleep(1)
        scene.upper.remove("pods", "shop/web")
        scene.lower.remove("pods", "shop/web")
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


async def test_an_error_in_a_watch_ends_its_cluster(monkeypatch: pytest.MonkeyPatch):
    """An unexpected error in one of thousands of watches: the supervisor restarts the cluster, so that no copy stays stale."""
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
    """Decoding a megabyte for each pod would delay all others."""
    async with running() as scene:
        scene.upper.put("configmaps", objects.config_map())
        scene.bind("first", uid="u-0", volumes=OPTIONAL)
        await asyncio.sleep(1)
        scene.bind("second", uid="u-1", volumes=OPTIONAL)
        await asyncio.sleep(1)
        compared: list[str] = []
        monkeypatch.setattr(CopyWriter, "translate", lambda *_what: compared.append("again"))
        for number in range(2, 10):
            scene.bind(f"pod-{number}", uid=f"u-{number}", volumes=OPTIONAL)
        await asyncio.sleep(1)
        assert compared == []
        assert scene.below("pod-9") is not None
        monkeypatch.undo()
        scene.upper.change("configmaps", KEY, data={"a": "2"})
        await asyncio.sleep(1)
        assert scene.lower.find("configmaps", KEY)["data"] == {"a": "2"}  # type: ignore[index]


async def test_a_burst_of_pods_creates_a_copy_once():
    """They all start before the cache shows the copy."""
    async with running() as scene:
        scene.upper.put("configmaps", objects.config_map())
        await asyncio.sleep(1)
        scene.lower.held.add("configmaps")
        for number in range(10):
            scene.bind(f"pod-{number}", uid=f"u-{number}", volumes=OPTIONAL)
        await asyncio.sleep(5)
        assert scene.lower.asked("create", "configmaps") == [KEY]
        assert scene.lower.asked("get", "configmaps") == []
        assert scene.below("pod-9") is not None
        scene.lower.remove("configmaps", KEY)
        scene.lower.release("configmaps")
        await asyncio.sleep(5)
        assert scene.lower.find("configmaps", KEY) is not None


async def test_changes_of_a_copy_in_the_lower_cluster_are_reverted():
    """The original has not changed, as a read of the upper cluster confirms."""
    async with running() as scene:
        scene.upper.put("configmaps", objects.config_map())
        scene.bind(volumes=OPTIONAL)
        await asyncio.sleep(1)
        scene.lower.change("configmaps", KEY, data={"a": "meddled"})
        await asyncio.sleep(1)
        assert scene.lower.find("configmaps", KEY)["data"] == {"a": "1"}  # type: ignore[index]


async def test_two_processes_do_not_revert_each_other():
    """One is cut off from the upper cluster's events: what the other writes stays."""
    upper, lower = clusters()
    behind, current = Scene(upper, lower), Scene(upper, lower, node="another")
    async with mirroring(behind, current):
        upper.put("configmaps", objects.config_map())
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


async def test_a_forbidden_secret_is_reported_on_its_pod_only():
    """The right is missing in the upper cluster; other pods are not affected."""
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


async def test_a_copy_shown_after_the_end_of_its_last_pod_is_deleted():
    """The lower watch is behind: at the pod's end the cache did not have the copy yet."""
    async with running() as scene:
        scene.lower.held.add("configmaps")
        scene.upper.put("configmaps", objects.config_map())
        scene.bind(volumes=OPTIONAL)
        await asyncio.sleep(1)
        scene.upper.remove("pods", "shop/web")
        scene.lower.remove("pods", "shop/web")
        await asyncio.sleep(300)
        assert scene.lower.find("configmaps", KEY) is not None
        scene.lower.release("configmaps")
        await asyncio.sleep(120)
        assert scene.lower.find("configmaps", KEY) is None


async def test_a_copy_that_another_program_changes_again_and_again_is_repaired_with_pauses():
    """Two programs that undo each other's writes would load both API servers."""
    async with running() as scene:
        scene.upper.put("configmaps", objects.config_map())
        scene.bind(volumes=OPTIONAL)
        await asyncio.sleep(1)
        for number in range(600):
            scene.lower.change("configmaps", KEY, data={"a": f"meddled-{number}"})
            await asyncio.sleep(1)
        assert 5 < len(scene.lower.asked("patch", "configmaps")) < 30
        assert {reason for reason, _ in scene.events} == {"CopyContested"}
        scene.upper.change("configmaps", KEY, data={"a": "2"})
        await asyncio.sleep(1)
        assert scene.lower.find("configmaps", KEY)["data"] == {"a": "2"}  # type: ignore[index]


async def test_a_copy_in_an_earlier_namespace_is_deleted_when_no_pod_is_left_there():
    """The configuration has mapped the upper namespace to another lower one."""
    async with running() as scene:
        ours = {names.LABEL_UPPER_CLUSTER: CLUSTER, names.LABEL_NODE: "vn", names.LABEL_UPPER_UID: "x"}
        body = objects.config_map(labels=ours)
        body["metadata"] |= {
            "namespace": "earlier",
            "annotations": {names.ANNOTATION_UPPER_NAMESPACE: "shop"},
        }
        scene.lower.put("namespaces", lower_namespace("shop", name="earlier"))
        scene.upper.put("configmaps", objects.config_map())
        scene.lower.put("configmaps", body)
        scene.lower.put("pods", lower_pod("gone") | {"metadata": _in_earlier(lower_pod("gone")["metadata"])})
        await asyncio.sleep(120)
        assert scene.lower.find("configmaps", "earlier/settings") is not None
        scene.lower.remove("pods", "earlier/web")
        await asyncio.sleep(1200)
        assert scene.lower.find("configmaps", "earlier/settings") is None


def _in_earlier(metadata: dict[str, Any]) -> dict[str, Any]:
    labels = metadata["labels"] | {names.LABEL_NODE: "another"}
    return {**metadata, "namespace": "earlier", "labels": labels}
