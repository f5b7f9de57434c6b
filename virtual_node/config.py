"""What a virtual-node process is told to do: one upper cluster, many lower ones.

The same structures serve the YAML file of ``--config`` and the tensile-kube flags (``flags.py`` turns those
into a configuration with one lower cluster). Unknown fields are errors: a misspelt setting that is silently
ignored costs an evening.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
import yaml
from msgspec import Meta

from controller_runtime.api import matching, quantity
from controller_runtime.errors import ConfigError
from controller_runtime.leader_election import JITTER

API_VERSION = "virtual-node.io/v1alpha1"
KIND = "VirtualNodeConfiguration"

KUBERNETES_SERVICE_UPPER = "Upper"
PV_CONTROLLERS = "PVControllers"
SERVICE_CONTROLLERS = "ServiceControllers"
KNOWN_CONTROLLERS = (PV_CONTROLLERS, SERVICE_CONTROLLERS)

TAINT_EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS1123 = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")

_CSR_NODE_NAME = 64 - len("system:node:")
"""RFC 5280 ends a common name at 64 characters."""

Positive = Annotated[float, Meta(gt=0)]
Port = Annotated[int, Meta(ge=0, le=65535)]


class _Base(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    pass


class Taint(_Base):
    """A node taint, as core/v1 spells it."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


class CapacityPolicy(_Base):
    """How the lower nodes' capacity is offered upstream."""

    reserve: dict[str, str] = {}
    """Held back from allocatable, per resource: a quantity (``"2"``, ``"4Gi"``) or a share (``"10%"``)."""


class NodeConfig(_Base):
    """One virtual node: all lower nodes that its selector matches, shown upstream as one."""

    name: str
    """The Node's name in the upper cluster."""
    node_selector: dict[str, str] = {}
    """Labels a lower node must carry to belong to this virtual node. Empty: every lower node."""
    labels: dict[str, str] = {}
    """Labels added to the Node, over the ones every virtual node carries."""
    taints: list[Taint] | None = None
    """Taints of the Node. Unset: ``virtual-kubelet.io/provider=k8s:NoSchedule``. An empty list: none."""
    capacity: CapacityPolicy = msgspec.field(default_factory=CapacityPolicy)
    port: Port | None = None
    """The kubelet API's port. Unset: the first free one from ``kubelet.port`` on. 0: any free one."""


class NamespaceConfig(_Base):
    """Which lower namespace stands for which upper one, and which upper ones may come."""

    prefix: str = ""
    """Put before every name. Empty: the same name below as above."""
    map: dict[str, str] = {}
    """Upper name to lower name, over the prefix."""
    allowed: list[str] = []
    """Shell patterns of upper namespaces whose pods may run in this cluster. Empty: all but kube-system."""
    remove: bool = True
    """Remove a lower namespace that we made when its upper one is gone and nothing of others is in it."""


class VolumeConfig(_Base):
    """How claims and volumes follow pods to this cluster."""

    storage_classes: dict[str, str] = {}
    """Upper storage class to lower one, where their names differ."""
    deletion_policy: Literal["Delete", "Retain"] = "Delete"
    """What the deletion of an upper claim does to the lower one. Delete: the lower volume's reclaim policy then
    decides about the data. Retain: the lower claim stays."""
    orphans: Literal["Keep", "Delete"] = "Keep"
    """What becomes of a lower claim whose upper one vanished without having been deleted in order."""
    allowed_host_paths: list[str] = []
    """Prefixes of host paths that pods may mount from lower nodes. Empty: none."""
    binder_image: str = "registry.k8s.io/pause:3.10"
    """Image of the placeholder that has the lower scheduler choose a node for new volumes."""


class ClusterConfig(_Base):
    """One lower cluster. ``nodeName`` and the node fields beside it are short for a single ``nodes`` entry."""

    name: str
    kubeconfig: str = ""
    """Path of the lower cluster's kubeconfig. Never falls back to anything else."""
    context: str = ""
    """The kubeconfig's context. Empty: its current one."""
    client_qps: Positive = 500
    """Requests per second to the lower apiserver, over time."""
    client_burst: Annotated[int, Meta(gt=0)] = 1000
    """Requests that may go out at once before ``clientQps`` holds them back."""
    node_name: str = ""
    node_selector: dict[str, str] = {}
    labels: dict[str, str] = {}
    taints: list[Taint] | None = None
    capacity: CapacityPolicy | None = None
    port: Port | None = None
    namespaces: NamespaceConfig = msgspec.field(default_factory=NamespaceConfig)
    pod_selector: dict[str, Any] = {}
    """LabelSelector (``matchLabels``, ``matchExpressions``) of the pods that may run in this cluster. Empty: all."""
    volumes: VolumeConfig = msgspec.field(default_factory=VolumeConfig)
    nodes: list[NodeConfig] = []
    """Several virtual nodes for one lower cluster, so that no giant node becomes a scheduling black hole."""

    def virtual_nodes(self) -> list[NodeConfig]:
        """The virtual nodes of this cluster, the short form expanded."""
        if self.nodes:
            return self.nodes
        return [
            NodeConfig(
                name=self.node_name or self.name,
                node_selector=self.node_selector,
                labels=self.labels,
                taints=self.taints,
                capacity=self.capacity or CapacityPolicy(),
                port=self.port,
            ),
        ]


class KubeletConfig(_Base):
    """The kubelet API that the upper apiserver dials for logs, exec, attach and port-forward."""

    address: str = "0.0.0.0"  # noqa: S104 - the upper apiserver must reach it; every request is authenticated
    port: Port = 10250
    """First port tried; every further virtual node of the process takes the next free one."""
    node_ip: str = ""
    """InternalIP published on the Node. Empty: the local address that routes to the upper apiserver."""
    external_ip: str = ""
    """ExternalIP published on the Node. Empty: none."""
    tls_cert_file: str = ""
    """Serving certificate, for ``servingCertificate: Files``."""
    tls_private_key_file: str = ""
    serving_certificate: Literal["SelfSigned", "CSR", "Files"] | None = None
    """SelfSigned: made at start. CSR: asked of the upper cluster (signer kubernetes.io/kubelet-serving), and renewed.
    Files: ``tlsCertFile`` and ``tlsPrivateKeyFile``. Unset: Files when these are given, else SelfSigned."""
    approve_serving_certificate: bool = False
    """Approve our own requests (CSR). Off: an administrator or an approver does."""
    client_ca_file: str = ""
    """CA of client certificates. Empty: the upper cluster's own, from extension-apiserver-authentication."""
    anonymous_auth: bool = False
    """Serve requests that carry no credentials at all (as system:anonymous, still authorised)."""
    drain_timeout: Annotated[float, Meta(ge=0)] = 10.0
    """Seconds that open streams may go on when the process stops. Keep it below the pod's
    ``terminationGracePeriodSeconds``."""
    authorization: bool = True
    """Ask the upper cluster (SubjectAccessReview) whether the caller may. Off: authentication suffices."""

    @property
    def certificate_source(self) -> Literal["SelfSigned", "CSR", "Files"]:
        """``servingCertificate``, or what it means to leave it out."""
        return self.serving_certificate or ("Files" if self.tls_cert_file else "SelfSigned")


class ServicesConfig(_Base):
    """Which Services of the upper cluster are mirrored below, besides those of namespaces with pods there."""

    always: list[str] = msgspec.field(default_factory=lambda: ["default/kubernetes", "kube-system/*"])
    """Shell patterns of ``namespace/name``. Nothing else is ever made in the lower kube-system."""


class LeaderElectionConfig(_Base):
    """Several replicas of one virtual-node process: one works, the others wait for its lease."""

    enabled: bool = False
    namespace: str = "kube-system"
    """Namespace of the Lease, in the upper cluster."""
    name: str = "virtual-node"
    """Name of the Lease. Two installations in one upper cluster need two names."""
    lease_duration: Positive = 15.0
    """Seconds that the others wait for a silent leader."""
    renew_deadline: Positive = 10.0
    """Seconds after which a leader that cannot renew stops working."""
    retry_period: Positive = 2.0
    """Seconds between two tries, to acquire and to renew."""


class Config(_Base):
    """Everything a virtual-node process needs."""

    api_version: str = API_VERSION
    kind: str = KIND
    kubeconfig: str = ""
    """Path of the upper cluster's kubeconfig. Empty: $KUBECONFIG, ~/.kube/config, in-cluster."""
    server: str = ""
    """Overrides the upper apiserver's URL of the kubeconfig (tensile-kube's MASTER_URI)."""
    cluster_id: str = ""
    """Identity of the upper cluster on everything made below. Empty: the uid of its kube-system namespace."""
    kube_api_qps: Positive = 500
    """Requests per second to the upper apiserver, per lower cluster."""
    kube_api_burst: Annotated[int, Meta(gt=0)] = 1000
    enable_controllers: list[str] = msgspec.field(default_factory=lambda: list(KNOWN_CONTROLLERS))
    enable_serviceaccount: bool = True
    """Give pods below tokens of the upper cluster. Off: the lower cluster supplies identities."""
    kubernetes_service: Literal["Lower", "Upper"] = "Lower"
    """Whose apiserver KUBERNETES_SERVICE_HOST and _PORT name in pods. A pod's annotation
    ``virtual-node.io/kubernetes-service`` (upper or lower) wins."""
    kubernetes_service_url: str = ""
    """The upper apiserver as pods below reach it. Empty: the URL that we use ourselves."""
    ignore_labels: list[str] = msgspec.field(default_factory=lambda: ["group.batch.scheduler.tencent.com"])
    """Pod labels that are not carried below (kept in the ``tripped-labels`` annotation)."""
    pod_sync_workers: Annotated[int, Meta(gt=0)] = 50
    """Pods of one lower cluster that are reconciled at the same time."""
    ping_interval: Positive = 10.0
    """Seconds between two health checks of a lower cluster."""
    ping_timeout: Positive = 5.0
    """Seconds after which an unanswered health check counts as failed."""
    status_interval: Positive = 60.0
    """Seconds between two refreshes of an unchanged Node's status."""
    lease_duration: Positive = 40.0
    """Seconds a Node's Lease is good for; it is renewed every quarter of that."""
    full_resync_period: Annotated[float, Meta(ge=0)] = 600.0
    """Seconds between two passes over every mirrored pod, from the caches. 0: never."""
    metrics_address: str = ""
    """host:port that serves /healthz, /readyz and /metrics. Empty: off."""
    web_address: str = ""
    """host:port that serves a read-only page about this process. Empty: off. It asks for no credentials: keep it
    on loopback and use ``kubectl port-forward``."""
    leader_election: LeaderElectionConfig = msgspec.field(default_factory=LeaderElectionConfig)
    kubelet: KubeletConfig = msgspec.field(default_factory=KubeletConfig)
    services: ServicesConfig = msgspec.field(default_factory=ServicesConfig)
    clusters: list[ClusterConfig] = []


def parse(text: str, *, source: str = "config") -> Config:
    """Read a YAML configuration.

    Raises:
        ConfigError: names the source and the field that is wrong.
    """
    try:
        document: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {_one_line(error)}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: expected a mapping with apiVersion, kind and clusters")
    try:
        config = msgspec.convert(document, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}") from None
    problems = validate(config)
    if problems:
        raise ConfigError(f"{source}: " + "; ".join(problems))
    return config


def load(path: str | Path) -> Config:
    """Read a YAML configuration file. Relative kubeconfig paths are relative to the file.

    Raises:
        ConfigError: the file cannot be read, or as ``parse``.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path}: {error}") from None
    config = parse(text, source=str(path))
    config.kubeconfig = _beside(path, config.kubeconfig)
    for cluster in config.clusters:
        cluster.kubeconfig = _beside(path, cluster.kubeconfig)
    return config


def validate(config: Config) -> list[str]:
    """Everything that is wrong with a configuration, each as ``field: what``. Empty when it is good."""
    problems: list[str] = []
    if config.api_version != API_VERSION:
        problems.append(f"apiVersion: expected {API_VERSION}, got {config.api_version!r}")
    if config.kind != KIND:
        problems.append(f"kind: expected {KIND}, got {config.kind!r}")
    problems += [
        f"enableControllers: unknown {name!r}, known are {', '.join(KNOWN_CONTROLLERS)}"
        for name in config.enable_controllers
        if name not in KNOWN_CONTROLLERS
    ]
    election = config.leader_election
    if not election.lease_duration > election.renew_deadline > election.retry_period * JITTER:
        problems.append(
            "leaderElection: leaseDuration must be greater than renewDeadline, and that greater than "
            f"{JITTER} × retryPeriod"
        )
    if config.kubernetes_service_url and not urlsplit(config.kubernetes_service_url).hostname:
        problems.append(
            f"kubernetesServiceUrl: {config.kubernetes_service_url!r} is not a URL such as https://10.0.0.1:6443"
        )
    if bool(config.kubelet.tls_cert_file) != bool(config.kubelet.tls_private_key_file):
        problems.append("kubelet: tlsCertFile and tlsPrivateKeyFile go together")
    problems += _certificate_problems(config)
    return problems + _cluster_problems(config)


def _cluster_problems(config: Config) -> list[str]:
    problems: list[str] = []
    seen_clusters: set[str] = set()
    seen_nodes: set[str] = set()
    for position, cluster in enumerate(config.clusters):
        where = f"clusters[{position}]"
        if not cluster.name:
            problems.append(f"{where}.name: required")
        if cluster.name in seen_clusters:
            problems.append(f"{where}.name: {cluster.name!r} is there twice")
        seen_clusters.add(cluster.name)
        if not cluster.kubeconfig:
            problems.append(f"{where}.kubeconfig: required (the lower cluster {cluster.name!r})")
        problems += _selector_problems(f"{where}.podSelector", cluster.pod_selector)
        problems += _namespace_problems(f"{where}.namespaces", cluster.namespaces)
        if cluster.nodes:
            problems += [
                f"{where}.{field}: has no effect beside nodes; put it into each of them"
                for field, given in (
                    ("nodeName", cluster.node_name),
                    ("nodeSelector", cluster.node_selector),
                    ("labels", cluster.labels),
                    ("taints", cluster.taints is not None),
                    ("capacity", cluster.capacity),
                    ("port", cluster.port is not None),
                )
                if given
            ]
        for node in cluster.virtual_nodes():
            problems += _node_problems(where, node)
            if node.name in seen_nodes:
                problems.append(f"{where}: the node name {node.name!r} is there twice")
            seen_nodes.add(node.name)
    return problems


def _certificate_problems(config: Config) -> list[str]:
    kubelet = config.kubelet
    problems: list[str] = []
    if kubelet.certificate_source == "Files":
        if not kubelet.tls_cert_file:
            problems.append("kubelet.servingCertificate: Files needs tlsCertFile and tlsPrivateKeyFile")
    elif kubelet.tls_cert_file:
        problems.append(
            f"kubelet.servingCertificate: {kubelet.certificate_source} contradicts tlsCertFile; leave one of them out"
        )
    if kubelet.certificate_source != "CSR":
        if kubelet.approve_serving_certificate:
            problems.append("kubelet.approveServingCertificate: needs servingCertificate: CSR")
        return problems
    problems += [
        f"kubelet.servingCertificate: CSR: the node name {node.name!r} is too long for a certificate's common name "
        f"(at most {_CSR_NODE_NAME} characters)"
        for cluster in config.clusters
        for node in cluster.virtual_nodes()
        if len(node.name) > _CSR_NODE_NAME
    ]
    return problems


def _selector_problems(where: str, selector: dict[str, Any]) -> list[str]:
    unknown = selector.keys() - {"matchLabels", "matchExpressions"}
    if unknown:
        return [f"{where}: unknown {', '.join(sorted(unknown))}; matchLabels and matchExpressions are known"]
    try:
        matching.compile_selector(selector)
    except (ValueError, AttributeError, TypeError) as error:
        return [f"{where}: {error}"]
    return []


def _namespace_problems(where: str, config: NamespaceConfig) -> list[str]:
    problems: list[str] = []
    if config.prefix and not _LABEL.fullmatch(config.prefix + "x"):
        problems.append(f"{where}.prefix: {config.prefix!r} cannot begin a namespace's name")
    problems += [
        f"{where}.map.{upper}: {lower!r} is not a namespace's name (DNS-1123 label)"
        for upper, lower in config.map.items()
        if not _LABEL.fullmatch(lower)
    ]
    targets: dict[str, str] = {}
    for upper, lower in config.map.items():
        if lower in targets:
            problems.append(f"{where}.map: {targets[lower]!r} and {upper!r} both lead to {lower!r}")
        targets[lower] = upper
    return problems


def _node_problems(where: str, node: NodeConfig) -> list[str]:
    problems: list[str] = []
    if not _DNS1123.fullmatch(node.name) or len(node.name) > 63:
        problems.append(
            f"{where}: node name {node.name!r} must be a DNS-1123 name of at most 63 characters (it is also a label value)",
        )
    problems += [
        f"{where}.taints: effect {taint.effect!r} is none of {', '.join(TAINT_EFFECTS)}"
        for taint in node.taints or []
        if taint.effect not in TAINT_EFFECTS
    ]
    problems += [
        f"{where}.capacity.reserve.{resource}: {reserve!r} is neither a quantity nor a percentage"
        for resource, reserve in node.capacity.reserve.items()
        if not _is_reserve(reserve)
    ]
    return problems


def _is_reserve(text: str) -> bool:
    if text.endswith("%"):
        return text[:-1].replace(".", "", 1).isdigit() and float(text[:-1]) <= 100
    try:
        return quantity.milli(text) >= 0
    except ValueError:
        return False


def _beside(config_file: Path, path: str) -> str:
    if not path:
        return path
    expanded = Path(path).expanduser()
    return str(expanded if expanded.is_absolute() else config_file.parent / expanded)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
