"""Usage from the metrics API (``metrics.k8s.io``): one request for all nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from controller_runtime.apimachinery import quantity, timestamps
from controller_runtime.client.client import Client
from multi_scheduler.usage.feed import Source
from multi_scheduler.usage.store import Sample

_PATH = "/apis/metrics.k8s.io/v1beta1/nodes"
_TIMEOUT = 10.0


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
