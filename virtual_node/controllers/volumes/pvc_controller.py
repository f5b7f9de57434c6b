"""Claims follow the pods that reference them: created in the lower cluster, bound in both, never lost by accident.

This cluster manages an upper claim in three cases: the scheduler has selected one of its virtual nodes for
the claim and a pod waits for the claim; the claim is bound to a mirror of one of its volumes; or the claim
has no volume yet and a pod bound to one of its virtual nodes references it. Nothing is created for claims of
namespaces that are not allowed here, because every user of a namespace can write the annotation with the
selected node. A pod is created only when each of its claims has a lower claim that we made for it.
A managed upper claim carries our finalizer, so that we observe its deletion. A lower claim with a volume is
deleted only then, and the volume's reclaim policy decides about the data. If an upper claim disappears in
another way (etcd was restored, or the finalizer removed by hand), such a lower claim is kept by default.

Checks, reads and writes one claim in the two clusters, with preconditions on the claim that was checked.

Claims hold data, so each deletion has preconditions that the API server checks: the uid, and the
resourceVersion if the claim must not have changed since we read it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import claim_names
from controller_runtime import resources
from controller_runtime.client.client import Client, find
from controller_runtime.errors import ApiError, Conflict, Forbidden, Invalid, NotFound
from controller_runtime.objects import Object
from controller_runtime.store import is_stub
from controller_runtime.util.keyed import KeyedLocks
from controller_runtime.util.rate_limiter import ExponentialBackoff, Pace
from controller_runtime.workqueue.controller import Result
from virtual_node import metrics
from virtual_node.controllers.base.context import TOO_LARGE_RETRY, ClusterContext, PodCaches, namespace_of
from virtual_node.controllers.base.preconditions import (
    delete_exactly,
    delete_only,
    is_virtual_node,
    patch_only,
)
from virtual_node.controllers.base.problems import CLAIM_CONFLICT, Problem, claim_conflict, claim_problem
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.controllers.volumes.binder import VolumeBinder
from virtual_node.controllers.volumes.caches import ClaimUsers, VolumeCaches
from virtual_node.controllers.volumes.shared import SharedVolumes
from virtual_node.translate.base import ownership
from virtual_node.translate.base.ownership import is_owned, is_owned_by
from virtual_node.translate.storage import pv
from virtual_node.translate.storage import pvc as translate
from virtual_node.translate.storage.shared import is_guest

_CLAIMS = resources.PERSISTENT_VOLUME_CLAIMS
_NO_CLASS = re.compile(r'storageclass(?:\.storage\.k8s\.io)? "([^"]{1,253})" not found')
"""In events of kube-controller-manager; the scheduler's message only says "not found"."""


@dataclass(eq=False, repr=False)
class ClaimRequests:
    """Checks, reads and writes upper and lower claims; a claim that is already gone is not an error.

    Checks are answered from the caches if possible.
    """

    context: ClusterContext
    caches: VolumeCaches
    namespaces: Namespaces
    _last_events: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By upper claim: reason and message of its last event."""

    def is_owned(self, lower: Object, upper_namespace: str, upper: Object | None) -> bool:
        """Report whether a lower claim was made for a claim of that upper namespace; upper None: claim is gone."""
        uid = upper.uid if upper is not None else ""
        return is_owned_by(lower, self.context.cluster_id, upper_namespace, upper_uid=uid)

    async def create_lower(self, upper: dict[str, Any], *, volume_name: str) -> Object | None:
        """Create the lower claim; return the existing claim if the name is taken, otherwise None.

        Args:
            upper: the upper claim.
            volume_name: the lower volume that the lower claim must be bound to; empty: any.

        Raises:
            ApiError: the lower cluster refuses, or the lower namespace must not be used (Forbidden).
        """
        metadata = upper["metadata"]
        namespace = self.context.lower_namespace(metadata["namespace"])
        options = self.context.options
        owner = options.get(translate.selected_node(upper), next(iter(options.values()))).owner
        storage_class = upper["spec"].get("storageClassName")
        if storage_class:
            storage_class = self.context.config.volumes.storage_classes.get(storage_class, storage_class)
        body = translate.lower_claim(
            upper,
            namespace=namespace,
            owner=owner,
            storage_class=storage_class,
            volume_name=volume_name,
            rules=self.context.rules.policy.of(metadata["namespace"]).metadata,
        )
        if problem := await self.namespaces.ensure(metadata["namespace"], is_for_new_pod=True):
            raise Forbidden(problem.message, code=403, reason=problem.event_reason)
        return await self.namespaces.create_inside(_CLAIMS, body)

    async def delete_lower(self, lower: dict[str, Any]) -> None:
        """Delete a lower claim; its volume's reclaim policy decides about the data."""
        await delete_only(self.context.lower, _CLAIMS, lower)

    async def end_lower(self, upper: dict[str, Any], lower: dict[str, Any] | None) -> bool:
        """Delete the lower claim of an upper claim that is being deleted; report whether it still existed.

        If the lower claim is not in the cache, it is read live, because the cache may be behind. Otherwise
        the upper claim would be deleted first, and the lower claim and its volume would stay forever.
        """
        lower = lower or await self.made_for(upper)
        if lower is not None and lower["metadata"].get("deletionTimestamp") is None:
            await self.delete_lower(lower)
        return lower is not None

    async def retaining_mirror(self, volume: str) -> str:
        """Return the mirror of a lower volume with reclaim policy Retain, if the lower volume has another one; empty: none.

        Administrators of the upper cluster set it to keep the data. It is read live, because deleted data cannot be restored.

        Args:
            volume: name of the lower volume; empty: there is none.
        """
        below = self.caches.lower_volumes.store.get(volume)
        if not volume or (below is not None and pv.is_retained({"spec": below.spec or {}})):
            return ""
        name = pv.mirror_name(self.context.name, volume)
        mirror = await find(self.context.upper, resources.PERSISTENT_VOLUMES, name)
        if mirror is None or pv.lower_name(mirror, self.context.name) != volume:
            return ""
        return name if pv.is_retained(mirror) else ""

    def is_bound_to_volume_of(self, upper: dict[str, Any], lower: dict[str, Any]) -> bool:
        """Report whether an upper claim has got the volume of a lower claim that was kept for an earlier upper claim.

        An administrator has released the mirror, and the upper cluster has bound it to the new claim. A user who only
        names the volume in a claim does not get it. A lower claim without the uid of any upper claim stays as it is.
        """
        volume = lower["spec"].get("volumeName")
        if names.LABEL_UPPER_UID not in lower["metadata"]["labels"]:
            return False
        mirror = self.caches.upper_volumes.store.get(upper["spec"].get("volumeName") or "")
        if not volume or mirror is None or self.mirrored_volume(upper) != volume:
            return False
        owner = ((mirror.spec or {}).get("claimRef") or {}).get("uid")
        is_deleting = any(one["metadata"].get("deletionTimestamp") for one in (upper, lower))
        return owner == upper["metadata"]["uid"] and translate.is_bound(upper) and not is_deleting

    async def take_over(self, upper: dict[str, Any], lower: dict[str, Any]) -> None:
        """Mark a lower claim that was kept as made for an upper claim."""
        marks = {names.LABEL_UPPER_UID: upper["metadata"]["uid"]}
        await patch_claim(self.context.lower, lower, {"metadata": {"labels": marks}})
        key = f"{upper['metadata']['namespace']}/{upper['metadata']['name']}"
        self.context.log.info("kept lower claim is used by a new upper claim", claim=key)

    async def made_for(self, upper: dict[str, Any]) -> dict[str, Any] | None:
        """Read the lower claim that we made for an upper one; None: there is none, or another claim has its name."""
        metadata = upper["metadata"]
        namespace = self.context.lower_namespace(metadata["namespace"])
        there = await find(self.context.lower, _CLAIMS, metadata["name"], namespace=namespace)
        if there is None:
            return None
        labels = there["metadata"].get("labels") or {}
        is_ours = is_owned(labels, self.context.cluster_id)
        if not is_ours or not self.context.places.holds(namespace, metadata["namespace"]):
            return None
        return there if labels.get(names.LABEL_UPPER_UID) == metadata["uid"] else None

    async def delete_unbound(self, lower: dict[str, Any]) -> None:
        """Delete a claim that never had a volume, unless it changed since we read it and so may hold data now.

        Raises:
            Conflict: the claim has changed; the caller reconciles again.
        """
        with contextlib.suppress(NotFound):
            await delete_exactly(self.context.lower, _CLAIMS, lower, is_unchanged=True)

    async def give_back(self, upper: dict[str, Any], lower: dict[str, Any] | None, message: str) -> None:
        """Make the upper scheduler choose another node, as a provisioner that cannot create a volume does.

        Args:
            upper: the upper claim.
            lower: the unbound lower claim, which is deleted; None: there is none.
            message: why the volume cannot be created.
        """
        why = await self._missing_class(lower) if lower is not None else ""
        text = f"Lower cluster {self.context.name} {why}found no node for the volume and its pod: {message}"
        self.context.warn(upper, "ProvisioningFailed", text)
        if lower is not None:
            await self.delete_unbound(lower)
        with contextlib.suppress(Conflict):
            patch = {"metadata": {"annotations": {names.ANNOTATION_SELECTED_NODE: None}}}
            await patch_claim(self.context.upper, upper, patch)

    async def _missing_class(self, lower: dict[str, Any]) -> str:
        """Return that the lower cluster lacks the claim's StorageClass, which only an event of the claim reports; empty: it does not."""
        selector = f"involvedObject.uid={lower['metadata']['uid']}"
        namespace = lower["metadata"]["namespace"]
        try:
            events = await self.context.lower.list(
                resources.EVENTS, namespace=namespace, field_selector=selector
            )
        except ApiError:  # only the text of an event depends on it
            return ""
        messages = (str(event.field("message") or "") for event in events.items)
        missing = next(filter(None, map(_NO_CLASS.search, messages)), None)
        return f"has no StorageClass {missing[1]}, so it " if missing is not None else ""

    async def follow(self, upper: dict[str, Any], lower: dict[str, Any]) -> tuple[str, str]:
        """Send what may change on a claim to the lower claim: labels, annotations and the requested size.

        Returns reason and message of an event about what the lower cluster refused; empty: it refused nothing.

        Raises:
            ApiError: another claim has the name now (Conflict), or the request failed.
        """
        rules = self.context.rules.policy.of(upper["metadata"]["namespace"]).metadata
        refused = "", ""
        for patch, reason, what in (
            (
                translate.claim_metadata_patch(lower, upper, rules=rules),
                "UpdateRefused",
                "to change the labels of",
            ),
            (translate.resize_patch(lower, upper), "VolumeResizeFailed", "to resize"),
        ):
            if patch is None:
                continue
            try:
                await patch_claim(self.context.lower, lower, patch)
            except (Forbidden, Invalid) as error:
                why = f"Lower cluster {self.context.name} refused {what} the claim: {error.message}"
                refused = reason, why
        return refused

    async def finalizers(
        self, upper: dict[str, Any], *, add: tuple[str, ...] = (), remove: tuple[str, ...] = ()
    ) -> None:
        """Add and remove finalizers of an upper claim.

        Raises:
            Conflict: the claim has changed since we read it; the caller reconciles again.
        """
        patch = translate.finalizers_patch(upper, add=add, remove=remove)
        if patch is not None:
            await patch_claim(self.context.upper, upper, patch)

    async def upper_exists(self, key: str, lower: dict[str, Any]) -> bool:
        """Report whether the upper claim exists. Reads live: data is never deleted because of a cache."""
        namespace, _, name = key.partition("/")
        upper = await find(self.context.upper, _CLAIMS, name, namespace=namespace)
        if upper is None:
            return False
        return bool(upper["metadata"]["uid"] == lower["metadata"]["labels"].get(names.LABEL_UPPER_UID))

    async def belongs_to_other_cluster(self, upper: dict[str, Any]) -> bool:
        """Report whether another lower cluster manages the claim, or will, and so observes its deletion.

        False if the claim has a volume of a real node, which can happen after the scheduler selected our
        virtual node first. False also if its virtual node no longer exists, because then no other process
        observes the deletion.
        """
        above = self.context.upper
        volume, node = upper["spec"].get("volumeName"), translate.selected_node(upper)
        if volume:
            found = await find(above, resources.PERSISTENT_VOLUMES, volume)
            return found is not None and pv.is_mirror(found)
        return bool(node and node not in self.context.nodes and await is_virtual_node(above, node))

    def record_event(self, upper: Object, reason: str, message: str) -> None:
        """Record why an upper claim cannot be used, unless its last event was the same."""
        if self._last_events.get(upper.key) != (reason, message):
            self._last_events[upper.key] = (reason, message)
            self.context.warn(upper, reason, message)

    def forget(self, key: str) -> None:
        """Forget the last event of an upper claim that is gone."""
        self._last_events.pop(key, None)

    def lower(self, key: str, upper: Object | None) -> Object | None:
        """Return our lower claim for an upper claim, from the cache; None: there is none.

        Args:
            key: namespace and name of the upper claim.
            upper: the upper claim; None: it is gone.
        """
        lower = self.caches.lower_claims.store.get(self.context.lower_key(key))
        if lower is None or is_guest(lower, self.context.cluster_id):
            return None  # ``SharedVolumes`` has the claims of guests
        return lower if self.is_owned(lower, key.partition("/")[0], upper) else None

    def mirrored_volume(self, upper: dict[str, Any]) -> str:
        """Return the name of the lower volume that is mirrored as an upper claim's volume; empty: there is none."""
        mirror = self.caches.upper_volumes.store.get(upper["spec"].get("volumeName") or "")
        return pv.lower_name(mirror.to_dict(), self.context.name) if mirror else ""

    def unusable(self, key: str, claim: Object | None) -> Problem | None:
        """Return why no pod in this cluster can use an upper claim, in the kubelet's wording; None: it can be used."""
        name = key.partition("/")[2]
        if claim is None or claim.metadata.deletion_timestamp is not None:
            state = "not found" if claim is None else "is being deleted"
            return claim_problem("FailedMount", f'persistentvolumeclaim "{name}" {state}')
        volume = (claim.spec or {}).get("volumeName")
        if volume and not self.mirrored_volume(claim.to_dict()):
            return claim_problem(
                "FailedAttachVolume",
                f'persistentvolumeclaim "{name}" is bound to volume "{volume}", '
                f"which lower cluster {self.context.name} does not have",
            )
        return None

    async def lower_claim_problem(self, key: str, claim: Object) -> Problem | None:
        """Return a Problem unless the lower claim of that name was made for this upper claim. May read live.

        Args:
            key: namespace and name of the upper claim.
            claim: the upper claim.
        """
        lower = self.lower(key, claim)
        if lower is not None and lower.labels.get(names.LABEL_UPPER_UID) == claim.uid:
            return None
        if await self.made_for(claim.to_dict()) is not None:
            return None
        text = f'persistentvolumeclaim "{claim.name}" has no claim in lower cluster {self.context.name} yet'
        return claim_problem(*(self._last_events.get(key) or ("FailedMount", text)))

    def clone_source_problem(self, upper: dict[str, Any]) -> str:
        """Return why a claim's data source is not in the lower cluster; empty: it is there, or there is none."""
        if what := translate.foreign_source(upper):
            return f"{what} is not mirrored to lower cluster {self.context.name}; only claims can be cloned there"
        for name in translate.source_claims(upper):
            key = f"{upper['metadata']['namespace']}/{name}"
            source = self.caches.upper_claims.store.get(key)
            lower = self.lower(key, source)
            if source is None or lower is None or lower.labels.get(names.LABEL_UPPER_UID) != source.uid:
                return (
                    f'persistentvolumeclaim "{name}", which is to be cloned, '
                    f"has no claim in lower cluster {self.context.name}"
                )
        return ""


async def patch_claim(
    client: Client, claim: dict[str, Any], patch: dict[str, Any], *, subresource: str | None = None
) -> None:
    """Patch the claim of that uid; ignore a claim that is gone.

    Raises:
        Conflict: another claim has the name now.
    """
    with contextlib.suppress(NotFound):
        await patch_only(client, _CLAIMS, claim, patch, subresource=subresource)


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
    _pace: Pace[str] = field(default_factory=Pace)
    """Limits the writes of each upper claim's status."""
    _waits: ExponentialBackoff = field(
        default_factory=lambda: ExponentialBackoff(_BINDING_RETRY, _LONGEST_WAIT)
    )

    def __post_init__(self) -> None:
        """Register handlers on the caches."""
        self._binder = VolumeBinder(self.context, self.caches)
        self._claims = ClaimRequests(self.context, self.caches, self.namespaces)
        self._config = self.context.config.volumes
        self._shared = SharedVolumes(self.context, self.caches, self.namespaces, self.pods, self._users)
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
        volume = self._claims.mirrored_volume(upper)
        if lower is None and not self.namespaces.allows_namespace(upper_object.namespace):
            return None
        if not self._is_ours(key, upper, volume):
            if (
                lower is not None
                and lower["metadata"]["labels"].get(names.LABEL_NODE) in self.context.nodes
                and translate.never_bound(lower)
            ):
                await self._claims.delete_unbound(lower)
                await self._claims.finalizers(upper, remove=(translate.FINALIZER,))
            return None
        if lower is None:
            return await self._create(key, upper_object, upper, volume)
        await self._claims.finalizers(upper, add=(translate.FINALIZER,))
        reason, refusal = await self._claims.follow(upper, lower)
        if refusal:
            self._claims.record_event(upper_object, reason, refusal)
        return await self._bring_up(key, upper, lower)

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
        if not volume and not self._users.of(key):
            refusal = await self._binder.refusal(key, translate.selected_node(upper))
            if refusal is None:
                return Result(requeue_after=self._waits.when(key))
            if refusal:
                await self._claims.give_back(upper, None, refusal)
                return None
        if reason := self._claims.clone_source_problem(upper):
            self._claims.record_event(upper_object, "ProvisioningFailed", reason)
            return Result(requeue_after=_REFUSED_RETRY)
        await self._claims.finalizers(upper, add=(translate.FINALIZER,))
        try:
            existing = await self._claims.create_lower(upper, volume_name=volume)
        except (Forbidden, Invalid) as error:
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
            await self._claims.give_back(upper, lower, message)
            return None
        return Result(requeue_after=self._waits.when(key))

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
        if await self._may_delete_data(self._claims.mirrored_volume(upper)) and await self._claims.end_lower(
            upper, lower
        ):
            return Result(requeue_after=_BINDING_RETRY)
        await self._claims.finalizers(upper, remove=(translate.FINALIZER,))
        return None

    async def _vanished(self, key: str, lower: dict[str, Any] | None) -> Result | None:
        self._claims.forget(key)
        self._waits.forget(key)
        await self._binder.done(key)
        if lower is None:
            self._note_orphan(key, orphaned=False)
            return None
        if await self._claims.upper_exists(key, lower):
            return Result(requeue_after=_BINDING_RETRY)
        is_empty = translate.never_bound(lower)
        # A claim that was kept when its upper claim was deleted is not an orphan.
        if is_empty or (
            self._config.orphans == "Delete"
            and await self._may_delete_data(lower["spec"].get("volumeName") or "")
        ):
            await (self._claims.delete_unbound if is_empty else self._claims.delete_lower)(lower)
            return None
        if key not in self._orphans:
            self.context.log.warning(
                "upper claim disappeared; keeping the lower claim and its data", claim=key
            )
        self._note_orphan(key, orphaned=True)
        return None

    async def _may_delete_data(self, volume: str) -> bool:
        """Report whether the claim of a lower volume may be deleted with its upper claim, which deletes the data."""
        if self._config.deletion_policy == "Retain":
            return False
        if mirror := await self._claims.retaining_mirror(volume):
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
