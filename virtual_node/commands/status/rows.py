"""Describes a virtual node for ``status`` as data and as a table row. Does no IO."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import quantity, readable, timestamps
from virtual_node.commands.common import output
from virtual_node.commands.common.requested import requested
from virtual_node.commands.status import lag
from virtual_node.health.leases import lease_age
from virtual_node.health.objects import labels_of
from virtual_node.translate.printers.pods import is_trouble, status_word

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
    metadata, status = node["metadata"], node.get("status") or {}
    labels, spec = labels_of(node), node.get("spec") or {}
    ready = condition(node.get("status"), "Ready")
    allocatable = status.get("allocatable") or {}
    used = None if pods is None else requested(pods)
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
        "pods": None if pods is None else _counts(pods),
        "resources": {
            name: {
                "used": None if used is None else quantity.render(name, used.get(name, 0)),
                "allocatable": allocatable.get(name, "0"),
            }
            for name in ("cpu", "memory", "pods")
        },
        "replica": (lease_metadata.get("annotations") or {}).get(names.ANNOTATION_REPLICA, ""),
        "heartbeatSeconds": None if age is None else round(age.seconds, 1),
        "ageSeconds": _since(metadata.get("creationTimestamp"), now),
        "addresses": [one["address"] for one in status.get("addresses") or () if one["type"] == "InternalIP"],
        "taints": [f"{one['key']}:{one['effect']}" for one in spec.get("taints") or ()],
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
        lag.shown(node.get("lag")),
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


def _counts(pods: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    words = [status_word(pod)[0] for pod in pods]
    return {
        "total": len(pods),
        "running": words.count("Running"),
        "trouble": sum(map(is_trouble, pods, words)),
    }


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
