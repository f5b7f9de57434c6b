"""The kubelet's metrics when the lower cluster answers late, refuses, or knows rates only."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from controller_runtime.errors import Forbidden
from virtual_node.kubelet.metrics import MetricsRoutes
from virtual_node.translate.prometheus_text import PodNames

PODS = {("u-shop", "web"): PodNames("shop", "web", "uid-1")}


class _Lower:
    """A lower cluster: what its proxy and its metrics API say."""

    def __init__(self, *, proxy: bool = True) -> None:
        self.asked: list[str] = []
        self.proxy = proxy
        self.cores = {"n1": "2", "n2": "1"}
        self.at = "2026-01-01T00:00:00Z"

    async def request(self, _method: str, path: str, **_more: Any) -> bytes:
        self.asked.append(path)
        await asyncio.sleep(1)
        if "/proxy/" in path:
            if not self.proxy:
                raise Forbidden("no", code=403)
            return b"node_cpu_usage_seconds_total 5 1000\nnode_memory_working_set_bytes 7 1000\n"
        items: list[dict[str, Any]]
        if path.endswith("/nodes"):
            items = [
                {"metadata": {"name": name}, "timestamp": self.at, "usage": {"cpu": cpu, "memory": "1Mi"}}
                for name, cpu in self.cores.items()
            ]
        else:
            container = {"name": "c", "usage": {"cpu": "500m", "memory": "2Mi"}}
            items = [
                {
                    "metadata": {"namespace": "u-shop", "name": "web"},
                    "timestamp": self.at,
                    "containers": [container],
                }
            ]
        return msgspec.json.encode({"items": items})


def _routes(lower: Any, nodes: tuple[str, ...] = ("n1", "n2")) -> MetricsRoutes:
    return MetricsRoutes(
        lower, node_name="vn", lower_nodes=lambda: list(nodes), pods=lambda: PODS, cluster_id="upper"
    )


async def _resource(routes: MetricsRoutes) -> str:
    request: Any = None
    answer = await routes._resource(request)
    assert isinstance(answer.body, bytes)
    return answer.body.decode()


def _cpu(text: str) -> float:
    return float(next(line for line in text.splitlines() if line.startswith("node_cpu_usage")).split()[1])


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_scrapers_share_one_round():
    """Whoever asks meanwhile or shortly after gets the same answer; later ones a new one."""
    lower = _Lower()
    routes = _routes(lower)
    await asyncio.gather(*(_resource(routes) for _ in range(5)))
    await _resource(routes)
    assert len(lower.asked) == 2
    await asyncio.sleep(6)
    await _resource(routes)
    assert len(lower.asked) == 4


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_a_refused_proxy_is_replaced_by_the_metrics_api():
    """Counters are integrals of rates, and do not go back when a node leaves."""
    lower = _Lower(proxy=False)
    routes = _routes(lower)
    first = await _resource(routes)
    lower.at = "2026-01-01T00:00:10Z"
    await asyncio.sleep(6)
    second = await _resource(routes)
    assert _cpu(second) - _cpu(first) == pytest.approx(30)
    assert 'container_cpu_usage_seconds_total{container="c",namespace="shop",pod="web"}' in second
    types = [line for line in second.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types)) == 4
    del lower.cores["n1"]
    lower.at = "2026-01-01T00:00:20Z"
    await asyncio.sleep(6)
    assert _cpu(await _resource(routes)) - _cpu(second) == pytest.approx(10)


@pytest.mark.asyncio
@pytest.mark.looptime
async def test_the_summary_falls_back_as_well():
    """Under the upper names, with what is known."""
    request: Any = None
    answer = await _routes(_Lower(proxy=False))._summary(request)
    assert isinstance(answer.body, bytes)
    found = msgspec.json.decode(answer.body)
    assert found["node"]["nodeName"] == "vn"
    assert found["node"]["memory"]["workingSetBytes"] == 2 * 1024**2
    (pod,) = found["pods"]
    assert pod["podRef"] == {"name": "web", "namespace": "shop", "uid": "uid-1"}
