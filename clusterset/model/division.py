"""Divides a workload's pods over lower clusters: the annotations, the next pod's cluster, the order of deletion. No IO.

The next pod goes to the cluster whose number of pods is furthest below its share. So a cluster never exceeds its share
by a whole pod, and has exactly its share when the shares are whole numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from clusterset.model import names

MOST_CLUSTERS = 100
"""Largest number of clusters in a division."""
MOST_WEIGHT = 1_000_000
MOST_SKEW = 1000
_LONGEST = 16_384
"""Maximum characters of the annotation."""
_WEIGHT = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?)=([1-9][0-9]{0,6})", re.ASCII)
_SKEW = re.compile(r"[1-9][0-9]{0,3}", re.ASCII)
_MEASURES: Mapping[str, Literal["room", "price"]] = {"room": "room", "price": "price"}
_STEPS = 8
"""Weight of the cluster with most pods in the result of ``proportions``."""


@dataclass(frozen=True, slots=True)
class Division:
    """The division that a pod declares."""

    by: Literal["weight", "room", "price"]
    weights: Mapping[str, int]
    """Weight by lower cluster; empty unless ``by`` is ``weight``."""
    max_skew: int | None = None
    """Maximum number of pods above its share that a cluster gets if the others cannot take a pod; None: no limit."""


def parse(annotations: Mapping[str, str]) -> Division | None:
    """Return the division that a pod's annotations declare; None: none.

    Raises:
        ValueError: an annotation is invalid; the message names it.
    """
    text = annotations.get(names.ANNOTATION_DIVISION)
    if not text:
        return None
    max_skew = None
    if (limit := annotations.get(names.ANNOTATION_DIVISION_MAX_SKEW)) is not None:
        if not _SKEW.fullmatch(limit) or int(limit) > MOST_SKEW:
            raise ValueError(
                f"annotation {names.ANNOTATION_DIVISION_MAX_SKEW}: write a number from 1 to {MOST_SKEW}"
            )
        max_skew = int(limit)
    if (by := _MEASURES.get(text)) is not None:
        return Division(by, {}, max_skew)
    return Division("weight", _weights(text), max_skew)


def _weights(text: str) -> dict[str, int]:
    where = f"annotation {names.ANNOTATION_DIVISION}"
    if len(text) > _LONGEST:
        raise ValueError(f"{where}: more than {_LONGEST} characters")
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > MOST_CLUSTERS:
        raise ValueError(f"{where}: more than {MOST_CLUSTERS} lower clusters")
    found: dict[str, int] = {}
    for part in parts:
        match = _WEIGHT.fullmatch(part)
        if match is None or int(match[3]) > MOST_WEIGHT:
            raise ValueError(
                f"{where}: {part[:60]!r}: write room, price, or weights from 1 to {MOST_WEIGHT} "
                f"such as lower1=3,lower2=1"
            )
        if match[1] in found:
            raise ValueError(f"{where}: {match[1][:60]} is there twice")
        found[match[1]] = int(match[3])
    return found


def behind(weights: Mapping[str, int], counts: Mapping[str, int]) -> list[str]:
    """Return the clusters in the order in which they should get the next pod: first the one that is most behind its share.

    The shares are computed for the existing pods plus the next one. Pods of clusters without weight are ignored.
    """
    total = sum(weights.values())
    pods = 1 + sum(counts.get(cluster, 0) for cluster in weights)
    return sorted(
        weights,
        key=lambda cluster: (
            counts.get(cluster, 0) * total - pods * weights[cluster],
            -weights[cluster],
            cluster,
        ),
    )


def choose(
    weights: Mapping[str, int], counts: Mapping[str, int], candidates: Collection[str], max_skew: int | None
) -> str | None:
    """Return the candidate for the next pod; None: with it, each would have over ``max_skew`` pods above its share."""
    for cluster in behind(weights, counts):
        if cluster in candidates and (max_skew is None or is_within(weights, counts, cluster, max_skew)):
            return cluster
    return None


def is_within(weights: Mapping[str, int], counts: Mapping[str, int], cluster: str, max_skew: int) -> bool:
    """Report whether a cluster may take the next pod: it then has at most ``max_skew`` pods above its share."""
    total = sum(weights.values())
    pods = 1 + sum(counts.get(cluster, 0) for cluster in weights)
    return (counts.get(cluster, 0) + 1 - max_skew) * total <= pods * weights[cluster]


def kept(weights: Mapping[str, int], counts: Mapping[str, int]) -> list[str]:
    """Return the cluster of each existing pod, in the order in which the pods should be kept.

    The first ``n`` entries are the division of ``n`` pods, unless a cluster has fewer pods than its share. Clusters
    without a weight are last.
    """
    left = {cluster: counts[cluster] for cluster in sorted(counts) if counts[cluster] > 0}
    placed: Counter[str] = Counter()
    order: list[str] = []
    open_ = {cluster: weights[cluster] for cluster in left if weights.get(cluster)}
    total = sum(weights.values())
    while open_:
        pods = len(order) + 1
        chosen = min(open_, key=lambda one: (placed[one] * total - pods * weights[one], -weights[one], one))
        order.append(chosen)
        placed[chosen] += 1
        if placed[chosen] == left[chosen]:
            del open_[chosen]
    return order + [
        cluster for cluster, count in left.items() if not weights.get(cluster) for _ in range(count)
    ]


def proportions(counts: Mapping[str, int]) -> dict[str, int]:
    """Return weights that are about proportional to the pods of each cluster.

    They are coarse, so that they stay the same when a few pods come or go.
    """
    most = max(counts.values(), default=0)
    return {cluster: max(1, round(_STEPS * count / most)) for cluster, count in counts.items() if count > 0}
