"""Re-creates bare pods: writes a record, deletes the pod, creates the replacement, deletes the record.

After a crash the next leader completes the move. There is one queue key per record. Every step reads the pod from the
API server (``record.next_step``), so it can be repeated and needs no state of an earlier process. A record of an
earlier process is used only if its keyed hash is valid.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter

from controller_runtime import log, resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client, find
from controller_runtime.client.eviction import NO_DRY_RUN
from controller_runtime.errors import AlreadyExists, BadRequest, Conflict, Forbidden, Invalid, NotFound
from controller_runtime.events import EventRecorder
from controller_runtime.objects import Object
from controller_runtime.util.rate_limiter import ExponentialBackoff
from controller_runtime.workqueue.controller import Controller, Result
from descheduler.moving import record as records
from descheduler.moving.record import NotRecordedError, Record, RecordStore, Step

_SAFETY = 30.0
"""Seconds after which a pod that is being deleted is read again. Normally its delete event comes first."""
_KEY_RETRY = 60.0
"""Seconds after which a record is verified again if the key was missing."""
_WORKERS = 8
_QUOTA = "exceeded quota"
_CREATED = Counter("virtual_node_descheduler_recreated_total", "Bare pods re-created.", ["node"])


@dataclass(eq=False)
class Recreator:
    """Completes the move of every record."""

    client: Client
    pods: Informer
    recorder: EventRecorder
    store: RecordStore[Record]

    def __post_init__(self) -> None:
        self._log = log.get_logger(component="recreation")
        self.controller: Controller[str] = Controller(
            "recreation",
            self._reconcile,
            workers=_WORKERS,
            backoff=ExponentialBackoff(0.1, 60.0),
            flow=self._namespace,
        )
        self._own: dict[str, Record] = {}
        """Records written by this process and not deleted yet. The informer may not show them yet."""
        self._untouched: set[str] = set()
        """Keys of records in ``_own`` for which this process has not tried to delete the pod yet."""
        self._finished: set[str] = set()
        """Keys of records deleted by this process. The informer may still show them."""

    async def run(self) -> None:
        """Complete moves until cancelled, beginning with the records of earlier leaders."""
        informer = self.store.informer
        handlers = informer.add_handler(
            on_add=lambda found, _initial: self.controller.enqueue(found.key), on_delete=self._record_deleted
        )
        with handlers, self.pods.add_handler(on_delete=self._pod_deleted):
            async with asyncio.TaskGroup() as group:
                group.create_task(informer.run(), name="descheduler records")
                await informer.wait_synced()
                group.create_task(self.controller.run(), name="recreation")

    async def begin(
        self, pod: Mapping[str, Any], *, replacement: dict[str, Any], reason: str, force: bool = False
    ) -> None:
        """Begin the move of a bare pod; return when its record is stored. From then on the move is completed.

        Args:
            pod: pod from the API server. If it changes before its deletion, it is not moved.
            replacement: the pod to create in its place.
            reason: reason of the move, for the event.
            force: delete the pod without grace period.

        Raises:
            NotRecordedError: no record can be stored until an administrator fixes the cause in the text. Nothing
                was changed.
            ApiError: a request failed. The pod is unchanged.
        """
        metadata = pod["metadata"]
        try:
            namespace = await self.client.get(resources.NAMESPACES, metadata["namespace"])
        except Forbidden as error:
            raise NotRecordedError(error.message) from error
        record = Record(
            namespace=metadata["namespace"],
            namespace_uid=namespace["metadata"]["uid"],
            pod_name=metadata["name"],
            old_uid=metadata["uid"],
            old_version=metadata["resourceVersion"],
            node=pod["spec"].get("nodeName") or "",
            reason=reason,
            force=force,
            replacement=replacement,
        )
        key = self.store.key_of(record.old_uid)
        if key not in self._own and await self.store.write(record):
            self._own[key] = record
            self._untouched.add(key)
        self.controller.enqueue(key)

    async def rehearse(self, replacement: Mapping[str, Any]) -> None:
        """Create the replacement as a dry run under another name, before the pod is deleted.

        Raises:
            Invalid, Forbidden: the upper cluster would refuse the replacement.
            NotRecordedError: the key is missing, so no record can be written.
            ApiError: a request failed.
        """
        await self.store.read_key()
        metadata = {**replacement["metadata"], "generateName": "descheduler-rehearsal-"}
        del metadata["name"]
        try:
            await self.client.create(
                resources.PODS,
                {**replacement, "metadata": metadata},
                namespace=metadata["namespace"],
                params={"dryRun": "All"},
            )
        except Forbidden as error:
            if _QUOTA not in error.message:  # ignored, because the old pod still uses its part of the quota
                raise
        except BadRequest as error:
            if NO_DRY_RUN not in error.message:
                raise

    def _namespace(self, key: str) -> str:
        """Return the namespace of a record's pod; empty for the few records that an earlier process wrote."""
        record = self._own.get(key)
        return "" if record is None else record.namespace

    def _record_deleted(self, found: Object) -> None:
        self._own.pop(found.key, None)
        self._untouched.discard(found.key)
        self._finished.discard(found.key)

    def _pod_deleted(self, pod: Object) -> None:
        key = self.store.key_of(pod.uid)
        if key in self._own or key in self.store.informer.store:
            self.controller.enqueue(key)

    async def _reconcile(self, key: str) -> Result | None:
        if key in self._finished:
            return None
        try:
            record = self._own.get(key) or await self.store.find(key)
        except NotRecordedError:
            return Result(requeue_after=_KEY_RETRY)
        if record is None:
            return None
        pod = await find(self.client, resources.PODS, record.pod_name, namespace=record.namespace)
        if key in self._untouched and (pod is None or records.is_ending(record, pod)):
            # This process has not tried to delete the pod, so a user has. Such a pod must not be re-created.
            await self._forget(key, record)
            return None
        text = ""
        match records.next_step(record, pod):
            case Step.DELETE:
                assert pod is not None
                return await self._delete(key, record, pod)
            case Step.WAIT:
                return Result(requeue_after=_SAFETY)
            case Step.CREATE:
                if await self._has_namespace(record):
                    await self._create(record)
                else:
                    text = "the pod's namespace was deleted"
            case Step.DONE if pod is not None and not records.is_replacement(record, pod):
                text = "another pod has been created with that name"
            case Step.WITHDRAW:
                text = "pod has changed and is judged again"
        if text:
            self._log.info(text, pod=record.pod)
        await self._forget(key, record)
        return None

    async def _has_namespace(self, record: Record) -> bool:
        """Report whether the pod's namespace still exists, with the same UID and not being deleted."""
        namespace = await find(self.client, resources.NAMESPACES, record.namespace)
        metadata = (namespace or {}).get("metadata") or {}
        return metadata.get("uid") == record.namespace_uid and not metadata.get("deletionTimestamp")

    async def _delete(self, key: str, record: Record, pod: Mapping[str, Any]) -> Result | None:
        is_ending = bool(pod["metadata"].get("deletionTimestamp"))
        is_first = key in self._untouched
        self._untouched.discard(key)
        try:
            await self.client.delete(
                resources.PODS,
                record.pod_name,
                namespace=record.namespace,
                uid=record.old_uid,
                resource_version=None if is_ending else record.old_version,
                grace_period_seconds=0 if record.force else None,
            )
        except (Conflict, NotFound):
            if is_first:
                # A user has just changed or deleted the pod. A pod that a user deletes must not be
                # re-created.
                await self._forget(key, record)
                return None
            return Result(requeue_after=0)
        except Forbidden as error:
            if not is_first:  # an earlier attempt may have deleted the pod: keep its record
                raise
            # Our ValidatingAdmissionPolicy requires a label that the user has removed, or a permission is missing.
            self.recorder.event(
                _reference(record),
                "Normal",
                "NotRescheduled",
                f"Stays: it may not be deleted: {error.message}",
            )
            await self._forget(key, record)
            return None
        return Result(requeue_after=_SAFETY if not record.force else 0)

    async def _create(self, record: Record) -> None:
        try:
            created = await self.client.create(resources.PODS, record.replacement, namespace=record.namespace)
        except AlreadyExists:
            return
        except (Forbidden, Invalid) as error:
            # For example, other pods have used up the quota. The record stays, and the creation is retried.
            self.recorder.event(
                _reference(record),
                "Warning",
                "RescheduleDelayed",
                f"Cannot be re-created yet: {error.message}",
            )
            raise
        _CREATED.labels(record.node).inc()
        self.recorder.event(created, "Normal", "Rescheduled", _message(record))
        self._log.info("pod re-created", pod=record.pod, uid=record.old_uid, node=record.node)

    async def _forget(self, key: str, record: Record) -> None:
        if await self.store.remove(record):
            self._finished.add(key)
        self._own.pop(key, None)
        self._untouched.discard(key)


def _reference(record: Record) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": record.namespace,
        "name": record.pod_name,
        "uid": record.old_uid,
    }


def _message(record: Record) -> str:
    text = f"Moved off {record.node}" if record.node else "Re-created"
    return f"{text}: {record.reason}" if record.reason else text
