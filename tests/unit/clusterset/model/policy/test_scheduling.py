"""Rules about nodes, taints, schedulers and priority, and the fields that keep pods off control-plane nodes."""

from __future__ import annotations

from typing import Any

import pytest

from clusterset.model.policy.config import Policy
from clusterset.model.policy.rules import PolicySet
from clusterset.model.policy.scheduling import CONTROL_PLANE_KEYS, keep_off_control_plane
from controller_runtime.apimachinery import matching
from tests.unit.clusterset.model.policy.pods import broken, judge, pod

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
RULES = PolicySet().of("shop")


def _affinity(operator: str, key: str = CONTROL_PLANE) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": key, "operator": operator}]}
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}


def _preferred(operator: str) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": CONTROL_PLANE, "operator": operator}]}
    return {"nodeAffinity": {PREFERRED: [{"weight": 1, "preference": term}]}}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        *(({"nodeSelector": {key: ""}}, f"spec.nodeSelector[{key}]") for key in CONTROL_PLANE_KEYS),
        *(
            ({"tolerations": [{"key": key, "operator": "Exists"}]}, f"spec.tolerations[{key}]")
            for key in CONTROL_PLANE_KEYS
        ),
        ({"affinity": _affinity("Exists")}, f"spec.affinity.nodeAffinity[{CONTROL_PLANE}]"),
        ({"affinity": _affinity("In")}, f"spec.affinity.nodeAffinity[{CONTROL_PLANE}]"),
        ({"affinity": _preferred("Exists")}, f"spec.affinity.nodeAffinity[{CONTROL_PLANE}]"),
    ],
)
def test_control_plane_nodes_cannot_be_selected_with_any_preset(spec, field):
    """Only ``controlPlane: true`` allows it."""
    assert broken(pod(**spec)) == [("controlPlane", field)]
    assert broken(pod(**spec), preset="privileged") == [("controlPlane", field)]
    assert judge(pod(**spec), control_plane=True) == []


@pytest.mark.parametrize(
    "spec",
    [
        {"tolerations": [{"operator": "Exists"}]},
        {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
        {"affinity": _affinity("DoesNotExist")},
        {"affinity": _preferred("NotIn")},
        {"affinity": _affinity("In", "disk"), "nodeSelector": {"zone": "a"}},
    ],
)
def test_other_node_selections_are_allowed(spec):
    """A toleration of everything is common, and such pods are kept off control-plane nodes separately."""
    assert judge(pod(**spec)) == []


def _runs_on(spec: dict[str, Any], labels: dict[str, str], *taints: dict[str, str]) -> bool:
    kept = keep_off_control_plane(spec, RULES)
    return matching.admits(kept, name="n", labels=labels, taints=taints)


TAINT = {"key": CONTROL_PLANE, "effect": "NoSchedule"}


@pytest.mark.parametrize(
    "toleration",
    [
        {"operator": "Exists"},
        {"operator": "Exists", "effect": "NoSchedule"},
        {"key": "", "operator": "Exists", "effect": "NoExecute"},
    ],
)
@pytest.mark.parametrize(
    "affinity",
    [{}, _affinity("Exists", "disk"), {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{}]}}}, _preferred("In")],
)  # fmt: skip
@pytest.mark.parametrize("key", CONTROL_PLANE_KEYS)
def test_a_toleration_of_every_taint_does_not_lead_to_control_plane_nodes(toleration, affinity, key):
    """Tainted or not; worker nodes stay possible."""
    spec = {"tolerations": [toleration], "affinity": affinity}
    labels = {"disk": "ssd"}
    assert not _runs_on(spec, {**labels, key: ""})
    assert _runs_on(spec, labels) == matching.admits(spec, name="n", labels=labels, taints=())


@pytest.mark.parametrize(
    "tolerations",
    [[], [{"key": "gpu", "operator": "Exists"}], [{"operator": "Exists", "effect": "PreferNoSchedule"}]],
)
def test_ordinary_pods_are_not_changed_and_run_on_a_control_plane_node_without_a_taint(tolerations):
    """Such as the only node of a small cluster."""
    spec = {"tolerations": tolerations}
    assert keep_off_control_plane(spec, RULES) is spec
    assert _runs_on(spec, {CONTROL_PLANE: ""})
    assert not _runs_on(spec, {CONTROL_PLANE: ""}, TAINT)


def test_nothing_is_added_where_control_plane_nodes_are_allowed():
    spec = {"tolerations": [{"operator": "Exists"}]}
    assert keep_off_control_plane(spec, PolicySet(Policy(control_plane=True)).of("shop")) is spec


def test_taints_that_may_be_tolerated_can_be_listed():
    """API servers add two to every pod; a toleration of everything is not in a list."""
    tolerations = [
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
        {"key": "gpu", "operator": "Exists"},
        {"key": "team-a/spot", "operator": "Exists"},
    ]
    listed: dict[str, Any] = {"toleration_keys": ["gpu", "team-a/*"]}
    assert judge(pod(tolerations=tolerations), **listed) == []
    body = pod(tolerations=[*tolerations, {"key": "storage", "operator": "Exists"}, {"operator": "Exists"}])
    assert broken(body, **listed) == [
        ("tolerationKeys", "spec.tolerations[storage]"),
        ("tolerationKeys", "spec.tolerations[]"),
    ]


def test_labels_that_may_be_selected_can_be_listed():
    """Exclusion chooses, too: what is left when all other nodes are excluded."""
    listed: dict[str, Any] = {"node_selector_keys": ["topology.kubernetes.io/*"]}
    assert judge(pod(nodeSelector={"topology.kubernetes.io/zone": "a"}), **listed) == []
    assert broken(pod(nodeSelector={"kubernetes.io/hostname": "n"}), **listed) == [
        ("nodeSelectorKeys", "spec.nodeSelector[kubernetes.io/hostname]")
    ]
    fields = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
    chosen = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [fields]}}}
    assert broken(pod(affinity=chosen), **listed) == [
        ("nodeSelectorKeys", "spec.affinity.nodeAffinity[metadata.name]")
    ]
    assert broken(pod(affinity=_affinity("NotIn", "kubernetes.io/hostname")), **listed) == [
        ("nodeSelectorKeys", "spec.affinity.nodeAffinity[kubernetes.io/hostname]")
    ]


def test_the_default_scheduler_is_always_allowed_and_others_by_name():
    """The violation names the user's field."""
    assert judge(pod(schedulerName="default-scheduler")) == []
    body = pod(schedulerName="volcano", annotations={"virtual-node.io/scheduler-name": "volcano"})
    assert broken(body, preset="privileged") == [
        ("schedulerNames", "metadata.annotations[virtual-node.io/scheduler-name]")
    ]
    assert judge(body, scheduler_names=["vol*"]) == []


def test_runtime_classes_are_allowed_by_name_only():
    """A class selects the handler, and adds a node selector and tolerations that no other rule sees."""
    body = pod(runtimeClassName="on-control-plane")
    assert broken(body, preset="privileged") == [("runtimeClasses", "spec.runtimeClassName")]
    assert judge(body, runtime_classes=["on-*"]) == []


@pytest.mark.parametrize("name", ["system-node-critical", "system-cluster-critical", "gold"])
def test_priority_classes_are_allowed_by_name_only(name):
    """System classes preempt the pods of all others."""
    body = pod(priorityClassName=name)
    assert broken(body, preset="privileged") == [("priorityClasses", "spec.priorityClassName")]
    assert judge(body, priority_classes=[name]) == []
