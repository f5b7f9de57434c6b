"""Decodes AdmissionReviews strictly and encodes responses in the version of the request. Does no IO.

Source: admission.k8s.io/v1 and v1beta1; https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from controller_runtime.apimachinery.decoding import Json, decode, decoder

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
