from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import itertools
import operator
import os
import resource
import signal
import subprocess
import sys
import weakref
from asyncio import sslproto
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from controller_runtime.errors import ConfigError, NotFound
from controller_runtime.process import lifecycle, listening
from controller_runtime.process.lifecycle import tune_gc
from controller_runtime.process.program import YOUNG_OBJECTS
from controller_runtime.serving import server
from controller_runtime.tls import key_pairs
from tests.serving import client_context, served, server_context


async def kill_self(number: signal.Signals) -> None:
    """Send this process a signal and let the loop handle it."""
    os.kill(os.getpid(), number)


@contextlib.contextmanager
def daemon(program: str, *, grace: float = 30) -> Iterator[subprocess.Popen[bytes]]:
    """Run the body of a main under run_until_signal in a process; kill it in the end if it still runs."""
    script = (
        "import asyncio, sys\n"
        "from controller_runtime.process import lifecycle; from controller_runtime import log\n"
        "log.configure('info', 'json')\n"
        "async def main():\n"
        f"{program}\n"
        f"sys.exit(asyncio.run(lifecycle.run_until_signal(main(), grace={grace})))\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0) as process:
        try:
            yield process
        finally:
            process.kill()


def expect(process: subprocess.Popen[bytes], line: str) -> None:
    """Check the process' next line of output."""
    assert process.stdout is not None
    assert process.stdout.readline().decode().strip() == line


async def returns() -> str:
    """A main that ends."""
    return "done"


async def waits() -> None:
    """A main that runs until cancelled."""
    await asyncio.Event().wait()


def failing(error: Exception) -> Callable[[], Coroutine[Any, Any, None]]:
    """A main that fails."""

    async def fails() -> None:
        raise error

    return fails


class TestRunUntilSignal:
    """Ends of a daemon."""

    async def test_main_that_returns_is_success(self) -> None:
        """Exit code 0, whatever it returns."""
        assert await lifecycle.run_until_signal(returns()) == 0

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    async def test_signal_cancels_main_and_awaits_its_cleanup(self, number: signal.Signals) -> None:
        """The exit code is 0. Tests that nohup started inherit an ignored SIGHUP."""
        inherited = signal.signal(number, signal.SIG_DFL)
        steps: list[str] = []

        async def main() -> None:
            try:
                await kill_self(number)
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                steps.append("cleaned up")

        try:
            assert await lifecycle.run_until_signal(main()) == 0
        finally:
            signal.signal(number, inherited)
        assert steps == ["cleaned up"]

    async def test_ignored_sighup_stays_ignored(self) -> None:
        """As nohup requests."""
        inherited = signal.signal(signal.SIGHUP, signal.SIG_IGN)

        async def main() -> None:
            await kill_self(signal.SIGHUP)
            await asyncio.sleep(0.01)

        try:
            assert await lifecycle.run_until_signal(main()) == 0
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        finally:
            signal.signal(signal.SIGHUP, inherited)

    async def test_main_may_catch_its_cancellation_and_return(self) -> None:
        """Exit code 0."""

        async def main() -> None:
            try:
                await kill_self(signal.SIGTERM)
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return

        assert await lifecycle.run_until_signal(main()) == 0

    async def test_failure_while_stopping_is_a_failure(self) -> None:
        """Exit code 1, logged."""

        async def main() -> None:
            try:
                await kill_self(signal.SIGTERM)
                await asyncio.Event().wait()
            finally:
                raise ConfigError("cannot say goodbye")

        with capture_logs() as logs:
            assert await lifecycle.run_until_signal(main()) == 1
        assert logs[-1]["event"] == "cannot say goodbye"

    @pytest.mark.looptime
    async def test_grace_period_ends_the_process(self) -> None:
        """With exit code 1, if main does not stop in time."""
        codes: list[int] = []
        stubborn = asyncio.Event()

        async def main() -> None:
            await kill_self(signal.SIGTERM)
            while not stubborn.is_set():
                try:
                    await stubborn.wait()
                except asyncio.CancelledError:
                    continue

        assert await lifecycle.run_until_signal(main(), grace=7, exit_now=codes.append) == 1
        assert asyncio.get_running_loop().time() == pytest.approx(7, abs=0.1)
        assert codes == [1]
        stubborn.set()
        await asyncio.sleep(0)

    async def test_cancelling_the_caller_cancels_and_awaits_main(self) -> None:
        """The cancellation is raised again."""
        steps: list[str] = []
        started = asyncio.Event()

        async def main() -> None:
            try:
                started.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                steps.append("cleaned up")

        runner = asyncio.create_task(lifecycle.run_until_signal(main()))
        await started.wait()
        runner.cancel()
        with pytest.raises(asyncio.CancelledError):
            await runner
        assert steps == ["cleaned up"]

    async def test_signal_handlers_are_removed(self) -> None:
        await lifecycle.run_until_signal(returns())
        loop = asyncio.get_running_loop()
        assert [loop.remove_signal_handler(number) for number in (signal.SIGTERM, signal.SIGINT)] == [
            False,
            False,
        ]

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_second_signal_ends_the_process_at_once(self, number: signal.Signals) -> None:
        """Exit code 128 plus its number, without the cleanup."""
        program = (
            "    print('up', flush=True)\n"
            "    try:\n"
            "        await asyncio.Event().wait()\n"
            "    finally:\n"
            "        print('stopping', flush=True)\n"
            "        await asyncio.Event().wait()\n"
        )
        with daemon(program) as process:
            expect(process, "up")
            process.send_signal(signal.SIGTERM)
            expect(process, "stopping")
            process.send_signal(number)
            assert process.wait(10) == 128 + number

    def test_blocked_cleanup_does_not_outlive_the_grace_period(self) -> None:
        """asyncio.run would wait forever for a task that never stops."""
        program = (
            "    print('up', flush=True)\n"
            "    while True:\n"
            "        try:\n"
            "            await asyncio.Event().wait()\n"
            "        except asyncio.CancelledError:\n"
            "            pass\n"
        )
        with daemon(program, grace=0.2) as process:
            expect(process, "up")
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 1


class TestErrors:
    """Log of a failing main."""

    @pytest.mark.parametrize(
        ("error", "line"),
        [
            (
                NotFound('pods "x" not found', code=404, reason="NotFound"),
                'pods "x" not found (404 NotFound)',
            ),
            (
                OSError(errno.EADDRINUSE, "address 0.0.0.0:10250 is already in use"),
                "address 0.0.0.0:10250 is already in use",
            ),
            (PermissionError(errno.EACCES, "Permission denied", "/etc/x"), "/etc/x: Permission denied"),
        ],
        ids=["api", "port", "permission"],
    )
    async def test_known_errors_are_one_line(self, error: Exception, line: str) -> None:
        """Errors that a user can correct, without a traceback, and exit code 1."""
        with capture_logs() as logs:
            assert await lifecycle.run_until_signal(failing(error)()) == 1
        assert [(entry["event"], entry.get("exc_info")) for entry in logs] == [(line, None)]

    async def test_unexpected_errors_keep_their_traceback(self) -> None:
        error = KeyError("spec")
        with capture_logs() as logs:
            assert await lifecycle.run_until_signal(failing(error)()) == 1
        assert [(entry["event"], entry["exc_info"]) for entry in logs] == [("unexpected error", error)]

    async def test_exception_groups_are_split(self) -> None:
        """Each error of a task group is logged separately."""
        group = ExceptionGroup("tasks", [NotFound("one"), ExceptionGroup("more", [ConfigError("two")])])
        with capture_logs() as logs:
            assert await lifecycle.run_until_signal(failing(group)()) == 1
        assert [entry["event"] for entry in logs] == ["one", "two"]

    async def test_errors_that_only_the_user_can_correct_are_raised(self) -> None:
        """Nothing is logged: the command prints them in one plain line and ends with 2."""
        group = ExceptionGroup("tasks", [ConfigError("one"), ExceptionGroup("more", [ConfigError("two")])])
        with capture_logs() as logs, pytest.raises(ConfigError, match=r"^one; two$"):
            await lifecycle.run_until_signal(failing(group)())
        assert logs == []

    async def test_port_in_use_is_one_line(self) -> None:
        """As a known error."""
        with listening.bind("127.0.0.1", 0) as taken:
            port = taken.getsockname()[1]
            with capture_logs() as logs:
                assert await lifecycle.run_until_signal(server.HttpsServer("127.0.0.1", port).start()) == 1
        assert [entry["event"] for entry in logs] == [f"address 127.0.0.1:{port} is already in use"]

    async def test_main_that_cancels_itself_has_failed(self) -> None:
        """Without a signal it is no clean stop."""

        async def main() -> None:
            raise asyncio.CancelledError

        assert await lifecycle.run_until_signal(main()) == 1


class TestGarbageCollector:
    """tune_gc."""

    @pytest.fixture(autouse=True)
    def _restored(self) -> Iterator[None]:
        thresholds = gc.get_threshold()
        yield
        gc.set_threshold(*thresholds)
        gc.freeze()

    def test_one_collection_frees_little_garbage(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Thousands of refused requests leave cycles; one collection of 59,000 objects stops the loop for 0.15 s."""
        collected: list[int] = []

        def note(phase: str, info: dict[str, int]) -> None:
            if phase == "stop":
                collected.append(info["collected"])

        monkeypatch.setattr(gc, "collect", lambda: 0)  # takes half a second in this process
        tune_gc()
        gc.callbacks.append(note)
        try:
            for _ in range(200_000):
                cycle: list[object] = []
                cycle.append(cycle)
        finally:
            gc.callbacks.remove(note)
        assert sum(collected) > 100_000
        assert max(collected) <= 25_000

    def test_the_heap_is_frozen_and_frozen_garbage_is_freed(self) -> None:
        """Collections skip live objects, a second call freezes newer ones, and frees what has gone.

        A process that restarts with a fresh kubeconfig does not keep the caches of each start.
        """

        class Caches:
            def __init__(self) -> None:
                self.handlers = [self.__init__]  # type: ignore[misc]

        caches = Caches()
        found = weakref.ref(caches)
        tune_gc()
        frozen = gc.get_freeze_count()
        assert gc.get_threshold()[0] == YOUNG_OBJECTS
        assert frozen > 1000
        del caches
        kept = [[] for _ in range(2000)]  # type: list[list[object]]
        tune_gc()
        assert found() is None
        # A few others may have gone meanwhile.
        assert gc.get_freeze_count() >= frozen + len(kept) / 2


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("takes", "growth", "full", "young"),
    [(0.01, 1.03, 61, 0), (0.6, 1.03, 7, 0), (0.01, 1.0, 1, 60), (0.6, 1.0, 1, 6), (0.01, 1.011, 31, 30)],
)
async def test_garbage_is_collected_every_minute_or_less_often_if_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, takes: float, growth: float, full: int, young: int
) -> None:
    """Collections take at most a thousandth of the time, and only a process that grows needs full ones."""
    found: list[str] = []
    clock = itertools.count(step=takes)
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    memory = itertools.accumulate(itertools.repeat(growth), operator.mul)
    monkeypatch.setattr(lifecycle, "_most_memory", lambda: next(memory))
    monkeypatch.setattr(lifecycle, "tune_gc", lambda: found.append("full"))
    monkeypatch.setattr("gc.collect", lambda: found.append("young"))
    async with lifecycle.collecting_garbage():
        await asyncio.sleep(3601)
    assert (found.count("full"), found.count("young")) == (full, young)


def test_open_file_limit_is_raised_to_the_maximum() -> None:
    """A thousand are not enough for a node."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
    try:
        lifecycle.open_all_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_tls_connections_of_a_loop_share_their_receive_buffer(tuned_tls: None):
    """A node has thousands of them. Each gets its own bytes, whatever the others receive at the same time."""
    pair = key_pairs.self_signed("server", hosts=["127.0.0.1"])

    async def echo(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    async def exchange(session: aiohttp.ClientSession, port: int, number: int) -> None:
        body = bytes([number]) * (number * 40_000)
        async with session.post(f"https://127.0.0.1:{port}/", data=body) as response:
            assert await response.read() == body

    async with (
        served(web.post("/", echo), tls=server_context(pair)) as port,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=client_context(pair), limit=0)) as session,
    ):
        await asyncio.gather(*(exchange(session, port, number) for number in range(1, 25)))
        connections = [made for made in gc.get_objects() if type(made) is sslproto.SSLProtocol]
        parts = [part for made in connections for part in vars(made).values() if isinstance(part, bytearray)]
    assert len(parts) >= 2 * 24
    assert len(set(map(id, parts))) == 1


@pytest.fixture
def tuned_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sslproto, "SSLProtocol", sslproto.SSLProtocol)  # restored for the other tests
    lifecycle.tune_tls()
