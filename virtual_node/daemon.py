"""The daemon of ``virtual-node``, and a process of ``--workers``."""

from __future__ import annotations

from collections.abc import Sequence

from controller_runtime import log
from controller_runtime.errors import ConfigError
from controller_runtime.process import lifecycle
from controller_runtime.process.program import start
from virtual_node.config import command_line
from virtual_node.config.command_line import DaemonSettings
from virtual_node.workers import GRACE, LOOPBACK, Parent, Worker


async def run(settings: DaemonSettings) -> int:
    """Run the daemon until it ends or a signal stops it; return the exit code for the process.

    Raises:
        ConfigError: a setting or file is wrong and the user must correct it.
    """
    argv = settings.argv
    if settings.waits:
        from virtual_node import config_status  # noqa: PLC0415 - loaded only with --wait-for-config

        waiting = config_status.Waiting(settings, lambda: command_line.PROGRAM.parse(argv))
        code = await lifecycle.run_until_signal(waiting.run())
        if not waiting.is_over:  # stopped by a signal
            return code
        settings = waiting.options
    if settings.config.workers > 1:
        grace = settings.config.kubelet.drain_timeout + GRACE
        return await lifecycle.run_until_signal(Parent(settings.config, argv).run(), grace=grace)
    return await _run_app(settings)


async def _run_app(settings: DaemonSettings, worker: Worker | None = None) -> int:
    from virtual_node.app import App  # noqa: PLC0415 - the parent of workers and a waiting process do not need it

    app = App(settings, worker=worker)
    return await lifecycle.run_until_signal(app.run(), grace=app.grace)


def run_worker(arguments: Sequence[str]) -> int:
    """Run a process of ``--workers``. An invalid configuration ends the process, and the parent restarts it."""
    worker, rest = Worker.parse(arguments)
    log.bind(worker=worker.number)

    async def run(settings: DaemonSettings) -> int:
        worker.stop_with_parent()
        return await _run_app(settings, worker)

    settings = command_line.PROGRAM.parse(rest)
    if settings.rejected:
        raise ConfigError(settings.rejected)
    # The parent decided at its start whether metrics are served. The configuration file may have changed since then.
    settings.config.metrics_address = f"{LOOPBACK}:0" if worker.listener >= 0 else ""
    return start(settings, run)
