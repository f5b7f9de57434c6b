"""Prometheus metrics of mirroring. ``docs/reference/metrics.md`` documents their names, which a test checks."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter, Gauge, Histogram

from controller_runtime.apimachinery import quantity, timestamps
from virtual_node.examine.codes import SWARMS
from virtual_node.examine.health import Health, Verdict
from virtual_node.examine.inspections import FIXED, NEW, PERSISTING, UNKNOWN, Inspection
from virtual_node.node_summary import Lag, lag_of

MIRROR_SECONDS = Histogram(
    "virtual_node_mirror_seconds",
    "Time from a change in one cluster being seen to its being written to the other, by direction.",
    ["cluster", "direction"],
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)


def pod_work() -> Histogram:
    """Return the measure of the steps for one virtual node's pods, which only its kubelet API shows."""
    return Histogram(
        "kubelet_pod_worker_duration_seconds",
        "Seconds of one step for a pod, by what it was for.",
        ["operation_type"],
        registry=None,
    )


def lag(cluster: str) -> Lag:
    """Return the mirror lag of a lower cluster since the process started; empty: nothing was mirrored."""
    return lag_of(
        (sample.labels["direction"], float(sample.labels["le"]), sample.value)
        for family in MIRROR_SECONDS.collect()
        for sample in family.samples
        if sample.name.endswith("_bucket") and sample.labels["cluster"] == cluster
    )


REFUSED = Counter(
    "virtual_node_pods_refused_total",
    "Pods that could not be created in the lower cluster, by reason.",
    ["cluster", "reason"],
)
STATUSES_DELAYED = Counter(
    "virtual_node_pod_statuses_delayed_total",
    "Pod statuses that were written later because the lower cluster changed statuses too often.",
    ["cluster"],
)
FOREIGN_SERVICES = Counter(
    "virtual_node_services_foreign_total",
    "Services not mirrored because an unmanaged lower Service has their name.",
    ["cluster"],
)
NOT_FOLLOWED = Gauge(
    "virtual_node_followed_objects_failed",
    "Objects of a followed kind that have no current copy in the lower cluster.",
    ["cluster", "resource"],
)
LOST = Counter(
    "virtual_node_pods_lost_total", "Mirrored pods of which the lower pod disappeared.", ["cluster"]
)
ORPHANED_CLAIMS = Gauge(
    "virtual_node_orphaned_claims",
    "Lower claims with data that are kept although their upper claim disappeared without a deletion.",
    ["cluster"],
)
CONFIG_REJECTED = Gauge(
    "virtual_node_config_rejected",
    "1 while the content of the configuration file is not used because it is invalid, else 0.",
)
CLUSTER_UP = Gauge("virtual_node_cluster_up", "1 while the lower cluster answers, else 0.", ["cluster"])
_REFUSALS = ("ExceededQuota", "PodSecurity", "Forbidden", "Invalid", "NotAllowed", "TooLarge", "Other")
NODE_READY = Gauge(
    "virtual_node_node_ready", "1 while the virtual node is Ready, else 0.", ["cluster", "node"]
)
ALLOCATABLE = Gauge(
    "virtual_node_node_allocatable",
    "Allocatable resources of the virtual node in cores, bytes or a count.",
    ["cluster", "node", "resource"],
)
_RESOURCES: dict[tuple[str, str], frozenset[str]] = {}
"""Resources in ``ALLOCATABLE``, by cluster and node."""
LOWER_NODES = Gauge(
    "virtual_node_lower_nodes",
    "Lower nodes of a virtual node; counting: Ready and schedulable.",
    ["cluster", "node", "state"],
)
TOKEN_EXPIRY = Gauge(
    "virtual_node_token_expiration_timestamp_seconds",
    "When the token in a Secret with credentials of a lower cluster expires.",
    ["cluster", "secret"],
)
TOKEN_RENEWAL = Gauge(
    "virtual_node_token_renewal_timestamp_seconds",
    "When the token in a Secret with credentials of a lower cluster is due for renewal.",
    ["cluster", "secret"],
)
TOKEN_RENEWAL_ERRORS = Counter(
    "virtual_node_token_renewal_errors_total",
    "Failed attempts to renew a token of a lower cluster.",
    ["cluster", "secret"],
)


def show_token(cluster: str, secret: str, *, expiry: float, due: float) -> None:
    """Set the times when a token expires and when it is due for renewal, in seconds since 1970."""
    TOKEN_EXPIRY.labels(cluster, secret).set(expiry)
    TOKEN_RENEWAL.labels(cluster, secret).set(due)


def forget_token(cluster: str, secret: str) -> None:
    """Remove the metrics of a Secret that has no token to renew."""
    for gauge in (TOKEN_EXPIRY, TOKEN_RENEWAL):
        gauge.remove_by_labels({"cluster": cluster, "secret": secret})


FAULTS = Gauge(
    "virtual_node_faults",
    "Objects of the installation with a fault, by kind; 0 where there is none.",
    ["kind"],
)
REMARKS = Gauge(
    "virtual_node_remarks",
    "Objects of the installation with a remark, which is no fault, by kind; 0 where there is none.",
    ["kind"],
)
HEALTH = Gauge("virtual_node_health", "1 for the verdict of the health model, 0 for the others.", ["verdict"])


def show_health(health: Health) -> None:
    """Set the metrics of the installation's health."""
    for code, count in health.counts().items():
        if code not in SWARMS:
            FAULTS.labels(code.value).set(count)
    for code, count in health.remark_counts().items():
        REMARKS.labels(code.value).set(count)
    for verdict in Verdict:
        HEALTH.labels(verdict.value).set(verdict is health.verdict)


def forget_health() -> None:
    """Remove the metrics of the health model, because this process stands by or ends."""
    FAULTS.clear()
    REMARKS.clear()
    HEALTH.clear()
    show_inspection(None)


INSPECTION_FINDINGS = Gauge(
    "virtual_node_inspection_findings",
    "Findings of the last scheduled inspection, by severity and state.",
    ["severity", "state"],
)
INSPECTION_TIME = Gauge(
    "virtual_node_inspection_timestamp_seconds", "When the last scheduled inspection ran; 0: unknown."
)


def show_inspection(inspection: Inspection | None) -> None:
    """Set the metrics of the last scheduled inspection; None: remove them, because it is unknown."""
    if inspection is None:
        INSPECTION_FINDINGS.clear()
        INSPECTION_TIME.set(0)
        return
    for severity in ("error", "warning"):
        for state in (NEW, PERSISTING, FIXED, UNKNOWN):
            INSPECTION_FINDINGS.labels(severity, state).set(
                sum((finding.severity, finding.state) == (severity, state) for finding in inspection.findings)
            )
    if inspection.runs:
        INSPECTION_TIME.set(timestamps.parse(inspection.runs[-1].time).timestamp())


def show_node(
    cluster: str,
    node: str,
    *,
    ready: bool,
    allocatable: Mapping[str, str],
    counting: int,
    selected: int,
) -> None:
    """Set the metrics of a virtual node."""
    NODE_READY.labels(cluster, node).set(ready)
    LOWER_NODES.labels(cluster, node, "counting").set(counting)
    LOWER_NODES.labels(cluster, node, "selected").set(selected)
    # The lower cluster chooses the resources, so those that it no longer has must not stay.
    for resource in _RESOURCES.get((cluster, node), frozenset()) - allocatable.keys():
        ALLOCATABLE.remove(cluster, node, resource)
    _RESOURCES[cluster, node] = frozenset(allocatable)
    for resource, text in allocatable.items():
        ALLOCATABLE.labels(cluster, node, resource).set(quantity.milli(text) / 1000)


def expect_cluster(cluster: str) -> None:
    """Add the metrics of a lower cluster that this process runs; the cluster is down until it answers.

    Counters start at 0, because Prometheus's ``increase()`` misses the first count of a new series.
    """
    CLUSTER_UP.labels(cluster).set(0)
    for counter in (LOST, FOREIGN_SERVICES, STATUSES_DELAYED):
        counter.labels(cluster)
    for reason in _REFUSALS:
        REFUSED.labels(cluster, reason)


def show_stopped(cluster: str) -> None:
    """Mark a stopped lower cluster as down, and remove the metrics of its nodes, claims and tokens."""
    CLUSTER_UP.labels(cluster).set(0)
    gauges = ORPHANED_CLAIMS, NODE_READY, LOWER_NODES, ALLOCATABLE, TOKEN_EXPIRY, TOKEN_RENEWAL, NOT_FOLLOWED
    for gauge in gauges:
        gauge.remove_by_labels({"cluster": cluster})
    for key in [key for key in _RESOURCES if key[0] == cluster]:
        del _RESOURCES[key]


def forget_cluster(cluster: str) -> None:
    """Remove the gauges of a lower cluster that this process no longer runs."""
    show_stopped(cluster)
    CLUSTER_UP.remove_by_labels({"cluster": cluster})
