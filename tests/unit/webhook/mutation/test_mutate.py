"""Mutation of pods: what moves, what stays, what is added."""

from __future__ import annotations

import json

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
from webhook.mutation.validation import RefusedError


def test_a_node_selector_moves_and_ignored_keys_stay():
    """tensile-kube's own example, with its default key."""
    toleration = {"key": "gpu", "operator": "Exists"}
    pod = web_pod({"nodeSelector": {"a": "b", "clusterID": "x"}, "tolerations": [toleration]})
    changed = mutate.mutate(pod, VIRTUAL)
    assert changed["spec"]["nodeSelector"] == {"clusterID": "x"}
    assert selector_of(changed) == {"nodeSelector": {"a": "b"}, "tolerations": [toleration]}
    assert changed["spec"]["tolerations"] == [toleration, NOT_READY, UNREACHABLE, PROVIDER]


def test_an_emptied_node_selector_vanishes():
    """An empty map would say nothing."""
    changed = mutate.mutate(web_pod({"nodeSelector": {"a": "b"}}), VIRTUAL)
    assert "nodeSelector" not in changed["spec"]


def test_required_affinity_moves_term_by_term():
    """An OR of terms that speak of lower nodes only is the same OR below."""
    terms = (a_term(an_expression("zone", "z")), a_term(an_expression("gpu", operator="Exists")))
    changed = mutate.mutate(web_pod({"affinity": requiring(*terms)}), VIRTUAL)
    assert "affinity" not in changed["spec"]
    assert selector_of(changed)["affinity"] == requiring(*terms)


def test_one_term_splits_into_both_clusters():
    """(clusterID=A and gpu) is clusterID=A above and gpu below."""
    above, below = an_expression("clusterID", "A"), an_expression("gpu", "yes")
    changed = mutate.mutate(web_pod({"affinity": requiring(a_term(above, below))}), VIRTUAL)
    assert changed["spec"]["affinity"] == requiring(a_term(above))
    assert selector_of(changed)["affinity"] == requiring(a_term(below))


def test_match_fields_move_like_expressions():
    """tensile-kube panics on a term with both."""
    term = {
        "matchExpressions": [an_expression("gpu", "yes")],
        "matchFields": [an_expression("metadata.name", "n1")],
    }
    changed = mutate.mutate(web_pod({"affinity": requiring(term)}), VIRTUAL)
    assert "affinity" not in changed["spec"]
    assert selector_of(changed)["affinity"] == requiring(term)


def test_a_daemon_set_stays_pinned_to_its_virtual_node():
    """Its controller chose an upper node by match field; below there is no such node."""
    term = {"matchFields": [an_expression("metadata.name", "any-upper-node")]}
    owner = {"kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    changed = mutate.mutate(web_pod({"affinity": requiring(term)}, ownerReferences=[owner]), VIRTUAL)
    assert changed["spec"]["affinity"] == requiring(term)


@pytest.mark.parametrize(("value", "moves"), [("vn-a", False), ("lower-node-1", True)])
def test_a_host_name_stays_where_its_node_is(value, moves):
    """A virtual node's name chooses above, any other name below."""
    changed = mutate.mutate(web_pod({"nodeSelector": {"kubernetes.io/hostname": value}}), VIRTUAL)
    assert ("nodeSelector" not in changed["spec"]) == moves


def test_preferred_affinity_moves():
    """Lower labels mean nothing upstream."""
    preferred = [{"weight": 5, "preference": a_term(an_expression("disk", "ssd"))}]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    changed = mutate.mutate(web_pod({"affinity": affinity}), VIRTUAL)
    assert "affinity" not in changed["spec"]
    assert selector_of(changed)["affinity"] == affinity


def test_pod_affinity_and_spread_stay():
    """They are judged between virtual nodes, and per host again below."""
    spec = {
        "affinity": {"podAntiAffinity": {"x": 1}, **requiring(a_term(an_expression("gpu", "yes")))},
        "topologySpreadConstraints": [{"topologyKey": "zone"}],
    }
    changed = mutate.mutate(web_pod(spec), VIRTUAL)
    assert changed["spec"]["affinity"] == {"podAntiAffinity": {"x": 1}}
    assert changed["spec"]["topologySpreadConstraints"] == spec["topologySpreadConstraints"]


def test_tolerations_of_lost_nodes_lose_their_limit():
    """A cluster that goes dark goes on running its pods; evicting them above would start them twice."""
    limited = {**NOT_READY, "tolerationSeconds": 300}
    changed = mutate.mutate(web_pod({"tolerations": [limited]}), VIRTUAL)
    assert changed["spec"]["tolerations"] == [NOT_READY, UNREACHABLE, PROVIDER]
    assert selector_of(changed)["tolerations"] == [limited]


def test_a_pod_with_nothing_to_move_gets_its_tolerations():
    """And no annotation that says nothing."""
    changed = mutate.mutate(web_pod(), VIRTUAL)
    assert changed["spec"]["tolerations"] == [NOT_READY, UNREACHABLE, PROVIDER]
    assert "annotations" not in changed["metadata"]


def test_an_existing_selector_is_merged():
    """Both are fulfilled: AND of selectors, product of terms, union of tolerations."""
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
    pod = web_pod({"nodeSelector": {"a": "b"}}, annotations={"clusterSelector": text})
    with pytest.raises(RefusedError, match=told):
        mutate.mutate(pod, VIRTUAL)


def test_what_is_avoided_is_noted():
    """The descheduler reads it from the annotation when the freeze is over; affinity alone does not tell whose it is."""
    mutated = mutate.mutate(web_pod({}), Surroundings(avoid=["vn-b", "vn-a"]))
    assert mutated["metadata"]["annotations"]["unschedulable-node"] == "vn-a,vn-b"


def test_bound_volumes_pin_and_full_nodes_repel():
    """In every term of the OR, and a spec with a node name is left alone by the freeze."""
    surroundings = Surroundings(virtual_nodes=("vn-a", "vn-b"), pinned_to=[["vn-a"]], avoid=["vn-b"])
    staying = (a_term(an_expression("clusterID", "A")), a_term(an_expression("clusterID", "B")))
    changed = mutate.mutate(web_pod({"affinity": requiring(*staying)}), surroundings)
    terms = changed["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for term in terms["nodeSelectorTerms"]:
        assert an_expression("kubernetes.io/hostname", "vn-a") in term["matchExpressions"]
        assert an_expression("kubernetes.io/hostname", "vn-b", operator="NotIn") in term["matchExpressions"]
    placed = mutate.mutate(web_pod({"nodeName": "vn-b"}), Surroundings(avoid=["vn-b"]))
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
    assert mutate.needs_mutation({"metadata": {"labels": labels}}, namespace) is ours
