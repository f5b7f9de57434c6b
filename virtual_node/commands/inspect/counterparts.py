"""Reads the upper counterparts of lower objects; labels of the lower objects say where to read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.client.client import Client
from virtual_node.commands.inspect.facts import ClusterFacts
from virtual_node.commands.inspect.listing import all_of, lease_into, list_into
from virtual_node.commands.inspect.packed import PackedObjects
from virtual_node.health.objects import annotations_of, is_virtual, labels_of
from virtual_node.translate.kinds import Demand, enabled

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""Names that a node or a namespace can have."""


async def read(client: Client, upper: ClusterFacts, lowers: Sequence[ClusterFacts]) -> None:
    """Read into ``upper`` the pods and Leases of virtual nodes, and the sources of copies."""
    if upper.error:
        return
    nodes = virtual_nodes(upper, lowers)
    referenced = [kind for kind in enabled(()) if kind.demand is Demand.REFERENCES]
    sources: dict[str, set[str]] = {kind.kind: set() for kind in referenced}
    for lower in lowers:
        try:
            _add_counterparts(lower, nodes, sources)
        except Exception as error:  # noqa: BLE001 - objects may have any content
            lower.mark_malformed(error)
    upper.objects["Pod"] = PackedObjects()
    # A name that no upper object can have would make the request fail, and all objects of its kind unread.
    listed = partial(list_into, client, upper)
    valid = sorted(filter(_NAME.fullmatch, nodes))
    reading = [listed(resources.PODS, field_selector=f"spec.nodeName={node}") for node in valid]
    for resource in (kind.resource for kind in referenced):
        upper.objects[resource.kind] = PackedObjects()
        namespaces = sorted(filter(_NAME.fullmatch, sources[resource.kind]))
        reading += [listed(resource, namespace=namespace) for namespace in namespaces]
    leases: list[dict[str, Any]] = []
    upper.objects["Lease"] = leases
    reading += [lease_into(client, upper, leases, name) for name in sorted(virtual_nodes(upper, lowers))]
    await all_of(reading)
    for kind in upper.unread:
        upper.objects.pop(kind, None)


def _add_counterparts(lower: ClusterFacts, nodes: set[str], sources: Mapping[str, set[str]]) -> None:
    """Add a lower cluster's virtual nodes to ``nodes``, and its copies' upper namespaces to ``sources``."""
    nodes |= {
        labels_of(pod)[names.LABEL_NODE] for pod in lower.heads("Pod") if names.LABEL_NODE in labels_of(pod)
    }
    for kind, namespaces in sources.items():
        for copy in lower.of(kind):
            if names.LABEL_TOKEN_OF not in labels_of(copy):
                above = annotations_of(copy).get(names.ANNOTATION_UPPER_NAMESPACE)
                namespaces.add(above or copy["metadata"].get("namespace", ""))
            elif names.LABEL_NODE in labels_of(copy):
                # Secrets of tokens name the virtual node of their pod, and may be left when the pod is gone.
                nodes.add(labels_of(copy)[names.LABEL_NODE])


def virtual_nodes(upper: ClusterFacts, lowers: Iterable[ClusterFacts]) -> set[str]:
    """Return the names of the registered virtual nodes and of those that are configured for lower clusters."""
    registered = {node["metadata"]["name"] for node in upper.of("Node") if is_virtual(node)}
    return registered | {name for lower in lowers for name in lower.nodes}
