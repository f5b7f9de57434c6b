"""The kubelet API as an aiohttp application: its routes, authentication and authorization."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from prometheus_client import Counter

from controller_runtime.errors import ApiError, ConfigError
from controller_runtime.log import get_logger
from controller_runtime.serving.accepting import count_requests, peer_of
from virtual_node.kubelet.auth.authentication import AuthenticationError, Authenticator, UserInfo
from virtual_node.kubelet.auth.authorization import Attributes, Authorizer, request_attributes
from virtual_node.kubelet.base.backend import Backend
from virtual_node.kubelet.base.errors import Refusal
from virtual_node.kubelet.server.logs import LogRoutes
from virtual_node.kubelet.streams.registry import StreamRegistry
from virtual_node.kubelet.streams.routes import USER, StreamRoutes
from virtual_node.kubelet.streams.run import RunRoutes

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

_log = get_logger(component="kubelet")
_encode = msgspec.json.Encoder().encode

_POD = "/{namespace}/{pod}"
_CONTAINER = "/{namespace}/{pod}/{container}"
_CONTAINERS = (_CONTAINER, "/{namespace}/{pod}/{uid}/{container}")
_BATCH = 50
"""Pods per batch. Encoding a batch takes about 5 ms; then other tasks (Lease renewals, streams) may run."""
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


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
    pods, running_pods = _pod_list(backend.pods), _pod_list(backend.running_pods)
    app = web.Application(middlewares=[count_requests, _guard(authenticator, authorizer)])
    app.add_routes(
        [
            web.get("/healthz", _healthz, allow_head=False),
            web.get("/healthz/{check:ping|log|syncloop}", _healthz, allow_head=False),
            web.get("/pods", pods, allow_head=False),
            web.get("/pods/", pods, allow_head=False),
            web.get("/runningpods", running_pods, allow_head=False),
            web.get("/runningpods/", running_pods, allow_head=False),
            web.get("/containerLogs" + _CONTAINER, logs.container_logs, allow_head=False),
            *_get_and_post("/exec", _CONTAINERS, streams.exec),
            *_get_and_post("/attach", _CONTAINERS, streams.attach),
            *_get_and_post("/portForward", (_POD, _POD + "/{uid}"), streams.port_forward),
            *(web.post("/run" + path, run.run) for path in _CONTAINERS),
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


def _get_and_post(root: str, paths: Iterable[str], handler: Handler) -> Iterator[web.RouteDef]:
    for path in paths:
        yield web.get(root + path, handler, allow_head=False)
        yield web.post(root + path, handler)


async def _healthz(request: web.Request) -> web.StreamResponse:
    return web.Response(text="ok")


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
            response = await handler(request)
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
    if error.status == 404:
        return web.Response(status=404, text="404 page not found\n")
    if error.status == 405:
        allow = error.headers.get("Allow", "")
        return web.Response(status=405, text="Method Not Allowed", headers={"Allow": allow})
    return web.Response(status=error.status, text=error.reason)
