"""How often an owner's pods have been moved, when the next time may be, and when it is enough. Pure.

Counted in *rounds*: all pods of one owner that are moved because of one bad placement are one round, however many
they are. A pod created after the last round that is stuck again begins the next one, after a back-off that doubles
with each, until the cap. A quiet window forgets everything.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from controller_runtime.api import timestamps
from controller_runtime.api.decoding import decode
from descheduler.config.move_limits import Limits


@dataclass(frozen=True, slots=True)
class History:
    """What is remembered of one owner."""

    rounds: int
    last: datetime
    """When the last round began."""

    def render(self, namespace: str) -> str:
        """As kept in the ConfigMap."""
        value = {"namespace": namespace, "rounds": self.rounds, "last": timestamps.rfc3339(self.last)}
        return msgspec.json.encode(value).decode()


def parse(data: Mapping[str, Any] | None) -> dict[str, History]:
    """Read the ConfigMap's data; entries that nobody of ours wrote are left out."""
    found: dict[str, History] = {}
    for key, text in (data or {}).items():
        try:
            value = decode(text)
            found[key] = History(int(value["rounds"]), timestamps.parse(value["last"]))
        except (KeyError, TypeError, ValueError):
            continue
    return found


class Verdict(enum.Enum):
    """What history says about moving a pod now."""

    SAME_ROUND = enum.auto()
    NEW_ROUND = enum.auto()
    WAIT = enum.auto()
    GIVE_UP = enum.auto()


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict, and the seconds to wait where it is to wait or to give up (the window's rest)."""

    verdict: Verdict
    wait: float = 0.0
    rounds: int = 0
    """Rounds so far, within the window."""


def decide(
    history: History | None, *, created: datetime, now: datetime, limits: Limits, is_bare: bool = False
) -> Decision:
    """May this pod be moved now?

    Args:
        history: of its owner; None: never moved.
        created: when the pod was created; in a second before the last round: part of that round.
        now: the time.
        limits: back-off and cap.
        is_bare: a bare pod is alone: there is no second pod in its round.
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
    """Whether the window has passed since the last round."""
    return now - history.last > timedelta(seconds=limits.window)
