"""Lower pods decide which endpoints of a copied EndpointSlice are ready."""

from __future__ import annotations

import pytest

from clusterset.model import names
from tests.unit.virtual_node.controllers import pod_controller_setup
from tests.unit.virtual_node.controllers.copies.service_controller_setup import Scene
from virtual_node.translate import endpoints

pytestmark = pytest.mark.looptime

READY = {
    "phase": "Running",
    "podIPs": [{"ip": "10.1.0.1"}],
    "conditions": [{"type": "Ready", "status": "True"}],
}
UNREADY = {**READY, "conditions": [{"type": "Ready", "status": "False"}]}
FINISHED = {**READY, "phase": "Failed"}


class _Shop:
    """A Service with the endpoints of pods, of which the upper cluster reports none ready."""

    def __init__(self, *pods: str) -> None:
        self.scene = scene = Scene()
        scene.add_service()
        scene.add_pod()
        scene.lower.feed(scene.caches.lower, scene.all_caches.pods_of_others)
        for number, name in enumerate(pods):
            found = {
                "addresses": ["10.1.0.1"],
                "conditions": {"ready": False, "serving": False, "terminating": False},
                "targetRef": {"kind": "Pod", "namespace": "shop", "name": name, "uid": f"u-{name}"},
            }
            labels = {endpoints.LABEL_SERVICE: "web", endpoints.LABEL_MANAGED_BY: endpoints.FROM_PODS}
            metadata = {"name": f"web-{number}", "namespace": "shop", "uid": f"s-{number}", "labels": labels}
            piece = {"metadata": metadata, "addressType": "IPv4", "endpoints": [found], "ports": []}
            scene.upper.put("endpointslices", piece)
        self.queue = scene.controller.slices.controller.queue

    def run(self, name="web", status=READY, *, node="vn", is_deleted=False, **annotations):
        """Store a lower pod."""
        body = pod_controller_setup.lower_pod(f"u-{name}", node=node, name=name)
        body["metadata"]["annotations"] |= annotations
        if is_deleted:
            body["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["test"]}
        self.scene.lower.put("pods", {**body, "status": status})

    async def conditions(self):
        """Return the conditions of the only endpoint as ready, serving, terminating, and whether it names a pod."""
        await self.scene.controller.reconcile("shop/web")
        (found,) = self.scene.copy("endpointslices")["endpoints"]
        return tuple(found["conditions"].values()), "targetRef" in found

    async def queued(self):
        """Return the slices that were queued since the last call."""
        found = set()
        while len(self.queue):
            key = await self.queue.get()
            found.add(key)
            self.queue.done(key)
        return found


@pytest.mark.parametrize(
    ("status", "expected"),
    [(READY, (True, True, False)), (UNREADY, (False, False, False)), (FINISHED, (False, False, False))],
)
@pytest.mark.parametrize("node", ["vn", "vn-other"])
async def test_lower_pod_is_believed_more_than_the_upper_slice(node, status, expected):
    """Also if another process, which may be away, runs the pod in this lower cluster."""
    shop = _Shop("web")
    if node == "vn":
        shop.scene.bind("web", uid="u-web")
    shop.run(status=status, node=node)
    assert await shop.conditions() == (expected, True)


async def test_pod_that_is_being_deleted_in_either_cluster_is_terminating():
    """It still serves."""
    shop = _Shop("web")
    shop.scene.bind("web", uid="u-web")
    shop.run(is_deleted=True)
    assert await shop.conditions() == ((False, True, True), True)
    other = _Shop("web")
    body = pod_controller_setup.pod("web", uid="u-web", nodeName="vn")
    body["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["test"]}
    other.scene.upper.put("pods", body)
    other.run()
    assert await other.conditions() == ((False, True, True), True)


async def test_service_that_publishes_unready_pods_does_so_in_the_lower_cluster():
    """As the EndpointSlice controller does."""
    shop = _Shop("web")
    shop.scene.bind("web", uid="u-web")
    shop.scene.upper.change("services", "shop/web", spec={"publishNotReadyAddresses": True})
    shop.run(status=UNREADY)
    assert await shop.conditions() == ((True, False, False), True)


@pytest.mark.parametrize("is_open", [True, False])
async def test_readiness_gates_of_the_upper_pod_count(is_open):
    """Lower pods do not have them."""
    shop = _Shop("web")
    shop.scene.bind("web", uid="u-web", readinessGates=[{"conditionType": "example.com/open"}])
    gate = {"type": "example.com/open", "status": str(is_open)}
    shop.scene.upper.change("pods", "shop/web", status={"conditions": [gate]})
    shop.run()
    assert await shop.conditions() == ((is_open, is_open, False), True)


async def test_upper_condition_counts_for_gated_pods_of_another_process():
    """This process does not have the upper pod."""
    shop = _Shop("web")
    shop.run(node="vn-other", **{names.ANNOTATION_READINESS_GATES: "true"})
    assert await shop.conditions() == ((False, False, False), True)
    shop.run(node="vn-other", status=UNREADY)
    assert await shop.conditions() == ((False, False, False), True)


@pytest.mark.parametrize("ip", ["10.1.0.2", None])
async def test_pod_with_copied_labels_does_not_decide(ip):
    """A user of the lower cluster can create a pod with the labels, but not with the address of the endpoint."""
    shop = _Shop("web")
    shop.run(node="vn-other", status={**READY, "podIPs": [{"ip": ip}] if ip else []})
    assert await shop.conditions() == ((False, False, False), False)


async def test_changed_pod_queues_only_its_slices():
    """And only changes that matter do."""
    shop = _Shop("a", "b")
    for name in "ab":
        shop.scene.bind(name, uid=f"u-{name}")
        shop.run(name, UNREADY)
    await shop.scene.controller.reconcile("shop/web")
    await shop.queued()
    shop.run("a", READY)
    assert await shop.queued() == {"shop/web-0"}
    shop.run("a", {**READY, "message": "still ready"})
    assert await shop.queued() == set()
    shop.run("c", READY)
    assert await shop.queued() == set()


async def test_changed_pod_is_no_edit_of_the_copy():
    """The upper slice is not read again, and flapping pods are followed without a pause."""
    shop = _Shop("web")
    shop.scene.bind("web", uid="u-web")
    shop.run()
    await shop.conditions()
    shop.scene.upper.calls.clear()
    for _ in range(10):
        for status, is_ready in ((UNREADY, False), (READY, True)):
            shop.run(status=status)
            assert await shop.conditions() == ((is_ready, is_ready, False), True)
    assert not [call for call in shop.scene.upper.calls if call[1] == "endpointslices"]
