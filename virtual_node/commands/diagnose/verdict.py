"""Judges from facts why a pod does not run. Does no IO. The first finding is the verdict.

Each rule yields findings with a rank and next steps, independent of other rules. Sorting by rank puts causes
before their consequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from controller_runtime.api.pod.conditions import is_true
from virtual_node.commands.diagnose import containers, placement, termination
from virtual_node.commands.diagnose.facts import (
    FINE,
    DiagnoseFinding,
    PodFacts,
    Rule,
    pod_name,
    pod_namespace,
)
from virtual_node.translate.printers.pods import status_word

_RULES: Sequence[Rule] = (*placement.RULES, *containers.RULES, *termination.RULES)
HEALTHY_POD = DiagnoseFinding(FINE, "The pod is running; nothing is wrong that can be seen from here.")


def diagnose(facts: PodFacts) -> list[DiagnoseFinding]:
    """Return all findings, the verdict first; never empty."""
    found = sorted((finding for rule in _RULES for finding in rule(facts)), key=lambda one: one.rank)
    if found:
        return found
    word, why = status_word(facts.pod)
    if word == "Running":
        return [HEALTHY_POD]
    if word in {"Completed", "Succeeded"}:
        return [DiagnoseFinding(FINE, "The pod has completed; nothing is wrong.")]
    return [
        DiagnoseFinding(
            FINE - 1,
            f"The pod is {word}; nothing explains it yet.",
            [why] if why else [],
            [f"kubectl -n {pod_namespace(facts)} describe pod {pod_name(facts)}"],
        )
    ]


def is_healthy_pod(pod: Mapping[str, Any]) -> bool:
    """Report whether the pod's own status is healthy: running and ready, or completed."""
    word, _ = status_word(pod)
    return word == "Completed" or (word == "Running" and is_true(pod.get("status"), "Ready"))


def has_no_problem(findings: Sequence[DiagnoseFinding]) -> bool:
    """Report whether nothing is wrong."""
    return all(finding.rank == FINE for finding in findings)
