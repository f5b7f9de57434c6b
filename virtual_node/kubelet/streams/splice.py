"""Two connections joined into one: every byte that arrives on either leaves on the other, unread.

Theory of operation. Each connection is driven by an `End`, an `asyncio.Protocol` that writes what it
receives straight to its peer's transport: no task, no queue, no stream buffer between them. When a
peer's write buffer is full its End stops this side's reading, so a slow reader holds back the sender
through TCP and no more than about a megabyte is ever kept here.

The join ends when either side ends. What was received before is still delivered: the survivor is closed
only after its last byte has left this process, however slowly its reader takes it, because a command's
last output (``kubectl exec … cat file | less``) is worth as much as its first. Closing a TLS transport
at once would drop the rest after asyncio's 30 s shutdown limit. Plain TCP half-closes are passed on;
TLS has none in asyncio, there the end of one direction is the end of both (the Go proxies of Kubernetes
do the same).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controller_runtime.serving.raw_connection import Connection, keep_alive

HIGH_WATER = 256 * 1024
"""Bytes waiting to be written to one side before the other side's reading is paused."""

_DRAIN_CHECK, _DRAIN_CHECK_MAX = 0.02, 1.0


class Splice:
    """Joins two connections until one of them ends.

    Args:
        upper: The client's connection.
        lower: The connection to the lower apiserver.
        idle_timeout: Seconds without a byte in either direction after which both are ended.
        linger: Seconds that bytes already accepted for the lower side may take to leave after the client
            is gone. The client's side may take `idle_timeout`.
    """

    def __init__(
        self, upper: Connection, lower: Connection, *, idle_timeout: float, linger: float = 10.0
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle_timeout = idle_timeout
        self._last_byte = self._loop.time()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._upper = End(self, upper, patience=idle_timeout)
        self._lower = End(self, lower, patience=linger)
        self._upper.peer, self._lower.peer = self._lower, self._upper
        self._idle_timer: asyncio.TimerHandle | None = None

    def start(self, *, from_upper: bytes = b"", from_lower: bytes = b"") -> None:
        """Take both transports over.

        Args:
            from_upper: Bytes of the client that were read already; they go to the lower side first.
            from_lower: Bytes of the lower side that were read already; they go to the client first.
        """
        self._upper.take_over()
        self._lower.take_over()
        if from_upper:
            self._upper.data_received(from_upper)
        if from_lower:
            self._lower.data_received(from_lower)
        self._idle_timer = self._loop.call_later(self._idle_timeout, self._check_idle)

    async def wait_closed(self) -> None:
        """Wait until both connections are closed. Cancellation leaves the splice running."""
        await asyncio.shield(self._closed)

    def abort(self) -> None:
        """End both connections now; bytes not yet sent are dropped."""
        for end in (self._upper, self._lower):
            if not end.lost:
                end.connection.transport.abort()

    @property
    def bytes_to_lower(self) -> int:
        """How many bytes went from the client to the lower side."""
        return self._upper.received

    @property
    def bytes_to_upper(self) -> int:
        """How many bytes went from the lower side to the client."""
        return self._lower.received

    def touch(self) -> None:
        """Note that a byte moved."""
        self._last_byte = self._loop.time()

    def end_lost(self) -> None:
        """Finish when both sides are gone."""
        if self._upper.lost and self._lower.lost and not self._closed.done():
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            self._closed.set_result(None)
            self._upper.forget()
            self._lower.forget()

    def _check_idle(self) -> None:
        left = self._last_byte + self._idle_timeout - self._loop.time()
        if left <= 0:
            self.abort()
        else:
            self._idle_timer = self._loop.call_later(left, self._check_idle)


class End(asyncio.Protocol):
    """One side of a splice."""

    peer: End

    def __init__(self, splice: Splice, connection: Connection, *, patience: float) -> None:
        self.connection = connection
        self.received = 0
        self.lost = False
        self._splice = splice
        self._patience = patience
        self._write: Callable[[bytes], None] = connection.transport.write
        self._draining = False
        self._got_eof = False

    def take_over(self) -> None:
        """Become the transport's protocol and let it read."""
        transport = self.connection.transport
        if transport.is_closing():
            # Its old protocol has been or will be told; this one would wait for ever.
            asyncio.get_running_loop().call_soon(self.connection_lost, None)
        transport.set_protocol(self)
        transport.set_write_buffer_limits(high=HIGH_WATER)
        transport.resume_reading()
        keep_alive(transport)

    def data_received(self, data: bytes) -> None:
        """Pass the bytes on. What a peer sends after its counterpart has gone is of no use to anybody."""
        self.received += len(data)
        self._splice.touch()
        if not self._draining:
            self.peer._write(data)  # noqa: SLF001  # the other half of the same object

    def pause_writing(self) -> None:
        """This side takes no more: stop reading from the other."""
        self.peer.connection.transport.pause_reading()

    def resume_writing(self) -> None:
        """This side takes bytes again."""
        self.peer.connection.transport.resume_reading()

    def eof_received(self) -> bool:
        """The far end writes no more: pass that on, by half-closing where both transports can."""
        self._got_eof = True
        mine, other = self.connection.transport, self.peer.connection.transport
        if not (mine.can_write_eof() and other.can_write_eof()):
            self.peer.drain()
            return False
        if self.peer.lost or other.is_closing():
            return False
        if self.peer._got_eof:  # noqa: SLF001
            self.peer.drain()
            return False
        other.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """This side is gone: the other follows once it has been given everything."""
        if self.lost:
            return
        self.lost = True
        self.peer.drain()
        self._splice.end_lost()

    def drain(self) -> None:
        """Send what is left, then close. Reading goes on, or unread bytes would turn the close into a reset."""
        if self._draining or self.lost:
            return
        self._draining = True
        # The peer's bytes go nowhere now; it must not stay paused, or its own end would never be seen.
        self.connection.transport.resume_reading()
        deadline = asyncio.get_running_loop().time() + self._patience
        self._close_when_sent(deadline, before=-1, delay=_DRAIN_CHECK)

    def forget(self) -> None:
        """Let go of everything: a TLS transport has buffers of half a megabyte, and nobody looks for cycles often."""
        del self.peer, self.connection, self._splice, self._write

    def _close_when_sent(self, deadline: float, before: int, delay: float) -> None:
        # Looked at now and then: the TLS transport tells nobody when the socket below has taken all.
        if self.lost:
            return
        loop = asyncio.get_running_loop()
        unsent = self.connection.unsent()
        if unsent == 0:
            self.connection.transport.close()
        elif unsent == before and loop.time() >= deadline:
            self.connection.transport.abort()
        else:
            if unsent != before:
                deadline = loop.time() + self._patience
                self._splice.touch()
            slower = min(2 * delay, _DRAIN_CHECK_MAX)
            loop.call_later(delay, self._close_when_sent, deadline, unsent, slower)
