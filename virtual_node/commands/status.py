"""``virtual-node status``: every virtual node of an upper cluster in one line."""

from __future__ import annotations

import argparse
import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from controller_runtime import kubeconfig, resources
from controller_runtime.api import names, pod_resources, quantity, timestamps
from controller_runtime.client import Client
from controller_runtime.errors import ApiError, ConfigError
from virtual_node import program
from virtual_node.commands import lag, output
from virtual_node.web.rows import pod_row

_LEASES = "kube-node-lease"
_COLUMNS = (
    "NODE",
    "READY",
    "CLUSTER",
    "VERSION",
    "PODS",
    "TROUBLE",
    "CPU",
    "MEMORY",
    "LAG",
    "HEARTBEAT",
    "AGE",
)
_WIDE = ("ADDRESS", "TAINTS", "LAST ERROR")
_FINISHED = ("Succeeded", "Failed")


def main(argv: Sequence[str]) -> int:
    """Run the command; 0 when every virtual node is Ready, 1 when one is not, 2 for trouble of our own."""
    parser = argparse.ArgumentParser(prog=program.name("status"), description=__doc__)
    parser.add_argument(
        "--kubeconfig", default="", metavar="FILE", help="upper cluster's ($KUBECONFIG, ~/.kube/config)"
    )
    parser.add_argument("--context", default="", metavar="NAME", help="the kubeconfig's context")
    parser.add_argument(
        "-o", "--output", default="table", choices=output.FORMATS, help="table, wide, json or yaml"
    )
    options = parser.parse_args(argv)
    try:
        found = asyncio.run(_gather(options))
    except ApiError as error:
        raise ConfigError(f"the upper cluster: {error}") from None
    if options.output in {"json", "yaml"}:
        output.data({"nodes": found}, options.output)
    else:
        wide = options.output == "wide"
        rows = [_line(node, wide=wide) for node in found]
        columns = (*_COLUMNS, *_WIDE) if wide else _COLUMNS
        output.table(
            columns, rows, empty="There are no virtual nodes (label type=virtual-kubelet) in this cluster."
        )
    return 0 if found and all(node["ready"] == "True" for node in found) else 1


async def _gather(options: argparse.Namespace) -> list[dict[str, Any]]:
    config = await kubeconfig.load(options.kubeconfig or None, context=options.context or None)
    async with Client(config, user_agent="virtual-node-status", cluster="upper") as upper:
        selector = f"{names.LABEL_NODE_TYPE}={names.NODE_TYPE_VIRTUAL}"
        nodes = (await upper.list(resources.NODES, label_selector=selector)).items
        listed = await asyncio.gather(
            upper.list(resources.LEASES, namespace=_LEASES),
            *(upper.list(resources.PODS, field_selector=f"spec.nodeName={node.name}") for node in nodes),
        )
        lags = await asyncio.gather(*(lag.of_node(upper, node) for node in nodes))
    leases = {lease.name: lease.to_dict() for lease in listed[0].items}
    now = datetime.now(UTC)
    return [
        {
            **describe(node.to_dict(), [pod.to_dict() for pod in pods.items], leases.get(node.name), now=now),
            "lag": behind,
        }
        for node, pods, behind in zip(nodes, listed[1:], lags, strict=True)
    ]


def describe(
    node: Mapping[str, Any],
    pods: Sequence[Mapping[str, Any]],
    lease: Mapping[str, Any] | None,
    *,
    now: datetime,
) -> dict[str, Any]:
    """What ``-o json`` says of one virtual node.

    Args:
        node: the Node.
        pods: those bound to it.
        lease: its Lease; None: it has none.
        now: aware.
    """
    metadata, status = node["metadata"], node.get("status") or {}
    ready: Mapping[str, Any] = next(
        (one for one in status.get("conditions") or () if one["type"] == "Ready"), {}
    )
    rows = [pod_row(pod, None) for pod in pods]
    used: Counter[str] = Counter()
    for pod in pods:
        if (pod.get("status") or {}).get("phase") not in _FINISHED:
            used.update({**pod_resources.pod_requests(pod["spec"]), "pods": 1})
    allocatable = status.get("allocatable") or {}
    renewed = ((lease or {}).get("spec") or {}).get("renewTime")
    return {
        "name": metadata["name"],
        "ready": ready.get("status", "Unknown"),
        "reason": ready.get("reason", ""),
        "message": ready.get("message", ""),
        "cluster": (metadata.get("labels") or {}).get(names.LABEL_LOWER_CLUSTER, ""),
        "version": (status.get("nodeInfo") or {}).get("kubeletVersion", ""),
        "pods": {
            "total": len(pods),
            "running": sum(row["status"] == "Running" for row in rows),
            "trouble": sum(row["trouble"] for row in rows),
        },
        "resources": {
            name: {
                "used": quantity.render(name, used.get(name, 0)),
                "allocatable": allocatable.get(name, "0"),
            }
            for name in ("cpu", "memory", "pods")
        },
        "heartbeatSeconds": _since(renewed, now),
        "ageSeconds": _since(metadata.get("creationTimestamp"), now),
        "addresses": [one["address"] for one in status.get("addresses") or () if one["type"] == "InternalIP"],
        "taints": [f"{one['key']}:{one['effect']}" for one in (node.get("spec") or {}).get("taints") or ()],
    }


def _line(node: Mapping[str, Any], *, wide: bool) -> list[str]:
    pods, resource = node["pods"], node["resources"]
    line = [
        node["name"],
        node["ready"],
        node["cluster"] or "?",
        node["version"] or "?",
        f"{pods['running']}/{pods['total']}",
        str(pods["trouble"]) if pods["trouble"] else "-",
        f"{resource['cpu']['used']}/{resource['cpu']['allocatable']}",
        f"{_human(resource['memory']['used'])}/{_human(resource['memory']['allocatable'])}",
        lag.shown(node.get("lag")),
        "never" if node["heartbeatSeconds"] is None else f"{output.age(node['heartbeatSeconds'])} ago",
        "?" if node["ageSeconds"] is None else output.age(node["ageSeconds"]),
    ]
    if wide:
        error = node["message"] if node["ready"] != "True" else "-"
        line += [",".join(node["addresses"]) or "?", ",".join(node["taints"]) or "-", error]
    return line


def _since(moment: str | None, now: datetime) -> float | None:
    return round((now - timestamps.parse(moment)).total_seconds(), 1) if moment else None


def _human(text: str) -> str:
    amount = float(quantity.amount(text))
    for unit in ("", "Ki", "Mi", "Gi", "Ti"):
        if amount < 1024 or unit == "Ti":
            break
        amount /= 1024
    return f"{amount:.0f}{unit}" if amount >= 10 or amount == int(amount) else f"{amount:.1f}{unit}"
