"""The configuration of a virtual-node process: one upper cluster and its lower clusters.

The YAML file of ``--config`` and the tensile-kube flags use the same structures. ``command_line`` turns flags
into a configuration with one lower cluster, ``file`` reads the YAML file and ``validation`` validates both.
Unknown fields are errors, because a silently ignored typing error is hard to find.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from clusterset.inventory.settings import ClusterProfiles
from clusterset.model import namespace_map
from clusterset.model.autoscaling import Autoscaling, Taint
from clusterset.model.overrides.config import Override
from clusterset.model.pod.eligibility import KNOWN_CONTROLLERS
from clusterset.model.pod.resource_claims import ResourceClaimsConfig
from clusterset.model.policy.config import Policy
from controller_runtime.process.flags import address, duration
from virtual_node.config.kubelet_types import KubeletConfig
from virtual_node.config.setting import (
    LOWER,
    NODE,
    PODS,
    PROCESS,
    UPPER,
    Port,
    Positive,
    Setting,
    positive_float,
    positive_int,
)
from virtual_node.config.volumes import VolumeConfig

API_VERSION = "virtual-node.io/v1alpha1"
KIND = "VirtualNodeConfiguration"

KUBERNETES_SERVICE_UPPER = "Upper"
SHARDED: Final = "Sharded"
REJECT = "Reject"


class _Base(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    pass


class CapacityPolicy(_Base):
    """How the lower nodes' capacity is offered in the upper cluster."""

    reserve: dict[str, str] = {}
    """Subtracted from allocatable, per resource: a quantity (``"2"``, ``"4Gi"``) or a percentage (``"10%"``)."""


class NodeConfig(_Base):
    """One virtual node: all lower nodes that its selector matches appear as one Node in the upper cluster."""

    name: str
    """The Node's name in the upper cluster."""
    node_selector: dict[str, str] = {}
    """Labels that a lower node must have to belong to this virtual node. Empty: every lower node that is not
    virtual."""
    labels: dict[str, str] = {}
    """Labels of the Node, which override the default labels. A label that is removed here is removed from the
    Node, too."""
    taints: list[Taint] | None = None
    """Taints of the Node. Unset: ``virtual-kubelet.io/provider=k8s:NoSchedule``. An empty list: none."""
    capacity: CapacityPolicy = msgspec.field(default_factory=CapacityPolicy)
    autoscaling: Autoscaling | None = None
    """Nodes that the lower cluster's autoscaler adds for pods that wait. The virtual node offers them in addition to the
    existing nodes. Unset: none are expected."""
    port: Port | None = None
    """Port of the kubelet API. Unset: the first free port from ``kubelet.port`` on. 0: any free port."""


class NamespaceConfig(namespace_map.NamespaceConfig):
    """The lower namespace of each upper namespace, and the upper namespaces that may use this cluster."""

    remove: bool = True
    """When an upper namespace is deleted, delete the lower namespace that we created for it, unless that has objects
    of other owners."""


class ClusterServicesConfig(_Base):
    """How Services appear in this cluster."""

    cluster_ip: Literal["own", "same"] = msgspec.field(default="own", name="clusterIP")
    """own: this cluster chooses the addresses of copies. same: a new copy gets the upper Service's address if
    it is free and in this cluster's Service range, otherwise an address that this cluster chooses, with event
    ``OtherClusterIP``."""


class TokenSecret(_Base):
    """A Secret of the upper cluster with a token for a lower cluster, as ``lower-cluster register`` creates it."""

    namespace: str
    """Namespace of the Secret."""
    name: str
    """Name of the Secret. The token is written to its key ``token``."""


class LowerClusterConfig(_Base):
    """One lower cluster. ``nodeName`` and the other node fields are short for a single ``nodes`` entry."""

    name: str
    kubeconfig: Annotated[str, Setting(LOWER, "--client-kubeconfig FILE")] = ""
    """Path of the lower cluster's kubeconfig. There is no default."""
    context: str = ""
    """The kubeconfig's context. Empty: its current context."""
    token_secrets: list[TokenSecret] = []
    """Secrets of the upper cluster with tokens for this lower cluster, which are renewed before they expire.
    Empty: no token is renewed, for example if the kubeconfig is only a file."""
    client_qps: Annotated[Positive, Setting(LOWER, "--client-qps N")] = 500
    """Requests per second to the lower apiserver, on average."""
    client_burst: Annotated[int, Meta(gt=0), Setting(LOWER, "--client-burst N")] = 1000
    """Requests that may be sent at once before ``clientQps`` limits them."""
    cache_bytes: Annotated[int, Meta(ge=0)] = 128 * 1024**2
    """Maximum memory for cached objects of this cluster. Beyond it, the virtual nodes of this cluster stop with
    condition ``LowerClusterTooLarge``, and start again after five minutes; other clusters go on. 128 MiB are enough for
    about 10,000 mirrored pods, 2,000 nodes and 30,000 other pods. 0: no limit."""
    node_name: Annotated[str, Setting(NODE, "--nodename NODE", "DEFAULT_NODE_NAME", "DEFAULTNODE_NAME")] = ""
    """Name of the cluster's only virtual node. Empty: the cluster's name, or ``virtual-kubelet`` without
    ``--config``. Not used beside ``nodes``."""
    node_selector: dict[str, str] = {}
    labels: dict[str, str] = {}
    taints: list[Taint] | None = None
    capacity: CapacityPolicy | None = None
    autoscaling: Autoscaling | None = None
    port: Port | None = None
    namespaces: NamespaceConfig = msgspec.field(default_factory=NamespaceConfig)
    pod_selector: dict[str, Any] = {}
    """LabelSelector (``matchLabels``, ``matchExpressions``) of pods that may run in this cluster. Empty: all."""
    on_unschedulable: Literal["Wait", "Reject"] = "Wait"
    """What happens to a pod that the lower scheduler cannot place. Wait: it stays Pending until there is room or the
    descheduler moves it. Reject: it fails with the kubelet's reason, such as OutOfcpu, so that its controller creates
    another pod, which the upper scheduler places again. With ``autoscaling``, it fails only after ``provisionSeconds``."""
    volumes: VolumeConfig = msgspec.field(default_factory=VolumeConfig)
    resource_claims: ResourceClaimsConfig = msgspec.field(default_factory=ResourceClaimsConfig)
    services: ClusterServicesConfig = msgspec.field(default_factory=ClusterServicesConfig)
    follow: list[Literal["networkPolicies", "podDisruptionBudgets", "ingresses", "gateways"]] = []
    """Kinds of objects that are copied to this cluster for the pods that run there. Each kind needs more rights."""
    ingress_classes: dict[str, str] = {}
    """Lower IngressClass by upper IngressClass, if their names differ."""
    gateway_classes: dict[str, str] = {}
    """Lower GatewayClass by upper GatewayClass, if their names differ."""
    policy: Policy = msgspec.field(default_factory=Policy)
    overrides: list[Override] = []
    """Changes of pods in this cluster, applied in order when a lower pod is created."""
    nodes: list[NodeConfig] = []
    """Several virtual nodes for one lower cluster, because a single very large Node would attract all pods."""

    def virtual_nodes(self) -> list[NodeConfig]:
        """Return the virtual nodes of this cluster, also for the short form."""
        if self.nodes:
            return self.nodes
        return [
            NodeConfig(
                name=self.node_name or self.name,
                node_selector=self.node_selector,
                labels=self.labels,
                taints=self.taints,
                capacity=self.capacity or CapacityPolicy(),
                autoscaling=self.autoscaling,
                port=self.port,
            )
        ]


class ServicesConfig(_Base):
    """Upper Services that are mirrored in lower clusters, in addition to the Services of namespaces with pods there."""

    always: list[str] = msgspec.field(default_factory=lambda: ["default/kubernetes", "kube-system/*"])
    """Shell patterns: ``namespace/name``. Namespace kube-system gets no other lower Services."""


class LimitsConfig(_Base):
    """Limits of what upper users' pods use in the process, so that one namespace cannot exhaust it."""

    references_per_pod: Annotated[int, Meta(gt=0)] = 100
    """ConfigMaps, Secrets and ServiceAccount tokens that one pod may reference, each counted once. A pod with
    more waits with event ``TooManyReferences``."""
    references_per_namespace: Annotated[int, Meta(gt=0)] = 1000
    """ConfigMaps and Secrets that the pods of one upper namespace may reference in one lower cluster. A pod
    that would exceed the limit waits with the same event. Other namespaces are not affected."""
    bytes_per_namespace: Annotated[int, Meta(gt=0)] = 64 * 1024**2
    """Maximum memory of ConfigMaps and Secrets that one upper namespace's pods reference in one
    lower cluster. Further objects are not mirrored, and pods that need them wait with the same event.
    Existing copies stay unchanged."""
    cache_bytes_per_namespace: Annotated[int, Meta(gt=0)] = 16 * 1024**2
    """Maximum memory of the Services, EndpointSlices, claims and followed objects of one upper namespace, for all lower
    clusters together. Also the maximum memory of its pods beyond 16 KiB per pod, for each lower cluster. Further objects
    are not kept, and the namespace's new pods wait with event ``NamespaceTooLarge``. Existing copies stay unchanged."""
    watches_per_namespace: Annotated[int, Meta(ge=0)] = 50
    """Maximum watches of referenced objects of one upper namespace in one lower cluster, each with its own
    connection. Other objects are read when a pod starts and about once a minute, 20 per second in all.
    Namespaces take turns."""
    watches: Annotated[int, Meta(ge=0)] = 200
    """Maximum watches of referenced objects in one lower cluster. If all are in use, a namespace with few
    takes one from the namespace with most. An object that loses its watch is then read about once a minute."""


class IdentitiesConfig(_Base):
    """Tokens of the upper cluster for lower pods."""

    tokens: Annotated[Literal["pod", "node"], Setting(PODS, "--identity-tokens")] = "pod"
    """pod: one token per pod, which becomes invalid with the pod. node: one token per ServiceAccount, audience
    and lifetime for all pods of a virtual node, which becomes invalid with the Node: fewer requests per pod. It needs
    Kubernetes 1.31 in the upper cluster. A changed value applies to new pods."""


class LeaderElectionConfig(_Base):
    """How replicas of a virtual-node process divide the work."""

    enabled: Annotated[bool, Setting(PROCESS, "--leader-elect")] = False
    """Run as one of several replicas."""
    mode: Annotated[Literal["Standby", "Sharded"], Setting(PROCESS, "--leader-elect-mode")] = "Standby"
    """Standby: one replica works, the others wait for its Lease. Sharded: every replica runs a part of the lower
    clusters."""
    namespace: Annotated[str, Setting(PROCESS, "--leader-elect-resource-namespace NS")] = "kube-system"
    """Namespace of the Lease, in the upper cluster."""
    name: Annotated[str, Setting(PROCESS, "--leader-elect-resource-name NAME")] = "virtual-node"
    """Name of the Lease. Two installations in one upper cluster need different names. With mode Sharded the names of
    all Leases begin with it."""
    lease_duration: Positive = 15.0
    """Seconds without renewal after which another replica takes over."""
    renew_deadline: Positive = 10.0
    """Seconds after which a leader that cannot renew its Lease stops working."""
    retry_period: Positive = 2.0
    """Seconds between attempts to acquire or renew the Lease."""


class Config(_Base):
    """The configuration of a virtual-node process."""

    api_version: str = API_VERSION
    kind: str = KIND
    kubeconfig: Annotated[str, Setting(UPPER, "--kubeconfig FILE")] = ""
    """Path of the upper cluster's kubeconfig. Empty: $KUBECONFIG, ~/.kube/config, in-cluster."""
    server: Annotated[str, Setting(UPPER, "", "MASTER_URI")] = ""
    """Overrides the upper apiserver's URL in the kubeconfig."""
    cluster_id: Annotated[str, Setting(UPPER, "--cluster-id ID")] = ""
    """Identity of the upper cluster on lower objects. Empty: the uid of its kube-system namespace."""
    kube_api_qps: Annotated[Positive, Setting(UPPER, "--kube-api-qps N", parse=positive_float)] = 500
    """Requests per second to the upper apiserver, per lower cluster."""
    kube_api_burst: Annotated[int, Meta(gt=0), Setting(UPPER, "--kube-api-burst N", parse=positive_int)] = (
        1000
    )
    """Requests that may be sent at once before ``kubeApiQps`` limits them."""
    enable_controllers: Annotated[list[str], Setting(PODS, "--enable-controllers CONTROLLERS")] = (
        msgspec.field(default_factory=lambda: list(KNOWN_CONTROLLERS))
    )
    """Optional controllers: PVControllers, ServiceControllers."""
    enable_serviceaccount: Annotated[bool, Setting(PODS, "--enable-serviceaccount")] = True
    """Give lower pods tokens of the upper cluster. Off: they get an identity of the lower cluster."""
    identities: IdentitiesConfig = msgspec.field(default_factory=IdentitiesConfig)
    kubernetes_service: Annotated[Literal["Lower", "Upper"], Setting(PODS, "--kubernetes-service")] = "Lower"
    """The apiserver that KUBERNETES_SERVICE_HOST and _PORT name in pods. A pod's annotation
    ``virtual-node.io/kubernetes-service`` (upper or lower) overrides it."""
    kubernetes_service_url: Annotated[str, Setting(PODS, "--kubernetes-service-url URL")] = ""
    """URL of the upper apiserver for lower pods. Empty: the URL that this process uses."""
    ignore_labels: Annotated[list[str], Setting(PODS, "--ignore-labels LIST")] = msgspec.field(
        default_factory=lambda: ["group.batch.scheduler.tencent.com"]
    )
    """Pod labels that are not copied to lower pods. They are kept in the annotation ``tripped-labels``."""
    pod_sync_workers: Annotated[int, Meta(gt=0), Setting(PODS, "--pod-sync-workers N")] = 50
    """Maximum number of pods of one lower cluster that are reconciled at the same time."""
    ping_interval: Annotated[Positive, Setting(PROCESS, "--ping-interval D", parse=duration)] = 10.0
    """Time between health checks of a lower cluster; in the file in seconds."""
    ping_timeout: Positive = 5.0
    """Seconds after which a health check without response counts as failed."""
    status_interval: Positive = 60.0
    """Seconds between updates of an unchanged Node's status."""
    lease_duration: Positive = 40.0
    """Seconds for which a Node's Lease is valid. It is renewed after every quarter of this time."""
    full_resync_period: Annotated[
        float, Meta(ge=0), Setting(PODS, "--full-resync-period D", parse=duration)
    ] = 600.0
    """Time between reconciliations of all pods, from the caches; in the file in seconds. 0: never."""
    metrics_address: Annotated[str, Setting(PROCESS, "--metrics-addr HOST:PORT", parse=address)] = ""
    """host:port for /healthz, /readyz and /metrics. Empty: not served."""
    web_address: Annotated[str, Setting(PROCESS, "--web-addr HOST:PORT", parse=address)] = ""
    """host:port for a read-only page about this process. Empty: not served. The page needs no credentials, so
    keep it on loopback and use ``kubectl port-forward``."""
    workers: Annotated[int, Meta(ge=1, le=64), Setting(PROCESS, "--workers N")] = 1
    """Processes of this machine that divide the lower clusters. A process uses at most one core. More than 1 implies
    leader election with mode Sharded."""
    inspection_history: Annotated[
        str,
        Meta(pattern=r"^([a-z0-9-]+/[a-z0-9.-]+)?$"),
        Setting(PROCESS, "--inspection-history NAMESPACE/NAME"),
    ] = ""
    """ConfigMap of the upper cluster with the history of ``inspect --history``, for metrics and the page. Empty: none."""
    leader_election: LeaderElectionConfig = msgspec.field(default_factory=LeaderElectionConfig)
    kubelet: KubeletConfig = msgspec.field(default_factory=KubeletConfig)
    services: ServicesConfig = msgspec.field(default_factory=ServicesConfig)
    limits: LimitsConfig = msgspec.field(default_factory=LimitsConfig)
    cluster_profiles: ClusterProfiles | None = None
    clusters: list[LowerClusterConfig] = []
