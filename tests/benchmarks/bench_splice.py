"""Throughput of a spliced stream: an exec's output directly from a server, and through the kubelet API.

``python -m tests.benchmarks.bench_splice`` measures both in one run, over plain TCP and with TLS on both
sides, each of the three parties in a process of its own, and prints MB/s, the ratio and the node's CPU per
gigabyte. The sender and the receiver are plain blocking sockets, so that the node between them limits the
throughput.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import resource
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client.client import Client
from controller_runtime.tls.key_pairs import self_signed
from controller_runtime.tls.pem import KeyPair
from controller_runtime.tls.reloader import CertificateReloader
from tests.serving import client_context, server_context
from tests.unit.virtual_node.kubelet.lower import Everybody, OnePod
from virtual_node.kubelet.server import KubeletServer

REQUEST = (
    b"POST /exec/shop/web-1/main?output=1&command=cat HTTP/1.1\r\nHost: node\r\n"
    b"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
)
SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
BLOCK = 64 * 1024


def send(pair: KeyPair | None, amount: int, ready: Connection) -> None:
    """Serve as a lower apiserver: answer every upgrade with a 101 and `amount` bytes."""
    context, block = server_context(pair) if pair else None, bytes(BLOCK)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ready.send(listener.getsockname()[1])
        while True:
            connection, _ = listener.accept()
            if context is not None:
                connection = context.wrap_socket(connection, server_side=True)
            with connection:
                read_head(connection)
                connection.sendall(SWITCHING)
                for _ in range(amount // BLOCK):
                    connection.sendall(block)


def receive(port: int, pair: KeyPair | None, amount: int) -> float:
    """Request the stream and read it all; return MB/s."""
    context = client_context(pair) if pair else None
    connection: socket.socket = socket.create_connection(("127.0.0.1", port))
    if context is not None:
        connection = context.wrap_socket(connection, server_hostname="localhost")
    with connection:
        connection.sendall(REQUEST)
        received = len(read_head(connection))
        buffer = bytearray(BLOCK)
        started = time.perf_counter()
        while received < amount:
            count = connection.recv_into(buffer)
            if not count:
                raise ConnectionError(f"only {received} of {amount} bytes came")
            received += count
        return amount / (time.perf_counter() - started) / 1e6


def read_head(connection: socket.socket) -> bytes:
    """Read up to the end of a head; return the bytes after it."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(BLOCK)
        if not chunk:
            raise ConnectionError(f"the connection ended within a head: {data!r}")
        data += chunk
    return data.partition(b"\r\n\r\n")[2]


def node(pair: KeyPair | None, lower_port: int, ready: Connection) -> None:
    """Serve as the virtual node's kubelet API; on request return CPU seconds and peak memory."""
    asyncio.run(_node(pair, lower_port, ready))


async def _node(pair: KeyPair | None, lower_port: int, ready: Connection) -> None:
    scheme, context = ("https", client_context(pair)) if pair else ("http", None)
    config = ConnectionConfig(f"{scheme}://localhost:{lower_port}", ssl_context=context)
    server = KubeletServer(
        OnePod(Client(config)),
        address="127.0.0.1",
        port=0,
        tls=CertificateReloader.from_pair(pair) if pair else None,
        authenticator=Everybody(),
        authorizer=None,
        node_name="node",
    )
    await server.start()
    ready.send(server.port)
    while await asyncio.to_thread(ready.recv):
        usage = resource.getrusage(resource.RUSAGE_SELF)
        ready.send((usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024))
    await server.stop()


@contextmanager
def process(target: Any, *arguments: Any) -> Iterator[tuple[Any, Connection]]:
    """Run a function in a process of its own; return the first value it sends, and the connection to it."""
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=target, args=(*arguments, there), daemon=True)
    child.start()
    try:
        yield here.recv(), here
    finally:
        child.terminate()
        child.join()


def measure(pair: KeyPair | None, amount: int, rounds: int) -> tuple[float, float, float, float]:
    """Return the best direct and spliced MB/s, CPU seconds of the node per gigabyte, and its peak memory in MB."""
    with (
        process(send, pair, amount) as (lower_port, _),
        process(node, pair, lower_port) as (port, line),
    ):
        line.send(True)
        before, _ = line.recv()
        direct = spliced = 0.0
        for _ in range(rounds):
            direct = max(direct, receive(lower_port, pair, amount))
            spliced = max(spliced, receive(port, pair, amount))
        line.send(True)
        after, memory = line.recv()
        return direct, spliced, (after - before) / (rounds * amount / 1e9), memory


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=400, help="bytes per transfer, in MiB")
    parser.add_argument("--rounds", type=int, default=3, help="transfers each way; the best counts")
    options = parser.parse_args(arguments)
    pair = self_signed("localhost", hosts=["localhost", "127.0.0.1"])
    print(
        f"{'':6}{'direct MB/s':>14}{'spliced MB/s':>14}{'ratio':>8}{'node CPU s/GB':>16}{'node peak MB':>14}"
    )
    for title, used in (("plain", None), ("TLS", pair)):
        direct, spliced, cpu, memory = measure(used, options.megabytes << 20, options.rounds)
        print(
            f"{title:6}{direct:14.0f}{spliced:14.0f}{spliced / direct:8.2f}{cpu:16.2f}{memory:14.0f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
