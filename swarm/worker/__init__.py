"""Library and sidecar for the workers of a Swarm. Depends on aiohttp only. Workers import only the names in ``__all__``.

from swarm.worker import Job, Worker

async def on_start(job: Job) -> None: ...
async def on_stop(job: Job) -> None: ...

sys.exit(asyncio.run(Worker(on_start, on_stop).run()))
"""

from __future__ import annotations

from swarm.worker.identity import Settings, SetupError
from swarm.worker.jobs import Job
from swarm.worker.worker import Tasks, Worker

__all__ = ["Job", "Settings", "SetupError", "Tasks", "Worker"]
