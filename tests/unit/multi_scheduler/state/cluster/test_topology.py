"""Topology spread and pod (anti-)affinity in a lower cluster follow kube-scheduler's rules."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from multi_scheduler.state import judge
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import Demand, Placed, required_terms
from tests import objects
from tests.unit.multi_scheduler.lower_pods import demand_of

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"
WEB = {"matchLabels": {"app": "web"}}


def _demand(
    *, labels: dict[str, str] | None = None, namespace: str = "shop", selector: str = "", **spec: Any
) -> Demand:
    metadata: dict[str, Any] = {"uid": "u", "namespace": namespace, "labels": labels or {"app": "web"}}
    if selector:
        metadata["annotations"] = {"clusterSelector": selector}
    pod = {"metadata": metadata, "spec": {"containers": [], **spec}}
    return demand_of(pod)


def _placed(
    node: str, *, labels: dict[str, str] | None = None, namespace: str = "shop", **more: Any
) -> Placed:
    labels = {"app": "web"} if labels is None else labels
    return Placed(node, {"pods": 1}, namespace=namespace, labels=labels, **more)


def _index(*nodes: dict[str, Any], **pods: Placed) -> ClusterIndex:
    index = ClusterIndex()
    for node in nodes:
        index.upsert_node(node)
    for uid, placed in pods.items():
        index.place(uid, placed)
    return index


def _names(index: ClusterIndex, wanted: Demand) -> set[str]:
    return {index.name(slot) for slot in index.feasible(wanted)}


def _why(index: ClusterIndex, wanted: Demand) -> Counter[str]:
    """Return the number of rejecting nodes by reason."""
    counted: Counter[str] = Counter()
    assert index.feasible(wanted, counted) == []
    return counted


def _spread(**more: Any) -> list[dict[str, Any]]:
    return [
        {
            "maxSkew": 1,
            "topologyKey": HOST,
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": WEB,
            **more,
        }
    ]


CONTROL_PLANE = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}


def test_spread_counts_tainted_nodes():
    """NodeTaintsPolicy is Ignore by default, so an empty control-plane node limits all others to one pod."""
    index = _index(objects.node("master", taints=[CONTROL_PLANE]), objects.node("a"), p=_placed("a"))
    assert _names(index, _demand(topologySpreadConstraints=_spread())) == set()
    assert _names(index, _demand(topologySpreadConstraints=_spread(nodeTaintsPolicy="Honor"))) == {"a"}


def test_spread_counts_selected_nodes_by_node_affinity_policy():
    """NodeAffinityPolicy is Honor by default."""
    index = _index(
        objects.node("plain"), objects.node("ssd", labels={HOST: "ssd", "disk": "ssd"}), p=_placed("ssd")
    )
    selector = '{"nodeSelector": {"disk": "ssd"}}'
    assert _names(index, _demand(selector=selector, topologySpreadConstraints=_spread())) == {"ssd"}
    ignoring = _spread(nodeAffinityPolicy="Ignore")
    assert _names(index, _demand(selector=selector, topologySpreadConstraints=ignoring)) == set()


def test_spread_with_fewer_domains_than_min_domains():
    """With one node of three required ones, the minimum is zero."""
    index = _index(objects.node("a"), p=_placed("a"))
    assert _names(index, _demand(topologySpreadConstraints=_spread())) == {"a"}
    assert _names(index, _demand(topologySpreadConstraints=_spread(minDomains=3))) == set()


def test_spread_ignores_pods_being_deleted():
    """And pods of other revisions, with matchLabelKeys."""
    index = _index(objects.node("a"), objects.node("b"), p=_placed("a", is_ending=True))
    assert _names(index, _demand(topologySpreadConstraints=_spread())) == {"a", "b"}
    index = _index(objects.node("a"), objects.node("b"), p=_placed("a", labels={"app": "web", "rev": "1"}))
    mine = _demand(
        labels={"app": "web", "rev": "2"}, topologySpreadConstraints=_spread(matchLabelKeys=["rev"])
    )
    assert _names(index, mine) == {"a", "b"}


def _terms(*selectors: dict[str, Any], **more: Any) -> dict[str, Any]:
    terms = [{"topologyKey": HOST, "labelSelector": selector, **more} for selector in selectors]
    return {"requiredDuringSchedulingIgnoredDuringExecution": terms}


def test_all_affinity_terms_must_match_one_pod():
    """Two pods that match one term each do not suffice."""
    tier = {"matchLabels": {"tier": "db"}}
    wanted = _demand(affinity={"podAffinity": _terms(WEB, tier)}, labels={"app": "other"})
    index = _index(objects.node("a"), p=_placed("a"), q=_placed("a", labels={"tier": "db"}))
    assert _names(index, wanted) == set()
    index.place("r", _placed("a", labels={"app": "web", "tier": "db"}))
    assert _names(index, wanted) == {"a"}


def test_first_pod_of_a_group_may_start_alone():
    """Only if it matches all of its own terms."""
    tier = {"matchLabels": {"tier": "db"}}
    index = _index(objects.node("a"))
    both = {"podAffinity": _terms(WEB, tier)}
    assert _names(index, _demand(affinity=both, labels={"app": "web", "tier": "db"})) == {"a"}
    assert _names(index, _demand(affinity=both, labels={"app": "web"})) == set()


@pytest.mark.parametrize(
    ("more", "repels"),
    [
        ({}, False),
        ({"namespaceSelector": {}}, True),
        ({"namespaces": ["other"]}, True),
        ({"namespaces": ["third"], "namespaceSelector": {}}, True),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "other"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "third"}}}, False),
    ],
)
def test_affinity_term_applies_to_selected_namespaces(more, repels):
    """An empty selector selects all namespaces, an absent one the pod's own."""
    index = _index(objects.node("a"), p=_placed("a", namespace="other"))
    wanted = _demand(affinity={"podAntiAffinity": _terms(WEB, **more)})
    assert (_names(index, wanted) == set()) == repels
    repelling = required_terms(
        {"affinity": {"podAntiAffinity": _terms(WEB, **more)}}, "podAntiAffinity", "shop"
    )
    index = _index(objects.node("a"), p=_placed("a", namespace="shop", labels={}, anti_affinity=repelling))
    assert (_names(index, _demand(namespace="other")) == set()) == repels


EMPTY = [{}, {"matchLabels": {}}, {"matchExpressions": []}, {"matchLabels": {}, "matchExpressions": []}]


@pytest.mark.parametrize("selector", EMPTY)
def test_spread_with_an_empty_selector_counts_no_existing_pod(selector):
    """The function ``countPodsMatchSelector`` returns 0 for it, so the constraint only requires the label."""
    index = _index(
        objects.node("a"),
        objects.node("b"),
        objects.node("c", labels={HOST: ""}),
        p=_placed("a"),
        q=_placed("a"),
    )
    wanted = _demand(topologySpreadConstraints=_spread(labelSelector=selector))
    assert _names(index, wanted) == {"a", "b"}


@pytest.mark.parametrize("selector", EMPTY)
def test_label_keys_make_an_empty_spread_selector_count_pods(selector):
    """They are merged first. A key that the pod lacks adds nothing."""
    index = _index(objects.node("a"), objects.node("b"), p=_placed("a", labels={"rev": "2"}))
    spread = _spread(labelSelector=selector, matchLabelKeys=["rev"])
    assert _names(index, _demand(labels={"rev": "2"}, topologySpreadConstraints=spread)) == {"b"}
    assert _names(index, _demand(labels={"rev": "3"}, topologySpreadConstraints=spread)) == {"a", "b"}
    assert _names(index, _demand(labels={"app": "web"}, topologySpreadConstraints=spread)) == {"a", "b"}


def test_spread_without_a_selector_counts_no_pod():
    """Not even the pod itself, also with matchLabelKeys."""
    index = _index(objects.node("a"), p=_placed("a"))
    for more in ({}, {"matchLabelKeys": ["app"]}):
        spread = _spread(labelSelector=None, minDomains=3, **more)
        assert _names(index, _demand(topologySpreadConstraints=spread)) == {"a"}


def test_affinity_with_an_empty_selector_matches_all_pods():
    """Only topology spread ignores existing pods then. An absent selector matches no pod."""
    index = _index(objects.node("a"), objects.node("b"), p=_placed("a", labels={"app": "db"}))
    assert _names(index, _demand(affinity={"podAffinity": _terms({})})) == {"a"}
    assert _names(index, _demand(affinity={"podAntiAffinity": _terms({})})) == {"b"}
    absent = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": HOST}]}
    assert _names(index, _demand(affinity={"podAffinity": absent})) == set()
    assert _names(index, _demand(affinity={"podAntiAffinity": absent})) == {"a", "b"}


def test_soft_constraints_do_not_use_up_the_limit():
    """The lower scheduler only prefers what they describe."""
    index = _index(objects.node("a"), objects.node("b"), p=_placed("a"))
    soft = _spread(whenUnsatisfiable="ScheduleAnyway") * 10
    assert _names(index, _demand(topologySpreadConstraints=[*soft, *_spread()])) == {"b"}


def test_hostname_label_and_not_the_nodes_name_is_the_domain():
    """Cloud providers set a hostname that differs from the node's name; a label can be changed and shared."""
    nodes = [objects.node(name, labels={HOST: host}) for name, host in (("a", "x"), ("b", "x"), ("c", "y"))]
    index = _index(*nodes, p=_placed("a"))
    assert _names(index, _demand(topologySpreadConstraints=_spread())) == {"c"}
    assert _names(index, _demand(affinity={"podAntiAffinity": _terms(WEB)})) == {"c"}
    assert _names(index, _demand(affinity={"podAffinity": _terms(WEB)})) == {"a", "b"}
    repelling = required_terms({"affinity": {"podAntiAffinity": _terms(WEB)}}, "podAntiAffinity", "shop")
    index = _index(*nodes, p=_placed("a", labels={}, anti_affinity=repelling))
    assert _names(index, _demand()) == {"c"}


def test_node_without_hostname_label_has_no_domain():
    """Spread and affinity reject it, and evicting pods does not help. No anti-affinity applies to it."""
    repelling = required_terms({"affinity": {"podAntiAffinity": _terms(WEB)}}, "podAntiAffinity", "shop")
    index = _index(objects.node("a", labels={HOST: ""}), p=_placed("a", anti_affinity=repelling))
    why = _why(index, _demand(topologySpreadConstraints=_spread()))
    assert why == {"node(s) didn't match pod topology spread constraints (missing required label)": 1}
    assert not judge.is_resolvable(why)
    why = _why(index, _demand(affinity={"podAffinity": _terms(WEB)}))
    assert why == {"node(s) didn't match pod affinity rules": 1}
    assert not judge.is_resolvable(why)
    assert _names(index, _demand(affinity={"podAntiAffinity": _terms(WEB)})) == {"a"}


def test_pods_on_deleted_nodes_do_not_count():
    """Otherwise the first pod of a group would wait until they are collected."""
    index = _index(objects.node("a"), objects.node("b"), p=_placed("b"))
    index.remove_node("b")
    assert _names(index, _demand(affinity={"podAffinity": _terms(WEB)})) == {"a"}


def test_anti_affinity_of_existing_pods_applies_to_every_topology_key():
    """Pods that were created in the lower cluster may have other keys than mirrored ones."""
    zones = [
        objects.node(name, labels={HOST: name, ZONE: zone})
        for name, zone in (("a", "1"), ("b", "1"), ("c", "2"))
    ]
    term = {"topologyKey": ZONE, "labelSelector": WEB}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    repelling = required_terms({"affinity": affinity}, "podAntiAffinity", "shop")
    index = _index(*zones, objects.node("d"), p=_placed("a", labels={}, anti_affinity=repelling))
    assert _names(index, _demand()) == {"c", "d"}
    assert _names(index, _demand(labels={"app": "db"})) == {"a", "b", "c", "d"}
    assert _names(index, _demand(affinity=affinity)) == {"c", "d"}  # the pod's own term is not mirrored


def test_own_anti_affinity_is_reported_before_that_of_others():
    """In the order of kube-scheduler's filter."""
    repelling = required_terms({"affinity": {"podAntiAffinity": _terms(WEB)}}, "podAntiAffinity", "shop")
    index = _index(objects.node("a"), p=_placed("a", anti_affinity=repelling))
    why = _why(index, _demand(affinity={"podAntiAffinity": _terms(WEB)}))
    assert why == {"node(s) didn't match pod anti-affinity rules": 1}


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
@pytest.mark.parametrize(
    ("selector", "selects"),
    [
        ({"matchLabels": {"team": "red"}}, True),
        ({"matchLabels": {"team": "blue"}}, False),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, False),
        ({"matchLabels": {"team": "red", "kubernetes.io/metadata.name": "other"}}, True),
    ],
)
def test_namespace_selector_reads_the_labels_of_lower_namespaces(kind, selector, selects):
    """While they cannot be read, such a term is left to the lower scheduler."""
    index = _index(objects.node("a"), p=_placed("a", namespace="other"))
    wanted = _demand(labels={"app": "db"}, affinity={kind: _terms(WEB, namespaceSelector=selector)})
    assert _names(index, wanted) == {"a"}
    index.upsert_namespace("other", {"team": "red"})
    assert (_names(index, wanted) == {"a"}) == (selects == (kind == "podAffinity"))
    index.upsert_namespace("shop", {})
    index.remove_namespace("shop")
    assert (_names(index, wanted) == {"a"}) == (selects == (kind == "podAffinity"))


def test_anti_affinity_of_existing_pods_selects_namespaces_by_label():
    terms = _terms(WEB, namespaceSelector={"matchLabels": {"team": "red"}})
    repelling = required_terms({"affinity": {"podAntiAffinity": terms}}, "podAntiAffinity", "other")
    index = _index(objects.node("a"), p=_placed("a", labels={}, namespace="other", anti_affinity=repelling))
    assert _names(index, _demand()) == {"a"}
    index.upsert_namespace("shop", {"team": "red"})
    assert _names(index, _demand()) == set()
