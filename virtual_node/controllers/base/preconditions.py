"""Patches that reach the very object that was looked at, and no other of its name.

A name says nothing about whose an object is: between our look and our write it may have been deleted and made
anew by somebody else. A patch that carries ``metadata.uid`` is refused for every other object. The API server
calls that Invalid ("field is immutable"), which everywhere else means that it will refuse for ever; here it is
what a delete with a uid precondition gets, a Conflict.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller_runtime.client.client import Client, PatchType
from controller_runtime.errors import Conflict, Invalid
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
    """Patch an object, but only the one of that uid; returns it as it is then.

    Args:
        client: of the cluster that it is in.
        resource: its kind.
        name: its name.
        patch: a merge or strategic merge patch; it is not changed.
        uid: of the object that the caller looked at.
        resource_version: of the state that the caller looked at; None: any state. A request of a process that was
            killed may arrive minutes later: with a version it changes nothing then.
        namespace: its namespace, if it has one.
        subresource: such as ``resize``.
        patch_type: how the patch is to be read.

    Raises:
        NotFound: it is gone.
        Conflict: another object has its name by now, or it has another version; nothing was changed.
        ApiError: anything else.
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


def _is_about_uid(error: Invalid) -> bool:
    causes = (error.status.get("details") or {}).get("causes") or ()
    return any(cause.get("field") == _FIELD for cause in causes)
