"""Why no node fits, in kube-scheduler's words. Pure.

Source: kube-scheduler ``framework.FitError``.
"""

from __future__ import annotations

from collections.abc import Mapping


def no_fit(total: int, reasons: Mapping[str, int]) -> str:
    """``0/40 nodes are available: 31 Insufficient cpu, 9 node(s) were unschedulable``.

    Without a full stop: kube-scheduler puts its own after the sentence that this becomes part of.
    """
    if not total:
        return "0/0 nodes are available: the lower cluster has no nodes"
    said = sorted(f"{count} {reason}" for reason, count in reasons.items() if count)
    return f"0/{total} nodes are available: {', '.join(said)}" if said else f"0/{total} nodes are available"
