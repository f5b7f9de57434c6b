"""Node pools: several virtual nodes for one lower cluster, each for the lower nodes with certain labels.

A nodeSelector keeps the pods of a virtual node in its pool. If the pod itself selects nodes of another pool,
``contradiction`` reports that no node of this pool can run it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def within(spec: dict[str, Any], pool: Mapping[str, str]) -> dict[str, Any]:
    """Return a lower pod's spec restricted to nodes of the pool.

    Args:
        spec: the lower pod's spec.
        pool: labels of the pool's nodes; empty: all nodes of the lower cluster belong to it.
    """
    return {**spec, "nodeSelector": {**(spec.get("nodeSelector") or {}), **pool}} if pool else spec


def contradiction(spec: Mapping[str, Any], pool: Mapping[str, str], *, node_name: str, cluster: str) -> str:
    """Return why no node of the pool can run a lower pod; empty: nodeSelector and pool do not conflict.

    They conflict if both require the same label with different values.

    Args:
        spec: the lower pod's spec, before ``within``.
        pool: labels of the pool's nodes.
        node_name: the virtual node.
        cluster: the lower cluster.
    """
    selector = spec.get("nodeSelector") or {}
    others = [key for key in pool if key in selector and selector[key] != pool[key]]
    if not others:
        return ""
    wanted = ", ".join(f"{key}={selector[key]}" for key in others)
    has = ", ".join(f"{key}={pool[key]}" for key in others)
    return (
        f"0 nodes of lower cluster {cluster} are available: the pod selects nodes with {wanted} (nodeSelector of its "
        f"clusterSelector), virtual node {node_name} stands for those with {has} only (nodeSelector in its "
        "configuration). Have the pod choose another virtual node, or change one of the two"
    )
