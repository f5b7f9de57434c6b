"""Trust, identity and proxies of the transport."""

from __future__ import annotations

import asyncio
import gc
import ssl

import pytest
from aiohttp import web

from controller_runtime import resources
from controller_runtime.auth.credentials import Credentials
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.client.connection_pool import MeteredResponseHandler
from controller_runtime.errors import (
    ConnectionFailed,
    NotConnected,
)
from controller_runtime.tls.key_pairs import make_ca, sign
from controller_runtime.tls.pem import KeyPair, TlsMaterial
from tests.serving import client_context
from tests.unit.controller_runtime.loopback import (
    CA,
    answers,
    client_of,
    intermediate,
    reply,
    serve,
)

# --- TLS ----------------------------------------------------------------------------------------------


async def test_unknown_authority() -> None:
    """An untrusted server gets no request, and the error says why."""
    async with serve(answers(), tls=True) as server:
        config = ConnectionConfig(
            server.url, tls=TlsMaterial(source="s", authority=make_ca("other").certificate)
        )
        async with Client(config, qps=0) as client:
            with pytest.raises(NotConnected, match="CERTIFICATE_VERIFY_FAILED"):
                await client.get(resources.NODES, "n")
    assert server.asked == []


async def test_intermediate_authority_is_trusted_without_its_root() -> None:
    """As for kubectl."""
    authority = intermediate(make_ca("root"), "between")
    pair = sign(authority, "server", hosts=["127.0.0.1"])
    async with serve(answers(reply({"a": 1})), tls=True, pair=pair) as server:
        config = ConnectionConfig(server.url, tls=TlsMaterial(source="s", authority=authority.certificate))
        async with Client(config, qps=0) as client:
            assert await client.get(resources.NODES, "n") == {"a": 1}


async def test_https_without_a_context_is_verified() -> None:
    """With the system's trust store."""
    async with serve(answers(), tls=True) as server, Client(ConnectionConfig(server.url), qps=0) as client:
        with pytest.raises(ConnectionFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await client.get(resources.NODES, "n")


async def test_server_name_of_its_own() -> None:
    """``tls-server-name`` is what the certificate is verified against."""
    async with serve(answers(reply()), tls=True) as server:
        good = ConnectionConfig(server.url, ssl_context=client_context(CA), tls_server_name="inside.example")
        async with Client(good, qps=0) as client:
            assert await client.get(resources.NODES, "n") == {}
        bad = ConnectionConfig(server.url, ssl_context=client_context(CA), tls_server_name="other.example")
        async with Client(bad, qps=0) as client:
            with pytest.raises(ConnectionFailed, match=r"other\.example"):
                await client.get(resources.NODES, "n")


async def test_certificate_of_the_server_is_known_after_the_first_request() -> None:
    """From the connection of the request, without another one."""
    pair = sign(CA, "server", hosts=["127.0.0.1"])
    async with serve(answers(reply()), tls=True, pair=pair) as server:
        config = ConnectionConfig(server.url, ssl_context=client_context(CA))
        async with Client(config, qps=0) as client:
            seen = [client.served_certificate]
            await client.get(resources.NODES, "n")
            seen.append(client.served_certificate)
            assert seen == [None, ssl.PEM_cert_to_DER_cert(pair.certificate.decode())]
        assert len(server.asked) == 1


class Rotating(Credentials):
    """A client certificate that a plugin renews."""

    def __init__(self, pair: KeyPair) -> None:
        self.certificate = pair


async def test_new_client_certificate_makes_new_connections() -> None:
    """After a rotation requests use new connections with the new name, while a watch continues."""
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
        config = ConnectionConfig(
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
            assert len(client._pools._pools) == 2
            assert client._pools._pools[0].closed
    assert seen == ["old", "old", "new", "new"]
    assert server.connections >= 2


# --- proxies ------------------------------------------------------------------------------------------


async def test_proxy() -> None:
    """Requests to a plain server go to its proxy, with the whole URL."""
    async with serve(answers(reply({"by": "proxy"}))) as proxy:
        config = ConnectionConfig("http://api.example:8080/prefix", proxy_url=proxy.url)
        async with Client(config, qps=0) as client:
            assert await client.get(resources.NODES, "n") == {"by": "proxy"}
    assert proxy.asked[0].headers["Host"] == "api.example:8080"
    assert proxy.asked[0].path == "/prefix/api/v1/nodes/n"


async def test_broken_connections_are_freed_without_garbage_collection() -> None:
    """Their TLS buffers are large, and an outage breaks many connections."""

    async def break_handshake(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with (
        await asyncio.start_server(break_handshake, "127.0.0.1", 0) as server,
        serve(answers(reply()), tls=True) as other,
        client_of(other) as client,
    ):
        port = server.sockets[0].getsockname()[1]
        client.config.server = f"https://127.0.0.1:{port}"
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                with pytest.raises(NotConnected, match="reset"):
                    await client.get(resources.NODES, "n")
            await asyncio.sleep(0.1)
            left = [one for one in gc.get_objects() if isinstance(one, MeteredResponseHandler)]
        finally:
            gc.enable()
    assert left == []
