"""Lets pods use a volume on shared storage outside the lower cluster that provisioned it (home), in guest clusters.

Before a pod uses such a volume in any cluster, the cluster's process records the cluster on the upper mirror. The
process removes the record only after a live read shows that no lower pod uses the claim. A volume for a single writer
is used by one recorded cluster only. So two clusters never write to it, even if an upper pod is force-deleted, or a
cluster is lost while its pods run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from clusterset.config import SharedStorage
from clusterset.model import names
from clusterset.model.moving import movable
from clusterset.model.pod.conditions import is_finished
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import find, find_object
from controller_runtime.objects import Object, from_dict
from controller_runtime.workqueue.controller import Result
from virtual_node.controllers.base.context import INDEX_CLAIM, ClusterContext, PodCaches
from virtual_node.controllers.base.preconditions import create_new, delete_only, patch_only
from virtual_node.controllers.base.problems import CLAIM_CONFLICT, Problem, claim_conflict, claim_problem
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.controllers.volumes.caches import INDEX_GUEST, ClaimUsers, VolumeCaches
from virtual_node.translate.base import ownership
from virtual_node.translate.storage import shared as translate

_AGAIN = 5.0
"""Seconds until the next check while a claim is still used or being deleted."""
_CLAIMS, _VOLUMES = resources.PERSISTENT_VOLUME_CLAIMS, resources.PERSISTENT_VOLUMES


@dataclass(eq=False, repr=False)
class SharedVolumes:
    """Makes volumes on shared storage usable in one lower cluster; keys are upper claims."""

    context: ClusterContext
    caches: VolumeCaches
    namespaces: Namespaces
    pods: PodCaches
    users: ClaimUsers
    """The pods for which ``ClaimController.ensure`` was called."""

    def __post_init__(self) -> None:
        """Create without any IO."""
        self._storages = {storage.name: storage for storage in self.context.config.volumes.shared}

    def watch(self, changed: Callable[[str], None]) -> None:
        """Register a function to call with the upper claim of each mirror or guest volume that changes."""

        def mirror_changed(mirror: Object) -> None:
            claim = (mirror.spec or {}).get("claimRef") or {}
            if claim:
                changed(f"{claim.get('namespace')}/{claim.get('name')}")

        def volume_changed(volume: Object) -> None:
            if translate.is_guest(volume, self.context.cluster_id):
                name = ((volume.spec or {}).get("claimRef") or {}).get("name")
                changed(f"{ownership.upper_namespace(volume)}/{name}")

        for informer in self._all_mirrors():
            informer.on_change(mirror_changed, mirror_changed, with_old=True)
        self.caches.lower_volumes.on_change(volume_changed, volume_changed)

    def is_guest(self, claim: Object) -> bool:
        """Report whether a claim is bound to a volume of another cluster on storage that this cluster reaches, too."""
        return (found := self._mirror(claim)) is not None and self._is_guest(found.to_dict())

    async def ensure(self, claim: Object) -> Problem | None:
        """Make a volume usable for a pod of this cluster; return what blocks the pod.

        This cluster is recorded as a user of the volume first, whether it is the home cluster or a guest.
        """
        mirror = await self._live_mirror(claim)
        if mirror is None:
            return None
        name = mirror["metadata"]["name"]
        if others := translate.blocked_by(mirror, claim.to_dict(), self.context.name):
            return claim_problem(
                "FailedAttachVolume",
                f'volume "{name}" is in use in lower cluster {", ".join(others)}, and only one cluster may write to it. '
                "If that cluster will not return, and its pods cannot write any more, run: "
                f"kubectl annotate persistentvolume {name} {translate.ANNOTATION_USED_IN}-",
            )
        await self._record(mirror, uses=True)
        return await self._bring(claim, mirror) if self._is_guest(mirror) else None

    async def reconcile(self, key: str) -> Result | None:
        """Remove the guest claim and volume and the record of use, if none of this cluster's pods uses the claim."""
        claim = self.caches.upper_claims.store.get(key)
        mirror = self._mirror(claim) if claim is not None else None
        guests = list(self._guests(key))
        uses = mirror is not None and self.context.name in translate.used_in(mirror.to_dict())
        if not guests and not uses:
            return None
        if self._is_wanted(key):
            # Pods of a new upper claim of the same name wait until the objects of the former one are gone.
            current = mirror.uid if mirror is not None else ""
            guests = [guest for guest in guests if guest.labels.get(translate.LABEL_GUEST) != current]
            uses = False
        elif await self._is_used(key):
            return Result(requeue_after=_AGAIN)
        if guests:
            await self._remove(guests)
            return Result(requeue_after=_AGAIN)
        if uses and mirror is not None:
            if await self._guest_claim(key) is not None:
                return Result(requeue_after=_AGAIN)
            await self._record(mirror.to_dict(), uses=False)
        return None

    def is_used_elsewhere(self, claim: dict[str, Any]) -> bool:
        """Report whether another cluster may use the volume of an upper claim, so that its data must stay."""
        mirror = self._cached(claim["spec"].get("volumeName") or "")
        return mirror is not None and bool(translate.used_in(mirror.to_dict()) - {self.context.name})

    def _mirror(self, claim: Object) -> Object | None:
        """Return the mirror that a claim is bound to, if its volume is on shared storage."""
        mirror = self._cached((claim.spec or {}).get("volumeName") or "")
        if mirror is None:
            return None
        body = mirror.to_dict()
        is_bound = (body["spec"].get("claimRef") or {}).get("uid") == claim.uid
        return mirror if is_bound and translate.shared_name(body) else None

    def _cached(self, name: str) -> Object | None:
        return next((one for cache in self._all_mirrors() if (one := cache.store.get(name))), None)

    def _all_mirrors(self) -> list[Informer]:
        # Other clusters may still use this cluster's volumes on storage that it no longer declares as shared.
        own = self.caches.upper_volumes
        return [own] if self.caches.shared is None else [self.caches.shared, own]

    async def _live_mirror(self, claim: Object) -> dict[str, Any] | None:
        """Read the mirror that a claim is bound to; None: its volume is not on shared storage, or it has none yet.

        The caches may be behind: another cluster may have recorded itself after we removed our record, or the claim may
        have been bound.
        """
        upper = self.context.upper
        name = (claim.spec or {}).get("volumeName")
        if not name and self.caches.shared is not None:
            current = await find(upper, _CLAIMS, claim.name, namespace=claim.namespace)
            name = (current or {"spec": {}})["spec"].get("volumeName")
        own = self.caches.upper_volumes.store.get(name or "")
        if not name or (own is not None and translate.LABEL_SHARED not in own.labels):
            return None
        mirror = await find(upper, _VOLUMES, name)
        if mirror is None or (mirror["spec"].get("claimRef") or {}).get("uid") != claim.uid:
            return None
        return mirror if translate.shared_name(mirror) else None

    def _is_guest(self, mirror: dict[str, Any]) -> bool:
        home = (mirror["metadata"].get("labels") or {}).get(names.LABEL_LOWER_CLUSTER)
        return home != self.context.name and translate.shared_name(mirror) in self._storages

    async def _bring(self, claim: Object, mirror: dict[str, Any]) -> Problem | None:
        """Create the guest's claim and volume; return what blocks the pod."""
        upper, context = claim.to_dict(), self.context
        namespace = context.lower_namespace(claim.namespace)
        owner = next(iter(context.options.values())).owner
        storage: SharedStorage = self._storages[translate.shared_name(mirror)]
        rules = context.rules.policy.of(claim.namespace).metadata
        body = translate.guest_claim(upper, mirror, namespace=namespace, owner=owner, rules=rules)
        try:
            translate.guest_volume(
                mirror, body | {"metadata": {**body["metadata"], "uid": ""}}, storage=storage, owner=owner
            )
        except translate.UnusableError as error:
            text = f'volume "{mirror["metadata"]["name"]}" cannot be used in lower cluster {context.name}: {error}'
            return claim_problem("FailedAttachVolume", text)
        if problem := await self.namespaces.ensure(claim.namespace, is_for_new_pod=True):
            return problem
        there = await find(context.lower, _CLAIMS, claim.name, namespace=namespace)
        if there is None:
            with self.namespaces.in_use(namespace):
                there = await context.lower.create(_CLAIMS, body, namespace=namespace)
        if not self._is_guest_claim(from_dict(there), claim, mirror):
            return claim_problem(
                CLAIM_CONFLICT, claim_conflict(context.name, f"{namespace}/{claim.name}", "another claim")
            )
        if there["metadata"].get("deletionTimestamp"):
            return claim_problem(
                "FailedMount", f'claim "{claim.name}" is being deleted in lower cluster {context.name}'
            )
        volume = translate.guest_volume(mirror, there, storage=storage, owner=owner)
        return await self._create_volume(volume)

    async def _create_volume(self, volume: dict[str, Any]) -> Problem | None:
        name, lower = volume["metadata"]["name"], self.context.lower
        there = await create_new(lower, _VOLUMES, volume)
        if there is None:
            self.context.log.info("volume on shared storage is used in this cluster", volume=name)
            return None
        if (there.spec or {}).get("claimRef", {}).get("uid") == volume["spec"]["claimRef"]["uid"]:
            return None
        if translate.is_guest(there, self.context.cluster_id):
            # The volume belongs to a former claim of this cluster. Its reclaim policy Retain keeps the data.
            await delete_only(lower, _VOLUMES, there)
        return claim_problem(
            "FailedAttachVolume", f'volume "{name}" in lower cluster {self.context.name} has another claim'
        )

    def _is_guest_claim(self, lower: Object, claim: Object, mirror: dict[str, Any]) -> bool:
        return (
            translate.is_guest(lower, self.context.cluster_id)
            and lower.labels.get(names.LABEL_UPPER_UID) == claim.uid
            and lower.labels.get(translate.LABEL_GUEST) == mirror["metadata"]["uid"]
        )

    def _guests(self, key: str) -> Iterator[Object]:
        """Yield our guest claim and guest volumes for an upper claim, from the caches."""
        lower_key = self.context.lower_key(key)
        claim = self.caches.lower_claims.store.get(lower_key)
        if claim is not None and translate.is_guest(claim, self.context.cluster_id):
            yield claim
        yield from self.caches.lower_volumes.store.by_index(INDEX_GUEST, lower_key)

    def _is_wanted(self, key: str) -> bool:
        """Report whether a pod of our virtual nodes uses an upper claim, or will."""
        # A pod that is gone stays a user until its last reconcile, because its lower pod may still be created.
        return any(self.pods.upper_pod(uid) is None for uid in self.users.of(key)) or any(
            not is_finished(pod.status)
            for informer in self.pods.upper.values()
            for pod in informer.store.by_index(INDEX_CLAIM, key)
        )

    async def _is_used(self, key: str) -> bool:
        """Report whether any lower pod uses the lower claim. Reads live, because a cache may lack a new pod."""
        namespace, _, name = self.context.lower_key(key).partition("/")
        listed = await self.context.lower.list(resources.PODS, namespace=namespace)
        return any(
            not is_finished(pod.status) and name in movable.claims(pod.spec or {}) for pod in listed.items
        )

    async def _guest_claim(self, key: str) -> Object | None:
        namespace, _, name = self.context.lower_key(key).partition("/")
        found = await find_object(self.context.lower, _CLAIMS, name, namespace=namespace)
        return found if found is not None and translate.is_guest(found, self.context.cluster_id) else None

    async def _remove(self, guests: list[Object]) -> None:
        """Delete a guest's claim, and its volume when the claim is gone. The reclaim policy Retain keeps the data."""
        claims = [guest for guest in guests if guest.kind == _CLAIMS.kind]
        resource = _CLAIMS if claims else _VOLUMES
        for copy in claims or guests:
            if copy.metadata.deletion_timestamp is None:
                await delete_only(self.context.lower, resource, copy)

    async def _record(self, mirror: dict[str, Any], *, uses: bool) -> None:
        """Record on a mirror whether this cluster uses the volume.

        Raises:
            Conflict: the mirror has changed since it was read; the caller reconciles again.
        """
        if patch := translate.use_patch(mirror, {self.context.name}, uses=uses):
            version = mirror["metadata"]["resourceVersion"]
            await patch_only(self.context.upper, _VOLUMES, mirror, patch, resource_version=version)
