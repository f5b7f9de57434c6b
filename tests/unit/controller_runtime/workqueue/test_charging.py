"""Work is charged for the time in which it occupies the event loop or a thread, and behaves as without measurement."""

from __future__ import annotations

import asyncio
import time

import pytest

from controller_runtime.workqueue.controller import Controller
from controller_runtime.workqueue.fairness import charged, in_thread


def busy(seconds: float) -> None:
    """Occupy the CPU."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_charges_work_and_not_waiting():
    """Between the steps of the work, other tasks run."""
    charges: list[float] = []
    waits = asyncio.Event()

    async def work() -> str:
        busy(0.02)
        waits.set()
        await asyncio.sleep(0.3)
        busy(0.02)
        return "result"

    async def other() -> None:
        await waits.wait()
        busy(0.1)

    result, _ = await asyncio.gather(charged(work(), charges.append), other())
    assert result == "result"
    assert sum(charges) >= 0.04
    assert len(charges) >= 2
    assert sum(charges[:-1]) >= 0.02, "the first step is charged before the work ends"


async def test_charges_work_that_fails():
    """The error and its cause reach the caller."""
    charges: list[float] = []

    async def work() -> None:
        busy(0.01)
        await asyncio.sleep(0)
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        await charged(work(), charges.append)
    assert sum(charges) >= 0.01


async def test_cancellation_and_timeouts_reach_the_work():
    """As without the measurement."""
    seen: list[str] = []
    timed_out = asyncio.Event()

    async def work() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            seen.append("timeout")
            timed_out.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return ""

    task = asyncio.create_task(charged(work(), lambda _seconds: None))
    await timed_out.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["timeout", "cancelled"]


async def test_work_that_is_never_finished_is_closed():
    """Its ``finally`` runs when the loop drops it."""
    ended: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    pending = charged(work(), lambda _seconds: None)
    pending.send(None)
    pending.close()
    assert ended == [True]


async def test_charges_cpu_time_of_threads():
    """To the key that is reconciled; outside of a reconcile to nobody."""
    charges: list[float] = []

    async def work() -> int:
        await in_thread(busy, 0.05)
        return await in_thread(len, "abc")

    assert await charged(work(), charges.append) == 3
    assert sum(charges) >= 0.05
    count = len(charges)
    await in_thread(busy, 0.01)
    assert len(charges) == count


async def test_controller_serves_cheap_namespaces_before_an_expensive_one():
    """The time of each reconcile is measured, not declared."""
    order: list[str] = []
    finished = asyncio.Event()

    async def reconcile(key: str) -> None:
        order.append(key.partition("/")[0])
        if key.startswith("slow/"):
            busy(0.03)
        await asyncio.sleep(0)
        if order.count("fast") == 60:
            finished.set()

    controller = Controller("charged", reconcile, flow=lambda key: key.partition("/")[0])
    for number in range(60):
        controller.enqueue(f"slow/{number}")
        controller.enqueue(f"fast/{number}")
    task = asyncio.create_task(controller.run())
    await finished.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert order.count("slow") <= 10
