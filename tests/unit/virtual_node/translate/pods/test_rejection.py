"""The lower scheduler's message becomes the kubelet's reason."""

from __future__ import annotations

import time
from typing import Any

import pytest

from virtual_node.translate.pods.synthetic_status import UNEXPECTED, rejection


def _pod(message: str, **changes: Any) -> dict[str, Any]:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    body = {"metadata": {"name": "web"}, "spec": {}, "status": {"conditions": [condition]}}
    return {key: value | changes.get(key, {}) for key, value in body.items()}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("0/1 nodes are available: 1 Insufficient cpu.", "OutOfcpu"),
        (
            "0/4 nodes: 1 Insufficient cpu, 3 Insufficient nvidia.com/gpu. preemption: 0/4 nodes: 4 Insufficient cpu.",
            "OutOfnvidia.com/gpu",
        ),
        ("0/2 nodes are available: 2 Too many pods.", "OutOfpods"),
        (
            "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.",
            "NodePorts",
        ),
        ("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.", "NodeAffinity"),
        ("0/1 nodes are available: 1 node(s) had untolerated taint {a: b}.", "TaintToleration"),
        (
            "0/3 nodes are available: 1 Insufficient memory, 2 node(s) had untolerated taint {a: }.",
            "TaintToleration",
        ),
        ("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.", UNEXPECTED),
        ("", UNEXPECTED),
    ],
)
def test_the_reason_is_that_of_most_nodes(message, reason):
    assert rejection(_pod(message)) == (reason, f"Pod was rejected: {message}")


def test_a_hostile_message_takes_no_time():
    """Every user who may patch a lower pod's status writes the message."""
    started = time.thread_time()
    assert rejection(_pod("1" * 1_000_000)) == (UNEXPECTED, f"Pod was rejected: {'1' * 4096}")
    reason = rejection(_pod("9" * 3000 + " Insufficient cpu"))
    assert reason is not None
    assert reason[0] == "OutOfcpu"
    assert time.thread_time() - started < 0.1


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": {"nodeName": "worker"}},
        {"status": {"nominatedNodeName": "worker"}},
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"status": {"conditions": []}},
        {
            "status": {
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]
            }
        },
        {"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulerError"}]}},
    ],
    ids=["has a node", "preemption is going on", "is deleted", "not tried yet", "gated", "scheduler failed"],
)
def test_a_pod_that_may_still_be_placed_is_not_rejected(changes):
    assert rejection(_pod("0/1 nodes are available: 1 Insufficient cpu.", **changes)) is None
