"""The client's watch delivers events, and fails where the stream is no watch any more."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web

from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import ConnectionFailed, Expired
from controller_runtime.objects import WatchEvent
from tests.unit.controller_runtime.loopback import (
    Script,
    answers,
    client_of,
    failure,
    send_chunks,
    serve,
    silence,
)

pytestmark = pytest.mark.looptime


def line(kind: str, name: str, *, version: str = "1", filler: int = 0) -> bytes:
    """A line of a watch."""
    return (
        json.dumps(
            {
                "type": kind,
                "object": {
                    "kind": "Pod",
                    "apiVersion": "v1",
                    "metadata": {"name": name, "resourceVersion": version},
                    "spec": {"filler": "x" * filler},
                },
            }
        ).encode()
        + b"\n"
    )


def streaming(*chunks: bytes) -> Script:
    """Return a script that answers every request with these chunks."""

    async def script(request: web.Request) -> web.StreamResponse:
        return await send_chunks(request, chunks)

    return script


async def begun(request: web.Request) -> web.StreamResponse:
    """Return a response that has sent one event so far."""
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(line("ADDED", "a"))
    return response


async def follow(client: Client, **options: Any) -> list[WatchEvent]:
    """Return all events of a watch."""
    return [event async for event in client.watch(resources.PODS, **options)]


async def names_until(
    client: Client, expected: type[Exception], *, match: str = "", **options: Any
) -> list[str]:
    """Return the names of a watch before it fails as expected."""
    seen: list[str] = []

    async def follow() -> None:
        async for event in client.watch(resources.PODS, **options):
            seen.append(event.object.name)  # noqa: PERF401 - kept although the loop raises

    with pytest.raises(expected) as caught:
        await follow()
    assert match in str(caught.value)
    return seen


async def test_watch() -> None:
    """Events arrive in order, with a bookmark, and the watch ends when the server ends it."""
    script = streaming(
        line("ADDED", "a", version="5"), line("BOOKMARK", "", version="8"), line("DELETED", "a")
    )
    async with serve(script) as server, client_of(server) as client:
        events = await follow(
            client,
            namespace="shop",
            label_selector="a=b",
            field_selector="c=d",
            resource_version="4",
            timeout_seconds=12.7,
        )
    assert [(event.type, event.object.name) for event in events] == [
        ("ADDED", "a"),
        ("BOOKMARK", ""),
        ("DELETED", "a"),
    ]
    assert events[1].object.resource_version == "8"
    assert server.asked[0].query == {
        "watch": "1",
        "timeoutSeconds": "12",
        "allowWatchBookmarks": "true",
        "resourceVersion": "4",
        "labelSelector": "a=b",
        "fieldSelector": "c=d",
    }


async def test_bookmarks_are_optional() -> None:
    async with serve(streaming()) as server, client_of(server) as client:
        assert await follow(client, allow_bookmarks=False) == []
    assert server.asked[0].query == {"watch": "1", "timeoutSeconds": "300"}


async def test_lines_of_any_size() -> None:
    """An object larger than any buffer is one event."""
    big = line("ADDED", "big", filler=5_000_000)
    pieces = [big[start : start + 60_000] for start in range(0, len(big), 60_000)]
    async with (
        serve(streaming(line("ADDED", "a"), *pieces, line("ADDED", "b"))) as server,
        client_of(server) as client,
    ):
        events = await follow(client)
    assert [event.object.name for event in events] == ["a", "big", "b"]
    assert len(events[1].object.spec["filler"]) == 5_000_000


async def test_many_lines_make_few_batches() -> None:
    """Events of one read from the network are delivered together."""
    lines = [line("ADDED", f"pod-{number}") for number in range(1000)]
    async with serve(streaming(b"".join(lines))) as server, client_of(server) as client:
        batches = [batch async for batch in client.watch_batches(resources.PODS)]
    assert sum(len(batch) for batch in batches) == 1000
    assert len(batches) < 50


async def test_accepted_watch_begins_with_an_empty_batch() -> None:
    """It shows that the server is back, before the first event."""

    async def script(request: web.Request) -> web.StreamResponse:
        await web.StreamResponse().prepare(request)
        return await silence(request)

    async with (
        serve(script) as server,
        client_of(server) as client,
        aclosing(client.watch_batches(resources.PODS)) as batches,
    ):
        assert await anext(batches) == []


async def test_events_before_an_error_are_delivered() -> None:
    """Events in the same chunk before an ERROR are delivered first."""
    error = json.dumps(
        {
            "type": "ERROR",
            "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"},
        }
    )
    async with (
        serve(streaming(line("ADDED", "a") + error.encode() + b"\n")) as server,
        client_of(server) as client,
    ):
        assert await names_until(client, Expired, match="too old (410 Expired)") == ["a"]


async def test_watch_that_is_refused() -> None:
    """An error response raises before the first event."""
    async with serve(answers(failure(410, "Gone"))) as server, client_of(server) as client:
        with pytest.raises(Expired):
            await follow(client, resource_version="1")


@pytest.mark.parametrize("tail", [b'{"type":"ADD', b'{"type":"ADDED","object":3}\n', b"<html>\n"])
async def test_stream_of_other_content(tail: bytes) -> None:
    """A truncated or invalid event is a failed connection, after the valid ones."""
    async with serve(streaming(line("ADDED", "a"), tail)) as server, client_of(server) as client:
        assert await names_until(client, ConnectionFailed) == ["a"]


async def test_silent_watch() -> None:
    """A connection without data for the read time-out counts as dead."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = await begun(request)
        await asyncio.Event().wait()
        return response

    async with serve(script) as server, client_of(server) as client:
        seen = await names_until(client, ConnectionFailed, match="no answer in time", read_timeout=20)
        assert seen == ["a"]


async def test_watch_without_a_response() -> None:
    """A server that accepts the connection and sends nothing is detected by the client's time-out."""
    async with serve(silence) as server, client_of(server, timeout=20) as client:
        with pytest.raises(ConnectionFailed, match="no answer in time"):
            await follow(client)


async def test_watch_cut_by_the_network() -> None:
    """It raises, unlike the watch's regular end."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = await begun(request)
        assert request.transport is not None
        request.transport.abort()
        return response

    async with serve(script) as server, client_of(server) as client:
        with pytest.raises(ConnectionFailed):
            await follow(client)


async def test_leaving_a_watch_closes_its_connection() -> None:
    """It ends on the server, too."""
    gone = asyncio.Event()

    async def script(request: web.Request) -> web.StreamResponse:
        response = await begun(request)
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        return response

    async with serve(script) as server, client_of(server) as client:
        events = client.watch(resources.PODS)
        assert (await anext(events)).object.name == "a"
        await events.aclose()
        async with asyncio.timeout(5):
            await gone.wait()
