"""The parts of ``bench_exact`` that need no clusters: its pods, and what it counts."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace
from typing import Any

import pytest

from clusterset.model import names
from controller_runtime.client.limits import CacheBudget
from controller_runtime.objects import Object, from_dict
from hack.sandbox.nodes.kwok import kwok_node
from tests.benchmarks.exact import pods, tables
from tests.benchmarks.exact.bursts import Outcome
from tests.benchmarks.exact.watching import LowerCluster, Story, demand_of, requirements

_VERSIONS = itertools.count(1)


@pytest.fixture
def cluster() -> LowerCluster:
    """A lower cluster with two nodes of two cores."""
    client: Any = SimpleNamespace(cluster="lower1", caches=CacheBudget(0, cluster="lower1"))
    found = LowerCluster(client, Story())
    for name in ("x", "y"):
        found.nodes.change("ADDED", from_dict(kwok_node(name, cpu="2")))
    return found


def _lower(name: str, *, cpu: int, node: str = "", prefers: str = "", refused: bool = False) -> Object:
    body = pods.Wanted(name, cpu, 64).lower()
    body["metadata"] |= {
        "uid": f"lower-{name}",
        "namespace": pods.NAMESPACE,
        "resourceVersion": str(next(_VERSIONS)),
        "labels": {names.LABEL_UPPER_UID: name},
    }
    if node:
        body["spec"]["nodeName"] = node
    if prefers:
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [prefers]}]}
        terms = [{"weight": 100, "preference": term}]
        body["spec"]["affinity"] = {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}
        }
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return from_dict({**body, "status": {"conditions": [condition] if refused else []}})


def test_a_seed_determines_bursts_that_request_more_than_there_is():
    bursts = pods.bursts(7, pods=300, overfill=1.5)
    assert bursts == pods.bursts(7, pods=300, overfill=1.5) != pods.bursts(8, pods=300, overfill=1.5)
    assert sum(map(len, bursts)) >= 300
    assert all(sum(pod.cpu for pod in burst) >= 1.5 * pods.TOTAL for burst in bursts)


def test_a_pod_requires_the_same_of_lower_nodes_in_both_forms():
    """The lower schedulers are asked with the second form."""
    for wanted in pods.bursts(7, pods=100, overfill=1)[0]:
        upper, lower = demand_of(from_dict(wanted.upper())), requirements(wanted.lower())
        assert (upper.requests, upper.ports, upper.spec) == (lower.requests, lower.ports, lower.spec)
        assert [len(upper.anti_affinity), len(upper.spread)] == [len(lower.anti_affinity), len(lower.spread)]


@pytest.mark.parametrize(("taken", "had_room"), [(0, True), (2000, False)])
def test_tells_ignored_preferences_from_nodes_without_room(
    cluster: LowerCluster, *, taken: int, had_room: bool
):
    if taken:
        cluster.pods.change("ADDED", _lower("other", cpu=taken, node="x"))
    cluster.pods.change("ADDED", _lower("p", cpu=1000, prefers="x"))
    cluster.pods.change("MODIFIED", _lower("p", cpu=1000, prefers="x", node="y"))
    (found,) = cluster.preferences
    assert (found.pod, found.preferred, found.node, found.had_room) == ("p", "x", "y", had_room)


def test_counts_pods_that_a_lower_scheduler_could_not_place_for_a_time_or_until_the_end(
    cluster: LowerCluster,
):
    for name in ("soon", "never"):
        cluster.pods.change("ADDED", _lower(name, cpu=1000))
        cluster.pods.change("MODIFIED", _lower(name, cpu=1000, refused=True))
    cluster.pods.change("MODIFIED", _lower("soon", cpu=1000, node="x"))
    cluster.end_burst()
    assert math.isfinite(cluster.unschedulable["soon"])
    assert math.isinf(cluster.unschedulable["never"])
    cluster.start_burst()
    assert not cluster.unschedulable


def test_table_and_plot_have_a_row_for_each_variant():
    sums = Outcome()
    sums += Outcome(pods=200, bound=150, promised_twice=3, waiting=50, waiting_although_fit=6)
    variants = [{"variant": "one", **sums.figures()}, {"variant": "two", **Outcome(pods=200).figures()}]
    record = {"figures": {"variants": variants, "groups": {}, "demo": {}, "manyNodes": {}, "targets": []}}
    assert "| one | 200 | 150 | 3 | 0 | 50 | 6 | 0 | 0 |" in tables.exact(record)
    (chart,) = tables.exact_charts(record).values()
    assert [[bar.mean for bar in row.bars if bar] for row in chart.rows] == [[1.5, 3.0], [0.0, 0.0]]
    assert chart.high >= 3
