"""Is all well, in all clusters? Facts in, findings out: pure functions, no rule knows of another.

The rules are in the modules beside this one: ownership, policy, pods, drift, skew, capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from controller_runtime.api.readable import count
from virtual_node.certificates.expiry import UPPER
from virtual_node.commands.inspect import (
    rules_capacity,
    rules_drift,
    rules_health,
    rules_ownership,
    rules_pods,
    rules_policy,
    rules_skew,
    rules_versions,
)
from virtual_node.commands.inspect.facts import ERROR, SEVERITIES, WARNING, Facts, Finding

FAIL_ON = (WARNING, ERROR, "never")
FINE, FOUND, INCOMPLETE = 0, 1, 3
"""Exit codes; 2 is for errors of usage and configuration, as for every command."""

Rule = Callable[[Facts], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    rules_skew.unread,
    rules_ownership.leaked,
    rules_ownership.leaked_namespaces,
    rules_ownership.not_adopted,
    rules_policy.refused_next,
    rules_ownership.leaked_marks,
    rules_ownership.doubled,
    rules_pods.missing,
    rules_drift.pod_drift,
    rules_drift.copy_drift,
    rules_pods.status_drift,
    rules_skew.clocks,
    rules_skew.versions,
    rules_versions.of_nodes,
    rules_versions.of_components,
    rules_skew.expiring,
    rules_skew.weak,
    rules_health.faults,
    rules_capacity.lower_nodes,
    rules_capacity.promises,
    rules_capacity.oversized,
    rules_pods.stuck_pods,
    rules_pods.stuck_claims,
    rules_ownership.of_other_upper_clusters,
)


def inspect(facts: Facts) -> list[Finding]:
    """Everything that is found, the worst first."""
    found = [finding for rule in RULES for finding in rule(facts)]
    return sorted(found, key=_order)


def confirmed(first: Sequence[Finding], second: Sequence[Finding]) -> list[Finding]:
    """The findings of a second look, less those that only a change on its way explains.

    A pod that was deleted above is below for another moment, in the best of systems: what passes must have been
    there at both looks.
    """
    before = {finding.identity for finding in first}
    return [finding for finding in second if not finding.transient or finding.identity in before]


def exit_code(facts: Facts, findings: Sequence[Finding], *, fail_on: str) -> int:
    """3 where a cluster could not be read, else 1 where a finding is as bad as ``fail_on`` or worse, else 0."""
    if any(cluster.error for cluster in (facts.upper, *facts.lowers)):
        return INCOMPLETE
    if fail_on not in SEVERITIES:
        return FINE
    bad = SEVERITIES[: SEVERITIES.index(fail_on) + 1]
    return FOUND if any(finding.severity in bad for finding in findings) else FINE


def pods(facts: Facts) -> int:
    """How many upper pods the virtual nodes have."""
    ours = facts.virtual_nodes()
    return sum(pod["spec"].get("nodeName") in ours for pod in facts.upper.of("Pod"))


def summary(facts: Facts, findings: Sequence[Finding]) -> str:
    """``3 clusters, 214 pods: 1 error, 2 warnings``."""
    counts = {severity: sum(one.severity == severity for one in findings) for severity in (ERROR, WARNING)}
    told = [count(number, severity) for severity, number in counts.items() if number]
    scope = f"{count(1 + len(facts.lowers), 'cluster')}, {count(pods(facts), 'pod')}"
    return f"{scope}: {', '.join(told) or 'nothing to worry about'}"


def _order(finding: Finding) -> tuple[int, bool, str]:
    # What is wrong above, such as a virtual node that is not there, explains much of what follows below.
    return (SEVERITIES.index(finding.severity), finding.cluster != UPPER, finding.cluster)
