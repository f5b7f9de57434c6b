"""Free ports, outside the ephemeral range of outgoing connections.

A port is chosen some time before a server binds it. A port of the ephemeral range may be taken by any
connection in between, and a control plane makes thousands. Other ports can only be taken by another server,
and they are chosen at random. A process never returns the same port twice, because the sandbox chooses a
dozen before the first is bound, and a server that a test has killed is restarted on its port.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Return that many different ports that are free on all addresses and were not returned before."""
    first_ephemeral = int(_RANGE.read_text(encoding="ascii").split()[0]) if _RANGE.exists() else 32_768
    highest = first_ephemeral - 1 if first_ephemeral > _LOWEST + 1000 else 65_535
    found: list[int] = []
    while len(found) < count:
        port = _LOWEST + secrets.randbelow(highest - _LOWEST + 1)
        if port not in _given and _is_free(port):
            _given.add(port)
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104 - only to see whether it could be
        except OSError:
            return False
    return True
