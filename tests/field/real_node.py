"""The same pods on a virtual node and directly on its lower node, so that a test can compare what a user sees."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from hack.sandbox import Cluster, Sandbox
from tests import workloads
from tests.clusters.virtual_nodes import REAL
from tests.waiting import create, eventually, get, make_namespace

_PASSING = re.compile(r"[0-9a-f]{64}|\d{4}-\d\d-\d\dT[0-9:.]+Z")
"""Container ids and times."""


@dataclass(frozen=True, slots=True)
class Place:
    """A namespace whose pods run on the real node, directly or through the virtual node."""

    cluster: Cluster
    namespace: str
    node: str | None
    """The virtual node; None: the pods are created in the lower cluster."""

    def pod(self, name: str, script: str, **spec: Any) -> dict[str, Any]:
        """Return a busybox pod that runs a shell script."""
        container = {"command": ["sh", "-c", script], **spec.pop("container", {})}
        selector = {"nodeSelector": {"kubernetes.io/hostname": self.node}} if self.node else {}
        return workloads.pod(name, container, **{**selector, **spec})

    def job(self, name: str, script: str, **spec: Any) -> dict[str, Any]:
        """Return a Job of such pods, which are not restarted."""
        template = self.pod(name, script, restartPolicy="Never")
        template = {"metadata": {"labels": {"app": name}}, "spec": template["spec"]}
        return workloads.manifest("Job", name, api="batch/v1", spec={"template": template, **spec})

    async def create(self, *objects: dict[str, Any]) -> None:
        """Create objects in the namespace."""
        await create(self.cluster, self.namespace, *objects)

    async def status(self, name: str, kind: str = "pod") -> dict[str, Any]:
        """Return an object's status."""
        found: dict[str, Any] = (await get(self.cluster, self.namespace, kind, name))["status"]
        return found

    async def finished(self, name: str) -> dict[str, Any]:
        """Return a pod's status when it has finished."""

        async def has_finished() -> bool:
            return (await self.status(name))["phase"] in {"Failed", "Succeeded"}

        await eventually(has_finished, what=f"{self.cluster.name}: pod {name} has finished")
        return await self.status(name)

    async def output(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002 - kubectl's
        """Return exit code, output and errors of a kubectl, without what differs between two runs."""
        done = await self.cluster.kubectl("-n", self.namespace, *arguments, input=input, check=False)
        text = f"{done.returncode} {done.stdout}{done.stderr}".replace(self.namespace, "NAMESPACE")
        # kubectl itself writes this if the streams of a WebSocket arrive in another order.
        text = re.sub(r"E\d{4} .* Unknown stream id .*\n", "", text)
        return _PASSING.sub("PASSING", text)


@contextlib.asynccontextmanager
async def both(sandbox: Sandbox) -> AsyncIterator[tuple[Place, Place]]:
    """Make a namespace in the upper cluster and another one in the lower cluster; delete both at the end."""
    name = f"t-{secrets.token_hex(4)}"
    places = (
        Place(sandbox.upper, f"{name}-upper", REAL),
        Place(sandbox.lower[0], f"{name}-lower", None),
    )
    try:
        for place in places:
            await make_namespace(place.cluster, place.namespace)
        yield places
    finally:
        for place in places:
            await place.cluster.api.delete(f"/api/v1/namespaces/{place.namespace}")


async def same_on(
    places: tuple[Place, Place], look: Callable[[Place], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    """Return what a user sees, by case, after a check that both places show the same."""
    through, directly = await asyncio.gather(*(look(place) for place in places))
    assert through == directly
    return through
