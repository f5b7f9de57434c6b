"""Judges from facts why a pod does not run. Does no IO. The first finding is the verdict.

Each rule yields findings with a rank and next steps, independent of other rules. Sorting by rank puts causes
before their consequences. Equal facts give equal findings, in whatever order the API server returned lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clusterset.model.pod.conditions import condition, is_finished, is_true
from controller_runtime.apimachinery import timestamps
from virtual_node.commands.diagnose import containers, placement, termination, waits
from virtual_node.commands.diagnose.codes import Code
from virtual_node.commands.diagnose.facts import FINE, DiagnoseFinding, PodFacts, Rule
from virtual_node.examine.objects import last_seen
from virtual_node.examine.pods import SCHEDULING, STARTING
from virtual_node.translate.pods.summary import status_word
from virtual_node.translate.pods.synthetic_status import LOWER_POD_DELETED

_RULES: Sequence[Rule] = (*placement.RULES, *waits.RULES, *termination.RULES, *containers.RULES)
_FAILED_RULES: Sequence[Rule] = (*termination.RULES, *containers.RULES, placement.node)
"""``placement.node`` is the last rule, because a failed pod's node may be gone for another reason."""
_DELETING_RULES: Sequence[Rule] = (placement.node, *termination.DELETING_RULES)
_NORMAL = re.compile(r"Pending|ContainerCreating|PodInitializing|Init:\d+/\d+")
"""Status words of pods that start."""
HEALTHY_POD = DiagnoseFinding(
    Code.HEALTHY, "The pod is running; nothing is wrong that can be seen from here.", rank=FINE
)
_COMPLETED_POD = DiagnoseFinding(Code.COMPLETED, "The pod has completed; nothing is wrong.", rank=FINE)


def diagnose(facts: PodFacts) -> list[DiagnoseFinding]:
    """Return all findings, the verdict first; never empty."""
    facts = _ordered(facts)
    status, is_deleting = facts.pod.get("status") or {}, termination.waited(facts) is not None
    rules: Sequence[Rule] = _RULES
    if is_finished(status):
        # A program may end with code 0 when its pod is deleted.
        has_failed = status["phase"] == "Failed" or status.get("reason") == LOWER_POD_DELETED
        rules = _FAILED_RULES if has_failed else ()
    found = [finding for rule in (_DELETING_RULES if is_deleting else rules) for finding in rule(facts)]
    return sorted(found or _unexplained(facts), key=lambda one: one.rank)


def life(pod: Mapping[str, Any]) -> str:
    """Return the phase of a pod's life: ``create``, ``run`` or ``delete``."""
    if pod["metadata"].get("deletionTimestamp"):
        return "delete"
    return "create" if (pod.get("status") or {}).get("phase") in {None, "Pending"} else "run"


def _ordered(facts: PodFacts) -> PodFacts:
    """Return the facts with sorted events and nodes, because the API server's order may vary."""
    nodes = facts.virtual_nodes and sorted(facts.virtual_nodes, key=lambda node: node["metadata"]["name"])
    return replace(facts, events=sorted(facts.events, key=_event_order), virtual_nodes=nodes)


def _event_order(event: Mapping[str, Any]) -> tuple[str, ...]:
    return last_seen(event), str(event.get("reason") or ""), str(event.get("message") or "")


def _unexplained(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    """Yield the finding about a pod that no rule explains."""
    word, why = status_word(facts.pod)
    if word in {"Completed", "Succeeded"}:
        yield _COMPLETED_POD
    elif word == "Running" or containers.has_completed_partly(facts.pod):
        yield HEALTHY_POD
    elif termination.waited(facts) is not None:
        title = "The pod is being deleted, within its grace period."
        yield DiagnoseFinding(Code.TERMINATING, title, rank=FINE)
    elif _NORMAL.fullmatch(word) and _is_new(facts):
        yield DiagnoseFinding(Code.STARTING, "The pod is starting.", rank=FINE)
    else:
        title = f"The pod is {word}; nothing explains it yet."
        steps = [f"kubectl -n {facts.namespace} describe pod {facts.name}"]
        yield DiagnoseFinding(Code.NOT_STARTED, title, [why] if why else [], steps, rank=FINE - 1)


def _is_new(facts: PodFacts) -> bool:
    """Report whether the pod waits for no longer than a scheduler and an image normally take."""
    if not facts.pod["metadata"].get("creationTimestamp"):
        return False
    if not facts.pod["spec"].get("nodeName"):
        return facts.age <= SCHEDULING
    bound = condition(facts.pod.get("status"), "PodScheduled").get("lastTransitionTime")
    since = (facts.now - timestamps.parse(bound)).total_seconds() if bound else facts.age
    return since <= STARTING


def is_healthy_pod(pod: Mapping[str, Any]) -> bool:
    """Report whether the pod's own status is healthy: running and ready, or completed."""
    word, _ = status_word(pod)
    return word == "Completed" or (word == "Running" and is_true(pod.get("status"), "Ready"))


def has_no_problem(findings: Sequence[DiagnoseFinding]) -> bool:
    """Report whether nothing is wrong."""
    return all(finding.rank == FINE for finding in findings)
