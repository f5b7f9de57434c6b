"""The record of a bare pod that is being re-created, so that a crash does not lose the pod. Does no IO.

A record is written before the pod is deleted, and deleted after the replacement exists. Every later leader can
complete it, at any point that its writer had reached (``next_step``).

The descheduler deletes and creates pods by records, with permissions that tenants do not have. So records exist only
in the descheduler's own namespace and have a keyed hash over their content. A record without a valid hash is ignored.

A record is a ControllerRevision, the API's object for an immutable snapshot. Permission to create and delete it does
not apply to ConfigMaps or Secrets, and its size limit is etcd's 1.5 MiB, not 1 MiB.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from controller_runtime.api import names
from controller_runtime.api.keyed_hash import is_authentic, keyed_hash
from controller_runtime.objects import Object

KEY_OBJECT = "virtual-node-descheduler-key"
"""Name of the Secret with the key of the hashes."""
SELECTOR = f"{names.LABEL_DESCHEDULER_RECORD}=true"
_PREFIX = "virtual-node-descheduler-"
_PURPOSE = "descheduler record"
_CONTENT, _HASH = "record", "hash"


@dataclass(frozen=True, slots=True)
class Record:
    """A pod that is being re-created."""

    namespace: str
    namespace_uid: str
    """UID of the namespace. A later namespace of that name may belong to another tenant; no pod is created there."""
    pod_name: str
    old_uid: str
    old_version: str
    """The resourceVersion that was judged. It is the precondition of the deletion, so a changed pod is judged again."""
    node: str
    """Node that the pod was bound to; empty: none."""
    reason: str
    force: bool
    """Delete without grace period, because the lost cluster cannot confirm the end."""
    replacement: dict[str, Any]

    @property
    def name(self) -> str:
        """Name of the object. The pod UID makes it unique over all namespaces and times."""
        return record_name(self.old_uid)


def record_name(uid: str) -> str:
    """Return the name of a pod's record."""
    return _PREFIX + uid


def render(record: Record, *, namespace: str, key: bytes) -> dict[str, Any]:
    """Return the ControllerRevision for a record.

    Args:
        record: its content.
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
            "labels": {names.LABEL_DESCHEDULER_RECORD: "true"},
            "annotations": {
                "kubernetes.io/description": (
                    f"Pod {record.namespace}/{record.pod_name} is being re-created by the descheduler from this "
                    "record. Deleting it while the pod is gone loses the pod."
                )
            },
        },
        "revision": 1,
        "data": {_CONTENT: content, _HASH: keyed_hash(key, _PURPOSE, content)},
    }


def parse(found: Object | Mapping[str, Any], *, key: bytes) -> Record:
    """Return the record in a ControllerRevision.

    Raises:
        ValueError: the hash is not valid for this key, the object is a copy under another name, or another version
            wrote it.
    """
    if isinstance(found, Object):
        name, data = found.name, found.field("data")
    else:
        name, data = found["metadata"]["name"], found.get("data")
    data = data if isinstance(data, dict) else {}
    content, mark = data.get(_CONTENT), data.get(_HASH)
    if not isinstance(mark, str) or not is_authentic(key, _PURPOSE, content, mark) or content is None:
        raise ValueError("its hash is not valid: this descheduler did not write it, or its key was replaced")
    try:
        record = Record(**content)
    except TypeError as error:
        raise ValueError(f"another version of the descheduler wrote it: {error}") from None
    if record.name != name:
        raise ValueError(f"it is a copy of {record.name}")
    return record


class Step(enum.Enum):
    """Next step of a record."""

    DELETE = enum.auto()
    """The pod exists and is unchanged since it was judged, or must be deleted without grace period."""
    WITHDRAW = enum.auto()
    """The pod has changed since it was judged, so the precondition of the deletion can never be met."""
    WAIT = enum.auto()
    """The pod is being deleted."""
    CREATE = enum.auto()
    """No pod has the name."""
    DONE = enum.auto()
    """Another pod has the name: the replacement or one that a user created."""


def next_step(record: Record, pod: Mapping[str, Any] | None) -> Step:
    """Return the next step of a record.

    No state in memory is used, so a crash at any point is harmless. UID and resourceVersion are preconditions of the
    deletion. A delayed deletion by a dead process therefore takes effect before this read, or never if the pod has
    changed.

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
        # In a lost cluster, no kubelet confirms the deletion.
        return Step.DELETE if record.force and metadata.get("deletionGracePeriodSeconds") != 0 else Step.WAIT
    return Step.DELETE if metadata["resourceVersion"] == record.old_version else Step.WITHDRAW


def is_ending(record: Record, pod: Mapping[str, Any]) -> bool:
    """Report whether the pod of that name is the old one and is being deleted."""
    metadata = pod["metadata"]
    return metadata["uid"] == record.old_uid and bool(metadata.get("deletionTimestamp"))


def is_replacement(record: Record, pod: Mapping[str, Any]) -> bool:
    """Report whether the pod of that name was created from this record."""
    annotations = pod["metadata"].get("annotations") or {}
    return bool(annotations.get(names.ANNOTATION_REPLACES) == record.old_uid)
