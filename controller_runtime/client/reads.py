"""Reads objects that may not exist."""

from __future__ import annotations

from typing import Any

from controller_runtime.client.client import Client
from controller_runtime.client.object_verbs import ObjectVerbs
from controller_runtime.errors import NotFound
from controller_runtime.objects import Object, from_dict
from controller_runtime.resources import Resource


async def find_object(client: ObjectVerbs, resource: Resource, name: str, **options: Any) -> Object | None:
    """Return an object as ``find`` does, but as an ``Object`` instead of a dict."""
    found = await find(client, resource, name, **options)
    return None if found is None else from_dict(found)


async def find(client: ObjectVerbs, resource: Resource, name: str, **options: Any) -> dict[str, Any] | None:
    """Return an object as ``client.get`` does; None if it does not exist.

    Raises:
        ApiError: any other failure.
    """
    try:
        return await client.get(resource, name, **options)
    except NotFound:
        return None


async def find_listed(client: Client, resource: Resource, name: str, *, namespace: str) -> Object | None:
    """Return an object; None if it does not exist. Needs only the right ``list``, which each account with a cache has.

    Raises:
        ApiError: any other failure.
    """
    listed = await client.list(resource, namespace=namespace, field_selector=f"metadata.name={name}")
    return next(iter(listed.items), None)
