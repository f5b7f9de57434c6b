"""Open streams while a kubelet API stops."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from virtual_node.kubelet.streams.limits import StreamRegistry

pytestmark = pytest.mark.looptime


def _open(registry: StreamRegistry, seconds: float) -> asyncio.Task[None]:
    request: Any = make_mocked_request("GET", "/x", match_info={"namespace": "shop"})

    async def stream() -> None:
        with registry.track("logs", request):
            await asyncio.sleep(seconds)

    return asyncio.create_task(stream())


@pytest.mark.parametrize(
    ("seconds", "ending_at", "ends_at"),
    [(3, 100, 3), (500, 100, 110), (105, 100, 105), (1e6, 7200, 7210)],
)
async def test_streams_have_the_grace_period_after_the_event(seconds, ending_at, ends_at):
    registry, ending = StreamRegistry(), asyncio.Event()
    loop = asyncio.get_running_loop()
    stream, began = _open(registry, seconds), loop.time()
    await asyncio.sleep(0)
    loop.call_later(ending_at, ending.set)
    ended = await registry.drain(10, after=ending)
    assert round(loop.time() - began) == ends_at
    await asyncio.wait({stream})
    assert ended == stream.cancelled()
