"""Retries, credentials, connections and metrics, against real servers on loopback."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from controller_runtime import resources
from controller_runtime.client import Client
from controller_runtime.client_tls import TlsMaterial
from controller_runtime.cluster_config import ClusterConfig
from controller_runtime.credentials import Credentials, StaticCredentials
from controller_runtime.errors import (
    ConnectionFailed,
    NotConnected,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from controller_runtime.key_pairs import KeyPair, make_ca, sign
from tests.unit.controller_runtime.loopback import (
    CA,
    Server,
    answers,
    client_context,
    failure,
    intermediate,
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


def client_of(server: Server, *, credentials: Credentials | None = None, **options: Any) -> Client:
    """A client without a rate limit."""
    context = client_context() if server.scheme == "https" else None
    config = ClusterConfig(server.url, ssl_context=context, credentials=credentials)
    return Client(config, **{"qps": 0, **options})


# --- servers that shed load ---------------------------------------------------------------------------


@pytest.mark.parametrize("call", READS + WRITES)
@pytest.mark.parametrize(("code", "reason"), [(429, "TooManyRequests"), (503, "ServiceUnavailable")])
async def test_shed_requests_are_repeated(call: Call, code: int, reason: str) -> None:
    """429, and 503 with Retry-After, are asked again for every verb: the server has not acted."""
    script = answers(failure(code, reason, Retry_After="0"), reply(NODE | {"items": []}))
    async with serve(script) as server, client_of(server) as client:
        await call(client)
    first, second = server.asked
    assert (first.method, first.path, first.body) == (second.method, second.path, second.body)


async def test_retry_after_is_waited_for() -> None:
    """The server's own pause is kept."""
    script = answers(failure(429, "TooManyRequests", Retry_After="1"), reply())
    loop = asyncio.get_running_loop()
    async with serve(script) as server, client_of(server) as client:
        started = loop.time()
        await client.get(resources.NODES, "n")
        assert 1 <= loop.time() - started < 5


async def test_pause_longer_than_the_timeout() -> None:
    """A server that asks for more patience than the time-out has is not waited for."""
    script = answers(failure(429, "TooManyRequests", Retry_After="60"))
    loop = asyncio.get_running_loop()
    async with serve(script) as server, client_of(server, timeout=5) as client:
        started = loop.time()
        with pytest.raises(TooManyRequests) as caught:
            await client.get(resources.NODES, "n")
        assert loop.time() - started < 3
    assert caught.value.retry_after == 60


async def test_shedding_without_end() -> None:
    """A server that sheds for ever is given up within the time-out, with growing pauses until then."""

    async def script(request: web.Request) -> web.Response:
        return failure(429, "TooManyRequests")

    async with serve(script) as server, client_of(server, timeout=1.0) as client:
        with pytest.raises(TooManyRequests):
            await client.get(resources.NODES, "n")
    assert 3 <= len(server.asked) <= 5


@pytest.mark.parametrize("code", [500, 504])
async def test_server_that_asks_for_a_read_again(code: int) -> None:
    """Any 5xx with Retry-After is asked again for reads, as client-go does; a write may have been done."""
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
async def test_answer_that_breaks_off(call: Call) -> None:
    """Half an answer is none, for a read and a write alike, and neither is sent again."""

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
    """429 to an eviction is the disruption budget's answer, and the caller's to act on."""
    async with (
        serve(answers(failure(429, "TooManyRequests", Retry_After="0"))) as server,
        client_of(server) as client,
    ):
        with pytest.raises(TooManyRequests):
            await client.create(resources.PODS, {}, namespace="a", name="b", subresource="eviction")
    assert len(server.asked) == 1


async def test_watch_is_repeated_too() -> None:
    """A watch that the server sheds is asked for again as it says."""
    script = answers(failure(429, "TooManyRequests", Retry_After="0"), web.Response())
    async with serve(script) as server, client_of(server) as client:
        assert [event async for event in client.watch(resources.PODS)] == []
    assert len(server.asked) == 2


# --- broken connections -------------------------------------------------------------------------------


@asynccontextmanager
async def hanging_up(*, after: int) -> AsyncIterator[tuple[ClusterConfig, list[bytes]]]:
    """A server that answers so many requests of each connection, and hangs up when asked once more."""
    heads: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for left in range(after, -1, -1):
                head = await reader.readuntil(b"\r\n\r\n")
                heads.append(head.split(b"\r\n")[0])
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(int(length[0].split(b":")[1]) if length else 0)
                if left:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield ClusterConfig(f"http://127.0.0.1:{port}"), heads
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("call", READS)
async def test_read_on_a_stale_connection_is_repeated(call: Call) -> None:
    """A kept connection that the server closes costs a read nothing but a second try."""
    async with hanging_up(after=1) as (config, heads), Client(config, qps=0) as client:
        await call(client)
        await call(client)
    assert len(heads) == 3


@pytest.mark.parametrize("call", WRITES)
async def test_write_on_a_stale_connection_is_not_repeated(call: Call) -> None:
    """Nobody knows whether a write has been done, PUT and DELETE included: it is sent once."""
    async with hanging_up(after=1) as (config, heads), Client(config, qps=0) as client:
        await call(client)
        with pytest.raises(ConnectionFailed):
            await call(client)
        await call(client)
    assert len(heads) == 3


async def test_read_is_repeated_once_only() -> None:
    """A server that always hangs up is given up."""
    async with hanging_up(after=0) as (config, heads), Client(config, qps=0) as client:
        with pytest.raises(
            ConnectionFailed, match=r"^http://127\.0\.0\.1:\d+: Server disconnected$"
        ) as caught:
            await client.get(resources.NODES, "n")
    assert len(heads) == 2
    assert caught.value.__cause__ is not None
    assert (caught.value.code, caught.value.reason) == (0, "")


async def test_watch_on_a_stale_connection_is_repeated() -> None:
    """A watch that meets a kept connection which the server has closed is asked for once more."""
    async with hanging_up(after=1) as (config, heads), Client(config, qps=0) as client:
        await client.get(resources.NODES, "n")
        async with client.stream("GET", "/watch") as response:
            assert response.status == 200
    assert len(heads) == 3


def closed_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_nobody_there() -> None:
    """A refused connection is a NotConnected that names the server."""
    url = f"http://127.0.0.1:{closed_port()}"
    async with Client(ClusterConfig(url), qps=0) as client:
        with pytest.raises(NotConnected, match=f"^{url}: Cannot connect to host"):
            await client.get(resources.NODES, "n")
        with pytest.raises(NotConnected, match=f"^{url}: Cannot connect to host"):
            async with client.stream("GET", "/"):
                pass


async def test_silent_server() -> None:
    """A server that takes a request and never answers is given up after the time-out, the caller's if it has one."""

    async def script(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with serve(script) as server, client_of(server, timeout=0.2) as client:
        with pytest.raises(ConnectionFailed, match="no answer in time"):
            await client.get(resources.NODES, "n")
        with pytest.raises(ConnectionFailed, match="no answer in time"):
            await client.version(timeout=0.1)
        with pytest.raises(ConnectionFailed, match="no answer in time"):
            async with client.stream("GET", "/", read_timeout=0.1):
                pass


async def test_waiting_for_the_rate_limit_is_no_timeout() -> None:
    """Requests that queue for longer than the time-out are sent all the same."""

    async def script(request: web.Request) -> web.Response:
        return reply()

    async with serve(script) as server, client_of(server, qps=10, burst=1, timeout=0.25) as client:
        await asyncio.gather(*(client.get(resources.NODES, "n") for _ in range(6)))
    assert len(server.asked) == 6


async def test_waiting_for_the_rate_limit_leaves_patience() -> None:
    """A request that has queued for long has its whole time-out left when the server sheds it."""
    script = answers(reply(), failure(429, "TooManyRequests", Retry_After="0"), reply())
    async with serve(script) as server, client_of(server, qps=2, burst=1, timeout=0.3) as client:
        await client.get(resources.NODES, "n")
        await client.get(resources.NODES, "n")
    assert len(server.asked) == 3


async def test_resources_take_turns() -> None:
    """A flood of pods to create does not hold up a lease."""

    async def script(request: web.Request) -> web.Response:
        return reply()

    async with serve(script) as server, client_of(server, qps=50, burst=1) as client:
        flood = [asyncio.create_task(client.create(resources.PODS, {}, namespace="a")) for _ in range(20)]
        await asyncio.sleep(0)
        await client.update(resources.LEASES, {"metadata": {"name": "n", "namespace": "a"}})
        assert len(server.asked) <= 4
        await asyncio.gather(*flood)


async def test_closed_client() -> None:
    """A closed client refuses at once instead of opening connections that nobody closes."""
    async with serve(answers(reply())) as server:
        client = client_of(server)
        await client.get(resources.NODES, "n")
        await client.close()
        await client.close()
        with pytest.raises(ConnectionFailed, match="the client is closed"):
            await client.get(resources.NODES, "n")


async def test_cancelled_request() -> None:
    """A cancelled request leaves the client usable."""
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
    """Accepts every token but the first."""
    return failure(401, "Unauthorized") if request.headers["Authorization"] == "Bearer 0" else reply()


@pytest.mark.parametrize("call", [*READS, *WRITES])
async def test_credentials_are_renewed_after_a_401(call: Call) -> None:
    """A 401 renews the credentials once and sends the request again."""
    credentials = Renewable()
    async with serve(good_from_one) as server, client_of(server, credentials=credentials) as client:
        await call(client)
    assert [asked.headers["Authorization"] for asked in server.asked] == ["Bearer 0", "Bearer 1"]
    assert credentials.renewals == 1


async def test_watch_renews_credentials() -> None:
    """A watch renews them just so."""
    credentials = Renewable()
    async with (
        serve(good_from_one) as server,
        client_of(server, credentials=credentials) as client,
        client.stream("GET", "/") as response,
    ):
        assert response.status == 200
    assert credentials.renewals == 1


async def test_many_401s_renew_once() -> None:
    """Requests that were under way together use what the first of them has renewed."""
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
    """Renewed credentials that are refused, too, are an error."""
    credentials = StaticCredentials({"Authorization": "Bearer x"})
    script = answers(failure(401, "Unauthorized"), failure(401, "Unauthorized"))
    async with serve(script) as server, client_of(server, credentials=credentials) as client:
        with pytest.raises(Unauthorized):
            await client.get(resources.NODES, "n")
    assert len(server.asked) == 2


# --- TLS ----------------------------------------------------------------------------------------------


async def test_unknown_authority() -> None:
    """A server that we have no reason to trust is a failed connection that says so."""
    async with serve(answers(), tls=True) as server:
        config = ClusterConfig(
            server.url, tls=TlsMaterial(source="s", authority=make_ca("other").certificate)
        )
        async with Client(config, qps=0) as client:
            with pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY_FAILED") as caught:
                await client.get(resources.NODES, "n")
    assert not isinstance(caught.value, NotConnected)  # somebody is there, and had work with us
    assert server.asked == []


async def test_intermediate_authority_is_trusted_without_its_root() -> None:
    """A certificate-authority that another CA vouches for is enough, as for kubectl."""
    authority = intermediate(make_ca("root"), "between")
    pair = sign(authority, "server", hosts=["127.0.0.1"])
    async with serve(answers(reply(NODE)), tls=True, pair=pair) as server:
        config = ClusterConfig(server.url, tls=TlsMaterial(source="s", authority=authority.certificate))
        async with Client(config, qps=0) as client:
            assert await client.get(resources.NODES, "n") == NODE


async def test_https_without_a_context_is_verified() -> None:
    """No TLS context of our own means the system's trust, never none."""
    async with serve(answers(), tls=True) as server, Client(ClusterConfig(server.url), qps=0) as client:
        with pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await client.get(resources.NODES, "n")


async def test_server_name_of_its_own() -> None:
    """``tls-server-name`` is what the certificate is verified against."""
    async with serve(answers(reply()), tls=True) as server:
        good = ClusterConfig(server.url, ssl_context=client_context(), tls_server_name="inside.example")
        async with Client(good, qps=0) as client:
            assert await client.get(resources.NODES, "n") == {}
        bad = ClusterConfig(server.url, ssl_context=client_context(), tls_server_name="other.example")
        async with Client(bad, qps=0) as client:
            with pytest.raises(ConnectionFailed, match=r"other\.example"):
                await client.get(resources.NODES, "n")


class Rotating(Credentials):
    """A client certificate that a plugin renews."""

    def __init__(self, pair: KeyPair) -> None:
        self.certificate = pair


async def test_new_client_certificate_makes_new_connections() -> None:
    """After a rotation requests go by connections under the new name, while a watch ends in its own time."""
    clients = make_ca("clients")
    watching, done = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    async def script(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        subject = request.transport.get_extra_info("peercert")["subject"]
        seen.append(dict(part[0] for part in subject)["commonName"])
        if request.path == "/watch":
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"one")
            watching.set()
            await done.wait()
            await response.write(b"two")
            return response
        return reply()

    credentials = Rotating(sign(clients, "old", usage="client"))
    async with serve(script, tls=True, clients=clients.certificate) as server:
        config = ClusterConfig(
            server.url, tls=TlsMaterial(source="s", authority=CA.certificate), credentials=credentials
        )
        async with Client(config, qps=0) as client:
            await client.get(resources.NODES, "n")

            async def watch() -> bytes:
                async with client.stream("GET", "/watch") as response:
                    return await response.read()

            watch_task = asyncio.create_task(watch())
            await watching.wait()
            credentials.certificate = sign(clients, "new", usage="client")
            await client.get(resources.NODES, "n")
            await client.get(resources.NODES, "n")
            done.set()
            assert await watch_task == b"onetwo"
            assert len(client._transport._pools) == 2
            assert client._transport._pools[0].closed
    assert seen == ["old", "old", "new", "new"]
    assert server.connections >= 2


# --- connections --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [False, True], ids=["http", "tls"])
async def test_connections_are_kept(*, tls: bool) -> None:
    """One request after the other goes by the same connection, errors included."""

    async def script(request: web.Request) -> web.Response:
        return failure(404, "NotFound") if request.method == "DELETE" else reply()

    async with serve(script, tls=tls) as server, client_of(server) as client:
        for _ in range(3):
            await client.get(resources.NODES, "n")
            with pytest.raises(NotFound):
                await client.delete(resources.NODES, "n")
    assert server.connections == 1


async def test_kernel_probes_silent_connections() -> None:
    """Connections have TCP keep-alive, so that a peer that is gone is noticed during a silent watch."""

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


async def test_compressed_answers_are_read() -> None:
    """We do not ask for compression; something in between that compresses all the same is understood."""
    body = web.Response(body=gzip.compress(b'{"a":1}'), headers={"Content-Encoding": "gzip"})
    async with serve(answers(body)) as server, client_of(server) as client:
        assert await client.get(resources.NODES, "n") == {"a": 1}
    assert server.asked[0].headers["Accept-Encoding"] == "identity"


async def test_proxy() -> None:
    """Requests to a plain server go to its proxy, with the whole URL."""
    async with serve(answers(reply({"by": "proxy"}))) as proxy:
        config = ClusterConfig("http://api.example:8080/prefix", proxy_url=proxy.url)
        async with Client(config, qps=0) as client:
            assert await client.get(resources.NODES, "n") == {"by": "proxy"}
    assert proxy.asked[0].headers["Host"] == "api.example:8080"
    assert proxy.asked[0].path == "/prefix/api/v1/nodes/n"


async def test_tunnel_through_a_proxy() -> None:
    """An https server is reached by CONNECT with the proxy's credentials, verified by its own name, and kept."""
    heads: list[str] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while chunk := await source.read(2**16):
                target.write(chunk)
            target.close()

        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer), return_exceptions=True)

    async with serve(answers(reply(), reply()), tls=True) as server:
        proxy = await asyncio.start_server(tunnel, "127.0.0.1", 0)
        config = ClusterConfig(
            server.url,
            ssl_context=client_context(),
            proxy_url=f"http://me:p%40ss@127.0.0.1:{proxy.sockets[0].getsockname()[1]}",
            tls_server_name="inside.example",
        )
        async with proxy, Client(config, qps=0) as client:
            await client.get(resources.NODES, "n")
            await client.get(resources.NODES, "n")
    assert len(heads) == 1
    assert heads[0].startswith(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic bWU6cEBzcw==\r\n" in heads[0]


async def test_proxy_that_refuses_is_named_without_its_password() -> None:
    """A proxy's 407 is told with its address; a log is no place for its password."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        config = ClusterConfig(
            "https://api.example",
            ssl_context=client_context(),
            proxy_url=f"http://me:secret@127.0.0.1:{port}",
        )
        async with Client(config, qps=0) as client:
            with pytest.raises(ConnectionFailed) as caught:
                await client.get(resources.NODES, "n")
    assert str(caught.value) == (
        f"https://api.example: the proxy http://127.0.0.1:{port} answered 407 Proxy Authentication Required"
    )


async def test_paths_and_queries_arrive_as_meant() -> None:
    """Characters with a meaning in URLs are escaped once, lists of parameters keep their order and repetitions."""
    raw: list[str] = []

    async def script(request: web.Request) -> web.Response:
        raw.append(request.raw_path)
        return reply()

    async with serve(script) as server, client_of(server) as client:
        await client.request("GET", "/a%2Fb?x=1", params=[("command", "a b"), ("command", "&=?/%+ü")])
        await client.list(resources.PODS, label_selector="a in (b,c),!d")
    assert raw == [
        "/a%2Fb?x=1&command=a%20b&command=%26%3D%3F%2F%25%2B%C3%BC",
        "/api/v1/pods?labelSelector=a%20in%20%28b%2Cc%29%2C%21d&limit=500",
    ]
    assert server.asked[0].query["x"] == "1"


async def test_stream_hands_over_headers_and_content() -> None:
    """A stream's caller sees status, headers and content; further headers are sent."""
    async with (
        serve(answers(web.Response(body=b"log", headers={"X-A": "b"}))) as server,
        client_of(server) as client,
        client.stream("GET", "/log", params={"follow": "true"}, headers={"X-B": "c"}) as got,
    ):
        assert (got.status, got.headers["X-A"], await got.read()) == (200, "b", b"log")
    (asked,) = server.asked
    assert (asked.query, asked.headers["X-B"]) == ({"follow": "true"}, "c")


async def test_error_of_a_streams_caller_passes() -> None:
    """An exception of the caller's own, a broken connection of its own included, is not ours to rename."""
    async with serve(answers(reply())) as server, client_of(server) as client:
        with pytest.raises(ConnectionResetError, match="mine"):
            async with client.stream("GET", "/"):
                raise ConnectionResetError("mine")


# --- metrics ------------------------------------------------------------------------------------------


def counted(cluster: str, verb: str, code: str) -> float:
    """rest_client_requests_total."""
    labels = {"cluster": cluster, "verb": verb, "code": code}
    return REGISTRY.get_sample_value("rest_client_requests_total", labels) or 0.0


def timed(cluster: str, verb: str) -> float:
    """How many durations were noted."""
    labels = {"cluster": cluster, "verb": verb}
    return REGISTRY.get_sample_value("rest_client_request_duration_seconds_count", labels) or 0.0


async def test_metrics() -> None:
    """Requests are counted by cluster, verb and code, those without an answer as ``<error>``; durations by verb."""
    script = answers(reply(), failure(404, "x"), reply({"items": []}), web.Response(), web.Response())
    async with serve(script) as server, client_of(server, cluster="metrics") as client:
        await client.get(resources.NODES, "n")
        with pytest.raises(NotFound):
            await client.get(resources.NODES, "n")
        await client.list(resources.NODES)
        assert [event async for event in client.watch(resources.NODES)] == []
    url = f"http://127.0.0.1:{closed_port()}"
    async with Client(ClusterConfig(url), cluster="metrics") as client:
        with pytest.raises(ConnectionFailed):
            await client.get(resources.NODES, "n")
    found = {key: counted("metrics", *key) for key in [("GET", "200"), ("GET", "404"), ("GET", "<error>")]}
    assert set(found.values()) == {1.0}
    assert (counted("metrics", "LIST", "200"), counted("metrics", "WATCH", "200")) == (1.0, 1.0)
    assert (timed("metrics", "GET"), timed("metrics", "LIST"), timed("metrics", "WATCH")) == (2.0, 1.0, 1.0)


async def test_a_request_that_its_caller_gives_up_is_counted() -> None:
    """A ping or a lease that waits for a server which hangs is a request without an answer."""

    async def hang(_request: web.Request) -> web.Response:
        await asyncio.sleep(5)
        return reply()

    async with serve(hang) as server, client_of(server, cluster="hangs") as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.get(resources.NODES, "n")
    assert counted("hangs", "GET", "<error>") == 1.0
