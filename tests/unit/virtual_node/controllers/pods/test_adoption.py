"""Which existing lower namespaces are used: owned and adopted ones; existing pods keep theirs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.namespace_map import NamespaceConfig
from controller_runtime.errors import AlreadyExists, Forbidden, NotFound
from tests import objects
from tests.fakes.apiserver.storage import Body
from tests.unit.virtual_node.controllers.cluster import Cluster
from tests.unit.virtual_node.controllers.pod_controller_setup import (
    CLUSTER,
    Scene,
    clusters,
    mirroring,
    running,
)

pytestmark = pytest.mark.looptime

SETTINGS: dict[str, Any] = {"volumes": [{"name": "c", "configMap": {"name": "settings"}}]}
MARKS = {
    "labels": {names.LABEL_UPPER_CLUSTER: CLUSTER},
    "annotations": {
        names.ANNOTATION_UPPER_NAMESPACE: "shop",
        names.ANNOTATION_MADE_FOR: f"{CLUSTER}/shop",
    },
}


def namespace(name: str = "shop", **metadata: Any) -> Body:
    """Return a namespace, unmanaged unless the labels differ."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, **metadata}}


def with_namespace(**metadata: Any) -> tuple[Cluster, Cluster]:
    """Make two clusters; the lower one has namespace shop already."""
    upper, lower = clusters()
    lower.put("namespaces", namespace(**metadata))
    return upper, lower


def admitted(scene: Scene, name: str = "web") -> tuple[str, str]:
    """Return status and reason of the condition about the lower cluster's admission."""
    conditions = scene.above(name)["status"].get("conditions") or ()
    found = [one for one in conditions if one["type"] == names.CONDITION_ADMITTED]
    return (found[0]["status"], found[0]["reason"]) if found else ("", "")


async def test_pod_does_not_use_an_unmanaged_namespace():
    """Event and condition name the namespace, the cluster, the setting and the alternative; nothing is created."""
    upper, lower = with_namespace()
    async with mirroring(Scene(upper, lower)) as scene:
        upper.put("configmaps", objects.config_map(data={"a": "1"}))
        scene.bind(**SETTINGS)
        await asyncio.sleep(120)
        assert not scene.is_below()
        assert lower.find("configmaps", "shop/settings") is None
        assert admitted(scene) == ("False", "NotAllowed")
        ((reason, message),) = scene.events
        assert reason == "NamespaceNotAdopted"
        assert "Namespace shop exists in lower cluster lower1 and was not created by virtual-node" in message
        assert "Create the pod in another namespace" in message
        assert "clusters[].namespaces.adopt" in message
        assert "namespaces.prefix" in message


@pytest.mark.parametrize(
    ("adopt", "is_used"),
    [(True, True), (False, False), ([], False), (["shop"], True), (["sh*"], True), (["team-*"], False)],
)
async def test_existing_namespace_is_used_where_adopt_matches(adopt, is_used):
    """By shell patterns of lower names; an adopted one is not changed."""
    upper, lower = with_namespace()
    async with mirroring(Scene(upper, lower, namespaces=NamespaceConfig(adopt=adopt))) as scene:
        scene.bind()
        await asyncio.sleep(10)
        assert scene.is_below() is is_used
        assert not lower.asked("patch", "namespaces")


@pytest.mark.parametrize(
    ("labels", "annotations", "whose"),
    [
        ({names.LABEL_UPPER_CLUSTER: "upper-2"}, {}, "another upper cluster (upper-2)"),
        (MARKS["labels"], {names.ANNOTATION_UPPER_NAMESPACE: "market"}, "upper namespace market, not shop"),
        ({}, {names.ANNOTATION_MADE_FOR: f"{CLUSTER}/market"}, "upper namespace market, not shop"),
        ({}, {names.ANNOTATION_MADE_FOR: "upper-2/shop"}, "another upper cluster (upper-2)"),
    ],
)
async def test_namespace_of_another_upper_one_is_refused_even_if_adopted(labels, annotations, whose):
    """Two upper namespaces never share a lower one, whatever the configuration adopts."""
    upper, lower = with_namespace(labels=labels, annotations=annotations)
    async with mirroring(Scene(upper, lower, namespaces=NamespaceConfig(adopt=True))) as scene:
        scene.bind()
        await asyncio.sleep(10)
        assert not scene.is_below()
        ((reason, message),) = scene.events
        assert reason == "NamespaceConflict"
        assert whose in message


async def test_unmapped_namespace_does_not_use_the_mapped_one_of_another():
    """Validation refuses it where it can; ``allowed`` may have hidden it."""
    upper, lower = clusters()
    lower.put("namespaces", namespace("market"))
    config = NamespaceConfig(map={"shop": "market"}, adopt=True)
    async with mirroring(Scene(upper, lower, namespaces=config)) as scene:
        scene.bind(namespace="market")
        scene.bind("one", uid="u-2")
        await asyncio.sleep(10)
        assert lower.find("pods", "market/one") is not None
        assert lower.find("pods", "market/web") is None
        assert [reason for reason, _ in scene.events] == ["NamespaceConflict"]


@pytest.mark.parametrize(
    "left",
    [
        {"labels": MARKS["labels"]},
        {"annotations": {names.ANNOTATION_MADE_FOR: f"{CLUSTER}/shop"}},
        {"labels": MARKS["labels"], "annotations": {names.ANNOTATION_UPPER_NAMESPACE: "shop"}},
        {**MARKS, "labels": {names.LABEL_UPPER_CLUSTER: "meddled"}},
        {**MARKS, "annotations": {**MARKS["annotations"], names.ANNOTATION_UPPER_NAMESPACE: "meddled"}},
        {**MARKS, "annotations": {**MARKS["annotations"], names.ANNOTATION_MADE_FOR: "meddled"}},
    ],
    ids=["annotations removed", "label removed", "earlier release", "label", "namespace", "made-for"],
)
async def test_owned_namespace_that_lost_labels_gets_them_again(left):
    """The remaining ones prove the ownership."""
    upper, lower = with_namespace(**left)
    async with mirroring(Scene(upper, lower)) as scene:
        scene.bind()
        await asyncio.sleep(10)
        assert scene.is_below()
        metadata = lower.the("namespaces", "shop")["metadata"]
        assert metadata["labels"].items() >= MARKS["labels"].items()
        assert metadata["annotations"].items() >= MARKS["annotations"].items()


async def test_namespace_with_unrestorable_labels_is_used():
    """The account may not patch namespaces; an earlier release wrote fewer labels."""
    upper, lower = with_namespace(labels=MARKS["labels"])
    lower.fault = lambda verb, plural, _key: (
        Forbidden("no right", code=403) if (verb, plural) == ("patch", "namespaces") else None
    )
    async with mirroring(Scene(upper, lower)) as scene:
        scene.bind()
        await asyncio.sleep(10)
        assert scene.is_below()


async def test_namespace_created_concurrently_by_another_user_is_not_used():
    """It did not exist at the read, and exists at the creation."""
    upper, lower = clusters()
    lower.remove("namespaces", "shop")
    async with mirroring(Scene(upper, lower)) as scene:
        create = scene.lower.create

        async def slow(resource: Any, body: Any, **more: Any) -> Body:
            if resource.plural == "namespaces" and scene.lower.find("namespaces", "shop") is None:
                scene.lower.put("namespaces", namespace())
            return await create(resource, body, **more)

        scene.lower.create = slow  # type: ignore[method-assign]
        scene.bind()
        await asyncio.sleep(10)
        assert not scene.is_below()
        assert [reason for reason, _ in scene.events] == ["NamespaceNotAdopted"]


async def test_pod_starts_when_the_unmanaged_namespace_is_deleted():
    """Without a restart."""
    upper, lower = with_namespace()
    async with mirroring(Scene(upper, lower)) as scene:
        scene.bind()
        await asyncio.sleep(10)
        lower.remove("namespaces", "shop")
        await asyncio.sleep(120)
        assert scene.is_below()
        assert names.LABEL_UPPER_CLUSTER in lower.the("namespaces", "shop")["metadata"]["labels"]


async def test_running_pods_keep_a_namespace_that_is_no_longer_adopted():
    """The upgrade from a release that used every namespace of the same name: only new pods wait."""
    upper, lower = with_namespace()
    upper.put("configmaps", objects.config_map(data={"a": "1"}))
    async with mirroring(Scene(upper, lower, namespaces=NamespaceConfig(adopt=True))) as before:
        before.bind("old", uid="u-1", **SETTINGS)
        await asyncio.sleep(10)
        lower.change("pods", "shop/old", status={"phase": "Running"})
        await asyncio.sleep(10)
    async with mirroring(Scene(upper, lower)) as after:
        await asyncio.sleep(10)
        upper.put("configmaps", objects.config_map(data={"a": "2"}))
        await asyncio.sleep(10)
        assert lower.the("configmaps", "shop/settings")["data"] == {"a": "2"}
        lower.remove("configmaps", "shop/settings")
        upper.change("pods", "shop/old", metadata={"labels": {"new": "label"}})
        await asyncio.sleep(10)
        assert lower.the("configmaps", "shop/settings")["data"] == {"a": "2"}
        assert after.below("old")["metadata"]["labels"]["new"] == "label"
        after.bind("new", uid="u-2", **SETTINGS)
        await asyncio.sleep(120)
        assert not after.is_below("new")
        assert after.above("old")["status"]["phase"] == "Running"
        assert [reason for reason, _ in after.events] == ["NamespaceNotAdopted"]
        upper.change("pods", "shop/old", metadata={"deletionTimestamp": "2026-01-01T00:01:00Z"})
        await asyncio.sleep(10)
        assert "deletionTimestamp" in after.below("old")["metadata"]
    async with mirroring(Scene(upper, lower, namespaces=NamespaceConfig(adopt=["shop"]))) as adopted:
        await asyncio.sleep(10)
        assert adopted.is_below("new")


async def test_server_with_contradictory_answers_is_backed_off():
    """A hostile lower API server answers 404 to every read and 409 to every creation."""
    async with running() as scene:

        def hostile(verb: str, plural: str, _key: str) -> Exception | None:
            answers = {"get": NotFound("no", code=404), "create": AlreadyExists("yes", code=409)}
            return answers.get(verb) if plural == "namespaces" else None

        scene.lower.fault = hostile
        scene.bind()
        await asyncio.sleep(60)
        assert 1 < len(scene.lower.asked("create", "namespaces")) < 50
        scene.lower.fault = lambda _verb, _plural, _key: None
        await asyncio.sleep(60)
        assert scene.is_below()
