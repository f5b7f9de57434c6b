"""Kubernetes health endpoints: named checks at ``/healthz``, ``/livez`` and ``/readyz``.

The output is exactly the API server's, including ``?verbose``, ``?exclude=name`` and ``/readyz/name``.
The reason of a failure is only logged, not answered, because probes are not authenticated.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Handler

from controller_runtime import log

_log = log.get_logger(component="health")

Check = Callable[[], "str | Awaitable[str | None] | None"]
"""A health check: returns None if healthy, otherwise the reason. An exception counts as a failure. May be a
coroutine function."""

_CHECK_TIMEOUT = 5.0
_HEADERS = {"Cache-Control": "no-cache, no-store", "X-Content-Type-Options": "nosniff"}


class HealthChecks:
    """The named checks of one server and the three endpoints that report them."""

    def __init__(self) -> None:
        self._checks: dict[str, tuple[Check, bool]] = {}
        self._failing: dict[str, str] = {}
        self.add("ping", lambda: None, live=True)

    def add(self, name: str, check: Check, *, live: bool = False) -> None:
        """Add or replace a check of ``/readyz``; with ``live`` also of ``/livez`` and ``/healthz``.

        Use ``live`` only for failures that a restart repairs, not for an unreachable cluster.
        """
        known = self._checks.get(name)
        self._checks[name] = (check, live or (known is not None and known[1]))

    def add_routes(self, app: web.Application) -> None:
        """Add routes for ``/healthz``, ``/livez`` and ``/readyz``, and for each check below them."""
        for endpoint in ("healthz", "livez", "readyz"):
            app.router.add_get(f"/{endpoint}", self._all(endpoint))
            app.router.add_get(f"/{endpoint}/{{name}}", self._one(endpoint))

    def _names(self, endpoint: str) -> list[str]:
        return [name for name, (_, live) in self._checks.items() if live or endpoint == "readyz"]

    def _all(self, endpoint: str) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            excluded = {name for value in request.query.getall("exclude", []) for name in value.split(",")}
            names = self._names(endpoint)
            reasons = await asyncio.gather(*(self._run(name) for name in names if name not in excluded))
            results = dict(zip((name for name in names if name not in excluded), reasons, strict=True))
            lines = [_line(name, results.get(name), excluded=name in excluded) for name in names]
            unknown = sorted(excluded - set(names))
            if unknown:
                quoted = ",".join(f'"{name}"' for name in unknown)
                lines.append(f"warn: some health checks cannot be excluded: no matches for {quoted}")
            failed = any(results.values())
            lines.append(f"{endpoint} check {'failed' if failed else 'passed'}")
            verbose = failed or "verbose" in request.query
            return _text("\n".join(lines) + "\n" if verbose else "ok", status=500 if failed else 200)

        return handle

    def _one(self, endpoint: str) -> Handler:
        async def handle(request: web.Request) -> web.Response:
            name = request.match_info["name"]
            if name not in self._names(endpoint):
                return _text("404 page not found\n", status=404)
            failed = await self._run(name) is not None
            if failed:
                return _text("internal server error: reason withheld\n", status=500)
            return _text("ok")

        return handle

    async def _run(self, name: str) -> str | None:
        """Return why a check fails, None if it passes; log only when a failure begins, changes or ends."""
        reason: str | None
        try:
            answer = self._checks[name][0]()
            if inspect.isawaitable(answer):
                async with asyncio.timeout(_CHECK_TIMEOUT):
                    answer = await answer
            reason = answer or None
        except TimeoutError:
            reason = f"no answer within {_CHECK_TIMEOUT:g} s"
        except Exception as error:  # noqa: BLE001 - a broken check is a failed check
            reason = repr(error)
        before = self._failing.pop(name, None)
        if reason is not None:
            self._failing[name] = reason
            if reason != before:
                _log.warning("health check fails", check=name, reason=reason)
        elif before is not None:
            _log.info("health check passes again", check=name)
        return reason


def _line(name: str, reason: str | None, *, excluded: bool) -> str:
    if excluded:
        return f"[+]{name} excluded: ok"
    return f"[-]{name} failed: reason withheld" if reason else f"[+]{name} ok"


def _text(body: str, *, status: int = 200) -> web.Response:
    return web.Response(text=body, status=status, headers=_HEADERS)
