"""Writes the Leases and ConfigMaps that workers read. All content is derived from a stored record (``Ledger``)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from clusterset.model.names import SWARMS
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import AlreadyExists, Conflict, NotFound
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from swarm import share
from swarm.controller import owned_objects
from swarm.handover import ledger as ledgers
from swarm.handover.ledger import Holder, Ledger
from swarm.slots import DEPLOYMENT

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
            wanted_leases[name] = owned_objects.lease(swarm, name, holder, settings)
            names.add(name)
            if not original and self._is_delivered(swarm, name, holder):
                continue
            texts = share.render(slots.get(holder.uid), holder, settings)
            own[f"{holder.pod}.json"] = texts[0]
            for index, text in enumerate(texts):
                part = f"{name}.{index}" if index else name
                body = wanted_maps[part] = owned_objects.config_map(
                    swarm, part, holder.version, {share.KEY: text}
                )
                marks = {
                    owned_objects.ANNOTATION_PARTS: str(len(texts)),
                    owned_objects.ANNOTATION_POD_UID: holder.uid,
                }
                body["metadata"]["annotations"] |= marks
        if kind == DEPLOYMENT:
            for slot in ledger.slots.values():
                name = f"{swarm.name}-{slot.name}"
                wanted_leases[name] = owned_objects.head(swarm, resources.LEASES, name) | {
                    "spec": {"holderIdentity": slot.pod} if slot.uid else {}
                }
        if original:
            # In a thread, because this takes seconds for 20,000 jobs.
            data = {owned_objects.ORIGINAL_KEY: await asyncio.to_thread(share.original, ledger)}
            fits = sum(map(len, own.values())) < share.LIMIT // 2  # the table may need the other half
            whole = data | (own if fits else {})
            wanted_maps[original] = owned_objects.config_map(swarm, original, ledger.version, whole)

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
                lease.annotations.get(owned_objects.ANNOTATION_POD_UID, ""),
                lease.annotations.get(owned_objects.ANNOTATION_ACKNOWLEDGED, ""),
                lease,
            )
            for lease in self.leases.store.by_index(owned_objects.INDEX_SWARM, swarm.key)
            if lease.name.startswith(prefix) and owned_objects.owner(lease) == swarm.uid
        }

    async def known_version(self, swarm: Object, original: str) -> int:
        """Return the highest version that workers may have read, for a Swarm that is new or has lost its record."""
        versions = [
            owned_objects.version_in(one.annotations)
            for one in self.config_maps.store.by_index(owned_objects.INDEX_SWARM, swarm.key)
            if owned_objects.owner(one) == swarm.uid
        ]
        if original:
            with contextlib.suppress(NotFound):
                there = await self.client.get(resources.CONFIG_MAPS, original, namespace=swarm.namespace)
                versions.append(
                    share.original_version((there.get("data") or {}).get(owned_objects.ORIGINAL_KEY) or "")
                )
        return max(versions, default=0)

    async def end_session(self, lease: Object, session: str) -> bool:
        """Remove a session from its Lease; return False if the worker has renewed the Lease or the Lease was deleted.

        A renewal that arrives after this write fails with a conflict.
        """
        try:
            body = await self.client.get(resources.LEASES, lease.name, namespace=lease.namespace)
            if body["metadata"]["resourceVersion"] != lease.resource_version:
                return False
            body["metadata"]["annotations"].pop(owned_objects.ANNOTATION_ACKNOWLEDGED, None)
            body["metadata"]["annotations"][owned_objects.ANNOTATION_ENDED] = session
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
        if cached is None or cached.annotations.get(owned_objects.ANNOTATION_VERSION) != str(holder.version):
            return False
        written = (cached.field("data") or {}).get(owned_objects.CHECKSUM)
        return (
            cached.annotations.get(owned_objects.ANNOTATION_PARTS) == "1"
            and written == cached.annotations.get(owned_objects.ANNOTATION_CHECKSUM)
            and cached.annotations.get(owned_objects.ANNOTATION_POD_UID) == holder.uid
            and owned_objects.owner(cached) == swarm.uid
        )

    async def _ensure_map(self, swarm: Object, name: str, body: dict[str, Any], *, adopt: bool) -> None:
        cached = self.config_maps.store.get(f"{swarm.namespace}/{name}")
        if cached is None:
            await self._create(swarm, resources.CONFIG_MAPS, body, adopt=adopt)
            return
        owned_objects.check_whole(cached)
        (owned_objects.check_adoptable if adopt else owned_objects.check_owner)(swarm, cached, name)
        annotations = body["metadata"]["annotations"]
        written = (cached.field("data") or {}).get(owned_objects.CHECKSUM)
        if written == annotations[owned_objects.ANNOTATION_CHECKSUM] and all(
            cached.annotations.get(key) == value for key, value in annotations.items()
        ):
            return
        if await self._is_outdated(swarm, cached, int(annotations[owned_objects.ANNOTATION_VERSION])):
            return
        if adopt:
            there = await self.client.get(resources.CONFIG_MAPS, name, namespace=swarm.namespace)
            body = owned_objects.adopted(there, body)
        body["metadata"]["resourceVersion"] = cached.resource_version
        await self.client.update(resources.CONFIG_MAPS, body)

    async def _is_outdated(self, swarm: Object, cached: Object, version: int) -> bool:
        """Report whether another controller wrote a ConfigMap from a later record. The next reconcile reads that record."""
        written = owned_objects.version_in(cached.annotations)
        if written <= version:
            return False
        # A user may have changed the annotation, so check.
        there = await self.client.get(SWARMS, swarm.name, namespace=swarm.namespace)
        return ledgers.load((there.get("status") or {}).get("record") or "").version >= written

    async def _ensure_lease(self, swarm: Object, name: str, body: dict[str, Any]) -> None:
        cached = self.leases.store.get(f"{swarm.namespace}/{name}")
        if cached is None:
            await self._create(swarm, resources.LEASES, body)
            return
        owned_objects.check_whole(cached)
        owned_objects.check_owner(swarm, cached, name)
        annotations = body["metadata"].get("annotations") or {}
        if annotations:
            if (
                cached.annotations.get(owned_objects.ANNOTATION_POD_UID)
                == annotations[owned_objects.ANNOTATION_POD_UID]
            ):
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
                owned_objects.check_owner(swarm, there, name)
                raise
            owned_objects.check_adoptable(swarm, there, name)
            await self.client.update(resource, owned_objects.adopted(there, body))

    def _removals(
        self, swarm: Object, informer: Informer, resource: Resource, wanted: Collection[str]
    ) -> Iterable[Any]:
        for cached in informer.store.by_index(owned_objects.INDEX_SWARM, swarm.key):
            if cached.name not in wanted and owned_objects.owner(cached) == swarm.uid:
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
