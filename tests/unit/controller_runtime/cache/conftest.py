"""A server with scripted lists and watches, a recorder of handler calls, and informers that end with their test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Batch
from controller_runtime.client.collection import ObjectList
from controller_runtime.client.limits import CacheBudget
from controller_runtime.client.transport import Outage
from controller_runtime.objects import Object, from_dict
from tests import objects


def pod(name: str, version: int, *, uid: str = "", node: str = "n1") -> Object:
    """A small pod."""
    fields = {"resourceVersion": str(version)}
    return from_dict(
        objects.pod(name, namespace="ns", uid=uid or f"uid-{name}", node=node, metadata=fields, containers=[])
    )


Answer = tuple[list[Object], str] | Exception
"""Response to a list: its objects and its resourceVersion, or an error to raise."""
Feed = asyncio.Queue[Any]
"""Feed of one watch: batches of events, an exception to raise, or None to end it."""


class ScriptedServer:
    """A fake client: lists and watches are scripted, in order."""

    cluster = "test"

    def __init__(self) -> None:
        self.outage = Outage()
        self.turn = asyncio.Lock()
        self.caches = CacheBudget(0, cluster="test")
        self.lists: list[Answer] = []
        self.listed = 0
        self.watched_from: list[str] = []
        self.watches: asyncio.Queue[Feed] = asyncio.Queue()

    async def list(self, resource: Any, *, transform: Any = None, **selection: Any) -> ObjectList:
        self.listed += 1
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        found, version = answer
        kept = [transform(one) for one in found] if transform else found
        return ObjectList([one for one in kept if one is not None], version)

    async def watch_batches(
        self, resource: Any, *, resource_version: str, **options: Any
    ) -> AsyncGenerator[Batch, None]:
        self.watched_from.append(resource_version)
        feed: Feed = asyncio.Queue()
        await self.watches.put(feed)
        while True:
            item = await feed.get()
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item


class Recorder:
    """Records the calls of a handler."""

    def __init__(self, informer: Informer) -> None:
        self.informer = informer
        self.calls: list[tuple[str, ...]] = []
        self.changed = asyncio.Event()
        informer.add_handler(
            on_add=lambda new, initial: self.note("add", new.name, new.resource_version, str(initial)),
            on_update=lambda old, new: self.note(
                "update", new.name, old.resource_version, new.resource_version
            ),
            on_delete=lambda old: self.note("delete", old.name, old.resource_version),
        )

    def note(self, *call: str) -> None:
        self.calls.append(call)
        self.changed.set()

    async def until(self, predicate: Callable[[], bool]) -> None:
        async with asyncio.timeout(100):
            while not predicate():
                self.changed.clear()
                await self.changed.wait()


def make(server: ScriptedServer, **options: Any) -> Informer:
    """Return an informer of pods on the scripted server."""
    return Informer(server, resources.PODS, **options)  # type: ignore[arg-type]


class RestlessServer(ScriptedServer):
    """Every list has one pod; every watch ends after some seconds, in a scripted way."""

    def __init__(self, seconds: float, ending: Exception | None) -> None:
        super().__init__()
        self.seconds = seconds
        self.ending = ending

    async def list(self, resource: Any, **selection: Any) -> ObjectList:
        self.listed += 1
        return ObjectList([pod("a", 1)], str(self.listed))

    async def watch_batches(
        self, resource: Any, *, resource_version: str, **options: Any
    ) -> AsyncGenerator[Batch, None]:
        self.watched_from.append(resource_version)
        await asyncio.sleep(self.seconds)
        if self.ending is not None:
            raise self.ending
        for nothing in list[Batch]():
            yield nothing


@pytest.fixture
def server() -> ScriptedServer:
    """A scripted server."""
    return ScriptedServer()


@pytest.fixture
async def started(server: ScriptedServer):
    """Start informers; they end with the test."""
    tasks: list[asyncio.Task[None]] = []

    def start(informer: Informer) -> Informer:
        tasks.append(asyncio.create_task(informer.run()))
        return informer

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def following(server: ScriptedServer, started):
    """Start an informer with these lists of the server; return the handler's recorder, and the feed of its first watch."""

    async def start(lists: list[Answer], **options: Any) -> tuple[Recorder, Feed]:
        server.lists = lists
        recorder = Recorder(make(server, **options))
        started(recorder.informer)
        return recorder, await server.watches.get()

    return start
