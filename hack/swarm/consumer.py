"""An example worker: ``python -m hack.swarm.consumer FOLDER`` appends to one file per job until the job is stopped.

``python -m hack.swarm.consumer FOLDER JOB`` is one job's process, for the sidecar:
``virtual-node-swarm worker --exec 'python -m hack.swarm.consumer FOLDER {job}'``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from pathlib import Path

from hack.swarm.token_log import StaleTokenError, append
from swarm.worker import Job, Tasks

_INTERVAL = 0.2
"""Seconds between two lines."""


def main() -> int:
    """Run as a worker, or as the process of one job."""
    folder, *job = sys.argv[1:]
    if job:
        return _process(Path(folder), job[0])
    logging.basicConfig(level=logging.INFO)
    return asyncio.run(_worker(Path(folder)))


async def _worker(folder: Path) -> int:
    async def consume(job: Job) -> None:
        def write(event: str) -> None:
            append(folder, job.name, token=job.token, worker=worker.settings.worker, event=event)

        write("start")
        try:
            while True:
                await asyncio.sleep(_INTERVAL)
                write("work")
        finally:
            with contextlib.suppress(StaleTokenError):
                write("stop")

    worker = Tasks(consume).worker
    return await worker.run()


def _process(folder: Path, job: str) -> int:
    def write(event: str) -> None:
        append(folder, job, token=token, worker=os.environ.get("HOSTNAME", ""), event=event)

    token = int(os.environ["SWARM_FENCING_TOKEN"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    write("start")
    try:
        while True:
            time.sleep(_INTERVAL)
            write("work")
    finally:
        with contextlib.suppress(StaleTokenError):
            write("stop")


if __name__ == "__main__":
    sys.exit(main())
