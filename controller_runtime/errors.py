"""Errors of requests to a cluster, as exceptions that carry the server's Status.

``transport`` maps all errors, so callers see no aiohttp exception, except while they read a ``stream``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from controller_runtime.apimachinery.decoding import decode

_Error = TypeVar("_Error", bound=BaseException)
NAMESPACE_TERMINATING = "NamespaceTerminating"
"""The API server's cause for a create that it refuses because its namespace is terminating."""


class ConfigError(Exception):
    """An error that the user must correct in a kubeconfig, flag or file. The text names file and field."""


@dataclass(eq=False, repr=False)
class ApiError(Exception):
    """An error answer of the API server, or no answer.

    Attributes:
        code: HTTP status; 0: no answer.
        reason: the Status' machine-readable reason, such as ``NotFound``.
        message: the Status' message, or the start of a body that is not a Status.
        status: the decoded Status object; empty if the body is not a Status.
        retry_after: seconds after which the client may retry, as set by the server; None: not set.
    """

    message: str
    _: KW_ONLY
    code: int = 0
    reason: str = ""
    status: dict[str, Any] = field(default_factory=dict)
    retry_after: float | None = None

    def __str__(self) -> str:
        tail = " ".join(str(part) for part in (self.code or "", self.reason) if part)
        return f"{self.message} ({tail})" if tail else self.message


class BadRequest(ApiError):  # noqa: N818 - Kubernetes' own names for reasons
    """400: the request is malformed."""


class Unauthorized(ApiError):  # noqa: N818
    """401: the server does not accept the credentials."""


class Forbidden(ApiError):  # noqa: N818
    """403: the credentials are valid, but the permission is missing (or a quota or admission refuses)."""


class NotFound(ApiError):  # noqa: N818
    """404: the object does not exist."""


class Conflict(ApiError):  # noqa: N818
    """409: a resourceVersion or UID precondition does not match."""


class AlreadyExists(ApiError):  # noqa: N818
    """409 with reason AlreadyExists: an object with this name exists."""


class Expired(ApiError):  # noqa: N818
    """410: the resourceVersion or continue token is too old; list again."""


class RequestTooLarge(ApiError):  # noqa: N818
    """413: the object is larger than the server accepts. Also raised before a request with a body over 3 MiB is sent."""


class Invalid(ApiError):  # noqa: N818
    """422: validation refuses the object."""


class TooManyRequests(ApiError):  # noqa: N818
    """429: the server sheds load, or a disruption budget forbids an eviction."""


class Unavailable(ApiError):  # noqa: N818
    """5xx: the server cannot answer now. Also the base of errors without an HTTP answer."""


class ServerTimeout(Unavailable):
    """504: the server timed out."""


class ConnectionFailed(Unavailable):
    """No HTTP answer: the connection was refused, reset or silent, or TLS failed. The cause is chained."""


class ResponseTooSlow(ConnectionFailed):
    """The server's response had begun, but was not complete in time: it is large for the network, or a connection hangs."""


class ResponseTooLarge(Unavailable):
    """The server's response exceeds one of our limits, so it was not read or not decoded."""


class CacheFull(Exception):  # noqa: N818 - a state, like asyncio.QueueFull
    """The caches of an API server exceed their limit of memory. Not an ApiError, because a retry does not help."""


class NotConnected(ConnectionFailed):
    """No connection, or no TLS on it: the server never received the request."""


class ProxyError(OSError):
    """A proxy cannot be reached or refused a tunnel; the text names the proxy, without its password, and the cause."""


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
    413: RequestTooLarge,
    422: Invalid,
    429: TooManyRequests,
    504: ServerTimeout,
}

_EXCERPT = 300
_LONGEST_MESSAGE = 4096
"""Characters kept of a server's message, which is written to logs, events and statuses."""
_LONGEST_PAUSE = 60.0
"""Maximum seconds of Retry-After. API servers name seconds. The page of a proxy for maintenance can name hours, in which caches
would be old and Events would wait, although the server is back after minutes; one request a minute is no load. A date can
also be far away because of a wrong clock."""


def error_from_response(code: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
    """Return the exception for an HTTP error answer.

    Args:
        code: the HTTP status.
        body: JSON of a Status object, other text (such as a proxy's error page), or empty.
        headers: of the answer; ``get("Retry-After")`` must find the header in any capitalization.
    """
    try:
        decoded = decode(body) if body else {}
    except msgspec.DecodeError:
        decoded = {}
    status = decoded if isinstance(decoded, dict) and decoded.get("kind") == "Status" else {}
    text = " ".join(body[:_EXCERPT].decode("utf-8", "replace").split())
    message = str(status.get("message") or text or f"the server answered {code} without a message")
    return error_from_status(status, code=code, message=message, retry_after=_from_headers(headers))


def error_from_status(
    status: dict[str, Any], *, code: int = 0, message: str = "", retry_after: float | None = None
) -> ApiError:
    """Return the exception for a Status object, such as that of a watch's ERROR event.

    Args:
        status: the Status, or empty.
        code: the HTTP status; 0: the Status' own code.
        message: replaces the Status' own message; empty: the Status' own.
        retry_after: seconds; None: the Status' ``details.retryAfterSeconds``.
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
    """Report whether the same request may succeed later without a change by the caller.

    After a Conflict, the caller must read the object again first. Quota admission also returns Conflict for
    creations. A namespace that terminates may be created again.
    """
    if isinstance(error, (Unavailable, TooManyRequests, Conflict, TimeoutError)):
        return True
    return isinstance(error, ApiError) and is_namespace_terminating(error)


def is_namespace_terminating(error: ApiError) -> bool:
    """Report whether a create was refused because its namespace is terminating."""
    details = error.status.get("details")
    causes = details.get("causes") if isinstance(details, dict) else None
    return isinstance(causes, list) and any(
        isinstance(cause, dict) and cause.get("reason") == NAMESPACE_TERMINATING for cause in causes
    )


def is_namespace_gone(error: ApiError) -> bool:
    """Report whether a create was refused because its namespace is terminating or does not exist."""
    return isinstance(error, NotFound) or is_namespace_terminating(error)


def _from_headers(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of Retry-After (RFC 9110: a number or a date); None if it is missing or invalid."""
    text = headers.get("Retry-After")
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            from email.utils import parsedate_to_datetime  # noqa: PLC0415 - rare, and takes 10 ms

            seconds = (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(0.0, seconds), _LONGEST_PAUSE) if math.isfinite(seconds) else None


def _from_details(status: dict[str, Any]) -> float | None:
    details = status.get("details")
    seconds = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    return float(min(seconds, _LONGEST_PAUSE)) if isinstance(seconds, (int, float)) and seconds > 0 else None


def without_frames(error: _Error) -> _Error:
    """Remove the tracebacks of an error and of its causes, so that it can be kept; return the error.

    The frames of a traceback hold the data being read (ten MiB for each informer of a server that sends too much) and the
    error itself, a cycle that only a garbage collection frees.
    """
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error
