"""What a strategy asks the mover for, and what it is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Move:
    """What a strategy asks for."""

    strategy: str
    reason: str
    """A sentence's beginning for the event: ``Unschedulable: 0/3 nodes are available…``."""
    avoid: bool = True
    """Whether its successor is to avoid the node for the freeze period."""
    counts: bool = True
    """Whether it counts for the owner's back-off and cap."""
    force: bool = False
    """Nobody can confirm the pod's end: bare pods are deleted without grace."""
    budget_matters: bool = True
    """Whether a disruption budget may keep the pod; if not, the pod is deleted when its eviction is refused."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a move."""

    moved: bool
    why: str = ""
    cause: str = ""
    """Of a pod that stays and would still be moved: why, as a label of metrics."""
    retry_after: float | None = None
    """Seconds after which to ask again; None: when something changes."""
    needs_node: bool = False
    """Another look is worth while when the virtual nodes have changed."""
