"""The record of a bare pod between its deletion and its re-creation, so that a crash does not lose the pod. Pure.

A record is written before the pod is deleted and removed after the replacement exists. Whoever finds one can finish
the work, whatever point its writer had reached (``next_step``).

The descheduler deletes and creates pods by a record, with permissions that no tenant has. So records are only in the
descheduler's own namespace, and carry a keyed hash over everything that is acted upon. A record without a valid hash
is not acted on.

A record is a ControllerRevision, the API's object for an immutable snapshot: permission to create and delete these
reaches no ConfigMap or Secret, and the limit is etcd's 1.5 MiB, not 1 MiB.
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
"""The Secret with the key of the records' hashes."""
SELECTOR = f"{names.LABEL_DESCHEDULER_RECORD}=true"
_PREFIX = "virtual-node-descheduler-"
_PURPOSE = "descheduler record"
_CONTENT, _HASH = "record", "hash"


@dataclass(frozen=True, slots=True)
class Record:
    """One pod that is being re-created."""

    namespace: str
    namespace_uid: str
    """A later namespace of the same name may be another tenant's; the pod is not created there."""
    pod_name: str
    old_uid: str
    old_version: str
    """The resourceVersion that was judged, the precondition of the deletion: any later state is judged again."""
    node: str
    """The node that the pod was bound to; empty: none."""
    reason: str
    force: bool
    """Delete without grace: the cluster that would have to confirm the end is lost."""
    replacement: dict[str, Any]

    @property
    def name(self) -> str:
        """The record's name: one for each pod that ever existed, in whichever namespace."""
        return record_name(self.old_uid)


def record_name(uid: str) -> str:
    """Return the name of a pod's record."""
    return _PREFIX + uid


def render(record: Record, *, namespace: str, key: bytes) -> dict[str, Any]:
    """Return the ControllerRevision for a record.

    Args:
        record: what is to be done.
        namespace: the descheduler's own.
        key: of the keyed hash.
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
        ValueError: it was not written with this key, was changed, is a copy under another name, or is of another version.
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
    """What is to be done next about a record."""

    DELETE = enum.auto()
    """The pod is there, in the very state that was judged."""
    WITHDRAW = enum.auto()
    """The pod is there and has changed since: the deletion can never have its precondition fulfilled any more."""
    WAIT = enum.auto()
    """The pod is ending."""
    CREATE = enum.auto()
    """The name is free."""
    DONE = enum.auto()
    """Another pod has the name: the replacement, or one that somebody else made."""


def next_step(record: Record, pod: Mapping[str, Any] | None) -> Step:
    """Decide from the record and the pod of that name as the server has it now; None: there is none.

    Deciding nothing by memory is what makes any crash harmless: deletion has the uid and the resourceVersion as its
    precondition, so a deletion still on its way from a dead process either takes effect before this look or, once
    the pod has changed, never.
    """
    if pod is None:
        return Step.CREATE
    metadata = pod["metadata"]
    if metadata["uid"] != record.old_uid:
        return Step.DONE
    if metadata.get("deletionTimestamp"):
        # Ending pods of a lost cluster never end by themselves.
        return Step.DELETE if record.force and metadata.get("deletionGracePeriodSeconds") != 0 else Step.WAIT
    return Step.DELETE if metadata["resourceVersion"] == record.old_version else Step.WITHDRAW


def is_ending(record: Record, pod: Mapping[str, Any]) -> bool:
    """Whether the pod of that name is the old one, being deleted."""
    metadata = pod["metadata"]
    return metadata["uid"] == record.old_uid and bool(metadata.get("deletionTimestamp"))


def is_replacement(record: Record, pod: Mapping[str, Any]) -> bool:
    """Whether the pod of that name is the one made from this record."""
    annotations = pod["metadata"].get("annotations") or {}
    return bool(annotations.get(names.ANNOTATION_REPLACES) == record.old_uid)
