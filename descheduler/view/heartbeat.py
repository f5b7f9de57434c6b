"""Is a virtual node alive? Judged by our own clock alone, from what we see change. Pure.

kubeleet's rule: silent for more than 20 s is lost, 20 s exactly is not. Three things keep it from being wrong:

- Only our clock counts: a renewal is timed when it is *seen*, so the node's clock may say anything.
- A restarted descheduler begins a whole window for everyone.
- Silence of *everyone* is the upper apiserver's, not theirs. Somebody else's recent renewal is the proof that
  renewing was possible; the first one after a gap begins a new window for everyone.
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
    """The leases of all nodes, as they come by watch. Times are monotonic seconds."""

    def __init__(self, *, stale_after: float) -> None:
        """Set up.

        Args:
            stale_after: seconds of silence after which a node is lost; never less than half its lease's duration,
                which is two renewals.
        """
        self._after = stale_after
        self._leases: dict[str, _Lease] = {}
        self._heard_at = float("-inf")
        self._longest_duration = 0.0
        """Of all leases ever seen: asked at every renewal of every node."""

    def heard(self, node: str, renew_time: str, *, duration: float, now: float) -> None:
        """A lease was seen; nothing happens unless it has been renewed."""
        known = self._leases.get(node)
        if known is not None and known.renewed == renew_time:
            return
        gap = now - self._heard_at
        self._heard_at = now
        lease = self._leases[node] = _Lease(renew_time, now, duration or DEFAULT_LEASE_DURATION)
        self._longest_duration = max(self._longest_duration, lease.duration)
        if gap > self._longest_gap():
            for each in self._leases.values():
                each.seen_at = now

    def forget(self, node: str) -> None:
        """A lease is gone."""
        self._leases.pop(node, None)

    def renewed(self, node: str) -> str:
        """The last renewal seen of a node; empty when there is no lease."""
        lease = self._leases.get(node)
        return lease.renewed if lease is not None else ""

    def stale_in(self, node: str) -> float | None:
        """When a node is lost unless it is heard of: monotonic time; None: it has no lease to judge by."""
        lease = self._leases.get(node)
        return None if lease is None else lease.seen_at + max(self._after, lease.duration / 2)

    def others_are_heard(self, *, now: float) -> bool:
        """Whether renewing has been possible of late, as the proof of somebody who did."""
        return now - self._heard_at <= self._longest_gap()

    def _longest_gap(self) -> float:
        return (self._longest_duration or DEFAULT_LEASE_DURATION) / _RENEWALS_PER_DURATION * _SLACK
