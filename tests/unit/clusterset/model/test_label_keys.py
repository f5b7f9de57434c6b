"""A stored pod's matchLabelKeys, sent to an apiserver again."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from clusterset.model.pod.affinity_terms import settled

STORED = {
    "labelSelector": {
        "matchLabels": {"tier": "web"},
        "matchExpressions": [
            {"key": "app", "operator": "In", "values": ["web"]},
            {"key": "rev", "operator": "In", "values": ["7"]},
            {"key": "tenant", "operator": "NotIn", "values": ["a"]},
        ],
    },
    "matchLabelKeys": ["rev"],
    "mismatchLabelKeys": ["tenant"],
    "topologyKey": "kubernetes.io/hostname",
}
TOLD = {name: STORED[name] for name in ("labelSelector", "topologyKey")}


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
def test_terms_of_the_selector_are_not_repeated(kind):
    """The apiserver would add them again, find duplicates, and refuse the pod."""
    affinity = {
        "nodeAffinity": {"kept": True},
        kind: {
            "requiredDuringSchedulingIgnoredDuringExecution": [STORED],
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": STORED}],
        },
    }
    spec = {"affinity": affinity, "topologySpreadConstraints": [STORED], "other": 1}
    before = copy.deepcopy(spec)
    assert settled(spec) == {
        "affinity": {
            "nodeAffinity": {"kept": True},
            kind: {
                "requiredDuringSchedulingIgnoredDuringExecution": [TOLD],
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": TOLD}],
            },
        },
        "topologySpreadConstraints": [TOLD],
        "other": 1,
    }
    assert spec == before


def test_keys_that_are_not_yet_applied_stay():
    """An apiserver before 1.34 leaves those of a spread constraint to the scheduler; a pod may lack the label, too."""
    constraint: dict[str, Any] = {"labelSelector": {"matchLabels": {"app": "web"}}, "matchLabelKeys": ["rev"]}
    spec = {"topologySpreadConstraints": [constraint]}
    assert settled(spec) == spec
    half = {**STORED, "matchLabelKeys": ["rev", "absent"]}
    (found,) = settled({"topologySpreadConstraints": [half]})["topologySpreadConstraints"]
    assert found["matchLabelKeys"] == ["absent"]
