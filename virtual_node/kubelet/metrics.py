"""``/metrics`` (the process itself), ``/metrics/resource``, ``/metrics/cadvisor``, ``/metrics/probes`` and ``/stats/summary`` of a virtual node.

Asked of the lower kubelets through the lower apiserver's node proxy, all at once, at most every few seconds whoever
asks how often. Where the proxy is refused, usage comes from the lower cluster's metrics API, which knows rates only:
counters are then integrals of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from controller_runtime.api import names, quantity, timestamps
from controller_runtime.client import Client
from controller_runtime.errors import ApiError, Forbidden, NotFound
from controller_runtime.log import get_logger
from controller_runtime.serving import metrics_handler
from virtual_node.translate import prometheus_text, stats
from virtual_node.translate.node_usage import CounterSum, RateIntegral
from virtual_node.translate.prometheus_text import PodNames

_FRESH = 5.0
"""Seconds an answer of the lower cluster is good for; scrapers ask every ten at most."""
_TIMEOUT = 4.0
"""Seconds one lower kubelet may take; a scraper waits ten at most, and one that hangs must not cost the whole answer."""
_AT_ONCE = 32
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_log = get_logger(component="kubelet")


@dataclass(slots=True)
class _Round:
    """One question to all lower kubelets."""

    task: asyncio.Task[_Answers]
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class _Answers:
    by_node: dict[str, bytes]
    refused: bool
    """Every kubelet that was asked is out of our reach: the rights, or the proxy, are missing."""


class MetricsRoutes:
    """The routes of one virtual node."""

    def __init__(
        self,
        lower: Client,
        *,
        node_name: str,
        lower_nodes: Callable[[], Sequence[str]],
        pods: Callable[[], Mapping[tuple[str, str], PodNames]],
        cluster_id: str,
    ) -> None:
        """Set up.

        Args:
            lower: the lower cluster.
            node_name: the virtual node.
            lower_nodes: names of the lower nodes behind it.
            pods: its pods, by lower namespace and name.
            cluster_id: the upper cluster's identity on its pods below.
        """
        self._lower = lower
        self._node_name = node_name
        self._lower_nodes = lower_nodes
        self._pods = pods
        self._cluster_id = cluster_id
        # One per source: the samples of two paths are of different moments, and a step back looks like a reboot.
        self._resource_cpu, self._summary_cpu, self._fallback_cpu = CounterSum(), CounterSum(), CounterSum()
        self._rates = RateIntegral()
        self._rounds: dict[str, _Round] = {}
        self._told = False

    def routes(self) -> list[web.RouteDef]:
        """To be served beside the others."""
        return [
            web.get("/metrics", metrics_handler),
            web.get("/metrics/resource", self._resource),
            web.get("/metrics/cadvisor", self._cadvisor),
            web.get("/metrics/probes", self._probes),
            web.get("/stats/summary", self._summary),
        ]

    async def _resource(self, _request: web.Request) -> web.Response:
        answers = await self._ask("metrics/resource")
        texts = _decoded(answers.by_node)
        if not texts and answers.refused:
            return _text(await self._from_metrics_api())
        pods = self._pods()
        nodes = {node: prometheus_text.node_samples(text) for node, text in texts.items()}
        return _text(self._node_lines(nodes) + prometheus_text.merge(texts.values(), pods))

    async def _cadvisor(self, _request: web.Request) -> web.Response:
        return await self._merged("metrics/cadvisor")

    async def _probes(self, _request: web.Request) -> web.Response:
        return await self._merged("metrics/probes")

    async def _summary(self, _request: web.Request) -> web.Response:
        answers = (await self._ask("stats/summary")).by_node
        found = [msgspec.json.decode(answer) for answer in answers.values()]
        silent = set(self._lower_nodes()) - answers.keys()
        if silent:
            second = await self._ask("metrics/resource")
            if not found and second.refused:
                return await self._summary_from_metrics_api()
            texts = _decoded(second.by_node)
            found += [
                stats.from_resource_metrics(text, node) for node, text in texts.items() if node in silent
            ]
        seconds = self._summary_cpu.update(
            {
                one["node"]["nodeName"]: one["node"]["cpu"]["usageCoreNanoSeconds"] / 1e9
                for one in found
                if "usageCoreNanoSeconds" in (one.get("node", {}).get("cpu") or {})
            }
        )
        body = stats.summary(found, self._pods(), node_name=self._node_name, cpu_seconds=seconds)
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    async def _summary_from_metrics_api(self) -> web.Response:
        names_above = {(one.namespace, one.name): one for one in self._pods().values()}
        one = stats.from_resource_metrics(await self._from_metrics_api(), self._node_name)
        body = stats.summary([one], names_above, node_name=self._node_name)
        return web.Response(body=msgspec.json.encode(body), content_type="application/json")

    async def _merged(self, path: str) -> web.Response:
        texts = _decoded((await self._ask(path)).by_node)
        return _text(prometheus_text.merge(texts.values(), self._pods()))

    def _node_lines(self, nodes: Mapping[str, Mapping[str, tuple[float, int]]]) -> str:
        cpu = {node: found["node_cpu_usage_seconds_total"] for node, found in nodes.items() if "node_cpu_usage_seconds_total" in found}  # fmt: skip
        memory = [found["node_memory_working_set_bytes"] for found in nodes.values() if "node_memory_working_set_bytes" in found]  # fmt: skip
        if not cpu or not memory:
            return ""
        seconds = self._resource_cpu.update({node: value for node, (value, _) in cpu.items()})
        at = max(moment for _, moment in [*cpu.values(), *memory])
        return _node_exposition(seconds, sum(value for value, _ in memory), at)

    # --- the lower kubelets -------------------------------------------------------------------------

    async def _ask(self, path: str) -> _Answers:
        """The answers of the lower kubelets, of one round for everybody who asks meanwhile and shortly after."""
        now = asyncio.get_running_loop().time()
        known = self._rounds.get(path)
        if known is None or (known.ended is not None and now - known.ended > _FRESH):
            known = self._rounds[path] = _Round(asyncio.ensure_future(self._ask_all(path)))
            known.task.add_done_callback(partial(_note_end, known))
        return await asyncio.shield(known.task)

    async def _ask_all(self, path: str) -> _Answers:
        limit = asyncio.Semaphore(_AT_ONCE)
        failures: list[ApiError] = []

        async def ask(node: str) -> tuple[str, bytes | None]:
            async with limit:
                try:
                    answer = await self._lower.request(
                        "GET", f"/api/v1/nodes/{node}/proxy/{path}", timeout=_TIMEOUT, flow="metrics"
                    )
                except ApiError as error:
                    failures.append(error)
                    return node, None
                return node, answer

        found = await asyncio.gather(*(ask(node) for node in self._lower_nodes()))
        answers = {node: answer for node, answer in found if answer is not None}
        refused = (
            bool(failures) and not answers and all(isinstance(one, Forbidden | NotFound) for one in failures)
        )
        if refused and not self._told:
            self._told = True
            _log.info(
                "lower kubelets' metrics are refused; the metrics API serves instead", why=str(failures[0])
            )
        return _Answers(answers, refused)

    # --- the lower metrics API ----------------------------------------------------------------------

    async def _from_metrics_api(self) -> str:
        pods = self._pods()
        try:
            nodes, found = await asyncio.gather(self._list("nodes"), self._list("pods", ours=True))
        except ApiError as error:
            _log.debug("the lower cluster has no metrics for us", why=str(error))
            return ""
        mine = set(self._lower_nodes())
        cpu: dict[str, float] = {}
        memory, at = 0.0, 0
        kept: set[str] = set()
        for node in nodes:
            if node["metadata"]["name"] in mine:
                moment = _seconds(node)
                kept.add(key := f"node/{node['metadata']['name']}")
                cpu[key] = self._rates.update(key, quantity.milli(node["usage"]["cpu"]) / 1000, moment)
                memory += quantity.amount(node["usage"]["memory"])
                at = max(at, int(moment * 1000))
        lines = [_node_exposition(self._fallback_cpu.update(cpu), memory, at)] if at else []
        samples: list[str] = []
        for pod in found:
            upper = pods.get((pod["metadata"]["namespace"], pod["metadata"]["name"]))
            if upper is not None:
                samples += self._container_lines(pod, upper, kept)
        self._rates.keep(kept)
        for metric, kind in (
            ("container_cpu_usage_seconds_total", "counter"),
            ("container_memory_working_set_bytes", "gauge"),
        ):
            # Samples of one metric stay together, as the format demands.
            about = [sample for sample in samples if sample.startswith(metric)]
            lines += [f"# TYPE {metric} {kind}\n", *about] if about else []
        return "".join(lines)

    def _container_lines(self, pod: Mapping[str, Any], upper: PodNames, kept: set[str]) -> list[str]:
        moment = _seconds(pod)
        lines = []
        for container in pod.get("containers") or ():
            kept.add(key := f"{upper.uid}/{container['name']}")
            seconds = self._rates.update(key, quantity.milli(container["usage"]["cpu"]) / 1000, moment)
            labels = f'container="{container["name"]}",namespace="{upper.namespace}",pod="{upper.name}"'
            at = int(moment * 1000)
            lines.append(f"container_cpu_usage_seconds_total{{{labels}}} {seconds:.6f} {at}\n")
            size = quantity.amount(container["usage"]["memory"])
            lines.append(f"container_memory_working_set_bytes{{{labels}}} {size} {at}\n")
        return lines

    async def _list(self, what: str, *, ours: bool = False) -> list[dict[str, Any]]:
        params = {"labelSelector": f"{names.LABEL_UPPER_CLUSTER}={self._cluster_id}"} if ours else None
        answer = await self._lower.request(
            "GET", f"/apis/metrics.k8s.io/v1beta1/{what}", params=params, timeout=_TIMEOUT, flow="metrics"
        )
        items: list[dict[str, Any]] = msgspec.json.decode(answer).get("items") or []
        return items


def _note_end(of: _Round, task: asyncio.Task[_Answers]) -> None:
    of.ended = task.get_loop().time()


def _decoded(answers: Mapping[str, bytes]) -> dict[str, str]:
    return {node: answer.decode("utf-8", "replace") for node, answer in answers.items()}


def _node_exposition(cpu_seconds: float, memory_bytes: float, at: int) -> str:
    return (
        "# HELP node_cpu_usage_seconds_total CPU seconds used by the lower nodes since they were first seen\n"
        "# TYPE node_cpu_usage_seconds_total counter\n"
        f"node_cpu_usage_seconds_total {cpu_seconds:.6f} {at}\n"
        "# HELP node_memory_working_set_bytes Working set of the lower nodes\n"
        "# TYPE node_memory_working_set_bytes gauge\n"
        f"node_memory_working_set_bytes {memory_bytes:.0f} {at}\n"
    )


def _seconds(item: Mapping[str, Any]) -> float:
    return timestamps.parse(item["timestamp"]).timestamp()


def _text(body: str) -> web.Response:
    return web.Response(body=body.encode(), headers={"Content-Type": _TEXT})
