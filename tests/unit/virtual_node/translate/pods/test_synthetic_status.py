"""Statuses without a lower pod."""

from __future__ import annotations

from datetime import UTC, datetime

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
