"""Stalls of the event loop are measured."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import REGISTRY

from controller_runtime.process import lifecycle

_NAME = "virtual_node_event_loop_stall_seconds"


def _late() -> float:
    """Return how many timers were late by more than a quarter of a second."""
    within = REGISTRY.get_sample_value(f"{_NAME}_bucket", {"le": "0.25"}) or 0.0
    return (REGISTRY.get_sample_value(f"{_NAME}_count") or 0.0) - within


async def test_blocking_callback_is_measured() -> None:
    """Half a second is counted, and measuring ends with its block."""
    before = _late()
    tasks = len(asyncio.all_tasks())
    async with lifecycle.measured():
        await asyncio.sleep(0.01)
        time.sleep(0.5)  # noqa: ASYNC251 - what is measured
        await asyncio.sleep(0.1)
        assert lifecycle.recent() > 0
    assert _late() > before
    assert lifecycle.recent() == lifecycle.busy() == 0.0
    assert len(asyncio.all_tasks()) == tasks


async def test_cpu_time_of_the_loop_is_measured() -> None:
    """A callback that computes counts, and one that only waits does not."""
    async with lifecycle.measured():
        await asyncio.sleep(0.01)
        time.sleep(0.3)  # noqa: ASYNC251 - uses no CPU time
        await asyncio.sleep(0.1)
        idle = lifecycle.busy()
        end = time.thread_time() + 0.3
        while time.thread_time() < end:
            pass
        await asyncio.sleep(0.1)
        assert lifecycle.busy() > idle + 0.2 / 30
