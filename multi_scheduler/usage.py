"""Usage of a lower cluster's nodes, written by a feed and read by agents. Values that are too old are not returned.

``usage_sources`` measures it. ``read`` returns usage from annotations of lower nodes, as written by kube-safe-scheduler's
annotator or ``virtual-node-annotator``.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from prometheus_client import Counter

from clusterset.config import Thresholds
from clusterset.model import names
from controller_runtime.apimachinery import timestamps
from multi_scheduler.numeric import clamp

CPU, MEMORY = "cpu", "memory"
CONGESTION = "congestion-factor"
"""Written by another program; agents read it."""
MEAN, DEVIATION, FORECAST = "mean-free-{}", "std-free-{}", "forcasted-free-{}"
"""By resource: CPU in millicores, memory in bytes. The spelling is kube-safe-scheduler's."""


def read(annotations: Mapping[str, str], resource: str, capacity: float) -> Measured | None:
    """Return the usage of ``cpu`` or ``memory``; None: the annotations are missing.

    ``capacity`` is the allocatable amount, in the unit of the annotation.
    """
    free = number(annotations.get(MEAN.format(resource)))
    if free is None or not capacity:
        return None
    forecast = number(annotations.get(FORECAST.format(resource)))
    used = max(capacity - free, 0.0)
    return Measured(
        latest=used,
        mean=used,
        deviation=max(number(annotations.get(DEVIATION.format(resource))) or 0.0, 0.0),
        forecast=None if forecast is None else max(capacity - forecast, 0.0),
    )


def time(annotations: Mapping[str, str]) -> float:
    """Return when the annotations were written, in seconds since the epoch; 0: unknown."""
    try:
        return timestamps.parse(annotations.get(names.ANNOTATION_USAGE_AT, "")).timestamp()
    except ValueError:
        return 0.0


def number(text: str | None) -> float | None:
    """Return a number without unit; None: invalid or implausible."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if abs(value) <= LARGEST else None


BUSY = 0.7
"""CPU utilization from which CPU pressure counts."""
_PODS, _CPU, _MEMORY, _IO = 0.4, 0.2, 0.25, 0.15
"""Weights of the four parts of a node's load. kubeleet, the model for this score, publishes no weights."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Percent of time in which some or all tasks waited for one resource, as averages over 10 and 60 seconds."""

    some10: float = 0.0
    some60: float = 0.0
    full10: float = 0.0
    full60: float = 0.0


@dataclass(frozen=True, slots=True)
class Pressure:
    """Pressure of a node by resource: how long tasks waited for CPU, memory and IO (PSI).

    Sources: the kernel's ``Documentation/accounting/psi.rst``; KEP-4205; KEP-5394 for when pressure starts and ends. CPU
    pressure counts only on busy nodes, because throttled containers raise it on idle nodes as well
    (kubernetes/enhancements#5062).
    """

    cpu: Stall = Stall()
    memory: Stall = Stall()
    io: Stall = Stall()


def pressure_load(pods: float, pressure: Pressure, *, utilization: float | None) -> float:
    """Return a node's load from 0 to 1.

    Args:
        pods: number of pods as a share of the node's limit.
        pressure: pressure of the node.
        utilization: CPU utilization, 0 to 1; None: unknown, so CPU pressure does not count.
    """
    cpu = pressure.cpu.some10 if _is_busy(utilization) else 0.0
    memory = 0.5 * pressure.memory.some10 + 0.5 * pressure.memory.full10
    waiting = _CPU * cpu + _MEMORY * memory + _IO * pressure.io.some10
    return clamp(_PODS * pods + waiting / 100)


def pressure_score(pods: float, pressure: Pressure, *, utilization: float | None, is_pressed: bool) -> float:
    """Return 1 for an empty node without pressure, 0 for a node under pressure. Arguments as for ``load``."""
    return 0.0 if is_pressed else 1 - pressure_load(pods, pressure, utilization=utilization)


def is_pressed(
    pressure: Pressure, thresholds: Thresholds, *, utilization: float | None, was_pressed: bool = False
) -> bool:
    """Report whether a node is under pressure.

    Pressure starts when both averages of a resource reach its threshold, and ends when the longer one falls below it.
    """
    # CPU counts by ``some``, because ``full`` is always 0 for a node's CPU.
    pairs = (
        (pressure.cpu.some10, pressure.cpu.some60, thresholds.cpu, _is_busy(utilization)),
        (pressure.memory.full10, pressure.memory.full60, thresholds.memory, True),
        (pressure.io.full10, pressure.io.full60, thresholds.io, True),
    )
    return any(
        counts and long >= threshold and (was_pressed or short >= threshold)
        for short, long, threshold, counts in pairs
    )


def _is_busy(utilization: float | None) -> bool:
    return utilization is not None and utilization > BUSY


_LEVEL, _TREND, _DAMPING = 0.5, 0.3, 0.9
"""Parameters of Holt's linear method. The trend is damped, so that one steep minute does not forecast an empty or full node."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one resource of one node; CPU in millicores, memory in bytes."""

    latest: float
    mean: float
    deviation: float
    """The sample standard deviation; 0 with one sample."""
    forecast: float | None = None
    """Forecast of the next sample; None: unknown."""


class Series:
    """The last samples of one quantity, with four bytes each."""

    __slots__ = ("_measured", "_size", "_values")

    def __init__(self, size: int) -> None:
        self._values = array("f")
        self._size = size
        self._measured: Measured | None = None

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        """Append a sample, and drop the oldest one above the limit."""
        if len(self._values) >= self._size:
            del self._values[0]
        self._values.append(value)
        self._measured = None

    def measured(self) -> Measured:
        """Return the figures; at least one sample is needed."""
        if self._measured is None:
            values = self._values
            mean = math.fsum(values) / len(values)
            squares = math.fsum((value - mean) ** 2 for value in values)
            deviation = math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0
            self._measured = Measured(values[-1], mean, deviation, self._forecast())
        return self._measured

    def _forecast(self) -> float:
        level, trend = self._values[0], 0.0
        for value in self._values[1:]:
            expected = level + _DAMPING * trend
            before, level = level, _LEVEL * value + (1 - _LEVEL) * expected
            trend = _TREND * (level - before) + (1 - _TREND) * _DAMPING * trend
        return max(0.0, level + _DAMPING * trend)


_NEUTRAL = Counter(
    "virtual_node_usage_neutral_total",
    "Nodes that got a neutral score because their usage is missing or old.",
    ["cluster", "reason"],
)

LARGEST = 1e30
"""Largest plausible amount. Larger, negative and non-finite amounts are ignored."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A source's report about one node at one time."""

    time: float
    """Seconds since the epoch, by the lower cluster's clock."""
    cpu: float | None = None
    """CPU in millicores."""
    memory: float | None = None
    """Working set in bytes."""
    pressure: Pressure | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """The current usage of a node."""

    time: float
    """Time of the last sample, by the lower cluster's clock."""
    age: float
    """Seconds since the last sample arrived, by the multi-scheduler's clock."""
    cpu: Measured | None = None
    memory: Measured | None = None
    pressure: Pressure | None = None
    is_pressed: bool = False

    def score(self, pods: int, allocatable: Mapping[str, int]) -> float | None:
        """Return 1 for a node without pods and pressure, 0 for a node under pressure; None: its pressure is unknown."""
        if self.pressure is None:
            return None
        capacity, cpus = allocatable.get("pods", 0), allocatable.get("cpu", 0)
        utilization = self.cpu.latest / cpus if self.cpu is not None and cpus else None
        share = pods / capacity if capacity else 0.0
        return pressure_score(share, self.pressure, utilization=utilization, is_pressed=self.is_pressed)


class _Record:
    __slots__ = ("cpu", "fixed", "is_pressed", "memory", "pressure", "received", "time")

    def __init__(self, size: int) -> None:
        self.cpu, self.memory = Series(size), Series(size)
        self.fixed: tuple[Measured | None, Measured | None] | None = None
        """Figures that the source computed itself; None: they are computed from samples."""
        self.pressure: Pressure | None = None
        self.is_pressed = False
        self.time = self.received = float("-inf")


@dataclass(eq=False)
class UsageStore:
    """The usage of all nodes of one cluster."""

    cluster: str
    clock: Callable[[], float]
    """Monotonic seconds."""
    window: int = 60
    """Number of samples that are kept per node."""
    max_age: float = 120.0
    """Seconds after which a node's usage counts as unknown."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    _records: dict[str, _Record] = field(default_factory=dict)
    _annotations: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._neutral = {reason: _NEUTRAL.labels(self.cluster, reason) for reason in ("missing", "old")}

    def __len__(self) -> int:
        return len(self._records)

    def add(self, name: str, sample: Sample, *, capacity: float = 0.0) -> None:
        """Add a sample of a node; ignore it if it is not newer than the last one, because sources repeat samples.

        An older one is added if the last one is outdated, because the lower cluster's clock was set back.
        ``capacity`` is the node's CPU in millicores, for the pressure on CPU; 0: unknown.
        """
        record = self._record(name)
        is_outdated = self.clock() - record.received > self.max_age
        if sample.time == record.time or (sample.time < record.time and not is_outdated):
            return
        record.time, record.received = sample.time, self.clock()
        cpu, memory = _plausible(sample.cpu), _plausible(sample.memory)
        if cpu is not None:
            record.cpu.add(cpu)
        if memory is not None:
            record.memory.add(memory)
        record.pressure = sample.pressure
        if sample.pressure is None:
            record.is_pressed = False
        else:
            share = cpu / capacity if cpu is not None and capacity else None
            record.is_pressed = is_pressed(
                sample.pressure, self.thresholds, utilization=share, was_pressed=record.is_pressed
            )

    def put(self, name: str, time: float, cpu: Measured | None, memory: Measured | None) -> None:
        """Store figures that the source computed itself; ignore them if neither values nor time are new."""
        record = self._record(name)
        if (cpu, memory) != record.fixed or time > record.time:
            record.fixed, record.time, record.received = (cpu, memory), time, self.clock()

    def annotate(self, name: str, annotations: Mapping[str, str]) -> None:
        """Store the annotations of a node that agents read; empty: forget them."""
        if annotations:
            self._annotations[name] = annotations
        else:
            self._annotations.pop(name, None)

    def annotations(self, name: str) -> Mapping[str, str]:
        """Return the annotations of a node that agents read."""
        return self._annotations.get(name, {})

    def forget(self, name: str) -> None:
        """Forget a deleted node."""
        self._records.pop(name, None)
        self._annotations.pop(name, None)

    def keep(self, names: Collection[str]) -> None:
        """Forget the usage of all nodes except these."""
        for name in self._records.keys() - set(names):
            del self._records[name]

    def usage(self, name: str) -> Usage | None:
        """Return a node's usage; None: it is missing or old, which a metric counts."""
        record = self._records.get(name)
        if record is None:
            self._neutral["missing"].inc()
            return None
        age = self.clock() - record.received
        if age > self.max_age:
            self._neutral["old"].inc()
            return None
        cpu, memory = record.fixed or (
            record.cpu.measured() if record.cpu else None,
            record.memory.measured() if record.memory else None,
        )
        return Usage(record.time, age, cpu, memory, record.pressure, record.is_pressed)

    def _record(self, name: str) -> _Record:
        record = self._records.get(name)
        if record is None:
            record = self._records[name] = _Record(self.window)
        return record


def _plausible(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= LARGEST else None
