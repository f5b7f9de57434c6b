"""Swarms on the page: read in the background while a browser looks, and rarely where there are none."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from controller_runtime.errors import Forbidden, NotFound, Unavailable
from controller_runtime.objects import Object, from_dict
from tests.unit.virtual_node.examine.health_objects import condition, swarm
from virtual_node.web.overview import Swarms, swarm_table

pytestmark = pytest.mark.looptime


class _Server:
    def __init__(self) -> None:
        self.requests = 0
        self.error: Exception | None = None

    async def list(self, _resource: object, *, transform: Callable[[Object], Object]) -> Any:
        self.requests += 1
        await asyncio.sleep(1)
        if self.error is not None:
            raise self.error
        found = swarm("streams", condition("Converged", "True"))
        status = {**found["status"], "jobCount": 3, "record": "x" * 1_000_000, "workers": []}
        return SimpleNamespace(
            items=[transform(from_dict({**found, "spec": {"jobs": []}, "status": status}))]
        )


async def _looked(swarms: Swarms, seconds: int) -> Any:
    """Return the Swarms after a browser has looked every second."""
    for _ in range(seconds):
        swarms.known()
        await asyncio.sleep(1)
    return swarms.known()


async def test_reads_only_while_a_browser_looks() -> None:
    """The page never waits, and Swarms of an hour ago are not shown as current."""
    server = _Server()
    swarms = Swarms(cast("Any", server))
    assert swarms.known() is None
    assert server.requests == 0
    (found,) = await _looked(swarms, 25)
    assert (found["metadata"]["name"], "spec" in found, server.requests) == ("streams", False, 3)
    assert found["status"] == swarm("streams", condition("Converged", "True"))["status"], "without the record"
    server.error = Unavailable("503")
    assert await _looked(swarms, 25) == [found]
    await asyncio.sleep(3600)
    requests, server.error = server.requests, None
    assert swarms.known() is None
    assert len(await _looked(swarms, 3)) == 1
    assert server.requests == requests + 1


@pytest.mark.parametrize("error", [NotFound("no such resource"), Forbidden("may not")])
async def test_looks_rarely_for_swarms_that_cannot_be_read(error: Exception) -> None:
    """No Swarm is shown, and after five minutes they are looked for again."""
    server = _Server()
    server.error = error
    swarms = Swarms(cast("Any", server))
    assert await _looked(swarms, 290) == ()
    assert server.requests == 1
    server.error = None
    assert len(await _looked(swarms, 20)) == 1


def test_the_table_shows_problems_first() -> None:
    """It is cut to a hundred rows; a Swarm without status has zeros."""
    works = [swarm(f"w{number:03}", condition("Converged", "True")) for number in range(120)]
    new = {"metadata": {"namespace": "shop", "name": "new"}}
    table = swarm_table([*works, swarm("z", condition("Degraded", "True")), new])
    assert (len(table["rows"]), table["all"]) == (100, 122)
    assert table["rows"][:3] == [
        {"name": "shop/new", "workers": 0, "jobs": 0, "running": 0, "state": "unknown"},
        {"name": "shop/z", "workers": 2, "jobs": 3, "running": 3, "state": "degraded"},
        {"name": "shop/w000", "workers": 2, "jobs": 3, "running": 3, "state": "converged"},
    ]
