"""Deletes pods in both clusters in the right order: the upper pod is deleted after the lower pod has terminated.

A pod is never deleted because of a cache alone, which may be behind: it is read live from the API servers.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import claim_names, is_finished
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client, PatchType, find, find_object
from controller_runtime.errors import ApiError, Conflict, NotFound
from controller_runtime.objects import Object
from controller_runtime.workqueue.controller import Result
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import delete_exactly, delete_only, patch_only
from virtual_node.controllers.pods.record import PodRecord
from virtual_node.controllers.pods.status_writer import StatusWriter
from virtual_node.controllers.pods.wait_reporter import WaitReporter
from virtual_node.translate.base import ownership
from virtual_node.translate.base.ownership import mirrored_as

_NODE_GIVEN_UP = "LowerNodeGivenUp"


@dataclass(eq=False, repr=False)
class PodRemover:
    """Deletes lower pods whose upper pod is deleted or gone, or that have no room, and upper pods whose lower pod is gone."""

    context: ClusterContext
    status: StatusWriter
    waits: WaitReporter

    async def delete_orphan(self, lower: Object, *, is_certain: bool) -> Result | None:
        """Delete the lower pod of an upper pod that is gone, with the lower pod's own grace period.

        Returns a requeue if the upper pod exists and the cache does not show it yet.

        Args:
            lower: the lower pod.
            is_certain: the upper pod is gone. A pod that the cache showed and no longer shows is gone, so deleting
                thousands of a Job's finished pods needs no live reads.
        """
        if not is_certain and await has_upper_pod(self.context, lower):
            return Result(requeue_after=BEHIND)
        grace = self._grace(lower, None)
        await delete_only(self.context.lower, resources.PODS, lower, grace_period_seconds=grace)
        return None

    async def delete_stripped(self, last: Object | None) -> None:
        """Delete the lower pod of an upper pod that is gone, if it left our cache because its labels were removed."""
        if last is not None and (live := await self._stripped(last)):
            await delete_only(self.context.lower, resources.PODS, live)

    async def end_lower(self, upper: Object, lower: Object, record: PodRecord) -> Result | None:
        """Delete the lower pod of an upper pod that is being deleted, and mirror its status."""
        grace = self._grace(lower, upper.metadata.deletion_grace_period_seconds)
        uid, known = record.deletion
        if lower.metadata.deletion_timestamp is not None:
            known = lower.metadata.deletion_grace_period_seconds
        elif uid != lower.uid:
            known = None
        shortened = grace is not None and known is not None and grace < known
        if known is None or shortened:
            try:
                await delete_only(self.context.lower, resources.PODS, lower, grace_period_seconds=grace)
            except ApiError as error:
                self.waits.deletion_refused(upper, lower, record.waiting, error)
                raise
            record.deletion = (lower.uid, grace)
        return await self.status.mirror(upper, lower, record)

    async def end_upper(self, upper: Object, record: PodRecord) -> Result | None:
        """Delete the upper pod without grace period, unless a live read still finds its lower pod."""
        known = record.lower
        made = known.uid or mirrored_as(upper.annotations.get(names.ANNOTATION_LOWER_UID), upper.uid)
        live = None
        if (record.creation.sent or made) and not known.observed:
            # The cache has never shown a lower pod, but one may have been created a moment ago, or have lost
            # its labels while we were stopped. The upper name must stay in use until that pod has terminated.
            live = await lower_pod_of(self.context, upper, known_uid=known.uid)
        if live is None and known.last is not None:
            live = await self._stripped(known.last)
        if live is not None:
            await self.end_lower(upper, live, record)
            return Result(requeue_after=BEHIND)
        # After our final delete request was accepted, finalizers may keep the pod for long.
        is_kept = upper.metadata.deletion_grace_period_seconds == 0
        waiting = None
        if known.last is not None:
            waiting = await self.status.mirror(upper, known.last, record, is_last=not is_kept)
        if upper.metadata.finalizers and not _has_ended(upper) and not _has_ended(known.last):
            # The finalizer's owner still reads the result (a Job counts its pods by phase). A kubelet sets
            # a terminal phase on every pod, so set one if the lower cluster did not.
            await self.status.lost(upper, reason="Deleted", message="The pod was deleted")
        if is_kept:
            return waiting
        await delete_only(self.context.upper, resources.PODS, upper, grace_period_seconds=0)
        return None

    async def delete_upper(self, upper: Object, lower: Object) -> bool:
        """Delete the upper pod of a lower pod that is being deleted; return False if that one has just ended, unnoticed.

        It gets the grace period of the lower pod, which would otherwise get another one.
        """
        below = await itself(self.context.lower, lower)
        if below is None or _has_ended(below):
            return False
        # With 0 s, the API server would remove the upper pod before the lower pod has ended.
        grace = max(1, lower.metadata.deletion_grace_period_seconds or 0)
        await delete_only(self.context.upper, resources.PODS, upper, grace_period_seconds=grace)
        return True

    async def delete_outlived(self, upper: Object, lower: Object) -> Result:
        """Delete the running lower pod of a finished upper pod, with the lower pod's own grace period.

        A kubelet, too, stops pods that are in a terminal phase in the API (pod_workers.go, UpdatePod). A lower
        pod can outlive its upper pod if a killed process's create request arrives after the pod was reported lost.
        Both clusters are read live, because a lower pod that has just finished looks the same in a cache that
        is behind.
        """
        below = await lower_named_as(self.context, upper)
        if below is not None and below.uid == lower.uid and not _has_ended(below):
            above = await itself(self.context.upper, upper)
            if _has_ended(above):
                self.context.log.warning(
                    "lower pod of a finished pod is deleted", pod=lower.key, uid=upper.uid
                )
                await delete_only(self.context.lower, resources.PODS, lower)
        return Result(requeue_after=BEHIND)

    async def reject(self, upper: Object, lower: Object, reason: str, message: str) -> Result | None:
        """Delete a lower pod that its cluster cannot schedule, and fail the upper pod.

        Returns a requeue if the lower pod has changed meanwhile: it may have a node now.
        """
        try:
            await delete_exactly(self.context.lower, resources.PODS, lower, is_unchanged=True)
        except Conflict:
            return Result(requeue_after=BEHIND)
        except NotFound:
            return None  # its delete event requeues the pod
        await self.status.lost(upper, reason=reason, message=message)
        self.context.warn(upper, reason, f"Lower cluster {self.context.name} has no room: {message}")
        return None

    async def give_up_node(self, upper: Object, lower: Object) -> bool:
        """Delete a lower pod that does not fit on the node that it requires; return False if it has changed meanwhile.

        The multi-scheduler reserves a lower node for a pod, and the lower pod requires this node, because the lower
        scheduler may otherwise use room that is promised to another pod. The node may lose the room: it is cordoned or
        deleted, or a lower user creates a pod there. Then the lower pod is replaced by one without the requirement,
        because a lower pod's affinity cannot be changed.

        The upper pod is changed first: it loses the mark that it has a lower pod, without which a missing lower pod is
        created instead of being reported as lost. So a process that ends between two requests leaves nothing that the
        next one cannot finish.
        """
        node = lower.annotations[names.ANNOTATION_REQUIRED_NODE]
        try:
            if upper.annotations.get(
                names.ANNOTATION_REQUIRED_NODE
            ):  # otherwise an earlier attempt has done it
                await self._forget_node(upper)
            with contextlib.suppress(NotFound):
                await delete_exactly(self.context.lower, resources.PODS, lower, is_unchanged=True)
        except Conflict:
            return False
        message = f"Node {node} of lower cluster {self.context.name} has no room any more; its scheduler chooses another node"
        self.context.warn(upper, _NODE_GIVEN_UP, message)
        self.context.log.info("required lower node given up", pod=upper.key, uid=upper.uid, node=node)
        return True

    async def _forget_node(self, upper: Object) -> None:
        """Remove the required node, and the mark of a lower pod, from an upper pod."""
        annotations: dict[str, Any] = {names.ANNOTATION_REQUIRED_NODE: "", names.ANNOTATION_LOWER_UID: None}
        await patch_only(
            self.context.upper,
            resources.PODS,
            upper,
            {"metadata": {"annotations": annotations}},
            resource_version=upper.resource_version,
            subresource="status",
            patch_type=PatchType.STRATEGIC,
        )

    async def _stripped(self, last: Object) -> Object | None:
        """Return the live lower pod if it left our cache because its labels were removed; None: gone or deleting."""
        if last.metadata.deletion_timestamp is not None:
            return None
        return await itself(self.context.lower, last)

    def _grace(self, lower: Object, grace: int | None) -> int | None:
        """Return ``grace``; for a pod with claims, if this cluster has shared storage, at least 1 s.

        With 0 s, the API server removes the pod immediately, and its containers may still write to the volumes.
        """
        spec = lower.spec or {}
        is_shared = self.context.config.volumes.shared
        if not is_shared or not claim_names({"metadata": {"name": lower.name}, "spec": spec}):
            return grace
        wanted = spec.get("terminationGracePeriodSeconds", 30) if grace is None else grace
        return wanted if wanted > 0 else 1


def _has_ended(pod: Object | None) -> bool:
    return pod is not None and is_finished(pod.status)


BEHIND = 5.0
"""Seconds until a requeue while a cache is behind; normally the missing event requeues the pod earlier."""


async def lower_named_as(context: ClusterContext, upper: Object) -> Object | None:
    """Return the lower pod that has an upper pod's name, owned or unmanaged; None: there is none."""
    namespace = context.lower_namespace(upper.namespace)
    return await find_object(context.lower, resources.PODS, upper.name, namespace=namespace)


async def lower_pod_of(context: ClusterContext, upper: Object, *, known_uid: str) -> Object | None:
    """Return the lower pod of an upper pod's name if it was created for the upper pod, as ``is_lower_pod_of``."""
    live = await lower_named_as(context, upper)
    return live if live is not None and is_lower_pod_of(context, upper, live, known_uid=known_uid) else None


def is_lower_pod_of(context: ClusterContext, upper: Object, live: Object, *, known_uid: str) -> bool:
    """Report whether a pod read from the lower cluster was created for an upper pod.

    Args:
        context: the two clusters.
        upper: the upper pod.
        live: the lower pod.
        known_uid: uid of the lower pod that this process created or saw with our labels; empty: none. Never
            take it from the upper pod, because users can write there.
    """
    if live.uid == known_uid or ownership.is_confirmed(live, upper):
        return True
    origin = {"namespace": upper.namespace, "name": upper.name, "uid": upper.uid}
    is_in_place = context.places.stands_for(live.namespace, upper.namespace)
    return is_in_place and ownership.is_made_for(live, context.cluster_id, origin)


async def itself(cluster: Client, pod: Object) -> Object | None:
    """Return the current state of a pod; None: the pod of that uid is gone."""
    live = await find_object(cluster, resources.PODS, pod.name, namespace=pod.namespace)
    return live if live is not None and live.uid == pod.uid else None


async def lower_node(context: ClusterContext, nodes: Informer, name: str) -> Object | None:
    """Return a lower node; None: it does not exist. Reads live if the cache does not have it and is not current."""
    node = nodes.store.get(name)
    if node is not None or (nodes.has_synced and nodes.last_error is None):
        return node
    return await find_object(context.lower, resources.NODES, name)


async def upper_exists(context: ClusterContext, uid: str, lower: Object) -> bool:
    """Report whether the upper cluster has the pod of that uid, under the name that a lower pod was created with."""
    upper = await _upper_named_as(context, lower)
    return upper is not None and upper["metadata"]["uid"] == uid


async def has_upper_pod(context: ClusterContext, lower: Object) -> bool:
    """Report whether the upper cluster has the pod that a lower pod was created for. Reads live.

    The uid label or the ``made-for`` annotation suffices, so changing only one does not get the pod deleted.
    """
    upper = await _upper_named_as(context, lower)
    return upper is not None and ownership.is_made_for(lower, context.cluster_id, upper["metadata"])


async def _upper_named_as(context: ClusterContext, lower: Object) -> dict[str, Any] | None:
    return await find(context.upper, resources.PODS, lower.name, namespace=ownership.upper_namespace(lower))
