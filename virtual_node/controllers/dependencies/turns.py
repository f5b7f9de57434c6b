"""Decide which namespace gives up a watch, and which is polled next, so that namespaces share both evenly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def namespace_to_shrink(watches: Mapping[str, int], namespace: str) -> str | None:
    """Return the namespace that gives up a watch to another one when all watches are used.

    It is the one with most watches, if it has at least two more than the other. Repeated, this leads to equal shares and
    ends: no two namespaces take a watch from each other in turns.

    Args:
        watches: Number of watches by namespace.
        namespace: The namespace that needs one more.
    """
    most = max(watches, key=lambda name: watches[name], default=None)
    return most if most is not None and watches[most] > watches.get(namespace, 0) + 1 else None


def next_namespace(queues: Iterable[tuple[str, float]], due: float) -> str:
    """Return the first namespace that has an object to read, or else the one that has the next.

    Args:
        queues: Namespaces, the one that was read longest ago first; each with the time of the last read of its next
            object. At least one.
        due: An object is to be read when its last read is not later than this.
    """
    earliest: tuple[float, str] | None = None
    for namespace, read_at in queues:
        if read_at <= due:
            return namespace
        if earliest is None or read_at < earliest[0]:
            earliest = (read_at, namespace)
    if earliest is None:
        raise ValueError("no namespaces")
    return earliest[1]
