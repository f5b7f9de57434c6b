"""A corpus of pods with the verdict that each must get, including former wrong verdicts, and healthy pods without any."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.thorough import size
from tests.unit.virtual_node.commands.diagnose.healthy_pods import healthy_pod
from tests.unit.virtual_node.examine.health_objects import NOW, ago, condition, lease
from virtual_node.examine import rules
from virtual_node.examine.codes import Code, Severity
from virtual_node.examine.engine import RULES, Level, Rule, in_depth
from virtual_node.examine.pod_view import PodView

rules.load()
CASES: list[dict[str, Any]] = yaml.load(
    Path(__file__).with_name("diagnose_corpus.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
)
_SPEC = ("nodeName", "nodeSelector", "affinity", "tolerations", "schedulerName", "schedulingGroup")
_NOT_OF_PODS = {Code.CONTROLLER_FAILS, Code.NO_PODS, Code.KUBELET_UNREACHABLE, Code.PODS_IN_TROUBLE}
_LISTS = {"conditions", "containerStatuses", "initContainerStatuses", "finalizers", "taints", "tolerations"}
"""Lists without an order that means something."""


def _node(short: dict[str, Any]) -> dict[str, Any]:
    reason, message = short.get("ready") or ("KubeletReady", "")
    labels = {"type": "virtual-kubelet", "kubernetes.io/hostname": short["name"], **short.get("labels", {})}
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


def _pod(short: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    created = patch.get("metadata", {}).get("creationTimestamp", 300)
    status: dict[str, Any] = {"phase": short.get("phase", "Pending"), "conditions": []}
    if "scheduled" in short:
        status["conditions"].append(condition("PodScheduled", "False", "Unschedulable", short["scheduled"]))
    if "scheduled_ok" in short:
        status["conditions"].append(condition("PodScheduled", "True", age=created))
    if "admitted" in short:
        status["conditions"].append(condition("virtual-node.io/Admitted", "False", *short["admitted"]))
    if "ready" in short:
        status["conditions"].append(condition("Ready", str(short["ready"])))
    if "state" in short:
        container = {
            "name": "c",
            "image": "i",
            "state": short["state"],
            "restartCount": short.get("restarts", 0),
        }
        status["containerStatuses"] = [{**container, "lastState": {"terminated": short.get("last")}}]
    metadata = {key: short.get(key, {}) for key in ("labels", "annotations")}
    pod = {
        "metadata": {"namespace": "shop", "name": "web", "uid": "u", "creationTimestamp": 300, **metadata},
        "spec": {"containers": [{"name": "c"}], **{key: short[key] for key in _SPEC if key in short}},
        "status": status,
    }
    return _dated(_merged(pod, patch))


def _lower(patch: Any) -> dict[str, Any] | None:
    if patch in {None, "gone"} if isinstance(patch, str | None) else False:
        return None
    base = {
        "metadata": {"namespace": "shop", "name": "web", "creationTimestamp": 300},
        "spec": {"nodeName": "n1", "containers": [{"name": "c"}]},
        "status": {"phase": "Running"},
    }
    return _dated(_merged(base, patch))


def _merged(base: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict) or not isinstance(base, dict):
        return patch
    return {**base, **{key: _merged(base.get(key), value) for key, value in patch.items()}}


def _dated(pod: dict[str, Any]) -> dict[str, Any]:
    """Replace the seconds before now in timestamps of the metadata."""
    for field in ("creationTimestamp", "deletionTimestamp"):
        if field in pod["metadata"]:
            pod["metadata"][field] = ago(pod["metadata"][field])
    return pod


def facts_of(case: dict[str, Any]) -> PodView:
    """Return what ``diagnose`` has read in a case of the corpus."""
    nodes = [_node(short) for short in case.get("nodes", [{"name": "vn-a"}])]
    on, events = case["pod"].get("nodeName"), case.get("events", ())
    return PodView(
        pod=_pod(case["pod"], case.get("patch", {})),
        node=next((node for node in nodes if node["metadata"]["name"] == on), None),
        lease=lease(case.get("heartbeat", 3.0)),
        lower=_lower(case.get("lower")),
        is_lower_read="lower" in case,
        events=[
            {"reason": reason, "message": message, "lastTimestamp": ago(90 - number)}
            for number, (reason, message) in enumerate(events)
        ],
        claim_events=[
            {"reason": "ProvisioningFailed", "message": message, "involvedObject": {"name": name}}
            for name, message in case.get("claims", {}).items()
        ],
        virtual_nodes=nodes,
        now=NOW,
        logs=case.get("logs", ()),
    )


def _is_of_one_pod(one: Rule) -> bool:
    return one.level is Level.DETAIL or (one.level is Level.POD and not one.is_fallback)


def _shuffled(value: Any, chance: random.Random, name: str = "") -> Any:
    """Return equal data in another order: keys of objects, and lists without an order that means something."""
    if isinstance(value, dict):
        keys = list(value)
        chance.shuffle(keys)
        return {key: _shuffled(value[key], chance, key) for key in keys}
    if isinstance(value, list):
        items = [_shuffled(one, chance) for one in value]
        if name in _LISTS:
            chance.shuffle(items)
        return items
    return value


def _reordered(facts: PodView, chance: random.Random) -> PodView:
    return replace(
        facts,
        pod=_shuffled(facts.pod, chance),
        lower=_shuffled(facts.lower, chance),
        node=_shuffled(facts.node, chance),
        events=_shuffled(facts.events, chance, "conditions"),
        virtual_nodes=_shuffled(facts.virtual_nodes, chance, "conditions"),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_verdict(case: dict[str, Any]) -> None:
    """The first finding has the expected code, title, evidence and next step, and no finding gives the advice that is wrong."""
    facts = facts_of(case)
    findings = in_depth(facts)
    assert findings[0].code == case["code"]
    assert case["title"] in findings[0].cause
    assert case.get("evidence", "") in "\n".join(findings[0].evidence)
    assert case.get("next", "") in "\n".join(findings[0].next_steps)
    if "second" in case:
        assert findings[1].cause == case["second"]
    text = "\n".join(line for one in findings for line in (one.cause, *one.next_steps))
    assert [word for word in case.get("never", ()) if word in text] == []
    chance = random.Random(case["case"])
    assert all(in_depth(_reordered(facts, chance)) == findings for _ in range(10)), (
        "the order changes the verdict"
    )


def test_the_corpus_has_every_code():
    """A new code needs a pod. Fallbacks of level POD are explained by rules of level DETAIL."""
    codes = {code for one in RULES if _is_of_one_pod(one) for code in one.codes}
    assert {case["code"] for case in CASES} == {code.value for code in codes}
    assert len(CASES) >= 60


def test_the_documentation_has_every_code():
    """In the table of docs/reference/cli.md."""
    page = (Path(__file__).parents[5] / "docs/reference/cli.md").read_text(encoding="utf-8")
    table = page.partition("### Codes of diagnose")[2].partition("\n## ")[0]
    codes = {code for one in RULES if _is_of_one_pod(one) for code in one.codes} | _NOT_OF_PODS
    assert sorted(code for code in codes if f"`{code}`" not in table) == []


def test_healthy_pods_have_no_finding():
    """1,000 varied pods of one seed: running, completed, starting, and ending in their grace period."""
    node, chance = _node({"name": "vn-a"}), random.Random(20260101)
    fine = {Code.HEALTHY, Code.COMPLETED, Code.STARTING, Code.TERMINATING}
    seen: dict[Code, int] = {}
    pods = size(300, 1000)
    for number in range(pods):
        pod, lower, events = healthy_pod(chance, number)
        facts = PodView(
            pod=pod,
            node=node if pod["spec"].get("nodeName") else None,
            lease=lease(chance.uniform(0, 15)),
            lower=lower,
            is_lower_read=lower is not None,
            events=events,
            virtual_nodes=[node],
            now=NOW,
        )
        findings = in_depth(_reordered(facts, chance))
        assert all(one.severity is Severity.INFO for one in findings), (findings, pod)
        seen[findings[0].code] = seen.get(findings[0].code, 0) + 1
    assert set(seen) == fine
    assert min(seen.values()) > pods / 20, seen
