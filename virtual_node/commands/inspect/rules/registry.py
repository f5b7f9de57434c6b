"""All rules of ``inspect``, and their application to facts. Does no IO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import cast

from controller_runtime.apimachinery.readable import count
from virtual_node.certificates.expiry import UPPER
from virtual_node.commands.inspect.facts import (
    ERROR,
    SEVERITIES,
    WARNING,
    ClusterFacts,
    Findings,
    InspectFacts,
    InspectFinding,
    Subject,
)
from virtual_node.commands.inspect.rules import (
    capacity,
    disruption,
    drift,
    mirrored,
    network,
    ownership,
    pods,
    skew,
)
from virtual_node.commands.inspect.rules.mirrored import Outcome, PodRule

FAIL_ON = (WARNING, ERROR, "never")
FINE, FOUND, INCOMPLETE = 0, 1, 3
"""Exit codes; 2 is for usage and configuration errors, as for every command."""

Rule = Callable[[InspectFacts], Findings]
AnyRule = Rule | type[PodRule]
Look = dict[AnyRule, list[InspectFinding]]
"""Findings by rule."""
RULES: tuple[AnyRule, ...] = (
    skew.unread,
    ownership.leaked,
    ownership.leaked_namespaces,
    ownership.not_adopted,
    pods.RefusedNext,
    ownership.leaked_marks,
    ownership.doubled,
    ownership.misplaced,
    pods.Missing,
    drift.PodDrift,
    drift.copy_drift,
    pods.StatusDrift,
    skew.clocks,
    skew.versions,
    skew.of_nodes,
    skew.of_components,
    skew.expiring,
    skew.weak,
    skew.faults,
    skew.lower_kubelets,
    network.webhooks,
    network.dns,
    network.services,
    network.foreign_slices,
    capacity.pressure,
    capacity.lower_nodes,
    capacity.promises,
    capacity.Oversized,
    pods.stuck_pods,
    pods.stuck_claims,
    disruption.disruption,
    ownership.of_other_upper_clusters,
)

CHECKS = (
    *("adopt", "capacity", "clock", "cluster", "component", "configuration", "dns", "doubled", "drift"),
    *(
        "expiry",
        "foreign-endpoints",
        "leaked",
        "max-unavailable",
        "misplaced",
        "missing",
        "no-disruption-budget",
        "no-pre-stop",
    ),
    *("no-readiness-probe", "node", "others", "pods", "policy", "pressure", "release", "rule", "service"),
    *("single-replica", "status", "stuck", "swarm", "transport", "unread", "version", "webhook"),
)
"""Names of all checks. A check may have several rules."""


def inspect(facts: InspectFacts) -> list[InspectFinding]:
    """Return all findings, the most severe first. A rule that fails is a finding, and the other rules are applied."""
    return ordered(look(facts, RULES))


def look(facts: InspectFacts, rules: Sequence[AnyRule]) -> Look:
    """Return the findings of each of these rules."""
    of_pods = [rule for rule in rules if isinstance(rule, type) and issubclass(rule, PodRule)]
    outcomes = mirrored.applied(of_pods, facts)
    return {rule: _applied(rule, facts, outcomes) for rule in rules}


def ordered(found: Look) -> list[InspectFinding]:
    """Return the findings of all rules, the most severe first."""
    return sorted(chain.from_iterable(found[rule] for rule in RULES), key=_order)


def to_confirm(found: Look) -> list[AnyRule]:
    """Return the rules with findings that a second read must confirm, and ``skew.unread``; empty: no such finding."""
    rules = [rule for rule, findings in found.items() if any(one.transient for one in findings)]
    return [skew.unread, *rules] if rules else []


def _applied(rule: AnyRule, facts: InspectFacts, outcomes: Mapping[object, Outcome]) -> list[InspectFinding]:
    """Return a rule's findings. If it fails for lower clusters, they are omitted, and the failure is a finding."""
    if rule in outcomes:
        return _completed(facts, outcomes[rule])
    rule = cast("Rule", rule)
    found = _tried(rule, facts)
    if not isinstance(found, Exception):
        return found
    failed = [one for one in facts.lowers if isinstance(_tried(rule, _only(facts, [one])), Exception)]
    rest = _tried(rule, _only(facts, [one for one in facts.lowers if all(one is not bad for bad in failed)]))
    if isinstance(rest, Exception):
        return [_failure(rule.__name__, "all clusters", found)]
    return [_failure(rule.__name__, ", ".join(one.name for one in failed), found), *rest]


def _completed(facts: InspectFacts, outcome: Outcome) -> list[InspectFinding]:
    """Return the findings of a rule about pods, without those about clusters for which the rule failed."""
    if outcome.error:
        return [_failure(outcome.rule, "all clusters", outcome.error)]
    if not outcome.failed:
        return outcome.found
    where = ", ".join(one.name for one in facts.lowers if one.name in outcome.failed)
    rest = [one for one in outcome.found if one.subject.cluster not in outcome.failed]
    return [_failure(outcome.rule, where, next(iter(outcome.failed.values()))), *rest]


def _failure(rule: str, where: str, error: Exception) -> InspectFinding:
    return Subject("rule", UPPER, "Rule", rule).error(
        f"failed, so its findings about {where} are missing: {type(error).__name__}: {error}",
        "report this as a bug",
    )


def _tried(rule: Rule, facts: InspectFacts) -> list[InspectFinding] | Exception:
    try:
        return list(rule(facts))
    except Exception as error:  # noqa: BLE001 - objects may have any content
        return error


def _only(facts: InspectFacts, kept: Sequence[ClusterFacts]) -> InspectFacts:
    """Return the facts without the objects of lower clusters that are not in ``kept``."""
    names = {one.name for one in kept}
    lowers = [
        one if one.name in names else replace(one, error=one.error or "omitted", objects={})
        for one in facts.lowers
    ]
    return replace(facts, lowers=lowers)


def confirmed(first: Sequence[InspectFinding], second: Sequence[InspectFinding]) -> list[InspectFinding]:
    """Return the findings of a second read, without transient ones that the first read did not have.

    Even in a healthy system, a lower pod exists for a moment after its upper pod was deleted. So a transient
    finding counts only if both reads have it.
    """
    before = {finding.subject for finding in first}
    return [finding for finding in second if not finding.transient or finding.subject in before]


def exit_code(facts: InspectFacts, findings: Sequence[InspectFinding], *, fail_on: str) -> int:
    """Return 3 if a cluster could not be read, 1 if a finding is at least as severe as ``fail_on``, otherwise 0."""
    if any(cluster.error for cluster in (facts.upper, *facts.lowers)):
        return INCOMPLETE
    if fail_on not in SEVERITIES:
        return FINE
    bad = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    return FOUND if any(finding.severity in bad for finding in findings) else FINE


def pod_count(facts: InspectFacts) -> int:
    """Return the number of upper pods on the configured virtual nodes."""
    ours = facts.virtual_nodes()
    return sum(pod["spec"].get("nodeName") in ours for pod in facts.upper.heads("Pod"))


def summary(facts: InspectFacts, findings: Sequence[InspectFinding]) -> str:
    """Return the summary: ``3 clusters, 214 pods: 1 error, 2 warnings``."""
    counts = {severity: sum(one.severity == severity for one in findings) for severity in (ERROR, WARNING)}
    counted = [count(number, severity) for severity, number in counts.items() if number]
    scope = f"{count(1 + len(facts.lowers), 'cluster')}, {count(pod_count(facts), 'pod')}"
    return f"{scope}: {', '.join(counted) or 'no findings'}"


def _order(finding: InspectFinding) -> tuple[int, bool, str]:
    # Problems of the upper cluster, such as a missing virtual node, often explain those of lower clusters.
    return (SEVERITIES.index(finding.severity), finding.subject.cluster != UPPER, finding.subject.cluster)
