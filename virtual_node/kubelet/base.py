"""The interface that the kubelet API needs from its virtual node, and the errors with which it answers.

How a kubelet's server matches paths: registered handlers, web services, redirects and disabled endpoints.

A kubelet (``pkg/kubelet/server/server.go``) registers paths in three ways:

- A handler has one exact path and accepts every method.
- A web service (go-restful) has routes with methods. A path may have a trailing slash. Other methods get 405. Unknown
  paths under its root get another 404 text than paths outside all services.
- Go's ServeMux redirects paths that are not clean, and roots of subtrees without their slash.

Endpoints that a virtual node does not have respond like endpoints that a kubelet's configuration disables.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler

from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from virtual_node.examine.connections import proxy_step

TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of metrics."""


@dataclass(frozen=True, slots=True)
class PodTarget:
    """The lower pod of an upper pod.

    Attributes:
        cluster: Name of the lower cluster, for messages and logs.
        namespace: Namespace of the lower pod.
        name: Name of the lower pod.
        client: Client of the lower cluster.
        pod: The upper pod, as a plain dict; read only.
        containers: Names of the containers that requests may name.
    """

    cluster: str
    namespace: str
    name: str
    client: Client
    pod: Mapping[str, Any]
    containers: frozenset[str]


class Backend(Protocol):
    """The virtual node as its kubelet API uses it. Results come from caches, so no method blocks."""

    def resolve(self, namespace: str, name: str, *, uid: str | None = None) -> PodTarget | None:
        """Return the lower pod of an upper pod that is bound to this node.

        Args:
            namespace: Namespace of the upper pod.
            name: Name of the upper pod.
            uid: UID that the pod must have; None: any.

        Returns:
            The target, or None if this node has no such pod.

        Raises:
            Refusal: The upper pod has no lower pod, or the lower pod of that name is unmanaged.
        """

    def pods(self) -> Iterable[Mapping[str, Any]]:
        """Return the upper pods bound to this node, as plain dicts (a generator may decode them lazily)."""

    def running_pods(self) -> Iterable[Mapping[str, Any]]:
        """Return the upper pods of this node whose lower pods run, as plain dicts."""


class Refusal(Exception):  # noqa: N818 - a response to a client, not an error of this program
    """A request that gets an error response.

    Attributes:
        status: HTTP status code.
        text: The body as plain text. The upper apiserver passes it to the user.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def quoted(text: str) -> str:
    """Quote a name from a request as Go's ``%q`` does, so that it cannot contain a line break."""
    return json.dumps(text)


def unreachable(cluster: str, error: Exception) -> Refusal:
    """Return the error response for a lower cluster that cannot be reached, with the cause and, for a proxy, the next step."""
    why = error.message if isinstance(error, ApiError) else str(error) or type(error).__name__
    said = "; ".join(filter(None, (why, proxy_step(why))))
    return Refusal(500, f"cluster {quoted(cluster)} cannot be reached: {said}")


def unauthorized(cluster: str, why: str = "") -> Refusal:
    """Return the error response for a lower API server that refuses the virtual node's credentials, with the next step."""
    cause = f": {why}" if why else ""
    return Refusal(
        500,
        f"cluster {quoted(cluster)} does not accept the virtual node's credentials{cause}. An administrator must renew them; "
        "virtual-node check names the cause",
    )


def refusal_from_lower(error: ApiError, *, cluster: str) -> Refusal:
    """Return the error response for an error of the lower API server, so that its text reaches the user.

    The upper API server passes on a kubelet's text only with 400, 403 and 500. For other codes it uses a
    generic text (apimachinery, ``NewGenericServerResponse``). Other client errors except 429 therefore become
    400, which a kubelet also sends after it has found the pod. A lower 401 concerns the virtual node's
    credentials, not the user's. It becomes 500, because kubectl would otherwise ask the user to log in.
    """
    if error.code == 401:
        return unauthorized(cluster, error.message)
    if error.code in {400, 403, 429}:
        return Refusal(error.code, error.message)
    if 400 <= error.code < 500:
        return Refusal(400, error.message)
    if error.code == 0:
        return unreachable(cluster, error)
    return Refusal(500, error.message)


_SUBTREES = ("/stats/", "/runningpods/", "/logs/", "/debug/pprof/")
"""Paths that end in a slash, as the kubelet registers them: a request without the slash is redirected."""
_SERVICES = ("pods", "stats", "runningpods", "containerLogs", "exec", "attach", "portForward", "run")
"""First parts of paths of web services."""
_DISABLED = {
    "/logs/": "logs endpoint is disabled.",
    "/debug/pprof/": "profiling endpoint is disabled.",
}
_DISABLED_FLAGS = ("/debug/flags/v", "flags endpoint is disabled.")


def handled(path: str, handler: Handler) -> web.RouteDef:
    """Return the route of a handler that accepts every method at exactly one path."""
    return web.route("*", path, handler)


def service(methods: Sequence[str], paths: Sequence[str], handler: Handler) -> Iterator[web.RouteDef]:
    """Yield the routes of a web service, with and without a trailing slash."""
    for path in paths:
        for method in methods:
            yield _route(method, path, handler)
            yield _route(method, f"{path}/", handler)


def document(path: str, content: Callable[[], Awaitable[bytes]]) -> Iterator[web.RouteDef]:
    """Return the routes of a JSON document of our own, which a kubelet does not have."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=await content(), content_type="application/json")

    return service(["GET"], [path], answer)


def disabled() -> Iterator[web.RouteDef]:
    """Yield the routes of endpoints that respond that the kubelet's configuration disables them."""
    for path, text in _DISABLED.items():
        yield handled(path + "{rest:.*}", _refuse(text))
    path, text = _DISABLED_FLAGS
    yield handled(path, _refuse(text))


def redirected(request: web.Request) -> web.Response | None:
    """Return the redirect to the path that Go's ServeMux serves in place of this one; None: it serves this path."""
    wanted = _clean(request.path)
    if f"{wanted}/" in _SUBTREES:
        wanted += "/"
    if wanted == request.path:
        return None
    location = request.rel_url.with_path(wanted, keep_query=True)
    return web.Response(status=307, headers={"Location": str(location)})


def not_found(path: str) -> web.Response:
    """Return the response for a path that no route serves."""
    is_in_service = path.split("/", 2)[1] in _SERVICES
    return web.Response(status=404, text="404: Page Not Found" if is_in_service else "404 page not found\n")


def not_allowed(error: web.HTTPMethodNotAllowed) -> web.Response:
    """Return the response for a method that a path does not have."""
    allow = ", ".join(sorted(error.allowed_methods))
    return web.Response(status=405, text="405: Method Not Allowed", headers={"Allow": allow})


def _route(method: str, path: str, handler: Handler) -> web.RouteDef:
    """Return the route of one method at exactly one path; GET does not include HEAD."""
    return web.RouteDef(method, path, handler, {"allow_head": False} if method == "GET" else {})


def _clean(path: str) -> str:
    """Return a path without empty and relative parts; a trailing slash stays."""
    cleaned = posixpath.normpath(path)
    cleaned = "/" + cleaned.lstrip("/")
    return f"{cleaned}/" if path.endswith("/") and cleaned != "/" else cleaned


def _refuse(text: str) -> Handler:
    async def refuse(_request: web.Request) -> web.Response:
        return web.Response(status=405, text=f"{text}\n")

    return refuse
