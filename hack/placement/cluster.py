"""One simulated lower cluster: the multi-scheduler's ``ClusterIndex``, and schedulers that choose nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hack.placement.trace import GPU, UNITS, Task, demand_of
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import Demand, Placed

Lower = Literal["LeastAllocated", "MostAllocated"]
Score = Callable[["Cluster", Task, Sequence[int]], list[float]]


@dataclass(slots=True)
class _Scores:
    """Scores of one function for one task."""

    score: Score
    values: list[float]
    """By slot; only those of nodes with room are current."""
    seen: int = -1
    """Number of placements that are taken into account; negative: nothing is scored yet."""


@dataclass(slots=True)
class _TaskState:
    """The nodes that have room for one kind of task, and their scores."""

    seen: int
    slots: list[int]
    """Slots of nodes with room, ascending."""
    scores: dict[str, _Scores] = field(default_factory=dict)


class Cluster:
    """Nodes, the tasks on them, and the data that policies read."""

    def __init__(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        """Create a cluster without tasks."""
        self.index = ClusterIndex({GPU: UNITS})
        for node in nodes:
            self.index.upsert_node(node)
        self._placed: list[int] = []
        self._asked: dict[Demand, _TaskState] = {}
        self.size = len(nodes)
        self.kinds: list[Counter[str]] = [Counter() for _ in nodes]
        """By slot: number of tasks of each kind of GPU request."""
        self.cpu, self.memory, self.gpu = (
            [max(1, count) for count in self.index.free(resource)] for resource in ("cpu", "memory", GPU)
        )

    def feasible(self, task: Task) -> list[int]:
        """Return the slots of the nodes that have room for a task, in order.

        Tasks do not end in a simulation, so a node without room for a task never has room for it again.
        """
        demand = demand_of(task)
        asked = self._asked.get(demand)
        if asked is None:
            asked = self._asked[demand] = _TaskState(len(self._placed), sorted(self.index.feasible(demand)))
        elif asked.slots and asked.seen < len(self._placed):
            changed = set(self._placed[asked.seen :])
            asked.seen = len(self._placed)
            if full := changed.difference(self._having(demand, changed)):
                asked.slots = [slot for slot in asked.slots if slot not in full]
        return asked.slots

    def best(self, task: Task, name: str, score: Score) -> tuple[float, int]:
        """Return the highest score and the first slot with it.

        Args:
            task: the task; at least one node must have room for it.
            name: name of the score function, the key of its cache.
            score: scores slots; a score depends only on the state of its node.
        """
        slots = self.feasible(task)
        demand = demand_of(task)
        asked = self._asked[demand].scores
        known = asked.get(name)
        if known is None or known.score is not score:
            known = asked[name] = _Scores(score, [0.0] * self.size)
        changed = slots if known.seen < 0 else self._having(demand, set(self._placed[known.seen :]))
        known.seen = len(self._placed)
        for slot, found in zip(changed, score(self, task, changed), strict=True):
            known.values[slot] = found
        best = max(slots, key=known.values.__getitem__)
        return known.values[best], best

    def _having(self, demand: Demand, slots: Iterable[int]) -> list[int]:
        having = list(slots)
        for resource, count in demand.requests.items():
            column = self.index.free(resource)
            having = [slot for slot in having if column[slot] >= count]
            if resource in self.index.devices:
                having = self.index.devices[resource].fitting(having, count)
        return having

    def place(self, name: str, task: Task, slot: int, device: int = -1) -> None:
        """Put a task on a node.

        Args:
            name: name of the task.
            task: the task with its requests.
            slot: slot of the node.
            device: the free units of the GPU to share; -1: the GPU with the fewest free units that suffice.
        """
        devices: tuple[int, ...] = ()
        if device >= 0 and 0 < task.units < UNITS:
            devices = (self.index.devices[GPU].free[slot].index(device),)
        self.index.place(name, Placed(self.index.name(slot), demand_of(task).requests, devices=devices))
        self._placed.append(slot)
        if task.units:
            self.kinds[slot][kind(task)] += 1

    def choose(self, task: Task, lower: Lower) -> int:
        """Return the slot that the lower scheduler chooses."""
        return self.best(task, lower, LOWER[lower])[1]


def kind(task: Task) -> str:
    """Return the kind of task that GpuClustering keeps together."""
    return "shared" if task.units < UNITS else str(task.gpus)


def least_allocated(cluster: Cluster, task: Task, slots: Sequence[int]) -> list[float]:
    """Score as kube-scheduler's NodeResourcesFit with its default strategy and resources: cpu and memory."""
    free, memory = cluster.index.free("cpu"), cluster.index.free("memory")
    wanted = task.memory << 20
    return [
        int(100 * (free[slot] - task.cpu) / cluster.cpu[slot])
        + int(100 * (memory[slot] - wanted) / cluster.memory[slot])
        for slot in slots
    ]


def most_allocated(cluster: Cluster, task: Task, slots: Sequence[int]) -> list[float]:
    """Score with the strategy MostAllocated and the GPUs among its resources, the usual configuration to pack GPUs.

    The plug-in leaves out a resource that a pod does not request, or that a node does not have.
    """
    free, memory, gpu = (cluster.index.free(resource) for resource in ("cpu", "memory", GPU))
    wanted = task.memory << 20
    scores = []
    for slot in slots:
        score = int(100 - 100 * (free[slot] - task.cpu) / cluster.cpu[slot])
        score += int(100 - 100 * (memory[slot] - wanted) / cluster.memory[slot])
        if task.units:
            score += int(100 - 100 * (gpu[slot] - task.units) / cluster.gpu[slot])
        scores.append(float(score))
    return scores


LOWER: dict[Lower, Score] = {"LeastAllocated": least_allocated, "MostAllocated": most_allocated}
