"""Host ports, topology spread, pod affinity and anti-affinity between single nodes, by kube-scheduler's rules. No IO.

Source: kube-scheduler's plug-ins PodTopologySpread and InterPodAffinity. Only ``kubernetes.io/hostname`` is evaluated;
other topology keys are evaluated in the upper cluster (``virtual_node.translate``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from multi_scheduler.fit.cluster.node_filter import NodeFilter
from multi_scheduler.fit.cluster.pod_info import Placed
from multi_scheduler.fit.cluster.pod_requirements import Demand, Port, Term


@dataclass(frozen=True, slots=True)
class Placements:
    """Placements in one lower cluster: the index's own dicts, read only."""

    names: Sequence[str]
    """Node names by slot; empty: no node."""
    by_node: Mapping[str, Mapping[str, Placed]]
    all_placed: Mapping[str, Placed]
    with_anti_affinity: Mapping[str, Placed]

    def on(self, slot: int) -> Collection[Placed]:
        """Return the placements on the node in a slot."""
        return self.by_node.get(self.names[slot], {}).values()


def remaining(
    slots: Sequence[int],
    demand: Demand,
    placements: Placements,
    node_filter: NodeFilter,
    rejections: Counter[str],
) -> list[int]:
    """Return the slots that satisfy the pod's topology spread and pod (anti-)affinity constraints.

    ``node_filter`` finds the nodes over which pods are spread. ``rejections`` is incremented by the number of rejected
    nodes for each reason, in kube-scheduler's words.
    """
    found = list(slots)
    if demand.spread:
        found = _spread(found, demand, placements, node_filter, rejections)
    if demand.affinity:
        found = _near(found, demand, placements, rejections)
    if demand.anti_affinity or placements.with_anti_affinity:
        found = _apart(found, demand, placements, rejections)
    return found


def without_conflicts(
    slots: Sequence[int], ports: Sequence[Port], placements: Placements, rejections: Counter[str]
) -> list[int]:
    """Return the slots of the nodes where no pod uses one of the host ports; count the others in ``rejections``."""
    addresses: dict[tuple[str, int], set[str]] = {}
    for address, protocol, number in ports:
        addresses.setdefault((protocol, number), set()).add(address)
    kept = [
        slot
        for slot in slots
        if not any(
            port[1:] in addresses and _overlap(port[0], addresses[port[1:]])
            for placed in placements.on(slot)
            for port in placed.ports
        )
    ]
    if len(kept) < len(slots):
        rejections["node(s) didn't have free ports for the requested pod ports"] += len(slots) - len(kept)
    return kept


def _overlap(address: str, others: Collection[str]) -> bool:
    """Report whether a host IP conflicts with one of the others; empty: all addresses."""
    return not address or "" in others or address in others


def _spread(
    slots: list[int],
    demand: Demand,
    placements: Placements,
    node_filter: NodeFilter,
    rejections: Counter[str],
) -> list[int]:
    for constraint in demand.spread:
        # Nodes without room are domains as well, by default also those with taints that reject the pod.
        domains = node_filter.ask(constraint.domain_key, constraint.domain_spec).slots
        counts = {
            slot: sum(
                placed.namespace == demand.namespace
                and not placed.is_ending
                and constraint.matches(placed.labels)
                for placed in placements.on(slot)
            )
            for slot in domains
        }
        lowest = min(counts.values(), default=0) if len(counts) >= constraint.min_domains else 0
        itself = int(constraint.matches(demand.labels))
        kept = [slot for slot in slots if counts[slot] + itself - lowest <= constraint.max_skew]
        if len(kept) < len(slots):
            rejections["node(s) didn't match pod topology spread constraints"] += len(slots) - len(kept)
        slots = kept
    return slots


def _near(slots: list[int], demand: Demand, placements: Placements, rejections: Counter[str]) -> list[int]:
    # One existing pod must match all terms.
    homes = {
        placed.node
        for placed in placements.all_placed.values()
        if all(_meant(term, placed) for term in demand.affinity)
    }
    is_first = not homes and all(
        term.covers(demand.namespace) and term.matches(demand.labels) for term in demand.affinity
    )
    if is_first:
        return slots  # the first pod that matches its own terms may go anywhere
    kept = [slot for slot in slots if placements.names[slot] in homes]
    if len(kept) < len(slots):
        rejections["node(s) didn't match pod affinity rules"] += len(slots) - len(kept)
    return kept


def _apart(slots: list[int], demand: Demand, placements: Placements, rejections: Counter[str]) -> list[int]:
    repelling = {
        placed.node
        for placed in placements.with_anti_affinity.values()
        for term in placed.anti_affinity
        if term.covers(demand.namespace) and term.matches(demand.labels)
    }
    kept = []
    for slot in slots:
        if placements.names[slot] in repelling:
            rejections["node(s) didn't satisfy existing pods anti-affinity rules"] += 1
        elif any(_meant(term, placed) for term in demand.anti_affinity for placed in placements.on(slot)):
            rejections["node(s) didn't match pod anti-affinity rules"] += 1
        else:
            kept.append(slot)
    return kept


def _meant(term: Term, placed: Placed) -> bool:
    return term.covers(placed.namespace) and term.matches(placed.labels)
