"""Compares two configuration files that describe the same lower clusters, such as those of earlier releases. No IO.

In earlier releases the virtual node and the multi-scheduler had a file each. Where the files differ, the multi-scheduler sends
pods to a cluster that refuses them, or keeps them away from a cluster that would take them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from clusterset.config import Cluster, ClusterSet, NodeConfig, profile_cluster

_ONLY_NODE = "nodeName"
_PROFILES = "clusterProfiles"
_UNSET = object()


@dataclass(frozen=True, slots=True)
class Difference:
    """A setting that two files give differently."""

    cluster: str
    """Name of the lower cluster; empty: ``clusterProfiles``."""
    field: str
    """Path of the field, below the cluster's entry."""
    one: str
    other: str
    """Value of the field in the other file; ``one`` is its value in the first file."""


def differences(one: ClusterSet, other: ClusterSet) -> Iterator[Difference]:
    """Yield the settings that both programs use and that two configurations give differently."""
    ours, theirs = ({cluster.name: cluster for cluster in config.clusters} for config in (one, other))
    for name in sorted(ours.keys() | theirs.keys()):
        if name in ours and name in theirs:
            yield from _of_cluster(name, one, ours[name], other, theirs[name])
        else:
            yield Difference(
                name, "name", *("there" if name in known else "missing" for known in (ours, theirs))
            )
    yield from _of_profiles(one, other)


def _of_profiles(one: ClusterSet, other: ClusterSet) -> Iterator[Difference]:
    ours, theirs = one.cluster_profiles, other.cluster_profiles
    if ours is None or theirs is None:
        if ours is not theirs:
            values = ("missing" if profiles is None else "there" for profiles in (ours, theirs))
            yield Difference("", _PROFILES, *values)
        return
    selections = [
        {**msgspec.to_builtins(profiles), "defaults": {}, "providersFile": ""} for profiles in (ours, theirs)
    ]
    yield from _between("", _PROFILES, *selections)
    samples = [profile_cluster(profiles, "profile", "profile") for profiles in (ours, theirs)]
    for found in _of_cluster("", one, samples[0], other, samples[1]):
        yield replace(found, field=f"{_PROFILES}.defaults.{found.field}")


def _of_cluster(
    name: str, one: ClusterSet, ours: Cluster, other: ClusterSet, theirs: Cluster
) -> Iterator[Difference]:
    parts = [_common(one, ours), _common(other, theirs)]
    # The multi-scheduler also finds a cluster's virtual nodes by their label, so a default name is no contradiction.
    is_default = not all(cluster.nodes or cluster.node_name for cluster in (ours, theirs))
    if is_default and all(len(cluster.virtual_nodes()) == 1 for cluster in (ours, theirs)):
        for part, cluster in zip(parts, (ours, theirs), strict=True):
            part["nodes"] = {_ONLY_NODE: _node(cluster.virtual_nodes()[0])}
    yield from _between(name, "", *parts)


def _common(config: ClusterSet, cluster: Cluster) -> dict[str, Any]:
    """Return the settings of a cluster that decide which pods it takes, by field."""
    namespaces = msgspec.to_builtins(cluster.namespaces)
    for of_removal in ("remove", "generated"):
        namespaces.pop(of_removal, None)
    if not cluster.namespaces.adopt:  # an empty list means the same as false
        namespaces.pop("adopt", None)
    return {
        "namespaces": namespaces,
        "podSelector": cluster.pod_selector,
        "volumes": {"allowedHostPaths": cluster.volumes.allowed_host_paths},
        "resourceClaims": {"enabled": cluster.resource_claims.enabled},
        "enableControllers": sorted(config.controllers(cluster)),
        "policy": msgspec.to_builtins(cluster.policy),
        "overrides": msgspec.to_builtins(cluster.overrides),
        "nodes": {node.name: _node(node) for node in cluster.virtual_nodes()},
    }


def _node(node: NodeConfig) -> dict[str, Any]:
    return {"nodeSelector": node.node_selector, "autoscaling": msgspec.to_builtins(node.autoscaling)}


def _between(cluster: str, path: str, one: Any, other: Any) -> Iterator[Difference]:
    """Yield the innermost fields that differ."""
    if one == other:
        return
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        yield Difference(cluster, path, _text(one), _text(other))
        return
    for key in sorted(one.keys() | other.keys()):
        inner = f"{path}.{key}".removeprefix(".")
        yield from _between(cluster, inner, one.get(key, _UNSET), other.get(key, _UNSET))


def _text(value: Any) -> str:
    return "unset" if value is _UNSET else msgspec.json.encode(value).decode()
