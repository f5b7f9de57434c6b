"""Pods take a divisible resource from single devices."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multi_scheduler.state.cluster.index import ClusterIndex, DeviceColumn, parts
from multi_scheduler.state.cluster.pod_requirements import Placed, demand
from tests import objects

GPU = "koordinator.sh/gpu-core"


def _index(*gpus: int) -> ClusterIndex:
    index = ClusterIndex({GPU: 100})
    for number, gpu in enumerate(gpus):
        index.upsert_node(objects.node(f"n{number}", more={GPU: str(gpu)}))
    return index


def _names(index: ClusterIndex, units: int) -> list[str]:
    return [index.name(slot) for slot in index.feasible(_demand(units))]


def _demand(units: int) -> Any:
    container = {"name": "c", "resources": {"requests": {GPU: str(units)}}}
    return demand({"metadata": {}, "spec": {"containers": [container]}})


@pytest.mark.parametrize(
    ("count", "expected"), [(1, (1, 1)), (99, (1, 99)), (100, (1, 100)), (150, (2, 100)), (800, (8, 100))]
)
def test_a_request_is_a_share_of_one_device_or_whole_devices(count, expected):
    """Smaller than one device: a share."""
    assert parts(count, 100) == expected


def test_free_shares_of_two_devices_do_not_add_up():
    """The pod needs one device with room for its share."""
    index = _index(200, 100)
    index.place("a", Placed("n0", {GPU: 60}, devices=[0]))
    index.place("b", Placed("n0", {GPU: 60}, devices=[1]))
    index.place("c", Placed("n1", {GPU: 70}))
    assert index.devices[GPU].free == [(40, 40), (30,)]
    assert _names(index, 40) == ["n0"]
    reasons: Counter[str] = Counter()
    assert index.feasible(_demand(50), reasons) == []
    assert reasons == {f"Insufficient {GPU}": 2}
    index.remove("b")
    assert _names(index, 100) == ["n0"]


def test_assumes_the_tightest_fitting_device_if_unknown():
    """Whole devices stay free as long as possible."""
    index = _index(400)
    for uid, units in (("a", 70), ("b", 50), ("c", 30), ("d", 200)):
        index.place(uid, Placed("n0", {GPU: units}))
    assert index.devices[GPU].free == [(0, 50, 0, 0)]


def test_counts_devices_again_when_a_node_comes_back():
    """Pods may be known before their node."""
    index = ClusterIndex({GPU: 100})
    index.place("early", Placed("n0", {GPU: 100}, devices=[1]))
    index.upsert_node(objects.node("n0", more={GPU: "250"}))
    assert index.devices[GPU].free == [(100, 0, 50)]
    index.remove_node("n0")
    assert _names(index, 1) == []
    index.remove("early")
    index.upsert_node(objects.node("n0", more={GPU: "200"}))
    assert index.devices[GPU].free == [(100, 100)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 250)), max_size=40))
def test_devices_sum_to_the_free_column(steps):
    """After any placements and removals, including overcommitment; only rounding up to whole devices differs."""
    column, taken = DeviceColumn(100, 1), dict[str, int]()
    column.reset(0, 400, ())
    for number, units in steps:
        uid = f"pod-{number}"
        if uid in taken:
            column.give(0, uid, taken.pop(uid))
        else:
            column.take(0, uid, units)
            taken[uid] = units
    number_of = {uid: parts(units, 100) for uid, units in taken.items()}
    expected = sum(min(number, 4) * share for number, share in number_of.values())
    assert sum(column.free[0]) == 400 - expected
