"""Pods of a workload are one entry, with one line per cause."""

from __future__ import annotations

from typing import Any

import pytest

from virtual_node.web.groups import Groups, Row, causes_of
from virtual_node.web.reading import make_row, owner_of


def _row(name: str, state: str, *, status: str = "Running", why: str = "", owner: str = "web") -> Row:
    shown = {
        "namespace": "shop", "name": name, "state": state, "status": status, "why": why, "cluster": "tokyo",
        "restarts": 1, "created": f"2026-01-0{1 + len(name) % 9}T00:00:00Z",
    }  # fmt: skip
    return Row(uid=f"uid-{name}", shown=shown, text=name, owner=("Deployment", owner))


@pytest.mark.parametrize(
    ("metadata", "owner"),
    [
        ({"name": "web"}, ("Pod", "web")),
        (
            {
                "name": "web-5d-x",
                "labels": {"pod-template-hash": "5d"},
                "ownerReferences": [{"kind": "ReplicaSet", "name": "web-5d", "controller": True}],
            },
            ("Deployment", "web"),
        ),
        (
            {
                "name": "web-5d",
                "ownerReferences": [{"kind": "ReplicaSet", "name": "web-5d", "controller": True}],
            },
            ("ReplicaSet", "web-5d"),
        ),
        (
            {"name": "db-0", "ownerReferences": [{"kind": "StatefulSet", "name": "db", "controller": True}]},
            ("StatefulSet", "db"),
        ),
        ({"name": "web", "ownerReferences": [{"kind": "Something", "name": "x"}]}, ("Pod", "web")),
    ],
)
def test_finds_the_workload_of_a_pod(metadata: dict[str, Any], owner: tuple[str, str]) -> None:
    """The Deployment instead of its ReplicaSet; without a controller the pod itself."""
    assert owner_of(metadata) == owner


def test_the_same_cause_of_many_pods_is_one_line() -> None:
    """Names and uids of the pods themselves are ignored."""
    rows = [
        _row(name, "trouble", status="CrashLoopBackOff", why=f"back-off pod={name}_shop(uid-{name})")
        for name in ("web-a", "web-b", "web-c")
    ]
    rows.append(_row("web-d", "trouble", status="ImagePullBackOff", why="no such image"))
    rows.append(_row("web-e", "running"))
    assert [(one["status"], one["count"], one["pod"], one["why"]) for one in causes_of(rows)] == [
        ("CrashLoopBackOff", 3, "web-a", "back-off pod=…_shop(…)"),
        ("ImagePullBackOff", 1, "web-d", "no such image"),
    ]


def test_a_long_cause_is_cut() -> None:
    """So that a list of many workloads stays small."""
    (cause,) = causes_of([_row("web", "trouble", why="x" * 5000)])
    assert len(cause["why"]) == 400


def test_the_workload_with_faults_comes_first() -> None:
    """By its worst pod, then by name; the limit cuts off healthy ones."""
    groups = Groups()
    for row in (
        _row("a", "running", owner="a"),
        _row("b1", "running", owner="b"),
        _row("b2", "trouble", owner="b"),
        _row("c", "unplaced", owner="c"),
        _row("d", "finished", owner="d"),
    ):
        groups.add(row)
    assert groups.first(3) == ["shop/Deployment/b", "shop/Deployment/c", "shop/Deployment/a"]
    assert [row.shown["name"] for row in groups.rows("shop/Deployment/b")] == ["b2", "b1"]
    assert groups.counts == {"running": 2, "trouble": 1, "unplaced": 1, "finished": 1}


def test_describes_a_workload() -> None:
    """Counts by state, all clusters, the sum of restarts."""
    groups = Groups()
    groups.add(_row("b1", "running"))
    groups.add(_row("b2", "trouble", status="Error"))
    shown = groups.describe("shop/Deployment/web")
    assert (shown["total"], shown["counts"], shown["restarts"], shown["only"]) == (
        2,
        {"trouble": 1, "running": 1},
        2,
        "",
    )
    assert shown["clusters"] == ["tokyo"]


_POD = {
    "metadata": {"namespace": "shop", "name": "web", "uid": "u"},
    "spec": {"nodeName": "vn", "containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]},
}
_RUNS = [{"name": "a", "ready": True, "state": {"running": {}}}]


@pytest.mark.parametrize(
    ("status", "cluster", "is_stale", "state"),
    [
        ({"phase": "Running", "containerStatuses": _RUNS}, "tokyo", False, "running"),
        ({"phase": "Running", "containerStatuses": _RUNS}, "tokyo", True, "stale"),
        ({"phase": "Succeeded"}, "tokyo", True, "finished"),
        ({"phase": "Failed", "reason": "Evicted"}, "tokyo", False, "failed"),
        ({"phase": "Pending"}, "tokyo", False, "trouble"),
        ({"phase": "Pending"}, "", False, "unplaced"),
    ],
)
def test_state_of_a_pod(status: dict[str, Any], cluster: str, *, is_stale: bool, state: str) -> None:
    """A lost cluster's pods are never shown as running; finished ones are finished."""
    assert make_row({**_POD, "status": status}, None, cluster, is_stale=is_stale).state == state


def test_finished_pods_request_nothing() -> None:
    running = make_row({**_POD, "status": {"phase": "Running"}}, None, "tokyo")
    finished = make_row({**_POD, "status": {"phase": "Failed"}}, None, "tokyo")
    assert (running.requests, finished.requests) == ({"cpu": 1000, "pods": 1}, {})
