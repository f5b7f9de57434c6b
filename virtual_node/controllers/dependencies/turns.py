"""Decides which namespace gives up a watch and which is polled next, so that namespaces share both evenly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def namespace_to_shrink(watches: Mapping[str, int], namespace: str) -> str | None:
    """Return the namespace that gives up a watch to the given one when all are used; None: no namespace.

    It is the namespace with most watches, if it has at least two more than the given one. So repeated calls
    end with equal numbers, and two namespaces never take a watch from each other in turns.

    Args:
        watches: number of watches by namespace.
        namespace: the namespace that needs one more.
    """
    most = max(watches, key=lambda name: watches[name], default=None)
    return most if most is not None and watches[most] > watches.get(namespace, 0) + 1 else None


def next_namespace(queues: Iterable[tuple[str, float]], due: float) -> str:
    """Return the first namespace with an object that is due; if none is due, the one whose object is due first.

    Args:
        queues: namespaces in the order of their turns, each with the time of the last read of its next
            object. At least one.
        due: objects last read at or before this time are due.
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
