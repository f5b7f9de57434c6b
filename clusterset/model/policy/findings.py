"""Common parts of policy checks: names of fields, and iteration over a pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

FieldValue = tuple[str, str]
"""A field of the pod that violates a rule, such as ``spec.containers[app].image``, and its value. List items
are identified by name or key, because their positions may differ in the lower cluster."""

NOT_SET = "not set"
DEBUG_CONTAINERS = "spec.ephemeralContainers["
"""Beginning of the fields of debug containers."""
_KINDS = ("initContainers", "containers", "ephemeralContainers")


def containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield every container with its field, including init and ephemeral containers."""
    for kind in _KINDS:
        for container in spec.get(kind) or ():
            yield f"spec.{kind}[{container.get('name', '')}]", container


def contexts(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the security context of the pod and of every container, with its field."""
    yield "spec.securityContext", spec.get("securityContext") or {}
    yield from container_contexts(spec)


def container_contexts(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the security context of every container, with its field."""
    for where, container in containers(spec):
        yield f"{where}.securityContext", container.get("securityContext") or {}


def is_windows(spec: Mapping[str, Any]) -> bool:
    """Return whether the pod runs only on Windows, where Linux security settings must not be set."""
    return (spec.get("os") or {}).get("name") == "windows"
