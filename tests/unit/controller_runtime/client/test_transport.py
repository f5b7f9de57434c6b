"""Connections, pacing, streams and metrics, against real servers on loopback."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import socket

import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from controller_runtime import resources
from controller_runtime.auth.credentials import StaticCredentials
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.errors import ConnectionFailed, NotConnected, NotFound
from hack.sandbox.ports import free_ports
from tests.unit.controller_runtime.loopback import answers, client_of, failure, reply, serve, silence


def closed_port() -> int:
    """Return a port without a listener."""
    return free_ports(1)[0]


async def test_refused_connection_names_the_server() -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    async with Client(ConnectionConfig(url), qps=0) as client:
        with pytest.raises(NotConnected, match=f"^{url}: cannot connect: connection refused$"):
            await client.get(resources.NODES, "n")
        with pytest.raises(NotConnected, match=f"^{url}: cannot connect: connection refused$"):
            async with client.stream("GET", "/"):
                pass


@pytest.mark.parametrize("host", ["localhost", "nowhere.invalid"])
async def test_unknown_host_names(host: str) -> None:
    """The reason is the kernel's or the resolver's, in one form for one address and for several."""
    async with Client(ConnectionConfig(f"http://{host}:{closed_port()}"), qps=0) as client:
        with pytest.raises(NotConnected, match=r": cannot connect: [a-z]") as failure:
            await client.get(resources.NODES, "n")
    assert "[" not in str(failure.value)
    assert "Errno" not in str(failure.value)


@pytest.mark.looptime
async def test_silent_server() -> None:
    """The caller's time-out applies, or the client's if the caller has none."""
    loop = asyncio.get_running_loop()
    moments = [loop.time()]
    async with serve(silence) as server, client_of(server, timeout=20) as client:
        with pytest.raises(ConnectionFailed, match="no answer in time"):
            await client.get(resources.NODES, "n")
        moments.append(loop.time())
        with pytest.raises(ConnectionFailed, match="no answer in time"):
            await client.version(timeout=10)
        moments.append(loop.time())
        with pytest.raises(ConnectionFailed, match="no answer in time"):
            async with client.stream("GET", "/", read_timeout=15):
                pass
        moments.append(loop.time())
    took = [late - early for early, late in itertools.pairwise(moments)]
    assert took == pytest.approx([20, 10, 15], abs=0.1)


@pytest.mark.looptime
async def test_waiting_for_the_rate_limit_is_no_timeout() -> None:
    """Requests that queue for longer than the time-out are sent nevertheless."""

    async def script(request: web.Request) -> web.Response:
        return reply()

    async with serve(script) as server, client_of(server, qps=10, burst=1, timeout=0.25) as client:
        await asyncio.gather(*(client.get(resources.NODES, "n") for _ in range(6)))
    assert len(server.asked) == 6


@pytest.mark.looptime
async def test_timeout_starts_after_the_rate_limit() -> None:
    """A request that has queued for long has its whole time-out left when the server sheds it."""
    script = answers(reply(), failure(429, "TooManyRequests", Retry_After="0"), reply())
    async with serve(script) as server, client_of(server, qps=2, burst=1, timeout=0.3) as client:
        await client.get(resources.NODES, "n")
        await client.get(resources.NODES, "n")
    assert len(server.asked) == 3


@pytest.mark.looptime
async def test_resources_take_turns() -> None:
    """A flood of pod creations does not delay a lease."""

    async def script(request: web.Request) -> web.Response:
        return reply()

    async with serve(script) as server, client_of(server, qps=50, burst=1) as client:
        flood = [asyncio.create_task(client.create(resources.PODS, {}, namespace="a")) for _ in range(20)]
        await asyncio.sleep(0)
        await client.update(resources.LEASES, {"metadata": {"name": "n", "namespace": "a"}})
        assert len(server.asked) <= 4
        await asyncio.gather(*flood)


async def test_closed_client() -> None:
    """It refuses at once instead of leaking connections."""
    async with serve(answers(reply())) as server:
        client = client_of(server)
        await client.get(resources.NODES, "n")
        await client.close()
        await client.close()
        with pytest.raises(ConnectionFailed, match="the client is closed"):
            await client.get(resources.NODES, "n")


async def test_reconnects_to_another_server() -> None:
    """Requests to the former server fail, and later ones go to the other server with its credentials."""
    arrived, told = asyncio.Event(), list[str]()

    async def silent(_request: web.Request) -> web.Response:
        arrived.set()
        await asyncio.Event().wait()
        return reply()

    async with serve(silent) as former, serve(answers(reply())) as other, client_of(former) as client:
        client.on_reconnect(lambda: told.append(client.config.server))
        request = asyncio.create_task(client.get(resources.NODES, "n"))
        await arrived.wait()
        credentials = StaticCredentials({"Authorization": "Bearer other"})
        await client.reconnect(ConnectionConfig(other.url, credentials=credentials))
        with pytest.raises(ConnectionFailed):
            await request
        assert await client.get(resources.NODES, "n") == {}
        assert told == [other.url]
    assert [one.headers.get("Authorization") for one in other.asked] == ["Bearer other"]
    assert len(former.asked) == 1


async def test_cancelled_request_leaves_the_client_usable() -> None:
    arrived = asyncio.Event()

    async def script(request: web.Request) -> web.Response:
        if not arrived.is_set():
            arrived.set()
            await asyncio.Event().wait()
        return reply()

    async with serve(script) as server, client_of(server) as client:
        request = asyncio.create_task(client.get(resources.NODES, "n"))
        await arrived.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert await client.get(resources.NODES, "n") == {}


# --- connections --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [False, True], ids=["http", "tls"])
async def test_connections_are_reused(*, tls: bool) -> None:
    """Also after errors."""

    async def script(request: web.Request) -> web.Response:
        return failure(404, "NotFound") if request.method == "DELETE" else reply()

    async with serve(script, tls=tls) as server, client_of(server) as client:
        for _ in range(3):
            await client.get(resources.NODES, "n")
            with pytest.raises(NotFound):
                await client.delete(resources.NODES, "n")
    assert server.connections == 1


async def test_connections_of_a_burst_are_idle_after_it() -> None:
    """They are closed after a while, because requests use the connection that was used last."""
    used: list[object] = []
    all_arrived = asyncio.Barrier(5)

    async def script(request: web.Request) -> web.Response:
        used.append(request.transport)
        if len(used) <= all_arrived.parties:
            await all_arrived.wait()
        return reply()

    async with serve(script) as server, client_of(server) as client:
        await asyncio.gather(*(client.get(resources.NODES, "n") for _ in range(all_arrived.parties)))
        for _ in range(4):
            await client.get(resources.NODES, "n")
    assert len(set(used)) == 5
    assert len(set(used[5:])) == 1


async def test_connections_have_tcp_keep_alive() -> None:
    """So that a lost peer is detected during a silent watch."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    async with (
        serve(script) as server,
        client_of(server) as client,
        client.stream("GET", "/") as response,
    ):
        assert response.connection is not None
        assert response.connection.transport is not None
        made = response.connection.transport.get_extra_info("socket")
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


async def test_compressed_responses_are_read() -> None:
    """Compression is not requested, but a proxy may compress."""
    body = web.Response(body=gzip.compress(b'{"a":1}'), headers={"Content-Encoding": "gzip"})
    async with serve(answers(body)) as server, client_of(server) as client:
        assert await client.get(resources.NODES, "n") == {"a": 1}
    assert server.asked[0].headers["Accept-Encoding"] == "identity"


async def test_paths_and_queries_are_escaped_once() -> None:
    """Lists of parameters keep their order and repetitions."""
    raw: list[str] = []

    async def script(request: web.Request) -> web.Response:
        raw.append(request.raw_path)
        return reply({"items": []})

    async with serve(script) as server, client_of(server) as client:
        await client.request("GET", "/a%2Fb?x=1", params=[("command", "a b"), ("command", "&=?/%+ü")])
        await client.list(resources.PODS, label_selector="a in (b,c),!d")
    assert raw == [
        "/a%2Fb?x=1&command=a%20b&command=%26%3D%3F%2F%25%2B%C3%BC",
        "/api/v1/pods?labelSelector=a%20in%20%28b%2Cc%29%2C%21d&limit=500",
    ]
    assert server.asked[0].query["x"] == "1"


async def test_stream_returns_headers_and_content() -> None:
    """The stream also has the status."""
    async with (
        serve(answers(web.Response(body=b"log", headers={"X-A": "b"}))) as server,
        client_of(server) as client,
        client.stream("GET", "/log", params={"follow": "true"}) as got,
    ):
        assert (got.status, got.headers["X-A"], await got.read()) == (200, "b", b"log")
    (asked,) = server.asked
    assert asked.query == {"follow": "true"}


async def test_error_of_a_streams_caller_passes() -> None:
    """An exception of the caller's own, including a broken connection, is not wrapped."""
    async with serve(answers(reply())) as server, client_of(server) as client:
        with pytest.raises(ConnectionResetError, match="mine"):
            async with client.stream("GET", "/"):
                raise ConnectionResetError("mine")


# --- metrics ------------------------------------------------------------------------------------------


def counted(cluster: str, verb: str, code: str) -> float:
    """Return rest_client_requests_total."""
    labels = {"cluster": cluster, "verb": verb, "code": code}
    return REGISTRY.get_sample_value("rest_client_requests_total", labels) or 0.0


def timed(cluster: str, verb: str) -> float:
    """Return the number of recorded durations."""
    labels = {"cluster": cluster, "verb": verb}
    return REGISTRY.get_sample_value("rest_client_request_duration_seconds_count", labels) or 0.0


async def test_metrics() -> None:
    """Requests are counted by cluster, verb and code, without a response as ``<error>``; durations by verb."""
    script = answers(reply(), failure(404, "x"), reply({"items": []}), web.Response(), web.Response())
    async with serve(script) as server, client_of(server, cluster="metrics") as client:
        await client.get(resources.NODES, "n")
        with pytest.raises(NotFound):
            await client.get(resources.NODES, "n")
        await client.list(resources.NODES)
        assert [event async for event in client.watch(resources.NODES)] == []
    url = f"http://127.0.0.1:{closed_port()}"
    async with Client(ConnectionConfig(url), cluster="metrics") as client:
        with pytest.raises(ConnectionFailed):
            await client.get(resources.NODES, "n")
    found = {key: counted("metrics", *key) for key in [("GET", "200"), ("GET", "404"), ("GET", "<error>")]}
    assert set(found.values()) == {1.0}
    assert (counted("metrics", "LIST", "200"), counted("metrics", "WATCH", "200")) == (1.0, 1.0)
    assert (timed("metrics", "GET"), timed("metrics", "LIST"), timed("metrics", "WATCH")) == (2.0, 1.0, 1.0)


@pytest.mark.looptime
async def test_a_cancelled_request_is_counted() -> None:
    """A ping or a lease with a time limit of its caller is a request without a response."""

    async def hang(_request: web.Request) -> web.Response:
        await asyncio.sleep(5)
        return reply()

    async with serve(hang) as server, client_of(server, cluster="hangs") as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.get(resources.NODES, "n")
    assert counted("hangs", "GET", "<error>") == 1.0
