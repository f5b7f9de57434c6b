"""The record of a bare pod that is being re-created, so that a crash does not lose the pod, and the store of records.

A record is written before the pod is deleted, and deleted after the replacement exists. Every later leader
can complete the move from any point that the writer had reached (``next_step``).

The descheduler deletes and creates pods by records, with permissions that tenants do not have. So records exist only
in the descheduler's own namespace and have a keyed hash over their content. A record without a valid hash is ignored.

A record is a ControllerRevision, the API's object for an immutable snapshot, and not a ConfigMap or Secret:
so the descheduler needs no permission to create or delete those, and the size limit is etcd's 1.5 MiB instead
of 1 MiB.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, TypeVar

from clusterset.model import names
from controller_runtime import log, resources
from controller_runtime.apimachinery.keyed_hash import is_authentic, keyed_hash
from controller_runtime.auth.secret_key import SecretKey
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import AlreadyExists, ApiError, ConfigError, NotFound
from controller_runtime.events import EventRecorder
from controller_runtime.objects import Object

KEY_OBJECT = "virtual-node-descheduler-key"
"""Name of the Secret with the key of the hashes."""
_PREFIX = "virtual-node-descheduler-"
_CONTENT, _HASH = "record", "hash"
_REFUSED_CODES = (403, 413, 422)
"""Status codes if a permission, a quota or the size of a record prevents storing it, so retries would fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Base of the kinds of records: a pod that is being moved."""

    PURPOSE: ClassVar[str]
    """Input of the keyed hash, so that a record of one kind is not valid as another kind."""
    KIND: ClassVar[str]
    """Value of the label of ControllerRevisions of this kind."""
    DESCRIPTION: ClassVar[str]
    REMEDY: ClassVar[str]
    """What to do with an object whose hash is not valid."""

    namespace: str
    pod_name: str
    old_uid: str
    node: str
    """Node that the pod was bound to; empty: none."""
    reason: str

    @property
    def name(self) -> str:
        """Return the name of the ControllerRevision. The pod's UID makes it unique."""
        return record_name(self.old_uid)

    @property
    def pod(self) -> str:
        """Return ``namespace/name`` of the pod."""
        return f"{self.namespace}/{self.pod_name}"


R = TypeVar("R", bound=Stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record(Stored):
    """A pod that is being re-created."""

    PURPOSE: ClassVar[str] = "descheduler record"
    KIND: ClassVar[str] = "true"
    DESCRIPTION: ClassVar[str] = (
        "A pod is being re-created by the descheduler from this record. Deleting it while the pod is gone loses the pod."
    )
    REMEDY: ClassVar[str] = (
        "Create its pod from data.record.replacement if you know who wrote it, then delete this object"
    )

    namespace_uid: str
    """UID of the namespace. A later namespace of that name may belong to another tenant; no pod is created there."""
    old_version: str
    """The pod's resourceVersion when the move was decided. It is the precondition of the deletion, so a
    changed pod is not deleted."""
    force: bool
    """Delete the pod without grace period, because a lost cluster cannot confirm that the pod has ended."""
    replacement: dict[str, Any]


def record_name(uid: str) -> str:
    """Return the name of a pod's record."""
    return _PREFIX + uid


def render(record: Stored, *, namespace: str, key: bytes) -> dict[str, Any]:
    """Return the ControllerRevision for a record.

    Args:
        record: the content.
        namespace: the descheduler's own namespace.
        key: key of the hash.
    """
    content = asdict(record)
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": record.name,
            "namespace": namespace,
            "labels": {names.LABEL_DESCHEDULER_RECORD: record.KIND},
            "annotations": {"kubernetes.io/description": record.DESCRIPTION},
        },
        "revision": 1,
        "data": {_CONTENT: content, _HASH: keyed_hash(key, record.PURPOSE, content)},
    }


def parse(found: Object | Mapping[str, Any], kind: type[R], *, key: bytes) -> R:
    """Return the record in a ControllerRevision.

    Args:
        found: the object.
        kind: the expected kind of record.
        key: key of the hash.

    Raises:
        ValueError: the hash is not valid for this key, the object is a copy under another name, or another
            version of the descheduler wrote it.
    """
    if isinstance(found, Object):
        name, data = found.name, found.field("data")
    else:
        name, data = found["metadata"]["name"], found.get("data")
    data = data if isinstance(data, dict) else {}
    content, mark = data.get(_CONTENT), data.get(_HASH)
    if not isinstance(mark, str) or not is_authentic(key, kind.PURPOSE, content, mark) or content is None:
        raise ValueError("its hash is not valid: this descheduler did not write it, or its key was replaced")
    try:
        record = kind(**content)
    except TypeError as error:
        raise ValueError(f"another version of the descheduler wrote it: {error}") from None
    if record.name != name:
        raise ValueError(f"it is a copy of {record.name}")
    return record


class Step(enum.Enum):
    """Next step of a record."""

    DELETE = enum.auto()
    """Delete the pod: it is unchanged, or it is being deleted with a grace period that must become 0."""
    WITHDRAW = enum.auto()
    """Drop the record: the pod has changed, so the precondition of the deletion can never be met."""
    WAIT = enum.auto()
    """Wait: the pod is being deleted."""
    CREATE = enum.auto()
    """Create the replacement: no pod has the name."""
    DONE = enum.auto()
    """Drop the record: another pod has the name, either the replacement or a pod that a user created."""


def next_step(record: Record, pod: Mapping[str, Any] | None) -> Step:
    """Return the next step of a record.

    No state in memory is used, so a crash at any point is harmless. UID and resourceVersion are preconditions of the
    deletion. So a delayed deletion request of an earlier process cannot delete the replacement or a changed
    pod.

    Args:
        record: a verified record.
        pod: the pod of that name, just read from the API server; None: there is none.
    """
    if pod is None:
        return Step.CREATE
    metadata = pod["metadata"]
    if metadata["uid"] != record.old_uid:
        return Step.DONE
    if metadata.get("deletionTimestamp"):
        # With ``force``, delete again with grace period 0, because no kubelet of a lost cluster confirms the
        # deletion.
        return Step.DELETE if record.force and metadata.get("deletionGracePeriodSeconds") != 0 else Step.WAIT
    return Step.DELETE if metadata["resourceVersion"] == record.old_version else Step.WITHDRAW


def is_ending(record: Record, pod: Mapping[str, Any]) -> bool:
    """Report whether a pod with the record's pod name is the old pod and is being deleted."""
    metadata = pod["metadata"]
    return metadata["uid"] == record.old_uid and bool(metadata.get("deletionTimestamp"))


def is_replacement(record: Record, pod: Mapping[str, Any]) -> bool:
    """Report whether a pod with the record's pod name was created from this record."""
    annotations = pod["metadata"].get("annotations") or {}
    return bool(annotations.get(names.ANNOTATION_REPLACES) == record.old_uid)


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
        self._key = SecretKey(self.client, namespace=self.namespace, name=KEY_OBJECT)
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
        return f"{self.namespace}/{record_name(uid)}"

    async def write(self, record: R) -> bool:
        """Write a record; return False if a valid record of the same pod is already stored.

        Raises:
            NotRecordedError: the record cannot be stored until an administrator fixes the cause in the text.
            ApiError: the request failed; the record may be stored or not.
        """
        key = await self.read_key()
        body = render(record, namespace=self.namespace, key=key)
        try:
            await self.client.create(resources.CONTROLLER_REVISIONS, body, namespace=self.namespace)
        except AlreadyExists:
            found = await self.client.get(
                resources.CONTROLLER_REVISIONS, record.name, namespace=self.namespace
            )
            try:
                parse(found, self.kind, key=key)
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
            return parse(found, self.kind, key=await self.read_key())
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

    async def read_key(self) -> bytes:
        """Return the key of the hashes, without which no record can be written.

        Raises:
            NotRecordedError: there is no usable key.
            ApiError: the request failed.
        """
        try:
            return await self._key.read()
        except ConfigError as error:
            raise NotRecordedError(str(error)) from error

    def _refuse(self, found: Object, why: str) -> None:
        self._log.error("record is not acted on", record=found.key, why=why)
        self.recorder.event(found, "Warning", "RecordRefused", f"Not acted on: {why}")
