"""Back-off for owners of which pods are deleted in the lower cluster soon after they start. No IO.

The owner of a lost pod replaces it immediately. If a program of the lower cluster deletes each replacement, the upper cluster
gets thousands of Failed pods. So the next lower pods of the owner are delayed, as a kubelet delays containers in
CrashLoopBackOff: not after the first loss, then 10 s, doubled each time, at most 5 min.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from controller_runtime.util import backoff

_FIRST, _LONGEST = 10.0, 300.0
_QUIET = 600.0
"""Seconds that a pod lived, or since the last loss, after which earlier losses do not count, as of a kubelet."""
_MOST = 4096
"""Owners that are remembered. Those with the oldest losses are forgotten first."""


@dataclass(slots=True)
class _Loss:
    at: float
    again: int = 0
    """Losses after the first one. Pods that are lost together count once."""
    by: str = ""


class Losses:
    """The owners that lost pods in one lower cluster, by uid."""

    def __init__(self) -> None:
        self._owners: OrderedDict[str, _Loss] = OrderedDict()

    def lost(self, owner: str, *, created_at: float, now: float, by: str = "") -> None:
        """Count the loss of a pod.

        Args:
            owner: uid of the upper pod's controller; empty: nothing creates another pod.
            created_at: when the lower pod was created; 0: unknown, long ago.
            now: the current time, of the same clock.
            by: the lower controller that had adopted the pod; empty: none.
        """
        if not owner or not created_at or now - created_at >= _QUIET:
            return
        known = self._owners.get(owner)
        if known is not None and created_at < known.at:
            known.by = known.by or by
            return  # it was lost together with others
        is_again = known is not None and now - known.at < _QUIET
        again = known.again + 1 if known is not None and is_again else 0
        self._owners[owner] = _Loss(now, again, by)
        self._owners.move_to_end(owner)
        while len(self._owners) > _MOST:
            self._owners.popitem(last=False)

    def pause(self, owner: str, now: float) -> float:
        """Return the seconds until the next lower pod of an owner may be created; 0: now."""
        known = self._owners.get(owner)
        if known is None or not known.again:
            return 0.0
        return max(0.0, known.at + self.delay(owner) - now)

    def delay(self, owner: str) -> float:
        """Return the seconds of an owner's last back-off; 0: none."""
        known = self._owners.get(owner)
        if known is None or not known.again:
            return 0.0
        return backoff.exponential(known.again - 1, base=_FIRST, maximum=_LONGEST)

    def by(self, owner: str) -> str:
        """Return the lower controller that had adopted the last lost pod of an owner; empty: none, or unknown."""
        known = self._owners.get(owner)
        return "" if known is None else known.by
