"""One process' connection to one server: requests take time, fail, get lost, and outlive their process.

It has the methods of ``client.Client`` that controllers use. What befalls a request comes of the seed and of what it asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from controller_runtime.errors import Expired
from controller_runtime.objects import WatchEvent
from controller_runtime.resources import Resource
from tests.fakes.apiserver.client import MemoryClient, bookmark, copied
from tests.fakes.apiserver.selectors import selection
from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Body, Commit
from tests.unit.simulation.network import Road, Weather
from tests.unit.simulation.watching import Watch, follow

T = TypeVar("T")
OnWrite = Callable[[str, Callable[[], Body], Callable[[], Awaitable[Body]]], Awaitable[Body]]
"""Called with what is asked for, what the server makes of it, and how to send it on."""
_KINDS = ("pods", "configmaps", "secrets", "services", "persistentvolumeclaims")
"""What discovery tells of, with EndpointSlices."""


class Connection(MemoryClient):
    """Pass it to controllers in place of a client."""

    def __init__(self, server: Server, weather: Weather, *, seed: str, who: str) -> None:
        super().__init__(server, who=who)
        self._road = Road(weather, seed=f"{seed} {who} {server.name}")
        self._open: dict[Watch, None] = {}
        self.on_write: OnWrite | None = None
        """Decides what becomes of a write; None: the weather does."""

    def kill(self) -> None:
        """End the process; requests on their way may still arrive."""
        self._road.dead = True
        self.who = f"{self.who.removesuffix(' (late)')} (late)"
        with contextlib.suppress(ValueError):
            self.server.observers.remove(self._committed)

    def news(self) -> None:
        """Let watches see that the weather changed."""
        for watch in self._open:
            watch.wake.set()

    def break_watches(self) -> None:
        for watch in self._open:
            watch.broken = True
        self.news()

    async def send(
        self, verb: str, plural: str, key: str, action: Callable[[], T], *, subresource: str | None = None,
        dry_run: bool = False,
    ) -> T:  # fmt: skip
        what = f"{plural} {key} {subresource}" if verb == "patch" else f"{plural} {key}"
        if verb in {"get", "list", "watch"}:
            return await self._road.ask(verb, what, action)
        if subresource == "token":
            return await self._road.ask("get", f"token {key}", action)
        if dry_run:
            return await self._road.ask("get", "dry run", action)
        if plural == "events":
            return {}  # type: ignore[return-value]

        def write() -> Awaitable[T]:
            return self._road.write(verb, what, action)

        if self.on_write is None:
            return await write()
        return await self.on_write(f"{self.who} {self.cluster} {verb} {what}", action, write)  # type: ignore[arg-type,return-value]

    # --- the client's methods ---------------------------------------------------------------------

    async def watch_batches(
        self, resource: Resource, *, resource_version: str, namespace: str | None = None,
        label_selector: str | None = None, field_selector: str | None = None, **_: Any,
    ) -> AsyncIterator[Any]:  # fmt: skip
        matches = selection(namespace, label_selector, field_selector)
        what = f"{namespace} {label_selector} {field_selector}"
        await self._road.ask("watch", f"{resource.plural} {what}", lambda: None)
        watch = Watch(resource.plural, what, int(resource_version))
        if watch.seen < self.server.floor:
            raise Expired("too old resource version", code=410, reason="Expired")
        self._open[watch] = None
        try:
            async for batch in follow(watch, self.server, self._road, matches):
                yield batch
        finally:
            self._open.pop(watch, None)

    async def watch(self, resource: Resource, **_: Any) -> AsyncIterator[WatchEvent]:
        """Events: there are none."""
        await asyncio.Event().wait()
        yield bookmark(0)

    async def read(self, path: str, **_: Any) -> dict[str, Any]:
        """Return discovery, or a list of metadata."""
        parts = urlsplit(path).path.strip("/").split("/")
        if parts == ["apis"]:
            answer: Any = {"groups": [{"name": "discovery.k8s.io", "preferredVersion": {"version": "v1"}}]}
        elif "namespaces" in parts:
            chosen = selection(parts[-2], None, None)
            items, _version = await self._road.ask("list", path, lambda: self.server.list(parts[-1], chosen))
            return copied({"items": [{"metadata": item.to_dict()["metadata"]} for item in items]})
        else:
            kinds = ["endpointslices"] if "discovery.k8s.io" in parts else _KINDS
            common = {"namespaced": True, "verbs": ["list"]}
            answer = {"resources": [{"name": kind, "kind": kind, **common} for kind in kinds]}
        await self._road.ask("get", path, lambda: None)
        return copied(answer)

    async def ping(self, **_: Any) -> None:
        await self._road.ask("get", "readyz", lambda: None)

    async def version(self, **_: Any) -> dict[str, Any]:
        return {"gitVersion": "v1.34.0"}

    def _committed(self, commit: Commit) -> None:
        for watch in self._open:
            if watch.plural == commit.plural:
                watch.dirty = True
                watch.wake.set()
