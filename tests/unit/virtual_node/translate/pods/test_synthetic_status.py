"""Statuses without a lower pod."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.unit.virtual_node.translate.pods.pods import ready, upper_pod
from virtual_node.translate.pods import synthetic_status


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
