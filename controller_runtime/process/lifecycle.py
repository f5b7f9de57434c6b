"""The lifecycle of a daemon's process: signals, grace period, exit code, memory, open files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import resource
import signal
import sys
import time
from asyncio import sslproto
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from prometheus_client import Histogram

from controller_runtime import log
from controller_runtime.errors import ApiError, CacheFull, ConfigError
from controller_runtime.process.program import YOUNG_OBJECTS

_log = log.get_logger(component="lifecycle")

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PLAIN_ERRNOS = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES})
"""Errors of the machine that are logged as text; other OSErrors are logged with a traceback."""

_COLLECT_EVERY, _COLLECT_SHARE, _COLLECT_GROWTH = 60.0, 0.001, 1.02
"""Minimum seconds between two collections, their maximum share of the time, and the growth of the process's peak memory
after which frozen objects are collected, too. With large caches this stops the event loop for tenths of a second."""


def _exit_now(code: int) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)


async def run_until_signal(
    main: Coroutine[Any, Any, object],
    *,
    grace: float = 30.0,
    exit_now: Callable[[int], object] = _exit_now,
) -> int:
    """Run the daemon until it ends, fails or is stopped by a signal; return the exit code for the process.

    SIGTERM, SIGINT or SIGHUP cancels ``main``, which then has ``grace`` seconds to clean up. A second signal ends the
    process at once with 128 plus its number, as in shells. After the grace period the process ends with 1,
    because a task that ignores its cancellation would keep ``asyncio.run`` waiting until the kubelet kills
    the process.

    Args:
        main: the daemon. If the caller is cancelled, ``main`` is cancelled, too, and awaited.
        grace: seconds; less than the pod's ``terminationGracePeriodSeconds``.
        exit_now: ends the process without cleanup.

    Returns:
        0 when ``main`` returned or was stopped; 1 when it failed. A failure is logged, in one line if its
            text is sufficient (``describe``), otherwise with a traceback.

    Raises:
        ConfigError: ``main`` failed only with ConfigErrors, which the user must correct.
    """
    task = asyncio.ensure_future(main)
    stopping = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stopping.is_set():
            _log.warning("second signal: exiting at once", signal=number.name)
            exit_now(128 + number)
            return
        _log.info("stopping", signal=number.name, grace_seconds=grace)
        stopping.set()
        task.cancel(number.name)

    with _signal_handlers(on_signal):
        signalled = asyncio.create_task(stopping.wait(), name="signals")
        try:
            await asyncio.wait({task, signalled}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await asyncio.wait({task}, timeout=grace)
        finally:
            signalled.cancel()
            if not stopping.is_set() and not task.done():  # our caller is being cancelled
                task.cancel()
                await asyncio.wait({task})
        if not task.done():
            _log.error("not stopped within the grace period: exiting at once", grace_seconds=grace)
            exit_now(1)
            return 1
    return _exit_code(task, asked_to_stop=stopping.is_set())


def describe(error: BaseException) -> str | None:
    """Return one line for an error that a user can correct without knowing the code; None for other errors.

    A group of such errors is one line, too.
    """
    if isinstance(error, BaseExceptionGroup):
        lines = [describe(leaf) for leaf in leaves(error)]
        return None if None in lines else "; ".join(dict.fromkeys(map(str, lines)))
    if isinstance(error, ConfigError | ApiError | CacheFull):
        return str(error)
    if isinstance(error, OSError) and error.errno in _PLAIN_ERRNOS:
        subject = f"{error.filename}: " if error.filename else ""
        return f"{subject}{error.strerror}"
    return None


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the actual errors inside exception groups of task groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def tune_gc() -> None:
    """Configure the cyclic garbage collector for a process with large, long-lived caches.

    Collects once, freezes the live objects so that later collections skip them, and raises the thresholds.
    Without this, decoding lists spends four fifths of its time in collections that find nothing. Call it
    after start, and again when caches have been filled or frozen objects were released. It takes as long as
    one full collection: milliseconds, or tenths of a second with large caches. See ``collecting_garbage``.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 50, 1000)


@contextlib.asynccontextmanager
async def collecting_garbage() -> AsyncIterator[None]:
    """Call ``tune_gc`` now, and again during the block whenever the process has grown; collect young garbage every minute.

    The thresholds of ``tune_gc`` never cause a full collection, but each broken connection leaves a reference cycle.
    """
    tune_gc()
    async with beside(_collect_again()):
        yield


async def _collect_again() -> None:
    pause, known = _COLLECT_EVERY, _most_memory()
    while True:
        await asyncio.sleep(pause)
        begun = time.perf_counter()
        if _most_memory() < known * _COLLECT_GROWTH:
            gc.collect()  # only objects that are younger than the last freeze: a few milliseconds
        else:
            tune_gc()
            known = _most_memory()
        pause = max(_COLLECT_EVERY, (time.perf_counter() - begun) / _COLLECT_SHARE)


def _most_memory() -> int:
    """Return the most memory that the process has used; the unit depends on the system."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def open_all_files() -> None:
    """Raise the limit of open files to its maximum, as every Go program does at start.

    The usual soft limit of 1024 exists for programs that use ``select``. A stream takes two files and a watch
    takes one. At the limit, no API server can be reached, and leases are lost.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # On macOS the kernel may refuse the hard limit; the soft limit then stays.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tune_tls() -> None:
    """Reduce the memory of each new TLS connection from 294 to 38 KiB.

    asyncio keeps a 256 KiB receive buffer for the lifetime of a connection: half a megabyte for a spliced stream, and 10 MiB
    for the connections to one lower cluster.
    """
    # asyncio has no option for its class of connections; a test checks that connections use this one.
    sslproto.SSLProtocol = _SharedReceiveBuffer  # type: ignore[misc]


class _SharedReceiveBuffer(sslproto.SSLProtocol):
    """TLS connections of an event loop that receive into the same buffer.

    The loop receives bytes and passes them to OpenSSL before it receives those of another connection.
    """

    max_size = 64 * 1024
    """Bytes received at once; a TLS record has at most 16 KiB. With 256 KiB the CPU time per byte is the same
    (``tests/benchmarks/bench_splice.py``)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *arguments: Any, **options: Any) -> None:
        super().__init__(loop, *arguments, **options)
        self._ssl_buffer = _receive_buffers.setdefault(loop, bytearray(self.max_size))
        self._ssl_buffer_view = memoryview(self._ssl_buffer)


_receive_buffers: WeakKeyDictionary[asyncio.AbstractEventLoop, bytearray] = WeakKeyDictionary()


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """Run a coroutine during the block, then cancel it. The coroutine must log its exceptions, which are dropped."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def _signal_handlers(on_signal: Callable[[signal.Signals], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    is_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    handled = [number for number in _SIGNALS if number is not signal.SIGHUP or not is_nohup]
    for number in handled:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)


def _exit_code(task: asyncio.Future[object], *, asked_to_stop: bool) -> int:
    if task.cancelled():
        if not asked_to_stop:
            _log.error("the main task was cancelled without a signal")
        return 0 if asked_to_stop else 1
    error = task.exception()
    if error is None:
        return 0
    found = list(leaves(error))
    if not asked_to_stop and all(isinstance(leaf, ConfigError) for leaf in found):
        raise ConfigError("; ".join(map(str, found))) from None
    for leaf in found:
        line = describe(leaf)
        if line is None:
            _log.error("unexpected error", error=repr(leaf), exc_info=leaf)
        else:
            _log.error(line)
    return 1


_STALLS = Histogram(
    "virtual_node_event_loop_stall_seconds",
    "Delay of an event loop timer in seconds, measured 20 times a second.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
)
_INTERVAL = 0.05
_WINDOW = 30.0
"""Seconds over which ``recent`` and ``busy`` are means."""
_recent = 0.0
_busy = 0.0


@contextlib.asynccontextmanager
async def measured() -> AsyncIterator[None]:
    """Measure the delay of event loop timers during the block; ``recent`` and ``busy`` are 0 afterwards."""
    global _recent, _busy
    try:
        async with beside(_measure()):
            yield
    finally:
        _recent = _busy = 0.0


def recent() -> float:
    """Return the mean delay of timers in seconds; delays of the last 30 s have most weight."""
    return _recent


def busy() -> float:
    """Return the CPU time of the loop's thread as a share of one core; the last 30 s have most weight."""
    return _busy


async def _measure() -> None:
    global _recent, _busy
    loop = asyncio.get_running_loop()
    while True:
        due, used = loop.time() + _INTERVAL, time.thread_time()
        await asyncio.sleep(_INTERVAL)
        delay = max(0.0, loop.time() - due)
        _STALLS.observe(delay)
        elapsed = _INTERVAL + delay
        weight = min(1.0, elapsed / _WINDOW)
        _recent += (delay - _recent) * weight
        _busy += ((time.thread_time() - used) / elapsed - _busy) * weight
