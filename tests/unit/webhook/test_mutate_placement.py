"""Where a mutated pod may run, by whose scheduler, and past which taints."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonpatch
import pytest

from tests.unit.webhook.pods import (
    NOT_READY,
    PROVIDER,
    UNREACHABLE,
    VIRTUAL,
    a_term,
    an_expression,
    requiring,
    selector_of,
    web_pod,
)
from webhook.mutation import mutate
from webhook.mutation.mutate import Surroundings
from webhook.mutation.patch import pod_patch

ON_VIRTUAL = requiring(a_term(an_expression("type", "virtual-kubelet")))
EMPTY: dict[str, list[Any]] = {
    "annotations": [None, {}, {"a/b~c": "x"}, {"clusterSelector": ""}, {"clusterSelector": "{}"}],
    "affinity": [
        None, {}, {"nodeAffinity": None}, {"nodeAffinity": {}}, {"podAffinity": {}}, requiring({}),
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": None}},
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}},
    ],
    "nodeSelector": [None, {}, {"a": "b"}],
    "tolerations": [None, [], [{"operator": "Exists"}]],
}  # fmt: skip


def _patched(before: dict[str, Any], after: dict[str, Any]) -> Any:
    return jsonpatch.apply_patch(before, pod_patch(before, after))


def test_asking_for_virtual_nodes_stays_above():
    """No lower node is of type virtual-kubelet: below, nothing would fulfil it."""
    pod = web_pod({"nodeSelector": {"type": "virtual-kubelet", "disk": "ssd"}})
    changed = mutate.mutate(pod, VIRTUAL)
    assert changed["spec"]["nodeSelector"] == {"type": "virtual-kubelet"}
    assert selector_of(changed)["nodeSelector"] == {"disk": "ssd"}


def test_another_type_moves():
    """``type`` is a common label; only its value for virtual nodes is ours."""
    assert "nodeSelector" not in mutate.mutate(web_pod({"nodeSelector": {"type": "gpu"}}), VIRTUAL)["spec"]


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"disk": "ssd"}},
        {"affinity": requiring(a_term(an_expression("disk", "ssd")))},
    ],
)
def test_a_pod_whose_demand_has_moved_runs_on_virtual_nodes_alone(spec: dict[str, Any]):
    """On a real node of the upper cluster nobody would look for the ssd any more."""
    surroundings = Surroundings(require_virtual_node=True)
    pod = web_pod(spec)
    once = mutate.mutate(pod, surroundings)
    assert once["spec"]["affinity"] == ON_VIRTUAL
    assert _patched(pod, once) == once
    assert mutate.mutate(once, surroundings) == once


@pytest.mark.parametrize(
    ("spec", "metadata"),
    [
        ({}, {}),
        ({"tolerations": [{"key": "gpu", "operator": "Exists"}]}, {}),
        ({"nodeSelector": {"clusterID": "x"}}, {}),
        ({"nodeSelector": {"disk": "ssd"}, "nodeName": "worker-1"}, {}),
        ({"nodeSelector": {"disk": "ssd"}}, {"ownerReferences": [{"kind": "DaemonSet", "name": "agent"}]}),
    ],
)
def test_a_pod_that_demands_nothing_below_may_run_anywhere(spec: dict[str, Any], metadata: dict[str, Any]):
    """Clusters that burst into others keep their own nodes in use; a DaemonSet's pod has its node already."""
    changed = mutate.mutate(web_pod(spec, **metadata), Surroundings(require_virtual_node=True))
    assert "affinity" not in changed["spec"]


def test_a_pod_that_names_no_scheduler_gets_ours():
    """The API server has filled in the default by then."""
    surroundings = Surroundings(scheduler_name="virtual-node-scheduler")
    pod = web_pod({"schedulerName": "default-scheduler"})
    changed = mutate.mutate(pod, surroundings)
    assert changed["spec"]["schedulerName"] == "virtual-node-scheduler"
    assert _patched(pod, changed) == changed
    assert mutate.mutate(changed, surroundings) == changed


def test_a_scheduler_that_the_author_chose_stays():
    """Whoever names a scheduler means it."""
    pod = web_pod({"schedulerName": "batch"})
    assert mutate.mutate(pod, Surroundings(scheduler_name="ours"))["spec"]["schedulerName"] == "batch"


def test_a_node_that_is_not_ready_is_tolerated_as_its_author_says():
    """Only eviction is what we take from a lost cluster; NoSchedule speaks of something else."""
    own = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule"}
    changed = mutate.mutate(web_pod({"tolerations": [own]}), VIRTUAL)
    assert changed["spec"]["tolerations"] == [own, NOT_READY, UNREACHABLE, PROVIDER]
    assert selector_of(changed)["tolerations"] == [own]


@pytest.mark.parametrize(
    "more", [[], [{"operator": "Exists"}], [PROVIDER]], ids=["plain", "everything", "by hand"]
)
def test_a_pod_that_never_wants_to_leave_a_lost_lower_node_stays_there(more):
    """Its author's limitless toleration goes below; ours, which looks alike, does not at a second look. What says as much already is enough."""
    once = mutate.mutate(web_pod({"tolerations": [NOT_READY, *more]}), VIRTUAL)
    below = json.loads(once["metadata"].get("annotations", {}).get("clusterSelector", "{}")).get(
        "tolerations", []
    )
    assert (NOT_READY in below) == (not more)
    assert UNREACHABLE not in below
    assert mutate.mutate(once, VIRTUAL) == once


@pytest.mark.parametrize("avoid", [(), ("vn-b",)])
def test_fields_that_say_nothing_are_patched_as_well_as_missing_ones(avoid):
    """Null, empty, or only half there: the patch applies, and a second call finds nothing to do."""
    surroundings = Surroundings(virtual_nodes=("vn-a", "vn-b"), avoid=avoid, require_virtual_node=True)
    for written, affinity, selector, tolerations in itertools.product(*EMPTY.values()):
        pod = web_pod({"affinity": affinity, "nodeSelector": selector, "tolerations": tolerations})
        pod["metadata"]["annotations"] = written
        once = mutate.mutate(pod, surroundings)
        patched = jsonpatch.apply_patch(pod, pod_patch(pod, once))
        said = [{key: value for key, value in each["spec"].items() if value} for each in (patched, once)]
        assert said[0] == said[1]
        assert pod_patch(patched, mutate.mutate(patched, surroundings)) == []
