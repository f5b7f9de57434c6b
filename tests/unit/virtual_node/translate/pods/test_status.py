"""The upper pod's status: the lower kubelet's fields, and those of the upper control plane."""

from __future__ import annotations

from typing import Any

import pytest

from controller_runtime.apimachinery import timestamps
from tests.unit.virtual_node.translate.pods.pods import ready, upper_pod
from virtual_node.translate.pods.status import status_patch, upper_status

AN_HOUR_LATER, NOW = "2026-01-01T01:00:00Z", "2026-01-01T02:00:00Z"


def upper(*, generation: Any = 1, **status: Any) -> dict[str, Any]:
    """Return an upper pod with that status."""
    return {"metadata": {"uid": "u", "generation": generation}, "spec": {}, "status": status}


def lower(*, generation: Any = 1, **status: Any) -> dict[str, Any]:
    """Return a lower pod with that status."""
    return {"metadata": {"generation": generation}, "status": status}


def test_a_lower_limit_range_does_not_block_the_status():
    """Lower defaults may change the QoS class; the upper one is immutable, or the whole status is refused."""
    found = upper_status(
        lower(phase="Running", qosClass="Burstable"), upper(phase="Pending", qosClass="BestEffort")
    )
    assert (found["phase"], found["qosClass"]) == ("Running", "BestEffort")


def test_an_upper_eviction_condition_stays():
    """A Job with a podFailurePolicy that ignores disruptions must not count an eviction of the upper cluster."""
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    above = upper(phase="Running", conditions=[target])
    found = upper_status(lower(phase="Failed", conditions=[{"type": "Ready", "status": "False"}]), above)
    assert target in found["conditions"]
    patch = status_patch(above["status"], found, uid="u")
    assert patch is not None
    assert {change["type"] for change in patch["status"]["conditions"]} == {"Ready"}


def test_a_lower_disruption_is_mirrored():
    """An eviction by a lower node is the pod's own disruption."""
    target = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    assert target in upper_status(lower(conditions=[target]), upper())["conditions"]


@pytest.mark.parametrize(
    "field", ["nominatedNodeName", "resourceClaimStatuses", "extendedResourceClaimStatus"]
)
def test_fields_with_names_of_objects_are_not_mirrored(field):
    """The lower ones are hidden, and those of the upper control plane are kept."""
    found = upper_status(lower(phase="Running", **{field: "below"}), upper(**{field: "above"}))
    assert found[field] == "above"
    assert field not in upper_status(lower(phase="Running", **{field: "below"}), upper())


@pytest.mark.parametrize("kind", ["PodResizePending", "AllContainersRestarting"])
def test_a_removed_lower_condition_is_removed(kind):
    above = upper(conditions=[{"type": kind, "status": "True"}])
    patch = status_patch(above["status"], upper_status(lower(phase="Running"), above), uid="u")
    assert patch is not None
    assert patch["status"]["conditions"] == [{"$patch": "delete", "type": kind}]


@pytest.mark.parametrize(("status", "stays"), [("True", True), ("False", False)])
def test_the_upper_scheduler_has_scheduled_a_pod_that_the_lower_one_has_not_seen(status, stays):
    """``kubectl wait --for=condition=PodScheduled`` waited again, and each new pod cost a write. A refusal of ours is over."""
    scheduled = {"type": "PodScheduled", "status": status}
    above = upper(phase="Pending", conditions=[scheduled])
    found = upper_status(lower(phase="Pending"), above)
    assert (scheduled in found["conditions"]) is stays
    assert (status_patch(above["status"], found, uid="u") is None) is stays
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    assert upper_status(lower(conditions=[unschedulable]), above)["conditions"] == [unschedulable]


def test_a_generation_is_observed_when_the_lower_kubelet_has_observed_it():
    """Clients that wait for a resize read observedGeneration first: it must not precede the lower change."""
    ready = {"type": "Ready", "status": "True", "observedGeneration": 4}
    above = upper(generation=8, observedGeneration=7, conditions=[{**ready, "observedGeneration": 7}])
    below = lower(generation=4, observedGeneration=4, conditions=[ready])
    for reached, seen in ((0, 7), (5, 7), (4, 8), (None, 8)):
        found = upper_status(below, above, reached=reached)
        assert found["observedGeneration"] == seen
        assert found["conditions"][0]["observedGeneration"] == seen


def test_an_unobserved_generation_is_not_reported():
    """The lower pod's numbers are not the upper pod's."""
    ready = {"type": "Ready", "status": "True", "observedGeneration": 4}
    found = upper_status(lower(generation=5, observedGeneration=4, conditions=[ready]), upper(generation=2))
    assert "observedGeneration" not in found
    assert "observedGeneration" not in found["conditions"][0]


def test_status_is_mirrored_completely():
    """Except unknown fields, which have any size, and those with names of lower objects."""
    status = {"phase": "Running", "podIP": "10.1.1.1", "futureField": 1, "nominatedNodeName": "below"}
    found = upper_status(lower(**status), upper_pod(readinessGates=[]))
    assert found["podIP"] == "10.1.1.1"
    assert "futureField" not in found
    assert "nominatedNodeName" not in found


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        ({"type": "lb", "status": "True"}, "True"),
        ({"type": "lb", "status": "False"}, "False"),
        (None, "False"),
    ],
)
def test_ready_requires_the_upper_readiness_gates(gate, expected):
    """Their conditions are those of the upper pod."""
    pod = upper_pod()
    pod["status"]["conditions"] = [gate] if gate else []
    found = upper_status(lower(phase="Running", conditions=[ready("True")]), pod)
    conditions = {condition["type"]: condition for condition in found["conditions"]}
    assert conditions["Ready"]["status"] == expected
    assert ("lb" in conditions) == bool(gate)
    if expected == "False":
        assert conditions["Ready"]["reason"] == "ReadinessGatesNotReady"


@pytest.mark.parametrize(
    ("before", "gate", "expected"),
    [
        ({**ready("False"), "lastTransitionTime": AN_HOUR_LATER}, "True", NOW),
        ({**ready("True"), "lastTransitionTime": AN_HOUR_LATER}, "True", AN_HOUR_LATER),
        ({**ready("True"), "lastTransitionTime": "2025-12-31T23:59:00Z"}, "True", ready("True")["lastTransitionTime"]),
        (ready("True"), "False", NOW),
        ({**ready("False"), "lastTransitionTime": AN_HOUR_LATER}, "False", AN_HOUR_LATER),
    ],
)  # fmt: skip
def test_a_readiness_gate_decides_since_when_a_pod_is_ready(before, gate, expected):
    """Otherwise, minReadySeconds would begin when the containers became ready, long before the gate."""
    pod = upper_pod()
    pod["status"]["conditions"] = [before, {"type": "lb", "status": gate}]
    below = lower(phase="Running", conditions=[ready("True")])
    found = upper_status(below, pod, now=timestamps.parse(NOW))
    (shown,) = [condition for condition in found["conditions"] if condition["type"] == "Ready"]
    assert (shown["status"], shown["lastTransitionTime"]) == (gate, expected)
