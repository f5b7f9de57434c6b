"""The API server in memory over HTTP, with the ConfigMaps and Leases of one worker, written as the controller does."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

from aiohttp import web

from controller_runtime.errors import ApiError
from swarm.worker import Settings
from tests.fakes.apiserver.selectors import selection
from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Commit
from tests.serving import served

PREFIX = "swarm.virtual-node.io/"
POD_UID = str(uuid.uuid4())
"""Not that of another test run on this machine: a worker waits for other processes of its pod."""
SPACE, SWARM, WORKER = "default", "streams", "worker-0"
NAME = f"{SWARM}.{WORKER}"
_SETTINGS: dict[str, Any] = {
    "swarm": SWARM, "namespace": SPACE, "worker": WORKER, "pod_uid": POD_UID, "http_port": 0,
}  # fmt: skip
_SHARE = {
    "podUID": POD_UID, "handover": "Exclusive", "refresh": "Signal", "fenceSeconds": 0, "parts": 1,
}  # fmt: skip
"""Of a share: what no test varies without saying so."""


class FakeApi:
    """Serves lists, watches, reads and replacements; tests change the objects."""

    def __init__(self) -> None:
        self.server = Server(namespaces=[SPACE])
        self.server.observers.append(self._committed)
        self.reachable = asyncio.Event()
        """Set while reads and writes of single objects are answered."""
        self.reachable.set()
        self.acknowledged: list[dict[str, Any]] = []
        """Every acknowledgement that was written, in order."""
        self._changed = asyncio.Event()
        self.url = ""

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[FakeApi]:
        """Serve on a free port."""
        routes = (
            web.get("/{_:.*}/{plural:configmaps|leases}", self._list),
            web.get("/{_:.*}/{plural:configmaps|leases}/{name}", self._get),
            web.put("/{_:.*}/{plural:leases}/{name}", self._put),
        )
        async with served(*routes, shutdown_timeout=0.1, handler_cancellation=True) as port:
            self.url = f"http://127.0.0.1:{port}"
            yield self

    def settings(self, **more: Any) -> Settings:
        """A worker's settings for this server."""
        return Settings(**{**_SETTINGS, "api_server": self.url, **more})

    def set(self, plural: str, name: str, body: dict[str, Any]) -> None:
        """Create or replace an object."""
        metadata = {**body.get("metadata", {}), "name": name, "namespace": SPACE}
        self.server.put(plural, {**body, "metadata": metadata})

    def delete(self, plural: str, name: str) -> None:
        """Delete an object."""
        self.server.remove(plural, f"{SPACE}/{name}")

    def _committed(self, commit: Commit) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        annotations = commit.body["metadata"].get("annotations") or {}
        if commit.verb == "patch":
            acknowledged = json.loads(annotations[PREFIX + "acknowledged"])
            assert acknowledged["session"] == commit.body["spec"]["holderIdentity"]
            self.acknowledged.append(acknowledged)

    def make_lease(self, pod_uid: str = POD_UID) -> None:
        """Create the Lease, as the controller does for a new pod."""
        self.set("leases", NAME, {"metadata": {"annotations": {PREFIX + "pod-uid": pod_uid}}, "spec": {}})

    def share(self, version: int, states: dict[str, str], *, session: str = "", **more: Any) -> None:
        """Write a share; for the registered session unless another is given."""
        jobs = [{"name": name, "weight": 1, "state": state} for name, state in states.items()]
        own = {"session": session or self.last["session"], "version": version, "jobs": jobs}
        self.set("configmaps", NAME, config_map({**_SHARE, **own, **more}))

    @property
    def last(self) -> dict[str, Any]:
        """The last acknowledgement; empty before the first."""
        return self.acknowledged[-1] if self.acknowledged else {}

    async def _list(self, request: web.Request) -> web.StreamResponse:
        plural, matches = request.match_info["plural"], selection(SPACE, None, request.query["fieldSelector"])
        if "watch" not in request.query:
            found, version = self.server.list(plural, matches)
            items = [one.to_dict() for one in found]
            return web.json_response({"metadata": {"resourceVersion": version}, "items": items})
        response = web.StreamResponse()
        await response.prepare(request)
        seen = int(request.query["resourceVersion"])
        while True:
            changed, after, seen = self._changed, seen, self.server.version
            for event in self.server.since(plural, after, matches):
                line = json.dumps({"type": event.type, "object": event.object.to_dict()})
                await response.write(f"{line}\n".encode())
            await changed.wait()

    async def _get(self, request: web.Request) -> web.Response:
        return await self._answer(lambda: self.server.get(*_target(request)))

    async def _put(self, request: web.Request) -> web.Response:
        body = await request.json()
        return await self._answer(lambda: self.server.update(*_target(request), body))

    async def _answer(self, request: Callable[[], Any]) -> web.Response:
        await self.reachable.wait()
        try:
            return web.json_response(request())
        except ApiError as error:
            return web.json_response({"message": error.message}, status=error.code)


def _target(request: web.Request) -> tuple[str, str]:
    return request.match_info["plural"], f"{SPACE}/{request.match_info['name']}"


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
