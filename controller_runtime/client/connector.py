"""aiohttp's connections to an API server: through the kubeconfig's proxy, and reused newest first."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client import dialing
from controller_runtime.serving.raw_connection import keep_alive

PROBES = 3
"""Probes without an answer after which the kernel ends a connection: a minute in all, also during a silent watch."""


class Connector(aiohttp.TCPConnector):
    """Connects as ``dialing.connect`` if the kubeconfig has a proxy; aiohttp knows neither SOCKS nor refusals with a reason.

    It reuses the connection that has been idle for the shortest time, as Go's transport does. aiohttp reuses the one
    that has been idle for the longest time. So all connections that a burst has opened would stay in use by turns, each
    with the buffers of TLS.
    """

    def __init__(self, config: ConnectionConfig, **options: Any) -> None:
        """Create for one API server.

        Args:
            config: the server and its proxy.
            options: further options of aiohttp's connector.
        """
        super().__init__(ssl=config.ssl if config.ssl is not None else True, **options)
        self._config = config

    async def _create_connection(
        self,
        req: Any,
        traces: Any,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's signature
    ) -> ResponseHandler:
        if req.proxy or not self._config.proxy_url:
            return await super()._create_connection(req, traces, timeout)
        try:
            async with asyncio.timeout(timeout.sock_connect):
                made = await dialing.connect(self._config)
        except TimeoutError:
            raise  # aiohttp names it
        except ssl.CertificateError as error:
            raise aiohttp.ClientConnectorCertificateError(req.connection_key, error) from None
        except ssl.SSLError as error:
            raise aiohttp.ClientConnectorSSLError(req.connection_key, error) from None
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from None
        keep_alive(made.raw.get_extra_info("socket"), probes=PROBES)
        protocol = self._factory()
        made.transport.set_protocol(protocol)
        protocol.connection_made(made.transport)
        made.transport.resume_reading()
        return protocol

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        super()._release(key, protocol, should_close=should_close)
        idle = self._conns.get(key)
        if idle and idle[-1][0] is protocol:
            idle.rotate(1)
