"""``virtual-node drain`` while it waits for the descheduler."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from clusterset.model import names
from clusterset.model.moving import drain
from clusterset.model.moving.drain import PodState, Status
from virtual_node.commands import drain as command

pytestmark = pytest.mark.looptime


class Nodes:
    """A client that reads one node."""

    def __init__(self) -> None:
        self.annotations = {names.ANNOTATION_DRAIN: "{}"}

    async def get(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"metadata": {"name": "a", "annotations": self.annotations}}


async def test_says_once_why_no_status_may_come(capsys: pytest.CaptureFixture[str]):
    client: Any = Nodes()
    statuses: dict[str, Status] = {}
    following = asyncio.create_task(command._follow(client, ["a"], statuses))
    await asyncio.sleep(20)
    assert not capsys.readouterr().err
    await asyncio.sleep(60)
    (line,) = capsys.readouterr().err.splitlines()
    assert "--node-selector" in line
    client.annotations[names.ANNOTATION_DRAIN_STATUS] = json.dumps({"request": "{}"})
    await following
    assert statuses["a"].is_complete
    assert capsys.readouterr().err.startswith("node/a: 0 moved")


async def test_names_pod_with_long_grace_period(capsys: pytest.CaptureFixture[str]):
    client: Any = Nodes()
    why = f"it is ending, {drain.ENDS_AT} 2026-01-01T01:00:00Z"
    states = {str(number): PodState(f"shop/web-{number}", "moving", why) for number in range(3)}
    states["x"] = PodState("shop/other", "moving", "it is ending")
    status = drain.summary(states, request="{}", moved=7, stopped="")
    client.annotations[names.ANNOTATION_DRAIN_STATUS] = msgspec.json.encode(status).decode()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await command._follow(client, ["a"], {})
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"node/a: 7 moved, 4 moving, 0 waiting (shop/web-0: {why}, and 2 more)"
