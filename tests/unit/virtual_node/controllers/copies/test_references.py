"""A lower pod reads only ConfigMaps and Secrets that the virtual node made, for any reference."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model import names
from tests import objects
from tests.unit.virtual_node.controllers.pod_controller_setup import (
    CLUSTER,
    Scene,
    clusters,
    mirroring,
    running,
)

pytestmark = pytest.mark.looptime

KEY = "shop/native"
OPTIONAL: dict[str, Any] = {"volumes": [{"name": "s", "secret": {"secretName": "native", "optional": True}}]}
MANDATORY: dict[str, Any] = {"volumes": [{"name": "s", "secret": {"secretName": "native"}}]}
PULL_SECRET: dict[str, Any] = {"imagePullSecrets": [{"name": "native"}]}
ENVIRONMENT: dict[str, Any] = {
    "containers": [
        {"name": "main", "image": "i", "envFrom": [{"secretRef": {"name": "native", "optional": True}}]}
    ]
}
WITHOUT_ORIGINAL = pytest.mark.parametrize(
    "spec", [OPTIONAL, PULL_SECRET, ENVIRONMENT], ids=["volume", "pull secret", "environment"]
)


@WITHOUT_ORIGINAL
async def test_a_pod_does_not_start_beside_an_unmanaged_object_of_that_name(spec):
    """The attack: name a Secret of the lower cluster, optional or to pull images, and have no upper one."""
    async with running() as scene:
        scene.lower.put("secrets", objects.secret())
        scene.bind(**spec)
        await asyncio.sleep(120)
        assert not scene.is_below()
        assert [reason for reason, _ in scene.events] == ["DependencyConflict"]
        assert scene.lower.the("secrets", KEY)["data"] == {"a": "cGFzc3dvcmQ="}


@WITHOUT_ORIGINAL
async def test_the_name_of_a_missing_object_is_reserved_before_the_pod_starts(spec):
    """An unmanaged object created later finds the name taken, so the pod never reads it."""
    async with running() as scene:
        scene.bind(**spec)
        await asyncio.sleep(1)
        created = [(plural, key) for verb, plural, key in scene.lower.calls if verb == "create"]
        assert created.index(("secrets", KEY)) < created.index(("pods", "shop/web"))
        held = scene.lower.the("secrets", KEY)
        assert not held.get("data")
        assert names.LABEL_UPPER_CLUSTER in held["metadata"]["labels"]


def _waiting(reason: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason}} if reason else {"running": {}}
    container = {
        "name": "main",
        "image": "i",
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": state,
    }
    return {"phase": "Pending", "containerStatuses": [container]}


@pytest.mark.parametrize(
    ("wanted", "missing"),
    [
        (["native"], "native"),
        (["there"], ""),
        (["native", "there", "other"], "native, other"),
        (["", "there"], ""),
        ([], ""),
    ],
)
async def test_missing_pull_secrets_are_reported_like_by_a_kubelet(wanted, missing):
    """The lower kubelet finds placeholders, so it writes no event. Others of optional references have no event there either."""
    async with running() as scene:
        scene.upper.put("secrets", objects.secret("there"))
        scene.bind(**OPTIONAL, imagePullSecrets=[{"name": name} for name in wanted])
        await asyncio.sleep(10)
        scene.lower.put("pods", scene.below() | {"status": _waiting("ErrImagePull")})
        await asyncio.sleep(60)
        text = f"Unable to retrieve some image pull secrets ({missing}); attempting to pull the image may not succeed."
        assert scene.events == ([("FailedToRetrieveImagePullSecret", text)] if missing else [])


@pytest.mark.parametrize(
    ("reasons", "failures"),
    [
        (["ContainerCreating", ""], 0),
        (["InvalidImageName"], 0),
        (["ErrImagePull", "ImagePullBackOff", "ContainerCreating"], 1),
        (["ErrImagePull", "ImagePullBackOff", "ErrImagePull"], 2),
        (["ImagePullBackOff", "ImagePullBackOff"], 1),
    ],
    ids=["pulled", "not pulled", "back-off", "two attempts", "attempt unseen"],
)
async def test_missing_pull_secrets_are_reported_with_each_failed_pull(reasons, failures):
    """A kubelet of 1.37 reports them only then, because the node may have the image."""
    async with running() as scene:
        scene.bind(**PULL_SECRET)
        await asyncio.sleep(10)
        for number, reason in enumerate(reasons):
            status = _waiting(reason) | {"message": str(number)}
            scene.lower.put("pods", scene.below() | {"status": status})
            await asyncio.sleep(60)
        assert [reason for reason, _ in scene.events] == ["FailedToRetrieveImagePullSecret"] * failures


async def test_an_original_created_later_fills_the_placeholder():
    """A kubelet mounts an optional Secret when it appears."""
    async with running() as scene:
        scene.bind(**OPTIONAL)
        await asyncio.sleep(1)
        scene.upper.put("secrets", objects.secret())
        await asyncio.sleep(1)
        filled = scene.lower.the("secrets", KEY)
        assert filled["data"] == {"a": "cGFzc3dvcmQ="}
        assert names.ANNOTATION_PLACEHOLDER not in filled["metadata"]["annotations"]


async def test_a_placeholder_is_deleted_after_the_last_pod():
    async with running() as scene:
        scene.bind(**OPTIONAL)
        await asyncio.sleep(1)
        scene.upper.remove("pods", "shop/web")
        scene.lower.remove("pods", "shop/web")
        await asyncio.sleep(120)
        assert scene.lower.find("secrets", KEY) is None


async def test_a_copy_is_deleted_whose_last_pod_goes_while_its_object_is_read(monkeypatch):
    """The end of the read must not count the object as referenced again."""
    async with running() as scene:
        scene.upper.put("secrets", objects.secret())
        uid = scene.bind(**OPTIONAL)["metadata"]["uid"]
        await asyncio.sleep(1)
        read = scene.dependencies._watches.get

        async def get(key):
            source = await read(key)
            scene.dependencies.forget_pod(uid)
            return source

        monkeypatch.setattr(scene.dependencies._watches, "get", get)
        scene.upper.remove("secrets", KEY)
        await asyncio.sleep(1)
        monkeypatch.undo()
        scene.upper.remove("pods", "shop/web")
        scene.lower.remove("pods", "shop/web")
        await asyncio.sleep(120)
        assert scene.lower.find("secrets", KEY) is None


async def test_a_placeholder_stays_while_the_lower_pod_ends():
    """The name must stay reserved during a long grace period."""
    async with running() as scene:
        scene.bind(**OPTIONAL)
        await asyncio.sleep(1)
        scene.upper.remove("pods", "shop/web")  # the lower pod has 30 s of grace, which the test extends
        await asyncio.sleep(300)
        assert scene.lower.find("secrets", KEY) is not None
        scene.lower.remove("pods", "shop/web")
        await asyncio.sleep(120)
        assert scene.lower.find("secrets", KEY) is None


async def test_a_deleted_placeholder_is_created_again():
    """The pod may start a container at any time."""
    async with running() as scene:
        scene.bind(**OPTIONAL)
        await asyncio.sleep(1)
        scene.lower.remove("secrets", KEY)
        await asyncio.sleep(1)
        assert scene.lower.find("secrets", KEY) is not None


async def test_a_copy_stays_while_a_pod_needs_it():
    """A kubelet keeps the files of a mandatory volume after its Secret is deleted; the name must stay reserved."""
    async with running() as scene:
        scene.upper.put("secrets", objects.secret())
        scene.bind(**MANDATORY)
        await asyncio.sleep(1)
        scene.upper.remove("secrets", KEY)
        await asyncio.sleep(120)
        assert scene.lower.the("secrets", KEY)["data"] == {"a": "cGFzc3dvcmQ="}
        scene.upper.remove("pods", "shop/web")
        scene.lower.remove("pods", "shop/web")
        await asyncio.sleep(120)
        assert scene.lower.find("secrets", KEY) is None


async def test_a_missing_mandatory_object_gets_no_placeholder():
    """Its pod waits and reads nothing."""
    async with running() as scene:
        scene.bind(**MANDATORY)
        await asyncio.sleep(10)
        assert scene.lower.find("secrets", KEY) is None
        assert not scene.is_below()


async def test_a_running_pod_of_an_earlier_release_gets_its_placeholders():
    """Earlier releases started pods beside missing objects; an upgrade reserves the names and stops no pod."""
    upper, lower = clusters()
    first = Scene(upper, lower)
    async with mirroring(first):
        first.bind(**OPTIONAL)
        await asyncio.sleep(1)
    lower.remove("secrets", KEY)
    async with mirroring(Scene(upper, lower)) as scene:
        await asyncio.sleep(1)
        assert lower.find("secrets", KEY) is not None
        assert scene.is_below()


async def test_a_debug_container_waits_for_its_references():
    """The attack: add one to a running pod that names an unmanaged Secret. Others are added nevertheless."""
    async with running() as scene:
        scene.lower.put("secrets", objects.secret())
        scene.bind()
        await asyncio.sleep(1)
        thief = {"name": "thief", "image": "t", "envFrom": [{"secretRef": {"name": "native"}}]}
        early = {"name": "early", "image": "t", "envFrom": [{"secretRef": {"name": "later"}}]}
        plain = {"name": "plain", "image": "t"}
        scene.upper.change("pods", "shop/web", spec={"ephemeralContainers": [thief, early, plain]})
        await asyncio.sleep(30)
        assert [one["name"] for one in scene.below()["spec"]["ephemeralContainers"]] == ["plain"]
        (event,) = scene.events
        assert event[0] == "Failed"
        assert "Debug container thief waits" in event[1]
        scene.upper.put("secrets", {**objects.secret(), "metadata": {"name": "later", "namespace": "shop"}})
        await asyncio.sleep(5)
        upper_pods_by_lower_name = [one["name"] for one in scene.below()["spec"]["ephemeralContainers"]]
        assert sorted(upper_pods_by_lower_name) == ["early", "plain"]
        scene.upper.put("secrets", objects.secret())
        await asyncio.sleep(5)
        assert len(scene.below()["spec"]["ephemeralContainers"]) == 2
        assert scene.events[-1][0] == "DependencyConflict"


FORGED = {
    "labels": {names.LABEL_TOKEN_OF: "victim", "app": "web", "always.virtual-node.io/x": "true"},
    "annotations": {names.ANNOTATION_TOKEN_EXPIRES: "2099-01-01T00:00:00Z", "note": "kept"},
}


async def test_no_reserved_label_is_copied_from_a_users_object():
    """The attack (M2): the virtual node would read it in the lower cluster as its own label."""
    async with running() as scene:
        body = objects.secret()
        body["metadata"] |= FORGED
        scene.upper.put("secrets", body)
        scene.bind(**MANDATORY)
        await asyncio.sleep(1)
        copy = scene.lower.the("secrets", KEY)["metadata"]
        assert names.LABEL_TOKEN_OF not in copy["labels"]
        assert "always.virtual-node.io/x" not in copy["labels"]
        assert names.ANNOTATION_TOKEN_EXPIRES not in copy["annotations"]
        assert (copy["labels"]["app"], copy["annotations"]["note"]) == ("web", "kept")


async def test_a_reserved_label_copied_by_an_earlier_release_is_removed():
    """An upgrade repairs forged copies, and they follow their originals again."""
    async with running() as scene:
        body = objects.secret()
        scene.upper.put("secrets", body)
        scene.bind(**MANDATORY)
        await asyncio.sleep(1)
        scene.lower.change("secrets", KEY, metadata=FORGED)
        await asyncio.sleep(1)
        copy = scene.lower.the("secrets", KEY)["metadata"]
        assert names.LABEL_TOKEN_OF not in copy["labels"]
        assert names.ANNOTATION_TOKEN_EXPIRES not in copy["annotations"]


async def test_a_users_secret_does_not_replace_the_tokens_of_a_pod():
    """The attack: a Secret with the name of another pod's token Secret, and with the ownership label."""
    async with running() as scene:
        victim = "12345678-aaaa"
        scene.bind("native", uid=victim)
        tokens = objects.secret(data={"a": "dG9rZW4="})
        name = tokens["metadata"]["name"] = f"native-token-{victim[:8]}"
        ours = {names.LABEL_UPPER_CLUSTER: CLUSTER, names.LABEL_NODE: "vn", names.LABEL_TOKEN_OF: victim}
        tokens["metadata"]["labels"] = ours
        scene.lower.put("secrets", tokens)
        scene.upper.put("secrets", {**objects.secret(), "metadata": {"name": name, "namespace": "shop"}})
        scene.bind(volumes=[{"name": "s", "secret": {"secretName": name}}])
        await asyncio.sleep(10)
        assert scene.lower.the("secrets", f"shop/{name}")["data"] == {"a": "dG9rZW4="}
        assert not scene.is_below()


async def test_a_copy_that_is_deleted_before_the_cache_shows_it_is_created_again():
    """The watch is held, and its history is compacted, so no event reports the copy."""
    async with running() as scene:
        scene.upper.put("secrets", objects.secret())
        scene.lower.held.add("secrets")
        scene.bind(**MANDATORY)
        await asyncio.sleep(60)
        scene.lower.remove("secrets", KEY)
        scene.lower.server.floor = scene.lower.server.version
        scene.lower.release("secrets")
        await asyncio.sleep(60)
        assert scene.lower.find("secrets", KEY) is not None
