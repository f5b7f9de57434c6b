"""TLS over a connection that stands, either side."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any


async def start_tls(
    transport: asyncio.Transport, protocol: asyncio.BaseProtocol, context: ssl.SSLContext, **options: Any
) -> asyncio.Transport:
    """Shake hands, as the event loop's ``start_tls`` does, and leave nothing behind when that fails.

    The loop's error and the frames it comes from know each other, and the frames know the connection: a quarter of
    a megabyte for every port scan and every health check of a load balancer, for as long as nobody looks for cycles
    (``tune_gc``). So the frames are left out.

    Raises:
        OSError: No handshake, or the connection was closed meanwhile.
    """
    if transport.is_closing():
        # Its end has been told already; the handshake would wait for a minute.
        raise ConnectionResetError("the connection was closed before the TLS handshake")
    try:
        started = await asyncio.get_running_loop().start_tls(transport, protocol, context, **options)
    except OSError as error:
        raise error.with_traceback(None) from None
    if started is None:
        raise ConnectionResetError("the connection was closed during the TLS handshake")
    return started
