"""The record of a bare pod that is being re-created, so that a crash does not lose the pod. Does no IO.

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
from typing import Any, ClassVar, TypeVar

from clusterset.model import names
from controller_runtime.apimachinery.keyed_hash import is_authentic, keyed_hash
from controller_runtime.objects import Object

KEY_OBJECT = "virtual-node-descheduler-key"
"""Name of the Secret with the key of the hashes."""
_PREFIX = "virtual-node-descheduler-"
_CONTENT, _HASH = "record", "hash"


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
