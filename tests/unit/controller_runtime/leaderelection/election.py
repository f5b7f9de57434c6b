"""Candidates for a Lease in memory, on unreliable networks."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from controller_runtime.errors import ConnectionFailed
from controller_runtime.leaderelection import LeaderElector
from tests.background import working
from tests.fakes.apiserver.client import MemoryClient, copied
from tests.fakes.apiserver.server import Server
from tests.fakes.apiserver.storage import Body, Commit

MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


KEY = "kube-system/virtual-node"


class Store(Server):
    """An API server with one Lease, and 1.34's validation of times."""

    def __init__(self) -> None:
        super().__init__(namespaces=("kube-system",))
        self.changed = asyncio.Event()
        self.observers.append(self._note)

    @property
    def lease(self) -> Body | None:
        """Return a copy of the Lease, or None."""
        found = self.find("leases", KEY)
        return copied(found) if found else None

    @property
    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.get("leases", KEY)["spec"]
        return spec

    @property
    def holder(self) -> str:
        return str(self.spec["holderIdentity"]) if self.lease else ""

    def steal(self) -> None:
        self.change("leases", KEY, spec={"holderIdentity": "thief"})

    def _note(self, commit: Commit) -> None:
        if commit.verb in {"create", "patch"}:
            spec = commit.body["spec"]
            assert all(MICRO_TIME.fullmatch(spec[field]) for field in ("renewTime", "acquireTime"))
            assert type(spec["leaseDurationSeconds"]) is int
            assert spec["leaseDurationSeconds"] >= 1
        self.changed.set()
        self.changed = asyncio.Event()


def lease(metadata: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """Return a Lease from 1999."""
    times = dict.fromkeys(("acquireTime", "renewTime"), "1999-01-01T00:00:00.000000Z")
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "virtual-node", "namespace": "kube-system", **(metadata or {})},
        "spec": {**times, **spec},
    }


Network = Callable[[Callable[[], Any]], Awaitable[Any]]


class Client(MemoryClient):
    """A candidate's client of the store; ``network`` delays or drops its requests."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.store = store
        self.network: Network = direct

    async def send(self, verb: str, plural: str, key: str, action: Callable[[], Any], **_: Any) -> Any:
        assert (plural, key) == ("leases", KEY)
        self.calls.append((verb, plural, key))
        return await self.network(action)


async def direct(request: Callable[[], Any]) -> Any:
    """A network without delay or loss."""
    return request()


async def silent(request: Callable[[], Any]) -> Any:
    """Drop everything."""
    await asyncio.Event().wait()
    return request()


async def refusing(request: Callable[[], Any]) -> Any:
    raise ConnectionFailed("connection refused")


def now() -> float:
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


def standing(elector: LeaderElector) -> contextlib.AbstractAsyncContextManager[asyncio.Task[None]]:
    """Run a candidate; leaving cancels it and waits for its end."""
    return working(elector.run())
