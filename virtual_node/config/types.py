"""What a virtual-node process is told to do: one upper cluster, many lower ones.

The same structures serve the YAML file of ``--config`` and the tensile-kube flags (``flags.py`` turns those
into a configuration with one lower cluster). ``config_file`` reads it, ``config_validation`` says what is wrong
with it. Unknown fields are errors: a misspelt setting that is silently ignored costs an evening.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from controller_runtime.api.policy.config import Policy

API_VERSION = "virtual-node.io/v1alpha1"
KIND = "VirtualNodeConfiguration"

KUBERNETES_SERVICE_UPPER = "Upper"
PV_CONTROLLERS = "PVControllers"
SERVICE_CONTROLLERS = "ServiceControllers"
KNOWN_CONTROLLERS = (PV_CONTROLLERS, SERVICE_CONTROLLERS)

TAINT_EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")

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
    """Labels added to the Node, over the ones every virtual node carries.
    A label that is removed from this list is removed from the Node, too."""
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
    adopt: bool | list[str] = False
    """Use lower namespaces that exist and that virtual-node did not create: ``true`` for all of them, or shell patterns
    of their names. Pods of other upper namespaces with such a lower one wait, with an event."""
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
    """Directories of lower nodes that pods may mount. They are added to ``policy.hostPaths``."""
    binder_image: str = "registry.k8s.io/pause:3.10"
    """Image of the placeholder that has the lower scheduler choose a node for new volumes."""


class ClusterServicesConfig(_Base):
    """How Services appear in this cluster."""

    cluster_ip: Literal["own", "same"] = msgspec.field(default="own", name="clusterIP")
    """own: this cluster chooses the addresses of copies. same: a new copy gets the upper Service's address if this cluster's
    Service range contains it and it is free; otherwise one of its own, with event ``OtherClusterIP``."""


class TokenSecret(_Base):
    """A Secret of the upper cluster with a token for a lower cluster, as ``lower-cluster register`` makes it."""

    namespace: str
    """Namespace of the Secret."""
    name: str
    """Name of the Secret. Its key ``token`` is written."""


class ClusterConfig(_Base):
    """One lower cluster. ``nodeName`` and the node fields beside it are short for a single ``nodes`` entry."""

    name: str
    kubeconfig: str = ""
    """Path of the lower cluster's kubeconfig. Never falls back to anything else."""
    context: str = ""
    """The kubeconfig's context. Empty: its current one."""
    token_secrets: list[TokenSecret] = []
    """Secrets of the upper cluster whose tokens for this lower cluster are renewed before they expire. Empty: none is
    renewed, as with a kubeconfig that is only a file."""
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
    services: ClusterServicesConfig = msgspec.field(default_factory=ClusterServicesConfig)
    policy: Policy = msgspec.field(default_factory=Policy)
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


class KubeletLimits(_Base):
    """Limits of the kubelet APIs of all virtual nodes of the process together."""

    connections: Annotated[int, Meta(ge=10)] = 1200
    """Connections open at once. One more closes one without a request."""
    unauthorized_connections: Annotated[int, Meta(ge=10)] = 128
    """Connections of callers that have not been authorized yet. One more closes the oldest of the address that most
    come from."""
    streams: Annotated[int, Meta(ge=1)] = 1000
    """Open streams (exec, attach, port-forward, logs). Further ones are refused. Each takes about 200 KiB. The last fifth
    goes to namespaces with at most 5 streams, half of it to namespaces with none."""
    streams_per_namespace: Annotated[int, Meta(ge=1)] = 100
    """Open streams to pods of one upper namespace. The API server does not say which user asks."""


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
    limits: KubeletLimits = msgspec.field(default_factory=KubeletLimits)

    @property
    def certificate_source(self) -> Literal["SelfSigned", "CSR", "Files"]:
        """``servingCertificate``, or what it means to leave it out."""
        return self.serving_certificate or ("Files" if self.tls_cert_file else "SelfSigned")


class ServicesConfig(_Base):
    """Which Services of the upper cluster are mirrored below, besides those of namespaces with pods there."""

    always: list[str] = msgspec.field(default_factory=lambda: ["default/kubernetes", "kube-system/*"])
    """Shell patterns of ``namespace/name``. Nothing else is ever made in the lower kube-system."""


class LimitsConfig(_Base):
    """Limits of what the pods of upper users cost, so that one namespace does not use up the process."""

    references_per_pod: Annotated[int, Meta(gt=0)] = 100
    """ConfigMaps, Secrets and ServiceAccount tokens that one pod may reference, each object once. A pod with more waits
    with event ``TooManyReferences``."""
    references_per_namespace: Annotated[int, Meta(gt=0)] = 1000
    """ConfigMaps and Secrets that the pods of one upper namespace may reference in one lower cluster. A pod that exceeds
    it waits with the same event; other namespaces go on."""
    bytes_per_namespace: Annotated[int, Meta(gt=0)] = 64 * 1024**2
    """Bytes of the ConfigMaps and Secrets that the pods of one upper namespace reference in one lower cluster, as JSON. An
    object beyond it is not mirrored: pods that need it wait with the same event, and an existing copy keeps its content."""
    watches_per_namespace: Annotated[int, Meta(ge=0)] = 50
    """Referenced objects of one upper namespace that are watched, each by a connection of its own, for one lower
    cluster. Further ones are read when a pod starts, and about once a minute: 20 per second in all, namespaces in turn."""
    watches: Annotated[int, Meta(ge=0)] = 200
    """Referenced objects that are watched for one lower cluster in all. When all are used, a namespace with few takes one
    from the namespace with most; the object that loses it is read as above."""


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
    limits: LimitsConfig = msgspec.field(default_factory=LimitsConfig)
    clusters: list[ClusterConfig] = []
