"""A pod in one line, with kubectl's columns and the reason why it waits."""

from __future__ import annotations

from typing import Any

import pytest

from virtual_node.translate.pods.summary import pod_row, status_word


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
                "conditions": [{"type": "Ready", "status": "True"}],
            },
            ("Running", ""),
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [{"state": {"terminated": {"reason": "Completed"}}}, RUNNING],
            },
            ("NotReady", ""),
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
    ],
)
def test_the_status_word_is_kubectls(status, expected):
    assert status_word(_pod(status)) == expected


_INIT = {"name": "i", "ready": False, "started": True, "restartCount": 1, "state": {"running": {}}}
_SIDECAR = {"name": "s", "ready": True, "started": True, "restartCount": 3, "state": {"running": {}}}


def _initial(
    *statuses: dict[str, Any], phase: str = "Pending", main: dict[str, Any] | None = None
) -> dict[str, Any]:
    pod = _pod({
        "phase": phase,
        "initContainerStatuses": list(statuses),
        "containerStatuses": [main or _waiting("PodInitializing")] * 2,
    })  # fmt: skip
    pod["spec"]["initContainers"] = [{"name": "s", "restartPolicy": "Always"}, {"name": "i"}]
    return pod


def test_a_running_init_container_is_not_finished():
    """The kubelet reports it started as soon as it runs; a started sidecar lets the next one begin."""
    row = pod_row(_initial(_SIDECAR, _INIT), None)
    assert (row["status"], row["ready"], row["restarts"], row["trouble"]) == ("Init:1/2", "1/3", 4, False)


def test_sidecars_are_counted_with_the_containers():
    """As in kubectl: ready ones and their restarts, without those of finished init containers."""
    done = {**_INIT, "state": {"terminated": {"exitCode": 0}}}
    row = pod_row(_initial(_SIDECAR, done, phase="Running", main=RUNNING), None)
    assert (row["status"], row["ready"], row["restarts"]) == ("Running", "3/3", 7)


def test_a_sidecar_that_crashes_later_does_not_hide_the_containers():
    """Its fault is shown, but ready containers are counted, and their own faults come first."""
    crashed = {"name": "s", "restartCount": 9, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    pod = _initial(crashed, phase="Running", main=RUNNING)
    assert pod_row(pod, None)["ready"] == "0/3"
    pod["status"]["conditions"] = [{"type": "Initialized", "status": "True"}]
    row = pod_row(pod, None)
    assert (row["status"], row["ready"], row["restarts"]) == ("Init:CrashLoopBackOff", "2/3", 13)
    pod["status"]["containerStatuses"] = [_waiting("ImagePullBackOff")]
    assert status_word(pod)[0] == "ImagePullBackOff"


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ({"phase": "Succeeded"}, "Succeeded"),
        ({"phase": "Running", "reason": "NodeLost"}, "Unknown"),
        ({"phase": "Running"}, "Terminating"),
    ],
)
def test_a_deleted_pod_that_has_finished_or_is_lost_is_not_terminating(status, word):
    assert status_word(_pod(status, deletionTimestamp="2026-01-01T00:00:00Z"))[0] == word


def test_a_deleted_pod_is_terminating():
    """Whatever its containers' states, and that is no fault."""
    pod = _pod({"phase": "Running", "containerStatuses": [RUNNING]}, deletionTimestamp="2026-01-01T00:00:00Z")
    row = pod_row(pod, None)
    assert (row["status"], row["trouble"]) == ("Terminating", False)


def test_a_healthy_row():
    """Ready containers, restarts, and the lower node."""
    lower = {"metadata": {"namespace": "u-shop"}, "spec": {"nodeName": "n1"}}
    row = pod_row(_pod({"phase": "Running", "containerStatuses": [RUNNING, RUNNING]}), lower)
    assert (row["ready"], row["restarts"], row["lowerNamespace"], row["lowerNode"]) == (
        "2/2",
        4,
        "u-shop",
        "n1",
    )
    assert (row["why"], row["trouble"]) == ("", False)


def test_the_reason_of_the_lower_scheduler_is_shown():
    """From a condition, when no container has a reason."""
    conditions = [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]
    row = pod_row(_pod({"phase": "Pending", "conditions": conditions}), None)
    assert (row["why"], row["trouble"]) == ("0/3 nodes are available", True)


def test_a_container_that_is_being_created_is_no_fault():
    row = pod_row(_pod({"phase": "Pending", "containerStatuses": [_waiting("ContainerCreating")]}), None)
    assert row["trouble"] is False


@pytest.mark.parametrize(
    ("container", "why"),
    [
        ({"state": {"terminated": {"exitCode": 3}}}, "container a ended with exit code 3"),
        ({"state": {"terminated": {"exitCode": 3, "message": "no disk"}}}, "no disk"),
        ({"state": {"terminated": {"exitCode": 0}}}, ""),
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 1}},
            },
            "container a ended with exit code 1",
        ),
        ({"state": {"running": {}}, "lastState": {"terminated": {"exitCode": 1}}}, ""),
    ],
)
def test_a_failed_container_is_explained_by_its_exit_code(container: dict[str, Any], why: str) -> None:
    """Unless it has a message; a running one needs no explanation."""
    assert (
        pod_row(_pod({"phase": "Failed", "containerStatuses": [{"name": "a", **container}]}), None)["why"]
        == why
    )
