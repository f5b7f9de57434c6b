"""The parts of the lower clusters in which a group may run: clusters, or domains of a label of their nodes. No IO."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clusterset.model import cluster_selector, names
from clusterset.model.pod.groups import MOST_MEMBERS, Group
from controller_runtime.objects import Object
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.virtual_node import VirtualNode

_MOST_DOMAINS = 64
"""Number of values of a topology label that are tried per cluster."""


@dataclass(frozen=True, slots=True)
class Homes:
    """Where the bound members of a group run. Empty: no restriction."""

    clusters: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()
    """Values of the group's topology label."""


@dataclass(frozen=True, slots=True)
class Option:
    """One part of the lower clusters in which a group may run."""

    name: str
    """For messages."""
    nodes: Sequence[VirtualNode]
    most: int = MOST_MEMBERS
    """Upper bound of the number of members with room."""


def options(
    group: Group,
    nodes: Sequence[VirtualNode],
    indexes: Mapping[str, ClusterIndex],
    homes: Homes,
    least: Mapping[str, int],
) -> list[Option]:
    """Return parts of the lower clusters, in no order; a single part must take all members of the group.

    Args:
        group: the group.
        nodes: virtual nodes that members may use.
        indexes: indexes by lower cluster.
        homes: where the bound members run.
        least: by resource, what each member requests at least; empty: do not compute the number of members with room.
    """
    if not group.is_one_cluster:
        return [Option("the lower clusters", nodes)]
    found = []
    for cluster in dict.fromkeys(node.cluster for node in nodes):
        if cluster not in indexes or (homes.clusters and cluster not in homes.clusters):
            continue
        there = [node for node in nodes if node.cluster == cluster]
        rooms = _rooms(indexes[cluster], group.topology, least) if least else {}
        if not group.topology:
            found.append(
                Option(f"lower cluster {cluster}", there, rooms.get("", MOST_MEMBERS if not least else 0))
            )
            continue
        for value in homes.domains or _domains(indexes[cluster], group.topology):
            name = f"lower cluster {cluster}, {group.topology}={value}"
            if inside := [limited for node in there if (limited := within(node, group.topology, value))]:
                found.append(Option(name, inside, rooms.get(value, 0)))
    return found


def within(node: VirtualNode, topology: str, value: str) -> VirtualNode | None:
    """Return the virtual node with its pool limited to one domain; None: its pool is in another domain."""
    if node.pool.get(topology, value) != value:
        return None
    return replace(node, pool={**node.pool, topology: value})


def domain_selector(pod: Object, topology: str, value: str) -> dict[str, str]:
    """Return the annotation that restricts a lower pod to one domain, in addition to the annotation's present selectors."""
    selector = cluster_selector.of(pod.annotations, names.ANNOTATION_CLUSTER_SELECTOR)
    if selector is None:
        # With the annotation, the virtual node no longer uses the pod's own tolerations.
        own = (pod.spec or {}).get("tolerations") or ()
        selector = {"tolerations": [one for one in own if one.get("key") != names.TAINT_PROVIDER]}
    selected = {**(selector.get("nodeSelector") or {}), topology: value}
    text = json.dumps({**selector, "nodeSelector": selected}, separators=(",", ":"))
    return {names.ANNOTATION_CLUSTER_SELECTOR: text}


def _domains(index: ClusterIndex, topology: str) -> list[str]:
    """Return the values of a label, those with most nodes first."""
    counts: dict[str, int] = {}
    for node in index.nodes():
        if value := node.labels.get(topology):
            counts[value] = counts.get(value, 0) + 1
    return sorted(counts, key=lambda value: (-counts[value], value))[:_MOST_DOMAINS]


def _rooms(index: ClusterIndex, topology: str, least: Mapping[str, int]) -> Counter[str]:
    """Return for each value of a label, or for all nodes, how many pods with these requests the nodes could take at most."""
    columns = [(index.free(resource), count) for resource, count in least.items()]
    found: Counter[str] = Counter()
    for node in index.nodes():
        value, slot = node.labels.get(topology) if topology else "", index.slot(node.name)
        if value is not None and slot is not None:
            found[value] += min(max(0, column[slot]) // count for column, count in columns)
    return found
