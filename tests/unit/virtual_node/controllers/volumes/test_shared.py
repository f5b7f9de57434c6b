"""Volumes on shared storage: they follow pods to a guest cluster, and a single writer is in one cluster at a time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from clusterset.config import SharedStorage, VolumeConfig
from clusterset.model import names
from controller_runtime import resources
from controller_runtime.errors import NotFound
from tests.background import working
from tests.fakes.apiserver.storage import Body
from tests.thorough import seeds
from tests.unit.virtual_node.controllers.cluster import Cluster
from tests.unit.virtual_node.controllers.pod_controller_setup import CLUSTER, Scene, clusters, pod
from virtual_node.translate.storage import binder_pod, pvc, shared

pytestmark = pytest.mark.looptime

DRIVER = "nas.csi.example.com"
SHARED = VolumeConfig(shared=[SharedStorage(name="nas", drivers=[DRIVER])])
MIRROR = "home-pv-1"
_CLAIMS = resources.PERSISTENT_VOLUME_CLAIMS
_PROTECTED = {one.plural: one for one in (_CLAIMS, resources.PERSISTENT_VOLUMES)}
VOLUMES = [{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]


class Pair:
    """A home cluster with a bound volume, and a guest cluster."""

    def __init__(self, *, modes: tuple[str, ...] = ("ReadWriteOnce",), guest: VolumeConfig = SHARED) -> None:
        upper, home = clusters()
        self.upper = upper
        self._declared = guest
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.home, self.guest = self._scene("home", home), self._scene("guest", Cluster("guest"))
        spec = {"accessModes": list(modes), "resources": {"requests": {"storage": "1Gi"}}}
        upper.put("persistentvolumeclaims", {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "shop", "uid": "c-1", "finalizers": [pvc.FINALIZER]},
            "spec": spec, "status": {"phase": "Pending"},
        })  # fmt: skip
        home.put("persistentvolumeclaims", {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "data", "namespace": "shop", "uid": "l-1", "annotations": {names.ANNOTATION_UPPER_NAMESPACE: "shop"},
                "labels": {
                    names.LABEL_UPPER_CLUSTER: CLUSTER, names.LABEL_UPPER_UID: "c-1", names.LABEL_NODE: "vn-home",
                },
            },
            "spec": {**spec, "volumeName": "pv-1"}, "status": {"phase": "Bound"},
        })  # fmt: skip
        home.put("persistentvolumes", {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv-1"},
            "spec": {
                "accessModes": list(modes), "capacity": {"storage": "1Gi"}, "persistentVolumeReclaimPolicy": "Delete",
                "csi": {"driver": DRIVER, "volumeHandle": "vol-7"}, "mountOptions": ["nfsvers=4.1"],
                "claimRef": {"namespace": "shop", "name": "data", "uid": "l-1"},
            },
            "status": {"phase": "Bound"},
        })  # fmt: skip

    def _scene(self, name: str, lower: Cluster) -> Scene:
        volumes = SHARED if name == "home" else self._declared
        return Scene(self.upper, lower, node=f"vn-{name}", cluster=name, volumes=volumes)

    async def restart(self, name: str) -> None:
        """Start the process of a cluster, again if it runs."""
        scene = getattr(self, name)
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            scene = self._scene(name, scene.lower)
            setattr(self, name, scene)
        self._tasks[name] = asyncio.create_task(scene.run())

    async def bound(self) -> None:
        """Bind the upper claim to its mirror, as the upper cluster does."""
        await asyncio.sleep(1)
        self.upper.change(
            "persistentvolumeclaims", "shop/data", spec={"volumeName": MIRROR}, status={"phase": "Bound"}
        )
        await asyncio.sleep(1)

    def users(self) -> str:
        """Return the recorded users of the volume."""
        return str(self.mirror["metadata"]["annotations"].get(shared.ANNOTATION_USED_IN, ""))

    @property
    def mirror(self) -> Body:
        """The upper mirror."""
        return self.upper.the("persistentvolumes", MIRROR)

    async def protect(self) -> None:
        """Remove the protection of deleted claims and volumes that are not used, as kube-controller-manager does."""
        while True:
            await asyncio.sleep(0.5)
            for cluster in (self.upper, self.home.lower, self.guest.lower):
                is_used = any(plural == "pods" for plural, _ in cluster.objects)
                has_claim = any(plural == "persistentvolumeclaims" for plural, _ in cluster.objects)
                for (plural, _), body in cluster.objects.items():
                    metadata, resource = body["metadata"], _PROTECTED.get(plural)
                    is_going = bool(metadata.get("deletionTimestamp"))
                    if resource and is_going and not (is_used if resource is _CLAIMS else has_claim):
                        left = [one for one in metadata.get("finalizers") or () if "protection" not in one]
                        patch = {"metadata": {"finalizers": left or None}}
                        with contextlib.suppress(NotFound):
                            await cluster.patch(
                                resource, metadata["name"], patch, namespace=metadata.get("namespace")
                            )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run both clusters, with the volume bound in the upper cluster."""
        async with working(self.protect()):
            for name in ("home", "guest"):
                await self.restart(name)
            await self.bound()
            yield
            for task in self._tasks.values():
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def end(self, scene: Scene, name: str = "web") -> None:
        """Delete an upper pod; the kubelet ends its lower pod."""
        await self.upper.delete(resources.PODS, name, namespace="shop")
        await asyncio.sleep(2)
        scene.lower.remove("pods", f"shop/{name}")
        await asyncio.sleep(20)


async def test_a_volume_follows_its_pod_and_returns():
    """The guest has a claim and a volume that keeps the data; nothing of them is left after the pod."""
    pair = Pair()
    async with pair.running():
        reached = pair.mirror["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
        assert [term["matchExpressions"][0]["key"] for term in reached] == [
            names.LABEL_HOSTNAME, "storage.virtual-node.io/nas",
        ]  # fmt: skip
        for _ in range(2):
            pair.guest.bind(uid="u-guest", volumes=VOLUMES)
            await asyncio.sleep(20)
            assert (pair.guest.is_below(), pair.users()) == (True, "guest")
            claim = pair.guest.lower.the("persistentvolumeclaims", "shop/data")
            volume = pair.guest.lower.the("persistentvolumes", claim["spec"]["volumeName"])
            assert volume["spec"] == {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "claimRef": volume["spec"]["claimRef"],
                "csi": {"driver": DRIVER, "volumeHandle": "vol-7"},
                "mountOptions": ["nfsvers=4.1"],
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
            }
            assert volume["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
            await pair.end(pair.guest)
            assert not pair.guest.lower.find("persistentvolumeclaims", "shop/data")
            assert not pair.guest.lower.find("persistentvolumes", volume["metadata"]["name"])
            assert pair.users() == ""
            pair.home.bind(uid="u-home", volumes=VOLUMES)
            await asyncio.sleep(20)
            assert (pair.home.is_below(), pair.users()) == (True, "home")
            await pair.end(pair.home)
        assert pair.home.lower.the("persistentvolumeclaims", "shop/data")["metadata"]["uid"] == "l-1"


async def test_a_pod_that_follows_its_volume_can_have_a_new_volume_too():
    """An ephemeral volume, for example. The pod is bound after that, and the claim in the guest cluster is created after the pod."""
    pair = Pair()
    async with pair.running():
        pair.upper.put("persistentvolumeclaims", {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "scratch", "namespace": "shop", "uid": "c-2",
                "annotations": {names.ANNOTATION_SELECTED_NODE: "vn-guest"},
            },
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": "Pending"},
        })  # fmt: skip
        new = {"name": "s", "persistentVolumeClaim": {"claimName": "scratch"}}
        pair.upper.put("pods", pod("web", uid="u-1", nodeName="", volumes=[*VOLUMES, new]))
        await asyncio.sleep(60)
        placeholder = pair.guest.lower.the("pods", f"shop/{binder_pod.binder_name('u-1')}")
        claims = [volume["persistentVolumeClaim"]["claimName"] for volume in placeholder["spec"]["volumes"]]
        assert claims == ["scratch"]  # the storage of the other volume is reached from every lower node
        assert pair.users() == ""


async def test_a_single_writer_waits_until_the_other_cluster_has_stopped():
    """Also if the upper pod is force-deleted while its lower pod still runs."""
    pair = Pair()
    async with pair.running():
        pair.home.bind(uid="u-home", volumes=VOLUMES)
        await asyncio.sleep(20)
        pair.home.lower.held.add("pods")
        pair.home.lower.change("pods", "shop/web", metadata={"finalizers": ["test/keep"]})
        pair.upper.remove("pods", "shop/web")
        pair.guest.bind(uid="u-guest", volumes=VOLUMES)
        await asyncio.sleep(60)
        assert (pair.guest.is_below(), pair.home.is_below()) == (False, True)
        assert any("is in use in lower cluster home" in message for _, message in pair.guest.events)
        pair.home.lower.remove("pods", "shop/web")
        pair.home.lower.release("pods")
        await asyncio.sleep(90)
        assert pair.guest.is_below()


async def test_of_two_clusters_that_start_at_once_one_waits():
    """Both read that no cluster uses the volume; the write of the second is refused."""
    pair = Pair()
    async with pair.running():
        patch = pair.upper.patch

        async def outrun(resource: Any, name: str, *args: Any, **options: Any) -> Any:
            if resource is resources.PERSISTENT_VOLUMES and not pair.users():
                pair.upper.change(
                    "persistentvolumes", MIRROR, metadata={"annotations": {shared.ANNOTATION_USED_IN: "home"}}
                )
            return await patch(resource, name, *args, **options)

        pair.upper.patch = outrun  # type: ignore[method-assign]
        pair.home.lower.put("pods", {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": "shop", "uid": "o"},
            "spec": {"volumes": VOLUMES}, "status": {"phase": "Running"},
        })  # fmt: skip
        pair.guest.bind(uid="u-guest", volumes=VOLUMES)
        await asyncio.sleep(60)
        assert (pair.guest.is_below(), pair.users()) == (False, "home")


async def test_an_old_cached_record_of_use_is_no_permission():
    """The watch stalls: the cache still shows this cluster as the user, and another one uses the volume."""
    pair = Pair()
    async with pair.running():
        pair.guest.bind(uid="u-guest", volumes=VOLUMES)
        await asyncio.sleep(20)
        pair.upper.held.add("persistentvolumes")
        pair.upper.change(
            "persistentvolumes", MIRROR, metadata={"annotations": {shared.ANNOTATION_USED_IN: "home"}}
        )
        pair.guest.bind("next", uid="u-next", volumes=VOLUMES)
        await asyncio.sleep(60)
        assert not pair.guest.is_below("next")


async def test_the_record_of_use_stays_while_a_creation_is_under_way():
    """The upper pod is force-deleted meanwhile; the lower pod starts later."""
    pair = Pair()
    async with pair.running():
        create = pair.guest.lower.create

        async def slow(resource: Any, body: Any, **options: Any) -> Any:
            await asyncio.sleep(30 if resource is resources.PODS else 0)
            return await create(resource, body, **options)

        pair.guest.lower.create = slow  # type: ignore[method-assign]
        pair.guest.bind(uid="u-guest", volumes=VOLUMES)
        await asyncio.sleep(5)
        pair.upper.remove("pods", "shop/web")
        pair.upper.change("persistentvolumeclaims", "shop/data", metadata={"labels": {"changed": "1"}})
        pair.home.bind("other", uid="u-home", volumes=VOLUMES)
        await asyncio.sleep(20)
        assert (pair.home.is_below("other"), pair.users()) == (False, "guest")
        await asyncio.sleep(10)
        assert not (pair.guest.is_below() and pair.home.is_below("other"))


async def test_many_writers_use_the_volume_in_both_clusters():
    pair = Pair(modes=("ReadWriteMany",))
    async with pair.running():
        pair.home.bind("one", uid="u-1", volumes=VOLUMES)
        pair.guest.bind("two", uid="u-2", volumes=VOLUMES)
        await asyncio.sleep(20)
        assert pair.home.is_below("one")
        assert pair.guest.is_below("two")
        assert pair.users() == "guest,home"


async def test_data_stays_while_a_guest_uses_it():
    """The upper claim is deleted; its home cluster deletes the data only when the guest has stopped."""
    pair = Pair()
    async with pair.running():
        pair.guest.bind(uid="u-guest", volumes=VOLUMES)
        await asyncio.sleep(20)
        pair.upper.remove("pods", "shop/web")
        pair.guest.lower.change("pods", "shop/web", metadata={"finalizers": ["test/keep"]})
        await pair.upper.delete(resources.PERSISTENT_VOLUME_CLAIMS, "data", namespace="shop")
        await asyncio.sleep(60)
        assert pair.home.lower.find("persistentvolumeclaims", "shop/data")
        assert pair.upper.find("persistentvolumeclaims", "shop/data")
        pair.guest.lower.remove("pods", "shop/web")
        await asyncio.sleep(60)
        assert not pair.home.lower.find("persistentvolumeclaims", "shop/data")
        assert not pair.guest.lower.find("persistentvolumeclaims", "shop/data")
        assert not pair.upper.find("persistentvolumeclaims", "shop/data")


async def test_a_claim_that_is_not_ours_is_never_used_or_changed():
    pair = Pair()
    theirs = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data", "namespace": "shop", "uid": "t"},
        "spec": {"volumeName": "theirs"}, "status": {"phase": "Bound"},
    }  # fmt: skip
    pair.guest.lower.put("persistentvolumeclaims", theirs)
    async with pair.running():
        pair.guest.bind(uid="u-guest", volumes=VOLUMES)
        await asyncio.sleep(60)
        assert not pair.guest.is_below()
        there = pair.guest.lower.the("persistentvolumeclaims", "shop/data")
        assert (there["metadata"]["uid"], there["spec"]) == ("t", {"volumeName": "theirs"})


@pytest.mark.parametrize(
    "declared", [VolumeConfig(), VolumeConfig(shared=[SharedStorage(name="nas", drivers=["x"])])]
)
async def test_a_cluster_uses_only_what_it_declares(declared: VolumeConfig):
    """Another cluster's declaration is no proof."""
    pair = Pair(guest=declared)
    async with pair.running():
        pair.guest.bind(uid="u-guest", volumes=VOLUMES)
        await asyncio.sleep(60)
        assert not pair.guest.is_below()
        assert not pair.guest.lower.find("persistentvolumeclaims", "shop/data")


@pytest.mark.parametrize("seed", seeds(2, 8))
async def test_never_two_clusters_write_at_any_order_of_events(seed: int):
    """Pods come, end and are force-deleted; watches stall; kubelets end pods late; processes restart."""
    chance = random.Random(seed)
    pair, number, ran = Pair(), 0, 0
    async with pair.running():
        for _ in range(150):
            name = chance.choice(["home", "guest"])
            scene = getattr(pair, name)
            pods = {key: body for (plural, key), body in pair.upper.objects.items() if plural == "pods"}
            below = [key for (plural, key) in scene.lower.objects if plural == "pods"]
            match chance.randrange(7):
                case 0:
                    number += 1
                    scene.bind(f"p-{number}", uid=f"u-{number}", volumes=VOLUMES)
                case 1 if pods:
                    await pair.upper.delete(
                        resources.PODS, chance.choice(sorted(pods)).split("/")[1], namespace="shop"
                    )
                case 2 if pods:
                    pair.upper.remove("pods", chance.choice(sorted(pods)))
                case 3 if below:
                    scene.lower.remove("pods", chance.choice(sorted(below)))
                case 4:
                    scene.lower.held ^= {"pods"}
                    scene.lower.wake()
                case 5:
                    await pair.restart(name)
                case _:
                    await asyncio.sleep(chance.choice([0.0, 0.1, 3.0, 20.0]))
            await asyncio.sleep(chance.choice([0.0, 0.01, 1.0]))
            writing = [
                one.node
                for one in (pair.home, pair.guest)
                if any(plural == "pods" for plural, _ in one.lower.objects)
            ]
            assert len(writing) <= 1
            ran += len(writing)
    assert ran > 0


def mirror(source: str, **annotations: str) -> dict[str, Any]:
    """A mirror whose source annotation is this text."""
    return {
        "metadata": {
            "name": MIRROR,
            "uid": "m",
            "annotations": {"virtual-node.io/volume-source": source, **annotations},
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": "shop"},
        },
    }


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{", "is not JSON"),
        ("[" * 20_000, "is not JSON"),
        ('{"hostPath": {"path": "/"}}', "not a CSI driver"),
        (
            '{"csi": {"driver": "other", "volumeHandle": "x"}}',
            r"driver other is not in volumes.shared\[nas\].drivers",
        ),
        (f'{{"csi": {{"driver": "{DRIVER}", "nodeStageSecretRef": {{"name": "admin"}}}}}}', "needs a Secret"),
    ],
)
def test_refuses_sources_that_the_guest_does_not_declare(source: str, why: str):
    """A lower cluster can report any source for its volumes."""
    lower = {"metadata": {"name": "data", "namespace": "shop", "uid": "l", "labels": {names.LABEL_UPPER_UID: "c"}},
             "spec": {"volumeName": "v"}}  # fmt: skip
    scene = Scene(*clusters())
    owner = next(iter(scene.context.options.values())).owner
    with pytest.raises(shared.UnusableError, match=why):
        shared.guest_volume(mirror(source), lower, storage=SHARED.shared[0], owner=owner)
