"""Parses lists of jobs in ConfigMaps and files. Users write them, so size and nesting are limited."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from swarm.spec import MOST_JOBS, JobSpec

_TOO_MANY = f"more than {MOST_JOBS:,} jobs"
_DEEPEST = 10
"""Levels of nested YAML. The deepest field of a job, a value of its selector, has 8."""


def read_list(text: str) -> list[JobSpec]:
    """Parse a list of jobs: YAML (names or objects, or k8s-swarm's ``jobs:``), or one name per line.

    Raises:
        ValueError: an entry is not a job, or there are too many.
    """
    try:
        found, has_aliases = _load(text)
    except yaml.YAMLError:
        found, has_aliases = text, False
    if isinstance(found, dict) and "jobs" in found:
        found = found["jobs"] or []
    if not isinstance(found, list):
        found, has_aliases = [line.strip() for line in text.splitlines() if line.strip()], False
    if has_aliases:
        raise ValueError("aliases of YAML are not supported")
    if len(found) > MOST_JOBS:
        raise ValueError(_TOO_MANY)
    return [_job(number, entry) for number, entry in enumerate(found, 1)]


def _job(number: int, entry: Any) -> JobSpec:
    try:
        return msgspec.convert({"name": entry} if isinstance(entry, str) else entry, JobSpec, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"entry {number} is not a job: {error}") from None


def _load(text: str) -> tuple[Any, bool]:
    """Return the only document of a text, and whether it has aliases.

    Scalars stay strings, because yes, 007 and 1e3 are valid names. ``yaml.load`` is not used, because it recurses, and
    because a small text can expand to gigabytes by aliases.
    """
    stack: list[list[Any]] = [[]]
    has_aliases = False
    for event in yaml.parse(text, Loader=_LOADER):
        if len(stack[-1]) > 2 * MOST_JOBS:  # keys and values of a mapping
            raise ValueError(_TOO_MANY)
        if isinstance(event, yaml.ScalarEvent):
            stack[-1].append(event.value)
        elif isinstance(event, yaml.CollectionStartEvent):
            if len(stack) > _DEEPEST:
                raise ValueError(f"YAML is nested deeper than {_DEEPEST} levels")
            stack.append([])
        elif isinstance(event, yaml.CollectionEndEvent):
            closed: Any = stack.pop()
            if isinstance(event, yaml.MappingEndEvent):
                keys = closed[::2]
                if not all(isinstance(key, str) for key in keys):
                    raise ValueError("a key of YAML is not a string")
                closed = dict(zip(keys, closed[1::2], strict=True))
            stack[-1].append(closed)
        elif isinstance(event, yaml.AliasEvent):
            has_aliases = True
            stack[-1].append("")
    if len(stack[0]) > 1:
        raise yaml.YAMLError("more than one document")
    return (stack[0][0] if stack[0] else None), has_aliases


_LOADER = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
