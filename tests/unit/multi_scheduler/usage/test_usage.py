"""Measured usage: figures of samples; missing or old values are never returned."""

from __future__ import annotations

import asyncio
import math
import statistics
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.errors import ConnectionFailed
from multi_scheduler.usage import Measured, Pressure, Sample, Series, Stall, UsageStore
from multi_scheduler.usage_sources import MetricsApi, Source, UsageFeed
from tests.background import working

MIB = 1024**2


class _Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.integers(0, 64_000), min_size=1, max_size=100))
def test_figures_use_the_last_samples(values: list[int]) -> None:
    """Mean and sample deviation use only the window; the forecast is not negative."""
    series = Series(10)
    for value in values:
        series.add(value)
    kept = values[-10:]
    found = series.measured()
    assert found.latest == kept[-1]
    assert found.mean == pytest.approx(statistics.fmean(kept))
    assert found.deviation == pytest.approx(statistics.stdev(kept) if len(kept) > 1 else 0, abs=1e-6)
    assert found.forecast is not None
    assert found.forecast >= 0


def test_forecast_follows_the_trend() -> None:
    """Rising usage has a forecast above its mean, steady usage stays."""
    rising, steady = Series(60), Series(60)
    for minute in range(20):
        rising.add(100 * minute)
        steady.add(500)
    assert (rising.measured().forecast or 0) > 1800
    assert steady.measured().forecast == pytest.approx(500)


def test_missing_and_old_usage_is_not_returned() -> None:
    """The age is that of the newest sample by our clock; differing clocks and repeated samples do not matter."""
    clock = _Clock()
    store = UsageStore("c", clock=clock, max_age=100)
    assert store.usage("n") is None
    store.add("n", Sample(time=5e9, cpu=100, memory=5 * MIB))
    for clock.now in (10.0, 99.0):
        store.add("n", Sample(time=5e9, cpu=900, memory=9 * MIB))
        found = store.usage("n")
        assert found is not None
        assert (found.age, found.cpu) == (clock.now, Measured(100, 100, 0, 100))
    clock.now = 101.0
    assert store.usage("n") is None
    store.add("n", Sample(time=5e9 + 1, cpu=300))
    found = store.usage("n")
    assert found is not None
    assert (found.cpu and found.cpu.mean, found.memory and found.memory.mean) == (200, 5 * MIB)
    store.keep(["other"])
    assert store.usage("n") is None


def test_samples_count_again_after_the_clock_of_the_lower_cluster_was_set_back() -> None:
    """Samples that are a little older come from another replica of the source, and are ignored."""
    clock = _Clock()
    store = UsageStore("c", clock=clock, max_age=100)
    store.add("n", Sample(time=7200, cpu=100))
    clock.now = 60.0
    store.add("n", Sample(time=7190, cpu=900))
    found = store.usage("n")
    assert found is not None
    assert found.cpu == Measured(100, 100, 0, 100)
    clock.now = 130.0
    store.add("n", Sample(time=7200, cpu=900))
    assert store.usage("n") is None
    for clock.now in (160.0, 190.0):
        store.add("n", Sample(time=3600 + clock.now, cpu=200))
        found = store.usage("n")
        assert found is not None
        assert (found.age, found.cpu and found.cpu.latest) == (0, 200)


@pytest.mark.parametrize("value", [-1.0, -1e300, 1e300, math.inf, math.nan, 10**400])
def test_implausible_usage_is_ignored(value: float) -> None:
    """Agents and the annotator could not compute with it; a lower cluster reports any value."""
    store = UsageStore("c", clock=_Clock())
    store.add("n", Sample(1, cpu=value, memory=value, pressure=Pressure()), capacity=4000)
    found = store.usage("n")
    assert found is not None
    assert (found.cpu, found.memory) == (None, None)
    store.add("n", Sample(2, cpu=100, memory=MIB))
    store.add("n", Sample(3, cpu=value, memory=value))
    found = store.usage("n")
    assert found is not None
    assert found.cpu == Measured(100, 100, 0, 100)


def test_node_is_under_pressure_until_the_longer_average_is_low() -> None:
    """The store remembers it, because agents keep no state."""
    store = UsageStore("c", clock=_Clock())
    for time, (short, long, expected) in enumerate(
        ((20, 5, False), (20, 20, True), (0, 15, True), (0, 5, False))
    ):
        store.add("n", Sample(time, pressure=Pressure(memory=Stall(full10=short, full60=long))))
        found = store.usage("n")
        assert found is not None
        assert found.is_pressed == expected


def test_ten_thousand_nodes_take_less_than_150_mib() -> None:
    """With full windows and all figures computed."""
    tracemalloc.start()
    store = UsageStore("c", clock=_Clock(), window=60)
    pressure = Pressure()
    for time in range(61):
        for node in range(200):
            store.add(f"node-{node}", Sample(float(time), 1000.0 + node, 2.0 * MIB, pressure))
    for node in range(200):
        store.usage(f"node-{node}")
    size, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 50 * size < 150 * MIB


class _Source(Source):
    """A source with settable samples."""

    def __init__(self) -> None:
        self.time = 0.0
        self.failure: Exception | None = None
        self.asked = 0

    async def read(self, nodes: Mapping[str, float], *, pause: float) -> AsyncIterator[tuple[str, Sample]]:
        self.asked += 1
        self.time += 1
        if self.failure is not None:
            raise self.failure
        for node in [*nodes, "unknown"]:
            yield node, Sample(self.time, cpu=100)


@pytest.mark.looptime
@pytest.mark.parametrize("failure", [ConnectionFailed("no route"), ValueError("not a number")])
async def test_retries_a_failed_source(failure: Exception) -> None:
    """Unknown nodes are ignored."""
    source = _Source()
    store = UsageStore("c", clock=asyncio.get_running_loop().time, max_age=30)
    feed = UsageFeed("c", source, store, nodes=lambda: {"n": 4000.0}, interval=10)
    async with working(feed.run()):
        await asyncio.sleep(1)
        assert store.usage("n") is not None
        assert len(store) == 1
        source.failure = failure
        await asyncio.sleep(60)
        assert store.usage("n") is None
        assert source.asked >= 6
        source.failure = None
        await asyncio.sleep(15)
        assert store.usage("n") is not None


async def test_reads_units_of_the_metrics_api() -> None:
    """Nanocores and KiB, as metrics-server writes them, and any other quantity."""
    items = [
        {
            "metadata": {"name": name},
            "timestamp": "2026-11-22T10:00:00Z",
            "usage": {"cpu": cpu, "memory": memory},
        }
        for name, cpu, memory in (
            ("a", "1500000n", "2048Ki"),
            ("b", "2", "1Gi"),
            ("c", f"{'9' * 400}n", "1Gi"),
        )
    ]

    async def read(path: str, **_: Any) -> dict[str, Any]:
        if path == "/apis/metrics.k8s.io":
            return {"versions": [{"version": "v1"}, {"version": "v1beta1"}]}
        assert path == "/apis/metrics.k8s.io/v1/nodes"
        return {"items": items}

    client: Any = SimpleNamespace(read=read)
    found = {name: (one.cpu, one.memory) async for name, one in MetricsApi(client).read({}, pause=0)}
    assert found == {"a": (1.5, 2 * MIB), "b": (2000, 1024 * MIB), "c": (math.inf, 1024 * MIB)}
