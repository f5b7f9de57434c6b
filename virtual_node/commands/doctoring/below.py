"""What lower clusters say of pods that are bound and do not start."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime

from controller_runtime.api import names, timestamps
from virtual_node import program
from virtual_node.commands.doctoring.facts import Facts, Json, condition, key, virtual_nodes
from virtual_node.commands.doctoring.links import Outcome, Rule, broken, ok, pods, skipped, some
from virtual_node.health.connections import Failure, failure
from virtual_node.web.rows import status_word

_PATIENCE_SECONDS = 30.0
"""A pod that has been bound for a shorter time is merely starting."""
_STARTING = frozenset({"Pending", "ContainerCreating", "PodInitializing"})
_MESSAGE = 140
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def lower_api(facts: Facts) -> Outcome:
    """Do the lower clusters answer to us, and have they nodes?"""
    if not facts.lower:
        return skipped("no --client-kubeconfig given")
    said = []
    for lower in facts.lower:
        if not lower.usable:
            return broken(lower.answer.text, "correct that kubeconfig, or what it calls for credentials")
        if not lower.answer.ok:
            steps = {
                Failure.UNAUTHENTICATED: f"renew its credentials: {program.name('lower-cluster')} register",
                Failure.UNTRUSTED: "give the kubeconfig the CA of that API server",
            }
            return broken(
                f"{lower.file}: {lower.answer.text}",
                steps.get(
                    failure(lower.answer.text, lower.answer.code),
                    "is that API server up, and reachable from here and from the virtual node?",
                ),
            )
        good = [node for node in lower.nodes if _is_schedulable(node)]
        if not good:
            return broken(
                f"{lower.file}: none of its {len(lower.nodes)} nodes is Ready and schedulable",
                f"kubectl --kubeconfig {lower.file} get nodes",
            )
        said.append(f"{lower.file}: {lower.answer.text}, {len(good)} of {len(lower.nodes)} nodes schedulable")
    return ok("; ".join(said))


def verdict(facts: Facts) -> Outcome:
    """Why pods that are bound do not start: the commonest reasons, counted."""
    ours = {node["metadata"]["name"] for node in virtual_nodes(facts)}
    reasons: Counter[str] = Counter()
    examples: dict[str, str] = {}
    messages: dict[str, str] = {}
    starting = 0
    for pod in facts.pending:
        if pod["spec"].get("nodeName") not in ours or pod["metadata"].get("deletionTimestamp"):
            continue
        if (facts.now - _since(pod)).total_seconds() <= _PATIENCE_SECONDS:
            starting += 1
            continue
        reason, message = _reason(facts, pod)
        reasons[reason] += 1
        examples.setdefault(reason, key(pod))
        messages.setdefault(reason, message)
    if not reasons:
        return ok(
            f"{pods(starting)} starting, none stuck" if starting else "every pod that is bound has started"
        )
    listed = [
        f"{count} {reason}" + (f" ({messages[reason][:_MESSAGE]})" if messages[reason] else "")
        for reason, count in reasons.most_common()
    ]
    first = reasons.most_common(1)[0][0]
    return broken(
        f"{pods(reasons.total())} bound, and not started: {some(listed)}", _next_for(first, examples[first])
    )


def _next_for(reason: str, example: str) -> str:
    diagnose = f"{program.name('diagnose')} pod {example}"
    if reason == "Unschedulable":
        return (
            f"{diagnose}; run the descheduler (it moves such pods), or the multi-scheduler (it looks before)"
        )
    return diagnose


def _reason(facts: Facts, pod: Json) -> tuple[str, str]:
    refused = condition(pod, names.CONDITION_ADMITTED)
    if refused.get("status") == "False":
        return str(refused.get("reason") or "NotAdmitted"), str(refused.get("message") or "")
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return str(scheduled.get("reason") or "Unschedulable"), str(scheduled.get("message") or "")
    word, why = status_word(pod)
    if word.removeprefix("Init:") not in _STARTING:
        return word, why
    for event in reversed(facts.events):
        if (event.get("involvedObject") or {}).get("uid") == pod["metadata"].get("uid"):
            return str(event.get("reason") or "Warning"), str(event.get("message") or "")
    for lower in facts.lower:
        for below in lower.pods:
            if (below["metadata"].get("labels") or {}).get(names.LABEL_UPPER_UID) == pod["metadata"].get(
                "uid"
            ):
                return status_word(below)
    return "NoWordFromBelow", ""


def _since(pod: Json) -> datetime:
    """When something last happened to a pod."""
    moments = [pod["metadata"].get("creationTimestamp")]
    moments += [one.get("lastTransitionTime") for one in (pod.get("status") or {}).get("conditions") or ()]
    return max((timestamps.parse(moment) for moment in moments if moment), default=_LONG_AGO)


def _is_schedulable(node: Json) -> bool:
    return condition(node, "Ready").get("status") == "True" and not (node.get("spec") or {}).get(
        "unschedulable"
    )


RULES = (
    Rule("lowerApi", "lower clusters reachable", lower_api),
    Rule("lowerVerdict", "pods start below", verdict, needs=("virtualNodes",), reads=("pending",)),
)
