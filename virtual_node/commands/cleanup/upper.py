"""Removes virtual nodes, and what belongs to them, from the upper cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Unpack

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.apimachinery import readable
from controller_runtime.client.client import Client, find
from controller_runtime.client.collection import ListOptions
from controller_runtime.errors import ApiError, Conflict, Forbidden, NotFound
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from virtual_node.controllers.base.preconditions import patch_only
from virtual_node.controllers.volumes.pv_controller import CSI_DRIVERS
from virtual_node.examine.objects import is_virtual
from virtual_node.examine.reader import VIRTUAL_NODES
from virtual_node.rights.operator import MEMORY
from virtual_node.translate.storage import pv, shared
from virtual_node.translate.storage import pvc as claims

_POLL = 0.5
_NO_DAEMONS = ("uninstall", "test", "inspection")
"""Values of the component label on pods that are not daemons."""
_WEBHOOKS = (resources.MUTATING_WEBHOOK_CONFIGURATIONS, resources.VALIDATING_WEBHOOK_CONFIGURATIONS)


class UpperCleanup:
    """The cleanup steps of the upper cluster. Each can be repeated safely."""

    def __init__(
        self, client: Client, *, nodes: Sequence[str], clusters: Collection[str], say: Callable[[str], None]
    ) -> None:
        """Create the cleanup of the upper cluster.

        Args:
            client: client of the upper cluster.
            nodes: names of our virtual nodes.
            clusters: names of our lower clusters.
            say: called with a line for each step.
        """
        self._client = client
        self._nodes = frozenset(nodes)
        self._say = say
        self._real: frozenset[str] | None = None
        self._deleter = Deleter(client, say)
        self.volumes = VolumeCleanup(client, self._deleter, self._nodes, frozenset(clusters), say)

    async def remove_webhook(self, name: str) -> None:
        """Delete the webhook configurations of this name; empty: there are none."""
        for resource in _WEBHOOKS if name else ():
            await self._deleter.delete_named(resource, name)

    async def cordon(self) -> None:
        """Cordon our virtual nodes."""
        for node in await self._our_nodes():
            if not (node.to_dict().get("spec") or {}).get("unschedulable"):
                await self._client.patch(resources.NODES, node.name, {"spec": {"unschedulable": True}})
                self._say(f"node {node.name} cordoned")

    async def delete_pods(self, *, deadline: float) -> None:
        """Delete the pods of our virtual nodes and wait until they are gone; after the deadline, force deletion.

        Args:
            deadline: the event loop's time after which remaining pods are force-deleted in the upper cluster.
        """
        known: set[str] | None = None
        while found := await self._pods(known):
            if known is None:
                known = {pod.uid for pod in found}
                self._say(f"ending {readable.count(len(found), 'pod')}, each with its own grace period")
            for pod in found:
                if not pod.metadata.deletion_timestamp:
                    await self._deleter.delete(resources.PODS, pod)
            if asyncio.get_running_loop().time() > deadline:
                for pod in found:
                    self._say(f"pod {pod.key} did not end in time; removed from the upper cluster")
                    await self._deleter.delete(resources.PODS, pod, grace=0)
                return
            await asyncio.sleep(_POLL)

    async def stop_daemons(self, namespace: str, selector: str, *, seconds: float) -> None:
        """Scale our daemons to zero and wait until their pods are gone, because they would undo the cleanup.

        Args:
            namespace: namespace of the daemons.
            selector: label selector of the daemons' Deployments.
            seconds: how long to wait; 0: do not wait.
        """
        chosen = f"{selector},app.kubernetes.io/component notin ({','.join(_NO_DAEMONS)})"
        for deployment in await self._list(resources.DEPLOYMENTS, namespace=namespace, label_selector=chosen):
            name, patch = deployment.name, {"spec": {"replicas": 0}}
            await self._client.patch(
                resources.DEPLOYMENTS, name, patch, namespace=namespace, subresource="scale"
            )
            self._say(f"deployment {name} stopped")
        deadline = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < deadline:
            if not await self._list(resources.PODS, namespace=namespace, label_selector=chosen):
                return
            await asyncio.sleep(_POLL)
        if seconds:
            self._say(f"some pods in {namespace} still drain their streams; continuing")

    async def delete_waiting_pods(self, scheduler: str) -> None:
        """Delete pods that wait for our scheduler, so that their controllers create new ones.

        No other scheduler would place these pods. Pods without a controller are only reported.

        Args:
            scheduler: name of our scheduler; empty: there is none. Remove the webhook first, because it sets
                this name on new pods.
        """
        if not scheduler:
            return
        waiting = await self._list(
            resources.PODS,
            label_selector=f"{names.LABEL_VIRTUAL_POD}=true",
            field_selector=f"spec.schedulerName={scheduler},spec.nodeName=",
        )
        for pod in waiting:
            if pod.metadata.deletion_timestamp:
                continue
            if any(owner.get("controller") for owner in pod.metadata.owner_references):
                await self._deleter.delete(resources.PODS, pod)
                self._say(f"pod {pod.key} waited for {scheduler}; its controller makes a new one")
            else:
                self._say(f"pod {pod.key} waits for {scheduler}, which is removed: create the pod again")

    async def remove(
        self,
        *,
        namespace: str,
        leases: Sequence[str],
        secrets: Sequence[str],
        elections: Sequence[str] = (),
        driver: bool = True,
    ) -> None:
        """Remove nodes and what belongs to them, such as claim finalizers, unbound mirror volumes and named Leases.

        Args:
            namespace: where our components run; empty: not in this cluster.
            leases: names of Leases in that namespace.
            secrets: names of Secrets in that namespace.
            elections: names of elections of mode Sharded, whose Leases in that namespace are removed.
            driver: whether to remove the CSIDriver with the last virtual node.
        """
        for node in await self._our_nodes():
            await self._deleter.delete(resources.NODES, node)
            self._say(f"node {node.name} removed")
        await self.volumes.remove_claim_finalizers()
        await self.volumes.remove_mirrors()
        if not await self._list(resources.NODES, label_selector=VIRTUAL_NODES):
            if driver:
                await self.volumes.remove_driver()
            if namespace:
                # While another installation works, its descheduler may still re-create a bare pod from such a
                # ControllerRevision.
                records, selector = resources.CONTROLLER_REVISIONS, names.LABEL_DESCHEDULER_RECORD
                for record in await self._list(records, namespace=namespace, label_selector=selector):
                    await self._deleter.delete(records, record)
        if namespace:
            wanted = [(resources.LEASES, name) for name in leases]
            wanted += [(resources.SECRETS, name) for name in secrets]
            wanted += [(resources.CONFIG_MAPS, name) for name in MEMORY]
            for resource, name in wanted:
                await self._deleter.delete_named(resource, name, namespace=namespace)
        for election in elections if namespace else ():
            selector = f"{names.LABEL_ELECTION}={election}"
            for lease in await self._list(resources.LEASES, namespace=namespace, label_selector=selector):
                await self._deleter.delete(resources.LEASES, lease)

    async def _list(self, resource: Resource, **selection: Unpack[ListOptions]) -> list[Object]:
        return (await self._client.list(resource, **selection)).items

    async def _our_nodes(self) -> list[Object]:
        listed = await self._list(resources.NODES, label_selector=VIRTUAL_NODES)
        return [node for node in listed if node.name in self._nodes]

    async def _pods(self, known: Collection[str] | None) -> list[Object]:
        """Return the pods of our virtual nodes that must be gone before the cleanup continues.

        Pods that a DaemonSet created after the first list (``known``) do not count, because a DaemonSet also
        re-creates its pods on cordoned nodes. They are deleted when the node is gone.
        """
        found: list[Object] = []
        for node in sorted(self._nodes - await self._real_nodes()):
            found += await self._list(resources.PODS, field_selector=f"spec.nodeName={node}")
        return [pod for pod in found if known is None or pod.uid in known or not _of_daemon_set(pod)]

    async def _real_nodes(self) -> frozenset[str]:
        """Return which names of our virtual nodes belong to real nodes.

        The daemon refuses such names, so the pods on these nodes are not ours.
        """
        if self._real is None:
            real = set()
            for name in sorted(self._nodes):
                node = await find(self._client, resources.NODES, name)
                if node is not None and not is_virtual(node):
                    self._say(f"node {name} is not virtual; its pods are not changed")
                    real.add(name)
            self._real = frozenset(real)
        return self._real


def _of_daemon_set(pod: Object) -> bool:
    return any(owner.get("kind") == "DaemonSet" for owner in pod.metadata.owner_references)


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
            node = claim.annotations.get(names.ANNOTATION_SELECTED_NODE, "")
            volume = (claim.spec or {}).get("volumeName", "")
            if claims.FINALIZER not in finalizers or (volume not in volumes and node not in self.nodes):
                continue
            kept = [finalizer for finalizer in finalizers if finalizer != claims.FINALIZER]
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


class Deleter:
    """Deletes objects of one cluster."""

    def __init__(self, client: Client, say: Callable[[str], None]) -> None:
        """Create without any IO; ``say`` is called with a line for each result."""
        self._client = client
        self._say = say
        self._reported: set[str] = set()

    async def delete_named(self, resource: Resource, name: str, *, namespace: str = "") -> None:
        """Delete an object by its name, which only our installation uses; ignore a missing object."""
        try:
            await self._client.delete(resource, name, namespace=namespace or None)
        except NotFound:
            return
        self._say(f"{resource.kind} {namespace}{'/' if namespace else ''}{name} removed")

    async def delete(self, resource: Resource, found: Object, *, grace: int | None = None) -> None:
        """Delete the object with this UID, if it exists; report server errors and Forbidden once, raise others."""
        try:
            await self._client.delete(
                resource,
                found.name,
                namespace=found.namespace or None,
                uid=found.uid,
                grace_period_seconds=grace,
            )
        except (NotFound, Conflict):
            return
        except ApiError as error:
            if error.code < 500 and not isinstance(error, Forbidden):
                raise
            line = f"{resource.kind} {found.key}: {error}"
            if line not in self._reported:  # Deletion is retried, so each error repeats.
                self._reported.add(line)
                self._say(line)
