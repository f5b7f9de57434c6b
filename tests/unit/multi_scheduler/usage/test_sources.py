"""Sources of usage: their requests, and how they parse responses."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from clusterset.config import Kind, PrometheusConfig, UsageConfig
from clusterset.model import names
from controller_runtime.client.limits import CacheBudget
from controller_runtime.errors import ConfigError, ConnectionFailed, Forbidden, Unavailable
from multi_scheduler import config, usage
from multi_scheduler.usage import Measured, Pressure, Sample, Stall
from multi_scheduler.usage_sources import MetricsApi, Prometheus, Resource, Source, Summary, make_source

AT = "2026-11-22T10:00:00Z"
EPOCH = 1795341600.0


class _Lower:
    """Returns responses by path, or raises an exception. One request at a time."""

    cluster = "lower"

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def request(self, _verb: str, path: str, **_: Any) -> bytes:
        self.asked.append(path)
        answer = self.answers[path]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    async def read(self, path: str, *, params: dict[str, str], **_: Any) -> Any:
        return json.loads(await self.request("GET", f"{path}?{params['query']}"))


async def _read(source: Source, *nodes: str) -> dict[str, Sample]:
    return {name: sample async for name, sample in source.read(dict.fromkeys(nodes, 4000.0), pause=0)}


def _client(answers: dict[str, Any]) -> Any:
    return _Lower(answers)


def _psi(some: float, full: float, *, total: int = 1) -> dict[str, Any]:
    averages = ("avg10", "avg60", "avg300")
    return {
        kind: {"total": total, **dict.fromkeys(averages, value)}
        for kind, value in (("some", some), ("full", full))
    }


async def test_summary_reports_usage_and_pressure() -> None:
    """Without PSI, and on cgroup v1, where all totals are zero, pressure is unknown, which differs from zero."""
    node: dict[str, dict[str, Any]] = {
        "cpu": {"time": AT, "usageNanoCores": 1_500_000_000, "psi": _psi(12, 0)},
        "memory": {"time": AT, "workingSetBytes": 2048, "psi": _psi(3, 2)},
        "io": {"time": AT, "psi": _psi(5, 4)},
    }
    bare = {kind: {key: value for key, value in one.items() if key != "psi"} for kind, one in node.items()}
    zero = {kind: {**one, "psi": _psi(0, 0, total=0)} for kind, one in node.items()}
    path = "/api/v1/nodes/{}/proxy/stats/summary".format
    answers = {
        path("n"): {"node": node, "pods": [{}]},
        path("v1"): {"node": zero},
        path("old"): Unavailable("no file system statistics", code=500),
        path("old") + "?only_cpu_and_memory=true": {"node": bare},
    }
    client = _client(answers)
    source = Summary(client)
    assert await _read(source, "n", "old") == await _read(source, "n", "old")
    assert client.asked.count(path("old")) == 1
    found = await _read(source, "n", "old", "v1")
    assert found == {
        "n": Sample(EPOCH, 1500, 2048, Pressure(Stall(12, 12, 0, 0), Stall(3, 3, 2, 2), Stall(5, 5, 4, 4))),
        "old": Sample(EPOCH, 1500, 2048),
        "v1": Sample(EPOCH, 1500, 2048),
    }


async def test_unresponsive_kubelet_is_skipped_for_some_rounds() -> None:
    """It would delay the others. A missing right affects all kubelets and is reported at once."""
    path = "/api/v1/nodes/{}/proxy/stats/summary".format
    good = {"node": {"memory": {"time": AT, "workingSetBytes": 1}}}
    client = _client({path("down"): ConnectionFailed("timed out"), path("up"): good})
    source = Summary(client)
    for _ in range(8):
        assert list(await _read(source, "down", "up")) == ["up"]
    assert client.asked.count(path("down")) == 2
    for error in (Forbidden("no right"), ConnectionFailed("none answers")):
        with pytest.raises(type(error)):
            await _read(Summary(_client({path("n"): error})), "n")


async def test_resource_metrics_are_rates_of_two_samples() -> None:
    """By the kubelet's own times; a counter reset gives no rate."""
    path = "/api/v1/nodes/n/proxy/metrics/resource"
    text = (
        "# TYPE x counter\nnode_cpu_usage_seconds_total {} {}\nnode_memory_working_set_bytes 4096 {}\n".format
    )
    client = _client({})
    source = Resource(client)
    found = []
    for seconds, at in ((100, 1000), (110, 6000), (110, 6000), (5, 11000), (6, 16000)):
        client.answers[path] = text(seconds, at, at).encode()
        found.append((await _read(source, "n")).get("n"))
    assert found == [None, Sample(6.0, 2000, 4096), None, None, Sample(16.0, 200, 4096)]


def test_rates_continue_after_a_clock_was_set_back() -> None:
    """The first sample afterwards gives no rate; the next one does, not only when the clock reaches the old time again."""
    source = Resource(_client({}))
    line = "node_cpu_usage_seconds_total {} {}".format
    found = [
        source.sample("n", line(seconds, at).encode())
        for seconds, at in ((100, 9_000_000), (101, 9_010_000), (102, 20_000), (103, 30_000))
    ]
    assert [sample and sample.cpu for sample in found] == [None, 100, None, 100]


async def test_deleted_nodes_are_forgotten() -> None:
    """A new node of the same name has another counter, and its kubelet may answer the complete summary again."""
    path = "/api/v1/nodes/n/proxy/{}".format
    client = _client({path("metrics/resource"): b"node_cpu_usage_seconds_total 100 1000\n"})
    source = Resource(client)
    assert await _read(source, "n") == {}
    await _read(source)
    client.answers[path("metrics/resource")] = b"node_cpu_usage_seconds_total 150 6000\n"
    assert await _read(source, "n") == {}
    good = {"node": {"memory": {"time": AT, "workingSetBytes": 1}}}
    client = _client(
        {
            path("stats/summary"): Unavailable("no file systems", code=500),
            path("stats/summary?only_cpu_and_memory=true"): good,
        }
    )
    summary = Summary(client)
    assert list(await _read(summary, "n")) == ["n"]
    await _read(summary)
    client.answers = {path("stats/summary"): good}
    assert list(await _read(summary, "n")) == ["n"]


def test_large_resource_metrics_take_no_time() -> None:
    """A real response has several lines for each container, and a hostile one may have millions."""
    body = b"a\n" * 5_000_000 + b"node_cpu_usage_seconds_total 1 1000\n" + b"a\n" * 1000
    source = Resource(_client({}))
    started = time.thread_time()
    assert source.sample("n", body) is None
    assert source.sample("n", b"node_cpu_usage_seconds_total 2 2000") == Sample(2.0, 1000.0, None)
    assert time.thread_time() - started < 0.3


async def test_queries_prometheus_through_the_api_server() -> None:
    """One query per figure; series without a node and non-finite values are ignored."""
    settings = PrometheusConfig(
        service="monitoring/prometheus:9090", cpu="cpu", memory="memory", cpu_pressure="", memory_pressure="stalls",
        io_pressure="",
    )  # fmt: skip
    prefix = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy/api/v1/query?"

    def answer(**values: str) -> dict[str, Any]:
        series = [{"metric": {"node": node}, "value": [EPOCH, value]} for node, value in values.items()]
        return {"status": "success", "data": {"result": [*series, {"metric": {}, "value": [EPOCH, "1"]}]}}

    client = _client(
        {
            f"{prefix}cpu": answer(a="1.5", b="NaN"),
            f"{prefix}memory": answer(a="2048", b="4096"),
            f"{prefix}stalls": answer(a="20"),
        }
    )
    assert await _read(Prometheus(settings, client), "a", "b") == {
        "a": Sample(EPOCH, 1500, 2048, Pressure(memory=Stall(20, 20, 20, 20))),
        "b": Sample(EPOCH, None, 4096),
    }


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ({"mean-free-cpu": "2500", "std-free-cpu": "400", "forcasted-free-cpu": "2000"}, Measured(1500, 1500, 400, 2000)),
        ({"mean-free-cpu": "600"}, Measured(3400, 3400, 0, None)),
        ({"mean-free-cpu": "2000", "std-free-cpu": "500", "forcasted-free-cpu": "N/A"}, Measured(2000, 2000, 500, None)),
        ({"mean-free-cpu": "155Mi"}, None),
        ({"mean-free-cpu": "nan"}, None),
        ({"mean-free-cpu": "-1e300"}, None),
        ({"std-free-cpu": "1"}, None),
    ],
)  # fmt: skip
def test_reads_annotations_of_kube_safe_scheduler(found, expected) -> None:
    """Numbers of free amounts; anything else is missing."""
    assert usage.read(found, "cpu", 4000) == expected
    assert usage.time(found) == 0
    assert usage.time({names.ANNOTATION_USAGE_AT: AT}) == EPOCH


@pytest.mark.parametrize(
    ("usage", "message"),
    [
        ("{source: Guess}", "usage.source"),
        ("{source: Prometheus}", "usage.prometheus: give either service or url"),
        ("{source: Prometheus, prometheus: {service: prometheus}}", "is not namespace/name:port"),
        ("{maxAgeSeconds: 0}", "maxAgeSeconds"),
    ],
)
def test_errors_name_the_wrong_setting(usage, message) -> None:
    """For all clusters and for one cluster."""
    text = "apiVersion: virtual-node.io/v1alpha1\nkind: MultiSchedulerConfiguration\nclusters: [{name: a, kubeconfig: a"
    for document in (f"{text}}}]\nusage: {usage}", f"{text}, usage: {usage}}}]"):
        with pytest.raises(ConfigError, match=message.replace("usage.", "(usage: |usage.|\\w+: )?")):
            config.parse(document)


def test_creates_the_source_of_each_kind() -> None:
    """Annotations and None have no source."""
    client: Any = SimpleNamespace(cluster="lower", caches=CacheBudget(0, cluster="lower"))
    kinds: dict[Kind, type | None] = {
        "None": None, "Annotations": None, "Summary": Summary, "Resource": Resource, "MetricsAPI": MetricsApi,
    }  # fmt: skip
    for kind, expected in kinds.items():
        made = make_source(UsageConfig(source=kind), client)
        assert made is None if expected is None else type(made) is expected
