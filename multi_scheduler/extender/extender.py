"""The extender: asks every agent and combines their answers. HTTP is in ``server``.

The agents' answers about a pod are remembered until it is bound. kube-scheduler does not report its choice to extenders,
so the answers are joined with the binding that the informer reports.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from clusterset.model.pod.groups import is_native
from controller_runtime import log, resources
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from multi_scheduler import malformed
from multi_scheduler.agent import Agent
from multi_scheduler.directory import NodeDirectory
from multi_scheduler.extender.protocol import Candidates, Victims
from multi_scheduler.numeric import NEUTRAL
from multi_scheduler.virtual_node import VirtualNode

T = TypeVar("T")
_READ_SECONDS = 5.0
"""Seconds that a call waits for the list of virtual nodes; half of the timeout in ``scheduler_configuration``."""
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


class NotReadyError(Exception):
    """The extender cannot answer yet; the scheduler should retry."""


@dataclass(frozen=True, slots=True)
class Weighted:
    """An agent and the weight of its scores."""

    name: str
    agent: Agent
    weight: float


@dataclass(frozen=True, slots=True)
class Filtered:
    """The answer to a filter call: passing nodes, and reasons by rejected node; preemption may help on ``failed`` nodes."""

    passing: list[str]
    failed: dict[str, str]
    unresolvable: dict[str, str]


@dataclass(eq=False)
class Extender:
    """Filters, prioritizes, preempts and binds.

    Real nodes pass, because the scheduler itself decides about them, unless an agent bars the pod from all of them. Virtual
    nodes of lower clusters that are not configured are rejected (``NodeDirectory.refusal``).
    """

    agents: Sequence[Weighted]
    directory: NodeDirectory
    upper: Client
    scores_real_nodes: bool = False
    bound_to: Callable[[str], str] = lambda _uid: ""
    """Returns the node of a bound pod by its UID; empty: unknown."""

    def __post_init__(self) -> None:
        """Sort the agents so that those with ``is_last`` are asked last."""
        self.agents = sorted(self.agents, key=lambda agent: agent.agent.is_last)
        self._decisions = Decisions()
        self._log = log.get_logger(component="extender")

    def alone(self) -> dict[str, Extender]:
        """Return by agent name an extender that asks only this agent."""
        return {agent.name: replace(self, agents=[agent]) for agent in self.agents}

    async def filter(self, asked: Candidates) -> Filtered:
        """Return the nodes that no agent rejects, and the first reason for each rejected node.

        Raises:
            NotReadyError: the virtual nodes have not been listed yet, or the scheduler must ask again soon.
        """
        virtual = await self._virtual(asked.names, asked.nodes)
        left = list(virtual.values())
        uid = asked.pod["metadata"].get("uid", "")
        self._decisions.begin(uid)
        failed: dict[str, str] = {}
        transient = ""
        unresolvable = self._barred(
            asked.pod, [name for name in asked.names if name not in virtual], asked.nodes
        )
        for weighted in self.agents:
            if not left:
                break
            rejected, unusable = await _ask(left, partial(weighted.agent.filter, asked.pod))
            reasons = {**rejected.resolvable, **rejected.unresolvable, **unusable}
            self._decisions.rejected(uid, weighted.name, weighted.weight, reasons)
            transient = transient or rejected.transient
            failed.update(rejected.resolvable)
            unresolvable.update(rejected.unresolvable)
            unresolvable.update(unusable)
            left = [node for node in left if node.name not in failed and node.name not in unresolvable]
        if len(left) > 1 and is_native(asked.pod["spec"]):
            best = await self._best(asked, left)
            text = f"a pod of a PodGroup gets room on one virtual node, here {best.name}"
            unresolvable |= {node.name: text for node in left if node.name != best.name}
            left = [best]
        for weighted in self.agents:
            try:
                weighted.agent.filtered(asked.pod, left)
            except Exception as error:  # noqa: BLE001 - the answer is known, and a lower cluster may send anything
                malformed.note(left[0].cluster if left else "none", error)
        passing = [name for name in asked.names if name not in failed and name not in unresolvable]
        if transient and not passing:
            raise NotReadyError(transient)
        return Filtered(passing, failed, unresolvable)

    async def _best(self, asked: Candidates, nodes: Sequence[VirtualNode]) -> VirtualNode:
        """Return the virtual node with the highest score.

        The scheduler binds no pod of a PodGroup before enough of them pass, and does not say which nodes it has chosen. So
        each of them would keep room on every node that passes.
        """
        scores = await self.prioritize(replace(asked, names=[node.name for node in nodes]))
        return max(nodes, key=lambda node: scores[node.name])

    async def prioritize(self, asked: Candidates) -> dict[str, float]:
        """Return scores from 0 to 1: the weighted mean over the agents that score.

        Real nodes get 0, unless the usage of the upper cluster is measured.

        Raises:
            NotReadyError: the virtual nodes have not been listed yet.
        """
        found = await self._virtual(asked.names, asked.nodes)
        virtual = list(found.values())
        real = [name for name in asked.names if name not in found] if self.scores_real_nodes else []
        totals = dict.fromkeys(asked.names, 0.0)
        weights = 0.0
        for weighted in self.agents:
            if not weighted.weight or not (virtual or real):
                continue
            known_scores, unusable = await _ask(virtual, partial(weighted.agent.score, asked.pod))
            if known_scores is None:
                continue
            scores = {**known_scores, **dict.fromkeys(unusable, NEUTRAL)}
            if real:
                known = await weighted.agent.score_real(asked.pod, real)
                scores = {**scores, **{name: known.get(name, NEUTRAL) for name in real}}
            uid = asked.pod["metadata"].get("uid", "")
            self._decisions.scored(uid, weighted.name, weighted.weight, scores)
            weights += weighted.weight
            for name, score in scores.items():
                if name not in totals:
                    continue  # the node is not a candidate; only this score is ignored
                totals[name] += weighted.weight * min(1.0, max(0.0, score))
        return {name: total / weights for name, total in totals.items()} if weights else totals

    async def preempt(self, pod: Mapping[str, Any], victims: Mapping[str, Victims]) -> dict[str, Victims]:
        """Return the nodes where evicting the victims makes room in the lower cluster.

        Real nodes are returned unchanged, unless the pod is barred from them. Unknown virtual nodes are left out. So are
        nodes with victims on other nodes, which are pods of a PodGroup that is only evicted as a whole: kube-scheduler
        1.37 fails the whole call if an extender returns such a victim.

        Raises:
            NotReadyError: the virtual nodes have not been listed yet.
        """
        virtual = await self._virtual(list(victims), None)
        barred = self._barred(pod, [name for name in victims if name not in virtual], None)
        kept: dict[str, Victims] = {}
        for name, found in victims.items():
            node = virtual.get(name)
            if name in barred or any(self.bound_to(uid) not in ("", name) for uid in found.uids):
                continue
            uids = found.uids if node is None else await self._chosen(pod, node, found.uids)
            if uids:  # kube-scheduler fails the whole call if a node has no victims
                kept[name] = replace(found, uids=uids)
        return kept

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> str:
        """Bind a pod; return the error, or an empty string."""
        for weighted in self.agents:
            if bar := weighted.agent.bars_binding(uid, node):
                self._log.info("not bound", pod=f"{namespace}/{name}", node=node, error=bar)
                return bar
        found = {
            key: value for agent in self.agents for key, value in agent.agent.annotations(uid, node).items()
        }
        # The API server copies the Binding's annotations to the pod, so the virtual node sees them with the node name.
        body = {
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": found},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            await self.upper.create(
                resources.PODS, {"apiVersion": "v1", "kind": "Binding", **body}, namespace=namespace, name=name,
                subresource="binding",
            )  # fmt: skip
        except ApiError as error:
            self._log.warning("not bound", pod=f"{namespace}/{name}", node=node, error=str(error))
            return str(error)
        for weighted in self.agents:
            weighted.agent.bound(uid, node)
        return ""

    def settle(self, uid: str, node: str) -> str:
        """Return the agents' answers about a newly bound pod as text, and forget them.

        Returns:
            one sentence per agent that answered; empty if the node is not virtual or no agent was asked.
        """
        opinions = self._decisions.settle(uid)
        is_virtual = self.directory.find(node, None) is not None
        return sentence(node, opinions) if opinions is not None and is_virtual else ""

    def _barred(
        self, pod: Mapping[str, Any], others: Sequence[str], nodes: Mapping[str, Mapping[str, Any]] | None
    ) -> dict[str, str]:
        """Return the nodes that a pod must not use, with reasons.

        Args:
            pod: the pod.
            others: candidates that are no virtual nodes of configured clusters.
            nodes: Node objects, as in ``Candidates``.
        """
        bar = next((bar for agent in self.agents if (bar := agent.agent.bars_real_nodes(pod))), "")
        reasons = {
            name: self.directory.refusal(name, nodes[name] if nodes else None) or bar for name in others
        }
        return {name: reason for name, reason in reasons.items() if reason}

    async def _chosen(
        self, pod: Mapping[str, Any], node: VirtualNode, victims: Sequence[str]
    ) -> Sequence[str] | None:
        """Return the victims after all agents have changed them in turn; None if an agent reports that preemption does not help."""
        for weighted in self.agents:
            try:
                chosen = await weighted.agent.preempt(pod, node, victims)
            except Exception as error:  # noqa: BLE001 - a lower cluster may send anything
                malformed.note(node.cluster, error)
                return None
            if chosen is None:
                return None
            victims = chosen
        return victims

    async def _virtual(
        self, names: Sequence[str], nodes: Mapping[str, Mapping[str, Any]] | None
    ) -> dict[str, VirtualNode]:
        if not await self.directory.wait(_READ_SECONDS):
            raise NotReadyError("the upper cluster's nodes have not been read yet")
        found = {}
        for name in names:
            node = self.directory.find(name, nodes.get(name) if nodes is not None else None)
            if node is not None:
                found[name] = node
        return found


async def _ask(
    nodes: Sequence[VirtualNode], ask: Callable[[Sequence[VirtualNode]], Awaitable[T]]
) -> tuple[T, dict[str, str]]:
    """Return an agent's answer, and an error for each virtual node whose cluster has unusable data.

    If the agent fails, it is asked about each cluster alone, so that one cluster cannot make calls fail for the others.
    """
    try:
        return await ask(nodes), {}
    except Exception:  # noqa: BLE001 - agents may be external, and a lower cluster may send anything
        await ask([])  # raises again if the pod is the cause
    errors: dict[str, str] = {}
    for cluster in {node.cluster for node in nodes}:
        there = [node for node in nodes if node.cluster == cluster]
        try:
            await ask(there)
        except Exception as error:  # noqa: BLE001
            errors |= dict.fromkeys((node.name for node in there), malformed.note(cluster, error))
    return await ask([node for node in nodes if node.name not in errors]), errors


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
    sentences = [text for opinion in opinions if (text := _answer_text(opinion, node))]
    if not any(opinion.scores for opinion in opinions):
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
