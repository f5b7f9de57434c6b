"""Delayed keys: after a failure, or at a given time."""

from __future__ import annotations

import asyncio
import random

import pytest

from controller_runtime.util.rate_limiter import ExponentialBackoff
from controller_runtime.workqueue.queue import WorkQueue


@pytest.mark.looptime
async def test_first_add_after_a_failure_is_immediate():
    """Only the failed attempt waits: an event for a key in back-off is handed out without delay."""
    queue: WorkQueue[str] = WorkQueue("at-once")
    loop = asyncio.get_running_loop()
    for _ in range(15):
        queue.add_rate_limited("a")
    start = loop.time()
    queue.add("a")
    assert await queue.get() == "a"
    assert loop.time() == start


@pytest.mark.looptime
async def test_failed_keys_are_retried_at_once_when_an_outage_ends():
    """Delayed keys that did not fail wait on; a key that fails again continues its back-off."""
    queue: WorkQueue[str] = WorkQueue("outage")
    start = asyncio.get_running_loop().time()
    queue.add_after("waits", 300)
    for key in ("a", "b"):
        delays = [queue.add_rate_limited(key) for _ in range(12)]
    queue.retry_failed()
    assert [await queue.get(), await queue.get(), len(queue)] == ["a", "b", 0]
    assert queue.add_rate_limited("a") > delays[-1]
    queue.done("a")
    queue.done("b")
    assert await queue.get() == "a"
    assert asyncio.get_running_loop().time() - start < 300


@pytest.mark.looptime
async def test_delayed_keys_are_ordered_by_time():
    """One timer serves them all."""
    queue: WorkQueue[int] = WorkQueue("ripen")
    loop = asyncio.get_running_loop()
    start = loop.time()
    seconds = list(range(1, 101))
    random.Random(3).shuffle(seconds)
    for number in seconds:
        queue.add_after(number, number)
    for number in range(1, 101):
        assert await queue.get() == number
        assert loop.time() - start == pytest.approx(number, abs=0.01)


@pytest.mark.looptime
async def test_dropped_keys_are_not_handed_out_and_need_no_memory():
    """Most keys of a churn are gone long before their time."""
    queue: WorkQueue[int] = WorkQueue("churn")
    queue.add_after(-1, 3000)
    for number in range(10_000):
        queue.add_after(number, 3600)
        queue.add_after(number, 3500)
        queue.drop_delayed(number)
    assert len(queue._heap) < 1100
    queue.drop_delayed(-2)
    assert await queue.get() == -1
    await asyncio.sleep(3600)
    assert len(queue) == 0


@pytest.mark.looptime
async def test_the_earlier_of_two_delays_counts():
    """add_after waits; without a delay the key is added at once."""
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
    """5, 10, 20 … ms for the failing key, nothing for the others; forget resets it."""
    queue: WorkQueue[str] = WorkQueue("backoff")
    assert [queue.add_rate_limited("bad") for _ in range(5)] == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.08])
    assert queue.num_requeues("bad") == 5
    assert queue.num_requeues("good") == 0
    queue.forget("bad")
    assert queue.add_rate_limited("bad") == pytest.approx(0.005)
    queue.shut_down()


def test_exponential_backoff_stops_at_its_maximum():
    """2^18 x 5 ms would pass the cap: it is the cap, however often a key fails."""
    limiter = ExponentialBackoff(0.005, 1000)
    waits = [limiter.when("a") for _ in range(2000)]
    assert waits[17] == pytest.approx(655.36)
    assert waits[18] == waits[-1] == 1000
