"""Addresses, TLS, access and shutdown of a server."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler
from aiosignal import Signal

from controller_runtime.errors import ConfigError
from controller_runtime.process import listening
from controller_runtime.serving.server import HealthServer, HttpsServer
from controller_runtime.tls import key_pairs
from controller_runtime.tls.reloader import CertificateReloader
from tests.serving import client_context
from tests.unit.controller_runtime.serving.conftest import get


def open_files() -> set[Path]:
    """The process's file descriptors."""
    return set(Path("/proc/self/fd").iterdir())


def fired(signal: Signal[web.Application]) -> asyncio.Event:
    """Return an event that is set when one of the application's signals is sent."""
    event = asyncio.Event()

    async def fire(app: web.Application) -> None:
        event.set()

    signal.append(fire)
    return event


class TestListening:
    """Sockets, addresses, TLS and the end."""

    async def test_empty_host_listens_on_both_families_with_one_free_port(
        self, session: aiohttp.ClientSession
    ) -> None:
        """On IPv6 if the machine has it."""
        async with HttpsServer("", 0) as server:
            assert (await get(session, server, "/livez"))[0] == 200
            if socket.has_dualstack_ipv6():
                async with session.get(f"http://[::1]:{server.port}/livez") as response:
                    assert response.status == 200

    async def test_port_in_use_is_named(self) -> None:
        """The OSError names the address, and nothing is left behind."""
        async with HttpsServer("127.0.0.1", 0) as server:
            second = HttpsServer("127.0.0.1", server.port)
            with pytest.raises(OSError, match=f"address 127.0.0.1:{server.port} is already in use") as caught:
                await second.start()
        assert caught.value.errno == errno.EADDRINUSE

    @pytest.mark.parametrize("turns", range(4))
    async def test_cancelled_start_leaves_nothing_open(
        self, session: aiohttp.ClientSession, turns: int
    ) -> None:
        """At any point: its socket is closed and the loop can poll another in its place."""

        async def slow(app: web.Application) -> None:
            await asyncio.sleep(0)

        opened = open_files()
        server = HttpsServer("127.0.0.1", 0)
        server.app.on_startup.append(slow)
        starting = asyncio.create_task(server.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        cancelled = starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        assert starting.cancelled() is cancelled is (turns < 3)
        if cancelled:
            assert server.port == 0
            assert open_files() == opened
        await server.stop()
        async with HttpsServer("127.0.0.1", 0) as another:
            assert (await get(session, another, "/livez"))[0] == 200

    @pytest.mark.parametrize(
        ("host", "text"),
        [
            ("192.0.2.1", r"address 192\.0\.2\.1:0 is not an address of this machine"),
            ("no such", r"address no such:0: "),
        ],
    )
    async def test_unusable_address_is_named(self, host: str, text: str) -> None:
        """A foreign or invalid address is an OSError with it."""
        with pytest.raises(OSError, match=text) as caught:
            listening.bind(host, 0)
        assert caught.value.errno == errno.EADDRNOTAVAIL

    async def test_tls_follows_the_reloader(self, session: aiohttp.ClientSession) -> None:
        """And stopping ends the reloader's task."""
        pair = key_pairs.self_signed("n", hosts=["127.0.0.1"])
        context = ssl.create_default_context(cadata=pair.certificate.decode())
        async with HttpsServer("127.0.0.1", 0, tls=CertificateReloader.from_pair(pair)) as server:
            server_url = f"https://127.0.0.1:{server.port}/livez"
            async with session.get(server_url, ssl=context) as response:
                assert response.status == 200

    async def test_with_a_client_ca_only_probes_need_no_certificate(self) -> None:
        """Other paths than health and metrics are refused."""
        serving_pair = key_pairs.self_signed("localhost", hosts=["localhost"])
        ca = key_pairs.make_ca("clients")
        client = key_pairs.sign(ca, "kube-apiserver", usage="client")
        reloader = CertificateReloader.from_pair(serving_pair, client_ca=ca.certificate)
        async with HttpsServer("127.0.0.1", 0, tls=reloader) as server:
            server.health.add("own", lambda: None)
            url = f"https://localhost:{server.port}"
            context = ssl.create_default_context(cadata=serving_pair.certificate.decode())
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as stranger:
                async with stranger.get(f"{url}/readyz") as response:
                    assert response.status == 200
                async with stranger.post(f"{url}/healthz") as response:
                    assert response.status == 401
                async with stranger.post(f"{url}/filter") as response:
                    assert response.status == 401
            known = client_context(serving_pair, client)
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=known)) as friend,
                friend.post(f"{url}/filter") as response,
            ):
                assert response.status == 404

    async def test_own_routes_and_middlewares(self, session: aiohttp.ClientSession) -> None:
        """A component's routes are served behind its middlewares."""

        @web.middleware
        async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path.startswith("/private"):
                raise web.HTTPForbidden
            return await handler(request)

        async def hello(request: web.Request) -> web.Response:
            return web.Response(text="hello")

        server = HttpsServer("127.0.0.1", 0, middlewares=[guard], metrics=False)
        server.add_route("GET", "/hello", hello)
        server.add_route("GET", "/private", hello)
        async with server:
            assert await get(session, server, "/hello") == (200, "hello")
            assert (await get(session, server, "/private"))[0] == 403
            assert (await get(session, server, "/metrics"))[0] == 404

    async def test_request_in_progress_may_finish(self, session: aiohttp.ClientSession) -> None:
        """Stopping fails readiness at once and accepts no new requests."""
        entered, leave = asyncio.Event(), asyncio.Event()

        async def slow(request: web.Request) -> web.Response:
            entered.set()
            await leave.wait()
            return web.Response(text="done")

        server = HttpsServer("127.0.0.1", 0)
        server.add_route("GET", "/slow", slow)
        began = fired(server.app.on_shutdown)
        await server.start()
        request = asyncio.create_task(get(session, server, "/slow"))
        await entered.wait()
        stopping = asyncio.create_task(server.stop())
        await began.wait()
        assert await server.health._run("shutdown") == "shutting down"
        leave.set()
        assert await request == (200, "done")
        await stopping
        with pytest.raises(aiohttp.ClientConnectionError):
            await get(session, server, "/livez")

    async def test_handler_is_cancelled_when_its_client_disconnects(
        self, session: aiohttp.ClientSession
    ) -> None:
        entered, cancelled = asyncio.Event(), asyncio.Event()

        async def endless(request: web.Request) -> web.Response:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return web.Response()

        server = HttpsServer("127.0.0.1", 0)
        server.add_route("GET", "/endless", endless)
        async with server:
            request = asyncio.create_task(get(session, server, "/endless"))
            await entered.wait()
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
            async with asyncio.timeout(60):
                await cancelled.wait()

    async def test_serves_until_cancelled(self, session: aiohttp.ClientSession) -> None:
        """Then the port is free."""
        server = HttpsServer("127.0.0.1", 0)
        started = fired(server.app.on_startup)

        async def run() -> None:
            async with server:
                await asyncio.Event().wait()

        task = asyncio.create_task(run())
        await started.wait()
        assert (await get(session, server, "/livez"))[0] == 200
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        listening.bind("127.0.0.1", server.port).close()

    async def test_health_server_listens_on_an_address(self, session: aiohttp.ClientSession) -> None:
        """And reports its checks."""
        async with HealthServer("127.0.0.1:0", checks={"clusters": lambda: "none yet"}) as server:
            assert (await get(session, server, "/readyz"))[0] == 500
            assert (await get(session, server, "/metrics"))[0] == 200


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        (":8080", ("", 8080)),
        ("[::1]:0", ("::1", 0)),
        ("localhost:65535", ("localhost", 65535)),
    ],
)
def test_addresses(address: str, parsed: tuple[str, int]) -> None:
    """host:port, :port and [v6]:port are valid."""
    assert listening.parse_address(address) == parsed


@pytest.mark.parametrize(
    "address", ["8080", "host", "host:", "host:http", "host:70000", "::1:8080", "host:-1", ""]
)
def test_bad_addresses(address: str) -> None:
    """The error names the address."""
    with pytest.raises(ConfigError, match="address"):
        listening.parse_address(address)
