"""Requests, watches and raw connections through the proxy of a kubeconfig."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from controller_runtime import resources
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.auth.proxies import PORTS
from controller_runtime.client import dialing
from controller_runtime.client.brief import BriefClient
from controller_runtime.client.client import Client
from controller_runtime.errors import NotConnected, ProxyError
from controller_runtime.tls.key_pairs import make_ca, sign
from tests.proxies import Proxy, proxy
from tests.serving import client_context, server_context
from tests.unit.controller_runtime.loopback import CA, answers, reply, serve

KINDS = (BriefClient, Client)
Kind = type[BriefClient] | type[Client]
SCHEMES = ("http", "https", "socks5")
CLIENTS = make_ca("clients")
PROXY_CA = make_ca("proxy-ca")


def trusting() -> ssl.SSLContext:
    """Return the TLS of a kubeconfig that trusts server and proxy, and has a client certificate."""
    context = client_context(CA, sign(CLIENTS, "virtual-node", usage="client"))
    context.load_verify_locations(cadata=PROXY_CA.certificate.decode())
    return context


@contextlib.asynccontextmanager
async def running(scheme: str) -> AsyncIterator[Proxy]:
    """Run a proxy; an https one requires client certificates."""
    pair = sign(PROXY_CA, "proxy", hosts=["127.0.0.1"])
    tls = server_context(pair, clients=CLIENTS.certificate) if scheme == "https" else None
    async with proxy(scheme, tls=tls) as started:
        yield started


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_requests_and_watches_go_through_the_proxy(scheme: str) -> None:
    """One tunnel is reused, the server is verified by its own name, and the proxy gets only its own login."""
    more = asyncio.Event()

    async def script(request: web.Request) -> web.StreamResponse:
        if request.path != "/watch":
            return reply()
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one")
        await more.wait()
        await response.write(b"two")
        return response

    async with serve(script, tls=True) as server, running(scheme) as through:
        config = ConnectionConfig(
            server.url,
            ssl_context=trusting(),
            proxy_url=through.url_with_login(),
            tls_server_name="inside.example",
        )
        async with Client(config, qps=0) as client:
            await client.get(resources.NODES, "n")
            await client.get(resources.NODES, "n")
            async with client.stream("GET", "/watch") as response:
                assert await response.content.readany() == b"one"
                more.set()
                assert await response.read() == b"two"
    assert len(through.asked) == 1
    assert f"127.0.0.1:{server.port}" in through.asked[0]
    assert through.names == (["virtual-node"] if scheme == "https" else [])
    if scheme != "socks5":
        assert "Proxy-Authorization: Basic bWU6cEBzcw==\r\n" in through.asked[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_a_tunnel_that_ends_during_a_request_is_an_error(scheme: str, kind: Kind) -> None:
    """And the next request opens another."""
    async with serve(answers(reply(), reply()), tls=True) as server:
        async with running(scheme) as through:
            url = through.url
            config = ConnectionConfig(server.url, ssl_context=trusting(), proxy_url=url)
            async with kind(config, user_agent="tests/1") as client:
                await client.get(resources.NODES, "n")
        config = ConnectionConfig(server.url, ssl_context=trusting(), proxy_url=url)
        async with kind(config, user_agent="tests/1") as client:
            with pytest.raises(NotConnected) as caught:
                await client.get(resources.NODES, "n")
    assert str(caught.value) == f"{server.url}: the proxy {url}: cannot connect: connection refused"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("scheme", "refusal", "code", "text"),
    [
        (
            "http",
            b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
            0,
            "answered 407 Proxy Authentication Required",
        ),
        (
            "https",
            b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/plain\r\n\r\ncurrently no tunnels\navailable",
            0,
            "answered 500 Internal Server Error: currently no tunnels available",
        ),
        ("http", b"SSH-2.0-OpenSSH\r\n\r\n", 0, ": not an HTTP status line: 'SSH-2.0-OpenSSH'"),
        ("http", b"\x15", 0, ": cannot connect: the connection was closed before an answer came"),
        ("socks5", b"", 2, "answered 2 (not allowed by its rules)"),
        ("socks5", b"", 5, "answered 5 (connection refused)"),
        ("socks5", b"", 77, "answered 77 (unknown code)"),
    ],
)
async def test_a_refusal_names_the_proxy_without_its_password(
    scheme: str, refusal: bytes, code: int, text: str, kind: Kind
) -> None:
    """With the reason that the proxy gave; logs must not contain passwords."""
    async with running(scheme) as through:
        through.refusal, through.code = refusal, code
        config = ConnectionConfig(
            "https://api.example", ssl_context=trusting(), proxy_url=through.url_with_login()
        )
        async with kind(config, user_agent="tests/1") as client:
            with pytest.raises(NotConnected) as caught:
                await client.get(resources.NODES, "n")
    space = "" if text.startswith(":") else " "
    assert str(caught.value) == f"https://api.example: the proxy {through.url}{space}{text}"
    assert "p%40ss" not in str(caught.value)


async def test_a_socks5_proxy_resolves_the_servers_name() -> None:
    """Names of a private network are often known only there."""
    async with running("socks5") as through:
        through.code = 4
        config = ConnectionConfig("http://api.inside.example:6443", proxy_url=through.url)
        with pytest.raises(ProxyError, match="host unreachable"):
            await dialing.connect(config)
    assert through.asked == ["api.inside.example:6443"]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (b"HT", "does not speak SOCKS5"),
        (b"\x05\xff", "answered that it needs a user and password"),
        (b"\x05", "closed before an answer came"),
        (b"\x05\x00" + b"\x04" * 10, "does not speak SOCKS5"),
        (b"\x05\x00" + b"\x05\x00\x00\x09" + b"\x00" * 10, "does not speak SOCKS5"),
    ],
)
async def test_what_is_no_socks5_proxy_is_an_error(script: bytes, text: str) -> None:
    """At once, not after a time limit."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in filter(None, (script[:2], script[2:])):
            await reader.read(100)
            writer.write(part)
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
        url = f"socks5://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(ProxyError, match=text):
            await dialing.connect(ConnectionConfig("http://127.0.0.1:1", proxy_url=url))


async def test_a_wrong_password_of_a_socks5_proxy_is_an_error() -> None:
    """It is named as such."""
    async with running("socks5") as through:
        url = through.url.replace("://", "://me:wrong@")
        with pytest.raises(ProxyError, match="does not accept the user and password"):
            await dialing.connect(ConnectionConfig("http://127.0.0.1:1", proxy_url=url))


async def test_an_https_proxy_of_another_ca_is_refused() -> None:
    """The proxy is verified as the server is, so that no one else learns which server we want."""
    async with running("https") as through:
        config = ConnectionConfig(
            "https://api.example", ssl_context=client_context(CA), proxy_url=through.url
        )
        with pytest.raises(ProxyError, match="certificate verify failed"):
            await dialing.connect(config)


def test_default_ports_are_those_of_go() -> None:
    """Their table is in net/http's transport.go."""
    assert PORTS == {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
