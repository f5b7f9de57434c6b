"""Writes that change the object that was read, or create one, but never change another object of that name.

Between our read and our write, the object may have been deleted and another object created under its name.
The API server refuses a patch with ``metadata.uid`` if the object has another uid. It reports that as Invalid
("field is immutable"), which elsewhere means a permanent refusal. Here it becomes a Conflict, as for a delete
with a uid precondition.

Several virtual-node processes of one upper cluster may work in one lower cluster. Each keeps the lower copies equal to
the upper objects. If a copy changed and its cached upper object did not, then either the copy was edited, or our cache
is behind and another process wrote the current state. In the second case the two processes would undo each other's writes
until our cache has caught up. So a process reads the upper object live before it writes the copy (``is_current``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.client.client import Client, find_listed, find_object
from controller_runtime.errors import AlreadyExists, Conflict, Invalid, NotFound
from controller_runtime.objects import Object, from_dict
from controller_runtime.resources import Resource
from virtual_node.controllers.base.context import ClusterContext

Thing = Object | Mapping[str, Any]
_FIELD = "metadata.uid"


async def patch_only(
    client: Client,
    resource: Resource,
    thing: Thing,
    patch: Mapping[str, Any],
    *,
    resource_version: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Patch the object of that uid and return the patched object.

    Args:
        client: of the object's cluster.
        resource: its kind.
        thing: the object that the caller read.
        patch: a merge or strategic merge patch; it is not changed.
        resource_version: of the state that the caller read; None: any state. With a version, a request that a
            killed process sent, and that arrives minutes later, changes nothing.
        options: other arguments of ``Client.patch``.

    Raises:
        NotFound: the object is gone.
        Conflict: another object has its name now, or it has another version; nothing was changed.
        ApiError: any other error.
    """
    found = _object(thing)
    metadata = {**(patch.get("metadata") or {}), "uid": found.uid}
    if resource_version is not None:
        metadata["resourceVersion"] = resource_version
    body = {**patch, "metadata": metadata}
    try:
        return await client.patch(resource, found.name, body, namespace=found.namespace, **options)
    except Invalid as error:
        if not _is_about_uid(error):
            raise
        raise Conflict(
            f"{resource.kind} {found.name} is another one by now: {error.message}",
            code=409,
            reason="Conflict",
        ) from error


async def delete_only(client: Client, resource: Resource, thing: Thing, **options: Any) -> None:
    """Delete the object of that uid; do nothing if it is gone or another object has its name now.

    Args:
        client: of the object's cluster.
        resource: its kind.
        thing: the object that the caller read.
        options: other arguments of ``Client.delete``.

    Raises:
        ApiError: the server refuses.
    """
    with contextlib.suppress(NotFound, Conflict):
        await delete_exactly(client, resource, thing, **options)


async def delete_exactly(
    client: Client, resource: Resource, thing: Thing, *, is_unchanged: bool = False, **options: Any
) -> None:
    """Delete the object of that uid, as ``delete_only``, but report if it is not there.

    Args:
        client: of the object's cluster.
        resource: its kind.
        thing: the object that the caller read.
        is_unchanged: delete the object only in the version that the caller read.
        options: other arguments of ``Client.delete``.

    Raises:
        NotFound: the object is gone.
        Conflict: another object has its name now, or it has another version; nothing was deleted.
        ApiError: the server refuses.
    """
    found = _object(thing)
    if is_unchanged:
        options["resource_version"] = found.resource_version
    await client.delete(resource, found.name, namespace=found.namespace, uid=found.uid, **options)


async def create_new(client: Client, resource: Resource, body: Mapping[str, Any]) -> Object | None:
    """Create an object and return None; if its name is taken, return the object that has it, which may be unmanaged.

    Raises:
        NotFound: its namespace does not exist, or the object that had the name is gone; the caller retries.
        ApiError: the server refuses.
    """
    metadata = body["metadata"]
    namespace = metadata.get("namespace")
    try:
        await client.create(resource, body, namespace=namespace)
    except AlreadyExists:
        return from_dict(await client.get(resource, metadata["name"], namespace=namespace))
    return None


def _object(thing: Thing) -> Object:
    return thing if isinstance(thing, Object) else from_dict(thing)


def _is_about_uid(error: Invalid) -> bool:
    causes = (error.status.get("details") or {}).get("causes") or ()
    return any(cause.get("field") == _FIELD for cause in causes)


async def have_pods_in(context: ClusterContext, namespace: str) -> bool:
    """Report whether another process has pods in a lower namespace, so that copies there may be in use. Reads live."""
    ours = ",".join(context.nodes)
    selector = f"{names.LABEL_UPPER_CLUSTER}={context.cluster_id},{names.LABEL_NODE} notin ({ours})"
    return await context.lower.exists(resources.PODS, namespace=namespace, label_selector=selector)


async def is_current(client: Client, resource: Resource, cached: Object) -> bool:
    """Report whether a cluster has an object in exactly the cached state. Reads live."""
    there = await find_listed(client, resource, cached.name, namespace=cached.namespace)
    return there is not None and there.uid == cached.uid and there.resource_version == cached.resource_version


async def exists(client: Client, resource: Resource, key: str) -> bool:
    """Report whether a cluster has an object of that key that is not being deleted. Reads live."""
    namespace, _, name = key.partition("/")
    there = await find_listed(client, resource, name, namespace=namespace)
    return there is not None and there.metadata.deletion_timestamp is None


async def is_virtual_node(upper: Client, node: str) -> bool:
    """Report whether the upper cluster has a virtual node of that name, of any process. Reads live."""
    found = await find_object(upper, resources.NODES, node)
    return found is not None and names.LABEL_LOWER_CLUSTER in found.labels
