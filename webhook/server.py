"""The HTTPS server for admission reviews. All paths except ``/validate`` mutate pods, as in tensile-kube.

``review_pod`` and ``review_workload`` decide the responses and do no IO.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
from aiohttp import web
from prometheus_client import Counter, Histogram

from clusterset.model.pod import own_annotations
from controller_runtime import log
from controller_runtime.apimachinery.decoding import Json, decode, decoder
from controller_runtime.serving.server import RETRY_AFTER, HttpsServer
from controller_runtime.tls.reloader import CertificateReloader
from webhook import manifests
from webhook.mutation import mutate, validation
from webhook.mutation.mutate import pod_patch

_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")
_NULL = msgspec.Raw(b"null")


class BadReviewError(ValueError):
    """The body is not a supported AdmissionReview; the text says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """An admission request of the API server."""

    api_version: str
    uid: str
    operation: str
    kind: str
    namespace: str
    name: str
    object: Mapping[str, Any]
    old: msgspec.Raw
    """The oldObject of an update, not decoded. Few responses need it, and decoding takes 30 times the memory."""

    @property
    def old_object(self) -> Mapping[str, Any]:
        """Return the decoded oldObject of an update; empty for a creation.

        Raises:
            ValueError: oldObject is not valid JSON.
        """
        try:
            return _object(self.old)
        except msgspec.DecodeError as error:
            raise ValueError(f"oldObject: {error}") from None


def parse(body: bytes) -> Request:
    """Return the request of an AdmissionReview.

    Raises:
        BadReviewError: the body is not a supported AdmissionReview.
    """
    if not body:
        raise BadReviewError("the body is empty; an AdmissionReview was expected")
    try:
        review = _review_members(body)
    except msgspec.DecodeError as error:
        raise BadReviewError(f"the body is not a JSON object: {error}") from None
    try:
        return _request(review)
    except msgspec.DecodeError as error:
        raise BadReviewError(f"the body is not an AdmissionReview: {error}") from None


def _request(review: Mapping[str, msgspec.Raw]) -> Request:
    if _text(review, "kind") != "AdmissionReview":
        raise BadReviewError("the body is not an AdmissionReview")
    api_version = _text(review, "apiVersion")
    if api_version not in _VERSIONS:
        raise BadReviewError(f"apiVersion {api_version!r}: {' and '.join(_VERSIONS)} are supported")
    request = _members(review.get("request", _NULL)) or {}
    uid = _text(request, "uid")
    if not uid:
        raise BadReviewError("request.uid is missing")
    kind = _members(request.get("kind", _NULL)) or {}
    return Request(
        api_version=api_version,
        uid=uid,
        operation=_text(request, "operation"),
        kind=_text(kind, "kind"),
        namespace=_text(request, "namespace"),
        name=_text(request, "name"),
        object=_object(request.get("object", _NULL)),
        old=request.get("oldObject", _NULL),
    )


def _text(members: Mapping[str, msgspec.Raw], name: str) -> str:
    return _string(members.get(name, _NULL)) or ""


def _object(raw: msgspec.Raw) -> Mapping[str, Any]:
    found = decode(raw)
    return found if isinstance(found, dict) else {}


def allowed(
    request: Request, *, patch: Sequence[Mapping[str, Any]] = (), warnings: Sequence[str] = ()
) -> bytes:
    """Return the response that admits the object, changed by a JSON patch."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
    if warnings:
        response["warnings"] = list(warnings)
    return _review(request, response)


def denied(request: Request, message: str, *, code: int = 422) -> bytes:
    """Return the response that denies the object with a message for its author."""
    status = {"status": "Failure", "code": code, "reason": "Invalid", "message": message}
    return _review(request, {"uid": request.uid, "allowed": False, "status": status})


def _review(request: Request, response: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(
        {"apiVersion": request.api_version, "kind": "AdmissionReview", "response": response}
    )


_review_members = decoder(dict[str, msgspec.Raw])
_members: Callable[[Json], dict[str, msgspec.Raw] | None] = decoder(dict[str, msgspec.Raw] | None)  # type: ignore[arg-type]
_string: Callable[[Json], str | None] = decoder(str | None)  # type: ignore[arg-type]


MAX_BODY_BYTES = 7 * 1024**2
"""The API server accepts requests of 3 MiB, and a review of an update contains the object twice. The seventh
MiB is for JSON, which is longer than the YAML or protobuf of the request."""
_READ_SECONDS = 3.0
"""Maximum seconds for which a review waits for caches; the API server waits 5 s for the response."""

_REVIEWS = Counter(
    "virtual_node_webhook_reviews_total", "Reviews answered, by kind and outcome.", ["kind", "outcome"]
)
_SECONDS = Histogram(
    "virtual_node_webhook_review_seconds",
    "Time from a review being read to its answer.",
    ["kind"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2),
)


class Knowledge(Protocol):
    """State of the upper cluster (``webhook.state``). Call ``wait`` first, because the caches may not have been read."""

    def surroundings(self, pod: Mapping[str, Any], namespace: str) -> mutate.Surroundings:
        """Return the state that the mutation of a pod depends on."""

    async def wait(self, seconds: float) -> str:
        """Wait at most ``seconds`` for the caches; return which have not been read yet; empty if all have."""


class WebhookServer(HttpsServer):
    """Responds to admission reviews.

    Args:
        host: address to bind.
        port: TCP port; 0: a free one.
        tls: certificates to serve; None: plain HTTP, for tests and proxies.
        knowledge: state of the upper cluster.
    """

    def __init__(
        self, host: str, port: int, *, tls: CertificateReloader | None, knowledge: Knowledge
    ) -> None:
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
                # Created with 0, because Prometheus sees no increase in a series that begins with 1.
                _REVIEWS.labels(kind, outcome)
        self.add_route("POST", manifests.VALIDATE_PATH, self._validate)
        self.add_route("POST", "/{path:.*}", self._mutate)

    async def _mutate(self, request: web.Request) -> web.Response:
        if missing := await self._knowledge.wait(_READ_SECONDS):
            # Refuse, because a mutation from incomplete caches cannot be corrected later; the client retries
            # after a 503.
            return self._refuse("pod", 503, missing, RETRY_AFTER)
        return await self._answer(
            request, "pod", lambda review: review_pod(review, self._knowledge.surroundings)
        )

    async def _validate(self, request: web.Request) -> web.Response:
        return await self._answer(request, "workload", review_workload)

    async def _answer(
        self, request: web.Request, kind: str, decide: Callable[[Request], bytes]
    ) -> web.Response:
        if request.content_type != "application/json":
            return self._refuse(kind, 415, "an AdmissionReview as application/json was expected")
        try:
            # No await between the last byte of a review and its response, so only one review is decoded at a
            # time.
            answer = self._review(kind, decide, await self.bodies.read(request))
        except web.HTTPException as error:
            return self._refuse(kind, error.status, error.text or "", error.headers)
        except BadReviewError as error:
            return self._refuse(kind, 400, str(error))
        return await self.bodies.write(request, web.Response(body=answer, content_type="application/json"))

    def _review(self, kind: str, decide: Callable[[Request], bytes], body: bytes) -> bytes:
        started = time.perf_counter()
        review = parse(body)
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


def review_pod(
    request: Request, surroundings: Callable[[Mapping[str, Any], str], mutate.Surroundings]
) -> bytes:
    """Return the response for a pod: a patch with the mutation, or a denial with the reason.

    Args:
        request: the request.
        surroundings: returns the state that the mutation of a pod in a namespace depends on.
    """
    if request.kind not in {"", "Pod"} or request.operation not in {"", "CREATE"}:
        return allowed(request)
    pod = request.object
    if not isinstance(pod.get("spec"), dict) or not isinstance(pod.get("metadata"), dict):
        return denied(request, "object: a Pod with metadata and spec was expected", code=400)
    namespace = request.namespace or str(pod["metadata"].get("namespace") or "")
    try:
        if not mutate.needs_mutation(pod, namespace):
            return allowed(request)
        changed = mutate.mutate(pod, surroundings(pod, namespace))
    except validation.RefusedError as error:
        return denied(request, str(error))
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        # The API server sends well-formed pods, so only another client sends such a request.
        return denied(request, f"object: not a Pod as core/v1 has it ({error})", code=400)
    metadata = pod["metadata"]
    warnings = [
        *validation.unused(metadata.get("annotations")),
        *own_annotations.problems(metadata.get("labels"), metadata.get("annotations")),
    ]
    return allowed(request, patch=pod_patch(pod, changed), warnings=warnings)


def review_workload(request: Request) -> bytes:
    """Return the response for a workload: warnings about its pod template, or a denial if all its pods would be denied."""
    try:
        path, template = validation.pod_template(request.kind, request.object)
        if request.operation not in {"", "CREATE", "UPDATE"} or not validation.is_virtual(template):
            return allowed(request)
        found = validation.warnings(request.kind, request.namespace, template, path)
        if problem := validation.invalid(template, path):
            if not _may_stay(request, problem):
                return denied(request, problem)
            found.insert(0, problem)
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        return denied(request, f"object: not a {request.kind} ({error})", code=400)
    return allowed(request, warnings=found)


def _may_stay(request: Request, problem: str) -> bool:
    """Report whether an invalid workload is admitted: it is being deleted, or was invalid before in the same way.

    Controllers update workloads, too, for example to remove a finalizer. A denial would then prevent the
    deletion.
    """
    if (request.object.get("metadata") or {}).get("deletionTimestamp"):
        return True
    path, template = validation.pod_template(request.kind, request.old_object)
    return validation.invalid(template, path) == problem
