"""The pod that replaces one that was moved."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.api import matching, names
from descheduler.view import replacement
from tests.unit.controller_runtime.api.affinity import excluded
from tests.unit.descheduler.bodies import START, node, pod

LATER = START + timedelta(seconds=100)


def of(
    whole: dict[str, Any], *, avoid: dict[str, Any] | None = None, on: str = "a", usable: str = "abc"
) -> Any:
    """A replacement."""
    given = {"uid": "u", "resourceVersion": "1"}
    body = {**whole, "metadata": {**given, **whole["metadata"]}}
    return replacement.of(body, avoid=avoid or {}, node=on, usable=set(usable), now=LATER)


class TestReplacement:
    """The pod that takes a bare pod's place."""

    def test_label_keys_are_not_told_twice(self):
        """The apiserver has added them to the selector already, and would refuse what names them in both."""
        selector = {"matchExpressions": [{"key": "rev", "operator": "In", "values": ["7"]}]}
        constraint = {"labelSelector": selector, "matchLabelKeys": ["rev"], "maxSkew": 1}
        found = of(pod(spec={"topologySpreadConstraints": [constraint]}))
        assert found["spec"]["topologySpreadConstraints"] == [{"labelSelector": selector, "maxSkew": 1}]

    def test_what_stays_and_what_goes(self):
        """The user's fields stay; the server's and the old node's go."""
        whole = pod(
            labels={"app": "x"},
            annotations={"clusterSelector": "{}", names.ANNOTATION_LOWER_UID: "l", "mine": "1"},
            finalizers=["f"],
            generateName="p-",
            creationTimestamp="2026-01-01T00:00:00Z",
        )
        whole["spec"] |= {"priority": 5, "preemptionPolicy": "Never", "ephemeralContainers": [{}], "new": 1}
        found = of(whole)
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

    def test_second_time(self):
        """The count grows, nodes add up, and the affinity names each once."""
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
    def test_gives_way(self, on, avoid, usable, left):
        """No pod is made to avoid every node that is ready."""
        found = of(pod(), on=on, avoid=dict.fromkeys(avoid, START), usable=usable)
        assert excluded(found["spec"]) == ([left] if left else [])

    @pytest.mark.parametrize("text", ["", "x", "-1", "٣", "9" * 50])
    def test_count_by_others(self, text):
        """A count that is none counts as none."""
        assert (
            replacement.count({"metadata": {"annotations": {names.ANNOTATION_DESCHEDULE_COUNT: text}}}) == 0
        )

    @pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"a": "today"}', "null", "[" * 100_000])
    def test_avoidance_by_others(self, text):
        """An annotation that cannot be read avoids nothing."""
        assert replacement.recorded({names.ANNOTATION_UNSCHEDULABLE_NODES: text}) == {}


@given(st.sets(st.sampled_from("abcd")), st.sets(st.sampled_from("abcd"), min_size=1))
def test_some_node_is_always_left(avoid: set[str], usable: set[str]):
    """Whatever a pod avoids, unless its own node is the only one it may go to one that is ready."""
    found = of(pod(), avoid=dict.fromkeys(avoid, START), on="a", usable="".join(usable))
    banned = {name for values in excluded(found["spec"]) for name in values}
    assert usable - banned
    labels = [node(name)["metadata"]["labels"] for name in usable]
    spec = found["spec"]
    assert any(matching.admits(spec, name="n", labels=each, taints=[]) for each in labels)
