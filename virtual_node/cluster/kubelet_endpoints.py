"""The kubelet APIs of the process's virtual nodes: certificates, addresses, ports and access.

There is one listener per virtual node, because a kubelet's paths do not name the node, and because the upper
cluster authorizes callers per node.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from clusterset.config import Cluster, NodeConfig
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import ConfigError
from controller_runtime.serving.connections import Connections
from virtual_node import node_summary
from virtual_node.certificates import NOT_RENEWED, ClientAuthority, NodeCertificates
from virtual_node.config.types import KubeletConfig
from virtual_node.controllers.base.context import ClusterContext, PodCaches
from virtual_node.kubelet.auth import Authenticator, Authorizer
from virtual_node.kubelet.base import PodTarget, Refusal, document, quoted
from virtual_node.kubelet.metrics import MetricsRoutes
from virtual_node.kubelet.series import NodeSeries
from virtual_node.kubelet.server import KubeletServer, connection_limits
from virtual_node.kubelet.streams.limits import StreamLimits
from virtual_node.translate.nodes.prometheus_text import PodNames
from virtual_node.translate.pods.containers import reachable, recorded_debuggers

_PORTS_TRIED = 200


class KubeletService:
    """The running kubelet API of one virtual node."""

    def __init__(self, server: KubeletServer, tasks: Sequence[asyncio.Task[None]]) -> None:
        self._server = server
        self._tasks = tasks

    @property
    def port(self) -> int:
        """Return the port on which the API listens."""
        return self._server.port

    async def stop(
        self, *, lame_duck: float = 0.0, grace: float | None = None, after: asyncio.Event | None = None
    ) -> None:
        """Stop the certificate's tasks, the listener and the streams.

        Args:
            lame_duck: seconds for which new streams are still accepted.
            grace: seconds for which open streams may continue; None: the server's default.
            after: ``grace`` begins when this event is set; None: now.
        """
        for task in self._tasks:
            task.cancel()
        try:
            if lame_duck:
                await asyncio.sleep(lame_duck)
            await self._server.stop(grace=grace, after=after)
        finally:
            await asyncio.gather(*self._tasks, return_exceptions=True)


class KubeletEndpoints:
    """Creates kubelet APIs for virtual nodes and holds what they share."""

    def __init__(
        self,
        config: KubeletConfig,
        *,
        upper: Client,
        summary: Callable[[str], Awaitable[bytes]] | None = None,
    ) -> None:
        """Create without any IO.

        Args:
            config: configuration of the kubelet APIs.
            upper: client of the upper cluster.
            summary: returns the content of ``node_summary.PATH`` for a virtual node; None: it is not served.
        """
        self._config = config
        self._upper = upper
        self._summary = summary
        self._node_ip = ""
        self._log = structlog.get_logger(component="kubelet")
        self._connections = Connections(
            "kubelet",
            connection_limits(config.limits.connections, config.limits.unauthorized_connections),
            setting="kubelet.limits",
        )
        self._streams = StreamLimits(config.limits.streams, config.limits.streams_per_namespace)
        self._certificates = NodeCertificates(config, upper=upper)
        self._authority = ClientAuthority(
            config.client_ca_file, upper=upper, changed=self._certificates.trust
        )
        self._following: asyncio.Task[None] | None = None
        self._draining: set[asyncio.Task[None]] = set()
        self._lame_duck = 0.0
        self._another_works = False
        """Whether another process will run the clusters that stop; then their open streams continue."""
        self._handed_over: list[tuple[Cluster, asyncio.Event]] = []
        """Clusters that another process runs and that still have streams here, each with an event that ends them."""

    async def __aenter__(self) -> Self:
        """Determine the address to publish and read the CA of the callers.

        Raises:
            ConfigError: the address of this machine cannot be determined.
        """
        self._node_ip = self._config.node_ip or await local_address_towards(self._upper.config.server)
        await self._authority.load()
        self._following = asyncio.create_task(self._authority.follow(), name="client CA")
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Wait for the last stream, at most ``drainTimeout``; then stop the tasks of CA and certificates."""
        self.keep([])
        if self._draining:
            self._log.info("draining", seconds=self._config.drain_timeout)
            await asyncio.gather(*self._draining, return_exceptions=True)
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
        await self._certificates.close()

    def begin_work(self) -> None:
        """Close listeners without delay from now on, because clusters that restart in this process need the ports.

        Called when a replica starts to lead; reverts ``begin_shutdown`` of an earlier leadership.
        """
        self._lame_duck, self._another_works = 0.0, False

    def begin_shutdown(self, *, lame_duck: float) -> None:
        """Expect from now on that another process, if there is one, will run the clusters that stop here.

        Their kubelet APIs accept new streams for ``lame_duck`` seconds, until callers know the address of the other
        process. Open streams continue until this process ends, or until ``keep`` is called without their cluster.
        """
        self._lame_duck, self._another_works = lame_duck, True

    def keep(self, clusters: Sequence[Cluster]) -> None:
        """End the open streams of handed-over clusters that are not in ``clusters``, after ``drainTimeout``.

        A cluster with a changed configuration is another value than before, so its streams end. The replica that runs the
        cluster ends its streams, too.
        """
        for cluster, ending in self._handed_over:
            if cluster not in clusters:
                ending.set()

    def retire(
        self,
        services: Sequence[KubeletService],
        clients: contextlib.AsyncExitStack,
        *,
        cluster: Cluster,
    ) -> None:
        """Drain the streams of a lower cluster in the background; any process may run the cluster meanwhile.

        Args:
            services: the cluster's kubelet APIs.
            clients: the clients that their streams need; closed after the last stream.
            cluster: configuration of the cluster.
        """
        lame_duck, after = self._lame_duck, asyncio.Event() if self._another_works else None
        handed_over = [(cluster, after)] if after is not None else []
        self._handed_over += handed_over

        async def drain() -> None:
            async with clients:
                ends = await asyncio.gather(
                    *(
                        service.stop(lame_duck=lame_duck, grace=self._config.drain_timeout, after=after)
                        for service in services
                    ),
                    return_exceptions=True,
                )
            self._handed_over = [one for one in self._handed_over if one not in handed_over]
            for error in ends:
                if isinstance(error, Exception):
                    self._log.error("error while stopping the kubelet API", exc_info=error)

        task = asyncio.create_task(drain(), name="drain")
        self._draining.add(task)
        task.add_done_callback(self._drained)

    def _drained(self, task: asyncio.Task[None]) -> None:
        self._draining.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error("error while closing the clients of a lower cluster", exc_info=error)

    def addresses(self, node: NodeConfig) -> list[dict[str, str]]:
        """Return ``status.addresses`` of a virtual node.

        No DNS knows its name. API servers and metrics-server prefer the Hostname by default, so it is the address, too.
        """
        internal = node.node_ip or self._node_ip
        found = [{"type": "InternalIP", "address": internal}, {"type": "Hostname", "address": internal}]
        if self._config.external_ip:
            found.append({"type": "ExternalIP", "address": self._config.external_ip})
        return found

    async def serve(
        self, context: ClusterContext, caches: PodCaches, node: NodeConfig, *, lower_nodes: Informer
    ) -> KubeletService:
        """Start the kubelet API of one virtual node.

        Args:
            context: the two clusters.
            caches: the pods of both clusters.
            node: the virtual node.
            lower_nodes: all lower nodes, for metrics.

        Raises:
            ConfigError: no port is free, this machine does not have the address, or the certificate is unusable.
        """
        addresses = self.addresses(node)
        reloader = self._certificates.reloader(node.name, addresses, client_ca=self._authority.known)
        authenticator = Authenticator(self._upper, anonymous_auth=self._config.anonymous_auth)
        authorizer = Authorizer(self._upper, node_name=node.name) if self._config.authorization else None
        backend = CachedPods(context, caches, node.name)
        series = NodeSeries(
            node.name,
            certificate_expires=lambda: reloader.expires_at,
            work=context.pod_work[node.name],
        )
        caches.upper[node.name].on_change(series.saw, series.gone)
        measures = MetricsRoutes(
            context.lower,
            node_name=node.name,
            lower_nodes=lambda: [
                lower.name
                for lower in lower_nodes.store.list()
                if node.node_selector.items() <= lower.labels.items()
            ],
            pods=backend.upper_pods_by_lower_name,
            cluster_id=context.cluster_id,
            series=series,
        )
        wanted = [node.port] if node.port is not None else self._candidates()
        refusal: OSError | None = None
        for port in wanted:
            server = KubeletServer(
                backend,
                address=node.node_ip or self._config.address,
                port=port,
                tls=reloader,
                authenticator=authenticator,
                authorizer=authorizer,
                node_name=node.name,
                extra_routes=[*measures.routes(), *self._own_routes(node.name)],
                connections=self._connections,
                stream_limits=self._streams,
            )
            try:
                await server.start()
            except OSError as error:
                if node.node_ip and error.errno != errno.EADDRINUSE:
                    raise ConfigError(
                        f"kubelet API of {node.name}: cannot listen on nodeIP {node.node_ip} ({error}); set it to an "
                        "address of this machine or Pod"
                    ) from None
                refusal = error
                continue
            self._log.info("kubelet API", node=node.name, address=addresses[0]["address"], port=server.port)

            def record_event(reason: str, message: str) -> None:
                if reason == NOT_RENEWED:
                    series.renewal_failed()
                _record_node_event(context, node.name, reason, message)

            return KubeletService(
                server, self._certificates.maintain(reloader, node.name, addresses, record_event=record_event)
            )
        raise ConfigError(
            f"kubelet API of {node.name}: no port is free ({refusal}); set KUBELET_PORT or the node's port"
        )

    def _own_routes(self, node_name: str) -> Iterator[web.RouteDef]:
        if (summary := self._summary) is not None:
            yield from document(node_summary.PATH, lambda: summary(node_name))

    def _candidates(self) -> list[int]:
        if self._config.port == 0:
            return [0]
        return list(range(self._config.port, min(self._config.port + _PORTS_TRIED, 65536)))


def _record_node_event(context: ClusterContext, node_name: str, reason: str, message: str) -> None:
    """Write a Warning about the Node, with its name as uid, as kubelets do and ``kubectl describe`` expects."""
    node = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_name}
    context.warn(node, reason, message)


async def local_address_towards(server: str) -> str:
    """Return the local address from which packets to a server are sent; sends no packet.

    Raises:
        ConfigError: the address cannot be determined.
    """
    parts = urlsplit(server)
    host, port = parts.hostname or "localhost", parts.port or 443
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            local = str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"cannot determine the address at which the upper cluster {server} reaches us ({error}); set "
            f"VKUBELET_POD_IP"
        ) from None
    return str(ipaddress.ip_address(local.partition("%")[0]))


@dataclass(eq=False, repr=False)
class CachedPods:
    """Implements ``kubelet.base.Backend``."""

    context: ClusterContext
    caches: PodCaches
    node_name: str

    def __post_init__(self) -> None:
        """Find the cache of the node's upper pods."""
        self._upper = self.caches.upper[self.node_name].store
        self._containers: dict[str, tuple[int, frozenset[str], frozenset[str]]] = {}
        """Generations and containers of upper pods, by uid."""

    def resolve(self, namespace: str, name: str, *, uid: str | None = None) -> PodTarget | None:
        """Return the lower pod of an upper pod on this node; None: no upper pod of this name (and ``uid``).

        Raises:
            Refusal: the upper pod has no lower pod now.
        """
        pod = self._upper.get(f"{namespace}/{name}")
        if pod is None or (uid and pod.uid != uid):
            return None
        cluster = self.context.name
        lower = self.caches.lower_of(pod)
        if lower is None:
            raise Refusal(400, f"pod {quoted(name)} is not in cluster {quoted(cluster)} now; see its events")
        return PodTarget(
            cluster=cluster,
            namespace=lower.namespace,
            name=lower.name,
            client=self.context.lower,
            pod=pod.to_dict(),
            containers=reachable(pod.spec or {}, recorded_debuggers(lower.annotations)),
        )

    def pods(self) -> Iterator[Mapping[str, Any]]:
        """Return every upper pod bound to this node."""
        return (pod.to_dict() for pod in self._upper.list())

    def running_pods(self) -> Iterator[Mapping[str, Any]]:
        """Yield every upper pod of this node whose lower pod runs."""
        for pod in self._upper.list():
            lower = self.caches.lower_of(pod)
            if lower is not None and (lower.status or {}).get("phase") == "Running":
                yield pod.to_dict()

    def upper_pods_by_lower_name(self) -> dict[tuple[str, str], PodNames]:
        """Return names and UID of the upper pods that have a lower pod, by the lower pod's namespace and name."""
        found = {}
        # Reading every spec at each scrape would take longer than all else, so names are kept by generation and debug containers.
        known, self._containers = self._containers, {}
        same: dict[frozenset[str], frozenset[str]] = {}
        for pod in self._upper.list():
            lower = self.caches.lower_of(pod)
            if lower is None:
                continue
            generation, recorded, containers = known.get(pod.uid, (-1, frozenset(), frozenset()))
            if (generation, recorded) != (
                pod.metadata.generation,
                debug := recorded_debuggers(lower.annotations),
            ):
                containers, recorded = reachable(pod.spec or {}, debug), debug
            containers = same.setdefault(containers, containers)
            self._containers[pod.uid] = pod.metadata.generation, recorded, containers
            found[lower.namespace, lower.name] = PodNames(pod.namespace, pod.name, pod.uid, containers)
        return found
