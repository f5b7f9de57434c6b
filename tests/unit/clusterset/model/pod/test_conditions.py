"""Reasons in a pod's status."""

from __future__ import annotations

from typing import Any

import pytest

from clusterset.model.pod.conditions import why_not_started
from tests import objects

ADMITTED = "virtual-node.io/Admitted"
UNSCHEDULABLE = objects.condition("PodScheduled", "False", "Unschedulable", "0/3 nodes\nare available")


def _waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"name": "main", "state": {"waiting": {"reason": reason, "message": message}}}


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (None, ""),
        ({}, ""),
        ({"conditions": [objects.condition("PodScheduled")]}, ""),
        ({"conditions": [UNSCHEDULABLE]}, "Unschedulable: 0/3 nodes are available"),
        (
            {"conditions": [UNSCHEDULABLE, objects.condition(ADMITTED, "False", "ExceededQuota", "cpu")]},
            "ExceededQuota: cpu",
        ),
        ({"containerStatuses": [_waiting("ContainerCreating")]}, ""),
        ({"containerStatuses": [_waiting("ImagePullBackOff", "no such image")]}, "ImagePullBackOff: no such image"),
        (
            {"initContainerStatuses": [_waiting("CrashLoopBackOff")], "containerStatuses": [_waiting("PodInitializing")]},
            "CrashLoopBackOff",
        ),
        ({"containerStatuses": [{"name": "main", "state": {"running": {}}}]}, ""),
    ],
)  # fmt: skip
def test_the_reason_why_a_pod_has_not_started_is_that_of_the_first_step_that_fails(status: Any, why: str):
    """Admission comes before scheduling, and scheduling before containers."""
    assert why_not_started(status) == why
