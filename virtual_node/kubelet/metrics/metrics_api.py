"""Usage from a lower cluster's metrics API (metrics.k8s.io), in the format of a kubelet's ``/metrics/resource``.

The metrics API reports only rates, so the counters are their integrals. Source:
k8s.io/metrics/pkg/apis/metrics/v1beta1.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from typing import Any

from clusterset.model import names
from controller_runtime.apimachinery import quantity, timestamps
from controller_runtime.apimachinery.decoding import decode
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.log import get_logger
from controller_runtime.process.flags import parse_duration
from virtual_node.translate.base.fields import is_dns_name
from virtual_node.translate.nodes.prometheus_text import PodNames, Pods, is_plausible, node_exposition
from virtual_node.translate.nodes.usage import CounterSum, RateIntegral

_TIMEOUT = 8.0
"""Timeout in seconds; scrapers wait at most ten seconds."""
_CPU, _MEMORY = "container_cpu_usage_seconds_total", "container_memory_working_set_bytes"
_MALFORMED = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError)
"""Errors of an item that is not what a metrics API sends; it is left out."""

_log = get_logger(component="kubelet")


class MetricsApi:
    """The usage counters of one virtual node.

    Args:
        lower: The lower cluster.
        cluster_id: Identity of the upper cluster, which the labels of owned lower pods contain.
    """

    def __init__(self, lower: Client, *, cluster_id: str) -> None:
        self._lower = lower
        self._cluster_id = cluster_id
        self._rates = RateIntegral()
        self._node_cpu = CounterSum()

    async def exposition(self, pods: Pods, nodes: Collection[str]) -> str:
        """Return the usage of owned pods and of the virtual node, as far as the lower cluster reports it.

        Args:
            pods: Upper pods by namespace and name of their lower pods.
            nodes: Names of the virtual node's lower nodes.
        """
        ours = {"labelSelector": f"{names.LABEL_UPPER_CLUSTER}={self._cluster_id}"}
        found_nodes, found_pods = await asyncio.gather(self._list("nodes"), self._list("pods", ours))
        counters: dict[str, float] = {}
        node_lines = self._nodes(found_nodes, set(nodes), counters)
        cpu, memory = [f"# TYPE {_CPU} counter\n"], [f"# TYPE {_MEMORY} gauge\n"]
        for pod in found_pods:
            with contextlib.suppress(*_MALFORMED):
                upper = pods.get((pod["metadata"]["namespace"], pod["metadata"]["name"]))
                if upper is not None:
                    self._pod(pod, upper, counters, cpu, memory)
        self._rates.keep(counters)
        return "".join([node_lines, *cpu, *memory] if len(cpu) > 1 else [node_lines])

    def _nodes(self, found: list[dict[str, Any]], mine: Collection[str], counters: dict[str, float]) -> str:
        nodes = {f"node/{one['metadata']['name']}": one for one in found if one["metadata"]["name"] in mine}
        cpu: dict[str, float] = {}
        memory = at = 0
        for key, one in nodes.items():
            with contextlib.suppress(*_MALFORMED):
                used, moment = quantity.amount(one["usage"]["memory"]), _milliseconds(one)
                seconds = self._count(key, one, one["usage"])
                if is_plausible(seconds, moment) and is_plausible(used, moment):
                    cpu[key], memory, at = seconds, memory + used, max(at, moment)
        if not cpu:
            return ""
        counters.update(cpu)
        return node_exposition(self._node_cpu.update(cpu), memory, at=at)

    def _pod(
        self,
        pod: Mapping[str, Any],
        upper: PodNames,
        counters: dict[str, float],
        cpu: list[str],
        memory: list[str],
    ) -> None:
        at = _milliseconds(pod)
        for container in pod.get("containers") or ():
            name, used = container["name"], quantity.amount(container["usage"]["memory"])
            if not is_dns_name(name):
                continue  # its text would become part of a line
            key = f"{upper.uid}/{name}"
            seconds = counters[key] = self._count(key, pod, container["usage"])
            if not (is_plausible(seconds, at) and is_plausible(used, at)):
                continue
            labels = f'container="{name}",namespace="{upper.namespace}",pod="{upper.name}"'
            cpu.append(f"{_CPU}{{{labels}}} {seconds:.6f} {at}\n")
            memory.append(f"{_MEMORY}{{{labels}}} {used} {at}\n")

    def _count(self, key: str, sample: Mapping[str, Any], usage: Mapping[str, str]) -> float:
        """Return the CPU seconds used up to a sample."""
        return self._rates.update(
            key,
            _cores(usage["cpu"]),
            at=_milliseconds(sample) / 1000,
            window=parse_duration(sample["window"]),
        )

    async def _list(self, what: str, params: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        path = f"/apis/metrics.k8s.io/v1beta1/{what}"
        try:
            answer = await self._lower.request("GET", path, params=params, timeout=_TIMEOUT, flow="metrics")
        except (ApiError, ConfigError) as error:
            _log.debug("the metrics API of the lower cluster cannot be read", what=what, why=str(error))
            return []
        items: list[dict[str, Any]] = decode(answer).get("items") or []
        return items


def _milliseconds(sample: Mapping[str, Any]) -> int:
    return int(timestamps.parse(sample["timestamp"]).timestamp() * 1000)


def _cores(cpu: str) -> float:
    """Return CPUs. Nano-CPUs are parsed here, because ``quantity`` resolves only milli-CPUs."""
    return int(cpu[:-1]) / 1e9 if cpu.endswith("n") else quantity.milli(cpu) / 1000
