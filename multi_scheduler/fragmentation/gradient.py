"""How much a pod would fragment the devices of a lower node (fragmentation gradient descent, USENIX ATC 2023). Pure.

A node's free units are fragmented to the degree that typical pods cannot use them: for a typical pod that the node
cannot take, all of them; for one that it can take, those on devices that are too full for the pod. The gradient is by
how much a pod raises the expected fragments of a node. Less is better, below zero it fills holes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from math import exp
from operator import mul
from typing import NamedTuple

from multi_scheduler.fit.cluster.index import ClusterIndex
from multi_scheduler.fit.devices import parts
from multi_scheduler.fragmentation.workload import Shape, Typical

_LARGE_CPU, _LARGE_DEVICES = 128_000, 8
"""What a large node has: the scale on which what is left of cpu and devices is added."""
_LEVEL = 1000.0
_MOST_STATES = 200_000
"""Kept results; beyond, all of them are calculated again as they are needed."""


class Step(NamedTuple):
    """Taking a pod."""

    gradient: float
    """Units of the devices that become fragments."""
    level: int
    """The gradient's class, from 0 to 100: steps of about a twenty-fifth of a device, wider for large gradients."""
    device: int
    """What the chosen device has free before; -1: there is no choice."""


class _Group(NamedTuple):
    """The typical pods that take the same of the devices, and that the same nodes admit."""

    units: int
    cpus: list[int]
    """Ascending."""
    shares: list[float]
    """Of the pods that ask for at most as much cpu; one more than there are ``cpus``."""


class Fragmentation:
    """One workload on the nodes of any number of indexes."""

    def __init__(self, typical: Sequence[Typical], resource: str, units: int) -> None:
        """Prepare tables.

        Args:
            typical: the workload.
            resource: the divisible one.
            units: of one device.
        """
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

    def keys(self, index: ClusterIndex, pod: Shape, slots: Sequence[int]) -> list[float]:
        """Return for each slot what nodes and clusters are compared by: smaller is better.

        Small differences of the gradient say less than how tightly a pod fits: gradients are compared in classes, and
        among equals the node wins that is left with least. With exact gradients, or with ties broken at random, nodes
        are left with devices that they have no cpu for.
        """
        cpu, units = index.free("cpu"), index.free(self._resource)
        return [
            step.level * _LEVEL + cpu[slot] / _LARGE_CPU + units[slot] / self._large
            for slot, step in zip(slots, self.steps(index, pod, slots), strict=True)
        ]

    def steps(self, index: ClusterIndex, pod: Shape, slots: Sequence[int]) -> list[Step]:
        """Return for each slot what becomes of its node with a pod. All of them must have room for it."""
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
                # The order of the devices does not matter: nodes with the same ones share the result.
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
            taken = [one - share for one in devices[first : first + number]]
            after = tuple(sorted([*devices[:first], *taken, *devices[first + number :]]))
            gradient = before - self._usable(which, free - cpu, after) - number * share
            best = min(best, (gradient, left))
        return self._leveled(*best)

    def _leveled(self, gradient: float, device: int) -> Step:
        return Step(gradient, 100 - int(100 / (1 + exp(min(gradient / self._units, 700.0)))), device)

    def _usable(self, which: int, cpu: int, devices: tuple[int, ...]) -> float:
        """Units that the next typical pod could use, in expectation."""
        shares = self._by_cpu.get((which, cpu))
        if shares is None:
            shares = self._by_cpu[which, cpu] = self._admitted_shares(which, cpu)
        sums = self._by_devices.get(devices)
        if sums is None:
            sums = self._by_devices[devices] = [self._large_enough(devices, size) for size in self._sizes]
        return float(sum(map(mul, shares, sums)))

    def _admitted_shares(self, which: int, cpu: int) -> list[float]:
        """By size: the share of the typical pods that a node of a class admits and has the cpu for."""
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
        """By slot: a bit for each selector of the typical pods that the node satisfies."""
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
