"""Back-off and maximum number of rounds of moves per owner (rounds: ``descheduler.memory.history``)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one owner's rounds. Times are in seconds."""

    backoff: float = 60.0
    """Time between the first and the second round; doubles with every round."""
    backoff_maximum: float = 1800.0
    """Longest time between two rounds."""
    rounds: int = 5
    """Rounds within a window after which the owner's pods are no longer moved; 0: no maximum."""
    window: float = 7200.0
    """Time without a round after which the owner's rounds are forgotten."""
