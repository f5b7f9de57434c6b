"""Decides the next step for one upper pod and its lower pod. No IO.

The decision is made from the two pods as the caches show them, and from what is remembered about the lower pod. Each pair
of pods has exactly one step. Steps that delete a pod or report it lost because of a cache, which may be behind, read it live
before they act.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import condition, is_finished, is_true
from controller_runtime.apimachinery import timestamps
from controller_runtime.objects import Object, ObjectMeta
from controller_runtime.store import is_stub
from virtual_node.controllers.pods.record import LowerState
from virtual_node.translate.base.ownership import mirrored_as
from virtual_node.translate.pods.synthetic_status import DISRUPTION_TARGET, Disruption, rejection

PATIENCE = 3.0
"""Seconds for which a lower pod may be unschedulable on the node that it requires: the lower scheduler may see later than
others that a pod has ended."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of a lower cluster that decisions depend on."""

    rejects: bool = False
    """``onUnschedulable: Reject``."""
    provision: Mapping[str, float] = field(default_factory=dict)
    """Seconds in which a lower cluster with ``autoscaling`` adds a node, by virtual node."""


class Step(enum.Enum):
    """Next step for an upper pod and its lower pod."""

    NOTHING = enum.auto()
    """The pods are final, or another event comes."""

    FORGET = enum.auto()
    """Both pods are gone: drop what only this pod needed in the lower cluster."""
    DELETE_ORPHAN = enum.auto()
    """The cache has shown the upper pod and shows it no more (also after a forced deletion): delete the lower pod."""
    CONFIRM_ORPHAN = enum.auto()
    """The cache has never shown the upper pod: delete the lower pod if a live read does not find the upper pod either."""

    END_LOWER = enum.auto()
    """The upper pod is being deleted: delete the lower pod with the same grace period, and mirror its status."""
    END_UPPER = enum.auto()
    """The upper pod is being deleted, and its lower pod is gone: write the last status, then delete the upper pod finally."""

    CREATE = enum.auto()
    """There has been no lower pod: create the dependencies, then the lower pod."""
    EXPIRE = enum.auto()
    """There has been no lower pod for the pod's activeDeadlineSeconds: set phase Failed, as a kubelet does for a pod that it
    cannot start."""
    WAIT_UNTIL_READ = enum.auto()
    """There has been no lower pod, and the upper pod is kept as a stub: report that its namespace is too large."""
    REPORT_LOST = enum.auto()
    """The lower pod is gone, or has ended because it was deleted in the lower cluster: mirror its result or set phase Failed.
    A pod is never started twice under one uid."""
    CONFIRM_GONE = enum.auto()
    """The upper pod has finished: read once live that it has no lower pod any more."""

    MIRROR_STATUS = enum.auto()
    """The upper pod is kept as a stub: mirror only the status."""
    DELETE_UPPER = enum.auto()
    """The lower pod is being deleted in the lower cluster, and does not end soon: delete the upper pod, too, so that its
    controller replaces it."""
    DELETE_OUTLIVED = enum.auto()
    """The upper pod has finished, and its owner may have started another one: delete the running lower pod."""
    GIVE_UP_NODE = enum.auto()
    """The lower pod does not fit on the node that it requires: replace it by a pod without the requirement."""
    REJECT = enum.auto()
    """The lower cluster has no room for the pod: delete the lower pod, and set phase Failed."""
    FOLLOW = enum.auto()
    """Both pods exist: apply spec changes to the lower pod, and mirror its status."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The next step, and what it needs."""

    step: Step
    again: float | None = None
    """Seconds until the next decision, because the pod waits; None: after the next change."""
    rejection: tuple[str, str] = ("", "")
    """For ``REJECT``, the reason and message of the upper status."""


def decide(
    upper: Object | None,
    lower: Object | None,
    known: LowerState,
    *,
    rules: Rules,
    now: datetime,
    waited: float = 0.0,
    is_stuck: bool = False,
) -> Decision:
    """Return the next step.

    Args:
        upper: the upper pod; None: it is not cached.
        lower: its lower pod; None: it is not cached.
        known: what is remembered about the lower pod.
        rules: the settings of the lower cluster.
        now: the current time.
        waited: seconds for which the upper pod has waited for its lower pod, see ``Creation.waited``.
        is_stuck: the lower pod, which is being deleted, does not end soon.
    """
    if upper is None:
        return Decision(_without_upper(lower, known))
    if lower is None:
        step = _without_lower(upper, known)
        return _until_deadline(upper, waited) if step is Step.CREATE else Decision(step)
    if _is_deleting(upper):
        return Decision(Step.END_LOWER)
    if not is_finished(upper.status) and was_ended(lower, known):
        return Decision(Step.REPORT_LOST)
    if is_stub(upper):
        return Decision(Step.MIRROR_STATUS)
    if is_finished(upper.status) and not is_finished(lower.status) and not _is_deleting(lower):
        return Decision(Step.DELETE_OUTLIVED)
    if is_stuck and _can_be_replaced(upper) and _is_deleting(lower) and not is_finished(lower.status):
        return Decision(Step.DELETE_UPPER)
    return _with_both(upper, lower, rules, now)


def _without_upper(lower: Object | None, known: LowerState) -> Step:
    if lower is None:
        return Step.FORGET
    if _is_deleting(lower):
        return Step.NOTHING
    return Step.DELETE_ORPHAN if known.has_seen_upper else Step.CONFIRM_ORPHAN


def _without_lower(upper: Object, known: LowerState) -> Step:
    if _is_deleting(upper):
        return Step.END_UPPER
    has_started = _has_started(upper, known)
    if is_finished(upper.status):
        # A stub lacks the fields that show whether it has started.
        may_be_left = (has_started or is_stub(upper)) and not known.is_gone
        return Step.CONFIRM_GONE if may_be_left else Step.NOTHING
    if has_started:
        return Step.REPORT_LOST
    return Step.WAIT_UNTIL_READ if is_stub(upper) else Step.CREATE


def _until_deadline(upper: Object, waited: float) -> Decision:
    """Return the step for a pod that waits for its lower pod; with a deadline, also when it expires.

    A kubelet counts from the time at which it accepted the pod, not while it is away. So do we.
    """
    deadline = (upper.spec or {}).get("activeDeadlineSeconds")
    if deadline is None:
        return Decision(Step.CREATE)
    left = deadline - waited
    return Decision(Step.CREATE, again=left) if left > 0 else Decision(Step.EXPIRE)


def _with_both(upper: Object, lower: Object, rules: Rules, now: datetime) -> Decision:
    """Return the step for two pods of which the upper one can change."""
    for_node = seconds_left(lower, now)
    if for_node == 0:
        return Decision(Step.GIVE_UP_NODE)
    if not rules.rejects or (why := rejection(lower.to_dict())) is None:
        return Decision(Step.FOLLOW, again=for_node)
    for_growth = _growth_seconds(upper, lower, rules, now)
    if not for_growth:
        return Decision(Step.REJECT, rejection=why)
    return Decision(Step.FOLLOW, again=for_growth if for_node is None else min(for_node, for_growth))


def was_ended(lower: Object, known: LowerState) -> bool:
    """Report whether a lower pod has ended because it was deleted in the lower cluster while it ran.

    A kubelet writes a terminal status before it removes a deleted pod, so the status alone looks like a result. Ends with a
    reason of their own are not included: evictions, preemption, a removed node, a node's shutdown.

    Args:
        lower: the lower pod; the caller knows that this process did not delete it.
        known: what is remembered about it.
    """
    metadata, status = lower.metadata, lower.status
    if not _is_deleting(lower) or not is_finished(status):
        return False
    if status.get("reason") or is_true(status, DISRUPTION_TARGET):
        return False
    return known.was_deleted_running or not _ended_before(status, metadata)


def _ended_before(status: Mapping[str, Any], metadata: ObjectMeta) -> bool:
    """Report whether all containers of a finished pod had terminated when its deletion was requested."""
    ends = [
        ((container.get("state") or {}).get("terminated") or {}).get("finishedAt")
        for container in status.get("containerStatuses") or ()
    ]
    try:
        requested = timestamps.parse(metadata.deletion_timestamp or "") - timedelta(
            seconds=metadata.deletion_grace_period_seconds or 0
        )
        return bool(ends) and all(timestamps.parse(end or "") < requested for end in ends)
    except ValueError:
        return False  # the kubelet did not find a container any more


def disruption(upper: Object, last: Object | None, node: Object | None, *, is_restored: bool) -> Disruption:
    """Return reason and message of a lost pod's condition DisruptionTarget; empty: the pod gets no such condition.

    As on real nodes: PodGC marks pods whose node is gone, and a restored etcd fails no Job. A user's deletion, even with
    force, is no disruption, so a lower pod without a known cause gets no condition.

    Args:
        upper: the upper pod.
        last: its lower pod as last seen; None: this process has not seen it.
        node: the lower node that it ran on; None: it does not exist any more, or its name is not known.
        is_restored: the lower cluster was restored to a state from before it had the lower pod.
    """
    if is_restored:
        return "LowerClusterRestored", "The lower cluster was restored to a state from before the pod"
    status = upper.status or {}
    name = node_name(upper, last)
    if not name:
        return "", ""
    if node is not None:
        started, created = status.get("startTime"), node.metadata.creation_timestamp
        try:
            is_newer = timestamps.parse(created or "") > timestamps.parse(started or "")
        except ValueError:
            is_newer = False
        if not is_newer:
            return "", ""
    return "DeletionByPodGC", f"Lower node {name}, on which the pod ran, no longer exists"


def node_name(upper: Object, last: Object | None) -> str:
    """Return the lower node that a lost pod ran on; empty: unknown. A user who forges the annotation affects only this pod."""
    name = last.node_name if last is not None else None
    return str(name or upper.annotations.get(names.ANNOTATION_LOWER_NODE) or "")


def seconds_left(lower: Object, now: datetime) -> float | None:
    """Return for how long a lower pod still waits for the node that it requires; 0: give up; None: it does not wait."""
    scheduled = condition(lower.status, "PodScheduled")
    is_waiting = scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    is_required = bool(lower.annotations.get(names.ANNOTATION_REQUIRED_NODE))
    if not is_waiting or not is_required or _is_deleting(lower):
        return None
    try:
        waited = (now - _unschedulable_since(lower)).total_seconds()
    except ValueError:
        return 0.0
    return min(PATIENCE, max(0.0, PATIENCE - waited))  # the clocks of the clusters may differ


def _growth_seconds(upper: Object, lower: Object, rules: Rules, now: datetime) -> float:
    """Return for how many more seconds a pod without room may wait for a new node of its lower cluster; 0: not any more."""
    limit = rules.provision.get(upper.node_name)
    if limit is None:
        return 0.0
    try:
        waited = (now - _unschedulable_since(lower)).total_seconds()
    except ValueError:
        return 0.0
    # At most the limit, because the lower cluster's clock may be ahead.
    return max(0.0, min(limit, limit - waited))


def _unschedulable_since(lower: Object) -> datetime:
    """Return when the scheduler first found no room for a lower pod.

    Raises:
        ValueError: there is no valid time.
    """
    return timestamps.parse(condition(lower.status, "PodScheduled").get("lastTransitionTime") or "")


def _has_started(upper: Object, known: LowerState) -> bool:
    """Report whether the upper pod has had a lower pod. If a user forges the annotation, only this pod fails."""
    mark = mirrored_as(upper.annotations.get(names.ANNOTATION_LOWER_UID), upper.uid)
    return bool(known.uid or (mark and mark != known.given_up) or (upper.status or {}).get("startTime"))


def _can_be_replaced(upper: Object) -> bool:
    return upper.controller is not None and not is_finished(upper.status)


def _is_deleting(pod: Object) -> bool:
    return pod.metadata.deletion_timestamp is not None
