"""What can go wrong when talking to a cluster, as exceptions that carry the server's own Status.

Errors are mapped once, in ``transport``; nothing above it sees an aiohttp exception.
"""

from __future__ import annotations

import email.utils
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from controller_runtime.api.decoding import decode

_Error = TypeVar("_Error", bound=BaseException)


class ConfigError(Exception):
    """A kubeconfig, flag or configuration file that only the user can mend. The text names file and field."""


class ApiError(Exception):
    """An answer of the apiserver other than success.

    Attributes:
        code: HTTP status; 0 when there was no answer.
        reason: the Status' machine-readable reason, such as ``NotFound``.
        message: the Status' message, or the body's beginning where it was no Status.
        status: the decoded Status object; empty when the body was none.
        retry_after: seconds after which the server asks to be tried again; None when it does not ask.
    """

    def __init__(
        self,
        message: str,
        *,
        code: int = 0,
        reason: str = "",
        status: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.reason = reason
        self.status = status or {}
        self.retry_after = retry_after

    def __str__(self) -> str:
        tail = " ".join(str(part) for part in (self.code or "", self.reason) if part)
        return f"{self.message} ({tail})" if tail else self.message


class BadRequest(ApiError):  # noqa: N818 - Kubernetes' own names for reasons
    """400: the request cannot be understood."""


class Unauthorized(ApiError):  # noqa: N818
    """401: the credentials are not accepted."""


class Forbidden(ApiError):  # noqa: N818
    """403: the credentials are good, the right is missing (or a quota or admission says no)."""


class NotFound(ApiError):  # noqa: N818
    """404: there is no such object."""


class Conflict(ApiError):  # noqa: N818
    """409: a resourceVersion or UID precondition does not hold."""


class AlreadyExists(ApiError):  # noqa: N818
    """409 with reason AlreadyExists: the name is taken."""


class Expired(ApiError):  # noqa: N818
    """410: the resourceVersion or continue token is too old; list again."""


class Invalid(ApiError):  # noqa: N818
    """422: validation refuses the object."""


class TooManyRequests(ApiError):  # noqa: N818
    """429: the server sheds load, or a disruption budget forbids an eviction."""


class Unavailable(ApiError):  # noqa: N818
    """5xx: the server cannot answer now."""


class ServerTimeout(Unavailable):
    """504: the server gave up waiting."""


class ConnectionFailed(Unavailable):
    """No HTTP answer at all: refused, reset, silent, TLS. The cause is chained."""


class ResponseTooLarge(Unavailable):
    """The server's response exceeds a limit of ours, so it was not read or not decoded."""


class NotConnected(ConnectionFailed):
    """No connection, or no TLS on it: the server never saw the request."""


_BY_REASON: dict[str, type[ApiError]] = {
    "AlreadyExists": AlreadyExists,
    "Expired": Expired,
    "Gone": Expired,
}

_BY_CODE: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    422: Invalid,
    429: TooManyRequests,
    504: ServerTimeout,
}

_EXCERPT = 300
_LONGEST_MESSAGE = 4096
"""Characters kept of a server's message, which goes into logs, events and statuses."""
_LONGEST_PAUSE = 3600.0
"""Seconds; a server that asks for more would never be asked again."""


def error_from_response(code: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """The exception for an HTTP error answer.

    Args:
        code: the HTTP status.
        body: a Status object, other text (a proxy's page), or nothing.
        headers: of the answer, with any capitalisation that ``get("Retry-After")`` finds.
    """
    try:
        decoded = decode(body) if body else {}
    except msgspec.DecodeError:
        decoded = {}
    status = decoded if isinstance(decoded, dict) and decoded.get("kind") == "Status" else {}
    text = " ".join(body[:_EXCERPT].decode("utf-8", "replace").split())
    message = str(status.get("message") or text or f"the server answered {code} without a word")
    return error_from_status(status, code=code, message=message, retry_after=_from_headers(headers))


def error_from_status(
    status: dict[str, Any], *, code: int = 0, message: str = "", retry_after: float | None = None
) -> ApiError:
    """The exception for a Status object, as a watch's ERROR event carries one.

    Args:
        status: the Status, or empty.
        code: the HTTP status; the Status' own code by default.
        message: instead of the Status' own.
        retry_after: seconds; the Status' ``details.retryAfterSeconds`` by default.
    """
    if not code:
        own = status.get("code")
        code = own if isinstance(own, int) else 0
    reason = str(status.get("reason") or "")[:_EXCERPT]
    message = message or str(status.get("message") or reason or "unknown error")
    kind = _BY_REASON.get(reason) or _BY_CODE.get(code) or (Unavailable if code >= 500 else ApiError)
    return kind(
        message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}…",
        code=code,
        reason=reason,
        status=status,
        retry_after=_from_details(status) if retry_after is None else retry_after,
    )


def is_retryable(error: BaseException) -> bool:
    """Whether the same request may succeed later without the caller changing anything.

    A Conflict is, for whoever reads the object again before; quota admission answers it to creations too.
    """
    return isinstance(error, (Unavailable, TooManyRequests, Conflict, TimeoutError))


def _from_headers(headers: Mapping[str, str]) -> float | None:
    """RFC 9110's Retry-After: seconds, or a date."""
    text = headers.get("Retry-After")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (email.utils.parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(0.0, seconds), _LONGEST_PAUSE) if math.isfinite(seconds) else None


def _from_details(status: dict[str, Any]) -> float | None:
    details = status.get("details")
    seconds = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    return float(min(seconds, _LONGEST_PAUSE)) if isinstance(seconds, (int, float)) and seconds > 0 else None


def without_frames(error: _Error) -> _Error:
    """Return an error that will be kept, freed of its tracebacks and those of its causes.

    Their frames keep what was being read: ten MiB for each informer of a server that sends too much.
    """
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error
