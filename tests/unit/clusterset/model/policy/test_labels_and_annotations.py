"""Labels and annotations that programs in the lower cluster obey need permission; ordinary ones do not."""

from __future__ import annotations

from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.policy.config import AnnotationRules, LabelRules, Rules
from tests.unit.clusterset.model.policy.pods import broken, judge, pod

ORDINARY = (
    "prometheus.io/scrape",
    "kubectl.kubernetes.io/restartedAt",
    "sidecar.istio.io/inject",
    "sidecar.istio.io/status",
    "proxy.istio.io/config",
    "linkerd.io/inject",
    "config.linkerd.io/image-pull-policy",
    "vault.hashicorp.com/agent-inject",
    "vault.hashicorp.com/role",
    "dapr.io/app-id",
    "networking.gke.io/other",
    "ad.datadoghq.com/main.logs",
    "ad.datadoghq.com/tags",
    "balloon.balloons.resource-policy.nri.io/pod",
    "team",
)


@pytest.mark.parametrize(
    "key",
    [
        "iam.amazonaws.com/role",
        "k8s.v1.cni.cncf.io/networks",
        "v1.multus-cni.io/default-network",
        "networking.gke.io/interfaces",
        "sidecar.istio.io/userVolume",
        "sidecar.istio.io/userVolumeMount",
        "sidecar.istio.io/proxyImage",
        "sidecar.istio.io/bootstrapOverride",
        "sidecar.istio.io/enableCoreDump",
        "proxy.istio.io/overrides",
        "consul.hashicorp.com/consul-sidecar-user-volume",
        "config.linkerd.io/init-image",
        "config.linkerd.io/close-wait-timeout",
        "vault.hashicorp.com/agent-json-patch",
        "vault.hashicorp.com/agent-init-json-patch",
        "vault.hashicorp.com/agent-image",
        "vault.hashicorp.com/agent-extra-secret",
        "vault.hashicorp.com/tls-secret",
        "vault.security.banzaicloud.io/vault-env-image",
        "dapr.io/sidecar-image",
        "dapr.io/app-token-secret",
        "admission.datadoghq.com/java-lib.custom-image",
        "appmesh.k8s.aws/secretMounts",
        "devices.nri.io",
        "devices.nri.io/container.main",
        "cdi-devices.nri.io/pod",
        "mounts.nri.io/container.main",
        "netdevices.nri.containerd.io",
        "ulimits.nri.containerd.io/container.main",
        "devices.noderesource.dev/pod",
        "cgroups.noderesource.dev/writable",
        "closid.rdt.noderesource.dev/container.main",
        "tolerate-missing-nri-plugins.noderesource.dev",
        "ad.datadoghq.com/main.checks",
        "ad.datadoghq.com/main.check_names",
        "service-discovery.datadoghq.com/main.check_names",
    ],
)
def test_annotations_that_grant_what_the_policy_does_not_check_are_refused_by_default(key):
    """Also by the privileged preset, which is only about pod security."""
    body = pod(annotations=dict.fromkeys((*ORDINARY, key), "x"))
    assert broken(body, preset="privileged") == [("annotations", f"metadata.annotations[{key}]")]
    assert judge(body, annotations=AnnotationRules(deny=[])) == []
    assert len(judge(body, annotations=AnnotationRules(deny=["team", "default"]))) == 2


GRANTING = "sidecar.istio.io/userVolumeMount"


@pytest.mark.parametrize(
    ("key", "policy", "limit"),
    [
        ("a/b", {"annotations": AnnotationRules(allow=["a/*"], deny=["z", "a/?"])},
         "denied by pattern a/? (set by clusters[edge].policy.annotations.deny)"),
        ("c", {"annotations": AnnotationRules(allow=["a/*"], deny=["a/?"])},
         "allowed: a/* (set by clusters[edge].policy.annotations.allow)"),
        ("c", {"annotations": AnnotationRules(allow=[])},
         "allowed: none (set by clusters[edge].policy.annotations.allow)"),
        (GRANTING, {},
         "denied by pattern sidecar.istio.io/userVolume* (set by clusters[edge].policy.annotations.deny, default)"),
        (GRANTING, {"annotations": AnnotationRules(deny=["a/b", "default"])},
         "denied by pattern sidecar.istio.io/userVolume* (set by clusters[edge].policy.annotations.deny, entry default)"),
        ("a/b", {"namespaces": {"shop": Rules(annotations=AnnotationRules(deny=["a/*"]))}},
         "denied by pattern a/* (set by clusters[edge].policy.namespaces[shop].annotations.deny)"),
    ],
)  # fmt: skip
def test_a_violation_names_the_pattern_and_the_list_to_change(key: str, policy: dict[str, Any], limit: str):
    """The list of patterns is longer than a message, so it does not show which one to remove."""
    (violation,) = judge(pod(annotations={key: "1"}), **policy)
    assert str(violation) == f"annotations: metadata.annotations[{key}] is 1, {limit}"


def test_a_list_of_allowed_annotations_keeps_the_default_list_of_forbidden_ones():
    """``allow`` alone must not grant a cloud role."""
    body = pod(annotations={"iam.amazonaws.com/role": "admin", "team": "a"})
    assert broken(body, annotations=AnnotationRules(allow=["*"])) == [
        ("annotations", "metadata.annotations[iam.amazonaws.com/role]")
    ]
    assert len(broken(body, annotations=AnnotationRules(allow=["prometheus.io/*"]))) == 2


def test_annotations_of_this_project_and_dropped_ones_are_not_checked():
    """The virtual node adds some to every lower pod."""
    none: dict[str, Any] = {"annotations": AnnotationRules(allow=[])}
    keys = (
        names.ANNOTATION_APPLIED,
        names.ANNOTATION_CLUSTER_SELECTOR,
        names.ANNOTATION_TRIPPED_LABELS,
        names.ANNOTATION_LAST_APPLIED,
    )
    assert judge(pod(annotations=dict.fromkeys(keys, "x")), **none) == []


ORDINARY_LABELS = (
    "app.kubernetes.io/name",
    "pod-template-hash",
    "sidecar.istio.io/inject",
    "admission.datadoghq.com/enabled",
)


@pytest.mark.parametrize("key", ["azure.workload.identity/use", "aadpodidbinding"])
def test_labels_that_grant_a_cloud_role_are_refused_by_default(key: str):
    """Labels that only turn an injector on or off are not, because many pods have them to turn it off."""
    body = pod(labels=dict.fromkeys((*ORDINARY_LABELS, key), "x"))
    assert broken(body, preset="privileged") == [("labels", f"metadata.labels[{key}]")]
    assert judge(body, labels=LabelRules(deny=[])) == []
    assert len(judge(body, labels=LabelRules(deny=["app.*", "default"]))) == 2


@pytest.mark.parametrize(
    ("policy", "limit"),
    [
        ({"labels": LabelRules(deny=["default", "*.istio.io/*"])},
         "denied by pattern *.istio.io/* (set by clusters[edge].policy.labels.deny)"),
        ({"labels": LabelRules(allow=["app"])}, "allowed: app (set by clusters[edge].policy.labels.allow)"),
        ({"namespaces": {"shop": Rules(labels=LabelRules(deny=["sidecar*"]))}},
         "denied by pattern sidecar* (set by clusters[edge].policy.namespaces[shop].labels.deny)"),
    ],
)  # fmt: skip
def test_labels_have_the_same_lists_as_annotations(policy: dict[str, Any], limit: str):
    """So an operator can deny the labels that programs and Services of a shared lower namespace select."""
    body = pod(labels={"app": "web", "sidecar.istio.io/inject": "true"})
    (violation,) = judge(body, **policy)
    assert str(violation) == f"labels: metadata.labels[sidecar.istio.io/inject] is true, {limit}"


def test_labels_of_this_project_and_of_the_place_of_a_pod_are_not_checked():
    """The virtual node adds some to every lower pod, and a lower pod has those of its lower node."""
    keys = (
        names.LABEL_UPPER_UID,
        names.LABEL_VIRTUAL_POD,
        names.LABEL_CREATED_BY_DESCHEDULER,
        "topology.kubernetes.io/zone",
    )
    assert judge(pod(labels=dict.fromkeys(keys, "x")), labels=LabelRules(allow=[])) == []
