"""Room on virtual nodes."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from controller_runtime.apimachinery import timestamps
from descheduler import room
from descheduler.room import Usage
from tests.unit.descheduler.bodies import START, cached, pod

ALLOCATABLE = {"cpu": 4000, "memory": 8, "pods": 10}


def usage(name: str = "b", **requested: int) -> Usage:
    return Usage(name, ALLOCATABLE, Counter(requested))


@pytest.mark.parametrize(
    ("used", "requests", "lacking"),
    [
        ({}, {"cpu": 4000, "memory": 8, "pods": 1}, []),
        ({"cpu": 1}, {"cpu": 4000, "memory": 9, "pods": 1}, ["cpu", "memory"]),
        ({"pods": 10}, {"pods": 1}, ["pods"]),
        ({}, {"gpu": 1}, ["gpu"]),
        ({"cpu": 9000}, {"cpu": 0, "pods": 1}, []),  # as in kube-scheduler
    ],
)
def test_lacking_names_resources_without_room(
    used: dict[str, int], requests: dict[str, int], lacking: list[str]
):
    assert Usage("b", ALLOCATABLE, Counter(used)).lacking(requests) == lacking


@pytest.mark.parametrize(
    ("usages", "name"),
    [
        ([usage("b", cpu=3000), usage("c", cpu=1000)], "c"),
        ([usage("b", cpu=1000, pods=9), usage("c", cpu=1000)], "c"),
        ([usage("c"), usage("b")], "b"),
        ([usage("b", cpu=3500)], None),
        ([], None),
    ],
)
def test_taker_is_the_least_used_node_with_room(usages: list[Usage], name: str | None):
    found = room.taker({"cpu": 1000, "pods": 1}, usages)
    assert (found.name if found is not None else None) == name


def test_reason_names_nodes_and_resources():
    why = room.why_none({"cpu": 1000, "memory": 8}, [usage("b", cpu=4000), usage("c", cpu=4000, memory=1)])
    assert why == "no other ready virtual node has room for it: b lacks cpu, c lacks cpu, memory"


def refused(seconds: float) -> Any:
    moment = timestamps.rfc3339(START - timedelta(seconds=seconds))
    return {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "lastTransitionTime": moment}],
    }


@pytest.mark.parametrize(
    ("status", "deleted", "takes"),
    [
        ({"phase": "Pending"}, None, True),
        (refused(10), None, True),
        (refused(61), None, False),
        ({"phase": "Pending"}, "2026-01-01T00:00:00Z", False),
        ({"phase": "Failed"}, None, False),
    ],
)
def test_waiting_pod_takes_room_unless_it_was_refused_for_a_minute(status, deleted, takes):
    body = {**pod(on=""), "status": status}
    if deleted:
        body["metadata"]["deletionTimestamp"] = deleted
    assert room.will_take_room(cached(body), START) is takes
