"""Reads lists of jobs from ConfigMaps. A ConfigMap is watched while a Swarm refers to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from controller_runtime.workqueue.fairness import in_thread
from swarm.spec import MOST_JOBS, JobsFrom, JobSpec, read_list

Found = tuple[list[JobSpec], list[tuple[str, str]]]
"""Jobs, and problems as reason and message."""

_BYTES = 16 << 20
"""Largest size of all job lists of one namespace in memory, in bytes."""
_DROPPED = 100
"""Largest number of ConfigMaps beyond the limit that are cached for one Swarm, without their data."""
_LISTS = 200
"""Largest number of Swarms with ``jobsFrom`` in one namespace: each needs a watch."""


class _Lists(Informer):
    """Follows the ConfigMaps of one Swarm."""

    forget: Callable[[Object], None]
    """Stops counting a deleted ConfigMap. The transform counts its last state, also if it was not cached."""

    def change(self, kind: str, changed: Object) -> None:
        super().change(kind, changed)
        if kind == "DELETED":
            self.forget(changed)


@dataclass(slots=True)
class _Followed:
    """The ConfigMaps of one Swarm."""

    code: bytes
    """``jobsFrom`` as JSON, to detect a change."""
    informer: Informer
    task: asyncio.Task[None]
    kept: dict[str, int]
    """Name → bytes of each cached ConfigMap."""
    dropped: dict[str, int]
    """Name → bytes of ConfigMaps beyond their namespace's limit, which are cached without data."""
    has_more: bool = False
    """Whether further selected ConfigMaps exist, which are not cached."""
    parsed: dict[tuple[str, str], tuple[str, list[JobSpec]]] = field(default_factory=dict)
    """Name and key of a ConfigMap → resourceVersion and jobs of the last valid list."""


@dataclass(eq=False)
class Sources:
    """Watches ConfigMaps by name or selector, while ``run`` is running."""

    client: Client
    on_change: Callable[[str], None]
    """Called with the key of a Swarm when its list of jobs changed."""

    def __post_init__(self) -> None:
        self._followed: dict[str, _Followed] = {}
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
            followed.task.cancel()

    async def jobs(self, swarm: str, namespace: str, source: JobsFrom) -> Found | None:
        """Return the jobs in the ConfigMaps; None until they were read. For an invalid list, use its last valid content."""
        if self._group is None:
            return None
        followed = self._follow(self._group, swarm, namespace, source)
        if followed is None:
            return [], [
                ("JobsUnreadable", f"more than {_LISTS} Swarms of namespace {namespace} use jobsFrom")
            ]
        informer = followed.informer
        if not informer.has_synced:
            error = informer.last_error
            return None if error is None else ([], [("JobsUnreadable", f"spec.jobsFrom: {error}")])
        if followed.dropped or followed.has_more:
            names = ", ".join(sorted(followed.dropped)[:5])
            message = f"lists in namespace {namespace} exceed {_BYTES >> 20} MiB; not read: ConfigMap {names}"
            return [], [("JobsUnreadable", message)]
        # In a thread, because a list may have a megabyte.
        return await in_thread(_read, informer.store.list(), source, followed.parsed)

    def _follow(
        self, group: asyncio.TaskGroup, swarm: str, namespace: str, source: JobsFrom
    ) -> _Followed | None:
        """Watch a Swarm's ConfigMaps; return None if too many Swarms of the namespace use ``jobsFrom``."""
        code = msgspec.json.encode(source)
        followed = self._followed.get(swarm)
        if followed is not None and followed.code == code:
            missing = sum(followed.dropped.values())
            if not (missing or followed.has_more) or self._bytes(namespace) + missing > _BYTES:
                return followed
        self.forget(swarm)
        if sum(key.startswith(f"{namespace}/") for key in self._followed) >= _LISTS:
            return None
        selection: dict[str, Any] = {}
        if source.config_map is not None:
            selection["field_selector"] = f"metadata.name={source.config_map.name}"
        else:
            selection["label_selector"] = _text(source.selector or {})
        kept: dict[str, int] = {}
        dropped: dict[str, int] = {}

        def is_cached(found: Object) -> bool:
            if found.name in kept or found.name in dropped or len(dropped) < _DROPPED:
                return True
            following.has_more = True
            return False

        def within_limit(found: Object) -> Object:
            if not is_cached(found):
                return found.without("data")
            kept.pop(found.name, None)
            dropped.pop(found.name, None)
            found = found.without("binaryData").with_only()
            fits = self._bytes(namespace) + found.memory <= _BYTES
            (kept if fits else dropped)[found.name] = found.memory
            return found if fits else found.without("data")

        def forget(found: Object) -> None:
            kept.pop(found.name, None)
            dropped.pop(found.name, None)

        informer = _Lists(
            self.client,
            resources.CONFIG_MAPS,
            namespace=namespace,
            keep=is_cached,
            transform=within_limit,
            name="jobs",
            is_minor=True,
            **selection,
        )

        informer.forget = forget

        def deleted(found: Object) -> None:
            forget(found)
            self.on_change(swarm)

        informer.on_change(lambda _: self.on_change(swarm), deleted)
        task = group.create_task(informer.run(), name=f"jobs of {swarm}")
        following = self._followed[swarm] = _Followed(code, informer, task, kept, dropped)
        return following

    def _bytes(self, namespace: str) -> int:
        """Return the bytes of all lists of a namespace in memory."""
        return sum(
            sum(followed.kept.values())
            for swarm, followed in self._followed.items()
            if swarm.startswith(f"{namespace}/")
        )


def _read(
    found: list[Object], source: JobsFrom, parsed: dict[tuple[str, str], tuple[str, list[JobSpec]]]
) -> Found:
    """Return the jobs in ConfigMaps; read unchanged lists from ``parsed``, and update it."""
    entries: list[JobSpec] = []
    problems: list[tuple[str, str]] = []
    key = source.config_map.key if source.config_map else None
    if source.config_map is not None and not found:
        problems.append(("JobsMissing", f"ConfigMap {source.config_map.name} does not exist"))
    before = dict(parsed)
    parsed.clear()
    for one in sorted(found, key=lambda one: one.name):
        if len(entries) > MOST_JOBS:
            break  # a text of a megabyte can have half a million jobs, which take much more memory
        data: Mapping[str, str] = one.field("data") or {}
        if key is not None and key not in data:
            problems.append(("JobsMissing", f"ConfigMap {one.name} has no key {key!r}"))
        for name in [key] if key is not None else sorted(data):
            version, jobs = before.get((one.name, name), ("", []))
            if version != one.resource_version:
                try:
                    version, jobs = one.resource_version, read_list(data.get(name, ""))
                except ValueError as error:
                    problems.append(("JobsUnreadable", f"ConfigMap {one.name}, key {name!r}: {error}"))
            parsed[one.name, name] = version, jobs
            entries += jobs
    if len(entries) > MOST_JOBS:
        problems.append(("JobsUnreadable", f"more than {MOST_JOBS:,} jobs; the others are ignored"))
    return entries[:MOST_JOBS], problems


def _text(selector: Mapping[str, Any]) -> str:
    """Return a label selector as a query parameter."""
    parts = [f"{key}={value}" for key, value in (selector.get("matchLabels") or {}).items()]
    for expression in selector.get("matchExpressions") or ():
        key, values = expression["key"], ",".join(expression.get("values") or ())
        parts.append(
            {
                "In": f"{key} in ({values})",
                "NotIn": f"{key} notin ({values})",
                "Exists": key,
                "DoesNotExist": f"!{key}",
            }[expression["operator"]]
        )
    return ",".join(parts)
