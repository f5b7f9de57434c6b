"""Reads from the multi-scheduler's Event how its agents judged the virtual nodes for a pod. Does no IO."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCORED = "NodeScored"
"""Reason of the Event; ``multi_scheduler/extender/decisions.py`` writes its message."""
_AGENT = re.compile(
    r"(?P<agent>[^:]+): (?:(?P<scores>.*?) \(weight (?P<weight>[^)]+)\))?(?:; )?(?:rejected: (?P<rejected>.*))?"
)
# Lookbehind and limits keep the time of a search linear, because any program can write the message.
_SCORE = re.compile(r"(?<![^ ,])([^ ,]+) (\d+)(?=, | and |$)")
_REJECTION = re.compile(
    r"(?<![a-z0-9.-])([a-z0-9.-]{1,253}) \((.{0,1024}?)\)(?=, [a-z0-9.-]{1,253} \(|\. | and \d+ more|$)"
)


@dataclass(frozen=True, slots=True)
class Score:
    """One agent's answer about one virtual node."""

    agent: str
    weight: str
    """Weight of the agent's scores; empty: it has not scored."""
    node: str
    score: int | None
    """From 0 to 100; None: the agent rejected the node."""
    reason: str = ""
    """Why the agent rejected the node."""


def scores(events: Sequence[Mapping[str, Any]]) -> list[Score]:
    """Return the answers in the newest NodeScored event about a pod; empty: there is no such event.

    Args:
        events: events about the pod, the oldest first.
    """
    message = next((str(one.get("message")) for one in reversed(events) if one.get("reason") == SCORED), "")
    return [score for text in message.split(". Agent ")[1:] for score in _answer(text)]


def _answer(text: str) -> Iterator[Score]:
    match = _AGENT.match(text)
    if match is None:
        return
    agent, weight = match["agent"], match["weight"] or ""
    for node, score in _SCORE.findall(match["scores"] or ""):
        yield Score(agent, weight, node, int(score))
    for node, reason in _REJECTION.findall(match["rejected"] or ""):
        yield Score(agent, weight, node, None, reason)
