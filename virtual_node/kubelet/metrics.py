"""The metrics routes of a virtual node.

``/metrics`` describes the process and the virtual node (``series``). ``/metrics/resource``, ``/metrics/cadvisor``,
``/metrics/probes`` and ``/stats/summary`` come from the lower kubelets, which are requested at most every few seconds. If
the lower cluster refuses access to its kubelets, usage comes from its metrics API.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry

from clusterset.model import names
from controller_runtime.apimachinery import quantity, timestamps
from controller_runtime.apimachinery.decoding import decoder
from controller_runtime.client.client import Client
from controller_runtime.client.served_version import metrics_api
from controller_runtime.errors import ApiError, ConfigError, Forbidden, NotFound
from controller_runtime.log import get_logger
from controller_runtime.process.flags import parse_duration
from controller_runtime.serving.health import MetricsPage
from controller_runtime.util.keyed import SharedAnswers
from virtual_node.kubelet.base import TEXT, handled, service
from virtual_node.kubelet.series import NodeSeries, VolumeStats
from virtual_node.translate.base.fields import is_dns_name
from virtual_node.translate.nodes import prometheus_text, stats
from virtual_node.translate.nodes.prometheus_text import (
    Exposition,
    PodNames,
    Pods,
    is_plausible,
    node_exposition,
)
from virtual_node.translate.nodes.stats import CounterSum, RateIntegral

_FRESH = 5.0
"""Seconds for which a response is reused. Scrapers have intervals of ten seconds or more."""
_NODE_CPU, _NODE_MEMORY = "node_cpu_usage_seconds_total", "node_memory_working_set_bytes"
_NODE_SWAP = "node_swap_usage_bytes"
_API_TIMEOUT = 8.0
"""Timeout in seconds; scrapers wait at most ten seconds."""
_CONTAINER_CPU, _CONTAINER_MEMORY = "container_cpu_usage_seconds_total", "container_memory_working_set_bytes"
_MALFORMED = (ValueError, LookupError, TypeError, ArithmeticError, AttributeError)
"""Errors of an item that is not what a metrics API sends; it is left out."""
_log = get_logger(component="kubelet")
T = TypeVar("T")
_KUBELET_TIMEOUT = 4.0
"""Seconds for one kubelet, so that a kubelet that does not answer cannot fail the whole request."""
_PATIENCE = 8.0
"""Seconds for all kubelets, because scrapers wait at most ten seconds."""
_VOLUMES_PATIENCE = 4.0
"""Seconds that ``/metrics`` waits for volumes, so that a slow lower kubelet does not delay the other series."""
_REFUSED = 60.0
"""Seconds after which a path that all kubelets refused is requested again."""
_AT_ONCE = 32
_MOST_NODES = 5000
"""Maximum number of nodes to request, because a hostile lower cluster may list any number."""
_MOST_PARTS = 1_000_000
"""Maximum number of lines or JSON values in a response, because each takes at least fifty bytes of memory."""
_SMALL = 64 * 1024
"""Responses below this number of bytes are parsed without a thread, because starting a thread takes longer."""


@dataclass(eq=False, repr=False)
class MetricsRoutes:
    """The metrics routes of one virtual node."""

    lower: Client
    """The lower cluster."""
    _: KW_ONLY
    node_name: str
    """The virtual node."""
    lower_nodes: Callable[[], Sequence[str]]
    """Returns the names of the virtual node's lower nodes."""
    pods: Callable[[], Mapping[tuple[str, str], PodNames]]
    """Returns its upper pods by lower namespace and name."""
    cluster_id: str
    """Identity of the upper cluster, which the labels of owned lower pods contain."""
    series: NodeSeries
    """The virtual node's own series."""

    def __post_init__(self) -> None:
        self._kubelets = LowerKubelets(self.lower, self.lower_nodes)
        self._metrics_api = MetricsApi(self.lower, cluster_id=self.cluster_id)
        # One counter per source, because samples of two sources have different times, and a decrease looks like
        # a reboot.
        self._resource_cpu, self._summary_cpu = CounterSum(), CounterSum()
        self._answers: SharedAnswers[str, bytes] = SharedAnswers(fresh=_FRESH)
        self._usage: SharedAnswers[str, str] = SharedAnswers(fresh=_FRESH)

    def routes(self) -> list[web.RouteDef]:
        """Return the routes to serve."""
        return [
            handled("/metrics", MetricsPage(self._page).get),
            handled("/metrics/resource", self._answer("resource", self._resource)),
            handled("/metrics/cadvisor", self._answer("cadvisor", partial(self._merged, "metrics/cadvisor"))),
            handled("/metrics/probes", self._answer("probes", partial(self._merged, "metrics/probes"))),
            *service(
                ["GET", "POST"],
                ["/stats/summary"],
                self._answer("summary", self._summary, content_type="application/json"),
            ),
        ]

    def _answer(
        self,
        name: str,
        find_out: Callable[[], Coroutine[Any, Any, bytes]],
        *,
        content_type: str = TEXT,
    ) -> Handler:
        async def answer(_request: web.Request) -> web.Response:
            body = await self._answers.get(name, find_out)
            return web.Response(body=body, headers={"Content-Type": content_type})

        return answer

    async def _page(self) -> CollectorRegistry:
        """Return the metrics of ``/metrics``; without volumes if lower kubelets do not answer soon."""
        volumes = VolumeStats()
        if self.series.has_claims:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_VOLUMES_PATIENCE):
                    volumes = _read_volumes(await self._answers.get("summary", self._summary))
        return self.series.page(volumes)

    async def _resource(self) -> bytes:
        answers = await self._kubelets.ask("metrics/resource", partial(_read_usage, pods=self.pods()))
        if answers.refused:
            text = await self._from_metrics_api()
            return (text + prometheus_text.scrape_result(is_failed=not text)).encode()
        node = self._node_lines({node: samples for node, (samples, _) in answers.by_node.items()})
        ours = prometheus_text.render(ours for _, ours in answers.by_node.values())
        is_failed = any(node not in answers.by_node for node in self.lower_nodes())
        return (node + ours + prometheus_text.scrape_result(is_failed=is_failed)).encode()

    async def _merged(self, path: str) -> bytes:
        pods = self.pods()
        answers = await self._kubelets.ask(path, lambda raw: prometheus_text.ours(_decode(raw), pods))
        return prometheus_text.render(answers.by_node.values()).encode()

    async def _summary(self) -> bytes:
        pods = self.pods()
        found = summaries = (await self._kubelets.ask("stats/summary", _read_summary)).by_node
        if any(node not in summaries for node in self.lower_nodes()):
            second = await self._kubelets.ask("metrics/resource", _summary_of_metrics)
            if not found and second.refused:
                one = _summary_of_metrics((await self._from_metrics_api()).encode())
                above = {(upper.namespace, upper.name): upper for upper in pods.values()}
                return msgspec.json.encode(stats.summary([one], above, node_name=self.node_name))
            found = {**second.by_node, **summaries}
        used = {
            f"{node} {'summary' if node in summaries else 'metrics'}": nanoseconds / 1e9
            for node, one in found.items()
            if (nanoseconds := (one["node"].get("cpu") or {}).get("usageCoreNanoSeconds")) is not None
        }
        seconds = self._summary_cpu.update(used)
        body = stats.summary(list(found.values()), pods, node_name=self.node_name, cpu_seconds=seconds)
        return msgspec.json.encode(body)

    async def _from_metrics_api(self) -> str:
        # Two routes share the result, so that the lists are requested only once.
        return await self._usage.get(
            "", lambda: self._metrics_api.exposition(self.pods(), self.lower_nodes())
        )

    def _node_lines(self, nodes: Mapping[str, Mapping[str, tuple[float, int]]]) -> str:
        cpu = {node: found[_NODE_CPU] for node, found in nodes.items() if _NODE_CPU in found}
        memory, swap = (
            [found[name] for found in nodes.values() if name in found] for name in (_NODE_MEMORY, _NODE_SWAP)
        )
        if not cpu or not memory:
            return ""
        seconds = self._resource_cpu.update({node: value for node, (value, _) in cpu.items()})
        at = max(moment for _, moment in [*cpu.values(), *memory])
        return prometheus_text.node_exposition(
            seconds,
            sum(value for value, _ in memory),
            at=at,
            swap_bytes=sum(value for value, _ in swap) if swap else None,
        )


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
_read_volumes = decoder(VolumeStats)


class MetricsApi:
    """The usage counters of one virtual node.

    Args:
        lower: The lower cluster.
        cluster_id: Identity of the upper cluster, which the labels of owned lower pods contain.
    """

    def __init__(self, lower: Client, *, cluster_id: str) -> None:
        self._api = metrics_api(lower)
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
        cpu, memory = [f"# TYPE {_CONTAINER_CPU} counter\n"], [f"# TYPE {_CONTAINER_MEMORY} gauge\n"]
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
            if not is_dns_name(name) or not upper.has(name):
                continue  # the text of other names would become part of a line
            key = f"{upper.uid}/{name}"
            seconds = counters[key] = self._count(key, pod, container["usage"])
            if not (is_plausible(seconds, at) and is_plausible(used, at)):
                continue
            labels = f'container="{name}",namespace="{upper.namespace}",pod="{upper.name}"'
            cpu.append(f"{_CONTAINER_CPU}{{{labels}}} {seconds:.6f} {at}\n")
            memory.append(f"{_CONTAINER_MEMORY}{{{labels}}} {used} {at}\n")

    def _count(self, key: str, sample: Mapping[str, Any], usage: Mapping[str, str]) -> float:
        """Return the CPU seconds used up to a sample."""
        return self._rates.update(
            key,
            _cores(usage["cpu"]),
            at=_milliseconds(sample) / 1000,
            window=parse_duration(sample["window"]),
        )

    async def _list(self, what: str, params: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        try:
            answer = await self._api.read(what, params=params, timeout=_API_TIMEOUT, flow="metrics")
        except (ApiError, ConfigError) as error:
            _log.debug("the metrics API of the lower cluster cannot be read", what=what, why=str(error))
            return []
        items: list[dict[str, Any]] = answer.get("items") or []
        return items


def _milliseconds(sample: Mapping[str, Any]) -> int:
    return int(timestamps.parse(sample["timestamp"]).timestamp() * 1000)


def _cores(cpu: str) -> float:
    """Return CPUs. Nano-CPUs are parsed here, because ``quantity`` resolves only milli-CPUs."""
    return int(cpu[:-1]) / 1e9 if cpu.endswith("n") else quantity.milli(cpu) / 1000


@dataclass(frozen=True, slots=True)
class Answers(Generic[T]):
    """Responses of the lower kubelets.

    Attributes:
        by_node: Results of the kubelets that answered.
        refused: Whether all requests were refused, because permissions or the node proxy are missing.
    """

    by_node: dict[str, T]
    refused: bool = False


class LowerKubelets:
    """The kubelets of the lower nodes of one virtual node.

    Args:
        lower: The lower cluster.
        nodes: Returns the current names of the lower nodes.
    """

    def __init__(self, lower: Client, nodes: Callable[[], Sequence[str]]) -> None:
        self._lower = lower
        self._nodes = nodes
        self._refused_until: dict[str, float] = {}
        self._one_thread = asyncio.Lock()

    async def ask(self, path: str, read: Callable[[bytes], T]) -> Answers[T]:
        """Request a path from all kubelets concurrently.

        Args:
            path: Path of the kubelet API, without a leading slash.
            read: Parses one response, in a thread if it is large; it may raise ValueError. Each response is
                parsed on arrival, because the unparsed responses of a hundred nodes would take half a
                gigabyte.
        """
        loop = asyncio.get_running_loop()
        if loop.time() < self._refused_until.get(path, 0.0):
            return Answers({}, refused=True)
        nodes = self._nodes()[:_MOST_NODES]
        found: dict[str, T] = {}
        failures: list[Exception] = []
        limit = asyncio.Semaphore(_AT_ONCE)

        async def ask(node: str) -> None:
            try:
                url = f"/api/v1/nodes/{node}/proxy/{path}"
                async with (
                    limit,
                    self._lower.receive("GET", url, timeout=_KUBELET_TIMEOUT, flow="metrics") as answer,
                ):
                    found[node] = await self._read(answer, read)
            except (ApiError, ConfigError) as error:
                failures.append(error)
            except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError) as error:
                failures.append(ValueError(f"not what a kubelet sends: {error!r}"))

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await asyncio.gather(*map(ask, nodes))
        refused = 0 < len(nodes) == sum(isinstance(one, Forbidden | NotFound) for one in failures)
        if refused:
            if path not in self._refused_until:
                _log.info(
                    "lower kubelets' metrics are refused; using the metrics API instead",
                    path=path,
                    why=str(failures[0]),
                )
            self._refused_until[path] = loop.time() + _REFUSED
        elif failures:
            _log.debug("lower kubelets did not answer", path=path, nodes=len(failures), why=str(failures[0]))
        return Answers(found, refused)

    async def _read(self, answer: bytes, read: Callable[[bytes], T]) -> T:
        if len(answer) < _SMALL:
            return read(answer)
        if len(answer) > _MOST_PARTS and sum(map(answer.count, (b"\n", b"[", b"{"))) > _MOST_PARTS:
            raise ValueError(f"more than {_MOST_PARTS:,} lines or values")
        # Parse in one thread at a time. More would not be faster, and name resolution uses the same thread
        # pool.
        async with self._one_thread:
            return await asyncio.to_thread(read, answer)
