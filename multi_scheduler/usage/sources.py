"""Usage from the metrics API (``metrics.k8s.io``) or from Prometheus, and the choice of a cluster's source."""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from clusterset.usage import PrometheusConfig, UsageConfig
from controller_runtime.apimachinery import quantity, timestamps
from controller_runtime.auth.connection import ConnectionConfig
from controller_runtime.auth.credentials import TokenFile
from controller_runtime.client.client import Client
from multi_scheduler.formulas.pressure import Pressure, Stall
from multi_scheduler.usage import kubelets
from multi_scheduler.usage.feed import Source
from multi_scheduler.usage.store import Sample

_TIMEOUT = 10.0
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
                ssl_context=ssl.create_default_context(),
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
                Sample(at, None if cpu is None else 1000 * cpu, values.get("memory"), _pressure(*pressures)),
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


def _pressure(cpu: float | None, memory: float | None, io: float | None) -> Pressure | None:
    """Return the pressure of the last minute, which is used for both averages; None: no values."""
    if cpu is None and memory is None and io is None:
        return None
    return Pressure(Stall(some10=cpu or 0.0, some60=cpu or 0.0), *(_full(value) for value in (memory, io)))


def _full(value: Any) -> Stall:
    share = value or 0.0
    return Stall(some10=share, some60=share, full10=share, full60=share)


_PATH = "/apis/metrics.k8s.io/v1beta1/nodes"


class MetricsApi(Source):
    """Reads the metrics API, as served by metrics-server or an adapter."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read(self, nodes: Mapping[str, float], *, pause: float) -> AsyncIterator[tuple[str, Sample]]:
        """Yield a sample of each node; see ``Source.read``."""
        answer = await self._client.read(_PATH, timeout=_TIMEOUT, flow="usage")
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
            return kubelets.Summary(client)
        case "Resource":
            return kubelets.Resource(client)
        case "Prometheus":
            return Prometheus(config.prometheus, client)
        case _:
            return None
