"""What ``status`` shows of a virtual node's pods, and its lag. No IO.

The process that runs the virtual node computes it from its cache, and the command from a list of the pods if that process does
not answer. Both call the functions of this module, so the numbers and faults are the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from virtual_node.examine import rules  # noqa: F401 - registers all rules
from virtual_node.examine.engine import of_pod
from virtual_node.examine.finding import Finding
from virtual_node.examine.objects import requested
from virtual_node.translate.pods.summary import is_trouble, status_word

PATH = "/virtual-node/summary"
"""Path of the summaries in the kubelet API of a virtual node."""
RESOURCES = ("cpu", "memory", "pods")
"""The resources whose requests are summed."""
MOST_FINDINGS = 10_000
"""Maximum number of findings in a summary, because tenants may create any number. The command lists the pods of larger nodes."""
_QUANTILES = {"p50": 0.5, "p99": 0.99}

Lag = dict[str, dict[str, float]]
"""Maps direction (down, up) to p50 and p99 in seconds; each is the upper bound of its histogram bucket."""


class PodNumbers(NamedTuple):
    """What one pod adds to the numbers of its node. Most pods of a node add the same."""

    is_running: bool
    is_trouble: bool
    used: tuple[int, ...]
    """Its requests of ``RESOURCES``; 0 if it is finished."""


@dataclass(frozen=True, slots=True)
class PodSummary:
    """What a summary needs of one pod."""

    numbers: PodNumbers
    findings: Sequence[Finding]
    """Also those that do not count yet."""


class NodeSummary(msgspec.Struct, rename="camel"):
    """The pods of one virtual node in numbers, and its lag."""

    total: int = 0
    running: int = 0
    trouble: int = 0
    """Pods that neither run nor start normally."""
    used: dict[str, int] = {}
    """Requests by resource, in the units of ``quantity.of``."""
    findings: list[Finding] | None = None
    """Findings about its pods, also those that are too recent to be shown; None: there are findings, but the caller is
    authorized only for another virtual node."""
    lag: Lag | None = None
    """Since the process started; None: unknown, or nothing was mirrored."""

    def for_others(self) -> NodeSummary:
        """Return the summary without the names of pods, for a caller that is authorized only for another virtual node."""
        return msgspec.structs.replace(self, findings=None) if self.findings else self


class Summaries(msgspec.Struct):
    """The response of a process: summaries by virtual node, without those that it cannot compute now."""

    nodes: dict[str, NodeSummary]


def summary_of(pod: Mapping[str, Any]) -> PodSummary:
    """Return the summary of a pod that is bound to a virtual node."""
    word, used = status_word(pod)[0], requested((pod,))
    requests = tuple(used.get(name, 0) for name in RESOURCES)
    # The rules about a bound pod do not need the names of the virtual nodes.
    return PodSummary(PodNumbers(word == "Running", is_trouble(pod, word), requests), of_pod(pod, ()))


def summarize(pods: Iterable[PodSummary]) -> NodeSummary:
    """Return the summary of all pods of a virtual node, without its lag."""
    numbers: Counter[PodNumbers] = Counter()
    findings: list[Finding] = []
    for pod in pods:
        numbers[pod.numbers] += 1
        findings += pod.findings
    summary = NodeSummary(used=dict.fromkeys(RESOURCES, 0), findings=findings)
    for each, count in numbers.items():
        summary.total += count
        summary.running += count * each.is_running
        summary.trouble += count * each.is_trouble
        for name, amount in zip(RESOURCES, each.used, strict=True):
            summary.used[name] += count * amount
    return summary


def lag_of(buckets: Iterable[tuple[str, float, float]]) -> Lag:
    """Return the lag of one lower cluster.

    Args:
        buckets: direction, upper bound and cumulative count of each bucket of its histogram.
    """
    by_direction: dict[str, list[tuple[float, float]]] = {}
    for direction, bound, count in buckets:
        by_direction.setdefault(direction, []).append((bound, count))
    return {
        direction: {name: _quantile(sorted(found), share) for name, share in _QUANTILES.items()}
        for direction, found in by_direction.items()
        if max(count for _, count in found) and any(math.isfinite(bound) for bound, _ in found)
    }


def _quantile(buckets: list[tuple[float, float]], share: float) -> float:
    """Return the upper bound of the quantile's bucket; the last finite bound stands for the infinite bucket."""
    total = buckets[-1][1]
    finite = [bound for bound, _ in buckets if math.isfinite(bound)]
    for bound, count in buckets:
        if count >= share * total and math.isfinite(bound):
            return bound
    return finite[-1]
