"""Mutation of pods: what moves, what stays, what is added, and that doing it twice changes nothing."""

from __future__ import annotations

import itertools
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.api import cluster_selector, matching
from webhook import mutate
from webhook.mutate import Surroundings
from webhook.patch import pod_patch
from webhook.validation import RefusedError

VIRTUAL = Surroundings(virtual_nodes=("vn-a", "vn-b"))
NOT_READY = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}
UNREACHABLE = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
PROVIDER = {"key": "virtual-kubelet.io/provider", "operator": "Exists"}


def _pod(spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    labels = {"virtual-pod": "true"}
    return {
        "metadata": {"name": "web", "labels": labels, **metadata},
        "spec": {"containers": [], **(spec or {})},
    }


def _expression(key: str, *values: str, operator: str = "In") -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def _required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    }


def _term(*expressions: dict[str, Any]) -> dict[str, Any]:
    return {"matchExpressions": list(expressions)}


def _selector(pod: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pod["metadata"]["annotations"]["clusterSelector"])
    return found


def test_a_node_selector_moves_and_ignored_keys_stay():
    """tensile-kube's own example, with its default key."""
    toleration = {"key": "gpu", "operator": "Exists"}
    pod = _pod({"nodeSelector": {"a": "b", "clusterID": "x"}, "tolerations": [toleration]})
    changed = mutate.mutate(pod, VIRTUAL)
    assert changed["spec"]["nodeSelector"] == {"clusterID": "x"}
    assert _selector(changed) == {"nodeSelector": {"a": "b"}, "tolerations": [toleration]}
    assert changed["spec"]["tolerations"] == [toleration, NOT_READY, UNREACHABLE, PROVIDER]


def test_an_emptied_node_selector_vanishes():
    """An empty map would say nothing."""
    changed = mutate.mutate(_pod({"nodeSelector": {"a": "b"}}), VIRTUAL)
    assert "nodeSelector" not in changed["spec"]


def test_required_affinity_moves_term_by_term():
    """An OR of terms that speak of lower nodes only is the same OR below."""
    terms = (_term(_expression("zone", "z")), _term(_expression("gpu", operator="Exists")))
    changed = mutate.mutate(_pod({"affinity": _required(*terms)}), VIRTUAL)
    assert "affinity" not in changed["spec"]
    assert _selector(changed)["affinity"] == _required(*terms)


def test_one_term_splits_into_both_clusters():
    """(clusterID=A and gpu) is clusterID=A above and gpu below."""
    above, below = _expression("clusterID", "A"), _expression("gpu", "yes")
    changed = mutate.mutate(_pod({"affinity": _required(_term(above, below))}), VIRTUAL)
    assert changed["spec"]["affinity"] == _required(_term(above))
    assert _selector(changed)["affinity"] == _required(_term(below))


def test_match_fields_move_like_expressions():
    """tensile-kube panics on a term with both."""
    term = {
        "matchExpressions": [_expression("gpu", "yes")],
        "matchFields": [_expression("metadata.name", "n1")],
    }
    changed = mutate.mutate(_pod({"affinity": _required(term)}), VIRTUAL)
    assert "affinity" not in changed["spec"]
    assert _selector(changed)["affinity"] == _required(term)


def test_a_daemon_set_stays_pinned_to_its_virtual_node():
    """Its controller chose an upper node by match field; below there is no such node."""
    term = {"matchFields": [_expression("metadata.name", "any-upper-node")]}
    owner = {"kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    changed = mutate.mutate(_pod({"affinity": _required(term)}, ownerReferences=[owner]), VIRTUAL)
    assert changed["spec"]["affinity"] == _required(term)


@pytest.mark.parametrize(("value", "moves"), [("vn-a", False), ("lower-node-1", True)])
def test_a_host_name_stays_where_its_node_is(value, moves):
    """A virtual node's name chooses above, any other name below."""
    changed = mutate.mutate(_pod({"nodeSelector": {"kubernetes.io/hostname": value}}), VIRTUAL)
    assert ("nodeSelector" not in changed["spec"]) == moves


def test_preferred_affinity_moves():
    """Lower labels mean nothing upstream."""
    preferred = [{"weight": 5, "preference": _term(_expression("disk", "ssd"))}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    changed = mutate.mutate(_pod({"affinity": affinity}), VIRTUAL)
    assert "affinity" not in changed["spec"]
    assert _selector(changed)["affinity"] == affinity


def test_pod_affinity_and_spread_stay():
    """They are judged between virtual nodes, and per host again below."""
    spec = {
        "affinity": {"podAntiAffinity": {"x": 1}, **_required(_term(_expression("gpu", "yes")))},
        "topologySpreadConstraints": [{"topologyKey": "zone"}],
    }
    changed = mutate.mutate(_pod(spec), VIRTUAL)
    assert changed["spec"]["affinity"] == {"podAntiAffinity": {"x": 1}}
    assert changed["spec"]["topologySpreadConstraints"] == spec["topologySpreadConstraints"]


def test_tolerations_of_lost_nodes_lose_their_limit():
    """A cluster that goes dark goes on running its pods; evicting them above would start them twice."""
    limited = {**NOT_READY, "tolerationSeconds": 300}
    changed = mutate.mutate(_pod({"tolerations": [limited]}), VIRTUAL)
    assert changed["spec"]["tolerations"] == [NOT_READY, UNREACHABLE, PROVIDER]
    assert _selector(changed)["tolerations"] == [limited]


def test_a_pod_with_nothing_to_move_gets_its_tolerations():
    """And no annotation that says nothing."""
    changed = mutate.mutate(_pod(), VIRTUAL)
    assert changed["spec"]["tolerations"] == [NOT_READY, UNREACHABLE, PROVIDER]
    assert "annotations" not in changed["metadata"]


def test_an_existing_selector_is_merged():
    """Both are fulfilled: AND of selectors, product of terms, union of tolerations."""
    present = {
        "nodeSelector": {"old": "1"},
        "affinity": _required(_term(_expression("a", "1")), _term(_expression("a", "2"))),
        "tolerations": [{"key": "old", "operator": "Exists"}],
    }
    pod = _pod(
        {
            "nodeSelector": {"new": "2"},
            "affinity": _required(_term(_expression("b", "3"))),
            "tolerations": [{"key": "new", "operator": "Exists"}],
        },
        annotations={"clusterSelector": json.dumps(present)},
    )
    merged = _selector(mutate.mutate(pod, VIRTUAL))
    assert merged["nodeSelector"] == {"old": "1", "new": "2"}
    assert merged["affinity"] == _required(
        _term(_expression("a", "1"), _expression("b", "3")),
        _term(_expression("a", "2"), _expression("b", "3")),
    )
    assert [one["key"] for one in merged["tolerations"]] == ["old", "new"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[]", "JSON object"),
        ('{"nodeSelector": []}', "clusterSelector.nodeSelector"),
        ('{"nodeSelector": {"a": "other"}}', "contradicts"),
    ],
)
def test_a_selector_that_cannot_be_right_is_refused(text, told):
    """With the reason, at creation, instead of a pod that waits for ever."""
    pod = _pod({"nodeSelector": {"a": "b"}}, annotations={"clusterSelector": text})
    with pytest.raises(RefusedError, match=told):
        mutate.mutate(pod, VIRTUAL)


def test_what_is_avoided_is_noted():
    """The descheduler reads it from the annotation when the freeze is over; affinity alone does not tell whose it is."""
    mutated = mutate.mutate(_pod({}), Surroundings(avoid=["vn-b", "vn-a"]))
    assert mutated["metadata"]["annotations"]["unschedulable-node"] == "vn-a,vn-b"


def test_bound_volumes_pin_and_full_nodes_repel():
    """In every term of the OR, and a spec with a node name is left alone by the freeze."""
    surroundings = Surroundings(virtual_nodes=("vn-a", "vn-b"), pinned_to=[["vn-a"]], avoid=["vn-b"])
    staying = (_term(_expression("clusterID", "A")), _term(_expression("clusterID", "B")))
    changed = mutate.mutate(_pod({"affinity": _required(*staying)}), surroundings)
    terms = changed["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for term in terms["nodeSelectorTerms"]:
        assert _expression("kubernetes.io/hostname", "vn-a") in term["matchExpressions"]
        assert _expression("kubernetes.io/hostname", "vn-b", operator="NotIn") in term["matchExpressions"]
    placed = mutate.mutate(_pod({"nodeName": "vn-b"}), Surroundings(avoid=["vn-b"]))
    assert "affinity" not in placed["spec"]


@pytest.mark.parametrize(
    ("labels", "namespace", "ours"),
    [
        ({"virtual-pod": "true"}, "shop", True),
        ({"virtual-pod": "true"}, "kube-system", False),
        ({"virtual-pod": "true", "create-by-descheduler": "true"}, "shop", False),
        ({"virtual-pod": "false"}, "shop", False),
        (None, "shop", False),
    ],
)
def test_whose_pods_are_mutated(labels, namespace, ours):
    """Labelled ones, outside kube-system, and not those that the descheduler has made."""
    assert mutate.is_ours({"metadata": {"labels": labels}}, namespace) is ours


KEYS = st.sampled_from(["clusterID", "zone", "gpu"])
EXPRESSIONS = st.builds(
    lambda key, operator, value: (
        {"key": key, "operator": operator} | ({"values": [value]} if operator in {"In", "NotIn"} else {})
    ),
    KEYS,
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
    st.sampled_from(["1", "2"]),
)
TERMS = st.lists(
    st.builds(
        lambda expressions: {"matchExpressions": expressions}, st.lists(EXPRESSIONS, min_size=1, max_size=3)
    ),
    min_size=1,
    max_size=3,
)
VALUES = st.sampled_from([None, "1", "2"])


def _labels(**values: str | None) -> dict[str, str]:
    return {key: value for key, value in values.items() if value is not None}


@given(terms=TERMS, cluster=VALUES, zone=VALUES, gpu=VALUES)
def test_the_split_means_what_the_user_said(terms, cluster, zone, gpu):
    """For every OR of ANDs and every pair of nodes: upper and lower together admit what the whole would."""
    pod = _pod({"affinity": _required(*terms)})
    changed = mutate.mutate(pod, VIRTUAL)
    upper, lower = _labels(clusterID=cluster), _labels(zone=zone, gpu=gpu)
    whole = any(matching.matches_term(term, name="n", labels={**upper, **lower}) for term in terms)
    text = (changed["metadata"].get("annotations") or {}).get("clusterSelector")
    selector = cluster_selector.resolve(
        cluster_selector.parse(text) if text else {}, node_name="vn-a", node_labels=upper
    )
    above = matching.admits({**changed["spec"], "tolerations": []}, name="vn-a", labels=upper, taints=[])
    below = matching.admits(selector, name="n", labels=lower, taints=[])
    assert (above and below) == whole


@given(
    terms=st.none() | TERMS,
    selector=st.dictionaries(KEYS, st.sampled_from(["1", "2"])),
    avoid=st.sampled_from([(), ("vn-a",)]),
    tolerations=st.lists(
        st.sampled_from([NOT_READY, PROVIDER, {"key": "x", "operator": "Exists"}]), max_size=3
    ),
)
def test_doing_it_twice_changes_nothing(terms, selector, avoid, tolerations):
    """The API server may ask again; and the patch is what turns one pod into the other."""
    spec: dict[str, Any] = {"nodeSelector": selector, "tolerations": tolerations}
    if terms:
        spec["affinity"] = _required(*terms)
    surroundings = Surroundings(virtual_nodes=("vn-a", "vn-b"), avoid=avoid)
    pod = _pod(spec)
    once = mutate.mutate(pod, surroundings)
    assert mutate.mutate(once, surroundings) == once
    assert jsonpatch.apply_patch(pod, pod_patch(pod, once)) == once


ON_VIRTUAL = _required(_term(_expression("type", "virtual-kubelet")))


def _patched(before: dict[str, Any], after: dict[str, Any]) -> Any:
    return jsonpatch.apply_patch(before, pod_patch(before, after))


def test_asking_for_virtual_nodes_stays_above():
    """No lower node is of type virtual-kubelet: below, nothing would fulfil it."""
    pod = _pod({"nodeSelector": {"type": "virtual-kubelet", "disk": "ssd"}})
    changed = mutate.mutate(pod, VIRTUAL)
    assert changed["spec"]["nodeSelector"] == {"type": "virtual-kubelet"}
    assert _selector(changed)["nodeSelector"] == {"disk": "ssd"}


def test_another_type_moves():
    """``type`` is a common label; only its value for virtual nodes is ours."""
    assert "nodeSelector" not in mutate.mutate(_pod({"nodeSelector": {"type": "gpu"}}), VIRTUAL)["spec"]


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeSelector": {"disk": "ssd"}},
        {"affinity": _required(_term(_expression("disk", "ssd")))},
    ],
)
def test_a_pod_whose_demand_has_moved_runs_on_virtual_nodes_alone(spec: dict[str, Any]):
    """On a real node of the upper cluster nobody would look for the ssd any more."""
    surroundings = Surroundings(require_virtual_node=True)
    pod = _pod(spec)
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
    changed = mutate.mutate(_pod(spec, **metadata), Surroundings(require_virtual_node=True))
    assert "affinity" not in changed["spec"]


def test_a_pod_that_names_no_scheduler_gets_ours():
    """The API server has filled in the default by then."""
    surroundings = Surroundings(scheduler_name="virtual-node-scheduler")
    pod = _pod({"schedulerName": "default-scheduler"})
    changed = mutate.mutate(pod, surroundings)
    assert changed["spec"]["schedulerName"] == "virtual-node-scheduler"
    assert _patched(pod, changed) == changed
    assert mutate.mutate(changed, surroundings) == changed


def test_a_scheduler_that_the_author_chose_stays():
    """Whoever names a scheduler means it."""
    pod = _pod({"schedulerName": "batch"})
    assert mutate.mutate(pod, Surroundings(scheduler_name="ours"))["spec"]["schedulerName"] == "batch"


def test_a_node_that_is_not_ready_is_tolerated_as_its_author_says():
    """Only eviction is what we take from a lost cluster; NoSchedule speaks of something else."""
    own = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule"}
    changed = mutate.mutate(_pod({"tolerations": [own]}), VIRTUAL)
    assert changed["spec"]["tolerations"] == [own, NOT_READY, UNREACHABLE, PROVIDER]
    assert _selector(changed)["tolerations"] == [own]


@pytest.mark.parametrize(
    "more", [[], [{"operator": "Exists"}], [PROVIDER]], ids=["plain", "everything", "by hand"]
)
def test_a_pod_that_never_wants_to_leave_a_lost_lower_node_stays_there(more):
    """Its author's limitless toleration goes below; ours, which looks alike, does not at a second look. What says as much already is enough."""
    once = mutate.mutate(_pod({"tolerations": [NOT_READY, *more]}), VIRTUAL)
    below = json.loads(once["metadata"].get("annotations", {}).get("clusterSelector", "{}")).get(
        "tolerations", []
    )
    assert (NOT_READY in below) == (not more)
    assert UNREACHABLE not in below
    assert mutate.mutate(once, VIRTUAL) == once


EMPTY: dict[str, list[Any]] = {
    "annotations": [None, {}, {"a/b~c": "x"}, {"clusterSelector": ""}, {"clusterSelector": "{}"}],
    "affinity": [
        None, {}, {"nodeAffinity": None}, {"nodeAffinity": {}}, {"podAffinity": {}}, _required({}),
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": None}},
        {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}},
    ],
    "nodeSelector": [None, {}, {"a": "b"}],
    "tolerations": [None, [], [{"operator": "Exists"}]],
}  # fmt: skip


@pytest.mark.parametrize("avoid", [(), ("vn-b",)])
def test_fields_that_say_nothing_are_patched_as_well_as_missing_ones(avoid):
    """Null, empty, or only half there: the patch applies, and a second call finds nothing to do."""
    surroundings = Surroundings(virtual_nodes=("vn-a", "vn-b"), avoid=avoid, require_virtual_node=True)
    for written, affinity, selector, tolerations in itertools.product(*EMPTY.values()):
        pod = _pod({"affinity": affinity, "nodeSelector": selector, "tolerations": tolerations})
        pod["metadata"]["annotations"] = written
        once = mutate.mutate(pod, surroundings)
        patched = jsonpatch.apply_patch(pod, pod_patch(pod, once))
        said = [{key: value for key, value in each["spec"].items() if value} for each in (patched, once)]
        assert said[0] == said[1]
        assert pod_patch(patched, mutate.mutate(patched, surroundings)) == []
