"""A lower pod's status is rebuilt from known fields, with a bounded size."""

from __future__ import annotations

import json
from typing import Any

import pytest

from virtual_node.translate.pods.status import MOST_CONDITIONS, rebuilt, status_patch, upper_status

_TIME = "2026-01-01T00:00:00Z"
_HUGE = "é" * 500_000
_CONTAINER: dict[str, Any] = {
    "name": "main",
    "state": {"running": {"startedAt": _TIME}},
    "lastState": {"terminated": {"exitCode": 137, "signal": 9, "reason": "OOMKilled", "message": "m", "startedAt": None,
        "finishedAt": _TIME, "containerID": "containerd://a"}},
    "ready": True, "restartCount": 2, "image": "docker.io/library/nginx:1", "imageID": "sha256:a",
    "containerID": "containerd://b", "started": None,
    "allocatedResources": {"cpu": "100m", "hugepages-2Mi": "4Mi", "nvidia.com/gpu": "1"},
    "resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": "1e-1"}, "claims": [{"name": "gpu", "request": "a"}]},
    "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True, "recursiveReadOnly": "Disabled",
        "volumeStatus": {"image": {"imageRef": "sha256:c"}}}],
    "user": {"linux": {"uid": 0, "gid": 0, "supplementalGroups": [0, 1000]}},
    "allocatedResourcesStatus": [{"name": "claim:gpu/a", "resources": [{"resourceID": "d/e", "health": "Unhealthy",
        "message": "m"}]}],
    "stopSignal": "SIGTERM",
}  # fmt: skip
_STATUS: dict[str, Any] = {
    "observedGeneration": 3, "phase": "Running", "message": "m", "reason": "Evicted", "hostIP": "10.0.0.1",
    "hostIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}], "podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}],
    "startTime": _TIME, "qosClass": "Burstable", "resize": "InProgress",
    "conditions": [
        {"type": "Ready", "status": "True", "lastProbeTime": None, "lastTransitionTime": _TIME, "observedGeneration": 3},
        {"type": "target-health.elbv2.k8s.aws/k8s-a_1", "status": "False", "reason": "R", "message": "m"},
    ],
    "initContainerStatuses": [_CONTAINER],
    "containerStatuses": [_CONTAINER, {**_CONTAINER, "name": "b", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "m"}},
        "lastState": {}}],
    "ephemeralContainerStatuses": [],
    "allocatedResources": {"cpu": "1"}, "resources": {"requests": {"cpu": "1"}},
    "volumeHealth": [{"name": "data", "healthConditions": [{"status": "Degraded", "reason": "R", "message": "m"}],
        "lastTransitionTime": _TIME}],
}  # fmt: skip


def _size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False).encode())


def _with(path: str, sent: Any) -> dict[str, Any]:
    """Return the complete status with another value at a path such as ``containerStatuses.0.name``."""
    status: dict[str, Any] = json.loads(json.dumps(_STATUS))
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    target: Any = status
    for part in parents:
        target = target[part]
    target[last] = sent
    return status


def test_every_field_of_kubernetes_is_kept():
    """Unchanged, because a difference to the stored status would be written again and again."""
    assert rebuilt(_STATUS, containers=3) == _STATUS


@pytest.mark.parametrize(
    "path",
    [
        "x", "conditions.0.x", "containerStatuses.0.x", "containerStatuses.0.state.x",
        "containerStatuses.0.state.running.x", "containerStatuses.0.resources.x", "containerStatuses.0.user.linux.x",
        "podIPs.0.x", "volumeHealth.0.x", "containerStatuses.0.volumeMounts.0.x",
    ],
)  # fmt: skip
def test_unknown_fields_are_left_out(path: str):
    assert rebuilt(_with(path, {"a": [_HUGE]}), containers=3) == _STATUS


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("podIP", "10.1.0.1; rm"), ("podIP", _HUGE), ("hostIP", ["10.0.0.1"]), ("startTime", "now"), ("phase", "Odd"),
        ("qosClass", 1), ("resize", _HUGE), ("observedGeneration", 2**64), ("observedGeneration", True),
        ("resources", [1]), ("conditions", "x"), ("containerStatuses", {"a": 1}), ("message", 1),
    ],
)  # fmt: skip
def test_invalid_values_are_left_out(path: str, sent: Any):
    """The API server would refuse the complete status."""
    assert path not in rebuilt(_with(path, sent), containers=3)


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("conditions.1.type", "a b"), ("conditions.1.type", _HUGE), ("conditions.1.status", "Maybe"),
        ("containerStatuses.1.name", "../x"), ("containerStatuses.1.name", None),
        ("hostIPs.1.ip", "fe80::1%eth0"), ("hostIPs.1", "10.0.0.1"),
    ],
)  # fmt: skip
def test_invalid_entries_are_left_out(path: str, sent: Any):
    field = path.partition(".")[0]
    assert rebuilt(_with(path, sent), containers=3)[field] == _STATUS[field][:1]


@pytest.mark.parametrize(
    ("path", "most"),
    [
        ("message", 1024), ("reason", 256), ("conditions.0.message", 1024), ("conditions.0.reason", 256),
        ("containerStatuses.1.state.waiting.message", 4096), ("containerStatuses.0.lastState.terminated.message", 4096),
        ("containerStatuses.0.lastState.terminated.reason", 256),
    ],
)  # fmt: skip
def test_texts_are_cut(path: str, most: int):
    value: Any = rebuilt(_with(path, _HUGE), containers=3)
    for part in path.split("."):
        value = value[int(part) if part.isdecimal() else part]
    assert most - 8 <= len(value.encode()) <= most
    assert value.endswith(" ...")


def test_a_termination_message_of_the_kubelets_maximum_is_kept():
    """4,096 bytes, which Conformance reads again."""
    path = "containerStatuses.0.lastState.terminated.message"
    status = _with(path, "x" * 4096)
    assert rebuilt(status, containers=1) == status


@pytest.mark.parametrize("containers", [1, 10, 100, 1000])
def test_the_size_is_bounded_by_the_containers_of_the_upper_pod(containers: int):
    """However many containers, mounts, devices and conditions a lower server reports."""
    many = 2000
    mounts = [{"name": "data", "mountPath": "/" + "a" * 4000} for _ in range(many)]
    terminated = {"exitCode": 1, "message": _HUGE, "containerID": "c" * 500}
    status = {
        **_STATUS,
        "conditions": [
            {"type": f"a/t{number}", "status": "True", "message": _HUGE, "reason": _HUGE}
            for number in range(many)
        ],
        "containerStatuses": [
            {
                **_CONTAINER,
                "name": f"c{number}",
                "volumeMounts": mounts if number < 3 else [],
                "state": {"terminated": terminated},
            }
            for number in range(many)
        ],
        "podIPs": [{"ip": "10.1.0.1"}] * many,
        "volumeHealth": [_STATUS["volumeHealth"][0]] * many,
    }
    limit = min((64 << 10) + containers * (4 << 10), 1 << 20)
    found = rebuilt(status, containers=containers)
    assert _size(found) <= limit + 1024  # msgspec writes no blanks
    assert found["phase"] == "Running"
    assert len(found.get("conditions", ())) <= 32


def test_a_status_that_is_too_large_keeps_the_results_of_its_containers():
    """Messages and mounts are dropped first: a Job's failure policy needs exit codes."""
    ended = {"terminated": {"exitCode": 7, "message": "x" * 4000, "reason": "Error"}}
    mounts = [{"name": "data", "mountPath": f"/{'a' * 500}/{number}"} for number in range(100)]
    status = {**_STATUS, "containerStatuses": [
        {**_CONTAINER, "name": f"c{number}", "state": ended, "volumeMounts": mounts} for number in range(5)
    ]}  # fmt: skip
    found = rebuilt(status, containers=5)
    assert [one["state"]["terminated"]["exitCode"] for one in found["containerStatuses"]] == [7] * 5
    assert len(found["conditions"]) == 2
    assert _size(found) < 90_000


def test_changing_condition_types_do_not_collect_on_the_upper_pod():
    """Conditions of the upper pod stay, so a hostile cluster could add another 30 with each status."""
    upper: dict[str, Any] = {
        "metadata": {"uid": "u", "generation": 1}, "spec": {"readinessGates": [{"conditionType": "gate"}]},
        "status": {"conditions": [{"type": "gate", "status": "True"}]},
    }  # fmt: skip
    for step in range(50):
        reported = [{"type": f"a/t{step}-{number}", "status": "True"} for number in range(30)]
        reported += [{"type": "Ready", "status": "True"}, {"type": "gate", "status": "False"}]
        lower = {"metadata": {"generation": 1}, "status": {"phase": "Running", "conditions": reported}}
        desired = upper_status(lower, upper)
        patch = status_patch(upper["status"], desired, uid="u")
        merged = {one["type"]: one for one in upper["status"]["conditions"]}
        merged |= {one["type"]: one for one in (patch or {}).get("status", {}).get("conditions", ())}
        upper["status"] = {**desired, "conditions": list(merged.values())}
    assert len(upper["status"]["conditions"]) <= MOST_CONDITIONS
    assert {"Ready", "gate"} <= {one["type"] for one in upper["status"]["conditions"]}
