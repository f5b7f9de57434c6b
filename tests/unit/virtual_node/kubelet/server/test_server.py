"""The port of a virtual node."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from hack.sandbox.ports import free_ports
from virtual_node.kubelet.auth import Authenticator
from virtual_node.kubelet.server import KubeletServer

NO_PODS: Any = SimpleNamespace(pods=list, running_pods=list)


def _server(port: int, *, address: str = "127.0.0.1") -> KubeletServer:
    return KubeletServer(
        NO_PODS,
        address=address,
        port=port,
        tls=None,
        authenticator=Authenticator(None),
        authorizer=None,
        node_name="vn-a",
    )


async def test_a_cancelled_start_leaves_no_port_in_use():
    """At any point; the restarted cluster needs the same port."""
    for turns in range(20):
        (port,) = free_ports(1)
        server = _server(port)
        task = asyncio.create_task(server.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        has_started = task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if has_started:
            await server.stop(grace=0)
        socket.create_server(("127.0.0.1", port)).close()
    assert has_started


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs a machine with IPv6")
@pytest.mark.parametrize("address", ["0.0.0.0", "", "::"])
async def test_all_addresses_are_those_of_both_families(address):
    """As in a kubelet. With the default address, API servers could not reach a virtual node whose address is an IPv6 one."""
    server = _server(0, address=address)
    await server.start()
    try:
        for host in ("127.0.0.1", "::1"):
            _, writer = await asyncio.open_connection(host, server.port)
            writer.close()
    finally:
        await server.stop(grace=0)


async def test_a_port_in_use_is_an_error():
    """The caller tries the next one; partial listeners are closed."""
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(OSError, match="already in use"),
    ):
        await _server(other.getsockname()[1]).start()
