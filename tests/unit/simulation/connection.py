"""One process' connection to one server: requests take time, fail, get lost, and outlive their process.

It has the methods of ``client.Client`` that controllers use. What befalls a request comes of the seed and of what it asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import msgspec

from controller_runtime import consistency
from controller_runtime.client.client import ObjectList, PatchType
from controller_runtime.client.reconnect_queue import Outage
from controller_runtime.errors import Expired
from controller_runtime.objects import WatchEvent, from_dict
from controller_runtime.resources import Resource
from tests.unit.simulation.network import Road
from tests.unit.simulation.network_faults import Weather
from tests.unit.simulation.selecting import selection
from tests.unit.simulation.server import Body, Commit, Server
from tests.unit.simulation.watching import Watch, follow

OnWrite = Callable[[str, Callable[[], Body], Callable[[], Awaitable[Body]]], Awaitable[Body]]
"""Called with what is asked for, what the server makes of it, and how to send it on."""
_KINDS = ("pods", "configmaps", "secrets", "services", "persistentvolumeclaims")
"""What discovery tells of, with EndpointSlices."""


class Connection:
    """Hand it to controllers in place of a client."""

    def __init__(self, server: Server, weather: Weather, *, seed: str, who: str) -> None:
        self.server, self.who = server, who
        self.cluster = server.name
        self.outage = Outage()
        self.turn = asyncio.Lock()
        self.config = SimpleNamespace(server=f"https://{server.name}:6443")
        self.served_certificate = None
        self._road = Road(weather, seed=f"{seed} {who} {server.name}")
        self._watches: dict[Watch, None] = {}
        self.on_write: OnWrite | None = None
        """Decides what becomes of a write; None: the weather does."""
        server.observers.append(self._committed)

    def kill(self) -> None:
        """The process is gone; what is on its way may still arrive."""
        self._road.dead = True
        self.who = f"{self.who.removesuffix(' (late)')} (late)"
        with contextlib.suppress(ValueError):
            self.server.observers.remove(self._committed)

    def news(self) -> None:
        """The weather has changed."""
        for watch in self._watches:
            watch.wake.set()

    def break_watches(self) -> None:
        """Every open watch ends."""
        for watch in self._watches:
            watch.broken = True
        self.news()

    # --- the client's methods ---------------------------------------------------------------------

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None, **_: Any) -> Body:
        key = _key(namespace, name)
        return _copy(
            await self._road.ask(
                "get", f"{resource.plural} {key}", lambda: self.server.get(resource.plural, key)
            )
        )

    async def list(
        self, resource: Resource, *, namespace: str | None = None, label_selector: str | None = None,
        field_selector: str | None = None, transform: Any = None, **_: Any,
    ) -> ObjectList:  # fmt: skip
        chosen = selection(namespace, label_selector, field_selector)
        what = f"{resource.plural} {namespace} {label_selector} {field_selector}"
        items, version = await self._road.ask("list", what, lambda: self.server.list(resource.plural, chosen))
        return ObjectList(items if transform is None else [transform(item) for item in items], version)

    async def watch_batches(
        self, resource: Resource, *, resource_version: str, namespace: str | None = None,
        label_selector: str | None = None, field_selector: str | None = None, **_: Any,
    ) -> AsyncIterator[Any]:  # fmt: skip
        chosen = selection(namespace, label_selector, field_selector)
        what = f"{namespace} {label_selector} {field_selector}"
        await self._road.ask("watch", f"{resource.plural} {what}", lambda: None)
        watch = Watch(resource.plural, what, int(resource_version))
        if watch.seen < self.server.floor:
            raise Expired("too old resource version", code=410, reason="Expired")
        self._watches[watch] = None
        try:
            async for batch in follow(watch, self.server, self._road, chosen):
                yield batch
        finally:
            self._watches.pop(watch, None)

    async def watch(self, _resource: Resource, **_: Any) -> AsyncIterator[WatchEvent]:
        """Events: there are none."""
        await asyncio.Event().wait()
        yield WatchEvent("BOOKMARK", from_dict({"metadata": {}}))

    async def create(
        self, resource: Resource, body: Mapping[str, Any], *, namespace: str | None = None,
        name: str | None = None, subresource: str | None = None, params: Any = None, **_: Any,
    ) -> Body:  # fmt: skip
        if resource.plural == "events":
            return _copy(body)
        if subresource == "token":
            await self._road.ask("get", f"token {body['spec']['boundObjectRef']['uid']}", lambda: None)
            return {"status": {"token": "t", "expirationTimestamp": "2099-01-01T00:00:00Z"}}
        if params:  # a dry run
            await self._road.ask("get", "dry run", lambda: None)
            return _copy(body)
        whole = {"apiVersion": resource.api_version, "kind": resource.kind, **_copy(body)}
        return await self._write(
            resource,
            "create",
            f"{resource.plural} {_key(namespace, whole['metadata']['name'])}",
            lambda: self.server.create(resource.plural, whole, who=self.who, namespace=namespace),
        )

    async def patch(
        self, resource: Resource, name: str, patch: Any, *, namespace: str | None = None,
        subresource: str | None = None, patch_type: PatchType = PatchType.MERGE, **_: Any,
    ) -> Body:  # fmt: skip
        if resource.plural == "events":
            return _copy(patch)
        key, change = _key(namespace, name), _copy(patch)
        return await self._write(
            resource,
            "patch",
            f"{resource.plural} {key} {subresource}",
            lambda: self.server.patch(
                resource.plural, key, change, who=self.who, subresource=subresource,
                strategic=patch_type is PatchType.STRATEGIC,
            ),
        )  # fmt: skip

    async def update(self, resource: Resource, body: Mapping[str, Any], **_: Any) -> Body:
        whole = _copy(body)
        key = _key(whole["metadata"].get("namespace"), whole["metadata"]["name"])
        return await self._write(
            resource,
            "update",
            f"{resource.plural} {key}",
            lambda: self.server.update(resource.plural, key, whole, who=self.who),
        )

    async def delete(
        self, resource: Resource, name: str, *, namespace: str | None = None, uid: str | None = None,
        resource_version: str | None = None, grace_period_seconds: int | None = None, **_: Any,
    ) -> Body:  # fmt: skip
        key = _key(namespace, name)
        return await self._write(
            resource,
            "delete",
            f"{resource.plural} {key}",
            lambda: self.server.delete(
                resource.plural, key, who=self.who, uid=uid, resource_version=resource_version,
                grace=grace_period_seconds,
            ),
        )  # fmt: skip

    async def read(self, path: str, **_: Any) -> dict[str, Any]:
        """Return discovery, or a list of metadata."""
        parts = urlsplit(path).path.strip("/").split("/")
        if parts == ["apis"]:
            answer: Any = {"groups": [{"name": "discovery.k8s.io", "preferredVersion": {"version": "v1"}}]}
        elif "namespaces" in parts:
            chosen = selection(parts[-2], None, None)
            items, _version = await self._road.ask("list", path, lambda: self.server.list(parts[-1], chosen))
            return _copy({"items": [{"metadata": item.to_dict()["metadata"]} for item in items]})
        else:
            kinds = ["endpointslices"] if "discovery.k8s.io" in parts else _KINDS
            answer = {
                "resources": [
                    {"name": kind, "kind": kind, "namespaced": True, "verbs": ["list"]} for kind in kinds
                ]
            }
        await self._road.ask("get", path, lambda: None)
        return _copy(answer)

    async def ping(self, **_: Any) -> None:
        await self._road.ask("get", "readyz", lambda: None)

    async def version(self, **_: Any) -> dict[str, Any]:
        return {"gitVersion": "v1.34.0"}

    # --- within -----------------------------------------------------------------------------------

    async def _write(self, resource: Resource, verb: str, what: str, action: Callable[[], Body]) -> Body:
        def send() -> Awaitable[Body]:
            return self._road.write(verb, what, lambda: _copy(action()))

        if self.on_write is None:
            answer = await send()
        else:
            answer = await self.on_write(f"{self.who} {self.cluster} {verb} {what}", action, send)
        consistency.wrote(self, resource, answer)
        return answer

    def _committed(self, commit: Commit) -> None:
        for watch in self._watches:
            if watch.plural == commit.plural:
                watch.dirty = True
                watch.wake.set()


def _copy(body: Any) -> Body:
    """As it comes over the wire: nobody shares an object with the server."""
    copied: Body = msgspec.json.decode(msgspec.json.encode(body))
    return copied


def _key(namespace: str | None, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name
