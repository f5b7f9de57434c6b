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
from controller_runtime.errors import ApiError, ConfigError, ConnectionFailed, NotFound, TooManyRequests
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


async def test_a_deleted_node_ends_the_command_only_if_it_is_not_drained(monkeypatch: pytest.MonkeyPatch):
    """Such as a cluster that leaves the configuration while the other nodes are being drained."""
    client: Any = Nodes()
    answers = client.get

    async def only_b(_: Any, name: str) -> Any:
        if name == "b":
            return await answers()
        raise NotFound("nodes a not found", code=404)

    monkeypatch.setattr(client, "get", only_b)
    with pytest.raises(ConfigError, match=r"^node a was deleted before it was drained$"):
        await command._follow(client, ["a", "b"], {})
    client.annotations[names.ANNOTATION_DRAIN_STATUS] = json.dumps({"request": "{}"})
    statuses = {"a": Status(request="{}", moved=3)}
    await command._follow(client, ["a", "b"], statuses)
    assert all(status.is_complete for status in statuses.values())


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


async def test_names_the_replacement_that_does_not_start(capsys: pytest.CaptureFixture[str]):
    """As the first of all pods that wait; pods that stay are listed at the end."""
    client: Any = Nodes()
    why = f"its replacement is not Ready yet; shop/web-9{drain.WAITS}Unschedulable: 0/2 nodes are available"
    states = {
        "a": PodState("shop/a", "stays", f"its replacement was not Ready in time: shop/b{drain.WAITS}quota"),
        "b": PodState("shop/web-0", "moving", "it is ending"),
        "c": PodState("shop/web-1", "moving", why),
        "d": PodState("shop/db-1", "waiting", f"1 of 2 pods are available; shop/db-0{drain.WAITS}quota"),
    }
    status = drain.summary(states, request="{}", moved=0, stopped="")
    client.annotations[names.ANNOTATION_DRAIN_STATUS] = msgspec.json.encode(status).decode()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await command._follow(client, ["a"], {})
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"node/a: 0 moved, 2 moving, 1 waiting, 1 stay (shop/web-1: {why}, and 1 more)"


@pytest.mark.parametrize(
    "error", [ConnectionFailed("no answer within 5 s"), TooManyRequests("try again", code=429)]
)
async def test_an_outage_of_the_api_server_does_not_end_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: ApiError
):
    client: Any = Nodes()
    answers = client.get

    async def refused(*_: Any, **__: Any) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(client, "get", refused)
    statuses: dict[str, Status] = {}
    following = asyncio.create_task(command._follow(client, ["a"], statuses))
    await asyncio.sleep(200)
    assert (
        capsys.readouterr().err
        == f"the upper cluster does not answer; the drain continues: {error.message}\n"
    )
    client.annotations[names.ANNOTATION_DRAIN_STATUS] = json.dumps({"request": "{}"})
    monkeypatch.setattr(client, "get", answers)
    await following
    assert statuses["a"].is_complete


async def test_a_long_outage_of_the_api_server_ends_the_command(monkeypatch: pytest.MonkeyPatch):
    client: Any = Nodes()

    async def refused(*_: Any, **__: Any) -> dict[str, Any]:
        raise ConnectionFailed("no answer within 5 s")

    monkeypatch.setattr(client, "get", refused)
    with pytest.raises(ConnectionFailed):
        async with asyncio.timeout(400):
            await command._follow(client, ["a"], {})
