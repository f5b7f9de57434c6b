"""The page over HTTP: who gets it, and how changes come."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from virtual_node.web.server import _INTERVAL, WebServer
from virtual_node.web.view import View

pytestmark = pytest.mark.looptime


class _Overview:
    """What is to be shown."""

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
    """Its URL. Not a fixture: those live outside of virtual time."""
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
async def test_no_website_reads_the_page_under_a_name_of_its_own(path: str, host: str, status: int) -> None:
    """Whatever address that name has been given."""
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
    """No search is made for them; a link to the page works."""
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


async def test_elsewhere_every_name_will_do() -> None:
    """Who serves it to the network has chosen the names."""
    overview: Any = _Overview()
    async with WebServer("0.0.0.0:0", overview=overview) as running:
        assert await _status(f"http://127.0.0.1:{running.port}/", "nodes.example") == 200


async def test_sends_everything_first_and_then_only_changed_parts() -> None:
    """A quiet page costs nothing, and a change does not repeat what the browser has."""
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
    """The page asks for no credentials: what goes beyond names and statuses is for loopback only."""
    overview: Any = _Overview()
    async with (
        WebServer(address, overview=overview) as running,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{running.port}/api/state") as answer,
    ):
        assert (await answer.json())["specs"] is specs


async def test_serves_every_file_of_the_page_with_its_policy() -> None:
    """No script, style or connection from elsewhere, no inline script, and no file beside the page's own."""
    async with _page(_Overview()) as page, aiohttp.ClientSession() as session:
        for path, kind in (("/", "text/html"), ("/page.js", "text/javascript"), ("/lists.css", "text/css")):
            async with session.get(page + path) as answer:
                assert (answer.status, answer.content_type) == (200, kind)
                policy = answer.headers["Content-Security-Policy"]
                assert "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'" in policy
                assert "unsafe" not in policy
        async with session.get(page + "/server.py") as answer:
            assert answer.status == 404


async def test_those_who_look_for_the_same_share_a_picture() -> None:
    """Ten browsers cost no more than one; what is older than a moment is drawn anew."""
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


async def test_a_browser_that_does_not_read_is_waited_for() -> None:
    """Pictures do not pile up for it."""
    overview = _Overview()
    async with _page(overview) as page:
        _, writer = await asyncio.open_connection("127.0.0.1", int(page.rpartition(":")[2]), limit=1)
        writer.write(b"GET /api/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        looks = 0
        async with asyncio.timeout(3600):
            while looks != overview.looks or not looks:
                looks = overview.looks
                for _ in range(20):
                    overview.shown += "!"
                    await asyncio.sleep(_INTERVAL)
        writer.close()
