"""The record of a pod whose replacement must be Ready before it leaves (*departure*), and the next step. Does no IO.

The ReplicaSet of a Deployment selects its pods by label ``pod-template-hash``. The descheduler changes this label of a pod. The
ReplicaSet then releases the pod and creates a replacement, and Services still send requests to the released pod, because they
select other labels. The released pod is evicted when enough pods of the ReplicaSet are available. If the original label is
restored, the ReplicaSet adopts the pod again and deletes the pod that is not Ready.

The label and the annotation of a released pod prove nothing, because users can write them. A pod is evicted only because of a
record with a valid keyed hash. A released pod without a record gets its label back.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from clusterset.model import names
from clusterset.model.moving import drain, movable
from clusterset.model.pod.conditions import condition, is_finished, is_true
from controller_runtime.apimachinery import timestamps
from descheduler.view.record import Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure(Stored):
    """A pod that leaves when its replacement is Ready."""

    PURPOSE: ClassVar[str] = "descheduler departure"
    KIND: ClassVar[str] = "departure"
    DESCRIPTION: ClassVar[str] = "The descheduler evicts this pod when its replacement is Ready: "
    REMEDY: ClassVar[str] = "Its pod gets its label pod-template-hash back. Delete this object"

    strategy: str
    owner_name: str
    """Name of the ReplicaSet."""
    owner_uid: str
    template_hash: str
    """Value of the pod's label before the release."""
    need: int
    """Available pods of the owner at the release. The eviction must leave as many, or the owner's replicas if fewer."""
    deadline: str
    """RFC 3339: when the pod gets its label back if its replacement is not Ready."""
    request: str = ""
    """Drain request of the node that this departure is part of; empty: none. If the request changes, the pod stays."""

    @property
    def owner_key(self) -> str:
        """Return ``namespace/UID`` of the owner."""
        return f"{self.namespace}/{self.owner_uid}"


@dataclass(frozen=True, slots=True)
class Owner:
    """A ReplicaSet or StatefulSet."""

    desired: int
    min_ready: float
    """Seconds that a pod must be Ready before it counts as available."""
    trouble: str = ""
    """Why the owner cannot create pods, such as an exceeded quota; empty: it can."""
    is_orphaning: bool = False
    """Whether it is being deleted with ``--cascade=orphan``, so that its pods stay without an owner."""


class Step(enum.Enum):
    """Next step of a departure."""

    WAIT = enum.auto()
    EVICT = enum.auto()
    """Evict the pod: its owner does not need it any more."""
    DELETE = enum.auto()
    """Delete the pod: its owner was deleted. Garbage collection ignores the pod, which has no ownerReference."""
    RESTORE = enum.auto()
    """Restore the label, so that the ReplicaSet adopts the pod again."""
    FORGET = enum.auto()
    """Delete the record: the pod is gone, is being deleted, or is no longer released."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The next step of one departure; for ``RESTORE``, also why."""

    departure: Departure
    step: Step
    why: str = ""


def decide(
    departures: Sequence[Departure],
    pods: Mapping[str, Mapping[str, Any]],
    owner: Owner | None,
    *,
    now: datetime,
    cancelled: Mapping[str, str],
    unseen: Collection[str] = (),
) -> list[Decision]:
    """Return the next step of each departure of one owner.

    Together, the evictions leave as many available pods as the owner had at the release, or wants now if fewer.

    Args:
        departures: all departures of the owner.
        pods: pods by UID, just read from the API server: those of the owner and those that it released.
        owner: the ReplicaSet; None: it was deleted.
        now: wall clock.
        cancelled: UID of a pod → why it must stay.
        unseen: UIDs of pods that may run although they are not Ready, because their lower cluster does not answer.
    """
    leaving = {one.old_uid for one in departures}
    available = (
        count_available(pods, departures[0].owner_uid, owner, now=now, leaving=leaving) if departures else 0
    )
    decisions = []
    for one in sorted(departures, key=lambda one: (one.deadline, one.old_uid)):
        pod, is_unseen = pods.get(one.old_uid), one.old_uid in unseen
        step, why = _step(
            one,
            pod,
            owner,
            available,
            now=now,
            why_cancelled=cancelled.get(one.old_uid, ""),
            is_unseen=is_unseen,
        )
        if step is Step.EVICT and pod is not None and is_true(pod.get("status"), "Ready"):
            available -= 1
        decisions.append(Decision(one, step, why))
    return decisions


def _step(
    one: Departure,
    pod: Mapping[str, Any] | None,
    owner: Owner | None,
    available: int,
    *,
    now: datetime,
    why_cancelled: str,
    is_unseen: bool,
) -> tuple[Step, str]:
    if pod is None or pod["metadata"].get("deletionTimestamp") or not is_released(one, pod):
        return Step.FORGET, ""
    status = pod.get("status")
    if owner is None:
        return Step.DELETE, ""
    if owner.is_orphaning:
        return Step.RESTORE, "its ReplicaSet is being deleted without its pods"
    is_ready = is_true(status, "Ready")
    if is_finished(status) or not (is_ready or is_unseen):
        return Step.EVICT, ""
    if why_cancelled:
        return Step.RESTORE, why_cancelled
    # While the pod is Ready, it is one of the available pods.
    if available - is_ready >= min(owner.desired, one.need):
        return Step.EVICT, ""
    if now >= timestamps.parse(one.deadline):
        return (
            Step.RESTORE,
            f"its replacement was not Ready in time{': ' if owner.trouble else ''}{owner.trouble}",
        )
    return Step.WAIT, ""


def count_available(
    pods: Mapping[str, Mapping[str, Any]],
    owner_uid: str,
    owner: Owner | None,
    *,
    now: datetime,
    leaving: set[str] | frozenset[str] = frozenset(),
) -> int:
    """Return the number of available pods: those of the owner, and Ready pods in ``leaving``."""
    min_ready = owner.min_ready if owner is not None else 0.0
    return sum(
        is_true(pod.get("status"), "Ready") if uid in leaving else is_available(pod, min_ready, now)
        for uid, pod in pods.items()
        if not pod["metadata"].get("deletionTimestamp")
        and (uid in leaving or (movable.controller(pod["metadata"]) or {}).get("uid") == owner_uid)
    )


def is_available(pod: Mapping[str, Any], min_ready: float, now: datetime) -> bool:
    """Report whether a pod has been Ready for ``min_ready`` seconds."""
    ready = condition(pod.get("status"), "Ready")
    if ready.get("status") != "True" or not min_ready:
        return ready.get("status") == "True"
    since = ready.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"]
    return (now - timestamps.parse(since)).total_seconds() >= min_ready


def is_released(one: Departure, pod: Mapping[str, Any]) -> bool:
    """Report whether the pod has another hash than before the release, and no other owner has adopted it."""
    labels = pod["metadata"].get("labels") or {}
    owner = movable.controller(pod["metadata"])
    return labels.get(drain.TEMPLATE_HASH) != one.template_hash and (
        owner is None or owner.get("uid") == one.owner_uid
    )


def release(one: Departure, version: str) -> dict[str, Any]:
    """Return the merge patch that makes the ReplicaSet release the pod; it is refused if the pod has changed."""
    return _patch(one.old_uid, version, drain.released_hash(one.template_hash), one.template_hash)


def restore(uid: str, version: str, template_hash: str) -> dict[str, Any]:
    """Return the merge patch that undoes ``release``."""
    return _patch(uid, version, template_hash, None)


def _patch(uid: str, version: str, label: str, annotation: str | None) -> dict[str, Any]:
    return {
        "metadata": {
            "uid": uid,
            "resourceVersion": version,
            "labels": {drain.TEMPLATE_HASH: label},
            "annotations": {names.ANNOTATION_LEAVING: annotation},
        }
    }
