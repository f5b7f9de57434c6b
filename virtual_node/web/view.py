"""What a browser looks at, as its URL says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from virtual_node.web.groups import STATES, Row

_LONGEST = 320
"""Characters of a value: ``namespace/name`` has 63 + 1 + 253 at most."""
_GROUPS = 40
"""Groups that are sent unless more are asked for."""
_MOST_GROUPS = 400
_PODS = 50
"""Pods of an open group that are sent unless more are asked for."""
_MOST_PODS = 500
_MOST_OPEN = 8


@dataclass(frozen=True, slots=True)
class View:
    """A selection of pods, and what is open.

    Attributes:
        search: only pods whose namespace, name, node or status contains it; lower case.
        cluster: only pods of this lower cluster.
        namespace: only pods of this upper namespace.
        state: only pods of this state.
        groups: groups to send.
        pods: pods of each open group to send.
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
        """Return whether a pod is selected, whatever its state is."""
        return (
            (not self.namespace or row.shown["namespace"] == self.namespace)
            and (not self.cluster or row.shown["cluster"] == self.cluster)
            and self.search in row.text
        )


def of_query(query: Mapping[str, str]) -> View:
    """Read a URL's query; what cannot be understood is left out."""

    def text(name: str) -> str:
        return query.get(name, "").strip()[:_LONGEST]

    def number(name: str, least: int, most: int) -> int:
        value = query.get(name, "")
        return min(most, max(least, int(value))) if value.isascii() and value.isdigit() else least

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
