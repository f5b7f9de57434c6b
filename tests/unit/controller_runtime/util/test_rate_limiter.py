"""The token bucket, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random

import pytest

from controller_runtime.util.rate_limiter import TokenBucket

pytestmark = pytest.mark.looptime


def now() -> float:
    """The loop's virtual time."""
    return asyncio.get_running_loop().time()


async def times(bucket: TokenBucket, count: int) -> list[float]:
    """Return when each of so many simultaneous requests is let through, from now."""
    start = now()

    async def one() -> float:
        await bucket.acquire()
        return now() - start

    return await asyncio.gather(*(one() for _ in range(count)))


async def test_burst_then_steady() -> None:
    """client-go's defaults, 5 qps and burst 10: ten calls at once, the eleventh after 200 ms."""
    found = await times(TokenBucket(5, 10), 13)
    assert found == pytest.approx([0.0] * 10 + [0.2, 0.4, 0.6])


async def test_idle_time_saves_no_more_than_the_burst() -> None:
    bucket = TokenBucket(10, 3)
    await times(bucket, 3)
    await asyncio.sleep(3600)
    assert await times(bucket, 4) == pytest.approx([0, 0, 0, 0.1])


async def test_part_of_the_burst_is_restored() -> None:
    """Tokens return at the steady rate while there are no requests."""
    bucket = TokenBucket(10, 5)
    await times(bucket, 5)
    await asyncio.sleep(0.25)
    assert await times(bucket, 3) == pytest.approx([0, 0, 0.05])


@pytest.mark.parametrize("qps", [0, -1])
async def test_zero_means_no_limit(qps: float) -> None:
    assert max(await times(TokenBucket(qps, 1), 10_000)) == 0


@pytest.mark.parametrize("burst", [0, -5])
async def test_burst_is_at_least_one(burst: int) -> None:
    assert await times(TokenBucket(2, burst), 2) == pytest.approx([0, 0.5])


async def test_flows_take_turns() -> None:
    """A flood in one flow delays another flow's request by one turn only."""
    bucket, order = TokenBucket(1, 1), list[str]()

    async def one(flow: str, number: int) -> None:
        await bucket.acquire(flow)
        order.append(f"{flow}{number}")

    async with asyncio.TaskGroup() as group:
        for number in range(5):
            group.create_task(one("flood", number))
        await asyncio.sleep(0)
        group.create_task(one("lease", 0))
        group.create_task(one("event", 0))
        group.create_task(one("event", 1))
    assert order == [
        "flood0",
        "flood1",
        "lease0",
        "event0",
        "flood2",
        "event1",
        "flood3",
        "flood4",
    ]


async def test_late_request_does_not_overtake() -> None:
    """A new token goes to a waiting request, even if a new request arrives first."""
    bucket, order = TokenBucket(1, 1), list[str]()

    async def one(name: str) -> None:
        await bucket.acquire()
        order.append(name)

    await bucket.acquire()
    waiting = asyncio.create_task(one("early"))
    await asyncio.sleep(0)
    await asyncio.sleep(1)
    await asyncio.gather(waiting, one("late"))
    assert order == ["early", "late"]
    assert now() == pytest.approx(2)


async def test_new_requests_do_not_overtake_in_a_busy_loop() -> None:
    """A new request before the loop serves the waiting ones queues behind them."""
    bucket, overtaken = TokenBucket(1, 1), list[bool]()

    def ask() -> None:
        newcomer = bucket.acquire()
        try:
            newcomer.send(None)
        except StopIteration:
            overtaken.append(True)
        else:
            overtaken.append(False)
            newcomer.close()

    await bucket.acquire()
    # In the same turn of the loop as the bucket's own timer, and before it.
    asyncio.get_running_loop().call_at(now() + 1, ask)
    await bucket.acquire()
    assert now() == pytest.approx(1)
    assert overtaken == [False]


async def test_cancelled_waiter_takes_no_token() -> None:
    """The next one moves up."""
    bucket = TokenBucket(1, 1)
    await bucket.acquire()
    first = asyncio.create_task(bucket.acquire())
    second = asyncio.create_task(bucket.acquire())
    await asyncio.sleep(0.5)
    first.cancel()
    await second
    assert now() == pytest.approx(1)
    assert first.cancelled()


async def test_cancelled_in_the_moment_of_service_passes_the_token_on() -> None:
    """A token granted in the same turn of the loop as the cancellation goes to the next in line."""
    bucket = TokenBucket(1, 1)
    await bucket.acquire()
    first = asyncio.create_task(bucket.acquire())
    second = asyncio.create_task(bucket.acquire())
    await asyncio.sleep(0)
    # Due at the same moment as the bucket's own timer, and scheduled after it.
    asyncio.get_running_loop().call_at(now() + 1, first.cancel)
    await second
    assert now() == pytest.approx(1)
    assert first.cancelled()
    assert await times(bucket, 1) == pytest.approx([1])


async def test_all_waiters_cancelled() -> None:
    """Their tokens are available to the next request."""
    bucket = TokenBucket(1, 2)
    await times(bucket, 2)
    waiting = [asyncio.create_task(bucket.acquire(flow)) for flow in "aab"]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await asyncio.sleep(5)
    assert await times(bucket, 3) == pytest.approx([0, 0, 1])


@pytest.mark.parametrize("seed", range(20))
async def test_never_above_the_rate_and_never_idle(seed: int) -> None:
    """Random flows, arrivals and cancellations: the rate holds, flows are FIFO, and every request is served."""
    chance = random.Random(seed)
    qps, burst = chance.choice([(5, 1), (50, 10), (3, 7)])
    bucket, served = TokenBucket(qps, burst), list[tuple[float, str, int]]()
    start = now()

    async def one(flow: str, number: int) -> None:
        await bucket.acquire(flow)
        served.append((now() - start, flow, number))

    tasks: list[asyncio.Task[None]] = []
    cancelled = set[int]()
    for number in range(120):
        tasks.append(asyncio.create_task(one(chance.choice("abc"), number)))
        if chance.random() < 0.1:
            victim = chance.randrange(len(tasks))
            if tasks[victim].cancel():
                cancelled.add(victim)
        await asyncio.sleep(chance.choice([0, 0, 0, 0.01, 0.3]))
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)

    assert {number for _, _, number in served} == set(range(120)) - cancelled
    for flow in "abc":
        numbers = [number for _, name, number in served if name == flow]
        assert numbers == sorted(numbers)
    moments = [moment for moment, _, _ in served]
    for (first, early), (last, late) in itertools.combinations(enumerate(moments), 2):
        assert last - first + 1 <= burst + (late - early) * qps + 1e-6
