"""Sources of usage: the metrics API (``metrics.k8s.io``), kubelets, and Prometheus."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import Gauge

from clusterset.config import PrometheusConfig, UsageConfig
from controller_runtime import log
from controller_runtime.apimachinery import quantity, timestamps
from controller_runtime.apimachinery.decoding import decoder
from controller_runtime.auth.credentials import TokenFile
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.client.served_version import metrics_api
from controller_runtime.errors import ApiError, ConfigError, Forbidden, Unauthorized, Unavailable
from controller_runtime.tls.pem import TlsMaterial
from controller_runtime.util.event_loop import Slicer
from multi_scheduler.usage import Pressure, Sample, Stall, UsageStore

_TIMEOUT = 10.0
_KUBELET_TIMEOUT = 5.0
"""Seconds that one kubelet may take, because the other nodes wait for it."""
_SERVER_ERROR = 500
_LONGEST_PAUSE = 16
"""Largest number of rounds in which a kubelet that did not respond is skipped."""
_FAILED = Gauge(
    "virtual_node_usage_source_failed",
    "1 while usage of a lower cluster's nodes cannot be read; their scores are neutral.",
    ["cluster"],
)
_UNREADABLE = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError)


class Source:
    """A source of usage."""

    def read(self, nodes: Mapping[str, float], *, pause: float) -> AsyncIterator[tuple[str, Sample]]:
        """Yield samples of nodes, with one request at a time.

        Args:
            nodes: CPU of each node, in millicores.
            pause: seconds between requests for single nodes.

        Raises:
            ApiError: the source is unreachable, or refuses the request.
            ValueError: the response is invalid.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Close the source's own connections, if it has any."""


@dataclass(eq=False)
class UsageFeed:
    """Keeps a cluster's usage store current."""

    cluster: str
    source: Source
    store: UsageStore
    nodes: Callable[[], Mapping[str, float]]
    """Returns the lower nodes with their CPU in millicores."""
    interval: float
    """Seconds between two rounds."""
    _failure: str = ""

    def __post_init__(self) -> None:
        """Set the failure metric to 0; ``run`` reads."""
        self._log = log.get_logger(component="usage", cluster=self.cluster)
        _FAILED.labels(self.cluster).set(0)

    async def run(self) -> None:
        """Read usage periodically until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                started = loop.time()
                if nodes := self.nodes():
                    await self._round(nodes)
                # Pause even if the source is slow, so that it is not read without a break.
                await asyncio.sleep(max(self.interval - (loop.time() - started), self.interval / 10))
        finally:
            await self.source.close()

    async def _round(self, nodes: Mapping[str, float]) -> None:
        self.store.keep(nodes)
        failure, count = "", 0
        slicer = Slicer()
        try:
            async for name, sample in self.source.read(nodes, pause=self.interval / len(nodes) / 2):
                await slicer.tick()  # a response may have thousands of unknown nodes
                if name in nodes:
                    self.store.add(name, sample, capacity=nodes[name])
                    count += 1
        except (ApiError, ConfigError, TimeoutError) as error:
            failure = str(error) or "no answer in time"
        except _UNREADABLE as error:
            failure = f"unexpected response: {error!r}"
        if not failure and not count:
            failure = "the source reports no node"
        self._note(failure)

    def _note(self, failure: str) -> None:
        _FAILED.labels(self.cluster).set(int(bool(failure)))
        if failure and not self._failure:
            self._log.warning("usage of lower nodes cannot be read, their scores are neutral", error=failure)
        elif self._failure and not failure:
            self._log.info("usage of lower nodes can be read again")
        self._failure = failure


class _Kubelets(Source):
    path = ""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._silent: dict[str, tuple[int, int]] = {}
        """Node → number of rounds to skip, and how many of them were skipped so far."""

    async def read(self, nodes: Mapping[str, float], *, pause: float) -> AsyncIterator[tuple[str, Sample]]:
        """Yield a sample of each node that responds; see ``Source.read``."""
        self.keep(nodes)
        last: Exception | None = None
        answered = False
        for name in nodes:
            if self._is_left_out(name):
                continue
            try:
                sample = self.sample(name, await self.ask(name))
            except (Forbidden, Unauthorized):
                raise
            except (ApiError, ValueError) as error:
                last = error
                longest = min(2 * self._silent.get(name, (1, 0))[0], _LONGEST_PAUSE)
                self._silent[name] = longest, 0
            else:
                self._silent.pop(name, None)
                answered = True
                if sample is not None:
                    yield name, sample
            await asyncio.sleep(pause)
        if last is not None and not answered:
            raise last

    async def ask(self, name: str) -> bytes:
        return await self.get(name, self.path)

    async def get(self, name: str, path: str) -> bytes:
        url = f"/api/v1/nodes/{name}/proxy/{path}"
        return await self._client.request("GET", url, timeout=_KUBELET_TIMEOUT, flow="usage")

    def keep(self, nodes: Collection[str]) -> None:
        """Forget all nodes except these: autoscalers replace nodes all the time, under new names."""
        for name in self._silent.keys() - set(nodes):
            del self._silent[name]

    def _is_left_out(self, name: str) -> bool:
        rounds, over = self._silent.get(name, (0, 0))
        if over >= rounds:
            return False
        self._silent[name] = rounds, over + 1
        return True

    def sample(self, name: str, body: bytes) -> Sample | None:
        """Return the sample in a response; None: no usage is known yet.

        Raises:
            ValueError: the body is not a kubelet's response.
        """
        raise NotImplementedError


class _Averages(msgspec.Struct):
    avg10: float = 0.0
    avg60: float = 0.0
    total: int = 0


class _Psi(msgspec.Struct):
    some: _Averages | None = None
    full: _Averages | None = None


class _Stats(msgspec.Struct):
    """Statistics of CPU, memory or IO."""

    time: str | None = None
    usageNanoCores: int | None = None  # noqa: N815 - the kubelet's names
    workingSetBytes: int | None = None  # noqa: N815
    psi: _Psi | None = None


class _Node(msgspec.Struct):
    cpu: _Stats | None = None
    memory: _Stats | None = None
    io: _Stats | None = None


class _Summary(msgspec.Struct):
    node: _Node


_decode = decoder(_Summary)


class Summary(_Kubelets):
    """The Summary API: usage and PSI. Source: k8s.io/kubelet, ``pkg/apis/stats/v1alpha1``."""

    path = "stats/summary"

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._reduced: set[str] = set()

    def keep(self, nodes: Collection[str]) -> None:
        """Forget all nodes except these."""
        super().keep(nodes)
        self._reduced.intersection_update(nodes)

    async def ask(self, name: str) -> bytes:
        """Return the complete summary, or the CPU and memory summary of a kubelet that cannot create the complete one.

        The smaller summary has no IO pressure. A kubelet without file system statistics answers 500 to the complete one.
        """
        if name not in self._reduced:
            try:
                return await self.get(name, self.path)
            except Unavailable as error:
                if error.code != _SERVER_ERROR:
                    raise
        answer = await self.get(name, f"{self.path}?only_cpu_and_memory=true")
        self._reduced.add(name)
        return answer

    def sample(self, name: str, body: bytes) -> Sample | None:
        """Return usage, and pressure if the kubelet reports it."""
        node = _decode(body).node
        cpu, memory = node.cpu, node.memory
        times = [timestamps.parse(one.time or "").timestamp() for one in (cpu, memory) if one is not None]
        if not times:
            return None
        return Sample(
            max(times),
            cpu.usageNanoCores / 1e6 if cpu is not None and cpu.usageNanoCores is not None else None,
            memory.workingSetBytes if memory is not None else None,
            _pressure(cpu, memory, node.io),
        )


def _pressure(*parts: _Stats | None) -> Pressure | None:
    psi = [part.psi if part is not None else None for part in parts]
    # Kubelets on cgroup v1 have no PSI and report only zeros, so pressure is unknown. With PSI, some total since boot is
    # above zero.
    if not any(one.some.total for one in psi if one is not None and one.some is not None):
        return None
    return Pressure(*(_stall(one) for one in psi))


def _stall(psi: _Psi | None) -> Stall:
    psi = psi or _Psi()
    some, full = psi.some or _Averages(), psi.full or _Averages()
    return Stall(some.avg10, some.avg60, full.avg10, full.avg60)


_CPU, _MEMORY = b"node_cpu_usage_seconds_total ", b"node_memory_working_set_bytes "
_LONGEST_LINE = 200


class Resource(_Kubelets):
    """``/metrics/resource``: smaller than the summary, usage only. CPU needs two samples, because it is a counter."""

    path = "metrics/resource"

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._before: dict[str, tuple[float, float]] = {}

    def keep(self, nodes: Collection[str]) -> None:
        """Forget all nodes except these."""
        super().keep(nodes)
        for name in self._before.keys() - set(nodes):
            del self._before[name]

    def sample(self, name: str, body: bytes) -> Sample | None:
        """Return the usage since the last sample; None: first sample, no newer time, or the clock or counter was reset."""
        cpu = _metric(body, _CPU)
        if cpu is None or not cpu[1] > 0:
            raise ValueError("no node_cpu_usage_seconds_total with a time")
        seconds, at = cpu
        before, then = self._before.get(name, (seconds, at))
        self._before[name] = seconds, at
        rate = 1000 * (seconds - before) / (at - then) if at > then and seconds >= before else None
        memory = _metric(body, _MEMORY)
        return Sample(at, rate, memory[0] if memory is not None else None) if rate is not None else None


def _metric(body: bytes, metric: bytes) -> tuple[float, float] | None:
    """Return value and time, in seconds, of a metric without labels; None: it is missing.

    Only its line is read, because the body has several lines for each container.
    """
    start = 0 if body.startswith(metric) else body.find(b"\n" + metric) + 1
    if not start and not body.startswith(metric):
        return None
    line = body[start : start + _LONGEST_LINE].partition(b"\n")[0]
    value, _, moment = line.removeprefix(metric).partition(b" ")
    return float(value), float(moment or b"nan") / 1000


_PRESSURES = ("cpu_pressure", "memory_pressure", "io_pressure")


class Prometheus(Source):
    """Queries Prometheus: one instant query per figure returns the values of all nodes."""

    def __init__(self, config: PrometheusConfig, lower: Client) -> None:
        """Choose the client: that of the lower cluster, or an own one for ``url``."""
        self._config = config
        self._own: Client | None = None
        self._prefix = ""
        if config.url:
            credentials = (
                TokenFile(Path(config.token_file), source="tokenFile") if config.token_file else None
            )
            at = ConnectionConfig(
                config.url,
                ssl_context=TlsMaterial("prometheus.url").context(),
                credentials=credentials,
                source="prometheus.url",
            )
            self._own = Client(
                at, user_agent="virtual-node-multi-scheduler", cluster=f"{lower.cluster}-prometheus"
            )
        else:
            namespace, _, name = config.service.partition("/")
            self._prefix = f"/api/v1/namespaces/{namespace}/services/{name}/proxy"
        self._client = self._own or lower

    async def read(self, nodes: Mapping[str, float], *, pause: float) -> AsyncIterator[tuple[str, Sample]]:
        """Yield a sample of each node with values; see ``Source.read``."""
        found: dict[str, dict[str, float]] = {}
        at = 0.0
        for name in ("cpu", "memory", *_PRESSURES):
            if query := getattr(self._config, name):
                found[name], time = await self._ask(query)
                at = max(at, time)
        for node in set().union(*found.values()):
            values = {name: by_node[node] for name, by_node in found.items() if node in by_node}
            pressures = [values.get(name) for name in _PRESSURES]
            cpu = values.get("cpu")
            yield (
                node,
                Sample(
                    at,
                    None if cpu is None else 1000 * cpu,
                    values.get("memory"),
                    _queried_pressure(*pressures),
                ),
            )

    async def close(self) -> None:
        """Close the client for ``url``, if there is one; the lower cluster's client stays open."""
        if self._own is not None:
            await self._own.close()

    async def _ask(self, query: str) -> tuple[dict[str, float], float]:
        """Return values by node, and their time."""
        answer = await self._client.read(
            f"{self._prefix}/api/v1/query", params={"query": query}, timeout=_TIMEOUT, flow="usage"
        )
        if answer.get("status") != "success":
            raise ValueError(str(answer.get("error"))[:200])
        found: dict[str, float] = {}
        time = 0.0
        for series in answer["data"]["result"]:
            node = series["metric"].get(self._config.node_label, "")
            at, text = series["value"]
            if node and math.isfinite(value := float(text)):
                found[node] = value
                time = max(time, float(at))
        return found, time


def _queried_pressure(cpu: float | None, memory: float | None, io: float | None) -> Pressure | None:
    """Return the pressure of the last minute, which is used for both averages; None: no values."""
    if cpu is None and memory is None and io is None:
        return None
    return Pressure(Stall(some10=cpu or 0.0, some60=cpu or 0.0), *(_full(value) for value in (memory, io)))


def _full(value: Any) -> Stall:
    share = value or 0.0
    return Stall(some10=share, some60=share, full10=share, full60=share)


class MetricsApi(Source):
    """Reads the metrics API, as served by metrics-server or an adapter."""

    def __init__(self, client: Client) -> None:
        self._api = metrics_api(client)

    async def read(self, nodes: Mapping[str, float], *, pause: float) -> AsyncIterator[tuple[str, Sample]]:
        """Yield a sample of each node; see ``Source.read``."""
        answer = await self._api.read("nodes", timeout=_TIMEOUT, flow="usage")
        for item in answer.get("items") or ():
            usage = item["usage"]
            at = timestamps.parse(item["timestamp"]).timestamp()
            yield item["metadata"]["name"], Sample(at, _milli(usage["cpu"]), quantity.amount(usage["memory"]))


def _milli(cpu: str) -> float:
    """Return millicores. Nanocores keep their fraction, because rounding up would overstate an idle node's usage."""
    return float(cpu[:-1]) / 1e6 if cpu.endswith("n") else quantity.milli(cpu)


def make_source(config: UsageConfig, client: Client) -> Source | None:
    """Return the source of a lower cluster's usage; None: usage is not read.

    Raises:
        ConfigError: the address of Prometheus is missing or wrong.
    """
    match config.source:
        case "MetricsAPI":
            return MetricsApi(client)
        case "Summary":
            return Summary(client)
        case "Resource":
            return Resource(client)
        case "Prometheus":
            return Prometheus(config.prometheus, client)
        case _:
            return None
