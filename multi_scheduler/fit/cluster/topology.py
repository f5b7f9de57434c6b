"""Pods among pods: spreading, affinity and anti-affinity between single nodes, by kube-scheduler's rules. Pure.

Source: kube-scheduler's plug-ins PodTopologySpread and InterPodAffinity. Topology is ``kubernetes.io/hostname``
alone: other keys are judged above (``virtual_node.translate``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from multi_scheduler.fit.cluster.node_filter import Admitting
from multi_scheduler.fit.cluster.pod_info import Placed
from multi_scheduler.fit.cluster.pod_requirements import Demand, Term


@dataclass(frozen=True, slots=True)
class Company:
    """Who is where in one lower cluster: the index's own dicts, read only."""

    names: Sequence[str]
    """Of the nodes, by slot; empty: there is none."""
    by_node: Mapping[str, Mapping[str, Placed]]
    everybody: Mapping[str, Placed]
    with_anti_affinity: Mapping[str, Placed]

    def on(self, slot: int) -> Collection[Placed]:
        """What is on the node in a slot."""
        return self.by_node.get(self.names[slot], {}).values()


def remaining(
    slots: Sequence[int], demand: Demand, company: Company, admitting: Admitting, told: Counter[str]
) -> list[int]:
    """Those of the slots whose company suits the pod.

    Args:
        slots: of the nodes that have room.
        demand: what the pod asks.
        company: who is there.
        admitting: asked for the nodes among which pods are spread.
        told: counted up by why the others do not suit, in kube-scheduler's words.
    """
    found = list(slots)
    if demand.spread:
        found = _spread(found, demand, company, admitting, told)
    if demand.affinity:
        found = _near(found, demand, company, told)
    if demand.anti_affinity or company.with_anti_affinity:
        found = _apart(found, demand, company, told)
    return found


def _spread(
    slots: list[int], demand: Demand, company: Company, admitting: Admitting, told: Counter[str]
) -> list[int]:
    for constraint in demand.spread:
        # Nodes without room are domains, too, and by default even those whose taints keep the pod out.
        domains = admitting.ask(constraint.domain_key, constraint.domain_spec).slots
        counts = {
            slot: sum(
                placed.namespace == demand.namespace
                and not placed.is_ending
                and constraint.matches(placed.labels)
                for placed in company.on(slot)
            )
            for slot in domains
        }
        lowest = min(counts.values(), default=0) if len(counts) >= constraint.min_domains else 0
        itself = int(constraint.matches(demand.labels))
        kept = [slot for slot in slots if counts[slot] + itself - lowest <= constraint.max_skew]
        if len(kept) < len(slots):
            told["node(s) didn't match pod topology spread constraints"] += len(slots) - len(kept)
        slots = kept
    return slots


def _near(slots: list[int], demand: Demand, company: Company, told: Counter[str]) -> list[int]:
    # All terms are about one and the same pod.
    homes = {
        placed.node
        for placed in company.everybody.values()
        if all(_meant(term, placed) for term in demand.affinity)
    }
    is_first = not homes and all(
        term.covers(demand.namespace) and term.matches(demand.labels) for term in demand.affinity
    )
    if is_first:
        return slots  # of a group that wants to be together
    kept = [slot for slot in slots if company.names[slot] in homes]
    if len(kept) < len(slots):
        told["node(s) didn't match pod affinity rules"] += len(slots) - len(kept)
    return kept


def _apart(slots: list[int], demand: Demand, company: Company, told: Counter[str]) -> list[int]:
    repelling = {
        placed.node
        for placed in company.with_anti_affinity.values()
        for term in placed.anti_affinity
        if term.covers(demand.namespace) and term.matches(demand.labels)
    }
    kept = []
    for slot in slots:
        if company.names[slot] in repelling:
            told["node(s) didn't satisfy existing pods anti-affinity rules"] += 1
        elif any(_meant(term, placed) for term in demand.anti_affinity for placed in company.on(slot)):
            told["node(s) didn't match pod anti-affinity rules"] += 1
        else:
            kept.append(slot)
    return kept


def _meant(term: Term, placed: Placed) -> bool:
    return term.covers(placed.namespace) and term.matches(placed.labels)
