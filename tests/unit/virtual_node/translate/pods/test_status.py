"""Whose word counts in an upper pod's status: the lower kubelet's, and the upper control plane's where it is its own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.virtual_node.translate.pods.pods import ready, upper_pod
from virtual_node.translate.pods.status import status_patch, upper_status


def upper(*, generation: Any = 1, **status: Any) -> dict[str, Any]:
    """An upper pod of that status."""
    return {"metadata": {"uid": "u", "generation": generation}, "spec": {}, "status": status}


def lower(*, generation: Any = 1, **status: Any) -> dict[str, Any]:
    """A lower pod of that status."""
    return {"metadata": {"generation": generation}, "status": status}


def test_a_limit_range_below_does_not_block_the_status():
    """Defaults below may make another QoS class; above it may never change, or the whole status is refused."""
    found = upper_status(
        lower(phase="Running", qosClass="Burstable"), upper(phase="Pending", qosClass="BestEffort")
    )
    assert (found["phase"], found["qosClass"]) == ("Running", "BestEffort")


def test_an_eviction_above_stays_to_be_read():
    """A Job whose podFailurePolicy ignores disruptions must not count an eviction that the upper cluster began."""
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    above = upper(phase="Running", conditions=[target])
    found = upper_status(lower(phase="Failed", conditions=[{"type": "Ready", "status": "False"}]), above)
    assert target in found["conditions"]
    patch = status_patch(above["status"], found, uid="u")
    assert patch is not None
    assert {change["type"] for change in patch["status"]["conditions"]} == {"Ready"}


def test_a_disruption_below_is_told_above():
    """An eviction by a lower node is the pod's own disruption."""
    target = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
    assert target in upper_status(lower(conditions=[target]), upper())["conditions"]


@pytest.mark.parametrize(
    "field", ["nominatedNodeName", "resourceClaimStatuses", "extendedResourceClaimStatus"]
)
def test_what_names_objects_stays_in_its_cluster(field):
    """The lower cluster's is not shown above, and what the upper control plane wrote is not taken away."""
    found = upper_status(lower(phase="Running", **{field: "below"}), upper(**{field: "above"}))
    assert found[field] == "above"
    assert field not in upper_status(lower(phase="Running", **{field: "below"}), upper())


@pytest.mark.parametrize("kind", ["PodResizePending", "AllContainersRestarting"])
def test_a_passing_condition_goes_when_it_has_passed(kind):
    """What the lower kubelet says no more is not to be read above for ever."""
    above = upper(conditions=[{"type": kind, "status": "True"}])
    patch = status_patch(above["status"], upper_status(lower(phase="Running"), above), uid="u")
    assert patch is not None
    assert patch["status"]["conditions"] == [{"$patch": "delete", "type": kind}]


def test_a_generation_is_observed_when_the_kubelet_has_seen_what_it_asks():
    """Whoever waits for a resize reads observedGeneration first: it must not run ahead of the change below."""
    ready = {"type": "Ready", "status": "True", "observedGeneration": 4}
    above = upper(generation=8, observedGeneration=7, conditions=[{**ready, "observedGeneration": 7}])
    below = lower(generation=4, observedGeneration=4, conditions=[ready])
    for reached, seen in ((0, 7), (5, 7), (4, 8), (None, 8)):
        found = upper_status(below, above, reached=reached)
        assert found["observedGeneration"] == seen
        assert found["conditions"][0]["observedGeneration"] == seen


def test_a_generation_that_nobody_has_observed_is_not_claimed():
    """The lower pod's numbers are not the upper pod's."""
    ready = {"type": "Ready", "status": "True", "observedGeneration": 4}
    found = upper_status(lower(generation=5, observedGeneration=4, conditions=[ready]), upper(generation=2))
    assert "observedGeneration" not in found
    assert "observedGeneration" not in found["conditions"][0]


def test_status_comes_up_unabridged():
    """Everything is carried, fields unknown to us too, but for what names lower objects."""
    status = {"phase": "Running", "podIP": "10.1.1.1", "futureField": 1, "nominatedNodeName": "below"}
    found = upper_status(lower(**status), upper_pod(readinessGates=[]))
    assert found["podIP"] == "10.1.1.1"
    assert found["futureField"] == 1
    assert "nominatedNodeName" not in found


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        ({"type": "lb", "status": "True"}, "True"),
        ({"type": "lb", "status": "False"}, "False"),
        (None, "False"),
    ],
)
def test_ready_waits_for_the_gates_above(gate, expected):
    """Readiness gates are conditions of the upper pod: Ready is true only when they are."""
    pod = upper_pod()
    pod["status"]["conditions"] = [gate] if gate else []
    found = upper_status(lower(phase="Running", conditions=[ready("True")]), pod)
    conditions = {condition["type"]: condition for condition in found["conditions"]}
    assert conditions["Ready"]["status"] == expected
    assert ("lb" in conditions) == bool(gate)
    if expected == "False":
        assert conditions["Ready"]["reason"] == "ReadinessGatesNotReady"
