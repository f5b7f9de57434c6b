"""Runs arrivals against one cluster or several, by policy.

In one cluster a policy chooses the node. With several clusters it chooses the cluster with the best node, or
with the best of the nodes that the lower schedulers will choose. The lower schedulers then choose the node.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hack.placement.cluster import Cluster, Lower, Score
from hack.placement.policies import POLICIES, has_room
from hack.placement.trace import GPU, UNITS, Task, demand_of
from multi_scheduler.agents.fragmentation import BETWEEN_CLUSTERS, Fragmentation, Workload, shape_of
from multi_scheduler.state.cluster import scoring

LIKELY, LEARNED, FIRST = "likely", "learned", "first"
"""In names of FGD variants: a ``likely`` one scores the node that the lower scheduler will choose, a ``learned`` one
learns the workload, and a ``first`` one chooses the first of the nodes with equal classes of the gradient, as published."""
_LEARNED_EVERY = 100
_HALF_LIFE = 2000


@dataclass(frozen=True, slots=True)
class Run:
    """Parameters of a simulation."""

    policy: str
    clusters: int
    lower: Lower | None
    """Scheduler of the lower clusters; None: the policy chooses the node."""
    seed: int


class Simulation:
    """The state of one run."""

    def __init__(self, run: Run, nodes: Sequence[Mapping[str, Any]], tasks: Sequence[Task]) -> None:
        """Distribute the nodes, in random order, to the clusters.

        The order also matters in a single cluster, where the first of equal nodes is chosen. The published evaluation orders
        them at random, too.

        Args:
            run: the parameters.
            nodes: of the trace.
            tasks: of the trace, which FGD knows in advance unless it learns them.
        """
        self._run = run
        self._random = random.Random(run.seed + 1000)  # noqa: S311 - a simulation is to be repeatable
        dealt = list(nodes)
        self._random.shuffle(dealt)
        self.clusters = [Cluster(dealt[number :: run.clusters]) for number in range(run.clusters)]
        self._learns = LEARNED in run.policy
        self._workload = Workload(half_life=_HALF_LIFE if self._learns else 1e12)
        if run.policy.startswith("FGD") and not self._learns:
            for task in tasks:
                self._learn(task)
        self._look_at_workload()
        self._arrived = 0
        self._free: list[dict[str, int]] = [dict(cluster.index.total) for cluster in self.clusters]
        """By cluster: the free resources of a virtual node without the multi-scheduler, pending tasks subtracted."""

    def arrive(self, task: Task) -> bool:
        """Schedule a task; return whether it has a node."""
        self._arrived += 1
        if self._learns:
            self._learn(task)
            if self._workload.seen % _LEARNED_EVERY == 1:
                self._look_at_workload()
        chosen = self._choose(task)
        if chosen is None:
            return False
        number, slot, device = chosen
        cluster = self.clusters[number]
        if self._run.policy == "SumOfCapacity":
            for resource, count in demand_of(task).requests.items():
                self._free[number][resource] -= count
            if not cluster.feasible(task):
                return False  # bound to a cluster without a node for it
        if self._run.lower is not None:
            slot, device = cluster.choose(task, self._run.lower), -1
        cluster.place(f"task-{self._arrived}", task, slot, device)
        return True

    def _choose(self, task: Task) -> tuple[int, int, int] | None:
        """Return the cluster, its node, and the free units of the GPU to use (-1: any node or GPU); None: no room."""
        policy = self._run.policy
        if policy == "SumOfCapacity":
            return self._by_sums(task)
        having = [number for number, cluster in enumerate(self.clusters) if cluster.feasible(task)]
        if not having:
            return None
        if policy == "Random":
            return self._at_random(task, having)
        if policy == "fit":
            scores = [self._fit(number, task) for number in having]
            return having[scores.index(max(scores))], -1, -1
        if policy.startswith("FGD"):
            return self._by_gradient(task, having)
        found = [self.clusters[number].best(task, policy, POLICIES[policy]) for number in having]
        best = max(range(len(having)), key=lambda place: found[place][0])
        return having[best], found[best][1], -1

    def _fit(self, number: int, task: Task) -> float:
        index = self.clusters[number].index
        predicted = scoring.predict(index, demand_of(task), self.clusters[number].feasible(task))
        return scoring.score(index, predicted, "BestFit")

    def _by_gradient(self, task: Task, having: Sequence[int]) -> tuple[int, int, int]:
        """Choose among the best nodes of the clusters, or those that their schedulers will choose."""
        shape, found = shape_of(demand_of(task), GPU), []
        for number in having:
            cluster = self.clusters[number]
            if self._run.lower is not None and LIKELY in self._run.policy:
                slot = cluster.choose(task, self._run.lower)
                [key] = self._fragmentation.keys(cluster.index, shape, [slot], width=BETWEEN_CLUSTERS)
                found.append((key, number, slot))
            else:
                score, slot = cluster.best(task, "FGD", self._score)
                found.append((-score, number, slot))
        _key, number, slot = min(found)
        [step] = self._fragmentation.steps(self.clusters[number].index, shape, [slot])
        return number, slot, step.device

    def _by_sums(self, task: Task) -> tuple[int, int, int] | None:
        """Choose the virtual node with room and the largest free share, by sums over its nodes (LeastAllocated)."""
        demand = demand_of(task)
        shares = [
            sum(free[resource] / cluster.index.total[resource] for resource in ("cpu", "memory"))
            if has_room(free, demand)
            else -1.0
            for free, cluster in zip(self._free, self.clusters, strict=True)
        ]
        high = max(shares)
        return None if high < 0 else (shares.index(high), -1, -1)

    def _at_random(self, task: Task, having: Sequence[int]) -> tuple[int, int, int]:
        cluster = self.clusters[number := self._random.choice(having)]
        slot = self._random.choice(cluster.feasible(task))
        fitting = [left for left in cluster.index.devices[GPU].free[slot] if left >= task.share]
        return number, slot, self._random.choice(fitting) if task.units else -1

    def _learn(self, task: Task) -> None:
        demand = demand_of(task)
        self._workload.add(f"{self._workload.seen}", shape_of(demand, GPU), demand.spec)

    def _look_at_workload(self) -> None:
        fragmentation = self._fragmentation = Fragmentation(self._workload.typical(), GPU, UNITS)

        def score(cluster: Cluster, task: Task, slots: Sequence[int]) -> list[float]:
            shape = shape_of(demand_of(task), GPU)
            if FIRST in self._run.policy:
                return [-step.level for step in fragmentation.steps(cluster.index, shape, slots)]
            return [-key for key in fragmentation.keys(cluster.index, shape, slots)]

        self._score: Score = score


def simulate(
    run: Run, nodes: Sequence[Mapping[str, Any]], tasks: Sequence[Task], arriving: Sequence[Task]
) -> list[float]:
    """Return the share of GPU units that is allocated, in percent, by percent of GPU units that have arrived.

    Each value is the mean over the arrivals that round to its percentage, as in the published evaluation.
    """
    simulation = Simulation(run, nodes, tasks)
    capacity = sum(cluster.index.total[GPU] for cluster in simulation.clusters)
    arrived = allocated = 0
    sums: dict[int, list[float]] = {}
    for task in arriving:
        arrived += task.units
        if simulation.arrive(task):
            allocated += task.units
        entry = sums.setdefault(round(100 * arrived / capacity), [0.0, 0.0])
        entry[0] += 100 * allocated / capacity
        entry[1] += 1
    found, last = [], 0.0
    for percent in range(max(sums) + 1):
        if percent in sums:
            last = sums[percent][0] / sums[percent][1]
        found.append(round(last, 2))
    return found
