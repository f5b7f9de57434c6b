"""Workers let other tasks run between keys, in real time."""

from __future__ import annotations

import asyncio
import time

from controller_runtime.workqueue.controller import Controller


async def test_keys_without_requests_do_not_occupy_the_event_loop():
    """Each takes 2 ms and awaits nothing; another task runs every few keys."""

    async def reconcile(_key: str) -> None:
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass

    controller = Controller("busy", reconcile, workers=1)
    for number in range(50):
        controller.enqueue(f"k{number}")
    turns = 0
    running = asyncio.create_task(controller.run())
    while len(controller.queue):
        await asyncio.sleep(0)
        turns += 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert turns > 8
