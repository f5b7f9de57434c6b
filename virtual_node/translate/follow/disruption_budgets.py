"""The lower copy of a PodDisruptionBudget, so that evictions in the lower cluster respect the upper budget.

The controller of lower pods is their Namespace, which has no number of replicas, so the lower cluster cannot evaluate
percentages and ``maxUnavailable``. The copy has a number instead: the healthy pods that the upper budget needs, minus
those in other clusters. It changes only if the budget or the pods in other clusters change.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterset.model.pod.conditions import condition
from virtual_node.translate.base.view import (
    NOT_NEEDED,
    Translation,
    UntranslatableError,
    View,
    matcher,
    of_spec,
)

NONE_ALLOWED = 2**31 - 1
"""``minAvailable`` with which no pod may be evicted."""


def lower_budget(upper: Mapping[str, Any], view: View) -> Translation:
    """Return the copy of a PodDisruptionBudget; no spec if it selects no pod of this lower cluster.

    Raises:
        UntranslatableError: the selector is too long, or uses labels that lower pods do not have.
        ValueError: the selector is malformed.
    """
    spec = upper.get("spec") or {}
    selector = spec.get("selector")
    if selector is None:
        return NOT_NEEDED  # selects no pod
    matches = matcher("selector", selector)
    here = sum(matches(labels) for labels in view.pods(upper["metadata"]["namespace"]))
    if not here:
        return NOT_NEEDED
    if lost := view.lost_keys(selector):
        raise UntranslatableError(
            f"selector uses {', '.join(lost)}, which lower pods do not have. Select pods by other labels"
        )
    below: dict[str, Any] = {
        "selector": view.only_ours(selector, on_our_nodes=True),
        "minAvailable": _least(upper, here),
    }
    if policy := spec.get("unhealthyPodEvictionPolicy"):
        below["unhealthyPodEvictionPolicy"] = policy
    return of_spec(below)


def allows_more(current: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    """Report whether a copy would allow more evictions than the current one."""
    now, then = current.get("minAvailable"), desired["minAvailable"]
    return isinstance(now, int) and now > then


def _least(upper: Mapping[str, Any], here: int) -> int:
    """Return the number of pods that must stay healthy here; ``NONE_ALLOWED`` if the upper status is not current.

    All pods here count as healthy. Otherwise a pod that was just evicted here, but still counts in the upper status,
    would count as healthy elsewhere.
    """
    status = upper.get("status") or {}
    desired, healthy = status.get("desiredHealthy"), status.get("currentHealthy")
    generation = upper["metadata"].get("generation")
    if not isinstance(desired, int) or not isinstance(healthy, int):
        return NONE_ALLOWED
    # With SyncFailed, the upper controller could not evaluate the budget, so the status has old numbers.
    has_failed = condition(status, "DisruptionAllowed").get("reason") == "SyncFailed"
    if status.get("observedGeneration") != generation or has_failed:
        return NONE_ALLOWED
    return min(NONE_ALLOWED, max(0, desired - max(0, healthy - here)))
