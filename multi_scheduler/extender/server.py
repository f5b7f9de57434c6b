"""HTTP server of the extender: one POST path per verb, with errors in the form that kube-scheduler reads."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from functools import partial

from aiohttp import web
from prometheus_client import Counter, Histogram

from controller_runtime import log
from controller_runtime.serving.server import RETRY_AFTER, HttpsServer
from controller_runtime.tls.reloader import CertificateReloader
from multi_scheduler.extender import protocol
from multi_scheduler.extender.active import ActiveReplica, NotActiveError
from multi_scheduler.extender.extender import Extender, NotReadyError

MAX_BODY_BYTES = 4 * 1024**2
"""Room for a pod (at most 1.5 MiB in etcd) with five thousand node names, or with the UIDs of a preemption's victims. A
scheduler without ``nodeCacheCapable`` sends complete Node objects and needs a larger ``--max-body-bytes``."""
MAX_CALLS = 64
"""Calls that are processed concurrently. kube-scheduler filters one pod at a time, but binds several."""
_CALL_SECONDS = 5.0
"""Seconds that a call waits for a slot; half of the timeout in ``scheduler_configuration``."""
_CALLS = Counter(
    "virtual_node_extender_calls_total", "Calls of the scheduler, by outcome.", ["verb", "outcome"]
)
_SECONDS = Histogram(
    "virtual_node_extender_call_seconds",
    "Time from reading a call to its response.",
    ["verb"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2, 10),
)
_FAILED: Mapping[str, Callable[[str], bytes]] = {
    "filter": protocol.filter_error,
    "bind": protocol.binding_result,
}
"""Encoders of error results, for verbs where kube-scheduler reads errors from the result, not from the status code."""
_log = log.get_logger(component="extender")
Decide = Callable[[bytes], Awaitable[bytes]]


class ExtenderServer(HttpsServer):
    """Serves ``/filter``, ``/prioritize``, ``/preempt``, and optionally ``/bind``.

    Args:
        host: address to bind.
        port: TCP port; 0: any free port.
        tls: certificates to serve. With a client CA, calls without a certificate from it get 401. None: plain HTTP, for a
            scheduler in the same pod.
        extender: answers the calls.
        active: refuses calls while another process answers; None: no other process answers.
        serve_bind: serve ``/bind``; otherwise the path returns 404. Optional, because every client that can reach the
            port can then bind pods with the extender's rights.
        metrics: serve ``/metrics`` as well.
        max_body_bytes: largest call; larger ones get 413.
        client_names: accepted common names of client certificates; empty: any.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        tls: CertificateReloader | None,
        extender: Extender,
        active: ActiveReplica | None = None,
        serve_bind: bool = False,
        metrics: bool = True,
        max_body_bytes: int = MAX_BODY_BYTES,
        client_names: Collection[str] = (),
    ) -> None:
        super().__init__(
            host,
            port,
            tls=tls,
            client_names=client_names,
            metrics=metrics,
            max_body_bytes=max_body_bytes,
            name="extender",
            setting="--address, --port",
        )
        self._extender = extender
        self._active = active
        self._turns = asyncio.Semaphore(MAX_CALLS)
        self._decides: dict[str, Decide] = {
            "filter": partial(self.filter_by, extender),
            "prioritize": partial(self.prioritize_by, extender),
            "preempt": self._preempt,
            "bind": self.bind,
        }
        for verb in self._decides:
            if verb != "bind" or serve_bind:
                for outcome in ("answered", "refused"):
                    # Start at 0, because Prometheus does not show the first count of a new series as an increase.
                    _CALLS.labels(verb, outcome)
                self.add_route("POST", f"/{verb}", self.handler(verb, None))

    async def filter_by(self, extender: Extender, body: bytes) -> bytes:
        """Return an extender's response to a filter call."""
        asked = protocol.candidates(body)
        answer = await extender.filter(asked)
        self.filtered(asked)
        return protocol.filter_result(asked, answer.passing, answer.failed, answer.unresolvable)

    def filtered(self, asked: protocol.Candidates) -> None:
        """Record that the pod of a filter call may be bound."""
        if self._active is not None:
            self._active.filtered(asked.pod["metadata"].get("uid", ""))

    @staticmethod
    async def prioritize_by(extender: Extender, body: bytes) -> bytes:
        """Return an extender's response to a prioritize call."""
        return protocol.priorities(await extender.prioritize(protocol.candidates(body)))

    async def _preempt(self, body: bytes) -> bytes:
        pod, victims = protocol.preemption(body)
        return protocol.preemption_result(await self._extender.preempt(pod, victims))

    async def bind(self, body: bytes) -> bytes:
        """Bind a pod; return the response."""
        namespace, name, uid, node = protocol.binding(body)
        if self._active is not None:
            self._active.check_filtered(uid)
        return protocol.binding_result(await self._extender.bind(namespace, name, uid, node))

    def handler(self, verb: str, decide: Decide | None) -> Callable[[web.Request], Awaitable[web.Response]]:
        """Return the handler of a verb.

        Args:
            verb: filter, prioritize, preempt or bind; decides the form of error responses.
            decide: returns the response for a body; None: all agents together decide.
        """
        decide, failed = decide or self._decides[verb], _FAILED.get(verb)

        async def handle(request: web.Request) -> web.Response:
            try:
                async with self._turn():
                    body = await self.bodies.read(request)
                    answer = await self._answer(verb, decide, failed, body)
                del body
                return await self.bodies.write(request, answer)
            except web.HTTPException as error:
                _CALLS.labels(verb, "refused").inc()
                _log.warning("call refused", verb=verb, error=(error.text or "").strip())
                raise

        return handle

    @contextlib.asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Hold one of the slots for concurrent calls.

        Raises:
            HTTPServiceUnavailable: no slot became free in time.
        """
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await self._turns.acquire()
        except TimeoutError:
            raise web.HTTPServiceUnavailable(
                text="too many concurrent calls\n", headers=RETRY_AFTER
            ) from None
        try:
            yield
        finally:
            self._turns.release()

    async def _answer(
        self, verb: str, decide: Decide, failed: Callable[[str], bytes] | None, body: bytes
    ) -> web.Response:
        started = time.perf_counter()
        try:
            async with self._active.call(verb) if self._active is not None else contextlib.nullcontext():
                answer = await decide(body)
        except (NotReadyError, KeyError, TypeError, AttributeError, ValueError) as error:
            _CALLS.labels(verb, "refused").inc()
            # ``ActiveReplica`` logs the changes, and a scheduler may send hundreds of calls a second to the wrong replica.
            log_refusal = _log.debug if isinstance(error, NotActiveError) else _log.warning
            log_refusal("call refused", verb=verb, error=str(error))
            message = f"{verb}: {error}"
            if failed is not None:
                return web.Response(body=failed(message), content_type="application/json")
            status = 503 if isinstance(error, NotReadyError) else 400
            return web.json_response({"Error": message}, status=status)
        _SECONDS.labels(verb).observe(time.perf_counter() - started)
        _CALLS.labels(verb, "answered").inc()
        return web.Response(body=answer, content_type="application/json")
