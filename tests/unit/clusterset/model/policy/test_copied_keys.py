"""Labels and annotations of copies: keys that give orders to programs of the lower cluster are left out."""

from __future__ import annotations

import fnmatch
import time
from pathlib import Path

import pytest

from clusterset.model.policy.config import MetadataRules, Policy, Rules
from clusterset.model.policy.copied_keys import (
    DENIED,
    REFUSED,
    allowed_metadata,
    refused,
    refused_on_service,
)
from clusterset.model.policy.rules import PRESETS, PolicySet

DEFAULT = MetadataRules()
PAGE = Path(__file__).parents[5] / "docs/operate/policy.md"
ORDERS = [
    *("external-dns.alpha.kubernetes.io/hostname", "tailscale.com/expose", "getambassador.io/config"),
    *("service.beta.kubernetes.io/aws-load-balancer-type", "metallb.universe.tf/address-pool"),
    *("io.cilium/lb-ipam-ips", "service.cilium.io/global", "kube-vip.io/loadbalancerIPs"),
    *("service.beta.openshift.io/serving-cert-secret-name", "cloud.google.com/backend-config"),
    *("iam.amazonaws.com/role", "eks.amazonaws.com/role-arn", "iam.gke.io/gcp-service-account"),
    *("azure.workload.identity/use", "cert-manager.io/inject-ca-from", "cert-manager.io/cluster-issuer"),
    *("acme.cert-manager.io/http01-edit-in-place", "kubernetes.io/tls-acme"),
    *("reflector.v1.k8s.emberstack.com/reflection-auto-namespaces", "replicator.v1.mittwald.de/replicate-to"),
    *("kubed.appscode.com/sync", "sealedsecrets.bitnami.com/sealed-secrets-key", "clustersecret.io/x"),
    *(
        "secrets-store.csi.k8s.io/managed",
        "vault.hashicorp.com/agent-inject",
        "generate.kyverno.io/clone-source",
    ),
    *("argocd.argoproj.io/secret-type", "argocd.argoproj.io/tracking-id", "meta.helm.sh/release-name"),
    *("kustomize.toolkit.fluxcd.io/name", "objectset.rio.cattle.io/hash", "applyset.kubernetes.io/part-of"),
    *("addonmanager.kubernetes.io/mode", "cluster.x-k8s.io/cluster-name", "config.k8s.io/owning-inventory"),
    *("grafana_dashboard", "grafana_datasource", "velero.io/restore-name", "backup.velero.io/backup-volumes"),
    *("k8s.v1.cni.cncf.io/networks", "config.openshift.io/inject-trusted-cabundle", "nfs.io/storage-path"),
    *("trident.netapp.io/cloneFromPVC", "px/snapshot-source-pvc", "ibm.io/secret-namespace"),
    *("stork.libopenstorage.org/snapshot-source-namespace", "snapshot.alpha.kubernetes.io/snapshot"),
    *("cos.csi.driver/secret", "csi.hpe.com/importVolumeName", "juicefs/mount-image"),
    *("mirror.linkerd.io/exported", "netbird.io/expose", "teleport.dev/name"),
    *("cdi.kubevirt.io/storage.import.endpoint", "kubectl.kubernetes.io/last-applied-configuration"),
    "virtual-node.io/upper-cluster",
]
HARMLESS = [
    *(
        "app",
        "app.kubernetes.io/name",
        "app.kubernetes.io/managed-by",
        "helm.sh/chart",
        "team",
        "example.com/note",
    ),
    *("prometheus.io/scrape", "service.kubernetes.io/topology-mode", "service.kubernetes.io/headless"),
    *("traefik.ingress.kubernetes.io/service.sticky.cookie", "pod-template-hash", "my-external-dns"),
]
KINDS = [
    "ConfigMap",
    "Secret",
    "Service",
    "EndpointSlice",
    "PersistentVolumeClaim",
    "ResourceClaim",
    "Gateway",
]


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_give_orders_are_left_out_as_labels_and_as_annotations(kind):
    keys = dict.fromkeys([*ORDERS, *HARMLESS], "x")
    kept = dict.fromkeys(HARMLESS, "x")
    assert allowed_metadata(kind, keys, keys, DEFAULT) == (kept, kept)
    assert allowed_metadata(kind, None, None, DEFAULT) == ({}, {})


@pytest.mark.parametrize(
    ("rules", "key", "is_kept"),
    [
        (MetadataRules(keep=["service.beta.kubernetes.io/*"]), "service.beta.kubernetes.io/aws-load-balancer-type", True),
        (MetadataRules(keep=["service.beta.kubernetes.io/*"]), "tailscale.com/expose", False),
        (MetadataRules(leave_out=["example.com/*"]), "example.com/note", False),
        (MetadataRules(leave_out=["example.com/*"]), "tailscale.com/expose", False),
        (MetadataRules(leave_out=["*"], keep=["app", "team"]), "app", True),
        (MetadataRules(leave_out=["*"], keep=["app", "team"]), "prometheus.io/scrape", False),
        (MetadataRules(keep=["*"]), "tailscale.com/expose", True),
        # Some keys belong to controllers of the upper cluster, and ours prove ownership.
        (MetadataRules(keep=["*"]), "virtual-node.io/upper-cluster", False),
        (MetadataRules(keep=["*"]), "kubectl.kubernetes.io/last-applied-configuration", False),
    ],
)  # fmt: skip
def test_operators_keep_and_leave_out_keys(rules, key, is_kept):
    assert allowed_metadata("Service", {key: "x"}, {key: "y"}, rules) == (
        ({key: "x"}, {key: "y"}) if is_kept else ({}, {})
    )


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("Ingress", "kubernetes.io/ingress.class"),
        ("Secret", "kubernetes.io/service-account.name"),
        ("PersistentVolumeClaim", "pv.kubernetes.io/bind-completed"),
        ("EndpointSlice", "endpointslice.kubernetes.io/managed-by"),
    ],
)
def test_no_setting_copies_what_upper_controllers_wrote(kind, key):
    assert allowed_metadata(kind, {}, {key: "x"}, MetadataRules(keep=["*"])) == ({}, {})
    assert allowed_metadata("ConfigMap", {}, {key: "x"}, DEFAULT) == ({}, {key: "x"})


def test_an_ingress_keeps_the_annotations_of_its_controller():
    """In the lower cluster they say how to publish it, which ``follow`` allows."""
    kept = {
        "nginx.ingress.kubernetes.io/rewrite-target": "/",
        "nginx.ingress.kubernetes.io/auth-url": "https://auth.example.com",
        "networking.gke.io/managed-certificates": "web",
        "alb.ingress.kubernetes.io/scheme": "internal",
    }
    left_out = {
        "nginx.ingress.kubernetes.io/default-backend": "internal-admin",
        "cert-manager.io/issuer": "x",
    }
    assert allowed_metadata("Ingress", {}, {**kept, **left_out}, DEFAULT).annotations == kept


@pytest.mark.parametrize(
    "key",
    [
        "nginx.ingress.kubernetes.io/configuration-snippet",
        "nginx.ingress.kubernetes.io/server-snippet",
        "nginx.org/server-snippets",
        "haproxy.org/backend-config-snippet",
        "haproxy-ingress.github.io/config-backend",
    ],
)
def test_an_ingress_that_configures_a_shared_proxy_is_refused_or_decided_by_the_operator(key):
    ((refused_key, pattern),) = refused("Ingress", {key: "x", "team": "a"}, DEFAULT).items()
    assert (refused_key, fnmatch.fnmatchcase(key, pattern)) == (key, True)
    assert refused("Ingress", {key: "x"}, MetadataRules(keep=[key])) == {}
    assert refused("Ingress", {key: "x"}, MetadataRules(leave_out=[key])) == {}
    assert refused("Service", {key: "x"}, DEFAULT) == refused("Ingress", None, DEFAULT) == {}
    assert allowed_metadata("Ingress", {}, {key: "x"}, DEFAULT).annotations == {}
    assert allowed_metadata("Ingress", {}, {key: "x"}, MetadataRules(keep=[key])).annotations == {key: "x"}


@pytest.mark.parametrize("kind", ["Service", "ServiceExport"])
@pytest.mark.parametrize(
    "key",
    [
        "haproxy.org/backend-config-snippet",
        "haproxy-ingress.github.io/config-backend",
        "haproxy-ingress.github.io/auth-secret",
        "haproxy.org/server-crt",
    ],
)
def test_a_service_does_not_configure_a_shared_proxy(kind, key):
    """The proxy would run commands of a tenant with the rights of the Ingress controller."""
    assert allowed_metadata(kind, {}, {key: "x"}, DEFAULT).annotations == {}
    assert refused_on_service({key: "x", "team": "a"}, DEFAULT) == [key]
    keep = MetadataRules(keep=[key])
    assert allowed_metadata(kind, {}, {key: "x"}, keep).annotations == {key: "x"}
    assert refused_on_service({key: "x"}, keep) == refused_on_service(None, DEFAULT) == []


@pytest.mark.parametrize("kind", ["ConfigMap", "Secret"])
def test_a_copy_is_no_release_of_helm(kind):
    """The next ``helm upgrade`` in the lower cluster would delete the objects that a tenant wrote into the release."""
    labels = {"name": "web", "owner": "helm", "status": "deployed", "version": "9"}
    assert "owner" not in allowed_metadata(kind, labels, {}, DEFAULT).labels
    assert allowed_metadata("Service", labels, {}, DEFAULT).labels == labels
    assert allowed_metadata(kind, {"owner": "web-team"}, {}, DEFAULT).labels == {"owner": "web-team"}
    assert allowed_metadata(kind, labels, {}, MetadataRules(keep=["owner"])).labels == labels


@pytest.mark.parametrize(
    "key",
    [
        "sidecar.istio.io/inject",
        "sidecar.istio.io/userVolume",
        "gateway.istio.io/name-override",
        "gateway.istio.io/service-account",
        "dapr.io/sidecar-image",
        "devices.nri.io/container.proxy",
        "aadpodidbinding",
    ],
)
def test_a_gateway_gives_its_pods_nothing_that_the_policy_denies_to_pods(key):
    """Istio copies the labels and annotations of a Gateway to the pods that it runs for it."""
    kept = {"networking.istio.io/service-type": "ClusterIP", "team": "a"}
    given = {**kept, key: "x"}
    assert allowed_metadata("Gateway", given, given, DEFAULT) == (kept, kept)
    assert allowed_metadata("Gateway", {}, given, MetadataRules(keep=[key])).annotations == given


def test_rules_of_a_namespace_replace_those_of_the_cluster():
    edge = Rules(metadata=MetadataRules(keep=["tailscale.com/*"]))
    policy = PolicySet(
        Policy(metadata=MetadataRules(leave_out=["x"]), namespaces={"edge": edge}), cluster="a"
    )
    assert policy.of("shop").metadata.leave_out == ["x"]
    assert policy.of("edge").metadata.keep == ["tailscale.com/*"]
    assert policy.of("edge").sources["metadata"] == "clusters[a].policy.namespaces[edge].metadata"
    assert not any("metadata" in rules for rules in PRESETS.values())


def test_the_page_has_every_pattern():
    text = PAGE.read_text(encoding="utf-8")
    patterns = [pattern for keys in (*DENIED.values(), *REFUSED.values()) for pattern in keys]
    assert [pattern for pattern in patterns if f"`{pattern}`" not in text] == []


def test_long_keys_take_linear_time():
    keys = {f"{'a.' * 50_000}velero.iox{number}": "x" for number in range(100)}
    start = time.process_time()
    allowed_metadata("Service", keys, keys, DEFAULT)
    assert time.process_time() - start < 2.0
