"""The replacement of a bare pod."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model import names
from clusterset.model.moving import node_avoidance
from controller_runtime.apimachinery import matching
from descheduler import pods
from tests.unit.clusterset.model.affinity import excluded
from tests.unit.descheduler.bodies import START, node, pod

LATER = START + timedelta(seconds=100)


def of(
    old: dict[str, Any], *, avoid: dict[str, Any] | None = None, on: str = "a", usable: str = "abc"
) -> Any:
    """Return the replacement of a pod."""
    given = {"uid": "u", "resourceVersion": "1"}
    body = {**old, "metadata": {**given, **old["metadata"]}}
    return pods.replacement(body, avoid=avoid or {}, node=on, usable=set(usable), now=LATER)


class TestReplacement:
    """The replacement of a bare pod."""

    def test_omits_label_keys_that_are_in_the_selector(self):
        """The API server has added them to the selector and refuses keys in both."""
        selector = {"matchExpressions": [{"key": "rev", "operator": "In", "values": ["7"]}]}
        constraint = {"labelSelector": selector, "matchLabelKeys": ["rev"], "maxSkew": 1}
        found = of(pod(spec={"topologySpreadConstraints": [constraint]}))
        assert found["spec"]["topologySpreadConstraints"] == [{"labelSelector": selector, "maxSkew": 1}]

    def test_keeps_fields_of_user_and_drops_those_of_server_and_old_node(self):
        old = pod(
            labels={"app": "x"},
            annotations={"clusterSelector": "{}", names.ANNOTATION_LOWER_UID: "l", "mine": "1"},
            finalizers=["f"],
            generateName="p-",
            creationTimestamp="2026-01-01T00:00:00Z",
        )
        old["spec"] |= {"priority": 5, "preemptionPolicy": "Never", "ephemeralContainers": [{}], "new": 1}
        found = of(old)
        assert set(found) == {"apiVersion", "kind", "metadata", "spec"}
        assert found["metadata"] == {
            "name": "p",
            "namespace": "default",
            "labels": {"app": "x", "create-by-descheduler": "true"},
            "finalizers": ["f"],
            "annotations": {
                "clusterSelector": "{}",
                "mine": "1",
                "sigs.k8s.io/deschedule-count": "1",
                "unschedulable-node": "a",
                names.ANNOTATION_REPLACES: "u",
                names.ANNOTATION_UNSCHEDULABLE_NODES: '{"a":"2026-01-01T00:01:40Z"}',
            },
        }
        assert set(found["spec"]) == {"containers", "tolerations", "new", "affinity"}

    @pytest.mark.parametrize(("node_name", "kept"), [("a", {"app": "x"}), ("", None)])
    def test_drops_zone_of_the_old_place(self, node_name, kept):
        """The virtual node writes the zone of the lower node only on a pod without one. A user may label a pending pod."""
        labels = {"app": "x", "topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1"}
        old = pod(labels=labels)
        old["spec"]["nodeName"] = node_name
        assert of(old)["metadata"]["labels"] == {**(kept or labels), "create-by-descheduler": "true"}

    def test_second_replacement_increments_count_and_avoids_both_nodes(self):
        first = of(pod())
        first["spec"]["nodeName"] = "b"
        second = of(first, avoid={"a": START}, on="b")
        assert second["metadata"]["annotations"][names.ANNOTATION_DESCHEDULE_COUNT] == "2"
        assert excluded(second["spec"]) == [["a", "b"]]

    @pytest.mark.parametrize(
        ("on", "avoid", "usable", "left"),
        [
            ("b", "a", "abc", ["a", "b"]),
            ("b", "a", "ab", ["b"]),
            ("a", "", "a", []),
            ("", "ab", "ab", ["b"]),
            ("", "a", "ab", ["a"]),
            ("b", "a", "", ["a", "b"]),
        ],
    )
    def test_does_not_avoid_every_ready_node(self, on, avoid, usable, left):
        found = of(pod(), on=on, avoid=dict.fromkeys(avoid, START), usable=usable)
        assert excluded(found["spec"]) == ([left] if left else [])

    @pytest.mark.parametrize("text", ["", "x", "-1", "٣", "9" * 50])
    def test_invalid_count_is_0(self, text):
        assert pods.count({"metadata": {"annotations": {names.ANNOTATION_DESCHEDULE_COUNT: text}}}) == 0

    @pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"a": "today"}', "null", "[" * 100_000])
    def test_invalid_avoidance_annotation_avoids_nothing(self, text):
        assert node_avoidance.recorded({names.ANNOTATION_UNSCHEDULABLE_NODES: text}) == {}


@given(st.sets(st.sampled_from("abcd")), st.sets(st.sampled_from("abcd"), min_size=1))
def test_at_least_one_ready_node_is_always_admitted(avoid: set[str], usable: set[str]):
    found = of(pod(), avoid=dict.fromkeys(avoid, START), on="a", usable="".join(usable))
    banned = {name for values in excluded(found["spec"]) for name in values}
    assert usable - banned
    labels = [node(name)["metadata"]["labels"] for name in usable]
    spec = found["spec"]
    assert any(matching.admits(spec, name="n", labels=each, taints=[]) for each in labels)
