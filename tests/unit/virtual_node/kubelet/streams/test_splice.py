"""Two joined connections: timers, limits and endings, on fake transports."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime.serving.raw_connection import Connection
from virtual_node.kubelet.streams.splice import Splice


class _FakeTransport(asyncio.Transport):
    """Records calls; accepts nothing while `blocked`."""

    def __init__(self, *, half_close: bool = True) -> None:
        super().__init__()
        self.half_close = half_close
        self.protocol: Any = None
        self.written = b""
        self.unsent = 0
        self.blocked = False
        self.reading = True
        self.eof_written = False
        self.closing = False
        self.aborted = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None

    def write(self, data: Any) -> None:
        assert not self.closing
        self.written += data
        if self.blocked:
            self.unsent += len(data)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def can_write_eof(self) -> bool:
        return self.half_close

    def write_eof(self) -> None:
        self.eof_written = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.aborted = True
        self.close()


def join(*, half_close: bool = True, idle: float = 3600.0) -> tuple[Splice, _FakeTransport, _FakeTransport]:
    """Return a running splice and its two transports."""
    upper, lower = _FakeTransport(half_close=half_close), _FakeTransport(half_close=half_close)
    splice = Splice(Connection(upper, upper), Connection(lower, lower), idle_timeout=idle, linger=10.0)
    splice.start()
    return splice, upper, lower


@pytest.mark.looptime
async def test_silence_ends_both_sides() -> None:
    """The limit counts from the last byte in either direction."""
    splice, upper, lower = join(idle=100.0)
    loop = asyncio.get_running_loop()
    await asyncio.sleep(90)
    upper.protocol.data_received(b"x")
    await asyncio.sleep(90)
    lower.protocol.data_received(b"y")
    before = loop.time()
    await splice.wait_closed()
    assert loop.time() - before == pytest.approx(100)
    assert upper.aborted
    assert lower.aborted
    assert (splice.bytes_to_lower, splice.bytes_to_upper) == (1, 1)


async def test_a_full_side_pauses_the_other() -> None:
    """And resumes it."""
    splice, upper, lower = join()
    upper.protocol.pause_writing()
    assert (upper.reading, lower.reading) == (True, False)
    lower.protocol.pause_writing()
    assert not upper.reading
    upper.protocol.resume_writing()
    assert (upper.reading, lower.reading) == (False, True)
    splice.abort()
    await splice.wait_closed()


@pytest.mark.looptime(noop_cycles=5)
async def test_the_last_bytes_wait_for_a_slow_reader() -> None:
    """A reader that pauses for an hour still gets a command's last output."""
    splice, upper, lower = join(idle=4 * 3600.0)
    upper.blocked = True
    lower.protocol.data_received(b"last words")
    lower.protocol.connection_lost(None)
    await asyncio.sleep(3600)
    assert not upper.closing
    upper.unsent = 0
    await splice.wait_closed()
    assert upper.written == b"last words"
    assert not upper.aborted


@pytest.mark.looptime
async def test_a_reader_that_never_reads_is_disconnected() -> None:
    """After the idle limit without progress the rest is dropped."""
    splice, upper, lower = join(idle=100.0)
    upper.blocked = True
    lower.protocol.data_received(b"0123456789")
    lower.protocol.connection_lost(None)
    await asyncio.sleep(90)
    upper.unsent = 5
    await asyncio.sleep(90)
    assert not upper.aborted
    await splice.wait_closed()
    assert upper.aborted


@pytest.mark.looptime
async def test_a_lower_side_gets_little_time_after_its_client() -> None:
    """A command without a client is ended in seconds, read or not."""
    splice, upper, lower = join()
    lower.blocked = True
    upper.protocol.data_received(b"stdin")
    upper.protocol.connection_lost(ConnectionResetError())
    before = asyncio.get_running_loop().time()
    await splice.wait_closed()
    assert lower.aborted
    assert asyncio.get_running_loop().time() - before < 11


async def test_bytes_for_a_closed_side_are_dropped() -> None:
    """They are read so that the end after them is seen, and not written."""
    splice, upper, lower = join()
    upper.blocked = True
    lower.protocol.data_received(b"unread")
    upper.protocol.pause_writing()
    upper.protocol.data_received(b"a")
    lower.protocol.connection_lost(None)
    assert upper.reading
    upper.protocol.data_received(b"b")
    assert lower.written == b"a"
    upper.unsent = 0
    await splice.wait_closed()


@pytest.mark.parametrize("first", ["upper", "lower"])
async def test_half_closes_in_both_directions_end_both(first: str) -> None:
    """Each end is passed on; after the second both are closed."""
    splice, upper, lower = join()
    one, two = (upper, lower) if first == "upper" else (lower, upper)
    assert one.protocol.eof_received() is True
    assert two.eof_written
    assert not two.closing
    two.protocol.data_received(b"answer")
    assert one.written == b"answer"
    assert two.protocol.eof_received() is False
    two.close()
    await splice.wait_closed()
    assert one.closing


async def test_without_half_close_one_end_ends_both() -> None:
    """As with TLS: the other side is flushed and closed."""
    splice, upper, lower = join(half_close=False)
    lower.protocol.data_received(b"bye")
    assert lower.protocol.eof_received() is False
    lower.close()
    await splice.wait_closed()
    assert upper.written == b"bye"
    assert not upper.aborted


async def test_a_side_lost_before_the_join_ends_it() -> None:
    """A transport that closes during the hand-over has called its old protocol."""
    upper, lower = _FakeTransport(), _FakeTransport()
    lower.closing = True
    splice = Splice(Connection(upper, upper), Connection(lower, lower), idle_timeout=10)
    splice.start(from_lower=b"last words")
    await splice.wait_closed()
    assert upper.written == b"last words"


async def test_an_end_may_be_repeated() -> None:
    """For example by a shutdown at the moment when a stream has ended by itself."""
    splice, upper, lower = join()
    upper.close()
    lower.close()
    await splice.wait_closed()
    splice.abort()
    assert not upper.aborted


async def test_unsent_tls_data_counts() -> None:
    """Bytes below the TLS layer are unsent bytes too."""
    top, raw = _FakeTransport(), _FakeTransport()
    top.unsent, raw.unsent = 3, 4
    assert Connection(top, raw).unsent() == 7
    assert Connection(raw, raw).unsent() == 4
