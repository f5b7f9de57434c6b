"""Reasons why no node fits, in kube-scheduler's words. No IO.

Source: kube-scheduler ``framework.FitError``.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from multi_scheduler.state.cluster.topology import MISSING_LABEL

_MOST_REASONS = 20
_LONGEST = 200
"""Characters of a reason."""


def no_fit(total: int, reasons: Mapping[str, int]) -> str:
    """Return ``0/40 nodes are available: 31 Insufficient cpu, 9 node(s) were unschedulable``.

    The text has no full stop, because kube-scheduler appends one to the whole sentence.
    """
    if not total:
        return "0/0 nodes are available: the lower cluster has no nodes"
    # A lower cluster may have a different taint on each node.
    largest = heapq.nlargest(_MOST_REASONS, reasons.items(), key=lambda item: item[1])
    counts = sorted(f"{count} {reason[:_LONGEST]}" for reason, count in largest if count)
    return (
        f"0/{total} nodes are available: {', '.join(counts)}" if counts else f"0/{total} nodes are available"
    )


_OTHERS_WAY = (
    "Insufficient ",
    "Too many pods",
    "node(s) didn't have free ports",
    "node(s) didn't match pod anti-affinity",
    "node(s) didn't satisfy existing pods anti-affinity",
    "node(s) didn't match pod topology spread",
)
"""Reasons that kube-scheduler's plug-ins report as Unschedulable, not as UnschedulableAndUnresolvable."""


def is_resolvable(reasons: Mapping[str, int]) -> bool:
    """Report whether evicting pods may help on any of the nodes."""
    return any(reason.startswith(_OTHERS_WAY) and reason != MISSING_LABEL for reason in reasons)
