"""Predicts the lower nodes of a pod in all lower clusters, without reserving room. No IO."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusterset.model.pod.conditions import claim_names
from multi_scheduler import malformed
from multi_scheduler.state import placing
from multi_scheduler.state.admission import GateResult
from multi_scheduler.state.cluster.filters import MISSING_LABEL
from multi_scheduler.state.cluster.limits import TooManyRequirementsError
from multi_scheduler.state.cluster.pod_requirements import Demand, demand, placed_on
from multi_scheduler.state.cluster.scoring import Prediction, predict
from multi_scheduler.state.lower_state import LowerState, StateSettings
from multi_scheduler.state.placing import Entry, Work
from multi_scheduler.state.reservations import Place
from multi_scheduler.virtual_node import VirtualNode

_MOST_REASONS = 20
_LONGEST = 200
"""Characters of a reason."""


def no_fit(total: int, reasons: Mapping[str, int]) -> str:
    """Return ``0/40 nodes are available: 31 Insufficient cpu, 9 node(s) were unschedulable``.

    The words are kube-scheduler's (``framework.FitError``). The text has no full stop, because kube-scheduler appends
    one to the whole sentence.
    """
    if not total:
        return "0/0 nodes are available: the lower cluster has no nodes"
    # A lower cluster may have a different taint on each node.
    largest = heapq.nlargest(_MOST_REASONS, reasons.items(), key=lambda item: item[1])
    counts = sorted(f"{count} {reason[:_LONGEST]}" for reason, count in largest if count)
    return (
        f"0/{total} nodes are available: {', '.join(counts)}" if counts else f"0/{total} nodes are available"
    )


_OTHERS_WAY = (
    "Insufficient ",
    "Too many pods",
    "node(s) didn't have free ports",
    "node(s) didn't match pod anti-affinity",
    "node(s) didn't satisfy existing pods anti-affinity",
    "node(s) didn't match pod topology spread",
)
"""Reasons that kube-scheduler's plug-ins report as Unschedulable, not as UnschedulableAndUnresolvable."""


def is_resolvable(reasons: Mapping[str, int]) -> bool:
    """Report whether evicting pods may help on any of the nodes."""
    return any(reason.startswith(_OTHERS_WAY) and reason != MISSING_LABEL for reason in reasons)


@dataclass(slots=True)
class Judgement:
    """Results for all virtual nodes of a call, by virtual node."""

    judged: dict[str, Prediction] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    resolvable: dict[str, str] = field(default_factory=dict)
    unresolvable: dict[str, str] = field(default_factory=dict)
    retryable: list[tuple[str, Demand | None]] = field(default_factory=list)
    """Lower clusters where a retry may succeed, with the pod's demand if room was lacking, or None if a quota refused."""
    counted_by: float = 0.0
    """Time by which the quota controller recounts the refusing quotas, by the event loop's clock; 0: none is due."""
    lacking: dict[str, tuple[Demand, GateResult]] = field(default_factory=dict)
    """By virtual node where only room is lacking: what the pod needs, and its admission."""
    unknown: set[str] = field(default_factory=set)
    """Rejected virtual nodes that may have room: the lower cluster is not known well enough now."""

    @property
    def rejected(self) -> int:
        """Return the number of rejected virtual nodes."""
        return len(self.resolvable) + len(self.unresolvable)


_NEW = ""
"""Index key of the pod that is judged, during the search for room."""


@dataclass(eq=False)
class Judge:
    """Predicts admission and lower nodes."""

    settings: StateSettings
    clusters: Mapping[str, LowerState]
    """By name; virtual nodes of other lower clusters pass."""
    entries: Callable[[str], Collection[Entry]] = lambda _cluster: ()
    """Returns the reservations in a lower cluster, which may make way for a pod."""

    def judge(
        self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode], *, moves_others: bool = True
    ) -> Judgement:
        """Predict the pod's lower node behind each virtual node, or the reason for rejection.

        Malformed data of a lower cluster rejects only the nodes of this cluster. With ``moves_others``, other reservations
        may make way for the pod.
        """
        judgement = Judgement()
        demands: dict[Any, Demand] = {}
        has_claims = bool(claim_names(pod))
        for node in nodes:
            try:
                self._judge_node(pod, node, judgement, demands, has_claims=has_claims)
            except TooManyRequirementsError as error:
                judgement.unresolvable[node.name] = str(error)
            except Exception as error:  # noqa: BLE001 - a lower cluster may send anything
                judgement.unresolvable[node.name] = malformed.note(node.cluster, error)
        if moves_others:
            self._move_others(nodes, judgement)
        return judgement

    def _judge_node(
        self,
        pod: Mapping[str, Any],
        node: VirtualNode,
        judgement: Judgement,
        demands: dict[Any, Demand],
        *,
        has_claims: bool,
    ) -> None:
        """Add the result for one virtual node to ``found``. ``demands`` caches demands by what they depend on.

        With claims, every virtual node needs its own demand, because volumes may exist in its lower cluster.
        """
        lower = self.clusters.get(node.cluster)
        if lower is None:
            return  # not a configured lower cluster, so the node passes
        if trouble := lower.feed.trouble():
            if self.settings.unreachable == "Reject":
                judgement.unresolvable[node.name] = (
                    f"lower cluster {node.cluster} cannot be looked into: {trouble}"
                )
                judgement.unknown.add(node.name)
            return
        gated = lower.gate.judge(pod, node)
        if gated.refusal:
            judgement.unresolvable[node.name] = gated.refusal
            judgement.counted_by = max(judgement.counted_by, gated.counted_by)
            if gated.may_change:
                judgement.retryable.append((node.cluster, None))
            return
        wanted = demands.get(gated.demand_key)
        if wanted is None or has_claims:
            wanted = demands[gated.demand_key] = self.demand(gated, node)
        rejections: Counter[str] = Counter()
        index = lower.index
        if slots := index.feasible(wanted, rejections):
            predicted = judgement.judged[node.name] = predict(index, wanted, slots, self.settings.lower)
            judgement.places[node.name] = _place(node, wanted, predicted.place.node, gated)
        else:
            sentence = f"lower cluster {node.cluster}: {no_fit(len(index), rejections)}"
            rejected = judgement.resolvable if is_resolvable(rejections) else judgement.unresolvable
            rejected[node.name] = sentence
            judgement.retryable.append((node.cluster, wanted))
            judgement.lacking[node.name] = wanted, gated

    def _move_others(self, nodes: Sequence[VirtualNode], judgement: Judgement) -> None:
        """Let other reservations make way for the pod where it lacks room.

        Two arrangements in one cluster would not know of each other, and neither would one know of a place that the pod
        already has there. So the pod gets at most one place in such a cluster.
        """
        work = Work()
        for node in nodes:
            if node.name not in judgement.lacking or node.cluster in {
                place.cluster for place in judgement.places.values()
            }:
                continue
            wanted, gated = judgement.lacking[node.name]
            index, entry = self.clusters[node.cluster].index, Entry(_NEW, wanted)
            try:
                moves = placing.make_room(index, entry, self.entries(node.cluster), work)
            except Exception as error:  # noqa: BLE001 - a lower cluster may send anything
                judgement.resolvable.pop(node.name, None)
                judgement.unresolvable[node.name] = malformed.note(node.cluster, error)
                continue
            if moves is not None:
                name = moves.pop(_NEW)
                judgement.judged[node.name] = Prediction(placed_on(name, wanted), 0.0, [name], wanted)
                judgement.places[node.name] = replace(_place(node, wanted, name, gated), moves=moves)
                for rejected in (judgement.resolvable, judgement.unresolvable, judgement.lacking):
                    rejected.pop(node.name, None)
            elif work.is_spent:
                judgement.unknown.add(node.name)

    def grow(self, nodes: Sequence[VirtualNode], judgement: Judgement) -> None:
        """Add to a result without places the best node that a lower cluster may add, and reasons where no new node helps."""
        offers = []
        for node in nodes:
            lower = self.clusters.get(node.cluster)
            if lower is None or not lower.futures or node.name not in judgement.lacking:
                continue
            futures = lower.futures
            wanted, gated = judgement.lacking[node.name]
            if (offer := futures.offer(wanted)) is not None:
                offers.append((offer.rank, node.name, node, offer, wanted, gated))
            else:
                for rejected in (judgement.resolvable, judgement.unresolvable):
                    if node.name in rejected:
                        rejected[node.name] += f"; {futures.why_not(wanted)}"
        if offers:
            _, name, node, offer, wanted, gated = min(offers, key=lambda offer: offer[:2])
            predicted = replace(
                predict(self.clusters[node.cluster].futures.index, wanted, [offer.slot], self.settings.lower),
                price=offer.kind.shape.price,
            )
            judgement.judged[name] = predicted
            judgement.places[name] = replace(
                _place(node, wanted, predicted.place.node, gated), is_future=True
            )
            judgement.resolvable.pop(name, None)
            judgement.unresolvable.pop(name, None)

    def demand(self, gated: GateResult, node: VirtualNode) -> Demand:
        """Return an admitted pod's requirements for the lower nodes behind a virtual node."""
        feed, pod = self.clusters[node.cluster].feed, gated.pod
        namespace = pod["metadata"].get("namespace", "")
        volumes = [
            found
            for claim in claim_names(pod)
            if (found := feed.volume_affinity(namespace, claim)) is not None
        ]
        return demand(pod, volumes)


def _place(node: VirtualNode, wanted: Demand, lower: str, gated: GateResult) -> Place:
    return Place(node.cluster, wanted, lower, gated.charge, can_prefer=gated.can_prefer)
