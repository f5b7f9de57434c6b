"""Directories of the node, inline drivers and certificates are allowed by name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.clusterset.model.policy.pods import INJECTED, broken, judge, pod


def _volume(**source: Any) -> dict[str, Any]:
    return pod(volumes=[{"name": "data", **source}])


@pytest.mark.parametrize(
    ("path", "allowed", "refused"),
    [
        ("/var/log/x", ["/var/log"], ""),
        ("/var/log", ["/var/log/"], ""),
        ("/var/logs", ["/var/log"], "/var/logs"),
        ("/var/log/../../etc", ["/var/log"], "/var/log/../../etc"),
        ("/", ["/var/log"], "/"),
        ("", ["/var/log"], "/"),
        ("var/log", ["/var/log"], "var/log"),
        ("//var/log", ["/var/log"], "//var/log"),
        ("/etc", [], "/etc"),
        ("/etc", ["/"], ""),
    ],
)
def test_host_paths_are_allowed_by_directory(path, allowed, refused):
    """By whole path elements, without ``..``."""
    values = [violation.value for violation in judge(_volume(hostPath={"path": path}), host_paths=allowed)]
    assert values == ([refused] if refused else [])


def test_inline_drivers_are_allowed_by_name():
    """A driver for the cluster's own use may mount data that tenants must not see."""
    body = _volume(csi={"driver": "secrets-store.csi.k8s.io"})
    assert broken(body, csi_drivers=["other"]) == [("csiDrivers", "spec.volumes[data].csi.driver")]
    assert judge(body, csi_drivers=["secrets-store.*"]) == []


def test_any_signer_of_certificates_is_allowed():
    """A signer that the policy does not name is one of the upper cluster, which issues for the upper identity."""
    body = _volume(projected={"sources": [{"podCertificate": {"signerName": "example.com/team"}}]})
    assert judge(body) == judge(body, pod_certificates=["example.com/*"]) == []


def test_volumes_of_unknown_types_are_refused():
    """A type of a later Kubernetes may have powers that this release cannot judge."""
    assert broken(_volume(laser={})) == [("volumeTypes", "spec.volumes[data].laser")]
    assert judge(_volume(laser={}), volume_types=["*"]) == []


def test_a_generic_ephemeral_volume_counts_as_a_claim():
    """The virtual node makes a claim of it; the fit agent sees the volume before that."""
    sources: list[dict[str, Any]] = [{"ephemeral": {}}, {"persistentVolumeClaim": {"claimName": "c"}}]
    for source in sources:
        assert judge(_volume(**source), volume_types=["persistentVolumeClaim"]) == []
        assert [rule for rule, _ in broken(_volume(**source), volume_types=["emptyDir"])] == ["volumeTypes"]


def test_the_injected_token_volume_needs_no_rule():
    """User volumes of the same type do, and so do unknown sources in it."""
    token = {"projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    body = pod(volumes=[{"name": "kube-api-access-x7k2p", **token}, {"name": "mine", **token}])
    assert broken(body, volume_types=["emptyDir"]) == [("volumeTypes", "spec.volumes[mine].projected")]
    body = pod(volumes=[{"name": "kube-api-access-x7k2p", "projected": {"sources": [{"laser": {}}]}}])
    assert [rule for rule, _ in broken(body)] == ["volumeTypes"]


_TOKEN = INJECTED[0]


@pytest.mark.parametrize(
    "sources",
    [
        [{"secret": {"name": "database"}}],
        [{"secret": {"name": "web-token-12345678"}}],
        [{"configMap": {"name": "settings"}}],
        [*INJECTED, {"secret": {"name": "database"}}],
        [*INJECTED, {"configMap": {"name": "settings"}}],
        [_TOKEN, {"configMap": {"name": "kube-root-ca.crt"}}],
        [
            _TOKEN,
            {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        ],
        [{"serviceAccountToken": {"path": "token", "audience": "vault"}}],
        [{"serviceAccountToken": {"path": "token"}, "secret": {"name": "database"}}],
        INJECTED[1:],
        [],
    ],
)
def test_the_name_of_the_token_volume_does_not_exempt_other_content(sources):
    """Users can give a volume any name."""
    volume = {"name": "kube-api-access-evil", "projected": {"sources": sources}}
    body = pod(volumes=[volume])
    body["metadata"]["labels"] = {"virtual-node.io/upper-uid": "87654321-u"}
    assert broken(body, volume_types=["emptyDir"]) == [
        ("volumeTypes", "spec.volumes[kube-api-access-evil].projected")
    ]


def test_the_token_volumes_of_kubernetes_and_openshift_are_exempt():
    """OpenShift adds its own certificates."""
    service_ca = {
        "items": [{"key": "service-ca.crt", "path": "service-ca.crt"}],
        "name": "openshift-service-ca.crt",
    }
    for sources in (INJECTED, (*INJECTED, {"configMap": service_ca})):
        body = pod(volumes=[{"name": "kube-api-access-x7k2p", "projected": {"sources": sources}}])
        assert broken(body, volume_types=["emptyDir"]) == []
