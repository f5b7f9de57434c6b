"""Where the virtual node is installed in the upper cluster, its Deployment and containers say why it is missing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.virtual_node.commands.doctor_facts import conditions, container, healthy
from tests.unit.virtual_node.examine.health_objects import lease
from virtual_node.commands.doctor import first_broken, judged
from virtual_node.examine.facts import INSTALLED, Installation


def _installed(**status: Any) -> Installation:
    deployment = {"metadata": {"namespace": "vn", "name": "d"}, "spec": {"replicas": 1}, "status": {}}
    one = {
        "metadata": {"namespace": "vn", "name": "p"},
        "spec": {"nodeName": "master", "containers": [{"name": "c"}]},
        "status": {"phase": "Running", **status},
    }
    return Installation([deployment], [one], {"vn/p": ["starting", "ConfigError: no kubeconfig"]})


LOOPING = container(
    {"waiting": {"reason": "CrashLoopBackOff"}}, lastState={"terminated": {"exitCode": 2, "reason": "Error"}}
)


@pytest.mark.parametrize(
    ("installation", "detail", "step"),
    [
        (_installed(**LOOPING), "CrashLoopBackOff (exit code 2): ConfigError: no kubeconfig", "logs p -c c --prev"),
        (replace(_installed(**LOOPING), logs={}), "(exit code 2): Error", "logs p -c c --previous"),
        (
            _installed(**container({"terminated": {"exitCode": 1, "message": "last words"}})),
            "(exit code 1): last words", "logs p",
        ),
        (
            _installed(**container({"waiting": {"reason": "ImagePullBackOff", "message": "not found"}})),
            "is in ImagePullBackOff: not found", "correct the image reg/x:1",
        ),
        (
            _installed(**container({"waiting": {"reason": "CreateContainerConfigError", "message": "no s"}})),
            "is in CreateContainerConfigError: no s", "describe pod p",
        ),
        (_installed(phase="Pending"), "Pod vn/p is Pending", "describe pod p"),
        (
            _installed(**container({"running": {}}, ready=True), **conditions("Ready", "True")),
            "its pod vn/p runs", "virtual-node lower-cluster join NAME --client-kubeconfig FILE; else kubectl -n vn logs p",
        ),
        (replace(_installed(), pods=[]), "Deployment vn/d has no pods: none is labelled app", "describe deployment d"),
        (
            Installation([{"metadata": {"namespace": "vn", "name": "d"}, "spec": {"replicas": 0}}]),
            "Deployment vn/d is scaled to 0", "scale deployment d --replicas=1",
        ),
        (
            Installation([{"metadata": {"namespace": "vn", "name": "d"}, "spec": {},
                           "status": conditions("ReplicaFailure", "True", message="quota")}]),
            "has no pods: quota", "describe deployment d",
        ),
    ],
)  # fmt: skip
def test_a_missing_process_is_explained_by_its_deployment(installation: Installation, detail: str, step: str):
    """And by its containers."""
    lost = healthy(leases={"vn": lease(99)}, installation=installation)
    for facts in (healthy(nodes=[], installation=installation), lost):
        found = first_broken(judged(facts))
        assert found is not None
        assert detail in found.detail
        assert step in found.next


def test_an_unscheduled_process_is_reported():
    """Its own pod waits for a node."""
    installation = _installed(phase="Pending", **conditions("PodScheduled", "False", message="0/3 nodes"))
    del installation.pods[0]["spec"]["nodeName"]
    found = first_broken(judged(healthy(nodes=[], installation=installation)))
    assert found is not None
    assert "Pod vn/p has no node: 0/3 nodes" in found.detail


def test_an_invisible_installation_is_not_reported_as_missing():
    found = first_broken(judged(healthy(nodes=[], unread={INSTALLED: "403"})))
    assert found is not None
    assert "cannot be seen (403)" in found.detail
