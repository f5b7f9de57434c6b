"""Chooses pods to preempt that make room on one lower node. No IO. The index is unchanged afterwards.

kube-scheduler chooses victims by the virtual node's totals, and the same ones at every attempt. If their room is spread
over several lower nodes, evicting them does not help, while other victims might. An extender may return other victims
(extender/v1, ExtenderPreemptionResult).
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import Demand

_LOWEST_PRIORITY = 2**31


@dataclass(frozen=True, slots=True)
class Mirrored:
    """An upper pod that has a lower pod or a reservation in the index of the lower cluster."""

    uid: str
    key: str
    """UID of the lower pod, or key of the reservation."""
    priority: int


def suffices(index: ClusterIndex, wanted: Demand, keys: Iterable[str]) -> bool:
    """Report whether the pod would fit without the pods with these index keys."""
    with without(index, keys):
        return bool(index.feasible(wanted))


def place_without(index: ClusterIndex, wanted: Demand, keys: Iterable[str]) -> str:
    """Return a node where the pod fits without the pods with these index keys; empty: there is none."""
    with without(index, keys):
        slots = index.feasible(wanted)
        return index.name(slots[0]) if slots else ""


def choose(index: ClusterIndex, wanted: Demand, candidates: Iterable[Mirrored]) -> list[str]:
    """Return UIDs of the upper pods to evict so that the pod fits on one node; empty: preemption does not help.

    As in kube-scheduler, the node is chosen where the most important victim has the lowest priority; ties are decided by
    the sum of priorities, then by the number of victims.
    """
    by_node: defaultdict[str, list[Mirrored]] = defaultdict(list)
    for candidate in candidates:
        placed = index.placed(candidate.key)
        if placed is not None:
            by_node[placed.node].append(candidate)
    found = [victims for node, there in by_node.items() if (victims := _on_node(index, wanted, node, there))]
    return [one.uid for one in min(found, key=_cost)] if found else []


def _on_node(index: ClusterIndex, wanted: Demand, node: str, candidates: list[Mirrored]) -> list[Mirrored]:
    """Return the victims on one node. Candidates are kept while the pod still fits, those with the highest priority first."""
    candidates.sort(key=lambda one: (-one.priority, one.uid))
    with without(index, [one.key for one in candidates]) as put_back:
        if not index.feasible(wanted, only=node):
            return []
        victims = []
        for candidate in candidates:
            lift = put_back(candidate.key)
            if not index.feasible(wanted, only=node):
                lift()
                victims.append(candidate)
    return victims


def _cost(victims: list[Mirrored]) -> tuple[int, int, int]:
    priorities = [one.priority for one in victims]
    return max(priorities, default=0), sum(one + _LOWEST_PRIORITY for one in priorities), len(victims)


@contextlib.contextmanager
def without(index: ClusterIndex, keys: Iterable[str]) -> Iterator[Callable[[str], Callable[[], object]]]:
    """Remove pods from the index inside the block. Yields a function that puts one pod back and returns its undo."""
    lifted = {key: placed for key in keys if (placed := index.remove(key)) is not None}

    def put_back(key: str) -> Callable[[], object]:
        index.place(key, lifted[key])
        return lambda: index.remove(key)

    try:
        yield put_back
    finally:
        for key, placed in lifted.items():
            index.place(key, placed)
