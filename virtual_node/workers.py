"""Several processes on one machine that divide the lower clusters (``--workers N``).

The parent starts the processes, restarts those that end, and serves their health and merged metrics. ``Worker`` is what one
process gets from the parent, on its command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from subprocess import PIPE
from time import monotonic
from typing import Self

import aiohttp
import msgspec
import prometheus_client
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from controller_runtime.errors import ConfigError
from controller_runtime.process.listening import bind
from controller_runtime.serving.server import HealthServer
from controller_runtime.util import event_loop, rate_limiter
from virtual_node.config.program import WORKER
from virtual_node.config.types import Config
from virtual_node.sharding import local_host

LOOPBACK = "127.0.0.1"
_STDIN = 0
PATH = "/families"
LABEL = "worker"


@dataclass(frozen=True, slots=True)
class Worker:
    """One of the processes of ``--workers N``.

    Attributes:
        number: number of the worker, from 1.
        member: name of the replica. A restarted worker has the same name, so it gets its lower clusters back without
            waiting until its Lease expires. The parent has waited for the end of the earlier process.
        listener: file descriptor of the listening socket for health and metrics; -1: they are not served.
    """

    number: int
    member: str
    listener: int

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> tuple[Self, list[str]]:
        """Return the worker and the daemon's own arguments, given the arguments that follow ``WORKER``."""
        number, member, listener, *rest = arguments
        return cls(int(number), member, int(listener)), rest

    def arguments(self, rest: Sequence[str]) -> list[str]:
        """Return the command and its arguments, followed by the daemon's own."""
        return [WORKER, str(self.number), self.member, str(self.listener), *rest]

    def socket(self) -> socket.socket:
        """Return the listening socket that the parent has bound."""
        return socket.socket(fileno=self.listener)

    def stop_with_parent(self) -> None:
        """Send SIGTERM to this process when the parent ends, even if the parent was killed.

        Standard input is a pipe to which the parent writes nothing, so it becomes readable when the parent ends.
        """
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(_STDIN)
            os.kill(os.getpid(), signal.SIGTERM)

        loop.add_reader(_STDIN, ended)


class _Family(msgspec.Struct, array_like=True):
    name: str
    documentation: str
    type: str
    unit: str
    samples: list[tuple[str, dict[str, str], float]]


_DECODER = msgspec.msgpack.Decoder(list[_Family])


async def serve(_request: web.Request) -> web.Response:
    """Return the metrics of this process, for ``merged``."""
    return web.Response(body=await asyncio.to_thread(encoded, prometheus_client.REGISTRY))


def encoded(registry: CollectorRegistry) -> bytes:
    """Return the metrics of a registry, for ``merged``."""
    return msgspec.msgpack.encode(
        [
            _Family(
                found.name,
                found.documentation,
                found.type,
                found.unit,
                [(sample.name, sample.labels, float(sample.value)) for sample in found.samples],
            )
            for found in registry.collect()
        ]
    )


def merged(own: CollectorRegistry, workers: Mapping[int, bytes]) -> CollectorRegistry:
    """Return a registry with the metrics of this process and of workers.

    Args:
        own: the metrics of this process; their samples get no label.
        workers: what ``encoded`` returned in the workers, by number. Their samples get the label ``worker``.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(own, workers))
    return registry


class _Merged(Collector):
    def __init__(self, own: CollectorRegistry, workers: Mapping[int, bytes]) -> None:
        self._own, self._workers = own, workers

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}

        def add(family: _Family | Metric, samples: Iterable[Sample]) -> None:
            new = Metric(family.name, family.documentation, family.type, family.unit)
            families.setdefault(family.name, new).samples.extend(samples)

        for own in self._own.collect():
            add(own, own.samples)
        for number, page in self._workers.items():
            label = {LABEL: str(number)}
            for found in _DECODER.decode(page):
                add(found, [Sample(name, labels | label, value) for name, labels, value in found.samples])
        return families.values()


GRACE = 30.0
"""Seconds for an orderly shutdown in addition to ``kubelet.drainTimeout``; more than a worker itself needs."""
_ANSWER = 3.0
"""Seconds for a worker to answer; less than the timeouts of health checks and of scrapes."""
_PATIENCE = 30.0
"""Seconds for which a worker may fail its liveness check, because a restart of the command ends all workers."""
_WRONG_CONFIGURATION = 2
"""Exit code of a process with errors that only the user can correct."""
_RESTARTS = Counter(
    "virtual_node_worker_restarts_total", "Worker processes that ended and were started again.", ["worker"]
)


class Parent:
    """Runs the workers of a configuration until cancelled."""

    def __init__(self, config: Config, arguments: Sequence[str]) -> None:
        """Bind the workers' loopback ports.

        Args:
            config: the configuration; ``workers`` is more than 1.
            arguments: the daemon's arguments, which every worker gets.
        """
        self._config = config
        self._workers = [
            _Process(number, arguments, serves=bool(config.metrics_address))
            for number in range(1, config.workers + 1)
        ]
        self._session: aiohttp.ClientSession | None = None

    async def run(self) -> None:
        """Run the workers; when cancelled, stop them and wait for their end.

        Raises:
            ConfigError: an address cannot be used, or a worker ended at its first start with an error that only the
                user can correct.
        """
        async with contextlib.AsyncExitStack() as stack:
            if self._config.metrics_address:
                timeout = aiohttp.ClientTimeout(total=_ANSWER)
                self._session = await stack.enter_async_context(aiohttp.ClientSession(timeout=timeout))
                server = HealthServer(
                    self._config.metrics_address,
                    checks={"workers": lambda: self._trouble("readyz")},
                    setting="--metrics-addr (metricsAddress)",
                    registry=self._metrics,
                )
                server.health.add("workers-alive", lambda: self._trouble("livez"), live=True)
                await stack.enter_async_context(server)
            async with asyncio.TaskGroup() as group:
                for worker in self._workers:
                    group.create_task(worker.run(), name=f"worker {worker.number}")

    async def _metrics(self) -> CollectorRegistry:
        """Return the metrics of this process and of the workers that answer."""
        pages = await asyncio.gather(*(self._ask(worker, PATH) for worker in self._workers))
        return merged(
            prometheus_client.REGISTRY,
            {
                worker.number: body
                for worker, (status, body) in zip(self._workers, pages, strict=True)
                if status == 200
            },
        )

    async def _trouble(self, endpoint: str) -> str:
        """Return which workers do not pass a health endpoint; empty: all do.

        For ``livez``, a stopped worker passes, and so does one that has failed for less than ``_PATIENCE`` seconds.
        """
        is_live = endpoint == "livez"
        workers = [worker for worker in self._workers if worker.is_running or not is_live]
        statuses = await asyncio.gather(*(self._ask(worker, f"/{endpoint}") for worker in workers))
        state = "alive" if is_live else "ready"
        return "; ".join(
            f"worker {worker.number} {f'is not {state}' if status else 'does not answer'}"
            for worker, (status, _) in zip(workers, statuses, strict=True)
            if (worker.fails_for_long(passed=status == 200) if is_live else status != 200)
        )

    async def _ask(self, worker: _Process, path: str) -> tuple[int, bytes]:
        """Return status and body of a path of a worker; status 0: it does not answer."""
        if self._session is None or not worker.is_running:
            return 0, b""
        try:
            async with self._session.get(f"http://{LOOPBACK}:{worker.port}{path}") as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            return 0, b""


class _Process:
    """One worker and its restarts."""

    def __init__(self, number: int, arguments: Sequence[str], *, serves: bool) -> None:
        self.number = number
        # Bound here, so that the port is known and stays the same.
        self._listener = bind(LOOPBACK, 0) if serves else None
        self._worker = Worker(
            number=number,
            member=f"{local_host()}.{number}-{secrets.token_hex(4)}",
            listener=self._listener.fileno() if self._listener is not None else -1,
        )
        # This command without its arguments: an interpreter with its options, and a script or module.
        program = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
        self._command = [sys.executable, *program, *self._worker.arguments(arguments)]
        self._process: asyncio.subprocess.Process | None = None
        self._failing_since: float | None = None
        """Time of the first failure in a row of the liveness check; None: the last check passed, or none was made."""
        self._log = structlog.get_logger(component="workers", worker=number)

    @property
    def port(self) -> int:
        """Return the loopback port of health and metrics."""
        return int(self._listener.getsockname()[1]) if self._listener is not None else 0

    @property
    def is_running(self) -> bool:
        """Report whether the process runs."""
        return self._process is not None and self._process.returncode is None

    def fails_for_long(self, *, passed: bool) -> bool:
        """Record the result of a liveness check; report whether the process fails for ``_PATIENCE`` seconds."""
        if passed:
            self._failing_since = None
        elif self._failing_since is None:
            self._failing_since = monotonic()
        return self._failing_since is not None and monotonic() - self._failing_since >= _PATIENCE

    async def run(self) -> None:
        """Keep the process running until cancelled; then stop it and wait for its end.

        Raises:
            ConfigError: it ended at its first start with an error that only the user can correct.
        """
        restarts, is_first = rate_limiter.Restarts(), True
        while True:
            started = event_loop.now()
            try:
                code = await self._run_once()
            except OSError as error:
                reason = f"cannot be started: {error}"  # no memory, file descriptor or process is free
            else:
                if is_first and code == _WRONG_CONFIGURATION:
                    raise ConfigError(f"worker {self.number} cannot start; its error is printed above")
                is_first, reason = False, _reason(code)
            delay = restarts.delay(event_loop.now() - started)
            self._log.error("worker ended; restarting it", reason=reason, retry_in=round(delay, 1))
            await asyncio.sleep(delay)
            _RESTARTS.labels(str(self.number)).inc()

    async def _run_once(self) -> int:
        """Run the process until it ends; return its exit code.

        Raises:
            OSError: it cannot be started.
        """
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,  # closes when this process ends (Worker.stop_with_parent)
            pass_fds=[self._worker.listener] if self._listener is not None else [],
            process_group=0,  # Ctrl-C in a terminal goes to this process only, which stops the workers
        )
        self._failing_since = None
        self._log.info("worker started", pid=process.pid)
        try:
            return await process.wait()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
            raise


def _reason(code: int) -> str:
    """Return how a process ended: its exit code, or the signal that killed it."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"
