"""A strategy's request to the mover, and its result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Move:
    """Request to move a pod."""

    strategy: str
    """Name of the strategy."""
    reason: str
    """Reason for the event, such as ``Unschedulable: 0/3 nodes are available``."""
    avoid: bool = True
    """Whether the successor avoids the node for the freeze period."""
    counts: bool = True
    """Whether the move counts for the owner's back-off and maximum."""
    force: bool = False
    """Delete bare pods without grace period, because the lost cluster cannot confirm their end."""
    budget_matters: bool = True
    """Whether disruption budgets are respected. If not, the pod is deleted when its eviction is refused."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a request."""

    moved: bool
    """Whether the move has begun."""
    why: str = ""
    """Why the pod stays, as text."""
    cause: str = ""
    """Why the pod stays, as metric label; empty if it does not wait to be moved."""
    retry_after: float | None = None
    """Seconds after which to request again; None: when an object changes."""
    needs_node: bool = False
    """Whether to request again when the virtual nodes change."""
