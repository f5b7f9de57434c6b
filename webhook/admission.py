"""AdmissionReview, the envelope: read strictly, answered in the version it came in. Pure.

Source: admission.k8s.io/v1 and v1beta1; https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

_VERSIONS = ("admission.k8s.io/v1", "admission.k8s.io/v1beta1")


class BadReviewError(ValueError):
    """What came is no AdmissionReview; the text says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the API server asks."""

    api_version: str
    uid: str
    operation: str
    kind: str
    namespace: str
    name: str
    object: Mapping[str, Any]
    old_object: Mapping[str, Any]
    """What an update changes; empty at a creation."""
    dry_run: bool


def parse(body: bytes) -> Request:
    """Read a review.

    Raises:
        BadReviewError: it is none.
    """
    if not body:
        raise BadReviewError("the body is empty; an AdmissionReview was expected")
    try:
        review = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadReviewError(f"the body is not JSON: {error}") from None
    if not isinstance(review, dict) or review.get("kind") != "AdmissionReview":
        raise BadReviewError("the body is not an AdmissionReview")
    api_version = review.get("apiVersion")
    if api_version not in _VERSIONS:
        raise BadReviewError(f"apiVersion {api_version!r}: {' and '.join(_VERSIONS)} are understood")
    request = review.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str) or not request["uid"]:
        raise BadReviewError("request.uid is missing")
    subject, old = request.get("object"), request.get("oldObject")
    kind = request.get("kind") or {}
    return Request(
        api_version=api_version,
        uid=request["uid"],
        operation=str(request.get("operation") or ""),
        kind=str(kind.get("kind") or "") if isinstance(kind, dict) else "",
        namespace=str(request.get("namespace") or ""),
        name=str(request.get("name") or ""),
        object=subject if isinstance(subject, dict) else {},
        old_object=old if isinstance(old, dict) else {},
        dry_run=bool(request.get("dryRun")),
    )


def allowed(
    request: Request, *, patch: Sequence[Mapping[str, Any]] = (), warnings: Sequence[str] = ()
) -> bytes:
    """The answer that lets the object in, changed by a JSON patch."""
    response: dict[str, Any] = {"uid": request.uid, "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
    if warnings:
        response["warnings"] = list(warnings)
    return _review(request, response)


def denied(request: Request, message: str, *, code: int = 422, reason: str = "Invalid") -> bytes:
    """The answer that keeps the object out and tells its author why."""
    status = {"status": "Failure", "code": code, "reason": reason, "message": message}
    return _review(request, {"uid": request.uid, "allowed": False, "status": status})


def _review(request: Request, response: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode(
        {"apiVersion": request.api_version, "kind": "AdmissionReview", "response": response}
    )
