"""Decides from an owner's earlier moves whether one of its pods may be moved now. Does no IO.

Moves are counted in *rounds*. All pods of an owner that are moved because of the same bad placement are one round.
If a pod created after the last round began is stuck again, it begins the next round after a back-off. The
back-off doubles with each round up to a maximum. A window without a round resets the count.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from controller_runtime.apimachinery import timestamps
from controller_runtime.apimachinery.decoding import decode
from descheduler.config.eviction import Limits


@dataclass(frozen=True, slots=True)
class History:
    """Rounds of one owner."""

    rounds: int
    last: datetime
    """Start of the last round."""

    def render(self, namespace: str) -> str:
        """Return the value stored in the ConfigMap."""
        value = {"namespace": namespace, "rounds": self.rounds, "last": timestamps.rfc3339(self.last)}
        return msgspec.json.encode(value).decode()


def parse(data: Mapping[str, Any] | None) -> dict[str, History]:
    """Return the histories in the ConfigMap's data by owner key; skip entries that cannot be parsed."""
    found: dict[str, History] = {}
    for key, text in (data or {}).items():
        try:
            value = decode(text)
            found[key] = History(int(value["rounds"]), timestamps.parse(value["last"]))
        except (KeyError, TypeError, ValueError):
            continue
    return found


class Verdict(enum.Enum):
    """Whether a pod may be moved now: SAME_ROUND and NEW_ROUND allow it."""

    SAME_ROUND = enum.auto()
    NEW_ROUND = enum.auto()
    WAIT = enum.auto()
    GIVE_UP = enum.auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict. ``wait``: for WAIT and GIVE_UP, seconds until the next decision (GIVE_UP: rest of the window)."""

    verdict: Verdict
    wait: float = 0.0
    rounds: int = 0
    """Rounds in the current window."""


def decide(
    history: History | None, *, created: datetime, now: datetime, limits: Limits, is_bare: bool = False
) -> Decision:
    """Decide whether a pod may be moved now.

    Args:
        history: history of the pod's owner; None: none of its pods was moved.
        created: creation time of the pod. A pod created before the second in which the last round began is
            part of that round.
        now: wall clock.
        limits: back-off and maximum.
        is_bare: whether the pod has no controller. Rounds of bare pods have a single pod.
    """
    if history is None or expired(history, now=now, limits=limits):
        return Decision(Verdict.NEW_ROUND)
    if not is_bare and created < history.last.replace(microsecond=0):
        return Decision(Verdict.SAME_ROUND, rounds=history.rounds)
    since = (now - history.last).total_seconds()
    if limits.rounds and history.rounds >= limits.rounds:
        return Decision(Verdict.GIVE_UP, wait=max(1.0, limits.window - since), rounds=history.rounds)
    wait = min(limits.backoff * 2.0 ** min(history.rounds - 1, 63), limits.backoff_maximum) - since
    if wait > 0:
        return Decision(Verdict.WAIT, wait=wait, rounds=history.rounds)
    return Decision(Verdict.NEW_ROUND, rounds=history.rounds)


def expired(history: History, *, now: datetime, limits: Limits) -> bool:
    """Report whether the window has passed since the last round began."""
    return now - history.last > timedelta(seconds=limits.window)
