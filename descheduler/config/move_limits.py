"""Back-off and number of moves per owner."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Back-off and cap per owner; seconds."""

    backoff: float = 60.0
    """Between the first round and the second; doubles with every round."""
    backoff_maximum: float = 1800.0
    rounds: int = 5
    """Rounds within a window after which the owner is given up; 0: never."""
    window: float = 7200.0
    """Time without a round after which the owner starts anew."""
