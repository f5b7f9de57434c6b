"""Of two processes with the same virtual node one works; the other waits, and starts when the first has ended."""

from __future__ import annotations

import asyncio
import copy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from controller_runtime.apimachinery import timestamps
from controller_runtime.errors import AlreadyExists, Conflict, NotFound, Unavailable
from tests.background import working
from virtual_node.controllers import node_lease
from virtual_node.controllers.node_lease import (
    HeldElsewhereError,
    Identity,
    NodeLease,
    process_of,
    this_process,
)


class Upper:
    """An API server with at most one Lease, which refuses writes of an old version."""

    def __init__(self, **spec: Any) -> None:
        self.version = 0
        self.lease: dict[str, Any] | None = None
        self.is_away = False
        if spec:
            self._store({"metadata": {"name": "vn"}, "spec": spec})

    def _store(self, lease: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = copy.deepcopy(lease)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)

    async def get(self, _resource: Any, _name: str, **_more: Any) -> dict[str, Any]:
        if self.is_away:
            raise Unavailable("away")
        if self.lease is None:
            raise NotFound("none")
        return copy.deepcopy(self.lease)

    async def create(self, _resource: Any, lease: dict[str, Any], **_more: Any) -> dict[str, Any]:
        if self.lease is not None:
            raise AlreadyExists("there")
        return self._store(lease)

    async def update(self, _resource: Any, lease: dict[str, Any]) -> dict[str, Any]:
        if self.is_away:
            raise Unavailable("away")
        if lease["metadata"].get("resourceVersion") != str(self.version):
            raise Conflict("old")
        return self._store(lease)

    @property
    def holder(self) -> str:
        return process_of(self.lease, "vn") if self.lease else ""


def _context(upper: Upper, cluster_id: str = "uid") -> Any:
    settings = SimpleNamespace(lease_duration=40.0)
    return SimpleNamespace(upper=upper, settings=settings, log=structlog.get_logger(), cluster_id=cluster_id)


def _hold(upper: Upper, name: str) -> NodeLease:
    return NodeLease(_context(upper), "vn", Identity(name, is_exclusive=True))


def _fresh(holder: str) -> dict[str, Any]:
    return {
        "holderIdentity": holder,
        "leaseDurationSeconds": 40,
        "renewTime": timestamps.micro_time(datetime.now(UTC)),
    }


@pytest.mark.looptime
@pytest.mark.parametrize("spec", [{}, {"holderIdentity": "vn"}, {"holderIdentity": "a"}])
async def test_starts_at_once_without_another_process(spec: dict[str, Any]):
    """With a new node, after an earlier release, and after a crash of its own."""
    upper = Upper(**({**_fresh(""), **spec} if spec else {}))
    before = asyncio.get_running_loop().time()
    await _hold(upper, "a").acquire()
    assert (upper.holder, asyncio.get_running_loop().time()) == ("a", before)
    assert upper.lease is not None
    assert upper.lease["spec"]["holderIdentity"] == "vn"


@pytest.mark.looptime
async def test_waits_for_a_holder_that_renews_and_takes_over_when_it_stops():
    """It logs the holder. At its start the last renewal is 40 s ago, by its own clock."""
    upper = Upper(**_fresh("a"))
    second = _hold(upper, "b")
    async with working(second.acquire()):
        for _ in range(10):
            await asyncio.sleep(10)
            await upper.update(None, {**await upper.get(None, ""), "spec": _fresh("a")})
        assert upper.holder == "a"
        assert "mirrored by another process, a" in second.waits_for
        await asyncio.sleep(37)
        assert upper.holder == "a"
        await asyncio.sleep(6)
        assert (upper.holder, second.waits_for) == ("b", "")


@pytest.mark.looptime
async def test_a_deleted_lease_is_left_to_its_holder():
    """It is deleted with its Node. The holder creates both again; without one, the second starts in time."""
    upper = Upper(**_fresh("a"))
    second = _hold(upper, "b")
    async with working(second.acquire()):
        await asyncio.sleep(5)
        upper.lease = None
        await asyncio.sleep(10)
        assert upper.lease is None
        await upper.create(None, {"metadata": {"name": "vn"}, "spec": _fresh("a")})
        await asyncio.sleep(30)
        assert upper.holder == "a"
        upper.lease = None
        await asyncio.sleep(15)
        assert upper.holder == "b"


@pytest.mark.looptime
async def test_a_gracefully_stopped_process_is_succeeded_at_once():
    """The times of the Lease change by one microsecond only, because the node controller judges the node by them."""
    upper = Upper()
    first, second = _hold(upper, "a"), _hold(upper, "b")
    await first.acquire()
    async with working(second.acquire()):
        await asyncio.sleep(5)
        assert upper.lease is not None
        before = upper.lease["spec"]
        await first.release()
        after = upper.lease["spec"]
        assert after == {**before, "renewTime": after["renewTime"]}
        renewed = timestamps.parse(after["renewTime"]) - timestamps.parse(before["renewTime"])
        assert renewed == timedelta(microseconds=1)
        await asyncio.sleep(2.1)
        assert upper.holder == "b"


@pytest.mark.looptime
async def test_a_release_does_not_affect_a_successor():
    """A process that was silent for too long releases only its own Lease; nor does it wait for the server."""
    upper = Upper()
    first = _hold(upper, "a")
    await first.acquire()
    upper.lease = {"metadata": {"resourceVersion": "1"}, "spec": _fresh("b")}
    await first.release()
    assert upper.holder == "b"
    upper.is_away = True
    await first.release()


@pytest.mark.looptime
async def test_a_process_that_lost_its_lease_stops():
    """Otherwise it would mirror beside its successor."""
    upper = Upper()
    hold = _hold(upper, "a")
    await hold.acquire()
    node: Any = SimpleNamespace(registered=asyncio.Event(), uid="u")
    node.registered.set()
    task = asyncio.create_task(hold.run(node))
    await asyncio.sleep(15)
    assert (upper.holder, task.done()) == ("a", False)
    await upper.update(None, {**await upper.get(None, ""), "spec": _fresh("b")})
    await asyncio.sleep(11)
    assert upper.holder == "b"
    with pytest.raises(HeldElsewhereError, match="another process, b, has taken its Lease over"):
        await task


@pytest.mark.looptime
async def test_second_process_of_a_machine_succeeds_a_killed_one_at_once():
    """Both have the machine's name: a socket that the kernel closes shows whether the first runs."""
    upper = Upper()
    unique = f"test_node_hold {id(upper)}"
    first = NodeLease(_context(upper, unique), "vn", this_process())
    second = NodeLease(_context(upper, unique), "vn", this_process())
    await first.acquire()
    assert upper.holder == this_process().name
    async with working(second.acquire()):
        await asyncio.sleep(10)
        assert upper.holder == this_process().name
        assert second.waits_for
        assert first._socket is not None
        first._socket.close()  # SIGKILL leaves the Lease unchanged
        await asyncio.sleep(2.1)
        assert not second.waits_for
        assert second.holder == upper.holder == this_process().name
    await second.release()


def test_processes_of_two_machines_with_one_host_name_have_two_identities(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Cloned machines have equal names and numbers of the network namespace; otherwise both would mirror the node."""
    here = this_process()
    (tmp_path / "boot_id").write_text("3f1c8b1e-0000-4000-8000-000000000001\n", encoding="ascii")
    monkeypatch.setattr(node_lease, "_BOOT_ID", tmp_path / "boot_id")
    assert this_process().name != here.name
    assert this_process() == this_process()
