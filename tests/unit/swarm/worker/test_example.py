"""The example worker of the documentation."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest

from swarm.worker import Job
from swarm.worker.example import work


@pytest.mark.looptime
async def test_example_logs_start_work_and_stop_of_a_job(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)
    task = asyncio.create_task(work(Job("backup", 7)))
    await asyncio.sleep(6)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert [record.getMessage() for record in caplog.records] == [
        "backup: started with fencing token 7",
        "backup: works",
        "backup: stopped",
    ]
