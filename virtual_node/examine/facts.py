"""The facts by which an installation is judged, and about the way of a pod from the upper API server to a container."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from clusterset.model import names
from virtual_node.examine.objects import Json
from virtual_node.examine.snapshot import Fact, Snapshot, View


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """A lower cluster, as known from the process that runs it or from the configuration."""

    name: str
    reachable: bool | None = None
    """Whether its API server answers; None: unknown."""
    error: str = ""
    """Why it does not answer, or why its controllers do not run; empty: no error."""
    failed: bool = False
    """Whether, because of ``error``, its controllers do not run or cannot write its virtual node."""
    nodes: Sequence[str] = ()
    """Names of its configured virtual nodes."""


NODES = Fact[Sequence[Json]]("nodes", kind="Node")
"""The virtual nodes."""
LEASES = Fact[Mapping[str, Json]]("leases", kind="Lease")
"""Leases of the virtual nodes, by name."""
BOUND = Fact[Iterable[Json]]("signs", kind="Pod")
"""Pods on the virtual nodes."""
WAITING = Fact[Iterable[Json]]("waiting", kind="Pod")
"""Pods without a node; also those that are not for virtual nodes."""
COMPONENTS = Fact[Sequence[Json]]("replicas", kind="Pod")
"""Pods of our own components."""
SWARMS = Fact[Sequence[Json]]("swarms", kind="Swarm")
"""The Swarms; empty also if the caller may not read them, or if they are not installed."""
WORDS = Fact[Mapping[str, str]]("words")
"""Log line or event that explains a pod whose status does not, by the pod's ``namespace/name``."""
CLUSTERS = Fact[Sequence[ClusterState]]("clusters")
"""The configured lower clusters."""
REJECTED = Fact[Mapping[str, str]]("rejected")
"""Why a configuration is not applied, by lower cluster; the empty name is the whole file."""
EXPIRING = Fact[Mapping[str, str]]("expiring")
"""Why a credential or certificate needs attention soon, by lower cluster."""


_NONE: Mapping[Fact[Any], Any] = {SWARMS: (), WORDS: {}, CLUSTERS: (), REJECTED: {}, EXPIRING: {}}
"""Facts that are known to be empty unless a caller has others."""


def known(
    now: datetime,
    facts: Mapping[Fact[Any], Any],
    *,
    unknown: Mapping[str, str] | None = None,
    lowers: Sequence[View] = (),
) -> Snapshot:
    """Return a snapshot of facts of the upper cluster that the caller has; None: not known."""
    snapshot = Snapshot(now, unknown=unknown or {}, lowers=lowers)
    for fact, value in {**_NONE, **facts}.items():
        if value is not None:
            snapshot.upper.put(fact, value)
    return snapshot


if TYPE_CHECKING:
    from clusterset.comparing import Difference
    from clusterset.config import Cluster
    from clusterset.model.namespace_map import NamespaceConfig
    from clusterset.model.pod.api_access import Choice
    from virtual_node.rights.name_server import Installed
    from virtual_node.translate.pods.api_server import Endpoint

SCHEDULER_LEASE = "kube-scheduler"
PROXY_REFUSES = "address not allowed"
"""The API server's error when a node's address is loopback or link-local, to which it does not proxy."""
PROBE_SELECTOR = f"{names.DOMAIN}/doctor"
"""Node label in the dry-run pod's selector, which a working webhook moves to annotation clusterSelector."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of a probing request."""

    code: int
    """HTTP status; 0: no response."""
    text: str = ""
    """Body of the response, or the error."""

    @property
    def ok(self) -> bool:
        """Whether the request succeeded."""
        return 200 <= self.code < 300


@dataclass(frozen=True, slots=True)
class Answer:
    """The address of a cluster's API server, or why it cannot be used."""

    server: str = ""
    error: str = ""
    step: str = ""
    """The next step after an error; empty: none is known."""
    usable: bool = True
    """False: the kubeconfig cannot be used."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Objects in the upper cluster with the labels of our installation, which may also run elsewhere."""

    deployments: Sequence[Json] = ()
    pods: Sequence[Json] = ()
    logs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By ``namespace/name`` of the pod: last log lines of a terminated container, else the last warning."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """The webhook's registration and the result of creating a labelled pod."""

    configurations: Sequence[Json] = ()
    endpoints: Mapping[str, int] = field(default_factory=dict)
    """Ready endpoints by Service (``namespace/name``)."""
    urls: Mapping[str, Probe] = field(default_factory=dict)
    """Responses to this machine by URL of the webhook; the API server may get others."""
    dry_run: Probe | None = None
    """Result of the dry-run creation of a labelled pod; None: there is no webhook."""
    dry_run_pod: Json = field(default_factory=dict)
    """The pod that the API server would have stored."""
    namespace: str = "default"
    """Namespace of the dry-run pod."""


@dataclass(frozen=True, slots=True)
class ApiAccess:
    """What the configuration gives to in-cluster clients in pods."""

    setting: Choice
    """``kubernetesService``: whose API server."""
    identities: bool
    """``enableServiceaccount``: whether pods get tokens of the upper cluster."""
    endpoint: Endpoint | None = None
    """Where pods reach the upper API server; None: they do not use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """By which names pods of a lower cluster find others."""

    cluster: str = "NAME"
    """Name of the lower cluster in the configuration."""
    renamed: str = ""
    """Why upper namespaces have other names there; empty: they have the same, as far as known."""
    domain: str = ""
    """DNS domain of the lower cluster; empty: unknown."""
    installed: Sequence[Installed] = ()
    """The name servers for upper names there."""
    servers: Sequence[str] | None = None
    """Addresses of the name servers that pods use (``dns.servers``); None: unknown, so any name server counts."""
    namespaces: NamespaceConfig | None = None
    """Settings that the name servers must have; None: unknown."""


@dataclass(frozen=True, slots=True)
class AccountRight:
    """The rights of an account to one resource, as far as its component needs them."""

    resource: str
    """``pods/exec``; with the API group if two groups have a resource of that name."""
    verbs: Sequence[str]
    """The verbs that are needed."""
    fix: str = ""
    """What to grant; empty: no right is missing."""


@dataclass(frozen=True, slots=True)
class ServiceRanges:
    """Whether Services can have the upper cluster's addresses in a lower cluster."""

    fits: Mapping[str, bool | None] = field(default_factory=dict)
    """For each range of the upper cluster, whether the lower cluster can assign its addresses; None: unknown."""
    own: Sequence[str] = ()
    """The lower cluster's ranges."""


ANSWER = Fact[Answer]("answer")
"""The answer of a cluster's API server."""
DENIED = Fact[Sequence[str]]("denied")
"""Rights in the upper cluster that the caller lacks and that the tool needs."""
INSTALLED = Fact[Installation]("installation")
"""Our Deployments and pods in the upper cluster."""
EVENTS = Fact[Sequence[Json]]("events")
"""Warning events about pods of the upper cluster, the oldest first."""
KUBELETS = Fact[Mapping[str, Probe]]("kubelets")
"""Results of ``/healthz`` of virtual nodes through the upper API server, by node name."""
WEBHOOK = Fact[Webhook]("webhook")
SCHEDULERS = Fact[Sequence[Json]]("scheduler")
"""kube-scheduler's Lease; empty: there is none."""
DESCHEDULERS = Fact[Sequence[Json]]("descheduler")
"""Leases of deschedulers, one in each namespace in which one ran."""
DOMAIN = Fact[str]("domain")
"""DNS domain of the upper cluster; empty: unknown."""
API_ACCESS = Fact[ApiAccess]("API of pods")
NAMES = Fact[Names]("names")
"""Of a lower cluster."""
CONFIGURED: Fact[Cluster] = Fact("configured cluster")
"""The configuration of a lower cluster, if the command has it."""
TRIAL_NAMESPACE = Fact[str]("namespace")
"""The namespace that the user chose for the dry-run pod."""
UID = Fact[str]("identity")
"""UID of the cluster's namespace ``kube-system``."""
RIGHTS = Fact[Sequence[AccountRight]]("rights")
"""Rights of the account that a component uses in the cluster."""
NODE_NAMES = Fact[Mapping[str, str]]("node names")
"""Why the name of a configured virtual node cannot be used, by name; empty: it can."""
PROFILES = Fact[Mapping[str, str]]("ClusterProfiles")
"""Why ClusterProfiles are not used, by ``namespace/name``."""
DIFFERENCES: Fact[Mapping[str, Sequence[Difference]]] = Fact("differences")
"""Settings that the multi-scheduler's own file gives differently, by path of the file."""
SERVICE_RANGES = Fact[ServiceRanges]("service ranges")
"""Of a lower cluster in which Services get the upper cluster's addresses."""
