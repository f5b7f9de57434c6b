"""State of the upper cluster from caches: virtual nodes, claims, volumes and frozen (avoided) nodes.

All state is read from the API, so all replicas have the same state, even after a restart. Claims that the
cache does not show yet are ignored; the scheduler still considers them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from clusterset.model import names
from clusterset.model.moving import movable, node_avoidance
from clusterset.model.pod.conditions import claim_names
from controller_runtime import resources
from controller_runtime.cache.informer import Informer, unsynced
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from webhook.mutation.mutate import Surroundings


@dataclass(eq=False)
class State:
    """Caches of the upper cluster, and the state in them that matters for a pod. ``run`` fills the caches."""

    client: Client
    settings: Surroundings
    """The fields that are the same for all pods."""
    freeze_namespace: str
    """Namespace of the ConfigMap with frozen nodes."""
    freeze_period: float
    """Seconds for which a frozen node is avoided."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def __post_init__(self) -> None:
        client = self.client
        self._nodes = Informer(
            client,
            resources.NODES,
            label_selector=f"{names.LABEL_NODE_TYPE}={names.NODE_TYPE_VIRTUAL}",
            transform=_keep_usable,
            name="virtual-nodes",
        )
        self._claims = Informer(
            client,
            resources.PERSISTENT_VOLUME_CLAIMS,
            keep=may_pin,
            transform=shrink_claim,
            name="claims",
        )
        self._volumes = Informer(
            client,
            resources.PERSISTENT_VOLUMES,
            keep=has_hosts,
            transform=shrink_volume,
            name="volumes",
        )
        self._memory = Informer(
            client,
            resources.CONFIG_MAPS,
            namespace=self.freeze_namespace,
            field_selector=f"metadata.name={node_avoidance.CONFIG_MAP}",
            name="frozen-nodes",
        )
        self._memory_key = f"{self.freeze_namespace}/{node_avoidance.CONFIG_MAP}"
        self._frozen: tuple[str, dict[str, node_avoidance.Frozen]] = ("", {})
        self._names: frozenset[str] | None = None
        """Names of the virtual nodes; None: must be read from the cache again."""
        self._informers = (self._nodes, self._claims, self._volumes, self._memory)
        self._nodes.on_change(self._nodes_changed, self._nodes_changed)

    async def run(self) -> None:
        """Run the informers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._informers:
                group.create_task(informer.run())

    def unready(self) -> str | None:
        """Return which caches have not been read yet, for ``/readyz``; None if all have been read."""
        return unsynced(self._informers)

    async def wait(self, seconds: float) -> str:
        """Wait at most ``seconds`` for the caches, and return those that have not been read yet; empty: all were read."""
        if self.unready() is None:
            return ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for informer in self._informers:
                    await informer.wait_synced()
        return self.unready() or ""

    def surroundings(self, pod: Mapping[str, Any], namespace: str) -> Surroundings:
        """Return the state that the mutation of a pod depends on."""
        virtual = self._virtual_nodes()
        return replace(
            self.settings,
            virtual_nodes=virtual,
            namespace=namespace,
            pinned_to=self._pins(pod, namespace, virtual),
            frozen=self._frozen_for(pod, namespace),
            open_nodes=self._open_nodes(),
        )

    def _pins(self, pod: Mapping[str, Any], namespace: str, virtual: Collection[str]) -> list[list[str]]:
        pins = []
        for name in claim_names(pod):
            claim = self._claims.store.get(f"{namespace}/{name}")
            if claim is None:
                continue
            nodes = pinned_to(claim.to_dict(), volume=self._volume, virtual_nodes=virtual)
            if nodes and nodes not in pins:
                pins.append(nodes)
        return pins

    def _volume(self, name: str) -> dict[str, Any] | None:
        volume = self._volumes.store.get(name)
        return volume.to_dict() if volume is not None else None

    def _frozen_for(self, pod: Mapping[str, Any], namespace: str) -> dict[str, datetime]:
        owner = movable.controller(pod["metadata"])
        if owner is None:
            return {}
        key = node_avoidance.owner_key(namespace, str(owner.get("uid", "")))
        _, nodes = self._remembered().get(key, ("", {}))
        return node_avoidance.active(nodes, now=self.now(), freeze_period=self.freeze_period)

    def _open_nodes(self) -> list[Object]:
        return [node for node in self._nodes.store.list() if node.spec]

    def _remembered(self) -> dict[str, node_avoidance.Frozen]:
        memory = self._memory.store.get(self._memory_key)
        if memory is None:
            return {}
        if self._frozen[0] != memory.resource_version:
            self._frozen = (memory.resource_version, node_avoidance.parse_all(memory.field("data")))
        return self._frozen[1]

    def _virtual_nodes(self) -> frozenset[str]:
        if self._names is None:
            self._names = frozenset(node.name for node in self._nodes.store.list())
        return self._names

    def _nodes_changed(self, _node: Object) -> None:
        self._names = None


def _keep_usable(node: Object) -> Object:
    """Return a node with its labels and taints, or with an empty spec and no labels if it is not open."""
    spec = node.spec or {}
    is_deleted = node.metadata.deletion_timestamp is not None
    if not movable.is_open(spec, node.status, is_deleted=is_deleted):
        return node.with_fields(spec={}, status={}).with_only()
    kept = {"isOpen": True, "taints": spec.get("taints") or []}
    return node.with_fields(spec=kept, status={}).with_only(labels=lambda _key: True)


_LONGEST = 253
"""Maximum characters of the name of a volume or node. A tenant can write a longer text, which names nothing."""
_REQUIRED = "required"


def pinned_to(
    claim: Mapping[str, Any],
    *,
    volume: Callable[[str], Mapping[str, Any] | None],
    virtual_nodes: Collection[str],
) -> list[str]:
    """Return the virtual nodes that can reach a claim's volume; empty if the volume is not limited to virtual nodes.

    Args:
        claim: the PersistentVolumeClaim.
        volume: returns the PersistentVolume of a name; None if it does not exist.
        virtual_nodes: names of all virtual nodes.
    """
    name = (claim.get("spec") or {}).get("volumeName")
    if name and (bound := volume(name)) is not None:
        found = _hosts(bound)
        if found:
            return sorted(node for node in found if node in virtual_nodes)
    selected = ((claim.get("metadata") or {}).get("annotations") or {}).get(names.ANNOTATION_SELECTED_NODE)
    return [selected] if selected is not None and selected in virtual_nodes else []


def may_pin(claim: Object) -> bool:
    """Report whether a claim has a volume or a node, so that it may limit its pods; others need not be cached."""
    volume, node = _places(claim)
    return bool(volume or node)


def shrink_claim(claim: Object) -> Object:
    """Return a claim with only the fields that ``pinned_to`` reads, at most a kilobyte."""
    volume, node = _places(claim)
    shrunk = claim.with_fields(spec={"volumeName": volume}, status={})
    return shrunk.with_only(annotations=lambda key: key == names.ANNOTATION_SELECTED_NODE and bool(node))


def has_hosts(volume: Object) -> bool:
    """Report whether a volume is limited to nodes by their hostname; others need not be cached."""
    return bool(_hosts({"spec": volume.spec}))


def shrink_volume(volume: Object) -> Object:
    """Return a volume with only the node affinity that ``pinned_to`` reads."""
    values = sorted(_hosts({"spec": volume.spec}))
    expression = {"key": names.LABEL_HOSTNAME, "operator": "In", "values": values}
    affinity = {_REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
    shrunk = volume.with_fields(spec={"nodeAffinity": affinity}, status={})
    return shrunk.with_only()


def _places(claim: Object) -> tuple[str, str]:
    """Return the names of a claim's volume and of its selected node; empty: none, or no valid name."""
    volume = (claim.spec or {}).get("volumeName") or ""
    node = claim.annotations.get(names.ANNOTATION_SELECTED_NODE, "")
    return volume if len(volume) <= _LONGEST else "", node if len(node) <= _LONGEST else ""


def _hosts(volume: Mapping[str, Any]) -> set[str]:
    affinity = ((volume.get("spec") or {}).get("nodeAffinity") or {}).get(_REQUIRED) or {}
    return {
        value
        for term in affinity.get("nodeSelectorTerms") or ()
        for expression in term.get("matchExpressions") or ()
        if expression.get("key") == names.LABEL_HOSTNAME and expression.get("operator") == "In"
        for value in expression.get("values") or ()
    }
