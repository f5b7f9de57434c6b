"""A request that is cancelled at any of its awaits keeps no connection, no slot of a large body and no token."""

from __future__ import annotations

import asyncio
import json
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

import pytest
from aiohttp import web

from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.client.limits import ResponseLimits
from controller_runtime.errors import ApiError
from tests.unit.controller_runtime.loopback import client_of, failure, serve

LARGE = json.dumps(
    {"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": "a"}, "spec": "x" * 3000}]}
).encode()
Request = Callable[[Client, str], Coroutine[Any, Any, None]]


def _server(asked: list[int]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def script(request: web.Request) -> web.StreamResponse:
        asked.append(1)
        kind = request.query.get("labelSelector", "") or request.path
        number = len(asked)
        if "shed" in kind and number == 1:
            return web.Response(status=429, body=LARGE, headers={"Retry-After": "0"})
        if "denied" in kind and number == 1:
            return failure(401, "Unauthorized")
        if "failed" in kind:
            return web.Response(status=500, body=LARGE)
        if "broken" in kind and number == 1:
            assert request.transport is not None
            request.transport.abort()
        if "cut" in kind:
            response = web.StreamResponse(headers={"Content-Length": str(len(LARGE))})
            await response.prepare(request)
            await response.write(LARGE[:2000])
            await asyncio.sleep(0.01)
            assert request.transport is not None
            request.transport.abort()
            return response
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for start in range(0, len(LARGE), 500):
            await response.write(LARGE[start : start + 500])
            await asyncio.sleep(0)
        await response.write_eof()
        return response

    return script


async def _stream(client: Client, kind: str) -> None:
    async with client.stream("GET", f"/{kind}") as response:
        await response.read()


async def _receive(client: Client, kind: str) -> None:
    async with client.receive("GET", f"/{kind}"):
        await asyncio.sleep(0)


async def _list(client: Client, kind: str) -> None:
    await client.list(resources.NODES, label_selector=kind)


async def _create(client: Client, kind: str) -> None:
    await client.create(resources.PODS, {"metadata": {"name": "x"}}, namespace=kind)


@pytest.mark.parametrize(
    ("send", "kind"),
    [
        *((_list, kind) for kind in ("plain", "shed", "denied", "failed", "broken", "cut")),
        (_create, "shed"),
        (_stream, "shed"),
        (_receive, "shed"),
    ],
)
async def test_request_cancelled_at_every_await_keeps_nothing(send: Request, kind: str) -> None:
    for step in range(1, 60):
        asked: list[int] = []
        limits = ResponseLimits(large=1000)
        async with (
            serve(_server(asked)) as server,
            client_of(server, qps=1000, burst=1, timeout=2, limits=limits) as client,
        ):
            is_over = True
            try:
                await asyncio.ensure_future(_cancelled_at(send(client, kind), step))
            except asyncio.CancelledError:
                is_over = False
            except ApiError:
                pass
            for pool in client._pools._pools:
                assert not pool._users
                connector: Any = pool.session.connector
                assert not connector._acquired
            assert not client.reader._large.locked()
            asked.append(1)
            await _list(client, "plain")
            if is_over:
                assert step > 3
                return
    pytest.fail("the request has not ended")


async def _cancelled_at(work: Coroutine[Any, Any, None], step: int) -> None:
    await _forward(work, step)


@types.coroutine
def _forward(work: Coroutine[Any, Any, None], step: int) -> Generator[Any, Any, None]:
    """Run a coroutine, and cancel the current task when it waits for the ``step``-th time."""
    waits, error = 0, None
    while True:
        try:
            waiting = work.throw(error) if error is not None else work.send(None)
        except StopIteration:
            return
        waits, error = waits + 1, None
        if waits == step:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            yield waiting
        except BaseException as raised:  # noqa: BLE001 - passed on to the coroutine
            error = raised
