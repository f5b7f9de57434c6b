"""Merge the Prometheus text of several lower kubelets into that of one virtual node.

Samples of owned pods get the upper names. All other samples are dropped, because the upper cluster must not
see the lower cluster's other pods. Counters of nodes are summed in ``usage`` instead. Samples of one metric
stay together, as the format requires.

A hostile lower cluster must not report about other pods, also to readers that do not parse: metrics-server takes the
first ``pod="`` of a line for the pod, also in ``xpod="``. So each line is parsed strictly and written again, with
container, namespace and pod first.

A kubelet's ``/metrics/cadvisor`` has ten thousand lines, most of them about pods of others. To save CPU time, the pod is
searched before a line is parsed.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from controller_runtime.apimachinery import readable
from virtual_node.translate.base.fields import is_dns_name

_LARGEST = 1e18
_LATEST = 4e12
"""Latest accepted timestamp, in milliseconds: the year 2096."""
_LONGEST_LINE = 16 << 10
"""Maximum characters of a sample. The longest ones of a kubelet, with paths as labels, have about a thousand."""
_LONGEST_HELP = 1024
_NUMBER = r"(?:[+-]?(?:\d{1,32}(?:\.\d{0,32})?|\.\d{1,32})(?:[eE][+-]?\d{1,4})?|[+-]?Inf|NaN)"
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*+")
_LABEL = re.compile(
    r'(?:^|,)([a-zA-Z_][a-zA-Z0-9_]*+)="([^"\\\x00-\x1f\x7f]*+(?:\\["\\n][^"\\\x00-\x1f\x7f]*+)*+)"'
)
_VALUE = re.compile(rf" ({_NUMBER})(?: (\d{{1,13}}))?", re.ASCII)
_HEADER = re.compile(
    r"# (?:(HELP) (\w+) (.*)|(TYPE) (\w+) (?:counter|gauge|histogram|summary|untyped))", re.ASCII
)
_OF_PODS = re.compile(r"(?:container|pod|prober)_\w+", re.ASCII)
"""Metrics of the kubelet about pods. A lower cluster must not report others, such as those of kube-state-metrics."""
_UIDS = ("pod_uid", "uid")
_SUBJECT = ("container", "namespace", "pod")
_MISREAD = (*_SUBJECT, "uid")
"""Ends of label names that a reader which searches ``pod="`` takes for the label itself."""
_CONTAINER_NAMES = ("", "POD")
"""Names that cAdvisor has for the cgroup of a pod, and for its sandbox."""


@dataclass(frozen=True, slots=True)
class PodNames:
    """Namespace, name and uid of an upper pod, and its containers."""

    namespace: str
    name: str
    uid: str
    containers: frozenset[str] = frozenset()
    """Names of all its containers; empty: unknown. Those that were added in the lower cluster are not reported, because
    readers compare usage with the requests of the upper pod. Usage of the whole pod includes them."""

    def has(self, container: str) -> bool:
        """Report whether samples about a container of the lower pod are about the upper pod, too."""
        return not self.containers or container in self.containers or container in _CONTAINER_NAMES


Pods = Mapping[tuple[str, str], PodNames]
"""Upper pod by namespace and name of its lower pod."""


@dataclass(frozen=True, slots=True)
class Exposition:
    """Lines by metric family: ``# HELP`` and ``# TYPE`` lines, and samples."""

    headers: dict[str, list[str]] = field(default_factory=dict)
    samples: dict[str, list[str]] = field(default_factory=dict)


class Sample(NamedTuple):
    """One line."""

    name: str
    labels: dict[str, str]
    """Values with their escapes."""
    value: str
    at: str
    """Timestamp in milliseconds; empty: none."""


def sample(line: str) -> Sample | None:
    """Return a line's parts; None: it is not a valid sample, or has a label twice."""
    if len(line) > _LONGEST_LINE:
        return None
    name, brace, rest = line.partition("{")
    text, end, tail = rest.rpartition("}") if brace else ("", "}", "")
    if not brace:
        name, blank, tail = line.partition(" ")
        tail = blank + tail
    text = text.removesuffix(",")
    match = _VALUE.fullmatch(tail)
    if not end or match is None or _NAME.fullmatch(name) is None:
        return None
    value, at = match.groups("")
    pairs = _LABEL.findall(text)
    labels = dict(pairs)
    # The labels, quotes and commas are the complete text: nothing was skipped.
    used = sum(map(len, chain.from_iterable(pairs))) + max(0, 4 * len(pairs) - 1)
    if used != len(text) or len(labels) < len(pairs) or int(at or 0) >= _LATEST:
        return None
    return Sample(name, labels, value, at)


def ours(text: str, pods: Pods) -> Exposition:
    """Return a lower kubelet's samples about owned pods, with the upper names."""
    found = Exposition()
    for line in text.split("\n"):
        if line.startswith("#"):
            _add_header(found.headers, line)
            continue
        translated = translate(line, pods)
        if translated is not None:
            name = translated[: translated.find("{")]
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
    """Return a sample line with the upper names; None: it is invalid, or not about an owned pod."""
    if (_searched(line, 'namespace="'), _searched(line, 'pod="')) not in pods:
        return None
    parsed = sample(line)
    if parsed is None or _OF_PODS.fullmatch(parsed.name) is None:
        return None
    labels = parsed.labels
    container = labels.get("container")
    upper = pods.get((labels.get("namespace", ""), labels.get("pod", "")))
    if upper is None or not (container is None or (_is_container(container) and upper.has(container))):
        return None
    written = [] if container is None else [f'container="{container}"']
    written += [f'namespace="{upper.namespace}"', f'pod="{upper.name}"']
    for label, value in labels.items():
        if label in _UIDS:
            written.append(f'{label}="{upper.uid}"')
        elif label not in _SUBJECT:
            if label.endswith(_MISREAD):
                return None
            written.append(f'{label}="{value}"')
    at = f" {parsed.at}" if parsed.at else ""
    return f"{parsed.name}{{{','.join(written)}}} {parsed.value}{at}"


def node_samples(text: str) -> dict[str, tuple[float, int]]:
    """Return value and timestamp (ms; 0: none) of a kubelet's ``node_…`` samples."""
    found: dict[str, tuple[float, int]] = {}
    for line in text.split("\n"):
        if line.startswith("node_") and (parsed := sample(line)) is not None:
            value, at = float(parsed.value), int(parsed.at or 0)
            if is_plausible(value, at):
                found[parsed.name] = (value, at)
    return found


def is_plausible(value: float, at: float) -> bool:
    """Report whether a sample's value and timestamp (ms) are usable, because a lower kubelet may send any number."""
    return abs(value) < _LARGEST and 0 <= at < _LATEST


def node_exposition(
    cpu_seconds: float, memory_bytes: float, *, at: int, swap_bytes: float | None = None
) -> str:
    """Return a virtual node's own samples; ``at`` is their timestamp in ms. ``swap_bytes``, None: unknown."""
    text = (
        "# HELP node_cpu_usage_seconds_total CPU seconds used by the lower nodes since they were first seen\n"
        "# TYPE node_cpu_usage_seconds_total counter\n"
        f"node_cpu_usage_seconds_total {cpu_seconds:.6f} {at}\n"
        "# HELP node_memory_working_set_bytes Working set of the lower nodes\n"
        "# TYPE node_memory_working_set_bytes gauge\n"
        f"node_memory_working_set_bytes {memory_bytes:.0f} {at}\n"
    )
    if swap_bytes is not None:
        text += (
            "# HELP node_swap_usage_bytes Swap used by the lower nodes\n"
            "# TYPE node_swap_usage_bytes gauge\n"
            f"node_swap_usage_bytes {swap_bytes:.0f} {at}\n"
        )
    return text


def scrape_result(*, is_failed: bool) -> str:
    """Return the sample with which a kubelet reports that usage could not be read."""
    return (
        "# HELP resource_scrape_error 1 if usage of a lower node could not be read, 0 otherwise\n"
        "# TYPE resource_scrape_error gauge\n"
        f"resource_scrape_error {int(is_failed)}\n"
    )


def _add_header(headers: dict[str, list[str]], line: str) -> None:
    """Add a ``# HELP`` or ``# TYPE`` line, once for each metric; ignore other comments."""
    match = _HEADER.fullmatch(line) if len(line) <= _LONGEST_LINE else None
    if match is None:
        return
    text = line
    if match[1]:
        text = f"# HELP {match[2]} {readable.printable(match[3][:_LONGEST_HELP], instead=' ')}"
    lines = headers.setdefault(match[2] or match[5], [])
    if not any(known[:6] == text[:6] for known in lines):
        lines.append(text)


@functools.lru_cache(maxsize=4096)
def _is_container(name: str) -> bool:
    return name in _CONTAINER_NAMES or is_dns_name(name)


def _searched(line: str, marker: str) -> str:
    """Return a label's value in a line that is not parsed; empty: the label is missing.

    ``marker`` is the label's name with ``="``. The result decides only whether the line is parsed.
    """
    at = line.find(marker)
    while at > 0 and line[at - 1] not in "{, ":
        at = line.find(marker, at + 1)
    begin = at + len(marker)
    return line[begin : line.find('"', begin)] if at > 0 else ""


def _family(name: str) -> str:
    """Return the metric family of a histogram's or summary's sample."""
    for suffix in ("_bucket", "_sum", "_count"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name
