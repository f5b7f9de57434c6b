"""The client of short commands behaves as ``Client``: each case runs with both."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from controller_runtime import resources
from controller_runtime.auth.credentials import Credentials, StaticCredentials, bearer
from controller_runtime.auth.kubeconfig import ConnectionConfig, Impersonating
from controller_runtime.client.brief import BriefClient
from controller_runtime.client.client import Client
from controller_runtime.client.verbs import Verbs
from controller_runtime.errors import (
    ApiError,
    ConnectionFailed,
    Forbidden,
    NotConnected,
    NotFound,
    ResponseTooLarge,
    Unauthorized,
    Unavailable,
)
from controller_runtime.tls.key_pairs import make_ca, sign
from controller_runtime.tls.pem import TlsMaterial
from tests.serving import client_context
from tests.unit.controller_runtime.loopback import (
    CA,
    Script,
    Server,
    answers,
    failure,
    reply,
    send_chunks,
    serve,
    silence,
)

KINDS = (BriefClient, Client)
pytestmark = pytest.mark.parametrize("kind", KINDS)
Kind = type[BriefClient] | type[Client]


def _config(server: Server, **options: Any) -> ConnectionConfig:
    context = client_context(CA) if server.scheme == "https" else None
    return ConnectionConfig(server.url, **{"ssl_context": context, **options})


@asynccontextmanager
async def _talking(
    kind: Kind,
    script: Script,
    *,
    tls: bool = False,
    timeout: float = 5.0,  # noqa: ASYNC109
    **options: Any,
) -> AsyncIterator[tuple[Verbs, Server]]:
    async with serve(script, tls=tls) as server:
        config = _config(server, **options)
        async with kind(config, user_agent="tests/1", timeout=timeout) as client:
            yield client, server


async def test_wait_for_a_connection_does_not_count_as_time_of_the_request(kind: Kind):
    """A viewer of hundreds of virtual nodes lists the pods of each, and a far server answers a few at a time."""

    async def script(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.1)
        return reply({"metadata": {"name": "a"}})

    async with _talking(kind, script, timeout=0.4) as (client, _server):
        nodes = await asyncio.gather(*(client.get(resources.NODES, "a") for _ in range(24)))
    assert len(nodes) == 24


async def test_a_slow_network_delivers_a_list_in_smaller_pages(kind: Kind):
    """500 objects take longer than a request may."""
    asked: list[int] = []

    async def script(request: web.Request) -> web.StreamResponse:
        begin, size = int(request.query.get("continue", 0)), int(request.query["limit"])
        asked.append(size)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        end = min(600, begin + size)
        token = str(end) if end < 600 else ""
        await response.write(
            b'{"metadata":{"resourceVersion":"1","continue":"%s"},"items":[' % token.encode()
        )
        for number in range(begin, end, 20):
            names = range(number, min(end, number + 20))
            items = b",".join(b'{"metadata":{"name":"n%d"}}' % name for name in names)
            await response.write((b"," if number > begin else b"") + items)
            await asyncio.sleep(0.03)
        await response.write(b"]}")
        return response

    async with _talking(kind, script, timeout=0.5) as (client, _server):
        listed = await client.list(resources.NODES)
    assert [node.name for node in listed.items] == [f"n{number}" for number in range(600)]
    assert asked == [500] + [100] * 6


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_requests_share_a_kept_connection(kind: Kind, scheme: str):
    """A handshake takes longer than a small request."""

    async def script(_request: web.Request) -> web.StreamResponse:
        return reply({"metadata": {"name": "a"}})

    async with _talking(kind, script, tls=scheme == "https") as (client, server):
        for _ in range(3):
            assert (await client.get(resources.NODES, "a"))["metadata"]["name"] == "a"
        assert server.connections == 1
        headers = server.asked[0].headers
        assert (headers["User-Agent"], headers["Accept"]) == ("tests/1", "application/json")
        assert headers["Host"] == server.url.partition("://")[2]


async def test_lists_all_pages_of_a_chunked_response(kind: Kind):
    """API servers send long lists in chunks without a length."""
    pages = [
        b'{"metadata":{"continue":"x"},"items":[{"metadata":{"name":"a"}}]}',
        b'{"metadata":{},"items":[{"metadata":{"name":"b"}}]}',
    ]

    async def script(request: web.Request) -> web.StreamResponse:
        page = pages["continue" in request.query]
        return await send_chunks(request, [page[:7], page[7:8], page[8:]])

    async with _talking(kind, script) as (client, server):
        listed = await client.list(resources.NODES)
        assert [one.name for one in listed.items] == ["a", "b"]
        assert server.connections == 1


async def test_a_chunk_larger_than_the_buffers_arrives_complete(kind: Kind):
    """A page of pods has megabytes."""
    text = b'"' + b"x" * 3_000_000 + b'"'

    async def script(request: web.Request) -> web.StreamResponse:
        return await send_chunks(request, [b'{"a":', text, b"}"])

    async with _talking(kind, script, tls=True) as (client, _):
        assert await client.request("GET", "/x") == b'{"a":' + text + b"}"


@pytest.mark.parametrize(
    ("code", "error"), [(403, Forbidden), (404, NotFound), (500, Unavailable), (503, Unavailable)]
)
async def test_errors_are_those_of_the_status(kind: Kind, code: int, error: type[ApiError]):
    """With the server's message."""
    async with _talking(kind, answers(failure(code, "X", "the cause"))) as (client, _):
        with pytest.raises(error, match="the cause"):
            await client.read("/x")


async def test_a_shed_request_is_sent_again(kind: Kind):
    """429 and 503 with Retry-After."""
    script = answers(
        failure(429, "TooManyRequests", Retry_After="0"), failure(503, "X", Retry_After="0"), reply({})
    )
    async with _talking(kind, script) as (client, server):
        assert await client.read("/x") == {}
        assert len(server.asked) == 3


async def test_refused_credentials_are_renewed_once(kind: Kind):
    """As after the rotation of a token."""

    class Rotating(Credentials):
        async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
            return bearer("new" if refresh else "old")

    replies = answers(
        failure(401, "Unauthorized"), reply({}), failure(401, "Unauthorized"), failure(401, "X")
    )
    async with _talking(kind, replies, credentials=Rotating()) as (client, server):
        assert await client.read("/x") == {}
        assert [one.headers["Authorization"] for one in server.asked] == ["Bearer old", "Bearer new"]
        with pytest.raises(Unauthorized):
            await client.read("/x")


async def test_impersonation_headers_may_repeat(kind: Kind):
    """A user may have several groups."""
    from multidict import CIMultiDict  # noqa: PLC0415

    groups = CIMultiDict([("Impersonate-User", "u"), ("Impersonate-Group", "a"), ("Impersonate-Group", "b")])
    seen: list[list[str]] = []

    async def script(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers.getall("Impersonate-Group"))
        return reply({})

    credentials = Impersonating(StaticCredentials(bearer("t")), groups)
    async with _talking(kind, script, credentials=credentials) as (client, _):
        await client.read("/x")
    assert seen == [["a", "b"]]


async def test_writes_have_body_and_field_manager(kind: Kind):
    """SelfSubjectAccessReviews are POSTed."""
    async with _talking(kind, answers(reply({"status": {"allowed": True}}, status=201))) as (client, server):
        await client.create(resources.SELF_SUBJECT_ACCESS_REVIEWS, {"spec": {}})
    asked = server.asked[0]
    assert (asked.method, asked.query) == ("POST", {"fieldManager": "tests"})
    assert asked.json["kind"] == "SelfSubjectAccessReview"
    assert asked.headers["Content-Type"] == "application/json"


async def test_headers_of_a_response_are_found_in_any_capitalization(kind: Kind):
    """The server's time is in its Date."""
    async with (
        _talking(kind, answers(reply({}, X_Word="a"))) as (client, _),
        client.stream("GET", "/version", head_timeout=5) as response,
    ):
        assert response.headers.get("x-word") == "a"


async def test_silence_is_an_error_in_time(kind: Kind):
    """The text is that of both clients, because it is explained to the user."""
    async with _talking(kind, silence, timeout=0.2) as (client, _):
        with pytest.raises(ConnectionFailed, match="no answer in time"):
            await client.read("/x")


async def test_a_read_is_repeated_once_if_its_connection_breaks(kind: Kind):
    """A kept connection may be closed by the server at any time."""
    broken = 0

    async def script(request: web.Request) -> web.StreamResponse:
        nonlocal broken
        if broken < 1:
            broken += 1
            assert request.transport is not None
            request.transport.abort()
        return reply({})

    async with _talking(kind, script) as (client, server):
        assert await client.read("/x") == {}
        assert len(server.asked) == 2
        broken = -1
        with pytest.raises(ConnectionFailed):
            await client.read("/x")


async def test_an_unused_port_refuses(kind: Kind):
    """The cause is the kernel's."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        config = ConnectionConfig(f"http://127.0.0.1:{unused.getsockname()[1]}")
        async with kind(config, user_agent="tests") as client:
            with pytest.raises(NotConnected, match="cannot connect: connection refused"):
                await client.read("/x")


async def test_an_untrusted_certificate_is_named(kind: Kind):
    """The reason after ``certificate verify failed`` is shown to the user."""
    context = client_context(make_ca("another"))
    async with _talking(kind, silence, tls=True, ssl_context=context) as (client, _):
        with pytest.raises(NotConnected, match=r"certificate verify failed: .*\(_ssl"):
            await client.read("/x")


async def test_the_certificate_is_verified_for_another_name(kind: Kind):
    """tls-server-name."""
    for name, works in (("inside.example", True), ("outside.example", False)):
        async with _talking(kind, answers(reply({})), tls=True, tls_server_name=name) as (client, _):
            if works:
                assert await client.read("/x") == {}
            else:
                with pytest.raises(ConnectionFailed, match="certificate verify failed"):
                    await client.read("/x")


async def test_a_client_certificate_is_presented(kind: Kind):
    """The user of most administrators' kubeconfigs."""
    user = sign(CA, "admin", usage="client")
    tls = TlsMaterial("test", authority=CA.certificate, certificate=user.certificate, key=user.key)
    seen: list[Any] = []

    async def script(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        seen.append(request.transport.get_extra_info("peercert"))
        return reply({})

    async with (
        serve(script, tls=True, clients=CA.certificate) as server,
        kind(ConnectionConfig(server.url, tls=tls), user_agent="tests") as client,
    ):
        await client.read("/x")
    assert "admin" in str(seen[0])


async def test_a_path_prefix_comes_first(kind: Kind):
    """As with servers of Rancher."""
    async with (
        serve(answers(reply({}))) as server,
        kind(ConnectionConfig(f"{server.url}/k8s/c-1"), user_agent="tests") as client,
    ):
        await client.read("/x?a=b", params={"c": "d e"})
    assert (server.asked[0].path, server.asked[0].query) == ("/k8s/c-1/x", {"a": "b", "c": "d e"})


async def test_a_body_over_the_limit_is_refused(kind: Kind):
    """A program that answers in the place of an API server cannot fill the memory."""

    async def script(request: web.Request) -> web.StreamResponse:
        return await send_chunks(request, [b" " * 1_000_000] * 11)

    async with _talking(kind, script) as (client, _):
        with pytest.raises(ResponseTooLarge):
            await client.read("/x")


async def test_requests_at_once_all_get_their_own_response(kind: Kind):
    """More requests than connections."""

    async def script(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.01)
        return reply({"path": request.path})

    async with _talking(kind, script) as (client, server):
        found = await asyncio.gather(*(client.read(f"/{number}") for number in range(20)))
        assert [one["path"] for one in found] == [f"/{number}" for number in range(20)]
        if kind is BriefClient:
            assert server.connections <= 4


_MALFORMED: Mapping[str, bytes] = {
    "another protocol": b"SSH-2.0-OpenSSH_9.7\r\n\r\n",
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"X-More: and more\r\n" * 20_000,
    "a line without end": b"HTTP/1.1 200 OK" + b"K" * 300_000,
    "a chunk of negative size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
    "a body that ends early": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
    "a chunked body that ends early": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a switch to another protocol": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("answer", _MALFORMED.values(), ids=_MALFORMED.keys())
async def test_a_malformed_response_is_a_failed_connection(kind: Kind, answer: bytes):
    """It must not end the command with a traceback, nor occupy memory without end."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with kind(ConnectionConfig(url), user_agent="tests", timeout=5.0) as client:
            with pytest.raises(ConnectionFailed):
                await client.read("/x")
