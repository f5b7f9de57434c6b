"""Workers reconcile keys until they succeed, whatever single reconciliations do."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY

from controller_runtime.errors import NotFound, RequestTooLarge
from controller_runtime.workqueue.controller import Controller, Result

pytestmark = pytest.mark.looptime

Start = Callable[..., Controller[str]]


def now() -> float:
    """The loop's virtual time."""
    return asyncio.get_running_loop().time()


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start controllers; they end with the test."""
    tasks: list[asyncio.Task[None]] = []

    def run(reconcile: Callable[[str], Awaitable[Result | None]], **options: Any) -> Controller[str]:
        controller = Controller("test", reconcile, **options)
        tasks.append(asyncio.create_task(controller.run()))
        return controller

    yield run
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert outcome is None or isinstance(outcome, asyncio.CancelledError)


async def test_an_object_that_is_too_large_is_not_retried(start: Start) -> None:
    """Until its key is queued again."""
    seen: list[str] = []

    async def reconcile(key: str) -> None:
        seen.append(key)
        raise RequestTooLarge("too large", code=413)

    controller = start(reconcile)
    controller.enqueue("a")
    await asyncio.sleep(3600)
    assert seen == ["a"]
    assert controller.queue.num_requeues("a") == 0
    controller.enqueue("a")
    await asyncio.sleep(1)
    assert seen == ["a", "a"]


async def test_success_forgets_the_key(start: Start) -> None:
    """It is reconciled once and has no failures."""
    seen: list[str] = []

    async def reconcile(key: str) -> None:
        seen.append(key)

    controller = start(reconcile)
    for key in "abca":
        controller.enqueue(key)
    await asyncio.sleep(3600)
    assert seen == ["a", "b", "c"]
    assert controller.queue.num_requeues("a") == 0


async def test_failure_is_retried_with_growing_pauses(start: Start) -> None:
    """5, 10, 20 ms; success forgets the failures."""
    moments: list[float] = []

    async def reconcile(_key: str) -> None:
        moments.append(now())
        if len(moments) < 4:
            raise NotFound("not yet", code=404)

    controller = start(reconcile)
    controller.enqueue("a")
    await asyncio.sleep(60)
    assert [late - early for early, late in itertools.pairwise(moments)] == pytest.approx(
        [0.005, 0.01, 0.02], abs=1e-4
    )
    assert controller.queue.num_requeues("a") == 0


async def test_failing_key_does_not_block_others(start: Start) -> None:
    """While one key backs off the single worker serves the rest."""
    seen: list[str] = []

    async def reconcile(key: str) -> None:
        seen.append(key)
        if key == "bad":
            raise RuntimeError("a bug")

    controller = start(reconcile)
    controller.enqueue("bad")
    controller.enqueue("good")
    await asyncio.sleep(0.001)
    assert seen == ["bad", "good"]


@pytest.mark.parametrize("seconds", [0, 30])
async def test_requeue_after_brings_the_key_back(start: Start, seconds: float) -> None:
    """After that time, zero included."""
    moments: list[float] = []

    async def reconcile(_key: str) -> Result | None:
        moments.append(now())
        return Result(requeue_after=seconds) if len(moments) == 1 else None

    begun = now()
    start(reconcile).enqueue("a")
    await asyncio.sleep(3600)
    assert [moment - begun for moment in moments] == pytest.approx([0, seconds], abs=1e-3)


async def test_change_during_reconciliation_is_not_lost(start: Start) -> None:
    """The key is reconciled again, not concurrently."""
    busy = 0
    most = 0
    runs = 0

    async def reconcile(_key: str) -> None:
        nonlocal busy, most, runs
        busy += 1
        runs += 1
        most = max(most, busy)
        await asyncio.sleep(1)
        busy -= 1

    controller = start(reconcile, workers=4)
    controller.enqueue("a")
    await asyncio.sleep(0.5)
    controller.enqueue("a")
    controller.enqueue("a")
    await asyncio.sleep(60)
    assert (runs, most) == (2, 1)


async def test_number_of_workers_is_the_concurrency(start: Start) -> None:
    """Three workers reconcile three keys at once and the fourth after them."""
    moments: dict[str, float] = {}

    async def reconcile(key: str) -> None:
        moments[key] = now()
        await asyncio.sleep(1)

    controller = start(reconcile, workers=3)
    begun = now()
    for key in "abcd":
        controller.enqueue(key)
    await asyncio.sleep(10)
    assert [moments[key] - begun for key in "abcd"] == pytest.approx([0, 0, 0, 1], abs=1e-3)


async def test_never_given_up(start: Start) -> None:
    """A key is tried until it succeeds, at last every 1000 s."""
    moments: list[float] = []

    async def reconcile(_key: str) -> None:
        moments.append(now())
        raise NotFound("gone", code=404)

    start(reconcile).enqueue("a")
    await asyncio.sleep(10_000)
    assert moments[-1] - moments[-2] == pytest.approx(1000, abs=0.01)
    assert now() - moments[-1] <= 1000


async def test_cancellation_from_inside_is_a_failure(start: Start) -> None:
    """A reconciliation that awaits a cancelled task fails; its worker continues."""
    attempts = 0

    async def reconcile(_key: str) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            other = asyncio.create_task(asyncio.sleep(10))
            other.cancel()
            await other

    controller = start(reconcile)
    controller.enqueue("a")
    await asyncio.sleep(1)
    assert attempts == 2


async def test_cancelled_run_ends_at_once() -> None:
    """Reconciliations in progress are cancelled, and their keys are free."""
    ended: list[str] = []

    async def reconcile(key: str) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(key)

    controller = Controller("test", reconcile, workers=2)
    task = asyncio.create_task(controller.run())
    controller.enqueue("a")
    await asyncio.sleep(1)
    begun = now()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert now() - begun < 1
    assert ended == ["a"]


async def test_shut_down_queue_ends_the_run() -> None:
    """Workers finish the queued keys, and ``run`` returns."""
    seen: list[str] = []

    async def reconcile(key: str) -> None:
        await asyncio.sleep(1)
        seen.append(key)

    controller = Controller("test", reconcile)
    controller.enqueue("a")
    controller.enqueue("b")
    task = asyncio.create_task(controller.run())
    await asyncio.sleep(0.5)
    controller.queue.shut_down()
    await task
    assert seen == ["a", "b"]


async def test_metrics_show_no_backlog_of_an_ended_controller():
    """They outlive a removed lower cluster or a lost Lease."""

    async def reconcile(key: str) -> None:
        if key == "first":
            await asyncio.Event().wait()

    controller: Controller[str] = Controller("left-over", reconcile)
    task = asyncio.create_task(controller.run())
    controller.enqueue("first")
    await asyncio.sleep(1)
    controller.enqueue("second")
    controller.queue.add_after("third", 60)
    assert REGISTRY.get_sample_value("workqueue_depth", {"name": "left-over"}) == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    controller.enqueue("fourth")
    await asyncio.sleep(100)
    assert REGISTRY.get_sample_value("workqueue_depth", {"name": "left-over"}) == 0
