"""Informers on a scripted server, which end with their test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controller_runtime.cache.informer import Informer
from tests.unit.controller_runtime.cache.scripted import Answer, Feed, Recorder, ScriptedServer, make


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
