"""Which clusters under pressure give up which pods, and how many."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from clusterset.model import names
from controller_runtime.apimachinery import timestamps
from descheduler.strategies.pressure import Pressure, PressureParams, load_of
from tests.unit.descheduler.bodies import START, cached, node
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.moving.test_periodic import running
from tests.unit.descheduler.process import Process
from tests.unit.descheduler.refusing_clusters import names_of


def _node(name: str, load: str | None, *, age: float = 0):
    body = node(name)
    if load is not None:
        at = timestamps.rfc3339(START - timedelta(seconds=age))
        body["metadata"]["annotations"] = {names.ANNOTATION_PRESSURE: load, names.ANNOTATION_USAGE_AT: at}
    return body


@pytest.mark.parametrize(
    ("load", "age", "expected"),
    [
        ("0.5", 0, 0.5),
        ("0.5", 600, 0.5),
        ("0.5", 601, None),
        ("0.5", -60, 0.5),
        ("0.5", -601, None),
        ("nan", 0, None),
        ("2", 0, None),
        (None, 0, None),
    ],
)
def test_load_is_unknown_if_missing_invalid_or_old(load, age, expected):
    assert load_of(cached(_node("a", load, age=age)), START.timestamp(), 600) == expected


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("loads", "moved"),
    [
        ({"a": "0.9", "b": "0.1"}, 2),
        ({"a": "0.6", "b": "0.1"}, 0),  # below the threshold
        ({"a": "0.9", "b": "0.8"}, 0),  # the other one has too much load
        ({"a": "0.9", "b": None}, 0),  # its load is unknown
        ({"a": None, "b": "0.1"}, 0),
    ],
)
async def test_pass_moves_lowest_priority_pods_with_controller(loads, moved):
    cluster = Cluster()
    for name, load in loads.items():
        cluster.put("nodes", _node(name, load))
    for number in range(5):
        cluster.put("pods", running(f"p{number}", priority=number))
    cluster.put("pods", running("bare", owner=""))
    process = Process(cluster)
    process.add(Pressure, PressureParams())
    async with process.running():
        await asyncio.sleep(5)
    left = {f"p{number}" for number in range(moved, 5)} | {"bare"}
    assert left <= set(names_of(cluster))
    assert not {f"p{number}" for number in range(moved)} & set(names_of(cluster))
