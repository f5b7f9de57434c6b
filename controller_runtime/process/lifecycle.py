"""The life of a daemon's process: signals, the grace period, the exit code, memory, open files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import resource
import signal
import sys
from asyncio import sslproto
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

from controller_runtime import log
from controller_runtime.errors import ApiError, ConfigError

_log = log.get_logger(component="lifecycle")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PLAIN_ERRNOS = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.EACCES})
"""Troubles of the machine whose text says all; any other OSError deserves its traceback."""


_YOUNG_OBJECTS = 20_000
"""New objects between two collections. Each collection stops the event loop: 0.15 s of CPU time where 59,000 of 100,000
objects were cyclic garbage, as thousands of refused requests leave it. Lists decode no faster with a higher number."""
_TLS_BUFFER = 64 * 1024
"""Bytes received at once; a TLS record has at most 16 KiB."""


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
    """Run the daemon until it ends, fails or is told to stop; returns the exit code for the process.

    SIGTERM or SIGINT cancels ``main``, which then has ``grace`` seconds to clean up. A second signal ends the
    process at once with 128 plus its number, as shells report it. So does the end of the grace period, with 1: a
    task that does not heed cancellation would otherwise keep ``asyncio.run`` waiting until the kubelet kills us.

    Args:
        main: the daemon. Cancelling the caller cancels it too, and waits for it.
        grace: seconds; keep it below the pod's ``terminationGracePeriodSeconds``.
        exit_now: ends the process without cleaning up.

    Returns:
        0 when ``main`` returned or stopped as asked; 1 when it failed, which is logged: one line for troubles
        whose text says all (``describe``), a traceback for the others.

    Raises:
        ConfigError: ``main`` ended by nothing but such errors: flags, files, addresses that only the user can mend.
    """
    task = asyncio.ensure_future(main)
    stopping = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stopping.is_set():
            _log.warning("second signal: ending at once", signal=number.name)
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
            _log.error("not stopped within the grace period: ending at once", grace_seconds=grace)
            exit_now(1)
            return 1
    return _exit_code(task, asked_to_stop=stopping.is_set())


def describe(error: BaseException) -> str | None:
    """One line for a trouble that its reader can mend without knowing our code; None for all others.

    A group of such troubles is one line, too.
    """
    if isinstance(error, BaseExceptionGroup):
        lines = [describe(leaf) for leaf in _leaves(error)]
        return None if None in lines else "; ".join(dict.fromkeys(map(str, lines)))
    if isinstance(error, ConfigError | ApiError):
        return str(error)
    if isinstance(error, OSError) and error.errno in _PLAIN_ERRNOS:
        subject = f"{error.filename}: " if error.filename else ""
        return f"{subject}{error.strerror}"
    return None


def tune_gc() -> None:
    """Set the cyclic garbage collector up for a process that holds large, long-lived caches.

    Collects once, moves what is alive out of the collector's sight, and raises its thresholds: decoding lists
    otherwise spends four fifths of its time in collections that find nothing. Call it after start, and again
    when the caches have been filled, or what was frozen has been given up; it takes as long as one full collection
    (milliseconds).
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 50, 1000)


def open_all_files() -> None:
    """Use as many open files as we are allowed, as every Go program does at its start.

    The usual soft limit of 1024 is there for programs that use ``select``. A stream takes two and a watch one; with
    none left no apiserver is reached, and leases are lost.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Where the kernel has a lower bound of its own (macOS), what there is must do.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tune_tls() -> None:
    """Have every TLS connection made from now on keep a quarter of the memory.

    asyncio gives each 256 KiB to receive into, for all its life: half a megabyte for a stream that is passed on, half
    a gigabyte for a thousand; and a watch has a connection, too. With 64 KiB the bytes cost as much CPU as before
    (``tests/benchmarks/bench_splice.py``).
    """
    sslproto.SSLProtocol.max_size = _TLS_BUFFER  # no public switch; a test guards it


@contextlib.asynccontextmanager
async def beside(work: Coroutine[Any, Any, object], *, name: str = "") -> AsyncIterator[None]:
    """Run a coroutine beside the block, and cancel it at the end. What it raises is lost: it should catch and log."""
    task = asyncio.create_task(work, name=name or None)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def _signal_handlers(on_signal: Callable[[signal.Signals], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _exit_code(task: asyncio.Future[object], *, asked_to_stop: bool) -> int:
    if task.cancelled():
        if not asked_to_stop:
            _log.error("cancelled from within")
        return 0 if asked_to_stop else 1
    error = task.exception()
    if error is None:
        return 0
    leaves = list(_leaves(error))
    if not asked_to_stop and all(isinstance(leaf, ConfigError) for leaf in leaves):
        raise ConfigError("; ".join(map(str, leaves))) from None
    for leaf in leaves:
        line = describe(leaf)
        if line is None:
            _log.error("unexpected error", error=repr(leaf), exc_info=leaf)
        else:
            _log.error(line)
    return 1


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """What really happened inside the groups that task groups raise."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
