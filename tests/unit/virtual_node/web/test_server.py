"""The page over HTTP: access, and updates."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from virtual_node.web.groups import View
from virtual_node.web.server import _INTERVAL, WebServer

pytestmark = pytest.mark.looptime


class _Overview:
    """The data to be shown."""

    def __init__(self) -> None:
        self.shown = "nothing"
        self.looks = 0

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def parts(self, view: View, *, in_full: bool = True) -> dict[str, bytes]:
        self.looks += 1
        parts = {"shown": self.shown, "search": view.search, "specs": in_full, "filling": "x" * 30_000}
        return {key: json.dumps(part).encode() for key, part in parts.items()}


@contextlib.asynccontextmanager
async def _page(overview: Any) -> AsyncIterator[str]:
    """Yield its URL. Not a fixture, because fixtures run outside of virtual time."""
    async with WebServer("127.0.0.1:0", overview=overview) as running:
        yield f"http://127.0.0.1:{running.port}"


async def _status(url: str, host: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url, headers={"Host": host}) as answer:
        return answer.status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8080", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
        ("virtual-node.localhost:8080", 200),
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("[", 403),
        ("", 403),
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/state"])
async def test_no_website_reads_the_page_by_dns_rebinding(path: str, host: str, status: int) -> None:
    """A host name other than the server's own is refused, whatever its address."""
    async with _page(_Overview()) as page:
        assert await _status(page + path, host) == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Origin": "http://localhost"}, 200),
    ],
)
async def test_refuses_data_to_other_websites(headers: dict[str, str], status: int) -> None:
    """No search runs for them; a link to the page works."""
    overview = _Overview()
    async with _page(overview) as page, aiohttp.ClientSession() as session:
        given = {"Host": "localhost", **headers}
        for path in ("/api/state?search=a", "/api/stream?search=b"):
            async with session.get(page + path, headers=given) as answer:
                assert answer.status == status
        assert bool(overview.looks) is (status == 200)
        async with session.get(page + "/", headers=given) as answer:
            assert answer.status == 200


async def test_many_searches_and_browsers_are_refused() -> None:
    """Those beyond 16 searches within a second, and beyond 64 browsers."""
    overview = _Overview()
    async with (
        _page(overview) as page,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):

        async def status(search: int) -> int:
            async with session.get(f"{page}/api/state", params={"search": str(search)}) as answer:
                return answer.status

        found = [await status(number) for number in range(20)]
        assert found == [200] * 16 + [503] * 4
        assert overview.looks == 16
        await asyncio.sleep(_INTERVAL)
        assert await status(99) == 200
        streams = [await session.get(f"{page}/api/stream") for _ in range(65)]
        assert [answer.status for answer in streams] == [200] * 64 + [503]
        for answer in streams:
            answer.close()


async def test_on_the_network_every_host_name_is_accepted() -> None:
    """The administrator has chosen the names."""
    overview: Any = _Overview()
    async with WebServer("0.0.0.0:0", overview=overview) as running:
        assert await _status(f"http://127.0.0.1:{running.port}/", "nodes.example") == 200


async def test_sends_everything_first_and_then_only_changed_parts() -> None:
    """A page without changes costs nothing."""
    overview = _Overview()
    async with (
        _page(overview) as page,
        aiohttp.ClientSession() as session,
        session.get(f"{page}/api/stream?search=web") as answer,
    ):
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        seen: dict[str, Any] = {}
        while len(seen) < 4:
            data = await answer.content.readuntil(b"\n\n")
            seen |= json.loads(data.removeprefix(b"data: "))["set"]
        assert (seen["shown"], seen["search"]) == ("nothing", "web")
        overview.shown = "something"
        data = await answer.content.readuntil(b"\n\n")
        assert json.loads(data.removeprefix(b"data: "))["set"] == {"shown": "something"}
        looks = overview.looks
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10 * _INTERVAL):
                await answer.content.readuntil(b"\n\n")
        assert overview.looks > looks


@pytest.mark.parametrize(("address", "specs"), [("127.0.0.1:0", True), ("0.0.0.0:0", False)])
async def test_sends_no_specs_to_the_network(address: str, *, specs: bool) -> None:
    """The page has no authentication: only names and statuses leave loopback."""
    overview: Any = _Overview()
    async with (
        WebServer(address, overview=overview) as running,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{running.port}/api/state") as answer,
    ):
        assert (await answer.json())["specs"] is specs


async def test_serves_every_file_of_the_page_with_its_policy() -> None:
    """No script, style or connection of other origins, no inline script, and no other file."""
    async with _page(_Overview()) as page, aiohttp.ClientSession() as session:
        for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/lists.css", "text/css")):
            async with session.get(page + path) as answer:
                assert (answer.status, answer.content_type) == (200, kind)
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'" in policy
                assert "unsafe" not in policy
        async with session.get(page + "/server.py") as answer:
            assert answer.status == 404


async def test_equal_queries_share_a_snapshot() -> None:
    """Ten browsers cost no more than one; an outdated snapshot is made again."""
    overview = _Overview()

    async def look(search: str) -> str:
        async with session.get(f"{page}/api/state", params={"search": search}) as answer:
            return str((await answer.json())["shown"])

    async with _page(overview) as page, aiohttp.ClientSession() as session:
        assert await asyncio.gather(*[look("a") for _ in range(10)], look("b")) == ["nothing"] * 11
        assert overview.looks == 2
        overview.shown = "something"
        await asyncio.sleep(_INTERVAL)
        assert await look("a") == "something"


async def test_a_browser_that_does_not_read_gets_no_backlog() -> None:
    overview = _Overview()
    async with _page(overview) as page:
        _, writer = await asyncio.open_connection("127.0.0.1", int(page.rpartition(":")[2]), limit=1)
        writer.write(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        looks = 0
        async with asyncio.timeout(3600):
            while looks != overview.looks or not looks:
                looks = overview.looks
                for _ in range(20):
                    overview.shown = f"{overview.looks:020000}"  # fills the buffers of the connection soon
                    await asyncio.sleep(_INTERVAL)
        writer.close()
