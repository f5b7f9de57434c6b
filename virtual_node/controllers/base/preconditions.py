"""Writes with a uid precondition: they change only the object that was read, not a later object of its name.

Between our read and our write, the object may have been deleted and another object created under its name.
The API server refuses a patch with ``metadata.uid`` if the object has another uid. It reports that as Invalid
("field is immutable"), which elsewhere means a permanent refusal. Here it becomes a Conflict, as for a delete
with a uid precondition.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from controller_runtime.client.client import Client, PatchType
from controller_runtime.errors import Conflict, Invalid, NotFound
from controller_runtime.objects import Object
from controller_runtime.resources import Resource

_FIELD = "metadata.uid"


async def patch_only(
    client: Client,
    resource: Resource,
    name: str,
    patch: Mapping[str, Any],
    *,
    uid: str,
    resource_version: str | None = None,
    namespace: str | None = None,
    subresource: str | None = None,
    patch_type: PatchType = PatchType.MERGE,
) -> dict[str, Any]:
    """Patch the object of that uid and return the patched object.

    Args:
        client: of the object's cluster.
        resource: its kind.
        name: its name.
        patch: a merge or strategic merge patch; it is not changed.
        uid: of the object that the caller read.
        resource_version: of the state that the caller read; None: any state. With a version, a request that a
            killed process sent, and that arrives minutes later, changes nothing.
        namespace: its namespace, if it has one.
        subresource: such as ``resize``.
        patch_type: the type of the patch.

    Raises:
        NotFound: the object is gone.
        Conflict: another object has its name now, or it has another version; nothing was changed.
        ApiError: any other error.
    """
    metadata = {**(patch.get("metadata") or {}), "uid": uid}
    if resource_version is not None:
        metadata["resourceVersion"] = resource_version
    body = {**patch, "metadata": metadata}
    options: dict[str, Any] = {}
    if subresource is not None:
        options["subresource"] = subresource
    if patch_type is not PatchType.MERGE:
        options["patch_type"] = patch_type
    try:
        return await client.patch(resource, name, body, namespace=namespace, **options)
    except Invalid as error:
        if not _is_about_uid(error):
            raise
        raise Conflict(
            f"{resource.kind} {name} is another one by now: {error.message}", code=409, reason="Conflict"
        ) from error


async def delete_only(client: Client, resource: Resource, thing: Object, **options: Any) -> None:
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
        await client.delete(resource, thing.name, namespace=thing.namespace, uid=thing.uid, **options)


def _is_about_uid(error: Invalid) -> bool:
    causes = (error.status.get("details") or {}).get("causes") or ()
    return any(cause.get("field") == _FIELD for cause in causes)
