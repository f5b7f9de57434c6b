"""The next step for an upper pod and its lower pod: each row of the table, and what no step may do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model import names
from controller_runtime.apimachinery import timestamps
from controller_runtime.objects import Object, from_dict
from controller_runtime.store import stub
from virtual_node.controllers.pods.decision import (
    PATIENCE,
    Decision,
    Rules,
    Step,
    decide,
    disruption,
    seconds_left,
    was_ended,
)
from virtual_node.controllers.pods.record import LowerState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
UID, LOWER_UID = "u-1", "l-1"
KNOWN = LowerState(uid=LOWER_UID)
FULL = "0/1 nodes are available: 1 Insufficient cpu."


def unschedulable(ago: float = 60.0, *, message: str = FULL) -> dict[str, Any]:
    """Return the status of a pod for which its scheduler finds no node since so many seconds."""
    scheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": timestamps.rfc3339(NOW - timedelta(seconds=ago)),
    }
    return {"phase": "Pending", "conditions": [scheduled]}


def pod(uid: str, *, is_deleting: bool = False, status: Any = None, **annotations: str) -> Object:
    """Return a pod."""
    metadata: dict[str, Any] = {
        "name": "web",
        "namespace": "shop",
        "uid": uid,
        "resourceVersion": "7",
        "annotations": annotations,
    }
    if is_deleting:
        # Requested 30 s ago.
        metadata |= {"deletionTimestamp": timestamps.rfc3339(NOW), "deletionGracePeriodSeconds": 30}
    spec = {"nodeName": "vn"} if uid == UID else {}
    return from_dict({"kind": "Pod", "metadata": metadata, "spec": spec, "status": status or {}})


def upper(phase: str = "Pending", **fields: Any) -> Object:
    """Return an upper pod."""
    return pod(UID, status={"phase": phase}, **fields)


def lower(phase: str = "Running", **fields: Any) -> Object:
    """Return a lower pod."""
    return pod(LOWER_UID, **{"status": {"phase": phase}, **fields})


def with_controller(above: Object) -> Object:
    """Return an upper pod of a ReplicaSet."""
    body = above.to_dict()
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs-1", "controller": True}
    return from_dict({**body, "metadata": {**body["metadata"], "ownerReferences": [owner]}})


def owned(phase: str, **fields: Any) -> Object:
    """Return an upper pod of a ReplicaSet."""
    return with_controller(upper(phase, **fields))


def with_deadline(phase: str = "Pending", **fields: Any) -> Object:
    """Return an upper pod with activeDeadlineSeconds 30."""
    above = upper(phase, **fields).to_dict()
    return from_dict({**above, "spec": {**above["spec"], "activeDeadlineSeconds": 30}})


def mirrored(upper_pod: Object) -> Object:
    """Return an upper pod with the mark of a lower pod."""
    mark: dict[str, Any] = {names.ANNOTATION_LOWER_UID: f"{LOWER_UID}/{UID}"}
    return pod(UID, status=upper_pod.status, **mark)


def ended(ago: float | None, phase: str = "Failed", **status: Any) -> dict[str, Any]:
    """Return the status of a pod whose container terminated so many seconds ago; None: the kubelet did not find it."""
    moment = None if ago is None else timestamps.rfc3339(NOW - timedelta(seconds=ago))
    state = {"terminated": {"exitCode": 137, "finishedAt": moment}}
    return {"phase": phase, "containerStatuses": [{"name": "main", "state": state}], **status}


def disrupted(reason: str) -> dict[str, Any]:
    """Return the conditions of a pod that its cluster disrupts."""
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}


@pytest.mark.parametrize(
    ("above", "below", "known", "step"),
    [
        # gone
        (None, None, KNOWN, Step.FORGET),
        (None, lower(), KNOWN, Step.DELETE_ORPHAN),
        (None, lower(), LowerState(has_seen_upper=False), Step.CONFIRM_ORPHAN),
        (None, lower(is_deleting=True), KNOWN, Step.NOTHING),
        # deleting
        (upper(is_deleting=True), lower(), KNOWN, Step.END_LOWER),
        (upper(is_deleting=True), lower("Succeeded"), KNOWN, Step.END_LOWER),
        (upper(is_deleting=True), None, KNOWN, Step.END_UPPER),
        (upper(is_deleting=True), None, LowerState(), Step.END_UPPER),
        (stub(upper(is_deleting=True)), None, KNOWN, Step.END_UPPER),
        # finished
        (upper("Failed"), None, LowerState(), Step.NOTHING),
        (upper("Failed"), None, KNOWN, Step.CONFIRM_GONE),
        (upper("Failed"), None, LowerState(uid=LOWER_UID, is_gone=True), Step.NOTHING),
        (upper("Succeeded"), lower(), KNOWN, Step.DELETE_OUTLIVED),
        (upper("Succeeded"), lower(is_deleting=True), KNOWN, Step.FOLLOW),
        (upper("Succeeded"), lower("Succeeded"), KNOWN, Step.FOLLOW),
        # stub
        (stub(upper()), lower(), KNOWN, Step.MIRROR_STATUS),
        (stub(upper()), None, LowerState(), Step.WAIT_UNTIL_READ),
        (stub(upper()), None, KNOWN, Step.REPORT_LOST),
        # exists
        (upper(), None, LowerState(), Step.CREATE),
        (upper(), None, LowerState(given_up=LOWER_UID), Step.CREATE),
        (mirrored(upper()), None, LowerState(given_up=LOWER_UID), Step.CREATE),
        (upper(), None, KNOWN, Step.REPORT_LOST),
        (mirrored(upper()), None, LowerState(), Step.REPORT_LOST),
        (pod(UID, status={"startTime": "2026-01-01T00:00:00Z"}), None, LowerState(), Step.REPORT_LOST),
        (upper(), lower(), KNOWN, Step.FOLLOW),
        (upper(), lower("Failed"), KNOWN, Step.FOLLOW),
        (upper(), lower(status=unschedulable()), KNOWN, Step.FOLLOW),
        # deleted in the lower cluster
        (upper("Running"), lower(is_deleting=True), KNOWN, Step.FOLLOW),
        (upper("Running"), lower(is_deleting=True, status=ended(20)), KNOWN, Step.REPORT_LOST),
        (upper("Running"), lower(is_deleting=True, status=ended(20, "Succeeded")), KNOWN, Step.REPORT_LOST),
        (stub(upper("Running")), lower(is_deleting=True, status=ended(20)), KNOWN, Step.REPORT_LOST),
        (upper("Running"), lower(is_deleting=True, status=ended(40)), KNOWN, Step.FOLLOW),
        (upper("Running"), lower(status=ended(20)), KNOWN, Step.FOLLOW),
        (upper("Failed"), lower(is_deleting=True, status=ended(20)), KNOWN, Step.FOLLOW),
        (
            upper("Running", is_deleting=True),
            lower(is_deleting=True, status=ended(20)),
            KNOWN,
            Step.END_LOWER,
        ),
    ],
)
def test_each_pair_of_pods_has_its_step(
    above: Object | None, below: Object | None, known: LowerState, step: Step
):
    assert decide(above, below, known, rules=Rules(), now=NOW) == Decision(step)


@pytest.mark.parametrize(
    ("above", "known", "waited", "decision"),
    [
        (with_deadline(), LowerState(), 0, Decision(Step.CREATE, again=30)),
        (with_deadline(), LowerState(), 29.5, Decision(Step.CREATE, again=0.5)),
        (with_deadline(), LowerState(), 30, Decision(Step.EXPIRE)),
        (upper(), LowerState(), 1e9, Decision(Step.CREATE)),
        (with_deadline(), KNOWN, 30, Decision(Step.REPORT_LOST)),
        (with_deadline("Failed"), LowerState(), 30, Decision(Step.NOTHING)),
        (with_deadline(is_deleting=True), LowerState(), 30, Decision(Step.END_UPPER)),
        (stub(with_deadline()), LowerState(), 30, Decision(Step.WAIT_UNTIL_READ)),
    ],
)
def test_a_pod_waits_for_its_lower_pod_until_its_deadline(
    above: Object, known: LowerState, waited: float, decision: Decision
):
    assert decide(above, None, known, rules=Rules(), now=NOW, waited=waited) == decision


@pytest.mark.parametrize(
    ("below", "was_deleted_running", "expected"),
    [
        (lower(is_deleting=True, status=ended(30)), False, True),  # seconds are the precision of the API
        (lower(is_deleting=True, status=ended(31)), False, False),
        (lower(is_deleting=True, status=ended(31)), True, True),  # the clock of the node is behind
        (lower(is_deleting=True, status=ended(None)), False, True),
        (lower(is_deleting=True, status={"phase": "Failed"}), False, True),  # it never started a container
        (lower(is_deleting=True), True, False),
        (lower(status=ended(20)), True, False),
        (lower(is_deleting=True, status=ended(20, **disrupted("EvictionByEvictionAPI"))), True, False),
        (lower(is_deleting=True, status=ended(20, **disrupted("PreemptionByScheduler"))), True, False),
        (lower(is_deleting=True, status=ended(20, reason="Evicted")), True, False),
        (lower(is_deleting=True, status=ended(20, reason="DeadlineExceeded")), True, False),
    ],
)
def test_end_by_deletion_differs_from_a_result(below: Object, *, was_deleted_running: bool, expected: bool):
    known = LowerState(uid=LOWER_UID, was_deleted_running=was_deleted_running)
    assert was_ended(below, known) is expected


def test_deletion_of_a_running_pod_is_remembered_until_another_pod_is_seen():
    known = LowerState()
    known.saw(lower(is_deleting=True, status=ended(20)))
    assert not known.was_deleted_running
    for below in (lower(is_deleting=True), lower(is_deleting=True, status=ended(20))):
        known.saw(below)
        assert known.was_deleted_running
    known.saw(pod("l-2"))
    assert not known.was_deleted_running


def _node(created: str) -> Object:
    return from_dict({"kind": "Node", "metadata": {"name": "n1", "creationTimestamp": created}})


_ON_N1: dict[str, Any] = {names.ANNOTATION_LOWER_NODE: "n1"}
_STARTED = {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("annotations", "last", "node", "is_restored", "reason"),
    [
        (_ON_N1, None, None, False, "DeletionByPodGC"),
        (_ON_N1, None, _node("2025-01-01T00:00:00Z"), False, ""),  # deleted by a user, also by force
        (_ON_N1, None, _node("2026-01-01T00:05:00Z"), False, "DeletionByPodGC"),  # replaced
        (_ON_N1, None, _node("malformed"), False, ""),
        ({}, None, None, False, ""),  # it had no node, or an earlier release mirrored it
        ({}, from_dict({"metadata": {}, "spec": {"nodeName": "n1"}}), None, False, "DeletionByPodGC"),
        ({}, None, None, True, "LowerClusterRestored"),
    ],
)
def test_lost_pod_has_the_condition_of_its_cause(
    annotations: Any, last: Object | None, node: Object | None, *, is_restored: bool, reason: str
):
    above = pod(UID, status=_STARTED, **annotations)
    assert disruption(above, last, node, is_restored=is_restored)[0] == reason


@pytest.mark.parametrize(
    ("ago", "rules", "node", "expected"),
    [
        (60.0, Rules(), "", Decision(Step.FOLLOW)),
        (60.0, Rules(rejects=True), "", Step.REJECT),
        (60.0, Rules(rejects=True, provision={"vn": 90.0}), "", Decision(Step.FOLLOW, again=30.0)),
        (90.0, Rules(rejects=True, provision={"vn": 90.0}), "", Step.REJECT),
        (60.0, Rules(rejects=True, provision={"other": 90.0}), "", Step.REJECT),
        (60.0, Rules(provision={"vn": 90.0}), "", Decision(Step.FOLLOW)),
        (60.0, Rules(), "n7", Decision(Step.GIVE_UP_NODE)),
        (60.0, Rules(rejects=True), "n7", Decision(Step.GIVE_UP_NODE)),
        (1.0, Rules(), "n7", Decision(Step.FOLLOW, again=PATIENCE - 1)),
        (1.0, Rules(rejects=True), "n7", Step.REJECT),
        (1.0, Rules(rejects=True, provision={"vn": 90.0}), "n7", Decision(Step.FOLLOW, again=PATIENCE - 1)),
    ],
)
def test_a_pod_without_room_waits_for_it_or_ends(
    ago: float, rules: Rules, node: str, expected: Decision | Step
):
    """For the node that it requires, for a new node, for ever, or not at all."""
    below = lower(status=unschedulable(ago), **{names.ANNOTATION_REQUIRED_NODE: node})
    if expected is Step.REJECT:
        expected = Decision(Step.REJECT, rejection=("OutOfcpu", f"Pod was rejected: {FULL}"))
    assert decide(upper(), below, KNOWN, rules=rules, now=NOW) == expected


@pytest.mark.parametrize(
    ("scheduled", "node", "expected"),
    [
        ({"status": "False", "reason": "Unschedulable"}, "n7", 0.0),
        ({"status": "False", "reason": "Unschedulable", "ago": 1.0}, "n7", PATIENCE - 1),
        ({"status": "False", "reason": "Unschedulable", "ago": -3600.0}, "n7", PATIENCE),
        ({"status": "False", "reason": "Unschedulable"}, "", None),
        ({"status": "False", "reason": "SchedulingGated"}, "n7", None),
        ({"status": "True", "reason": ""}, "n7", None),
    ],
)
def test_time_that_a_pod_waits_for_its_node(scheduled, node, expected):
    status = unschedulable(scheduled.pop("ago", 60.0))
    status["conditions"][0] |= scheduled
    assert seconds_left(lower(status=status, **{names.ANNOTATION_REQUIRED_NODE: node}), NOW) == expected


PHASES = st.sampled_from(["", "Pending", "Running", "Succeeded", "Failed", "Unknown"])
FINISHED = {"Succeeded", "Failed"}
CREATES = {Step.CREATE, Step.WAIT_UNTIL_READ, Step.EXPIRE}
DELETES_LOWER = {
    Step.DELETE_ORPHAN,
    Step.CONFIRM_ORPHAN,
    Step.END_LOWER,
    Step.DELETE_OUTLIVED,
    Step.GIVE_UP_NODE,
    Step.REJECT,
}
FAILS_UPPER = {Step.REPORT_LOST, Step.REJECT, Step.EXPIRE}


@st.composite
def uppers(draw: st.DrawFn) -> Object:
    """An upper pod in any state that an API server or a user can write."""
    marks = ["", f"{LOWER_UID}/{UID}", f"{LOWER_UID}/copied", "forged"]
    made = pod(
        UID,
        is_deleting=draw(st.booleans()),
        status={"phase": draw(PHASES), **draw(st.sampled_from([{}, {"startTime": "2026-01-01T00:00:00Z"}]))},
        **{names.ANNOTATION_LOWER_UID: draw(st.sampled_from(marks))},
    )
    if draw(st.booleans()):
        made = with_controller(made)
    return stub(made) if draw(st.booleans()) else made


@st.composite
def lowers(draw: st.DrawFn) -> Object:
    """A lower pod in any state that a hostile lower cluster can report."""
    status: dict[str, Any] = {"phase": draw(PHASES)}
    if draw(st.booleans()):
        status |= unschedulable(draw(st.floats(-100, 100)), message=draw(st.sampled_from(["", FULL])))
        status["conditions"][0]["lastTransitionTime"] = draw(
            st.sampled_from([status["conditions"][0]["lastTransitionTime"], None, "", "yesterday"])
        )
    required = {names.ANNOTATION_REQUIRED_NODE: draw(st.sampled_from(["", "n7"]))}
    return lower(status=status, is_deleting=draw(st.booleans()), **required)


KNOWNS = st.builds(
    LowerState,
    has_seen_upper=st.booleans(),
    uid=st.sampled_from(["", LOWER_UID, "older"]),
    given_up=st.sampled_from(["", LOWER_UID]),
    observed=st.booleans(),
    last=st.none() | lowers(),
    is_gone=st.booleans(),
)
RULES = st.builds(Rules, rejects=st.booleans(), provision=st.sampled_from([{}, {"vn": 60.0}]))


@pytest.mark.parametrize(
    ("above", "below", "is_stuck", "step"),
    [
        (owned("Running"), lower(is_deleting=True), True, Step.DELETE_UPPER),
        (owned("Pending"), lower("Pending", is_deleting=True), True, Step.DELETE_UPPER),
        (owned("Running"), lower(is_deleting=True), False, Step.FOLLOW),
        (owned("Running"), lower("Failed", is_deleting=True), True, Step.REPORT_LOST),
        (owned("Failed"), lower(is_deleting=True), True, Step.FOLLOW),
        (owned("Running"), lower(), True, Step.FOLLOW),
        (owned("Running", is_deleting=True), lower(is_deleting=True), True, Step.END_LOWER),
        (upper("Running"), lower(is_deleting=True), True, Step.FOLLOW),  # nothing would replace it
    ],
)
def test_pod_that_the_lower_cluster_cannot_end_is_left_to_its_controller(above, below, is_stuck, step):
    """As a real node's pods are deleted while the node is lost. A pod that has ended is reported instead."""
    known = LowerState(uid=LOWER_UID, was_deleted_running=True)
    assert decide(above, below, known, rules=Rules(), now=NOW, is_stuck=is_stuck).step is step


@given(
    above=st.none() | uppers(),
    below=st.none() | lowers(),
    known=KNOWNS,
    rules=RULES,
    waited=st.floats(0, 100),
    is_stuck=st.booleans(),
)
def test_no_step_loses_a_pod_or_starts_it_twice(
    *,
    above: Object | None,
    below: Object | None,
    known: LowerState,
    rules: Rules,
    waited: float,
    is_stuck: bool,
):
    """There is a step for each state."""
    decided = decide(above, below, known, rules=rules, now=NOW, waited=waited, is_stuck=is_stuck)
    step = decided.step
    is_deleting = above is not None and above.metadata.deletion_timestamp is not None
    phase = "" if above is None else (above.status or {}).get("phase")
    if step in CREATES:
        assert above is not None, "an upper pod asks for it"
        assert below is None
        assert not known.uid, "it has had a lower pod under this uid"
        assert not is_deleting
        assert phase not in FINISHED, "its result is final"
    if step in DELETES_LOWER:
        assert below is not None
        assert (
            above is None or is_deleting or phase in FINISHED or step in {Step.GIVE_UP_NODE, Step.REJECT}
        ), "the lower pod of a live pod is deleted only if it has no room"
    if step in {Step.GIVE_UP_NODE, Step.REJECT}:
        assert below is not None
        assert below.status["conditions"][0]["reason"] == "Unschedulable"
    if step in FAILS_UPPER:
        assert phase not in FINISHED or step is Step.REJECT
        assert not is_deleting, "its end is written with its last status"
    if step is Step.END_UPPER:
        assert is_deleting
        assert below is None, "the upper name stays in use until the lower pod has terminated"
    if step is Step.DELETE_UPPER:
        assert above is not None
        assert above.controller, "it would be lost without a word"
        assert below is not None
        assert below.metadata.deletion_timestamp, "the lower cluster has decided it"
        assert phase not in FINISHED, "its result is final"
    if step is Step.REJECT:
        assert rules.rejects
        assert all(decided.rejection)
    if decided.again is not None:
        assert step is Step.FOLLOW
        assert 0 < decided.again <= 60.0
