"""The fragmentation agent: prefers clusters where a pod leaves divisible devices usable for typical pods.

Computes fragmentation gradient descent (Weng and others, USENIX ATC 2023) on the lower scheduler's most likely node.
Typical pods are learned from the pods on the lower nodes at start, and from every later pod.

Free units of a node are fragments for a typical pod that cannot use them: all units if the node cannot take the pod,
otherwise the units on devices with too little free. The gradient is the number of expected fragments that a pod adds to a
node. Less is better; below zero, the pod fills fragments.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp
from operator import mul
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from controller_runtime.errors import ConfigError
from multi_scheduler.agent import AgentContext
from multi_scheduler.agents.by_node import ViewAgent
from multi_scheduler.numeric import NEUTRAL
from multi_scheduler.state.cluster.index import ClusterIndex, parts
from multi_scheduler.state.cluster.pod_requirements import Demand
from multi_scheduler.virtual_node import VirtualNode

_MOST_SHAPES = 1024
_MOST_UIDS = 20_000
_RESCALE = 1e100


class Shape(NamedTuple):
    """The properties of a pod that matter for fragmentation."""

    cpu: int
    """Millicores."""
    units: int
    """Device units."""
    key: str
    """Equal for pods that the same nodes admit."""


@dataclass(frozen=True, slots=True)
class Typical:
    """A shape and its share of the workload."""

    shape: Shape
    share: float
    spec: Mapping[str, Any]
    """Node requirements of the shape, as ``ClusterIndex.admitted`` reads them."""


def shape_of(demand: Demand, resource: str) -> Shape:
    """Return a pod's shape with regard to a divisible resource."""
    return Shape(demand.requests.get("cpu", 0), demand.requests.get(resource, 0), demand.key)


class Workload:
    """Counts shapes. Older pods count less, and rare shapes are dropped when there are too many."""

    def __init__(self, *, half_life: float, popularity: float = 0.95) -> None:
        """Start without pods.

        Args:
            half_life: number of further pods after which a pod's weight is halved.
            popularity: share of all pods that the typical shapes cover.
        """
        self._growth = 2.0 ** (1.0 / half_life)
        self._popularity = popularity
        self._weight = 1.0
        self._counts: dict[Shape, float] = {}
        self._specs: dict[str, Mapping[str, Any]] = {}
        self._uids: dict[str, None] = {}
        self.seen = 0
        """Number of counted pods."""

    def add(self, uid: str, shape: Shape, spec: Mapping[str, Any]) -> None:
        """Count a pod's shape, once per UID even if the pod is retried."""
        if uid in self._uids:
            return
        self._uids[uid] = None
        if len(self._uids) > _MOST_UIDS:
            del self._uids[next(iter(self._uids))]
        # New pods get a growing weight, so that the weights of old pods need no update.
        self._weight *= self._growth
        self._counts[shape] = self._counts.get(shape, 0.0) + self._weight
        self._specs.setdefault(shape.key, spec)
        self.seen += 1
        if len(self._counts) > _MOST_SHAPES or self._weight > _RESCALE:
            self._trim()

    def typical(self) -> list[Typical]:
        """Return the most frequent shapes with their shares, which sum to 1."""
        ordered = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        enough = self._popularity * sum(self._counts.values())
        chosen, covered = [], 0.0
        for shape, count in ordered:
            if covered >= enough:
                break
            chosen.append((shape, count))
            covered += count
        return [Typical(shape, count / covered, self._specs[shape.key]) for shape, count in chosen]

    def _trim(self) -> None:
        kept = sorted(self._counts.items(), key=lambda item: -item[1])[: _MOST_SHAPES * 3 // 4]
        self._counts = {shape: count / self._weight for shape, count in kept}
        self._weight = 1.0
        keys = {shape.key for shape in self._counts}
        self._specs = {key: spec for key, spec in self._specs.items() if key in keys}


_LARGE_CPU, _LARGE_DEVICES = 128_000, 8
"""Size of a large node. For pods without devices, free cpu and devices are divided by it, then summed."""
_LEVEL = 1000.0
BETWEEN_CLUSTERS = 4
"""``width`` for comparing clusters. Only one node of each cluster is compared, so with single classes ties would be
rare, and the room of nodes would rarely decide."""
_MOST_STATES = 200_000
"""Number of cached results. At this number the cache is cleared."""


class Step(NamedTuple):
    """The effect of placing a pod on a node."""

    gradient: float
    """Increase of the node's expected fragments, in device units; negative if the pod fills fragments."""
    level: int
    """The gradient's class, from 0 to 100. A class is about a twenty-fifth of a device, wider for large gradients."""
    device: int
    """Free units of the chosen device before the placement; -1: no device is taken."""


class _Group(NamedTuple):
    """Typical pods with the same device units and the same node requirements."""

    units: int
    cpus: list[int]
    """Ascending."""
    shares: list[float]
    """Entry ``i``: share of all typical pods that the first ``i`` pods in ``cpus`` have together."""


class Fragmentation:
    """Computes gradients of one workload on the nodes of any index."""

    def __init__(self, typical: Sequence[Typical], resource: str, units: int) -> None:
        """Prepare tables for a workload and a divisible resource with ``units`` per device."""
        self._resource, self._units = resource, units
        self._large = _LARGE_DEVICES * units
        self._keys = sorted({one.shape.key for one in typical if one.shape.units})
        self._specs = {one.shape.key: one.spec for one in typical}
        self._sizes = sorted({one.shape.units for one in typical if one.shape.units})
        self._groups = {key: self._grouped(typical, key) for key in self._keys}
        self._classes: dict[ClusterIndex, tuple[int, list[int]]] = {}
        self._by_cpu: dict[tuple[int, int], list[float]] = {}
        self._by_devices: dict[tuple[int, ...], list[int]] = {}
        self._steps: dict[tuple[int, int], dict[tuple[int, int, tuple[int, ...]], Step]] = {}
        self._states = 0

    def _grouped(self, typical: Sequence[Typical], key: str) -> list[_Group]:
        groups = []
        for size in self._sizes:
            pods = sorted(
                (one.shape.cpu, one.share)
                for one in typical
                if one.shape.units == size and one.shape.key == key
            )
            shares = [0.0, *accumulate(share for _cpu, share in pods)]
            groups.append(_Group(size, [cpu for cpu, _share in pods], shares))
        return groups

    def keys(self, index: ClusterIndex, pod: Shape, slots: Sequence[int], *, width: int = 1) -> list[float]:
        """Return a key for each slot by which nodes and clusters are compared; smaller is better.

        Small differences of the gradient matter less than how full a node is, so gradients are compared by class, and ties go to
        the node with the least room. With exact gradients, or with random tie-breaking, nodes end up with devices but without
        cpu for them.

        Args:
            index: the index of the nodes.
            pod: the pod to place.
            slots: slots of nodes with room for the pod.
            width: number of neighbouring classes that count as one.
        """
        return [
            step.level // width * _LEVEL + room
            for step, room in zip(self.steps(index, pod, slots), self._rooms(index, pod, slots), strict=True)
        ]

    def _rooms(self, index: ClusterIndex, pod: Shape, slots: Sequence[int]) -> list[float]:
        """Return for each slot how much room its node has, at most 2 on a large node.

        For a pod with devices this is a share of the node, because by amount the small nodes would fill first, and these are
        often the only ones with a model that other pods require. A pod without devices needs no model. By amount, it leaves
        the cpu of nodes with many free devices to pods with devices.
        """
        cpu, units = index.free("cpu"), index.free(self._resource)
        if not pod.units:
            return [cpu[slot] / _LARGE_CPU + units[slot] / self._large for slot in slots]
        devices = index.devices[self._resource].free
        return [units[slot] / self._units / max(1, len(devices[slot])) for slot in slots]

    def steps(self, index: ClusterIndex, pod: Shape, slots: Sequence[int]) -> list[Step]:
        """Return for each slot the effect of the pod on its node. All nodes must have room for it."""
        if self._states > _MOST_STATES:
            self._forget()
        known = self._steps.setdefault((pod.cpu, pod.units), {})
        classes, free = self._classes_of(index), index.free("cpu")
        devices = index.devices[self._resource].free
        found = []
        for slot in slots:
            state = (classes[slot], free[slot], devices[slot])
            step = known.get(state)
            if step is None:
                # The order of the devices does not matter, so nodes with the same devices share the result.
                ordered = (state[0], state[1], tuple(sorted(state[2])))
                step = known.get(ordered)
                if step is None:
                    step = known[ordered] = self._step(*ordered, pod.cpu, pod.units)
                    self._states += 1
                known[state] = step
                self._states += 1
            found.append(step)
        return found

    def _step(self, which: int, free: int, devices: tuple[int, ...], cpu: int, units: int) -> Step:
        before = self._usable(which, free, devices)
        if not units:
            return self._leveled(before - self._usable(which, free - cpu, devices), -1)
        number, share = parts(units, self._units)
        best = (float("inf"), -1)
        for left in sorted({left for left in devices if left >= share}):
            first = devices.index(left)
            taken = [device - share for device in devices[first : first + number]]
            after = tuple(sorted([*devices[:first], *taken, *devices[first + number :]]))
            gradient = before - self._usable(which, free - cpu, after) - number * share
            best = min(best, (gradient, left))
        return self._leveled(*best)

    def _leveled(self, gradient: float, device: int) -> Step:
        return Step(gradient, 100 - int(100 / (1 + exp(min(gradient / self._units, 700.0)))), device)

    def _usable(self, which: int, cpu: int, devices: tuple[int, ...]) -> float:
        """Return the expected units that the next typical pod could use."""
        shares = self._by_cpu.get((which, cpu))
        if shares is None:
            shares = self._by_cpu[which, cpu] = self._admitted_shares(which, cpu)
        sums = self._by_devices.get(devices)
        if sums is None:
            sums = self._by_devices[devices] = [self._large_enough(devices, size) for size in self._sizes]
        return float(sum(map(mul, shares, sums)))

    def _admitted_shares(self, which: int, cpu: int) -> list[float]:
        """Return for each of ``_sizes`` the share of typical pods that a node of this class with this free cpu admits."""
        found = [0.0] * len(self._sizes)
        for bit, key in enumerate(self._keys):
            if which >> bit & 1:
                for place, group in enumerate(self._groups[key]):
                    found[place] += group.shares[bisect_right(group.cpus, cpu)]
        return found

    def _large_enough(self, devices: tuple[int, ...], size: int) -> int:
        number, share = parts(size, self._units)
        fitting = [left for left in devices if left >= share]
        return sum(fitting) if len(fitting) >= number else 0

    def _classes_of(self, index: ClusterIndex) -> list[int]:
        """Return by slot a bit mask of the typical pods' selectors that the node satisfies."""
        version, classes = self._classes.get(index, (-1, []))
        if version != index.version:
            classes = [0] * len(index.free("cpu"))
            for bit, key in enumerate(self._keys):
                for slot in index.admitted(key, self._specs[key]):
                    classes[slot] |= 1 << bit
            self._classes[index] = (index.version, classes)
        return classes

    def _forget(self) -> None:
        self._steps.clear()
        self._by_cpu.clear()
        self._by_devices.clear()
        self._states = 0


_LEARNED_EVERY = 100
"""Number of pods after which the typical pods are selected again."""
_NEXT = 0.9
"""Highest score of the second-best cluster, because the best must differ on kube-scheduler's scale of eleven steps."""


class FragmentationSettings(msgspec.Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """The agent's configuration."""

    resource: str
    """The divisible resource; one of the fit agent's ``devices``."""
    half_life: Annotated[float, Meta(ge=1)] = 2000.0
    """Number of later pods after which a pod's weight in the choice of typical pods is halved."""
    popularity: Annotated[float, Meta(gt=0, le=1)] = 0.95
    """Share of all pods that the typical pods cover."""


class FragmentationAgent(ViewAgent[FragmentationSettings]):
    """Scores clusters against each other: 1 for the best, 0 for the worst."""

    settings_type = FragmentationSettings

    def __init__(self, context: AgentContext) -> None:
        """Read the settings.

        Raises:
            ConfigError: a setting is wrong, or the resource is not among the fit agent's devices.
        """
        super().__init__(context)
        self._resource = self._settings.resource
        if self._resource not in self._view.state.settings.devices:
            raise ConfigError(
                f"agents[{context.name}].config.resource: {self._resource} is not among agents[fit].config.devices"
            )
        self._units = self._view.state.settings.devices[self._resource]
        self._workload = Workload(half_life=self._settings.half_life, popularity=self._settings.popularity)
        self._chosen_at = -1
        """Number of pods seen when the typical pods were selected; -1: never."""
        self._fragmentation = Fragmentation([], self._resource, self._units)

    def filtered(self, pod: Mapping[str, Any], passing: Sequence[VirtualNode]) -> None:
        """Add a pod that fits somewhere to the workload from which typical pods are selected."""
        predicted = self._view.prediction(pod, passing[0]) if passing else None
        if predicted is not None:
            wanted = predicted.wanted
            self._workload.add(pod["metadata"].get("uid", ""), shape_of(wanted, self._resource), wanted.spec)

    async def score(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Mapping[str, float]:
        """Score clusters by the fragmentation that the pod adds; without a prediction, the score is neutral."""
        self._choose_typical()
        keys = {node.name: key for node in nodes if (key := self._key(pod, node)) is not None}
        low, high = min(keys.values(), default=0.0), max(keys.values(), default=0.0)
        found = {
            name: 1.0 if key == low else _NEXT * (high - key) / (high - low) for name, key in keys.items()
        }
        return {node.name: found.get(node.name, NEUTRAL) for node in nodes}

    def _key(self, pod: Mapping[str, Any], node: VirtualNode) -> float | None:
        """Return the fragmentation that a pod adds to a cluster, less is better; None: unknown."""
        predicted, lower = self._view.prediction(pod, node), self._view.state.clusters.get(node.cluster)
        if predicted is None or lower is None or (slot := lower.index.slot(predicted.place.node)) is None:
            return None
        index = lower.index
        # Leave out the pod's own reservation, which may be on that node.
        own = f"{pod['metadata'].get('uid', '')}@{node.name}"
        promise = index.remove(own)
        try:
            shape = shape_of(predicted.wanted, self._resource)
            [key] = self._fragmentation.keys(index, shape, [slot], width=BETWEEN_CLUSTERS)
        finally:
            if promise is not None:
                index.place(own, promise)
        return key

    def _choose_typical(self) -> None:
        if self._chosen_at < 0:
            for index in self._view.indexes.values():
                for uid, placed in index.pods():
                    shape = Shape(placed.requests.get("cpu", 0), placed.requests.get(self._resource, 0), "")
                    self._workload.add(uid, shape, {})
        elif self._workload.seen < self._chosen_at + _LEARNED_EVERY:
            return
        self._chosen_at = self._workload.seen
        self._fragmentation = Fragmentation(self._workload.typical(), self._resource, self._units)
