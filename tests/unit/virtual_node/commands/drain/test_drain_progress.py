"""``virtual-node drain`` while it waits for the descheduler."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from controller_runtime.api import names
from virtual_node.commands.drain import command

pytestmark = pytest.mark.looptime


class Nodes:
    """A client that reads one node."""

    def __init__(self) -> None:
        self.annotations = {names.ANNOTATION_DRAIN: "{}"}

    async def get(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"metadata": {"name": "a", "annotations": self.annotations}}


async def test_says_once_why_no_status_may_come(capsys: pytest.CaptureFixture[str]):
    client: Any = Nodes()
    following = asyncio.create_task(command._follow(client, ["a"]))
    await asyncio.sleep(20)
    assert not capsys.readouterr().err
    await asyncio.sleep(60)
    (line,) = capsys.readouterr().err.splitlines()
    assert "--node-selector" in line
    client.annotations[names.ANNOTATION_DRAIN_STATUS] = json.dumps({"request": "{}"})
    assert (await following)["a"].is_complete
    assert capsys.readouterr().err.startswith("node/a: 0 moved")
