"""The metrics routes of a virtual node.

``/metrics`` describes the process itself. ``/metrics/resource``, ``/metrics/cadvisor``, ``/metrics/probes``
and ``/stats/summary`` come from the lower kubelets, which are requested at most every few seconds. If the
lower cluster refuses access to its kubelets, usage comes from its metrics API.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from controller_runtime.apimachinery.decoding import decoder
from controller_runtime.client.client import Client
from controller_runtime.serving.metrics_page import MetricsPage
from virtual_node.kubelet.base.single_flight import SharedAnswers
from virtual_node.kubelet.metrics.lower_kubelets import LowerKubelets
from virtual_node.kubelet.metrics.metrics_api import MetricsApi
from virtual_node.translate.nodes import prometheus_text, stats
from virtual_node.translate.nodes.prometheus_text import Exposition, PodNames, Pods
from virtual_node.translate.nodes.usage import CounterSum

_FRESH = 5.0
"""Seconds for which a response is reused. Scrapers have intervals of ten seconds or more."""
_CPU, _MEMORY = "node_cpu_usage_seconds_total", "node_memory_working_set_bytes"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class MetricsRoutes:
    """The metrics routes of one virtual node.

    Args:
        lower: The lower cluster.
        node_name: The virtual node.
        lower_nodes: Returns the names of the virtual node's lower nodes.
        pods: Returns its upper pods by lower namespace and name.
        cluster_id: Identity of the upper cluster, which the labels of owned lower pods contain.
    """

    def __init__(
        self,
        lower: Client,
        *,
        node_name: str,
        lower_nodes: Callable[[], Sequence[str]],
        pods: Callable[[], Mapping[tuple[str, str], PodNames]],
        cluster_id: str,
    ) -> None:
        self._node_name = node_name
        self._lower_nodes = lower_nodes
        self._pods = pods
        self._kubelets = LowerKubelets(lower, lower_nodes)
        self._metrics_api = MetricsApi(lower, cluster_id=cluster_id)
        # One counter per source, because samples of two sources have different times, and a decrease looks like
        # a reboot.
        self._resource_cpu, self._summary_cpu = CounterSum(), CounterSum()
        self._answers: SharedAnswers[str, bytes] = SharedAnswers(fresh=_FRESH)
        self._usage: SharedAnswers[str, str] = SharedAnswers(fresh=_FRESH)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to serve."""
        return [
            web.get("/metrics", MetricsPage().get),
            self._route("/metrics/resource", self._resource, _TEXT),
            self._route("/metrics/cadvisor", partial(self._merged, "metrics/cadvisor"), _TEXT),
            self._route("/metrics/probes", partial(self._merged, "metrics/probes"), _TEXT),
            self._route("/stats/summary", self._summary, "application/json"),
        ]

    def _route(
        self, path: str, find_out: Callable[[], Coroutine[Any, Any, bytes]], content_type: str
    ) -> web.RouteDef:
        async def answer(_request: web.Request) -> web.Response:
            body = await self._answers.get(path, find_out)
            return web.Response(body=body, headers={"Content-Type": content_type})

        return web.get(path, answer, allow_head=False)

    async def _resource(self) -> bytes:
        answers = await self._kubelets.ask("metrics/resource", partial(_read_usage, pods=self._pods()))
        if answers.refused:
            return (await self._from_metrics_api()).encode()
        node = self._node_lines({node: samples for node, (samples, _) in answers.by_node.items()})
        ours = prometheus_text.render(ours for _, ours in answers.by_node.values())
        return (node + ours).encode()

    async def _merged(self, path: str) -> bytes:
        pods = self._pods()
        answers = await self._kubelets.ask(path, lambda raw: prometheus_text.ours(_decode(raw), pods))
        return prometheus_text.render(answers.by_node.values()).encode()

    async def _summary(self) -> bytes:
        pods = self._pods()
        found = summaries = (await self._kubelets.ask("stats/summary", _read_summary)).by_node
        if any(node not in summaries for node in self._lower_nodes()):
            second = await self._kubelets.ask("metrics/resource", _summary_of_metrics)
            if not found and second.refused:
                one = _summary_of_metrics((await self._from_metrics_api()).encode())
                above = {(upper.namespace, upper.name): upper for upper in pods.values()}
                return msgspec.json.encode(stats.summary([one], above, node_name=self._node_name))
            found = {**second.by_node, **summaries}
        used = {
            f"{node} {'summary' if node in summaries else 'metrics'}": nanoseconds / 1e9
            for node, one in found.items()
            if (nanoseconds := (one["node"].get("cpu") or {}).get("usageCoreNanoSeconds")) is not None
        }
        seconds = self._summary_cpu.update(used)
        body = stats.summary(list(found.values()), pods, node_name=self._node_name, cpu_seconds=seconds)
        return msgspec.json.encode(body)

    async def _from_metrics_api(self) -> str:
        # Two routes share the result, so that the lists are requested only once.
        return await self._usage.get(
            "", lambda: self._metrics_api.exposition(self._pods(), self._lower_nodes())
        )

    def _node_lines(self, nodes: Mapping[str, Mapping[str, tuple[float, int]]]) -> str:
        cpu = {node: found[_CPU] for node, found in nodes.items() if _CPU in found}
        memory = [found[_MEMORY] for found in nodes.values() if _MEMORY in found]
        if not cpu or not memory:
            return ""
        seconds = self._resource_cpu.update({node: value for node, (value, _) in cpu.items()})
        at = max(moment for _, moment in [*cpu.values(), *memory])
        return prometheus_text.node_exposition(seconds, sum(value for value, _ in memory), at=at)


def _read_usage(raw: bytes, *, pods: Pods) -> tuple[Mapping[str, tuple[float, int]], Exposition]:
    """Return the node's samples and those of our pods in ``/metrics/resource`` of one lower kubelet."""
    text = _decode(raw)
    return prometheus_text.node_samples(text), prometheus_text.ours(text, pods)


def _decode(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _summary_of_metrics(raw: bytes) -> dict[str, Any]:
    return stats.read(stats.from_resource_metrics(_decode(raw)))


def _read_summary(raw: bytes) -> dict[str, Any]:
    """Parse a Summary; raise ValueError if it is not one."""
    return stats.read(_decode_object(raw))


_decode_object = decoder(dict[str, Any])
