"""A replica as a member of the distribution: its name, its Lease, and its share of the clusters. No IO."""

from __future__ import annotations

import re
import secrets
import socket
from dataclasses import dataclass
from typing import Any

from clusterset.model import names
from controller_runtime.objects import Object
from virtual_node.config.types import LeaderElectionConfig

OVERLOADED = 0.2
"""Mean delay of the event loop's timers in seconds above which a replica counts as overloaded."""
RELAXED = 0.05
"""Mean delay in seconds below which a replica may take clusters back."""
OLD = 30.0
"""Age of the oldest waiting work in seconds above which a replica counts as overloaded, if it also is ``BUSY``."""
FRESH = 5.0
"""Age of the oldest waiting work in seconds below which a busy replica may take clusters back."""
BUSY = 0.7
"""Share of a core that the event loop uses, above which old work is a sign of overload. Behind a slow API server or a
rate limit, work becomes old on every replica."""
LEAST = 0.125
"""Smallest share. A share is never 0, because a slow replica is better than none."""
_WINDOW = 30.0
"""Seconds between two reductions of the share, because moved clusters take time to start."""
_FIRST_PAUSE = 300.0
_LONGEST_PAUSE = 3600.0


@dataclass(frozen=True, slots=True)
class Load:
    """How much a replica has to do.

    Attributes:
        delay: mean delay of the event loop's timers in seconds.
        busy: share of a core that the event loop uses.
        age: seconds for which the oldest key in the work queues has waited.
    """

    delay: float = 0.0
    busy: float = 0.0
    age: float = 0.0

    def is_high(self) -> bool:
        """Report whether other replicas should take lower clusters."""
        return self.delay > OVERLOADED or (self.age > OLD and self.busy > BUSY)

    def is_low(self) -> bool:
        """Report whether the replica can take lower clusters back."""
        return self.delay < RELAXED and (self.age < FRESH or self.busy <= BUSY)


class Member:
    """This replica.

    Attributes:
        name: unique; only a restarted worker gets the name of an earlier process.
        share: weight of this replica in ``assignment.assign``: 1 normally, halved while the load is high.
    """

    def __init__(self, election: LeaderElectionConfig, *, name: str = "") -> None:
        """Create for an election; an empty ``name`` means a new random name."""
        self.name = name or f"{local_host()}-{secrets.token_hex(4)}"
        self.share = 1.0
        self._election = election.name
        self._pause = _FIRST_PAUSE
        self._decided_at: float | None = None

    @property
    def lease(self) -> str:
        """Return the name of the replica's Lease."""
        return lease_of(self._election, self.name)

    def metadata(self) -> dict[str, Any]:
        """Return labels and annotations of the replica's Lease."""
        return {
            "labels": {names.LABEL_ELECTION: self._election},
            "annotations": {names.ANNOTATION_SHARE: f"{self.share:g}"},
        }

    def evaluate(self, load: Load, now: float) -> None:
        """Reduce or raise the share.

        The share rises after a pause, which doubles each time a share of 1 is reduced again. So a replica on a slow
        machine does not take the same clusters every few minutes and lose them again.

        Args:
            load: this replica's load.
            now: monotonic time in seconds.
        """
        since = float("inf") if self._decided_at is None else now - self._decided_at
        if load.is_high() and self.share > LEAST and since >= _WINDOW:
            if self.share == 1.0 and self._decided_at is not None:
                self._pause = min(self._pause * 2, _LONGEST_PAUSE)
            self.share, self._decided_at = self.share / 2, now
        elif load.is_low() and self.share < 1.0 and since >= self._pause:
            self.share, self._decided_at = self.share * 2, now


def local_host() -> str:
    """Return the name of this host as part of a Lease's name, without dots."""
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower())[:63].strip("-") or "replica"


def lease_of(election: str, member: str) -> str:
    """Return the name of a replica's Lease."""
    return f"{election}-replica-{member}"


def host_of(member: str) -> str:
    """Return a replica's host name (in a cluster, its pod's name); a worker's ends with ``.`` and its number."""
    return member.rpartition("-")[0]


def share_of(lease: Object) -> float:
    """Return the share that a replica has written to its Lease; 1 if it is absent or invalid."""
    try:
        share = float(lease.annotations.get(names.ANNOTATION_SHARE, "1"))
    except ValueError:
        return 1.0
    return share if LEAST <= share <= 1 else 1.0
