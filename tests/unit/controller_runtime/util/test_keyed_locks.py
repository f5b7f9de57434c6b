"""Locks by key."""

import asyncio

from controller_runtime.util.keyed import KeyedLocks


async def test_tasks_of_one_key_run_one_after_the_other_and_the_lock_is_freed():
    """Tasks of other keys do not wait."""
    locks: KeyedLocks[str] = KeyedLocks()
    order: list[str] = []

    async def work(key: str, name: str) -> None:
        async with locks.of(key):
            order.append(f"{name} starts")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            order.append(f"{name} ends")

    await asyncio.gather(work("a", "first"), work("a", "second"), work("b", "other"))
    assert order.index("first ends") < order.index("second starts")
    assert order.index("other starts") < order.index("first ends")
    assert len(locks._locks) == 0
