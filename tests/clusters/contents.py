"""What a cluster contains, and how it gets back to it after a test: what is new is deleted, whatever its kind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hack.sandbox import Cluster, SandboxError
from hack.sandbox.api import Api

_SECONDS = 60.0
"""For deletions. Namespaces take some seconds, because the controller manager deletes their objects kind by kind."""
_KINDS = "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList"
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_NOW = {"gracePeriodSeconds": "0", "propagationPolicy": "Background"}
_UNWATCHED = {"events", "endpoints", "endpointslices", "ipaddresses", "nodes"}
"""Kinds that the control plane creates and deletes by itself, and nodes, which ``Pool`` creates again."""
_UNWATCHED_IN = {("kube-node-lease", "leases"), ("kube-system", "serviceaccounts")}
"""Those of nodes, and those of the controllers, which the controller manager creates when it first needs them."""
_AUTOMATIC = "kube-aggregator.kubernetes.io/automanaged"
"""Label of the APIServices of definitions. Without them, the API server does not serve the objects to be deleted."""
_FIRST = (
    "apiservices", "validatingwebhookconfigurations", "mutatingwebhookconfigurations", "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
)  # fmt: skip
"""Kinds that can refuse or block other deletions."""
_GUARDED = {"namespaces", "customresourcedefinitions"}
"""Kinds whose finalizers delete their contents, so that they must not be removed."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An object: its kind's plural, its namespace, and what tests may have changed of it."""

    plural: str
    namespace: str
    labels: Mapping[str, str] = field(compare=False)
    finalizers: tuple[str, ...] = field(compare=False)
    deleting: bool = field(compare=False)


Contents = dict[str, Entry]
"""Path of an object → the object."""


async def contents(cluster: Cluster) -> Contents:
    """Return the objects of a cluster, except those that the control plane itself writes all the time."""
    return await _read(cluster.api, [kind async for kind in _kinds(cluster.api)])


async def restore(cluster: Cluster, before: Contents) -> None:
    """Delete all objects that a cluster had not before, with their finalizers, and wait until they are gone.

    Raises:
        SandboxError: objects remain, or one of before is missing or has other labels; names them.
    """
    api = cluster.api
    kinds = [kind async for kind in _kinds(api)]
    there = await _read(api, kinds)
    changed = sorted(
        path for path, one in before.items() if path not in there or there[path].labels != one.labels
    )
    if changed:
        raise SandboxError(f"{cluster.name}: a test changed {', '.join(changed[:10])}")
    with contextlib.suppress(SandboxError):  # a webhook that is to be deleted may refuse it
        await api.delete("/api/v1/namespaces/default/events")
    touched = {one.plural for path, one in there.items() if path not in before}
    kinds = [kind for kind in kinds if kind[1] in touched]
    loop = asyncio.get_running_loop()
    end, refused = loop.time() + _SECONDS, ""
    while new := {path: one for path, one in there.items() if path not in before}:
        if loop.time() > end:
            raise SandboxError(f"{cluster.name} keeps {', '.join(sorted(new)[:10])}: {refused}")
        refused = await _delete(api, new)
        await asyncio.sleep(0.3)
        if all(one.plural in _GUARDED for one in new.values()):
            # An API server that has just restarted serves the objects of definitions only after some seconds.
            kinds = [kind async for kind in _kinds(api)]
        there = await _read(api, kinds)


async def _kinds(api: Api) -> AsyncIterator[tuple[str, str]]:
    """Yield the path of each collection that has objects to delete, and its kind's plural."""
    for root in ("/api", "/apis"):
        for group in (await api.read(root, accept=_KINDS))["items"]:
            name = group["metadata"].get("name", "")
            seen = set(_UNWATCHED)
            for version in group["versions"]:
                prefix = f"/apis/{name}/{version['version']}" if name else f"/api/{version['version']}"
                for resource in version.get("resources", ()):
                    plural = resource["resource"]
                    if {"list", "delete"} <= set(resource["verbs"]) and plural not in seen:
                        seen.add(plural)  # each object is in all versions of its group
                        yield prefix, plural


async def _read(api: Api, kinds: Iterable[tuple[str, str]]) -> Contents:
    found: Contents = {}
    for prefix, plural in kinds:
        try:
            listed = await api.read(f"{prefix}/{plural}", accept=_METADATA)
        except SandboxError:
            continue  # its definition has just been deleted
        for item in listed["items"] or ():
            metadata: dict[str, Any] = item["metadata"]
            namespace = metadata.get("namespace", "")
            if (namespace, plural) in _UNWATCHED_IN or _AUTOMATIC in (metadata.get("labels") or {}):
                continue
            place = f"{prefix}/namespaces/{namespace}" if namespace else prefix
            found[f"{place}/{plural}/{metadata['name']}"] = Entry(
                plural,
                namespace,
                metadata.get("labels") or {},
                tuple(metadata.get("finalizers") or ()),
                "deletionTimestamp" in metadata,
            )
    return found


async def _delete(api: Api, new: Contents) -> str:
    """Delete objects: namespaces whole, and what holds them up first. Return the last refusal, which may pass."""
    refused = ""
    spaces = {path.rpartition("/")[2] for path, one in new.items() if one.plural == "namespaces"}
    for path, one in sorted(new.items(), key=lambda item: item[1].plural not in _FIRST):
        try:
            if one.deleting and one.finalizers and one.plural not in _GUARDED:
                await api.merge(path, {"metadata": {"finalizers": None}})
            elif one.plural == "pods" or (not one.deleting and one.namespace not in spaces):
                await api.delete(path, query=_NOW)
        except SandboxError as error:
            refused = str(error)
    return refused
