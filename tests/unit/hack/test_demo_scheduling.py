"""The demo fails if the pods are not as its statements say."""

from __future__ import annotations

from typing import Any

import pytest

from hack.sandbox.commands import demo
from hack.sandbox.commands import demo_scheduling as scene
from hack.sandbox.errors import SandboxError

CORES = [64, 64]
FULL = "0/2 nodes are available: 1 lower cluster lower2: 0/2 nodes are available: 2 Insufficient cpu, 1 node(s) didn't match."


def _pod(name: str, *, node: str = "vn-lower2", phase: str = "Running", message: str = "") -> dict[str, Any]:
    """Return an upper pod; ``message`` of its condition PodScheduled, which the lower scheduler writes once it is bound."""
    conditions = [{"type": "PodScheduled", "status": "False", "message": message}] if message else []
    spec = {"nodeName": node} if node else {}
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": phase, "conditions": conditions}}


RUNNING = [_pod("a"), _pod("b")]
WAITING = _pod("c", node="", phase="Pending", message=FULL)
OVERCOMMITTED = _pod("c", phase="Pending", message="0/2 nodes are available: 2 Insufficient cpu.")


@pytest.mark.parametrize(
    ("cores", "room", "expected"),
    [
        ([64, 64], 2, "128 cores have room for 3 pods, 2 nodes of 64 only for 2, so one pod waits"),
        ([64, 64, 64], 3, "192 cores have room for 4 pods, 3 nodes of 64 only for 3, so one pod waits"),
        ([64], 1, "1 node of 64 has room for 1, so one pod waits"),
    ],
)
def test_statement_is_about_the_lower_nodes(cores, room, expected):
    """Their number is a flag of the demo."""
    assert scene.fitting(cores) == room
    assert scene.statement(cores) == expected


def test_third_pod_that_waits_is_as_stated():
    pods = [*RUNNING, WAITING]
    assert scene.overcommitment(pods, CORES) == ""
    assert scene.waiting_pods(pods, CORES) == [WAITING]
    assert scene.difference(pods, RUNNING, CORES) == ""


def test_third_pod_that_is_bound_is_an_error():
    """Its message is that of the lower scheduler, which looks like that of the upper one."""
    pods = [*RUNNING, OVERCOMMITTED]
    assert scene.overcommitment(pods, CORES) == (
        "3 of 3 pods are bound, but only 2 fit on lower nodes of [64, 64] cores: c on vn-lower2: "
        "0/2 nodes are available: 2 Insufficient cpu."
    )
    assert scene.waiting_pods(pods, CORES) == []


@pytest.mark.parametrize(
    ("upper", "lower"),
    [
        (
            [
                *RUNNING,
                _pod("c", node="", phase="Pending", message="0/2 nodes are available: 2 node(s) had taint"),
            ],
            RUNNING,
        ),
        ([*RUNNING, WAITING], [_pod("a")]),
        ([_pod("a"), WAITING, _pod("b", phase="Pending")], [_pod("a")]),
    ],
    ids=["another reason", "fewer lower pods", "fewer upper pods"],
)
def test_other_pods_than_stated_are_an_error(upper, lower):
    assert scene.difference(upper, lower, CORES).startswith("2 pods must run and one must wait, but")


def test_output_without_the_expected_text_is_an_error():
    demo.expect("heartbeat 7", r"^heartbeat \d+$", "kubectl logs")
    with pytest.raises(SandboxError, match=r"kubectl logs: expected .* in the output, got 'Error'"):
        demo.expect("Error", r"^heartbeat \d+$", "kubectl logs")
