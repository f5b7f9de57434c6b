"""Merge the Prometheus text of several lower kubelets into that of one virtual node.

Samples of owned pods get the upper names. All other samples are dropped, because the upper cluster must not
see the lower cluster's other pods. Counters of nodes are summed in ``usage`` instead. Samples of one metric
stay together, as the format requires.

A kubelet's ``/metrics/cadvisor`` has ten thousand lines. To save CPU time, lines are searched, not parsed.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_LARGEST = 1e18
_LATEST = 4e12
"""Latest accepted timestamp, in milliseconds: the year 2096."""
_NODE_METRIC = re.compile(r"(node_\w+)(?:\{[^}]*\})? (\S+)(?: (\d+))?$")


@dataclass(frozen=True, slots=True)
class PodNames:
    """Namespace, name and uid of an upper pod."""

    namespace: str
    name: str
    uid: str


Pods = Mapping[tuple[str, str], PodNames]
"""Upper pod by namespace and name of its lower pod."""


@dataclass(frozen=True, slots=True)
class Exposition:
    """Lines by metric family: ``# HELP`` and ``# TYPE`` lines, and samples."""

    headers: dict[str, list[str]] = field(default_factory=dict)
    samples: dict[str, list[str]] = field(default_factory=dict)


def ours(text: str, pods: Pods) -> Exposition:
    """Return a lower kubelet's samples about owned pods, with the upper names."""
    found = Exposition()
    for line in text.splitlines():
        if line.startswith("#"):
            parts = line.split(" ", 3)
            if len(parts) > 2 and parts[1] in {"HELP", "TYPE"}:
                found.headers.setdefault(parts[2], []).append(line)
            continue
        translated = translate(line, pods)
        if translated is not None:
            name = line[: line.find("{")]
            family = name if name in found.headers else _family(name)
            found.samples.setdefault(family, []).append(translated)
    return found


def render(parts: Iterable[Exposition]) -> str:
    """Return the merged text of several expositions."""
    families: dict[str, list[str]] = {}
    for part in parts:
        for family, samples in part.samples.items():
            families.setdefault(family, part.headers.get(family, [])[:]).extend(samples)
    return "\n".join([line for lines in families.values() for line in lines] + [""])


def translate(line: str, pods: Pods) -> str | None:
    """Return a sample line with the upper names; None: it is not about an owned pod."""
    namespace, pod = _find(line, 'namespace="'), _find(line, 'pod="')
    if not namespace or not pod:
        return None
    upper = pods.get((_value(line, namespace), _value(line, pod)))
    if upper is None:
        return None
    changes = [(namespace, upper.namespace), (pod, upper.name)]
    if 'uid="' in line:
        changes += [(at, upper.uid) for at in (_find(line, 'pod_uid="'), _find(line, 'uid="')) if at]
    changes.sort(reverse=True)
    for at, value in changes:
        line = line[:at] + value + line[line.find('"', at) :]
    return line


def node_samples(text: str) -> dict[str, tuple[float, int]]:
    """Return value and timestamp (ms; 0: none) of a kubelet's ``node_…`` samples."""
    found: dict[str, tuple[float, int]] = {}
    for line in text.splitlines():
        if line.startswith("node_") and (match := _NODE_METRIC.match(line)):
            value, at = float(match[2]), float(match[3] or 0)
            if is_plausible(value, at):
                found[match[1]] = (value, int(at))
    return found


def is_plausible(value: float, at: float) -> bool:
    """Report whether a sample's value and timestamp (ms) are usable, because a lower kubelet may send any number."""
    return abs(value) < _LARGEST and 0 <= at < _LATEST


def node_exposition(cpu_seconds: float, memory_bytes: float, *, at: int) -> str:
    """Return a virtual node's own samples; ``at`` is their timestamp in ms."""
    return (
        "# HELP node_cpu_usage_seconds_total CPU seconds used by the lower nodes since they were first seen\n"
        "# TYPE node_cpu_usage_seconds_total counter\n"
        f"node_cpu_usage_seconds_total {cpu_seconds:.6f} {at}\n"
        "# HELP node_memory_working_set_bytes Working set of the lower nodes\n"
        "# TYPE node_memory_working_set_bytes gauge\n"
        f"node_memory_working_set_bytes {memory_bytes:.0f} {at}\n"
    )


def _find(line: str, marker: str) -> int:
    """Return the index of a label's value; 0: the label is missing. ``marker`` is the label's name with ``="``."""
    at = line.find(marker)
    while at > 0 and line[at - 1] not in "{, ":
        at = line.find(marker, at + 1)
    return at + len(marker) if at > 0 else 0


def _value(line: str, begin: int) -> str:
    """Return the label value that begins at an index. Names of Kubernetes objects contain no escapes."""
    return line[begin : line.find('"', begin)]


def _family(name: str) -> str:
    """Return the metric family of a histogram's or summary's sample."""
    for suffix in ("_bucket", "_sum", "_count"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name
