"""Checks, reads and writes one claim in the two clusters, with preconditions on the claim that was checked.

Claims hold data, so each deletion has preconditions that the API server checks: the uid, and the
resourceVersion if the claim must not have changed since we read it.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.client.client import Client, find
from controller_runtime.errors import ApiError, Conflict, Forbidden, Invalid, NotFound
from controller_runtime.objects import Object
from controller_runtime.util.repairs import Repairs
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import (
    delete_exactly,
    delete_only,
    is_virtual_node,
    patch_only,
)
from virtual_node.controllers.base.problems import Problem, claim_problem
from virtual_node.controllers.namespaces import Namespaces
from virtual_node.controllers.volumes.caches import VolumeCaches
from virtual_node.translate.base.ownership import is_owned, is_owned_by
from virtual_node.translate.storage import pv
from virtual_node.translate.storage import pvc as translate
from virtual_node.translate.storage.shared import is_guest

_CLAIMS = resources.PERSISTENT_VOLUME_CLAIMS
_NO_CLASS = re.compile(r'storageclass(?:\.storage\.k8s\.io)? "([^"]{1,253})" not found')
"""In events of kube-controller-manager; the scheduler's message only says "not found"."""


class Followed(NamedTuple):
    """The result of ``ClaimRequests.follow``."""

    reason: str
    """Reason and message of an event about what the lower cluster refused; empty: it refused nothing."""
    message: str
    again: float
    """Seconds until the next try, because another program changes the lower claim again and again; 0: none is needed."""


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
    _repairs: Repairs = field(default_factory=Repairs)
    """Of labels and annotations of lower claims."""

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
        volume = self.caches.lower_volumes.store.get(volume_name)
        body = translate.lower_claim(
            upper,
            namespace=namespace,
            owner=owner,
            storage_class=storage_class,
            volume_name=volume_name,
            attributes_class=pv.attributes_class(volume.spec or {}) if volume is not None else "",
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

    async def retaining_mirror(self, upper: dict[str, Any] | None, lower: dict[str, Any] | None) -> str:
        """Return the mirror of a claim's lower volume with reclaim policy Retain, if that has another one; empty: none.

        Administrators of the upper cluster set it to keep the data. It is read live, because deleted data cannot be restored.

        Args:
            upper: the upper claim; None: it is gone.
            lower: the lower claim; None: it is not cached.
        """
        volume = (self.mirrored_volume(upper) if upper is not None else "") or (
            str(lower["spec"].get("volumeName") or "") if lower is not None else ""
        )
        below = self.caches.lower_volumes.store.get(volume)
        if not volume or (below is not None and pv.is_retained({"spec": below.spec or {}})):
            return ""
        # Another process may know this lower cluster by another name, and have made the mirror that the claim is bound to.
        own = pv.mirror_name(self.context.name, volume)
        name = str((upper or {}).get("spec", {}).get("volumeName") or own)
        mirror = await find(self.context.upper, resources.PERSISTENT_VOLUMES, name)
        if mirror is None or not pv.is_mirror(mirror) or not pv.is_retained(mirror):
            return ""
        return name if name != own or pv.lower_name(mirror, self.context.name) == volume else ""

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

    async def follow(self, upper: dict[str, Any], lower: dict[str, Any]) -> Followed:
        """Send what may change on a claim to the lower claim: labels, annotations and the requested size.

        Raises:
            ApiError: another claim has the name now (Conflict), or the request failed.
        """
        metadata = upper["metadata"]
        rules = self.context.rules.policy.of(metadata["namespace"]).metadata
        refused, again = ("", ""), 0.0
        of_metadata = translate.claim_metadata_patch(lower, upper, rules=rules)
        if of_metadata is not None:
            # Another program, or another process with other rules, may change them again at once.
            wanted = {field: metadata.get(field) for field in ("labels", "annotations")}
            again = self._repairs.wait(f"{metadata['namespace']}/{metadata['name']}", wanted)
        for patch, reason, what in (
            (None if again else of_metadata, "UpdateRefused", "to change the labels of"),
            (translate.resize_patch(lower, upper), "VolumeResizeFailed", "to resize"),
        ):
            if patch is None:
                continue
            try:
                await patch_claim(self.context.lower, lower, patch)
            except (Forbidden, Invalid) as error:
                why = f"Lower cluster {self.context.name} refused {what} the claim: {error.message}"
                refused = reason, why
        return Followed(*refused, again)

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
        """Forget the last event of an upper claim that is gone, and how often its lower claim was changed."""
        self._last_events.pop(key, None)
        self._repairs.forget(key)

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
