"""A proxy in front of an API server that disturbs its clients: partitions, expired watches, slow responses."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Literal, Self

import aiohttp
from aiohttp import web
from yarl import URL

from hack.sandbox import Cluster
from hack.sandbox.cluster import LOOPBACK
from tests.kubeconfigs import whole, write

Fault = Literal["partition", "expired", "slow"]
SLOW = 2.0
"""Seconds that a slow response takes longer."""
_HOP_BY_HOP = frozenset({"host", "connection", "transfer-encoding", "content-length", "keep-alive"})
_EXPIRED = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}


class FaultProxy:
    """Plain HTTP on loopback for an administrator of one cluster; ``begin`` and ``end`` a fault.

    - partition: all connections are cut, and requests get no response until it ends, when they are cut, too.
      The API server has processed some of them.
    - expired: watches are cut, and get 410 if they resume from a version before that, as after a restart of the
      API server. It has no end.
    - slow: each response except those of watches takes longer.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._fault: Fault | None = None
        self._ended = asyncio.Event()
        self._oldest = 0
        """The first resourceVersion from which a watch may resume."""
        self._connections: dict[asyncio.Transport, bool] = {}
        """Connections with a request, and whether it is a watch."""

    async def __aenter__(self) -> Self:
        pki = self._cluster.pki
        context = ssl.create_default_context(cafile=str(self._cluster.ca))
        context.load_cert_chain(pki.certificate("admin"), pki.key("admin"))
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, limit=0),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        application = web.Application(client_max_size=2**26)
        application.router.add_route("*", "/{path:.*}", self._handle)
        # Each cut connection would be logged as an error.
        logger = logging.getLogger(__name__)
        logger.disabled = True
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, logger=logger)
        await self._runner.setup()
        site = web.TCPSite(self._runner, LOOPBACK, 0, shutdown_timeout=0.1)
        await site.start()
        self.port: int = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.end()
        await self._runner.cleanup()
        await self._session.close()

    def kubeconfig(self) -> str:
        """Write a kubeconfig for the proxy; return its path."""
        content = whole(cluster={"server": f"http://{LOOPBACK}:{self.port}"})
        return write(self._cluster.directory / "proxied.kubeconfig", content)

    async def begin(self, fault: Fault) -> None:
        """Begin a fault; it lasts until ``end``."""
        if fault == "expired":
            async with self._session.get(f"{self._cluster.server}/api/v1/namespaces?limit=1") as answer:
                self._oldest = int((await answer.json())["metadata"]["resourceVersion"])
        self._fault = fault
        self._ended.clear()
        if fault != "slow":
            for transport, is_watch in list(self._connections.items()):
                if is_watch or fault == "partition":
                    transport.abort()

    def end(self) -> None:
        self._fault = None
        self._ended.set()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        if not isinstance(transport, asyncio.Transport):
            raise ConnectionResetError
        is_watch = request.query.get("watch", "") in {"1", "true"}
        self._connections[transport] = is_watch
        try:
            if is_watch and int(request.query.get("resourceVersion") or self._oldest) < self._oldest:
                return web.json_response(_EXPIRED, status=410)
            return await self._forward(request, transport, is_watch=is_watch)
        finally:
            self._connections.pop(transport, None)

    async def _forward(
        self, request: web.Request, transport: asyncio.Transport, *, is_watch: bool
    ) -> web.StreamResponse:
        url = URL(f"{self._cluster.server}{request.raw_path}", encoded=True)
        headers = {name: text for name, text in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        body = await request.read()
        async with self._session.request(request.method, url, data=body or None, headers=headers) as answer:
            if self._fault == "slow" and not is_watch:
                await asyncio.sleep(SLOW)
            if self._fault == "partition":
                await self._ended.wait()
                transport.abort()
                raise ConnectionResetError
            response = web.StreamResponse(status=answer.status)
            for name, text in answer.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    response.headers.add(name, text)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response
