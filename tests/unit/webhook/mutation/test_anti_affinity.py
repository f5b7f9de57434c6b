"""Which pod anti-affinity moves to the annotation, so that it separates lower nodes and not virtual nodes."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.namespace_map import NamespaceMap
from clusterset.model.pod.affinity_terms import Reach
from clusterset.model.pod.lower_spec import depends_on_cluster, lower_spec
from clusterset.model.policy.rules import PolicySet
from multi_scheduler.state.cluster.pod_requirements import required_terms
from tests.unit.webhook.pods import selector_of, web_pod
from webhook.mutation.mutate import Surroundings, mutate, pod_patch
from webhook.mutation.validation import RefusedError

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
KEY = names.ANNOTATION_MOVE_ANTI_AFFINITY
LABELS = {"app": "db", "rev": "1", "virtual-pod": "true"}
MOVING = Surroundings(move_anti_affinity=("data-*",), namespace="data-a")
OWN: dict[str, Any] = {"topologyKey": names.LABEL_HOSTNAME, "labelSelector": {"matchLabels": {"app": "db"}}}
ZONE = {**OWN, "topologyKey": "topology.kubernetes.io/zone"}
OTHERS = {**OWN, "labelSelector": {"matchLabels": {"app": "web"}}}


def _pod(*terms: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    affinity = {"podAntiAffinity": {REQUIRED: list(terms)}} if terms else {}
    return web_pod({"affinity": affinity}, **{"labels": LABELS, **metadata})


def _terms(affinity: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (affinity.get("podAntiAffinity") or {}).get(REQUIRED) or []
    return found


def _split(pod: dict[str, Any], surroundings: Surroundings = MOVING) -> tuple[list[Any], list[Any]]:
    """Return the terms that stay and those that move."""
    changed = mutate(pod, surroundings)
    assert mutate(changed, surroundings) == changed
    has_annotation = "clusterSelector" in (changed["metadata"].get("annotations") or {})
    moved = _terms(selector_of(changed).get("affinity") or {}) if has_annotation else []
    return _terms(changed["spec"].get("affinity") or {}), moved


@pytest.mark.parametrize(
    ("fields", "moves"),
    [
        ({}, True),
        ({"labelSelector": {}}, True),
        ({"labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", "x"]}]}}, True),
        ({"labelSelector": {"matchExpressions": [{"key": "role", "operator": "DoesNotExist"}]}}, True),
        ({"namespaces": ["data-a", "other"]}, True),
        ({"namespaceSelector": {}}, True),
        ({"labelSelector": None}, False),
        ({"labelSelector": {"matchLabels": {"app": "web"}}}, False),
        ({"labelSelector": {"matchExpressions": [{"key": "app", "operator": "Like", "values": ["db"]}]}}, False),
        ({"namespaces": ["other"]}, False),
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, False),
        ({"topologyKey": "topology.kubernetes.io/zone"}, False),
        ({"mismatchLabelKeys": ["rev"]}, False),
    ],
)  # fmt: skip
def test_only_terms_over_hosts_to_the_pods_own_kind_move(fields: dict[str, Any], moves):
    """Pods of another kind may run on real upper nodes. A namespace's labels are unknown, so such a term stays."""
    term = {**OWN, **fields}
    assert _split(_pod(term)) == (([], [term]) if moves else ([term], []))


def test_other_terms_stay_in_their_order():
    assert _split(_pod(ZONE, OWN, OTHERS)) == ([ZONE, OTHERS], [OWN])


def test_label_keys_are_expanded_because_no_api_server_does():
    """The lower API server would do it, but the multi-scheduler predicts the lower pod before."""
    expressions = [{"key": "rev", "operator": "In", "values": ["1"]}]
    moved = {**OWN, "labelSelector": {"matchLabels": {"app": "db"}, "matchExpressions": expressions}}
    assert _split(_pod({**OWN, "matchLabelKeys": ["rev", "absent"]})) == ([], [moved])


@pytest.mark.parametrize(
    ("annotations", "namespace", "moves"),
    [
        ({}, "data-a", True),
        ({}, "shop", False),
        ({KEY: "true"}, "shop", True),
        ({KEY: "false"}, "data-a", False),
    ],
)
def test_namespaces_of_the_setting_or_the_pods_annotation_decide(annotations, namespace, moves):
    surroundings = Surroundings(move_anti_affinity=("data-*",), namespace=namespace)
    assert bool(_split(_pod(OWN, annotations=annotations), surroundings)[1]) == moves


def test_nothing_moves_by_default():
    assert _split(_pod(OWN), Surroundings(namespace="data-a")) == ([OWN], [])


def test_a_pod_that_a_daemon_set_or_node_name_places_keeps_its_terms():
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "1", "controller": True}
    assert _split(_pod(OWN, ownerReferences=[owner])) == ([OWN], [])
    placed = _pod(OWN)
    placed["spec"]["nodeName"] = "vn-a"
    assert _split(placed) == ([OWN], [])


def test_annotation_with_another_value_is_denied():
    with pytest.raises(
        RefusedError, match=r"metadata\.annotations\[virtual-node.io/move-anti-affinity\]: 'yes': write true"
    ):
        mutate(_pod(OWN, annotations={KEY: "yes"}), MOVING)


def test_pod_with_moved_terms_runs_on_virtual_nodes_only():
    """On a real upper node nothing would separate the replicas, so this does not depend on ``requireVirtualNode``."""
    changed = mutate(_pod(OWN), MOVING)
    (term,) = changed["spec"]["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "type", "operator": "In", "values": ["virtual-kubelet"]}]
    assert pod_patch(_pod(OWN), changed)
    kept = _pod(ZONE)
    assert mutate(kept, MOVING)["spec"]["affinity"] == kept["spec"]["affinity"]


@pytest.mark.parametrize(
    "term",
    [
        {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["db", *map(str, range(3000))]}]}},
        {"labelSelector": {"matchExpressions": [{"key": f"k{number}", "operator": "DoesNotExist"} for number in range(300)]}},
        None,
    ],
    ids=["values", "expressions", "terms"],
)  # fmt: skip
def test_terms_that_take_long_are_denied(term: dict[str, Any] | None):
    """All pods of the cluster wait for the webhook."""
    terms = [OWN] * 40_000 if term is None else [{**OWN, **term}]
    begun = time.process_time()
    with pytest.raises(RefusedError, match="Write at most"):
        mutate(_pod(*terms), MOVING)
    assert time.process_time() - begun < 1


def test_terms_are_added_to_those_of_the_annotation():
    present = json.dumps({"affinity": {"podAntiAffinity": {REQUIRED: [OTHERS]}}})
    assert _split(_pod(OWN, annotations={"clusterSelector": present})) == ([], [OTHERS, OWN])


@pytest.mark.parametrize(
    ("term", "message"),
    [
        ({"topologyKey": "zone"}, "[0].topologyKey: write kubernetes.io/hostname"),
        ({"labelSelector": {"matchLabels": {"a b": "c"}}}, "'a b' is not a label key"),
        ({"labelSelector": {"matchExpressions": [{"key": "a", "operator": "Gt"}]}}, "operator: 'Gt': write In"),
        ({"labelSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, "values: write at least one value"),
        ({"labelSelector": {"matchLabels": ["a"]}}, "labelSelector.matchLabels: expected `object"),
        ({"namespaces": "a"}, "namespaces: expected `array"),
    ],
)  # fmt: skip
def test_an_invalid_term_in_the_annotation_is_denied(term: dict[str, Any], message: str):
    """The API server checks the spec only."""
    selector = {"affinity": {"podAntiAffinity": {REQUIRED: [{**OWN, **term}]}}}
    with pytest.raises(RefusedError) as refused:
        mutate(_pod(annotations={"clusterSelector": json.dumps(selector)}), MOVING)
    assert message in str(refused.value)


def test_the_lower_pod_and_the_prediction_have_the_terms():
    """As if they were in the upper spec: limited to our pods, and with the terms that stayed."""
    pod = mutate(_pod(OWN, OTHERS, namespace="data-a"), MOVING)
    rules = PolicySet().of("data-a")
    spec = lower_spec(
        pod,
        rules,
        node_name="vn",
        node_labels={},
        reach=Reach(lower_name=NamespaceMap("up-", {}), cluster_id="1"),
    )
    ours = {"key": names.LABEL_UPPER_CLUSTER, "operator": "In", "values": ["1"]}
    expected = [
        {**term, "labelSelector": {**term["labelSelector"], "matchExpressions": [ours]}}
        for term in (OTHERS, OWN)
    ]
    assert _terms(spec["affinity"]) == expected
    assert "nodeAffinity" not in spec["affinity"]
    assert depends_on_cluster(pod)
    counted = required_terms(spec, "podAntiAffinity", "up-data-a", topology_key=names.LABEL_HOSTNAME)
    labels = {**LABELS, names.LABEL_UPPER_CLUSTER: ""}
    assert [term.matches(labels) for term in counted] == [False, True]
