"""Reports over HTTP from pods that answer anything."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from swarm.controller import reports
from swarm.controller.reports import Polls
from swarm.planning import Pod
from tests.unit.swarm.controller.scene import so

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_REPORT = json.dumps({"podUID": "u", "running": [f"job-{number:020}" for number in range(10_000)]}).encode()
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def _good(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD + b"Content-Length: %d\r\n\r\n" % len(_REPORT))
    for start in range(0, len(_REPORT), 50_000):
        writer.write(_REPORT[start : start + 50_000])
        await writer.drain()
        await asyncio.sleep(0.01)


async def _hanging(_writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def _endless(writer: asyncio.StreamWriter) -> None:
    writer.write(_HEAD + b"Connection: close\r\n\r\n")
    while True:
        writer.write(b" " * 65_536)
        await writer.drain()


async def _compressed(writer: asyncio.StreamWriter) -> None:
    body = gzip.compress(_REPORT)
    writer.write(_HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


async def _redirecting(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 302 Found\r\nLocation: /good\r\nContent-Length: 0\r\n\r\n")


@contextlib.asynccontextmanager
async def _serving(answer: Answer) -> AsyncIterator[int]:
    """Answer every request the same way; yield the port."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                await answer(writer)
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.create_task(connected(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.fixture
async def poll() -> AsyncIterator[Polls]:
    """All pods may be polled."""
    found = Polls(on_change=lambda _: None, refusal=lambda _pod: "")
    yield found
    await found.close()


async def test_reads_a_report_in_several_pieces(poll: Polls):
    """A busy network divides an answer of 300 kB."""
    pods = [Pod("w", "u", node="n", ip="127.0.0.1")]
    async with _serving(_good) as port:
        await so(
            lambda: [len(one.running or ()) for one in poll.reports("ns/s", pods, port).values()], [10_000]
        )


async def test_a_report_that_stays_the_same_is_reported_once(monkeypatch: pytest.MonkeyPatch):
    """A reconcile of the Swarm follows each report of a change, and each reconcile starts a poll."""
    monkeypatch.setattr(reports, "_SECONDS", 60.0)  # enough on a busy machine
    changes: list[str] = []
    polls = Polls(on_change=changes.append, refusal=lambda _pod: "")
    pods = [Pod("w", "u", node="n", ip="127.0.0.1")]
    async with _serving(_good) as port:
        for _ in range(3):
            polls.reports("ns/s", pods, port)
            await polls._rounds["ns/s"].task
    assert changes == ["ns/s"]
    polls.reports("ns/s", pods, port)
    await polls._rounds["ns/s"].task
    assert changes == ["ns/s"] * 2
    await polls.close()


@pytest.mark.parametrize("answer", [_endless, _compressed, _redirecting])
async def test_ignores_hostile_answers(poll: Polls, answer: Answer):
    """Without a report, and without more memory than a report may have."""
    pods = [Pod("w", "u", node="n", ip="127.0.0.1")]
    async with _serving(answer) as port:
        poll.reports("ns/s", pods, port)
        await poll._rounds["ns/s"].task
        assert poll.reports("ns/s", pods, port) == {}


async def test_slow_workers_delay_no_other_namespace(poll: Polls):
    """All connections of their own namespace are in use."""
    slow = [Pod(f"w-{number}", str(number), node="n", ip="127.0.0.1") for number in range(200)]
    good = [Pod("w", "u", node="n", ip="127.0.0.1")]
    async with _serving(_hanging) as port, _serving(_good) as other:
        assert poll.reports("slow/s", slow, port) == {}
        await so(lambda: [*poll.reports("good/s", good, other)], ["u"])
        assert not poll._rounds["slow/s"].task.done()


async def test_does_not_connect_to_refused_workers():
    """And reports nothing for them."""
    asked: list[bytes] = []

    async def answer(writer: asyncio.StreamWriter) -> None:
        asked.append(b"")
        await _good(writer)

    found = Polls(on_change=lambda _: None, refusal=lambda pod: "" if pod.name == "good" else "not allowed")
    pods = [Pod(name, name, node="n", ip="127.0.0.1") for name in ("bad", "good", "worse")]
    async with _serving(answer) as port:
        found.reports("ns/s", pods, port)
        await found._rounds["ns/s"].task
        assert list(found.reports("ns/s", pods, port)) == ["good"]
        await found.close()
    assert asked
