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
    """Whether the move counts for the owner's back-off and maximum of rounds."""
    force: bool = False
    """The cluster is lost. Evict pods before their replacement is Ready, and delete bare pods without grace period, because a
    lost cluster cannot confirm that they have ended. Pods with a lower node are moved only if another virtual node has room."""
    budget_matters: bool = True
    """Whether disruption budgets are respected. If not, a pod is deleted if a budget refuses its eviction."""
    timeout: float = 300.0
    """Seconds in which the replacement must be Ready, if it starts before the pod is evicted."""
    drain: str = ""
    """Drain request that the move is part of, as text; empty: none. If the request changes, the move is cancelled."""
    local_storage: bool = False
    """Whether the pod may move although it loses its local storage."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a request."""

    moved: bool = False
    """Whether the move has begun."""
    why: str = ""
    """Why the pod stays, as text for users."""
    cause: str = ""
    """Why the pod waits to be moved, as metric label; empty if it does not wait."""
    retry_after: float | None = None
    """Seconds after which the strategy must request the move again; None: only when an object changes."""
    is_total: bool = False
    """Whether the cause applies to the pods of all owners."""
    needs_node: bool = False
    """Whether the strategy must request the move again when the virtual nodes change."""
