"""RemoveDuplicates and LowNodeUtilization: the chosen pods and the passes."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from controller_runtime.apimachinery import timestamps
from controller_runtime.errors import ConfigError
from descheduler import room
from descheduler.strategies import duplicates
from descheduler.strategies.base import Namespaces
from descheduler.strategies.duplicates import Duplicates, DuplicatesParams
from descheduler.strategies.imbalance import Imbalance, ImbalanceParams
from tests.unit.descheduler.bodies import START, cached, node, pod
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.process import Process
from tests.unit.descheduler.refusing_clusters import cluster_with, names_of


def running(
    name: str, *, on: str = "a", owner: str = "rs", cpu: str = "1", age: int = 60, **spec: Any
) -> dict[str, Any]:
    """Return a running pod that was created ``age`` seconds ago."""
    return pod(
        name,
        on=on,
        owner=owner,
        phase="Running",
        refused_at=None,
        spec={"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}], **spec},
        creationTimestamp=timestamps.rfc3339(START - timedelta(seconds=age)),
    )


@pytest.mark.parametrize(
    ("placed", "nodes", "chosen"),
    [
        ("aaaa", "ab", 2),
        ("aaa", "ab", 1),
        ("aab", "ab", 0),
        ("a", "ab", 0),
        ("aaaa", "a", 0),
        ("aaaaaa", "abc", 4),
        ("aaaabb", "abc", 2),
        ("aax", "ab", 0),
        ("aaax", "ab", 1),
    ],
)
def test_excess_is_above_fair_share_and_within_room_of_others(placed, nodes, chosen):
    owned = [cached(running(f"p{number}", on=on)) for number, on in enumerate(placed)]
    assert len(duplicates.excess(owned, list(nodes))) == chosen


def test_excess_has_youngest_pods_first():
    owned = [cached(running(f"p{age}", age=age)) for age in (50, 10, 30, 20)]
    assert [found.name for found, _ in duplicates.excess(owned, ["a", "b"])] == ["p10", "p20"]


@pytest.mark.looptime
async def test_pass_moves_excess_except_excluded_kinds():
    bodies = [running(f"p{number}") for number in range(4)]
    bodies += [pod(f"job{n}", owner="job", kind="Job", phase="Running", refused_at=None) for n in range(4)]
    cluster = cluster_with(*bodies)
    process = Process(cluster)
    process.add(Duplicates, DuplicatesParams(exclude_owner_kinds=["Job"]))
    async with process.running():
        await asyncio.sleep(5)
    assert names_of(cluster) == ["job0", "job1", "job2", "job3", "p0", "p1"]


@pytest.mark.looptime
async def test_later_pass_finds_later_pods():
    cluster = cluster_with()
    process = Process(cluster, interval=100)
    process.add(Duplicates, DuplicatesParams())
    async with process.running():
        await asyncio.sleep(50)
        for number in range(2):
            cluster.put("pods", running(f"p{number}"))
        await asyncio.sleep(40)
        assert len(names_of(cluster)) == 2
        await asyncio.sleep(20)
    assert len(names_of(cluster)) == 1


@pytest.mark.looptime
async def test_overused_node_gives_up_lowest_priorities_until_target():
    """Bare pods stay."""
    bodies = [running(f"p{number}", cpu="2", priority=number) for number in range(4)]
    bodies.append(running("bare", owner="", cpu="1"))
    cluster = cluster_with(*bodies)
    process = Process(cluster)
    process.add(Imbalance, ImbalanceParams(target_thresholds={"cpu": 50.0, "memory": 90, "pods": 90}))
    async with process.running():
        await asyncio.sleep(5)
    assert names_of(cluster) == ["bare", "p2", "p3"]


@pytest.mark.looptime
@pytest.mark.parametrize(
    "bodies",
    [
        [running(f"p{number}", cpu="2") for number in range(4)],
        [running("a0", cpu="9"), running("b0", on="b", cpu="5")],
        [running("huge", cpu="9.5")],
        [running("huge", cpu="9.5"), *(running(f"idle{number}", cpu="0") for number in range(4))],
    ],
    ids=["not overused", "none underused", "fits nowhere", "only pods without CPU fit"],
)
async def test_nothing_moves_without_overused_and_underused_node_and_fitting_pod(bodies):
    cluster = cluster_with(*bodies)
    process = Process(cluster)
    process.add(Imbalance, ImbalanceParams())
    async with process.running():
        await asyncio.sleep(5)
    assert process.client.writes == []


@pytest.mark.looptime
async def test_pods_that_request_none_of_an_overused_resource_stay():
    """They come first by priority, but would leave the node as overused as before."""
    idle = [running(f"idle{number}", cpu="0", priority=-number) for number in range(3)]
    cluster = cluster_with(*idle, *(running(f"p{number}", cpu="3") for number in range(3)))
    process = Process(cluster)
    process.add(Imbalance, ImbalanceParams())
    async with process.running():
        await asyncio.sleep(5)
    assert [name for name in names_of(cluster) if name.startswith("idle")] == ["idle0", "idle1", "idle2"]
    assert len(names_of(cluster)) == 5


@pytest.mark.looptime
async def test_pods_of_namespaces_that_are_not_evictable_stay_but_count():
    cluster = cluster_with(*(running(f"p{number}", cpu="3") for number in range(3)))
    process = Process(cluster)
    process.add(Imbalance, ImbalanceParams(evictable_namespaces=Namespaces(exclude=["default"])))
    async with process.running():
        await asyncio.sleep(5)
    assert process.client.writes == []


@pytest.mark.looptime
@pytest.mark.parametrize("allocatable", [{}, {"cpu": "0", "memory": "0", "pods": "0"}])
@pytest.mark.parametrize("occupied", ["a", "b"])
async def test_no_pod_moves_to_or_from_a_virtual_node_with_only_cordoned_lower_nodes(allocatable, occupied):
    """It is Ready without capacity. It is not overused, and takes no pods."""
    cluster = cluster_with(*(running(f"p{number}", on=occupied) for number in range(4)))
    cordoned = node("a")
    cordoned["status"]["allocatable"] = allocatable
    cluster.put("nodes", cordoned)
    process = Process(cluster)
    process.add(Imbalance, ImbalanceParams())
    process.add(Duplicates, DuplicatesParams())
    async with process.running():
        await asyncio.sleep(5)
    assert process.client.writes == []


def test_resource_without_allocatable_is_unused_or_full():
    usage = room.Usage("a", {}, Counter(gpu=1))
    assert (usage.percent("gpu"), usage.percent("tpu")) == (100.0, 0.0)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"thresholds": {"cpu": 20}, "target_thresholds": {}}, "params.targetThresholds: write cpu too"),
        ({"thresholds": {"cpu": 60}, "target_thresholds": {"cpu": 50}}, "params.thresholds.cpu: write"),
    ],
)
@pytest.mark.looptime
async def test_threshold_errors_name_the_field(params, message):
    with pytest.raises(ConfigError, match=message):
        Process(Cluster()).add(Imbalance, ImbalanceParams(**params))
