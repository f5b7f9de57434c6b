"""The container statuses of an upper pod, if the lower pod has containers that the upper pod does not have."""

from __future__ import annotations

from typing import Any

import pytest

from clusterset.model import names
from virtual_node.translate.pods.status import upper_status

RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
CRASHED = {"waiting": {"reason": "CrashLoopBackOff"}}


def ended(code: int = 0) -> dict[str, Any]:
    """Return the state of a container that has terminated."""
    return {"terminated": {"exitCode": code}}


def status(name: str, state: dict[str, Any] = RUNNING, **more: Any) -> dict[str, Any]:
    """Return the status of a container."""
    return {"name": name, "state": state, "ready": state is RUNNING, **more}


def mirrored(
    *, spec: Any = None, above: Any = None, debuggers: Any = "debug", **below: Any
) -> dict[str, Any]:
    """Return the upper status of a pod with a container ``main``; ``debuggers``: the record of debug containers that we added."""
    upper = {
        "metadata": {"uid": "u", "generation": 1},
        "spec": {"containers": [{"name": "main"}], **(spec or {})},
        "status": above or {},
    }
    metadata = {"generation": 1, "annotations": {names.ANNOTATION_DEBUG_CONTAINERS: debuggers}}
    return upper_status({"metadata": metadata, "status": {"phase": "Running", **below}}, upper)


@pytest.mark.parametrize("order", [("main", "proxy"), ("proxy", "main")])
def test_an_added_container_has_no_upper_status(order):
    found = mirrored(containerStatuses=[status(name) for name in order])
    assert [one["name"] for one in found["containerStatuses"]] == ["main"]


@pytest.mark.parametrize("state", [RUNNING, CRASHED, ended(1)])
@pytest.mark.parametrize("field", ["initContainerStatuses", "ephemeralContainerStatuses"])
def test_a_list_of_added_containers_only_is_left_out(field, state):
    """The API server takes an unknown init container for one that never restarts, and refuses its next state."""
    found = mirrored(**{field: [status("added", state)]}, containerStatuses=[status("main")])
    assert field not in found


def test_own_containers_of_all_kinds_stay_beside_added_ones():
    spec = {
        "initContainers": [{"name": "setup"}, {"name": "side", "restartPolicy": "Always"}],
        "ephemeralContainers": [{"name": "debug"}],
    }
    below = {
        "initContainerStatuses": [status("istio-init", ended()), status("setup", ended()), status("side")],
        "ephemeralContainerStatuses": [status("debug"), status("lower-debug")],
        "containerStatuses": [status("proxy"), status("main")],
    }
    found = mirrored(spec=spec, **below)
    assert {field: [one["name"] for one in found[field]] for field in below} == {
        "initContainerStatuses": ["setup", "side"],
        "ephemeralContainerStatuses": ["debug"],
        "containerStatuses": ["main"],
    }


@pytest.mark.parametrize(
    ("debuggers", "above", "shown"),
    [
        ("debug", [], [status("debug")]),
        ("", [], None),
        ("other", [], None),
        ("", [status("debug", ended(3))], [status("debug", ended(3))]),
        ("debug", [status("debug", ended(3))], [status("debug", ended(3))]),
    ],
)
def test_a_debug_container_without_record_keeps_its_former_status(debuggers, above, shown):
    """It may be the lower cluster's. After an upgrade, the record follows in a moment, and the status must not vanish."""
    found = mirrored(
        spec={"ephemeralContainers": [{"name": "debug"}]}, debuggers=debuggers,
        above={"ephemeralContainerStatuses": above}, ephemeralContainerStatuses=[status("debug")],
    )  # fmt: skip
    assert found.get("ephemeralContainerStatuses") == shown


def test_readiness_and_phase_follow_the_whole_lower_pod():
    ready = {
        "type": "Ready",
        "status": "False",
        "reason": "ContainersNotReady",
        "message": "containers with unready status: [proxy]",
    }
    found = mirrored(
        phase="Pending", conditions=[ready], containerStatuses=[status("main"), status("proxy", CRASHED)]
    )
    assert (found["phase"], found["conditions"]) == ("Pending", [ready])


@pytest.mark.parametrize(
    ("policy", "container", "code", "after"),
    [
        ("Always", {}, 0, "running"),
        ("OnFailure", {}, 1, "running"),
        ("OnFailure", {}, 0, "terminated"),
        ("Never", {}, 1, "terminated"),
        ("Never", {"restartPolicy": "Always"}, 1, "running"),
        ("Always", {"restartPolicy": "Never"}, 1, "terminated"),
        *(
            ("Never", {"restartPolicyRules": [{"action": "Restart", "exitCodes": codes}]}, 7, after)
            for codes, after in (
                ({"operator": "In", "values": [7]}, "running"),
                ({"operator": "In", "values": [8]}, "terminated"),
                ({"operator": "NotIn", "values": [8]}, "running"),
            )
        ),
    ],
)
def test_a_container_that_may_not_restart_stays_finished(policy, container, code, after):
    """The API server refuses other states, also if admission of the lower cluster has changed the restart policy."""
    spec = {"restartPolicy": policy, "containers": [{"name": "main", **container}]}
    above = {"containerStatuses": [status("main", ended(code))]}
    found = mirrored(spec=spec, above=above, containerStatuses=[status("main")])
    assert list(found["containerStatuses"][0]["state"]) == [after]


def test_a_pod_that_an_added_container_keeps_from_finishing_says_so():
    """As on a real node with that container: a Job does not complete. Its pod names the reason."""
    below = {"containerStatuses": [status("main", ended()), status("proxy")]}
    found = mirrored(spec={"restartPolicy": "Never"}, **below)
    assert (found["phase"], found["message"]) == (
        "Running",
        "The pod finishes after proxy: a container that was added in the lower cluster, and still runs",
    )
    assert "message" not in mirrored(spec={"restartPolicy": "Always"}, **below)
    assert "message" not in mirrored(
        spec={"restartPolicy": "Never"}, containerStatuses=[status("main"), status("proxy")]
    )
    assert mirrored(spec={"restartPolicy": "Never"}, message="evicted", **below)["message"] == "evicted"


def test_statuses_of_a_pod_whose_spec_is_not_cached_stay():
    """The cache keeps large pods of a namespace over its limit without their containers."""
    found = mirrored(spec={"containers": []}, containerStatuses=[status("main")])
    assert [one["name"] for one in found["containerStatuses"]] == ["main"]


@pytest.mark.parametrize(
    ("resources", "kept"),
    [
        ({}, []),
        ({"claims": [{"name": "gpu"}]}, ["claim:gpu"]),
        ({"claims": [{"name": "gpu", "request": "one"}]}, ["claim:gpu/one"]),
        ({"requests": {"example.com/nic": "1"}}, ["example.com/nic"]),
    ],
)
def test_health_is_reported_of_devices_that_the_upper_container_requests(resources, kept):
    """The API server refuses all container statuses for others: of claims in the annotation, or added in the lower cluster."""
    devices = [
        {"name": name, "resources": [{"resourceID": "a/b/c", "health": "Healthy"}]}
        for name in ("claim:gpu", "claim:gpu/one", "example.com/nic")
    ]
    spec = {"containers": [{"name": "main", "resources": resources}]}
    found = mirrored(spec=spec, containerStatuses=[status("main", allocatedResourcesStatus=devices)])
    (shown,) = found["containerStatuses"]
    assert shown["state"] == RUNNING
    assert [one["name"] for one in shown.get("allocatedResourcesStatus", [])] == kept


def test_health_of_volumes_that_the_lower_cluster_added_is_left_out():
    spec = {"containers": [{"name": "main"}], "volumes": [{"name": "data"}]}
    health = [{"name": name, "healthConditions": [{"status": "Degraded"}]} for name in ("data", "added")]
    assert mirrored(spec=spec, volumeHealth=health)["volumeHealth"] == health[:1]
    assert "volumeHealth" not in mirrored(spec=spec, volumeHealth=health[1:])
