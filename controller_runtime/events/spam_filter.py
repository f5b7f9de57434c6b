"""Limits the Events about one object, as client-go's EventSourceObjectSpamFilter does. No IO."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from controller_runtime.events.recent import Recent

K = TypeVar("K", bound=Hashable)

BURST = 25
QPS = 1 / 300


@dataclass(slots=True)
class _Tokens:
    left: float
    at: float


class SpamFilter(Generic[K]):
    """Token buckets of the 4,096 objects with the latest Events.

    Args:
        burst: Events of one object at once.
        qps: Events of one object per second in the long run.
    """

    def __init__(self, *, burst: float = BURST, qps: float = QPS) -> None:
        self._burst, self._qps = burst, qps
        self._tokens: Recent[K, _Tokens] = Recent()

    def accepts(self, subject: K, *, at: float) -> bool:
        """Report whether an object may have another Event at ``at`` seconds of a monotonic clock, and count it if so."""
        tokens = self._tokens.touch(subject)
        if tokens is None:
            tokens = self._tokens[subject] = _Tokens(self._burst, at)
        tokens.left = min(self._burst, tokens.left + (at - tokens.at) * self._qps)
        tokens.at = at
        if tokens.left < 1:
            return False
        tokens.left -= 1
        return True
