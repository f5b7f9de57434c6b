"""Writes the Leases and ConfigMaps that workers read. All content is derived from a stored record (``Ledger``).

Begins with the names, labels, owner references and content of these objects.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.model.names import SWARMS
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import AlreadyExists, ApiError, Conflict, NotFound
from controller_runtime.objects import Object, ObjectMeta
from controller_runtime.resources import Resource
from controller_runtime.store import is_stub
from swarm import handover, share
from swarm.handover import Holder, Ledger
from swarm.planning import DEPLOYMENT
from swarm.spec import GROUP

LABEL_SWARM = f"{GROUP}/swarm"
ANNOTATION_VERSION = f"{GROUP}/version"
ANNOTATION_CHECKSUM = f"{GROUP}/checksum"
ANNOTATION_PARTS = f"{GROUP}/parts"
ANNOTATION_POD_UID = f"{GROUP}/pod-uid"
ANNOTATION_ACKNOWLEDGED = f"{GROUP}/acknowledged"
ANNOTATION_ENDED = f"{GROUP}/ended"
_ANNOTATIONS = frozenset(
    {
        ANNOTATION_VERSION,
        ANNOTATION_CHECKSUM,
        ANNOTATION_PARTS,
        ANNOTATION_POD_UID,
        ANNOTATION_ACKNOWLEDGED,
        ANNOTATION_ENDED,
    }
)
ORIGINAL_KEY = "config.yml"
CHECKSUM = "checksum"
"""Field of a cached ConfigMap's data: see ``shrink_config_map``."""
_LONGEST_VERSION = 16
"""Number of digits from which a version is invalid, because versions must stay below 2^53."""

INDEX_SWARM = "swarm"


def by_swarm(found: Object) -> Iterable[str]:
    """Return the key of the Swarm that an object's label names; no key without the label."""
    swarm = found.labels.get(LABEL_SWARM)
    return [f"{found.namespace}/{swarm}"] if swarm else []


def shrink_config_map(found: Object) -> Object:
    """Reduce a ConfigMap to the checksum of its content, because informers cache the ConfigMaps of all Swarms."""
    data = found.field("data") or {}
    text = data.get(share.KEY) or data.get(ORIGINAL_KEY) or ""
    shrunk = found.without("data", "binaryData").with_fields(data={CHECKSUM: share.checksum(text)})
    return shrink_metadata(shrunk)


def shrink_metadata(found: Object) -> Object:
    """Reduce the metadata of an object of a Swarm to what is read."""
    return found.with_only(
        labels=lambda key: key == LABEL_SWARM,
        annotations=lambda key: key in _ANNOTATIONS,
        owners=lambda one: bool(one.get("controller")) or one.get("kind") == SWARMS.kind,
    )


def owned_stub(found: Object) -> Object:
    """Return a ConfigMap or Lease without content and version; it counts as an object of the Swarm in its label."""
    swarm = found.labels.get(LABEL_SWARM, "")
    kept = ObjectMeta(name=found.name, namespace=found.namespace, uid=found.uid, labels={LABEL_SWARM: swarm})
    return Object(kept, found.api_version, found.kind)


def check_whole(found: Object) -> None:
    """Check that an object is not a stub, which cannot be compared with what it should be.

    Raises:
        NotCached: it is one.
    """
    if is_stub(found):
        raise NotCached(
            f"{found.kind} {found.name} is not written: the ConfigMaps and Leases with label {LABEL_SWARM} in namespace "
            f"{found.namespace} are too large for the controller's memory. Delete those that belong to no Swarm, or "
            "divide the Swarms over namespaces"
        )


def owner(found: Object | Mapping[str, Any]) -> str:
    """Return the UID of the owner that is marked as controller; empty if there is none."""
    return next((owner.get("uid", "") for owner in _owners(found) if owner.get("controller")), "")


def _owners(found: Object | Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    if isinstance(found, Object):
        return found.metadata.owner_references
    return found["metadata"].get("ownerReferences") or []


def check_owner(swarm: Object, found: Object | Mapping[str, Any], name: str) -> None:
    """Check that the Swarm owns an object.

    Raises:
        NameTaken: the Swarm is not an owner of the object.
    """
    if not any(owner.get("uid") == swarm.uid for owner in _owners(found)):
        raise NameTaken(f"{name} exists and does not belong to Swarm {swarm.name}: delete or rename it")


def check_adoptable(swarm: Object, found: Object | Mapping[str, Any], name: str) -> None:
    """Check that a ConfigMap is the Swarm's, or was created by k8s-swarm's manifests.

    Raises:
        NameTaken: the Swarm does not own it, and another controller or Swarm uses it, or it has data but no table.
    """
    if isinstance(found, Object):
        labels, has_table = found.labels, True
    else:
        data = found.get("data") or {}
        labels, has_table = found["metadata"].get("labels") or {}, not data or ORIGINAL_KEY in data
    if owner(found) or labels.get(LABEL_SWARM, swarm.name) != swarm.name or not has_table:
        check_owner(swarm, found, f"spec.configMap: ConfigMap {name}")


def adopted(there: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an existing ConfigMap with our labels, annotations and table.

    Its owners and other keys stay, except shares of deleted workers. So it is not deleted with the Swarm.
    """
    metadata = dict(there["metadata"])
    for field in ("labels", "annotations"):
        metadata[field] = {**(metadata.get(field) or {}), **body["metadata"][field]}
    others = {
        key: text
        for key, text in (there.get("data") or {}).items()
        if not (key.endswith(".json") and '"kind":"Share"' in text)
    }
    return {**there, "metadata": metadata, "data": {**others, **body["data"]}}


def version_in(annotations: Mapping[str, str]) -> int:
    """Return the version in an object's annotations; 0 if there is no valid one."""
    text = annotations.get(ANNOTATION_VERSION, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < _LONGEST_VERSION else 0


class NotCached(ApiError):  # noqa: N818 - a state that the user must end
    """The namespace has no room for the object in the controller's cache."""


class NameTaken(ApiError):  # noqa: N818 - a state that the user must end
    """An object that the Swarm does not own has a name that the Swarm needs."""


def lease(swarm: Object, name: str, holder: Holder, settings: share.Settings) -> dict[str, Any]:
    """Return the Lease in which a pod acknowledges its share."""
    body = head(swarm, resources.LEASES, name)
    body["metadata"]["annotations"] = {ANNOTATION_POD_UID: holder.uid}
    spec = {"leaseDurationSeconds": settings.fence_seconds} if settings.fence_seconds else {}
    return {**body, "spec": spec}


def config_map(swarm: Object, name: str, version: int, data: dict[str, str]) -> dict[str, Any]:
    """Return a ConfigMap with the jobs of one pod, or with the table of all jobs as k8s-swarm writes it."""
    body = head(swarm, resources.CONFIG_MAPS, name)
    text = data.get(share.KEY) or data[ORIGINAL_KEY]
    body["metadata"]["annotations"] = {
        ANNOTATION_VERSION: str(version),
        ANNOTATION_CHECKSUM: share.checksum(text),
    }
    return {**body, "data": data}


def head(swarm: Object, resource: Resource, name: str) -> dict[str, Any]:
    """Return an object without content, owned by the Swarm."""
    reference = {
        "apiVersion": SWARMS.api_version,
        "kind": SWARMS.kind,
        "name": swarm.name,
        "uid": swarm.uid,
        "controller": True,
    }
    metadata = {
        "name": name,
        "namespace": swarm.namespace,
        "labels": {LABEL_SWARM: swarm.name},
        "ownerReferences": [reference],
    }
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata}


_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Delivery:
    """Creates, updates and deletes Leases and ConfigMaps of Swarms so that they match their records."""

    client: Client
    config_maps: Informer
    """ConfigMaps with our label, indexed by ``by_swarm``."""
    leases: Informer
    """Leases with our label, indexed by ``by_swarm``."""

    async def deliver(
        self, swarm: Object, ledger: Ledger, settings: share.Settings, *, kind: str, original: str
    ) -> None:
        """Make the objects match the record; then raise the first error, if any, so that the caller retries.

        Args:
            swarm: the owner of the objects.
            ledger: the stored record.
            settings: settings of the shares.
            kind: kind of the workers, a constant of ``swarm.slots``.
            original: name of the ConfigMap in k8s-swarm's layout; empty: none.
        """
        semaphore = asyncio.Semaphore(_AT_ONCE)
        wanted_leases: dict[str, dict[str, Any]] = {}
        wanted_maps: dict[str, dict[str, Any]] = {}
        own: dict[str, str] = {}
        names: set[str] = set()
        slots = ledger.slots_by_uid()
        for holder in self._recipients(ledger):
            name = f"{swarm.name}.{holder.pod}"
            wanted_leases[name] = lease(swarm, name, holder, settings)
            names.add(name)
            if not original and self._is_delivered(swarm, name, holder):
                continue
            texts = share.render(slots.get(holder.uid), holder, settings)
            own[f"{holder.pod}.json"] = texts[0]
            for index, text in enumerate(texts):
                part = f"{name}.{index}" if index else name
                body = wanted_maps[part] = config_map(swarm, part, holder.version, {share.KEY: text})
                marks = {
                    ANNOTATION_PARTS: str(len(texts)),
                    ANNOTATION_POD_UID: holder.uid,
                }
                body["metadata"]["annotations"] |= marks
        if kind == DEPLOYMENT:
            for slot in ledger.slots.values():
                name = f"{swarm.name}-{slot.name}"
                wanted_leases[name] = head(swarm, resources.LEASES, name) | {
                    "spec": {"holderIdentity": slot.pod} if slot.uid else {}
                }
        if original:
            # In a thread, because this takes seconds for 20,000 jobs.
            data = {ORIGINAL_KEY: await asyncio.to_thread(share.original, ledger)}
            fits = sum(map(len, own.values())) < share.LIMIT // 2  # the table may need the other half
            whole = data | (own if fits else {})
            wanted_maps[original] = config_map(swarm, original, ledger.version, whole)

        async def one(work: Any) -> None:
            async with semaphore:
                await work

        work = [
            self._ensure_map(swarm, name, body, adopt=name == original) for name, body in wanted_maps.items()
        ]
        work += [self._ensure_lease(swarm, name, body) for name, body in wanted_leases.items()]
        work += self._removals(swarm, self.config_maps, resources.CONFIG_MAPS, names | wanted_maps.keys())
        work += self._removals(swarm, self.leases, resources.LEASES, wanted_leases)
        results = await asyncio.gather(*(one(each) for each in work), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def acknowledgements(self, swarm: Object) -> dict[str, tuple[str, str, Object]]:
        """Return, by pod name, the pod's UID, its acknowledgement as JSON (may be empty), and the Lease.

        Ignores Leases that the Swarm does not own, because any user can set our label, and Leases of slots.
        """
        prefix = f"{swarm.name}."
        return {
            lease.name.removeprefix(prefix): (
                lease.annotations.get(ANNOTATION_POD_UID, ""),
                lease.annotations.get(ANNOTATION_ACKNOWLEDGED, ""),
                lease,
            )
            for lease in self.leases.store.by_index(INDEX_SWARM, swarm.key)
            if lease.name.startswith(prefix) and owner(lease) == swarm.uid
        }

    async def known_version(self, swarm: Object, original: str) -> int:
        """Return the highest version that workers may have read, for a Swarm that is new or has lost its record."""
        versions = [
            version_in(one.annotations)
            for one in self.config_maps.store.by_index(INDEX_SWARM, swarm.key)
            if owner(one) == swarm.uid
        ]
        if original:
            with contextlib.suppress(NotFound):
                there = await self.client.get(resources.CONFIG_MAPS, original, namespace=swarm.namespace)
                versions.append(share.original_version((there.get("data") or {}).get(ORIGINAL_KEY) or ""))
        return max(versions, default=0)

    async def end_session(self, lease: Object, session: str) -> bool:
        """Remove a session from its Lease; return False if the worker has renewed the Lease or the Lease was deleted.

        A renewal that arrives after this write fails with a conflict.
        """
        try:
            body = await self.client.get(resources.LEASES, lease.name, namespace=lease.namespace)
            if body["metadata"]["resourceVersion"] != lease.resource_version:
                return False
            body["metadata"]["annotations"].pop(ANNOTATION_ACKNOWLEDGED, None)
            body["metadata"]["annotations"][ANNOTATION_ENDED] = session
            body["spec"].pop("holderIdentity", None)
            await self.client.update(resources.LEASES, body)
        except (Conflict, NotFound):
            return False
        return True

    @staticmethod
    def _recipients(ledger: Ledger) -> list[Holder]:
        """Return one holder per pod name, preferably the pod in a slot: a replaced pod of the same name gets no share."""
        current = {slot.uid for slot in ledger.slots.values()}
        recipients: dict[str, Holder] = {}
        for uid, holder in ledger.holders.items():
            before = recipients.get(holder.pod)
            if before is None or before.uid not in current or uid in current:
                recipients[holder.pod] = holder
        return list(recipients.values())

    def _is_delivered(self, swarm: Object, name: str, holder: Holder) -> bool:
        """Report whether a share of one part is in its ConfigMap, current and unchanged; if so, it is not rendered."""
        cached = self.config_maps.store.get(f"{swarm.namespace}/{name}")
        if cached is None or cached.annotations.get(ANNOTATION_VERSION) != str(holder.version):
            return False
        written = (cached.field("data") or {}).get(CHECKSUM)
        return (
            cached.annotations.get(ANNOTATION_PARTS) == "1"
            and written == cached.annotations.get(ANNOTATION_CHECKSUM)
            and cached.annotations.get(ANNOTATION_POD_UID) == holder.uid
            and owner(cached) == swarm.uid
        )

    async def _ensure_map(self, swarm: Object, name: str, body: dict[str, Any], *, adopt: bool) -> None:
        cached = self.config_maps.store.get(f"{swarm.namespace}/{name}")
        if cached is None:
            await self._create(swarm, resources.CONFIG_MAPS, body, adopt=adopt)
            return
        check_whole(cached)
        (check_adoptable if adopt else check_owner)(swarm, cached, name)
        annotations = body["metadata"]["annotations"]
        written = (cached.field("data") or {}).get(CHECKSUM)
        if written == annotations[ANNOTATION_CHECKSUM] and all(
            cached.annotations.get(key) == value for key, value in annotations.items()
        ):
            return
        if await self._is_outdated(swarm, cached, int(annotations[ANNOTATION_VERSION])):
            return
        if adopt:
            there = await self.client.get(resources.CONFIG_MAPS, name, namespace=swarm.namespace)
            body = adopted(there, body)
        body["metadata"]["resourceVersion"] = cached.resource_version
        await self.client.update(resources.CONFIG_MAPS, body)

    async def _is_outdated(self, swarm: Object, cached: Object, version: int) -> bool:
        """Report whether another controller wrote a ConfigMap from a later record. The next reconcile reads that record."""
        written = version_in(cached.annotations)
        if written <= version:
            return False
        # A user may have changed the annotation, so check.
        there = await self.client.get(SWARMS, swarm.name, namespace=swarm.namespace)
        return handover.load((there.get("status") or {}).get("record") or "").version >= written

    async def _ensure_lease(self, swarm: Object, name: str, body: dict[str, Any]) -> None:
        cached = self.leases.store.get(f"{swarm.namespace}/{name}")
        if cached is None:
            await self._create(swarm, resources.LEASES, body)
            return
        check_whole(cached)
        check_owner(swarm, cached, name)
        annotations = body["metadata"].get("annotations") or {}
        if annotations:
            if cached.annotations.get(ANNOTATION_POD_UID) == annotations[ANNOTATION_POD_UID]:
                return
        elif (cached.spec or {}).get("holderIdentity") == body["spec"].get("holderIdentity"):
            return
        body["metadata"]["resourceVersion"] = cached.resource_version
        await self.client.update(resources.LEASES, body)

    async def _create(
        self, swarm: Object, resource: Resource, body: dict[str, Any], *, adopt: bool = False
    ) -> None:
        try:
            await self.client.create(resource, body, namespace=swarm.namespace)
        except AlreadyExists:
            name = body["metadata"]["name"]
            there = await self.client.get(resource, name, namespace=swarm.namespace)
            if not adopt:
                check_owner(swarm, there, name)
                raise
            check_adoptable(swarm, there, name)
            await self.client.update(resource, adopted(there, body))

    def _removals(
        self, swarm: Object, informer: Informer, resource: Resource, wanted: Collection[str]
    ) -> Iterable[Any]:
        for cached in informer.store.by_index(INDEX_SWARM, swarm.key):
            if cached.name not in wanted and owner(cached) == swarm.uid:
                yield self._remove(resource, cached)

    async def _remove(self, resource: Resource, cached: Object) -> None:
        with contextlib.suppress(NotFound):
            await self.client.delete(
                resource,
                cached.name,
                namespace=cached.namespace,
                uid=cached.uid,
                resource_version=cached.resource_version,
            )
