"""Prints the report of ``virtual-node inspect``: a table for people, or data for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from controller_runtime.apimachinery import timestamps
from virtual_node.certificates.expiry import span
from virtual_node.commands.common import output
from virtual_node.commands.inspect.facts import ERROR, INFO, WARNING, InspectFacts, InspectFinding, Subject
from virtual_node.commands.inspect.history import identity
from virtual_node.commands.inspect.rules import registry
from virtual_node.health.inspections import FIXED, PERSISTING, UNKNOWN, Inspection, RecordedFinding

_COLUMNS = ("SEVERITY", "CLUSTER", "CHECK", "KIND", "OBJECT", "MESSAGE", "NEXT")
_MARKS = {ERROR: output.BAD, WARNING: output.DOUBTFUL, INFO: output.NOTHING}
_Recorded = Mapping[tuple[str, str, str, str], RecordedFinding]


def show(
    facts: InspectFacts,
    findings: Sequence[InspectFinding],
    history: Inspection | None,
    *,
    form: str,
    headers: bool,
) -> None:
    """Print the findings and the summary.

    Args:
        facts: what was read.
        findings: the findings to print.
        history: the history with this run; None: without a history.
        form: ``table``, ``json`` or ``yaml``.
        headers: whether a table has headings.
    """
    summary = registry.summary(facts, findings)
    recorded = {one.identity: one for one in history.findings} if history else {}
    if history:
        summary += f"; {history.runs[-1].new} new, {history.runs[-1].fixed} fixed"
    if form == "table":
        _table(facts, findings, recorded, has_history=history is not None, headers=headers)
        output.conclusion(summary)
        return
    data: dict[str, Any] = {
        "clusters": [
            {
                "name": cluster.name,
                "version": cluster.version,
                "error": cluster.error,
                "replica": facts.replica(cluster),
            }
            for cluster in (facts.upper, *facts.lowers)
        ],
        "pods": registry.pod_count(facts),
        "findings": [_row(finding, recorded.get(identity(finding))) for finding in findings],
        "summary": summary,
    }
    if history:
        data |= {
            state: [msgspec.to_builtins(one) for one in history.findings if one.state == state]
            for state in (FIXED, UNKNOWN)
        }
        data["runs"] = msgspec.to_builtins(history.runs)
    output.data(data, form)


def _table(
    facts: InspectFacts,
    findings: Sequence[InspectFinding],
    recorded: _Recorded,
    *,
    has_history: bool,
    headers: bool,
) -> None:
    past = [
        Subject(one.check, one.cluster, one.kind, one.object).finding(one.severity, one.message)
        for one in recorded.values()
        if one.state in {FIXED, UNKNOWN}
    ]
    if not (findings or past):
        return
    rows, entries = [], []
    for one in (*findings, *past):
        state = _state(facts, recorded.get(identity(one))) if has_history else ""
        check, cluster, kind, name = one.subject
        row = (one.severity, cluster, check, kind, name, one.message, one.next_step)
        rows.append((state, *row) if has_history else row)
        entries.append(
            output.Entry(
                output.GOOD if state == FIXED else _MARKS[one.severity],
                f"{one.severity} {cluster}: {check} {kind} {name}" + (f" ({state})" if state else ""),
                [one.message],
                [one.next_step],
            )
        )
    columns = ("STATE", *_COLUMNS) if has_history else _COLUMNS
    output.report(columns, rows, entries, headers=headers)


def _state(facts: InspectFacts, recorded: RecordedFinding | None) -> str:
    """Return a finding's state, or its age if it persists; empty: not recorded (severity info)."""
    if recorded is None:
        return ""
    if recorded.state == PERSISTING:
        return span(facts.now - timestamps.parse(recorded.since))
    return recorded.state


def _row(finding: InspectFinding, recorded: RecordedFinding | None) -> dict[str, Any]:
    """Return a finding as data; all printed findings are confirmed, so ``transient`` is left out."""
    return {
        **({"state": recorded.state, "since": recorded.since} if recorded else {}),
        "severity": finding.severity,
        **finding.subject._asdict(),
        "message": finding.message,
        "nextStep": finding.next_step,
    }
