"""The paths of kube-safe-scheduler: its results, with its defects corrected."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from multi_scheduler.extender.active import ActiveReplica, NotActiveError
from multi_scheduler.extender.server import ExtenderServer
from multi_scheduler.print_configuration import scheduler_configuration
from multi_scheduler.safe_scheduler import NO_BIND, SafeScheduler, add_routes, read_settings
from tests import objects
from tests.unit.controller_runtime.leaderelection.election import Store, lease
from tests.unit.multi_scheduler.extender.replicas import Replica

MIB = 2**20


def _node(name: str = "n", *, memory: str = "16Gi", **annotations: str) -> dict[str, Any]:
    written = {key.replace("_", "-"): value for key, value in annotations.items()}
    return objects.node(name, memory=memory, annotations=written)


def _pod(cpu: str = "0", memory: str = "0", *, init: str = "", **spec: Any) -> dict[str, Any]:
    first = [objects.container(cpu=init)] if init else []
    return objects.pod(
        containers=[objects.container(cpu=cpu, memory=memory)], **{"initContainers": first, **spec}
    )


WHOLE = {"requests": {"cpu": "1500m"}}
"""Pod-level resources."""
SIDECAR = [objects.container(cpu="800m") | {"restartPolicy": "Always"}]


README = {
    "mean_free_memory": "155597063", "std_free_memory": "30372823", "mean_free_cpu": "2500", "std_free_cpu": "400",
}  # fmt: skip
FORECASTS = {"forcasted_free_memory": "200000000", "forcasted_free_cpu": "2000"}
FULL = {
    "mean_free_cpu": "600", "std_free_cpu": "400", "mean_free_memory": "8589934592", "std_free_memory": "1073741824",
}  # fmt: skip


@pytest.mark.parametrize(
    ("node", "pod", "accepted", "overload", "balance"),
    [
        (_node(memory="256Mi", **README), _pod("200m", "20Mi"), True, 9, 6),
        (_node(memory="256Mi", **README, **FORECASTS), _pod("200m", "20Mi"), True, 9, 6),
        (_node(**FULL), _pod("500m", "512Mi"), False, 0, 4),
        (_node(), _pod("500m"), True, 5, 5),  # 0 in the original: below risky nodes
        (_node(mean_free_cpu="600"), _pod("100m"), True, 10, 6),
        (_node(mean_free_cpu="2000", std_free_cpu="500", forcasted_free_cpu="N/A"), _pod("500m"), True, 8, 5),
        (_node(mean_free_memory="155Mi"), _pod("500m"), True, 5, 5),
        (_node(mean_free_cpu="nan", std_free_cpu="nan"), _pod(), True, 5, 5),
        (_node(mean_free_cpu="2000", std_free_cpu="200"), _pod("100m"), True, 10, 6),
        (_node(mean_free_cpu="2000", std_free_cpu="200"), _pod("100m", init="1500m"), False, 0, 5),
        (_node(mean_free_cpu="2000", std_free_cpu="200"), _pod(resources=WHOLE), False, 0, 5),
        (_node(mean_free_cpu="2000", std_free_cpu="200"), _pod("700m", initContainers=SIDECAR), False, 0, 5),
    ],
)
def test_safe_scores_by_annotations(*, node, pod, accepted, overload, balance) -> None:
    """Every row of the reference, and corrected defects."""
    scheduler = SafeScheduler(read_settings({}))
    nodes = {"n": node}
    failed = scheduler.predicates()["safe-overload"](pod, nodes)
    assert (not failed) == accepted
    assert all("would exceed 90% with a probability of" in reason for reason in failed.values())
    assert scheduler.priorities()["safe-overload"](pod, nodes) == {"n": overload}
    assert scheduler.priorities()["safe-balance"](pod, nodes) == {"n": balance}


@pytest.mark.parametrize(
    ("environment", "threshold", "percentile"),
    [
        ({}, 0.9, 0.3),
        ({"SAFEUTILIZATION": "80", "SAFEPERCENTILE": "0"}, 0.8, 0.0),
        ({"SAFEUTILIZATION": "101", "SAFEPERCENTILE": "-1"}, 0.9, 0.3),
        ({"SAFEUTILIZATION": "0.8", "SAFEPERCENTILE": "x"}, 0.9, 0.3),
    ],
)
def test_reads_settings_from_the_environment(environment, threshold, percentile) -> None:
    """Invalid percentages fall back to the default."""
    found = read_settings(environment)
    assert (found.threshold, found.percentile) == (threshold, percentile)


def test_pigeon_counts_a_retried_pod_once() -> None:
    """A retry changes no score; requested amounts are in bytes."""
    used = {"n1": (1000, 4096), "n2": (2000, 2048), "n3": (3000, 8192)}
    nodes = {
        name: _node(name, requested_cpu=str(cpu), requested_memory=str(memory * MIB))
        for name, (cpu, memory) in used.items()
    }
    for objective, expected in (
        ("LOAD_BALANCE", [10, 5, 1]),
        ("CONSOLIDATE", [1, 5, 10]),
        ("A_BINPACK", [10, 7, 1]),
        ("unknown", [10, 7, 1]),
    ):
        score = SafeScheduler(read_settings({"POLICY_OBJECTIVE": objective})).priorities()["pigeon-holing"]
        for _ in range(3):
            assert list(score(_pod("500m", "1Gi"), nodes).values()) == expected


@contextlib.asynccontextmanager
async def _serving(*, bind: Any = None, active: ActiveReplica | None = None) -> AsyncIterator[Any]:
    """Run a server; yield a function that sends a call and returns status and response."""
    fake: Any = None
    server = ExtenderServer("127.0.0.1", 0, tls=None, extender=fake, active=active)
    known = {"vn-a": _node("vn-a", congestion_factor="50")}
    directory: Any = SimpleNamespace(
        node=known.get, refusal=lambda name, _node: "unknown virtual node" if name == "vn-b" else ""
    )
    add_routes(server, SafeScheduler(read_settings({})), {}, directory, bind=bind)
    await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:

            async def call(path: str, body: Any = None, *, method: str = "POST") -> tuple[int, Any]:
                data = body if isinstance(body, bytes) or body is None else json.dumps(body)
                async with session.request(method, path, data=data, allow_redirects=False) as answer:
                    text = await answer.text()
                    return answer.status, json.loads(text) if text[:1] in {"{", "["} else text

            yield call
    finally:
        await server.stop()


FILTER, PRIORITIZE = "/scheduler/predicates/safe-overload", "/scheduler/priorities/congestion"


async def test_answers_calls_with_nodes_and_with_names() -> None:
    """In the form of the call, with keys in any case; unknown names pass, but not unknown virtual nodes."""
    nodes = [_node("a", **FULL), _node("b", congestion_factor="5")]
    async with _serving() as call:
        status, answer = await call(FILTER, {"pod": _pod("500m", "512Mi"), "nodes": {"items": nodes}})
        assert status == 200
        assert [node["metadata"]["name"] for node in answer["Nodes"]["items"]] == ["b"]
        assert list(answer["FailedNodes"]) == ["a"]
        assert answer["NodeNames"] is None
        names = {"Pod": _pod(), "NodeNames": ["vn-a", "other", "vn-b"]}
        _, answer = await call(FILTER, names)
        assert answer["NodeNames"] == ["vn-a", "other"]
        assert answer["FailedAndUnresolvableNodes"] == {"vn-b": "unknown virtual node"}
        assert await call(PRIORITIZE, {"Pod": _pod(), "Nodes": {"items": nodes}}) == (
            200,
            [{"Host": "a", "Score": 10}, {"Host": "b", "Score": 10}],
        )
        assert await call(PRIORITIZE, names) == (
            200,
            [{"Host": "vn-a", "Score": 5}, {"Host": "other", "Score": 0}, {"Host": "vn-b", "Score": 0}],
        )
        empty = {"Pod": _pod(), "Nodes": {"items": []}}
        assert (await call(FILTER, empty))[1]["Nodes"]["items"] == []
        assert await call(PRIORITIZE, empty) == (200, [])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"Pod": null, "NodeNames": []}'])
async def test_answers_invalid_calls(body: bytes) -> None:
    """Including those where the original drops the connection."""
    async with _serving() as call:
        status, answer = await call(FILTER, body)
        assert status == 200
        assert (answer["Nodes"], answer["NodeNames"], answer["FailedNodes"]) == (None, None, None)
        assert answer["Error"]
        status, answer = await call(PRIORITIZE, body)
        assert status == 400
        assert answer["Error"]


async def test_refuses_while_another_replica_is_active() -> None:
    """On every path that decides about pods, in the form of its verb."""
    store = Store()
    store.create("leases", lease(holderIdentity="other", leaseDurationSeconds=15))
    replica = Replica(store, "a")
    names = {"Pod": _pod(), "NodeNames": ["vn-a"]}
    async with replica.running(), _serving(active=replica.active) as call:
        for path, expected in (
            (FILTER, 200),
            (PRIORITIZE, 503),
            ("/scheduler/preemption", 503),
            ("/scheduler/bind", 200),
        ):
            status, answer = await call(path, names)
            assert status == expected
            assert "other is the active replica" in answer["Error"]
        assert (await call("/version", method="GET"))[0] == 200


async def test_filter_path_allows_the_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the extender's own filter path does."""
    monkeypatch.setattr("multi_scheduler.extender.active.SETTLE_SECONDS", 0)
    replica = Replica(Store(), "a")
    async with replica.running(), _serving(active=replica.active) as call:
        assert (await call(FILTER, {"Pod": _pod(), "NodeNames": ["vn-a"]}))[1]["NodeNames"] == ["vn-a"]
        replica.active.check_filtered("web")
        with pytest.raises(NotActiveError):
            replica.active.check_filtered("web")


async def test_serves_other_paths() -> None:
    """Version, bind without the right to it, wrong methods, unknown names, a trailing slash."""
    async with _serving() as call:
        assert (await call("/version", method="GET"))[0] == 200
        assert await call("/scheduler/bind", b"{") == (200, {"Error": NO_BIND})
        assert (await call(FILTER, method="GET"))[0] == 405
        assert (await call("/scheduler/predicates/other", b"{}"))[0] == 404
        assert (await call(f"{FILTER}/", b"{}"))[0] == 307
        _, answer = await call("/scheduler/priorities/foo", {"Pod": _pod(), "Nodes": {"items": [_node("a")]}})
        assert answer == [{"Host": "a", "Score": 1}]


def test_scheduler_configuration_has_an_entry_for_each_agent() -> None:
    """With the verbs that it serves; the fit agent preempts, and the first entry binds."""
    agents = {"fit": 2, "safe-overload": 1, "safe-balance": 10}
    made = scheduler_configuration("http://127.0.0.1:8888", agents=agents, bind=True)["extenders"]
    keys = ("filterVerb", "prioritizeVerb", "preemptVerb", "bindVerb", "weight")
    assert [tuple(one.get(key) for key in keys) for one in made] == [
        ("predicates/fit", "priorities/fit", "preemption", "bind", 2),
        ("predicates/safe-overload", "priorities/safe-overload", None, None, 1),
        (None, "priorities/safe-balance", None, None, 10),
    ]
    assert {one["urlPrefix"] for one in made} == {"http://127.0.0.1:8888/scheduler"}
