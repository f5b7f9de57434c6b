"""What was seen of an installation, as the API has it; nothing here is concluded yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from controller_runtime.api import names
from virtual_node.commands.common.connection_errors import Trouble
from virtual_node.commands.common.probe import Probe
from virtual_node.health.objects import Json, condition, is_virtual

LABEL_NAME = "app.kubernetes.io/name"
INSTALLED_AS = "virtual-node"
WEBHOOK_NAME = "virtual-node-webhook"
DESCHEDULER_LEASE = "virtual-node-descheduler"
SCHEDULER_LEASE = "kube-scheduler"
PROBE_SELECTOR = f"{names.DOMAIN}/doctor"
"""Lower label that the dry-run pod asks for: where it ends up shows whether the webhook works."""


@dataclass(frozen=True, slots=True)
class Installation:
    """What is labelled as a part of our installation in the upper cluster; it may well run elsewhere."""

    deployments: Sequence[Json] = ()
    pods: Sequence[Json] = ()
    logs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The last lines of a pod that fails, by ``namespace/name``."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """What there is of the webhook, and how a labelled pod fares with it."""

    configurations: Sequence[Json] = ()
    endpoints: Mapping[str, int] = field(default_factory=dict)
    """Ready endpoints of its Services, by ``namespace/name``."""
    urls: Mapping[str, Probe] = field(default_factory=dict)
    """How its URLs answer to us, which is not how they answer to the API server."""
    dry_run: Probe | None = None
    """The creation of a labelled pod, on trial."""
    dry_run_pod: Json = field(default_factory=dict)
    """What the API server would have stored."""
    namespace: str = "default"
    """Where it was tried."""


@dataclass(frozen=True, slots=True)
class Lower:
    """A lower cluster whose kubeconfig was given."""

    file: str
    answer: Probe
    """Of ``/version``; the text is the version."""
    nodes: Sequence[Json] = ()
    pods: Sequence[Json] = ()
    """Ours that are pending there."""
    usable: bool = True
    """False: the kubeconfig leads nowhere; the answer's text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that was seen."""

    now: datetime
    """By the upper API server's clock."""
    server: str
    answer: Probe
    """Of the upper ``/version``; the text is the version."""
    trouble: Trouble | None = None
    """What that answer means, where it is none to go on with."""
    denied: Sequence[str] = ()
    """What the caller may not do, and what it would be for."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """By name of a field of this class: why it could not be read."""
    nodes: Sequence[Json] = ()
    leases: Mapping[str, Json] = field(default_factory=dict)
    """Of virtual nodes, by name."""
    bound: Mapping[str, Sequence[Json]] = field(default_factory=dict)
    """The pods on a virtual node, by its name."""
    pending: Sequence[Json] = ()
    """Pods in phase Pending, bound or not."""
    events: Sequence[Json] = ()
    """Warnings about pods, the oldest first."""
    kubelets: Mapping[str, Probe] = field(default_factory=dict)
    """``/healthz`` of virtual nodes through the API server."""
    installation: Installation = field(default_factory=Installation)
    webhook: Webhook = field(default_factory=Webhook)
    scheduler: Json | None = None
    """kube-scheduler's Lease."""
    descheduler: Json | None = None
    """The descheduler's Lease."""
    lower: Sequence[Lower] = ()


def virtual_nodes(facts: Facts) -> list[Json]:
    """The virtual nodes."""
    return [node for node in facts.nodes if is_virtual(node)]


def ready_nodes(facts: Facts) -> list[Json]:
    """The virtual nodes that are Ready."""
    return [node for node in virtual_nodes(facts) if condition(node, "Ready").get("status") == "True"]


def waiting(facts: Facts) -> list[Json]:
    """Pods that no scheduler has bound yet, and that one should."""
    return [
        pod
        for pod in facts.pending
        if not pod["spec"].get("nodeName")
        and not pod["spec"].get("schedulingGates")
        and not pod["metadata"].get("deletionTimestamp")
    ]
