"""Claims follow the pods that reference them: created in the lower cluster, bound in both, never lost by accident.

This cluster manages an upper claim in three cases: the scheduler has selected one of its virtual nodes for
the claim and a pod waits for the claim; the claim is bound to a mirror of one of its volumes; or the claim
has no volume yet and a pod bound to one of its virtual nodes references it. Nothing is created for claims of
namespaces that are not allowed here, because every user of a namespace can write the annotation with the
selected node. A pod is created only when each of its claims has a lower claim that we made for it.
A managed upper claim carries our finalizer, so that we observe its deletion. A lower claim with a volume is
deleted only then, and the volume's reclaim policy decides about the data. If an upper claim disappears in
another way (etcd was restored, or the finalizer removed by hand), such a lower claim is kept by default.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import claim_names, is_finished
from controller_runtime.errors import Forbidden, Invalid
from controller_runtime.objects import Object
from controller_runtime.store import is_stub
from controller_runtime.util.keyed import KeyedLocks
from controller_runtime.util.rate_limiter import ExponentialBackoff, Pace
from controller_runtime.workqueue.controller import Result
from virtual_node import metrics
from virtual_node.controllers.base.context import (
    INDEX_CLAIM,
    TOO_LARGE_RETRY,
    ClusterContext,
    PodCaches,
    namespace_of,
)
from virtual_node.controllers.base.problems import CLAIM_CONFLICT, Problem, claim_conflict
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.controllers.volumes.binder import VolumeBinder
from virtual_node.controllers.volumes.caches import ClaimUsers, VolumeCaches
from virtual_node.controllers.volumes.claim_requests import ClaimRequests, patch_claim
from virtual_node.controllers.volumes.shared import SharedVolumes
from virtual_node.translate.base import ownership
from virtual_node.translate.storage import pvc as translate

_BINDING_RETRY = 5.0
"""Seconds until a requeue of a claim that is being bound; normally its events requeue it earlier."""
_REFUSED_RETRY = 30.0
_LONGEST_WAIT = 120.0
"""Maximum seconds until a requeue of a claim that waits for a pod or a volume, while nothing changes."""
_WORKERS = 10
"""Number of workers. At most 8 of them work for one upper namespace."""


@dataclass(eq=False, repr=False)
class ClaimController:
    """Keeps one lower claim for each upper claim that this cluster manages."""

    context: ClusterContext
    caches: VolumeCaches
    namespaces: Namespaces
    pods: PodCaches
    wake: Callable[[str], None]
    """Called with the uid of an upper pod whose claim has changed."""
    _users: ClaimUsers = field(default_factory=ClaimUsers)
    _locks: KeyedLocks[str] = field(default_factory=KeyedLocks)
    _orphans: set[str] = field(default_factory=set)
    _not_here: dict[str, str] = field(default_factory=dict)
    """By upper claim: why another claim of its pod was given back, so that it must be given back, too."""
    _pace: Pace[str] = field(default_factory=Pace)
    """Limits the writes of each upper claim's status."""
    _waits: ExponentialBackoff = field(
        default_factory=lambda: ExponentialBackoff(_BINDING_RETRY, _LONGEST_WAIT)
    )

    def __post_init__(self) -> None:
        """Register handlers on the caches."""
        self._claims = ClaimRequests(self.context, self.caches, self.namespaces)
        self._config = self.context.config.volumes
        self._shared = SharedVolumes(self.context, self.caches, self.namespaces, self.pods, self._users)
        self._binder = VolumeBinder(self.context, self.caches, self.namespaces, self._shared.is_guest)
        self.controller = self.context.controller(
            "claims", self.reconcile, workers=_WORKERS, first_delay=0.5, flow=namespace_of
        )
        self._watch()

    async def ensure(self, upper: Object, upper_pod: dict[str, Any]) -> list[Problem]:
        """Create a pod's claims in the lower cluster; return what blocks the pod. Claim changes requeue the pod."""
        keys = [f"{upper.namespace}/{name}" for name in claim_names(upper_pod)]
        self._users.add(upper.uid, keys)
        problems = []
        for key in keys:
            claim = self.caches.upper_claims.store.get(key)
            problem = await self._problem(key, claim)
            if problem is not None:
                self._users.block(upper.uid, key)
                problems.append(problem)
        return problems

    async def _problem(self, key: str, claim: Object | None) -> Problem | None:
        """Create what a pod needs of one claim in the lower cluster; return what blocks the pod."""
        problem = self._claims.unusable(key, claim)
        if claim is None or claim.metadata.deletion_timestamp is not None:
            return problem
        if problem is None:
            await self.reconcile(key)
            problem = await self._claims.lower_claim_problem(key, claim)
        elif self._shared.is_guest(claim):
            problem = None
        if problem is None:
            async with self._locks.of(key):
                problem = await self._shared.ensure(claim)
        return problem

    def adopt(self, upper: Object, upper_pod: dict[str, Any]) -> None:
        """Register a pod, of which an earlier process created the lower pod, as a user of its claims."""
        keys = [f"{upper.namespace}/{name}" for name in claim_names(upper_pod)]
        self._users.add(upper.uid, keys)
        for key in keys:
            claim = self.caches.upper_claims.store.get(key)
            if claim is not None and not (claim.spec or {}).get("volumeName"):
                self.controller.queue.add(key)

    def forget_pod(self, uid: str) -> None:
        """Remove an upper pod that is gone from the users of its claims."""
        for key in self._users.remove(uid):
            self.controller.queue.add(key)

    async def reconcile(self, key: str) -> Result | None:
        """Take one step for one upper claim, by namespace and name."""
        if self.context.too_large(namespace_of(key)) is not None and not self._is_going(key):
            return Result(requeue_after=TOO_LARGE_RETRY)
        async with self._locks.of(key):
            result = await self._reconcile(key)
            return await self._shared.reconcile(key) or result

    def _is_going(self, key: str) -> bool:
        """Report whether an upper claim is being deleted. Otherwise a namespace full of claims would keep them for ever."""
        claim = self.caches.upper_claims.store.get(key)
        return claim is not None and not is_stub(claim) and claim.metadata.deletion_timestamp is not None

    async def _reconcile(self, key: str) -> Result | None:
        upper_object = self.caches.upper_claims.store.get(key)
        lower_object = self._claims.lower(key, upper_object)
        lower = lower_object.to_dict() if lower_object is not None else None
        if upper_object is None:
            return await self._vanished(key, lower)
        upper = upper_object.to_dict()
        if lower is not None and lower["metadata"]["labels"].get(names.LABEL_UPPER_UID) != upper_object.uid:
            if self._claims.is_bound_to_volume_of(upper, lower):
                self._note_orphan(key, orphaned=False)
                await self._claims.take_over(upper, lower)
                return Result(requeue_after=_BINDING_RETRY)
            # The lower claim belongs to an earlier upper claim of the same name.
            await self._vanished(key, lower)
            what = claim_conflict(self.context.name, key, "an earlier claim")
            self._claims.record_event(upper_object, CLAIM_CONFLICT, what)
            if upper_object.metadata.deletion_timestamp is None:
                return Result(requeue_after=_BINDING_RETRY)
            lower = None
        if upper_object.metadata.deletion_timestamp is not None:
            await self._binder.done(key)  # the placeholder's use blocks the lower claim's deletion
            return await self._deleting(upper, lower)
        why = self._not_here.pop(key, "")
        if why and self._may_be_given_back(key, upper, lower):
            await self._claims.give_back(upper, lower, why)
            return None
        volume = self._claims.mirrored_volume(upper)
        if lower is None and not self.namespaces.allows_namespace(upper_object.namespace):
            return None
        if not self._is_ours(key, upper, volume):
            return await self._left(key, upper, lower)
        if lower is None:
            return await self._create(key, upper_object, upper, volume)
        await self._claims.finalizers(upper, add=(translate.FINALIZER,))
        followed = await self._claims.follow(upper, lower)
        if followed.message:
            self._claims.record_event(upper_object, followed.reason, followed.message)
        result = await self._bring_up(key, upper, lower)
        return result or (Result(requeue_after=followed.again) if followed.again else None)

    async def _left(self, key: str, upper: dict[str, Any], lower: dict[str, Any] | None) -> Result | None:
        """Delete the unbound lower claim that we made for an upper claim which is not ours any more."""
        if (
            lower is None
            or lower["metadata"]["labels"].get(names.LABEL_NODE) not in self.context.nodes
            or not translate.never_bound(lower)
        ):
            return None
        if self._may_be_used(key):
            return Result(requeue_after=self._waits.when(key))
        await self._binder.abandon(key)
        await self._claims.delete_unbound(lower)
        await self._claims.finalizers(upper, remove=(translate.FINALIZER,))
        return None

    def _may_be_used(self, key: str) -> bool:
        """Report whether a pod that is bound to our virtual nodes uses an upper claim, also while not all pods are listed."""
        return any(
            not informer.has_synced
            or any(not is_finished(pod.status) for pod in informer.store.by_index(INDEX_CLAIM, key))
            for informer in self.pods.upper.values()
        )

    def _may_be_given_back(self, key: str, upper: dict[str, Any], lower: dict[str, Any] | None) -> bool:
        """Report whether a claim has our virtual node selected, and neither a volume nor a bound pod in this cluster."""
        is_free = translate.never_bound(upper) and (lower is None or translate.never_bound(lower))
        return is_free and translate.selected_node(upper) in self.context.nodes and not self._users.of(key)

    def _is_ours(self, key: str, upper: dict[str, Any], volume: str) -> bool:
        if upper["spec"].get("volumeName"):
            return bool(volume)
        selected = translate.selected_node(upper)
        if selected:
            return selected in self.context.nodes
        return bool(self._users.of(key))

    async def _create(
        self, key: str, upper_object: Object, upper: dict[str, Any], volume: str
    ) -> Result | None:
        if (full := self.context.cannot_grow(upper_object, None)) is not None:
            self._claims.record_event(upper_object, full.event_reason, full.message)
            return Result(requeue_after=full.again)
        # Neither the volume nor a pod is bound to this cluster.
        may_move = not volume and not self._users.of(key)
        if may_move:
            refusal = await self._binder.refusal(key, translate.selected_node(upper))
            if refusal is None:
                return Result(requeue_after=self._waits.when(key))
            if refusal := refusal or self._claims.clone_source_problem(upper):
                await self._give_back(key, upper, None, refusal)
                return None
        elif reason := self._claims.clone_source_problem(upper):
            self._claims.record_event(upper_object, "ProvisioningFailed", reason)
            return Result(requeue_after=_REFUSED_RETRY)
        await self._claims.finalizers(upper, add=(translate.FINALIZER,))
        try:
            existing = await self._claims.create_lower(upper, volume_name=volume)
        except (Forbidden, Invalid) as error:
            if may_move:
                await self._give_back(key, upper, None, f"it refuses the claim: {error.message}")
                return None
            message = f"Lower cluster {self.context.name} refused the claim: {error.message}"
            self._claims.record_event(upper_object, "ProvisioningFailed", message)
            return Result(requeue_after=_REFUSED_RETRY)
        if existing is None:
            return Result(requeue_after=_BINDING_RETRY)
        if self._claims.is_owned(existing, upper_object.namespace, upper_object):
            # Not in the cache yet, or a user has changed the annotation with its upper namespace, which is restored.
            await self._claims.follow(upper, existing.to_dict())
        else:
            what = claim_conflict(self.context.name, existing.key, "a claim that is not ours")
            self._claims.record_event(upper_object, CLAIM_CONFLICT, what)
        return Result(requeue_after=_BINDING_RETRY)

    async def _bring_up(self, key: str, upper: dict[str, Any], lower: dict[str, Any]) -> Result | None:
        if translate.is_bound(lower):
            await self._binder.done(key)
            patch = translate.status_patch(upper, lower)
            if patch is not None:
                if seconds := self._pace.wait(key, now=asyncio.get_running_loop().time()):
                    return Result(requeue_after=seconds)
                await patch_claim(self.context.upper, upper, patch, subresource="status")
            return None
        if translate.is_bound(upper) or not translate.selected_node(upper):
            return None
        if await self.namespaces.ensure(upper["metadata"]["namespace"], is_for_new_pod=True):
            return Result(requeue_after=_REFUSED_RETRY)  # no placeholder: the upper pod would be refused
        message = await self._binder.bind(key, translate.selected_node(upper))
        if message:
            await self._give_back(key, upper, lower, message)
            return None
        return Result(requeue_after=self._waits.when(key))

    async def _give_back(
        self, key: str, upper: dict[str, Any], lower: dict[str, Any] | None, message: str
    ) -> None:
        """Make the upper scheduler choose another node for a claim, and for the other claims of the pod that waits for it.

        kube-scheduler places a pod only on the selected node of each of its claims.
        """
        await self._claims.give_back(upper, lower, message)
        for other in await self._binder.beside(key):
            self._not_here[other] = message
            self.controller.queue.add(other)

    async def _deleting(self, upper: dict[str, Any], lower: dict[str, Any] | None) -> Result | None:
        if translate.FINALIZER not in (upper["metadata"].get("finalizers") or ()):
            return None
        if not translate.may_delete_lower(upper):
            return None  # a pod still uses the claim; the pod's deletion requeues the claim
        if self._shared.is_used_elsewhere(upper):
            return Result(requeue_after=_BINDING_RETRY)  # otherwise that cluster's pods would lose their data
        is_elsewhere = lower is None and not self._claims.mirrored_volume(upper)
        if is_elsewhere and await self._claims.belongs_to_other_cluster(upper):
            return Result(requeue_after=_REFUSED_RETRY)  # the selected virtual node may be removed meanwhile
        if await self._may_delete_data(upper, lower) and await self._claims.end_lower(upper, lower):
            return Result(requeue_after=_BINDING_RETRY)
        await self._claims.finalizers(upper, remove=(translate.FINALIZER,))
        return None

    async def _vanished(self, key: str, lower: dict[str, Any] | None) -> Result | None:
        self._claims.forget(key)
        self._waits.forget(key)
        self._not_here.pop(key, None)
        await self._binder.done(key)
        if lower is None:
            self._note_orphan(key, orphaned=False)
            return None
        if await self._claims.upper_exists(key, lower):
            return Result(requeue_after=_BINDING_RETRY)
        is_empty = translate.never_bound(lower)
        # A claim that was kept when its upper claim was deleted is not an orphan.
        if is_empty or (self._config.orphans == "Delete" and await self._may_delete_data(None, lower)):
            await (self._claims.delete_unbound if is_empty else self._claims.delete_lower)(lower)
            return None
        if key not in self._orphans:
            self.context.log.warning(
                "upper claim disappeared; keeping the lower claim and its data", claim=key
            )
        self._note_orphan(key, orphaned=True)
        return None

    async def _may_delete_data(self, upper: dict[str, Any] | None, lower: dict[str, Any] | None) -> bool:
        """Report whether a lower claim may be deleted with its upper claim, which deletes the data."""
        if self._config.deletion_policy == "Retain":
            return False
        if mirror := await self._claims.retaining_mirror(upper, lower):
            self.context.log.info(
                "lower claim stays, because its volume is retained in the upper cluster", volume=mirror
            )
        return not mirror

    def _note_orphan(self, key: str, *, orphaned: bool) -> None:
        (self._orphans.add if orphaned else self._orphans.discard)(key)
        metrics.ORPHANED_CLAIMS.labels(self.context.name).set(len(self._orphans))

    def _watch(self) -> None:
        def add(key: str) -> None:
            self._waits.forget(key)
            self.controller.queue.add(key)

        def upper_changed(claim: Object) -> None:
            add(claim.key)
            for uid in self._users.of(claim.key):
                self.wake(uid)

        def unblock(key: str) -> None:
            add(key)
            for uid in self._users.unblock(key):
                self.wake(uid)

        def lower_changed(claim: Object) -> None:
            unblock(ownership.upper_key(claim))

        self.caches.upper_claims.on_change(upper_changed, upper_changed, with_old=True)
        self.caches.lower_claims.on_change(lower_changed, lower_changed, with_old=True)
        self._shared.watch(unblock)
        self._binder.on_change(add)
