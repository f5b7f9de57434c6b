"""Decides by Lease renewals whether a virtual node is alive. Does no IO.

A node is stale when it is silent for more than ``stale_after`` seconds; exactly that long is not enough. Three rules avoid
wrong decisions:

- Only the descheduler's clock counts: a renewal has the time at which the descheduler *saw* it.
- After a restart of the descheduler, the time begins again for all nodes.
- If *no* Lease is renewed, the upper API server is the cause. So no node is lost then, and at the first renewal after such a
  gap the time begins again for all nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_LEASE_DURATION = 40.0
_RENEWALS_PER_DURATION = 4
_SLACK = 1.3


@dataclass(slots=True)
class _Lease:
    renewed: str
    seen_at: float
    duration: float


class Heartbeats:
    """Renewals of all nodes' Leases, as the watch reports them. Times are monotonic seconds."""

    def __init__(self, *, stale_after: float) -> None:
        """Create it without Leases.

        Args:
            stale_after: seconds of silence after which a node is lost. Half the Lease's duration (two renewals) is
                used if that is longer.
        """
        self._after = stale_after
        self._leases: dict[str, _Lease] = {}
        self._last_renewal = float("-inf")
        self._longest_duration = 0.0
        """Longest duration of all Leases ever seen; stored, because it is read at every renewal."""
        self.resumed_at = float("-inf")
        """When a Lease was renewed for the first time after a gap without any renewal."""

    def observe(self, node: str, renew_time: str, *, duration: float, now: float) -> None:
        """Record a Lease from the watch; do nothing if its renewTime is unchanged."""
        known = self._leases.get(node)
        if known is not None and known.renewed == renew_time:
            return
        gap = now - self._last_renewal
        self._last_renewal = now
        lease = self._leases[node] = _Lease(renew_time, now, duration or DEFAULT_LEASE_DURATION)
        self._longest_duration = max(self._longest_duration, lease.duration)
        if gap > self._longest_gap():
            self.resumed_at = now

    def forget(self, node: str) -> None:
        """Forget a deleted Lease."""
        self._leases.pop(node, None)

    def renewed(self, node: str) -> str:
        """Return the last renewTime seen of a node's Lease; empty if no Lease is known."""
        lease = self._leases.get(node)
        return lease.renewed if lease is not None else ""

    def silent_since(self, node: str) -> float | None:
        """Return when the silence of a node's Lease began; None: no Lease is known."""
        lease = self._leases.get(node)
        return None if lease is None else max(lease.seen_at, self.resumed_at)

    def stale_at(self, node: str) -> float | None:
        """Return the monotonic time at which the node is lost unless its Lease is renewed; None: no Lease is known."""
        lease, since = self._leases.get(node), self.silent_since(node)
        return None if lease is None or since is None else since + max(self._after, lease.duration / 2)

    def are_interrupted(self, *, now: float) -> bool:
        """Report whether no Lease has been renewed recently, although Leases are known: renewals may be impossible."""
        return bool(self._leases) and now - self._last_renewal > self._longest_gap()

    def _longest_gap(self) -> float:
        return (self._longest_duration or DEFAULT_LEASE_DURATION) / _RENEWALS_PER_DURATION * _SLACK
