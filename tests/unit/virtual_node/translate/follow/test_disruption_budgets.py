"""The number of pods that a copy keeps in the lower cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.virtual_node.translate.copying import parts
from tests.unit.virtual_node.translate.follow.test_network_policies import VIEW
from virtual_node.translate.base.view import UntranslatableError
from virtual_node.translate.follow.disruption_budgets import NONE_ALLOWED, allows_more, lower_budget

WEB = {"matchLabels": {"app": "web"}}
STATUS = {"observedGeneration": 3, "desiredHealthy": 8, "currentHealthy": 10, "expectedPods": 10}


def _budget(status: Any = STATUS, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "b", "namespace": "shop", "generation": 3},
        "spec": {"selector": WEB, "maxUnavailable": "20%", **spec},
        "status": status,
    }


def _with(here: int) -> Any:
    pods = [{"app": "web"}] * here + [{"app": "other"}]
    return replace(VIEW, pods=lambda _namespace: pods)


@pytest.mark.parametrize(
    ("here", "status", "least"),
    [
        (10, {}, 8),
        (5, {}, 3),  # five healthy pods elsewhere
        (5, {"currentHealthy": 8}, 5),
        (2, {"currentHealthy": 20}, 0),
        (5, {"currentHealthy": 0}, 8),
        (5, {"observedGeneration": 2}, NONE_ALLOWED),
        (5, {"observedGeneration": None}, NONE_ALLOWED),
        (5, {"desiredHealthy": "8"}, NONE_ALLOWED),
        (5, {"desiredHealthy": 1e300}, NONE_ALLOWED),
        (5, {"desiredHealthy": 10**5000}, NONE_ALLOWED),
        (5, {"conditions": [{"type": "DisruptionAllowed", "reason": "SyncFailed"}]}, NONE_ALLOWED),
        (5, {"conditions": [{"type": "DisruptionAllowed", "reason": "SufficientPods"}]}, 3),
    ],
)
def test_copy_requires_healthy_pods_that_other_clusters_lack(here, status, least):
    spec, notes, _ = parts(lower_budget(_budget({**STATUS, **status}), _with(here)))
    assert spec is not None
    assert spec["minAvailable"] == least
    assert notes == ()


def test_selects_pods_of_its_own_virtual_nodes():
    spec, _, _ = parts(lower_budget(_budget(unhealthyPodEvictionPolicy="AlwaysAllow"), _with(1)))
    assert spec is not None
    assert spec["selector"] == {
        "matchLabels": {"app": "web", "virtual-node.io/upper-cluster": "id"},
        "matchExpressions": [{"key": "virtual-node.io/node", "operator": "In", "values": ["vn"]}],
    }
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert "maxUnavailable" not in spec


@pytest.mark.parametrize(("here", "selector"), [(0, WEB), (3, None)])
def test_budgets_that_select_no_pod_here_are_not_copied(here, selector):
    assert lower_budget(_budget(selector=selector), _with(here)).spec is None


def test_a_selector_that_lower_pods_cannot_match_is_refused():
    """Another selector would give pods two budgets, which the eviction API refuses."""
    view = replace(VIEW, pods=lambda _namespace: [{"ignored": "x"}])
    with pytest.raises(UntranslatableError, match="uses ignored"):
        lower_budget(_budget(selector={"matchLabels": {"ignored": "x"}}), view)


@pytest.mark.parametrize(
    ("current", "desired", "expected"), [(3, 2, True), (2, 2, False), (2, 3, False), ("50%", 2, False), (None, 2, False)]
)  # fmt: skip
def test_fewer_pods_allow_more(current, desired, expected):
    assert allows_more({"minAvailable": current}, {"minAvailable": desired}) == expected


def test_a_selector_with_too_many_requirements_has_no_copy():
    """It would be compared with each pod of the namespace at every change of a pod."""
    absent = [{"key": f"key-{number}", "operator": "DoesNotExist"} for number in range(51)]
    with pytest.raises(UntranslatableError, match="more than 50 requirements"):
        lower_budget(_budget(selector={"matchExpressions": absent}), _with(1))
