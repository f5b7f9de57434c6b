"""``cleanup`` of a lower cluster: all own objects, none that others use."""

from __future__ import annotations

from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.namespace_map import NamespaceConfig
from tests.unit.virtual_node.commands.installations import CLUSTER, Api, ours, thing
from virtual_node.commands.cleanup.lower import LowerCleanup

pytestmark = pytest.mark.looptime


def _lower(api: Any, *, upper_claims: frozenset[str] = frozenset()) -> tuple[LowerCleanup, list[str]]:
    said: list[str] = []
    cleanup = LowerCleanup(
        api,
        cluster_id=CLUSTER,
        nodes=["vn"],
        namespaces=NamespaceConfig(adopt=["shop"]),
        upper_claims=upper_claims,
        say=said.append,
    )
    return cleanup, said


async def test_only_objects_with_our_label_are_deleted():
    """Unmanaged objects, and those of another virtual node of the same upper cluster, stay."""
    api = Api(
        ours("Pod", "web"),
        ours("ConfigMap", "settings"),
        ours("Secret", "key"),
        *(ours(kind, "followed") for kind in ("Gateway", "HTTPRoute", "Ingress", "NetworkPolicy")),
        ours("PodDisruptionBudget", "followed"),
        ours("ConfigMap", "theirs", node="another"),
        thing("ConfigMap", "stranger", namespace="shop"),
    )
    cleanup, said = _lower(api)
    await cleanup.run()
    assert [one.name for one in api.objects] == ["theirs", "stranger"]
    assert said == [
        "tokyo: removed 1 ConfigMap, 1 Secret, 1 HTTPRoute, 1 Gateway, 1 Ingress, 1 PodDisruptionBudget, 1 NetworkPolicy"
    ]


async def test_copies_that_pods_of_another_installation_use_stay():
    """Virtual nodes of one upper cluster share one copy of each ConfigMap, labelled by the one that made it."""
    api = Api(
        ours("Pod", "web"),
        ours("ConfigMap", "settings"),
        ours("Service", "web"),
        ours("Pod", "theirs", node="another"),
    )
    cleanup, said = _lower(api)
    await cleanup.run()
    assert api.deleted == ["Pod/shop/web"]
    assert said == [
        "tokyo: namespace shop has pods of other virtual nodes; objects that they may use are kept"
    ]


async def test_own_tokens_are_deleted_from_shared_namespaces():
    """The process that would delete them with their pod may have been stopped before."""
    token, theirs = ours("Secret", "web-token-1"), ours("Secret", "theirs-token-2", node="another")
    for secret in (token, theirs):
        secret["metadata"]["labels"][names.LABEL_TOKEN_OF] = "u"
    api = Api(token, theirs, ours("Pod", "theirs", node="another"))
    cleanup, said = _lower(api)
    await cleanup.run()
    assert api.deleted == ["Secret/shop/web-token-1"]
    assert said[-1] == "tokyo: removed 1 Secret"


def _always(name: str, *nodes: str) -> dict[str, Any]:
    annotations = {f"always.virtual-node.io/{node}": "true" for node in nodes}
    service = ours("Service", name)
    service["metadata"]["annotations"] = annotations
    return service


def _slice(service: str) -> dict[str, Any]:
    one = ours("EndpointSlice", f"{service}-1")
    one["metadata"]["labels"]["kubernetes.io/service-name"] = service
    return one


async def test_services_that_another_installation_always_mirrors_stay():
    """With endpoints and namespace; the own annotation is removed, and Services of this installation alone are deleted."""
    labels = {names.LABEL_UPPER_CLUSTER: CLUSTER}
    api = Api(
        thing("Namespace", "shop", labels=labels),
        _always("dns", "vn", "another"),
        _always("kubernetes", "vn"),
        ours("Service", "web"),
        *(_slice(service) for service in ("dns", "kubernetes", "web")),
    )
    cleanup, said = _lower(api)
    await cleanup.run()
    assert api.deleted == [
        *(f"Service/shop/{name}" for name in ("kubernetes", "web")),
        *(f"EndpointSlice/shop/{name}-1" for name in ("kubernetes", "web")),
    ]
    ((name, patch),) = api.patched
    assert name == "dns"
    assert patch["metadata"]["annotations"] == {"always.virtual-node.io/vn": None}
    assert "tokyo: Service shop/dns is kept: another always needs it" in said


async def test_lower_claims_are_kept_and_reported():
    """Data is never deleted by an uninstall."""
    api = Api(ours("PersistentVolumeClaim", "data"), ours("PersistentVolumeClaim", "old"))
    cleanup, said = _lower(api, upper_claims=frozenset({"up-data"}))
    await cleanup.run()
    assert api.deleted == []
    assert said == [
        "tokyo: claim shop/data is kept: its upper claim exists",
        "tokyo: claim shop/old is kept: it was kept before",
    ]


async def test_an_empty_own_namespace_is_deleted():
    labels = {names.LABEL_UPPER_CLUSTER: CLUSTER}
    api = Api(thing("Namespace", "shop", labels=labels), thing("Namespace", "theirs"))
    cleanup, _ = _lower(api)
    await cleanup.run()
    assert api.deleted == ["Namespace/shop"]


@pytest.mark.parametrize(("phase", "claim", "is_used"), [
    ("Running", "data", True), ("Succeeded", "data", False), ("Running", "other", False),
])  # fmt: skip
async def test_pods_of_others_that_use_a_claim_keep_its_volume(phase: str, claim: str, *, is_used: bool):
    """Then no other lower cluster may write to the volume."""
    volumes = [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]
    api = Api(
        ours("PersistentVolumeClaim", "data"),
        thing("Pod", "theirs", namespace="shop", spec={"volumes": volumes}, status={"phase": phase}),
    )
    cleanup, _ = _lower(api)
    assert await cleanup.run() == is_used


async def test_objects_of_others_with_our_label_are_kept():
    """A user of the lower cluster has copied the labels to objects in an own namespace."""
    forged = [ours(kind, "trap", namespace="lowteam") for kind in ("Pod", "Secret", "PersistentVolumeClaim")]
    api = Api(ours("Pod", "web"), *forged)
    cleanup, said = _lower(api)
    assert not await cleanup.run()
    assert api.deleted == ["Pod/shop/web"]
    (line,) = said
    assert f"label virtual-node.io/upper-cluster={CLUSTER} in namespace lowteam are kept" in line
