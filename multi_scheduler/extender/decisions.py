"""Remembers each agent's answers about a pod until the pod is bound. No IO.

kube-scheduler does not report its choice to extenders, so the answers are joined with the binding that the informer reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

REASON = "NodeScored"
"""Reason of the Event; the web page selects Events by it."""
_PODS = 1000
"""Number of pods with remembered answers. Above it, the pod with the oldest last answer is dropped."""
_SECONDS = 900.0
"""Age at which answers are dropped. kube-scheduler waits up to 10 minutes for volumes before it binds."""
_SCORES = 20
_REJECTIONS = 5
"""Nodes kept per answer: those with the best scores, and the first rejected ones. There may be 500 virtual nodes."""
_SHOWN_SCORES = 8
_SHOWN_REJECTIONS = 3
_REASON = 200
"""Characters of a reason; an Event's message is limited to 1,024."""


@dataclass(slots=True)
class Opinion:
    """One agent's answers about one pod."""

    agent: str
    weight: float
    scores: dict[str, int] = field(default_factory=dict)
    """Score from 0 to 100 by virtual node, best first. Empty: the agent was not asked, or does not score."""
    unnamed_scores: int = 0
    """Number of scored nodes that are not in ``scores``."""
    rejected: dict[str, str] = field(default_factory=dict)
    """Reason of the rejection by virtual node."""
    unnamed_rejections: int = 0
    """Number of rejected nodes that are not in ``rejected``."""


class Decisions:
    """Keeps the agents' answers by pod UID, bounded in number and age.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[float, dict[str, Opinion]]] = {}
        """By pod UID: time of the last answer, and opinions by agent; the pod with the oldest last answer first."""

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self, uid: str) -> None:
        """Forget the answers of the pod's earlier scheduling attempt."""
        self._kept.pop(uid, None)

    def rejected(self, uid: str, agent: str, weight: float, reasons: Mapping[str, str]) -> None:
        """Record the nodes that an agent rejected, with reasons."""
        named = dict(list(reasons.items())[:_REJECTIONS])
        opinion = self._opinion(uid, agent, weight)
        opinion.rejected = {node: _cut(reason) for node, reason in named.items()}
        opinion.unnamed_rejections = len(reasons) - len(named)

    def scored(self, uid: str, agent: str, weight: float, scores: Mapping[str, float]) -> None:
        """Record an agent's scores, from 0 to 1 by node."""
        best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:_SCORES]
        opinion = self._opinion(uid, agent, weight)
        opinion.scores = {node: round(min(1.0, max(0.0, score)) * 100) for node, score in best}
        opinion.unnamed_scores = len(scores) - len(best)

    def settle(self, uid: str) -> Collection[Opinion] | None:
        """Return the opinions about a newly bound pod, and forget them; None if there are none."""
        _, opinions = self._kept.pop(uid, (0.0, None))
        return None if opinions is None else opinions.values()

    def _opinion(self, uid: str, agent: str, weight: float) -> Opinion:
        now = self._clock()
        _, opinions = self._kept.pop(uid, (0.0, {}))
        self._kept[uid] = now, opinions
        while (oldest := next(iter(self._kept))) and (
            len(self._kept) > _PODS or self._kept[oldest][0] < now - _SECONDS
        ):
            del self._kept[oldest]
        return opinions.setdefault(agent, Opinion(agent, weight))


def sentence(node: str, opinions: Collection[Opinion]) -> str:
    """Return the message of the Event of a bound pod, such as the following.

    ``Bound to vn-a. Agent fit: vn-a 87, vn-b 40 (weight 1); rejected: vn-c (0/3 nodes are available: 3 Too many pods)``
    """
    sentences = [text for one in opinions if (text := _answer_text(one, node))]
    if not any(one.scores for one in opinions):
        sentences.append("Only one node was left, so no agent scored it")
    return ". ".join([f"Bound to {node}", *sentences])


def _answer_text(opinion: Opinion, node: str) -> str:
    shown = list(opinion.scores.items())[:_SHOWN_SCORES]
    if node in opinion.scores and node not in dict(shown):
        shown.append((node, opinion.scores[node]))
    parts = []
    if shown:
        more = len(opinion.scores) - len(shown) + opinion.unnamed_scores
        scores = ", ".join(f"{name} {score}" for name, score in shown)
        parts.append(f"{scores}{_more(more)} (weight {opinion.weight:g})")
    if opinion.rejected:
        named = list(opinion.rejected.items())[:_SHOWN_REJECTIONS]
        more = len(opinion.rejected) - len(named) + opinion.unnamed_rejections
        parts.append(f"rejected: {', '.join(f'{name} ({why})' for name, why in named)}{_more(more)}")
    return f"Agent {opinion.agent}: {'; '.join(parts)}" if parts else ""


def _more(count: int) -> str:
    return f" and {count} more" if count else ""


def _cut(reason: str) -> str:
    return reason if len(reason) <= _REASON else f"{reason[: _REASON - 1]}…"
