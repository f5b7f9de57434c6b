"""Assigns lower clusters to replicas: rendezvous hashing with bounded load. No IO."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping

_ROUNDING = 1e-9
"""Subtracted before rounding up, so that an error of floating point does not add a cluster."""


def assign(
    clusters: Collection[str], shares: Mapping[str, float], holders: Mapping[str, str]
) -> dict[str, str]:
    """Return the replica that shall run each cluster; empty if there is no replica.

    Every replica computes this from what it has read. Replicas that have read different states may disagree for a
    moment, and then the Lease of the cluster decides. A cluster stays with its holder while the holder has room, so a
    change of the replicas moves as few clusters as possible. Any other cluster goes to the replica with room
    that has the highest score.

    Args:
        clusters: names of the lower clusters.
        shares: weight of each working replica, greater than 0; 1 unless it is overloaded.
        holders: replica that holds the cluster's Lease, by cluster; clusters without a working holder are absent.
    """
    room = limits(len(clusters), shares)
    owners: dict[str, str] = {}
    waiting: list[str] = []
    for cluster in sorted(clusters, key=lambda name: -_score(name, holders.get(name, ""))):
        holder = holders.get(cluster, "")
        if room.get(holder, 0) > 0:
            owners[cluster] = holder
            room[holder] -= 1
        else:
            waiting.append(cluster)
    for cluster in sorted(waiting):
        free = [member for member, left in room.items() if left > 0]
        if free:
            owner = max(free, key=lambda member: _score(cluster, member))
            owners[cluster] = owner
            room[owner] -= 1
    return owners


def limits(clusters: int, shares: Mapping[str, float]) -> dict[str, int]:
    """Return how many clusters each replica may run: its share of them, rounded up. The sum is at least ``clusters``."""
    total = sum(shares.values())
    return {
        member: math.ceil(clusters * share / total - _ROUNDING) for member, share in sorted(shares.items())
    }


def _score(cluster: str, member: str) -> int:
    digest = hashlib.sha256(f"{member}\0{cluster}".encode()).digest()
    return int.from_bytes(digest[:8], "big")
