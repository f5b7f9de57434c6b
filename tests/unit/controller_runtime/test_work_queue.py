"""The work queue keeps client-go's promises (util/workqueue/doc.go)."""

from __future__ import annotations

import asyncio
import random

import pytest

from controller_runtime.backoff import ExponentialBackoff, FastSlow, MaxOf
from controller_runtime.work_queue import QueueShutDown, WorkQueue


async def test_a_key_added_often_is_handed_out_once():
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


async def test_a_key_added_while_processed_comes_again_after_done():
    """A key under way goes to nobody else; its re-add waits for done, and counts once."""
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


async def test_never_two_workers_on_one_key_and_nothing_is_lost():
    """Ten thousand adds, sixteen workers: one worker per key at a time, every key seen after its last add."""
    queue: WorkQueue[int] = WorkQueue("workers")
    chance = random.Random(7)
    busy: set[int] = set()
    added: dict[int, int] = {}
    seen: dict[int, int] = {}

    async def work() -> None:
        while True:
            try:
                key = await queue.get()
            except QueueShutDown:
                return
            assert key not in busy
            busy.add(key)
            version = added[key]
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            seen[key] = max(seen.get(key, 0), version)
            busy.remove(key)
            queue.done(key)

    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(work())
        for number in range(10_000):
            key = chance.randrange(200)
            added[key] = number
            queue.add(key)
            if number % 20 == 0:
                await asyncio.sleep(0)
        await queue.shut_down_with_drain()
    assert seen == added


async def test_higher_priority_goes_first():
    """Live events overtake the backlog of the start."""
    queue: WorkQueue[str] = WorkQueue("priority")
    queue.add("old", priority=-1)
    queue.add("new")
    queue.add("urgent", priority=5)
    assert [await queue.get() for _ in range(3)] == ["urgent", "new", "old"]


@pytest.mark.looptime
async def test_delayed_adds_come_when_due_and_the_earlier_time_counts():
    """add_after waits; of two delays for one key the shorter one is kept; none at all is at once."""
    queue: WorkQueue[str] = WorkQueue("delayed")
    loop = asyncio.get_running_loop()
    start = loop.time()
    queue.add_after("slow", 60)
    queue.add_after("slow", 30)
    queue.add_after("slow", 90)
    queue.add_after("now", 0)
    assert await queue.get() == "now"
    assert await queue.get() == "slow"
    assert loop.time() - start == pytest.approx(30, abs=0.1)
    queue.done("slow")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 300)


@pytest.mark.looptime
async def test_failures_back_off_per_key_until_forgotten():
    """5, 10, 20 … ms for the failing key, nothing for the others; forget starts anew."""
    queue: WorkQueue[str] = WorkQueue("backoff")
    assert [queue.add_rate_limited("bad") for _ in range(5)] == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.08])
    assert queue.num_requeues("bad") == 5
    assert queue.num_requeues("good") == 0
    queue.forget("bad")
    assert queue.add_rate_limited("bad") == pytest.approx(0.005)
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
    """Workers that wait for a key are released."""
    queue: WorkQueue[str] = WorkQueue("release")
    waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.shut_down()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(outcome, QueueShutDown) for outcome in outcomes)


async def test_a_cancelled_getter_passes_its_turn_on():
    """A worker that is cancelled in the very turn a key came does not take it along."""
    queue: WorkQueue[str] = WorkQueue("cancel")
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    first.cancel()
    assert await asyncio.wait_for(second, 1) == "a"
    with pytest.raises(asyncio.CancelledError):
        await first


def test_exponential_backoff_stops_at_its_maximum():
    """2^18 x 5 ms would pass the cap: it is the cap, however often a key fails."""
    limiter = ExponentialBackoff(0.005, 1000)
    waits = [limiter.when("a") for _ in range(2000)]
    assert waits[17] == pytest.approx(655.36)
    assert waits[18] == waits[-1] == 1000


def test_fast_slow_and_the_longest_of_several():
    """A few quick attempts, then slow ones; MaxOf takes the longest wait."""
    limiter = MaxOf(FastSlow(0.1, 10, fast_attempts=2), ExponentialBackoff(1, 5))
    assert [limiter.when("a") for _ in range(4)] == [1, 2, 10, 10]
    assert limiter.num_requeues("a") == 4
    limiter.forget("a")
    assert limiter.when("a") == 1
