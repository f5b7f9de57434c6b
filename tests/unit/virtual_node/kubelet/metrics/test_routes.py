"""The kubelet's metrics when the lower cluster answers late, refuses, or has rates only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request
from prometheus_client.parser import text_string_to_metric_families

from controller_runtime.errors import ConfigError, ConnectionFailed, Forbidden
from virtual_node.kubelet.metrics import MetricsRoutes
from virtual_node.kubelet.series import NodeSeries
from virtual_node.metrics import pod_work
from virtual_node.translate.nodes.prometheus_text import PodNames

PODS = {("u-shop", "web"): PodNames("shop", "web", "uid-1")}
NODE = b"node_cpu_usage_seconds_total 5 1000\nnode_memory_working_set_bytes 7 1000\n"

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]


class _Lower:
    """A lower cluster: responses of its proxy and its metrics API, a second later."""

    def __init__(self, *, proxy: bool = True) -> None:
        self.asked: list[str] = []
        self.proxy = proxy
        self.failing: dict[str, Exception | bytes] = {}
        """Responses or errors of nodes instead."""
        self.silent: set[str] = set()
        self.refused_lists: set[str] = set()
        self.cores = {"n1": "2", "n2": "1"}
        self.used = "500m"
        self.at = "2026-01-01T00:00:00Z"

    async def request(self, _method: str, path: str, *, timeout: float, **_more: Any) -> bytes:  # noqa: ASYNC109
        self.asked.append(path)
        if "/proxy/" in path:
            return await self._node(path.split("/")[4], timeout)
        await asyncio.sleep(1)
        if path == "/apis/metrics.k8s.io":
            return b'{"versions": [{"version": "v1beta1"}]}'
        what = path.rpartition("/")[2]
        if what in self.refused_lists:
            raise Forbidden("no", code=403)
        sample = {"timestamp": self.at, "window": "20s"}
        items: list[dict[str, Any]]
        if what == "nodes":
            items = [
                {"metadata": {"name": name}, **sample, "usage": {"cpu": cpu, "memory": "1Mi"}}
                for name, cpu in self.cores.items()
            ]
        else:
            container = {"name": "c", "usage": {"cpu": self.used, "memory": "2Mi"}}
            items = [
                {"metadata": {"namespace": "u-shop", "name": "web"}, **sample, "containers": [container]}
            ]
        return msgspec.json.encode({"items": items})

    async def read(self, path: str, **more: Any) -> dict[str, Any]:
        return dict(msgspec.json.decode(await self.request("GET", path, **more)))

    @asynccontextmanager
    async def receive(self, method: str, path: str, **more: Any) -> AsyncIterator[bytes]:
        yield await self.request(method, path, **more)

    async def _node(self, name: str, timeout: float) -> bytes:  # noqa: ASYNC109
        if name in self.silent:
            await asyncio.sleep(timeout)
            raise ConnectionFailed("no answer in time")
        await asyncio.sleep(1)
        if not self.proxy:
            raise Forbidden("no", code=403)
        answer = self.failing.get(name, NODE)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _routes(lower: Any, nodes: tuple[str, ...] = ("n1", "n2")) -> MetricsRoutes:
    return MetricsRoutes(
        lower,
        node_name="vn",
        lower_nodes=lambda: list(nodes),
        pods=lambda: PODS,
        cluster_id="upper",
        series=NodeSeries("vn", certificate_expires=lambda: None, work=pod_work()),
    )


async def _get(routes: MetricsRoutes, path: str = "/metrics/resource") -> str:
    handler: Any = next(route.handler for route in routes.routes() if route.path == path)
    answer = await handler(make_mocked_request("GET", path))
    assert isinstance(answer.body, bytes)
    return answer.body.decode()


def _values(text: str) -> dict[str, float]:
    return {
        sample.name: sample.value for one in text_string_to_metric_families(text) for sample in one.samples
    }


CPU, CONTAINER_CPU = "node_cpu_usage_seconds_total", "container_cpu_usage_seconds_total"
SCRAPE_ERROR = "resource_scrape_error"


@pytest.mark.parametrize(("failing", "expected"), [((), 0), (("n1",), 1), (("n1", "n2"), 1)])
async def test_reports_like_a_kubelet_whether_usage_could_be_read(failing: tuple[str], expected: int):
    lower = _Lower()
    lower.failing = dict.fromkeys(failing, ConnectionFailed("away"))
    assert _values(await _get(_routes(lower)))[SCRAPE_ERROR] == expected


async def test_reports_an_error_where_no_source_of_usage_answers():
    lower = _Lower(proxy=False)
    lower.refused_lists = {"nodes", "pods"}
    assert _values(await _get(_routes(lower))) == {SCRAPE_ERROR: 1}


async def test_swap_is_the_sum_of_the_nodes_that_report_it():
    lower = _Lower()
    lower.failing = {"n1": NODE + b"node_swap_usage_bytes 4 1000\n"}
    assert _values(await _get(_routes(lower)))["node_swap_usage_bytes"] == 4


async def test_scrapers_share_one_round():
    """Concurrent requests and those shortly after get the same response; later ones a new one."""
    lower = _Lower()
    routes = _routes(lower)
    await asyncio.gather(*(_get(routes) for _ in range(5)))
    await _get(routes)
    assert len(lower.asked) == 2
    await asyncio.sleep(6)
    await _get(routes)
    assert len(lower.asked) == 4


async def test_a_cancelled_scraper_does_not_affect_the_others():
    """The round continues."""
    routes = _routes(_Lower())
    first = asyncio.create_task(_get(routes))
    second = asyncio.create_task(_get(routes))
    await asyncio.sleep(0.5)
    first.cancel()
    assert _values(await second)[CPU] == 10


@pytest.mark.parametrize(
    "answer",
    [
        b'"no summary"',
        b"{",
        b"{}",
        b"node_cpu_usage_seconds_total five 1000",
        b'container_cpu_usage_seconds_total{pod="web"} 5 1000',
        ConnectionFailed("away"),
        ConfigError("no token"),
    ],
)
@pytest.mark.parametrize("path", ["/stats/summary", "/metrics/resource"])
async def test_a_failing_kubelet_costs_only_its_own_part(path: str, answer: Exception | bytes):
    """Unreachable or with an invalid response."""
    lower = _Lower()
    lower.failing = {"n1": answer}
    if path == "/stats/summary":
        node = {"nodeName": "n2", "cpu": {"usageCoreNanoSeconds": 5 * 10**9}}
        lower.failing["n2"] = msgspec.json.encode({"node": node})
    text = await _get(_routes(lower), path)
    if path == "/stats/summary":
        assert msgspec.json.decode(text)["node"]["cpu"]["usageCoreNanoSeconds"] == 5 * 10**9
    else:
        assert _values(text)[CPU] == 5


async def test_hanging_kubelets_do_not_block_the_scraper():
    """A scraper waits ten seconds, for any number of unreachable nodes."""
    lower = _Lower()
    nodes = tuple(f"n{number}" for number in range(120))
    lower.silent = set(nodes[:100])
    loop = asyncio.get_running_loop()
    before = loop.time()
    text = await _get(_routes(lower, tuple(reversed(nodes))))
    assert loop.time() - before < 10
    assert _values(text)[CPU] == 20 * 5


async def test_a_refused_proxy_is_replaced_by_the_metrics_api():
    """Counters are integrals of rates, and do not decrease when a node leaves."""
    lower = _Lower(proxy=False)
    routes = _routes(lower)
    first = await _get(routes)
    lower.at = "2026-01-01T00:00:10Z"
    await asyncio.sleep(6)
    second = await _get(routes)
    assert _values(second)[CPU] - _values(first)[CPU] == pytest.approx(30)
    assert 'container_cpu_usage_seconds_total{container="c",namespace="shop",pod="web"}' in second
    types = [line for line in second.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types)) == 5
    del lower.cores["n1"]
    lower.at = "2026-01-01T00:00:20Z"
    await asyncio.sleep(6)
    assert _values(await _get(routes))[CPU] - _values(second)[CPU] == pytest.approx(10)


async def test_the_metrics_api_is_read_once_for_all_scrapers():
    """For both routes; kubelets that refused are skipped for a while."""
    lower = _Lower(proxy=False)
    routes = _routes(lower)
    await asyncio.gather(
        *(_get(routes, path) for path in ("/metrics/resource", "/stats/summary") for _ in "ab")
    )
    assert sum("metrics.k8s.io/" in path for path in lower.asked) == 2
    lower.asked.clear()
    await asyncio.sleep(10)
    await _get(routes)
    assert lower.asked == ["/apis/metrics.k8s.io/v1beta1/nodes", "/apis/metrics.k8s.io/v1beta1/pods"]
    lower.proxy = True
    await asyncio.sleep(60)
    assert _values(await _get(routes))[CPU] == 10


@pytest.mark.parametrize(("used", "expected"), [("500m", 10.0), ("25n", 0.001), ("0", 0.001)])
async def test_a_counter_never_begins_at_zero(used: str, expected: float):
    """It starts with the first sample's window, because metrics-server drops pods with a container that has used nothing."""
    lower = _Lower(proxy=False)
    lower.used = used
    assert _values(await _get(_routes(lower)))[CONTAINER_CPU] == pytest.approx(expected)


@pytest.mark.parametrize(("refused", "left"), [("nodes", CONTAINER_CPU), ("pods", CPU)])
async def test_one_half_of_the_metrics_api_suffices(refused: str, left: str):
    """Autoscalers need pods, with or without the right to nodes."""
    lower = _Lower(proxy=False)
    lower.refused_lists = {refused}
    values = _values(await _get(_routes(lower)))
    assert left in values
    assert values[SCRAPE_ERROR] == 0
    assert len(values) == 3


async def test_the_summary_falls_back_as_well():
    """Under the upper names."""
    found = msgspec.json.decode(await _get(_routes(_Lower(proxy=False)), "/stats/summary"))
    assert found["node"]["nodeName"] == "vn"
    assert found["node"]["memory"]["workingSetBytes"] == 2 * 1024**2
    (pod,) = found["pods"]
    assert pod["podRef"] == {"name": "web", "namespace": "shop", "uid": "uid-1"}


async def test_a_node_that_changes_its_source_does_not_look_like_a_reboot():
    """The sample of the other source may be older, so its counter may be smaller."""
    lower = _Lower()
    routes = _routes(lower, ("n1",))

    async def seconds(answer: bytes) -> float:
        lower.failing["n1"] = answer
        await asyncio.sleep(60)  # until no response is reused
        found = msgspec.json.decode(await _get(routes, "/stats/summary"))
        return float(found["node"]["cpu"]["usageCoreNanoSeconds"]) / 1e9

    summary = b'{"node": {"cpu": {"usageCoreNanoSeconds": %d}}}'
    assert await seconds(summary % 10e9) == 10
    assert await seconds(NODE) == 10
    assert await seconds(summary % 12e9) == 10
    assert await seconds(summary % 13e9) == 11


@pytest.mark.parametrize(
    "container",
    [
        {"name": 'c",pod="ledger-0', "usage": {"cpu": "1", "memory": "1"}},
        {"name": "c\nkube_pod_owner 1", "usage": {"cpu": "1", "memory": "1"}},
        {"name": "c", "usage": {"cpu": "x", "memory": "1"}},
        {"name": "c", "usage": {"cpu": "9" * 400 + "n", "memory": "1"}},
        {"name": "c", "usage": "none"},
        {"name": ["c"], "usage": {"cpu": "1", "memory": "1"}},
    ],
    ids=["label", "line", "cpu", "huge", "usage", "name"],
)
async def test_a_malformed_container_of_the_metrics_api_is_left_out(container: dict[str, Any]):
    """Its name would become part of a line, and an error would hide the usage of all pods."""

    class Hostile(_Lower):
        async def request(self, _method: str, path: str, *, timeout: float, **more: Any) -> bytes:  # noqa: ASYNC109
            answer = await super().request(_method, path, timeout=timeout, **more)
            if path.endswith("/pods"):
                body = msgspec.json.decode(answer)
                body["items"].insert(0, {**body["items"][0], "containers": [container]})
                return msgspec.json.encode(body)
            return answer

    text = await _get(_routes(Hostile(proxy=False)))
    lines = [line for line in text.splitlines() if not line.startswith(("#", "node_", "resource_"))]
    assert len(lines) == 2
    assert all('{container="c",namespace="shop",pod="web"}' in line for line in lines)
