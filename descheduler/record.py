"""A bare pod between its deletion and its re-creation: the ConfigMap that makes sure it is never lost. Pure.

The record is written before the pod is deleted and removed after the replacement exists. It lies in the pod's own
namespace, where whoever may read the pod may read it, and goes with the namespace. Whoever finds one can finish
the work, whatever point its writer had reached (``next_step``).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from controller_runtime.api import names
from controller_runtime.objects import Object

SELECTOR = f"{names.LABEL_DESCHEDULER_RECORD}=true"
_PREFIX = "virtual-node-descheduler-"


@dataclass(frozen=True, slots=True)
class Record:
    """One pod under way."""

    namespace: str
    pod_name: str
    old_uid: str
    old_version: str
    """The resourceVersion that was judged, the precondition of the deletion: any later state is judged anew."""
    node: str
    """Where it was stuck."""
    reason: str
    force: bool
    """Delete without grace: the cluster that would have to confirm the end is lost."""
    replacement: dict[str, Any]

    @property
    def name(self) -> str:
        """The ConfigMap's name: one per pod that ever was."""
        return record_name(self.old_uid)


def record_name(uid: str) -> str:
    """The name of a pod's record."""
    return _PREFIX + uid


def render(record: Record) -> dict[str, Any]:
    """The ConfigMap."""
    facts = {
        "name": record.pod_name,
        "uid": record.old_uid,
        "resourceVersion": record.old_version,
        "node": record.node,
        "reason": record.reason,
        "force": record.force,
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": record.name,
            "namespace": record.namespace,
            "labels": {names.LABEL_DESCHEDULER_RECORD: "true"},
            "annotations": {
                "kubernetes.io/description": (
                    f"Pod {record.pod_name} is being re-created by the descheduler from this record. "
                    "Removing it while the pod is gone loses the pod."
                )
            },
        },
        "data": {
            "record": msgspec.json.encode(facts).decode(),
            "pod": msgspec.json.encode(record.replacement).decode(),
        },
    }


def parse(found: Object | Mapping[str, Any]) -> Record:
    """Read a ConfigMap.

    Raises:
        ValueError: it is no record, or was changed by somebody.
    """
    if isinstance(found, Object):
        namespace, data = found.namespace, found.field("data") or {}
    else:
        namespace, data = found["metadata"]["namespace"], found.get("data") or {}
    try:
        facts = msgspec.json.decode(data["record"])
        pod = msgspec.json.decode(data["pod"])
        if pod["metadata"]["name"] != facts["name"] or not pod["spec"]["containers"]:
            raise ValueError("the pod in it is not the one it names")
        return Record(
            namespace=namespace,
            pod_name=facts["name"],
            old_uid=facts["uid"],
            old_version=facts["resourceVersion"],
            node=facts["node"],
            reason=facts["reason"],
            force=bool(facts["force"]),
            replacement=pod,
        )
    except (KeyError, TypeError, msgspec.DecodeError, ValueError) as error:
        raise ValueError(f"not a record that can be used: {error!r}") from None


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
