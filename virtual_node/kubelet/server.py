"""A virtual node's kubelet API on its own port, to which the upper apiserver connects: routes, access and pod lists."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import Counter

from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.log import get_logger
from controller_runtime.process import listening
from controller_runtime.serving.connections import (
    ConnectionLimits,
    Connections,
    Gate,
    count_requests,
    peer_of,
)
from controller_runtime.serving.health import HealthChecks
from virtual_node.kubelet.auth import (
    Attributes,
    AuthenticationError,
    Authenticator,
    Authorizer,
    UserInfo,
    request_attributes,
)
from virtual_node.kubelet.base import (
    TEXT,
    Backend,
    Refusal,
    disabled,
    handled,
    not_allowed,
    not_found,
    redirected,
    service,
)
from virtual_node.kubelet.logs import LogRoutes
from virtual_node.kubelet.streams.limits import StreamLimits, StreamRegistry
from virtual_node.kubelet.streams.routes import USER, RunRoutes, StreamRoutes

_BACKLOG = 128
_ALL_ADDRESSES = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - the upper apiserver must reach it
_log = get_logger(component="kubelet")
REQUESTS = Counter(
    "virtual_node_kubelet_http_requests_total",
    "Requests to the kubelet API by the first part of their route.",
    ["path", "method", "code"],
)
MAX_HEAD = 1024 * 1024
"""Maximum bytes of a request head, as in Go's net/http. The URL is long, because ``kubectl exec`` sends whole
scripts in it."""
STREAM = re.compile(
    rb"(?:GET|POST) /(?:exec|attach|portForward)/[^\r\n]*\r\n(?:[^\r\n]*\r\n)*?upgrade[ \t]*:", re.IGNORECASE
)
"""Matches the head of an upgrade request whose handler takes over the connection (exec, attach, port-forward)."""
_encode = msgspec.json.Encoder().encode
_POD = "/{namespace}/{pod}"
_CONTAINER = "/{namespace}/{pod}/{container}"
_CONTAINERS = (_CONTAINER, "/{namespace}/{pod}/{uid}/{container}")
_BATCH = 50
"""Pods per batch. Encoding a batch takes about 5 ms; then other tasks (Lease renewals, streams) may run."""
_UPGRADING = ("GET", "POST")
_CHECKS = ("ping", "log", "syncloop")
"""Names of a kubelet's health checks."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def connection_limits(total: int = 1200, strangers: int = 128) -> ConnectionLimits:
    """Return the limits of connections to the kubelet API."""
    return ConnectionLimits(
        total=total, strangers=strangers, verified_head_bytes=MAX_HEAD, held_bytes=16 * MAX_HEAD
    )


class ServerCertificate(Protocol):
    """Provides the TLS context for new connections, such as `CertificateReloader`."""

    @property
    def context(self) -> ssl.SSLContext:
        """The current TLS context."""

    def is_current(self, connection: ssl.SSLObject) -> bool:
        """Report whether a connection was made with the current certificate and client CA."""


class KubeletServer:
    """Serves one virtual node's kubelet API.

    Args:
        backend: The virtual node, which finds pods and clients of the lower cluster.
        address: Address to listen on; empty, ``0.0.0.0`` or ``::``: all addresses, of IPv4 and IPv6, as in a kubelet.
        port: Port to listen on; 0: any free port.
        tls: Server certificate and CA of client certificates; None: plain HTTP, for tests.
        authenticator: Authenticates requests.
        authorizer: Authorizes requests; None: every authenticated user is authorized.
        node_name: Name of the virtual node.
        stream_idle_timeout: Seconds without data after which a stream ends; by default the kubelet's 4 hours.
        answer_timeout: Maximum seconds for a lower apiserver to answer an upgrade.
        grace: Seconds that open streams have to end when the server stops.
        extra_routes: More routes with the same authentication and authorization.
        connections: Limits of connections, shared by the virtual nodes of a process.
        stream_limits: Limits of streams, shared in the same way.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        address: str,
        port: int,
        tls: ServerCertificate | None,
        authenticator: Authenticator,
        authorizer: Authorizer | None,
        node_name: str,
        stream_idle_timeout: float = 4 * 3600.0,
        answer_timeout: float = 60.0,
        grace: float = 10.0,
        extra_routes: Sequence[web.AbstractRouteDef] = (),
        connections: Connections | None = None,
        stream_limits: StreamLimits | None = None,
    ) -> None:
        if connections is None:  # an empty `Connections` is false
            connections = Connections("kubelet", connection_limits())
        self._connections = connections
        self._address = address
        self._port = port
        self._tls = tls
        self._grace = grace
        self._node_name = node_name
        self._reviewers = [reviewer for reviewer in (authenticator, authorizer) if reviewer is not None]
        self.streams = StreamRegistry(stream_limits)
        app = make_app(
            backend,
            self.streams,
            authenticator=authenticator,
            authorizer=authorizer,
            idle_timeout=stream_idle_timeout,
            answer_timeout=answer_timeout,
            extra_routes=extra_routes,
        )
        app.middlewares.insert(0, self._leave_outdated)
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            shutdown_timeout=1.0,
            # If a client disconnects, its handler is cancelled, which ends a log stream and the lower
            # request.
            handler_cancellation=True,
        )
        self._gate: Gate | None = None
        self._listener: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The listening port. If port 0 was requested, it is known only after `start`."""
        if self._listener is not None and self._listener.sockets:
            return int(self._listener.sockets[0].getsockname()[1])
        return self._port

    async def start(self) -> None:
        """Start to listen.

        Raises:
            OSError: The address is not available.
        """
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        self._gate = Gate(
            server,
            lambda: None if self._tls is None else self._tls.context,
            connections=self._connections,
            options=HANDLER_ARGS,
            hold=True,
            stream=STREAM,
        )
        try:
            # Assigned before it listens, because a cancellation in between would otherwise leave the port
            # open until the process exits.
            self._listener = await asyncio.get_running_loop().create_server(
                self._gate,
                sock=listening.bind("" if self._address in _ALL_ADDRESSES else self._address, self._port),
                backlog=_BACKLOG,
                start_serving=False,
            )
            await self._listener.start_serving()
        except BaseException:
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            await self._runner.cleanup()
            raise
        _log.debug("kubelet API started", node=self._node_name, address=self._address, port=self.port)

    async def stop(self, *, grace: float | None = None, after: asyncio.Event | None = None) -> None:
        """Stop listening, wait for open streams to end, then cancel the remaining ones.

        Args:
            grace: Maximum seconds to wait; None: the constructor's value.
            after: ``grace`` begins when this event is set; None: now.
        """
        if self._listener is not None:
            self._listener.close()
        if self._gate is not None:
            await self._gate.close()
        if self._runner.server is not None:
            _end_kept(self._runner.server)
        ended = await self.streams.drain(self._grace if grace is None else grace, after=after)
        if ended:
            _log.info("open streams closed", node=self._node_name, streams=ended)
        await self._runner.cleanup()
        for reviewer in self._reviewers:
            await reviewer.close()
        self._listener = None

    @web.middleware
    async def _leave_outdated(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Close the connection after this response if it was made with an older certificate or client CA."""
        # Read before the handler runs, because a transport that a stream has taken over and closed has no TLS
        # information any more.
        connection = request.transport.get_extra_info("ssl_object") if request.transport is not None else None
        response = await handler(request)
        if connection is not None and self._tls is not None and not self._tls.is_current(connection):
            response.force_close()
        return response


def _end_kept(server: web.Server) -> None:
    """Close idle connections now and others after their response, so that clients connect to the next process."""
    for connection in server.connections:
        waiter = connection._waiter  # noqa: SLF001 - no public API for waiting connections; a test guards it
        waits = waiter is not None and not waiter.done()
        connection.close()  # waits until a request that has arrived is answered
        if waits:
            connection.force_close()


def make_app(
    backend: Backend,
    registry: StreamRegistry,
    *,
    authenticator: Authenticator,
    authorizer: Authorizer | None,
    idle_timeout: float,
    answer_timeout: float,
    extra_routes: Sequence[web.AbstractRouteDef] = (),
) -> web.Application:
    """Return the application.

    Args:
        backend: Finds the pods.
        registry: Counts the streams.
        authenticator: Authenticates requests.
        authorizer: Authorizes requests; None: every authenticated user is authorized.
        idle_timeout: Seconds without data after which a stream ends.
        answer_timeout: Maximum seconds for a lower apiserver to answer an upgrade.
        extra_routes: More routes with the same authentication, authorized by the first part of their path.
    """
    parts = (backend, registry, idle_timeout, answer_timeout)
    streams, logs, run = StreamRoutes(*parts), LogRoutes(*parts), RunRoutes(*parts)
    health = HealthChecks()
    for name in _CHECKS:
        health.add(name, _passes, live=True)
    app = web.Application(middlewares=[count_requests, _guard(authenticator, authorizer)])
    app.add_routes(
        [
            handled("/healthz", health.summary("healthz")),
            *(handled(f"/healthz/{{name:{name}}}", health.single("healthz")) for name in _CHECKS),
            handled("/metrics/slis", _slis),
            *service(["GET"], ["/pods"], _pod_list(backend.pods)),
            *service(["GET"], ["/runningpods"], _pod_list(backend.running_pods)),
            *service(["GET"], ["/containerLogs" + _CONTAINER], logs.container_logs),
            *service(_UPGRADING, ["/exec" + path for path in _CONTAINERS], streams.exec),
            *service(_UPGRADING, ["/attach" + path for path in _CONTAINERS], streams.attach),
            *service(
                _UPGRADING, ["/portForward" + _POD, "/portForward" + _POD + "/{uid}"], streams.port_forward
            ),
            *service(["POST"], ["/run" + path for path in _CONTAINERS], run.run),
            *disabled(),
            *extra_routes,
        ]
    )
    return app


def _pod_list(pods: Callable[[], Iterable[Mapping[str, Any]]]) -> Handler:
    """Return a handler that sends a v1 PodList, encoded in batches."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b'{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[')
        remaining, separator = iter(pods()), b""
        while batch := [_encode(pod) for pod in islice(remaining, _BATCH)]:
            await response.write(separator + b",".join(batch))
            separator = b","
            await asyncio.sleep(0)
        await response.write(b"]}\n")
        return response

    return handle


HANDLER_ARGS: dict[str, Any] = {
    "access_log": None,
    "keepalive_timeout": 120.0,
    # The URL contains the command line of an exec, for which aiohttp's 8 KiB are not enough.
    "max_line_size": MAX_HEAD,
    "max_field_size": 64 * 1024,
    "lingering_time": 0.5,
}
"""Arguments of aiohttp's protocol, which gets further requests only from authorized clients (`Gate`, ``hold``)."""


def _passes() -> None:
    """Return that a check of a kubelet passes: this server responds."""


async def _slis(_request: web.Request) -> web.Response:
    """Return the results of the health checks as metrics, which monitoring reads beside ``/metrics``."""
    lines = [
        "# HELP kubernetes_healthcheck [STABLE] Result of a health check.\n# TYPE kubernetes_healthcheck gauge\n"
    ]
    lines += [f'kubernetes_healthcheck{{name="{name}",type="healthz"}} 1\n' for name in _CHECKS]
    return web.Response(body="".join(lines), headers={"Content-Type": TEXT})


def _guard(authenticator: Authenticator, authorizer: Authorizer | None) -> Middleware:
    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        route = request.path if resource is None else resource.canonical
        peer = peer_of(request)
        try:
            user = await _authenticate(request, authenticator)
            request[USER] = user
            await _authorize(user, authorizer, request_attributes(request.method, route))
            if peer is not None:
                peer.trust()
            response = redirected(request) or await handler(request)
        except web.HTTPNotFound:
            response = not_found(request.path)
        except (Refusal, web.HTTPException) as error:
            response = _refused(error)
        except ApiError as error:
            response = web.Response(status=500, text=error.message)
        except ConnectionError:
            raise
        except Exception:  # noqa: BLE001 - the outermost handler logs unexpected errors and answers 500
            _log.exception("a request to the kubelet API failed", path=route)
            response = web.Response(status=500, text="internal error")
        if not response.prepared and request.writer.output_size > 0:
            # The response had begun. Abort it, so that it does not look complete and no second response
            # follows it.
            raise ConnectionResetError("the response was interrupted")
        if not response.prepared and (
            "Upgrade" in request.headers or (peer is not None and not peer.is_trusted)
        ):
            # Close, because the next bytes would belong to the requested stream, or come from an untrusted
            # client.
            response.force_close()
        method = request.method if request.method in _METHODS else "other"
        has_route = request.match_info.http_exception is None
        path = route.lstrip("/").split("/", 1)[0] if has_route else "other"
        REQUESTS.labels(path, method, response.status).inc()
        return response

    return guard


async def _authenticate(request: web.Request, authenticator: Authenticator) -> UserInfo:
    try:
        if (user := await authenticator.authenticate(request)) is not None:
            return user
    except AuthenticationError as error:
        _log.debug("a request to the kubelet API is not authenticated", reason=str(error))
    except (ApiError, ConfigError) as error:
        _log.error("a request to the kubelet API cannot be authenticated", error=str(error))
    raise Refusal(401, "Unauthorized")


async def _authorize(user: UserInfo, authorizer: Authorizer | None, asked: list[Attributes]) -> None:
    if authorizer is None:
        return
    for attributes in asked:
        about = f"user={user.name}, verb={attributes.verb}, resource=nodes"
        try:
            if await authorizer.authorize(user, attributes):
                return
        except (ApiError, ConfigError) as error:
            _log.error("a request to the kubelet API cannot be authorized", error=str(error), user=user.name)
            text = f"Authorization error ({about}, subresource={attributes.subresource})"
            raise Refusal(500, text) from error
    subresources = " ".join(attributes.subresource for attributes in asked)
    raise Refusal(403, f"Forbidden ({about}, subresource(s)=[{subresources}])\n")


def _refused(error: Refusal | web.HTTPException) -> web.Response:
    if isinstance(error, Refusal):
        return web.Response(status=error.status, text=error.text)
    if isinstance(error, web.HTTPMethodNotAllowed):
        return not_allowed(error)
    return web.Response(status=error.status, text=error.reason)
