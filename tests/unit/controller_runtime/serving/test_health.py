"""Health checks and metrics over HTTP."""

from __future__ import annotations

import asyncio
import platform

import aiohttp
import pytest
from structlog.testing import capture_logs

from controller_runtime.process.program import version
from controller_runtime.serving import server as serving
from controller_runtime.serving.health import MetricsPage
from controller_runtime.serving.server import HealthServer, HttpsServer
from tests.unit.controller_runtime.serving.conftest import get


class TestHealth:
    """Kubernetes' health endpoints."""

    async def test_healthy_server_is_ok(self, session: aiohttp.ClientSession) -> None:
        """Each endpoint answers exactly ``ok``."""
        async with HttpsServer("127.0.0.1", 0) as server:
            for endpoint in ("/healthz", "/livez", "/readyz", "/readyz/ping"):
                assert await get(session, server, endpoint) == (200, "ok")

    async def test_verbose_lists_every_check_as_apiserver_does(self, session: aiohttp.ClientSession) -> None:
        """``?verbose`` prints a line for each check and the verdict."""
        async with HttpsServer("127.0.0.1", 0) as server:
            server.health.add("informers", lambda: None)
            assert await get(session, server, "/readyz?verbose") == (
                200,
                "[+]ping ok\n[+]shutdown ok\n[+]informers ok\nreadyz check passed\n",
            )

    async def test_failing_check_hides_its_reason(self, session: aiohttp.ClientSession) -> None:
        """A failure is 500 with the list of checks; the reason is logged once, and so is the recovery."""
        reasons: list[str | None] = ["cluster west is silent", "cluster west is silent", None]
        async with HttpsServer("127.0.0.1", 0) as server:
            server.health.add("clusters", lambda: reasons.pop(0))
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
        """A readiness check does not affect liveness; a live check is part of all three endpoints."""
        async with HttpsServer("127.0.0.1", 0) as server:
            server.health.add("remote", lambda: "away")
            assert (await get(session, server, "/livez"))[0] == 200
            assert (await get(session, server, "/readyz"))[0] == 500
            server.health.add("loop", lambda: "stuck", live=True)
            assert (await get(session, server, "/livez"))[0] == 500
            assert (await get(session, server, "/healthz/loop"))[0] == 500
            assert (await get(session, server, "/livez/remote"))[0] == 404

    async def test_excluded_checks_do_not_count(self, session: aiohttp.ClientSession) -> None:
        """``?exclude=`` excludes checks, repeated or with commas, and warns of unknown names."""
        async with HttpsServer("127.0.0.1", 0) as server:
            server.health.add("a", lambda: "bad")
            server.health.add("b", lambda: "bad")
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
            server.health.add("a", lambda: "bad")
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
            server.health.add("broken", broken)
            assert (await get(session, server, "/readyz/broken"))[0] == 500
            assert (await get(session, server, "/livez"))[0] == 200

    @pytest.mark.looptime
    async def test_silent_check_fails_after_five_seconds(self) -> None:
        """Instead of blocking the probe."""
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
        async with (
            HttpsServer("127.0.0.1", 0) as server,
            session.get(f"http://127.0.0.1:{server.port}/metrics") as response,
        ):
            assert response.content_type == "text/plain"
            assert response.headers["Content-Type"].startswith("text/plain; version=")
            text = await response.text()
        assert "python_info{" in text
        assert "_created" not in text, "Prometheus would store each as a series of its own"

    async def test_every_process_has_its_version_in_its_metrics(self, session: aiohttp.ClientSession) -> None:
        """And that of Python, so replicas can be compared, standby ones, too."""
        async with HealthServer("127.0.0.1:0") as server:
            _, text = await get(session, server, "/metrics")
        labels = f'{{python="{platform.python_version()}",version="{version() or "unknown"}"}}'
        assert f"\nvirtual_node_build_info{labels} 1.0\n" in text

    async def test_openmetrics_on_request(self, session: aiohttp.ClientSession) -> None:
        """With its end mark, and compressed."""
        headers = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
        async with (
            HttpsServer("127.0.0.1", 0) as server,
            session.get(f"http://127.0.0.1:{server.port}/metrics", headers=headers) as response,
        ):
            assert response.content_type == "application/openmetrics-text"
            assert response.headers["Content-Encoding"] in {"gzip", "deflate"}
            assert (await response.text()).endswith("# EOF\n")

    @pytest.mark.parametrize("encoding", ["", "Accept-Encoding: deflate\r\n"])
    async def test_head_has_no_body(self, encoding: str) -> None:
        """A client that keeps the connection would take the body for its next response."""
        https = HttpsServer("127.0.0.1", 0)
        https.add_route("*", "/page", MetricsPage().get)  # as in a kubelet
        async with https as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            request = f"HTTP/1.1\r\nHost: localhost\r\n{encoding}"
            writer.write(f"HEAD /page {request}\r\nGET /healthz {request}Connection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
        first, second = answer.split(b"HTTP/1.1 200 OK\r\n")[1:]
        assert first.endswith(b"\r\n\r\n")
        assert first.count(b"\r\n\r\n") == 1
        assert second.endswith(b"ok")
