"""Two connections joined into one: bytes that arrive on one are written to the other without parsing.

Theory of operation. Each connection has an `End`, an `asyncio.Protocol` that writes the bytes it receives
directly to the other connection's transport (its peer's), without a task, queue or stream buffer. When an
End's own write buffer is full, it pauses reading from its peer. A slow reader thus slows down the sender
through TCP, and at most about a megabyte is buffered here.

The splice ends when one of its connections ends. Bytes received before that are still delivered, because a
command's last output (``kubectl exec … cat file | less``) must not be lost. The other connection is therefore
closed only after its last byte has left this process, even if its reader is slow. An immediate close of a TLS
transport would drop the rest after asyncio's 30 s shutdown limit. Half-closes of plain TCP are passed on.
asyncio has no half-close for TLS, so the end of one direction ends both, as in the Go proxies of Kubernetes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from controller_runtime.serving.raw_connection import Connection, tune_socket

HIGH_WATER = 256 * 1024
"""If this many bytes wait to be written to one side, reading from the other side is paused."""

_DRAIN_CHECK, _DRAIN_CHECK_MAX = 0.02, 1.0


class Splice:
    """Joins two connections until one of them ends.

    Args:
        upper: The client's connection.
        lower: The connection to the lower apiserver.
        idle_timeout: Seconds without data in either direction after which both connections are closed.
        linger: Seconds without progress after which bytes for the lower side are dropped, if the client has
            disconnected. For bytes to the client, `idle_timeout` applies.
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
        """Take over both transports.

        Args:
            from_upper: Bytes already read from the client, to be sent to the lower side first.
            from_lower: Bytes already read from the lower side, to be sent to the client first.
        """
        self._upper.take_over()
        self._lower.take_over()
        if from_upper:
            self._upper.data_received(from_upper)
        if from_lower:
            self._lower.data_received(from_lower)
        self._idle_timer = self._loop.call_later(self._idle_timeout, self._check_idle)

    async def wait_closed(self) -> None:
        """Wait until both connections are closed. Cancellation does not stop the splice."""
        await asyncio.shield(self._closed)

    def abort(self) -> None:
        """Close both connections now and drop bytes that are not sent yet."""
        for end in (self._upper, self._lower):
            if not end.lost:
                end.connection.transport.abort()

    @property
    def bytes_to_lower(self) -> int:
        """Number of bytes copied from the client to the lower side."""
        return self._upper.received

    @property
    def bytes_to_upper(self) -> int:
        """Number of bytes copied from the lower side to the client."""
        return self._lower.received

    def touch(self) -> None:
        """Restart the idle timeout, because bytes were copied."""
        self._last_byte = self._loop.time()

    def end_lost(self) -> None:
        """Finish the splice if both connections are closed."""
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
        """Become the transport's protocol and resume reading."""
        transport = self.connection.transport
        if transport.is_closing():
            # Only the old protocol gets connection_lost, so call it here. Otherwise this End would wait
            # forever.
            asyncio.get_running_loop().call_soon(self.connection_lost, None)
        transport.set_protocol(self)
        transport.set_write_buffer_limits(high=HIGH_WATER)
        transport.resume_reading()
        tune_socket(transport)

    def data_received(self, data: bytes) -> None:
        """Write the bytes to the peer, or drop them if this End is draining."""
        self.received += len(data)
        self._splice.touch()
        if not self._draining:
            self.peer._write(data)  # noqa: SLF001  # the other half of the same object

    def pause_writing(self) -> None:
        """Pause reading from the peer, because this End's write buffer is full."""
        self.peer.connection.transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading from the peer, because this End's write buffer has room."""
        self.peer.connection.transport.resume_reading()

    def eof_received(self) -> bool:
        """Pass on the end of input by a half-close if both transports support it; otherwise close the peer."""
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
        """Close the peer's connection after its unsent bytes are written."""
        if self.lost:
            return
        self.lost = True
        self.peer.drain()
        self._splice.end_lost()

    def drain(self) -> None:
        """Send the remaining bytes, then close.

        Reading continues, because unread bytes would turn the close into a TCP reset.
        """
        if self._draining or self.lost:
            return
        self._draining = True
        # Received bytes are dropped from now on, but reading resumes, because it detects the connection's
        # end.
        self.connection.transport.resume_reading()
        deadline = asyncio.get_running_loop().time() + self._patience
        self._close_when_sent(deadline, before=-1, delay=_DRAIN_CHECK)

    def forget(self) -> None:
        """Release all references to other objects.

        A TLS transport has half a megabyte of buffers, and Python collects reference cycles rarely.
        """
        del self.peer, self.connection, self._splice, self._write

    def _close_when_sent(self, deadline: float, before: int, delay: float) -> None:
        # Polled, because a TLS transport does not report that the socket has accepted all bytes.
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
