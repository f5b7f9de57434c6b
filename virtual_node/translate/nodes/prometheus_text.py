"""Prometheus text of several lower kubelets, made into that of one virtual node. Pure.

Lines about our pods get the upper names; all others go, for a cluster's other pods are nobody's business above. Node
counters are not here: they are sums (``node_usage``). Lines of one metric stay together, as the format demands.

A kubelet's ``/metrics/cadvisor`` has ten thousand lines: they are searched, not parsed.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_LARGEST = 1e18
_LATEST = 4e12
"""Milliseconds: the year 2096."""
_NODE_METRIC = re.compile(r"(node_\w+)(?:\{[^}]*\})? (\S+)(?: (\d+))?$")


@dataclass(frozen=True, slots=True)
class PodNames:
    """What an upper pod is called."""

    namespace: str
    name: str
    uid: str


Pods = Mapping[tuple[str, str], PodNames]
"""Lower namespace and name → upper pod."""


@dataclass(frozen=True, slots=True)
class Exposition:
    """Lines by metric family: ``# HELP`` and ``# TYPE``, and samples."""

    headers: dict[str, list[str]] = field(default_factory=dict)
    samples: dict[str, list[str]] = field(default_factory=dict)


def ours(text: str, pods: Pods) -> Exposition:
    """What one lower kubelet says about our pods, under the upper names."""
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
    """One exposition of what several lower kubelets say."""
    families: dict[str, list[str]] = {}
    for part in parts:
        for family, samples in part.samples.items():
            families.setdefault(family, part.headers.get(family, [])[:]).extend(samples)
    return "\n".join([line for lines in families.values() for line in lines] + [""])


def translate(line: str, pods: Pods) -> str | None:
    """A sample with the upper names; None when it is not about one of our pods."""
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
    """A kubelet's ``node_…`` samples: value and timestamp in ms (0: none)."""
    found: dict[str, tuple[float, int]] = {}
    for line in text.splitlines():
        if line.startswith("node_") and (match := _NODE_METRIC.match(line)):
            value, at = float(match[2]), float(match[3] or 0)
            if is_plausible(value, at):
                found[match[1]] = (value, int(at))
    return found


def is_plausible(value: float, at: float) -> bool:
    """Return whether a sample's value and time (ms) can be counted with: a lower kubelet may send any number."""
    return abs(value) < _LARGEST and 0 <= at < _LATEST


def node_exposition(cpu_seconds: float, memory_bytes: float, *, at: int) -> str:
    """A virtual node's own samples; ``at`` in ms."""
    return (
        "# HELP node_cpu_usage_seconds_total CPU seconds used by the lower nodes since they were first seen\n"
        "# TYPE node_cpu_usage_seconds_total counter\n"
        f"node_cpu_usage_seconds_total {cpu_seconds:.6f} {at}\n"
        "# HELP node_memory_working_set_bytes Working set of the lower nodes\n"
        "# TYPE node_memory_working_set_bytes gauge\n"
        f"node_memory_working_set_bytes {memory_bytes:.0f} {at}\n"
    )


def _find(line: str, marker: str) -> int:
    """Where the value of a label begins; 0: there is none. ``marker`` is the label's name with ``="``."""
    at = line.find(marker)
    while at > 0 and line[at - 1] not in "{, ":
        at = line.find(marker, at + 1)
    return at + len(marker) if at > 0 else 0


def _value(line: str, begin: int) -> str:
    """The value that begins there. Names of objects, which we look for, have no escapes."""
    return line[begin : line.find('"', begin)]


def _family(name: str) -> str:
    """The metric that a histogram's or summary's sample belongs to."""
    for suffix in ("_bucket", "_sum", "_count"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name
