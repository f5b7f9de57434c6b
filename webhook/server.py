"""The HTTPS server that the API server asks. Every path mutates, as tensile-kube's does, but ``/validate``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

from aiohttp import web
from prometheus_client import Counter, Histogram

from controller_runtime import log
from controller_runtime.serving.bodies import RETRY_AFTER
from controller_runtime.serving.server import HttpsServer
from controller_runtime.tls.reloader import CertificateReloader
from webhook import admission, manifests
from webhook.review import Knowledge, review_pod, review_workload

MAX_BODY_BYTES = 7 * 1024**2
"""The API server takes requests of 3 MiB, and a review of an update has the object twice; the rest is for JSON that
is longer than the YAML or protobuf of the request."""
_READ_SECONDS = 3.0
"""How long a review waits for caches; the API server waits for five."""

_REVIEWS = Counter(
    "virtual_node_webhook_reviews_total", "Reviews answered, by kind and outcome.", ["kind", "outcome"]
)
_SECONDS = Histogram(
    "virtual_node_webhook_review_seconds",
    "Time from a review being read to its answer.",
    ["kind"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2),
)


class Caches(Knowledge, Protocol):
    """Knowledge that has to be read before it is any good."""

    async def wait(self, seconds: float) -> str:
        """Wait for everything to be read; says what has not been in that time, empty when everything has."""


class WebhookServer(HttpsServer):
    """Answers admission reviews.

    Args:
        host: address to bind.
        port: TCP port; 0: a free one.
        tls: certificates to serve; None: plain HTTP, for tests and proxies.
        knowledge: what is known of the upper cluster.
    """

    def __init__(self, host: str, port: int, *, tls: CertificateReloader | None, knowledge: Caches) -> None:
        super().__init__(
            host,
            port,
            tls=tls,
            metrics=False,
            max_body_bytes=MAX_BODY_BYTES,
            shutdown_timeout=8.0,
            name="webhook",
            setting="--address, --port",
        )
        self._log = log.get_logger(component="webhook")
        self._knowledge = knowledge
        for kind in ("pod", "workload"):
            for outcome in ("allowed", "denied", "refused"):
                # A series that appears with its first count shows no increase to anybody.
                _REVIEWS.labels(kind, outcome)
        self.add_route("POST", manifests.VALIDATE_PATH, self._validate)
        self.add_route("POST", "/{path:.*}", self._mutate)

    async def _mutate(self, request: web.Request) -> web.Response:
        if missing := await self._knowledge.wait(_READ_SECONDS):
            # Half of what matters would be a wrong answer that nobody can take back; this one is asked again.
            return self._refuse("pod", 503, missing, RETRY_AFTER)
        return await self._answer(request, "pod", lambda review: review_pod(review, self._knowledge))

    async def _validate(self, request: web.Request) -> web.Response:
        return await self._answer(request, "workload", review_workload)

    async def _answer(
        self, request: web.Request, kind: str, decide: Callable[[admission.Request], bytes]
    ) -> web.Response:
        if request.content_type != "application/json":
            return self._refuse(kind, 415, "an AdmissionReview as application/json was expected")
        try:
            # One review at a time: nothing is awaited from its last byte to its answer. Only the answer is kept after that.
            answer = self._review(kind, decide, await self.bodies.read(request))
        except web.HTTPException as error:
            return self._refuse(kind, error.status, error.text or "", error.headers)
        except admission.BadReviewError as error:
            return self._refuse(kind, 400, str(error))
        return await self.bodies.write(request, web.Response(body=answer, content_type="application/json"))

    def _review(self, kind: str, decide: Callable[[admission.Request], bytes], body: bytes) -> bytes:
        started = time.perf_counter()
        review = admission.parse(body)
        answer = decide(review)
        _SECONDS.labels(kind).observe(time.perf_counter() - started)
        outcome = "denied" if b'"allowed":false' in answer else "allowed"
        _REVIEWS.labels(kind, outcome).inc()
        if outcome == "denied":
            self._log.info("denied", kind=kind, namespace=review.namespace, name=review.name)
        return answer

    def _refuse(
        self, kind: str, status: int, message: str, headers: Mapping[str, str] = MappingProxyType({})
    ) -> web.Response:
        _REVIEWS.labels(kind, "refused").inc()
        retry = {name: value for name, value in headers.items() if name == "Retry-After"}
        return web.Response(status=status, text=message.rstrip("\n") + "\n", headers=retry)
