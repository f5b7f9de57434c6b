"""Checks lower clusters: reachability, schedulable nodes, and bound pods that do not start."""

from __future__ import annotations

from clusterset.model.pod.conditions import is_true
from controller_runtime.apimachinery.readable import count
from virtual_node.commands.doctor.facts import DoctorFacts
from virtual_node.commands.doctor.links import Outcome, Rule, broken, ok, skipped
from virtual_node.config import program
from virtual_node.health.connections import Failure, failure, plain
from virtual_node.health.faults import PODS, Kind
from virtual_node.health.objects import Json


def lower_api(facts: DoctorFacts) -> Outcome:
    """Check that the lower clusters answer and have schedulable nodes."""
    if not facts.lower:
        return skipped("no --client-kubeconfig given")
    details = []
    for lower in facts.lower:
        if not lower.usable:
            return broken(lower.answer.text, "correct that kubeconfig, or what it calls for credentials")
        if not lower.answer.ok:
            steps = {
                Failure.UNAUTHENTICATED: f"renew its credentials: {program.name('lower-cluster')} register",
                Failure.UNTRUSTED: "give the kubeconfig the CA of that API server",
            }
            kind = failure(lower.answer.text, lower.answer.code)
            otherwise = "is that API server up, and reachable from here and from the virtual node?"
            return broken(f"{lower.file}: {plain(lower.answer.text)}", steps.get(kind, otherwise))
        good = [node for node in lower.nodes if _is_schedulable(node)]
        if not good:
            return broken(
                f"{lower.file}: none of its {len(lower.nodes)} nodes is Ready and schedulable",
                f"kubectl --kubeconfig {lower.file} get nodes",
            )
        details.append(
            f"{lower.file}: {lower.answer.text}, {len(good)} of {len(lower.nodes)} nodes schedulable"
        )
    return ok("; ".join(details))


def _started(facts: DoctorFacts) -> Outcome:
    phases = [(pod.get("status") or {}).get("phase") for bound in facts.bound.values() for pod in bound]
    if starting := phases.count("Pending"):
        return ok(f"{count(starting, 'pod')} starting, none stuck")
    return ok("every pod on a virtual node has started")


def _is_schedulable(node: Json) -> bool:
    return is_true(node.get("status"), "Ready") and not (node.get("spec") or {}).get("unschedulable")


RULES = (
    Rule("lowerApi", "lower clusters reachable", lower_api),
    Rule(
        "lowerCertificates",
        "certificates of lower API servers",
        lambda _facts: ok("none is reported to expire soon"),
        needs=("virtualNodes",),
        reads=("leases",),
        faults={Kind.CERTIFICATE_EXPIRES},
    ),
    Rule(
        "lowerVerdict",
        "pods run in lower clusters",
        _started,
        needs=("virtualNodes",),
        reads=("bound",),
        faults=PODS - {Kind.POD_UNSCHEDULED},
    ),
)
