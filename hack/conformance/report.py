"""Results of a ginkgo run and the comparison of two runs, computed from ginkgo's JSON reports. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one test in one run."""

    name: str
    state: str
    """Ginkgo's state: passed, failed, timedout, panicked, interrupted or aborted. ``compare`` adds ``not run``."""
    seconds: float
    why: str = ""
    """First line of the failure's message; empty if the test did not fail."""


def outcomes(report: Iterable[Mapping[str, Any]]) -> dict[str, Outcome]:
    """Return the results of the tests that ran, by name.

    Args:
        report: ginkgo's ``--json-report``: a list of suites.
    """
    found: dict[str, Outcome] = {}
    for suite in report:
        for spec in suite.get("SpecReports") or ():
            if spec.get("LeafNodeType") != "It" or spec.get("State") in {"skipped", "pending"}:
                continue
            name = " ".join([*(spec.get("ContainerHierarchyTexts") or ()), spec["LeafNodeText"]])
            message = (spec.get("Failure") or {}).get("Message", "")
            found[name] = Outcome(
                name=name,
                state=spec["State"],
                seconds=spec.get("RunTime", 0) / 1e9,
                why=next((line.strip() for line in message.splitlines() if line.strip()), ""),
            )
    return found


def compare(direct: Mapping[str, Outcome], through: Mapping[str, Outcome]) -> tuple[list[str], list[Outcome]]:
    """Return the tests that pass directly (names), and those of them that do not pass through the virtual node."""
    passing = sorted(name for name, outcome in direct.items() if outcome.state == "passed")
    lost = [
        through.get(name, Outcome(name, "not run", 0.0))
        for name in passing
        if name not in through or through[name].state != "passed"
    ]
    return passing, lost


def summary(found: Mapping[str, Outcome]) -> str:
    """Return how many tests of one run pass, and why each of the others fails."""
    failed = [outcome for outcome in found.values() if outcome.state != "passed"]
    return "\n".join([f"{len(found) - len(failed)} of {len(found)} pass", *map(_line, failed)])


def render(direct: Mapping[str, Outcome], through: Mapping[str, Outcome]) -> str:
    """Return the comparison as text."""
    passing, lost = compare(direct, through)
    kept = len(passing) - len(lost)
    gained = sorted(
        name
        for name, outcome in through.items()
        if outcome.state == "passed" and name in direct and direct[name].state != "passed"
    )
    both = sorted(
        name for name, outcome in direct.items() if outcome.state != "passed" and name not in gained
    )
    passed_through = sum(outcome.state == "passed" for outcome in through.values())
    ratio = f"{kept / len(passing):.1%}" if passing else "-"
    lines = [
        f"directly on the lower cluster:   {len(passing)} of {len(direct)} pass",
        f"through the virtual node:        {passed_through} of {len(through)} pass",
        f"of those that pass directly:     {kept} of {len(passing)} pass through it = {ratio}",
    ]
    if lost:
        lines += ["", "pass directly, but not through the virtual node:"]
        lines += map(_line, lost)
    if gained:
        lines += ["", "pass through the virtual node, but not directly:", *(f"  {name}" for name in gained)]
    if both:
        lines += ["", "fail either way:", *(_line(direct[name]) for name in both)]
    return "\n".join(lines)


def _line(outcome: Outcome) -> str:
    return f"  {outcome.state:<9} {outcome.name}\n            {outcome.why}"
