"""The health of an installation: what all tools show, from the rules about the installation and its pods."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from virtual_node.examine import leases, rules  # noqa: F401 - registers all rules
from virtual_node.examine.codes import REMARKS, Code, Severity
from virtual_node.examine.engine import HEALTH, RULES, WAY, examine
from virtual_node.examine.facts import CLUSTERS, EXPIRING, LEASES, NODES, REJECTED, ClusterState
from virtual_node.examine.finding import Finding
from virtual_node.examine.rules.nodes import silence
from virtual_node.examine.snapshot import Snapshot


class Verdict(enum.StrEnum):
    """Overall result."""

    HEALTHY = "healthy"
    FAULTY = "faulty"
    UNKNOWN = "unknown"
    """No fault was found, but not everything could be read."""


@dataclass(frozen=True, slots=True)
class Health:
    """The findings, causes before their effects, and unknown facts."""

    faults: Sequence[Finding] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Facts that could not be read (``leases``, ``pods`` …), with the reason."""
    remarks: Sequence[Finding] = ()
    """Findings of severity info. They do not change the verdict."""

    @property
    def verdict(self) -> Verdict:
        """Return faulty if there are faults, unknown if there are none but a fact is unknown, otherwise healthy."""
        if self.faults:
            return Verdict.FAULTY
        return Verdict.UNKNOWN if self.unknown else Verdict.HEALTHY

    @property
    def is_broken(self) -> bool:
        """Whether a part of the installation does not work."""
        return any(fault.severity is Severity.ERROR for fault in self.faults)

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        if self.faults:
            first = self.faults[0]
            more = len(self.faults) - 1
            return f"{first}" + (f" (and {more} more fault{'s' * (more > 1)})" if more else "")
        if self.unknown:
            return f"No fault is seen, but this is not known: {', '.join(sorted(self.unknown))}."
        return "No fault is seen."

    def counts(self) -> Mapping[Code, int]:
        """Return the number of faulty objects for every code; 0 for codes without a fault."""
        return _counts(self.faults, (code for rule in RULES if rule.level in HEALTH for code in rule.codes))

    def remark_counts(self) -> Mapping[Code, int]:
        """Return the number of objects with a remark for every code of a remark."""
        return _counts(self.remarks, REMARKS)

    def data(self) -> dict[str, Any]:
        """Return the result for ``-o json`` and the page."""
        return {
            "verdict": self.verdict.value,
            "sentence": self.sentence,
            "faults": [fault.data() for fault in self.faults],
            "unknown": dict(self.unknown),
            "remarks": [remark.data() for remark in self.remarks],
        }


def _counts(findings: Iterable[Finding], codes: Iterable[Code]) -> Mapping[Code, int]:
    counted = Counter(dict.fromkeys(codes, 0))
    for each in findings:
        counted[each.code] += each.count
    return counted


def health(snapshot: Snapshot, *, of_pods: Iterable[Finding] | None = None) -> Health:
    """Return the health of an installation.

    Args:
        snapshot: the known facts; what processes report on the Leases of their virtual nodes is added to it.
        of_pods: findings about pods that the caller has already, see ``engine.examine``.
    """
    add_reports(snapshot)
    result = examine(snapshot, of_pods=of_pods)
    # Other findings of these levels need facts that only some tools read.
    of_way = examine(snapshot, levels=WAY, codes=REMARKS)
    findings = [*result.findings, *of_way.findings]
    return Health(
        [each for each in findings if each.severity is not Severity.INFO],
        result.unknown,
        [each for each in findings if each.severity is Severity.INFO],
    )


def add_reports(snapshot: Snapshot) -> None:
    """Add what processes report, except on expired Leases."""
    upper = snapshot.upper
    virtual = {node["metadata"]["name"] for node in upper.get(NODES) or ()}
    report = leases.read_reports(
        lease
        for name, lease in (upper.get(LEASES) or {}).items()
        if name in virtual and not silence(snapshot, name, ready=True)
    )
    known = {cluster.name: cluster for cluster in upper.get(CLUSTERS) or ()}
    for name, why in report.failed.items():
        known[name] = ClusterState(name=name, failed=True, error=why)
    upper.put(CLUSTERS, list(known.values()))
    for fact, reported in ((REJECTED, report.rejected), (EXPIRING, report.expiring)):
        upper.put(fact, dict(reported) | dict(upper.get(fact) or ()))
