"""Free TCP ports."""

from __future__ import annotations

import socket


def free_ports(count: int, *, address: str = "127.0.0.1") -> list[int]:
    """Ports that are free now; all are held until all are found, so that none comes twice."""
    held = []
    try:
        for _ in range(count):
            probe = socket.socket()
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, 0))
            held.append(probe)
        return [int(probe.getsockname()[1]) for probe in held]
    finally:
        for probe in held:
            probe.close()
