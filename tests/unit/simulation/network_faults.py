"""What the network and a server do to requests at the moment."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Weather:
    """One cluster's. Shares are of 1."""

    down: bool = False
    """Nobody accepts connections."""
    silent: bool = False
    """Nothing answers, no connection breaks."""
    errors: float = 0.0
    """Share of requests that are answered with an error and not carried out."""
    losing: float = 0.0
    """Share of writes that are carried out and whose answer is lost."""
    conflicts: float = 0.0
    """Share of changes that are refused because somebody else was quicker."""
    slow: float = 0.0
    """Share of requests that take seconds on their way."""
    held: set[str] = field(default_factory=set)
    """Plurals whose watches say nothing for now."""
    lag: float = 0.0
    """Seconds by which watches are late at most."""
    behind: int = 0
    """Last revisions that watches do not report yet."""
    disorder: float = 0.0
    """Share of watch events that come twice; if any do, those of different objects come in any order."""

    def clear(self) -> None:
        """All is well."""
        vars(self).update(vars(Weather()))
