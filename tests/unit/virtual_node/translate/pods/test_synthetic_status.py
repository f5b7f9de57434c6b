"""Statuses without a lower pod."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.pod.conditions import condition
from tests.unit.virtual_node.translate.pods.pods import ready, upper_pod
from virtual_node.translate.pods import synthetic_status
from virtual_node.translate.pods.status import status_patch


def test_a_lost_pod_has_failed_and_its_containers_have_ended():
    """Phase Failed, Ready False, running containers terminated with 137; finished ones keep their state."""
    pod = upper_pod()
    pod["status"] = {
        "phase": "Running",
        "conditions": [ready("True")],
        "containerStatuses": [
            {"name": "main", "ready": True, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}},
            {"name": "done", "ready": False, "state": {"terminated": {"exitCode": 0}}},
        ],
    }
    found = synthetic_status.lost(pod, reason="R", message="m", now=datetime(2026, 1, 2, tzinfo=UTC))
    assert (found["phase"], found["reason"]) == ("Failed", "R")
    assert found["conditions"][0]["status"] == "False"
    assert found["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137
    assert found["containerStatuses"][1]["state"]["terminated"]["exitCode"] == 0


@pytest.mark.parametrize(("generation", "expected"), [(2, 2), (None, None)])
def test_a_final_status_is_about_the_current_generation(generation: int | None, expected: int | None):
    """A deletion increments the generation. API servers before 1.33 have none."""
    pod = upper_pod()
    pod["metadata"] = {**pod["metadata"], "generation": generation}
    pod["status"] = {"phase": "Pending", **({"observedGeneration": 1} if generation else {})}
    lost = synthetic_status.lost(pod, reason="R", message="m", now=datetime(2026, 1, 2, tzinfo=UTC))
    for found in (lost, synthetic_status.expired(pod)):
        assert found.get("observedGeneration") == expected


@pytest.mark.parametrize(
    ("reason", "message", "expected"),
    [
        ("Forbidden", "no", "Forbidden"),
        ("Forbidden", "pods is forbidden: exceeded quota: q", "ExceededQuota"),
        ("Forbidden", 'violates PodSecurity "restricted"', "PodSecurity"),
        ("", "no", "Other"),
        ("webhook says no to pod web-7d4b9", "no", "Other"),
        ("Forbidden ", "no", "Other"),
    ],
)
def test_a_refusal_has_one_of_a_few_reasons(reason: str, message: str, expected: str):
    """The reason is a metric label, and a hostile server sends another text with each refusal."""
    assert synthetic_status.refusal_reason(reason, message) == expected


_EARLIER = datetime(2026, 1, 2, tzinfo=UTC)
_LATER = datetime(2026, 1, 3, tzinfo=UTC)


def _after(status: dict[str, Any]) -> dict[str, Any]:
    return {**upper_pod(), "status": status}


def _refused(pod: dict[str, Any], now: datetime = _LATER) -> dict[str, Any]:
    return synthetic_status.refused(pod, reason="ExceededQuota", message="exceeded quota: q", now=now)


def _unschedulable(pod: dict[str, Any], now: datetime = _LATER) -> dict[str, Any]:
    return synthetic_status.unschedulable(pod, message="no lower node", now=now)


@pytest.mark.parametrize("waits", [synthetic_status.pending, synthetic_status.unmounted])
@pytest.mark.parametrize("earlier", [_refused, _unschedulable])
def test_a_waiting_pod_is_not_refused_or_unschedulable_any_more(waits: Any, earlier: Any):
    """The descheduler moved it because of a quota that had been raised, and diagnose named that cause."""
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    before = earlier(_after({"phase": "Pending", "conditions": [scheduled]}), _EARLIER)
    found = waits(_after(before), reason="CreateContainerConfigError", message="m", now=_LATER)
    assert not found.keys() & {"reason", "message"}
    assert condition(found, "PodScheduled")["status"] == "True"
    assert condition(found, names.CONDITION_ADMITTED) == {}
    patch = status_patch(before, found, uid="u")
    assert patch is not None
    if earlier is _refused:
        assert (patch["status"]["reason"], patch["status"]["message"]) == (None, None)
        assert {"$patch": "delete", "type": names.CONDITION_ADMITTED} in patch["status"]["conditions"]


def test_a_refused_pod_becomes_unschedulable_and_refused_again():
    """Only the current cause is reported. The time of the first refusal is kept while it lasts."""
    first = _refused(_after({"phase": "Pending"}), _EARLIER)
    again = _refused(_after(first))
    assert condition(again, names.CONDITION_ADMITTED)["lastTransitionTime"] == "2026-01-02T00:00:00Z"
    then = _unschedulable(_after(again))
    assert condition(then, names.CONDITION_ADMITTED) == {}
    assert not then.keys() & {"reason", "message", "containerStatuses"}
    last = _refused(_after(then))
    assert condition(last, "PodScheduled")["status"] == "True"
    assert condition(last, names.CONDITION_ADMITTED)["lastTransitionTime"] == "2026-01-03T00:00:00Z"


def test_a_reason_that_others_set_stays():
    """kube-controller-manager, for example, writes NodeLost."""
    lost = {"phase": "Pending", "reason": "NodeLost", "message": "Node vn is lost"}
    found = synthetic_status.pending(_after(lost), reason="R", message="m", now=_LATER)
    assert (found["reason"], found["message"]) == ("NodeLost", "Node vn is lost")


def test_a_long_refusal_is_cut():
    """Each container repeats the message of the lower API server."""
    pod = upper_pod()
    pod["status"] = {"phase": "Pending"}
    found = synthetic_status.refused(
        pod, reason="Other", message="é" * 4096, now=datetime(2026, 1, 2, tzinfo=UTC)
    )
    messages = [
        found["message"],
        found["conditions"][-1]["message"],
        *(one["state"]["waiting"]["message"] for one in found["containerStatuses"]),
    ]
    assert len(messages) >= 3
    assert all(1000 < len(text.encode()) <= 1024 for text in messages)
