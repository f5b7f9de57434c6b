"""The pigeon agent: balances lower clusters, consolidates pods in few of them, or packs by the variation of demands.

The objectives are kube-safe-scheduler's, with lower clusters in place of nodes. An objective is computed over all
clusters together, from sums over each cluster's nodes. The fit agent checks whether a single lower node has room.

The formulas are those of kube-safe-scheduler's pigeon-hole library, computed with the pod on each candidate. Differences
from the original: double precision, resources that no node has are left out, and objectives that differ only by rounding
are equal.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from controller_runtime import log
from controller_runtime.errors import ConfigError
from multi_scheduler.agent import NOTHING, AgentContext, Rejections
from multi_scheduler.agents.by_node import AskedPod, ViewAgent
from multi_scheduler.agents.state_file import StateFile
from multi_scheduler.numeric import clamp, rounded
from multi_scheduler.virtual_node import VirtualNode

Objective = Literal["LoadBalance", "Consolidate", "AdaptiveBinPack"]
Vector = Sequence[float]
_SAMPLES = 100
"""The first 100 demands have equal weight. Later demands enter an exponential average with weight 1/100."""
_REMEMBERED = 10_000
"""Number of UIDs for which a retry is recognized."""
_EQUAL = 1e-9
BEST = 10


@dataclass(frozen=True, slots=True)
class Bin:
    """Capacity and usage of a node or cluster."""

    capacity: Vector
    """By resource, always in the same order."""
    usage: Vector


class DemandHistory:
    """Mean and second moments of pods' demands."""

    def __init__(self, resources: int) -> None:
        self.count = 0
        self.mean = [0.0] * resources
        self.second = [[0.0] * resources for _ in range(resources)]
        self._counted: dict[str, None] = {}

    def add_once(self, uid: str, demand: Vector) -> None:
        """Count a pod's demand, once per UID even if the pod is retried."""
        if uid in self._counted:
            return
        self._counted[uid] = None
        if len(self._counted) > _REMEMBERED:
            del self._counted[next(iter(self._counted))]
        self.add(demand)

    def add(self, demand: Vector) -> None:
        """Count one pod."""
        self.count += 1
        weight = 1 / min(self.count, _SAMPLES)
        for row, one in enumerate(demand):
            self.mean[row] += weight * (one - self.mean[row])
            for column, other in enumerate(demand):
                self.second[row][column] += weight * (one * other - self.second[row][column])

    def state(self) -> dict[str, Any]:
        """Return the state to save across restarts, as JSON values; without UIDs, so a pod retried after that counts twice."""
        return {"count": self.count, "mean": self.mean, "second": self.second}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a saved state.

        Raises:
            ValueError: the state is invalid, or has another number of resources.
        """
        try:
            count, size = int(state["count"]), len(self.mean)
            mean = [float(value) for value in state["mean"]]
            second = [[float(value) for value in row] for row in state["second"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"the state lacks a field or has one of a wrong type: {error}") from None
        fits = len(mean) == size == len(second) and all(len(row) == size for row in second)
        if (
            not fits
            or count < 0
            or not all(map(math.isfinite, [*mean, *(value for row in second for value in row)]))
        ):
            raise ValueError("the state has another number of resources, or a number that is not finite")
        self.count, self.mean, self.second = count, mean, second

    def variation(self, capacity: Vector) -> float | None:
        """Return the coefficient of variation of the demands as shares of the capacity; None without demands."""
        if not self.count:
            return None
        mean = [one / size for one, size in zip(self.mean, capacity, strict=True)]
        covariance = [
            [
                value / (capacity[row] * capacity[column]) - mean[row] * mean[column]
                for column, value in enumerate(values)
            ]
            for row, values in enumerate(self.second)
        ]
        return _variation(covariance, mean)


def objectives(
    bins: Mapping[str, Bin],
    demand: Vector,
    objective: Objective,
    *,
    primary: int = 0,
    history: DemandHistory | None = None,
) -> dict[str, float | None]:
    """Return the objective with the pod on each node, less is better; None: the pod does not fit there.

    Args:
        bins: all nodes.
        demand: the pod's demand, by resource.
        objective: the objective to compute.
        primary: index of the resource for LoadBalance and Consolidate.
        history: demands, for AdaptiveBinPack; without demands all nodes are equal.
    """
    tried: dict[str, float | None] = {}
    primary_shares = [_primary_share(one, primary) for one in bins.values()]
    packing = _Packing(list(bins.values()), history) if objective == "AdaptiveBinPack" else None
    for place, (name, one) in enumerate(bins.items()):
        usage = [used + asked for used, asked in zip(one.usage, demand, strict=True)]
        if any(used > size for size, used in zip(one.capacity, usage, strict=True)):
            tried[name] = None
            continue
        moved = Bin(one.capacity, usage)
        if packing is not None:
            tried[name] = packing.mismatch(place, moved)
            continue
        shares = list(primary_shares)
        shares[place] = _primary_share(moved, primary)
        tried[name] = _deviation(shares) if objective == "LoadBalance" else _unevenness(shares)
    return tried


def points(found: Mapping[str, float | None]) -> dict[str, int]:
    """Return 10 for the best candidate down to 1 for the worst; 0 where the pod does not fit."""
    values = [value for value in found.values() if value is not None]
    low, high = min(values, default=0.0), max(values, default=0.0)
    return {
        name: 0
        if value is None
        else BEST
        if high - low < _EQUAL
        else min(BEST, rounded(1 + (BEST - 1) * (high - value) / (high - low)))
        for name, value in found.items()
    }


def _deviation(shares: Vector) -> float:
    mean = sum(shares) / len(shares)
    return math.sqrt(sum((share - mean) ** 2 for share in shares) / len(shares))


def _unevenness(shares: Vector) -> float:
    """Return 1 minus the scaled deviation: 0 if each node is full or empty, 1 if all nodes are used equally."""
    mean = sum(shares) / len(shares)
    if not 0 < mean < 1:
        return 0.0
    scaled = ((mean - share) / mean if share < mean else (share - mean) / (1 - mean) for share in shares)
    return 1 - math.sqrt(sum(one * one for one in scaled) / len(shares))


class _Packing:
    """Compares the variation of nodes' utilization with that of demands."""

    def __init__(self, bins: Sequence[Bin], history: DemandHistory | None) -> None:
        count = len(history.mean) if history is not None else 0
        # A resource that no node has would make the variation undefined.
        self._present = [index for index in range(count) if any(one.capacity[index] > 0 for one in bins)]
        self._shares = [[_share(one, index) for one in bins] for index in self._present]
        """Utilization of all nodes, by resource."""
        self._demanded: float | None = None
        if self._present and history is not None:
            sizes = [math.inf] * count
            for index in self._present:
                sizes[index] = sum(one.capacity[index] for one in bins) / sum(
                    one.capacity[index] > 0 for one in bins
                )
            self._demanded = history.variation(sizes)

    def mismatch(self, place: int, moved: Bin) -> float:
        """Return the difference of both variations if the node at ``place`` becomes ``moved``; 0: no demands."""
        if self._demanded is None:
            return 0.0
        apart, mean = [], []
        for index, row in zip(self._present, self._shares, strict=True):
            shares = [*row[:place], _share(moved, index), *row[place + 1 :]]
            mean.append(sum(shares) / len(shares))
            apart.append([share - mean[-1] for share in shares])
        covariance = [[sum(map(mul, one, other)) / len(one) for other in apart] for one in apart]
        return abs(_variation(covariance, mean) - self._demanded)


def _share(one: Bin, index: int) -> float:
    """Return a resource's utilization; 1 if the resource is used but the node does not have it."""
    size, used = one.capacity[index], one.usage[index]
    return clamp(used / size) if size else float(used > 0)


def _primary_share(one: Bin, primary: int) -> float:
    return one.usage[primary] / one.capacity[primary] if one.capacity[primary] else 1.0


def _variation(covariance: Sequence[Vector], mean: Vector) -> float:
    """Return Albert and Zhang's multivariate coefficient of variation."""
    form = sum(mean[i] * covariance[i][j] * mean[j] for i in range(len(mean)) for j in range(len(mean)))
    square = sum(one * one for one in mean)
    return math.sqrt(form) / square if form > 0 and square > 0 else 0.0


_SAVE_SECONDS = 30.0
_LEAST = {"cpu": 10, "memory": 16 * 1024**2, "pods": 1}
"""Demand of a pod without a request for the resource; cpu in millicores, memory in bytes."""


class PigeonSettings(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The agent's configuration."""

    objective: Objective = "AdaptiveBinPack"
    """LoadBalance: equal utilization of all clusters. Consolidate: few clusters full, the others empty. AdaptiveBinPack:
    utilization of clusters varies as much as pods' demands."""
    resources: Annotated[list[str], Meta(min_length=1, max_length=5)] = msgspec.field(
        default_factory=lambda: ["cpu", "memory"]
    )
    """Resources that the objective uses."""
    primary: str = ""
    """Resource for LoadBalance and Consolidate. Empty: the first of ``resources``."""
    state: str = ""
    """File that keeps the history of demands across restarts, for AdaptiveBinPack. Empty: a restart clears it."""


class PigeonAgent(ViewAgent[PigeonSettings]):
    """Scores by the objective; does not filter. Counts the demand of each pod once."""

    settings_type = PigeonSettings

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        resources, primary = self._settings.resources, self._settings.primary
        if primary and primary not in resources:
            raise ConfigError(f"agents[{context.name}].config: primary: {primary} is not among resources")
        self._primary = resources.index(primary) if primary else 0
        self._history = DemandHistory(len(resources))
        self._file = StateFile(self._settings.state, log.get_logger(component=context.name))
        self._file.restore(self._history.restore)
        self._file.saved = self._history.count

    async def run(self) -> None:
        """Save the history until cancelled."""
        try:
            while True:
                await asyncio.sleep(_SAVE_SECONDS)
                self._file.save(self._history.state, self._history.count)
        finally:
            self._file.save(self._history.state, self._history.count)

    async def filter(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Rejections:
        """Count the pod's demand; reject nothing."""
        self._history.add_once(pod["metadata"].get("uid", ""), self._demand(pod))
        return NOTHING

    async def score(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Mapping[str, float]:
        """Return 1 for the best cluster, 0.1 for the worst one with room, 0 for clusters without room."""
        bins = {}
        for node in nodes:
            total, used = self._view.whole(pod, node)
            bins[node.name] = Bin(
                [total.get(name, 0) for name in self._settings.resources],
                [used.get(name, 0) for name in self._settings.resources],
            )
        found = objectives(
            bins,
            self._demand(pod),
            self._settings.objective,
            primary=self._primary,
            history=self._history,
        )
        return {name: number / BEST for name, number in points(found).items()}

    def _demand(self, pod: Mapping[str, Any]) -> list[int]:
        requests = AskedPod(pod).requests
        return [requests.get(name) or _LEAST.get(name, 0) for name in self._settings.resources]
