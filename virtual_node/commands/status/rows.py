"""Describes a virtual node for ``status`` as data and as a table row. Does no IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

from clusterset.model import names
from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import quantity, readable, timestamps
from controller_runtime.client.verbs import Verbs
from controller_runtime.errors import ApiError, Forbidden
from controller_runtime.objects import Object
from virtual_node.commands.common import output
from virtual_node.examine.leases import lease_age
from virtual_node.examine.objects import labels_of
from virtual_node.node_summary import (
    MIRROR_SECONDS,
    RESOURCES,
    Lag,
    NodeSummary,
    lag_of,
    summarize,
    summary_of,
)

COLUMNS = (
    *("NODE", "READY", "CLUSTER", "VERSION", "PODS", "TROUBLE"),
    *("CPU", "MEMORY", "LAG", "HEARTBEAT", "AGE"),
)
WIDE = ("RELEASE", "REPLICA", "ADDRESS", "TAINTS", "LAST-ERROR")
SPARE = ("LAG", "AGE", "VERSION", "HEARTBEAT", "MEMORY", "CPU", "CLUSTER")
"""Columns to omit on a narrow terminal, the least important first."""
_UNKNOWN = "?"


def describe(
    node: Mapping[str, Any],
    pods: Sequence[Mapping[str, Any]] | None,
    lease: Mapping[str, Any] | None,
    *,
    now: datetime,
) -> dict[str, Any]:
    """Return the data of one virtual node for ``-o json``.

    Args:
        node: the Node.
        pods: the pods bound to the node; None: the caller may not list them.
        lease: the node's Lease; None: there is none, or the caller may not read it.
        now: timezone-aware current time.
    """
    return row(node, None if pods is None else summarize(map(summary_of, pods)), lease, now=now)


def row(
    node: Mapping[str, Any], pods: NodeSummary | None, lease: Mapping[str, Any] | None, *, now: datetime
) -> dict[str, Any]:
    """Return the data of one virtual node as ``describe`` does, from a summary of its pods; None: unknown."""
    metadata, status = node["metadata"], node.get("status") or {}
    labels, spec = labels_of(node), node.get("spec") or {}
    ready = condition(node.get("status"), "Ready")
    allocatable = status.get("allocatable") or {}
    lease_metadata = (lease or {}).get("metadata") or {}
    age = lease_age(lease, now)
    return {
        "name": metadata["name"],
        "ready": ready.get("status", "Unknown"),
        "reason": ready.get("reason", ""),
        "message": ready.get("message", ""),
        "unschedulable": bool(spec.get("unschedulable")),
        "cluster": labels.get(names.LABEL_LOWER_CLUSTER, ""),
        "version": (status.get("nodeInfo") or {}).get("kubeletVersion", ""),
        "release": labels.get(names.LABEL_VERSION, ""),
        "pods": None
        if pods is None
        else {"total": pods.total, "running": pods.running, "trouble": pods.trouble},
        "resources": {
            name: {
                "used": None if pods is None else quantity.render(name, pods.used.get(name, 0)),
                "allocatable": allocatable.get(name, "0"),
            }
            for name in RESOURCES
        },
        "replica": (lease_metadata.get("annotations") or {}).get(names.ANNOTATION_REPLICA, ""),
        "heartbeatSeconds": None if age is None else round(age.seconds, 1),
        "ageSeconds": _since(metadata.get("creationTimestamp"), now),
        "addresses": [
            address["address"] for address in status.get("addresses") or () if address["type"] == "InternalIP"
        ],
        "taints": [f"{taint['key']}:{taint['effect']}" for taint in spec.get("taints") or ()],
    }


def line(node: Mapping[str, Any], *, wide: bool, leases_seen: bool = True) -> list[str]:
    """Return a row of the table.

    Args:
        node: data of ``describe``, with ``lag`` added.
        wide: whether to add the columns of ``-o wide``.
        leases_seen: whether the caller may list Leases; if so, a node without a Lease never had a heartbeat.
    """
    pods, resource = node["pods"], node["resources"]
    cells = [
        node["name"],
        node["ready"] + (",SchedulingDisabled" if node["unschedulable"] else ""),
        node["cluster"] or _UNKNOWN,
        node["version"] or _UNKNOWN,
        _UNKNOWN if pods is None else f"{pods['running']}/{pods['total']}",
        _UNKNOWN if pods is None else str(pods["trouble"] or "-"),
        *(_share(name, resource[name]) for name in ("cpu", "memory")),
        shown_lag(node.get("lag")),
        _heartbeat(node["heartbeatSeconds"], leases_seen=leases_seen),
        _UNKNOWN if node["ageSeconds"] is None else output.age(node["ageSeconds"]),
    ]
    if wide:
        error = node["message"] if node["ready"] != "True" else "-"
        cells += [
            node["release"] or _UNKNOWN,
            node["replica"] or _UNKNOWN,
            ",".join(node["addresses"]) or _UNKNOWN,
            ",".join(node["taints"]) or "-",
            error or node["reason"] or _UNKNOWN,
        ]
    return cells


def _heartbeat(seconds: float | None, *, leases_seen: bool) -> str:
    if seconds is not None:
        return f"{output.age(seconds)} ago"
    return "never" if leases_seen else _UNKNOWN


def _since(moment: str | None, now: datetime) -> float | None:
    return round((now - timestamps.parse(moment)).total_seconds(), 1) if moment else None


def _share(name: str, amounts: Mapping[str, str | None]) -> str:
    # Without spaces, so that awk counts the columns correctly.
    return "/".join(
        _UNKNOWN if amount is None else readable.text(name, amount).replace(" ", "")
        for amount in (amounts["used"], amounts["allocatable"])
    )


_TIMEOUT = 3.0


async def lag_of_node(upper: Verbs, node: Object) -> Lag | None:
    """Return a virtual node's lag since its process started; None: not readable, or nothing was mirrored.

    Raises:
        Forbidden: the caller may not get ``nodes/proxy``.
    """
    cluster = node.labels.get(names.LABEL_LOWER_CLUSTER, node.name)
    try:
        answer = await upper.request("GET", f"/api/v1/nodes/{node.name}/proxy/metrics", timeout=_TIMEOUT)
    except Forbidden:
        raise
    except ApiError:
        return None
    try:
        return parse_lag(answer.decode("utf-8", "replace"), cluster) or None
    except (ValueError, LookupError):
        # The endpoint may belong to another program or another version, with any output.
        return None


def parse_lag(text: str, cluster: str) -> Lag:
    """Return the lag of one lower cluster from the metrics of a process.

    Args:
        text: metrics in the Prometheus text format.
        cluster: name of the lower cluster.
    """
    # Only needed for --watch and for processes of earlier releases.
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    wanted = "\n".join(line for line in text.splitlines() if MIRROR_SECONDS in line) + "\n"
    return lag_of(
        (sample.labels["direction"], float(sample.labels["le"]), sample.value)
        for family in text_string_to_metric_families(wanted)
        for sample in family.samples
        if sample.name == f"{MIRROR_SECONDS}_bucket" and sample.labels.get("cluster") == cluster
    )


def shown_lag(lag: Mapping[str, Any] | None) -> str:
    """Return the median and p99 of the worse direction for a table, such as ``≤25ms (p99 ≤0.5s)``; ``-``: unknown."""
    if not lag:
        return "-"
    worst = max(lag.values(), key=lambda one: (one["p99"], one["p50"]))
    return f"≤{_short(worst['p50'])} (p99 ≤{_short(worst['p99'])})"


def _short(seconds: float) -> str:
    return f"{seconds * 1000:g}ms" if seconds < 1 else f"{seconds:g}s"


class PodFields(TypedDict, total=False):
    """A pod without the fields that are large and not used, such as managedFields, environment and volumes."""

    metadata: _Metadata
    spec: _Spec
    status: _Status | None


class _Metadata(TypedDict, total=False):
    name: str
    namespace: str
    creationTimestamp: str | None
    deletionTimestamp: str | None
    annotations: dict[str, str] | None


class _Container(TypedDict, total=False):
    name: str
    restartPolicy: str | None
    resources: dict[str, Any] | None


class _Spec(TypedDict, total=False):
    nodeName: str | None
    containers: list[_Container] | None
    initContainers: list[_Container] | None
    overhead: dict[str, Any] | None
    resources: dict[str, Any] | None


class _ContainerStatus(TypedDict, total=False):
    name: str
    ready: bool | None
    started: bool | None
    state: dict[str, Any] | None
    lastState: dict[str, Any] | None


class _Status(TypedDict, total=False):
    phase: str | None
    reason: str | None
    message: str | None
    conditions: list[dict[str, Any]] | None
    initContainerStatuses: list[_ContainerStatus] | None
    containerStatuses: list[_ContainerStatus] | None
