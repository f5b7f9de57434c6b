"""The HTTP side of the extender: one POST path per verb, errors in the shape that kube-scheduler reads."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import Counter, Histogram

from controller_runtime import log
from controller_runtime.certificates import CertificateReloader
from controller_runtime.serving import HttpsServer
from multi_scheduler import protocol
from multi_scheduler.extender import Extender, NotReadyError

MAX_BODY_BYTES = 64 * 1024**2
"""A pod and five thousand whole Node objects."""
_CALLS = Counter(
    "virtual_node_extender_calls_total", "Calls of the scheduler, by outcome.", ["verb", "outcome"]
)
_SECONDS = Histogram(
    "virtual_node_extender_call_seconds",
    "Time from a call being read to its answer.",
    ["verb"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2, 10),
)
_log = log.get_logger(component="extender")
Decide = Callable[[bytes], Awaitable[bytes]]


class ExtenderServer(HttpsServer):
    """Serves ``/filter``, ``/prioritize``, ``/preempt``, and ``/bind`` where that is wanted.

    Args:
        host: address to bind.
        port: TCP port; 0: a free one.
        tls: certificates to serve; None: plain HTTP, for a scheduler in the same pod.
        extender: what decides.
        serve_bind: serve ``/bind``; without it the path is 404. The other verbs only tell, this one writes, with our
            rights and for whoever can reach the port.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: CertificateReloader | None,
        extender: Extender,
        serve_bind: bool = False,
    ) -> None:
        super().__init__(host, port, tls=tls, max_body_bytes=MAX_BODY_BYTES)
        self._extender = extender
        for verb, decide, failed in (
            ("filter", self._filter, protocol.filter_error),
            ("prioritize", self._prioritize, None),
            ("preempt", self._preempt, None),
            ("bind", self._bind, protocol.binding_result),
        ):
            if verb != "bind" or serve_bind:
                for outcome in ("answered", "refused"):
                    # A series that appears with its first count shows no increase to anybody.
                    _CALLS.labels(verb, outcome)
                self.add_route("POST", f"/{verb}", _handler(verb, decide, failed))

    async def _filter(self, body: bytes) -> bytes:
        asked = protocol.candidates(body)
        answer = await self._extender.filter(asked)
        return protocol.filter_result(asked, answer.passing, answer.failed, answer.unresolvable)

    async def _prioritize(self, body: bytes) -> bytes:
        return protocol.priorities(await self._extender.prioritize(protocol.candidates(body)))

    async def _preempt(self, body: bytes) -> bytes:
        pod, victims = protocol.preemption(body)
        return protocol.preemption_result(await self._extender.preempt(pod, victims))

    async def _bind(self, body: bytes) -> bytes:
        return protocol.binding_result(await self._extender.bind(*protocol.binding(body)))


def _handler(
    verb: str, decide: Decide, failed: Callable[[str], bytes] | None
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            _CALLS.labels(verb, "refused").inc()
            return web.Response(status=413, text=f"the body is longer than {MAX_BODY_BYTES} bytes\n")
        started = time.perf_counter()
        try:
            answer = await decide(body)
        except (
            NotReadyError,
            protocol.BadArgumentsError,
            KeyError,
            TypeError,
            AttributeError,
            ValueError,
        ) as error:
            _CALLS.labels(verb, "refused").inc()
            _log.warning("call refused", verb=verb, error=str(error))
            message = f"{verb}: {error}"
            if failed is not None:
                # kube-scheduler reads the error from the result, not from the status.
                return web.Response(body=failed(message), content_type="application/json")
            status = 503 if isinstance(error, NotReadyError) else 400
            return web.json_response({"Error": message}, status=status)
        _SECONDS.labels(verb).observe(time.perf_counter() - started)
        _CALLS.labels(verb, "answered").inc()
        return web.Response(body=answer, content_type="application/json")

    return handle
