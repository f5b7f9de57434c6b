"""Pools: several virtual nodes share a lower cluster, each stands for the lower nodes with certain labels.

What a virtual node's pods ask of lower nodes is kept to its pool by nodeSelector. A pod that selects nodes of another
pool is never moved into this one: no node has both labels, as no node of a pool has another value for one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def keep_to(spec: dict[str, Any], pool: Mapping[str, str]) -> None:
    """Have a lower pod run on nodes of the pool only, in place.

    Args:
        spec: the lower pod's.
        pool: labels of the pool's nodes; empty: all nodes of the cluster belong to it.
    """
    if pool:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **pool}


def contradiction(spec: Mapping[str, Any], pool: Mapping[str, str], *, node_name: str, cluster: str) -> str:
    """Why no node of the pool can take a lower pod: one label, two values. Empty: nothing contradicts.

    Args:
        spec: the lower pod's, before ``keep_to``.
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
