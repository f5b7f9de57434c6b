"""Parses a browser's view from the URL's query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from virtual_node.web.groups import STATES, Row

_LONGEST = 320
"""Maximum characters of a value; ``namespace/name`` has at most 63 + 1 + 253."""
_GROUPS = 40
"""Default number of groups that are sent."""
_MOST_GROUPS = 400
_PODS = 50
"""Default number of pods of an open group that are sent."""
_MOST_PODS = 500
_MOST_OPEN = 8


@dataclass(frozen=True, slots=True)
class View:
    """A browser's selection of pods, and what is open in it. Empty fields select all pods and open nothing.

    Attributes:
        search: only pods with this lower-case text in the name of the pod, its namespaces, nodes, cluster or owner, or
            in its status or cause.
        cluster: only pods of this lower cluster.
        namespace: only pods of this upper namespace.
        state: only pods of this state.
        groups: number of groups to send.
        pods: number of pods to send of each open group.
        open: keys of the groups whose pods are sent.
        pod: ``namespace/name`` of the pod whose details are sent.
        detail: name of the lower cluster whose details are sent.
    """

    search: str = ""
    cluster: str = ""
    namespace: str = ""
    state: str = ""
    groups: int = _GROUPS
    pods: int = _PODS
    open: tuple[str, ...] = ()
    pod: str = ""
    detail: str = ""

    def has(self, row: Row) -> bool:
        """Report whether all filters except ``state`` select a row."""
        return (
            (not self.namespace or row.shown["namespace"] == self.namespace)
            and (not self.cluster or row.shown["cluster"] == self.cluster)
            and self.search in row.text
        )


def of_query(query: Mapping[str, str]) -> View:
    """Return the view of a URL's query; invalid values are ignored."""

    def text(name: str) -> str:
        return query.get(name, "").strip()[:_LONGEST]

    def number(name: str, least: int, most: int) -> int:
        value = query.get(name, "")
        return min(most, max(least, int(value[:9]))) if value.isascii() and value.isdigit() else least

    return View(
        search=text("search").lower(),
        cluster=text("cluster"),
        namespace=text("namespace"),
        state=text("status") if text("status") in STATES else "",
        groups=number("groups", _GROUPS, _MOST_GROUPS),
        pods=number("pods", _PODS, _MOST_PODS),
        open=tuple(key[:_LONGEST] for key in query.get("open", "").split(",")[:_MOST_OPEN] if key),
        pod=text("pod"),
        detail=text("detail"),
    )
