"""Builds the page's data about a lower cluster: credentials, virtual nodes and lower nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import prometheus_client

from clusterset.config import Cluster
from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import quantity, timestamps
from controller_runtime.errors import ConfigError
from virtual_node.cluster.lower_cluster import LowerCluster
from virtual_node.examine.expiries import of_kubeconfig
from virtual_node.examine.expiry import LEGACY_TOKEN, Expiry, ExpiryLimits, certificate, limits_of
from virtual_node.translate.nodes.capacity import node_counts
from virtual_node.web.reading import Reading

_HEALTH = ("reachable", "error", "version")
"""Attributes of a cluster's health that ``cluster_card`` returns unchanged."""
_RESOURCES = ("cpu", "memory", "pods")
_EXPIRATION = "virtual_node_certificate_expiration_timestamp_seconds"
_MOST_NODES = 200
"""Maximum number of lower nodes that are sent to a browser."""


def cluster_card(name: str, cluster: LowerCluster, reading: Reading, *, lag: float | None) -> dict[str, Any]:
    """Return the data of a running cluster for the list of clusters.

    Args:
        name: name of the cluster.
        cluster: the running cluster.
        reading: all pods.
        lag: delay of mirroring in seconds; None: nothing was mirrored in the last hour.
    """
    health, caches = cluster.health, cluster.caches
    is_lost = health is not None and health.reachable is False
    known = {field: getattr(health, field) for field in _HEALTH} if health is not None else {}
    return {
        **stopped_card(name, ""),
        **known,
        "heard": _ago(caches.lower.age) if is_lost and caches is not None else "",
        "lag": lag,
        "nodes": [
            {
                "name": node,
                "ready": controller.ready,
                "lowerNodes": {
                    "ready": controller.capacity.ready_nodes,
                    "all": controller.capacity.selected_nodes,
                },
                "pods": dict(reading.nodes.get(node, {})),
                "resources": _resources(
                    controller.capacity.totals()[1], reading.used.get(node, Counter()), is_known=not is_lost
                ),
            }
            for node, controller in sorted(cluster.nodes.items())
        ],
    }


def stopped_card(name: str, why: str) -> dict[str, Any]:
    """Return the data of a configured cluster that does not run, for the list of clusters."""
    return {
        "name": name, "reachable": None, "error": why, "version": "", "heard": "", "lag": None, "nodes": []
    }  # fmt: skip


def cluster_detail(
    name: str, cluster: LowerCluster, reading: Reading, expiries: list[dict[str, str]]
) -> dict[str, Any]:
    """Return the lower nodes of a cluster, and expiry times of credentials and certificates.

    Args:
        name: name of the cluster.
        cluster: the running cluster.
        reading: all pods.
        expiries: rows for the credentials in the cluster's kubeconfig, see ``expiry_row``.
    """
    is_lost = cluster.health is not None and cluster.health.reachable is False
    lower_nodes = cluster.lower_nodes.store.list() if cluster.lower_nodes is not None else []
    selected = {
        lower: (node, requests)
        for node, controller in cluster.nodes.items()
        for lower, requests in controller.capacity.foreign().items()
    }
    shown = []
    for node in sorted(lower_nodes, key=lambda one: one.name)[:_MOST_NODES]:
        whole = node.to_dict()
        virtual_node, others = selected.get(node.name, ("", {}))
        used = reading.below.get((name, node.name), Counter()) + Counter(others)
        status = whole.get("status") or {}
        ready = condition(whole.get("status"), "Ready")
        is_ready = ready.get("status") == "True"
        shown.append(
            {
                "name": node.name,
                "ready": is_ready,
                "why": "" if is_ready else str(ready.get("message") or "no condition Ready"),
                "schedulable": node_counts(whole),
                "virtualNode": virtual_node,
                "version": (status.get("nodeInfo") or {}).get("kubeletVersion", ""),
                "resources": _resources(status.get("allocatable") or {}, used, is_known=not is_lost),
            }
        )
    return {
        "lowerNodes": shown,
        "allNodes": len(lower_nodes),
        "expiries": [*expiries, *_served(name, cluster)],
    }


def _served(name: str, cluster: LowerCluster) -> Iterator[dict[str, str]]:
    """Yield a row for the API server's serving certificate, and for that of each virtual node's kubelet API."""
    now = datetime.now(UTC)
    found = certificate(cluster.health.served_certificate if cluster.health is not None else None)
    if found is not None:
        what = "serving certificate of the API server"
        starts, ends = found.not_valid_before_utc, found.not_valid_after_utc
        yield expiry_row(what, Expiry(name, "ServingCertificate", what, ends=ends, starts=starts), now)
    for node in sorted(cluster.nodes):
        labels = {"name": f"kubelet-{node}"}
        if value := prometheus_client.REGISTRY.get_sample_value(_EXPIRATION, labels):
            what, ends = f"kubelet API of {node}", datetime.fromtimestamp(value, UTC)
            yield expiry_row(what, Expiry(name, "ServingCertificate", what, ends=ends, renewed=True), now)


def _ago(seconds: float) -> str:
    """Return the time that many seconds ago (RFC 3339); empty for infinity, which means never."""
    if seconds == float("inf"):
        return ""
    return timestamps.rfc3339(datetime.now(UTC) - timedelta(seconds=seconds))


def _resources(
    allocatable: Mapping[str, str], used: Mapping[str, int], *, is_known: bool
) -> list[dict[str, Any]]:
    shown = [*_RESOURCES, *(name for name in sorted(allocatable) if "/" in name)]
    found = []
    for name in shown:
        total = quantity.of(name, allocatable.get(name, "0"))
        found.append(
            {
                "name": name,
                "used": quantity.readable(name, used.get(name, 0)),
                "total": quantity.readable(name, total),
                "share": round(used.get(name, 0) / total, 4) if total and is_known else None,
            }
        )
    return found


EXPIRIES_FRESH = 60.0
"""Seconds after which the files are read again."""


def expiry_row(name: str, one: Expiry, now: datetime) -> dict[str, str]:
    """Return name, end (RFC 3339; empty: never) and state of an expiry, by the limits of ``inspect``."""
    if one.kind == LEGACY_TOKEN:
        return {"name": name, "ends": "", "state": "wait"}
    warning, error = limits_of(ExpiryLimits(), one)
    left = one.ends - now
    state = "bad" if left < max(error, timedelta(0)) else "wait" if left < warning else "good"
    return {"name": name, "ends": timestamps.rfc3339(one.ends), "state": state}


def credentials_of(cluster: Cluster) -> list[dict[str, str]]:
    """Read the kubeconfig of a lower cluster; return a row (see ``expiry_row``) for each credential in it."""
    try:
        found = of_kubeconfig(cluster.name, cluster.kubeconfig, context=cluster.context, in_cluster=False)
    except ConfigError:
        return []  # The health model reports kubeconfigs that cannot be used.
    now = datetime.now(UTC)
    names = {"ClientCertificate": "client certificate"}
    return [expiry_row(names.get(one.kind, "token"), one, now) for one in found]
