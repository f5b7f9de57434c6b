"""Stores records of moves as ControllerRevisions in the descheduler's own namespace, each with a keyed hash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

from clusterset.model import names
from controller_runtime import log, resources
from controller_runtime.auth.secret_key import SecretKey
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import AlreadyExists, ApiError, ConfigError, NotFound
from controller_runtime.events.recorder import EventRecorder
from controller_runtime.objects import Object
from descheduler.view import record as records
from descheduler.view.record import R

_REFUSED_CODES = (403, 413, 422)
"""Status codes if a permission, a quota or the size of a record prevents storing it, so retries would
fail."""


class NotRecordedError(Exception):
    """No record of a move can be written, so the pod stays. The text says why and what to do."""


@dataclass(eq=False)
class RecordStore(Generic[R]):
    """Writes, verifies and deletes records of one kind. The caller runs ``informer``."""

    client: Client
    kind: type[R]
    namespace: str
    """The descheduler's own namespace, in which tenants cannot write."""
    recorder: EventRecorder

    def __post_init__(self) -> None:
        self._key = SecretKey(self.client, namespace=self.namespace, name=records.KEY_OBJECT)
        self._log = log.get_logger(component="records")
        self.informer = Informer(
            self.client,
            resources.CONTROLLER_REVISIONS,
            namespace=self.namespace,
            label_selector=f"{names.LABEL_DESCHEDULER_RECORD}={self.kind.KIND}",
            name="descheduler-records",
        )

    def key_of(self, uid: str) -> str:
        """Return the cache key of the record of the pod with this UID."""
        return f"{self.namespace}/{records.record_name(uid)}"

    async def check(self) -> None:
        """Read the key of the hashes, without which no record can be written.

        Raises:
            NotRecordedError: there is no usable key.
            ApiError: the request failed.
        """
        await self._read_key()

    async def write(self, record: R) -> bool:
        """Write a record; return False if a valid record of the same pod is already stored.

        Raises:
            NotRecordedError: the record cannot be stored until an administrator fixes the cause in the text.
            ApiError: the request failed; the record may be stored or not.
        """
        key = await self._read_key()
        body = records.render(record, namespace=self.namespace, key=key)
        try:
            await self.client.create(resources.CONTROLLER_REVISIONS, body, namespace=self.namespace)
        except AlreadyExists:
            found = await self.client.get(
                resources.CONTROLLER_REVISIONS, record.name, namespace=self.namespace
            )
            try:
                records.parse(found, self.kind, key=key)
            except ValueError as error:
                where = f"ControllerRevision {self.namespace}/{record.name}"
                raise NotRecordedError(f"{where} has the record's name: {error}. Delete it") from None
            return False
        except ApiError as error:
            if error.code not in _REFUSED_CODES:
                raise
            raise NotRecordedError(
                f"no record can be written to namespace {self.namespace}: {error.message}"
            ) from error
        return True

    async def find(self, key: str) -> R | None:
        """Return the cached record of a cache key; None if there is none, or if it is invalid (logged, and an event).

        Raises:
            NotRecordedError: the key to verify the record is missing (logged, and an event). Try again later.
            ApiError: the request failed.
        """
        found = self.informer.store.get(key)
        if found is None:
            return None
        try:
            return records.parse(found, self.kind, key=await self._read_key())
        except NotRecordedError as error:
            self._refuse(found, str(error))
            raise
        except ValueError as error:
            self._refuse(found, f"{error}. {self.kind.REMEDY}")
            return None

    async def remove(self, record: R) -> bool:
        """Delete a record; return False if it did not exist."""
        try:
            await self.client.delete(resources.CONTROLLER_REVISIONS, record.name, namespace=self.namespace)
        except NotFound:
            return False
        return True

    async def _read_key(self) -> bytes:
        try:
            return await self._key.read()
        except ConfigError as error:
            raise NotRecordedError(str(error)) from error

    def _refuse(self, found: Object, why: str) -> None:
        self._log.error("record is not acted on", record=found.key, why=why)
        self.recorder.event(found, "Warning", "RecordRefused", f"Not acted on: {why}")
