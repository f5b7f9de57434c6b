"""Every field of a pod's spec has a verdict, and the lower pod is what the verdict says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from clusterset.admission import Admitted, ClusterRules, Refusal
from clusterset.config import KNOWN_CONTROLLERS, Cluster
from clusterset.model.pod import spec_fields
from clusterset.model.pod.resource_claims import ResourceClaimsConfig
from clusterset.model.pod.spec_fields import Verdict
from clusterset.model.policy.config import Policy
from controller_runtime.apimachinery.translation_budget import TranslationBudget
from tests.pod_schema import PodField, placed, pod_fields, values_at
from tests.unit.virtual_node.translate.pods.pods import OPTIONS
from virtual_node.translate.pods import downward_api, lower_pod, service_account

RULES = ClusterRules(
    Cluster(
        name="a",
        kubeconfig="",
        policy=Policy(preset="privileged", control_plane=True, runtime_classes=["*"]),
        resource_claims=ResourceClaimsConfig(enabled=True),
    ),
    controllers=KNOWN_CONTROLLERS,
    cluster_id=OPTIONS.owner.cluster_id,
)
FIELDS = pod_fields()
ROOT_CA = service_account.root_ca_name(OPTIONS.owner.cluster_id)
RELEASES = ("1.34", "1.35", "1.36", "1.37")
TRANSLATED: dict[str, tuple[Any, Any]] = {
    "automountServiceAccountToken": (True, [False]),
    "containers.env.valueFrom.configMapKeyRef.name": (
        service_account.ROOT_CA,
        [ROOT_CA],
    ),
    "containers.env.valueFrom.fieldRef.fieldPath": ("spec.nodeName", []),
    "containers.envFrom.configMapRef.name": (
        service_account.ROOT_CA,
        [ROOT_CA],
    ),
    "dnsConfig": ({"searches": ["x"]}, [{"searches": ["x"]}]),
    "dnsPolicy": ("Default", ["Default"]),
    "volumes.configMap.name": (
        service_account.ROOT_CA,
        [ROOT_CA],
    ),
    "volumes.downwardAPI.items.fieldRef.fieldPath": (
        "metadata.uid",
        [f"metadata.annotations['{downward_api.ANNOTATION_UID}']"],
    ),
    "volumes.ephemeral": ({"volumeClaimTemplate": {"spec": {}}}, []),
    "volumes.projected.sources.configMap.name": (
        service_account.ROOT_CA,
        [ROOT_CA],
    ),
    "volumes.projected.sources.downwardAPI.items.fieldRef.fieldPath": (
        "metadata.uid",
        [f"metadata.annotations['{downward_api.ANNOTATION_UID}']"],
    ),
    "volumes.projected.sources.clusterTrustBundle": ({"name": "ca", "path": "ca.pem"}, []),
    "volumes.projected.sources.clusterTrustBundle.user": (1000, []),
    "volumes.projected.sources.podCertificate": ({"signerName": "example.com/s", "keyPath": "key"}, []),
    "volumes.projected.sources.podCertificate.user": (1000, []),
    "volumes.projected.sources.podCertificate.userAnnotations": ({"example.com/a": "b"}, []),
    "volumes.projected.sources.serviceAccountToken": ({"path": "token"}, []),
    "volumes.projected.sources.serviceAccountToken.user": (1000, []),
    "nodeSelector": ({"type": "virtual-kubelet"}, []),
    "affinity": ({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}, []),
    "tolerations": ([{"key": "virtual-kubelet.io/provider", "operator": "Exists"}], []),
    "topologySpreadConstraints": ([{"topologyKey": "topology.kubernetes.io/zone"}], []),
    "schedulerName": ("upper-scheduler", []),
    "priorityClassName": ("upper-class", []),
    "serviceAccountName": ("upper-account", []),
    "resourceClaims": (
        [{"name": "x", "resourceClaimName": "c"}],
        [[{"name": "x", "resourceClaimName": "c"}]],
    ),
}
"""A value in the upper pod for each field that is translated, and the values in the lower pod."""


def pod_with(path: str, value: Any) -> dict[str, Any]:
    """Return an upper pod on the virtual node with one field."""
    spec = {"nodeName": "vn", "containers": [{"name": "x", "image": "i"}], **placed(path, value)}
    return {"metadata": {"name": "p", "namespace": "shop", "uid": "u"}, "spec": spec}


def lower_spec_of(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the spec of the lower pod, with the ephemeral containers that an update adds."""
    admitted = RULES.admit(pod, OPTIONS)
    assert isinstance(admitted, Admitted), admitted
    spec = lower_pod.created(pod, OPTIONS, admitted, TranslationBudget())["spec"]
    assert "ephemeralContainers" not in spec
    if containers := lower_pod.ephemeral_containers(pod, OPTIONS):
        spec["ephemeralContainers"] = containers
    return dict(spec)


def leaves(verdict: Verdict) -> Iterator[PodField]:
    """Yield the fields with a verdict that have no fields themselves."""
    found = [field for field in FIELDS if field.is_leaf and spec_fields.verdict(field.plain) is verdict]
    assert found
    yield from found


def test_each_field_of_the_pod_and_each_new_field_has_a_row():
    """New are the fields that the oldest release of the list does not have. Fields below a row for a new field need none."""
    new = {field.plain for field in FIELDS if field.is_new} & spec_fields.VERDICTS.keys()
    decided = {Verdict.UPPER_ONLY, Verdict.REFUSED}
    missing = [
        field.path
        for field in FIELDS
        if ("." not in field.path or field.is_new)
        and field.plain not in spec_fields.VERDICTS
        and spec_fields.verdict(field.plain) not in decided
        and not any(field.plain.startswith(f"{row}.") for row in new)
    ]
    assert missing == []


def test_each_row_is_about_a_field_of_a_release():
    """A wrong path would decide nothing."""
    known = {field.plain for release in RELEASES for field in pod_fields(release)}
    must_arrive = {path.removesuffix(".*") for path in spec_fields.MUST_ARRIVE}
    assert (spec_fields.VERDICTS.keys() | must_arrive) - known == set()


def test_a_field_that_travels_is_the_same_in_the_lower_pod():
    """Also in init containers and debug containers."""
    for field in leaves(Verdict.TRAVELS):
        spec = lower_spec_of(pod_with(field.path, field.value()))
        assert field.value() in values_at(spec, field.path), field.path


def test_an_upper_only_field_is_not_in_the_lower_pod():
    """It means nothing there, or something else."""
    for field in leaves(Verdict.UPPER_ONLY):
        value = "vn" if field.path == "nodeName" else field.value()
        assert values_at(lower_spec_of(pod_with(field.path, value)), field.path) == [], field.path


def test_a_refused_field_refuses_the_pod_and_is_named():
    """Whatever the policy allows."""
    for field in leaves(Verdict.REFUSED):
        refusal = RULES.admit(pod_with(field.path, field.value()), OPTIONS)
        assert isinstance(refusal, Refusal), field.path
        assert re.search(r"spec\.volumes\[x\]\.glusterfs ", refusal.reason)


@pytest.mark.parametrize("path", TRANSLATED)
def test_a_translated_field_has_its_lower_value(path: str):
    """In each container, and each other place that has the field."""
    value, expected = TRANSLATED[path]
    for field in FIELDS:
        if field.plain == path:
            place = field.path if isinstance(value, list) else field.path.removesuffix("{}")
            assert values_at(lower_spec_of(pod_with(place, value)), place) == expected


def test_each_translated_field_has_an_example():
    """``TRANSLATED`` has them."""
    rows = spec_fields.VERDICTS.items()
    assert {path for path, found in rows if found is Verdict.TRANSLATED} == TRANSLATED.keys()
