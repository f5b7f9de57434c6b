"""A hostile API server: every response costs its client as much memory and time as possible.

``python -m tests.hostile_server PORT [KIND ...]`` serves plain HTTP on loopback until it is killed; without
kinds it uses all in turn. With ``--healthy`` its ``/readyz`` and ``/version`` are normal, so that a virtual
node continues to list and watch.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gzip
import itertools
import json
from collections.abc import AsyncIterator, Callable

MIB = 1024 * 1024
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


async def big(_path: str) -> AsyncIterator[bytes]:
    """64 MiB with their length."""
    yield _HEAD + b"Content-Length: %d\r\n\r\n" % (64 * MIB)
    for _ in range(64):
        yield b"x" * MIB


async def endless(_path: str) -> AsyncIterator[bytes]:
    """A body that does not end."""
    yield _HEAD + b"Connection: close\r\n\r\n" + b'{"items":[],"x":"'
    while True:
        yield b"x" * MIB


async def compressed(_path: str) -> AsyncIterator[bytes]:
    """A hundred kilobytes that decompress to 100 MiB."""
    body = _bomb()
    yield _HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body


async def values(_path: str) -> AsyncIterator[bytes]:
    """JSON of 15 MiB that decodes to 700."""
    yield _HEAD + b"Content-Length: %d\r\n\r\n" % (15 * MIB) + b'{"metadata":{},"items":['
    rest = 15 * MIB - len(b'{"metadata":{},"items":[') - 3
    yield b"{},"[:3] * (rest // 3) + b" " * (rest % 3) + b"1]}"


async def tiny(path: str) -> AsyncIterator[bytes]:
    """A page of 195,000 objects, and events with one object of 590,000 labels and an empty field."""
    if "watch=" in path:
        labels = b",".join(b'"l%d":""' % number for number in range(590_000))
        yield _HEAD + b"Connection: close\r\n\r\n"
        while True:
            yield b'{"type":"ADDED","object":{"metadata":{"name":"a","uid":null,"labels":{%s}}}}\n' % labels
    body = (
        b'{"metadata":{"resourceVersion":"1"},"items":[' + b",".join([b'{"metadata":{}}'] * 195_000) + b"]}"
    )
    yield _HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def deep(_path: str) -> AsyncIterator[bytes]:
    """JSON of 8 MiB with one value in another."""
    yield _HEAD + b"Content-Length: %d\r\n\r\n" % (8 * MIB) + b"[" * (8 * MIB)


async def pages(path: str) -> AsyncIterator[bytes]:
    """A page of 15 MiB with normal objects and a continue token; events of 7 MiB."""
    if "watch=" in path:
        async for chunk in events(path, padding=7 * MIB):
            yield chunk
        return
    item = _object(padding=30_000)
    body = b'{"metadata":{"resourceVersion":"1"},"items":[' + b",".join([item] * 500) + b"]}"
    yield _HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


_numbers = itertools.count()


async def many(path: str) -> AsyncIterator[bytes]:
    """Lists that never end, in pages of 9 MB within all limits; as many different events."""
    if "watch=" in path:
        yield _HEAD + b"Connection: close\r\n\r\n"
        while True:
            event = (
                b'{"type":"ADDED","object":' + _object(padding=100_000, name=f"e{next(_numbers)}") + b"}\n"
            )
            yield event
    count = 1 if "limit=1&" in path else 90
    items = b",".join([_object(padding=100_000, name=f"p{next(_numbers)}") for _ in range(count)])
    body = b'{"metadata":{"resourceVersion":"1","continue":"more"},"items":[' + items + b"]}"
    yield _HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def chunks(_path: str) -> AsyncIterator[bytes]:
    """Chunks of one byte."""
    yield _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    while True:
        yield b"1\r\nx\r\n" * 10_000


async def informational(_path: str) -> AsyncIterator[bytes]:
    """Responses before the response, without end."""
    while True:
        yield b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000


async def events(path: str, *, padding: int = 100) -> AsyncIterator[bytes]:
    """An empty list, and then events as fast as they are taken."""
    if "watch=" not in path:
        body = b'{"metadata":{"resourceVersion":"1"},"items":[]}'
        yield _HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
        return
    yield _HEAD + b"Connection: close\r\n\r\n"
    line = b'{"type":"MODIFIED","object":' + _object(padding=padding) + b"}\n"
    while True:
        yield line * max(1, 100_000 // len(line))


async def errors(_path: str) -> AsyncIterator[bytes]:
    """A refusal with a message of 64 MiB."""
    yield b"HTTP/1.1 422 Unprocessable Entity\r\nContent-Length: %d\r\n\r\n" % (64 * MIB)
    yield b'{"kind":"Status","message":"'
    for _ in range(64):
        yield b"eyJaaaaaaaa-" * (MIB // 12)


KINDS: dict[str, Callable[[str], AsyncIterator[bytes]]] = {
    kind.__name__: kind
    for kind in (
        big,
        endless,
        compressed,
        values,
        tiny,
        deep,
        pages,
        many,
        chunks,
        informational,
        events,
        errors,
    )
}


@functools.cache
def _bomb() -> bytes:
    return gzip.compress(b"0" * (100 * MIB), 9)


def _object(*, padding: int, name: str = "a") -> bytes:
    metadata = {"name": name, "namespace": "b", "uid": "c", "resourceVersion": "2"}
    return json.dumps({"metadata": metadata, "spec": {"x": "y" * padding}}).encode()


async def serve(port: int, kinds: list[str], *, is_healthy: bool = False) -> None:
    """Serve until cancelled."""
    turns = itertools.cycle([KINDS[kind] for kind in kinds])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].decode()
                if is_healthy and path.startswith(("/readyz", "/version", "/livez")):
                    writer.write(_HEAD + b"Content-Length: 2\r\n\r\n{}")
                    continue
                async for part in next(turns)(path):
                    writer.write(part)
                    await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    async with server:
        print("ready", flush=True)  # noqa: T201 - whoever started it waits for this line
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--healthy", action="store_true")
    options = parser.parse_args()
    asyncio.run(serve(options.port, options.kinds or list(KINDS), is_healthy=options.healthy))
