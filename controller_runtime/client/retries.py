"""Decides which failed requests are sent again, and when.

Requests that are sent again:

- 429, and 503 with Retry-After, for every verb, because the server has not acted on the request. The 429 of
  an eviction is not repeated, because it is the decision of a disruption budget. Any other 5xx with
  Retry-After, for reads only: client-go also repeats writes, but a server that got no answer from etcd in
  time (500 ServerTimeout) may have acted.
- 401, once, with renewed credentials.
- A connection that breaks before the answer, once, for reads only. A write may have taken effect, which the
  caller must check.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Mapping

import aiohttp

from controller_runtime.auth.connection import ConnectionConfig
from controller_runtime.errors import ApiError, TooManyRequests, Unauthorized

_PAUSES = (0.1, 5.0)
"""First and longest pause in seconds, used if the server's Retry-After is shorter or missing."""
_READS = frozenset({"GET", "HEAD"})


class Retry:
    """Decides after a failure whether to send the same request again."""

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

    def after_break(self, error: Exception) -> bool:
        """Report whether to send the request again: once, if it is a read and its connection broke."""
        again = (
            self._is_read
            and not self._broken
            and isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError)
            and not isinstance(error, aiohttp.ClientConnectorError)
        )
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
