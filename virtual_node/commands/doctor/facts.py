"""What ``doctor`` reads of an installation, as API objects without conclusions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from clusterset.model import names
from clusterset.model.pod.conditions import is_true
from virtual_node.commands.common.connect import Trouble
from virtual_node.commands.common.installation import Installation
from virtual_node.commands.common.name_server import Installed
from virtual_node.examine.objects import Json, is_deleting, is_virtual
from virtual_node.examine.probes import Probe

WEBHOOK_NAME = "virtual-node-webhook"
SCHEDULER_LEASE = "kube-scheduler"
PROBE_SELECTOR = f"{names.DOMAIN}/doctor"
"""Node label in the dry-run pod's selector, which a working webhook moves to annotation clusterSelector."""


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
class LowerFacts:
    """A lower cluster whose kubeconfig was given."""

    file: str
    answer: Probe
    """Result of ``/version``; the text is the version."""
    nodes: Sequence[Json] = ()
    pods: Sequence[Json] = ()
    """Mirrored pods in phase Pending."""
    usable: bool = True
    """False: the kubeconfig cannot be used, and the answer's text says why."""
    domain: str = ""
    """DNS domain of the cluster; empty: unknown."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Lower namespaces with another name than their upper namespace → the upper name."""
    name_servers: Sequence[Installed] = ()
    """Name servers for the names of the upper cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFacts:
    """Everything that was read."""

    now: datetime
    """Current time by the upper API server's clock."""
    server: str
    answer: Probe
    """Result of ``/version`` of the upper cluster; the text is the version."""
    trouble: Trouble | None = None
    """Explanation of a failed ``answer``; None: it succeeded."""
    denied: Sequence[str] = ()
    """Rights that the caller lacks."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Why fields of this class could not be read, by field name."""
    nodes: Sequence[Json] = ()
    leases: Mapping[str, Json] = field(default_factory=dict)
    """Leases in ``kube-node-lease``, by name; also those of real nodes."""
    bound: Mapping[str, Sequence[Json]] = field(default_factory=dict)
    """Pods bound to virtual nodes, by the node's name."""
    pending: Sequence[Json] = ()
    """Pods in phase Pending, bound or not."""
    events: Sequence[Json] = ()
    """Warning events about pods, the oldest first."""
    kubelets: Mapping[str, Probe] = field(default_factory=dict)
    """Results of ``/healthz`` of virtual nodes through the API server, by node name."""
    installation: Installation = field(default_factory=Installation)
    webhook: Webhook = field(default_factory=Webhook)
    scheduler: Json | None = None
    """kube-scheduler's Lease; None: there is none."""
    descheduler: Json | None = None
    """The descheduler's Lease; None: there is none."""
    swarms: Sequence[Json] = ()
    """The Swarms; empty also if they are not installed, or if the caller may not read them."""
    domain: str = ""
    """DNS domain of the upper cluster; empty: unknown."""
    lower: Sequence[LowerFacts] = ()


def virtual_nodes(facts: DoctorFacts) -> list[Json]:
    """Return the virtual nodes."""
    return [node for node in facts.nodes if is_virtual(node)]


def ready_nodes(facts: DoctorFacts) -> list[Json]:
    """Return the virtual nodes that are Ready."""
    return [node for node in virtual_nodes(facts) if is_true(node.get("status"), "Ready")]


def waiting(facts: DoctorFacts) -> list[Json]:
    """Return pods that a scheduler should bind and has not bound yet."""
    return [
        pod
        for pod in facts.pending
        if not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates") and not is_deleting(pod)
    ]
