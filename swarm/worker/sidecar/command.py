"""``virtual-node-swarm worker``: the sidecar that runs one process per job."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import sys
from collections.abc import Sequence

from swarm.worker.identity import Settings, SetupError
from swarm.worker.jobs.state import Job
from swarm.worker.sidecar.process import Processes, arguments
from swarm.worker.sidecar.reaper import Reaper
from swarm.worker.worker import Worker

PROGRAM = "virtual-node-swarm worker"
_LEVELS = ("debug", "info", "warning", "error")
_GRACE = 10.0


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sidecar's flags. Flags that are not given are read from the environment (``docs/swarm-worker.md``)."""
    parser.add_argument(
        "--exec",
        required=True,
        metavar="COMMAND",
        help="command of one job, split like a shell does, without a shell; {job} and {token} are replaced",
    )
    for name, text in (
        ("swarm", "name of the Swarm (SWARM_NAME)"),
        ("namespace", "its namespace (SWARM_NAMESPACE, POD_NAMESPACE, the service account's)"),
        ("worker", "name of this pod (SWARM_WORKER, POD_NAME, HOSTNAME)"),
        ("pod-uid", "UID of this pod in the upper cluster (SWARM_POD_UID, the service account token's)"),
        ("api-server", "URL of the upper cluster's API server (SWARM_API_SERVER)"),
        ("token-file", "bearer token (SWARM_TOKEN_FILE, the service account's)"),
        ("ca-file", "CA of the API server (SWARM_CA_FILE, the service account's)"),
        ("client-cert-file", "client certificate (SWARM_CLIENT_CERT_FILE)"),
        ("client-key-file", "its key (SWARM_CLIENT_KEY_FILE)"),
        ("file", "read the share from this file or directory instead of the API (SWARM_FILE)"),
    ):
        parser.add_argument(f"--{name}", default="", metavar=name.split("-")[-1].upper(), help=text)
    for name, metavar, kind, default, text in (
        ("http-port", "N", int, None, "status and metrics (HTTP_PORT, 9090; 0: none)"),
        ("drain-seconds", "S", float, 25.0, "time to stop all jobs after SIGTERM (25)"),
        ("kill-seconds", "S", float, _GRACE, "between a job's SIGTERM and SIGKILL (10)"),
    ):
        parser.add_argument(f"--{name}", type=kind, default=default, metavar=metavar, help=text)
    parser.add_argument("--log-level", default="info", choices=_LEVELS, help="(info)")


def main(argv: Sequence[str] | None = None, program: str = PROGRAM) -> int:
    """Run the sidecar until SIGTERM; return the exit code."""
    parser = argparse.ArgumentParser(
        program, description="Runs one worker of a Swarm, with a process per job."
    )
    _add_arguments(parser)
    flags = parser.parse_args(argv)
    logging.basicConfig(
        level=flags.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    try:
        return asyncio.run(_run(flags))
    except SetupError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)  # noqa: T201 - for the user
        return 1


async def _run(flags: argparse.Namespace) -> int:
    try:
        arguments(flags.exec, Job("job"))
    except ValueError as error:
        raise SetupError(f"--exec: {error}") from error
    processes = Processes(
        flags.exec,
        reaper=(reaper := Reaper()),
        grace=flags.kill_seconds,
        ended=lambda job, text: worker.failed(job, text),  # noqa: PLW0108 - ``worker`` is created below
        stop_by=lambda: worker.stop_by,
    )
    worker = Worker(
        processes.on_start,
        processes.on_stop,
        _settings(flags),
        prepare=processes.end_orphans,
        exits=processes.exits,
    )
    processes.worker = worker.identity
    with reaper.running():
        try:
            return await worker.run()
        finally:
            await processes.close()


def _settings(flags: argparse.Namespace) -> Settings:
    given = vars(flags)
    return Settings(**{one.name: given[one.name] for one in dataclasses.fields(Settings)})
