"""Reads lists of jobs from ConfigMaps. A ConfigMap is watched while a Swarm refers to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from swarm.spec import JobsFrom, JobSpec, read_list

Found = tuple[list[JobSpec], list[tuple[str, str]]]
"""Jobs, and problems as reason and message."""


class Sources:
    """Watches ConfigMaps by name or selector, while ``run`` is running."""

    def __init__(self, client: Client, *, on_change: Callable[[str], None]) -> None:
        """Start without ConfigMaps.

        Args:
            client: client of the upper cluster.
            on_change: called with the key of a Swarm when its list of jobs changed.
        """
        self._client = client
        self._on_change = on_change
        self._followed: dict[str, tuple[bytes, Informer, asyncio.Task[None]]] = {}
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Run the informers until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            await asyncio.Event().wait()

    def forget(self, swarm: str) -> None:
        """Stop watching the ConfigMaps of a Swarm."""
        followed = self._followed.pop(swarm, None)
        if followed is not None:
            followed[2].cancel()

    def jobs(self, swarm: str, namespace: str, source: JobsFrom) -> Found | None:
        """Return the jobs in the ConfigMaps; None until they have been read."""
        informer = self._informer(swarm, namespace, source)
        if informer is None or not informer.has_synced:
            return None
        entries: list[JobSpec] = []
        problems: list[tuple[str, str]] = []
        key = source.config_map.key if source.config_map else None
        found = sorted(informer.store.list(), key=lambda one: one.name)
        if source.config_map is not None and not found:
            problems.append(("JobsMissing", f"ConfigMap {source.config_map.name} does not exist"))
        for one in found:
            data: Mapping[str, str] = one.field("data") or {}
            if key is not None and key not in data:
                problems.append(("JobsMissing", f"ConfigMap {one.name} has no key {key!r}"))
            for name in [key] if key is not None else sorted(data):
                try:
                    entries += read_list(data.get(name, ""))
                except ValueError as error:
                    problems.append(("JobsUnreadable", f"ConfigMap {one.name}, key {name!r}: {error}"))
        return entries, problems

    def _informer(self, swarm: str, namespace: str, source: JobsFrom) -> Informer | None:
        code = msgspec.json.encode(source)
        followed = self._followed.get(swarm)
        if followed is not None and followed[0] == code:
            return followed[1]
        self.forget(swarm)
        if self._group is None:
            return None
        selection: dict[str, Any] = {}
        if source.config_map is not None:
            selection["field_selector"] = f"metadata.name={source.config_map.name}"
        else:
            selection["label_selector"] = _text(source.selector or {})
        informer = Informer(
            self._client, resources.CONFIG_MAPS, namespace=namespace, name="jobs", is_minor=True, **selection
        )

        def changed(*_: object) -> None:
            self._on_change(swarm)

        informer.add_handler(on_add=changed, on_update=changed, on_delete=changed)
        task = self._group.create_task(informer.run(), name=f"jobs of {swarm}")
        self._followed[swarm] = code, informer, task
        return informer


def _text(selector: Mapping[str, Any]) -> str:
    """Return a label selector as a query parameter."""
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for one in selector.get("matchExpressions") or ():
        key, values = one["key"], ",".join(one.get("values") or ())
        parts.append(
            {
                "In": f"{key} in ({values})",
                "NotIn": f"{key} notin ({values})",
                "Exists": key,
                "DoesNotExist": f"!{key}",
            }[one["operator"]]
        )
    return ",".join(parts)
