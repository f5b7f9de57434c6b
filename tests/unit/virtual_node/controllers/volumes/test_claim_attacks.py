"""Attacks by claims of upper users never reach volumes and namespaces of others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.namespace_map import NamespaceConfig
from controller_runtime.objects import from_dict
from tests.fakes.apiserver.storage import Body
from tests.unit.virtual_node.controllers.pod_controller_setup import clusters, pod, running
from tests.unit.virtual_node.controllers.volumes.test_facade import KEY, OURS, VolumeScene, claim, following
from virtual_node.translate.storage import binder_pod

pytestmark = pytest.mark.looptime

CHOSEN = {names.ANNOTATION_SELECTED_NODE: "vn"}
USES = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
CLAIMS = "persistentvolumeclaims"


def waiting(*names_of_claims: str, namespace: str = "shop") -> Body:
    """Return an upper pod that is not bound yet."""
    volumes = [
        {"name": f"v-{name}", "persistentVolumeClaim": {"claimName": name}} for name in names_of_claims
    ]
    body = pod("web", uid="u-1", volumes=volumes, nodeName="")
    body["metadata"]["namespace"] = namespace
    return body


async def problems(scene: VolumeScene, *, volumes: Any = USES) -> list[str]:
    """Return the reasons why a pod of the virtual node waits."""
    body = scene.scene.bind(volumes=volumes)
    return [problem.event_reason for problem in await scene.volumes.ensure(from_dict(body), body)]


async def test_a_pod_waits_while_its_claims_lower_name_is_taken():
    """The attack: name an upper claim like an unmanaged lower one, and have a pod mount its volume."""
    upper, lower = clusters()
    lower.put(CLAIMS, claim(uid="native", bound_to="pv-native", status={"phase": "Bound"}))
    upper.put(CLAIMS, claim(uid="c-1"))
    async with following(scene := VolumeScene(upper, lower)):
        assert await problems(scene) == ["ClaimConflict"]
        assert [reason for reason, _ in scene.scene.events] == ["ClaimConflict"]
        lower.remove(CLAIMS, KEY)
        await asyncio.sleep(1)
        assert await problems(scene) == []


async def test_a_pod_waits_while_the_lower_claim_is_that_of_an_earlier_claim():
    """An orphan keeps its data; a new claim of its name must not get it."""
    upper, lower = clusters()
    orphan = {**OURS, names.LABEL_UPPER_UID: "earlier"}
    lower.put(CLAIMS, claim(uid="l-1", bound_to="pv-1", labels=orphan, status={"phase": "Bound"}))
    upper.put(CLAIMS, claim(uid="c-1"))
    async with following(scene := VolumeScene(upper, lower)):
        assert await problems(scene) == ["ClaimConflict"]


async def test_a_pod_waits_for_a_claim_with_another_selected_node():
    """No lower claim is created then, so one of its name is not its own."""
    upper, lower = clusters()
    lower.put(CLAIMS, claim(uid="native"))
    upper.put(CLAIMS, claim(uid="c-1", annotations={names.ANNOTATION_SELECTED_NODE: "worker-1"}))
    async with following(scene := VolumeScene(upper, lower)):
        assert await problems(scene) == ["FailedMount"]


async def test_a_pod_with_claims_is_refused_where_claims_are_not_mirrored():
    """Without PVControllers its claim's name would mean an unmanaged lower claim."""
    async with running() as scene:
        scene.bind(volumes=USES)
        await asyncio.sleep(10)
        assert not scene.is_below()
        ((reason, message),) = scene.events
        assert reason == "NotMirrored"
        assert "add PVControllers to enableControllers" in message


@pytest.mark.parametrize("namespace", ["bank", "kube-system"])
async def test_an_annotation_creates_nothing_in_a_forbidden_namespace(namespace):
    """The attack (M3): every user may write selected-node on a claim, and create a pod that waits for it."""
    upper, lower = clusters()
    scene = VolumeScene(upper, lower)
    config: NamespaceConfig = scene.scene.namespaces._config
    config.allowed = ["shop", "kube-*"]
    upper.put(CLAIMS, claim(uid="c-1", annotations=CHOSEN, namespace=namespace))
    upper.put("pods", waiting("data", namespace=namespace))
    async with following(scene):
        await asyncio.sleep(120)
    assert [call for call in lower.calls if call[0] == "create"] == []
    assert upper.asked("patch", CLAIMS) == []


@pytest.mark.parametrize("is_awaited", [True, False])
async def test_a_selected_node_counts_only_while_a_pod_waits_for_the_claim(is_awaited):
    """A scheduler selects a node for a pod; without a pod a user wrote the annotation."""
    upper, lower = clusters()
    upper.put(CLAIMS, claim(uid="c-1", annotations=CHOSEN))
    if is_awaited:
        upper.put("pods", waiting("data"))
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(60)
    assert (lower.find(CLAIMS, KEY) is not None) is is_awaited


async def test_a_placeholder_uses_no_unmanaged_claim():
    """A pod names two claims; the lower name of one is taken."""
    upper, lower = clusters()
    lower.put(CLAIMS, {**claim(uid="native"), "metadata": {"name": "native", "namespace": "shop"}})
    upper.put(CLAIMS, claim(uid="c-1", annotations=CHOSEN))
    second = claim(uid="c-2", annotations=CHOSEN)
    second["metadata"]["name"] = "native"
    upper.put(CLAIMS, second)
    upper.put("pods", waiting("data", "native"))
    async with following(scene := VolumeScene(upper, lower)):
        await asyncio.sleep(60)
        assert lower.find(CLAIMS, KEY) is not None
        assert lower.find("pods", f"shop/{binder_pod.binder_name('u-1')}") is None
        assert {reason for reason, _ in scene.scene.events} == {"ClaimConflict"}


SNAPSHOT = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "nightly"}
ELSEWHERE = {"kind": "PersistentVolumeClaim", "name": "ours", "namespace": "bank"}


@pytest.mark.parametrize(
    "source",
    [
        {"dataSource": {"kind": "PersistentVolumeClaim", "name": "native"}},
        {"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "native"}},
        {"dataSource": SNAPSHOT},
        {"dataSourceRef": SNAPSHOT},
        {"dataSourceRef": ELSEWHERE},
    ],
    ids=["claim", "claim by reference", "snapshot", "snapshot by reference", "another namespace"],
)
async def test_no_volume_of_others_is_cloned(source):
    """The attack: a claim with the name of an unmanaged lower claim or snapshot as its data source."""
    upper, lower = clusters()
    lower.put(CLAIMS, {**claim(uid="native"), "metadata": {"name": "native", "namespace": "shop"}})
    body = claim(uid="c-1")
    body["spec"] |= source
    upper.put(CLAIMS, body)
    async with following(scene := VolumeScene(upper, lower)):
        assert await problems(scene) == ["ProvisioningFailed"]
        assert lower.find(CLAIMS, KEY) is None


async def test_an_owned_claim_is_cloned():
    """Its lower claim has the same name."""
    upper, lower = clusters()
    source = claim(uid="c-0")
    source["metadata"]["name"] = "ours"
    upper.put(CLAIMS, source)
    body = claim(uid="l-0", labels={**OURS, names.LABEL_UPPER_UID: "c-0"}, bound_to="pv-0")
    body["metadata"]["name"] = "ours"
    lower.put(CLAIMS, body)
    clone = claim(uid="c-1")
    clone["spec"]["dataSource"] = {"kind": "PersistentVolumeClaim", "name": "ours"}
    upper.put(CLAIMS, clone)
    async with following(scene := VolumeScene(upper, lower)):
        assert await problems(scene) == []
        assert lower.the(CLAIMS, KEY)["spec"]["dataSource"]["name"] == "ours"


@pytest.mark.parametrize("has_lower_claim", [False, True])
@pytest.mark.parametrize("adopt", [False, True])
async def test_a_namespace_that_is_not_adopted_gets_neither_claim_nor_placeholder(adopt, has_lower_claim):
    """A claim from before an upgrade that waits for its pod gets no placeholder either."""
    upper, lower = clusters()
    lower.put("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    upper.put(CLAIMS, claim(uid="c-1", annotations=CHOSEN))
    upper.put("pods", waiting("data"))
    if has_lower_claim:
        lower.put(CLAIMS, claim(uid="l-1", labels=OURS))
    async with following(VolumeScene(upper, lower, namespaces=NamespaceConfig(adopt=adopt))):
        await asyncio.sleep(60)
        assert bool(lower.asked("create", CLAIMS)) is (adopt and not has_lower_claim)
        assert bool(lower.asked("create", "pods")) is adopt


REFUSED = [{"priorityClassName": "system-node-critical"}, {"hostNetwork": True}]


@pytest.mark.parametrize("spec", REFUSED)
async def test_a_pod_that_the_policy_refuses_gets_neither_claim_nor_namespace(spec):
    """The upper scheduler has selected the virtual node; the lower cluster will never admit the pod."""
    upper, lower = clusters()
    upper.put(CLAIMS, claim(uid="c-1", annotations=CHOSEN))
    body = waiting("data")
    body["spec"] |= spec
    upper.put("pods", body)
    async with following(scene := VolumeScene(upper, lower)):
        await asyncio.sleep(60)
        assert [reason for reason, _ in scene.scene.events] == ["ProvisioningFailed"]
    assert [call for call in lower.calls if call[0] == "create"] == []
    assert names.ANNOTATION_SELECTED_NODE not in upper.the(CLAIMS, KEY)["metadata"].get("annotations", {})


async def test_release_of_one_pod_leaves_other_pods_waiting_for_its_claim():
    """Two pods wait for one claim; the first is deleted, then the claim can be created."""
    upper, lower = clusters()
    lower.put(CLAIMS, claim(uid="native"))
    upper.put(CLAIMS, claim(uid="c-1"))
    scene = VolumeScene(upper, lower)
    woken: list[str] = []
    scene.volumes._claims.wake = woken.append
    async with following(scene):
        for uid in ("u-1", "u-2"):
            body = pod(f"web-{uid}", uid=uid, volumes=USES)
            await scene.volumes.ensure(from_dict(body), body)
            await asyncio.sleep(1)
        scene.volumes.forget_pod("u-1")
        await asyncio.sleep(1)
        woken.clear()
        lower.remove(CLAIMS, KEY)
        await asyncio.sleep(10)
        assert "u-2" in woken
        assert "u-1" not in woken
        scene.volumes.forget_pod("u-2")
        users = scene.volumes._claims._users
        assert not users._users
        assert not users._blocked
