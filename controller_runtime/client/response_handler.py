"""The HTTP protocol of client connections, with a limit on the CPU time that a server can make us spend.

One-byte chunks, or endless informational responses, keep the event loop busy for 1.5 s per MiB. A response of
an API server takes 1 ms per MiB.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.helpers import set_exception
from aiohttp.streams import EMPTY_PAYLOAD

_READ = 16 * 1024
"""Bytes received at once from a connection without TLS. asyncio's 256 KiB of one-byte chunks would take 0.4
s."""
_PER_READ = 0.0002
_PER_BYTE = 1e-7
"""CPU seconds allowed for each read and each byte: a hundred times what a normal response takes."""
_PER_LOOK = 5e-6
"""CPU seconds that aiohttp spends outside of this handler for each received part of a body."""
_DEBT = 0.1
"""CPU seconds above the allowance after which the connections to a server are closed."""
_DECAY_PER_SECOND = 0.05
"""CPU seconds of the debt that are forgiven per second."""
_HEAD = 64 * 1024
"""Maximum bytes before a body: heads of informational responses and of the response. API servers send less
than 4 KiB."""


class CpuMeter:
    """Measures the CPU time that the bytes of one server have cost above the allowance."""

    def __init__(self) -> None:
        self._debt = 0.0
        self._at = 0.0

    def check(self, now: float) -> None:
        """Raise if the server has exceeded its CPU time. ``now``: seconds of a monotonic clock.

        Raises:
            aiohttp.ClientPayloadError: the limit is exceeded.
        """
        self._debt = max(0.0, self._debt - (now - self._at) * _DECAY_PER_SECOND)
        self._at = now
        if self._debt > _DEBT:
            raise aiohttp.ClientPayloadError("receiving the server's responses takes too much CPU time")

    def add(self, seconds: float, size: int) -> None:
        """Count the CPU seconds of one read of ``size`` bytes; ``size`` is 0 if only earlier bytes were parsed."""
        allowed = _PER_READ + size * _PER_BYTE if size else 0.0
        self._debt = max(0.0, self._debt + seconds - allowed)


class MeteredResponseHandler(ResponseHandler):
    """Closes connections to a server whose bytes cost far more CPU time than a normal response."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        meter: CpuMeter,
        connected: Callable[[asyncio.BaseTransport], None],
    ) -> None:
        super().__init__(loop)
        self._connected = connected
        self._meter = meter
        self._outside = 0
        """Bytes received for the current request outside of a body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Report the connection and limit the size of its reads."""
        super().connection_made(transport)
        self._connected(transport)
        if hasattr(transport, "max_size"):  # asyncio's own transports; for TLS see ``lifecycle.tune_tls``
            transport.max_size = _READ

    def set_response_params(self, **params: Any) -> None:
        """Start a new response and reset its byte count."""
        self._outside = 0
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes; close the connection if the server has exceeded its CPU time or ``_HEAD``."""
        try:
            self._meter.check(time.monotonic())
        except aiohttp.ClientPayloadError as error:
            self._give_up(error)
            return
        started = time.thread_time()
        super().data_received(data)
        self._meter.add(time.thread_time() - started + _PER_LOOK, len(data))
        if self._payload is None or self._payload is EMPTY_PAYLOAD:
            self._outside += len(data)
            if self._outside > _HEAD:
                self._give_up(
                    aiohttp.ClientPayloadError(f"a response has more than {_HEAD:,} bytes of headers")
                )

    def _give_up(self, error: Exception) -> None:
        if self.transport is None:
            return
        self.set_exception(error)
        if self._payload is not None:
            set_exception(self._payload, error)
        self.transport.abort()
