"""Candidates for a Lease in memory, on unreliable networks."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from controller_runtime import resources
from controller_runtime.errors import AlreadyExists, BadRequest, Conflict, ConnectionFailed, NotFound
from controller_runtime.leaderelection.elector import LeaderElector
from controller_runtime.resources import Resource
from tests.unit.background import working

MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class Store:
    """One Lease in an apiserver: resource versions, conflicts, and 1.34's validation of times."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.changed = asyncio.Event()

    def get(self) -> dict[str, Any]:
        """GET."""
        if self.lease is None:
            raise NotFound("no lease", code=404)
        return copy.deepcopy(self.lease)

    def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST."""
        if self.lease is not None:
            raise AlreadyExists("exists", code=409)
        return self._put(body)

    def update(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """PUT."""
        if self.lease is None:
            raise NotFound("no lease", code=404)
        if body["metadata"].get("resourceVersion") != self.lease["metadata"]["resourceVersion"]:
            raise Conflict("changed", code=409)
        return self._put(body)

    def delete(self) -> None:
        """DELETE."""
        self.lease = None

    @property
    def spec(self) -> dict[str, Any]:
        """The Lease's spec."""
        assert self.lease is not None
        spec: dict[str, Any] = self.lease["spec"]
        return spec

    @property
    def holder(self) -> str:
        """Return its holder."""
        return str(self.spec["holderIdentity"]) if self.lease else ""

    def _put(self, body: Mapping[str, Any]) -> dict[str, Any]:
        spec = body["spec"]
        if not (MICRO_TIME.fullmatch(spec["renewTime"]) and MICRO_TIME.fullmatch(spec["acquireTime"])):
            raise BadRequest("parsing time", code=400)
        if not isinstance(spec["leaseDurationSeconds"], int) or spec["leaseDurationSeconds"] < 1:
            raise BadRequest("leaseDurationSeconds", code=400)
        assert body["kind"] == "Lease"
        assert body["apiVersion"] == "coordination.k8s.io/v1"
        self.version += 1
        self.lease = copy.deepcopy(dict(body))
        self.lease["metadata"] = dict(body["metadata"]) | {"resourceVersion": str(self.version)}
        self.changed.set()
        self.changed = asyncio.Event()
        return copy.deepcopy(self.lease)


def lease(metadata: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a Lease from 1999."""
    times = dict.fromkeys(("acquireTime", "renewTime"), "1999-01-01T00:00:00.000000Z")
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "virtual-node", "namespace": "kube-system", **(metadata or {})},
        "spec": {**times, **spec},
    }


Network = Callable[[Callable[[], dict[str, Any]]], Awaitable[dict[str, Any]]]


class Client:
    """A candidate's client of the store; ``network`` delays or drops its requests."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls: list[str] = []
        self.network: Network = direct

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        """GET."""
        assert (resource, namespace, name) == (resources.LEASES, "kube-system", "virtual-node")
        return await self._call("get", self.store.get)

    async def create(
        self, resource: Resource, body: Mapping[str, Any], *, namespace: str | None = None
    ) -> dict[str, Any]:
        """POST."""
        assert (resource, namespace) == (resources.LEASES, "kube-system")
        return await self._call("create", lambda: self.store.create(body))

    async def update(self, resource: Resource, body: Mapping[str, Any]) -> dict[str, Any]:
        """PUT."""
        assert resource is resources.LEASES
        return await self._call("update", lambda: self.store.update(body))

    async def _call(self, verb: str, request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        self.calls.append(verb)
        return await self.network(request)


async def direct(request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A network without delay or loss."""
    return request()


async def silent(request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Drop everything."""
    await asyncio.Event().wait()
    return request()


async def refusing(request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Refuse connections."""
    raise ConnectionFailed("connection refused")


def now() -> float:
    """Return virtual seconds."""
    return asyncio.get_running_loop().time()


class Work:
    """A leader's work, which only records its times."""

    def __init__(self, cleanup: float = 0.0, seen: list[int] | None = None) -> None:
        self.seen = seen if seen is not None else []
        self.started: list[float] = []
        self.stopped: list[float] = []
        self.active = 0
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.cleanup = cleanup

    async def __call__(self) -> None:
        """Work until cancelled."""
        self.active += 1
        self.seen.append(1)
        self.started.append(now())
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(self.cleanup)
            self.active -= 1
            self.seen.append(-1)
            self.stopped.append(now())
            self.ended.set()


def candidate(
    client: Client, work: Callable[[], Awaitable[None]], identity: str, **options: Any
) -> LeaderElector:
    """An elector with client-go's durations."""
    return LeaderElector(
        client, namespace="kube-system", name="virtual-node", identity=identity, on_started=work, **options
    )


@contextlib.asynccontextmanager
async def standing(elector: LeaderElector) -> AsyncIterator[asyncio.Task[None]]:
    """Run a candidate; leaving cancels it and waits for its end."""
    async with working(elector.run()) as task:
        yield task
