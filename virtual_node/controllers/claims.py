"""Claims follow the pods that name them: made below, bound above when they are bound below, never lost by accident.

A claim is this cluster's business when the scheduler has selected one of its virtual nodes for it, when it is bound
to a mirror of one of its volumes, or when a pod bound here names it while it has no volume yet. From then on it carries
our finalizer above, so that its deletion is something we witness: only then is the lower claim deleted, and the lower
volume's reclaim policy decides about the data. An upper claim that vanishes without that (a restored etcd, a finalizer
removed by hand) leaves the lower claim where it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from controller_runtime.api import names
from controller_runtime.backoff import ExponentialBackoff
from controller_runtime.controller import Controller, Result
from controller_runtime.errors import Conflict, Forbidden, Invalid
from controller_runtime.objects import Object
from controller_runtime.work_queue import WorkQueue
from virtual_node import metrics
from virtual_node.controllers.claim_requests import ClaimRequests
from virtual_node.controllers.context import ClusterContext
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.controllers.problems import Problem
from virtual_node.controllers.volume_binder import VolumeBinder
from virtual_node.controllers.volume_caches import VolumeCaches
from virtual_node.translate import claims as translate
from virtual_node.translate import ownership, persistent_volumes, volumes

_BINDING_RETRY = 5.0
"""Seconds between two looks at a claim that is being bound; its events normally come first."""
_REFUSED_RETRY = 30.0


class ClaimController:
    """One lower claim per upper claim that is this cluster's business."""

    def __init__(
        self,
        context: ClusterContext,
        caches: VolumeCaches,
        *,
        namespaces: Namespaces,
        binder: VolumeBinder,
        wake: Callable[[str], None],
    ) -> None:
        """Set up.

        Args:
            context: the two clusters.
            caches: claims and volumes.
            namespaces: makes lower namespaces.
            binder: has lower volumes bound before the pod comes.
            wake: called with the uid of an upper pod whose claim has changed.
        """
        self._context = context
        self._caches = caches
        self._binder = binder
        self._wake = wake
        self._requests = ClaimRequests(context, namespaces=namespaces)
        self._config = context.config.volumes
        self._users: defaultdict[str, set[str]] = defaultdict(set)
        self._needs: dict[str, list[str]] = {}
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._told: dict[str, str] = {}
        self._orphans: set[str] = set()
        queue: WorkQueue[str] = WorkQueue(
            f"claims-{context.name}", rate_limiter=ExponentialBackoff(0.5, 60.0)
        )
        self.controller: Controller[str] = Controller(
            f"claims-{context.name}", self.reconcile, workers=4, queue=queue
        )
        self._watch()

    async def run(self) -> None:
        """Follow changes until cancelled."""
        for informer in self._caches.all():
            await informer.wait_synced()
        await self.controller.run()

    async def ensure(self, upper: Object, upper_pod: dict[str, Any]) -> list[Problem]:
        """Have the claims of a pod there below; returns what keeps the pod from starting. It is woken on changes."""
        keys = [f"{upper.namespace}/{name}" for name in volumes.claim_names(upper_pod)]
        self._needs[upper.uid] = keys
        problems = []
        for key in keys:
            self._users[key].add(upper.uid)
            claim = self._caches.upper_claims.store.get(key)
            if claim is None or claim.metadata.deletion_timestamp is not None:
                state = "not found" if claim is None else "is being deleted"
                text = f'persistentvolumeclaim "{key.partition("/")[2]}" {state}'
                problems.append(Problem("FailedMount", text, "ContainerCreating", ""))
                continue
            if elsewhere := self._elsewhere(claim.to_dict()):
                problems.append(Problem("FailedAttachVolume", elsewhere, "ContainerCreating", ""))
                continue
            await self.reconcile(key)
        return problems

    def release(self, uid: str) -> None:
        """The upper pod is gone."""
        for key in self._needs.pop(uid, ()):
            self._users[key].discard(uid)
            if not self._users[key]:
                del self._users[key]
            self.controller.queue.add(key)

    async def reconcile(self, key: str) -> Result | None:
        """Do the next thing for one upper claim, by namespace and name."""
        # The lock is there while somebody has it or waits for it.
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            return await self._reconcile(key)

    async def _reconcile(self, key: str) -> Result | None:
        upper_object, lower_object = self._caches.upper_claims.store.get(key), self._lower(key)
        lower = lower_object.to_dict() if lower_object is not None else None
        if upper_object is None:
            return await self._vanished(key, lower)
        upper = upper_object.to_dict()
        if lower is not None and lower["metadata"]["labels"].get(names.LABEL_UPPER_UID) != upper_object.uid:
            # The name was used before; what is below belongs to that claim, not to this one.
            await self._vanished(key, lower)
            self._tell(upper_object, "ClaimConflict", _conflict(self._context.name, key, "an earlier claim"))
            return Result(requeue_after=_BINDING_RETRY)
        if upper_object.metadata.deletion_timestamp is not None:
            await self._binder.done(key)  # a placeholder uses the lower claim, which could never go
            return await self._deleting(upper, lower)
        volume = self._mirrored_volume(upper)
        if not self._is_ours(key, upper, volume):
            if lower is not None and self._requests.is_made_by_us(lower) and translate.never_bound(lower):
                await self._requests.delete_unbound(lower)
                await self._requests.finalizers(upper, remove=(translate.FINALIZER,))
            return None
        await self._requests.finalizers(upper, add=(translate.FINALIZER,))
        if lower is None:
            return await self._create(upper_object, upper, volume)
        await self._grow(upper_object, upper, lower)
        return await self._bring_up(key, upper, lower)

    def _is_ours(self, key: str, upper: dict[str, Any], volume: str) -> bool:
        if upper["spec"].get("volumeName"):
            return bool(volume)
        selected = translate.selected_node(upper)
        if selected:
            return selected in self._context.nodes
        return bool(self._users.get(key))

    def _mirrored_volume(self, upper: dict[str, Any]) -> str:
        """The lower volume whose mirror a claim is bound to; empty: none of ours."""
        mirror = self._caches.upper_volumes.store.get(upper["spec"].get("volumeName") or "")
        return persistent_volumes.lower_name(mirror.to_dict(), self._context.name) if mirror else ""

    def _elsewhere(self, upper: dict[str, Any]) -> str:
        name = upper["spec"].get("volumeName")
        if not name or self._mirrored_volume(upper):
            return ""
        return (
            f'persistentvolumeclaim "{upper["metadata"]["name"]}" is bound to volume "{name}", '
            f"which lower cluster {self._context.name} does not have"
        )

    async def _create(self, upper_object: Object, upper: dict[str, Any], volume: str) -> Result | None:
        try:
            there = await self._requests.create_below(upper, volume_name=volume)
        except (Forbidden, Invalid) as error:
            message = f"Lower cluster {self._context.name} refused the claim: {error.message}"
            self._tell(upper_object, "ProvisioningFailed", message)
            return Result(requeue_after=_REFUSED_RETRY)
        if there is not None and not ownership.is_owned(there.labels, self._context.cluster_id):
            what = _conflict(self._context.name, there.key, "a claim that is not ours")
            self._tell(upper_object, "ClaimConflict", what)
        return Result(requeue_after=_BINDING_RETRY)

    async def _grow(self, upper_object: Object, upper: dict[str, Any], lower: dict[str, Any]) -> None:
        patch = translate.resize_patch(lower, upper)
        if patch is None:
            return
        try:
            await self._requests.patch_below(lower, patch)
        except (Forbidden, Invalid) as error:
            message = f"Lower cluster {self._context.name} refused to resize the claim: {error.message}"
            self._tell(upper_object, "VolumeResizeFailed", message)

    async def _bring_up(self, key: str, upper: dict[str, Any], lower: dict[str, Any]) -> Result | None:
        if translate.is_bound(lower):
            await self._binder.done(key)
            patch = translate.status_patch(upper, lower)
            if patch is not None:
                await self._requests.patch_above(upper, patch, subresource="status")
            return None
        if translate.is_bound(upper) or not translate.selected_node(upper):
            return None
        message = await self._binder.bind(key, translate.selected_node(upper))
        if message:
            await self._give_back(upper, lower, message)
            return None
        return Result(requeue_after=_BINDING_RETRY)

    async def _give_back(self, upper: dict[str, Any], lower: dict[str, Any], message: str) -> None:
        """Have the upper scheduler choose another node, the way a provisioner does that cannot provision."""
        self._context.recorder.event(
            upper,
            "Warning",
            "ProvisioningFailed",
            f"Lower cluster {self._context.name} found no node for the volume and its pod: {message}",
        )
        await self._requests.delete_unbound(lower)
        with contextlib.suppress(Conflict):
            await self._requests.patch_above(
                upper, {"metadata": {"annotations": {translate.SELECTED_NODE: None}}}
            )

    async def _deleting(self, upper: dict[str, Any], lower: dict[str, Any] | None) -> Result | None:
        if translate.FINALIZER not in (upper["metadata"].get("finalizers") or ()):
            return None
        if not translate.may_go_below(upper):
            return None  # a pod still uses it; its end brings the claim back here
        is_elsewhere = lower is None and not self._mirrored_volume(upper)
        if is_elsewhere and await self._requests.is_anothers(upper):
            return Result(requeue_after=_REFUSED_RETRY)  # its virtual node may go before it
        if self._config.deletion_policy == "Delete" and await self._requests.ends_below(upper, lower):
            return Result(requeue_after=_BINDING_RETRY)
        await self._requests.finalizers(upper, remove=(translate.FINALIZER,))
        return None

    async def _vanished(self, key: str, lower: dict[str, Any] | None) -> Result | None:
        self._told.pop(key, None)
        await self._binder.done(key)
        if lower is None:
            self._note_orphan(key, orphaned=False)
            return None
        if await self._requests.exists_above(key, lower):
            return Result(requeue_after=_BINDING_RETRY)
        is_empty = translate.never_bound(lower)
        if is_empty or self._config.orphans == "Delete":
            await (self._requests.delete_unbound if is_empty else self._requests.delete_below)(lower)
            return None
        if key not in self._orphans:
            self._context.log.warning(
                "a lower claim has lost its upper one and is kept, with its data", claim=key
            )
        self._note_orphan(key, orphaned=True)
        return None

    def _note_orphan(self, key: str, *, orphaned: bool) -> None:
        (self._orphans.add if orphaned else self._orphans.discard)(key)
        metrics.ORPHANED_CLAIMS.labels(self._context.name).set(len(self._orphans))

    def _lower(self, key: str) -> Object | None:
        namespace, _, name = key.partition("/")
        return self._caches.lower_claims.store.get(f"{self._context.lower_namespace(namespace)}/{name}")

    def _tell(self, upper: Object, reason: str, message: str) -> None:
        if self._told.get(upper.key) != message:
            self._told[upper.key] = message
            self._context.recorder.event(upper, "Warning", reason, message)

    def _watch(self) -> None:
        add = self.controller.queue.add

        def upper_changed(claim: Object) -> None:
            add(claim.key)
            for uid in self._users.get(claim.key, ()):
                self._wake(uid)

        def lower_changed(claim: Object) -> None:
            namespace = claim.annotations.get(names.ANNOTATION_UPPER_NAMESPACE, claim.namespace)
            add(f"{namespace}/{claim.name}")

        def mirror_changed(mirror: Object) -> None:
            claim = (mirror.spec or {}).get("claimRef") or {}
            if claim:
                add(f"{claim.get('namespace')}/{claim.get('name')}")

        for informer, changed in (
            (self._caches.upper_claims, upper_changed),
            (self._caches.lower_claims, lower_changed),
            (self._caches.upper_volumes, mirror_changed),
        ):
            informer.add_handler(
                on_add=lambda one, _initial, changed=changed: changed(one),  # type: ignore[misc]
                on_update=lambda _old, new, changed=changed: changed(new),  # type: ignore[misc]
                on_delete=changed,
            )
        self._binder.on_change(add)


def _conflict(cluster: str, key: str, what: str) -> str:
    return (
        f"Lower cluster {cluster} has {what} named {key}; it is left alone, for it may hold data. "
        "Delete or rename one of the two"
    )
