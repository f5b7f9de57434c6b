"""Requests to an API server, without an HTTP library: their options and URL, and which are sent again after a failure."""

from __future__ import annotations

import asyncio
import os
import random
import re
import ssl
from collections.abc import Mapping, Sequence
from typing import TypedDict
from urllib.parse import quote, urlencode

from controller_runtime.apimachinery.translation_budget import LARGEST_BODY
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.errors import (
    ApiError,
    ProxyError,
    RequestTooLarge,
    ResponseTooSlow,
    TooManyRequests,
    Unauthorized,
)

Params = Mapping[str, str] | Sequence[tuple[str, str]]
CONNECT_TIMEOUT = 10.0
"""Seconds in which a connection must be made."""
_PAUSES = (0.1, 5.0)
"""First and longest pause in seconds, used if the server's Retry-After is shorter or missing."""
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_READS = frozenset({"GET", "HEAD"})


class RequestOptions(TypedDict, total=False):
    """Options of ``Transport.receive``."""

    params: Params | None
    """More query parameters."""
    body: bytes | None
    headers: Mapping[str, str] | None
    timeout: float | None
    """Seconds including retries but not the wait for the rate limit; None: the client's."""
    verb: str
    """Name in metrics; empty: the method."""
    flow: str
    """The flow (resource) in which the request waits for the rate limit."""


def with_query(path: str, params: Params | None) -> str:
    """Return a path, which may have a query, with more query parameters."""
    if not params:
        return path
    return path + ("&" if "?" in path else "?") + urlencode(params, quote_via=quote)


def check_size(method: str, path: str, body: bytes | None) -> None:
    """Raise RequestTooLarge for a body that API servers do not read."""
    if body is not None and len(body) > LARGEST_BODY:
        raise RequestTooLarge(
            f"{method} {path}: the request has {len(body):,} bytes, and API servers read at most {LARGEST_BODY:,}; "
            "make the object smaller",
            code=413,
            reason="RequestEntityTooLarge",
        )


def connect_failure(error: OSError) -> str:
    """Return why a connection was not made, in the words of the kernel or resolver."""
    if isinstance(error, ProxyError):
        return str(error)
    # asyncio replaces the kernel's text by its own, and merges the texts if a name has several addresses.
    number = _ERRNO.search(str(error))
    why = os.strerror(int(number[1])) if number else error.strerror or str(error)
    return f"cannot connect: {why[:1].lower()}{why[1:]}"


def headers_of(user_agent: str) -> dict[str, str]:
    """Return the headers of every request; ``user_agent`` is our name in the server's audit log."""
    return {
        "User-Agent": user_agent,
        "Accept": "application/json",
        # Compression costs both sides more CPU time than the bytes are worth.
        "Accept-Encoding": "identity",
    }


def field_manager(user_agent: str) -> str:
    """Return our name in managedFields, as part of a URL: the part of the user agent before a slash."""
    return quote(user_agent.partition("/")[0], safe="")


def too_slow(config: ConnectionConfig, what: str) -> ResponseTooSlow:
    """Return the error for a response that had begun, but was not complete in time."""
    return ResponseTooSlow(f"{config.server}: the response to {what} was not complete in time")


class Retry:
    """Decides after a failure whether to send the same request again, and when.

    Requests that are sent again:

    - 429, and 503 with Retry-After, for every verb, because the server has not acted on the request. The 429 of
      an eviction is not repeated, because it is the decision of a disruption budget. Any other 5xx with
      Retry-After, for reads only: client-go also repeats writes, but a server that got no answer from etcd in
      time (500 ServerTimeout) may have acted.
    - 401, once, with renewed credentials.
    - A connection that breaks before the answer, once, for reads only. A write may have taken effect, which the
      caller must check.
    """

    def __init__(self, config: ConnectionConfig, method: str, path: str) -> None:
        self._config = config
        self._is_read = method in _READS
        self._is_eviction = path.partition("?")[0].endswith("/eviction")
        self._sent: Mapping[str, str] = {}
        self._context: ssl.SSLContext | None = None
        self._refused = self._renew = self._broken = False
        self._attempts = 0

    async def credentials(self) -> Mapping[str, str]:
        """Return the headers to authenticate with; renew them after a 401 unless another request did."""
        headers = await self._config.headers()
        if self._renew and headers == self._sent and self._config.ssl is self._context:
            headers = await self._config.headers(refresh=True)
        self._renew = False
        self._sent, self._context = headers, self._config.ssl
        return headers

    def after_break(self, *, is_disconnect: bool) -> bool:
        """Report whether to send the request again: once, if it is a read and its connection broke after it was made."""
        again = self._is_read and not self._broken and is_disconnect
        self._broken = True
        return again

    async def after(self, failure: ApiError, *, left: float) -> None:
        """Wait until the next attempt, at least for Retry-After; return at once after the first 401.

        Raises:
            ApiError: the given failure, if another attempt would not help or would start after ``left`` seconds.
        """
        if isinstance(failure, Unauthorized) and not self._refused:
            self._refused = self._renew = True
            return
        shed = isinstance(failure, TooManyRequests) or (
            failure.retry_after is not None
            and (failure.code == 503 or (self._is_read and failure.code >= 500))
        )
        first, longest = _PAUSES
        pause = max(failure.retry_after or 0.0, min(first * 2**self._attempts, longest))
        if not shed or self._is_eviction or pause > left:
            try:
                raise failure
            finally:
                del failure  # its traceback refers to this frame: a cycle until the next garbage collection
        self._attempts += 1
        await asyncio.sleep(pause * (1 + random.random() / 10))  # noqa: S311 - jitter
