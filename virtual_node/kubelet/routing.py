"""How a kubelet's server matches paths: registered handlers, web services, redirects and disabled endpoints.

A kubelet (``pkg/kubelet/server/server.go``) registers paths in three ways:

- A handler has one exact path and accepts every method.
- A web service (go-restful) has routes with methods. A path may have a trailing slash. Other methods get 405. Unknown
  paths under its root get another 404 text than paths outside all services.
- Go's ServeMux redirects paths that are not clean, and roots of subtrees without their slash.

Endpoints that a virtual node does not have respond like endpoints that a kubelet's configuration disables.
"""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable, Iterator, Sequence

from aiohttp import web
from aiohttp.typedefs import Handler

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
