"""Host ports, topology spread, pod affinity and anti-affinity in one lower cluster, by kube-scheduler's rules. No IO.

Source: kube-scheduler's plug-ins PodTopologySpread and InterPodAffinity. Of the pod's own terms and constraints, the lower
pod has only those with topology key ``kubernetes.io/hostname`` (``clusterset.model.pod.lower_spec``). Anti-affinity
of existing lower pods may have any key. A domain is the value of the key's label, which need not be a node's name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from clusterset.model.names import LABEL_HOSTNAME
from multi_scheduler.state.cluster.node_filter import Node, NodeFilter
from multi_scheduler.state.cluster.pod_requirements import Demand, NamespaceLabels, Placed, Port, Term

MISSING_LABEL = "node(s) didn't match pod topology spread constraints (missing required label)"


@dataclass(frozen=True, slots=True)
class Placements:
    """Nodes, namespaces and placements of one lower cluster: the index's own lists and dicts, read only."""

    nodes: Sequence[Node | None]
    """By slot; None: no node."""
    slots: Mapping[str, int]
    """By node name."""
    by_node: Mapping[str, Mapping[str, Placed]]
    all_placed: Mapping[str, Placed]
    with_anti_affinity: Mapping[str, Placed]
    namespaces: NamespaceLabels

    def on(self, slot: int) -> Collection[Placed]:
        """Return the placements on the node in a slot."""
        node = self.nodes[slot]
        return self.by_node.get(node.name, {}).values() if node is not None else ()

    def label(self, slot: int | None, key: str) -> str | None:
        """Return the value of a label of the node in a slot; None: no such node or label."""
        node = self.nodes[slot] if slot is not None else None
        return node.labels.get(key) if node is not None else None

    def host(self, slot: int) -> str | None:
        """Return the value of the node's label ``kubernetes.io/hostname``; None: no such node or label."""
        return self.label(slot, LABEL_HOSTNAME)


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
        found = _apart(found, demand, placements, node_filter, rejections)
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
    labelled = [slot for slot in slots if placements.host(slot) is not None]
    if len(labelled) < len(slots):
        rejections[MISSING_LABEL] += len(slots) - len(labelled)
    slots = labelled
    for constraint in demand.spread:
        # Nodes without room are domains as well, by default also those with taints that reject the pod.
        domains = node_filter.ask(constraint.domain_key, constraint.domain_spec).slots
        counts: dict[str | None, int] = {}
        for slot in domains:
            if (host := placements.host(slot)) is not None:
                counts[host] = counts.get(host, 0) + sum(
                    placed.namespace == demand.namespace
                    and not placed.is_ending
                    and constraint.counts(placed.labels)
                    for placed in placements.on(slot)
                )
        lowest = min(counts.values(), default=0) if len(counts) >= constraint.min_domains else 0
        most = constraint.max_skew + lowest - constraint.counts_itself
        kept = [slot for slot in slots if counts.get(placements.host(slot), 0) <= most]
        if len(kept) < len(slots):
            rejections["node(s) didn't match pod topology spread constraints"] += len(slots) - len(kept)
        slots = kept
    return slots


def _near(slots: list[int], demand: Demand, placements: Placements, rejections: Counter[str]) -> list[int]:
    terms = [term for term in demand.affinity if term.is_known(placements.namespaces)]
    if not terms:
        return slots

    @cache
    def is_covered(namespace: str) -> bool:
        return all(term.covers(namespace, placements.namespaces) for term in terms)

    # One existing pod must match all terms.
    homes = {
        placements.label(placements.slots.get(placed.node), LABEL_HOSTNAME)
        for placed in placements.all_placed.values()
        if is_covered(placed.namespace) and all(term.matches(placed.labels) for term in terms)
    } - {None}
    is_first = (
        not homes and is_covered(demand.namespace) and all(term.matches(demand.labels) for term in terms)
    )
    kept = [
        slot
        for slot in slots
        # The first pod that matches its own terms may go to any node with a hostname label.
        if (host := placements.host(slot)) is not None and (is_first or host in homes)
    ]
    if len(kept) < len(slots):
        rejections["node(s) didn't match pod affinity rules"] += len(slots) - len(kept)
    return kept


def _apart(
    slots: list[int],
    demand: Demand,
    placements: Placements,
    node_filter: NodeFilter,
    rejections: Counter[str],
) -> list[int]:
    terms = [term for term in demand.anti_affinity if term.is_known(placements.namespaces)]
    hosts = node_filter.slots_by_label(LABEL_HOSTNAME) if terms else {}
    repelling = _repelling(demand, placements)
    kept = []
    for slot in slots:
        # A node without the label is in no domain, so no pod repels others from it.
        if any(
            _is_meant(term, placed.namespace, placed.labels, placements)
            for term in terms
            for neighbour in hosts.get(placements.host(slot), ())
            for placed in placements.on(neighbour)
        ):
            rejections["node(s) didn't match pod anti-affinity rules"] += 1
        elif any(placements.label(slot, key) in values for key, values in repelling.items()):
            rejections["node(s) didn't satisfy existing pods anti-affinity rules"] += 1
        else:
            kept.append(slot)
    return kept


def _repelling(demand: Demand, placements: Placements) -> dict[str, set[str]]:
    """Return the domains from which existing pods' anti-affinity repels the pod: values by topology key."""
    found: dict[str, set[str]] = {}
    for placed in placements.with_anti_affinity.values():
        slot = placements.slots.get(placed.node)
        for term in placed.anti_affinity:
            value = placements.label(slot, term.topology_key)
            if (
                value is not None
                and term.is_known(placements.namespaces)
                and _is_meant(term, demand.namespace, demand.labels, placements)
            ):
                found.setdefault(term.topology_key, set()).add(value)
    return found


def _is_meant(term: Term, namespace: str, labels: Mapping[str, str], placements: Placements) -> bool:
    """Report whether a term selects a pod with this namespace and these labels."""
    return term.covers(namespace, placements.namespaces) and term.matches(labels)
