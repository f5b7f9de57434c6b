"""Reads fields of Nodes and Pods for the health model and the commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from controller_runtime.api import names

Json = Mapping[str, Any]


def is_virtual(node: Json) -> bool:
    """Report whether a Node is a virtual node."""
    return bool((node["metadata"].get("labels") or {}).get(names.LABEL_NODE_TYPE) == names.NODE_TYPE_VIRTUAL)


def taints(node: Json) -> Iterator[Json]:
    """Yield a Node's taints."""
    yield from (node.get("spec") or {}).get("taints") or ()


def key(thing: Json) -> str:
    """Return ``namespace/name``."""
    metadata = thing["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


def statuses(pod: Json) -> Iterator[Json]:
    """Yield the statuses of a pod's init containers, then of its containers, both in the order of the spec."""
    for kind, specs in (("initContainerStatuses", "initContainers"), ("containerStatuses", "containers")):
        found = (pod.get("status") or {}).get(kind) or ()
        if len(found) > 1:
            places = {one.get("name"): place for place, one in enumerate(pod["spec"].get(specs) or ())}
            found = sorted(found, key=lambda one: (places.get(one["name"], len(places)), one["name"]))
        yield from found


def one_line(text: str, limit: int = 300) -> str:
    """Return the text in one line of at most ``limit`` characters, without control characters for terminals."""
    if not text.isprintable():
        text = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
