"""Searches for lower nodes find an arrangement exactly if there is one, compared with all combinations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from unittest.mock import Mock

from hypothesis import example, given
from hypothesis import strategies as st

from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import demand, placed_on
from multi_scheduler.state.placing import Entry, Work, arrange, make_room, settle

_HOSTNAME = "kubernetes.io/hostname"


def index_of(nodes: Sequence[dict[str, Any]]) -> ClusterIndex:
    """Return an index with nodes of these resources; ``disk``: the label of that name."""
    index = ClusterIndex()
    for number, node in enumerate(nodes):
        allocatable = {name: str(count) for name, count in node.items() if name != "disk"}
        index.upsert_node(
            {
                "metadata": {"name": f"n{number}", "labels": _labels(number, node)},
                "status": {"allocatable": {**allocatable, "pods": "99"}},
            }
        )
    index.touched.clear()
    return index


def _labels(number: int, node: dict[str, Any]) -> dict[str, str]:
    return {"disk": node.get("disk", "slow"), _HOSTNAME: f"n{number}"}


def entry(name: str, pod: dict[str, Any], node: str = "") -> Entry:
    """Return a reservation; ``pod`` has resources, and optionally ``fast``, ``port`` and ``apart``, ``near`` (labels)."""
    requests = {key: str(count) for key, count in pod.items() if key in ("cpu", "memory")}
    container: dict[str, Any] = {"name": "c", "resources": {"requests": requests}}
    if port := pod.get("port"):
        container["ports"] = [{"hostPort": port, "containerPort": port}]
    affinity = {
        kind: {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": _HOSTNAME, "labelSelector": {"matchLabels": {"app": pod[field]}}}
            ]
        }
        for kind, field in (("podAntiAffinity", "apart"), ("podAffinity", "near"))
        if pod.get(field)
    }
    annotations = {"clusterSelector": '{"nodeSelector": {"disk": "fast"}}'} if pod.get("fast") else {}
    body = {
        "metadata": {
            "name": name,
            "uid": name,
            "namespace": "shop",
            "labels": {"app": pod.get("app", "")},
            "annotations": annotations,
        },
        "spec": {"containers": [container], "affinity": affinity},
    }
    return Entry(name, demand(body), rank=(2, 0, int(name[1:] or 0)), node=node)


def put(index: ClusterIndex, entries: Sequence[Entry], nodes: Sequence[str]) -> bool:
    """Place entries one after the other; return whether all fit, and nothing is placed if they do not."""
    done = []
    for one, node in zip(entries, nodes, strict=True):
        if not index.feasible(one.wanted, only=node):
            break
        index.place(one.key, placed_on(node, one.wanted))
        done.append(one)
    if len(done) == len(entries):
        return True
    for one in done:
        index.remove(one.key)
    return False


def can_fit(index: ClusterIndex, entries: Sequence[Entry]) -> bool:
    """Report whether any combination of nodes has room for all entries, which are not placed."""
    names = [node.name for node in index.nodes()]
    for nodes in itertools.product(names, repeat=len(entries)):
        if put(index, entries, nodes):
            for one in entries:
                index.remove(one.key)
            return True
    return False


NODES = st.lists(
    st.fixed_dictionaries(
        {"cpu": st.integers(1, 6), "memory": st.integers(1, 6)}, optional={"disk": st.just("fast")}
    ),
    min_size=1,
    max_size=3,
)
PLAIN = st.fixed_dictionaries(
    {"cpu": st.integers(0, 4), "memory": st.integers(0, 4)}, optional={"fast": st.booleans()}
)
CONSTRAINED = st.fixed_dictionaries(
    {"cpu": st.integers(1, 2)},
    optional={
        "fast": st.booleans(),
        "port": st.sampled_from([80, 81]),
        "app": st.sampled_from(["a", "b"]),
        "apart": st.sampled_from(["a", "b"]),
    },
)
PODS = st.lists(PLAIN, min_size=1, max_size=5) | st.lists(CONSTRAINED, min_size=1, max_size=5)


@given(nodes=NODES, pods=PODS)
@example(
    nodes=[{"cpu": 1}, {"cpu": 1}, {"cpu": 2}],
    pods=[
        {"cpu": 1, "app": "a"},
        {"cpu": 1, "port": 80, "apart": "a"},
        {"cpu": 1, "port": 80},
        {"cpu": 1, "port": 80},
    ],
)
def test_arrangement_is_found_exactly_if_there_is_one(nodes, pods):
    index = index_of(nodes)
    entries = [entry(f"p{number}", pod) for number, pod in enumerate(pods)]
    found = arrange(index, entries, [], Work())
    assert not list(index.pods())
    assert (found is not None) == can_fit(index, entries)
    if found is not None:
        assert put(index, entries, [found[one.key] for one in entries])


@given(nodes=NODES, pods=PODS, choices=st.lists(st.integers(0, 2), min_size=5, max_size=5), data=st.data())
def test_reservations_lose_their_room_only_if_there_is_no_room(nodes, pods, choices, data):
    """After a node changes, all get a node, or no combination has room for all. Those placed have room."""
    index = index_of(nodes)
    entries = {}
    for number, pod in enumerate(pods):
        made = entry(f"p{number}", pod, f"n{choices[number] % len(nodes)}")
        if put(index, [made], [made.node]):
            entries[made.key] = made
    changed = data.draw(st.integers(0, len(nodes) - 1))
    size = data.draw(st.integers(0, 6))
    index.upsert_node(
        {
            "metadata": {"name": f"n{changed}", "labels": _labels(changed, nodes[changed])},
            "status": {"allocatable": {"cpu": str(size), "memory": str(size), "pods": "99"}},
        }
    )
    lost = settle(index, entries)
    placed = [one for one in entries.values() if one.node]
    assert {one.key for one in lost} == {one.key for one in entries.values() if not one.node}
    for one in entries.values():
        index.remove(one.key)
    assert put(index, placed, [one.node for one in placed])
    for one in entries.values():
        index.remove(one.key)
    if lost:
        assert not can_fit(index, list(entries.values()))


def test_pod_that_another_one_follows_does_not_make_way():
    """F must run beside A, and N could take A's room only if A left F."""
    index = index_of([{"cpu": 3}, {"cpu": 1}])
    reserved = [entry("p1", {"cpu": 1, "app": "a"}, "n0"), entry("p2", {"cpu": 1, "near": "a"}, "n0")]
    assert put(index, reserved, ["n0", "n0"])
    assert make_room(index, entry("p3", {"cpu": 2}), reserved, Work()) is None


def test_thousand_waiting_pods_cost_little_when_a_node_changes(monkeypatch):
    """A tenant can make them with ``spec.nodeName``, each with other requests."""
    index = index_of([{"cpu": 1, "memory": 1}] * 100)
    for number in range(100):
        index.place(f"user-{number}", placed_on(f"n{number}", entry("p0", {"cpu": 1}).wanted))
    waiting = {
        one.key: one for one in (entry(f"p{number}", {"cpu": 9000 + number}) for number in range(1000))
    }
    rounds = 1
    while settle(index, waiting) or any(one.is_skipped for one in waiting.values()):
        rounds += 1
    assert rounds < 100
    asked = Mock(side_effect=index.feasible)
    monkeypatch.setattr(index, "feasible", asked)
    index.touched.add("n0")
    settle(index, waiting)
    asked.assert_not_called()


def test_reservations_past_the_limit_of_work_get_their_room_next_time():
    index = index_of([{"cpu": 1}] * 500)
    waiting = {one.key: one for one in (entry(f"p{number}", {"cpu": 1}) for number in range(400))}
    settle(index, waiting)
    assert any(one.is_skipped for one in waiting.values())
    for _ in range(10):
        settle(index, waiting)
    assert all(one.node for one in waiting.values())
    assert not any(one.is_skipped for one in waiting.values())
