"""Flows of a work queue take turns, and none of them occupies all workers. In virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.workqueue.fairness import Lanes
from controller_runtime.workqueue.queue import QueueShutDown, WorkQueue

pytestmark = pytest.mark.looptime
WORKERS = 50


def flow(key: str) -> str:
    """Return the flow of a key ``flow/number``."""
    return key.partition("/")[0]


async def serve(
    queue: WorkQueue[str], *, seconds: float, done: dict[str, float], workers: int = WORKERS
) -> None:
    """Work on a queue until it is shut down; every key takes that long."""
    loop = asyncio.get_running_loop()

    async def work() -> None:
        while True:
            try:
                key = await queue.get()
            except QueueShutDown:
                return
            await asyncio.sleep(seconds)
            done[key] = loop.time()
            queue.done(key)

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())


@pytest.mark.parametrize("priority", [0, 1])
async def test_single_key_does_not_wait_for_ten_thousand_of_another_flow(priority: int) -> None:
    """Even if those are urgent."""
    queue: WorkQueue[str] = WorkQueue("flows", flow=flow, workers=WORKERS)
    loop, done = asyncio.get_running_loop(), dict[str, float]()
    for number in range(10_000):
        queue.add(f"noisy/{number}", priority=priority)
    async with asyncio.TaskGroup() as group:
        group.create_task(serve(queue, seconds=1.0, done=done))
        await asyncio.sleep(30.5)
        for number in range(5):
            queue.add(f"quiet{number}/pod")
        added = loop.time()
        await asyncio.sleep(5)
        assert all(done[f"quiet{number}/pod"] - added == pytest.approx(1.0) for number in range(5))
        queue.shut_down()
    assert len(done) == 10_005


async def test_single_key_does_not_wait_for_slow_work_of_another_flow() -> None:
    """While each key of one flow takes a minute, another flow still finds a free worker."""
    queue: WorkQueue[str] = WorkQueue("slow", flow=flow, workers=WORKERS)
    loop, done = asyncio.get_running_loop(), dict[str, float]()
    for tenant in ("a", "b", "c"):
        for number in range(1000):
            queue.add(f"{tenant}/{number}")
    task = asyncio.create_task(serve(queue, seconds=60.0, done=done))
    await asyncio.sleep(1)
    busy = Counter(flow(key) for key in queue._processing)
    assert sum(busy.values()) < WORKERS
    added = loop.time()
    queue.add("d/pod")
    await asyncio.sleep(60.5)
    assert done["d/pod"] - added == pytest.approx(60.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_one_flow_alone_uses_four_fifths_of_the_workers() -> None:
    """40 of 50."""
    queue: WorkQueue[str] = WorkQueue("alone", flow=flow, workers=WORKERS)
    for number in range(1000):
        queue.add(f"a/{number}")
    task = asyncio.create_task(serve(queue, seconds=60.0, done={}))
    await asyncio.sleep(1)
    assert len(queue._processing) == 40
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_priorities_hold_within_a_flow() -> None:
    """Flows take turns whatever their priorities."""
    queue: WorkQueue[str] = WorkQueue("priorities", flow=flow)
    for key, priority in (("a/1", 0), ("a/2", 1), ("b/1", 0), ("a/3", 1)):
        queue.add(key, priority=priority)
    assert [await queue.get() for _ in range(4)] == ["a/2", "b/1", "a/3", "a/1"]


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 50])
async def test_drain_includes_keys_that_wait_for_their_share(workers: int) -> None:
    """Every worker ends."""
    queue: WorkQueue[str] = WorkQueue("drain", flow=flow, workers=workers)
    done: dict[str, float] = {}
    task = asyncio.create_task(serve(queue, seconds=1.0, done=done, workers=workers))
    await asyncio.sleep(0.1)
    for number in range(200):
        queue.add(f"a/{number}")
    await asyncio.sleep(0.5)
    queue.shut_down()
    await task
    assert len(done) == 200


@given(
    st.lists(
        st.tuples(st.sampled_from(["push", "pop", "release", "pull"]), st.integers(0, 11), st.integers(0, 1)),
        max_size=80,
    ),
    st.integers(0, 4),
)
def test_flows_lose_and_double_nothing(steps: list[tuple[str, int, int]], workers: int) -> None:
    """Each key is handed out once, and one is available whenever no flow is at its bound."""
    lanes: Lanes[str] = Lanes(flow, workers=workers)
    queued: dict[str, int] = {}
    held: list[str] = []
    for what, number, priority in steps:
        key = f"f{number % 3}/{number}"
        if what == "push" and key not in queued and key not in held:
            lanes.push(key, priority)
            queued[key] = priority
        elif what == "pull" and key in queued:
            lanes.pull(key, queued.pop(key))
        elif what == "release" and held:
            lanes.finish(held.pop(number % len(held)))
        elif what == "pop" and (not workers or len(held) < workers):
            found = lanes.pop()
            if found is not None:
                own = {one: p for one, p in queued.items() if flow(one) == flow(found)}
                assert own[found] == max(own.values())
                del queued[found]
                held.append(found)
            elif queued:
                assert held, "nobody works, and nothing is given out"
        assert len(lanes) == len(queued)
        assert bool(lanes) == bool(queued)
    for key in held:
        lanes.finish(key)
    lanes.clear()
    assert not lanes._flows
    assert not lanes._flow_of


async def test_expensive_flow_waits_longer_than_cheap_ones() -> None:
    """Each key of one flow costs as much as fifty keys of another one."""
    queue: WorkQueue[str] = WorkQueue("expensive", flow=flow)
    for number in range(200):
        queue.add(f"slow/{number}")
        queue.add(f"fast/{number}")
    order = []
    for _ in range(104):
        key = await queue.get()
        order.append(flow(key))
        queue.charge(key, 0.05 if flow(key) == "slow" else 0.0)
        queue.done(key)
    assert Counter(order)["slow"] in range(2, 5)


async def test_idle_time_gives_no_advantage() -> None:
    """A flow that was idle while another one worked takes turns with it, and does not get all workers."""
    queue: WorkQueue[str] = WorkQueue("idle", flow=flow)
    for number in range(100):
        queue.add(f"busy/{number}")
    for _ in range(50):
        key = await queue.get()
        queue.charge(key, 0.05)
        queue.done(key)
    for number in range(50):
        queue.add(f"new/{number}")
    order = []
    for _ in range(20):
        key = await queue.get()
        order.append(flow(key))
        queue.charge(key, 0.05)
        queue.done(key)
    assert 9 <= Counter(order)["busy"] <= 11


async def test_cost_is_remembered_while_the_flow_has_no_key() -> None:
    """Else a flow would pay nothing by queueing one expensive key after the other."""
    queue: WorkQueue[str] = WorkQueue("remembered", flow=flow)
    for number in range(100):
        queue.add(f"fast/{number}")
    queue.add("slow/0")
    order = []
    for number in range(100):
        key = await queue.get()
        order.append(flow(key))
        queue.charge(key, 0.02 if flow(key) == "slow" else 0.0)
        queue.done(key)
        if flow(key) == "slow":
            queue.add(f"slow/{number + 1}")
    assert Counter(order)["slow"] in range(4, 7)


async def _used_share(queue: WorkQueue[str], cost: float, seconds: float) -> float:
    """Work on endless keys of one flow for some time; return the share of the time that the work took."""
    loop, used = asyncio.get_running_loop(), 0.0
    end = loop.time() + seconds
    while loop.time() < end:
        queue.add("a/pod")
        key = await queue.get()
        await asyncio.sleep(cost)  # in virtual time, this stands for work that occupies the loop
        queue.charge(key, cost)
        queue.done(key)
        used += cost
    return used / seconds


async def test_flow_alone_is_not_slowed_down_at_first() -> None:
    """Nor in the long run, if it uses less than its share."""
    assert await _used_share(WorkQueue("burst", flow=flow), 0.1, 9.0) == pytest.approx(1.0, abs=0.02)


async def test_flow_alone_uses_half_of_the_loop_in_the_long_run() -> None:
    """Somewhat less if each key takes longer than the complete budget."""
    assert await _used_share(WorkQueue("long", flow=flow), 0.1, 600.0) == pytest.approx(0.5, abs=0.02)
    assert 0.35 < await _used_share(WorkQueue("longer", flow=flow), 20.0, 5000.0) <= 0.5


async def test_flow_over_its_share_waits_in_all_queues_of_the_loop() -> None:
    """Others do not wait, and the wait of the flow does not count as a backlog."""
    queue: WorkQueue[str] = WorkQueue("spent", flow=flow)
    other: WorkQueue[str] = WorkQueue("other", flow=flow)
    queue.add("a/1")
    queue.charge(await queue.get(), 10.0)
    queue.done("a/1")
    other.add("a/2")
    other.add("b/1")
    loop = asyncio.get_running_loop()
    started = loop.time()
    assert await other.get() == "b/1"
    assert loop.time() == started
    waits = asyncio.create_task(other.get())
    await asyncio.sleep(5)
    assert other.oldest() == 0.0
    assert await waits == "a/2"
    assert loop.time() - started == pytest.approx(10.0)


async def test_queue_without_flows_is_not_limited() -> None:
    """Its keys belong to no tenant."""
    queue: WorkQueue[str] = WorkQueue("plain")
    for number in range(3):
        queue.add(f"a/{number}")
        key = await queue.get()
        queue.charge(key, 100.0)
        queue.done(key)
    assert asyncio.get_running_loop().time() < 1


async def test_drain_does_not_wait_for_paused_flows() -> None:
    """The process ends."""
    queue: WorkQueue[str] = WorkQueue("paused drain", flow=flow)
    queue.add("a/1")
    queue.charge(await queue.get(), 100.0)
    queue.done("a/1")
    queue.add("a/2")
    waits = asyncio.create_task(queue.get())
    await asyncio.sleep(1)
    queue.shut_down()
    assert await asyncio.wait_for(waits, 1) == "a/2"


@pytest.mark.parametrize("workers", [2, 3, 4, 5])
async def test_one_flow_never_holds_all_of_few_workers(workers: int) -> None:
    """One worker stays free for others."""
    queue: WorkQueue[str] = WorkQueue("few", flow=flow, workers=workers)
    for number in range(20):
        queue.add(f"a/{number}")
    task = asyncio.create_task(serve(queue, seconds=60.0, done={}, workers=workers))
    await asyncio.sleep(1)
    assert len(queue._processing) == workers - 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_flows_that_are_gone_are_forgotten() -> None:
    """Namespaces come and go, while one has always work."""
    lanes: Lanes[str] = Lanes(flow)
    lanes.push("always/0", 0)
    assert lanes.pop() == "always/0"
    for number in range(10_000):
        lanes.push(f"f{number}/0", 0)
        found = lanes.pop()
        assert found is not None
        lanes.finish(found)
    assert len(lanes._flows) < 3000
    assert len(lanes._heap) < 3000
