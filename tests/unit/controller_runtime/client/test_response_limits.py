"""What a hostile API server can make a client read, decode and wait for."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from controller_runtime import resources
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.client.connection_pool import CpuMeter
from controller_runtime.client.limits import MIB, ResponseLimits
from controller_runtime.client.transport import next_chunk
from controller_runtime.errors import ApiError, ConnectionFailed, Invalid, ResponseTooLarge
from tests.unit.controller_runtime.loopback import client_of, reply, serve

SMALL = ResponseLimits(body=100_000, error_body=1000, line=10_000, large=10_000, large_at_once=1, values=5000)


def rejected(cluster: str, limit: str) -> float:
    """Return the number of rejected responses of a cluster."""
    labels = {"cluster": cluster, "limit": limit}
    return REGISTRY.get_sample_value("rest_client_responses_rejected_total", labels) or 0.0


async def until(holds: Callable[[], bool]) -> None:
    """Poll a condition."""
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


def chunked(chunk: bytes, *, count: int = 100_000, **headers: str) -> Callable[[web.Request], Any]:
    """Return a script that sends one chunk repeatedly until the client has gone."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        for _ in range(count):
            await response.write(chunk)
        return response

    return script


async def test_failed_read_leaves_no_cycle() -> None:
    """The stream's error has no traceback, whose frames would keep the stream and its data alive."""
    stream = aiohttp.StreamReader(Mock(), 1000, loop=asyncio.get_running_loop())
    stream.set_exception(aiohttp.ClientPayloadError("broken"))
    with pytest.raises(aiohttp.ClientPayloadError, match="broken") as caught:
        await next_chunk(Mock(content=stream))
    kept = stream.exception()
    assert kept is not None
    assert kept is not caught.value
    assert kept.__traceback__ is None


async def test_informer_keeps_no_frames() -> None:
    """The error of a waiting informer has no traceback, nor have its causes."""

    async def script(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"[" * 1000, content_type="application/json")

    async with (
        serve(script) as server,
        client_of(server, limits=SMALL) as client,
        asyncio.TaskGroup() as group,
    ):
        informer = Informer(client, resources.PODS)
        task = group.create_task(informer.run())
        await until(lambda: informer.last_error is not None)
        error: BaseException | None = informer.last_error
        causes = 0
        while error is not None:
            assert error.__traceback__ is None
            error, causes = error.__cause__ or error.__context__, causes + 1
        task.cancel()
    assert causes > 1


class TestBodies:
    """The size of one response."""

    async def test_too_long_announced_body_is_not_read(self) -> None:
        async def script(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Length": str(10**12)})
            await response.prepare(request)
            await asyncio.Event().wait()
            return response

        async with serve(script) as server, client_of(server, limits=SMALL, cluster="west") as client:
            with pytest.raises(ResponseTooLarge) as caught:
                await client.get(resources.PODS, "a", namespace="b")
        text = str(caught.value)
        assert text == (
            f"{server.url}: cluster west: the response to GET /api/v1/namespaces/b/pods/a "
            "exceeds the limit of 100,000 bytes"
        )

    async def test_endless_body_ends_at_the_limit(self) -> None:
        """A body without a length is read up to the limit; the error is counted."""
        before = rejected("endless", "body")
        async with (
            serve(chunked(b"x" * 10_000)) as server,
            client_of(server, limits=SMALL, cluster="endless") as client,
        ):
            with pytest.raises(ResponseTooLarge, match="100,000 bytes"):
                await client.request("GET", "/")
        assert rejected("endless", "body") == before + 1

    async def test_compressed_body_counts_by_its_decompressed_size(self) -> None:
        """Of 125 MiB in 127 KB, no more than the limit is decompressed."""
        bomb = web.Response(body=gzip.compress(b"\0" * (125 * MIB), 1), headers={"Content-Encoding": "gzip"})

        async def script(_request: web.Request) -> web.StreamResponse:
            return bomb

        async with serve(script) as server, client_of(server) as client:
            started = time.thread_time()
            with pytest.raises(ResponseTooLarge, match="10,485,760 bytes"):
                await client.request("GET", "/")
            assert time.thread_time() - started < 1.0

    async def test_error_body_is_cut(self) -> None:
        """An error response with any body is an error of its code; the message is bounded."""

        async def script(_request: web.Request) -> web.StreamResponse:
            return web.Response(status=422, body=b"no " * 10_000_000)

        async with serve(script) as server, client_of(server, limits=SMALL) as client:
            with pytest.raises(Invalid, match="no no no") as caught:
                await client.get(resources.PODS, "a", namespace="b")
            assert len(str(caught.value)) < 500
            with pytest.raises(Invalid):
                async with client.stream("GET", "/"):
                    pass

    async def test_message_of_a_status_is_cut(self) -> None:
        """From a megabyte to four kilobytes, because it is copied to events and statuses."""
        status = {"kind": "Status", "reason": "r" * 10_000, "message": "m" * 50_000, "code": 403}

        async def script(_request: web.Request) -> web.StreamResponse:
            return reply(status, status=403)

        async with serve(script) as server, client_of(server) as client:
            with pytest.raises(ApiError) as caught:
                await client.get(resources.PODS, "a", namespace="b")
        assert len(str(caught.value)) < 5000

    async def test_limit_itself_is_allowed(self) -> None:
        """A body of exactly the limit is read."""

        async def script(_request: web.Request) -> web.StreamResponse:
            return web.Response(body=b"x" * SMALL.body)

        async with serve(script) as server, client_of(server, limits=SMALL) as client:
            assert len(await client.request("GET", "/")) == SMALL.body


class TestDecoding:
    """Limits of JSON content."""

    @pytest.mark.parametrize("unit", [b"[],", b"{},", b"1,", b'"a":1,'])
    async def test_too_many_values_are_not_decoded(self, unit: bytes) -> None:
        """JSON with values that would take many times its bytes is refused."""
        body = b'{"items":[' + unit * 6000 + b"1]}"

        async def script(_request: web.Request) -> web.StreamResponse:
            return web.Response(body=body)

        async with serve(script) as server, client_of(server, limits=SMALL) as client:
            with pytest.raises(ResponseTooLarge, match="5,000 JSON values"):
                await client.get(resources.PODS, "a", namespace="b")
            with pytest.raises(ResponseTooLarge, match="5,000 JSON values"):
                await client.list(resources.PODS)
            with pytest.raises(ResponseTooLarge, match="5,000 JSON values"):
                await client.read("/apis")

    @pytest.mark.parametrize("opening", [b"[", b'{"a":'])
    async def test_deep_nesting_is_an_error(self, opening: bytes) -> None:
        """In bodies, errors and events. It is no failed connection: users can write such objects (ResourceClaims)."""
        status = 200

        async def script(request: web.Request) -> web.StreamResponse:
            line = b'{"type":"ADDED","object":{"metadata":{},"spec":' + opening * 5000 + b"\n"
            body = b'{"items":[{"spec":' + opening * 5000
            return web.Response(status=status, body=line if "watch" in request.query else body)

        async with serve(script) as server, client_of(server) as client:
            with pytest.raises(ResponseTooLarge, match="1,000 nested JSON values"):
                await client.get(resources.PODS, "a", namespace="b")
            with pytest.raises(ResponseTooLarge, match="1,000 nested JSON values"):
                await client.list(resources.PODS)
            with pytest.raises(ResponseTooLarge, match="1,000 nested JSON values"):
                _ = [event async for event in client.watch(resources.PODS)]
            status = 422
            with pytest.raises(Invalid):
                await client.get(resources.PODS, "a", namespace="b")

    async def test_long_watch_line_is_an_error(self) -> None:
        """An event without an end is buffered up to the limit."""
        before = rejected("line", "line")
        async with (
            serve(chunked(b"x" * 1000)) as server,
            client_of(server, limits=SMALL, cluster="line") as client,
        ):
            with pytest.raises(
                ResponseTooLarge, match="WATCH /api/v1/pods exceeds the limit of 10,000 bytes"
            ):
                _ = [event async for event in client.watch(resources.PODS)]
        assert rejected("line", "line") == before + 1

    async def test_many_events_at_once_are_delivered_in_small_batches(self) -> None:
        """So that decoding thousands of events does not stall the loop."""
        line = b'{"type":"ADDED","object":{"metadata":{"name":"a"}}}\n'

        async def script(_request: web.Request) -> web.StreamResponse:
            return web.Response(body=line * 1000)

        async with serve(script) as server, client_of(server) as client:
            sizes = [len(batch) async for batch in client.watch_batches(resources.PODS)]
        assert sum(sizes) == 1000
        assert max(sizes) <= 64


class TestPages:
    """Lists of large objects."""

    async def test_large_page_is_requested_in_parts(self) -> None:
        """A page beyond the limit is read with fewer objects, without gaps or duplicates."""
        names = [f"p{number:03}" for number in range(120)]

        async def script(request: web.Request) -> web.StreamResponse:
            begin, size = int(request.query.get("continue", "0")), int(request.query["limit"])
            items = [
                {"metadata": {"name": name}, "spec": {"x": "y" * 2000}}
                for name in names[begin : begin + size]
            ]
            token = str(begin + size) if begin + size < len(names) else ""
            return reply({"items": items, "metadata": {"resourceVersion": "1", "continue": token}})

        async with serve(script) as server, client_of(server, limits=SMALL) as client:
            listed = await client.list(resources.PODS)
        assert [item.name for item in listed.items] == names
        assert [asked.query["limit"] for asked in server.asked][:5] == ["500", "100", "20", "40", "80"]

    @pytest.mark.parametrize("text", [",", '\\"],', '[{"\\\\'])
    async def test_commas_in_text_are_no_values(self, text: str) -> None:
        """An object with such a text does not make the list fail."""
        items = [{"metadata": {"name": "a"}, "spec": {"x": text * 1_200_000}}]

        async def script(_request: web.Request) -> web.StreamResponse:
            return reply({"items": items, "metadata": {"resourceVersion": "1"}})

        async with serve(script) as server, client_of(server) as client:
            listed = await client.list(resources.PODS)
        assert listed.items[0].spec == items[0]["spec"]


class TestLargeBodies:
    """Many large responses at the same time."""

    async def test_few_large_bodies_are_read_at_once(self) -> None:
        """Memory is bounded: those beyond the number wait, small ones do not."""
        sent: dict[str, int] = {}
        go_on = asyncio.Event()

        async def script(request: web.Request) -> web.StreamResponse:
            if request.path == "/small":
                return web.Response(body=b"small")
            response = web.StreamResponse()
            await response.prepare(request)
            for _ in range(8):
                await response.write(b"x" * 2000)
                sent[request.path] = sent.get(request.path, 0) + 2000
                if sent[request.path] == 14_000:
                    await go_on.wait()
                await asyncio.sleep(0.001)
            return response

        async with serve(script) as server, client_of(server, limits=SMALL) as client:
            reader = client.reader
            first = asyncio.create_task(client.request("GET", "/a"))
            await until(reader._large.locked)
            second = asyncio.create_task(client.request("GET", "/b"))
            given_up = asyncio.create_task(client.request("GET", "/c"))
            await until(lambda: min(sent.get("/b", 0), sent.get("/c", 0)) == 14_000)
            assert await client.request("GET", "/small") == b"small"
            given_up.cancel()
            go_on.set()
            assert [len(body) for body in await asyncio.gather(first, second)] == [16_000, 16_000]
            assert not reader._large.locked()

    async def test_memory_is_released_after_errors(self) -> None:
        """The next large response can be read."""
        async with (
            serve(chunked(b"x" * 5000)) as server,
            client_of(server, limits=SMALL) as client,
        ):
            for _ in range(3):
                with pytest.raises(ResponseTooLarge):
                    await client.request("GET", "/")
            assert not client.reader._large.locked()


@asynccontextmanager
async def raw_server(head: bytes, answer: bytes) -> AsyncIterator[Client]:
    """Yield a client of a server that sends a head, and then the same bytes repeatedly."""

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head)
            while True:
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with Client(ConnectionConfig(f"http://127.0.0.1:{port}"), qps=0) as client:
            yield client
    finally:
        server.close()


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        pytest.param(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 5000, id="informational responses"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"1\r\nx\r\n" * 10_000,
            id="chunks of one byte",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\n", b"A: b\r\n" * 10_000, id="headers"),
        pytest.param(b"", b"x" * 100_000, id="a status line"),
    ],
)
async def test_server_cannot_keep_the_loop_busy(head: bytes, answer: bytes) -> None:
    """Endless bodies that cost much CPU time are rejected after little of it, long before the time-out of the request."""
    async with raw_server(head, answer) as client:
        started = time.process_time()
        with pytest.raises(ConnectionFailed):
            await client.request("GET", "/")
        assert time.process_time() - started < 5
        with pytest.raises(ConnectionFailed):
            _ = [event async for event in client.watch(resources.PODS)]
        assert time.process_time() - started < 10


class TestCpuMeter:
    """Limit of CPU time for a server's bytes."""

    def test_ordinary_responses_are_never_rejected(self) -> None:
        """For any number and size."""
        meter = CpuMeter()
        for _ in range(100_000):
            meter.add(0.0001, 500)
            meter.add(0.001, 65_536)
            meter.check(0.0)

    def test_expensive_bytes_are_rejected_soon(self) -> None:
        """At a debt of 0.1 s, which decreases slowly."""
        meter = CpuMeter()
        meter.check(100.0)
        for _ in range(4):
            meter.add(0.026, 16_384)
            meter.check(100.0)
        meter.add(0.026, 16_384)
        with pytest.raises(aiohttp.ClientPayloadError):
            meter.check(100.0)
        with pytest.raises(aiohttp.ClientPayloadError):
            meter.check(100.1)
        meter.check(101.0)

    def test_repeated_scans_of_received_data_count(self) -> None:
        """Empty parts add to the debt, too."""
        meter = CpuMeter()
        for _ in range(2000):
            meter.add(0.0001, 0)
        with pytest.raises(aiohttp.ClientPayloadError):
            meter.check(1.0)
