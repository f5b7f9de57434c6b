"""The work queue keeps client-go's promises (util/workqueue/doc.go)."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from prometheus_client import REGISTRY

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


async def test_a_queued_key_is_raised_to_a_higher_priority():
    """An urgent add is not swallowed by the key's place in the backlog; a lower one changes nothing."""
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
    """A key that is under way when the urgent add comes goes before the backlog once it is done."""
    queue: WorkQueue[str] = WorkQueue("raise-busy")
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("b")
    queue.add("a")
    queue.add("a", priority=5)
    queue.done("a")
    assert [await queue.get() for _ in range(2)] == ["a", "b"]


async def test_done_without_get_changes_nothing():
    """A done too many does not put a queued key there twice."""
    queue: WorkQueue[str] = WorkQueue("done-twice")
    queue.add("a")
    queue.done("a")
    assert len(queue) == 1
    assert await queue.get() == "a"
    queue.done("a")
    queue.done("a")
    assert len(queue) == 0


@pytest.mark.looptime
async def test_drain_waits_for_work_under_way_for_every_caller():
    """shut_down_with_drain returns, to two callers alike, when the last key is done and not before."""
    queue: WorkQueue[str] = WorkQueue("drain")
    queue.add("a")
    queue.add("b")
    key = await queue.get()
    queue.add(key)
    draining = [asyncio.create_task(queue.shut_down_with_drain()) for _ in range(2)]
    await asyncio.sleep(0)
    queue.done(key)
    for expected in ("b", "a"):
        assert not any(task.done() for task in draining)
        assert await queue.get() == expected
        queue.done(expected)
    await asyncio.wait_for(asyncio.gather(*draining), 1)
    await asyncio.wait_for(queue.shut_down_with_drain(), 1)


@pytest.mark.looptime
async def test_first_add_after_a_failure_is_at_once():
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
async def test_delayed_keys_come_in_the_order_of_their_times():
    """Many delays of many keys ripen by time, and one timer serves them all."""
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
async def test_metrics_are_those_of_client_go():
    """Depth, adds, retries, latency, duration and work under way are told by queue name."""
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


class Model(RuleBasedStateMachine):
    """The queue beside a model of it: which keys are owed a visit, and which are with a worker."""

    keys = st.integers(0, 4)
    priorities = st.integers(-1, 1)

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.queue: WorkQueue[int] = WorkQueue("model")
        self.owed: dict[int, int] = {}
        self.busy: set[int] = set()

    def run(self, coroutine: Coroutine[Any, Any, int]) -> int:
        return self.loop.run_until_complete(coroutine)

    @rule(key=keys, priority=priorities)
    def add(self, key: int, priority: int) -> None:
        async def inside() -> int:
            self.queue.add(key, priority=priority)
            return 0

        self.run(inside())
        self.owed[key] = max(priority, self.owed.get(key, priority))

    @precondition(lambda self: self.owed.keys() - self.busy)
    @rule()
    def get(self) -> None:
        key = self.run(asyncio.wait_for(self.queue.get(), 60))
        assert key not in self.busy
        best = max(self.owed[other] for other in self.owed.keys() - self.busy)
        assert self.owed.pop(key) == best
        self.busy.add(key)

    @rule(key=keys)
    def done(self, key: int) -> None:
        self.queue.done(key)
        self.busy.discard(key)

    @invariant()
    def depth(self) -> None:
        assert len(self.queue) == len(self.owed.keys() - self.busy)

    def teardown(self) -> None:
        self.loop.close()


def test_any_sequence_keeps_the_promises():
    """Whatever is added, taken and done in whatever order: owed keys come once each, the most urgent first."""
    run_state_machine_as_test(
        Model, settings=settings(max_examples=50, stateful_step_count=30, deadline=None)
    )


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


@pytest.mark.looptime
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


async def test_metrics_keep_no_queue_alive():
    """One that nobody ever worked on, for its cluster never answered, is gone with its keys."""
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
