"""Rule about running pods that their lower cluster's current policy would refuse.

A policy stops no running pod, but pods that replace these would not start. An administrator needs to know
that before an upgrade, or before the policy becomes stricter.
"""

from __future__ import annotations

from collections.abc import Iterator

from controller_runtime.api.policy.decision import violations
from virtual_node.commands.inspect.facts import (
    WARNING,
    InspectFacts,
    InspectFinding,
    Subject,
    is_deleting,
    key,
)
from virtual_node.commands.inspect.rules.pods import mirrored
from virtual_node.translate.pods import lower_pod

_SHOWN = 3
"""Number of pods that are named for each rule."""


def refused_next(facts: InspectFacts) -> Iterator[InspectFinding]:
    """Yield lower clusters with pods that could not be created again, with the violated rules."""
    found: dict[str, dict[str, list[str]]] = {}
    for upper, lower, below in mirrored(facts):
        if below is None or is_deleting(upper):
            continue
        options = lower.nodes[upper["spec"]["nodeName"]].options
        rules = options.policy.of(upper["metadata"]["namespace"])
        for rule in sorted({one.rule for one in violations(lower_pod.lower_pod(upper, options), rules)}):
            found.setdefault(lower.name, {}).setdefault(rule, []).append(key(upper))
    for name, by_rule in found.items():
        pods = {pod for some in by_rule.values() for pod in some}
        yield InspectFinding(
            severity=WARNING,
            check="policy",
            subject=Subject(name, "Cluster", name),
            message=f"its policy would refuse running pods ({len(pods)}); they keep running, new pods do not start: "
            + "; ".join(f"{rule} ({_some(some)})" for rule, some in sorted(by_rule.items())),
            next_step=f"allow it in clusters[].policy of {name}, for all or by policy.namespaces, or change the pods",
        )


def _some(pods: list[str]) -> str:
    more = f" and {len(pods) - _SHOWN} more" if len(pods) > _SHOWN else ""
    return ", ".join(sorted(pods)[:_SHOWN]) + more
