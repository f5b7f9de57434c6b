"""Commands send a bounded number of requests at once."""

from __future__ import annotations

import asyncio

import pytest

from virtual_node.examine import reader


async def test_results_keep_their_order_and_few_reads_run_at_once():
    running: list[int] = []
    most = 0

    async def read(number: int) -> int:
        nonlocal most
        running.append(number)
        most = max(most, len(running))
        await asyncio.sleep(0.001 * (30 - number))
        running.remove(number)
        return number

    assert await reader.bounded(map(read, range(30))) == list(range(30))
    assert most == reader._PARALLEL


async def test_the_first_error_is_raised_when_all_reads_have_ended():
    ended: list[str] = []

    async def read(name: str, *, fails: bool) -> None:
        await asyncio.sleep(0.01)
        ended.append(name)
        if fails:
            raise ValueError(name)

    with pytest.raises(ValueError, match="b"):
        await reader.bounded([read("a", fails=False), read("b", fails=True), read("c", fails=True)])
    assert sorted(ended) == ["a", "b", "c"]
