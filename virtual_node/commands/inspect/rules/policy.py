"""Rule about running pods that their lower cluster's current policy would refuse.

A policy stops no running pod, but pods that replace these would not start. An administrator needs to know
that before an upgrade, or before the policy becomes stricter.
"""

from __future__ import annotations

from clusterset.model.policy.decision import violations
from controller_runtime.apimachinery.readable import some
from virtual_node.commands.inspect.facts import Findings, InspectFacts, Subject
from virtual_node.commands.inspect.rules.mirrored import MirroredPod, PodRule
from virtual_node.health.objects import is_deleting, key


class RefusedNext(PodRule):
    """Finds lower clusters with pods that could not be created again, with the violated rules."""

    name = "refused_next"

    def __init__(self, facts: InspectFacts) -> None:
        super().__init__(facts)
        self._refused: dict[str, dict[str, list[str]]] = {}
        """Keys of pods, by lower cluster and rule."""

    def of_pod(self, pod: MirroredPod) -> Findings:
        """Remember a pod that could not be created again."""
        if pod.below is not None and not is_deleting(pod.upper):
            rules = pod.options.policy.of(pod.upper["metadata"]["namespace"])
            for rule in {one.rule for one in violations(pod.requested, rules)}:
                self._refused.setdefault(pod.lower.name, {}).setdefault(rule, []).append(key(pod.upper))
        yield from ()

    def of_all(self) -> Findings:
        """Yield a finding for each cluster with such pods."""
        for name, by_rule in self._refused.items():
            pods = {pod for refused in by_rule.values() for pod in refused}
            yield Subject("policy", name, "Cluster", name).warning(
                f"its policy would refuse running pods ({len(pods)}); they keep running, new pods do not start: "
                + "; ".join(f"{rule} ({some(sorted(refused))})" for rule, refused in sorted(by_rule.items())),
                f"allow it in clusters[].policy of {name}, for all or by policy.namespaces, or change the pods",
            )
