"""The upper pods of this cluster's virtual nodes that use a claim, or wait for its lower claim."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence


class ClaimUsers:
    """Uids of upper pods by upper claim (namespace/name)."""

    def __init__(self) -> None:
        self._claims: dict[str, Sequence[str]] = {}
        self._users: defaultdict[str, dict[str, None]] = defaultdict(dict)
        self._blocked: defaultdict[str, dict[str, None]] = defaultdict(dict)

    def add(self, uid: str, keys: Sequence[str]) -> None:
        """Register a pod as a user of its claims."""
        self._claims[uid] = keys
        for key in keys:
            self._users[key][uid] = None

    def block(self, uid: str, key: str) -> None:
        """Register that a pod waits for a lower claim."""
        self._blocked[key][uid] = None

    def of(self, key: str) -> Collection[str]:
        """Return the uids of pods that use a claim."""
        return self._users.get(key, ())

    def unblock(self, key: str) -> Collection[str]:
        """Return the uids of pods that waited for the lower claim, and forget that they waited."""
        return self._blocked.pop(key, ())

    def remove(self, uid: str) -> Sequence[str]:
        """Forget a pod and return its claims; other pods that use or wait for these claims stay registered."""
        keys = self._claims.pop(uid, ())
        for key in keys:
            for pods in (self._users, self._blocked):
                if key in pods:
                    pods[key].pop(uid, None)
                    if not pods[key]:
                        del pods[key]
        return keys
