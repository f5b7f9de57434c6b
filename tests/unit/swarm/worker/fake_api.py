"""A fake API server with the ConfigMaps and Leases of one worker, written as the controller does."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web

from swarm.worker import Settings

PREFIX = "swarm.virtual-node.io/"
POD_UID = str(uuid.uuid4())
"""Not that of another test run on this machine: a worker waits for other processes of its pod."""
SWARM, WORKER = "streams", "worker-0"
NAME = f"{SWARM}.{WORKER}"


class FakeApi:
    """Lists, watches, gets and replaces objects; tests change them."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.version = 0
        self.reachable = asyncio.Event()
        """Set while reads and writes of single objects are answered."""
        self.reachable.set()
        self.acknowledged: list[dict[str, Any]] = []
        """Every acknowledgement that was written, in order."""
        self._changed = asyncio.Condition()
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeApi]:
        """Serve on a free port."""
        app = web.Application()
        app.router.add_get("/{_:.*}/{plural:configmaps|leases}", self._list)
        app.router.add_get("/{_:.*}/{plural:configmaps|leases}/{name}", self._get)
        app.router.add_put("/{_:.*}/{plural:leases}/{name}", self._put)
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    def settings(self, **more: Any) -> Settings:
        """A worker's settings for this server."""
        return Settings(
            **{
                "swarm": SWARM,
                "namespace": "default",
                "worker": WORKER,
                "pod_uid": POD_UID,
                "api_server": self.url,
                "http_port": 0,
                **more,
            }
        )

    async def set(self, plural: str, name: str, body: dict[str, Any]) -> None:
        """Create or replace an object."""
        async with self._changed:
            self.version += 1
            metadata = {**body.get("metadata", {}), "name": name, "resourceVersion": str(self.version)}
            self.objects[plural, name] = {**body, "metadata": metadata}
            self._changed.notify_all()

    async def delete(self, plural: str, name: str) -> None:
        """Delete an object."""
        async with self._changed:
            self.version += 1
            del self.objects[plural, name]
            self._changed.notify_all()

    async def make_lease(self, pod_uid: str = POD_UID) -> None:
        """Create the Lease, as the controller does for a new pod."""
        await self.set(
            "leases", NAME, {"metadata": {"annotations": {PREFIX + "pod-uid": pod_uid}}, "spec": {}}
        )

    async def share(self, version: int, states: dict[str, str], *, session: str = "", **more: Any) -> None:
        """Write a share; for the registered session unless another is given."""
        jobs = [{"name": name, "weight": 1, "state": state} for name, state in states.items()]
        content = {
            "podUID": POD_UID,
            "session": session or self.last["session"],
            "version": version,
            "handover": "Exclusive",
            "refresh": "Signal",
            "fenceSeconds": 0,
            "parts": 1,
            "jobs": jobs,
            **more,
        }
        await self.set("configmaps", NAME, config_map(content))

    @property
    def last(self) -> dict[str, Any]:
        """The last acknowledgement; empty before the first."""
        return self.acknowledged[-1] if self.acknowledged else {}

    async def _list(self, request: web.Request) -> web.StreamResponse:
        plural = request.match_info["plural"]
        name = request.query["fieldSelector"].removeprefix("metadata.name=")
        if "watch" not in request.query:
            found = self.objects.get((plural, name))
            return web.json_response(
                {"metadata": {"resourceVersion": str(self.version)}, "items": [found] if found else []}
            )
        response = web.StreamResponse()
        await response.prepare(request)
        seen = int(request.query["resourceVersion"])
        before = self.objects.get((plural, name))
        while True:
            async with self._changed:
                found = self.objects.get((plural, name))
                if found is not None and int(found["metadata"]["resourceVersion"]) > seen:
                    event = {"type": "MODIFIED", "object": found}
                elif found is None and before is not None:
                    event = {"type": "DELETED", "object": before}
                else:
                    await self._changed.wait()
                    continue
            before, seen = found, self.version
            await response.write(json.dumps(event).encode() + b"\n")

    async def _get(self, request: web.Request) -> web.Response:
        found = self.objects.get((request.match_info["plural"], request.match_info["name"]))
        await self.reachable.wait()
        if found is None:
            return web.json_response({"message": "not found"}, status=404)
        return web.json_response(found)

    async def _put(self, request: web.Request) -> web.Response:
        body = await request.json()
        await self.reachable.wait()
        plural, name = request.match_info["plural"], request.match_info["name"]
        current = self.objects[plural, name]["metadata"]["resourceVersion"]
        if body["metadata"]["resourceVersion"] != current:
            return web.json_response({"message": "conflict"}, status=409)
        acknowledged = json.loads(body["metadata"]["annotations"][PREFIX + "acknowledged"])
        assert acknowledged["session"] == body["spec"]["holderIdentity"]
        self.acknowledged.append(acknowledged)
        await self.set(plural, name, body)
        return web.json_response(self.objects[plural, name])


def config_map(content: dict[str, Any]) -> dict[str, Any]:
    """A ConfigMap with a share or a part of one."""
    text = json.dumps(content)
    checksum = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    return {"metadata": {"annotations": {PREFIX + "checksum": checksum}}, "data": {"share.json": text}}


async def until(so: Callable[[], bool], *, within: float = 60.0) -> None:
    """Wait until the condition is true."""
    async with asyncio.timeout(within):
        while not so():  # noqa: ASYNC110 - what it waits for has no events
            await asyncio.sleep(0.005)
