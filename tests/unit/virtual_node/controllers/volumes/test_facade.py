"""Claims and volumes between two clusters in memory: no data is deleted because of a stale cache."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock, patch

import pytest

from clusterset.config import KNOWN_CONTROLLERS, VolumeConfig
from clusterset.model import names
from clusterset.model.autoscaling import Autoscaling, Shape
from clusterset.model.namespace_map import NamespaceConfig
from clusterset.model.policy.config import MetadataRules, Policy
from controller_runtime import resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.errors import ApiError, Forbidden, Invalid, Unavailable
from controller_runtime.objects import from_dict
from controller_runtime.store import Store
from controller_runtime.util.rate_limiter import BURST
from tests import objects
from tests.background import working
from tests.fakes.apiserver.storage import Body
from tests.unit.virtual_node.controllers.cluster import Cluster
from tests.unit.virtual_node.controllers.pod_controller_setup import (
    CLUSTER,
    Scene,
    clusters,
    lower_namespace,
    pod,
)
from virtual_node.controllers.volumes.binder import VolumeBinder
from virtual_node.controllers.volumes.caches import VolumeCaches
from virtual_node.controllers.volumes.facade import Volumes
from virtual_node.translate.storage import binder_pod, pv, pvc

pytestmark = pytest.mark.looptime

KEY = "shop/data"
OURS = {names.LABEL_UPPER_CLUSTER: CLUSTER, names.LABEL_UPPER_UID: "c-1", names.LABEL_NODE: "vn"}
MIRROR = "lower1-pv-1"


class VolumeScene:
    """The controllers of claims and volumes."""

    def __init__(self, upper: Cluster, lower: Cluster, **settings: Any) -> None:
        self.upper, self.lower = upper, lower
        self.scene = Scene(upper, lower, enable_controllers=list(KNOWN_CONTROLLERS), **settings)
        caches = self.scene.all_caches
        self.nodes = caches.lower_nodes
        self.volumes = Volumes(
            self.scene.context, caches, namespaces=self.scene.namespaces, wake=lambda _uid: None
        )

    async def run(self) -> None:
        """Follow both clusters until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in (self.nodes, *self.scene.caches.upper.values(), *self.scene.context.proving):
                group.create_task(informer.run())
            group.create_task(self.volumes.run())


@contextlib.asynccontextmanager
async def following(scene: VolumeScene) -> AsyncIterator[None]:
    """Run controllers until the end of the test."""
    task = asyncio.create_task(scene.run())
    try:
        await asyncio.sleep(1)
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def claim(*, uid: str, status: dict[str, Any] | None = None, bound_to: str = "", **metadata: Any) -> Body:
    """A PersistentVolumeClaim, which names the volume ``bound_to``."""
    return objects.claim(uid=uid, volume=bound_to, status=status, metadata=metadata)


def put_waiting_pod(upper: Cluster) -> None:
    """Create a claim for which the virtual node is selected, and the pod that waits for it."""
    upper.put(
        "persistentvolumeclaims",
        claim(uid="c-1", finalizers=[], annotations={names.ANNOTATION_SELECTED_NODE: "vn"}),
    )
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    upper.put("pods", pod("web", uid="u-1", nodeName="", volumes=volumes))


def mirror(name: str = MIRROR, *, cluster: str = "lower1", **spec: Any) -> Body:
    """The mirror of a lower volume."""
    handle = f"{cluster}/{name.removeprefix(f'{cluster}-')}"
    body = objects.volume(name, csi={"driver": pv.DRIVER, "volumeHandle": handle}, **spec)
    body["metadata"]["labels"] = {names.LABEL_LOWER_CLUSTER: cluster}
    return body


def storage_class(name: str, provisioner: str = "kubernetes.io/no-provisioner") -> Body:
    """A StorageClass of the upper cluster."""
    head = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name}}
    return {**head, "provisioner": provisioner}


def publishing(upper: Cluster, lower: Cluster, *classes: str) -> VolumeScene:
    """Return the controllers with ``volumes.published``."""
    scene = VolumeScene(upper, lower)
    scene.scene.context.config.volumes.published = [*classes]
    return scene


async def test_an_upper_outage_at_the_start_ends_nothing():
    """The CSIDriver is created when the upper apiserver answers again; pods without volumes are not affected."""
    upper, lower = clusters()
    upper.fault = lambda _verb, plural, _key: Unavailable("down") if plural == "csidrivers" else None
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(10)
        upper.fault = lambda _verb, _plural, _key: None
        await asyncio.sleep(60)
        assert upper.find("csidrivers", pv.DRIVER) is not None


async def test_uses_the_csi_driver_that_the_chart_made():
    """Then there is no right to create one; older rights lack the right to read, so it is created."""
    for right, is_there in (("create", True), ("get", False)):
        upper, lower = clusters()
        if is_there:
            upper.put("csidrivers", pv.csi_driver())

        def refuse(verb: str, plural: str, _key: str, right: str = right) -> ApiError | None:
            return Forbidden("no", code=403) if (verb, plural) == (right, "csidrivers") else None

        upper.fault = refuse
        async with following(VolumeScene(upper, lower)):
            await asyncio.sleep(10)
            assert upper.find("csidrivers", pv.DRIVER) is not None
            assert len(upper.asked("create", "csidrivers")) == (0 if is_there else 1)


async def test_a_pod_waits_for_unreadable_claims_with_a_limit():
    """With a missing right each pod with a claim would otherwise occupy a worker."""
    upper, lower = clusters()
    upper.fault = lambda _verb, plural, _key: Forbidden("no") if plural == "storageclasses" else None
    scene = VolumeScene(upper, lower)
    async with following(scene):
        pod = scene.scene.bind(volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}])
        with pytest.raises(Unavailable, match="storageclasses"):
            await scene.volumes.ensure(scene.scene.caches.upper["vn"].store.get("x"), pod)  # type: ignore[arg-type]


@pytest.mark.parametrize("phase", ["Bound", "Pending"])
async def test_a_placeholder_does_not_keep_a_claim_that_is_being_deleted(phase):
    """It uses the lower claim, which is protected while it is used: neither would ever be deleted."""
    upper, lower = clusters()
    going: Body = {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 0}
    annotations = {names.ANNOTATION_SELECTED_NODE: "vn"}
    upper.put(
        "persistentvolumeclaims",
        claim(uid="c-1", finalizers=[pvc.FINALIZER], annotations=annotations, **going),
    )
    lower.put(
        "persistentvolumeclaims",
        claim(uid="l-1", labels=OURS, finalizers=[pvc.PROTECTION], status={"phase": phase}),
    )
    placeholder = pod("volume-binder-u-1", uid="b-1", nodeName="node-1")
    placeholder["metadata"] |= {
        "labels": {names.LABEL_UPPER_CLUSTER: CLUSTER, binder_pod.LABEL_BINDER_OF: "u-1"},
        "annotations": {binder_pod.ANNOTATION_CLAIMS: "data", names.ANNOTATION_UPPER_NAMESPACE: "shop"},
    }
    lower.put("pods", placeholder)
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(60)
    assert lower.asked("delete", "pods") == ["shop/volume-binder-u-1"]


async def test_claims_of_a_namespace_that_is_too_large_can_be_deleted():
    """Their finalizers would keep them, and so the namespace would stay too large for ever."""
    upper, lower = clusters()
    scene = VolumeScene(upper, lower)
    scene.scene.context.shared = Mock(stubs=lambda _namespace: 1)
    going: Body = {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 0}
    annotations = {names.ANNOTATION_SELECTED_NODE: "vn"}
    upper.put(
        "persistentvolumeclaims",
        claim(uid="c-1", finalizers=[pvc.FINALIZER], annotations=annotations, **going),
    )
    lower.put("persistentvolumeclaims", claim(uid="l-1", labels=OURS))
    async with following(scene):
        await asyncio.sleep(60)
        assert lower.asked("delete", "persistentvolumeclaims") == [KEY]
        assert upper.asked("patch", "persistentvolumeclaims") == [KEY]


async def test_a_lower_claim_is_deleted_first_though_the_cache_does_not_show_it():
    """Otherwise the upper one would be gone, and the lower one would stay with its volume."""
    upper, lower = clusters()
    async with following(VolumeScene(upper, lower)):
        lower.held.add("persistentvolumeclaims")
        lower.put("persistentvolumeclaims", claim(uid="l-1", labels=OURS, finalizers=[pvc.PROTECTION]))
        going: Body = {"deletionTimestamp": "2026-01-01T00:01:00Z", "deletionGracePeriodSeconds": 0}
        upper.put(
            "persistentvolumeclaims", claim(uid="c-1", finalizers=[pvc.FINALIZER], annotations={}, **going)
        )
        await asyncio.sleep(30)
        [below] = [body for (plural, _), body in lower.objects.items() if plural == "persistentvolumeclaims"]
        assert "deletionTimestamp" in below["metadata"]
        assert upper.asked("patch", "persistentvolumeclaims") == []


async def test_a_claim_of_another_processs_node_is_left_to_that_process():
    """Both have this lower cluster: one would delete forever what the other creates, and no volume would be bound."""
    upper, lower = clusters()
    annotations = {names.ANNOTATION_SELECTED_NODE: "vn-other"}
    upper.put("persistentvolumeclaims", claim(uid="c-1", finalizers=[pvc.FINALIZER], annotations=annotations))
    lower.put("persistentvolumeclaims", claim(uid="l-1", labels={**OURS, names.LABEL_NODE: "vn-other"}))
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(60)
    assert lower.asked("delete", "persistentvolumeclaims") == []
    assert upper.asked("patch", "persistentvolumeclaims") == []


@pytest.mark.parametrize(("wanted", "is_of_use"), [("cpu", True), ("gpu", False)])
async def test_no_volume_is_bound_for_a_pod_that_selects_nodes_of_another_pool(wanted, is_of_use):
    """The upper scheduler selects another virtual node; the volume would be unreachable for the pod."""
    upper, lower = clusters()
    scene = VolumeScene(upper, lower)
    options = scene.scene.context.options
    options["vn"] = replace(options["vn"], pool={"pool": "cpu"})
    upper.put(
        "persistentvolumeclaims",
        claim(uid="c-1", finalizers=[], annotations={names.ANNOTATION_SELECTED_NODE: "vn"}),
    )
    waiting = pod(
        "web", uid="u-1", volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}], nodeName=""
    )
    selector = json.dumps({"nodeSelector": {"pool": wanted}})
    waiting["metadata"]["annotations"] = {names.ANNOTATION_CLUSTER_SELECTOR: selector}
    upper.put("pods", waiting)
    async with following(scene):
        await asyncio.sleep(30)
        placeholder = lower.find("pods", f"shop/{binder_pod.binder_name('u-1')}")
        if is_of_use:
            assert placeholder is not None
            assert placeholder["spec"]["nodeSelector"] == {"pool": "cpu"}
        else:
            assert placeholder is None
            above = upper.find("persistentvolumeclaims", KEY)
            assert above is not None
            assert names.ANNOTATION_SELECTED_NODE not in above["metadata"].get("annotations", {})
            ((reason, message), *_) = scene.scene.events
            assert reason == "ProvisioningFailed"
            assert "pool=gpu" in message


@pytest.mark.parametrize(
    "spec",
    [
        {"hostNetwork": True},
        {"priorityClassName": "system-node-critical"},
        {"tolerations": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]},
    ],
)
async def test_no_volume_is_bound_for_a_pod_that_the_policy_refuses(spec):
    """Its placeholder would have the same scheduling fields, and preempt pods of other tenants."""
    upper, lower = clusters()
    upper.put(
        "persistentvolumeclaims",
        claim(uid="c-1", finalizers=[], annotations={names.ANNOTATION_SELECTED_NODE: "vn"}),
    )
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    upper.put("pods", pod("web", uid="u-1", nodeName="", volumes=volumes, **spec))
    scene = VolumeScene(upper, lower)
    async with following(scene):
        await asyncio.sleep(30)
        assert lower.asked("create", "pods") == []
        ((reason, message), *_) = scene.scene.events
        assert reason == "ProvisioningFailed"
        assert "clusters[lower1].policy" in message


async def test_no_volume_is_bound_for_a_pod_that_is_too_large():
    """Its translation would take the memory of the process."""
    upper, lower = clusters()
    upper.put(
        "persistentvolumeclaims",
        claim(uid="c-1", finalizers=[], annotations={names.ANNOTATION_SELECTED_NODE: "vn"}),
    )
    mine = f"{names.DOMAIN}/mine"
    source = {"fieldRef": {"fieldPath": f"metadata.annotations['{mine}']"}}
    env = [{"name": f"V{number}", "valueFrom": source} for number in range(40)]
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    large = pod("web", uid="u-1", volumes=volumes, containers=[{"name": "c", "image": "i", "env": env}])
    large["metadata"]["annotations"] = {mine: "x" * 100_000}
    upper.put("pods", large)
    scene = VolumeScene(upper, lower)
    async with following(scene):
        await asyncio.sleep(30)
        assert lower.asked("create", "pods") == []
        ((reason, message), *_) = scene.scene.events
        assert reason == "ProvisioningFailed"
        assert "shorten the value" in message


async def test_no_volume_is_bound_in_a_lower_cluster_without_room():
    """Otherwise the claims of one tenant could stop the lower cluster for all."""
    upper, lower = clusters()
    put_waiting_pod(upper)
    lower.fill()
    scene = VolumeScene(upper, lower)
    async with following(scene):
        await asyncio.sleep(30)
        assert lower.asked("create", "pods") == []
        assert "LowerClusterFull" in [reason for reason, _ in scene.scene.events]
        lower.fill("other")
        await asyncio.sleep(100)
        assert len(lower.asked("create", "pods")) == 1


@pytest.mark.parametrize("plural", ["pods", "persistentvolumeclaims"])
@pytest.mark.parametrize("error", [Forbidden, Invalid])
async def test_another_cluster_can_be_chosen_if_the_lower_cluster_refuses_the_volume(plural, error):
    """A quota, Pod Security or a webhook refuses the claim or its placeholder. The claim stayed pinned to the virtual node."""
    upper, lower = clusters()
    put_waiting_pod(upper)

    def refuse(verb: str, asked: str, _key: str) -> ApiError | None:
        return error("exceeded quota: small") if (verb, asked) == ("create", plural) else None

    lower.fault = refuse
    scene = VolumeScene(upper, lower)
    async with following(scene):
        await asyncio.sleep(60)
        assert len(lower.asked("create", plural)) == 1
        ((reason, message),) = scene.scene.events
        assert reason == "ProvisioningFailed"
        assert "exceeded quota: small" in message
        left = lower.find("persistentvolumeclaims", KEY)
        assert left is None or left["metadata"].get("deletionTimestamp")
        annotations = upper.the("persistentvolumeclaims", KEY)["metadata"].get("annotations") or {}
        assert names.ANNOTATION_SELECTED_NODE not in annotations


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_a_restart_keeps_the_unbound_claim_of_a_pod_that_is_bound(is_deleted):
    """A pod that is bound without a selected node, as by nodeName. Its lower pod, which is not scheduled yet, waited for ever."""
    upper, lower = clusters()
    lower.server.observers.remove(lower._schedule)
    upper.put("persistentvolumeclaims", claim(uid="c-1"))
    async with working((scene := Scene(upper, lower, volumes=VolumeConfig())).run()):
        scene.bind(volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}])
        await asyncio.sleep(30)
        assert scene.is_below()
        assert lower.find("persistentvolumeclaims", KEY) is not None
    if is_deleted:  # while no process runs
        lower.remove("persistentvolumeclaims", KEY)
    async with working(Scene(upper, lower, volumes=VolumeConfig()).run()):
        await asyncio.sleep(120)
        assert not lower.the("persistentvolumeclaims", KEY)["metadata"].get("deletionTimestamp")
        assert lower.asked("delete", "persistentvolumeclaims") == []


@pytest.mark.parametrize(("seconds", "is_given_back"), [(60, False), (400, True)])
async def test_a_placeholder_waits_for_a_node_that_the_lower_cluster_adds(seconds, is_given_back):
    """The claim was given back after 20 s, so a cluster that can grow got no new volumes, unless it was chosen again."""
    upper, lower = clusters()
    put_waiting_pod(upper)
    shape = Shape(name="s", resources={"cpu": "4", "memory": "8Gi"})
    growth = Autoscaling(max_nodes=3, provision_seconds=300, shapes=[shape])
    placeholder = f"shop/{binder_pod.binder_name('u-1')}"
    async with following(VolumeScene(upper, lower, autoscaling=growth)):
        await asyncio.sleep(10)
        since = timestamps.rfc3339(datetime.now(UTC) - timedelta(seconds=seconds))
        condition = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1",
            "lastTransitionTime": since,
        }  # fmt: skip
        lower.change("pods", placeholder, status={"conditions": [condition]})
        await asyncio.sleep(10)
        assert (lower.find("pods", placeholder) is None) is is_given_back


@pytest.mark.parametrize("cause", ["placeholder", "claim", "no node"])
async def test_all_claims_of_a_pod_are_given_back_together(cause):
    """One of two claims stayed pinned to the virtual node, so kube-scheduler chose it for the pod again and again."""
    upper, lower = clusters()
    for name in ("data", "logs"):
        body = claim(uid=f"c-{name}", finalizers=[], annotations={names.ANNOTATION_SELECTED_NODE: "vn"})
        body["metadata"]["name"] = name
        upper.put("persistentvolumeclaims", body)
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in ("data", "logs")]
    upper.put("pods", pod("web", uid="u-1", nodeName="", volumes=volumes))
    refused = {"placeholder": ("pods", f"shop/{binder_pod.binder_name('u-1')}")}
    refused["claim"] = ("persistentvolumeclaims", "shop/logs")

    def refuse(verb: str, plural: str, key: str) -> ApiError | None:
        return (
            Forbidden("exceeded quota") if (verb, (plural, key)) == ("create", refused.get(cause)) else None
        )

    lower.fault = refuse
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(10)
        if cause == "no node":
            condition = {
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }  # fmt: skip
            lower.change("pods", refused["placeholder"][1], status={"conditions": [condition]})
        await asyncio.sleep(60)
        for name in ("data", "logs"):
            metadata = upper.the("persistentvolumeclaims", f"shop/{name}")["metadata"]
            assert names.ANNOTATION_SELECTED_NODE not in (metadata.get("annotations") or {})
            left = lower.find("persistentvolumeclaims", f"shop/{name}")
            assert left is None or left["metadata"].get("deletionTimestamp")


@pytest.mark.parametrize("chosen", [None, "vn-of-another-cluster"])
async def test_nothing_is_left_if_another_node_is_selected_while_a_volume_is_awaited(chosen):
    """kube-controller-manager removes the node of a claim if its Node is deleted. The placeholder kept the lower claim."""
    upper, lower = clusters()
    put_waiting_pod(upper)
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(30)
        assert lower.find("pods", f"shop/{binder_pod.binder_name('u-1')}") is not None
        annotations = {names.ANNOTATION_SELECTED_NODE: chosen}
        upper.change("persistentvolumeclaims", KEY, metadata={"annotations": annotations})
        await asyncio.sleep(30)
        assert lower.find("pods", f"shop/{binder_pod.binder_name('u-1')}") is None
        left = lower.find("persistentvolumeclaims", KEY)
        assert left is None or left["metadata"].get("deletionTimestamp")


async def test_another_cluster_can_be_chosen_if_the_source_of_a_clone_is_not_here():
    """The source is in another lower cluster, which kube-scheduler could not try: the claim stayed pinned to this one."""
    upper, lower = clusters()
    body = claim(uid="c-1", finalizers=[], annotations={names.ANNOTATION_SELECTED_NODE: "vn"})
    body["spec"]["dataSource"] = {"kind": "PersistentVolumeClaim", "name": "elsewhere"}
    upper.put("persistentvolumeclaims", body)
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    upper.put("pods", pod("web", uid="u-1", nodeName="", volumes=volumes))
    scene = VolumeScene(upper, lower)
    async with following(scene):
        await asyncio.sleep(60)
        ((reason, message),) = scene.scene.events
        assert reason == "ProvisioningFailed"
        assert '"elsewhere", which is to be cloned' in message
        annotations = upper.the("persistentvolumeclaims", KEY)["metadata"].get("annotations") or {}
        assert names.ANNOTATION_SELECTED_NODE not in annotations
        assert lower.asked("create", "persistentvolumeclaims") == []


async def test_a_placeholder_is_kept_off_control_plane_nodes_like_its_pod():
    """Otherwise the volume would be unreachable for the pod."""
    upper, lower = clusters()
    upper.put(
        "persistentvolumeclaims",
        claim(uid="c-1", finalizers=[], annotations={names.ANNOTATION_SELECTED_NODE: "vn"}),
    )
    volumes = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]
    tolerations = [{"operator": "Exists"}]
    upper.put("pods", pod("web", uid="u-1", nodeName="", volumes=volumes, tolerations=tolerations))
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(30)
        placeholder = lower.the("pods", f"shop/{binder_pod.binder_name('u-1')}")
        (owner,) = placeholder["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["controller"]) == ("Namespace", True)  # so that nothing adopts it
        assert "DoesNotExist" in json.dumps(placeholder["spec"]["affinity"])


async def test_a_claim_that_was_bound_meanwhile_is_not_deleted_as_unbound():
    """The cache is stale since a lower outage: the orphan has a volume by now, and perhaps data."""
    upper, lower = clusters()
    lower.put("persistentvolumeclaims", claim(uid="l-1", labels=OURS))
    chosen = {names.ANNOTATION_SELECTED_NODE: "vn"}
    upper.put("persistentvolumeclaims", claim(uid="c-1", finalizers=[pvc.FINALIZER], annotations=chosen))
    async with following(VolumeScene(upper, lower)):
        lower.held.add("persistentvolumeclaims")
        lower.change("persistentvolumeclaims", KEY, spec={"volumeName": "pv-1"}, status={"phase": "Bound"})
        upper.remove("persistentvolumeclaims", KEY)
        await asyncio.sleep(120)
        assert lower.find("persistentvolumeclaims", KEY) is not None
        lower.release("persistentvolumeclaims")
        await asyncio.sleep(120)
        assert lower.find("persistentvolumeclaims", KEY) is not None


async def test_locks_of_deleted_claims_are_removed():
    """A virtual node that runs for a year sees very many names."""
    upper, lower = clusters()
    scene = VolumeScene(upper, lower)
    upper.put("persistentvolumeclaims", claim(uid="c-1"))
    async with following(scene):
        upper.remove("persistentvolumeclaims", KEY)
        await asyncio.sleep(60)
        assert not scene.volumes._claims._locks._locks


async def test_an_unbound_orphan_is_deleted():
    """It has no data."""
    upper, lower = clusters()
    lower.put("persistentvolumeclaims", claim(uid="l-1", labels=OURS))
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(60)
        assert lower.find("persistentvolumeclaims", KEY) is None


def _bound(upper: Cluster, lower: Cluster, *, above: str, below: str) -> None:
    """Put a claim that is bound in both clusters, with the reclaim policies of the mirror and of the lower volume."""
    reference = {"namespace": "shop", "name": "data"}
    spec: dict[str, Any] = {"claimRef": {**reference, "uid": "c-1"}, "persistentVolumeReclaimPolicy": above}
    upper.put("persistentvolumes", mirror(**spec))
    spec = {"claimRef": {**reference, "uid": "l-1"}, "persistentVolumeReclaimPolicy": below}
    lower.put("persistentvolumes", {**objects.volume("pv-1", **spec), "status": {"phase": "Bound"}})
    bound = {"phase": "Bound"}
    finalizers = {"finalizers": [pvc.FINALIZER]}
    upper.put("persistentvolumeclaims", claim(uid="c-1", bound_to=MIRROR, status=bound, **finalizers))
    told = {names.ANNOTATION_UPPER_NAMESPACE: "shop"}
    body = claim(uid="l-1", bound_to="pv-1", status=bound, labels=OURS, annotations=told)
    lower.put("persistentvolumeclaims", body)


@pytest.mark.parametrize(
    ("above", "below", "settings", "stays"),
    [
        ("Delete", "Delete", {}, False),
        ("Retain", "Delete", {}, True),
        ("Retain", "Delete", {"orphans": "Delete"}, True),
        ("Retain", "Retain", {}, False),  # the volume itself stays
        ("Delete", "Delete", {"deletion_policy": "Retain"}, True),
        ("Delete", "Delete", {"deletion_policy": "Retain", "orphans": "Delete"}, True),
    ],
)
async def test_data_of_a_volume_that_is_retained_in_the_upper_cluster_stays(above, below, settings, stays):
    """Its administrators see only the mirror, and set Retain there before they delete a claim; also if it was not seen yet."""
    upper, lower = clusters()
    _bound(upper, lower, above="Delete", below=below)
    scene = VolumeScene(upper, lower)
    for field, value in settings.items():
        setattr(scene.scene.context.config.volumes, field, value)
    async with following(scene):
        await asyncio.sleep(10)
        policy = {**upper.the("persistentvolumes", MIRROR)["spec"], "persistentVolumeReclaimPolicy": above}
        upper.change("persistentvolumes", MIRROR, spec=policy)
        await asyncio.sleep(10)
        kept = upper.the("persistentvolumes", MIRROR)["spec"]["persistentVolumeReclaimPolicy"]
        assert kept == ("Retain" if "Retain" in {above, below} else "Delete")
        await upper.delete(resources.PERSISTENT_VOLUME_CLAIMS, "data", namespace="shop")
        await asyncio.sleep(120)
        assert upper.find("persistentvolumeclaims", KEY) is None
        assert (lower.find("persistentvolumeclaims", KEY) is not None) == stays


@pytest.mark.parametrize(
    ("claimed_by", "phase", "is_taken"),
    [("c-2", "Bound", True), ("c-1", "Pending", False), ("c-2", "Pending", False)],
    ids=["released and bound again", "a user names the volume", "not bound yet"],
)
async def test_kept_data_is_used_again_by_a_claim_that_gets_the_volume(claimed_by, phase, is_taken):
    """As on a real node: an administrator removes the claimRef of the retained volume, and a claim of the name binds it."""
    upper, lower = clusters()
    _bound(upper, lower, above="Retain", below="Delete")
    scene = VolumeScene(upper, lower)
    async with following(scene):
        await asyncio.sleep(5)
        await upper.delete(resources.PERSISTENT_VOLUME_CLAIMS, "data", namespace="shop")
        await asyncio.sleep(30)
        assert upper.find("persistentvolumeclaims", KEY) is None
        spec = upper.the("persistentvolumes", MIRROR)["spec"]
        upper.change("persistentvolumes", MIRROR, spec={**spec, "claimRef": None})
        await asyncio.sleep(30)
        assert upper.find("persistentvolumes", MIRROR) is not None
        reference = {"namespace": "shop", "name": "data", "uid": claimed_by}
        upper.change("persistentvolumes", MIRROR, spec={**spec, "claimRef": reference})
        upper.put("persistentvolumeclaims", claim(uid="c-2", bound_to=MIRROR, status={"phase": phase}))
        await asyncio.sleep(60)
        below = lower.the("persistentvolumeclaims", KEY)
        assert below["metadata"]["uid"] == "l-1"
        assert below["metadata"]["labels"][names.LABEL_UPPER_UID] == ("c-2" if is_taken else "c-1")
        above = upper.the("persistentvolumeclaims", KEY)
        assert (pvc.FINALIZER in (above["metadata"].get("finalizers") or ())) is is_taken
        assert is_taken or "ClaimConflict" in [reason for reason, _ in scene.scene.events]


async def test_the_claim_of_a_chosen_volume_has_its_class_of_attributes():
    """Otherwise the lower cluster does not bind them. The upper claim may ask for another class since."""
    upper, lower = clusters()
    upper.put("persistentvolumes", mirror())
    lower.put("persistentvolumes", objects.volume("pv-1", volumeAttributesClassName="gold"))
    body = claim(uid="c-1", bound_to=MIRROR, status={"phase": "Bound"}, finalizers=[pvc.FINALIZER])
    body["spec"]["volumeAttributesClassName"] = "silver"
    upper.put("persistentvolumeclaims", body)
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(10)
        spec = lower.the("persistentvolumeclaims", KEY)["spec"]
        assert (spec["volumeName"], spec["volumeAttributesClassName"]) == ("pv-1", "gold")


@pytest.mark.parametrize("made_for", ["shop", "market"])
async def test_claim_of_another_upper_namespace_is_no_orphan_of_this_one(made_for):
    """Two upper namespaces have one lower one; the claim of one of them is deleted, the lower claim may be the other's."""
    upper, lower = clusters()
    both = NamespaceConfig(map={"shop": "both", "market": "both"})
    lower.put("namespaces", lower_namespace("market", name="both"))
    scene = VolumeScene(upper, lower, namespaces=both)
    scene.scene.context.config.volumes.orphans = "Delete"
    upper.put("persistentvolumeclaims", claim(uid="c-1"))
    upper.put("persistentvolumeclaims", claim(uid="c-2", namespace="market"))
    told = {names.ANNOTATION_UPPER_NAMESPACE: made_for}
    below = claim(uid="l-1", namespace="both", labels=OURS, annotations=told, bound_to="pv-1")
    lower.put("persistentvolumeclaims", {**below, "status": {"phase": "Bound"}})
    async with following(scene):
        upper.remove("persistentvolumeclaims", "market/data")
        await asyncio.sleep(60)
        expected = ["both/data"] if made_for == "market" else []
        assert lower.asked("delete", "persistentvolumeclaims") == expected


@pytest.mark.parametrize(
    ("upper_volume", "goes"),
    [
        (objects.volume("pv-real", hostPath={"path": "/x"}), True),
        (mirror("lower2-pv-1", cluster="lower2"), False),
    ],
    ids=["a real node's volume", "another lower cluster's volume"],
)
async def test_a_claim_that_was_rescheduled_to_another_node_can_be_deleted(upper_volume, goes):
    """The scheduler selected the virtual node, then a real node: the finalizer must not keep the claim forever.

    A virtual node of another lower cluster removes it itself, once its own claim is deleted.
    """
    upper, lower = clusters()
    upper.put("persistentvolumes", upper_volume)
    ending = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [pvc.FINALIZER]}
    name = upper_volume["metadata"]["name"]
    upper.put("persistentvolumeclaims", claim(uid="c-1", bound_to=name, status={"phase": "Bound"}, **ending))
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(60)
        assert (upper.find("persistentvolumeclaims", KEY) is None) == goes


@pytest.mark.parametrize(
    ("chosen", "goes"),
    [("vn-other", False), ("worker-1", True), ("vn-gone", True), ("", True)],
)
async def test_an_unbound_claim_is_finalized_by_its_selected_node(chosen, goes):
    """Another cluster's volume may be in creation: without the finalizer it would not be deleted there."""
    upper, lower = clusters()
    upper.put("nodes", {"metadata": {"name": "vn-other", "labels": {names.LABEL_LOWER_CLUSTER: "lower2"}}})
    upper.put("nodes", {"metadata": {"name": "worker-1"}})
    ending: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [pvc.FINALIZER]}
    annotations = {names.ANNOTATION_SELECTED_NODE: chosen} if chosen else {}
    upper.put("persistentvolumeclaims", claim(uid="c-1", annotations=annotations, **ending))
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(10)
        assert (upper.find("persistentvolumeclaims", KEY) is None) == goes
        upper.remove("nodes", "vn-other")
        await asyncio.sleep(60)
        assert upper.find("persistentvolumeclaims", KEY) is None


@pytest.mark.parametrize(
    ("made_by", "is_created"),
    [("vn", True), ("vn-other", False), ("vn-gone", True), ("worker-1", True)],
)
async def test_mirror_of_claimed_volume_is_created_by_the_process_that_made_the_claim(made_by, is_created):
    """A mirror's node affinity is immutable: another process would allow its own nodes for another node's pod."""
    upper, lower = clusters()
    upper.put("nodes", {"metadata": {"name": "vn-other", "labels": {names.LABEL_LOWER_CLUSTER: "lower1"}}})
    upper.put("nodes", {"metadata": {"name": "worker-1"}})
    upper.put("persistentvolumeclaims", claim(uid="c-1", finalizers=[pvc.FINALIZER]))
    lower.put(
        "persistentvolumes",
        objects.volume("pv-1", claimRef={"namespace": "shop", "name": "data", "uid": "l-1"}),
    )
    labels, bound = {**OURS, names.LABEL_NODE: made_by}, {"phase": "Bound"}
    lower.put("persistentvolumeclaims", claim(uid="l-1", labels=labels, bound_to="pv-1", status=bound))
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(10)
        assert (upper.find("persistentvolumes", MIRROR) is not None) == is_created
        upper.remove("nodes", "vn-other")
        await asyncio.sleep(60)
        created = upper.find("persistentvolumes", MIRROR)
        assert created is not None
        [term] = created["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert term["matchExpressions"][0]["values"] == ["vn"]


async def test_virtual_node_of_another_process_is_read_once_for_all_its_volumes():
    """It may have thousands, each with several events."""
    upper, lower = clusters()
    upper.put("nodes", {"metadata": {"name": "vn-other", "labels": {names.LABEL_LOWER_CLUSTER: "lower1"}}})
    labels, bound = {**OURS, names.LABEL_NODE: "vn-other"}, {"phase": "Bound"}
    for number in range(20):
        upper.put("persistentvolumeclaims", claim(uid="c-1", name=f"data-{number}"))
        reference = {"namespace": "shop", "name": f"data-{number}", "uid": f"l-{number}"}
        lower.put("persistentvolumes", objects.volume(f"pv-{number}", claimRef=reference))
        body = claim(
            uid=f"l-{number}", name=f"data-{number}", labels=labels, bound_to=f"pv-{number}", status=bound
        )
        lower.put("persistentvolumeclaims", body)
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(10)
        assert 1 <= len(upper.asked("get", "nodes")) <= 4  # the number of workers


async def test_no_mirror_is_created_for_a_claim_that_is_bound_to_another_volume():
    """Another process has the lower cluster under another name; a second volume of the claim would be released."""
    upper, lower = clusters()
    upper.put("persistentvolumeclaims", claim(uid="c-1", bound_to="lower2-pv-1", status={"phase": "Bound"}))
    lower.put(
        "persistentvolumes",
        objects.volume("pv-1", claimRef={"namespace": "shop", "name": "data", "uid": "l-1"}),
    )
    lower.put(
        "persistentvolumeclaims", claim(uid="l-1", labels=OURS, bound_to="pv-1", status={"phase": "Bound"})
    )
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(60)
        assert upper.find("persistentvolumes", MIRROR) is None


async def test_a_mirror_is_deleted_with_its_volume():
    upper, lower = clusters()
    upper.put("persistentvolumes", mirror())
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(10)
        assert upper.find("persistentvolumes", MIRROR) is None


async def test_a_mirror_stays_while_only_the_stale_cache_lacks_its_volume():
    """Another process of the same lower cluster has created it; a deleted upper volume is not recreated."""
    upper, lower = clusters()
    async with following(VolumeScene(upper, lower)):
        lower.held.add("persistentvolumes")
        lower.put("persistentvolumes", objects.volume("pv-1"))
        upper.put("persistentvolumes", mirror(claimRef={"namespace": "shop", "name": "data"}))
        await asyncio.sleep(60)
        assert upper.find("persistentvolumes", MIRROR) is not None


async def test_a_free_mirror_that_was_bound_meanwhile_stays():
    """The upper controller has bound it to a claim, and the cache does not show that yet."""
    upper, lower = clusters()
    upper.put("storageclasses", storage_class("fast"))
    lower.put("persistentvolumes", objects.volume("pv-1"))
    async with following(publishing(upper, lower, "fast")):
        assert upper.find("persistentvolumes", MIRROR) is not None
        upper.held.add("persistentvolumes")
        upper.change("persistentvolumes", MIRROR, spec={"claimRef": {"namespace": "shop", "name": "data"}})
        lower.change("persistentvolumes", "pv-1", status={"phase": "Bound"})
        await asyncio.sleep(60)
        assert upper.find("persistentvolumes", MIRROR) is not None


async def test_a_claim_that_changes_all_the_time_is_written_rarely():
    """And ends with its latest status."""
    upper, lower = clusters()

    def writes(plural: str) -> int:
        return sum((verb, found) == ("patch", plural) for verb, found, _ in upper.calls)

    bound = {"phase": "Bound", "capacity": {"storage": "1Gi"}}
    upper.put("persistentvolumeclaims", claim(uid="c-1", bound_to="lower1-pv-1", status=bound))
    below = claim(uid="l-1", bound_to="pv-1", status=bound, labels=OURS)
    below["metadata"]["annotations"] = {"virtual-node.io/upper-namespace": "shop"}
    lower.put("persistentvolumeclaims", below)
    lower.put(
        "persistentvolumes",
        objects.volume("pv-1", claimRef={"namespace": "shop", "name": "data", "uid": "l-1"}),
    )
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(5)
        for number in range(200):
            lower.change(
                "persistentvolumeclaims",
                KEY,
                status={**bound, "capacity": {"storage": f"{number + 2}Gi"}},
            )
            lower.change("persistentvolumes", "pv-1", spec={"capacity": {"storage": f"{number + 2}Gi"}})
            await asyncio.sleep(0.1)
        assert BURST <= writes("persistentvolumeclaims/status") <= BURST + 5
        assert BURST <= writes("persistentvolumes") <= BURST + 5
        await asyncio.sleep(10)
        last = {"storage": "201Gi"}
        assert upper.the("persistentvolumeclaims", KEY)["status"]["capacity"] == last
        assert upper.the("persistentvolumes", MIRROR)["spec"]["capacity"] == last


@pytest.mark.parametrize("name", ["v" * 254, "V", "a b", "../v"])
async def test_a_volume_with_an_invalid_name_has_no_mirror(name: str):
    """A hostile server sends any text, and the name is part of the mirror."""
    upper, lower = clusters()
    upper.put("storageclasses", storage_class("fast"))
    lower.put("persistentvolumes", objects.volume(name))
    lower.put("persistentvolumes", objects.volume("valid"))
    async with following(publishing(upper, lower, "fast")):
        await asyncio.sleep(5)
        assert [key for plural, key in upper.objects if plural == "persistentvolumes"] == ["lower1-valid"]


async def test_placeholder_is_found_by_each_of_its_claims():
    """Without reading the others, of which a tenant can have thousands."""
    scene = VolumeScene(*clusters())
    caches = VolumeCaches(scene.scene.context)
    for number in range(3):
        placeholder = pod(f"volume-binder-{number}", uid=f"b-{number}")
        placeholder["metadata"]["annotations"] = {
            binder_pod.ANNOTATION_CLAIMS: f"a{number},b{number}",
            names.ANNOTATION_UPPER_NAMESPACE: "shop",
        }
        caches.binders.store.put(f"shop/volume-binder-{number}", from_dict(placeholder))
    binder = VolumeBinder(scene.scene.context, caches, scene.scene.namespaces)
    with patch.object(Store, "list", side_effect=AssertionError("all placeholders are read")):
        for key, wanted in (("shop/a1", "b-1"), ("shop/b2", "b-2"), ("other/a1", None), ("shop/a1,b1", None)):
            found = binder._of(key)
            assert (found.uid if found else None) == wanted


async def test_a_free_mirror_goes_when_the_claim_of_its_volume_is_bound_to_another_mirror():
    """Another process knows the lower cluster by another name. A second claim would be bound to a volume that is in use."""
    upper, lower = clusters()
    _bound(upper, lower, above="Delete", below="Delete")
    upper.put("persistentvolumes", mirror("lower2-pv-1", cluster="lower2", claimRef={"uid": "c-1"}))
    upper.put("persistentvolumes", mirror())
    upper.change("persistentvolumeclaims", KEY, spec={"volumeName": "lower2-pv-1"})
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(30)
        assert upper.find("persistentvolumes", MIRROR) is None


async def test_data_stays_if_the_retained_mirror_has_another_name_of_the_lower_cluster():
    """Two processes know the lower cluster by different names, and both see the lower claim."""
    upper, lower = clusters()
    _bound(upper, lower, above="Retain", below="Delete")
    upper.remove("persistentvolumes", MIRROR)
    spec: dict[str, Any] = {"claimRef": {"uid": "c-1"}, "persistentVolumeReclaimPolicy": "Retain"}
    upper.put("persistentvolumes", mirror("lower2-pv-1", cluster="lower2", **spec))
    upper.change("persistentvolumeclaims", KEY, spec={"volumeName": "lower2-pv-1"})
    async with following(VolumeScene(upper, lower)):
        await asyncio.sleep(10)
        await upper.delete(resources.PERSISTENT_VOLUME_CLAIMS, "data", namespace="shop")
        await asyncio.sleep(120)
        assert upper.find("persistentvolumeclaims", KEY) is None
        assert lower.find("persistentvolumeclaims", KEY) is not None


async def test_two_processes_with_other_rules_do_not_change_a_lower_claim_without_pause():
    """Two installations mirror one lower cluster, and only one of them copies the label."""
    upper, lower = clusters()
    _bound(upper, lower, above="Delete", below="Delete")
    upper.change("persistentvolumeclaims", KEY, metadata={"labels": {"team": "a"}})
    rules = Policy(metadata=MetadataRules(leave_out=["team"]))
    async with following(VolumeScene(upper, lower)), following(VolumeScene(upper, lower, policy=rules)):
        await asyncio.sleep(600)
        assert len(lower.asked("patch", "persistentvolumeclaims")) < 30
