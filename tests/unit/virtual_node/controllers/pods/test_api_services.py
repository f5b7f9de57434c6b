"""The Service of the upper API server in lower namespaces, and what pods get of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock

import pytest

from clusterset.model import names
from clusterset.model.policy.config import Policy
from controller_runtime.errors import Forbidden, Invalid
from tests.unit.virtual_node.controllers.pod_controller_setup import (
    CLUSTER,
    Scene,
    clusters,
    mirroring,
    running,
)
from virtual_node.translate.pods.api_server import Endpoint, name_of

pytestmark = pytest.mark.looptime
KEY = f"shop/{name_of(CLUSTER)}"
FAR = Endpoint("api.example.com", 6443, ips=["192.0.2.1"])


@asynccontextmanager
async def _scene(endpoint: Endpoint = FAR, **settings: Any) -> AsyncIterator[Scene]:
    async with running(**{"kubernetes_service": "Upper", **settings}) as scene:
        _move(scene, endpoint)
        yield scene


def _move(scene: Scene, endpoint: Endpoint) -> None:
    scene.api_services.endpoint.get = AsyncMock(return_value=endpoint)  # type: ignore[method-assign]


def _addresses(scene: Scene) -> tuple[list[str], int]:
    found = scene.lower.the("endpointslices", KEY)
    return [one["addresses"][0] for one in found["endpoints"]], found["ports"][0]["port"]


def _aliases(scene: Scene, name: str) -> list[str]:
    return [one["ip"] for one in scene.below(name)["spec"].get("hostAliases") or ()]


async def test_a_namespace_with_pods_has_a_service_that_leads_to_the_upper_api():
    """Its pods know its address. It follows the addresses of the URL, and is deleted after the last pod."""
    async with _scene() as scene:
        scene.bind()
        await asyncio.sleep(5)
        assert scene.lower.the("services", KEY)["spec"]["ports"][0]["port"] == 443
        assert _addresses(scene) == (["192.0.2.1"], 6443)
        address = scene.lower.the("services", KEY)["spec"]["clusterIP"]
        scene.bind("later", uid="u-2")
        await asyncio.sleep(5)
        assert _aliases(scene, "web") == _aliases(scene, "later") == [address]
        env = {one["name"]: one["value"] for one in scene.below("later")["spec"]["containers"][0]["env"]}
        assert (env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"]) == ("api.example.com", "6443")
        _move(scene, Endpoint("api.example.com", 6443, ips=["192.0.2.2", "192.0.2.3"]))
        await asyncio.sleep(61)
        assert _addresses(scene) == (["192.0.2.2", "192.0.2.3"], 6443)
        for name in ("web", "later"):
            scene.upper.remove("pods", f"shop/{name}")
            scene.lower.remove("pods", f"shop/{name}")
        await asyncio.sleep(300)
        assert scene.lower.find("services", KEY) is None
        assert scene.lower.find("endpointslices", KEY) is None


async def test_a_deleted_service_gets_its_address_again():
    """Running pods have it in their hosts file. Another address is used if that one is taken."""
    async with _scene() as scene:
        scene.bind()
        await asyncio.sleep(5)
        address = scene.lower.the("services", KEY)["spec"]["clusterIP"]
        scene.lower.remove("services", KEY)
        scene.lower.remove("endpointslices", KEY)
        await asyncio.sleep(5)
        assert scene.lower.the("services", KEY)["spec"]["clusterIP"] == address
        assert _addresses(scene) == (["192.0.2.1"], 6443)
        taken = iter([Invalid("provided IP is already allocated")])
        scene.lower.fault = lambda verb, plural, _key: (
            next(taken, None) if (verb, plural) == ("create", "services") else None
        )
        scene.lower.remove("services", KEY)
        await asyncio.sleep(5)
        assert scene.lower.find("services", KEY) is not None
        assert next(taken, None) is None


async def test_what_others_changed_is_restored_at_once_and_then_with_pauses():
    async with _scene() as scene:
        scene.bind()
        await asyncio.sleep(5)
        lower, made = scene.lower, {}
        for plural in ("services", "endpointslices"):
            found = lower.the(plural, KEY)
            made[plural] = found["metadata"]["labels"], found["metadata"]["annotations"]
        lower.change("services", KEY, spec={"selector": {"app": "x"}})
        for plural in made:
            changes = {
                "annotations": {names.ANNOTATION_UPPER_NAMESPACE: "x"},
                "labels": {names.LABEL_API_SERVER: "x"},
            }
            lower.change(plural, KEY, metadata=changes)
        lower.change("endpointslices", KEY, endpoints=[])
        await asyncio.sleep(5)
        for plural, (labels, annotations) in made.items():
            found = lower.the(plural, KEY)
            assert found["metadata"]["labels"] == labels
            assert found["metadata"]["annotations"] == annotations
        assert not lower.the("services", KEY)["spec"].get("selector")
        assert _addresses(scene) == (["192.0.2.1"], 6443)
        before_all = len(lower.asked("patch", "services"))
        for _ in range(100):
            lower.change("services", KEY, spec={"selector": {"app": "x"}})
            await asyncio.sleep(1)
        assert 3 <= len(lower.asked("patch", "services")) - before_all <= 12


async def test_a_service_that_another_process_recreates_stays():
    """That process has pods in the namespace that have no lower pods yet. Two processes must not undo each other's writes."""
    async with _scene() as scene:
        scene.bind()
        await asyncio.sleep(5)
        theirs = {plural: scene.lower.the(plural, KEY) for plural in ("services", "endpointslices")}
        scene.upper.remove("pods", "shop/web")
        scene.lower.remove("pods", "shop/web")
        await asyncio.sleep(300)
        for plural, body in theirs.items():
            assert scene.lower.find(plural, KEY) is None
            scene.lower.put(plural, {**body, "metadata": {**body["metadata"], "uid": f"{plural}-again"}})
        await asyncio.sleep(300)
        assert all(scene.lower.find(plural, KEY) is not None for plural in theirs)
        scene.bind("later", uid="u-2")
        await asyncio.sleep(5)
        scene.upper.remove("pods", "shop/later")
        scene.lower.remove("pods", "shop/later")
        await asyncio.sleep(300)
        assert all(scene.lower.find(plural, KEY) is None for plural in theirs)


@pytest.mark.parametrize(
    ("endpoint", "settings"),
    [
        (Endpoint("192.0.2.1", 443, ips=["192.0.2.1"]), {}),
        (Endpoint("", 0, problem="no: do this"), {}),
        (FAR, {"kubernetes_service": "Lower"}),
        (FAR, {"kubernetes_service": "Auto"}),  # the scene has no upper identities
    ],
)
async def test_no_service_is_created_if_pods_do_not_need_it(endpoint: Endpoint, settings: dict[str, Any]):
    """An IP address with port 443 needs none, nor does the lower API server."""
    async with _scene(endpoint, **settings) as scene:
        scene.bind()
        await asyncio.sleep(10)
        assert scene.is_below()
        assert scene.lower.find("services", KEY) is None


@pytest.mark.parametrize("plural", ["services", "endpointslices"])
async def test_an_unmanaged_object_of_that_name_is_left_alone(plural: str):
    """Pods start without it, and their event names it. It is not asked for again with each pod."""
    async with _scene() as scene:
        theirs = {
            "metadata": {"name": KEY.partition("/")[2], "namespace": "shop"},
            "spec": {"clusterIP": "1.1.1.1"},
        }
        scene.lower.put(plural, theirs)
        for number in range(4):
            scene.bind(f"web-{number}", uid=f"u-{number}")
            await asyncio.sleep(5)
            assert _aliases(scene, f"web-{number}") == ["192.0.2.1"]
        assert scene.lower.the(plural, KEY)["spec"] == {"clusterIP": "1.1.1.1"}
        assert len([call for call in scene.lower.calls if call[:2] == ("create", plural)]) <= 3
        problem = (await scene.api_services.found("shop")).problem
        assert f"{KEY}, which virtual-node did not create: delete it" in problem


async def test_a_service_that_cannot_be_created_does_not_hold_up_pods():
    """A quota of the namespace may refuse it. It is tried again."""
    async with _scene() as scene:
        scene.lower.fault = lambda verb, plural, _key: (
            Forbidden("exceeded quota") if (verb, plural) == ("create", "services") else None
        )
        scene.bind()
        await asyncio.sleep(10)
        assert _aliases(scene, "web") == ["192.0.2.1"]
        scene.lower.fault = lambda _verb, _plural, _key: None
        await asyncio.sleep(65)
        scene.bind("later", uid="u-2")
        await asyncio.sleep(5)
        assert _aliases(scene, "later") == [scene.lower.the("services", KEY)["spec"]["clusterIP"]]


async def test_a_service_that_was_deleted_while_no_process_ran_gets_its_address_again():
    """Running pods still have it in their hosts file."""
    async with _scene() as scene:
        scene.bind()
        await asyncio.sleep(5)
        address = scene.lower.the("services", KEY)["spec"]["clusterIP"]
    scene.lower.remove("services", KEY)
    later = Scene(scene.upper, scene.lower, kubernetes_service="Upper")
    _move(later, FAR)
    async with mirroring(later):
        await asyncio.sleep(10)
        assert later.lower.the("services", KEY)["spec"]["clusterIP"] == address


async def test_no_service_is_created_in_a_namespace_of_others():
    """The namespace existed and is not adopted, so its pod is refused too."""
    upper, lower = clusters()
    lower.put("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    async with mirroring(Scene(upper, lower, kubernetes_service="Upper")) as scene:
        _move(scene, FAR)
        scene.bind()
        await asyncio.sleep(300)
        assert not scene.is_below()
        assert not lower.asked("create", "services")
        assert not lower.asked("create", "endpointslices")


async def test_a_missing_lower_namespace_gets_its_service_with_its_first_pod():
    """A namespace with refused pods only has no lower namespace; requests for its Service would fail again and again."""
    upper, lower = clusters()
    lower.remove("namespaces", "shop")
    policy = Policy(runtime_classes=[])
    async with mirroring(Scene(upper, lower, kubernetes_service="Upper", policy=policy)) as scene:
        _move(scene, FAR)
        scene.bind(runtimeClassName="unknown")
        await asyncio.sleep(300)
        assert lower.find("namespaces", "shop") is None
        assert not lower.asked("create", "services")
        marks = {"labels": {names.LABEL_UPPER_CLUSTER: CLUSTER}}
        lower.put("namespaces", {"metadata": {"name": "shop", **marks}})  # as the copies of Services do
        await asyncio.sleep(10)
        assert lower.find("services", KEY) is not None
        scene.bind("later", uid="u-2")
        await asyncio.sleep(10)
        assert _aliases(scene, "later") == [lower.the("services", KEY)["spec"]["clusterIP"]]
