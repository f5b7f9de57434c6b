"""Reads and describes virtual nodes for ``status``, as data and as table rows.

Summaries of pods come from the processes that run the virtual nodes, otherwise from lists of the pods. A process answers for
all its virtual nodes, so one node of each process is asked first. It names pods only of the node that was asked, because the
API server authorizes the caller for this node alone. So other nodes with faulty pods are asked, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from clusterset.model import names
from clusterset.model.pod.conditions import condition
from controller_runtime import resources
from controller_runtime.apimachinery import quantity, readable, timestamps
from controller_runtime.apimachinery.decoding import decoder
from controller_runtime.errors import ApiError, Forbidden
from controller_runtime.objects import Object
from virtual_node.commands.common import output
from virtual_node.config import program
from virtual_node.examine.finding import Finding
from virtual_node.examine.leases import lease_age
from virtual_node.examine.objects import Json, annotations_of, labels_of
from virtual_node.examine.reader import Need, Reader
from virtual_node.node_summary import PATH, RESOURCES, Lag, NodeSummary, Summaries, summarize, summary_of

COLUMNS = (
    *("NODE", "READY", "CLUSTER", "VERSION", "PODS", "TROUBLE"),
    *("CPU", "MEMORY", "LAG", "HEARTBEAT", "AGE"),
)
WIDE = ("RELEASE", "REPLICA", "ADDRESS", "TAINTS", "LAST-ERROR")
SPARE = ("LAG", "AGE", "VERSION", "HEARTBEAT", "MEMORY", "CPU", "CLUSTER")
"""Columns to omit on a narrow terminal, the least important first."""
_UNKNOWN = "?"


def describe(
    node: Mapping[str, Any], pods: NodeSummary | None, lease: Mapping[str, Any] | None, *, now: datetime
) -> dict[str, Any]:
    """Return the data of one virtual node for ``-o json``.

    Args:
        node: the Node.
        pods: summary of the pods bound to the node, and its lag; None: unknown.
        lease: the node's Lease; None: there is none, or the caller may not read it.
        now: timezone-aware current time.
    """
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
        "lag": None if pods is None else pods.lag,
    }


def line(node: Mapping[str, Any], *, wide: bool, leases_seen: bool = True) -> list[str]:
    """Return a row of the table, with the columns of ``-o wide`` if ``wide``, from data of ``describe``.

    If the caller may list Leases (``leases_seen``), a node without a Lease never had a heartbeat.
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
        shown_lag(node["lag"]),
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


_TIMEOUT = 3.0
"""Seconds to wait for a process. The API server may wait far longer for one that has ended."""
_REFUSED = "cannot get resource"
"""Part of the error if the API server refuses the caller; other 403 errors come from the virtual node."""
PROXY_RIGHT = Need("get", resources.NODES, subresource="proxy")
_decode = decoder(Summaries)


async def read(
    reader: Reader, nodes: Sequence[Object], leases: Mapping[str, Json]
) -> list[NodeSummary | None]:
    """Return the summary of each virtual node; None: the caller may neither ask its process nor list pods.

    Args:
        reader: of the upper cluster; missing rights are recorded in it.
        nodes: the virtual nodes.
        leases: those of their Leases that the caller may read, by name.

    Raises:
        ApiError: the pods cannot be listed for another reason.
    """
    groups: dict[str, list[Object]] = {}
    for node in nodes:
        replica = (
            annotations_of(leases[node.name]).get(names.ANNOTATION_REPLICA) if node.name in leases else ""
        )
        groups.setdefault(replica or f"node/{node.name}", []).append(node)
    found: dict[str, NodeSummary | None] = {}
    silent = await _ask(reader, [group[0] for group in groups.values()], found)
    others = (node for first, *more in groups.values() if first.name not in silent for node in more)
    await _ask(reader, [node for node in others if node.name not in found], found)
    left = [node.name for node in nodes if node.name not in found]
    found |= zip(left, await asyncio.gather(*(_list(reader, name) for name in left)), strict=True)
    return [found[node.name] for node in nodes]


async def _ask(reader: Reader, nodes: Sequence[Object], found: dict[str, NodeSummary | None]) -> set[str]:
    """Ask virtual nodes for summaries at the same time, and add them to ``found``; return the names of silent nodes."""
    answers = await asyncio.gather(*(_answer(reader, node.name) for node in nodes))
    for node, answer in zip(nodes, answers, strict=True):
        # The answer for the asked node is newer, or has findings that others have not.
        found.update(
            (name, each)
            for name, each in (answer or {}).items()
            if each.findings is not None and (name == node.name or name not in found)
        )
    return {node.name for node, answer in zip(nodes, answers, strict=True) if answer is None}


async def _answer(reader: Reader, node: str) -> Mapping[str, NodeSummary] | None:
    """Return the answer of a virtual node's process, which is empty if the caller may not ask it; None: it does not answer."""
    path = resources.NODES.path(name=node, subresource=f"proxy{PATH}")
    try:
        # The limit includes the wait for a connection: many silent processes take no longer than a single process.
        async with asyncio.timeout(_TIMEOUT):
            found = _decode(await reader.client.request("GET", path)).nodes
    except (TimeoutError, ApiError, msgspec.DecodeError) as error:
        if isinstance(error, Forbidden) and _REFUSED in error.message:
            reader.missing[PROXY_RIGHT] = None
            return {}
        return None  # The process has ended, or is another program or of another release.
    if (name := program.name()) != program.NAME:
        for each in found.values():
            each.findings = each.findings and [_named(finding, name) for finding in each.findings]
    return found


def _named(finding: Finding, name: str) -> Finding:
    """Return a finding whose next steps are commands of the program as the user calls it."""
    steps = [
        name + step.removeprefix(program.NAME) if step.startswith(program.NAME) else step
        for step in finding.next_steps
    ]
    return replace(finding, next_steps=steps)


async def _list(reader: Reader, node: str) -> NodeSummary | None:
    """Return the summary of a virtual node from a list of its pods; None: the list is forbidden."""
    pods = await reader.fields(resources.PODS, PodFields, field_selector=f"spec.nodeName={node}")
    return None if pods is None else summarize(map(summary_of, pods))


async def lag(reader: Reader, node: str) -> Lag | None:
    """Return the lag of a virtual node; None: unknown, or nothing was mirrored."""
    summary = (await _answer(reader, node) or {}).get(node)
    return None if summary is None else summary.lag
