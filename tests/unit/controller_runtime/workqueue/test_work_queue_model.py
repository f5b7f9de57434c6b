"""The guarantees of a work queue hold for any sequence of operations."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from controller_runtime.workqueue.queue import QueueShutDown, WorkQueue


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
        queue.shut_down()
    assert seen == added


class Model(RuleBasedStateMachine):
    """The queue and a model of it: keys that must be handed out, and keys that workers have."""

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


def test_any_sequence_keeps_the_guarantees():
    """Keys are handed out once each, the most urgent first."""
    run_state_machine_as_test(
        Model, settings=settings(max_examples=50, stateful_step_count=30, deadline=None)
    )
