"""Rules about pods that do not terminate, and pods that were deleted in the lower cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from controller_runtime.api import timestamps
from virtual_node.commands.diagnose.facts import DiagnoseFinding, PodFacts, Rule

_LONG = 120.0
"""Seconds after the deletion timestamp from which a pod is reported."""


def _terminating(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    since = facts.pod["metadata"].get("deletionTimestamp")
    if not since:
        return
    waited = (facts.now - timestamps.parse(since)).total_seconds()
    if waited < _LONG:
        return
    if finalizers := facts.pod["metadata"].get("finalizers"):
        yield DiagnoseFinding(
            0,
            f"The pod is held by finalizers: {', '.join(finalizers)}.",
            [],
            ["find out which controller removes them"],
        )
    elif facts.lower is not None and (held := facts.lower["metadata"].get("finalizers")):
        yield DiagnoseFinding(0, f"The lower pod is held by finalizers: {', '.join(held)}.")
    else:
        yield DiagnoseFinding(
            1, f"The pod should have ended {waited:.0f} s ago; its lower cluster has not reported it."
        )


def _lost(facts: PodFacts) -> Iterator[DiagnoseFinding]:
    status = facts.pod.get("status") or {}
    if status.get("phase") == "Failed" and status.get("reason") == "LowerPodDeleted":
        yield DiagnoseFinding(0, "The pod was deleted in the lower cluster.", [status.get("message", "")])
    elif (
        facts.is_lower_read
        and facts.lower is None
        and facts.pod["spec"].get("nodeName")
        and not status.get("reason")
    ):
        yield DiagnoseFinding(2, "There is no lower pod yet.", [], ["look at the virtual node's log"])


RULES: Sequence[Rule] = (
    _terminating,
    _lost,
)
