"""Waiting for conditions on real clusters, with long limits for busy machines.

Most conditions in Kubernetes become true some time after a request: a status is patched in two steps, an
event comes after its condition, a container that is Ready has not yet written its first line. A test reads
until the condition holds, and fails at the time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from clusterset.model.names import SWARMS
from clusterset.model.pod.conditions import is_true
from controller_runtime import resources
from controller_runtime.resources import Resource
from hack.sandbox import Cluster, SandboxError
from tests.workloads import manifest

PATIENCE = 150.0
"""Seconds. A test that works does not wait that long; an apiserver's clients may back off for a minute after an outage."""
_PAUSES = 0.05, 0.3
"""Seconds between two reads: the first, and the longest."""
_REST, _LONGEST_REST = 2.0, 3.0
"""Pause after a read in multiples of its time, and at most in seconds: commands are processes, which take CPU time."""

_PASSING_TAINTS = frozenset(
    f"node.kubernetes.io/{reason}" for reason in ("not-ready", "unreachable", "unschedulable")
)
"""Taints of the controller manager, which removes them a moment after their cause has ended."""

_RESOURCES = [
    *(found for found in vars(resources).values() if isinstance(found, Resource)),
    SWARMS,
]
_BY_WORD = {
    **{found.plural: found for found in _RESOURCES},
    **{found.kind.lower(): found for found in _RESOURCES},
    "pv": resources.PERSISTENT_VOLUMES,
    "pvc": resources.PERSISTENT_VOLUME_CLAIMS,
}
_BY_KIND = {(found.api_version, found.kind): found for found in _RESOURCES}


async def eventually(
    check: Callable[[], Awaitable[bool]], *, within: float = PATIENCE, what: str = ""
) -> None:
    """Poll until the condition holds. An error or a missing object counts as not yet."""

    async def so() -> bool:
        return bool(await check())

    await becomes(so, True, within=within, what=what or str(check))


async def becomes(
    read: Callable[[], Awaitable[Any]], wanted: Any, *, within: float = PATIENCE, what: str = ""
) -> None:
    """Read until the expected value; fail with the last one."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    pause, longest = _PAUSES
    while True:
        started = loop.time()
        try:
            found: Any = await read()
        except (SandboxError, LookupError, ValueError, aiohttp.ClientError) as error:
            found = error
        if found == wanted:
            return
        if loop.time() > deadline:
            break
        await asyncio.sleep(max(pause, min(_REST * (loop.time() - started), _LONGEST_REST)))
        pause = min(pause * 1.3, longest)
    told = repr(found) if isinstance(found, Exception | bool) else json.dumps(found, default=repr, indent=1)
    pytest.fail(f"not so within {within:g} s: {what}\nwanted {wanted!r}, last was {told}")


async def get(
    cluster: Cluster, namespace: str, kind: str, name: str = "", *, labels: str = "", fields: str = ""
) -> dict[str, Any]:
    """Return an object, or without a name the list of those that the selectors match.

    Raises:
        SandboxError: there is none of the name.
    """
    query = {key: value for key, value in (("labelSelector", labels), ("fieldSelector", fields)) if value}
    return await cluster.api.read(_BY_WORD[kind].path(namespace=namespace, name=name or None), query=query)


async def create(cluster: Cluster, namespace: str, *objects: dict[str, Any]) -> None:
    for one in objects:
        resource = _BY_KIND[one["apiVersion"], one["kind"]]
        await cluster.api.create(resource.path(namespace=namespace), one)


async def make_namespace(cluster: Cluster, name: str, **metadata: Any) -> None:
    """Create a namespace in which pods may be created: wait for its default ServiceAccount."""
    await cluster.api.create(resources.NAMESPACES.path(), manifest("Namespace", name, metadata=metadata))

    async def usable() -> bool:
        return bool(await get(cluster, name, "serviceaccount", "default"))

    await eventually(usable, what=f"{cluster.name}: the default ServiceAccount of {name}")


async def established(cluster: Cluster, definition: Resource) -> None:
    """Wait until the API server serves a CustomResourceDefinition.

    ``kubectl wait`` fails if the definition has no conditions yet, so it is repeated.
    """

    async def is_established() -> bool:
        await cluster.kubectl("wait", "--for=condition=established", f"crd/{definition.qualified}")
        return True

    await becomes(is_established, True, what=f"{cluster.name}: {definition.qualified} is served")


@contextlib.asynccontextmanager
async def own_namespace(upper: Cluster, *lower: Cluster) -> AsyncIterator[str]:
    """Create a namespace for a test; at its end wait until its pods' resources are free in all clusters."""
    name = f"t-{secrets.token_hex(4)}"
    await make_namespace(upper, name)
    yield name
    await upper.api.delete(resources.NAMESPACES.path(name=name))

    async def left() -> list[str]:
        return [
            one["metadata"]["name"]
            for cluster in (upper, *lower)
            for one in (await get(cluster, name, "pods"))["items"]
        ]

    await becomes(left, [], what=f"the pods of {name} are gone")


async def ready(cluster: Cluster, namespace: str, name: str) -> None:
    await _is_ready(cluster, namespace, "pod", name)


async def node_ready(cluster: Cluster, name: str) -> None:
    """Wait until a node exists, is Ready and schedulable.

    A new node has the taint ``node.kubernetes.io/not-ready``; until the controller manager has removed it, a
    moment after the node is Ready, the scheduler selects other nodes.
    """
    await _is_ready(cluster, "", "node", name)

    async def kept_away() -> list[str]:
        taints = (await get(cluster, "", "node", name))["spec"].get("taints") or []
        return [one["key"] for one in taints if one["key"] in _PASSING_TAINTS]

    await becomes(kept_away, [], what=f"{cluster.name}: nothing keeps pods from node {name}")


async def _is_ready(cluster: Cluster, namespace: str, kind: str, name: str) -> None:
    status: dict[str, Any] = {}

    async def so() -> bool:
        status.clear()
        status.update((await get(cluster, namespace, kind, name))["status"])
        return is_true(status, "Ready")

    try:
        await eventually(so, what=f"{cluster.name}: {kind} {name} is Ready")
    except pytest.fail.Exception as error:
        pytest.fail(f"{error}\n{json.dumps(status, indent=1)}")
