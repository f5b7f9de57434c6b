"""The rules about labels and annotations of copies: programs in the lower cluster act on many keys.

A tenant who writes such a key to an upper object would give orders to a program of the lower cluster, with the rights of
this program: publish a DNS name, open a load balancer, replicate a Secret into another namespace, take over objects of
a GitOps tool. So the keys of ``DENIED`` are left out, and an operator adds or removes keys with ``policy.metadata``. The
list cannot be complete, because every lower cluster has other programs.

Annotations of pods have a rule of their own (``decision``), which refuses the pod, because a pod without an
annotation would run in another way than its user asked for. For the same reason, ``refused`` refuses routes.

Lower pods do not get the labels and annotations of upper pods that are state of the upper cluster. A network plugin
records the addresses of a pod in its annotations, and reads them later. In the lower cluster, values of the upper cluster
would be wrong, and would overwrite lower values. Names that upper programs publish would also be published in zones of
the lower cluster. ``policy.annotations`` changes the list.

Sources: Calico ``libcalico-go/lib/backend/k8s/conversion``, Kube-OVN ``pkg/util/const.go``, OVN-Kubernetes
``go-controller/pkg/util``, Multus ``network-attachment-definition-client``, Amazon VPC CNI, kubelet
``pkg/kubelet/types``, KEP-4742 (topology labels), OpenShift ``apiserver-library-go`` (securitycontextconstraints).
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from clusterset.model import names
from clusterset.model.policy.config import AnnotationRules, LabelRules, MetadataRules

_PUBLISHED_NAMES = ("external-dns.*", "*.external-dns.*", "dns.alpha.kubernetes.io/*")
"""Keys of external-dns and of kOps' dns-controller, which publish addresses of Services and of pods."""
DENIED: Mapping[str, tuple[str, ...]] = {
    "DNS names": (*_PUBLISHED_NAMES, "consul.hashicorp.com/*"),
    "load balancers and other ways to publish Services": (
        "service.beta.kubernetes.io/*",
        "service.kubernetes.io/load-balancer-*",
        "service.kubernetes.io/qcloud-*",
        "service.kubernetes.io/tke-*",
        "service.cilium.io/*",
        "io.cilium/*",
        "io.cilium.nodeipam/*",
        "lbipam.cilium.io/*",
        "metallb.io/*",
        "metallb.universe.tf/*",
        "kube-vip.io/*",
        "purelb.io/*",
        "loxilb.io/*",
        "lb.kubesphere.io/*",
        "load-balancer.hetzner.cloud/*",
        "loadbalancer.openstack.org/*",
        "kubernetes.digitalocean.com/*",
        "networking.gke.io/*",
        "cloud.google.com/*",
        "kubernetes.io/elb.*",
        "oci.oraclecloud.com/*",
        "oci-network-load-balancer.oraclecloud.com/*",
        "service.*.openshift.io/*",
        "getambassador.io/*",
        "tailscale.com/*",
        "k8s.ngrok.com/*",
        "ngrok.com/*",
        "skupper.io/*",
        "mirror.linkerd.io/*",
        "netbird.io/*",
        "teleport.dev/*",
    ),
    "cloud roles": (
        "eks.amazonaws.com/*",
        "iam.amazonaws.com/*",
        "iam.gke.io/*",
        "azure.workload.identity/*",
        "aadpodidbinding",
    ),
    "certificates": ("cert-manager.io/*", "*.cert-manager.io/*", "kubernetes.io/tls-acme"),
    "replication and generation of Secrets": (
        "reflector.v1.k8s.emberstack.com/*",
        "replicator.v1.mittwald.de/*",
        "secret-generator.v1.mittwald.de/*",
        "kubed.appscode.com/*",
        "config-syncer.appscode.com/*",
        "clustersecret.io/*",
        "external-secrets.io/*",
        "*.external-secrets.io/*",
        "sealedsecrets.bitnami.com/*",
        "secrets-store.csi.k8s.io/*",
        "secrets-store.csi.x-k8s.io/*",
        "secrets.hashicorp.com/*",
        "vault.hashicorp.com/*",
        "generate.kyverno.io/*",
        "kubernetes.io/legacy-token-*",
        "config.openshift.io/*",
    ),
    "ownership of GitOps and package tools": (
        "argocd.argoproj.io/*",
        "meta.helm.sh/*",
        "*.fluxcd.io/*",
        "config.k8s.io/*",
        "configmanagement.gke.io/*",
        "configsync.gke.io/*",
        "applyset.kubernetes.io/*",
        "addonmanager.kubernetes.io/*",
        "kapp.k14s.io/*",
        "fleet.cattle.io/*",
        "objectset.rio.cattle.io/*",
        "crossplane.io/*",
        "operators.coreos.com/*",
        "cluster.x-k8s.io/*",
        "*.cluster.x-k8s.io/*",
    ),
    "sidecars that read all objects with a label": (
        "grafana_alert*",
        "grafana_dashboard*",
        "grafana_datasource*",
        "grafana_folder*",
        "grafana_notifier*",
        "grafana_plugin*",
    ),
    "backups": ("velero.io/*", "*.velero.io/*", "k8up.io/*", "k10.kasten.io/*"),
    "networks": (
        "k8s.v1.cni.cncf.io/*",
        "v1.multus-cni.io/*",
        "k8s.ovn.org/*",
        "ovn.kubernetes.io/*",
        "cni.projectcalico.org/*",
        "projectcalico.org/*",
    ),
    # Some name an existing volume, a claim or snapshot to clone, or a Secret of another namespace.
    "storage": (
        "cdi.kubevirt.io/*",
        "cos.csi.driver/*",
        "csi.hpe.com/*",
        "ebs.csi.aws.com/*",
        "ibm.io/*",
        "juicefs/*",
        "nfs.io/*",
        "portworx.io/*",
        "px/*",
        "snapshot.alpha.kubernetes.io/*",
        "snapshot.storage.kubernetes.io/*",
        "stork.libopenstorage.org/*",
        "trident.netapp.io/*",
    ),
}
"""Shell patterns of keys that are left out unless ``policy.metadata.keep`` matches them, by what they order."""

_PUBLISHING = "load balancers and other ways to publish Services"
REFUSED: Mapping[str, tuple[str, ...]] = {
    "Ingress": (
        "*/*-snippet",
        "haproxy-ingress.github.io/config-*",
        "ingress.kubernetes.io/config-*",
        "nginx.org/*-snippets",
    ),
}
"""By kind: shell patterns of annotations that change the configuration of a shared proxy. A copy without them could
publish what they protect, so there is none, unless ``policy.metadata`` matches them."""
NAMING_SECRETS = (
    "*/auth-secret",
    "*/auth-tls-secret",
    "*/basic-auth-secret",
    "*/proxy-ssl-secret",
    "*/secure-crt-secret",
    "*/secure-verify-ca-secret",
    "haproxy.org/server-ca",
    "haproxy.org/server-crt",
    "nginx.com/jwt-key",
)
"""Annotations of Ingress controllers that name a Secret. Copies of Ingresses name its copy (``translate.follow.ingresses``)."""
ROUTING = (*REFUSED["Ingress"], *NAMING_SECRETS)
"""Annotations that Ingress controllers of HAProxy read from Services, too. Copies of Services do not have them, and an Ingress
could publish what they protect, so it has no copy either."""
_ALSO_DENIED: Mapping[str, tuple[str, ...]] = {
    # Istio runs pods for a Gateway, with its labels and annotations. So it gets no key that the policy denies to pods by
    # default, and none that turns the injection of sidecars on or names a ServiceAccount or other objects.
    # Source: pilot/pkg/config/kube/gateway (extractInfrastructureMetadata).
    "Gateway": (
        *AnnotationRules().denied,
        *LabelRules().denied,
        "gateway.istio.io/*",
        "inject.istio.io/*",
        "proxy.istio.io/*",
        "sidecar.istio.io/*",
    ),
    # Names a Service of the namespace, which may be unmanaged.
    "Ingress": ("nginx.ingress.kubernetes.io/default-backend",),
    # Exempt a namespace from admission policies, or make it part of a tenant of the lower cluster.
    "Namespace": (
        "admission.gatekeeper.sh/*",
        "openpolicyagent.org/*",
        "control-plane",
        "kyverno.io/*",
        "*.kyverno.io/*",
        "security.openshift.io/*",
        "openshift.io/*",
        "capsule.clastix.io/*",
        "projectcapsule.dev/*",
        "*.cattle.io/*",
        "hnc.x-k8s.io/*",
        "*.hnc.x-k8s.io/*",
    ),
    **dict.fromkeys(("Service", "ServiceExport"), ROUTING),
}
_RELEASE, _RELEASES = ("owner", "helm"), frozenset({"ConfigMap", "Secret"})
"""Label by which Helm finds its releases, and the kinds of objects that contain them. An upgrade or uninstallation in the
lower cluster deletes what such an object lists, so copies do not have this value unless ``policy.metadata.keep`` matches the key."""
_NEVER: Mapping[str, tuple[str, ...]] = {
    "": (names.ANNOTATION_LAST_APPLIED,),
    "EndpointSlice": (
        "endpoints.kubernetes.io/last-change-trigger-time",
        "endpointslice.kubernetes.io/managed-by",
    ),
    "Ingress": ("kubernetes.io/ingress.class",),  # becomes ingressClassName
    # Pod Security labels have a rule of their own (``translate.objects.namespaces``); the others describe the namespace.
    "Namespace": ("pod-security.kubernetes.io/*", "kubernetes.io/*"),
    "PersistentVolumeClaim": ("pv.kubernetes.io/*", "volume.kubernetes.io/*", "volume.beta.kubernetes.io/*"),
    "Secret": ("kubernetes.io/service-account.*",),
}
"""By kind: keys that belong to controllers of the upper cluster. No setting copies them. Empty: all kinds."""
STATE: Mapping[str, tuple[str, ...]] = {
    "networks": (
        "cni.projectcalico.org/containerID",
        "cni.projectcalico.org/podIP",
        "cni.projectcalico.org/podIPs",
        "ovn.kubernetes.io/*",
        "*.ovn.kubernetes.io/*",
        "k8s.ovn.org/pod-networks",
        "k8s.v1.cni.cncf.io/network-status",
        "k8s.v1.cni.cncf.io/networks-status",
        "vpc.amazonaws.com/pod-eni",
        "vpc.amazonaws.com/pod-ips",
        "vpc.amazonaws.com/PrivateIPv4Address",
    ),
    "kubelet": ("kubernetes.io/config.hash", "kubernetes.io/config.seen", "kubernetes.io/config.source"),
    "admission": (
        "kubernetes.io/limit-ranger",
        "openshift.io/scc",
        "security.openshift.io/validated-scc-subject-type",
        "autopilot.gke.io/resource-adjustment",
        "autopilot.gke.io/selector-toleration",
        "autopilot.gke.io/warden-version",
    ),
    "DNS names": _PUBLISHED_NAMES,
}
"""By program: shell patterns of annotations that programs of the upper cluster write on its pods, or read to publish names."""
_BUILT_IN = tuple(pattern for patterns in STATE.values() for pattern in patterns)
ZONES = frozenset({"topology.kubernetes.io/region", "topology.kubernetes.io/zone"})
"""Labels that API servers from 1.35 on copy from a node to the pods that are bound to it."""
TOPOLOGY = ZONES | {names.LABEL_HOSTNAME}
"""Labels of a pod that name its place. A lower pod has those of its lower node."""
_OWN = frozenset(
    {names.ANNOTATION_LAST_APPLIED, names.ANNOTATION_DELETION_COST, names.ANNOTATION_REQUIRED_NODE}
)
"""Annotations that only upper controllers read, or that lower pods have with another value. No setting copies them."""
LONGEST = 4096
"""Maximum characters of a key that are compared. Valid keys are shorter."""


class Metadata(NamedTuple):
    """Labels and annotations of a copy."""

    labels: dict[str, str]
    annotations: dict[str, str]


def allowed_metadata(
    kind: str,
    labels: Mapping[str, str] | None,
    annotations: Mapping[str, str] | None,
    rules: MetadataRules,
) -> Metadata:
    """Return the labels and annotations of an upper object that its copy may have.

    Keys in the domain of this project are not copied, either.

    Args:
        kind: kind of the object; not Pod.
        labels: the upper object's labels.
        annotations: the upper object's annotations.
        rules: ``policy.metadata`` for the upper namespace.
    """
    is_copied = _matcher(kind, tuple(rules.keep), tuple(rules.leave_out))
    kept = {key: value for key, value in (labels or {}).items() if is_copied(key)}
    label, helm = _RELEASE
    if kept.get(label) == helm and kind in _RELEASES and label not in KeyPatterns(tuple(rules.keep)):
        del kept[label]
    return Metadata(kept, {key: value for key, value in (annotations or {}).items() if is_copied(key)})


@functools.cache
def of_controllers(kind: str) -> KeyPatterns:
    """Return the keys of a kind of object that controllers and clients of each cluster write. No setting copies them."""
    return KeyPatterns((*_NEVER[""], *_NEVER.get(kind, ())))


def refused(kind: str, annotations: Mapping[str, str] | None, rules: MetadataRules) -> dict[str, str]:
    """Return the annotations because of which an upper object has no copy, with the pattern of each; empty: it may have one."""
    return _undecided(REFUSED.get(kind, ()), annotations, rules)


def refused_on_service(annotations: Mapping[str, str] | None, rules: MetadataRules) -> list[str]:
    """Return the annotations of a Service because of which no copy of an Ingress may use it; empty: it may."""
    return [*_undecided(ROUTING, annotations, rules)]


def _undecided(
    patterns: tuple[str, ...], annotations: Mapping[str, str] | None, rules: MetadataRules
) -> dict[str, str]:
    """Return the annotations that match a pattern and that no setting decides about, with the first pattern of each."""
    decided = KeyPatterns((*rules.keep, *rules.leave_out))
    return {
        key: next(pattern for pattern in patterns if key in KeyPatterns((pattern,)))
        for key in sorted(KeyPatterns(patterns).among(annotations or ()))
        if key not in decided and not names.is_reserved(key)
    }


class _Matcher:
    """Decides by its key whether a label or annotation is copied."""

    def __init__(self, kind: str, keep: tuple[str, ...], leave_out: tuple[str, ...]) -> None:
        groups = (keys for group, keys in DENIED.items() if group != _PUBLISHING or kind != "Ingress")
        denied = [pattern for keys in groups for pattern in keys]
        self._never = of_controllers(kind)
        self._keep = KeyPatterns(keep)
        self._denied = KeyPatterns((*denied, *_ALSO_DENIED.get(kind, ()), *REFUSED.get(kind, ()), *leave_out))

    def __call__(self, key: str) -> bool:
        """Report whether a key is copied."""
        if names.is_reserved(key) or key in self._never:
            return False
        return key in self._keep or key not in self._denied


_matcher = functools.lru_cache(maxsize=256)(_Matcher)
"""A matcher is compiled once for each kind and rules, because every change of an object asks it."""


def is_upper_only(field: str, key: str, rules: AnnotationRules) -> bool:
    """Report whether a label or annotation of a pod stays in the upper cluster.

    Args:
        field: ``labels`` or ``annotations``.
        key: its key.
        rules: ``policy.annotations`` for the pod's namespace.
    """
    if field == "labels":
        return key in TOPOLOGY
    if key in _OWN:
        return True
    return key in KeyPatterns((*_BUILT_IN, *rules.leave_out)) and key not in KeyPatterns(tuple(rules.keep))


@dataclass(frozen=True, slots=True)
class KeyPatterns:
    """The keys that match any of some shell patterns, such as ``kueue.x-k8s.io/*``; without patterns, none."""

    patterns: tuple[str, ...] = ()

    def __contains__(self, key: object) -> bool:
        """Report whether a key matches."""
        return isinstance(key, str) and compiled(self.patterns).match(key[:LONGEST]) is not None

    def among(self, keys: Iterable[str]) -> list[str]:
        """Return the keys that match, in their order."""
        if not self.patterns:
            return []
        match = compiled(self.patterns).match
        return [key for key in keys if match(key[:LONGEST])]


class IgnoredKeys(NamedTuple):
    """The labels and annotations of upper pods that lower pods do not get, because of ``ignore``."""

    labels: KeyPatterns = KeyPatterns()
    annotations: KeyPatterns = KeyPatterns()


@functools.lru_cache(maxsize=256)
def compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """Return one expression for shell patterns; without patterns, it matches nothing."""
    return re.compile("|".join(map(fnmatch.translate, patterns)) or r"(?!)")
