"""Which requests are repeated after a failure, and which never are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from controller_runtime import resources
from controller_runtime.auth.credentials import Credentials, StaticCredentials
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.errors import (
    ConnectionFailed,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from tests.unit.controller_runtime.loopback import (
    answers,
    client_of,
    failure,
    reply,
    serve,
)

Call = Callable[[Client], Awaitable[Any]]
NODE = {"metadata": {"name": "n"}}

READS: list[Call] = [lambda c: c.get(resources.NODES, "n"), lambda c: c.list(resources.NODES)]
WRITES: list[Call] = [
    lambda c: c.create(resources.NODES, NODE),
    lambda c: c.update(resources.NODES, NODE),
    lambda c: c.patch(resources.NODES, "n", {}),
    lambda c: c.delete(resources.NODES, "n"),
]


# --- servers that shed load ---------------------------------------------------------------------------


@pytest.mark.parametrize("call", READS + WRITES)
@pytest.mark.parametrize(("code", "reason"), [(429, "TooManyRequests"), (503, "ServiceUnavailable")])
async def test_shed_requests_are_repeated(call: Call, code: int, reason: str) -> None:
    """429, and 503 with Retry-After, for every verb, because the server has not acted."""
    script = answers(failure(code, reason, Retry_After="0"), reply(NODE | {"items": []}))
    async with serve(script) as server, client_of(server) as client:
        await call(client)
    first, second = server.asked
    assert (first.method, first.path, first.body) == (second.method, second.path, second.body)


@pytest.mark.looptime
async def test_retry_after_is_respected() -> None:
    script = answers(failure(429, "TooManyRequests", Retry_After="1"), reply())
    loop = asyncio.get_running_loop()
    async with serve(script) as server, client_of(server) as client:
        started = loop.time()
        await client.get(resources.NODES, "n")
        assert 1 <= loop.time() - started < 5


@pytest.mark.looptime
async def test_retry_after_longer_than_the_timeout_fails_at_once() -> None:
    script = answers(failure(429, "TooManyRequests", Retry_After="60"))
    loop = asyncio.get_running_loop()
    async with serve(script) as server, client_of(server, timeout=5) as client:
        started = loop.time()
        with pytest.raises(TooManyRequests) as caught:
            await client.get(resources.NODES, "n")
        assert loop.time() - started < 3
    assert caught.value.retry_after == 60


@pytest.mark.looptime
async def test_endless_shedding_fails_within_the_timeout() -> None:
    """With growing pauses until then."""

    async def script(request: web.Request) -> web.Response:
        return failure(429, "TooManyRequests")

    async with serve(script) as server, client_of(server, timeout=1.0) as client:
        with pytest.raises(TooManyRequests):
            await client.get(resources.NODES, "n")
    assert 3 <= len(server.asked) <= 5


@pytest.mark.looptime
@pytest.mark.parametrize("code", [500, 504])
async def test_reads_are_repeated_after_5xx_with_retry_after(code: int) -> None:
    """As client-go does; a write may have been done."""
    script = answers(failure(code, "ServerTimeout", Retry_After="0"), reply(NODE))
    async with serve(script) as server, client_of(server) as client:
        assert await client.get(resources.NODES, "n") == NODE
    assert len(server.asked) == 2
    for write in WRITES:
        script = answers(failure(code, "ServerTimeout", Retry_After="0"))
        async with serve(script) as server, client_of(server) as client:
            with pytest.raises(Unavailable):
                await write(client)


@pytest.mark.parametrize("call", [READS[0], WRITES[0]])
async def test_truncated_response_is_an_error(call: Call) -> None:
    """For a read and a write alike, and neither is repeated."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b'{"kind":')
        assert request.transport is not None
        request.transport.close()
        return response

    async with serve(script) as server, client_of(server) as client:
        with pytest.raises(ConnectionFailed, match="not completed"):
            await call(client)
    assert len(server.asked) == 1


async def test_unavailable_without_retry_after_is_not_repeated() -> None:
    """A plain 503 may come from a server that has acted."""
    async with serve(answers(failure(503, "x"))) as server, client_of(server) as client:
        with pytest.raises(Unavailable):
            await client.create(resources.NODES, NODE)
    assert len(server.asked) == 1


async def test_eviction_that_a_budget_forbids() -> None:
    """429 to an eviction is the disruption budget's answer, and is raised."""
    async with (
        serve(answers(failure(429, "TooManyRequests", Retry_After="0"))) as server,
        client_of(server) as client,
    ):
        with pytest.raises(TooManyRequests):
            await client.create(resources.PODS, {}, namespace="a", name="b", subresource="eviction")
    assert len(server.asked) == 1


async def test_shed_watch_is_repeated_after_retry_after() -> None:
    script = answers(failure(429, "TooManyRequests", Retry_After="0"), web.Response())
    async with serve(script) as server, client_of(server) as client:
        assert [event async for event in client.watch(resources.PODS)] == []
    assert len(server.asked) == 2


# --- broken connections -------------------------------------------------------------------------------


@asynccontextmanager
async def hanging_up(*, after: int) -> AsyncIterator[tuple[ConnectionConfig, list[bytes]]]:
    """Yield a server that answers so many requests of each connection, and closes it at the next one."""
    heads: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for left in range(after, -1, -1):
                head = await reader.readuntil(b"\r\n\r\n")
                heads.append(head.split(b"\r\n")[0])
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
                if left:
                    writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"items":[]}')
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield ConnectionConfig(f"http://127.0.0.1:{port}"), heads
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("call", READS)
async def test_read_on_a_stale_connection_is_repeated(call: Call) -> None:
    async with hanging_up(after=1) as (config, heads), Client(config, qps=0) as client:
        await call(client)
        await call(client)
    assert len(heads) == 3


@pytest.mark.parametrize("call", WRITES)
async def test_write_on_a_stale_connection_is_not_repeated(call: Call) -> None:
    """It is unknown whether a write has been done, PUT and DELETE included."""
    async with hanging_up(after=1) as (config, heads), Client(config, qps=0) as client:
        await call(client)
        with pytest.raises(ConnectionFailed):
            await call(client)
        await call(client)
    assert len(heads) == 3


async def test_read_is_repeated_once_only() -> None:
    async with hanging_up(after=0) as (config, heads), Client(config, qps=0) as client:
        with pytest.raises(
            ConnectionFailed, match=r"^http://127\.0\.0\.1:\d+: Server disconnected$"
        ) as caught:
            await client.get(resources.NODES, "n")
    assert len(heads) == 2
    assert caught.value.__cause__ is not None
    assert (caught.value.code, caught.value.reason) == (0, "")


async def test_watch_on_a_stale_connection_is_repeated() -> None:
    """Once."""
    async with hanging_up(after=1) as (config, heads), Client(config, qps=0) as client:
        await client.get(resources.NODES, "n")
        async with client.stream("GET", "/watch") as response:
            assert response.status == 200
    assert len(heads) == 3


# --- credentials --------------------------------------------------------------------------------------


class Renewable(Credentials):
    """A token that changes when it is renewed."""

    def __init__(self) -> None:
        self.renewals = 0

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """The headers to send now."""
        self.renewals += refresh
        return {"Authorization": f"Bearer {self.renewals}"}


async def good_from_one(request: web.Request) -> web.Response:
    """Accept every token but the first."""
    is_first = request.headers["Authorization"] == "Bearer 0"
    return failure(401, "Unauthorized") if is_first else reply({"items": []})


@pytest.mark.parametrize("call", [*READS, *WRITES])
async def test_credentials_are_renewed_after_a_401(call: Call) -> None:
    """Once, and the request is sent again."""
    credentials = Renewable()
    async with serve(good_from_one) as server, client_of(server, credentials=credentials) as client:
        await call(client)
    assert [asked.headers["Authorization"] for asked in server.asked] == ["Bearer 0", "Bearer 1"]
    assert credentials.renewals == 1


async def test_watch_renews_credentials_after_a_401() -> None:
    credentials = Renewable()
    async with (
        serve(good_from_one) as server,
        client_of(server, credentials=credentials) as client,
        client.stream("GET", "/") as response,
    ):
        assert response.status == 200
    assert credentials.renewals == 1


async def test_many_401s_renew_once() -> None:
    """Concurrent requests use the credentials that the first of them has renewed."""
    credentials = Renewable()
    gate = asyncio.Barrier(10)

    async def script(request: web.Request) -> web.Response:
        if request.headers["Authorization"] == "Bearer 0":
            await gate.wait()
        return await good_from_one(request)

    async with serve(script) as server, client_of(server, credentials=credentials) as client:
        await asyncio.gather(*(client.get(resources.NODES, "n") for _ in range(10)))
    assert credentials.renewals == 1


async def test_second_401_is_final() -> None:
    credentials = StaticCredentials({"Authorization": "Bearer x"})
    script = answers(failure(401, "Unauthorized"), failure(401, "Unauthorized"))
    async with serve(script) as server, client_of(server, credentials=credentials) as client:
        with pytest.raises(Unauthorized):
            await client.get(resources.NODES, "n")
    assert len(server.asked) == 2
