"""Makes the kernel probe silent TCP connections, so that dead peers are detected."""

from __future__ import annotations

import socket


def keep_alive(connection: socket.socket, *, probes: int) -> None:
    """After 30 s of silence, probe every 10 s, and end the connection after ``probes`` without an answer.

    While sent bytes are unacknowledged, the kernel ends the connection only after all retransmissions, a
    quarter of an hour, as everywhere in Kubernetes. A shorter limit (TCP_USER_TIMEOUT) would also end streams
    of slow readers.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", probes)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
