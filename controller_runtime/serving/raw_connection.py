"""Connections below HTTP: TLS over a connected socket, as client or server; dead peers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Connection:
    """A connected transport, and the socket transport under it if it uses TLS."""

    transport: asyncio.Transport
    raw: asyncio.Transport

    def unsent(self) -> int:
        """Return the number of bytes written but not yet taken by the kernel."""
        size = self.transport.get_write_buffer_size()
        return size if self.raw is self.transport else size + self.raw.get_write_buffer_size()


async def start_tls(
    transport: asyncio.Transport, protocol: asyncio.BaseProtocol, context: ssl.SSLContext, **options: Any
) -> asyncio.Transport:
    """Return a TLS transport after the handshake, like the loop's ``start_tls``, without garbage on failure.

    The loop's error and its frames reference each other and the connection. Without removing the frames,
    every port scan or health check of a load balancer would keep a quarter of a megabyte until the next
    garbage collection (``tune_gc``).

    Raises:
        OSError: The handshake failed, or the connection was closed meanwhile.
    """
    if transport.is_closing():
        # The end was already reported, so the handshake would not notice it and wait for a minute.
        raise ConnectionResetError("the connection was closed before the TLS handshake")
    try:
        started = await asyncio.get_running_loop().start_tls(transport, protocol, context, **options)
    except OSError as error:
        raise error.with_traceback(None) from None
    if started is None:
        raise ConnectionResetError("the connection was closed during the TLS handshake")
    return started


def tune_socket(transport: asyncio.BaseTransport) -> None:
    """Send small writes at once, and make the kernel detect a dead peer within 90 s of silence."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(sock, probes=6)


def keep_alive(connection: socket.socket, *, probes: int) -> None:
    """Probe a connection every 10 s after 30 s of silence, and end it after ``probes`` without an answer.

    While sent bytes are unacknowledged, the kernel ends the connection only after all retransmissions, a
    quarter of an hour, as everywhere in Kubernetes. A shorter limit (TCP_USER_TIMEOUT) would also end streams
    of slow readers.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", probes)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
