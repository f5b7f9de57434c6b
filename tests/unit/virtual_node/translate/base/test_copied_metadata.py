"""Every copy gets its labels and annotations by the same rule, when it is created and when it is updated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clusterset.model.policy.config import MetadataRules, Policy
from clusterset.model.policy.rules import PolicySet
from virtual_node.translate.base.options import PodOptions
from virtual_node.translate.base.ownership import Owner
from virtual_node.translate.follow import copies as followed
from virtual_node.translate.objects import copies
from virtual_node.translate.services import endpoints, services
from virtual_node.translate.storage import pvc, shared

OWNER = Owner("c", "vn")
DENIED, EXTRA, KEPT = "velero.io/restore-name", "example.com/secret", "team"
KEYS = {DENIED: "true", EXTRA: "x", KEPT: "a", "virtual-node.io/node": "forged"}
Copy = Callable[[dict[str, Any], MetadataRules], dict[str, Any]]


def _upper(kind: str, **fields: Any) -> dict[str, Any]:
    metadata = {"name": "n", "namespace": "shop", "uid": "u", "labels": dict(KEYS), "annotations": dict(KEYS)}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields}


def _service(upper: dict[str, Any], rules: MetadataRules) -> dict[str, Any]:
    return services.lower_service(upper, namespace="shop", cluster_id="c", rules=rules)


def _slice(upper: dict[str, Any], rules: MetadataRules) -> dict[str, Any]:
    return endpoints.lower_slice(
        upper, service="n", namespace="shop", cluster_id="c", find_pod=lambda *_: None, rules=rules
    )


def _endpoints(upper: dict[str, Any], rules: MetadataRules) -> dict[str, Any]:
    return endpoints.lower_endpoints(
        upper, [], namespace="shop", cluster_id="c", find_pod=lambda *_: None, rules=rules
    )


def _followed(upper: dict[str, Any], rules: MetadataRules) -> dict[str, Any]:
    return followed.copy_of(upper, name="n", namespace="shop", cluster_id="c", spec={}, rules=rules)


def _options(rules: MetadataRules) -> PodOptions:
    return PodOptions(owner=OWNER, policy=PolicySet(Policy(metadata=rules)))


def _referenced(upper: dict[str, Any], rules: MetadataRules) -> dict[str, Any]:
    return copies.lower_copy(upper, _options(rules))


def _generated(upper: dict[str, Any], rules: MetadataRules) -> dict[str, Any]:
    """The metadata that a ResourceClaimTemplate gives to its claims."""
    return {"metadata": _referenced(upper, rules)["spec"]["metadata"]}


def _claim(upper: dict[str, Any], rules: MetadataRules) -> dict[str, Any]:
    return pvc.lower_claim(upper, namespace="shop", owner=OWNER, storage_class=None, rules=rules)


def _guest(upper: dict[str, Any], rules: MetadataRules) -> dict[str, Any]:
    mirror = {"metadata": {"uid": "m"}, "spec": {"capacity": {"storage": "1Gi"}}}
    return shared.guest_claim(upper, mirror, namespace="shop", owner=OWNER, rules=rules)


COPIES: dict[str, tuple[dict[str, Any], Copy]] = {
    "Service": (_upper("Service", spec={}), _service),
    "EndpointSlice": (_upper("EndpointSlice", addressType="IPv4"), _slice),
    "Endpoints": (_upper("Service", spec={}), _endpoints),
    **{kind: (_upper(kind), _referenced) for kind in ("ConfigMap", "Secret", "ResourceClaim")},
    "ResourceClaimTemplate": (_upper("ResourceClaimTemplate"), _referenced),
    "template": (
        _upper("ResourceClaimTemplate", spec={"metadata": {"labels": KEYS, "annotations": KEYS}}),
        _generated,
    ),
    "PersistentVolumeClaim": (_upper("PersistentVolumeClaim", spec={}), _claim),
    "guest claim": (_upper("PersistentVolumeClaim", spec={}), _guest),
    **{
        kind: (_upper(kind), _followed)
        for kind in ("Ingress", "Gateway", "HTTPRoute", "NetworkPolicy", "PodDisruptionBudget")
    },
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (MetadataRules(), {EXTRA, KEPT}),
        (MetadataRules(leave_out=["example.com/*"]), {KEPT}),
        (MetadataRules(keep=["velero.io/*"]), {DENIED, EXTRA, KEPT}),
        (MetadataRules(leave_out=["*"], keep=[KEPT]), {KEPT}),
    ],
)
def test_every_copy_follows_the_rule(name, rules, expected):
    upper, copy = COPIES[name]
    metadata = copy(upper, rules)["metadata"]
    for field in ("labels", "annotations"):
        assert metadata[field].keys() & {DENIED, EXTRA, KEPT} == expected
    assert metadata["labels"].get("virtual-node.io/node") != "forged"


@pytest.mark.parametrize("name", ["Service", "EndpointSlice", "Endpoints", "Ingress", "ConfigMap", "Secret"])
def test_keys_that_were_copied_before_are_removed(name):
    """By an earlier release, or before the policy changed; keys of other programs stay."""
    upper, copy = COPIES[name]
    before = copy(upper, MetadataRules(keep=["*"]))
    for field in ("labels", "annotations"):
        before["metadata"][field]["lower.example.com/own"] = "x"
    after = copy(upper, MetadataRules(leave_out=["example.com/*"]))
    patch: Any = {
        "Service": lambda: services.service_patch(before, after),
        "EndpointSlice": lambda: endpoints.slice_patch(before, after),
        "Endpoints": lambda: endpoints.endpoints_patch(before, after),
        "Ingress": lambda: followed.copy_patch(before, after),
    }.get(name, lambda: copies.copy_patch(before, after, upper))()
    assert {key: value for key, value in patch["metadata"]["labels"].items() if "/" in key} == {
        DENIED: None,
        EXTRA: None,
    }
    assert patch["metadata"]["annotations"].items() >= {DENIED: None, EXTRA: None}.items()
    assert "lower.example.com/own" not in patch["metadata"]["annotations"]


def test_a_key_that_a_lower_program_set_to_another_value_stays_on_a_config_map():
    upper, copy = COPIES["ConfigMap"]
    desired = copy(upper, MetadataRules())
    below = copy(upper, MetadataRules())
    below["metadata"]["labels"] |= {DENIED: "set in the lower cluster"}
    assert copies.copy_patch(below, desired, upper) is None


def test_later_changes_follow_the_rule():
    upper, copy = COPIES["Service"]
    before = copy(upper, MetadataRules())
    metadata = {**upper["metadata"], "labels": {KEPT: "b", "argocd.argoproj.io/instance": "x"}}
    patch: Any = services.service_patch(before, copy({**upper, "metadata": metadata}, MetadataRules()))
    assert patch["metadata"]["labels"] == {KEPT: "b", EXTRA: None}
