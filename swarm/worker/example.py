"""An example worker: ``python3 -m swarm.worker.example`` logs a line for each of its jobs every few seconds."""

from __future__ import annotations

import asyncio
import logging
import sys

from swarm.worker.jobs import Job
from swarm.worker.worker import Tasks

_INTERVAL = 5.0
_log = logging.getLogger("example")


async def work(job: Job) -> None:
    """Log that a job works, until cancelled. A real job gives the token to its store, which refuses older tokens."""
    _log.info("%s: started with fencing token %s", job.name, job.token)
    try:
        while True:
            await asyncio.sleep(_INTERVAL)
            _log.info("%s: works", job.name)
    finally:
        _log.info("%s: stopped", job.name)


def main() -> int:
    """Run the worker until a signal stops it; return the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    return asyncio.run(Tasks(work).worker.run())


if __name__ == "__main__":
    sys.exit(main())
