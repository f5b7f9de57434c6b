"""The description of the lower clusters, which all programs read from the same file.

Each program adds its own settings to ``ClusterSet``. ``reading`` reads the file and ``validation`` validates it. Unknown
fields are errors, because a silently ignored typing error is hard to find.

The settings of measured usage are those that the multi-scheduler and the annotator read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from clusterset.model import operators
from clusterset.model.autoscaling import Autoscaling, Taint
from clusterset.model.namespace_map import NamespaceConfig
from clusterset.model.operators import OperatorName
from clusterset.model.overrides import Override
from clusterset.model.pod.resource_claims import ResourceClaimsConfig
from clusterset.model.policy.config import Policy
from clusterset.model.policy.copied_keys import IgnoredKeys, KeyPatterns
from clusterset.model.rights import PROFILE_NAMESPACE
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.decoding import ConfigStruct, convert
from controller_runtime.process.settings import Port, Positive, Setting
from controller_runtime.resources import CLUSTER_PROFILES
from controller_runtime.rights import Right

PV_CONTROLLERS = "PVControllers"
SERVICE_CONTROLLERS = "ServiceControllers"
KNOWN_CONTROLLERS = (PV_CONTROLLERS, SERVICE_CONTROLLERS)
"""The values of ``enableControllers``."""
Kind = Literal["None", "MetricsAPI", "Summary", "Resource", "Prometheus", "Annotations"]
_SERVICE = re.compile(r"[a-z0-9-]+/(https?:)?[a-z0-9-]+(:[a-z0-9-]+)?", re.ASCII)
_RATE = 'sum by (node) (rate({metric}{{id="/"}}[1m]))'


def _share(metric: str) -> str:
    return f"100 * {_RATE.format(metric=metric)}"


_Percent = Annotated[float, Meta(gt=0, le=100)]


class Thresholds(ConfigStruct):
    """Thresholds from which a node is under pressure, for the averages over 10 and 60 seconds."""

    cpu: _Percent = 50.0
    """Percent of time in which some tasks wait for a CPU. Counts only while more than 70 % of the CPUs are in use."""
    memory: _Percent = 10.0
    """Percent of time in which all tasks wait for memory."""
    io: _Percent = 40.0
    """Percent of time in which all tasks wait for IO."""


class PrometheusConfig(ConfigStruct):
    """Address of Prometheus, and the queries. A query returns one value per node."""

    service: str = ""
    """A Service of the lower cluster, reached through its API server: ``namespace/name:port``."""
    url: str = ""
    """URL that the multi-scheduler reaches directly, instead of ``service``."""
    token_file: str = ""
    """A file with a bearer token for ``url``."""
    node_label: str = "node"
    """Label of the query's results that has the node's name."""
    cpu: str = _RATE.format(metric="container_cpu_usage_seconds_total")
    """CPUs in use."""
    memory: str = 'sum by (node) (container_memory_working_set_bytes{id="/"})'
    """Bytes in use."""
    cpu_pressure: str = _share("container_pressure_cpu_waiting_seconds_total")
    """Percent of the last minute in which some tasks waited for a CPU; empty: not queried."""
    memory_pressure: str = _share("container_pressure_memory_stalled_seconds_total")
    """Percent of the last minute in which all tasks waited for memory; empty: not queried."""
    io_pressure: str = _share("container_pressure_io_stalled_seconds_total")
    """Percent of the last minute in which all tasks waited for IO; empty: not queried."""


class UsageConfig(ConfigStruct):
    """Source of the usage of lower nodes, and how long a value is valid."""

    source: Kind = "None"
    """MetricsAPI: ``metrics.k8s.io``, as served by metrics-server. Summary: the kubelets' Summary API, with pressure (PSI).
    Resource: the kubelets' ``/metrics/resource``. Prometheus: queries. Annotations: those of lower nodes. None: usage is
    unknown, and scores are neutral."""
    interval_seconds: Annotated[int, Meta(ge=1)] = 15
    """Time between two reads of the same node."""
    window: Annotated[int, Meta(ge=1, le=1000)] = 60
    """Number of samples over which mean and deviation are computed."""
    max_age_seconds: Annotated[int, Meta(ge=1)] = 120
    """Age from which a node's usage counts as unknown."""
    prometheus: PrometheusConfig = msgspec.field(default_factory=PrometheusConfig)
    """Settings for source Prometheus."""
    pressure: Thresholds = msgspec.field(default_factory=Thresholds)
    """When a node is under pressure."""


def problems(where: str, config: UsageConfig) -> Iterator[str]:
    """Yield what is wrong with a setting beyond its types, each as ``field: problem``."""
    prometheus = config.prometheus
    if config.source != "Prometheus":
        return
    if bool(prometheus.service) == bool(prometheus.url):
        yield f"{where}.prometheus: give either service or url"
    elif prometheus.service and not _SERVICE.fullmatch(prometheus.service):
        yield f"{where}.prometheus.service: {prometheus.service!r} is not namespace/name:port"


LOWER = "lower cluster (one; use --config for many)"
NODE = "node"
PODS = "pods"
"""Titles of the groups of flags about a lower cluster."""

API_VERSION = "virtual-node.io/v1alpha1"
KIND = "ClusterSetConfiguration"
FORMER_KINDS = ("VirtualNodeConfiguration", "MultiSchedulerConfiguration")
"""Kinds of earlier releases, each for one program. All programs read them like ``KIND``."""

REJECT = "Reject"
"""Value of ``Cluster.on_unschedulable``."""

NOT_READY = "NotReady"
"""Value of ``Unreachable.pods``."""
LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_OWN = ("name", "kubeconfig", "context", "server", "tokenSecrets", "nodeName", "nodes", "port")
"""Fields of a cluster that each ClusterProfile needs with its own value, or that have no meaning for it."""


class SecretReference(ConfigStruct):
    """A Secret in the lower cluster."""

    name: str
    """Name of the Secret."""
    namespace: str
    """Namespace of the Secret."""


class SharedStorage(ConfigStruct):
    """Storage that several lower clusters reach: all clusters with an entry of the same name."""

    name: Annotated[str, Meta(pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    """Name of the storage, the same in all clusters. Labels of the virtual nodes contain it."""
    drivers: Annotated[list[str], Meta(min_length=1)]
    """CSI drivers with volume handles that identify the same volume in all of these clusters."""
    secret: SecretReference | None = None
    """Secret in this cluster that the driver gets for volumes of another cluster. Without it, volumes that need a Secret
    stay in their cluster."""


class VolumeConfig(ConfigStruct):
    """How PersistentVolumeClaims and volumes are mirrored in this cluster."""

    storage_classes: dict[str, str] = {}
    """Lower StorageClass by upper StorageClass, if their names differ."""
    published: list[str] = []
    """Upper StorageClasses, with provisioner ``kubernetes.io/no-provisioner`` or ``virtual-node.io/…``, of which
    ``Available`` lower volumes appear in the upper cluster, at most 100 per lower cluster. Claims of every upper
    namespace can bind them. Empty: none."""
    deletion_policy: Literal["Delete", "Retain"] = "Delete"
    """What happens to the lower claim when an upper claim is deleted. Delete: it is deleted, and the lower
    volume's reclaim policy decides about the data. Retain: the lower claim stays, as it does with both settings if the upper
    volume has reclaim policy Retain."""
    orphans: Literal["Keep", "Delete"] = "Keep"
    """What happens to a lower claim after its upper claim disappeared without a regular deletion."""
    allowed_host_paths: list[str] = []
    """Directories of lower nodes that pods may mount, in addition to ``policy.hostPaths``."""
    binder_image: str = "registry.k8s.io/pause:3.10"
    """Image of the placeholder pod for which the lower scheduler selects a node for new volumes."""
    shared: list[SharedStorage] = []
    """Storage that other lower clusters reach, too. Volumes on this storage follow their pods to these clusters."""


class CapacityPolicy(ConfigStruct):
    """How the lower nodes' capacity is offered in the upper cluster."""

    reserve: dict[str, str] = {}
    """Subtracted from allocatable, per resource: a quantity (``"2"``, ``"4Gi"``) or a percentage (``"10%"``)."""


class NodeConfig(ConfigStruct):
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
    """Taints of the Node. Unset: ``virtual-kubelet.io/provider=k8s:NoSchedule``. An empty list: none. A change here changes the
    Node; a taint that users removed or changed on the Node stays as it is."""
    capacity: CapacityPolicy = msgspec.field(default_factory=CapacityPolicy)
    autoscaling: Autoscaling | None = None
    """Nodes that the lower cluster's autoscaler adds for pods that wait. The virtual node offers them in addition to the
    existing nodes. Unset: none are expected."""
    port: Port | None = None
    """Port of the kubelet API. Unset: the first free port from ``kubelet.port`` on. 0: any free port."""
    node_ip: str = ""
    """InternalIP of the Node. Its kubelet API listens on this address only, so that virtual nodes with different addresses
    can all use port 10250. Empty: ``kubelet.nodeIP``, which the virtual nodes of a process share."""
    provider_id: str = ""
    """``spec.providerID`` of the Node, for neighbours that need a value. It cannot be changed later. Empty: none."""
    exclude_from_load_balancers: bool = True
    """Give the Node the label ``node.kubernetes.io/exclude-from-external-load-balancers``, because a virtual node forwards
    no traffic to Services."""


class ClusterServicesConfig(ConfigStruct):
    """How Services appear in this cluster."""

    cluster_ip: Literal["own", "same"] = "own"
    """own: this cluster chooses the addresses of copies. same: a new copy gets the upper Service's address if
    it is free and in this cluster's Service range, otherwise an address that this cluster chooses, with event
    ``OtherClusterIP``."""


class Unreachable(ConfigStruct):
    """What is reported about the pods of this cluster while it cannot be read, although they may run."""

    pods: Literal["KeepReady", "NotReady"] = "NotReady"
    """NotReady: the pods become not ready, as those of a dead kubelet, so that Services of other clusters do not use them.
    KeepReady: they stay as the cluster last reported them, until Kubernetes or the descheduler evicts them."""
    after_seconds: Annotated[float, Meta(ge=0)] = 60
    """Seconds since the last answer of the cluster, for ``NotReady``. Longer than its API server needs for a restart."""


class DNSConfig(ConfigStruct):
    """How pods in this cluster resolve names of the upper cluster. ``docs/use/services.md`` has the details."""

    servers: Annotated[list[str], Meta(max_length=3)] = []
    """Addresses of name servers that answer for the names of the upper cluster, such as the one that ``lower-cluster dns``
    creates. New pods that use the cluster's DNS (``dnsPolicy``) use these servers. Needed for names of other namespaces if
    ``namespaces.prefix``, ``namespaces.map`` or another cluster domain changes them. Empty: pods use the lower
    cluster's DNS."""


class TokenSecret(ConfigStruct):
    """A Secret of the upper cluster with a token for a lower cluster, as ``lower-cluster register`` creates it."""

    namespace: str
    """Namespace of the Secret."""
    name: str
    """Name of the Secret. The token is written to its key ``token``."""


class Cluster(ConfigStruct):
    """One lower cluster. ``nodeName`` and the other node fields are short for a single ``nodes`` entry."""

    name: str
    kubeconfig: Annotated[str, Setting(LOWER, "--client-kubeconfig FILE")] = ""
    """Path of the lower cluster's kubeconfig. There is no default."""
    context: str = ""
    """The kubeconfig's context. Empty: its current context."""
    server: str = ""
    """Overrides the API server's URL in the kubeconfig."""
    token_secrets: list[TokenSecret] = []
    """Secrets of the upper cluster with tokens for this lower cluster, which the virtual node renews before they expire.
    Empty: no token is renewed, for example if the kubeconfig is only a file."""
    client_qps: Annotated[Positive, Setting(LOWER, "--client-qps N")] = 500
    """Requests per second of the virtual node to the lower apiserver, on average."""
    client_burst: Annotated[int, Meta(gt=0), Setting(LOWER, "--client-burst N")] = 1000
    """Requests that may be sent at once before ``clientQPS`` limits them."""
    cache_bytes: Annotated[int, Meta(ge=0)] = 128 * 1024**2
    """Maximum memory for cached objects of this cluster, in each program. Beyond it, the virtual nodes of this cluster stop
    with condition ``LowerClusterTooLarge``, the extender rejects them, and both read the cluster again after five minutes.
    Other clusters continue. 128 MiB are enough for about 10,000 mirrored pods, 2,000 nodes and 30,000 other pods, and in the
    extender for about 60,000 pods. 0: no limit."""
    node_name: Annotated[str, Setting(NODE, "--nodename NODE", "DEFAULT_NODE_NAME", "DEFAULTNODE_NAME")] = ""
    """Name of the cluster's only virtual node. Empty: the cluster's name, or ``virtual-kubelet`` without
    ``--config``. Not used beside ``nodes``."""
    node_selector: dict[str, str] = {}
    labels: dict[str, str] = {}
    taints: list[Taint] | None = None
    capacity: CapacityPolicy | None = None
    autoscaling: Autoscaling | None = None
    port: Port | None = None
    node_ip: str = ""
    provider_id: str = ""
    exclude_from_load_balancers: bool | None = None
    namespaces: NamespaceConfig = msgspec.field(default_factory=NamespaceConfig)
    pod_selector: dict[str, Any] = {}
    """LabelSelector (``matchLabels``, ``matchExpressions``) of pods that may run in this cluster. Empty: all."""
    on_unschedulable: Literal["Wait", "Reject"] = "Wait"
    """What happens to a pod that the lower scheduler cannot place. Wait: it stays Pending until there is room or the
    descheduler moves it. Reject: it fails with the kubelet's reason, such as OutOfcpu, so that its controller creates
    another pod, which the upper scheduler places again. With ``autoscaling``, it fails only after ``provisionSeconds``."""
    unreachable: Unreachable = msgspec.field(default_factory=Unreachable)
    volumes: VolumeConfig = msgspec.field(default_factory=VolumeConfig)
    resource_claims: ResourceClaimsConfig = msgspec.field(default_factory=ResourceClaimsConfig)
    services: ClusterServicesConfig = msgspec.field(default_factory=ClusterServicesConfig)
    dns: DNSConfig = msgspec.field(default_factory=DNSConfig)
    follow: list[
        Literal["networkPolicies", "podDisruptionBudgets", "ingresses", "gateways", "serviceExports"]
    ] = []
    """Kinds of objects that are copied to this cluster for the pods that run there. Each kind needs more rights."""
    ingress_classes: dict[str, str] = {}
    """Lower IngressClass by upper IngressClass, if their names differ."""
    gateway_classes: dict[str, str] = {}
    """Lower GatewayClass by upper GatewayClass, if their names differ."""
    enable_controllers: list[str] | None = None
    """Optional controllers of this cluster. Unset: those of the top-level ``enableControllers``."""
    policy: Policy = msgspec.field(default_factory=Policy)
    overrides: list[Override] = []
    """Changes of pods in this cluster, applied in order when a lower pod is created."""
    usage: UsageConfig | None = None
    """Source of the usage of this cluster's nodes. Unset: the top-level ``usage`` applies."""
    nodes: list[NodeConfig] = []
    """Several virtual nodes for one lower cluster, because a single very large Node would attract all pods. The extender
    also accepts further Nodes with label ``virtual-node.io/lower-cluster: <name>``."""

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
                node_ip=self.node_ip,
                provider_id=self.provider_id,
                exclude_from_load_balancers=self.exclude_from_load_balancers is not False,
            )
        ]


class IgnoreConfig(ConfigStruct):
    """Labels and annotations of pods that stay in the upper cluster, because programs of lower clusters would act on them."""

    presets: list[OperatorName] = []
    """Programs that also run in a lower cluster: all their keys stay in the upper cluster."""
    labels: list[str] = []
    """Shell patterns of further label keys, such as ``example.com/*``."""
    annotations: list[str] = []
    """Shell patterns of further annotation keys."""


class ClusterSet(ConfigStruct):
    """The part of the configuration that all programs use."""

    api_version: str = API_VERSION
    kind: str = KIND
    enable_controllers: Annotated[list[str], Setting(PODS, "--enable-controllers CONTROLLERS")] = (
        msgspec.field(default_factory=lambda: list(KNOWN_CONTROLLERS))
    )
    """Optional controllers of the virtual nodes: PVControllers, ServiceControllers. Without PVControllers, pods with
    PersistentVolumeClaims are rejected."""
    ignore_labels: Annotated[list[str], Setting(PODS, "--ignore-labels LIST")] = msgspec.field(
        default_factory=lambda: ["group.batch.scheduler.tencent.com"]
    )
    """Pod labels that are not copied to lower pods. They are kept in the annotation ``tripped-labels``. ``ignore`` has
    presets, and annotations as well."""
    ignore: IgnoreConfig = msgspec.field(default_factory=IgnoreConfig)
    cluster_profiles: ClusterProfiles | None = None
    clusters: list[Cluster] = []

    def controllers(self, cluster: Cluster) -> Sequence[str]:
        """Return the optional controllers of a lower cluster."""
        return self.enable_controllers if cluster.enable_controllers is None else cluster.enable_controllers

    @property
    def ignored(self) -> IgnoredKeys:
        """Return the labels and annotations that lower pods do not get."""
        ignore, presets = self.ignore, operators.patterns(self.ignore.presets)
        return IgnoredKeys(
            KeyPatterns((*self.ignore_labels, *ignore.labels, *presets)),
            KeyPatterns((*ignore.annotations, *presets)),
        )


def profile_cluster(profiles: ClusterProfiles, name: str, path: str) -> Cluster:
    """Return the lower cluster of a ClusterProfile: the defaults with this name and the kubeconfig ``path``.

    Raises:
        ValueError: the defaults are invalid; the message names the field.
    """
    whole = {**profiles.defaults, "name": name, "nodeName": name, "kubeconfig": path}
    return convert(whole, Cluster, where="clusterProfiles.defaults")


def names_in_use(clusters: Sequence[Cluster]) -> frozenset[str]:
    """Return the names of lower clusters and of their virtual nodes, which no ClusterProfile can have."""
    return frozenset(
        name
        for cluster in clusters
        for name in (cluster.name, *(node.name for node in cluster.virtual_nodes()))
    )


class ClusterProfiles(ConfigStruct, kw_only=True):
    """ClusterProfile objects of the upper cluster that become lower clusters while the process runs."""

    namespace: Annotated[str, Meta(pattern=f"^{LABEL}$", max_length=63)]
    """Namespace of the ClusterProfiles. Users who can write ClusterProfiles there decide to which servers the credentials of
    the providers are sent."""
    label_selector: str = ""
    """Label selector of the ClusterProfiles to use, as in ``kubectl get --selector``. Empty: all of the namespace."""
    names: list[str] = []
    """Names of the only ClusterProfiles that may be used. Empty: every selected one."""
    providers_file: Annotated[str, Meta(min_length=1)]
    """JSON or YAML file with the credential plugins: ``{"providers": [{"name": ..., "execConfig": {...}}]}``. Only this file
    names commands; a ClusterProfile cannot."""
    name_prefix: Annotated[str, Meta(pattern="^([a-z0-9][-a-z0-9]*)?$", max_length=30)] = "profile-"
    """Prefix of the name of the lower cluster and of its virtual node; the name of the ClusterProfile follows."""
    defaults: dict[str, Any] = {}
    """Settings of each of these lower clusters: fields of ``clusters[]`` except ``name``, ``kubeconfig``, ``context``,
    ``tokenSecrets``, ``nodeName``, ``nodes`` and ``port``."""


PROFILES = (
    Right(
        CLUSTER_PROFILES.group,
        CLUSTER_PROFILES.plural,
        ("list", "watch"),
        "lower clusters of an inventory (clusterProfiles)",
        "",
        PROFILE_NAMESPACE,
    ),
)
"""Rights that a program with ``clusterProfiles`` needs in the upper cluster."""


def profile_problems(settings: ClusterProfiles) -> Iterator[str]:
    """Yield what is wrong with the setting beyond its types, each as ``field: problem``."""
    try:
        matching.parse_selector(settings.label_selector)
    except ValueError as error:
        yield f"clusterProfiles.labelSelector: {error}"
    yield from (
        f"clusterProfiles.defaults.{field}: cannot be a default, because it differs for each cluster"
        for field in _OWN
        if field in settings.defaults
    )
