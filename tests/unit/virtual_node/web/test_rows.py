"""A pod in one line says what kubectl would say, and why it waits."""

from __future__ import annotations

from typing import Any

import pytest

from virtual_node.web.rows import pod_row, status_word


def _pod(status: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "shop", "name": "web", **metadata},
        "spec": {"nodeName": "virtual", "containers": [{"name": "a"}, {"name": "b"}]},
        "status": status,
    }


def _waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"state": {"waiting": {"reason": reason, "message": message}}}


RUNNING = {"ready": True, "restartCount": 2, "state": {"running": {}}}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"phase": "Running", "containerStatuses": [RUNNING, RUNNING]}, ("Running", "")),
        ({"phase": "Pending"}, ("Pending", "")),
        ({"phase": "Pending", "reason": "ProviderFailed", "message": "quota"}, ("ProviderFailed", "quota")),
        (
            {"phase": "Pending", "containerStatuses": [_waiting("ImagePullBackOff", "no such image")]},
            ("ImagePullBackOff", "no such image"),
        ),
        (
            {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]},
            ("ExitCode:3", ""),
        ),
        (
            {
                "phase": "Failed",
                "containerStatuses": [{"state": {"terminated": {"exitCode": 137, "signal": 9}}}],
            },
            ("Signal:9", ""),
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [{"state": {"terminated": {"reason": "Completed"}}}, RUNNING],
            },
            ("Running", ""),
        ),
        (
            {
                "phase": "Pending",
                "initContainerStatuses": [
                    {"state": {"terminated": {"exitCode": 0}}},
                    _waiting("CrashLoopBackOff", "back-off"),
                ],
            },
            ("Init:CrashLoopBackOff", "back-off"),
        ),
        (
            {
                "phase": "Pending",
                "initContainerStatuses": [{"state": {"running": {}}}, _waiting("PodInitializing")],
            },
            ("Init:0/2", ""),
        ),
    ],
)
def test_the_status_word_is_kubectls(status, expected):
    """The column that people know."""
    assert status_word(_pod(status)) == expected


def test_a_pod_that_goes_is_terminating():
    """Whatever its containers do meanwhile, and that is no trouble."""
    pod = _pod({"phase": "Running", "containerStatuses": [RUNNING]}, deletionTimestamp="2026-01-01T00:00:00Z")
    row = pod_row(pod, None)
    assert (row["status"], row["trouble"]) == ("Terminating", False)


def test_a_healthy_row():
    """Ready containers, restarts, and where it runs below."""
    lower = {"metadata": {"namespace": "u-shop"}, "spec": {"nodeName": "n1"}}
    row = pod_row(_pod({"phase": "Running", "containerStatuses": [RUNNING, RUNNING]}), lower)
    assert (row["ready"], row["restarts"], row["lowerNamespace"], row["lowerNode"]) == (
        "2/2",
        4,
        "u-shop",
        "n1",
    )
    assert (row["why"], row["trouble"]) == ("", False)


def test_why_it_waits_comes_from_the_lower_scheduler():
    """A condition has the reason when no container has one."""
    conditions = [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]
    row = pod_row(_pod({"phase": "Pending", "conditions": conditions}), None)
    assert (row["why"], row["trouble"]) == ("0/3 nodes are available", True)


def test_a_container_that_is_being_created_is_no_trouble():
    """It waits, but for nothing that anybody could do."""
    row = pod_row(_pod({"phase": "Pending", "containerStatuses": [_waiting("ContainerCreating")]}), None)
    assert row["trouble"] is False
