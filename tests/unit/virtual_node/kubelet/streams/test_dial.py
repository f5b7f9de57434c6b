"""The connection to a lower apiserver: proxies, server names and time limits."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings

import pytest

from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.dialing import RequestHead
from tests.proxies import proxy
from tests.unit.virtual_node.kubelet.conftest import Pki
from tests.unit.virtual_node.kubelet.lower import Exchange, LowerServer, Token, rest_of
from virtual_node.kubelet.streams.dial import DialError, dial, read_error_body

REQUEST = RequestHead("POST", "/api/v1/x?command=a", (("Upgrade", "SPDY/3.1"),))


async def switch(exchange: Exchange) -> None:
    """Answer 101 and wait for the end."""
    await exchange.switch(behind=b"behind")
    await rest_of(exchange.reader)


async def test_a_server_name_of_its_own(pki: Pki) -> None:
    """The certificate is verified against ``tls-server-name`` where the kubeconfig has one."""
    async with LowerServer(switch, tls=pki.server_context()) as lower:
        url = f"https://127.0.0.1:{lower.port}"
        good = ConnectionConfig(url, ssl_context=pki.client_context(), tls_server_name="lower.example")
        answer = await dial(good, REQUEST, answer_timeout=5)
        assert (answer.head.status, answer.rest) == (101, b"behind")
        answer.connection.transport.abort()
        bad = ConnectionConfig(url, ssl_context=pki.client_context(), tls_server_name="other.example")
        with pytest.raises(DialError, match=r"other\.example"):
            await dial(bad, REQUEST, answer_timeout=5)


@pytest.mark.parametrize("secure", ["tcp", "tls"])
@pytest.mark.parametrize("words", [b"", b"HTTP/1.0 400 Bad"])
async def test_a_server_that_hangs_up_at_once_is_an_error_at_once(
    pki: Pki, secure: str, words: bytes
) -> None:
    """As load balancers without a backend do: no wait for the time limit."""

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(words)
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = ConnectionConfig(
        f"{'https' if secure == 'tls' else 'http'}://127.0.0.1:{port}",
        ssl_context=pki.client_context() if secure == "tls" else None,
    )
    async with asyncio.timeout(50):
        for _ in range(10):
            with pytest.raises(DialError):
                await dial(config, REQUEST, answer_timeout=60)
    server.close()


@pytest.mark.parametrize("secure", ["tcp", "tls"])
async def test_a_cancelled_dial_leaves_no_socket(pki: Pki, secure: str) -> None:
    """At any point."""
    context = pki.server_context() if secure == "tls" else None
    async with LowerServer(switch, tls=context) as lower:
        config = ConnectionConfig(
            f"{'https' if secure == 'tls' else 'http'}://127.0.0.1:{lower.port}",
            ssl_context=pki.client_context() if secure == "tls" else None,
        )
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", ResourceWarning)
            for turns in range(30):
                dialing = asyncio.create_task(dial(config, REQUEST, answer_timeout=5))
                for _ in range(turns):
                    await asyncio.sleep(0)
                dialing.cancel()
                for answer in await asyncio.gather(dialing, return_exceptions=True):
                    if not isinstance(answer, BaseException):
                        answer.connection.transport.abort()
            await asyncio.sleep(0.1)
            del answer, dialing
            gc.collect()
    assert [str(one.message) for one in said if "socket" in str(one.message)] == []


@pytest.mark.parametrize("secure", ["tcp", "tls"])
@pytest.mark.parametrize("scheme", ["http", "https", "socks5"])
async def test_a_proxy_opens_a_tunnel(pki: Pki, scheme: str, secure: str) -> None:
    """With the proxy's own credentials; the lower cluster's go through the tunnel only."""
    context = pki.server_context() if secure == "tls" else None
    tls = pki.server_context() if scheme == "https" else None
    async with LowerServer(switch, tls=context) as lower, proxy(scheme, tls=tls) as through:
        config = ConnectionConfig(
            f"{'https' if secure == 'tls' else 'http'}://127.0.0.1:{lower.port}",
            ssl_context=pki.client_context() if secure == "tls" else None,
            credentials=Token(),
            proxy_url=through.url_with_login(),
        )
        if (secure, scheme) == ("tcp", "https"):
            # The proxy of a plain server is verified with the CAs of this machine.
            with pytest.raises(DialError, match="certificate verify failed"):
                await dial(config, REQUEST, answer_timeout=5)
            return
        answer = await dial(config, REQUEST, answer_timeout=5)
        assert (answer.head.status, answer.rest) == (101, b"behind")
        assert f"127.0.0.1:{lower.port}" in through.asked[0]
        assert "lower-0" not in through.asked[0]
        exchange = await lower.exchange()
        assert exchange.header("Authorization") == ["Bearer lower-0"]
        assert exchange.header("Proxy-Authorization") == []
        answer.connection.transport.abort()


async def test_a_proxy_that_refuses_is_named() -> None:
    """Its response is quoted in one line."""
    async with proxy("http") as through:
        through.refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n"
        config = ConnectionConfig("http://127.0.0.1:1", proxy_url=through.url)
        with pytest.raises(
            DialError, match=r"the proxy http://.* answered 407 Proxy Authentication Required"
        ):
            await dial(config, REQUEST, answer_timeout=5)


async def test_a_silent_server_is_an_error() -> None:
    """After the limit, and its connection is closed."""

    async def silent(exchange: Exchange) -> None:
        await rest_of(exchange.reader)

    async with LowerServer(silent) as lower:
        config = ConnectionConfig(f"http://127.0.0.1:{lower.port}")
        with pytest.raises(DialError, match=r"no answer within 0\.1 s"):
            await dial(config, REQUEST, answer_timeout=0.1)
        await (await lower.exchange()).ended.wait()


async def test_a_refusal_that_ends_with_its_connection(pki: Pki, caplog: pytest.LogCaptureFixture) -> None:
    """A body without a length is read to the end of TLS, without a warning of asyncio."""
    reading = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        exchange.writer.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
        await reading.wait()
        exchange.writer.write(b"not you")

    async with LowerServer(script, tls=pki.server_context()) as lower:
        config = ConnectionConfig(f"https://127.0.0.1:{lower.port}", ssl_context=pki.client_context())
        answer = await dial(config, REQUEST, answer_timeout=5)
        body = asyncio.create_task(read_error_body(answer))
        asyncio.get_running_loop().call_soon(reading.set)
        assert await body == b"not you"
    assert caplog.messages == []


async def test_an_endless_head_is_refused() -> None:
    """A lower API server cannot fill the memory with a response head."""

    async def script(exchange: Exchange) -> None:
        with contextlib.suppress(ConnectionError):
            exchange.writer.write(b"HTTP/1.1 101 Switching Protocols\r\n")
            while True:
                exchange.writer.write(b"A: b\r\n" * 1000)
                await exchange.writer.drain()

    async with LowerServer(script) as lower:
        config = ConnectionConfig(f"http://127.0.0.1:{lower.port}")
        with pytest.raises(DialError, match="head is too long"):
            await dial(config, REQUEST, answer_timeout=5)


@pytest.mark.parametrize(
    "body", [b"x" * 10_000_000, b"Transfer-Encoding", b"1" * 1_000_000], ids=["long", "chunk", "line"]
)
async def test_an_error_body_is_bounded(body: bytes) -> None:
    """To 64 KiB, with any framing."""

    async def script(exchange: Exchange) -> None:
        head = b"" if body.startswith(b"x") else b"Transfer-Encoding: chunked\r\n"
        with contextlib.suppress(ConnectionError):
            exchange.writer.write(b"HTTP/1.1 403 Forbidden\r\n" + head + b"\r\n" + body)
            await exchange.writer.drain()
            exchange.writer.close()

    async with LowerServer(script) as lower:
        answer = await dial(ConnectionConfig(f"http://127.0.0.1:{lower.port}"), REQUEST, answer_timeout=5)
        assert len(await read_error_body(answer)) <= 64 * 1024
