"""Ingresses, their Secrets and their addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from clusterset.model import names
from controller_runtime.errors import Forbidden
from controller_runtime.util.rate_limiter import BURST
from tests.unit.virtual_node.controllers.copies.follow_setup import Scene
from virtual_node.controllers.copies.controller import AddressReports
from virtual_node.translate.follow.addresses import KEY_OBJECT, Recorder
from virtual_node.translate.pods import api_server

pytestmark = pytest.mark.looptime
SPEC = {
    "defaultBackend": {"service": {"name": "web", "port": {"number": 80}}},
    "tls": [{"hosts": ["a.example.com"], "secretName": "cert"}],
}


def _scene(*, with_secret: bool = True) -> Scene:
    """A pod and the copy of its Service in the lower cluster."""
    scene = Scene("ingresses")
    scene.add_pod()
    _add_service(scene)
    if with_secret:
        secret = {
            "metadata": {"name": "cert", "namespace": "shop", "uid": "s"},
            "kind": "Secret",
            "data": {"k": "eA=="},
        }
        scene.upper.put("secrets", secret)  # fmt: skip
    return scene


def _add_service(scene: Scene, name: str = "web", *, namespace: str = "shop", **spec: Any) -> None:
    metadata = {
        "name": name, "namespace": namespace, "uid": f"copy-{name}",
        "labels": {names.LABEL_UPPER_CLUSTER: "upper-1"}, "annotations": {names.ANNOTATION_UPPER_NAMESPACE: "shop"},
    }  # fmt: skip
    scene.lower.put("services", {"metadata": metadata, "spec": spec})


async def _reconcile(scene: Scene, key: str) -> Any:
    watching = asyncio.ensure_future(scene.dependencies.run())
    try:
        return await scene.controller.reconcile(key)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _statuses(scene: Scene, cluster: Any) -> list[str]:
    status = cluster.the("ingresses", "shop/web").get("status") or {}
    return [one["ip"] for one in (status.get("loadBalancer") or {}).get("ingress") or ()]


def _serve(scene: Scene, *addresses: str) -> None:
    entries = [{"ip": address} for address in addresses]
    scene.lower.change("ingresses", "shop/web", status={"loadBalancer": {"ingress": entries}})


async def test_follows_its_service_with_its_secret():
    scene = _scene()
    key = scene.add(SPEC)
    await _reconcile(scene, key)
    copy = scene.copy()
    assert copy is not None
    assert copy["spec"] == SPEC
    assert scene.lower.the("secrets", "shop/cert")["data"] == {"k": "eA=="}
    scene.lower.remove("services", "shop/web")
    await _reconcile(scene, key)
    assert scene.copy() is None
    assert scene.dependencies._users == {}


async def test_follows_with_the_secrets_that_annotations_name():
    scene = _scene()
    key, annotation = scene.add(SPEC), "nginx.ingress.kubernetes.io/auth-secret"
    users = {
        "metadata": {"name": "users", "namespace": "shop", "uid": "s-2"},
        "kind": "Secret",
        "data": {"auth": "eA=="},
    }
    scene.upper.put("secrets", users)
    scene.upper.change("ingresses", key, metadata={"annotations": {annotation: "shop/users"}})
    await _reconcile(scene, key)
    assert scene.lower.the("secrets", "shop/users")["data"] == {"auth": "eA=="}
    scene.upper.change("ingresses", key, metadata={"annotations": {annotation: "admin/users"}})
    await _reconcile(scene, key)
    assert scene.copy() is None
    assert [reason for reason, _ in scene.reported] == ["NotMirrored"]


async def test_a_config_map_that_an_annotation_names_is_copied_and_never_one_of_others():
    """The proxy would send the values of an unmanaged one to the server that the tenant names in auth-url."""
    scene = _scene()
    for name in ("headers", "internal"):
        metadata = {"name": name, "namespace": "shop", "uid": name}
        scene.upper.put("configmaps", {"metadata": metadata, "kind": "ConfigMap", "data": {"X-A": "1"}})
    scene.lower.put("configmaps", {"metadata": {"name": "internal", "namespace": "shop", "uid": "theirs"}})
    key, annotation = scene.add(SPEC), "nginx.ingress.kubernetes.io/auth-proxy-set-headers"
    scene.upper.change("ingresses", key, metadata={"annotations": {annotation: "shop/headers"}})
    await _reconcile(scene, key)
    assert scene.lower.the("configmaps", "shop/headers")["data"] == {"X-A": "1"}
    assert scene.copy() is not None
    scene.upper.change("ingresses", key, metadata={"annotations": {annotation: "shop/internal"}})
    await _reconcile(scene, key)
    assert scene.copy() is None
    assert [reason for reason, _ in scene.reported] == ["DependencyConflict"]


async def test_an_ingress_follows_the_annotations_of_its_service():
    """Its Service could configure the shared proxy in its place."""
    scene = _scene()
    key, snippet = scene.add(SPEC), {"haproxy.org/backend-config-snippet": "http-request lua.x"}
    service = {
        "metadata": {"name": "web", "namespace": "shop", "uid": "s-web", "annotations": {}},
        "spec": {},
    }
    scene.upper.put("services", service)
    await _reconcile(scene, key)
    assert scene.copy() is not None
    queued = _queued(scene)
    scene.upper.change("services", "shop/web", metadata={"annotations": snippet})
    assert queued() == {key}
    await _reconcile(scene, key)
    assert scene.copy() is None
    assert [reason for reason, _ in scene.reported] == ["NotMirrored"]
    scene.upper.change("services", "shop/web", metadata={"annotations": {next(iter(snippet)): None}})
    assert queued() == {key}
    await _reconcile(scene, key)
    assert scene.copy() is not None


async def test_the_api_server_is_not_published():
    """The lower Service that leads to the upper API server is ours, but no upper Service has its name."""
    scene = _scene()
    body = api_server.service("upper-1", namespace="shop", upper_namespace="shop", ip="10.0.0.1")
    scene.lower.put("services", body)
    name = body["metadata"]["name"]
    key = scene.add({"defaultBackend": {"service": {"name": name, "port": {"number": 443}}}})
    await _reconcile(scene, key)
    assert scene.copy() is None
    assert not scene.surroundings.view().has_service("shop", name)
    assert scene.surroundings.view().has_service("shop", "web")


async def test_a_secret_of_others_is_never_used():
    """Otherwise a tenant could serve the certificate of a lower administrator."""
    scene = _scene()
    scene.lower.put("secrets", {"metadata": {"name": "cert", "namespace": "shop", "uid": "theirs"}})
    key = scene.add(SPEC)
    await _reconcile(scene, key)
    assert scene.copy() is None
    assert [reason for reason, _ in scene.reported] == ["DependencyConflict"]


async def test_a_missing_secret_reserves_its_name():
    scene = _scene(with_secret=False)
    await _reconcile(scene, scene.add(SPEC))
    assert scene.copy() is not None
    assert names.ANNOTATION_PLACEHOLDER in scene.lower.the("secrets", "shop/cert")["metadata"]["annotations"]


async def test_reports_and_withdraws_its_addresses():
    scene = _scene()
    key = scene.add(SPEC, status={"loadBalancer": {"ingress": [{"ip": "9.9.9.9"}]}})
    await _reconcile(scene, key)
    _serve(scene, "1.1.1.1")
    for _ in range(3):
        await _reconcile(scene, key)
    assert _statuses(scene, scene.upper) == ["9.9.9.9", "1.1.1.1"]
    _serve(scene, "2.2.2.2")
    for _ in range(3):
        await _reconcile(scene, key)
    assert _statuses(scene, scene.upper) == ["9.9.9.9", "2.2.2.2"]
    before = len(scene.writes())
    await _reconcile(scene, key)
    assert len(scene.writes()) == before
    scene.lower.remove("services", "shop/web")
    await _reconcile(scene, key)
    assert scene.copy() is None
    assert _statuses(scene, scene.upper) == ["9.9.9.9"]


FORGED = [
    '[{"ip":"9.9.9.9"}]',
    '{"addresses":[{"ip":"9.9.9.9"}],"hash":""}',
    Recorder(b"x" * 32, "lower1", "u-1").write([{"ip": "9.9.9.9"}]),
]


@pytest.mark.parametrize("forged", FORGED)
async def test_a_forged_record_removes_no_address_of_others(forged):
    """A lower administrator writes what other clusters have reported into the annotation of the copy."""
    scene = _scene()
    key = scene.add(SPEC, status={"loadBalancer": {"ingress": [{"ip": "9.9.9.9"}]}})
    await _reconcile(scene, key)
    _serve(scene, "1.1.1.1")
    await _reconcile(scene, key)
    scene.lower.change("ingresses", "shop/web", metadata={"annotations": {names.ANNOTATION_REPORTED: forged}})
    for _ in range(3):
        await _reconcile(scene, key)
    assert _statuses(scene, scene.upper) == ["9.9.9.9", "1.1.1.1"]
    scene.lower.remove("services", "shop/web")
    await _reconcile(scene, key)
    assert "9.9.9.9" in _statuses(scene, scene.upper)


async def test_an_address_of_another_cluster_that_is_reported_and_withdrawn_stays():
    """A hostile cluster reports it for a while, so that it would be removed as one of its own."""
    scene = _scene()
    key = scene.add(SPEC, status={"loadBalancer": {"ingress": [{"ip": "9.9.9.9"}]}})
    await _reconcile(scene, key)
    for addresses in (["9.9.9.9", "1.1.1.1"], ["1.1.1.1"], []):
        _serve(scene, *addresses)
        for _ in range(3):
            await _reconcile(scene, key)
    assert _statuses(scene, scene.upper) == ["9.9.9.9"]


async def test_addresses_that_change_all_the_time_are_written_rarely():
    scene = _scene()
    key = scene.add(SPEC)
    await _reconcile(scene, key)
    result: Any = None
    for number in range(100):
        _serve(scene, f"10.0.0.{number}")
        result = await _reconcile(scene, key)
    writes = sum(found == "ingresses/status" for _, found, _ in scene.upper.calls)
    assert BURST <= writes <= BURST + 1
    await asyncio.sleep(result.requeue_after)
    await _reconcile(scene, key)
    assert _statuses(scene, scene.upper) == ["10.0.0.99"]


async def test_backends_follow_the_copies_of_their_services():
    """A Service that virtual-node did not create is never published, also not one with our labels elsewhere."""
    scene = _scene()
    paths = [
        {
            "path": f"/{name}",
            "pathType": "Prefix",
            "backend": {"service": {"name": name, "port": {"number": 80}}},
        }
        for name in ("web", "admin")
    ]
    key = scene.add({"rules": [{"http": {"paths": paths}}]})

    async def backends() -> list[str]:
        await _reconcile(scene, key)
        copy = scene.copy()
        assert copy is not None
        return [path["backend"]["service"]["name"] for path in copy["spec"]["rules"][0]["http"]["paths"]]

    _add_service(scene, "admin", namespace="elsewhere")
    assert await backends() == ["web", "service-without-copy"]
    assert [reason for reason, _ in scene.reported] == ["PartlyMirrored"]
    queued = _queued(scene)
    _add_service(scene, "admin")
    assert queued() == {key}
    assert await backends() == ["web", "admin"]
    scene.lower.change(
        "services", "shop/admin", spec={"type": "ExternalName", "externalName": "a.others.svc"}
    )
    assert queued() == {key}
    assert await backends() == ["web", "service-without-copy"]
    scene.lower.change("services", "shop/admin", spec={"type": "ClusterIP"})
    assert await backends() == ["web", "admin"]
    scene.lower.remove("services", "shop/admin")
    assert queued() == {key}
    assert await backends() == ["web", "service-without-copy"]


async def test_an_ingress_that_may_not_be_copied_loses_its_copy():
    """The event names the annotation and the setting."""
    scene = _scene()
    key = scene.add(SPEC)
    await _reconcile(scene, key)
    assert scene.copy() is not None
    snippet = "nginx.ingress.kubernetes.io/server-snippet"
    scene.upper.change("ingresses", key, metadata={"annotations": {snippet: "proxy_pass http://bank;"}})
    await _reconcile(scene, key)
    assert scene.copy() is None
    ((reason, message),) = scene.reported
    assert reason == "NotMirrored"
    assert f"{snippet} (pattern */*-snippet) may not be copied" in message
    assert "can add it to clusters[lower1].policy.metadata.keep" in message


async def test_a_route_that_cannot_be_translated_any_more_is_not_served():
    scene = _scene()
    key = scene.add(SPEC)
    await _reconcile(scene, key)
    bucket = {"resource": {"apiGroup": "k8s.example.com", "kind": "Bucket", "name": "static"}}
    scene.upper.change("ingresses", key, spec={"defaultBackend": bucket})
    await _reconcile(scene, key)
    assert scene.copy() is None


def _queued(scene: Scene) -> Callable[[], set[str]]:
    """Record keys that are queued from now on; return a function that returns and forgets them."""
    found: set[str] = set()
    queue: Any = scene.controller.controller.queue
    queue.add_after = lambda key, _delay: found.add(key)

    def take() -> set[str]:
        taken = set(found)
        found.clear()
        return taken

    return take


async def test_a_new_process_removes_what_an_earlier_one_added():
    """Both read the key from the Secret."""
    scene = _scene()
    key = scene.add(SPEC, status={"loadBalancer": {"ingress": [{"ip": "9.9.9.9"}]}})
    await _reconcile(scene, key)
    _serve(scene, "1.1.1.1")
    await _reconcile(scene, key)
    scene.controller._addresses = AddressReports(scene.context, scene.kind)
    _serve(scene, "2.2.2.2")
    await _reconcile(scene, key)
    assert _statuses(scene, scene.upper) == ["9.9.9.9", "2.2.2.2"]
    assert scene.upper.find("secrets", f"kube-system/{KEY_OBJECT}") is not None


async def test_without_the_right_to_the_key_only_this_process_removes_its_addresses():
    """The account has no right to write the Secret; one warning names it."""
    scene = _scene()
    scene.upper.fault = lambda verb, plural, key: (
        Forbidden("no right", code=403)
        if plural == "secrets" and verb in {"create", "update"} and KEY_OBJECT in key
        else None
    )
    key = scene.add(SPEC)
    await _reconcile(scene, key)
    with capture_logs() as logs:
        for address in ("1.1.1.1", "2.2.2.2"):
            _serve(scene, address)
            await _reconcile(scene, key)
            await asyncio.sleep(100)
        assert _statuses(scene, scene.upper) == ["2.2.2.2"]
        scene.controller._addresses = AddressReports(scene.context, scene.kind)
        _serve(scene, "3.3.3.3")
        await _reconcile(scene, key)
    assert _statuses(scene, scene.upper) == ["2.2.2.2", "3.3.3.3"]
    assert [KEY_OBJECT in entry["error"] for entry in logs if "not removed" in entry["event"]] == [True] * 2
