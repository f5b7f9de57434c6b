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


_OTHERS_WAY = (
    "Insufficient ",
    "Too many pods",
    "node(s) didn't have free ports",
    "node(s) didn't match pod anti-affinity",
    "node(s) didn't satisfy existing pods anti-affinity",
    "node(s) didn't match pod topology spread",
)
"""What kube-scheduler's plug-ins call Unschedulable, not UnschedulableAndUnresolvable."""


def is_resolvable(reasons: Mapping[str, int]) -> bool:
    """Whether the end of other pods would help on any of the nodes."""
    return any(reason.startswith(_OTHERS_WAY) for reason in reasons)
