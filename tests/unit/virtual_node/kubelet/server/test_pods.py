"""The lists of pods, and the routes that are not streams."""

from __future__ import annotations

import json

import pytest
from aiohttp import web

from tests.unit.virtual_node.kubelet.conftest import Serve
from tests.unit.virtual_node.kubelet.lower import POD


@pytest.mark.parametrize("path", ["/pods", "/pods/"])
async def test_pods_are_a_pod_list(serve: Serve, path: str) -> None:
    """Any number of pods makes one valid v1 PodList."""
    async with serve(1) as node:
        for count in (0, 1, 50, 51, 120):
            node.backend.listed = [POD] * count
            code, head, body = await node.ask(path)
            assert code == 200
            assert "Content-Type: application/json" in head
            assert json.loads(body) == {
                "kind": "PodList",
                "apiVersion": "v1",
                "metadata": {},
                "items": [POD] * count,
            }


async def test_running_pods_are_a_separate_list(serve: Serve) -> None:
    async with serve(1) as node:
        code, _, body = await node.ask("/runningpods/")
        assert (code, json.loads(body)["items"]) == (200, [])


async def test_more_routes_can_be_added(serve: Serve) -> None:
    """For metrics and statistics."""

    async def stats(request: web.Request) -> web.Response:
        return web.json_response({"node": {}})

    async with serve(1, extra_routes=[web.get("/stats/summary", stats)]) as node:
        assert (await node.ask("/stats/summary"))[::2] == (200, '{"node": {}}')


async def test_an_internal_error_has_no_traceback(serve: Serve) -> None:
    """500 and one line."""

    async def broken(request: web.Request) -> web.Response:
        raise RuntimeError("secret")

    async with serve(1, extra_routes=[web.get("/broken", broken)]) as node:
        assert (await node.ask("/broken"))[::2] == (500, "internal error")


async def test_a_started_response_is_broken_off(serve: Serve) -> None:
    """A list that fails in the middle is not followed by a second response."""

    def fails() -> object:
        yield POD
        raise RuntimeError("gone")

    async with serve(1) as node:
        node.backend.listed = fails()  # type: ignore[assignment]
        reader, writer = await node.connect()
        writer.write(b"GET /pods HTTP/1.1\r\nHost: node\r\n\r\n")
        answer = await reader.read()
        assert answer.count(b"HTTP/1.1 ") == 1
        assert not answer.endswith(b"0\r\n\r\n")
        writer.close()
