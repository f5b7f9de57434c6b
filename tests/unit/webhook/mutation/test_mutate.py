"""Mutation of pods: which fields move, which stay and which are added."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from clusterset.model import names
from controller_runtime.objects import from_dict
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
from webhook.mutation.validation import RefusedError

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_moves_node_selector_except_ignored_keys():
    """The example of tensile-kube, with its default key."""
    toleration = {"key": "gpu", "operator": "Exists"}
    pod = web_pod({"nodeSelector": {"a": "b", "clusterID": "x"}, "tolerations": [toleration]})
    changed = mutate.mutate(pod, VIRTUAL)
    assert changed["spec"]["nodeSelector"] == {"clusterID": "x"}
    assert selector_of(changed) == {"nodeSelector": {"a": "b"}, "tolerations": [toleration]}
    assert changed["spec"]["tolerations"] == [toleration, NOT_READY, UNREACHABLE, PROVIDER]


@pytest.mark.parametrize(("operator", "values"), [("In", ["tokyo"]), ("NotIn", ["tokyo"]), ("Exists", None)])
def test_keeps_the_label_that_every_virtual_node_has(operator: str, values: list[str] | None):
    """No lower node has it: a pod that requires it would stay Pending there, and one that avoids it would not."""
    chosen = {
        "key": names.LABEL_LOWER_CLUSTER,
        "operator": operator,
        **({"values": values} if values else {}),
    }
    spec = {
        "nodeSelector": {names.LABEL_LOWER_CLUSTER: "tokyo", "disk": "ssd"},
        "affinity": requiring(a_term(chosen, an_expression("gpu", "yes"))),
    }
    changed = mutate.mutate(web_pod(spec), VIRTUAL)
    assert changed["spec"]["nodeSelector"] == {names.LABEL_LOWER_CLUSTER: "tokyo"}
    assert changed["spec"]["affinity"] == requiring(a_term(chosen))
    assert selector_of(changed) == {
        "nodeSelector": {"disk": "ssd"},
        "affinity": requiring(a_term(an_expression("gpu", "yes"))),
    }


def test_removes_empty_node_selector():
    changed = mutate.mutate(web_pod({"nodeSelector": {"a": "b"}}), VIRTUAL)
    assert "nodeSelector" not in changed["spec"]


def test_moves_required_affinity_without_upper_keys_unchanged():
    terms = (a_term(an_expression("zone", "z")), a_term(an_expression("gpu", operator="Exists")))
    changed = mutate.mutate(web_pod({"affinity": requiring(*terms)}), VIRTUAL)
    assert "affinity" not in changed["spec"]
    assert selector_of(changed)["affinity"] == requiring(*terms)


def test_splits_term_between_upper_and_lower_cluster():
    upper, lower = an_expression("clusterID", "A"), an_expression("gpu", "yes")
    changed = mutate.mutate(web_pod({"affinity": requiring(a_term(upper, lower))}), VIRTUAL)
    assert changed["spec"]["affinity"] == requiring(a_term(upper))
    assert selector_of(changed)["affinity"] == requiring(a_term(lower))


def test_moves_nothing_if_one_term_needs_no_lower_node():
    """A node of cluster A is enough, so a lower node without the label must be, too."""
    upper, lower = an_expression("clusterID", "A"), an_expression("gpu", "yes")
    affinity = requiring(a_term(upper, lower), a_term(upper))
    changed = mutate.mutate(web_pod({"affinity": affinity}), VIRTUAL)
    assert changed["spec"]["affinity"] == requiring(a_term(upper))
    assert "clusterSelector" not in changed["metadata"].get("annotations", {})


def test_moves_match_fields_like_expressions():
    """tensile-kube panics on a term with both."""
    term = {
        "matchExpressions": [an_expression("gpu", "yes")],
        "matchFields": [an_expression("metadata.name", "n1")],
    }
    changed = mutate.mutate(web_pod({"affinity": requiring(term)}), VIRTUAL)
    assert "affinity" not in changed["spec"]
    assert selector_of(changed)["affinity"] == requiring(term)


def test_keeps_match_field_of_daemon_set_pod():
    """The DaemonSet controller selects an upper node by match field. No lower node has that name."""
    term = {"matchFields": [an_expression("metadata.name", "any-upper-node")]}
    owner = {"kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    changed = mutate.mutate(web_pod({"affinity": requiring(term)}, ownerReferences=[owner]), VIRTUAL)
    assert changed["spec"]["affinity"] == requiring(term)


@pytest.mark.parametrize(("value", "moves"), [("vn-a", False), ("lower-node-1", True)])
def test_keeps_hostname_of_virtual_node_and_moves_others(value, moves):
    changed = mutate.mutate(web_pod({"nodeSelector": {"kubernetes.io/hostname": value}}), VIRTUAL)
    assert ("nodeSelector" not in changed["spec"]) == moves


def test_moves_preferred_affinity():
    preferred = [{"weight": 5, "preference": a_term(an_expression("disk", "ssd"))}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    changed = mutate.mutate(web_pod({"affinity": affinity}), VIRTUAL)
    assert "affinity" not in changed["spec"]
    assert selector_of(changed)["affinity"] == affinity


def test_keeps_pod_affinity_and_topology_spread():
    spec = {
        "affinity": {"podAntiAffinity": {"x": 1}, **requiring(a_term(an_expression("gpu", "yes")))},
        "topologySpreadConstraints": [{"topologyKey": "zone"}],
    }
    changed = mutate.mutate(web_pod(spec), VIRTUAL)
    assert changed["spec"]["affinity"] == {"podAntiAffinity": {"x": 1}}
    assert changed["spec"]["topologySpreadConstraints"] == spec["topologySpreadConstraints"]


def test_removes_time_limit_of_unreachable_tolerations():
    """Pods of an unreachable cluster keep running, so taint eviction in the upper cluster would start them twice."""
    limited = {**NOT_READY, "tolerationSeconds": 300}
    changed = mutate.mutate(web_pod({"tolerations": [limited]}), VIRTUAL)
    assert changed["spec"]["tolerations"] == [NOT_READY, UNREACHABLE, PROVIDER]
    assert selector_of(changed)["tolerations"] == [limited]


def test_adds_only_tolerations_if_nothing_moves():
    changed = mutate.mutate(web_pod(), VIRTUAL)
    assert changed["spec"]["tolerations"] == [NOT_READY, UNREACHABLE, PROVIDER]
    assert "annotations" not in changed["metadata"]


def test_merges_existing_selector():
    """AND of selectors, product of terms, union of tolerations."""
    present = {
        "nodeSelector": {"old": "1"},
        "affinity": requiring(a_term(an_expression("a", "1")), a_term(an_expression("a", "2"))),
        "tolerations": [{"key": "old", "operator": "Exists"}],
    }
    pod = web_pod(
        {
            "nodeSelector": {"new": "2"},
            "affinity": requiring(a_term(an_expression("b", "3"))),
            "tolerations": [{"key": "new", "operator": "Exists"}],
        },
        annotations={"clusterSelector": json.dumps(present)},
    )
    merged = selector_of(mutate.mutate(pod, VIRTUAL))
    assert merged["nodeSelector"] == {"old": "1", "new": "2"}
    assert merged["affinity"] == requiring(
        a_term(an_expression("a", "1"), an_expression("b", "3")),
        a_term(an_expression("a", "2"), an_expression("b", "3")),
    )
    assert [entry["key"] for entry in merged["tolerations"]] == ["old", "new"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "JSON object"),
        ('{"nodeSelector": []}', "clusterSelector.nodeSelector"),
        ('{"nodeSelector": {"a": "other"}}', "contradicts"),
    ],
)
def test_denies_invalid_or_contradicting_annotation(text, message):
    """Otherwise the pod would stay pending forever."""
    pod = web_pod({"nodeSelector": {"a": "b"}}, annotations={"clusterSelector": text})
    with pytest.raises(RefusedError, match=message):
        mutate.mutate(pod, VIRTUAL)


def test_writes_avoided_nodes_into_annotation():
    """The descheduler reads them when the freeze is over. Affinity alone does not show who added it."""
    mutated = mutate.mutate(web_pod({}), Surroundings(frozen={"vn-b": NOW, "vn-a": NOW}))
    assert mutated["metadata"]["annotations"]["unschedulable-node"] == "vn-a,vn-b"


def test_adds_volume_affinity_and_avoidance_to_every_term():
    """A pod with a node name gets no avoidance."""
    surroundings = Surroundings(virtual_nodes=("vn-a", "vn-b"), pinned_to=[["vn-a"]], frozen={"vn-b": NOW})
    staying = (a_term(an_expression("clusterID", "A")), a_term(an_expression("clusterID", "B")))
    changed = mutate.mutate(web_pod({"affinity": requiring(*staying)}), surroundings)
    terms = changed["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for term in terms["nodeSelectorTerms"]:
        assert an_expression("kubernetes.io/hostname", "vn-a") in term["matchExpressions"]
        assert an_expression("kubernetes.io/hostname", "vn-b", operator="NotIn") in term["matchExpressions"]
    placed = mutate.mutate(web_pod({"nodeName": "vn-b"}), Surroundings(frozen={"vn-b": NOW}))
    assert "affinity" not in placed["spec"]


@pytest.mark.parametrize(
    ("nodes", "frozen", "avoided"),
    [("abc", "a", "a"), ("abc", "ab", "b"), ("abcd", "abc", "c"), ("abc", "bc", "b,c"), ("ab", "a", "")],
)
def test_avoids_no_more_than_the_last_of_the_nodes_that_admit_the_pod(nodes, frozen, avoided):
    """The pod is limited to all nodes but the last, and would otherwise stay Pending for the freeze period."""
    nodes = [f"vn-{name}" for name in nodes]
    surroundings = Surroundings(
        virtual_nodes=nodes,
        pinned_to=[nodes[:-1]],
        frozen={f"vn-{name}": NOW + timedelta(seconds=ord(name)) for name in frozen},
        open_nodes=[
            from_dict({"metadata": {"name": name, "labels": {names.LABEL_HOSTNAME: name}}}) for name in nodes
        ],
    )
    once = mutate.mutate(web_pod({}), surroundings)
    written = once["metadata"].get("annotations", {}).get("unschedulable-node", "")
    assert written.replace("vn-", "") == avoided
    assert mutate.mutate(once, surroundings) == once


@pytest.mark.parametrize(
    ("labels", "namespace", "mutated"),
    [
        ({"virtual-pod": "true"}, "shop", True),
        ({"virtual-pod": "true"}, "kube-system", False),
        ({"virtual-pod": "true", "create-by-descheduler": "true"}, "shop", False),
        ({"virtual-pod": "false"}, "shop", False),
        (None, "shop", False),
    ],
)
def test_mutates_only_labelled_pods_outside_kube_system(labels, namespace, mutated):
    """Pods that the descheduler created are not mutated again."""
    assert mutate.needs_mutation({"metadata": {"labels": labels}}, namespace) is mutated
