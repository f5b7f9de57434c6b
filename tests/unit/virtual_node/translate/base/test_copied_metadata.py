"""Every copy gets its labels and annotations by the same rule, when it is created and when it is updated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.policy.config import MetadataRules
from tests.unit.virtual_node.translate.copying import lower_copy, patch, view_of
from virtual_node.translate.base.ownership import Owner
from virtual_node.translate.kinds import KINDS
from virtual_node.translate.storage import pvc, shared

OWNER = Owner("c", "vn")
DENIED, EXTRA, KEPT = "velero.io/restore-name", "example.com/secret", "team"
KEYS = {DENIED: "true", EXTRA: "x", KEPT: "a", "virtual-node.io/node": "forged"}
Copy = Callable[[dict[str, Any], MetadataRules], dict[str, Any]]


def _upper(kind: str, **fields: Any) -> dict[str, Any]:
    metadata = {"name": "n", "namespace": "shop", "uid": "u", "labels": dict(KEYS), "annotations": dict(KEYS)}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **fields}


def _copied(upper: dict[str, Any], rules: MetadataRules) -> dict[str, Any]:
    return lower_copy(upper["kind"], upper, view_of(rules=rules))


def _generated(upper: dict[str, Any], rules: MetadataRules) -> dict[str, Any]:
    """The metadata that a ResourceClaimTemplate gives to its claims."""
    return {"metadata": _copied(upper, rules)["spec"]["metadata"]}


def _claim(upper: dict[str, Any], rules: MetadataRules) -> dict[str, Any]:
    return pvc.lower_claim(upper, namespace="shop", owner=OWNER, storage_class=None, rules=rules)


def _guest(upper: dict[str, Any], rules: MetadataRules) -> dict[str, Any]:
    mirror = {"metadata": {"uid": "m"}, "spec": {"capacity": {"storage": "1Gi"}}}
    return shared.guest_claim(upper, mirror, namespace="shop", owner=OWNER, rules=rules)


_BACKEND = {"name": "web", "port": {"number": 80}}
_CONTENT: dict[str, dict[str, Any]] = {
    "Service": {"spec": {}},
    "EndpointSlice": {"addressType": "IPv4"},
    "Ingress": {"spec": {"defaultBackend": {"service": _BACKEND}}},
    "Gateway": {"spec": {"gatewayClassName": "c", "listeners": [{"name": "web", "port": 80}]}},
    "HTTPRoute": {"spec": {"parentRefs": [{"name": "g"}], "rules": [{"backendRefs": [{"name": "web"}]}]}},
    "PodDisruptionBudget": {"spec": {"selector": {}}},
}
COPIES: dict[str, tuple[dict[str, Any], Copy]] = {
    **{kind.kind: (_upper(kind.kind, **_CONTENT.get(kind.kind, {})), _copied) for kind in KINDS},
    "template": (
        _upper("ResourceClaimTemplate", spec={"metadata": {"labels": KEYS, "annotations": KEYS}}),
        _generated,
    ),
    "PersistentVolumeClaim": (_upper("PersistentVolumeClaim", spec={}), _claim),
    "guest claim": (_upper("PersistentVolumeClaim", spec={}), _guest),
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


@pytest.mark.parametrize("name", [kind.kind for kind in KINDS])
def test_keys_that_were_copied_before_are_removed(name):
    """By an earlier release, or before the policy changed; keys of other programs stay."""
    upper, copy = COPIES[name]
    before = copy(upper, MetadataRules(keep=["*"]))
    for field in ("labels", "annotations"):
        before["metadata"][field]["lower.example.com/own"] = "x"
    after = copy(upper, MetadataRules(leave_out=["example.com/*"]))
    change: Any = patch(name, before, after, upper)
    assert {key: value for key, value in change["metadata"]["labels"].items() if "/" in key} == {
        DENIED: None,
        EXTRA: None,
    }
    assert change["metadata"]["annotations"].items() >= {DENIED: None, EXTRA: None}.items()
    assert "lower.example.com/own" not in change["metadata"]["annotations"]


@pytest.mark.parametrize("name", [kind.kind for kind in KINDS])
def test_keys_of_controllers_are_not_taken_for_copied(name):
    """Clients and controllers of both clusters write them, and a copy of an earlier release has no record."""
    upper, copy = COPIES[name]
    theirs = {names.ANNOTATION_LAST_APPLIED: "{}"}
    upper = {**upper, "metadata": {**upper["metadata"], "annotations": theirs}}
    before, after = copy(upper, MetadataRules()), copy(upper, MetadataRules())
    del before["metadata"]["annotations"][names.ANNOTATION_APPLIED]
    before["metadata"]["annotations"] |= theirs
    change: Any = patch(name, before, after, upper)
    assert set(change["metadata"]["annotations"]) == {names.ANNOTATION_APPLIED}


def test_a_key_that_a_lower_program_set_to_another_value_stays_on_a_config_map():
    upper, copy = COPIES["ConfigMap"]
    desired = copy(upper, MetadataRules())
    below = copy(upper, MetadataRules())
    below["metadata"]["labels"] |= {DENIED: "set in the lower cluster"}
    assert patch("ConfigMap", below, desired, upper) is None


def test_later_changes_follow_the_rule():
    upper, copy = COPIES["Service"]
    before = copy(upper, MetadataRules())
    metadata = {**upper["metadata"], "labels": {KEPT: "b", "argocd.argoproj.io/instance": "x"}}
    change: Any = patch("Service", before, copy({**upper, "metadata": metadata}, MetadataRules()))
    assert change["metadata"]["labels"] == {KEPT: "b", EXTRA: None}
