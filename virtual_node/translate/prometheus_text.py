"""Prometheus text of several lower kubelets, made into that of one virtual node. Pure.

Lines about our pods get the upper names; all others go, for a cluster's other pods are nobody's business above. Node
counters are not here: they are sums (``node_usage``). Lines of one metric stay together, as the format demands.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_LABEL = re.compile(r'(?<![a-zA-Z0-9_])(namespace|pod|pod_uid|uid)="((?:[^"\\]|\\.)*)"')
_NODE_METRIC = re.compile(r"(node_\w+)(?:\{[^}]*\})? (\S+)(?: (\d+))?$")


@dataclass(frozen=True, slots=True)
class PodNames:
    """What an upper pod is called."""

    namespace: str
    name: str
    uid: str


Pods = Mapping[tuple[str, str], PodNames]
"""Lower namespace and name → upper pod."""


def merge(texts: Iterable[str], pods: Pods) -> str:
    """One exposition of what several say about our pods.

    Args:
        texts: of the lower kubelets.
        pods: ours.
    """
    headers: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for text in texts:
        for line in text.splitlines():
            if line.startswith("#"):
                parts = line.split(" ", 3)
                if len(parts) > 2 and parts[1] in {"HELP", "TYPE"}:
                    known = headers.setdefault(parts[2], [])
                    if len(known) < 2 and not any(one.split(" ", 2)[1] == parts[1] for one in known):
                        known.append(line)
                continue
            translated = translate(line, pods)
            if translated is not None:
                samples.setdefault(line[: line.find("{")], []).append(translated)
    lines: list[str] = []
    for name, found in samples.items():
        lines += headers.get(name) or headers.get(_family(name), [])
        lines += found
    return "\n".join([*lines, ""])


def translate(line: str, pods: Pods) -> str | None:
    """A sample with the upper names; None when it is not about one of our pods."""
    brace = line.find("{")
    if brace < 0:
        return None
    labels = dict(_LABEL.findall(line))
    upper = pods.get((labels.get("namespace", ""), labels.get("pod", "")))
    if upper is None:
        return None
    values = {"namespace": upper.namespace, "pod": upper.name, "pod_uid": upper.uid, "uid": upper.uid}
    return _LABEL.sub(lambda found: f'{found[1]}="{values[found[1]]}"', line)


def node_samples(text: str) -> dict[str, tuple[float, int]]:
    """A kubelet's ``node_…`` samples: value and timestamp in ms (0: none)."""
    found: dict[str, tuple[float, int]] = {}
    for line in text.splitlines():
        if line.startswith("node_") and (match := _NODE_METRIC.match(line)):
            found[match[1]] = (float(match[2]), int(match[3] or 0))
    return found


def _family(name: str) -> str:
    """The metric that a histogram's or summary's sample belongs to."""
    for suffix in ("_bucket", "_sum", "_count"):
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name
