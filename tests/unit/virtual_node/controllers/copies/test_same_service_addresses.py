"""``services.clusterIP: same``: a new copy has the upper Service's address if the lower cluster can assign it."""

from __future__ import annotations

import pytest

from controller_runtime.errors import Invalid
from tests.fakes.apiserver.client import refusing
from tests.unit.virtual_node.controllers.copies.service_controller_setup import Scene

pytestmark = pytest.mark.looptime
SAME = "10.97.0.1"


async def _mirrored(scene: Scene, **spec) -> dict[str, object]:
    """Mirror a Service; return the addresses and families that its copy requests."""
    key = scene.add_service(**spec)
    scene.add_pod()
    for _ in range(2):
        await scene.controller.reconcile(key)
    asked: dict[str, object] = scene.lower.objects["services", key]["spec"]
    return {field: asked[field] for field in ("clusterIPs", "ipFamilies") if field in asked}


async def test_copy_has_the_upper_address_where_it_is_free():
    """And only there: by default the lower cluster chooses."""
    scene = Scene(cluster_ip="same")
    assert await _mirrored(scene, clusterIP=SAME) == {"clusterIPs": [SAME]}
    assert scene.reported == []
    assert await _mirrored(Scene(), clusterIP=SAME) == {}


@pytest.mark.parametrize(("address", "cause"), [("10.96.0.9", "out of range"), (SAME, "already allocated")])
async def test_copy_gets_another_address_with_one_event_where_the_upper_one_is_refused(address, cause):
    """The event names the address and the cause; an existing copy is left alone."""
    scene = Scene(cluster_ip="same")
    scene.add_foreign("other", "shop")
    assert await _mirrored(scene, clusterIP=address) == {}
    assert scene.reported == [("Warning", "OtherClusterIP")]
    assert f"instead of {address}: {cause}" in scene.messages[0]


async def test_existing_copy_keeps_its_address():
    """Addresses are immutable: a changed setting is for new copies, such as one that replaces a deleted one."""
    scene = Scene()
    assert await _mirrored(scene, clusterIP=SAME) == {}
    scene.context.config.services.cluster_ip = "same"
    assert await _mirrored(scene, clusterIP=SAME) == {}
    assert [verb for verb, _ in scene.wrote()] == ["create"]
    scene.lower.remove("services", "shop/web")
    assert await _mirrored(scene, clusterIP=SAME) == {"clusterIPs": [SAME]}
    assert scene.reported == []


@pytest.mark.parametrize("spec", [{"clusterIP": "None"}, {"type": "ExternalName", "externalName": "a.b"}])
async def test_service_without_an_address_requests_none(spec):
    """Headless Services and ExternalName."""
    scene = Scene(cluster_ip="same")
    assert await _mirrored(scene, **spec) == {}
    assert [verb for verb, _ in scene.wrote()] == ["create"]
    assert scene.reported == []


@pytest.mark.parametrize(
    ("families", "addresses", "expected", "events"),
    [
        ({"IPv4", "IPv6"}, [SAME, "10.97.6.6"], {"clusterIPs": [SAME, "10.97.6.6"]}, 0),
        ({"IPv4", "IPv6"}, [SAME, "fd00::6"], {"clusterIPs": [SAME]}, 1),
        ({"IPv4"}, [SAME, "fd00::6"], {"clusterIPs": [SAME]}, 1),
        ({"IPv4"}, ["10.96.0.9", "fd00::6"], {}, 1),
    ],
)
async def test_dual_stack_keeps_both_addresses_or_the_first(families, addresses, expected, events):
    """A lower cluster with one family, or another second range, assigns the first address and chooses the rest."""
    scene = Scene(cluster_ip="same")
    scene.lower.server.families = families
    dual = {"clusterIP": addresses[0], "clusterIPs": addresses, "ipFamilyPolicy": "PreferDualStack"}
    asked = await _mirrored(scene, **dual, ipFamilies=["IPv4", "IPv6"])
    asked.pop("ipFamilies", None)
    assert asked == expected
    assert len(scene.reported) == events


async def test_service_that_is_invalid_for_another_reason_is_not_retried_with_another_address():
    """Its refusal is reported unchanged."""
    scene = Scene(cluster_ip="same")
    key = scene.add_service(clusterIP=SAME)
    scene.add_pod()
    scene.lower.fault = refusing(Invalid("spec.ports[0].port: Invalid value", code=422), "services")
    with pytest.raises(Invalid):
        await scene.controller.reconcile(key)
    assert scene.wrote() == [("create", key)]
    assert scene.reported == [("Warning", "FailedMirror")]
