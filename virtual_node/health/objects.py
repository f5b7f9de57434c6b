"""Fields of Nodes and Pods that the rules of the health model and of the commands read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from controller_runtime.api import names

Json = Mapping[str, Any]


def condition(thing: Json, kind: str) -> Json:
    """Return a condition of a node or pod; empty when it has none of that type."""
    conditions = (thing.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind), {})


def is_virtual(node: Json) -> bool:
    """Whether a Node is a virtual node."""
    return bool((node["metadata"].get("labels") or {}).get(names.LABEL_NODE_TYPE) == names.NODE_TYPE_VIRTUAL)


def taints(node: Json) -> Iterator[Json]:
    """A Node's taints."""
    yield from (node.get("spec") or {}).get("taints") or ()


def key(thing: Json) -> str:
    """``namespace/name``."""
    metadata = thing["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


def statuses(pod: Json) -> Iterator[Json]:
    """Statuses of all containers of a pod, init containers first."""
    for kind in ("initContainerStatuses", "containerStatuses"):
        yield from (pod.get("status") or {}).get(kind) or ()


def one_line(text: str, limit: int = 300) -> str:
    """A text without line breaks, cut where it is very long."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
