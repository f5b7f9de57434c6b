"""Lower copies of ResourceClaims and ResourceClaimTemplates, and the devices that they get."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from clusterset.model import names
from tests.unit.virtual_node.translate.copying import BY_NAME, lower_copy, view_of
from virtual_node.translate.base.view import UntranslatableError
from virtual_node.translate.objects import references

CLASSES = {"gpu": "their-gpu"}
EXACTLY = {"name": "one", "exactly": {"deviceClassName": "gpu", "count": 2}}
FIRST = {
    "name": "any",
    "firstAvailable": [{"name": "a", "deviceClassName": "gpu"}, {"name": "b", "deviceClassName": "tpu"}],
}
OPAQUE = {"opaque": {"driver": "d", "parameters": {"deviceClassName": "gpu", "adminAccess": True}}}


def claim(*requests: dict[str, Any], kind: str = references.CLAIM, **metadata: Any) -> dict[str, Any]:
    """A claim, or a template of one, whose driver parameters look like fields of the API."""
    spec: dict[str, Any] = {"devices": {"requests": list(requests), "config": [OPAQUE]}}
    if kind == references.TEMPLATE:
        spec = {"metadata": metadata, "spec": spec}
    whole = {"name": "g", "namespace": "shop", "uid": "u-1"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": whole,
        "spec": spec,
        "status": {"allocation": {}},
    }


@pytest.mark.parametrize("kind", references.KINDS)
def test_a_copy_requests_lower_device_classes(kind: str):
    """Parameters of drivers are copied unchanged, and the status is not copied."""
    copy = lower_copy(kind, claim(EXACTLY, FIRST, kind=kind), view_of(device_classes=CLASSES))
    assert "status" not in copy
    found = copy["spec"]
    devices = (found["spec"] if kind == references.TEMPLATE else found)["devices"]
    assert devices["config"] == [OPAQUE]
    assert devices["requests"] == [
        {"name": "one", "exactly": {"deviceClassName": "their-gpu", "count": 2}},
        {
            "name": "any",
            "firstAvailable": [
                {"name": "a", "deviceClassName": "their-gpu"},
                {"name": "b", "deviceClassName": "tpu"},
            ],
        },
    ]


def test_a_template_cannot_mark_generated_claims_as_ours():
    """They would look like copies of another tenant's claim."""
    forged = {
        "labels": {"team": "a", names.LABEL_UPPER_CLUSTER: "c", names.LABEL_GENERATED_FOR: "other"},
        "annotations": {"note": "b", names.ANNOTATION_UPPER_NAMESPACE: "other"},
    }
    template = claim(EXACTLY, kind=references.TEMPLATE, **forged)
    spec = lower_copy(references.TEMPLATE, template, view_of(cluster_id="c"))["spec"]
    assert spec["metadata"] == {
        "labels": {"team": "a", names.LABEL_GENERATED_FOR: "c"},
        "annotations": {"note": "b"},
    }


@pytest.mark.parametrize("kind", references.KINDS)
@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([EXACTLY, FIRST], False),
        ([], False),
        ([{"name": "one", "exactly": {"deviceClassName": "gpu", "adminAccess": False}}], False),
        ([EXACTLY, {"name": "one", "exactly": {"deviceClassName": "gpu", "adminAccess": True}}], True),
        ([{"name": "any", "firstAvailable": [{"name": "a", "adminAccess": True}]}], True),
    ],
)
def test_administrative_access_is_found(kind: str, requests: list[dict[str, Any]], *, expected: bool):
    """In requests of any form, and not in parameters of drivers."""
    with pytest.raises(UntranslatableError, match="adminAccess") if expected else contextlib.nullcontext():
        references.lower_claim(claim(*requests, kind=kind), view_of())


@pytest.mark.parametrize(
    ("uid", "kind", "expected"),
    [("u-1", "ResourceClaim", False), ("u-2", "ResourceClaim", True), ("u-2", "ConfigMap", False)],
)
def test_a_claim_of_a_new_upper_claim_is_replaced(uid: str, kind: str, *, expected: bool):
    """The spec of a claim cannot be changed."""
    lower = {"metadata": {"labels": {names.LABEL_UPPER_UID: "u-1"}}}
    desired = {"kind": kind, "metadata": {"labels": {names.LABEL_UPPER_UID: uid}}}
    assert BY_NAME[kind].must_replace(lower, desired) is expected


def allocated(count: int, **more: Any) -> dict[str, Any]:
    """A lower claim with devices."""
    results = [
        {"request": "one", "driver": "d", "pool": "p", "device": f"gpu-{n}", **more} for n in range(count)
    ]
    return {"status": {"allocation": {"devices": {"results": results}}}}


def test_the_record_is_small_whatever_the_lower_cluster_allocates():
    """A pod's annotations share 256 KiB; a record that is too large would block its status."""
    found = {f"claim-{n}": references.allocated(allocated(300, device="x" * 9999)) for n in range(40)}
    assert len(references.record(found)) < 80_000
    devices = references.allocated(allocated(1, adminAccess=True))
    record = {"gpu": [{"request": "one", "driver": "d", "pool": "p", "device": "gpu-0"}]}
    assert json.loads(references.record({"gpu": devices, "free": []})) == record
    assert references.record({"free": []}) == ""


@pytest.mark.parametrize(
    "status", [None, {}, {"allocation": None}, {"allocation": {}}, {"allocation": {"devices": {}}}]
)
def test_a_claim_without_allocation_has_no_devices(status: Any):
    """Its pod waits."""
    assert references.allocated({"status": status}) == []


def test_claims_of_a_lower_pod_are_found_by_their_name_in_the_pod():
    """Generated claims are in its status."""
    spec = {
        "resourceClaims": [
            {"name": "a", "resourceClaimName": "shared"},
            {"name": "b", "resourceClaimTemplateName": "t"},
        ]
    }
    status = {"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "web-b-x7"}, {"name": "c"}]}
    found = references.generated_names({"spec": spec, "status": status})
    assert found == {"a": "shared", "b": "web-b-x7"}


def test_the_record_of_a_hostile_cluster_is_small():
    """The annotations of a pod share 256 KiB, and the names of its claims come from the lower cluster, too."""
    result = dict.fromkeys(("request", "driver", "pool", "device"), "x" * 100_000)
    claim = {"status": {"allocation": {"devices": {"results": [result] * 1000}}}}
    devices = references.allocated(claim)
    text = references.record({"gpu": devices, "x" * 100_000: devices, "a b": devices})
    assert 10_000 < len(text) < 40_000
    assert text.startswith('{"gpu":')
