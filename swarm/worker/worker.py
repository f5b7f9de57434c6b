"""The worker: follows its share (its list of jobs), calls handlers, acknowledges, stops within the drain time."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import math
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from aiohttp import web

from swarm.worker import fence
from swarm.worker.client import ConfigMaps, File, ReplacedError, Reporter, connected
from swarm.worker.identity import Settings, SetupError, resolve
from swarm.worker.jobs import Handler, Held, Job, Phase, Runner
from swarm.worker.protocol import Membership, Share

_DISTRIBUTION = "virtual-node"


@contextlib.asynccontextmanager
async def serving(
    port: int, *, version: Callable[[], dict[str, Any]], metrics: Callable[[], str]
) -> AsyncIterator[int]:
    """Serve within the block; yield the port.

    Args:
        port: port to listen on; 0: any free port.
        version: returns the body of ``/internal/version``.
        metrics: returns the body of ``/metrics``, in Prometheus' text format.

    Raises:
        SetupError: the port is in use.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")

    async def on_version(_: web.Request) -> web.Response:
        return _json(version())

    async def on_health(_: web.Request) -> web.Response:
        return _json({"date": started, "version": release()})

    async def on_metrics(_: web.Request) -> web.Response:
        return web.Response(text=metrics(), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_route("*", "/internal/version", on_version)
    app.router.add_route("*", "/internal/health", on_health)
    app.router.add_get("/metrics", on_metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, None, port)
        try:
            await site.start()
        except OSError as error:
            raise SetupError(
                f"HTTP port {port}: {error.strerror}; another port: HTTP_PORT, 0: none"
            ) from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def release() -> str:
    """Return the installed version of this library; empty if it is not installed."""
    try:
        return metadata.version(_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return ""


def _json(content: dict[str, Any]) -> web.Response:
    body = web.json_response(content).text or ""
    return web.Response(text=body + "\n", content_type="application/json")


_PREFIX = "virtual_node_swarm_worker_"


def render(
    held: Mapping[str, Held],
    *,
    version: int,
    failures: int,
    share_problem: bool,
    draining: bool,
    exits: Mapping[int, int],
) -> str:
    """Return the text of ``/metrics``.

    Args:
        held: held jobs.
        version: version of the applied share.
        failures: failures of handlers and jobs since start.
        share_problem: whether the share that was read last is unusable.
        draining: whether the worker is stopping.
        exits: exit code → number of processes that exited with it (sidecar only).
    """
    phases = Counter(one.phase for one in held.values())
    lines = [
        *_metric(
            "jobs", "gauge", "Jobs by phase.", {f'{{phase="{one.value}"}}': phases[one] for one in Phase}
        ),
        *_metric("share_version", "gauge", "Version of the share that is applied.", {"": version}),
        *_metric("share_invalid", "gauge", "1 if the latest share cannot be used.", {"": int(share_problem)}),
        *_metric("job_failures_total", "counter", "Failed handlers and jobs that ended.", {"": failures}),
        *_metric("draining", "gauge", "1 while the worker stops all jobs to exit.", {"": int(draining)}),
    ]
    if exits:
        codes = {f'{{code="{code}"}}': number for code, number in sorted(exits.items())}
        lines += _metric("process_exits_total", "counter", "Ended processes by exit code.", codes)
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, text: str, values: Mapping[str, int]) -> list[str]:
    full = _PREFIX + name
    head = [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
    return [*head, *(f"{full}{labels} {value}" for labels, value in values.items())]


_log = logging.getLogger(__name__)

_LOOK = 0.2
"""Seconds between checks of the time since the last renewal."""
_LAST_WRITE = 2.0
"""Seconds of the drain time that are reserved for the last acknowledgement."""
_POLL = 0.5
"""Seconds between attempts to become the only process of the worker."""
_MARGIN = 0.5
"""Seconds of the drain time that are reserved for the end of killed processes."""


class Worker:
    """One worker of a Swarm."""

    def __init__(
        self,
        on_start: Handler,
        on_stop: Handler,
        settings: Settings | None = None,
        *,
        prepare: Callable[[], Awaitable[None]] | None = None,
        exits: Mapping[int, int] | None = None,
        exit_now: Callable[[int], object] = os._exit,
    ) -> None:
        """Resolve the settings.

        Args:
            on_start: starts a job and returns. If it raises, the job is stopped, and started again after 1 s, then 2 s, at
                most 60 s.
            on_stop: stops a job and returns when nothing of it runs any more. Until then no other worker gets the job. Also
                called after a failed start. Called again if it raises.
            settings: settings that override the environment.
            prepare: called once before this process starts jobs; ends what an earlier process left running.
            exits: exit code → number of exited processes, for ``/metrics``.
            exit_now: exits the process if jobs do not stop in time.

        Raises:
            SetupError: a setting is missing.
        """
        self.settings = resolve(settings or Settings(), os.environ)
        self._membership = Membership(self.settings)
        self._runner = Runner(on_start, on_stop, self._changed)
        self._watchdog = fence.Watchdog(lambda: exit_now(1))
        self._exit_now = exit_now
        self._reporter: Reporter | None = None
        self._stopping = asyncio.Event()
        self._logged_problem = ""
        self._prepare = prepare
        self._exits = {} if exits is None else exits
        own = self.settings
        self.identity = f"{own.namespace}/{own.swarm}/{own.worker}/{own.pod_uid}"
        """Unique per pod, also among successive pods of the same name."""
        self.stop_by: float | None = None
        """Deadline (``fence.now``) for jobs that are being stopped; None: no deadline."""

    def failed(self, job: Job, error: str) -> None:
        """Report that a job ended by itself. It is stopped, and started again after a pause."""
        self._runner.failed(job, error)

    def drain(self) -> None:
        """Stop all jobs and end ``run``, as on SIGTERM."""
        self._stopping.set()

    async def run(self) -> int:
        """Work until SIGTERM, SIGINT or ``drain``; return the exit code of the process.

        Raises:
            SetupError: a certificate cannot be read, or the HTTP port is in use.
        """
        settings = self.settings
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(self._signals())
            if not await self._alone(stack):
                return 0
            if self._prepare is not None:
                await self._prepare()
            if settings.http_port:
                await stack.enter_async_context(
                    serving(settings.http_port, version=self._version, metrics=self._metrics)
                )
            stack.callback(self._watchdog.close)
            stack.push_async_callback(self._runner.close)
            if settings.file:
                return await self._work(File(settings, self._found, self._problem).run())
            api = await stack.enter_async_context(connected(settings))
            reporter = self._reporter = Reporter(
                api, settings, self._membership, content=self._acknowledgement, taken=self._taken
            )
            return await self._work(
                ConfigMaps(api, settings, self._found, self._problem).run(),
                api.follow(reporter.collection, reporter.name, reporter.seen),
                reporter.run(),
            )

    async def _work(self, *work: Coroutine[Any, Any, None]) -> int:
        tasks = [asyncio.create_task(one) for one in (*work, self._keep_in_time())]
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
            failed = next((error for task in tasks if task.done() and (error := task.exception())), None)
            if isinstance(failed, ReplacedError):
                _log.error("stopping all jobs: %s", failed)
            elif failed is not None:
                _log.error("stopping all jobs: unexpected error", exc_info=failed)
            await self._drain(acknowledge=failed is None)
            return 0 if failed is None else 1
        finally:
            for one in (*tasks, stopping):
                one.cancel()
            await asyncio.gather(*tasks, stopping, return_exceptions=True)

    async def _drain(self, *, acknowledge: bool) -> None:
        """Stop all jobs and acknowledge this; exit the process if jobs do not stop within the drain time."""
        _log.info("stopping %d jobs", len(self._runner.held))
        limit = max(self.settings.drain_seconds - _LAST_WRITE, 0)
        self._membership.draining = True
        self._stop_within(max(limit - _MARGIN, 0))
        try:
            async with asyncio.timeout(limit):
                await self._runner.idle()
        except TimeoutError:
            _log.error("exiting now: not stopped within %g s: %s", limit, sorted(self._runner.held))
            self._exit_now(1)
            return
        if acknowledge and self._reporter is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WRITE):
                    await self._reporter.flush()

    async def _keep_in_time(self) -> None:
        """Stop all jobs whenever the Lease was lost or not renewed in time, then begin a new session."""
        membership = self._membership
        while True:
            await asyncio.sleep(_LOOK)
            times, now = membership.times, fence.now()
            if times is not None and self._runner.held and now >= times.stop_at:
                membership.fenced = True
            self._arm()
            if membership.fenced:
                _log.error("stopping all jobs: the Lease was not renewed in time, or another session took it")
                # Half of the time that is left: the kernel may need the other half to end processes.
                self._stop_within((times.exit_at - now) / 2 if times else math.inf)
                await self._runner.idle()
                self.stop_by = None
                membership.begin_session()
                self._apply()

    def _stop_within(self, seconds: float) -> None:
        limit = fence.now() + seconds
        self.stop_by = limit if self.stop_by is None else min(limit, self.stop_by)
        self._apply()

    def _apply(self) -> None:
        # The watchdog is armed before any handler is called, because a handler may block the event loop.
        self._arm()
        self._runner.want(self._membership.wanted)

    def _arm(self) -> None:
        times = self._membership.times
        works = bool(self._membership.wanted or self._runner.held)
        self._watchdog.arm(times.exit_at if times and works else None)

    def _found(self, share: Share) -> None:
        before = self._membership.applied
        if self._membership.offer(share, fence.now()) and self._reporter is not None:
            self._reporter.renew()
        if self._membership.applied is not before:
            _log.info("share %d: %d jobs to run", share.version, len(self._membership.wanted))
        self._log_problem(self._membership.problem)
        self._apply()

    def _problem(self, text: str) -> None:
        self._membership.problem = text
        self._log_problem(text)

    def _log_problem(self, problem: str) -> None:
        if problem and problem != self._logged_problem:
            # At start, the share that is found was usually written for an earlier process.
            level = logging.INFO if self._membership.applied.wanted is None else logging.WARNING
            _log.log(level, "the latest share is not used: %s", problem)
        self._logged_problem = problem

    def _taken(self, sent_at: float) -> None:
        self._membership.renewed(sent_at, fence.now())
        self._apply()

    def _changed(self) -> None:
        if self._reporter is not None:
            self._reporter.changed()

    def _acknowledgement(self) -> dict[str, Any]:
        return self._membership.acknowledgement(self._runner.held)

    def _version(self) -> dict[str, Any]:
        jobs = None if self._membership.applied.wanted is None else sorted(self._runner.held)
        return {"jobs": jobs, **self._acknowledgement()}

    def _metrics(self) -> str:
        return render(
            self._runner.held,
            version=self._membership.applied.version,
            failures=self._runner.failures,
            share_problem=bool(self._membership.problem),
            draining=self._membership.draining,
            exits=self._exits,
        )

    async def _alone(self, stack: contextlib.AsyncExitStack) -> bool:
        """Wait until no other process runs as this worker; return False if this process is stopped before that."""
        taking = asyncio.create_task(stack.enter_async_context(alone(self.identity)))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({taking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return taking.done()
        finally:
            taking.cancel()
            stopping.cancel()
            await asyncio.gather(taking, stopping, return_exceptions=True)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def on_signal(number: signal.Signals) -> None:
            if self._stopping.is_set():
                self._exit_now(128 + number)
            self.drain()

        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, on_signal, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def alone(worker: str) -> AsyncIterator[None]:
    """Wait until no other process in this network namespace runs as the worker, and hold the lock within the block.

    The lock is an abstract socket name, which the kernel releases when the process ends for any reason. On systems
    other than Linux there is no lock.
    """
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        is_logged = False
        while sys.platform == "linux" and not _take(held, worker):
            if not is_logged:
                _log.warning("waiting until another process of worker %s exits", worker)
            is_logged = True
            await asyncio.sleep(_POLL)
        yield
    finally:
        held.close()


def _take(held: socket.socket, worker: str) -> bool:
    try:
        held.bind(f"\0virtual-node-swarm/{hashlib.sha256(worker.encode()).hexdigest()}")
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


class Tasks:
    """Runs jobs that are one coroutine each.

    The coroutine runs as long as this worker has the job. To stop the job, the coroutine is cancelled; the job has stopped
    when the coroutine has returned. A coroutine that returns or raises earlier is started again after a pause.
    """

    def __init__(self, run: Callable[[Job], Awaitable[None]], settings: Settings | None = None) -> None:
        """Create the worker.

        Args:
            run: runs a job.
            settings: settings that override the environment.

        Raises:
            SetupError: a setting is missing.
        """
        self._run = run
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.worker = Worker(self._on_start, self._on_stop, settings)

    async def _on_start(self, job: Job) -> None:
        task = asyncio.ensure_future(self._run(job))
        self._tasks[job.name] = task
        task.add_done_callback(lambda ended: self._ended(job, ended))

    async def _on_stop(self, job: Job) -> None:
        task = self._tasks.pop(job.name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    def _ended(self, job: Job, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self._tasks.get(job.name) is task:
            self.worker.failed(job, repr(error) if error else "ended by itself")
