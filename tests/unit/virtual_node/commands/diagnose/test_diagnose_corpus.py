"""A corpus of pods with the verdict that each must get, including former wrong verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.virtual_node.health.health_objects import NOW, ago, condition
from virtual_node.commands.diagnose.facts import PodFacts
from virtual_node.commands.diagnose.verdict import diagnose

CASES: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("diagnose_corpus.yaml").read_text(encoding="utf-8")
)
_SPEC = ("nodeName", "nodeSelector", "affinity", "tolerations", "schedulerName")


def _node(short: dict[str, Any]) -> dict[str, Any]:
    reason, message = short.get("ready") or ("KubeletReady", "")
    labels = {"type": "virtual-kubelet", "kubernetes.io/hostname": short["name"]}
    if "cluster" in short:
        labels["virtual-node.io/lower-cluster"] = short["cluster"]
    return {
        "metadata": {"name": short["name"], "labels": labels},
        "spec": {
            "taints": [{"key": key, "effect": "NoSchedule"} for key in short.get("taints", ())],
            "unschedulable": short.get("unschedulable", False),
        },
        "status": {
            "conditions": [condition("Ready", "False" if "ready" in short else "True", reason, message)]
        },
    }


def _pod(short: dict[str, Any]) -> dict[str, Any]:
    status: dict[str, Any] = {"phase": short.get("phase", "Pending"), "conditions": []}
    if "scheduled" in short:
        status["conditions"].append(condition("PodScheduled", "False", "Unschedulable", short["scheduled"]))
    if "ready" in short:
        status["conditions"].append(condition("Ready", str(short["ready"])))
    if "state" in short:
        restarts = short.get("restarts", 0)
        status["containerStatuses"] = [
            {"name": "c", "image": "i", "state": short["state"], "restartCount": restarts}
        ]
    metadata = {key: short.get(key, {}) for key in ("labels", "annotations")}
    return {
        "metadata": {
            "namespace": "shop",
            "name": "web",
            "uid": "u",
            "creationTimestamp": ago(180),
            **metadata,
        },
        "spec": {"containers": [{"name": "c"}], **{key: short[key] for key in _SPEC if key in short}},
        "status": status,
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_verdict(case: dict[str, Any]) -> None:
    """The first finding has the expected title, evidence and next step, and no finding gives the advice that is wrong."""
    nodes = [_node(short) for short in case["nodes"]]
    on = case["pod"].get("nodeName")
    facts = PodFacts(
        pod=_pod(case["pod"]),
        node=next((node for node in nodes if node["metadata"]["name"] == on), None),
        heartbeat_seconds=3.0,
        lower=None,
        events=[{"reason": reason, "message": message} for reason, message in case.get("events", ())],
        virtual_nodes=nodes,
        now=NOW,
        logs=case.get("logs", ()),
    )
    findings = diagnose(facts)
    assert case["title"] in findings[0].title
    assert case.get("evidence", "") in "\n".join(findings[0].evidence)
    assert case.get("next", "") in "\n".join(findings[0].next_steps)
    if "second" in case:
        assert findings[1].title == case["second"]
    text = "\n".join(line for one in findings for line in (one.title, *one.next_steps))
    assert [word for word in case.get("never", ()) if word in text] == []
