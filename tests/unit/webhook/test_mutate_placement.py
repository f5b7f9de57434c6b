"""Nodes, scheduler and tolerations of mutated pods."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from typing import Any

import jsonpatch
import pytest

from clusterset.model import names
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
from webhook.mutation.mutate import Surroundings, pod_patch
from webhook.mutation.validation import RefusedError

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


def test_keeps_type_of_virtual_nodes():
    """No lower node has this type."""
    pod = web_pod({"nodeSelector": {"type": "virtual-kubelet", "disk": "ssd"}})
    changed = mutate.mutate(pod, VIRTUAL)
    assert changed["spec"]["nodeSelector"] == {"type": "virtual-kubelet"}
    assert selector_of(changed)["nodeSelector"] == {"disk": "ssd"}


def test_moves_other_value_of_type():
    """``type`` is a common label."""
    assert "nodeSelector" not in mutate.mutate(web_pod({"nodeSelector": {"type": "gpu"}}), VIRTUAL)["spec"]


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"disk": "ssd"}},
        {"affinity": requiring(a_term(an_expression("disk", "ssd")))},
    ],
)
def test_pod_with_moved_selector_requires_virtual_node(spec: dict[str, Any]):
    """A real upper node does not apply the moved selector."""
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
def test_pod_without_moved_selector_may_use_real_nodes(spec: dict[str, Any], metadata: dict[str, Any]):
    """Clusters that burst into others also use their own nodes. A DaemonSet's pod has its node already."""
    changed = mutate.mutate(web_pod(spec, **metadata), Surroundings(require_virtual_node=True))
    assert "affinity" not in changed["spec"]


MOVING = Surroundings(move_resource_claims=True)
CLAIMS = {
    "containers": [{"name": "main", "resources": {"limits": {"cpu": "1"}, "claims": [{"name": "gpu"}]}}],
    "resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}],
}


def test_moves_resource_claims_and_requires_virtual_node():
    """The upper scheduler knows no lower devices, and a real upper node would run the pod without its device."""
    pod = web_pod(CLAIMS)
    once = mutate.mutate(pod, MOVING)
    assert "resourceClaims" not in once["spec"]
    assert once["spec"]["containers"] == [{"name": "main", "resources": {"limits": {"cpu": "1"}}}]
    assert once["spec"]["affinity"] == ON_VIRTUAL
    assert json.loads(once["metadata"]["annotations"][names.ANNOTATION_RESOURCE_CLAIMS]) == {
        "resourceClaims": CLAIMS["resourceClaims"],
        "containers": {"main": [{"name": "gpu"}]},
    }
    assert _patched(pod, once) == once
    assert mutate.mutate(once, MOVING) == once


@pytest.mark.parametrize(
    ("spec", "metadata", "surroundings"),
    [
        (CLAIMS, {}, Surroundings()),
        ({**CLAIMS, "nodeName": "worker-1"}, {}, MOVING),
        (CLAIMS, {"ownerReferences": [{"kind": "DaemonSet", "name": "agent"}]}, MOVING),
    ],
)
def test_keeps_resource_claims_of_pods_that_real_nodes_may_run(spec, metadata, surroundings):
    """The flag is off, or the pod has its node already."""
    changed = mutate.mutate(web_pod(spec, **metadata), surroundings)
    assert changed["spec"]["resourceClaims"] == CLAIMS["resourceClaims"]


@pytest.mark.parametrize(
    ("spec", "annotation"),
    [
        ({**CLAIMS, "resourceClaims": [{"name": "gpu"}]}, None),
        (CLAIMS, json.dumps({"resourceClaims": CLAIMS["resourceClaims"]})),
        ({}, "{"),
    ],
)
def test_denies_invalid_resource_claims(spec, annotation):
    """Otherwise the lower cluster would refuse the pod after it was bound."""
    annotations = {} if annotation is None else {names.ANNOTATION_RESOURCE_CLAIMS: annotation}
    with pytest.raises(RefusedError, match=r"resourceClaims|resource-claims"):
        mutate.mutate(web_pod(spec, annotations=annotations), MOVING)


def test_sets_scheduler_of_pod_with_default_scheduler():
    """The API server fills in the default before the webhook is called."""
    surroundings = Surroundings(scheduler_name="virtual-node-scheduler")
    pod = web_pod({"schedulerName": "default-scheduler"})
    changed = mutate.mutate(pod, surroundings)
    assert changed["spec"]["schedulerName"] == "virtual-node-scheduler"
    assert _patched(pod, changed) == changed
    assert mutate.mutate(changed, surroundings) == changed


def test_keeps_scheduler_that_the_pod_names():
    pod = web_pod({"schedulerName": "batch"})
    assert mutate.mutate(pod, Surroundings(scheduler_name="other"))["spec"]["schedulerName"] == "batch"


def test_keeps_no_schedule_toleration_of_not_ready_nodes():
    """Only NoExecute tolerations are replaced."""
    own = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule"}
    changed = mutate.mutate(web_pod({"tolerations": [own]}), VIRTUAL)
    assert changed["spec"]["tolerations"] == [own, NOT_READY, UNREACHABLE, PROVIDER]
    assert selector_of(changed)["tolerations"] == [own]


@pytest.mark.parametrize(
    "more", [[], [{"operator": "Exists"}], [PROVIDER]], ids=["plain", "everything", "by hand"]
)
def test_copies_unlimited_toleration_of_author_but_not_own_one(more):
    """Both are equal, so a second mutation must distinguish them. A toleration of all taints includes them."""
    once = mutate.mutate(web_pod({"tolerations": [NOT_READY, *more]}), VIRTUAL)
    lower = json.loads(once["metadata"].get("annotations", {}).get("clusterSelector", "{}")).get(
        "tolerations", []
    )
    assert (NOT_READY in lower) == (not more)
    assert UNREACHABLE not in lower
    assert mutate.mutate(once, VIRTUAL) == once


@pytest.mark.parametrize("frozen", [{}, {"vn-b": datetime(2026, 1, 1, tzinfo=UTC)}])
def test_patch_applies_to_null_and_empty_fields(frozen):
    """A second mutation changes nothing."""
    surroundings = Surroundings(virtual_nodes=("vn-a", "vn-b"), frozen=frozen, require_virtual_node=True)
    for written, affinity, selector, tolerations in itertools.product(*EMPTY.values()):
        pod = web_pod({"affinity": affinity, "nodeSelector": selector, "tolerations": tolerations})
        pod["metadata"]["annotations"] = written
        once = mutate.mutate(pod, surroundings)
        patched = jsonpatch.apply_patch(pod, pod_patch(pod, once))
        specs = [{key: value for key, value in each["spec"].items() if value} for each in (patched, once)]
        assert specs[0] == specs[1]
        assert pod_patch(patched, mutate.mutate(patched, surroundings)) == []
