"""Pods that no strategy may move because their ReplicaSet is expected to adopt them."""

from __future__ import annotations

import asyncio

_ADOPTION = 60.0
"""Seconds in which a ReplicaSet adopts a pod whose label was restored."""


class Held:
    """Pods that a ReplicaSet is expected to adopt. Moved as bare pods, they would be deleted before they are replaced."""

    def __init__(self, leaving: set[str]) -> None:
        """Create without pods; UIDs of held pods are added to ``leaving`` (``ClusterView.leaving``)."""
        self._leaving = leaving
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def __contains__(self, uid: str) -> bool:
        """Report whether a pod is held."""
        return uid in self._timers

    def hold(self, uid: str) -> None:
        """Keep a pod from being moved until ``release`` is called, at most ``_ADOPTION`` seconds."""
        self.release(uid)
        self._leaving.add(uid)
        self._timers[uid] = asyncio.get_running_loop().call_later(_ADOPTION, self.release, uid)

    def release(self, uid: str) -> None:
        """Let strategies move a pod again."""
        self._leaving.discard(uid)
        if (timer := self._timers.pop(uid, None)) is not None:
            timer.cancel()
