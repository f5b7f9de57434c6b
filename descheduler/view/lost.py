"""Decides which virtual nodes are lost, since when they are silent, and when their pods move. Does no IO.

Pods without a lower node move as soon as the node is lost. Pods that may run move later, because a control plane can be away for
minutes while its pods run on. Times are monotonic seconds, except in the ``Silence`` of the Node's annotation.

A node is stale when its Lease is silent for more than ``stale_after`` seconds; exactly that long is not enough. Three rules
avoid wrong decisions:

- Only the descheduler's clock counts: a renewal has the time at which the descheduler *saw* it.
- After a restart of the descheduler, the time begins again for all nodes.
- If *no* Lease is renewed, the upper API server is the cause. So no node is lost then, and at the first renewal after such a
  gap the time begins again for all nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from clusterset.model.moving import silence as silences
from clusterset.model.moving.silence import Silence
from clusterset.model.pod.conditions import condition, is_true
from controller_runtime.apimachinery import timestamps
from controller_runtime.objects import Object
from descheduler.view.cluster import tainted_since

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


@dataclass(slots=True)
class Lost:
    """A virtual node with the taint of a lost cluster."""

    since: datetime
    """When it got the taint."""
    renewed: str | None
    """``renewTime`` of its Lease while it was silent: only a later one is a sign of health. None: it has reported that it is
    Ready."""
    recorded: Silence | None = None
    """The silence that an earlier leader has recorded; None: there is none, or the node has been healthy since."""
    silent_since: float | None = None
    """When its silence began; None: it is recovering, or this process has not seen enough silence yet."""
    healthy_at: float | None = None
    """Since when it is healthy; None: it is not."""


class LostNodes:
    """The virtual nodes with the taint of a lost cluster, and the health of all virtual nodes."""

    def __init__(self, *, stale_after: float, move_running_after: float) -> None:
        """Create it without nodes.

        Args:
            stale_after: seconds of silence after which a node is lost.
            move_running_after: seconds of silence after which pods that may run move.
        """
        self.heartbeats = Heartbeats(stale_after=stale_after)
        self.tainted: dict[str, Lost] = {}
        """By name, with recovering nodes."""
        self._after = stale_after
        self._move_running_after = move_running_after
        self._not_ready_since: dict[str, float] = {}

    def observe(self, node: Object, *, now: float) -> None:
        """Record the state of a virtual node."""
        since, lost = tainted_since(node), self.tainted.get(node.name)
        if since is not None and lost is None:
            # An earlier leader added the taint. Before pods move, this process must see the silence, too.
            recorded = silences.recorded(node.annotations)
            lost = self.tainted[node.name] = Lost(since, self.heartbeats.renewed(node.name), recorded)
        if not is_true(node.status, "Ready"):
            self._not_ready_since.setdefault(node.name, now)
            if lost is not None:
                lost.healthy_at = None
        elif self._not_ready_since.pop(node.name, None) is not None and lost is not None:
            lost.renewed = lost.recorded = lost.silent_since = None

    def forget(self, node: str) -> None:
        """Forget a deleted node."""
        self._not_ready_since.pop(node, None)
        self.tainted.pop(node, None)

    def due(self, node: str) -> float | None:
        """Return after which time the node is lost if nothing changes; None: it is Ready and has no Lease."""
        stale_at, not_ready = self.heartbeats.stale_at(node), self._not_ready(node)
        moments = [stale_at, None if not_ready is None else not_ready + self._after]
        return min((moment for moment in moments if moment is not None), default=None)

    def is_lost(self, node: str, *, now: float) -> bool:
        """Report whether pods move off a node now; False for a recovering node, and while no Lease is renewed."""
        lost, due = self.tainted.get(node), self.due(node)
        if lost is None or lost.silent_since is None or due is None:
            return False
        return due < now and not self.heartbeats.are_interrupted(now=now)

    def is_recovering(self, node: str) -> bool:
        """Report whether a node that was lost is Ready and has shown that its process runs."""
        lost = self.tainted.get(node)
        if lost is None or node in self._not_ready_since:
            return False
        return lost.healthy_at is not None or lost.renewed != self.heartbeats.renewed(node)

    def silence(self, node: Object, *, now: float, wall: datetime) -> Silence:
        """Return the silence of a node that is lost now. It may have begun before this process was the leader.

        Args:
            node: cached node.
            now: monotonic time.
            wall: wall clock.
        """
        moments = [self.heartbeats.silent_since(node.name), self._not_ready(node.name)]
        began = min((moment for moment in moments if moment is not None), default=now)
        lost, renewed = self.tainted.get(node.name), self.heartbeats.renewed(node.name)
        since = continued(
            lost.recorded if lost is not None else None,
            node.status,
            renewed,
            observed=(wall - timedelta(seconds=now - began)).replace(microsecond=0),
        )
        return Silence(since=since, running_pods_move_at=since + timedelta(seconds=self._move_running_after))

    def mark(self, node: str, silence: Silence, *, now: float, wall: datetime) -> None:
        """Record that a node is lost and has its taint."""
        lost = self.tainted.setdefault(node, Lost(wall, ""))
        lost.renewed = self.heartbeats.renewed(node)
        lost.healthy_at, lost.silent_since = None, now - (wall - silence.since).total_seconds()

    def seconds_until_move(self, node: str, *, has_lower_node: bool, now: float) -> float:
        """Return the seconds until a pod of a lost node may move; 0 or less: now."""
        since = self.tainted[node].silent_since
        return since + self._move_running_after - now if has_lower_node and since is not None else 0.0

    def lost_for(self, node: str, *, now: float) -> float:
        """Return for how many seconds a lost node is lost."""
        since = self.tainted[node].silent_since
        return 0.0 if since is None else now - since - self._after

    def _not_ready(self, node: str) -> float | None:
        """Return since when a node is not Ready, as far as its health could be reported; None: it is Ready."""
        since = self._not_ready_since.get(node)
        return None if since is None else max(since, self.heartbeats.resumed_at)


def continued(
    recorded: Silence | None, status: Mapping[str, Any] | None, renew_time: str, *, observed: datetime
) -> datetime:
    """Return when a silence began that an earlier leader may have recorded.

    The recorded time counts if no object shows that the node was healthy afterwards. Clocks that differ can only make the silence
    shorter, so that running pods move later.

    Args:
        recorded: the silence in the Node's annotation; None: no earlier leader has recorded one.
        status: the Node's status.
        renew_time: ``renewTime`` of its Lease; empty: it has none.
        observed: when the silence began as far as this process has seen.
    """
    if recorded is None:
        return observed
    ready = condition(status, "Ready")
    # A virtual node that reports that it is not Ready was Ready before. Otherwise its last report is its Lease.
    reported = (ready.get("lastTransitionTime") or "") if ready.get("status") == "False" else renew_time
    healthy = timestamps.parse(reported) if reported else recorded.since
    return min(observed, max(recorded.since, healthy))
