"""Annotations that are ignored are reported with their field and what to write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusterset.model import names
from clusterset.model.pod import own_annotations

ROOT = Path(__file__).parents[5]
_KEY = f"{names.DOMAIN}/"
DIVIDED = {"division": "lower1=1"}
GROUP = {"pod-group": "a", "min-members": "2"}


def _problems(values: dict[str, str], labels: dict[str, str] | None = None) -> list[str]:
    written = {f"{_KEY}{key}": value for key, value in values.items()}
    return own_annotations.problems(labels, written)


@pytest.mark.parametrize(
    ("values", "field", "problem"),
    [
        ({"kubernetes-service": "uper"}, "kubernetes-service", "'uper': write upper, lower or auto"),
        ({"kubernetes-servce": "upper"}, "kubernetes-servce", "did you mean virtual-node.io/kubernetes-service?"),
        ({"totally-different": "x"}, "totally-different", "no annotation of pods has this name"),
        ({"division": "a=0"}, "division", "'a=0': write room, price, or weights"),
        ({**DIVIDED, "division-max-skew": "x"}, "division", "annotation virtual-node.io/division-max-skew: write a number"),
        ({"division-max-skew": "1"}, "division-max-skew", "no effect without annotation virtual-node.io/division"),
        ({"pod-group": "a"}, "pod-group", "annotation virtual-node.io/min-members is missing"),
        ({**GROUP, "scope": "all"}, "pod-group", "annotation virtual-node.io/scope is neither cluster nor any"),
        ({"scope": "any"}, "scope", "the pod is in no group; set annotation virtual-node.io/pod-group"),
        ({"preferred-node": "A b"}, "preferred-node", "'A b' is not a name of a node"),
    ],
)  # fmt: skip
def test_ignored_annotation_is_reported_with_its_field(values: dict[str, str], field: str, problem: str):
    (found,) = _problems(values)
    assert found.startswith(f"metadata.annotations[{_KEY}{field}]: ")
    assert problem in found


def test_every_documented_annotation_of_upper_pods_is_known():
    """Otherwise a user who follows the documentation gets a warning."""
    page = (ROOT / "docs/reference/annotations-and-labels.md").read_text()
    upper = page.partition("\n## On objects in the upper cluster\n")[2].partition("\n## ")[0]
    documented = set(
        re.findall(r"^\| `(virtual-node\.io/[^`]+)` \| annotation; [^|]*\bPod\b", upper, re.MULTILINE)
    )
    assert len(documented) > 10
    assert documented <= own_annotations.READ.keys()


@pytest.mark.parametrize(
    "values",
    [
        {"kubernetes-service": "Upper"},
        {"kubernetes-service": ""},
        {"scheduler-name": "batch"},
        {**DIVIDED, "division-max-skew": "2"},
        {**GROUP, "scope": "any", "pod-group-topology": "zone"},
        {"required-node": ""},
        {
            "lower-uid": "a/b",
            "replaces": "c",
            "leaving": "d",
            "allocated-devices": "{}",
            "deletion-cost": "1",
        },
    ],
)
def test_valid_annotations_and_those_that_programs_write_are_not_reported(values: dict[str, str]):
    assert _problems(values) == []


def test_keys_of_other_domains_and_of_subdomains_are_not_ours():
    others = {"example.com/kubernetes-service": "x", "swarm.virtual-node.io/a": "b", "clusterSelector": "{}"}
    assert own_annotations.problems(others, others) == []


def test_label_that_should_be_an_annotation_is_reported():
    (found,) = own_annotations.problems({names.ANNOTATION_DIVISION: "room"}, None, "spec.template.metadata")
    assert found == (
        f"spec.template.metadata.labels[{names.ANNOTATION_DIVISION}]: no label of pods has this name, write it as an "
        "annotation"
    )


def test_pod_that_another_virtual_node_made_is_not_reported():
    """In a chain of clusters, it has our names for lower pods."""
    assert _problems({"made-for": "x"}, {names.LABEL_UPPER_CLUSTER: "u", names.LABEL_UPPER_UID: "v"}) == []


def test_number_and_length_of_problems_are_limited():
    written = {f"{_KEY}{number}{'x' * 200}": "y" * 10_000 for number in range(100)}
    found = own_annotations.problems(None, written)
    assert len(found) == 10
    assert max(map(len, found)) < 200
