"""Preemption that helps: pods whose end makes room on one lower node. Pure but for the index, which is left as it was.

kube-scheduler chooses victims by the virtual node's sum, the same ones at every try. Where their room lies on several
lower nodes they would end for nothing, while others might do. An extender may name other victims (extender/v1,
ExtenderPreemptionResult).
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from multi_scheduler.fit.cluster.index import ClusterIndex
from multi_scheduler.fit.cluster.pod_requirements import Demand

_LOWEST_PRIORITY = 2**31


@dataclass(frozen=True, slots=True)
class Mirrored:
    """An upper pod and what its lower pod takes room as."""

    uid: str
    key: str
    """In the index."""
    priority: int


def suffices(index: ClusterIndex, wanted: Demand, keys: Iterable[str]) -> bool:
    """Whether a pod would fit if these were gone."""
    with _without(index, keys):
        return bool(index.feasible(wanted))


def choose(index: ClusterIndex, wanted: Demand, candidates: Iterable[Mirrored]) -> list[str]:
    """Whose end makes room for a pod on one node: upper uids; empty when nobody's does.

    Of several nodes the one where the most important victim is least important, then by the sum of priorities, then
    by the number of victims, as kube-scheduler chooses between nodes.

    Args:
        index: the lower cluster.
        wanted: what the pod asks.
        candidates: those that may go.
    """
    by_node: defaultdict[str, list[Mirrored]] = defaultdict(list)
    for candidate in candidates:
        placed = index.placed(candidate.key)
        if placed is not None:
            by_node[placed.node].append(candidate)
    found = [victims for node, there in by_node.items() if (victims := _on_node(index, wanted, node, there))]
    return [one.uid for one in min(found, key=_cost)] if found else []


def _on_node(index: ClusterIndex, wanted: Demand, node: str, candidates: list[Mirrored]) -> list[Mirrored]:
    """As few as it takes of those on one node; the most important are let off first."""
    candidates.sort(key=lambda one: (-one.priority, one.uid))
    with _without(index, [one.key for one in candidates]) as put_back:
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
def _without(index: ClusterIndex, keys: Iterable[str]) -> Iterator[Callable[[str], Callable[[], object]]]:
    """The index less some pods, inside the block; yields what puts one back, and returns what takes it out again."""
    lifted = {key: placed for key in keys if (placed := index.remove(key)) is not None}

    def put_back(key: str) -> Callable[[], object]:
        index.place(key, lifted[key])
        return lambda: index.remove(key)

    try:
        yield put_back
    finally:
        for key, placed in lifted.items():
            index.place(key, placed)
