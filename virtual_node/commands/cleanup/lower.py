"""Removes from a lower cluster what was created for an upper cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass

from clusterset.model import names
from clusterset.model.moving import movable
from clusterset.model.namespace_map import NamespaceConfig, NamespaceMap
from clusterset.model.pod.conditions import is_finished
from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import Conflict, Forbidden, NotFound
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from virtual_node.controllers.base.preconditions import patch_only
from virtual_node.controllers.namespaces import Leftovers, UnknownError
from virtual_node.translate import services
from virtual_node.translate.kinds import KINDS, SERVICES, Kind
from virtual_node.translate.objects.namespaces import Places, upper_name
from virtual_node.translate.storage.shared import is_guest

_POLL = 0.5


@dataclass(eq=False, repr=False)
class LowerCleanup:
    """Removes our objects from a lower cluster: only those with our ownership labels, each by its UID."""

    client: Client
    """Client of the lower cluster."""
    _: KW_ONLY
    cluster_id: str
    """Identity of the upper cluster."""
    nodes: Sequence[str]
    """Names of our virtual nodes for this lower cluster; another installation may have others."""
    namespaces: NamespaceConfig
    """The lower namespaces that the configuration maps and adopts."""
    upper_claims: Collection[str]
    """UIDs of the claims that still exist in the upper cluster."""
    say: Callable[[str], None]
    """Called with a line for each step."""

    def __post_init__(self) -> None:
        """Create the cleanup of one lower cluster."""
        self._marked = f"{names.LABEL_UPPER_CLUSTER}={self.cluster_id}"
        """Label selector of objects that were created for the upper cluster."""
        self._nodes = frozenset(self.nodes)
        mapping = NamespaceMap(self.namespaces.prefix, self.namespaces.map)
        self._places = Places(self.cluster_id, mapping, self.namespaces.adopt)
        self._misplaced: set[str] = set()
        """Namespaces that are not ours and have objects with our label."""

    async def run(self) -> bool:
        """Remove pods, then their dependencies, then empty namespaces; return whether a pod still uses our claims.

        Raises:
            ApiError: the cluster does not answer, or refuses a request.
        """
        for made in (await self.client.list(resources.NAMESPACES, label_selector=self._marked)).items:
            self._places.note(made)
        while pods := await self._ours(resources.PODS):
            for pod in pods:
                if not pod.metadata.deletion_timestamp:
                    await self._delete(resources.PODS, pod)
            await asyncio.sleep(_POLL)
        shared = await self._shared_namespaces()
        for namespace in sorted(shared):
            self._say(
                f"namespace {namespace} has pods of other virtual nodes; objects that they may use are kept"
            )
        kept = await self._always_wanted()
        counts = {}
        for kind in KINDS:
            # The lower cluster may lack the API, and the account has no right to read it if none was copied.
            is_optional = kind.setting or kind.is_optional
            with contextlib.suppress(NotFound, Forbidden) if is_optional else contextlib.nullcontext():
                counts[kind.kind] = await self._remove_all(kind, shared, kept)
        removed = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        if removed:
            self._say(f"removed {removed}")
        await self._guest_volumes()
        await self._claims()
        await self._namespaces({namespace for namespace, _ in kept})
        return await self._uses_volumes()

    def _say(self, line: str) -> None:
        self.say(f"{self.client.cluster}: {line}")

    async def _always_wanted(self) -> frozenset[tuple[str, str]]:
        """Return namespace and name of our Services that another installation's ``services.always`` also wants.

        Remove our nodes' annotations from these Services.
        """
        kept = set()
        for service in await self._ours(resources.SERVICES):
            wanted = services.wanted_by(service.annotations)
            others = ", ".join(sorted(wanted - self._nodes))
            if not others:
                continue
            kept.add((service.namespace, service.name))
            self._say(f"Service {service.key} is kept: {others} always needs it")
            if own := wanted & self._nodes:
                marks = {services.always_mark(node): None for node in own}
                patch = {"metadata": {"annotations": marks}}
                await patch_only(self.client, resources.SERVICES, service, patch)
        return frozenset(kept)

    async def _remove_all(
        self, kind: Kind, shared: Collection[str], kept: Collection[tuple[str, str]]
    ) -> int:
        found = [
            item
            for item in await self._ours(kind.resource)
            if (item.namespace not in shared or _is_of_one_pod(item))
            and (item.namespace, _service(kind, item)) not in kept
        ]
        for each in found:
            await self._delete(kind.resource, each)
        return len(found)

    async def _shared_namespaces(self) -> frozenset[str]:
        """Return namespaces with pods of another installation in the same upper cluster; these may use our copies."""
        pods = await self._marked_objects(resources.PODS)
        return frozenset(
            pod.namespace for pod in pods if pod.labels.get(names.LABEL_NODE, "") not in self._nodes
        )

    async def _guest_volumes(self) -> None:
        """Remove claims and volumes with data in another lower cluster; the data stays (reclaim policy Retain)."""
        for resource in (resources.PERSISTENT_VOLUME_CLAIMS, resources.PERSISTENT_VOLUMES):
            for each in await self._ours(resource):
                if is_guest(each, self.cluster_id):
                    self._say(f"removed {resource.kind} {each.key}; its data is in another cluster")
                    await self._delete(resource, each)

    async def _claims(self) -> None:
        for claim in await self._ours(resources.PERSISTENT_VOLUME_CLAIMS):
            if is_guest(claim, self.cluster_id):
                continue
            if claim.labels.get(names.LABEL_UPPER_UID) in self.upper_claims:
                self._say(f"claim {claim.key} is kept: its upper claim exists")
            elif not claim.metadata.deletion_timestamp:
                self._say(f"claim {claim.key} is kept: it was kept before")

    async def _uses_volumes(self) -> bool:
        """Report whether any unfinished pod, also an unmanaged one, uses a claim created for this upper cluster."""
        claims = await self._marked_objects(resources.PERSISTENT_VOLUME_CLAIMS)
        found = {claim.key for claim in claims}
        for namespace in sorted({claim.namespace for claim in claims}):
            for pod in (await self.client.list(resources.PODS, namespace=namespace)).items:
                used = {f"{namespace}/{name}" for name in movable.claims(pod.spec or {})}
                if used & found and not is_finished(pod.status):
                    return True
        return False

    async def _namespaces(self, kept: Collection[str]) -> None:
        """Remove namespaces that we created and that contain no objects of other owners.

        Args:
            kept: namespaces with an object that is kept.
        """
        leftovers = Leftovers(self.client, self.cluster_id, self.namespaces.generated)
        for namespace in await self._ours(resources.NAMESPACES):
            if namespace.metadata.deletion_timestamp or namespace.name in kept:
                continue
            try:
                found = await leftovers.find(namespace.name, upper_name=upper_name(namespace))
            except UnknownError as error:
                self._say(f"namespace {namespace.name} is kept: {error}")
                continue
            if found.others or found.pods:
                what = ", ".join(found.others[:3]) or "pods of other virtual nodes"
                self._say(f"namespace {namespace.name} is kept: it has {what}")
                continue
            await self._delete(resources.NAMESPACES, namespace)
            self._say(f"namespace {namespace.name} removed")

    async def _ours(self, resource: Resource) -> list[Object]:
        found = await self._marked_objects(resource)
        # An object with another virtual node's label belongs to another installation in the same upper cluster.
        return [each for each in found if each.labels.get(names.LABEL_NODE, "") in {"", *self._nodes}]

    async def _marked_objects(self, resource: Resource) -> list[Object]:
        """Return the objects with our label, without those in namespaces that are not ours, which are reported once."""
        found = []
        for each in (await self.client.list(resource, label_selector=self._marked)).items:
            if not each.namespace or self._places.is_in_place(each):
                found.append(each)
            elif each.namespace not in self._misplaced:
                self._misplaced.add(each.namespace)
                self._say(
                    f"objects with label {self._marked} in namespace {each.namespace} are kept: virtual-node did not "
                    "create this namespace, and namespaces.adopt does not allow it"
                )
        return found

    async def _delete(self, resource: Resource, found: Object) -> None:
        with contextlib.suppress(NotFound, Conflict):
            await self.client.delete(resource, found.name, namespace=found.namespace or None, uid=found.uid)


def _is_of_one_pod(one: Object) -> bool:
    """Report whether an object is a Secret with the tokens of one pod, so that no other pod can use it."""
    return names.LABEL_TOKEN_OF in one.labels and names.LABEL_NODE in one.labels


def _service(kind: Kind, one: Object) -> str:
    """Return the name of a Service, or of the Service that an object belongs to; empty: none."""
    if kind.service_of is None:
        return one.name if kind is SERVICES else ""
    return kind.service_of(one.name, one.labels)
