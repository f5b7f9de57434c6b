"""Removes what virtual nodes left on claims and volumes of the upper cluster."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import Conflict, NotFound
from controller_runtime.objects import Object
from virtual_node.commands.cleanup.deleter import Deleter
from virtual_node.controllers.base.preconditions import patch_only
from virtual_node.controllers.volumes.pv_controller import CSI_DRIVERS
from virtual_node.translate.storage import pv, shared
from virtual_node.translate.storage import pvc as claims

_SELECTED_NODE = "volume.kubernetes.io/selected-node"


@dataclass(frozen=True, slots=True)
class VolumeCleanup:
    """The cleanup steps of claims and volumes in the upper cluster. Each can be repeated safely.

    The fields other than ``deleter`` are arguments of ``UpperCleanup``.
    """

    client: Client
    deleter: Deleter
    nodes: Collection[str]
    clusters: Collection[str]
    say: Callable[[str], None]

    async def claims(self) -> frozenset[str]:
        """Return the UIDs of all claims in the upper cluster; their data in lower clusters is kept."""
        listed = await self.client.list(resources.PERSISTENT_VOLUME_CLAIMS)
        return frozenset(claim.uid for claim in listed.items)

    async def remove_claim_finalizers(self) -> None:
        """Remove our finalizer from claims that are bound to our mirror volumes or have one of our nodes selected."""
        volumes = {volume.name for volume in await self._mirrors()}
        for claim in (await self.client.list(resources.PERSISTENT_VOLUME_CLAIMS)).items:
            finalizers = claim.metadata.finalizers
            node = claim.annotations.get(_SELECTED_NODE, "")
            volume = (claim.spec or {}).get("volumeName", "")
            if claims.FINALIZER not in finalizers or (volume not in volumes and node not in self.nodes):
                continue
            kept = [one for one in finalizers if one != claims.FINALIZER]
            patch = {
                "metadata": {"uid": claim.uid, "resourceVersion": claim.resource_version, "finalizers": kept}
            }
            try:
                await self.client.patch(
                    resources.PERSISTENT_VOLUME_CLAIMS, claim.name, patch, namespace=claim.namespace
                )
            except (NotFound, Conflict) as error:
                self.say(f"claim {claim.key}: finalizer not removed: {error}")
            else:
                self.say(
                    f"claim {claim.key} can be deleted now without effect on its data in the lower cluster"
                )

    async def remove_mirrors(self) -> None:
        """Remove mirror volumes that no claim is bound to; the lower volumes are kept."""
        for volume in await self._mirrors():
            if (volume.status or {}).get("phase") == "Bound":
                continue
            await self.deleter.delete(resources.PERSISTENT_VOLUMES, volume)
            self.say(f"volume {volume.name} removed; the lower volume is kept")

    async def remove_driver(self) -> None:
        """Remove the CSIDriver if no mirror volume is left."""
        if await self._mirrors():
            return
        await self.deleter.delete_named(CSI_DRIVERS, pv.DRIVER)

    async def release(self, clusters: Collection[str]) -> None:
        """Record on volumes of shared storage that no pod in these lower clusters uses them.

        Otherwise a single-writer volume would be refused to all other lower clusters for ever.
        """
        mirrors = await self.client.list(resources.PERSISTENT_VOLUMES, label_selector=shared.LABEL_SHARED)
        for mirror in mirrors.items:
            body = mirror.to_dict()
            patch = shared.use_patch(body, clusters, uses=False) if shared.shared_name(body) else None
            if patch is None:
                continue
            try:
                await patch_only(
                    self.client,
                    resources.PERSISTENT_VOLUMES,
                    mirror,
                    patch,
                    resource_version=mirror.resource_version,
                )
            except (NotFound, Conflict) as error:
                self.say(f"volume {mirror.name}: the record of its use is not updated: {error}")
            else:
                self.say(f"volume {mirror.name} can be used in other lower clusters now")

    async def _mirrors(self) -> list[Object]:
        listed = await self.client.list(resources.PERSISTENT_VOLUMES)
        return [
            volume
            for volume in listed.items
            if ((volume.spec or {}).get("csi") or {}).get("driver") == pv.DRIVER
            and volume.labels.get(names.LABEL_LOWER_CLUSTER) in self.clusters
        ]
