"""The work queue keeps client-go's guarantees (util/workqueue/doc.go)."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from prometheus_client import REGISTRY

from controller_runtime.workqueue.queue import QueueShutDown, WorkQueue, longest_wait


async def test_a_key_added_repeatedly_is_handed_out_once():
    """Stingy: a hundred adds before a get are one item."""
    queue: WorkQueue[str] = WorkQueue("stingy")
    for _ in range(100):
        queue.add("a")
    assert len(queue) == 1
    assert await queue.get() == "a"
    assert len(queue) == 0


async def test_keys_come_in_the_order_they_were_added():
    """Fair: first in, first out."""
    queue: WorkQueue[int] = WorkQueue("fair")
    for number in range(50):
        queue.add(number)
    assert [await queue.get() for _ in range(50)] == list(range(50))


async def test_a_key_added_while_processed_returns_after_done():
    """No other worker gets it before, and several adds count once."""
    queue: WorkQueue[str] = WorkQueue("again")
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0
    queue.done(key)
    assert len(queue) == 1
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_higher_priority_goes_first():
    """Live events overtake the backlog of the start."""
    queue: WorkQueue[str] = WorkQueue("priority")
    queue.add("old", priority=-1)
    queue.add("new")
    queue.add("urgent", priority=5)
    assert [await queue.get() for _ in range(3)] == ["urgent", "new", "old"]


async def test_a_queued_key_is_raised_to_a_higher_priority():
    """An urgent add raises it; a lower priority changes nothing."""
    queue: WorkQueue[str] = WorkQueue("raise")
    for key in "abc":
        queue.add(key)
    queue.add("c", priority=5)
    queue.add("c", priority=1)
    queue.add("b", priority=-1)
    assert len(queue) == 3
    assert [await queue.get() for _ in range(3)] == ["c", "a", "b"]
    assert len(queue) == 0


async def test_priority_given_while_processed_counts_after_done():
    """The key then goes before the backlog."""
    queue: WorkQueue[str] = WorkQueue("raise-busy")
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("b")
    queue.add("a")
    queue.add("a", priority=5)
    queue.done("a")
    assert [await queue.get() for _ in range(2)] == ["a", "b"]


async def test_done_without_get_changes_nothing():
    """It does not queue a key twice."""
    queue: WorkQueue[str] = WorkQueue("done-twice")
    queue.add("a")
    queue.done("a")
    assert len(queue) == 1
    assert await queue.get() == "a"
    queue.done("a")
    queue.done("a")
    assert len(queue) == 0


@pytest.mark.looptime
async def test_metrics_are_those_of_client_go():
    """Depth, adds, retries, latency, duration and work in progress by queue name."""
    queue: WorkQueue[str] = WorkQueue("metrics")

    def value(name: str) -> float | None:
        return REGISTRY.get_sample_value(f"workqueue_{name}", {"name": "metrics"})

    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert (value("depth"), value("adds_total")) == (2, 2)
    await asyncio.sleep(2)
    await queue.get()
    await asyncio.sleep(3)
    await queue.get()
    await asyncio.sleep(1)
    assert value("queue_duration_seconds_sum") == pytest.approx(2 + 5, abs=0.01)
    assert value("unfinished_work_seconds") == pytest.approx(4 + 1, abs=0.01)
    assert value("longest_running_processor_seconds") == pytest.approx(4, abs=0.01)
    queue.done("a")
    queue.done("b")
    queue.add_rate_limited("a")
    assert value("work_duration_seconds_sum") == pytest.approx(5, abs=0.01)
    assert (value("retries_total"), value("unfinished_work_seconds")) == (1, 0)
    queue.shut_down()


async def test_shutdown_drains_what_is_queued_then_ends():
    """After shut_down adds are ignored, the backlog is handed out, and then get raises."""
    queue: WorkQueue[str] = WorkQueue("shutdown")
    queue.add("a")
    queue.add_after("late", 0.01)
    queue.shut_down()
    queue.add("b")
    assert await queue.get() == "a"
    with pytest.raises(QueueShutDown):
        await queue.get()


async def test_waiting_getters_end_at_shutdown():
    queue: WorkQueue[str] = WorkQueue("release")
    waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.shut_down()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(outcome, QueueShutDown) for outcome in outcomes)


@pytest.mark.looptime
async def test_a_cancelled_getter_passes_its_key_on():
    """A worker that is cancelled in the same turn as a key arrives does not lose it."""
    queue: WorkQueue[str] = WorkQueue("cancel")
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 1) == "a"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_metrics_keep_no_queue_alive():
    """A queue that was never used, because its cluster never answered, is freed with its keys."""
    queue: WorkQueue[str] = WorkQueue("dropped")
    queue.add("a")
    assert REGISTRY.get_sample_value("workqueue_depth", {"name": "dropped"}) == 1
    found = weakref.ref(queue)
    del queue
    gc.collect()
    assert found() is None
    for name in (
        "workqueue_depth",
        "workqueue_unfinished_work_seconds",
        "workqueue_longest_running_processor_seconds",
    ):
        assert REGISTRY.get_sample_value(name, {"name": "dropped"}) == 0


@pytest.mark.looptime
async def test_the_oldest_waiting_key_is_measured() -> None:
    """Not keys that a worker has, or that wait for their time; a higher priority does not make a key younger."""
    first, second = WorkQueue[str]("first"), WorkQueue[str]("second")
    assert longest_wait() == 0
    first.add("a")
    await asyncio.sleep(3)
    second.add("b")
    second.add_after("later", 60)
    first.add("c")
    first.add("a", priority=1)
    await asyncio.sleep(2)
    assert (first.oldest(), second.oldest(), longest_wait()) == (5, 2, 5)
    assert await first.get() == "a"
    assert longest_wait() == 2
    await first.get()
    await second.get()
    assert longest_wait() == 0
