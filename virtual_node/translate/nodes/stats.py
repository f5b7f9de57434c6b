"""The usage of a virtual node: the kubelet Summary API (``/stats/summary``) of several lower nodes, merged into one.

A hostile lower cluster sends unknown fields, numbers that are none, and names with any content. So the Summaries of lower
nodes are rebuilt from known fields (``read``) before they are merged (``summary``).

Source: k8s.io/kubelet/pkg/apis/stats/v1alpha1.

The sum over the lower nodes has counters that never decrease. A plain sum of counters drops when a node leaves and jumps
when a node joins, and readers would take both for usage. So a node's counter is counted only from when the node was first
seen. The usage before that is included only for the nodes of the first round, because otherwise the sum would start at 0,
which metrics-server treats as missing. Usage of a node that left stays included. After a counter reset (a reboot) the sum
continues from its last value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from controller_runtime.apimachinery import timestamps
from virtual_node.translate.base.fields import (
    Reader,
    fields,
    flag,
    is_name,
    listed,
    matching,
    moment,
    number,
    word,
)
from virtual_node.translate.nodes import prometheus_text
from virtual_node.translate.nodes.prometheus_text import Pods

_MOST_PODS, _MOST_PARTS = 10_000, 1_000
"""Maximum numbers of pods of a node, and of containers, volumes and interfaces of a pod."""
_LONGEST_NAME = 128
_SUMMED = {
    "cpu": ("usageNanoCores", "usageCoreNanoSeconds"),
    "memory": (
        "availableBytes",
        "usageBytes",
        "workingSetBytes",
        "rssBytes",
        "pageFaults",
        "majorPageFaults",
    ),
    "swap": ("swapAvailableBytes", "swapUsageBytes"),
    "rlimit": ("maxpid", "curproc"),
    "fs": ("availableBytes", "capacityBytes", "usedBytes", "inodesFree", "inodes", "inodesUsed"),
}
"""Fields that are summed over the lower nodes, by part of a Summary. Pressure (PSI) has no sum, and the counters of
interfaces, which differ by node, would decrease when a node leaves."""
_RUNTIME = ("imageFs", "containerFs")
"""Parts of a Summary's ``runtime``, with the fields of ``fs``."""
_psi = fields(
    {part: fields(dict.fromkeys(("total", "avg10", "avg60", "avg300"), number)) for part in ("full", "some")}
)


def _measured(*names: str) -> dict[str, Reader]:
    return {"time": moment, **dict.fromkeys(names, number)}


_FILES = _measured(*_SUMMED["fs"])
_files = fields(_FILES)
_interface = {
    "name": word(_LONGEST_NAME),
    **dict.fromkeys(("rxBytes", "rxErrors", "txBytes", "txErrors"), number),
}
_USED: dict[str, Reader] = {
    "startTime": moment,
    "cpu": fields({**_measured(*_SUMMED["cpu"]), "psi": _psi}),
    "memory": fields({**_measured(*_SUMMED["memory"]), "psi": _psi}),
    "io": fields({"time": moment, "psi": _psi}),
    "swap": fields(_measured(*_SUMMED["swap"])),
}
_name = matching(is_name)
_container = fields({**_USED, "name": _name, "rootfs": _files, "logs": _files}, required=("name",))
_volume_usage = fields(
    {
        **_FILES,
        "name": _name,
        "pvcRef": fields({"name": _name, "namespace": _name}, required=("name",)),
        "volumeHealthStats": fields({"abnormal": flag}),
    },
    required=("name",),
)
_pod = fields(
    {
        **_USED,
        "podRef": fields({"name": _name, "namespace": _name}, required=("name", "namespace")),
        "containers": listed(_container, _MOST_PARTS),
        "network": fields(
            {"time": moment, **_interface, "interfaces": listed(fields(_interface), _MOST_PARTS)}
        ),
        "volume": listed(_volume_usage, _MOST_PARTS),
        "ephemeral-storage": _files,
        "process_stats": fields({"process_count": number}),
    },
    required=("podRef",),
)
_node = fields(
    {
        **_USED,
        "rlimit": fields(_measured(*_SUMMED["rlimit"])),
        "fs": _files,
        "runtime": fields(dict.fromkeys(_RUNTIME, _files)),
    }
)
_summary = fields({"node": _node, "pods": listed(_pod, _MOST_PODS)}, required=("node",))


def read(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a lower kubelet's Summary with its known fields.

    Raises:
        ValueError: it has no node.
    """
    summary: dict[str, Any] | None = _summary(found)
    if summary is None:
        raise ValueError("a summary without a node")
    return summary


_USAGE = {
    "cpu_usage_seconds_total": ("cpu", "usageCoreNanoSeconds", 1e9),
    "memory_working_set_bytes": ("memory", "workingSetBytes", 1),
    "swap_usage_bytes": ("swap", "swapUsageBytes", 1),
}
"""Part and field of a Summary, and the factor from the metric's unit to the field's, by the metric's name after
``node_``, ``pod_`` or ``container_``."""


def summary(
    summaries: Sequence[Mapping[str, Any]], pods: Pods, *, node_name: str, cpu_seconds: float | None = None
) -> dict[str, Any]:
    """Return the virtual node's Summary.

    Args:
        summaries: Summaries of the lower nodes, as ``read`` returns them.
        pods: upper pods by namespace and name of their lower pods.
        node_name: the virtual node.
        cpu_seconds: the virtual node's CPU counter, which the caller keeps from decreasing; None: the sum
            over nodes.
    """
    nodes = [one.get("node") or {} for one in summaries]
    node: dict[str, Any] = {"nodeName": node_name}
    if starts := sorted(one["startTime"] for one in nodes if one.get("startTime")):
        node["startTime"] = starts[0]
    for part, summed in _SUMMED.items():
        node |= _sum(nodes, part, summed)
    runtimes = [one["runtime"] for one in nodes if one.get("runtime")]
    if runtime := {
        key: value for part in _RUNTIME for key, value in _sum(runtimes, part, _SUMMED["fs"]).items()
    }:
        node["runtime"] = runtime
    if cpu_seconds is not None and "cpu" in node:
        node["cpu"]["usageCoreNanoSeconds"] = int(cpu_seconds * 1e9)
    return {"node": node, "pods": [pod for one in summaries for pod in _pods(one.get("pods") or (), pods)]}


def from_resource_metrics(text: str) -> dict[str, Any]:
    """Return a lower node's Summary built from its ``/metrics/resource``, in place of the Summary API.

    It contains usage of CPU, memory and swap, and the start of containers, because these metrics contain nothing else.
    """
    node: dict[str, Any] = {}
    pods: dict[tuple[str, str], dict[str, Any]] = {}
    containers: dict[tuple[str, str, str], dict[str, Any]] = {}

    def pod(labels: Mapping[str, str]) -> dict[str, Any]:
        reference = {"namespace": labels["namespace"], "name": labels["pod"], "uid": ""}
        key = (labels["namespace"], labels["pod"])
        return pods.setdefault(key, {"podRef": reference, "containers": []})

    def container(labels: Mapping[str, str]) -> dict[str, Any]:
        key = (labels["namespace"], labels["pod"], labels["container"])
        if key not in containers:
            containers[key] = {"name": labels["container"]}
            pod(labels)["containers"].append(containers[key])
        return containers[key]

    for line in text.split("\n"):
        parsed = prometheus_text.sample(line)
        if parsed is None:
            continue
        value, at = float(parsed.value), float(parsed.at or 0)
        subject, _, metric = parsed.name.partition("_")
        if parsed.name == "container_start_time_seconds" and prometheus_text.is_plausible(0, value * 1000):
            container(parsed.labels)["startTime"] = _moment(value)
            continue
        if metric not in _USAGE or not prometheus_text.is_plausible(value, at):
            continue
        part, field, factor = _USAGE[metric]
        used = {"time": _moment(at / 1000), field: int(value * factor)}
        match subject:
            case "node":
                node[part] = used
            case "pod":
                pod(parsed.labels)[part] = used
            case "container":
                container(parsed.labels)[part] = used
    return {"node": node, "pods": list(pods.values())}


def _moment(seconds: float) -> str:
    return timestamps.rfc3339(datetime.fromtimestamp(seconds, UTC))


def _pods(found: Iterable[Mapping[str, Any]], pods: Pods) -> Iterable[dict[str, Any]]:
    for pod in found:
        reference = pod.get("podRef") or {}
        upper = pods.get((reference.get("namespace", ""), reference.get("name", "")))
        if upper is not None:
            translated = dict(pod)
            if pod.get("containers"):
                translated["containers"] = [one for one in pod["containers"] if upper.has(one["name"])]
            if pod.get("volume"):
                translated["volume"] = [_volume(one, upper.namespace) for one in pod["volume"]]
            yield {
                **translated,
                "podRef": {"name": upper.name, "namespace": upper.namespace, "uid": upper.uid},
            }


def _volume(volume: Mapping[str, Any], namespace: str) -> Mapping[str, Any]:
    """Return a volume's usage with the upper namespace for its claim."""
    reference = volume.get("pvcRef")
    return volume if reference is None else {**volume, "pvcRef": {**reference, "namespace": namespace}}


def _sum(owners: Sequence[Mapping[str, Any]], part: str, summed: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the sum of a part over its owners, by the part's name; empty: no owner has it."""
    parts = [owner[part] for owner in owners if owner.get(part)]
    if not parts:
        return {}
    total: dict[str, Any] = {
        field: sum(part[field] for part in parts if part.get(field) is not None)
        for field in summed
        if any(part.get(field) is not None for part in parts)
    }
    if times := sorted(part["time"] for part in parts if part.get("time")):
        total["time"] = times[-1]
    return {part: total}


_LEAST = 0.001
"""Minimum start value of a counter, because metrics-server ignores a counter at 0."""


@dataclass(slots=True)
class _Counter:
    first: float
    last: float


class CounterSum:
    """The sum of one counter over a changing set of nodes."""

    def __init__(self) -> None:
        self._nodes: dict[str, _Counter] = {}
        self._past: float | None = None

    def update(self, values: Mapping[str, float]) -> float:
        """Update the counters and return the sum.

        Args:
            values: the counters by node. A node that is missing has left or did not answer.
        """
        past = sum(values.values()) if self._past is None else self._past
        for node in [node for node in self._nodes if node not in values]:
            gone = self._nodes.pop(node)
            past += gone.last - gone.first
        for node, value in values.items():
            known = self._nodes.get(node)
            if known is None:
                self._nodes[node] = _Counter(value, value)
            elif value < known.last:
                past += known.last - known.first
                self._nodes[node] = _Counter(0.0, value)
            else:
                known.last = value
        self._past = past if values or self._past is not None else None
        return past + sum(counter.last - counter.first for counter in self._nodes.values())


class RateIntegral:
    """Counters computed from usage rates, for lower clusters that report rates only (metrics.k8s.io)."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, float]] = {}

    def update(self, key: str, rate: float, *, at: float, window: float) -> float:
        """Add a rate sample and return the counter of its key.

        The counter starts with the usage in the first sample's window, and never at 0, because metrics-server
        treats a container at 0 as missing and drops its whole pod.

        Args:
            key: the container or node that the rate belongs to.
            rate: units per second, as of ``at``.
            at: Unix time of the sample, in seconds.
            window: seconds over which the rate is averaged.
        """
        total, before = self._known.get(key, (max(_LEAST, rate * window), at))
        total += rate * max(0.0, at - before)
        self._known[key] = (total, max(at, before))
        return total

    def keep(self, keys: Collection[str]) -> None:
        """Remove all keys except these."""
        self._known = {key: value for key, value in self._known.items() if key in keys}
