from __future__ import annotations

import asyncio
import errno
import platform
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.typedefs import Handler
from aiosignal import Signal
from structlog.testing import capture_logs

from controller_runtime import certificates, key_pairs, release, serving
from controller_runtime.certificates import CertificateReloader
from controller_runtime.errors import ConfigError
from controller_runtime.serving import HealthServer, HttpsServer


@pytest_asyncio.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client."""
    async with aiohttp.ClientSession() as session:
        yield session


async def get(session: aiohttp.ClientSession, server: HttpsServer, path: str) -> tuple[int, str]:
    """Status and body of a path."""
    async with session.get(f"http://127.0.0.1:{server.port}{path}") as response:
        return response.status, await response.text()


def open_files() -> set[Path]:
    """The process's file descriptors."""
    return set(Path("/proc/self/fd").iterdir())


def fired(signal: Signal[web.Application]) -> asyncio.Event:
    """An event set when one of the application's signals is sent."""
    event = asyncio.Event()

    async def fire(app: web.Application) -> None:
        event.set()

    signal.append(fire)
    return event


class TestHealth:
    """Kubernetes' health endpoints."""

    async def test_healthy_server_says_ok(self, session: aiohttp.ClientSession) -> None:
        """Without trouble each endpoint answers ``ok`` and nothing more."""
        async with HttpsServer("127.0.0.1", 0) as server:
            for endpoint in ("/healthz", "/livez", "/readyz", "/readyz/ping"):
                assert await get(session, server, endpoint) == (200, "ok")

    async def test_verbose_lists_every_check_as_apiserver_does(self, session: aiohttp.ClientSession) -> None:
        """``?verbose`` prints a line for each check and the verdict."""
        async with HttpsServer("127.0.0.1", 0) as server:
            server.add_check("informers", lambda: None)
            assert await get(session, server, "/readyz?verbose") == (
                200,
                "[+]ping ok\n[+]shutdown ok\n[+]informers ok\nreadyz check passed\n",
            )

    async def test_failing_check_withholds_its_reason_from_strangers(
        self, session: aiohttp.ClientSession
    ) -> None:
        """A failure is 500 with the list; the reason goes to the log, once, and so does the recovery."""
        reasons: list[str | None] = ["cluster west is silent", "cluster west is silent", None]
        async with HttpsServer("127.0.0.1", 0) as server:
            server.add_check("clusters", lambda: reasons.pop(0))
            with capture_logs() as logs:
                first = await get(session, server, "/readyz")
                await get(session, server, "/readyz")
                last = await get(session, server, "/readyz")
        assert first == (
            500,
            "[+]ping ok\n[+]shutdown ok\n[-]clusters failed: reason withheld\nreadyz check failed\n",
        )
        assert last == (200, "ok")
        assert [(line["event"], line["check"]) for line in logs] == [
            ("health check fails", "clusters"),
            ("health check passes again", "clusters"),
        ]
        assert logs[0]["reason"] == "cluster west is silent"

    async def test_readiness_alone_fails_unless_a_check_is_live(self, session: aiohttp.ClientSession) -> None:
        """A readiness check leaves liveness alone; a live check is part of all three endpoints."""
        async with HttpsServer("127.0.0.1", 0) as server:
            server.add_check("remote", lambda: "away")
            assert (await get(session, server, "/livez"))[0] == 200
            assert (await get(session, server, "/readyz"))[0] == 500
            server.add_check("loop", lambda: "stuck", live=True)
            assert (await get(session, server, "/livez"))[0] == 500
            assert (await get(session, server, "/healthz/loop"))[0] == 500
            assert (await get(session, server, "/livez/remote"))[0] == 404

    async def test_excluded_checks_do_not_count(self, session: aiohttp.ClientSession) -> None:
        """``?exclude=`` leaves a check out, several times or by commas, and warns of names it does not know."""
        async with HttpsServer("127.0.0.1", 0) as server:
            server.add_check("a", lambda: "bad")
            server.add_check("b", lambda: "bad")
            assert await get(session, server, "/readyz?exclude=a&exclude=b,c&verbose") == (
                200,
                (
                    "[+]ping ok\n[+]shutdown ok\n[+]a excluded: ok\n[+]b excluded: ok\n"
                    'warn: some health checks cannot be excluded: no matches for "c"\nreadyz check passed\n'
                ),
            )

    async def test_single_check(self, session: aiohttp.ClientSession) -> None:
        """``/readyz/name`` runs one check; an unknown one is 404."""
        async with HttpsServer("127.0.0.1", 0) as server:
            server.add_check("a", lambda: "bad")
            assert await get(session, server, "/readyz/a") == (
                500,
                "internal server error: reason withheld\n",
            )
            assert (await get(session, server, "/readyz/zzz"))[0] == 404

    async def test_raising_check_fails(self, session: aiohttp.ClientSession) -> None:
        """A check that raises has failed; the server goes on."""

        async def broken() -> str | None:
            raise RuntimeError("boom")

        async with HttpsServer("127.0.0.1", 0) as server:
            server.add_check("broken", broken)
            assert (await get(session, server, "/readyz/broken"))[0] == 500
            assert (await get(session, server, "/livez"))[0] == 200

    @pytest.mark.looptime
    async def test_silent_check_fails_after_five_seconds(self) -> None:
        """A check that never answers fails after five seconds instead of hanging the probe."""
        checks = serving.HealthChecks()

        async def silent() -> str | None:
            await asyncio.Event().wait()
            return None

        checks.add("silent", silent)
        assert await checks._run("silent") == "no answer within 5 s"
        assert asyncio.get_running_loop().time() == pytest.approx(5, abs=0.1)


class TestMetrics:
    """/metrics."""

    async def test_plain_text_by_default(self, session: aiohttp.ClientSession) -> None:
        """A client without wishes gets Prometheus' text format."""
        async with (
            HttpsServer("127.0.0.1", 0) as server,
            session.get(f"http://127.0.0.1:{server.port}/metrics") as response,
        ):
            assert response.content_type == "text/plain"
            assert response.headers["Content-Type"].startswith("text/plain; version=")
            text = await response.text()
        assert "python_info{" in text
        assert "_created" not in text, "Prometheus would store each as a series of its own"

    async def test_every_process_says_what_it_is(self, session: aiohttp.ClientSession) -> None:
        """Replicas can be compared, standby ones, too: what serves metrics says its version and its Python."""
        async with HealthServer("127.0.0.1:0") as server:
            _, text = await get(session, server, "/metrics")
        labels = f'{{python="{platform.python_version()}",version="{release.version() or "unknown"}"}}'
        assert f"\nvirtual_node_build_info{labels} 1.0\n" in text

    async def test_openmetrics_when_asked(self, session: aiohttp.ClientSession) -> None:
        """A scraper that prefers OpenMetrics gets it, with its end mark, and compressed."""
        headers = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
        async with (
            HttpsServer("127.0.0.1", 0) as server,
            session.get(f"http://127.0.0.1:{server.port}/metrics", headers=headers) as response,
        ):
            assert response.content_type == "application/openmetrics-text"
            assert response.headers["Content-Encoding"] in {"gzip", "deflate"}
            assert (await response.text()).endswith("# EOF\n")


class TestListening:
    """Sockets, addresses, TLS and the end."""

    async def test_every_address_of_both_families_on_one_free_port(
        self, session: aiohttp.ClientSession
    ) -> None:
        """An empty host with port 0 is one port that answers on IPv4 and, where the machine has it, IPv6."""
        async with HttpsServer("", 0) as server:
            assert (await get(session, server, "/livez"))[0] == 200
            if socket.has_dualstack_ipv6():
                async with session.get(f"http://[::1]:{server.port}/livez") as response:
                    assert response.status == 200

    async def test_taken_port_is_named(self) -> None:
        """A port in use is an OSError whose text names the address, and nothing is left behind."""
        async with HttpsServer("127.0.0.1", 0) as server:
            second = HttpsServer("127.0.0.1", server.port)
            with pytest.raises(OSError, match=f"address 127.0.0.1:{server.port} is already in use") as caught:
                await second.start()
        assert caught.value.errno == errno.EADDRINUSE

    @pytest.mark.parametrize("turns", range(4))
    async def test_start_that_is_cancelled_leaves_nothing_open(
        self, session: aiohttp.ClientSession, turns: int
    ) -> None:
        """At whatever point the start is cancelled, its socket is gone and the loop can poll another in its place."""

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
            ("192.0.2.1", r"address 192\.0\.2\.1:0 is none of this machine's"),
            ("no such", r"address no such:0: "),
        ],
    )
    async def test_foreign_address_is_named(self, host: str, text: str) -> None:
        """An address that is not ours, or no address, is an OSError that says so."""
        with pytest.raises(OSError, match=text) as caught:
            serving.bind(host, 0)
        assert caught.value.errno == errno.EADDRNOTAVAIL

    async def test_tls_follows_the_reloader(self, session: aiohttp.ClientSession) -> None:
        """With a reloader the server speaks TLS and ends the reloader's task when it stops."""
        pair = certificates.self_signed("n", hosts=["127.0.0.1"])
        context = ssl.create_default_context(cadata=pair.certificate.decode())
        async with HttpsServer("127.0.0.1", 0, tls=CertificateReloader.from_pair(pair)) as server:
            server_url = f"https://127.0.0.1:{server.port}/livez"
            async with session.get(server_url, ssl=context) as response:
                assert response.status == 200

    async def test_with_a_client_ca_only_probes_come_without_a_certificate(self) -> None:
        """Who shows no certificate of the CA may look at health and metrics, and at nothing else."""
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
                    assert response.status == 403
                async with stranger.post(f"{url}/filter") as response:
                    assert response.status == 403
            known = ssl.create_default_context(cadata=serving_pair.certificate.decode())
            with (
                key_pairs.as_file(client.certificate) as certificate,
                key_pairs.as_file(client.key) as key,
            ):
                known.load_cert_chain(certificate, key)
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

    async def test_request_under_way_may_finish(self, session: aiohttp.ClientSession) -> None:
        """Stopping fails readiness at once, lets a request under way finish, and takes no new ones."""
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

    async def test_handler_ends_with_its_client(self, session: aiohttp.ClientSession) -> None:
        """A streaming handler is cancelled when its client goes away."""
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

    async def test_run_serves_until_cancelled(self, session: aiohttp.ClientSession) -> None:
        """run() is start, wait, stop: cancelling it frees the port."""
        server = HttpsServer("127.0.0.1", 0)
        started = fired(server.app.on_startup)
        task = asyncio.create_task(server.run())
        await started.wait()
        assert (await get(session, server, "/livez"))[0] == 200
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        serving.bind("127.0.0.1", server.port).close()

    async def test_health_server_takes_an_address(self, session: aiohttp.ClientSession) -> None:
        """The small server for health and metrics listens where it is told and reports its checks."""
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
    """host:port, :port and [v6]:port are understood."""
    assert serving.parse_address(address) == parsed


@pytest.mark.parametrize(
    "address", ["8080", "host", "host:", "host:http", "host:70000", "::1:8080", "host:-1", ""]
)
def test_bad_addresses(address: str) -> None:
    """Anything else is refused with the address in the message."""
    with pytest.raises(ConfigError, match="address"):
        serving.parse_address(address)
